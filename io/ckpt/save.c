/* save.c - saving: a temporary folder, every rank's share in it, the commit.
 *
 *   rank 0                      every rank
 *   tidy; make .tmp-step-N-*
 *            ---- name ---->
 *                               write slices, fsync file, check it, fsync folder    tc_share_write
 *            <--- status, pieces ----
 *   check cover, write manifest, fsync, fsync folder                                commit
 *   set aside steps > N; rename .tmp-* -> step-N; fsync DIR     <- the commit
 *            ---- status ---->
 *
 * No rank leaves between two exchanges: what fails locally is reported in the next one. commit.c
 * has the second half. */
#include "io/ckpt/impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "io/ckpt/blocks.h"
#include "io/folder.h"

/* ---- the temporary folder --------------------------------------------------------- */

/* The job's id as a part of a file name. */
static void job_word(char *buf, size_t size, const char *job)
{
  snprintf(buf, size, "%s", job && *job ? job : "nojob");
  for (char *p = buf; *p; p++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.", *p)) *p = '_';
}

static int make_tmp(struct tc_save *s, struct tc_err *err)
{
  char job[64];
  TC_TRY(tc_folder_make(s->dir, err));
  TC_TRY(tc_ckpt_still_ours(s->dir, s->meta->lease, s->meta->lease, err));
  tc_ckpt_tidy(s->dir, NULL);
  job_word(job, sizeof job, s->meta->job);
  s->tmp = tc_sprintf("%s%s.tmp-step-%08lld-%s-%d-%08x", s->meta->lease ? s->meta->lease : "",
                      s->meta->lease ? "/" : "", (long long)s->meta->step, job,
                      s->meta->restart, tc_random_name());
  char *path = tc_sprintf("%s/%s", s->dir, s->tmp);
  const int why = tc_mkdir_own(AT_FDCWD, path);
  int rc = why ? tc_fail(err, TC_EUSER, "%s: can't be made: %s", path, strerror(why)) : 0;
  free(path);
  return rc;
}

/* Rank 0 makes the folder; all learn its name, or why there is none. */
static int share_tmp(struct tc_save *s, struct tc_comm *world, struct tc_err *err)
{
  int rc = s->rank == 0 ? make_tmp(s, err) : 0;
  TC_TRY(tc_comm_bcast_status(world, rc, err));
  void *buf = s->tmp;
  int64_t bytes = s->tmp ? (int64_t)strlen(s->tmp) + 1 : 0;
  TC_TRY(tc_comm_bytes_bcast(world, 0, &buf, &bytes, err));
  s->tmp = buf;
  return 0;
}

/* This rank's share into the temporary folder. */
static int write_mine(struct tc_save *s, const struct tc_ckpt_slice *slices, int n_slices,
                      struct tc_err *err)
{
  char *folder = tc_sprintf("%s/%s", s->dir, s->tmp);
  s->share = (struct tc_share){ .folder = folder, .meta = s->meta, .tensor = s->tensor,
    .n_tensors = s->n_tensors, .slice = slices, .n_slices = n_slices, .rank = s->rank,
    .world = s->world,
    .block_bytes = s->meta->block_bytes > 0 ? s->meta->block_bytes : TC_BLOCK_BYTES };
  TC_ASSERT(s->share.block_bytes % TC_BLOCK_ALIGN == 0);
  int rc = tc_share_write(&s->share, err);
  free(folder);
  return rc;
}

int tc_ckpt_save(const char *dir, const struct tc_ckpt_meta *meta,
                 const struct tc_ckpt_tensor *tensors, int n_tensors,
                 const struct tc_ckpt_slice *slices, int n_slices,
                 struct tc_comm *world, struct tc_err *err)
{
  struct tc_save s = { .dir = dir, .meta = meta, .tensor = tensors,
                    .n_tensors = n_tensors };
  struct tc_err local = {0};
  if (!err) err = &local;         /* sentences travel to the other ranks from here */
  s.rank = tc_comm_coord(world);
  s.world = tc_comm_size(world);
  int rc = share_tmp(&s, world, err);
  if (rc == 0) rc = tc_ckpt_commit(&s, write_mine(&s, slices, n_slices, err), world, err);
  if (s.rank == 0 && s.tmp && rc < 0) tc_ckpt_remove(dir, s.tmp);
  TC_FREE(s.share.piece, s.share.crc32c, s.tmp);
  return rc;
}
