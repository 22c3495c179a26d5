/* ref_device.c - the `ref` device: memory and the table of its kernels. */
#include "kernels/ref/ref.h"

#include <stdlib.h>
#include <string.h>

static int ref_open(struct tc_device *d, struct tc_err *err) { return 0; }

static void ref_close(struct tc_device *d) { }

static void *ref_alloc(struct tc_device *d, int64_t bytes)
{
  size_t size = (size_t)tc_round_up(TC_MAX(bytes, 1), 64);
  void *p = aligned_alloc(64, size);
  if (p) memset(p, 0, size);
  return p;
}

static bool ref_has_bf16(struct tc_device *d) { return true; }

#define KERNEL(op, name) [TC_OP_##op] = { .run = tc_ref_##name },
static const struct tc_kernel kernels[TC_OPS] = { TC_REF_KERNELS(KERNEL) };

const struct tc_device_ops tc_ref_ops = {
  .name = "ref", .open = ref_open, .close = ref_close, .alloc = ref_alloc, .free = tc_host_free,
  .copy = tc_host_copy, .sync = tc_host_sync, .has_bf16 = ref_has_bf16, .kernel = kernels,
};
