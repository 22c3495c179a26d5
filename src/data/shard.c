/* shard.c - the header of a shard, written and read. */
#include "src/data/shard.h"

#include <string.h>

/* int32 of the header. */
enum { AT_MAGIC, AT_VERSION, AT_TOKENS, AT_MARK, AT_HASH, AT_VOCAB = 6, AT_END, MARK = 0x6b746374 };

/* llm.c's two kinds: how a file begins, and the bytes of a token. */
static const struct { int32_t magic, version; int width; } kinds[] = { { 20240520, 1, 2 }, { 20240801, 7, 4 } };
enum { KINDS = sizeof kinds / sizeof *kinds };

static int find_kind(int32_t magic)
{
  int i = 0;
  while (i < KINDS && kinds[i].magic != magic) i++;
  return i;
}

bool tc_shard_begins(int32_t magic) { return find_kind(magic) < KINDS; }

void tc_shard_pack(const struct tc_shard_header *h, int32_t header[TC_SHARD_INTS])
{
  int i = 0;
  while (kinds[i].width != h->width) i++;
  memset(header, 0, TC_SHARD_BYTES);
  header[AT_MAGIC] = kinds[i].magic;
  header[AT_VERSION] = kinds[i].version;
  header[AT_TOKENS] = (int32_t)h->n_tokens;
  header[AT_MARK] = MARK;
  header[AT_HASH] = (int32_t)(uint32_t)h->hash;
  header[AT_HASH + 1] = (int32_t)(uint32_t)(h->hash >> 32);
  header[AT_VOCAB] = (int32_t)h->vocab;
  header[AT_END] = (int32_t)h->eod;
}

static int fail_kind(const int32_t *header, int kind, const char *name, struct tc_err *err)
{
  if (kind == KINDS)
    return tc_fail(err, TC_EUSER, "data file '%s' is not a token shard: it begins with %d, not "
                   "%d or %d; text needs data.format = text, or `tercio data` first", name, header[AT_MAGIC],
                   kinds[0].magic, kinds[1].magic);
  return tc_fail(err, TC_EUSER, "data file '%s' is a token shard of version %d; of those that begin with %d "
                 "only version %d (uint%d tokens) can be read", name, header[AT_VERSION], header[AT_MAGIC],
                 kinds[kind].version, 8 * kinds[kind].width);
}

int tc_shard_unpack(struct tc_shard_header *h, const int32_t header[TC_SHARD_USED], int64_t size, const char *name,
                    struct tc_err *err)
{
  const int kind = find_kind(header[AT_MAGIC]);
  if (kind == KINDS || header[AT_VERSION] != kinds[kind].version) return fail_kind(header, kind, name, err);
  *h = (struct tc_shard_header){ .width = kinds[kind].width, .n_tokens = header[AT_TOKENS],
                                 .marked = header[AT_MARK] == MARK, .eod = -1 };
  if (h->n_tokens < 0 || h->n_tokens * h->width != size - TC_SHARD_BYTES)
    return tc_fail(err, TC_EUSER, "data file '%s' says it has %lld tokens, but its size holds %.10g: "
                   "truncated or damaged; make or copy it again", name, (long long)h->n_tokens,
                   (double)(size - TC_SHARD_BYTES) / h->width);
  if (h->n_tokens == 0)
    return tc_fail(err, TC_EUSER, "data file '%s' is empty: a token shard of 0 tokens", name);
  if (!h->marked) return TC_OK;
  h->hash = (uint32_t)header[AT_HASH] | (uint64_t)(uint32_t)header[AT_HASH + 1] << 32;
  h->vocab = header[AT_VOCAB];
  h->eod = header[AT_END];
  return TC_OK;
}
