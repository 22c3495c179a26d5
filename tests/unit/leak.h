/* leak.h - whether what is made and freed again and again leaves memory or
 * descriptors behind. */
#ifndef TC_LEAK_H
#define TC_LEAK_H

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include "tests/unit/tap.h"

static int64_t in_use(void)
{
#if defined __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 33)
  return (int64_t)mallinfo2().uordblks;
#endif
#endif
  return 0;
}

static int next_descriptor(void)
{
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(fd);
  return fd;
}

/* The allocator keeps some of what is freed: so it is done some times before,
 * and what stays of less than the smallest block each time is not what f left.
 */
static void leaves_nothing(const char *what, void (*f)(void), int times)
{
  for (int i = 0; i < times; i++)
    f();
  const int64_t before = in_use();
  const int fd = next_descriptor();
  for (int i = 0; i < times; i++)
    f();
  const int64_t more = in_use() - before;
  ok(more < 16 * times, "%s leaves no memory behind: %lld bytes after %d times", what,
     (long long)more, times);
  is_int(next_descriptor(), fd, "... nor descriptors");
}

#endif
