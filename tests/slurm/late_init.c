/* late_init.c - preloaded, makes ranks from $LATE_FROM on late in MPI_Init_thread: they hear the
 * answer to its first PMIx fence a second after it came, and say so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct answer { pmix_op_cbfunc_t to; void *with; pmix_status_t status; };

static volatile int to_delay;

int MPI_Init_thread(int *argc, char ***argv, int want, int *got)
{
  const char *from = getenv("LATE_FROM"), *rank = getenv("PMIX_RANK");
  to_delay = from && rank && atoi(rank) >= atoi(from);
  return PMPI_Init_thread(argc, argv, want, got);
}

static void *answer_late(void *arg)
{
  struct answer *a = arg;
  fputs("late_init: late\n", stderr);
  sleep(1);
  a->to(a->status, a->with);
  return free(a), NULL;
}

static void answered(pmix_status_t status, void *arg)
{
  pthread_t t;
  struct answer *a = arg;
  a->status = status;
  if (pthread_create(&t, NULL, answer_late, a)) answer_late(a);
  else pthread_detach(t);
}

pmix_status_t PMIx_Fence_nb(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                            size_t ninfo, pmix_op_cbfunc_t to, void *with)
{
  pmix_status_t (*real)(const pmix_proc_t[], size_t, const pmix_info_t[], size_t, pmix_op_cbfunc_t,
                        void *);
  *(void **)&real = dlsym(RTLD_NEXT, "PMIx_Fence_nb");
  if (!to_delay) return real(procs, nprocs, info, ninfo, to, with);
  to_delay = 0;
  struct answer *a = malloc(sizeof *a);
  if (!a) return PMIX_ERR_NOMEM;
  *a = (struct answer){ .to = to, .with = with };
  return real(procs, nprocs, info, ninfo, answered, a);
}
