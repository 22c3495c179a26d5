/* t_stages.c - layers to pipeline stages, beside all ways to cut them; ranges by hand. */
#include "src/model/transformer.h"
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

static const struct tc_model small = { .layers = 7, .hidden = 32, .heads = 2, .context = 16,
    .vocab = 1000 };
enum { BATCH = 3, MOST = 32 };
static int64_t window;           /* of attention in layers of even numbers; 0: none */

static struct tc_graph *graph(const struct tc_model *m)
{
  struct tc_graph *g = tc_graph_new();
  const struct tc_build_opts o = { .batch = BATCH, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 };
  tc_model_build(g, m, &o);
  for (int32_t i = 0; i < g->n_nodes; i++)
    if (g->node[i].op == TC_OP_ATTN && g->unit[g->node[i].unit].layer % 2 == 0) g->node[i].attr.window = window;
  return g;
}

/* Keys that a token of layer l sees on average: half of the square, or what a count makes it. */
static double keys(const struct tc_model *m, int64_t l)
{
  int64_t pairs = 0;
  if (!window || l % 2) return (double)m->context / 2;
  for (int64_t query = 0; query < m->context; query++)
    for (int64_t key = 0; key <= query; key++) pairs += query - key < window;
  return (double)pairs / (double)m->context;
}

/* Operations of layer l in forward, by the usual formulas: 12 C^2 weights a layer, the scores of
 * keys and what they weigh, the head at the last layer. */
static double ops(const struct tc_model *m, int64_t l)
{
  double tokens = (double)(BATCH * m->context), C = (double)m->hidden;
  double x = tokens * (2 * 12 * C * C + 4 * keys(m, l) * C);
  return l == m->layers - 1 ? x + tokens * 2 * C * (double)m->vocab : x;
}

/* The largest stage of the best of all ways to cut the layers from `first` on into S stages. */
static double best(const struct tc_model *m, int64_t first, int S)
{
  double sum = 0, least = 1e300;
  if (S == 1) {
    for (int64_t l = first; l < m->layers; l++) sum += ops(m, l);
    return sum;
  }
  for (int64_t next = first + 1; next <= m->layers - (S - 1); next++) {
    sum += ops(m, next - 1);
    double rest = best(m, next, S - 1), x = sum > rest ? sum : rest;
    if (x < least) least = x;
  }
  return least;
}

/* Each unit's stage is its outermost unit's; first[s]: the first layer of each; false: they do not
 * follow each other, or a unit is not where its stage is. */
static bool read(const struct tc_graph *g, int pp, int S, int *first)
{
  int stage[MOST] = { 0 }, L = 0;
  bool good = true;
  for (int32_t u = 0; u < g->n_units; u++) {
    const struct tc_unit *x = &g->unit[u];
    good &= x->at == (pp > 1 ? x->stage % pp : -1) && x->stage >= 0 && x->stage < S;
    good &= x->parent < 0 || x->stage == g->unit[x->parent].stage;
    if (x->layer >= 0) stage[x->layer] = x->stage;
    if (x->layer >= L) L = x->layer + 1;
  }
  good &= g->unit[0].stage == 0;                 /* the embedding; the head is the last unit */
  good &= g->unit[g->n_units - 1].stage == S - 1;
  good &= stage[0] == 0 && stage[L - 1] == S - 1;
  for (int l = 0; l < L; l++) {
    if (l > 0) good &= stage[l] == stage[l - 1] || stage[l] == stage[l - 1] + 1;
    if (l == 0 || stage[l] != stage[l - 1]) first[stage[l]] = l;
  }
  first[S] = L;
  return good;
}

static void test_balance(const char *what, const struct tc_model *m)
{
  for (int S = 1; S <= m->layers; S++)
    for (int virtual_stages = 1; virtual_stages <= S; virtual_stages++) {
      if (S % virtual_stages) continue;
      struct tc_graph *g = graph(m);
      struct tc_err err = { 0 };
      int first[MOST + 1];
      double most = 0;
      is_int(tc_stages(g, S / virtual_stages, virtual_stages, virtual_stages > 1 ? "auto" : NULL, &err), 0,
             "%s: %d stages", what, S);
      ok(read(g, S / virtual_stages, S, first), "%s: pp %d with %d each: in order", what, S / virtual_stages,
         virtual_stages);
      for (int s = 0; s < S; s++) {
        double sum = 0;
        for (int l = first[s]; l < first[s + 1]; l++) sum += ops(m, l);
        if (sum > most) most = sum;
      }
      near_f(most, best(m, 0, S), 1e-12, "%s: %d stages, the largest is as small as can be", what,
             S);
      tc_graph_free(g);
    }
}

static void test_by_hand(void)
{
  static const struct { const char *text; int pp, first[4]; } good[] = {
    { "0-2,3-6", 2, { 0, 3, 7 } }, { "0,1-6", 2, { 0, 1, 7 } }, { "0-5,6", 2, { 0, 6, 7 } },
    { "0-1,2-2,3-6", 3, { 0, 2, 3, 7 } },
  };
  static const struct { const char *text; int pp; } bad[] = {
    { "0-2,4-6", 2 }, { "0-2,2-6", 2 }, { "1-2,3-6", 2 }, { "0-2,3-5", 2 }, { "0-2,3-7", 2 },
    { "0-6", 2 }, { "0-2,3-4,5-6", 2 }, { "0-2;3-6", 2 }, { "x", 2 }, { "0-2,3-", 2 },
    { "2-0,3-6", 2 }, { "0-2,,3-6", 2 },
  };
  struct tc_err err = { 0 };
  int first[MOST + 1];
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    struct tc_graph *g = graph(&small);
    is_int(tc_stages(g, good[i].pp, 1, good[i].text, &err), 0, "%s", good[i].text);
    bool same = read(g, good[i].pp, good[i].pp, first);
    for (int s = 0; s <= good[i].pp; s++) same &= first[s] == good[i].first[s];
    ok(same, "%s: these layers", good[i].text);
    tc_graph_free(g);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_graph *g = graph(&small);
    is_int(tc_stages(g, bad[i].pp, 1, bad[i].text, &err), TC_ELAYOUT, "%s is refused", bad[i].text);
    ok(strstr(err.text, "mesh.stages = ") && strstr(err.text, "layers 0 to 6"), "  %s", err.text);
    tc_graph_free(g);
  }
  struct tc_graph *g = graph(&small);
  for (int pp = 1; pp <= 7; pp++) {
    char hint[40] = "";
    tc_stages(g, pp, 1, pp % 2 ? "x" : "0-6,7", &err);
    if (strstr(err.text, ", as ")) snprintf(hint, sizeof hint, "%s", strstr(err.text, ", as ") + 5);
    is_int(tc_stages(g, pp, 1, hint, &err), 0, "what a sentence proposes is accepted: %s", hint);
  }
  is_int(tc_stages(g, 4, 2, NULL, &err), TC_ELAYOUT, "8 stages of 7 layers");
  ok(strstr(err.text, "mesh.pp = 4 with virtual stages: 8") &&
     strstr(err.text, "mesh.pp = 3 would fit"), "  %s", err.text);
  is_int(tc_stages(g, 3, 2, NULL, &err), 0, "... 6 do");
  is_int(tc_stages(g, 8, 1, NULL, &err), TC_ELAYOUT, "8 ranks for 7 layers");
  ok(strstr(err.text, "mesh.pp = 8: 8 stages") && strstr(err.text, "mesh.pp = 7 would fit"),
     "  %s", err.text);
  tc_graph_free(g);
}

/* The ranges that are proposed, as long as their text fits into 199 bytes; 1 rank; virtual stages. */
static void test_proposed(void)
{
  static const struct { int layers, pp, virtual_stages; const char *end; } row[] = {
    { 70, 70, 1, "66,67,68,69" }, { 77, 35, 1, "as auto" }, { 71, 71, 1, "as auto" },
    { 70, 35, 2, "66,67,68,69" }, { 70, 1, 1, "as 0-69" }, { 1, 1, 1, "as 0" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    const struct tc_model m = { .layers = row[i].layers, .hidden = 4, .heads = 1, .context = 4,
    .vocab = 8 };
    struct tc_graph *g = graph(&m);
    struct tc_err err = { 0 };
    char begin[200];
    const int S = row[i].pp * row[i].virtual_stages;
    snprintf(begin, sizeof begin, "mesh.stages = x: give %d range%s of the layers 0 to %d that follow each "
             "other, as ", S, S == 1 ? "" : "s", row[i].layers - 1);
    is_int(tc_stages(g, row[i].pp, row[i].virtual_stages, "x", &err), TC_ELAYOUT, "x for %d stages", S);
    ok(!strncmp(err.text, begin, strlen(begin)) && strlen(err.text) >= strlen(row[i].end) &&
       !strcmp(err.text + strlen(err.text) - strlen(row[i].end), row[i].end), "  %s", err.text);
    tc_graph_free(g);
  }
}

/* Units of a program as text: those of no layer are with the first stage or the last one. */
static void test_units(void)
{
#define LAYERS                                                       \
  "embed: x [8,4] = fill()\n"                                        \
  "h0: a [8,4] = gelu(x)\nh1: b [8,4] = gelu(a)\nh2: c [8,4] = gelu(b)\nh3: d [8,4] = gelu(c)\n" \
  "head: logits [8,4] = gelu(d) head\n"
  static const struct { const char *name, *by_hand; int pp, virtual_stages; const char *want; } row[] = {
    { "one stage", NULL, 1, 1,
      "unit embed stage 0\n"
      "unit h0 stage 0\n"
      "unit h1 stage 0\n"
      "unit h2 stage 0\n"
      "unit h3 stage 0\n"
      "unit head stage 0\n" },
    { "two stages by hand", "0,1-3", 2, 1,
      "unit embed stage 0 at 0\n"
      "unit h0 stage 0 at 0\n"
      "unit h1 stage 1 at 1\n"
      "unit h2 stage 1 at 1\n"
      "unit h3 stage 1 at 1\n"
      "unit head stage 1 at 1\n" },
    { "four virtual stages on two ranks: in turns", "0,1,2,3", 2, 2,
      "unit embed stage 0 at 0\n"
      "unit h0 stage 0 at 0\n"
      "unit h1 stage 1 at 1\n"
      "unit h2 stage 2 at 0\n"
      "unit h3 stage 3 at 1\n"
      "unit head stage 3 at 1\n" },
    { "two virtual stages of one rank: no pipeline", "0-2,3", 1, 2,
      "unit embed stage 0\n"
      "unit h0 stage 0\n"
      "unit h1 stage 0\n"
      "unit h2 stage 0\n"
      "unit h3 stage 1\n"
      "unit head stage 1\n" },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_graph *g = read_program(LAYERS);
    struct tc_err err = { 0 };
    is_int(tc_stages(g, row[i].pp, row[i].virtual_stages, row[i].by_hand, &err), 0, "%s", row[i].name);
    g->n_order = 0;
    is_program(g, TEXT_UNITS, row[i].want, row[i].name);
    tc_graph_free(g);
  }
}

int main(void)
{
  static const struct tc_model light = { .layers = 6, .hidden = 64, .heads = 2, .context = 16,
    .vocab = 8 };
  static const struct tc_model wide = { .layers = 6, .hidden = 16, .heads = 2, .context = 512,
    .vocab = 1500 };
  test_balance("a heavy head", &small);
  test_balance("a light head", &light);
  test_balance("a long context", &wide);
  window = 20;
  test_balance("windows in every other layer", &wide);
  window = 0;
  test_by_hand();
  test_proposed();
  test_units();
  return done_testing();
}
