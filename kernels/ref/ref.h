/* ref.h - private to the `ref` device: naive kernels that read and write any of fp32, bf16 and
 * fp64 as double. They are the reference for tests of the other devices: one loop nest per op, no blocking,
 * no threads, every sum in double in the order of the indices. */
#ifndef TC_REF_H
#define TC_REF_H

#include "kernels/kernel.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"      /* all kernels have one type; none here needs its device */

static inline double tc_ref_get(const struct tc_view *v, int64_t i)
{
  switch (v->dtype) {
  case TC_F32: return ((const float *)v->data)[i];
  case TC_F64: return ((const double *)v->data)[i];
  case TC_BF16: return tc_bf16_to_f32(((const uint16_t *)v->data)[i]);
  default: TC_ASSERT(!"a floating type"); return 0;
  }
}

static inline void tc_ref_put(const struct tc_view *v, int64_t i, double x)
{
  switch (v->dtype) {
  case TC_F32: ((float *)v->data)[i] = (float)x; break;
  case TC_F64: ((double *)v->data)[i] = x; break;
  case TC_BF16: ((uint16_t *)v->data)[i] = tc_f32_to_bf16((float)x); break;
  default: TC_ASSERT(!"a floating type");
  }
}

/* Writes element i of output k, or adds to it if the call's acc bit is set. */
static inline void tc_ref_out(const struct tc_call *c, int k, int64_t i, double x)
{
  tc_ref_put(&c->out[k], i, c->acc >> k & 1 ? x + tc_ref_get(&c->out[k], i) : x);
}

static inline int32_t tc_ref_int(const struct tc_view *v, int64_t i)
{
  TC_ASSERT(v->dtype == TC_I32);
  return ((const int32_t *)v->data)[i];
}

/* The position of row n of x in its sequence of T, or in its document. */
static inline int64_t tc_ref_position(const struct tc_view *x, int64_t n, int64_t T, const int32_t *starts)
{
  return (x->off[0] + n) % T - (starts ? starts[n] : 0);
}

typedef int tc_ref_fn(struct tc_device *d, const struct tc_call *c);

/* ref_elem.c */
tc_ref_fn tc_ref_bias, tc_ref_bias_bwd, tc_ref_gelu, tc_ref_gelu_bwd, tc_ref_add, tc_ref_cast;
tc_ref_fn tc_ref_dropout, tc_ref_fill, tc_ref_accum, tc_ref_sqnorm, tc_ref_clip, tc_ref_adamw;
tc_ref_fn tc_ref_sgd, tc_ref_normal, tc_ref_sum;
/* ref_model.c */
tc_ref_fn tc_ref_embed, tc_ref_embed_bwd, tc_ref_pos, tc_ref_pos_bwd, tc_ref_layernorm;
tc_ref_fn tc_ref_layernorm_bwd, tc_ref_matmul, tc_ref_attn, tc_ref_attn_bwd, tc_ref_attn_cache;
/* ref_llama.c */
tc_ref_fn tc_ref_rmsnorm, tc_ref_rmsnorm_bwd, tc_ref_qknorm, tc_ref_qknorm_bwd, tc_ref_rope;
tc_ref_fn tc_ref_rope_bwd, tc_ref_swiglu, tc_ref_swiglu_bwd;
/* ref_head.c */
tc_ref_fn tc_ref_rowmax, tc_ref_sumexp, tc_ref_sumexp_bwd, tc_ref_pick, tc_ref_pick_bwd;
tc_ref_fn tc_ref_nll, tc_ref_nll_bwd;

#endif
