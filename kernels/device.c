/* device.c - functions common to all devices, whose own state is in tc_device.priv. */
#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

void tc_device_poison(struct tc_device *d, void *p, int64_t bytes)
{
  if (p) tc_device_fill(d, p, 0xff, bytes);
}

void tc_device_fill(struct tc_device *d, void *p, int byte, int64_t bytes)
{
  if (bytes <= 0) return;
  if (d->ops->fill) d->ops->fill(d, p, byte, bytes);
  else memset(p, byte, (size_t)bytes);
}

void tc_device_copy_rows(struct tc_device *d, void *dst, int64_t dst_step, const void *src,
                         int64_t src_step, int64_t row_bytes, int64_t rows)
{
  if (row_bytes <= 0 || rows <= 0) return;
  if (d->ops->copy_rows) {
    d->ops->copy_rows(d, dst, dst_step, src, src_step, row_bytes, rows);
    return;
  }
  for (int64_t i = 0; i < rows; i++)
    memcpy((char *)dst + i * dst_step, (const char *)src + i * src_step, (size_t)row_bytes);
}

void *tc_device_host_alloc(struct tc_device *d, int64_t bytes)
{
  if (d->ops->host_alloc) return d->ops->host_alloc(d, bytes);
  return aligned_alloc(64, (size_t)tc_round_up(TC_MAX(bytes, 1), 64));
}

void tc_device_host_free(struct tc_device *d, void *p)
{
  if (d->ops->host_free) d->ops->host_free(d, p);
  else free(p);
}

void tc_host_free(struct tc_device *d, void *p, int64_t bytes)
{
  if (d->poison) tc_device_poison(d, p, bytes);
  free(p);
}

void tc_host_copy(struct tc_device *d, void *dst, const void *src, int64_t bytes)
{
  (void)d;
  if (bytes > 0) memmove(dst, src, (size_t)bytes);
}

void tc_host_sync(struct tc_device *d) { (void)d; }

int tc_device_check(struct tc_device *d, struct tc_err *err)
{
  return d->ops->check ? d->ops->check(d, err) : 0;
}

int64_t tc_view_global(const struct tc_view *v, int64_t i)
{
  if (v->rank == 0) return 0;
  i += tc_view_skip(v);
  int64_t global = 0, stride = 1;
  for (int d = v->rank - 1; d >= 0; d--) {
    /* The first dimension may extend past the global size (padding), so its index is not wrapped. */
    int64_t at = d > 0 ? i % v->dim[d] : i;
    i = d > 0 ? i / v->dim[d] : 0;
    global += (at + v->off[d]) * stride;
    stride *= v->global[d];
  }
  return global;
}
