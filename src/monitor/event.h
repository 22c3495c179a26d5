/* event.h - tracks and kinds of trace events; the report uses it, too. */
#ifndef TC_EVENT_H
#define TC_EVENT_H

/* Tracks of a rank. Each communicator, a serial queue, has its own track (tc_trace_comm). */
enum tc_track { TC_TRACK_STEP, TC_TRACK_COMPUTE, TC_TRACK_COPY, TC_TRACK_CKPT, TC_TRACK_COMM };

/* The kind of an event: "cat" in the file, a colour in the report. The first four are enum tc_mark. */
enum tc_event_kind {
  TC_EV_FORWARD, TC_EV_BACKWARD, TC_EV_WEIGHT, TC_EV_UPDATE, TC_EV_ISSUE, TC_EV_WAIT,
  TC_EV_COMM, TC_EV_CONTROL, TC_EV_COPY, TC_EV_CKPT, TC_EV_EVAL, TC_EV_STEP, TC_EV_KINDS
};
extern const char *const tc_event_kind_name[TC_EV_KINDS];

#endif
