/* digest.h - what identifies the weights that adapters belong to. */
#ifndef TC_FOREIGN_DIGEST_H
#define TC_FOREIGN_DIGEST_H

#include "io/ckpt/ckpt.h"

/* Local. The share of a box of a weight, value[count] dense, in the digest of all weights: the sum of their shares, however they
 * are divided into boxes. */
uint64_t tc_digest_box(const struct tc_ckpt_tensor *t, const int64_t *start, const int64_t *count, const float *value);

/* A digest as a checkpoint of adapters notes it (meta.def). */
enum { TC_DIGEST_TEXT = 17 };
char *tc_digest_text(char text[TC_DIGEST_TEXT], uint64_t digest);

/* Local. TC_EUSER: `known`, what the adapters of a path are noted to belong to, is not the digest of the base, which is another
 * path's. */
int tc_digest_check(const char *known, uint64_t digest, const char *adapters, const char *base, struct tc_err *err);

#endif
