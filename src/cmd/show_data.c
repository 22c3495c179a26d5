/* show_data.c - `tercio data show`, `check` and `decode`: their flags, and what they print. */
#include "src/cmd/show_data.h"
#include "src/config/list.h"
#include "src/files/files.h"
#include "src/shards/token_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 16, MOST_THREADS = 1024 };      /* tokens of each file that show prints; threads that check takes */

struct view {
  struct tc_token_set_opts o;
  char **word;                    /* [o.n_words], owned, as each of them; o borrows it */
  int cap_words;
  int64_t count;                  /* tokens, of all files in order (of show: of each); < 0: not given */
  int threads;
  struct tc_token_set s;
};

/* ---- the command line ------------------------------------------------------------------------ */

int tc_data_threads(const char *text, int *out, struct tc_err *err)
{
  char *end;
  const long n = strtol(text, &end, 10);
  if (*end || end == text || n < 1 || n > MOST_THREADS)
    return tc_fail(err, TC_EUSER, "--threads %.40s: give a number from 1 to %d", text, MOST_THREADS);
  *out = (int)n;
  return TC_OK;
}

const char *tc_data_option(int argc, char **argv, int *i, const char *name, struct tc_err *err)
{
  const char *a = argv[*i];
  const size_t n = strlen(name);
  if (strncmp(a, name, n) != 0) return NULL;
  if (a[n] == '=') return a + n + 1;
  if (a[n]) return NULL;
  if (*i + 1 < argc) return argv[++*i];
  tc_fail(err, TC_EUSER, "%s needs a value; see tercio data --help", name);
  return NULL;
}

static void add_word(struct view *v, char *word)
{
  TC_GROW(v->word, v->o.n_words, v->cap_words);
  v->o.word = v->word;
  v->word[v->o.n_words++] = word;
}

/* An argument is a word, or as many as it has between blanks, as data.train in a run file, if no file has its name. */
static int add_words(struct view *v, const char *arg, struct tc_err *err)
{
  const char *name = arg + tc_data_weight_size(arg), *at = arg;
  if (*name && tc_is_there(name) == 1) return add_word(v, tc_strdup(arg)), TC_OK;
  char *word = tc_malloc(strlen(arg) + 1);
  int got;
  while ((got = tc_list_next(&at, word)) > 0) add_word(v, tc_strdup(word));
  free(word);
  return got == 0 ? TC_OK : tc_fail(err, TC_EUSER, "data '%s': a \" is not closed; a name with blanks is written as "
                                    "\"a b.txt\"", arg);
}

static int number(const char *flag, const char *text, int64_t *out, struct tc_err *err)
{
  char *end;
  errno = 0;
  *out = strtoll(text, &end, 10);
  if (*end || end == text || errno || *out < 0)
    return tc_fail(err, TC_EUSER, "%s %.40s: give a whole number, 0 or more", flag, text);
  return TC_OK;
}

static int format(const char *flag, const char *text, enum tc_data_format *out, struct tc_err *err)
{
  int value;
  char words[100] = "";
  if (tc_choice_parse("data.format", text, &value)) return *out = (enum tc_data_format)value, TC_OK;
  for (int i = TC_FORMAT_AUTO; i <= TC_FORMAT_UINT32; i++)
    tc_text_add(words, sizeof words, "%s%s", i == TC_FORMAT_AUTO ? "" : i < TC_FORMAT_UINT32 ? ", " : " or ",
                tc_word_data_format((enum tc_data_format)i));
  return tc_fail(err, TC_EUSER, "%s %.40s: give %s", flag, text, words);
}

/* The options, and the verbs that take each. */
enum option { FORMAT, TOKENIZER, FROM, TOKENS, VOCAB, THREADS, OPTIONS };
static const struct { const char *name; int verbs; } options[OPTIONS] = {
  [FORMAT] = { "--data.format", TC_TOKENS_SHOW | TC_TOKENS_CHECK | TC_TOKENS_DECODE },
  [TOKENIZER] = { "--tokenizer", TC_TOKENS_SHOW | TC_TOKENS_CHECK | TC_TOKENS_DECODE },
  [FROM] = { "--from", TC_TOKENS_SHOW | TC_TOKENS_DECODE },
  [TOKENS] = { "--tokens", TC_TOKENS_SHOW | TC_TOKENS_DECODE },
  [VOCAB] = { "--vocab", TC_TOKENS_CHECK },
  [THREADS] = { "--threads", TC_TOKENS_CHECK },
};

/* An option at argv[*i], with its value. */
static int option(struct view *v, int argc, char **argv, int *i, struct tc_err *err)
{
  const char *a = argv[*i], *value = NULL;
  int k = 0;
  for (; k < OPTIONS; k++) {
    value = tc_data_option(argc, argv, i, options[k].name, err);
    if (err->status < 0) return err->status;
    if (value) break;
  }
  if (!value || !(options[k].verbs & (int)v->o.use))
    return tc_fail(err, TC_EUSER, "tercio data %s has no option '%s'; see tercio data --help", argv[0], a);
  switch ((enum option)k) {
  case FORMAT: return format(options[k].name, value, &v->o.format, err);
  case TOKENIZER: v->o.tokenizer = value; return TC_OK;
  case FROM: return number(options[k].name, value, &v->o.from, err);
  case TOKENS: return number(options[k].name, value, &v->count, err);
  case VOCAB: return number(options[k].name, value, &v->o.vocab, err);
  default: return tc_data_threads(value, &v->threads, err);
  }
}

static int parse(struct view *v, int argc, char **argv, struct tc_err *err)
{
  bool names_only = false;
  for (int i = 1; i < argc; i++) {
    if (!names_only && strcmp(argv[i], "--") == 0) names_only = true;
    else if (names_only || argv[i][0] != '-') TC_TRY(add_words(v, argv[i], err));
    else TC_TRY(option(v, argc, argv, &i, err));
  }
  return v->o.n_words ? TC_OK : tc_fail(err, TC_EUSER, "no data files; see tercio data --help");
}

/* Calls `put` for tokens [from, from + n) of a file, in order. */
static int each_token(const struct view *v, const struct tc_token_set_file *f, int64_t from, int64_t n,
                      int (*put)(const struct tc_token_set_file *f, uint32_t id, int64_t at, struct tc_err *err),
                      struct tc_err *err)
{
  uint32_t *token = tc_malloc((size_t)TC_MIN(n, TC_TOKEN_BLOCK) * sizeof *token);
  int status = TC_OK;
  for (int64_t here; n > 0 && status == TC_OK && !ferror(stdout); from += here, n -= here) {
    here = TC_MIN(n, TC_TOKEN_BLOCK);
    status = tc_token_set_read(&v->s, NULL, f, from, here, token, err);
    for (int64_t i = 0; i < here && status == TC_OK; i++) status = put(f, token[i], from + i, err);
  }
  free(token);
  return status;
}

/* ---- show ------------------------------------------------------------------------------------- */

static int print_id(const struct tc_token_set_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  (void)f, (void)at, (void)err;
  printf(" %u", id);
  return TC_OK;
}

/* A token's text in one line, with escapes. */
static int print_text(const struct tc_token_set_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  size_t n;
  const char *s = tc_tokenizer_bytes(f->t, id, &n);
  (void)at, (void)err;
  printf(" \"");
  for (size_t i = 0; s && i < n; i++) {
    const unsigned char c = (unsigned char)s[i];
    if (c == '\n') printf("\\n");
    else if (c == '"' || c == '\\') printf("\\%c", c);
    else if (c < 0x20 || c == 0x7f || (c >= 0x80 && tc_utf8_valid(s, n) < n)) printf("\\x%02x", c);
    else putchar(c);
  }
  printf("\"");
  return TC_OK;
}

static void print_documents(int64_t documents)
{
  if (documents >= 0) printf(", %lld document%s", (long long)documents, tc_plural(documents));
}

/* What the file says, and its first tokens from `from` on. */
static int show_file(const struct view *v, const struct tc_token_set_file *f, int64_t from, struct tc_err *err)
{
  const struct tc_data_file *is = &f->is;
  const int64_t n = TC_MIN(v->count < 0 ? FIRST : v->count, is->tokens - from);
  printf("%s: %s, %lld tokens of %d byte%s", is->name, tc_word_data_format(is->format), (long long)is->tokens,
         is->width, tc_plural(is->width));
  print_documents(is->documents);
  if (is->known && !is->tokenizer) printf(", a token is a byte");
  else if (is->marked)
    printf(", vocabulary %lld, end of document %lld, tokenizer %016" PRIx64, (long long)is->vocab,
           (long long)is->end_token, is->tokenizer);
  printf("\n");
  if (!n) return TC_OK;
  printf(" ");
  TC_TRY(each_token(v, f, from, n, print_id, err));
  printf("\n");
  if (!f->t) return TC_OK;
  printf(" ");
  TC_TRY(each_token(v, f, from, n, print_text, err));
  printf("\n");
  return TC_OK;
}

static void show_source(const struct view *v, int source)
{
  const int files = tc_data_files(v->s.d, source);
  int64_t tokens = 0;
  for (int i = 0; i < v->s.n; i++)
    if (v->s.file[i].source == source) tokens += v->s.file[i].is.tokens;
  printf("source %d of %d, %s: weight %g, %.4g %% of the samples, %d file%s, %lld tokens\n", source + 1,
         tc_data_sources(v->s.d), tc_data_source_name(v->s.d, source), tc_data_source_weight(v->s.d, source),
         100 * tc_data_source_share(v->s.d, source), files, tc_plural(files), (long long)tokens);
}

static int show(const struct view *v, struct tc_err *err)
{
  int64_t skip = v->o.from, documents = 0;
  const int sources = tc_data_sources(v->s.d);
  for (int i = 0; i < v->s.n; i++) {
    const struct tc_token_set_file *f = &v->s.file[i];
    const int64_t from = TC_MIN(skip, f->is.tokens);
    if (sources > 1 && (i == 0 || f->source != v->s.file[i - 1].source)) show_source(v, f->source);
    TC_TRY(show_file(v, f, from, err));
    skip -= from;
    documents = documents < 0 || f->is.documents < 0 ? -1 : documents + f->is.documents;
  }
  if (sources > 1) printf("%d sources, ", sources);
  printf("%d file%s, %lld tokens", v->s.n, tc_plural(v->s.n), (long long)tc_data_tokens(v->s.d));
  print_documents(documents);
  printf("\n");
  return TC_OK;
}

/* ---- decode ----------------------------------------------------------------------------------- */

static int write_text(const struct tc_token_set_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  size_t bytes;
  const char *text = tc_tokenizer_bytes(f->t, id, &bytes);
  if (!text)
    return tc_fail(err, TC_EUSER, "data file '%s': %s %u, which is at place %lld (byte %lld)", f->is.name,
                   tc_token_is_byte(f->t) ? "no byte is" : "the tokenizer has no token", id, (long long)at,
                   (long long)(f->is.header + at * f->is.width));
  fwrite(text, 1, bytes, stdout);
  return TC_OK;
}

static int decode(const struct view *v, struct tc_err *err)
{
  int64_t skip = v->o.from, left = v->count < 0 ? INT64_MAX : v->count;
  for (int i = 0; i < v->s.n && !ferror(stdout); i++) {
    const int64_t here = v->s.file[i].is.tokens, from = TC_MIN(skip, here), n = TC_MIN(left, here - from);
    TC_TRY(each_token(v, &v->s.file[i], from, n, write_text, err));
    skip -= from;
    left -= n;
  }
  return TC_OK;
}

/* ---- check ------------------------------------------------------------------------------------ */

static void say_checked(const struct view *v, const struct tc_token_check *c)
{
  bool same = true;
  for (int i = 0; i < v->s.n; i++) same &= c->vocab[i] == c->vocab[0];
  for (int i = 0; i < v->s.n && !same; i++)
    printf("%s: %lld tokens, all below %lld\n", v->s.file[i].is.name, (long long)v->s.file[i].is.tokens,
           (long long)c->vocab[i]);
  printf("%d file%s, %lld tokens", v->s.n, tc_plural(v->s.n), (long long)tc_data_tokens(v->s.d));
  print_documents(c->documents);
  if (same) printf(": all are below %lld", (long long)c->vocab[0]);
  printf("\n");
}

static int check(const struct view *v, struct tc_err *err)
{
  struct tc_token_check c = { 0 };
  const int status = tc_token_set_check(&c, &v->s, v->threads, err);
  if (status == TC_OK) say_checked(v, &c);
  free(c.vocab);
  return status;
}

/* ---- the verbs -------------------------------------------------------------------------------- */

static int run(struct view *v, int (*act)(const struct view *v, struct tc_err *err), int argc, char **argv,
               struct tc_err *err)
{
  int status = parse(v, argc, argv, err);
  if (status == TC_OK) status = tc_token_set_open(&v->s, &v->o, err);
  if (status == TC_OK) status = act(v, err);
  tc_token_set_free(&v->s);
  for (int i = 0; i < v->o.n_words; i++) free(v->word[i]);
  free(v->word);
  return status;
}

int tc_show_data(bool *is_verb, int argc, char **argv, struct tc_err *err)
{
  static const struct { const char *name; enum tc_token_use use; int (*act)(const struct view *v, struct tc_err *err); }
    verbs[] = { { "show", TC_TOKENS_SHOW, show }, { "check", TC_TOKENS_CHECK, check },
                { "decode", TC_TOKENS_DECODE, decode } };
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
    if (strcmp(argv[0], verbs[i].name) == 0) {
      struct view v = { .o = { .use = verbs[i].use, .format = TC_FORMAT_AUTO, .vocab = -1 }, .count = -1 };
      *is_verb = true;
      return run(&v, verbs[i].act, argc, argv, err);
    }
  *is_verb = false;
  return TC_OK;
}
