/* nccl.h - communicators whose data is in a device's memory, moved by the device's own
 * library (NCCL), and what they ask of the device's module.
 *
 * Such a communicator differs from the others in what a ticket means: tc_comm_start lets the
 * transfer follow what the device was told to do so far, tc_comm_wait lets what the device is
 * told from then on follow that transfer (and those before it that go the same way); the host goes
 * on at once. What the host wants to know
 * (tc_comm_test, tc_comm_settle, counters) becomes true when the transfer has really ended.
 *
 * The library's sums are the same on every run of one layout and end alike on all members, but
 * are made in an order of its own; it adds bf16 in bf16, not in fp32 with one rounding; its
 * maximum may drop a NaN. */
#ifndef TC_COMM_NCCL_H
#define TC_COMM_NCCL_H

#include "kernels/nccl.h"
#include "src/comm/comm.h"
#include "src/config/choices.h"

/* Collective over the members. `host` joins the same ranks in the same order and carries what
 * they have to tell each other; it is not needed afterwards. two_ways: sends to higher coordinates
 * and sends to lower ones don't wait for each other (two communicators of the library). The
 * members' status is alike on all, but for TC_EPEER. beside: another such communicator of this
 * rank, or NULL; the host waits for all of them at once, so the watchdog hears of one blocked. */
int tc_comm_nccl(struct tc_comm **out, const struct tc_nccl_ops *ops, void *device,
                 struct tc_comm *host, struct tc_comm *beside, const int32_t *members,
                 bool two_ways, const struct tc_comm_opts *o, struct tc_err *err);

/* Collective over `world`, which carries it. *use <- whether the ranks' devices are to have such
 * communicators, by run.comm (`want`: TC_COMM_NCCL, they must; TC_COMM_AUTO, if they can and there are several ranks;
 * else no, and nobody is asked): all have the library (ops not NULL, look) and a GPU of their own. no_device: why
 * ops is NULL, if there is more to say than that run.device is a CPU. Where they must, that they can't
 * is TC_EUSER, with the same sentence on all; else err says why ("" if nobody was asked).
 * who[rank]: "rank 3 on node2". */
int tc_comm_nccl_agree(bool *use, enum tc_comm_kind want, const struct tc_nccl_ops *ops, void *device,
                       const char *no_device, struct tc_comm *world, char *const *who,
                       struct tc_err *err);

#endif
