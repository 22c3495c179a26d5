/* process.c - descriptors, limits, ignored signals, and the line about a crash or an exit by a library.
 *
 * Invariants:
 * - the handler calls nothing but what signal-safety(7) allows, takes no lock, and reads what the
 *   crashed thread itself wrote;
 * - the default action follows, with its core file and its status, 128 + signal; but where a limit on memory is
 *   used up, the crash is a library's that got none, and the status that of other failures for want of it. */
#include "src/launch/process.h"
#include "src/launch/stop.h"
#include "src/watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

static const struct { int number; const char *name; } crash[] = {
  { SIGSEGV, "SIGSEGV" }, { SIGBUS, "SIGBUS" }, { SIGFPE, "SIGFPE" }, { SIGILL, "SIGILL" },
  { SIGABRT, "SIGABRT" },
};
enum { N_CRASH = sizeof crash / sizeof *crash, LEAST_STACK_BYTES = 1 << 20, STACK_BYTES = 8 << 20 };
#define LEAST_LEFT_BYTES (INT64_C(256) << 20)

static _Noreturn void end_with(const char *sentence)
{
  ssize_t unused = write(STDERR_FILENO, sentence, strlen(sentence));
  (void)unused;
  _exit(-TC_EUSER);
}

/* Does without /dev/null, which a container may lack, or may not let everyone write to. */
static void open_closed(void)
{
  static const char sentence[] =
      "tercio: a standard descriptor is closed, and none can be opened in its place\n";
  for (int fd = 0; fd < 3; fd++) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    /* open takes the lowest free number, which is this one. O_PATH: to read or write it is an
     * error, as before. */
    if (open("/", O_PATH | O_DIRECTORY) == fd) continue;
    end_with(sentence);
  }
}

/* A limit that is raised counts at once for the main thread's stack, which grows as it is used. */
static void raise_stack_limit(void)
{
  struct rlimit l;
  if (getrlimit(RLIMIT_STACK, &l) != 0 || l.rlim_cur >= LEAST_STACK_BYTES) return;
  l.rlim_cur = l.rlim_max == RLIM_INFINITY ? STACK_BYTES : TC_MIN(l.rlim_max, (rlim_t)STACK_BYTES);
  if (l.rlim_cur < LEAST_STACK_BYTES || setrlimit(RLIMIT_STACK, &l) != 0)
    end_with("tercio: the limit on the stack is too low (ulimit -s): give 1024 (KiB) or more\n");
}

/* The default of threads is the limit of the main one's stack (ulimit -s). On a small one a large
 * frame would reach across the guard page, into other memory. */
static void widen_stacks(void)
{
  pthread_attr_t a;
  size_t bytes = 0;
  if (pthread_getattr_default_np(&a)) return;
  if (!pthread_attr_getstacksize(&a, &bytes) && bytes < LEAST_STACK_BYTES &&
      !pthread_attr_setstacksize(&a, LEAST_STACK_BYTES))
    pthread_setattr_default_np(&a);
  pthread_attr_destroy(&a);
}

/* ---- the line --------------------------------------------------------------------------- */

static void add(char *text, size_t size, const char *more)
{
  size_t n = strlen(text);
  while (*more && n + 1 < size) text[n++] = *more++;
  text[n] = 0;
}

static void add_number(char *text, size_t size, int64_t x)
{
  char digits[24];
  size_t at = sizeof digits;
  digits[--at] = 0;
  do digits[--at] = (char)('0' + x % 10);
  while ((x /= 10) > 0);
  add(text, size, digits + at);
}

/* "tercio[3]: WHAT on node2, PID 4711, thread checkpoint writer, step 7, at laying out of FILE; MORE" */
static void say_where(const char *what, const char *more)
{
  char line[600] = "tercio", plain[1200];
  struct tc_standing at;
  struct utsname host;
  const int rank = tc_watch_standing(&at) ? at.rank : tc_log_rank();
  if (rank >= 0) {
    add(line, sizeof line, "[");
    add_number(line, sizeof line, rank);
    add(line, sizeof line, "]");
  }
  add(line, sizeof line, ": ");
  add(line, sizeof line, what);
  if (uname(&host) == 0) {
    add(line, sizeof line, " on ");
    add(line, sizeof line, host.nodename);
  }
  add(line, sizeof line, ", PID ");
  add_number(line, sizeof line, getpid());
  if (*at.thread && strcmp(at.thread, "main")) {
    add(line, sizeof line, ", thread ");
    add(line, sizeof line, at.thread);
  }
  if (at.step > 0) {
    add(line, sizeof line, ", step ");
    add_number(line, sizeof line, at.step);
  }
  for (int i = 0; i < TC_STANDING_WORDS && *at.word[i]; i++) {
    add(line, sizeof line, i == 0 ? ", at " : i == 1 ? " " : " of ");
    add(line, sizeof line, at.word[i]);
  }
  add(line, sizeof line, more);
  line[sizeof line - 2] = 0;
  tc_plain(plain, sizeof plain - 1, line, false);                 /* it has names of files */
  add(plain, sizeof plain, "\n");
  ssize_t unused = write(STDERR_FILENO, plain, strlen(plain));
  (void)unused;
}

/* The first number of /proc/self/statm: the address space in use. 0: not known. */
static int64_t address_space_bytes(void)
{
  char text[32] = "";
  int64_t pages = 0;
  const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++) pages = 10 * pages + (text[i] - '0');
  return pages * sysconf(_SC_PAGESIZE);
}

/* Whether a limit (ulimit -v) leaves so little that a library may have got no memory: glibc takes 128 MiB at once for a
 * thread that allocates. more[size]: what to say of it. */
static bool memory_used_up(char *more, size_t size)
{
  struct rlimit l;
  if (getrlimit(RLIMIT_AS, &l) != 0 || l.rlim_cur == RLIM_INFINITY) return false;
  const int64_t limit = (int64_t)TC_MIN(l.rlim_cur, (rlim_t)INT64_MAX), left = limit - address_space_bytes();
  if (left > LEAST_LEFT_BYTES) return false;
  add(more, size, ": out of memory: the limit on it is ");
  add_number(more, size, limit >> 20);
  add(more, size, " MiB (ulimit -v), of which ");
  add_number(more, size, TC_MAX(left, 0) >> 20);
  add(more, size, " MiB are left; give more");
  return true;
}

/* Returns the status that the process is to end with, in place of the signal; 0: none. */
static int say_crash(int number)
{
  char what[40] = "crashed by ", more[160] = "";
  for (int i = 0; i < N_CRASH; i++)
    if (crash[i].number == number) add(what, sizeof what, crash[i].name);
  const bool used_up = memory_used_up(more, sizeof more);
  say_where(what, more);
  return used_up ? -TC_EUSER : 0;
}

struct tc_process { bool ended; };

/* Statuses of its own; MPI_Abort ends the process with the one it was given. */
static bool is_ours(int status)
{
  static const int ours[] = { -TC_EUSER, -TC_EINCOMPLETE, -TC_ECHECKSUM, -TC_ENOCKPT, -TC_ELAYOUT,
                              -TC_EDIVERGED, -TC_EPEER };
  for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
    if (status == ours[i]) return true;
  return false;
}

/* A library that calls exit (HDF5 without memory, OpenMP without threads) does so with a status that
 * means something else here. */
static void on_exit_of_library(int status, void *process)
{
  const struct tc_process *p = process;
  char what[60] = "a library ended the process with status ";
  if (p->ended || is_ours(status & 255)) return;
  add_number(what, sizeof what, status & 255);
  say_where(what, "; see its own message; if memory is limited (ulimit -v), it may have run out");
  _exit(-TC_EUSER);
}

/* The handler stays installed until the line is written, so that threads that crash together each report it. */
static void on_crash(int number)
{
  tc_stop_end(number, say_crash(number));
}

static void report_crashes(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
  return;                                        /* the sanitizer's report says more */
#endif
  struct sigaction a = { .sa_handler = on_crash, .sa_flags = SA_ONSTACK };
  sigemptyset(&a.sa_mask);
  for (int i = 0; i < N_CRASH; i++) sigaction(crash[i].number, &a, NULL);
  tc_signal_stack_new();                         /* the main thread's, until the process ends */
}

struct tc_process *tc_process_begin(void)
{
  open_closed();
  raise_stack_limit();
  struct tc_process *p = tc_calloc(1, sizeof *p);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  widen_stacks();
  report_crashes();
  on_exit(on_exit_of_library, p);
  return p;
}

int tc_process_end(struct tc_process *p, int status)
{
  p->ended = true;
  return status;
}

/* ---- OpenMP's threads --------------------------------------------------------------------- */

static void *wait_for_all(void *arg)
{
  pthread_mutex_t *gate = arg;
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

/* Tries n threads at once, for a moment. */
static int probe_threads(int n, struct tc_err *err)
{
  pthread_mutex_t gate;
  pthread_t *thread = tc_calloc((size_t)TC_MAX(n, 1), sizeof *thread);
  int rc = 0, started = 0;
  pthread_mutex_init(&gate, NULL);
  pthread_mutex_lock(&gate);
  for (; started < n && !rc; started += rc == 0)
    rc = tc_thread_start(&thread[started], wait_for_all, &gate, err);
  pthread_mutex_unlock(&gate);
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  pthread_mutex_destroy(&gate);
  free(thread);
  return rc;
}

int tc_process_pool(int n, struct tc_err *err)
{
  const struct tc_thread_status *status = tc_thread_status_mine();
  const int rank = tc_log_rank();
  TC_TRY(probe_threads(n - 1, err));
#pragma omp parallel num_threads(n)
  if (tc_thread_status_mine() != status || !status) {
    tc_log_set_rank(rank);
    if (!tc_thread_status_helps(status)) tc_signal_stack_new();   /* until the process ends */
  }
  return 0;
}
