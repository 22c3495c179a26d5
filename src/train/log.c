/* log.c - what a run reports: the lines of metrics.jsonl, run.json, the progress line. */
#include "ac_config.h"
#include "src/train/train.h"
#include "src/program/predict.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int64_t tc_rss_bytes(bool peak)
{
  const char *key = peak ? "VmHWM:" : "VmRSS:";
  char line[256];
  long long kb = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key))) kb = strtoll(line + strlen(key), NULL, 10);
  if (f) fclose(f);
  return kb * 1024;
}

static void add_counters(struct tc_comm_counters *to, const struct tc_comm_counters *n)
{
  for (int k = 0; k < TC_COLLS; k++) {
    to->data[k].calls += n->data[k].calls;
    to->data[k].bytes += n->data[k].bytes;
    to->ctl[k].calls += n->ctl[k].calls;
    to->ctl[k].bytes += n->ctl[k].bytes;
  }
}

void tc_counters_read(const struct tc_train *t, struct tc_comm_counters c[TC_COMMS])
{
  for (int a = 0; a <= TC_AXES; a++) {
    const struct tc_comm *m = a < TC_AXES ? t->comm[a] : t->world;
    if (m) c[a] = *tc_comm_counters(m);
    else memset(&c[a], 0, sizeof c[a]);
    if (a < TC_AXES && t->native[a]) add_counters(&c[a], tc_comm_counters(t->native[a]));
  }
  tc_saver_counters(t->saver, &c[TC_AXES + 1]);
}

static void add_counts(json_t *into, const struct tc_coll_count *now,
                       const struct tc_coll_count *before)
{
  for (int k = 0; k < TC_COLLS; k++) {
    int64_t calls = now[k].calls - before[k].calls, bytes = now[k].bytes - before[k].bytes;
    if (!calls) continue;
    json_t *old = json_object_get(into, tc_coll_name[k]);
    if (old) {
      calls += json_integer_value(json_object_get(old, "calls"));
      bytes += json_integer_value(json_object_get(old, "bytes"));
    }
    json_object_set_new(into, tc_coll_name[k],
                        json_pack("{s:I,s:I}", "calls", (json_int_t)calls, "bytes",
                                  (json_int_t)bytes));
  }
}

/* What was sent since the last line: the step, its control reduction, an evaluation; and what
 * came between steps, such as a checkpoint's agreement. */
static json_t *comm_json(struct tc_train *t)
{
  struct tc_comm_counters now[TC_COMMS], *before = t->said;
  tc_counters_read(t, now);
  json_t *o = json_object(), *ctl = json_object();
  for (int a = TC_PP; a < TC_AXES; a++) {
    json_t *x = json_object();
    add_counts(x, now[a].data, before[a].data);
    json_object_set_new(o, tc_axis_name[a], x);
  }
  for (int a = 0; a < TC_COMMS; a++) add_counts(ctl, now[a].ctl, before[a].ctl);
  json_object_set_new(o, "ctl", ctl);
  memcpy(t->said, now, sizeof now);
  return o;
}

/* What checkpoints cost since the last line: how long training stood still for them; and if one was
 * committed, which, and how long it was written. NULL: nothing. */
static json_t *ckpt_json(struct tc_train *t)
{
  const struct tc_ckpt_report *r = &t->ckpt_said;
  if (!t->copied && !r->step) return NULL;
  json_t *o = json_pack("{s:f}", "stall_ms", (double)t->stall_ns * 1e-6);
  if (r->step) {
    json_object_set_new(o, "saved", json_integer(r->step));
    json_object_set_new(o, "write_ms", json_real((double)r->write_ns * 1e-6));
    json_object_set_new(o, "bytes", json_integer(t->ckpt_bytes));
  }
  t->stall_ns = 0;
  t->copied = false;
  t->ckpt_said = (struct tc_ckpt_report){ 0 };
  return o;
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *slowest_json(const struct tc_train *t, const struct tc_slowest *s)
{
  return json_pack("{s:i,s:s,s:f,s:f}", "rank", s->rank, "host", t->ranks->info[s->rank].host,
                   "work_ms", (double)s->work_ns * 1e-6, "median_ms",
                   (double)s->median_ns * 1e-6);
}

char *tc_metrics_line(struct tc_train *t, const struct tc_step_report *r)
{
  double s = (double)r->step_ns * 1e-9;
  json_t *o = json_object();
  json_object_set_new(o, "step", json_integer(r->step));
  json_object_set_new(o, "loss", number(r->loss));
  json_object_set_new(o, "val_loss", number(r->val_loss));
  json_object_set_new(o, "lr", json_real(r->lr));
  json_object_set_new(o, "grad_norm", number(r->grad_norm));
  json_object_set_new(o, "tokens", json_integer(r->step * r->tokens));
  json_object_set_new(o, "tokens_per_s", number((double)r->tokens / s));
  json_object_set_new(o, "step_ms", json_real(s * 1e3));
  if (t->slow) json_object_set_new(o, "slowest", slowest_json(t, &r->slowest));
  json_object_set_new(o, "wait_ms", json_real((double)r->wait_ns * 1e-6));
  json_object_set_new(o, "mfu", t->peak_s > 0 ? json_real(t->peak_s / s) : json_null());
  json_t *ckpt = ckpt_json(t);
  if (ckpt) json_object_set_new(o, "ckpt", ckpt);
  if (t->recover.skipped) {
    json_object_set_new(o, "skipped", json_integer(t->recover.skipped));
    json_object_set_new(o, "rollbacks", json_integer(t->recover.rollbacks));
  }
  json_object_set_new(o, "comm", comm_json(t));
  json_object_set_new(o, "bubble", json_real((double)r->pp_wait_ns / (double)r->step_ns));
  char *text = json_dumps(o, JSON_REAL_PRECISION(12)), *line = tc_sprintf("%s\n", text);
  free(text);
  json_decref(o);
  return line;
}

static json_t *classes_json(const int64_t by_class[TC_CLASSES])
{
  json_t *by = json_object();
  for (int k = 0; k < TC_CLASSES; k++)
    json_object_set_new(by, tc_class_name[k], json_integer(by_class[k]));
  return by;
}

static json_t *memory_json(const struct tc_train *t)
{
  const struct tc_arena *a = t->prog[TC_P_TRAIN]->arena;
  struct tc_exec_memory m = tc_exec_memory(t->exec);
  int64_t scratch[TC_REGIONS] = { 0 };           /* programs share it: the largest need */
  int64_t staging = 0, by_class[TC_CLASSES];
  memcpy(by_class, a->by_class[TC_DEVICE], sizeof by_class);
  for (int i = 0; i < TC_N_PROGS; i++) {
    for (int r = 0; r < TC_REGIONS; r++)
      scratch[r] = TC_MAX(scratch[r], t->prog[i]->arena->bytes[r]);
    staging += tc_program_staging(t->prog[i], t->mesh, t->rank);
  }
  by_class[TC_CLS_STAGING] += staging;
  int64_t saver = tc_train_staging_bytes(t), host_class[TC_CLASSES];
  int64_t host = a->bytes[TC_HOST_STATE] + scratch[TC_HOST_SCRATCH] + saver;
  memcpy(host_class, a->by_class[TC_HOST], sizeof host_class);
  host_class[TC_CLS_STAGING] += saver;
  return json_pack("{s:o,s:o,s:I,s:I,s:{s:I,s:I,s:I,s:I,s:I,s:I,s:I},s:{s:I,s:I,s:I}}",
                   "predicted_bytes", classes_json(by_class),
                   "predicted_host_bytes", classes_json(host_class),
                   "predicted_total_bytes",
                   (json_int_t)(a->bytes[TC_STATE] + scratch[TC_SCRATCH] + staging),
                   "predicted_host_total_bytes", (json_int_t)host, "allocated_bytes",
                   "state", (json_int_t)m.region[TC_STATE], "scratch",
                   (json_int_t)m.region[TC_SCRATCH], "host_state",
                   (json_int_t)m.region[TC_HOST_STATE], "host_scratch",
                   (json_int_t)m.region[TC_HOST_SCRATCH], "host_staging",
                   (json_int_t)tc_saver_staging_bytes(t->saver), "staging", (json_int_t)m.staging,
                   "kernel_scratch", (json_int_t)m.kernel_scratch, "resident_bytes",
                   "before_arenas", (json_int_t)t->base_rss_bytes, "now",
                   (json_int_t)tc_rss_bytes(false), "peak", (json_int_t)tc_rss_bytes(true));
}

/* What the program says that this rank sends in a step. */
static json_t *predicted_comm_json(const struct tc_train *t)
{
  const struct tc_comm_counters none = { 0 };
  json_t *o = json_object(), *ctl = json_object();
  for (int a = TC_PP; a < TC_AXES; a++) {
    struct tc_comm_counters c;
    tc_program_bytes(t->prog[TC_P_TRAIN], t->mesh, t->rank, a, &c);
    json_t *x = json_object();
    add_counts(x, c.data, none.data);
    add_counts(ctl, c.ctl, none.ctl);
    json_object_set_new(o, tc_axis_name[a], x);
  }
  json_object_set_new(o, "ctl", ctl);
  return o;
}

/* Who a rank is, where, what it holds and what it is going to send. */
static json_t *rank_json(const struct tc_train *t)
{
  const struct tc_rank_info *i = &t->ranks->info[t->rank];
  const int32_t *c = t->mesh->coord + (size_t)t->rank * TC_AXES;
  return json_pack("{s:i,s:s,s:i,s:i,s:i,s:i,s:i,s:s,s:i,s:s,s:o,s:o}", "rank", t->rank, "host",
                   i->host, "node", i->node, "local_rank", i->local_rank, "pp", c[TC_PP], "dp",
                   c[TC_DP], "tp", c[TC_TP], "cpus", i->cpuset, "device", i->device, "uuid",
                   i->dev.uuid, "memory", memory_json(t), "predicted_comm",
                   predicted_comm_json(t));
}

/* Collective. On rank 0 *out is all ranks' objects; elsewhere NULL. */
static int gather_ranks(struct tc_train *t, json_t **out, struct tc_err *err)
{
  json_t *mine = rank_json(t);
  char *text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
  int world = t->ranks->world;
  void *all = NULL;
  int64_t *bytes = tc_calloc((size_t)world, sizeof *bytes);
  json_decref(mine);
  *out = NULL;
  int rc = tc_comm_bytes_gather(t->world, 0, text ? text : "{}",
                                (int64_t)strlen(text ? text : "{}"), &all, bytes, err);
  if (rc == 0 && all) {
    *out = json_array();
    const char *at = all;
    for (int r = 0; r < world; at += bytes[r++])
      json_array_append_new(*out, json_loadb(at, (size_t)bytes[r], 0, NULL));
  }
  free(text);
  free(all);
  free(bytes);
  return rc;
}

/* What carries the data of the axes. */
static const char *comm_name(const struct tc_train *t)
{
  for (int a = 0; a < TC_AXES; a++)
    if (t->native[a]) return "nccl";
  return t->hub ? "thread" : t->mpi ? "mpi" : "self";
}

int tc_run_json(struct tc_train *t, struct tc_err *err)
{
  json_t *who;
  TC_TRY(gather_ranks(t, &who, err));
  if (t->rank) return 0;
  char *path = tc_sprintf("%s/run.json", t->out), *config = tc_config_text(t->cfg);
  char *model = tc_model_text(&t->opts.model);
  json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:I,s:{s:i,s:i,s:i,s:i},s:s,s:s,s:s,s:i,s:s,s:i,s:I,s:f,"
                        "s:o,s:o}",
                        "version", PACKAGE_VERSION, "stack", t->stack, "config", config, "model",
                        model, "parameters", (json_int_t)tc_model_params(&t->opts.model), "mesh", "mb",
                        t->mesh->size[TC_MB], "pp", t->mesh->size[TC_PP], "dp",
                        t->mesh->size[TC_DP], "tp", t->mesh->size[TC_TP], "system",
                        t->opts.system->name, "device", t->device->ops->name, "comm",
                        comm_name(t), "threads",
                        t->threads, "launcher", t->ranks->launcher, "restart", t->ranks->restart,
                        "start_step", (json_int_t)t->start_step, "ckpt_memcpy_ms",
                        (double)tc_saver_memcpy_ns(t->saver) * 1e-6, "ranks", who, "memory",
                        memory_json(t));
  char *tmp = tc_sprintf("%s.tmp", path);
  int rc = 0;
  char *where = realpath(t->ckpt_dir, NULL);     /* for tercio save, wherever it is called */
  if (o) json_object_set_new(o, "ckpt_dir", json_string(where ? where : t->ckpt_dir));
  free(where);
  if (o) json_object_set_new(o, "predicted", t->predicted ? json_incref(t->predicted) : json_null());
  if (!o)
    rc = tc_fail(err, TC_EUSER, "cannot write %s: the run file or a path in it is not UTF-8", path);
  else if (json_dump_file(o, tmp, JSON_INDENT(1)) || rename(tmp, path))
    rc = tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  json_decref(o);
  free(tmp);
  free(path);
  free(config);
  free(model);
  return rc;
}

void tc_progress(const struct tc_train *t, const struct tc_step_report *r, int64_t *last_ns,
                 double tokens_per_s)
{
  int64_t now = tc_now_ns(), end = t->cfg->train_stop_at > 0
                                       ? TC_MIN(t->cfg->train_stop_at, t->cfg->train_steps)
                                       : t->cfg->train_steps;
  bool tty = isatty(STDERR_FILENO), last = r->step == end;
  if (t->rank || (!last && *last_ns && !isfinite(r->val_loss) &&
                  now - *last_ns < (tty ? 200 : 2000) * INT64_C(1000000)))
    return;
  *last_ns = now;
  char val[32] = "";
  if (isfinite(r->val_loss)) snprintf(val, sizeof val, "  val %.4f", r->val_loss);
  int64_t left = tokens_per_s > 0 ? (int64_t)((double)((end - r->step) * r->tokens) / tokens_per_s)
                                  : 0;
  fprintf(stderr, "%sstep %lld/%lld  loss %.4f%s  norm %.3f  lr %.2e  %.0f tok/s  left %lld:%02lld:%02lld%s",
          tty ? "\r" : "", (long long)r->step, (long long)end, r->loss, val, r->grad_norm, r->lr,
          tokens_per_s, (long long)left / 3600, (long long)left / 60 % 60, (long long)left % 60,
          tty && !last && !*val ? "\033[K" : tty ? "\033[K\n" : "\n");
  fflush(stderr);
}
