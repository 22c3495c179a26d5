/* t_token_steps.c - encoding takes as many steps as a text has bytes, whatever the text: steps are counted for texts that are
 * made for a search to look at the same bytes again and again, and for twice as long ones. NFC is compared with utf8proc's
 * own. */
#include <utf8proc.h>

#include "tests/unit/token_fixture.h"

static int64_t steps;

static const utf8proc_property_t *property_of(utf8proc_int32_t c)
{
  steps++;
  return utf8proc_get_property(c);
}

#define utf8proc_get_property property_of
#include "src/token/utf8.c"
#undef utf8proc_get_property

static bool is_space_counted(uint32_t c)
{
  steps++;
  return tc_is_space(c);
}

static const struct tc_added *added_counted(const struct tc_added_list *l, const char *text, size_t n)
{
  steps++;
  return tc_added_at(l, text, n);
}

static size_t cut_counted(const char *text, size_t n)
{
  const size_t valid = tc_utf8_valid(text, n);
  steps += (int64_t)valid + 1;
  return valid;
}

#define tc_is_space is_space_counted
#define tc_added_at added_counted
#define tc_utf8_valid cut_counted
#define normalize normalize_text
#include "src/token/encode.c"
#undef tc_is_space
#undef tc_added_at
#undef tc_utf8_valid
#undef normalize

/* Added tokens of white space, with lstrip and rstrip, and one that such a one may swallow. */
static const char *const added[] = {
  "[{\"id\":256,\"content\":\"\\t\",\"lstrip\":true,\"normalized\":true}]",
  "[{\"id\":256,\"content\":\"\\t\\t\",\"lstrip\":true,\"normalized\":false}]",
  "[{\"id\":256,\"content\":\"<m>\",\"lstrip\":true,\"rstrip\":true,\"normalized\":true}]",
  "[{\"id\":256,\"content\":\"<m>\",\"rstrip\":true},{\"id\":257,\"content\":\"<x\",\"lstrip\":true}]",
};

/* Texts by what is repeated. */
static const char *const repeated[] = {
  "\t", " ", " \t", "<m>", "<m> ", " <m>", "x ", " x", "\xe3\x80\x80", "\xcc\x81\xcc\xa3", "e\xcc\x81", "\xe0\xbd\xb3",
  "\xff", "\xff ", "\xc3", "\xe1\x84\x80\xe1\x85\xa1", "\xe1\x86\xa7", "a", "'", "1", "\n", " \n", "<m", "\xc2\x85\t",
};

/* A tokenizer of bytes without merges; owned by the caller. */
static char *tokenizer_json(const char *tokens, const char *normalizer)
{
  enum { SIZE = 8000 };
  char *json = tc_calloc(1, SIZE);
  int next = 0x100;
  tc_text_add(json, SIZE, "{\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
              "\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{", tokens, normalizer);
  for (int b = 0; b < 256; b++) {
    const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    tc_text_add(json, SIZE, "%s\"\\u%04x\":%d", b ? "," : "", itself ? b : next++, b);
  }
  tc_text_add(json, SIZE, "}}}");
  return json;
}

static int64_t count(struct tc_encoder *e, const char *what, size_t n)
{
  char *text = tc_malloc(n);
  struct tc_ids ids = { 0 };
  struct tc_err err = { 0 };
  const size_t k = strlen(what);
  for (size_t i = 0; i < n; i++) text[i] = what[i % k];
  steps = 0;
  ok(tc_encode(e, text, n, TC_INVALID_BYTES, &ids, NULL, &err) == 0, "%zu bytes %s", n, err.text);
  tc_ids_free(&ids);
  free(text);
  return steps;
}

static void test_steps(void)
{
  enum { N = 6000 };
  for (size_t a = 0; a < sizeof added / sizeof *added; a++)
    for (int nfc = 0; nfc < 2; nfc++) {
      struct tc_tokenizer *t;
      struct tc_encoder *e;
      struct tc_err err = { 0 };
      char *json = tokenizer_json(added[a], nfc ? "{\"type\":\"NFC\"}" : "null");
      if (!ok(tc_tokenizer_parse(&t, json, strlen(json), "t", &err) == 0, "tokenizer %zu %s", a, err.text)) return;
      TC_ASSERT(tc_encoder_new(&e, t, &err) == 0);
      for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        const int64_t once = count(e, repeated[i], N), twice = count(e, repeated[i], 2 * N);
        ok(twice <= 2 * once + 100 && once <= 20 * N, "text %zu, tokens %zu%s: %lld steps, twice the text %lld", i, a,
           nfc ? ", NFC" : "", (long long)once, (long long)twice);
      }
      tc_encoder_free(e);
      tc_tokenizer_free(t);
      free(json);
    }
}

/* Random texts of marks, letters and Hangul are normalized as by utf8proc itself, whose order of marks is its own. */
static void test_order(void)
{
  static const char *const part[] = {
    "\xcc\x81", "\xcc\xa3", "\xcc\xb8", "\xcd\x84", "\xe0\xbd\xb3", "\xcd\x85", "\xd6\xb0", "\xd9\x8b", "e", "a", "\xc3\xa9",
    "\xe1\x84\x80", "\xe1\x85\xa1", "\xe1\x86\xa8", "\xea\xb0\x80", "\xe2\x84\xab", "\xf0\x9d\x85\x9e", "\xe0\xa5\x98",
  };
  struct dice d = { 5, 0 };
  int wrong = 0;
  for (int i = 0; i < 20000; i++) {
    char text[400] = "";
    const uint32_t n = 1 + roll(&d, i % 10 ? 8 : 60), marks = roll(&d, 3) ? 18 : 8;
    for (uint32_t k = 0; k < n; k++) tc_text_add(text, sizeof text, "%s", part[roll(&d, marks)]);
    const char *got;
    size_t bytes;
    char *owned;
    struct tc_err err;
    utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text);
    TC_ASSERT(tc_normal_form(text, strlen(text), false, &got, &bytes, &owned, &err) == 0);
    wrong += bytes != strlen((const char *)want) || memcmp(got, want, bytes) != 0;
    free(owned);
    free(want);
  }
  is_int(wrong, 0, "20,000 texts in NFC");
}

int main(void)
{
  test_steps();
  test_order();
  return done_testing();
}
