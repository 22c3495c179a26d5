/* start.h - the control traffic of a run on many ranks, simulated: its launch, its start, a step, a save, and how a lost rank
 * is found. Pure. */
#ifndef TC_PLAN_START_H
#define TC_PLAN_START_H

#include "src/coll/simulate.h"
#include "src/plan/plan.h"

/* Bytes: of a rank's answer about NCCL; and, as they are in a small run, of what the data are, of names, of a rank's part of
 * run.json and of its list of what it has written. */
enum {
  TC_START_NCCL = 468, TC_START_DATA = 474, TC_START_LEASE = 13, TC_START_FOLDER = 50, TC_START_RUN_JSON = 900,
  TC_START_PIECES = 10784
};

enum tc_start_phase_id { TC_START_LAUNCH, TC_START_START, TC_START_STEP, TC_START_SAVE, TC_START_LOST, TC_START_PHASES };
extern const char *const tc_start_phase_name[TC_START_PHASES];       /* "launch", "start", "step", "save", "lost" */

struct tc_start_opts {
  int ranks, each;               /* on each node, but for the last one */
  bool partial;                  /* run.sums = nodes */
  const struct tc_selection *selection;          /* of algorithms; NULL: the compiled table */
  struct tc_sim_net net;
  double fence_s;                /* of a fence of the launcher */
  int64_t record_bytes;          /* what each rank tells all others of itself */
  double deadline_s;             /* run.deadline */
};

/* calls: of the rank that makes most; on[coll]: the most calls, messages and bytes that one rank has in such calls; hops: in
 * which a search comes to the lost rank, -1: it does not, or another phase. seconds: of a lost rank from the message that does
 * not come until the ranks that wait for it name it, at most. */
struct tc_start_phase { struct tc_sim_sum sum; struct tc_coll_count on[TC_COLLS]; int64_t calls; int hops; double seconds; };
/* Local. ranks above 1. */
void tc_plan_start(struct tc_start_phase out[TC_START_PHASES], const struct tc_start_opts *o);

/* Local. The network of a cluster for messages of control: half of a link's latency is taken to be on the way, and a quarter
 * each in the sender and the receiver; a node has the network ports of all its devices. */
struct tc_sim_net tc_plan_net(const struct tc_cluster *k, int each);

#endif
