/* lookup.c - questions about a tokenizer that was read: its size, its tokens by id and by text. */
#include "src/token/impl.h"

#include <string.h>

int64_t tc_tokenizer_vocab(const struct tc_tokenizer *t) { return t->n_ids; }
uint64_t tc_tokenizer_hash(const struct tc_tokenizer *t) { return t->hash; }
const struct tc_ids *tc_tokenizer_begin(const struct tc_tokenizer *t) { return &t->begin; }
const struct tc_ids *tc_tokenizer_end(const struct tc_tokenizer *t) { return &t->end; }

const char *tc_tokenizer_bytes(const struct tc_tokenizer *t, uint32_t id, size_t *bytes)
{
  const struct tc_bytes none = { NULL, 0 }, *x = id < t->n_ids ? &t->token[id] : &none;
  *bytes = x->n;
  return x->s;
}

int64_t tc_tokenizer_find(const struct tc_tokenizer *t, const char *text)
{
  const struct tc_bytes want = { text, strlen(text) };
  const struct tc_added_list *const lists[] = { &t->raw, &t->normalized };
  for (size_t i = 0; i < 2; i++)
    for (size_t k = 0; k < lists[i]->n; k++) {
      const struct tc_added *a = &lists[i]->at[k];
      if (a->content.n == want.n && memcmp(a->content.s, text, want.n) == 0) return a->id;
    }
  const uint32_t id = tc_words_find(&t->words, want);
  return id == TC_NO_ID ? -1 : (int64_t)id;
}

const char *tc_tokenizer_added(const struct tc_tokenizer *t, uint32_t id)
{
  const struct tc_added_list *const lists[] = { &t->raw, &t->normalized };
  for (size_t i = 0; i < 2; i++)
    for (size_t k = 0; k < lists[i]->n; k++)
      if (lists[i]->at[k].id == id) return lists[i]->at[k].content.s;
  return NULL;
}

int64_t tc_tokenizer_end_of_text(const struct tc_tokenizer *t)
{
  static const char *const names[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>" };
  for (int i = 0; i < 8; i++) {                  /* first among added tokens, then among all */
    const int64_t id = tc_tokenizer_find(t, names[i % 4]);
    if (id >= 0 && (i >= 4 || tc_tokenizer_added(t, (uint32_t)id))) return id;
  }
  return -1;
}

int64_t tc_tokenizer_beyond(const struct tc_tokenizer *t, int64_t vocab)
{
  int64_t n = 0;
  for (int64_t id = vocab; id < t->n_ids; id++) n += t->token[id].s != NULL;
  return n;
}

const char *tc_token_shown(const struct tc_tokenizer *t, uint32_t id, char text[TC_TOKEN_SHOWN])
{
  size_t bytes = 0, n = 0;
  const char *s = t ? tc_tokenizer_bytes(t, id, &bytes) : NULL;
  text[0] = '\0';
  for (size_t i = 0; i < bytes && n < TC_TOKEN_SHOWN - 5; i++) {
    const unsigned char c = (unsigned char)s[i];
    const bool plain = c >= 0x20 && c < 0x7f;
    n += (size_t)(plain ? snprintf(text + n, 2, "%c", c) : snprintf(text + n, 5, "\\x%02x", c));
  }
  return text;
}
