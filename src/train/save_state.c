/* save_state.c - saves the run's state to checkpoints.
 *
 * - Only saved tensors (fp32 weights, Adam's moments) are written: unpadded, once; replicas share the work.
 * - All ranks begin the same saves, after the same step. A save ends for each rank when its own checkpoint writer is
 *   done.
 * - A state is saved only after all ranks have found every file of the data as it was at the start. So a checkpoint never
 *   holds what was trained on other data. */
#include "ac_config.h"
#include "io/ckpt/ckpt.h"
#include "io/ckpt/owner.h"
#include "src/graph/shard_box.h"
#include "src/token/token.h"
#include "src/train/parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* What the writer borrows: made once. */
struct tc_train_state {
  struct tc_run_state s;
  struct tc_ckpt_slice *slice;
  int n_slices;
  char *config, *mesh, *nodes, *data;
  char **model;                  /* [run.n_stages]: with the context of each stage */
  int64_t copy;                  /* the last one from the device; 0: none */
};

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
      s->data = box_address(x, tc_exec_tensor(t->run.exec, tc_run_index(&t->run, TC_TRAIN), st->s.id[i]), stored, ns,
                            &own[b]);
    }
  }
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
  const bool staged = t->run.cfg->ckpt_async || t->run.device->ops->separate;   /* checkpoints are written from a copy */
  int64_t bytes = 0;
  for (int32_t i = 0; i < g->n_tensors && staged; i++) {
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
  st->model = tc_calloc((size_t)t->run.n_stages, sizeof *st->model);
  for (int k = 0; k < t->run.n_stages; k++) st->model[k] = tc_model_text(&t->run.stage[k].opts.model);
  st->config = tc_config_text(t->run.cfg);
  tc_train_tokenizer_find(t);
  st->data = tc_resume_data(t);
  st->mesh = tc_resume_mesh(t);
  st->nodes = tc_resume_nodes(t);
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
  for (int k = 0; k < t->run.n_stages; k++) free(st->model[k]);
  TC_FREE(st->model, st->config, st->mesh, st->nodes, st->data, st->slice);
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
  const struct tc_train_tokenizer *k = &t->tokenizer;
  char *rollback = tc_rollback_text(t), *stop_if = tc_stop_if_text(&t->stop_if), *loop = tc_sprintf("%s%s", rollback, stop_if);
  struct tc_ckpt_meta meta = {
    .step = step, .seed = (uint64_t)t->run.cfg->train_seed,
    .tokens = tc_train_tokens(t, step),
    .model = st->model[tc_stages_at(t->run.stages, t->run.n_stages, TC_MAX(step, 1))],
    .config = st->config, .data = st->data, .mesh = st->mesh, .nodes = st->nodes, .system = t->run.opts.system->name,
    .job = t->run.ranks->job, .restart = t->run.ranks->restart,
    .rank_names = (const char *const *)t->run.rank_names, .version = PACKAGE_VERSION, .stack = t->run.stack,
    .tuned = t->run.tuned, .base = t->ckpt.base,
    .loop = loop,
    .attached = { { .name = k->text ? TC_TOKENIZER_FILE : NULL, .data = k->text, .bytes = (int64_t)k->bytes },
                  { .name = k->beside ? TC_BESIDE_FILE : NULL, .data = k->beside, .bytes = k->beside_bytes } },
    .lease = t->ckpt.owner ? tc_owner_lease(t->ckpt.owner) : NULL,
    .files = t->run.cfg->ckpt_files,
    .view = t->run.cfg->ckpt_view };
  t->ckpt.begun_ns = tc_now_ns();
  t->ckpt.begun = true;
  tc_writer_go(t->ckpt.writer, &meta, t->log.file.fd >= 0 ? fcntl(t->log.file.fd, F_DUPFD_CLOEXEC, 0) : -1);
  TC_FREE(rollback, stop_if, loop);
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

int tc_train_data_check(struct tc_train *t, struct tc_err *err)
{
  int rc = tc_run_agree(&t->run, tc_batches_check(t, err), err);
  if (rc >= 0 || rc == TC_EPEER) return rc;
  struct tc_err why = *err;
  if (tc_train_save_end(t, true, false, err) == TC_EPEER) return TC_EPEER;
  if (t->ckpt.saved_step < 0)
    return tc_fail(err, TC_EUSER, "%.600s. No checkpoint was saved; run the same command again to "
                   "start anew", why.text);
  return tc_fail(err, TC_EUSER, "%.600s. What was trained after step %lld is not saved, since it may "
                 "be of other data. Restore the file and run the same command again to resume from "
                 "there; for changed data start a new run (another run.out)", why.text,
                 (long long)t->ckpt.saved_step);
}
