/* t_setup_stages.c - the sections [stage N]: drawn ones have the steps, tokens and options that a walk over all steps finds,
 * and read back from their text; what can't be is refused with a sentence. */
#include "src/program/setup.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

enum { STAGES = 6, ARGS = 60 };

struct args { char text[ARGS][80], *arg[ARGS + 1]; int n; };

__attribute__((format(printf, 2, 3))) static void add(struct args *a, const char *form, ...)
{
  va_list v;
  va_start(v, form);
  vsnprintf(a->text[a->n], sizeof a->text[0], form, v);
  va_end(v);
  a->arg[a->n] = a->text[a->n];
  a->n++;
}

static void begin(struct args *a, int64_t steps)
{
  a->n = 0;
  add(a, "train");
  add(a, "--model.preset=llama-tiny");
  add(a, "--model.context=16");
  add(a, "--data.val=x");
  add(a, "--train.global_batch=4");
  add(a, "--train.steps=%lld", (long long)steps);
}

/* A stage as the test draws it: what it gives, or 0. */
struct drawn { int64_t from, batch, context; bool tokens; double lr; };

static void test_drawn(void)
{
  struct drawn of[STAGES];
  struct args a;
  const int n = (int)draw(1, STAGES);
  int64_t first = 1, tokens = 0, batch = 4, context = 16;
  const int64_t steps = 40 * (n + 1);
  begin(&a, steps);
  for (int k = 0; k < n; k++) {
    struct drawn *s = &of[k];
    const int64_t length = draw(1, 30), each = batch * context;
    *s = (struct drawn){ .batch = draw(0, 1) ? draw(1, 12) : 0, .context = draw(0, 1) ? 8 * draw(1, 4) : 0,
                         .tokens = draw(0, 1), .lr = draw(0, 1) ? (double)draw(1, 9) / 1024 : 0 };
    tokens += length * each;
    first += length;
    s->from = s->tokens ? tokens - draw(0, each - 1) : first;
    add(&a, "--stage%d.from=%lld%s", k + 2, (long long)s->from, s->tokens ? " tokens" : "");
    if (s->batch) add(&a, "--stage%d.train.global_batch=%lld", k + 2, (long long)(batch = s->batch));
    if (s->context) add(&a, "--stage%d.model.context=%lld", k + 2, (long long)(context = s->context));
    if (s->lr > 0) add(&a, "--stage%d.train.lr=%.17g", k + 2, s->lr);
  }
  struct tc_config *c = NULL, *again = NULL;
  struct tc_config_change change;
  struct tc_stage *list = NULL;
  struct tc_err err = { 0 };
  is_int(tc_config_new(&c, a.n, a.arg, &err), 0, "%d stages %s", n, err.text);
  is_int(tc_setup_stages(&list, c, &err), 0, "... are a run's %s", err.text);
  if (!c || !list) return;
  char *text = tc_config_text(c);
  is_int(tc_config_saved(&again, text, 0, NULL, &err), 0, "... and read back");
  is_int(tc_config_next_change(c, again, 0, &change), -1, "... as they are");
  /* Step by step: a stage begins when the step or the tokens are reached. */
  int64_t wrong = 0, done = 0;
  double lr = 1e-3;
  int at = 0;
  for (int64_t step = 1, b = 4, t = 16; step <= steps; step++) {
    while (at < n && (of[at].tokens ? done >= of[at].from : step >= of[at].from)) {
      if (of[at].batch) b = of[at].batch;
      if (of[at].context) t = of[at].context;
      if (of[at].lr > 0) lr = of[at].lr;
      at++;
    }
    done += b * t;
    const struct tc_stage *s = &list[tc_stages_at(list, n + 1, step)];
    wrong += s != &list[at] || s->c.train_global_batch != b || s->context != t || s->c.train_lr != lr ||
             tc_stages_tokens(list, n + 1, step) != done;
  }
  is_int(wrong, 0, "... each step is of its stage, with its batch, context, rate and tokens");
  TC_FREE(text, list);
  tc_config_free(c);
  tc_config_free(again);
}

static const struct { const char *flag[4], *text; } bad[] = {
  { { "--stage2.train.lr=1" }, "stage 2 has no from" },
  { { "--stage3.from=9" }, "stages have numbers without a gap" },
  { { "--stage1.from=9" }, "the stages after the first are [stage 2] to" },
  { { "--stage2.from={nope}" }, "--stage2.from: {nope} is not known" },
  { { "--stage2.from=0" }, "--stage2.from is \"0\"; it has to be the stage's first step" },
  { { "--stage2.from=1.5" }, "it has to be the stage's first step" },
  { { "--stage2.from=9 words" }, "it has to be the stage's first step" },
  { { "--stage2.from=1" }, "would begin with step 1, but stage 1 begins with step 1" },
  { { "--stage2.from=101" }, "after the last one" },
  { { "--stage2.from=9", "--stage3.from=9" }, "stage 3 would begin with step 9, but stage 2 begins with step 9" },
  { { "--stage2.from=9", "--stage2.train.optimizer=lion" }, "a stage can't change train.optimizer" },
  { { "--stage2.from=9", "--stage2.train.global_batch=0" }, "--stage2.train.global_batch is \"0\"" },
  { { "--stage2.from=9", "--stage2.train.min_lr=1" }, "stage 2 has train.min_lr = 1 above train.lr = 0.001" },
  { { "--stage2.from=9", "--stage2.model.context=8", "--model.preset=tiny" }, "the model's positions are learned" },
  { { "--stage2.from=9", "--stage2.data.train=y", "--data.val=" }, "name files in data.val" },
  { { "--ckpt.every=stage" }, "ckpt.every = stage is after each stage, but the run has only one" },
  { { "--train.eval_every=stage", "--train.stop_if=stale:2" }, "train.eval_every = stage is after each stage" },
  { { "--stage2.from=9", "--data.epochs=2" }, "data.epochs = 2 counts passes" },
};

static void test_refused(void)
{
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct args a;
    struct tc_config *c = NULL;
    struct tc_stage *list = NULL;
    struct tc_err err = { 0 };
    begin(&a, 100);
    for (int k = 0; k < 4 && bad[i].flag[k]; k++) add(&a, "%s", bad[i].flag[k]);
    int rc = tc_config_new(&c, a.n, a.arg, &err);
    if (rc == 0) rc = tc_setup_stages(&list, c, &err);
    ok(rc == TC_EUSER && strstr(err.text, bad[i].text) && strncmp(err.text, "--the", 5) && strncmp(err.text, "--a ", 4), "%s %s: %s", bad[i].flag[0], bad[i].flag[1] ? bad[i].flag[1] : "",
       err.text);
    free(list);
    tc_config_free(c);
  }
}

int main(int argc, char **argv)
{
  const int cases = begin_cases(argc, argv, 200);
  for (int i = 0; i < cases; i++) test_drawn();
  test_refused();
  return done_testing();
}
