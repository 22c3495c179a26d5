/* input.h - text files that are read whole or line by line: run files, config.json, tokenizers, annotations, questions.
 *
 * What is opened is a regular file, or a pipe that the user gave by a descriptor: `<(...)`, /dev/fd/N, /dev/stdin. A
 * folder, a device, a socket or a named pipe is TC_EUSER with a sentence: none of them is waited for, and /dev/zero
 * has no end. Errors that may pass (again.h) are tried again. `kind` names the file in sentences: "run file".
 *
 * What a pipe gives is kept under its descriptor, in memory, so that it can be read as often as a file: by each rank
 * that is a thread, or once to be checked and once to be used. Only tc_open_text leaves it a pipe. */
#ifndef TC_INPUT_H
#define TC_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "src/base/err.h"

/* Local. A descriptor for reading, owned by the caller; *missing, which may be NULL, tells whether there is no file of
 * this name. TC_EUSER. */
int tc_open_text(const char *path, const char *kind, bool *missing, struct tc_err *err);

/* A file line by line, of which no line has more than TC_LINE_MOST bytes. */
enum { TC_LINE_MOST = 1 << 26 };
struct tc_lines;
/* Local. *out is owned by the caller, `path` and `kind` borrowed. TC_EUSER. */
int tc_lines_open(struct tc_lines **out, const char *path, const char *kind, struct tc_err *err);
/* Local. The next line into *line, with its end of line and a 0 after it; borrowed until the next call. *len may be
 * NULL. 1: a line, 0: the end of the file, or TC_EUSER. */
int tc_lines_next(struct tc_lines *l, char **line, size_t *len, struct tc_err *err);
void tc_lines_close(struct tc_lines *l);                          /* NULL is accepted */

/* Local. Reads a whole text file and appends a 0; *out is owned by the caller. TC_EUSER: it can't be read, or has more
 * than `most` bytes. */
int tc_read_text(char **out, size_t *bytes, const char *path, const char *kind, size_t most, struct tc_err *err);

/* Local. A file of JSON of at most `most` bytes; flags: of jansson's json_loadb. *out is owned by the caller. TC_EUSER:
 * it can't be read, or is not JSON: then *is_damaged, which may be NULL, is true. */
struct json_t;
int tc_read_json(struct json_t **out, const char *path, const char *kind, size_t most, size_t flags, bool *is_damaged,
                 struct tc_err *err);

/* Local. The same for an object that a program in Python wrote: NaN, Infinity and numbers that 64 bits do not hold become
 * texts ("NaN"), which only those who want a number there refuse. */
int tc_read_loose_json(struct json_t **out, const char *path, const char *kind, size_t most, struct tc_err *err);

#endif
