/* calibrate.h - the prices of a machine: its ops and links are timed, and become a device file for plans.
 *
 * In: a configuration, whose model is trained for a few steps in child processes. Out: the device file. calibrate.c starts
 * the trainings and makes prices of their times; timings.c reads the times from traces. */
#ifndef TC_CALIBRATE_H
#define TC_CALIBRATE_H

#include "src/plan/plan.h"

/* What was measured: shapes of ops; products and bytes per second that were reached; of a CPU, threads of a rank and CPUs
 * of the machine. */
struct tc_calibrated { int shapes; double flops, bytes_per_s; int64_t threads; double cpus; };

/* Local; starts child processes. Times this machine's ops and links with short trainings of the configuration's model, and
 * writes a device file. TC_EUSER: a child failed, or the file can't be made, which is checked first. */
int tc_calibrate(struct tc_calibrated *out, const struct tc_config *own, const char *path, struct tc_err *err);

#endif
