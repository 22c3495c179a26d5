/* t_frozen.c - drawn models of all families with drawn frozen parameters beside the same ones of which all train: the gradients
 * that remain are equal to the last bit, what is frozen does not move and takes no memory but its own. */
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "src/program/program.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

#include <fnmatch.h>

enum { PROGRAMS = 2, CONTEXT = 6, VOCAB = 13, BATCH = 4, MOST = 64 };

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)ctx;
  (void)starts;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    tc_philox(r, 9, (uint64_t)rt->step, (uint64_t)(row0 + i));
    tokens[i] = (int32_t)(r[0] % VOCAB);
    targets[i] = (int32_t)(r[1] % VOCAB);
  }
}

struct side { struct tc_program *p[PROGRAMS]; struct tc_exec *x; };

static const struct tc_runtime rt = { .seed = 3, .step = 1, .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                                      .weight_decay = 0.1f };

/* A training step from the initial weights. */
static bool run_side(struct side *s, struct tc_device *d, const struct tc_mesh *m, struct tc_program_opts o, struct tc_err *err)
{
  const int kind[PROGRAMS] = { TC_TRAIN, TC_INIT };
  struct tc_exec_opts x = { .device = d, .mesh = m, .fill = fill };
  *s = (struct side){ .x = NULL };
  for (int i = 0; i < PROGRAMS; i++) {
    o.kind = kind[i];
    if (tc_program_new(&s->p[i], &o, m, 0, i ? s->p[0] : NULL, NULL, err) < 0) return false;
  }
  return tc_exec_new(&s->x, &x, s->p, PROGRAMS, err) == 0 && tc_exec_run(s->x, 1, &rt, err) == 0;
}

static void free_side(struct side *s)
{
  tc_exec_free(s->x);
  for (int i = 0; i < PROGRAMS; i++) tc_program_free(s->p[i]);
}

static uint64_t drawn(uint64_t seed, uint64_t at, uint64_t below)
{
  uint32_t x[4];
  tc_philox(x, seed, at, 3);
  return x[0] % below;
}

static size_t bytes_of(const struct tc_graph *g, int32_t t)
{
  return (size_t)tc_tensor_elems(&g->tensor[t]) * tc_dtype_bytes(g->tensor[t].dtype);
}

/* What a step says: gradients that are not as they should be, frozen weights that moved; of the rest the sum of squares, and the
 * bytes of what frozen ones have no need of. */
struct seen { int wrong, moved; double squares; int64_t less_bytes; };

static void compare(struct seen *n, const struct side *all, const struct side *some, char *const before[MOST])
{
  const struct tc_graph *a = all->p[0]->graph, *b = some->p[0]->graph;
  for (int32_t i = 0; i < b->n_params; i++) {
    const struct tc_param *p = &b->param[i];
    const char *w = tc_exec_tensor(some->x, 0, p->master);
    n->moved += p->frozen && memcmp(w, before[i], bytes_of(b, p->master)) != 0;
    if (p->frozen) {
      n->wrong += p->acc >= 0 || p->grad >= 0 || p->state[0] >= 0 || p->state[1] >= 0;
      n->less_bytes += 3 * tc_round_up((int64_t)bytes_of(b, p->master), TC_ARENA_ALIGN);
      continue;
    }
    const float *x = tc_exec_tensor(all->x, 0, a->param[i].acc), *y = tc_exec_tensor(some->x, 0, p->acc);
    n->wrong += memcmp(x, y, bytes_of(b, p->acc)) != 0;
    for (int64_t e = 0; e < tc_tensor_elems(&b->tensor[p->acc]); e++) n->squares += (double)y[e] * y[e];
  }
}

/* Rows that freeze drawn parts of the model; some freeze nothing, or all. */
static void draw_rows(char *text, size_t size, uint64_t seed, uint64_t at)
{
  static const char *const pattern[] = { "wte.*", "h.0.*", "h.1.*", "h.*", "ln_f.*", "lm_head.*", "wpe.*", "*.attn.*", "*.mlp.*",
                                         "*.bias", "*.ln_?.*", "*norm*", "*.weight", "*.mlp.proj.weight", "*" };
  const uint64_t n = 1 + drawn(seed, at, 3);
  *text = 0;
  for (uint64_t i = 0; i < n; i++)
    tc_text_add(text, size, "%s%s frozen=%s", i ? ", " : "", pattern[drawn(seed, at + 2 * i + 1, sizeof pattern / sizeof *pattern)],
                drawn(seed, at + 2 * i + 2, 4) ? "yes" : "no");
}

static struct tc_model draw_model(uint64_t seed, uint64_t at)
{
  const uint64_t heads = 2 + 2 * drawn(seed, at, 2);
  struct tc_model m = { .layers = 2, .hidden = 16, .heads = (int64_t)heads, .context = CONTEXT, .vocab = VOCAB,
                        .family = (uint8_t)(TC_FAMILY_GPT2 + drawn(seed, at + 1, TC_FAMILY_PHI3)) };
  if (m.family != TC_FAMILY_GPT2) m.kv_heads = 2, m.ffn = 12, m.window = 3, m.head_dim = 8;
  if (!strchr((struct tc_model[]){ tc_model_complete(&m) }->pattern, 'S')) m.window = 0;
  if (drawn(seed, at + 2, 2)) m.tied = drawn(seed, at + 3, 2) ? TC_ON : TC_OFF;
  if (drawn(seed, at + 4, 4) == 0) m.mup = 8;
  return m;
}

/* One case; 1: the rows are refused, as they should be. */
static int one_case(struct tc_device *d, uint64_t seed, uint64_t at, struct seen *n)
{
  char rows[300], *before[MOST] = { NULL };
  struct tc_err err = { .text = "" };
  struct tc_mesh *m = fx_mesh(1 + (int)drawn(seed, at, 2), 1, 1, 1);
  const struct tc_program_opts o = {
    .model = draw_model(seed, at + 10), .system = &tc_systems[drawn(seed, at + 1, 4)], .overlap = true,
    .head_chunk = (int64_t)drawn(seed, at + 2, 2) * 5, .recompute = (enum tc_recompute)drawn(seed, at + 3, 3),
    .gpt = { .batch = BATCH, .dtype = TC_F32, .grad_dtype = TC_F32, .dropout = drawn(seed, at + 4, 2) ? 0.1f : 0, .tp = 1,
             .nest = drawn(seed, at + 5, 2) } };
  struct tc_program_opts with = o;
  struct side all, some;
  draw_rows(rows, sizeof rows, seed, at + 20);
  with.param_rows = rows;
  bool good = run_side(&all, d, m, o, &err), refused = false;
  if (!good) printf("# %s\n", err.text);
  if (!run_side(&some, d, m, with, &err)) {
    refused = strstr(err.text, "freezes all") || strstr(err.text, "matches no parameter");
    good &= refused;
  }
  if (!good) printf("# case %llu, %s: %s\n", (unsigned long long)at, rows, err.text);
  const struct tc_graph *g = refused || !good ? NULL : some.p[0]->graph;
  for (int32_t i = 0; g && i < g->n_params; i++) {
    const size_t bytes = bytes_of(g, g->param[i].master);
    before[i] = memcpy(tc_malloc(bytes), tc_exec_tensor(some.x, 0, g->param[i].master), bytes);
  }
  if (g) {
    struct seen x = { 0 };
    good = tc_exec_run(all.x, 0, &rt, &err) == 0 && tc_exec_run(some.x, 0, &rt, &err) == 0;
    compare(&x, &all, &some, before);
    const double norm = tc_exec_scalar(some.x, 0, g->grad_norm), loss = tc_exec_scalar(some.x, 0, g->loss);
    const int64_t state = all.p[0]->arena->bytes[TC_STATE] - some.p[0]->arena->bytes[TC_STATE];
    const bool right = good && !x.wrong && !x.moved && loss == tc_exec_scalar(all.x, 0, all.p[0]->graph->loss)
                       && fabs(norm - sqrt(x.squares)) <= 1e-6 * norm && state == x.less_bytes;
    if (!right)
      printf("# case %llu, %s: %d gradients differ, %d frozen moved, norm %g of %g, %lld bytes less, %lld expected\n",
             (unsigned long long)at, rows, x.wrong, x.moved, norm, sqrt(x.squares), (long long)state,
             (long long)x.less_bytes);
    good &= right;
    n->less_bytes += x.less_bytes;
  }
  for (int i = 0; i < MOST; i++) free(before[i]);
  free_side(&all);
  free_side(&some);
  tc_mesh_free(m);
  n->wrong += !good;
  return refused;
}

int main(int argc, char **argv)
{
  enum { SHORT = 60, FULL = 2000 };
  const bool full = argc > 1 && !strcmp(argv[1], "--full");
  const uint64_t seed = test_seed(full), cases = full ? FULL : SHORT;
  struct tc_err err;
  struct tc_device *d;
  struct seen n = { 0 };
  int refused = 0;
  if (tc_device_open(&d, "ref", 1, &err) < 0) return 1;
  for (uint64_t i = 0; i < cases; i++) refused += one_case(d, seed, 100 * i, &n);
  is_int(n.wrong, 0, "%d drawn cases of seed %llu, %d of them refused", (int)cases, (unsigned long long)seed, refused);
  ok(n.less_bytes > 0 && refused < (int)cases * 9 / 10, "... which froze something");
  tc_device_close(d);
  return done_testing();
}
