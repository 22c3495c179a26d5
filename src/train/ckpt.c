/* ckpt.c - the run's state to and from checkpoints.
 *
 * Only saved tensors (fp32 weights, Adam's moments) are written: unpadded, once; replicas share
 * the work. Loading reads whatever boxes this rank stores, from whichever files have them.
 *
 * What is written was taken at a step boundary, between two steps, by all ranks after the same
 * step. All ranks begin the same saves; each hears of the end of one when its own saver is done. */
#include "ac_config.h"
#include "io/ckpt/ckpt.h"
#include "io/folder.h"
#include "io/ckpt/owner.h"
#include "src/graph/shard_box.h"
#include "src/train/train.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct state {
  struct tc_ckpt_tensor *tensor;
  int32_t *id;
  int n;
};

/* What the saver borrows: made once. */
struct tc_train_state {
  struct state s;
  struct tc_ckpt_slice *slice;
  int n_slices;
  char *model, *config, *mesh, *data;
  int64_t copy;                  /* the last one from the device; 0: none */
};

static void list_state(const struct tc_graph *g, struct state *s)
{
  s->tensor = tc_calloc((size_t)g->n_tensors, sizeof *s->tensor);
  s->id = tc_calloc((size_t)g->n_tensors, sizeof *s->id);
  s->n = 0;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    const struct tc_tensor *x = &g->tensor[t];
    if (!x->state || !x->saved) continue;
    s->tensor[s->n] = (struct tc_ckpt_tensor){ .name = x->name, .dtype = x->dtype,
                                               .rank = x->rank };
    memcpy(s->tensor[s->n].dim, x->dim, sizeof x->dim);
    s->id[s->n++] = t;
  }
}

static void free_state(struct state *s)
{
  free(s->tensor);
  free(s->id);
}

/* Where box `b`, rows of one of the stored boxes, begins in this rank's memory. */
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

/* ---- the folder -------------------------------------------------------------------- */

/* The looking goes in rounds, so that nobody waits in one call for longer than a deadline. */
int tc_train_own(struct tc_train *t, struct tc_err *err)
{
  if (t->rank == 0) t->owner = tc_owner_new(t->ckpt_dir, t->ranks->job, t->ranks->restart);
  for (;;) {
    int rc = t->rank == 0 ? tc_owner_take(t->owner, err) : 0;
    int64_t again = rc > 0;
    TC_TRY(tc_agree(t, TC_MIN(rc, 0), err));
    TC_TRY(tc_comm_max_i64(t->world, &again, 1, err));
    if (!again) break;
    tc_sleep_ns(TC_OWNER_LOOK_NS);
  }
  void *name = t->rank == 0 ? (void *)(uintptr_t)tc_owner_lease(t->owner) : NULL;
  int64_t n = name ? (int64_t)strlen(name) : 0;
  TC_TRY(tc_comm_bytes_bcast(t->world, 0, &name, &n, err));
  t->home = tc_sprintf("%s/%.*s", t->ckpt_dir, (int)n, (const char *)name);
  if (t->rank) free(name);
  return 0;
}

/* ---- saving ------------------------------------------------------------------------- */

static void list_slices(const struct tc_train *t, struct tc_train_state *st)
{
  const struct tc_graph *g = t->prog[TC_P_TRAIN]->graph;
  st->slice = tc_calloc((size_t)st->s.n * TC_BOXES, sizeof *st->slice);
  for (int i = 0; i < st->s.n; i++) {
    const struct tc_tensor *x = &g->tensor[st->s.id[i]];
    struct tc_box own[TC_BOXES], stored[TC_BOXES];
    int k = tc_owned_boxes(x, t->mesh, t->rank, own);
    int ns = tc_stored_boxes(x, t->mesh, t->rank, stored);
    for (int b = 0; b < k; b++) {
      struct tc_ckpt_slice *s = &st->slice[st->n_slices++];
      s->tensor = i;
      memcpy(s->start, own[b].start, sizeof own[b].start);
      memcpy(s->count, own[b].count, sizeof own[b].count);
      s->data = box_address(x, tc_exec_tensor(t->exec, TC_P_TRAIN, st->s.id[i]), stored, ns,
                            &own[b]);
    }
  }
}

/* Whether checkpoints are written from a copy. */
static bool staged(const struct tc_train *t)
{
  return t->cfg->ckpt_async || t->device->ops->separate;
}

/* A device's memory is copied beside the training: the state is not written before it is done. */
static void *take_pinned(void *train, int64_t bytes)
{
  struct tc_train *t = train;
  void *p = tc_device_host_alloc(t->device, bytes);
  if (p) memset(p, 0, (size_t)bytes);
  return p;
}

static void give_pinned(void *train, void *p)
{
  struct tc_train *t = train;
  tc_device_host_free(t->device, p);
}

static void begin_copy(void *train, void *to, const void *from, int64_t bytes)
{
  struct tc_train *t = train;
  t->state->copy = t->device->ops->copy_begin(t->device, to, from, bytes);
  tc_exec_hold(t->exec, t->state->copy);
}

static int end_copy(void *train)
{
  struct tc_train *t = train;
  return t->state->copy ? t->device->ops->copy_wait(t->device, t->state->copy) : 0;
}

int64_t tc_train_staging_bytes(const struct tc_train *t)
{
  const struct tc_graph *g = t->prog[TC_P_TRAIN]->graph;
  int64_t bytes = 0;
  for (int32_t i = 0; i < g->n_tensors && staged(t); i++) {
    const struct tc_tensor *x = &g->tensor[i];
    struct tc_box own[TC_BOXES];
    int k = x->state && x->saved ? tc_owned_boxes(x, t->mesh, t->rank, own) : 0;
    for (int b = 0; b < k; b++)
      bytes += tc_box_bytes(x->dtype, x->rank, own[b].count);
  }
  return bytes;
}

int tc_train_saver_open(struct tc_train *t, struct tc_err *err)
{
  struct tc_train_state *st = t->state = tc_calloc(1, sizeof *st);
  list_state(t->prog[TC_P_TRAIN]->graph, &st->s);
  list_slices(t, st);
  for (int i = 0; i < st->s.n; i++) {
    const struct tc_ckpt_tensor *x = &st->s.tensor[i];
    t->ckpt_bytes += tc_box_bytes(x->dtype, x->rank, x->dim);
  }
  st->model = tc_model_text(&t->opts.model);
  st->config = tc_config_text(t->cfg);
  st->data = tc_resume_data(t);
  st->mesh = tc_sprintf("pp%d dp%d tp%d", t->mesh->size[TC_PP], t->mesh->size[TC_DP],
                        t->mesh->size[TC_TP]);
  const struct tc_saver_reach reach = { take_pinned, give_pinned, begin_copy, end_copy, t };
  struct tc_saver_opts o = {
    .dir = t->ckpt_dir, .tensor = st->s.tensor, .n_tensors = st->s.n, .slice = st->slice,
    .n_slices = st->n_slices, .async = t->cfg->ckpt_async, .keep = (int)t->cfg->ckpt_keep,
    .verified = t->saved_step, .threads = t->threads, .comm = t->ckpt_comm, .trace = t->trace,
    .reach = t->device->ops->separate ? &reach : NULL };
  return tc_saver_new(&t->saver, &o, err);
}

bool tc_train_saver_close(struct tc_train *t, bool abandon)
{
  struct tc_train_state *st = t->state;
  if (!tc_saver_free(t->saver, abandon)) return false;
  if (!st) return true;
  free(st->model);
  free(st->config);
  free(st->mesh);
  free(st->data);
  free(st->slice);
  free_state(&st->s);
  free(st);
  return true;
}

void tc_train_spoil(struct tc_train *t)
{
  for (int i = 0; i < t->state->n_slices; i++) {
    const struct tc_ckpt_slice *s = &t->state->slice[i];
    const struct tc_ckpt_tensor *x = &t->state->s.tensor[s->tensor];
    int64_t bytes = tc_box_bytes(x->dtype, x->rank, s->count);
    if (t->device->ops->separate) t->device->ops->fill(t->device, s->data, 0xff, bytes);
    else memset(s->data, 0xff, (size_t)bytes);   /* NaN in every type of float */
  }
}

void tc_train_save_begin(struct tc_train *t, int64_t step)
{
  const struct tc_train_state *st = t->state;
  char *loop = tc_recover_text(t);
  struct tc_ckpt_meta meta = {
    .step = step, .seed = (uint64_t)t->cfg->train_seed,
    .tokens = step * t->cfg->train_global_batch * t->opts.model.context, .model = st->model,
    .config = st->config, .data = st->data, .mesh = st->mesh, .system = t->opts.system->name,
    .job = t->ranks->job, .restart = t->ranks->restart, .who = (const char *const *)t->who,
    .version = PACKAGE_VERSION, .stack = t->stack, .loop = loop,
    .lease = t->owner ? tc_owner_lease(t->owner) : NULL,
    .files = strcmp(t->cfg->ckpt_files, "node") ? TC_FILES_RANK : TC_FILES_NODE,
    .view = t->cfg->ckpt_view };
  t->last_ckpt_ns = tc_now_ns();
  t->recover.begun = true;
  tc_saver_go(t->saver, &meta, t->metrics.fd >= 0 ? fcntl(t->metrics.fd, F_DUPFD_CLOEXEC, 0) : -1);
  free(loop);
}

int tc_train_save_end(struct tc_train *t, bool wait, bool last, struct tc_err *err)
{
  struct tc_saved r;
  if (!t->saver || !tc_saver_result(t->saver, wait, &r)) return 0;
  if (r.rc == 0) {
    t->saved_step = r.step;
    t->ckpt_said = (struct tc_ckpt_report){ .step = r.step, .write_ns = r.write_ns };
    tc_recover_cost(t, r.write_ns);
    return 0;
  }
  *err = r.err;
  if (r.rc != TC_EPEER && t->rank == 0 && !last)
    tc_warn("checkpoint of step %lld failed, the one before stays: %s", (long long)r.step,
            r.err.text);
  return r.rc;
}

/* ---- loading ------------------------------------------------------------------------ */

static int load_tensor(struct tc_train *t, struct tc_ckpt *c, int32_t id, struct tc_err *err)
{
  const struct tc_tensor *x = &t->prog[TC_P_TRAIN]->graph->tensor[id];
  int k = tc_ckpt_find(c, x->name);
  if (k < 0)
    return tc_fail(err, TC_EUSER, "%s has no tensor %s: if it was saved with another "
                   "train.optimizer, take its weights alone (tercio ckpt export, then import)",
                   tc_ckpt_path(c), x->name);
  const struct tc_ckpt_tensor *ct = tc_ckpt_at(c, k);
  bool same = ct->rank == x->rank && ct->dtype == x->dtype;
  for (int d = 0; same && d < x->rank; d++) same = ct->dim[d] == x->dim[d];
  if (!same)
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another shape or type than this model's",
                   tc_ckpt_path(c), x->name);
  char *p = tc_exec_tensor(t->exec, TC_P_TRAIN, id);
  struct tc_box box[TC_BOXES];
  int n = tc_stored_boxes(x, t->mesh, t->rank, box);
  for (int b = 0; b < n; b++) {
    int64_t bytes = tc_box_bytes(x->dtype, x->rank, box[b].count);
    struct tc_device *d = t->device;
    void *to = d->ops->separate ? tc_malloc((size_t)TC_MAX(bytes, 1)) : p;
    int rc = tc_ckpt_read(c, k, box[b].start, box[b].count, to, err);
    if (to != p) {
      if (rc == 0) d->ops->copy(d, p, to, bytes);
      free(to);
    }
    TC_TRY(rc);
    p += (size_t)bytes;
  }
  return 0;
}

static int load(struct tc_train *t, struct tc_ckpt *c, struct tc_err *err)
{
  const struct tc_ckpt_meta *meta = tc_ckpt_meta(c);
  char *model = tc_model_text(&t->opts.model);
  int rc = 0;
  if (strcmp(model, meta->model))
    rc = tc_fail(err, TC_EUSER, "%s is of another model: %s; this run's is %s. Give another "
                 "ckpt.dir, or ckpt.resume = no", tc_ckpt_path(c), meta->model, model);
  free(model);
  if (rc < 0) return rc;
  struct state s;
  list_state(t->prog[TC_P_TRAIN]->graph, &s);
  for (int i = 0; i < s.n && !rc; i++) rc = load_tensor(t, c, s.id[i], err);
  free_state(&s);
  return rc < 0 ? rc : tc_recover_parse(t, meta->loop, err);
}

/* What tc_ckpt_load runs on each rank. The guard is asked once, of the newest checkpoint, before
 * anything is loaded: a start that dies here counts too. */
struct loading {
  struct tc_train *t;
  bool guarded;
  bool resumes;                  /* a run that was begun with what its checkpoint says */
};

static int load_checked(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  struct loading *l = ctx;
  if (!l->guarded && l->t->rank == 0)
    TC_TRY(tc_train_guard(l->t, tc_ckpt_meta(c)->step, err));
  l->guarded = true;
  if (l->resumes) TC_TRY(tc_resume_check(l->t, tc_ckpt_meta(c), tc_ckpt_path(c), err));
  return load(l->t, c, err);
}

/* After a load: what else the state is made of. Closes c. */
static int take_up(struct tc_train *t, struct tc_ckpt *c, struct tc_err *err)
{
  struct tc_runtime rt = { .seed = (uint64_t)t->cfg->train_seed };
  t->saved_step = tc_ckpt_meta(c)->step;
  if (t->rank == 0)
    tc_log("resumed from %s, step %lld", tc_ckpt_path(c), (long long)t->saved_step);
  tc_ckpt_close(c);
  return tc_exec_run(t->exec, TC_P_REFRESH, &rt, err);
}

static int begin_anew(struct tc_train *t, struct tc_err *err)
{
  struct tc_runtime rt = { .seed = (uint64_t)t->cfg->train_seed };
  t->saved_step = -1;
  TC_TRY(tc_recover_parse(t, "", err));
  return tc_exec_run(t->exec, TC_P_INIT, &rt, err);
}

/* Rank 0. Steps beyond where the run was taken up again: a restart must not follow them. */
static int set_aside(struct tc_train *t, int64_t step, struct tc_err *err)
{
  char tag[20];
  snprintf(tag, sizeof tag, "%llx", (unsigned long long)tc_now_ns());
  return tc_ckpt_set_aside(t->ckpt_dir, step, tag, NULL, "the run goes on from before it", err);
}

int tc_train_restore(struct tc_train *t, struct tc_err *err)
{
  const int64_t how = t->cfg->ckpt_resume, step = how >= 0 ? how : -1;
  struct tc_ckpt *c = NULL;
  struct loading l = { .t = t, .resumes = true };
  t->last_ckpt_ns = tc_now_ns();
  if (how != TC_NO)
    TC_TRY(tc_ckpt_load(&c, t->ckpt_dir, step, load_checked, &l, t->world, err));
  if (c) {
    t->start_step = tc_ckpt_meta(c)->step;
    if (t->rank == 0) tc_resume_warn(t, tc_ckpt_meta(c));
    TC_TRY(take_up(t, c, err));
  }
  /* Who asks for another start leaves what lies ahead of it: going back must not come there. */
  if (how != TC_AUTO)
    TC_TRY(tc_agree(t, t->rank == 0 ? set_aside(t, c ? t->start_step : -1, err) : 0, err));
  if (c) return 0;
  TC_TRY(tc_agree(t, t->rank == 0 ? tc_train_guard(t, -1, err) : 0, err));
  if (!*t->cfg->ckpt_from) return begin_anew(t, err);
  l.guarded = true;
  l.resumes = false;
  TC_TRY(tc_ckpt_load_from(&c, t->cfg->ckpt_from, load_checked, &l, t->world, err));
  t->start_step = tc_ckpt_meta(c)->step;
  TC_TRY(take_up(t, c, err));
  t->saved_step = -1;                            /* not in this run's folder yet */
  t->borrowed = true;
  return 0;
}

/* The newest step below `before` that there is; -1: none. The same on all ranks. */
static int step_below(struct tc_train *t, int64_t before, int64_t *step, struct tc_err *err)
{
  int64_t *steps = NULL;
  int n = t->rank == 0 ? tc_ckpt_list(t->ckpt_dir, &steps, err) : 0;
  *step = -1;
  for (int i = 0; i < n && *step < 0; i++)
    if (steps[i] < before) *step = steps[i];
  free(steps);
  TC_TRY(tc_agree(t, TC_MIN(n, 0), err));
  return tc_comm_max_i64(t->world, step, 1, err);
}

int tc_train_go_back(struct tc_train *t, int64_t before, int64_t *step, struct tc_err *err)
{
  struct loading l = { .t = t, .guarded = true };
  struct tc_ckpt *c = NULL;
  int tried = 0;
  for (; !c; before = *step, tried++) {
    TC_TRY(step_below(t, before, step, err));
    if (*step < 0) break;
    int rc = tc_ckpt_load(&c, t->ckpt_dir, *step, load_checked, &l, t->world, err);
    if (rc == TC_EPEER) return rc;
    if (rc < 0 && t->rank == 0) tc_warn("%s; looking for an older one", err->text);
  }
  if (!c && tried)
    return tc_fail(err, TC_ENOCKPT, "%s: none of the %d checkpoints before it is whole",
                   t->ckpt_dir, tried);
  if (!c && (t->saved_step >= 0 || t->start_step > 0))
    return tc_fail(err, TC_EDIVERGED, "training diverged, and %s has no checkpoint from before it "
                   "to go back to", t->ckpt_dir);
  if (!c) *step = 0;                             /* nothing was ever saved */
  int rc = tc_agree(t, t->rank == 0 ? set_aside(t, *step, err) : 0, err);
  if (rc == 0) return c ? take_up(t, c, err) : begin_anew(t, err);
  tc_ckpt_close(c);
  return rc;
}
