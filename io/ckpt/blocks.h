/* blocks.h - data in blocks that have a checksum each.
 *
 * The data of a piece is cut from its first byte into blocks of block_bytes, the last one
 * shorter; the manifest has the CRC-32C of each. So a reader that needs a part of a piece reads
 * and checks the blocks it touches, and no others. */
#ifndef TC_BLOCKS_H
#define TC_BLOCKS_H

#include "src/base/base.h"

enum {
  TC_BLOCK_BYTES = 1 << 20,       /* of a block, unless set otherwise */
  TC_BLOCK_ALIGN = 4096           /* block_bytes is a multiple: blocks begin with an element */
};

static inline int64_t tc_blocks(int64_t bytes, int64_t block_bytes)
{ return tc_ceil_div(bytes, block_bytes); }

/* Sets what a reader reads of block b of a piece of `bytes`, of which [*at, *stop) is wanted: the whole block the first
 * time, since a checksum covers it, and what is wanted of one that was checked before. */
static inline void tc_block_read(int64_t b, int64_t block_bytes, int64_t bytes, bool checked, int64_t *at, int64_t *stop)
{
  const int64_t begin = b * block_bytes, end = begin + TC_MIN(block_bytes, bytes - begin);
  *at = checked ? TC_MAX(begin, *at) : begin;
  *stop = checked ? TC_MIN(end, *stop) : end;
}

/* Data on its way to a file. */
struct tc_stretch {
  const char *data;               /* borrowed */
  int64_t offset, bytes;          /* its place in the file */
  uint32_t *crc32c;               /* [tc_blocks(bytes)] filled */
};

/* Local. Writes the stretches, which ascend and don't overlap, each block right after its
 * checksum was taken; what is adjacent in the file travels together. path is for the sentence.
 * TC_EUSER. */
int tc_blocks_write(int fd, const struct tc_stretch *s, int n, int64_t block_bytes,
                    const char *path, struct tc_err *err);

/* Local. memcpy for data that is in the cache, to memory that is not read soon: past the cache,
 * so that the line it overwrites isn't read first. */
void tc_copy_out(void *dst, const void *src, size_t bytes);

#endif
