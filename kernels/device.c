/* device.c - opening a device by its name, and what is the same on every device.
 *
 * The devices are a const table; a device's own state is in tc_device.priv. */
#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

static const struct tc_device_ops *const devices[] = { &tc_ref_ops, &tc_cpu_ops };

int tc_device_open(struct tc_device **out, const char *name, int threads, struct tc_err *err)
{
  TC_ASSERT(threads >= 1);
  *out = NULL;
  for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
    if (strcmp(devices[i]->name, name) != 0) continue;
    struct tc_device *d = tc_calloc(1, sizeof *d);
    d->ops = devices[i];
    d->threads = threads;
    int rc = d->ops->open(d, err);
    if (rc < 0) {
      free(d);
      return rc;
    }
    *out = d;
    return 0;
  }
  return tc_fail(err, TC_EUSER,
                 "device \"%s\": this build has none of that name; set run.device to cpu or ref",
                 name);
}

void tc_device_close(struct tc_device *d)
{
  if (!d) return;
  d->ops->close(d);
  free(d);
}

void tc_device_poison(struct tc_device *d, void *p, int64_t bytes)
{
  (void)d;
  if (p && bytes > 0) memset(p, 0xff, (size_t)bytes);
}

int64_t tc_view_global(const struct tc_view *v, int64_t i)
{
  if (v->rank == 0) return 0;
  if (v->rows >= 0) i += v->row0 * v->dim[v->rank - 1];
  int64_t global = 0, stride = 1;
  for (int d = v->rank - 1; d >= 0; d--) {
    /* The first dimension may hang over (padding), so what is left is not wrapped. */
    int64_t at = d > 0 ? i % v->dim[d] : i;
    i = d > 0 ? i / v->dim[d] : 0;
    global += (at + v->off[d]) * stride;
    stride *= v->global[d];
  }
  return global;
}
