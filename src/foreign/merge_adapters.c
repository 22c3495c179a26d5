/* merge_adapters.c - a checkpoint's adapters, the weights beside them, and both merged. */
#include "src/foreign/impl.h"
#include "src/foreign/digest.h"
#include "src/foreign/stored.h"

#include <stdlib.h>
#include <string.h>

#include "io/ckpt/inspect.h"
#include "src/program/setup.h"

/* ---- the base --------------------------------------------------------------------------- */

/* The digest of the weights that c has. */
static int digest_of(uint64_t *digest, const struct tc_export *x, struct tc_ckpt *c, struct tc_err *err)
{
  const struct tc_stored s = { .ckpt = c };
  struct tc_foreign_part *all;
  int rc = 0;
  *digest = 0;
  const int n = tc_foreign_parts(&all, &x->model, TC_FORM_OURS, false);
  for (int i = 0; i < n && rc == 0; i++) {
    struct tc_box box = { .start = { 0 } };
    memcpy(box.count, all[i].our_dim, sizeof box.count);
    rc = tc_stored_digest(digest, &s, all[i].ours, all[i].our_rank, all[i].our_dim, &box, 1, err);
  }
  free(all);
  return rc;
}

int tc_export_known_base(const struct tc_export *x, char *known, struct tc_err *err)
{
  const struct tc_base noted = tc_base_noted(x->c);
  uint64_t digest;
  snprintf(known, TC_DIGEST + 1, "%s", noted.digest);
  if (*known || noted.elsewhere) return 0;
  TC_TRY(digest_of(&digest, x, x->c, err));
  tc_digest_text(known, digest);
  return 0;
}

static int check_digest(const struct tc_export *x, struct tc_err *err)
{
  char known[TC_DIGEST + 1];
  uint64_t digest;
  TC_TRY(tc_export_known_base(x, known, err));
  TC_TRY(digest_of(&digest, x, x->base, err));
  return tc_base_check(known, x->c->path, digest, x->base->path, tc_has_adapters(x->base), err);
}

int tc_export_base(struct tc_export *x, struct tc_err *err)
{
  const struct tc_base noted = tc_base_noted(x->c);
  x->base = x->c;
  if (!x->o->base && !noted.elsewhere) return 0;
  if (tc_ckpt_open_held(&x->base, x->o->base ? x->o->base : noted.path, err) < 0) {
    x->base = x->c;
    return tc_fail(err, err->status, "the weights that the adapters of %s belong to: %s; --base PATH names their checkpoint",
                   x->c->path, err->text);
  }
  return tc_ckpt_is_same(x->base, x->c) ? 0 : check_digest(x, err);
}

/* ---- merged ------------------------------------------------------------------------------- */

/* A whole matrix of a checkpoint; owned by the caller. */
static int read_matrix(float **out, struct tc_ckpt *c, const struct tc_foreign_part *t, struct tc_err *err)
{
  const int64_t zero[TC_DIMS] = { 0 };
  const int k = tc_ckpt_find(c, t->ours);
  *out = NULL;
  if (k < 0 || tc_ckpt_at(c, k)->dtype != TC_F32 || !tc_ckpt_has_shape(tc_ckpt_at(c, k), t->our_rank, t->our_dim))
    return tc_fail(err, TC_EUSER, "%s has no f32 tensor %s of the shape that its adapters have", c->path, t->ours);
  *out = tc_malloc((size_t)t->elems * sizeof **out);
  return tc_ckpt_read(c, k, zero, tc_ckpt_at(c, k)->dim, *out, err);
}

/* w[rows of t, cols] += factor B A. */
static void add_product(float *w, const struct tc_foreign_part *t, const struct tc_foreign_part ab[2], const float *a,
                        const float *b, float factor)
{
  const int64_t rank = ab[0].rows, cols = t->cols;
  float *sum = tc_malloc((size_t)cols * sizeof *sum);
  for (int64_t i = 0; i < t->rows; i++) {
    float *row = w + tc_foreign_row(t, TC_FORM_HF, i) * cols;
    const float *of = b + tc_foreign_row(&ab[1], TC_FORM_HF, i) * rank;
    memset(sum, 0, (size_t)cols * sizeof *sum);
    for (int64_t r = 0; r < rank; r++)
      for (int64_t k = 0; k < cols; k++) sum[k] += of[r] * a[r * cols + k];
    for (int64_t k = 0; k < cols; k++) row[k] += factor * sum[k];
  }
  free(sum);
}

int tc_export_merge(struct tc_export *x, const char *ours, float *whole, struct tc_err *err)
{
  int rc = 0;
  for (int k = 0; k < x->n_adapters && rc == 0; k += 2) {
    const struct tc_foreign_part *ab = &x->adapter[k], *t = &x->hf[ab->of];
    float *a = NULL, *b = NULL;
    if (strcmp(t->ours, ours)) continue;
    rc = read_matrix(&a, x->c, &ab[0], err);
    if (rc == 0) rc = read_matrix(&b, x->c, &ab[1], err);
    if (rc == 0) add_product(whole, t, ab, a, b, x->factor);
    TC_FREE(a, b);
  }
  return rc;
}

/* ---- what the checkpoint has ------------------------------------------------------------------- */

int tc_export_adapters(struct tc_export *x, struct tc_err *err)
{
  struct tc_lora lora;
  if (!tc_has_adapters(x->c)) return 0;
  TC_TRY(tc_setup_lora(&lora, x->cfg, &x->model, err));
  x->factor = lora.factor;
  tc_foreign_parts(&x->hf, &x->model, TC_FORM_HF, false);
  const int n = tc_adapter_parts(&x->adapter, &x->model, lora.rank);
  for (int i = 0; i < n; i += 2) {
    if (tc_ckpt_find(x->c, x->adapter[i].ours) < 0) continue;
    memmove(&x->adapter[x->n_adapters], &x->adapter[i], 2 * sizeof *x->adapter);
    x->n_adapters += 2;
  }
  return x->n_adapters ? 0 : tc_fail(err, TC_EUSER, "%s has none of the adapters that its options mean", x->c->path);
}
