/* head.c - what a plan is of, and where each figure came from; what a run costs; advice on headroom. One layout and a
 * search print the same. */
#include "src/cmd/plan/plan.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 66 };                             /* of the column before the sources */
#define ASSUMED "assumed"

const char *tc_plan_plural(int64_t n) { return n == 1 ? "" : "s"; }

char *tc_plan_span(char *buf, size_t size, double s)
{
  if (s < 1e-3) snprintf(buf, size, "%.3g us", s * 1e6);
  else if (s < 1) snprintf(buf, size, "%.3g ms", s * 1e3);
  else if (s < 120) snprintf(buf, size, "%.3g s", s);
  else if (s < 7200) snprintf(buf, size, "%.3g min", s / 60);
  else if (s < 96 * 3600) snprintf(buf, size, "%.3g h", s / 3600);
  else snprintf(buf, size, "%.3g d", s / 86400);
  return buf;
}

/* ---- sources --------------------------------------------------------------------- */

/* Of the options that begin with `prefix`. */
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
  return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "model", source_of(j, "model.", model, sizeof model), "batch",
                   source_of(j, "train.global_batch", batch, sizeof batch), "precision",
                   source_of(j, "train.precision", precision, sizeof precision), "device",
                   device_source(j, device, sizeof device), "cluster", cluster_source(j, cluster, sizeof cluster),
                   "host_memory", j->host_from ? j->host_from : "unknown", "time_limit",
                   j->time_from ? j->time_from : "unknown");
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
  if (tc_setup_model(c, &m, &err)) return;       /* args.c has checked it */
  if (j->from_slurm) tc_slurm_print(f, &j->slurm);
  snprintf(text, sizeof text, "%s: %s parameters, %lld layers, context %lld",
           *c->model_preset ? c->model_preset : "own sizes", tc_human_count(a, sizeof a, (double)tc_model_params(&m)),
           (long long)m.layers, (long long)m.context);
  row(f, "model", text, source_of(j, "model.", from, sizeof from));
  snprintf(text, sizeof text, "%lld sequence%s = %lld tokens per step", (long long)batch,
           tc_plan_plural(batch), (long long)(batch * m.context));
  if (j->use == TC_TO_TRAIN) row(f, "batch", text, source_of(j, "train.global_batch", from, sizeof from));
  row(f, "precision", tc_word_train_precision(c->train_precision),
      source_of(j, "train.precision", from, sizeof from));
  /* The table has one core; a file of --calibrate says in its name of how many threads its ranks are. */
  const bool one_core = !strcmp(k->device.name, "cpu");
  snprintf(text, sizeof text, "%s%s, %s", k->device.name, one_core ? ", one core" : "",
           tc_human_bytes(a, sizeof a, k->device.memory_bytes));
  row(f, "device", text, device_source(j, from, sizeof from));
  if (one_core)
    fprintf(f, "%-10s for ranks of N threads measure a node: tercio plan RUN.ini --run.threads=N --calibrate FILE, "
            "then --device FILE\n", "");
  snprintf(text, sizeof text, "%d node%s x %d %s", k->nodes, tc_plan_plural(k->nodes), k->devices, k->device.name);
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
          tc_plan_span(b, sizeof b, r->ckpt_s), tc_human_bytes(c, sizeof c, j->cluster.disk_bytes_per_s));
  if (r->interval_s > 0)
    fprintf(f, "; with a failure every %s (%s), best every %s: %.2g %% of the time is lost",
            tc_plan_span(a, sizeof a, r->mtbf_s),
            r->mtbf_s < j->cfg->ckpt_mtbf_hours * 3600 ? "all nodes" : "ckpt.mtbf_hours",
            tc_plan_span(b, sizeof b, r->interval_s), 100 * r->lost);
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
  fprintf(f, "take %s, %.4g node-hours", tc_plan_span(a, sizeof a, r.hours * 3600), r.node_hours);
  if (j->walltime_s > 0 && r.requeues < 0)
    fprintf(f, "; the time limit is too short to save and load");
  else if (j->walltime_s > 0)
    fprintf(f, "; %d requeue%s with a time limit of %s", r.requeues, tc_plan_plural(r.requeues),
            tc_plan_span(b, sizeof b, j->walltime_s));
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
      if (j->walltime_s > 0) fprintf(f, " with a time limit of %s", tc_plan_span(a, sizeof a, j->walltime_s));
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

int tc_plan_headroom(const struct tc_plan_job *j, const struct tc_plan *p, char *memory, size_t size)
{
  const double full = TC_PLAN_FULL, have = j->cluster.device.memory_bytes;
  const double need = (double)p->cls[p->worst].memory.bytes[TC_DEVICE];
  /* A lower --memory is the headroom. */
  if (need <= full * have || need > have || have < j->own_bytes) return 0;
  tc_human_bytes(memory, size, full * have);
  char *blank = strchr(memory, ' ');
  if (blank) memmove(blank, blank + 1, strlen(blank));
  return (int)round(100 * need / have);
}

void tc_plan_headroom_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p)
{
  char memory[32];
  const int percent = tc_plan_headroom(j, p, memory, sizeof memory);
  if (!percent) return;
  fprintf(f, "\nThe layout%s takes %d %% of the memory of a device, without what the driver, libraries and kernels "
          "need:\n--memory %s leaves a tenth for them.\n", j->search ? " of row 1" : "", percent, memory);
}
