/* digest.h - the weights that adapters belong to: what identifies them, and where they are. All is Local.
 *
 * Weights are the same if their digests are: of the values that are read from the checkpoint, or the other program's model, beside
 * which adapters train. Each checkpoint of adapters notes that digest and the checkpoint, whether it has a copy of the weights or
 * not: a copy may be rounded. */
#ifndef TC_FOREIGN_DIGEST_H
#define TC_FOREIGN_DIGEST_H

#include "io/ckpt/ckpt.h"

/* The share of a box of a weight, value[count] dense, in the digest of all weights: the sum of their shares, however they
 * are divided into boxes. */
uint64_t tc_digest_box(const struct tc_ckpt_tensor *t, const int64_t *start, const int64_t *count, const float *value);

enum { TC_DIGEST = 16 };               /* characters of a digest */
void tc_digest_text(char text[TC_DIGEST + 1], uint64_t digest);

/* The note (meta.def) of the digest of weights that were read from the step folder `path`; owned by the caller. */
char *tc_base_note(uint64_t digest, const char *path);
/* What a checkpoint says of the weights that its adapters belong to; elsewhere: it has no copy of them. A model without adapters,
 * or one whose weights were random when it began, notes nothing: ""; its own copy says what they belong to. path is borrowed. */
struct tc_base { char digest[TC_DIGEST + 1]; const char *path; bool elsewhere; };
struct tc_base tc_base_noted(const struct tc_ckpt *c);
bool tc_has_adapters(const struct tc_ckpt *c);

/* TC_EUSER: adapters can't be beside the weights of a base, which is another path's: `known`, the digest of what they belong to, is
 * another; or it is not known (""), and the base has adapters of its own, which would be left. */
int tc_base_check(const char *known, const char *adapters, uint64_t digest, const char *base, bool has_adapters,
                  struct tc_err *err);

#endif
