/* pmix.h - what ranks ask of their launcher, and what they send each other through it. */
#ifndef TC_RANKS_PMIX_H
#define TC_RANKS_PMIX_H

#include "src/base/base.h"

/* Local. Whether a launcher with PMIx started this process; what is left over from an outer Slurm step
 * does not count. */
bool tc_pmix_launched(void);
/* Local, before MPI starts, if tc_pmix_launched. Whether the launcher's server accepts a connection,
 * within 30 s. TC_EPEER if not, or if the address that PMIx would take is not in the environment. */
int tc_pmix_server(struct tc_err *err);
/* server.c. Local. The same, for a PMIx with this name and version. */
int tc_server_answers(const char *pmix_version, struct tc_err *err);
/* Local. Before all others, if tc_pmix_launched. TC_EPEER. */
int tc_pmix_start(int *rank, int *world, struct tc_err *err);
/* Local. From now on no launcher is known: half-initialised, PMIx crashes in any call. */
void tc_pmix_forget(void);
/* Collective over the step. p[bytes] are under `key`, once, for tc_pmix_get; a rank that has got
 * those of all ranks knows that all have started. TC_EPEER after deadline_s, which names those that are missing. */
int tc_pmix_put(const char *key, const void *p, size_t bytes, double deadline_s, struct tc_err *err);
/* Local, after tc_pmix_put. Waits for what `rank` has put under `key`: p[bytes]. TC_EPEER after
 * deadline_s or more; 1: it has put another number of bytes. */
int tc_pmix_get(int rank, const char *key, void *p, size_t bytes, double deadline_s, struct tc_err *err);
/* Local, any thread, while another one is in MPI's start: tells the launcher that this rank waits there. Returns at
 * once; without PMIx, which MPI's start begins, it does nothing. */
void tc_pmix_waits(void);
/* Local, any thread, within 5 s. text[size] <- the ranks that have not told that they wait, "rank 1 on node2, rank 7 on
 * node9"; "" where the launcher does not say. */
void tc_pmix_missing(char *text, size_t size);
/* Local. The lowest rank of this rank's node. -1: this launcher has no node map. */
int tc_pmix_leader(void);

/* Variables by which hwloc reads a topology in place of the node's. They are kept from MPI and PMIx while these start:
 * PMIx 5 reads the topology, too, and where it can't, its rank would end while the others wait for it.
 * tc_ranks_discover finds the fault, and all ranks end with its sentence. */
enum { TC_TOPOLOGY_ENV = 2 };
extern const char *const tc_topology_env[TC_TOPOLOGY_ENV];
/* Local. Unsets them; restore sets them again and frees what was kept. */
struct tc_kept_env { char *value[TC_TOPOLOGY_ENV]; };
struct tc_kept_env tc_topology_env_hide(void);
void tc_topology_env_restore(struct tc_kept_env *kept);

#endif
