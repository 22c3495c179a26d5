/* actions_order.c - the first walk: the nodes of a step in the order in which they follow each other on this rank, by the
 * items of the pipeline's schedule, and in each item by the program's order. */
#include "src/schedule/impl.h"

struct order {
  const struct step *st;
  const struct tc_graph *g;
  struct tasks *out;
  bool *after_mbs;               /* [node] runs once a step and depends on what micro-batches make */
  bool *tied;                    /* [node] ... on the gradient of a tied weight of another stage */
  int32_t *of_kind, *kind_at;    /* nodes by kind of item; [kind]: the first of each in of_kind */
};

static void find_after_mbs(struct order *c)
{
  const struct tc_graph *g = c->g;
  size_t n_tensors = (size_t)g->n_tensors;
  bool *timed = tc_calloc(n_tensors, 1);         /* made from what micro-batches make */
  bool *tied = tc_calloc(n_tensors, 1);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool t = !n->once_a_step, l = false;
    for (int k = 0; k < n->n_in; k++) {
      t |= timed[tc_in(g, n, k)];
      l |= tied[tc_in(g, n, k)];
    }
    c->after_mbs[n->id] = t;
    c->tied[n->id] = l || (t && tc_is_stage_send(n) && n->once_a_step);
    for (int k = 0; k < n->n_out; k++) {
      timed[tc_out(g, n, k)] = t;
      tied[tc_out(g, n, k)] = c->tied[n->id];
    }
  }
  TC_FREE(timed, tied);
}

/* ---- the order ------------------------------------------------------------------------ */

/* The kind of item a node runs in. Gradients of weights made in the chunks of the loss head stay
 * there; transfers and sums of gradients follow all of them. */
static int work_of(const struct order *c, const struct tc_node *n)
{
  if (n->mark == TC_F) return TC_WORK_F;
  bool split = c->st->pipeline && c->st->pipeline->split;
  bool after = n->role == TC_ROLE_GRAD || n->op == TC_OP_ACCUM ||
               (n->once_a_step && c->after_mbs[n->id]);
  return split && (after || (n->mark == TC_W && !n->head)) ? TC_WORK_W : TC_WORK_B;
}

static void add_task(struct order *c, int32_t node, int32_t mb, int32_t item)
{
  TC_APPEND(c->out->task, c->out->n, c->out->cap, (struct task){ node, mb, item });
}

/* The kind of item in which a node of this rank runs, by virtual stage and work; -1: in none. */
static int32_t kind_of(const struct order *c, const struct tc_node *n)
{
  int32_t virtual_stage = n->on_all_stages || c->st->o.pp <= 1 ? 0 : c->g->unit[n->unit].stage / c->st->o.pp;
  if (n->mark == TC_U || virtual_stage >= TC_MAX(c->st->o.virtual_stages, 1)) return -1;
  if (!tc_is_here(c->g, &c->st->o, n) || tc_is_stage_send(n) || c->tied[n->id]) return -1;
  return virtual_stage * TC_WORKS + work_of(c, n);
}

/* The nodes of each kind of item, in their order. */
static void find_kinds(struct order *c)
{
  const struct tc_graph *g = c->g;
  const int32_t kinds = TC_MAX(c->st->o.virtual_stages, 1) * TC_WORKS;
  c->kind_at = tc_calloc((size_t)kinds + 2, sizeof *c->kind_at);
  c->of_kind = tc_malloc((size_t)g->n_order * sizeof *c->of_kind);
  for (int32_t i = 0; i < g->n_order; i++) c->kind_at[kind_of(c, &g->node[g->order[i]]) + 2]++;
  c->kind_at[1] = 0;                             /* those of none */
  for (int32_t k = 0; k < kinds; k++) c->kind_at[k + 2] += c->kind_at[k + 1];
  for (int32_t i = 0; i < g->n_order; i++) {
    int32_t kind = kind_of(c, &g->node[g->order[i]]);
    if (kind >= 0) c->of_kind[c->kind_at[kind + 1]++] = g->order[i];
  }
}

static void add_item(struct order *c, const struct tc_item *x, int32_t item)
{
  const int32_t kind = x->virtual_stage * TC_WORKS + x->work;
  for (int32_t i = c->kind_at[kind]; i < c->kind_at[kind + 1]; i++) {
    const struct tc_node *n = &c->g->node[c->of_kind[i]];
    if (!n->once_a_step || x->mb == (c->after_mbs[n->id] ? c->st->o.n_mb - 1 : 0))
      add_task(c, n->id, x->mb, item);
  }
}

/* Outside of the items: before them a tied weight is sent to the other stage that uses it; after them
 * its gradient is sent back, followed by all that depends on it, and by the update. */
static void add_rest(struct order *c, bool at_end)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool mine = tc_is_here(c->g, &c->st->o, n), update = n->mark == TC_U;
    bool early = !update && !at_end && tc_is_stage_send(n) && n->once_a_step && !c->after_mbs[n->id];
    bool late = at_end && (update || c->tied[n->id]);
    if (mine && (early || late))
      add_task(c, n->id, early ? 0 : c->st->o.n_mb - 1, early ? -2 : -1);
  }
}

void tc_order(struct tasks *out, const struct step *st)
{
  const size_t n_nodes = (size_t)st->g->n_nodes;
  struct order order = { .st = st, .g = st->g, .out = out }, *c = &order;
  c->after_mbs = tc_calloc(n_nodes, 1);
  c->tied = tc_calloc(n_nodes, 1);
  find_after_mbs(c);
  find_kinds(c);
  add_rest(c, false);
  if (c->st->pipeline) {
    const struct tc_item *item = c->st->pipeline->item[c->st->o.at];
    for (int32_t i = 0; i < c->st->pipeline->n_items[c->st->o.at]; i++)
      if (c->st->backward || item[i].work == TC_WORK_F) add_item(c, &item[i], i);
  } else {
    for (int32_t i = 0; i < 2 * c->st->o.n_mb; i++) {
      const struct tc_item x = { i % 2 ? TC_WORK_B : TC_WORK_F, 0, i / 2 };
      add_item(c, &x, i);
    }
  }
  add_rest(c, true);
  TC_FREE(c->after_mbs, c->tied, c->of_kind, c->kind_at);
}
