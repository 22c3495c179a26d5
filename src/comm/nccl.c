/* nccl.c - communicators of device memory, over the library that the device's module loads
 * (kernels/cuda/nccl.cu): initialisation, dependencies between streams, timeouts.
 *
 * Invariants:
 * - a call's transfer is in its stream, and its end marked by an event, when nccl_start returns; ticket t has
 *   slot t % TC_NCCL_SLOTS, which is free again when run has seen t's end (depth);
 * - a transfer that exceeds its timeout, or that the library reports as failed, is aborted: then the device's
 *   streams continue and nothing hangs; their results are invalid, and every further call fails;
 * - the communicator fails with the first failure, on both threads: later ones are consequences of the
 *   abort;
 * - with two ways, a send to a higher coordinate, and its receive, use way 0, one to a lower coordinate
 *   way 1, so that both ends use the same; all other calls use way 0. In each way calls have one
 *   order on all members, since all calls have one order;
 * - with two ways, members whose coordinates follow each other, or are the first and the last, have met on both when the
 *   communicator is made: their first transfer is as any other, and waits for no host (`meet` in kernels/nccl.h);
 * - NCCL does not report which member is missing. The watchdogs find it: each rank reports waiting for its
 *   neighbours, so the search passes through all waiting ranks to one that does not wait. */
#include "src/comm/nccl.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "src/comm/impl.h"

enum { WAYS = 2, SPINS = 64, YIELDS = 64, SLEEP_NS = 100000, START_NS = 1000000, LAST_NS = 10000000 };
#define SAY_NS INT64_C(250000000)
#define TICK_NS INT64_C(1000000000)

struct nccl {
  const struct tc_nccl_ops *ops;
  struct tc_nccl *way[WAYS];
  int n_ways;
  struct tc_members m;
  char *name;                     /* owned, as members */
  int32_t *members;
  struct tc_late late;            /* borrows those */
  atomic_int way_of[TC_NCCL_SLOTS];
  _Atomic tc_ticket started;
  tc_ticket seen;                 /* the worker's */
  pthread_mutex_t lock;
  struct tc_err why;              /* under lock: the first failure */
};

/* ---- waiting ----------------------------------------------------------------------- */

/* awake_ns: the time until which it does not sleep. */
struct patience { int64_t last_ns, age_ns, say_ns, awake_ns; int idle; };

/* The time for which the process itself was stopped is not counted. */
static void add_wait(struct patience *p)
{
  int64_t now = tc_now_ns();
  p->age_ns += TC_MIN(now - p->last_ns, TICK_NS);
  p->last_ns = now;
}

/* The host polls the device, with short sleeps, so that the end of a step is seen early. */
static void back_off(struct patience *p)
{
  if (p->idle++ < SPINS) return;
  if (p->idle < SPINS + YIELDS || p->last_ns < p->awake_ns) sched_yield();
  else tc_sleep_ns(SLEEP_NS);
}

/* The other members, neighbours of this one first. */
static int find_late(const struct nccl *x, const struct tc_coll_args *a, int late[TC_SUSPECTS])
{
  if (a->coll == TC_SEND || a->coll == TC_RECV) {
    late[0] = a->root;
    return 1;
  }
  for (int i = 0; i < TC_MIN(x->m.size - 1, TC_SUSPECTS); i++) late[i] = (x->m.coord + 1 + i) % x->m.size;
  return x->m.size - 1;
}

/* Polls once: TC_EPEER when the timeout has expired or *stop is set. */
static int wait_on(struct nccl *x, const struct tc_coll_args *a, struct patience *p,
                   const atomic_bool *stop, struct tc_err *err)
{
  int late[TC_SUSPECTS], n = find_late(x, a, late);
  add_wait(p);
  if (stop && atomic_load_explicit(stop, memory_order_relaxed))
    return tc_fail(err, TC_EPEER, "the communicator of axis %s was freed", x->name);
  if (p->age_ns > (int64_t)(x->late.deadline_s * 1e9))
    return tc_late_fail(&x->late, a, p->age_ns, late, n, err);
  if (p->age_ns > p->say_ns) {
    tc_late_say(&x->late, a, p->age_ns, late, n);
    p->say_ns = p->age_ns + SAY_NS;
  }
  back_off(p);
  return 0;
}

static void abort_all(struct nccl *x)
{
  for (int i = 0; i < x->n_ways; i++)
    if (x->way[i]) x->ops->abort(x->way[i]);
}

/* Aborts after a failure of the library or (not `library`) a timeout, as given in err. */
static int give_up(struct nccl *x, const struct tc_coll_args *a, bool library, struct tc_err *err)
{
  int late[TC_SUSPECTS], n = find_late(x, a, late);
  pthread_mutex_lock(&x->lock);
  const bool first = !x->why.status;
  pthread_mutex_unlock(&x->lock);
  if (first && library) tc_late_broken(&x->late, a, late, n, err);
  pthread_mutex_lock(&x->lock);
  if (!x->why.status) x->why = *err;
  *err = x->why;
  pthread_mutex_unlock(&x->lock);
  abort_all(x);
  return err->status;
}

/* Waits until the library has completed the operation on way w. It starts a transfer in some 50 us, for which the
 * device may be waiting: a sleep would be longer. */
static int be_ready(struct nccl *x, int w, const struct tc_coll_args *a, struct tc_err *err)
{
  const int64_t now = tc_now_ns();
  struct patience p = { .last_ns = now, .say_ns = SAY_NS, .awake_ns = now + START_NS };
  int rc = x->ops->ready(x->way[w], err), late = 0;
  if (rc > 0) return 0;
  if (rc < 0) return give_up(x, a, true, err);
  tc_thread_status_waits(x->late.blocked);       /* this wait has its own timeout */
  do late = wait_on(x, a, &p, NULL, err);
  while (late == 0 && (rc = x->ops->ready(x->way[w], err)) == 0);
  tc_thread_status_waits(NULL);
  if (late < 0 || rc < 0) return give_up(x, a, late == 0, err);
  if (p.say_ns > SAY_NS) tc_blocked_call_clear(x->late.blocked);
  return 0;
}

/* ---- a call ------------------------------------------------------------------------ */

static int way_of(const struct nccl *x, const struct tc_coll_args *a)
{
  bool up = a->coll == TC_SEND ? a->root > x->m.coord : a->root < x->m.coord;
  return x->n_ways > 1 && (a->coll == TC_SEND || a->coll == TC_RECV) && !up;
}

static int nccl_start(void *impl, const struct tc_coll_args *a, tc_ticket t, struct tc_err *err)
{
  struct nccl *x = impl;
  const int w = way_of(x, a), slot = (int)(t % TC_NCCL_SLOTS);
  atomic_store(&x->way_of[slot], w);
  if (x->ops->start(x->way[w], a, slot, err) < 0) return give_up(x, a, true, err);
  TC_TRY(be_ready(x, w, a, err));
  if (x->ops->mark(x->way[w], slot, err) < 0) return give_up(x, a, true, err);
  atomic_store(&x->started, t);
  return 0;
}

static int nccl_join(void *impl, tc_ticket t, struct tc_err *err)
{
  struct nccl *x = impl;
  const int slot = (int)(t % TC_NCCL_SLOTS);
  return x->ops->wait_for(x->way[atomic_load(&x->way_of[slot])], slot, err);
}

/* Waits for the end of the next transfer. Its timeout starts when the device reaches it. If no later one is started, the
 * host may be waiting for this end, as at the end of a step (tc_comm_settle): a sleep could be longer than what is left. */
static int nccl_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop,
                    struct tc_sent *sent, struct tc_err *err)
{
  struct nccl *x = impl;
  struct patience p = { .last_ns = tc_now_ns(), .say_ns = SAY_NS };
  const int slot = (int)((x->seen + 1) % TC_NCCL_SLOTS);
  struct tc_nccl *way = x->way[atomic_load(&x->way_of[slot])];
  int at, rc = 0;
  while ((at = x->ops->test(way, slot, err)) != TC_NCCL_DONE && at >= 0) {
    if (!p.awake_ns && atomic_load(&x->started) == x->seen + 1) p.awake_ns = p.last_ns + LAST_NS;
    if ((rc = wait_on(x, a, &p, stop, err)) < 0) break;
    if (at == TC_NCCL_QUEUED) p.age_ns = 0;
  }
  if (at < 0 || rc < 0) return give_up(x, a, at < 0, err);
  if (p.say_ns > SAY_NS) tc_blocked_call_clear(x->late.blocked);
  x->seen++;
  sent->bytes = tc_coll_bytes(a, &x->m);
  return 0;
}

/* Finalising, or aborting, may take the library long, and the end of one way may have to precede that of the
 * other. */
static void nccl_leave(void *impl)
{
  struct nccl *x = impl;
  if (x->seen != x->started) abort_all(x);
  for (int i = 0; i < WAYS; i++) {
    x->ops->free(x->way[i], x->seen == x->started);
    x->way[i] = NULL;
  }
}

static void nccl_free(void *impl)
{
  struct nccl *x = impl;
  pthread_mutex_destroy(&x->lock);
  TC_FREE(x->name, x->members, x);
}

/* ---- making ------------------------------------------------------------------------ */

/* Collective: all members call this with their status; returns the first error on all. Not after a timeout:
 * the others are then as late as this one. */
static int agree(struct nccl *x, int rc, struct tc_comm *host, struct tc_err *err)
{
  return rc == TC_EPEER ? rc : tc_comm_agree(host, (char *const *)(uintptr_t)x->late.rank_names, rc, err);
}

/* The neighbours of a member, in a ring, with a higher coordinate, or with a lower one. */
static int neighbours(const struct tc_members *m, bool higher, int coord[2])
{
  const int next = higher ? m->coord + 1 : m->coord - 1, around = higher ? m->size - 1 : 0;
  int n = 0;
  if (next >= 0 && next < m->size) coord[n++] = next;
  if (m->coord == (higher ? 0 : m->size - 1) && around != next) coord[n++] = around;
  return n;
}

/* All at once, so that no order of theirs can be a circle: on way w, as way_of has it. */
static int meet_neighbours(struct nccl *x, int w, struct tc_err *err)
{
  static const struct tc_coll_args meeting = { .coll = TC_BARRIER, .what = "meeting neighbours over NCCL" };
  int to[2], from[2];
  const int n_to = neighbours(&x->m, w == 0, to), n_from = neighbours(&x->m, w != 0, from);
  if (x->ops->meet(x->way[w], to, n_to, from, n_from, err) < 0) return give_up(x, &meeting, true, err);
  return be_ready(x, w, &meeting, err);
}

/* Initialises way w, collectively. */
static int init_way(struct nccl *x, int w, void *device, struct tc_comm *host, struct tc_err *err)
{
  static const struct tc_coll_args joining = { .coll = TC_BARRIER, .what = "joining NCCL" };
  char made[TC_NCCL_ID_BYTES] = "";
  void *id = made;
  int64_t n = sizeof made;
  TC_TRY(agree(x, x->m.coord == 0 ? x->ops->id(device, made, err) : 0, host, err));
  TC_TRY(tc_comm_bytes_bcast(host, 0, &id, &n, err));
  int rc = x->ops->join(&x->way[w], device, id, x->m.coord, x->m.size, w ? x->way[0] : NULL, err);
  if (x->m.coord != 0) free(id);
  TC_TRY(agree(x, rc, host, err));                /* otherwise the others would wait for this member */
  TC_TRY(agree(x, be_ready(x, w, &joining, err), host, err));
  return x->n_ways > 1 ? agree(x, meet_neighbours(x, w, err), host, err) : 0;
}

int tc_comm_nccl(struct tc_comm **out, const struct tc_nccl_ops *ops, void *device,
                 struct tc_comm *host, struct tc_comm *beside, const int32_t *members,
                 bool two_ways, const struct tc_comm_opts *o, struct tc_err *err)
{
  static const struct tc_comm_ops comm_ops = {
    .run = nccl_run, .leave = nccl_leave, .free = nccl_free, .start = nccl_start, .join = nccl_join,
    .depth = TC_NCCL_SLOTS };
  struct nccl *x = tc_calloc(1, sizeof *x);
  const int size = tc_comm_size(host);
  const size_t bytes = (size_t)size * sizeof *members;
  *x = (struct nccl){ .ops = ops, .m = tc_comm_among(o, size, tc_comm_coord(host)), .n_ways = two_ways && size > 1 ? 2 : 1,
                      .name = tc_comm_name(o), .members = memcpy(tc_malloc(bytes), members, bytes) };
  pthread_mutex_init(&x->lock, NULL);
  x->late = (struct tc_late){ .axis = x->name, .rank_names = o->rank_names, .members = x->members,
                              .blocked = beside ? tc_comm_blocked_call(beside)
                                                : tc_blocked_call_new(),
                              .deadline_s = tc_comm_deadline_s(o) };
  int rc = 0;
  *out = NULL;
  for (int w = 0; w < x->n_ways && !rc; w++) rc = init_way(x, w, device, host, err);
  struct tc_comm *c = tc_comm_new(&comm_ops, x, &x->m, o, x->late.blocked);
  if (!rc) rc = tc_comm_usable(c, err);
  if (rc == 0) {
    *out = c;
    return 0;
  }
  abort_all(x);
  tc_comm_free(c);                               /* an abort that hangs is leaked */
  return rc;
}

/* ---- whether -------------------------------------------------------------------------- */

struct look { int32_t status; char gpu[64], why[400]; };

/* In the order of their GPUs, then of the ranks. */
static int by_gpu(const void *a, const void *b)
{
  const struct look *x = *(const struct look *const *)a, *y = *(const struct look *const *)b;
  const int order = strcmp(x->gpu, y->gpu);
  return order ? order : (x > y) - (x < y);
}

/* The first rank that has the GPU of a rank before it, *owner; n: no two share one. */
static int find_shared(const struct look *all, int n, int *owner)
{
  const struct look **at = tc_malloc((size_t)n * sizeof *at);
  int first = n;
  for (int i = 0; i < n; i++) at[i] = &all[i];
  qsort(at, (size_t)n, sizeof *at, by_gpu);
  for (int k = 1; k < n; k++) {
    if (at[k] - all >= first || strcmp(at[k - 1]->gpu, at[k]->gpu) != 0) continue;
    first = (int)(at[k] - all);
    *owner = (int)(at[k - 1] - all);
  }
  free(at);
  return first;
}

static int refuse(const struct look *all, int n, char *const *rank_names, struct tc_err *err)
{
  int owner = 0;
  for (int i = 0; i < n; i++)
    if (all[i].status < 0)
      return tc_fail(err, TC_EUSER, "%s: %s", rank_names ? rank_names[i] : "a rank", all[i].why);
  const int shares = find_shared(all, n, &owner);
  if (shares == n) return 0;
  return tc_fail(err, TC_EUSER, "%s and %s share a GPU, which NCCL does not support; give each rank a GPU of its own, or set "
                 "run.comm = mpi", rank_names ? rank_names[owner] : "a rank", rank_names ? rank_names[shares] : "another");
}

int tc_comm_nccl_agree(bool *use, enum tc_comm_kind want, const struct tc_nccl_ops *ops, void *device,
                       const char *no_device, struct tc_comm *world, char *const *rank_names,
                       struct tc_err *err)
{
  struct look mine;
  struct tc_err why = { 0 };
  const bool must = want == TC_COMM_NCCL;
  const int n = tc_comm_size(world);
  *use = false;
  err->text[0] = 0;
  if (!must && (want != TC_COMM_AUTO || n == 1)) return 0;
  int64_t *bytes = tc_calloc((size_t)n, sizeof *bytes);
  void *all = NULL;
  memset(&mine, 0, sizeof mine);
  if (!ops && no_device)
    tc_fail(&why, TC_EUSER, "%s", no_device);
  else if (!ops)
    tc_fail(&why, TC_EUSER, "NCCL transfers data between GPUs, but run.device is not a GPU; set run.comm = "
            "mpi, or run.device = cuda");
  else if (!ops->look)
    tc_fail(&why, TC_EUSER, "this build's tercio-cuda.so has no NCCL (its header was missing "
            "when it was built); set run.comm = mpi, or build with nccl.h");
  else
    ops->look(device, mine.gpu, &why);
  mine.status = why.status;
  memcpy(mine.why, why.text, sizeof mine.why - 1);
  int rc = tc_comm_bytes_gather(world, 0, &mine, sizeof mine, &all, bytes, err);
  if (rc == 0) {
    rc = tc_comm_bcast_status(world, all ? refuse(all, n, rank_names, &why) : 0, &why);
    *use = rc == 0;
    if (rc < 0) tc_fail(err, rc, "%s%.900s", must ? "run.comm = nccl: " : "", why.text);
    if (!must && rc != TC_EPEER) rc = 0;
  }
  TC_FREE(all, bytes);
  return rc;
}
