/* impl.h - what the files of src/data share: token files, streams of them, and their readers. */
#ifndef TC_DATA_IMPL_H
#define TC_DATA_IMPL_H

#include <pthread.h>

#include "src/data/data.h"
#include "src/data/order.h"
#include "src/data/shard.h"

/* Windows of samples (packed.c): n tokens from `at` of the stream on, of which `counted` are targets that count. */
struct tc_packed_item { int64_t at; int32_t n, counted; };
struct tc_packed {
  int64_t n;                     /* windows */
  int64_t *begin;                /* [n + 1] where each one's samples begin; owned */
  struct tc_packed_item *item;   /* [begin[n]]; owned */
  struct tc_pack_tally tally;
};

/* A source: files that are one stream of tokens. */
struct tc_source {
  char *name;                    /* the words that name it, as the user gave them; owned */
  double weight;                 /* as given; 1 without weights */
  struct tc_data_file *file;    /* [n_files]; owned */
  struct tc_data_file *weights;  /* [n_files] the files of weights beside them; tokens 0: there is none; owned */
  int n_files;
  bool weighted;                 /* one has weights */
  struct tc_packed packed;       /* of a data set that is packed */
  int64_t lo, hi;                /* the part in use, in tokens of the stream; hi - lo > context */
};

struct tc_data {
  struct tc_source *source;      /* [n]; owned */
  int n;
  struct tc_blend blend;         /* which source each sample is of */
  int64_t context, vocab;
  bool packed, cut;              /* as tc_data_opts has pack and cut */
  struct tc_files *files;        /* owned */
  struct tc_reader *own;         /* of the thread that opened it */
  struct tc_data_identity identity;   /* when it was first asked for; tokens 0: not yet */
};

/* The open files of a data set, which all its readers share. A place is free if file is NULL and no thread reads it; a
 * file with readers stays open, even if file is NULL by then. */
struct tc_open_file { const struct tc_data_file *file; int fd, readers; uint64_t used; };
struct tc_files {
  pthread_mutex_t lock;
  struct tc_open_file *open;     /* [most]; owned */
  int most;
  uint64_t uses;
};

/* One thread's buffers. */
struct tc_reader {
  struct tc_files *files;        /* of the data set; borrowed */
  uint8_t *raw;                  /* [context + 1] tokens as in a file; owned */
  int32_t *sample;               /* [context + 1]; owned */
  uint8_t *weight;               /* [context + 1]; owned */
};

/* ---- token_names.c; Local ---- */
/* The sources that the words of data.train or data.val name, their files not opened yet: *out is owned by the
 * caller, as is what it holds. Returns their number, or TC_EUSER. */
int tc_sources_new(struct tc_source **out, char *const *word, int n, struct tc_err *err);
void tc_sources_free(struct tc_source *s, int n);

/* ---- token_file.c; Local, all TC_EUSER ---- */
struct tc_files *tc_files_new(int most);
void tc_files_free(struct tc_files *x);      /* no thread reads */
/* Closes those that no thread reads. */
void tc_files_close(struct tc_files *x);
/* bytes at `offset` of a file into buf, opening it if need be. A file that is opened again must be the one of
 * the start; the first time sets f->was. */
int tc_file_read(struct tc_reader *r, struct tc_data_file *f, void *buf, int64_t bytes, int64_t offset,
                 struct tc_err *err);
/* Opens it, if it is not open. */
int tc_file_open(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err);
/* Whether the name still is the file of the start, if this rank has opened it. *touched: its ctime differs, which is noted. */
int tc_file_check(struct tc_files *x, struct tc_data_file *f, bool *touched, struct tc_err *err);
/* Adds device and inode of the file to the hash. False: it is not there. */
bool tc_file_inode(const struct tc_data_file *f, uint64_t *hash);
/* Whether the open file is as it was at the start. */
int tc_file_same(struct tc_reader *r, const struct tc_data_file *f, struct tc_err *err);

/* ---- data.c; Local ---- */
extern const struct tc_between tc_between_nothing;       /* does nothing */
/* The reader and the blend of a data set with its sources. TC_EUSER: a source has too small a share. */
int tc_data_complete(struct tc_data *d, int files, struct tc_err *err);

/* ---- format.c; Local ---- */
/* Opens the file and finds its width, header and number of tokens from its first bytes, its size and, for
 * Megatron's files, its index. TC_EUSER: it is not of this format, or (AUTO) of none that is known. */
int tc_format_find(struct tc_reader *r, struct tc_data_file *f, enum tc_data_format format, struct tc_err *err);

/* ---- source.c; Local ---- */
int tc_source_open(struct tc_source *s, struct tc_reader *r, const struct tc_data_opts *o, const struct tc_between *between,
                   struct tc_err *err);
/* Tokens [pos, pos + n) of the stream into out[n], over file borders; n <= context + 1. TC_EUSER names a token
 * that is not below vocab with its file and place. */
int tc_source_read(const struct tc_source *s, struct tc_reader *r, int64_t vocab, int64_t pos, int64_t n,
                   int32_t *out, struct tc_err *err);

/* The file that has token `pos` of the stream. */
int tc_source_file(const struct tc_source *s, int64_t pos);

/* ---- token_weights.c; Local ---- */
/* Weights [from, from + n) of a file of weights. TC_EUSER: one is no weight. */
int tc_weights_read(struct tc_reader *r, struct tc_data_file *f, int64_t from, int64_t n, uint8_t *out, struct tc_err *err);

/* ---- packed.c; Local ---- */
/* Finds the samples of a source's part, and packs them. cut: those that are too long are cut, else left out. TC_EUSER: a file has
 * no weights, or no sample is left. */
int tc_source_pack(struct tc_source *s, struct tc_reader *r, int64_t context, bool cut, const struct tc_between *between,
                   struct tc_err *err);
void tc_packed_free(struct tc_packed *p);

/* ---- windows.c; Local ---- */
/* The weights of tokens [pos, pos + n) of the stream; all count of a file without. */
int tc_source_weights(const struct tc_source *s, struct tc_reader *r, int64_t pos, int64_t n, uint8_t *out, struct tc_err *err);
/* The window that begins with token `at` of the stream, or, of a packed data set, window `at`, as row `row` of *to. r NULL: that
 * of the thread that opened d. */
int tc_window_copy(const struct tc_data *d, struct tc_reader *r, const struct tc_source *s, int64_t at, int64_t row,
                   const struct tc_batch *to, struct tc_err *err);
/* Adds to *n how many targets of it count. */
int tc_window_counted(const struct tc_data *d, struct tc_reader *r, const struct tc_source *s, int64_t at, int64_t *n,
                      struct tc_err *err);

#endif
