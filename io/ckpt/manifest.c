/* manifest.c - a manifest's text, written and read.
 *
 * - What is read is checked in this order: size, checksum, number of values, JSON, types and
 *   ranges, then tc_manifest_check, which the writer runs before committing as well. Nothing else
 *   in io checks sizes again.
 * - Names in a manifest never leave its folder: no '/', no leading '.'.
 * - 64-bit unsigned numbers that JSON readers would round (the seed) are strings. */
#include "io/ckpt/manifest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/ckpt/blocks.h"
#include "io/crc.h"
#include "io/folder.h"
#include "io/formats/json_values.h"

#define MOST_TEXT (INT64_C(1) << 30)            /* bytes of a manifest */
#define TAIL_FMT ",\n\"crc32c\": \"%08x\"\n}\n"
enum { TAIL_BYTES = 25, MOST_STRING = 1 << 20 };
/* Names, checksums and keys take most of a manifest: bytes for each value but the first few. */
enum { LEAST_PER_VALUE = 8, FREE_VALUES = 1000 };

/* ---- writing ---------------------------------------------------------------------- */

json_t *tc_ints_json(const int64_t *x, int n)
{
  json_t *a = json_array();
  for (int i = 0; i < n; i++) json_array_append_new(a, json_integer(x[i]));
  return a;
}

static json_t *crc_json(uint32_t crc)
{
  char text[16];
  snprintf(text, sizeof text, "%08x", crc);
  return json_string(text);
}

static void emit(FILE *f, const char *before, json_t *value)
{
  TC_ASSERT(value != NULL);
  fputs(before, f);
  int rc = json_dumpf(value, f, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
  TC_ASSERT(rc == 0);
  json_decref(value);
}

const struct tc_meta_row tc_meta_rows[TC_META_ROWS] = {
#define TC_META(name, kind, least, most, missing, shown, meaning) \
  { #name, TC_KIND_##kind, least, most, TC_MISSING_##missing, shown, offsetof(struct tc_ckpt_meta, name) },
#include "io/ckpt/meta.def"
#undef TC_META
};

json_t *tc_meta_json(const struct tc_ckpt_meta *m, const struct tc_meta_row *row)
{
  const char *at = (const char *)m + row->field, *text;
  char seed[32];
  switch (row->kind) {
  case TC_KIND_COUNT: return json_integer(*(const int64_t *)(const void *)at);
  case TC_KIND_INT: return json_integer(*(const int *)(const void *)at);
  case TC_KIND_SEED:
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)*(const uint64_t *)(const void *)at);
    return json_string(seed);
  case TC_KIND_TEXT: case TC_KIND_WORD: break;
  }
  text = *(const char *const *)(const void *)at;
  if (row->missing != TC_MISSING_FAULT && !text) return NULL;
  return row->missing == TC_MISSING_NOTHING && !*text ? NULL : tc_text_json(text);
}

static void emit_rows(FILE *f, const struct tc_manifest *m, int first, int end)
{
  for (int i = first; i < end; i++) {
    char before[40];
    json_t *value = tc_meta_json(&m->meta, &tc_meta_rows[i]);
    snprintf(before, sizeof before, ",\n\"%s\": ", tc_meta_rows[i].name);
    if (value) emit(f, before, value);
  }
}

/* A member for each attached file: older programs read the first one alone. */
static const char *const attached_keys[TC_ATTACHED] = { "attached", "attached2" };

static void emit_meta(FILE *f, const struct tc_manifest *m)
{
  json_t *ranks = json_array();
  for (int i = 0; i < m->world; i++) json_array_append_new(ranks, tc_text_json(m->meta.rank_names[i]));
  emit(f, "{\n\"format\": ", json_integer(TC_CKPT_FORMAT));
  emit(f, ",\n\"block_bytes\": ", json_integer(m->block_bytes));
  emit_rows(f, m, 0, TC_ROW_version);
  emit(f, ",\n\"who\": ", ranks);
  emit_rows(f, m, TC_ROW_version, TC_META_ROWS);
  for (int i = 0; i < TC_ATTACHED; i++) {
    const struct tc_ckpt_attached *a = &m->meta.attached[i];
    if (!a->name) continue;
    fprintf(f, ",\n\"%s\": ", attached_keys[i]);
    emit(f, "", json_pack("{s:s, s:I, s:o}", "name", a->name, "size", (json_int_t)a->bytes, "crc32c", crc_json(a->crc32c)));
  }
}

/* Eight digits per block, one after another. */
static json_t *blocks_json(const uint32_t *crc, int64_t n)
{
  char *text = tc_malloc((size_t)n * 8 + 1);
  for (int64_t i = 0; i < n; i++) snprintf(text + 8 * i, 9, "%08x", crc[i]);
  json_t *j = json_stringn(text, (size_t)n * 8);
  free(text);
  return j;
}

static json_t *piece_json(const struct tc_manifest *m, const struct tc_piece *p)
{
  int rank = m->tensor[p->tensor].rank;
  return json_pack("{s:s, s:s, s:o, s:o, s:I, s:I, s:o}", "file", m->file[p->file].name,
                   "dataset", p->dataset, "start", tc_ints_json(p->start, rank), "count",
                   tc_ints_json(p->count, rank), "offset", (json_int_t)p->offset, "bytes",
                   (json_int_t)p->bytes, "crc32c",
                   blocks_json(p->crc32c, tc_blocks(p->bytes, m->block_bytes)));
}

char *tc_manifest_seal(const char *json, size_t bytes, size_t *sealed_bytes)
{
  while (bytes > 0 && json[bytes - 1] != '}') bytes--;
  TC_ASSERT(bytes > 0);
  bytes--;
  while (bytes > 0 && json[bytes - 1] == '\n') bytes--;
  char *out = tc_malloc(bytes + TAIL_BYTES + 1);
  memcpy(out, json, bytes);
  int n = snprintf(out + bytes, TAIL_BYTES + 1, TAIL_FMT, tc_crc32c(0, json, bytes));
  TC_ASSERT(n == TAIL_BYTES);
  *sealed_bytes = bytes + TAIL_BYTES;
  return out;
}

char *tc_manifest_text(const struct tc_manifest *m, size_t *bytes)
{
  char *text = NULL;
  size_t n = 0;
  FILE *f = open_memstream(&text, &n);
  TC_ASSERT(f != NULL);
  emit_meta(f, m);
  fputs(",\n\"files\": [", f);
  for (int i = 0; i < m->n_files; i++) {
    const struct tc_ckpt_file *s = &m->file[i];
    emit(f, i ? ",\n  " : "\n  ", json_pack("{s:s, s:i, s:I, s:o}", "name", s->name, "writer",
         (int)s->writer, "size", (json_int_t)s->size, "meta_crc32c", crc_json(s->meta_crc32c)));
  }
  fputs("],\n\"tensors\": [", f);
  for (int i = 0; i < m->n_tensors; i++) {
    const struct tc_ckpt_tensor *t = &m->tensor[i];
    emit(f, i ? ",\n  {\"name\": " : "\n  {\"name\": ", json_string(t->name));
    emit(f, ", \"dtype\": ", json_string(tc_dtype_name(t->dtype)));
    emit(f, ", \"shape\": ", tc_ints_json(t->dim, t->rank));
    fputs(", \"pieces\": [", f);
    for (int k = m->first_piece[i]; k < m->first_piece[i + 1]; k++)
      emit(f, k > m->first_piece[i] ? ",\n    " : "\n    ", piece_json(m, &m->piece[k]));
    fputs("]}", f);
  }
  fputs("]\n}\n", f);
  int rc = fclose(f);
  TC_ASSERT(rc == 0);
  char *sealed = tc_manifest_seal(text, n, bytes);
  free(text);
  return sealed;
}

/* ---- reading ---------------------------------------------------------------------- */

/* A reader of JSON members that remembers the first fault. */
struct reader {
  struct tc_pool *pool;
  const char *bad;                /* the member that is missing or of a wrong type */
};

static const char *get_str(struct reader *r, const json_t *o, const char *key, size_t most)
{
  const json_t *j = json_object_get(o, key);
  const char *s = json_string_value(j);
  if (!s || json_string_length(j) > most || strlen(s) != json_string_length(j)) {
    if (!r->bad) r->bad = key;
    return "";
  }
  return tc_pool_strdup(r->pool, s);
}

static int64_t get_int(struct reader *r, const json_t *o, const char *key, int64_t lo,
                       int64_t hi)
{
  const json_t *j = json_object_get(o, key);
  int64_t x = json_is_integer(j) ? (int64_t)json_integer_value(j) : lo - 1;
  if (!json_is_integer(j) || x < lo || x > hi) {
    if (!r->bad) r->bad = key;
    return lo;
  }
  return x;
}

static uint64_t get_number(struct reader *r, const json_t *o, const char *key, int base,
                           uint64_t hi)
{
  const char *s = json_string_value(json_object_get(o, key));
  char *end = NULL;
  errno = 0;
  bool digit = s && (base == 16 ? strspn(s, "0123456789abcdef") : strspn(s, "0123456789")) > 0;
  uint64_t x = digit ? strtoull(s, &end, base) : 0;
  if (!digit || *end || errno || x > hi) {
    if (!r->bad) r->bad = key;
    return 0;
  }
  return x;
}

/* n checksums of eight digits each. */
static const uint32_t *get_blocks(struct reader *r, const json_t *o, const char *key, int64_t n)
{
  const char *s = json_string_value(json_object_get(o, key));
  size_t len = s ? strlen(s) : 0;
  if (n < 1 || len % 8 || len / 8 != (uint64_t)n || strspn(s, "0123456789abcdef") != len) {
    if (!r->bad) r->bad = key;
    return NULL;
  }
  uint32_t *crc = tc_pool_alloc(r->pool, (size_t)n * sizeof *crc);
  for (int64_t i = 0; i < n; i++) {
    char digits[9];
    memcpy(digits, s + 8 * i, 8);
    digits[8] = '\0';
    crc[i] = (uint32_t)strtoul(digits, NULL, 16);
  }
  return crc;
}

static const json_t *get_array(struct reader *r, const json_t *o, const char *key, size_t most)
{
  const json_t *a = json_object_get(o, key);
  if (json_is_array(a) && json_array_size(a) <= most) return a;
  if (!r->bad) r->bad = key;
  return NULL;                    /* json_array_size(NULL) is 0 */
}

/* Up to TC_DIMS integers; -1 after a fault. */
static int get_ints(struct reader *r, const json_t *o, const char *key, int64_t *x)
{
  const json_t *a = get_array(r, o, key, TC_DIMS);
  if (!a) return -1;
  int n = (int)json_array_size(a);
  for (int i = 0; i < n; i++) {
    const json_t *j = json_array_get(a, (size_t)i);
    if (!json_is_integer(j) && !r->bad) r->bad = key;
    x[i] = (int64_t)json_integer_value(j);
  }
  return n;
}

/* Programs from before attached files pass over these members. */
static void read_attached(struct reader *r, const json_t *o, const char *key, struct tc_ckpt_attached *a)
{
  const json_t *j = json_object_get(o, key);
  if (!j) return;
  a->name = get_str(r, j, "name", TC_MOST_NAME);
  a->bytes = get_int(r, j, "size", 0, TC_MOST_ATTACHED);
  a->crc32c = (uint32_t)get_number(r, j, "crc32c", 16, UINT32_MAX);
}

static void read_row(struct reader *r, const json_t *o, const struct tc_meta_row *row, struct tc_ckpt_meta *m)
{
  void *at = (char *)m + row->field;
  switch (row->kind) {
  case TC_KIND_COUNT: *(int64_t *)at = get_int(r, o, row->name, row->least, row->most); break;
  case TC_KIND_INT: *(int *)at = (int)get_int(r, o, row->name, row->least, row->most); break;
  case TC_KIND_SEED: *(uint64_t *)at = get_number(r, o, row->name, 10, UINT64_MAX); break;
  case TC_KIND_TEXT: case TC_KIND_WORD:
    *(const char **)at = row->missing != TC_MISSING_FAULT && !json_object_get(o, row->name)
      ? "" : get_str(r, o, row->name, (size_t)row->most);
  }
}

static void read_meta(struct reader *r, const json_t *o, struct tc_manifest *m)
{
  for (int i = 0; i < TC_META_ROWS; i++) read_row(r, o, &tc_meta_rows[i], &m->meta);
  for (int i = 0; i < TC_ATTACHED; i++) read_attached(r, o, attached_keys[i], &m->meta.attached[i]);
  const json_t *ranks = get_array(r, o, "who", INT32_MAX);
  m->world = (int)json_array_size(ranks);
  const char **names = tc_pool_alloc(m->pool, (size_t)(m->world + 1) * sizeof *names);
  for (int i = 0; i < m->world; i++) {
    const char *s = json_string_value(json_array_get(ranks, (size_t)i));
    if (!s && !r->bad) r->bad = "who";
    names[i] = tc_pool_strdup(m->pool, s ? s : "");
  }
  m->meta.rank_names = names;
}

static void read_files(struct reader *r, const json_t *o, struct tc_manifest *m)
{
  const json_t *a = get_array(r, o, "files", INT32_MAX / 2);
  m->n_files = (int)json_array_size(a);
  m->file = tc_pool_alloc(m->pool, (size_t)(m->n_files + 1) * sizeof *m->file);
  for (int i = 0; i < m->n_files; i++) {
    const json_t *j = json_array_get(a, (size_t)i);
    struct tc_ckpt_file *f = &m->file[i];
    f->name = get_str(r, j, "name", TC_MOST_NAME);
    f->writer = (int32_t)get_int(r, j, "writer", 0, INT32_MAX);
    f->size = get_int(r, j, "size", 0, TC_MOST_BYTES);
    f->meta_crc32c = (uint32_t)get_number(r, j, "meta_crc32c", 16, UINT32_MAX);
  }
}

/* File names in order, for looking up a piece's. */
struct by_name { const char *name; int32_t file; };

static int cmp_name(const void *a, const void *b)
{
  return strcmp(((const struct by_name *)a)->name, ((const struct by_name *)b)->name);
}

static struct by_name *sort_files(const struct tc_manifest *m)
{
  struct by_name *by = tc_malloc((size_t)(m->n_files + 1) * sizeof *by);
  for (int i = 0; i < m->n_files; i++)
    by[i] = (struct by_name){ .name = m->file[i].name, .file = i };
  qsort(by, (size_t)m->n_files, sizeof *by, cmp_name);
  return by;
}

static void read_piece(struct reader *r, const json_t *j, const struct tc_manifest *m,
                       const struct by_name *by, struct tc_piece *p)
{
  const char *name = json_string_value(json_object_get(j, "file"));
  const struct by_name *f = !name ? NULL :
    bsearch(&(struct by_name){ .name = name }, by, (size_t)m->n_files, sizeof *by, cmp_name);
  int rank = m->tensor[p->tensor].rank;
  p->file = f ? f->file : -1;
  if (!f && !r->bad) r->bad = "file";
  p->dataset = get_str(r, j, "dataset", TC_MOST_NAME);
  if ((get_ints(r, j, "start", p->start) != rank || get_ints(r, j, "count", p->count) != rank) &&
      !r->bad)
    r->bad = "start, count";
  p->offset = get_int(r, j, "offset", 0, TC_MOST_BYTES);
  p->bytes = get_int(r, j, "bytes", 1, TC_MOST_BYTES);
  p->crc32c = get_blocks(r, j, "crc32c", tc_blocks(p->bytes, m->block_bytes));
}

static void read_tensors(struct reader *r, const json_t *o, struct tc_manifest *m)
{
  const json_t *a = get_array(r, o, "tensors", INT32_MAX / 2);
  size_t pieces = 0;
  m->n_tensors = (int)json_array_size(a);
  m->tensor = tc_pool_alloc(m->pool, (size_t)(m->n_tensors + 1) * sizeof *m->tensor);
  for (int i = 0; i < m->n_tensors; i++) {
    const json_t *j = json_array_get(a, (size_t)i);
    struct tc_ckpt_tensor *t = &m->tensor[i];
    t->name = get_str(r, j, "name", TC_MOST_NAME);
    t->dtype = tc_dtype_parse(get_str(r, j, "dtype", 20));
    t->rank = get_ints(r, j, "shape", t->dim);
    pieces += json_array_size(get_array(r, j, "pieces", INT32_MAX / 2));
  }
  if (pieces > INT32_MAX / 2 && !r->bad) r->bad = "pieces";
  if (r->bad) return;
  m->piece = tc_pool_alloc(m->pool, (pieces + 1) * sizeof *m->piece);
  struct by_name *by = sort_files(m);
  for (int i = 0; i < m->n_tensors; i++) {
    const json_t *list = json_object_get(json_array_get(a, (size_t)i), "pieces");
    for (size_t k = 0; k < json_array_size(list); k++) {
      struct tc_piece *p = &m->piece[m->n_pieces++];
      p->tensor = i;
      read_piece(r, json_array_get(list, k), m, by, p);
    }
  }
  free(by);
}

static int parse(struct tc_manifest *m, const char *text, size_t bytes, const char *path,
                 struct tc_err *err)
{
  char tail[TAIL_BYTES + 1];
  size_t body = bytes < TAIL_BYTES ? 0 : bytes - TAIL_BYTES;
  snprintf(tail, sizeof tail, TAIL_FMT, tc_crc32c(0, text, body));
  if (bytes < TAIL_BYTES || memcmp(text + body, tail, TAIL_BYTES) != 0)
    return tc_fail(err, TC_ECHECKSUM, "%s: wrong checksum: the manifest is damaged, cut off or "
                   "was edited", path);
  if (tc_json_values(text, bytes) > (int64_t)bytes / LEAST_PER_VALUE + FREE_VALUES)
    return tc_fail(err, TC_ECHECKSUM, "%s: it has more values than a manifest of its size could", path);
  json_error_t why;
  json_t *o = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
  if (!o)
    return tc_fail(err, TC_ECHECKSUM, "%s:%d: not JSON: %s", path, why.line, why.text);
  struct reader r = { .pool = m->pool };
  int64_t format = get_int(&r, o, "format", 1, INT64_MAX);
  int rc = 0;
  if (!r.bad && format > TC_CKPT_FORMAT) {
    rc = tc_fail(err, TC_EUSER, "%s: format %lld is newer than this program's %d: use a newer "
                 "tercio", path, (long long)format, TC_CKPT_FORMAT);
  } else {
    /* Format 1 had one checksum per piece, of whatever size: one block. */
    m->block_bytes = format == 1 ? TC_MOST_BYTES
                                 : get_int(&r, o, "block_bytes", TC_BLOCK_ALIGN, 1 << 30);
    if (m->block_bytes % TC_BLOCK_ALIGN && !r.bad) r.bad = "block_bytes";
    read_meta(&r, o, m);
    read_files(&r, o, m);
    read_tensors(&r, o, m);
    if (r.bad)
      rc = tc_fail(err, TC_ECHECKSUM, "%s: not a manifest: \"%s\" is missing or makes no sense",
                   path, r.bad);
  }
  json_decref(o);
  if (rc < 0 || tc_manifest_check(m, path, err) == 0) return rc;
  if (err) err->status = TC_ECHECKSUM;           /* what makes no sense is damaged, whatever its checksum */
  return TC_ECHECKSUM;
}

static int read_text(char **text, size_t *bytes, const char *path, struct tc_err *err)
{
  struct stat st;
  int fd = tc_open_stat(path, &st);
  if (fd < 0)
    return errno == ENOENT
      ? tc_fail(err, TC_EINCOMPLETE, "%s: is not there: the checkpoint is incomplete", path)
      : tc_fail(err, TC_EUSER, "%s: can't be read: %s", path, strerror(errno));
  int rc = 0;
  if (!S_ISREG(st.st_mode)) rc = tc_fail(err, TC_ECHECKSUM, "%s: not a file", path);
  else if (st.st_size == 0)
    rc = tc_fail(err, TC_EINCOMPLETE, "%s: is empty: the checkpoint is incomplete", path);
  else if (st.st_size > MOST_TEXT)
    rc = tc_fail(err, TC_ECHECKSUM, "%s: too large to be a manifest", path);
  if (rc == 0) {
    *bytes = (size_t)st.st_size;
    *text = tc_malloc(*bytes);
    if (!tc_pread_all(fd, *text, (int64_t)*bytes, 0)) {
      const int why = errno;
      rc = tc_fail(err, why ? TC_EUSER : TC_EINCOMPLETE, "%s: can't be read: %s", path,
                   why ? strerror(why) : "the file ends too early");
      free(*text);
    }
  }
  close(fd);
  return rc;
}

int tc_manifest_read(struct tc_manifest **out, const char *path, struct tc_err *err)
{
  char *text = NULL;
  size_t bytes = 0;
  *out = NULL;
  TC_TRY(read_text(&text, &bytes, path, err));
  struct tc_manifest *m = tc_calloc(1, sizeof *m);
  m->pool = tc_pool_new();
  int rc = parse(m, text, bytes, path, err);
  free(text);
  if (rc < 0) {
    tc_manifest_free(m);
    return rc;
  }
  *out = m;
  return 0;
}

void tc_manifest_free(struct tc_manifest *m)
{
  if (m) tc_pool_free(m->pool);
  free(m);
}
