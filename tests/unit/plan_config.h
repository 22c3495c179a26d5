/* plan_config.h - configurations of the planner's tests, from options; owned by the caller. */
#ifndef TC_PLAN_CONFIG_H
#define TC_PLAN_CONFIG_H

#include "src/config/config.h"
#include "tests/unit/tap.h"

static struct tc_config *config(int argc, const char **argv)
{
  struct tc_config *c = NULL;
  struct tc_err err = { 0 };
  if (tc_config_new(&c, argc, (char **)argv, &err) < 0) {
    ok(false, "%s", err.text);
    exit(1);
  }
  return c;
}
#define CONFIG(...) config((int)(sizeof (const char *[]){ "plan", __VA_ARGS__ } / sizeof(char *)), \
                           (const char *[]){ "plan", __VA_ARGS__ })

#endif
