/* fuzz_tokenizer.c - damaged tokenizer.json files. What is accepted must encode a text, and decode it. */
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

/* Every id of a text has bytes. */
static bool encode(const struct tc_tokenizer *t)
{
  static const char text[] = "The the the <m> isn't e\xcc\x81 12345 \n\n  <|endoftext|>\xff\xe2\x82 \xe4\xbd\xa0";
  struct tc_encoder *e;
  struct tc_err err = { 0 };
  struct tc_ids ids = { 0 };
  bool good = tc_encoder_new(&e, t, &err) == TC_OK;
  if (!good) return false;
  const int status = tc_encode(e, text, sizeof text - 1, TC_INVALID_BYTES, &ids, NULL, &err);
  for (size_t i = 0, n; i < ids.n; i++) good &= tc_tokenizer_bytes(t, ids.id[i], &n) && n > 0;
  good &= status == TC_OK ? ids.n > 0 : err.text[0] != '\0';
  tc_ids_free(&ids);
  tc_encoder_free(e);
  return good;
}

int main(int argc, char **argv)
{
  struct fuzz f;
  fuzz_start(&f, argc, argv);
  char *whole = tc_malloc(MOST), *text = tc_malloc(MOST);
  const size_t n = make(whole), vocab = (size_t)(strstr(whole, "\"vocab\"") - whole);
  const int64_t rss_kb = fuzz_rss_kb();
  int faults = 0;
  while (fuzz_more(&f)) {
    size_t len = n;
    memcpy(text, whole, n);
    for (size_t times = 1 + fuzz_below(&f, 3); times > 0; times--) {
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
    if (!encode(t)) faults += fuzz_fault(&f, "accepted, but a text can't be encoded");
    tc_tokenizer_free(t);
  }
  is_int(faults, 0, "no faults");
  ok(f.accepted > f.cases / 50, "some are accepted");
  free(whole);
  free(text);
  return fuzz_end(&f, "fuzz_tokenizer", rss_kb);
}
