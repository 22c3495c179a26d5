/* shards.h - token shards from text.
 *
 * In: text files, folders of them, JSONL or standard input, and a tokenizer.json. Out: a folder with shards in llm.c's
 * format, the tokenizer and a note of what is done. Without a tokenizer a byte is a token, and one file is made, which
 * needs no note. One thread reads and cuts the input
 * into units, several encode them, the calling one writes the ids in the order of the input; so the shards depend
 * neither on the number of threads nor on which of them was faster.
 *
 * The files, in reading order:
 *   texts.c           the texts: files, and those of folders
 *   unpack.c          what gzip and zstd compressed
 *   text_input.c      one source after the other as bytes: files, pipes, standard input
 *   units.c           bytes to units: pieces of text or lines that can be encoded separately
 *   encode_unit.c     a unit's text to ids
 *   shards.c          the threads, progress, requests to stop
 *   shard_files.c     ids to shards
 *   shards_folder.c   the folder that they are for
 *   note.c            data.json: which command made the shards, and where it goes on
 *   token_set.h       files that training reads, and what their tokens stand for
 *   check_tokens.c    each token of such files */
#ifndef TC_SHARDS_H
#define TC_SHARDS_H

#include <sys/stat.h>

#include "src/base/base.h"
#include "src/data/shard.h"
#include "src/files/files.h"
#include "src/token/token.h"

/* The words of --invalid, by enum tc_invalid. */
extern const char *const tc_data_invalid[3];

struct json_t;                    /* jansson's */

struct tc_make_opts {
  char *const *text;              /* [n_texts] names; "-" is standard input */
  int n_texts;
  const char *out;                /* a folder; without a tokenizer a file */
  const char *tokenizer, *field, *eod;    /* tokenizer NULL: a token is a byte; field, eod: NULL: the default */
  bool jsonl, begin_token, skip_bad;      /* skip_bad: lines that can't be read are left out, and counted */
  int64_t shard_tokens;
  int threads;                    /* 0: as many as CPUs */
  enum tc_invalid invalid;
  struct tc_stop *stop;
};

/* Local, as all of these; TC_EUSER. Shards of tokens, or one of bytes. TC_ENDED and TC_STOPPED: a signal asked for it; the same call goes on. */
int tc_data_make(const struct tc_make_opts *o, struct tc_err *err);
/* argv[0] is the verb. */
int tc_data_show(int argc, char **argv, struct tc_err *err);
int tc_data_check_tokens(int argc, char **argv, struct tc_err *err);
int tc_data_decode(int argc, char **argv, struct tc_err *err);
/* A number of threads, from text. */
int tc_data_threads(const char *text, int *out, struct tc_err *err);
/* argv[*i] is --NAME VALUE or --NAME=VALUE: the value (and *i moves on to it); NULL: it is not, or (in err) the
 * value is missing. */
const char *tc_data_option(int argc, char **argv, int *i, const char *name, struct tc_err *err);

/* ---- texts.c ---- */
/* Names of texts, owned. */
struct tc_texts { char **name; size_t n, cap; };
/* Local. Appends the texts that the words name: a folder stands for the files of text in it and in its folders, in the
 * order of their paths. TC_EUSER: a folder has none, or can't be read. */
int tc_texts_find(struct tc_texts *t, char *const *word, int n, struct tc_err *err);
void tc_texts_free(struct tc_texts *t);

/* ---- unpack.c ---- */
enum tc_packing { TC_PACKED_NOT, TC_PACKED_GZIP, TC_PACKED_ZSTD };
/* What compressed a file that begins with first[n]. TC_EUSER: its name says gzip or zstd, and it is something else. */
int tc_unpack_find(enum tc_packing *out, const char *path, const char *first, size_t n, struct tc_err *err);
/* Gives up to n bytes of the file, 0 at its end, or < 0. */
typedef int64_t tc_unpack_more(void *arg, char *buf, size_t n, struct tc_err *err);
struct tc_unpack;
/* path is borrowed, and for sentences. Owned by the caller. */
struct tc_unpack *tc_unpack_new(enum tc_packing packing, const char *path, tc_unpack_more *more, void *arg);
void tc_unpack_free(struct tc_unpack *u);
/* Up to n > 0 bytes as they were before they were compressed; 0 at the end. TC_EUSER: damaged, truncated, or followed by
 * something else. */
int64_t tc_unpack_read(struct tc_unpack *u, char *out, size_t n, struct tc_err *err);

/* ---- input.c ---- */
struct tc_data_input;
/* *out is owned by the caller. text: what is no text by its first bytes is TC_EUSER, of a pipe when it is read first. */
int tc_data_input_open(struct tc_data_input **out, const char *path, bool text, struct tc_err *err);
void tc_data_input_free(struct tc_data_input *in);
bool tc_data_input_is_pipe(const struct tc_data_input *in);
/* Reads `bytes`, or what is there up to the end. Returns how many. `stop` is looked at while a pipe has nothing to
 * give: then what is there. */
int64_t tc_data_input_read(struct tc_data_input *in, char *buf, int64_t bytes, bool (*stop)(void *), void *arg,
                           struct tc_err *err);
/* Passes over `bytes` of a plain file, of which nothing was read, without reading them: 1, or 0: they have to be read (a
 * compressed file, a pipe, or a file that is shorter). */
int tc_data_input_seek(struct tc_data_input *in, int64_t bytes, struct tc_err *err);
/* Bytes of the file that were read, as they are on the disk. */
int64_t tc_data_input_done(const struct tc_data_input *in);
/* TC_EUSER: the open file has another size or time of modification than `was`; a pipe never has. */
int tc_data_input_same(const struct tc_data_input *in, const struct stat *was, struct tc_err *err);

/* ---- encode.c ---- */
/* What goes around the ids of a document, and `was`, [n_texts]: the texts when the call began, whose sizes and times
 * data.json has; of a pipe nothing. */
struct tc_data_frame {
  const struct tc_make_opts *o;
  const struct tc_tokenizer *t;
  int64_t eod;                    /* below 0: none */
  const struct stat *was;
};

/* ---- units.c ---- */
/* Where a unit begins: byte `offset` of source `source`, decompressed; its line, from 1, in JSONL. */
struct tc_data_place { int source; int64_t offset, line; };
struct tc_data_unit {
  struct tc_data_place at;
  char *text;                     /* [n]; owned */
  size_t n, cap;
  bool jsonl, ends;               /* ends: a document of text ends with it */
  /* what encoding makes of it */
  struct tc_ids ids;
  int64_t documents, empty, invalid, bad;
  struct tc_err err;              /* status < 0: it failed */
  struct tc_err first_bad;        /* bad > 0: the first line that was left out, and why */
};
/* Whether the lines of a text are documents: by its name, or by --jsonl. */
bool tc_data_is_jsonl(const struct tc_make_opts *o, int source);
struct tc_data_units;
/* Begins at `from`. f must live longer. Owned by the caller. */
struct tc_data_units *tc_data_units_new(const struct tc_data_frame *f, struct tc_data_place from, bool (*stop)(void *),
                                        void *arg);
void tc_data_units_free(struct tc_data_units *u);
/* Fills *unit, whose text it may reuse. Returns 1, or 0 at the end of all input, or when asked to stop. The first call
 * passes over what is before the first unit. A text that has changed since the call began is TC_EUSER. */
int tc_data_units_next(struct tc_data_units *u, struct tc_data_unit *unit, struct tc_err *err);
/* Any thread. Bytes of all sources that are read, or were passed over; *begun: how many of them before the first unit,
 * -1 as long as they are being passed over. */
int64_t tc_data_units_done(const struct tc_data_units *u, int64_t *begun);

/* Encodes a unit; at a failure unit->err.status is set. */
void tc_data_encode(struct tc_data_unit *unit, const struct tc_data_frame *f, struct tc_encoder *e);

/* ---- shards.c ---- */
struct tc_shards {
  const char *out;                /* the folder, or the one file; borrowed */
  bool single;                    /* one file */
  const struct tc_output_kept *kept;    /* [n_kept] files that it must not replace; borrowed */
  int n_kept;
  struct tc_shard_header header;  /* of each shard; n_tokens: so far */
  int64_t shard_tokens;
  int number;                     /* of the open shard */
  struct tc_output *file;         /* NULL: none is open */
  void *buf;                      /* tokens as in the file */
};
/* s has `out`, `single`, `kept`, `header`, `shard_tokens` and `number`, the rest zero. */
void tc_shards_begin(struct tc_shards *s);
/* What the first tc_shards_put of a single file would say, for a check before the work. */
int tc_shards_check_single(const struct tc_shards *s, struct tc_err *err);
/* Appends as many of n ids as fit into the open shard; returns how many. */
int64_t tc_shards_put(struct tc_shards *s, const uint32_t *id, int64_t n, struct tc_err *err);
bool tc_shards_full(const struct tc_shards *s);
/* TC_EUSER unless the folder has the first `number` shards, `tokens` in all, with this header and the sizes that
 * follow. */
int tc_shards_check(const char *dir, const struct tc_shard_header *header, int64_t shard_tokens, int number,
                    int64_t tokens, struct tc_err *err);
/* Gives the open shard, if there is one, its name; durable. */
int tc_shards_finish(struct tc_shards *s, struct tc_err *err);
/* Removes the open shard, frees. */
void tc_shards_end(struct tc_shards *s);

/* ---- folder.c ---- */
#define TC_DATA_NOTE "data.json"
#define TC_DATA_TOKENIZER "tokenizer.json"
/* Makes the folder, locks it (*fd is the lock, to be closed by the caller), and removes what a crash left there. */
int tc_data_folder_open(const struct tc_make_opts *o, int *fd, struct tc_err *err);
/* Puts a copy of the tokenizer text[bytes] into it. TC_EUSER also if another tokenizer.json is there that no call put
 * there. */
int tc_data_folder_tokenizer(const struct tc_make_opts *o, const char *text, size_t bytes, struct tc_err *err);

/* ---- note.c ---- */
struct tc_data_note {
  bool complete;
  int shards;                     /* that are finished */
  int64_t tokens, documents, empty, invalid, bad;
  struct tc_data_place at;        /* of the unit that goes on */
  int64_t skip;                   /* tokens of it that are in finished shards; the counts don't have it yet */
  struct json_t *command;         /* of this call, with the texts as they were when it began; owned */
};
/* Reads the note of the folder, if it has one (*found): TC_EUSER if it is of another command. Free *n in any case. */
int tc_data_note_read(struct tc_data_note *n, bool *found, const struct tc_data_frame *f, struct tc_err *err);
int tc_data_note_write(const struct tc_data_note *n, const struct tc_data_frame *f, struct tc_err *err);
void tc_data_note_free(struct tc_data_note *n);

#endif
