/* st_files.c - several safetensors files as one. */
#include "io/formats/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "io/folder.h"
#include "io/formats/json_values.h"
#include "src/files/input.h"

enum { MOST_BYTES = 64 << 20, MOST_VALUES = 1 << 20 };   /* of an index */

struct tc_st_files {
  struct tc_st **file; int n_files;   /* owned */
  int *first;                     /* [n_files + 1]: the number of each file's first tensor */
};

static int read_index(json_t **out, const char *path, struct tc_err *err)
{
  json_error_t why;
  char *text;
  size_t n;
  *out = NULL;
  TC_TRY(tc_read_text(&text, &n, path, "index of tensors", MOST_BYTES, err));
  const bool fits = tc_json_values(text, n) <= MOST_VALUES;
  if (fits) *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
  free(text);
  if (!fits) return tc_fail(err, TC_EUSER, "%s: more values than an index of tensors has", path);
  if (!*out) return tc_fail(err, TC_EUSER, "%s:%d: not a JSON object: %s", path, why.line, why.text);
  if (json_object_size(json_object_get(*out, "weight_map")) > 0) return 0;
  json_decref(*out);
  *out = NULL;
  return tc_fail(err, TC_EUSER, "%s: it has no \"weight_map\" of tensors to files", path);
}

/* The files' names, sorted, each once; an owned array of borrowed names. */
static int list_files(const char ***out, json_t *map, const char *path, struct tc_err *err)
{
  const char *key;
  json_t *value;
  int n = 0, kept = 0;
  const char **name = *out = tc_calloc(json_object_size(map) + 1, sizeof *name);
  json_object_foreach(map, key, value) {
    const char *file = json_string_value(value);
    if (!file || !*file || strchr(file, '/') || strlen(file) > 200)
      return tc_fail(err, TC_EUSER, "%s: tensor %.100s is not in a file of that folder", path, key);
    name[n++] = file;
  }
  qsort(name, (size_t)n, sizeof *name, tc_order_text);
  for (int i = 0; i < n; i++)
    if (i == 0 || strcmp(name[i], name[kept - 1]) != 0) name[kept++] = name[i];
  return kept;
}

static int open_file(struct tc_st_files *s, const char *path, struct tc_err *err)
{
  TC_TRY(tc_st_open(&s->file[s->n_files], path, err));
  s->first[s->n_files + 1] = s->first[s->n_files] + tc_st_n(s->file[s->n_files]);
  s->n_files++;
  return 0;
}

/* Both say the same: each of the index's tensors is where it says, and there are no others. */
static int check_map(const struct tc_st_files *s, const char **name, json_t *map, const char *path, struct tc_err *err)
{
  for (int f = 0; f < s->n_files; f++) {
    for (int i = 0; i < tc_st_n(s->file[f]); i++) {
      const char *tensor = tc_st_at(s->file[f], i)->name;
      const char *listed = json_string_value(json_object_get(map, tensor));
      if (!listed || strcmp(listed, name[f]) != 0)
        return tc_fail(err, TC_EUSER, "%s: tensor %.100s is in %s, but according to the index in %s", path, tensor,
                       name[f], listed ? listed : "no file");
    }
  }
  const char *key;
  json_t *value;
  json_object_foreach(map, key, value)
    if (tc_st_files_find(s, key) < 0)
      return tc_fail(err, TC_EUSER, "%s: tensor %.100s is not in %s", path, key, json_string_value(value));
  return 0;
}

static int open_index(struct tc_st_files *s, const char *path, struct tc_err *err)
{
  json_t *index;
  const char **name = NULL;
  TC_TRY(read_index(&index, path, err));
  json_t *map = json_object_get(index, "weight_map");
  int n = list_files(&name, map, path, err), rc = TC_MIN(n, 0);
  char *folder = tc_folder_of(path);
  s->file = tc_calloc((size_t)TC_MAX(n, 0) + 1, sizeof *s->file);
  s->first = tc_calloc((size_t)TC_MAX(n, 0) + 1, sizeof *s->first);
  for (int i = 0; i < n && rc == 0; i++) {
    char *file = tc_sprintf("%s/%s", folder, name[i]);
    rc = open_file(s, file, err);
    free(file);
  }
  if (rc == 0) rc = check_map(s, name, map, path, err);
  TC_FREE(folder, name);
  json_decref(index);
  return rc;
}

int tc_st_files_open(struct tc_st_files **out, const char *path, struct tc_err *err)
{
  struct tc_st_files *s = tc_calloc(1, sizeof *s);
  const size_t n = strlen(path), end = strlen(".json");
  int rc;
  *out = NULL;
  if (n > end && strcmp(path + n - end, ".json") == 0) {
    rc = open_index(s, path, err);
  } else {
    s->file = tc_calloc(1, sizeof *s->file);
    s->first = tc_calloc(2, sizeof *s->first);
    rc = open_file(s, path, err);
  }
  if (rc == 0) *out = s;
  else tc_st_files_close(s);
  return rc;
}

void tc_st_files_close(struct tc_st_files *s)
{
  if (!s) return;
  for (int i = 0; i < s->n_files; i++) tc_st_close(s->file[i]);
  TC_FREE(s->file, s->first, s);
}

int tc_st_files_n(const struct tc_st_files *s) { return s->first[s->n_files]; }

/* The file that has tensor i. */
static int file_of(const struct tc_st_files *s, int i)
{
  int lo = 0, hi = s->n_files;
  TC_ASSERT(i >= 0 && i < tc_st_files_n(s));
  while (hi - lo > 1) {
    const int mid = lo + (hi - lo) / 2;
    if (s->first[mid] <= i) lo = mid;
    else hi = mid;
  }
  return lo;
}

const struct tc_st_tensor *tc_st_files_at(const struct tc_st_files *s, int i)
{
  const int f = file_of(s, i);
  return tc_st_at(s->file[f], i - s->first[f]);
}

int tc_st_files_find(const struct tc_st_files *s, const char *name)
{
  for (int f = 0; f < s->n_files; f++) {
    const int i = tc_st_find(s->file[f], name);
    if (i >= 0) return s->first[f] + i;
  }
  return -1;
}

const char *tc_st_files_note(const struct tc_st_files *s, const char *key)
{
  return s->n_files ? tc_st_note(s->file[0], key) : NULL;
}

int tc_st_files_read(const struct tc_st_files *s, int i, int64_t from, int64_t bytes, void *buf,
                   struct tc_err *err)
{
  const int f = file_of(s, i);
  return tc_st_read(s->file[f], i - s->first[f], from, bytes, buf, err);
}
