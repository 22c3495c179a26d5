/* impl.h - what the files of io/ckpt share. */
#ifndef TC_CKPT_IMPL_H
#define TC_CKPT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "io/ckpt/inspect.h"
#include "io/ckpt/owner.h"

/* Compares two struct tc_piece * for qsort: by file, then by offset. */
int tc_piece_by_place(const void *a, const void *b);
/* Local. CRC-32C of a file's bytes that are not data: the n pieces given must be sorted by
 * offset. False if they can't be read. */
bool tc_crc_meta(int fd, int64_t size, const struct tc_piece *const *by_offset, int n,
                 uint32_t *crc);

/* Local. Writes view.h5 into the folder (ckpt.h: meta.view) and lists it in the manifest, whose
 * array of files has room for one more. TC_EUSER. */
int tc_ckpt_view(struct tc_manifest *m, const char *folder, struct tc_err *err);

/* ---- reading: steps.c, read.c ---------------------------------------------------------- */

/* Local. The step folder that `path` means: itself, or the newest in it (*chosen); *out is owned. TC_EUSER. */
int tc_ckpt_find_step(char **out, bool *chosen, const char *path, struct tc_err *err);
/* Local. TC_EUSER: "DIR/step-00000100 was removed meanwhile". */
int tc_ckpt_say_gone(const char *step_path, struct tc_err *err);
/* Local. Whether what is missing in the folder may have been made just now. */
bool tc_ckpt_is_young(const struct tc_ckpt_folder *f);

/* ---- a rank's part of a save: rank_file.c --------------------------------------------- */

/* What a rank reports to rank 0: this, then n pieces, then n_blocks checksums. One kind of machine
 * in a run, so structs travel as they are. */
struct tc_rank_report {
  int32_t status, n;
  int32_t leader, node;           /* the rank whose file it is, whether it is a node's */
  int64_t size;                   /* of that file; 0: another rank reports it */
  int64_t n_blocks;
  uint32_t meta_crc32c;
  char text[1000];
};
struct tc_report_piece {
  int32_t tensor, part;           /* part: k of "/tensors/NAME.k", -1 for "/tensors/NAME" */
  int64_t start[TC_DIMS], count[TC_DIMS], offset;
};

struct tc_share {
  const char *folder;             /* where files go */
  const struct tc_ckpt_meta *meta;
  const struct tc_ckpt_tensor *tensor; int n_tensors;
  const struct tc_ckpt_slice *slice; int n_slices;
  int64_t block_bytes;
  int rank, world;
  struct tc_rank_report report;
  struct tc_report_piece *piece;    /* [report.n], owned */
  uint32_t *crc32c;               /* [report.n_blocks] piece after piece, owned */
};

/* Local, or collective over the node's ranks (meta->files). Writes, flushes to disk, checks;
 * fills report, piece, crc32c. TC_EUSER. */
int tc_share_write(struct tc_share *p, struct tc_err *err);

/* Local. Names, owned by the caller. */
char *tc_share_file(const struct tc_rank_report *t);      /* "rank-00003.h5" */
char *tc_share_dataset(const struct tc_ckpt_tensor *tensors, const struct tc_report_piece *p);
/* Local. Is it the dataset of a piece of that tensor? So that no tensor is taken for another. */
bool tc_share_is_of(const char *dataset, const char *tensor);
int64_t tc_share_bytes(const struct tc_ckpt_tensor *tensors, const struct tc_report_piece *p);

/* ---- saving: save.c, commit.c, tidy.c ------------------------------------------------- */

/* What a rank knows of a save. */
struct tc_save {
  const char *dir;
  const struct tc_ckpt_meta *meta;
  const struct tc_ckpt_tensor *tensor; int n_tensors;
  int rank, world;
  char *tmp;                      /* name of the temporary folder; owned */
  struct tc_share share;          /* this rank's share */
};

/* Collective. Every rank sends rank 0 its status and, if it is 0, what it has written; rank 0 makes
 * the step of it if all succeeded. All ranks return the same status and sentence. */
int tc_ckpt_commit(struct tc_save *s, int status, struct tc_comm *world, struct tc_err *err);

/* Local. TC_EUSER if DIR/NAME is gone, where NAME is the owner's lease folder or lies in it: a later
 * owner has taken it away. Without a lease folder (NULL) 0. */
int tc_ckpt_still_ours(const char *dir, const char *lease, const char *name, struct tc_err *err);
/* Local. Removes DIR/NAME, a folder of files; a fault is only warned of. */
void tc_ckpt_remove(const char *dir, const char *name);
/* Local. Puts back steps whose replacement was interrupted, deletes what was being deleted or
 * written and was given up (all but `except`, which may be NULL). Faults are only warned of. */
void tc_ckpt_tidy(const char *dir, const char *except);

/* ---- owners: owner.c, owner_before.c, owner_take.c -------------------------------------- */

/* A process. Ids mean the same where boot and process namespace are the same; machine "": they are not known. */
struct tc_process { char host[65], machine[160]; long long pid, born; };
struct tc_process tc_process_here(void);

struct tc_owner {
  char *dir, *job;
  int restart;
  int64_t number;                 /* 0: not yet */
  char lease[32];
  struct tc_process me;
  int64_t watched, watched_since_ns, changed_ns;   /* whose heartbeat, 0: none; since when, and when it was seen to go on */
  char heartbeat[32];             /* what it was */
  bool looks;                     /* tc_owner_alive: takes nothing */
  bool alone;                     /* the owner before has ended */
  pthread_t thread;
  bool threaded;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  bool stop;                      /* under lock */
  int gone;                       /* heartbeats in a row that found no lease folder */
  atomic_bool lost;
};

enum { TC_OWNER_TRIES = 20 };      /* of a number, of removing a folder */
/* Local. DIR/LEASE or DIR/LEASE/NAME; owned by the caller. */
char *tc_owner_path(const struct tc_owner *o, const char *lease, const char *name);
/* Local. The number of a lease folder's name; -1: it is none. */
int64_t tc_owner_number(const char *name);
/* Local. The highest number that has a lease folder; 0: none. TC_EUSER. */
int64_t tc_owner_highest(const struct tc_owner *o, struct tc_err *err);
/* Local. 0: `number` may be taken over; 1: not known yet; TC_EUSER: it is alive. */
int tc_owner_check(struct tc_owner *o, int64_t number, struct tc_err *err);
/* Local. 1: the number is ours; 0: another process was faster. TC_EUSER. */
int tc_owner_acquire(struct tc_owner *o, int64_t number, struct tc_err *err);
/* Local. Takes away all lease folders below ours, and those about to be made. TC_EUSER. */
int tc_owner_fence(const struct tc_owner *o, struct tc_err *err);
/* Local. Removes all folders whose names begin so; what can't be removed is warned of. */
void tc_owner_remove(const struct tc_owner *o, const char *prefix);
/* The thread of the heartbeat; arg is the owner. */
void *tc_owner_heartbeat(void *arg);

#endif
