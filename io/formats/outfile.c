/* outfile.c - a file that appears complete or not at all. Until the rename there is only PATH.tmp,
 * which is removed if anything fails; one left by a crash is overwritten. */
#include "io/formats/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/folder.h"

struct tc_outfile {
  char *path, *tmp;               /* owned */
  int fd;
  int64_t bytes;
};

int tc_outfile_new(struct tc_outfile **out, const char *path, struct tc_err *err)
{
  *out = NULL;
  if (access(path, F_OK) == 0)
    return tc_fail(err, TC_EUSER, "%s exists already: remove it or give another name", path);
  struct tc_outfile *f = tc_calloc(1, sizeof *f);
  f->path = tc_strdup(path);
  f->tmp = tc_sprintf("%s.tmp", path);
  f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (f->fd < 0) {
    tc_fail(err, TC_EUSER, "%s can't be written: %s", f->tmp, strerror(errno));
    tc_outfile_abandon(f);
    return TC_EUSER;
  }
  *out = f;
  return 0;
}

int64_t tc_outfile_bytes(const struct tc_outfile *f) { return f->bytes; }

int tc_outfile_write(struct tc_outfile *f, const void *data, int64_t bytes, struct tc_err *err)
{
  const char *at = data;
  while (bytes > 0) {
    ssize_t n = write(f->fd, at, (size_t)TC_MIN(bytes, INT64_C(1) << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return tc_fail(err, TC_EUSER, "%s: writing failed after %lld bytes: %s", f->path,
                     (long long)f->bytes, n < 0 ? strerror(errno) : "nothing was written");
    at += n;
    bytes -= n;
    f->bytes += n;
  }
  return 0;
}

int tc_outfile_finish(struct tc_outfile *f, struct tc_err *err)
{
  int rc = 0;
  int bad = fsync(f->fd) < 0;
  if (close(f->fd) < 0) bad = 1;
  f->fd = -1;
  if (bad || rename(f->tmp, f->path) < 0)
    rc = tc_fail(err, TC_EUSER, "%s can't be flushed to disk: %s", f->path, strerror(errno));
  if (rc == 0) {
    char *folder = tc_folder_of(f->path);
    rc = tc_folder_sync(folder, err);
    free(folder);
  }
  tc_outfile_abandon(f);
  return rc;
}

void tc_outfile_abandon(struct tc_outfile *f)
{
  if (!f) return;
  if (f->fd >= 0) close(f->fd);
  unlink(f->tmp);                 /* it no longer exists after the rename */
  free(f->path);
  free(f->tmp);
  free(f);
}
