/* t_plan_candidates.c - candidates of the planner's search (candidates.c, search.c), with guesses of the test's own: which axis
 * is nearer, what counts as fitting, which rows and misses are alike. */
#include "src/base/thread.h"
#include "src/plan/guess.h"
#include "tests/unit/tap.h"

static double guess_bytes, guess_host_bytes;
static int guess_fails;
static int my_guess(struct tc_guess *g, struct tc_cand *x, struct tc_err *err)
{
  (void)g;
  x->bytes = guess_bytes;
  x->host_bytes = guess_host_bytes;
  return guess_fails ? tc_fail(err, TC_ELAYOUT, "it can't be") : 0;
}
#define tc_cpus() 1
#define tc_guess(g, x, err) my_guess(g, x, err)
#include "src/plan/candidates.c"
#include "src/plan/search.c"

static struct tc_config config;
static struct tc_cluster cluster;
static struct tc_plan_found found;
static struct search s;

static void set_up(void)
{
  config = (struct tc_config){ .train_precision = TC_F32 };
  cluster = (struct tc_cluster){ .nodes = 1, .devices = 4, .device = { .memory_bytes = 100 } };
  found = (struct tc_plan_found){ .least_bytes = INFINITY };
  s = (struct search){ .out = &found, .c = &config, .k = &cluster, .nodes = 1, .fixed = 1u << TC_KEY_CP };
  s.g.cfg = &config;
  s.g.model.context = 2;
  s.g.model.hidden = 4;
  s.g.model.layers = 8;
  s.g.layer_params = 10;
  s.g.rest_params = 56;
  guess_bytes = 50;
  guess_host_bytes = guess_fails = 0;
}

static void done(void)
{
  free(s.cand);
  tc_plan_found_done(&found);
}

static struct tc_cand cand(void)
{
  return (struct tc_cand){ .cp = 1, .pp = 2,
                           .dp = 2,
                           .tp = 2,
                           .micro = 3,
                           .n_mb = 2,
                           .virtual_stages = 1,
                           .data = TC_DATA_DDP,
                           .schedule = TC_SCHEDULE_1F1B,
                           .recompute = TC_RECOMPUTE_NONE,
                           .offload = TC_OFFLOAD_NO };
}

/* A pipeline sends 2 x 2 x 3 x 4 x 8 = 384 bytes; dp 8 x (10 x 8 / 2 + rest) / 2, as much for a rest of 56. */
static void test_near(void)
{
  static const struct {
    double rest;
    int pp, dp, virtual_stages, bf16, near;
  } rows[] = { { 56, 2, 2, 1, 0, 0 }, { 55.9, 2, 2, 1, 0, 1 }, { 55.9, 2, 1, 1, 0, 0 },
               { 0, 1, 2, 1, 0, 0 },  { 152, 2, 2, 2, 0, 0 },  { 151.9, 2, 2, 2, 0, 1 },
               { 8, 2, 2, 1, 1, 0 },  { 7.9, 2, 2, 1, 1, 1 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    set_up();
    struct tc_cand x = cand();
    x.pp = rows[i].pp;
    x.dp = rows[i].dp;
    x.virtual_stages = rows[i].virtual_stages;
    s.g.rest_params = rows[i].rest;
    if (rows[i].bf16) config.train_precision = TC_BF16;
    tc_search_add(&s, &x);
    is_int(x.near_pp, rows[i].near, "a rest of %g, %d x %d: which axis is near", rows[i].rest, x.pp,
           x.dp);
    done();
  }
}

/* Bytes of a guess and of the host; considered, possible and fitting; kept for trying. */
static void test_fitting(void)
{
  static const struct {
    double bytes, host, room;
    int fails, possible, fitting, kept;
    double least, host_least;
  } rows[] = { { 100, 9, 0, 0, 1, 1, 1, 100, 0 },    { 100.5, 9, 0, 0, 1, 0, 1, 100.5, 0 },
               { 104, 0, 0, 0, 1, 0, 1, 104, 0 },    { 104.5, 0, 0, 0, 1, 0, 0, 104.5, 0 },
               { 50, 10, 40, 0, 1, 1, 1, 50, 0 },    { 50, 10.25, 40, 0, 0, 0, 0, INFINITY, 41 },
               { 50, 0, 0, 1, 0, 0, 0, INFINITY, 0 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    set_up();
    struct tc_cand x = cand();
    guess_bytes = rows[i].bytes;
    guess_host_bytes = rows[i].host;
    guess_fails = rows[i].fails;
    cluster.device.host_bytes = rows[i].room;
    tc_search_add(&s, &x);
    is_int(found.considered, 1, "row %zu is considered", i);
    is_int(found.possible, rows[i].possible, "... possible");
    is_int(s.fitting, rows[i].fitting, "... fits");
    is_int(s.n, rows[i].kept, "... is kept");
    ok(found.least_bytes == rows[i].least, "... the least bytes: %g", found.least_bytes);
    is_int(found.n_families, TC_KEYS, "... counts in a family of each key");
    const struct tc_plan_family *f = &found.family[TC_KEYS - 1];
    ok(f->key == TC_KEY_OFFLOAD && f->n == 1 && f->fit == rows[i].fitting,
       "... of the last one, too");
    is_str(f->why,
           rows[i].fails      ? "it can't be"
           : rows[i].possible ? ""
                              : "needs more host memory than a node has",
           "... why not");
    ok(f->least_host_bytes == rows[i].host_least, "... bytes of a host: %g", f->least_host_bytes);
    done();
  }
  set_up();
  cluster.device.host_bytes = 8;
  for (int i = 3; i < 6; i++) {
    struct tc_cand x = cand();
    guess_host_bytes = i == 4 ? 2.5 : i;
    tc_search_add(&s, &x);
  }
  is_int((int64_t)found.family[TC_KEYS - 1].least_host_bytes, 10, "the least of several hosts");
  s.out = NULL;
  guess_host_bytes = 0;
  struct tc_cand x = cand();
  tc_search_add(&s, &x);
  is_int(s.n, 0, "without rows nothing is kept");
  is_int(s.fitting, 1, "... only counted");
  done();
}

static void test_values(void)
{
  static const char *const want[TC_KEYS] = {
    [TC_KEY_PP] = "2",          [TC_KEY_DP] = "3",         [TC_KEY_CP] = "7",     [TC_KEY_TP] = "4",
    [TC_KEY_MICRO] = "5",       [TC_KEY_DATA] = "zero2",   [TC_KEY_SCHEDULE] = "zb",
    [TC_KEY_VIRTUAL_STAGES] = "6",      [TC_KEY_SEQUENCE] = "yes", [TC_KEY_RECOMPUTE] = "full",
    [TC_KEY_OFFLOAD] = "params", [TC_KEY_SHARD] = "auto", [TC_KEY_REDUCE] = "step", [TC_KEY_REGATHER] = "yes"
  };
  struct tc_cand x = { .pp = 2, .cp = 7,
                       .dp = 3,
                       .tp = 4,
                       .micro = 5,
                       .virtual_stages = 6,
                       .data = TC_DATA_ZERO2,
                       .schedule = TC_SCHEDULE_ZB,
                       .shard = TC_AUTO, .reduce = TC_REDUCE_STEP,
                       .sequence = true, .regather = true,
                       .recompute = TC_RECOMPUTE_FULL,
                       .offload = TC_OFFLOAD_PARAMS };
  char text[48];
  for (int key = 0; key < TC_KEYS; key++) {
    value_text(text, sizeof text, &x, key);
    is_str(text, want[key], "%s", tc_plan_key_name[key]);
  }
  x.pp = 1;
  x.sequence = false;
  value_text(text, sizeof text, &x, TC_KEY_SCHEDULE);
  is_str(text, "none", "no schedule of one stage");
  value_text(text, sizeof text, &x, TC_KEY_SEQUENCE);
  is_str(text, "no", "no sequence");
}

static int sign(int x) { return (x > 0) - (x < 0); }

static void test_order(void)
{
  const struct tc_cand a = { .s = 1, .bytes = 5 }, b = { .s = 2, .bytes = 4 },
                       c = { .s = 1, .bytes = 6 };
  ok(sign(by_time(&a, &b)) == -1 && sign(by_time(&b, &a)) == 1, "the faster guess first");
  ok(sign(by_time(&a, &c)) == -1 && sign(by_time(&c, &a)) == 1, "... the smaller of two as fast");
  is_int(by_time(&a, &a), 0, "... or none");
  static struct tc_plan_row x, y;
  x.plan.time.step_s = 1;
  y.plan.time.step_s = 2;
  ok(sign(by_step(&x, &y)) == -1 && sign(by_step(&y, &x)) == 1 && by_step(&x, &x) == 0,
     "the faster row first");
}

static void test_alike(void)
{
  static struct tc_plan_row r;
  struct tc_cand x = cand();
  x.s = 100;
  r.plan.size[TC_PP] = 2, r.plan.size[TC_CP] = 1, r.plan.size[TC_TP] = 2;
  r.plan.micro = 3, r.plan.virtual_stages = 1, r.guess_s = 100.19;
  r.cfg.parallel_schedule = TC_SCHEDULE_1F1B;
  r.cfg.parallel_data = TC_DATA_DDP;
  ok(alike(&x, &r), "rows that differ by less than 0.2 %%");
  r.guess_s = 100.21;
  ok(!alike(&x, &r), "... by more");
  r.guess_s = 100;
  int32_t *const part[] = { &x.pp, &x.cp, &x.tp, &x.micro, &x.virtual_stages };
  for (int i = 0; i < 5; i++) {
    ++*part[i];
    ok(!alike(&x, &r), "another number, %d", i);
    --*part[i];
  }
  x.schedule = TC_SCHEDULE_ZB;
  ok(!alike(&x, &r), "another schedule");
  x.schedule = TC_SCHEDULE_1F1B;
  x.data = TC_DATA_ZERO1;
  ok(!alike(&x, &r), "another system");
  x.data = TC_DATA_DDP;
  x.dp = 9;
  x.recompute = TC_RECOMPUTE_FULL;
  ok(alike(&x, &r), "what changes next to nothing");
}

static void test_misses(void)
{
  struct miss m[] = { { true, TC_DATA_DDP, TC_SCHEDULE_1F1B, false, 1 },
                      { true, TC_DATA_DDP, TC_SCHEDULE_ZB, true, 2 },
                      { true, TC_DATA_DDP, TC_SCHEDULE_1F1B, true, 3 },
                      { .used = false } };
  struct tc_cand x = cand();
  is_int(find_miss(m, &x) - m, 2, "a miss of the same kind");
  x.pp = 1;
  is_int(find_miss(m, &x) - m, 0, "... of one stage");
  x.data = TC_DATA_ZERO1;
  is_int(find_miss(m, &x) - m, 3, "... of another system: the end");
  x.data = TC_DATA_DDP;
  x.schedule = TC_SCHEDULE_ZB;
  is_int(find_miss(m, &x) - m, 3, "... of another schedule");
}

int main(void)
{
  test_near();
  test_fitting();
  test_values();
  test_order();
  test_alike();
  test_misses();
  return done_testing();
}
