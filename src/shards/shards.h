/* shards.h - token shards from text.
 *
 * In: text files, folders of them, JSONL or standard input, and a tokenizer.json. Out: a folder with shards in llm.c's
 * format, the tokenizer and a note of what is done. Without a tokenizer a byte is a token, and one file is made, which
 * needs no note. One thread reads and cuts the input into units, several encode them, the calling one writes the ids in
 * the order of the input; so the shards depend neither on the number of threads nor on which of them was faster.
 *
 * The files, in reading order:
 *   impl.h            what they share
 *   texts.c           the texts: files, and those of folders
 *   unpack.c          what gzip and zstd compressed
 *   text_input.c      one source after the other as bytes: files, pipes, standard input
 *   units.c           bytes to units: pieces of text or lines that can be encoded separately
 *   encode_unit.c     a unit's text to ids
 *   chat.[ch]         conversations to text, by the templates of chat.def
 *   chat_line.c       a line of JSON to the turns of a conversation
 *   encode_chat.c     a conversation to ids and their weights
 *   shards.c          the threads, progress, requests to stop
 *   shard_files.c     ids to shards
 *   shards_folder.c   the folder that they are for
 *   note.c            data.json: which command made the shards, and where it goes on
 * and of shards that are made:
 *   token_set.[ch]    files that training reads, and what their tokens stand for
 *   check_tokens.c    each token of such files */
#ifndef TC_SHARDS_SHARDS_H
#define TC_SHARDS_SHARDS_H

#include "src/base/base.h"
#include "src/token/token.h"

/* The words of --invalid, by enum tc_invalid. */
extern const char *const tc_invalid_words[3];

/* Which tokens of a conversation count: all answers, the last one, or everything. */
extern const char *const tc_train_on_words[3];
enum tc_train_on { TC_TRAIN_ANSWERS, TC_TRAIN_LAST, TC_TRAIN_ALL };

struct tc_stop;
struct tc_shards_opts {
  char *const *text;              /* [n_texts] names of files and folders; "-" is standard input */
  int n_texts;
  const char *out;                /* a folder; without a tokenizer a file */
  const char *tokenizer, *field, *eod;    /* tokenizer NULL: a token is a byte; field, eod: NULL: the default */
  bool jsonl, begin_token;
  int skip_bad;                   /* not 0: lines that can't be read are left out, and counted */
  const char *chat;               /* lines are conversations, of this template; "": of the one beside the tokenizer; NULL: no */
  int train_on;                   /* enum tc_train_on */
  int64_t shard_tokens;
  int threads;                    /* 0: as many as CPUs */
  enum tc_invalid invalid;
  struct tc_stop *stop;
};

/* What `out` has, by this call and those before it. */
struct tc_shards_made {
  int64_t tokens, documents;
  int64_t empty, invalid, bad;    /* documents and lines that were left out, and parts that are no UTF-8 */
  int64_t counted, special;       /* of conversations: tokens to be trained on, special tokens in contents */
  struct tc_err first_bad;        /* the first line that this call left out, and why */
  int shards, texts;              /* texts: files of text */
  int64_t vocab;
};

/* Local. Makes shards of tokens, or one file of bytes; prints progress to stderr, and to stdout where it goes on after
 * a call that was stopped. TC_EUSER; TC_ENDED and TC_STOPPED: a signal asked for it, and the same call goes on. */
int tc_shards_make(struct tc_shards_made *made, const struct tc_shards_opts *o, struct tc_err *err);

#endif
