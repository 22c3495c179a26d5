/* special.c - the tokens that begin and end a text, and the files of an exported model that name them.
 *
 * Without them transformers' generate() continues after the end of a text, and its tokenizer does not know which of its
 * tokens are special. */
#include "src/foreign/impl.h"

#include <stdlib.h>
#include <string.h>

#define GENERATION "generation_config.json"
#define TOKENIZER "tokenizer_config.json"

static bool has_file(const struct tc_special *s, const char *name)
{
  for (int i = 0; i < s->n_files; i++)
    if (strcmp(s->file[i].name, name) == 0) return true;
  return false;
}

static void add_json(struct tc_special *s, const char *name, json_t *o)
{
  char *text = json_dumps(o, JSON_INDENT(2)), *line = tc_sprintf("%s\n", text);
  tc_special_add(s, name, line, (int64_t)strlen(line));
  free(text);
  json_decref(o);
}

/* The token's text, if it is an added token: transformers would add a word of the vocabulary again, with a new id. */
static void set_text(json_t *o, const char *key, const struct tc_tokenizer *t, int64_t id)
{
  const char *text = id < 0 ? NULL : tc_tokenizer_added(t, (uint32_t)id);
  if (text) json_object_set_new(o, key, json_string(text));
}

/* clean_up_tokenization_spaces would take spaces before punctuation out of decoded text. */
static void add_tokenizer_config(struct tc_special *s, const struct tc_tokenizer *t, const struct tc_model *m)
{
  const struct tc_ids *begin = tc_tokenizer_begin(t);
  json_t *o = json_pack("{s:s, s:I, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "model_max_length",
                        (json_int_t)TC_MAX(m->context, m->positions), "clean_up_tokenization_spaces", 0);
  set_text(o, "bos_token", t, begin->n ? (int64_t)begin->id[0] : -1);
  set_text(o, "eos_token", t, s->ids.end);
  add_json(s, TOKENIZER, o);
}

static void add_generation_config(struct tc_special *s)
{
  json_t *o = json_object();
  if (s->ids.begin >= 0) json_object_set_new(o, "bos_token_id", json_integer(s->ids.begin));
  if (s->ids.end >= 0) json_object_set_new(o, "eos_token_id", json_integer(s->ids.end));
  add_json(s, GENERATION, o);
}

/* The checkpoint's tokenizer, NULL if it has none, or one that is not supported, which is exported too. */
static int take_tokenizer(struct tc_tokenizer **t, struct tc_special *s, const struct tc_ckpt *c, struct tc_err *err)
{
  struct tc_err why;
  char *text;
  int64_t bytes;
  *t = NULL;
  TC_TRY(tc_ckpt_attached(c, TC_TOKENIZER_FILE, &text, &bytes, err));
  if (!text) return 0;
  s->tokenizer = true;
  tc_special_add(s, TC_TOKENIZER_FILE, text, bytes);
  char *name = tc_sprintf("%s/" TC_TOKENIZER_FILE, tc_ckpt_path(c));
  if (tc_tokenizer_parse(t, text, (size_t)bytes, name, &why) < 0) tc_warn("%s", why.text);
  free(name);
  return 0;
}

struct tc_hf_ids tc_special_ids(const struct tc_tokenizer *t, const struct tc_model *m, bool own_vocab, int64_t saved_end)
{
  enum { GPT2_END = TC_GPT2_VOCAB - 1 };
  const bool gpt2 = tc_hf_is_gpt2(m);
  const struct tc_ids *begin = t ? tc_tokenizer_begin(t) : NULL;
  struct tc_hf_ids ids = { begin && begin->n ? (int64_t)begin->id[0] : -1, t ? tc_tokenizer_end_of_text(t) : -1 };
  if (ids.begin >= m->vocab) ids.begin = -1;             /* tokens that the model does not have */
  if (ids.end >= m->vocab) ids.end = -1;
  if (ids.end < 0 && saved_end >= 0 && saved_end < m->vocab) ids.end = saved_end;
  if (gpt2 && ids.end < 0 && own_vocab && tc_is_gpt2_vocab(m->vocab)) ids.end = GPT2_END;
  if (gpt2 && ids.begin < 0) ids.begin = ids.end;
  return ids;
}

int tc_special_find(struct tc_special *s, const struct tc_ckpt *c, const struct tc_model *m, int64_t saved_end,
                      struct tc_err *err)
{
  struct tc_tokenizer *t;
  *s = (struct tc_special){ .ids = { -1, -1 } };
  TC_TRY(take_tokenizer(&t, s, c, err));
  const char *noted = tc_ckpt_meta(c)->data;
  const bool own_vocab = !s->tokenizer && !tc_tokenizer_noted(noted) && !tc_bytes_noted(noted);
  s->ids = tc_special_ids(t, m, own_vocab, saved_end >= 0 && saved_end < m->vocab ? saved_end : tc_end_noted(noted));
  const int rc = tc_beside_put(s, c, err);
  if (t && !has_file(s, TOKENIZER)) add_tokenizer_config(s, t, m);
  if ((s->ids.begin >= 0 || s->ids.end >= 0) && !has_file(s, GENERATION)) add_generation_config(s);
  tc_tokenizer_free(t);
  return rc;
}

void tc_special_free(struct tc_special *s)
{
  for (int i = 0; i < s->n_files; i++) free(s->file[i].text);
  *s = (struct tc_special){ .ids = { -1, -1 } };
}
