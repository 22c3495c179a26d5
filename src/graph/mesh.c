/* mesh.c - lays the axes over the cluster.
 *
 * The ranks are listed node after node, in rank order on each node. The list is read as an array of the axes, the
 * nearest last. Invariants that follow from this, and on which other files rely:
 * - `at` is that list: the rank with coordinates c is at the sum of c[a] * stride[a];
 * - along any axis node numbers never decrease, so neighbours on a near axis are as close as possible;
 * - where tp divides each node's number of ranks, no tp group leaves its node, whatever the
 *   launcher's order of ranks (block, cyclic, a plane distribution). */
#include "src/graph/mesh.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum if_auto { ONE, REST, NODE };
#define AXIS(id, name, role, if_auto) [TC_##id] = #name,
const char *const tc_axis_name[TC_AXES] = {
#include "src/graph/axis.def"
};
#undef AXIS
#define AXIS(id, name, role, if_auto) [TC_##id] = TC_ROLE_##role,
const uint8_t tc_axis_role[TC_AXES] = {
#include "src/graph/axis.def"
};
#undef AXIS
#define AXIS(id, name, role, if_auto) [TC_##id] = if_auto,
static const uint8_t if_auto_of[TC_AXES] = {
#include "src/graph/axis.def"
};
#undef AXIS
static const uint8_t near_to_far[][TC_AXES - TC_FIRST_AXIS] = {
  [TC_TP_DP_PP] = { TC_TP, TC_DP, TC_PP }, [TC_TP_PP_DP] = { TC_TP, TC_PP, TC_DP } };

/* ---- which sizes fit ---------------------------------------------------------------- */

/* Ranks on each node into count[n_nodes], owned by the caller. Returns n_nodes. */
static int count_ranks(int world, const int32_t *node, int32_t **count)
{
  int n_nodes = 0;
  int32_t *c = tc_calloc((size_t)world, sizeof *c);
  for (int r = 0; r < world; r++) {
    TC_ASSERT(node[r] >= 0 && node[r] < world);
    c[node[r]]++;
    n_nodes = TC_MAX(n_nodes, node[r] + 1);
  }
  for (int i = 0; i < n_nodes; i++) TC_ASSERT(c[i] > 0);
  *count = c;
  return n_nodes;
}

/* The first node whose number of ranks tp does not divide, or -1. */
static int first_misfit(const int32_t *count, int n_nodes, int64_t tp)
{
  for (int i = 0; i < n_nodes; i++)
    if (count[i] % tp) return i;
  return -1;
}

struct fit {
  int world, n_nodes;
  const int32_t *count;      /* [n_nodes] */
  bool across;               /* an axis within nodes may leave them */
  enum tc_order order;
  int32_t size[TC_AXES];     /* 0, of the axis that has the rest: auto */
};

/* Whether the axis could have so many ranks where `left` are left for it and the axes within it. */
static bool would_fit(const struct fit *f, int a, int32_t left, int32_t n)
{
  return left % n == 0 && (if_auto_of[a] != NODE || f->across || first_misfit(f->count, f->n_nodes, n) < 0);
}

/* The text of the nearest sizes that would fit: the axis with the rest is changed alone, if that does, else the others,
 * the innermost first. */
static void suggest(const struct fit *f, char *buf, size_t size)
{
  int32_t left = f->world;
  bool same = true;
  buf[0] = 0;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) {
    if (if_auto_of[a] == REST) continue;
    int32_t n = TC_MIN(f->size[a], left);
    while (!would_fit(f, a, left, n)) n--;
    same = n == f->size[a];
    if (!same) tc_text_add(buf, size, "%s = %d%s", tc_axis_name[a], n, if_auto_of[a] == NODE ? "" : " with ");
    left /= n;
  }
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (if_auto_of[a] == REST && same) tc_text_add(buf, size, "%s = %d", tc_axis_name[a], left);
    else if (if_auto_of[a] == REST && f->size[a] && f->size[a] != left)
      tc_text_add(buf, size, " with %s = %d", tc_axis_name[a], left);
}

/* Checks the sizes against the world and the nodes. */
static int check_sizes(const struct fit *f, struct tc_err *err)
{
  char hint[96], sizes[160] = "";
  /* A double, since the product of three int32 may overflow int64; one that is equal to the world is exact. */
  double product = 1;
  bool rest = false;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) {
    rest = rest || !f->size[a];
    if (!f->size[a]) continue;
    product *= f->size[a];
    tc_text_add(sizes, sizeof sizes, "%s%s %d", *sizes ? " x " : "", tc_axis_name[a], f->size[a]);
  }
  if (rest ? product > f->world || f->world % (int)product : product != f->world) {
    suggest(f, hint, sizeof hint);
    return tc_fail(err, TC_ELAYOUT, "world size %d is not %s%s = %.0f; %s would fit", f->world,
                   rest ? "divisible by " : "", sizes, product, hint);
  }
  for (int a = TC_FIRST_AXIS; a < TC_AXES && !f->across; a++) {
    const int bad = if_auto_of[a] == NODE ? first_misfit(f->count, f->n_nodes, f->size[a]) : -1;
    if (bad < 0) continue;
    suggest(f, hint, sizeof hint);
    return tc_fail(err, TC_ELAYOUT, "%s = %d leaves its node: node %d has %d rank%s; %s would fit, "
                   "or mesh.%s_across_nodes = yes", tc_axis_name[a], f->size[a], bad, f->count[bad],
                   tc_plural(f->count[bad]), hint, tc_axis_name[a]);
  }
  return TC_OK;
}

static int check_want(const struct tc_mesh_want *w, struct tc_err *err)
{
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (w->size[a] < 0)
      return tc_fail(err, TC_ELAYOUT, "mesh.%s = %d is not a number of ranks; 1 or more would "
                     "fit, or auto", tc_axis_name[a], w->size[a]);
  return TC_OK;
}

/* ---- the mesh ------------------------------------------------------------------------ */

/* Lists the ranks node by node, in rank order on each node, by a counting sort. list[world]. */
static void list_by_node(int world, const int32_t *node, int n_nodes, const int32_t *count,
                         int32_t *list)
{
  int32_t *next = tc_calloc((size_t)n_nodes, sizeof *next);
  for (int i = 1; i < n_nodes; i++) next[i] = next[i - 1] + count[i - 1];
  for (int r = 0; r < world; r++) list[next[node[r]]++] = r;
  free(next);
}

int tc_mesh_nearest(const struct tc_mesh *m, int i) { return near_to_far[m->order][i]; }

static struct tc_mesh *mesh_make(const struct fit *f, const int32_t *node)
{
  struct tc_mesh *m = tc_calloc(1, sizeof *m);
  size_t world = (size_t)f->world;
  m->world = f->world;
  memcpy(m->size, f->size, sizeof m->size);
  m->size[TC_MB] = 1;
  m->n_nodes = f->n_nodes;
  m->node = tc_malloc(world * sizeof *m->node);
  memcpy(m->node, node, world * sizeof *node);
  m->at = tc_malloc(world * sizeof *m->at);
  list_by_node(f->world, node, f->n_nodes, f->count, m->at);
  m->coord = tc_calloc(world * TC_AXES, sizeof *m->coord);
  m->order = f->order;
  int32_t stride = 1;
  for (int i = 0; i < TC_AXES - TC_FIRST_AXIS; i++) {
    const int a = tc_mesh_nearest(m, i);
    m->stride[a] = stride, stride *= m->size[a];
  }
  for (int i = 0; i < f->world; i++)
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
      m->coord[(size_t)m->at[i] * TC_AXES + (size_t)a] = i / m->stride[a] % m->size[a];
  return m;
}

int tc_mesh_new(struct tc_mesh **out, int world, const int32_t *node_of_rank,
                const struct tc_mesh_want *want, struct tc_err *err)
{
  *out = NULL;
  TC_ASSERT(world >= 1);
  TC_TRY(check_want(want, err));
  int32_t *count;
  int n_nodes = count_ranks(world, node_of_rank, &count);
  struct fit f = { .world = world, .n_nodes = n_nodes, .count = count,
                   .across = want->tp_across_nodes, .order = want->order };
  int32_t least = want->devices_per_node > 0 ? want->devices_per_node : world;   /* more than ranks: these are the limit */
  for (int i = 0; i < n_nodes; i++) least = TC_MIN(least, count[i]);
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    f.size[a] = want->size[a] ? want->size[a] : if_auto_of[a] == NODE ? least : if_auto_of[a] == ONE;
  int status = check_sizes(&f, err), left = world;
  if (status == TC_OK) {
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) left /= TC_MAX(f.size[a], 1);
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
      if (!f.size[a]) f.size[a] = left;
    *out = mesh_make(&f, node_of_rank);
  }
  free(count);
  return status;
}

void tc_mesh_free(struct tc_mesh *m)
{
  if (!m) return;
  TC_FREE(m->node, m->coord, m->at, m);
}

struct tc_mesh *tc_mesh_one(void)
{
  const int32_t zero = 0, one = 1;
  struct fit f = { .world = 1, .n_nodes = 1, .count = &one };
  for (int a = 0; a < TC_AXES; a++) f.size[a] = 1;
  return mesh_make(&f, &zero);
}

/* ---- groups -------------------------------------------------------------------------- */

/* Where the group of `rank` on `axis` begins in `at`. */
static int32_t group_start(const struct tc_mesh *m, int rank, int axis)
{
  TC_ASSERT(rank >= 0 && rank < m->world);
  TC_ASSERT(axis >= TC_FIRST_AXIS && axis < TC_AXES);
  int32_t start = 0;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (a != axis) start += tc_mesh_coord(m, rank, a) * m->stride[a];
  return start;
}

void tc_mesh_group(const struct tc_mesh *m, int rank, int axis, int32_t *ranks)
{
  int32_t start = group_start(m, rank, axis);
  for (int32_t i = 0; i < m->size[axis]; i++) ranks[i] = m->at[start + i * m->stride[axis]];
}

int tc_mesh_group_nodes(const struct tc_mesh *m, int rank, int axis)
{
  const int32_t *at = m->at + group_start(m, rank, axis), stride = m->stride[axis];
  int n = 1;
  for (int32_t i = 1; i < m->size[axis]; i++)    /* nodes never decrease along an axis */
    n += m->node[at[i * stride]] != m->node[at[(i - 1) * stride]];
  return n;
}

/* ---- synthetic clusters --------------------------------------------------------------- */

/* Skips blanks, then `word` if it follows (if it ends with a letter, as a whole word). */
static bool eat(const char **s, const char *word)
{
  while (isspace((unsigned char)**s)) ++*s;
  size_t n = strlen(word);
  if (strncmp(*s, word, n) != 0) return false;
  if (n > 1 && isalpha((unsigned char)(*s)[n])) return false;
  *s += n;
  return true;
}

static bool eat_number(const char **s, int32_t *n)
{
  while (isspace((unsigned char)**s)) ++*s;
  if (!isdigit((unsigned char)**s)) return false;
  char *end;
  long v = strtol(*s, &end, 10);
  if (v < 1 || v > TC_MAX_WORLD) return false;
  *s = end;
  *n = (int32_t)v;
  return true;
}

/* "N [nodes] x G [ranks|gpus]" or "N:G,G,..." into (*count)[n_nodes], owned by the caller.
 * Returns n_nodes, or 0 if the text is neither. */
static int32_t parse_cluster(const char *s, int32_t **count)
{
  int32_t n_nodes, each;
  *count = NULL;
  if (!eat_number(&s, &n_nodes)) return 0;
  int32_t *c = tc_calloc((size_t)n_nodes, sizeof *c);
  bool good = true;
  if (eat(&s, ":")) {
    for (int32_t i = 0; good && i < n_nodes; i++)
      good = (i == 0 || eat(&s, ",")) && eat_number(&s, &c[i]);
  } else {
    (void)(eat(&s, "nodes") || eat(&s, "node"));
    good = (eat(&s, "x") || eat(&s, "*")) && eat_number(&s, &each);
    (void)(good && (eat(&s, "ranks") || eat(&s, "gpus")));
    for (int32_t i = 0; good && i < n_nodes; i++) c[i] = each;
  }
  if (good) eat(&s, "");                         /* trailing blanks */
  if (!good || *s) {
    free(c);
    return 0;
  }
  *count = c;
  return n_nodes;
}

int tc_mesh_synthetic(const char *text, const char *order, int32_t **node_of_rank,
                      struct tc_err *err)
{
  *node_of_rank = NULL;
  bool cyclic = order && strcmp(order, "cyclic") == 0;
  if (order && !cyclic && strcmp(order, "block") != 0)
    return tc_fail(err, TC_EUSER, "order '%s' of the simulated ranks is neither block nor cyclic",
                   order);
  int32_t *count;
  int32_t n_nodes = parse_cluster(text, &count);
  if (n_nodes == 0)
    return tc_fail(err, TC_EUSER, "'%s' is not a cluster; write \"32 nodes x 8\", or \"3:4,4,2\" "
                   "for three nodes of 4, 4 and 2 ranks", text);
  int64_t world = 0;
  for (int32_t i = 0; i < n_nodes; i++) world += count[i];
  if (world > TC_MAX_WORLD) {
    free(count);
    return tc_fail(err, TC_EUSER, "'%s' has %lld ranks; at most %d are simulated", text,
                   (long long)world, TC_MAX_WORLD);
  }
  int32_t *node = tc_malloc((size_t)world * sizeof *node);
  int32_t r = 0;
  if (!cyclic)
    for (int32_t i = 0; i < n_nodes; i++)
      for (int32_t k = 0; k < count[i]; k++) node[r++] = i;
  /* In rounds over the nodes that have ranks left, as srun -m cyclic does. */
  while (r < world)
    for (int32_t i = 0; i < n_nodes; i++)
      if (count[i] > 0) {
        count[i]--;
        node[r++] = i;
      }
  free(count);
  *node_of_rank = node;
  return (int)world;
}
