/* t_arena.c - placing: the lowest free offset is what comparing with every object gives, for random
 * live ranges and sizes; a program's chunks, and the work to plan them, stay in bounds. */
#include "src/schedule/impl.h"
#include "src/passes/passes.h"
#include "src/program/program.h"
#include "tests/unit/random.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

#include <time.h>

/* ---- lowest offsets ----------------------------------------------------------------------- */

static bool share_time(const struct tc_object *a, const struct tc_object *b)
{
  for (int32_t i = 0; i < a->n; i++)
    for (int32_t k = 0; k < b->n; k++) {
      const struct tc_range *x = &a->in[i * a->step], *y = &b->in[k * b->step];
      if (x->first <= y->last && y->first <= x->last) return true;
    }
  return false;
}

/* Tries 0, then the end of every object: one of these is the lowest. */
static int64_t naive_lowest(const struct tc_object *all, int n, const struct tc_object *l)
{
  int64_t best = INT64_MAX;
  for (int c = -1; c < n; c++) {
    const int64_t at = c < 0 ? 0 : all[c].off + all[c].bytes;
    bool free_there = at < best;
    for (int i = 0; i < n && free_there; i++)
      free_there = all[i].off >= at + l->bytes || all[i].off + all[i].bytes <= at
                   || !share_time(&all[i], l);
    if (free_there) best = at;
  }
  return best;
}

/* Micro-batches of `steps` positions; short live ranges at the same place in each, or one long one. */
static void random_lives(struct tc_object *l, struct tc_range *in, int mbs, int steps)
{
  const int first = (int)draw(0, steps - 1), long_one = draw(0, 7) == 0;
  const int end = first + (int)draw(0, long_one ? steps - 1 : 3), last = TC_MIN(end, steps - 1);
  *l = (struct tc_object){ .step = (int32_t)draw(1, 2), .in = in, .bytes = 64 * draw(0, 5) };
  for (int k = 0; k < mbs; k++)
    in[k * l->step] = (struct tc_range){ k * steps + first, k * steps + last };
  l->n = mbs;
  if (long_one && mbs > 0) {
    in[0].last = in[(mbs - 1) * l->step].last;
    l->n = 1;
  }
}

static bool places_alike(int n, int mbs, int steps)
{
  struct tc_object *all = tc_calloc((size_t)n, sizeof *all);
  struct tc_range *in = tc_calloc((size_t)n * (size_t)mbs * 2, sizeof *in);
  struct tc_placed *p = tc_placed_new();
  bool same = true;
  for (int i = 0; i < n && same; i++) {
    random_lives(&all[i], in + (size_t)i * (size_t)mbs * 2, mbs, steps);
    all[i].off = tc_placed_lowest(p, &all[i]);
    same = all[i].off == (all[i].bytes ? naive_lowest(all, i, &all[i]) : 0);
    tc_placed_add(p, &all[i]);
  }
  tc_placed_free(p);
  free(all);
  free(in);
  return same;
}

static void test_lowest(void)
{
  random_state = test_seed(false);
  printf("# SEED=%llu\n", (unsigned long long)random_state);
  bool few = true, many = true;
  for (int i = 0; i < 300 && few; i++) few = places_alike((int)draw(1, 120), (int)draw(1, 5), (int)draw(2, 61));
  for (int i = 0; i < 4 && many; i++) many = places_alike(600, 1 + i, 400);
  ok(few, "300 random sets of objects are placed as by comparing all with all");
  ok(many, "sets of 600 objects too, which live in 1 to 4 micro-batches");
}

/* ---- the loss head's chunks ---------------------------------------------------------------- */

static const struct tc_model toy = { .layers = 2, .hidden = 32, .heads = 4, .context = 16,
    .vocab = 64 };

static int make(struct tc_program **out, int64_t batch, int mb, int tp, int64_t head_chunk,
                struct tc_mesh **m, struct tc_err *err)
{
  struct tc_program_opts o = {
    .kind = TC_TRAIN, .model = toy, .gpt = { .batch = batch, .tp = tp },
    .system = &tc_systems[TC_DATA_DDP], .overlap = true, .reshard_after = -1, .prefetch = 1,
    .head_chunk = head_chunk };
  if (tp > 1) o.annotation[0] = tc_rows_tensor;
  *m = fx_mesh(mb, 1, 1, tp);
  return tc_program_new(out, &o, *m, 0, NULL, NULL, err);
}

/* What planning does for each object and version, counted. */
struct work { int64_t looked, links; };
static int64_t links;

int32_t __real_tc_tensor_root(const struct tc_graph *g, int32_t t);
int32_t __wrap_tc_tensor_root(const struct tc_graph *g, int32_t t);

/* In the place of tc_tensor_root (the linker's --wrap): links that it follows, one by one unless the
 * storage of all is known already. */
int32_t __wrap_tc_tensor_root(const struct tc_graph *g, int32_t t)
{
  for (int32_t x = t; !g->root && x >= 0; links++)
    x = g->tensor[x].base >= 0 ? g->tensor[x].base : g->tensor[x].overwrites;
  return __real_tc_tensor_root(g, t);
}

static struct work count_work(int64_t batch, int mb, int tp)
{
  struct tc_program *p;
  struct tc_mesh *m;
  struct tc_err err = { 0 };
  struct work w = { 0 };
  links = 0;
  if (make(&p, batch, mb, tp, 4, &m, &err) == 0) {
    w = (struct work){ p->arena->looked, links };
    tc_program_free(p);
  }
  tc_mesh_free(m);
  return w;
}

/* Eight times the chunks take a little more than eight times the work, and 64 times where an object is compared with
 * all others, or each version is followed to its storage. */
static void test_growth(void)
{
  const struct { int mb, tp; } of[] = { { 1, 1 }, { 3, 1 }, { 1, 2 } };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    const struct work few = count_work(300, of[i].mb, of[i].tp);
    const struct work many = count_work(2400, of[i].mb, of[i].tp);
    ok(few.looked > 0 && many.looked <= 16 * few.looked, "8 times the chunks of the head, %d micro-"
       "batches, tp = %d: %lld objects and nodes looked at, %lld before", of[i].mb, of[i].tp,
       (long long)many.looked, (long long)few.looked);
    ok(few.links > 0 && many.links <= 16 * few.links, "... %lld links followed to storage, %lld before",
       (long long)many.links, (long long)few.links);
  }
}

static int count_products(const struct tc_graph *g)
{
  int n = 0;
  for (int32_t i = 0; i < g->n_order; i++)
    n += g->node[g->order[i]].op == TC_OP_PICK;
  return n;
}

static void test_bounds(void)
{
  struct tc_program *p = NULL;
  struct tc_mesh *m;
  struct tc_err err = { 0 };
  ok(make(&p, INT64_C(1) << 30, 1, 1, 0, &m, &err) == 0, "a program of 2^30 sequences can be made %s",
     err.text);
  const int n = count_products(p->graph);
  ok(n > 1 && n <= TC_LOSS_CHUNKS, "and has no more chunks than are allowed: %d", n);
  tc_program_free(p);
  tc_mesh_free(m);
  is_int(make(&p, 1 << 20, 1, 1, 8, &m, &err), TC_ELAYOUT, "too short chunks are refused");
  ok(strstr(err.text, "1024 or auto would fit") != NULL, "naming what would fit: %s", err.text);
  tc_mesh_free(m);
  ok(make(&p, 1 << 14, 1, 1, INT64_MAX, &m, &err) == 0, "chunks longer than all rows are one");
  is_int(count_products(p->graph), 1, "... one");
  tc_program_free(p);
  tc_mesh_free(m);
  is_int(make(&p, 1 << 29, 1 << 29, 1, 0, &m, &err), TC_ELAYOUT, "too many micro-batches are refused");
  ok(strstr(err.text, "or fewer would fit") != NULL, "naming how many would fit: %s", err.text);
  tc_mesh_free(m);
}

/* ---- results ------------------------------------------------------------------------------- */

/* The first action that reads or writes a tensor's storage in micro-batch mb, and the last. */
static struct tc_range range_of(const struct tc_program *p, int32_t root, int32_t mb)
{
  const struct tc_graph *g = p->graph;
  struct tc_range r = { INT32_MAX, -1 };
  for (int32_t i = 0; i < p->actions->n; i++) {
    const struct tc_node *n = &g->node[p->actions->action[i].node];
    for (int k = 0; k < n->n_in + n->n_out && p->actions->action[i].mb == mb; k++)
      if (tc_tensor_root(g, tc_operand(g, n, k)) == root) r = (struct tc_range){ TC_MIN(r.first, i), i };
  }
  return r;
}

/* What is read after the run, here of micro-batch 0: what is made later, in micro-batch mb, must not lie there. */
static void test_result(enum tc_program_kind kind, int32_t mb, const char *what)
{
  struct tc_program_opts o = {
    .kind = kind, .model = toy, .gpt = { .batch = 4, .tp = 1, .losses = kind == TC_EVAL },
    .system = &tc_systems[TC_DATA_ZERO1], .offload = TC_OFFLOAD_PARAMS, .overlap = true,
    .reshard_after = -1, .prefetch = 1 };
  struct tc_mesh *m = fx_mesh(mb + 1, 1, 2, 1);
  struct tc_program *p = NULL;
  struct tc_err err = { 0 };
  int later = 0, seen = 0;
  if (!is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), 0, "%s: a program on two ranks %s", what, err.text)) return;
  const struct tc_graph *g = p->graph;
  struct tc_arena *a = p->arena;
  const int32_t root = tc_tensor_root(g, kind == TC_EVAL ? g->nll : g->grad_norm);
  const struct tc_range result = range_of(p, root, 0);
  int64_t *at = a->slots[root] > 1 ? &a->slot[a->slot_at[root]] : &a->off[root];
  const int64_t was = *at, base = a->slots[root] > 1 ? a->off[root] : 0;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    if (g->tensor[t].state || t == root || tc_tensor_root(g, t) != t || a->region[t] != a->region[root]) continue;
    const struct tc_range r = range_of(p, t, mb), before = range_of(p, t, 0);
    const bool meets = mb && before.last >= result.first && before.first <= result.last;
    if (meets || r.last < 0 || r.first <= result.last || tc_stored_bytes(g, m, m->coord, t) == 0) continue;
    *at = tc_arena_at(a, t, mb) - base;
    later++;
    seen += tc_arena_check(a, g, p->actions, p->fusions, m, m->coord, &err) < 0 && strstr(err.text, "overlap");
  }
  *at = was;
  ok(later > 0, "%d tensors are made after the last action that has %s", later, what);
  is_int(seen, later, "each of them is seen to lie on it");
  is_int(tc_arena_check(a, g, p->actions, p->fusions, m, m->coord, &err), 0, "but not as they were planned");
  tc_program_free(p);
  tc_mesh_free(m);
}

int main(void)
{
  test_lowest();
  test_growth();
  test_bounds();
  test_result(TC_TRAIN, 0, "the norm of the gradient");
  test_result(TC_EVAL, 1, "the losses of tokens");
  return done_testing();
}
