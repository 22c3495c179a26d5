/* open_data.c - the data of a run: rank 0 looks at the files, and tells the others what they are. */
#include "src/run/run.h"

#include <stdlib.h>

int tc_run_data(const struct tc_run *r, struct tc_data **out, const struct tc_data_opts *o, struct tc_err *err)
{
  void *table = NULL;
  int64_t bytes = 0;
  *out = NULL;
  TC_TRY(tc_comm_bcast_status(r->world, r->rank == 0 ? tc_data_open(out, o, err) : 0, err));
  if (r->rank == 0) tc_data_pack(*out, &table, &bytes);
  int rc = tc_comm_bytes_bcast(r->world, 0, &table, &bytes, err);
  if (rc == 0 && r->rank > 0) rc = tc_data_unpack(out, table, bytes, o->files, err);
  if (rc == 0 || r->rank == 0) free(table);
  return rc;
}

/* Whether this rank must look at the tokens: it is the first one of its node, or does not see the same files as that one. */
static int must_look(const struct tc_run *r, const struct tc_data *d, bool *looks, struct tc_err *err)
{
  const int world = r->mesh->world;
  const struct tc_ranks *x = r->ranks;
  const int64_t mine = (int64_t)tc_data_inodes(d);
  int64_t *all = tc_malloc((size_t)world * sizeof *all);
  int rc = tc_comm_all_i64(r->world, &mine, 1, all, err), first = 0;
  while (x->node_of_rank[first] != x->node_of_rank[r->rank]) first++;
  if (rc == 0) *looks = first == r->rank || mine == 0 || mine != all[first];
  free(all);
  return rc;
}

int tc_run_data_same(const struct tc_run *r, struct tc_data *d, const char *which, struct tc_data_identity *id,
                     struct tc_err *err)
{
  enum { TOKENS, HASH, LOOKED, EACH };
  const int world = r->mesh->world;
  bool looks = true;
  *id = (struct tc_data_identity){ 0 };
  TC_TRY(must_look(r, d, &looks, err));
  TC_TRY(tc_run_agree(r, looks ? tc_data_identity(d, id, err) : 0, err));
  const int64_t mine[EACH] = { id->tokens, (int64_t)id->hash, looks };
  int64_t *all = tc_malloc((size_t)(world * EACH) * sizeof *all);
  int rc = tc_comm_all_i64(r->world, mine, EACH, all, err);
  for (int q = 1; q < world && rc == 0; q++) {
    const int64_t *x = all + q * EACH;
    if (x[LOOKED] && (x[TOKENS] != all[TOKENS] || x[HASH] != all[HASH]))
      rc = tc_fail(err, TC_EUSER, "%s and %s read different %s data (%lld and %lld tokens): every node needs the same files",
                   r->rank_names[q], r->rank_names[0], which, (long long)x[TOKENS], (long long)all[TOKENS]);
  }
  if (rc == 0) {
    *id = (struct tc_data_identity){ all[TOKENS], (uint64_t)all[HASH] };
    tc_data_identify(d, id);
  }
  free(all);
  return rc;
}
