/* shards_folder.c - the folder of shards, before the first one is made: locked against another call, without what a crash
 * left, and with a copy of the tokenizer. */
#include "src/shards/impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

/* What a call that crashed left in the folder. */
static int remove_unfinished(const char *dir, struct tc_err *err)
{
  static const char *const begins[] = { ".tmp-shard-", ".tmp-" TC_SHARDS_NOTE "-", ".tmp-" TC_TOKENIZER_FILE "-" };
  for (size_t k = 0; k < sizeof begins / sizeof *begins; k++) {
    char **name;
    const int n = tc_folder_scan(dir, begins[k], &name, err);
    for (int i = 0; i < n; i++) {
      char *path = tc_sprintf("%s/%s", dir, name[i]);
      tc_unlink(AT_FDCWD, path);
      free(path);
    }
    tc_names_free(name, TC_MAX(n, 0));
    if (n < 0) return n;
  }
  return TC_OK;
}

int tc_shards_folder_open(const struct tc_shards_opts *o, int *fd, struct tc_err *err)
{
  if (!o->tokenizer) return TC_OK;
  TC_TRY(tc_folder_make(o->out, err));
  *fd = open(o->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*fd < 0) return tc_fail(err, TC_EUSER, "folder '%s' can't be opened: %s", o->out, strerror(errno));
  const bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;      /* some file systems can't */
  if (!locked && errno == EWOULDBLOCK)
    return tc_fail(err, TC_EUSER, "another tercio data is writing to folder '%s'", o->out);
  return locked ? remove_unfinished(o->out, err) : TC_OK;
}

/* Whether the file has these bytes; a folder or an unreadable file has not. */
static bool has_bytes(const char *path, const char *text, size_t bytes)
{
  char *there;
  size_t n;
  struct tc_err err;
  if (tc_read_text(&there, &n, path, "tokenizer", bytes, &err) < 0) return false;
  const bool same = n == bytes && memcmp(there, text, n) == 0;
  free(there);
  return same;
}

/* Another tokenizer.json in the folder is replaced only if an earlier call put it there, which has left a note. */
int tc_shards_folder_tokenizer(const struct tc_shards_opts *o, const char *text, size_t bytes, struct tc_err *err)
{
  static const struct tc_output_kind kind = { "a file of JSON", { "{", "\n", " " } };
  const struct tc_output_opts options = { .kind = &kind };
  char *path = tc_sprintf("%s/%s", o->out, TC_TOKENIZER_FILE), *note = tc_sprintf("%s/%s", o->out, TC_SHARDS_NOTE);
  int status = TC_OK;
  if (!tc_is_there(path) || tc_is_there(note) == 1) status = tc_output_text(path, &options, text, err);
  else if (!has_bytes(path, text, bytes))
    status = tc_fail(err, TC_EUSER, "'%s' is not the tokenizer '%s', whose copy would replace it; name another folder",
                     path, o->tokenizer);
  TC_FREE(path, note);
  return status;
}
