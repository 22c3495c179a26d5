/* t_main.c - the program itself (TERCIO): what becomes of its output, and exit statuses that no
 * command gives. What commands print is check-cli's. */
#include "tests/unit/tap.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[80];

/* Exit status; what comes on stderr into logged[size]. */
static int run(const char *word, int out, char *logged, size_t size)
{
  FILE *f = tmpfile();
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    dup2(fileno(f), STDERR_FILENO);
    dup2(out, STDOUT_FILENO);
    alarm(300);
    execl(getenv("TERCIO"), "tercio", word, (char *)NULL);
    _exit(99);
  }
  int status = -1;
  waitpid(child, &status, 0);
  rewind(f);
  logged[fread(logged, 1, size - 1, f)] = 0;
  fclose(f);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main(void)
{
  static const char *const word[] = { "--help", "--version", "--man", "--completion", "help" };
  const char *tmp = getenv("TMPDIR");
  char logged[2000], text[200] = "";
  int pipe_fd[2];
  if (!getenv("TERCIO")) skip_all("TERCIO is not set");
  snprintf(path, sizeof path, "%.40s/t_main.XXXXXX", tmp ? tmp : "/tmp");
  int file = mkstemp(path), full = open("/dev/full", O_WRONLY);
  if (file < 0 || pipe(pipe_fd) < 0) {
    printf("Bail out! no file in %s\n", path);
    return 1;
  }
  close(pipe_fd[0]);
  for (size_t i = 0; i < sizeof word / sizeof *word; i++) {
    if (ftruncate(file, 0) < 0 || lseek(file, 0, SEEK_SET) < 0) continue;
    is_int(run(word[i], file, logged, sizeof logged), 0, "%s into a file: status 0", word[i]);
    is_str(logged, "", "... without a complaint");
    memset(text, 0, sizeof text);
    ok(pread(file, text, sizeof text - 1, 0) > 10 && strcasestr(text, "tercio"), "... is there");
    is_int(run(word[i], pipe_fd[1], logged, sizeof logged), 0, "%s to a reader that has left: status 0", word[i]);
    is_str(logged, "", "... without a complaint");
    if (full < 0) continue;
    is_int(run(word[i], full, logged, sizeof logged), 2, "%s to a full disk: status 2", word[i]);
    is_str(logged, "tercio: cannot write standard output: No space left on device\n", "... and why");
  }
  static const char *const command[] = { "train", "save", "plan", "place", "graph", "ckpt", "data", "report", "comm" };
  char *man = calloc(1, 200000);
  ok(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0 && run("--man", file, logged, sizeof logged) == 0 &&
     pread(file, man, 199999, 0) > 0, "a man page");
  for (size_t i = 0; i < sizeof command / sizeof *command; i++) {
    char line[60];
    snprintf(line, sizeof line, ".TP\n.B tercio %s\n", command[i]);
    ok(strstr(man, line) != NULL, "... has tercio %s", command[i]);
  }
  free(man);
  is_int(run(NULL, file, logged, sizeof logged), 2, "no command: status 2");
  is_str(logged, "tercio: a command is missing; tercio --help lists them\n", "... and what to do");
  is_int(run("trian", file, logged, sizeof logged), 2, "an unknown command: status 2");
  ok(strstr(logged, "train") != NULL, "... and the nearest: %s", logged);
  is_int(run("train", full < 0 ? file : full, logged, sizeof logged), 2, "a command that fails: its own status");
  ok(*logged && !strstr(logged, "standard output"), "... and sentence, whatever became of its output: %s", logged);
  close(file);
  unlink(path);
  return done_testing();
}
