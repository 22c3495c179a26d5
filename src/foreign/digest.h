/* digest.h - what identifies the weights that adapters belong to. */
#ifndef TC_FOREIGN_DIGEST_H
#define TC_FOREIGN_DIGEST_H

#include "io/ckpt/ckpt.h"

#define TC_BASE_TEXT "%016" PRIx64           /* as a checkpoint notes it (meta.def) */
/* Local. The share of a box of a weight, value[count] dense, in the digest of all weights: the sum of their shares, however they
 * are divided into boxes. */
uint64_t tc_digest_box(const struct tc_ckpt_tensor *t, const int64_t *start, const int64_t *count, const float *value);

#endif
