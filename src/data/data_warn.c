/* data_warn.c - data that can be trained on but may be a mistake: shards that are not finished, files that are read twice, and
 * bytes where the model has a larger vocabulary. And what packing has found.
 *
 * Files are compared by what their opening noted of them, and of a folder only data.json is read, so that it takes no
 * longer for large files. */
#include "src/data/impl.h"
#include "src/data/shard.h"
#include "src/files/files.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NOTE_BYTES = 64 << 20 };

/* A file with the option that names it (0 data.train, 1 data.val), and its place in the order of all. */
struct use { const struct tc_data_file *file; const struct tc_source *source; int set, at; };

static const char *const option[] = { "data.train", "data.val" };

/* All files of both, in their order; returns their number. *out is owned by the caller. */
static int list_uses(struct use **out, const struct tc_data *train, const struct tc_data *val)
{
  const struct tc_data *const set[] = { train, val };
  int n = 0, cap = 0;
  *out = NULL;
  for (int i = 0; i < 2 && set[i]; i++)
    for (int s = 0; s < set[i]->n; s++)
      for (int k = 0; k < set[i]->source[s].n_files; k++) {
        TC_GROW(*out, n, cap);
        (*out)[n] = (struct use){ &set[i]->source[s].file[k], &set[i]->source[s], i, n };
        n++;
      }
  return n;
}

/* ---- shards that are not finished ---------------------------------------------------------------- */

/* Warns if the data.json of a folder says that `tercio data` has not made all of its shards. */
static void check_folder(const char *folder)
{
  char *path = tc_sprintf("%s/" TC_SHARDS_NOTE, folder), text[300] = "";
  json_t *j = NULL;
  struct tc_err unread;                          /* then nothing is known of it */
  tc_read_json(&j, path, TC_SHARDS_NOTE, MOST_NOTE_BYTES, 0, NULL, &unread);
  const json_t *inputs = json_object_get(json_object_get(j, "command"), "inputs");
  for (size_t i = 0; i < json_array_size(inputs) && i < 3; i++) {
    const char *name = json_string_value(json_object_get(json_array_get(inputs, i), "path"));
    tc_text_add(text, sizeof text, " %.80s", name ? name : "");
  }
  if (json_array_size(inputs) > 3) tc_text_add(text, sizeof text, " ...");
  if (json_is_false(json_object_get(j, "complete")))
    tc_warn("data folder '%s' has only a part of its shards, as its data.json says: the same command again (tercio "
            "data%s -o %s, with the options that it began with) makes the others", folder, text, folder);
  json_decref(j);
  free(path);
}

static void check_folders(const struct use *use, int n)
{
  char **seen = NULL;
  int n_seen = 0, cap = 0;
  for (int i = 0; i < n; i++) {
    if (!use[i].file->marked) continue;          /* no shard of tercio data */
    char *folder = tc_folder_of(use[i].file->name);
    int k = n_seen - 1;                          /* most often that of the file before */
    while (k >= 0 && strcmp(seen[k], folder) != 0) k--;
    if (k >= 0) {
      free(folder);
      continue;
    }
    check_folder(folder);
    TC_APPEND(seen, n_seen, cap, folder);
  }
  tc_names_free(seen, n_seen);
}

/* ---- files that are read twice -------------------------------------------------------------------- */

/* By device and inode, uses of one file in their order. */
static int by_file(const void *x, const void *y)
{
  const struct use *a = x, *b = y;
  const struct stat *s = &a->file->was, *t = &b->file->was;
  if (s->st_dev != t->st_dev) return s->st_dev < t->st_dev ? -1 : 1;
  if (s->st_ino != t->st_ino) return s->st_ino < t->st_ino ? -1 : 1;
  return a->at - b->at;
}

static void warn_twice(const struct use *a, const struct use *b, int n)
{
  char more[40] = "";
  if (n > 1) snprintf(more, sizeof more, " (and %d more so)", n - 1);
  tc_warn("data file '%s' (%s = %s) is also '%s' (%s = %s)%s: %s", a->file->name, option[a->set], a->source->name,
          b->file->name, option[b->set], b->source->name, more,
          a->set != b->set ? "the validation loss is also of text that is trained on"
                           : "its text counts more than once");
}

/* A warning each for files that are in one option twice and for files that are in both. */
static void check_twice(struct use *use, int n)
{
  int at[2] = { 0 }, twice[2] = { 0 };           /* within an option, between both: where first, and how many */
  if (n > 1) qsort(use, (size_t)n, sizeof *use, by_file);
  for (int i = 1; i < n; i++) {
    const struct stat *s = &use[i - 1].file->was, *t = &use[i].file->was;
    const bool both = use[i - 1].set != use[i].set;
    if (s->st_dev != t->st_dev || s->st_ino != t->st_ino) continue;
    if (!twice[both]++) at[both] = i;
  }
  for (int both = 0; both < 2; both++)
    if (twice[both]) warn_twice(&use[at[both] - 1], &use[at[both]], twice[both]);
}

/* ---- bytes ------------------------------------------------------------------------------------------ */

static void check_bytes(const struct tc_data *d)
{
  for (int i = 0; i < d->n && d->vocab > 256; i++)
    if (d->source[i].file[0].known && !d->source[i].file[0].tokenizer) {
      tc_warn("a token of data.train = %s is a byte, below 256, but model.vocab = %lld: make shards of it with the model's "
              "tokenizer.json (tercio data --tokenizer), or set model.vocab = 256", d->source[i].name,
              (long long)d->vocab);
      return;
    }
}

void tc_data_warn(const struct tc_data *train, const struct tc_data *val)
{
  struct use *use;
  const int n = list_uses(&use, train, val);
  check_folders(use, n);
  check_twice(use, n);
  check_bytes(train);
  free(use);
}

void tc_data_say_packed(const struct tc_data *d, const char *what)
{
  for (int i = 0; i < d->n && d->packed; i++) {
    const struct tc_pack_tally *x = tc_data_tally(d, i);
    const int64_t windows = tc_data_windows(d, i), room = windows * d->context;
    tc_log("%s data '%s': %lld samples in %lld windows of %lld tokens, %.2f %% padding; %lld cut, %lld left out as too long, %lld "
           "without a token that counts", what, d->source[i].name, (long long)x->samples, (long long)windows,
           (long long)d->context, 100.0 * (double)(room - x->tokens) / (double)room, (long long)x->cut, (long long)x->left_out,
           (long long)x->silent);
  }
}
