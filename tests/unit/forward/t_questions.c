/* t_questions.c - files of questions: what is read from them, and every refusal. */
#include <math.h>
#include <unistd.h>

#include "src/forward/questions.h"
#include "tests/unit/token_fixture.h"

enum { CONTEXT = 12, VOCAB = 256, HEADER = 256, MAGIC = 20240522, START = 65535, GPT2 = 50257 };

static char path[] = "/tmp/t_questions-XXXXXX";

static void write_file(const void *bytes, size_t n)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

static bool same_tokens(const struct tc_choices *c, const struct tc_answer *a, const char *text)
{
  bool same = a->n == (int64_t)strlen(text);
  for (int64_t i = 0; same && i < a->n; i++) same = c->token[a->first + i] == (unsigned char)text[i];
  return same;
}

/* ---- JSON lines -------------------------------------------------------------------------------- */

/* The sentence that refuses a file of this text, without the file's name. */
static const char *refusal_of(const char *text, size_t n, const struct tc_tokenizer *t, int64_t vocab)
{
  static struct tc_err err;
  struct tc_choices c;
  write_file(text, n);
  err = (struct tc_err){ 0 };
  const int rc = tc_choices_jsonl(&c, path, t, CONTEXT, vocab, &err);
  tc_choices_free(&c);
  if (rc != TC_EUSER) return rc ? "another status" : "accepted";
  return strncmp(err.text, path, strlen(path)) ? "it does not begin with the file's name" : err.text + strlen(path);
}
static void refused(const char *text, const char *sentence)
{
  is_str(refusal_of(text, strlen(text), NULL, VOCAB), sentence, "refused: %s", sentence);
}

#define FORM "not {\"context\": \"...\", \"choices\": [\"...\", ...], \"label\": N}"
static void test_refusals(void)
{
  char many[2000] = "{\"context\": \"a\", \"label\": 0, \"choices\": [\"b\"";
  for (int i = 0; i < TC_CHOICES_MOST; i++) strcat(many, ",\"b\"");
  strcat(many, "]}\n");
  refused("", " has no question");
  refused("\n  \n\t\r\n", " has no question");
  refused("{\"context\": \"a\"}\n", ":1: " FORM);
  refused("{\"context\": 1, \"choices\": [\"b\", \"c\"], \"label\": 0}\n", ":1: " FORM);
  refused("{\"context\": \"a\", \"choices\": \"bc\", \"label\": 0}\n", ":1: " FORM);
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": \"0\"}\n", ":1: " FORM);
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 0.5}\n", ":1: " FORM);
  refused("[\"a\"]\n", ":1: " FORM);
  refused("{\"context\": \"a\", \"choices\": [\"b\", 3], \"label\": 0}\n", ":1: choice 1 is not a text");
  refused("{\"context\": \"a\", \"choices\": [], \"label\": 0}\n", ":1: 0 choices; 2 to 256 would fit");
  refused("{\"context\": \"a\", \"choices\": [\"b\"], \"label\": 0}\n", ":1: 1 choices; 2 to 256 would fit");
  refused(many, ":1: 257 choices; 2 to 256 would fit");
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 2}\n",
          ":1: the label is 2, but choices are numbered 0 to 1");
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": -3}\n",
          ":1: the label is -3, but choices are numbered 0 to 1");
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 9000000000}\n",
          ":1: the label is 2147483647, but choices are numbered 0 to 1");
  refused("{\"context\": \"\", \"choices\": [\"b\", \"c\"], \"label\": 0}\n",
          ":1: the context has no token, so nothing predicts a choice's first one");
  refused("{\"context\": \"  \", \"choices\": [\"b\", \"c\"], \"label\": 0}\n",
          ":1: the context has no token, so nothing predicts a choice's first one");
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"\"], \"label\": 0}\n", ":1: choice 1 has no token");
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"0123456789abc\"], \"label\": 0}\n",
          ":1: choice 1 has 13 tokens, more than the model's context of 12");
  refused("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 0}\n\n{\"context\": \"a\"}\n", ":3: " FORM);
  ok(strstr(refusal_of("{\"context\": \n", 12, NULL, VOCAB), ":1: not JSON: "), "no JSON");
  ok(strstr(refusal_of("{\"context\": \"a\\u0000b\"}", 23, NULL, VOCAB), ":1: not JSON: "), "a text with NUL");
  ok(strstr(refusal_of("{\"context\": \"\xff\"}", 16, NULL, VOCAB), ":1: not JSON: "), "invalid UTF-8");
  ok(strstr(refusal_of("\0\0\0", 3, NULL, VOCAB), ":1: not JSON: "), "zeros");
  const char *wide = "{\"context\": \"a\", \"choices\": [\"b\", \"\xc3\xa9\"], \"label\": 0}";
  is_str(refusal_of(wide, strlen(wide), NULL, 190), ":1: token 195, but the model's vocabulary has 190: are these another "
         "tokenizer's tokens?", "a token beyond the vocabulary");
  struct tc_choices c;
  struct tc_err err = { 0 };
  is_int(tc_choices_jsonl(&c, "/none/such", NULL, CONTEXT, VOCAB, &err), TC_EUSER, "no file");
  is_str(err.text, "cannot open file of questions /none/such: No such file or directory", "... says so");
}

static void test_lines(void)
{
  struct tc_choices c;
  struct tc_err err = { 0 };
  const char *text = "{\"context\": \"ab \", \"choices\": [\"c\", \"de\"], \"label\": 1}\n\n"
                     "{\"label\": 0, \"choices\": [\" x\", \"y\", \"0123456789ab\"], \"context\": \"q\", \"more\": null}";
  write_file(text, strlen(text));
  is_int(tc_choices_jsonl(&c, path, NULL, CONTEXT, VOCAB, &err), 0, "two questions of bytes %s", err.text);
  ok(c.n == 2 && c.n_answers == 5, "two questions, five answers");
  ok(c.question[0].label == 1 && c.question[1].label == 0 && c.question[0].n_answers == 2 && c.question[1].n_answers == 3
     && c.question[1].first_answer == 2, "labels and answers");
  ok(same_tokens(&c, &c.question[0].context, "ab") && same_tokens(&c, &c.answer[0], " c")
     && same_tokens(&c, &c.answer[1], " de"), "a blank at the context's end begins the answers");
  ok(same_tokens(&c, &c.question[1].context, "q") && same_tokens(&c, &c.answer[2], " x")
     && same_tokens(&c, &c.answer[4], "0123456789ab"), "an answer may be as long as the model's context");
  const double nats[] = { 3, 5, 2, 2, 6 };
  is_int(tc_choices_pick(&c, &c.question[0], nats, false), 0, "the smallest loss");
  is_int(tc_choices_pick(&c, &c.question[0], nats, true), 0, "by length: 1.5 is below 1.67");
  is_int(tc_choices_pick(&c, &c.question[1], nats, false), 0, "of equal ones the first");
  is_int(tc_choices_pick(&c, &c.question[1], nats, true), 2, "by length: 0.5 of 12 tokens");
  const double bad[] = { NAN, INFINITY, -INFINITY };
  for (int i = 0; i < 3; i++)
    for (int k = 0; k < 3; k++) {
      double x[] = { 1, 1, 3, 2, 6 };
      x[2 + k] = bad[i];
      ok(tc_choices_pick(&c, &c.question[1], x, false) == -1 && tc_choices_pick(&c, &c.question[1], x, true) == -1 &&
         tc_choices_pick(&c, &c.question[0], x, false) == 0, "an answer with a loss of %g: none is preferred", bad[i]);
    }
  tc_choices_free(&c);
}

/* An answer's tokens are those of context and answer together, where the tokenizer merges over words. */
static void test_tokenizer(void)
{
  struct tc_tokenizer *t = stored_tokenizer("gpt2");
  struct tc_encoder *e;
  struct tc_choices c;
  struct tc_err err = { 0 };
  struct tc_ids ids = { 0 };
  const char *text = "{\"context\": \"text of \", \"choices\": [\"the end\", \"a\"], \"label\": 0}";
  TC_ASSERT(tc_encoder_new(&e, t, &err) == 0);
  TC_ASSERT(tc_encode(e, "text of the end", 15, TC_INVALID_REFUSE, &ids, NULL, &err) == 0);
  write_file(text, strlen(text));
  is_int(tc_choices_jsonl(&c, path, t, CONTEXT, tc_tokenizer_vocab(t), &err), 0, "a question of words %s", err.text);
  bool same = c.question[0].context.n + c.answer[0].n == (int64_t)ids.n;
  for (int64_t i = 0; same && i < (int64_t)ids.n; i++)
    same = (uint32_t)c.token[i < c.question[0].context.n ? c.question[0].context.first + i
                             : c.answer[0].first + i - c.question[0].context.n] == ids.id[i];
  ok(same && c.answer[0].n < 8, "has the tokens of \"text of the end\"");
  tc_choices_free(&c);
  ok(strstr(refusal_of(text, strlen(text), t, 300), ", but the model's vocabulary has 300: text without "),
     "a token that the model does not have");
  tc_ids_free(&ids);
  tc_encoder_free(e);
  tc_tokenizer_free(t);
}

/* ---- llm.c's file ------------------------------------------------------------------------------ */

/* The file as it is on disk, then the number of its words. */
struct file { int32_t header[HEADER]; uint16_t word[200]; size_t n; };

static void add(struct file *f, int n, const int *word)
{
  for (int i = 0; i < n; i++) f->word[f->n++] = (uint16_t)word[i];
}
#define ADD(f, ...) add(f, sizeof (int[]){ __VA_ARGS__ } / sizeof(int), (int[]){ __VA_ARGS__ })

/* Two questions: 7 8 -> 1 2 3 | 4; 50256 -> 5 | 6 7. */
static struct file two_questions(void)
{
  struct file f = { .header = { MAGIC, 1, 2, 20 } };
  ADD(&f, START, 28, 0, 1, 2, 2, 7, 8, 3, 1, 2, 3, 1, 4);
  ADD(&f, START, 24, 1, 0, 2, 1, 50256, 1, 5, 2, 6, 7);
  return f;
}

static int read_bin(struct tc_choices *c, const struct file *f, size_t bytes, int64_t vocab, struct tc_err *err)
{
  write_file(f, bytes);
  *err = (struct tc_err){ 0 };
  return tc_choices_hellaswag(c, path, CONTEXT, vocab, err);
}

static void refused_bin(struct file f, const char *sentence, const char *what)
{
  struct tc_choices c;
  struct tc_err err;
  const int rc = read_bin(&c, &f, sizeof f.header + f.n * sizeof *f.word, GPT2, &err);
  ok(rc == TC_EUSER && strstr(err.text, sentence) && !strncmp(err.text, path, strlen(path)), "%s: %s", what, err.text);
  tc_choices_free(&c);
}

static void test_bin(void)
{
  struct file f = two_questions();
  struct tc_choices c;
  struct tc_err err;
  const size_t all = sizeof f.header + f.n * sizeof *f.word;
  is_int(read_bin(&c, &f, all, GPT2, &err), 0, "llm.c's file of two questions %s", err.text);
  ok(c.n == 2 && c.n_answers == 4 && c.question[0].label == 1 && c.question[1].label == 0, "questions and labels");
  ok(c.question[0].context.n == 2 && c.token[c.question[0].context.first] == 7 && c.answer[0].n == 3
     && c.token[c.answer[0].first + 2] == 3 && c.answer[1].n == 1 && c.token[c.answer[1].first] == 4
     && c.token[c.question[1].context.first] == 50256 && c.answer[3].n == 2, "tokens");
  tc_choices_free(&c);
  is_int(read_bin(&c, &f, all, 50304, &err), 0, "a padded vocabulary");
  tc_choices_free(&c);
  for (int i = 0; i < 3; i++) {
    const int64_t vocab = (int64_t[]){ 256, 50256, 50305 }[i];
    ok(read_bin(&c, &f, all, vocab, &err) == TC_EUSER && strstr(err.text, "is not GPT-2's (50257); --choices"),
       "a vocabulary of %lld: %s", (long long)vocab, err.text);
    tc_choices_free(&c);
  }
  for (size_t n = 0; n < all; n++)
    if (read_bin(&c, &f, n, GPT2, &err) == TC_EUSER && strlen(err.text) > 20) tc_choices_free(&c);
    else ok(false, "cut off after %zu of %zu bytes: it is refused", n, all);
  for (size_t i = 0; i < f.n * 16; i++) {        /* nothing in it is trusted: the sanitizers look at this */
    struct file other = f;
    other.word[i / 16] ^= (uint16_t)(1u << i % 16);
    read_bin(&c, &other, all, GPT2, &err);
    tc_choices_free(&c);
  }
  ok(true, "cut off anywhere, or with a wrong bit anywhere");
}

static void test_bin_refusals(void)
{
  const char *no_file = "is no file of HellaSwag questions as llm.c makes them", *damaged = "its lengths do not fit together";
  struct file f = two_questions();
  f.header[0]++;
  refused_bin(f, no_file, "another magic number");
  f = two_questions(), f.header[1] = 2;
  refused_bin(f, no_file, "another version");
  f = two_questions(), f.header[2] = 0;
  refused_bin(f, no_file, "no question");
  f = two_questions(), f.header[2] = 3;
  refused_bin(f, "question 2 is damaged", "fewer questions than the header says");
  f = two_questions(), f.header[2] = 1;
  refused_bin(f, "has more than the 1 questions that its header says", "more questions");
  f = two_questions(), f.word[0] = 1;
  refused_bin(f, damaged, "no start");
  f = two_questions(), f.word[1] += 2;
  refused_bin(f, damaged, "a wrong number of bytes");
  f = two_questions(), f.word[5] = 60000;
  refused_bin(f, damaged, "a context longer than the file");
  f = two_questions(), f.word[3] = 2;
  refused_bin(f, "question 0: the label is 2", "a label beyond the choices");
  f = two_questions(), f.word[6] = 50300;
  refused_bin(f, "token 50300, but the model's vocabulary has 50257", "an unknown token");
  struct tc_choices c;
  struct tc_err err = { 0 };
  ok(tc_choices_hellaswag(&c, "/none/such", CONTEXT, GPT2, &err) == TC_EUSER && strstr(err.text, "/none/such"), "no file: %s",
     err.text);
}

int main(void)
{
  const int fd = mkstemp(path);
  TC_ASSERT(fd >= 0);
  close(fd);
  test_refusals();
  test_lines();
  test_tokenizer();
  test_bin();
  test_bin_refusals();
  unlink(path);
  return done_testing();
}
