/* mpi.h - the start and the end of MPI, and its messages between watchdogs. Only src/comm and
 * io call MPI. */
#ifndef TC_COMM_MPI_H
#define TC_COMM_MPI_H

#include "src/base/base.h"

struct tc_channel;
enum { TC_MPI_START_ID = 254 };   /* of the communicator in which ranks are found, before those of a run: the largest one */

/* Local, at any time. The MPI library's name and version, into text[size]. */
void tc_mpi_version(char *text, size_t size);

/* Collective over the world. Starts MPI with MPI_THREAD_MULTIPLE. TC_EPEER, TC_EUSER. */
int tc_mpi_start(int *rank, int *world, struct tc_err *err);
/* Collective. Waits for all ranks (0: 600 s) before tc_mpi_finish, which waits without a limit.
 * TC_EPEER. */
int tc_mpi_meet(double deadline_s, struct tc_err *err);
void tc_mpi_finish(void);
struct tc_channel *tc_mpi_channel(void);   /* Local. Between watchdogs (watch/watch.h); owned */
void tc_mpi_abort(int status);    /* ends every rank of the step with this exit status */

#endif
