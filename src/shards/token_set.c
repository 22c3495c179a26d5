/* token_set.c - opens token files, and finds the tokenizer that each is of. */
#include "src/shards/token_set.h"
#include "io/folder.h"

#include <stdlib.h>
#include <string.h>

#define BYTES "bytes"             /* the name of the tokenizer of bytes */

/* A tokenizer that was read; t NULL: it can't be. */
struct tc_token_set_tokenizer { char *path; struct tc_tokenizer *t; };

/* ---- files ------------------------------------------------------------------------------------ */

static int open_files(struct tc_token_set *s, struct tc_err *err)
{
  const struct tc_data_opts o = { .word = s->o.word, .n = s->o.n_words, .format = s->o.format,
                                  .context = TC_TOKEN_BLOCK - 1, .vocab = INT64_MAX, .separate = true };
  TC_TRY(tc_data_open(&s->d, &o, err));
  for (int k = 0; k < tc_data_sources(s->d); k++) {
    const int n = tc_data_files(s->d, k);
    s->file = tc_realloc(s->file, (size_t)(s->n + n) * sizeof *s->file);
    for (int i = 0; i < n; i++) {
      struct tc_token_set_file *f = &s->file[s->n++];
      *f = (struct tc_token_set_file){ .source = k, .is = *tc_data_file(s->d, k, i) };
    }
  }
  if (s->o.from && s->o.from >= tc_data_tokens(s->d))
    return tc_fail(err, TC_EUSER, "--from %lld: the files have %lld tokens, counted from 0", (long long)s->o.from,
                   (long long)tc_data_tokens(s->d));
  return TC_OK;
}

int tc_token_set_read(const struct tc_token_set *s, struct tc_reader *r, const struct tc_token_set_file *f, int64_t from,
                      int64_t n, uint32_t *out, struct tc_err *err)
{
  return tc_data_read(s->d, r, f->source, f->is.first + from, n, (int32_t *)out, err);
}

/* ---- tokenizers --------------------------------------------------------------------------------- */

/* The tokenizer at `path`, which is read once. To show files none is needed: one beside them that can't be read is no
 * error, and has t NULL. */
static int load_tokenizer(struct tc_token_set *s, const char *path, const struct tc_token_set_tokenizer **out,
                          struct tc_err *err)
{
  for (int i = s->n_tokenizers - 1; i >= 0; i--)       /* most often that of the file before */
    if (strcmp(s->tokenizer[i].path, path) == 0) return *out = &s->tokenizer[i], TC_OK;
  TC_GROW(s->tokenizer, s->n_tokenizers, s->cap_tokenizers);
  struct tc_token_set_tokenizer *k = &s->tokenizer[s->n_tokenizers++];
  *k = (struct tc_token_set_tokenizer){ .path = tc_strdup(path) };
  *out = k;
  if (strcmp(path, BYTES) == 0) return k->t = tc_tokenizer_of_bytes(), TC_OK;
  const int status = tc_tokenizer_load(&k->t, path, err);
  if (status == TC_OK || s->o.use != TC_TOKENS_SHOW || s->o.tokenizer) return status;
  tc_log("%s; tokens are shown without their texts", err->text);
  *err = (struct tc_err){ 0 };
  return TC_OK;
}

/* The tokenizer.json in the folder of the file. A check of a given vocabulary needs none. */
static int load_beside(struct tc_token_set *s, const struct tc_token_set_file *f,
                       const struct tc_token_set_tokenizer **out, struct tc_err *err)
{
  char *dir = tc_folder_of(f->is.name), *path = tc_sprintf("%s/" TC_TOKENIZER_FILE, dir);
  int status = TC_OK;
  if (f->is.known && !f->is.tokenizer) status = load_tokenizer(s, BYTES, out, err);
  else if (s->o.vocab >= 0) *out = NULL;
  else if (tc_is_there(path)) status = load_tokenizer(s, path, out, err);
  else if (s->o.use == TC_TOKENS_DECODE)
    status = tc_fail(err, TC_EUSER, "there is no " TC_TOKENIZER_FILE " beside data file '%s'; name it by --tokenizer%s",
                     f->is.name, f->is.known ? "" : ", or --tokenizer bytes if a token is a byte");
  TC_FREE(dir, path);
  return status;
}

static int fail_tokenizer(const struct tc_token_set_file *f, const struct tc_token_set_tokenizer *k, struct tc_err *err)
{
  if (tc_token_is_byte(k->t))
    return tc_fail(err, TC_EUSER, "data file '%s' was made with a tokenizer: its tokens are not bytes", f->is.name);
  if (!f->is.tokenizer)
    return tc_fail(err, TC_EUSER, "a token of data file '%s' is a byte: it is not of tokenizer '%s'", f->is.name,
                   k->path);
  return tc_fail(err, TC_EUSER, "data file '%s' was made with another tokenizer (%016" PRIx64 ") than '%s' (%016" PRIx64
                 ")", f->is.name, f->is.tokenizer, k->path, tc_tokenizer_hash(k->t));
}

/* What the tokens of a file stand for, by the tokenizer that was named or the one beside it. The file must be of it,
 * except to be shown. */
static int find_tokenizer(struct tc_token_set *s, struct tc_token_set_file *f, struct tc_err *err)
{
  const struct tc_token_set_tokenizer *k = NULL;
  TC_TRY(s->o.tokenizer ? load_tokenizer(s, s->o.tokenizer, &k, err) : load_beside(s, f, &k, err));
  if (!k || !k->t) return TC_OK;
  if (!f->is.known || f->is.tokenizer == tc_tokenizer_hash(k->t)) return f->t = k->t, TC_OK;
  return s->o.use == TC_TOKENS_SHOW ? TC_OK : fail_tokenizer(f, k, err);
}

/* ---- all of it ---------------------------------------------------------------------------------- */

int tc_token_set_open(struct tc_token_set *s, const struct tc_token_set_opts *o, struct tc_err *err)
{
  *s = (struct tc_token_set){ .o = *o };
  TC_TRY(open_files(s, err));
  for (int i = 0; i < s->n; i++) TC_TRY(find_tokenizer(s, &s->file[i], err));
  return TC_OK;
}

void tc_token_set_free(struct tc_token_set *s)
{
  for (int i = 0; i < s->n_tokenizers; i++) {
    tc_tokenizer_free(s->tokenizer[i].t);
    free(s->tokenizer[i].path);
  }
  TC_FREE(s->tokenizer, s->file);
  tc_data_free(s->d);
}
