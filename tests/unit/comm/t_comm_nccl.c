/* t_comm_nccl.c - communicators of GPUs' own memory (nccl.c): the shared cases, and what
 * they alone do: follow the device's order without the host, refuse GPUs that are shared, end
 * when a member never comes.
 *
 * Ranks are threads with a GPU each: emulated ones (tests/emu), which do work as late as they may,
 * so that a wait that is missing gives old data; with TC_TEST_GPU=yes those of this machine, from
 * one on. The shared cases have their data in host memory: a communicator around each brings it to
 * the GPU and back. */
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/kernel.h"
#include "src/comm/impl.h"
#include "src/comm/hub.h"
#include "src/comm/nccl.h"
#include "tests/unit/comm/comm_cases.h"
#include "tests/unit/tap.h"

enum { MAX_WORLD = 4, PARTS = CC_PARTS, SLOTS = 256 };

struct shared { struct tc_hub *hub; struct tc_device *device[MAX_WORLD]; };

/* ---- host memory in device memory ------------------------------------------------------- */

struct span { char *host, *dev; int64_t bytes; };
struct carried { struct span in[PARTS], out[PARTS]; char *dev[2 * PARTS]; tc_ticket t; };

struct around {
  struct tc_device *d;
  struct tc_comm *host, *native;
  int coord, size;
  struct carried call[SLOTS];
  tc_ticket seen;
  int64_t sent;
};

static int64_t mine_of(const struct around *x, const struct tc_part *p)
{
  return tc_block_start(p->count, p->block, x->coord + 1, x->size)
         - tc_block_start(p->count, p->block, x->coord, x->size);
}

/* What this rank reads of src and writes of dst. */
static void spans(const struct around *x, const struct tc_coll_args *a, const struct tc_part *p,
                  struct span *in, struct span *out)
{
  const bool root = x->coord == a->root;
  int64_t elem = (int64_t)tc_dtype_bytes(a->dtype), src = p->count, dst = p->count;
  const int k = a->coll;
  if (k == TC_ALL_GATHER || k == TC_GATHER) src = mine_of(x, p);
  if (k == TC_RECV || ((k == TC_BROADCAST || k == TC_SCATTER) && !root)) src = 0;
  if (k == TC_REDUCE_SCATTER || k == TC_SCATTER) dst = mine_of(x, p);
  if (k == TC_SEND || ((k == TC_REDUCE || k == TC_GATHER) && !root)) dst = 0;
  if (k == TC_BROADCAST && root) dst = 0;
  *in = (struct span){ .host = (char *)(uintptr_t)p->src, .bytes = src * elem };
  *out = (struct span){ .host = p->dst, .bytes = dst * elem };
}

/* Where src and dst are one memory they are so on the device. */
static void carry(struct around *x, struct carried *c, int i, struct tc_part *p)
{
  struct span *in = &c->in[i], *out = &c->out[i];
  const struct tc_device_ops *d = x->d->ops;
  bool one = in->bytes && out->bytes && in->host < out->host + out->bytes
             && out->host < in->host + in->bytes;
  if (one) {
    char *lo = TC_MIN(in->host, out->host);
    char *hi = TC_MAX(in->host + in->bytes, out->host + out->bytes);
    c->dev[2 * i] = d->alloc(x->d, hi - lo);
    in->dev = c->dev[2 * i] + (in->host - lo);
    out->dev = c->dev[2 * i] + (out->host - lo);
  } else {
    if (in->bytes) in->dev = c->dev[2 * i] = d->alloc(x->d, in->bytes);
    if (out->bytes) out->dev = c->dev[2 * i + 1] = d->alloc(x->d, out->bytes);
  }
  if (in->bytes) d->copy(x->d, in->dev, in->host, in->bytes);
  p->src = in->dev;
  p->dst = out->dev;
}

static int around_start(void *impl, const struct tc_coll_args *a, tc_ticket t, struct tc_err *err)
{
  struct around *x = impl;
  struct carried *c = &x->call[t % SLOTS];
  struct tc_part part[PARTS];
  struct tc_coll_args b = *a;
  memset(c, 0, sizeof *c);
  if (a->coll == TC_BARRIER) b.n_parts = 0;
  for (int i = 0; i < b.n_parts; i++) {
    part[i] = a->parts[i];
    spans(x, a, &part[i], &c->in[i], &c->out[i]);
    carry(x, c, i, &part[i]);
  }
  b.parts = part;
  return tc_comm_start(x->native, &b, &c->t, err);
}

static int around_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop,
                      struct tc_sent *sent, struct tc_err *err)
{
  struct around *x = impl;
  struct carried *c = &x->call[(x->seen + 1) % SLOTS];
  int rc;
  (void)a;
  while ((rc = tc_comm_test(x->native, c->t, err)) == 0 && !atomic_load(stop)) tc_sleep_ns(100000);
  if (rc == 0) rc = tc_fail(err, TC_EPEER, "freed");
  for (int i = 0; i < PARTS && rc > 0; i++)
    if (c->out[i].bytes) x->d->ops->copy(x->d, c->out[i].host, c->out[i].dev, c->out[i].bytes);
  for (int i = 0; i < 2 * PARTS && rc > 0; i++)
    if (c->dev[i]) x->d->ops->free(x->d, c->dev[i], 64);
  x->seen++;
  const struct tc_comm_counters *n = tc_comm_counters(x->native);
  int64_t all = 0;
  for (int k = 0; k < TC_COLLS; k++) all += n->data[k].bytes + n->ctl[k].bytes;
  sent->bytes = all - x->sent;         /* as the communicator itself counts them */
  x->sent = all;
  return TC_MIN(rc, 0);
}

static void around_free(void *impl)
{
  struct around *x = impl;
  tc_comm_free(x->native);
  tc_comm_free(x->host);
  free(x);
}

static struct tc_comm *native(struct cc_env *e, int id, const int32_t *members, int size,
                              const struct tc_comm_opts *o, struct tc_comm **host)
{
  const struct shared *s = e->ctx;
  struct tc_device *d = s->device[e->rank];
  struct tc_comm *c = NULL;
  struct tc_err err = { 0 };
  struct tc_comm_opts patient = *o;
  patient.deadline_s = 60;
  *host = size == 1 && e->world == 1 ? tc_comm_self(&patient)
                                     : tc_comm_thread(s->hub, id, e->rank, members, size, &patient);
  int rc = tc_comm_nccl(&c, d->ops->nccl, d, *host, NULL, members, !strcmp(o->name, "pp"), o, &err);
  cc_check(e, rc == 0, "%s", err.text);
  return c;
}

static struct tc_comm *make(struct cc_env *e, int id, const int32_t *members, int size,
                            const struct tc_comm_opts *o)
{
  static const struct tc_comm_ops ops = { .run = around_run, .free = around_free,
                                          .start = around_start, .depth = SLOTS };
  struct around *x = tc_calloc(1, sizeof *x);
  x->native = native(e, id, members, size, o, &x->host);
  x->d = ((const struct shared *)e->ctx)->device[e->rank];
  x->coord = tc_comm_coord(x->native);
  x->size = size;
  const struct tc_members m = tc_comm_among(o, size, x->coord);
  return tc_comm_new(&ops, x, &m, o, NULL);
}

/* ---- what they alone do ------------------------------------------------------------------ */

/* More transfers than there are places for, each between a fill before and a copy behind, none
 * waited for by the host. */
static void in_order(struct cc_env *e)
{
  enum { N = 3 * TC_NCCL_SLOTS, BLOCK = 1000 };
  const struct shared *s = e->ctx;
  struct tc_device *d = s->device[e->rank];
  int32_t members[MAX_WORLD];
  struct tc_err err = { 0 };
  struct tc_comm *host, *c;
  const struct tc_comm_opts o = { .name = "dp", .deadline_s = 30, .rank_names = e->who };
  const int64_t whole = BLOCK * e->world;
  for (int i = 0; i < e->world; i++) members[i] = i;
  c = native(e, 20, members, e->world, &o, &host);
  char *all = d->ops->alloc(d, N * whole), *work = d->ops->alloc(d, whole);
  unsigned char *got = tc_malloc((size_t)(N * whole));
  for (int i = 0; i < N; i++) {
    char *mine = work + e->rank * BLOCK;
    struct tc_part p = { mine, work, whole, BLOCK };
    struct tc_coll_args a = { .coll = TC_ALL_GATHER, .dtype = TC_U8, .n_parts = 1, .parts = &p };
    tc_ticket t;
    tc_device_fill(d, work, 0, whole);
    tc_device_fill(d, mine, (i + e->rank) % 251 + 1, BLOCK);
    cc_check(e, tc_comm_start(c, &a, &t, &err) == 0, "%s", err.text);
    cc_check(e, tc_comm_wait(c, t, &err) == 0, "%s", err.text);
    d->ops->copy(d, all + i * whole, work, whole);
  }
  d->ops->copy(d, got, all, N * whole);
  cc_check(e, tc_comm_settle(c, &err) == 0, "%s", err.text);
  cc_check(e, tc_comm_counters(c)->data[TC_ALL_GATHER].calls == N, "calls are missing");
  int wrong = 0;
  for (int64_t i = 0; i < N * whole; i++)
    wrong += got[i] != (i / whole + i % whole / BLOCK) % 251 + 1;
  cc_check(e, wrong == 0, "%d of %lld bytes are old or wrong", wrong, (long long)(N * whole));
  tc_comm_free(c);
  tc_comm_free(host);
  d->ops->free(d, all, N * whole);
  d->ops->free(d, work, whole);
  free(got);
}

/* One rank sends up what another sends down at the same time, in orders that would deadlock if
 * they were one queue on the GPU, or if the host waited in the first send for the other's receive. */
static void exchange(struct cc_env *e, struct tc_comm *c, int other)
{
  enum { BYTES = 5000 };
  struct tc_device *d = ((const struct shared *)e->ctx)->device[e->rank];
  struct tc_err err = { 0 };
  char *x = d->ops->alloc(d, BYTES), *y = d->ops->alloc(d, BYTES), got[BYTES];
  tc_ticket t = 0;
  tc_device_fill(d, x, 10 + e->rank, BYTES);
  for (int i = 0; i < 2; i++) {
    struct tc_part p = { x, y, BYTES, BYTES };
    struct tc_coll_args a = { .coll = i ? TC_RECV : TC_SEND, .dtype = TC_U8, .root = other,
                              .n_parts = 1, .parts = &p };
    cc_check(e, tc_comm_start(c, &a, &t, &err) == 0, "%s", err.text);
  }
  cc_check(e, tc_comm_wait(c, t, &err) == 0, "%s", err.text);
  d->ops->copy(d, got, y, BYTES);
  cc_check(e, got[0] == 10 + other && got[BYTES - 1] == 10 + other, "received %d", got[0]);
  cc_check(e, tc_comm_settle(c, &err) == 0, "%s", err.text);
  d->ops->free(d, x, BYTES);
  d->ops->free(d, y, BYTES);
}

/* Pairs of neighbours, then the first and the last rank. */
static void both_ways(struct cc_env *e)
{
  static const int32_t members[MAX_WORLD] = { 0, 1, 2, 3 };
  struct tc_comm *host, *c;
  const struct tc_comm_opts o = { .name = "pp", .deadline_s = 30, .rank_names = e->who };
  const int last = e->world - 1;
  c = native(e, 21, members, e->world, &o, &host);
  if ((e->rank ^ 1) <= last) exchange(e, c, e->rank ^ 1);
  if (e->rank == 0 || e->rank == last) exchange(e, c, last - e->rank);
  tc_comm_free(c);
  tc_comm_free(host);
}

/* Rank 0 has started a transfer on one axis, to which rank 1 does not come yet, then one with rank 2 on another axis. An older
 * library's may then only begin after the first; where the library itself keeps the order, the second ends before. */
static atomic_int may_come;
enum { LOOKS = 300 };

static tc_ticket start_one(struct cc_env *e, struct tc_comm *c, char *at)
{
  struct tc_err err = { 0 };
  struct tc_part p = { at, at, 1, 1 };
  struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .dtype = TC_F32, .n_parts = 1, .parts = &p };
  tc_ticket t = 0;
  cc_check(e, tc_comm_start(c, &a, &t, &err) == 0, "%s", err.text);
  return t;
}

static void turns(struct cc_env *e, bool in_turns)
{
  static const int32_t pair[2][2] = { { 0, 1 }, { 0, 2 } };
  static const char *const axis[] = { "dp", "tp" };
  struct tc_device *d = ((const struct shared *)e->ctx)->device[e->rank];
  struct tc_comm *host[2] = { NULL }, *c[2] = { NULL };
  struct tc_err err = { 0 };
  char *x = d->ops->alloc(d, 64);
  tc_ticket t = 0;
  if (e->rank == 0) atomic_store(&may_come, 0);
  for (int i = 0; i < 2; i++) {
    const struct tc_comm_opts o = { .name = axis[i], .deadline_s = 60, .rank_names = e->who };
    if (e->rank == 0 || e->rank == i + 1) c[i] = native(e, 50 + i, pair[i], 2, &o, &host[i]);
  }
  cc_check(e, e->rank > 2 || d->ops->nccl->in_turns(d) == in_turns, "whether they take turns");
  while (e->rank == 1 && !atomic_load(&may_come)) tc_sleep_ns(100000);
  for (int i = 0; i < 2; i++)
    if (c[i]) t = start_one(e, c[i], x);
  int rc = 0;
  for (int n = 0; e->rank == 2 && (in_turns ? n < LOOKS : !rc); n++) {
    if ((rc = tc_comm_test(c[1], t, &err)) < 0) break;
    tc_sleep_ns(100000);
  }
  if (e->rank == 2) cc_check(e, rc == !in_turns, "ended %s the first: %d %s", rc ? "before" : "not before", rc, err.text);
  if (e->rank == 2) atomic_store(&may_come, 1);
  for (int i = 0; i < 2; i++)
    if (c[i]) cc_check(e, tc_comm_settle(c[i], &err) == 0, "%s", err.text);
  tc_comms_free(c, 2);
  tc_comms_free(host, 2);
  d->ops->free(d, x, 64);
}

static void old_turns(struct cc_env *e) { turns(e, true); }
static void new_order(struct cc_env *e) { turns(e, false); }

/* Ranks that share a GPU are reported, on all ranks alike; ranks with a GPU of their own continue. */
static void agree(struct cc_env *e)
{
  const struct shared *s = e->ctx;
  struct tc_comm *world = tc_comm_thread(s->hub, 22, e->rank, (int32_t[]){ 0, 1, 2, 3 }, e->world,
                                         &(struct tc_comm_opts){ .deadline_s = 30 });
  struct tc_device *d = s->device[e->rank];
  const struct tc_nccl_ops none = { 0 };
  char *const *who = (char *const *)(uintptr_t)e->who;
  struct tc_err err = { 0 };
  bool use = false;
  int rc = tc_comm_nccl_agree(&use, TC_COMM_NCCL, d->ops->nccl, d, NULL, world, who, &err);
  cc_check(e, rc == 0 && use, "each has one: %s", err.text);
  struct tc_device *first = s->device[0];        /* open by now */
  rc = tc_comm_nccl_agree(&use, TC_COMM_NCCL, d->ops->nccl, e->rank == 1 ? first : d, NULL, world, who, &err);
  cc_check(e, rc == TC_EUSER && !use && strstr(err.text, "share a GPU")
           && strstr(err.text, e->who[0]) && strstr(err.text, "run.comm = mpi"), "%s", err.text);
  rc = tc_comm_nccl_agree(&use, TC_COMM_AUTO, d->ops->nccl, e->rank == 1 ? first : d, NULL, world, who, &err);
  cc_check(e, rc == 0 && !use, "a shared GPU is used: %s", err.text);
  rc = tc_comm_nccl_agree(&use, TC_COMM_NCCL, e->rank == 1 ? &none : d->ops->nccl, d, NULL, world, who, &err);
  cc_check(e, rc == TC_EUSER && !use && strstr(err.text, "has no NCCL")
           && strstr(err.text, e->who[1]), "%s", err.text);
  tc_comm_free(world);
}

/* Three axes, on each a transfer that its other member never comes to; the library takes its time to
 * abort (TC_EMU_NCCL_ABORT_MS): all of it passes at once, and none of it is waited for too long. */
enum { AXES = 3, SLOW_MS = 800, HUNG_MS = 90000, TRIES = 10 };
static atomic_int too_long;

static double end_all(struct cc_env *e, int first_id, bool whole)
{
  static const char *const axis[AXES] = { "pp", "dp", "tp" };
  const struct shared *s = e->ctx;
  struct tc_device *d = s->device[e->rank];
  struct tc_err err = { 0 };
  struct tc_comm *host[AXES], *c[AXES];
  char *x = d->ops->alloc(d, 64);
  for (int i = 0; i < AXES; i++) {
    const struct tc_comm_opts o = { .name = axis[i], .deadline_s = 30, .rank_names = e->who };
    struct tc_part p = { x, x, 1, 1 };
    struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .dtype = TC_F32, .n_parts = 1, .parts = &p };
    tc_ticket t;
    c[i] = native(e, first_id + i, (int32_t[]){ 0, 1 }, 2, &o, &host[i]);
    if (e->rank == 0) cc_check(e, tc_comm_start(c[i], &a, &t, &err) == 0, "%s", err.text);
  }
  const int64_t t0 = tc_now_ns();
  cc_check(e, tc_comms_free(c, AXES) == whole, "a thread was%s left behind", whole ? "" : " not");
  const double took_s = (double)(tc_now_ns() - t0) * 1e-9;
  cc_check(e, tc_comms_free(host, AXES), "the host's are left behind");
  if (whole) d->ops->free(d, x, 64);
  return took_s;
}

/* In pp it passes twice; one axis after the other would make it at least four times, always. So it
 * is enough to have been quicker once, whatever else the machine does. */
static void end_slow(struct cc_env *e)
{
  if (end_all(e, 30, true) >= 3.4e-3 * SLOW_MS) atomic_store(&too_long, 1);
}

static void end_hung(struct cc_env *e)
{
  double s = end_all(e, 40, false);
  cc_check(e, s < HUNG_MS * 0.5e-3, "%d axes that hang take %g s to be left behind", AXES, s);
}

/* ---- running them ------------------------------------------------------------------------ */

static const struct cc_case mine[] = {
  { "transfers follow the device's order", in_order, 1 },
  { "both ways of a pipeline at once", both_ways, 2 },
  { "who can use NCCL", agree, 2 },
};
enum { MINE = sizeof mine / sizeof *mine };

/* Of the shared cases: NCCL's sums have an order and a rounding of their own, data of the host is
 * not its; and it can't say which of several members is late (the watchdog does). */
static bool is_for_us(const struct cc_case *k, int world)
{
  if (k->run == cc_order || k->run == cc_special || k->run == cc_control ||
      k->run == cc_agree) return false;
  if (k->run == cc_late) return world == 2;
  return world == 3 || getenv("TC_TEST_GPU");    /* has all that the others have, and takes time */
}

struct job { struct cc_env env; void (*run)(struct cc_env *e); };

/* A thread that calls a GPU has opened it. */
static void *run_job(void *arg)
{
  struct job *j = arg;
  struct shared *s = j->env.ctx;
  struct tc_err err = { 0 };
  char name[16];
  tc_log_set_rank(j->env.rank);
  snprintf(name, sizeof name, "cuda:%d", j->env.rank);
  int rc = tc_device_open(&s->device[j->env.rank], name, 1, &err);
  cc_check(&j->env, rc == 0, "%s", err.text);
  if (rc == 0) j->run(&j->env);
  tc_device_close(s->device[j->env.rank]);
  return NULL;
}

static void run_world(int world, const char *name, void (*run)(struct cc_env *e))
{
  static const char *const who[MAX_WORLD] = { "rank 0 on node1", "rank 1 on node1",
                                              "rank 2 on node2", "rank 3 on node2" };
  struct shared s = { .hub = tc_hub_new(world) };
  struct job job[MAX_WORLD];
  pthread_t thread[MAX_WORLD];
  int fails = 0;
  for (int r = 0; r < world; r++) {
    job[r] = (struct job){ .env = { .rank = r, .world = world, .make = make, .ctx = &s,
                                    .who = who, .library = true }, .run = run };
    pthread_create(&thread[r], NULL, run_job, &job[r]);
  }
  for (int r = 0; r < world; r++) {
    pthread_join(thread[r], NULL);
    fails += job[r].env.fails;
  }
  ok(fails == 0, "%d GPU%s: %s", world, world > 1 ? "s" : "", name);
  for (int r = 0; r < world; r++)
    if (job[r].env.fails)
      printf("#   rank %d: %d failed, first: %s\n", r, job[r].env.fails, job[r].env.first);
  tc_hub_free(s.hub);
}

static int count_gpus(void)
{
  int n = 0;
  for (; n < MAX_WORLD; n++) {
    char name[16];
    struct tc_device *d = NULL;
    struct tc_err err;
    snprintf(name, sizeof name, "cuda:%d", n);
    if (tc_device_open(&d, name, 1, &err) < 0) break;
    tc_device_close(d);
  }
  return n;
}

int main(void)
{
  const char *gpu = getenv("TC_TEST_GPU"), *folder = getenv("TC_EMU_MODULES");
  if (!gpu || !*gpu) {
    if (!folder || !*folder) skip_all("no C++ compiler to build the emulated GPU with");
    setenv("TERCIO_MODULES", folder, 1);
    setenv("TC_EMU_DEVICES", "4", 1);
  }
  const int n = count_gpus();
  ok(n > 0, "there are GPUs: %d", n);
  for (int world = 1; world <= n; world++) {
    const bool all = world < 4 || getenv("TC_TEST_GPU");
    setenv("TC_EMU_QUIET_MS", "1", 1);
    for (int i = 0; i < MINE; i++)
      if (world >= mine[i].min_world) run_world(world, mine[i].name, mine[i].run);
    setenv("TC_EMU_QUIET_MS", "0", 1);           /* the host waits for each call: nothing to be late */
    for (int i = 0; i < CC_CASES && all; i++)
      if (world >= cc_cases[i].min_world && is_for_us(&cc_cases[i], world))
        run_world(world, cc_cases[i].name, cc_cases[i].run);
  }
  if (getenv("TC_TEST_GPU")) return done_testing();
  char ms[16];
  setenv("TC_EMU_QUIET_MS", "1", 1);
  run_world(3, "communicators of a library that starts them in one order", new_order);
  setenv("TC_EMU_NCCL_VERSION", "21803", 1);
  run_world(3, "... of an older one take turns", old_turns);
  for (int i = 0; i < MINE; i++) run_world(4, mine[i].name, mine[i].run);
  unsetenv("TC_EMU_NCCL_VERSION");
  snprintf(ms, sizeof ms, "%d", SLOW_MS);
  setenv("TC_EMU_NCCL_ABORT_MS", ms, 1);
  for (int i = 0; i < TRIES; i++) {
    atomic_store(&too_long, 0);
    run_world(2, "an abort that takes time", end_slow);
    if (!atomic_load(&too_long)) break;
  }
  ok(!atomic_load(&too_long), "... passes on all axes at once");
  snprintf(ms, sizeof ms, "%d", HUNG_MS);
  setenv("TC_EMU_NCCL_ABORT_MS", ms, 1);
  run_world(2, "an abort that hangs: all axes are left behind at once", end_hung);
  run_world(2, "... and what was late is reported before", cc_late);
  const int status = done_testing();
  fflush(stdout);
  _Exit(status);                                 /* threads hang, as they should: no looking for leaks */
}
