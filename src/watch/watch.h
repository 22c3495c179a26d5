/* watch.h - the watchdog: reports what each rank is doing, finds the ranks that a wait depends on, and ends
 * a run that hangs.
 *
 * In: marks, by which each thread records what it does; the calls that communicators are blocked in.
 * Out: messages with each rank's status, the ranks suspected of a blocked call, the end of a run that
 * hangs.
 *
 * Each thread that works for a rank has a thread status, a few words about its current operation. Marks
 * change them: a few plain stores, cheap enough for every action of a step. A process has one watchdog
 * thread, which wakes ten times per second:
 *  - a thread without a mark within the deadline hangs (a file operation on a dead file system,
 *    a library call that never returns): the watchdog logs its status, and ends the step with status 8.
 *    Waits for a communicator are not counted: they have their own timeout;
 *  - a communicator whose timeout has expired requests a diagnosis: the watchdog queries the ranks that the
 *    call waits for, then those that they wait for, until it finds ranks that don't answer or don't wait.
 *    Queries go to the other processes' watchdogs: a rank that hangs is reported, a process that is
 *    stopped or dead does not answer, which identifies it;
 *  - it then tells all other watchdogs, and each logs the status of its ranks.
 *
 * Without a watchdog (unit tests, one-rank commands) all of this does nothing.
 *
 * The files, in reading order:
 *   status.c     marks, thread statuses, blocked calls: a rank's report
 *   watchdog.c   the thread, messages between watchdogs, the search for suspects
 *   impl.h       shared by the two */
#ifndef TC_WATCH_H
#define TC_WATCH_H

#include "src/base/base.h"

/* ---- marks: Local, in the calling thread's status -------------------------------------- */

/* "forward matmul of h.3, micro-batch 2". The strings are borrowed until the next mark that takes a lock (the
 * others below); what and of may be NULL, mb < 0: none. */
void tc_at(const char *doing, const char *what, const char *of, int mb);
/* "fsync of PATH"; both copied. */
void tc_at_file(const char *doing, const char *path);
void tc_at_phase(const char *doing);       /* "making the programs"; copied */
void tc_at_again(void);          /* the same operation has made progress */
void tc_at_step(int64_t step);   /* part of the status until the next call; 0: no step */
void tc_at_rest(void);           /* idle: not watched until the next mark */

/* A status for another thread of the calling thread's rank: created by one thread, then used by the other.
 * NULL without a watchdog, which tc_thread_status_use accepts. Owned by the watchdog. */
struct tc_thread_status;
struct tc_thread_status *tc_thread_status_new(const char *name);
void tc_thread_status_use(struct tc_thread_status *l);
struct tc_thread_status *tc_thread_status_mine(void);     /* the calling thread's; NULL: none */
/* The calling thread works for the thread of status l: its crash is reported as that thread's. Returns
 * whether it worked for one before. */
bool tc_thread_status_helps(const struct tc_thread_status *l);

/* The status of the calling thread, for a signal handler: reads, without a lock, what the thread itself
 * wrote last. False, with empty words, if it has no status. */
enum { TC_STANDING_WORDS = 3 };
struct tc_standing {
  int rank;
  int64_t step;
  const char *thread, *word[TC_STANDING_WORDS];    /* doing, what, of; "" if not set */
};
bool tc_watch_standing(struct tc_standing *s);

/* ---- for communicators --------------------------------------------------------------------- */

/* The ranks that a communicator's call waits for. Owned by the watchdog; NULL without one, which is accepted. */
struct tc_blocked_call;
struct tc_blocked_call *tc_blocked_call_new(void);              /* of the calling thread's rank */
/* Any thread. The call waits for late[n], world ranks, first those that have sent nothing;
 * call is copied. clear: it no longer waits. */
void tc_blocked_call_set(struct tc_blocked_call *s, const char *call, double age_s,
                         const int32_t *late, int n);
void tc_blocked_call_clear(struct tc_blocked_call *s);
/* The calling thread is blocked in s, until it calls this with NULL. */
void tc_thread_status_waits(struct tc_blocked_call *s);
/* It runs the call of s itself, until it calls the function before with NULL; as long as the call goes on it calls
 * tc_at_again. */
void tc_thread_status_runs(struct tc_blocked_call *s);

enum { TC_SUSPECTS = 8, TC_MOST_SUSPECTS = 64 };      /* of a wait; that a search asks */
/* A watchdog looks for messages so often, a rank that has not answered for so long counts as silent, and a search takes so
 * long at most. */
#define TC_WATCH_TICK_NS INT64_C(100000000)
#define TC_WATCH_SILENT_NS INT64_C(2000000000)
#define TC_WATCH_SEARCH_NS INT64_C(5000000000)
struct tc_diagnosis { int n; char suspects[400], why[500]; };
/* Any thread. Gives up: all ranks log their status, and the ranks suspected of blocking the wait that was
 * set last are found, within 5 s. b->n = 0: no particular rank. False without a watchdog. */
bool tc_blocked_call_diagnose(struct tc_blocked_call *s, struct tc_diagnosis *b);

/* ---- for code that starts ranks ------------------------------------------------------------ */

/* Small messages between processes; only one thread calls it at a time. */
struct tc_channel {
  void (*send)(struct tc_channel *m, int to, const void *buf, int bytes);   /* never blocks */
  bool (*poll)(struct tc_channel *m, void *buf, int bytes);                 /* true: a message was received */
  void (*free)(struct tc_channel *m);
};

struct tc_watch_opts {
  double deadline_s;
  int world, first, n_local;     /* this process has ranks first .. first + n_local - 1 */
  const char *const *rank_names; /* [world] "rank 3 on node2"; borrowed */
  void (*end)(int exit_status, const char *why);   /* ends the step; no return */
  void (*half)(void);            /* called once when half of a thread's deadline has passed without a mark; NULL: nothing */
};

struct tc_watch;
/* Local. Starts the thread; TC_EUSER if it can't. *out is owned by the caller. */
int tc_watch_new(struct tc_watch **out, const struct tc_watch_opts *o, struct tc_err *err);
void tc_watch_free(struct tc_watch *w);
/* Local. Other processes can be queried through m, which is owned by w from now on. NULL: closes it. */
void tc_watch_channel(struct tc_watch *w, struct tc_channel *m);
/* Local. The calling thread is the own thread of `rank`. _leave: that rank has ended with rc. */
void tc_watch_enter(struct tc_watch *w, int rank);
void tc_watch_leave(int rc, const struct tc_err *err);
/* Local. Extends the deadline to at least this: for operations that are slow by nature, such as starting MPI. */
void tc_watch_allow(double least_s);

#endif
