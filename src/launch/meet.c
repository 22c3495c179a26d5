/* meet.c - ranks tell each other where they are (meet.h): through MPI, where it joins them, and else through PMIx, which
 * is then asked for each of them. */
#include "src/launch/meet.h"
#include "ac_config.h"
#include "src/base/hash.h"
#include "src/coll/flow.h"
#include "src/comm/comm.h"
#include "src/launch/pmix.h"

#include <stdlib.h>

enum { DEADLINE_S = 600 };
_Static_assert(sizeof(struct blob) == TC_RANK_RECORD_BYTES, "what tercio plan --simulate-start takes it to be");

static int another_build(int rank, int than, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "rank %d runs another build of tercio than rank %d; install the same one on all nodes", rank,
                 than);
}

enum { GATHERED_BY = TC_ALGORITHM_DOUBLING };         /* log2 N messages of a rank, to as many others */

/* Asks PMIx for a rank until it has started. */
static int await_rank(int rank, int peer, const char *key, double deadline_s, struct tc_err *err)
{
  uint32_t it = 0;
  const int rc = tc_pmix_get(peer, key, &it, sizeof it, deadline_s, err);
  return rc < 0 ? rc : rc > 0 || it != TC_BLOB_MAGIC ? another_build(peer, rank, err) : TC_OK;
}

/* Each rank has started to which this one sends in `gather`. PMIx's fence may have waited for no other node (pmix.c), and
 * Open MPI 4.1 crashes if a message arrives while MPI_Init has hardly begun. */
static int meet(int rank, const char *key, int world, double deadline_s, struct tc_err *err)
{
  const uint32_t here = TC_BLOB_MAGIC;
  const struct tc_members all = tc_members_of(world, rank);
  struct tc_flows l = { 0 };
  int rc = tc_pmix_put(key, &here, sizeof here, deadline_s, err);
  tc_flows_of(&l, GATHERED_BY, TC_ALL_GATHER, &all, 0);
  for (int i = 0; i < l.n && !rc; i++)
    for (int k = 0; k < l.flow[i].peers && !rc && l.flow[i].kind == TC_FLOW_SEND; k++)
      rc = await_rank(rank, (l.flow[i].peer + k) % world, key, deadline_s, err);
  tc_flows_done(&l);
  return rc;
}

/* Every rank's blob into all[world]: first which build it is of, in a call in which builds can't differ. */
static int gather(int rank, const struct blob *mine, int world, const struct tc_ranks_request *request, struct blob *all,
                  struct tc_err *err)
{
  const uint64_t build = tc_hash64_add(tc_hash64(PACKAGE_VERSION), (uint64_t)TC_BLOB_MAGIC << 32 | sizeof *mine);
  uint64_t *builds = tc_malloc((size_t)world * sizeof *builds);
  int rc = tc_comm_all_bytes(request->comm, GATHERED_BY, &build, sizeof build, builds, "ranks", err);
  for (int r = 0; !rc && r < world; r++)
    if (builds[r] != build) rc = another_build(r, rank, err);
  free(builds);
  return rc ? rc : tc_comm_all_bytes(request->comm, GATHERED_BY, mine, sizeof *mine, all, "ranks", err);
}

/* The same where only PMIx joins the ranks: it is asked for each of them. */
static int ask_each(int rank, const char *key, const struct blob *mine, int world, double deadline_s, struct blob *all,
                    struct tc_err *err)
{
  TC_TRY(tc_pmix_put(key, mine, sizeof *mine, deadline_s, err));
  for (int r = 0; r < world; r++) {
    int rc = tc_pmix_get(r, key, &all[r], sizeof all[r], deadline_s, err);
    if (rc < 0) return rc;
    if (rc > 0 || all[r].magic != TC_BLOB_MAGIC) return another_build(r, rank, err);
  }
  return TC_OK;
}

int tc_ranks_exchange(int rank, bool first, const struct blob *mine, int world, const struct tc_ranks_request *request,
                      struct blob *all, struct tc_err *err)
{
  const double deadline_s = request->deadline_s > 0 ? request->deadline_s : DEADLINE_S;
  const char *key = first ? "tercio.rank" : "tercio.device";
  if (!request->comm) return ask_each(rank, key, mine, world, deadline_s, all, err);
  if (first) TC_TRY(meet(rank, key, world, deadline_s, err));
  return gather(rank, mine, world, request, all, err);
}
