/* folders.c - takes the folder of checkpoints and, before the first step, tries in it and in run.out what would otherwise
 * fail when the first checkpoint is saved, or only when it is to be read on another node.
 *
 *   rank 0                       makes a file of a random name in the lease folder of ckpt.dir, and one in run.out
 *   every rank                   looks for them, again and again: what another node makes may be seen late
 *   a rank of each other node    makes, renames and removes a file of its own in ckpt.dir
 *   rank 0                       removes the two
 *
 * A ckpt.dir that a node does not share is refused: each node would have a part of each checkpoint. Of run.out only rank 0's
 * files are needed, so that is a warning. What is left of a start that was killed in between lies in the lease folder,
 * which the next owner removes, or is one small file in run.out. */
#include "src/train/parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "io/ckpt/ckpt.h"
#include "io/ckpt/owner.h"
#include "src/files/files.h"
#include "src/watch/watch.h"

#define LOOK_NS INT64_C(10000000000)
#define LOOK_OUT_NS INT64_C(2000000000)          /* a folder of each node's own is allowed there, and looked for at each start */
#define PAUSE_NS INT64_C(100000000)

/* ---- the folder of checkpoints is ours ---- */

/* Rank 0 looks again and again, and all ranks agree after each time: no rank waits in one call for
 * longer than a deadline. */
int tc_train_own(struct tc_train *t, struct tc_err *err)
{
  const struct tc_ranks *k = t->run.ranks;
  if (t->run.rank == 0) t->ckpt.owner = tc_owner_new(t->ckpt.dir, k->job, k->restart);
  for (;;) {
    int rc = t->run.rank == 0 ? tc_owner_take(t->ckpt.owner, err) : 0;
    int64_t again = rc > 0;
    TC_TRY(tc_run_agree(&t->run, TC_MIN(rc, 0), err));
    TC_TRY(tc_comm_max_i64(t->run.world, &again, 1, err));
    if (!again) break;
    tc_sleep_ns(TC_OWNER_LOOK_NS);
  }
  void *name = t->run.rank == 0 ? (void *)(uintptr_t)tc_owner_lease(t->ckpt.owner) : NULL;
  int64_t n = name ? (int64_t)strlen(name) : 0;
  TC_TRY(tc_comm_bytes_bcast(t->run.world, 0, &name, &n, err));
  t->ckpt.lease = tc_sprintf("%s/%.*s", t->ckpt.dir, (int)n, (const char *)name);
  if (t->run.rank) free(name);
  return 0;
}

/* ---- what is tried in it ---- */

static char *name_in(const char *dir, int64_t token)
{
  return tc_sprintf("%s/.try-%016llx", dir, (unsigned long long)token);
}

/* *place: a signal removes the file, too, until tc_output_forget. */
static int make(const char *path, int *place, struct tc_err *err)
{
  const struct tc_output_opts o = { 0 };
  tc_at_file("making a file to try", path);
  *place = tc_output_remember(path);
  return tc_output_text(path, &o, "a file to try whether all nodes see it\n", err);
}

/* Collective. *blind <- a rank that does not see rank 0's file within `most_ns`; 0: all see it. They look once and agree,
 * in turns, so that a rank that does not see it is not late for the deadline of a collective. */
static int look_for(const struct tc_train *t, const char *path, int64_t most_ns, int64_t *blind, struct tc_err *err)
{
  const int64_t end = tc_now_ns() + most_ns;
  struct tc_again late = { 0 };
  struct stat st;
  bool seen = t->run.rank == 0;
  tc_at_file("looking for a file of rank 0", path);
  for (;;) {
    seen = seen || stat(path, &st) == 0;
    int64_t told[2] = { seen ? 0 : t->run.rank, tc_now_ns() >= end };
    TC_TRY(tc_comm_max_i64(t->run.world, told, 2, err));
    *blind = told[0];
    if (!told[0] || told[1]) return 0;
    if (seen) tc_sleep_ns(PAUSE_NS);
    else if (!tc_late(&late, path)) late = (struct tc_again){ .tries = TC_LATE_TRIES - 1 };
  }
}

/* Whether this rank is the first of a node other than rank 0's. */
static bool leads_node(const struct tc_ranks *k, int rank)
{
  for (int r = 0; r < rank; r++)
    if (k->node_of_rank[r] == k->node_of_rank[rank]) return false;
  return rank > 0;
}

static int try_own(const struct tc_train *t, int64_t token, struct tc_err *err)
{
  char *path = tc_sprintf("%s/.try-%016llx-%d", t->ckpt.lease, (unsigned long long)token, t->run.rank);
  char *renamed = tc_sprintf("%s-renamed", path);
  const int place_renamed = tc_output_remember(renamed);
  int place, rc = make(path, &place, err), why = 0;
  if (rc == 0 && (why = tc_rename(AT_FDCWD, path, renamed)) != 0)
    rc = tc_fail(err, TC_EUSER, "%s: can't be renamed: %s", path, strerror(why));
  if (rc == 0 && (why = tc_unlink(AT_FDCWD, renamed)) != 0)
    rc = tc_fail(err, TC_EUSER, "%s: can't be removed: %s", renamed, strerror(why));
  tc_output_forget(place);
  tc_output_forget(place_renamed);
  TC_FREE(renamed, path);
  return rc;
}

/* Collective. Refuses a folder of checkpoints that not all nodes share, or that some can't write to. */
static int look_at_ckpt(const struct tc_train *t, const char *path, int64_t token, struct tc_err *err)
{
  int64_t blind = 0;
  int rc = 0;
  TC_TRY(look_for(t, path, LOOK_NS, &blind, err));
  if (blind)
    rc = tc_fail(err, TC_EUSER, "the folder of checkpoints, %s, is not one for all nodes: %s does not see what rank 0 "
                 "writes there. Give a folder of a file system that all nodes share: run.out, or ckpt.dir", t->ckpt.dir,
                 t->run.rank_names[blind]);
  else if (leads_node(t->run.ranks, t->run.rank)) rc = try_own(t, token, err);
  return tc_run_agree(&t->run, rc, err);
}

/* Collective. Warns of a run.out that not all nodes share. */
static int look_at_out(const struct tc_train *t, const char *path, struct tc_err *err)
{
  int64_t blind = 0;
  TC_TRY(look_for(t, path, LOOK_OUT_NS, &blind, err));
  if (blind && t->run.rank == 0)
    tc_warn("run.out = %s is not one folder for all nodes: %s does not see what rank 0 writes there. Metrics and run.json "
            "stay on rank 0's node", t->out, t->run.rank_names[blind]);
  return 0;
}

/* Rank 0. Quotas are not seen. */
static void warn_of_room(const struct tc_train *t)
{
  struct tc_run_state s;
  struct statvfs v;
  int64_t need = 0;
  char has_text[32], need_text[32];
  tc_run_state(&t->run, &s);
  for (int i = 0; i < s.n; i++)   /* with page borders and HDF5's own */
    need += tc_round_up(tc_box_bytes(s.tensor[i].dtype, s.tensor[i].rank, s.tensor[i].dim), 4096) + 4096;
  tc_run_state_free(&s);
  if (statvfs(t->ckpt.dir, &v) < 0 || v.f_blocks == 0) return;
  const double has = (double)v.f_bavail * (double)v.f_frsize;
  if (has < (double)need)
    tc_warn("%s: %s are free there, and a checkpoint has %s: make room before the first one is saved", t->ckpt.dir,
            tc_human_bytes(has_text, sizeof has_text, has), tc_human_bytes(need_text, sizeof need_text, (double)need));
}

int tc_train_folders(struct tc_train *t, struct tc_err *err)
{
  const bool root = t->run.rank == 0;
  int64_t token = root ? (int64_t)tc_random_name() << 31 ^ (int64_t)tc_random_name() : 0;
  int in_ckpt = -1, in_out = -1;
  tc_at_phase("trying the folders");
  TC_TRY(tc_comm_max_i64(t->run.world, &token, 1, err));
  char *ckpt = name_in(t->ckpt.lease, token), *out = name_in(t->out, token);
  int rc = root ? make(ckpt, &in_ckpt, err) : 0;
  if (rc == 0 && root) rc = make(out, &in_out, err);
  rc = tc_run_agree(&t->run, rc, err);
  if (rc == 0) rc = look_at_ckpt(t, ckpt, token, err);
  if (rc == 0) rc = look_at_out(t, out, err);
  if (root) tc_unlink(AT_FDCWD, ckpt);
  if (root) tc_unlink(AT_FDCWD, out);
  tc_output_forget(in_ckpt);
  tc_output_forget(in_out);
  TC_FREE(ckpt, out);
  if (rc == 0 && root) warn_of_room(t);
  return rc;
}
