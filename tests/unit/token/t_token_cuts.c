/* t_token_cuts.c - cuts of texts by tokenizers with random steps, merges and added tokens: wherever a cut is allowed, the
 * parts have the ids of the whole. Texts are short words with much between them, so that each rule of cut.c has cases in
 * which a cut would be wrong. */
#include "tests/unit/seed.h"
#include "tests/unit/token_fixture.h"

#define MARK "\xe2\x96\x81"
static const char *const letters[] = { "a", "b", "c", "d", "_", ".", "1", MARK, " ", "\xc3\xa9", "\xcc\x81" };
enum { LETTERS = sizeof letters / sizeof *letters };

static bool chance(struct dice *d, uint32_t of) { return roll(d, of) == 0; }
static const char *one_of(struct dice *d, const char *const *list, uint32_t n) { return list[roll(d, n)]; }
#define LIST(...) (const char *const[]){ __VA_ARGS__ }
#define ONE_OF(d, ...) one_of(d, LIST(__VA_ARGS__), sizeof(LIST(__VA_ARGS__)) / sizeof(char *))

static json_t *draw_pattern(struct dice *d)
{
  if (chance(d, 4))
    return json_pack("{s:s}", "Regex", ONE_OF(d, "\\p{N}", "a b", "b+", " ?\\p{L}+", "[^\\s\\p{L}\\p{N}]+"));
  return json_pack("{s:s}", "String", ONE_OF(d, " ", MARK, "_", ".", "a", "b ", " c", "1", "  "));
}

static json_t *draw_normalizer(struct dice *d)
{
  if (chance(d, 2))
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content",
                     ONE_OF(d, MARK, MARK, "_", "a", "__"));
  if (chance(d, 4)) return json_pack("{s:s}", "type", ONE_OF(d, "NFC", "NFKC"));
  if (chance(d, 2)) return json_pack("{s:s, s:s}", "type", "Prepend", "prepend", ONE_OF(d, MARK, "_", "a", " "));
  return json_pack("{s:s, s:o, s:s}", "type", "Replace", "pattern", draw_pattern(d), "content",
                   ONE_OF(d, "", "_", MARK, " ", "b"));
}

static json_t *draw_step(struct dice *d)
{
  if (chance(d, 3))
    return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", ONE_OF(d, MARK, MARK, "_"), "prepend_scheme",
                     ONE_OF(d, "always", "first", "never"), "split", chance(d, 2));
  if (chance(d, 4)) return json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", chance(d, 2));
  return json_pack("{s:s, s:o, s:s, s:b}", "type", "Split", "pattern", draw_pattern(d), "behavior", ONE_OF(d, "Isolated",
                   "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"), "invert", chance(d, 4));
}

static json_t *draw_added(struct dice *d, json_t *vocab)
{
  const char *text = ONE_OF(d, "<x>", "ab", "a b", MARK "c", "c" MARK "d", "_", ".1", MARK MARK, "b");
  const json_t *id = json_object_get(vocab, text);
  return json_pack("{s:s, s:I, s:b, s:b, s:b, s:b}", "content", text, "id",
                   id ? json_integer_value(id) : (json_int_t)json_object_size(vocab), "lstrip", chance(d, 3), "rstrip",
                   chance(d, 3), "normalized", chance(d, 2), "single_word", chance(d, 3));
}

/* Each letter, maybe tokens of all bytes, an unknown one, and merges of pairs. */
static json_t *draw_model(struct dice *d)
{
  json_t *vocab = json_object(), *merges = json_array();
  const bool bytes = !chance(d, 3);
  char name[16];
  int id = 0;
  json_object_set_new(vocab, "<unk>", json_integer(id++));
  for (int b = 0; b < 256 && bytes; b++) {
    snprintf(name, sizeof name, "<0x%02X>", b);
    json_object_set_new(vocab, name, json_integer(id++));
  }
  for (int i = 0; i < LETTERS; i++)
    if (!chance(d, 8)) json_object_set_new(vocab, letters[i], json_integer(id++));
  for (int n = (int)roll(d, 25); n > 0; n--) {
    const char *a = letters[roll(d, LETTERS)], *b = letters[roll(d, LETTERS)];
    if (!json_object_get(vocab, a) || !json_object_get(vocab, b)) continue;
    snprintf(name, sizeof name, "%s%s", a, b);
    if (!json_object_get(vocab, name)) json_object_set_new(vocab, name, json_integer(id++));
    json_array_append_new(merges, json_pack("[s, s]", a, b));
  }
  if (bytes && chance(d, 8) && json_object_get(vocab, "a")) {             /* a merge of a byte */
    json_object_set_new(vocab, "<0x64>a", json_integer(id++));
    json_array_append_new(merges, json_pack("[s, s]", "<0x64>", "a"));
  }
  return json_pack("{s:s, s:o, s:o, s:s, s:b, s:b, s:b}", "type", "BPE", "vocab", vocab, "merges", merges, "unk_token", "<unk>",
                   "byte_fallback", bytes, "fuse_unk", chance(d, 2), "ignore_merges", chance(d, 4));
}

static json_t *sequence(const char *key, json_t *list) { return json_pack("{s:s, s:o}", "type", "Sequence", key, list); }

/* NULL: one that is refused. */
static struct tc_tokenizer *draw_tokenizer(struct dice *d, char **text)
{
  json_t *model = draw_model(d), *vocab = json_object_get(model, "vocab"), *normalizers = json_array(), *steps = json_array(),
         *added = json_array();
  struct tc_tokenizer *t = NULL;
  struct tc_err err;
  for (uint32_t n = roll(d, 3); n > 0; n--) json_array_append_new(normalizers, draw_normalizer(d));
  for (uint32_t n = roll(d, 3); n > 0; n--) json_array_append_new(steps, draw_step(d));
  if (chance(d, 2)) json_array_append_new(added, draw_added(d, vocab));
  json_t *j = json_pack("{s:o, s:o, s:o, s:o, s:{s:s}}", "model", model, "normalizer", sequence("normalizers", normalizers),
                        "pre_tokenizer", sequence("pretokenizers", steps), "added_tokens", added, "decoder", "type", "Fuse");
  TC_ASSERT(j);
  *text = json_dumps(j, 0);
  tc_tokenizer_parse(&t, *text, strlen(*text), "drawn", &err);
  json_decref(j);
  return t;
}

static size_t draw_text(struct dice *d, char *text, size_t most)
{
  char *at = text;
  while (at + 16 < text + most) {
    const char *s = chance(d, 12) ? ONE_OF(d, "<x>", "  ", "a b", ".1", "c d", "ab") : chance(d, 3) ? " "
                    : letters[roll(d, chance(d, 6) ? LETTERS : 4)];
    at = stpcpy(at, s);
  }
  return (size_t)(at - text);
}

/* Returns how many cuts are allowed; *wrong grows by those whose parts have other ids. */
static int try_cuts(const struct tc_tokenizer *t, struct dice *d, int *wrong)
{
  char text[90];
  struct tc_encoder *e;
  struct tc_err err;
  struct tc_ids whole = { 0 }, parts = { 0 };
  int cuts = 0;
  TC_ASSERT(tc_encoder_new(&e, t, &err) == 0);
  for (int i = 0; i < 30; i++) {
    const size_t n = draw_text(d, text, sizeof text);
    whole.n = 0;
    if (tc_encode(e, text, n, TC_INVALID_REFUSE, &whole, NULL, &err) < 0) continue;       /* a regex matched nothing */
    for (size_t end = n, p; (p = tc_tokenizer_cut(t, text, 1, end)) > 0; end = p + 1) {
      parts.n = 0;
      const int rc = tc_encode(e, text, p, TC_INVALID_REFUSE, &parts, NULL, &err);
      const bool good = rc == 0 && tc_encode_on(e, text + p, n - p, TC_INVALID_REFUSE, &parts, NULL, &err) == 0;
      cuts++;
      if (good && same_ids(&whole, &parts)) continue;
      if (++*wrong == 1) printf("# '%.*s' | '%.*s'\n", (int)p, text, (int)(n - p), text + p);
    }
  }
  tc_ids_free(&whole);
  tc_ids_free(&parts);
  tc_encoder_free(e);
  return cuts;
}

int main(int argc, char **argv)
{
  struct dice d = { argc > 1 ? strtoull(argv[1], NULL, 10) : test_seed(false), 0 };
  const int cases = argc > 2 ? atoi(argv[2]) : 3000;
  int accepted = 0, allowed = 0, faults = 0;
  printf("# seed %llu: t_token_cuts.t SEED CASES\n", (unsigned long long)d.seed);
  for (int i = 0; i < cases; i++) {
    char *text;
    struct tc_tokenizer *t = draw_tokenizer(&d, &text);
    int wrong = 0;
    if (t) {
      accepted++;
      allowed += try_cuts(t, &d, &wrong) > 0;
      if (wrong && faults++ < 3) printf("# by %s\n", text);
    }
    tc_tokenizer_free(t);
    free(text);
  }
  is_int(faults, 0, "of %d tokenizers, those of which parts have other ids than the whole", accepted);
  ok(allowed > cases / 20, "%d of them allow cuts", allowed);
  return done_testing();
}
