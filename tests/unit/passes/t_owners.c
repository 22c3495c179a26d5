/* t_owners.c - which rank updates which matrices (owners.c): drawn models and meshes, beside the definition of longest first and of
 * a matrix's cost. */
#include "src/model/optim.h"
#include "src/model/transformer.h"
#include "src/passes/passes.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

#include <string.h>

enum { DRAWS = 400, MOST_OWNERS = 64 };
static uint64_t state;
static int below(int n)
{
  uint32_t r[4];
  tc_philox(r, 17, state++, 0);
  return (int)(r[0] % (uint32_t)n);
}

/* Newton-Schulz on n x m takes min^2 (2 max + min). */
static double cost(double n, double m) { return TC_MIN(n, m) * TC_MIN(n, m) * (2 * TC_MAX(n, m) + TC_MIN(n, m)); }

/* The matrices of a weight by its name; 0: it is updated by AdamW. */
static double work_of(const char *name, const struct tc_model *m)
{
  const double C = (double)m->hidden, kv = (double)(m->kv_heads * m->head_dim), heads = (double)(m->heads * m->head_dim);
  const size_t n = strlen(name);
  if (strncmp(name, "h.", 2) || n < 7 || strcmp(name + n - 7, ".weight")) return 0;
  if (strstr(name, "attn.qkv")) return cost(heads, C) + 2 * cost(kv, C);
  if (strstr(name, "attn.proj")) return cost(C, heads);
  if (strstr(name, "mlp.gate_up")) return 2 * cost((double)m->ffn, C);
  if (strstr(name, "mlp.")) return cost((double)m->ffn, C);
  return 0;
}

static int falling(const void *a, const void *b)
{
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* The most that an owner has if the longest goes first, each to the one that has least. */
static double longest_first(double *work, int n, int owners)
{
  double load[MOST_OWNERS] = { 0 }, most = 0;
  qsort(work, (size_t)n, sizeof *work, falling);
  for (int i = 0; i < n; i++) {
    int k = 0;
    for (int o = 1; o < owners; o++) k = load[o] < load[k] ? o : k;
    load[k] += work[i];
  }
  for (int o = 0; o < owners; o++) most = TC_MAX(most, load[o]);
  return most;
}

struct worst { double balance, beside; int even, wrong; };

static void draw(struct worst *w)
{
  const int dp = 1 + below(8), tp = 1 + below(3), heads = 6 * (1 + below(4));
  struct tc_model m = { .family = below(2) ? TC_FAMILY_LLAMA : TC_FAMILY_GPT2, .layers = 1 + below(24), .head_dim = 8, .heads = heads,
                        .hidden = 8 * heads, .context = 8, .vocab = 32 };
  m.kv_heads = m.family == TC_FAMILY_LLAMA && below(2) ? heads / 3 : heads;
  m.ffn = m.hidden * (2 + below(3));
  struct tc_mesh *mesh = fx_mesh(1, 1, dp, tp);
  struct tc_graph *g = tc_graph_new();
  tc_model_build(g, &m, &(struct tc_build_opts){ .batch = 1, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 });
  tc_optim_choose(g, TC_UPDATE_MUON);
  for (int32_t i = 0; i < g->n_params; i++) {
    for (int a = 0; a < TC_AXES; a++)
      if (a != TC_MB && mesh->size[a] > 1) g->param[i].update.on[a] = (struct tc_place){ .kind = a == TC_TP ? TC_S : TC_FLAT };
  }
  tc_owners(g, mesh);
  double load[MOST_OWNERS] = { 0 }, work[200], all = 0, most = 0;
  int n = 0, owned = 0, matrices = 0;
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_param *p = &g->param[i];
    const double x = work_of(p->name, &m);
    const struct tc_place *on = p->update.on;
    int k = 0, at = 0;
    for (int a = 0; a < TC_AXES; a++)
      if (on[a].kind == TC_AT) k = k * mesh->size[a] + on[a].at, at++;
    w->wrong += (at > 0) != (x > 0 && dp * tp > 1);
    if (x == 0) continue;
    matrices += strstr(p->name, "qkv") ? 3 : strstr(p->name, "gate_up") ? 2 : 1;
    work[n++] = x, all += x;
    load[k] += x;
  }
  for (int o = 0; o < dp * tp; o++) most = TC_MAX(most, load[o]), owned += load[o] > 0;
  const int owners = TC_MIN(dp * tp, n);
  w->wrong += owned != owners;
  w->beside = TC_MAX(w->beside, most / longest_first(work, n, owners));
  if (matrices >= 8 * owners) w->balance = TC_MAX(w->balance, most / (all / owners)), w->even++;
  tc_graph_free(g);
  tc_mesh_free(mesh);
}

int main(int argc, char **argv)
{
  struct worst w = { .even = 0 };
  state = test_seed(argc > 1 && !strcmp(argv[1], "--full")) << 20;
  for (int i = 0; i < DRAWS; i++) draw(&w);
  is_int(w.wrong, 0, "%d models: each matrix of a layer has an owner, nothing else has, and as many ranks own as can", DRAWS);
  ok(w.beside < 1 + 1e-12, "... no owner has more work than longest-first gives one: at most %.6f of that", w.beside);
  ok(w.even > DRAWS / 10 && w.balance < 1.15, "... in %d with 8 matrices an owner, the busiest owner has at most %.3f of the mean", w.even,
     w.balance);
  return done_testing();
}
