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
struct tc_words { struct tc_word *slot; size_t mask, n, longest; };      /* longest: bytes of a text, at most */

/* A slot of the table from a pair of ids, left << 32 | right, to its merge. */
#define TC_NO_PAIR UINT64_MAX
struct tc_merge { uint64_t pair; uint32_t rank, id; };
/* some: four bits for each slot; a pair's is 0 if no pair of its hash has a merge. Most pairs have none, and these bits fit a
 * cache that is nearer than the slots'. */
struct tc_merges { struct tc_merge *slot; uint64_t *some; size_t mask; int shift; };

/* Added tokens, sorted by the text that is looked for: content, or its normal form. */
struct tc_added { struct tc_bytes text, content; uint32_t id; bool lstrip, rstrip, single_word; };
struct tc_added_list { struct tc_added *at; size_t n, cap; bool first[256]; };

/* A step of the normalizer or the pre-tokenizer. The numbers of these enums are in hashes. */
enum tc_step_kind {
  TC_STEP_SPLIT,          /* into matches of the pattern and what is between them */
  TC_STEP_PREPEND,        /* content is put in front */
  TC_STEP_REPLACE,        /* content takes the place of each match */
  TC_STEP_NFC,
  TC_STEP_NFKC
};
/* What becomes of a match: a piece of its own, nothing, a part of the piece before or after it, or one of other
 * matches beside it. */
enum tc_behavior { TC_ISOLATED, TC_REMOVED, TC_WITH_PREVIOUS, TC_WITH_NEXT, TC_CONTIGUOUS };
/* Where content is put in front: of a piece that does not begin with it, of such a piece at the begin of the text, of
 * every piece. */
enum tc_prepend { TC_PREPEND_MISSING, TC_PREPEND_FIRST, TC_PREPEND_ALWAYS };
struct tc_step {
  enum tc_step_kind kind;
  pcre2_code *code;       /* NULL: the pattern is text */
  struct tc_bytes pattern, content;
  enum tc_behavior behavior;
  enum tc_prepend prepend;
  bool invert;            /* what is between matches counts as a match */
};
enum { TC_STEPS = 16 };
struct tc_steps { struct tc_step at[TC_STEPS]; int n; };

/* How a token becomes text: `replace` in its own text; `bytes`: <0x0A> is a byte; strip: so often is this character
 * removed in front of the whole text. without_spaces: the first token loses its spaces. */
struct tc_decoding {
  struct { struct tc_bytes from, to; } replace[TC_STEPS];
  int n;
  bool bytes, fused, without_spaces;
  struct tc_bytes stripped;
  int64_t strip;
};

struct tc_tokenizer {
  char *name;                       /* for sentences; owned */
  uint64_t hash;
  struct tc_pool *pool;             /* has all texts */
  struct tc_bytes *token;           /* [n_ids] what it is decoded to; owned */
  uint32_t n_ids, n_room;
  struct tc_words words;            /* of the model's vocabulary */
  struct tc_merges merges;
  uint32_t *char_id;                /* [TC_CHARS] tokens of characters; owned; NULL: tokens are of bytes */
  uint32_t byte_id[256];            /* TC_NO_ID: the byte has no token, if tokens are of characters */
  uint32_t unknown;                 /* of characters: the token of one that has none; TC_NO_ID: it is left out */
  bool characters;                  /* merges begin with characters, not with bytes */
  bool byte_fallback, all_bytes;    /* a character without a token is tokens of its bytes; all bytes have one */
  bool fuse_unknown;                /* unknown characters side by side are one token */
  bool ignore_merges, jit;
  struct tc_added_list raw, normalized;
  struct tc_steps normalizer, pre_tokenizer;
  struct tc_decoding decoding;
  struct tc_ids begin, end;
  uint64_t *joined;                 /* pairs of characters that some merge joins (cut.c); NULL: not known; owned */
  struct tc_bytes mark;             /* what the steps put in place of a space; s == NULL: it stays */
  bool cuts, whole;                 /* a step splits where tc_tokenizer_cut cuts; a step, or an added token, may
                                     * need the text on both sides */
  bool prepends;                    /* something is put in front of a piece that begins with a space */
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

/* The number of a pair's bit; over 4 it is the slot where its search begins. */
static inline uint64_t tc_merges_bit(const struct tc_merges *m, uint64_t pair)
{
  return pair * UINT64_C(0x9e3779b97f4a7c15) >> (m->shift - 2);
}

static inline const struct tc_merge *tc_merges_find(const struct tc_merges *m, uint32_t left, uint32_t right)
{
  const uint64_t pair = (uint64_t)left << 32 | right, bit = tc_merges_bit(m, pair);
  if (!(m->some[bit >> 6] >> (bit & 63) & 1)) return NULL;
  size_t i = (size_t)(bit >> 2);
  while (m->slot[i].pair != pair) {
    if (m->slot[i].pair == TC_NO_PAIR) return NULL;
    i = (i + 1) & m->mask;
  }
  return &m->slot[i];
}

/* ---- prepare.c: parts of tokenizer.json; sentences begin with t->name ---- */
/* The "type" of a part; "" if it has none. */
const char *tc_part_type(const json_t *j);
int tc_part_refuse(const struct tc_tokenizer *t, const char *part, const char *type, const char *what, struct tc_err *err);
/* A flag of a part; `otherwise` if it isn't there. Fails if it is neither true nor false. */
int tc_part_flag(const struct tc_tokenizer *t, const json_t *j, const char *key, bool otherwise, bool *out, struct tc_err *err);
/* Calls load for each part of a Sequence's list. */
int tc_part_each(struct tc_tokenizer *t, const json_t *j, const char *key,
                 int (*load)(struct tc_tokenizer *, const json_t *, struct tc_err *), struct tc_err *err);

int tc_load_normalizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err);
int tc_load_pre_tokenizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err);
int tc_load_post_processor(struct tc_tokenizer *t, const json_t *j, struct tc_err *err);
/* ---- encode.c ---- */
const struct tc_tokenizer *tc_encoder_tokenizer(const struct tc_encoder *e);
/* Where an added token of the raw text begins (within: the bytes from there to the next mark are its own) or ends: the byte,
 * and how many ids are before it. What is between two added tokens is encoded without regard to anything else. */
struct tc_mark { size_t byte, ids; bool within; };
struct tc_marks { struct tc_mark *at; size_t n, cap; };      /* owned; in the order of the text */
/* As tc_encode of valid text; appends to *marks. */
int tc_encode_marked(struct tc_encoder *e, const char *text, size_t n, struct tc_ids *out, struct tc_marks *marks,
                     struct tc_err *err);
/* Appends the ids of text[from, to), which begins at a mark and has no added token, as a text that ends there. */
int tc_encode_between(struct tc_encoder *e, const char *text, size_t from, size_t to, struct tc_ids *out, struct tc_err *err);
/* text in the form in which normalized added tokens are looked for; a copy in the pool. */
int tc_normalized(struct tc_tokenizer *t, const char *text, struct tc_bytes *out, struct tc_err *err);

/* ---- decode.c ---- */
int tc_load_decoder(struct tc_tokenizer *t, const json_t *j, struct tc_err *err);
/* What the token of this text is decoded to, if it stands alone; a copy in the pool. */
struct tc_bytes tc_decoded(struct tc_tokenizer *t, const char *text, size_t n);

/* ---- pattern.c ---- */
/* GPT-2's, which the pre-tokenizer ByteLevel has by itself. */
extern const char tc_pattern_gpt2[];
/* What a pattern does between a letter of ASCII and " " before another one: it isn't known, it never splits
 * there, it always does. */
enum tc_cuts { TC_CUTS_UNKNOWN, TC_CUTS_NOT, TC_CUTS };
/* Compiles a pattern of Oniguruma's (Ruby's) syntax. part: what has it, for sentences. TC_EUSER: it has what PCRE2 may
 * understand in another way. */
int tc_pattern_compile(pcre2_code **out, const char *pattern, enum tc_cuts *cuts, const char *name, const char *part,
                       struct tc_err *err);

/* ---- cut.c ---- */
/* Notes what a step that was added means for cuts; regex: what is known of its pattern, if that is one. */
void tc_note_step(struct tc_tokenizer *t, const struct tc_step *s, enum tc_cuts regex);
void tc_note_added(struct tc_tokenizer *t, const struct tc_added *a, bool normalized);
/* Notes which characters merges join, once all are read. */
void tc_note_merges(struct tc_tokenizer *t);
#define TC_JOINED_BITS 24
static inline uint32_t tc_joined_place(uint32_t before, uint32_t after)
{
  if ((before | after) < 128) return before << 7 | after;
  return (uint32_t)(((uint64_t)before << 21 | after) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - TC_JOINED_BITS));
}
/* Whether no merge joins what ends with the first character to what begins with the second. */
static inline bool tc_is_apart(const struct tc_tokenizer *t, uint32_t before, uint32_t after)
{
  const uint32_t i = tc_joined_place(before, after);
  return !(t->joined[i >> 6] >> (i & 63) & 1);
}

/* Whether a piece has the ids of its parts where it is cut between characters that are apart. Not where unknown ones beside
 * each other are one token, nor where some characters are bytes and others unknown: an unknown one then waits for the next
 * that is known. */
static inline bool tc_divides(const struct tc_tokenizer *t)
{
  return t->joined && (t->all_bytes || (!t->byte_fallback && !t->fuse_unknown));
}

/* The token of a character c, if tokens are of characters; of one from U+10000 on by its text. */
enum { TC_CHARS = 0x10000 };
static inline uint32_t tc_character_id(const struct tc_tokenizer *t, uint32_t c, const char *s, size_t bytes)
{
  return c < TC_CHARS ? t->char_id[c] : tc_words_find(&t->words, (struct tc_bytes){ s, bytes });
}

/* ---- hash.c ---- */
/* The hash of a tokenizer that was read: never 0, which stands for none. */
uint64_t tc_hash_tokenizer(const struct tc_tokenizer *t);

/* ---- utf8.c ---- */
/* The code point at text, which is valid, and its bytes. */
uint32_t tc_utf8_at(const char *text, size_t *bytes);
/* Whether a code point is white space (the property White_Space). */
bool tc_is_space(uint32_t c);
/* Whether it is part of a word: letters, marks, digits, connectors and joiners, as \w of Rust's regex. */
bool tc_is_word(uint32_t c);
/* text[n], which is valid, in NFC, or NFKC if `compat`: *out, *n_out bytes: text itself, or owned by the caller
 * (*owned). */
int tc_normal_form(const char *text, size_t n, bool compat, const char **out, size_t *n_out, char **owned,
                   struct tc_err *err);

/* ---- bpe.c ---- */
struct tc_bpe;
struct tc_bpe *tc_bpe_new(const struct tc_tokenizer *t);
void tc_bpe_free(struct tc_bpe *b);
/* With ignore_merges: appends the token that is the whole piece. False: there is none. */
bool tc_bpe_whole(const struct tc_bpe *b, const char *s, size_t n, struct tc_ids *out);
/* The ids of one character that no merge joins to another. */
void tc_bpe_character(struct tc_bpe *b, const char *s, size_t bytes, struct tc_ids *out);
/* Appends the ids of one piece. n < TC_PIECE_BYTES. */
#define TC_PIECE_BYTES (UINT32_C(1) << 30)
void tc_bpe_piece(struct tc_bpe *b, const char *s, size_t n, struct tc_ids *out);

#endif
