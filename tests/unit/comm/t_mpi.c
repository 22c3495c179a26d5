/* t_mpi.c - calls of MPI (mpi.c), call by call, with a made-up MPI and a clock of the
 * test's own. Ranks that are processes are tests/mpi's. */
#include "src/comm/impl.h"
#include "src/comm/mpi.h"
#include "src/watch/watch.h"
#include "tests/unit/leak.h"
#include "tests/unit/tap.h"

#include <mpi.h>
#include <signal.h>
#include <sys/wait.h>

enum { FAILS = MPI_ERR_OTHER };

static struct {
  char log[1500], warned[300];
  int init, level, barrier, test, post, probe; /* what these answer */
  int tests, done_at; /* a request is done at the done_at-th test of all */
  int requests, count, hangs;
  bool up, down;
  int64_t now_ns;
} mpi;

static int64_t clock_ns(void) { return mpi.now_ns; }
static void pass(int64_t ns) { mpi.now_ns += ns; }

TAP_FORMAT(1, 2)
static void note(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(mpi.warned, sizeof mpi.warned, fmt, ap);
  va_end(ap);
}

TAP_FORMAT(1, 2)
static void write_down(const char *fmt, ...)
{
  char line[200];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  tc_text_add(mpi.log, sizeof mpi.log, "%s%s", *mpi.log ? ", " : "", line);
}

static MPI_Request request(int n) { return (MPI_Request)(intptr_t)(n + 1000); }
static int number(MPI_Request r) { return (int)((intptr_t)r - 1000); }

static int f_init(int *argc, char ***argv, int wanted, int *got)
{
  *got = mpi.level;
  write_down("init%s", argc || argv || wanted != MPI_THREAD_MULTIPLE ? "?" : "");
  return mpi.init;
}

static int f_finalize(void)
{
  write_down("finalize");
  return MPI_SUCCESS;
}

static int f_errors(MPI_Comm c, MPI_Errhandler h)
{
  write_down("errors%s", c == MPI_COMM_WORLD && h == MPI_ERRORS_RETURN ? "" : "?");
  return MPI_SUCCESS;
}

static int f_rank(MPI_Comm c, int *rank)
{
  return *rank = c == MPI_COMM_WORLD ? 5 : 99, MPI_SUCCESS;
}
static int f_size(MPI_Comm c, int *size)
{
  return *size = c == MPI_COMM_WORLD ? 8 : 99, MPI_SUCCESS;
}

static int f_barrier(MPI_Comm c, MPI_Request *r)
{
  write_down("barrier%s", c == MPI_COMM_WORLD ? "" : "?");
  *r = request(mpi.requests++);
  return mpi.barrier;
}

static int f_test(MPI_Request *r, int *done, MPI_Status *s)
{
  (void)s;
  *done = mpi.tests++ >= mpi.done_at && number(*r) != mpi.hangs;
  if (*done) *r = MPI_REQUEST_NULL;
  return mpi.test;
}

static int send_to(const void *buf, int n, MPI_Datatype t, int to, int tag, MPI_Comm c,
                   MPI_Request *r)
{
  write_down("send %d '%.*s' to %d #%d%s", n, TC_MIN(n, 20), (const char *)buf, to, tag,
             t == MPI_BYTE && c == MPI_COMM_WORLD ? "" : "?");
  if (mpi.post == MPI_SUCCESS) *r = request(mpi.requests++);
  return mpi.post;
}

static int recv_from(void *buf, int n, MPI_Datatype t, int from, int tag, MPI_Comm c,
                     MPI_Request *r)
{
  write_down("recv %d from %d #%d%s", n, from, tag,
             t == MPI_BYTE && c == MPI_COMM_WORLD ? "" : "?");
  memset(buf, 'r', (size_t)n);
  if (mpi.post == MPI_SUCCESS) *r = request(mpi.requests++);
  return mpi.post;
}

static int f_probe(int from, int tag, MPI_Comm c, int *got, MPI_Message *m, MPI_Status *s)
{
  (void)m, (void)s;
  write_down("probe #%d%s", tag, from == MPI_ANY_SOURCE && c == MPI_COMM_WORLD ? "" : "?");
  *got = mpi.count > 0;
  return mpi.probe;
}

static int f_mrecv(void *buf, int n, MPI_Datatype t, MPI_Message *m, MPI_Status *s)
{
  (void)t, (void)m, (void)s;
  memset(buf, 'm', (size_t)n);
  return mpi.test;
}

static int f_count(const MPI_Status *s, MPI_Datatype t, int *n)
{
  return (void)s, (void)t, *n = mpi.count, MPI_SUCCESS;
}
static int f_cancel(MPI_Request *r) { return write_down("cancel %d", number(*r)), MPI_SUCCESS; }

static int f_request_free(MPI_Request *r)
{
  write_down("free %d", number(*r));
  *r = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

static int f_error(int rc, char *text, int *n)
{
  *n = snprintf(text, MPI_MAX_ERROR_STRING, "error %d", rc == FAILS);
  text[*n] = 'x';
  return MPI_SUCCESS;
}

static int f_up(int *up) { return *up = mpi.up, MPI_SUCCESS; }
static int f_down(int *down) { return *down = mpi.down, MPI_SUCCESS; }
static unsigned f_alarm(unsigned s) { return write_down("alarm %u", s), 0; }

static int f_abort(MPI_Comm c, int status)
{
  if (mpi.hangs == 1) raise(SIGALRM);
  _exit(c == MPI_COMM_WORLD && strstr(mpi.log, "alarm 10") ? 40 + status : 39);
}

#define tc_now_ns clock_ns
#define tc_sleep_ns pass
#define tc_warn note
#define alarm f_alarm
#undef MPI_Comm_rank
#define MPI_Init_thread f_init
#define MPI_Finalize f_finalize
#define MPI_Comm_set_errhandler f_errors
#define MPI_Comm_rank f_rank
#define MPI_Comm_size f_size
#define MPI_Ibarrier f_barrier
#define MPI_Test f_test
#define MPI_Isend send_to
#define MPI_Irecv recv_from
#define MPI_Improbe f_probe
#define MPI_Mrecv f_mrecv
#define MPI_Get_count f_count
#define MPI_Cancel f_cancel
#define MPI_Request_free f_request_free
#define MPI_Error_string f_error
#define MPI_Initialized f_up
#define MPI_Finalized f_down
#define MPI_Abort f_abort
#include "src/comm/mpi.c"

static void make(void)
{
  memset(&mpi, 0, sizeof mpi);
  mpi.level = MPI_THREAD_MULTIPLE;
  mpi.hangs = -1;
  mpi.now_ns = 5000000000;
}

/* ---- start and end --------------------------------------------------------------------------- */

static void test_start(void)
{
  struct tc_err err = { 0 };
  int rank = -1, world = -1;
  make();
  is_int(tc_mpi_start(&rank, &world, &err), 0, "MPI starts");
  ok(rank == 5 && world == 8, "... rank and ranks");
  is_str(mpi.log, "init, errors", "... errors come back");
  make();
  mpi.init = FAILS;
  is_int(tc_mpi_start(&rank, &world, &err), TC_EPEER, "MPI does not start");
  is_str(err.text, "MPI does not start: start with srun --mpi=pmix or Open MPI's mpirun, or without PMIX_* in "
         "the environment; a small MPI program run the same way shows more", "... in these words");
  is_str(mpi.log, "init", "... and left alone");
  make();
  mpi.level = MPI_THREAD_SINGLE;
  is_int(tc_mpi_start(&rank, &world, &err), TC_EUSER, "MPI without threads");
  char *want = tc_sprintf("this MPI library was built without MPI_THREAD_MULTIPLE (it grants "
                          "level %d); use one that has it",
                          MPI_THREAD_SINGLE);
  is_str(err.text, want, "... is reported");
  free(want);
  is_str(mpi.log, "init, finalize", "... and ended");
  make();
  tc_mpi_finish();
  is_str(mpi.log, "finalize", "the end");
}

static void test_meet(void)
{
  static const struct {
    const char *name;
    double deadline_s;
    int barrier, test, done_at, status;
    int64_t took_ns;
  } rows[] = { { "at once", 3, 0, 0, 0, 0, 0 },
               { "in time", 3, 0, 0, 7, 0, 700000 },
               { "late", 3, 0, 0, 1 << 30, TC_EPEER, 3000100000 },
               { "without a deadline", 0, 0, 0, 1 << 30, TC_EPEER, 600000100000 },
               { "without a barrier", 3, FAILS, 0, 0, TC_EPEER, 0 },
               { "broken", 3, 0, FAILS, 9, TC_EPEER, 0 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_err err = { 0 };
    make();
    mpi.barrier = rows[i].barrier;
    mpi.test = rows[i].test;
    mpi.done_at = rows[i].done_at;
    int64_t began = mpi.now_ns;
    is_int(tc_mpi_meet(rows[i].deadline_s, &err), rows[i].status, "all ranks meet, %s",
           rows[i].name);
    is_str(mpi.log, "barrier", "... at a barrier");
    is_int(mpi.now_ns - began, rows[i].took_ns, "... after so long");
    char want[200] = "";
    if (rows[i].status)
      snprintf(want, sizeof want,
               "not all ranks reached the end of the run within %d s "
               "(deadline run.deadline): see the "
               "other ranks\' logs",
               rows[i].deadline_s > 0 ? 3 : 600);
    is_str(err.text, want, "... the sentence");
  }
}

static void test_abort(void)
{
  static const struct {
    bool up, down;
    int hangs, want;
  } rows[] = {
    { true, false, -1, 47 }, { true, true, -1, 7 }, { false, false, -1, 7 }, { true, false, 1, 8 }
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      make();
      mpi.up = rows[i].up;
      mpi.down = rows[i].down;
      mpi.hangs = rows[i].hangs;
      tc_mpi_abort(7);
      _exit(1);
    }
    waitpid(pid, &status, 0);
    is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, rows[i].want,
           "the end of all, MPI is%s up%s%s", rows[i].up ? "" : " not",
           rows[i].down ? " and down again" : "", rows[i].hangs > 0 ? ", and hangs" : "");
  }
}

/* ---- messages --------------------------------------------------------------------------------- */

static void test_mail(void)
{
  char text[8] = "hello";
  struct tc_channel *m = tc_mpi_channel();
  const struct channel *in = (const struct channel *)m;
  make();
  mpi.done_at = 1 << 30;
  m->send(m, 3, text, 6);
  text[0] = 'j';
  m->send(m, 4, text, 6);
  is_str(mpi.log, "send 6 'hello' to 3 #32704, send 6 'jello' to 4 #32704", "messages are sent");
  ok(in->n == 2 && !memcmp(in->sent[0].copy, "hello", 6), "... as they were");
  mpi.post = FAILS;
  m->send(m, 4, text, 6);
  is_int(in->n, 2, "one that fails is lost");
  mpi.post = MPI_SUCCESS;
  mpi.done_at = 0;
  mpi.hangs = 1;
  m->send(m, 5, "x", 2);
  ok(in->n == 2 && number(in->sent[0].mpi) == 1 && number(in->sent[1].mpi) == 2,
     "what was delivered is forgotten");
  mpi.log[0] = 0;
  mpi.count = 6;
  ok(m->poll(m, text, 6) && !memcmp(text, "mmmmmm", 6), "a message was received");
  is_str(mpi.log, "probe #32704", "... from anybody");
  mpi.test = FAILS;
  ok(!m->poll(m, text, 6), "... and can't be read");
  mpi.test = MPI_SUCCESS;
  mpi.probe = FAILS;
  ok(!m->poll(m, text, 6), "... nor looked for");
  mpi.probe = MPI_SUCCESS;
  mpi.count = 0;
  ok(!m->poll(m, text, 6), "none came");
  mpi.log[0] = 0;
  void *left = in->sent[0].copy;
  m->free(m);
  free(left);
  is_str(mpi.log, "free 1", "what is under way is left to MPI");
}

/* ---- the link ----------------------------------------------------------------------------------- */

static struct link *make_link(int id)
{
  struct link *l = tc_calloc(1, sizeof *l);
  make();
  l->id = id;
  return l;
}

static void test_link(void)
{
  char buf[8] = "ab";
  struct link *l = make_link(2);
  is_int(mpi_post(l, true, 5, buf, 3, 0), 0, "a send");
  is_int(mpi_post(l, false, 7, buf, 4, 63), 1, "a receive");
  is_str(mpi.log, "send 3 'ab' to 5 #16512, recv 4 from 7 #16575",
         "... to and from whom, with which tag");
  mpi.done_at = 1;
  is_int(mpi_test(l, 1), 0, "not yet");
  mpi.count = 4;
  is_int(mpi_test(l, 1), 1, "done");
  ok(!l->req[1].used && l->req[0].used, "... its place is free");
  is_int(mpi_post(l, false, 6, buf, 0, 1), 1, "... and taken again");
  mpi.count = 0;
  is_int(mpi_test(l, 0), 1, "the send is done");
  is_int(mpi_test(l, 1), 1, "... and a receive of nothing");
  mpi.test = FAILS;
  mpi_post(l, true, 7, buf, 1, 1);
  is_int(mpi_test(l, 0), TC_EPEER, "a test fails");
  is_str(mpi.warned, "MPI_Test: error 1", "... as MPI says");
  mpi.post = FAILS;
  is_int(mpi_post(l, true, 6, buf, 1, 1), TC_EPEER, "a send fails");
  is_str(mpi.warned, "MPI_Isend: error 1", "... as MPI says");
  is_int(mpi_post(l, false, 6, buf, 1, 1), TC_EPEER, "a receive fails");
  is_str(mpi.warned, "MPI_Irecv: error 1", "... as MPI says");
  mpi.post = MPI_SUCCESS;
  is_int(mpi_post(l, true, 6, buf, 1, 1), 1, "what failed has no place");
  mpi_free(l);
}

static void test_cancel(void)
{
  static const struct {
    const char *name;
    bool recv;
    int done_at, test;
    const char *log;
    int tests;
  } rows[] = { { "a send", false, 0, 0, ", free 0", 0 },
               { "a receive", true, 0, 0, ", cancel 0", 1 },
               { "a receive whose message comes", true, 1 << 30, 0, ", cancel 0, free 0",
                 CANCEL_TRIES },
               { "a receive that fails", true, 1 << 30, FAILS, ", cancel 0, free 0", 1 } };
  char buf[4];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct link *l = make_link(0);
    buf[0] = 0;
    mpi.done_at = rows[i].done_at;
    mpi.test = rows[i].test;
    int r = mpi_post(l, !rows[i].recv, 7, buf, 2, 1);
    mpi_cancel(l, r);
    const char *after = strstr(mpi.log, "#16385");
    is_str(after ? after + 6 : NULL, rows[i].log, "%s is given up", rows[i].name);
    is_int(mpi.tests, rows[i].tests, "... so often asked for");
    ok(!l->req[r].used && l->req[r].mpi == MPI_REQUEST_NULL, "... its place is free");
    mpi_cancel(l, r);
    ok(after && !strcmp(after + 6, rows[i].log), "... once");
    mpi_free(l);
  }
}

static void test_make(void)
{
  static const struct {
    int id, status;
  } rows[] = { { -1, TC_EUSER }, { 255, TC_EUSER }, { 0, 0 }, { 254, 0 } };
  static const int32_t all[][3] = { { 2, 5, 7 }, { 2, 5, 7 }, { 5, 7, 2 }, { 7, 0, 5 } };
  static const int coord[] = { 1, 1, 0, 2 };
  const struct tc_comm_opts o = { .name = "dp", .deadline_s = 60 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_comm *c = (struct tc_comm *)&mpi;
    struct tc_err err = { 0 };
    char want[100] = "";
    make();
    is_int(tc_comm_mpi(&c, rows[i].id, all[i], 3, &o, &err), rows[i].status,
           "communicator number %d", rows[i].id);
    if (rows[i].status)
      snprintf(want, sizeof want,
               "255 kinds of communicators at most, asked "
               "for number %d",
               rows[i].id);
    is_str(err.text, want, "... the sentence");
    ok(!c == !!rows[i].status, "... made or not");
    if (!c) continue;
    ok(tc_comm_size(c) == 3 && tc_comm_coord(c) == coord[i], "... this rank's place in it");
    tc_comm_free(c);
  }
}

static void messages_and_links(void)
{
  char buf[4] = "";
  struct tc_comm *c = NULL;
  struct tc_err err = { 0 };
  struct tc_channel *m = tc_mpi_channel();
  make();
  for (int i = 0; i < 3; i++) m->send(m, i, "x", 2);
  mpi.post = FAILS;
  m->send(m, 3, "x", 2);
  m->free(m);
  struct link *l = make_link(1);
  mpi_post(l, true, 6, buf, 4, 1);
  mpi_free(l);
  make();
  tc_comm_mpi(&c, 0, (int32_t[]){ 5 }, 1, &(struct tc_comm_opts){ .name = "dp" }, &err);
  tc_comm_free(c);
}

int main(void)
{
  test_start();
  test_meet();
  test_abort();
  test_mail();
  test_link();
  test_cancel();
  test_make();
  leaves_nothing("channels and links", messages_and_links, 20);
  return done_testing();
}
