/* plan_table.c - the result of a search: ranked layouts, and why others were excluded. */
#include "src/cmd/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether a key is among the flags of a layout: a rare one where the layout has another value than the job. */
static bool is_flag(const struct tc_plan_job *j, int key, int64_t value, bool rare_alone)
{
  const bool changed = value != tc_plan_key_value(j->cfg, key);
  if (!tc_plan_key_rare[key]) return !rare_alone;
  return key == TC_KEY_CP ? !rare_alone && (changed || value != 1) : changed;      /* the table has a column of cp */
}

/* Appends a layout's keys as flags: those that a row can be run with or, rare_alone, those that have no column. */
static void add_flags(char *text, size_t size, const struct tc_plan_job *j, const struct tc_config *c, bool rare_alone)
{
  for (int key = 0; key < TC_KEYS; key++) {
    const int64_t v = tc_plan_key_value(c, key);
    if (!is_flag(j, key, v, rare_alone)) continue;
    tc_plan_key_flag(text, size, key, v);
    if (key == TC_KEY_TP) tc_text_add(text, size, " --mesh.order=%s", tc_word_mesh_order(c->mesh_order));
  }
}

/* Layout keys of a configuration as flags, so that a row can be run; in addition to the job's. Owned by the caller. */
static char *flags_of(const struct tc_plan_job *j, const struct tc_config *c)
{
  const size_t size = 1000 + strlen(c->mesh_stages);
  char *text = tc_calloc(size, 1);
  add_flags(text, size, j, c, false);
  if (strcmp(c->mesh_stages, j->cfg->mesh_stages))         /* not those given */
    tc_text_add(text, size, " --mesh.stages=%s", c->mesh_stages);
  if (c->parallel_head_chunk != j->cfg->parallel_head_chunk)
    tc_text_add(text, size, " --parallel.head_chunk=%lld", (long long)c->parallel_head_chunk);
  return text;
}

static void reason(char *buf, size_t size, const struct tc_plan_job *j, const struct tc_plan_found *found,
                   const struct tc_plan_family *f)
{
  char a[32], b[32];
  double room = j->cluster.device.memory_bytes;
  /* The search offloads only what does not fit otherwise (add_memory): the figure is that of these layouts. */
  const bool rest = f->key == TC_KEY_OFFLOAD && strcmp(f->name, "no") && !(j->fixed >> TC_KEY_OFFLOAD & 1) &&
                    found->fitting;
  const char *where = rest ? "where it is needed: " : "";
  if (isfinite(f->least_bytes) && f->least_bytes > room)
    snprintf(buf, size, "%sneeds at least %s, a device has %s", where, tc_human_bytes(a, sizeof a, f->least_bytes),
             tc_human_bytes(b, sizeof b, room));
  else if (f->least_host_bytes > 0)
    snprintf(buf, size, "%sneeds at least %s of host memory, a node has %s", where,
             tc_human_bytes(a, sizeof a, f->least_host_bytes),
             tc_human_bytes(b, sizeof b, j->cluster.device.host_bytes));
  else snprintf(buf, size, "%s", f->why);
}

static void print_families(FILE *f, const struct tc_plan_job *j, const struct tc_plan_found *found)
{
  bool any = false;
  /* If nothing fits, only the keys that save most memory are printed. */
  const unsigned few = 1u << TC_KEY_PP | 1u << TC_KEY_CP | 1u << TC_KEY_TP | 1u << TC_KEY_DATA |
                       1u << TC_KEY_RECOMPUTE | 1u << TC_KEY_OFFLOAD;
  for (int key = 0; key < TC_KEYS; key++) {
    if (!found->fitting && found->possible && !(few >> key & 1)) continue;
    for (int i = 0; i < found->n_families; i++) {
      const struct tc_plan_family *x = &found->family[i];
      char why[256];
      if (x->key != key || x->fit) continue;
      reason(why, sizeof why, j, found, x);
      if (!any) fprintf(f, "\nexcluded entirely:\n");
      any = true;
      char name[80];
      snprintf(name, sizeof name, "%s = %s", tc_plan_key_name[key], x->name);
      fprintf(f, "  %-40s %s\n", name, why);
    }
  }
}

/* A given value that is impossible; else one required by the cluster, first of dp, over which the batch
 * must be split. NULL: none. */
static const struct tc_plan_family *culprit(const struct tc_plan_job *j,
                                            const struct tc_plan_found *found)
{
  for (int i = 0; i < found->n_families; i++)
    if (j->fixed >> found->family[i].key & 1 && !found->family[i].fit && *found->family[i].why)
      return &found->family[i];
  for (int any = 0; any < 2; any++)
    for (int i = 0; i < found->n_families; i++)
      if ((any || found->family[i].key == TC_KEY_DP) && *found->family[i].why) return &found->family[i];
  return NULL;
}

int tc_plan_nothing(const struct tc_plan_job *j, const struct tc_plan_found *found, struct tc_err *err)
{
  char a[32], b[32];
  const struct tc_plan_family *x = culprit(j, found);
  if (!found->possible && x)
    return tc_fail(err, TC_ELAYOUT, "no layout is possible: %s = %s %s", tc_plan_key_name[x->key],
                   x->name, x->why);
  if (!found->possible && found->least_nodes)
    return tc_fail(err, TC_ELAYOUT, "no layout of %d rank%s is possible with the given values; %d nodes of %d "
                   "would suffice", j->world, tc_plural(j->world), found->least_nodes, j->cluster.devices);
  if (!found->possible || !isfinite(found->least_bytes) ||
      found->least_bytes <= j->cluster.device.memory_bytes)
    return tc_fail(err, TC_ELAYOUT, "no layout fits%s%s", *found->why ? ": " : "", found->why);
  tc_human_bytes(a, sizeof a, found->least_bytes);
  tc_human_bytes(b, sizeof b, j->cluster.device.memory_bytes);
  if (found->least_nodes)
    return tc_fail(err, TC_ELAYOUT, "no layout fits: a device needs %s and has %s; %d nodes of %d would "
                   "suffice", a, b, found->least_nodes, j->cluster.devices);
  return tc_fail(err, TC_ELAYOUT, "no layout fits: a device needs %s and has %s", a, b);
}

static void print_nothing(FILE *f, const struct tc_plan_job *j, const struct tc_plan_found *found)
{
  char a[32], b[32];
  const struct tc_cluster *k = &j->cluster;
  const int64_t batch = j->cfg->train_global_batch;
  fprintf(f, "\nnothing fits.");
  bool small = found->least_bytes <= k->device.memory_bytes;
  if (small && *found->why) {                    /* memory is not the reason */
    fprintf(f, " %s.\n", found->why);
    return;
  }
  if (found->possible && isfinite(found->least_bytes) && !small)
    fprintf(f, " On %d rank%s a device needs at least %s and has %s.", j->world, tc_plural(j->world),
            tc_human_bytes(a, sizeof a, found->least_bytes),
            tc_human_bytes(b, sizeof b, k->device.memory_bytes));
  const struct tc_plan_family *x = culprit(j, found);
  if (!found->possible)
    fprintf(f,
            " No layout of %d rank%s is possible with the given values: a batch of %lld sequence%s, %s.",
            j->world, tc_plural(j->world), (long long)batch, tc_plural(batch),
            j->fixed ? "and the flags of the layout" : "the heads and the layers");
  if (!found->possible && x)
    fprintf(f, " %s = %s %s.", tc_plan_key_name[x->key], x->name, x->why);
  if (found->least_nodes)
    fprintf(f, " %d nodes of %d would suffice.\n", found->least_nodes, k->devices);
  else if (!found->possible) fprintf(f, "\n");
  else
    fprintf(f,
            " More nodes of this kind would not help; more memory, or a smaller model, would.\n");
}

/* Whether a layout splits sequences: the table then has a column for it. */
static bool has_context(const struct tc_plan_found *found)
{
  for (int i = 0; i < found->n_rows; i++)
    if (found->row[i].cfg.mesh_cp > 1) return true;
  return false;
}

static void print_row(FILE *f, const struct tc_plan_job *j, const struct tc_plan_row *r, int number, bool context)
{
  const struct tc_plan *p = &r->plan;
  char schedule[32], step[32], cp[16] = "", rare[160] = "", a[32], b[32], c[32], d[32];
  snprintf(schedule, sizeof schedule, p->virtual_stages > 1 ? "%s %d" : "%s",
           p->size[TC_PP] > 1 ? tc_word_parallel_schedule(r->cfg.parallel_schedule) : "-", p->virtual_stages);
  snprintf(step, sizeof step, "%.4g s", p->time.step_s);
  tc_human_bytes(d, sizeof d - 1, tc_plan_host_bytes(p, &j->cluster));
  if (r->host_unchecked) strcat(d, "?");
  if (context) snprintf(cp, sizeof cp, " %4d", tc_axes_size(p->size, TC_ON_CP));
  add_flags(rare, sizeof rare, j, &r->cfg, true);
  if (strcmp(r->cfg.mesh_stages, j->cfg->mesh_stages)) tc_text_add(rare, sizeof rare, "%sstages by memory", *rare ? ", " : "");
  fprintf(f, "%2d %4d %5d%s %3d %-6s %-14s %5d %-9s %3s %-7s %9s %5.1f%% %9s %8s %6.1f%% %9s %9s%s%s\n", number,
          p->size[TC_PP], tc_axes_size(p->size, TC_ON_DP), cp, tc_axes_size(p->size, TC_ON_TP),
          tc_word_parallel_data(r->cfg.parallel_data), schedule, p->micro,
          tc_word_train_recompute(r->cfg.train_recompute), r->cfg.parallel_sequence ? "yes" : "no",
          tc_word_parallel_offload(r->cfg.parallel_offload), step, 100 * p->time.mfu,
          tc_human_bytes(a, sizeof a, (double)p->cls[p->worst].memory.bytes[TC_DEVICE]), d,
          100 * p->time.bubble, tc_human_bytes(b, sizeof b, p->time.wire_bytes[TC_WIRE_NODE]),
          tc_human_bytes(c, sizeof c, p->time.wire_bytes[TC_WIRE_NETWORK]), *rare ? "  " : "", rare);
}

static void print_legend(FILE *f, const struct tc_plan_found *found)
{
  bool unchecked = false;
  for (int i = 0; i < found->n_rows; i++) unchecked |= found->row[i].host_unchecked;
  fprintf(f,
          "\npp, dp, %stp: ranks on each axis; micro: sequences per micro-batch; seq: sequence parallelism\n"
          "step: estimated time of a step; MFU: model operations / (time x peak rate of the devices)\n"
          "memory: of the rank that needs most, without kernel workspace, driver and libraries; "
          "host: of a node, for offloaded state\n"
          "bubble: part of the step in which stages wait for each other, on average over stages; "
          "in node, network: the most bytes that a rank sends per step\n", has_context(found) ? "cp, " : "");
  if (unchecked) fprintf(f, "?: host memory unknown: offload not checked (--host-memory says what a node has)\n");
}

void tc_plan_table_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan_found *found)
{
  tc_plan_head_print(f, j);
  fprintf(f, "%-10s %lld are possible, %lld fit\n", "layouts", (long long)found->possible, (long long)found->fitting);
  if (!found->n_rows) print_nothing(f, j, found);
  else
    fprintf(f, "\n%2s %4s %5s%s %3s %-6s %-14s %5s %-9s %3s %-7s %9s %6s %9s %8s %7s %9s %9s\n", "", "pp", "dp",
            has_context(found) ? "   cp" : "", "tp", "data", "schedule", "micro", "recompute", "seq", "offload", "step",
            "MFU", "memory", "host", "bubble", "in node", "network");
  for (int i = 0; i < found->n_rows; i++) print_row(f, j, &found->row[i], i + 1, has_context(found));
  if (found->n_rows) print_legend(f, found);
  print_families(f, j, found);
  fprintf(f, "\nnot searched, as the run file has them: " TC_PLAN_NOT_SEARCHED "\n");
  if (!found->n_rows) return;
  if (j->costs) tc_plan_runs_print(f, j, found->row, found->n_rows);
  tc_plan_headroom_print(f, j, &found->row[0].plan);
  char *flags = flags_of(j, &found->row[0].cfg);
  fprintf(f, "\noptions of row 1: %s\n", flags);
  free(flags);
}

json_t *tc_plan_table_json(const struct tc_plan_job *j, const struct tc_plan_found *found)
{
  json_t *rows = json_array(), *out = json_array();
  for (int i = 0; i < found->n_rows; i++) {
    struct tc_plan_job x = *j;
    x.cfg = (struct tc_config *)(uintptr_t)&found->row[i].cfg;
    json_t *o = tc_plan_json(&x, &found->row[i].plan);
    char *flags = flags_of(j, x.cfg);
    json_object_set_new(o, "flags", json_string(flags));
    json_object_set_new(o, "host_unchecked", json_boolean(found->row[i].host_unchecked));
    tc_figure(o, "guess_s", found->row[i].guess_s);
    tc_figure(o, "guess_bytes", found->row[i].guess_bytes);
    json_array_append_new(rows, o);
    free(flags);
  }
  for (int i = 0; i < found->n_families; i++) {
    char why[256];
    if (found->family[i].fit) continue;
    reason(why, sizeof why, j, found, &found->family[i]);
    tc_out_row(out, "key=%s value=%s why=%s", tc_plan_key_name[found->family[i].key], found->family[i].name, why);
  }
  json_t *o = tc_out_object("nodes=%d gpus_per_node=%d device=%s possible=%lld fitting=%lld layouts=%p excluded=%p "
                            "least_bytes?=%g from=%p", j->cluster.nodes, j->cluster.devices, j->cluster.device.name,
                            (long long)found->possible, (long long)found->fitting, (void *)rows, (void *)out,
                            isfinite(found->least_bytes) ? found->least_bytes : -1, (void *)tc_plan_head_json(j));
  if (j->from_slurm) json_object_set_new(o, "slurm", tc_slurm_json(&j->slurm));
  if (!found->n_rows) json_object_set_new(o, "least_nodes", json_integer(found->least_nodes));
  return o;
}
