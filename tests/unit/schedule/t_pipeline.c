/* t_pipeline.c - pipeline schedules against closed formulas of makespan and peak, against a walk of
 * the test's own over items and queues, and with faults put in. */
#include "src/config/choices.h"
#include "src/schedule/pipeline.h"

#include "tests/unit/named.h"
#include "tests/unit/tap.h"

static const struct tc_pipeline_cost even = { 1, 1, 1, 0 };   /* F = B = W */
static const int sizes[] = { 1, 2, 3, 4, 8, 16 };
enum { N_SIZES = sizeof sizes / sizeof *sizes, N_M = 6 };

/* The micro-batches to try with p ranks. */
static int m_of(int p, int i) { return (const int[N_M]){ 1, 2, p, 2 * p, 4 * p, 8 * p }[i]; }

static uint32_t next_random(uint32_t *x, uint32_t below)
{
  *x = *x * 1664525 + 1013904223;
  return (*x >> 8) % below;
}

/* ---- walks of the test's own ---------------------------------------------------------- */

/* Where an item is: [work][stage][mb] -> 1 + its index in its rank's list; 0: nowhere. */
struct where { const struct tc_pipeline *s; int32_t *at, faults; };

static int32_t *place(const struct where *w, int work, int32_t stage, int32_t mb)
{
  size_t stages = (size_t)(w->s->p * w->s->v);
  return &w->at[((size_t)work * stages + (size_t)stage) * (size_t)w->s->m + (size_t)mb];
}

static struct where where_new(const struct tc_pipeline *s)
{
  struct where w = { s, tc_calloc((size_t)(TC_WORKS * s->p * s->v) * (size_t)s->m, sizeof *w.at), 0 };
  for (int r = 0; r < s->p; r++)
    for (int i = 0; i < s->n_items[r]; i++) {
      struct tc_item x = s->item[r][i];
      int32_t *at = place(&w, x.work, x.virtual_stage * s->p + r, x.mb);
      w.faults += *at != 0;
      *at = i + 1;
    }
  return w;
}

/* The inputs of an item as {work, stage}; how many. */
static int inputs(const struct tc_pipeline *s, int work, int stage, int in[2][2])
{
  int n = 0;
  if (work == TC_WORK_W) { in[n][0] = TC_WORK_B; in[n++][1] = stage; }
  if (work == TC_WORK_B) { in[n][0] = TC_WORK_F; in[n++][1] = stage; }
  if (work == TC_WORK_B && stage < s->p * s->v - 1) { in[n][0] = TC_WORK_B; in[n++][1] = stage + 1; }
  if (work == TC_WORK_F && stage > 0) { in[n][0] = TC_WORK_F; in[n++][1] = stage - 1; }
  return n;
}

/* Each item once; no item before its rank is free or its inputs are made; as long as it costs. */
static int audit_times(const struct tc_pipeline *s, const struct tc_simulation *sim)
{
  struct where w = where_new(s);
  int faults = w.faults, works = s->split ? 3 : 2;
  for (int k = 0; k < works; k++)
    for (int st = 0; st < s->p * s->v; st++)
      for (int mb = 0; mb < s->m; mb++) {
        int r = st % s->p, i = *place(&w, k, st, mb) - 1, in[2][2];
        if (i < 0) { faults++; continue; }
        double start = sim->start[r][i];
        faults += sim->end[r][i] - start != (k == TC_WORK_B && !s->split ? 2 : 1);
        faults += i > 0 && start < sim->end[r][i - 1];
        for (int n = inputs(s, k, st, in) - 1; n >= 0; n--)
          faults += start < sim->end[in[n][1] % s->p][*place(&w, in[n][0], in[n][1], mb) - 1];
      }
  for (int r = 0; r < s->p; r++) faults += s->n_items[r] != works * s->v * s->m;
  free(w.at);
  return faults;
}

/* Micro-batch mb uses slot mb % peak of its virtual stage: no slot is taken twice. The peaks are the
 * most in flight at a time, of each virtual stage and of all. */
static int audit_slots(const struct tc_pipeline *s, const struct tc_simulation *sim)
{
  int faults = 0, last = s->split ? TC_WORK_W : TC_WORK_B;
  int *who = tc_malloc((size_t)s->v * (size_t)s->m * sizeof *who);
  for (int r = 0; r < s->p; r++) {
    enum { ALL = 4 };                                        /* above the virtual stages tried */
    int most[ALL + 1] = { 0 }, alive[ALL + 1] = { 0 };
    for (int i = 0; i < s->v * s->m; i++) who[i] = -1;
    for (int i = 0; i < s->n_items[r]; i++) {
      struct tc_item x = s->item[r][i];
      int *slot = &who[x.virtual_stage * s->m + x.mb % sim->peak[r][x.virtual_stage]];
      if (x.work != TC_WORK_F && x.work != last) continue;
      faults += x.work == TC_WORK_F ? *slot != -1 : *slot != x.mb;
      *slot = x.work == TC_WORK_F ? x.mb : -1;
      for (int k = 0; k < 2; k++) {
        int c = k ? ALL : x.virtual_stage;
        alive[c] += x.work == TC_WORK_F ? 1 : -1;
        most[c] = TC_MAX(most[c], alive[c]);
      }
    }
    for (int c = 0; c < s->v; c++) faults += most[c] != sim->peak[r][c];
    faults += most[ALL] != sim->peak_rank[r];
  }
  free(who);
  return faults;
}

/* Whether all comes to its end, by going round the ranks until nothing moves. */
static bool sweep(const struct tc_pipeline *s, const struct tc_transfers *t)
{
  size_t n = (size_t)(TC_WORKS * s->p * s->v) * (size_t)s->m;
  struct where made = { s, tc_calloc(n, sizeof *made.at), 0 };
  struct where came = { s, tc_calloc(n, sizeof *came.at), 0 };
  int *at = tc_calloc((size_t)s->p, sizeof *at), *head = tc_calloc((size_t)s->p, sizeof *head);
  for (bool moved = true; moved; ) {
    moved = false;
    for (int r = 0; r < s->p; r++) {
      if (at[r] < s->n_items[r]) {
        struct tc_item x = s->item[r][at[r]];
        int in[2][2], st = x.virtual_stage * s->p + r, ready = 1;
        for (int k = inputs(s, x.work, st, in) - 1; k >= 0; k--)
          ready &= *place(t && in[k][1] % s->p != r ? &came : &made, in[k][0], in[k][1], x.mb);
        if (ready) {
          *place(&made, x.work, st, x.mb) = 1;
          at[r]++;
          moved = true;
        }
      }
      if (!t || head[r] == t->n_queue[r]) continue;
      const struct tc_transfer *x = &t->t[t->queue[r][head[r]]];
      if (x->from != r || head[x->to] == t->n_queue[x->to] ||
          t->queue[x->to][head[x->to]] != t->queue[r][head[r]] ||
          !*place(&made, x->work, x->stage_from, x->mb))
        continue;
      *place(&came, x->work, x->stage_from, x->mb) = 1;
      head[r]++;
      head[x->to]++;
      moved = true;
    }
  }
  bool all = true;
  for (int r = 0; r < s->p; r++) all &= at[r] == s->n_items[r] && (!t || head[r] == t->n_queue[r]);
  free(made.at);
  free(came.at);
  free(at);
  free(head);
  return all;
}

/* ---- formulas ------------------------------------------------------------------------- */

struct want { double makespan; int peak; };

/* What the literature says at F = B = W = 1, so that a backward of B and W takes 2. */
static struct want want_of(const char *name, int p, int v, int m, int r)
{
  if (!strcmp(name, "naive")) return (struct want){ 3.0 * m * p, 1 };
  if (!strcmp(name, "gpipe")) return (struct want){ 3.0 * (m + p - 1), m };
  if (!strcmp(name, "1f1b")) return (struct want){ 3.0 * (m + p - 1), TC_MIN(m, p - r) };
  if (!strcmp(name, "interleaved"))
    return (struct want){ 3.0 * (v * m + p - 1), TC_MIN(v * m, 2 * (p - 1 - r) + (v - 1) * p + 1) };
  /* ZB-H1: (p-1)/(3m+p-1) idle for m >= p. No schedule is faster: the last stage starts at p - 1
   * and has 3m to do; the first gets its first B at 2p - 1 and then has 2m to do. */
  return (struct want){ TC_MAX(3.0 * m + p - 1, 2.0 * m + 2 * p - 1), TC_MIN(m, p) };
}

static double bubble_of(const char *name, int p, int v, int m)
{
  if (!strcmp(name, "naive")) return 1 - 1.0 / p;
  if (!strcmp(name, "zb")) return (p - 1.0) / (3.0 * m + p - 1);
  return (p - 1.0) / (v * m + p - 1.0);
}

static void test_formulas(const char *name, int v, int p)
{
  struct tc_err err = { 0 };
  int bad_times = 0, bad_slots = 0, wrong_span = 0, wrong_bubble = 0, wrong_peak = 0, tried = 0;
  for (int i = 0; i < N_M; i++) {
    int m = m_of(p, i);
    if (v > 1 && m % p) continue;
    struct tc_pipeline *s;
    struct tc_simulation *sim;
    if (tc_pipeline_new(&s, schedule_named(name), p, v, m, &err) < 0 || tc_pipeline_check(s, &err) < 0 ||
        tc_pipeline_simulate(&sim, s, &even, 1, NULL, &err) < 0) {
      ok(false, "%s p = %d v = %d m = %d: %s", name, p, v, m, err.text);
      return;
    }
    tried++;
    bad_times += audit_times(s, sim);
    bad_slots += audit_slots(s, sim);
    double busy = 0, idle = strcmp(name, "zb") || m >= p ? bubble_of(name, p, v, m) : sim->bubble;
    for (int r = 0; r < p; r++) {
      struct want w = want_of(name, p, v, m, r);
      wrong_span += sim->makespan != w.makespan;
      wrong_peak += sim->peak_rank[r] != w.peak || (v == 1 && sim->peak[r][0] != w.peak);
      busy += sim->busy[r];
    }
    wrong_bubble += fabs(sim->bubble - idle) > 1e-12 || busy != 3.0 * v * m * p;
    tc_simulation_free(sim);
    tc_pipeline_free(s);
  }
  ok(tried >= 4 && !bad_times && !bad_slots, "%s, p = %d, v = %d: each item once, after its inputs; slots",
     name, p, v);
  is_int(wrong_span + wrong_bubble, 0, "%s, p = %d, v = %d: makespan and bubble are the formula's", name,
         p, v);
  is_int(wrong_peak, 0, "%s, p = %d, v = %d: micro-batches alive are the formula's", name, p, v);
}

/* Qi et al., section 4: the bubble of ZB-H1 is (p-1)(F+B-W), of 1F1B (p-1)(F+B+W). */
static void test_zb_costs(void)
{
  const struct tc_pipeline_cost costs[] = { { 2, 3, 1, 0 }, { 1, 1, 1, 0 }, { 4, 5, 3, 0 }, { 3, 5, 2, 0 } };
  struct tc_pipeline *zb, *plain;
  struct tc_simulation *a, *b;
  int wrong = 0;
  for (int i = 0; i < 4; i++)
    for (int p = 2; p <= 8; p *= 2) {
      const struct tc_pipeline_cost *c = &costs[i];
      int m = 2 * p;
      if (tc_pipeline_new(&zb, TC_SCHEDULE_ZB, p, 1, m, NULL) < 0 || tc_pipeline_new(&plain, TC_SCHEDULE_1F1B, p, 1, m, NULL) < 0 ||
          tc_pipeline_simulate(&a, zb, c, 1, NULL, NULL) < 0 ||
          tc_pipeline_simulate(&b, plain, c, 1, NULL, NULL) < 0)
        abort();
      double all = c->f + c->b + c->w;
      wrong += a->makespan != m * all + (p - 1) * (all - 2 * c->w);
      wrong += b->makespan != (m + p - 1) * all;
      for (int r = 0; r < p; r++) {
        wrong += tc_pipeline_peak(zb, r, 0, TC_WORK_F, TC_WORK_B) != p - r;
        wrong += tc_pipeline_peak(zb, r, -1, TC_WORK_B, TC_WORK_W) != r + 1;
      }
      tc_simulation_free(a);
      tc_simulation_free(b);
      tc_pipeline_free(zb);
      tc_pipeline_free(plain);
    }
  is_int(wrong, 0, "zb and 1f1b with other costs: the paper's bubbles; alive from F to B and B to W");
}

/* ---- transfers ------------------------------------------------------------------------ */

/* By time, each in its two ranks' queues, whose order is the list's. */
static int audit_transfers(const struct tc_pipeline *s, const struct tc_transfers *t)
{
  int faults = t->n != (s->p == 1 ? 0 : 2 * (s->p * s->v - 1) * s->m), seen = 0;
  for (int i = 0; i < t->n; i++) {
    const struct tc_transfer *x = &t->t[i];
    faults += i > 0 && x->time < x[-1].time;
    faults += x->from != x->stage_from % s->p || x->to != x->stage_to % s->p;
    faults += x->stage_to - x->stage_from != (x->work == TC_WORK_F ? 1 : -1);
  }
  for (int r = 0; r < t->p; r++)
    for (int i = 0; i < t->n_queue[r]; i++, seen++) {
      const struct tc_transfer *x = &t->t[t->queue[r][i]];
      faults += (x->from != r && x->to != r) || (i > 0 && t->queue[r][i] <= t->queue[r][i - 1]);
    }
  return faults + (seen != 2 * t->n);
}

/* Puts the queues in plain program order: received where needed, sent where made. */
static void program_order(struct tc_transfers *t, const struct tc_pipeline *s)
{
  struct where id = { s, tc_calloc((size_t)(TC_WORKS * s->p * s->v) * (size_t)s->m, sizeof *id.at), 0 };
  for (int i = 0; i < t->n; i++) *place(&id, t->t[i].work, t->t[i].stage_from, t->t[i].mb) = i + 1;
  for (int r = 0; r < s->p; r++) {
    int n = 0;
    for (int i = 0; i < s->n_items[r]; i++) {
      struct tc_item x = s->item[r][i];
      int in[2][2], st = x.virtual_stage * s->p + r;
      for (int k = inputs(s, x.work, st, in) - 1; k >= 0; k--)
        if (in[k][1] % s->p != r) t->queue[r][n++] = *place(&id, in[k][0], in[k][1], x.mb) - 1;
      if (x.work != TC_WORK_W && *place(&id, x.work, st, x.mb))
        t->queue[r][n++] = *place(&id, x.work, st, x.mb) - 1;
    }
    if (n != t->n_queue[r]) abort();
  }
  free(id.at);
}

/* Whether the simulator and the test's walk agree on these queues; *ends is what they say. */
static bool agree(const struct tc_pipeline *s, const struct tc_transfers *t, bool *ends)
{
  struct tc_simulation *sim = NULL;
  struct tc_err err = { 0 };
  const int rc = tc_pipeline_simulate(&sim, s, &even, 1, t, &err);
  *ends = rc == 0;
  tc_simulation_free(sim);
  return *ends == sweep(s, t) && *ends == !strstr(err.text, "deadlock: rank") && (*ends || rc == TC_ELAYOUT);
}

/* Without buffers: the order by time always ends; program order does or doesn't, as stated; two
 * neighbours in one queue that go between the same ranks, swapped, never end. */
static void test_transfers(const char *name, int v, bool (*hangs)(int p, int m))
{
  struct tc_err err = { 0 };
  int bad = 0, stuck = 0, wrong = 0, tried = 0, n_hang = 0, swapped = 0;
  bool ends;
  for (int k = 0; k < N_SIZES * N_M; k++) {
    int p = sizes[k / N_M], m = m_of(p, k % N_M);
    if (v > 1 && m % p) continue;
    struct tc_pipeline *s;
    struct tc_transfers *t;
    if (tc_pipeline_new(&s, schedule_named(name), p, v, m, &err) < 0 || tc_pipeline_transfers(&t, s, NULL, 0, &err) < 0) {
      ok(false, "%s p = %d v = %d m = %d: %s", name, p, v, m, err.text);
      return;
    }
    tried++;
    bad += audit_transfers(s, t);
    stuck += !agree(s, t, &ends) || !ends;
    for (int i = 0; p > 1 && i + 1 < t->n_queue[1]; i++) {
      int32_t *q = &t->queue[1][i], q0 = q[0];
      if (t->t[q0].from + t->t[q0].to != t->t[q[1]].from + t->t[q[1]].to) continue;
      q[0] = q[1];
      q[1] = q0;
      stuck += !agree(s, t, &ends) || ends;
      swapped++;
      break;
    }
    program_order(t, s);
    wrong += !agree(s, t, &ends) || ends == hangs(p, m);
    n_hang += !ends;
    tc_transfers_free(t);
    tc_pipeline_free(s);
  }
  is_int(bad, 0, "%s, v = %d: transfers by time, each in two queues", name, v);
  ok(tried >= 24 && swapped > 10 && !stuck, "%s, v = %d: no deadlock by time without buffers; one if swapped",
     name, v);
  is_int(wrong, 0, "%s, v = %d: in program order %d of %d hang", name, v, n_hang, tried);
}

static bool never(int p, int m) { (void)p; (void)m; return false; }
static bool beyond_one(int p, int m) { return p > 1 && m > 1; }

/* A transfer that is in a queue once more than it is sent. */
static void test_left_over(void)
{
  struct tc_err err = { 0 };
  struct tc_pipeline *s;
  struct tc_transfers *t;
  bool ends;
  if (tc_pipeline_new(&s, TC_SCHEDULE_GPIPE, 2, 1, 1, &err) < 0 || tc_pipeline_transfers(&t, s, NULL, 0, &err) < 0) abort();
  int32_t more[] = { 0, 1, 0 }, n_more[] = { 3, 2 }, *queues[] = { more, t->queue[1] };
  struct tc_transfers wrong = { t->p, t->n, t->t, queues, n_more };
  ok(agree(s, &wrong, &ends) && !ends, "a transfer left over is noticed");
  tc_transfers_free(t);
  tc_pipeline_free(s);
}

/* By hand: what costs of single stages, sending and serial queues do to the clock. */
static void test_clock(void)
{
  const struct tc_pipeline_cost cost[] = { { 1, 3, 0.25, 0.5 }, { 2, 4, 0.75, 8 } };
  const struct tc_pipeline_cost slow = { 1, 1, 1, 10 }, nan = { 1, NAN, 1, 0 };
  const struct tc_pipeline_cost none[] = { { 0, 1, 1, 0 }, { 1, 0, 1, 0 }, { 1, 1, 0, 0 }, { 1, 1, -1,
      0 } };
  struct tc_pipeline *s;
  struct tc_simulation *sim;
  struct tc_transfers *t;
  struct tc_err err = { 0 };
  if (tc_pipeline_new(&s, TC_SCHEDULE_1F1B, 2, 1, 1, &err) < 0) abort();
  is_int(tc_pipeline_simulate(&sim, s, cost, 2, NULL, &err), 0, "costs by stage %s", err.text);
  near_f(sim->makespan, 1 + 0.5 + 2 + 4.75 + 8 + 3.25, 1e-12, "F, send, F, B, send, B");
  near_f(sim->bubble, 1 - 11.0 / (2 * 19.5), 1e-12, "and what is idle");
  tc_simulation_free(sim);
  tc_pipeline_free(s);
  if (tc_pipeline_new(&s, TC_SCHEDULE_GPIPE, 2, 1, 2, &err) < 0) abort();
  if (!is_int(tc_pipeline_transfers(&t, s, &slow, 1, &err), 0, "transfers by costs %s", err.text)) return;
  is_int(tc_pipeline_simulate(&sim, s, &slow, 1, NULL, &err), 0, "links without limit %s", err.text);
  near_f(sim->start[1][1], 2 + 10, 1e-12, "the second F arrives beside the first");
  tc_simulation_free(sim);
  if (!is_int(tc_pipeline_simulate(&sim, s, &slow, 1, t, &err), 0, "one queue a rank %s", err.text)) return;
  near_f(sim->start[1][1], 1 + 10 + 10, 1e-12, "the second F arrives after the first");
  tc_simulation_free(sim);
  tc_transfers_free(t);
  for (int i = 0; i < 4; i++)
    is_int(tc_pipeline_transfers(&t, s, &none[i], 1, &err), TC_EUSER, "no time: no order");
  is_int(tc_pipeline_transfers(&t, s, (struct tc_pipeline_cost[]){ slow, none[1] }, 2, &err), TC_EUSER,
         "of one stage");
  ok(strstr(err.text, "work on stage 1") != NULL, "... which is named: %s", err.text);
  is_int(tc_pipeline_simulate(&sim, s, &nan, 1, NULL, &err), TC_EUSER, "a cost that is none: %s", err.text);
  tc_pipeline_free(s);
}

/* ---- faults --------------------------------------------------------------------------- */

static struct tc_pipeline *random_sched(uint32_t *x)
{
  const char *name = tc_word_parallel_schedule(next_random(x, 5));
  int p = 2 + (int)next_random(x, 5), v = strcmp(name, "interleaved") ? 1 : 2;
  int m = p * (1 + (int)next_random(x, 3));
  struct tc_pipeline *s;
  if (tc_pipeline_new(&s, schedule_named(name), p, v, m, NULL) < 0) abort();
  return s;
}

static bool runs(const struct tc_pipeline *s, struct tc_err *err)
{
  struct tc_simulation *sim = NULL;
  bool fine = tc_pipeline_simulate(&sim, s, &even, 1, NULL, err) == 0;
  tc_simulation_free(sim);
  return fine;
}

static void test_faults(void)
{
  enum { TIMES = 500 };
  uint32_t x = 7;
  int missed[4] = { 0 }, noticed = 0;
  for (int n = 0; n < TIMES; n++) {
    struct tc_err err = { 0 };
    struct tc_pipeline *s = random_sched(&x);
    int r = (int)next_random(&x, (uint32_t)s->p);
    char missing[80];
    int32_t *n_items = &s->n_items[r], i = (int32_t)next_random(&x, (uint32_t)*n_items), j = i;
    while (j == i) j = (int32_t)next_random(&x, (uint32_t)*n_items);
    struct tc_item *item = s->item[r], was = item[i], other = item[j];
    item[i] = other;                                         /* one twice, one missing */
    missed[0] += runs(s, &err) || !(strstr(err.text, "a second time") || strstr(err.text, "before its"));
    item[i] = was;
    item[j] = was;                                           /* swapped */
    item[i] = other;
    bool fine = runs(s, &err);
    missed[1] += fine != sweep(s, NULL);
    noticed += !fine;
    item[i] = was;
    item[j] = other;
    for (j = 0; item[j].work == was.work || item[j].mb != was.mb || item[j].virtual_stage != was.virtual_stage; j++) continue;
    item[i] = item[j];                                       /* B and F, say, of one micro-batch */
    item[j] = was;
    missed[2] += runs(s, &err) || !strstr(err.text, "before its");
    item[j] = item[i];
    item[i] = was;
    memmove(item + i, item + i + 1, (size_t)(*n_items - 1 - i) * sizeof *item);
    --*n_items;                                              /* dropped */
    snprintf(missing, sizeof missing, "%c of micro-batch %d on virtual stage %d is missing", "FBW"[was.work],
             was.mb,
             was.virtual_stage);
    missed[3] += runs(s, &err) || !(strstr(err.text, missing) || strstr(err.text, "before its"));
    tc_pipeline_free(s);
  }
  is_int(missed[0], 0, "%d times an item twice is noticed", TIMES);
  is_int(missed[1], 0, "%d times two items swapped: refused (%d) where a walk gets stuck", TIMES, noticed);
  ok(noticed > TIMES / 2, "which most are");
  is_int(missed[2], 0, "%d times the work of one micro-batch out of order is noticed", TIMES);
  is_int(missed[3], 0, "%d times an item dropped is noticed", TIMES);
}

static void test_deadlock(void)
{
  struct tc_err err = { 0 };
  struct tc_pipeline *s;
  if (tc_pipeline_new(&s, TC_SCHEDULE_GPIPE, 2, 1, 2, &err) < 0) abort();
  struct tc_item b0 = s->item[0][2];
  s->item[0][2] = s->item[0][1];
  s->item[0][1] = b0;                                        /* F0 B0 F1 B1, and rank 1 F0 F1 B0 B1 */
  ok(tc_pipeline_check(s, &err) == 0, "each rank's list is fine by itself %s", err.text);
  ok(!runs(s, &err) && err.status == TC_ELAYOUT, "but they wait for each other");
  is_str(err.text, "schedule gpipe, 2 ranks, 2 micro-batches: deadlock: rank 0 at its item 1, B of "
         "micro-batch 0 on virtual stage 0, waits for B of stage 1 on rank 1", "the sentence names rank and item");
  s->item[1][0].mb = 2;
  ok(!runs(s, &err) && strstr(err.text, "rank 1, item 0: there is no"), "an item of no micro-batch: %s",
     err.text);
  tc_pipeline_free(s);
  if (tc_pipeline_new(&s, TC_SCHEDULE_ZB, 2, 1, 1, &err) < 0) abort();
  struct tc_item b = s->item[1][1];
  s->item[1][1] = s->item[1][2];
  s->item[1][2] = b;
  ok(!runs(s, &err) && strstr(err.text, "rank 1, item 1: W of micro-batch 0 on virtual stage 0 comes before its B"),
     "W before B: %s", err.text);
  tc_pipeline_free(s);
}

/* Work, virtual stage and micro-batch at and beyond their limits: what is asked before anything is counted by them. */
static void test_limits(void)
{
  static const struct { const char *name; struct tc_item x; } bad[] = {
    { "gpipe", { TC_WORK_W, 0, 0 } }, { "gpipe", { 9, 0, 0 } },        { "zb", { TC_WORK_W + 1, 0, 0 } },
    { "gpipe", { 0, 1, 0 } },         { "gpipe", { 0, -1, 0 } },       { "gpipe", { 0, 0, 2 } },
    { "gpipe", { 0, 0, -1 } },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_err err = { 0 };
    struct tc_pipeline *s;
    char want[200];
    if (tc_pipeline_new(&s, schedule_named(bad[i].name), 2, 1, 2, &err) < 0) abort();
    s->item[0][1] = bad[i].x;
    snprintf(want, sizeof want, "schedule %s, rank 0, item 1: there is no work %d of micro-batch %d on virtual stage %d",
             bad[i].name, bad[i].x.work, bad[i].x.mb, bad[i].x.virtual_stage);
    is_int(tc_pipeline_check(s, &err), TC_ELAYOUT, "%s: work %d, virtual stage %d, micro-batch %d", bad[i].name,
           bad[i].x.work, bad[i].x.virtual_stage, bad[i].x.mb);
    is_str(err.text, want, "... in these words");
    tc_pipeline_free(s);
  }
}

static void test_refusals(void)
{
  static const struct { const char *name; int p, v, m, status; const char *text; } bad[] = {
    { "1f1b", 4, 2, 8, TC_ELAYOUT, "1 would, or schedule interleaved" },
    { "zb", 4, 3, 8, TC_ELAYOUT, "1 would, or schedule interleaved" },
    { "interleaved", 4, 1, 8, TC_ELAYOUT, "2 would fit, or schedule 1f1b" },
    { "interleaved", 4, 2, 6, TC_ELAYOUT, "4 or 8 would" },
    { "interleaved", 4, 2, 3, TC_ELAYOUT, "do not fit; 4 would" },
    { "gpipe", 0, 1, 1, TC_ELAYOUT, "0 stages" },
    { "gpipe", 1, -1, 1, TC_ELAYOUT, "-1 virtual stages a rank" },
    { "gpipe", 1, 1, 0, TC_ELAYOUT, "0 micro-batches" },
    { "naive", 65536, 1, 65536, TC_ELAYOUT, "items of work" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_err err = { 0 };
    struct tc_pipeline *s = NULL;
    int rc = tc_pipeline_new(&s, schedule_named(bad[i].name), bad[i].p, bad[i].v, bad[i].m, &err);
    ok(rc == bad[i].status && !s && strstr(err.text, bad[i].text), "refused: %s", err.text);
  }
}

int main(void)
{
  for (enum tc_schedule i = TC_SCHEDULE_NAIVE; i <= TC_SCHEDULE_ZB; i++) {
    const char *const name = tc_word_parallel_schedule(i);
    bool virtual_stages = i == TC_SCHEDULE_INTERLEAVED;
    for (int v = virtual_stages ? 2 : 1; v <= (virtual_stages ? 4 : 1); v += 2)
      for (int k = 0; k < N_SIZES; k++) test_formulas(name, v, sizes[k]);
  }
  test_zb_costs();
  test_transfers("naive", 1, never);
  test_transfers("gpipe", 1, never);
  test_transfers("1f1b", 1, beyond_one);
  test_transfers("zb", 1, beyond_one);
  test_transfers("interleaved", 2, beyond_one);
  test_transfers("interleaved", 4, beyond_one);
  test_left_over();
  test_clock();
  test_faults();
  test_deadlock();
  test_limits();
  test_refusals();
  return done_testing();
}
