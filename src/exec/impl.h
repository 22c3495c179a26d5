/* impl.h - private to src/exec: programs made ready to run. */
#ifndef TC_EXEC_IMPL_H
#define TC_EXEC_IMPL_H

#include "src/exec/exec.h"

struct tc_xnode {
  struct tc_call call;
  struct tc_xreshard **reshard;  /* RESHARD only: as many as are in flight at once, used in turn */
  int32_t n_reshards;
  bool slotted;                  /* its tensors are elsewhere in every micro-batch */
  uint8_t first_acc, acc;        /* acc bits in a step's first micro-batch, and in the others */
  void *plan, *first_plan;       /* the device's plans for both; may be NULL */
  int64_t *mb_step;              /* per view: what a micro-batch adds to off[mb_dim] */
  int8_t *mb_dim;                /* -1: none */
  bool nowhere;                  /* none of its outputs is on this rank: nothing to do */
  int32_t *last_used;            /* tensors whose memory is free after this node; -1 ends (poison only) */
};

/* A group of actions whose calls the device does as one, at the place of the last of them. */
struct tc_xfused {
  const char *name;              /* for traces; borrowed */
  int32_t from, at, n;           /* the first action and the last; how many calls */
  int32_t *node;                 /* [n], in the order of the actions */
  const struct tc_call **call;   /* [n] */
};

/* Actions [from, to) that the device runs without the host (capture.c). */
struct tc_xseg {
  int32_t from, to;
  void *list;                    /* the device's; NULL: not captured */
  bool refused;                  /* and won't be */
};

struct tc_xprog {
  const struct tc_program *p;
  struct tc_xnode *node;         /* [n_nodes] */
  int32_t first_write;           /* the first action that writes what checkpoints hold */
  struct tc_xseg *seg;           /* [n_segs], in order */
  int32_t n_segs;
  bool ran;
  struct tc_xfused **fused;      /* [actions]; NULL: the action runs by itself; shared by its actions */
};

/* A time on the host's clock, and the event of the device's clock there; -1: none. */
struct tc_xwhen { int64_t ns; int32_t event; bool measured; };
/* The time of an action between two events of the device's clock. */
struct tc_xinterval {
  int32_t begin, end;            /* events */
  int set;                       /* of the group */
  bool wait, shown;              /* counts as waiting in the group; is in the trace */
  struct tc_event traced;
};

struct tc_exec {
  struct tc_exec_opts o;
  struct tc_xprog *prog;
  int n_progs;
  char *region[TC_REGIONS], *kscratch[TC_SPACES];
  int32_t *batch;                /* batches on their way to a device of its own memory, */
  int64_t batch_elems;           /* a place of so many elements for each batch of a run */
  int32_t *arrived;              /* ... in that memory; NULL: they are copied to the tensors */
  int32_t n_batches, batch_at;
  int64_t bytes[TC_REGIONS], kscratch_bytes[TC_SPACES], staging_bytes, wait_ns[TC_SETS];
  struct tc_runtime now;
  int64_t barrier;               /* a copy of the state, before whose end nothing writes the state; 0: none */
  bool refused;                  /* the device has refused to capture */
  struct tc_xwhen started;       /* the run */
  struct tc_xinterval *interval; /* of the run, until it is over */
  int32_t n_intervals, cap_intervals;
};

/* The device of a space of memory, that of a node, and that of a region. */
static inline struct tc_device *tc_exec_device_in(const struct tc_exec *x, int space)
{
  return space == TC_HOST && x->o.host ? x->o.host : x->o.device;
}
static inline struct tc_device *tc_exec_device_of(const struct tc_exec *x, const struct tc_node *n)
{
  return tc_exec_device_in(x, n->space);
}

/* calls.c. Where tensor t is in micro-batch mb; NULL: it has no storage here. */
void *tc_exec_where(const struct tc_exec *x, const struct tc_xprog *p, int32_t t, int32_t mb);
/* Makes the call of a node, with the device's plans for it; or its transfer. */
int tc_exec_make_node(struct tc_exec *x, struct tc_xprog *p, int32_t node, struct tc_err *err);
void tc_exec_free_node(struct tc_exec *x, struct tc_xprog *p, int32_t node);
/* The call of a node as micro-batch mb needs it; _done puts it back. */
void tc_exec_ready(struct tc_exec *x, struct tc_xprog *p, int32_t node, int32_t mb);
void tc_exec_done(struct tc_xprog *p, int32_t node, int32_t mb);

/* The device does this action, if anything is to be done, without the host: no batch, no peer, no host
 * memory. */
bool tc_exec_is_alone(const struct tc_exec *x, const struct tc_xprog *p, const struct tc_action *a);
/* walk.c. Actions [from, to), one by one. */
int tc_exec_walk(struct tc_exec *x, struct tc_xprog *p, int32_t from, int32_t to,
                 struct tc_err *err);
/* Tells the watchdog that action k begins. */
void tc_exec_mark(const struct tc_xprog *p, int32_t k);

/* timing.c. Around a run, and around each of its actions. */
void tc_exec_time_start(struct tc_exec *x);
struct tc_xwhen tc_exec_time_begin(struct tc_exec *x, const struct tc_xprog *p, int32_t k);
void tc_exec_time_end(struct tc_exec *x, const struct tc_xprog *p, int32_t k,
                      const struct tc_xfused *f, struct tc_xwhen begin);
void tc_exec_time_settle(struct tc_exec *x);     /* the device has done the run */
/* How a trace names an action, without its times. False: there is nothing to show. */
bool tc_exec_event(const struct tc_exec *x, const struct tc_xprog *p, const struct tc_action *a,
                   const struct tc_xfused *f, struct tc_event *out);

/* ranges.c. Begin a range of the device's profiler; true: it is to be ended. */
bool tc_exec_range_run(const struct tc_exec *x, int program);
bool tc_exec_range_action(const struct tc_exec *x, const struct tc_xprog *p, int32_t k);
bool tc_exec_range_segment(const struct tc_exec *x, const struct tc_xprog *p, const struct tc_xseg *seg);
void tc_exec_range_end(const struct tc_exec *x, bool begun);

/* capture.c. Finds a program's segments; its calls are fused and ready. */
void tc_exec_cut(struct tc_exec *x, struct tc_xprog *p);
void tc_exec_uncut(struct tc_exec *x, struct tc_xprog *p);
int tc_exec_segment(struct tc_exec *x, struct tc_xprog *p, struct tc_xseg *seg, struct tc_err *err);

/* fused.c. Asks the device which groups of a program it fuses; all nodes are ready. The scratch that these
 * need is added to kscratch_bytes. */
void tc_exec_fuse(struct tc_exec *x, struct tc_xprog *p);
void tc_exec_unfuse(struct tc_xprog *p);
/* After action k: whether a part that runs later than its own place, past k, reads the storage of tensor `root`. */
bool tc_exec_is_deferred(const struct tc_xprog *p, int32_t k, int32_t root);
int tc_exec_run_fused(struct tc_exec *x, struct tc_xprog *p, const struct tc_xfused *f, int32_t mb,
                      struct tc_err *err);

#endif
