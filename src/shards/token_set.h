/* token_set.h - what show, check and decode share: the files, and what their tokens stand for.
 *
 * The files are named as in data.train and opened by what a training opens them with (src/data), one by one: they need
 * not be of one tokenizer. */
#ifndef TC_SHARDS_TOKEN_SET_H
#define TC_SHARDS_TOKEN_SET_H

#include "src/data/data.h"
#include "src/token/token.h"

enum tc_view_verb { TC_VIEW_SHOW = 1, TC_VIEW_CHECK = 2, TC_VIEW_DECODE = 4 };
enum { TC_VIEW_BLOCK = 1 << 18, TC_VIEW_BYTES = 256 };       /* tokens that are read at once; values of a byte */

/* What the tokens of a file stand for: bytes, or what the tokenizer at `path` says, or (t NULL) what is not known. */
struct tc_view_file {
  struct tc_data_file is;
  int source;
  bool bytes;
  const struct tc_tokenizer *t;   /* borrowed, as `path` */
  const char *path;
};

/* A tokenizer that was read; t NULL: it can't be. */
struct tc_view_tokenizer { char *path; struct tc_tokenizer *t; };

struct tc_view {
  enum tc_view_verb verb;
  char **word;                    /* [n_words], owned, as each of them */
  int n_words, cap_words;
  enum tc_data_format format;
  const char *tokenizer_path;     /* NULL: beside each file; "bytes": none */
  int64_t from, count, vocab;     /* from, count: of all files in order (count of show: of each); < 0: not given */
  int threads;                    /* 0: as many as CPUs */
  struct tc_data *d;              /* owned */
  struct tc_view_file *file;      /* [n], of all sources; owned */
  int n;
  struct tc_view_tokenizer *tokenizer;   /* [n_tokenizers]; owned */
  int n_tokenizers, cap_tokenizers;
};

/* Local, as all of these. Reads the command line (argv[0] is the verb), opens the files, finds their tokenizers, and
 * calls `act` with them. TC_EUSER, or what act returns. */
int tc_view_run(enum tc_view_verb verb, int (*act)(const struct tc_view *v, struct tc_err *err), int argc, char **argv,
                struct tc_err *err);
/* Tokens [from, from + n) of a file, n <= TC_VIEW_BLOCK, into out[n]. r NULL: for the thread that opened v. */
int tc_view_read(const struct tc_view *v, struct tc_reader *r, const struct tc_view_file *f, int64_t from, int64_t n,
                 uint32_t *out, struct tc_err *err);

#endif
