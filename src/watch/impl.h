/* impl.h - statuses of threads and ranks, blocked calls and reports, as watchdog.c and status.c
 * share them. */
#ifndef TC_WATCH_IMPL_H
#define TC_WATCH_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/watch/watch.h"

#define SECOND INT64_C(1000000000)
enum { TEXT = 240 };

struct tc_blocked_call {
  struct rank_status *of_rank;
  struct tc_blocked_call *next;
  pthread_mutex_t lock;
  bool on;
  char call[TEXT];
  int64_t since_ns;
  int n;
  int32_t late[TC_SUSPECTS];
};

struct tc_thread_status {
  struct rank_status *of_rank;
  struct tc_thread_status *next;
  char name[32];
  _Atomic uint64_t marks;         /* counts the marks */
  _Atomic(const char *) doing, what, of;
  atomic_int mb;
  _Atomic int64_t step, least_ns;
  atomic_bool rests;
  _Atomic(struct tc_blocked_call *) waits;
  atomic_bool runs;               /* it runs the call that it waits for itself, and marks that it goes on */
  pthread_mutex_t lock;
  char text[TEXT];                /* words copied by a mark; "" */
  uint64_t seen;
  int64_t quiet_ns;               /* time since the last mark, waits for communicators excluded */
};

enum state { BUSY, WAITING, ENDED };

/* A rank's report, as it is sent in messages. */
struct report {
  int32_t rank, state, n;
  int32_t late[TC_SUSPECTS];      /* the ranks that it waits for */
  int64_t for_ns;
  char text[2 * TEXT];
};

struct rank_status {
  struct tc_watch *watch;
  int rank, world;
  pthread_mutex_t lock;           /* protects all fields below */
  struct tc_thread_status *threads;   /* only grows; that of the rank's own thread is the last */
  struct tc_blocked_call *blocked_calls;
  bool ended;
  char last_words[TEXT];
};

/* Local. Adds a status for a thread of the rank; it is idle. */
struct tc_thread_status *tc_thread_status_add(struct rank_status *p, const char *name);
/* Local. Whether a thread other than the rank's own is still busy. */
bool tc_rank_status_left(const struct rank_status *p);
/* Local. Frees the rank's thread statuses and blocked calls. */
void tc_rank_status_clear(struct rank_status *p);
/* Local. Appends "step 3, forward matmul of h.1, micro-batch 0". */
void tc_thread_status_text(struct tc_thread_status *l, char *text, size_t size);
/* Local. The report of a rank of this process. Called by the watchdog's thread. */
void tc_rank_status_report(struct rank_status *p, const char *const *names, struct report *r);
static inline double tc_seconds(int64_t ns) { return (double)ns * 1e-9; }

#endif
