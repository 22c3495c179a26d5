/* tokenizer_json.c - tokenizer.json: the vocabulary, the merges and the added tokens.
 *
 * The vocabulary of byte-level BPE is written in an alphabet of 256 characters, one for each byte: printable ones of
 * Latin-1 stand for themselves, the others begin at U+0100. It is read into bytes here, so that nothing after it knows the
 * alphabet. Without ByteLevel, tokens are of characters (SentencePiece's BPE), and <0x0A> may be the token of a byte.
 *
 * Invariants of a tokenizer that was read: every id of words, merges and lists is below n_ids and has a text; every
 * byte has a token, or an unknown character has one, so every text has ids. */
#include "src/token/impl.h"
#include "src/files/input.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 28, MOST_ID = (1 << 23) - 1 };

static int damaged(const struct tc_tokenizer *t, const char *what, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: %s", t->name, what);
}

/* ---- texts ----------------------------------------------------------------------------- */

/* The byte that a character of the alphabet stands for; -1: it is not in it. */
static int byte_of(uint32_t c)
{
  if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff)) return (int)c;
  if (c < 0x100 || c > 0x143) return -1;
  if (c <= 0x120) return (int)c - 0x100;            /* 0 to 0x20 */
  if (c <= 0x142) return (int)c - 0x121 + 0x7f;     /* 0x7f to 0xa0 */
  return 0xad;
}

/* What a text of the vocabulary stands for, into out, which has room for n: itself, or bytes by the alphabet. Returns
 * their number; 0: it is empty, or has a character that is not in the alphabet. */
static size_t decode(const struct tc_tokenizer *t, const char *s, size_t n, char *out)
{
  size_t len = 0, bytes;
  if (t->characters) return memcpy(out, s, n), n;
  for (size_t i = 0; i < n; i += bytes) {
    const int byte = byte_of(tc_utf8_at(s + i, &bytes));
    if (byte < 0) return 0;
    out[len++] = (char)byte;
  }
  return len;
}

/* ---- the model ------------------------------------------------------------------------- */

/* What a BPE model may ask for besides vocabulary and merges, and must not. */
static int check_model(const struct tc_tokenizer *t, const json_t *model, struct tc_err *err)
{
  const json_t *type = json_object_get(model, "type"), *x = json_object_get(model, "dropout");
  static const char *const marks[] = { "continuing_subword_prefix", "end_of_word_suffix" };
  if (!json_is_object(model)) return damaged(t, "it has no model", err);
  const char *name = type ? json_string_value(type) : "BPE";      /* the first files had no type */
  if (!name || strcmp(name, "BPE") != 0)
    return tc_fail(err, TC_EUSER, "tokenizer '%s' has a model of type '%.60s'; only BPE is supported", t->name,
                   name ? name : "");
  if (x && !json_is_null(x) && !(json_is_number(x) && json_number_value(x) == 0))
    return tc_fail(err, TC_EUSER, "tokenizer '%s' has a BPE model with dropout, which is not supported: ids "
                   "would be random", t->name);
  for (size_t i = 0; i < 2; i++) {
    const char *mark = json_string_value(json_object_get(model, marks[i]));
    if (mark && *mark)
      return tc_fail(err, TC_EUSER, "tokenizer '%s' has a BPE model with %s = '%.40s', which is not supported", t->name,
                     marks[i], mark);
  }
  return TC_OK;
}

/* Makes room for the id, which must be sensible. */
static int reserve_id(struct tc_tokenizer *t, json_int_t id, struct tc_err *err)
{
  if (id < 0 || id > MOST_ID)
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: a token has the id %lld; ids are 0 to %d", t->name,
                   (long long)id, MOST_ID);
  if ((uint32_t)id < t->n_ids) return TC_OK;
  const uint32_t n = (uint32_t)id + 1;
  if (n > t->n_room) {
    t->n_room = TC_MAX(n, t->n_room * 2);
    t->token = tc_realloc(t->token, t->n_room * sizeof *t->token);
  }
  for (uint32_t i = t->n_ids; i < n; i++) t->token[i] = (struct tc_bytes){ NULL, 0 };
  t->n_ids = n;
  return TC_OK;
}

/* A token of the vocabulary; buf has room for its text. */
static int load_word(struct tc_tokenizer *t, const char *text, const json_t *id, char *buf, struct tc_err *err)
{
  const size_t n = strlen(text), len = decode(t, text, n, buf);
  if (!json_is_integer(id)) return damaged(t, "an id of its vocabulary is not an integer", err);
  TC_TRY(reserve_id(t, json_integer_value(id), err));
  const uint32_t i = (uint32_t)json_integer_value(id);
  if (t->token[i].s)
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: two tokens of its vocabulary have the id %u", t->name, i);
  t->token[i] = t->characters ? tc_decoded(t, text, n) : len ? tc_token_keep(t, buf, len) : tc_token_keep(t, text, n);
  if (len) tc_words_put(&t->words, t->characters ? tc_token_keep(t, text, n) : t->token[i], i);
  return TC_OK;
}

static int load_vocab(struct tc_tokenizer *t, json_t *vocab, struct tc_err *err)
{
  const char *text;
  json_t *id;
  char *buf = NULL;
  int status = TC_OK;
  tc_words_new(&t->words, json_object_size(vocab));
  json_object_foreach(vocab, text, id) {
    buf = tc_realloc(buf, strlen(text) + 1);
    status = load_word(t, text, id, buf, err);
    if (status != TC_OK) break;
  }
  free(buf);
  return status;
}

/* The token of each byte, and that of what has none. */
static int find_bytes(struct tc_tokenizer *t, const json_t *model, struct tc_err *err)
{
  const char *unknown = json_string_value(json_object_get(model, "unk_token"));
  t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
  t->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
  t->all_bytes = !t->characters || t->byte_fallback;
  for (int b = 0; b < 256; b++) {
    char name[8] = { (char)b };
    if (t->characters) snprintf(name, sizeof name, "<0x%02X>", b);
    t->byte_id[b] = tc_words_find(&t->words, (struct tc_bytes){ name, t->characters ? 6 : 1 });
    if (t->byte_id[b] != TC_NO_ID) continue;
    t->all_bytes = false;
    if (!t->characters)
      return tc_fail(err, TC_EUSER, "tokenizer '%s': its vocabulary has no token for the byte 0x%02x; byte-level BPE is "
                     "supported with all 256 bytes (one of your own: initial_alphabet = ByteLevel.alphabet(), as "
                     "docs/data.md shows)", t->name, b);
  }
  t->unknown = unknown && t->characters ? tc_words_find(&t->words, (struct tc_bytes){ unknown, strlen(unknown) }) : TC_NO_ID;
  if (t->all_bytes || t->unknown != TC_NO_ID) return TC_OK;
  return tc_fail(err, TC_EUSER, "tokenizer '%s': its pre-tokenizer does not end with ByteLevel, and its vocabulary has neither "
                 "tokens <0x00> to <0xFF> for byte_fallback nor unk_token: characters that it does not have would be lost",
                 t->name);
}

/* The two halves of a merge, "a b" or ["a", "b"]. */
static bool halves(const json_t *merge, struct tc_bytes half[2])
{
  if (json_is_string(merge)) {
    const char *text = json_string_value(merge), *space = strchr(text, ' ');
    if (!space || strchr(space + 1, ' ')) return false;
    half[0] = (struct tc_bytes){ text, (size_t)(space - text) };
    half[1] = (struct tc_bytes){ space + 1, strlen(space + 1) };
    return true;
  }
  if (json_array_size(merge) != 2) return false;
  for (size_t k = 0; k < 2; k++) {
    const json_t *x = json_array_get(merge, k);
    if (!json_is_string(x)) return false;
    half[k] = (struct tc_bytes){ json_string_value(x), json_string_length(x) };
  }
  return true;
}

/* One merge; buf has room for its text. */
static int load_merge(struct tc_tokenizer *t, const struct tc_bytes half[2], uint32_t rank, char *buf,
                      struct tc_err *err)
{
  const size_t left = decode(t, half[0].s, half[0].n, buf), right = decode(t, half[1].s, half[1].n, buf + left);
  const uint32_t a = tc_words_find(&t->words, (struct tc_bytes){ buf, left });
  const uint32_t b = tc_words_find(&t->words, (struct tc_bytes){ buf + left, right });
  const uint32_t ab = tc_words_find(&t->words, (struct tc_bytes){ buf, left + right });
  if (!left || !right || a == TC_NO_ID || b == TC_NO_ID || ab == TC_NO_ID)
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: merge %u, of '%.*s' and '%.*s', has a token that is not "
                   "in the vocabulary", t->name, rank, (int)TC_MIN(half[0].n, 40), half[0].s,
                   (int)TC_MIN(half[1].n, 40), half[1].s);
  tc_merges_put(&t->merges, a, b, rank, ab);
  return TC_OK;
}

static int load_merges(struct tc_tokenizer *t, const json_t *merges, struct tc_err *err)
{
  const size_t n = json_array_size(merges);
  char *buf = NULL;
  int status = TC_OK;
  tc_merges_new(&t->merges, n);
  for (size_t i = 0; i < n && status == TC_OK; i++) {
    struct tc_bytes half[2];
    if (!halves(json_array_get(merges, i), half))
      status = tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: merge %zu is not two tokens", t->name, i);
    else {
      buf = tc_realloc(buf, half[0].n + half[1].n + 1);
      status = load_merge(t, half, (uint32_t)i, buf, err);
    }
  }
  free(buf);
  return status;
}

static int load_model(struct tc_tokenizer *t, const json_t *model, struct tc_err *err)
{
  json_t *vocab = json_object_get(model, "vocab");
  const json_t *merges = json_object_get(model, "merges");
  if (!json_is_object(vocab) || !json_is_array(merges))
    return damaged(t, "its model has no vocabulary or no merges", err);
  TC_TRY(load_vocab(t, vocab, err));
  TC_TRY(find_bytes(t, model, err));
  TC_TRY(load_merges(t, merges, err));
  if (t->characters) tc_note_merges(t);
  t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
  return TC_OK;
}

/* ---- added tokens ---------------------------------------------------------------------- */

static int load_added_token(struct tc_tokenizer *t, const json_t *j, int64_t want, struct tc_err *err)
{
  const json_t *id = json_object_get(j, "id");
  const char *text = json_string_value(json_object_get(j, "content"));
  if (!text || !*text || !json_is_integer(id)) return damaged(t, "an added token has no text or no id", err);
  if (json_integer_value(id) != want)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its added token '%.60s' has the id %lld, but by Hugging Face's "
                   "library it gets %lld; write the file again by that library", t->name, text,
                   (long long)json_integer_value(id), (long long)want);
  TC_TRY(reserve_id(t, want, err));
  const json_t *flag = json_object_get(j, "normalized");
  const bool normalized = flag ? json_is_true(flag) : !json_is_true(json_object_get(j, "special"));
  struct tc_added a = { .id = (uint32_t)want, .lstrip = json_is_true(json_object_get(j, "lstrip")),
                        .rstrip = json_is_true(json_object_get(j, "rstrip")),
                        .single_word = json_is_true(json_object_get(j, "single_word")),
                        .content = tc_token_keep(t, text, strlen(text)) };
  a.text = a.content;
  if (normalized) TC_TRY(tc_normalized(t, text, &a.text, err));
  if (a.text.n == 0)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its normalizer leaves nothing of its added token '%.60s', which is not "
                   "supported", t->name, text);
  t->token[want] = tc_decoded(t, a.text.s, a.text.n);      /* the normal form, as that library does */
  tc_note_added(t, &a, normalized);
  tc_added_put(normalized ? &t->normalized : &t->raw, a);
  return TC_OK;
}

/* Where a token takes the white space after it, one that begins there would lie within it: Hugging Face's library
 * then loses tokens or ends. Two with one normal form would both match. The list is sorted. */
static int check_added(const struct tc_tokenizer *t, const struct tc_added_list *l, struct tc_err *err)
{
  const struct tc_added *strips = NULL, *space = NULL;
  size_t bytes;
  for (size_t i = 0; i < l->n; i++) {
    const struct tc_bytes *a = &l->at[i].text, *b = &l->at[i ? i - 1 : 0].text;
    if (i && a->n == b->n && memcmp(a->s, b->s, a->n) == 0)
      return tc_fail(err, TC_EUSER, "tokenizer '%s': two of its added tokens are '%.60s' in the normal form, which is "
                     "not supported", t->name, a->s);
    if (l->at[i].rstrip) strips = &l->at[i];
    if (tc_is_space(tc_utf8_at(l->at[i].text.s, &bytes))) space = &l->at[i];
  }
  if (!strips || !space) return TC_OK;
  return tc_fail(err, TC_EUSER, "tokenizer '%s': its added token '%.60s' has rstrip, which is not supported together "
                 "with '%.60s', which begins with white space", t->name, strips->text.s, space->text.s);
}

/* Ids are given as Hugging Face's library gives them: that of the vocabulary, else the next free one. */
static int load_added(struct tc_tokenizer *t, const json_t *added, const json_t *vocab, struct tc_err *err)
{
  int64_t next = (int64_t)json_object_size(vocab);
  struct tc_words seen;
  int status = TC_OK;
  if (added && !json_is_null(added) && !json_is_array(added)) return damaged(t, "added_tokens is no list", err);
  tc_words_new(&seen, json_array_size(added));
  for (size_t i = 0; i < json_array_size(added) && status == TC_OK; i++) {
    const json_t *j = json_array_get(added, i);
    const char *text = json_string_value(json_object_get(j, "content"));
    const json_t *in_vocab = text ? json_object_get(vocab, text) : NULL;
    const int64_t want = in_vocab ? json_integer_value(in_vocab) : next;
    status = load_added_token(t, j, want, err);
    if (status == TC_OK && tc_words_put(&seen, tc_token_keep(t, text, strlen(text)), 0) != TC_NO_ID)
      status = tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: its added token '%.60s' is there twice", t->name,
                       text);
    next = TC_MAX(next, want + 1);
  }
  free(seen.slot);
  tc_added_sort(&t->raw);
  tc_added_sort(&t->normalized);
  if (status == TC_OK) status = check_added(t, &t->raw, err);
  if (status == TC_OK) status = check_added(t, &t->normalized, err);
  return status;
}

/* ---- the file -------------------------------------------------------------------------- */

static int load(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  static const char *const lengths[] = { "truncation", "padding" };
  for (size_t i = 0; i < 2; i++) {
    const json_t *x = json_object_get(j, lengths[i]);
    if (x && !json_is_null(x))
      return tc_fail(err, TC_EUSER, "tokenizer '%s' asks for %s, which is not supported: set it to null", t->name,
                     lengths[i]);
  }
  const json_t *model = json_object_get(j, "model");
  TC_TRY(check_model(t, model, err));
  TC_TRY(tc_load_normalizer(t, json_object_get(j, "normalizer"), err));
  TC_TRY(tc_load_pre_tokenizer(t, json_object_get(j, "pre_tokenizer"), err));
  TC_TRY(tc_load_decoder(t, json_object_get(j, "decoder"), err));
  TC_TRY(load_model(t, model, err));
  TC_TRY(load_added(t, json_object_get(j, "added_tokens"), json_object_get(model, "vocab"), err));
  TC_TRY(tc_load_post_processor(t, json_object_get(j, "post_processor"), err));
  t->hash = tc_hash_tokenizer(t);
  return TC_OK;
}

uint64_t tc_tokenizer_noted(const char *text)
{
  const char *at = strstr(text, "tokenizer ");
  uint64_t hash;
  return at && sscanf(at, "tokenizer %" SCNx64, &hash) == 1 ? hash : 0;
}

/* What follows a word of such a text; NULL: it is not there. */
static const char *find_word(const char *text, const char *word)
{
  const size_t n = strlen(word);
  for (const char *at = text; (at = strstr(at, word)); at += n)
    if ((at == text || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return at + n;
  return NULL;
}

bool tc_bytes_noted(const char *text) { return find_word(text, TC_BYTES_NOTE) != NULL; }

int64_t tc_end_noted(const char *text)
{
  const char *at = find_word(text, "end");
  int64_t end;
  return at && sscanf(at, " %" SCNd64, &end) == 1 && end >= 0 ? end : -1;
}

int tc_tokenizer_parse(struct tc_tokenizer **out, const char *text, size_t bytes, const char *name,
                       struct tc_err *err)
{
  json_error_t why;
  *out = NULL;
  json_t *j = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
  if (!j)
    return tc_fail(err, TC_EUSER, "tokenizer '%.500s' is no JSON file, or damaged: line %d: %s%s", name, why.line, why.text,
                   tc_ends_with(name, ".model") ? "; a model of SentencePiece has to be converted, as docs/data.md shows" : "");
  struct tc_tokenizer *t = tc_calloc(1, sizeof *t);
  t->name = tc_sprintf("%.500s", name);
  t->pool = tc_pool_new();
  t->jit = true;                  /* until a pattern is not compiled so */
  const int status = load(t, j, err);
  json_decref(j);
  if (status == TC_OK) *out = t;
  else tc_tokenizer_free(t);
  return status;
}

int tc_tokenizer_read(char **text, size_t *bytes, const char *path, struct tc_err *err)
{
  return tc_read_text(text, bytes, path, "tokenizer", MOST_BYTES, err);
}

int tc_tokenizer_load(struct tc_tokenizer **out, const char *path, struct tc_err *err)
{
  char *text;
  size_t bytes;
  *out = NULL;
  TC_TRY(tc_tokenizer_read(&text, &bytes, path, err));
  const int status = tc_tokenizer_parse(out, text, bytes, path, err);
  free(text);
  return status;
}

struct tc_tokenizer *tc_tokenizer_of_bytes(void)
{
  struct tc_tokenizer *t = tc_calloc(1, sizeof *t);
  t->name = tc_strdup("bytes");
  t->pool = tc_pool_new();
  t->n_ids = t->n_room = 256;
  t->token = tc_calloc(t->n_ids, sizeof *t->token);
  for (uint32_t b = 0; b < t->n_ids; b++) {
    t->byte_id[b] = b;
    t->token[b] = tc_token_keep(t, (char[]){ (char)b }, 1);
  }
  tc_words_new(&t->words, 0);
  tc_merges_new(&t->merges, 0);
  t->anywhere = t->all_bytes = true;
  t->unknown = TC_NO_ID;
  return t;
}

void tc_tokenizer_free(struct tc_tokenizer *t)
{
  if (!t) return;
  for (int i = 0; i < TC_STEPS; i++) {
    pcre2_code_free(t->normalizer.at[i].code);
    pcre2_code_free(t->pre_tokenizer.at[i].code);
  }
  TC_FREE(t->words.slot, t->merges.slot, t->merges.some, t->char_id, t->raw.at, t->normalized.at, t->joined);
  tc_ids_free(&t->begin);
  tc_ids_free(&t->end);
  free(t->token);
  tc_pool_free(t->pool);
  TC_FREE(t->name, t);
}
