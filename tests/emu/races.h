/* races.h - private to emu.cc: annotations for the thread sanitizer, by which it finds races within a kernel.
 *
 * With --enable-sanitize=thread each thread of a block is a fiber of the sanitizer, and switching to it
 * orders nothing. What does is what does on a GPU:
 * - a kernel begins after what the host had done, and the host goes on after the kernel;
 * - __syncthreads orders the block, __syncwarp the warp. Shuffles, ldmatrix and mma do not: CUDA promises
 *   no order of memory for them;
 * - a copy by cp.async reads and writes from when it is asked for until it is waited for.
 * Two blocks have no order; the threads of a block are other fibers than those of the block before, so
 * that it shows when both touch the same global memory. Shared memory is a new one for each block.
 *
 * emu.cc itself is compiled without the sanitizer: its own data is no part of the kernel. */
#ifndef TC_EMU_RACES_H
#define TC_EMU_RACES_H

#include "emu.h"

#include <stdio.h>
#include <sys/mman.h>

#ifdef TC_EMU_RACES
#include <sanitizer/tsan_interface.h>

enum { EMU_POOLS = 2 };                          /* of fibers: blocks take turns */
enum { RACE_ALIGN = 4096 };                      /* of shared memory */
static inline size_t race_pages(size_t bytes) { return (bytes + RACE_ALIGN - 1) / RACE_ALIGN * RACE_ALIGN; }

/* Of the sanitizer's own header, for compilers. */
extern "C" void __tsan_read_range(void *p, unsigned long bytes);
extern "C" void __tsan_write_range(void *p, unsigned long bytes);
extern "C" void __tsan_func_entry(void *from);
extern "C" void __tsan_func_exit(void);

static void *race_host;
static inline void *race_fiber(unsigned thread)
{
  void *f = __tsan_create_fiber(0);
  char name[32];
  snprintf(name, sizeof name, "thread %u of a block", thread);
  __tsan_set_fiber_name(f, name);
  return f;
}
static inline void race_is_host(void) { race_host = __tsan_get_current_fiber(); }
static inline void race_enter(void *fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }
static inline void race_leave(void) { race_enter(race_host); }
static inline void race_release(char *at) { __tsan_release(at); }
static inline void race_acquire(char *at) { __tsan_acquire(at); }
/* What an instruction does; `from` is the place in the kernel, for the report. */
static inline void race_read(const void *p, size_t bytes, void *from)
{
  __tsan_func_entry(from);
  __tsan_read_range((void *)p, bytes);
  __tsan_func_exit();
}
static inline void race_write(void *p, size_t bytes, void *from)
{
  __tsan_func_entry(from);
  __tsan_write_range(p, bytes);
  __tsan_func_exit();
}

/* Whole pages, as if no thread had touched them yet. */
static inline void race_forget(void *p, size_t bytes)
{
  if (bytes && mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != p)
    emu_stop("shared memory can't be mapped anew");
}

/* memcpy, without the sanitizer's part in it. */
static inline void race_copy(void *to, const void *from, size_t bytes)
{
  volatile unsigned char *t = (volatile unsigned char *)to;
  const volatile unsigned char *f = (const volatile unsigned char *)from;
  for (size_t i = 0; i < bytes; i++) t[i] = f[i];
}

#else

enum { EMU_POOLS = 1 };
enum { RACE_ALIGN = 128 };
static inline size_t race_pages(size_t bytes) { return bytes; }
static inline void *race_fiber(unsigned) { return NULL; }
static inline void race_is_host(void) {}
static inline void race_enter(void *) {}
static inline void race_leave(void) {}
static inline void race_release(char *) {}
static inline void race_acquire(char *) {}
static inline void race_read(const void *, size_t, void *) {}
static inline void race_write(void *, size_t, void *) {}
static inline void race_forget(void *, size_t) {}
static inline void race_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

#endif
#endif
