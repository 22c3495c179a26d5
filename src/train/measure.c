/* measure.c - takes a step's figures, which metrics.def lists, from where they are measured, and passes them on: as a line
 * to metrics.jsonl, and to the files of other programs (`others`).
 *
 * What comes together between lines begins anew when a step's figures have gone somewhere. */
#include "src/metrics/metrics.h"
#include "io/ckpt/owner.h"
#include "src/train/parts.h"
#include "src/watch/watch.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- what was sent --------------------------------------------------------------------- */

static void add_counters(struct tc_comm_counters *to, const struct tc_comm_counters *n)
{
  for (int k = 0; k < TC_COLLS; k++) {
    to->data[k].calls += n->data[k].calls;
    to->data[k].bytes += n->data[k].bytes;
    to->ctl[k].calls += n->ctl[k].calls;
    to->ctl[k].bytes += n->ctl[k].bytes;
    to->data[k].messages += n->data[k].messages;
    to->ctl[k].messages += n->ctl[k].messages;
  }
}

static void read_counters(const struct tc_train *t, struct tc_comm_counters c[TC_COMMS])
{
  for (int s = 0; s <= TC_SETS; s++) {
    const struct tc_comm *m = s < TC_SETS ? t->run.comm[s] : t->run.world;
    if (m) c[s] = *tc_comm_counters(m);
    else memset(&c[s], 0, sizeof c[s]);
    if (s < TC_SETS && t->run.native[s]) add_counters(&c[s], tc_comm_counters(t->run.native[s]));
  }
  tc_writer_counters(t->ckpt.writer, &c[TC_SETS + 1]);
}

static struct tc_coll_count since(const struct tc_coll_count *now, const struct tc_coll_count *before)
{
  return (struct tc_coll_count){ now->calls - before->calls, now->bytes - before->bytes, now->messages - before->messages };
}

/* Figures of COMM are numbered through the sets, each with all collectives; those of CTL through all communicators. */
static int set_of(int i) { return i / TC_COLLS; }
static int coll_of(int i) { return i % TC_COLLS; }

/* Sent since the last line: by the step, its control reduction, an evaluation; and between steps, such as to agree on a
 * checkpoint. */
static struct tc_coll_count sent_on(const struct tc_train *t, int i)
{
  const int a = set_of(i), k = coll_of(i);
  return since(&t->log.now[a].data[k], &t->log.counted[a].data[k]);
}

static struct tc_coll_count control_on(const struct tc_train *t, int a, int k)
{
  return since(&t->log.now[a].ctl[k], &t->log.counted[a].ctl[k]);
}

/* Whether the communicator is the first on which the collective was called: there the sum of all stands. */
static bool is_first(const struct tc_train *t, int i)
{
  int a = 0;
  while (a < TC_COMMS && !control_on(t, a, coll_of(i)).calls) a++;
  return a == i / TC_COLLS;
}

static struct tc_coll_count control(const struct tc_train *t, int i)
{
  struct tc_coll_count sum = { 0 };
  for (int a = 0; a < TC_COMMS; a++) {
    const struct tc_coll_count n = control_on(t, a, coll_of(i));
    sum.calls += n.calls;
    sum.bytes += n.bytes;
    sum.messages += n.messages;
  }
  return sum;
}

void tc_metrics_begin(struct tc_train *t)
{
  read_counters(t, t->log.counted);
  memcpy(t->log.begun, t->log.counted, sizeof t->log.begun);
}

/* ---- what checkpoints cost ------------------------------------------------------------- */

void tc_metrics_stalled(struct tc_train *t, int64_t stall_ns, bool copied)
{
  t->log.stall_ns += stall_ns;
  t->log.copied |= copied;
}

void tc_metrics_saved(struct tc_train *t, int64_t step, int64_t write_ns)
{
  t->log.saved = (struct tc_log_save){ .step = step, .write_ns = write_ns };
}

static bool has_ckpt(const struct tc_train *t) { return t->log.copied || t->log.saved.step; }

/* ---- each figure ----------------------------------------------------------------------- */

static double seconds(const struct tc_step_report *r) { return (double)r->step_ns * 1e-9; }
static double ms(int64_t ns) { return (double)ns * 1e-6; }

static bool has_epoch(const struct tc_train *t)
{
  return t->batches.train && tc_data_sources(t->batches.train) == 1 && t->run.cfg->data_order != TC_ORDER_DRAWS;
}

/* What there is one figure of, or one of each. */
enum of { ONE, SOURCES, VAL_SOURCES, HASHES, TASKS, COMM, CTL, NONE };

static const enum of of_metric[TC_METRICS] = {
#define METRIC(id, key, unit, type, of, there, get, help) of,
#include "src/metrics/metrics.def"
#undef METRIC
};

/* Sources of a blend, which are named. */
static int blend(const struct tc_data *d) { return d && tc_data_sources(d) > 1 ? tc_data_sources(d) : 0; }

static int count(const struct tc_train *t, const struct tc_step_report *r, enum of of)
{
  switch (of) {
  case ONE: return 1;
  case SOURCES: return blend(t->batches.train);
  case VAL_SOURCES: return t->batches.train && r->validated ? blend(t->batches.val) : 0;
  case HASHES: return (int)json_object_size(t->batches.hashes);
  case TASKS: return t->tasks.step == r->step ? t->tasks.n : 0;
  case COMM: return TC_SETS * TC_COLLS;
  case CTL: return TC_COMMS * TC_COLLS;
  case NONE: break;
  }
  return 0;
}

static void set_INT(struct tc_sample *s, int64_t x) { s->type = TC_METRIC_INT, s->integer = x; }
static void set_REAL(struct tc_sample *s, double x) { s->type = TC_METRIC_REAL, s->real = x; }
static void set_TEXT(struct tc_sample *s, const char *x) { s->type = TC_METRIC_TEXT, s->text = x; }

/* hash: of HASHES, the iterator's place. */
static void take(struct tc_sample *s, const struct tc_train *t, const struct tc_step_report *r, int i, void *hash)
{
#define ALWAYS TC_THERE
#define IF(said) (said) ? TC_THERE : TC_LEFT_OUT
#define OR_NULL(known) (known) ? TC_THERE : TC_NULL
#define USED(calls) (calls) ? TC_THERE : TC_UNUSED
#define METRIC(id, key, unit, type, of, is_there, get, help) \
  case TC_METRIC_##id: if ((s->there = is_there) == TC_THERE) set_##type(s, get); break;
  switch (s->metric) {
#include "src/metrics/metrics.def"
  case TC_METRICS: break;
  }
#undef METRIC
}

/* A set and a collective, a collective alone, or the number of a sequence. */
static void set_words(struct tc_sample *s, enum of of, int i, void *hash)
{
  if (of == COMM) s->word[0] = tc_set_name[set_of(i)], s->word[1] = tc_coll_name[coll_of(i)];
  if (of == CTL) s->word[0] = tc_coll_name[coll_of(i)];
  if (of == HASHES) s->word[0] = json_object_iter_key(hash);
}

void tc_metrics_each(const struct tc_train *t, const struct tc_step_report *r, tc_metric_sink *sink, void *ctx)
{
  const struct tc_group *group = t->run.mesh->group;
  for (int m = 0; m < TC_METRICS; m++) {
    const enum of of = of_metric[m];
    const int n = count(t, r, of);
    void *hash = of == HASHES ? json_object_iter(t->batches.hashes) : NULL;
    for (int i = 0; i < n; i++) {
      struct tc_sample s = { .metric = (enum tc_metric)m, .member = i };
      if (of == COMM && !group[set_of(i)].named) continue;
      set_words(&s, of, i, hash);
      take(&s, t, r, i, hash);
      /* A set's first collective is always written, so that the set is there; the others only where they were called. */
      const bool again = s.there == TC_UNUSED && coll_of(i) > 0;
      if (s.there != TC_LEFT_OUT && !again) sink(ctx, &s);
      if (hash) hash = json_object_iter_next(t->batches.hashes, hash);
    }
  }
}

void tc_metrics_forget(struct tc_train *t)
{
  if (has_ckpt(t)) {
    t->log.stall_ns = 0;
    t->log.copied = false;
    t->log.saved = (struct tc_log_save){ 0 };
  }
  memcpy(t->log.counted, t->log.now, sizeof t->log.now);
  tc_train_data_reported(t);
}

/* ---- where they go --------------------------------------------------------------------- */

char *tc_metrics_line(struct tc_train *t, const struct tc_step_report *r)
{
  json_t *line = json_object();
  read_counters(t, t->log.now);
  tc_metrics_each(t, r, tc_metrics_json, line);
  char *text = tc_metrics_json_text(line);
  json_decref(line);
  return text;
}

/* Forms of other programs' files, and the option with the path. */
static const struct { const struct tc_metrics_form *form; size_t path; } others[TC_METRICS_OUTS] = {
  { &tc_openmetrics, offsetof(struct tc_config, run_openmetrics) },
  { &tc_event_files, offsetof(struct tc_config, run_tensorboard) },
};

static bool is_alone(const struct tc_train *t) { return t->ckpt.owner && tc_owner_alone(t->ckpt.owner); }

static int open_other(struct tc_train *t, int i, int64_t step, struct tc_err *err)
{
  struct tc_metrics_out *o = &t->log.other[i];
  const char *path = *(char *const *)(const void *)((const char *)t->run.cfg + others[i].path);
  struct tc_kept k;
  if (!path || !*path || t->run.rank != 0) return 0;
  tc_kept_of(&k, t, others[i].form->option);
  *o = (struct tc_metrics_out){ .form = others[i].form, .path = path, .run = t->out, .lease = t->ckpt.lease, .kept = k.file,
                                .n_kept = k.n, .alone = is_alone(t) };
  const int rc = tc_metrics_out_open(o, step, err);
  tc_kept_free(&k);
  return rc;
}

int tc_metrics_open(struct tc_train *t, int64_t step, struct tc_err *err)
{
  struct tc_metrics_file *f = &t->log.file;
  f->wanted = t->run.rank == 0 || t->run.cfg->run_all_ranks;
  if (!f->wanted) return 0;
  f->lease = t->ckpt.lease;
  if (!f->path)
    f->path = t->run.rank == 0 ? tc_sprintf("%s/metrics.jsonl", t->out) : tc_sprintf("%s/metrics.%d.jsonl", t->out, t->run.rank);
  for (int i = 0; i < TC_METRICS_OUTS; i++) TC_TRY(open_other(t, i, step, err));   /* what is refused changes no line */
  return tc_metrics_file_open(f, step, is_alone(t), err);
}

void tc_metrics_close(struct tc_train *t)
{
  for (int i = 0; i < TC_METRICS_OUTS; i++) tc_metrics_out_close(&t->log.other[i]);
  tc_metrics_file_close(&t->log.file);
  free(t->log.file.path);
  t->log.file.path = NULL;
}

void tc_metrics_back(struct tc_train *t, int64_t step)
{
  if (t->log.file.path) tc_metrics_file_back(&t->log.file, step, is_alone(t));
  for (int i = 0; i < TC_METRICS_OUTS; i++) tc_metrics_out_back(&t->log.other[i], step);
}

void tc_metrics_look(struct tc_train *t, int64_t step) { tc_metrics_file_look(&t->log.file, step); }

void tc_metrics_add(struct tc_train *t, const struct tc_step_report *r)
{
  bool any = tc_metrics_file_takes(&t->log.file);
  tc_at_phase("writing the metrics");
  if (any) {
    char *line = tc_metrics_line(t, r);
    tc_metrics_file_add(&t->log.file, r->step, line);
    free(line);
  } else read_counters(t, t->log.now);
  for (int i = 0; i < TC_METRICS_OUTS; i++) {
    struct tc_metrics_out *o = &t->log.other[i];
    if (!o->form) continue;
    any = true;
    tc_metrics_out_begin(o);
    tc_metrics_each(t, r, tc_metrics_out_take, o);
    tc_metrics_out_step(o, r->step, r->time);
  }
  if (any) tc_metrics_forget(t);
}
