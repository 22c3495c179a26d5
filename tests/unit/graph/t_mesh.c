/* t_mesh.c - the mesh on synthetic clusters: coordinates are a bijection, groups are what all
 * their members compute, tp stays on its node, and layouts that can't be say what would fit. */
#include "src/graph/mesh.h"
#include "tests/unit/tap.h"

#define SIZES(pp, dp, tp) { [TC_SET_PP] = pp, [TC_SET_DP] = dp, [TC_SET_TP] = tp }

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
    int32_t place = 0;
    i = 0;
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) {
      i = i * m->size[a] + c[a];
      place += (int32_t)c[a] * m->stride[a];
    }
    good = good && !seen[i] && m->at[place] == r;
    if (good) seen[i] = 1;
  }
  free(seen);
  return good;
}

/* Member i of a group has index i in it, by hand the coordinates on the set's axes as one number, the last axis fastest; and
 * the rank's own coordinates elsewhere. */
static bool group_right(const struct tc_mesh *m, int rank, unsigned axes, const int32_t *g)
{
  for (int i = 0; i < tc_mesh_size(m, axes); i++) {
    if (g[i] < 0 || g[i] >= m->world || tc_mesh_member(m, rank, axes, i) != g[i] || tc_mesh_index(m, g[i], axes) != i) return false;
    for (int a = TC_AXES - 1, left = i; a >= 0; a--) {
      const bool in = axes >> a & 1;
      if (tc_mesh_coord(m, g[i], a) != (in ? left % m->size[a] : tc_mesh_coord(m, rank, a))) return false;
      if (in) left /= m->size[a];
    }
  }
  return g[tc_mesh_index(m, rank, axes)] == rank;
}

/* Every member computes the same group; checked for `step`-th ranks (all: 1). */
static bool groups_agree(const struct tc_mesh *m, unsigned axes, int step)
{
  const size_t size = (size_t)tc_mesh_size(m, axes);
  int32_t *g = calloc(size, sizeof *g), *h = calloc(size, 4);
  bool good = true;
  for (int r = 0; r < m->world && good; r += step) {
    tc_mesh_group(m, r, axes, g);
    good = group_right(m, r, axes, g);
    for (int i = 0; i < (int)size && good; i += step) {
      tc_mesh_group(m, g[i], axes, h);
      good = memcmp(g, h, size * sizeof *g) == 0;
    }
  }
  free(g);
  free(h);
  return good;
}

/* The number of nodes in a group, counted without using their order. */
static int count_nodes(const struct tc_mesh *m, int rank, unsigned axes)
{
  const int size = tc_mesh_size(m, axes);
  int32_t *g = calloc((size_t)size, sizeof *g);
  char *seen = calloc((size_t)m->n_nodes, 1);
  int n = 0;
  tc_mesh_group(m, rank, axes, g);
  for (int i = 0; i < size; i++) {
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
    if (count_nodes(m, r, TC_ON_TP) != 1) return false;
  return true;
}

static bool node_counts_right(const struct tc_mesh *m, int step)
{
  for (int s = 0; s < TC_SETS; s++)
    for (int r = 0; r < m->world; r += step)
      if (tc_mesh_group_nodes(m, r, tc_set_axes[s]) != count_nodes(m, r, tc_set_axes[s])) return false;
  return true;
}

/* ---- tables ---------------------------------------------------------------------------- */

static const struct good {
  const char *cluster, *order;
  struct tc_mesh_want want;
  int32_t pp, dp, tp, shard;     /* shard: 0 if it is dp */
} goods[] = {
  { "1 node x 1", "block", { SIZES(0, 0, 0), 0, false, 0 }, 1, 1, 1, 0 },
  { "2 nodes x 4", "block", { SIZES(1, 0, 4), 0, false, 0 }, 1, 2, 4, 0 },
  { "2 nodes x 4", "cyclic", { SIZES(1, 0, 4), 0, false, 0 }, 1, 2, 4, 0 },
  { "2 nodes x 4", "cyclic", { SIZES(2, 2, 2), 0, false, 0 }, 2, 2, 2, 0 },
  { "2 nodes x 4", "cyclic", { SIZES(1, 0, 0), 0, false, 0 }, 1, 2, 4, 0 },       /* tp auto: the ranks */
  { "2 nodes x 4", "block", { SIZES(1, 0, 0), 2, false, 0 }, 1, 4, 2, 0 },        /* tp auto: 2 devices */
  { "2 nodes x 4", "block", { SIZES(1, 0, 0), 8, false, 0 }, 1, 2, 4, 0 },        /* fewer ranks than those */
  { "3:4,4,2", "block", { SIZES(1, 0, 2), 0, false, 0 }, 1, 5, 2, 0 },
  { "3:4,4,2", "cyclic", { SIZES(5, 1, 2), 0, false, 0 }, 5, 1, 2, 0 },
  { "3:4,4,2", "cyclic", { SIZES(1, 0, 0), 0, false, 0 }, 1, 5, 2, 0 },           /* the smallest node */
  { "3:3,3,3", "cyclic", { SIZES(3, 0, 3), 0, false, 0 }, 3, 1, 3, 0 },
  { "5:1,2,3,4,5", "cyclic", { SIZES(3, 0, 1), 0, false, 0 }, 3, 5, 1, 0 },
  { "32 nodes x 8", "block", { SIZES(4, 0, 8), 0, false, 0 }, 4, 8, 8, 0 },
  { "32 nodes x 8", "cyclic", { SIZES(4, 0, 4), 0, false, 0 }, 4, 16, 4, 0 },
  { "2048 nodes x 8", "block", { SIZES(16, 128, 8), 0, false, 0 }, 16, 128, 8, 0 },
  { "2048 nodes x 8", "cyclic", { SIZES(8, 256, 8), 0, false, 0 }, 8, 256, 8, 0 },
  { "2 nodes x 4", "cyclic", { SIZES(2, 2, 2), 0, false, TC_TP_PP_DP }, 2, 2, 2, 0 },
  { "32 nodes x 8", "block", { SIZES(4, 0, 2), 0, false, TC_TP_PP_DP }, 4, 32, 2, 0 },
  { "3:4,4,2", "cyclic", { SIZES(5, 1, 2), 0, false, TC_TP_PP_DP }, 5, 1, 2, 0 },
  { "4 nodes x 8", "cyclic", { { [TC_SET_PP] = 2, [TC_SET_SHARD] = 4, [TC_SET_TP] = 2 }, 0, false, 0 }, 2, 8, 2, 4 },
  { "4 nodes x 8", "block", { { [TC_SET_PP] = 1, [TC_SET_DP] = 32, [TC_SET_SHARD] = 8, [TC_SET_TP] = 1 }, 0, false, TC_TP_PP_DP },
    1, 32, 1, 8 },
  { "3:4,4,2", "block", { { [TC_SET_PP] = 1, [TC_SET_SHARD] = 1, [TC_SET_TP] = 1 }, 0, false, 0 }, 1, 10, 1, 1 },
  { "2 nodes x 6", "block", { { [TC_SET_PP] = 1, [TC_SET_SHARD] = 6, [TC_SET_EP] = 3, [TC_SET_TP] = 1 }, 0, false, 0 }, 1, 12, 1, 6 },
  { "4 nodes x 8", "cyclic", { { [TC_SET_PP] = 2, [TC_SET_CP] = 2, [TC_SET_SHARD] = 2, [TC_SET_TP] = 2 }, 0, false, 0 }, 2, 4, 2, 2 },
  { "3:4,4,2", "block", { { [TC_SET_PP] = 1, [TC_SET_CP] = 5, [TC_SET_TP] = 1 }, 0, false, TC_TP_PP_DP }, 1, 2, 1, 0 },
};

/* The inner of dp and pp stays within the node where it fits beside tp. */
static void test_order(void)
{
  for (int order = TC_TP_DP_PP; order <= TC_TP_PP_DP; order++) {
    int near = order == TC_TP_DP_PP ? TC_SET_DP : TC_SET_PP, far = TC_SET_DP + TC_SET_PP - near;
    struct tc_mesh_want w = { .size = SIZES(2, 2, 2), .order = order };
    int32_t *node;
    struct tc_mesh *m;
    struct tc_err err = { 0 };
    int world = tc_mesh_synthetic("2 nodes x 4", "cyclic", &node, &err);
    is_int(tc_mesh_new(&m, world, node, &w, &err), TC_OK, "%s", tc_word_mesh_order(order));
    bool right = true;
    for (int r = 0; r < world; r++)
      right &= count_nodes(m, r, tc_set_axes[near]) == 1 && count_nodes(m, r, tc_set_axes[far]) == 2;
    ok(right, "%s: %s within a node, %s across", tc_word_mesh_order(order), tc_set_name[near],
       tc_set_name[far]);
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
  const int dp = tc_mesh_size(m, TC_ON_DP), shard = tc_mesh_size(m, TC_ON_SHARD);
  ok(m->size[TC_PP] == g->pp && dp == g->dp && m->size[TC_TP] == g->tp && shard == (g->shard ? g->shard : dp),
     "%s: pp %d dp %d tp %d, shard %d", g->cluster, m->size[TC_PP], dp, m->size[TC_TP], shard);
  ok(coords_unique(m), "%s: coordinates are unique", g->cluster);
  ok(tp_on_one_node(m), "%s: no tp group leaves its node", g->cluster);
  int step = world > 1000 ? 61 : 1;      /* the whole check is quadratic */
  for (int i = 0; i < TC_SETS; i++)
    ok(groups_agree(m, tc_set_axes[i], step), "%s: %s groups agree", g->cluster, tc_set_name[i]);
  ok(groups_agree(m, TC_ON_TP | TC_ON_REPLICATE, step), "%s: ... of a set without a name", g->cluster);
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
  { "3 nodes x 2", { SIZES(1, 4, 1), 0, false, 0 },
    "world size 6 is not pp 1 x dp 4 x tp 1 = 4; dp = 6 would fit" },
  { "2:4,3", { SIZES(1, 0, 4), 0, false, 0 },
    "world size 7 is not divisible by pp 1 x tp 4 = 4; tp = 1 would fit" },
  { "2:5,3", { SIZES(1, 2, 4), 0, false, 0 }, "tp = 4 leaves its node: node 0 has 5 ranks; tp = 1 with dp = 8 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "3:4,4,4", { SIZES(1, 0, 3), 0, false, 0 }, "tp = 3 leaves its node: node 0 has 4 ranks; tp = 2 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "3:4,3,1", { SIZES(1, 0, 4), 0, false, 0 }, "tp = 4 leaves its node: node 1 has 3 ranks; tp = 1 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "2 nodes x 2", { SIZES(1, 0, 8), 0, false, 0 },
    "world size 4 is not divisible by pp 1 x tp 8 = 8; tp = 2 would fit" },
  { "2 nodes x 2", { SIZES(3, 0, 1), 0, false, 0 },
    "world size 4 is not divisible by pp 3 x tp 1 = 3; pp = 2 with dp = 2 would fit" },
  { "2 nodes x 2", { SIZES(3, 2, 8), 0, false, 0 },
    "world size 4 is not pp 3 x dp 2 x tp 8 = 48; pp = 2 with tp = 2 with dp = 1 would fit" },
  { "2 nodes x 4", { SIZES(3, 2, 3), 0, false, 0 },
    "world size 8 is not pp 3 x dp 2 x tp 3 = 18; pp = 2 with tp = 2 would fit" },
  { "2:1,5", { SIZES(1, 0, 4), 0, true, 0 },
    "world size 6 is not divisible by pp 1 x tp 4 = 4; tp = 3 would fit" },
  { "3:2,1,1", { SIZES(1, 0, 2), 0, false, 0 }, "tp = 2 leaves its node: node 1 has 1 rank; tp = 1 "
    "would fit, or mesh.tp_across_nodes = yes" },
  { "2 nodes x 2", { SIZES(INT32_MAX, INT32_MAX, INT32_MAX), 0, false, 0 }, NULL },
  { "1 node x 4", { SIZES(-1, 0, 1), 0, false, 0 },
    "mesh.pp = -1 is not a number of ranks; 1 or more would fit, or auto" },
  { "1 node x 4", { SIZES(1, -3, 1), 0, false, 0 },
    "mesh.dp = -3 is not a number of ranks; 1 or more would fit, or auto" },
  { "1 node x 4", { SIZES(0, 0, -2), 0, false, 0 },
    "mesh.tp = -2 is not a number of ranks; 1 or more would fit, or auto" },
  { "2 nodes x 6", { { [TC_SET_PP] = 1, [TC_SET_DP] = 12, [TC_SET_SHARD] = 8, [TC_SET_TP] = 1 }, 0, false, 0 },
    "shard = 8 does not divide dp = 12; shard = 6 would fit" },
  { "2 nodes x 6", { { [TC_SET_PP] = 2, [TC_SET_SHARD] = 64, [TC_SET_TP] = 2 }, 0, false, 0 },
    "shard = 64 does not divide dp = 3; shard = 3 would fit" },
  { "1 node x 12", { { [TC_SET_PP] = 1, [TC_SET_SHARD] = 6, [TC_SET_EP] = 4, [TC_SET_TP] = 1 }, 0, false, 0 },
    "ep = 4 does not divide shard = 6; ep = 3 would fit" },
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
  for (int a = 0; a < TC_SETS; a++) {
    char name[16];
    snprintf(name, sizeof name, "%s = ", tc_set_name[a]);
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
  const struct tc_mesh_want want = { SIZES(2, 2, 2), 0, false, 0 };
  int32_t *node, g[2];
  struct tc_err err = { 0 };
  struct tc_mesh *m;
  int world = tc_mesh_synthetic("2 nodes x 4", "cyclic", &node, &err);
  for (int r = 0; r < world; r++) ok(node[r] == r % 2, "cyclic: rank %d is on node %d", r, r % 2);
  is_int(tc_mesh_new(&m, world, node, &want, &err), TC_OK, "by hand");
  ok(memcmp(m->at, want_at, sizeof want_at) == 0, "by hand: places");
  tc_mesh_group(m, 6, TC_ON_TP, g);
  ok(g[0] == 4 && g[1] == 6, "by hand: tp group of rank 6");
  tc_mesh_group(m, 6, TC_ON_DP, g);
  ok(g[0] == 2 && g[1] == 6, "by hand: dp group of rank 6");
  tc_mesh_group(m, 6, TC_ON_PP, g);
  ok(g[0] == 6 && g[1] == 7, "by hand: pp group of rank 6");
  is_int(tc_mesh_group_nodes(m, 6, TC_ON_PP), 2, "by hand: pp leaves the node");
  is_int(tc_mesh_group_nodes(m, 6, TC_ON_DP), 1, "by hand: dp does not");
  tc_mesh_free(m);
  free(node);
}

static void test_across(void)
{
  const struct tc_mesh_want want = { SIZES(1, 0, 6), 0, true, 0 };
  int32_t *node;
  struct tc_err err = { 0 };
  struct tc_mesh *m;
  int world = tc_mesh_synthetic("3 nodes x 4", "cyclic", &node, &err);
  is_int(tc_mesh_new(&m, world, node, &want, &err), TC_OK, "tp across nodes when allowed");
  ok(coords_unique(m) && groups_agree(m, TC_ON_TP, 1) && node_counts_right(m, 1), "  and consistent");
  is_int(tc_mesh_group_nodes(m, 0, TC_ON_TP), 2, "  a group of 6 touches 2 nodes of 4");
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
                                     "pp-1 dp2", "pp1 dp2 tp2 qq3", "mb2 pp1", "pp99999999 dp1", "pp1 dp2 tp", "pp01", "PP1", "dp4 shard3", "dp6 shard4", "replicate2", "shard2 dp2",
                                     "fsdp2", "dp+cp4", "cp2 dp2" };
  static const struct { int32_t size[TC_AXES];       /* 0: 1 */
                        const char *text, *groups; } good[] = {
    { { [TC_PP] = 3, [TC_REST] = 16777216, [TC_TP] = 8 }, "pp3 dp16777216 tp8", "pp dp tp" },
    { { [TC_REPLICATE] = 2, [TC_REST] = 4 }, "pp1 dp8 shard4 tp1", "pp dp shard replicate tp" },
    { { [TC_REPLICATE] = 4, [TC_TP] = 2 }, "pp1 dp4 shard1 tp2", "pp dp tp" },
    { { [TC_EP] = 4 }, "pp1 dp4 ep4 tp1", "pp dp tp" },
    { { [TC_REPLICATE] = 2, [TC_REST] = 3, [TC_EP] = 2 }, "pp1 dp12 shard6 ep2 tp1", "pp dp shard replicate ep rest tp" },
    { { [TC_REPLICATE] = 2, [TC_REST] = 3, [TC_CP] = 4 }, "pp1 dp6 shard3 cp4 tp1", "pp dp shard replicate cp dp+cp fsdp tp" },
    { { [TC_REST] = 3, [TC_CP] = 4 }, "pp1 dp3 cp4 tp1", "pp dp cp dp+cp tp" },
    { { [TC_CP] = 4, [TC_TP] = 2 }, "pp1 dp1 cp4 tp2", "pp dp cp tp" },
    { { 0 }, "pp1 dp1 tp1", "pp dp tp" } };
  char text[TC_MESH_TEXT], named[80];
  int32_t n[TC_AXES];
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    struct tc_group group[TC_SETS];
    int32_t size[TC_AXES];
    for (int a = 0; a < TC_AXES; a++) size[a] = good[i].size[a] ? good[i].size[a] : 1;
    is_str(tc_mesh_text(text, size, "", " "), good[i].text, "a mesh as text");
    ok(tc_mesh_parse(text, n) && !memcmp(n, size, sizeof n), "... and read again");
    tc_mesh_groups(group, n);
    named[0] = '\0';
    for (int s = 0; s < TC_SETS; s++)
      if (group[s].named) tc_text_add(named, sizeof named, "%s%s", *named ? " " : "", tc_set_name[s]);
    is_str(named, good[i].groups, "... and its groups have these names");
  }
  ok(tc_mesh_parse("dp4", n) && n[TC_PP] == 1 && n[TC_REST] == 4 && n[TC_TP] == 1 && n[TC_MB] == 1,
     "an axis that is not named is 1");
  is_str(tc_mesh_text(text, n, " ", " x "), "pp 1 x dp 4 x tp 1", "... in a sentence");
  static const char *const set[] = { "dp", "tp", "shard", "replicate+ep", "dp+tp", "pp", "cp", "fsdp", "dp+cp", "cp+tp" };
  for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
    char again[TC_AXES_TEXT];
    is_str(tc_axes_text(again, tc_axes_named(set[i])), set[i], "a set of axes, and its name");
  }
  ok(!tc_axes_named("") && !tc_axes_named("dp+") && !tc_axes_named("mb") && !tc_axes_named("d") && !tc_axes_named("+tp"),
     "other words are none");
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
  ok(one->world == 1 && coords_unique(one) && tc_mesh_group_nodes(one, 0, TC_ON_DP) == 1, "one rank");
  for (int a = 0; a < TC_AXES; a++) is_int(one->size[a], 1, "  alone on %s", tc_axis_name[a]);
  ok(one->n_nodes == 1 && one->node[0] == 0 && one->at[0] == 0 && one->order == TC_TP_DP_PP, "  on one node");
  tc_mesh_free(one);
  tc_mesh_free(NULL);
  return done_testing();
}
