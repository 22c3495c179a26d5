/* comm_cases.h - what every communicator must do, whatever carries it: run by t_comm.c with
 * threads and by tests/mpi/m_comm.c with processes. */
#ifndef TC_COMM_CASES_H
#define TC_COMM_CASES_H

#include "tests/unit/comm/comm_check.h"

/* Under a sanitizer the largest count is of one piece; cc_large has many. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { CC_MOST = 200003 };
#else
enum { CC_MOST = 800003 };
#endif
static const int64_t cc_counts[] = { 0, 1, 2, 3, 5, 1023, 1024, 30011, CC_MOST };
static const int cc_dtypes[] = { TC_F32, TC_BF16, TC_F64, TC_I32 };
enum { CC_COUNTS = sizeof cc_counts / sizeof *cc_counts, CC_DTYPES = 4 };

static bool cc_reduces(int coll)
{
  return coll == TC_ALL_REDUCE || coll == TC_REDUCE_SCATTER || coll == TC_REDUCE;
}

/* Every count and type, in place and not, sum and max. */
static void cc_symmetric(struct cc_env *e)
{
  static const int colls[] = { TC_ALL_REDUCE, TC_REDUCE_SCATTER, TC_ALL_GATHER, TC_ALL_TO_ALL };
  struct tc_comm *c = cc_world(e, 0, "dp", 60);
  for (int i = 0; i < CC_COUNTS; i++)
    for (int t = 0; t < CC_DTYPES; t++)
      for (int j = 0; j < 4; j++)
        for (int v = 0; v < 4; v++) {
          struct cc_call k = cc_call(colls[j], cc_dtypes[t], cc_counts[i], e->world);
          k.in_place = v & 1;
          k.red = v >> 1;
          k.ctl = i == 1;
          if (k.in_place && k.coll == TC_ALL_TO_ALL) continue;
          if (k.red && !cc_reduces(k.coll)) continue;
          if (cc_counts[i] > CC_MANY && (t > 1 || k.red)) continue;
          cc_one(e, c, &k);
        }
  tc_comm_free(c);
}

static void cc_rooted(struct cc_env *e)
{
  static const int colls[] = { TC_BROADCAST, TC_REDUCE, TC_SCATTER, TC_GATHER };
  struct tc_comm *c = cc_world(e, 1, "dp", 60);
  for (int i = 0; i < CC_COUNTS; i++)
    for (int j = 0; j < 4; j++)
      for (int root = 0; root < e->world; root++) {
        if (cc_counts[i] > CC_MANY && root != 1) continue;
        struct cc_call k = cc_call(colls[j], cc_dtypes[(i + j) % CC_DTYPES], cc_counts[i],
                                   e->world);
        k.root = root;
        cc_one(e, c, &k);
        if (colls[j] != TC_REDUCE) continue;
        k.in_place = true;
        k.red = TC_MAX_OP;
        cc_one(e, c, &k);
      }
  tc_comm_free(c);
}

/* By every other algorithm, on nodes. */
static void cc_algorithms(struct cc_env *e)
{
  struct tc_comm *on[] = { cc_nodes(e, 1, false), cc_nodes(e, 12, true) };
  for (int i = 0; i < 2 * CC_COUNTS; i++)
    for (int a = TC_ALGORITHM_STAR + 1; a < TC_ALGORITHMS; a++)
      for (int coll = TC_FIRST_COLL; coll < TC_BARRIER; coll++) {
        struct tc_comm *c = on[i % 2];
        struct cc_call k = cc_call(coll, cc_dtypes[i / 2 % CC_DTYPES], cc_counts[i / 2], e->world);
        k.algorithm = a;
        if (!tc_algorithm_suits(a, coll, tc_comm_members(c))) continue;
        for (k.root = 0; k.root < (cc_counts[i / 2] > CC_MANY ? 1 : e->world); k.root++) {
          k.in_place = k.root % 2 && coll != TC_BROADCAST;
          cc_one(e, c, &k);
        }
      }
  for (int i = 0; i < 2; i++) tc_comm_free(on[i]);
}

/* Several parts of uneven sizes in one call; blocks of whole rows (3 a row), where the last
 * members may have little or nothing; the last one more than a block. */
static void cc_parts(struct cc_env *e)
{
  static const int colls[] = { TC_ALL_REDUCE, TC_REDUCE_SCATTER, TC_ALL_GATHER, TC_BROADCAST,
                               TC_REDUCE, TC_SCATTER, TC_GATHER };
  struct tc_comm *c = cc_world(e, 2, "dp", 60), *on = cc_nodes(e, 13, true);
  for (int j = 0; j < 7; j++)
    for (int v = 0; v < 2; v++) {
      struct cc_call k = { .coll = colls[j], .algorithm = tc_algorithm_direct(colls[j]), .dtype = v ? TC_BF16 : TC_F32, .n_parts = 4,
                           .count = { 3, 1024 * 3, 0, 50 },
                           .root = e->world - 1, .in_place = v && colls[j] < TC_BROADCAST };
      for (int p = 0; p < 4; p++) k.block[p] = tc_ceil_div(k.count[p] / 3, e->world) * 3;
      cc_one(e, c, &k);
      k.algorithm = TC_ALGORITHM_NODES;          /* where it does that */
      cc_one(e, on, &k);
    }
  tc_comm_free(c);
  tc_comm_free(on);
}

/* More pieces than slots and requests, and a call after it in the same memory. */
static void cc_large(struct cc_env *e)
{
  static const int colls[] = { TC_ALL_REDUCE, TC_REDUCE_SCATTER, TC_ALL_GATHER, TC_BROADCAST,
                               TC_REDUCE };
  struct tc_comm *c = cc_world(e, 3, "dp", 60), *on = cc_nodes(e, 14, false);
  int64_t count = e->world == 2 ? 2200001 : 900001;  /* 9 pieces a block; 3 or 2 */
  for (int j = 0; j < 5; j++) {
    struct cc_call k = cc_call(colls[j], TC_F64, count, e->world);
    k.in_place = colls[j] == TC_ALL_REDUCE || colls[j] == TC_REDUCE_SCATTER;
    cc_one(e, c, &k);
    k.algorithm = colls[j] == TC_BROADCAST ? TC_ALGORITHM_CHAIN : TC_ALGORITHM_NODES;
    cc_one(e, on, &k);
    k = cc_call(colls[j], TC_I32, 7, e->world);
    cc_one(e, c, &k);
  }
  tc_comm_free(c);
  tc_comm_free(on);
}

static float cc_random(int rank, int64_t i, bool half)
{
  const float v = tc_normal(7, (uint32_t)rank, 0, (uint64_t)i);
  return half ? tc_bf16_to_f32(tc_f32_to_bf16(v)) : v;
}

/* The sum of the i-th values of members from .. end-1, or of every second one, in their order. */
static float cc_sum(int64_t i, bool half, int from, int end, int step)
{
  float sum = 0;
  for (int r = from; r < end; r += step) sum = r == from ? cc_random(r, i, half) : sum + cc_random(r, i, half);
  return sum;
}

/* By a binomial tree: what member n has added from those that hang on it. */
static float cc_tree_sum(int64_t i, bool half, int n, int world)
{
  float sum = cc_random(n, i, half);
  for (int far = 1; n + far < world && !(n & far); far *= 2) sum += cc_tree_sum(i, half, n + far, world);
  return sum;
}

/* By halving: what member c has of the sum for `to` after the round in which it gave to the one `far` after it. */
static float cc_half_sum(int64_t i, bool half, int c, int to, int far, int world)
{
  if (far >= world) return cc_random(c, i, half);
  const float before = cc_half_sum(i, half, c, to, 2 * far, world);
  if ((to - c + world) % world >= TC_MIN(far, world - far)) return before;
  const float other = cc_half_sum(i, half, (c - far + world) % world, to, 2 * far, world);
  return before + other;                         /* two terms, whose order does not matter */
}

enum { CC_BY_COORDINATES, CC_BY_NODES, CC_BY_TURNS, CC_BY_TREE, CC_BY_HALVING, CC_ORDERS };

static float cc_ordered(int order, int64_t i, int64_t block, bool half, int w)
{
  switch (order) {
  case CC_BY_NODES: return cc_sum(i, half, 0, (w + 1) / 2, 1) + cc_sum(i, half, (w + 1) / 2, w, 1);
  case CC_BY_TURNS: return cc_sum(i, half, 0, w, 2) + cc_sum(i, half, 1, w, 2);
  case CC_BY_TREE: return cc_tree_sum(i, half, 0, w);
  case CC_BY_HALVING: {
    const int owner = (int)TC_MIN(i / block, w - 1);
    return cc_half_sum(i, half, owner, owner, 1, w);
  }
  default: return cc_sum(i, half, 0, w, 1);
  }
}

/* Random numbers: every copy has the bits of the sum in fp32 in the order of coordinates, or that of its algorithm, rounded
 * once. */
static void cc_order(struct cc_env *e)
{
  enum { N = 2003 };
  static const int algorithm[CC_ORDERS] = { TC_ALGORITHM_EXCHANGE, TC_ALGORITHM_NODES, TC_ALGORITHM_NODES, TC_ALGORITHM_SUMTREE,
                                            TC_ALGORITHM_HALVING };
  struct tc_comm *of[CC_ORDERS] = { cc_world(e, 4, "dp", 60), cc_nodes(e, 15, false), cc_nodes(e, 16, true) };
  of[CC_BY_TREE] = of[CC_BY_HALVING] = of[CC_BY_NODES];
  for (int how = 0; how < 2 * CC_ORDERS; how++) {
    const bool half = how % 2;
    const int order = how / 2;
    if (!tc_algorithm_suits(algorithm[order], TC_ALL_REDUCE, tc_comm_members(of[order]))) continue;
    float *x = tc_malloc(N * sizeof *x);
    uint16_t *h = tc_malloc(N * sizeof *h);
    struct tc_err err = { 0 };
    for (int i = 0; i < N; i++) x[i] = cc_random(e->rank, i, false), h[i] = tc_f32_to_bf16(x[i]);
    struct tc_part p = { half ? (void *)h : x, half ? (void *)h : x, N,
                         tc_ceil_div(N, e->world) };
    struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .algorithm = algorithm[order], .dtype = half ? TC_BF16 : TC_F32,
                              .n_parts = 1, .parts = &p };
    cc_check(e, tc_comm_run(of[order], &a, &err) == 0, "%s", err.text);
    int wrong = 0, tells = 0;
    for (int i = 0; i < N; i++) {
      const float want = cc_ordered(order, i, p.block, half, e->world);
      const uint16_t once = tc_f32_to_bf16(want);
      wrong += half ? memcmp(&h[i], &once, 2) != 0 : memcmp(&x[i], &want, 4) != 0;
      tells += want != (order ? cc_sum(i, half, 0, e->world, 1) : cc_sum(i, half, 1, e->world, 1) + cc_random(0, i, half));
    }
    cc_check(e, wrong == 0, "%d of %d sums differ from the one in order %d", wrong, N, order);
    cc_check(e, half || e->world < 4 || tells > 100, "the numbers don't tell order %d from another", order);
    free(x);
    free(h);
  }
  for (int i = 0; i < 3; i++) tc_comm_free(of[i]);
}

/* Seven ranks on nodes of 4, 1 and 2, with several pieces of each of two arrays, as they are in fp32 and in place in bf16. */
__attribute__((unused))
static void cc_ragged(struct cc_env *e)
{
  static const int colls[] = { TC_ALL_REDUCE, TC_REDUCE_SCATTER, TC_ALL_GATHER };
  static const int32_t members[] = { 0, 1, 2, 3, 4, 5, 6 }, node[] = { 3, 3, 3, 3, 0, 1, 1 };
  const struct tc_comm_opts o = { .name = "dp", .deadline_s = 60, .rank_names = e->who, .node = node, .partial_sums = true };
  struct tc_comm *c = e->make(e, 17, members, 7, &o);
  for (int v = 0; v < 6; v++) {
    struct cc_call k = { .coll = colls[v % 3], .algorithm = TC_ALGORITHM_NODES, .dtype = v < 3 ? TC_F32 : TC_BF16, .n_parts = 3,
                         .count = { 1200001, 3, 900001 }, .in_place = v >= 3 };
    for (int p = 0; p < 3; p++) k.block[p] = tc_ceil_div(k.count[p], 7);
    cc_one(e, c, &k);
  }
  tc_comm_free(c);
}

/* bf16 terms are added in fp32 and rounded once: 256 + 1 + 1 would be 256 otherwise. NaN and
 * infinity come through, also through a maximum. */
static void cc_special(struct cc_env *e)
{
  struct tc_comm *c = cc_world(e, 5, "dp", 60);
  struct tc_err err = { 0 };
  uint16_t h = tc_f32_to_bf16(e->rank == 0 ? 256.0f : 1.0f);
  float inf = 1e30f * 1e30f;
  float x[3] = { e->rank == e->world - 1 ? inf - inf : 1, e->rank == 0 ? inf - inf : 1,
                 e->rank == 0 ? inf : 1 };
  struct tc_part ph = { &h, &h, 1, 1 }, px = { x, x, 3, 1 };
  struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .dtype = TC_BF16, .n_parts = 1,
                            .parts = &ph };
  cc_check(e, tc_comm_run(c, &a, &err) == 0, "%s", err.text);
  float want = tc_bf16_to_f32(tc_f32_to_bf16(256.0f + (float)(e->world - 1)));
  cc_check(e, tc_bf16_to_f32(h) == want, "bf16 sum is %g, not %g", (double)tc_bf16_to_f32(h),
           (double)want);
  a = (struct tc_coll_args) { .coll = TC_ALL_REDUCE, .dtype = TC_F32, .red = TC_MAX_OP,
                              .n_parts = 1, .parts = &px };
  cc_check(e, tc_comm_run(c, &a, &err) == 0, "%s", err.text);
  cc_check(e, x[0] != x[0] && x[1] != x[1] && x[2] == inf, "maximum is %g %g %g",
           (double)x[0], (double)x[1], (double)x[2]);
  tc_comm_free(c);
}

/* Many calls queued before the first wait; only some tickets are waited for. */
static void cc_tickets(struct cc_env *e)
{
  enum { N = 120 };
  static const int colls[] = { TC_ALL_REDUCE, TC_BROADCAST, TC_ALL_GATHER, TC_REDUCE_SCATTER,
                               TC_BARRIER, TC_REDUCE, TC_ALL_REDUCE, TC_GATHER };
  struct tc_comm *c = cc_world(e, 6, "dp", 60);
  struct cc_run *u = tc_calloc(N, sizeof *u);
  struct cc_call *k = tc_calloc(N, sizeof *k);
  struct tc_err err = { 0 };
  int64_t bytes = 0, got = 0, calls = 0;
  for (int i = 0; i < N; i++) {
    k[i] = cc_call(colls[i % 8], cc_dtypes[i % 4], 1 + i * 37 % 5000, e->world);
    k[i].root = i % e->world;
    cc_prepare(&u[i], &k[i], e->rank, e->world);
    struct tc_coll_args a = cc_args(&u[i]);
    cc_check(e, tc_comm_start(c, &a, &u[i].ticket, &err) == 0, "%s", err.text);
    cc_check(e, u[i].ticket > (i ? u[i - 1].ticket : 0), "tickets don't increase");
    if (k[i].coll != TC_BARRIER) bytes += cc_bytes(&k[i], e->rank, e->world);
    if (i == N / 2) tc_sleep_ns(1000000 * (e->rank + 1));
  }
  int half;
  while ((half = tc_comm_test(c, u[N / 2].ticket, &err)) == 0) tc_sleep_ns(100000);
  cc_check(e, half == 1, "%s", err.text);
  cc_check(e, tc_comm_wait(c, u[N - 1].ticket, &err) == 0, "%s", err.text);
  cc_check(e, tc_comm_wait(c, u[3].ticket, &err) == 0 && tc_comm_wait(c, 0, &err) == 0 &&
           tc_comm_test(c, u[5].ticket, &err) == 1, "an old ticket is not done");
  for (int i = 0; i < N; i++) {
    if (k[i].coll == TC_BARRIER) k[i].n_parts = 0;
    cc_verify(e, &u[i], e->rank, e->world);
    if (k[i].coll == TC_BARRIER) free(u[i].src_mem[0]), free(u[i].dst_mem[0]);
  }
  for (int i = TC_FIRST_COLL; i < TC_COLLS; i++) {
    got += tc_comm_counters(c)->data[i].bytes;
    calls += tc_comm_counters(c)->data[i].calls;
  }
  cc_check(e, got == bytes && calls == N, "%lld calls, %lld bytes; %lld expected",
           (long long)calls, (long long)got, (long long)bytes);
  free(u);
  free(k);
  tc_comm_free(c);
}

/* A value goes round; large ones too, which are not buffered. Rank 0 sends first. */
static void cc_ring(struct cc_env *e)
{
  static const int64_t counts[] = { 0, 1, 1000, 1200001 };
  struct tc_comm *c = cc_world(e, 7, "pp", 60);
  int n = e->world, right = (e->rank + 1) % n, left = (e->rank + n - 1) % n;
  for (int i = 0; i < 4; i++)
    for (int step = 0; step < 2; step++) {
      struct cc_call k = cc_call((step == 0) == (e->rank == 0) ? TC_SEND : TC_RECV, TC_F32,
                                 counts[i], n);
      k.root = k.coll == TC_SEND ? right : left;
      if (k.coll == TC_SEND) {    /* cc_want of a receiver: the values of `root` */
        cc_one(e, c, &k);
      } else {
        struct cc_run u;
        struct tc_err err = { 0 };
        cc_prepare(&u, &k, e->rank, n);
        struct tc_coll_args a = cc_args(&u);
        cc_check(e, tc_comm_run(c, &a, &err) == 0, "%s", err.text);
        cc_verify(e, &u, e->rank, n);
      }
    }
  cc_check(e, tc_comm_counters(c)->data[TC_RECV].calls == 4 &&
           tc_comm_counters(c)->data[TC_RECV].bytes == 0, "receives miscounted");
  tc_comm_free(c);
}

/* Two communicators with calls in flight at once, waited for in the other order: rows and
 * columns of a square of four, else the same members twice. */
static void cc_two(struct cc_env *e)
{
  enum { N = 12 };
  struct tc_comm_opts o = { .name = "dp", .deadline_s = 60 }, o2 = { .name = "tp", .deadline_s = 60 };
  int32_t a[8], b[8];
  int na = 0, nb = 0;
  for (int r = 0; r < e->world; r++) {
    bool square = e->world == 4;
    if (!square || r / 2 == e->rank / 2) a[na++] = r;
    if (!square || r % 2 == e->rank % 2) b[nb++] = r;
  }
  struct tc_comm *c[2] = { e->make(e, 8, a, na, &o), e->make(e, 9, b, nb, &o2) };
  struct cc_run u[2][N];
  struct cc_call k[2][N];
  struct tc_err err = { 0 };
  for (int i = 0; i < N; i++)
    for (int s = 0; s < 2; s++) {
      int w = (s + e->rank) % 2;  /* ranks issue in different orders */
      k[w][i] = cc_call(w ? TC_ALL_REDUCE : TC_REDUCE_SCATTER, w ? TC_F32 : TC_I32,
                        20000 * (int64_t)(i + 1) + w, tc_comm_size(c[w]));
      cc_prepare(&u[w][i], &k[w][i], tc_comm_coord(c[w]), tc_comm_size(c[w]));
      struct tc_coll_args args = cc_args(&u[w][i]);
      cc_check(e, tc_comm_start(c[w], &args, &u[w][i].ticket, &err) == 0, "%s", err.text);
    }
  for (int i = N - 1; i >= 0; i--)
    for (int w = 0; w < 2; w++) {
      cc_check(e, tc_comm_wait(c[w], u[w][i].ticket, &err) == 0, "%s", err.text);
      cc_verify(e, &u[w][i], tc_comm_coord(c[w]), tc_comm_size(c[w]));
    }
  tc_comm_free(c[0]);
  tc_comm_free(c[1]);
}

/* All ranks get the status and sentence of the first rank that failed, with its name if names are
 * given and it is not rank 0. */
static void cc_agree(struct cc_env *e)
{
  struct tc_comm *c = cc_world(e, 11, "world", 60);
  int n = e->world;
  for (int first = 0; first <= n; first++)       /* n: none fails */
    for (int named = 0; named < 2; named++) {
      struct tc_err err = { 0 };
      char want[200];
      int rc = e->rank < first ? e->rank : tc_fail(&err, -2 - e->rank % 3, "rank %d is broken",
                                                   e->rank);
      rc = tc_comm_agree(c, named ? (char *const *)(uintptr_t)e->who : NULL, rc, &err);
      cc_check(e, rc == (first == n ? n == 1 ? e->rank : 0 : -2 - first % 3),
               "status %d from rank %d", rc, first);
      snprintf(want, sizeof want,
               named && first && first < n ? "%s: rank %d is broken" : "%srank %d is broken",
               named && first && first < n ? e->who[first] : "", first);
      cc_check(e, first == n ? !*err.text : strcmp(err.text, want) == 0, "not '%s': %s", want,
               err.text);
      cc_check(e, first == n || err.status == rc, "the sentence's status is %d", err.status);
    }
  tc_comm_free(c);
}

/* The shorthands, counted apart. */
static void cc_control(struct cc_env *e)
{
  struct tc_comm *c = cc_world(e, 10, "world", 60);
  struct tc_err err = { 0 };
  int n = e->world, root = n - 1;
  const int64_t far = INT64_C(9007199254740993);     /* 2^53 + 1: no double */
  int64_t x[3] = { e->rank, -5 - e->rank, e->rank == n / 2 ? far : far - 1 };
  cc_check(e, tc_comm_max_i64(c, x, 3, &err) == 0, "%s", err.text);
  cc_check(e, x[0] == n - 1 && x[1] == -5 && x[2] == far, "maximum wrong");
  char mine[64], want[64];
  int64_t bytes[64];
  void *all = NULL;
  /* rank 1 has nothing to say */
  int len = e->rank == 1 ? 0 : snprintf(mine, sizeof mine, "%*d;", 1 + e->rank * 3, e->rank);
  cc_check(e, tc_comm_bytes_gather(c, root, mine, len, &all, bytes, &err) == 0, "%s", err.text);
  const char *at = all;
  for (int i = 0; i < n; i++) {
    int w = i == 1 ? 0 : snprintf(want, sizeof want, "%*d;", 1 + i * 3, i);
    cc_check(e, bytes[i] == w, "length %d is %lld, not %d", i, (long long)bytes[i], w);
    if (e->rank == root) {
      cc_check(e, memcmp(at, want, (size_t)w) == 0, "bytes of %d wrong", i);
      at += w;
    }
  }
  cc_check(e, (all != NULL) == (e->rank == root), "who gets the bytes");
  free(all);
  char text[] = "a line for everyone";
  void *buf = e->rank == root ? text : NULL;
  int64_t size = e->rank == root ? (int64_t)sizeof text : -1;
  cc_check(e, tc_comm_bytes_bcast(c, root, &buf, &size, &err) == 0, "%s", err.text);
  cc_check(e, size == (int64_t)sizeof text && memcmp(buf, text, sizeof text) == 0,
           "broadcast bytes wrong");
  if (e->rank != root) free(buf);
  for (int i = TC_FIRST_COLL; i < TC_COLLS; i++)
    cc_check(e, tc_comm_counters(c)->data[i].calls == 0, "control counted as data");
  cc_check(e, tc_comm_counters(c)->ctl[TC_BROADCAST].bytes ==
           (e->rank == root ? (n - 1) * (8 + (int64_t)sizeof text) : 0), "control bytes");
  cc_check(e, tc_comm_counters(c)->ctl[TC_BROADCAST].messages == (e->rank == root ? 2 * (n - 1) : 0), "control messages");
  cc_check(e, tc_comm_counters(c)->ctl_peers == n - 1 && tc_comm_counters(c)->peers == n - 1, "each has met all others");
  tc_comm_free(c);
}

static void cc_meet(struct cc_env *e, struct tc_comm *c)
{
  const struct tc_coll_args a = { .coll = TC_BARRIER };
  struct tc_err err = { 0 };
  cc_check(e, tc_comm_run(c, &a, &err) == 0, "%s", err.text);
}

/* The ranks, as bits, that a sentence names as late for a call of cc_late; 0: it is another sentence. */
static unsigned cc_named(const struct cc_env *e, const char *text, const char *coll, int deadline_s)
{
  char begin[100], end[100];
  unsigned named = 0;
  snprintf(begin, sizeof begin, "%s 'grad layer 3' on axis dp: no answer from ", coll);
  snprintf(end, sizeof end, " after %d s (deadline run.deadline)", deadline_s);
  if (strncmp(text, begin, strlen(begin)) != 0) return 0;
  text += strlen(begin);
  for (int r = 0; r < e->world; r++) {           /* in the order of ranks, with commas between */
    const size_t n = strlen(e->who[r]), comma = named ? 2 : 0;
    if (strncmp(text, ", ", comma) != 0 || strncmp(text + comma, e->who[r], n) != 0) continue;
    text += comma + n;
    named |= 1u << r;
  }
  return strncmp(text, end, strlen(end)) == 0 ? named : 0;
}

/* The last rank never comes: the others say so, by name, in time, and again; on four
 * communicators at once. They begin together, since whose deadline passes first leaves the others; the last
 * rank stays until all have said it. On a busy machine another rank may begin later than the deadline allows, and is
 * named with reason: then all run again, with a longer one. */
static void cc_late(struct cc_env *e)
{
  enum { N = 4, MANY = 900000 };
  static const int deadlines[CC_RUNS] = { 2, 10, 30 };
  const int deadline_s = deadlines[e->run], id = 210 + 10 * e->run;
  static const struct { int coll; int64_t count; } what[N] = {
    { TC_ALL_REDUCE, 1 }, { TC_ALL_REDUCE, MANY }, { TC_BROADCAST, 10 }, { TC_BARRIER, 0 } };
  struct tc_comm *c[N];
  int last = e->world - 1;
  for (int i = 0; i < N; i++) c[i] = cc_world(e, id + i, "dp", deadline_s);
  struct tc_comm *all = cc_world(e, id + N, "world", 60 + deadline_s);
  float *buf = tc_calloc(MANY, sizeof *buf);
  tc_ticket t[N] = { 0 };
  struct tc_err err = { 0 }, again = { 0 };
  cc_meet(e, all);
  int64_t start_ns = tc_now_ns();
  for (int k = 0; e->rank != last && k < 2 * N; k++) {
    int i = k % N, coll = what[i].coll;
    struct tc_part p = { buf, buf, what[i].count, tc_ceil_div(what[i].count, e->world) };
    struct tc_coll_args a = { .coll = coll, .algorithm = tc_algorithm_direct(coll), .dtype = TC_F32, .n_parts = 1, .parts = &p,
                              .root = last, .what = "grad layer 3" };
    if (k < N) {
      cc_check(e, tc_comm_start(c[i], &a, &t[i], &err) == 0, "start fails: %s", err.text);
      continue;
    }
    int rc = tc_comm_wait(c[i], t[i], &err);
    double s = (double)(tc_now_ns() - start_ns) * 1e-9;
    const unsigned named = cc_named(e, err.text, tc_coll_name[coll], deadline_s);
    const bool other = named && named != 1u << last && e->repeats && e->run + 1 < CC_RUNS;
    if (other) e->again = true, printf("# rank %d, once more: %s\n", e->rank, err.text);
    cc_check(e, rc == TC_EPEER && err.status == TC_EPEER && (named == 1u << last || other), "status %d: %s", rc, err.text);
    cc_check(e, s > deadline_s - 0.1 && s < deadline_s + 58, "the deadline of %d s came after %g s", deadline_s, s);
    rc = tc_comm_start(c[i], &a, &t[i], &again);
    cc_check(e, rc == TC_EPEER && strcmp(err.text, again.text) == 0, "not alike: %s", again.text);
    cc_check(e, tc_comm_counters(c[i])->data[coll].calls == 0, "a failed call is counted");
  }
  cc_meet(e, all);
  for (int i = 0; i < N; i++) tc_comm_free(c[i]);
  tc_comm_free(all);
  free(buf);
}

/* Calls that never ran are dropped, at once. */
static void cc_drop(struct cc_env *e)
{
  struct tc_comm *c = cc_world(e, 204, "dp", 60);
  float x = 1;
  struct tc_part p = { &x, &x, 1, 1 };
  struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .dtype = TC_F32, .n_parts = 1, .parts = &p };
  int64_t start_ns = tc_now_ns();
  tc_ticket t;
  for (int i = 0; e->rank == 0 && i < 3; i++) tc_comm_start(c, &a, &t, NULL);
  tc_sleep_ns(20000000);
  tc_comm_free(c);
  cc_check(e, tc_now_ns() - start_ns < INT64_C(30000000000), "free took too long");
}

static const struct cc_case {
  const char *name;
  void (*run)(struct cc_env *e);
  int min_world;
} cc_cases[] = {
  { "all_reduce, reduce_scatter, all_gather, all_to_all", cc_symmetric, 1 },
  { "broadcast, reduce, scatter, gather", cc_rooted, 1 },
  { "other algorithms", cc_algorithms, 1 },
  { "several parts in a call", cc_parts, 1 },
  { "many pieces", cc_large, 1 },
  { "sums in the order of their algorithm, all copies alike", cc_order, 1 },
  { "rounded once; NaN and infinity", cc_special, 1 },
  { "many tickets in flight", cc_tickets, 1 },
  { "send and receive round a ring", cc_ring, 2 },
  { "two communicators at once", cc_two, 1 },
  { "control data", cc_control, 1 },
  { "one status and sentence for all ranks", cc_agree, 1 },
  { "a deadline names the late rank", cc_late, 2 },
  { "free drops what is queued", cc_drop, 1 },
};
enum { CC_CASES = sizeof cc_cases / sizeof *cc_cases };

#endif
