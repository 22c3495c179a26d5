/* t_plan_start.c - the control traffic of many ranks (plan/start.h) against formulas: a step, a lost rank, fences, and what a
 * cluster's links become. What real runs count is in tests/mpi/m_calls. */
#include <math.h>

#include "src/plan/start.h"
#include "tests/unit/tap.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * TC_MAX(fabs(a), fabs(b)); }

/* Ranks on nodes of their own, links without a limit: the norm and the agreement each go up a tree and down again. */
static void test_step(int ranks, int log)
{
  const double L = 4e-6, o = 1e-6;
  const struct tc_sim_link link = { L, o, 1e30 };
  const struct tc_start_opts opts = { .ranks = ranks, .each = 1, .partial = true, .net = { link, link }, .fence_s = 0.5,
                                      .record_bytes = 1000, .deadline_s = 60 };
  struct tc_start_phase x[TC_START_PHASES];
  tc_plan_start(x, &opts);
  const struct tc_start_phase *step = &x[TC_START_STEP], *launch = &x[TC_START_LAUNCH], *lost = &x[TC_START_LOST];
  ok(near(step->seconds, 4 * log * (L + 2 * o)), "%d ranks: a step's control data take 4 log2 N (L + 2o), %.9g s", ranks,
     step->seconds);
  ok(step->sum.sent_messages == 2 * log && step->sum.peers == log && step->calls == 2, "... rank 0 sends 2 log2 N messages to log2 N");
  is_int(step->on[TC_ALL_GATHER].messages, log, "... half of them the agreement's");
  ok(launch->seconds > 1.5 && launch->seconds < 1.5 + 1e-3, "... a launch has three fences, %.9g s", launch->seconds);
  is_int(launch->sum.sent_bytes, 1008 * (ranks - 1), "... and each rank's build and record come to all");
  is_int(x[TC_START_START].on[TC_RECV].calls, 2 * log, "... at the start log2 N ranks send to rank 0, twice");
  is_int(x[TC_START_START].sum.peers, log, "... with whom all messages are exchanged");
  is_int(x[TC_START_SAVE].on[TC_SEND].bytes, (int64_t)TC_START_PIECES * ranks / 2, "... what half of them have written goes through one of these in a save");
  is_int(lost->hops, 2 * log - 1, "... a lost rank is found in 2 log2 N - 1 hops");
  ok(near(lost->seconds, 60 + TC_MIN(0.1 * lost->hops + 2, 5)), "... within %.9g s", lost->seconds);
}

static void test_net(void)
{
  struct tc_cluster k = { 0 };
  k.link[TC_WIRE_NODE].latency_s[TC_SEND] = 8e-6, k.link[TC_WIRE_NODE].bytes_per_s[TC_SEND] = 1e9;
  k.link[TC_WIRE_NETWORK].latency_s[TC_SEND] = 16e-6, k.link[TC_WIRE_NETWORK].bytes_per_s[TC_SEND] = 2e9;
  const struct tc_sim_net net = tc_plan_net(&k, 4);
  ok(near(net.node.latency_s + 2 * net.node.busy_s, 8e-6) && near(net.node.bytes_per_s, 1e9), "a message within a node");
  ok(near(net.network.latency_s + 2 * net.network.busy_s, 16e-6) && near(net.network.bytes_per_s, 8e9),
     "... and to another one, with the ports of 4 devices");
}

int main(void)
{
  for (int log = 4; log <= 10; log += 3) test_step(1 << log, log);
  test_net();
  return done_testing();
}
