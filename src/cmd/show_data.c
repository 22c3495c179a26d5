/* show_data.c - `tercio data show`, `check` and `decode`: their flags, and what they print. */
#include "src/cmd/show_data.h"
#include "src/config/list.h"
#include "src/files/files.h"
#include "src/shards/token_set.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = 16 };                           /* tokens of each file that show prints */

struct view {
  struct tc_token_set_opts o;
  char **word;                    /* [o.n_words], owned, as each of them; o borrows it */
  int cap_words;
  int64_t count;                  /* tokens, of all files in order (of show: of each); < 0: not given */
  int threads;
  struct tc_token_set s;
  struct tc_decoder *decoder;     /* of decode, for tokens of `of`; owned */
  const struct tc_tokenizer *of;
};

/* ---- the command line ------------------------------------------------------------------------ */

static void add_word(struct view *v, char *word)
{
  TC_APPEND(v->word, v->o.n_words, v->cap_words, word);
  v->o.word = v->word;
}

/* An argument is a word, or as many as it has between blanks, as data.train in a run file, if no file has its name. */
static int add_words(struct view *v, const char *arg, struct tc_err *err)
{
  const char *name = arg + tc_list_weight_size(arg), *at = arg;
  if (*name && tc_is_there(name) == 1) return add_word(v, tc_strdup(arg)), TC_OK;
  char *word = tc_malloc(strlen(arg) + 1);
  int got;
  while ((got = tc_list_next(&at, word)) > 0) add_word(v, tc_strdup(word));
  free(word);
  return got == 0 ? TC_OK : tc_fail(err, TC_EUSER, "data '%s': a \" is not closed; a name with blanks is written as "
                                    "\"a b.txt\"", arg);
}

static int set_format(void *view, const struct tc_flag *f, const char *text, struct tc_err *err)
{
  int value;
  char words[100] = "";
  (void)f;
  if (tc_choice_parse("data.format", text, &value)) {
    ((struct view *)view)->o.format = (enum tc_data_format)value;
    return TC_OK;
  }
  for (int i = TC_FORMAT_AUTO; i <= TC_FORMAT_UINT32; i++)
    tc_text_add(words, sizeof words, "%s%s", i == TC_FORMAT_AUTO ? "" : i < TC_FORMAT_UINT32 ? ", " : " or ",
                tc_word_data_format((enum tc_data_format)i));
  return tc_fail(err, TC_EUSER, "--data.format %.40s: give %s", text, words);
}

#define FIELD(f) .field = offsetof(struct view, f)
#define TOKENS "a whole number, 0 or more", .kind = TC_FLAG_WHOLE
static const struct tc_flag list[] = {           /* main.c explains them */
  { .form = "--data.format FORMAT", .kind = TC_FLAG_CALL, .set = set_format },
  { .form = "--tokenizer FILE", .kind = TC_FLAG_TEXT, FIELD(o.tokenizer) },
  { .form = "--from N", .takes = TOKENS, FIELD(o.from), 0, 9e18 },
  { .form = "--tokens N", .takes = TOKENS, FIELD(count), 0, 9e18 },
  { .form = "--vocab N", .takes = TOKENS, FIELD(o.vocab), 0, 9e18 },
  { .form = "--threads N", .takes = TC_DATA_THREADS, FIELD(threads), 1, TC_DATA_MOST_THREADS },
  { .form = NULL }
};

static int parse(struct view *v, const struct tc_flags *flags, int argc, char **argv, struct tc_err *err)
{
  struct tc_args a;
  int rc = tc_args_find(&a, flags, argc, argv, err);
  if (!rc) rc = tc_args_check(&a, err);
  if (!rc) rc = tc_args_set(&a, v, err);
  for (int i = 0; i < a.n_words && !rc; i++) rc = add_words(v, a.word[i], err);
  if (!rc && !v->o.n_words) rc = tc_fail(err, TC_EUSER, "no data files; see tercio data --help");
  tc_args_free(&a);
  return rc;
}

/* Calls `put` for tokens [from, from + n) of a file, in order. */
static int each_token(struct view *v, const struct tc_token_set_file *f, int64_t from, int64_t n,
                      int (*put)(struct view *v, const struct tc_token_set_file *f, uint32_t id, int64_t at,
                                 struct tc_err *err), struct tc_err *err)
{
  uint32_t *token = tc_malloc((size_t)TC_MIN(n, TC_TOKEN_BLOCK) * sizeof *token);
  int status = TC_OK;
  for (int64_t here; n > 0 && status == TC_OK && !ferror(stdout); from += here, n -= here) {
    here = TC_MIN(n, TC_TOKEN_BLOCK);
    status = tc_token_set_read(&v->s, NULL, f, from, here, token, err);
    for (int64_t i = 0; i < here && status == TC_OK; i++) status = put(v, f, token[i], from + i, err);
  }
  free(token);
  return status;
}

/* ---- show ------------------------------------------------------------------------------------- */

static int print_id(struct view *v, const struct tc_token_set_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  (void)v, (void)f, (void)at, (void)err;
  printf(" %u", id);
  return TC_OK;
}

/* A token's text in one line, with escapes. */
static int print_text(struct view *v, const struct tc_token_set_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  size_t n;
  const char *s = tc_tokenizer_bytes(f->t, id, &n);
  (void)v, (void)at, (void)err;
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
static int show_file(struct view *v, const struct tc_token_set_file *f, int64_t from, struct tc_err *err)
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

static int show(struct view *v, struct tc_err *err)
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

/* A text begins with the first token, if that is the data's, and behind the end of a document. */
static int write_text(struct view *v, const struct tc_token_set_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  size_t bytes;
  if (!tc_tokenizer_bytes(f->t, id, &bytes))
    return tc_fail(err, TC_EUSER, "data file '%s': %s %u, which is at place %lld (byte %lld)", f->is.name,
                   tc_token_is_byte(f->t) ? "no byte is" : "the tokenizer has no token", id, (long long)at,
                   (long long)(f->is.header + at * f->is.width));
  if (v->of != f->t) {
    tc_decoder_free(v->decoder);
    v->decoder = tc_decoder_new(v->of = f->t, true);
    if (at == 0) tc_decoder_begin(v->decoder);
  }
  const char *text = tc_decode(v->decoder, id, &bytes);
  fwrite(text, 1, bytes, stdout);
  if (id == f->is.end_token) tc_decoder_begin(v->decoder);
  return TC_OK;
}

static int decode(struct view *v, struct tc_err *err)
{
  int64_t skip = v->o.from, left = v->count < 0 ? INT64_MAX : v->count;
  int status = TC_OK;
  for (int i = 0; i < v->s.n && !ferror(stdout) && status == TC_OK; i++) {
    const int64_t here = v->s.file[i].is.tokens, from = TC_MIN(skip, here), n = TC_MIN(left, here - from);
    status = each_token(v, &v->s.file[i], from, n, write_text, err);
    skip -= from;
    left -= n;
  }
  tc_decoder_free(v->decoder);
  return status;
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
  if (c->weighted)
    printf("%lld of the tokens are to be trained on; %lld sample%s begin%s\n", (long long)c->counted, (long long)c->samples,
           tc_plural(c->samples), c->samples == 1 ? "s" : "");
}

static int check(struct view *v, struct tc_err *err)
{
  struct tc_token_check c = { 0 };
  const int status = tc_token_set_check(&c, &v->s, v->threads, err);
  if (status == TC_OK) say_checked(v, &c);
  free(c.vocab);
  return status;
}

/* ---- the verbs -------------------------------------------------------------------------------- */

int tc_show_data(bool *is_verb, int argc, char **argv, struct tc_err *err)
{
#define VERB(name, takes_flags) { .flag = list, .command = "data " name, .takes = takes_flags, .how = TC_DATA_FLAGS }
  static const struct {
    const char *name;
    enum tc_token_use use;
    int (*act)(struct view *v, struct tc_err *err);
    struct tc_flags flags;
  } verbs[] = { { "show", TC_TOKENS_SHOW, show, VERB("show", "--data.format --tokenizer --from --tokens") },
                { "check", TC_TOKENS_CHECK, check, VERB("check", "--data.format --tokenizer --vocab --threads") },
                { "decode", TC_TOKENS_DECODE, decode, VERB("decode", "--data.format --tokenizer --from --tokens") } };
  size_t i = 0;
  while (i < sizeof verbs / sizeof *verbs && strcmp(argv[0], verbs[i].name)) i++;
  *is_verb = i < sizeof verbs / sizeof *verbs;
  if (!*is_verb) return TC_OK;
  struct view v = { .o = { .use = verbs[i].use, .format = TC_FORMAT_AUTO, .vocab = -1 }, .count = -1 };
  int status = parse(&v, &verbs[i].flags, argc, argv, err);
  if (status == TC_OK) status = tc_token_set_open(&v.s, &v.o, err);
  if (status == TC_OK) status = verbs[i].act(&v, err);
  tc_token_set_free(&v.s);
  tc_names_free(v.word, v.o.n_words);
  return status;
}
