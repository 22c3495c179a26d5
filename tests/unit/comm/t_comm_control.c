/* t_comm_control.c - control data (control.c) call by call, with a backend of the test's own: the calls
 * that a maximum, a gather, a broadcast and an agreement make on each rank, with how many bytes;
 * their results where one of the calls fails; that nothing is left behind. */
#include "src/coll/flow.h"
#include "src/comm/impl.h"
#include "tests/unit/leak.h"
#include "tests/unit/tap.h"

#include <unistd.h>

enum { N = 3 };
static char calls[1000];
static int n_calls, fail_at;
static int64_t lengths[N] = { 3, 0, 2 };

static void set_lengths(int64_t a, int64_t b, int64_t c)
{
  lengths[0] = a;
  lengths[1] = b;
  lengths[2] = c;
}

/* Records a call, and makes up its data: an all-gather brings lengths or numbers of the other
 * ranks, a receive the sender's message, a broadcast "hello". */
static int c_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop, struct tc_sent *sent,
                 struct tc_err *err)
{
  const struct tc_part *p = a->parts;
  const int coord = *(const int *)impl;
  (void)stop;
  sent->bytes = 1;
  tc_text_add(calls, sizeof calls, "%s%s %d %lld/%lld %s%s%s%s", n_calls ? ", " : "",
              tc_coll_name[a->coll], a->root, (long long)p->count, (long long)p->block, a->what,
              a->ctl && a->dtype == TC_U8 && a->n_parts == 1 ? "" : "?", a->algorithm ? " by " : "",
              a->algorithm ? tc_algorithm_name[a->algorithm] : "");
  if (n_calls++ == fail_at) return tc_fail(err, TC_ENOCKPT, "fault %d", fail_at);
  if (a->coll == TC_ALL_GATHER && p->block == 8) memcpy(p->dst, lengths, sizeof lengths);
  if (a->coll == TC_ALL_GATHER && p->block == 16)
    for (int64_t i = 0; i < N; i++)
      for (int64_t k = 0; k < 2; k++)
        ((int64_t *)p->dst)[2 * i + k] =
            i == coord ? ((const int64_t *)p->src)[k] : i * 10 - 12 * k;
  if (a->coll == TC_RECV) memset(p->dst, 'a' + a->root, (size_t)p->count);
  if (a->coll == TC_SEND)
    tc_text_add(calls, sizeof calls, " %.*s", (int)p->count, (const char *)p->src);
  if (a->coll == TC_BROADCAST && coord != a->root && p->count == 8) *(int64_t *)p->dst = 5;
  if (a->coll == TC_BROADCAST && coord != a->root && p->count == 5)
    memcpy(p->dst, "hello", 5);
  return 0;
}

static int leaves, frees; /* the latter of those that have left */
static void c_leave(void *impl) { leaves += impl != NULL; }
static void c_free(void *impl) { frees += impl && leaves > frees; }
static const struct tc_comm_ops ops = { .run = c_run, .free = c_free, .leave = c_leave };
static const struct tc_comm_opts opts = { .name = "world", .deadline_s = 60 };

static struct tc_comm *make(int *coord, int fails)
{
  calls[0] = 0;
  n_calls = 0;
  fail_at = fails;
  return tc_comm_new(&ops, coord, &(struct tc_members){ .size = N, .coord = *coord }, &opts, NULL);
}

static void test_numbers(void)
{
  for (int coord = 0; coord < N; coord++)
    for (int fails = -1; fails < 1; fails++) {
      struct tc_err err = { 0 };
      int64_t x[2] = { 7, -9 }, all[2 * N] = { 0 };
      struct tc_comm *c = make(&coord, fails);
      is_int(tc_comm_max_i64(c, x, 2, &err), fails ? 0 : TC_ENOCKPT, "a maximum, coordinate %d",
             coord);
      is_str(calls, "all_gather 0 48/16 control", "... one call");
      if (fails)
        ok(x[0] == (coord == 2 ? 10 : 20) && x[1] == (coord == 2 ? -2 : 8), "... %lld %lld",
           (long long)x[0], (long long)x[1]);
      else
        ok(x[0] == 7 && x[1] == -9 && !strcmp(err.text, "fault 0"), "... fails");
      x[0] = 100, x[1] = 101;
      if (fails)
        is_int(tc_comm_all_i64(c, x, 2, all, &err), 0, "all of them");
      for (int i = 0; i < 2 * N && fails; i++)
        is_int(all[i], i / 2 == coord ? 100 + i % 2 : i / 2 * 10 - i % 2 * 12, "... number %d", i);
      tc_ticket t = 9;
      ok(tc_comm_free(c) && leaves == 1 && frees == 1, "... it leaves, then is freed");
      leaves = frees = 0;
      if (fails)
        continue;
      c = make(&coord, 0);
      const struct tc_part part = { x, x, 1, 1 };
      const struct tc_coll_args a = {
        .coll = TC_BROADCAST, .root = coord, .n_parts = 1, .parts = &part
      };
      is_int(tc_comm_start(c, &a, &t, &err), 0, "a call is queued");
      is_int(t, 1, "... the first");
      is_int(tc_comm_settle(c, &err), TC_ENOCKPT, "... it fails");
      is_int(tc_comm_test(c, t, &err), TC_ENOCKPT, "... which tc_comm_test returns, too");
      is_int(tc_comm_test(c, 0, &err), 1, "... but ticket 0, of no call, is done");
      is_int(tc_comm_run(c, &a, &err), TC_ENOCKPT, "... all later calls fail, too");
      is_str(err.text, "fault 0", "... with the first message");
      is_int(n_calls, 1, "... which are not tried");
      is_int(tc_comm_counters(c)->data[TC_BROADCAST].calls, 0, "... nor counted");
      tc_comm_free(c);
      leaves = frees = 0;
    }
}

static void test_all_bytes(void)
{
  struct tc_err err = { 0 };
  int coord = 1;
  int64_t mine = 3, all[N] = { 0 };
  struct tc_comm *c = make(&coord, -1);
  is_int(tc_comm_all_bytes(c, TC_ALGORITHM_DOUBLING, &mine, sizeof mine, all, "words", &err), 0, "bytes of all for all");
  is_str(calls, "all_gather 0 24/8 words by doubling", "... by this algorithm");
  ok(!memcmp(all, lengths, sizeof all), "... are there");
  tc_comm_free(c);
}

#define LENGTHS "all_gather 0 24/8 lengths to gather"

static void test_gather(void)
{
  static const struct {
    int coord, root, fails, status;
    const char *calls, *all;
  } rows[] = {
    { 0, 0, -1, 0, LENGTHS ", recv 2 2/2 bytes to gather", "MINcc" },
    { 2, 2, -1, 0, LENGTHS ", recv 0 3/3 bytes to gather", "aaaMI" },
    { 1, 1, -1, 0, LENGTHS ", recv 2 2/2 bytes to gather, recv 0 3/3 bytes to gather", "aaacc" },
    { 0, 2, -1, 0, LENGTHS ", send 2 3/3 bytes to gather MIN", NULL },
    { 2, 1, -1, 0, LENGTHS ", send 1 2/2 bytes to gather MI", NULL },
    { 1, 2, -1, 0, LENGTHS, NULL },
    { 0, 0, 0, TC_ENOCKPT, LENGTHS, NULL },
    { 0, 0, 1, TC_ENOCKPT, LENGTHS ", recv 2 2/2 bytes to gather", NULL },
    { 1, 1, 1, TC_ENOCKPT, LENGTHS ", recv 2 2/2 bytes to gather", NULL },
    { 1, 1, 2, TC_ENOCKPT, LENGTHS ", recv 2 2/2 bytes to gather, recv 0 3/3 bytes to gather",
      NULL },
    { 0, 2, 1, TC_ENOCKPT, LENGTHS ", send 2 3/3 bytes to gather", NULL },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int coord = rows[i].coord;
    struct tc_err err = { 0 };
    int64_t bytes[N] = { -1, -1, -1 };
    void *all = &err;
    char text[8] = "";
    struct tc_comm *c = make(&coord, rows[i].fails);
    is_int(tc_comm_bytes_gather(c, rows[i].root, "MINE", lengths[coord], &all, bytes, &err),
           rows[i].status, "bytes of %d for %d", coord, rows[i].root);
    is_str(calls, rows[i].calls, "... its calls");
    if (rows[i].fails)
      ok(bytes[0] == 3 && bytes[1] == 0 && bytes[2] == 2, "... lengths of all");
    if (rows[i].all && all)
      memcpy(text, all, 5);
    ok(!rows[i].all == !all, "... are there on the root alone");
    is_str(text, rows[i].all ? rows[i].all : "", "... all ranks' bytes");
    is_int(err.status, rows[i].status, "... the status of the error");
    free(all);
    tc_comm_free(c);
  }
}

#define LENGTH "broadcast 1 8/8 length to broadcast"

static void test_bcast(void)
{
  for (int coord = 0; coord < 2; coord++)
    for (int fails = -1; fails < 2; fails++) {
      static char mine[] = "howdy";
      struct tc_err err = { 0 };
      void *buf = coord == 1 ? mine : (void *)&err;
      int64_t n = coord == 1 ? 5 : -1;
      struct tc_comm *c = make(&coord, fails);
      is_int(tc_comm_bytes_bcast(c, 1, &buf, &n, &err), fails < 0 ? 0 : TC_ENOCKPT,
             "bytes of 1 for %d", coord);
      is_str(calls, fails ? LENGTH ", broadcast 1 5/2 bytes to broadcast" : LENGTH,
             "... its calls");
      if (coord == 1)
        ok(buf == mine && !strcmp(mine, "howdy"), "... the root keeps its own");
      else if (fails < 0)
        ok(buf && !memcmp(buf, "hello", 5) && n == 5, "... are received");
      else
        ok(!buf, "... are not received");
      if (coord != 1)
        free(buf);
      tc_comm_free(c);
    }
}

/* An agreement of members without an error is one call; else each of the calls that it makes fails once: the first member
 * with an error is 1. */
static void test_agree(void)
{
  for (int coord = 0; coord < N; coord++) {
    struct tc_err err = { 0 };
    set_lengths(7, 0, 2);
    struct tc_comm *c = make(&coord, -1);
    is_int(tc_comm_agree(c, NULL, coord, &err), 7, "coordinate %d: all are well: the first one's status", coord);
    is_str(calls, "all_gather 0 24/8 control", "... by one call");
    tc_comm_free(c);
  }
  for (int coord = 0; coord < N; coord++)
    for (int fails = 0; fails < 3; fails++) {
      struct tc_err err = { 0 };
      char want[20];
      set_lengths(0, -4, -5);
      struct tc_comm *c = make(&coord, fails);
      is_int(tc_comm_agree(c, NULL, 0, &err), TC_ENOCKPT, "coordinate %d: call %d fails", coord,
             fails);
      snprintf(want, sizeof want, "fault %d", fails);
      is_str(err.text, want, "... with its message");
      is_int(n_calls, fails + 1, "... and no call is made after it");
      ok(strstr(calls, fails ? "all_gather 0 24/8 control, broadcast 1 8/8 " : "all_gather") != NULL,
         "... from the first with an error on: %s", calls);
      tc_comm_free(c);
    }
  struct tc_err err = { .text = "as it was" };
  struct tc_comm *alone = tc_comm_self(&opts);
  is_int(tc_comm_agree(alone, NULL, -77, &err), -77, "an agreement of one rank has its status");
  is_str(err.text, "as it was", "... and its message");
  tc_comm_free(alone);
  set_lengths(3, 0, 2);
}

/* ---- leaks ------------------------------------------------------------------------------ */

static void all_calls(void)
{
  for (int coord = 0; coord < N; coord++)
    for (int fails = -1; fails < 3; fails++)
      for (int what = 0; what < 4; what++) {
        struct tc_err err = { 0 };
        int64_t x[2] = { 0 }, bytes[N] = { 0 }, n = 5;
        void *all = NULL;
        struct tc_comm *c = make(&coord, fails);
        if (what == 3)
          set_lengths(0, -4, -5);
        else
          set_lengths(3, 0, 2);
        if (what == 0)
          tc_comm_max_i64(c, x, 2, &err);
        if (what == 1)
          tc_comm_bytes_gather(c, 1, "MINE", lengths[coord], &all, bytes, &err);
        if (what == 2 && coord != 1)
          tc_comm_bytes_bcast(c, 1, &all, &n, &err);
        if (what == 3 && fails >= 0)
          tc_comm_agree(c, NULL, 0, &err);
        free(all);
        tc_comm_free(c);
      }
}

int main(void)
{
  alarm(300);
  test_numbers();
  test_all_bytes();
  test_gather();
  test_bcast();
  test_agree();
  leaves_nothing("control data", all_calls, 60);
  return done_testing();
}
