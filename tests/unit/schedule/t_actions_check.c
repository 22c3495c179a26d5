/* t_actions_check.c - what the checks of lists of actions (actions_check.c) and of memory plans (arena_check.c) say of
 * those in which one entry, or one place in memory, is wrong (broken.h). */
#include "src/schedule/actions.h"
#include "tests/unit/broken.h"

static void say_schedule(struct bench *b, const char *what, int32_t i, int64_t k)
{
  struct tc_err err = { 0 };
  int rc = tc_actions_check(b->p->actions, b->p->graph, &err);
  if (rc < 0) note_invariant(tc_actions_invariant, err.text);
  say(b, what, i, k, rc, &err);
}

static void say_arena(struct bench *b, const char *what, int32_t i, int64_t k)
{
  struct tc_err err = { 0 };
  int rc = tc_arena_check(b->p->arena, b->p->graph, b->p->actions, NULL, b->m,
                          b->m->coord + (size_t)b->rank * TC_AXES, &err);
  say(b, what, i, k, rc, &err);
}

static void break_actions(struct bench *b)
{
  struct tc_actions *s = b->p->actions;
  for (int32_t i = 0; i + 1 < s->n; i++) {
    struct tc_action *at = &s->action[i], was = at[0], next = at[1];
    at[0] = next;
    say_schedule(b, "twice", i, 0);
    at[1] = was;
    say_schedule(b, "swapped", i, 0);
    at[0] = was;
    memmove(at + 1, at + 2, (size_t)(s->n - i - 2) * sizeof *at);
    s->n--;
    say_schedule(b, "left out", i, 0);
    memmove(at + 2, at + 1, (size_t)(s->n - i - 1) * sizeof *at);
    s->n++;
    at[1] = next;
    for (int kind = TC_RUN; kind <= TC_WAIT; kind++) TRY(say_schedule, b, i, at->kind, kind);
    TRY(say_schedule, b, i, at->mb, (was.mb + 1) % s->n_mb);
  }
  TRY(say_schedule, b, 0, s->n, s->n - 1);
  TRY(say_schedule, b, 0, s->opts.at, !s->opts.at);
  TRY(say_schedule, b, 0, s->opts.pp, 1);
}

/* What adds to an accumulator writes over it, or the other way round, as the list is. */
static void break_sums(struct bench *b)
{
  struct tc_graph *g = b->p->graph;
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *n = &g->node[g->order[i]];
    TRY(say_schedule, b, n->id, n->acc, 0);
    TRY(say_schedule, b, n->id, n->acc, n->acc ^ 1);
    TRY(say_schedule, b, n->id, n->acc_first, !n->acc_first);
    TRY(say_schedule, b, n->id, n->once_a_step, !n->once_a_step);
  }
}

static void break_arena(struct bench *b)
{
  struct tc_arena *a = b->p->arena;
  for (int32_t t = 0; t < a->n; t++) {
    if (a->off[t] < 0) continue;
    TRY(say_arena, b, t, a->off[t], a->off[t] + 64);
    TRY(say_arena, b, t, a->off[t], TC_MAX(a->off[t], 64) - 64);
    TRY(say_arena, b, t, a->off[t], -1);
    TRY(say_arena, b, t, a->off[t], a->off[(t + 5) % a->n]);
    TRY(say_arena, b, t, a->region[t], TC_HOST_SCRATCH);
    if (a->slots[t] > 1) TRY(say_arena, b, t, a->slots[t], a->slots[t] - 1);
  }
  for (int i = 0; i < a->n_slot; i++) TRY(say_arena, b, i, a->slot[i], 0);
  for (int r = 0; r < TC_REGIONS; r++) TRY(say_arena, b, r, a->bytes[r], a->bytes[r] - 64);
}

static void break_all(struct bench *b)
{
  say_schedule(b, "whole", 0, 0);
  if (!b->p->arena) {
    break_sums(b);
  } else {
    break_actions(b);
    break_arena(b);
  }
  say_schedule(b, "whole again", 0, 0);
}

int main(int argc, char **argv) { return test_broken(argc, argv, "actions_check", tc_actions_invariant); }
