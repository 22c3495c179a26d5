/* unpack.c - what gzip or zstd compressed, as the bytes that it was.
 *
 * A file is one or more members of gzip (or frames of zstd) to its last byte; each is checked to its checksum. After the
 * members of gzip there may be zero bytes, as gzip itself allows; anything else is an error, and not an end: a damaged
 * member would else leave out all that follows it. */
#include "src/shards/impl.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { BLOCK = 1 << 18 };

struct tc_unpack {
  enum tc_packing packing;
  const char *path;               /* borrowed */
  tc_unpack_more *more;
  void *arg;
  z_stream z;
  ZSTD_DCtx *zst;
  char *block;                    /* [BLOCK]; what was read and not unpacked yet is block[at, n) */
  size_t at, n;
  int64_t read;                   /* bytes of the file, so far */
  int64_t parts, begun;           /* members or frames that have ended; the byte where the next began */
  bool within, ended;             /* one has begun; the file has ended */
};

int tc_unpack_find(enum tc_packing *out, const char *path, const char *first, size_t n, struct tc_err *err)
{
  const bool gz = tc_ends_with(path, ".gz"), zst = tc_ends_with(path, ".zst");
  const bool skippable = n >= 4 && (first[0] & 0xf0) == 0x50 && memcmp(first + 1, "\x2a\x4d\x18", 3) == 0;
  *out = n >= 3 && memcmp(first, "\x1f\x8b\x08", 3) == 0                        ? TC_PACKED_GZIP
         : n >= 4 && (memcmp(first, "\x28\xb5\x2f\xfd", 4) == 0 || (zst && skippable)) ? TC_PACKED_ZSTD
                                                                                        : TC_PACKED_NOT;
  if (*out != TC_PACKED_NOT || (!gz && !zst)) return TC_OK;
  return tc_fail(err, TC_EUSER, "text file '%s' is %s, though its name says that %s compressed it: get it again, or "
                 "rename it", path, n ? "something else" : "empty", gz ? "gzip" : "zstd");
}

struct tc_unpack *tc_unpack_new(enum tc_packing packing, const char *path, tc_unpack_more *more, void *arg)
{
  struct tc_unpack *u = tc_calloc(1, sizeof *u);
  *u = (struct tc_unpack){ .packing = packing, .path = path, .more = more, .arg = arg };
  u->block = tc_malloc(BLOCK);
  if (packing == TC_PACKED_GZIP && inflateInit2(&u->z, 16 + MAX_WBITS) != Z_OK) tc_out_of_memory(0);
  if (packing == TC_PACKED_ZSTD) {
    u->zst = ZSTD_createDCtx();
    if (!u->zst) tc_out_of_memory(0);
    ZSTD_DCtx_setParameter(u->zst, ZSTD_d_windowLogMax, (int)ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }
  return u;
}

void tc_unpack_free(struct tc_unpack *u)
{
  if (!u) return;
  if (u->packing == TC_PACKED_GZIP) inflateEnd(&u->z);
  ZSTD_freeDCtx(u->zst);
  TC_FREE(u->block, u);
}

/* The place in the file of what is unpacked next. */
static int64_t place(const struct tc_unpack *u) { return u->read - (int64_t)(u->n - u->at); }

static int fail(const struct tc_unpack *u, const char *why, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "text file '%s': reading failed: %s", u->path, why);
}

static int fail_truncated(const struct tc_unpack *u, struct tc_err *err)
{
  return fail(u, u->packing == TC_PACKED_GZIP ? "the .gz file is truncated" : "the .zst file is truncated", err);
}

/* What is at the place where another part, or the end of the file, must be. */
static int fail_follows(const struct tc_unpack *u, int64_t at, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "text file '%s': reading failed: from byte %lld on, after %lld whole %s%s, it is neither "
                 "another one nor the end: it is damaged, or something was appended to it", u->path,
                 (long long)at, (long long)u->parts, u->packing == TC_PACKED_GZIP ? "member" : "frame",
                 tc_plural(u->parts));
}

static int fail_damaged(const struct tc_unpack *u, const char *why, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "text file '%s': reading failed: %s %lld, which begins at byte %lld, is damaged at or "
                 "before byte %lld: %s", u->path, u->packing == TC_PACKED_GZIP ? "member" : "frame",
                 (long long)u->parts + 1, (long long)u->begun, (long long)place(u), why);
}

/* Reads on if nothing is left. Returns 1, 0 at the end of the file, or < 0. */
static int refill(struct tc_unpack *u, struct tc_err *err)
{
  if (u->at < u->n) return 1;
  const int64_t got = u->more(u->arg, u->block, BLOCK, err);
  if (got < 0) return (int)got;
  u->at = 0;
  u->n = (size_t)got;
  u->read += got;
  return got > 0;
}

/* ---- gzip -------------------------------------------------------------------------------------- */

/* The zero bytes from here on, to the end of the file. */
static int skip_zeros(struct tc_unpack *u, struct tc_err *err)
{
  int more;
  while ((more = refill(u, err)) > 0) {
    if (u->block[u->at]) return fail_follows(u, place(u), err);
    u->at++;
  }
  u->ended = true;
  return more;
}

/* more: the file goes on. */
static int begin_member(struct tc_unpack *u, bool more, struct tc_err *err)
{
  if (!more) return u->ended = true, TC_OK;
  if (u->parts && !u->block[u->at]) return skip_zeros(u, err);
  if (u->block[u->at] != 0x1f) return fail_follows(u, place(u), err);
  inflateReset(&u->z);
  u->begun = place(u);
  u->within = true;
  return TC_OK;
}

static int64_t unpack_gzip(struct tc_unpack *u, char *out, size_t n, struct tc_err *err)
{
  z_stream *z = &u->z;
  int64_t got = 0;
  while (got == 0) {
    const int more = refill(u, err);
    if (more < 0) return more;
    if (!u->within) TC_TRY(begin_member(u, more, err));
    if (u->ended) return 0;
    z->next_in = (Bytef *)u->block + u->at;
    z->avail_in = (uInt)(u->n - u->at);
    z->next_out = (Bytef *)out;
    z->avail_out = (uInt)TC_MIN(n, (size_t)1 << 30);
    const int code = inflate(z, Z_NO_FLUSH);
    u->at = u->n - z->avail_in;
    got = (char *)z->next_out - out;
    if (code == Z_MEM_ERROR) tc_out_of_memory(0);
    if (code == Z_STREAM_END) u->within = false, u->parts++;
    else if (code != Z_OK && code != Z_BUF_ERROR) return fail_damaged(u, z->msg ? z->msg : "a dictionary", err);
    else if (!more && got == 0) return fail_truncated(u, err);
  }
  return got;
}

/* ---- zstd -------------------------------------------------------------------------------------- */

static int fail_zstd(const struct tc_unpack *u, size_t code, struct tc_err *err)
{
  switch (ZSTD_getErrorCode(code)) {
  case ZSTD_error_prefix_unknown:
    return fail_follows(u, u->begun, err);
  case ZSTD_error_frameParameter_windowTooLarge: case ZSTD_error_memory_allocation:
    return fail(u, "its window is too long for this machine's memory; decompress it first: zstd -d --long=31 FILE", err);
  case ZSTD_error_dictionary_wrong: case ZSTD_error_dictionary_corrupted:
    return fail(u, "it was compressed with a dictionary; decompress it first: zstd -d -D DICTIONARY FILE", err);
  default:
    return fail_damaged(u, ZSTD_getErrorName(code), err);
  }
}

static int64_t unpack_zstd(struct tc_unpack *u, char *out, size_t n, struct tc_err *err)
{
  ZSTD_outBuffer to = { out, n, 0 };
  while (to.pos == 0) {
    const int more = refill(u, err);
    if (more < 0) return more;
    if (!more && !u->within) return 0;
    if (!u->within) u->begun = place(u);
    ZSTD_inBuffer in = { u->block, u->n, u->at };
    const size_t hint = ZSTD_decompressStream(u->zst, &to, &in);
    u->at = in.pos;
    if (ZSTD_isError(hint)) return fail_zstd(u, hint, err);
    if (!more && hint && to.pos == 0) return fail_truncated(u, err);
    u->within = hint != 0;
    u->parts += hint == 0;
  }
  return (int64_t)to.pos;
}

int64_t tc_unpack_read(struct tc_unpack *u, char *out, size_t n, struct tc_err *err)
{
  return u->packing == TC_PACKED_GZIP ? unpack_gzip(u, out, n, err) : unpack_zstd(u, out, n, err);
}
