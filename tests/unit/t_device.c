/* t_device.c - memory of the devices that share the host's: what they ask the C library for. C11 has
 * aligned_alloc for multiples of the alignment alone; C libraries that take other sizes would hide one. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/kernel.h"
#include "tests/unit/tap.h"

static atomic_bool watched;      /* libraries have calls of their own */
static atomic_int calls, odd;    /* odd: of a size that is no multiple */

/* In place of the C library's. */
void *aligned_alloc(size_t alignment, size_t size)
{
  void *p = NULL;
  if (atomic_load(&watched)) {
    atomic_fetch_add(&calls, 1);
    if (size % alignment) atomic_fetch_add(&odd, 1);
  }
  const int rc = posix_memalign(&p, alignment, size);
  if (rc) errno = rc;
  return rc ? NULL : p;
}

static void check(struct tc_device *d, const char *name, bool host)
{
  static const int64_t bytes[] = { 0, 1, 63, 64, 65, 100, 4097, (1 << 21) + 1 };
  for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
    atomic_store(&calls, 0);
    atomic_store(&odd, 0);
    atomic_store(&watched, true);
    char *p = host ? tc_device_host_alloc(d, bytes[i]) : d->ops->alloc(d, bytes[i]);
    atomic_store(&watched, false);
    ok(p && (uintptr_t)p % 64 == 0, "%s: %lld bytes%s, at a multiple of 64", name, (long long)bytes[i],
       host ? " of the host" : "");
    ok(atomic_load(&calls) == 1 && !atomic_load(&odd), "... in one piece of whole cache lines");
    if (p) memset(p, 1, (size_t)bytes[i]);
    if (host) tc_device_host_free(d, p);
    else d->ops->free(d, p, bytes[i]);
  }
}

int main(void)
{
  static const char *const name[] = { "ref", "cpu" };
  for (size_t i = 0; i < 2; i++) {
    struct tc_device *d;
    struct tc_err err = { 0 };
    if (!is_int(tc_device_open(&d, name[i], 2, &err), 0, "%s opens %s", name[i], err.text)) continue;
    check(d, name[i], false);
    check(d, name[i], true);
    tc_device_close(d);
  }
  return done_testing();
}
