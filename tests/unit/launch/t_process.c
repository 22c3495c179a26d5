/* t_process.c - how a process ends that main did not end: an exit by a library, a crash. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/launch/process.h"
#include "src/watch/watch.h"
#include "tests/unit/tap.h"

#include <pthread.h>
#include <sys/utsname.h>

#define OUT_OF_MEMORY "; if memory is limited (ulimit -v), it may have run out"

static char logged[2000];
static int lines;                  /* that were in it */

static void small_stacks(void), enough_stacks(void), closed_descriptors(void), no_descriptors(void);
static void soft_stack(void), free_stack(void), large_stack(void), hard_stack(void);

enum way { EXIT, EXIT_AFTER_MAIN, CRASH };

static pid_t child;               /* end_in's last */

/* Runs end() in a process of its own, where everything has begun (but what a test of that begins itself).
 * Exit status, or minus the signal; what it wrote to stderr is in `logged`. */
static int end_in(void (*end)(void))
{
  int fd[2], status = -1;
  if (pipe(fd) < 0) return -1000;
  fflush(stdout);
  child = fork();
  if (child == 0) {
    dup2(fd[1], STDERR_FILENO);
    close(fd[0]);
    close(fd[1]);
    alarm(60);
    if (end == small_stacks || end == enough_stacks || end == closed_descriptors ||
        end == no_descriptors || end == soft_stack || end == free_stack || end == large_stack || end == hard_stack)
      end();
    tc_process_begin();
    end();
    _exit(99);
  }
  close(fd[1]);
  size_t n = 0;
  for (ssize_t k; (k = read(fd[0], logged + n, sizeof logged - 1 - n)) > 0;) n += (size_t)k;
  logged[n] = 0;
  close(fd[0]);
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Exit status, or minus the signal; what the process wrote to stderr is in `logged`. */
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
  ssize_t n = read(fd[0], logged, sizeof logged - 1);
  logged[n > 0 ? n : 0] = 0;
  lines = 0;
  for (char *c = logged; *c; c++)
    if (*c == '\n') lines++, *c = c[1] ? ' ' : 0;
  close(fd[0]);
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- the line, whole ---------------------------------------------------------------------- */

static void ended(int status, const char *why)
{
  fprintf(stderr, "%s\n", why);
  _exit(status);
}

/* A thread of rank 3 of 4, or of the only rank; and its status. */
static void stand(int world, const char *thread)
{
  static const char *const who[] = { "a", "b", "c", "d" };
  const struct tc_watch_opts o = { .deadline_s = 1000, .world = world, .first = world - 1, .n_local = 1,
                                   .rank_names = who, .end = ended };
  struct tc_watch *w;
  TC_ASSERT(tc_watch_new(&w, &o, NULL) == 0);
  tc_watch_enter(w, world - 1);
  if (*thread) tc_thread_status_use(tc_thread_status_new(thread));
}

static void exit_with_rank(void) { tc_log_set_rank(12); exit(9); }
static void crash_alone(void) { raise(SIGFPE); }
static void crash_at_step(void) { stand(4, ""); tc_at_step(1234567890123); raise(SIGBUS); }
static void crash_in_thread(void)
{
  stand(4, "checkpoint writer");
  tc_at_step(7);
  tc_at("forward", "matmul", "h.3", 2);
  raise(SIGILL);
}
static void abort_of_one(void) { stand(1, "writer"); tc_at("reading", "text", NULL, -1); raise(SIGABRT); }
static void long_place(void)
{
  static char name[1000];
  memset(name, 'x', sizeof name - 1);
  stand(1, "");
  tc_at("reading", name, NULL, -1);
  raise(SIGABRT);
}

static void test_lines(void)
{
  static const struct { void (*end)(void); int status; const char *before, *after; } row[] = {
    { exit_with_rank, 2, "tercio[12]: a library ended the process with status 9 on ",
      "; see its own message" OUT_OF_MEMORY "\n" },
    { crash_alone, -SIGFPE, "tercio: crashed by SIGFPE on ", "\n" },
    { crash_at_step, -SIGBUS, "tercio[3]: crashed by SIGBUS on ",
      ", step 1234567890123, at starting\n" },
    { crash_in_thread, -SIGILL, "tercio[3]: crashed by SIGILL on ",
      ", thread checkpoint writer, step 7, at forward matmul of h.3\n" },
    { abort_of_one, -SIGABRT, "tercio: crashed by SIGABRT on ", ", thread writer, at reading text\n" },
  };
  struct utsname host;
  uname(&host);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char want[1000];
    is_int(end_in(row[i].end), row[i].status, "an end: its status");
    snprintf(want, sizeof want, "%s%s, PID %d%s", row[i].before, host.nodename, (int)child, row[i].after);
    is_str(logged, want, "... and the line");
  }
  is_int(end_in(long_place), -SIGABRT, "a crash at a place with a long name");
  is_int((int64_t)strlen(logged), 599, "... and a line that is cut");
  ok(logged[598] == '\n' && logged[597] == 'x', "... but ends");
}

/* Under a limit of so much more address space than is in use. */
static void crash_near_limit(int64_t left_bytes)
{
  long long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  TC_ASSERT(f && fscanf(f, "%lld", &pages) == 1);
  fclose(f);
  const rlim_t limit = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + left_bytes);
  TC_ASSERT(setrlimit(RLIMIT_AS, &(struct rlimit){ limit, limit }) == 0);
  raise(SIGSEGV);
}
static void crash_used_up(void) { crash_near_limit(100 << 20); }
static void crash_with_memory(void) { crash_near_limit(INT64_C(1) << 40); }

static void test_memory(void)
{
  is_int(end_in(crash_used_up), 2, "a crash where a limit on memory is used up: status 2");
  ok(strstr(logged, "crashed by SIGSEGV on ") && strstr(logged, ": out of memory: the limit on it is ") &&
     strstr(logged, " MiB (ulimit -v), of which ") && strstr(logged, " MiB are left; give more\n"), "... and why: %s", logged);
  is_int(end_in(crash_with_memory), -SIGSEGV, "... where it is not: the signal");
  ok(!strstr(logged, "memory"), "... and no word of memory: %s", logged);
}

/* ---- what a process begins with -------------------------------------------------------------- */

static void closed_descriptors(void)
{
  char byte = 0;
  for (int fd = 0; fd < 3; fd++) close(fd);
  tc_process_begin();
  for (int fd = 0; fd < 3; fd++)
    if (fcntl(fd, F_GETFD) < 0 || read(fd, &byte, 1) != -1 || write(fd, &byte, 1) != -1) _exit(1);
  _exit(42);
}

/* As with ulimit -n 0. */
static void no_descriptors(void)
{
  close(0);
  if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, 0 })) _exit(1);
  tc_process_begin();
  _exit(3);
}

static size_t default_stack(size_t bytes)
{
  pthread_attr_t a;
  size_t got = 0;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, bytes);
  pthread_setattr_default_np(&a);
  tc_process_begin();
  pthread_getattr_default_np(&a);
  pthread_attr_getstacksize(&a, &got);
  return got;
}
static void small_stacks(void) { _exit(default_stack(1 << 17) == 1 << 20 ? 42 : 1); }
static void enough_stacks(void) { _exit(default_stack((1 << 20) + 4096) == (1 << 20) + 4096 ? 42 : 1); }

static void limit_stack(rlim_t soft, rlim_t hard)
{
  TC_ASSERT(setrlimit(RLIMIT_STACK, &(struct rlimit){ soft, hard }) == 0);
}
static rlim_t stack_limit(void)
{
  struct rlimit l;
  TC_ASSERT(getrlimit(RLIMIT_STACK, &l) == 0);
  return l.rlim_cur;
}
static void soft_stack(void) { limit_stack(1 << 16, 2 << 20); tc_process_begin(); _exit(stack_limit() == 2 << 20 ? 42 : 1); }
static void free_stack(void)
{
  limit_stack(1 << 16, RLIM_INFINITY);
  tc_process_begin();
  _exit(stack_limit() == 8 << 20 ? 42 : 1);
}
static void large_stack(void) { limit_stack(1 << 20, 2 << 20); tc_process_begin(); _exit(stack_limit() == 1 << 20 ? 42 : 1); }
static void hard_stack(void) { limit_stack(1 << 16, (1 << 20) - 4096); tc_process_begin(); _exit(3); }

static void signals(void)
{
  struct sigaction pipe, size, crash;
  tc_process_begin();
  sigaction(SIGPIPE, NULL, &pipe);
  sigaction(SIGXFSZ, NULL, &size);
  sigaction(SIGSEGV, NULL, &crash);
  stack_t alt;
  sigaltstack(NULL, &alt);
  _exit(pipe.sa_handler == SIG_IGN && size.sa_handler == SIG_IGN &&
        (crash.sa_handler == SIG_DFL || (crash.sa_flags & SA_ONSTACK && !(alt.ss_flags & SS_DISABLE))) ? 42 : 1);
}

/* Threads that OpenMP will need can be had; each says its own rank. */
static void pool(void)
{
  struct tc_err err = { 0 };
  tc_log_set_rank(5);
  if (tc_process_pool(1, &err) || tc_process_pool(4, &err)) _exit(1);
  stand(4, "");
  if (tc_process_pool(4, &err)) _exit(2);
  int wrong = 0;
#pragma omp parallel num_threads(4) reduction(+ : wrong)
  wrong += tc_log_rank() != 5 && tc_log_rank() != 3;
  _exit(wrong ? 3 : 42);
}

static void test_begin(void)
{
  static const struct { void (*end)(void); const char *what; } row[] = {
    { closed_descriptors, "closed descriptors are opened; using them stays an error" },
    { small_stacks, "small stacks are widened" }, { enough_stacks, "others are left" },
    { soft_stack, "the main stack's limit is raised as far as it may be" }, { free_stack, "... to 8 MiB" },
    { large_stack, "... if it is below 1 MiB" },
    { signals, "signals of writing are ignored; crashes have a stack" },
    { pool, "a pool of threads" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    is_int(end_in(row[i].end), 42, "%s", row[i].what);
  is_int(end_in(no_descriptors), 2, "a closed descriptor that can't be opened: status 2");
  is_str(logged, "tercio: a standard descriptor is closed, and none can be opened in its place\n",
         "... and a message");
  is_int(end_in(hard_stack), 2, "a stack that can't be raised to 1 MiB: status 2");
  is_str(logged, "tercio: the limit on the stack is too low (ulimit -s): give 1024 (KiB) or more\n", "... and a message");
}

int main(void)
{
  static const int by_library[] = { 0, 1, 9, 127, 255 };
  for (size_t i = 0; i < sizeof by_library / sizeof *by_library; i++) {
    char what[60];
    snprintf(what, sizeof what, "a library ended the process with status %d ", by_library[i]);
    is_int(end_by(EXIT, by_library[i]), 2, "a library exits with %d: status 2", by_library[i]);
    ok(strstr(logged, what) && lines == 1, "... and a line: %s", logged);
  }
  for (int status = 2; status <= 8; status++) {
    is_int(end_by(EXIT, status), status, "MPI_Abort with %d: that status", status);
    is_str(logged, "", "... and no line");
  }
  static const int own[] = { 0, 1, 2, 85, 86, 93 };
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    is_int(end_by(EXIT_AFTER_MAIN, own[i]), own[i], "main returns %d: that status", own[i]);
    is_str(logged, "", "... and no line");
  }
  if (getenv("TC_SANITIZED") && !strcmp(getenv("TC_SANITIZED"), "yes")) {
    skip("sanitizers report crashes themselves");
  } else {
    is_int(end_by(CRASH, SIGSEGV), -SIGSEGV, "a crash: its signal");
    ok(strstr(logged, "crashed by SIGSEGV") && lines == 1, "... and a line: %s", logged);
    test_lines();
    test_memory();
  }
  test_begin();
  return done_testing();
}
