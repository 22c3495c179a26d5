/* comm_check.h - one call on a communicator, checked: results, what must stay untouched, and
 * counters. Used by comm_cases.h.
 *
 * Data are small integers, so that every sum is exact in every type and each rank can say
 * what must come out without asking anyone. Expectations here are written from comm.h, one
 * element at a time, not from the code. */
#ifndef TC_COMM_CHECK_H
#define TC_COMM_CHECK_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/comm/comm.h"
#include "tests/unit/coll_bytes.h"

struct cc_env {
  int rank, world;
  struct tc_comm *(*make)(struct cc_env *e, int id, const int32_t *members, int size,
                          const struct tc_comm_opts *o);
  void *ctx;
  const char *const *who;         /* [world] */
  bool library;                   /* a device's library sends, whose messages nobody counts */
  int run;                        /* of a case, from 0; see cc_late */
  bool repeats, again;            /* repeats: where a rank sets again, all run the case once more, on other communicators */
  int fails;
  char first[400];                /* the first thing that failed */
};

enum { CC_RUNS = 3 };

__attribute__((format(printf, 3, 4)))
static void cc_check(struct cc_env *e, bool pass, const char *fmt, ...)
{
  if (pass || e->fails++) return;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(e->first, sizeof e->first, fmt, ap);
  va_end(ap);
}

__attribute__((unused))
static struct tc_comm *cc_world(struct cc_env *e, int id, const char *name, double deadline_s)
{
  int32_t members[64];
  for (int i = 0; i < e->world; i++) members[i] = i;
  struct tc_comm_opts o = { .name = name, .deadline_s = deadline_s, .rank_names = e->who };
  return e->make(e, id, members, e->world, &o);
}

/* The same on two nodes, the first of which has one member more where they are not as many, or in turn; sums may be of partial
 * sums. */
__attribute__((unused))
static struct tc_comm *cc_nodes(struct cc_env *e, int id, bool in_turn)
{
  int32_t members[64], node[64];
  for (int i = 0; i < e->world; i++) members[i] = i, node[i] = in_turn ? i % 2 : i >= (e->world + 1) / 2;
  struct tc_comm_opts o = { .name = "dp", .deadline_s = 60, .rank_names = e->who, .node = node, .partial_sums = true };
  return e->make(e, id, members, e->world, &o);
}

/* ---- elements -------------------------------------------------------------------- */

static double cc_val(int member, int part, int64_t i)
{
  return (double)((i * 7 + member * 13 + part * 5 + i / 1000) % 17 - 8);
}

static double cc_get(const void *buf, int64_t i, int dtype)
{
  switch (dtype) {
    case TC_F32: return ((const float *)buf)[i];
    case TC_BF16: return tc_bf16_to_f32(((const uint16_t *)buf)[i]);
    case TC_F64: return ((const double *)buf)[i];
    default: return ((const int32_t *)buf)[i];
  }
}

static void cc_put(void *buf, int64_t i, int dtype, double v)
{
  switch (dtype) {
    case TC_F32: ((float *)buf)[i] = (float)v; break;
    case TC_BF16: ((uint16_t *)buf)[i] = tc_f32_to_bf16((float)v); break;
    case TC_F64: ((double *)buf)[i] = v; break;
    default: ((int32_t *)buf)[i] = (int32_t)v;
  }
}

/* ---- one call, checked ----------------------------------------------------------- */

enum { CC_MANY = 200000, CC_PARTS = 4, CC_GUARD = 64, CC_FILL = 0xA5 };

struct cc_call {
  int coll, algorithm, dtype, red, root;
  int n_parts;
  int64_t count[CC_PARTS], block[CC_PARTS];
  bool in_place, ctl;
};

struct cc_run {
  const struct cc_call *k;
  struct tc_part part[CC_PARTS];
  char *src_mem[CC_PARTS], *dst_mem[CC_PARTS];       /* dst: guards before and behind */
  int64_t dst_elems[CC_PARTS], dst_first[CC_PARTS];  /* what dst must hold: of the whole */
  tc_ticket ticket;
};

static bool cc_is_root(const struct cc_call *k, int me) { return k->root == me; }

static int64_t cc_start(const struct cc_call *k, int p, int i, int n)
{
  int64_t at = i * k->block[p];
  return i == n || at > k->count[p] ? k->count[p] : at;
}

static bool cc_block_out(int coll) { return coll == TC_REDUCE_SCATTER || coll == TC_SCATTER; }
static bool cc_block_in(int coll) { return coll == TC_ALL_GATHER || coll == TC_GATHER; }

static bool cc_has_out(const struct cc_call *k, int me)
{
  if (k->coll == TC_BROADCAST) return !cc_is_root(k, me);
  if (k->coll == TC_REDUCE || k->coll == TC_GATHER) return cc_is_root(k, me);
  return k->coll != TC_SEND && k->coll != TC_BARRIER;
}

/* Element i of the whole, as member `me` must see it in dst. */
static double cc_want(const struct cc_call *k, int p, int64_t i, int me, int n)
{
  double x = cc_val(0, p, i);
  int64_t owner = k->block[p] ? i / k->block[p] : n - 1;
  if (owner > n - 1) owner = n - 1;
  switch (k->coll) {
    case TC_ALL_REDUCE: case TC_REDUCE_SCATTER: case TC_REDUCE:
      for (int r = 1; r < n; r++) {
        double y = cc_val(r, p, i);
        x = k->red == TC_SUM ? x + y : y > x ? y : x;
      }
      return x;
    case TC_ALL_GATHER: case TC_GATHER: return cc_val((int)owner, p, i);
    case TC_ALL_TO_ALL:
      return cc_val((int)owner, p, me * k->block[p] + i % k->block[p]);
    default: return cc_val(k->root, p, i);
  }
}

/* Buffers, filled; where in place, src lies in dst. */
static void cc_prepare(struct cc_run *u, const struct cc_call *k, int me, int n)
{
  int64_t esz = (int64_t)tc_dtype_bytes(k->dtype);
  *u = (struct cc_run) { .k = k };
  for (int p = 0; p < k->n_parts; p++) {
    int64_t lo = cc_start(k, p, me, n), hi = cc_start(k, p, me + 1, n), all = k->count[p];
    int64_t in0 = cc_block_in(k->coll) ? lo : 0, in1 = cc_block_in(k->coll) ? hi : all;
    int64_t out0 = cc_block_out(k->coll) ? lo : 0, out1 = cc_block_out(k->coll) ? hi : all;
    bool whole = k->in_place;     /* then dst's memory has room for the whole */
    size_t dst_bytes = (size_t)((whole ? all : out1 - out0) * esz) + 2 * CC_GUARD;
    u->src_mem[p] = tc_malloc((size_t)((in1 - in0) * esz) + 1);
    u->dst_mem[p] = tc_malloc(dst_bytes);
    memset(u->dst_mem[p], CC_FILL, dst_bytes);
    char *dst = u->dst_mem[p] + CC_GUARD, *src = u->src_mem[p];
    if (k->in_place) src = dst + in0 * esz;
    for (int64_t i = in0; i < in1; i++) cc_put(src, i - in0, k->dtype, cc_val(me, p, i));
    u->dst_first[p] = out0;
    u->dst_elems[p] = cc_has_out(k, me) ? out1 - out0 : 0;
    u->part[p] = (struct tc_part) { src, dst + (whole ? out0 * esz : 0), all, k->block[p] };
  }
}

static struct tc_coll_args cc_args(const struct cc_run *u)
{
  const struct cc_call *k = u->k;
  return (struct tc_coll_args) { .coll = k->coll, .algorithm = k->algorithm, .dtype = k->dtype, .red = k->red,
                                 .root = k->root, .n_parts = k->n_parts, .parts = u->part,
                                 .ctl = k->ctl, .what = "a test" };
}

static void cc_verify(struct cc_env *e, struct cc_run *u, int me, int n)
{
  const struct cc_call *k = u->k;
  int64_t esz = (int64_t)tc_dtype_bytes(k->dtype);
  const char *coll = tc_coll_name[k->coll], *type = tc_dtype_name(k->dtype);
  for (int p = 0; p < k->n_parts; p++) {
    const char *dst = u->part[p].dst;
    int64_t step = u->dst_elems[p] > CC_MANY ? 13 : 1;       /* a sample of large ones */
    for (int64_t i = 0; i < u->dst_elems[p]; i += step) {
      double got = cc_get(dst, i, k->dtype);
      double want = cc_want(k, p, u->dst_first[p] + i, me, n);
      if (got == want) continue;
      cc_check(e, false, "%s %s count %lld block %lld part %d root %d%s: element %lld is %g, "
               "not %g", coll, type, (long long)k->count[p], (long long)k->block[p], p, k->root,
               k->in_place ? " in place" : "", (long long)i, got, want);
      break;
    }
    /* Nothing written beside it. */
    bool touched = false;
    const unsigned char *mem = (const unsigned char *)u->dst_mem[p];
    int64_t room = k->in_place ? k->count[p]
                               : cc_start(k, p, me + 1, n) - cc_start(k, p, me, n);
    if (!k->in_place && !cc_block_out(k->coll)) room = k->count[p];
    for (int i = 0; i < CC_GUARD; i++)
      touched |= mem[i] != CC_FILL || mem[CC_GUARD + room * esz + i] != CC_FILL;
    if (!cc_has_out(k, me) && !k->in_place)
      for (int64_t i = 0; i < room * esz; i++) touched |= mem[CC_GUARD + i] != CC_FILL;
    cc_check(e, !touched, "%s %s count %lld: wrote outside of dst", coll, type,
             (long long)k->count[p]);
    int64_t in0 = cc_block_in(k->coll) ? cc_start(k, p, me, n) : 0;
    int64_t in1 = cc_block_in(k->coll) ? cc_start(k, p, me + 1, n) : k->count[p];
    bool kept = true;
    for (int64_t i = in0; !k->in_place && i < in1; i += step)
      kept &= cc_get(u->src_mem[p], i - in0, k->dtype) == cc_val(me, p, i);
    cc_check(e, kept, "%s %s count %lld: changed src", coll, type, (long long)k->count[p]);
    free(u->src_mem[p]);
    free(u->dst_mem[p]);
  }
}

/* What the user's page says a rank sends, from the elements themselves; by other algorithms t_flow knows. */
static int64_t cc_bytes(const struct cc_call *k, int me, int n)
{
  int64_t elems = 0;
  bool root = cc_is_root(k, me);
  for (int p = 0; p < k->n_parts; p++) {
    int64_t all = k->count[p], mine = cc_start(k, p, me + 1, n) - cc_start(k, p, me, n);
    if (k->coll == TC_ALL_REDUCE) elems += (all - mine) + (n - 1) * mine;
    if (k->coll == TC_REDUCE_SCATTER || k->coll == TC_ALL_TO_ALL) elems += all - mine;
    if (k->coll == TC_ALL_GATHER) elems += (n - 1) * mine;
    if (k->coll == TC_BROADCAST && root) elems += (n - 1) * all;
    if (k->coll == TC_REDUCE && !root) elems += all;
    if (k->coll == TC_SCATTER && root) elems += all - mine;
    if (k->coll == TC_GATHER && !root) elems += mine;
    if (k->coll == TC_SEND) elems += all;
  }
  return elems * (int64_t)tc_dtype_bytes(k->dtype);
}

static int64_t cc_predicted(const struct cc_call *k, const struct tc_comm *c, int64_t *messages)
{
  struct tc_part part[CC_PARTS];
  const struct tc_coll_args a = { .coll = k->coll, .algorithm = k->algorithm, .dtype = k->dtype, .root = k->root,
                                  .n_parts = k->n_parts, .parts = part };
  for (int p = 0; p < k->n_parts; p++) part[p] = (struct tc_part){ .count = k->count[p], .block = k->block[p] };
  const struct tc_coll_count sends = tc_coll_sends(&a, tc_comm_members(c));
  *messages = sends.messages;
  return sends.bytes == tc_coll_bytes(&a, tc_comm_members(c)) ? sends.bytes : -1;
}

/* Runs and checks: results, guards, counters. */
static void cc_one(struct cc_env *e, struct tc_comm *c, const struct cc_call *k)
{
  int me = tc_comm_coord(c), n = tc_comm_size(c);
  struct cc_run u;
  struct tc_err err = { 0 };
  struct tc_comm_counters old = *tc_comm_counters(c);
  cc_prepare(&u, k, me, n);
  struct tc_coll_args a = cc_args(&u);
  int rc = tc_comm_run(c, &a, &err);
  cc_check(e, rc == 0, "%s", err.text);
  if (rc < 0) return;
  cc_verify(e, &u, me, n);
  const struct tc_comm_counters *now = tc_comm_counters(c);
  struct tc_coll_count d = now->data[k->coll], t = now->ctl[k->coll];
  const struct tc_coll_count *o = &old.data[k->coll], *oc = &old.ctl[k->coll];
  int64_t calls = k->ctl ? t.calls - oc->calls : d.calls - o->calls;
  int64_t bytes = k->ctl ? t.bytes - oc->bytes : d.bytes - o->bytes, want_messages;
  const int64_t want_bytes = cc_predicted(k, c, &want_messages);
  const int64_t messages = k->ctl ? t.messages - oc->messages : d.messages - o->messages;
  int64_t other = k->ctl ? d.calls - o->calls : t.calls - oc->calls;
  cc_check(e, calls == 1 && other == 0, "%s: %lld calls counted", tc_coll_name[k->coll],
           (long long)calls);
  const bool direct = k->algorithm == tc_algorithm_direct(k->coll);
  cc_check(e, (!direct || bytes == cc_bytes(k, me, n)) && bytes == want_bytes,
           "%s count %lld: %lld bytes counted, %lld predicted, not %lld", tc_coll_name[k->coll],
           (long long)k->count[0], (long long)bytes, (long long)want_bytes,
           (long long)cc_bytes(k, me, n));
  if (e->library) want_messages = 0;
  cc_check(e, messages == want_messages, "%s count %lld: %lld messages counted, %lld predicted", tc_coll_name[k->coll],
           (long long)k->count[0], (long long)messages, (long long)want_messages);
}

static struct cc_call cc_call(int coll, int dtype, int64_t count, int n)
{
  struct cc_call k = { .coll = coll, .algorithm = tc_algorithm_direct(coll), .dtype = dtype, .n_parts = 1 };
  k.block[0] = tc_ceil_div(count, n);
  k.count[0] = coll == TC_ALL_TO_ALL ? k.block[0] * n : count;
  return k;
}

#endif
