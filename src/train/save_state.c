/* save_state.c - saves the run's state to checkpoints and restores it from them.
 *
 * Only saved tensors (fp32 weights, Adam's moments) are written: unpadded, once; replicas share
 * the work. Loading reads whatever boxes this rank stores, from whichever files have them.
 *
 * All ranks begin the same saves, after the same step. A save ends for each rank when its own
 * checkpoint writer is done. */
#include "ac_config.h"
#include "io/ckpt/ckpt.h"
#include "io/folder.h"
#include "io/ckpt/owner.h"
#include "src/graph/shard_box.h"
#include "src/token/token.h"
#include "src/train/impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* What the writer borrows: made once. */
struct tc_train_state {
  struct tc_run_state s;
  struct tc_ckpt_slice *slice;
  int n_slices;
  char *model, *config, *mesh, *data;
  int64_t copy;                  /* the last one from the device; 0: none */
};

/* ---- the folder -------------------------------------------------------------------- */

/* Rank 0 looks again and again, and all ranks agree after each time: no rank waits in one call for
 * longer than a deadline. */
int tc_train_own(struct tc_train *t, struct tc_err *err)
{
  const struct tc_ranks *k = t->run.ranks;
  if (t->run.rank == 0) t->ckpt.owner = tc_owner_new(t->ckpt.dir, k->job, k->restart);
  for (;;) {
    int rc = t->run.rank == 0 ? tc_owner_take(t->ckpt.owner, err) : 0;
    int64_t again = rc > 0;
    TC_TRY(tc_run_agree(&t->run, TC_MIN(rc, 0), err));
    TC_TRY(tc_comm_max_i64(t->run.world, &again, 1, err));
    if (!again) break;
    tc_sleep_ns(TC_OWNER_LOOK_NS);
  }
  void *name = t->run.rank == 0 ? (void *)(uintptr_t)tc_owner_lease(t->ckpt.owner) : NULL;
  int64_t n = name ? (int64_t)strlen(name) : 0;
  TC_TRY(tc_comm_bytes_bcast(t->run.world, 0, &name, &n, err));
  t->ckpt.lease = tc_sprintf("%s/%.*s", t->ckpt.dir, (int)n, (const char *)name);
  if (t->run.rank) free(name);
  return 0;
}

/* ---- saving ------------------------------------------------------------------------- */

/* Where box `b`, whole rows of one of the stored boxes, begins in this rank's memory. */
static char *box_address(const struct tc_tensor *x, char *base, const struct tc_box *stored,
                         int n, const struct tc_box *b)
{
  size_t elem = tc_dtype_bytes(x->dtype);
  for (int i = 0; i < n; i++) {
    const struct tc_box *s = &stored[i];
    bool in = true;
    for (int d = 0; d < x->rank; d++)
      in &= b->start[d] >= s->start[d] && b->start[d] < s->start[d] + s->count[d];
    if (in && x->rank == 0) return base;
    if (in)
      return base + (size_t)((b->start[0] - s->start[0]) *
                             (tc_box_elems(x->rank, s->count) / s->count[0])) * elem;
    base += (size_t)tc_box_elems(x->rank, s->count) * elem;
  }
  TC_ASSERT(!"a box that is not stored here");
  return NULL;
}

static void list_slices(const struct tc_train *t, struct tc_train_state *st)
{
  const struct tc_graph *g = t->run.prog[TC_TRAIN]->graph;
  st->slice = tc_calloc((size_t)st->s.n * TC_BOXES, sizeof *st->slice);
  for (int i = 0; i < st->s.n; i++) {
    const struct tc_tensor *x = &g->tensor[st->s.id[i]];
    struct tc_box own[TC_BOXES], stored[TC_BOXES];
    int k = tc_owned_boxes(x, t->run.mesh, t->run.rank, own);
    int ns = tc_stored_boxes(x, t->run.mesh, t->run.rank, stored);
    for (int b = 0; b < k; b++) {
      struct tc_ckpt_slice *s = &st->slice[st->n_slices++];
      s->tensor = i;
      memcpy(s->start, own[b].start, sizeof own[b].start);
      memcpy(s->count, own[b].count, sizeof own[b].count);
      s->data = box_address(x, tc_exec_tensor(t->run.exec, TC_TRAIN, st->s.id[i]), stored, ns,
                            &own[b]);
    }
  }
}

/* Whether checkpoints are written from a copy. */
static bool staged(const struct tc_train *t)
{
  return t->run.cfg->ckpt_async || t->run.device->ops->separate;
}

/* The copy from a device's memory runs asynchronously; the executor delays writes to the state until it is done. */
static void *take_pinned(void *train, int64_t bytes)
{
  struct tc_train *t = train;
  void *p = tc_device_host_alloc(t->run.device, bytes);
  if (p) memset(p, 0, (size_t)bytes);
  return p;
}

static void give_pinned(void *train, void *p)
{
  struct tc_train *t = train;
  tc_device_host_free(t->run.device, p);
}

static void begin_copy(void *train, void *to, const void *from, int64_t bytes)
{
  struct tc_train *t = train;
  t->ckpt.state->copy = t->run.device->ops->copy_begin(t->run.device, to, from, bytes);
  tc_exec_write_barrier(t->run.exec, t->ckpt.state->copy);
}

static int end_copy(void *train)
{
  struct tc_train *t = train;
  const int64_t copy = t->ckpt.state->copy;
  return copy ? t->run.device->ops->copy_wait(t->run.device, copy) : 0;
}

int64_t tc_train_staging_bytes(const struct tc_train *t)
{
  const struct tc_graph *g = t->run.prog[TC_TRAIN]->graph;
  int64_t bytes = 0;
  for (int32_t i = 0; i < g->n_tensors && staged(t); i++) {
    const struct tc_tensor *x = &g->tensor[i];
    struct tc_box own[TC_BOXES];
    int k = x->state && x->saved ? tc_owned_boxes(x, t->run.mesh, t->run.rank, own) : 0;
    for (int b = 0; b < k; b++)
      bytes += tc_box_bytes(x->dtype, x->rank, own[b].count);
  }
  return bytes;
}

int tc_train_writer_open(struct tc_train *t, struct tc_err *err)
{
  struct tc_train_state *st = t->ckpt.state = tc_calloc(1, sizeof *st);
  tc_run_state(&t->run, &st->s);
  list_slices(t, st);
  for (int i = 0; i < st->s.n; i++) {
    const struct tc_ckpt_tensor *x = &st->s.tensor[i];
    t->ckpt.bytes += tc_box_bytes(x->dtype, x->rank, x->dim);
  }
  st->model = tc_model_text(&t->run.opts.model);
  st->config = tc_config_text(t->run.cfg);
  tc_train_tokenizer_find(t);
  st->data = tc_resume_data(t);
  st->mesh = tc_resume_mesh(t);
  const struct tc_writer_copy_ops copy = { take_pinned, give_pinned, begin_copy, end_copy, t };
  struct tc_writer_opts o = {
    .dir = t->ckpt.dir, .tensor = st->s.tensor, .n_tensors = st->s.n, .slice = st->slice,
    .n_slices = st->n_slices, .async = t->run.cfg->ckpt_async, .keep = (int)t->run.cfg->ckpt_keep,
    .verified = t->ckpt.saved_step, .threads = t->run.threads, .comm = t->run.ckpt_comm,
    .trace = t->trace, .copy = t->run.device->ops->separate ? &copy : NULL };
  return tc_writer_new(&t->ckpt.writer, &o, err);
}

bool tc_train_writer_close(struct tc_train *t, bool abandon)
{
  struct tc_train_state *st = t->ckpt.state;
  if (!tc_writer_free(t->ckpt.writer, abandon)) return false;
  if (!st) return true;
  free(st->model);
  free(st->config);
  free(st->mesh);
  free(st->data);
  free(st->slice);
  tc_run_state_free(&st->s);
  free(st);
  return true;
}

void tc_train_poison(struct tc_train *t, bool one)
{
  for (int i = 0; i < t->ckpt.state->n_slices; i++) {
    const struct tc_ckpt_slice *s = &t->ckpt.state->slice[i];
    const struct tc_ckpt_tensor *x = &t->ckpt.state->s.tensor[s->tensor];
    int64_t bytes = tc_box_bytes(x->dtype, x->rank, s->count), from = one ? bytes - (int64_t)tc_dtype_bytes(x->dtype) : 0;
    char *data = (char *)s->data + from;
    if (one && strcmp(x->name, "wte.weight") != 0) continue;
    if (t->run.device->ops->separate) t->run.device->ops->fill(t->run.device, data, 0xff, bytes - from);
    else memset(data, 0xff, (size_t)(bytes - from));   /* NaN in every type of float */
  }
}

void tc_train_save_begin(struct tc_train *t, int64_t step)
{
  const struct tc_train_state *st = t->ckpt.state;
  char *loop = tc_rollback_text(t);
  struct tc_ckpt_meta meta = {
    .step = step, .seed = (uint64_t)t->run.cfg->train_seed,
    .tokens = step * t->run.cfg->train_global_batch * t->run.opts.model.context, .model = st->model,
    .config = st->config, .data = st->data, .mesh = st->mesh, .system = t->run.opts.system->name,
    .job = t->run.ranks->job, .restart = t->run.ranks->restart,
    .rank_names = (const char *const *)t->run.rank_names, .version = PACKAGE_VERSION, .stack = t->run.stack,
    .tuned = t->run.tuned,
    .loop = loop,
    .attached = { .name = t->tokenizer.text ? TC_TOKENIZER_FILE : NULL, .data = t->tokenizer.text,
                  .bytes = (int64_t)t->tokenizer.bytes },
    .lease = t->ckpt.owner ? tc_owner_lease(t->ckpt.owner) : NULL,
    .files = t->run.cfg->ckpt_files,
    .view = t->run.cfg->ckpt_view };
  t->ckpt.begun_ns = tc_now_ns();
  t->ckpt.begun = true;
  tc_writer_go(t->ckpt.writer, &meta, t->log.fd >= 0 ? fcntl(t->log.fd, F_DUPFD_CLOEXEC, 0) : -1);
  free(loop);
}

int tc_train_save_end(struct tc_train *t, bool wait, bool last, struct tc_err *err)
{
  struct tc_saved r;
  if (!t->ckpt.writer || !tc_writer_result(t->ckpt.writer, wait, &r)) return 0;
  if (r.rc == 0) {
    t->ckpt.saved_step = r.step;
    tc_metrics_saved(t, r.step, r.write_ns);
    tc_interval_cost(t, r.write_ns);
    return 0;
  }
  *err = r.err;
  t->ckpt.failed_alone = r.alone;
  t->ckpt.diverged |= r.rc == TC_EDIVERGED;
  if (r.rc == TC_EPEER || t->run.rank != 0 || last) return r.rc;
  if (t->ckpt.saved_step < 0)
    tc_warn("checkpoint of step %lld failed, and there is none before it: %s", (long long)r.step, r.err.text);
  else
    tc_warn("checkpoint of step %lld failed, that of step %lld stays: %s", (long long)r.step,
            (long long)t->ckpt.saved_step, r.err.text);
  return r.rc;
}

/* ---- loading ------------------------------------------------------------------------ */

/* What tc_ckpt_load runs on each rank. The guard counts this start once, with the newest
 * checkpoint's step, before anything is loaded, so that a crash while loading counts too. */
struct loading {
  struct tc_train *t;
  bool guarded;
  bool resumes;                  /* a run that was begun with what its checkpoint says */
};

static int load_checked(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  struct loading *l = ctx;
  if (!l->guarded && l->t->run.rank == 0)
    TC_TRY(tc_train_guard(l->t, tc_ckpt_meta(c)->step, err));
  l->guarded = true;
  TC_TRY(tc_train_tokenizer_check(l->t, c, err));
  if (l->resumes) TC_TRY(tc_resume_check(l->t, tc_ckpt_meta(c), tc_ckpt_path(c), err));
  TC_TRY(tc_run_load(&l->t->run, c, !l->resumes, err));
  return tc_rollback_parse(l->t, tc_ckpt_meta(c)->loop, err);
}

/* Weights without an optimizer's state, which an import has at step 0 alone (src/foreign/import_save.c). */
static bool is_import(const struct tc_ckpt_meta *meta)
{ return meta->step == 0 && !*meta->version; }

/* After a load: makes the weights in the working precision. compare: the checkpoint is of a run with settings
 * that may differ from this one's. Closes c. */
static int resume_from(struct tc_train *t, struct tc_ckpt *c, bool compare, struct tc_err *err)
{
  struct tc_runtime rt = { .seed = (uint64_t)t->run.cfg->train_seed };
  t->ckpt.saved_step = tc_ckpt_meta(c)->step;
  t->ckpt.imported = is_import(tc_ckpt_meta(c));
  free(t->ckpt.loaded);
  t->ckpt.loaded = tc_strdup(tc_ckpt_path(c));
  if (t->run.rank == 0)
    tc_log("resumed from %s, step %lld%s", tc_ckpt_path(c), (long long)t->ckpt.saved_step,
           t->ckpt.imported ? ": imported weights; the optimizer's state starts at zero" : "");
  if (t->run.rank == 0 && compare) tc_resume_say(t, tc_ckpt_meta(c));
  tc_train_tokenizer_take(t, c);
  if (!t->ckpt.tuned && tc_ckpt_meta(c)->tuned) t->ckpt.tuned = tc_strdup(tc_ckpt_meta(c)->tuned);
  tc_ckpt_close(c);
  return tc_exec_run(t->run.exec, TC_REFRESH, &rt, err);
}

static int initialise(struct tc_train *t, struct tc_err *err)
{
  tc_resume_order(t, NULL);
  struct tc_runtime rt = { .seed = (uint64_t)t->run.cfg->train_seed };
  t->ckpt.saved_step = -1;
  TC_TRY(tc_rollback_parse(t, "", err));
  return tc_exec_run(t->run.exec, TC_INIT, &rt, err);
}

/* Rank 0. Renames the checkpoints after `step`, where the run resumes: a restart must not load
 * them. */
static int set_aside(struct tc_train *t, int64_t step, struct tc_err *err)
{
  char tag[20];
  snprintf(tag, sizeof tag, "%llx", (unsigned long long)tc_now_ns());
  return tc_ckpt_set_aside(t->ckpt.dir, step, tag, NULL, "the run goes on from before it", err);
}

static void log_start(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const char *at = *c->ckpt_from ? "starting from ckpt.from" : "starting at step 0";
  if (c->ckpt_resume == TC_NO) tc_log("ckpt.resume = no: %s", at);
  else tc_log("no checkpoint in %s: %s", t->ckpt.dir, at);
}

int tc_train_restore(struct tc_train *t, struct tc_err *err)
{
  const int64_t how = t->run.cfg->ckpt_resume, step = how == TC_AUTO || how == TC_NO ? -1 : how;
  struct tc_ckpt *c = NULL;
  struct loading l = { .t = t, .resumes = true };
  t->ckpt.begun_ns = tc_now_ns();
  if (how != TC_NO)
    TC_TRY(tc_ckpt_load(&c, t->ckpt.dir, step, load_checked, &l, t->run.world, t->run.rank_names, err));
  if (c) {
    t->ckpt.start_step = tc_ckpt_meta(c)->step;
    tc_resume_order(t, tc_ckpt_meta(c));
    const bool over = t->ckpt.start_step >= tc_train_last_step(t->run.cfg);
    const int rc = over ? tc_resume_finished(t, tc_ckpt_meta(c), err) : 0;
    if (rc < 0) tc_ckpt_close(c);
    TC_TRY(rc);
    TC_TRY(resume_from(t, c, true, err));
  }
  /* Where the user chose the start, later checkpoints are not of this run: a rollback must not
   * load them. */
  int rc = how != TC_AUTO && t->run.rank == 0 ? set_aside(t, c ? t->ckpt.start_step : -1, err) : 0;
  if (how != TC_AUTO) TC_TRY(tc_run_agree(&t->run, rc, err));
  if (c) return 0;
  if (t->run.rank == 0) log_start(t);
  TC_TRY(tc_run_agree(&t->run, t->run.rank == 0 ? tc_train_guard(t, -1, err) : 0, err));
  if (!*t->run.cfg->ckpt_from) return initialise(t, err);
  l.guarded = true;
  l.resumes = false;
  TC_TRY(tc_ckpt_load_from(&c, t->run.cfg->ckpt_from, load_checked, &l, t->run.world,
                           t->run.rank_names, err));
  t->ckpt.start_step = tc_ckpt_meta(c)->step;
  tc_resume_order(t, tc_ckpt_meta(c));
  TC_TRY(resume_from(t, c, false, err));
  t->ckpt.saved_step = -1;                       /* not in this run's folder yet */
  t->ckpt.borrowed = true;
  return 0;
}

/* The newest step below `before` that there is; -1: none. The same on all ranks. */
static int step_below(struct tc_train *t, int64_t before, int64_t *step, struct tc_err *err)
{
  int64_t *steps = NULL;
  int n = t->run.rank == 0 ? tc_ckpt_list(t->ckpt.dir, &steps, err) : 0;
  *step = -1;
  for (int i = 0; i < n && *step < 0; i++)
    if (steps[i] < before) *step = steps[i];
  free(steps);
  TC_TRY(tc_run_agree(&t->run, TC_MIN(n, 0), err));
  return tc_comm_max_i64(t->run.world, step, 1, err);
}

int tc_train_go_back(struct tc_train *t, int64_t before, int64_t *step, struct tc_err *err)
{
  struct loading l = { .t = t, .guarded = true };
  struct tc_ckpt *c = NULL;
  int tried = 0;
  for (; !c; before = *step, tried++) {
    TC_TRY(step_below(t, before, step, err));
    if (*step < 0) break;
    int rc = tc_ckpt_load(&c, t->ckpt.dir, *step, load_checked, &l, t->run.world, t->run.rank_names, err);
    if (rc == TC_EPEER || rc == TC_EUSER) return rc;   /* what can't be read is no reason to go further back */
    if (rc < 0 && t->run.rank == 0) tc_warn("%s; looking for an older one", err->text);
  }
  if (!c && tried)
    return tc_fail(err, TC_ENOCKPT, "%s: none of the %d checkpoints before it is whole",
                   t->ckpt.dir, tried);
  if (!c && (t->ckpt.saved_step >= 0 || t->ckpt.start_step > 0))
    return tc_fail(err, TC_EDIVERGED, "training diverged, and %s has no checkpoint from before it "
                   "to go back to", t->ckpt.dir);
  if (!c) *step = 0;                             /* nothing was ever saved */
  int rc = tc_run_agree(&t->run, t->run.rank == 0 ? set_aside(t, *step, err) : 0, err);
  if (rc == 0) return c ? resume_from(t, c, false, err) : initialise(t, err);
  tc_ckpt_close(c);
  return rc;
}
