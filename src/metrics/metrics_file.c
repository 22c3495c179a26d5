/* metrics_file.c - the file metrics.jsonl: cut when a run resumes or rolls back, written line by
 * line, opened again when it was removed or renamed.
 *
 * - The file is cut in place, so that who follows it (tail -f) goes on, where no other process can have it open: in a
 *   rollback, and where the start before has ended. Otherwise (the start before was on another node, and was lost or
 *   killed with it) the lines that stay are copied to a new file, which is renamed over the old one when it is on disk:
 *   a superseded start that still runs has the old file open, so its lines are not mixed with those of the new start.
 *   So is a file whose lines to keep are not its first. A file that cannot be read to its end stays as it is.
 * - Only a regular file of metrics is read or written, also through a symbolic link: a pipe or a device may
 *   block for ever, and another program's file is not ours to change.
 * - Within a run an error costs lines, not the run, and gives one warning. */
#include "src/metrics/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/files/files.h"
#include "src/watch/watch.h"

static const struct tc_output_kind metrics = { "a metrics.jsonl of tercio train", { "{\"step\":" } };
static const struct tc_output_opts tc_metrics_opts = { .kind = &metrics, .instead = "take another run.out",
                                                 .zeros = true };

/* A descriptor for reading and appending; -1 with errno. */
static int open_there(const char *path)
{
  return tc_open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

/* A file of metrics, made if it is not there. Its descriptor, or < 0. */
static int open_file(const char *path, struct tc_err *err)
{
  TC_TRY(tc_output_check(path, &tc_metrics_opts, err));
  int fd = open_there(path);
  if (fd < 0 && errno == ENOENT) {
    TC_TRY(tc_output_text(path, &tc_metrics_opts, "", err));
    fd = open_there(path);
  }
  return fd < 0 ? tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno)) : fd;
}

/* The step of a line that is whole, or -1. */
static int64_t step_of(const char *line, size_t len)
{
  json_t *o = json_loadb(line, len, 0, NULL), *step = tc_metric_in(o, TC_METRIC_STEP);
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

/* Copies the whole lines of steps up to `step`; to < 0: none. *cut <- where they end, if they are the file's first, or
 * -1. */
static int copy_lines(int from, int to, const char *path, int64_t step, int64_t *cut, struct tc_err *err)
{
  char *line = NULL;
  size_t cap = 0;
  FILE *in = stream(from, "r"), *out = to < 0 ? NULL : stream(to, "a");
  int unread = in ? 0 : errno, unwritten = out || to < 0 ? 0 : errno;
  bool left_out = false;
  *cut = 0;
  if (in) rewind(in);                           /* the descriptors share their place */
  while (!unread && !unwritten) {
    errno = 0;
    ssize_t len = getline(&line, &cap, in);
    if (ferror(in) || (len < 0 && !feof(in))) unread = errno ? errno : EIO;  /* within a line too */
    if (unread || len < 0) break;
    const int64_t n = step_of(line, (size_t)len);
    const bool stays = n >= 0 && n <= step;
    if (stays) *cut = left_out || *cut < 0 ? -1 : *cut + len;
    left_out |= !stays;
    if (stays && out && fwrite(line, 1, (size_t)len, out) != (size_t)len) unwritten = errno;
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
  struct tc_output *f;
  TC_TRY(tc_output_new(&f, path, &tc_metrics_opts, err));
  int64_t cut;
  int rc = step > 0 ? copy_lines(old, tc_output_fd(f), path, step, &cut, err) : 0;
  /* Lines go to this file, whatever has its name by then. */
  const int fd = rc < 0 ? -1 : fcntl(tc_output_fd(f), F_DUPFD_CLOEXEC, 0);
  if (rc == 0 && (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) < 0))
    rc = tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  rc = tc_output_end(f, rc, err);
  if (rc == 0) return fd;
  if (fd >= 0) close(fd);
  return rc;
}

/* Cuts the file after the lines up to `step`, which no other process has open. 1: done; 0: it has to be rewritten. */
static int cut_in_place(int fd, const char *path, int64_t step, struct tc_err *err)
{
  int64_t cut;
  TC_TRY(copy_lines(fd, -1, path, step, &cut, err));
  if (cut < 0) return 0;
  if (ftruncate(fd, cut) == 0 && fsync(fd) == 0) return 1;
  return tc_fail(err, TC_EUSER, "cannot cut %s after step %lld: %s. Move it away to go on without its lines", path,
                 (long long)step, strerror(errno));
}

/* Whether fd, if it is open, is what has this name, or that can't be told. */
static bool is_same_file(int fd, const char *path)
{
  struct stat mine, there;
  if (fd < 0) return false;
  const int why = fstat(fd, &mine) < 0 ? errno : tc_stat(path, &there);
  return why ? why != ENOENT && why != ENOTDIR : mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

int tc_metrics_file_open(struct tc_metrics_file *m, int64_t step, bool alone, struct tc_err *err)
{
  const char *path = m->path;
  char *real = NULL;
  const bool ours = is_same_file(m->fd, path) || alone;
  m->wanted = true;
  tc_metrics_file_close(m);
  tc_at_phase("rewriting the metrics");
  int old = open_file(path, err), rc = TC_MIN(old, 0);
  const int cut = rc == 0 && ours ? cut_in_place(old, path, step, err) : rc;
  if (cut == 0) {
    real = tc_real_path(path);                  /* a link stays, and what it names is replaced */
    rc = real ? rewrite(old, real, step, err)
              : tc_fail(err, TC_EUSER, "cannot find %s: %s", path, strerror(errno));
  }
  if (old >= 0 && cut <= 0) close(old);
  if (cut < 0) rc = cut;
  if (rc >= 0) m->fd = cut ? old : rc;
  free(real);
  return TC_MIN(rc, 0);
}

void tc_metrics_file_close(struct tc_metrics_file *m)
{
  if (m->fd >= 0) close(m->fd);
  m->fd = -1;
}

void tc_metrics_file_back(struct tc_metrics_file *m, int64_t step, bool alone)
{
  struct tc_err err = { 0 };
  /* A later start's file must not be cut. This one ends because of it too, but may notice it later. */
  const int ours = tc_is_there(m->lease);
  if (ours == 0) tc_metrics_file_close(m);
  else if (ours < 0) tc_fail(&err, TC_EUSER, "%s can't be seen: %s", m->lease, strerror(-ours));
  if (ours == 0 || (ours > 0 && tc_metrics_file_open(m, step, alone, &err) == 0)) return;
  tc_warn("%s; no more lines are written", err.text);     /* they would come after later steps' */
  m->wanted = false;
  tc_metrics_file_close(m);
}

/* Lines from this step on are missing, until the next checkpoint that finds it otherwise. */
static void pause_metrics(struct tc_metrics_file *m, int64_t step, const char *why)
{
  if (!m->warned)
    tc_warn("%s; the lines from step %lld on are missing. It is tried again with each checkpoint",
            why, (long long)step);
  m->warned = m->paused = true;
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

void tc_metrics_file_look(struct tc_metrics_file *m, int64_t step)
{
  struct tc_err err = { 0 };
  if (!m->wanted) return;
  tc_at_phase("looking at the metrics");
  m->paused = false;
  if (!is_same_file(m->fd, m->path) && tc_is_there(m->lease) == 1) {     /* no later start owns the folder */
    const bool was_open = m->fd >= 0;
    tc_metrics_file_close(m);
    m->fd = open_again(m->path, &err);
    if (m->fd < 0) pause_metrics(m, step, err.text);
    else if (was_open)
      tc_warn("%s was removed, renamed or replaced during the run; it goes on there from step %lld",
              m->path, (long long)step);
  }
}

bool tc_metrics_file_takes(const struct tc_metrics_file *m) { return m->fd >= 0 && !m->paused; }

void tc_metrics_file_add(struct tc_metrics_file *m, int64_t step, const char *line)
{
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
    tc_fail(&err, TC_EUSER, "cannot write %s: %s", m->path, why ? strerror(why) : "no byte was written");
    if (done > 0 && begin >= 0 && ftruncate(m->fd, begin))
      tc_text_add(err.text, sizeof err.text, " (and its last line is cut short)");
    pause_metrics(m, step, err.text);
  }
}
