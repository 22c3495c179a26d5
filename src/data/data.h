/* data.h - token files and the order samples are taken in.
 *
 * All files of a list are one stream of tokens. A sample is context+1 tokens from a start; which
 * samples a step takes depends on the seed and the step alone (order.h), so no layout changes it and
 * a resume needs no state. Files in reading order: order.[ch]; reader.c.
 *
 * Tokens are read when they are asked for. A file may fail then (EIO, truncated, a token >= vocab):
 * TC_EUSER, naming the file and the place. */
#ifndef TC_DATA_H
#define TC_DATA_H

#include "src/base/base.h"
#include "src/config/choices.h"

struct tc_data;

/* Local, as all of these. A tc_data has buffers of its own, so it is one thread's at a time.
 *
 * format: TC_FORMAT_TEXT (a byte is a token) or TC_FORMAT_BIN (llm.c: 256 int32 header {20240520, 1, count},
 * then uint16). part: 0 all, 1 the first 95 %, 2 the last 5 % (by tokens of the whole list).
 * Files are opened read-only, a few at a time. Missing, empty, too short for context+1, bad header,
 * a token >= vocab (named with its file and place): TC_EUSER. *out is owned by the caller. */
int tc_data_open(struct tc_data **out, char *const *files, int n_files, enum tc_data_format format,
                 int part, int64_t context, int64_t vocab, struct tc_err *err);
void tc_data_free(struct tc_data *d);
int64_t tc_data_tokens(const struct tc_data *d);

/* Local. Tokens [at, at + n) of the part into out[n]. */
int tc_data_read(struct tc_data *d, int64_t at, int64_t n, int32_t *out, struct tc_err *err);

/* What tells two data sets apart cheaply: the number of tokens of the part, and a hash of its first
 * and last tokens and of pieces spread over it. It depends on the tokens alone, not on how they lie
 * in files, the format or the machine, so equal data give an equal identity anywhere. */
struct tc_data_identity { int64_t tokens; uint64_t hash; };

/* Local. Reads some 20 KB. TC_EUSER: a file cannot be read. */
int tc_data_identity(struct tc_data *d, struct tc_data_identity *out, struct tc_err *err);

/* Local. TC_EUSER if a file is not as it was at open: its size or the time of its modification
 * differs, another file has its name, or it was removed. A change of ctime alone (mode, owner,
 * links) gives a warning (if `warn`), unless the identity was asked for before and differs now. */
int tc_data_check(struct tc_data *d, bool warn, struct tc_err *err);

/* Local. Sequences [b0, b0+n) of the global batch of `step` (from 1): tokens[n*context],
 * targets[n*context] (the next tokens). */
int tc_data_train(struct tc_data *d, uint64_t seed, int64_t step, int64_t b0, int64_t n,
                  int32_t *tokens, int32_t *targets, struct tc_err *err);
/* Local. Validation: sequence i is the window at i*context; the number of whole windows. */
int64_t tc_data_windows(const struct tc_data *d);
int tc_data_window(struct tc_data *d, int64_t i, int32_t *tokens, int32_t *targets,
                   struct tc_err *err);

#endif
