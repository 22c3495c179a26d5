/* stored.c - tensors of a checkpoint or of another program's model, in parts. */
#include "src/foreign/stored.h"
#include "src/foreign/digest.h"

#include <stdlib.h>

const char *tc_stored_path(const struct tc_stored *s)
{
  return s->ckpt ? tc_ckpt_path(s->ckpt) : tc_foreign_path(s->foreign);
}

int tc_stored_find(const struct tc_stored *s, const char *name)
{
  return s->ckpt ? tc_ckpt_find(s->ckpt, name) : tc_foreign_find(s->foreign, name);
}

const struct tc_ckpt_tensor *tc_stored_at(const struct tc_stored *s, int k)
{
  return s->ckpt ? tc_ckpt_at(s->ckpt, k) : tc_foreign_at(s->foreign, k);
}

int tc_stored_read(const struct tc_stored *s, int k, const struct tc_box *box, void *dst, struct tc_err *err)
{
  return s->ckpt ? tc_ckpt_read(s->ckpt, k, box->start, box->count, dst, err)
                 : tc_foreign_read(s->foreign, k, box->start, box->count, dst, err);
}

/* Numbers of one type as the other; the types are fp32 and bf16. */
static void convert(void *to, int dtype, const void *from, int64_t n)
{
  const float *f32 = from;
  const uint16_t *bf16 = from;
  for (int64_t i = 0; i < n && dtype == TC_BF16; i++) ((uint16_t *)to)[i] = tc_f32_to_bf16(f32[i]);
  for (int64_t i = 0; i < n && dtype == TC_F32; i++) ((float *)to)[i] = tc_bf16_to_f32(bf16[i]);
}

/* Part `at` of a box: of dimension `d` up to `each` indices, of those before it one. */
static struct tc_box part_of(const struct tc_box *box, int d, int64_t each, int64_t at)
{
  struct tc_box part = *box;
  const int64_t along = tc_ceil_div(box->count[d], each), first = at % along * each;
  part.start[d] += first;
  part.count[d] = TC_MIN(each, box->count[d] - first);
  at /= along;
  for (int k = d - 1; k >= 0; k--) {
    part.start[k] += at % box->count[k];
    part.count[k] = 1;
    at /= box->count[k];
  }
  return part;
}

int tc_stored_parts(const struct tc_stored *s, int k, const struct tc_box *box, int dtype, tc_take_fn *take, void *ctx,
                    struct tc_err *err)
{
  enum { MOST = 1 << 20 };
  const struct tc_ckpt_tensor *t = tc_stored_at(s, k);
  const bool converts = dtype != t->dtype;
  int d = 0;
  while (d + 1 < t->rank && tc_box_elems(t->rank - d - 1, box->count + d + 1) > MOST) d++;
  const int64_t row = t->rank ? tc_box_elems(t->rank - d - 1, box->count + d + 1) : 1;
  const int64_t each = t->rank ? TC_MAX(TC_MIN(box->count[d], MOST / TC_MAX(row, 1)), 1) : 1;
  const int64_t parts = t->rank ? tc_box_elems(d, box->count) * tc_ceil_div(box->count[d], each) : 1;
  void *read = tc_malloc((size_t)(each * row) * tc_dtype_bytes(t->dtype) + 1);
  void *converted = converts ? tc_malloc((size_t)(each * row) * tc_dtype_bytes(dtype) + 1) : NULL;
  int rc = 0;
  for (int64_t at = 0; at < parts && rc == 0; at++) {
    const struct tc_box part = t->rank ? part_of(box, d, each, at) : *box;
    rc = tc_stored_read(s, k, &part, read, err);
    if (rc == 0 && converts) convert(converted, dtype, read, tc_box_elems(t->rank, part.count));
    if (rc == 0) take(ctx, &part, converts ? converted : read);
  }
  TC_FREE(read, converted);
  return rc;
}

struct digesting { const struct tc_ckpt_tensor *t; uint64_t sum; };

static void digest_part(void *digesting, const struct tc_box *part, const void *value)
{
  struct digesting *x = digesting;
  x->sum += tc_digest_box(x->t, part->start, part->count, value);
}

int tc_stored_digest(uint64_t *digest, const struct tc_stored *s, const char *name, int rank, const int64_t *dim,
                     const struct tc_box *box, int n, struct tc_err *err)
{
  const int k = tc_stored_find(s, name);
  if (k < 0) return tc_fail(err, TC_EUSER, "%s has no tensor %s", tc_stored_path(s), name);
  struct digesting x = { tc_stored_at(s, k), 0 };
  if (!tc_ckpt_has_shape(x.t, rank, dim))
    return tc_fail(err, TC_EUSER, "%s is of another model: its tensor %s has another shape", tc_stored_path(s), name);
  if (x.t->dtype != TC_F32 && x.t->dtype != TC_BF16)
    return tc_fail(err, TC_EUSER, "%s: tensor %s is of another type than f32 and bf16", tc_stored_path(s), name);
  for (int b = 0; b < n; b++) TC_TRY(tc_stored_parts(s, k, &box[b], TC_F32, digest_part, &x, err));
  *digest += x.sum;
  return 0;
}
