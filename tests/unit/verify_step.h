/* verify_step.h - the bytes of a step, verified by one thread: the worst status, and a sentence with the number of faults
 * and the first one. */
#ifndef TERCIO_TEST_VERIFY_STEP_H
#define TERCIO_TEST_VERIFY_STEP_H

#include "io/ckpt/inspect.h"

/* found NULL: the faults are not wanted. */
static int verify_step_of(const char *path, bool deep, struct tc_findings *found, struct tc_err *err)
{
  struct tc_findings f = { 0 };
  const int worst = tc_ckpt_verify_step(path, deep, 1, &f), n = f.n;
  if (n == 1) tc_fail(err, worst, "%.999s", f.fault[0].text);
  if (n > 1) tc_fail(err, worst, "%d faults in %.300s; the first: %.600s", n, path, f.fault[0].text);
  if (found) *found = f;
  else tc_findings_free(&f);
  return worst;
}

static inline int verify_step(const char *path, bool deep, struct tc_err *err)
{
  return verify_step_of(path, deep, NULL, err);
}

#endif
