/* writer.c - the thread that writes checkpoints, and the memory it writes them from.
 *
 *   IDLE --copy, go--> BUSY --the thread--> DONE --result--> IDLE
 *
 * Invariants:
 * - the staging memory is written by the run's thread while IDLE, read by the writer's while BUSY;
 * - it is as large as the slices, taken once and touched before the first step: memory that never
 *   was touched costs many times the copy;
 * - the communicator is used by the thread that writes, and by no other;
 * - nothing is removed from the folder before a checkpoint that stays was read back: the one that
 *   the run resumed from, and when that would go, the newest.
 *
 * The states change under `lock`. */
#include "src/run/writer.h"
#include "src/watch/watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum state { IDLE, BUSY, DONE };
enum { PIECE_BYTES = 4 << 20 };
#define ABANDON_NS INT64_C(2000000000)

struct piece { char *to; const char *from; size_t bytes; };

struct tc_writer {
  struct tc_writer_opts o;
  struct tc_ckpt_slice *slice;    /* what is written: staged, or where the run has it */
  char *staging;
  struct tc_writer_copy_ops copy; /* all NULL: the host can read the slices itself */
  int64_t bytes, memcpy_ns;
  struct piece *piece;            /* the copy, in pieces that threads share */
  int n_pieces;
  struct tc_thread_status *status;  /* of the thread */
  int64_t verified;               /* the writer's */

  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  enum state state;
  bool stop, left, threaded;
  struct tc_ckpt_meta meta;       /* of the save under way; meta.loop owned */
  int log_fd;
  bool again;                     /* the save under way failed before */
  struct tc_saved saved;
  struct tc_comm_counters counters;
};

/* ---- the staging memory ------------------------------------------------------------ */

static int64_t slice_bytes(const struct tc_writer_opts *o, int i)
{
  const struct tc_ckpt_tensor *t = &o->tensor[o->slice[i].tensor];
  return tc_box_bytes(t->dtype, t->rank, o->slice[i].count);
}

static void add_pieces(struct tc_writer *s, char *to, const char *from, int64_t bytes, int *cap)
{
  const int64_t each = s->copy.begin ? bytes : PIECE_BYTES;   /* a device needs no share */
  for (int64_t at = 0; at < bytes; at += each)
    TC_APPEND(s->piece, s->n_pieces, *cap, (struct piece){ to + at, from + at, (size_t)TC_MIN(bytes - at, each) });
}

/* Waits for the copies from a device. */
static int finish_copies(struct tc_writer *s, struct tc_err *err)
{
  if (!s->copy.end || s->copy.end(s->copy.ctx) == 0) return 0;
  return tc_fail(err, TC_EUSER, "the copy of the state from the device failed");
}

static int take_staging(struct tc_writer *s, struct tc_err *err)
{
  const struct tc_writer_opts *o = &s->o;
  int cap = 0;
  char *at = NULL;
  for (int i = 0; i < o->n_slices; i++) s->bytes += slice_bytes(o, i);
  if (s->copy.alloc) s->staging = s->copy.alloc(s->copy.ctx, TC_MAX(s->bytes, 1));
  else if (posix_memalign((void **)&s->staging, 4096, (size_t)TC_MAX(s->bytes, 1)))
    s->staging = NULL;
  if (!s->staging)
    return tc_fail(err, TC_EUSER, "out of memory: %.2f GB of host memory are needed to write "
                   "checkpoints%s", (double)s->bytes * 1e-9,
                   s->copy.alloc ? "" : " beside training; ckpt.async = no needs none");
  at = s->staging;
  for (int i = 0; i < o->n_slices; i++) {
    int64_t n = slice_bytes(o, i);
    s->slice[i].data = at;
    add_pieces(s, at, o->slice[i].data, n, &cap);
    at += n;
  }
  tc_writer_copy(s);
  TC_TRY(finish_copies(s, err));
  int64_t t0 = tc_now_ns();
  if (s->copy.begin) tc_writer_copy(s);
  for (int i = 0; i < o->n_slices && !s->copy.begin; i++)
    memcpy(s->slice[i].data, o->slice[i].data, (size_t)slice_bytes(o, i));
  TC_TRY(finish_copies(s, err));
  s->memcpy_ns = tc_now_ns() - t0;
  return 0;
}

void tc_writer_copy(struct tc_writer *s)
{
  TC_ASSERT(!tc_writer_busy(s));
  const struct piece *p = s->piece;
  if (!s->staging) return;
  for (int i = 0; s->copy.begin && i < s->n_pieces; i++)
    s->copy.begin(s->copy.ctx, p[i].to, p[i].from, (int64_t)p[i].bytes);
  if (s->copy.begin) return;
#pragma omp parallel for num_threads(s->o.threads) schedule(dynamic, 1) if (s->n_pieces > 1)
  for (int i = 0; i < s->n_pieces; i++) memcpy(p[i].to, p[i].from, p[i].bytes);
}

/* ---- writing ----------------------------------------------------------------------- */

/* Removes what is older than the newest `keep`, if one of those was read back whole: else the newest is read first. */
static int retain(struct tc_writer *s, int keep, struct tc_err *err)
{
  const bool rank0 = tc_comm_coord(s->o.comm) == 0;
  int64_t *steps = NULL, look = 0;               /* at step look - 1 */
  int n = rank0 ? tc_ckpt_list(s->o.dir, &steps, err) : 0;
  if (n > keep) look = steps[0] + 1;
  for (int i = 0; i < keep && look; i++)
    if (steps[i] == s->verified) look = 0;
  free(steps);
  TC_TRY(tc_comm_max_i64(s->o.comm, &look, 1, err));
  int rc = 0;
  if (look) {
    struct tc_ckpt *c = NULL;
    rc = tc_ckpt_resume(&c, s->o.dir, look - 1, s->o.comm, (char *const *)(uintptr_t)s->meta.rank_names, err);
    tc_ckpt_close(c);
    if (rc == 0) s->verified = look - 1;
    else if (rank0 && rc != TC_EPEER)
      tc_warn("%s; read back after it was written, so no older checkpoint is removed", err->text);
  }
  if (rank0 && rc == 0) tc_ckpt_prune(s->o.dir, keep);
  return rc == TC_EPEER ? rc : 0;
}

/* A state with values that are not finite is that of a run that has diverged, whether or not a loss has shown it yet:
 * no checkpoint is made of it, so that none takes the place of a good one. */
static int check_finite(const struct tc_writer *s, struct tc_err *err)
{
  int64_t bad = 0;                /* 1 + the number of such a tensor, of any rank */
  tc_at_phase("looking for values that are not finite");
  for (int i = 0; i < s->o.n_slices && !bad; i++) {
    const int tensor = s->slice[i].tensor, dtype = s->o.tensor[tensor].dtype;
    const int64_t n = slice_bytes(&s->o, i) / (int64_t)tc_dtype_bytes(dtype);
    if (tc_first_not_finite(s->slice[i].data, dtype, n) >= 0) bad = 1 + tensor;
  }
  TC_TRY(tc_comm_max_i64(s->o.comm, &bad, 1, err));
  if (!bad) return 0;
  return tc_fail(err, TC_EDIVERGED, "tensor %.200s has values that are not finite after step %lld: training diverged. Try a "
                 "lower train.lr, a longer train.warmup, or train.clip", s->o.tensor[bad - 1].name,
                 (long long)s->meta.step);
}

static void write_checkpoint(struct tc_writer *s)
{
  struct tc_saved r = { .step = s->meta.step };
  int64_t t0 = tc_now_ns();
  tc_at_step(s->meta.step);
  tc_at_phase("saving");
  if (s->log_fd >= 0) {           /* its lines must not be younger than the state */
    fdatasync(s->log_fd);
    close(s->log_fd);
    s->log_fd = -1;
  }
  if (s->verified >= s->meta.step) s->verified = -1;   /* another of that number, set aside since */
  /* If the copy failed there is nothing to agree on: the device is lost, and this rank ends. */
  r.rc = finish_copies(s, &r.err);
  r.alone = r.rc < 0;
  if (r.rc == 0) r.rc = check_finite(s, &r.err);
  /* What this save would remove when it is done goes before it is tried again, but for the newest. */
  if (r.rc == 0 && s->again && s->o.keep > 1) r.rc = retain(s, s->o.keep - 1, &r.err);
  if (r.rc == 0)
    r.rc = tc_ckpt_save(s->o.dir, &s->meta, s->o.tensor, s->o.n_tensors, s->slice, s->o.n_slices,
                        s->o.comm, &r.err);
  if (r.rc == 0 && s->o.keep > 0) r.rc = retain(s, s->o.keep, &r.err);
  int64_t end = tc_now_ns();
  r.write_ns = end - t0;
  struct tc_event e = { .name = r.rc == 0 ? "checkpoint" : "checkpoint that failed",
                        .begin_ns = t0, .end_ns = end, .bytes = -1, .mb = -1,
                        .track = TC_TRACK_CKPT, .kind = TC_EV_CKPT };
  tc_trace_add(s->o.trace, &e);
  if (s->o.async) tc_at_rest();
  pthread_mutex_lock(&s->lock);
  s->counters = *tc_comm_counters(s->o.comm);
  s->saved = r;
  s->state = DONE;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

static void *work(void *arg)
{
  struct tc_writer *s = arg;
  tc_thread_status_use(s->status);
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (s->state != BUSY && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
    if (s->state != BUSY) break;
    pthread_mutex_unlock(&s->lock);
    write_checkpoint(s);
    pthread_mutex_lock(&s->lock);
  }
  s->left = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* ---- the run's side ---------------------------------------------------------------- */

static int start(struct tc_writer *s, struct tc_err *err)
{
  if (s->o.async || s->copy.begin) TC_TRY(take_staging(s, err));
  if (!s->o.async) return 0;
  TC_TRY(tc_thread_start(&s->thread, work, s, err));
  s->threaded = true;
  return 0;
}

int tc_writer_new(struct tc_writer **out, const struct tc_writer_opts *o, struct tc_err *err)
{
  struct tc_writer *s = *out = tc_calloc(1, sizeof *s);
  s->o = *o;
  if (o->copy) s->copy = *o->copy;
  s->verified = o->verified;
  s->log_fd = -1;
  s->status = o->async ? tc_thread_status_new("checkpoint writer") : NULL;
  s->slice = tc_calloc((size_t)o->n_slices + 1, sizeof *s->slice);
  if (o->n_slices) memcpy(s->slice, o->slice, (size_t)o->n_slices * sizeof *s->slice);
  pthread_mutex_init(&s->lock, NULL);
  tc_cond_init(&s->changed);
  int rc = start(s, err);
  if (rc == 0) return 0;
  tc_writer_free(s, false);
  *out = NULL;
  return rc;
}

void tc_writer_go(struct tc_writer *s, const struct tc_ckpt_meta *m, int log_fd)
{
  TC_ASSERT(!tc_writer_busy(s));
  free((char *)(uintptr_t)s->meta.loop);
  s->meta = *m;
  s->meta.loop = tc_strdup(m->loop ? m->loop : "");
  s->log_fd = log_fd;
  tc_writer_again(s, false);
}

void tc_writer_again(struct tc_writer *s, bool room)
{
  TC_ASSERT(!tc_writer_busy(s) && s->meta.loop);
  pthread_mutex_lock(&s->lock);
  s->again = room;
  s->state = BUSY;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  if (!s->o.async) write_checkpoint(s);
}

bool tc_writer_busy(struct tc_writer *s)
{
  pthread_mutex_lock(&s->lock);
  bool busy = s->state == BUSY;
  pthread_mutex_unlock(&s->lock);
  return busy;
}

bool tc_writer_result(struct tc_writer *s, bool wait, struct tc_saved *out)
{
  if (wait) tc_at_rest();         /* the status of the writer's thread is the one to watch */
  pthread_mutex_lock(&s->lock);
  while (wait && s->state == BUSY) pthread_cond_wait(&s->changed, &s->lock);
  bool got = s->state == DONE;
  if (got) {
    *out = s->saved;
    s->state = IDLE;
  }
  pthread_mutex_unlock(&s->lock);
  if (wait) tc_at_phase("saved");
  return got;
}

void tc_writer_counters(struct tc_writer *s, struct tc_comm_counters *out)
{
  pthread_mutex_lock(&s->lock);
  *out = s->counters;
  pthread_mutex_unlock(&s->lock);
}

int64_t tc_writer_staging_bytes(const struct tc_writer *s) { return s->staging ? s->bytes : 0; }

int64_t tc_writer_memcpy_ns(const struct tc_writer *s) { return s->memcpy_ns; }

/* Waits until the thread has ended; false if it is left behind. */
static bool end_thread(struct tc_writer *s, bool abandon)
{
  int64_t until = tc_now_ns() + ABANDON_NS;
  int rc = 0;
  tc_at_rest();
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_cond_broadcast(&s->changed);
  while (!s->left && rc == 0)
    rc = abandon ? tc_cond_wait_until(&s->changed, &s->lock, until)
                 : pthread_cond_wait(&s->changed, &s->lock);
  bool left = s->left;
  pthread_mutex_unlock(&s->lock);
  tc_at_phase("ending");
  if (left) pthread_join(s->thread, NULL);
  else pthread_detach(s->thread);
  return left;
}

bool tc_writer_free(struct tc_writer *s, bool abandon)
{
  if (!s) return true;
  if (s->threaded && !end_thread(s, abandon)) return false;   /* better a leak than a hang */
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  free((char *)(uintptr_t)s->meta.loop);
  if (s->copy.free && s->staging) s->copy.free(s->copy.ctx, s->staging);
  else free(s->staging);
  TC_FREE(s->piece, s->slice, s);
  return true;
}
