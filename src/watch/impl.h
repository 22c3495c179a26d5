/* impl.h - lanes, stalls and reports, as watchdog.c and status.c share them. */
#ifndef TC_WATCH_IMPL_H
#define TC_WATCH_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/watch/watch.h"

#define SECOND INT64_C(1000000000)
enum { TEXT = 240 };

struct tc_stall {
  struct post *post;
  struct tc_stall *next;
  pthread_mutex_t lock;
  bool on;
  char call[TEXT];
  int64_t since_ns;
  int n;
  int32_t late[TC_BLAMED];
};

struct tc_lane {
  struct post *post;
  struct tc_lane *next;
  char name[32];
  _Atomic uint64_t beat;          /* grows with every mark */
  _Atomic(const char *) doing, what, of;
  atomic_int mb;
  _Atomic int64_t step, least_ns;
  atomic_bool rests;
  _Atomic(struct tc_stall *) waits;
  pthread_mutex_t lock;
  char text[TEXT];                /* of the mark that copied its words; "" */
  uint64_t seen;
  int64_t quiet_ns;               /* without a mark, and not waiting for a communicator */
};

enum state { BUSY, WAITING, ENDED };

/* Where a rank stands, as it travels. */
struct report {
  int32_t rank, state, n;
  int32_t late[TC_BLAMED];        /* whom it waits for */
  int64_t for_ns;
  char text[2 * TEXT];
};

struct post {
  struct tc_watch *watch;
  int rank, world;          /* of how many ranks */
  pthread_mutex_t lock;           /* of all below */
  struct tc_lane *lanes;          /* only ever grows; the rank's own thread's is the last */
  struct tc_stall *stalls;
  bool ended;
  char last_words[TEXT];
};

/* Local. A new lane of the rank, at rest. */
struct tc_lane *tc_lane_add(struct post *p, const char *name);
/* Local. Whether a thread was left behind: a lane, not the rank's own, that is not at rest. */
bool tc_post_left(const struct post *p);
/* Local. Frees what the rank's lanes and stalls are made of. */
void tc_post_clear(struct post *p);
/* Local. Appends "step 3, forward matmul of h.1, micro-batch 0". */
void tc_lane_text(struct tc_lane *l, char *text, size_t size);
/* Local. Where a rank of this process stands. By the watchdog's thread. */
void tc_post_report(struct post *p, const char *const *who, struct report *r);
static inline double tc_seconds(int64_t ns) { return (double)ns * 1e-9; }

#endif
