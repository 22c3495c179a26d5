/* folder.h - folders of checkpoints: names of steps, removal.
 *
 * In DIR: step-00000100 is a complete checkpoint; .run-* an owner's lease folder (io/ckpt/owner.h);
 * .tmp-*, there or here, a step being written or given up; .was-* one that is being replaced by a
 * newer save of the same step; .old-* one being deleted; superseded-* one that lay ahead of where
 * the run was taken up again. */
#ifndef TC_FOLDER_H
#define TC_FOLDER_H

#include "src/base/base.h"
#include "src/files/names.h"

#define TC_MANIFEST "manifest.json"
#define TC_ASIDE "quarantine-"             /* before the name of a step that was set aside */

/* Local. The step of a folder's name "step-00000100", -1 if it is not one. */
int64_t tc_step_of_name(const char *name);

/* Local. A folder of files and the files in it; the manifest goes first, so that what is left of it
 * is never taken for a checkpoint. A folder inside it is an error: not ours. A link is removed itself. TC_EUSER, naming
 * the folder, with errno. */
int tc_folder_remove(const char *path, struct tc_err *err);

/* Local. The first line of a file, without its end, into buf; "" if there is none. Returns 0 or errno. */
int tc_first_line(const char *path, char *buf, size_t size);

#endif
