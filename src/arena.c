/* arena.c - liveness over the body of a step, then offsets: largest first, lowest place free.
 *
 * State is laid out by class in the order it was made, so that a unit's accumulators are
 * adjacent and travel as one message. */
#include "src/arena.h"

#include <stdlib.h>
#include <string.h>

struct live { int32_t t, first, last; int64_t bytes, off; };

static int64_t stored_bytes(const struct tc_graph *g, const struct tc_mesh *m,
                            const int32_t coord[TC_AXES], int32_t t)
{
  return tc_round_up(tc_tensor_local_bytes(&g->tensor[t], m, coord), TC_ARENA_ALIGN);
}

static void touch(const struct tc_graph *g, struct live *l, int32_t t, int32_t at)
{
  int32_t root = tc_tensor_root(g, t);
  if (g->tensor[root].state) return;
  struct live *x = &l[root];
  if (x->first < 0) x->first = at;
  x->last = TC_MAX(x->last, at);
}

/* Life of each root tensor in body positions. A transfer's buffers live until it is waited for:
 * at the first reader of an output, or at the end. */
static void find_lives(const struct tc_graph *g, const struct tc_schedule *s,
                       const struct tc_mesh *m, struct live *l)
{
  int32_t end = s->n_body;
  int32_t *wait = tc_malloc((size_t)TC_MAX(g->n_nodes, 1) * sizeof *wait);
  for (int32_t i = 0; i < g->n_nodes; i++) wait[i] = end;
  for (int32_t i = s->n_body - 1; i >= 0; i--) {
    const struct tc_node *n = &g->node[s->body[i]];
    for (int k = 0; k < n->n_in; k++)
      if (g->tensor[tc_in(g, n, k)].node >= 0) wait[g->tensor[tc_in(g, n, k)].node] = i;
  }
  for (int32_t t = 0; t < g->n_tensors; t++) l[t] = (struct live){ t, -1, -1, 0, -1 };
  for (int32_t i = 0; i < s->n_body; i++) {
    const struct tc_node *n = &g->node[s->body[i]];
    for (int k = 0; k < n->n_in + n->n_out; k++) {
      int32_t t = k < n->n_in ? tc_in(g, n, k) : tc_out(g, n, k - n->n_in);
      touch(g, l, t, i);
      if (tc_move_is_transfer(n, m)) touch(g, l, t, wait[n->id]);
      if (n->once && n->mark != TC_U && k >= n->n_in && !g->tensor[tc_tensor_root(g, t)].state) {
        touch(g, l, t, 0);                       /* other micro-batches pass before its reader */
        touch(g, l, t, end);
        l[tc_tensor_root(g, t)].first = 0;
      }
      /* Made once and read by micro-batches (or the other way round): all the time. */
      int32_t root = tc_tensor_root(g, t), maker = g->tensor[t].node;
      if (k < n->n_in && maker >= 0 && g->node[maker].once != n->once &&
          !g->tensor[root].state && n->mark != TC_U) {
        l[root].first = 0;
        l[root].last = end;
      }
    }
  }
  free(wait);
  const int32_t result[] = { g->loss, g->grad_norm };
  for (size_t i = 0; i < sizeof result / sizeof result[0]; i++)
    if (result[i] >= 0) touch(g, l, result[i], end);         /* read after the run */
}

static int by_size(const void *a, const void *b)
{
  const struct live *x = *(struct live *const *)a, *y = *(struct live *const *)b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x->t < y->t ? -1 : x->t > y->t;
}

static int by_off(const void *a, const void *b)
{
  const struct live *x = *(struct live *const *)a, *y = *(struct live *const *)b;
  return x->off < y->off ? -1 : x->off > y->off;
}

/* Lowest offset at which l fits beside those in placed[] that live at the same time. */
static int64_t lowest(struct live **placed, int n, const struct live *l, struct live **tmp)
{
  int k = 0;
  for (int i = 0; i < n; i++)
    if (placed[i]->first <= l->last && l->first <= placed[i]->last) tmp[k++] = placed[i];
  qsort(tmp, (size_t)k, sizeof *tmp, by_off);
  int64_t at = 0;
  for (int i = 0; i < k; i++) {
    if (tmp[i]->off >= at + l->bytes) break;
    at = TC_MAX(at, tmp[i]->off + tmp[i]->bytes);
  }
  return at;
}

static void place_scratch(struct tc_arena *a, const struct tc_graph *g, struct live *l)
{
  struct live **todo = tc_malloc((size_t)g->n_tensors * sizeof(struct live *));
  struct live **placed = tc_malloc((size_t)g->n_tensors * sizeof(struct live *));
  struct live **tmp = tc_malloc((size_t)g->n_tensors * sizeof(struct live *));
  int n = 0, done = 0;
  for (int32_t t = 0; t < g->n_tensors; t++)
    if (l[t].first >= 0) todo[n++] = &l[t];
  qsort(todo, (size_t)n, sizeof *todo, by_size);
  for (int i = 0; i < n; i++) {
    todo[i]->off = lowest(placed, done, todo[i], tmp);
    placed[done++] = todo[i];
    a->off[todo[i]->t] = todo[i]->off;
    a->die[todo[i]->t] = todo[i]->last;
    a->scratch_bytes = TC_MAX(a->scratch_bytes, todo[i]->off + todo[i]->bytes);
  }
  free(todo);
  free(placed);
  free(tmp);
}

static int place_state(struct tc_arena *a, const struct tc_graph *g, const struct tc_mesh *m,
                       const int32_t coord[TC_AXES], const struct tc_arena *with,
                       const struct tc_graph *wg, struct tc_err *err)
{
  for (int cls = 0; cls < TC_CLASSES; cls++)
    for (int32_t t = 0; t < g->n_tensors; t++) {
      const struct tc_tensor *x = &g->tensor[t];
      if (!x->state || x->cls != cls) continue;
      a->in_state[t] = true;
      int64_t bytes = stored_bytes(g, m, coord, t);
      a->by_class[cls] += bytes;
      if (!with) {
        a->off[t] = a->state_bytes;
        a->state_bytes += bytes;
        continue;
      }
      int32_t o = 0;
      while (o < wg->n_tensors && !(wg->tensor[o].state && !strcmp(wg->tensor[o].name, x->name)))
        o++;
      if (o == wg->n_tensors || stored_bytes(wg, m, coord, o) != bytes)
        return tc_fail(err, TC_EUSER, "state %s is not in the main program", x->name);
      a->off[t] = with->off[o];
    }
  if (with) a->state_bytes = with->state_bytes;
  return 0;
}

int tc_arena_new(struct tc_arena **out, const struct tc_graph *g, const struct tc_schedule *s,
                 const struct tc_mesh *m, const int32_t coord[TC_AXES],
                 const struct tc_arena *with, const struct tc_graph *with_graph,
                 struct tc_err *err)
{
  struct tc_arena *a = tc_calloc(1, sizeof *a);
  size_t n = (size_t)TC_MAX(g->n_tensors, 1);
  a->n = g->n_tensors;
  a->off = tc_malloc(n * sizeof *a->off);
  a->die = tc_malloc(n * sizeof *a->die);
  a->in_state = tc_calloc(n, sizeof *a->in_state);
  memset(a->off, -1, n * sizeof *a->off);
  memset(a->die, -1, n * sizeof *a->die);
  int rc = place_state(a, g, m, coord, with, with_graph, err);
  if (rc < 0) {
    tc_arena_free(a);
    return rc;
  }
  struct live *l = tc_malloc(n * sizeof *l);
  find_lives(g, s, m, l);
  for (int32_t t = 0; t < g->n_tensors; t++)
    if (l[t].first >= 0) l[t].bytes = stored_bytes(g, m, coord, t);
  place_scratch(a, g, l);
  a->by_class[TC_CLS_ACT] += a->scratch_bytes;
  for (int32_t t = 0; t < g->n_tensors; t++) {   /* versions and views */
    int32_t root = tc_tensor_root(g, t);
    if (root == t || a->off[root] < 0) continue;
    a->in_state[t] = a->in_state[root];
    a->off[t] = a->off[root];
    for (int32_t v = t; v != root;) {
      const struct tc_tensor *x = &g->tensor[v];
      if (x->base >= 0) {
        struct tc_local b;
        tc_tensor_local(&g->tensor[x->base], m, coord, &b);
        a->off[t] += x->base_row * (b.elems / TC_MAX(b.dim[0], 1)) *
                     (int64_t)tc_dtype_bytes(x->dtype);
      }
      v = x->base >= 0 ? x->base : x->overwrites;
    }
  }
  free(l);
  *out = a;
  return 0;
}

void tc_arena_free(struct tc_arena *a)
{
  if (!a) return;
  free(a->off);
  free(a->die);
  free(a->in_state);
  free(a);
}

int tc_arena_check(const struct tc_arena *a, const struct tc_graph *g,
                   const struct tc_schedule *s, const struct tc_mesh *m,
                   const int32_t coord[TC_AXES], struct tc_err *err)
{
  struct live *l = tc_malloc((size_t)TC_MAX(g->n_tensors, 1) * sizeof *l);
  find_lives(g, s, m, l);
  int rc = 0;
  for (int32_t t = 0; t < g->n_tensors && !rc; t++) {
    if (l[t].first < 0) continue;
    int64_t te = a->off[t] + stored_bytes(g, m, coord, t);
    if (a->off[t] < 0 || te > a->scratch_bytes)
      rc = tc_fail(err, TC_EUSER, "arena: %s lies outside", g->tensor[t].name);
    for (int32_t u = 0; u < t && !rc; u++) {
      if (l[u].first < 0 || l[u].first > l[t].last || l[t].first > l[u].last) continue;
      if (a->off[u] < te && a->off[t] < a->off[u] + stored_bytes(g, m, coord, u))
        rc = tc_fail(err, TC_EUSER, "arena: %s and %s overlap while both live",
                     g->tensor[u].name, g->tensor[t].name);
    }
  }
  free(l);
  return rc;
}
