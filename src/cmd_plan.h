/* cmd_plan.h - what the files of `tercio plan` share. */
#ifndef TC_CMD_PLAN_H
#define TC_CMD_PLAN_H

#include "src/config.h"
#include "src/plan.h"

#include <jansson.h>

struct tc_plan_job {
  struct tc_config *cfg;         /* owned */
  struct tc_cluster cluster;     /* owned */
  int world;
  bool json, search;
  int top;
  double tokens, walltime_s, restart_s;
  const char *emit, *into, *device;              /* borrowed from cfg */
};

/* cmd_plan_print.c. Local. One layout as text, and as JSON (owned by the caller). */
void tc_plan_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);
json_t *tc_plan_json(const struct tc_plan_job *j, const struct tc_plan *p);

#endif
