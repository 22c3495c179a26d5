/* t_oracle.c - models against other programs: each tensor's gradient of the first step (stored in float64) and
 * ten losses of AdamW. The preset tiny against PyTorch (tiny.json), models of each other family against transformers
 * (families.json). The scripts that made the figures say how:
 *
 *   tercio train --model.preset=tiny --data.train=LICENSE.md --data.order=draws --train.global_batch=8
 *     --train.steps=1 --train.lr=0 --train.clip=0 --run.out=DIR, then
 *   torch_gpt.py DIR/ckpt/step-00000001 LICENSE.md 1 8 10 3e-4 tests/oracle/tiny.json
 *   hf_families.py build/tercio LICENSE.md tests/oracle/families.json
 *
 * hf_families.py compares whole gradients; samples of one differ a little more or less.
 *
 * muon.json has ten steps of Muon, with AdamW for what is no layer's matrix, in float64, by
 *   torch_muon.py build/tercio LICENSE.md tests/oracle/muon.json
 *
 * The same with lines as documents (data.documents = mask, data.end_token = 10): tiny-documents.json and
 * documents.json, with 10 and `documents` as the scripts' last argument. */
#include "src/data/data.h"
#include "src/program/program.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

#include <jansson.h>

enum { STEPS = 10, END = '\n' };

/* A sum of k terms in fp32, one after the other: its roundings are independent, of partial sums that grow as the square
 * root of their terms' number, and amount to about 2^-24 sqrt(k / 6) of it. A gradient passes through the sums of the
 * layers forward and backward (qkv, scores, projection, MLP up and down), that over the vocabulary, and is one over the
 * tokens; independent errors add up by their squares. Vector instructions make shorter sums, and smaller errors. */
static double tolerance_of(const struct tc_model *m, int64_t batch)
{
  const int64_t layer = 3 * m->hidden + m->ffn + m->context, k = 2 * m->layers * layer + m->vocab + batch * m->context;
  return 0x1p-24 * sqrt((double)k / 6);
}

struct ctx {
  char *text;
  json_t *want;
  struct tc_model model;
  int64_t batch;
  double tol_grad, tol_norm, tol_loss;          /* of gradients at least; else three times what PyTorch in fp32 is off */
  bool documents, done;
  enum tc_update update;
  int muon_scale;
};

struct source { struct tc_data *data; int64_t T, batch; };

static void fill(void *data, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  const struct source *s = data;
  struct tc_err err = { 0 };
  const struct tc_samples how = { TC_ORDER_DRAWS, rt->seed, s->batch };
  const struct tc_batch to = { tokens, targets, NULL };
  if (tc_data_train(s->data, NULL, &how, rt->step, row0 / s->T, rows / s->T, &to, &err) < 0)
    ok(false, "%s", err.text);
  if (starts) tc_documents_starts(tokens, rows, s->T, END, starts);
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
    const double norm = json_real_value(json_object_get(w, "norm")), theirs = json_real_value(json_object_get(w, "fp32"));
    /* Samples that happen to be small are measured by what so many elements have on average. */
    ref = fmax(ref, norm * norm * (double)json_array_size(at) / (double)n);
    worst_norm = fmax(worst_norm, fabs(sqrt(sum) / norm - 1));
    const double rel = sqrt(err / ref) / fmax(c->tol_grad, 3 * theirs);
    if (!(rel <= worst)) worst = rel;
  }
  ok(worst < 1, "gradients at sampled elements: worst tensor at %.2f of what is allowed", worst);
  ok(worst_norm < c->tol_norm, "norms of gradients: worst tensor off by %.1e", worst_norm);
}

/* Weights at sampled elements, after the last step: within 1e-5, and twice what PyTorch in fp32 is off. */
static void check_weights(const struct ctx *c, const struct tc_graph *g, struct tc_exec *x)
{
  double worst = 0;
  for (int32_t i = 0; i < g->n_params; i++) {
    json_t *w = json_object_get(json_object_get(c->want, "weights"), g->param[i].name);
    if (!ok(w != NULL, "PyTorch has %s", g->param[i].name)) continue;
    const float *d = tc_exec_tensor(x, 0, g->param[i].master);
    json_t *at = json_object_get(w, "at"), *value = json_object_get(w, "value");
    double err = 0;
    for (size_t k = 0; k < json_array_size(at); k++) {
      const double e = d[json_integer_value(json_array_get(at, k))] - json_real_value(json_array_get(value, k));
      err += e * e;
    }
    const double norm = json_real_value(json_object_get(w, "norm")), theirs = json_real_value(json_object_get(w, "fp32"));
    const double n = (double)tc_tensor_elems(&g->tensor[g->param[i].master]) / (double)json_array_size(at);
    const double rel = sqrt(err * n) / norm / fmax(fmin(2 * theirs, 1e-5), 1.5 * theirs);
    if (!(rel <= worst)) worst = rel;
  }
  ok(worst < 2, "weights at sampled elements: worst tensor at %.2f of what the whole of it may be off", worst);
}

static void body(struct fx_rank *r)
{
  struct ctx *c = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program *p[2];
  struct source source = { .T = c->model.context, .batch = c->batch };        /* a rank's own: it is one thread's at a time */
  const struct tc_data_opts text = { &c->text, 1, TC_FORMAT_TEXT, 1, source.T, 256, 0, false, false, false, false };
  if (tc_data_open(&source.data, &text, &err) < 0) {
    ok(false, "text %s", err.text);
    return;
  }
  struct tc_exec *x;
  const int kind[2] = { TC_TRAIN, TC_INIT };
  for (int i = 0; i < 2; i++) {
    struct tc_program_opts o = {
      .kind = kind[i], .model = c->model,
      .gpt = { .batch = c->batch, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1, .documents = c->documents },
      .update = c->update, .system = &tc_systems[TC_DATA_DDP], .overlap = true };
    if (tc_program_new(&p[i], &o, r->mesh, r->rank, i ? p[0] : NULL, NULL, &err) < 0) return;
  }
  struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank, .fill = fill,
                            .fill_ctx = &source };
  memcpy(o.comm, r->comm, sizeof o.comm);
  if (tc_exec_new(&x, &o, p, 2, &err) < 0) return;
  struct tc_runtime rt = { .seed = 1, .lr = c->update ? 1e-3f : 3e-4f, .muon_momentum = 0.95f, .muon_scale = c->muon_scale, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = 0.1f, .clip = 1 };
  tc_exec_run(x, 1, &rt, &err);
  double worst = 0;
  for (int s = 1; s <= STEPS; s++) {
    rt.step = s;
    if (tc_exec_run(x, 0, &rt, &err) < 0) return;
    if (s == 1 && r->rank == 0 && !c->update) check_gradient(c, p[0]->graph, x);
    double want = json_real_value(json_array_get(json_object_get(c->want, "losses"),
                                                 (size_t)s - 1));
    double got = tc_exec_scalar(x, 0, p[0]->graph->loss), rel = fabs(got / want - 1);
    if (!(rel <= worst)) worst = rel;
  }
  if (r->rank == 0 && c->update) check_weights(c, p[0]->graph, x);
  if (r->rank == 0) ok(worst < c->tol_loss, "ten losses: off by at most %.1e", worst);
  tc_exec_free(x);
  for (int i = 0; i < 2; i++) tc_program_free(p[i]);
  tc_data_free(source.data);
  if (r->rank == 0) c->done = true;
}

static void test_case(struct ctx *c)
{
  for (int dp = 1; dp <= 2; dp++) {
    struct tc_mesh *m = fx_mesh(dp, 1, dp, 1);
    c->done = false;
    fx_run(m, "cpu", body, c);
    ok(c->done, "cpu, dp %d, %d micro-batches%s: ran", dp, dp, c->documents ? ", documents" : "");
    tc_mesh_free(m);
  }
}

static json_t *load(const char *src, const char *name)
{
  char path[1000];
  snprintf(path, sizeof path, "%s/tests/oracle/%s", src, name);
  json_t *j = json_load_file(path, 0, NULL);
  ok(j != NULL, "%s is read", path);
  return j;
}

/* The preset tiny, then models of other families; their figures are in these files. */
static void test_figures(const char *src, char *text, const char *tiny_name, const char *families_name, bool documents)
{
  struct tc_err err = { 0 };
  json_t *tiny = load(src, tiny_name), *families = load(src, families_name), *want;
  struct ctx c = { .text = text, .want = tiny, .batch = 8, .tol_grad = 1e-5, .tol_norm = 1e-5,
                   .tol_loss = 1e-5,
                   .model = { .layers = 4, .hidden = 128, .heads = 4, .context = 128, .vocab = 256 },
                   .documents = documents };
  test_case(&c);
  size_t i;
  json_array_foreach(json_object_get(families, "cases"), i, want) {
    const char *model = json_string_value(json_object_get(want, "model"));
    c = (struct ctx){ .text = text, .want = want, .batch = json_integer_value(json_object_get(families, "batch")),
                      .tol_norm = 5e-7, .tol_loss = 5e-7, .documents = documents };
    is_int(tc_model_parse(&c.model, model, families_name, &err), 0, "%s", model);
    c.tol_grad = tolerance_of(&c.model, c.batch);
    char *again = tc_model_text(&c.model);
    is_str(again, model, "... and back");
    free(again);
    test_case(&c);
  }
  json_decref(tiny);
  json_decref(families);
}

static void test_muon(const char *src, char *text)
{
  struct tc_err err = { 0 };
  json_t *figures = load(src, "muon.json"), *want;
  size_t i;
  json_array_foreach(json_object_get(figures, "cases"), i, want) {
    const char *model = json_string_value(json_object_get(want, "model"));
    struct ctx c = { .text = text, .want = want, .batch = json_integer_value(json_object_get(figures, "batch")),
                     .tol_loss = 2e-7, .update = TC_UPDATE_MUON };
    ok(tc_choice_parse("train.muon_scale", json_string_value(json_object_get(want, "scale")), &c.muon_scale), "its scale");
    is_int(tc_model_parse(&c.model, model, "muon.json", &err), 0, "Muon: %s", model);
    test_case(&c);
  }
  json_decref(figures);
}

int main(void)
{
  const char *src = getenv("srcdir") ? getenv("srcdir") : ".";
  char text[1000];
  snprintf(text, sizeof text, "%s/LICENSE.md", src);
  test_figures(src, text, "tiny.json", "families.json", false);
  test_figures(src, text, "tiny-documents.json", "documents.json", true);
  test_muon(src, text);
  return done_testing();
}
