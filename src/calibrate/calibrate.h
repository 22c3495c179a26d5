/* calibrate.h - the prices of a machine: its ops and links are timed, and become a device file for plans.
 *
 * In: a configuration, whose model is trained for a few steps in child processes. Out: the device file. calibrate.c starts
 * the trainings and makes prices of their times; timings.c reads the times from traces. */
#ifndef TC_CALIBRATE_H
#define TC_CALIBRATE_H

#include "src/emit/emit.h"

/* Local; starts child processes. Times this machine's ops and links with
 * short trainings of the configuration's model, and writes a device file. */
int tc_plan_calibrate(const struct tc_plan_job *j, const char *path, struct tc_err *err);

#endif
