/* input.h - text files that are read whole or line by line: run files, config.json, tokenizers, annotations, questions.
 *
 * What is opened is a regular file, or a pipe that the user gave by a descriptor: `<(...)`, /dev/fd/N, /dev/stdin. A
 * folder, a device, a socket or a named pipe is TC_EUSER with a sentence: none of them is waited for, and /dev/zero
 * has no end. Errors that may pass (again.h) are tried again. `kind` names the file in sentences: "run file". */
#ifndef TC_INPUT_H
#define TC_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "src/base/err.h"

/* Local. A descriptor for reading, owned by the caller; *missing, which may be NULL, tells whether there is no file of
 * this name. TC_EUSER. */
int tc_open_text(const char *path, const char *kind, bool *missing, struct tc_err *err);

/* Local. The same as a stream, to be closed by the caller; NULL with *err. */
FILE *tc_stream_text(const char *path, const char *kind, struct tc_err *err);

/* Local. Reads a whole text file and appends a 0; *out is owned by the caller. TC_EUSER: it can't be read, or has more
 * than `most` bytes. */
int tc_read_text(char **out, size_t *bytes, const char *path, const char *kind, size_t most, struct tc_err *err);

/* Local. A file of JSON of at most `most` bytes; flags: of jansson's json_loadb. *out is owned by the caller. TC_EUSER:
 * it can't be read, or is not JSON: then *is_damaged, which may be NULL, is true. */
struct json_t;
int tc_read_json(struct json_t **out, const char *path, const char *kind, size_t most, size_t flags, bool *is_damaged,
                 struct tc_err *err);

#endif
