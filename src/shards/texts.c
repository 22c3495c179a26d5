/* texts.c - the texts that the command line names: files as they are, and folders as the files of text in them.
 *
 * The order within a folder is that of the bytes of the paths, so that it is the same on every machine. Hidden files
 * and folders are left out. */
#include "src/shards/impl.h"

#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>

struct folder { size_t found, others; char *other; };    /* files that are no text by their names; one of them, owned */

/* Whether the name is one of `ending`, also where .gz or .zst follows. */
static bool has_ending(const char *name, const char *ending)
{
  const size_t n = strlen(name), packed = tc_ends_with(name, ".gz") ? 3 : tc_ends_with(name, ".zst") ? 4 : 0;
  const size_t k = strlen(ending);
  return n - packed > k && memcmp(name + n - packed - k, ending, k) == 0;
}

static bool is_jsonl(const char *name) { return has_ending(name, ".jsonl") || has_ending(name, ".ndjson"); }

bool tc_text_is_jsonl(const struct tc_shards_opts *o, int source) { return o->jsonl || o->chat || is_jsonl(o->text[source]); }

static int take(struct tc_texts *t, struct folder *at, FTS *walk, FTSENT *e, struct tc_err *err)
{
  const bool hidden = e->fts_level > 0 && e->fts_name[0] == '.';
  switch (e->fts_info) {
  case FTS_DNR: case FTS_ERR: case FTS_NS:
    return tc_fail(err, TC_EUSER, "folder '%s' can't be read: %s", e->fts_path, strerror(e->fts_errno));
  case FTS_DC:
    return tc_fail(err, TC_EUSER, "folder '%s' is a link to a folder that it is in; remove the link", e->fts_path);
  case FTS_D:
    if (hidden) fts_set(walk, e, FTS_SKIP);
    return TC_OK;
  case FTS_DP: case FTS_DOT:
    return TC_OK;
  default:
    break;
  }
  if (hidden) return TC_OK;
  if (e->fts_info == FTS_F && (is_jsonl(e->fts_name) || has_ending(e->fts_name, ".txt"))) {
    TC_APPEND(t->name, t->n, t->cap, tc_strdup(e->fts_path));
    at->found++;
  } else {
    if (!at->other) at->other = tc_strdup(e->fts_path);
    at->others++;
  }
  return TC_OK;
}

/* The order of files, so that the one that is named as left out is the same on every machine. */
static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static int walk_folder(struct tc_texts *t, struct folder *at, const char *name, struct tc_err *err)
{
  char *start[] = { tc_strdup(name), NULL };
  FTS *walk = fts_open(start, FTS_LOGICAL | FTS_NOCHDIR, by_name);
  int rc = walk ? TC_OK : tc_fail(err, TC_EUSER, "folder '%s' can't be read: %s", name, strerror(errno));
  for (FTSENT *e; rc == TC_OK && (errno = 0, e = fts_read(walk));) rc = take(t, at, walk, e, err);
  if (rc == TC_OK && errno) rc = tc_fail(err, TC_EUSER, "folder '%s' can't be read: %s", name, strerror(errno));
  if (walk) fts_close(walk);
  free(start[0]);
  return rc;
}

static int add_folder(struct tc_texts *t, const char *name, struct tc_err *err)
{
  struct folder at = { 0 };
  const size_t before = t->n;
  int rc = walk_folder(t, &at, name, err);
  if (rc == TC_OK && !at.found)
    rc = tc_fail(err, TC_EUSER, "folder '%s' has no files of text by their names: %s%s%s%s", name,
                 "*.txt, *.jsonl or *.ndjson, also with .gz or .zst", at.other ? "; it has '" : "",
                 at.other ? at.other : "", at.other ? "'" : "");
  if (rc == TC_OK && at.others)
    tc_log("folder '%s': %zu file%s of text; %zu with other names %s left out, such as '%s'", name, at.found,
           tc_plural(at.found), at.others, at.others == 1 ? "is" : "are", at.other);
  if (at.found) qsort(t->name + before, at.found, sizeof *t->name, tc_order_text);
  free(at.other);
  return rc;
}

int tc_texts_find(struct tc_texts *t, char *const *word, int n, struct tc_err *err)
{
  for (int i = 0; i < n; i++)
    if (strcmp(word[i], "-") != 0 && tc_is_folder(word[i]))
      TC_TRY(add_folder(t, word[i], err));
    else TC_APPEND(t->name, t->n, t->cap, tc_strdup(word[i]));
  return t->n <= INT32_MAX ? TC_OK : tc_fail(err, TC_EUSER, "%zu texts are too many for one command", t->n);
}

void tc_texts_free(struct tc_texts *t)
{
  for (size_t i = 0; i < t->n; i++) free(t->name[i]);
  free(t->name);
}
