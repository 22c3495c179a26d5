/* open_data.c - the data of a run: rank 0 looks at the files, and tells the others what they are. */
#include "src/run/run.h"

#include <stdlib.h>

#define SLICE_NS INT64_C(10000000000)

/* Ranks that work for as long as it takes; all ranks agree now and then that some still do: no rank waits in one call for longer
 * than a deadline. */
struct slices { const struct tc_run *r; int64_t each_ns, until_ns; };

static int say_busy(void *ctx, struct tc_err *err)
{
  struct slices *x = ctx;
  int64_t busy = 1;
  if (tc_now_ns() < x->until_ns) return 0;
  x->until_ns = tc_now_ns() + x->each_ns;
  return tc_comm_max_i64(x->r->world, &busy, 1, err);
}

int tc_run_work(const struct tc_run *r, bool works, tc_work_fn *work, void *ctx, struct tc_err *err)
{
  const double deadline_s = r->cfg->run_deadline > 0 ? r->cfg->run_deadline : 600;
  struct slices x = { .r = r, .each_ns = TC_MIN((int64_t)(deadline_s * 1e9 / 4), SLICE_NS) };
  int64_t busy;
  x.until_ns = tc_now_ns() + x.each_ns;
  const int rc = works ? work(ctx, &(struct tc_between){ say_busy, &x }, err) : 0;
  if (rc == TC_EPEER) return rc;
  do {
    busy = 0;
    TC_TRY(tc_comm_max_i64(r->world, &busy, 1, err));
  } while (busy);
  return rc;
}

struct opening { struct tc_data **out; const struct tc_data_opts *o; };

static int open_set(void *ctx, const struct tc_between *between, struct tc_err *err)
{
  const struct opening *x = ctx;
  return tc_data_open_between(x->out, x->o, between, err);
}

/* Rank 0 has opened the data set, or not: the same on all ranks. */
static int open_on_first(const struct tc_run *r, struct tc_data **out, const struct tc_data_opts *o, struct tc_err *err)
{
  const int rc = tc_run_work(r, r->rank == 0, open_set, &(struct opening){ out, o }, err);
  return rc == TC_EPEER ? rc : tc_comm_bcast_status(r->world, rc, err);
}

int tc_run_data(const struct tc_run *r, struct tc_data **out, const struct tc_data_opts *o, struct tc_err *err)
{
  void *table = NULL;
  int64_t bytes = 0;
  *out = NULL;
  TC_TRY(open_on_first(r, out, o, err));
  if (r->rank == 0) tc_data_pack(*out, &table, &bytes);
  int rc = tc_comm_bytes_bcast(r->world, 0, &table, &bytes, err);
  if (rc == 0 && r->rank > 0) rc = tc_data_unpack(out, table, bytes, o->files, err);
  if (rc == 0 || r->rank == 0) free(table);
  return rc;
}

int tc_run_steps(int64_t *steps, const struct tc_config *c, const struct tc_data *d, struct tc_err *err)
{
  enum { MOST = 1000000000 };
  const int64_t batch = c->train_global_batch;
  *steps = c->train_steps;
  if (c->data_epochs <= 0) return 0;
  const int64_t samples = tc_data_samples(d, c->data_epochs);
  *steps = samples / batch;
  if (*steps >= 1 && *steps <= MOST) return 0;
  return tc_fail(err, TC_EUSER, "data.epochs = %g is %lld samples, which are %lld steps of train.global_batch = "
                 "%lld; a run has from 1 to %d", c->data_epochs, (long long)samples, (long long)*steps, (long long)batch,
                 MOST);
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

struct looking { struct tc_data *d; struct tc_data_identity *id; };

static int look(void *ctx, const struct tc_between *between, struct tc_err *err)
{
  const struct looking *x = ctx;
  return tc_data_identity_between(x->d, x->id, between, err);
}

int tc_run_data_same(const struct tc_run *r, struct tc_data *d, const char *which, struct tc_data_identity *id,
                     struct tc_err *err)
{
  enum { TOKENS, HASH, LOOKED, EACH };
  const int world = r->mesh->world;
  bool looks = true;
  *id = (struct tc_data_identity){ 0 };
  TC_TRY(must_look(r, d, &looks, err));
  int rc;
  if (tc_data_weighted(d)) rc = tc_run_work(r, looks, look, &(struct looking){ d, id }, err);
  else rc = looks ? tc_data_identity(d, id, err) : 0;              /* which reads little */
  if (rc == TC_EPEER) return rc;
  TC_TRY(tc_run_agree(r, rc, err));
  const int64_t mine[EACH] = { id->tokens, (int64_t)id->hash, looks };
  int64_t *all = tc_malloc((size_t)(world * EACH) * sizeof *all);
  rc = tc_comm_all_i64(r->world, mine, EACH, all, err);
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
