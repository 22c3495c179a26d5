/* sim_sum.c - the totals of simulated calls, and which members wait for which when one is lost (simulate.h). */
#include "src/coll/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- sums --------------------------------------------------------------------------------------------- */

static int met(const struct tc_sim *s, int member)
{
  const size_t row = tc_sim_met_row(s);
  int n = 0;
  for (size_t i = 0; i < row; i++) n += __builtin_popcount(s->met[(size_t)member * row + i]);
  return n;
}

struct tc_sim_sum tc_sim_sum(const struct tc_sim *s)
{
  struct tc_sim_sum x = { 0 };
  for (int c = 0; c < s->m.size; c++) {
    const struct tc_sim_counts *n = &s->count[c];
    x.last_s = TC_MAX(x.last_s, s->at[c]);
    x.mean_s += s->at[c] / s->m.size;
    x.sent_messages = TC_MAX(x.sent_messages, n->messages[TC_FLOW_SEND]);
    x.sent_bytes = TC_MAX(x.sent_bytes, n->bytes[TC_FLOW_SEND]);
    x.received_messages = TC_MAX(x.received_messages, n->messages[TC_FLOW_RECV]);
    x.received_bytes = TC_MAX(x.received_bytes, n->bytes[TC_FLOW_RECV]);
    x.peers = TC_MAX(x.peers, met(s, c));
  }
  for (int r = 0; r < s->n_nodes; r++)
    for (int k = 0; k < 2; k++) {
      x.node_messages = TC_MAX(x.node_messages, s->across[r].messages[k]);
      x.node_bytes = TC_MAX(x.node_bytes, s->across[r].bytes[k]);
    }
  return x;
}

struct tc_sim_sent tc_sim_sent(const struct tc_sim *s, int member)
{
  const struct tc_sim_counts *n = &s->count[member];
  return (struct tc_sim_sent){ n->messages[TC_FLOW_SEND], n->bytes[TC_FLOW_SEND] };
}

/* ---- a lost member ---------------------------------------------------------------------------------- */

/* The members for which one waits: those that have sent nothing, if there are such. */
static int waits_for(const struct tc_sim *s, int member, int32_t *late, int most)
{
  const struct tc_sim_member *m = &s->member[member];
  int n = 0, first, end;
  tc_sim_flows(s, m, &first, &end);
  for (int pass = 0; pass < 2 && n == 0; pass++)
    for (int i = first; i < end && n < most; i++) {
      const struct tc_sim_flow *f = &s->flow[i];
      bool arrived = false;
      if (!f->posted || f->done) continue;
      for (int k = first; k < end; k++) arrived |= s->flow[k].done && !s->flow[k].send && s->flow[k].peer == f->peer;
      if (pass || !arrived) late[n++] = f->peer;
    }
  return n;
}

/* A search from one member. */
static struct tc_sim_lost search(const struct tc_sim *s, int from, int lost, int most_late, int most_asked, int32_t *list,
                                 int32_t *hops, bool *seen)
{
  int n = 0, found = -1;
  int32_t *late = tc_malloc((size_t)most_late * sizeof *late);
  list[n] = from, hops[n++] = 0, seen[from] = true;
  for (int i = 0; i < n && found < 0; i++) {
    const int waits = list[i] == lost ? 0 : waits_for(s, list[i], late, most_late);
    for (int k = 0; k < waits && n < most_asked; k++) {
      if (seen[late[k]]) continue;
      seen[late[k]] = true, list[n] = late[k], hops[n] = hops[i] + 1;
      if (late[k] == lost) found = n;
      n++;
    }
  }
  for (int i = 0; i < n; i++) seen[list[i]] = false;
  free(late);
  return (struct tc_sim_lost){ .hops = found < 0 ? -1 : hops[found], .asked = n - 1 };
}

struct tc_sim_lost tc_sim_lost(struct tc_sim *s, const struct tc_coll_args *a, int lost, int most_late, int most_asked)
{
  struct tc_sim_lost worst = { 0 };
  const size_t size = (size_t)s->m.size;
  double *at = memcpy(tc_malloc(size * sizeof *at), s->at, size * sizeof *at);
  int32_t *list = tc_calloc((size_t)most_asked + 1, sizeof *list), *hops = tc_calloc((size_t)most_asked + 1, sizeof *hops);
  bool *seen = tc_calloc(size, sizeof *seen);
  struct tc_sim twin = *s;                       /* its own sums */
  twin.count = tc_calloc(size, sizeof *twin.count);
  twin.across = tc_calloc((size_t)s->n_nodes, sizeof *twin.across);
  twin.met = tc_calloc(size * tc_sim_met_row(s), 1);
  twin.lost = lost;
  tc_sim_run(&twin, a);
  for (int c = 0; c < s->m.size; c++) {
    if (c == lost || twin.member[c].open == 0) continue;
    const struct tc_sim_lost x = search(&twin, c, lost, most_late, most_asked, list, hops, seen);
    worst.waiting++;
    if (worst.hops >= 0 && (x.hops < 0 || x.hops > worst.hops)) worst.hops = x.hops;
    worst.asked = TC_MAX(worst.asked, x.asked);
  }
  TC_FREE(twin.count, twin.across, twin.met, list, hops, seen);
  twin.count = s->count, twin.across = s->across, twin.met = s->met, twin.lost = -1;
  *s = twin;                                     /* what has grown */
  memcpy(s->at, at, size * sizeof *at);
  free(at);
  return worst;
}
