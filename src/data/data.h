/* data.h - token files, and the samples that a run takes from them.
 *
 * In: the words of data.train or data.val. Out: the sequences of a step, or of a validation. The files of a
 * source are one stream of tokens; a blend has several sources, each with a share of the samples. Which
 * samples a step takes depends on the seed and the step alone (order.h): no layout changes it, and a resumed
 * run needs no state.
 *
 * Opening reads headers and sizes, so it takes as long for a terabyte as for a megabyte. A token is checked
 * when it is read: one that is not below the vocabulary, or a file that fails, is TC_EUSER, with the name of
 * the file and the place.
 *
 * A tc_data is read by several threads at once, each with a tc_reader of its own.
 *
 * Files in reading order: order.[ch]; impl.h; token_names.c (words to sources); token_file.c (reading, and files that
 * change under a run); format.c (headers); shard.[ch] (that of shards); token_weights.c (that of weights beside them);
 * source.c (a stream); bins.[ch] and packed.c (windows of whole samples); windows.c (what is in a window); data.c; identity.c;
 * data_table.c (a data set from one rank for the others); data_warn.c (what may be a mistake); prefetch.[ch] (the batch of the
 * next step, read by other threads during this one). */
#ifndef TC_DATA_H
#define TC_DATA_H

#include <sys/stat.h>

#include "src/base/base.h"
#include "src/config/choices.h"

struct tc_data;
struct tc_reader;

struct tc_data_opts {
  char *const *word;             /* [n] files, folders, patterns; WEIGHT:NAME begins a source of a blend */
  int n;
  enum tc_data_format format;
  int part;                      /* of each source: 0 all, 1 the first 95 %, 2 the last 5 % of the tokens */
  int64_t context, vocab;
  int files;                     /* that may be open at a time; 0: 32 */
  bool shorter;                  /* a source may have fewer tokens than a sample, two at least; it is read in order */
  bool separate;                    /* each file by itself: their tokenizers may differ, and one token is enough */
  bool pack, cut;                /* windows of whole samples; those that are too long are cut, else left out */
};

/* Sequences: row i has `context` tokens and their targets, which are the next tokens, or -1 where the loss does not count. Of a
 * packed data set starts, unless it is NULL, says of each token at which place of its row its sample begins. */
struct tc_batch { int32_t *tokens, *targets, *starts; };     /* [n * context] each */

/* Local, as all of these. TC_EUSER: a word that names nothing, a file that is missing, empty or of no known
 * format, a source that is too short for context + 1 tokens or has lost weights, headers with a vocabulary above `vocab` or
 * of different tokenizers. *out is owned by the caller. */
int tc_data_open(struct tc_data **out, const struct tc_data_opts *o, struct tc_err *err);
/* The same; between files, and blocks of weights, it calls this, whose failure ends it. */
struct tc_between { int (*call)(void *ctx, struct tc_err *err); void *ctx; };
int tc_data_open_between(struct tc_data **out, const struct tc_data_opts *o, const struct tc_between *between,
                         struct tc_err *err);
void tc_data_free(struct tc_data *d);
int64_t tc_data_tokens(const struct tc_data *d);            /* of all sources */
int64_t tc_data_source_tokens(const struct tc_data *d, int source);     /* of its part */
int tc_data_sources(const struct tc_data *d);
/* data_table.c. Local. What tc_data_open has found, as bytes for the other ranks; *bytes is owned by the caller. */
void tc_data_pack(const struct tc_data *d, void **bytes, int64_t *n);
/* Local. The same data set on another rank; `files` as in tc_data_opts. A file is opened when it is read first: TC_EUSER then,
 * if its size is another. */
int tc_data_unpack(struct tc_data **out, const void *bytes, int64_t n, int files, struct tc_err *err);
/* A source: the words that name it (borrowed), and its share of the samples; all shares add up to 1. */
const char *tc_data_source_name(const struct tc_data *d, int source);
double tc_data_source_share(const struct tc_data *d, int source);
const char *tc_data_first_file(const struct tc_data *d);    /* its name; borrowed */

/* A file of tokens, as it was when it was opened first, by this rank or another. */
struct tc_data_file {
  char *name;                    /* owned */
  enum tc_data_format format;    /* never AUTO */
  int width;                     /* bytes of a token: 1, 2 or 4; little-endian */
  int64_t header;                /* bytes before the first token */
  int64_t first, tokens;         /* the place of its first token in the stream of its source; how many it has, 0: not opened yet */
  int64_t documents;             /* below 0: not known */
  bool marked;                   /* a shard of tercio data, whose header says the next two */
  int64_t vocab, end_token;      /* end_token below 0: none ends a document */
  bool known;                    /* it is known which tokenizer made the tokens: that with the next hash */
  uint64_t tokenizer;            /* 0: none, a token is a byte */
  struct stat was;
  bool unseen;                   /* by another rank, so that only its size is known; changes under the lock of open files */
};
int tc_data_files(const struct tc_data *d, int source);
const struct tc_data_file *tc_data_file(const struct tc_data *d, int source, int i);        /* borrowed */
double tc_data_source_weight(const struct tc_data *d, int source);     /* as given; 1 without weights */

/* Whether a file has weights beside it, and whether windows are of whole samples. */
bool tc_data_weighted(const struct tc_data *d);
bool tc_data_packed(const struct tc_data *d);
/* What packing a source has found: samples; of them those that were cut, left out since they are too long, and left out since
 * none of their tokens counts; the places that the others take. Borrowed. */
struct tc_pack_tally { int64_t samples, cut, left_out, silent, tokens; };
const struct tc_pack_tally *tc_data_tally(const struct tc_data *d, int source);

/* The number of windows of context + 1 tokens, at a stride of context. */
int64_t tc_data_windows(const struct tc_data *d, int source);
/* How many of the first n samples of a run are of this source. */
int64_t tc_data_taken(const struct tc_data *d, int source, int64_t n);
/* How many samples the given number of epochs has: passes over a source, in a blend over the one that is
 * used up first. */
int64_t tc_data_samples(const struct tc_data *d, double epochs);

/* The hash of the tokenizer that made the tokens (0: none, a token is a byte), and the name of a file that says so
 * (borrowed); NULL: no file says it, as those of llm.c, Megatron and without a header. */
const char *tc_data_tokenizer(const struct tc_data *d, uint64_t *hash);
/* Whether every file says that its tokens are bytes. */
bool tc_data_is_bytes(const struct tc_data *d);
/* The token that ends a document, as all headers say; below 0: one does not, or two differ. */
int64_t tc_data_end_token(const struct tc_data *d);
/* TC_EUSER if a file says that its tokens are of another tokenizer than that with this hash (0: any will do), which is
 * that of the model at the path `model`, for the sentence. */
int tc_data_of_tokenizer(const struct tc_data *d, uint64_t tokenizer, const char *model, struct tc_err *err);
/* TC_EUSER if tokens of the two are of different tokenizers, or bytes and tokens that are not known to be bytes: one number
 * would be two texts. */
int tc_data_same_tokenizer(const struct tc_data *d, const struct tc_data *other, struct tc_err *err);

/* Warns of what may be a mistake: a folder whose data.json says that `tercio data` has not made all of its shards; a
 * file that is read twice, in one option or in both; bytes for a model with a vocabulary above 256. val NULL: it is a part of
 * train. For one rank to call: it opens a file of each folder. */
void tc_data_warn(const struct tc_data *train, const struct tc_data *val);
/* Logs what packing has found, in a line for each source: "training data 'x': ...". */
void tc_data_say_packed(const struct tc_data *d, const char *what);

/* Identifies a data set, cheaply: the number of tokens of the part, and a hash of its first
 * and last tokens and of pieces spread over it (of a blend: of each source), and of all weights, where there are any. It
 * depends on these alone, not on how they lie in files, the format or the machine, so equal data
 * give an equal identity anywhere. */
struct tc_data_identity { int64_t tokens; uint64_t hash; };

/* Reads at most 12,288 tokens per source, and all weights. TC_EUSER: a file cannot be read. */
int tc_data_identity(struct tc_data *d, struct tc_data_identity *out, struct tc_err *err);
/* The same; between blocks of weights it calls this, whose failure ends it. */
int tc_data_identity_between(struct tc_data *d, struct tc_data_identity *out, const struct tc_between *between, struct tc_err *err);
/* Local. Equal on ranks of a node that see the same files, by inodes of the first one of each source; 0: one is not there. */
uint64_t tc_data_inodes(const struct tc_data *d);
/* Local. The identity that another rank has found, for tc_data_check. */
void tc_data_identify(struct tc_data *d, const struct tc_data_identity *id);

/* TC_EUSER if a file that this rank has opened is not as it was at open: its size or the time of its modification
 * differs, another file has its name, or it was removed. A change of ctime alone (mode, owner,
 * links) gives a warning (if `warn`), unless the identity was asked for before and differs now. */
int tc_data_check(struct tc_data *d, bool warn, struct tc_err *err);

/* r NULL: the reader of the thread that opened d. */
struct tc_reader *tc_reader_new(const struct tc_data *d);
void tc_reader_free(struct tc_reader *r);

/* How a run takes its samples: `batch` sequences per step. */
struct tc_samples { enum tc_data_order order; uint64_t seed; int64_t batch; };
/* Sequences [b0, b0 + n) of the global batch of `step` (from 1). */
int tc_data_train(const struct tc_data *d, struct tc_reader *r, const struct tc_samples *s, int64_t step,
                  int64_t b0, int64_t n, const struct tc_batch *to, struct tc_err *err);

/* What the stages of a run before one say of a source: by which number its order is drawn, and how many of its samples they
 * took, after which this stage goes on. */
struct tc_origin { int number; int64_t taken; };
/* A stage on a data set: samples are counted after `before` steps, and after the `samples` that the stages just before took from
 * the same data set; origin[sources], of which the first stage has { i, 0 }. */
struct tc_data_stage { const struct tc_data *d; struct tc_origin *origin; int64_t before, samples; };
/* Local. Fills s[n].origin and samples, by the n stages before it, of which stage i takes samples[i] samples. A source of the same
 * name and windows (context, and how they are packed) as one of these goes on where the last of them stopped; any other begins,
 * with a number of its own. A blend goes on, too, while the data set is the same. */
void tc_data_origins(struct tc_data_stage *s, const int64_t *samples, int n);
/* How many of the first n samples of a stage are of this source. */
int64_t tc_data_stage_taken(const struct tc_data_stage *s, int source, int64_t n);
/* tc_data_train of a stage; step from s->before + 1 on. */
int tc_data_train_stage(const struct tc_data_stage *s, struct tc_reader *r, const struct tc_samples *how, int64_t step,
                        int64_t b, const struct tc_batch *to, struct tc_err *err);
/* *n <- how many targets of the whole batch of a step count. */
int tc_data_counted(const struct tc_data_stage *s, struct tc_reader *r, const struct tc_samples *how, int64_t step, int64_t *n,
                    struct tc_err *err);
/* Adds to *n how many targets of a source's window i count. */
int tc_data_window_counted(const struct tc_data *d, struct tc_reader *r, int source, int64_t i, int64_t *n, struct tc_err *err);
/* TC_EUSER, which names the file and place where sequence 0 of the step begins: none of the step's tokens counts. */
int tc_data_fail_silent(const struct tc_data_stage *s, const struct tc_samples *how, int64_t step, struct tc_err *err);
/* TC_EUSER, which names the file and place where a source's window 0 begins: none of the tokens of its first n counts. */
int tc_data_fail_silent_windows(const struct tc_data *d, int source, int64_t n, struct tc_err *err);
/* Window i of a source, 0 <= i < tc_data_windows. */
int tc_data_window(const struct tc_data *d, struct tc_reader *r, int source, int64_t i,
                   const struct tc_batch *to, struct tc_err *err);
/* Tokens [at, at + n) of a source's part into out[n]. */
int tc_data_read(const struct tc_data *d, struct tc_reader *r, int source, int64_t at, int64_t n, int32_t *out,
                 struct tc_err *err);

/* targets[n], which are tokens [at, at + n) of a source's part, become -1 where they do not count. */
int tc_data_mask(const struct tc_data *d, struct tc_reader *r, int source, int64_t at, int64_t n, int32_t *targets,
                 struct tc_err *err);

/* ---- documents.c: where the documents of a sequence begin, for data.documents = mask ---- */

/* The token that ends a document: `option` (data.end_token) or, where that is TC_AUTO, what the headers of d's shards
 * say, which `tercio data` writes. TC_EUSER: a file does not say it, two differ, or it is not below the vocabulary. */
int tc_documents_end(int32_t *end, int64_t option, const struct tc_data *d, struct tc_err *err);

/* TC_EUSER unless tc_documents_end gives `end` for d, too: the token of data.train for the files of data.val. */
int tc_documents_same(int32_t end, int64_t option, const struct tc_data *d, struct tc_err *err);

/* starts[n]: for each of n / T sequences of T tokens the position, from 0, at which the token's document begins. A
 * token `end` belongs to the document that it ends; a sequence begins a document, even in the middle of one. */
void tc_documents_starts(const int32_t *tokens, int64_t n, int64_t T, int32_t end, int32_t *starts);

/* ---- kind.c: whether a file is text, by its first bytes, and which format it is otherwise ---- */

enum { TC_TEXT_KIND_BYTES = 4096, TC_TEXT_KIND_TEXT = 240 };   /* bytes to look at; room for the reason */

/* Text, which is UTF-8 without a zero byte; bytes that are not UTF-8; bytes with a zero; another format that is known. */
enum tc_text_kind { TC_TEXT_KIND_UTF8, TC_TEXT_KIND_NO_UTF8, TC_TEXT_KIND_ZERO, TC_TEXT_KIND_KNOWN };

/* Local. What a file is that begins with these n bytes. A character may be cut off at their end. If they are not text,
 * `why` continues a sentence that begins with the file: "is not text: ..." with the first byte that is not, or the name
 * of the format and what to do with such a file. */
enum tc_text_kind tc_kind_find(char why[TC_TEXT_KIND_TEXT], const char *first, size_t n);

#endif
