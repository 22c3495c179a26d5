/* outfile.h - a file that appears whole or not at all: written as PATH.tmp, flushed to disk,
 * renamed. What export writes. Everything here is Local; faults are TC_EUSER. */
#ifndef TC_OUTFILE_H
#define TC_OUTFILE_H

#include "src/base/base.h"

struct tc_outfile;
/* A PATH that is there already is refused. *out is owned by the caller. */
int tc_outfile_new(struct tc_outfile **out, const char *path, struct tc_err *err);
int tc_outfile_write(struct tc_outfile *f, const void *data, int64_t bytes, struct tc_err *err);
int64_t tc_outfile_bytes(const struct tc_outfile *f);        /* written so far */
/* Brings it to disk under its name, and frees f, also when it fails. */
int tc_outfile_finish(struct tc_outfile *f, struct tc_err *err);
/* Gives up and removes what was written. NULL is fine. */
void tc_outfile_abandon(struct tc_outfile *f);

#endif
