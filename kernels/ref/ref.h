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

/* State k of an update, rounded by the bits that op.def says. */
static inline void tc_ref_put_state(const struct tc_call *c, int k, int64_t i, double x)
{
  const struct tc_view *y = &c->out[1 + k];
  const uint32_t bits = tc_bits(c->rt->seed, (uint32_t)c->k[0], (uint32_t)c->rt->step, (uint64_t)tc_view_global(y, i));
  if (y->dtype == TC_BF16) ((uint16_t *)y->data)[i] = tc_f32_to_bf16_by((float)x, bits >> 16 * k);
  else tc_ref_put(y, i, x);
}

static inline int32_t tc_ref_int(const struct tc_view *v, int64_t i)
{
  TC_ASSERT(v->dtype == TC_I32);
  return ((const int32_t *)v->data)[i];
}

/* The position of row n of x in its sequence of T, or in its document. */
static inline int64_t tc_ref_position(const struct tc_call *c, const struct tc_view *x, int64_t n, int64_t T,
                                      const int32_t *starts)
{
  return tc_call_row(c, x, n) % T - (starts ? starts[n] : 0);
}

/* Every op, and the function that runs it: tc_ref_NAME. */
#define TC_REF_KERNELS(K) \
  /* ref_elem.c */ \
  K(BIAS, bias) K(ADD, add) K(CAST, cast) K(SCALE, scale) K(DROPOUT, dropout) K(SUM, sum) K(BIAS_BWD, bias_bwd) \
  K(FILL, fill) K(ACCUM, accum) K(SQNORM, sqnorm) K(CLIP, clip) K(ADAMW, adamw) K(SGD, sgd) K(MOMENTUM, momentum) K(LION, lion) \
  K(NORMAL, normal) \
  /* ref_muon.c */ \
  K(MUON, muon) \
  /* ref_act.c */ \
  K(ACT, act) K(ACT_BWD, act_bwd) K(GLU, glu) K(GLU_BWD, glu_bwd) K(SOFTCAP, softcap) K(SOFTCAP_BWD, softcap_bwd) \
  /* ref_model.c */ \
  K(EMBED, embed) K(POS, pos) K(LAYERNORM, layernorm) K(MATMUL, matmul) K(ATTN_CACHE, attn_cache) K(ATTN, attn) K(KV, kv) \
  K(LAYERNORM_BWD, layernorm_bwd) K(ATTN_BWD, attn_bwd) K(KV_BWD, kv_bwd) K(SPREAD, spread) K(ADD_PART, add_part) K(PART, part) \
  K(SPREAD_BWD, spread_bwd) K(EMBED_BWD, embed_bwd) K(POS_BWD, pos_bwd) \
  /* ref_llama.c */ \
  K(RMSNORM, rmsnorm) K(RMSNORM_BWD, rmsnorm_bwd) K(QKNORM, qknorm) K(QKNORM_BWD, qknorm_bwd) K(ROPE, rope) \
  K(ROPE_BWD, rope_bwd) K(QK_SQUARES, qk_squares) K(QK_SCALE, qk_scale) K(QK_SCALE_BWD, qk_scale_bwd) \
  K(QK_SQUARES_BWD, qk_squares_bwd) \
  /* ref_head.c */ \
  K(ROWMAX, rowmax) K(SUMEXP, sumexp) K(PICK, pick) K(NLL, nll) K(SUMEXP_BWD, sumexp_bwd) K(PICK_BWD, pick_bwd) \
  K(NLL_BWD, nll_bwd)

#define DECLARE(op, name) int tc_ref_##name(struct tc_device *d, const struct tc_call *c);
TC_REF_KERNELS(DECLARE)
#undef DECLARE

#endif
