/* t_bench.c - a row of `tercio comm` (src/bench/bench.c), with communicators, memory and a clock of the
 * test's own: what is called, every wrong element and counter, and what fails. */
#include "src/comm/comm.h"
#include "tests/unit/leak.h"
#include "tests/unit/tap.h"

struct tc_comm { struct tc_members m; };

enum { CALLS = 4, N = 3 };
static struct tc_coll_args made[CALLS];
static struct tc_part part[CALLS];
static struct tc_comm_counters counted;
static int n_made, idle_waits, runs, waits, syncs, settled, barriers, to_fail;
static int64_t now_ns, longer_ns;
static char heard[200];
static int64_t heard_bytes[N], message_bytes;
static void (*ran)(void); /* after the last call of an iteration */

static int falls(int what, struct tc_err *err)
{
  return to_fail == what ? tc_fail(err, TC_ENOCKPT, "fault %d", what) : 0;
}
static int bench_start(struct tc_comm *c, const struct tc_coll_args *a, tc_ticket *t,
                       struct tc_err *err)
{
  made[n_made] = *a;
  part[n_made] = *a->parts;
  *t = ++n_made;
  counted.data[a->coll].calls++;
  counted.data[a->coll].bytes +=
      tc_coll_bytes(a, &c->m);
  waits = 0;
  return falls(1, err);
}
static int bench_wait(struct tc_comm *c, tc_ticket t, struct tc_err *err)
{
  (void)c;
  idle_waits += n_made == 0;
  if (t == ++waits && waits == n_made) {
    ran();
    runs++;
    n_made = 0;
  }
  return falls(2, err);
}
static int bench_settle(struct tc_comm *c, struct tc_err *err)
{
  (void)c;
  settled += runs;
  return falls(runs > 2 ? 4 : 3, err);
}
static int bench_barrier(struct tc_comm *c, const struct tc_coll_args *a, struct tc_err *err)
{
  barriers +=
      c->m.size == 5 && a->coll == TC_BARRIER && a->ctl && !strcmp(a->what, "before an iteration");
  return falls(5, err);
}
/* Another rank took longer. */
static int bench_max(struct tc_comm *c, int64_t *x, int n, struct tc_err *err)
{
  for (int i = 0; i + 1 < n && c->m.size == 5; i++) x[i] += longer_ns;
  if (heard_bytes[1] && c->m.size == 5) x[n - 1] = 1;
  return falls(6, err);
}
static int bench_gather(struct tc_comm *c, int root, const void *mine, int64_t my_bytes, void **all,
                        int64_t *bytes, struct tc_err *err)
{
  if (c->m.size != 5 || root) return -1;
  message_bytes = my_bytes;
  memset(bytes, 0, 5 * sizeof *bytes);
  memcpy(bytes, heard_bytes, sizeof heard_bytes);
  if (my_bytes) bytes[0] = my_bytes;
  *all = my_bytes ? memcpy(tc_calloc(1, (size_t)my_bytes + 1), mine, (size_t)my_bytes)
                  : tc_strdup(heard);
  return falls(7, err);
}
static int bench_bcast(struct tc_comm *c, int root, void **buf, int64_t *n, struct tc_err *err)
{
  (void)buf, (void)n;
  return c->m.size != 5 || root ? -1 : falls(8, err);
}
static int64_t bench_clock(void) { return now_ns += 1000 * (runs + 1) * (runs + 1); }

#define tc_comm_start bench_start
#define tc_comm_wait bench_wait
#define tc_comm_settle bench_settle
#define tc_comm_run bench_barrier
#define tc_comm_max_i64 bench_max
#define tc_comm_bytes_gather bench_gather
#define tc_comm_bytes_bcast bench_bcast
#define tc_comm_counters(c) (&counted)
#define tc_comm_coord(c) ((c)->m.coord)
#define tc_comm_members(c) (&(c)->m)
#define tc_comm_size(c) ((c)->m.size)
#define tc_now_ns bench_clock
#include "src/bench/bench.c"

/* ---- memory elsewhere --------------------------------------------------------------------- */

static int64_t taken;
static int n_allocs, allocs_left;
static struct tc_device there;
static void *there_alloc(struct tc_device *d, int64_t bytes)
{
  TC_ASSERT(d == &there);
  if (allocs_left-- <= 0) return NULL;
  taken += bytes;
  n_allocs++;
  return tc_calloc(1, (size_t)bytes);
}
static void there_free(struct tc_device *d, void *p, int64_t bytes)
{
  TC_ASSERT(d == &there);
  taken -= bytes;
  free(p);
}
static void there_copy(struct tc_device *d, void *to, const void *from, int64_t bytes)
{
  TC_ASSERT(d == &there);
  memcpy(to, from, (size_t)bytes);
}
static void there_fill(struct tc_device *d, void *p, int byte, int64_t bytes)
{
  TC_ASSERT(d == &there);
  memset(p, byte, (size_t)bytes);
}
static void there_sync(struct tc_device *d) { syncs += d == &there; }
static const struct tc_device_ops there_ops = { .alloc = there_alloc, .free = there_free, .copy = there_copy,
                                                .fill = there_fill, .sync = there_sync };
static struct tc_device there = { .ops = &there_ops };

/* ---- a group of three ---------------------------------------------------------------------- */

static const int32_t members[N] = { 4, 1, 200 };
static struct tc_comm group, world = { .m = { .size = 5 } };
static struct tc_bench *bench;
static int wrong_at, wrong_n, wrong_run, bad_src, bad_poison;

static float value(int member, int64_t i)
{
  return index_part(bench->salt, i) + rank_part(members[member]);
}

static float sum(int64_t i) { return value(0, i) + value(1, i) + value(2, i); }

/* What element i of the output has to be; false: it is to be left alone. */
static bool expected(int64_t i, float *x)
{
  const int64_t c = bench->count, b = bench->block, lo = group.m.coord * b;
  const int64_t mine = group.m.coord == N - 1 ? c - lo : b, owner = TC_MIN(i / b, N - 1);
  *x = 0;
  if (i >= c) return false;
  switch (bench->op) {
  case TC_BENCH_REDUCE:
    *x = sum(i);
    return group.m.coord == 0;
  case TC_BENCH_ALL_REDUCE:
  case TC_BENCH_REDUCE_BROADCAST:
    *x = sum(i);
    return true;
  case TC_BENCH_REDUCE_SCATTER:
    *x = sum(lo + i);
    return i < mine;
  case TC_BENCH_ALL_GATHER:
    *x = value((int)owner, i - owner * b);
    return true;
  case TC_BENCH_GATHER:
    *x = value((int)owner, i - owner * b);
    return group.m.coord == 0;
  case TC_BENCH_BROADCAST:
  case TC_BENCH_ONE_BY_ONE:
    *x = value(0, i);
    return group.m.coord > 0;
  case TC_BENCH_SCATTER:
    *x = value(0, lo + i);
    return i < mine;
  case TC_BENCH_ALL_TO_ALL:
    *x = value((int)owner, lo + i % b);
    return true;
  case TC_BENCH_SEND:
    if (bench->from < 0) return false;
    *x = value(bench->from, i);
    return true;
  default:
    *x = value((group.m.coord + 2) % N, i);
    return true;
  }
}

/* The iteration's result, in which wrong_n elements are wrong from wrong_at on. */
static void give(void)
{
  float *dst = bench->dst_there;
  for (int64_t i = 0; i < bench->count; i++)
    bad_src += bench->src_there[i] != value(group.m.coord, i);
  for (int64_t i = 0; i < bench->count + GUARD && (runs == 0 || runs == 2); i++)
    bad_poison += bits(dst[i]) != poison_bits;
  for (int64_t i = 0; i < bench->count + GUARD; i++) {
    float x;
    bool has = expected(i, &x);
    if (has) dst[i] = x;
    if (runs == wrong_run && i >= wrong_at && i < wrong_at + wrong_n) dst[i] = x + 1;
  }
}

/* A row of `bytes` on a coordinate; elements of one iteration are wrong. */
static int row(int op, int coord, int64_t bytes, int iters, bool elsewhere, struct tc_bench_row *r,
               struct tc_err *err)
{
  group.m = tc_members_of(N, coord);
  allocs_left = 2;
  *err = (struct tc_err){ 0 };
  n_made = runs = waits = syncs = settled = barriers = bad_src = bad_poison = 0;
  now_ns = 0;
  ran = give;
  bench =
      tc_bench_new(&group, &world, members, members[coord], 60, iters, elsewhere ? &there : NULL);
  int rc = tc_bench_run(bench, op, bytes, r, err);
  return rc;
}

static void done(void) { tc_bench_free(bench); }

/* ---- tests --------------------------------------------------------------------------------- */

static void test_values(void)
{
  const float want[] = { 0, 79, 3, 27, 47, 0 };
  const int64_t at[] = { 0, 1, 2, 1000, 123456789, INT64_C(1) << 33 };
  for (int i = 0; i < 6; i++) near_f(index_part(0x9e3779b9u, at[i]), want[i], 0, "element %d", i);
  near_f(rank_part(1), 37, 0, "rank 1");
  near_f(rank_part(4), 21, 0, "rank 4");
  near_f(rank_part(100000000), 34, 0, "a rank of many");
}

/* "send 1 10/4 src dst, ...": root, count/block, from and to; of coordinate 0, and of others where
 * they differ. */
static void test_calls(void)
{
  static const char *const want[TC_BENCH_OPS][N] = {
    { "all_reduce 0 10/4 src dst" },
    { "reduce 0 10/4 src dst reduce+broadcast, broadcast 0 10/4 dst dst reduce+broadcast" },
    { "reduce_scatter 0 10/4 src dst" },
    { "all_gather 0 10/4 src dst" },
    { "broadcast 0 10/4 src dst" },
    { "send 1 10/4 src dst one_by_one, send 2 10/4 src dst one_by_one",
      "recv 0 10/4 src dst one_by_one", "recv 0 10/4 src dst one_by_one" },
    { "reduce 0 10/4 src dst" },
    { "scatter 0 10/4 src dst" },
    { "gather 0 10/4 src dst" },
    { "all_to_all 0 9/3 src dst" },
    { "send 1 10/4 src dst send_recv, recv 2 10/4 src dst send_recv",
      "recv 0 10/4 src dst send_recv, send 2 10/4 src dst send_recv",
      "send 0 10/4 src dst send_recv, recv 1 10/4 src dst send_recv" },
    { "send 1 10/4 src dst send", "recv 0 10/4 src dst send", "" }
  };
  for (int op = 0; op < TC_BENCH_OPS; op++)
    for (int coord = 0; coord < N; coord++) {
      struct tc_bench_row r;
      struct tc_err err;
      char text[300] = "";
      wrong_n = 0;
      row(op, coord, 43, 1, false, &r, &err);
      for (int i = 0; i < bench->n_calls; i++) {
        const struct tc_coll_args *a = &made[i];
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s %d %d/%d %s %s%s%s",
                 i ? ", " : "", tc_coll_name[a->coll], a->root, (int)part[i].count,
                 (int)part[i].block, part[i].src == bench->src ? "src" : "dst",
                 part[i].dst == bench->dst ? "dst" : "?", a->what ? " " : "",
                 a->what ? a->what : "");
        ok(a->dtype == TC_F32 && a->red == TC_SUM && a->n_parts == 1 && !a->ctl,
           "a call of numbers");
      }
      is_str(text, want[op][want[op][coord] ? coord : 0], "%s on coordinate %d",
             tc_bench_op_name[op], coord);
      done();
    }
}

/* Each element wrong alone, in the last iteration or before what is timed. */
static void test_wrong(int op, int coord)
{
  int missed = 0;
  for (int i = 0; i < 11 + GUARD; i++) {
    struct tc_bench_row r;
    struct tc_err err;
    char want[300], good[32] = "nothing";
    float x;
    wrong_at = i;
    wrong_n = 1;
    wrong_run = i % 2 ? 1 : 3;
    int rc = row(op, coord, 44, 2, i % 3 == 0, &r, &err);
    if (i < bench->count + GUARD) {
      if (expected(i, &x))
        snprintf(good, sizeof good, "%g", (double)x);
      else
        x = i < bench->count ? x : 0;
      snprintf(want, sizeof want,
               "%s of %d bytes is wrong on rank %d: index %d: got %g, expected %s; wrong "
               "elements of this rank: 1",
               tc_bench_op_name[op], 4 * (int)bench->count, members[coord], i, (double)x + 1, good);
      if ((rc != TC_EUSER || strcmp(err.text, want)) && !missed++)
        is_str(err.text, want, "what is wrong");
    } else if (rc) {
      missed++;
    }
    missed += bad_src > 0;
    missed += bad_poison > 0;
    missed += idle_waits;
    missed += syncs != (i % 3 ? 0 : 4);
    missed += settled != 6 || barriers != 2;
    done();
  }
  is_int(missed, 0, "%s on coordinate %d: each wrong element", tc_bench_op_name[op], coord);
  wrong_n = 0;
}

static void test_row(void)
{
  struct tc_bench_row r;
  struct tc_err err;
  for (int op = 0; op < TC_BENCH_OPS; op++) {
    static const double factor[TC_BENCH_OPS] = { 4. / 3, 4. / 3, 2. / 3, 2. / 3, 1, 1,
                                                 1,      2. / 3, 2. / 3, 2. / 3, 1, 1 };
    static const int sent[TC_BENCH_OPS] = { 60, 88, 28, 32, 88, 88, 0, 28, 0, 24, 44, 44 };
    is_int(row(op, 0, 44, 3, false, &r, &err), 0, "%s: well", tc_bench_op_name[op]);
    is_int(r.iters, 3, "... iterations");
    is_int(r.count, op == TC_BENCH_ALL_TO_ALL ? 9 : 11, "... count");
    is_int(r.size_bytes, 4 * r.count, "... size");
    near_f(r.time_us, (4 * 4 + 5 * 5 + 6 * 6) / 3., 1e-9, "... mean time");
    near_f(r.median_us, 25, 1e-9, "... middle time");
    near_f(r.algbw, (double)r.size_bytes / (r.time_us * 1e3), 1e-9, "... bandwidth");
    near_f(r.busbw, r.algbw * factor[op], 1e-9, "... of the bus");
    is_int(r.sent_bytes, sent[op], "... bytes sent");
    done();
  }
}

static void test_sizes(void)
{
  static const struct {
    int op, bytes, count, block;
  } rows[] = { { TC_BENCH_ALL_REDUCE, 3, 1, 1 },   { TC_BENCH_ALL_REDUCE, 4, 1, 1 },
               { TC_BENCH_ALL_REDUCE, 60, 15, 5 }, { TC_BENCH_ALL_REDUCE, 16, 4, 2 },
               { TC_BENCH_ALL_TO_ALL, 4, 3, 1 },   { TC_BENCH_ALL_TO_ALL, 23, 3, 1 },
               { TC_BENCH_ALL_TO_ALL, 24, 6, 2 } };
  struct tc_bench_row r;
  struct tc_err err;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    is_int(row(rows[i].op, 1, rows[i].bytes, 1, false, &r, &err), 0, "%d bytes: well",
           rows[i].bytes);
    is_int(r.count, rows[i].count, "... elements");
    is_int(bench->block, rows[i].block, "... of a block");
    done();
  }
  row(TC_BENCH_ALL_REDUCE, 0, 12, 1, false, &r, &err);
  is_int(bench->salt, 0x9e3779b9u, "the first row's salt");
  runs = 0;
  is_int(tc_bench_run(bench, TC_BENCH_ALL_REDUCE, 12, &r, &err), 0, "... the next row");
  is_int(bench->salt, 0x9e3779b9u * 2, "... and the next one's");
  done();
}

/* There and back between coordinates 0 and 2, in an order that suits both; the third waits. */
static void test_pair(void)
{
  static const char *const order[N] = { "send 2 recv 2", "", "recv 0 send 0" };
  for (int coord = 0; coord < N; coord++)
    for (int wrong = 0; wrong < 2; wrong++) {
      struct tc_bench_row r;
      struct tc_err err = { 0 };
      char text[60] = "", want[200];
      int64_t ns = -1;
      wrong_n = 0;
      row(TC_BENCH_BROADCAST, coord, 4, 3, true, &r, &err);
      const int peer = coord == 1 ? -1 : 2 - coord;
      runs = n_made = waits = barriers = bad_src = bad_poison = 0;
      wrong_at = 4, wrong_n = wrong, wrong_run = 4;
      const int rc = tc_bench_pair(bench, peer, 44, "a - b", &ns, &err);
      is_int(rc, wrong && peer >= 0 ? TC_EUSER : 0, "a pair at coordinate %d", coord);
      for (int i = 0; i < bench->n_calls; i++)
        snprintf(text + strlen(text), 20, "%s%s %d", i ? " " : "", tc_coll_name[bench->call[i].coll],
                 bench->call[i].root);
      is_str(text, order[coord], "... calls");
      is_int(runs, peer < 0 ? 0 : 5, "... iterations");
      is_int(ns, peer < 0 ? 0 : 25000, "... the time in the middle");
      is_int(bad_src + bad_poison + barriers, 0, "... what is sent, and what was there before");
      snprintf(want, sizeof want, "a - b: send of 44 bytes is wrong on rank %d: index 4: got ", members[coord]);
      ok(rc == 0 || !strncmp(err.text, want, strlen(want)), "... %s", err.text);
      done();
    }
  wrong_n = 0;
  for (to_fail = 1; to_fail <= 6; to_fail++) {
    struct tc_bench_row r;
    struct tc_err err;
    int64_t ns;
    const int fails = to_fail;
    to_fail = 0;
    row(TC_BENCH_BROADCAST, 0, 4, 2, false, &r, &err);
    runs = n_made = waits = 0;
    to_fail = fails;
    is_int(tc_bench_pair(bench, 1, 44, "a - b", &ns, &err), to_fail == 5 ? 0 : TC_ENOCKPT, "a call of a pair fails: %d",
           to_fail);
    done();
  }
  to_fail = 0;
}

/* Three wrong elements are counted, the first is reported. */
static void test_several(void)
{
  struct tc_bench_row r;
  struct tc_err err;
  wrong_at = 10;
  wrong_n = 3;
  wrong_run = 1;
  is_int(row(TC_BENCH_BROADCAST, 0, 44, 1, false, &r, &err), TC_EUSER,
         "what a root has not to write");
  ok(strstr(err.text, "rank 4: index 10: got ") &&
         strstr(err.text, ", expected nothing; wrong elements of "
                          "this rank: 3"),
     "%s", err.text);
  is_int(message_bytes, (int64_t)strlen(err.text), "... rank 0 is sent all of it");
  is_int(r.count, 11, "... the row is filled in");
  done();
  wrong_n = 0;
}

static void one_more_call(void)
{
  give();
  if (runs == 2) counted.data[TC_REDUCE].calls++;
}
static void more_bytes(void)
{
  give();
  counted.data[TC_ALL_GATHER].bytes += 5;
}

static void test_counters(void)
{
  struct tc_bench_row r;
  struct tc_err err;
  void (*const fault[])(void) = { one_more_call, more_bytes };
  static const char *const want[] = {
    "all_gather of 44 bytes: the counter of reduce on rank 1 grew by 1 calls and 0 bytes, predicted were 0 "
    "and 0",
    "all_gather of 44 bytes: the counter of all_gather on rank 1 grew by 4 calls and 148 bytes, predicted "
    "were 4 and 128"
  };
  for (int i = 0; i < 2; i++) {
    row(TC_BENCH_ALL_GATHER, 1, 44, 2, false, &r, &err);
    runs = 0;
    ran = fault[i];
    is_int(tc_bench_run(bench, TC_BENCH_ALL_GATHER, 44, &r, &err), TC_EUSER, "a counter is wrong");
    is_str(err.text, want[i], "... which one");
    done();
  }
}

/* What other ranks found wrong, and what fails on the way. */
static void test_shared(void)
{
  struct tc_bench_row r;
  struct tc_err err;
  strcpy(heard, "rank1rank two");
  heard_bytes[1] = 5;
  heard_bytes[2] = 8;
  is_int(row(TC_BENCH_GATHER, 2, 44, 2, false, &r, &err), TC_EUSER,
         "another rank has a wrong result");
  is_str(err.text, "rank1", "... the lowest rank's sentence");
  is_int(message_bytes, 0, "... this rank has none to send");
  done();
  for (to_fail = 7; to_fail <= 8; to_fail++) {
    is_int(row(TC_BENCH_GATHER, 2, 44, 2, false, &r, &err), TC_ENOCKPT, "... which can't be sent");
    is_str(err.text, to_fail == 7 ? "fault 7" : "fault 8", "... why");
    done();
  }
  to_fail = 0;
  row(TC_BENCH_GATHER, 2, 44, 2, false, &r, &err);
  heard_bytes[1] = heard_bytes[2] = 0;
  struct tc_err found = { 0 };
  is_int(share_sentence(bench, &found, &err), TC_EUSER, "no rank knows what is wrong");
  is_str(err.text, "results are wrong, and so is the exchange that would identify the rank",
         "... says so");
  done();
  longer_ns = 7000;
  is_int(row(TC_BENCH_GATHER, 2, 44, 1, false, &r, &err), 0, "another rank is slower");
  near_f(r.time_us, 23, 1e-9, "... its time counts");
  near_f(r.median_us, 23, 1e-9, "... in the middle, too");
  longer_ns = 0;
  done();
  static const int ran_then[] = { 0, 0, 1, 2, 4, 2, 4 };
  for (to_fail = 1; to_fail <= 6; to_fail++) {
    char want[20];
    snprintf(want, sizeof want, "fault %d", to_fail);
    is_int(row(TC_BENCH_GATHER, 2, 44, 2, true, &r, &err), TC_ENOCKPT, "a call fails");
    is_str(err.text, want, "... which one");
    is_int(runs, ran_then[to_fail], "... after so many iterations");
    done();
  }
  to_fail = 0;
}

static void test_memory(void)
{
  struct tc_bench_row r;
  struct tc_err err;
  taken = n_allocs = 0;
  is_int(row(TC_BENCH_ALL_REDUCE, 0, 60, 1, true, &r, &err), 0, "memory elsewhere");
  is_int(taken, 2 * (15 + GUARD) * 4, "... two arrays");
  done();
  is_int(taken, 0, "... are given back");
  for (int left = 0; left < 2; left++) {
    allocs_left = left;
    n_allocs = 0;
    ok(tc_bench_new(&group, &world, members, 4, 60, 1, &there) == NULL, "no memory for %d of two",
       2 - left);
    ok(taken == 0 && n_allocs == left, "... none is kept");
  }
  allocs_left = 2;
  struct tc_bench *b = tc_bench_new(&group, &world, members, 4, 4, 1, &there);
  is_int(taken, 2 * (N + GUARD) * 4, "an element for each member at least");
  tc_bench_free(b);
  tc_bench_free(NULL);
}

static void rows_and_faults(void)
{
  struct tc_bench_row r;
  struct tc_err err;
  wrong_at = 10;
  wrong_n = 1;
  wrong_run = 1;
  for (to_fail = 0; to_fail <= 8; to_fail++) {
    row(TC_BENCH_BROADCAST, 0, 44, 1, to_fail % 2, &r, &err);
    done();
  }
  to_fail = wrong_n = 0;
}

int main(void)
{
  wrong_run = -1;
  test_values();
  test_calls();
  for (int op = 0; op < TC_BENCH_OPS; op++)
    for (int coord = 0; coord < N; coord++)
      if (op != TC_BENCH_SEND || coord < 2) test_wrong(op, coord);
  test_row();
  test_sizes();
  test_several();
  test_pair();
  test_counters();
  test_shared();
  test_memory();
  leaves_nothing("a row", rows_and_faults, 20);
  return done_testing();
}
