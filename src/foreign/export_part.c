/* export_part.c - what all exports write: tensors of the checkpoint in the order of another program, and files beside them. */
#include "src/foreign/impl.h"

#include <stdlib.h>
#include <string.h>

#include "io/ckpt/inspect.h"
#include "src/files/files.h"
#include "src/foreign/stored.h"

enum { BATCH = 1 << 18 };         /* elements written at a time */

int tc_export_values(struct tc_export *x, struct tc_output *f, const float *v, int64_t n,
                      uint16_t *bf16, struct tc_err *err)
{
  int64_t bytes = n * (int64_t)tc_dtype_bytes(x->o->dtype);
  x->bytes += bytes;
  if (x->o->dtype == TC_F32) return tc_output_write(f, v, bytes, err);
  for (int64_t i = 0; i < n; i++) bf16[i] = tc_f32_to_bf16(v[i]);
  return tc_output_write(f, bf16, bytes, err);
}

/* ---- the model's tensors in another order ------------------------------------------- */

/* The checkpoint that has a tensor. */
static struct tc_ckpt *ckpt_of(const struct tc_export *x, const struct tc_foreign_part *t)
{ return x->base && !strstr(t->ours, ".lora_") ? x->base : x->c; }

int tc_export_find(const struct tc_export *x, const struct tc_foreign_part *t, struct tc_err *err)
{
  struct tc_ckpt *c = ckpt_of(x, t);
  int k = tc_ckpt_find(c, t->ours);
  if (k < 0)
    return tc_fail(err, TC_EUSER, "%s has no tensor %s: not a checkpoint of this program's GPT",
                   c->path, t->ours);
  const struct tc_ckpt_tensor *ct = tc_ckpt_at(c, k);
  if ((ct->dtype != TC_F32 && !(x->base && ct->dtype == TC_BF16)) || tc_box_elems(ct->rank, ct->dim) != t->elems)
    return tc_fail(err, TC_EUSER, "%s: tensor %s is not the f32 tensor of %lld elements that its "
                   "model (%s) has", c->path, t->ours, (long long)t->elems,
                   c->m->meta.model);
  return k;
}

struct putting { float *to; int rank; };

static void put_part(void *putting, const struct tc_box *part, const void *value)
{
  struct putting *p = putting;
  const int64_t n = tc_box_elems(p->rank, part->count);
  memcpy(p->to, value, (size_t)n * sizeof *p->to);
  p->to += n;
}

/* Reads tensor k, of part t, into x->whole, where the next part of it finds it, with its adapters merged. */
static int read_whole(struct tc_export *x, int k, const struct tc_foreign_part *t, struct tc_err *err)
{
  if (x->whole && !strcmp(x->whole_is, t->ours)) return 0;
  free(x->whole);
  x->whole = tc_malloc((size_t)t->elems * sizeof *x->whole);
  snprintf(x->whole_is, sizeof x->whole_is, "%s", t->ours);
  const struct tc_stored s = { .ckpt = ckpt_of(x, t) };
  const struct tc_ckpt_tensor *ct = tc_stored_at(&s, k);
  struct tc_box all = { .start = { 0 } };
  struct putting p = { x->whole, ct->rank };
  memcpy(all.count, ct->dim, sizeof all.count);
  TC_TRY(tc_stored_parts(&s, k, &all, TC_F32, put_part, &p, err));
  return x->o->merge ? tc_export_merge(x, t->ours, x->whole, err) : 0;
}

int tc_export_part(struct tc_export *x, struct tc_output *f, const struct tc_foreign_part *t, enum tc_form form,
                    struct tc_err *err)
{
  int k = tc_export_find(x, t, err);
  if (k < 0) return k;
  const int64_t elems = tc_foreign_elems(t);
  float *out = tc_malloc(BATCH * sizeof *out);
  uint16_t *bf16 = tc_malloc(BATCH * sizeof *bf16);
  int rc = 0;
  if (tc_foreign_same_order(t, form) && !x->o->merge) {
    struct tc_ckpt_walk w;
    tc_ckpt_walk_new(&w, ckpt_of(x, t), k, 0, elems);
    while (rc == 0 && (rc = tc_ckpt_walk_next(&w, err)) == 1) {
      rc = 0;
      for (int64_t i = 0; i < w.n && rc == 0; i += BATCH)
        rc = tc_export_values(x, f, (float *)w.buf + i, TC_MIN(BATCH, w.n - i), bf16, err);
    }
    tc_ckpt_walk_free(&w);
  } else {
    struct tc_foreign_walk w = { .t = t, .form = form };
    rc = read_whole(x, k, t, err);
    for (int64_t at = 0; at < elems && rc == 0; at += BATCH) {
      int64_t n = TC_MIN(BATCH, elems - at);
      for (int64_t i = 0; i < n; i++) out[i] = x->whole[tc_foreign_next(&w)];
      rc = tc_export_values(x, f, out, n, bf16, err);
    }
  }
  TC_FREE(out, bf16);
  x->n_tensors++;
  return rc;
}

int tc_export_model(struct tc_export *x, struct tc_err *err)
{
  struct tc_err why;
  TC_TRY(tc_model_parse(&x->model, x->c->m->meta.model, x->c->path, err));
  const int64_t mup = x->model.mup;
  x->model.logit_divisor *= tc_model_width(&x->model);   /* all that muP is once a model is trained */
  x->model.mup = -1;
  x->cfg = tc_config_as_saved(x->c->m->meta.config);
  x->model.positions = x->cfg->model_positions;  /* max_position_embeddings of the config.json that it came from */
  x->saved_end = x->cfg->data_end_token;
  const char *architecture = tc_hf_architecture(&x->model, &why);
  if (architecture) return 0;
  return tc_fail(err, TC_EUSER, "%s: %s%s; --format safetensors can store it", x->c->path, why.text,
                 mup > 0 ? " (model.mup divides logits)" : "");
}

/* ---- files ---------------------------------------------------------------------------- */

int tc_export_bytes(struct tc_export *x, const char *name, const char *text, int64_t bytes, const char *end,
                       struct tc_err *err)
{
  struct tc_output *f;
  char *path = tc_sprintf("%s/%s", x->o->out, name);
  int rc = tc_output_new(&f, path, &(struct tc_output_opts){ .flag = "-o" }, err);
  if (rc == 0) rc = tc_output_write(f, text, bytes, err);
  if (rc == 0) rc = tc_output_write(f, end, (int64_t)strlen(end), err);
  rc = tc_output_end(f, rc, err);
  if (rc == 0) TC_APPEND(x->made, x->n_made, x->cap_made, path);
  else free(path);
  return rc;
}

int tc_export_text(struct tc_export *x, const char *name, char *text, struct tc_err *err)
{
  const int rc = tc_export_bytes(x, name, text, (int64_t)strlen(text), "\n", err);
  free(text);
  return rc;
}

int tc_export_free(const struct tc_export *x, const char *path, struct tc_err *err)
{
  const struct tc_output_kept kept[] = { { x->c->path, "a checkpoint" }, { x->base ? x->base->path : x->c->path, "a checkpoint" } };
  const struct tc_output_opts o = { .flag = "-o", .kept = kept, .n_kept = 2, .instead = "give another -o" };
  return tc_output_check(path, &o, err);
}
