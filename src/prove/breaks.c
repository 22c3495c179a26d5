/* breaks.c - faults that are planted in a sound program, to see that a proof finds them: those that other programs had where
 * parallelisms meet. A test hook.
 *
 * A fault is a row: which node of the training program it strikes, and how. Of the nodes that fit, the one in the middle, the
 * same on all ranks. What a collective does wrong is done in the moment in which it would begin; everything else is changed
 * in the graph, after the passes and their checks. */
#include "src/prove/impl.h"

#include "src/program/collective.h"

#include <stdlib.h>
#include <string.h>

/* What is done to a collective (below 0: to the graph). */
enum how { EVERY_MB = -10, MEANS, DROPOUT_BY_RANK, DROPOUT_AGAIN, OVERWRITTEN, NO_DECAY, OTHER_INPUT,
           SKIP = 0, TWICE, MEAN, LOSE_ONE, OTHER_SET, ROTATE, LATE, SKIP_LAST, SWAP };
/* Which nodes: of which role, mark, and what else they must be. */
#define ROLE(x) (1u << TC_ROLE_##x)
#define MARK(x) (1u << TC_##x)
#define COLL(x) (1u << TC_##x)
enum { SUMS = COLL(ALL_REDUCE) | COLL(REDUCE_SCATTER) | COLL(REDUCE),
       GATHERS = COLL(ALL_GATHER) | COLL(BROADCAST) | COLL(GATHER), FORWARD = MARK(F), BACKWARD = MARK(B) | MARK(W), ANY = ~0 };
enum { STAGES = 1, NOT_STAGES = 2, CONTROL = 4, DATA = 8, ONCE = 16, EACH_MB = 32, HEAD = 64, NOT_HEAD = 128 };

static const struct fault { unsigned roles, colls, marks, is; int how; const char *what; } faults[] = {
  { ROLE(GRAD), SUMS, ANY, NOT_STAGES, SKIP, "a gradient is not reduced" },
  { ROLE(GRAD), SUMS, ANY, NOT_STAGES, TWICE, "a gradient is reduced twice" },
  { ROLE(GRAD), SUMS, ANY, NOT_STAGES, MEAN, "a gradient is averaged, not summed" },
  { ROLE(GRAD), SUMS, ANY, NOT_STAGES, LOSE_ONE, "one rank's part of a gradient is left out" },
  { ROLE(GRAD), COLL(ALL_REDUCE), ANY, NOT_STAGES, OTHER_SET, "a gradient is reduced over other axes" },
  { ROLE(GRAD), SUMS, ANY, NOT_STAGES | EACH_MB, SKIP_LAST, "a gradient is not reduced in the last micro-batch" },
  { ROLE(GRAD), COLL(ALL_REDUCE), ANY, NOT_STAGES | ONCE, EVERY_MB,
    "a gradient is reduced before it is complete, in each micro-batch" },
  { ROLE(GRAD), COLL(REDUCE_SCATTER), ANY, NOT_STAGES, SWAP, "two gradients of a bucket change places" },
  { ROLE(GATHER), GATHERS, ANY, NOT_STAGES, ROTATE, "a weight is put together of the wrong blocks" },
  { ROLE(GATHER), GATHERS, ANY, NOT_STAGES, LATE, "a weight is used one step late" },
  { ROLE(STORE), GATHERS, ANY, NOT_STAGES, SKIP, "an updated weight is not sent to those that use it" },
  { ROLE(STORE), GATHERS, ANY, NOT_STAGES, LATE, "an updated weight is sent one step late" },
  { ROLE(NONE), SUMS, FORWARD, NOT_STAGES | DATA | NOT_HEAD, SKIP, "an activation's parts are not summed" },
  { ROLE(NONE), SUMS, FORWARD, NOT_STAGES | DATA | NOT_HEAD, TWICE, "an activation's parts are summed twice" },
  { ROLE(NONE), SUMS, BACKWARD, NOT_STAGES | DATA | NOT_HEAD, SKIP, "an activation's gradient is not summed" },
  { ROLE(NONE), SUMS, BACKWARD, NOT_STAGES | DATA | NOT_HEAD, LOSE_ONE,
    "one rank's part of an activation's gradient is left out" },
  { ROLE(NONE), GATHERS, FORWARD, NOT_STAGES | DATA, ROTATE, "an activation is put together of the wrong blocks" },
  { ROLE(NONE), GATHERS, BACKWARD, NOT_STAGES | DATA, ROTATE, "an activation's gradient is put together of the wrong blocks" },
  { ROLE(NONE), COLL(ALL_TO_ALL), FORWARD, NOT_STAGES, SKIP, "an exchange of activations does not take place" },
  { ROLE(NONE), COLL(ALL_TO_ALL), BACKWARD, NOT_STAGES, ROTATE, "an exchange of gradients gives the wrong blocks" },
  { ROLE(NONE), SUMS, ANY, NOT_STAGES | HEAD, SKIP, "a sum over the parts of the vocabulary is left out" },
  { ROLE(NONE), COLL(SEND), FORWARD, STAGES | EACH_MB, LATE, "a stage gets the activation of the micro-batch before" },
  { ROLE(NONE), COLL(SEND), BACKWARD, STAGES | EACH_MB, SKIP, "a stage gets no gradient of its output" },
  { ANY, COLL(SEND), BACKWARD, STAGES | ONCE, SKIP, "a tied weight gets the gradient of one of its stages alone" },
  { ANY, COLL(SEND), ANY, STAGES | ONCE, LATE, "a tied weight's other stage is one step behind" },
  { ANY, SUMS, MARK(U), NOT_STAGES | CONTROL, SKIP, "the norm by which gradients are clipped is one rank's own" },
  { ANY, SUMS, MARK(U), NOT_STAGES | CONTROL, TWICE, "the norm by which gradients are clipped counts parts twice" },
  { 0, 0, 0, 0, MEANS, "the loss is a mean of the ranks' means" },
  { 0, 0, 0, 0, DROPOUT_BY_RANK, "dropout is drawn by rank" },
  { 0, 0, 0, 0, DROPOUT_AGAIN, "the backward pass draws another dropout" },
  { 0, 0, 0, 0, OVERWRITTEN, "a gradient is overwritten by each micro-batch" },
  { 0, 0, 0, 0, NO_DECAY, "a weight does not decay where it is split" },
  { 0, 0, 0, 0, OTHER_INPUT, "a layer uses another layer's weight" },
};
enum { N_FAULTS = sizeof faults / sizeof *faults };

const char *tc_break_what(int number) { return number < 1 || number > N_FAULTS ? NULL : faults[number - 1].what; }

struct tc_breaks {
  const struct fault *f;
  const struct tc_mesh *m;
  const struct tc_inputs *in;
  const struct tc_fault_place *at;       /* where it has to be; NULL: anywhere */
  pthread_mutex_t lock;
  bool struck;
  char where[200];
  struct tc_fault_place place;
};

/* What a part of a late collective had, each time; it may still be under way. */
struct late { char **had; int n, cap; };

struct tc_broken {
  struct tc_breaks *b;
  int rank;
  const struct tc_graph *g;      /* the training program; NULL before it is made */
  int32_t node;                  /* -1: none fits */
  struct tc_comm *comm[TC_SETS];
  int64_t calls, n_mb;           /* of the node in this step */
  struct late *late;
  struct tc_part *part;
  int n_parts;
};

/* ---- which node ------------------------------------------------------------------------ */

static bool is_shaped_alike(const struct tc_tensor *a, const struct tc_tensor *b)
{
  return a->rank == b->rank && !memcmp(a->dim, b->dim, a->rank * sizeof *a->dim) && tc_layout_equal(&a->lay, &b->lay);
}

/* Two inputs of one shape, of which the first is number *at of the bucket; false: there are none. */
static bool has_twins(const struct tc_graph *g, const struct tc_node *n, int *at, int *other)
{
  for (*at = 0; *at < n->n_in; ++*at)
    for (*other = *at + 1; *other < n->n_in; ++*other)
      if (is_shaped_alike(&g->tensor[tc_in(g, n, *at)], &g->tensor[tc_in(g, n, *other)])) return true;
  return false;
}

/* A named set of other axes whose groups have several ranks of a stage; -1: there is none. */
static int other_set(const struct tc_mesh *m, unsigned axes)
{
  for (int s = 0; s < TC_SETS; s++)
    if (m->group[s].named && m->group[s].size > 1 && s != tc_mesh_find(m, axes) && !(m->group[s].axes & TC_ON_PP)) return s;
  return -1;
}

static bool fits(const struct fault *f, const struct tc_mesh *m, const struct tc_graph *g, const struct tc_node *n)
{
  int at, other;
  if (n->op != TC_OP_RESHARD || tc_mesh_size(m, n->axes) < 2 || n->coll >= TC_COLLS) return false;
  if (!(f->roles >> n->role & 1) || !(f->colls >> n->coll & 1) || !(f->marks >> n->mark & 1)) return false;
  const bool stages = n->axes == TC_ON_PP;
  const struct { unsigned is; bool holds; } rule[] = {
    { STAGES, stages }, { NOT_STAGES, !stages }, { CONTROL, n->control }, { DATA, !n->control }, { ONCE, n->once_a_step },
    { EACH_MB, !n->once_a_step }, { HEAD, n->head }, { NOT_HEAD, !n->head } };
  for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
    if (f->is & rule[i].is && !rule[i].holds) return false;
  switch (f->how) {
  case SWAP: return has_twins(g, n, &at, &other);
  case OTHER_SET: return other_set(m, n->axes) >= 0;
  case EVERY_MB: case SKIP_LAST: return m->size[TC_MB] > 1;
  default: return true;
  }
}

/* Whether it is of the tensor, over some of the axes. */
static bool is_at(const struct tc_fault_place *at, const struct tc_graph *g, const struct tc_node *n)
{
  for (int k = 0; at && k < n->n_in; k++)
    if (n->axes & at->axes && !strcmp(g->tensor[tc_in(g, n, k)].name, at->tensor)) return true;
  return !at;
}

static int32_t find_node(const struct tc_breaks *b, const struct tc_graph *g)
{
  int32_t n = 0, found = -1;
  for (int pass = 0; pass < 2; pass++) {
    int32_t at = 0;
    for (int32_t i = 0; i < g->n_order; i++) {
      const struct tc_node *x = &g->node[g->order[i]];
      if (!fits(b->f, b->m, g, x) || !is_at(b->at, g, x)) continue;
      if (pass && at == n / 2) found = g->order[i];
      at++;
    }
    n = at;
  }
  return found;
}

static void struck(struct tc_broken *x, const char *what, const char *name, const char *on)
{
  struct tc_breaks *b = x->b;
  pthread_mutex_lock(&b->lock);
  b->struck = true;
  if (!*b->where) snprintf(b->where, sizeof b->where, "%s of %s%s%s", what, name, *on ? " on " : "", on);
  pthread_mutex_unlock(&b->lock);
}

/* ---- faults of the graph --------------------------------------------------------------- */

static int index_of_rows(const struct tc_broken *x)
{
  return tc_mesh_index(x->b->m, x->rank, tc_axes_of(TC_ROLE_BATCH) | tc_axes_of(TC_ROLE_TOKENS));
}

/* The factor of the loss, and of its gradient's seed, becomes that of the mean over this rank's own targets. */
static void mean_of_means(struct tc_broken *x, struct tc_graph *g)
{
  const struct tc_mesh *m = x->b->m;
  const unsigned rows = tc_axes_of(TC_ROLE_BATCH);
  const int64_t dp = tc_mesh_size(m, rows), N = g->tensor[g->tokens].dim[0], mine = N / dp;
  struct tc_inputs in = *x->b->in;
  in.rows = g->rows;
  const float all = (float)tc_inputs_targets(&in, 1, 0, N);
  const float own = (float)tc_inputs_targets(&in, 1, mine * tc_mesh_index(m, x->rank, rows), mine);
  for (int32_t i = 0; i < g->n_order && dp > 1; i++) {
    struct tc_node *n = &g->node[g->order[i]];
    if (n->mark != TC_U && (n->op == TC_OP_SUM || n->op == TC_OP_FILL)) n->attr.factor *= all / (float)dp / own;
  }
  if (dp > 1) struck(x, "factor", "the loss", "");
}

static void change_dropout(struct tc_broken *x, struct tc_graph *g, bool by_rank)
{
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *n = &g->node[g->order[i]];
    if (n->op != TC_OP_DROPOUT || (!by_rank && n->mark == TC_F)) continue;
    n->attr.site += by_rank ? 1000 * index_of_rows(x) : 1;
    if (!by_rank || index_of_rows(x)) struck(x, "mask", g->tensor[tc_out(g, n, 0)].name, "");
  }
}

/* The middle one of the nodes that add to an accumulator in each micro-batch. */
static void overwrite(struct tc_broken *x, struct tc_graph *g)
{
  int32_t *list = tc_malloc((size_t)g->n_order * sizeof *list), n = 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *k = &g->node[g->order[i]];
    if (k->acc && k->mark != TC_U && k->mark != TC_F && k->acc_first && x->b->m->size[TC_MB] > 1) list[n++] = k->id;
  }
  if (n) {
    struct tc_node *k = &g->node[list[n / 2]];
    k->acc = 0;
    struck(x, "accumulation", g->tensor[tc_out(g, k, 0)].name, "");
  }
  free(list);
}

static void stop_decay(struct tc_broken *x, struct tc_graph *g)
{
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *n = &g->node[g->order[i]];
    const int32_t p = tc_updates(g, n);
    unsigned axes = 0;
    if (p < 0 || n->attr.decay == 0) continue;
    for (int a = 0; a < TC_AXES; a++)
      if (tc_is_split(g->param[p].update.on[a].kind) && x->b->m->size[a] > 1) axes |= 1u << a;
    if (!axes) continue;
    if (tc_mesh_index(x->b->m, x->rank, axes)) n->attr.decay = 0;
    struck(x, "decay", g->param[p].name, tc_mesh_name(x->b->m, axes));
  }
}

/* Two products of forward of one shape, of two units of a stage: the second takes the weight of the first. */
static void other_input(struct tc_broken *x, struct tc_graph *g)
{
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *a = &g->node[g->order[i]];
    if (a->op != TC_OP_MATMUL || a->mark != TC_F || a->head) continue;
    for (int32_t j = i + 1; j < g->n_order; j++) {
      const struct tc_node *b = &g->node[g->order[j]];
      const struct tc_tensor *v = &g->tensor[tc_in(g, a, 1)], *w = &g->tensor[tc_in(g, b, 1)];
      if (b->op != TC_OP_MATMUL || b->mark != TC_F || b->unit == a->unit || g->unit[a->unit].stage != g->unit[b->unit].stage ||
          !is_shaped_alike(v, w) || !v->state || !w->state) continue;
      g->arg[b->in + 1] = v->id;
      struck(x, "weight", w->name, "");
      return;
    }
  }
}

static void on_graph(void *ctx, struct tc_graph *g, int kind)
{
  struct tc_broken *x = ctx;
  const struct fault *f = x->b->f;
  if (kind != TC_TRAIN) return;
  x->g = g;
  x->n_mb = x->b->m->size[TC_MB];
  switch (f->how) {
  case MEANS: mean_of_means(x, g); return;
  case DROPOUT_BY_RANK: case DROPOUT_AGAIN: change_dropout(x, g, f->how == DROPOUT_BY_RANK); return;
  case OVERWRITTEN: overwrite(x, g); return;
  case NO_DECAY: stop_decay(x, g); return;
  case OTHER_INPUT: other_input(x, g); return;
  default: x->node = find_node(x->b, g);
  }
  if (x->node < 0) return;
  struct tc_node *n = &g->node[x->node];
  if (f->how == EVERY_MB) n->once_a_step = false;
  struck(x, tc_coll_name[n->coll], g->tensor[tc_in(g, n, 0)].name, tc_mesh_name(x->b->m, n->axes));
  pthread_mutex_lock(&x->b->lock);
  x->b->place.axes = n->axes;
  snprintf(x->b->place.tensor, sizeof x->b->place.tensor, "%s", g->tensor[tc_in(g, n, 0)].name);
  pthread_mutex_unlock(&x->b->lock);
}

/* ---- faults of a collective ------------------------------------------------------------ */

static void scale(const struct tc_part *p, int dtype, double by)
{
  void *x = (void *)(uintptr_t)p->src;
  for (int64_t i = 0; i < p->count; i++) {
    if (dtype == TC_F32) ((float *)x)[i] *= (float)by;
    if (dtype == TC_F64) ((double *)x)[i] *= by;
    if (dtype == TC_BF16) ((uint16_t *)x)[i] = tc_f32_to_bf16((float)by * tc_bf16_to_f32(((uint16_t *)x)[i]));
  }
}

/* What a rank has where the others send nothing: its own part, and zeros. */
static void alone(const struct tc_coll_args *a, const struct tc_part *p, int coord, int size)
{
  const int64_t elem = (int64_t)tc_dtype_bytes(a->dtype), at = tc_block_start(p->count, p->block, coord, size) * elem;
  const int64_t mine = tc_block_start(p->count, p->block, coord + 1, size) * elem - at, all = p->count * elem;
  char *dst = p->dst;
  const char *src = p->src;
  const bool root = coord == a->root;
  switch (a->coll) {
  case TC_ALL_REDUCE: memmove(dst, src, (size_t)all); return;
  case TC_REDUCE: if (root) memmove(dst, src, (size_t)all); return;
  case TC_REDUCE_SCATTER: memmove(dst, src + at, (size_t)mine); return;
  case TC_BROADCAST: if (root && dst && src != dst) memmove(dst, src, (size_t)all); return;
  case TC_ALL_GATHER: case TC_GATHER:
    if (a->coll == TC_GATHER && !root) return;
    memmove(dst + at, src, (size_t)mine);
    memset(dst, 0, (size_t)at);
    memset(dst + at + mine, 0, (size_t)(all - at - mine));
    return;
  case TC_ALL_TO_ALL:
    memset(dst, 0, (size_t)all);
    memcpy(dst + at, src + at, (size_t)mine);
    return;
  case TC_RECV: memset(dst, 0, (size_t)all); return;
  default: return;
  }
}

/* The blocks of what is there after the collective, each in the place of the one before. */
static void rotate(const struct tc_coll_args *a, const struct tc_part *p)
{
  const int64_t elem = (int64_t)tc_dtype_bytes(a->dtype), all = p->count * elem, first = TC_MIN(p->block, p->count) * elem;
  char *dst = p->dst, *was = tc_malloc((size_t)all + 1);
  memcpy(was, dst, (size_t)all);
  memcpy(dst, was + first, (size_t)(all - first));
  memcpy(dst + all - first, was, (size_t)first);
  free(was);
}

/* What this rank sends of a part, in bytes. */
static int64_t sent_bytes(const struct tc_coll_args *a, const struct tc_part *p, int coord, int size)
{
  const int64_t elem = (int64_t)tc_dtype_bytes(a->dtype);
  if (a->coll == TC_RECV || (a->coll == TC_BROADCAST && coord != a->root)) return 0;
  if (a->coll != TC_ALL_GATHER && a->coll != TC_GATHER) return p->count * elem;
  return (tc_block_start(p->count, p->block, coord + 1, size) - tc_block_start(p->count, p->block, coord, size)) * elem;
}

/* The parts' content of the last step, or between stages of the last micro-batch. */
static void send_late(struct tc_broken *x, struct tc_coll_args *a, int coord, int size)
{
  if (!x->late) {
    x->n_parts = a->n_parts;
    x->late = tc_calloc((size_t)a->n_parts, sizeof *x->late);
    x->part = tc_calloc((size_t)a->n_parts, sizeof *x->part);
  }
  TC_ASSERT(a->n_parts == x->n_parts);
  memcpy(x->part, a->parts, (size_t)a->n_parts * sizeof *x->part);
  for (int i = 0; i < a->n_parts; i++) {
    struct late *l = &x->late[i];
    const size_t bytes = (size_t)sent_bytes(a, &a->parts[i], coord, size);
    char *now = tc_malloc(bytes + 1);
    if (bytes) memcpy(now, a->parts[i].src, bytes);
    TC_APPEND(l->had, l->n, l->cap, now);
    if (bytes && l->n > 1) x->part[i].src = l->had[l->n - 2];
  }
  a->parts = x->part;
}

/* The results of two gradients of a bucket, of one shape, go each to the place of the other. */
static void swap(struct tc_broken *x, const struct tc_node *n, struct tc_coll_args *a)
{
  int i, k;
  if (!x->part) x->part = tc_calloc((size_t)a->n_parts, sizeof *x->part);
  memcpy(x->part, a->parts, (size_t)a->n_parts * sizeof *x->part);
  TC_ASSERT(has_twins(x->g, n, &i, &k) && k < a->n_parts);
  void *was = x->part[i].dst;
  x->part[i].dst = x->part[k].dst;
  x->part[k].dst = was;
  a->parts = x->part;
}

static int on_collective(void *ctx, const struct tc_node *n, struct tc_coll_args *a, struct tc_err *err)
{
  struct tc_broken *x = ctx;
  if (!x->g || x->node < 0 || n != &x->g->node[x->node]) return 0;
  const struct tc_mesh *m = x->b->m;
  const int size = tc_mesh_size(m, n->axes), coord = tc_mesh_index(m, x->rank, n->axes), how = x->b->f->how;
  const bool last = ++x->calls == x->n_mb, skip = how == SKIP || (how == SKIP_LAST && last);
  const bool scales = how == TWICE || how == MEAN || (how == LOSE_ONE && coord == 1);
  for (int i = 0; i < a->n_parts; i++) {
    if (skip) alone(a, &a->parts[i], coord, size);
    if (scales) scale(&a->parts[i], a->dtype, how == TWICE ? 2 : how == MEAN ? 1.0 / size : 0);
  }
  if (how == LATE) send_late(x, a, coord, size);
  if (how == SWAP) swap(x, n, a);
  if (how != OTHER_SET && how != ROTATE) return skip;
  TC_TRY(tc_comm_run(x->comm[how == ROTATE ? tc_mesh_find(m, n->axes) : other_set(m, n->axes)], a, err));
  for (int i = 0; i < a->n_parts && how == ROTATE; i++)
    if (a->coll != TC_GATHER || coord == a->root) rotate(a, &a->parts[i]);
  return 1;
}

/* ---- the ranks ------------------------------------------------------------------------- */

struct tc_breaks *tc_breaks_new(const struct tc_proof_run *run, const struct tc_mesh *m, const struct tc_inputs *in)
{
  struct tc_breaks *b = tc_calloc(1, sizeof *b);
  TC_ASSERT(tc_break_what(run->fault));
  *b = (struct tc_breaks){ .f = &faults[run->fault - 1], .m = m, .in = in, .at = run->fault_at };
  pthread_mutex_init(&b->lock, NULL);
  return b;
}

void tc_breaks_free(struct tc_breaks *b)
{
  if (!b) return;
  pthread_mutex_destroy(&b->lock);
  free(b);
}

struct tc_broken *tc_breaks_rank(struct tc_breaks *b, int rank, struct tc_program_opts *o)
{
  struct tc_broken *x = tc_calloc(1, sizeof *x);
  *x = (struct tc_broken){ .b = b, .rank = rank, .node = -1 };
  o->tamper = on_graph;
  o->unchecked = true;                           /* its checks would find some */
  o->tamper_ctx = x;
  return x;
}

void tc_broken_exec(struct tc_broken *x, struct tc_exec_opts *o)
{
  memcpy(x->comm, o->comm, sizeof x->comm);
  o->tamper = on_collective;
  o->tamper_ctx = x;
}

void tc_broken_step(struct tc_broken *x) { x->calls = 0; }

void tc_broken_free(struct tc_broken *x)
{
  if (!x) return;
  for (int i = 0; i < x->n_parts; i++) {
    for (int k = 0; k < x->late[i].n; k++) free(x->late[i].had[k]);
    free(x->late[i].had);
  }
  TC_FREE(x->late, x->part, x);
}

void tc_breaks_found(const struct tc_breaks *b, struct tc_proof *p)
{
  p->faulted = b->struck;
  p->fault_at = b->place;
  snprintf(p->fault, sizeof p->fault, "%s: %s", b->f->what, b->where);
}
