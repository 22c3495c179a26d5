/* t_stop_if.c - train.stop_if: what is refused; when drawn losses end a run, beside a plain count; the note in checkpoints. */
#include "src/recipe/recipe.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <stdlib.h>

static int read_form(struct tc_stop_if *s, const char *text, int64_t every, struct tc_err *err)
{
  const struct tc_config c = { .train_stop_if = (char *)(uintptr_t)text, .train_eval_every = every };
  return tc_stop_if_read(s, &c, err);
}

static void test_forms(void)
{
  struct tc_stop_if none;
  struct tc_err why = { 0 };
  is_int(read_form(&none, "stale:2", 0, &why), TC_EUSER, "without validations: %s", why.text);
  is_int(read_form(&none, "", 0, &why), 0, "... which nothing needs");
  static const struct { const char *text; int rc; int64_t most; double below; } row[] = {
    { "", 0, 0, 0 }, { "stale:1", 0, 1, 0 }, { "stale:12 below:2.5", 0, 12, 2.5 }, { "  below:1e-3 ", 0, 0, 1e-3 },
    { "below:3 below:2", 0, 0, 2 }, { "stale", TC_EUSER, 0, 0 }, { "stale:", TC_EUSER, 0, 0 }, { "stale:0", TC_EUSER, 0, 0 },
    { "stale:1.5", TC_EUSER, 0, 0 }, { "stale:-1", TC_EUSER, 0, 0 }, { "below:0", TC_EUSER, 0, 0 }, { "below:nan", TC_EUSER, 0, 0 },
    { "below:inf", TC_EUSER, 0, 0 }, { "stale:3,below:2", TC_EUSER, 0, 0 }, { "stale:3x", TC_EUSER, 0, 0 },
    { "stale:1e10", TC_EUSER, 0, 0 }, { "above:3", TC_EUSER, 0, 0 }, { "3", TC_EUSER, 0, 0 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_stop_if s;
    struct tc_err err = { 0 };
    is_int(read_form(&s, row[i].text, 5, &err), row[i].rc, "\"%s\" %s", row[i].text, err.text);
    if (row[i].rc == 0) ok(s.most == row[i].most && s.below == row[i].below, "... its numbers");
    if (row[i].rc == 0) ok(!tc_stop_if_met(&s), "... does not end a run before a validation");
  }
}

/* Drawn losses, of few values so that some are equal. Now and then the state goes through a checkpoint's note. */
static void test_drawn(void)
{
  enum { RUNS = 400, VALIDATIONS = 40 };
  const uint64_t seed = test_seed(false);
  int wrong = 0, ended = 0;
  for (uint64_t run = 0; run < RUNS; run++) {
    struct tc_stop_if s;
    struct tc_err err;
    double loss[VALIDATIONS];
    const int most = (int)(10 * (double)tc_uniform(seed, 1, 0, run));
    char text[60] = "", note[200];
    if (most) snprintf(text, sizeof text, "stale:%d below:%g", most, 0.04);
    else snprintf(text, sizeof text, "below:%g", 0.04);
    TC_ASSERT(read_form(&s, text, 5, &err) == 0);
    for (int i = 0; i < VALIDATIONS; i++) {
      loss[i] = floor(20 * (double)tc_uniform(seed, 2, (uint32_t)i, run)) / 20 + 0.01;
      tc_stop_if_validated(&s, 10 * (i + 1), loss[i]);
      if (i % 7 == 3) {
        char *half = tc_stop_if_text(&s);
        snprintf(note, sizeof note, "skipped 3 rollbacks 1 losses 2.5%s", half);
        free(half);
        tc_stop_if_parse(&s, note);
      }
      int best = 0;
      for (int k = 1; k <= i; k++) if (loss[k] < loss[best]) best = k;
      const bool ends = loss[best] < 0.04 || (most && i - best >= most);
      wrong += tc_stop_if_met(&s) != ends || s.best != loss[best] || s.best_step != 10 * (best + 1);
      ended += ends;
    }
  }
  is_int(wrong, 0, "%d runs of drawn losses: ends where a plain count does", RUNS);
  ok(ended > RUNS, "... which is so for some (%d)", ended);
}

/* Notes of rollback.c alone, of neither, and nonsense. */
static void test_notes(void)
{
  static const char *const note[] = { "", "skipped 1 rollbacks 2 losses 1.5", "; best", "; best nan at 3 stale 1", "x; best 1" };
  for (size_t i = 0; i < sizeof note / sizeof *note; i++) {
    struct tc_stop_if s = { .best = 1, .stale = 3, .most = 2 };
    tc_stop_if_parse(&s, note[i]);
    ok(isinf(s.best) && s.stale == 0 && s.most == 2, "\"%s\": no validation yet", note[i]);
  }
}

int main(void)
{
  test_forms();
  test_drawn();
  test_notes();
  return done_testing();
}
