/* prefetch.h - reads the batch of the next step while this one runs, with threads of its own.
 *
 * A rank reads the same rows of each batch, so what it took of this batch is what it will take of the next.
 * Several threads read at once: a disk that answers late does so for many sequences in the same time. */
#ifndef TC_PREFETCH_H
#define TC_PREFETCH_H

#include "src/data/data.h"

/* Reads sequence b of batch `key` into row 0 of *to; called by several threads. */
typedef int tc_prefetch_fn(void *ctx, struct tc_reader *r, int64_t key, int64_t b, const struct tc_batch *to,
                        struct tc_err *err);

struct tc_prefetch;
/* Local, as all of these. Starts the threads, which use d (borrowed) and read(ctx, ...). TC_EUSER if they can't be
 * started. *out is owned by the caller. */
int tc_prefetch_new(struct tc_prefetch **out, const struct tc_data *d, tc_prefetch_fn *read, void *ctx,
                    struct tc_err *err);
/* Waits for reads in progress. */
void tc_prefetch_free(struct tc_prefetch *a);
/* Sequences [b0, b0 + n) of batch `key`; waits until they are read. The same of batch `next` are read from then
 * on (next < 0: no batch follows). A failure is that of the batch it belongs to, after a second try. */
int tc_prefetch_take(struct tc_prefetch *a, int64_t key, int64_t next, int64_t b0, int64_t n, const struct tc_batch *to,
                     struct tc_err *err);

#endif
