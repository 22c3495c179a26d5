/* ckpt.h - checkpoints: what is on disk, how it is committed, how it is read.
 *
 * In: tensors' boxes in host memory and what describes the run. Out: a folder on disk, and any box
 * read from it, whatever the layout that wrote it.
 *
 * DIR/step-00000100/manifest.json and rank-00000.h5 ... one HDF5 file per writer (or node-00000.h5
 * ..., one per node), and the attached files, if the save has some. A tensor has a global name and
 * shape; each HDF5 file holds slices (boxes) of it as contiguous datasets; the manifest says which
 * box is where, its place in the file, a CRC32C of each block of it, taken from memory, and one of
 * all bytes of the file that are not tensor data.
 *
 * Commit: every rank writes into DIR/.run-N/.tmp-step-*, in the lease folder of the folder's owner
 * (io/ckpt/owner.h; DIR/.tmp-step-* without one), fsyncs, then all agree; rank 0 writes the
 * manifest, fsyncs it and the folder, renames, fsyncs DIR. A folder step-* is complete by
 * construction.
 *
 * The files, in reading order:
 *   save.c      a save from its temporary folder to the commit, on every rank
 *   rank_file.c a rank's share in a file: layout, data, fsync, check
 *   h5.c        what HDF5 does: laying a file out, checking it
 *   blocks.c    data and the checksums of its blocks
 *   commit.c    all ranks' reports become a manifest, the temporary folder a step
 *   meta.def    what it says about the run; manifest.c: the manifest as text; manifest_check.c whether it can be true
 *   h5_view.c   view.h5, all tensors whole
 *   tidy.c      remains, old steps, steps set aside
 *   owner.c     which run may write into the folder; owner_before.c whether the one before is alive, owner_take.c its steps
 *   steps.c     the steps in a folder; whether one that can't be read is damaged or gone
 *   read.c      opening a checkpoint, reading boxes
 *   verify.c    proving it whole
 *   compare.c   tensors as numbers: statistics, differences
 *   load.c      choosing one that is good, and loading it on all ranks
 *   inspect.h   an open checkpoint from inside, for `tercio ckpt`; impl.h what these files share */
#ifndef TC_CKPT_H
#define TC_CKPT_H

#include "src/base/base.h"
#include "src/comm/comm.h"
#include "src/config/choices.h"

struct tc_ckpt_tensor {
  const char *name;
  int dtype, rank;
  int64_t dim[TC_DIMS];          /* global, unpadded */
};

/* Local. Whether a tensor has this shape. */
bool tc_ckpt_has_shape(const struct tc_ckpt_tensor *t, int rank, const int64_t *dim);

/* One box of one tensor, dense and contiguous in host memory. */
struct tc_ckpt_slice {
  int tensor;                    /* index into the tensors */
  int64_t start[TC_DIMS], count[TC_DIMS];
  void *data;                    /* borrowed; save reads it */
};

/* Local. Elements of a box; 1 for rank 0. Those of a checked manifest can't overflow. */
int64_t tc_box_elems(int rank, const int64_t *count);
/* Local. ... and its bytes. */
int64_t tc_box_bytes(int dtype, int rank, const int64_t *count);

/* Local. Of a piece, a dense box at `start` of a tensor: elements [*lo, *hi) are those from the first to the last inside
 * the box that begins at `from` and has the size n. Returns how many are inside; 0: none, and they are not set. */
int64_t tc_box_span(int rank, const int64_t *start, const int64_t *count, const int64_t *from, const int64_t *n,
                    int64_t *lo, int64_t *hi);

/* A file that a checkpoint takes along, whatever it says: its name in the step's folder and its bytes. */
enum { TC_ATTACHED = 2 };        /* so many, at most */
struct tc_ckpt_attached {
  const char *name;              /* NULL: none */
  const char *data;              /* borrowed; NULL in what was read (tc_ckpt_attached) */
  int64_t bytes;
  uint32_t crc32c;               /* of all its bytes; made by the save */
};

/* About the run: the fields are the rows of meta.def, which says what each is. */
struct tc_ckpt_meta {
#define TC_META_COUNT int64_t
#define TC_META_INT int
#define TC_META_SEED uint64_t
#define TC_META_TEXT const char *
#define TC_META_WORD const char *
#define TC_META(name, kind, ...) TC_META_##kind name;
#include "io/ckpt/meta.def"
#undef TC_META
  const char *const *rank_names; /* [world] "rank 0 on node1" */
  struct tc_ckpt_attached attached[TC_ATTACHED];   /* a save writes rank 0's */
  /* How it is written; not read back. */
  enum tc_ckpt_files files;      /* TC_FILES_NODE: a file per node, where ranks are MPI processes */
  bool view;                     /* also view.h5, all tensors whole as virtual datasets */
  int64_t block_bytes;           /* of a checksum, a multiple of 4096; 0: 1 MiB */
  /* Rank 0's: the owner's lease folder (io/ckpt/owner.h), in which the checkpoint is
   * written and out of which it is renamed; NULL: none, no other run is fenced off. */
  const char *lease;
};

/* Collective over `world` (a communicator of all ranks). tensors: the same on all ranks; slices: this rank's. Together
 * the slices cover every tensor exactly once (checked). On any rank's failure (disk full, ...) all ranks return the
 * same negative status and sentence, which begins with the rank's name (meta->rank_names) if it is not rank 0's; the
 * temporary folder is removed, and older checkpoints are untouched. */
int tc_ckpt_save(const char *dir, const struct tc_ckpt_meta *meta,
                 const struct tc_ckpt_tensor *tensors, int n_tensors,
                 const struct tc_ckpt_slice *slices, int n_slices,
                 struct tc_comm *world, struct tc_err *err);
/* Local. Removes all but the newest `keep` (0: none). Faults are only warned of. */
void tc_ckpt_prune(const char *dir, int keep);
/* Local. Renames the steps beyond `step` to superseded-STEP-TAG, so that no start goes on from
 * them, and warns of each: `why` is a part of that sentence. needs: a path within dir without which
 * nothing is renamed (TC_EUSER), since another run has taken over; NULL: none. */
int tc_ckpt_set_aside(const char *dir, int64_t step, const char *tag, const char *needs,
                      const char *why, struct tc_err *err);

/* ---- reading (Local, no MPI; what the inspector uses too) --------------------------
 *
 * What can't be read is not damaged: errors that may pass are tried again (src/files/again.h); if one stays, the status
 * is TC_EUSER, and nothing is known to be wrong with the checkpoint. TC_EINCOMPLETE and TC_ECHECKSUM are damage: a file
 * of a complete checkpoint is missing or too short, though it was looked for again, or bytes are wrong. */

/* Which folder a step's name led to. A run removes and replaces steps beside a reader, so a reader that fails asks
 * tc_ckpt_fate before it calls anything damaged. */
struct tc_ckpt_folder { uint64_t dev, ino; int64_t changed_ns; };   /* zeroed: none was there */
enum tc_ckpt_fate { TC_CKPT_SAME, TC_CKPT_GONE, TC_CKPT_OTHER };
struct tc_ckpt_folder tc_ckpt_folder(const char *step_path);
/* What the name leads to now: to the same folder, to none, to another (or to one whose files were removed). */
enum tc_ckpt_fate tc_ckpt_fate(const struct tc_ckpt_folder *was, const char *step_path);
struct tc_ckpt;
/* Returns rc, which a reader made of the checkpoint that `path` meant, or if it failed since the checkpoint was removed
 * meanwhile, TC_EUSER with a sentence that says so. *again then says that path is a folder of checkpoints, so that
 * another is its newest now: at most TC_CKPT_STEPS may go one after the other. */
enum { TC_CKPT_STEPS = 50 };
int tc_ckpt_settle(const struct tc_ckpt *c, const char *path, int rc, bool *again, struct tc_err *err);

/* Opens a step folder, or the newest in DIR: if that one is removed meanwhile, the then newest. Checks the manifest.
 * TC_EINCOMPLETE, TC_ECHECKSUM, TC_EUSER (no checkpoint there, newer format). */
int tc_ckpt_open(struct tc_ckpt **out, const char *path, struct tc_err *err);
void tc_ckpt_close(struct tc_ckpt *c);
const struct tc_ckpt_meta *tc_ckpt_meta(const struct tc_ckpt *c);      /* borrowed */
const char *tc_ckpt_path(const struct tc_ckpt *c);
bool tc_ckpt_is_same(const struct tc_ckpt *a, const struct tc_ckpt *b);  /* the same folder, by whatever name */
int tc_ckpt_n(const struct tc_ckpt *c);
const struct tc_ckpt_tensor *tc_ckpt_at(const struct tc_ckpt *c, int i);
int tc_ckpt_find(const struct tc_ckpt *c, const char *name);           /* -1: none */
/* Any box, from whichever files hold it; every block of data that is touched is read whole and
 * checked against its CRC32C (once). dst is dense; after a failure what is in it is undefined.
 * TC_ECHECKSUM names file and tensor. */
int tc_ckpt_read(struct tc_ckpt *c, int tensor, const int64_t *start, const int64_t *count,
                 void *dst, struct tc_err *err);
/* The bytes of the attached file of this name, checked against its checksum, and a 0 after them; owned by the caller.
 * *data NULL, 0: the checkpoint has none. TC_EINCOMPLETE, TC_ECHECKSUM, TC_EUSER; a loader (below) that fails with
 * these is not taken to have found damage, since the tensors may be whole. */
int tc_ckpt_attached(const struct tc_ckpt *c, const char *name, char **data, int64_t *bytes, struct tc_err *err);
/* Steps in DIR, descending, into *steps (owned by the caller). Returns the number or < 0. */
int tc_ckpt_list(const char *dir, int64_t **steps, struct tc_err *err);
/* The same beside a run: a listing may miss a step that is renamed into place and the one that is removed, so an empty
 * one is made again. */
int tc_ckpt_list_beside(const char *dir, int64_t **steps, struct tc_err *err);
char *tc_ckpt_step_path(const char *dir, int64_t step);                /* owned by the caller */

/* What a rank does with a checkpoint that may be the one to go on from: tc_ckpt_read of the boxes
 * it needs. Must not communicate. Returns 0 or a negative status. */
typedef int tc_ckpt_loader(void *ctx, struct tc_ckpt *c, struct tc_err *err);

/* Collective. Loads the newest checkpoint in dir (or `step` if >= 0) that is good: its manifest,
 * all tensor files' sizes and metadata (a share on each rank), and every byte that `load` reads.
 * load runs once on each rank for each checkpoint tried. If it finds damage on any rank, all
 * turn to the next older one, after a tc_warn with the reason, and so they do if the checkpoint is removed meanwhile; if
 * it fails without (another model, a file that can't be read), all fail with its sentence. A sentence of another rank than 0 begins with the
 * rank's name, rank_names[rank], unless that is NULL. *out: the one that was loaded; dir without any (a first
 * start): NULL, 0. TC_ENOCKPT if there are some and none is good. */
int tc_ckpt_load(struct tc_ckpt **out, const char *dir, int64_t step, tc_ckpt_loader *load,
                 void *ctx, struct tc_comm *world, char *const *rank_names, struct tc_err *err);
/* Collective. The same without loading: every byte is verified instead, a share on each rank. */
int tc_ckpt_resume(struct tc_ckpt **out, const char *dir, int64_t step, struct tc_comm *world,
                   char *const *rank_names, struct tc_err *err);
/* Collective. Loads a step folder, or the newest in a folder; nothing there is changed and no other
 * is tried: it may be another run's. */
int tc_ckpt_load_from(struct tc_ckpt **out, const char *path, tc_ckpt_loader *load, void *ctx,
                      struct tc_comm *world, char *const *rank_names, struct tc_err *err);

#endif
