/* t_batches.c - rows of a batch, of training and of validation data, for a rank that takes part of a sequence; and that none
 * is being read when a stage changes what it is read by. */
#include <unistd.h>

#include "src/train/parts.h"
static void change_stage(struct tc_run *r, int k);
#define tc_run_stage(r, k) change_stage(r, k)
#include "src/train/stage.c"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/tap.h"

enum { T = 8, N = 4 };

/* Rows of a batch, from the middle of a sequence to that of another, are the rows of the whole batch; after
 * a fault all are 0. */
static void test_rows(struct tc_train *t, struct tc_data *d)
{
  static const int64_t row[][2] = { { 0, N * T }, { 3, 10 }, { 8, 8 },   { 8, 9 },
                                    { 7, 1 },     { 7, 2 },  { 15, 17 }, { 31, 1 } };
  struct tc_runtime rt = { .seed = 7, .step = 5 };
  for (int eval = 0; eval < 2; eval++) {
    int32_t want[2][N * T], got[2][N * T];
    const int64_t last = tc_data_windows(d, 0);
    t->run.opts.model.context = T;
    t->run.opts.gpt.batch = (int)(last - 3); /* the fourth window of the second batch is none */
    t->batches.eval_batch = eval ? 1 : -1;
    t->rollback.skipped = 2;
    const struct tc_samples s = { TC_ORDER_PERMUTATION, 7, last - 3 };
    const struct tc_batch to = { want[0], want[1], NULL };
    if (!eval) TC_ASSERT(tc_data_train(d, NULL, &s, 7, 0, N, &to, NULL) == 0);
    for (int i = 0; eval && i < 3; i++)
      TC_ASSERT(tc_data_window(d, NULL, 0, last - 3 + i, &(struct tc_batch){ want[0] + i * T, want[1] + i * T, NULL },
                               NULL) == 0);
    for (int i = 3 * T; eval && i < N * T; i++) want[0][i] = 0, want[1][i] = -1;
    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
      const size_t at = (size_t)row[k][0], n = (size_t)row[k][1], bytes = n * sizeof **got;
      memset(got, 0x55, sizeof got);
      tc_train_fill(t, &rt, row[k][0], row[k][1], got[0], got[1], NULL);
      ok(!memcmp(got[0], want[0] + at, bytes) && !memcmp(got[1], want[1] + at, bytes),
         "%zu rows from %zu, %s", n, at, eval ? "validation" : "training");
      ok(n == N * T || (got[0][n] == 0x55555555 && got[1][n] == 0x55555555), "... and no more");
    }
  }
  int32_t x[3] = { 1, 1, 1 }, y[3] = { 1, 1, 1 };
  t->batches.err.status = TC_EUSER;
  tc_train_fill(t, &rt, 0, 2, x, y, NULL);
  ok(x[0] == 0 && x[1] == 0 && x[2] == 1 && y[0] == 0 && y[1] == 0 && y[2] == 1,
     "after a fault: zeros");
  t->batches.err.status = 0;
  t->batches.eval_batch = -1;
  t->rollback.skipped = 0;
}

/* Two ranks of cp and two of dp: what each has is, by hand, these parts of these sequences, with their documents' starts. */
static void test_parts(struct tc_train *t, struct tc_graph *g)
{
  static const int at[2][8] = { { 0, 1, 2, 3, 4, 5, 6, 7 }, { 0, 1, 6, 7, 2, 3, 4, 5 } };      /* positions, part after part */
  struct tc_runtime rt = { .seed = 7, .step = 5 };
  int32_t all[3][N * T], got[3][N * T];
  tc_train_fill(t, &rt, 0, N * T, all[0], all[1], all[2]);
  for (int zigzag = 0; zigzag < 2; zigzag++) {
    g->rows = (struct tc_row_order){ T, N / 2, 2, zigzag };
    for (int part = 0; part < 4; part++) {
      const int row0 = part * N * T / 4;
      bool same = true;
      tc_train_fill(t, &rt, row0, N * T / 4, got[0], got[1], got[2]);
      for (int i = 0; i < N * T / 4; i++)
        for (int k = 0; k < 3; k++)
          same &= got[k][i] == all[k][(part / 2 * 2 + i / 4) * T + at[zigzag][part % 2 * 4 + i % 4]];
      ok(same, "dp %d, cp %d%s", part / 2, part % 2, zigzag ? ", zigzag" : "");
    }
  }
  g->rows = (struct tc_row_order){ .T = T };
}

/* Context and batch change while nothing is read, though the step before the border had the next one's batch read ahead, as
 * before a rollback. */
static struct tc_train *changing;

static void change_stage(struct tc_run *r, int k)
{
  r->at = k;
  r->opts.model.context = T / (k + 1);
  ok(!changing->batches.train_prefetch && !changing->batches.val_prefetch, "nothing is read while stage %d begins", k + 1);
}

static void test_stages(struct tc_train *t)
{
  struct tc_stage list[2] = { { .first = 1 }, { .first = 6 } };
  struct tc_stage_data *one = t->batches.stage, both[2] = { *one, *one };
  struct tc_runtime rt = { .step = 6 };
  int32_t x[N * T], y[N * T];
  t->run.stages = list;
  t->run.n_stages = 2;
  t->run.at = 1;
  t->run.rank = 1;                               /* rank 0 says more */
  t->batches.stage = both;
  changing = t;
  for (int64_t step = 5; step <= 6; step++) {
    tc_train_fill(t, &rt, 0, N * T, x, y, NULL);
    ok(t->batches.train_prefetch != NULL, "a batch, and the next one ahead");
    tc_train_stage(t, step);
    is_int(t->run.at, step - 5, "... then step %lld", (long long)step);
    rt.step = 1;
  }
  tc_train_stage(t, 1);
  t->run.stages = NULL;
  t->run.n_stages = 1;
  t->run.rank = 0;
  t->batches.stage = one;
}

int main(void)
{
  static char *text = "text";
  const struct tc_config cfg = { .train_steps = 10, .train_seed = 3, .train_seed_data = 7 };
  const struct tc_data_opts opts = { &text, 1, TC_FORMAT_TEXT, 1, 8, 256, 0, false, false, false, false };
  struct tc_graph graph = { .rows = { .T = T } };
  struct tc_program program = { .graph = &graph };
  struct tc_train t = { .run = { .cfg = &cfg, .prog = { [TC_TRAIN] = &program } } };
  struct tc_data *d;
  struct tc_err err = { 0 };
  FILE *file = chdir(fx_folder()) == 0 ? fopen("text", "w") : NULL;
  for (int i = 0; file && i < 100; i++) fprintf(file, "%d\n", i);
  if (file) fclose(file);
  if (tc_data_open(&d, &opts, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    return 1;
  }
  t.batches.stage = tc_calloc(1, sizeof *t.batches.stage);
  t.batches.stage[0] = (struct tc_stage_data){ .train = d, .val = d, .order.d = d };
  t.run.n_stages = 1;
  tc_train_data_stage(&t, 0);
  test_rows(&t, d);
  test_parts(&t, &graph);
  test_stages(&t);
  t.batches.stage[0].val = NULL; /* which is d, too */
  tc_train_data_close(&t);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
