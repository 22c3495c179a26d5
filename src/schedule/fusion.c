/* fusion.c - finds the groups of fusion.def in a list of actions, and leaves out those that memory does not fit.
 *
 * What is found first does not depend on memory: two operands collide if they share bytes of one storage in
 * one micro-batch (views.c). A part may run at the place of the last one if it collides with no action between,
 * each at its own place. That holds for any choice of groups: where two groups change the order of two parts,
 * one of these stands between the parts of the other's group. */
#include "src/schedule/fusion.h"
#include "src/schedule/impl.h"

#include <stdlib.h>

#define OPS(...) { __VA_ARGS__ }
#define FUSION(id, name, ops, link, flags, what) \
  { name, sizeof((int[])ops) / sizeof(int), ops, TC_FUSION_##link, flags, what },
const struct tc_fusion_rule tc_fusion_rule[TC_FUSIONS] = {
#include "src/schedule/fusion.def"
};
#undef FUSION

struct finder {
  const struct tc_graph *g;
  const struct tc_actions *s;
  const struct tc_mesh *m;
  struct tc_views *v;
  int32_t *reads;                /* [n_tensors]: nodes that read it, views and later versions too */
  unsigned flags;                /* that a rule must have */
  struct tc_fusions *f;
};

/* ---- which bytes operands share ------------------------------------------------------------- */

/* Bytes of a storage in a micro-batch. */
struct span { int64_t key, at, bytes; };

static struct span span_of(const struct finder *x, int32_t t, int32_t mb)
{
  const int32_t root = tc_tensor_root(x->g, t);
  const bool one = x->g->tensor[root].state || tc_made_once(x->g, root);
  return (struct span){ (int64_t)root * x->s->n_mb + (one ? 0 : mb), x->v->off[t], x->v->bytes[t] };
}

static bool overlap(struct span a, struct span b)
{
  return a.key == b.key && a.bytes > 0 && b.bytes > 0 && a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}

/* Which operands of two actions are compared: all but what both only read; what the second writes with
 * what the first reads and writes, or with what the first reads. */
enum pairs { ANY_WRITE, SECOND_WRITES, SECOND_WRITES_FIRST_READS };

static bool shares(const struct finder *x, int32_t a, int32_t b, enum pairs what)
{
  const struct tc_action *A = &x->s->action[a], *B = &x->s->action[b];
  const struct tc_node *na = &x->g->node[A->node], *nb = &x->g->node[B->node];
  const int first = what == SECOND_WRITES_FIRST_READS ? na->n_in : na->n_in + na->n_out;
  for (int i = 0; i < first; i++) {
    const struct span one = span_of(x, tc_operand(x->g, na, i), A->mb);
    const int from = what == ANY_WRITE && i >= na->n_in ? 0 : nb->n_in;
    for (int k = from; k < nb->n_in + nb->n_out; k++)
      if (overlap(one, span_of(x, tc_operand(x->g, nb, k), B->mb))) return true;
  }
  return false;
}

/* ---- whether parts may be one call ---------------------------------------------------------- */

/* Something is to be done on this rank: a transfer reads what is here, too. */
static bool is_here(const struct finder *x, int32_t k)
{
  const struct tc_node *n = &x->g->node[x->s->action[k].node];
  if (n->op == TC_OP_RESHARD) return true;
  for (int o = 0; o < n->n_out; o++)
    if (x->v->here[tc_out(x->g, n, o)]) return true;
  return false;
}

/* A transfer among one rank, in place. */
static bool does_nothing(const struct finder *x, int32_t k)
{
  const struct tc_node *n = &x->g->node[x->s->action[k].node];
  if (n->op != TC_OP_RESHARD || tc_mesh_size(x->m, n->axes) > 1 || n->coll == TC_COPY || n->n_in != n->n_out) return false;
  for (int i = 0; i < n->n_in; i++)
    if (x->g->tensor[tc_out(x->g, n, i)].overwrites != tc_in(x->g, n, i)) return false;
  return true;
}

/* The device does it in one call. */
static bool is_call(const struct finder *x, int32_t k)
{
  const struct tc_node *n = &x->g->node[x->s->action[k].node];
  return x->s->action[k].kind == TC_RUN && n->op != TC_OP_RESHARD && n->op != TC_OP_DATA
         && n->space == TC_DEVICE && is_here(x, k);
}

static bool is_part(const int32_t *part, int n, int32_t k)
{
  for (int i = 0; i < n; i++)
    if (part[i] == k) return true;
  return false;
}

/* Part i may run at the last part's place. */
static bool may_wait(const struct finder *x, const int32_t *part, int n, int i)
{
  for (int32_t k = part[i] + 1; k < part[n - 1]; k++)
    if (!is_part(part, n, k) && !does_nothing(x, k) && shares(x, k, part[i], ANY_WRITE)) return false;
  return true;
}

/* What b, a later part, writes does not overlap what a reads and writes, but for what the rule allows. */
static bool is_clear(const struct finder *x, int32_t a, int32_t b, unsigned flags)
{
  const struct tc_action *A = &x->s->action[a], *B = &x->s->action[b];
  const struct tc_node *na = &x->g->node[A->node], *nb = &x->g->node[B->node];
  bool replaces = false;
  if ((flags & TC_FUSION_REPLACE) && na->n_out == 1 && nb->n_out == 1) {
    const int32_t out = tc_out(x->g, na, 0), over = tc_out(x->g, nb, 0);
    replaces = x->g->tensor[over].overwrites == out && x->v->bytes[out] == x->v->bytes[over];
  }
  return !shares(x, a, b, replaces || (flags & TC_FUSION_UNREAD) ? SECOND_WRITES_FIRST_READS : SECOND_WRITES);
}

static void keep(struct tc_fusions *f, struct tc_fusion group)
{
  TC_APPEND(f->group, f->n, f->cap, group);
}

static void add(struct finder *x, int rule, const int32_t *part, int n)
{
  struct tc_fusions *f = x->f;
  if ((tc_fusion_rule[rule].flags & x->flags) != x->flags) return;
  keep(f, (struct tc_fusion){ rule, f->n_actions, n, x->s->action[part[0]].mb });
  for (int i = 0; i < n; i++) TC_APPEND(f->action, f->n_actions, f->cap_actions, part[i]);
}

static void try_parts(struct finder *x, int rule, const int32_t *part, int n)
{
  for (int i = 0; i < n - 1; i++) {
    if (!may_wait(x, part, n, i)) return;
    const unsigned flags = tc_fusion_rule[rule].flags & ~(i ? (unsigned)TC_FUSION_UNREAD : 0u);
    for (int k = i + 1; k < n; k++)
      if (!is_clear(x, part[i], part[k], flags)) return;
  }
  add(x, rule, part, n);
}

/* ---- products, found from the second part ---------------------------------------------------- */

/* The input by which a pair's last part is found to belong to its first. */
static int shared_input(const struct tc_fusion_rule *r) { return r->link == TC_FUSION_ADDS; }

/* The nearest action before k, of its micro-batch, that is the rule's first part; -1: none near. */
static int32_t find_first(const struct finder *x, const struct tc_fusion_rule *r, int32_t k)
{
  const struct tc_action *a = x->s->action;
  const int32_t t = tc_in(x->g, &x->g->node[a[k].node], shared_input(r));
  for (int32_t i = k - 1; i >= 0 && i >= k - TC_FUSION_REACH; i--) {
    const struct tc_node *n = &x->g->node[a[i].node];
    if (a[i].kind == TC_RUN && a[i].mb == a[k].mb && n->op == r->op[0]
        && (r->link == TC_FUSION_SHARES ? tc_in(x->g, n, 0) == t : x->g->tensor[t].node == n->id))
      return i;
  }
  return -1;
}

/* The nearest action after k, before `end`, of its micro-batch, that is of this op and reads first what k makes; -1. */
static int32_t find_reader(const struct finder *x, int32_t k, int32_t end, int op)
{
  const struct tc_action *a = x->s->action;
  const int32_t t = tc_out(x->g, &x->g->node[a[k].node], 0);
  for (int32_t i = k + 1; i < end; i++) {
    const struct tc_node *n = &x->g->node[a[i].node];
    if (n->op == op && a[i].mb == a[k].mb && tc_in(x->g, n, 0) == t && is_call(x, i)) return i;
  }
  return -1;
}

static void find_product(struct finder *x, int rule, int32_t k)
{
  const struct tc_fusion_rule *r = &tc_fusion_rule[rule];
  const struct tc_node *n = &x->g->node[x->s->action[k].node];
  const bool other_fn = (n->op == TC_OP_ACT || n->op == TC_OP_ACT_BWD) && n->attr.act != TC_FN_GELU_TANH;
  if (n->op != r->op[1] || other_fn || n->n_in <= shared_input(r) || (r->link == TC_FUSION_SHARES && n->mark != TC_W)) return;
  const struct tc_tensor *t = &x->g->tensor[tc_in(x->g, n, shared_input(r))];
  if ((r->flags & TC_FUSION_UNREAD) && (x->reads[t->id] != 1 || t->state)) return;
  int32_t part[3] = { find_first(x, r, k), k, -1 };
  if (part[0] < 0 || !is_call(x, part[0])) return;
  if (r->n > 2) part[2] = find_reader(x, k, TC_MIN(x->s->n, part[0] + TC_FUSION_REACH + 1), r->op[2]);
  if (r->n == 2 || part[2] >= 0) try_parts(x, rule, part, r->n);
}

/* ---- the loss head, found from the first part ------------------------------------------------ */

static int32_t find_next(const struct finder *x, int32_t k, int32_t end, int op)
{
  const struct tc_action *a = x->s->action;
  for (int32_t i = k + 1; i < end; i++)
    if (x->g->node[a[i].node].op == op && a[i].mb == a[k].mb && is_call(x, i)) return i;
  return -1;
}

static void find_chain(struct finder *x, int rule, int32_t k)
{
  const struct tc_fusion_rule *r = &tc_fusion_rule[rule];
  const struct tc_node *node = &x->g->node[x->s->action[k].node];
  const int32_t end = TC_MIN(x->s->n, k + TC_FUSION_REACH);
  int32_t part[TC_FUSION_OPS] = { k };
  int n = 1;
  if (!node->head || node->op != r->op[0]) return;
  while (n < r->n && (part[n] = find_next(x, part[n - 1], end, r->op[n])) >= 0) n++;
  if (n == r->n) try_parts(x, rule, part, n);
}

/* ---- updates -------------------------------------------------------------------------------- */

/* Whether action k can be run with those before: an update like them, or the cast of the last one. */
static bool goes_on(const struct finder *x, const int32_t *part, int n, int32_t k)
{
  const struct tc_action *a = x->s->action;
  const struct tc_node *new = &x->g->node[a[k].node];
  const struct tc_node *first = &x->g->node[a[part[0]].node], *last = &x->g->node[a[part[n - 1]].node];
  const bool cast = new->op == TC_OP_CAST && last->op == first->op
                    && tc_in(x->g, new, 0) == tc_out(x->g, last, 0);
  if (!is_call(x, k) || a[k].mb != a[part[0]].mb || (new->op != first->op && !cast)) return false;
  for (int i = 0; i < n - cast; i++)
    if (shares(x, part[i], k, ANY_WRITE)) return false;
  return !cast || is_clear(x, part[n - 1], k, 0);
}

/* Finds a run from action k on; returns the first action after those that were looked at. */
static int32_t find_run(struct finder *x, int32_t k)
{
  const struct tc_action *a = x->s->action;
  int32_t part[TC_FUSION_MOST] = { k };
  int n = 1, updates = 1;
  for (k++; k < x->s->n && n < TC_FUSION_MOST; k++) {
    if (!is_here(x, k)) continue;
    if (!goes_on(x, part, n, k)) break;
    part[n++] = k;
    updates += x->g->node[a[k].node].op != TC_OP_CAST;
  }
  if (n > 1) add(x, updates > 1 ? TC_FUSE_UPDATES : TC_FUSE_UPDATE_CAST, part, n);
  return k;
}

/* ---- programs ------------------------------------------------------------------------------- */

static int32_t *count_reads(const struct tc_graph *g)
{
  int32_t *reads = tc_calloc((size_t)g->n_tensors + 1, sizeof *reads);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) reads[tc_in(g, n, k)]++;
  }
  for (int32_t t = 0; t < g->n_tensors; t++) {
    if (g->tensor[t].overwrites >= 0) reads[g->tensor[t].overwrites]++;
    if (g->tensor[t].base >= 0) reads[g->tensor[t].base]++;
  }
  return reads;
}

struct tc_fusions *tc_fusions_new(const struct tc_graph *g, const struct tc_actions *s,
                                  const struct tc_mesh *m, const int32_t coord[TC_AXES], unsigned flags)
{
  struct finder x = { .g = g, .s = s, .m = m, .flags = flags };
  x.v = tc_views_new(g, m, coord);
  x.reads = count_reads(g);
  x.f = tc_calloc(1, sizeof *x.f);
  for (int32_t k = 0; k < s->n;) {
    const bool update = is_call(&x, k) && tc_updates(g, &g->node[s->action[k].node]) >= 0;
    for (int r = 0; r < TC_FUSIONS && !update && is_call(&x, k); r++) {
      const int link = tc_fusion_rule[r].link;
      if (link == TC_FUSION_CHAIN) find_chain(&x, r, k);
      else if (link != TC_FUSION_RUN) find_product(&x, r, k);
    }
    k = update ? find_run(&x, k) : k + 1;
  }
  tc_views_free(x.v);
  free(x.reads);
  return x.f;
}

void tc_fusions_free(struct tc_fusions *f)
{
  if (!f) return;
  TC_FREE(f->group, f->action, f);
}

/* ---- memory --------------------------------------------------------------------------------- */

struct placed {
  const struct tc_graph *g;
  const struct tc_actions *s;
  const struct tc_arena *a;
  int64_t *bytes;                /* [n_tensors], of storages */
};

/* Whether an operand of action b lies where another storage is that action a uses. */
static bool takes_place(const struct placed *p, int32_t a, int32_t b)
{
  const struct tc_action *A = &p->s->action[a], *B = &p->s->action[b];
  const struct tc_node *na = &p->g->node[A->node], *nb = &p->g->node[B->node];
  for (int i = 0; i < na->n_in + na->n_out; i++) {
    const int32_t x = tc_tensor_root(p->g, tc_operand(p->g, na, i));
    const int64_t at = tc_arena_at(p->a, x, A->mb);
    if (p->g->tensor[x].state) continue;
    for (int k = 0; k < nb->n_in + nb->n_out; k++) {
      const int32_t y = tc_tensor_root(p->g, tc_operand(p->g, nb, k));
      const int64_t other = tc_arena_at(p->a, y, B->mb);
      const bool same = x == y && (A->mb == B->mb || tc_made_once(p->g, x));
      if (!same && p->a->region[x] == p->a->region[y] && at < other + p->bytes[y]
          && other < at + p->bytes[x])
        return true;
    }
  }
  return false;
}

static bool is_update(const struct placed *p, int32_t action)
{
  return tc_op_info[p->g->node[p->s->action[action].node].op].flags & TC_OPF_UPDATE;
}

/* Parts 0 .. n - 2 keep their memory from after part m, m > 0, on to part n - 1. */
static bool fits(const struct placed *p, const int32_t *part, int m, int n)
{
  for (int i = 0; i < n - 1; i++)
    for (int32_t k = TC_MAX(part[i], part[m - 1]) + 1; k <= part[n - 1]; k++)
      if (takes_place(p, part[i], k)) return false;
  return true;
}

/* A run ends where memory is used again, and the next one begins there. */
static void keep_runs(const struct placed *p, struct tc_fusions *f, struct tc_fusion run)
{
  const int32_t end = run.first + run.n;
  for (int32_t first = run.first, next; first < end; first = next) {
    int updates = 1;
    for (next = first + 1; next < end; next++) {
      if (!fits(p, f->action + first, next - first, next - first + 1)) break;
      updates += is_update(p, f->action[next]);
    }
    run.first = first;
    run.n = next - first;
    run.rule = updates > 1 ? TC_FUSE_UPDATES : TC_FUSE_UPDATE_CAST;
    if (run.n > 1) keep(f, run);
    while (next < end && !is_update(p, f->action[next])) next++;
  }
}

void tc_fusions_fit(struct tc_fusions *f, const struct tc_graph *g, const struct tc_actions *s,
                    const struct tc_arena *a, const struct tc_mesh *m, const int32_t coord[TC_AXES])
{
  struct placed p = { g, s, a, tc_calloc((size_t)g->n_tensors + 1, sizeof *p.bytes) };
  struct tc_fusion *all = f->group;
  const int32_t n = f->n;
  for (int32_t t = 0; t < g->n_tensors; t++)
    if (tc_tensor_root(g, t) == t && a->off[t] >= 0) p.bytes[t] = tc_stored_bytes(g, m, coord, t);
  f->group = NULL;
  f->n = f->cap = 0;
  for (int32_t i = 0; i < n; i++) {
    if (tc_fusion_rule[all[i].rule].link == TC_FUSION_RUN) keep_runs(&p, f, all[i]);
    else if (fits(&p, f->action + all[i].first, 1, all[i].n)) keep(f, all[i]);
  }
  TC_FREE(all, p.bytes);
}
