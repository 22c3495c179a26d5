/* ckpt.h - checkpoints: what is on disk, how it is committed, how it is read.
 *
 * DIR/step-00000100/manifest.json and rank-00000.h5 ... one HDF5 file a writer. A tensor has a
 * global name and shape; each file holds slices (boxes) of it as contiguous datasets; the
 * manifest says which box is where, with its CRC32C taken from memory, its place in the file,
 * and a CRC32C of all bytes of the file that are not tensor data.
 *
 * Commit: every rank writes into DIR/.tmp-step-…-<incarnation>, fsyncs, then all agree; rank 0
 * writes the manifest, fsyncs it and the folder, renames, fsyncs DIR. A folder step-* is
 * complete by construction. */
#ifndef TC_CKPT_H
#define TC_CKPT_H

#include "src/base.h"
#include "src/comm.h"
#include "src/graph.h"

struct tc_ckpt_tensor {
  const char *name;
  int dtype, rank;
  int64_t dim[TC_DIMS];          /* global, unpadded */
};

/* One box of one tensor, dense and contiguous in host memory. */
struct tc_ckpt_slice {
  int tensor;                    /* index into the tensors */
  int64_t start[TC_DIMS], count[TC_DIMS];
  void *data;                    /* borrowed; save reads it */
};

struct tc_ckpt_meta {
  int64_t step;
  uint64_t seed;
  int64_t tokens;                /* seen so far */
  const char *model;             /* canonical text of the model's sizes: must be equal to resume */
  const char *config;            /* run file as understood */
  const char *mesh;              /* "pp1 dp4 tp1" */
  const char *system;            /* "ddp" */
  const char *job;               /* job id */
  int restart;
  const char *const *who;        /* [world] "rank 0 on node1" */
};

/* Collective over `world` (a communicator of all ranks). tensors: the same on all ranks;
 * slices: this rank's. Together the slices cover every tensor exactly once (checked). On any
 * rank's failure (disk full, ...) all ranks return the same negative status and sentence, the
 * temporary folder is removed, and older checkpoints are untouched. Then removes all but the
 * newest `keep` (0: none removed). */
int tc_ckpt_save(const char *dir, const struct tc_ckpt_meta *meta,
                 const struct tc_ckpt_tensor *tensors, int n_tensors,
                 const struct tc_ckpt_slice *slices, int n_slices,
                 int keep, struct tc_comm *world, struct tc_err *err);

/* ---- reading (Local, no MPI; what the inspector uses too) -------------------------- */
struct tc_ckpt;
/* Opens a step folder, or the newest in DIR. Checks the manifest. TC_EINCOMPLETE, TC_ECHECKSUM,
 * TC_EUSER (no checkpoint there, newer format). */
int tc_ckpt_open(struct tc_ckpt **out, const char *path, struct tc_err *err);
void tc_ckpt_close(struct tc_ckpt *c);
const struct tc_ckpt_meta *tc_ckpt_meta(const struct tc_ckpt *c);      /* borrowed */
const char *tc_ckpt_path(const struct tc_ckpt *c);
int tc_ckpt_n(const struct tc_ckpt *c);
const struct tc_ckpt_tensor *tc_ckpt_at(const struct tc_ckpt *c, int i);
int tc_ckpt_find(const struct tc_ckpt *c, const char *name);           /* -1: none */
/* Any box, from whichever files hold it; every stored slice that is touched is checked against
 * its CRC32C (each once). dst is dense. TC_ECHECKSUM names file and tensor. */
int tc_ckpt_read(struct tc_ckpt *c, int tensor, const int64_t *start, const int64_t *count,
                 void *dst, struct tc_err *err);
/* All checksums: file bytes outside of tensors, and each slice. Reports each fault through
 * `fault` (may be NULL); returns the worst status. */
int tc_ckpt_verify(const char *step_path, bool deep,
                   void (*fault)(void *ctx, int status, const char *text), void *ctx,
                   struct tc_err *err);
/* Steps in DIR, descending, into *steps (owned by the caller). Returns the number or < 0. */
int tc_ckpt_list(const char *dir, int64_t **steps, struct tc_err *err);
char *tc_ckpt_step_path(const char *dir, int64_t step);                /* owned by the caller */

/* Collective. The newest checkpoint in dir that every byte of checks out (or `step` if >= 0),
 * agreed by all ranks; faulty newer ones are said with tc_warn, once. dir without any (a first
 * start): *out = NULL, 0. TC_ENOCKPT if there are some and none is good. */
int tc_ckpt_resume(struct tc_ckpt **out, const char *dir, int64_t step, struct tc_comm *world,
                   struct tc_err *err);

#endif
