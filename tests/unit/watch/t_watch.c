/* t_watch.c - the watchdog: a thread that stands still ends the process and says where; one that
 * moves, rests or waits does not; the rank that blocks a wait is found, over processes too;
 * a process that does not answer is the suspect. */
#include "io/folder.h"
#include "src/watch/watch.h"
#include "tests/unit/tap.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { W = 4 };

static const char *const who[W] = { "rank 0 on a", "rank 1 on a", "rank 2 on b", "rank 3 on b" };
static int hang_fsync;            /* in the children only */

/* The deadline of the children, what they do meanwhile, and how long one hangs that is not ended.
 * They are far apart: a machine that is slow to wake a thread changes nothing. */
#define DEADLINE_S 1.5
#define SHORT_S 0.05
#define LONG_S (2 * DEADLINE_S)
#define HANG_S 120

static void nap(double s) { tc_sleep_ns((int64_t)(s * 1e9)); }

/* In the place of libc's: a file system that never answers. */
int fsync(int fd)
{
  (void)fd;
  if (hang_fsync) nap(HANG_S);
  return 0;
}

static void end(int status, const char *why)
{
  fprintf(stderr, "end: %s\n", why);
  _exit(status);
}

static struct tc_watch *make(double deadline_s, int first, int n)
{
  const struct tc_watch_opts o = { .deadline_s = deadline_s, .world = W, .first = first,
                                   .n_local = n, .rank_names = who, .end = end };
  struct tc_watch *w;
  TC_ASSERT(tc_watch_new(&w, &o, NULL) == 0);
  return w;
}

/* ---- what ends a process ---------------------------------------------------------------- */

static void still(void)
{
  tc_at_step(7);
  tc_at("forward", "matmul", "h.3", 2);
  nap(HANG_S);
}

static void file_op(void)
{
  struct tc_err err;
  tc_at_step(12);
  hang_fsync = 1;
  tc_folder_sync("/", &err);
}

static void moving(void)
{
  for (double s = 0; s < LONG_S; s += SHORT_S, nap(SHORT_S)) tc_at_again();
}

static void resting(void)
{
  tc_at_rest();
  nap(LONG_S);
}

static void waiting(void)
{
  tc_thread_status_waits(tc_blocked_call_new());
  nap(LONG_S);
}

static void allowed(void)
{
  tc_watch_allow(HANG_S);
  nap(LONG_S);
}

static void *writer(void *thread)
{
  tc_thread_status_use(thread);
  tc_at_file("writing", "/nfs/ckpt");
  nap(HANG_S);
  return NULL;
}

static void second_lane(void)
{
  pthread_t t;
  pthread_create(&t, NULL, writer, tc_thread_status_new("writer"));
  for (double s = 0; s < HANG_S; s += SHORT_S, nap(SHORT_S)) tc_at_again();
}

/* A process that does it, as rank 1. */
struct child { pid_t pid; FILE *logged; };

static struct child start(void (*what)(void))
{
  struct child c = { .logged = tmpfile() };
  c.pid = fork();
  if (c.pid != 0) return c;
  dup2(fileno(c.logged), STDERR_FILENO);
  struct tc_watch *w = make(DEADLINE_S, 1, 1);
  tc_watch_enter(w, 1);
  what();
  tc_watch_leave(0, NULL);
  tc_watch_free(w);
  _exit(0);
}

/* Its exit status and stderr. */
static int end_of(struct child *c, char *logged, size_t size)
{
  int status = 0;
  waitpid(c->pid, &status, 0);
  rewind(c->logged);
  logged[fread(logged, 1, size - 1, c->logged)] = 0;
  fclose(c->logged);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_ends(void)
{
  static const struct {
    const char *name;
    void (*what)(void);
    int status;
    const char *logged;
  } c[] = {
    { "a thread that stands still", still, 8,
      " s (deadline run.deadline) at step 7, forward matmul of h.3, micro-batch 2" },
    { "an fsync that never returns", file_op, 8, "step 12, fsync of /" },
    { "another thread that stands still", second_lane, 8, "at writer: writing of /nfs/ckpt" },
    { "a thread that moves", moving, 0, "" }, { "a thread at rest", resting, 0, "" },
    { "a thread that waits for its communicator", waiting, 0, "" },
    { "a thread that is allowed more", allowed, 0, "" },
  };
  enum { N = sizeof c / sizeof *c };
  struct child child[N];
  for (int i = 0; i < N; i++) child[i] = start(c[i].what);
  for (int i = 0; i < N; i++) {
    char logged[4000];
    is_int(end_of(&child[i], logged, sizeof logged), c[i].status, "%s: status %d", c[i].name,
           c[i].status);
    if (c[i].status) ok(strstr(logged, "rank 1 on a has stood still for "), "... is named");
    ok(strstr(logged, c[i].logged) && (c[i].status || !*logged), "... says: %.*s",
       (int)strcspn(logged, "\n"), logged);
  }
}

/* ---- the search for suspects ------------------------------------------------------------------------ */

/* The watchdog's lines do not belong to TAP. */
static int hush(void)
{
  int old = dup(STDERR_FILENO);
  if (!freopen("/dev/null", "w", stderr)) exit(1);
  return old;
}

static void unhush(int old)
{
  dup2(old, STDERR_FILENO);
  close(old);
}

/* The calling thread becomes `rank`, which waits for `late`, or for none (-1). */
static struct tc_blocked_call *stand(struct tc_watch *w, int rank, int32_t late)
{
  tc_watch_enter(w, rank);
  tc_at_step(3);
  tc_at("forward", "layernorm", "h.1", 0);
  if (late < 0) return NULL;
  struct tc_blocked_call *s = tc_blocked_call_new();
  tc_blocked_call_set(s, "recv 'h.1' on axis pp", 1.5, &late, 1);
  tc_thread_status_waits(s);
  return s;
}

static void test_local(void)
{
  struct tc_diagnosis b;
  struct tc_err err;
  struct tc_watch *w = make(60, 0, W);
  stand(w, 0, -1);
  stand(w, 1, 0);
  stand(w, 2, 1);
  ok(tc_blocked_call_diagnose(stand(w, 3, 2), &b), "rank 3 waits for 2, for 1, for 0: found");
  is_str(b.suspects, "rank 0 on a", "... it is 0");
  ok(strstr(b.why, "it stands at step 3, forward layernorm of h.1, micro-batch 0, for ") &&
     strstr(b.why, "; rank 1 on a waits for it"), "... %s", b.why);
  tc_watch_free(w);

  w = make(60, 0, W);
  stand(w, 0, 1);
  stand(w, 1, 2);
  ok(tc_blocked_call_diagnose(stand(w, 2, 0), &b) && b.n == 0, "a circle has no culprit");
  ok(strstr(b.why, "a message was lost") != NULL, "... %s", b.why);
  tc_watch_free(w);

  w = make(60, 0, W);
  stand(w, 0, -1);
  tc_fail(&err, TC_EUSER, "the device is gone");
  tc_watch_leave(TC_EUSER, &err);
  stand(w, 1, 0);
  stand(w, 2, -1);
  ok(tc_blocked_call_diagnose(stand(w, 3, 1), &b), "who has left is found");
  is_str(b.suspects, "rank 0 on a", "... by name");
  ok(strstr(b.why, "it has ended: status 2: the device is gone") != NULL, "... %s", b.why);
  tc_watch_free(w);

  tc_thread_status_use(NULL);
  ok(!tc_blocked_call_new() && !tc_blocked_call_diagnose(NULL, &b), "without a watchdog nothing happens");
  tc_at_file("nothing", "at all");
}

/* ---- several processes ---------------------------------------------------------------------- */

enum { MESSAGES = 64, MESSAGE = 4000 };

/* Boxes[i] is process i's; messages to the dead are lost. */
struct office {
  pthread_mutex_t lock;
  char message[W][MESSAGES][MESSAGE];
  int head[W], tail[W], sent[W];
  int dead;
};
struct box { struct tc_channel channel; struct office *office; int me; };

static void box_send(struct tc_channel *m, int to, const void *buf, int bytes)
{
  struct box *b = (struct box *)m;
  pthread_mutex_lock(&b->office->lock);
  b->office->sent[b->me]++;
  if (to != b->office->dead && bytes <= MESSAGE && b->office->tail[to] < MESSAGES)
    memcpy(b->office->message[to][b->office->tail[to]++], buf, (size_t)bytes);
  pthread_mutex_unlock(&b->office->lock);
}

static bool box_poll(struct tc_channel *m, void *buf, int bytes)
{
  struct box *b = (struct box *)m;
  pthread_mutex_lock(&b->office->lock);
  bool got = b->office->head[b->me] < b->office->tail[b->me];
  if (got) memcpy(buf, b->office->message[b->me][b->office->head[b->me]++], (size_t)bytes);
  pthread_mutex_unlock(&b->office->lock);
  return got;
}

static void box_free(struct tc_channel *m) { free(m); }

static struct tc_channel *box(struct office *o, int me)
{
  struct box *b = tc_calloc(1, sizeof *b);
  *b = (struct box){ { box_send, box_poll, box_free }, o, me };
  return &b->channel;
}

static bool all_sent(struct office *o)
{
  bool all = true;
  pthread_mutex_lock(&o->lock);
  for (int i = 1; i < W; i++) all &= o->sent[i] > 0;
  pthread_mutex_unlock(&o->lock);
  return all;
}

static void test_processes(void)
{
  struct office *o = tc_calloc(1, sizeof *o);
  struct tc_watch *w[W];
  struct tc_blocked_call *s[W];
  struct tc_diagnosis b;
  pthread_mutex_init(&o->lock, NULL);
  o->dead = 0;
  for (int i = 1; i < W; i++) {
    w[i] = make(60, i, 1);
    tc_watch_channel(w[i], box(o, i));
    s[i] = stand(w[i], i, i - 1);
  }
  ok(tc_blocked_call_diagnose(s[3], &b), "processes 3, 2, 1 wait for each next, and 0 is dead: found");
  is_str(b.suspects, "rank 0 on a", "... it is 0");
  ok(strstr(b.why, "no sign of life") && strstr(b.why, "rank 1 on a waits for it"), "... %s",
     b.why);
  for (int i = 0; i < 1200 && !all_sent(o); i++) nap(SHORT_S);
  ok(all_sent(o), "each process heard of it, and passed it on");
  for (int i = 1; i < W; i++) tc_watch_free(w[i]);
  free(o);
}

int main(void)
{
  test_ends();
  int old = hush();
  test_local();
  test_processes();
  unhush(old);
  return done_testing();
}
