/* named.h - parallel systems and pipeline schedules by the words of their options, for tables of tests. */
#ifndef TC_NAMED_H
#define TC_NAMED_H

#include <stdlib.h>

#include "src/passes/systems.h"

static inline int choice_named(const char *option, const char *word)
{
  int value;
  if (!tc_choice_parse(option, word, &value)) abort();
  return value;
}

static inline const struct tc_system *system_named(const char *name)
{
  return &tc_systems[choice_named("parallel.data", name)];
}

/* NULL: naive. */
static inline enum tc_schedule schedule_named(const char *name)
{
  return name ? (enum tc_schedule)choice_named("parallel.schedule", name) : TC_SCHEDULE_NAIVE;
}

#endif
