/* control.c - control data: maxima, bytes of different lengths, one status for all members.
 *
 * All functions use calls of comm.h, each started and waited for. */
#include <stdlib.h>
#include <string.h>

#include "src/coll/selection.h"
#include "src/comm/comm.h"

/* One part of bytes. */
static int run_by(struct tc_comm *c, int algorithm, int coll, int root, struct tc_part p, const char *what, struct tc_err *err)
{
  struct tc_coll_args a = { .coll = coll, .algorithm = algorithm, .dtype = TC_U8, .root = root, .n_parts = 1,
                            .parts = &p, .ctl = true, .what = what };
  return tc_comm_run(c, &a, err);
}

static int run_ctl(struct tc_comm *c, int coll, int root, const void *src, void *dst,
                   int64_t bytes, int64_t block_bytes, const char *what, struct tc_err *err)
{
  return run_by(c, TC_ALGORITHM_AUTO, coll, root, (struct tc_part){ src, dst, bytes, block_bytes }, what, err);
}

int tc_comm_all_bytes(struct tc_comm *c, int algorithm, const void *mine, int64_t bytes, void *all, const char *what,
                      struct tc_err *err)
{
  return run_by(c, algorithm, TC_ALL_GATHER, 0, (struct tc_part){ mine, all, bytes * tc_comm_size(c), bytes }, what, err);
}

int tc_comm_all_i64(struct tc_comm *c, const int64_t *x, int n, int64_t *all,
                    struct tc_err *err)
{
  TC_ASSERT(n >= 0);
  int64_t mine_bytes = n * (int64_t)sizeof *x;
  return run_ctl(c, TC_ALL_GATHER, 0, x, all, mine_bytes * tc_comm_size(c), mine_bytes, "control",
                 err);
}

/* Gathered rather than reduced: no element type of reductions represents every int64 exactly. */
int tc_comm_max_i64(struct tc_comm *c, int64_t *x, int n, struct tc_err *err)
{
  int64_t *all = tc_malloc((size_t)(n * tc_comm_size(c)) * sizeof *all + 1);
  int rc = tc_comm_all_i64(c, x, n, all, err);
  for (int i = 0; rc == 0 && i < tc_comm_size(c) * n; i++)
    if (all[i] > x[i % n]) x[i % n] = all[i];
  free(all);
  return rc;
}

/* Bytes of the members from, from + 1, ... below to, counted from the root on. */
static int64_t sum_bytes(const int64_t *bytes, int size, int root, int from, int to)
{
  int64_t sum = 0;
  for (int i = from; i < TC_MIN(to, size); i++) sum += bytes[(root + i) % size];
  return sum;
}

/* buf[all] <- what the members me ... me + span - 1 have, counted from the root on; this one's own is there. They come up a
 * binomial tree. */
static int receive_below(struct tc_comm *c, int root, int me, int span, const int64_t *bytes, char *buf, struct tc_err *err)
{
  const int size = tc_comm_size(c);
  char *to = buf + sum_bytes(bytes, size, root, me, me + 1);
  for (int step = 1; step < span && me + step < size; step *= 2) {
    const int64_t n = sum_bytes(bytes, size, root, me + step, me + 2 * step);
    if (n) TC_TRY(run_ctl(c, TC_RECV, (root + me + step) % size, NULL, to, n, n, "bytes to gather", err));
    to += n;
  }
  return 0;
}

/* The lengths are gathered first; then each member with bytes below or of its own sends them up. */
int tc_comm_bytes_gather(struct tc_comm *c, int root, const void *mine, int64_t my_bytes,
                         void **all, int64_t *bytes, struct tc_err *err)
{
  const int size = tc_comm_size(c), me = (tc_comm_coord(c) - root + size) % size, span = me ? me & -me : size;
  const int64_t one = (int64_t)sizeof *bytes;
  TC_ASSERT(my_bytes >= 0 && root >= 0 && root < size);
  *all = NULL;
  TC_TRY(run_ctl(c, TC_ALL_GATHER, 0, &my_bytes, bytes, one * size, one, "lengths to gather", err));
  const int64_t n = sum_bytes(bytes, size, root, me, me + span);
  char *buf = tc_malloc((size_t)n + 1);
  if (my_bytes) memcpy(buf, mine, (size_t)my_bytes);
  int rc = receive_below(c, root, me, span, bytes, buf, err);
  if (rc == 0 && me > 0 && n > 0)
    rc = run_ctl(c, TC_SEND, (root + me - span) % size, buf, NULL, n, n, "bytes to gather", err);
  if (rc == 0 && me == 0 && root == 0) {
    *all = buf;
    return 0;
  }
  if (rc == 0 && me == 0) {                    /* from coordinate 0 on */
    const int64_t first = sum_bytes(bytes, size, root, 0, size - root);
    char *sorted = tc_malloc((size_t)n + 1);
    memcpy(sorted, buf + first, (size_t)(n - first));
    memcpy(sorted + n - first, buf, (size_t)first);
    *all = sorted;
  }
  free(buf);
  return rc;
}

int tc_comm_bytes_bcast(struct tc_comm *c, int root, void **buf, int64_t *n_bytes,
                        struct tc_err *err)
{
  const int64_t one = (int64_t)sizeof *n_bytes;
  bool am_root = tc_comm_coord(c) == root;
  if (!am_root) *buf = NULL;
  TC_TRY(run_ctl(c, TC_BROADCAST, root, n_bytes, n_bytes, one, one, "length to broadcast",
                 err));
  void *to = am_root ? *buf : tc_malloc((size_t)*n_bytes + 1);
  int rc = run_ctl(c, TC_BROADCAST, root, to, to, *n_bytes, tc_ceil_div(*n_bytes, tc_comm_size(c)), "bytes to broadcast",
                   err);
  if (!am_root && rc < 0) free(to);
  else *buf = to;
  return rc;
}

/* Broadcasts a member's status and sentence. */
static int bcast_err(struct tc_comm *c, int root, const struct tc_err *mine, struct tc_err *err)
{
  struct tc_err copy = *mine;
  const bool am_root = tc_comm_coord(c) == root;
  void *buf = am_root ? &copy : NULL;
  int64_t n = sizeof copy;
  TC_TRY(tc_comm_bytes_bcast(c, root, &buf, &n, err));
  TC_ASSERT(n == (int64_t)sizeof copy);
  if (!am_root) copy = *(struct tc_err *)buf;
  if (!am_root) free(buf);
  if (copy.status < 0 && err) *err = copy;
  return copy.status;
}

/* By a named algorithm, which no table changes. */
int tc_comm_same_selection(struct tc_comm *c, char *const *rank_names, const struct tc_selection *s, const char *file,
                           struct tc_err *err)
{
  const int size = tc_comm_size(c);
  const uint64_t x = tc_selection_hash(s, false);
  uint64_t *all = tc_malloc((size_t)size * sizeof *all);
  int rc = tc_comm_all_bytes(c, TC_ALGORITHM_TREE, &x, sizeof x, all, "tables of collectives", err), other = 0;
  while (rc == 0 && other < size && all[other] == all[0]) other++;
  if (rc == 0 && other < size)
    rc = tc_fail(err, TC_EUSER, "run.collectives%s%.300s has other rows on %s than on %s: all ranks need the same file",
                 *file ? " = " : "", file, rank_names[other], rank_names[0]);
  free(all);
  return rc;
}

int tc_comm_bcast_status(struct tc_comm *c, int rc, struct tc_err *err)
{
  struct tc_err mine = { 0 };
  if (tc_comm_size(c) == 1) return rc;
  if (rc < 0) mine = *err;
  mine.status = rc;
  return bcast_err(c, 0, &mine, err);
}

/* All learn all statuses; only a sentence is broadcast, by the first member that has one. */
int tc_comm_agree(struct tc_comm *c, char *const *rank_names, int rc, struct tc_err *err)
{
  const int size = tc_comm_size(c), coord = tc_comm_coord(c);
  struct tc_err mine = { 0 };
  if (size == 1) return rc;
  if (rc < 0) mine = *err;
  mine.status = rc;
  if (rc < 0 && coord > 0 && rank_names) tc_fail(&mine, rc, "%s: %.900s", rank_names[coord], err->text);
  const int64_t status = rc;
  int64_t *all = tc_malloc((size_t)size * sizeof *all);
  int first = 0;
  rc = tc_comm_all_i64(c, &status, 1, all, err);
  while (rc == 0 && first < size && all[first] >= 0) first++;
  if (rc == 0 && first == size) rc = (int)all[0];
  else if (rc == 0) rc = bcast_err(c, first, &mine, err);
  free(all);
  return rc;
}
