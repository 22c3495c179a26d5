/* t_oracle.c - the preset tiny against PyTorch: each tensor's gradient of the first step (stored
 * in float64) and ten losses of AdamW. tests/oracle/torch_gpt.py made the figures; it says how.
 *
 * Made by: tercio train --model.preset=tiny --data.train=LICENSE.md --train.global_batch=8
 *   --train.steps=1 --train.lr=0 --train.clip=0 --run.out=DIR, then
 *   torch_gpt.py DIR/ckpt/step-00000001 LICENSE.md 1 8 10 3e-4 tests/oracle/tiny.json */
#include "src/data/data.h"
#include "src/program/program.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

#include <jansson.h>

enum { BATCH = 8, STEPS = 10 };

struct ctx {
  char *text;
  json_t *want;
  bool done;
};

static void fill(void *data, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets)
{
  struct tc_err err = { 0 };
  if (tc_data_train(data, rt->seed, rt->step, row0 / 128, rows / 128, tokens, targets, &err) < 0)
    ok(false, "%s", err.text);
}

static void check_gradient(const struct ctx *c, const struct tc_graph *g, struct tc_exec *x)
{
  double worst_norm = 0, worst = 0;
  for (int32_t i = 0; i < g->n_params; i++) {
    json_t *w = json_object_get(json_object_get(c->want, "grad"), g->param[i].name);
    if (!ok(w != NULL, "PyTorch has %s", g->param[i].name)) continue;
    const float *d = tc_exec_tensor(x, 0, g->param[i].acc);
    double sum = 0, err = 0, ref = 0;
    int64_t n = tc_tensor_elems(&g->tensor[g->param[i].acc]);
    for (int64_t k = 0; k < n; k++) sum += (double)d[k] * d[k];
    json_t *at = json_object_get(w, "at"), *value = json_object_get(w, "value");
    for (size_t k = 0; k < json_array_size(at); k++) {
      double v = json_real_value(json_array_get(value, k));
      double e = d[json_integer_value(json_array_get(at, k))] - v;
      err += e * e;
      ref += v * v;
    }
    double norm = json_real_value(json_object_get(w, "norm"));
    worst_norm = fmax(worst_norm, fabs(sqrt(sum) / norm - 1));
    double rel = sqrt(err / ref);
    if (!(rel <= worst)) worst = rel;
  }
  ok(worst < 1e-5, "gradients at sampled elements: worst tensor off by %.1e", worst);
  ok(worst_norm < 1e-5, "norms of gradients: worst tensor off by %.1e", worst_norm);
}

static void body(struct fx_rank *r)
{
  struct ctx *c = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program *p[2];
  struct tc_data *data;          /* a rank's own: it is one thread's at a time */
  if (tc_data_open(&data, &c->text, 1, TC_FORMAT_TEXT, 1, 128, 256, &err) < 0) {
    ok(false, "text %s", err.text);
    return;
  }
  struct tc_exec *x;
  const int kind[2] = { TC_TRAIN, TC_INIT };
  for (int i = 0; i < 2; i++) {
    struct tc_program_opts o = {
      .kind = kind[i], .model = { "tiny", 4, 128, 4, 128, 256 },
      .gpt = { .batch = BATCH, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 },
      .system = tc_system_find("ddp"), .adamw = true, .overlap = true };
    if (tc_program_new(&p[i], &o, r->mesh, r->rank, i ? p[0] : NULL, NULL, &err) < 0) return;
  }
  struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank, .fill = fill,
                            .fill_ctx = data };
  memcpy(o.comm, r->comm, sizeof o.comm);
  if (tc_exec_new(&x, &o, p, 2, &err) < 0) return;
  struct tc_runtime rt = { .seed = 1, .lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = 0.1f, .clip = 1 };
  tc_exec_run(x, 1, &rt, &err);
  double worst = 0;
  for (int s = 1; s <= STEPS; s++) {
    rt.step = s;
    if (tc_exec_run(x, 0, &rt, &err) < 0) return;
    if (s == 1 && r->rank == 0) check_gradient(c, p[0]->graph, x);
    double want = json_real_value(json_array_get(json_object_get(c->want, "losses"),
                                                 (size_t)s - 1));
    double got = tc_exec_scalar(x, 0, p[0]->graph->loss), rel = fabs(got / want - 1);
    if (!(rel <= worst)) worst = rel;
  }
  if (r->rank == 0) ok(worst < 1e-5, "ten losses: off by at most %.1e", worst);
  tc_exec_free(x);
  for (int i = 0; i < 2; i++) tc_program_free(p[i]);
  tc_data_free(data);
  if (r->rank == 0) c->done = true;
}

int main(void)
{
  const char *src = getenv("srcdir") ? getenv("srcdir") : ".";
  char text[1000], json[1000];
  snprintf(text, sizeof text, "%s/LICENSE.md", src);
  snprintf(json, sizeof json, "%s/tests/oracle/tiny.json", src);
  struct ctx c = { .text = text, .want = json_load_file(json, 0, NULL) };
  if (!ok(c.want != NULL, "%s is read", json)) return done_testing();
  for (int dp = 1; dp <= 2; dp++) {
    struct tc_mesh *m = fx_mesh(dp, 1, dp, 1);
    c.done = false;
    fx_run(m, "cpu", body, &c);
    ok(c.done, "cpu, dp %d, %d micro-batches: ran", dp, dp);
    tc_mesh_free(m);
  }
  json_decref(c.want);
  return done_testing();
}
