/* fault.h - run.fault: faults that tests ask for, KIND@STEP[:RANK]. Not a number and a spike
 * are of all ranks alike; rollback.c makes them. */
#ifndef TC_FAULT_H
#define TC_FAULT_H

#include "src/base/base.h"

enum tc_fault_kind {
  TC_FAULT_NONE, TC_FAULT_HANG, TC_FAULT_SLOW, TC_FAULT_NAN, TC_FAULT_SPIKE, TC_FAULT_KINDS
};

struct tc_fault { int kind, rank; int64_t step; };   /* without :RANK the last rank */

/* Local. "" is none. TC_EUSER. */
int tc_fault_parse(struct tc_fault *f, const char *text, int world, struct tc_err *err);
/* Local. At the begin of a step's work: hangs, if it is time. */
void tc_fault_begin(const struct tc_fault *f, int rank, int64_t step);
/* Local. At its end, after work_ns of work: makes it four times as long, if asked to. */
void tc_fault_end(const struct tc_fault *f, int rank, int64_t step, int64_t work_ns);

#endif
