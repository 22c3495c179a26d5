/* impl.h - what the files of io/ckpt share. */
#ifndef TC_CKPT_IMPL_H
#define TC_CKPT_IMPL_H

#include "io/ckpt/rank_file.h"
#include "io/ckpt/inspect.h"

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

#endif
