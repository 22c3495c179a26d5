/* fault.c - faults on purpose: a test aid, off unless run.fault asks for one. */
#include "src/train/parts.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/watch/watch.h"

static const char *const kinds[TC_FAULT_KINDS] = { "", "hang", "slow", "pace", "nan", "spike", "row" };

#define PACE_NS INT64_C(100000000)     /* what each step takes longer: so that there is time to disturb it, on any machine */

int tc_fault_parse(struct tc_fault *f, const char *text, int world, struct tc_err *err)
{
  *f = (struct tc_fault){ .rank = world - 1 };
  if (!*text) return 0;
  const char *at = strchr(text, '@');
  char *end = NULL;
  for (int k = 1; at && k < TC_FAULT_KINDS; k++)
    if (!strncmp(text, kinds[k], (size_t)(at - text)) && !kinds[k][at - text]) f->kind = k;
  if (at) f->step = strtoll(at + 1, &end, 10);
  if (f->kind && *end == ':' && isdigit((unsigned char)end[1]))
    f->rank = (int)strtol(end + 1, &end, 10);
  if (!f->kind || *end || f->step < 1 || f->rank < 0 || f->rank >= world)
    return tc_fail(err, TC_EUSER, "run.fault = %s: give nan@STEP, row@STEP, spike@STEP, pace@STEP, hang@STEP "
                   "or slow@STEP, the last two with :RANK (0 to %d) after it or without", text, world - 1);
  return 0;
}

void tc_fault_begin(const struct tc_fault *f, int rank, int64_t step)
{
  if (f->kind != TC_FAULT_HANG || rank != f->rank || step != f->step) return;
  tc_at_phase("hanging on purpose");
  for (;;) tc_sleep_ns(INT64_C(1000000000));
}

void tc_fault_end(const struct tc_fault *f, int rank, int64_t step, int64_t work_ns)
{
  if (f->kind == TC_FAULT_SLOW && rank == f->rank && step >= f->step) tc_sleep_ns(3 * work_ns);
  if (f->kind == TC_FAULT_PACE && step >= f->step) tc_sleep_ns(PACE_NS);
}

void tc_fault_fire(struct tc_train *t, struct tc_step_report *s)
{
  int kind = t->fault.kind;
  if (kind < TC_FAULT_NAN || s->step != t->fault.step) return;
  t->fault.kind = TC_FAULT_NONE;               /* once */
  if (kind == TC_FAULT_SPIKE) s->loss *= 1000;
  if (kind == TC_FAULT_NAN) {
    tc_train_poison(t, false);
    s->loss = NAN;
  }
  if (kind == TC_FAULT_ROW && t->run.rank == t->fault.rank) tc_train_poison(t, true);
}
