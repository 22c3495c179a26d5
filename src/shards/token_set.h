/* token_set.h - the token files of a data set, and what their tokens stand for.
 *
 * The files are named as in data.train and opened by what a training opens them with (src/data), one by one: they need
 * not be of one tokenizer. */
#ifndef TC_SHARDS_TOKEN_SET_H
#define TC_SHARDS_TOKEN_SET_H

#include "src/data/data.h"
#include "src/token/token.h"

/* What the files are wanted for. To be shown they need no tokenizer; to be decoded each does; a check needs to know how
 * large its vocabulary is. */
enum tc_token_use { TC_TOKENS_SHOW, TC_TOKENS_CHECK, TC_TOKENS_DECODE };
enum { TC_TOKEN_BLOCK = 1 << 18 };      /* tokens that are read at once */

struct tc_token_set_opts {
  enum tc_token_use use;
  char *const *word;              /* [n_words] as in data.train; borrowed */
  int n_words;
  enum tc_data_format format;
  const char *tokenizer;          /* NULL: beside each file; "bytes": none */
  int64_t from;                   /* the first token of all files that is wanted: TC_EUSER if there is none */
  int64_t vocab;                  /* of a check; < 0: not given */
};

/* A file, and the tokenizer of its tokens, which may be that of bytes; NULL: it is not known. Borrowed. */
struct tc_token_set_file {
  struct tc_data_file is;
  int source;
  const struct tc_tokenizer *t;
};
static inline bool tc_token_is_byte(const struct tc_tokenizer *t) { return tc_tokenizer_hash(t) == 0; }

struct tc_token_set {
  struct tc_token_set_opts o;
  struct tc_data *d;              /* owned */
  struct tc_token_set_file *file; /* [n], of all sources; owned */
  int n;
  struct tc_token_set_tokenizer *tokenizer;   /* [n_tokenizers]; owned */
  int n_tokenizers, cap_tokenizers;
};

/* Local, as all of these. Opens the files and finds their tokenizers. TC_EUSER. Free *s in any case. */
int tc_token_set_open(struct tc_token_set *s, const struct tc_token_set_opts *o, struct tc_err *err);
void tc_token_set_free(struct tc_token_set *s);
/* Tokens [from, from + n) of a file, n <= TC_TOKEN_BLOCK, into out[n]. r NULL: for the thread that opened s. */
int tc_token_set_read(const struct tc_token_set *s, struct tc_reader *r, const struct tc_token_set_file *f, int64_t from,
                      int64_t n, uint32_t *out, struct tc_err *err);

/* ---- check_tokens.c ---- */
struct tc_token_check {
  int64_t *vocab;                 /* [n] what all tokens of each file are below; owned */
  int64_t documents;              /* < 0: not known */
  bool weighted;                  /* a file has weights beside it: */
  int64_t counted, samples;       /* tokens that count, but the first of each sample, and where samples begin */
};
/* Whether all tokens are below their vocabulary's size, and all weights beside them are weights, by `threads` threads (0: as many
 * as CPUs); prints progress to stderr. TC_EUSER: one is not, the first. Free out->vocab in any case. */
int tc_token_set_check(struct tc_token_check *out, const struct tc_token_set *s, int threads, struct tc_err *err);

#endif
