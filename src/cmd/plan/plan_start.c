/* plan_start.c - `tercio plan --simulate-start`: the control traffic of runs with many ranks (plan/start.h), as rows. */
#include "src/cmd/plan/plan.h"
#include "src/coll/selection.h"
#include "src/plan/start.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 32768, MOST_RUNS = 16 };      /* one bit for each two ranks: 128 MiB */
#define DEFAULT_RANKS "64,256,1024,4096,16384"

/* "64,256" into ranks[MOST_RUNS]. */
static int read_ranks(int *ranks, int *n, const char *text, struct tc_err *err)
{
  *n = 0;
  for (const char *at = text;; at++) {
    char *end;
    const long x = strtol(at, &end, 10);
    const bool digit = *at >= '0' && *at <= '9';
    if (!digit || (*end && *end != ',') || x < 2 || x > MOST_RANKS || *n == MOST_RUNS)
      return tc_fail(err, TC_EUSER, "--ranks = %s: give up to %d numbers from 2 to %d, such as 64,1024", text, MOST_RUNS,
                     MOST_RANKS);
    ranks[(*n)++] = (int)x;
    if (!*end) return 0;
    at = end;
  }
}

static void *calls_json(const struct tc_start_phase *x)
{
  json_t *o = json_object();
  for (int k = 0; k < TC_COLLS; k++)
    if (x->on[k].calls)
      json_object_set_new(o, tc_coll_name[k], json_pack("{s:I,s:I,s:I}", "calls", (json_int_t)x->on[k].calls, "messages",
                                                        (json_int_t)x->on[k].messages, "bytes", (json_int_t)x->on[k].bytes));
  return o;
}

#define ROW "ranks=%6d  phase=%-6s  calls=%7lld  messages:sends=%8lld  received=%8lld  bytes=%11lld  received_bytes=%14lld  " \
            "node_messages=%13lld  node_bytes=%11lld  peers=%6d  hops?=%5d  seconds=%10.4g{ mean_seconds=%g  collectives=%p }"

static void print_run(json_t *list, const struct tc_start_opts *o)
{
  struct tc_start_phase phase[TC_START_PHASES];
  tc_plan_start(phase, o);
  for (int i = 0; i < TC_START_PHASES; i++) {
    const struct tc_start_phase *x = &phase[i];
    const struct tc_sim_sum *s = &x->sum;
    tc_out_row(list, ROW, o->ranks, tc_start_phase_name[i], (long long)x->calls, (long long)s->sent_messages,
               (long long)s->received_messages, (long long)s->sent_bytes, (long long)s->received_bytes,
               (long long)s->node_messages, (long long)s->node_bytes, s->peers, x->hops, x->seconds, s->mean_s, calls_json(x));
  }
}

int tc_plan_simulate_start(const struct tc_plan_job *j, struct tc_err *err)
{
  int ranks[MOST_RUNS], n;
  struct tc_start_opts o = { .each = j->cluster.devices, .partial = j->cfg->run_sums == TC_SUMS_NODES, .fence_s = j->fence_s,
                             .record_bytes = j->record_bytes, .deadline_s = j->cfg->run_deadline,
                             .net = tc_plan_net(&j->cluster, j->cluster.devices) };
  const struct tc_sim_link *l[2] = { &o.net.node, &o.net.network };
  struct tc_selection *table = NULL;
  TC_TRY(read_ranks(ranks, &n, j->ranks ? j->ranks : DEFAULT_RANKS, err));
  if (*j->cfg->run_collectives) TC_TRY(tc_selection_read(&table, j->cfg->run_collectives, err));
  o.selection = table;
  json_t *list = j->json ? json_array() : NULL;
  if (!list) {
    printf("device     %s, %d ranks on each node\n", j->cluster.device.name, o.each);
    for (int i = 0; i < 2; i++)
      printf("%-10s latency %.3g us, and %.3g us in the sender and the receiver each; %.3g GB/s %s\n", i ? "network" : "node",
             l[i]->latency_s * 1e6, l[i]->busy_s * 1e6, l[i]->bytes_per_s * 1e-9, i ? "of a node" : "of a rank");
    printf("fence      %.3g s; run.deadline %.3g s\n\n", o.fence_s, o.deadline_s);
    tc_out_head(ROW);
  }
  for (int i = 0; i < n; i++) {
    o.ranks = ranks[i];
    print_run(list, &o);
  }
  tc_selection_free(table);
  if (list) tc_out_json(list, TC_PLAN_JSON);
  return 0;
}
