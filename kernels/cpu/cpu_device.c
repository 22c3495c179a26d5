/* cpu_device.c - the `cpu` device: memory and the table of its kernels. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int cpu_open(struct tc_device *d, struct tc_err *err)
{
  struct tc_cpu *x = tc_calloc(1, sizeof *x);
  x->tile = tc_cpu_tile_pick();
  x->tile_bf16 = tc_cpu_tile_bf16();
  x->bf16 = x->tile_bf16 != NULL;                        /* CPUs with AMX have AVX512_BF16, too */
  int rc = tc_dnnl_new(&x->dnnl, err);
  if (rc < 0) free(x);
  else d->priv = x;
  return rc;
}

static void cpu_close(struct tc_device *d)
{
  tc_dnnl_free(tc_cpu_of(d)->dnnl);
  free(d->priv);
  d->priv = NULL;
}

/* Asks for huge pages for p[size], where the system has them: a pass over the weights then misses few translations of
 * addresses. It is a wish, so failure is no error. The blocks of the C library do not begin at a page's start. Memory that
 * does was slower: tensors of different allocations then compete for the same lines of the caches. */
static void ask_huge_pages(char *p, int64_t size)
{
#ifdef MADV_HUGEPAGE
  const uintptr_t huge = 1 << 21, end = (uintptr_t)p + (uintptr_t)size;
  const uintptr_t from = ((uintptr_t)p + huge - 1) & ~(huge - 1), to = end & ~(huge - 1);
  if (from < to) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
  (void)p, (void)size;
#endif
}

/* First touched by the threads that will use it, each one a contiguous piece. */
static void *cpu_alloc(struct tc_device *d, int64_t bytes)
{
  const int64_t piece = 1 << 21, size = tc_round_up(TC_MAX(bytes, 1), 64);
  char *p = aligned_alloc(64, (size_t)size);
  if (!p) return NULL;
  ask_huge_pages(p, size);
#pragma omp parallel for num_threads(tc_cpu_threads(d, size / 64)) schedule(static)
  for (int64_t i = 0; i < size; i += piece) memset(p + i, 0, (size_t)TC_MIN(piece, size - i));
  return p;
}

static bool cpu_has_bf16(struct tc_device *d) { return tc_cpu_of(d)->bf16; }

#define KERNEL(op, name) [TC_OP_##op] = { .run = tc_cpu_##name },
#define WITH_SCRATCH(op, name) [TC_OP_##op] = { .run = tc_cpu_##name, .scratch = tc_cpu_##name##_scratch },
static const struct tc_kernel kernels[TC_OPS] = {
  TC_CPU_KERNELS(KERNEL, WITH_SCRATCH)
  [TC_OP_ROPE_BWD] = { .run = tc_cpu_rope_bwd, .scratch = tc_cpu_rope_scratch },
  [TC_OP_MATMUL] = { .run = tc_cpu_matmul, .scratch = tc_cpu_matmul_scratch,
                     .prepare = tc_cpu_matmul_prepare, .unprepare = tc_cpu_matmul_unprepare },
  [TC_OP_MUON] = { .run = tc_cpu_muon, .scratch = tc_cpu_muon_scratch,
                   .prepare = tc_cpu_muon_prepare, .unprepare = tc_cpu_muon_unprepare },
};

const struct tc_device_ops tc_cpu_ops = {
  .name = "cpu", .open = cpu_open, .close = cpu_close, .alloc = cpu_alloc, .free = tc_host_free,
  .copy = tc_host_copy, .sync = tc_host_sync, .has_bf16 = cpu_has_bf16, .kernel = kernels,
};
