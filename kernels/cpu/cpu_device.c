/* cpu_device.c - the `cpu` device: memory and the table of its kernels. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int cpu_open(struct tc_device *d, struct tc_err *err)
{
  struct tc_cpu *x = tc_calloc(1, sizeof *x);
  x->tile = tc_cpu_tile_pick();
#if defined __x86_64__
  __builtin_cpu_init();
  x->bf16 = __builtin_cpu_supports("avx512bf16");        /* CPUs with AMX have this, too */
#endif
  int rc = tc_dnnl_new(&x->dnnl, err);
  if (rc < 0) {
    free(x);
    return rc;
  }
  d->priv = x;
  return 0;
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

static void cpu_free(struct tc_device *d, void *p, int64_t bytes)
{
  if (d->poison) tc_device_poison(d, p, bytes);
  free(p);
}

static void cpu_copy(struct tc_device *d, void *dst, const void *src, int64_t bytes)
{
  if (bytes > 0) memmove(dst, src, (size_t)bytes);
}

static void cpu_sync(struct tc_device *d) { }

static bool cpu_has_bf16(struct tc_device *d) { return tc_cpu_of(d)->bf16; }

static const struct tc_kernel kernels[TC_OPS] = {
  [TC_OP_EMBED] = { .run = tc_cpu_embed },
  [TC_OP_POS] = { .run = tc_cpu_pos },
  [TC_OP_LAYERNORM] = { .run = tc_cpu_layernorm, .scratch = tc_cpu_layernorm_scratch },
  [TC_OP_RMSNORM] = { .run = tc_cpu_rmsnorm, .scratch = tc_cpu_rmsnorm_scratch },
  [TC_OP_RMSNORM_BWD] = { .run = tc_cpu_rmsnorm_bwd, .scratch = tc_cpu_rmsnorm_bwd_scratch },
  [TC_OP_QKNORM] = { .run = tc_cpu_qknorm, .scratch = tc_cpu_qknorm_scratch },
  [TC_OP_QKNORM_BWD] = { .run = tc_cpu_qknorm_bwd, .scratch = tc_cpu_qknorm_bwd_scratch },
  [TC_OP_ROPE] = { .run = tc_cpu_rope, .scratch = tc_cpu_rope_scratch },
  [TC_OP_ROPE_BWD] = { .run = tc_cpu_rope_bwd, .scratch = tc_cpu_rope_scratch },
  [TC_OP_SWIGLU] = { .run = tc_cpu_swiglu },
  [TC_OP_SWIGLU_BWD] = { .run = tc_cpu_swiglu_bwd },
  [TC_OP_MATMUL] = { .run = tc_cpu_matmul, .scratch = tc_cpu_matmul_scratch,
                     .prepare = tc_cpu_matmul_prepare, .unprepare = tc_cpu_matmul_unprepare },
  [TC_OP_BIAS] = { .run = tc_cpu_bias },
  [TC_OP_GELU] = { .run = tc_cpu_gelu },
  [TC_OP_ADD] = { .run = tc_cpu_add },
  [TC_OP_CAST] = { .run = tc_cpu_cast },
  [TC_OP_DROPOUT] = { .run = tc_cpu_dropout },
  [TC_OP_ATTN_CACHE] = { .run = tc_cpu_attn_cache, .scratch = tc_cpu_attn_cache_scratch },
  [TC_OP_ATTN] = { .run = tc_cpu_attn, .scratch = tc_cpu_attn_scratch },
  [TC_OP_ROWMAX] = { .run = tc_cpu_rowmax },
  [TC_OP_SUMEXP] = { .run = tc_cpu_sumexp },
  [TC_OP_PICK] = { .run = tc_cpu_pick },
  [TC_OP_NLL] = { .run = tc_cpu_nll },
  [TC_OP_SUM] = { .run = tc_cpu_sum },
  [TC_OP_LAYERNORM_BWD] = { .run = tc_cpu_layernorm_bwd,
                            .scratch = tc_cpu_layernorm_bwd_scratch },
  [TC_OP_BIAS_BWD] = { .run = tc_cpu_bias_bwd, .scratch = tc_cpu_bias_bwd_scratch },
  [TC_OP_GELU_BWD] = { .run = tc_cpu_gelu_bwd },
  [TC_OP_ATTN_BWD] = { .run = tc_cpu_attn_bwd, .scratch = tc_cpu_attn_bwd_scratch },
  [TC_OP_EMBED_BWD] = { .run = tc_cpu_embed_bwd, .scratch = tc_cpu_embed_bwd_scratch },
  [TC_OP_POS_BWD] = { .run = tc_cpu_pos_bwd, .scratch = tc_cpu_pos_bwd_scratch },
  [TC_OP_SUMEXP_BWD] = { .run = tc_cpu_sumexp_bwd },
  [TC_OP_PICK_BWD] = { .run = tc_cpu_pick_bwd },
  [TC_OP_NLL_BWD] = { .run = tc_cpu_nll_bwd },
  [TC_OP_FILL] = { .run = tc_cpu_fill },
  [TC_OP_ACCUM] = { .run = tc_cpu_accumulate },
  [TC_OP_SQNORM] = { .run = tc_cpu_sqnorm, .scratch = tc_cpu_sqnorm_scratch },
  [TC_OP_CLIP] = { .run = tc_cpu_clip },
  [TC_OP_ADAMW] = { .run = tc_cpu_adamw },
  [TC_OP_SGD] = { .run = tc_cpu_sgd },
  [TC_OP_NORMAL] = { .run = tc_cpu_normal },
};

const struct tc_device_ops tc_cpu_ops = {
  .name = "cpu", .open = cpu_open, .close = cpu_close, .alloc = cpu_alloc, .free = cpu_free,
  .copy = cpu_copy, .sync = cpu_sync, .has_bf16 = cpu_has_bf16, .kernel = kernels,
};
