/* comm.h - collectives along one axis of the mesh.
 *
 * A tc_comm joins the ranks whose mesh coordinates differ only on one axis (or the whole
 * world). Calls are collective: every member makes the same calls in the same order with
 * equal counts and types. They enqueue and return a ticket; the buffers stay borrowed until
 * the ticket is waited for. Each communicator is one serial queue.
 *
 * In: calls (src/coll/coll.h) on memory of the host, or of a device (nccl.h). Out: the results, a
 * status that is the same on all members but for TC_EPEER, and counts of calls and bytes.
 *
 * Sums are deterministic: terms are added in fp32 (f64 in double, i32 as integers) and rounded once, by one member or by all
 * alike: all copies are bit-identical. Their order is that of coordinates, or, where partial sums are allowed, one that
 * follows from the members' number and nodes. (A device's library differs: nccl.h.)
 *
 * The files, in reading order:
 *   comm.c      the queue, its thread, tickets, deadlines and counters
 *   control.c   control data, the first error of all members
 *   impl.h      the interface of a backend
 *   pieces.c    the flows of a collective (coll/flow.h) as pieces in memory (p2p.h)
 *   p2p.c       the backend over links: drives them
 *   reduce.c    adding terms
 *   link.h      the interface of a link; the links are
 *   self.c        of a group of one,
 *   hub.c         between threads of one process (hub.h),
 *   mpi.c         between MPI processes (mpi.h: MPI's start and end)
 *   nccl.c      the backend of a device's library (nccl.h)
 *   timeout.c   the message of a call that exceeds its timeout */
#ifndef TC_COMM_H
#define TC_COMM_H

#include "src/base/base.h"
#include "src/coll/coll.h"

struct tc_comm;

typedef int64_t tc_ticket;        /* increasing; 0: nothing to wait for */

/* Collective. Enqueues; *ticket waits for it. Never blocks on a peer. */
int tc_comm_start(struct tc_comm *c, const struct tc_coll_args *a, tc_ticket *ticket,
                  struct tc_err *err);
/* Local. Blocks until the ticket (and all before it) is done. TC_EPEER after the
 * communicator's timeout or when a peer has ended; the error has the operation, the members that it waits for
 * directly and their nodes, or, with a watchdog (watch/watch.h), which follows these, the ranks suspected of blocking
 * it. After a failure every further call returns the same error. */
int tc_comm_wait(struct tc_comm *c, tc_ticket t, struct tc_err *err);
/* Local. Blocks until all calls that were started are done, as tc_comm_wait does; also on the host if
 * tc_comm_wait makes a device wait instead (nccl.h). */
int tc_comm_settle(struct tc_comm *c, struct tc_err *err);
/* Local. 1 done, 0 not yet, negative status. */
int tc_comm_test(struct tc_comm *c, tc_ticket t, struct tc_err *err);
/* Collective. start + wait. */
int tc_comm_run(struct tc_comm *c, const struct tc_coll_args *a, struct tc_err *err);

/* Shorthands for control traffic, each start + wait, counted under ctl. Collective. */
int tc_comm_max_i64(struct tc_comm *c, int64_t *x, int n, struct tc_err *err);
int tc_comm_all_i64(struct tc_comm *c, const int64_t *x, int n, int64_t *all,
                    struct tc_err *err);         /* all[size * n] <- each member's x[n] */
int tc_comm_all_bytes(struct tc_comm *c, int algorithm, const void *mine, int64_t bytes, void *all, const char *what,
                      struct tc_err *err);       /* all[size * bytes] <- each member's mine, by this algorithm of flow.h */
int tc_comm_bytes_gather(struct tc_comm *c, int root, const void *mine, int64_t my_bytes,
                         void **all, int64_t *bytes, struct tc_err *err);
    /* root: *all (owned by the caller) is the members' bytes in coordinate order, bytes[i]
     * each; others: *all = NULL. bytes[size] on every member. */
int tc_comm_bytes_bcast(struct tc_comm *c, int root, void **buf, int64_t *n_bytes,
                        struct tc_err *err);
    /* others: *buf is owned by the caller. */

/* Collective. Each member passes its status and, if it is an error, its sentence. All return the first
 * error; that of a member other than 0 begins with its name, rank_names[coord], unless that is NULL. */
int tc_comm_agree(struct tc_comm *c, char *const *rank_names, int rc, struct tc_err *err);

/* Collective, whatever tables of algorithms the members have: whether all have the rows of s, which each has read by itself
 * from the file run.collectives of that name. TC_EUSER, with the same sentence on all, names a member that has others. */
int tc_comm_same_selection(struct tc_comm *c, char *const *rank_names, const struct tc_selection *s, const char *file,
                           struct tc_err *err);

/* Collective. All return member 0's status and sentence. */
int tc_comm_bcast_status(struct tc_comm *c, int rc, struct tc_err *err);

/* Local. 0, or the error for which no call can succeed: an earlier failure, or its thread could not be started. */
int tc_comm_usable(struct tc_comm *c, struct tc_err *err);
int tc_comm_size(const struct tc_comm *c);
int tc_comm_coord(const struct tc_comm *c);       /* this rank's coordinate in the group */
const struct tc_members *tc_comm_members(const struct tc_comm *c);   /* the group, by which calls are predicted */
const struct tc_comm_counters *tc_comm_counters(const struct tc_comm *c);
/* Local; drops queued calls. False: its thread hangs in a library call, and is leaked with all that it
 * uses. NULL is accepted. */
bool tc_comm_free(struct tc_comm *c);
/* The same for c[n]: all end at the same time, and one time limit holds for all of them. */
bool tc_comms_free(struct tc_comm *const *c, int n);

/* ---- making communicators -------------------------------------------------------- */

struct tc_comm_opts {
  const char *name;               /* "dp", "tp", "pp", "world" */
  double deadline_s;              /* 0: 600 */
  const char *const *rank_names;  /* [size] "rank 3 on node2"; borrowed; may be NULL */
  const int32_t *node;            /* [size] the node of each; NULL: they are not known, or do not matter */
  bool own_cpus;                  /* no other rank needs this rank's CPUs: it may poll for longer before it sleeps */
  bool partial_sums;              /* sums may be made of partial sums (run.sums) */
  const struct tc_selection *selection;     /* of algorithms (run.collectives), the same of all members; borrowed; NULL: the
                                             * compiled one */
  /* Called after each successful call, by the thread that ran it; *a is borrowed during the call.
  * begin: when it began to run. NULL: not traced. Not for groups of one. */
  void (*traced)(void *ctx, const struct tc_coll_args *a, int64_t begin_ns, int64_t end_ns,
                 int64_t bytes);
  void *traced_ctx;
};

struct tc_comm *tc_comm_self(const struct tc_comm_opts *o);

/* Local; ranks are threads of one process, connected by the hub (hub.h). `members` are the world
 * ranks of the group in coordinate order, `id` distinguishes groups of equal members (the axis). */
struct tc_hub;
struct tc_comm *tc_comm_thread(struct tc_hub *h, int id, int rank, const int32_t *members,
                               int size, const struct tc_comm_opts *o);
/* Local; ranks are MPI processes (mpi.h). No communicator is split: messages carry (id, group) in
 * their tags. */
int tc_comm_mpi(struct tc_comm **out, int id, const int32_t *members, int size,
                const struct tc_comm_opts *o, struct tc_err *err);

#endif
