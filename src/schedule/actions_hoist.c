/* actions_hoist.c - the second walk: transfers come as early as they may. All-gathers of weights are moved ahead of their
 * use, by groups of a unit's, `prefetch` groups at most. Those of activations follow what makes or reads these, where the
 * program has other work before them. What is sent between stages in every micro-batch is added, in
 * the one order that all ranks keep (tc_pipeline_transfers): what an item makes as soon as it is made, what it needs before it, or
 * earlier, `prefetch` + 1 receives at most. */
#include "src/schedule/impl.h"

#include <stdlib.h>

/* A send between stages in every micro-batch, and its place in the global order of transfers. */
struct stage_send { int32_t node, from, to; uint8_t work; };
/* What is being received: the storage it goes to, in a micro-batch. */
struct received { int32_t root, mb; };

struct hoist {
  const struct step *st;
  const struct tc_graph *g;
  const struct tasks *in;
  struct tasks *out;
  /* All-gathers of weights. */
  bool *feeds;                   /* [node] a local reshard of a weight, whose result is transferred */
  int32_t *gather, n_gather;     /* their tasks, in groups of a unit's */
  int32_t *free_at;              /* task after which the result of each may be overwritten; parallel */
  int32_t *group, n_groups;      /* first index in gather[] of each group */
  int32_t prefetched, reached;   /* groups issued; groups whose place in the order was reached */
  /* Transfers of activations, by task. */
  int32_t *follows;              /* the task that a transfer follows; -1: the one before it */
  int32_t *follower, *next;      /* the first transfer that follows a task; the next one of the same; -1 */
  /* The pipeline. */
  struct stage_send *send; int32_t n_sends, cap_sends;
  bool *is_sent;                 /* [node] it makes what one of them sends */
  int32_t head;                  /* of this rank's queue of transfers: the next to issue */
  int32_t *last_mb;              /* [stage][work]: the last micro-batch that ran here; -1 */
  struct received *received; int32_t n_received, cap_received;     /* issued, and not read yet */
};

/* Drops from received[] what the task touches: actions_wait.c waits for these transfers before it. */
static void read_received(struct hoist *c, struct task x)
{
  const struct tc_node *n = &c->g->node[x.node];
  for (int k = 0; k < n->n_in + n->n_out && c->n_received; k++) {
    const int32_t root = tc_tensor_root(c->g, tc_operand(c->g, n, k));
    for (int32_t i = c->n_received - 1; i >= 0; i--)
      if (c->received[i].root == root && c->received[i].mb == x.mb) c->received[i] = c->received[--c->n_received];
  }
}

static void add(struct hoist *c, struct task x)
{
  const struct tc_node *n = &c->g->node[x.node];
  read_received(c, x);
  TC_APPEND(c->out->task, c->out->n, c->out->cap, x);
  if (!tc_sends_each_mb(n) || n->root != c->st->o.at) return;
  TC_APPEND(c->received, c->n_received, c->cap_received,
            (struct received){ tc_tensor_root(c->g, tc_out(c->g, n, 0)), x.mb });
}

/* ---- gathers --------------------------------------------------------------------------- */

/* An all-gather of a weight, or a local reshard whose result such an all-gather reads. */
static bool is_gather(const struct hoist *c, const struct tc_node *n)
{
  return n->op == TC_OP_RESHARD && n->role == TC_ROLE_GATHER &&
         (!tc_coll_is_local(n->coll) || c->feeds[n->id]);
}

/* Local reshards of weights whose result is transferred. */
static void find_feeds(struct hoist *c)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = g->n_order - 1; i >= 0; i--) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in && is_gather(c, n); k++) {
      int32_t maker = g->tensor[tc_in(g, n, k)].node;
      if (maker >= 0 && tc_coll_is_local(g->node[maker].coll)) c->feeds[maker] = true;
    }
  }
}

/* Consecutive gathers of one unit, phase and micro-batch are a group, which is issued together. */
static void find_groups(struct hoist *c)
{
  const struct tc_graph *g = c->g;
  int32_t *read = tc_no_indices((size_t)g->n_nodes);   /* last so far */
  c->free_at = tc_malloc((size_t)c->in->n * sizeof *c->free_at);
  c->gather = tc_malloc((size_t)c->in->n * sizeof *c->gather);
  c->group = tc_malloc((size_t)(c->in->n + 1) * sizeof *c->group);
  for (int32_t i = 0; i < c->in->n; i++) {
    const struct tc_node *n = &g->node[c->in->task[i].node];
    for (int k = 0; k < n->n_in; k++)
      if (g->tensor[tc_in(g, n, k)].node >= 0) read[g->tensor[tc_in(g, n, k)].node] = i;
    if (!is_gather(c, n)) continue;
    c->free_at[c->n_gather] = read[n->id];
    const struct task *last = c->n_gather ? &c->in->task[c->gather[c->n_gather - 1]] : NULL;
    const struct tc_node *b = last ? &c->g->node[last->node] : NULL;
    bool f = n->mark == TC_F, same = last && b->unit == n->unit && last->mb == c->in->task[i].mb &&
             (b->mark == TC_F) == f && (b->mark == TC_U) == (n->mark == TC_U);
    if (!same) c->group[c->n_groups++] = c->n_gather;
    c->gather[c->n_gather++] = i;
  }
  c->group[c->n_groups] = c->n_gather;
  free(read);
}

/* Whether all readers of what a group gathered the time before are tasks before `at`. */
static bool is_free(const struct hoist *c, int32_t group, int32_t at)
{
  for (int32_t i = c->group[group]; i < c->group[group + 1]; i++)
    if (c->free_at[i] >= at) return false;
  return true;
}

/* At the place of a group of gathers: issues it, and the groups up to `prefetch` ahead. */
static void prefetch_groups(struct hoist *c, int32_t at)
{
  int32_t upto = TC_MIN(c->reached + 1 + c->st->o.prefetch, c->n_groups);
  for (; c->prefetched < upto && is_free(c, c->prefetched, at); c->prefetched++)
    for (int32_t i = c->group[c->prefetched]; i < c->group[c->prefetched + 1]; i++)
      add(c, c->in->task[c->gather[i]]);
  c->reached++;
}

/* ---- activations ----------------------------------------------------------------------- */

/* A transfer of an activation into storage of its own: nothing else is written earlier than before if it is. */
static bool is_early(const struct hoist *c, const struct tc_node *n)
{
  bool early = c->st->o.overlap && n->op == TC_OP_RESHARD && !tc_coll_is_local(n->coll) && n->role == TC_ROLE_NONE &&
               n->mark != TC_U && !tc_is_stage_send(n);
  for (int k = 0; k < n->n_out && early; k++) early = tc_shares_with(&c->g->tensor[tc_out(c->g, n, k)]) < 0;
  return early;
}

/* A transfer of what its own item makes follows the last task before it that has to do with that. */
static void find_followers(struct hoist *c)
{
  const struct tc_graph *g = c->g;
  const struct task *task = c->in->task;
  const size_t n_tasks = (size_t)c->in->n;
  int32_t *made = tc_no_indices((size_t)g->n_tensors), *had = tc_no_indices((size_t)g->n_tensors);     /* by which task last */
  c->follows = tc_no_indices(n_tasks);
  c->follower = tc_no_indices(n_tasks);
  c->next = tc_no_indices(n_tasks);
  for (int32_t i = 0; i < c->in->n; i++) {
    const struct tc_node *n = &g->node[task[i].node];
    int32_t after = -1;
    bool here = is_early(c, n);
    for (int k = 0; k < n->n_in && here; k++) {
      const int32_t t = tc_in(g, n, k);
      here = made[t] >= 0 && task[made[t]].item == task[i].item;
      after = TC_MAX(after, had[t]);
    }
    if (here && after < i - 1) c->follows[i] = after;
    for (int k = 0; k < n->n_in + n->n_out; k++) had[tc_operand(g, n, k)] = i;
    for (int k = 0; k < n->n_out; k++) made[tc_out(g, n, k)] = i;
  }
  TC_FREE(made, had);
  for (int32_t i = c->in->n - 1; i >= 0; i--) {
    if (c->follows[i] < 0) continue;
    c->next[i] = c->follower[c->follows[i]];
    c->follower[c->follows[i]] = i;
  }
}

/* ---- from stage to stage --------------------------------------------------------------- */

static int find_stage_sends(struct hoist *c, struct tc_err *err)
{
  const struct tc_graph *g = c->g;
  c->last_mb = tc_no_indices((size_t)(c->st->pipeline->p * c->st->pipeline->v) * TC_WORKS);
  c->is_sent = tc_calloc((size_t)g->n_nodes, sizeof *c->is_sent);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (!tc_sends_each_mb(n)) continue;
    const struct tc_tensor *x = &g->tensor[tc_in(g, n, 0)];
    struct stage_send y = { n->id, g->unit[g->node[x->node].unit].stage, g->unit[n->unit].stage,
                          n->mark == TC_F ? TC_WORK_F : TC_WORK_B };
    if (y.to - y.from != (n->mark == TC_F ? 1 : -1))
      return tc_fail(err, TC_ELAYOUT, "%s goes from stage %d to stage %d; only neighbours exchange "
                     "tensors", x->name, y.from, y.to);
    TC_APPEND(c->send, c->n_sends, c->cap_sends, y);
    c->is_sent[x->node] = true;
  }
  return 0;
}

/* The i-th transfer of this rank's queue; NULL: there are fewer. */
static const struct tc_transfer *queued(const struct hoist *c, int32_t i)
{
  const struct tc_transfers *x = c->st->cross;
  return i < x->n_queue[c->st->o.at] ? &x->t[x->queue[c->st->o.at][i]] : NULL;
}

/* The transfer at the head of the queue; those of the backward pass only if there is one. */
static const struct tc_transfer *at_head(struct hoist *c)
{
  for (const struct tc_transfer *t; (t = queued(c, c->head)); c->head++) {
    if (c->st->backward || t->work == TC_WORK_F) return t;
  }
  return NULL;
}

/* Issues the sends of the transfer at the head of the queue. */
static void issue_head(struct hoist *c)
{
  const struct tc_transfer *t = at_head(c);
  for (int32_t i = 0; t && i < c->n_sends; i++) {
    const struct stage_send *x = &c->send[i];
    if (x->work == t->work && x->from == t->stage_from && x->to == t->stage_to)
      add(c, (struct task){ x->node, t->mb, 0 });
  }
  c->head++;
}

/* Before an item: issues what it receives, and what comes before that in the queue, unless send() has done so. */
static void receive(struct hoist *c, const struct tc_item *item)
{
  const int32_t at = c->st->o.at, stage = tc_pipeline_stage(c->st->pipeline, at, item->virtual_stage);
  const int32_t from = item->work == TC_WORK_F ? stage - 1 : stage + 1;
  int32_t last = c->head;
  if (item->work == TC_WORK_W || from < 0 || from == c->st->pipeline->p * c->st->pipeline->v) return;
  const struct tc_transfer *t;                   /* micro-batches come in order */
  while ((t = queued(c, last)) && !(t->to == at && t->work == item->work && t->stage_to == stage && t->mb >= item->mb))
    last++;
  while (t && t->mb == item->mb && at_head(c) && c->head <= last) issue_head(c);
}

/* The task of an item, the first of which is task i, after which all that it sends is made: the reductions of gradients that
 * may follow in the last micro-batch do not hold up the next stage. */
static int32_t last_sent(const struct hoist *c, int32_t i)
{
  int32_t last = i, at = -1;
  for (; last < c->in->n && c->in->task[last].item == c->in->task[i].item; last++)
    if (c->is_sent[c->in->task[last].node]) at = last;
  return at < 0 ? last - 1 : at;
}

/* When an item has made it: what it made is sent, and the next receive is issued. */
static void send(struct hoist *c, const struct tc_item *item)
{
  const int32_t at = c->st->o.at, stage = tc_pipeline_stage(c->st->pipeline, at, item->virtual_stage);
  int32_t issued = c->n_received;
  c->last_mb[stage * TC_WORKS + item->work] = item->mb;    /* micro-batches come in order */
  for (const struct tc_transfer *t; (t = at_head(c));) {
    if (t->from == at && c->last_mb[t->stage_from * TC_WORKS + t->work] < t->mb) return;
    if (t->to == at && (!c->st->o.overlap || issued++ > c->st->o.prefetch)) return;
    issue_head(c);
  }
}

/* ---- the walk -------------------------------------------------------------------------- */

static void hoist_all(struct hoist *c)
{
  const struct tc_item *items = c->st->pipeline ? c->st->pipeline->item[c->st->o.at] : NULL;
  for (int32_t i = 0, sent = 0; i < c->in->n; i++) {
    const struct task *x = &c->in->task[i];
    if (items && x->item >= 0 && (i == 0 || c->in->task[i - 1].item != x->item)) {
      receive(c, &items[x->item]);
      sent = last_sent(c, i);
    }
    const bool gather = is_gather(c, &c->g->node[x->node]);
    if (!gather && c->follows[i] < 0) add(c, *x);
    else if (gather && c->reached < c->n_groups && c->gather[c->group[c->reached]] == i) prefetch_groups(c, i);
    for (int32_t t = c->follower[i]; t >= 0; t = c->next[t]) add(c, c->in->task[t]);
    if (items && x->item >= 0 && i == sent) send(c, &items[x->item]);
  }
}

int tc_hoist(struct tasks *out, const struct step *st, const struct tasks *in, struct tc_err *err)
{
  struct hoist c = { .st = st, .g = st->g, .in = in, .out = out };
  int rc = st->pipeline ? find_stage_sends(&c, err) : 0;
  if (!rc) {
    c.feeds = tc_calloc((size_t)st->g->n_nodes, sizeof *c.feeds);
    find_feeds(&c);
    find_groups(&c);
    find_followers(&c);
    hoist_all(&c);
  }
  TC_FREE(c.feeds, c.gather, c.free_at, c.group, c.follows, c.follower, c.next, c.send, c.is_sent, c.last_mb, c.received);
  return rc;
}
