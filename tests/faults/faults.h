/* faults.h - what the drivers of faults share: shared memory, shell commands. */
#ifndef TC_FAULTS_H
#define TC_FAULTS_H

#include <sys/mman.h>

#include "tests/unit/seed.h"
#include "tests/unit/ckpt_fixture.h"

/* HDF5 1.10 leaks some of its own memory after a write that failed. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libhdf5"; }

/* Zeroed memory that children share. */
TAP_UNUSED static void *shared(size_t bytes)
{
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TC_ASSERT(p != MAP_FAILED);
  return p;
}

/* A shell command that must succeed. */
TAP_FORMAT(1, 2) static void sh(const char *fmt, ...)
{
  char cmd[2000];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(cmd, sizeof cmd, fmt, ap);
  va_end(ap);
  TC_ASSERT(system(cmd) == 0);
}

#endif
