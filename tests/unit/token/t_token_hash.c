/* t_token_hash.c - the hash of a tokenizer: the same for another file with the same tokenizer, another where an id may
 * differ. */
#include "tests/unit/token_fixture.h"

/* The hash of a tokenizer as this text; the JSON is left as it is. */
static uint64_t hash_of(const json_t *j, size_t flags)
{
  struct tc_tokenizer *t = NULL;
  struct tc_err err = { 0 };
  char *text = json_dumps(j, flags);
  if (tc_tokenizer_parse(&t, text, strlen(text), "x.json", &err) < 0) printf("Bail out! %s\n", err.text), exit(1);
  const uint64_t hash = tc_tokenizer_hash(t);
  tc_tokenizer_free(t);
  free(text);
  return hash;
}

static json_t *parse(const char *text)
{
  json_error_t why;
  json_t *j = json_loads(text, JSON_DECODE_ANY, &why);
  if (!j) printf("Bail out! %s: %s\n", text, why.text), exit(1);
  return j;
}

static json_t *merges_of(json_t *j) { return json_object_get(json_object_get(j, "model"), "merges"); }

/* Each merge in the other of its two forms. */
static void rewrite_merges(json_t *j)
{
  json_t *list = merges_of(j);
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *m = json_array_get(list, i);
    const char *text = json_string_value(m), *space = text ? strchr(text, ' ') : NULL;
    json_t *other = text ? json_pack("[o, s]", json_stringn(text, (size_t)(space - text)), space + 1)
                         : json_sprintf("%s %s", json_string_value(json_array_get(m, 0)),
                                        json_string_value(json_array_get(m, 1)));
    json_array_set_new(list, i, other);
  }
}

static void swap_merges(json_t *j)
{
  json_t *list = merges_of(j), *first = json_incref(json_array_get(list, 0));
  json_array_set(list, 0, json_array_get(list, 1));
  json_array_set_new(list, 1, first);
}

static void drop_merge(json_t *j) { json_array_remove(merges_of(j), json_array_size(merges_of(j)) - 1); }

static void swap_ids(json_t *j)
{
  json_t *vocab = json_object_get(json_object_get(j, "model"), "vocab");
  json_t *a = json_incref(json_object_get(vocab, "a"));
  json_object_set(vocab, "a", json_object_get(vocab, "b"));
  json_object_set_new(vocab, "b", a);
}

#define METASPACE(scheme, split) "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"" scheme \
  "\",\"split\":" split "}"

/* A row sets a key of the file or of its model, NULL: removes it, or is a function. */
struct row { const char *what, *part, *key, *value; void (*change)(json_t *); bool same; };
static const struct row rows[] = {
  { "nothing", NULL, NULL, NULL, NULL, true },
  { "merges in the other form", NULL, NULL, NULL, rewrite_merges, true },
  { "truncation = null", NULL, "truncation", "null", NULL, true },
  { "no truncation", NULL, "truncation", NULL, NULL, true },
  { "no padding", NULL, "padding", NULL, NULL, true },
  { "no version", NULL, "version", NULL, NULL, true },
  { "no decoder", NULL, "decoder", NULL, NULL, true },
  { "no post-processor that acts", NULL, "post_processor", NULL, NULL, true },
  { "ignore_merges, as it is by default", "model", "ignore_merges", "false", NULL, true },
  { "a normalizer of no steps", NULL, "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[]}", NULL, true },
  { "another merge first", NULL, NULL, NULL, swap_merges, false },
  { "a merge less", NULL, NULL, NULL, drop_merge, false },
  { "two ids changed", NULL, NULL, NULL, swap_ids, false },
  { "ignore_merges", "model", "ignore_merges", "true", NULL, false },
  { "NFC", NULL, "normalizer", "{\"type\":\"NFC\"}", NULL, false },
  { "a space in front", NULL, "pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", NULL, false },
  { "no pattern", NULL, "pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", NULL,
    false },
  { "another pattern", NULL, "pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
    "\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}", NULL, false },
  { "no added tokens", NULL, "added_tokens", "[]", NULL, false },
  { "a begin token", NULL, "post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"x\":{\"ids\":[0]}}}", NULL, false },
  { "an end token", NULL, "post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},"
    "{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"ids\":[0]}}}", NULL, false } };

/* Of llama2.json, whose tokens are of characters. */
static const struct row character_rows[] = {
  { "nothing", NULL, NULL, NULL, NULL, true },
  { "another decoder", NULL, "decoder", "{\"type\":\"Fuse\"}", NULL, true },
  { "no unk_token, which no character needs", "model", "unk_token", "null", NULL, true },
  { "fuse_unk, which no character needs", "model", "fuse_unk", "false", NULL, true },
  { "no byte_fallback", "model", "byte_fallback", "false", NULL, false },
  { "ignore_merges", "model", "ignore_merges", "true", NULL, false },
  { "no normalizer", NULL, "normalizer", "null", NULL, false },
  { "only one step of it", NULL, "normalizer", "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}", NULL, false },
  { "another text in front", NULL, "normalizer", "{\"type\":\"Prepend\",\"prepend\":\"_\"}", NULL, false },
  { "NFKC", NULL, "normalizer", "{\"type\":\"NFKC\"}", NULL, false },
  { "Metaspace", NULL, "pre_tokenizer", METASPACE("first", "false"), NULL, false },
  { "Metaspace, always", NULL, "pre_tokenizer", METASPACE("always", "false"), NULL, false },
  { "Metaspace that splits", NULL, "pre_tokenizer", METASPACE("first", "true"), NULL, false },
  { "a split", NULL, "pre_tokenizer",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Removed\"}", NULL, false },
  { "a split with another behavior", NULL, "pre_tokenizer",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Isolated\"}", NULL, false },
  { "an inverted split", NULL, "pre_tokenizer",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Removed\",\"invert\":true}", NULL, false },
  { "a split by a regex", NULL, "pre_tokenizer",
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}", NULL, false } };

/* Each row has the hash of the file, or one that no other row has. */
static void test_rows(const json_t *base, const struct row *row, size_t n)
{
  const uint64_t hash = hash_of(base, 0);
  uint64_t *was = tc_calloc(n, sizeof *was);
  for (size_t i = 0; i < n; i++) {
    json_t *j = json_deep_copy(base), *at = row[i].part ? json_object_get(j, row[i].part) : j;
    if (row[i].change) row[i].change(j);
    else if (row[i].key && row[i].value) json_object_set_new(at, row[i].key, parse(row[i].value));
    else if (row[i].key) json_object_del(at, row[i].key);
    was[i] = hash_of(j, 0);
    ok((was[i] == hash) == row[i].same, "%s: %s hash", row[i].what, row[i].same ? "the same" : "another");
    for (size_t k = 0; k < i && !row[i].same; k++)
      if (was[k] == was[i]) ok(false, "... of its own, not that of %s", row[k].what);
    json_decref(j);
  }
  free(was);
}

/* Hashes of one added token with other flags. */
static void test_added(const json_t *base)
{
  static const char *const flags[] = { "\"normalized\":false", "\"lstrip\":true,\"normalized\":false",
                                       "\"rstrip\":true,\"normalized\":false", "\"normalized\":true",
                                       "\"single_word\":true,\"normalized\":false" };
  enum { FLAGS = sizeof flags / sizeof *flags };
  uint64_t hash[FLAGS];
  const int64_t id = (int64_t)json_object_size(json_object_get(json_object_get(base, "model"), "vocab"));
  for (int i = 0; i < FLAGS; i++) {
    json_t *j = json_deep_copy(base);
    char *token = tc_sprintf("[{\"content\":\"<new>\",\"id\":%lld,%s}]", (long long)id, flags[i]);
    json_object_set_new(j, "added_tokens", parse(token));
    hash[i] = hash_of(j, 0);
    for (int k = 0; k < i; k++) ok(hash[k] != hash[i], "an added token with %s, and with %s", flags[i], flags[k]);
    json_object_set_new(json_array_get(json_object_get(j, "added_tokens"), 0), "special", json_false());
    ok(hash_of(j, 0) == hash[i], "... not special");
    json_decref(j);
    free(token);
  }
}

int main(void)
{
  char *path = token_file("gpt2.json");
  json_t *base = json_load_file(path, 0, NULL);
  if (!base) printf("Bail out! %s can't be read\n", path), exit(1);
  const uint64_t hash = hash_of(base, 0);
  ok(hash == hash_of(base, JSON_INDENT(2)) && hash == hash_of(base, JSON_SORT_KEYS | JSON_ENSURE_ASCII | JSON_COMPACT),
     "other spaces, escapes and orders of keys: the same hash");
  ok(hash == UINT64_C(0x03e33d659ac0792a), "the hash that shards have of this tokenizer");
  test_rows(base, rows, sizeof rows / sizeof *rows);
  test_added(base);
  json_decref(base);
  free(path);
  path = token_file("llama2.json");
  if (!(base = json_load_file(path, 0, NULL))) printf("Bail out! %s can't be read\n", path), exit(1);
  test_rows(base, character_rows, sizeof character_rows / sizeof *character_rows);
  json_decref(base);
  free(path);
  return done_testing();
}
