/* outfile.h - a file that appears complete or not at all: written as PATH.tmp, flushed to disk,
 * renamed. Export writes such files. Everything here is Local; errors are TC_EUSER. */
#ifndef TC_OUTFILE_H
#define TC_OUTFILE_H

#include "src/base/base.h"

struct tc_outfile;
/* A PATH that exists is an error. *out is owned by the caller. */
int tc_outfile_new(struct tc_outfile **out, const char *path, struct tc_err *err);
int tc_outfile_write(struct tc_outfile *f, const void *data, int64_t bytes, struct tc_err *err);
int64_t tc_outfile_bytes(const struct tc_outfile *f);        /* written so far */
/* Flushes the file and renames it to PATH; frees f, even on failure. */
int tc_outfile_finish(struct tc_outfile *f, struct tc_err *err);
/* Removes the unfinished file and frees f. NULL is accepted. */
void tc_outfile_abandon(struct tc_outfile *f);

#endif
