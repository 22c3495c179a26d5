/* metrics.c - the file metrics.jsonl: cut when a run resumes or rolls back, written line by
 * line, opened again when it was removed or renamed.
 *
 * - The lines that stay are copied to a new file, which is renamed over the old one when it is on
 *   disk. A start that was superseded and still runs has the old file open, so its lines do not
 *   get between those of the new start. A file that cannot be read to its end stays as it is.
 * - Only a regular file is read or written, through a symbolic link too: others may never end.
 * - Within a run an error costs lines, not the run, and gives one warning. */
#include "io/folder.h"
#include "src/train/train.h"
#include "src/watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Owned. */
static char *metrics_path(const struct tc_train *t)
{
  return t->run.rank == 0 ? tc_sprintf("%s/metrics.jsonl", t->out)
                      : tc_sprintf("%s/metrics.%d.jsonl", t->out, t->run.rank);
}

/* A regular file for reading and appending, made if it is not there. Its descriptor, or < 0. */
static int open_file(const char *path, struct tc_err *err)
{
  struct stat st;
  int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd < 0) return tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  int rc = fstat(fd, &st) ? tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno))
         : !S_ISREG(st.st_mode)
               ? tc_fail(err, TC_EUSER, "%s is not a regular file, so metrics cannot be kept "
                         "there; remove it, or take another run.out", path)
               : 0;
  if (rc == 0) return fd;
  close(fd);
  return rc;
}

/* The step of a line that is whole, or -1. */
static int64_t step_of(const char *line, size_t len)
{
  json_t *o = json_loadb(line, len, 0, NULL), *step = json_object_get(o, "step");
  int64_t n = line[len - 1] == '\n' && json_is_integer(step) ? json_integer_value(step) : -1;
  json_decref(o);
  return n;
}

/* A stream on a descriptor of its own, NULL with errno. */
static FILE *stream(int fd, const char *how)
{
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  FILE *f = own < 0 ? NULL : fdopen(own, how);
  if (!f && own >= 0) close(own);
  return f;
}

/* Copies the whole lines of steps up to `step`. */
static int copy_lines(int from, int to, const char *path, int64_t step, struct tc_err *err)
{
  char *line = NULL;
  size_t cap = 0;
  FILE *in = stream(from, "r"), *out = stream(to, "a");
  int unread = in ? 0 : errno, unwritten = out ? 0 : errno;
  while (!unread && !unwritten) {
    errno = 0;
    ssize_t len = getline(&line, &cap, in);
    if (ferror(in) || (len < 0 && !feof(in))) unread = errno ? errno : EIO;  /* within a line too */
    if (unread || len < 0) break;
    int64_t n = step_of(line, (size_t)len);
    if (n >= 0 && n <= step && fwrite(line, 1, (size_t)len, out) != (size_t)len) unwritten = errno;
  }
  if (in) fclose(in);
  if (out && fclose(out) && !unwritten) unwritten = errno;
  free(line);
  if (unread)
    return tc_fail(err, TC_EUSER, "cannot read %s: %s; it is left as it is. Move it away to go on "
                   "without its lines", path, strerror(unread));
  return unwritten ? tc_fail(err, TC_EUSER, "cannot rewrite %s: %s; it is left as it is", path,
                             strerror(unwritten)) : 0;
}

/* Puts a new file in the place of the one that is open as `old`, with its lines up to `step`. The
 * new one's descriptor, or < 0. */
static int rewrite(int old, const char *path, int64_t step, struct tc_err *err)
{
  struct stat st;
  char *tmp = tc_sprintf("%s.tmp", path), *dir = tc_folder_of(path);
  unlink(tmp);                                  /* of a start that was killed */
  int fd = open(tmp, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = 0;
  if (fd < 0) rc = tc_fail(err, TC_EUSER, "cannot write %s: %s", tmp, strerror(errno));
  if (!rc && step > 0) rc = copy_lines(old, fd, path, step, err);
  if (!rc && ((fstat(old, &st) == 0 && fchmod(fd, st.st_mode & 0777)) || fsync(fd) ||
              rename(tmp, path)))
    rc = tc_fail(err, TC_EUSER, "cannot rewrite %s: %s; it is left as it is", path,
                 strerror(errno));
  if (rc) unlink(tmp);
  else rc = tc_folder_sync(dir, err);
  free(tmp);
  free(dir);
  if (rc == 0) return fd;
  if (fd >= 0) close(fd);
  return rc;
}

int tc_metrics_open(struct tc_train *t, int64_t step, struct tc_err *err)
{
  struct tc_metrics_out *m = &t->metrics;
  m->wanted = t->run.rank == 0 || t->run.cfg->run_all_ranks;
  if (!m->wanted) return 0;
  tc_metrics_close(t);
  tc_at_file("rewriting the metrics", NULL);
  char *path = metrics_path(t), *real = NULL;
  int old = open_file(path, err), rc = old;
  if (old >= 0) {
    real = realpath(path, NULL);                /* a link stays, and what it names is replaced */
    rc = real ? rewrite(old, real, step, err)
              : tc_fail(err, TC_EUSER, "cannot find %s: %s", path, strerror(errno));
    close(old);
  }
  if (rc >= 0) m->fd = rc;
  free(real);
  free(path);
  return TC_MIN(rc, 0);
}

void tc_metrics_close(struct tc_train *t)
{
  if (t->metrics.fd >= 0) close(t->metrics.fd);
  t->metrics.fd = -1;
}

void tc_metrics_back(struct tc_train *t, int64_t step)
{
  struct tc_err err = { 0 };
  if (tc_metrics_open(t, step, &err) == 0) return;
  tc_warn("%s; no more lines are written", err.text);     /* they would come after later steps' */
  t->metrics.wanted = false;
}

/* Lines from this step on are missing, until the next checkpoint that finds it otherwise. */
static void pause_metrics(struct tc_metrics_out *m, int64_t step, const char *why)
{
  if (!m->warned)
    tc_warn("%s; the lines from step %lld on are missing. It is tried again with each checkpoint",
            why, (long long)step);
  m->warned = m->paused = true;
}

/* A later start has the folder, and put files of its own there, which must not get this one's
 * lines. The loop ends for that too, but may notice it later. */
static bool is_superseded(const struct tc_train *t)
{
  return access(t->home, F_OK) != 0;
}

/* Opens the file anew; its name is on disk before a checkpoint that its lines belong to. */
static int open_again(const char *path, struct tc_err *err)
{
  char *dir = tc_folder_of(path);
  int fd = open_file(path, err), rc = fd < 0 ? fd : tc_folder_sync(dir, err);
  free(dir);
  if (rc == 0) return fd;
  if (fd >= 0) close(fd);
  return rc;
}

void tc_metrics_look(struct tc_train *t, int64_t step)
{
  struct tc_metrics_out *m = &t->metrics;
  struct stat mine, there;
  struct tc_err err = { 0 };
  if (!m->wanted) return;
  tc_at_file("looking at the metrics", NULL);
  m->paused = false;
  char *path = metrics_path(t);
  bool same = m->fd >= 0 && fstat(m->fd, &mine) == 0 && stat(path, &there) == 0 &&
              mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
  if (!same && !is_superseded(t)) {
    const bool was_open = m->fd >= 0;
    tc_metrics_close(t);
    m->fd = open_again(path, &err);
    if (m->fd < 0) pause_metrics(m, step, err.text);
    else if (was_open)
      tc_warn("%s was removed, renamed or replaced during the run; it goes on there from step %lld",
              path, (long long)step);
  }
  free(path);
}

void tc_metrics_add(struct tc_train *t, const struct tc_step_report *r)
{
  struct tc_metrics_out *m = &t->metrics;
  if (m->fd < 0 || m->paused) return;
  tc_at_file("writing the metrics", NULL);
  char *line = tc_metrics_line(t, r);
  const int64_t len = (int64_t)strlen(line), begin = lseek(m->fd, 0, SEEK_END);
  int64_t done = 0;
  ssize_t n = 0;
  while (done < len && (n = write(m->fd, line + done, (size_t)(len - done))) != 0) {
    if (n > 0) done += n;
    else if (errno != EINTR) break;
  }
  const int why = n < 0 ? errno : 0;
  if (done < len) {
    struct tc_err err = { 0 };
    char *path = metrics_path(t);
    tc_fail(&err, TC_EUSER, "cannot write %s: %s", path,
            why ? strerror(why) : "no byte was written");
    if (done > 0 && begin >= 0 && ftruncate(m->fd, begin))
      tc_text_add(err.text, sizeof err.text, " (and its last line is cut short)");
    pause_metrics(m, r->step, err.text);
    free(path);
  }
  free(line);
}
