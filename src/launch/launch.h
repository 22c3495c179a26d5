/* launch.h - starting the ranks of a command and ending it: threads of this process (run.ranks)
 * or the processes that a launcher started; which of them reports an error; the exit status.
 *
 * In: the options run.*, the launcher's environment, the node's CPUs and GPUs. Out: a call of the
 * command's body on each rank, and an exit status. The files, in reading order:
 *   launch.c    finding the ranks, starting and ending them
 *   ranks.c     which rank is where, and which CPUs and GPU it has; meet.c how ranks tell each other
 *   pmix.c      the launcher, through PMIx; server.c whether its server answers
 *   gpus.c      the GPUs that a rank may use; nvml.c what the driver knows of them
 *   bind.c      GPUs and CPUs divided among the ranks of a node; cpus.c the calling thread's CPUs
 *   process.c   what every process begins with
 *   stop.c      signals that ask a run to save and stop
 *   warnings.c  ranks whose place makes them slow
 *   slurm.c     a partition as Slurm describes it; slurm_words.c its words about a node
 *
 * A command first finds its ranks, then checks whatever else may be wrong on all ranks alike, and
 * only then starts:
 *
 *   rc = tc_launch_find(&l, cfg, &err);
 *   status = rc < 0 ? tc_launch_say(&l, rc, &err) : tc_launch_run(&l, body, ctx);
 *   tc_launch_free(&l); */
#ifndef TC_LAUNCH_H
#define TC_LAUNCH_H

#include "src/comm/comm.h"
#include "src/config/config.h"
#include "src/graph/mesh.h"
#include "src/launch/ranks.h"

struct tc_launch {               /* zeroed by its owner; ranks only read it */
  const struct tc_config *cfg;   /* borrowed; NULL before tc_launch_find */
  int rank;                      /* tc_launch_rank, before MPI started: it may change the environment */
  struct tc_ranks *ranks;        /* owned, as all below; of a thread, only rank 0's view */
  char **rank_names;             /* [world] "rank 3 on node2" */
  struct tc_hub *hub;            /* ranks are threads of this process; else NULL */
  bool mpi;                      /* ranks are processes of a launcher, and MPI runs */
  int mpi_rank, mpi_world;       /* as MPI reports them */
  int found;                     /* what tc_launch_find returned */
  struct tc_err unsaid;          /* what tc_launch_say left to rank 0; status 0: nothing */
};

/* One rank's part of a command; ctx is shared by threads. Collective over the run: returns 0 or
 * a negative status, the same on all ranks unless it is TC_EPEER. Frees its communicators. */
typedef int tc_launch_body(int rank, void *ctx, struct tc_err *err);

/* Collective over the job step. Which ranks run, by run.ranks, run.comm and the launcher. Processes that a
 * launcher started initialise MPI, then PMIx, which have threads: block signals before. TC_EUSER if
 * run.ranks can't be, excludes run.comm or comes with a launcher of several; TC_EPEER if MPI does
 * not start; else as tc_ranks_discover. Where MPI has not joined the ranks, it ends the step and does not
 * return. c is borrowed until tc_launch_free, which must be called after an error as well. */
int tc_launch_find(struct tc_launch *l, const struct tc_config *c, struct tc_err *err);

/* Local, before MPI starts. The rank that the launcher gave this process; 0 alone. */
int tc_launch_rank(void);

/* Local, before MPI starts. Whether no launcher started this process. */
bool tc_launch_alone(void);

/* Local. What tc_launch_find asks of tc_ranks_*, by run.bind, run.device and run.threads. Where
 * OpenMP is set to bind its threads, nothing is bound. */
struct tc_ranks_request tc_launch_request(const struct tc_config *c);

/* Collective over the job step. Starts threads, if they are the ranks; runs body once for each rank
 * and waits; ends MPI. Says each failure once and returns the exit status; where
 * threads failed unlike each other, that of one that did not just miss a peer. A thread that
 * fails leaves the hub. A process that misses a peer ends the step and does not return. */
int tc_launch_run(struct tc_launch *l, tc_launch_body *body, void *ctx);

/* Local. Says a failure on stderr if that is this process's to do: what all ranks find alike is
 * reported by rank 0, a missing peer by each rank that misses it. l may be zeroed, if tc_launch_find was not
 * called. What is left to rank 0 is printed after all if not all ranks reach the end of the run: then rank 0 did not find the
 * same. Returns the exit status (-rc). */
int tc_launch_say(struct tc_launch *l, int rc, const struct tc_err *err);

/* Local. Threads for a rank's kernels: run.threads, or its share of the CPUs, of srun -c's at most; 1 or more. */
int tc_launch_threads(const struct tc_config *c, const struct tc_ranks *r, int rank);

/* Local. Whether all ranks will be on GPUs, by run.device and what each rank may see. */
bool tc_launch_on_gpus(const struct tc_config *c, const struct tc_ranks *r);

/* Collective over the job step. Ends MPI, if it still runs, and PMIx; l may be zeroed. */
void tc_launch_free(struct tc_launch *l);

/* ---- warnings.c: sentences on ranks whose place makes them slow, for whoever shows a placement ---- */

struct tc_warnings { char **text; int n, cap; };     /* [n] sentences; owned, as the list is */

/* Local. Adds what is wrong with the ranks on this mesh. threads[world]: of each rank; NULL: the ranks are simulated,
 * and only the mesh can be wrong. */
void tc_ranks_warnings(struct tc_warnings *out, const struct tc_ranks *r, const struct tc_mesh *m, const int *threads);
/* Local. Adds a sentence. */
void tc_warnings_add(struct tc_warnings *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tc_warnings_free(struct tc_warnings *w);

#endif
