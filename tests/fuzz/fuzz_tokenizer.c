/* fuzz_tokenizer.c - damaged tokenizer.json files, of bytes and of characters, and such with random regexes. What is accepted
 * must encode a text, and decode it; what has a meaning of PCRE2's alone must be refused.
 * tests/oracle/compare_patterns.py compares the ids of random regexes and steps with Hugging Face's library. */
#include "src/token/token.h"
#include "tests/fuzz/fuzz.h"

enum { MOST = 1 << 16 };

static const char head[] =
  "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
  "{\"id\":259,\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
  "\"normalized\":false,\"special\":true},"
  "{\"id\":260,\"content\":\"<m>\",\"single_word\":false,\"lstrip\":true,\"rstrip\":true,\"normalized\":true,"
  "\"special\":false}],"
  "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]},"
  "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
  "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+"
  "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
  "{\"type\":\"Digits\",\"individual_digits\":true},"
  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},"
  "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<m>\",\"type_id\":0}},"
  "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<m>\":{\"id\":\"<m>\",\"ids\":[260],"
  "\"tokens\":[\"<m>\"]}}},\"decoder\":{\"type\":\"ByteLevel\"},"
  "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
  "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":true,"
  "\"merges\":[\"t h\",[\"th\",\"e\"],\"\\u0120 the\"],\"vocab\":{";

/* Tokens of characters: every kind of step that the other has not. */
static const char character_head[] =
  "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
  "{\"id\":0,\"content\":\"<unk>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
  "\"normalized\":false,\"special\":true},"
  "{\"id\":268,\"content\":\"<m>\",\"single_word\":true,\"lstrip\":true,\"rstrip\":true,\"normalized\":true,"
  "\"special\":false}],"
  "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Prepend\",\"prepend\":\"_\"},"
  "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},"
  "{\"type\":\"Replace\",\"pattern\":{\"String\":\"e\"},\"content\":\"\"}]},"
  "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
  "\"[0-9]+\"},\"behavior\":\"Contiguous\",\"invert\":true},{\"type\":\"Split\",\"pattern\":{\"String\":\"t\"},"
  "\"behavior\":\"MergedWithPrevious\",\"invert\":false},{\"type\":\"Split\",\"pattern\":{\"String\":\"s\"},"
  "\"behavior\":\"Removed\",\"invert\":false},"
  "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\",\"split\":true}]},"
  "\"post_processor\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
  "{\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","
  "\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":\"<unk>\","
  "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":\"\",\"fuse_unk\":true,\"byte_fallback\":true,"
  "\"ignore_merges\":false,\"merges\":[\"t h\",[\"_\",\"th\"],\"\u4f60 \u597d\",\"_ _\"],\"vocab\":{";

static size_t make_characters(char *out)
{
  static const char *const words[] = { "_", "t", "h", "th", "_th", "\u4f60", "\u597d", "\u4f60\u597d", "__", "i", "\n" };
  size_t n = (size_t)snprintf(out, MOST, "%s\"<unk>\":0", character_head);
  for (int b = 0; b < 256; b++) n += (size_t)snprintf(out + n, MOST - n, ",\"<0x%02X>\":%d", b, 1 + b);
  for (int i = 0; i < 11; i++)
    n += (size_t)snprintf(out + n, MOST - n, ",\"%s\":%d", strcmp(words[i], "\n") ? words[i] : "\\n", 257 + i);
  return n + (size_t)snprintf(out + n, MOST - n, "}}}");
}

static size_t make(char *out)
{
  size_t n = (size_t)snprintf(out, MOST, "%s", head);
  int next = 0x100;
  for (int b = 0; b < 256; b++) {
    const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    n += (size_t)snprintf(out + n, MOST - n, "\"\\u%04x\":%d,", itself ? (unsigned)b : (unsigned)next++, b);
  }
  return n + (size_t)snprintf(out + n, MOST - n, "\"th\":256,\"the\":257,\"\\u0120the\":258}}}");
}

/* ---- random regexes ------------------------------------------------------------------------- */

/* As they are written in JSON. */
static const char *const parts[] = {
  "a", "t", "1", " ", "'", "-", ".", "\u00e9", "\\\\s", "\\\\S", "\\\\d", "\\\\p{L}", "\\\\P{N}", "\\\\n", "\\\\.", "\\\\x61", "[a-c]",
  "[^\\\\s\\\\p{L}]", "[-a]", "[a-]", "(?i:[sdmt]|ll|ve|re)", "?", "*", "+", "??", "++", "{2}", "{1,3}", "|", "|",
};
static const char *const pcre_only[] = {
  "(*ACCEPT)", "(*FAIL)", "(*COMMIT)", "(*PRUNE)", "(*SKIP)", "(*THEN)", "(*UCP)", "(*UTF)", "(*CRLF)", "(*NOTEMPTY)",
  "(*LIMIT_MATCH=1)", "(*pla:a)", "(*atomic:a)", "(*sr:a)", "(?R)", "(?1)", "(?C)", "(?|a)", "(?#a)", "(?i)", "(?<n>a)", "(?P>n)",
  "(?(R)a)", "(?<=a)", "\\\\K", "\\\\G", "\\\\Q", "\\\\E", "\\\\R", "\\\\X", "\\\\b", "\\\\1", "\\\\N", "\\\\C", "\\\\c", "[[:alpha:]]",
};
enum { PARTS = sizeof parts / sizeof *parts, PCRE_ONLY = sizeof pcre_only / sizeof *pcre_only };

static void draw_regex(struct fuzz *f, char *out, size_t size, int depth, bool *only)
{
  static const char *const open[] = { "(", "(?:", "(?>", "(?=", "(?!" };
  for (size_t n = 1 + fuzz_below(f, 5); n > 0; n--) {
    const size_t kind = fuzz_below(f, 24);
    if (kind == 0) {
      tc_text_add(out, size, "%s", pcre_only[fuzz_below(f, PCRE_ONLY)]);
      *only = true;
    } else if (kind < 5 && depth < 2) {
      tc_text_add(out, size, "%s", open[fuzz_below(f, 5)]);
      draw_regex(f, out, size, depth + 1, only);
      tc_text_add(out, size, ")");
    } else tc_text_add(out, size, "%s", parts[fuzz_below(f, PARTS)]);
  }
}

/* The whole file with another regex. Returns its length; *only: it has what means something to PCRE2 alone. */
static size_t make_regex(struct fuzz *f, const char *whole, char *out, bool *only)
{
  const char *at = strstr(whole, "\"Regex\":") + 8, *end = strstr(at, ",\"behavior\"") - 1;
  char regex[1000] = "";
  *only = false;
  draw_regex(f, regex, sizeof regex, 0, only);
  return (size_t)snprintf(out, MOST, "%.*s\"%s\"%s", (int)(at - whole), whole, regex, end);
}

/* The text of its ids is the text. */
static bool encode_back(const struct tc_tokenizer *t)
{
  static const char text[] = "at's 1.5 a-b \xc3\xa9";
  char back[sizeof text + 10] = "";
  struct tc_encoder *e;
  struct tc_err err = { 0 };
  struct tc_ids ids = { 0 };
  size_t len = 0, n;
  if (tc_encoder_new(&e, t, &err) != TC_OK) return false;
  const int status = tc_encode(e, text, sizeof text - 1, TC_INVALID_REFUSE, &ids, NULL, &err);
  for (size_t i = 0; i < ids.n && len < sizeof text; i++) {
    const char *s = tc_tokenizer_bytes(t, ids.id[i], &n);
    memcpy(back + len, s, TC_MIN(n, sizeof text - len));
    len += n;
  }
  tc_ids_free(&ids);
  tc_encoder_free(e);
  return status == TC_OK && len == sizeof text - 1 && memcmp(back, text, len) == 0;
}

/* ---- damage ----------------------------------------------------------------------------------- */

/* Every id of a text has bytes, which a decoder gives. */
static bool encode(const struct tc_tokenizer *t)
{
  static const char text[] = "The the the <m> isn't e\xcc\x81 12345 \n\n  <|endoftext|>\xff\xe2\x82 \xe4\xbd\xa0";
  struct tc_encoder *e;
  struct tc_err err = { 0 };
  struct tc_ids ids = { 0 };
  bool good = tc_encoder_new(&e, t, &err) == TC_OK;
  if (!good) return false;
  const int status = tc_encode(e, text, sizeof text - 1, TC_INVALID_BYTES, &ids, NULL, &err);
  struct tc_decoder *d = tc_decoder_new(t, false);
  size_t n;
  for (size_t i = 0; i < ids.n; i++) good &= tc_tokenizer_bytes(t, ids.id[i], &n) && (tc_decode(d, ids.id[i], &n) || n == 0);
  good &= tc_decode_end(d, &n) || n == 0;
  tc_decoder_free(d);
  good &= status == TC_OK ? ids.n > 0 : err.text[0] != '\0';
  tc_ids_free(&ids);
  tc_encoder_free(e);
  return good;
}

/* A file that is not damaged is accepted. */
static void test_whole(const char *text, size_t n, const char *what)
{
  struct tc_tokenizer *t;
  struct tc_err err = { 0 };
  is_int(tc_tokenizer_parse(&t, text, n, "whole", &err), TC_OK, "tokens of %s %s", what, err.text);
  ok(t && encode(t), "... encode a text");
  tc_tokenizer_free(t);
}

int main(int argc, char **argv)
{
  struct fuzz f;
  fuzz_start(&f, argc, argv);
  char *bytes = tc_malloc(MOST), *characters = tc_malloc(MOST), *text = tc_malloc(MOST);
  const size_t n_bytes = make(bytes), n_characters = make_characters(characters);
  test_whole(bytes, n_bytes, "bytes");
  test_whole(characters, n_characters, "characters");
  const int64_t rss_kb = fuzz_rss_kb();
  int faults = 0;
  int regexes = 0;
  while (fuzz_more(&f)) {
    const bool of_bytes = fuzz_below(&f, 2) == 0;
    const char *whole = of_bytes ? bytes : characters;
    const size_t n = of_bytes ? n_bytes : n_characters, vocab = (size_t)(strstr(whole, "\"vocab\"") - whole);
    size_t len = n;
    bool only = false;
    const bool regex = of_bytes && fuzz_below(&f, 3) == 0;
    if (regex) len = make_regex(&f, whole, text, &only);
    else memcpy(text, whole, n);
    for (size_t times = regex ? 0 : 1 + fuzz_below(&f, 3); times > 0; times--) {
      size_t part = fuzz_below(&f, 4) ? TC_MIN(vocab, len) : len;      /* most of it is vocabulary */
      char rest[MOST];
      const size_t behind = len - part;
      memcpy(rest, text + part, behind);
      if (part > 1) fuzz_damage(&f, text, &part, 0, MOST - behind);
      memcpy(text + part, rest, behind);
      len = part + behind;
    }
    struct tc_tokenizer *t;
    struct tc_err err = { 0 };
    const int status = tc_tokenizer_parse(&t, text, len, "damaged", &err);
    if (status != TC_OK && (t || !err.text[0])) faults += fuzz_fault(&f, "refused without a sentence");
    if (status != TC_OK) continue;
    f.accepted++;
    regexes += regex;
    if (only) faults += fuzz_fault(&f, "a regex of PCRE2 alone is accepted");
    if (regex && !encode_back(t)) faults += fuzz_fault(&f, "a text of a random regex does not come back");
    if (!regex && !encode(t)) faults += fuzz_fault(&f, "accepted, but a text can't be encoded");
    tc_tokenizer_free(t);
  }
  is_int(faults, 0, "no faults");
  ok(f.accepted > f.cases / 50, "some are accepted");
  ok(regexes > 0, "... %d of them with a random regex", regexes);
  TC_FREE(bytes, characters, text);
  return fuzz_end(&f, "fuzz_tokenizer", rss_kb);
}
