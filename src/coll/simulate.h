/* simulate.h - how long collective calls take on all their members: discrete events, from their flows (flow.h). Pure.
 *
 * A message costs as in LogGP (Alexandrov et al., 1995): its sender is busy for a while, its bytes go through a link one after
 * another's, it arrives a latency later, goes through the receiver's link, and the receiver is busy for a while. A member has
 * one link each way to the others of its node; a node has one each way to the other nodes, which its members share. Nothing
 * is buffered: a message leaves when its sender and its receiver have both come to it.
 *
 * What is simplified: a flow is one message, except that its members are busy for each of its pieces, so that an array which
 * is passed on piece by piece (chain) takes longer here; adding and copying take no time; links are free when a call begins. */
#ifndef TC_SIMULATE_H
#define TC_SIMULATE_H

#include "src/coll/flow.h"

struct tc_sim_link { double latency_s, busy_s, bytes_per_s; }; /* busy_s: a member with a message; bytes_per_s: each way */
struct tc_sim_net { struct tc_sim_link node, network; };               /* within a node; between nodes */

struct tc_sim;
/* Local. Members that begin at time 0; node[size]: the node of each, from 0 on, or NULL: one for all. partial: run.sums;
 * selection: borrowed; NULL: the compiled table. */
struct tc_sim *tc_sim_new(const struct tc_sim_net *net, const int32_t *node, int size, bool partial,
                          const struct tc_selection *selection);
void tc_sim_free(struct tc_sim *s);
/* Local. All begin at time 0 again, and what they sent is forgotten. */
void tc_sim_clear(struct tc_sim *s);

/* Local. All members make the call, each when it is done with the one before. a->parts' addresses are not looked at; not SEND
 * and RECV. */
void tc_sim_call(struct tc_sim *s, const struct tc_coll_args *a);
/* Local. So many bytes of each member come to member 0 up a tree of SENDs and RECVs, as in tc_comm_bytes_gather. */
void tc_sim_gather(struct tc_sim *s, int64_t bytes);
/* Local. All wait for the last one, and then for so many seconds: something else makes them meet. */
void tc_sim_meet(struct tc_sim *s, double seconds);

/* What it came to since the begin: the time at which the last member was done, and all on average; of the member that sends
 * most, messages and bytes, and of the one that receives most; of the node with most traffic one way, to and from other nodes;
 * and the most members that one has exchanged messages with. */
struct tc_sim_sum {
  double last_s, mean_s;
  int64_t sent_messages, sent_bytes, received_messages, received_bytes, node_messages, node_bytes;
  int peers;
};
struct tc_sim_sum tc_sim_sum(const struct tc_sim *s);

/* Local. What a member has sent since the begin. */
struct tc_sim_sent { int64_t messages, bytes; };
struct tc_sim_sent tc_sim_sent(const struct tc_sim *s, int member);

/* Local. The call while one member never comes to it. Each other waits for the members with which a message is under way, of
 * which those that have sent nothing come first. hops: how many members a search from the worst one passes, from those that it
 * waits for to those that these wait for, until it comes to the lost one; asked: how many it has asked by then; -1: a search
 * does not come to it. waiting: members that can't end the call. A search follows `most_late` of a member, and asks at most
 * `most_asked`. Times and sums are as they were before, afterwards. */
struct tc_sim_lost { int hops, asked, waiting; };
struct tc_sim_lost tc_sim_lost(struct tc_sim *s, const struct tc_coll_args *a, int lost, int most_late, int most_asked);

#endif
