/* t_process.c - how a process ends that main did not end: an exit by a library, a crash. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/process.h"
#include "tests/unit/tap.h"

static char said[2000];
static int lines;                  /* that were in it */

enum way { EXIT, EXIT_AFTER_MAIN, CRASH };

/* Exit status, or minus the signal; what the process wrote to stderr is in `said`. */
static int end_by(enum way way, int number)
{
  int fd[2], status = -1;
  if (pipe(fd) < 0) return -1000;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(fd[1], STDERR_FILENO);
    alarm(60);
    struct tc_process *p = tc_process_begin();
    if (way == EXIT_AFTER_MAIN) exit(tc_process_end(p, number));
    if (way == CRASH) raise(number);
    exit(number);
  }
  close(fd[1]);
  ssize_t n = read(fd[0], said, sizeof said - 1);
  said[n > 0 ? n : 0] = 0;
  lines = 0;
  for (char *c = said; *c; c++)
    if (*c == '\n') lines++, *c = c[1] ? ' ' : 0;
  close(fd[0]);
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main(void)
{
  static const int by_library[] = { 0, 1, 9, 127, 255 };
  for (size_t i = 0; i < sizeof by_library / sizeof *by_library; i++) {
    char what[60];
    snprintf(what, sizeof what, "a library ended the process with status %d ", by_library[i]);
    is_int(end_by(EXIT, by_library[i]), 2, "a library exits with %d: status 2", by_library[i]);
    ok(strstr(said, what) && lines == 1, "... and a line: %s", said);
  }
  for (int status = 2; status <= 8; status++) {
    is_int(end_by(EXIT, status), status, "MPI_Abort with %d: that status", status);
    is_str(said, "", "... and no line");
  }
  static const int own[] = { 0, 1, 2, 85, 86, 93 };
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    is_int(end_by(EXIT_AFTER_MAIN, own[i]), own[i], "main returns %d: that status", own[i]);
    is_str(said, "", "... and no line");
  }
  if (getenv("TC_SANITIZED") && !strcmp(getenv("TC_SANITIZED"), "yes")) {
    skip("sanitizers report crashes themselves");
  } else {
    is_int(end_by(CRASH, SIGSEGV), -SIGSEGV, "a crash: its signal");
    ok(strstr(said, "crashed by SIGSEGV") && lines == 1, "... and a line: %s", said);
  }
  return done_testing();
}
