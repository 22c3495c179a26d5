/* watch.h - the watchdog: what each rank is doing, which rank a wait is due to, and an end for a
 * rank that hangs.
 *
 * In: marks, by which each thread says what it does; what communicators wait for. Out: sentences
 * about where the ranks stand, the ranks suspected of a wait, the end of a run that hangs.
 *
 * Each thread that works for a rank has a thread status, a few words that say what it does. Marks
 * change them: a handful of plain stores, so they may stand before every action of a step. A process
 * has one watchdog thread, asleep but for a look ten times a second:
 *  - a thread without a mark for the deadline has hung (a file operation on a dead file system,
 *    a library that never returns): the watchdog says where, and ends the step with status 8.
 *    Waiting for a communicator is not counted: that has its own deadline;
 *  - a communicator whose deadline passed asks it for a diagnosis: it asks the ranks waited for
 *    where they stand, then those that they wait for, until it is at the ranks that don't answer,
 *    or don't wait. The question goes to their watchdogs: a rank that hangs answers, a process
 *    that is stopped or dead does not, and that is the answer;
 *  - it then tells all others, which each write where they stand.
 *
 * Without a watchdog (unit tests, one-rank commands) all of this does nothing.
 *
 * The files, in reading order:
 *   status.c     marks, thread statuses, blocked calls: what a rank reports of itself
 *   watchdog.c   the thread, messages between watchdogs, the search for suspects
 *   impl.h       what the two share */
#ifndef TC_WATCH_H
#define TC_WATCH_H

#include "src/base/base.h"

/* ---- marks: Local, in the calling thread's status -------------------------------------- */

/* "forward matmul of h.3, micro-batch 2". Borrowed until the next mark that takes a lock (the
 * others below); what and of may be NULL, mb < 0: none. */
void tc_at(const char *doing, const char *what, const char *of, int mb);
/* "fsync of PATH"; both copied. what may be NULL. */
void tc_at_file(const char *doing, const char *what);
void tc_at_again(void);          /* still at it: there is progress */
void tc_at_step(int64_t step);   /* said with all that follows; 0: none */
void tc_at_rest(void);           /* nothing to do: not watched until the next mark */

/* A status for another thread of the calling thread's rank: made by one, used by the other from
 * then on. NULL without a watchdog, which tc_thread_status_use takes. Owned by the watchdog. */
struct tc_thread_status;
struct tc_thread_status *tc_thread_status_new(const char *name);
void tc_thread_status_use(struct tc_thread_status *l);
struct tc_thread_status *tc_thread_status_mine(void);     /* the calling thread's; NULL: none */
/* The calling thread works for the thread of status l, and its crash is reported as that thread's. Returns
 * whether it worked for one before. */
bool tc_thread_status_helps(const struct tc_thread_status *l);

/* Where the calling thread stands, for a signal handler: reads without a lock what the thread
 * itself wrote last. False, and empty words, if it has no status. */
enum { TC_STANDING_WORDS = 3 };
struct tc_standing {
  int rank;
  int64_t step;
  const char *thread, *word[TC_STANDING_WORDS];    /* doing, what, of; "" if there is none */
};
bool tc_watch_standing(struct tc_standing *s);

/* ---- for communicators --------------------------------------------------------------------- */

/* What a communicator's call waits for. Owned by the watchdog; NULL, without one, is fine. */
struct tc_blocked_call;
struct tc_blocked_call *tc_blocked_call_new(void);              /* of the calling thread's rank */
/* Any thread. The call waits for late[n], ranks of the world, those first that have sent nothing;
 * call is copied. clear: it waits no more. */
void tc_blocked_call_set(struct tc_blocked_call *s, const char *call, double age_s,
                         const int32_t *late, int n);
void tc_blocked_call_clear(struct tc_blocked_call *s);
/* The calling thread waits for what s waits for, until it says NULL. */
void tc_thread_status_waits(struct tc_blocked_call *s);

enum { TC_SUSPECTS = 8 };
struct tc_diagnosis { int n; char who[400], why[500]; };
/* Any thread. Gives up: all ranks say where they stand, and the ranks suspected of the wait that was
 * set last are found and named, in 5 s at most. b->n = 0: none in particular. False without a
 * watchdog. */
bool tc_blocked_call_diagnose(struct tc_blocked_call *s, struct tc_diagnosis *b);

/* ---- for those who start ranks ------------------------------------------------------------- */

/* Small messages between processes; called by one thread at a time. */
struct tc_channel {
  void (*send)(struct tc_channel *m, int to, const void *buf, int bytes);   /* never blocks */
  bool (*poll)(struct tc_channel *m, void *buf, int bytes);                 /* true: one came */
  void (*free)(struct tc_channel *m);
};

struct tc_watch_opts {
  double deadline_s;
  int world, first, n_local;     /* ranks first .. first + n_local - 1 are of this process */
  const char *const *who;        /* [world] "rank 3 on node2"; borrowed */
  void (*end)(int exit_status, const char *why);   /* ends the step; no return */
};

struct tc_watch;
/* Local. Starts the thread; TC_EUSER if it can't. *out is owned by the caller. */
int tc_watch_new(struct tc_watch **out, const struct tc_watch_opts *o, struct tc_err *err);
void tc_watch_free(struct tc_watch *w);
/* Local. From now on other processes can be asked; m is taken over. NULL: no longer. */
void tc_watch_channel(struct tc_watch *w, struct tc_channel *m);
/* Local. The calling thread is `rank`'s own. _leave: that rank has ended with rc. */
void tc_watch_enter(struct tc_watch *w, int rank);
void tc_watch_leave(int rc, const struct tc_err *err);
/* Local. Until the deadline, or so long: for what is slow by nature, such as starting MPI. */
void tc_watch_allow(double least_s);

#endif
