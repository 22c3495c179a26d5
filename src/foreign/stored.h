/* stored.h - weights, wherever they are read from: a checkpoint, or another program's model. All is Local. */
#ifndef TC_FOREIGN_STORED_H
#define TC_FOREIGN_STORED_H

#include "src/foreign/foreign.h"
#include "src/graph/shard_box.h"

/* One of them is set; borrowed. */
struct tc_stored { struct tc_ckpt *ckpt; const struct tc_foreign *foreign; };

const char *tc_stored_path(const struct tc_stored *s);
int tc_stored_find(const struct tc_stored *s, const char *name);             /* -1: none */
const struct tc_ckpt_tensor *tc_stored_at(const struct tc_stored *s, int k);
/* A box of tensor k in its own type into dst, dense. As tc_ckpt_read and tc_foreign_read. */
int tc_stored_read(const struct tc_stored *s, int k, const struct tc_box *box, void *dst, struct tc_err *err);
/* The same as numbers of a type, of f32 and bf16 either from the other, a part at a time, in the order of the box, of so few
 * that little memory is needed: each is passed to take(ctx, part, values). */
typedef void tc_take_fn(void *ctx, const struct tc_box *part, const void *value);
int tc_stored_parts(const struct tc_stored *s, int k, const struct tc_box *box, int dtype, tc_take_fn *take, void *ctx,
                    struct tc_err *err);
/* Adds the share of n boxes of the tensor of this name and shape to the digest of all weights (digest.h). TC_EUSER: there is
 * none. */
int tc_stored_digest(uint64_t *digest, const struct tc_stored *s, const char *name, int rank, const int64_t *dim,
                     const struct tc_box *box, int n, struct tc_err *err);

#endif
