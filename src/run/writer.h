/* writer.h - checkpoints written beside training.
 *
 * A saver belongs to one rank. Saving has two parts: tc_saver_copy takes the rank's slices as they
 * are into memory that was taken and touched beforehand (the training stands still for that long,
 * or goes on where a device copies by itself, `reach`);
 * tc_saver_go lets a thread write them: checksums, fsync, agreement and commit go on over a
 * communicator of the saver's own. Without `async` there is no copy, and tc_saver_go writes the
 * slices from where they are before it returns.
 *
 * All ranks call copy and go for the same steps in the same order, one save at a time. */
#ifndef TC_SAVER_H
#define TC_SAVER_H

#include "io/ckpt/ckpt.h"
#include "src/comm/comm.h"
#include "src/monitor/trace.h"

struct tc_saver;

/* How the host gets what the slices hold, where they are in a device's memory. */
struct tc_saver_reach {
  void *(*alloc)(void *ctx, int64_t bytes);     /* staging memory; NULL: there is no more */
  void (*free)(void *ctx, void *p);
  /* Begins a copy into staging; the slices stay as they are until it is done. */
  void (*begin)(void *ctx, void *to, const void *from, int64_t bytes);
  int (*end)(void *ctx);                        /* all copies are done; from the saver's thread too */
  void *ctx;
};

struct tc_saver_opts {
  const char *dir;                         /* this and the next two are borrowed */
  const struct tc_ckpt_tensor *tensor;
  const struct tc_ckpt_slice *slice;       /* its data: where the run has it */
  int n_tensors, n_slices;
  bool async;
  int keep;                                /* newest checkpoints that stay; 0: all */
  int64_t verified;                        /* a step that was read back whole; -1: none */
  int threads;                             /* that copy */
  const struct tc_saver_reach *reach;      /* copied; NULL: the host can read the slices itself */
  struct tc_comm *comm;                    /* of all ranks, used by nobody else; borrowed */
  struct tc_trace *trace;                  /* borrowed; may be NULL */
};

/* What became of a save. */
struct tc_saved { int64_t step, write_ns; int rc; struct tc_err err; };

/* Local. Where it is async, twice copies what the slices hold now: to touch the memory, and to
 * time a plain memcpy. TC_EUSER: no memory. *out is owned by the caller. */
int tc_saver_new(struct tc_saver **out, const struct tc_saver_opts *o, struct tc_err *err);
/* Local. What is being written is waited for; but with `abandon` (a peer is missing, the process is
 * about to end) not for long. False: the thread was left behind with all it uses, the communicator
 * too. NULL is fine. */
bool tc_saver_free(struct tc_saver *s, bool abandon);

int64_t tc_saver_staging_bytes(const struct tc_saver *s);    /* exactly the slices, or 0 */
int64_t tc_saver_memcpy_ns(const struct tc_saver *s);        /* of the same bytes; 0 if not async */

/* Local. There must be no save under way. */
void tc_saver_copy(struct tc_saver *s);
/* Collective. m is copied but for the strings other than `loop`, which are borrowed as long as the
 * saver lives. log_fd: brought to disk before anything is written, then closed; -1: none. */
void tc_saver_go(struct tc_saver *s, const struct tc_ckpt_meta *m, int log_fd);
/* Local. Whether a save is under way. */
bool tc_saver_busy(struct tc_saver *s);
/* Local. The result of the last save, once; false if there is none, or (without wait) none yet. */
bool tc_saver_result(struct tc_saver *s, bool wait, struct tc_saved *out);
/* Local. What the saver's communicator has counted, as of the last save that ended. */
void tc_saver_counters(struct tc_saver *s, struct tc_comm_counters *out);

#endif
