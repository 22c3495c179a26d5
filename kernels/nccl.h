/* nccl.h - what a device's module offers of its collective library: a table of functions
 * (src/comm/nccl.c calls them). */
#ifndef TC_KERNELS_NCCL_H
#define TC_KERNELS_NCCL_H

#include "src/coll/coll.h"

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

#endif
