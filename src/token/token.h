/* token.h - BPE of bytes or characters: text to token ids and back, as Hugging Face's `tokenizers` library does it.
 *
 * In: a tokenizer.json with a BPE model, and text. Out: the same ids as that library gives. What a
 * file asks for and is not done here is refused by name when the file is read. Steps of encoding:
 *   added tokens that are looked for in the raw text; the normalizer; added tokens that are looked for in
 *   normalized text; the pre-tokenizer's splits; merges of pairs of tokens within each piece.
 *
 * The files, in reading order:
 *   impl.h      the tokenizer as a struct
 *   tokenizer_json.c  model, added tokens
 *   prepare.c   tokenizer.json: normalizer, pre-tokenizer, post-processor
 *   pattern.c   regexes for PCRE2, and which of them allow cuts of a text
 *   hash.c      identifies a tokenizer
 *   lookup.c    questions about a tokenizer
 *   words.c     tables: bytes to id, pair to merge, added tokens as a sorted list
 *   utf8.c      what is valid UTF-8; normal forms
 *   encode.c    the steps of encoding
 *   places.c    where bytes of a text are among its ids
 *   bpe.c       merges, and the cache of short pieces
 *   cut.c       where a text may be cut, and which characters no merge joins
 *   decode.c    the decoder: ids to text */
#ifndef TC_TOKEN_H
#define TC_TOKEN_H

#include <inttypes.h>

#include "src/base/base.h"

/* A list of token ids that grows. */
struct tc_ids { uint32_t *id; size_t n, cap; };
void tc_ids_reserve(struct tc_ids *ids, size_t more);       /* room for `more` after the n */
void tc_ids_free(struct tc_ids *ids);

/* ---- a tokenizer: read once, then shared by all threads --------------------------------------- */

struct tc_tokenizer;

/* Local. Reads tokenizer.json. TC_EUSER: it can't be read, is damaged, or asks for what is not supported.
 * *out is owned by the caller. _parse: from text[bytes]; name is for sentences. */
int tc_tokenizer_load(struct tc_tokenizer **out, const char *path, struct tc_err *err);
int tc_tokenizer_parse(struct tc_tokenizer **out, const char *text, size_t bytes, const char *name,
                       struct tc_err *err);
/* Local. The tokenizer of bytes: a token is a byte, its hash is 0, and any text, of any bytes, may be cut between
 * characters. Owned by the caller. */
struct tc_tokenizer *tc_tokenizer_of_bytes(void);
void tc_tokenizer_free(struct tc_tokenizer *t);

int64_t tc_tokenizer_vocab(const struct tc_tokenizer *t);     /* the highest id + 1 */
/* Local. How many tokens have ids from `vocab` on, which a model with this vocabulary does not have: a pad token, for
 * example. Text without them is the model's all the same. */
int64_t tc_tokenizer_beyond(const struct tc_tokenizer *t, int64_t vocab);
/* Local. A hash of all that ids depend on, the same for another file with the same tokenizer: the vocabulary by id, the
 * merges in order, added tokens with lstrip, rstrip, normalized and single_word, the steps of normalizer and
 * pre-tokenizer, ignore_merges, byte_fallback, unk_token and fuse_unk where they matter, and the post-processor's begin and
 * end tokens. 0: a token is a byte. */
uint64_t tc_tokenizer_hash(const struct tc_tokenizer *t);
/* Local. The id of an added token, or of a token of the vocabulary with this text; -1: there is none. */
int64_t tc_tokenizer_find(const struct tc_tokenizer *t, const char *text);
/* Local. The text of an added token; NULL: the id is not one's. Borrowed. */
const char *tc_tokenizer_added(const struct tc_tokenizer *t, uint32_t id);
/* Local. The token that ends a text, by the names that tokenizers give to it: <|endoftext|>, <|end_of_text|>, </s> or
 * <eos>, an added token if there is one; -1: there is none. */
int64_t tc_tokenizer_end_of_text(const struct tc_tokenizer *t);
/* Local. What the post-processor's template puts before and after a document; borrowed. */
const struct tc_ids *tc_tokenizer_begin(const struct tc_tokenizer *t);
const struct tc_ids *tc_tokenizer_end(const struct tc_tokenizer *t);
/* Local. The bytes that an id stands for within a text, *bytes of them; NULL: no token has this id. Borrowed. */
const char *tc_tokenizer_bytes(const struct tc_tokenizer *t, uint32_t id, size_t *bytes);
/* Local. What a token stands for, for messages: with \x.. for what is not plain ASCII, and without its end if it is long; ""
 * if t is NULL or has no such token. Returns text. */
enum { TC_TOKEN_SHOWN = 64 };
const char *tc_token_shown(const struct tc_tokenizer *t, uint32_t id, char text[TC_TOKEN_SHOWN]);
/* Local. The last place p in [from, n) at which text[n] may be cut: text[0, p), and the text from p on by tc_encode_on,
 * give the same ids separately as together, whatever follows text[n]. 0: no such place is known. */
size_t tc_tokenizer_cut(const struct tc_tokenizer *t, const char *text, size_t from, size_t n);

/* ---- tokenizer.json as a file: beside shards, in Hugging Face's folders and in checkpoints --------- */

#define TC_TOKENIZER_FILE "tokenizer.json"
/* Local. The whole file, which is not looked into: *text[*bytes], owned by the caller. TC_EUSER. */
int tc_tokenizer_read(char **text, size_t *bytes, const char *path, struct tc_err *err);
/* What a checkpoint says of its tokenizer, among other things of its data: written with this format and the hash. */
#define TC_TOKENIZER_NOTE "tokenizer %016" PRIx64
/* Local. The hash in such a text; 0: it names none. */
uint64_t tc_tokenizer_noted(const char *text);
/* Further words of it: that a token is a byte, and the token that ends a document (below 0: it does not say). */
#define TC_BYTES_NOTE "bytes"
#define TC_END_NOTE "end %" PRId64
bool tc_bytes_noted(const char *text);
int64_t tc_end_noted(const char *text);
/* For messages: "tokens of tokenizer HASH", or "bytes" if the hash is 0. Returns text. */
enum { TC_TOKENS_TEXT = 40 };
static inline const char *tc_tokens_text(char text[TC_TOKENS_TEXT], uint64_t hash)
{
  snprintf(text, TC_TOKENS_TEXT, hash ? "tokens of tokenizer %016" PRIx64 : "bytes", hash);
  return text;
}

/* ---- an encoder: one thread's at a time ------------------------------------------------------- */

/* Bytes that are not valid UTF-8: an error; U+FFFD in place of each maximal part, as the Unicode standard
 * recommends; or tokens of these bytes, so that decoding gives them back. */
enum tc_invalid { TC_INVALID_REFUSE, TC_INVALID_REPLACE, TC_INVALID_BYTES };

struct tc_encoder;
/* Local. t must live longer. *out is owned by the caller. TC_EUSER: no memory for PCRE2. */
int tc_encoder_new(struct tc_encoder **out, const struct tc_tokenizer *t, struct tc_err *err);
void tc_encoder_free(struct tc_encoder *e);

/* Local. Appends the ids of text[n] to *out. *n_invalid grows by the number of invalid parts (may be NULL).
 * TC_EUSER: invalid UTF-8 that is to be refused, a piece of over 1 GB, or PCRE2 failed; *out may then have some of
 * the ids. */
int tc_encode(struct tc_encoder *e, const char *text, size_t n, enum tc_invalid how, struct tc_ids *out,
              int64_t *n_invalid, struct tc_err *err);

/* Local. As tc_encode, for text behind a place where it was cut: nothing is put in front of it (Prepend, Metaspace,
 * add_prefix_space). */
int tc_encode_on(struct tc_encoder *e, const char *text, size_t n, enum tc_invalid how, struct tc_ids *out,
                 int64_t *n_invalid, struct tc_err *err);

/* A place in a text, by its byte, and where it is among the ids: how many end at or before it, and how many begin before
 * it, which is one more if it is within a token. */
struct tc_id_place { size_t byte, ended, begun; };
/* Local. Appends the ids of text[n] to *out, and finds the places, whose bytes ascend and are at most n; counts are from
 * out->n before the call on. TC_EUSER: as tc_encode, and invalid UTF-8. */
int tc_encode_places(struct tc_encoder *e, const char *text, size_t n, struct tc_id_place *place, size_t n_places,
                     struct tc_ids *out, struct tc_err *err);

/* Local. Appends the ids of text[n] as a model reads a text: the tokenizer's begin tokens, then the text's. e NULL: a
 * token is a byte. TC_EUSER: as tc_encode, and invalid UTF-8. */
int tc_encode_begun(struct tc_encoder *e, const char *text, size_t n, struct tc_ids *out, struct tc_err *err);

/* ---- a decoder: ids to text, one after the other -------------------------------------------------- */

struct tc_decoder;
/* Local. t must live longer. Owned by the caller. keeps_bytes: tokens of bytes give these bytes, as they come, so that what
 * was encoded as bytes comes back; else, as Hugging Face's library does it, bytes one after the other that are not valid
 * UTF-8 together give U+FFFD each, which is known when they end. */
struct tc_decoder *tc_decoder_new(const struct tc_tokenizer *t, bool keeps_bytes);
void tc_decoder_free(struct tc_decoder *d);
/* Local. The next id begins a text. */
void tc_decoder_begin(struct tc_decoder *d);
/* Local. The text that is known once this id has come, *bytes of it; an id without a token gives none. _end: what is
 * left. Borrowed until the next call; NULL or any pointer if *bytes is 0. */
const char *tc_decode(struct tc_decoder *d, uint32_t id, size_t *bytes);
const char *tc_decode_end(struct tc_decoder *d, size_t *bytes);

/* ---- UTF-8 ------------------------------------------------------------------------------------- */

/* Local. The number of bytes from text on that are valid UTF-8 (n: all). */
size_t tc_utf8_valid(const char *text, size_t n);
/* Local. text[n] begins with an invalid byte: the bytes of the maximal part that one U+FFFD stands for. */
size_t tc_utf8_invalid(const char *text, size_t n);
/* Local. text[n] is the beginning of a character whose end is cut off. n > 0. */
bool tc_utf8_cut(const char *text, size_t n);
/* Local. text[n] with U+FFFD in place of each maximal invalid part, whose number is added to *parts: *bytes of
 * them, owned by the caller. */
char *tc_utf8_replace(const char *text, size_t n, size_t *bytes, int64_t *parts);

/* Local. text[n], which is valid, without white space at its ends, as Python's str.strip() has it. */
void tc_utf8_strip(const char **text, size_t *n);

#endif
