/* train_metrics.c - the file metrics.jsonl: cut when a run resumes or rolls back, written line by
 * line, opened again when it was removed or renamed.
 *
 * - Lines are cut off in place: that needs no room on the disk, and is either done or not. What
 *   cannot be read to its end is left as it is.
 * - Only a regular file is read or written (a symbolic link to one too): others may never end.
 * - Within a run the file costs lines, not the run: what goes wrong is said once. */
#include "src/train.h"
#include "src/watch.h"

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
  return t->rank == 0 ? tc_sprintf("%s/metrics.jsonl", t->out)
                      : tc_sprintf("%s/metrics.%d.jsonl", t->out, t->rank);
}

/* A regular file for reading and appending, made if it is not there. Its descriptor, or < 0. */
static int open_file(const char *path, struct tc_err *err)
{
  struct stat st;
  int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd < 0) return tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  int rc = fstat(fd, &st) ? tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno))
         : !S_ISREG(st.st_mode)
               ? tc_fail(err, TC_EUSER, "%s is not a regular file, so metrics cannot be kept there; "
                         "remove it, or take another run.out", path)
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

/* *keep: the bytes up to the end of the last whole line before the first of a step after `step`. */
static int find_cut(int fd, const char *path, int64_t step, int64_t *keep, struct tc_err *err)
{
  char *line = NULL;
  size_t cap = 0;
  ssize_t len;
  int64_t at = 0, n = -1;
  int own = lseek(fd, 0, SEEK_SET) < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
  FILE *in = own < 0 ? NULL : fdopen(own, "r");
  int why = in ? 0 : errno;
  *keep = 0;
  while (!why && n <= step) {
    errno = 0;
    len = getline(&line, &cap, in);
    if (ferror(in) || (len < 0 && !feof(in))) why = errno ? errno : EIO;   /* with part of a line too */
    if (why || len < 0) break;
    n = step_of(line, (size_t)len);
    at += len;
    if (n >= 0 && n <= step) *keep = at;
  }
  int rc = why ? tc_fail(err, TC_EUSER, "cannot read %s: %s; it is left as it is. Move it away to go "
                         "on without its lines", path, strerror(why)) : 0;
  if (in) fclose(in);
  else if (own >= 0) close(own);
  free(line);
  return rc;
}

static int cut(int fd, const char *path, int64_t step, struct tc_err *err)
{
  int64_t keep = 0;
  struct stat st;
  if (step > 0) TC_TRY(find_cut(fd, path, step, &keep, err));
  if (fstat(fd, &st) == 0 && st.st_size == keep) return 0;
  if (ftruncate(fd, keep) || fsync(fd))
    return tc_fail(err, TC_EUSER, "cannot shorten %s: %s", path, strerror(errno));
  return 0;
}

int tc_metrics_open(struct tc_train *t, int64_t step, struct tc_err *err)
{
  struct tc_metrics_out *m = &t->metrics;
  m->wanted = t->rank == 0 || t->cfg->run_all_ranks;
  if (!m->wanted) return 0;
  tc_metrics_close(t);
  char *path = metrics_path(t);
  int fd = open_file(path, err), rc = fd < 0 ? fd : cut(fd, path, step, err);
  if (rc == 0) m->fd = fd;
  else if (fd >= 0) close(fd);
  free(path);
  return rc;
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
    tc_warn("%s; the lines from step %lld on are missing. It is tried again with each checkpoint", why,
            (long long)step);
  m->warned = m->paused = true;
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
  if (!same) {
    const bool was_open = m->fd >= 0;
    tc_metrics_close(t);
    m->fd = open_file(path, &err);
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
  if (done < len) {
    struct tc_err err = { 0 };
    char *path = metrics_path(t);
    tc_fail(&err, TC_EUSER, "cannot write %s: %s", path, n < 0 ? strerror(errno) : "nothing is taken");
    if (done > 0 && begin >= 0 && ftruncate(m->fd, begin))
      tc_text_add(err.text, sizeof err.text, " (and its last line is cut short)");
    pause_metrics(m, r->step, err.text);
    free(path);
  }
  free(line);
}
