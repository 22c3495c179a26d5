/* tokenizer.c - the model's tokenizer: that of the training data or, where these do not say, of the checkpoint that was
 * loaded.
 *
 * Each checkpoint takes the tokenizer.json along, so that what reads it needs no other file. The text is held by rank 0
 * alone, which writes it. A run without it goes on all the same: no token depends on it. */
#include "io/ckpt/ckpt.h"
#include "src/foreign/foreign.h"
#include "src/token/token.h"
#include "src/train/parts.h"

#include <stdlib.h>

/* 0: the text is no tokenizer.json, or of a tokenizer that is not supported. */
static uint64_t hash_of(const char *text, size_t bytes, const char *name)
{
  struct tc_tokenizer *t;
  struct tc_err err;
  if (tc_tokenizer_parse(&t, text, bytes, name, &err) < 0) return 0;
  const uint64_t hash = tc_tokenizer_hash(t);
  tc_tokenizer_free(t);
  return hash;
}

int tc_train_tokenizer_check(const struct tc_train *t, const struct tc_ckpt *c, struct tc_err *err)
{
  const uint64_t hash = tc_tokenizer_noted(tc_ckpt_meta(c)->data);
  const int rc = tc_data_of_tokenizer(t->batches.train, hash, tc_ckpt_path(c), err);
  if (rc == 0) return tc_tasks_of_tokenizer(t, hash, tc_ckpt_path(c), err);
  return tc_fail(err, rc, "%s, or begin a new model (another run.out)", err->text);
}

void tc_train_tokenizer_take(struct tc_train *t, const struct tc_ckpt *c)
{
  struct tc_train_tokenizer *k = &t->tokenizer;
  struct tc_err why;
  char *text;
  int64_t bytes;
  const char *noted = tc_ckpt_meta(c)->data;
  if (!tc_data_tokenizer(t->batches.train, &k->hash)) {
    k->hash = tc_tokenizer_noted(noted);
    k->is_bytes = tc_bytes_noted(noted);
  }
  if (k->end < 0) k->end = tc_end_noted(noted);
  if (t->run.rank) return;
  if (!k->beside && tc_ckpt_attached(c, TC_BESIDE_FILE, &k->beside, &k->beside_bytes, &why) < 0) tc_warn("%s", why.text);
  if (k->text || !k->hash) return;
  if (tc_ckpt_attached(c, TC_TOKENIZER_FILE, &text, &bytes, &why) < 0) tc_warn("%s", why.text);
  else if (text && hash_of(text, (size_t)bytes, tc_ckpt_path(c)) == k->hash) {
    k->text = text;
    k->bytes = (size_t)bytes;
  } else {
    free(text);
  }
}

static int read_beside(struct tc_train_tokenizer *k, const char *file, struct tc_err *err)
{
  char *folder = tc_folder_of(file), *path = tc_sprintf("%s/" TC_TOKENIZER_FILE, folder), *text;
  size_t bytes;
  int rc = tc_tokenizer_read(&text, &bytes, path, err);
  const uint64_t hash = rc == 0 ? hash_of(text, bytes, path) : 0;
  if (rc == 0 && hash != k->hash) {
    rc = tc_fail(err, TC_EUSER, "%s is tokenizer %016" PRIx64 ", but '%s' has tokens of tokenizer %016" PRIx64, path,
                 hash, file, k->hash);
    free(text);
  } else if (rc == 0) {
    k->text = text;
    k->bytes = bytes;
  }
  TC_FREE(folder, path);
  return rc;
}

void tc_train_tokenizer_find(struct tc_train *t)
{
  struct tc_train_tokenizer *k = &t->tokenizer;
  struct tc_err why;
  uint64_t hash;
  const char *file = tc_data_tokenizer(t->batches.train, &hash);
  if (file) k->hash = hash;
  k->is_bytes = tc_data_is_bytes(t->batches.train);
  k->end = tc_data_end_token(t->batches.train);
  if (t->run.rank || k->text || !file || !hash) return;
  if (read_beside(k, file, &why) < 0)
    tc_warn("%s: checkpoints go without the tokenizer, so tercio sample and tercio eval of them need --tokenizer",
            why.text);
}

void tc_train_tokenizer_free(struct tc_train *t)
{
  TC_FREE(t->tokenizer.text, t->tokenizer.beside);
  t->tokenizer = (struct tc_train_tokenizer){ 0 };
}
