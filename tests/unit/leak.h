/* leak.h - that a function which makes things and frees them leaves no memory and no descriptor
 * behind. */
#ifndef TC_LEAK_H
#define TC_LEAK_H

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include "tests/unit/tap.h"

/* Bytes that the program has allocated; 0: unknown (an older glibc, or a sanitizer's allocator,
 * which finds leaks itself). */
static int64_t in_use(void)
{
#if defined __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 m = mallinfo2();
  return (int64_t)(m.uordblks + m.hblkhd);
#endif
#endif
  return 0;
}

static int lowest_descriptor(void)
{
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(fd);
  return fd;
}

/* Calls f `times` times twice: the first calls fill the allocator's caches. What the second ones
 * add is a leak if it is as much as a small block for each call. */
static void leaves_nothing(const char *what, void (*f)(void), int times)
{
  for (int i = 0; i < times; i++) f();
  const int64_t before = in_use();
  const int fd = lowest_descriptor();
  for (int i = 0; i < times; i++) f();
  const int64_t more = in_use() - before;
  if (before > 0)
    ok(more < 16 * times, "%s leaves no memory behind: %lld bytes after %d times", what,
       (long long)more, times);
  else
    skip("how much memory is in use is unknown");
  is_int(lowest_descriptor(), fd, "%s leaves no descriptor behind", what);
}

#endif
