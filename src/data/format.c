/* format.c - what kind of token file a file is, by its first bytes, its size and its name.
 *
 *   bin       llm.c's shards (shard.h)
 *   megatron  NAME.bin, tokens alone, and NAME.idx: "MMIDIDX\0\0", uint64 1, a byte for the type of a token,
 *             uint64 numbers of sequences and of documents, int32 lengths, int64 offsets of the sequences in
 *             NAME.bin, int64 documents
 *   uint16, uint32   tokens alone; nothing tells them from other files, so data.format has to
 *   text      a byte is a token. Without data.format = text the first bytes must be text: nothing is taken for text
 *             because it is nothing else
 *
 * Numbers in files are little-endian, as on every machine that this runs on. */
#include "src/data/impl.h"
#include "src/data/shard.h"
#include "src/files/names.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_BYTES = 34 };

/* ---- llm.c ------------------------------------------------------------------------------------ */

/* Whether the file begins as a shard does; 0, 1 or TC_EUSER. */
static int is_llmc(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err)
{
  int32_t magic = 0;
  if (f->was.st_size < (int64_t)sizeof magic) return 0;
  TC_TRY(tc_file_read(r, f, &magic, sizeof magic, 0, err));
  return tc_shard_begins(magic);
}

static int read_llmc(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err)
{
  int32_t header[TC_SHARD_USED];
  struct tc_shard_header h;
  const int64_t size = f->was.st_size;
  if (size < TC_SHARD_BYTES)
    return tc_fail(err, TC_EUSER, "data file '%s' is too short for a token shard: %lld bytes, its "
                   "header alone has %d; text needs data.format = text", f->name, (long long)size,
                   TC_SHARD_BYTES);
  TC_TRY(tc_file_read(r, f, header, sizeof header, 0, err));
  TC_TRY(tc_shard_unpack(&h, header, size, f->name, err));
  f->width = h.width;
  f->header = TC_SHARD_BYTES;
  f->tokens = h.n_tokens;
  f->marked = f->known = h.marked;
  f->tokenizer = h.hash;
  f->vocab = h.vocab;
  f->end_token = h.eod;
  return TC_OK;
}

/* ---- Megatron --------------------------------------------------------------------------------- */

/* NAME.idx of NAME.bin; NULL if the name has another ending. Owned. */
static char *index_name(const char *name)
{
  return tc_ends_with(name, ".bin") ? tc_sprintf("%.*sidx", (int)strlen(name) - 3, name) : NULL;
}

static int is_megatron(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err)
{
  char *idx = index_name(f->name);
  (void)r;
  if (!idx) return 0;
  int rc = tc_is_there(idx);
  if (rc < 0)
    rc = tc_fail(err, TC_EUSER, "data file '%s': whether there is '%s' beside it can't be seen: %s", f->name, idx,
                 strerror(-rc));
  free(idx);
  return rc;
}

/* Megatron's codes of types, and the bytes of those that can be read; 0: those that can not. */
static const struct { const char *name; int width; } types[] = {
  { "none", 0 }, { "uint8", 1 }, { "int8", 0 }, { "int16", 0 }, { "int32", 4 }, { "int64", 0 }, { "float64", 0 },
  { "float32", 0 }, { "uint16", 2 } };
enum { TYPES = sizeof types / sizeof *types };

/* Checks the index and finds the number of tokens: where the last sequence ends. */
static int read_index(struct tc_reader *r, struct tc_data_file *idx, struct tc_data_file *f, struct tc_err *err)
{
  uint8_t head[INDEX_BYTES];
  uint64_t version, sequences, documents;
  int64_t offset = 0;
  int32_t length = 0;
  TC_TRY(tc_file_open(r, idx, err));
  const int64_t size = idx->was.st_size;
  if (size < INDEX_BYTES)
    return tc_fail(err, TC_EUSER, "data file '%s' is too short for Megatron's index: %lld bytes", idx->name,
                   (long long)size);
  TC_TRY(tc_file_read(r, idx, head, sizeof head, 0, err));
  memcpy(&version, head + 9, 8);
  memcpy(&sequences, head + 18, 8);
  memcpy(&documents, head + 26, 8);
  if (memcmp(head, "MMIDIDX\0\0", 9) != 0 || version != 1)
    return tc_fail(err, TC_EUSER, "data file '%s' is not Megatron's index of version 1, as '%s' beside it needs; "
                   "name the format by data.format if the two have nothing to do with each other", idx->name, f->name);
  f->width = head[17] < TYPES ? types[head[17]].width : 0;
  if (!f->width)
    return tc_fail(err, TC_EUSER, "data file '%s' has tokens of type %d (%s); uint8, uint16 and int32 can be read",
                   f->name, head[17], head[17] < TYPES ? types[head[17]].name : "unknown");
  const uint64_t rest = (uint64_t)(size - INDEX_BYTES);
  if (sequences > rest / 12 || documents != (rest - sequences * 12) / 8 || (rest - sequences * 12) % 8)
    return tc_fail(err, TC_EUSER, "data file '%s' says it has %llu sequences and %llu documents, which its size does "
                   "not fit: truncated or damaged; make or copy it again", idx->name, (unsigned long long)sequences,
                   (unsigned long long)documents);
  if (sequences) {
    const int64_t last = (int64_t)sequences - 1;
    TC_TRY(tc_file_read(r, idx, &length, sizeof length, INDEX_BYTES + last * 4, err));
    TC_TRY(tc_file_read(r, idx, &offset, sizeof offset, INDEX_BYTES + (last + 1) * 4 + last * 8, err));
  }
  if (offset < 0 || length < 0 || f->was.st_size % f->width ||
      offset != f->was.st_size - (int64_t)length * f->width)
    return tc_fail(err, TC_EUSER, "data file '%s' says it has %.10g tokens, but its size holds %.10g: truncated or "
                   "damaged; make or copy it again", f->name, (double)offset / f->width + length,
                   (double)f->was.st_size / f->width);
  f->tokens = f->was.st_size / f->width;
  f->documents = (int64_t)documents - 1;     /* the index lists where each begins, and the end */
  return TC_OK;
}

static int read_megatron(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err)
{
  struct tc_data_file idx = { .name = index_name(f->name) };
  if (!idx.name)
    return tc_fail(err, TC_EUSER, "data file '%s': Megatron's files are NAME.bin, with NAME.idx beside it", f->name);
  const int rc = read_index(r, &idx, f, err);
  tc_files_close(r->files);                  /* which must not keep the index: idx ends here */
  free(idx.name);
  return rc;
}

/* ---- tokens alone ----------------------------------------------------------------------------- */

static int read_raw(struct tc_data_file *f, int width, struct tc_err *err)
{
  f->width = width;
  if (f->was.st_size % width)
    return tc_fail(err, TC_EUSER, "data file '%s' has %lld bytes, which are no whole number of uint%d tokens",
                   f->name, (long long)f->was.st_size, 8 * width);
  f->tokens = f->was.st_size / width;
  return TC_OK;
}

/* A name that is another format's, although the file may look like text: a token file of a few bytes, or JSON. */
static bool has_other_name(const char *name)
{
  static const char *const other[] = { ".bin", ".npy", ".gz", ".zst", ".jsonl", ".ndjson", ".parquet", ".arrow" };
  for (size_t i = 0; i < sizeof other / sizeof *other; i++)
    if (tc_ends_with(name, other[i])) return true;
  return false;
}

static int fail_unknown(const struct tc_data_file *f, const char *why, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "data file '%s' has no header that is known%s%s. data.format = uint16 or uint32 reads "
                 "tokens without one, text the bytes as they are; `tercio data` makes shards of text, JSONL, .gz and .zst",
                 f->name, *why ? ", and " : "", why);
}

static int is_text(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err)
{
  char first[TC_TEXT_KIND_BYTES], why[TC_TEXT_KIND_TEXT] = "";
  const int64_t n = TC_MIN(f->was.st_size, TC_TEXT_KIND_BYTES);
  if (tc_ends_with(f->name, ".idx"))
    return tc_fail(err, TC_EUSER, "data file '%s' is Megatron's index by its name: name the .bin file beside it, which "
                   "has the tokens", f->name);
  TC_TRY(tc_file_read(r, f, first, n, 0, err));
  const enum tc_text_kind kind = tc_kind_find(why, first, (size_t)n);
  if (kind == TC_TEXT_KIND_KNOWN) return tc_fail(err, TC_EUSER, "data file '%s' %s", f->name, why);
  return kind == TC_TEXT_KIND_UTF8 && !has_other_name(f->name) ? 1 : fail_unknown(f, why, err);
}

/* In the order in which AUTO tries them. is: 1, 0 or TC_EUSER; NULL: never by itself. read NULL: tokens of `width` bytes
 * alone. */
static const struct {
  enum tc_data_format format;
  int (*is)(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err);
  int (*read)(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err);
  int width;
} formats[] = {
  { TC_FORMAT_BIN, is_llmc, read_llmc, 0 },
  { TC_FORMAT_MEGATRON, is_megatron, read_megatron, 0 },
  { TC_FORMAT_UINT16, NULL, NULL, 2 },
  { TC_FORMAT_UINT32, NULL, NULL, 4 },
  { TC_FORMAT_TEXT, is_text, NULL, 1 },
};

int tc_format_find(struct tc_reader *r, struct tc_data_file *f, enum tc_data_format format, struct tc_err *err)
{
  TC_TRY(tc_file_open(r, f, err));
  f->documents = f->end_token = -1;
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    int is = formats[i].format == format;
    if (format == TC_FORMAT_AUTO && formats[i].is) is = formats[i].is(r, f, err);
    if (is < 0) return is;
    f->format = formats[i].format;
    f->known = f->format == TC_FORMAT_TEXT;
    if (is) return formats[i].read ? formats[i].read(r, f, err) : read_raw(f, formats[i].width, err);
  }
  TC_ASSERT(!"a format without a row");
  return TC_EUSER;
}
