/* t_check.c - programs in which one thing is wrong, one after the other: what the checks that follow the
 * passes, and the simulator of schedules, say of each, as digests (digest.h). What is broken is put back
 * before the next. */
#include "src/graph/check.h"
#include "src/schedule/pipeline.h"
#include "src/program/setup.h"
#include "tests/unit/named.h"
#include "tests/unit/digest.h"

/* The sentences of one table of invariants, and whether a program that broke it was refused with it. */
enum { MOST_INVARIANTS = 32 };
static struct { const char *(*sentence)(int i); bool met[MOST_INVARIANTS]; } tables[] = {
  { tc_check_invariant, { false } }, { tc_actions_invariant, { false } } };

static void note_invariant(int table, const char *error)
{
  const char *s;
  for (int i = 0; (s = tables[table].sentence(i)); i++) {
    const size_t n = strlen(error), m = strlen(s);
    tables[table].met[i] |= n > m && !strcmp(error + n - m, s) && error[n - m - 1] == ' ';
  }
}

/* The program at hand, and what a check says of it. */
struct bench {
  FILE *f;
  const char *pass;
  struct tc_mesh *m;
  struct tc_program *p;
  int rank;
};

static void say_graph(struct bench *b, const char *what, int32_t i, int64_t k)
{
  struct tc_err err = { 0 };
  int rc = tc_graph_check(b->p->graph, b->m, b->pass, &err);
  if (rc < 0) note_invariant(0, err.text);
  fprintf(b->f, "%s %d %lld: %d %s\n", what, i, (long long)k, rc, rc < 0 ? err.text : "");
}

static void say_schedule(struct bench *b, const char *what, int32_t i, int64_t k)
{
  struct tc_err err = { 0 };
  int rc = tc_actions_check(b->p->actions, b->p->graph, &err);
  if (rc < 0) note_invariant(1, err.text);
  fprintf(b->f, "%s %d %lld: %d %s\n", what, i, (long long)k, rc, rc < 0 ? err.text : "");
}

static void say_arena(struct bench *b, const char *what, int32_t i, int64_t k)
{
  struct tc_err err = { 0 };
  int rc = tc_arena_check(b->p->arena, b->p->graph, b->p->actions, NULL, b->m,
                          b->m->coord + (size_t)b->rank * TC_AXES, &err);
  fprintf(b->f, "%s %d %lld: %d %s\n", what, i, (long long)k, rc, rc < 0 ? err.text : "");
}

/* `field` is `value` while the check looks; not if it is that already. */
#define TRY(say, b, i, field, value)                                                               \
  do {                                                                                             \
    const __typeof__(field) was_ = (field);                                                        \
    if ((field) != (__typeof__(field))(value)) {                                                   \
      (field) = (__typeof__(field))(value);                                                        \
      say(b, #field, i, (int64_t)(value));                                                         \
      (field) = was_;                                                                              \
    }                                                                                              \
  } while (0)

/* ---- the order of nodes, of actions ----------------------------------------------------- */

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
    for (int axis = 0; axis < TC_AXES; axis++) TRY(say_graph, b, n->id, n->axis, axis);
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

/* ---- pipeline schedules ------------------------------------------------------------------ */

static void say_sched(FILE *f, const struct tc_pipeline *s, const struct tc_transfers *t,
                      const char *what, int r, int i)
{
  const struct tc_pipeline_cost even = { 1, 1, 1, 0 };
  struct tc_err err = { 0 };
  struct tc_simulation *sim = NULL;
  int rc = tc_pipeline_check(s, &err);
  fprintf(f, "%s %d %d: %d %s", what, r, i, rc, rc < 0 ? err.text : "");
  rc = tc_pipeline_simulate(&sim, s, &even, 1, t, &err);
  fprintf(f, " %d %s\n", rc, rc < 0 ? err.text : "");
  tc_simulation_free(sim);
}

/* Item i of rank r, in its work, its place, and what it is of. */
static void break_item(FILE *f, struct tc_pipeline *s, const struct tc_transfers *t, int r, int i)
{
  struct tc_item *x = &s->item[r][i], was = x[0], next = x[1];
  for (int k = 0; k < TC_WORKS; k++) {
    x->work = (uint8_t)k;
    say_sched(f, s, t, "work", r, i);
  }
  x->work = was.work;
  for (int d = -was.virtual_stage - 1; d <= s->v - was.virtual_stage; d++) {
    x->virtual_stage = was.virtual_stage + d;
    say_sched(f, s, t, "virtual stage", r, i);
  }
  x->virtual_stage = was.virtual_stage;
  for (int mb = -1; mb <= s->m; mb++) {
    x->mb = mb;
    say_sched(f, s, t, "micro-batch", r, i);
  }
  x[0] = next;
  x[1] = was;
  say_sched(f, s, t, "swapped", r, i);
  x[0] = was;
  x[1] = next;
}

/* sched NAME P V M */
static int break_sched(FILE *f, const char *line, struct tc_err *err)
{
  char name[20] = "";
  int p = 0, v = 0, m = 0;
  struct tc_pipeline *s;
  struct tc_transfers *t;
  sscanf(line, "sched %19s %d %d %d", name, &p, &v, &m);
  TC_TRY(tc_pipeline_new(&s, schedule_named(name), p, v, m, err));
  TC_TRY(tc_pipeline_transfers(&t, s, NULL, 0, err));
  for (int r = 0; r < p; r++) {
    for (int i = 0; i + 1 < s->n_items[r]; i++) {
      break_item(f, s, NULL, r, i);
      break_item(f, s, t, r, i);
    }
    for (int i = 0; i + 1 < t->n_queue[r]; i++) {
      int32_t *q = &t->queue[r][i], was = q[0];
      q[0] = q[1], q[1] = was;
      say_sched(f, s, t, "queue", r, i);
      q[1] = q[0], q[0] = was;
    }
    s->n_items[r]--;
    say_sched(f, s, NULL, "short", r, 0);
    s->n_items[r]++;
    t->n_queue[r]--;
    say_sched(f, s, t, "short queue", r, 0);
    t->n_queue[r]++;
  }
  tc_transfers_free(t);
  tc_pipeline_free(s);
  return 0;
}

/* ---- lines: PASS RANKS RANK FLAGS --------------------------------------------------------- */

static int break_all(struct bench *b, const struct tc_program_opts *o, struct tc_err *err)
{
  TC_TRY(tc_program_new(&b->p, o, b->m, b->rank, NULL, b->pass, err));
  struct tc_graph *g = b->p->graph;
  say_graph(b, "whole", 0, 0);
  if (b->p->arena) {
    break_actions(b);
    break_arena(b);
  } else if (b->p->actions) {
    break_sums(b);
  } else {
    break_order(b);
    break_tensors(b);
    for (int32_t i = 0; i < g->n_nodes; i++) break_node(b, &g->node[i]);
    break_contributions(b);
    for (int32_t i = 0; i < g->n_order; i++) { /* an update whose op is not marked as one */
      struct tc_node *n = &g->node[g->order[i]];
      if (tc_updates(g, n) >= 0) TRY(say_graph, b, n->id, n->op, TC_OP_CLIP);
    }
  }
  say_graph(b, "whole again", 0, 0);
  tc_program_free(b->p);
  return 0;
}

static char *make(const char *line)
{
  char *text = NULL, pass[20] = "";
  size_t bytes = 0;
  int world = 0, flags = 0;
  int32_t node[64] = { 0 };
  struct tc_err err = { 0 };
  struct bench b = { .f = open_memstream(&text, &bytes), .pass = pass };
  struct tc_config *c = NULL;
  struct tc_annotation *rows = NULL;
  struct tc_program_opts o;
  sscanf(line, "%19s %d %d %n", pass, &world, &b.rank, &flags);
  const bool sched = !strcmp(pass, "sched");
  int rc = sched ? break_sched(b.f, line, &err) : read_config(&c, line + flags, &err);
  if (!rc && !sched) rc = tc_setup_mesh(&b.m, c, world, node, 0, &err);
  if (!rc && !sched) rc = tc_setup_program(&o, c, b.m, &rows, &err);
  if (!rc && !sched) rc = break_all(&b, &o, &err);
  tc_annotations_free(rows);
  tc_mesh_free(b.m);
  tc_config_free(c);
  fclose(b.f);
  if (rc >= 0) return text;
  free(text);
  return tc_sprintf("status %d: %s", rc, err.text);
}

int main(int argc, char **argv)
{
  const int rc = compare_digests(argc, argv, "check", make);
  if (rc || argc > 2) return rc;                 /* it has only shown a line */
  for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
    for (int i = 0; tables[k].sentence(i); i++)
      ok(tables[k].met[i], "a program is refused since something \"%s\"", tables[k].sentence(i));
  return done_testing();
}
