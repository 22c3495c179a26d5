/* t_gradient.c - the whole program's gradient in double precision against finite differences of its loss, for
 * models of each family: each parameter, elements spread over it, dropout on, the head in chunks; with
 * documents in a sequence, too, with attention in pieces, and of adapters. */
#include "src/program/program.h"
#include "src/passes/passes.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

#define SIZES .layers = 2, .hidden = 12, .context = 5, .vocab = 11
static const struct tc_model toy = { SIZES, .heads = 3 };
static const struct { const char *what; struct tc_model m; } models[] = {
  { "gpt2", { SIZES, .heads = 3 } },
  { "llama, keys of two groups, untied", { SIZES, .heads = 4, .kv_heads = 2, .head_dim = 6, .ffn = 10,
    .family = TC_FAMILY_LLAMA } },
  { "llama 3.2, one key, tied", { SIZES, .heads = 3, .kv_heads = 1, .head_dim = 4, .ffn = 7,
    .family = TC_FAMILY_LLAMA, .tied = TC_ON, .rope_scaling = { TC_ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 4 } } },
  { "llama, a key for each head", { SIZES, .heads = 2, .family = TC_FAMILY_LLAMA,
    .rope_scaling = { TC_ROPE_LINEAR, .factor = 2 } } },
  { "qwen3", { SIZES, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 9, .family = TC_FAMILY_QWEN3 } },
  { "gpt2 with rotary positions, a gate, RMS norms", { SIZES, .heads = 3, .act = TC_ACT_SWIGLU,
    .ffn = 9, .norm = TC_RMS_NORM, .rope_theta = 100, .qk_norm = TC_QK_HEAD, .tied = TC_OFF } },
  { "qwen2", { SIZES, .heads = 4, .kv_heads = 2, .head_dim = 6, .ffn = 9, .family = TC_FAMILY_QWEN2 } },
  { "mistral, a window", { SIZES, .heads = 4, .kv_heads = 1, .head_dim = 6, .ffn = 9, .family = TC_FAMILY_MISTRAL,
    .pattern = "S", .window = 2 } },
  { "gemma2, caps that are reached", { SIZES, .heads = 2, .kv_heads = 1, .head_dim = 8, .ffn = 9,
    .family = TC_FAMILY_GEMMA2, .window = 3, .attn_cap = 0.02f, .logit_cap = 0.1f } },
  { "gemma3", { SIZES, .heads = 2, .head_dim = 8, .ffn = 9, .family = TC_FAMILY_GEMMA3, .pattern = "SF", .window = 3,
    .attn_scale = 0.3f } },
  { "olmo2", { SIZES, .heads = 4, .kv_heads = 2, .head_dim = 6, .ffn = 9, .family = TC_FAMILY_OLMO2, .bias = TC_BIAS_ATTENTION } },
  { "olmo3, YaRN", { SIZES, .heads = 3, .head_dim = 8, .ffn = 9, .family = TC_FAMILY_OLMO3, .pattern = "SF", .window = 2,
    .rope_scaling = { TC_ROPE_YARN, .factor = 4, .low = 1, .high = 2, .attention = 1.14f, .original = 8 } } },
  { "smollm3, a layer without positions", { SIZES, .heads = 4, .kv_heads = 2, .ffn = 9, .head_dim = 4,
    .family = TC_FAMILY_SMOLLM3, .pattern = "Ff", .bias = TC_BIAS_MLP } },
  { "granite", { SIZES, .heads = 4, .kv_heads = 2, .head_dim = 4, .ffn = 9, .family = TC_FAMILY_GRANITE, .embed_scale = 3,
    .residual_scale = 0.3f, .attn_scale = 0.2f, .logit_divisor = 0.5f, .mup = 5 } },
  { "phi3, part of a head turns", { SIZES, .heads = 4, .kv_heads = 2, .head_dim = 6, .rotary_dim = 4, .ffn = 9,
    .family = TC_FAMILY_PHI3 } },
  { "gpt2, exact GELU", { SIZES, .heads = 3, .act = TC_ACT_GELU_EXACT } },
  { "gpt2, squared ReLU", { SIZES, .heads = 3, .act = TC_ACT_RELU2 } },
};

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)ctx;
  (void)rt;
  if (starts) fx_starts(starts, row0, rows, toy.context);
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    tc_philox(r, 9, 1, (uint64_t)(row0 + i));
    tokens[i] = (int32_t)(r[0] % 11);
    targets[i] = r[2] % 8 ? (int32_t)(r[1] % 11) : -1;       /* some are ignored */
  }
}

static double loss_at(struct tc_exec *x, struct tc_program *p, const struct tc_runtime *rt)
{
  struct tc_err err;
  if (tc_exec_run(x, 1, rt, &err) < 0) abort();
  return tc_exec_scalar(x, 1, p->graph->loss);
}

/* A forward op that grad.c has no rule for. */
static void test_no_rule(void)
{
  const struct tc_build_opts o = { .batch = 1, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 };
  struct tc_graph *g = tc_graph_new();
  struct tc_err err = { 0 };
  tc_model_build(g, &toy, &o);
  for (int32_t i = 0; i < g->n_nodes; i++)
    if (g->node[i].op == TC_OP_ACT) g->node[i].op = TC_OP_ACCUM;
  is_int(tc_grad(g, TC_F32, &err), TC_EUSER, "an op without a gradient");
  is_str(err.text, "op accum has no gradient", "... is named");
  is_int(g->n_contributions, 0, "... and no contribution is recorded");
  tc_graph_free(g);
}

/* Every parameter's gradient beside differences of the loss, seven elements of each. */
static void compare(struct tc_exec *x, struct tc_program *const p[3], const struct tc_runtime *rt)
{
  const struct tc_graph *g = p[0]->graph;
  for (int32_t i = 0; i < g->n_params; i++) {
    if (g->param[i].frozen) continue;
    double *w = tc_exec_tensor(x, 0, g->param[i].master);
    const double *grad = tc_exec_tensor(x, 0, g->param[i].acc);
    int64_t n = tc_tensor_elems(&g->tensor[g->param[i].master]);
    double worst = 0, scale = 1e-3;
    for (int64_t k = 0; k < n; k += TC_MAX(1, n / 7)) {
      double h = 1e-5, was = w[k], f[4];
      const double at[4] = { -2, -1, 1, 2 };
      for (int j = 0; j < 4; j++) {
        w[k] = was + at[j] * h;
        f[j] = loss_at(x, p[1], rt);
      }
      w[k] = was;
      double fd = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
      scale = fmax(scale, fabs(fd));
      worst = fmax(worst, fabs(fd - grad[k]));
    }
    ok(worst < 1e-8 * scale + 1e-10, "%s: off by %.1e of %.1e", g->param[i].name, worst, scale);
  }
}

static void test_model(struct tc_device *d, const struct tc_mesh *m, const struct tc_model *model, bool documents,
                       int64_t pieces, int64_t rank)
{
  struct tc_err err = { 0 };
  struct tc_program *p[3] = { NULL };
  const int kind[3] = { TC_TRAIN, TC_EVAL, TC_INIT };
  for (int i = 0; i < 3; i++) {
    struct tc_program_opts o = {
      .kind = kind[i], .model = *model, .gpt = { .batch = 4, .dtype = TC_F64, .grad_dtype = TC_F64,
      .dropout = 0.2f, .tp = 1, .z_loss = documents ? 0.1f : 0, .documents = documents, .keys = pieces > 0, .key_pieces = pieces,
      .lora = { .rank = rank, .rows = "", .factor = 1.7f, .dropout = 0.2f } },
      .system = &tc_systems[TC_DATA_DDP],
      .overlap = true, .head_chunk = 2 };
    if (!ok(tc_program_new(&p[i], &o, m, 0, i ? p[0] : NULL, NULL, &err) == 0, "made %s", err.text))
      return;
  }
  struct tc_exec_opts o = { .device = d, .mesh = m, .fill = fill };
  struct tc_exec *x;
  if (!ok(tc_exec_new(&x, &o, p, 3, &err) == 0, "ready %s", err.text)) return;
  struct tc_runtime rt = { .seed = 3, .step = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f };
  ok(tc_exec_run(x, 2, &rt, &err) == 0, "initialised");
  const struct tc_graph *g = p[0]->graph;
  int64_t params = 0;
  for (int32_t i = 0; i < g->n_params; i++) {    /* far from the symmetric start */
    double *w = tc_exec_tensor(x, 0, g->param[i].master);
    int64_t n = tc_tensor_elems(&g->tensor[g->param[i].master]);
    for (int64_t k = 0; k < n; k++) w[k] += 0.3 * tc_normal(77, (uint32_t)i, 0, (uint64_t)k);
    params += rank && !g->param[i].frozen ? 0 : n;
  }
  is_int(tc_model_params(model), params, "so many parameters");
  ok(tc_exec_run(x, 0, &rt, &err) == 0, "one step with a learning rate of 0");
  double base = tc_exec_scalar(x, 0, g->loss);
  near_f(loss_at(x, p[1], &rt), base, 1e-15, "training and evaluation programs agree");
  compare(x, p, &rt);
  tc_exec_free(x);
  for (int i = 0; i < 3; i++) tc_program_free(p[i]);
}

int main(void)
{
  struct tc_err err = { 0 };
  struct tc_mesh *m = fx_mesh(2, 1, 1, 1);
  struct tc_device *d;
  test_no_rule();
  if (tc_device_open(&d, "ref", 1, &err) < 0) return 1;
  for (size_t k = 0; k < 2 * sizeof models / sizeof *models; k++) {
    const size_t i = k / 2;
    const bool documents = k % 2;
    printf("# %s%s\n", models[i].what, documents ? ", documents" : "");
    test_model(d, m, &models[i].m, documents, 0, 0);
    if (documents) continue;
    printf("# %s, adapters\n", models[i].what);
    test_model(d, m, &models[i].m, false, 0, 2);
  }
  printf("# %s, three pieces; %s, two, documents\n", models[0].what, models[1].what);
  test_model(d, m, &models[0].m, false, 3, 0);
  test_model(d, m, &models[1].m, true, 2, 0);
  tc_device_close(d);
  tc_mesh_free(m);
  return done_testing();
}
