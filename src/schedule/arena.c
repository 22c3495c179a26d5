/* arena.c - liveness over a step's list of actions, then offsets: largest first, lowest place
 * free.
 *
 * What a micro-batch makes has one live range in each of them: at one offset, or, where a pipeline has
 * several micro-batches at once, in as many slots as overlap, used in turn. Without a pipeline
 * micro-batches between the first and the last are alike, so the ranges are taken from a list with
 * three at most. State is laid out by class in the order it was made, so that a unit's accumulators
 * are adjacent and travel as one message. */
#include "src/schedule/arena.h"
#include "src/schedule/impl.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_MB = 3 };
const char *const tc_region_name[TC_REGIONS] = { "state", "scratch", "host state",
                                                 "host scratch" };

struct ranges {
  struct tc_range *all;              /* [tensor][micro-batch] */
  struct tc_object *of;               /* [n_tensors]: all micro-batches of a tensor */
  struct tc_object *object; int32_t n_objects;        /* one for each slot */
  int32_t n_mb;
};

/* ---- live ranges --------------------------------------------------------------------------- */

static void touch(struct tc_object *l, int32_t instance, int32_t at)
{
  for (; l->n <= instance; l->n++) l->in[l->n] = (struct tc_range){ INT32_MAX, -1 };
  struct tc_range *x = &l->in[instance];
  x->first = TC_MIN(x->first, at);
  x->last = TC_MAX(x->last, at);
}

static void touch_operand(const struct tc_graph *g, struct ranges *l, int32_t t, int32_t mb, int32_t at)
{
  const int32_t root = tc_tensor_root(g, t);
  if (!g->tensor[root].state) touch(&l->of[root], tc_made_once(g, root) ? 0 : mb, at);
}

/* What earlier parts of a fused call read or write stays until the last part that takes memory of its
 * own has run: together they may write before all of it is read. */
static void extend_ranges(const struct tc_graph *g, const struct tc_actions *s, const struct tc_fusions *f,
                          struct ranges *l)
{
  for (int32_t i = 0; i < f->n; i++) {
    const int32_t *part = f->action + f->group[i].first;
    int32_t last = f->group[i].n - 1;
    if (!(tc_fusion_rule[f->group[i].rule].flags & TC_FUSION_EXTEND)) continue;
    for (; last > 0; last--)
      if (g->tensor[tc_out(g, &g->node[s->action[part[last]].node], 0)].overwrites < 0) break;
    for (int32_t k = 0; k < last; k++) {
      const struct tc_node *n = &g->node[s->action[part[k]].node];
      for (int o = 0; o < n->n_in + n->n_out; o++)
        touch_operand(g, l, tc_operand(g, n, o), s->action[part[k]].mb, part[last]);
    }
  }
}

static void find_ranges(const struct tc_graph *g, const struct tc_actions *s, const struct tc_fusions *f,
                        struct ranges *l)
{
  size_t n_tensors = (size_t)g->n_tensors;
  l->n_mb = s->n_mb;
  l->all = tc_malloc(n_tensors * (size_t)s->n_mb * sizeof *l->all);
  l->of = tc_calloc(n_tensors, sizeof *l->of);
  for (int32_t t = 0; t < g->n_tensors; t++)
    l->of[t] = (struct tc_object){ .t = t, .step = 1, .in = l->all + (size_t)t * (size_t)s->n_mb };
  for (int32_t i = 0; i < s->n; i++) {
    const struct tc_node *n = &g->node[s->action[i].node];
    for (int k = 0; k < n->n_in + n->n_out; k++) {
      const int32_t t = tc_operand(g, n, k), root = tc_tensor_root(g, t);
      touch_operand(g, l, t, s->action[i].mb, i);
      TC_ASSERT(g->tensor[root].state || tc_made_once(g, root) || !n->once_a_step || s->n_mb == 1);
    }                                            /* sums over micro-batches are state */
  }
  if (f) extend_ranges(g, s, f, l);
  const int32_t result[] = { g->loss, g->nll, g->grad_norm, g->loss < 0 ? g->logits : -1 };   /* read after the run */
  for (size_t i = 0; i < sizeof result / sizeof result[0]; i++) {
    if (result[i] < 0) continue;
    const int32_t root = tc_tensor_root(g, result[i]), n = result[i] == g->nll ? s->n_mb : 1;
    for (int32_t mb = 0; mb < n && !g->tensor[root].state; mb++) touch(&l->of[root], mb, s->n);
  }
}

/* The fewest slots so that a micro-batch's live range ends before that of the next in its slot begins.
 * Ranges begin in the order of the micro-batches. */
static int32_t count_slots(const struct tc_object *l)
{
  int32_t k = 1;
  for (int32_t i = 0; i + k < l->n; i++)
    while (i + k < l->n && l->in[i].last >= l->in[i + k].first) k++;
  return k;
}

/* An object to place for each slot of each tensor. */
static void make_objects(struct tc_arena *a, const struct tc_graph *g, const struct tc_mesh *m,
                         const int32_t coord[TC_AXES], struct ranges *l)
{
  int32_t n = 0;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    a->slots[t] = l->of[t].n ? count_slots(&l->of[t]) : 1;
    n += a->slots[t];
  }
  l->object = tc_calloc((size_t)n, sizeof *l->object);
  for (int32_t t = 0; t < g->n_tensors; t++) {
    int32_t k = a->slots[t];
    for (int32_t i = 0; i < k && l->of[t].n; i++) {
      struct tc_object *x = &l->object[l->n_objects++];
      *x = l->of[t];
      x->slot = i;
      x->step = k;
      x->in += i;
      x->n = (int32_t)tc_ceil_div(l->of[t].n - i, k);
      x->bytes = tc_stored_bytes(g, m, coord, t);
    }
  }
}

/* ---- placing ------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
  const struct tc_object *x = *(struct tc_object *const *)a, *y = *(struct tc_object *const *)b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  if (x->t != y->t) return x->t < y->t ? -1 : 1;
  return x->slot < y->slot ? -1 : x->slot > y->slot;
}

static void place_scratch(struct tc_arena *a, const struct tc_graph *g, struct ranges *l, int space)
{
  int region = space == TC_HOST ? TC_HOST_SCRATCH : TC_SCRATCH;
  struct tc_object **todo = tc_malloc((size_t)l->n_objects * sizeof *todo);
  struct tc_placed *placed = tc_placed_new();
  int32_t n = 0;
  for (int32_t i = 0; i < l->n_objects; i++)
    if (g->tensor[l->object[i].t].space == space) todo[n++] = &l->object[i];
  qsort(todo, (size_t)n, sizeof *todo, by_size);
  for (int32_t i = 0; i < n; i++) {
    struct tc_object *x = todo[i];
    x->off = tc_placed_lowest(placed, x);
    tc_placed_add(placed, x);
    if (x->slot == 0) a->off[x->t] = x->off;
    a->region[x->t] = (uint8_t)region;
    a->bytes[region] = TC_MAX(a->bytes[region], x->off + x->bytes);
  }
  a->looked += tc_placed_looked(placed);
  tc_placed_free(placed);
  free(todo);
}

/* What slots add to a tensor's offset; objects of a tensor follow each other. */
static void place_slots(struct tc_arena *a, const struct ranges *l)
{
  for (int32_t i = 0; i < l->n_objects; i++) {
    const struct tc_object *x = &l->object[i];
    if (a->slots[x->t] == 1) continue;
    if (x->slot == 0) a->slot_at[x->t] = a->n_slot;
    TC_APPEND(a->slot, a->n_slot, a->cap_slot, x->off - a->off[x->t]);
  }
}

/* Adds the scratch of a space by class, at the moment when most of it is used. */
static void class_scratch(struct tc_arena *a, const struct tc_graph *g, const struct ranges *l,
                          int n_actions, int space)
{
  int64_t *change = tc_calloc((size_t)n_actions + 2, sizeof *change), sum = 0, most = -1, used = 0;
  int32_t at = 0;
  for (int32_t o = 0; o < l->n_objects; o++) {
    const struct tc_object *x = &l->object[o];
    for (int32_t i = 0; i < x->n && g->tensor[x->t].space == space; i++) {
      const struct tc_range *y = &x->in[i * x->step];
      if (y->last < 0) continue;
      change[y->first] += x->bytes;
      change[y->last + 1] -= x->bytes;
    }
  }
  for (int32_t i = 0; i <= n_actions; i++) {
    sum += change[i];
    if (sum > most) {
      most = sum;
      at = i;
    }
  }
  free(change);
  for (int32_t o = 0; o < l->n_objects; o++) {
    const struct tc_object *x = &l->object[o];
    for (int32_t i = 0; i < x->n && g->tensor[x->t].space == space; i++) {
      const struct tc_range *y = &x->in[i * x->step];
      if (y->first > at || at > y->last) continue;
      a->by_class[space][g->tensor[x->t].cls] += x->bytes;
      used += x->bytes;
    }
  }
  a->by_class[space][TC_CLS_ACT] += a->bytes[space == TC_HOST ? TC_HOST_SCRATCH : TC_SCRATCH] - used;
}

/* State of two programs is the same if it has the same name, by which checkpoints know it too: the programs are
 * compiled separately, so their ids differ. */
static int place_state(struct tc_arena *a, const struct tc_graph *g, const struct tc_mesh *m,
                       const int32_t coord[TC_AXES], const struct tc_arena *with,
                       const struct tc_graph *wg, struct tc_err *err)
{
  for (int cls = 0; cls < TC_CLASSES; cls++)
    for (int32_t t = 0; t < g->n_tensors; t++) {
      const struct tc_tensor *x = &g->tensor[t];
      if (!x->state || x->cls != cls) continue;
      int region = x->space == TC_HOST ? TC_HOST_STATE : TC_STATE;
      a->region[t] = (uint8_t)region;
      int64_t bytes = tc_stored_bytes(g, m, coord, t);
      a->by_class[x->space][cls] += bytes;
      if (!with) {
        a->off[t] = a->bytes[region];
        a->bytes[region] += bytes;
        continue;
      }
      int32_t o = 0;
      while (o < wg->n_tensors && !(wg->tensor[o].state && !strcmp(wg->tensor[o].name, x->name)))
        o++;
      if (o == wg->n_tensors || tc_stored_bytes(wg, m, coord, o) != bytes ||
          wg->tensor[o].space != x->space)
        return tc_fail(err, TC_EUSER, "state %s is not in the main program", x->name);
      a->off[t] = with->off[o];
    }
  for (int r = TC_STATE; with && r < TC_REGIONS; r += TC_HOST_STATE - TC_STATE)
    a->bytes[r] = with->bytes[r];
  return 0;
}

/* The last use of each scratch tensor. */
static void find_last_uses(struct tc_arena *a, const struct tc_graph *g, const struct tc_actions *s,
                        const struct ranges *l)
{
  for (int32_t t = 0; t < g->n_tensors; t++) {
    const struct tc_object *x = &l->of[t];
    a->last_use[t] = (struct tc_last_use){ -1, false, false };
    if (!x->n || x->in[x->n - 1].last >= s->n) continue;
    const struct tc_action *last = &s->action[x->in[x->n - 1].last];
    bool always = true;
    for (int32_t i = 0; i < x->n; i++) {
      const struct tc_action *b = x->in[i].last >= 0 ? &s->action[x->in[i].last] : last;
      always &= b->node == last->node && b->kind == last->kind;
    }
    if (always) a->last_use[t] = (struct tc_last_use){ last->node, last->kind == TC_WAIT, x->n == 1 };
  }
}

/* The places of views and versions, each in the storage that it shares. */
static void place_versions(struct tc_arena *a, const struct tc_graph *g, const struct tc_mesh *m,
                           const int32_t coord[TC_AXES])
{
  struct tc_views *v = tc_views_new(g, m, coord);
  for (int32_t t = 0; t < g->n_tensors; t++) {
    const int32_t root = tc_tensor_root(g, t);
    if (root == t || a->off[root] < 0) continue;
    a->off[t] = a->off[root] + v->off[t];
    a->region[t] = a->region[root];
    a->slots[t] = a->slots[root];
    a->slot_at[t] = a->slot_at[root];
  }
  tc_views_free(v);
}

int tc_arena_new(struct tc_arena **out, const struct tc_graph *g, const struct tc_actions *s,
                 const struct tc_fusions *f, const struct tc_mesh *m, const int32_t coord[TC_AXES],
                 const struct tc_arena *with, const struct tc_graph *with_graph,
                 struct tc_err *err)
{
  struct tc_arena *a = tc_calloc(1, sizeof *a);
  size_t n = (size_t)g->n_tensors;
  a->n = g->n_tensors;
  a->off = tc_malloc(n * sizeof *a->off);
  a->last_use = tc_malloc(n * sizeof *a->last_use);
  a->region = tc_calloc(n, sizeof *a->region);
  a->slots = tc_calloc(n, sizeof *a->slots);
  a->slot_at = tc_calloc(n, sizeof *a->slot_at);
  memset(a->off, -1, n * sizeof *a->off);
  int rc = place_state(a, g, m, coord, with, with_graph, err);
  if (rc < 0) {
    tc_arena_free(a);
    return rc;
  }
  struct tc_actions *shorter = NULL;
  struct tc_fusions *of_shorter = NULL;
  struct tc_actions_opts o = s->opts;
  if (o.n_mb > SHORT_MB && o.pp <= 1) {
    o.n_mb = SHORT_MB;
    tc_actions_new(&shorter, g, &o, err);       /* without a pipeline nothing can fail */
    s = shorter;
    if (f) f = of_shorter = tc_fusions_new(g, s, m, coord, TC_FUSION_EXTEND);
  }
  struct ranges l = { 0 };
  find_ranges(g, s, f, &l);
  make_objects(a, g, m, coord, &l);
  for (int space = 0; space < TC_SPACES; space++) {
    place_scratch(a, g, &l, space);
    class_scratch(a, g, &l, s->n, space);
  }
  place_slots(a, &l);
  find_last_uses(a, g, s, &l);
  place_versions(a, g, m, coord);
  tc_fusions_free(of_shorter);
  TC_FREE(l.all, l.of, l.object);
  tc_actions_free(shorter);
  *out = a;
  return 0;
}

void tc_arena_free(struct tc_arena *a)
{
  if (!a) return;
  TC_FREE(a->off, a->last_use, a->region, a->slots, a->slot_at, a->slot, a);
}
