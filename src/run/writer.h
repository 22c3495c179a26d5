/* writer.h - the checkpoint writer: checkpoints are written asynchronously.
 *
 * Each rank has one. Saving has two parts. tc_writer_copy copies the rank's slices as they are now
 * into staging memory that was allocated and touched beforehand; training waits for the copy,
 * unless a device copies by itself (`copy`). tc_writer_go has a thread write the copy: checksums,
 * fsync, agreement and commit, over a communicator of the writer's own. Without `async` there is
 * no copy, and tc_writer_go writes the slices from where they are before it returns.
 *
 * All ranks call tc_writer_copy and tc_writer_go for the same steps in the same order, one save at
 * a time. */
#ifndef TC_WRITER_H
#define TC_WRITER_H

#include "io/ckpt/ckpt.h"
#include "src/comm/comm.h"
#include "src/monitor/trace.h"

struct tc_writer;

/* Copies from a device's memory to the host's, where the slices are in the former. */
struct tc_writer_copy_ops {
  void *(*alloc)(void *ctx, int64_t bytes);     /* staging memory; NULL: there is no more */
  void (*free)(void *ctx, void *p);
  /* Begins a copy into staging; the slices stay as they are until it is done. */
  void (*begin)(void *ctx, void *to, const void *from, int64_t bytes);
  int (*end)(void *ctx);                        /* all copies are done; also by the writer's thread */
  void *ctx;
};

struct tc_writer_opts {
  const char *dir;                         /* this and the next two are borrowed */
  const struct tc_ckpt_tensor *tensor;
  const struct tc_ckpt_slice *slice;       /* its data: where the run has it */
  int n_tensors, n_slices;
  bool async;
  int keep;                                /* newest checkpoints that stay; 0: all */
  int64_t verified;                        /* a step whose checkpoint was read back whole; -1: none */
  int threads;                             /* that copy */
  const struct tc_writer_copy_ops *copy;    /* copied; NULL: the host can read the slices itself */
  struct tc_comm *comm;                    /* of all ranks, used by no other thread; borrowed */
  struct tc_trace *trace;                  /* borrowed; may be NULL */
};

/* The result of a save. */
/* alone: it failed on this rank before the ranks met, so that the others do not know. */
struct tc_saved { int64_t step, write_ns; int rc; bool alone; struct tc_err err; };

/* Local. Where it is async, twice copies what the slices hold now: to touch the memory, and to
 * time a plain memcpy. TC_EUSER: no memory. *out is owned by the caller. */
int tc_writer_new(struct tc_writer **out, const struct tc_writer_opts *o, struct tc_err *err);
/* Local. Waits for a save under way; with `abandon` (a peer is missing, the process is about to
 * end) for a short time only. False: the thread still runs and uses the writer, all that it
 * borrows and the communicator. w may be NULL. */
bool tc_writer_free(struct tc_writer *w, bool abandon);

int64_t tc_writer_staging_bytes(const struct tc_writer *w); /* exactly the slices, or 0 */
int64_t tc_writer_memcpy_ns(const struct tc_writer *w);     /* of the same bytes; 0 if not async */

/* Local. There must be no save under way. */
void tc_writer_copy(struct tc_writer *w);
/* Collective. m is copied but for the strings other than `loop`, which are borrowed as long as the
 * writer exists. log_fd: flushed to disk before anything is written, then closed; -1: none. */
void tc_writer_go(struct tc_writer *w, const struct tc_ckpt_meta *m, int log_fd);
/* Collective. Writes what the last tc_writer_go failed to write, once more; with `room` it first removes what this save would
 * remove when it is done (`keep`), but never the newest checkpoint. */
void tc_writer_again(struct tc_writer *w, bool room);
/* Local. Whether a save is under way. */
bool tc_writer_busy(struct tc_writer *w);
/* Local. The result of the last save, once; false if there is none, or (without wait) none yet. */
bool tc_writer_result(struct tc_writer *w, bool wait, struct tc_saved *out);
/* Local. What the writer's communicator has counted, as of the last save that ended. */
void tc_writer_counters(struct tc_writer *w, struct tc_comm_counters *out);

#endif
