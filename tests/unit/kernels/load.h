/* load.h - for tests on the emulated GPU: from load_kernels on it aborts at a kernel that is launched but not loaded
 * where NCCL is joined (kernels/cuda/dev.h). */
#ifndef TC_TEST_LOAD_H
#define TC_TEST_LOAD_H

#include "kernels/kernel.h"
#include "kernels/nccl.h"

#include <stdio.h>
#include <stdlib.h>

static void load_kernels(void)
{
  struct tc_device *d = NULL;
  struct tc_nccl *c = NULL;
  struct tc_err err = { 0 };
  char id[TC_NCCL_ID_BYTES];
  if (tc_device_open(&d, "cuda", 1, &err) < 0 || d->ops->nccl->id(d, id, &err) < 0
      || d->ops->nccl->join(&c, d, id, 0, 1, NULL, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  d->ops->nccl->free(c, true);
  tc_device_close(d);
  setenv("TC_EMU_LOADED", "yes", 1);
}

#endif
