/* channels.c - a pipeline's schedule run on simulated ranks that issue transfers as their lists of actions do
 * (actions_hoist.c, actions_wait.c), over communicators that carry them out in the order in which they are issued.
 *
 * Nothing is buffered: a transfer begins when both ranks have issued it and it is the first of its queue on both. Times are
 * maxima and sums of times already known, so the order of visits changes nothing. No rank waits forever, as simulate.c shows:
 * whatever an item or a send waits for comes before it in the order of all transfers. */
#include "src/schedule/impl.h"

#include <stdlib.h>

enum { WAYS = 2 };
enum phase { ISSUE_BEFORE, RUN_ITEM, ISSUE_AFTER };

struct rank {
  enum phase phase;
  int32_t at, next;              /* the item; the transfer in its queue that is issued next */
  int32_t head[WAYS];            /* in its queue: the first of each way that has not ended, or one before it of the other */
  double wire_free_at[WAYS];
  int32_t unread;                /* receives that were issued for items that have not begun */
  int32_t awaits;                /* a transfer that is waited for at once; -1: none */
  double slow_until, slows;      /* transfers beside its work */
  bool in_todo;
};

struct play {
  const struct tc_pipeline *s;
  const struct tc_stage_cost *cost;
  const struct tc_transfers *t;
  const struct tc_channels *channels;
  struct tc_simulation *sim;
  int32_t *id;                   /* [F, B][p * v][m] the transfer of what is made; -1: none */
  double *issued[2], *there;     /* [n] by its sender, its receiver; at its receiver; -1: not yet */
  bool *made;                    /* [n] */
  struct rank *rank;             /* [p] */
  int32_t *todo, n_todo;         /* ranks to visit, each once */
};

static int32_t transfer_of(const struct play *u, int work, int32_t stage, int32_t mb)
{
  const int32_t stages = u->s->p * u->s->v;
  if (work > TC_WORK_B || stage < 0 || stage >= stages || mb < 0) return -1;
  return u->id[(work * stages + stage) * u->s->m + mb];
}

/* What an item receives; -1: nothing. */
static int32_t input_of(const struct play *u, int32_t r, struct tc_item x)
{
  const int32_t stage = tc_pipeline_stage(u->s, r, x.virtual_stage);
  return transfer_of(u, x.work, x.work == TC_WORK_F ? stage - 1 : stage + 1, x.mb);
}

static void visit_later(struct play *u, int32_t r)
{
  if (u->rank[r].in_todo) return;
  u->rank[r].in_todo = true;
  u->todo[u->n_todo++] = r;
}

/* The rank waits for a transfer, -1: for none. False: it has not ended. */
static bool wait_for(struct play *u, int32_t r, int32_t id)
{
  if (id >= 0 && u->there[id] < 0) return false;
  if (id >= 0) u->sim->free_at[r] = TC_MAX(u->sim->free_at[r], u->there[id]);
  return true;
}

/* Without overlap a rank waits for what it has just issued. */
static bool is_free(struct play *u, int32_t r)
{
  if (!wait_for(u, r, u->rank[r].awaits)) return false;
  u->rank[r].awaits = -1;
  return true;
}

/* Issues the next transfer of the rank's queue. False: it waits, since too many of the same are under way. */
static bool issue_next(struct play *u, int32_t r)
{
  struct rank *k = &u->rank[r];
  const int32_t id = u->t->queue[r][k->next];
  const struct tc_transfer *x = &u->t->t[id];
  const bool sends = x->from == r;
  if (!is_free(u, r)) return false;
  if (sends && !wait_for(u, r, transfer_of(u, x->work, x->stage_from, x->mb - TC_MAX(u->channels->ahead, 1)))) return false;
  u->issued[!sends][id] = u->sim->free_at[r];
  if (u->channels->ahead < 0) k->awaits = id;
  k->unread += !sends;
  k->next++;
  return true;
}

/* Before an item: what it receives, and what comes before that in the queue. */
static bool issue_before(struct play *u, int32_t r, struct tc_item x)
{
  const int32_t input = input_of(u, r, x);
  while (input >= 0 && u->issued[1][input] < 0)
    if (!issue_next(u, r)) return false;
  return true;
}

static double tail_of(const struct tc_stage_cost *c, int work) { return work > TC_WORK_B ? 0 : c->tail[work]; }

/* The seconds of an item; transfers follow the last one of a virtual stage. */
static double takes_of(struct rank *k, const struct tc_stage_cost *c, double now, double work, bool last)
{
  const double takes = work + tc_lost_s(work, k->slow_until - now, k->slows);
  if (!last || c->beside <= 0) return takes;
  const double from = now + c->from * takes;
  k->slow_until = TC_MAX(k->slow_until, from) + c->beside;
  k->slows = c->slows;
  return takes + tc_lost_s((1 - c->from) * work, c->beside, c->slows);
}

/* An item, until what it sends is made. */
static bool run_item(struct play *u, int32_t r, struct tc_item x)
{
  const struct tc_pipeline *s = u->s;
  const int32_t input = input_of(u, r, x), stage = tc_pipeline_stage(s, r, x.virtual_stage);
  const struct tc_stage_cost *c = &u->cost[stage];
  const double work = x.work == TC_WORK_F ? c->f : x.work == TC_WORK_W ? c->w : c->b + (s->split ? 0 : c->w);
  const bool last = x.mb == s->m - 1 && x.work == (s->split ? TC_WORK_W : TC_WORK_B);
  if (!wait_for(u, r, input)) return false;
  u->rank[r].unread -= input >= 0;
  u->sim->start[r][u->rank[r].at] = u->sim->free_at[r];
  const double takes = takes_of(&u->rank[r], c, u->sim->free_at[r], work, last);
  u->sim->free_at[r] += takes - tail_of(c, x.work);
  u->sim->busy[r] += takes;
  const int32_t output = transfer_of(u, x.work, stage, x.mb);
  if (output >= 0) u->made[output] = true;
  return true;
}

/* Then: what was made, and receives ahead; and the rest of the item. */
static bool issue_after(struct play *u, int32_t r, struct tc_item x)
{
  struct rank *k = &u->rank[r];
  while (k->next < u->t->n_queue[r]) {
    const int32_t id = u->t->queue[r][k->next];
    const bool sends = u->t->t[id].from == r;
    if (sends ? !u->made[id] : k->unread > u->channels->ahead) break;
    if (!issue_next(u, r)) return false;
  }
  const struct tc_stage_cost *c = &u->cost[tc_pipeline_stage(u->s, r, x.virtual_stage)];
  u->sim->end[r][k->at] = u->sim->free_at[r] += tail_of(c, x.work);
  return true;
}

/* The rank's items until one waits. */
static void run_items(struct play *u, int32_t r)
{
  struct rank *k = &u->rank[r];
  bool (*const step[])(struct play *, int32_t, struct tc_item) = {
    [ISSUE_BEFORE] = issue_before, [RUN_ITEM] = run_item, [ISSUE_AFTER] = issue_after };
  while (is_free(u, r) && k->at < u->s->n_items[r] && step[k->phase](u, r, u->s->item[r][k->at])) {
    k->at += k->phase == ISSUE_AFTER;
    k->phase = k->phase == ISSUE_AFTER ? ISSUE_BEFORE : k->phase + 1;
  }
}

static int way_of(const struct play *u, const struct tc_transfer *x) { return u->channels->two_ways && x->to < x->from; }

/* The first transfer of a rank's queue of one way that has not ended; -1: all that it has issued have. */
static int32_t head_of(struct play *u, int32_t r, int way)
{
  struct rank *k = &u->rank[r];
  for (; k->head[way] < k->next; k->head[way]++) {
    const int32_t id = u->t->queue[r][k->head[way]];
    if (way_of(u, &u->t->t[id]) == way && u->there[id] < 0) return id;
  }
  return -1;
}

/* Completes the transfer at the head of a rank's queue if it can. */
static bool run_head(struct play *u, int32_t r, int way)
{
  const int32_t id = head_of(u, r, way);
  if (id < 0) return false;
  const struct tc_transfer *x = &u->t->t[id];
  double *from = &u->rank[x->from].wire_free_at[way], *to = &u->rank[x->to].wire_free_at[way];
  if (head_of(u, x->from == r ? x->to : x->from, way) != id) return false;
  const double start = TC_MAX(TC_MAX(u->issued[0][id], u->issued[1][id]), TC_MAX(*from, *to));
  u->there[id] = *from = *to = start + u->cost[x->stage_from].sent[x->work];
  visit_later(u, x->from == r ? x->to : x->from);
  return true;
}

static struct play *play_new(const struct tc_pipeline *s, const struct tc_transfers *t)
{
  struct play *u = tc_calloc(1, sizeof *u);
  const size_t n = (size_t)t->n, p = (size_t)s->p, slots = 2 * p * (size_t)s->v * (size_t)s->m;
  u->s = s;
  u->t = t;
  u->id = tc_no_indices(slots);
  u->there = tc_malloc(n * sizeof *u->there);
  u->made = tc_calloc(n, sizeof *u->made);
  u->rank = tc_calloc(p, sizeof *u->rank);
  u->todo = tc_calloc(p, sizeof *u->todo);
  for (int i = 0; i < 2; i++) u->issued[i] = tc_malloc(n * sizeof *u->issued[i]);
  for (int32_t i = 0; i < t->n; i++) {
    const struct tc_transfer *x = &t->t[i];
    u->id[(x->work * s->p * s->v + x->stage_from) * s->m + x->mb] = i;
    u->issued[0][i] = u->issued[1][i] = u->there[i] = -1;
  }
  return u;
}

static void play_free(struct play *u)
{
  TC_FREE(u->id, u->there, u->made, u->rank, u->todo, u->issued[0], u->issued[1], u);
}

int tc_pipeline_play(struct tc_simulation **out, const struct tc_pipeline *s, const struct tc_stage_cost *cost,
                     const struct tc_transfers *t, const struct tc_channels *channels, struct tc_err *err)
{
  struct play *u = play_new(s, t);
  int32_t stuck = -1;
  u->cost = cost;
  u->channels = channels;
  u->sim = tc_simulation_new(s);
  for (int32_t r = 0; r < s->p; r++) {
    u->rank[r].awaits = -1;
    visit_later(u, r);
  }
  while (u->n_todo) {
    const int32_t r = u->todo[--u->n_todo];
    u->rank[r].in_todo = false;
    do run_items(u, r);
    while (run_head(u, r, 0) || run_head(u, r, 1));
  }
  for (int32_t r = 0; r < s->p; r++)
    if (u->rank[r].at < s->n_items[r]) stuck = r;
  *out = u->sim;
  play_free(u);
  if (stuck < 0) {
    tc_simulation_sum(*out);
    return TC_OK;
  }
  tc_simulation_free(*out);
  return tc_fail(err, TC_ELAYOUT, "schedule %s, %d ranks, %d micro-batches: deadlock: rank %d waits for a transfer", s->name,
                 s->p, s->m, stuck);
}
