/* trace.h - the operations of a rank over time, as Chrome trace events (Perfetto, chrome://tracing).
 *
 * Events are stored in a buffer allocated before the run; when it is full, later ones are counted as
 * dropped. Only steps that begin with tc_trace_step are traced. Every function accepts
 * NULL for the trace and then does nothing.
 *
 * src/monitor has a run's measurements of itself. In: events and times of each rank. Out: a file of all
 * ranks' events on one clock, a warning about a rank that is slower than the others. The files, in
 * reading order:
 *   trace.c       events, clock synchronisation between ranks, the file
 *   straggler.c   straggler detection */
#ifndef TC_TRACE_H
#define TC_TRACE_H

#include "src/base/base.h"
#include "src/comm/comm.h"
#include "src/files/output.h"

/* Tracks of a rank. Each communicator, a serial queue, has its own track (tc_trace_comm). */
enum tc_track { TC_TRACK_STEP, TC_TRACK_COMPUTE, TC_TRACK_COPY, TC_TRACK_CKPT, TC_TRACK_COMM };

/* The kind of an event: "cat" in the file, a colour in the report. The first four are enum tc_mark. */
enum tc_event_kind {
  TC_EV_FORWARD, TC_EV_BACKWARD, TC_EV_WEIGHT, TC_EV_UPDATE, TC_EV_ISSUE, TC_EV_WAIT,
  TC_EV_COMM, TC_EV_CONTROL, TC_EV_COPY, TC_EV_CKPT, TC_EV_EVAL, TC_EV_STEP, TC_EV_KINDS
};
extern const char *const tc_event_kind_name[TC_EV_KINDS];

struct tc_trace;

struct tc_event {
  const char *name;              /* borrowed until the trace is freed, like the other strings */
  const char *on;                /* the axis it communicates on; NULL */
  const char *tensor, *unit;     /* NULL: none */
  int64_t begin_ns, end_ns;      /* tc_now_ns */
  int64_t bytes;                 /* bytes sent; -1: unknown */
  int32_t step, mb;              /* step is set by tc_trace_add; mb -1: none */
  uint8_t track, kind;
};

struct tc_trace_opts {
  const char *file;              /* copied */
  const char *process;           /* "rank 3 on node2, pp 0 dp 1 tp 0"; copied */
  int rank, world;
  int64_t steps;                 /* number of steps to trace */
  int64_t skew_ns;               /* added to this rank's clock: tests simulate another node */
  double drift;                  /* ... and the rate by which that clock is faster: 0.01 is 1 % */
};

/* Local. */
struct tc_trace *tc_trace_new(const struct tc_trace_opts *o);
void tc_trace_free(struct tc_trace *t);
/* Local. Allocates the buffer for `events` events, or fewer if all ranks' together would be too many to view. */
void tc_trace_reserve(struct tc_trace *t, int64_t events);
/* Local. Rank 0 opens the file, under a temporary name until it is complete; kept[n] are files that it may not be. */
int tc_trace_open(struct tc_trace *t, const struct tc_output_kept *kept, int n, struct tc_err *err);

/* Local. A track for a communicator: *o gets the callback. `name` ("dp") is borrowed. At most 8. */
void tc_trace_comm(struct tc_trace *t, const char *name, struct tc_comm_opts *o);

/* Local. Later events belong to this step. False if all requested steps are traced. */
bool tc_trace_step(struct tc_trace *t, int64_t step);
/* Local. Stops recording until resume, which records the pause as one event. Returns the time. */
int64_t tc_trace_pause(struct tc_trace *t);
void tc_trace_resume(struct tc_trace *t, int kind, const char *name, int64_t begin_ns);
/* Local, from any thread. Whether events are recorded; record one (dropped when the buffer is
 * full). */
bool tc_trace_on(struct tc_trace *t);
void tc_trace_add(struct tc_trace *t, const struct tc_event *e);

/* Collective over `world`, whose coordinates are the ranks. Compares this rank's clock with
 * rank 0's. Before the first step; tc_trace_write does it again. */
int tc_trace_sync(struct tc_trace *t, struct tc_comm *world, struct tc_err *err);
/* Local. Converts a time of this rank to rank 0's clock, by the offsets that the syncs measured. */
int64_t tc_trace_common_ns(const struct tc_trace *t, int64_t ns);
/* Collective. Ends the tracing, gathers all events on rank 0, which writes the file; does nothing
 * the second time, or if no step was traced. If the file cannot be written, only rank 0 returns an error. */
int tc_trace_write(struct tc_trace *t, struct tc_comm *world, struct tc_err *err);
/* Local. This rank's events, one JSON object per line, each line ended by ",\n"; owned by the caller. */
char *tc_trace_text(struct tc_trace *t);

#endif
