/* show_data.c - `tercio data show` and `decode`: what is in files that training reads. */
#include "src/shards/token_set.h"
#include "io/folder.h"
#include "src/shards/shards.h"
#include "src/config/list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 16 };              /* tokens of each file that show prints */
#define BYTES "bytes"             /* for --tokenizer */

/* ---- the command line ------------------------------------------------------------------------ */

static void add_word(struct tc_view *v, char *word)
{
  TC_GROW(v->word, v->n_words, v->cap_words);
  v->word[v->n_words++] = word;
}

/* An argument is a word, or as many as it has between blanks, as data.train in a run file, if no file has its name. */
static int add_words(struct tc_view *v, const char *arg, struct tc_err *err)
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
  [FORMAT] = { "--data.format", TC_VIEW_SHOW | TC_VIEW_CHECK | TC_VIEW_DECODE },
  [TOKENIZER] = { "--tokenizer", TC_VIEW_SHOW | TC_VIEW_CHECK | TC_VIEW_DECODE },
  [FROM] = { "--from", TC_VIEW_SHOW | TC_VIEW_DECODE },
  [TOKENS] = { "--tokens", TC_VIEW_SHOW | TC_VIEW_DECODE },
  [VOCAB] = { "--vocab", TC_VIEW_CHECK },
  [THREADS] = { "--threads", TC_VIEW_CHECK },
};

/* An option at argv[*i], with its value. */
static int option(struct tc_view *v, int argc, char **argv, int *i, struct tc_err *err)
{
  const char *a = argv[*i], *value = NULL;
  int k = 0;
  for (; k < OPTIONS; k++) {
    value = tc_data_option(argc, argv, i, options[k].name, err);
    if (err->status < 0) return err->status;
    if (value) break;
  }
  if (!value || !(options[k].verbs & (int)v->verb))
    return tc_fail(err, TC_EUSER, "tercio data %s has no option '%s'; see tercio data --help", argv[0], a);
  switch ((enum option)k) {
  case FORMAT: return format(options[k].name, value, &v->format, err);
  case TOKENIZER: v->tokenizer_path = value; return TC_OK;
  case FROM: return number(options[k].name, value, &v->from, err);
  case TOKENS: return number(options[k].name, value, &v->count, err);
  case VOCAB: return number(options[k].name, value, &v->vocab, err);
  default: return tc_data_threads(value, &v->threads, err);
  }
}

static int parse(struct tc_view *v, int argc, char **argv, struct tc_err *err)
{
  bool names_only = false;
  for (int i = 1; i < argc; i++) {
    if (!names_only && strcmp(argv[i], "--") == 0) names_only = true;
    else if (names_only || argv[i][0] != '-') TC_TRY(add_words(v, argv[i], err));
    else TC_TRY(option(v, argc, argv, &i, err));
  }
  return v->n_words ? TC_OK : tc_fail(err, TC_EUSER, "no data files; see tercio data --help");
}

/* ---- files ------------------------------------------------------------------------------------ */

static int open_files(struct tc_view *v, struct tc_err *err)
{
  const struct tc_data_opts o = { .word = v->word, .n = v->n_words, .format = v->format, .context = TC_VIEW_BLOCK - 1,
                                  .vocab = INT64_MAX, .separate = true };
  TC_TRY(tc_data_open(&v->d, &o, err));
  for (int s = 0; s < tc_data_sources(v->d); s++) {
    const int n = tc_data_files(v->d, s);
    v->file = tc_realloc(v->file, (size_t)(v->n + n) * sizeof *v->file);
    for (int i = 0; i < n; i++) {
      struct tc_view_file *f = &v->file[v->n++];
      *f = (struct tc_view_file){ .source = s };
      tc_data_file(v->d, s, i, &f->is);
    }
  }
  if (v->from && v->from >= tc_data_tokens(v->d))
    return tc_fail(err, TC_EUSER, "--from %lld: the files have %lld tokens, counted from 0", (long long)v->from,
                   (long long)tc_data_tokens(v->d));
  return TC_OK;
}

int tc_view_read(const struct tc_view *v, struct tc_reader *r, const struct tc_view_file *f, int64_t from, int64_t n,
                 uint32_t *out, struct tc_err *err)
{
  return tc_data_read(v->d, r, f->source, f->is.first + from, n, (int32_t *)out, err);
}

/* ---- tokenizers --------------------------------------------------------------------------------- */

/* The tokenizer at `path`, which is read once. To show files none is needed: one beside them that can't be read is no
 * error, and has t NULL. */
static int load_tokenizer(struct tc_view *v, const char *path, const struct tc_view_tokenizer **out, struct tc_err *err)
{
  for (int i = v->n_tokenizers - 1; i >= 0; i--)       /* most often that of the file before */
    if (strcmp(v->tokenizer[i].path, path) == 0) return *out = &v->tokenizer[i], TC_OK;
  TC_GROW(v->tokenizer, v->n_tokenizers, v->cap_tokenizers);
  struct tc_view_tokenizer *k = &v->tokenizer[v->n_tokenizers++];
  *k = (struct tc_view_tokenizer){ .path = tc_strdup(path) };
  *out = k;
  const int status = tc_tokenizer_load(&k->t, path, err);
  if (status == TC_OK || v->verb != TC_VIEW_SHOW || v->tokenizer_path) return status;
  tc_log("%s; tokens are shown without their texts", err->text);
  *err = (struct tc_err){ 0 };
  return TC_OK;
}

/* The tokenizer.json in the folder of the file. A check of a given vocabulary needs none. */
static int load_beside(struct tc_view *v, const struct tc_view_file *f, const struct tc_view_tokenizer **out,
                       struct tc_err *err)
{
  char *dir = tc_folder_of(f->is.name), *path = tc_sprintf("%s/" TC_TOKENIZER_FILE, dir);
  int status = TC_OK;
  if (v->vocab >= 0) *out = NULL;
  else if (tc_is_there(path)) status = load_tokenizer(v, path, out, err);
  else if (v->verb == TC_VIEW_DECODE)
    status = tc_fail(err, TC_EUSER, "there is no " TC_TOKENIZER_FILE " beside data file '%s'; name it by --tokenizer%s",
                     f->is.name, f->is.known ? "" : ", or --tokenizer bytes if a token is a byte");
  free(dir);
  free(path);
  return status;
}

static int fail_tokenizer(const struct tc_view_file *f, struct tc_err *err)
{
  if (f->bytes)
    return tc_fail(err, TC_EUSER, "data file '%s' was made with a tokenizer: its tokens are not bytes", f->is.name);
  if (!f->is.tokenizer)
    return tc_fail(err, TC_EUSER, "a token of data file '%s' is a byte: it is not of tokenizer '%s'", f->is.name,
                   f->path);
  return tc_fail(err, TC_EUSER, "data file '%s' was made with another tokenizer (%016" PRIx64 ") than '%s' (%016" PRIx64
                 ")", f->is.name, f->is.tokenizer, f->path, tc_tokenizer_hash(f->t));
}

/* What the tokens of a file stand for, by the tokenizer that was named or the one beside it. The file must be of it,
 * except to be shown. */
static int find_tokenizer(struct tc_view *v, struct tc_view_file *f, struct tc_err *err)
{
  const struct tc_view_tokenizer *k = NULL;
  f->bytes = v->tokenizer_path ? strcmp(v->tokenizer_path, BYTES) == 0 : f->is.known && !f->is.tokenizer;
  if (!f->bytes && v->tokenizer_path) TC_TRY(load_tokenizer(v, v->tokenizer_path, &k, err));
  else if (!f->bytes) TC_TRY(load_beside(v, f, &k, err));
  if (k) {
    f->t = k->t;
    f->path = k->path;
  }
  if (!f->is.known || (!f->t && !f->bytes) || f->is.tokenizer == (f->t ? tc_tokenizer_hash(f->t) : 0)) return TC_OK;
  if (v->verb != TC_VIEW_SHOW) return fail_tokenizer(f, err);
  f->t = NULL;
  f->bytes = false;
  return TC_OK;
}

/* The text of a token, *n bytes, which may be *byte; NULL: there is no such token. */
static const char *text_of(const struct tc_view_file *f, uint32_t id, char *byte, size_t *n)
{
  if (!f->bytes) return tc_tokenizer_bytes(f->t, id, n);
  *byte = (char)id;
  *n = 1;
  return id < TC_VIEW_BYTES ? byte : NULL;
}

/* ---- opening ----------------------------------------------------------------------------------- */

static int view_open(struct tc_view *v, enum tc_view_verb verb, int argc, char **argv, struct tc_err *err)
{
  *v = (struct tc_view){ .verb = verb, .format = TC_FORMAT_AUTO, .count = -1, .vocab = -1 };
  TC_TRY(parse(v, argc, argv, err));
  TC_TRY(open_files(v, err));
  for (int i = 0; i < v->n; i++) TC_TRY(find_tokenizer(v, &v->file[i], err));
  return TC_OK;
}

static void view_free(struct tc_view *v)
{
  for (int i = 0; i < v->n_words; i++) free(v->word[i]);
  for (int i = 0; i < v->n_tokenizers; i++) {
    tc_tokenizer_free(v->tokenizer[i].t);
    free(v->tokenizer[i].path);
  }
  free(v->word);
  free(v->tokenizer);
  free(v->file);
  tc_data_free(v->d);
}

int tc_view_run(enum tc_view_verb verb, int (*act)(const struct tc_view *v, struct tc_err *err), int argc, char **argv,
                struct tc_err *err)
{
  struct tc_view v;
  int status = view_open(&v, verb, argc, argv, err);
  if (status == TC_OK) status = act(&v, err);
  view_free(&v);
  return status;
}

/* Calls `put` for tokens [from, from + n) of a file, in order. */
static int each_token(const struct tc_view *v, const struct tc_view_file *f, int64_t from, int64_t n,
                      int (*put)(const struct tc_view_file *f, uint32_t id, int64_t at, struct tc_err *err),
                      struct tc_err *err)
{
  uint32_t *token = tc_malloc((size_t)TC_MIN(n, TC_VIEW_BLOCK) * sizeof *token);
  int status = TC_OK;
  for (int64_t here; n > 0 && status == TC_OK && !ferror(stdout); from += here, n -= here) {
    here = TC_MIN(n, TC_VIEW_BLOCK);
    status = tc_view_read(v, NULL, f, from, here, token, err);
    for (int64_t i = 0; i < here && status == TC_OK; i++) status = put(f, token[i], from + i, err);
  }
  free(token);
  return status;
}

/* ---- show ------------------------------------------------------------------------------------- */

static int print_id(const struct tc_view_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  (void)f, (void)at, (void)err;
  printf(" %u", id);
  return TC_OK;
}

/* A token's text in one line, with escapes. */
static int print_text(const struct tc_view_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  char byte;
  size_t n;
  const char *s = text_of(f, id, &byte, &n);
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
  if (documents >= 0) printf(", %lld document%s", (long long)documents, documents == 1 ? "" : "s");
}

/* What the file says, and its first tokens from `from` on. */
static int show_file(const struct tc_view *v, const struct tc_view_file *f, int64_t from, struct tc_err *err)
{
  const struct tc_data_file *is = &f->is;
  const int64_t n = TC_MIN(v->count < 0 ? FIRST : v->count, is->tokens - from);
  printf("%s: %s, %lld tokens of %d byte%s", is->name, tc_word_data_format(is->format), (long long)is->tokens,
         is->width, is->width == 1 ? "" : "s");
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
  if (!f->t && !f->bytes) return TC_OK;
  printf(" ");
  TC_TRY(each_token(v, f, from, n, print_text, err));
  printf("\n");
  return TC_OK;
}

static void show_source(const struct tc_view *v, int source)
{
  const int files = tc_data_files(v->d, source);
  int64_t tokens = 0;
  for (int i = 0; i < v->n; i++)
    if (v->file[i].source == source) tokens += v->file[i].is.tokens;
  printf("source %d of %d, %s: weight %g, %.4g %% of the samples, %d file%s, %lld tokens\n", source + 1,
         tc_data_sources(v->d), tc_data_source_name(v->d, source), tc_data_source_weight(v->d, source),
         100 * tc_data_source_share(v->d, source), files, files == 1 ? "" : "s", (long long)tokens);
}

static int show(const struct tc_view *v, struct tc_err *err)
{
  int64_t skip = v->from, documents = 0;
  const int sources = tc_data_sources(v->d);
  for (int i = 0; i < v->n; i++) {
    const struct tc_view_file *f = &v->file[i];
    const int64_t from = TC_MIN(skip, f->is.tokens);
    if (sources > 1 && (i == 0 || f->source != v->file[i - 1].source)) show_source(v, f->source);
    TC_TRY(show_file(v, f, from, err));
    skip -= from;
    documents = documents < 0 || f->is.documents < 0 ? -1 : documents + f->is.documents;
  }
  if (sources > 1) printf("%d sources, ", sources);
  printf("%d file%s, %lld tokens", v->n, v->n == 1 ? "" : "s", (long long)tc_data_tokens(v->d));
  print_documents(documents);
  printf("\n");
  return TC_OK;
}

int tc_data_show(int argc, char **argv, struct tc_err *err)
{
  return tc_view_run(TC_VIEW_SHOW, show, argc, argv, err);
}

/* ---- decode ----------------------------------------------------------------------------------- */

static int write_text(const struct tc_view_file *f, uint32_t id, int64_t at, struct tc_err *err)
{
  char byte;
  size_t bytes;
  const char *text = text_of(f, id, &byte, &bytes);
  if (!text)
    return tc_fail(err, TC_EUSER, "data file '%s': %s %u, which is at place %lld (byte %lld)", f->is.name,
                   f->bytes ? "no byte is" : "the tokenizer has no token", id, (long long)at,
                   (long long)(f->is.header + at * f->is.width));
  fwrite(text, 1, bytes, stdout);
  return TC_OK;
}

static int decode(const struct tc_view *v, struct tc_err *err)
{
  int64_t skip = v->from, left = v->count < 0 ? INT64_MAX : v->count;
  for (int i = 0; i < v->n && !ferror(stdout); i++) {
    const int64_t here = v->file[i].is.tokens, from = TC_MIN(skip, here), n = TC_MIN(left, here - from);
    TC_TRY(each_token(v, &v->file[i], from, n, write_text, err));
    skip -= from;
    left -= n;
  }
  return TC_OK;
}

int tc_data_decode(int argc, char **argv, struct tc_err *err)
{
  return tc_view_run(TC_VIEW_DECODE, decode, argc, argv, err);
}
