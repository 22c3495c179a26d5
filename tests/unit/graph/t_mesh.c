/* t_mesh.c - the mesh on synthetic clusters: coordinates are a bijection, groups are what all
 * their members compute, tp stays on its node, and layouts that can't be say what would fit. */
#include "src/graph/mesh.h"
#include "tests/unit/tap.h"

/* ---- invariants, checked from the coordinates alone ------------------------------------ */

/* No two ranks have the same coordinates, and all are in range. */
static bool coords_unique(const struct tc_mesh *m)
{
  char *seen = calloc((size_t)m->world, 1);
  bool good = true;
  for (int r = 0; r < m->world && good; r++) {
    int64_t c[TC_AXES], i;
    for (int a = 0; a < TC_AXES; a++) {
      c[a] = tc_mesh_coord(m, r, a);
      good &= c[a] >= 0 && c[a] < m->size[a];
    }
    i = (c[TC_PP] * m->size[TC_DP] + c[TC_DP]) * m->size[TC_TP] + c[TC_TP];
    int32_t place = 0;
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) place += (int32_t)c[a] * m->stride[a];
    good = good && !seen[i] && m->at[place] == r;
    if (good) seen[i] = 1;
  }
  free(seen);
  return good;
}

/* Member i of a group has coordinate i on its axis and the group's others elsewhere. */
static bool group_right(const struct tc_mesh *m, int rank, int axis, const int32_t *g)
{
  for (int i = 0; i < m->size[axis]; i++) {
    if (g[i] < 0 || g[i] >= m->world) return false;
    for (int a = 0; a < TC_AXES; a++)
      if (tc_mesh_coord(m, g[i], a) != (a == axis ? i : tc_mesh_coord(m, rank, a))) return false;
  }
  return g[tc_mesh_coord(m, rank, axis)] == rank;
}

/* Every member computes the same group; checked for `step`-th ranks (all: 1). */
static bool groups_agree(const struct tc_mesh *m, int axis, int step)
{
  int32_t *g = calloc((size_t)m->size[axis], sizeof *g), *h = calloc((size_t)m->size[axis], 4);
  bool good = true;
  for (int r = 0; r < m->world && good; r += step) {
    tc_mesh_group(m, r, axis, g);
    good = group_right(m, r, axis, g);
    for (int i = 0; i < m->size[axis] && good; i += step) {
      tc_mesh_group(m, g[i], axis, h);
      good = memcmp(g, h, (size_t)m->size[axis] * sizeof *g) == 0;
    }
  }
  free(g);
  free(h);
  return good;
}

/* The number of nodes in a group, counted without using their order. */
static int count_nodes(const struct tc_mesh *m, int rank, int axis)
{
  int32_t *g = calloc((size_t)m->size[axis], sizeof *g);
  char *seen = calloc((size_t)m->n_nodes, 1);
  int n = 0;
  tc_mesh_group(m, rank, axis, g);
  for (int i = 0; i < m->size[axis]; i++) {
    n += !seen[m->node[g[i]]];
    seen[m->node[g[i]]] = 1;
  }
  free(g);
  free(seen);
  return n;
}

static bool tp_on_one_node(const struct tc_mesh *m)
{
  for (int r = 0; r < m->world; r++)
    if (count_nodes(m, r, TC_TP) != 1) return false;
  return true;
}

static bool node_counts_right(const struct tc_mesh *m, int step)
{
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    for (int r = 0; r < m->world; r += step)
      if (tc_mesh_group_nodes(m, r, a) != count_nodes(m, r, a)) return false;
  return true;
}

/* ---- tables ---------------------------------------------------------------------------- */

static const struct good {
  const char *cluster, *order;
  struct tc_mesh_want want;
  int32_t pp, dp, tp;
} goods[] = {
  { "1 node x 1", "block", { { 0, 0, 0, 0 }, 0, false, 0 }, 1, 1, 1 },
  { "2 nodes x 4", "block", { { 0, 1, 0, 4 }, 0, false, 0 }, 1, 2, 4 },
  { "2 nodes x 4", "cyclic", { { 0, 1, 0, 4 }, 0, false, 0 }, 1, 2, 4 },
  { "2 nodes x 4", "cyclic", { { 0, 2, 2, 2 }, 0, false, 0 }, 2, 2, 2 },
  { "2 nodes x 4", "cyclic", { { 0, 1, 0, 0 }, 0, false, 0 }, 1, 2, 4 },       /* tp auto: the ranks */
  { "2 nodes x 4", "block", { { 0, 1, 0, 0 }, 2, false, 0 }, 1, 4, 2 },        /* tp auto: 2 devices */
  { "2 nodes x 4", "block", { { 0, 1, 0, 0 }, 8, false, 0 }, 1, 2, 4 },        /* fewer ranks than those */
  { "3:4,4,2", "block", { { 0, 1, 0, 2 }, 0, false, 0 }, 1, 5, 2 },
  { "3:4,4,2", "cyclic", { { 0, 5, 1, 2 }, 0, false, 0 }, 5, 1, 2 },
  { "3:4,4,2", "cyclic", { { 0, 1, 0, 0 }, 0, false, 0 }, 1, 5, 2 },           /* the smallest node */
  { "3:3,3,3", "cyclic", { { 0, 3, 0, 3 }, 0, false, 0 }, 3, 1, 3 },
  { "5:1,2,3,4,5", "cyclic", { { 0, 3, 0, 1 }, 0, false, 0 }, 3, 5, 1 },
  { "32 nodes x 8", "block", { { 0, 4, 0, 8 }, 0, false, 0 }, 4, 8, 8 },
  { "32 nodes x 8", "cyclic", { { 0, 4, 0, 4 }, 0, false, 0 }, 4, 16, 4 },
  { "2048 nodes x 8", "block", { { 0, 16, 128, 8 }, 0, false, 0 }, 16, 128, 8 },
  { "2048 nodes x 8", "cyclic", { { 0, 8, 256, 8 }, 0, false, 0 }, 8, 256, 8 },
  { "2 nodes x 4", "cyclic", { { 0, 2, 2, 2 }, 0, false, TC_TP_PP_DP }, 2, 2, 2 },
  { "32 nodes x 8", "block", { { 0, 4, 0, 2 }, 0, false, TC_TP_PP_DP }, 4, 32, 2 },
  { "3:4,4,2", "cyclic", { { 0, 5, 1, 2 }, 0, false, TC_TP_PP_DP }, 5, 1, 2 },
};

/* The inner of dp and pp stays within the node where it fits beside tp. */
static void test_order(void)
{
  for (int order = TC_TP_DP_PP; order <= TC_TP_PP_DP; order++) {
    int near = order == TC_TP_DP_PP ? TC_DP : TC_PP, far = TC_DP + TC_PP - near;
    struct tc_mesh_want w = { .size = { 0, 2, 2, 2 }, .order = order };
    int32_t *node;
    struct tc_mesh *m;
    struct tc_err err = { 0 };
    int world = tc_mesh_synthetic("2 nodes x 4", "cyclic", &node, &err);
    is_int(tc_mesh_new(&m, world, node, &w, &err), TC_OK, "%s", tc_word_mesh_order(order));
    bool right = true;
    for (int r = 0; r < world; r++)
      right &= count_nodes(m, r, near) == 1 && count_nodes(m, r, far) == 2;
    ok(right, "%s: %s within a node, %s across", tc_word_mesh_order(order), tc_axis_name[near],
       tc_axis_name[far]);
    tc_mesh_free(m);
    free(node);
  }
}

static void test_good(const struct good *g)
{
  int32_t *node;
  struct tc_err err = { 0 };
  struct tc_mesh *m = NULL;
  int world = tc_mesh_synthetic(g->cluster, g->order, &node, &err);
  int64_t t0 = tc_now_ns();
  int status = world < 0 ? world : tc_mesh_new(&m, world, node, &g->want, &err);
  double seconds = (double)(tc_now_ns() - t0) * 1e-9;
  if (!is_int(status, TC_OK, "%s %s: a mesh (%s)", g->cluster, g->order, err.text)) return;
  ok(m->size[TC_PP] == g->pp && m->size[TC_DP] == g->dp && m->size[TC_TP] == g->tp,
     "%s: pp %d dp %d tp %d", g->cluster, m->size[TC_PP], m->size[TC_DP], m->size[TC_TP]);
  ok(coords_unique(m), "%s: coordinates are unique", g->cluster);
  ok(tp_on_one_node(m), "%s: no tp group leaves its node", g->cluster);
  int step = world > 1000 ? 61 : 1;      /* the whole check is quadratic */
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    ok(groups_agree(m, a, step), "%s: %s groups agree", g->cluster, tc_axis_name[a]);
  ok(node_counts_right(m, step), "%s: nodes of groups", g->cluster);
  ok(memcmp(m->node, node, (size_t)world * sizeof *node) == 0, "%s: the nodes", g->cluster);
  ok(seconds < 20, "%s: %d ranks in %.4f s", g->cluster, world, seconds);
  tc_mesh_free(m);
  free(node);
}

static const struct bad {
  const char *cluster;
  struct tc_mesh_want want;
  const char *text;
} bads[] = {
  { "3 nodes x 2", { { 0, 1, 4, 1 }, 0, false, 0 },
    "world size 6 is not pp 1 x dp 4 x tp 1 = 4; dp = 6 would fit" },
  { "2:4,3", { { 0, 1, 0, 4 }, 0, false, 0 },
    "world size 7 is not divisible by pp 1 x tp 4 = 4; tp = 1 would fit" },
  { "2:5,3", { { 0, 1, 2, 4 }, 0, false, 0 }, "tp = 4 leaves its node: node 0 has 5 ranks; tp = 1 with dp = 8 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "3:4,4,4", { { 0, 1, 0, 3 }, 0, false, 0 }, "tp = 3 leaves its node: node 0 has 4 ranks; tp = 2 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "3:4,3,1", { { 0, 1, 0, 4 }, 0, false, 0 }, "tp = 4 leaves its node: node 1 has 3 ranks; tp = 1 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "2 nodes x 2", { { 0, 1, 0, 8 }, 0, false, 0 },
    "world size 4 is not divisible by pp 1 x tp 8 = 8; tp = 2 would fit" },
  { "2 nodes x 2", { { 0, 3, 0, 1 }, 0, false, 0 },
    "world size 4 is not divisible by pp 3 x tp 1 = 3; pp = 2 with dp = 2 would fit" },
  { "2 nodes x 2", { { 0, 3, 2, 8 }, 0, false, 0 },
    "world size 4 is not pp 3 x dp 2 x tp 8 = 48; pp = 2 with tp = 2 with dp = 1 would fit" },
  { "2 nodes x 4", { { 0, 3, 2, 3 }, 0, false, 0 },
    "world size 8 is not pp 3 x dp 2 x tp 3 = 18; pp = 2 with tp = 2 would fit" },
  { "2:1,5", { { 0, 1, 0, 4 }, 0, true, 0 },
    "world size 6 is not divisible by pp 1 x tp 4 = 4; tp = 3 would fit" },
  { "3:2,1,1", { { 0, 1, 0, 2 }, 0, false, 0 }, "tp = 2 leaves its node: node 1 has 1 rank; tp = 1 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "2 nodes x 2", { { 0, INT32_MAX, INT32_MAX, INT32_MAX }, 0, false, 0 }, NULL },
  { "1 node x 4", { { 0, -1, 0, 1 }, 0, false, 0 },
    "mesh.pp = -1 is not a number of ranks; 1 or more would fit, or auto" },
  { "1 node x 4", { { 0, 1, -3, 1 }, 0, false, 0 },
    "mesh.dp = -3 is not a number of ranks; 1 or more would fit, or auto" },
  { "1 node x 4", { { 0, 0, 0, -2 }, 0, false, 0 },
    "mesh.tp = -2 is not a number of ranks; 1 or more would fit, or auto" },
};

/* What the sentence proposes must itself be accepted. */
static void test_hint(const char *cluster, const struct tc_mesh_want *want, const char *text)
{
  struct tc_mesh_want w = *want;
  int32_t *node;
  struct tc_err err = { 0 };
  struct tc_mesh *m;
  const char *hint = strchr(text, ';');
  if (!hint) return;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) {
    char name[16];
    snprintf(name, sizeof name, "%s = ", tc_axis_name[a]);
    const char *at = strstr(hint, name);
    if (want->size[a] < 0) return;
    if (at) w.size[a] = atoi(at + strlen(name));
  }
  int world = tc_mesh_synthetic(cluster, "block", &node, &err);
  is_int(tc_mesh_new(&m, world, node, &w, &err), TC_OK, "  and that does fit (%s)", err.text);
  tc_mesh_free(m);
  free(node);
}

static void test_bad(const struct bad *b)
{
  int32_t *node;
  struct tc_err err = { 0 };
  struct tc_mesh *m = NULL;
  int world = tc_mesh_synthetic(b->cluster, "block", &node, &err);
  is_int(tc_mesh_new(&m, world, node, &b->want, &err), TC_ELAYOUT, "%s is refused", b->cluster);
  if (b->text) is_str(err.text, b->text, "%s: says why", b->cluster);
  ok(m == NULL, "%s: no mesh", b->cluster);
  test_hint(b->cluster, &b->want, err.text);
  free(node);
}

/* ---- exact places ---------------------------------------------------------------------- */

/* By hand: 2 nodes x 4 ranks, cyclic (node 0: 0 2 4 6, node 1: 1 3 5 7), pp 2 x dp 2 x tp 2:
 * the runs 0 2, 4 6, 1 3, 5 7 go to dp first. */
static void test_by_hand(void)
{
  static const int32_t want_at[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
  const struct tc_mesh_want want = { { 0, 2, 2, 2 }, 0, false, 0 };
  int32_t *node, g[2];
  struct tc_err err = { 0 };
  struct tc_mesh *m;
  int world = tc_mesh_synthetic("2 nodes x 4", "cyclic", &node, &err);
  for (int r = 0; r < world; r++) ok(node[r] == r % 2, "cyclic: rank %d is on node %d", r, r % 2);
  is_int(tc_mesh_new(&m, world, node, &want, &err), TC_OK, "by hand");
  ok(memcmp(m->at, want_at, sizeof want_at) == 0, "by hand: places");
  tc_mesh_group(m, 6, TC_TP, g);
  ok(g[0] == 4 && g[1] == 6, "by hand: tp group of rank 6");
  tc_mesh_group(m, 6, TC_DP, g);
  ok(g[0] == 2 && g[1] == 6, "by hand: dp group of rank 6");
  tc_mesh_group(m, 6, TC_PP, g);
  ok(g[0] == 6 && g[1] == 7, "by hand: pp group of rank 6");
  is_int(tc_mesh_group_nodes(m, 6, TC_PP), 2, "by hand: pp leaves the node");
  is_int(tc_mesh_group_nodes(m, 6, TC_DP), 1, "by hand: dp does not");
  tc_mesh_free(m);
  free(node);
}

static void test_across(void)
{
  const struct tc_mesh_want want = { { 0, 1, 0, 6 }, 0, true, 0 };
  int32_t *node;
  struct tc_err err = { 0 };
  struct tc_mesh *m;
  int world = tc_mesh_synthetic("3 nodes x 4", "cyclic", &node, &err);
  is_int(tc_mesh_new(&m, world, node, &want, &err), TC_OK, "tp across nodes when allowed");
  ok(coords_unique(m) && groups_agree(m, TC_TP, 1) && node_counts_right(m, 1), "  and consistent");
  is_int(tc_mesh_group_nodes(m, 0, TC_TP), 2, "  a group of 6 touches 2 nodes of 4");
  tc_mesh_free(m);
  free(node);
}

static void test_synthetic(void)
{
  static const char *const bad[] = { "", "x", "0 nodes x 8", "3:4,4", "3:4,4,4,4", "2 nodes 8",
                                     "2 x 8 apples", "-1 x 2", "99999999999 x 1", "2 x 0", "2:1,0",
                                     "2: 1 1", "2 ranks x 1", "2 x 8 gpusx", "1 x 16777217" };
  static const struct { const char *text; int world; } good[] = {
    { "32 nodes x 8", 256 }, { "1 node x 8 gpus", 8 }, { "4x2", 8 }, { " 3 : 4, 4, 2 ", 10 },
    { "2 nodes * 3 ranks", 6 }, { "1:7", 7 }, { "1 x 16777216", 16777216 }
  };
  int32_t *node;
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    is_int(tc_mesh_synthetic(bad[i], "block", &node, &err), TC_EUSER, "'%s' is no cluster", bad[i]);
    char want[200];
    snprintf(want, sizeof want, "'%s' is not a cluster; write \"32 nodes x 8\", or \"3:4,4,2\" for "
             "three nodes of 4, 4 and 2 ranks", bad[i]);
    is_str(err.text, want, "  and named");
    ok(node == NULL, "  no nodes");
  }
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    is_int(tc_mesh_synthetic(good[i].text, NULL, &node, &err), good[i].world, "'%s'", good[i].text);
    free(node);
  }
  is_int(tc_mesh_synthetic("2 x 8388609", NULL, &node, &err), TC_EUSER, "too many ranks");
  is_str(err.text, "'2 x 8388609' has 16777218 ranks; at most 16777216 are simulated", "  are counted");
  ok(node == NULL, "  no nodes");
  is_int(tc_mesh_synthetic("2 x 2", "random", &node, &err), TC_EUSER, "an unknown order");
  is_str(err.text, "order 'random' of the simulated ranks is neither block nor cyclic", "  is named");
  static const int32_t block[] = { 0, 0, 1, 1, 1, 2 };
  is_int(tc_mesh_synthetic("3:2,3,1", "block", &node, &err), 6, "uneven, block");
  ok(memcmp(node, block, sizeof block) == 0, "  node after node");
  free(node);
  static const int32_t cyclic[] = { 0, 1, 2, 0, 1, 2, 0, 1, 0, 1 };
  is_int(tc_mesh_synthetic("3:4,4,2", "cyclic", &node, &err), 10, "uneven, cyclic");
  ok(memcmp(node, cyclic, sizeof cyclic) == 0, "  full nodes are passed over");
  free(node);
}

/* What a checkpoint says of its mesh is read again; what no mesh's text is, is refused. */
static void test_text(void)
{
  static const char *const bad[] = { "", "pp", "pp0", "pp1 ", " pp1", "pp1  dp2", "pp1dp2", "dp2 pp1", "pp1 pp2", "ppp1", "p1",
                                     "pp-1 dp2", "pp1 dp2 tp2 qq3", "mb2 pp1", "pp99999999 dp1", "pp1 dp2 tp", "pp01", "PP1" };
  char text[TC_MESH_TEXT];
  int32_t n[TC_AXES], size[TC_AXES] = { [TC_MB] = 7, [TC_PP] = 3, [TC_DP] = 16777216, [TC_TP] = 8 };
  is_str(tc_mesh_text(text, size, "", " "), "pp3 dp16777216 tp8", "a mesh as text");
  ok(tc_mesh_parse(text, n) && !memcmp(n + TC_FIRST_AXIS, size + TC_FIRST_AXIS, sizeof n - TC_FIRST_AXIS * sizeof *n),
     "... and read again");
  ok(tc_mesh_parse("dp4", n) && n[TC_PP] == 1 && n[TC_DP] == 4 && n[TC_TP] == 1 && n[TC_MB] == 1,
     "an axis that is not named is 1");
  is_str(tc_mesh_text(text, n, " ", " x "), "pp 1 x dp 4 x tp 1", "... in a sentence");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ok(!tc_mesh_parse(bad[i], n), "no mesh: '%s'", bad[i]);
}

int main(void)
{
  test_text();
  for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) test_good(&goods[i]);
  test_order();
  for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) test_bad(&bads[i]);
  test_by_hand();
  test_across();
  test_synthetic();
  struct tc_mesh *one = tc_mesh_one();
  ok(one->world == 1 && coords_unique(one) && tc_mesh_group_nodes(one, 0, TC_DP) == 1, "one rank");
  for (int a = 0; a < TC_AXES; a++) is_int(one->size[a], 1, "  alone on %s", tc_axis_name[a]);
  ok(one->n_nodes == 1 && one->node[0] == 0 && one->at[0] == 0 && one->order == TC_TP_DP_PP, "  on one node");
  tc_mesh_free(one);
  tc_mesh_free(NULL);
  return done_testing();
}
