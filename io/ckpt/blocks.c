/* blocks.c - data to a file, block by block, and out of a buffer.
 *
 * - A block is read from memory once: its checksum brings it into the cache, the write that
 *   follows at once takes it from there.
 * - A call writes CALL_BYTES or a little more, of as many stretches as are adjacent in the file:
 *   a hundred small tensors are one call. What isn't adjacent is never bridged, since HDF5's
 *   metadata may lie between.
 * - Reading, a chunk is summed in a small buffer and leaves it by tc_copy_out: twice as fast as
 *   reading it straight to its place, where memory is slow or shared (docs/measured.md).
 * - The disk is asked to begin with what was written, so that it works while the next blocks
 *   are summed, and the fsync at the end finds less to do. */
#include "io/ckpt/blocks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "io/ckpt/impl.h"
#include "io/crc.h"
#include "io/folder.h"
#include "src/watch/watch.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { CALL_BYTES = 1 << 20, PARTS = 512, PUSH_BYTES = 4 << 20 };

struct batch {
  int fd;
  struct iovec part[PARTS];
  int n;
  int64_t offset, bytes;          /* where the batch goes, its size */
  int64_t pushed;                 /* what lies before was handed to the disk */
};

/* Writes the batch, in as many calls as it takes. */
static bool flush(struct batch *b)
{
  struct iovec *at = b->part;
  int left = b->n;
  while (left > 0) {
    ssize_t n = pwritev(b->fd, at, left, (off_t)b->offset);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) return false;
    b->offset += n;
    b->bytes -= n;
    while (left > 0 && (size_t)n >= at->iov_len) {
      n -= (ssize_t)at->iov_len;
      at++;
      left--;
    }
    if (n > 0) {
      at->iov_base = (char *)at->iov_base + n;
      at->iov_len -= (size_t)n;
    }
  }
  b->n = 0;
  /* A hint: whether it fails is known from fsync. */
  if (b->offset - b->pushed >= PUSH_BYTES) {
    sync_file_range(b->fd, b->pushed, b->offset - b->pushed, SYNC_FILE_RANGE_WRITE);
    b->pushed = b->offset;
  }
  return true;
}

static bool add(struct batch *b, const char *data, int64_t bytes, int64_t offset)
{
  if (b->n > 0 && (offset != b->offset + b->bytes || b->n == PARTS) && !flush(b)) return false;
  if (b->n == 0) {
    b->offset = offset;
    b->bytes = 0;
  }
  b->part[b->n++] = (struct iovec){ .iov_base = (void *)(uintptr_t)data,
                                    .iov_len = (size_t)bytes };
  b->bytes += bytes;
  return b->bytes < CALL_BYTES || flush(b);
}

int tc_blocks_write(int fd, const struct tc_stretch *s, int n, int64_t block_bytes,
                    const char *path, struct tc_err *err)
{
  struct batch b = { .fd = fd };
  bool good = true;
  if (n > 0) b.pushed = s[0].offset;
  for (int i = 0; i < n && good; i++) {
    for (int64_t at = 0, k = 0; at < s[i].bytes && good; at += block_bytes, k++) {
      int64_t end = TC_MIN(s[i].bytes, at + block_bytes);
      uint32_t crc = 0;
      tc_at_again();
      for (int64_t from = at; from < end && good; from += CALL_BYTES) {
        int64_t part = TC_MIN(end - from, CALL_BYTES);
        crc = tc_crc32c(crc, s[i].data + from, (size_t)part);
        good = add(&b, s[i].data + from, part, s[i].offset + from);
      }
      s[i].crc32c[k] = crc;
    }
  }
  if (good && flush(&b)) return 0;
  return tc_fail(err, TC_EUSER, "%s: writing failed: %s", path, strerror(errno));
}

void tc_copy_out(void *dst, const void *src, size_t bytes)
{
  char *to = dst;
  const char *from = src;
#ifdef __SSE2__
  enum { LINE = 64, WORTH = 4096 };
  if (bytes >= WORTH) {
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= LINE; bytes -= LINE, to += LINE, from += LINE) {
      __m128i x[4];
      for (int i = 0; i < 4; i++) x[i] = _mm_loadu_si128((const __m128i *)(const void *)from + i);
      for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)to + i, x[i]);
    }
    _mm_sfence();
  }
#endif
  memcpy(to, from, bytes);
}

/* ---- boxes, and what lies around them in a file ------------------------------------ */

bool tc_ckpt_has_shape(const struct tc_ckpt_tensor *t, int rank, const int64_t *dim)
{
  return t->rank == rank && memcmp(t->dim, dim, (size_t)rank * sizeof *dim) == 0;
}

int64_t tc_box_elems(int rank, const int64_t *count)
{
  int64_t n = 1;
  for (int d = 0; d < rank; d++) n *= count[d];
  return n;
}

int64_t tc_box_bytes(int dtype, int rank, const int64_t *count)
{
  return tc_box_elems(rank, count) * (int64_t)tc_dtype_bytes(dtype);
}

int64_t tc_box_span(int rank, const int64_t *start, const int64_t *count, const int64_t *from, const int64_t *n,
                    int64_t *lo, int64_t *hi)
{
  int64_t first = 0, last = 0, inside = 1;
  for (int d = 0; d < rank; d++) {
    const int64_t a = TC_MAX(start[d], from[d]), b = TC_MIN(start[d] + count[d], from[d] + n[d]);
    if (a >= b) return 0;
    inside *= b - a;
    first = first * count[d] + a - start[d];
    last = last * count[d] + b - 1 - start[d];
  }
  *lo = first;
  *hi = last + 1;
  return inside;
}

int tc_piece_by_place(const void *a, const void *b)
{
  const struct tc_piece *p = *(const struct tc_piece *const *)a;
  const struct tc_piece *q = *(const struct tc_piece *const *)b;
  if (p->file != q->file) return p->file < q->file ? -1 : 1;
  return (p->offset > q->offset) - (p->offset < q->offset);
}

/* Continues *crc, a CRC-32C, with `bytes` of fd at offset; false if they can't be read. */
static bool crc_range(int fd, int64_t offset, int64_t bytes, uint32_t *crc)
{
  char *buf = tc_malloc((size_t)TC_MAX(1, TC_MIN(bytes, TC_CHUNK_BYTES)));
  bool good = true;
  while (bytes > 0 && good) {
    int64_t n = TC_MIN(bytes, TC_CHUNK_BYTES);
    good = tc_pread_all(fd, buf, n, offset);
    if (good) *crc = tc_crc32c(*crc, buf, (size_t)n);
    offset += n;
    bytes -= n;
  }
  free(buf);
  return good;
}

bool tc_crc_meta(int fd, int64_t size, const struct tc_piece *const *by_offset, int n,
                 uint32_t *crc)
{
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    if (!crc_range(fd, at, by_offset[i]->offset - at, crc)) return false;
    at = by_offset[i]->offset + by_offset[i]->bytes;
  }
  return crc_range(fd, at, size - at, crc);
}
