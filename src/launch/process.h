/* process.h - what a process of any command is set up with before anything else: descriptors 0, 1
 * and 2, signals that must not end it, a line about a crash. */
#ifndef TC_PROCESS_H
#define TC_PROCESS_H

#include "src/base/base.h"

/* Local, first of all in main. Descriptors 0, 1 and 2 are open afterwards, or a file opened later
 * would get their number and the program's messages; using those that were closed still fails. A
 * pipe without a reader and a file at its size limit are errors of the write (EPIPE, EFBIG), no
 * signals. Threads have stacks of 1 MiB at least; where the main one's limit can't be raised to that, the process
 * ends with a sentence and status 2. A crash is reported in one line, and where a limit on memory (ulimit -v) is used
 * up, the status is 2. So is a library's call of exit, whose status becomes that of TC_EUSER; _exit, which Open MPI
 * 4.1 calls where MPI_Init fails, is not seen. Exists as long as the process. */
struct tc_process *tc_process_begin(void);

/* Local. What main returns: from here on an exit is the program's own. */
int tc_process_end(struct tc_process *p, int status);

/* Local. Starts the n - 1 threads that OpenMP is going to give the calling thread; their crash is
 * reported as its own. TC_EUSER if they can't be started: OpenMP itself would end the process. */
int tc_process_pool(int n, struct tc_err *err);

#endif
