/* output.h - files that the program makes: each appears complete or not at all, and replaces nothing that it should not.
 *
 * A file is written under a random name of its own in the folder of PATH, flushed to disk, and then gets its name. PATH
 * may name
 *   - nothing: the file is made. If another process makes it meanwhile, that one stays;
 *   - a regular file of the same kind, as its first bytes tell, or an empty one: it is replaced;
 *   - a link to such a file: that file is replaced, and the link stays (with `backup` the link is kept as PATH~).
 * Whatever else is there is kept, and TC_EUSER says what it is: another file, a device, a folder, a pipe, a link to
 * nothing, and files that the run reads or that other parts of it write, whatever their kind.
 *
 * A signal that ends the process removes unfinished files first (tc_output_remove_unfinished); KILL and a lost node leave
 * them, named .tmp-NAME-RANDOM. Everything here is Local; errors are TC_EUSER. */
#ifndef TC_OUTPUT_H
#define TC_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "src/base/err.h"

/* A kind of file that may be replaced by a newer one. */
struct tc_output_kind {
  const char *name;              /* for sentences, with its article: "a trace" */
  const char *begins[3];         /* texts of which one is at its first byte; NULL: no more */
};

/* A file that is never replaced, nor made where it is not there yet, and what it is: "the training data". A folder:
 * nothing is made in it. */
struct tc_output_kept { const char *path, *what; };

struct tc_output_opts {
  const struct tc_output_kind *kind;     /* borrowed; NULL: nothing is replaced */
  const struct tc_output_kept *kept;     /* [n_kept]; borrowed until the call returns */
  int n_kept;
  const char *flag;              /* for sentences, what named the path: "run.trace", "-o"; NULL */
  const char *instead;           /* for sentences, what would fit; NULL: "give another name" */
  bool executable;
  bool zeros;                    /* what begins with zero bytes is of the kind: a node leaves it that is lost while it grows */
  bool unsynced;                 /* it is not flushed to disk: after a loss of power it may be empty or zero bytes */
  bool backup;                   /* an earlier file, of any kind, is kept as PATH~; if that is taken, PATH~2 and so on */
};

/* What _new would say, for a check before long work. */
int tc_output_check(const char *path, const struct tc_output_opts *o, struct tc_err *err);

struct tc_output;
/* *out is owned by the caller; o->kind and o->instead must outlive it. */
int tc_output_new(struct tc_output **out, const char *path, const struct tc_output_opts *o, struct tc_err *err);
int tc_output_write(struct tc_output *f, const void *data, int64_t bytes, struct tc_err *err);
/* A stream into the file instead of _write; errors of writing to it show in _finish. Owned by f. */
FILE *tc_output_stream(struct tc_output *f);
int tc_output_fd(const struct tc_output *f);                 /* for pwrite and the like; owned by f */
int64_t tc_output_bytes(const struct tc_output *f);          /* given to _write so far */
/* Flushes the file and gives it its name; frees f, also on failure. */
int tc_output_finish(struct tc_output *f, struct tc_err *err);
/* Removes the unfinished file and frees f. NULL is accepted. */
void tc_output_abandon(struct tc_output *f);
/* Finishes it, or abandons it after a failure: rc < 0, which is returned. */
int tc_output_end(struct tc_output *f, int rc, struct tc_err *err);

/* The whole of it for a text. */
int tc_output_text(const char *path, const struct tc_output_opts *o, const char *text, struct tc_err *err);

/* A file without a name in `folder`, to be read and written; its descriptor, owned by the caller, or TC_EUSER. */
int tc_scratch_file(const char *folder, struct tc_err *err);

/* Any thread. The same for what is made in other ways, such as a folder that is filled under a temporary name (it is
 * removed if it is empty by then). Returns what tc_output_forget takes, once it is finished; -1: there is no more room. */
int tc_output_remember(const char *path);
void tc_output_forget(int place);

/* Any thread, and signal handlers. Removes the files of this process that are not finished, before a signal ends it: from
 * here on the other threads stop where they would begin or finish one. It takes 0.1 s at most if one of them never does. */
void tc_output_remove_unfinished(void);

#endif
