/* nccl.h - the interface of a device module's collective library: a table of functions
 * (src/comm/nccl.c calls them). */
#ifndef TC_KERNELS_NCCL_H
#define TC_KERNELS_NCCL_H

#include "src/coll/coll.h"

enum { TC_NCCL_ID_BYTES = 128, TC_NCCL_SLOTS = 64 };

/* One communicator of the library, with its own stream; owned by the module. */
struct tc_nccl;

/* Filled by the device's module (kernels/cuda/nccl.cu). `device` is the struct tc_device. All are
 * Local and none waits for a peer; `test`, `abort` and `free` may be called by a thread other
 * than the device's. A slot has the events of a transfer in flight. */
struct tc_nccl_ops {
  /* Whether the library can be used here. gpu <- a unique name of this GPU. */
  int (*look)(void *device, char gpu[64], struct tc_err *err);
  int (*id)(void *device, void *id, struct tc_err *err);     /* id[TC_NCCL_ID_BYTES], by one member */
  /* Starts the initialisation; `ready` reports when all members have finished it. beside: NULL, or another communicator of
   * the device, which needs no order with this one (in_turns). */
  int (*join)(struct tc_nccl **out, void *device, const void *id, int coord, int size, struct tc_nccl *beside,
              struct tc_err *err);
  /* After a join: whether each transfer waits for those of the device's other communicators that were started before
   * it, as the library does not start those of all in one order by itself. */
  bool (*in_turns)(void *device);
  /* Sends to each of to[n_to] and receives from each of from[n_from], without data: the library sets up what it needs between
   * two members at the first of their transfers, for which each waits for the other's host; `ready` reports that all have. */
  int (*meet)(struct tc_nccl *c, const int *to, int n_to, const int *from, int n_from, struct tc_err *err);
  /* 1: the last join, meet or start is complete, 0: not yet, negative: failed, or aborted. */
  int (*ready)(struct tc_nccl *c, struct tc_err *err);
  /* Issues the transfer after all earlier work of the device. Then, once `ready`, `mark`. */
  int (*start)(struct tc_nccl *c, const struct tc_coll_args *a, int slot, struct tc_err *err);
  int (*mark)(struct tc_nccl *c, int slot, struct tc_err *err);
  int (*wait_for)(struct tc_nccl *c, int slot, struct tc_err *err);  /* later work of the device waits for it */
  /* One of the states below; negative: the library failed. */
  int (*test)(struct tc_nccl *c, int slot, struct tc_err *err);
  void (*abort)(struct tc_nccl *c);              /* transfers in flight end without a valid result */
  /* The last call. done: nothing is in flight; else it may wait for transfers that an abort could not end. */
  void (*free)(struct tc_nccl *c, bool done);
};
/* QUEUED: the device has not reached it yet. */
enum { TC_NCCL_QUEUED, TC_NCCL_RUNS, TC_NCCL_DONE };

#endif
