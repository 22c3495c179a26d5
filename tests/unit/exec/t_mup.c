/* t_mup.c - muP (model.mup) as a coordinate check: after a few steps at one rate the losses of single tokens have changed as much
 * in wide models as in narrow ones, and without muP by more the wider the model is. At the base width it changes nothing. */
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "src/program/program.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

enum { PROGRAMS = 3, CONTEXT = 8, VOCAB = 32, BATCH = 2, TOKENS = BATCH * CONTEXT, HEAD = 16, BASE = 32, WIDE = 128, STEPS = 3 };

/* Steps train on other tokens each; evaluations, of step 0, on the same. */
static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)ctx;
  (void)starts;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    tc_philox(r, 9, (uint64_t)rt->step, (uint64_t)(row0 + i));
    tokens[i] = (int32_t)(r[0] % VOCAB);
    targets[i] = (int32_t)((r[0] / VOCAB * 7 + r[0]) % (VOCAB / 2));
  }
}

static struct tc_runtime at_step(int64_t step)
{
  return (struct tc_runtime){ .seed = 3, .step = step, .lr = 2e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-12f,
                              .muon_momentum = 0.95f };
}

/* The losses of each token after `steps` steps. */
static void losses(double nll[TOKENS], struct tc_exec *x, const struct tc_program *eval, int steps)
{
  struct tc_runtime rt = at_step(0);
  struct tc_err err = { .text = "" };
  int rc = tc_exec_run(x, 2, &rt, &err);
  for (int i = 1; i <= steps && !rc; i++) {
    rt = at_step(i);
    rc = tc_exec_run(x, 0, &rt, &err);
  }
  rt = at_step(0);
  if (!rc) rc = tc_exec_run(x, 1, &rt, &err);
  if (rc) ok(false, "a run: %s", err.text);
  const float *got = tc_exec_tensor(x, 1, eval->graph->nll);
  for (int i = 0; i < TOKENS; i++) nll[i] = (double)got[i];
}

/* The root mean square of the change of a token's loss by the steps; `last`: the losses after them. */
static double change(struct tc_device *d, const struct tc_mesh *m, const struct tc_model *model, enum tc_update update,
                     double last[TOKENS])
{
  const int kind[PROGRAMS] = { TC_TRAIN, TC_EVAL, TC_INIT };
  struct tc_program *p[PROGRAMS] = { NULL };
  struct tc_exec_opts xo = { .device = d, .mesh = m, .fill = fill };
  struct tc_exec *x = NULL;
  struct tc_err err = { .text = "" };
  double first[TOKENS], sum = 0;
  int rc = 0;
  for (int i = 0; i < PROGRAMS && !rc; i++) {
    const struct tc_program_opts o = {
      .kind = kind[i], .model = *model, .system = &tc_systems[TC_DATA_DDP], .overlap = true, .update = update,
      .gpt = { .batch = BATCH, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1, .losses = kind[i] == TC_EVAL } };
    rc = tc_program_new(&p[i], &o, m, 0, i ? p[0] : NULL, NULL, &err);
  }
  if (!rc) rc = tc_exec_new(&x, &xo, p, PROGRAMS, &err);
  if (!ok(rc == 0, "a model of width %d %s", (int)model->hidden, err.text)) exit(1);
  losses(first, x, p[1], 0);
  losses(last, x, p[1], STEPS);
  for (int i = 0; i < TOKENS; i++) sum += (last[i] - first[i]) * (last[i] - first[i]);
  tc_exec_free(x);
  for (int i = 0; i < PROGRAMS; i++) tc_program_free(p[i]);
  return sqrt(sum / TOKENS);
}

static const struct { const char *what; struct tc_model m; } models[] = {
  { "gpt2", { .family = TC_FAMILY_GPT2 } },
  { "llama", { .family = TC_FAMILY_LLAMA } },
  { "qwen3, tied", { .family = TC_FAMILY_QWEN3, .tied = TC_ON } },
  { "olmo2", { .family = TC_FAMILY_OLMO2 } },
};

static struct tc_model of_width(const struct tc_model *m, int64_t hidden, bool mup)
{
  struct tc_model x = *m;
  x.layers = 1, x.hidden = hidden, x.heads = hidden / HEAD, x.head_dim = HEAD, x.ffn = 2 * hidden, x.context = CONTEXT, x.vocab = VOCAB;
  x.mup = mup ? BASE : -1;
  return x;
}

int main(void)
{
  struct tc_err err;
  struct tc_device *d;
  struct tc_mesh *m = fx_mesh(1, 1, 1, 1);
  if (tc_device_open(&d, "ref", 1, &err) < 0) return 1;
  for (size_t i = 0; i < 2 * sizeof models / sizeof *models; i++) {
    const enum tc_update update = i % 2 ? TC_UPDATE_MUON : TC_UPDATE_ADAMW;
    const char *what = models[i / 2].what, *by_what = tc_word_train_optimizer(tc_update_row[update].optimizer);
    double last[2][2][TOKENS], by[2][2];
    for (int mup = 0; mup < 2; mup++)
      for (int wide = 0; wide < 2; wide++) {
        const struct tc_model x = of_width(&models[i / 2].m, wide ? WIDE : BASE, mup);
        by[mup][wide] = change(d, m, &x, update, last[mup][wide]);
      }
    ok(memcmp(last[0][0], last[1][0], sizeof last[0][0]) == 0, "%s, %s: at the base width muP is nothing", what, by_what);
    const double with = by[1][1] / by[1][0], without = by[0][1] / by[0][0];
    ok(with > 0.3 && with < 1.4, "%s, %s: with muP losses change by %.4f and, 4 times as wide, by %.4f", what, by_what,
       by[1][0], by[1][1]);
    ok(without > 1.8, "%s, %s: without it by %.4f and %.4f", what, by_what, by[0][0], by[0][1]);
  }
  static const struct { enum tc_update update; double by; } rate[] = {
    { TC_UPDATE_ADAMW, 4 }, { TC_UPDATE_LION, 4 }, { TC_UPDATE_MUON, 2 } };
  for (size_t i = 0; i < sizeof rate / sizeof *rate; i++) {
    const struct tc_param p = { .kind = (uint8_t)rate[i].update, .width = 4 };
    ok(tc_update_width(&p) == (float)rate[i].by, "4 times as wide: rates of update %d are divided by %g", rate[i].update, rate[i].by);
  }
  tc_device_close(d);
  tc_mesh_free(m);
  return done_testing();
}
