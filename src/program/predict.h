/* predict.h - bytes of a program that can be known before it runs. Local and pure. */
#ifndef TC_PREDICT_H
#define TC_PREDICT_H

#include "src/coll/coll.h"
#include "src/program/program.h"

/* Local. Bytes of staging that the transfers of the program take on this rank. */
int64_t tc_program_staging(const struct tc_program *p, const struct tc_mesh *m, int rank);

/* Local. Bytes, messages and calls of this rank in one step of the program in its group of these axes, by collective: what
 * the counters of its communicator must show. */
void tc_program_bytes(const struct tc_program *p, const struct tc_mesh *m, int rank, unsigned axes,
                      struct tc_comm_counters *out);

#endif
