/* t_memory.c - what a rank holds, against the formulas of ZeRO (Rajbhandari et al., 2020): bytes a
 * parameter of model states by system, gradient type and number of ranks; uneven shards; what
 * the server and the other ranks hold; what offload moves. Programs are made, none is run. */
#include "src/program/program.h"
#include "src/graph/shard_box.h"
#include "tests/unit/named.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

/* Rows divide by 64 (those of qkv.bias are 3 a head); nothing does; GPT-2; ZeRO's 7.5 billion. */
static const struct tc_model even = { .layers = 2, .hidden = 256, .heads = 64, .context = 128,
    .vocab = 256 };
static const struct tc_model odd = { .layers = 2, .hidden = 330, .heads = 3, .context = 101,
    .vocab = 1021 };
static const struct tc_model gpt2 = { .layers = 12, .hidden = 768, .heads = 12, .context = 1024,
    .vocab = 50257 };
static const struct tc_model large = { .layers = 36, .hidden = 4096, .heads = 32, .context = 2048,
    .vocab = 59136 };

struct state {
  int64_t device[TC_CLASSES], host[TC_CLASSES];
  int64_t total, aligned[TC_SPACES];
  int64_t rows;                  /* bytes of one row of each tensor that is split by rows */
};

static int state_dtype;          /* of what `make` makes */
static struct tc_program *make(const struct tc_model *model, const char *system, int grad_dtype,
                               const struct tc_mesh *m, int rank, int offload)
{
  struct tc_program *p = NULL;
  struct tc_err err = { 0 };
  struct tc_program_opts o = {
    .kind = TC_TRAIN, .model = *model, .gpt = { .batch = tc_mesh_size(m, TC_ON_DP), .dtype = TC_BF16,
    .grad_dtype = grad_dtype, .state_dtype = state_dtype, .tp = 1 }, .system = system_named(system),
    .overlap = true, .offload = offload, .reshard_after = -1, .prefetch = 1 };
  if (tc_program_new(&p, &o, m, rank, NULL, NULL, &err) == 0) return p;
  ok(false, "%s over %d: %s", system, tc_mesh_size(m, TC_ON_DP), err.text);
  exit(1);
}

/* The state of the model at `rank`: what belongs to parameters and is kept across steps. */
static struct state state_of(const struct tc_program *p, const struct tc_mesh *m, int rank)
{
  const struct tc_graph *g = p->graph;
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  struct state s = { .total = 0 };
  for (int32_t i = 0; i < g->n_tensors; i++) {
    const struct tc_tensor *t = &g->tensor[i];
    if (!t->state) continue;
    int64_t bytes = tc_tensor_local_bytes(t, m, coord);
    s.aligned[t->space] += tc_round_up(bytes, TC_ARENA_ALIGN);
    if (t->param < 0) continue;                  /* the loss */
    (t->space == TC_HOST ? s.host : s.device)[t->cls] += bytes;
    s.total += bytes;
    if (t->lay.on[TC_REST].kind == TC_FLAT)
      s.rows += (t->rank > 1 ? t->dim[t->rank - 1] : 1) * (int64_t)tc_dtype_bytes(t->dtype);
  }
  return s;
}

static struct state state_at(const struct tc_model *model, const char *system, int grad_dtype,
                             const struct tc_mesh *m, int rank, int offload)
{
  struct tc_program *p = make(model, system, grad_dtype, m, rank, offload);
  struct state s = state_of(p, m, rank);
  ok(p->arena->bytes[TC_STATE] == s.aligned[TC_DEVICE] &&
     p->arena->bytes[TC_HOST_STATE] == s.aligned[TC_HOST],
     "%s, rank %d of %d: the plan holds this state and no other", system, rank, tc_mesh_size(m, TC_ON_DP));
  tc_program_free(p);
  return s;
}

/* Bytes a parameter: `whole` on every rank, `split` over the ranks. g: of a gradient element. */
static const struct zero {
  const char *system;
  int whole, whole_g, split, split_g;
} zero[] = {
  { "ddp",   2 + 12, 1, 0,      0 },             /* 2 + g + 12 */
  { "zero1", 2,      1, 12,     0 },             /* 2 + g + 12 / N */
  { "zero2", 2,      0, 12,     1 },             /* 2 + (g + 12) / N */
  { "zero3", 0,      0, 2 + 12, 1 },             /* (2 + g + 12) / N */
};
enum { SYSTEMS = sizeof zero / sizeof zero[0] };

static void test_formulas(int grad_dtype, int of_states)
{
  static const int ranks[] = { 1, 2, 4, 8, 64 };
  int g = (int)tc_dtype_bytes(grad_dtype), opt = 4 + 2 * (int)tc_dtype_bytes(of_states);
  state_dtype = of_states;
  for (int i = 0; i < SYSTEMS; i++)
    for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
      const struct zero *z = &zero[i];
      int n = ranks[k];
      int64_t whole = z->whole + z->whole_g * g, split = z->split + z->split_g * g;
      *(z->split ? &split : &whole) -= 12 - opt;
      struct tc_mesh *m = fx_mesh(1, 1, n, 1);
      struct state s = state_at(&even, z->system, grad_dtype, m, n - 1, TC_OFFLOAD_NO);
      int64_t psi = tc_model_params(&even);
      is_int(s.total, psi * whole + psi * split / n, "%s, g = %d, N = %d: %.4f bytes a parameter",
             z->system, g, n, (double)whole + (double)split / n);
      is_int(s.device[TC_CLS_OPT] * (z->split ? n : 1), psi * opt, "... of them %d%s of optimizer", opt,
             z->split ? " / N" : "");
      is_int(s.device[TC_CLS_GRAD] * (z->split_g ? n : 1), psi * g, "... and g%s of gradients",
             z->split_g ? " / N" : "");
      tc_mesh_free(m);
    }
  state_dtype = TC_F32;
}

/* Sizes that nothing divides: no rank has more than a row of each tensor above its share, and
 * together the ranks have everything once. */
static void test_uneven(int n)
{
  struct tc_mesh *m = fx_mesh(1, 1, n, 1);
  int64_t psi = tc_model_params(&odd), g = 2;
  for (int i = 0; i < SYSTEMS; i++) {
    const struct zero *z = &zero[i];
    int64_t whole = psi * (z->whole + z->whole_g * g), split = psi * (z->split + z->split_g * g);
    struct tc_program *p = make(&odd, z->system, TC_BF16, m, 0, TC_OFFLOAD_NO);
    int64_t sum = 0, above = 0;
    for (int r = 0; r < n; r++) {
      struct state s = state_of(p, m, r);
      sum += s.total - whole;
      above += s.total > whole + split / n + s.rows;
    }
    is_int(sum, z->split ? split : 0, "%s over %d, uneven: the shards are the whole", z->system, n);
    is_int(above, 0, "... and no rank has a row more than its share");
    tc_program_free(p);
  }
  tc_mesh_free(m);
}

static void test_table(void)
{
  static const double gb[SYSTEMS] = { 120, 31.4, 16.6, 1.9 };
  struct tc_mesh *m = fx_mesh(1, 1, 64, 1);
  double psi = (double)tc_model_params(&large);
  near_f(psi, 7.5e9, 1e-3, "a model of %.4f billion parameters", psi * 1e-9);
  for (int i = 0; i < SYSTEMS; i++) {
    struct state s = state_at(&large, zero[i].system, TC_BF16, m, 0, TC_OFFLOAD_NO);
    double got = (double)s.total * 1e-9;
    ok(fabs(got - gb[i]) <= 0.05, "%s over 64: %.3f GB, %.1f in ZeRO's table", zero[i].system, got,
       gb[i]);
  }
  tc_mesh_free(m);
}

/* 1024 rows over 3 ranks, and 1023 sequences. */
static void test_split(void)
{
  static const int64_t rows[3] = { 342, 342, 340 };
  static const struct tc_model model = { .layers = 1, .hidden = 64, .heads = 2, .context = 1024,
    .vocab = 256 };
  struct tc_mesh *m = fx_mesh(1, 1, 3, 1);
  struct tc_err err = { 0 };
  struct tc_program *p = NULL;
  struct tc_program_opts o = {
    .kind = TC_TRAIN, .model = model, .gpt = { .batch = 1023, .tp = 1, .grad_dtype = TC_F32 },
    .system = &tc_systems[TC_DATA_ZERO3], .overlap = true, .reshard_after = -1, .prefetch = 1 };
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), 0, "1023 sequences over 3 %s", err.text);
  if (!p) exit(1);
  const struct tc_graph *g = p->graph;
  int64_t at = 0;
  for (int r = 0; r < 3; r++) {
    const int32_t *coord = m->coord + (size_t)r * TC_AXES;
    struct tc_local l;
    for (int32_t i = 0; i < g->n_params; i++) {
      if (strcmp(g->param[i].name, "wpe.weight")) continue;
      const int32_t held[] = { g->param[i].master, g->param[i].state[0], g->param[i].state[1], g->param[i].acc };
      for (int k = 0; k < 4; k++) {
        tc_tensor_local(&g->tensor[held[k]], m, coord, &l);
        ok(l.rows == rows[r] && l.row0 == at && l.elems == rows[r] * 64,
           "%s, rank %d: rows %lld to %lld of 1024", g->tensor[held[k]].name, r,
           (long long)l.row0, (long long)(l.row0 + l.rows));
      }
    }
    at += rows[r];
    for (int k = 0; k < 2; k++) {
      tc_tensor_local(&g->tensor[k ? g->targets : g->tokens], m, coord, &l);
      ok(l.off[0] == r * INT64_C(341) * 1024 && l.elems == INT64_C(341) * 1024,
         "%s, rank %d: sequences %lld:%lld", k ? "targets" : "tokens", r,
         (long long)(l.off[0] / 1024), (long long)((l.off[0] + l.elems) / 1024));
    }
  }
  tc_program_free(p);
  tc_mesh_free(m);
}

/* One rank keeps the weights and the optimizer's state; the others bring weights as they need them. */
static void test_server(const char *system)
{
  struct tc_mesh *m = fx_mesh(1, 1, 4, 1);
  int64_t psi = tc_model_params(&even);
  struct state s = state_at(&even, system, TC_F32, m, 0, TC_OFFLOAD_NO);
  is_int(s.total, psi * (2 + 4 + 12), "%s: rank 0 holds 2 + g + 12 bytes a parameter", system);
  for (int r = 1; r < 4; r++) {
    struct state w = state_at(&even, system, TC_F32, m, r, TC_OFFLOAD_NO);
    is_int(w.device[TC_CLS_OPT], 0, "%s, rank %d: no optimizer's state", system, r);
    is_int(w.device[TC_CLS_PARAM], 0, "... no stored weights");
    is_int(w.total, psi * 4, "... gradients alone");
  }
  struct tc_program *p0 = make(&even, system, TC_F32, m, 0, TC_OFFLOAD_NO);
  struct tc_program *p1 = make(&even, system, TC_F32, m, 1, TC_OFFLOAD_NO);
  int64_t a = p0->arena->bytes[TC_STATE] + p0->arena->bytes[TC_SCRATCH];
  int64_t b = p1->arena->bytes[TC_STATE] + p1->arena->bytes[TC_SCRATCH];
  ok(b < a, "%s: in all %lld bytes on rank 0, %lld on another", system, (long long)a, (long long)b);
  tc_program_free(p0);
  tc_program_free(p1);
  tc_mesh_free(m);
}

/* Offload takes from the device what it puts into host memory, and nothing is held twice. */
static void test_offload(int i, int offload)
{
  static const char *const name[] = { "no", "params", "update" };
  const char *system = zero[i].system;
  struct tc_mesh *m = fx_mesh(1, 1, 4, 1);
  struct tc_program *p = make(&even, system, TC_F32, m, 1, TC_OFFLOAD_NO);
  struct tc_program *q = make(&even, system, TC_F32, m, 1, offload);
  struct state a = state_of(p, m, 1), b = state_of(q, m, 1);
  bool apart = !strcmp(system, "zero3");         /* weights are stored apart from their use */
  is_int(b.device[TC_CLS_OPT], 0, "%s, offload %s: no optimizer's state on the device", system,
         name[offload]);
  is_int(b.host[TC_CLS_OPT], a.device[TC_CLS_OPT], "... it is on the host");
  is_int(b.host[TC_CLS_PARAM], apart ? a.device[TC_CLS_PARAM] : 0, "... %s stored weights",
         apart ? "so are" : "not the");
  is_int(b.device[TC_CLS_PARAM] + b.host[TC_CLS_PARAM], a.device[TC_CLS_PARAM],
         "... which are held once");
  is_int(b.device[TC_CLS_GRAD], a.device[TC_CLS_GRAD], "... gradients stay");
  is_int(p->arena->bytes[TC_STATE] - q->arena->bytes[TC_STATE], q->arena->bytes[TC_HOST_STATE],
         "... the device's state falls by what the host's is");
  ok(q->arena->bytes[TC_HOST_STATE] == b.aligned[TC_HOST] && b.aligned[TC_HOST] > 0 &&
     p->arena->bytes[TC_HOST_STATE] == 0, "... as planned, and nothing without offload");
  tc_program_free(p);
  tc_program_free(q);
  tc_mesh_free(m);
}

/* What each rank writes of a checkpoint: together all of it, each as much as the others. */
static void test_shares(const struct tc_model *model, const char *system, int dp, double most)
{
  struct tc_mesh *m = fx_mesh(1, 1, dp, 1);
  struct tc_program *p = make(model, system, TC_F32, m, 0, 0);
  const struct tc_graph *g = p->graph;
  int64_t *bytes = tc_calloc((size_t)dp, sizeof *bytes), whole = 0, sum = 0, max = 0;
  for (int32_t i = 0; i < g->n_tensors; i++) {
    const struct tc_tensor *t = &g->tensor[i];
    if (!t->state || !t->saved) continue;
    whole += tc_tensor_elems(t) * (int64_t)tc_dtype_bytes(t->dtype);
    for (int r = 0; r < dp; r++) {
      struct tc_box box[TC_BOXES];
      int n = tc_owned_boxes(t, m, r, box);
      for (int b = 0; b < n; b++) {
        int64_t elems = 1;
        for (int d = 0; d < t->rank; d++) elems *= box[b].count[d];
        bytes[r] += elems * (int64_t)tc_dtype_bytes(t->dtype);
      }
    }
  }
  for (int r = 0; r < dp; r++) {
    sum += bytes[r];
    max = TC_MAX(max, bytes[r]);
  }
  is_int(sum, whole, "%s over %d: a checkpoint is written once", system, dp);
  double over = (double)max * dp / (double)whole;
  ok(over <= most, "the most that a rank writes of it is %.3f of its share", over);
  free(bytes);
  tc_program_free(p);
  tc_mesh_free(m);
}

int main(void)
{
  test_formulas(TC_BF16, TC_F32);
  test_formulas(TC_F32, TC_F32);
  test_formulas(TC_F32, TC_BF16);
  test_uneven(3);
  test_uneven(7);
  test_uneven(64);
  test_table();
  test_split();
  test_server("server");
  test_server("dataparallel");
  for (int i = 0; i < SYSTEMS; i++) {
    test_offload(i, TC_OFFLOAD_PARAMS);
    test_offload(i, TC_OFFLOAD_UPDATE);
  }
  static const int dp[] = { 2, 3, 4, 5, 8, 16 };
  for (size_t i = 0; i < sizeof dp / sizeof *dp; i++) {
    test_shares(&gpt2, "ddp", dp[i], 1.03);
    test_shares(&even, "ddp", dp[i], 1.10);
  }
  test_shares(&gpt2, "ddp", 64, 1.3);
  test_shares(&gpt2, "zero1", 4, 1.03);
  return done_testing();
}
