/* insert_reshards.c - reshards a node's inputs to the layouts that it needs, and its outputs to their placements.
 *
 * Readers share reshards, by a cache. Partial outputs are resolved where they are produced; an output that the node
 * makes with another placement than required is made as a separate tensor and resharded. Contributions to gradients
 * are in accumulate.c. */
#include "src/passes/impl.h"
#include "src/graph/rule.h"

const struct tc_tensor *tc_place_required(const struct tc_graph *g, int32_t t)
{
  if (g->tensor[t].annotated) return &g->tensor[t];
  int32_t root = tc_tensor_root(g, t);
  return root != t && g->tensor[root].state && g->tensor[root].annotated ? &g->tensor[root] : NULL;
}

/* Sets phase and unit of a key: which readers share a reshard: of a weight until it is freed, of the update among
 * themselves, of an activation in the backward pass too unless it is gathered again (what another stage
 * has sent is not sent again). The loss head is one phase, since its backward pass follows its
 * forward pass. */
static void set_phase(const struct sctx *s, const struct tc_node *n, const struct tc_param *p,
                     struct cached *key)
{
  bool sent = !tc_place_equal(&s->g->tensor[key->from].lay.on[TC_PP], &key->lay.on[TC_PP]);
  int part = n->head ? 2 : n->mark == TC_F ? 0 : 1;
  key->phase = key->unit = -1;
  if (n->mark == TC_U) {
    key->phase = 3;
  } else if (p && p->reshard_after == TC_AFTER_USE) {
    key->phase = part;
    key->unit = n->unit;
  } else if (!p && s->regather && !sent) {
    key->phase = part;
  }
}

/* Whether a RESHARD changes which rank has which rows. */
static bool reshards_rows(const struct tc_graph *g, const struct tc_node *n)
{
  const struct tc_layout *from = &g->tensor[tc_in(g, n, 0)].lay, *to = &g->tensor[tc_out(g, n, 0)].lay;
  bool rows = false;
  for (int a = 0; a < TC_AXES; a++)
    if (n->axes >> a & 1)
      rows |= (from->on[a].kind == TC_S && from->on[a].dim == 0) || (to->on[a].kind == TC_S && to->on[a].dim == 0);
  return rows;
}

int32_t tc_place_move(struct sctx *s, int32_t t, const struct tc_layout *to, int space, int32_t like, int role)
{
  struct tc_graph *g = s->g;
  int32_t first = g->n_nodes;
  if (g->tensor[t].space == TC_HOST && space == TC_DEVICE) {
    struct tc_layout there = g->tensor[t].lay;             /* the stage send precedes the copy */
    there.on[TC_PP] = to->on[TC_PP];
    t = tc_reshard(g, s->m, t, &there, like, s->err);
    if (t < 0) return t;
    t = tc_reshard_space(g, t, space, like);
  }
  t = tc_reshard(g, s->m, t, to, like, s->err);
  if (t >= 0 && g->tensor[t].space != space) t = tc_reshard_space(g, t, space, like);
  for (int32_t i = first; i < g->n_nodes; i++) {
    struct tc_node *n = &g->node[i];
    n->role = (uint8_t)role;
    if (!role && n->mark == TC_W) n->mark = TC_B;          /* since its first reader may be a W */
    if (role || reshards_rows(g, n)) n->head = false;         /* not repeated for each chunk of the head's rows */
  }
  return t;
}

/* The reshard that readers with this key share; -1: none yet. */
static int find_cached(const struct sctx *s, const struct cached *key)
{
  for (int k = s->n_cached - 1; k >= 0; k--) {
    const struct cached *x = &s->cached[k];
    if (x->from == key->from && x->phase == key->phase && x->unit == key->unit &&
        x->space == key->space && tc_layout_equal(&x->lay, &key->lay)) return k;
  }
  return -1;
}

/* Adds an entry to the cache; returns its index. */
static int cache(struct sctx *s, const struct cached *key)
{
  TC_GROW(s->cached, s->n_cached, s->cap_cached);
  s->cached[s->n_cached] = *key;
  return s->n_cached++;
}

/* Tensor t, an input of the node that first was `was`, with the placement that it needs; negative: an error. */
static int32_t share(struct sctx *s, int32_t node, int32_t was, int32_t t, const struct tc_layout *need, int space)
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  const struct tc_tensor *x = &g->tensor[t];
  struct cached key = { .from = t, .space = space, .lay = *need };
  if (tc_layout_equal(&x->lay, need) && x->space == space) return t;
  const bool weight = x->state && x->param >= 0 && n->mark != TC_U;
  const struct tc_param *p = weight ? &g->param[x->param] : NULL;
  set_phase(s, n, p, &key);
  int k = find_cached(s, &key);
  if (k >= 0) return s->cached[k].to;
  const int32_t first = g->n_nodes;
  const bool gather = weight || (x->state && x->space != space);
  key.to = tc_place_move(s, t, need, space, node, gather ? TC_ROLE_GATHER : TC_ROLE_NONE);
  if (key.to < 0) return key.to;
  for (int32_t j = first; j < g->n_nodes && weight; j++) {
    bool sent = g->node[j].axes == TC_ON_PP;    /* to another stage: once per step */
    g->node[j].once_a_step = p->reshard_after == TC_AFTER_STEP || sent;
    if (sent) g->node[j].role = TC_ROLE_NONE;
  }
  for (int32_t j = first; j < g->n_nodes; j++) {
    int32_t d = tc_out(g, &g->node[j], 0);   /* made in place, in t's storage */
    if (tc_tensor_root(g, d) != tc_tensor_root(g, t) || g->node[j].coll == TC_SLICE) continue;
    s->now[was] = d;
    if (t < s->n_old) s->now[t] = d;
  }
  cache(s, &key);
  return key.to;
}

int tc_place_input(struct sctx *s, int32_t node, int i, const struct tc_layout *need)
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  const int32_t was = tc_in(g, n, i);
  int32_t t = s->now[was];
  const struct tc_tensor *x = &g->tensor[t];
  const bool whole = !x->state && !tc_layout_axes(&x->lay, TC_P);
  if (whole && !tc_place_equal(&x->lay.on[TC_PP], &need->on[TC_PP])) {         /* is sent once, whatever its readers need */
    struct tc_layout there = x->lay;
    there.on[TC_PP] = need->on[TC_PP];
    t = share(s, node, was, t, &there, x->space);
  }
  if (t >= 0) t = share(s, node, was, t, need, g->node[node].space);
  if (t < 0) return t;
  g->arg[g->node[node].in + i] = t;
  return 0;
}

static int64_t divisor_below(int64_t n, int64_t most)
{
  while (most > 1 && n % most) most--;
  return most;
}

int tc_place_even(const struct sctx *s, const struct tc_node *n, int32_t tensor)
{
  const struct tc_tensor *t = &s->g->tensor[tensor];
  int64_t dim[TC_DIMS];
  for (int d = 0; d < t->rank; d++) dim[d] = tc_stored_dim(t, d);
  for (int a = 0; a < TC_AXES; a++) {
    if (t->lay.on[a].kind != TC_S) continue;
    int d = t->lay.on[a].dim;
    if (dim[d] % s->m->size[a])
      return tc_fail(s->err, TC_ELAYOUT, "%s of op %s: dimension %d has %lld elements, which %s = "
                     "%d does not divide; %s = %lld would fit", t->name, tc_op_info[n->op].name, d,
                     (long long)dim[d], tc_mesh_name(s->m, 1u << a), s->m->size[a], tc_mesh_name(s->m, 1u << a),
                     (long long)divisor_below(dim[d], s->m->size[a]));
    dim[d] /= s->m->size[a];
  }
  return 0;
}

void tc_place_in_place(struct sctx *s, int32_t node, const int32_t *before)
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  for (int k = 0; k < n->n_out; k++) {
    struct tc_tensor *y = &g->tensor[tc_out(g, n, k)];
    if (y->overwrites < 0 || tc_is_acc(n, k) || tc_place_required(g, y->id)) continue;
    for (int i = 0; i < n->n_in && i < TC_RULE_MAX; i++) {
      int32_t now = tc_in(g, n, i);
      if (before[i] != y->overwrites || now == before[i]) continue;
      y->overwrites = now;
      for (int m = s->n_cached - 1; m >= 0; m--)   /* it is overwritten: other readers can't share it */
        if (s->cached[m].to == now) s->cached[m] = s->cached[--s->n_cached];
    }
  }
}

int32_t tc_place_replace(struct sctx *s, int32_t node, int k)
{
  struct tc_graph *g = s->g;
  int32_t v = tc_out(g, &g->node[node], k), own = tc_tensor_like(g, v);
  g->tensor[own].lay = g->tensor[v].lay;
  g->tensor[own].space = g->node[node].space;
  g->tensor[own].node = node;
  g->arg[g->node[node].out + k] = own;
  g->tensor[v].node = -1;
  return own;
}

void tc_place_make_instead(struct tc_graph *g, int32_t last, int32_t v)
{
  struct tc_node *n = &g->node[g->tensor[last].node];
  for (int k = 0; k < n->n_out; k++)
    if (tc_out(g, n, k) == last) g->arg[n->out + k] = v;
  g->tensor[v].lay = g->tensor[last].lay;
  g->tensor[v].space = g->tensor[last].space;
  g->tensor[v].node = n->id;
  g->tensor[last].node = -1;
}

/* Reshards an output whose required placement is not the one that the node makes: the node makes a new
 * tensor, which is resharded. If the output overwrites an input that was resharded, the new tensor overwrites
 * that. before[]: the inputs before they were resharded. */
static int reshard_output(struct sctx *s, int32_t node, int k, const struct tc_layout *to, int space,
                          const int32_t *before)
{
  struct tc_graph *g = s->g;
  int32_t v = tc_out(g, &g->node[node], k), own = tc_place_replace(s, node, k);
  const struct tc_node *n = &g->node[node];
  for (int i = 0; i < n->n_in && i < TC_RULE_MAX; i++) {
    int32_t now = tc_in(g, n, i);
    if (g->tensor[v].overwrites >= 0 && before[i] == g->tensor[v].overwrites && now != before[i])
      g->tensor[own].overwrites = now;
  }
  const int op = n->op, role = n->mark == TC_U ? TC_ROLE_STORE : TC_ROLE_NONE;
  struct cached key = { .from = v, .to = own, .space = g->tensor[own].space, .lay = g->tensor[own].lay };
  int32_t last = tc_place_move(s, own, to, space, node, role);
  if (last < 0) return last;
  if (last == own)
    return tc_fail(s->err, TC_ELAYOUT, "op %s can't make %s with the placement that it must have",
                   tc_op_info[op].name, g->tensor[v].name);
  tc_place_make_instead(g, last, v);
  set_phase(s, &g->node[node], NULL, &key);      /* for readers that need it as it was made */
  cache(s, &key);
  return 0;
}

/* The preferred placement on an axis; l has those of the other axes. Several readers have preferences, and a
 * tensor can be a flat shard on one set of axes only. */
static struct tc_place preferred_place(const struct tc_layout *l, const struct tc_layout *preferred, int axis)
{
  const bool flat = preferred->on[axis].kind == TC_FLAT;
  const unsigned others = tc_layout_axes(l, TC_FLAT) & ~(unsigned)tc_layout_axes(preferred, TC_FLAT);
  return flat && others ? (struct tc_place){ 0 } : preferred->on[axis];
}

int tc_place_resolve(struct sctx *s, int32_t node, int32_t t, int32_t read_as)
{
  struct tc_graph *g = s->g;
  const struct tc_layout preferred = g->tensor[read_as].preferred;
  struct tc_layout to = g->tensor[t].lay;
  bool any = false;
  for (int a = 0; a < TC_AXES; a++) {
    if (to.on[a].kind != TC_P) continue;
    if (a == TC_MB)
      return tc_fail(s->err, TC_ELAYOUT, "%s of op %s is partial in time", g->tensor[t].name,
                     tc_op_info[g->node[node].op].name);
    any = true;
    to.on[a] = preferred_place(&to, &preferred, a);
  }
  const bool grad = g->tensor[t].param >= 0;
  if (any) t = tc_place_move(s, t, &to, g->tensor[t].space, node, grad ? TC_ROLE_GRAD : TC_ROLE_NONE);
  if (t < 0) return t;
  s->now[read_as] = t;
  return 0;
}

/* Partial outputs are resolved where they are produced; of one that is overwritten, its next version is, and of several a
 * by-product that nothing reads (the gradient of a frozen gain) never is. */
static int resolve_output(struct sctx *s, int32_t node, int32_t t)
{
  const bool unread = t < s->n_old && !s->read[t] && s->g->node[node].n_out > 1;
  const bool overwritten = t < s->n_old && s->next_version[t] >= 0;
  return overwritten || unread ? 0 : tc_place_resolve(s, node, t, t);
}

/* An annotation does not constrain the axes that it leaves at R. */
int tc_place_output(struct sctx *s, int32_t node, int k, const struct tc_layout *asked, const int32_t *before)
{
  struct tc_graph *g = s->g;
  const struct tc_tensor *t = &g->tensor[tc_out(g, &g->node[node], k)], *pin = tc_place_required(g, t->id);
  if (!pin) return resolve_output(s, node, t->id);
  struct tc_layout to = pin == t ? *asked : pin->lay;
  for (int a = 0; pin == t && a < TC_AXES; a++)
    if (to.on[a].kind == TC_R) to.on[a] = t->lay.on[a].kind == TC_P ? t->preferred.on[a] : t->lay.on[a];
  if (tc_layout_equal(&to, &t->lay) && pin->space == t->space) return resolve_output(s, node, t->id);
  return reshard_output(s, node, k, &to, pin->space, before);
}
