/* folder.h - folders of checkpoints: names of steps, listing, durable renames, removal.
 *
 * In DIR: step-00000100 is a complete checkpoint; .run-* an owner's lease folder (io/ckpt/owner.h);
 * .tmp-*, there or here, a step being written or given up; .was-* one that is being replaced by a
 * newer save of the same step; .old-* one being deleted; superseded-* one that lay ahead of where
 * the run was taken up again. */
#ifndef TC_FOLDER_H
#define TC_FOLDER_H

#include "src/base/base.h"

#define TC_MANIFEST "manifest.json"
#define TC_ASIDE "quarantine-"             /* before the name of a step that was set aside */

/* Local. The step of a folder's name "step-00000100", -1 if it is not one. */
int64_t tc_step_of_name(const char *name);

/* Local. Names in `dir` that begin with `prefix`, in no order: *names is an owned array of
 * owned strings. Returns the number; a folder that isn't there has none; TC_EUSER. */
int tc_folder_scan(const char *dir, const char *prefix, char ***names, struct tc_err *err);
void tc_names_free(char **names, int n);

/* Local. The folder that holds `path`; owned. */
char *tc_folder_of(const char *path);

/* Local. All fail with TC_EUSER, naming the folder. */
int tc_folder_make(const char *path, struct tc_err *err);     /* with its parents; durable */
int tc_folder_sync(const char *path, struct tc_err *err);     /* fsync of the folder itself */
/* A folder of files and the files in it; the manifest goes first, so that what is left of it
 * is never taken for a checkpoint. A folder inside it is an error: not ours. */
int tc_folder_remove(const char *path, struct tc_err *err);
/* Within `dir`; durable when it returns. */
int tc_folder_rename(const char *dir, const char *from, const char *to, struct tc_err *err);

/* Local. bytes at `offset` of fd; false at an error or the end of the file (errno 0). */
bool tc_pread_all(int fd, void *buf, int64_t bytes, int64_t offset);

#endif
