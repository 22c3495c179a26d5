/* input.c - text files. Everything is opened without waiting (O_NONBLOCK), and what it is is looked at before it is
 * read; a pipe that the user gave is then read as usual, until its writer closes it. */
#include "src/files/input.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/again.h"
#include "src/watch/watch.h"

/* Whether the path names a descriptor of this process, as `<(...)` does. */
static bool is_descriptor(const char *path)
{
  static const char *const folder[] = { "/dev/fd/", "/proc/self/fd/" };
  for (size_t i = 0; i < sizeof folder / sizeof *folder; i++)
    if (!strncmp(path, folder[i], strlen(folder[i]))) return true;
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

int tc_open_text(const char *path, const char *kind, bool *missing, struct tc_err *err)
{
  struct tc_again again = { 0 };
  struct stat st;
  int fd;
  if (missing) *missing = false;
  tc_at_file("opening", path);
  do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  while (fd < 0 && tc_again(&again, errno));
  if (fd < 0 && missing) *missing = errno == ENOENT || errno == ENOTDIR;
  if (fd < 0) return tc_fail(err, TC_EUSER, "cannot open %s %.500s: %s", kind, path, strerror(errno));
  const char *why = fstat(fd, &st) < 0 ? strerror(errno) : unfit(path, st.st_mode);
  if (!why && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) < 0) why = strerror(errno);
  if (!why) return fd;
  close(fd);
  return tc_fail(err, TC_EUSER, "cannot read %s %.500s: %s", kind, path, why);
}

FILE *tc_stream_text(const char *path, const char *kind, struct tc_err *err)
{
  const int fd = tc_open_text(path, kind, NULL, err);
  FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
  if (fd >= 0 && !f) {
    tc_fail(err, TC_EUSER, "cannot read %s %.500s: %s", kind, path, strerror(errno));
    close(fd);
  }
  return f;
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

int tc_read_text(char **out, size_t *bytes, const char *path, const char *kind, size_t most, struct tc_err *err)
{
  struct stat st;
  *out = NULL;
  const int fd = tc_open_text(path, kind, NULL, err);
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
