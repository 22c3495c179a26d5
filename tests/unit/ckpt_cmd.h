/* ckpt_cmd.h - runs commands of `tercio ckpt`, each in a process of its own, and keeps what they
 * say. */
#ifndef TC_TEST_CKPT_CMD_H
#define TC_TEST_CKPT_CMD_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "src/cmd/cmd.h"
#include "tests/unit/ckpt_fixture.h"

/* ---- running ---------------------------------------------------------------------- */

static char out_path[100];
static char *out_text;             /* of the last command */
static char err_text[4000];        /* what it reported on stderr */

/* A child of a process with threads may inherit a lock that no thread will release. */
static int n_threads(void)
{
  int n = 0;
  DIR *d = opendir("/proc/self/task");
  for (struct dirent *e; d && (e = readdir(d));) n += *e->d_name != '.';
  if (d) closedir(d);
  return n;
}

/* Exit status; stdout goes to `fd`. */
static int run_to(int fd, const char *line)
{
  /* A thread that was joined may be listed for a moment longer. */
  for (int i = 0; n_threads() > 1 && i < 10000; i++) tc_sleep_ns(1000000);
  TC_ASSERT(n_threads() == 1);
  char name[120];
  snprintf(name, sizeof name, "%s.err", out_path);
  int logged = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(300);
    char *words = tc_strdup(line), *argv[20] = { (char *)(uintptr_t)"ckpt" }, *save = NULL;
    int argc = 1;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
      argv[argc++] = w;
    dup2(fd, 1);
    dup2(logged, 2);
    errno = ERANGE;                  /* a command must not rely on 0 */
    int status = tc_cmd_ckpt(argc, argv);
    struct stat st;                  /* as in main: a reader that has left a pipe is no error */
    const bool lost = (fflush(stdout) != 0 || ferror(stdout)) && !(fstat(1, &st) == 0 && S_ISFIFO(st.st_mode));
    _exit(lost && status == 0 ? 99 : status);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  memset(err_text, 0, sizeof err_text);
  TC_ASSERT(pread(logged, err_text, sizeof err_text - 1, 0) >= 0);
  close(logged);
  if (getenv("T_VERBOSE")) printf("# %s\n# %s\n", line, err_text);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

__attribute__((format(printf, 1, 2)))
static int run(const char *fmt, ...)
{
  char line[500];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  int fd = open(out_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  int status = run_to(fd, line);
  off_t size = lseek(fd, 0, SEEK_END);
  free(out_text);
  out_text = tc_calloc((size_t)size + 1, 1);
  TC_ASSERT(pread(fd, out_text, (size_t)size, 0) == (ssize_t)size);
  close(fd);
  return status;
}

TAP_UNUSED static bool says(const char *word) { return strstr(out_text, word) != NULL; }
/* Whether the command ended with `status` and one sentence in which `word` is. */
TAP_UNUSED static bool fails(int got, int status, const char *word)
{
  const char *end = strchr(err_text, '\n');
  bool good = got == status && strstr(err_text, word) && end && !end[1];
  if (!good) printf("# status %d, reported: %s", got, err_text);
  return good;
}

/* The last output as JSON; the test's end frees it. */
TAP_UNUSED static json_t *parsed(void)
{
  json_error_t e;
  json_t *j = json_loads(out_text, 0, &e);
  if (!j) printf("# not JSON: %s\n", e.text);
  return j;
}

TAP_UNUSED static double real(const json_t *o, const char *key)
{
  const json_t *j = json_object_get(o, key);
  return json_is_number(j) ? json_number_value(j) : NAN;
}

#endif
