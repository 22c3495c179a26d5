/* impl.h - the interface between comm.c and its backends, and functions that backends share. */
#ifndef TC_COMM_IMPL_H
#define TC_COMM_IMPL_H

#include <stdatomic.h>

#include "src/comm/comm.h"
#include "src/watch/watch.h"

/* What a call has sent; and, since the communicator was made, with how many members messages were exchanged, of which so many
 * in control calls. All 0 where a device's library sends by itself, but for the bytes. */
struct tc_sent { int64_t bytes, messages; int peers, ctl_peers; };

struct tc_comm_ops {
  /* Runs one call to its end, on the worker thread, or on that of a caller which waits for it.
   * *sent <- what was handed to the network. Returns soon after *stop becomes true. */
  int (*run)(void *impl, const struct tc_coll_args *a, const atomic_bool *stop,
             struct tc_sent *sent, struct tc_err *err);
  void (*free)(void *impl);

  /* May be NULL. The slow part of `free`, run by the worker before it ends, so that several
  * communicators do it at the same time; always called before `free`. */
  void (*leave)(void *impl);

  /* For a communicator of device memory (nccl.c); else NULL. start: called before the call is
   * queued, on the caller's thread; issues it to the device. join: called in tc_comm_wait for a
   * call that isn't known to have ended. At most `depth` calls are between start and the end of
   * run. */
  int (*start)(void *impl, const struct tc_coll_args *a, tc_ticket t, struct tc_err *err);
  int (*join)(void *impl, tc_ticket t, struct tc_err *err);
  int depth;
};

/* The data of a communicator that timeout.c uses; all borrowed. */
struct tc_late {
  const char *axis;
  const char *const *rank_names;  /* [size]; may be NULL */
  const int32_t *members;         /* [size] world ranks */
  struct tc_blocked_call *blocked;         /* may be NULL */
  double deadline_s;
};
/* Call a waits for the coordinates late[n] (n may exceed TC_SUSPECTS, only the first are reported).
 * _say reports it to the watchdog; _fail gives up; _gone: a peer is known to have ended. TC_EPEER. */
void tc_late_say(const struct tc_late *l, const struct tc_coll_args *a, int64_t age_ns,
                 const int *late, int n);
int tc_late_fail(const struct tc_late *l, const struct tc_coll_args *a, int64_t age_ns,
                 const int *late, int n, struct tc_err *err);
int tc_late_gone(const struct tc_late *l, const struct tc_coll_args *a, int peer,
                 struct tc_err *err);
/* Puts the call's name before the text of err and, if it is TC_EPEER, the suspects after it;
 * returns its status. */
int tc_late_broken(const struct tc_late *l, const struct tc_coll_args *a, const int *late, int n,
                   struct tc_err *err);

/* Local. The members, as the options describe them; their nodes are to be handed to tc_comm_new. */
struct tc_members tc_comm_among(const struct tc_comm_opts *o, int size, int coord);
/* Local. Takes ownership of impl, and of the members' nodes, which impl may use. blocked: where impl reports its waits; may
 * be NULL. */
struct tc_comm *tc_comm_new(const struct tc_comm_ops *ops, void *impl, const struct tc_members *m,
                            const struct tc_comm_opts *o, struct tc_blocked_call *blocked);

/* Local. out[n] <- ((term[0] + term[1]) + term[2]) + ..., or their maximum (a NaN stays), rounded
 * once. from, to: the terms' type and the sum's: f32, bf16, f64, i32, both the same or f32 and bf16. red: TC_SUM or
 * TC_MAX_OP. out may be one of the terms, if it has their type. */
void tc_reduce_terms(int from, int to, void *out, const void *const *term, int terms, int64_t n, int red);

struct tc_blocked_call *tc_comm_blocked_call(struct tc_comm *c);

/* Its name, owned by the caller. */
static inline char *tc_comm_name(const struct tc_comm_opts *o) { return tc_strdup(o->name ? o->name : "world"); }

/* The timeout that applies, in seconds. */
static inline double tc_comm_deadline_s(const struct tc_comm_opts *o)
{
  return o->deadline_s > 0 ? TC_MIN(o->deadline_s, 1e9) : 600.0;
}

#endif
