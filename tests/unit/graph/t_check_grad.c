/* t_check_grad.c - programs broken on purpose, where gradients are summed: each break is noticed by the
 * checks that follow every pass. Where and how is drawn; SEED repeats a run. */
#include "src/program/program.h"
#include "src/graph/rule.h"
#include "src/passes/passes.h"
#include "src/passes/reshard.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/named.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

static const struct tc_model toy = { .layers = 4, .hidden = 32, .heads = 4, .context = 16,
    .vocab = 64 };
enum { DRAWS = 200 };

static const struct layout { const char *system; int mb, pp, dp, tp; bool sequence; int head_chunk; } layouts[] = {
  { "ddp", 1, 1, 1, 1, false, 16 },  { "ddp", 2, 1, 2, 2, false, 0 },
  { "zero1", 2, 1, 2, 2, true, 8 },  { "zero2", 2, 1, 2, 1, false, 16 },
  { "zero3", 2, 1, 2, 2, true, 0 },  { "zero3", 1, 1, 4, 1, false, 8 },
  { "server", 2, 1, 2, 1, false, 0 }, { "dataparallel", 1, 1, 2, 1, false, 0 },
  { "zero2", 4, 2, 2, 1, false, 16 }, { "ddp", 4, 2, 1, 2, true, 0 } };
static const char *const after[] = { "infer", "recompute", "merge", "loss_chunks", "buckets" };

static uint64_t state;

static uint32_t draw(uint32_t n)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 20) % n;
}

static struct tc_program *make(const struct layout *l, struct tc_mesh *m, const char *pass)
{
  struct tc_program *p = NULL;
  struct tc_err err = { 0 };
  struct tc_program_opts o = {
    .kind = TC_TRAIN, .model = toy, .gpt = { .batch = 8, .dtype = TC_F32, .grad_dtype = TC_F32,
    .tp = l->tp }, .system = system_named(l->system), .overlap = true, .reshard_after = -1,
    .prefetch = 1, .head_chunk = l->head_chunk, .schedule = TC_SCHEDULE_1F1B, .virtual_stages = 1 };
  if (l->tp > 1) o.annotation[0] = tc_rows_tensor;
  if (l->sequence) o.annotation[1] = tc_rows_sequence;
  if (tc_program_new(&p, &o, m, 0, NULL, pass, &err) < 0) printf("Bail out! %s\n", err.text);
  return p;
}

/* ---- breaks: each returns whether it found a place, and says what it did ------------------- */

struct broken { struct tc_graph *g; int32_t at; char what[120]; };   /* at: place in the order */

static struct tc_node *node_at(struct broken *b, int32_t i) { return &b->g->node[b->g->order[i]]; }

/* A gradient of a parameter, or a part of it, before the update. */
static bool is_sum(const struct tc_graph *g, int32_t t)
{
  return g->tensor[t].param >= 0 && g->tensor[t].cls == TC_CLS_GRAD;
}

/* The next node from a drawn place on that makes such a sum in one of the ways: 1 it contributes,
 * 2 it adds a partial sum, 4 it moves one. -1: none. */
static int32_t find(struct broken *b, int ways)
{
  for (int32_t k = 0, i = (int32_t)draw((uint32_t)b->g->n_order); k < b->g->n_order; k++, i++) {
    i %= b->g->n_order;
    const struct tc_node *n = node_at(b, i);
    int way = n->op == TC_OP_ACCUM ? 2 : n->op == TC_OP_RESHARD ? 4 : n->acc ? 1 : 0;
    if (!(way & ways) || n->mark == TC_F || n->mark == TC_U) continue;
    for (int o = 0; o < n->n_out; o++)
      if (is_sum(b->g, tc_out(b->g, n, o))) return b->at = i;
  }
  return -1;
}

static int sum_output(const struct broken *b, const struct tc_node *n)
{
  int k = (int)draw((uint32_t)n->n_out);
  while (!is_sum(b->g, tc_out(b->g, n, k))) k = (k + 1) % n->n_out;
  return k;
}

/* Later nodes read `to` where they read `from`. */
static void redirect(struct broken *b, int32_t from, int32_t to, int32_t behind)
{
  struct tc_graph *g = b->g;
  for (int32_t i = behind; i < g->n_order; i++) {
    struct tc_node *n = node_at(b, i);
    for (int k = 0; k < n->n_in; k++)
      if (tc_in(g, n, k) == from) g->arg[n->in + k] = to;
    for (int k = 0; k < n->n_out; k++)
      if (g->tensor[tc_out(g, n, k)].overwrites == from && tc_out(g, n, k) != to)
        g->tensor[tc_out(g, n, k)].overwrites = to;
  }
}

/* Dropped: what follows goes on from the sum as it was before. */
static bool drop(struct broken *b)
{
  struct tc_graph *g = b->g;
  if (find(b, 1 | 2) < 0) return false;
  const struct tc_node *n = node_at(b, b->at);
  int k = sum_output(b, n);
  int32_t t = tc_out(g, n, k), old = g->tensor[t].overwrites;
  if (old < 0) return false;
  redirect(b, t, old, b->at + 1);
  g->tensor[t].overwrites = -1;
  return true;
}

/* Dropped: the node does not run, what reads it reads what was there. */
static bool leave_out(struct broken *b)
{
  struct tc_graph *g = b->g;
  if (find(b, 2) < 0) return false;
  const struct tc_node *n = node_at(b, b->at);
  int32_t t = tc_out(g, n, 0);
  redirect(b, t, g->tensor[t].overwrites, b->at + 1);
  memmove(g->order + b->at, g->order + b->at + 1, (size_t)(g->n_order - b->at - 1) * sizeof *g->order);
  g->n_order--;
  return true;
}

/* Doubled: the same once more, on top of it. */
static bool twice(struct broken *b)
{
  struct tc_graph *g = b->g;
  if (find(b, 1 | 2) < 0) return false;
  struct tc_node n = *node_at(b, b->at);
  if (n.n_out != 1) return false;
  int32_t in[TC_RULE_MAX], t = tc_out(g, &n, 0);
  for (int i = 0; i < n.n_in; i++) in[i] = tc_in(g, &n, i);
  int32_t again = tc_tensor_clone(g, t);
  g->tensor[again].overwrites = t;
  struct tc_node *m = tc_node_clone(g, n.id, in, &again);
  const int32_t id = m->id;
  m->acc_first = false;
  g->n_order--;                                  /* from the end to behind the first */
  redirect(b, t, again, b->at + 1);
  TC_GROW(g->order, g->n_order, g->cap_order);
  memmove(g->order + b->at + 2, g->order + b->at + 1,
          (size_t)(g->n_order - b->at - 1) * sizeof *g->order);
  g->order[b->at + 1] = id;
  g->n_order++;
  return true;
}

/* Overwritten: it does not add, or is as if it were the first; or the first adds to the last step's. */
static bool overwrite(struct broken *b)
{
  struct tc_graph *g = b->g;
  if (find(b, 1 | 2) < 0) return false;
  struct tc_node *n = node_at(b, b->at);
  int k = sum_output(b, n);
  int32_t old = g->tensor[tc_out(g, n, k)].overwrites;
  if (old < 0 || !g->tensor[tc_tensor_root(g, old)].state) return false;
  if (g->tensor[old].state || draw(2)) n->acc_first = !n->acc_first;
  else n->acc &= (uint8_t)~(1u << k);
  return true;
}

/* Moved: two of one shape take each other's place. */
static bool swap(struct broken *b)
{
  struct tc_graph *g = b->g;
  if (find(b, 1) < 0) return false;
  const int32_t first = b->at;
  const struct tc_node *n = node_at(b, first);
  int k = sum_output(b, n);
  int32_t t = tc_out(g, n, k);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *o = node_at(b, i);
    for (int q = 0; q < o->n_out; q++) {
      int32_t u = tc_out(g, o, q);
      if (u == t || !is_sum(g, u) || g->tensor[u].param == g->tensor[t].param || !(o->acc >> q & 1) ||
          o->op == TC_OP_RESHARD || g->tensor[u].rank != g->tensor[t].rank ||
          g->tensor[u].dim[0] != g->tensor[t].dim[0]) continue;
      g->arg[n->out + k] = u;
      g->arg[o->out + q] = t;
      g->tensor[u].node = n->id;
      g->tensor[t].node = o->id;
      return true;
    }
  }
  return false;
}

/* Moved: behind the update, or before what it needs. */
static bool move_away(struct broken *b)
{
  struct tc_graph *g = b->g;
  if (find(b, 1 | 2 | 4) < 0) return false;
  int32_t id = g->order[b->at], n = g->n_order;
  if (draw(2)) {
    memmove(g->order + b->at, g->order + b->at + 1, (size_t)(n - b->at - 1) * sizeof id);
    g->order[n - 1] = id;
  } else {
    memmove(g->order + 1, g->order, (size_t)b->at * sizeof id);
    g->order[0] = id;
  }
  return true;
}

/* Moved in time: once a step in place of each micro-batch, or the other way round. */
static bool change_time(struct broken *b, const struct tc_mesh *m)
{
  if (m->size[TC_MB] < 2 || find(b, 2 | 4) < 0) return false;
  node_at(b, b->at)->once_a_step = !node_at(b, b->at)->once_a_step;
  return true;
}

/* An update takes another parameter's gradient. */
static bool update_by_other(struct broken *b)
{
  struct tc_graph *g = b->g;
  int32_t a = -1;
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *n = node_at(b, i);
    if (n->op != TC_OP_ADAMW) continue;
    struct tc_node *o = a >= 0 ? node_at(b, a) : NULL;
    const struct tc_tensor *x = &g->tensor[tc_in(g, n, 0)];
    const struct tc_tensor *y = o ? &g->tensor[tc_in(g, o, 0)] : NULL;
    if (o && x->rank == y->rank && x->dim[0] == y->dim[0] && draw(3) == 0) {
      g->arg[n->in] = y->id;
      b->at = i;
      return true;
    }
    if (a < 0 || draw(3) == 0) a = i;
  }
  return false;
}

static bool break_it(struct broken *b, int kind, const struct tc_mesh *m)
{
  switch (kind) {
  case 0: return drop(b);
  case 1: return leave_out(b);
  case 2: return twice(b);
  case 3: return overwrite(b);
  case 4: return swap(b);
  case 5: return move_away(b);
  case 6: return change_time(b, m);
  default: return update_by_other(b);
  }
}
static const char *const kinds[] = { "dropped", "left out", "doubled", "overwritten", "swapped",
                                     "moved away", "at another time", "another's" };
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Until there are DRAWS, and one of each kind. */
static bool is_enough(const int tried[KINDS])
{
  int all = 0, least = DRAWS;
  for (int k = 0; k < KINDS; k++) {
    all += tried[k];
    least = TC_MIN(least, tried[k]);
  }
  return all >= DRAWS && least > 0;
}

static void test_graphs(void)
{
  int tried[KINDS] = { 0 }, noticed[KINDS] = { 0 }, shown = 0;
  for (int i = 0; i < 20 * DRAWS && !is_enough(tried); i++) {
    const struct layout *l = &layouts[draw(sizeof layouts / sizeof *layouts)];
    const char *pass = after[draw(5)];
    struct tc_mesh *m = fx_mesh(l->mb, l->pp, l->dp, l->tp);
    struct tc_program *p = make(l, m, pass);
    struct broken b = { .g = p->graph };
    struct tc_err err = { 0 };
    int kind = (int)draw(KINDS);
    if (tc_graph_check(p->graph, m, pass, &err) == 0 && break_it(&b, kind, m)) {
      bool seen = tc_graph_check(p->graph, m, pass, &err) < 0;
      const struct tc_node *n = node_at(&b, TC_MIN(b.at, p->graph->n_order - 1));
      tried[kind]++;
      noticed[kind] += seen;
      if (!seen && shown++ < 5)
        printf("# not noticed: %s at node %d %s, %s mb %d pp %d dp %d tp %d after %s\n", kinds[kind], n->id,
               tc_op_info[n->op].name, l->system, l->mb, l->pp, l->dp, l->tp, pass);
    }
    tc_program_free(p);
    tc_mesh_free(m);
  }
  for (int k = 0; k < KINDS; k++)
    ok(tried[k] > 0 && noticed[k] == tried[k], "a contribution %s: %d programs, %d noticed", kinds[k],
       tried[k], noticed[k]);
  ok(is_enough(tried), "%d broken programs or more, of all kinds", DRAWS);
}

/* In a list of actions: left out, twice, or in another order. */
static void test_schedules(void)
{
  int tried = 0, noticed = 0, shown = 0;
  for (int i = 0; i < 20 * DRAWS && tried < DRAWS; i++) {
    const struct layout *l = &layouts[draw(sizeof layouts / sizeof *layouts)];
    struct tc_mesh *m = fx_mesh(l->mb, l->pp, l->dp, l->tp);
    struct tc_program *p = make(l, m, "schedule");
    struct tc_actions *s = p->actions;
    struct tc_err err = { 0 };
    int32_t a = (int32_t)draw((uint32_t)s->n), kind = (int32_t)draw(3);
    const struct tc_node *n = &p->graph->node[s->action[a].node];
    bool sums = s->action[a].kind == TC_RUN && n->op != TC_OP_RESHARD && n->acc &&
                is_sum(p->graph, tc_out(p->graph, n, n->n_out - 1));
    if (sums) {
      const struct tc_action was = s->action[a];
      if (kind == 0) {
        memmove(s->action + a, s->action + a + 1, (size_t)(s->n - a - 1) * sizeof was);
        s->n--;
      } else if (kind == 1) {
        TC_GROW(s->action, s->n, s->cap);
        memmove(s->action + a + 1, s->action + a, (size_t)(s->n - a) * sizeof was);
        s->n++;
      } else {
        memmove(s->action + a, s->action + a + 1, (size_t)(s->n - a - 1) * sizeof was);
        s->action[s->n - 1] = was;
      }
      bool seen = tc_actions_check(s, p->graph, &err) < 0;
      tried++;
      noticed += seen;
      if (!seen && shown++ < 5)
        printf("# not noticed: kind %d, %s of %s, micro-batch %d of %d\n", kind, tc_op_info[n->op].name,
               l->system, was.mb, l->mb);
    }
    tc_program_free(p);
    tc_mesh_free(m);
  }
  ok(tried == DRAWS && noticed == tried, "%d lists of actions with a contribution left out, twice or "
     "last: %d noticed", tried, noticed);
}

/* An update whose op is not marked as an optimizer's in op.def, as a new one may be. */
static void test_unmarked(void)
{
  struct tc_mesh *m = fx_mesh(1, 1, 1, 1);
  struct tc_program *p = make(&layouts[0], m, "update");
  struct tc_graph *g = p->graph;
  struct tc_err err = { 0 };
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *n = &g->node[g->order[i]];
    if (tc_updates(g, n) >= 0) n->op = TC_OP_CLIP;
  }
  ok(tc_graph_check(g, m, "update", &err) < 0 && strstr(err.text, "is not an optimizer op"),
     "weights that are changed by another op than an optimizer's: %s", err.text);
  tc_program_free(p);
  tc_mesh_free(m);
}

int main(void)
{
  state = test_seed(false);
  printf("# SEED=%llu\n", (unsigned long long)state);
  for (int i = 0; i < 9; i++) draw(2);
  test_graphs();
  test_schedules();
  test_unmarked();
  return done_testing();
}
