/* comm.c - the part of a communicator that all backends share: the queue, the worker thread
 * that runs it, tickets, failure and counters.
 *
 * Invariants:
 *  - calls run one at a time, in the order of their tickets; `done` is the last one that
 *    ended without error; once `failed` is set no call runs;
 *  - a thread that waits for a call that has not begun while nothing runs, runs it itself: to hand it over and back takes
 *    longer than a small call. Only under a watchdog, which sees when it hangs there;
 *  - all fields of struct tc_comm below `lock` are protected by it; only the thread that runs a call uses it;
 *  - the worker sleeps on `work` while another thread runs a call, and until it is woken for a queued one;
 *  - no thread waits forever: the backend enforces the timeout, and a waiter fails the communicator itself
 *    if the worker makes no progress for the timeout and GRACE_NS more (a library call that never
 *    returns);
 *  - a group of one has no worker: calls run in tc_comm_start;
 *  - for a communicator of device memory the caller's thread issues the work to the device in
 *    tc_comm_start, and makes the device wait in tc_comm_wait; the worker only polls for completion. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/comm/impl.h"

#define GRACE_NS INT64_C(10000000000)       /* a worker without progress for this much longer is stuck */
#define LEAVE_NS INT64_C(5000000000)        /* how long tc_comm_free waits for the worker */
#define TICK_NS INT64_C(1000000000)

struct call {
  struct tc_coll_args a;          /* a.parts = parts */
  struct tc_part *parts;          /* owned; reused when the call is recycled */
  int cap_parts;
  tc_ticket ticket;
  struct call *next;
};

struct tc_comm {
  const struct tc_comm_ops *ops;
  void *impl;
  struct tc_members m;            /* m.nodes: owned */
  int64_t deadline_ns;
  char *name;
  void (*traced)(void *, const struct tc_coll_args *, int64_t, int64_t, int64_t);
  void *traced_ctx;
  struct tc_blocked_call *blocked;
  pthread_t thread;
  bool threaded;
  atomic_bool stop;

  pthread_mutex_t lock;
  pthread_cond_t work, ended;     /* a call was queued; a call ended or the worker has ended */
  struct call *head, *tail;       /* queued */
  struct call *spare;             /* recycled */
  tc_ticket last, done;
  int64_t heartbeat;              /* grows when a call begins or ends */
  bool running;                   /* a call */
  bool wake_due;                  /* the worker was not woken for queued calls, since a waiting thread may run them itself */
  bool failed, left;
  struct tc_err failure;
  struct tc_comm_counters live;   /* of those who run calls */
  struct tc_comm_counters shown;  /* the user's: a copy made in the user's own calls */
};

/* ---- the queue ------------------------------------------------------------------- */

/* Called with the lock held. */
static void set_failure(struct tc_comm *c, const struct tc_err *why)
{
  if (c->failed) return;
  c->failure = *why;
  c->failed = true;
}

/* Called with the lock held. */
static void count_call(struct tc_comm *c, const struct tc_coll_args *a, const struct tc_sent *sent)
{
  struct tc_coll_count *n = a->ctl ? &c->live.ctl[a->coll] : &c->live.data[a->coll];
  n->calls++;
  n->bytes += sent->bytes;
  n->messages += sent->messages;
  c->live.peers = sent->peers, c->live.ctl_peers = sent->ctl_peers;
}

/* Called with the lock held, which is free while the call runs: takes the first call from the queue and runs it, if it may. */
static void run_first(struct tc_comm *c)
{
  struct call *k = c->head;
  c->head = k->next;
  if (!c->head) c->tail = NULL;
  c->running = true;
  if (!c->failed) {
    struct tc_err err = { 0 };
    struct tc_sent sent = { 0 };
    c->heartbeat++;
    pthread_mutex_unlock(&c->lock);
    const bool traced = c->traced && c->m.size > 1;
    int64_t begin_ns = traced ? tc_now_ns() : 0;
    int rc = c->ops->run(c->impl, &k->a, &c->stop, &sent, &err);
    if (traced && rc == 0) c->traced(c->traced_ctx, &k->a, begin_ns, tc_now_ns(), sent.bytes);
    pthread_mutex_lock(&c->lock);
    c->heartbeat++;
    if (rc < 0) {
      set_failure(c, &err);
    } else if (!c->failed) {
      count_call(c, &k->a, &sent);
      c->done = k->ticket;
    }
  }
  c->running = false;
  c->wake_due = true;
  k->next = c->spare;
  c->spare = k;
  pthread_cond_broadcast(&c->ended);
}

static void *worker(void *arg)
{
  struct tc_comm *c = arg;
  pthread_mutex_lock(&c->lock);
  for (;;) {
    while (!(c->head && !c->running) && !c->stop) pthread_cond_wait(&c->work, &c->lock);
    if (c->stop) break;
    run_first(c);
  }
  while (c->running) pthread_cond_wait(&c->ended, &c->lock);       /* another thread, which sees `stop` */
  if (c->ops->leave) {
    pthread_mutex_unlock(&c->lock);
    c->ops->leave(c->impl);
    pthread_mutex_lock(&c->lock);
  }
  c->left = true;
  pthread_cond_broadcast(&c->ended);
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

/* If the thread can't be started, the communicator has failed from the start: every call returns the reason. */
static void start_worker(struct tc_comm *c)
{
  struct tc_err why;
  if (tc_thread_start(&c->thread, worker, c, &why) == 0) {
    c->threaded = true;
    return;
  }
  set_failure(c, &why);
}

struct tc_members tc_comm_among(const struct tc_comm_opts *o, int size, int coord)
{
  struct tc_members m = tc_members_on(o->node, size, coord, o->partial_sums);
  m.selection = o->selection;
  return m;
}

struct tc_comm *tc_comm_new(const struct tc_comm_ops *ops, void *impl, const struct tc_members *m,
                            const struct tc_comm_opts *o, struct tc_blocked_call *blocked)
{
  TC_ASSERT(m->size > 0 && m->coord >= 0 && m->coord < m->size);
  struct tc_comm *c = tc_calloc(1, sizeof *c);
  *c = (struct tc_comm){ .ops = ops, .impl = impl, .m = *m, .blocked = blocked,
                         .deadline_ns = (int64_t)(tc_comm_deadline_s(o) * 1e9), .name = tc_comm_name(o),
                         .traced = o->traced, .traced_ctx = o->traced_ctx };
  pthread_mutex_init(&c->lock, NULL);
  tc_cond_init(&c->work);
  tc_cond_init(&c->ended);
  if (m->size > 1) start_worker(c);
  return c;
}

static void free_calls(struct call *k)
{
  while (k) {
    struct call *next = k->next;
    TC_FREE(k->parts, k);
    k = next;
  }
}

static void tell_to_leave(struct tc_comm *c)
{
  if (!c->threaded) return;
  pthread_mutex_lock(&c->lock);
  atomic_store(&c->stop, true);
  pthread_cond_broadcast(&c->work);
  pthread_mutex_unlock(&c->lock);
}

/* False: the worker is stuck in a library call, which has not returned by `end_ns`; it is leaked, to avoid a hang. */
static bool has_left(struct tc_comm *c, int64_t end_ns)
{
  if (!c->threaded) {
    if (c->ops->leave) c->ops->leave(c->impl);
    return true;
  }
  pthread_mutex_lock(&c->lock);
  for (int64_t now; !c->left && (now = tc_now_ns()) < end_ns;)
    tc_cond_wait_until(&c->ended, &c->lock, now + TC_MIN(end_ns - now, TICK_NS / 4));
  bool left = c->left;
  pthread_mutex_unlock(&c->lock);
  if (left) {
    pthread_join(c->thread, NULL);
    return true;
  }
  tc_warn("axis %s: the communication thread does not return; left behind", c->name);
  pthread_detach(c->thread);
  return false;
}

bool tc_comms_free(struct tc_comm *const *comm, int n)
{
  const int64_t end_ns = tc_now_ns() + LEAVE_NS;
  bool all = true;
  for (int i = 0; i < n; i++)
    if (comm[i]) tell_to_leave(comm[i]);
  for (int i = 0; i < n; i++) {
    struct tc_comm *c = comm[i];
    if (!c) continue;
    if (!has_left(c, end_ns)) {
      all = false;
      continue;
    }
    c->ops->free(c->impl);
    tc_members_done(&c->m);
    free_calls(c->head);
    free_calls(c->spare);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->ended);
    pthread_mutex_destroy(&c->lock);
    TC_FREE(c->name, c);
  }
  return all;
}

bool tc_comm_free(struct tc_comm *c) { return tc_comms_free(&c, 1); }

/* ---- calls ----------------------------------------------------------------------- */

static void check_args(const struct tc_comm *c, const struct tc_coll_args *a)
{
  TC_ASSERT(a->coll >= TC_FIRST_COLL && a->coll < TC_COLLS);
  if (a->coll == TC_BARRIER) return;
  TC_ASSERT(a->dtype >= 0 && a->dtype < TC_DTYPES);
  TC_ASSERT(a->n_parts >= 0);
  bool reduces = tc_coll_adds(a->coll);
  bool rooted = a->coll == TC_BROADCAST || a->coll == TC_REDUCE || a->coll == TC_SCATTER ||
                a->coll == TC_GATHER || a->coll == TC_SEND || a->coll == TC_RECV;
  TC_ASSERT(!reduces || (a->dtype != TC_U8 && (a->red == TC_SUM || a->red == TC_MAX_OP)));
  TC_ASSERT(!rooted || (a->root >= 0 && a->root < c->m.size));
  if (a->coll == TC_SEND || a->coll == TC_RECV) TC_ASSERT(a->root != c->m.coord);
  for (int i = 0; i < a->n_parts; i++) {
    TC_ASSERT(a->parts[i].count >= 0 && a->parts[i].block >= 0);
    if (a->coll == TC_ALL_TO_ALL)
      TC_ASSERT(a->parts[i].count == c->m.size * a->parts[i].block);
  }
}

/* Called with the lock held. A new or recycled call, with the parts copied. */
static struct call *take_call(struct tc_comm *c, const struct tc_coll_args *a)
{
  struct call *k = c->spare;
  if (k) c->spare = k->next;
  else k = tc_calloc(1, sizeof *k);
  k->a = *a;
  k->next = NULL;
  if (a->coll == TC_BARRIER) k->a.n_parts = 0;
  if (k->a.n_parts > k->cap_parts) {
    k->cap_parts = k->a.n_parts;
    k->parts = tc_realloc(k->parts, (size_t)k->cap_parts * sizeof *k->parts);
  }
  if (k->a.n_parts) memcpy(k->parts, a->parts, (size_t)k->a.n_parts * sizeof *k->parts);
  k->a.parts = k->parts;
  return k;
}

static int fail_alike(const struct tc_comm *c, struct tc_err *err)
{
  return tc_fail(err, c->failure.status, "%s", c->failure.text);
}

/* Called with the lock held. */
static void wake_worker(struct tc_comm *c)
{
  if (c->head && c->wake_due) pthread_cond_signal(&c->work);
  c->wake_due = false;
}

static void await(struct tc_comm *c, tc_ticket t);

/* Issues the call to the device. One thread makes all calls of a communicator, so `last` is constant. */
static void start_device(struct tc_comm *c, const struct tc_coll_args *a)
{
  struct tc_err why = { 0 };
  pthread_mutex_lock(&c->lock);
  if (c->last >= c->ops->depth) await(c, c->last + 1 - c->ops->depth);
  bool failed = c->failed;
  pthread_mutex_unlock(&c->lock);
  if (failed || c->ops->start(c->impl, a, c->last + 1, &why) == 0) return;
  pthread_mutex_lock(&c->lock);
  set_failure(c, &why);
  pthread_cond_broadcast(&c->ended);
  pthread_mutex_unlock(&c->lock);
}

int tc_comm_start(struct tc_comm *c, const struct tc_coll_args *a, tc_ticket *ticket,
                  struct tc_err *err)
{
  check_args(c, a);
  int rc = 0;
  if (ticket) *ticket = 0;
  if (c->ops->start) start_device(c, a);
  pthread_mutex_lock(&c->lock);
  if (c->failed) {
    rc = fail_alike(c, err);
  } else {
    struct call *k = take_call(c, a);
    k->ticket = ++c->last;
    if (ticket) *ticket = k->ticket;
    if (c->tail) c->tail->next = k;
    else c->head = k;
    c->tail = k;
    c->wake_due = true;
    if (c->m.size == 1) {
      run_first(c);
      TC_ASSERT(!c->failed || c->ops->start);      /* only a device can be waited for */
      if (c->failed) rc = fail_alike(c, err);
    } else if (!a->soon || c->ops->start) {
      wake_worker(c);
    }
  }
  pthread_mutex_unlock(&c->lock);
  return rc;
}

/* Called with the lock held. Waits until ticket t is done, or the communicator has failed. */
static void await(struct tc_comm *c, tc_ticket t)
{
  int64_t heartbeat = c->heartbeat, quiet_ns = 0, last_ns = tc_now_ns();
  while (c->done < t && !c->failed) {
    tc_cond_wait_until(&c->ended, &c->lock, tc_now_ns() + TICK_NS);
    int64_t now = tc_now_ns();
    /* The time for which the process itself was stopped is not counted. */
    quiet_ns += TC_MIN(now - last_ns, TICK_NS);
    last_ns = now;
    if (c->heartbeat != heartbeat) quiet_ns = 0;
    heartbeat = c->heartbeat;
    if (quiet_ns > c->deadline_ns + GRACE_NS) {
      struct tc_err e;
      tc_fail(&e, TC_EPEER, "axis %s: a call of the communication library has not returned for %.0f s; "
              "check the network and the other ranks' logs", c->name,
              (double)quiet_ns * 1e-9);
      set_failure(c, &e);
      pthread_cond_broadcast(&c->ended);
    }
  }
}

/* Called with the lock held. Whether the caller may run the call of this ticket. */
static bool may_run(const struct tc_comm *c, tc_ticket t)
{
  return c->head && c->head->ticket == t && !c->running && c->blocked && !c->ops->start && tc_thread_status_mine();
}

/* Called with the lock held. */
static int wait_here(struct tc_comm *c, tc_ticket t, struct tc_err *err)
{
  TC_ASSERT(t >= 0 && t <= c->last);
  if (c->done < t && !c->failed) {
    if (may_run(c, t)) {
      tc_thread_status_runs(c->blocked);
      run_first(c);
    }
    wake_worker(c);
    tc_thread_status_waits(c->blocked);
    await(c, t);
    tc_thread_status_waits(NULL);
  }
  c->shown = c->live;
  return c->done < t ? fail_alike(c, err) : 0;
}

int tc_comm_wait(struct tc_comm *c, tc_ticket t, struct tc_err *err)
{
  pthread_mutex_lock(&c->lock);
  int rc;
  if (c->ops->join && c->done < t && !c->failed) rc = c->ops->join(c->impl, t, err);
  else rc = wait_here(c, t, err);
  pthread_mutex_unlock(&c->lock);
  return rc;
}

int tc_comm_settle(struct tc_comm *c, struct tc_err *err)
{
  pthread_mutex_lock(&c->lock);
  int rc = wait_here(c, c->last, err);
  pthread_mutex_unlock(&c->lock);
  return rc;
}

int tc_comm_test(struct tc_comm *c, tc_ticket t, struct tc_err *err)
{
  int rc;
  pthread_mutex_lock(&c->lock);
  TC_ASSERT(t >= 0 && t <= c->last);
  if (c->done >= t) rc = 1;
  else rc = c->failed ? fail_alike(c, err) : 0;
  wake_worker(c);
  if (rc) c->shown = c->live;
  pthread_mutex_unlock(&c->lock);
  return rc;
}

int tc_comm_run(struct tc_comm *c, const struct tc_coll_args *a, struct tc_err *err)
{
  struct tc_coll_args soon = *a;
  tc_ticket t;
  soon.soon = true;
  TC_TRY(tc_comm_start(c, &soon, &t, err));
  return tc_comm_wait(c, t, err);
}

int tc_comm_usable(struct tc_comm *c, struct tc_err *err)
{
  pthread_mutex_lock(&c->lock);
  int rc = c->failed ? fail_alike(c, err) : 0;
  pthread_mutex_unlock(&c->lock);
  return rc;
}

int tc_comm_size(const struct tc_comm *c) { return c->m.size; }
int tc_comm_coord(const struct tc_comm *c) { return c->m.coord; }
const struct tc_members *tc_comm_members(const struct tc_comm *c) { return &c->m; }
struct tc_blocked_call *tc_comm_blocked_call(struct tc_comm *c) { return c->blocked; }

const struct tc_comm_counters *tc_comm_counters(const struct tc_comm *c)
{
  struct tc_comm *m = (struct tc_comm *)c;  /* the lock and the copy are not visible state */
  pthread_mutex_lock(&m->lock);
  m->shown = m->live;
  pthread_mutex_unlock(&m->lock);
  return &m->shown;
}
