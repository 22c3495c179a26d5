/* input.c - text files. Everything is opened without waiting (O_NONBLOCK), and what it is is looked at before it is
 * read; a pipe that the user gave is then read as usual, until its writer closes it.
 *
 * Invariant: a descriptor of the user's that is a pipe when it is read first names a file of memory from then on. */
#include "src/files/input.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/again.h"
#include "src/files/names.h"
#include "src/watch/watch.h"

/* Whether the path names a descriptor of this process, as `<(...)` does. */
static bool is_descriptor(const char *path)
{
  static const char *const folder[] = { "/dev/fd/", "/proc/self/fd/" };
  for (size_t i = 0; i < sizeof folder / sizeof *folder; i++) {
    const size_t n = strlen(folder[i]);
    if (!strncmp(path, folder[i], n) && path[n] && !path[n + strspn(path + n, "0123456789")]) return true;
  }
  return !strcmp(path, "/dev/stdin");
}

/* What can't be read as text, in words; NULL: it can. */
static const char *unfit(const char *path, mode_t mode)
{
  if (S_ISREG(mode)) return NULL;
  if (S_ISDIR(mode)) return "it is a folder; name a file in it";
  if (S_ISFIFO(mode) && is_descriptor(path)) return NULL;
  if (S_ISFIFO(mode)) return "it is a named pipe; give a file, or <(COMMAND)";
  if (S_ISSOCK(mode)) return "it is a socket; give a file";
  return "it is a device; give a file";
}

/* A descriptor that can't wait; *is_pipe: for a pipe. */
static int open_any(const char *path, const char *kind, bool *missing, bool *is_pipe, struct tc_err *err)
{
  struct stat st;
  if (missing) *missing = false;
  tc_at_file("opening", path);
  const int fd = tc_open_stat(path, &st);
  if (fd < 0 && missing) *missing = errno == ENOENT || errno == ENOTDIR;
  if (fd < 0) return tc_fail(err, TC_EUSER, "cannot open %s %.500s: %s", kind, path, strerror(errno));
  const char *why = unfit(path, st.st_mode);
  if (!why && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) < 0) why = strerror(errno);
  *is_pipe = !why && S_ISFIFO(st.st_mode);
  if (!why) return fd;
  close(fd);
  return tc_fail(err, TC_EUSER, "cannot read %s %.500s: %s", kind, path, why);
}

int tc_open_text(const char *path, const char *kind, bool *missing, struct tc_err *err)
{
  bool is_pipe;
  return open_any(path, kind, missing, &is_pipe, err);
}

static int too_large(const char *path, const char *kind, size_t most, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "cannot read %s %.500s: it has more than %zu MB, so it must be something else", kind,
                 path, most / 1000000);
}

/* The rest of fd. */
static int read_rest(char **out, size_t *bytes, int fd, const char *path, const char *kind, size_t most,
                     struct tc_err *err)
{
  struct tc_again again = { 0 };
  char *text = NULL;
  size_t n = 0, cap = 0;
  ssize_t got = 0;
  do {
    if (cap < n + 4096) text = tc_realloc(text, cap = 2 * n + 4096);
    got = read(fd, text + n, cap - n - 1);
    if (got > 0) n += (size_t)got, again = (struct tc_again){ 0 };
  } while ((got > 0 && n <= most) || (got < 0 && tc_again(&again, errno)));
  const int why = errno;
  if (got < 0 || n > most) {
    free(text);
    return got < 0 ? tc_fail(err, TC_EUSER, "cannot read %s %.500s: %s", kind, path, strerror(why))
                   : too_large(path, kind, most, err);
  }
  text[n] = '\0';
  *out = text;
  *bytes = n;
  return 0;
}

/* ---- pipes --------------------------------------------------------------------------------- */

/* The number of the descriptor that the path names. */
static int number_of(const char *path)
{
  const char *slash = strrchr(path, '/');
  return !strcmp(path, "/dev/stdin") ? 0 : atoi(slash + 1);
}

/* Puts a file of memory with all that the pipe `fd` gives in the place of the descriptor that the user gave. */
static int keep_pipe(int fd, const char *path, const char *kind, size_t most, struct tc_err *err)
{
  char *text;
  size_t bytes;
  TC_TRY(read_rest(&text, &bytes, fd, path, kind, most, err));
  const int file = memfd_create("pipe", MFD_CLOEXEC);
  const bool kept = file >= 0 && tc_write_all(file, text, (int64_t)bytes) && lseek(file, 0, SEEK_SET) == 0 &&
                    dup2(file, number_of(path)) >= 0;
  const int why = errno;
  if (file >= 0) close(file);
  free(text);
  return kept ? 0 : tc_fail(err, TC_EUSER, "cannot keep what %s %.500s gives: %s", kind, path, strerror(why));
}

/* A descriptor of a regular file; that of a pipe once what it gives is kept. */
static int open_kept(const char *path, const char *kind, size_t most, struct tc_err *err)
{
  static pthread_mutex_t pipe_lock = PTHREAD_MUTEX_INITIALIZER;    /* one thread reads a pipe, the others its file */
  bool is_pipe;
  if (!is_descriptor(path)) return open_any(path, kind, NULL, &is_pipe, err);
  pthread_mutex_lock(&pipe_lock);
  int fd = open_any(path, kind, NULL, &is_pipe, err);
  if (fd >= 0 && is_pipe) {
    const int rc = keep_pipe(fd, path, kind, most, err);
    close(fd);
    fd = rc < 0 ? rc : open_any(path, kind, NULL, &is_pipe, err);
  }
  pthread_mutex_unlock(&pipe_lock);
  return fd;
}

/* ---- whole files ----------------------------------------------------------------------------- */

int tc_read_text(char **out, size_t *bytes, const char *path, const char *kind, size_t most, struct tc_err *err)
{
  struct stat st;
  *out = NULL;
  const int fd = open_kept(path, kind, most, err);
  if (fd < 0) return fd;
  int rc = fstat(fd, &st) == 0 && st.st_size > 0 && (uint64_t)st.st_size > most
             ? too_large(path, kind, most, err) : read_rest(out, bytes, fd, path, kind, most, err);
  close(fd);
  return rc;
}

int tc_read_json(json_t **out, const char *path, const char *kind, size_t most, size_t flags, bool *is_damaged,
                 struct tc_err *err)
{
  json_error_t why;
  char *text;
  size_t bytes;
  *out = NULL;
  if (is_damaged) *is_damaged = false;
  TC_TRY(tc_read_text(&text, &bytes, path, kind, most, err));
  *out = json_loadb(text, bytes, flags, &why);
  free(text);
  if (*out) return 0;
  if (is_damaged) *is_damaged = true;
  return tc_fail(err, TC_EUSER, "%s %.500s is not JSON: line %d: %s", kind, path, why.line, why.text);
}

/* ---- line by line ---------------------------------------------------------------------------- */

enum { BUFFER_BYTES = 1 << 16, MOST_OF_PIPE = 1 << 30 };

struct tc_lines {
  const char *path, *kind;       /* borrowed */
  int fd;
  char *line; size_t cap;
  size_t at, n;                  /* of the buffer: what is read next, and its end */
  char buffer[BUFFER_BYTES];
};

int tc_lines_open(struct tc_lines **out, const char *path, const char *kind, struct tc_err *err)
{
  *out = NULL;
  const int fd = open_kept(path, kind, MOST_OF_PIPE, err);
  if (fd < 0) return fd;
  *out = tc_malloc(sizeof **out);
  **out = (struct tc_lines){ .path = path, .kind = kind, .fd = fd };
  return 0;
}

/* Fills the empty buffer; false at the end of the file, or with *why. */
static bool fill(struct tc_lines *l, int *why)
{
  struct tc_again again = { 0 };
  ssize_t n;
  do n = read(l->fd, l->buffer, BUFFER_BYTES);
  while (n < 0 && tc_again(&again, errno));
  *why = n < 0 ? errno : 0;
  l->at = 0;
  l->n = n > 0 ? (size_t)n : 0;
  return n > 0;
}

int tc_lines_next(struct tc_lines *l, char **line, size_t *len, struct tc_err *err)
{
  size_t n = 0;
  int why = 0;
  bool ended = false;
  while (!ended && (l->at < l->n || fill(l, &why))) {
    const char *from = l->buffer + l->at, *end = memchr(from, '\n', l->n - l->at);
    const size_t k = end ? (size_t)(end - from) + 1 : l->n - l->at;
    if (n + k > TC_LINE_MOST)
      return tc_fail(err, TC_EUSER, "cannot read %s %.500s: a line of it has more than %d MB, so it must be something "
                     "else", l->kind, l->path, TC_LINE_MOST / 1000000);
    if (l->cap < n + k + 1) l->line = tc_realloc(l->line, l->cap = 2 * (n + k) + 1);
    memcpy(l->line + n, from, k);
    n += k;
    l->at += k;
    ended = end != NULL;
  }
  if (why) return tc_fail(err, TC_EUSER, "cannot read %s %.500s: %s", l->kind, l->path, strerror(why));
  if (!n) return 0;
  l->line[n] = '\0';
  *line = l->line;
  if (len) *len = n;
  return 1;
}

void tc_lines_close(struct tc_lines *l)
{
  if (!l) return;
  close(l->fd);
  TC_FREE(l->line, l);
}
