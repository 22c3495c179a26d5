/* t_each.c - work that several threads share: each part is done once, by as many threads as are wanted or can be
 * started; which failure is returned does not depend on them. */
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static int most_threads, started;

static int start(pthread_t *thread, void *(*run)(void *), void *arg, struct tc_err *err)
{
  if (started == most_threads) return tc_fail(err, TC_EUSER, "no more threads than %d", started);
  started++;
  return tc_thread_start(thread, run, arg, err);
}

#define tc_thread_start start
#include "src/base/each.c"
#undef tc_thread_start

enum { PARTS = 300, THREADS = 64 };

struct job {
  atomic_int calls[PARTS], of_thread[THREADS];
  int fails[3];                   /* parts that fail; -1: none */
  int late;                       /* the one that fails after another; it must begin before; -1: none */
  int together;                   /* a part ends when so many have begun */
  atomic_int begun, failed;
  pthread_t caller;
  atomic_int wrong;
};

static int do_part(void *ctx, int64_t part, int thread, struct tc_err *err)
{
  struct job *j = ctx;
  if (thread < 0 || thread >= THREADS || part < 0 || part >= PARTS) {
    j->wrong++;
    return TC_OK;
  }
  if ((thread == 0) != (pthread_equal(j->caller, pthread_self()) != 0)) j->wrong++;
  if (j->of_thread[thread]++) j->wrong++;           /* two at the same time */
  j->calls[part]++;
  j->begun++;
  while (atomic_load(&j->begun) < j->together) usleep(100);
  bool fails = false;
  for (int i = 0; i < 3; i++) fails |= part == j->fails[i];
  if (fails) {
    while (part < j->late && !atomic_load(&j->calls[j->late])) usleep(100);
    while (part == j->late && !atomic_load(&j->failed)) usleep(100);
    if (part == j->late) usleep(2000);              /* so that the other failure is noted most probably */
    j->failed++;
    tc_fail(err, TC_EUSER, "part %lld", (long long)part);
  }
  j->of_thread[thread]--;
  return err->status;
}

static struct job *job_new(int together)
{
  struct job *j = tc_calloc(1, sizeof *j);
  for (int i = 0; i < 3; i++) j->fails[i] = -1;
  j->together = together;
  j->late = -1;
  j->caller = pthread_self();
  started = 0;
  return j;
}

/* Of the parts [from, to), those that were not done `times` times. */
static int others(struct job *j, int from, int to, int times)
{
  int n = 0;
  for (int i = from; i < to; i++) n += atomic_load(&j->calls[i]) != times;
  return n;
}

/* With as many threads as `want`, all at work at the same time. */
static void test_all(void)
{
  static const struct { int n, jobs, most, want; } row[] = {
    { 0, 4, THREADS, 0 }, { 1, 4, THREADS, 1 }, { 3, 8, THREADS, 3 }, { PARTS, 1, THREADS, 1 }, { PARTS, 0, THREADS, 1 },
    { PARTS, 4, THREADS, 4 }, { PARTS, THREADS, THREADS, THREADS }, { PARTS, 8, 0, 1 }, { PARTS, 8, 2, 3 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct job *j = job_new(row[i].want);
    struct tc_err err = { 0 };
    most_threads = row[i].most;
    is_int(tc_each(row[i].n, row[i].jobs, do_part, j, &err), TC_OK, "%d parts by %d threads, of which %d can be started",
           row[i].n, row[i].jobs, row[i].most);
    ok(!others(j, 0, row[i].n, 1) && !others(j, row[i].n, PARTS, 0) && !err.status, "... each is done once");
    ok(started == TC_MAX(row[i].want, 1) - 1 && !j->wrong, "... by %d threads and the caller", started);
    free(j);
  }
}

/* The first part that failed by its number, also where another fails before or after it; what is after it may have begun before. */
static void test_failure(void)
{
  static const struct { int fails[3], first, late; } row[] = {
    { { 0, -1, -1 }, 0, -1 }, { { PARTS - 1, -1, -1 }, PARTS - 1, -1 }, { { 100, 99, 101 }, 99, 99 },
    { { 5, 7, -1 }, 5, 7 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    for (int jobs = 1; jobs <= 16; jobs *= 4) {
      struct job *j = job_new(jobs);
      struct tc_err err = { 0 };
      char want[20];
      most_threads = THREADS;
      memcpy(j->fails, row[i].fails, sizeof j->fails);
      if (jobs > 1) j->late = row[i].late;
      snprintf(want, sizeof want, "part %d", row[i].first);
      is_int(tc_each(PARTS, jobs, do_part, j, &err), TC_EUSER, "%s fails, of %d threads", want, jobs);
      is_str(err.text, want, "... and is the one that is named");
      ok(!others(j, 0, row[i].first + 1, 1) && !j->wrong, "... all before it are done");
      ok(jobs > 1 || !others(j, row[i].first + 1, PARTS, 0), "... and of one thread none after it");
      free(j);
    }
}

int main(void)
{
  alarm(300);
  ok(tc_cpus() >= 1, "%d CPUs", tc_cpus());
  test_all();
  test_failure();
  return done_testing();
}
