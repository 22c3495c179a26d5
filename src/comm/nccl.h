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

#include "src/comm/comm.h"

enum { TC_NCCL_ID_BYTES = 128, TC_NCCL_SLOTS = 64 };

/* One communicator of the library, with a stream of its own; the module's. */
struct tc_nccl;

/* Filled by the device's module (kernels/cuda/nccl.cu). `device` is the struct tc_device. All are
 * Local and none waits for a peer; `test`, `abort` and `free` may be called by a thread that is
 * not the device's. A slot is a place for a transfer's events: of calls 0, 1, ... under way. */
struct tc_nccl_ops {
  /* Whether the library can be used here. gpu <- what tells this GPU from all others. */
  int (*look)(void *device, char gpu[64], struct tc_err *err);
  int (*id)(void *device, void *id, struct tc_err *err);     /* id[TC_NCCL_ID_BYTES], by one member */
  /* Begins to join; `ready` says when all have. */
  int (*join)(struct tc_nccl **out, void *device, const void *id, int coord, int size,
              struct tc_err *err);
  /* 1: the last join or start is done with, 0: not yet, negative: failed, or aborted. */
  int (*ready)(struct tc_nccl *c, struct tc_err *err);
  /* After all that the device was told so far: the transfer. Then, once `ready`, `mark`. */
  int (*start)(struct tc_nccl *c, const struct tc_coll_args *a, int slot, struct tc_err *err);
  int (*mark)(struct tc_nccl *c, int slot, struct tc_err *err);
  int (*land)(struct tc_nccl *c, int slot, struct tc_err *err);  /* the device goes on after it */
  /* TC_NCCL_DONE, or how far it is; negative: the library failed. */
  int (*test)(struct tc_nccl *c, int slot, struct tc_err *err);
  void (*abort)(struct tc_nccl *c);              /* what is under way ends, undone */
  /* The last call. done: nothing is under way; else it may wait for what an abort could not end. */
  void (*free)(struct tc_nccl *c, bool done);
};
/* QUEUED: the device itself has not come so far. */
enum { TC_NCCL_QUEUED, TC_NCCL_RUNS, TC_NCCL_DONE };

/* Collective over the members. `host` joins the same ranks in the same order and carries what
 * they have to tell each other; it is not needed afterwards. two_ways: sends to higher coordinates
 * and sends to lower ones don't wait for each other (two communicators of the library). The
 * members' status is alike on all, but for TC_EPEER. beside: another such communicator of this
 * rank, or NULL; the host waits for all of them at once, so the watchdog hears of one stall. */
int tc_comm_nccl(struct tc_comm **out, const struct tc_nccl_ops *ops, void *device,
                 struct tc_comm *host, struct tc_comm *beside, const int32_t *members,
                 bool two_ways, const struct tc_comm_opts *o, struct tc_err *err);

/* Collective over `world`, which carries it. *use <- whether the ranks' devices are to have such
 * communicators, by run.comm (`want`: "nccl", they must; "auto", if they can and there are several ranks;
 * else no, and nobody is asked): all have the library (ops not NULL, look) and a GPU of their own. no_device: why
 * ops is NULL, if there is more to say than that run.device is a CPU. Where they must, that they can't
 * is TC_EUSER, with the same sentence on all; else err says why ("" if nobody was asked).
 * who[rank]: "rank 3 on node2". */
int tc_comm_nccl_agree(bool *use, const char *want, const struct tc_nccl_ops *ops, void *device,
                       const char *no_device, struct tc_comm *world, char *const *who,
                       struct tc_err *err);

#endif
