/* arena_check.c - the memory plan proved right, independently of how tensors were placed (arena.c): the list
 * of actions is walked with what is live, and each live range that begins is compared with all others.
 *
 * A fused call runs at its last action and may write before it has read all: what its earlier parts read
 * or write is taken as touched there, too. A range is then as long as it is in either form, so no choice
 * of groups that are run fused can make two overlap. */
#include "src/schedule/impl.h"

/* The bytes that a root occupies now, by (root, micro-batch); in no order. */
struct live { int64_t key, off, end; };

struct walk {
  const struct tc_arena *a;
  const struct tc_graph *g;
  const struct tc_actions *s;
  const struct tc_fusions *fusions;
  const struct tc_mesh *m;
  const int32_t *coord;
  int32_t *until;                /* [key]: the last position at which it is touched */
  int32_t *where;                /* [key]: in live[]; -1 */
  struct live *live; int32_t n, cap;
};

/* The key of operand k of action i; -1: state. What is made once is under micro-batch 0. */
static int64_t key_of(const struct walk *w, int32_t i, int k)
{
  const struct tc_graph *g = w->g;
  const struct tc_node *n = &g->node[w->s->action[i].node];
  int32_t root = tc_tensor_root(g, tc_operand(g, n, k)), mb = 0;
  if (g->tensor[root].state) return -1;
  if (!tc_made_once(g, root)) mb = n->once_a_step ? w->s->n_mb - 1 : w->s->action[i].mb;
  return (int64_t)root * w->s->n_mb + mb;
}

/* Tensor and micro-batch `key` are live from here on. */
static int begin_range(struct walk *w, int64_t key, struct tc_err *err)
{
  const struct tc_arena *a = w->a;
  const int32_t root = (int32_t)(key / w->s->n_mb);
  const int64_t off = tc_arena_at(a, root, (int32_t)(key % w->s->n_mb));
  const struct live x = { key, off, off + tc_stored_bytes(w->g, w->m, w->coord, root) };
  if (a->off[root] < 0 || x.end > a->bytes[a->region[root]])
    return tc_fail(err, TC_EUSER, "arena: %s lies outside", w->g->tensor[root].name);
  for (int32_t q = 0; q < w->n; q++) {
    const struct live *y = &w->live[q];
    if (y->off >= x.end || x.off >= y->end) continue;
    const int32_t other = (int32_t)(y->key / w->s->n_mb);
    if (a->region[other] == a->region[root])
      return tc_fail(err, TC_EUSER, "arena: %s and %s overlap while both live",
                     w->g->tensor[other].name, w->g->tensor[root].name);
  }
  TC_GROW(w->live, w->n, w->cap);
  w->where[key] = w->n;
  w->live[w->n++] = x;
  return 0;
}

static void end_range(struct walk *w, int64_t key)
{
  const int32_t q = w->where[key];
  w->where[key] = -1;
  w->live[q] = w->live[--w->n];
  if (q < w->n) w->where[w->live[q].key] = q;
}

static int walk_action(struct walk *w, int32_t i, struct tc_err *err)
{
  const struct tc_node *n = &w->g->node[w->s->action[i].node];
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    const int64_t key = key_of(w, i, k);
    if (key >= 0 && w->where[key] < 0) TC_TRY(begin_range(w, key, err));
  }
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    const int64_t key = key_of(w, i, k);
    if (key >= 0 && w->where[key] >= 0 && w->until[key] == i) end_range(w, key);
  }
  for (int32_t q = w->fusions ? w->n - 1 : -1; q >= 0; q--)    /* of earlier parts */
    if (w->until[w->live[q].key] == i) end_range(w, w->live[q].key);
  return 0;
}

/* What action i reads or writes is live at position `at`. */
static void touch(struct walk *w, int32_t i, int32_t at)
{
  const struct tc_node *n = &w->g->node[w->s->action[i].node];
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    const int64_t key = key_of(w, i, k);
    if (key >= 0) w->until[key] = TC_MAX(w->until[key], at);
  }
}

static void keep(struct walk *w, int32_t result, int32_t n_mb)
{
  const int32_t root = result >= 0 ? tc_tensor_root(w->g, result) : -1;
  for (int32_t mb = 0; root >= 0 && !w->g->tensor[root].state && mb < n_mb; mb++)
    w->until[(int64_t)root * w->s->n_mb + mb] = w->s->n;
}

/* These are read after the last action: the loss and the norm of the gradient, each micro-batch's losses of tokens, and
 * the logits where there is no loss. */
static void keep_results(struct walk *w)
{
  keep(w, w->g->loss, 1);
  keep(w, w->g->grad_norm, 1);
  keep(w, w->g->nll, w->s->n_mb);
  if (w->g->loss < 0) keep(w, w->g->logits, 1);
}

int tc_arena_check(const struct tc_arena *a, const struct tc_graph *g, const struct tc_actions *s,
                   const struct tc_fusions *f, const struct tc_mesh *m, const int32_t coord[TC_AXES],
                   struct tc_err *err)
{
  const size_t keys = (size_t)g->n_tensors * (size_t)s->n_mb;
  struct walk w = { .a = a, .g = g, .s = s, .fusions = f, .m = m, .coord = coord };
  w.until = tc_no_indices(keys);
  w.where = tc_no_indices(keys);
  for (int32_t i = 0; i < s->n; i++) touch(&w, i, i);
  for (int32_t i = 0; f && i < f->n; i++)
    for (int32_t k = 0; k < f->group[i].n; k++)
      touch(&w, tc_fusion_part(f, i, k), tc_fusion_part(f, i, f->group[i].n - 1));
  keep_results(&w);
  int rc = 0;
  for (int32_t i = 0; i < s->n && !rc; i++) rc = walk_action(&w, i, err);
  TC_FREE(w.until, w.where, w.live);
  return rc;
}
