/* t_token_refused.c - what a tokenizer.json may ask for and is refused, each by its name; and damaged files. */
#include "tests/unit/token_fixture.h"

/* Pre-tokenizers: a step before ByteLevel; a Split with a pattern. */
#define IN_FRONT(step) "{\"type\":\"Sequence\",\"pretokenizers\":[" step ",{\"type\":\"ByteLevel\"}]}"
#define SPLIT(behavior, invert, regex) IN_FRONT("{\"type\":\"Split\",\"behavior\":\"" behavior "\",\"invert\":" \
  invert ",\"pattern\":{\"Regex\":\"" regex "\"}}")

/* What is changed in gpt2.json (value NULL: removed), and a part of the sentence. */
struct row { const char *path, *value, *sentence; };
static const struct row rows[] = {
  { "model.type", "\"WordPiece\"", "has a model of type 'WordPiece'; only BPE is supported" },
  { "model.type", "\"Unigram\"", "has a model of type 'Unigram'" },
  { "model.type", "7", "has a model of type ''" },
  { "model", "null", "is damaged: it has no model" },
  { "model.dropout", "0.1", "has a BPE model with dropout, which is not supported" },
  { "model.continuing_subword_prefix", "\"##\"", "has a BPE model with continuing_subword_prefix = '##'" },
  { "model.end_of_word_suffix", "\"</w>\"", "has a BPE model with end_of_word_suffix = '</w>'" },
  { "model.vocab", "[]", "is damaged: its model has no vocabulary or no merges" },
  { "model.merges", "{}", "is damaged: its model has no vocabulary or no merges" },
  { "model.vocab", "{}", "its vocabulary has no token for the byte 0x00" },
  { "model.vocab.b", "\"1\"", "is damaged: an id of its vocabulary is not an integer" },
  { "model.vocab.b", "-1", "is damaged: a token has the id -1; ids are 0 to 8388607" },
  { "model.vocab.b", "4294967296", "is damaged: a token has the id 4294967296; ids are 0 to 8388607" },
  { "model.vocab.b", "5", "is damaged: two tokens of its vocabulary have the id" },
  { "model.vocab.b", NULL, "its vocabulary has no token for the byte 0x62" },
  { "model.merges", "[\"a b c\"]", "is damaged: merge 0 is not two tokens" },
  { "model.merges", "[\"ab\"]", "is damaged: merge 0 is not two tokens" },
  { "model.merges", "[[\"a\", 1]]", "is damaged: merge 0 is not two tokens" },
  { "model.merges", "[[\"a\"]]", "is damaged: merge 0 is not two tokens" },
  { "model.merges", "[7]", "is damaged: merge 0 is not two tokens" },
  { "model.merges", "[\"! ~\"]", "merge 0, of '!' and '~', has a token that is not in the vocabulary" },
  { "model.merges", "[\"\xe4\xbd\xa0 a\"]", "merge 0, of '\xe4\xbd\xa0' and 'a', has a token that is not in" },
  { "model.merges", "[\" \"]", "merge 0, of '' and '', has a token that is not in the vocabulary" },
  { "normalizer", "{\"type\":\"NFD\"}", "its normalizer 'NFD' is not supported: NFC, NFKC, Prepend, Replace and Sequence are" },
  { "normalizer", "{\"type\":\"Prepend\"}", "is damaged: its normalizer Prepend has no text" },
  { "normalizer", "{\"type\":\"Replace\",\"content\":\"x\"}", "is damaged: its normalizer Replace has no pattern" },
  { "normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"}}",
    "is damaged: its normalizer Replace has no content" },
  { "normalizer", "{\"type\":\"Replace\",\"content\":\"x\",\"pattern\":{\"Regex\":\"a*\"}}",
    "the regex of its normalizer matches an empty text" },
  { "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}",
    "its normalizer 'Lowercase' is not supported" },
  { "normalizer", "{\"type\":\"Sequence\"}", "is damaged: a Sequence has no list 'normalizers'" },
  { "normalizer", "3", "its normalizer '(without a type)' is not supported" },
  { "pre_tokenizer", "null", "its decoder 'ByteLevel' is not supported: the pre-tokenizer does not end with ByteLevel" },
  { "pre_tokenizer", "{\"type\":\"Whitespace\"}",
    "its pre-tokenizer 'Whitespace' is not supported: Split, Digits, Metaspace, ByteLevel and Sequence are" },
  { "pre_tokenizer", "{\"type\":\"Metaspace\"}", "is damaged: its Metaspace has no replacement of one character" },
  { "pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", "is damaged: its Metaspace has no replacement of one" },
  { "pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}",
    "or another prepend_scheme than first, never and always" },
  { "pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"add_prefix_space\":false}",
    "or another prepend_scheme than first, never and always" },
  { "pre_tokenizer", "{\"type\":\"Digits\",\"individual_digits\":true}", "does not end with ByteLevel" },
  { "pre_tokenizer", "{\"type\":\"ByteLevel\",\"use_regex\":1}",
    "is damaged: use_regex of its ByteLevel is neither true nor false" },
  { "pre_tokenizer", IN_FRONT("{\"type\":\"ByteLevel\"}"), "its pre-tokenizer has ByteLevel before its last step" },
  { "pre_tokenizer", IN_FRONT("{\"type\":\"Whitespace\"}"), "its pre-tokenizer 'Whitespace' is not supported" },
  { "pre_tokenizer", SPLIT("Kept", "false", "a"), "its pre-tokenizer Split has the behavior 'Kept', which is not supported" },
  { "pre_tokenizer", SPLIT("Isolated", "1", "a"), "is damaged: invert of its Split is neither true nor false" },
  { "pre_tokenizer", IN_FRONT("{\"type\":\"Split\",\"behavior\":\"Isolated\"}"),
    "is damaged: its pre-tokenizer Split has no pattern" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "\\\\w+"), "has '\\w', which is not supported: the patterns of GPT-2" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[\\\\S]"), "has '\\S' within [...], which is not supported" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "a$"), "has '$', which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?<=a)b"), "has '(?<=', which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?i:ss)"), "has '(?i:', which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "a{2}+"), "has '{2}+', which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[a[b]]"), "has '[' within [...], which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[a&&b]"), "has '&&' within [...], which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[a"), "has a [ without its ]" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "\\\\p{Nonsense}"), "has '\\p{Nonsense}', which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "\\\\p"), "has '\\p', which" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(*ACCEPT)"), "has '(*AC'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "\\\\xc3\\\\xa9"), "has '\\xc3'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "a(*FAIL)|b"), "has '(*FA'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(*UCP)a"), "has '(*UC'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(*LIMIT_MATCH=1)a"), "has '(*LI'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(*sr:a)"), "has '(*sr'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?R)"), "has '(?R)'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?1)"), "has '(?1)'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?i)a"), "has '(?i)'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?|a|b)"), "has '(?|a'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?#x)a"), "has '(?#x'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?<a>b)"), "has '(?<a'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?<=a)b"), "has '(?<='" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?(1)a)"), "has '(?(1'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?C1)a"), "has '(?C1'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "*a"), "has '*a'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?=a)+b"), "has '+b'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?!a)?b"), "has '?b'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(?:(?=a))+b"), "has '+b'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "()+b"), "has '+b'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "a+?+"), "has '+'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "a|+b"), "has '+b'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "({2})"), "has '{2})'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "a)"), "has ')'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[\\\\s-a]"), "has '-a'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[a-\\\\d]"), "has ']'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[a-c-e]"), "has '-e'" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "\\\\x{110000}"), "regex of its pre-tokenizer is wrong: " },
  { "pre_tokenizer", SPLIT("Isolated", "false", "(a"),
    "regex of its pre-tokenizer has a ( without its )" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "a*"), "matches an empty text, which is not supported" },
  { "post_processor", "{\"type\":\"RobertaProcessing\"}",
    "its post-processor 'RobertaProcessing' is not supported: ByteLevel, TemplateProcessing and Sequence are" },
  { "post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", "the template of its post-processor is wrong" },
  { "post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}",
    "the template of its post-processor is wrong" },
  { "post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":"
    "{\"id\":\"A\"}}],\"special_tokens\":{\"x\":{\"ids\":[99999]}}}", "the template of its post-processor is wrong" },
  { "decoder", "{\"type\":\"Metaspace\"}", "its decoder 'Metaspace' is not supported: ByteLevel is" },
  { "truncation", "{\"max_length\":512}", "asks for truncation, which is not supported: set it to null" },
  { "padding", "{\"length\":8}", "asks for padding, which is not supported" },
  { "added_tokens", "{}", "is damaged: added_tokens is no list" },
  { "added_tokens", "[{\"id\":0}]", "is damaged: an added token has no text or no id" },
  { "added_tokens", "[{\"content\":\"\",\"id\":0}]", "is damaged: an added token has no text or no id" },
  { "added_tokens", "[{\"content\":\"<x>\",\"id\":5000}]",
    "its added token '<x>' has the id 5000, but by Hugging Face's library it gets 2057" },
  { "added_tokens", "[{\"content\":\"<x>\",\"id\":2057,\"rstrip\":true},{\"content\":\" y\",\"id\":2058}]",
    "its added token '<x>' has rstrip, which is not supported together with ' y', which begins with white space" },
  { "added_tokens", "[{\"content\":\"<x>\",\"id\":2057},{\"content\":\"<x>\",\"id\":2058}]",
    "is damaged: its added token '<x>' is there twice" },
};

/* What is changed in llama2.json, whose tokens are of characters. */
#define DECODER(...) "{\"type\":\"Sequence\",\"decoders\":[" __VA_ARGS__ "]}"
#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"}"
static const struct row character_rows[] = {
  { "model.byte_fallback", "false", NULL },                     /* with unk_token */
  { "model.unk_token", "null", NULL },                          /* with byte_fallback */
  { "model.vocab.<0x41>", NULL, NULL },
  { "pre_tokenizer",
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"Metaspace\",\"replacement\":\"_\","
    "\"prepend_scheme\":\"first\"}]}", "'Metaspace' is not supported: prepend_scheme = first is not, behind a normalizer" },
  { "model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}",
    "its pre-tokenizer does not end with ByteLevel, and its vocabulary has neither tokens <0x00> to <0xFF>" },
  { "model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"b\"}", "nor unk_token" },
  { "decoder", "null", "its decoder '(without a type)' is not supported: Replace, Metaspace, ByteFallback" },
  { "decoder", "{\"type\":\"WordPiece\"}", "its decoder 'WordPiece' is not supported: Replace, Metaspace, ByteFallback" },
  { "decoder", "{\"type\":\"ByteLevel\"}", "its decoder 'ByteLevel' is not supported: the pre-tokenizer does not end" },
  { "decoder", DECODER("{\"type\":\"ByteFallback\"}," REPLACE),
    "'Replace' is not supported: it has to stand before ByteFallback" },
  { "decoder", DECODER("{\"type\":\"Fuse\"}," REPLACE), "'Replace' is not supported: it has to stand before ByteFallback" },
  { "decoder", DECODER("{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}"), "'ByteFallback' is not supported" },
  { "decoder", DECODER("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"_\"},\"content\":\" \"}"),
    "its decoder 'Replace' is not supported: a pattern that is a text" },
  { "decoder", DECODER("{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"),
    "'Strip' is not supported: one after Fuse" },
  { "decoder", DECODER("{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}"),
    "'Strip' is not supported: one after Fuse, with stop = 0, is" },
  { "decoder", DECODER(REPLACE ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"), NULL },
  { "decoder", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", NULL },
  { "normalizer", "{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":\"<.*>\"}}", NULL },
};

/* Sets what is at a path of keys, "model.type"; the last key may have dots. */
static void set(json_t *j, const char *path, const char *value)
{
  char *copy = tc_strdup(path), *key = copy, *dot;
  while ((dot = strchr(key, '.'))) {
    *dot = '\0';
    j = json_object_get(j, key);
    key = dot + 1;
  }
  json_t *x = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
  TC_ASSERT(j && (!value || x));
  if (x) json_object_set_new(j, key, x);
  else json_object_del(j, key);
  free(copy);
}

/* The sentence for a changed gpt2.json; "" if it is accepted. */
static void parse(json_t *base, const char *path, const char *value, struct tc_err *err)
{
  json_t *j = json_deep_copy(base);
  struct tc_tokenizer *t;
  if (path) set(j, path, value);
  char *text = json_dumps(j, 0);
  *err = (struct tc_err){ 0 };
  const int status = tc_tokenizer_parse(&t, text, strlen(text), "x.json", err);
  TC_ASSERT(status == TC_OK || status == TC_EUSER);
  TC_ASSERT((status == TC_OK) == (t != NULL) && (status == TC_OK) == (err->text[0] == '\0'));
  tc_tokenizer_free(t);
  free(text);
  json_decref(j);
}

static const struct { const char *path, *value; } accepted[] = {
  { "model.type", NULL },
  { "model.dropout", "0.0" },
  { "model.end_of_word_suffix", "\"\"" },
  { "model.merges", "[]" },
  { "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[]}" },
  { "decoder", "null" },
  { "pre_tokenizer", SPLIT("Isolated", "false", "'(?i:[sdmt]|ll|ve|re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?+\\\\p{L}+|"
    "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]++[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]|\\\\s+(?!\\\\S)|\\\\s+") },
  { "pre_tokenizer", IN_FRONT("{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"String\":\"(a\"}}") },
  { "pre_tokenizer", SPLIT("Isolated", "false", "[\\\\u4e00-\\\\x{9fff}\\\\d\\\\-x]|\\\\D\\\\S") },
};

/* A row without a sentence is accepted. */
static void test_row(json_t *base, const struct row *r)
{
  struct tc_err err;
  parse(base, r->path, r->value, &err);
  const bool named = strstr(err.text, "'x.json'") == err.text + strlen("tokenizer ");
  const bool good = r->sentence ? named && strstr(err.text, r->sentence) : !*err.text;
  if (!ok(good, "%s = %.60s is %s: %.60s", r->path, r->value ? r->value : "(none)", r->sentence ? "refused" : "accepted",
          r->sentence ? r->sentence : "")) printf("#   got \"%s\"\n", err.text);
}

static void test_characters(void)
{
  char *path = token_file("llama2.json");
  json_t *base = json_load_file(path, 0, NULL);
  if (ok(base != NULL, "llama2.json is there"))
    for (size_t i = 0; i < sizeof character_rows / sizeof *character_rows; i++) test_row(base, &character_rows[i]);
  json_decref(base);
  free(path);
}

int main(void)
{
  char *path = token_file("gpt2.json"), *none = token_file("none.json"), *hexes = token_file("ids.jsonl");
  json_t *base = json_load_file(path, 0, NULL);
  struct tc_tokenizer *t;
  struct tc_err err = { 0 };
  if (!ok(base != NULL, "gpt2.json is there")) return done_testing();
  parse(base, NULL, NULL, &err);
  is_str(err.text, "", "it is accepted as it is");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) test_row(base, &rows[i]);
  test_characters();
  for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
    parse(base, accepted[i].path, accepted[i].value, &err);
    is_str(err.text, "", "%s = %.60s is accepted", accepted[i].path, accepted[i].value ? accepted[i].value : "(none)");
  }
  set(base, "normalizer", "{\"type\":\"NFC\"}");
  parse(base, "added_tokens", "[{\"content\":\"o\xcc\xa3\",\"id\":2057},"
        "{\"content\":\"\xe1\xbb\x8d\",\"id\":2058}]", &err);
  is_str(err.text, "tokenizer 'x.json': two of its added tokens are '\xe1\xbb\x8d' in the normal form, which is not "
         "supported", "two added tokens with one normal form");
  is_int(tc_tokenizer_load(&t, none, &err), TC_EUSER, "a file that isn't there");
  is_int(tc_tokenizer_load(&t, hexes, &err), TC_EUSER, "a file that is not one JSON value");
  ok(strstr(err.text, "is no JSON file, or damaged: line 2") != NULL, "... %s", err.text);
  json_decref(base);
  free(path);
  free(none);
  free(hexes);
  return done_testing();
}
