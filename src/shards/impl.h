/* impl.h - what the files of src/shards share: texts, units of them, shards as files, and the note beside them.
 *
 * All is Local, and fails with TC_EUSER unless it says otherwise. */
#ifndef TC_SHARDS_IMPL_H
#define TC_SHARDS_IMPL_H

#include <sys/stat.h>

#include "src/data/shard.h"
#include "src/files/files.h"
#include "src/shards/chat.h"
#include "src/shards/shards.h"

struct json_t;                    /* jansson's */

/* ---- texts.c ---- */
/* Names of texts, owned. */
struct tc_texts { char **name; size_t n, cap; };
/* Appends the texts that the words name: a folder stands for the files of text in it and in its folders, in the
 * order of their paths. TC_EUSER: a folder has none, or can't be read. */
int tc_texts_find(struct tc_texts *t, char *const *word, int n, struct tc_err *err);
void tc_texts_free(struct tc_texts *t);
/* Whether the lines of a text are documents: by its name, or by --jsonl. */
bool tc_text_is_jsonl(const struct tc_shards_opts *o, int source);

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

/* ---- text_input.c ---- */
struct tc_text_input;
/* *out is owned by the caller. text: what is no text by its first bytes is TC_EUSER, of a pipe when it is read first. */
int tc_text_input_open(struct tc_text_input **out, const char *path, bool text, struct tc_err *err);
void tc_text_input_free(struct tc_text_input *in);
bool tc_text_input_is_pipe(const struct tc_text_input *in);
/* Reads `bytes`, or what is there up to the end. Returns how many. `stop` is looked at while a pipe has nothing to
 * give: then what is there. */
int64_t tc_text_input_read(struct tc_text_input *in, char *buf, int64_t bytes, bool (*stop)(void *), void *arg,
                           struct tc_err *err);
/* Passes over `bytes` of a plain file, of which nothing was read, without reading them: 1, or 0: they have to be read (a
 * compressed file, a pipe, or a file that is shorter). */
int tc_text_input_seek(struct tc_text_input *in, int64_t bytes, struct tc_err *err);
/* Bytes of the file that were read, as they are on the disk. */
int64_t tc_text_input_done(const struct tc_text_input *in);
/* TC_EUSER: the open file has another size or time of modification than `was`; a pipe never has. */
int tc_text_input_same(const struct tc_text_input *in, const struct stat *was, struct tc_err *err);

/* ---- what is to be made ---- */
struct tc_shards_job {
  const struct tc_shards_opts *o; /* its texts are files */
  const struct tc_tokenizer *t;
  int64_t eod;                    /* the token between documents; below 0: none */
  const struct tc_chat *chat;     /* lines are conversations; NULL: texts */
  const struct stat *was;         /* [n_texts] the texts when the call began, whose sizes and times data.json has; zero of
                                   * pipes */
};

/* ---- units.c ---- */
/* Where a unit begins: byte `offset` of source `source`, decompressed; its line, from 1, in JSONL. */
struct tc_text_place { int source; int64_t offset, line; };
struct tc_text_unit {
  struct tc_text_place at;
  char *text;                     /* [n]; owned */
  size_t n, cap;
  bool jsonl, ends;               /* ends: a document of text ends with it */
  /* what encoding makes of it */
  struct tc_ids ids;
  uint8_t *weight;                /* [ids.n] of conversations: bits of src/data/shard.h; owned */
  size_t weight_cap;
  int64_t documents, empty, invalid, bad;
  int64_t counted, special;       /* tokens to be trained on; special tokens of the template in the contents of turns */
  struct tc_err err;              /* status < 0: it failed */
  struct tc_err first_bad;        /* bad > 0: the first line that was left out, and why */
};
struct tc_text_units;
/* Begins at `from`. job must live longer. Owned by the caller. */
struct tc_text_units *tc_text_units_new(const struct tc_shards_job *job, struct tc_text_place from, bool (*stop)(void *),
                                        void *arg);
void tc_text_units_free(struct tc_text_units *u);
/* Fills *unit, whose text it may reuse. Returns 1, or 0 at the end of all input, or when asked to stop. The first call
 * passes over what is before the first unit. A text that has changed since the call began is TC_EUSER. */
int tc_text_units_next(struct tc_text_units *u, struct tc_text_unit *unit, struct tc_err *err);
/* Any thread. Bytes of all sources that are read, or were passed over; *begun: how many of them before the first unit,
 * -1 as long as they are being passed over. */
int64_t tc_text_units_done(const struct tc_text_units *u, int64_t *begun);

/* ---- encode_unit.c ---- */
/* Encodes a unit; at a failure unit->err.status is set. */
void tc_text_unit_encode(struct tc_text_unit *unit, const struct tc_shards_job *job, struct tc_encoder *e);

/* ---- encode_chat.c ---- */
/* Appends the ids and weights of a line; unit->err begins without the file's name. Nothing is appended at a failure. */
int tc_text_unit_chat(struct tc_text_unit *unit, const struct tc_shards_job *job, struct tc_encoder *e,
                      const struct json_t *line);
/* Room for the weights of all ids, which are 0 from id `first` on: where those begin. */
uint8_t *tc_text_unit_weights(struct tc_text_unit *unit, size_t first);

/* ---- shard_files.c ---- */
/* Begins with `out`, `single`, `kept`, `header`, `shard_tokens` and `number`, the rest zero. */
struct tc_shard_files {
  const char *out;                /* the folder, or the one file; borrowed */
  bool single;                    /* one file */
  const struct tc_output_kept *kept;    /* [n_kept] files that it must not replace; borrowed */
  int n_kept;
  struct tc_shard_header header;  /* of each shard; n_tokens: so far */
  int64_t shard_tokens;
  int number;                     /* of the open shard */
  struct tc_output *file, *weights;     /* NULL: none is open */
  bool weighted;                  /* a file of weights lies beside each shard */
  void *buf;                      /* tokens as in the file; owned; NULL before the first shard */
};
/* What the first tc_shard_files_put of a single file would say, for a check before the work. */
int tc_shard_files_check_single(const struct tc_shard_files *s, struct tc_err *err);
/* Appends as many of n ids, with their weights if it has them, as fit into the open shard; returns how many. */
int64_t tc_shard_files_put(struct tc_shard_files *s, const uint32_t *id, const uint8_t *weight, int64_t n, struct tc_err *err);
bool tc_shard_files_full(const struct tc_shard_files *s);
/* TC_EUSER unless the folder has the first `number` shards, `tokens` in all, with the header and the sizes that
 * follow. */
int tc_shard_files_check(const struct tc_shard_files *s, int number, int64_t tokens, struct tc_err *err);
/* Gives the open shard, if there is one, its name; durable. */
int tc_shard_files_finish(struct tc_shard_files *s, struct tc_err *err);
/* Removes the open shard, frees. */
void tc_shard_files_end(struct tc_shard_files *s);

/* ---- shards_folder.c ---- */
/* Makes the folder, locks it (*fd is the lock, to be closed by the caller), and removes what a crash left there. */
int tc_shards_folder_open(const struct tc_shards_opts *o, int *fd, struct tc_err *err);
/* Puts a copy of the tokenizer text[bytes] into it. TC_EUSER also if another tokenizer.json is there that no call put
 * there. */
int tc_shards_folder_tokenizer(const struct tc_shards_opts *o, const char *text, size_t bytes, struct tc_err *err);

/* ---- note.c ---- */
struct tc_shards_note {
  bool complete;
  int shards;                     /* that are finished */
  int64_t tokens, documents, empty, invalid, bad, counted, special;
  struct tc_text_place at;        /* of the unit that goes on */
  int64_t skip;                   /* tokens of it that are in finished shards; the counts don't have it yet */
  struct json_t *command;         /* of this call, with the texts as they were when it began; owned */
};
/* Reads the note of the folder, if it has one (*found): TC_EUSER if it is of another command. Free *n in any case. */
int tc_shards_note_read(struct tc_shards_note *n, bool *found, const struct tc_shards_job *job, struct tc_err *err);
int tc_shards_note_write(const struct tc_shards_note *n, const struct tc_shards_job *job, struct tc_err *err);
void tc_shards_note_free(struct tc_shards_note *n);

#endif
