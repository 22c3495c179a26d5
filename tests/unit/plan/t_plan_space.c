/* t_plan_space.c - which layouts the planner's search goes through (space.c, search.c): combinations,
 * what contradicts itself, how many nodes would do, which of the best are made. Guesses and
 * layouts are the test's own; each of them adds a line to the list of plan_list.h. */
#include "src/base/thread.h"
#include "src/plan/guess.h"
#include "tests/unit/plan_config.h"
#include "tests/unit/plan/plan_list.h"

static struct {
  int guesses, layouts, cp;        /* cp: bit 1 << N: mesh.cp = N was tried */
  int64_t most_world;
  double world_that_fits, world_that_is_made;    /* 0: not asked */
  const struct made { double step_s, bytes, host; int status; } *made;
} seen;

/* Of 100 bytes a layout of one stage needs 130, 110 or 90 by what it computes again, less where
 * there are more stages or states rest in the host's memory. */
static int my_guess(struct tc_guess *g, struct tc_cand *x, struct tc_err *err)
{
  (void)g;
  const int64_t world = (int64_t)x->pp * x->dp * x->tp;
  seen.guesses++;
  seen.most_world = TC_MAX(seen.most_world, world);
  seen.cp |= 1 << x->cp;
  x->s = 1;
  if (seen.world_that_fits > 0) {
    x->bytes = (double)world >= seen.world_that_fits ? 100 : 101;
    return 0;
  }
  static const double bytes[] = { [TC_RECOMPUTE_NONE] = 130, [TC_RECOMPUTE_SELECTIVE] = 110,
                                  [TC_RECOMPUTE_FULL] = 90 };
  const bool offload = x->offload != TC_OFFLOAD_NO;
  x->bytes = bytes[x->recompute] - 10 * (x->pp - 1) - (offload ? 25 : 0);
  x->host_bytes = offload ? 25 : 0;
  note("%d %d %d, %d x %d, %s %d %s %s %d, %s %d %d %s\n", x->pp, x->dp, x->tp, x->micro, x->n_mb,
       tc_word_parallel_data(x->data), x->shard, tc_word_parallel_reduce(x->reduce), tc_word_parallel_schedule(x->schedule),
       x->virtual_stages, tc_word_train_recompute(x->recompute), x->sequence, x->regather, tc_word_parallel_offload(x->offload));
  return x->tp == 5 ? tc_fail(err, TC_ELAYOUT, "five is odd") : 0;
}

static int my_layout(struct tc_plan *out, const struct tc_config *c, int world,
                     const struct tc_cluster *k, bool exact, struct tc_err *err)
{
  *out = (struct tc_plan){ .world = world, .n_cls = 2,
                           .size = { [TC_PP] = (int)c->mesh_pp, [TC_CP] = (int)c->mesh_cp, [TC_TP] = (int)c->mesh_tp },
                           .virtual_stages = 1, .micro = (int)c->train_micro_batch, .worst = 1 };
  note("%s pp %d on %d%s\n", tc_word_parallel_data(c->parallel_data), out->size[TC_PP], world, exact ? " exactly" : "");
  const struct made one = { 1, (double)world >= seen.world_that_is_made ? 100 : 101, 0, 0 };
  const struct made *m = seen.made ? &seen.made[seen.layouts] : &one;
  seen.layouts++;
  out->time.step_s = m->step_s;
  out->cls[1].memory.bytes[TC_DEVICE] = (int64_t)m->bytes;
  out->cls[1].memory.bytes[TC_HOST] = (int64_t)m->host;
  (void)k;
  return m->status ? tc_fail(err, m->status, "layout %d can't be", seen.layouts) : 0;
}
#define tc_cpus() 1                /* a list of what is made, in order */
#define tc_guess(g, x, err) my_guess(g, x, err)
#define tc_plan_layout(out, c, world, k, exact, err) my_layout(out, c, world, k, exact, err)
#include "src/plan/candidates.c"
#include "src/plan/space.c"
#include "src/plan/search.c"

static struct tc_config cfg;
static struct tc_cluster cluster;
static struct tc_plan_found found;
static struct search s;

static void set_up(int nodes, int devices)
{
  memset(&seen, 0, sizeof seen);
  list_clear();
  cfg = (struct tc_config){ .train_precision = TC_F32, .parallel_annotations = "", .mesh_stages = (char *)(uintptr_t)"auto", .train_global_batch = 24, .mesh_pp = 1,
                            .mesh_dp = 1, .mesh_shard = TC_AUTO, .mesh_tp = 1, .parallel_data = TC_DATA_ZERO1,
                            .parallel_schedule = TC_SCHEDULE_1F1B,
                            .parallel_virtual_stages = 1, .train_recompute = TC_RECOMPUTE_FULL,
                            .parallel_offload = TC_OFFLOAD_UPDATE, .train_micro_batch = 2 };
  cluster = (struct tc_cluster){ .nodes = nodes, .devices = devices,
                                  .device = { .name = "it", .memory_bytes = 100 } };
  cluster.device.flops[TC_BF16] = 1;
  found = (struct tc_plan_found){ .least_bytes = INFINITY };
  s = (struct search){ .out = &found, .c = &cfg, .k = &cluster, .nodes = nodes };
  s.g.cfg = &cfg;
  s.g.model = (struct tc_model){ .layers = 6, .hidden = 4, .heads = 12, .kv_heads = 12, .context = 2 };
}

static void done(void)
{
  free(s.cand);
  tc_plan_found_done(&found);
}

/* ---- all combinations ---------------------------------------------------------------------- */

#define H(key) (1u << TC_KEY_##key)
#define SMALL H(DATA) | H(SCHEDULE) | H(RECOMPUTE) | H(OFFLOAD) | H(SEQUENCE)

static const struct {
  const char *what;
  int nodes, devices;
  unsigned fixed;
  int pp, dp, tp, micro, virtual_stages, batch, layers, heads, across, sequence;
  int schedule;                  /* 1 + enum tc_schedule; 0: 1f1b */
  int guesses, families;
  uint32_t digest;
} rows[] = {
#include "tests/unit/plan/plan_rows.h"
};

static void test_rows(void)
{
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    set_up(rows[i].nodes, rows[i].devices);
    cfg.mesh_pp = rows[i].pp;
    cfg.mesh_dp = rows[i].dp;
    cfg.mesh_tp = rows[i].tp;
    cfg.train_micro_batch = rows[i].micro;
    cfg.parallel_virtual_stages = rows[i].virtual_stages;
    if (rows[i].batch) cfg.train_global_batch = rows[i].batch;
    if (rows[i].layers) s.g.model.layers = rows[i].layers;
    if (rows[i].heads) s.g.model.heads = s.g.model.kv_heads = rows[i].heads;
    cfg.mesh_tp_across_nodes = rows[i].across;
    cfg.parallel_sequence = rows[i].sequence;
    if (rows[i].schedule) cfg.parallel_schedule = (enum tc_schedule)(rows[i].schedule - 1);
    s.fixed = rows[i].fixed;
    tc_search_all(&s);
    for (int f = 0; f < found.n_families; f++) {
      const struct tc_plan_family *x = &found.family[f];
      note("%s = %s: %lld, %lld fit, %g %s\n", tc_plan_key_name[x->key], x->name, (long long)x->n,
           (long long)x->fit, x->least_bytes, x->why);
    }
    note("%lld %lld %lld, %d kept, least %g\n", (long long)found.considered,
         (long long)found.possible, (long long)s.fitting, s.n, found.least_bytes);
    is_int(found.n_families, rows[i].families, "%s: families", rows[i].what);
    is_int(seen.guesses, rows[i].guesses, "... how many guesses");
    is_list(rows[i].digest, "... the list of guesses and families");
    done();
  }
}

/* The layouts of "free" by a rule for each number, in loops: 2 nodes of 4, 6 layers, 12 heads, 24 sequences. */
static int layouts_of(int pp, int dp, int tp, int micro)
{
  const int n_mb = 24 / dp / micro;
  int states = 1, orders = 0, recompute = 0;     /* ddp; by system and groups of copies; by schedule and virtual stages */
  if (dp > 1) states += 3 + (n_mb > 1);          /* zero3 may reduce gradients at each micro-batch, or once */
  for (int shard = 2; shard < dp; shard *= 2)
    if (shard >= 4 / tp) states += 3 + (n_mb > 1);
  if (pp == 1) orders = 1;
  else orders = 3;                               /* gpipe, 1f1b, zb */
  for (int virtual = 2; pp > 1 && virtual * pp <= 6; virtual++) orders += n_mb % pp == 0;
  for (int i = 0; i < 3; i++) recompute += 1 + (130 - 20 * i - 10 * (pp - 1) > 100);         /* and offloaded */
  return states * orders * (tp > 1 ? 3 : 1) * recompute;
}

static void test_complete(void)
{
  int n = 0;
  for (int pp = 1; pp <= 6; pp++)
    for (int tp = 1; tp <= 4; tp *= 2)
      for (int dp = 1; dp <= 8; dp++)
        for (int micro = 1; micro <= 24 && pp * dp * tp == 8 && 24 % dp == 0; micro++)
          if (24 / dp % micro == 0) n += layouts_of(pp, dp, tp, micro);
  set_up(2, 4);
  tc_search_all(&s);
  is_int(seen.guesses, n, "free: as many guesses as there are layouts");
  done();
}

/* ---- contradictions ------------------------------------------------------------------------ */

/* What of six keys is fixed, in all ways, with these values. */
static void test_contradictions(void)
{
  static const struct {
    int nodes, devices, pp, dp, tp, virtual_stages, sequence, bf16;
    enum tc_schedule schedule;
    int refused;
    uint32_t digest;
  } of[] = {
    { 2, 4, 2, 2, 2, 1, 0, 0, TC_SCHEDULE_1F1B, 0, 0 },
    { 2, 4, 2, 2, 1, 1, 1, 0, TC_SCHEDULE_INTERLEAVED, 31, 3442749109 },
    { 2, 4, 7, 1, 1, 2, 1, 0, TC_SCHEDULE_GPIPE, 46, 3550271831 },
    { 2, 7, 7, 2, 1, 1, 0, 0, TC_SCHEDULE_ZB, 32, 207489605 },
    { 2, 4, 1, 4, 4, 2, 0, 0, TC_SCHEDULE_INTERLEAVED, 28, 3464044209 },
    { 1, 6, 6, 1, 1, 3, 0, 1, TC_SCHEDULE_NAIVE, 64, 1012643328 },
    { 1, 2, 1, 1, 1, 0, 0, 1, TC_SCHEDULE_1F1B, 64, 3236172689 },
  };
  const int key[] = { TC_KEY_PP, TC_KEY_TP, TC_KEY_DP, TC_KEY_SEQUENCE, TC_KEY_VIRTUAL_STAGES,
                      TC_KEY_SCHEDULE };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    int refused = 0;
    set_up(of[i].nodes, of[i].devices);
    cfg.mesh_pp = of[i].pp;
    cfg.mesh_dp = of[i].dp;
    cfg.mesh_tp = of[i].tp;
    cfg.parallel_virtual_stages = of[i].virtual_stages;
    cfg.parallel_sequence = of[i].sequence;
    cfg.parallel_schedule = of[i].schedule;
    if (of[i].bf16) cfg.train_precision = TC_BF16, cluster.device.flops[TC_BF16] = 0;
    for (int mask = 0; mask < 1 << 6; mask++) {
      struct tc_err err = { 0 };
      s.fixed = 0;
      for (int k = 0; k < 6; k++)
        if (mask >> k & 1) s.fixed |= 1u << key[k];
      const int rc = tc_search_contradicts(&s, &err);
      refused += rc != 0;
      if (rc) note("%x: %d %s\n", (unsigned)mask, rc, err.text);
    }
    is_int(refused, of[i].refused, "contradictions of row %d", (int)i);
    is_list(of[i].digest, "... which");
    done();
  }
  struct tc_err err = { 0 };
  set_up(1, 2);
  cfg.train_precision = TC_BF16;
  is_int(tc_search_contradicts(&s, &err), 0, "bf16 on a device that multiplies it");
}

/* ---- nodes that would do ------------------------------------------------------------------- */

static void alone(int nodes, int devices)
{
  set_up(nodes, devices);
  cfg.train_global_batch = 0;                    /* splits over everything */
  cfg.train_micro_batch = 1;
  s.fixed = H(PP) | H(TP) | H(MICRO) | H(DATA) | H(SCHEDULE) | H(RECOMPUTE) | H(SEQUENCE) |
           H(OFFLOAD);
}

static void test_nodes(void)
{
  static const struct { int nodes, devices; double fits; int want; int64_t most; } at[] = {
    { 1, 4, 1, 2, 8 }, { 1, 4, 8, 2, 8 }, { 1, 4, 9, 3, 16 }, { 1, 4, 12, 3, 16 },
    { 1, 4, 13, 4, 16 }, { 1, 4, 17, 5, 32 }, { 1, 4, 25, 7, 32 }, { 3, 4, 13, 4, 24 },
    { 3, 2, 19, 10, 24 }, { 5, 1, 11, 11, 20 },
    { 1, 4, 262144, 65536, 262144 }, { 1, 4, 262145, 0, 262144 }, { 1, 512, 1e9, 0, 8388608 },
    { 65535, 1, 131070, 131070, 131070 }, { 65536, 1, 1, 0, 0 }, { 2, 4194304, 1, 0, 0 } };
  for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
    alone(at[i].nodes, at[i].devices);
    seen.world_that_fits = at[i].fits;
    is_int(find_nodes(&s, at[i].nodes), at[i].want,
           "%d nodes of %d, %g ranks fit: so many nodes", at[i].nodes, at[i].devices, at[i].fits);
    is_int(seen.most_world, at[i].most, "... the largest that is looked at");
    is_int(s.n, 0, "... nothing is kept");
    done();
  }
  /* Where guesses were too low, a quarter more each time. */
  static const struct { double fits, made; int want, layouts; } made[] = {
    { 9, 9, 3, 1 }, { 9, 13, 4, 2 }, { 9, 17, 5, 3 }, { 9, 29, 8, 6 }, { 9, 33, 10, 7 },
    { 9, 41, 12, 8 }, { 9, 49, 0, 8 } };
  for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
    alone(1, 4);
    seen.world_that_fits = made[i].fits;
    seen.world_that_is_made = made[i].made;
    is_int(sufficient_nodes(&s), made[i].want, "%g ranks are guessed to fit, %g do", made[i].fits,
           made[i].made);
    is_int(seen.layouts, made[i].layouts, "... after so many layouts");
    done();
  }
}

/* cp of so many ranks, of 8, is tried where bit 1 << cp is set. */
static void test_context(void)
{
  static const struct { int64_t context; bool zigzag, heads; int given, want; const char *what; } list[] = {
    { 8190, false, false, 0, 1 << 1, "parts of less than 4,096 tokens" },
    { 8192, true, false, 0, 1 << 1 | 1 << 2, "two parts of 4,096" },
    { 8194, false, false, 0, 1 << 1 | 1 << 2, "two parts of 4,097" },
    { 8194, true, false, 0, 1 << 1, "... which have no halves" },
    { 16384, true, false, 0, 1 << 1 | 1 << 2 | 1 << 4, "four parts" },
    { 1 << 20, true, false, 0, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8, "as many as ranks" },
    { 1 << 20, true, true, 0, 1 << 1 | 1 << 2, "two heads, of which each part has one" },
    { 64, true, false, 4, 1 << 4, "a cp that is given" },
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    set_up(1, 8);
    s.g.model.context = list[i].context;
    s.g.model.heads = s.g.model.kv_heads = 2;
    cfg.parallel_zigzag = list[i].zigzag;
    cfg.parallel_context = list[i].heads ? TC_CONTEXT_HEADS : TC_CONTEXT_KEYS;
    cfg.mesh_cp = list[i].given;
    s.fixed = list[i].given ? 1u << TC_KEY_CP : 0;
    tc_search_all(&s);
    is_int(seen.cp, list[i].want, "cp: %s", list[i].what);
    done();
  }
  struct tc_err err = { 0 };
  set_up(1, 8);
  cfg.mesh_pp = cfg.mesh_tp = 1, cfg.mesh_dp = 4;
  s.fixed = 1u << TC_KEY_PP | 1u << TC_KEY_DP | 1u << TC_KEY_TP;
  s.g.model.context = 4096;
  is_int(tc_search_contradicts(&s, &err), TC_ELAYOUT, "pp, dp and tp that leave ranks");
  s.g.model.context = 8192;
  is_int(tc_search_contradicts(&s, &err), 0, "... which cp can have");
  done();
}

/* ---- the best, made ------------------------------------------------------------------------ */

static const struct tc_cand plain = { .pp = 1, .dp = 2, .cp = 1, .tp = 1, .micro = 1, .virtual_stages = 1,
                                      .n_mb = 4, .shard = TC_AUTO, .reduce = TC_REDUCE_AUTO, .data = TC_DATA_DDP, .schedule = TC_SCHEDULE_1F1B,
                                      .recompute = TC_RECOMPUTE_NONE,
                                      .offload = TC_OFFLOAD_NO };

/* Candidates of `kinds`: each letter is one, and its system; capitals have two stages. */
static void candidates(const char *kinds, const double *bytes)
{
  for (int i = 0; kinds[i]; i++) {
    struct tc_cand x = plain;
    x.pp = kinds[i] < 'a' ? 2 : 1;
    x.data = TC_DATA_DDP + (kinds[i] | 32) - 'a';
    x.s = 10 + i;
    x.bytes = bytes[i];
    TC_GROW(s.cand, s.n, s.cap);
    s.cand[s.n++] = x;
  }
}

static void test_best(void)
{
  static const struct {
    const char *what, *kinds;
    int top;
    double host, guess[8];
    struct made made[8];
    const char *text;            /* what is made */
    int n_rows;
    double step[4], least;
    const char *why;
  } of[] = {
    { "as many as are asked for", "abcdABCD", 3, 0, { 50, 50, 50, 50, 50, 50, 50, 50 },
      { { 3, 100, 0, 0 }, { 2, 99, 0, 0 }, { 4, 1, 0, 0 }, { 1, 1, 0, 0 } },
      "ddp pp 1 on 8\nzero1 pp 1 on 8\nzero2 pp 1 on 8\n", 3, { 2, 3, 4 }, INFINITY, "" },
    { "two of three", "abc", 2, 0, { 50, 50, 50 },
      { { 3, 100, 0, 0 }, { 2, 101, 0, 0 }, { 1, 1, 0, 0 } },
      "ddp pp 1 on 8\nzero1 pp 1 on 8\nzero2 pp 1 on 8\n", 2, { 1, 3 }, INFINITY, "" },
    { "what did not fit, and needs no less", "aaaAaab", 4, 0, { 50, 50, 49, 50, 60, 48, 70 },
      { { 1, 103, 0, 0 }, { 1, 102, 0, 0 }, { 1, 104, 0, 0 }, { 1, 105, 0, 0 }, { 5, 106, 0, 0 } },
      "ddp pp 1 on 8\nddp pp 1 on 8\nddp pp 2 on 8\nddp pp 1 on 8\nzero1 pp 1 on 8\n", 0, { 0 }, 102, "" },
    { "what can't be", "abc", 2, 0, { 50, 50, 50 },
      { { 1, 1, 0, TC_ELAYOUT }, { 1, 1, 0, TC_EUSER }, { 7, 8, 0, 0 } },
      "ddp pp 1 on 8\nzero1 pp 1 on 8\nzero2 pp 1 on 8\n", 1, { 7 }, INFINITY, "layout 1 can't be" },
    { "what the host has no room for", "abAB", 4, 80, { 50, 50, 50, 50 },
      { { 4, 1, 20, 0 }, { 3, 1, 21, 0 }, { 2, 1, 19, 0 }, { 1, 101, 30, 0 } },
      "ddp pp 1 on 8\nzero1 pp 1 on 8\nddp pp 2 on 8\nzero1 pp 2 on 8\n", 2, { 2, 4 }, INFINITY, "" },
    { "a miss of two stages says nothing of one", "Aab", 4, 0, { 50, 60, 50 },
      { { 1, 103, 0, 0 }, { 4, 104, 0, 0 }, { 5, 9, 0, 0 } },
      "ddp pp 2 on 8\nddp pp 1 on 8\nzero1 pp 1 on 8\n", 1, { 5 }, INFINITY, "" },
    { "a host of which nothing is known", "a", 4, 0, { 50 }, { { 4, 1, 2000, 0 } },
      "ddp pp 1 on 8\n", 1, { 4 }, INFINITY, "" },
    { "nothing", "", 4, 0, { 0 }, { { 0, 0, 0, 0 } }, "", 0, { 0 }, INFINITY, "" },
  };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    set_up(2, 4);
    cluster.device.host_bytes = of[i].host;
    seen.made = of[i].made;
    candidates(of[i].kinds, of[i].guess);
    make_best(&s, of[i].top);
    is_str(list, of[i].text, "%s: what is made", of[i].what);
    is_int(found.n_rows, of[i].n_rows, "... rows");
    for (int k = 0; k < found.n_rows; k++)
      ok(found.row[k].plan.time.step_s == of[i].step[k] && found.row[k].guess_bytes == 50 &&
         found.row[k].guess_s >= 10, "... row %d: %g s", k, found.row[k].plan.time.step_s);
    ok(found.least_bytes == of[i].least, "... the least bytes: %g", found.least_bytes);
    is_str(found.why, of[i].why, "... why not");
    done();
  }
}

/* Rows alike are made once; of those that can't be, so many are tried; so many kinds of misses are
 * kept in mind. */
static void test_tries(void)
{
  set_up(2, 4);
  const struct made good[2] = { { 1, 1, 0, 0 }, { 2, 1, 0, 0 } };
  seen.made = good;
  candidates("aaa", (const double[]){ 50, 50, 50 });
  s.cand[1].s = 10.001;
  s.cand[2].s = 10.1;
  make_best(&s, 3);
  is_int(seen.layouts, 2, "a row like one before is not made");
  is_int(found.n_rows, 2, "... the others are");
  done();
  static struct made bad[100];
  for (int i = 0; i < 100; i++) bad[i] = (struct made){ 1, 1, 0, TC_ELAYOUT };
  for (int top = 1; top < 3; top++) {
    set_up(2, 4);
    seen.made = bad;
    for (int i = 0; i < 100; i++) candidates("a", (const double[]){ 50 });
    make_best(&s, top);
    is_int(seen.layouts, 64 + top, "so many are tried for %d", top);
    done();
  }
  /* 33 systems and schedules that don't fit: the last is not kept in mind, so its like is made again. */
  static struct made large[100];
  for (int i = 0; i < 100; i++) large[i] = (struct made){ 1, 200 + i, 0, 0 };
  set_up(2, 4);
  seen.made = large;
  for (int i = 0; i < 66; i++) {
    candidates("a", (const double[]){ 50 });
    s.cand[i].data = i % 33 % 7;
    s.cand[i].schedule = i % 33 / 7;
    s.cand[i].s = i;
  }
  make_best(&s, 1);
  is_int(seen.layouts, 34, "one of 33 kinds is made twice");
  ok(found.least_bytes == 200, "... the least of all: %g", found.least_bytes);
  done();
}

/* ---- the beginning ------------------------------------------------------------------------- */

static void test_start(void)
{
  static const struct { int64_t dp, tp, virtual_stages; unsigned want; } of[] = {
    { 2, 3, 4, H(DP) | H(TP) | H(VIRTUAL_STAGES) | H(PP) },
    { TC_AUTO, 1, 1, H(TP) | H(VIRTUAL_STAGES) | H(PP) }, { 0, 1, 1, H(TP) | H(VIRTUAL_STAGES) | H(PP) },
    { 1, TC_AUTO, 1, H(DP) | H(VIRTUAL_STAGES) | H(PP) }, { 1, 0, 1, H(DP) | H(VIRTUAL_STAGES) | H(PP) },
    { 1, 1, TC_AUTO, H(DP) | H(TP) | H(PP) }, { 1, 1, 0, H(DP) | H(TP) | H(VIRTUAL_STAGES) | H(PP) } };
  struct tc_config *c = CONFIG("--model.layers=3", "--model.hidden=8", "--model.heads=2",
                               "--model.context=5", "--model.vocab=7");
  struct tc_err err = { 0 };
  set_up(3, 4);
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    c->mesh_dp = of[i].dp;
    c->mesh_tp = of[i].tp;
    c->parallel_virtual_stages = of[i].virtual_stages;
    is_int(search_start(&s, c, &cluster, H(DP) | H(TP) | H(VIRTUAL_STAGES) | H(PP), &err), 0,
           "dp %lld, tp %lld, virtual stages %lld", (long long)of[i].dp, (long long)of[i].tp,
           (long long)of[i].virtual_stages);
    is_int(s.fixed, of[i].want, "... what is fixed");
  }
  is_int((int64_t)s.g.layer_params, 12 * 64 + 13 * 8, "parameters of a layer");
  is_int((int64_t)s.g.rest_params, (7 + 5) * 8 + 16, "... and of the rest");
  ok(s.c == c && s.k == &cluster && s.nodes == 3 && s.g.cfg == c && s.g.k == &cluster,
     "... of this cluster");
  c->model_layers = 0;
  is_int(search_start(&s, c, &cluster, 0, &err), TC_EUSER, "no layers: %s", err.text);
  tc_config_free(c);
}

/* The stages by hand are those of so many stages. */
static void test_config(void)
{
  set_up(2, 4);
  cfg.mesh_stages = "0-2,3-5";
  for (int pp = 1; pp < 4; pp++) {
    struct tc_cand x = plain;
    cfg.mesh_pp = 2;
    x.pp = pp;
    x.near_pp = pp == 3;
    const struct tc_config c = tc_cand_config(&cfg, &x);
    is_str(c.mesh_stages, pp == 2 ? "0-2,3-5" : "auto", "%d stages: their layers", pp);
    is_int(c.mesh_order, pp == 3 ? TC_TP_PP_DP : TC_TP_DP_PP, "... their order");
    ok(c.mesh_pp == pp && c.mesh_dp == 2 && c.mesh_tp == 1 && c.train_micro_batch == 1 &&
       c.parallel_virtual_stages == 1 && !c.parallel_sequence, "... numbers");
    ok(c.parallel_data == TC_DATA_DDP && c.parallel_schedule == TC_SCHEDULE_1F1B &&
       c.train_recompute == TC_RECOMPUTE_NONE && c.parallel_offload == TC_OFFLOAD_NO, "... choices");
  }
}

int main(void)
{
  test_config();
  test_rows();
  test_complete();
  test_context();
  test_contradictions();
  test_nodes();
  test_best();
  test_tries();
  test_start();
  return done_testing();
}
