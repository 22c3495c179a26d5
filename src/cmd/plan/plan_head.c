/* plan_head.c - what a plan is of, and where each figure came from; what a run costs; advice on headroom. One layout and a
 * search print the same. */
#include "src/cmd/plan/plan.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 66 };                             /* of the column before the sources */
#define ASSUMED "assumed"

/* ---- Slurm ------------------------------------------------------------------------- */

static const char *const why_text[] = { [TC_SLURM_DOWN] = "down or drained", [TC_SLURM_OTHER] = "of another kind",
                                        [TC_SLURM_OLD] = "GPUs before compute capability 8.0",
                                        [TC_SLURM_SLICE] = "slices of GPUs (MIG), between which NCCL cannot send",
                                        [TC_SLURM_UNKNOWN] = "in a state that this release of Tercio does not know" };
_Static_assert(TC_CAPABILITY == 80, "why_text names it");

static void print_left_out(FILE *f, const struct tc_slurm_kind *k)
{
  fprintf(f, "  left out: %d node%s", k->nodes, tc_plural(k->nodes));
  if (k->cpus)
    fprintf(f, " of %d CPUs, %d GPUs%s%s", k->cpus, k->gpus, *k->gpu ? " " : "", k->gpu);
  fprintf(f, " (%s%s%s)\n", why_text[k->why], *k->state ? ": " : "", k->state);
}

static void print_slurm(FILE *f, const struct tc_slurm_part *s)
{
  char a[32];
  fprintf(f, "Slurm, partition %s: %d node%s of %d CPUs, %d GPUs%s%s, %s; ", s->name, s->nodes,
          tc_plural(s->nodes), s->cpus, s->gpus, *s->gpu ? " " : "", s->gpu,
          tc_human_bytes(a, sizeof a, s->memory_bytes));
  if (s->walltime_s > 0) fprintf(f, "time limit %.4g h", s->walltime_s / 3600);
  else fprintf(f, "no time limit");
  if (s->most_nodes) fprintf(f, "; at most %d node%s per job", s->most_nodes, tc_plural(s->most_nodes));
  if (s->switches > 1)
    fprintf(f, "; %d leaf switches of %d nodes", s->switches, s->switch_nodes);
  fprintf(f, "\n");
  for (int i = 0; i < s->n_left_out; i++) print_left_out(f, &s->left_out[i]);
}

json_t *tc_slurm_json(const struct tc_slurm_part *s)
{
  json_t *out = json_array();
  for (int i = 0; i < s->n_left_out; i++) {
    const struct tc_slurm_kind *k = &s->left_out[i];
    json_t *o = tc_out_object("nodes=%d gpus=%d gpu=%s cpus=%d why=%s", k->nodes, k->gpus, k->gpu, k->cpus,
                              why_text[k->why]);
    if (*k->state) json_object_set_new(o, "state", json_string(k->state));
    json_array_append_new(out, o);
  }
  return tc_out_object("partition=%s nodes=%d gpus=%d gpu=%s cpus=%d memory_bytes=%g walltime_s=%g switches=%d "
                       "switch_nodes=%d left_out=%p", s->name, s->nodes, s->gpus, s->gpu, s->cpus, s->memory_bytes,
                       s->walltime_s, s->switches, s->switch_nodes, (void *)out);
}

/* ---- sources --------------------------------------------------------------------- */

/* Where the options that begin with `prefix` came from. */
static const char *source_of(const struct tc_plan_job *j, const char *prefix, char *buf, size_t size)
{
  tc_config_sources(j->cfg, prefix, buf, size);
  if (!*buf) snprintf(buf, size, "default, " ASSUMED);
  return buf;
}

static const char *cluster_source(const struct tc_plan_job *j, char *buf, size_t size)
{
  const char *n = j->nodes_from, *d = j->devices_from;
  if (!n) snprintf(buf, size, ASSUMED ": all ranks of the layout on one node");
  else if (d && !strcmp(n, d)) snprintf(buf, size, "%s", n);
  else snprintf(buf, size, "%s, %s", n, d ? d : "one device per node " ASSUMED);
  return buf;
}

static const char *device_source(const struct tc_plan_job *j, char *buf, size_t size)
{
  const char *device = j->device_from ? j->device_from : ASSUMED;
  const bool same = !j->memory_from || !strcmp(j->memory_from, device);
  snprintf(buf, size, "%s%s%s", device, same ? "" : ", ", same ? "" : j->memory_from);
  return buf;
}

json_t *tc_plan_head_json(const struct tc_plan_job *j)
{
  char model[200], batch[200], precision[200], device[80], cluster[80];
  return tc_out_object("model=%s batch=%s precision=%s device=%s cluster=%s host_memory=%s time_limit=%s",
                       source_of(j, "model.", model, sizeof model), source_of(j, "train.global_batch", batch, sizeof batch),
                       source_of(j, "train.precision", precision, sizeof precision),
                       device_source(j, device, sizeof device), cluster_source(j, cluster, sizeof cluster),
                       j->host_from ? j->host_from : "unknown", j->time_from ? j->time_from : "unknown");
}

/* "key  value  [source]" */
static void row(FILE *f, const char *key, const char *value, const char *from)
{
  fprintf(f, "%-10s %-*s [%s]\n", key, WIDTH, value, from);
}

void tc_plan_head_print(FILE *f, const struct tc_plan_job *j)
{
  const struct tc_config *c = j->cfg;
  const struct tc_cluster *k = &j->cluster;
  const int64_t batch = c->train_global_batch;
  struct tc_model m = { 0 };
  struct tc_err err;
  char text[200], from[200], a[32];
  if (tc_setup_model(c, &m, &err)) return;       /* plan_flags.c has checked it */
  if (j->from_slurm) print_slurm(f, &j->slurm);
  snprintf(text, sizeof text, "%s: %s parameters, %lld layers, context %lld",
           *c->model_preset ? c->model_preset : "own sizes", tc_human_count(a, sizeof a, (double)tc_model_params(&m)),
           (long long)m.layers, (long long)m.context);
  row(f, "model", text, source_of(j, "model.", from, sizeof from));
  snprintf(text, sizeof text, "%lld sequence%s = %lld tokens per step", (long long)batch,
           tc_plural(batch), (long long)(batch * m.context));
  if (j->use == TC_TO_TRAIN) row(f, "batch", text, source_of(j, "train.global_batch", from, sizeof from));
  row(f, "precision", tc_word_train_precision(c->train_precision),
      source_of(j, "train.precision", from, sizeof from));
  /* The table has one core; a file of --calibrate says in its name of how many threads its ranks are. */
  const bool one_core = !strcmp(k->device.name, "cpu");
  snprintf(text, sizeof text, "%s%s, %s", k->device.name, one_core ? ", one core" : "",
           tc_human_bytes(a, sizeof a, k->device.memory_bytes));
  if (k->device.context_bytes > 0 && k->device.memory_bytes == j->own_bytes)
    tc_text_add(text, sizeof text, " and %s for CUDA and libraries", tc_human_bytes(a, sizeof a, k->device.context_bytes));
  row(f, "device", text, device_source(j, from, sizeof from));
  if (one_core)
    fprintf(f, "%-10s for ranks of N threads measure a node: tercio plan RUN.ini --run.threads=N --calibrate FILE, "
            "then --device FILE\n", "");
  snprintf(text, sizeof text, "%d node%s x %d %s", k->nodes, tc_plural(k->nodes), k->devices, k->device.name);
  row(f, "cluster", text, cluster_source(j, from, sizeof from));
  if (j->use != TC_TO_TRAIN) return;             /* nothing is offloaded */
  if (k->device.host_bytes > 0) {
    snprintf(text, sizeof text, "%s per node", tc_human_bytes(a, sizeof a, k->device.host_bytes));
    row(f, "host", text, j->host_from ? j->host_from : ASSUMED);
  } else {
    fprintf(f, "%-10s host memory unknown: offload not checked\n", "host");
  }
}

/* ---- the run --------------------------------------------------------------------- */

static void print_checkpoint(FILE *f, const struct tc_plan_job *j, const struct tc_plan_run *r)
{
  char a[32], b[32], c[32];
  fprintf(f, "\na checkpoint is %s: %s at %s/s", tc_human_bytes(a, sizeof a, r->ckpt_bytes),
          tc_human_seconds(b, sizeof b, r->ckpt_s), tc_human_bytes(c, sizeof c, j->cluster.disk_bytes_per_s));
  if (r->interval_s > 0)
    fprintf(f, "; with a failure every %s (%s), best every %s: %.2g %% of the time is lost",
            tc_human_seconds(a, sizeof a, r->mtbf_s),
            r->mtbf_s < j->cfg->ckpt_mtbf_hours * 3600 ? "all nodes" : "ckpt.mtbf_hours",
            tc_human_seconds(b, sizeof b, r->interval_s), 100 * r->lost);
  fprintf(f, "\n");
}

void tc_plan_run_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p)
{
  char a[32], b[32];
  struct tc_plan_run r;
  tc_plan_run(&r, p, j->cfg, &j->cluster, j->tokens, j->walltime_s, j->restart_s);
  print_checkpoint(f, j, &r);
  fprintf(f, "%.4g steps (%.4g tokens) ", r.steps, r.steps * (double)p->tokens);
  if (!isfinite(r.hours)) {
    fprintf(f, "never end: failures come before there is a checkpoint to resume from\n");
    return;
  }
  fprintf(f, "take %s, %.4g node-hours", tc_human_seconds(a, sizeof a, r.hours * 3600), r.node_hours);
  if (j->walltime_s > 0 && r.requeues < 0)
    fprintf(f, "; the time limit is too short to save and load");
  else if (j->walltime_s > 0)
    fprintf(f, "; %d requeue%s with a time limit of %s", r.requeues, tc_plural(r.requeues),
            tc_human_seconds(b, sizeof b, j->walltime_s));
  fprintf(f, "\n");
}

void tc_plan_runs_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan_row *layout, int n)
{
  char a[32];
  struct tc_plan_run r;
  for (int i = 0; i < n; i++) {
    tc_plan_run(&r, &layout[i].plan, &layout[i].cfg, &j->cluster, j->tokens, j->walltime_s, j->restart_s);
    if (!i) {
      print_checkpoint(f, j, &r);
      fprintf(f, "%.4g steps (%.4g tokens)", r.steps, r.steps * (double)layout[i].plan.tokens);
      if (j->walltime_s > 0) fprintf(f, " with a time limit of %s", tc_human_seconds(a, sizeof a, j->walltime_s));
      fprintf(f, ":\n%3s %12s %12s %9s\n", "row", "hours", "node-hours", "requeues");
    }
    if (!isfinite(r.hours)) {
      fprintf(f, "%3d never ends: failures come before there is a checkpoint to resume from\n", i + 1);
      continue;
    }
    fprintf(f, "%3d %12.4g %12.4g ", i + 1, r.hours, r.node_hours);
    if (j->walltime_s <= 0) fprintf(f, "%9s\n", "no limit");
    else if (r.requeues < 0) fprintf(f, "the time limit is too short to save and load\n");
    else fprintf(f, "%9d\n", r.requeues);
  }
}

/* ---- headroom -------------------------------------------------------------------- */

void tc_plan_headroom_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p)
{
  char memory[32];
  const int percent = tc_emit_headroom(j, p, memory, sizeof memory);
  if (!percent) return;
  fprintf(f, "\nThe layout%s takes %d %% of the memory of a device, without what the driver, libraries and kernels "
          "need:\n--memory %s leaves a tenth for them.\n", j->search ? " of row 1" : "", percent, memory);
}
