/* t_reshard.c - from one placement to another: the collectives, and their order. */
#include "src/passes/passes.h"
#include "src/passes/reshard.h"
#include "tests/unit/program_text.h"

/* `from` declares x; `to` has the layout that it gets, as a tensor; want: the nodes, or the sentence. */
static const struct { const char *name, *mesh, *from, *to, *want; } cases[] = {
  { "a sum is completed", "dp2", "x [8,4] dp:P = fill()\n", "dp:R",
    "F1 x'2 [8,4] in x = all_reduce dp(x)\n" },
  { "a sum is completed and split", "dp2", "x [8,4] dp:P = fill()\n", "dp:S(1)",
    "F1 x'2 [8,4] dp:S(1) = reduce_scatter dp(x)\n" },
  { "... or left with one rank", "dp2", "x [8,4] dp:P = fill()\n", "dp:at(1)",
    "F1 x'2 [8,4] dp:at(1) in x = reduce dp(x)\n" },
  { "a maximum stays one", "tp2", "x [8] tp:P(max) = fill()\n", "tp:R",
    "F1 x'2 [8] in x = all_reduce tp(x) max\n" },
  { "blocks are gathered", "dp2", "x [8,4] dp:S(*) = fill()\n", "dp:R",
    "F1 x'2 [8,4] = all_gather dp(x)\n" },
  { "a block of state is where it was: nothing is copied", "dp2", "state x [8,4]\n", "dp:S(0)",
    "F1 x'2 [8,4] dp:S(0) block of x = slice dp(x)\n" },
  { "columns of state are copied", "dp2", "state x [8,4]\n", "dp:S(1)",
    "F1 x'2 [8,4] dp:S(1) = slice dp(x)\n" },
  { "from rows to columns", "tp2", "x [8,4] tp:S(0) = fill()\n", "tp:S(1)",
    "F1 x'2 [8,4] tp:S(1) = all_to_all tp(x)\n" },
  { "from rows to a flat shard there is no collective: through R", "dp2", "x [8,4] dp:S(0) = fill()\n", "dp:S(*)",
    "F1 x'2 [8,4] = all_gather dp(x)\n"
    "F1 x'3 [8,4] dp:S(*) = slice dp(x'2)\n" },
  { "to another stage first: the receiver gathers", "pp2 dp2", "x [8,4] pp:at(0) dp:S(0) = fill()\n", "pp:at(1)",
    "F1 x'2 [8,4] pp:at(1) dp:S(0) = send pp(x)\n"
    "F1 x'3 [8,4] pp:at(1) = all_gather dp(x'2)\n" },
  { "slices before sums", "pp1 dp2 tp2", "x [8,4] dp:P = fill()\n", "tp:S(1)",
    "F1 x'2 [8,4] dp:P(sum) tp:S(1) = slice tp(x)\n"
    "F1 x'3 [8,4] tp:S(1) in x'2 = all_reduce dp(x'2)\n" },
  { "sums before gathers", "pp1 dp2 tp2", "x [8,4] dp:P tp:S(1) = fill()\n", "dp:S(0)",
    "F1 x'2 [8,4] dp:S(0) tp:S(1) = reduce_scatter dp(x)\n"
    "F1 x'3 [8,4] dp:S(0) = all_gather tp(x'2)\n" },
  { "the inner axis is gathered before the outer one", "dp2 tp2", "x [8,4] dp:S(0) tp:S(0) = fill()\n", "R",
    "F1 x'2 [8,4] dp:S(0) = all_gather tp(x)\n"
    "F1 x'3 [8,4] = all_gather dp(x'2)\n" },
  { "... and the later axis first, where neither is inside the other", "dp2 tp2", "x [8,4] dp:S(1) tp:S(0) = fill()\n", "R",
    "F1 x'2 [8,4] dp:S(1) = all_gather tp(x)\n"
    "F1 x'3 [8,4] = all_gather dp(x'2)\n" },
  { "the outer axis is split before the inner one", "dp2 tp2", "x [8,4] = fill()\n", "dp:S(0) tp:S(0)",
    "F1 x'2 [8,4] dp:S(0) = slice dp(x)\n"
    "F1 x'3 [8,4] dp:S(0) tp:S(0) = slice tp(x'2)\n" },
  { "what is split inside is gathered, and split again", "dp2 tp2", "x [8,4] dp:S(0) tp:S(0) = fill()\n", "tp:S(0)",
    "F1 x'2 [8,4] dp:S(0) = all_gather tp(x)\n"
    "F1 x'3 [8,4] = all_gather dp(x'2)\n"
    "F1 x'4 [8,4] tp:S(0) = slice tp(x'3)\n" },
  { "a flat shard is innermost, whatever its axis", "dp2 tp2", "x [8,4] dp:S(*) tp:S(1) = fill()\n", "R",
    "F1 x'2 [8,4] tp:S(1) = all_gather dp(x)\n"
    "F1 x'3 [8,4] = all_gather tp(x'2)\n" },
  { "one rank's tensor is scattered", "dp4", "x [8,4] dp:at(2) = fill()\n", "dp:S(0)",
    "F1 x'2 [8,4] dp:S(0) = scatter dp(x)\n" },
  { "... or sent to all", "dp4", "x [8,4] dp:at(2) = fill()\n", "dp:R",
    "F1 x'2 [8,4] = broadcast dp(x)\n" },
  { "blocks are gathered by one rank", "dp4", "x [8,4] dp:S(0) = fill()\n", "dp:at(3)",
    "F1 x'2 [8,4] dp:at(3) = gather dp(x)\n" },
  { "one change on both axes of dp is one collective", "replicate2 dp2", "x [8,4] replicate:P dp:P = fill()\n", "R",
    "F1 x'2 [8,4] in x = all_reduce replicate+dp(x)\n" },
  { "... of blocks, too, the outer axis counting by more", "replicate2 dp2", "x [8,4] replicate:S(0) dp:S(0) = fill()\n", "R",
    "F1 x'2 [8,4] = all_gather replicate+dp(x)\n" },
  { "... and of one rank's tensor", "replicate2 dp2", "x [8,4] replicate:at(1) dp:at(0) = fill()\n", "R",
    "F1 x'2 [8,4] = broadcast replicate+dp(x)\n" },
  { "tp is another collective", "dp2 tp2", "x [8,4] dp:P tp:P = fill()\n", "R",
    "F1 x'2 [8,4] tp:P(sum) in x = all_reduce dp(x)\n"
    "F1 x'3 [8,4] in x'2 = all_reduce tp(x'2)\n" },
  { "a shard of a sum, then its copies", "replicate2 dp2", "x [8,4] replicate:P dp:P = fill()\n", "dp:S(*)",
    "F1 x'2 [8,4] replicate:P(sum) dp:S(*) = reduce_scatter dp(x)\n"
    "F1 x'3 [8,4] dp:S(*) in x'2 = all_reduce replicate(x'2)\n" },
  { "... or a shard of both", "replicate2 dp2", "x [8,4] replicate:P dp:P = fill()\n", "replicate:S(*) dp:S(*)",
    "F1 x'2 [8,4] replicate:S(*) dp:S(*) = reduce_scatter replicate+dp(x)\n" },
  { "a flat shard goes to fewer axes through R", "replicate2 dp2", "x [8,4] replicate:S(*) dp:S(*) = fill()\n", "dp:S(*)",
    "F1 x'2 [8,4] = all_gather replicate+dp(x)\n"
    "F1 x'3 [8,4] dp:S(*) = slice dp(x'2)\n" },
  { "... and where one of its axes has no collective to what is asked", "replicate2 dp2",
    "x [8,4] replicate:S(*) dp:S(*) = fill()\n", "replicate:S(*) dp:P",
    "F1 x'2 [8,4] = all_gather replicate+dp(x)\n"
    "F1 x'3 [8,4] replicate:S(*) = slice replicate(x'2)\n"
    "F1 x'4 [8,4] replicate:S(*) dp:P(sum) = zero dp(x'3)\n" },
  { "parts of sequences change places with heads", "cp2", "x [8,4] cp:S(0) = fill()\n", "cp:S(1)",
    "F1 x'2 [8,4] cp:S(1) = all_to_all cp(x)\n" },
  { "parts of sequences are inside all other blocks, but for those of rows", "cp2 tp2", "x [8,4] cp:S(1) tp:S(1) = fill()\n", "R",
    "F1 x'2 [8,4] tp:S(1) = all_gather cp(x)\n"
    "F1 x'3 [8,4] = all_gather tp(x'2)\n" },
  { "... which are the other way round", "cp2 tp2", "x [8,4] cp:S(0) tp:S(0) = fill()\n", "R",
    "F1 x'2 [8,4] cp:S(0) = all_gather tp(x)\n"
    "F1 x'3 [8,4] = all_gather cp(x'2)\n" },
  { "a sum over dp and cp is one collective", "dp2 cp2", "x [8,4] dp:P cp:P = fill()\n", "R",
    "F1 x'2 [8,4] in x = all_reduce dp+cp(x)\n" },
  { "of splits the one that blocks another is gathered, not the innermost", "replicate2 dp2 cp2 tp2",
    "x [16,4] replicate:S(0) dp:S(0) = fill()\n", "replicate:at(0) dp:S(0) cp:S(0) tp:S(1)",
    "F1 x'2 [16,4] replicate:S(0) dp:S(0) tp:S(1) = slice tp(x)\n"
    "F1 x'3 [16,4] replicate:S(0) tp:S(1) = all_gather dp(x'2)\n"
    "F1 x'4 [16,4] replicate:at(0) tp:S(1) = gather replicate(x'3)\n"
    "F1 x'5 [16,4] replicate:at(0) dp:S(0) cp:S(0) tp:S(1) = slice dp+cp(x'4)\n" },
  { "two that change places: one is gathered", "cp2 tp2", "x [8,4] cp:S(0) tp:S(1) = fill()\n", "cp:S(1) tp:S(0)",
    "F1 x'2 [8,4] cp:S(0) = all_gather tp(x)\n"
    "F1 x'3 [8,4] cp:S(1) = all_to_all cp(x'2)\n"
    "F1 x'4 [8,4] cp:S(1) tp:S(0) = slice tp(x'3)\n" },
  { "scalars are control traffic", "dp2", "x dp:P = fill()\n", "dp:R",
    "F1 x'2 in x = all_reduce dp(x) control\n" },
  { "nothing differs", "dp2", "x [8,4] dp:S(0) = fill()\n", "dp:S(0)", "" },
  { "time is no axis of collectives", "mb2", "x [8,4] mb:P = fill()\n", "mb:R",
    "x can't change its placement in time" },
};

static void test_placements(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].from);
    struct tc_mesh *m = read_mesh(cases[i].mesh);
    char *like = tc_sprintf("x [8,4] %s = fill()\n", cases[i].to);
    struct tc_graph *to = read_program(like);
    struct tc_err err = { 0 };
    const int32_t t = tc_reshard(g, m, text_find(g, "x"), &to->tensor[0].lay, -1, &err);
    if (t < 0) {
      is_str(err.text, cases[i].want, "%s", cases[i].name);
    } else {
      ok(tc_layout_equal(&g->tensor[t].lay, &to->tensor[0].lay), "%s: leads there", cases[i].name);
      if (g->tensor[0].node >= 0) memmove(g->order, g->order + 1, (size_t)--g->n_order * sizeof *g->order);
      is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    }
    free(like);
    tc_graph_free(to);
    tc_graph_free(g);
    tc_mesh_free(m);
  }
}

/* The nodes are of the unit and mark of a node like which they are made. */
static void test_like(void)
{
  struct tc_graph *g = read_program("B h1: x [8,4] dp:P += fill() head\n");
  struct tc_layout r = tc_layout_r();
  struct tc_err err = { 0 };
  struct tc_mesh *m = read_mesh("dp2");
  const int32_t t = tc_reshard(g, m, 0, &r, 0, &err);
  tc_reshard_space(g, t, TC_HOST, 0);
  is_program(g, TEXT_NODES, "B h1: x [8,4] dp:P(sum) += fill() head\n"
    "B1 h1: x'2 [8,4] in x = all_reduce dp(x) head\n"
    "B1 h1: x'3 [8,4] host = copy(x'2) head\n", "unit and mark, and a copy to the host");
  tc_mesh_free(m);
  tc_graph_free(g);
}

/* Layout number i of four axes, each R, S(0), S(1), S(*) or P. False: its flat shard is of axes that have no name together. */
static bool layout_of(struct tc_layout *l, const struct tc_mesh *m, int i)
{
  static const struct tc_place place[] = { { .kind = TC_R }, { TC_S, 0, 0, 0 }, { TC_S, 1, 0, 0 }, { .kind = TC_FLAT },
                                           { TC_P, 0, TC_SUM, 0 } };
  static const int axis[] = { TC_REPLICATE, TC_REST, TC_CP, TC_TP };
  *l = tc_layout_r();
  for (int k = 0; k < 4; k++, i /= 5) l->on[axis[k]] = place[i % 5];
  const unsigned flat = tc_layout_axes(l, TC_FLAT);
  return !flat || tc_mesh_find(m, flat) >= 0;
}

/* From each layout to each: it comes to an end, there. */
static void test_all(void)
{
  enum { LAYOUTS = 5 * 5 * 5 * 5, MOST = 12 };
  struct tc_mesh *m = read_mesh("replicate2 dp2 cp2 tp2");
  int pairs = 0, elsewhere = 0, most = 0;
  for (int i = 0; i < LAYOUTS; i++) {
    struct tc_graph *g = read_program("x [32,32] = fill()\n");
    struct tc_layout to;
    for (int k = 0; layout_of(&g->tensor[0].lay, m, i) && k < LAYOUTS; k++) {
      struct tc_err err = { 0 };
      const int32_t before = g->n_nodes;
      if (!layout_of(&to, m, k) || tc_layout_axes(&to, TC_P)) continue;
      const int32_t t = tc_reshard(g, m, 0, &to, -1, &err);
      elsewhere += t < 0 || !tc_layout_equal(&g->tensor[t].lay, &to);
      most = TC_MAX(most, g->n_nodes - before);
      pairs++;
    }
    tc_graph_free(g);
  }
  is_int(elsewhere, 0, "of %d pairs of layouts, each leads from one to the other", pairs);
  ok(most <= MOST, "... by %d collectives at most", most);
  tc_mesh_free(m);
}

int main(void)
{
  test_placements();
  test_all();
  test_like();
  return done_testing();
}
