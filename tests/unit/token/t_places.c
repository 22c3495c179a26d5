/* t_places.c - places of a text among its ids: by the stored tokenizers, on random text with special tokens. The bytes that
 * tokens of bytes stand for tell where each of them ends; other tokenizers: the ids before a place are those of the text that
 * ends there, wherever the place is at the border of tokens. */
#include "tests/unit/seed.h"
#include "tests/unit/token_fixture.h"

enum { ROUNDS = 400, PLACES = 12, MOST = 400 };
static const char *const parts[] = { "a", "b", "the ", " the", "\n", "\n\n", " ", "  ", "1", "234", "\t", ".", "!?", "e\xcc\x81",
                                     "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "<|endoftext|>", "</s>", "<s>", "'s", "Hello",
                                     "[INST]", "<eos>", "-", "->" };
enum { PARTS = sizeof parts / sizeof *parts };

static size_t draw(struct dice *d, char *text)
{
  size_t n = 0;
  for (uint32_t k = 1 + roll(d, 40); k > 0; k--) {
    const char *part = parts[roll(d, PARTS)];
    memcpy(text + n, part, strlen(part));
    n += strlen(part);
  }
  return n;
}

static size_t draw_places(struct dice *d, const char *text, size_t n, struct tc_id_place *p)
{
  size_t at = 0, k = 0;
  while (k < PLACES && at <= n) {
    while (at < n && ((unsigned char)text[at] & 0xc0) == 0x80) at++;
    p[k++].byte = at;
    at += roll(d, 1 + (uint32_t)n / 4);
  }
  return k;
}

/* Tokens of bytes stand for the text's bytes one after the other. */
static bool right_bytes(const struct tc_tokenizer *t, const struct tc_ids *ids, const struct tc_id_place *p)
{
  size_t at = 0, ended = 0, begun = 0;
  for (size_t i = 0; i < ids->n; i++) {
    size_t bytes;
    tc_tokenizer_bytes(t, ids->id[i], &bytes);
    begun += at < p->byte;
    at += bytes;
    ended += at <= p->byte;
  }
  return p->ended == ended && p->begun == begun;
}

static bool right_alone(struct tc_encoder *e, const char *text, const struct tc_ids *ids, const struct tc_id_place *p)
{
  struct tc_ids part = { 0 };
  struct tc_err err = { 0 };
  bool same = tc_encode(e, text, p->byte, TC_INVALID_REFUSE, &part, NULL, &err) == 0 && p->ended <= ids->n &&
              p->begun >= p->ended && p->begun <= p->ended + 1;
  if (part.n && part.n <= ids->n && memcmp(part.id, ids->id, part.n * sizeof *part.id) == 0)
    same &= p->ended == part.n && p->begun == part.n;
  tc_ids_free(&part);
  return same;
}

static void test(const char *name, bool of_bytes, uint64_t seed)
{
  struct tc_tokenizer *t = stored_tokenizer(name);
  struct tc_encoder *e;
  struct tc_err err = { 0 };
  struct dice d = { seed, 0 };
  int wrong = 0, places = 0;
  TC_ASSERT(tc_encoder_new(&e, t, &err) == 0);
  for (int r = 0; r < ROUNDS; r++) {
    char text[MOST * 2];
    struct tc_id_place p[PLACES];
    struct tc_ids ids = { 0 }, plain = { 0 };
    const size_t n = draw(&d, text), k = draw_places(&d, text, n, p);
    bool right = tc_encode_places(e, text, n, p, k, &ids, &err) == 0 &&
                 tc_encode(e, text, n, TC_INVALID_REFUSE, &plain, NULL, &err) == 0 && same_ids(&ids, &plain);
    for (size_t i = 0; i < k && right; i++)
      right = of_bytes ? right_bytes(t, &ids, &p[i]) : right_alone(e, text, &ids, &p[i]);
    if (!right && wrong++ < 3) printf("# text '%.*s'\n", (int)n, text);
    places += (int)k;
    tc_ids_free(&ids), tc_ids_free(&plain);
  }
  ok(wrong == 0 && places > ROUNDS, "%s: %d places of %d texts are where they should be", name, places, ROUNDS);
  tc_encoder_free(e);
  tc_tokenizer_free(t);
}

static void test_strip(void)
{
  static const struct { const char *text, *want; } cases[] = {
    { "", "" }, { " \t\n\x1c", "" }, { "a", "a" }, { " a b\xc2\x85", "a b" }, { "\xe3\x80\x80\xc3\xa9 \x1f", "\xc3\xa9" },
    { "\xe2\x80\x8b a", "\xe2\x80\x8b a" } };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *s = cases[i].text;
    size_t n = strlen(s);
    tc_utf8_strip(&s, &n);
    ok(n == strlen(cases[i].want) && memcmp(s, cases[i].want, n) == 0, "case %zu is stripped as by Python", i);
  }
}

int main(void)
{
  const uint64_t seed = test_seed(false);
  static const char *const bytes[] = { "gpt2", "llama3" }, *const others[] = { "digits", "qwen", "llama2", "mistral", "gemma" };
  for (int i = 0; i < 2; i++) test(bytes[i], true, seed);
  for (int i = 0; i < 5; i++) test(others[i], false, seed);
  test_strip();
  return done_testing();
}
