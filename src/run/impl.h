/* impl.h - src/run's own: whether programs fit into the device's memory (memory.c). */
#ifndef TC_RUN_IMPL_H
#define TC_RUN_IMPL_H

#include "src/run/run.h"

/* Local, before the programs are made. TC_EUSER if the device has less than a micro-batch needs in
 * any case: a program of an absurd one would itself be huge. */
int tc_run_could_fit(const struct tc_run *r, struct tc_err *err);
/* Local, before memory is taken. TC_EUSER if the device has less than the programs need: what takes
 * it, and other settings that would fit. */
int tc_run_fits(const struct tc_run *r, struct tc_err *err);

#endif
