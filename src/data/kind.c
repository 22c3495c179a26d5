/* kind.c - whether a file is text, by its first bytes.
 *
 * What is accepted as text is decided by the bytes alone. The table only gives the sentence of what was refused. */
#include "src/data/data.h"
#include "src/token/token.h"

#include <string.h>

#define TOKENS "; tokens in it can be written as uint16 or uint32 alone (docs/data.md), for data.format = uint16 or uint32"
#define UNPACK "; decompress it first"

/* How files of these formats begin, from byte `at` on. */
static const struct { int at, n; const char *begin, *is; } known[] = {
  { 0, 3, "\x1f\x8b\x08", "is compressed by gzip; tercio data makes shards of it" },
  { 0, 4, "\x28\xb5\x2f\xfd", "is compressed by zstd; tercio data makes shards of it" },
  { 0, 6, "\xfd" "7zXZ\0", "is compressed by xz" UNPACK },
  { 0, 10, "BZh91AY&SY", "is compressed by bzip2" UNPACK },
  { 0, 4, "\x04\x22\x4d\x18", "is compressed by lz4" UNPACK },
  { 0, 4, "PAR1", "is a Parquet file; write its column of text as JSONL first (docs/data.md has a recipe)" },
  { 0, 6, "ARROW1", "is an Arrow file; write its column of text as JSONL first (docs/data.md has a recipe)" },
  { 0, 6, "\x93NUMPY", "is NumPy's .npy" TOKENS },
  { 0, 4, "PK\x03\x04", "is a zip archive, as .npz and .pt are" TOKENS },
  { 0, 2, "\x80\x02", "is a Python pickle, as .pt and .pkl are" TOKENS },
  { 0, 2, "\x80\x04", "is a Python pickle, as .pt and .pkl are" TOKENS },
  { 0, 2, "\x80\x05", "is a Python pickle, as .pt and .pkl are" TOKENS },
  { 0, 8, "\x89HDF\r\n\x1a\n", "is an HDF5 file" TOKENS },
  { 0, 4, "\x88\xd8\x34\x01", "is a token shard; a training reads it as it is" },     /* 20240520 */
  { 0, 4, "\xa1\xd9\x34\x01", "is a token shard; a training reads it as it is" },     /* 20240801 */
  { 0, 9, "MMIDIDX\0\0", "is Megatron's index; name the .bin file beside it, which has the tokens" },
  { 7, 3, "\0{\"", "is a safetensors file" TOKENS },
  { 0, 2, "\xff\xfe", "is text in UTF-16 or UTF-32; convert it first: iconv -f UTF-16 -t UTF-8" },
  { 0, 2, "\xfe\xff", "is text in UTF-16; convert it first: iconv -f UTF-16 -t UTF-8" },
};

enum tc_text_kind tc_kind_find(char why[TC_TEXT_KIND_TEXT], const char *first, size_t n)
{
  const char *zero = n ? memchr(first, 0, n) : NULL;
  const size_t valid = tc_utf8_valid(first, n), bad = TC_MIN(valid, zero ? (size_t)(zero - first) : n);
  if (bad == n || (!zero && tc_utf8_cut(first + bad, n - bad))) return TC_TEXT_KIND_UTF8;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const size_t at = (size_t)known[i].at, k = (size_t)known[i].n;
    if (n < at + k || memcmp(first + at, known[i].begin, k) != 0) continue;
    snprintf(why, TC_TEXT_KIND_TEXT, "%s", known[i].is);
    return TC_TEXT_KIND_KNOWN;
  }
  snprintf(why, TC_TEXT_KIND_TEXT, "is not text: byte %zu of it is 0x%02x, %s", bad, (unsigned char)first[bad],
           first[bad] ? "which is not UTF-8" : "which no text has");
  return first[bad] ? TC_TEXT_KIND_NO_UTF8 : TC_TEXT_KIND_ZERO;
}
