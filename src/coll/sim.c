/* sim.c - collective calls on all members at once, as discrete events (simulate.h).
 *
 * A call is simulated to its end before the next one. Its entries and flows stand member by member, so that a message finds its
 * receive by its members and its phase. */
#include "src/coll/selection.h"
#include "src/coll/sim.h"

#include <stdlib.h>
#include <string.h>

enum kind { BEGIN, LEAVE, PASS, COME, SENT, CAME };

/* ---- events -------------------------------------------------------------------------------- */

static bool before(const struct tc_sim_event *a, const struct tc_sim_event *b)
{
  return a->at < b->at || (a->at == b->at && a->number < b->number);
}

static void push_as(struct tc_sim *s, double at, int64_t number, enum kind kind, int of)
{
  TC_GROW(s->heap, s->n_events, s->cap_events);
  int i = s->n_events++;
  const struct tc_sim_event e = { at, number, of, (int)kind };
  for (; i > 0 && before(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
  s->heap[i] = e;
}

static void push(struct tc_sim *s, double at, enum kind kind, int of) { push_as(s, at, s->number++, kind, of); }

static struct tc_sim_event pop(struct tc_sim *s)
{
  const struct tc_sim_event top = s->heap[0], last = s->heap[--s->n_events];
  int i = 0;
  for (int child; (child = 2 * i + 1) < s->n_events; i = child) {
    if (child + 1 < s->n_events && before(&s->heap[child + 1], &s->heap[child])) child++;
    if (!before(&s->heap[child], &last)) break;
    s->heap[i] = s->heap[child];
  }
  s->heap[i] = last;
  return top;
}

/* ---- a call's flows ---------------------------------------------------------------------------- */

static void add_flow(struct tc_sim *s, int member, int entry, int i, const struct tc_coll_args *a, const struct tc_pieces *p)
{
  struct tc_members seen = s->m;
  struct tc_flow one = s->entry[entry].of;
  seen.coord = member;
  struct tc_sim_flow f = { .member = member, .peer = (one.peer + i) % s->m.size, .entry = entry, .mate = -1,
                    .send = one.kind == TC_FLOW_SEND, .phase = one.phase };
  one.first = (one.first + i * one.shift) % TC_MAX(s->m.size, 1), one.peers = 1;
  for (int k = 0; k < a->n_parts; k++)
    f.bytes += tc_flow_elems(&one, a->parts[k].count, a->parts[k].block, &seen) * (one.wide ? p->wide_bytes : p->elem_bytes);
  f.messages = tc_flow_messages(&one, a, p, &seen);
  TC_GROW(s->flow, s->n_flows, s->cap_flows);
  s->flow[s->n_flows++] = f;
}

static bool is_whole(const struct tc_flow *f) { return f->kind == TC_FLOW_RECV && f->at == TC_AT_WHOLES; }
static bool is_term(const struct tc_flow *f) { return f->kind == TC_FLOW_RECV && f->at == TC_AT_TERMS; }

/* Receives are in the order of peer and phase; the lower half of a key is the flow. */
static int64_t key_of(int peer, int phase) { return ((int64_t)peer * TC_PHASES + phase) << 32; }
static int by_key(const void *a, const void *b)
{
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* The list of a member as entries and flows. */
static void add_member(struct tc_sim *s, int member, const struct tc_coll_args *a, struct tc_flows *l)
{
  struct tc_members seen = s->m;
  const int algorithm = tc_algorithm_of(a, &s->m);
  struct tc_sim_member *m = &s->member[member];
  seen.coord = member;
  tc_flows_of(l, algorithm, a->coll, &seen, a->root);
  const struct tc_pieces p = tc_pieces_of(a, algorithm, l, &seen);
  *m = (struct tc_sim_member){ .entry = s->n_entries, .n = l->n };
  for (int k = 0; k < l->n; k++) {
    const struct tc_flow *of = &l->flow[k];
    const bool moves = of->kind <= TC_FLOW_SEND;
    TC_GROW(s->entry, s->n_entries, s->cap_entries);
    struct tc_sim_entry *e = &s->entry[s->n_entries++];
    *e = (struct tc_sim_entry){ .of = *of, .member = member, .flow = s->n_flows, .peers = moves ? of->peers : 0 };
    e->open = moves ? of->peers : of->kind == TC_FLOW_SUM;
    m->open += e->open > 0;
    if (is_whole(of)) m->wholes += of->peers;
    for (int i = 0; i < e->peers; i++) add_flow(s, member, m->entry + k, i, a, &p);
  }
  for (int k = 0; k < l->n; k++)
    if (is_term(&l->flow[k])) s->entry[m->entry + l->flow[k].after].terms += l->flow[k].peers;
}

static void index_receives(struct tc_sim *s)
{
  int first, end;
  if (s->n_flows > s->cap_keys) {
    free(s->key);
    s->key = tc_malloc((size_t)s->n_flows * sizeof *s->key);
    s->cap_keys = s->n_flows;
  }
  int64_t *at = s->key;
  for (int c = 0; c < s->m.size; c++) {
    struct tc_sim_member *m = &s->member[c];
    m->receives = at;
    tc_sim_flows(s, m, &first, &end);
    for (int i = first; i < end; i++)
      if (!s->flow[i].send) *at++ = key_of(s->flow[i].peer, s->flow[i].phase) | i;
    m->n_receives = (int)(at - m->receives);
    if (m->n_receives > 1) qsort(m->receives, (size_t)m->n_receives, sizeof *at, by_key);
  }
}

/* The receive of a send. */
static int mate_of(const struct tc_sim *s, const struct tc_sim_flow *f)
{
  const struct tc_sim_member *m = &s->member[f->peer];
  const int64_t key = key_of(f->member, f->phase);
  int lo = 0, hi = m->n_receives;
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if (m->receives[mid] < key) lo = mid + 1;
    else hi = mid;
  }
  TC_ASSERT(lo < m->n_receives && m->receives[lo] >> 32 == key >> 32);
  return (int)(m->receives[lo] & INT32_MAX);
}

static void find_mates(struct tc_sim *s)
{
  for (int i = 0; i < s->n_flows; i++) {
    struct tc_sim_flow *f = &s->flow[i];
    if (!f->send || f->messages == 0) continue;
    f->mate = mate_of(s, f);
    s->flow[f->mate].mate = i;
  }
}

/* ---- what moves ------------------------------------------------------------------------------------ */

static bool is_near(const struct tc_sim *s, const struct tc_sim_flow *f) { return s->node[f->member] == s->node[f->peer]; }
static const struct tc_sim_link *link_of(const struct tc_sim *s, const struct tc_sim_flow *f)
{
  return is_near(s, f) ? &s->net.node : &s->net.network;
}

/* From `ready` on a member is busy with so many messages; returns until when. */
static double be_busy(struct tc_sim *s, int member, double ready, double seconds)
{
  double *until = &s->member[member].busy_until;
  *until = TC_MAX(*until, ready) + seconds;
  return *until;
}

/* Bytes go through a link of the member or its node, `in` or out; returns until when. */
static double go_through(struct tc_sim *s, const struct tc_sim_flow *f, int member, int in, double ready)
{
  double *until = is_near(s, f) ? &s->member_free[member][in] : &s->node_free[s->node[member]][in];
  if (f->bytes == 0) return ready;
  *until = TC_MAX(*until, ready) + (double)f->bytes / link_of(s, f)->bytes_per_s;
  return *until;
}

static void finish(struct tc_sim *s, struct tc_sim_entry *e, struct tc_sim_flow *f);

static void post(struct tc_sim *s, struct tc_sim_flow *f)
{
  if (f->posted) return;
  f->posted = true;
  TC_ASSERT(f->messages == 0 || f->mate >= 0);
  if (f->messages == 0) {
    finish(s, &s->entry[f->entry], f);
    return;
  }
  const double busy_s = link_of(s, f)->busy_s * (double)f->messages;
  f->at = f->send ? be_busy(s, f->member, s->now, busy_s) : s->now;
  f->number = s->number++;
  const struct tc_sim_flow *mate = &s->flow[f->mate], *send = f->send ? f : mate;
  if (mate->posted) push_as(s, TC_MAX(f->at, mate->at), send->number, LEAVE, (int)(send - s->flow));
}

static bool all_done(const struct tc_sim *s, const struct tc_sim_member *m, int first, int n)
{
  for (int i = 0; i < n; i++)
    if (s->entry[m->entry + first + i].open) return false;
  return true;
}

/* All that the entry must wait for is done. */
static bool is_open(const struct tc_sim *s, const struct tc_sim_member *m, const struct tc_sim_entry *e)
{
  switch (e->of.when) {
  case TC_AFTER_FIRST: return m->first_open >= e->of.after;
  case TC_AFTER_FLOW: case TC_AFTER_PIECE: case TC_AFTER_TURN: return all_done(s, m, e->of.after, 1);
  case TC_AFTER_EACH: return all_done(s, m, e->of.after, e->of.n);
  default: return true;
  }
}

/* Begins with an entry if it may. */
static void try_entry(struct tc_sim *s, struct tc_sim_member *m, struct tc_sim_entry *e)
{
  if (!e->open || (!e->free && !is_open(s, m, e))) return;
  if (e->of.kind == TC_FLOW_SUM) {
    e->free = true;
    if (e->terms == 0 && (e->of.at != TC_AT_WHOLES || m->wholes == 0)) finish(s, e, NULL);
    return;
  }
  if (e->free) return;
  e->free = true;
  for (int i = 0; i < e->peers; i++) post(s, &s->flow[e->flow + i]);
}

/* The flow with the same peer, where each waits for its own. */
static void try_same(struct tc_sim *s, const struct tc_sim_member *m, const struct tc_sim_entry *e, int i)
{
  for (int k = 0; k < m->n; k++) {
    struct tc_sim_entry *d = &s->entry[m->entry + k];
    const bool follows = d->of.when == TC_AFTER_FLOW || d->of.when == TC_AFTER_PIECE;
    if (follows && &s->entry[m->entry + d->of.after] == e && d->peers == e->peers) post(s, &s->flow[d->flow + i]);
  }
}

/* A flow, or a sum, is done: what waits for it goes on. */
static void finish(struct tc_sim *s, struct tc_sim_entry *e, struct tc_sim_flow *f)
{
  struct tc_sim_member *m = &s->member[e->member];
  const struct tc_flow *of = &e->of;
  if (f) f->done = true;
  if (--e->open == 0) m->open--;
  s->at[e->member] = TC_MAX(s->at[e->member], s->now);
  if (is_whole(of)) m->wholes--;
  if (is_term(of)) s->entry[m->entry + of->after].terms--;
  while (m->first_open < m->n && !s->entry[m->entry + m->first_open].open) m->first_open++;
  if (e->peers > 1) try_same(s, m, e, (int)(f - s->flow) - e->flow);
  const bool may_sum = is_term(of) || is_whole(of);
  if (e->open && !may_sum) return;
  for (int k = 0; k < m->n; k++) try_entry(s, m, &s->entry[m->entry + k]);
}

static void count(struct tc_sim *s, const struct tc_sim_flow *f)
{
  const int end[2] = { f->peer, f->member };     /* [RECV], [SEND] */
  for (int k = 0; k < 2; k++) {
    struct tc_sim_counts *x[2] = { &s->count[end[k]], is_near(s, f) ? NULL : &s->across[s->node[end[k]]] };
    for (int i = 0; i < 2; i++)
      if (x[i]) x[i]->messages[k] += f->messages, x[i]->bytes[k] += f->bytes;
    s->met[(size_t)end[k] * tc_sim_met_row(s) + (size_t)end[!k] / 8] |= (uint8_t)(1 << end[!k] % 8);
  }
}

static void handle(struct tc_sim *s, const struct tc_sim_event *e)
{
  struct tc_sim_flow *f = e->kind == BEGIN ? NULL : &s->flow[e->of], *mate = f ? &s->flow[f->mate] : NULL;
  struct tc_sim_member *m = &s->member[e->of];
  s->now = e->at;
  switch ((enum kind)e->kind) {
  case BEGIN:
    while (m->first_open < m->n && !s->entry[m->entry + m->first_open].open) m->first_open++;
    for (int k = 0; k < m->n; k++) try_entry(s, m, &s->entry[m->entry + k]);
    break;
  case LEAVE: {
    const double sent = go_through(s, f, f->member, 0, s->now);
    count(s, f);
    push(s, sent, SENT, e->of);
    push(s, sent - (double)f->bytes / link_of(s, f)->bytes_per_s + link_of(s, f)->latency_s, PASS, e->of);
    break;
  }
  case PASS: push(s, go_through(s, f, f->peer, 1, s->now), COME, e->of); break;
  case COME: push(s, be_busy(s, f->peer, s->now, link_of(s, f)->busy_s * (double)f->messages), CAME, e->of); break;
  case SENT: finish(s, &s->entry[f->entry], f); break;
  case CAME: finish(s, &s->entry[mate->entry], mate); break;
  }
}

/* ---- calls ---------------------------------------------------------------------------------------- */

static void begin_call(struct tc_sim *s)
{
  s->n_entries = s->n_flows = s->n_events = 0;
  memset(s->member_free, 0, (size_t)s->m.size * sizeof *s->member_free);
  memset(s->node_free, 0, (size_t)s->n_nodes * sizeof *s->node_free);
}

void tc_sim_run(struct tc_sim *s, const struct tc_coll_args *a)
{
  struct tc_flows l = { 0 };
  begin_call(s);
  for (int c = 0; c < s->m.size; c++) add_member(s, c, a, &l);
  tc_flows_done(&l);
  index_receives(s);
  find_mates(s);
  for (int c = 0; c < s->m.size; c++)
    if (c != s->lost) push(s, s->at[c], BEGIN, c);
  while (s->n_events) {
    const struct tc_sim_event e = pop(s);
    handle(s, &e);
  }
}

void tc_sim_call(struct tc_sim *s, const struct tc_coll_args *a)
{
  TC_ASSERT(a->coll >= TC_FIRST_COLL && a->coll != TC_SEND && a->coll != TC_RECV);
  if (s->m.size == 1) return;
  tc_sim_run(s, a);
  for (int c = 0; c < s->m.size; c++) TC_ASSERT(s->member[c].open == 0);
}

/* A SEND of so many bytes, whose RECV is posted when the receiver is done with all before. */
static void send(struct tc_sim *s, int from, int to, int64_t bytes)
{
  const struct tc_part part = { .count = bytes, .block = bytes };
  const struct tc_coll_args a = { .coll = TC_SEND, .dtype = TC_U8, .root = to, .n_parts = 1, .parts = &part };
  struct tc_members seen = s->m;
  seen.coord = from;
  struct tc_sim_flow f = { .member = from, .peer = to, .bytes = bytes, .messages = tc_coll_messages(&a, &seen), .send = true };
  const struct tc_sim_link *l = link_of(s, &f);
  const double busy_s = l->busy_s * (double)f.messages, posted = be_busy(s, from, s->at[from], busy_s);
  const double sent = go_through(s, &f, from, 0, TC_MAX(posted, s->at[to]));
  const double come = go_through(s, &f, to, 1, sent - (double)bytes / l->bytes_per_s + l->latency_s);
  count(s, &f);
  s->at[from] = sent;
  s->at[to] = be_busy(s, to, come, busy_s);
}

/* Level by level: those that send in one have received in all before. */
void tc_sim_gather(struct tc_sim *s, int64_t bytes)
{
  const int size = s->m.size;
  begin_call(s);
  for (int c = 0; c < size; c++) s->member[c].busy_until = s->at[c];
  for (int step = 1; step < size; step *= 2)
    for (int to = 0; to + step < size; to += 2 * step)
      send(s, to + step, to, bytes * (TC_MIN(to + 2 * step, size) - to - step));
}

void tc_sim_meet(struct tc_sim *s, double seconds)
{
  double last = 0;
  for (int c = 0; c < s->m.size; c++) last = TC_MAX(last, s->at[c]);
  for (int c = 0; c < s->m.size; c++) s->at[c] = last + seconds;
}

/* ---- begin and end ------------------------------------------------------------------------------------- */

struct tc_sim *tc_sim_new(const struct tc_sim_net *net, const int32_t *node, int size, bool partial,
                          const struct tc_selection *selection)
{
  struct tc_sim *s = tc_calloc(1, sizeof *s);
  const size_t n = (size_t)size;
  s->net = *net, s->lost = -1;
  s->m = tc_members_on(node, size, 0, partial);
  s->m.selection = selection;
  s->node = tc_calloc(n, sizeof *s->node);
  s->n_nodes = 1;
  for (int c = 0; c < size && node; c++) s->node[c] = node[c], s->n_nodes = TC_MAX(s->n_nodes, node[c] + 1);
  s->at = tc_calloc(n, sizeof *s->at);
  s->count = tc_calloc(n, sizeof *s->count);
  s->across = tc_calloc((size_t)s->n_nodes, sizeof *s->across);
  s->met = tc_calloc(n * tc_sim_met_row(s), 1);
  s->member = tc_calloc(n, sizeof *s->member);
  s->member_free = tc_calloc(n, sizeof *s->member_free);
  s->node_free = tc_calloc((size_t)s->n_nodes, sizeof *s->node_free);
  return s;
}

void tc_sim_clear(struct tc_sim *s)
{
  const size_t n = (size_t)s->m.size;
  memset(s->at, 0, n * sizeof *s->at);
  memset(s->count, 0, n * sizeof *s->count);
  memset(s->across, 0, (size_t)s->n_nodes * sizeof *s->across);
  memset(s->met, 0, n * tc_sim_met_row(s));
}

void tc_sim_free(struct tc_sim *s)
{
  if (!s) return;
  tc_members_done(&s->m);
  TC_FREE(s->node, s->at, s->count, s->across, s->met, s->member, s->entry, s->flow, s->key, s->member_free, s->node_free,
          s->heap, s);
}
