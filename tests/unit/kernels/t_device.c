/* t_device.c - memory of the devices that share the host's: what they ask the C library for. C11 has
 * aligned_alloc for multiples of the alignment alone; C libraries that take other sizes would hide one. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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
  if (rc == 0) memset(p, 0xa5, size);             /* as memory is that was used before */
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

static bool all(const char *p, int64_t bytes, int value)
{
  for (int64_t i = 0; i < bytes; i++)
    if ((unsigned char)p[i] != value) return false;
  return true;
}

static struct { void *at; int64_t bytes; int byte, calls; } filled;

static void note_fill(struct tc_device *d, void *p, int byte, int64_t bytes)
{
  (void)d;
  filled.at = p, filled.byte = byte, filled.bytes = bytes, filled.calls++;
}

/* What memory holds when it is taken, copied and given back. */
static void check_content(struct tc_device *d, const char *name)
{
  static const int64_t bytes[] = { 1, 64, (2 << 21) + 5, (5 << 21) - 1 };
  struct tc_device_ops watching = *d->ops;
  const struct tc_device_ops *own = d->ops;
  watching.fill = note_fill;
  for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
    char *p = d->ops->alloc(d, bytes[i]);
    ok(p && all(p, bytes[i], 0), "%s: %lld new bytes are 0", name, (long long)bytes[i]);
    for (int poison = 0; poison < 2; poison++) {
      d->ops = &watching;
      d->poison = poison;
      filled.calls = 0;
      d->ops->free(d, p, bytes[i]);
      d->ops = own;
      ok(filled.calls == poison && (!poison || (filled.at == p && filled.byte == 0xff && filled.bytes == bytes[i])),
         "... and %s when given back", poison ? "NaN" : "left as they are");
      p = d->ops->alloc(d, bytes[i]);
    }
    d->poison = false;
    d->ops->free(d, p, bytes[i]);
  }
  char a[] = "abcdef";
  d->ops->copy(d, a, a + 2, 0);
  d->ops->copy(d, NULL, NULL, 0);
  d->ops->copy(d, a, NULL, -1);
  ok(!strcmp(a, "abcdef"), "%s: nothing copied is nothing changed", name);
  d->ops->copy(d, a, a + 5, 1);
  ok(!strcmp(a, "fbcdef"), "%s: a byte is copied", name);
  d->ops->copy(d, a + 1, a, 4);
  ok(!strcmp(a, "ffbcdf"), "%s: what overlaps is copied", name);
  d->ops->sync(d);
}

static void check_bf16(struct tc_device *d, bool ref)
{
  char line[8000];
  bool has = ref;
  FILE *f = fopen("/proc/cpuinfo", "r");
  while (f && fgets(line, sizeof line, f)) has |= strstr(line, "avx512_bf16") || strstr(line, "amx_bf16");
  if (f) fclose(f);
  is_int(d->ops->has_bf16(d), has, "%s: %s bf16", d->ops->name, has ? "has" : "has no");
}

static void check_names(void)
{
  struct tc_device *d = NULL;
  struct tc_err err = { 0 };
  is_int(tc_device_open(&d, "gpu", 1, &err), TC_EUSER, "a device of another name");
  is_str(err.text, "device \"gpu\" is not known; set run.device to cpu, cuda or ref", "... is refused");
  ok(d == NULL, "... and not made");
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
    check_content(d, name[i]);
    check_bf16(d, i == 0);
    tc_device_close(d);
  }
  check_names();
  return done_testing();
}
