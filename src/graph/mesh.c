/* mesh.c - lays the axes over the cluster.
 *
 * The ranks are listed node after node, in rank order on each node. The list is read as an array of the axes, the
 * nearest last. Invariants that follow from this, and on which other files rely:
 * - `at` is that list: the rank with coordinates c is at the sum of c[a] * stride[a];
 * - along any axis node numbers never decrease, so neighbours on a near axis are as close as possible;
 * - where tp divides each node's number of ranks, no tp group leaves its node, whatever the
 *   launcher's order of ranks (block, cyclic, a plane distribution). */
#include "src/graph/mesh.h"
#include "src/coll/selection.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define AXIS(id, name, role) [TC_##id] = #name,
const char *const tc_axis_name[TC_AXES] = {
#include "src/graph/axis.def"
};
#define AXIS(id, name, role) [TC_##id] = TC_ROLE_##role,
const uint8_t tc_axis_role[TC_AXES] = {
#include "src/graph/axis.def"
};
#define SET(id, name, axes, if_auto, within, shown) [TC_SET_##id] = name,
const char *const tc_set_name[TC_SETS] = {
#include "src/graph/axis.def"
};
#define SET(id, name, axes, if_auto, within, shown) [TC_SET_##id] = axes,
const uint8_t tc_set_axes[TC_SETS] = {
#include "src/graph/axis.def"
};
enum if_auto { NO, ONE, REST, NODE, WHOLE };
enum { TC_SET_NONE = -1, IF_OTHER = 0, ALWAYS = 1 };
#define SET(id, name, axes, if_auto, within, shown) { if_auto, TC_SET_##within, shown },
static const struct { uint8_t if_auto; int8_t within; bool always; } set_of[TC_SETS] = {
#include "src/graph/axis.def"
};
static const uint8_t near_to_far[][TC_AXES - TC_FIRST_AXIS] = {
  [TC_TP_DP_PP] = { TC_TP, TC_CP, TC_EP, TC_REST, TC_REPLICATE, TC_PP },
  [TC_TP_PP_DP] = { TC_TP, TC_CP, TC_PP, TC_EP, TC_REST, TC_REPLICATE } };

/* ---- sets ---------------------------------------------------------------------------- */

uint8_t tc_axes_of(enum tc_axis_role role)
{
  unsigned axes = 0;
  for (int a = 0; a < TC_AXES; a++) axes |= (unsigned)(tc_axis_role[a] == role) << a;
  return (uint8_t)axes;
}

uint8_t tc_axes_named(const char *text)
{
  unsigned axes = 0;
  for (;; text++) {
    const size_t n = strcspn(text, "+");
    int s = 0;
    while (s < TC_SETS && (strlen(tc_set_name[s]) != n || memcmp(text, tc_set_name[s], n))) s++;
    if (s == TC_SETS) return 0;
    axes |= tc_set_axes[s];
    text += n;
    if (!*text) return (uint8_t)axes;
  }
}

char *tc_axes_text(char buf[TC_AXES_TEXT], unsigned axes)
{
  buf[0] = '\0';
  while (axes) {
    int best = -1, most = 0;
    for (int s = 0; s < TC_SETS; s++) {
      const int n = __builtin_popcount(tc_set_axes[s]);
      if (!(tc_set_axes[s] & ~axes) && n > most) best = s, most = n;
    }
    tc_text_add(buf, TC_AXES_TEXT, "%s%s", *buf ? "+" : "", tc_set_name[best]);
    axes &= ~(unsigned)tc_set_axes[best];
  }
  return buf;
}

bool tc_set_has_option(int set) { return set_of[set].if_auto != NO; }
bool tc_set_is_always(int set) { return set_of[set].always; }
bool tc_set_is_shown(const int32_t size[TC_AXES], int set)
{
  const int whole = set_of[set].within;
  if (set_of[set].always || !tc_set_has_option(set)) return set_of[set].always;
  return tc_axes_size(size, tc_set_axes[set]) != (set_of[set].if_auto == WHOLE ? tc_axes_size(size, tc_set_axes[whole]) : 1);
}

int32_t tc_axes_size(const int32_t size[TC_AXES], unsigned axes)
{
  int32_t n = 1;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (axes >> a & 1) n *= size[a];
  return n;
}

void tc_mesh_groups(struct tc_group group[TC_SETS], const int32_t size[TC_AXES])
{
  for (int s = 0; s < TC_SETS; s++) {
    struct tc_group x = { .size = 1 };
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
      if (tc_set_axes[s] >> a & 1 && size[a] > 1) x.axes |= (uint8_t)(1u << a), x.size *= size[a];
    x.named = x.axes || set_of[s].always;
    for (int above = 0; above < s; above++) x.named &= !x.axes || group[above].axes != x.axes;
    group[s] = x;
  }
}

bool tc_axes_from_sets(int32_t size[TC_AXES], const int32_t of_set[TC_SETS])
{
  int32_t all[TC_SETS];                            /* a set comes before those within it */
  for (int s = 0; s < TC_SETS; s++)
    all[s] = of_set[s] ? of_set[s] : set_of[s].if_auto == WHOLE ? all[set_of[s].within] : 1;
  for (int a = 0; a < TC_AXES; a++) size[a] = 1;
  for (int s = 0; s < TC_SETS; s++) {
    int32_t n = all[s];
    unsigned own = tc_set_axes[s];               /* the axes of no set within this one */
    if (!tc_set_has_option(s)) continue;
    for (int in = 0; in < TC_SETS; in++) {
      if (set_of[in].within != s) continue;
      if (n % all[in]) return false;
      n /= all[in];
      own &= ~(unsigned)tc_set_axes[in];
    }
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
      if (own == 1u << a) size[a] = n;
  }
  return true;
}

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
  int32_t size[TC_SETS];     /* 0, of the set that has the rest: auto */
};

bool tc_set_is_factor(int set) { return tc_set_has_option(set) && set_of[set].within == TC_SET_NONE; }
static bool has_rest(int s) { return set_of[s].if_auto == REST; }
int tc_set_width(int set) { return TC_MAX((int)strlen(tc_set_name[set]), has_rest(set) ? 5 : 4); }

/* Whether the set could have so many ranks where `left` are left for it and the sets after it. */
static bool would_fit(const struct fit *f, int s, int32_t left, int32_t n)
{
  return left % n == 0 && (set_of[s].if_auto != NODE || f->across || first_misfit(f->count, f->n_nodes, n) < 0);
}

/* The text of the nearest sizes that would fit: the set with the rest is changed alone, if that does, else the others,
 * the first ones first. */
static void suggest(const struct fit *f, char *buf, size_t size)
{
  int32_t left = f->world;
  bool same = true;
  buf[0] = 0;
  for (int s = 0; s < TC_SETS; s++) {
    if (!tc_set_is_factor(s) || has_rest(s)) continue;
    int32_t n = TC_MIN(f->size[s], left);
    while (!would_fit(f, s, left, n)) n--;
    same = n == f->size[s];
    if (!same) tc_text_add(buf, size, "%s = %d%s", tc_set_name[s], n, set_of[s].if_auto == NODE ? "" : " with ");
    left /= n;
  }
  for (int s = 0; s < TC_SETS; s++)
    if (has_rest(s) && same) tc_text_add(buf, size, "%s = %d", tc_set_name[s], left);
    else if (has_rest(s) && f->size[s] && f->size[s] != left)
      tc_text_add(buf, size, " with %s = %d", tc_set_name[s], left);
}

/* Checks the sizes against the world and the nodes. */
static int check_sizes(const struct fit *f, struct tc_err *err)
{
  char hint[96], sizes[160] = "";
  /* A double, since the product of three int32 may overflow int64; one that is equal to the world is exact. */
  double product = 1;
  bool rest = false;
  for (int s = 0; s < TC_SETS; s++) {
    if (!tc_set_is_factor(s)) continue;
    rest = rest || !f->size[s];
    if (!f->size[s] || (!set_of[s].always && f->size[s] == 1)) continue;
    product *= f->size[s];
    tc_text_add(sizes, sizeof sizes, "%s%s %d", *sizes ? " x " : "", tc_set_name[s], f->size[s]);
  }
  if (rest ? product > f->world || f->world % (int)product : product != f->world) {
    suggest(f, hint, sizeof hint);
    return tc_fail(err, TC_ELAYOUT, "world size %d is not %s%s = %.0f; %s would fit", f->world,
                   rest ? "divisible by " : "", sizes, product, hint);
  }
  for (int s = 0; s < TC_SETS && !f->across; s++) {
    const int bad = set_of[s].if_auto == NODE ? first_misfit(f->count, f->n_nodes, f->size[s]) : -1;
    if (bad < 0) continue;
    suggest(f, hint, sizeof hint);
    return tc_fail(err, TC_ELAYOUT, "%s = %d leaves its node: node %d has %d rank%s; %s would fit, "
                   "or mesh.%s_across_nodes = yes", tc_set_name[s], f->size[s], bad, f->count[bad],
                   tc_plural(f->count[bad]), hint, tc_set_name[s]);
  }
  return TC_OK;
}

/* Sets the sizes that are not given, and checks those within others; the factors have been checked. */
static int fit_rest(struct fit *f, struct tc_err *err)
{
  int32_t left = f->world;
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_factor(s)) left /= TC_MAX(f->size[s], 1);
  for (int s = 0; s < TC_SETS; s++) {
    const int in = set_of[s].within;
    if (has_rest(s) && !f->size[s]) f->size[s] = left;
    if (in != TC_SET_NONE && !f->size[s] && set_of[s].if_auto == WHOLE) f->size[s] = f->size[in];
    if (in == TC_SET_NONE || !f->size[s] || f->size[in] % f->size[s] == 0) continue;
    int32_t fits = TC_MIN(f->size[s], f->size[in]);
    while (f->size[in] % fits) fits--;
    return tc_fail(err, TC_ELAYOUT, "%s = %d does not divide %s = %d; %s = %d would fit", tc_set_name[s], f->size[s],
                   tc_set_name[in], f->size[in], tc_set_name[s], fits);
  }
  return TC_OK;
}

static int check_want(const struct tc_mesh_want *w, struct tc_err *err)
{
  for (int s = 0; s < TC_SETS; s++)
    if (w->size[s] < 0)
      return tc_fail(err, TC_ELAYOUT, "mesh.%s = %d is not a number of ranks; 1 or more would "
                     "fit, or auto", tc_set_name[s], w->size[s]);
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
  const bool good = tc_axes_from_sets(m->size, f->size);
  TC_ASSERT(good);
  tc_mesh_groups(m->group, m->size);
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
  for (int s = 0; s < TC_SETS; s++)
    f.size[s] = want->size[s] || !tc_set_is_factor(s) ? want->size[s] : set_of[s].if_auto == NODE ? least : set_of[s].if_auto == ONE;
  int status = check_sizes(&f, err);
  if (status == TC_OK) status = fit_rest(&f, err);
  if (status == TC_OK) *out = mesh_make(&f, node_of_rank);
  free(count);
  return status;
}

void tc_mesh_free(struct tc_mesh *m)
{
  if (!m) return;
  tc_selection_free(m->selection);
  TC_FREE(m->node, m->coord, m->at, m);
}

struct tc_mesh *tc_mesh_one(void)
{
  const int32_t zero = 0, one = 1;
  struct fit f = { .world = 1, .n_nodes = 1, .count = &one };
  for (int s = 0; s < TC_SETS; s++) f.size[s] = 1;
  return mesh_make(&f, &zero);
}

/* ---- groups -------------------------------------------------------------------------- */

int32_t tc_mesh_size(const struct tc_mesh *m, unsigned axes) { return tc_axes_size(m->size, axes); }

int32_t tc_axes_index(const struct tc_mesh *m, const int32_t coord[TC_AXES], unsigned axes)
{
  int32_t i = 0;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (axes >> a & 1) i = i * m->size[a] + coord[a];
  return i;
}

int32_t tc_mesh_index(const struct tc_mesh *m, int rank, unsigned axes)
{
  return tc_axes_index(m, m->coord + (size_t)rank * TC_AXES, axes);
}

int tc_mesh_find(const struct tc_mesh *m, unsigned axes)
{
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (m->size[a] == 1) axes &= ~(1u << a);
  for (int s = 0; s < TC_SETS; s++)
    if (axes && m->group[s].axes == axes) return s;
  return -1;
}

const char *tc_mesh_name(const struct tc_mesh *m, unsigned axes)
{
  const int found = tc_mesh_find(m, axes);
  int s = 0;
  while (s < TC_SETS - 1 && axes & ~(unsigned)tc_set_axes[s]) s++;
  return tc_set_name[found >= 0 ? found : s];
}

int32_t tc_mesh_member(const struct tc_mesh *m, int rank, unsigned axes, int32_t index)
{
  TC_ASSERT(rank >= 0 && rank < m->world);
  int32_t at = 0;
  for (int a = TC_AXES - 1; a >= TC_FIRST_AXIS; a--) {
    const bool in = axes >> a & 1;
    at += m->stride[a] * (in ? index % m->size[a] : m->coord[(size_t)rank * TC_AXES + (size_t)a]);
    if (in) index /= m->size[a];
  }
  return m->at[at];
}

void tc_mesh_group(const struct tc_mesh *m, int rank, unsigned axes, int32_t *ranks)
{
  const int32_t size = tc_mesh_size(m, axes);
  for (int32_t i = 0; i < size; i++) ranks[i] = tc_mesh_member(m, rank, axes, i);
}

int tc_mesh_group_nodes(const struct tc_mesh *m, int rank, unsigned axes)
{
  const int32_t size = tc_mesh_size(m, axes);
  bool *seen = tc_calloc((size_t)m->n_nodes, 1);
  int n = 0;
  for (int32_t i = 0; i < size; i++) {
    const int32_t node = m->node[tc_mesh_member(m, rank, axes, i)];
    n += !seen[node];
    seen[node] = true;
  }
  free(seen);
  return n;
}

struct tc_members tc_mesh_members(const struct tc_mesh *m, int rank, unsigned axes)
{
  const int32_t size = tc_mesh_size(m, axes), coord = tc_mesh_index(m, rank, axes);
  int32_t *node = m->n_nodes > 1 ? tc_malloc((size_t)size * sizeof *node) : NULL;
  if (node) tc_mesh_group(m, rank, axes, node);
  for (int32_t i = 0; node && i < size; i++) node[i] = m->node[node[i]];
  struct tc_members x = tc_members_on(node, size, coord, m->partial_sums);
  x.selection = m->selection;
  free(node);
  return x;
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
