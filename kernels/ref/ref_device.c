/* ref_device.c - the `ref` device: memory and the table of its kernels. */
#include "kernels/ref/ref.h"

#include <stdlib.h>
#include <string.h>

static int ref_open(struct tc_device *d, struct tc_err *err) { return 0; }

static void ref_close(struct tc_device *d) { }

static void *ref_alloc(struct tc_device *d, int64_t bytes)
{
  size_t size = (size_t)tc_round_up(TC_MAX(bytes, 1), 64);
  void *p = aligned_alloc(64, size);
  if (p) memset(p, 0, size);
  return p;
}

static void ref_free(struct tc_device *d, void *p, int64_t bytes)
{
  if (d->poison) tc_device_poison(d, p, bytes);
  free(p);
}

static void ref_copy(struct tc_device *d, void *dst, const void *src, int64_t bytes)
{
  if (bytes > 0) memmove(dst, src, (size_t)bytes);
}

static void ref_sync(struct tc_device *d) { }

static bool ref_has_bf16(struct tc_device *d) { return true; }

static const struct tc_kernel kernels[TC_OPS] = {
  [TC_OP_EMBED] = { .run = tc_ref_embed },
  [TC_OP_POS] = { .run = tc_ref_pos },
  [TC_OP_LAYERNORM] = { .run = tc_ref_layernorm },
  [TC_OP_RMSNORM] = { .run = tc_ref_rmsnorm },
  [TC_OP_RMSNORM_BWD] = { .run = tc_ref_rmsnorm_bwd },
  [TC_OP_QKNORM] = { .run = tc_ref_qknorm },
  [TC_OP_QKNORM_BWD] = { .run = tc_ref_qknorm_bwd },
  [TC_OP_ROPE] = { .run = tc_ref_rope },
  [TC_OP_ROPE_BWD] = { .run = tc_ref_rope_bwd },
  [TC_OP_SWIGLU] = { .run = tc_ref_swiglu },
  [TC_OP_SWIGLU_BWD] = { .run = tc_ref_swiglu_bwd },
  [TC_OP_MATMUL] = { .run = tc_ref_matmul },
  [TC_OP_BIAS] = { .run = tc_ref_bias },
  [TC_OP_GELU] = { .run = tc_ref_gelu },
  [TC_OP_ADD] = { .run = tc_ref_add },
  [TC_OP_CAST] = { .run = tc_ref_cast },
  [TC_OP_DROPOUT] = { .run = tc_ref_dropout },
  [TC_OP_ATTN_CACHE] = { .run = tc_ref_attn_cache },
  [TC_OP_ATTN] = { .run = tc_ref_attn },
  [TC_OP_ROWMAX] = { .run = tc_ref_rowmax },
  [TC_OP_SUMEXP] = { .run = tc_ref_sumexp },
  [TC_OP_PICK] = { .run = tc_ref_pick },
  [TC_OP_NLL] = { .run = tc_ref_nll },
  [TC_OP_SUM] = { .run = tc_ref_sum },
  [TC_OP_LAYERNORM_BWD] = { .run = tc_ref_layernorm_bwd },
  [TC_OP_BIAS_BWD] = { .run = tc_ref_bias_bwd },
  [TC_OP_GELU_BWD] = { .run = tc_ref_gelu_bwd },
  [TC_OP_ATTN_BWD] = { .run = tc_ref_attn_bwd },
  [TC_OP_EMBED_BWD] = { .run = tc_ref_embed_bwd },
  [TC_OP_POS_BWD] = { .run = tc_ref_pos_bwd },
  [TC_OP_SUMEXP_BWD] = { .run = tc_ref_sumexp_bwd },
  [TC_OP_PICK_BWD] = { .run = tc_ref_pick_bwd },
  [TC_OP_NLL_BWD] = { .run = tc_ref_nll_bwd },
  [TC_OP_FILL] = { .run = tc_ref_fill },
  [TC_OP_ACCUM] = { .run = tc_ref_accum },
  [TC_OP_SQNORM] = { .run = tc_ref_sqnorm },
  [TC_OP_CLIP] = { .run = tc_ref_clip },
  [TC_OP_ADAMW] = { .run = tc_ref_adamw },
  [TC_OP_SGD] = { .run = tc_ref_sgd },
  [TC_OP_NORMAL] = { .run = tc_ref_normal },
};

const struct tc_device_ops tc_ref_ops = {
  .name = "ref", .open = ref_open, .close = ref_close, .alloc = ref_alloc, .free = ref_free,
  .copy = ref_copy, .sync = ref_sync, .has_bf16 = ref_has_bf16, .kernel = kernels,
};
