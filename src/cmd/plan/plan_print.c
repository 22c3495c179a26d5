/* plan_print.c - prints one layout: memory by class of every distinct rank, the textbooks'
 * estimates, time and bytes. */
#include "src/calibrate/calibrate.h"
#include "src/cmd/plan/plan.h"

#include <string.h>

static double gb(double bytes) { return bytes * 1e-9; }

static void print_layout(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p)
{
  const struct tc_config *c = j->cfg;
  char mesh[TC_MESH_TEXT];
  fprintf(f, "%-10s %d rank%s: %s%s, %s", "layout", p->world, tc_plural(p->world), tc_mesh_text(mesh, p->size, " ", " x "),
          c->parallel_sequence && tc_axes_size(p->size, TC_ON_TP) > 1 ? " (sequence)" : "", tc_word_parallel_data(c->parallel_data));
  if (p->size[TC_PP] > 1) fprintf(f, ", %s", tc_word_parallel_schedule(c->parallel_schedule));
  if (p->virtual_stages > 1) fprintf(f, " of %d virtual stages", p->virtual_stages);
  fprintf(f, "\n%-10s %d micro-batch%s of %d sequence%s on each rank of dp; recompute %s\n", "", p->n_mb,
          p->n_mb == 1 ? "" : "es", p->micro, tc_plural(p->micro),
          tc_word_train_recompute(c->train_recompute));
  if (p->head_chunk > 0) fprintf(f, "%-10s loss chunks of %lld rows (parallel.head_chunk)\n", "", (long long)p->head_chunk);
}

static void print_memory(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p)
{
  char a[32];
  fprintf(f, "\nmemory of a rank (GB)\n%5s %5s %3s %10s", "rank", "stage", "dp", "params");
  for (int k = 0; k < TC_CLASSES; k++) fprintf(f, " %13s", tc_class_name[k]);
  fprintf(f, " %9s %9s\n", "device", "host");
  for (int i = 0; i < p->n_cls; i++) {
    const struct tc_plan_class *c = &p->cls[i];
    fprintf(f, "%5d %5d %3d %10s", c->rank, c->pp, c->dp, tc_human_count(a, sizeof a, (double)c->parameters));
    for (int k = 0; k < TC_CLASSES; k++)
      fprintf(f, " %13.4f", gb((double)c->memory.by_class[TC_DEVICE][k]));
    fprintf(f, " %9.4f %9.4f\n", gb((double)c->memory.bytes[TC_DEVICE]),
            gb((double)c->memory.bytes[TC_HOST]));
  }
  double most = (double)p->cls[p->worst].memory.bytes[TC_DEVICE];
  double memory = j->cluster.device.memory_bytes;
  fprintf(f, "%s: needs %.4g GB, %s has %.4g GB (%.0f %%; kernel workspace not counted)\n",
          most <= memory ? "fits" : "does not fit", gb(most), j->cluster.device.name, gb(memory),
          100 * most / memory);
  const double host = tc_plan_host_bytes(p, &j->cluster), has = j->cluster.device.host_bytes;
  if (host > 0 && has > 0)
    fprintf(f, "host memory %s: a node needs %.4g GB and has %.4g GB\n", host <= has ? "suffices" : "does not suffice",
            gb(host), gb(has));
  else if (host > 0)
    fprintf(f, "host memory unknown: offload not checked; a node needs %.4g GB (--host-memory)\n", gb(host));
  struct tc_textbook t;
  tc_textbook(&t, &p->model, p->micro);
  fprintf(f,
          "textbooks, for one device: 16 bytes per parameter %.4g GB; 20 bytes per parameter and six "
          "activations a layer %.4g GB\n", gb(tc_textbook_states((double)p->parameters)),
              gb(t.total));
}

/* A term, where its figures come from, and a bar. */
static void print_term(FILE *f, enum tc_plan_term term, double s, double step_s, enum tc_plan_source from)
{
  enum { WIDE = 40 };
  char a[32], bar[WIDE + 1] = "";
  const double part = TC_MAX(s, 0) / step_s;
  memset(bar, '#', (size_t)TC_MIN((int)(part * WIDE + 0.5), WIDE));
  fprintf(f, "  %-10s %9s %5.1f %%  %-*s%s\n", tc_term_name[term], tc_human_seconds(a, sizeof a, TC_MAX(s, 0)), 100 * part,
          *bar ? 12 : 0, tc_source_name[from], bar);
}

static void print_time(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p)
{
  char a[32], d[32], e[32], waits[300] = "", sends[300] = "";
  const struct tc_plan_time *t = &p->time;
  struct tc_group group[TC_SETS];
  tc_mesh_groups(group, p->size);
  for (int s = 0; s < TC_SETS; s++) {
    if (!group[s].named) continue;
    tc_text_add(waits, sizeof waits, "%s%s %s", *waits ? ", " : "", tc_set_name[s], tc_human_seconds(a, sizeof a, t->wait_s[s]));
    tc_text_add(sends, sizeof sends, "%s%s on %s", *sends ? ", " : "", tc_human_bytes(a, sizeof a, t->bytes[s]), tc_set_name[s]);
  }
  fprintf(f, "\ntime of a step on %s: %s; %.4g tokens/s, MFU %.1f %%\n", j->cluster.device.name,
          tc_human_seconds(a, sizeof a, t->step_s), t->tokens_per_s, 100 * t->mfu);
  fprintf(f, "the busiest rank computes %s, waits for %s; bubble %.1f %%%s\n",
          tc_human_seconds(a, sizeof a, t->compute_s), waits, 100 * t->bubble, t->simulated ? "" : " (estimated from sums over each stage)");
  for (int i = 0; i < TC_TERMS; i++) print_term(f, i, t->term_s[i], t->step_s, t->source[i]);
  struct tc_plan_run r;
  tc_plan_run(&r, p, j->cfg, &j->cluster, j->tokens, j->walltime_s, j->restart_s);
  if (r.interval_s > 0)
    print_term(f, TC_TERM_SAVES, t->step_s * r.ckpt_s / r.interval_s, t->step_s, tc_plan_source(&j->cluster, TC_TERM_SAVES));
  fprintf(f, "a rank sends at most %s per step; ", sends);
  fprintf(f, "%s within its node, %s on the network",
          tc_human_bytes(d, sizeof d, t->wire_bytes[TC_WIRE_NODE]),
          tc_human_bytes(e, sizeof e, t->wire_bytes[TC_WIRE_NETWORK]));
  if (t->wire_bytes[TC_WIRE_SPINE] > 0)
    fprintf(f, ", of it %s past its leaf switch",
            tc_human_bytes(a, sizeof a, t->wire_bytes[TC_WIRE_SPINE]));
  fprintf(f, "\n");
}

void tc_plan_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p)
{
  tc_plan_head_print(f, j);
  print_layout(f, j, p);
  print_memory(f, j, p);
  print_time(f, j, p);
  tc_plan_run_print(f, j, p);
  tc_plan_headroom_print(f, j, p);
}

/* ---- JSON ------------------------------------------------------------------------ */

static json_t *class_json(const struct tc_plan_class *c)
{
  const struct tc_plan_memory *m = &c->memory;
  return tc_out_object("rank=%d pp=%d dp=%d parameters=%lld memory=%p", c->rank, c->pp, c->dp, (long long)c->parameters,
    tc_out_object("predicted_bytes=%p predicted_host_bytes=%p predicted_total_bytes=%lld predicted_host_total_bytes=%lld "
      "state=%lld scratch=%lld staging=%lld", (void *)tc_plan_classes_json(m->by_class[TC_DEVICE]),
      (void *)tc_plan_classes_json(m->by_class[TC_HOST]), (long long)m->bytes[TC_DEVICE], (long long)m->bytes[TC_HOST], (long long)m->state_bytes,
      (long long)m->scratch_bytes, (long long)m->staging_bytes));
}

static json_t *run_json(const struct tc_plan_job *j, const struct tc_plan *p)
{
  struct tc_plan_run r;
  tc_plan_run(&r, p, j->cfg, &j->cluster, j->tokens, j->walltime_s, j->restart_s);
  json_t *o = json_object();
  tc_figure(o, "checkpoint_bytes", r.ckpt_bytes);
  tc_figure(o, "checkpoint_s", r.ckpt_s);
  tc_figure(o, "mtbf_s", r.mtbf_s);
  tc_figure(o, "interval_s", r.interval_s);
  tc_figure(o, "lost", r.lost);
  tc_figure(o, "steps", r.steps);
  tc_figure(o, "hours", r.hours);
  tc_figure(o, "node_hours", r.node_hours);
  json_object_set_new(o, "requeues", json_integer(r.requeues));
  return o;
}

json_t *tc_plan_json(const struct tc_plan_job *j, const struct tc_plan *p)
{
  const struct tc_config *c = j->cfg;
  json_t *classes = json_array();
  for (int i = 0; i < p->n_cls; i++) json_array_append_new(classes, class_json(&p->cls[i]));
  struct tc_textbook b;
  tc_textbook(&b, &p->model, p->micro);
  double most = (double)p->cls[p->worst].memory.bytes[TC_DEVICE];
  struct tc_err why;
  json_t *layout = tc_mesh_json(p->size);
  json_object_update_new(layout, tc_out_object("mb=%d micro_batch=%d virtual_stages=%d data=%s schedule=%s recompute=%s "
    "sequence!=%d precision=%s offload=%s head_chunk?=%lld", p->n_mb, p->micro, p->virtual_stages,
    tc_word_parallel_data(c->parallel_data),
    p->size[TC_PP] > 1 ? tc_word_parallel_schedule(c->parallel_schedule) : "none",
    tc_word_train_recompute(c->train_recompute), c->parallel_sequence, tc_word_train_precision(c->train_precision),
    tc_word_parallel_offload(c->parallel_offload), p->head_chunk > 0 ? (long long)p->head_chunk : -1));
  json_t *o = tc_out_object("ranks=%d device=%s parameters=%lld layout=%p classes=%p device_bytes=%p host_bytes=%p fits!=%d "
    "textbook=%p", p->world, j->cluster.device.name, (long long)p->parameters, (void *)layout, (void *)classes,
    (void *)json_null(), (void *)json_null(), tc_emit_fits(j, p, &why) == 0,
    tc_out_object("states_bytes=%g estimate_bytes=%g", tc_textbook_states((double)p->parameters), b.total));
  json_object_update_new(o, tc_plan_time_json(p));      /* before its own figures, which may add reasons */
  tc_figure(o, "device_bytes", most);
  tc_figure(o, "host_bytes", tc_plan_host_bytes(p, &j->cluster));
  json_object_set_new(o, "run", run_json(j, p));
  return o;
}

void tc_plan_print_calibrated(FILE *f, const char *path, const struct tc_calibrated *x)
{
  fprintf(f, "%s: %d shapes of ops, products at %.4g GF/s, memory at %.4g GB/s\n", path, x->shapes, x->flops * 1e-9,
          x->bytes_per_s * 1e-9);
  if (x->threads)
    fprintf(f, "it is of ranks of %lld thread%s on a machine of %.0f CPUs; ranks of N threads need a file of their own: "
            "--run.threads=N\n", (long long)x->threads, tc_plural(x->threads), x->cpus);
}
