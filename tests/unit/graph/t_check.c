/* t_check.c - what the checks that follow the passes (check.c, check_grad.c) say of programs in which the order of nodes,
 * a tensor, a node or a contribution is wrong (broken.h). */
#include "src/graph/check.h"
#include "tests/unit/broken.h"

static void say_graph(struct bench *b, const char *what, int32_t i, int64_t k)
{
  struct tc_err err = { 0 };
  int rc = tc_graph_check(b->p->graph, b->m, b->pass, &err);
  if (rc < 0) note_invariant(tc_check_invariant, err.text);
  say(b, what, i, k, rc, &err);
}

static void break_order(struct bench *b)
{
  struct tc_graph *g = b->p->graph;
  for (int32_t i = 0; i + 1 < g->n_order; i++) {
    int32_t *at = &g->order[i], was = at[0], next = at[1];
    at[0] = next;
    say_graph(b, "twice", i, 0);
    at[1] = was;
    say_graph(b, "swapped", i, 0);
    at[0] = was;
    memmove(at + 1, at + 2, (size_t)(g->n_order - i - 2) * sizeof *at);
    g->n_order--;
    say_graph(b, "left out", i, 0);
    memmove(at + 2, at + 1, (size_t)(g->n_order - i - 1) * sizeof *at);
    g->n_order++;
    at[1] = next;
  }
}

/* ---- tensors, nodes, contributions ------------------------------------------------------- */

/* Whether t may be declared to overwrite `old`: the storage of old is not found through t. */
static bool may_overwrite(const struct tc_graph *g, int32_t t, int32_t old)
{
  for (int32_t x = old; x >= 0;
       x = g->tensor[x].base >= 0 ? g->tensor[x].base : g->tensor[x].overwrites)
    if (x == t) return false;
  return true;
}

static void break_tensors(struct bench *b)
{
  struct tc_graph *g = b->p->graph;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    struct tc_tensor *x = &g->tensor[t];
    const int32_t other = (t + 7) % g->n_tensors;
    for (int a = 0; a < TC_AXES; a++) {
      struct tc_place *p = &x->lay.on[a];
      for (int kind = TC_R; kind <= TC_AT; kind++)
        if (kind != TC_S || x->rank > p->dim) TRY(say_graph, b, t, p->kind, kind);
      if (p->kind == TC_S && x->rank > 1) TRY(say_graph, b, t, p->dim, !p->dim);
      if (p->kind == TC_AT) TRY(say_graph, b, t, p->at, !p->at);
    }
    TRY(say_graph, b, t, x->overwrites, -1);
    if (may_overwrite(g, t, other)) TRY(say_graph, b, t, x->overwrites, other);
    if (x->node >= 0) TRY(say_graph, b, t, x->node, (x->node + 1) % g->n_nodes);
    TRY(say_graph, b, t, x->node, -1);
    TRY(say_graph, b, t, x->base, -1);
    TRY(say_graph, b, t, x->block, !x->block);
    TRY(say_graph, b, t, x->base_row, 0);
    TRY(say_graph, b, t, x->space, !x->space);
    TRY(say_graph, b, t, x->state, !x->state);
    TRY(say_graph, b, t, x->param, (x->param + 1) % g->n_params);
    TRY(say_graph, b, t, x->param, -1);
  }
}

static void break_node(struct bench *b, struct tc_node *n)
{
  struct tc_graph *g = b->p->graph;
  TRY(say_graph, b, n->id, n->once_a_step, !n->once_a_step);
  TRY(say_graph, b, n->id, n->acc, 0);
  TRY(say_graph, b, n->id, n->acc, n->acc ^ 1);
  TRY(say_graph, b, n->id, n->acc_first, !n->acc_first);
  TRY(say_graph, b, n->id, n->space, !n->space);
  TRY(say_graph, b, n->id, n->origin, 0);
  TRY(say_graph, b, n->id, n->origin, (n->origin + 1) % g->n_nodes);
  if (n->op == TC_OP_RESHARD) {
    for (int step = 0; step < TC_COLLS; step++) TRY(say_graph, b, n->id, n->coll, step);
    for (int axis = 0; axis < TC_AXES; axis++) TRY(say_graph, b, n->id, n->axes, (uint8_t)(1u << axis));
    TRY(say_graph, b, n->id, n->n_in, n->n_in - 1);
  }
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    int32_t *arg = &g->arg[k < n->n_in ? n->in + k : n->out + k - n->n_in];
    for (int32_t t = *arg + 1, tries = 0; t < g->n_tensors && tries < 2; t++) {
      if (g->tensor[t].rank != g->tensor[*arg].rank) continue;
      TRY(say_graph, b, n->id, *arg, t);
      tries++;
    }
  }
}

static void break_contributions(struct bench *b)
{
  struct tc_graph *g = b->p->graph;
  for (int32_t i = 0; i < g->n_contributions; i++) {
    struct tc_contribution *x = &g->contribution[i];
    TRY(say_graph, b, i, x->param, (x->param + 1) % g->n_params);
    TRY(say_graph, b, i, x->node, x->node - 1);
    TRY(say_graph, b, i, x->out, x->out + 1);
  }
  TRY(say_graph, b, 0, g->n_contributions, g->n_contributions - 1);
  TRY(say_graph, b, 0, g->n_contributions, 0);
}

static void break_all(struct bench *b)
{
  struct tc_graph *g = b->p->graph;
  say_graph(b, "whole", 0, 0);
  break_order(b);
  break_tensors(b);
  for (int32_t i = 0; i < g->n_nodes; i++) break_node(b, &g->node[i]);
  break_contributions(b);
  for (int32_t i = 0; i < g->n_order; i++) { /* an update whose op is not marked as one */
    struct tc_node *n = &g->node[g->order[i]];
    const int32_t was = n->op;
    if (tc_updates(g, n) < 0) continue;
    n->op = TC_OP_CLIP;
    say_graph(b, "n->op", n->id, 0);             /* its number is any: ops are added */
    n->op = was;
  }
  say_graph(b, "whole again", 0, 0);
}

int main(int argc, char **argv) { return test_broken(argc, argv, "check", tc_check_invariant); }
