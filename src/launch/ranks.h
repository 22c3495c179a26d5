/* ranks.h - which rank this process is, and on which node: by PMIx under srun and mpirun, or alone.
 * Without a launcher PMIx is never initialised. */
#ifndef TC_RANKS_H
#define TC_RANKS_H

#include "src/launch/gpus.h"

enum { TC_RANK_RECORD_BYTES = 2224 };      /* what each rank tells all others of itself */

struct tc_rank_info {
  int node;                      /* 0 .. n_nodes-1, in order of first rank */
  int local_rank, local_size;
  char host[64];
  char cpuset[256];              /* as a list, "0-3,8": the launcher's, or the rank's part of it */
  bool bound;                    /* it is a part, which tc_ranks_bind makes true */
  int n_cpus;                    /* in the cpuset */
  int numa;                      /* of the cpuset; -1 if it spans several */
  int n_visible;                 /* devices this rank may see (CUDA_VISIBLE_DEVICES or all) */
  int n_node_devices;            /* devices the node has for this job (SLURM_*GPUS* or /dev) */
  int device;                    /* index among the visible; -1 none */
  struct tc_dev dev;
};

struct tc_ranks {
  int rank, world, n_nodes;
  char launcher[16];             /* "srun", "mpirun", "alone" */
  char job[64];                  /* job id, "" if none */
  int restart;                   /* SLURM_RESTART_COUNT, 0 */
  struct tc_rank_info *info;     /* [world]; owned */
  int32_t *node_of_rank;         /* [world]; owned */
};

struct tc_ranks_request {
  bool bind;                     /* divide CPUs that several ranks were given (tc_bind_cpus) */
  bool gpus;                     /* ranks work on GPUs: a part is near the rank's own */
  int threads;                   /* of a rank; parts with fewer CPUs are not made. 0: a thread a CPU */
  bool ask;                      /* ask the driver's library, too (tc_gpus_ask): slow */
  double deadline_s;             /* for ranks to come; 0: 600 */
  struct tc_comm *comm;          /* of all ranks, through which they tell each other where they are; NULL: PMIx is asked
                                  * for each of them */
};

/* Local. Puts into the environment, where it does not say otherwise, what CUDA and NCCL are to read:
 * before MPI, which may start CUDA. Done by the functions below, too. */
void tc_ranks_prepare(void);

/* Collective over the job step: returns when all ranks have started, TC_EPEER after the deadline or more. request may
 * be NULL: nothing. Under srun with more than one task and no PMIx in the environment: TC_EUSER,
 * "start with srun --mpi=pmix". Where hwloc fails on a rank, TC_EUSER with the same sentence on all ranks.
 * *out is owned by the caller. */
int tc_ranks_discover(struct tc_ranks **out, const struct tc_ranks_request *request, struct tc_err *err);
/* Ranks as threads of one process: the same struct for `n` ranks, at most 4096, on this node. */
int tc_ranks_threads(struct tc_ranks **out, int n, const struct tc_ranks_request *request,
                     struct tc_err *err);
/* Local. Binds the calling thread, and those it starts from now on, to the CPUs of `rank` if it
 * is to be bound. */
void tc_ranks_bind(const struct tc_ranks *r, int rank);
void tc_ranks_free(struct tc_ranks *r);
/* Local, at any time. PMIx's name and version, into text[size]. */
void tc_pmix_version(char *text, size_t size);
/* Collective. PMIx_Finalize if it was initialised; after MPI is finished. */
void tc_ranks_finish(void);
/* Local. Ends the whole step with this exit status through PMIx_Abort (does not return). */
_Noreturn void tc_ranks_abort(int exit_status, const char *why);
/* Local. "rank 3 on node2" for each rank, for comm's messages; owned array of owned strings. */
char **tc_ranks_names(const struct tc_ranks *r);
/* Local. The rank's GPU as tc_device_open takes it: by its bus, else as CUDA counts; the first one
 * where none was found. size: 48 or more. */
void tc_ranks_gpu_name(const struct tc_rank_info *me, char *name, size_t size);
/* Local. Whether two ranks of a node use the same device, as far as is known: by UUID, else bus, else visible name. */
bool tc_ranks_same_device(const struct tc_rank_info *a, const struct tc_rank_info *b);
/* Local. Threads for a rank: its CPUs divided among the ranks of the node that share them. */
int tc_ranks_threads_each(const struct tc_ranks *r, int rank);
/* Local. Whether a rank has a CPU for each of its threads that no other rank needs. */
bool tc_ranks_own_cpus(const struct tc_ranks *r, int rank, int threads);

/* Local. The fewest devices that any node has. */
static inline int tc_ranks_node_devices(const struct tc_ranks *r)
{
  int least = r->info[0].n_node_devices;
  for (int i = 1; i < r->world; i++) least = TC_MIN(least, r->info[i].n_node_devices);
  return least;
}

#endif
