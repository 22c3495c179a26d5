/* t_token.c - ids as Hugging Face's tokenizers gave them (tests/oracle/make_tokens.py), what decoding gives back,
 * and cuts: on random text (t_token.t SEED). */
#include "src/token/impl.h"
#include "tests/unit/seed.h"
#include "tests/unit/token_fixture.h"

static const char *const names[] = { "gpt2", "llama3", "qwen", "digits", "whole", "parts", "llama2", "llama2-normalized",
                                     "mistral", "gemma", "phi3", "unknown", "unknown-apart", "nfkc" };
enum { NAMES = sizeof names / sizeof *names, CHARACTERS = 6 };    /* from which on tokens are of characters */

static void encode(struct tc_encoder *e, const char *text, size_t n, enum tc_invalid how, struct tc_ids *ids)
{
  struct tc_err err = { 0 };
  if (tc_encode(e, text, n, how, ids, NULL, &err) < 0) printf("# %s\n", err.text), ids->n = SIZE_MAX;
}

static size_t from_hex(const char *hex, char *out)
{
  size_t n = 0;
  unsigned x;
  for (; sscanf(hex, "%2x", &x) == 1; hex += 2) out[n++] = (char)x;
  return n;
}

/* ---- stored ids ------------------------------------------------------------------------ */

struct tally { struct tc_tokenizer *t; struct tc_encoder *e; int texts, wrong, decoded; uint64_t seed; };

/* What ids are decoded to, one after the other; n bytes, owned by the caller. */
static char *decode(const struct tc_tokenizer *t, const json_t *ids, bool keeps_bytes, size_t *n)
{
  struct tc_decoder *d = tc_decoder_new(t, keeps_bytes);
  char *text = NULL;
  FILE *f = open_memstream(&text, n);
  tc_decoder_begin(d);
  for (size_t i = 0; i <= json_array_size(ids); i++) {
    size_t bytes;
    const json_int_t id = json_integer_value(json_array_get(ids, i));
    const char *s = i < json_array_size(ids) ? tc_decode(d, (uint32_t)id, &bytes) : tc_decode_end(d, &bytes);
    fwrite(s, 1, bytes, f);
  }
  fclose(f);
  tc_decoder_free(d);
  return text;
}

/* The text of a line: that of "text", else of "hex", with U+FFFD in place of what is not valid; n bytes, owned. */
static char *stored_text(const json_t *line, size_t *n)
{
  const json_t *hex = json_object_get(line, "text") ? json_object_get(line, "text") : json_object_get(line, "hex");
  const char *s = hex ? json_string_value(hex) : "";
  char *raw = tc_malloc(strlen(s) / 2 + 1);
  int64_t parts = 0;
  char *text = tc_utf8_replace(raw, from_hex(s, raw), n, &parts);
  free(raw);
  return text;
}

static void compare_text(struct tally *c, const json_t *line)
{
  size_t n, want;
  char *got = decode(c->t, json_object_get(line, "ids"), false, &n), *text = stored_text(line, &want);
  if ((n != want || memcmp(got, text, n)) && c->decoded++ < 3) {
    char *list = json_dumps(json_object_get(line, "ids"), 0);
    printf("# ids %.400s\n# decoded '%.*s'\n# want    '%.*s'\n", list, (int)n, got, (int)want, text);
    free(list);
  }
  TC_FREE(got, text);
}

static void compare(struct tally *c, const json_t *line)
{
  const char *hex = json_string_value(json_object_get(line, "hex"));
  const json_t *want = json_object_get(line, "ids");
  if (c->t->characters) compare_text(c, line);
  if (!hex) return;
  char *text = tc_malloc(strlen(hex) / 2 + 1);
  const size_t n = from_hex(hex, text);
  struct tc_ids ids = { 0 };
  encode(c->e, text, n, TC_INVALID_REPLACE, &ids);
  bool same = ids.n == json_array_size(want);
  for (size_t i = 0; same && i < ids.n; i++)
    same = ids.id[i] == (uint32_t)json_integer_value(json_array_get(want, i));
  c->texts++;
  if (!same && c->wrong++ < 3) {
    printf("# text %s\n# got ", hex);
    for (size_t i = 0; i < TC_MIN(ids.n, 60); i++) printf(" %u", ids.id[i]);
    char *list = json_dumps(want, 0);
    printf("\n# want %.400s\n", list);
    free(list);
  }
  free(text);
  tc_ids_free(&ids);
}

static void test_stored(struct tally *tally, const char *how)
{
  char *path = token_file("ids.jsonl"), *line = NULL;
  FILE *f = fopen(path, "r");
  size_t cap = 0;
  if (!ok(f != NULL, "ids.jsonl is there")) exit(1);
  while (getline(&line, &cap, f) > 0) {
    json_t *j = json_loads(line, 0, NULL);
    for (int i = 0; i < NAMES; i++)
      if (strcmp(names[i], json_string_value(json_object_get(j, "tokenizer"))) == 0) compare(&tally[i], j);
    json_decref(j);
  }
  for (int i = 0; i < NAMES; i++) {
    ok(tally[i].texts >= 80, "%s: %d texts", names[i], tally[i].texts);
    is_int(tally[i].wrong, 0, "... with the ids of Hugging Face's library%s", how);
    is_int(tally[i].decoded, 0, "... and what it decodes them to");
  }
  free(line);
  fclose(f);
  free(path);
}

/* ---- decoding, cuts -------------------------------------------------------------------- */

/* Words, spaces and others, valid or not; n bytes at most. */
static size_t draw(struct dice *d, char *text, size_t most, bool valid)
{
  static const char *const parts[] = { " ", " ", "  ", "\n", "\r\n", "a", "the", "Of", "'s", "'LL", "12", "3", "!?", "_",
    "\xc3\xa9", "e\xcc\x81", "\xe4\xbd\xa0\xe5\xa5\xbd", "\xf0\x9f\x91\x8d", "\xe2\x80\x8d", "\xc2\xa0", "<|endoftext|>",
    "int ", "x = y;\n", "\t", "\xff", "\xe2\x82", "\xed\xa0\x80", "\xf0\x9f", "\x80" };
  enum { VALID = 24, ALL = sizeof parts / sizeof *parts };
  size_t n = 0;
  while (n + 16 < most) {
    const char *s = parts[roll(d, valid ? VALID : ALL)];
    if (roll(d, 4) == 0) text[n++] = (char)('a' + roll(d, 26));
    else for (; *s; s++) text[n++] = *s;
  }
  return n;
}

/* What is encoded as bytes is decoded to the same bytes. */
static void test_decode(const struct tally *c, const char *name)
{
  struct dice d = { c->seed, 0 };
  char text[700];
  int wrong = 0;
  struct tc_ids ids = { 0 };
  for (int i = 0; i < 400; i++) {
    size_t n = draw(&d, text, 20 + roll(&d, 680), false), back;
    for (size_t k = 0; i % 4 == 0 && k < n; k++) text[k] = (char)roll(&d, 256);
    ids.n = 0;
    encode(c->e, text, n, TC_INVALID_BYTES, &ids);
    json_t *list = json_array();
    for (size_t k = 0; k < ids.n; k++) json_array_append_new(list, json_integer(ids.id[k]));
    char *again = decode(c->t, list, true, &back);
    wrong += back != n || memcmp(again, text, n) != 0;
    free(again);
    json_decref(list);
  }
  is_int(wrong, 0, "%s: 400 byte strings are decoded to themselves", name);
  tc_ids_free(&ids);
}

/* At every place where a text may be cut, the parts have the ids of the whole. */
static void test_cuts(const struct tally *c, const char *name, bool some)
{
  struct dice d = { c->seed, 1 << 30 };
  char text[700];
  int cuts = 0, wrong = 0;
  struct tc_ids whole = { 0 }, parts = { 0 };
  for (int i = 0; i < 200; i++) {
    const size_t n = draw(&d, text, 20 + roll(&d, 680), true);
    whole.n = 0;
    encode(c->e, text, n, TC_INVALID_REFUSE, &whole);
    for (size_t end = n, p; (p = tc_tokenizer_cut(c->t, text, 1, end)) > 0; end = p + 1) {
      TC_ASSERT(p + 1 < end);
      parts.n = 0;
      encode(c->e, text, p, TC_INVALID_REFUSE, &parts);
      struct tc_err err = { 0 };
      TC_ASSERT(tc_encode_on(c->e, text + p, n - p, TC_INVALID_REFUSE, &parts, NULL, &err) == 0);
      cuts++;
      wrong += !same_ids(&whole, &parts);
    }
  }
  is_int(wrong, 0, "%s: parts have the ids of the whole", name);
  ok(some ? cuts > 200 : cuts == 0, "... %d cuts", cuts);
  tc_ids_free(&whole);
  tc_ids_free(&parts);
}

/* Of the tokenizers of characters: not with a regex that takes spaces, nor with ignore_merges alone. */
static bool allows_cuts(const char *name)
{
  static const char *const not[] = { "unknown-apart", "nfkc" };
  for (size_t i = 0; i < sizeof not / sizeof *not; i++)
    if (strcmp(name, not[i]) == 0) return false;
  return true;
}

/* gpt2.json with another pattern, and cuts by it. */
static void test_pattern(uint64_t seed, const char *name, const char *pattern, bool some)
{
  char *path = token_file("gpt2.json");
  json_t *j = json_load_file(path, 0, NULL);
  struct tally c = { .seed = seed };
  struct tc_err err = { 0 };
  TC_ASSERT(j);
  json_object_set_new(j, "pre_tokenizer", json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b, s:b}]}", "type",
    "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "type",
    "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
  char *text = json_dumps(j, 0);
  ok(tc_tokenizer_parse(&c.t, text, strlen(text), name, &err) == TC_OK &&
     tc_encoder_new(&c.e, c.t, &err) == TC_OK, "%s: a pattern %s", name, err.text);
  if (c.e) test_cuts(&c, name, some);
  tc_encoder_free(c.e);
  tc_tokenizer_free(c.t);
  free(text);
  free(path);
  json_decref(j);
}

/* ---- invalid UTF-8, long pieces -------------------------------------------------------- */

static void test_invalid(const struct tally *c)
{
  struct tc_ids a = { 0 }, b = { 0 };
  struct tc_err err = { 0 };
  int64_t parts = 0;
  is_int(tc_encode(c->e, "ab\xe2\x82 c", 6, TC_INVALID_REFUSE, &a, &parts, &err), TC_EUSER, "invalid UTF-8 is refused");
  is_str(err.text, "invalid UTF-8 at byte 2: 0xe2", "... and named");
  tc_encode(c->e, "ab\xe2\x82 c\xff\xff", 8, TC_INVALID_REPLACE, &a, &parts, &err);
  is_int(parts, 3, "... or replaced: three maximal parts");
  encode(c->e, "ab\xef\xbf\xbd c\xef\xbf\xbd\xef\xbf\xbd", 13, TC_INVALID_REFUSE, &b);
  ok(same_ids(&a, &b), "... by U+FFFD");
  parts = 0;
  tc_encode(c->e, "ab\xe2\x82 c\xff\xff", 8, TC_INVALID_BYTES, &a, &parts, &err);
  is_int(parts, 3, "... or kept");
  tc_ids_free(&a);
  tc_ids_free(&b);
}

/* A million bytes without a break, which a search for each merge would take hours for. */
static void test_long(const struct tally *c)
{
  enum { N = 1 << 20 };
  static const char *const from[] = { "et", "abcdefghijklmnopqrstuvwxyz", "=", " " };
  char *text = tc_malloc(N);
  struct tc_ids ids = { 0 };
  struct dice d = { 7, 0 };
  for (int i = 0; i < 4; i++) {
    size_t back;
    for (size_t k = 0; k < N; k++) text[k] = from[i][roll(&d, (uint32_t)strlen(from[i]))];
    ids.n = 0;
    encode(c->e, text, N, TC_INVALID_REFUSE, &ids);
    char *again = decode_ids(c->t, &ids, &back);
    ok(back == N && memcmp(again, text, N) == 0, "a piece of 1 MiB of '%s'", from[i]);
    free(again);
  }
  free(text);
  tc_ids_free(&ids);
}

static void test_questions(const struct tally *c)
{
  const struct tc_tokenizer *gpt2 = c[0].t, *llama3 = c[1].t;
  size_t n;
  is_int(tc_tokenizer_find(gpt2, "<|endoftext|>"), 0, "a special token is found");
  is_int(tc_tokenizer_find(gpt2, "<mask>"), -1, "one that isn't there is not");
  ok(tc_tokenizer_find(gpt2, "a") > 0, "a token of the vocabulary is");
  is_int(tc_tokenizer_begin(gpt2)->n + tc_tokenizer_end(gpt2)->n, 0, "no template");
  is_int(tc_tokenizer_begin(llama3)->n, 1, "a template's begin");
  is_int(tc_tokenizer_begin(llama3)->id[0], tc_tokenizer_find(llama3, "<|begin|>"), "... is its token");
  is_int(tc_tokenizer_end(llama3)->id[0], 0, "... and its end");
  is_int(tc_tokenizer_vocab(llama3), tc_tokenizer_find(llama3, "<|b|>") + 1, "the size of the vocabulary");
  ok(!tc_tokenizer_bytes(gpt2, (uint32_t)tc_tokenizer_vocab(gpt2), &n), "no token behind the last");
  ok(tc_tokenizer_hash(gpt2) != tc_tokenizer_hash(llama3), "hashes differ");
}

/* tokenizer.json as a file, and what is noted of it. */
static void test_file(const struct tally *c)
{
  static const struct { const char *text; uint64_t hash; } notes[] = {
    { "", 0 }, { "tokens 7 hash 12ab", 0 }, { "tokenizer ", 0 }, { "tokenizer 00000000000000ff", 255 },
    { "tokens 7 hash 12ab tokenizer f123456789abcdef", UINT64_C(0xf123456789abcdef) } };
  const struct tc_tokenizer *gpt2 = c[0].t;
  const int64_t vocab = tc_tokenizer_vocab(gpt2);
  struct tc_tokenizer *t;
  struct tc_err err;
  char *text, *path = token_file("gpt2.json"), shown[TC_TOKEN_SHOWN];
  size_t n;
  for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
    ok(tc_tokenizer_noted(notes[i].text) == notes[i].hash, "the hash in '%s'", notes[i].text);
  is_int(tc_tokenizer_read(&text, &n, path, &err), 0, "a file is read");
  is_int(tc_tokenizer_parse(&t, text, n, "x", &err), 0, "... and is a tokenizer");
  ok(tc_tokenizer_hash(t) == tc_tokenizer_hash(gpt2), "... its hash is the tokenizer's");
  is_int(tc_tokenizer_beyond(t, vocab), 0, "... with no token beyond its vocabulary");
  is_int(tc_tokenizer_beyond(t, vocab - 3), 3, "... and some beyond a smaller one");
  is_str(tc_token_shown(t, (uint32_t)tc_tokenizer_find(t, "\n"), shown), "\\x0a", "a token is shown");
  is_str(tc_token_shown(t, (uint32_t)vocab, shown), "", "... none");
  tc_tokenizer_free(t);
  free(text);
  free(path);
}

int main(int argc, char **argv)
{
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : test_seed(false);
  struct tally c[NAMES] = { { 0 } };
  for (int i = 0; i < NAMES; i++) {
    struct tc_err err = { 0 };
    c[i].seed = seed;
    c[i].t = stored_tokenizer(names[i]);
    is_int(tc_encoder_new(&c[i].e, c[i].t, &err), TC_OK, "%s: an encoder", names[i]);
  }
  test_stored(c, "");
  test_decode(&c[0], "gpt2");
  test_decode(&c[1], "llama3");
  test_decode(&c[4], "whole");
  test_decode(&c[6], "llama2");                  /* mistral loses a space in front, phi3 adds one behind an added token */
  test_decode(&c[7], "llama2-normalized");
  test_decode(&c[9], "gemma");
  test_cuts(&c[0], "gpt2", true);
  test_cuts(&c[1], "llama3", true);
  test_cuts(&c[2], "qwen", true);
  test_cuts(&c[3], "digits", true);
  for (int i = CHARACTERS; i < NAMES; i++) test_cuts(&c[i], names[i], allows_cuts(names[i]));
  test_pattern(seed, "GPT-4", "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}"
               "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", true);
  test_pattern(seed, "GPT-4o", "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
               "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?"
               "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
               "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+"
               "|\\s+(?!\\S)|\\s+", true);
  test_pattern(seed, "of words", "[a-z]+ [a-z]+", false);
  test_invalid(&c[0]);
  test_long(&c[0]);
  test_long(&c[2]);
  test_long(&c[9]);
  test_questions(c);
  test_file(c);
  for (int i = 0; i < NAMES; i++) {
    struct tc_err err = { 0 };
    tc_encoder_free(c[i].e);
    c[i].t->jit = false;                /* as where memory can't be made executable */
    c[i].texts = c[i].decoded = 0;
    is_int(tc_encoder_new(&c[i].e, c[i].t, &err), TC_OK, "%s: an encoder without JIT", names[i]);
  }
  test_stored(c, ", without JIT");
  test_long(&c[0]);
  for (int i = 0; i < NAMES; i++) {
    tc_encoder_free(c[i].e);
    tc_tokenizer_free(c[i].t);
  }
  return done_testing();
}
