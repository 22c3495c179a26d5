/* t_rollback.c - which losses are bad, against a naive median, and what a checkpoint holds of it; what a run ends with that
 * may not go back. */
#include <math.h>

#include "src/train/parts.h"
#include "tests/unit/tap.h"

static bool step(struct tc_train *t, double loss)
{
  struct tc_step_report s = { .loss = loss, .grad_norm = 1 };
  return tc_rollback_bad(t, &s);
}

/* What a validation may bring, and what is said of it. */
static void test_validation(void)
{
  struct tc_config c = { .train_rollback = 0 };
  struct tc_task task[2] = { { .name = tc_strdup("a"), .not_finite = 0 }, { .name = tc_strdup("b"), .not_finite = 0 } };
  struct tc_train t = { .run = { .cfg = &c }, .ckpt = { .dir = tc_strdup("d") } };
  struct tc_step_report s = { .step = 7, .loss = 2, .grad_norm = 1, .validated = true, .val_loss = 3 };
  const double bad[] = { NAN, -NAN, INFINITY, -INFINITY };
  struct tc_err err;
  int64_t step;
  ok(!tc_rollback_bad(&t, &s) && !tc_rollback_bad_validation(&t, &s), "a good validation");
  t.tasks.task = task, t.tasks.n = 2;
  ok(!tc_rollback_bad_validation(&t, &s), "... with tasks");
  for (int i = 0; i < 4; i++) {
    s.val_loss = bad[i];
    ok(!tc_rollback_bad(&t, &s) && tc_rollback_bad_validation(&t, &s), "a validation loss of %g is bad", bad[i]);
  }
  is_int(tc_rollback_go(&t, &s, &step, &err), TC_EDIVERGED, "... ends the run");
  is_str(err.text, "step 7: loss 2, gradient norm 1, validation loss -inf: training diverged. Try a lower train.lr, a longer "
         "train.warmup, train.clip, or train.rollback", "... with a sentence");
  s.val_loss = 3, task[1].not_finite = 4, t.ckpt.start_step = 6;
  ok(tc_rollback_bad_validation(&t, &s), "answers without a finite loss are bad");
  is_int(tc_rollback_go(&t, &s, &step, &err), TC_EDIVERGED, "... in the first step of a start");
  is_str(err.text, "step 7, the first of this start: loss 2, gradient norm 1, validation loss 3, 4 answers of b without a "
         "finite loss: the weights that it began with may have diverged before they were saved: `tercio ckpt tensors d` "
         "shows NaNs and infinities; ckpt.resume = STEP goes on from an older checkpoint", "... which says what to look at");
  free(task[0].name);
  free(task[1].name);
  free(t.ckpt.dir);
}

static void test_spike(void)
{
  struct tc_config c = { .train_spike = 3 };
  struct tc_train t = { .run.cfg = &c }, u = { .run.cfg = &c };
  struct tc_err err = { 0 };
  bool early = false;
  for (int i = 0; i < 8; i++) early |= step(&t, i == 3 ? 100 : 1 + i / 16.0);
  ok(!early, "no spike while fewer than 8 losses are known");
  ok(!step(&t, 3.5), "three times the median, not more, is none");
  ok(step(&t, 4.5), "more is one");
  is_int(t.rollback.n_losses, 9, "a spike is not counted in");
  ok(step(&t, NAN) && step(&t, INFINITY), "what is no number is bad");
  ok(tc_rollback_bad(&t, &(struct tc_step_report){ .loss = 1, .grad_norm = INFINITY }) &&
     tc_rollback_bad(&t, &(struct tc_step_report){ .loss = 1, .grad_norm = NAN }), "... a gradient norm, too");
  for (int i = 0; i < 40; i++) step(&t, 0.1 + i / 3.0 / 64);
  is_int(t.rollback.n_losses, TC_ROLLBACK_LOSSES, "as many losses as are kept");
  t.rollback.skipped = 12;
  t.rollback.rollbacks = 2;
  char *text = tc_rollback_text(&t);
  is_int(tc_rollback_parse(&u, text, &err), 0, "read back");
  bool same = u.rollback.skipped == 12 && u.rollback.rollbacks == 2 &&
              u.rollback.n_losses == t.rollback.n_losses;
  for (int i = 0; same && i < t.rollback.n_losses; i++) same = u.rollback.loss[i] == t.rollback.loss[i];
  ok(same, "what the loop remembers comes back to the last bit");
  free(text);
  is_int(tc_rollback_parse(&u, "skipped 1 rollbacks 2 losses 1.5 nan 3", &err), 0, "a loss that is no number");
  ok(u.rollback.n_losses == 1 && u.rollback.skipped == 1, "... is not remembered, nor those after it");
  is_int(tc_rollback_parse(&u, "", &err), 0, "nothing to remember");
  ok(u.rollback.skipped == 0 && u.rollback.n_losses == 0, "... forgets what was");
  ok(tc_rollback_parse(&u, "skipped -1 rollbacks 0 losses", &err) == TC_EUSER, "nonsense is refused");
  ok(tc_rollback_parse(&u, "skipped 1", &err) == TC_EUSER, "half of it too");
}

/* Beside a naive one: spikes are left out, the median is of the last good losses, sorted. */
static int by_size(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void test_median(void)
{
  enum { STEPS = 1000 };
  struct tc_config c = { .train_spike = 1.5 };
  struct tc_train t = { .run.cfg = &c };
  double good[STEPS], sorted[TC_ROLLBACK_LOSSES];
  int n = 0, spikes = 0;
  uint32_t x = 1;
  bool same = true;
  for (int i = 0; i < STEPS && same; i++) {
    x = x * 1664525u + 1013904223u;
    const double v = 1 + (x >> 8) * 0x1p-23;     /* 1 to 3 */
    const int kept = n < TC_ROLLBACK_LOSSES ? n : TC_ROLLBACK_LOSSES;
    memcpy(sorted, good + n - kept, (size_t)kept * sizeof *good);
    qsort(sorted, (size_t)kept, sizeof *sorted, by_size);
    const double mid = kept ? (sorted[(kept - 1) / 2] + sorted[kept / 2]) / 2 : 0;
    const bool bad = kept >= 8 && v > 1.5 * mid;
    same = step(&t, v) == bad;
    spikes += bad;
    if (!bad) good[n++] = v;
    const int now = n < TC_ROLLBACK_LOSSES ? n : TC_ROLLBACK_LOSSES;
    same &= t.rollback.n_losses == now &&
            !memcmp(t.rollback.loss, good + n - now, (size_t)now * sizeof *good);
  }
  ok(same && spikes > 10, "%d steps, %d of them spikes: against the median of the last good ones",
     STEPS, spikes);
}

/* What the loop's note may be, and what is reported of another. */
static void test_note(void)
{
  static const char *const bad[] = { "skipped -1 rollbacks 0 losses", "skipped 0 rollbacks -1 losses", "skipped 1",
                                     "skipped 1 rollbacks 2", "x" };
  struct tc_train t = { .run.rank = 0 };
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char *want = tc_sprintf("the checkpoint's note on the training loop makes no sense: \"%s\"", bad[i]);
    is_int(tc_rollback_parse(&t, bad[i], &err), TC_EUSER, "a note that is none");
    is_str(err.text, want, "... is reported");
    free(want);
  }
  is_int(tc_rollback_parse(&t, "; best 1.5 at 20 stale 1", &err), 0, "a note without its part");
  is_int(tc_rollback_parse(&t, "skipped 3 rollbacks 2 losses 1.5 0.25; best 1.5 at 20 stale 1", &err), 0, "with another part");
  ok(t.rollback.n_losses == 2 && t.rollback.skipped == 3, "... of which it reads its own");
  is_int(tc_rollback_parse(&t, "skipped 3 rollbacks 2 losses 1.5 0.25 x 7", &err), 0, "a note");
  ok(t.rollback.skipped == 3 && t.rollback.rollbacks == 2 && t.rollback.n_losses == 2 && t.rollback.loss[0] == 1.5 &&
     t.rollback.loss[1] == 0.25, "... is read up to what is no number");
  char *text = tc_rollback_text(&t);
  is_str(text, "skipped 3 rollbacks 2 losses 1.5 0.25", "... and written");
  free(text);
  t.rollback = (struct tc_rollback){ .skipped = 0 };
  text = tc_rollback_text(&t);
  is_str(text, "", "nothing to note");
  free(text);
}

int main(void)
{
  test_spike();
  test_validation();
  test_median();
  test_note();
  return done_testing();
}
