/* actions.c - from the program's order to a step's list of actions, in three walks: the order of the nodes
 * (actions_order.c), with transfers moved ahead (actions_hoist.c), with waits (actions_wait.c).
 *
 * Invariants: a transfer is issued after all its inputs are made and waited for before any
 * reader of its outputs and before the step ends; every rank of a class has the same list, so
 * the transfers of a communicator are issued in the same order on all ranks. */
#include "src/schedule/impl.h"

/* The nodes in the order they run first, and how many of each are in flight at once. */
static void summarize(struct tc_actions *s, const struct tc_graph *g)
{
  bool *seen = tc_calloc((size_t)g->n_nodes, 1);
  int32_t *now = tc_calloc((size_t)g->n_nodes, sizeof *now);
  s->body = tc_malloc((size_t)g->n_order * sizeof *s->body);
  s->most = tc_calloc((size_t)g->n_nodes, sizeof *s->most);
  for (int32_t i = 0; i < s->n; i++) {
    const struct tc_action *a = &s->action[i];
    if (!seen[a->node]) s->body[s->n_body++] = a->node;
    seen[a->node] = true;
    now[a->node] += a->kind == TC_ISSUE ? 1 : a->kind == TC_WAIT ? -1 : 0;
    s->most[a->node] = TC_MAX(s->most[a->node], now[a->node]);
  }
  TC_FREE(seen, now);
}

int tc_step_init(struct step *st, const struct tc_graph *g, const struct tc_actions_opts *o, struct tc_err *err)
{
  bool forward = false;
  *st = (struct step){ .g = g, .o = *o };
  for (int32_t i = 0; i < g->n_order; i++) {
    st->backward |= g->node[g->order[i]].mark == TC_B;
    forward |= g->node[g->order[i]].mark == TC_F;
  }
  if (!forward || o->pp <= 1) return 0;
  TC_TRY(tc_pipeline_new(&st->pipeline, o->schedule, o->pp, TC_MAX(o->virtual_stages, 1), o->n_mb, err));
  int rc = tc_pipeline_transfers(&st->cross, st->pipeline, NULL, 0, err);
  if (rc < 0) tc_step_done(st);
  return rc;
}

void tc_step_done(struct step *st)
{
  tc_transfers_free(st->cross);
  tc_pipeline_free(st->pipeline);
}

int tc_actions_new(struct tc_actions **out, const struct tc_graph *g,
                   const struct tc_actions_opts *o, struct tc_err *err)
{
  struct step st;
  struct tasks order = { .n = 0 }, hoisted = { .n = 0 };
  TC_TRY(tc_step_init(&st, g, o, err));
  tc_order(&order, &st);
  int rc = tc_hoist(&hoisted, &st, &order, err);
  if (!rc) {
    struct tc_actions *s = *out = tc_calloc(1, sizeof *s);
    s->n_mb = o->n_mb;
    s->opts = *o;
    tc_place_waits(s, &st, &hoisted);
    summarize(s, g);
  }
  TC_FREE(order.task, hoisted.task);
  tc_step_done(&st);
  return rc;
}

int32_t tc_actions_most(const struct tc_actions *s, int32_t node)
{
  return TC_MAX(s->most[node], 1);
}

void tc_actions_free(struct tc_actions *s)
{
  if (!s) return;
  TC_FREE(s->action, s->body, s->most, s);
}
