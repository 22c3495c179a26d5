/* nccl.h - communicators of device memory, over the device's own library (NCCL), and the functions that they
 * use of the device's module.
 *
 * For such a communicator a ticket means something else: tc_comm_start makes the transfer wait, on the device,
 * for the work issued so far; tc_comm_wait makes work that is issued later wait for that transfer (and for
 * earlier ones on the same way); the host continues at once. What the host queries
 * (tc_comm_test, tc_comm_settle, counters) becomes true when the transfer has ended.
 *
 * The library's sums are the same on every run of one layout and equal on all members, but
 * have their own order of addition; it adds bf16 in bf16, not in fp32 with one rounding; its
 * maximum may drop a NaN. The bytes that are counted are those of Tercio's own algorithms, not the library's. */
#ifndef TC_COMM_NCCL_H
#define TC_COMM_NCCL_H

#include "kernels/nccl.h"
#include "src/comm/comm.h"
#include "src/config/choices.h"

/* Collective over the members. `host` connects the same ranks in the same order and transfers their
 * control data; it is not needed afterwards. two_ways: sends to higher coordinates
 * and sends to lower ones don't wait for each other (two communicators of the library). The
 * status is equal on all members, except TC_EPEER. beside: another such communicator of this
 * rank, or NULL; the host waits for all of them at once, so the watchdog gets one blocked call. */
int tc_comm_nccl(struct tc_comm **out, const struct tc_nccl_ops *ops, void *device,
                 struct tc_comm *host, struct tc_comm *beside, const int32_t *members,
                 bool two_ways, const struct tc_comm_opts *o, struct tc_err *err);

/* Collective over `world`. *use <- whether the ranks' devices are to have such communicators, by run.comm
 * (`want`: TC_COMM_NCCL, required; TC_COMM_AUTO, if possible and there are several ranks; else no, without
 * communication): possible if all have the library (ops not NULL) and a GPU of their own. no_device: the
 * reason why ops is NULL, if it is not just that run.device is a CPU. If they are required but not possible,
 * TC_EUSER, with the same sentence on all; else err has the reason ("" for no).
 * rank_names[rank]: "rank 3 on node2". */
int tc_comm_nccl_agree(bool *use, enum tc_comm_kind want, const struct tc_nccl_ops *ops, void *device,
                       const char *no_device, struct tc_comm *world, char *const *rank_names,
                       struct tc_err *err);

#endif
