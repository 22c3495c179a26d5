/* inspect.h - an open checkpoint from inside: what `tercio ckpt` (src/cmd/ckpt) needs beyond
 * ckpt.h. */
#ifndef TC_CKPT_INSPECT_H
#define TC_CKPT_INSPECT_H

#include "io/ckpt/manifest.h"
#include "src/files/again.h"

/* Files kept open for reading: file f in slot f % TC_OPEN_FILES. */
enum { TC_OPEN_FILES = 32 };

struct tc_ckpt {
  char *path;                     /* the step folder; owned */
  struct tc_ckpt_folder folder;   /* which one it was when it was opened */
  struct tc_again *late;          /* looks for files that another node may have made just now; owned */
  struct tc_manifest *m;          /* owned */
  int64_t *first_block;           /* [n_pieces + 1] blocks of the pieces, counted through */
  uint8_t *checked;               /* bit b: block b was read and its CRC-32C is right */
  struct { int file, fd; } open[TC_OPEN_FILES];   /* file -1: none */
  char *bounce;                   /* TC_CHUNK_BYTES; NULL until needed */
  bool damaged;                   /* a read found data wrong or missing */
  bool unread;                    /* a read failed, and nothing is known of the data */
};

/* What is read at once: small enough to be in the cache when it is summed and copied. */
enum { TC_CHUNK_BYTES = 256 << 10 };

/* Local. Opens file f for reading after checking its size: TC_EINCOMPLETE if it is missing or
 * too short, TC_ECHECKSUM if it is too long or no file, TC_EUSER if it can't be read: then nothing is known to be
 * wrong with it. Returns a descriptor. */
int tc_ckpt_open_file(const struct tc_ckpt *c, int f, struct tc_err *err);
/* Local. The same of attached file i, which there must be. */
int tc_ckpt_open_attached(const struct tc_ckpt *c, int i, struct tc_err *err);
/* Local. Opens the files of tensors, as many as are kept open, so that reading goes on if the step is removed by
 * another process. As tc_ckpt_read. */
int tc_ckpt_hold(struct tc_ckpt *c, struct tc_err *err);
/* Local. Reads all of piece k and checks every block of it, into nowhere. As tc_ckpt_read. */
int tc_ckpt_check_piece(struct tc_ckpt *c, int k, struct tc_err *err);

/* ---- steps.c: steps that a run may remove or replace beside a reader --------------------- */

/* Instead of a status: the step was removed meanwhile, which is no fault. */
enum { TC_STEP_GONE = 1 };
/* Local. TC_EUSER if it is the folder of a run, whose checkpoints are in a folder of their own in it. */
int tc_ckpt_check_folder(const char *path, struct tc_err *err);
/* Local. The checkpoints that DIR refers to, oldest first: itself, or all in it. *out is an owned array of owned paths
 * (tc_names_free); returns the number, or a status (DIR does not exist). */
int tc_ckpt_step_paths(char ***out, const char *dir, struct tc_err *err);
/* Local. tc_ckpt_list_beside of DIR, which must be a folder of steps, not a step: `command` is for that sentence. */
int tc_ckpt_list_folder(int64_t **steps, const char *dir, const char *command, struct tc_err *err);
/* a + b, both >= 0, or the largest number, since sizes in a damaged manifest may overflow. */
static inline int64_t tc_add_sizes(int64_t a, int64_t b)
{ return b > INT64_MAX - a ? INT64_MAX : a + b; }

/* ---- verify.c --------------------------------------------------------------------------- */

/* What was found: statuses and sentences, each once; text is owned. Zeroed: nothing. */
struct tc_finding { int status; char *text; };
struct tc_findings { struct tc_finding *fault; int n, cap; };
void tc_findings_free(struct tc_findings *f);
int tc_findings_worst(const struct tc_findings *f);      /* 0: nothing was found */
/* Local. Verifies one of `shares` equal shares of an open checkpoint's bytes, in whole pieces, and
 * all but the data of the files that begin in it. Faults are reported by file, then by place. */
void tc_ckpt_verify_files(struct tc_ckpt *c, bool deep, int share, int shares,
                          struct tc_findings *f);
/* Local. Verifies the attached files, if there are some. */
void tc_ckpt_verify_attached(const struct tc_ckpt *c, struct tc_findings *f);

/* Local. tc_ckpt_open for a command that reads data: the files are open when it returns, so that a run that removes the
 * checkpoint meanwhile does not matter (tc_ckpt_hold). */
int tc_ckpt_open_held(struct tc_ckpt **out, const char *path, struct tc_err *err);
/* Local. Closes it; returns rc, what became of reading it, or TC_EUSER: it was removed meanwhile (tc_ckpt_settle). */
int tc_ckpt_close_held(struct tc_ckpt *c, const char *path, int rc, struct tc_err *err);
/* Local. Opens a step and checks that its files exist and have their sizes, without reading them; *size_bytes: of all of
 * them. After a failure *c may be open: the manifest is good. As tc_ckpt_open, or TC_STEP_GONE; 0 may leave a sentence of
 * an earlier look in *err. */
int tc_ckpt_look(struct tc_ckpt **c, const char *path, int64_t *size_bytes, struct tc_err *err);
/* Local. The same of the newest in a folder that is complete, with a warning for each newer one that is not. TC_EUSER:
 * one can't be read, so that it isn't known which is the newest; TC_ENOCKPT. */
int tc_ckpt_newest(struct tc_ckpt **out, const char *dir, struct tc_err *err);
/* Local. All faults of a step, by file, whatever the number of threads (0: one per CPU); not deep: without the data.
 * Returns the worst status, or TC_STEP_GONE. */
int tc_ckpt_verify_step(const char *path, bool deep, int64_t jobs, struct tc_findings *f);

/* ---- tidy.c ----------------------------------------------------------------------------- */

enum tc_pruned { TC_PRUNE_GOOD, TC_PRUNE_FAULTY, TC_PRUNE_REMOVED, TC_PRUNE_UNREAD, TC_PRUNE_GONE };
struct tc_prune_opts {            /* borrowed */
  const char *dir;                /* a folder of checkpoints */
  int64_t keep, jobs;             /* good ones that stay, at least 1; threads, as for tc_ckpt_verify_step */
  bool dry_run;                   /* nothing is removed, though it is said */
  /* Called for each step that was verified or removed. fault: the first, "" if there is none. */
  void (*say)(void *ctx, int64_t step, enum tc_pruned what, const char *fault);
  void *ctx;
};
/* Local. Removes what is older than the newest `keep` checkpoints that verify completely, nothing if fewer do: so the last
 * good one is never removed. *listed: the folder could be read. TC_EUSER; TC_ENOCKPT: none is good. */
int tc_ckpt_prune_good(const struct tc_prune_opts *o, bool *listed, struct tc_err *err);
/* Local. Renames a step to quarantine-step-*, or back; nth: which one of this step in quarantine, 0: the first.
 * *from and *to: the paths, owned by the caller unless it fails. TC_EUSER, TC_ENOCKPT. */
int tc_ckpt_quarantine(const char *dir, int64_t step, long nth, bool release, char **from, char **to,
                       struct tc_err *err);

/* ---- compare.c -------------------------------------------------------------------------- */

/* A tensor that is read block by block in the order of its elements, with little memory for any
 * shape. Every value comes from data whose checksum was verified. */
struct tc_ckpt_walk {
  struct tc_ckpt *c;
  int tensor;
  int64_t at, end;                /* elements still to be read */
  void *buf;                      /* the block; owned */
  int64_t first, n;               /* its elements [first, first + n) of the tensor */
};
/* Elements [first, end). */
void tc_ckpt_walk_new(struct tc_ckpt_walk *w, struct tc_ckpt *c, int tensor, int64_t first, int64_t end);
/* Local. The next block: 1, or 0 after the last, or a status. */
int tc_ckpt_walk_next(struct tc_ckpt_walk *w, struct tc_err *err);
void tc_ckpt_walk_free(struct tc_ckpt_walk *w);
/* Element i of a block of this type. */
double tc_ckpt_value(const void *block, int dtype, int64_t i);

/* Statistics of n elements, without the n_nan of them that are NaN; min and max are NaN if there
 * are none. */
struct tc_ckpt_stats { double min, max, sum, squares; int64_t n, n_nan; };
/* Local. As tc_ckpt_read. */
int tc_ckpt_stats(struct tc_ckpt_stats *s, struct tc_ckpt *c, int tensor, struct tc_err *err);

struct tc_ckpt_delta {
  const char *why;                /* why they can't be compared; NULL: they can */
  double rel, max;                /* ||a-b|| / ||b||, max |a-b| */
  int64_t n_bits;                 /* elements whose bits differ */
};
/* Local. Tensor ta of a compared with tensor tb of b. As tc_ckpt_read. */
int tc_ckpt_compare(struct tc_ckpt_delta *d, struct tc_ckpt *a, int ta, struct tc_ckpt *b, int tb, struct tc_err *err);

/* The slices of one rank. A rank of the run that wrote nothing has a row, too. */
struct tc_ckpt_owner { int32_t rank; int64_t slices, bytes; };
/* Local. An owned array in order of ranks, *n of them, without slices yet: those of the run, and further writers of a
 * damaged manifest (its list of ranks may be shorter than its files require). */
struct tc_ckpt_owner *tc_ckpt_owners(const struct tc_manifest *m, int *n);
/* Local. Adds a slice of a rank that is there; sums saturate at the largest number, for impossible sizes. */
void tc_ckpt_owner_add(struct tc_ckpt_owner *o, int n, int32_t rank, int64_t bytes);
/* Local. The node of "rank 3 on node2"; all of another text; NULL if the manifest doesn't have it. Borrowed. */
const char *tc_ckpt_node(const struct tc_manifest *m, int32_t rank);

#endif
