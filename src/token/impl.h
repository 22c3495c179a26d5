/* impl.h - a tokenizer as its files share it. */
#ifndef TC_TOKEN_IMPL_H
#define TC_TOKEN_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#include "src/token/token.h"

struct tc_bytes { const char *s; size_t n; };       /* s == NULL: none */

/* A slot of the table from bytes to ids: open addressing, a power of two of slots; id == TC_NO_ID: empty. */
#define TC_NO_ID UINT32_MAX
struct tc_word { struct tc_bytes text; uint32_t id; };
struct tc_words { struct tc_word *slot; size_t mask, n; };

/* A slot of the table from a pair of ids, left << 32 | right, to its merge. */
#define TC_NO_PAIR UINT64_MAX
struct tc_merge { uint64_t pair; uint32_t rank, id; };
struct tc_merges { struct tc_merge *slot; size_t mask; int shift; };

/* Added tokens, sorted by their text, which is what is looked for. */
struct tc_added { struct tc_bytes text; uint32_t id; bool lstrip, rstrip; };
struct tc_added_list { struct tc_added *at; size_t n, cap; bool first[256]; };

/* A step of the pre-tokenizer: pieces are split by a pattern, matches and what is between them; or
 * (code == NULL) a piece that does not begin with a space gets one. */
struct tc_step { pcre2_code *code; struct tc_bytes pattern; bool literal; };     /* literal: the pattern is text */
enum { TC_STEPS = 16 };

struct tc_tokenizer {
  char *name;                       /* for sentences; owned */
  uint64_t hash;
  struct tc_pool *pool;             /* has all texts */
  struct tc_bytes *token;           /* [n_ids]; owned */
  uint32_t n_ids, n_room;
  struct tc_words words;            /* of the model's vocabulary */
  struct tc_merges merges;
  uint32_t byte_id[256];
  bool ignore_merges, nfc, jit;
  struct tc_added_list raw, normalized;
  struct tc_step step[TC_STEPS];
  int n_steps;
  struct tc_ids begin, end;
  bool cuts, whole;                 /* a step splits where tc_tokenizer_cut cuts; a step, or an added token, may
                                     * need the text on both sides */
  bool anywhere;                    /* no token has several characters: a text may be cut between any two */
};

/* ---- words.c ---- */
/* A copy of s[n] in the tokenizer's pool, with a byte 0 after it. */
struct tc_bytes tc_token_keep(struct tc_tokenizer *t, const char *s, size_t n);
void tc_words_new(struct tc_words *w, size_t n);             /* room for n */
/* Returns the id that was there, or TC_NO_ID. */
uint32_t tc_words_put(struct tc_words *w, struct tc_bytes text, uint32_t id);
uint32_t tc_words_find(const struct tc_words *w, struct tc_bytes text);
void tc_merges_new(struct tc_merges *m, size_t n);
void tc_merges_put(struct tc_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
void tc_added_put(struct tc_added_list *l, struct tc_added a);
void tc_added_sort(struct tc_added_list *l);
/* The longest added token of the list that text[n] begins with; NULL: none. */
const struct tc_added *tc_added_at(const struct tc_added_list *l, const char *text, size_t n);

static inline const struct tc_merge *tc_merges_find(const struct tc_merges *m, uint32_t left, uint32_t right)
{
  const uint64_t pair = (uint64_t)left << 32 | right;
  size_t i = (size_t)(pair * UINT64_C(0x9e3779b97f4a7c15) >> m->shift);
  while (m->slot[i].pair != pair) {
    if (m->slot[i].pair == TC_NO_PAIR) return NULL;
    i = (i + 1) & m->mask;
  }
  return &m->slot[i];
}

/* ---- prepare.c: parts of tokenizer.json; sentences begin with t->name ---- */
int tc_load_normalizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err);
int tc_load_pre_tokenizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err);
int tc_load_post_processor(struct tc_tokenizer *t, const json_t *j, struct tc_err *err);

/* ---- pattern.c ---- */
/* GPT-2's, which the pre-tokenizer ByteLevel has by itself. */
extern const char tc_pattern_gpt2[];
/* What a pattern does between a letter of ASCII and " " before another one: it isn't known, it never splits
 * there, it always does. */
enum tc_cuts { TC_CUTS_UNKNOWN, TC_CUTS_NOT, TC_CUTS };
/* Compiles a pattern of Oniguruma's (Ruby's) syntax. literal: it is text. TC_EUSER: it has what PCRE2 may
 * understand in another way. */
int tc_pattern_compile(pcre2_code **out, const char *pattern, bool literal, enum tc_cuts *cuts, const char *name,
                       struct tc_err *err);

/* ---- hash.c ---- */
/* The hash of a tokenizer that was read: never 0, which stands for none. */
uint64_t tc_hash_tokenizer(const struct tc_tokenizer *t);

/* ---- utf8.c ---- */
/* The code point at text, which is valid, and its bytes. */
uint32_t tc_utf8_at(const char *text, size_t *bytes);
/* Whether a code point is white space (the property White_Space). */
bool tc_is_space(uint32_t c);
/* text[n], which is valid, in NFC: *out, *n_out bytes: text itself, or owned by the caller (*owned). */
int tc_nfc(const char *text, size_t n, const char **out, size_t *n_out, char **owned, struct tc_err *err);

/* ---- bpe.c ---- */
struct tc_bpe;
struct tc_bpe *tc_bpe_new(const struct tc_tokenizer *t);
void tc_bpe_free(struct tc_bpe *b);
/* Appends the ids of one piece. n < TC_PIECE_BYTES. */
#define TC_PIECE_BYTES (UINT32_C(1) << 30)
void tc_bpe_piece(struct tc_bpe *b, const char *s, size_t n, struct tc_ids *out);

#endif
