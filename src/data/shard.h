/* shard.h - the header of a shard, in llm.c's format: 256 int32, then tokens.
 *
 * The first three int32 are {20240520, 1, number of tokens} with tokens of uint16 after the header, or {20240801, 7,
 * number of tokens} with uint32. Other readers ignore the rest. In shards that `tercio data` made it has a mark, the
 * tokenizer's hash (low half, high half), the size of its vocabulary and the token that ends a document. */
#ifndef TC_DATA_SHARD_H
#define TC_DATA_SHARD_H

#include "src/base/base.h"

/* The file beside shards that says which command made them, and whether all of them are there. */
#define TC_SHARDS_NOTE "data.json"

enum { TC_SHARD_INTS = 256, TC_SHARD_BYTES = TC_SHARD_INTS * 4 };
/* The integers of a header that have a meaning; the others are 0. */
enum { TC_SHARD_USED = 8 };

struct tc_shard_header {
  int width;                      /* bytes of a token: 2 or 4 */
  int64_t n_tokens;
  bool marked;                    /* `tercio data` made it, so that the next three are known */
  uint64_t hash;                  /* of the tokenizer; 0: none, a token is a byte */
  int64_t vocab, eod;             /* eod below 0: no token ends a document */
};

/* Local, as all of these. The header of a marked shard. */
void tc_shard_pack(const struct tc_shard_header *h, int32_t header[TC_SHARD_INTS]);
/* Whether a file that begins with this number has such a header. */
bool tc_shard_begins(int32_t magic);
/* Reads the header of a file of `size` bytes. TC_EUSER, naming the file: it is no shard, of an unknown version, or its
 * size does not fit. */
int tc_shard_unpack(struct tc_shard_header *h, const int32_t header[TC_SHARD_USED], int64_t size, const char *name,
                    struct tc_err *err);

/* ---- token_weights.c: a file beside a shard, which says of each token whether it counts ----
 *
 * NAME.weights.npy belongs to NAME.bin: one dimension of uint8 in NumPy's format, version 1, of the shard's length. Bit 0: the
 * loss of predicting this token counts. Bit 1: a sample begins with it. A sample may go on in the next shard; where the first
 * shard of a source begins in the middle of one, its remainder is taken for a sample. */
enum { TC_WEIGHT_COUNTS = 1, TC_WEIGHT_BEGINS = 2 };
enum { TC_WEIGHTS_BYTES = 128 };    /* of the header */
#define TC_WEIGHTS_MAGIC "\x93NUMPY"

/* The path for a shard's path; owned by the caller. */
char *tc_weights_path(const char *shard);
void tc_weights_pack(int64_t n_tokens, char header[TC_WEIGHTS_BYTES]);
/* TC_EUSER, naming the file, unless a file of `size` bytes that begins with `header` has the weights of so many tokens. */
int tc_weights_check(const char header[TC_WEIGHTS_BYTES], int64_t size, int64_t n_tokens, const char *name, struct tc_err *err);

#endif
