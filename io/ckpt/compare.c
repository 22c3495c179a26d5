/* compare.c - tensors of checkpoints as numbers: read block by block, summed up, compared.
 *
 * Memory is small for any size and shape. Every number comes from data whose checksum was verified. */
#include "io/ckpt/inspect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 16 << 20 };

double tc_ckpt_value(const void *p, int dtype, int64_t i)
{
  switch (dtype) {
  case TC_F32: return ((const float *)p)[i];
  case TC_BF16: return tc_bf16_to_f32(((const uint16_t *)p)[i]);
  case TC_F64: return ((const double *)p)[i];
  case TC_I32: return ((const int32_t *)p)[i];
  default: TC_ASSERT(dtype == TC_U8); return ((const uint8_t *)p)[i];
  }
}

/* ---- a tensor block by block ------------------------------------------------------ */

static int64_t elems_of(const struct tc_ckpt_tensor *t) { return tc_box_elems(t->rank, t->dim); }

void tc_ckpt_walk_new(struct tc_ckpt_walk *w, struct tc_ckpt *c, int tensor, int64_t first, int64_t end)
{
  const struct tc_ckpt_tensor *t = tc_ckpt_at(c, tensor);
  int64_t bytes = (end - first) * (int64_t)tc_dtype_bytes(t->dtype);
  *w = (struct tc_ckpt_walk){ .c = c, .tensor = tensor, .at = first, .end = end };
  w->buf = tc_malloc((size_t)TC_MAX(1, TC_MIN(bytes, BLOCK_BYTES)));
}

/* The largest box that begins at element w->at, is complete in its last dimensions, and fits: start
 * and count. Returns its number of elements. */
static int64_t next_box(const struct tc_ckpt_walk *w, int64_t *start, int64_t *count)
{
  const struct tc_ckpt_tensor *t = tc_ckpt_at(w->c, w->tensor);
  int64_t inner = 1, left = w->at;
  int64_t most = TC_MIN(w->end - w->at, BLOCK_BYTES / (int64_t)tc_dtype_bytes(t->dtype));
  int split = t->rank - 1;        /* the dimension that is cut; earlier ones have count 1 */
  for (int64_t more; split > 0; split--, inner = more) {
    more = inner * t->dim[split];
    if (w->at % more || more > most) break;
  }
  for (int d = t->rank - 1; d >= 0; d--) {
    start[d] = left % t->dim[d];
    count[d] = d > split ? t->dim[d] : 1;
    left /= t->dim[d];
  }
  if (t->rank == 0) return 1;
  count[split] = TC_MIN(most / inner, t->dim[split] - start[split]);
  return count[split] * inner;
}

int tc_ckpt_walk_next(struct tc_ckpt_walk *w, struct tc_err *err)
{
  int64_t start[TC_DIMS] = {0}, count[TC_DIMS] = {0};
  if (w->at >= w->end) return 0;
  w->first = w->at;
  w->n = next_box(w, start, count);
  w->at += w->n;
  TC_TRY(tc_ckpt_read(w->c, w->tensor, start, count, w->buf, err));
  return 1;
}

void tc_ckpt_walk_free(struct tc_ckpt_walk *w) { free(w->buf); }

/* ---- statistics and differences ---------------------------------------------------- */

int tc_ckpt_stats(struct tc_ckpt_stats *s, struct tc_ckpt *c, int tensor, struct tc_err *err)
{
  struct tc_ckpt_walk w;
  int dtype = tc_ckpt_at(c, tensor)->dtype, rc;
  *s = (struct tc_ckpt_stats){ .min = INFINITY, .max = -INFINITY };
  tc_ckpt_walk_new(&w, c, tensor, 0, elems_of(tc_ckpt_at(c, tensor)));
  while ((rc = tc_ckpt_walk_next(&w, err)) == 1) {
    for (int64_t i = 0; i < w.n; i++) {
      double x = tc_ckpt_value(w.buf, dtype, i);
      s->n++;
      if (isnan(x)) {
        s->n_nan++;
        continue;
      }
      s->min = TC_MIN(s->min, x);
      s->max = TC_MAX(s->max, x);
      s->sum += x;
      s->squares += x * x;
    }
  }
  tc_ckpt_walk_free(&w);
  if (s->n == s->n_nan) s->min = s->max = NAN;
  return TC_MIN(rc, 0);
}

/* Bits are compared first: equal bits are equal, NaN or not. A NaN on one side only makes rel NaN, an infinity
 * on one side only makes it infinite; neither is added to ||b||, where it would hide all other
 * differences. */
static void add_block(const void *a, const void *b, int dtype, int64_t n, struct tc_ckpt_delta *d,
                      double *num, double *den)
{
  size_t bytes = tc_dtype_bytes(dtype);
  for (int64_t i = 0; i < n; i++) {
    double y = tc_ckpt_value(b, dtype, i);
    if (isfinite(y)) *den += y * y;
    if (memcmp((const char *)a + (size_t)i * bytes, (const char *)b + (size_t)i * bytes,
               bytes) == 0) continue;
    double x = tc_ckpt_value(a, dtype, i), off = fabs(x - y);
    d->n_bits++;
    if (isnan(x) && isnan(y)) continue;
    if (!(off <= d->max)) d->max = isnan(d->max) ? d->max : off;
    *num += off * off;
  }
}

int tc_ckpt_compare(struct tc_ckpt_delta *d, struct tc_ckpt *a, int ta, struct tc_ckpt *b, int tb,
                   struct tc_err *err)
{
  const struct tc_ckpt_tensor *x = tc_ckpt_at(a, ta), *y = tc_ckpt_at(b, tb);
  *d = (struct tc_ckpt_delta){0};
  if (x->dtype != y->dtype) d->why = "the types differ";
  else if (!tc_ckpt_has_shape(x, y->rank, y->dim)) d->why = "the shapes differ";
  if (d->why) return 0;
  struct tc_ckpt_walk wa, wb;        /* equal shapes and types have equal blocks */
  double num = 0, den = 0;
  int rc = 1;
  tc_ckpt_walk_new(&wa, a, ta, 0, elems_of(x));
  tc_ckpt_walk_new(&wb, b, tb, 0, elems_of(y));
  while (rc == 1) {
    rc = tc_ckpt_walk_next(&wa, err);
    if (rc == 1) rc = tc_ckpt_walk_next(&wb, err);
    if (rc == 1) add_block(wa.buf, wb.buf, x->dtype, wa.n, d, &num, &den);
  }
  tc_ckpt_walk_free(&wa);
  tc_ckpt_walk_free(&wb);
  d->rel = num == 0 ? 0 : sqrt(num) / sqrt(den);
  return rc;
}

/* ---- who wrote what ---------------------------------------------------------------- */

static int cmp_owner(const void *a, const void *b)
{
  const struct tc_ckpt_owner *x = a, *y = b;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

struct tc_ckpt_owner *tc_ckpt_owners(const struct tc_manifest *m, int *n)
{
  struct tc_ckpt_owner *o = tc_calloc((size_t)m->world + (size_t)m->n_files + 1, sizeof *o);
  int k = 0, kept = 0;
  for (int i = 0; i < m->world; i++) o[k++].rank = i;
  for (int i = 0; i < m->n_files; i++) o[k++].rank = m->file[i].writer;
  qsort(o, (size_t)k, sizeof *o, cmp_owner);
  for (int i = 0; i < k; i++)
    if (kept == 0 || o[kept - 1].rank != o[i].rank) o[kept++] = o[i];
  *n = kept;
  return o;
}

const char *tc_ckpt_node(const struct tc_manifest *m, int32_t rank)
{
  if (rank >= m->world) return NULL;
  const char *name = m->meta.rank_names[rank], *on = strstr(name, " on ");
  return on ? on + 4 : name;
}

void tc_ckpt_owner_add(struct tc_ckpt_owner *o, int n, int32_t rank, int64_t bytes)
{
  struct tc_ckpt_owner *at = bsearch(&(struct tc_ckpt_owner){ .rank = rank }, o, (size_t)n, sizeof *o, cmp_owner);
  TC_ASSERT(at != NULL);
  at->slices++;
  at->bytes = tc_add_sizes(at->bytes, bytes);
}
