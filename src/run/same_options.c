/* same_options.c - compares the options of all ranks with those of the first. */
#include "src/run/impl.h"
#include "src/base/hash.h"
#include "src/coll/selection.h"

#include <stdlib.h>
#include <string.h>

/* Each process has read the run file and its flags by itself. Names of files may differ: nodes can have copies of their own,
 * whose contents are compared where they matter. */
static int check_options(const struct tc_run *r, const char *of_first, struct tc_err *err)
{
  struct tc_config *first = tc_config_as_saved(of_first);
  struct tc_config_change x = { .names_files = true };
  int i = 0;
  while (x.names_files && (i = tc_config_next_change(first, r->cfg, i, &x)) >= 0) i++;
  tc_config_free(first);
  return i < 0 ? 0 : tc_fail(err, TC_EUSER, "%s is %s here and %s on %s: all ranks need the same options; is it another run file, "
                             "or another environment?", x.name, *x.is ? x.is : "empty", *x.was ? x.was : "empty", r->rank_names[0]);
}

/* Where the texts differ: collective. */
static int find_difference(const struct tc_run *r, char *mine, struct tc_err *err)
{
  void *first = mine;
  int64_t bytes = (int64_t)strlen(mine) + 1;
  TC_TRY(tc_comm_bytes_bcast(r->world, 0, &first, &bytes, err));
  const int rc = tc_run_agree(r, check_options(r, first, err), err);
  if (first != mine) free(first);
  return rc;
}

int tc_run_same_options(const struct tc_run *r, struct tc_err *err)
{
  const int size = tc_comm_size(r->world);
  char *mine = tc_config_text(r->cfg);
  const uint64_t hash = tc_hash64(mine);
  uint64_t *all = tc_malloc((size_t)size * sizeof *all);
  int rc = tc_comm_all_bytes(r->world, TC_ALGORITHM_TREE, &hash, sizeof hash, all, "options", err), other = 0;
  while (rc == 0 && other < size && all[other] == all[0]) other++;
  if (rc == 0 && other < size) rc = find_difference(r, mine, err);
  TC_FREE(mine, all);
  return rc;
}
