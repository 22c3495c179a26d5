/* export.c - a checkpoint's weights as files of other programs.
 *
 * Only one tensor is in memory at a time. All data is checked against its checksum. A file appears when it is complete. */
#include "src/foreign/impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "io/ckpt/inspect.h"
#include "src/files/files.h"

enum { BATCH = 1 << 18 };         /* elements written at a time */
#define CONFIG "config.json"
#define INDEX "model.safetensors.index.json"

/* What is to be merged, or that nothing is: a model's files have no adapters. */
static int check_merge(struct tc_export *x, struct tc_err *err)
{
  const bool has = x->n_adapters > 0;
  if (x->o->merge && !has) return tc_fail(err, TC_EUSER, "%s has no adapters: there is nothing to --merge", x->c->path);
  if (!x->o->merge && has)
    return tc_fail(err, TC_EUSER, "%s has adapters: --format peft writes them, and --merge adds them to the weights beside them",
                   x->c->path);
  return has ? tc_export_base(x, err) : 0;
}

/* All parts of the model's tensors; the checkpoint must have as many, which bounds memory. */
static int list_parts(struct tc_export *x, struct tc_foreign_part **out, enum tc_form form, struct tc_err *err)
{
  struct tc_err why;
  *out = NULL;
  TC_TRY(tc_export_model(x, err));
  TC_TRY(tc_export_adapters(x, err));
  TC_TRY(check_merge(x, err));
  if (form == TC_FORM_LLMC && !tc_model_is_plain(&x->model))
    return tc_fail(err, TC_EUSER, "%s is a %s (norm_eps %g); llm.c's files can store only GPT-2 (norm_eps 1e-05); "
                   "--format hf can store it", x->c->path, tc_hf_architecture(&x->model, &why), (double)x->model.norm_eps);
  if (x->model.layers > tc_ckpt_n(x->base ? x->base : x->c))
    return tc_fail(err, TC_EUSER, "%s has %d tensors, fewer than a model of %lld layers",
                   x->c->path, tc_ckpt_n(x->base ? x->base : x->c), (long long)x->model.layers);
  int n = tc_foreign_parts(out, &x->model, form, false);
  for (int i = 0; i < n; i++) {
    int rc = tc_export_find(x, &(*out)[i], err);
    if (rc < 0) return rc;
  }
  return n;
}

/* ---- Hugging Face ------------------------------------------------------------------ */

/* The parts of a folder's files: file f has those from first[f] to first[f + 1]. */
struct shards {
  char **path; int n;             /* owned */
  int *first;
  struct tc_st_tensor *tensor;    /* of each part, as it is written */
  int64_t bytes;
};

/* Divides the tensors over files of at most `most` bytes, or of one tensor that is larger, as transformers fills
 * and names them. */
static void make_shards(struct shards *s, const struct tc_export *x, const struct tc_foreign_part *t, int n, int64_t most,
                        struct tc_pool *pool)
{
  const bool gpt2 = tc_hf_is_gpt2(&x->model);
  int64_t in_file = 0;
  s->tensor = tc_calloc((size_t)n + 1, sizeof *s->tensor);
  s->first = tc_calloc((size_t)n + 2, sizeof *s->first);
  for (int i = 0; i < n; i++) {
    struct tc_st_tensor *st = &s->tensor[i];
    char name[100];
    const int64_t bytes = tc_foreign_elems(&t[i]) * (int64_t)tc_dtype_bytes(x->o->dtype);
    snprintf(name, sizeof name, "%s%s", gpt2 ? "transformer." : "", t[i].hf);
    *st = (struct tc_st_tensor){ .name = tc_pool_strdup(pool, name), .dtype = x->o->dtype, .rank = t[i].rank };
    tc_foreign_hf_shape(&t[i], st->dim);
    if (s->n == 0 || (in_file > 0 && bytes > most - in_file)) {
      s->first[s->n++] = i;
      in_file = 0;
    }
    in_file += bytes;
    s->bytes += bytes;
  }
  s->first[s->n] = n;
  s->path = tc_calloc((size_t)s->n + 1, sizeof *s->path);
  for (int f = 0; f < s->n; f++)
    s->path[f] = s->n == 1 ? tc_sprintf("%s/model.safetensors", x->o->out)
      : tc_sprintf("%s/model-%05d-of-%05d.safetensors", x->o->out, f + 1, s->n);
}

static int write_index(struct tc_export *x, const struct shards *s, struct tc_err *err)
{
  json_t *map = json_object();
  for (int f = 0; f < s->n; f++)
    for (int i = s->first[f]; i < s->first[f + 1]; i++)
      json_object_set_new(map, s->tensor[i].name, json_string(tc_base_name(s->path[f])));
  json_t *o = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)s->bytes, "weight_map", map);
  const int rc = tc_export_text(x, INDEX, json_dumps(o, JSON_INDENT(2)), err);
  json_decref(o);
  return rc;
}

static int write_shard(struct tc_export *x, const struct shards *s, int file, const struct tc_foreign_part *t,
                       struct tc_err *err)
{
  const char *const notes[] = { "format", "pt", NULL };
  const int from = s->first[file], end = s->first[file + 1];
  struct tc_output *f;
  int64_t bytes;
  int rc = tc_st_create(&f, &bytes, s->path[file], s->tensor + from, end - from, notes, err);
  for (int i = from; i < end && rc == 0; i++) rc = tc_export_part(x, f, &t[i], TC_FORM_HF, err);
  TC_ASSERT(rc < 0 || tc_output_bytes(f) == bytes);
  rc = tc_output_end(f, rc, err);
  if (rc == 0) TC_APPEND(x->made, x->n_made, x->cap_made, tc_strdup(s->path[file]));
  return rc;
}

/* Checks that the folder has no model yet: files of two models must not be mixed. */
static int check_folder(const struct tc_export *x, struct tc_err *err)
{
  const char *const names[] = { CONFIG, INDEX, "model.safetensors" };
  enum { NAMES = sizeof names / sizeof *names };
  const int beside = x->special.n_files;
  for (int i = 0; i < beside + NAMES; i++) {
    char *path = tc_sprintf("%s/%s", x->o->out, i < beside ? x->special.file[i].name : names[i - beside]);
    const int rc = tc_export_free(x, path, err);
    free(path);
    TC_TRY(rc);
  }
  return 0;
}

/* Writes the weights, their index, the files beside them, then config.json: a folder without config.json is not
 * loaded. */
static int write_files(struct tc_export *x, const struct shards *s, const struct tc_foreign_part *t, struct tc_err *err)
{
  for (int f = 0; f < s->n; f++) TC_TRY(write_shard(x, s, f, t, err));
  if (s->n > 1) TC_TRY(write_index(x, s, err));
  for (int i = 0; i < x->special.n_files; i++) {
    const struct tc_beside *b = &x->special.file[i];
    TC_TRY(tc_export_bytes(x, b->name, b->text, b->bytes, "", err));
  }
  const char *type = x->o->dtype == TC_F32 ? "float32" : "bfloat16";
  return tc_export_text(x, CONFIG, tc_hf_text(&x->model, x->special.ids, 0, type), err);
}

static int write_folder(struct tc_export *x, const struct tc_foreign_part *t, int n, struct tc_err *err)
{
  struct tc_pool *pool = tc_pool_new();
  struct shards s = {0};
  make_shards(&s, x, t, n, x->o->shard_bytes ? x->o->shard_bytes : INT64_MAX, pool);
  const int rc = write_files(x, &s, t, err);
  for (int i = 0; i < x->n_made; i++) {
    if (rc < 0) tc_unlink(AT_FDCWD, x->made[i]);
    free(x->made[i]);
  }
  tc_names_free(s.path, s.n);
  x->files = s.n;
  TC_FREE(x->made, s.first, s.tensor);
  tc_pool_free(pool);
  return rc;
}

static int export_hf(struct tc_export *x, struct tc_err *err)
{
  struct tc_foreign_part *t;
  int n = list_parts(x, &t, TC_FORM_HF, err), rc = TC_MIN(n, 0);
  if (rc == 0) rc = tc_special_find(&x->special, x->c, &x->model, x->saved_end, err);
  char *made = NULL;
  if (rc == 0) rc = tc_folder_make_new(x->o->out, &made, err);
  if (rc == 0) rc = check_folder(x, err);
  if (rc == 0) rc = write_folder(x, t, n, err);
  if (rc < 0) tc_folder_unmake(x->o->out, made);
  else free(made);
  free(t);
  return rc;
}

/* ---- llm.c ------------------------------------------------------------------------- */

static int cmp_llmc(const void *a, const void *b)
{
  const struct tc_foreign_part *x = a, *y = b;
  if (x->llmc != y->llmc) return x->llmc < y->llmc ? -1 : 1;
  return (x->layer > y->layer) - (x->layer < y->layer);
}

/* Writes the rows of zeros by which llm.c pads the vocabulary. */
static int put_padding(struct tc_export *x, struct tc_output *f, int64_t elems, struct tc_err *err)
{
  float *zero = tc_calloc(BATCH, sizeof *zero);
  uint16_t *bf16 = tc_calloc(BATCH, sizeof *bf16);
  int rc = 0;
  for (int64_t at = 0; at < elems && rc == 0; at += BATCH)
    rc = tc_export_values(x, f, zero, TC_MIN(BATCH, elems - at), bf16, err);
  TC_FREE(zero, bf16);
  return rc;
}

static int export_llmc(struct tc_export *x, struct tc_err *err)
{
  struct tc_foreign_part *t;
  struct tc_output *f = NULL;
  int32_t head[TC_LLMC_HEADER_BYTES / 4];
  int n = list_parts(x, &t, TC_FORM_LLMC, err), rc = TC_MIN(n, 0);
  const struct tc_model *m = &x->model;
  struct tc_llmc_sizes sizes = { m->context, m->vocab, m->layers, m->heads, m->hidden,
                                 tc_llmc_padded(m->vocab) };
  if (rc == 0) rc = tc_export_free(x, x->o->out, err);
  if (rc == 0) rc = tc_output_new(&f, x->o->out, &(struct tc_output_opts){ .flag = "-o" }, err);
  if (rc == 0) {
    qsort(t, (size_t)n, sizeof *t, cmp_llmc);
    tc_llmc_header(head, &sizes, x->o->dtype);
    rc = tc_output_write(f, head, sizeof head, err);
  }
  for (int i = 0; i < n && rc == 0; i++) {
    rc = tc_export_part(x, f, &t[i], TC_FORM_LLMC, err);
    if (rc == 0 && t[i].llmc == TC_LLMC_WTE)
      rc = put_padding(x, f, (sizes.padded_vocab - m->vocab) * m->hidden, err);
  }
  free(t);
  return tc_output_end(f, rc, err);
}

/* ---- the checkpoint's own names ---------------------------------------------------- */

/* Writes a tensor in its own type, or f32 as bf16. */
static int put_plain(struct tc_export *x, struct tc_output *f, int tensor, struct tc_err *err)
{
  const struct tc_ckpt_tensor *t = tc_ckpt_at(x->c, tensor);
  bool turn = t->dtype == TC_F32 && x->o->dtype == TC_BF16;
  struct tc_ckpt_walk w;
  uint16_t *bf16 = NULL;
  int rc;
  tc_ckpt_walk_new(&w, x->c, tensor, 0, tc_box_elems(t->rank, t->dim));
  while ((rc = tc_ckpt_walk_next(&w, err)) == 1) {
    if (turn) {
      bf16 = tc_realloc(bf16, (size_t)w.n * sizeof *bf16);
      rc = tc_export_values(x, f, w.buf, w.n, bf16, err);
    } else {
      int64_t bytes = w.n * (int64_t)tc_dtype_bytes(t->dtype);
      x->bytes += bytes;
      rc = tc_output_write(f, w.buf, bytes, err);
    }
    if (rc < 0) break;
  }
  free(bf16);
  tc_ckpt_walk_free(&w);
  x->n_tensors++;
  return TC_MIN(rc, 0);
}

static int export_plain(struct tc_export *x, struct tc_err *err)
{
  struct tc_ckpt *c = x->c;
  if (tc_has_adapters(c))
    return tc_fail(err, TC_EUSER, "%s has adapters, which nothing takes from --format safetensors: --format peft writes them, and "
                   "--merge adds them to the weights beside them", c->path);
  struct tc_st_tensor *st = tc_calloc((size_t)tc_ckpt_n(c) + 1, sizeof *st);
  int *index = tc_calloc((size_t)tc_ckpt_n(c) + 1, sizeof *index), n = 0;
  char step[24], tokens[24];
  snprintf(step, sizeof step, "%lld", (long long)c->m->meta.step);
  snprintf(tokens, sizeof tokens, "%lld", (long long)c->m->meta.tokens);
  const char *const notes[] = { "format", "pt", "tercio.model", c->m->meta.model, "tercio.step",
                                step, "tercio.tokens", tokens, NULL };
  struct tc_output *f = NULL;
  int64_t bytes = 0;
  for (int i = 0; i < tc_ckpt_n(c); i++) {
    const struct tc_ckpt_tensor *t = tc_ckpt_at(c, i);
    if (!x->o->optimizer && strncmp(t->name, "optim.", 6) == 0) continue;
    st[n] = (struct tc_st_tensor){ .name = t->name, .rank = t->rank,
      .dtype = t->dtype == TC_F32 ? x->o->dtype : t->dtype };
    memcpy(st[n].dim, t->dim, sizeof t->dim);
    index[n++] = i;
  }
  int rc = tc_export_free(x, x->o->out, err);
  if (rc == 0) rc = tc_st_create(&f, &bytes, x->o->out, st, n, notes, err);
  for (int i = 0; i < n && rc == 0; i++) rc = put_plain(x, f, index[i], err);
  TC_FREE(st, index);
  TC_ASSERT(rc < 0 || tc_output_bytes(f) == bytes);
  return tc_output_end(f, rc, err);
}

/* ---- all forms --------------------------------------------------------------------- */

int tc_foreign_export(struct tc_exported *r, const struct tc_export_opts *o, struct tc_err *err)
{
  static int (*const run[])(struct tc_export *, struct tc_err *) = {
    [TC_FORM_OURS] = export_plain, [TC_FORM_HF] = export_hf, [TC_FORM_LLMC] = export_llmc,
    [TC_FORM_PEFT] = tc_export_peft };
  int rc = 0;
  bool again = true;
  for (int i = 0; i < TC_CKPT_STEPS && again; i++) {
    struct tc_export x = { .o = o, .saved_end = -1 };
    TC_TRY(tc_ckpt_open_held(&x.c, o->path, err));
    rc = tc_ckpt_settle(x.c, o->path, run[o->form](&x, err), &again, err);
    if (rc == 0)
      *r = (struct tc_exported){ .from = tc_strdup(x.c->path), .step = x.c->m->meta.step, .n_tensors = x.n_tensors,
        .files = x.files, .bytes = x.bytes, .tokenizer = x.special.tokenizer,
        .beside = x.special.beside, .end = x.special.ids.end };
    tc_special_free(&x.special);
    TC_FREE(x.whole, x.hf, x.adapter);
    tc_config_free(x.cfg);
    if (x.base != x.c) tc_ckpt_close(x.base);
    tc_ckpt_close(x.c);
  }
  return rc;
}
