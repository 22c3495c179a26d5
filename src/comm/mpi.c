/* mpi.c - the link between ranks that are MPI processes, and MPI's start and end: the only
 * file in src/ that sees <mpi.h>.
 *
 * All traffic is point-to-point messages over MPI_COMM_WORLD, so that no communicator
 * is split and no state is kept between tc_mpi_start and tc_mpi_finish. Tags start at
 * TAG_BASE, which leaves the lower half of the guaranteed range (up to 32767) to other users:
 *   tag = TAG_BASE + id * TAGS_PER_ID + the link's tag.
 * Groups of one id (an axis) have no two ranks in common, so id and the pair of ranks distinguish
 * groups. The tag after those of the last id is for the watchdogs' messages. Several threads
 * call MPI at once: MPI_THREAD_MULTIPLE.
 *
 * MPI makes progress only inside its calls, so whoever runs a call must poll. */
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/coll/flow.h"
#include "src/comm/impl.h"
#include "src/comm/link.h"
#include "src/comm/mpi.h"
#include "src/watch/watch.h"

enum { TAG_BASE = 16384, TAGS_PER_ID = 64, IDS = TC_MPI_START_ID + 1, CHANNEL_TAG = TAG_BASE + IDS * TAGS_PER_ID };

_Static_assert(TC_PHASES * (TC_COLLS - TC_FIRST_COLL) <= TAGS_PER_ID, "tags of p2p.c");
#define CANCEL_TRIES 100
#define ABORT_S 10                          /* how long tc_mpi_abort waits for the launcher */

struct request { MPI_Request mpi; int64_t bytes; bool is_recv, used; };

struct link {
  int id;
  struct request *req;
  int n, cap;
};

void tc_mpi_version(char *text, size_t size)
{
  char all[MPI_MAX_LIBRARY_VERSION_STRING];
  int n;
  MPI_Get_library_version(all, &n);
  snprintf(text, size, "%s", all);
}

/* ---- start and end --------------------------------------------------------------- */

int tc_mpi_start(int *rank, int *world, struct tc_err *err)
{
  int got = MPI_THREAD_SINGLE;
  /* Open MPI 5 returns an error then where it can't start. 4.1 does not know this setting: it ends the
   * process with status 1 and texts of its own. */
  setenv("OMPI_MCA_mpi_initial_errhandler", "mpi_errors_return", 0);
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &got) != MPI_SUCCESS)
    return tc_fail(err, TC_EPEER, "MPI does not start: start with srun --mpi=pmix or Open "
                   "MPI's mpirun, or without PMIX_* in the environment; a small MPI program run the "
                   "same way shows more");
  if (got != MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    return tc_fail(err, TC_EUSER, "this MPI library was built without MPI_THREAD_MULTIPLE "
                   "(it grants level %d); use one that has it", got);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, world);
  return 0;
}

int tc_mpi_meet(double deadline_s, struct tc_err *err)
{
  MPI_Request all;
  int done = 0;
  const struct tc_comm_opts o = { .deadline_s = deadline_s };
  deadline_s = tc_comm_deadline_s(&o);
  int64_t end_ns = tc_now_ns() + (int64_t)(deadline_s * 1e9);
  if (MPI_Ibarrier(MPI_COMM_WORLD, &all) != MPI_SUCCESS) end_ns = 0;
  while (!done) {
    if (tc_now_ns() > end_ns || MPI_Test(&all, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return tc_fail(err, TC_EPEER, "not all ranks reached the end of the run within %g s "
                     "(deadline run.deadline): see the other ranks' logs", deadline_s);
    if (!done) tc_sleep_ns(100000);
  }
  return 0;
}

void tc_mpi_finish(void) { MPI_Finalize(); }

static void leave(int signal_number)
{
  (void)signal_number;
  _Exit(-TC_EPEER);
}

/* MPI_Abort asks the launcher to end the step, and waits for that: for minutes, if this node
 * is cut off. */
void tc_mpi_abort(int status)
{
  signal(SIGALRM, leave);
  alarm(ABORT_S);
  int up = 0, down = 0;
  MPI_Initialized(&up);
  MPI_Finalized(&down);
  if (up && !down) MPI_Abort(MPI_COMM_WORLD, status);
  _Exit(status);
}

/* ---- messages ------------------------------------------------------------------------- */

struct sent { MPI_Request mpi; void *copy; };

struct channel {
  struct tc_channel public;          /* first */
  struct sent *sent;              /* in flight; those to dead processes stay */
  int n, cap;
};

static void forget_sent(struct channel *m)
{
  for (int i = 0; i < m->n; i++) {
    int done = 0;
    MPI_Test(&m->sent[i].mpi, &done, MPI_STATUS_IGNORE);
    if (!done) continue;
    free(m->sent[i].copy);
    m->sent[i--] = m->sent[--m->n];
  }
}

static void channel_send(struct tc_channel *channel, int to, const void *buf, int bytes)
{
  struct channel *m = (struct channel *)channel;
  forget_sent(m);
  TC_GROW(m->sent, m->n, m->cap);
  struct sent *s = &m->sent[m->n];
  s->copy = memcpy(tc_malloc((size_t)bytes), buf, (size_t)bytes);
  if (MPI_Isend(s->copy, bytes, MPI_BYTE, to, CHANNEL_TAG, MPI_COMM_WORLD, &s->mpi) == MPI_SUCCESS)
    m->n++;
  else free(s->copy);
}

static bool channel_poll(struct tc_channel *channel, void *buf, int bytes)
{
  MPI_Message msg;
  MPI_Status status;
  int got = 0, n = 0;
  (void)channel;
  int rc = MPI_Improbe(MPI_ANY_SOURCE, CHANNEL_TAG, MPI_COMM_WORLD, &got, &msg, &status);
  if (rc != MPI_SUCCESS || !got) return false;
  MPI_Get_count(&status, MPI_BYTE, &n);
  TC_ASSERT(n == bytes);
  return MPI_Mrecv(buf, bytes, MPI_BYTE, &msg, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

/* A message still in flight is owned by MPI: its copy is leaked. */
static void channel_free(struct tc_channel *channel)
{
  struct channel *m = (struct channel *)channel;
  forget_sent(m);
  for (int i = 0; i < m->n; i++) MPI_Request_free(&m->sent[i].mpi);
  TC_FREE(m->sent, m);
}

struct tc_channel *tc_mpi_channel(void)
{
  struct channel *m = tc_calloc(1, sizeof *m);
  m->public = (struct tc_channel){ channel_send, channel_poll, channel_free };
  return &m->public;
}

/* ---- the link -------------------------------------------------------------------- */

static int take_request(struct link *l)
{
  for (int i = 0; i < l->n; i++)
    if (!l->req[i].used) return i;
  TC_GROW(l->req, l->n, l->cap);
  return l->n++;
}

static int mpi_failed(int rc, const char *what)
{
  char text[MPI_MAX_ERROR_STRING];
  int n;
  MPI_Error_string(rc, text, &n);
  tc_warn("%s: %.*s", what, n, text);
  return TC_EPEER;
}

static int mpi_post(void *link, bool is_send, int peer, void *buf, int64_t bytes, int tag)
{
  struct link *l = link;
  TC_ASSERT(bytes <= INT_MAX && tag >= 0 && tag < TAGS_PER_ID);
  int i = take_request(l), rc;
  int mpi_tag = TAG_BASE + l->id * TAGS_PER_ID + tag;
  struct request *r = &l->req[i];
  if (is_send) rc = MPI_Isend(buf, (int)bytes, MPI_BYTE, peer, mpi_tag, MPI_COMM_WORLD, &r->mpi);
  else rc = MPI_Irecv(buf, (int)bytes, MPI_BYTE, peer, mpi_tag, MPI_COMM_WORLD, &r->mpi);
  if (rc != MPI_SUCCESS) return mpi_failed(rc, is_send ? "MPI_Isend" : "MPI_Irecv");
  r->bytes = bytes;
  r->is_recv = !is_send;
  r->used = true;
  return i;
}

static int mpi_test(void *link, int request)
{
  struct request *r = &((struct link *)link)->req[request];
  MPI_Status status;
  int done = 0, got = 0;
  int rc = MPI_Test(&r->mpi, &done, &status);
  if (rc != MPI_SUCCESS) return mpi_failed(rc, "MPI_Test");
  if (!done) return 0;
  if (r->is_recv) {
    MPI_Get_count(&status, MPI_BYTE, &got);
    TC_ASSERT(got == r->bytes);             /* the members' calls differ */
  }
  r->used = false;
  return 1;
}

/* A send, or a receive whose message is in flight, can't be cancelled: MPI keeps it and the
 * process is about to end, since a failed communicator stays failed. */
static void mpi_cancel(void *link, int request)
{
  struct request *r = &((struct link *)link)->req[request];
  int done = 0;
  if (r->mpi != MPI_REQUEST_NULL && r->is_recv) {
    MPI_Cancel(&r->mpi);
    for (int i = 0; i < CANCEL_TRIES && !done; i++)
      if (MPI_Test(&r->mpi, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
  }
  if (r->mpi != MPI_REQUEST_NULL) MPI_Request_free(&r->mpi);
  r->used = false;
}

static void mpi_free(void *link)
{
  struct link *l = link;
  TC_FREE(l->req, l);
}

int tc_comm_mpi(struct tc_comm **out, int id, const int32_t *members, int size,
                const struct tc_comm_opts *o, struct tc_err *err)
{
  static const struct tc_link_ops ops = { .post = mpi_post, .test = mpi_test, .cancel = mpi_cancel, .free = mpi_free };
  int rank = -1, world = 0;
  *out = NULL;
  if (id < 0 || id >= IDS)
    return tc_fail(err, TC_EUSER, "%d kinds of communicators at most, asked for number %d",
                   IDS, id);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  for (int i = 0; i < size; i++) TC_ASSERT(members[i] >= 0 && members[i] < world);
  struct link *l = tc_calloc(1, sizeof *l);
  l->id = id;
  *out = tc_comm_p2p(&ops, l, rank, members, size, o);
  return 0;
}
