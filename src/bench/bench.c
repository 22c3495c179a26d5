/* bench.c - measures one collective at one size.
 *
 * For each row or pair: fill the input, poison the output, warm up, check; poison, then the timed
 * iterations; check results and counters again. A row's iterations each follow a barrier of the
 * world, so that all groups of an axis work at the same time as they do in training. Errors of any
 * rank are reported to all, so that all continue or stop together. */
#include "src/bench/bench.h"
#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

enum {
  WARM_UP = TC_BENCH_WARM_UP,
  GUARD = 64,                     /* elements after the end that no call may change */
  ROOT = 0,
  SPREAD = 127                    /* a prime: the number of different values of ranks */
};
static const uint32_t poison_bits = 0xffffffffu;          /* a NaN */

const char *const tc_bench_op_name[TC_BENCH_OPS] = {
  "all_reduce", "reduce+broadcast", "reduce_scatter", "all_gather", "broadcast", "one_by_one",
  "reduce", "scatter", "gather", "all_to_all", "send_recv", "send"
};

/* The contents of the output, and the members that have one. */
enum result {
  SUM,                            /* the sum of all inputs */
  MY_SUM,                         /* this member's block of it */
  BLOCKS,                         /* each member's block, from its packed input */
  COPY,                           /* the root's input */
  MY_COPY,                        /* this member's block of it */
  EXCHANGE,                       /* from each member the block for this one */
  NEIGHBOUR                       /* the previous member's input */
};
enum where { ALL, AT_ROOT, NOT_ROOT };
/* busbw = algbw * factor, algbw = S / t with S the bytes of the whole array. From nccl-tests,
 * doc/PERFORMANCE.md; scatter, gather and send/receive, which it omits, from their
 * GetBw functions (src/scatter.cu, gather.cu, sendrecv.cu). n: members. */
enum factor { ONE, SHARE, TWICE };             /* 1, (n - 1) / n, 2 (n - 1) / n */

static const struct { int8_t coll, result, where, factor; } ops[TC_BENCH_OPS] = {
  [TC_BENCH_ALL_REDUCE]       = { TC_ALL_REDUCE,     SUM,       ALL,      TWICE },
  [TC_BENCH_REDUCE_BROADCAST] = { -1,                SUM,       ALL,      TWICE },
  [TC_BENCH_REDUCE_SCATTER]   = { TC_REDUCE_SCATTER, MY_SUM,    ALL,      SHARE },
  [TC_BENCH_ALL_GATHER]       = { TC_ALL_GATHER,     BLOCKS,    ALL,      SHARE },
  [TC_BENCH_BROADCAST]        = { TC_BROADCAST,      COPY,      NOT_ROOT, ONE },
  [TC_BENCH_ONE_BY_ONE]       = { -1,                COPY,      NOT_ROOT, ONE },
  [TC_BENCH_REDUCE]           = { TC_REDUCE,         SUM,       AT_ROOT,  ONE },
  [TC_BENCH_SCATTER]          = { TC_SCATTER,        MY_COPY,   ALL,      SHARE },
  [TC_BENCH_GATHER]           = { TC_GATHER,         BLOCKS,    AT_ROOT,  SHARE },
  [TC_BENCH_ALL_TO_ALL]       = { TC_ALL_TO_ALL,     EXCHANGE,  ALL,      SHARE },
  [TC_BENCH_SEND_RECV]        = { -1,                NEIGHBOUR,      ALL,      ONE },
  [TC_BENCH_SEND]             = { -1,                NEIGHBOUR,      ALL,      ONE },
};

struct tc_bench {
  struct tc_comm *group, *world;
  const int32_t *members;
  int rank, coord, size, iters, max_iters;
  int64_t cap;                    /* elements of src and dst, without the guard */
  float *src, *dst;
  struct tc_device *device;       /* NULL: the host */
  float *src_there, *dst_there;   /* the buffers of the calls: src and dst, or in its memory */
  int64_t *ns;                    /* [max_iters + 1] and whether there was an error */
  uint32_t salt;                  /* of the row: data of an earlier row is an error */
  float ranks_sum;                /* of the members' rank_part */

  /* the calls of an iteration */
  struct tc_coll_args *call;      /* [size] */
  struct tc_part *part;           /* one per call, like the tickets */
  tc_ticket *ticket;
  int n_calls;
  int op, algorithm;
  int from;                       /* coordinate, for NEIGHBOUR; -1: nothing is received */
  int64_t count, block;
};

static int64_t bytes_of(const struct tc_bench *b)
{
  return (b->cap + GUARD) * (int64_t)sizeof *b->src;
}

struct tc_bench *tc_bench_new(struct tc_comm *group, struct tc_comm *world,
                              const int32_t *members, int rank, int64_t max_bytes, int iters,
                              struct tc_device *device)
{
  struct tc_bench *b = tc_calloc(1, sizeof *b);
  *b = (struct tc_bench){ .group = group, .world = world, .members = members, .rank = rank,
                          .coord = tc_comm_coord(group), .size = tc_comm_size(group), .iters = iters,
                          .max_iters = iters, .device = device };
  TC_ASSERT(b->size > 1 && b->size <= 65536 && iters > 0);    /* sums below 2^24 are exact */
  b->cap = TC_MAX(max_bytes / (int64_t)sizeof *b->src, b->size);
  b->src = tc_malloc((size_t)(b->cap + GUARD) * sizeof *b->src);
  b->dst = tc_malloc((size_t)(b->cap + GUARD) * sizeof *b->dst);
  b->src_there = device ? device->ops->alloc(device, bytes_of(b)) : b->src;
  b->dst_there = device ? device->ops->alloc(device, bytes_of(b)) : b->dst;
  b->ns = tc_calloc((size_t)iters + 1, sizeof *b->ns);
  const size_t calls = (size_t)b->size;          /* one or two for each other member */
  b->call = tc_calloc(calls, sizeof *b->call);
  b->part = tc_calloc(calls, sizeof *b->part);
  b->ticket = tc_calloc(calls, sizeof *b->ticket);
  if (b->src_there && b->dst_there) return b;
  tc_bench_free(b);
  return NULL;
}

void tc_bench_free(struct tc_bench *b)
{
  if (!b) return;
  struct tc_device *d = b->device;
  if (d && b->src_there) d->ops->free(d, b->src_there, bytes_of(b));
  if (d && b->dst_there) d->ops->free(d, b->dst_there, bytes_of(b));
  TC_FREE(b->src, b->dst, b->ns, b->call, b->part, b->ticket, b);
}

static bool can(int algorithm, int coll, const struct tc_members *m)
{
  return m ? tc_algorithm_suits(algorithm, coll, m) : tc_algorithm_does(algorithm, coll);
}

bool tc_bench_can(int op, int algorithm, const struct tc_members *m)
{
  if (op == TC_BENCH_REDUCE_BROADCAST) return can(algorithm, TC_REDUCE, m) || can(algorithm, TC_BROADCAST, m);
  return can(algorithm, ops[op].coll < 0 ? TC_SEND : ops[op].coll, m);
}

void tc_bench_algorithm(struct tc_bench *b, int algorithm) { b->algorithm = algorithm; }

void tc_bench_iters(struct tc_bench *b, int iters) { b->iters = TC_MAX(1, TC_MIN(iters, b->max_iters)); }

/* ---- values -------------------------------------------------------------------------- */

/* The part of element i that all ranks share: 0 .. 127. (The mixing is that of lowbias32,
 * C. Wellons, "Prospecting for hash functions", 2018.) */
static inline float index_part(uint32_t salt, int64_t i)
{
  uint32_t x = (uint32_t)i + salt;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return (float)(int32_t)(x >> 25);
}

/* Depends on the world rank, so that another group's data is an error, too: 0 .. 126. */
static float rank_part(int rank)
{
  return (float)(rank * INT64_C(37) % SPREAD);
}

static void fill(struct tc_bench *b)
{
  const uint32_t salt = b->salt;
  const float mine = rank_part(b->rank);
  b->ranks_sum = 0;
  for (int i = 0; i < b->size; i++) b->ranks_sum += rank_part(b->members[i]);
  for (int64_t i = 0; i < b->count; i++) b->src[i] = index_part(salt, i) + mine;
  if (b->device) b->device->ops->copy(b->device, b->src_there, b->src, b->count * (int64_t)sizeof *b->src);
}

static void poison(struct tc_bench *b)
{
  const int64_t bytes = (b->count + GUARD) * (int64_t)sizeof *b->dst;
  if (b->device) tc_device_fill(b->device, b->dst_there, 0xff, bytes);
  else memset(b->dst, 0xff, (size_t)bytes);
}

/* ---- checking ------------------------------------------------------------------------ */

/* Errors in the output: the number of wrong elements, and the first. */
struct wrong {
  int64_t n, at;
  float got, expected;            /* poison: must be unchanged */
};

static uint32_t bits(float x)
{
  union { float f; uint32_t u; } y = { .f = x };
  return y.u;
}

static void note(struct wrong *w, int64_t at, float got, float expected)
{
  if (w->n++) return;
  w->at = at;
  w->got = got;
  w->expected = expected;
}

/* dst[first + i] = times * index_part(index + i) + plus, for n elements. */
static void check_range(const struct tc_bench *b, int64_t first, int64_t n, int64_t index,
                        float times, float plus, struct wrong *w)
{
  const uint32_t salt = b->salt;
  const float *got = b->dst + first;
  bool same = true;
  for (int64_t i = 0; i < n; i++)
    same &= bits(got[i]) == bits(times * index_part(salt, index + i) + plus);
  for (int64_t i = 0; i < n && !same; i++) {
    float expected = times * index_part(salt, index + i) + plus;
    if (bits(got[i]) != bits(expected)) note(w, first + i, got[i], expected);
  }
}

/* Member `from`'s elements [index, index + n). */
static void check_copy(const struct tc_bench *b, int64_t first, int64_t n, int from,
                       int64_t index, struct wrong *w)
{
  check_range(b, first, n, index, 1, rank_part(b->members[from]), w);
}

static int64_t block_start(const struct tc_bench *b, int i)
{
  return TC_MIN(b->count, b->block * i);
}

/* Checks every element of the output, and that nothing after it was written. */
static struct wrong check_output(const struct tc_bench *b)
{
  const int n = b->size, where = ops[b->op].where;
  const int64_t lo = block_start(b, b->coord), mine = block_start(b, b->coord + 1) - lo;
  int64_t end = b->count;
  struct wrong w = { 0 };
  if (where != ALL && (where == AT_ROOT) != (b->coord == ROOT)) {
    end = 0;
  } else {
    switch (ops[b->op].result) {
      case SUM: check_range(b, 0, end, 0, (float)n, b->ranks_sum, &w); break;
      case MY_SUM: check_range(b, 0, end = mine, lo, (float)n, b->ranks_sum, &w); break;
      case COPY: check_copy(b, 0, end, ROOT, 0, &w); break;
      case MY_COPY: check_copy(b, 0, end = mine, ROOT, lo, &w); break;
      case NEIGHBOUR:
        if (b->from < 0) end = 0;
        else check_copy(b, 0, end, b->from, 0, &w);
        break;
      case BLOCKS:
        for (int i = 0; i < n; i++)
          check_copy(b, block_start(b, i), block_start(b, i + 1) - block_start(b, i), i, 0, &w);
        break;
      case EXCHANGE:
        for (int i = 0; i < n; i++) check_copy(b, i * b->block, b->block, i, lo, &w);
        break;
      default: TC_ASSERT(false);
    }
  }
  for (int64_t i = end; i < b->count + GUARD; i++)
    if (bits(b->dst[i]) != poison_bits) {
      union { uint32_t u; float f; } p = { .u = poison_bits };
      note(&w, i, b->dst[i], p.f);
    }
  return w;
}

static const char *value_text(float x, char *text, size_t size)
{
  if (bits(x) == poison_bits) snprintf(text, size, "nothing");
  else snprintf(text, size, "%.9g", (double)x);
  return text;
}

/* Writes the error sentence; only the first one is kept. */
static void report_wrong(const struct tc_bench *b, const struct wrong *w, struct tc_err *found)
{
  char got[32], expected[32];
  if (w->n == 0 || found->status < 0) return;
  tc_fail(found, TC_EUSER, "%s of %lld bytes is wrong on rank %d: index %lld: got %s, expected %s; "
          "wrong elements of this rank: %lld", tc_bench_op_name[b->op],
          (long long)(b->count * (int64_t)sizeof *b->src), b->rank, (long long)w->at,
          value_text(w->got, got, sizeof got), value_text(w->expected, expected, sizeof expected),
          (long long)w->n);
}

/* Copies the output to the host, and checks it; the first error of all checks is kept. */
static void look(struct tc_bench *b, struct tc_err *found)
{
  const int64_t bytes = (b->count + GUARD) * (int64_t)sizeof *b->dst;
  if (b->device) b->device->ops->copy(b->device, b->dst, b->dst_there, bytes);
  const struct wrong w = check_output(b);
  report_wrong(b, &w, found);
}

/* ---- the calls of an iteration --------------------------------------------------------- */

static void add_call(struct tc_bench *b, int coll, int root, const float *src)
{
  const int i = b->n_calls++;
  b->part[i] = (struct tc_part){ src, b->dst_there, b->count, b->block };
  b->call[i] = (struct tc_coll_args){ .coll = coll, .dtype = TC_F32, .red = TC_SUM, .root = root,
                                      .algorithm = b->algorithm,
                                      .n_parts = 1, .parts = &b->part[i] };
  if (ops[b->op].coll < 0) b->call[i].what = tc_bench_op_name[b->op];
}

/* From each member to the next, in a ring as in nccl-tests. But a communicator is a serial
 * queue: half of the ranks send while the others receive, so it takes two transfer times, and
 * one more if their number is odd. */
static void add_ring(struct tc_bench *b)
{
  int next = (b->coord + 1) % b->size, previous = (b->coord + b->size - 1) % b->size;
  b->from = previous;
  for (int i = 0; i < 2; i++)
    if (i == b->coord % 2) add_call(b, TC_SEND, next, b->src_there);
    else add_call(b, TC_RECV, previous, b->src_there);
}

/* One way: each even coordinate to the next one. Of an odd number the last one has nothing to do. */
static void add_send(struct tc_bench *b)
{
  b->from = b->coord % 2 ? b->coord - 1 : -1;
  if (b->from >= 0) add_call(b, TC_RECV, b->from, b->src_there);
  else if (b->coord + 1 < b->size) add_call(b, TC_SEND, b->coord + 1, b->src_there);
}

static void make_calls(struct tc_bench *b, int op, int64_t bytes)
{
  int64_t n = TC_MAX(bytes / (int64_t)sizeof *b->src, 1);
  b->op = op;
  b->n_calls = 0;
  b->block = op == TC_BENCH_ALL_TO_ALL ? TC_MAX(n / b->size, 1) : tc_ceil_div(n, b->size);
  b->count = op == TC_BENCH_ALL_TO_ALL ? b->block * b->size : n;
  TC_ASSERT(b->count <= b->cap);
  if (op == TC_BENCH_SEND_RECV) {
    add_ring(b);
  } else if (op == TC_BENCH_SEND) {
    add_send(b);
  } else if (op == TC_BENCH_ONE_BY_ONE) {
    if (b->coord != ROOT) add_call(b, TC_RECV, ROOT, b->src_there);
    for (int i = 0; i < b->size && b->coord == ROOT; i++)
      if (i != ROOT) add_call(b, TC_SEND, i, b->src_there);
  } else if (op == TC_BENCH_REDUCE_BROADCAST) {
    add_call(b, TC_REDUCE, ROOT, b->src_there);
    add_call(b, TC_BROADCAST, ROOT, b->dst_there);
  } else {
    add_call(b, ops[op].coll, ROOT, b->src_there);
  }
}

static int run_calls(struct tc_bench *b, struct tc_err *err)
{
  b->call[0].soon = b->n_calls == 1;
  for (int i = 0; i < b->n_calls; i++)
    TC_TRY(tc_comm_start(b->group, &b->call[i], &b->ticket[i], err));
  for (int i = 0; i < b->n_calls; i++) TC_TRY(tc_comm_wait(b->group, b->ticket[i], err));
  if (b->device) b->device->ops->sync(b->device);
  return 0;
}

/* The calls and bytes that an iteration adds to this rank's counters, by collective. Returns all bytes. */
static int64_t predict(const struct tc_bench *b, struct tc_coll_count *n)
{
  int64_t all = 0;
  memset(n, 0, TC_COLLS * sizeof *n);
  for (int i = 0; i < b->n_calls; i++) {
    const struct tc_coll_args *a = &b->call[i];
    int64_t bytes = tc_coll_bytes(a, tc_comm_members(b->group));
    n[a->coll].calls++;
    n[a->coll].bytes += bytes;
    all += bytes;
  }
  return all;
}

static void check_counters(const struct tc_bench *b, const struct tc_comm_counters *before,
                           int runs, struct tc_err *found)
{
  struct tc_coll_count want[TC_COLLS];
  const struct tc_comm_counters *now = tc_comm_counters(b->group);
  predict(b, want);
  for (int i = 0; i < TC_COLLS && found->status == 0; i++) {
    int64_t calls = now->data[i].calls - before->data[i].calls;
    int64_t bytes = now->data[i].bytes - before->data[i].bytes;
    if (calls == runs * want[i].calls && bytes == runs * want[i].bytes) continue;
    tc_fail(found, TC_EUSER, "%s of %lld bytes: the counter of %s on rank %d grew by %lld calls "
            "and %lld bytes, predicted were %lld and %lld", tc_bench_op_name[b->op],
            (long long)(b->count * (int64_t)sizeof *b->src), tc_coll_name[i], b->rank,
            (long long)calls, (long long)bytes, (long long)(runs * want[i].calls),
            (long long)(runs * want[i].bytes));
  }
}

/* ---- iterations ---------------------------------------------------------------------------- */

static int time_calls(struct tc_bench *b, bool together, struct tc_err *err)
{
  const struct tc_coll_args barrier = { .coll = TC_BARRIER, .ctl = true,
                                        .what = "before an iteration" };
  for (int i = 0; i < b->iters; i++) {
    if (together) TC_TRY(tc_comm_run(b->world, &barrier, err));
    int64_t start_ns = tc_now_ns();
    TC_TRY(run_calls(b, err));
    b->ns[i] = tc_now_ns() - start_ns;
  }
  return tc_comm_settle(b->group, err);
}

/* Warms up and times the calls that were made; together: with a barrier of the world before each iteration. What is
 * wrong with results or counters goes into *found. */
static int measure(struct tc_bench *b, bool together, struct tc_err *found, struct tc_err *err)
{
  const struct tc_comm_counters before = *tc_comm_counters(b->group);
  fill(b);
  poison(b);
  for (int i = 0; i < WARM_UP; i++) TC_TRY(run_calls(b, err));
  TC_TRY(tc_comm_settle(b->group, err));
  look(b, found);
  poison(b);
  TC_TRY(time_calls(b, together, err));
  look(b, found);
  check_counters(b, &before, WARM_UP + b->iters, found);
  return 0;
}

/* ---- a row ------------------------------------------------------------------------------- */

/* Collective over the world. Fails on all ranks with the same sentence: that of the lowest
 * rank with an error. */
static int share_sentence(struct tc_bench *b, const struct tc_err *found, struct tc_err *err)
{
  int64_t *bytes = tc_calloc((size_t)tc_comm_size(b->world), sizeof *bytes);
  int64_t length = found->status < 0 ? (int64_t)strlen(found->text) : 0;
  void *text = NULL;                             /* rank 0: all sentences, one after another */
  int rc = tc_comm_bytes_gather(b->world, 0, found->text, length, &text, bytes, err);
  for (int i = 0; rc == 0 && i < tc_comm_size(b->world) && (length = bytes[i]) == 0; i++);
  if (rc == 0) rc = tc_comm_bytes_bcast(b->world, 0, &text, &length, err);
  if (rc == 0 && length > 0)
    rc = tc_fail(err, TC_EUSER, "%.*s", (int)length, (const char *)text);
  else if (rc == 0)                              /* the exchange of errors is itself damaged */
    rc = tc_fail(err, TC_EUSER, "%s", found->status < 0 ? found->text
                 : "results are wrong, and so is the exchange that would identify the rank");
  TC_FREE(text, bytes);
  return rc;
}

static void fill_row(const struct tc_bench *b, struct tc_bench_row *row)
{
  struct tc_coll_count unused[TC_COLLS];
  const double n = b->size, factor[] = { [ONE] = 1, [SHARE] = (n - 1) / n,
                                         [TWICE] = 2 * (n - 1) / n };
  double sum_ns = 0;
  for (int i = 0; i < b->iters; i++) sum_ns += (double)b->ns[i];
  double mean_ns = TC_MAX(sum_ns / b->iters, 1.0);
  row->count = b->count, row->iters = b->iters;
  row->size_bytes = b->count * (int64_t)sizeof *b->src;
  row->time_us = mean_ns * 1e-3;
  row->median_us = (double)tc_median_i64(b->ns, b->iters) * 1e-3;
  row->algbw = (double)row->size_bytes / mean_ns;           /* bytes per ns are GB per s */
  row->busbw = row->algbw * factor[ops[b->op].factor];
  row->sent_bytes = predict(b, unused);
  row->algorithm = b->n_calls ? tc_algorithm_of(&b->call[0], tc_comm_members(b->group)) : TC_ALGORITHM_STAR;
  for (int i = 1; i < b->n_calls; i++)
    if (tc_algorithm_of(&b->call[i], tc_comm_members(b->group)) != row->algorithm) row->algorithm = TC_ALGORITHM_AUTO;
}

int tc_bench_run(struct tc_bench *b, int op, int64_t bytes, struct tc_bench_row *row,
                 struct tc_err *err)
{
  struct tc_err found = { 0 };
  b->salt += 0x9e3779b9u;
  make_calls(b, op, bytes);
  TC_TRY(measure(b, true, &found, err));
  b->ns[b->iters] = found.status < 0;
  TC_TRY(tc_comm_max_i64(b->world, b->ns, b->iters + 1, err));
  fill_row(b, row);
  return b->ns[b->iters] ? share_sentence(b, &found, err) : 0;
}

/* ---- a pair ------------------------------------------------------------------------------ */

/* There and back: the lower coordinate sends first. */
static void make_pair(struct tc_bench *b, int peer, int64_t bytes, const char *what)
{
  b->op = TC_BENCH_SEND;
  b->n_calls = 0;
  b->from = peer;
  b->count = b->block = TC_MAX(bytes / (int64_t)sizeof *b->src, 1);
  TC_ASSERT(b->count <= b->cap && peer != b->coord);
  for (int i = 0; i < 2 && peer >= 0; i++) {
    add_call(b, (b->coord < peer) == (i == 0) ? TC_SEND : TC_RECV, peer, b->src_there);
    b->call[i].what = what;
  }
}

int tc_bench_pair(struct tc_bench *b, int peer, int64_t bytes, const char *what, int64_t *ns,
                  struct tc_err *err)
{
  struct tc_err found = { 0 };
  b->salt += 0x9e3779b9u;
  make_pair(b, peer, bytes, what);
  *ns = 0;
  if (peer >= 0) {
    TC_TRY(measure(b, false, &found, err));
    if (found.status < 0) tc_fail(&found, found.status, "%s: %.400s", what, found.text);
    *ns = TC_MAX(tc_median_i64(b->ns, b->iters), 1);
  }
  int64_t wrong = found.status < 0;
  TC_TRY(tc_comm_max_i64(b->world, &wrong, 1, err));
  return wrong ? share_sentence(b, &found, err) : 0;
}
