/* safetensors.c - reading and writing safetensors files.
 *
 * Opening checks all that a reader relies on, in this order: the header's length against the
 * file and a limit; how many values its JSON has, before the JSON is parsed into memory; types
 * and ranges; then that the tensors, by offset, fill the data without holes or overlap. */
#include "io/formats/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"
#include "io/formats/json_values.h"
#include "src/files/output.h"

#define MOST_ELEMS (INT64_C(1) << 58)
#define NOTES "__metadata__"
enum { LENGTH_BYTES = 8, MOST_VALUES = 1 << 20, MOST_NAME = 1000, ALIGN = 8 };

struct tc_st {
  char *path;                     /* owned */
  int fd;
  int64_t data;                   /* where the data begin in the file */
  struct tc_pool *pool;           /* owns names and notes */
  struct tc_st_tensor *tensor; int n;
  const struct tc_st_tensor **by_name;           /* [n], sorted */
  json_t *notes;                  /* NULL: none */
};

/* Names of types in the file. */
static const struct { const char *name; int dtype, bytes; } types[] = {
  { "F32", TC_F32, 4 }, { "BF16", TC_BF16, 2 }, { "F16", TC_ST_F16, 2 }, { "F64", TC_F64, 8 },
  { "I32", TC_I32, 4 }, { "U8", TC_U8, 1 }, { "BOOL", TC_ST_OTHER, 1 }, { "I8", TC_ST_OTHER, 1 },
  { "I16", TC_ST_OTHER, 2 }, { "U16", TC_ST_OTHER, 2 }, { "U32", TC_ST_OTHER, 4 },
  { "I64", TC_ST_OTHER, 8 }, { "U64", TC_ST_OTHER, 8 }, { "F8_E4M3", TC_ST_OTHER, 1 },
  { "F8_E5M2", TC_ST_OTHER, 1 },
};
enum { N_TYPES = sizeof types / sizeof *types };

static int find_type(const char *name)
{
  for (int i = 0; name && i < N_TYPES; i++)
    if (strcmp(types[i].name, name) == 0) return i;
  return -1;
}

/* ---- reading the header ------------------------------------------------------------ */

/* The header's text and where the data begin. *text is owned by the caller. */
static int read_text(struct tc_st *s, char **text, int64_t *length, int64_t *data_bytes,
                     struct tc_err *err)
{
  struct stat st;
  unsigned char raw[LENGTH_BYTES];
  uint64_t n = 0;
  s->fd = tc_open_stat(s->path, &st);
  if (s->fd < 0) return tc_fail(err, TC_EUSER, "%s: %s", s->path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return tc_fail(err, TC_EUSER, "%s: not a file", s->path);
  if (st.st_size < LENGTH_BYTES + 2)
    return tc_fail(err, TC_EUSER, "%s: not a safetensors file: it has %lld bytes", s->path,
                   (long long)st.st_size);
  if (!tc_pread_all(s->fd, raw, LENGTH_BYTES, 0))
    return tc_fail(err, TC_EUSER, "%s: can't be read: %s", s->path,
                   errno ? strerror(errno) : "the file ends too early");
  for (int i = LENGTH_BYTES - 1; i >= 0; i--) n = n << 8 | raw[i];
  if (n > (uint64_t)st.st_size - LENGTH_BYTES)
    return tc_fail(err, TC_EUSER, "%s: its header is %llu bytes according to the file, which has only "
                   "%lld: truncated, or not a safetensors file", s->path, (unsigned long long)n,
                   (long long)st.st_size);
  if (n > TC_ST_HEADER_BYTES)
    return tc_fail(err, TC_EUSER, "%s: a header of %llu bytes is more than the %d that are read",
                   s->path, (unsigned long long)n, TC_ST_HEADER_BYTES);
  *length = (int64_t)n;
  s->data = LENGTH_BYTES + *length;
  *data_bytes = st.st_size - s->data;
  *text = tc_malloc((size_t)n + 1);
  if (tc_pread_all(s->fd, *text, *length, LENGTH_BYTES)) return 0;
  free(*text);
  *text = NULL;
  return tc_fail(err, TC_EUSER, "%s: its header can't be read: %s", s->path,
                 errno ? strerror(errno) : "the file ends too early");
}

static int read_shape(struct tc_st_tensor *t, const json_t *shape)
{
  if (!json_is_array(shape) || json_array_size(shape) > TC_DIMS) return -1;
  t->rank = (int)json_array_size(shape);
  int64_t elems = 1;
  for (int d = 0; d < t->rank; d++) {
    const json_t *x = json_array_get(shape, (size_t)d);
    if (!json_is_integer(x) || json_integer_value(x) < 0) return -1;
    t->dim[d] = (int64_t)json_integer_value(x);
    if (t->dim[d] > 0 && elems > MOST_ELEMS / t->dim[d]) return -1;
    elems *= t->dim[d];
  }
  return 0;
}

static int read_tensor(struct tc_st *s, const char *name, const json_t *o, int64_t data_bytes,
                       struct tc_err *err)
{
  struct tc_st_tensor *t = &s->tensor[s->n++];
  const char *why = NULL;
  const json_t *place = json_object_get(o, "data_offsets");
  const json_t *b = json_array_get(place, 0), *e = json_array_get(place, 1);
  int type = find_type(json_string_value(json_object_get(o, "dtype")));
  *t = (struct tc_st_tensor){ .name = tc_pool_strdup(s->pool, name) };
  if (!json_is_object(o)) why = "is not an object";
  else if (strlen(name) > MOST_NAME) why = "has too long a name";
  else if (type < 0) why = "has an unknown dtype";
  else if (read_shape(t, json_object_get(o, "shape")) < 0) why = "has an impossible shape";
  else if (json_array_size(place) != 2 || !json_is_integer(b) || !json_is_integer(e))
    why = "does not have two data_offsets";
  if (!why) {
    int64_t begin = (int64_t)json_integer_value(b), end = (int64_t)json_integer_value(e);
    int64_t bytes = types[type].bytes;
    for (int d = 0; d < t->rank; d++) bytes *= t->dim[d];
    if (begin < 0 || begin > end || end > data_bytes) why = "lies outside of the file";
    else if (end - begin != bytes) why = "has another number of bytes than its shape needs";
    t->dtype = types[type].dtype;
    t->offset = begin;
    t->bytes = bytes;
  }
  if (!why) return 0;
  return tc_fail(err, TC_EUSER, "%s: tensor %.100s %s", s->path, name, why);
}

static int cmp_offset(const void *a, const void *b)
{
  const struct tc_st_tensor *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;     /* empty ones first */
  return strcmp(x->name, y->name);
}

/* Checks that the tensors, in order of offset, fill the data. */
static int check_places(struct tc_st *s, int64_t data_bytes, struct tc_err *err)
{
  int64_t at = 0;
  qsort(s->tensor, (size_t)s->n, sizeof *s->tensor, cmp_offset);
  for (int i = 0; i < s->n; i++) {
    if (s->tensor[i].offset != at)
      return tc_fail(err, TC_EUSER, "%s: tensor %.100s begins at byte %lld of the data instead of "
                     "%lld: %s", s->path, s->tensor[i].name,
                     (long long)s->tensor[i].offset, (long long)at,
                     s->tensor[i].offset < at ? "two tensors overlap" : "there is a gap");
    at += s->tensor[i].bytes;
  }
  if (at != data_bytes)
    return tc_fail(err, TC_EUSER, "%s: its tensors have %lld bytes, but %lld follow the header",
                   s->path, (long long)at, (long long)data_bytes);
  return 0;
}

static int cmp_name(const void *a, const void *b)
{
  const struct tc_st_tensor *x = *(const struct tc_st_tensor *const *)a;
  const struct tc_st_tensor *y = *(const struct tc_st_tensor *const *)b;
  return strcmp(x->name, y->name);
}

static int read_header(struct tc_st *s, const json_t *o, int64_t data_bytes, struct tc_err *err)
{
  const char *key;
  json_t *value;
  s->tensor = tc_pool_alloc(s->pool, (json_object_size(o) + 1) * sizeof *s->tensor);
  json_object_foreach((json_t *)(uintptr_t)o, key, value) {
    if (strcmp(key, NOTES) != 0) {
      TC_TRY(read_tensor(s, key, value, data_bytes, err));
    } else {
      if (!json_is_object(value))
        return tc_fail(err, TC_EUSER, "%s: " NOTES " is not an object", s->path);
      s->notes = json_incref(value);
    }
  }
  TC_TRY(check_places(s, data_bytes, err));
  s->by_name = tc_pool_alloc(s->pool, (size_t)(s->n + 1) * sizeof *s->by_name);
  for (int i = 0; i < s->n; i++) s->by_name[i] = &s->tensor[i];
  qsort(s->by_name, (size_t)s->n, sizeof *s->by_name, cmp_name);
  return 0;
}

int tc_st_open(struct tc_st **out, const char *path, struct tc_err *err)
{
  struct tc_st *s = tc_calloc(1, sizeof *s);
  char *text = NULL;
  int64_t length = 0, data_bytes = 0;
  json_error_t why;
  json_t *o = NULL;
  *out = NULL;
  s->path = tc_strdup(path);
  s->pool = tc_pool_new();
  int rc = read_text(s, &text, &length, &data_bytes, err);
  if (rc == 0 && tc_json_values(text, (size_t)length) > MOST_VALUES)
    rc = tc_fail(err, TC_EUSER, "%s: its header has more values than a model's could", path);
  if (rc == 0) {
    o = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(o))
      rc = tc_fail(err, TC_EUSER, "%s: not a safetensors file: its header is not a JSON object%s%s",
                   path, o ? "" : ": ", o ? "" : why.text);
  }
  if (rc == 0) rc = read_header(s, o, data_bytes, err);
  json_decref(o);
  free(text);
  if (rc == 0) *out = s;
  else tc_st_close(s);
  return rc;
}

void tc_st_close(struct tc_st *s)
{
  if (!s) return;
  if (s->fd >= 0) close(s->fd);
  json_decref(s->notes);
  tc_pool_free(s->pool);
  TC_FREE(s->path, s);
}

int tc_st_n(const struct tc_st *s) { return s->n; }

const struct tc_st_tensor *tc_st_at(const struct tc_st *s, int i)
{
  TC_ASSERT(i >= 0 && i < s->n);
  return &s->tensor[i];
}

int tc_st_find(const struct tc_st *s, const char *name)
{
  const struct tc_st_tensor key = { .name = name }, *k = &key;
  const struct tc_st_tensor **at =
    bsearch(&k, s->by_name, (size_t)s->n, sizeof *s->by_name, cmp_name);
  return at ? (int)(*at - s->tensor) : -1;
}

const char *tc_st_note(const struct tc_st *s, const char *key)
{
  return json_string_value(json_object_get(s->notes, key));
}

int tc_st_read(const struct tc_st *s, int i, int64_t from, int64_t bytes, void *buf,
               struct tc_err *err)
{
  const struct tc_st_tensor *t = tc_st_at(s, i);
  TC_ASSERT(from >= 0 && bytes >= 0 && bytes <= t->bytes - from);
  if (tc_pread_all(s->fd, buf, bytes, s->data + t->offset + from)) return 0;
  return tc_fail(err, TC_EUSER, "%s: tensor %.100s can't be read: %s", s->path, t->name,
                 errno ? strerror(errno) : "the file ends too early");
}

/* ---- writing ----------------------------------------------------------------------- */

static const char *type_name(int dtype)
{
  for (int i = 0; i < N_TYPES; i++)
    if (types[i].dtype == dtype) return types[i].name;
  TC_ASSERT(!"a type of tensors");
  return "";
}

/* The header as JSON text, padded with blanks so that the data begin aligned; owned by the
 * caller. NULL: a name occurs twice. *data_bytes: of all tensors. */
static char *header_text(const struct tc_st_tensor *tensor, int n, const char *const *notes,
                         int64_t *data_bytes)
{
  json_t *o = json_object();
  int64_t at = 0;
  if (notes && notes[0]) {
    json_t *m = json_object();
    for (int i = 0; notes[i]; i += 2) json_object_set_new(m, notes[i], json_string(notes[i + 1]));
    json_object_set_new(o, NOTES, m);
  }
  for (int i = 0; i < n; i++) {
    json_t *shape = json_array();
    int64_t bytes = (int64_t)tc_dtype_bytes(tensor[i].dtype);
    for (int d = 0; d < tensor[i].rank; d++) {
      json_array_append_new(shape, json_integer(tensor[i].dim[d]));
      bytes *= tensor[i].dim[d];
    }
    json_object_set_new(o, tensor[i].name, json_pack("{s:s, s:o, s:[I, I]}", "dtype",
      type_name(tensor[i].dtype), "shape", shape, "data_offsets", (json_int_t)at,
      (json_int_t)(at + bytes)));
    at += bytes;
  }
  bool twice = json_object_size(o) != (size_t)n + (notes && notes[0]);
  char *plain = twice ? NULL : json_dumps(o, JSON_COMPACT);
  if (!plain) {
    json_decref(o);
    return NULL;
  }
  int pad = (int)(tc_round_up((int64_t)strlen(plain), ALIGN) - (int64_t)strlen(plain));
  char *text = tc_sprintf("%s%*s", plain, pad, "");
  free(plain);
  json_decref(o);
  *data_bytes = at;
  return text;
}

int tc_st_create(struct tc_output **out, int64_t *end, const char *path, const struct tc_st_tensor *tensor, int n,
                 const char *const *notes, struct tc_err *err)
{
  int64_t data_bytes;
  *out = NULL;
  char *text = header_text(tensor, n, notes, &data_bytes);
  if (!text)
    return tc_fail(err, TC_EUSER, "%s: two tensors have one name, or one has the name " NOTES,
                   path);
  uint64_t length = strlen(text);
  unsigned char raw[LENGTH_BYTES];
  for (int i = 0; i < LENGTH_BYTES; i++) raw[i] = (unsigned char)(length >> (8 * i));
  *end = LENGTH_BYTES + (int64_t)length + data_bytes;
  int rc = tc_output_new(out, path, &(struct tc_output_opts){ 0 }, err);
  if (rc == 0) rc = tc_output_write(*out, raw, LENGTH_BYTES, err);
  if (rc == 0) rc = tc_output_write(*out, text, (int64_t)length, err);
  free(text);
  return rc;
}
