/* train_ckpt.c - the run's state to and from checkpoints.
 *
 * Only saved tensors (fp32 weights, Adam's moments) are written: unpadded, once; replicas share
 * the work. Loading reads whatever boxes this rank stores, from whichever files have them. */
#include "io/ckpt.h"
#include "src/shard.h"
#include "src/train.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct state {
  struct tc_ckpt_tensor *tensor;
  int32_t *id;
  int n;
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

static int64_t box_elems(const struct tc_box *b, int rank)
{
  int64_t e = 1;
  for (int d = 0; d < rank; d++) e *= b->count[d];
  return e;
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
                             (box_elems(s, x->rank) / s->count[0])) * elem;
    base += (size_t)box_elems(s, x->rank) * elem;
  }
  TC_ASSERT(!"a box that is not stored here");
  return NULL;
}

int tc_train_save(struct tc_train *t, int64_t step, struct tc_err *err)
{
  const struct tc_graph *g = t->prog[TC_P_TRAIN]->graph;
  struct state s;
  int64_t t0 = tc_now_ns();
  if (t->metrics) fdatasync(fileno(t->metrics)); /* its lines must not be younger than the state */
  list_state(g, &s);
  struct tc_ckpt_slice *slice = tc_calloc((size_t)s.n * TC_BOXES, sizeof *slice);
  int n = 0;
  for (int i = 0; i < s.n; i++) {
    const struct tc_tensor *x = &g->tensor[s.id[i]];
    struct tc_box own[TC_BOXES], stored[TC_BOXES];
    int k = tc_owned_boxes(x, t->mesh, t->rank, own);
    int ns = tc_stored_boxes(x, t->mesh, t->rank, stored);
    for (int b = 0; b < k; b++, n++) {
      slice[n].tensor = i;
      memcpy(slice[n].start, own[b].start, sizeof own[b].start);
      memcpy(slice[n].count, own[b].count, sizeof own[b].count);
      slice[n].data = box_address(x, tc_exec_tensor(t->exec, TC_P_TRAIN, s.id[i]), stored, ns,
                                  &own[b]);
    }
  }
  char *model = tc_model_text(&t->opts.model), *config = tc_config_text(t->cfg);
  char *mesh = tc_sprintf("pp%d dp%d tp%d", t->mesh->size[TC_PP], t->mesh->size[TC_DP],
                          t->mesh->size[TC_TP]);
  struct tc_ckpt_meta meta = {
    .step = step, .seed = (uint64_t)t->cfg->train_seed,
    .tokens = step * t->cfg->train_global_batch * t->opts.model.context, .model = model,
    .config = config, .mesh = mesh, .system = t->opts.system->name, .job = t->ranks->job,
    .restart = t->ranks->restart, .who = (const char *const *)t->who,
    .files = strcmp(t->cfg->ckpt_files, "node") ? TC_FILES_RANK : TC_FILES_NODE,
    .view = t->cfg->ckpt_view };
  int rc = tc_ckpt_save(t->ckpt_dir, &meta, s.tensor, s.n, slice, n, (int)t->cfg->ckpt_keep,
                        t->world, err);
  free(model);
  free(config);
  free(mesh);
  free(slice);
  free_state(&s);
  t->last_ckpt_ns = tc_now_ns();
  struct tc_event e = { .name = rc == 0 ? "checkpoint" : "checkpoint that failed", .begin_ns = t0,
                        .end_ns = t->last_ckpt_ns, .bytes = -1, .mb = -1,
                        .track = TC_TRACK_CKPT, .kind = TC_EV_CKPT };
  tc_trace_add(t->trace, &e);
  if (rc == 0) t->last_ckpt_step = step;
  return rc;
}

static int load_tensor(struct tc_train *t, struct tc_ckpt *c, int32_t id, struct tc_err *err)
{
  const struct tc_tensor *x = &t->prog[TC_P_TRAIN]->graph->tensor[id];
  int k = tc_ckpt_find(c, x->name);
  if (k < 0)
    return tc_fail(err, TC_EUSER, "%s has no tensor %s (was it saved with another "
                   "train.optimizer?)", tc_ckpt_path(c), x->name);
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
    TC_TRY(tc_ckpt_read(c, k, box[b].start, box[b].count, p, err));
    p += (size_t)box_elems(&box[b], x->rank) * tc_dtype_bytes(x->dtype);
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
  if (meta->seed != (uint64_t)t->cfg->train_seed && t->rank == 0)
    tc_warn("the checkpoint was made with train.seed = %llu, this run has %lld: the order of "
            "samples changes", (unsigned long long)meta->seed, (long long)t->cfg->train_seed);
  struct state s;
  list_state(t->prog[TC_P_TRAIN]->graph, &s);
  for (int i = 0; i < s.n && !rc; i++) rc = load_tensor(t, c, s.id[i], err);
  free_state(&s);
  t->start_step = meta->step;
  return rc;
}

/* What tc_ckpt_load runs on each rank. The guard is asked once, of the newest checkpoint, before
 * anything is loaded: a start that dies here counts too. */
struct loading { struct tc_train *t; bool guarded; };

static int load_checked(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  struct loading *l = ctx;
  if (!l->guarded && l->t->rank == 0)
    TC_TRY(tc_train_guard(l->t, tc_ckpt_meta(c)->step, err));
  l->guarded = true;
  return load(l->t, c, err);
}

/* One rank looks whether the run makes progress; all hear the answer. */
static int guard(struct tc_train *t, int64_t newest, struct tc_err *err)
{
  int rc = t->rank == 0 ? tc_train_guard(t, newest, err) : 0;
  return tc_agree(t, rc, err);
}

int tc_train_restore(struct tc_train *t, struct tc_err *err)
{
  const char *how = t->cfg->ckpt_resume;
  int64_t want = -1;
  struct tc_ckpt *c = NULL;
  struct tc_runtime rt = { .seed = (uint64_t)t->cfg->train_seed };
  t->last_ckpt_ns = tc_now_ns();
  t->last_ckpt_step = -1;
  if (strcmp(how, "auto") && strcmp(how, "no")) {
    char *end;
    want = strtoll(how, &end, 10);
    if (*end || want < 0)
      return tc_fail(err, TC_EUSER, "ckpt.resume = %s: give auto, no, or a step", how);
  }
  struct loading l = { .t = t };
  if (strcmp(how, "no"))
    TC_TRY(tc_ckpt_load(&c, t->ckpt_dir, want, load_checked, &l, t->world, err));
  if (!c) {
    TC_TRY(guard(t, -1, err));
    return tc_exec_run(t->exec, TC_P_INIT, &rt, err);
  }
  if (t->rank == 0)
    tc_log("resumed from %s, step %lld", tc_ckpt_path(c), (long long)t->start_step);
  tc_ckpt_close(c);
  t->last_ckpt_step = t->start_step;
  return tc_exec_run(t->exec, TC_P_REFRESH, &rt, err);
}

int tc_train_guard(struct tc_train *t, int64_t newest_step, struct tc_err *err)
{
  if (!*t->ranks->job) return 0;                 /* by hand: nobody starts it again by itself */
  char *path = tc_sprintf("%s/.starts", t->ckpt_dir), *tmp = tc_sprintf("%s.tmp", path);
  char job[64] = "";
  long long last = -2, starts = 0;
  FILE *f = fopen(path, "r");
  if (f) {
    if (fscanf(f, "%63s %lld %lld", job, &last, &starts) != 3) *job = 0;
    fclose(f);
  }
  bool again = !strcmp(job, t->ranks->job) && last == newest_step;
  starts = again ? starts + 1 : 0;
  int rc = 0;
  if (starts > t->cfg->ckpt_max_restarts_without_progress) {
    rc = tc_fail(err, TC_NOPROGRESS, "the last %lld starts from step %lld made no new checkpoint: "
                 "giving up. Look at what ended them, then remove %s to try again", starts,
                 (long long)TC_MAX(newest_step, 0), path);
  } else {
    f = fopen(tmp, "w");
    bool bad = !f || fprintf(f, "%s %lld %lld\n", t->ranks->job,
                              (long long)newest_step, starts) < 0;
    if (f && fclose(f)) bad = true;
    if (bad || rename(tmp, path))
      rc = tc_fail(err, TC_EUSER, "cannot write %s: is the checkpoint folder writable?", path);
  }
  free(path);
  free(tmp);
  return rc;
}

void tc_train_guard_clear(struct tc_train *t)
{
  char *path = tc_sprintf("%s/.starts", t->ckpt_dir);
  unlink(path);
  free(path);
}
