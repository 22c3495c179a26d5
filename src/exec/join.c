/* join.c - neighbouring calls that the device does as one.
 *
 * What there is to join: a product and the GELU that reads it, or the GELU's gradient; the sum of a
 * gradient over its rows and the product that reads the same gradient for the weights; updates
 * that follow each other, each with the cast of its weight; the passes over the logits, forward and
 * backward. The program and its placements know nothing of it, its memory one thing (reads_on in
 * schedule/arena.c): here actions of one micro-batch are taken out of their places and run together at the
 * place of the last one.
 *
 * That is right if nobody notices:
 * - no action between touches what an earlier part writes, or writes what it reads (looked at as
 *   memory, since a buffer that is free after the part may be somebody else's by then);
 * - what a later part writes overlaps nothing that an earlier one reads or writes, but for what it
 *   overwrites: that it may read, in the same place, if the earlier part only wrote it;
 * - the product that only the GELU's gradient reads is not written at all, so nobody else reads it.
 * Everything is decided before the first step. */
#include "src/exec/impl.h"

#include <stdlib.h>
#include <string.h>

/* Actions to look back over; a layer that is recomputed stands between a product and its reader. */
enum { BACK = 16, MOST = 96 };

struct span { const char *at; int64_t bytes; };

struct joiner {
  struct tc_exec *x;
  struct tc_xprog *p;
  const struct tc_graph *g;
  const struct tc_actions *s;
  int32_t *reads;                /* [n_tensors] nodes that read it, views and later versions too */
};

static bool overlap(struct span a, struct span b)
{
  return a.bytes > 0 && b.bytes > 0 && a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}

static struct span span_of(const struct joiner *j, int32_t t, int32_t mb)
{
  const struct tc_exec_opts *o = &j->x->o;
  const int32_t *coord = o->mesh->coord + (size_t)o->rank * TC_AXES;
  return (struct span){ tc_exec_where(j->x, j->p, t, mb),
                        tc_tensor_local_bytes(&j->g->tensor[t], o->mesh, coord) };
}

/* Whether node a touches what node b writes, or writes what b reads. */
static bool collide(const struct joiner *j, int32_t a, int32_t a_mb, int32_t b, int32_t b_mb)
{
  const struct tc_node *na = &j->g->node[a], *nb = &j->g->node[b];
  for (int i = 0; i < na->n_in + na->n_out; i++)
    for (int k = 0; k < nb->n_in + nb->n_out; k++) {
      if (i < na->n_in && k < nb->n_in) continue;
      if (overlap(span_of(j, j->g->arg[i < na->n_in ? na->in + i : na->out + i - na->n_in], a_mb),
                  span_of(j, j->g->arg[k < nb->n_in ? nb->in + k : nb->out + k - nb->n_in], b_mb)))
        return true;
    }
  return false;
}

static bool listed(const int32_t *list, int n, int32_t k)
{
  for (int i = 0; i < n; i++)
    if (list[i] == k) return true;
  return false;
}

/* Action list[i] may run at the last of the list instead, as far as those between go. */
static bool may_wait(const struct joiner *j, const int32_t *list, int n, int i0)
{
  const struct tc_action *a = j->s->action, *mine = &a[list[i0]];
  for (int32_t k = list[i0] + 1; k < list[n - 1]; k++) {
    const struct tc_xjoin *with = j->p->join[k];
    if (listed(list, n, k) || (with && with->at != k)) continue;
    for (int32_t i = 0; i < (with ? with->n : 1); i++)
      if (collide(j, with ? with->node[i] : a[k].node, a[k].mb, mine->node, mine->mb)) return false;
  }
  return true;
}

/* What node b writes is apart from what a reads, and from what it writes. */
static bool apart(const struct joiner *j, int32_t a, int32_t b, int32_t mb, bool inputs_only)
{
  const struct tc_node *na = &j->g->node[a], *nb = &j->g->node[b];
  for (int i = 0; i < na->n_in + (inputs_only ? 0 : na->n_out); i++)
    for (int k = 0; k < nb->n_out; k++)
      if (overlap(span_of(j, j->g->arg[i < na->n_in ? na->in + i : na->out + i - na->n_in], mb),
                  span_of(j, tc_out(j->g, nb, k), mb)))
        return false;
  return true;
}

static bool on_device(const struct joiner *j, const struct tc_action *a)
{
  return a->kind == TC_RUN && !j->p->node[a->node].nowhere
         && j->g->node[a->node].op != TC_OP_RESHARD && tc_exec_is_alone(j->x, j->p, a);
}

/* The actions as one, if the device can: their calls are made ready for this micro-batch first. */
static void join(struct joiner *j, const int32_t *action, int n, const char *name)
{
  struct tc_exec *x = j->x;
  struct tc_device *d = x->o.device;
  const int32_t mb = j->s->action[action[0]].mb;
  struct tc_xjoin *y = tc_calloc(1, sizeof *y);
  *y = (struct tc_xjoin){ .name = name, .from = action[0], .at = action[n - 1], .n = n };
  y->node = tc_calloc((size_t)n, sizeof *y->node);
  y->call = tc_calloc((size_t)n, sizeof *y->call);
  for (int i = 0; i < n; i++) {
    y->node[i] = j->s->action[action[i]].node;
    y->call[i] = &j->p->node[y->node[i]].call;
    tc_exec_ready(x, j->p, y->node[i], mb);
  }
  const bool can = d->ops->joined->can(d, y->call, n);
  if (can) {
    int64_t *most = &x->kscratch_bytes[TC_DEVICE];
    *most = TC_MAX(*most, d->ops->joined->scratch(d, y->call, n));
  }
  for (int i = 0; i < n; i++) {
    tc_exec_done(x, j->p, y->node[i], mb);
    if (can) j->p->join[action[i]] = y;
  }
  if (can) return;
  free(y->node);
  free(y->call);
  free(y);
}

/* ---- products ------------------------------------------------------------------------------- */

/* The action before k that runs node `id` for the same micro-batch; -1: none near. */
static int32_t find_back(const struct joiner *j, int32_t k, int32_t id)
{
  const struct tc_action *a = j->s->action;
  for (int32_t i = k - 1; i >= 0 && i >= k - BACK; i--)
    if (a[i].kind == TC_RUN && a[i].node == id && a[i].mb == a[k].mb) return i;
  return -1;
}

/* The one that sums the rows of the same tensor as action k reads; -1: none near. */
static int32_t find_bias_bwd(const struct joiner *j, int32_t k)
{
  const struct tc_action *a = j->s->action;
  const int32_t t = tc_in(j->g, &j->g->node[a[k].node], 0);
  for (int32_t i = k - 1; i >= 0 && i >= k - BACK; i--) {
    const struct tc_node *n = &j->g->node[a[i].node];
    if (a[i].kind == TC_RUN && a[i].mb == a[k].mb && n->op == TC_OP_BIAS_BWD
        && tc_in(j->g, n, 0) == t)
      return i;
  }
  return -1;
}

static void join_product(struct joiner *j, int32_t k)
{
  const struct tc_action *a = j->s->action;
  const struct tc_node *n = &j->g->node[a[k].node], *first;
  const bool back = n->op == TC_OP_GELU_BWD;
  int32_t from = -1;
  if (n->op == TC_OP_GELU || back) {
    const struct tc_tensor *t = &j->g->tensor[tc_in(j->g, n, 0)];
    if (t->node < 0 || j->g->node[t->node].op != TC_OP_MATMUL) return;
    if (back && (j->reads[t->id] != 1 || t->state)) return;
    from = find_back(j, k, t->node);
  } else if (n->op == TC_OP_MATMUL) {
    from = find_bias_bwd(j, k);
  }
  if (from < 0 || j->p->join[from] || j->p->join[k] || !on_device(j, &a[from])) return;
  first = &j->g->node[a[from].node];
  const int32_t list[] = { from, k };
  if (!apart(j, first->id, n->id, a[k].mb, back) || !may_wait(j, list, 2, 0)) return;
  join(j, list, 2, n->op == TC_OP_GELU ? "matmul+gelu"
                                       : back ? "matmul+gelu_bwd" : "bias_bwd+matmul");
}

/* ---- updates -------------------------------------------------------------------------------- */

/* Whether action k can be joined to those: an update like them, or the cast of the last one. */
static bool goes_on(const struct joiner *j, const int32_t *list, int n, int32_t k)
{
  const struct tc_action *a = j->s->action;
  const struct tc_node *new = &j->g->node[a[k].node];
  const struct tc_node *first = &j->g->node[a[list[0]].node], *last = &j->g->node[a[list[n - 1]].node];
  const bool cast = new->op == TC_OP_CAST && last->op == first->op
                    && tc_in(j->g, new, 0) == tc_out(j->g, last, 0);
  if (!on_device(j, &a[k]) || j->p->join[k] || a[k].mb != a[list[0]].mb
      || (new->op != first->op && !cast))
    return false;
  for (int i = 0; i < n; i++)
    if (collide(j, a[list[i]].node, a[k].mb, new->id, a[k].mb) && !(cast && i == n - 1))
      return false;
  return !cast || apart(j, last->id, new->id, a[k].mb, false);
}

/* From action k on; the first action after those that were looked at. */
static int32_t join_updates(struct joiner *j, int32_t k)
{
  const struct tc_action *a = j->s->action;
  int32_t list[MOST] = { k };
  int n = 1, updates = 1;
  for (k++; k < j->s->n && n < MOST; k++) {
    if (a[k].kind == TC_RUN && j->p->node[a[k].node].nowhere) continue;
    if (!goes_on(j, list, n, k)) break;
    list[n++] = k;
    updates += j->g->node[a[k].node].op != TC_OP_CAST;
  }
  if (n > 1) join(j, list, n, updates > 1 ? "updates" : "update+cast");
  return k;
}

/* ---- the loss head -------------------------------------------------------------------------- */

enum { HEAD_MOST = 4 };
/* In the order in which programs have them; of those that begin alike the longest first. */
static const struct { const char *name; int n, op[HEAD_MOST]; } heads[] = {
  { "rowmax+pick+sumexp+nll", 4, { TC_OP_ROWMAX, TC_OP_PICK, TC_OP_SUMEXP, TC_OP_NLL } },
  { "rowmax+pick+sumexp", 3, { TC_OP_ROWMAX, TC_OP_PICK, TC_OP_SUMEXP } },
  { "rowmax+sumexp", 2, { TC_OP_ROWMAX, TC_OP_SUMEXP } },
  { "nll_bwd+sumexp_bwd+pick_bwd", 3, { TC_OP_NLL_BWD, TC_OP_SUMEXP_BWD, TC_OP_PICK_BWD } },
  { "sumexp_bwd+pick_bwd", 2, { TC_OP_SUMEXP_BWD, TC_OP_PICK_BWD } },
};

/* The next action after k, before `end`, of this op and k's micro-batch; -1: none that is alone. */
static int32_t find_next(const struct joiner *j, int32_t k, int32_t end, int op)
{
  const struct tc_action *a = j->s->action;
  for (int32_t i = k + 1; i < end; i++)
    if (on_device(j, &a[i]) && j->g->node[a[i].node].op == op && a[i].mb == a[k].mb)
      return j->p->join[i] ? -1 : i;
  return -1;
}

/* What node b, a later part, writes is apart from what a reads and writes; or b overwrites what a
 * made, where a reads nothing. */
static bool apart_or_over(const struct joiner *j, int32_t a, int32_t b, int32_t mb)
{
  const struct tc_node *na = &j->g->node[a], *nb = &j->g->node[b];
  const int32_t made = tc_out(j->g, na, 0), over = tc_out(j->g, nb, 0);
  if (na->n_out != 1 || nb->n_out != 1 || j->g->tensor[over].overwrites != made)
    return apart(j, a, b, mb, false);
  const struct span x = span_of(j, made, mb), y = span_of(j, over, mb);
  return x.at == y.at && x.bytes == y.bytes && apart(j, a, b, mb, true);
}

static void join_those(struct joiner *j, const int32_t *list, int n, const char *name)
{
  const struct tc_action *a = j->s->action;
  for (int i = 0; i < n - 1; i++) {
    if (!may_wait(j, list, n, i)) return;
    for (int k = i + 1; k < n; k++)
      if (!apart_or_over(j, a[list[i]].node, a[list[k]].node, a[list[i]].mb)) return;
  }
  join(j, list, n, name);
}

static void join_head(struct joiner *j, int32_t k)
{
  const int op = j->g->node[j->s->action[k].node].op;
  const int32_t end = TC_MIN(j->s->n, k + BACK);
  for (size_t h = 0; h < sizeof heads / sizeof *heads && !j->p->join[k]; h++) {
    int32_t list[HEAD_MOST] = { k };
    int n = 1;
    while (heads[h].op[0] == op && n < heads[h].n
           && (list[n] = find_next(j, list[n - 1], end, heads[h].op[n])) >= 0)
      n++;
    if (n == heads[h].n) join_those(j, list, n, heads[h].name);
  }
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

void tc_exec_join(struct tc_exec *x, struct tc_xprog *p)
{
  struct joiner j = { x, p, p->p->graph, p->p->actions, NULL };
  p->join = tc_calloc((size_t)j.s->n + 1, sizeof *p->join);
  if (!x->o.device->ops->joined || x->o.apart) return;
  j.reads = count_reads(j.g);
  for (int32_t k = 0; k < j.s->n;) {
    const struct tc_action *a = &j.s->action[k];
    const struct tc_node *n = &j.g->node[a->node];
    if (!on_device(&j, a)) k++;
    else if (tc_updates(j.g, n) >= 0) k = join_updates(&j, k);
    else if (n->head && n->op != TC_OP_MATMUL) join_head(&j, k++);
    else join_product(&j, k++);
  }
  free(j.reads);
}

void tc_exec_unjoin(struct tc_xprog *p)
{
  for (int32_t k = 0; p->join && k < p->p->actions->n; k++) {
    struct tc_xjoin *y = p->join[k];
    if (!y || y->at != k) continue;
    free(y->node);
    free(y->call);
    free(y);
  }
  free(p->join);
}

bool tc_exec_put_off(const struct tc_xprog *p, int32_t k, int32_t root)
{
  const struct tc_graph *g = p->p->graph;
  for (int32_t i = k + 1; i < p->p->actions->n && i <= k + BACK; i++) {
    const struct tc_xjoin *y = p->join[i];
    if (!y || y->at != i || y->from >= k) continue;
    for (int32_t m = 0; m < y->n - 1; m++)
      for (int a = 0; a < g->node[y->node[m]].n_in; a++)
        if (tc_tensor_root(g, tc_in(g, &g->node[y->node[m]], a)) == root) return true;
  }
  return false;
}

int tc_exec_run_joined(struct tc_exec *x, struct tc_xprog *p, const struct tc_xjoin *j, int32_t mb,
                       struct tc_err *err)
{
  struct tc_device *d = x->o.device;
  for (int32_t i = 0; i < j->n; i++) tc_exec_ready(x, p, j->node[i], mb);
  const int rc = d->ops->joined->run(d, j->call, j->n);
  for (int32_t i = 0; i < j->n; i++) tc_exec_done(x, p, j->node[i], mb);
  if (rc < 0 && tc_device_check(d, err) == 0) tc_fail(err, rc, "%s failed", j->name);
  return rc;
}
