/* save.c - saving and committing.
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
 * Invariants:
 * - A folder step-* is complete from the moment it has that name.
 * - A save of a rank that was cut off can't commit: it takes every rank's word, and the next
 *   owner of the folder has taken away the home that the temporary folder is in (owner.c), so
 *   that the rename itself fails.
 * - No rank leaves between two exchanges: what fails locally is told in the next one.
 * - Where step N is there already, the old one steps aside as .was-*; tc_ckpt_tidy puts it
 *   back if the run dies before the new one has taken its name.
 * - Steps beyond N were made by a run that has since been taken up from an earlier step: they
 *   are kept under another name, else the next start would follow the wrong line. */
#include "io/ckpt/blocks.h"
#include "io/ckpt/file.h"
#include "io/ckpt/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"
#include "src/watch/watch.h"

struct save {
  const char *dir;
  const struct tc_ckpt_meta *meta;
  const struct tc_ckpt_tensor *tensor; int n_tensors;
  int rank, world;
  char *tmp;                      /* name of the temporary folder */
  struct tc_share share;           /* this rank's share */
};

/* ---- exchanges -------------------------------------------------------------------- */

struct verdict { int32_t status; char text[1000]; };

int tc_ckpt_follow(struct tc_comm *world, int status, struct tc_err *err)
{
  struct verdict mine = { .status = status }, *v = &mine;
  int64_t bytes = sizeof mine;
  void *buf = &mine;
  bool root = tc_comm_coord(world) == 0;
  if (root && status < 0) snprintf(mine.text, sizeof mine.text, "%s", err->text);
  if (!root) buf = NULL;
  TC_TRY(tc_comm_bytes_bcast(world, 0, &buf, &bytes, err));
  TC_ASSERT(bytes == (int64_t)sizeof mine);
  v = buf;
  v->text[sizeof v->text - 1] = '\0';
  status = v->status < 0 ? tc_fail(err, v->status, "%s", v->text) : 0;
  if (!root) free(buf);
  return status;
}

int tc_ckpt_agree(struct tc_comm *world, int status, struct tc_err *err)
{
  struct verdict mine = { .status = status };
  int n = tc_comm_size(world);
  int64_t *bytes = tc_calloc((size_t)n, sizeof *bytes);
  void *all = NULL;
  if (status < 0) snprintf(mine.text, sizeof mine.text, "%s", err->text);
  int rc = tc_comm_bytes_gather(world, 0, &mine, sizeof mine, &all, bytes, err);
  free(bytes);
  if (rc < 0) return rc;
  if (all) {
    struct verdict *v = all;
    for (status = 0; n > 0 && status == 0; n--, v++)
      if (v->status < 0) status = tc_fail(err, v->status, "%.999s", v->text);
    free(all);
  }
  return tc_ckpt_follow(world, status, err);
}

/* ---- the temporary folder --------------------------------------------------------- */

/* The job's id as a part of a file name. */
static void job_word(char *buf, size_t size, const char *job)
{
  snprintf(buf, size, "%s", job && *job ? job : "nojob");
  for (char *p = buf; *p; p++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.", *p)) *p = '_';
}

/* The home, or what is in it, is there as long as no later owner took it away. */
static int still_ours(const struct save *s, const char *name, struct tc_err *err)
{
  if (!s->meta->home) return 0;
  char *path = tc_sprintf("%s/%s", s->dir, name);
  int rc = access(path, F_OK) < 0 && errno == ENOENT
    ? tc_fail(err, TC_EUSER, "%s is gone: another run has taken over this folder, or it was removed",
              path) : 0;
  free(path);
  return rc;
}

static int make_tmp(struct save *s, struct tc_err *err)
{
  char job[64];
  TC_TRY(tc_folder_make(s->dir, err));
  TC_TRY(still_ours(s, s->meta->home, err));
  tc_ckpt_tidy(s->dir, NULL);
  job_word(job, sizeof job, s->meta->job);
  s->tmp = tc_sprintf("%s%s.tmp-step-%08lld-%s-%d-%08x", s->meta->home ? s->meta->home : "",
                      s->meta->home ? "/" : "", (long long)s->meta->step, job,
                      s->meta->restart, tc_random_name());
  char *path = tc_sprintf("%s/%s", s->dir, s->tmp);
  int rc = mkdir(path, 0777) < 0
    ? tc_fail(err, TC_EUSER, "%s: can't be made: %s", path, strerror(errno)) : 0;
  free(path);
  return rc;
}

/* Rank 0 makes the folder; all learn its name, or why there is none. */
static int share_tmp(struct save *s, struct tc_comm *world, struct tc_err *err)
{
  int rc = s->rank == 0 ? make_tmp(s, err) : 0;
  TC_TRY(tc_ckpt_follow(world, rc, err));
  void *buf = s->tmp;
  int64_t bytes = s->tmp ? (int64_t)strlen(s->tmp) + 1 : 0;
  TC_TRY(tc_comm_bytes_bcast(world, 0, &buf, &bytes, err));
  s->tmp = buf;
  return 0;
}

/* ---- the commit (rank 0) ---------------------------------------------------------- */

/* Rank r's message in the manifest: its file, if it leads one, and its pieces. file_of[rank]:
 * index of the file it leads. */
static void take_told(const struct save *s, struct tc_manifest *m, int r, const char *at,
                      int32_t *file_of)
{
  struct tc_told told;
  memcpy(&told, at, sizeof told);
  at += sizeof told;
  const char *crc_at = at + (size_t)told.n * sizeof(struct tc_told_piece);
  if (told.size > 0) {
    char *name = tc_share_file(&told);
    file_of[r] = m->n_files;
    m->file[m->n_files++] = (struct tc_ckpt_file){ .name = tc_pool_strdup(m->pool, name),
      .writer = r, .size = told.size, .meta_crc32c = told.meta_crc32c };
    free(name);
  }
  uint32_t *crc = tc_pool_alloc(m->pool, (size_t)(told.n_blocks + 1) * sizeof *crc);
  memcpy(crc, crc_at, (size_t)told.n_blocks * sizeof *crc);
  for (int i = 0; i < told.n; i++, at += sizeof(struct tc_told_piece)) {
    struct tc_told_piece p;
    struct tc_piece *q = &m->piece[m->n_pieces++];
    memcpy(&p, at, sizeof p);
    char *dataset = tc_share_dataset(s->tensor, &p);
    *q = (struct tc_piece){ .tensor = p.tensor, .file = file_of[told.leader],
      .offset = p.offset, .bytes = tc_share_bytes(s->tensor, &p), .crc32c = crc,
      .dataset = tc_pool_strdup(m->pool, dataset) };
    memcpy(q->start, p.start, sizeof q->start);
    memcpy(q->count, p.count, sizeof q->count);
    crc += tc_blocks(q->bytes, m->block_bytes);
    free(dataset);
  }
}

/* The manifest of what all ranks told: `all` is their messages one after another. */
static struct tc_manifest *gather_manifest(struct save *s, const char *all, const int64_t *bytes)
{
  struct tc_manifest *m = tc_calloc(1, sizeof *m);
  char now[40];
  tc_iso_time(now, sizeof now);
  m->pool = tc_pool_new();
  m->meta = *s->meta;
  m->block_bytes = s->share.block_bytes;
  m->world = s->meta->who ? s->world : 0;
  m->time = tc_pool_strdup(m->pool, now);
  m->n_tensors = s->n_tensors;
  m->tensor = tc_pool_alloc(m->pool, (size_t)(s->n_tensors + 1) * sizeof *m->tensor);
  memcpy(m->tensor, s->tensor, (size_t)s->n_tensors * sizeof *m->tensor);
  m->file = tc_pool_alloc(m->pool, (size_t)(s->world + 1) * sizeof *m->file);
  int64_t total = 0;
  for (int r = 0; r < s->world; r++) total += bytes[r];
  m->piece = tc_pool_alloc(m->pool, (size_t)total / sizeof(struct tc_told_piece) *
                                    sizeof *m->piece + sizeof *m->piece);
  int32_t *file_of = tc_malloc((size_t)s->world * sizeof *file_of);
  for (int r = 0; r < s->world; r++) file_of[r] = -1;
  for (int r = 0; r < s->world; all += bytes[r++]) take_told(s, m, r, all, file_of);
  free(file_of);
  return m;
}

static int write_manifest(const struct save *s, const struct tc_manifest *m, struct tc_err *err)
{
  size_t bytes = 0;
  char *text = tc_manifest_text(m, &bytes);
  char *path = tc_sprintf("%s/%s/" TC_MANIFEST, s->dir, s->tmp);
  tc_at_file("writing and fsync", path);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  bool good = fd >= 0;
  for (size_t done = 0; good && done < bytes;) {
    ssize_t n = write(fd, text + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    good = n > 0;
    done += n > 0 ? (size_t)n : 0;
  }
  good = good && fsync(fd) == 0;
  int why = errno;
  if (fd >= 0 && close(fd) < 0 && good) {
    good = false;
    why = errno;
  }
  int rc = good ? 0 : tc_fail(err, TC_EUSER, "%s: writing failed: %s", path, strerror(why));
  free(path);
  free(text);
  return rc;
}

/* Steps later than this one step out of the line of this run. */
static int set_aside_later(const struct save *s, struct tc_err *err)
{
  int64_t *steps = NULL;
  int n = tc_ckpt_list(s->dir, &steps, err), rc = TC_MIN(n, 0);
  /* Looked at after the list was made: what a later owner commits is not in it. */
  if (rc == 0) rc = still_ours(s, s->tmp, err);
  for (int i = 0; i < n && rc == 0 && steps[i] > s->meta->step; i++) {
    char from[40];
    snprintf(from, sizeof from, "step-%08lld", (long long)steps[i]);
    char *to = tc_sprintf("superseded-%s-%s", from, strrchr(s->tmp, '-') + 1);
    rc = tc_folder_rename(s->dir, from, to, err);
    if (rc == 0)
      tc_warn("%s/%s: lies ahead of step %lld, which was saved just now: kept as %s", s->dir,
              from, (long long)s->meta->step, to);
    free(to);
  }
  free(steps);
  return rc;
}

static int publish(const struct save *s, struct tc_err *err)
{
  char name[40];
  snprintf(name, sizeof name, "step-%08lld", (long long)s->meta->step);
  char *path = tc_sprintf("%s/%s", s->dir, name);
  char *was = tc_sprintf(".was-%s-%s", name, strrchr(s->tmp, '-') + 1);
  int rc = set_aside_later(s, err);
  bool replaced = rc == 0 && access(path, F_OK) == 0;
  if (replaced) rc = tc_folder_rename(s->dir, name, was, err);
  if (rc == 0) rc = tc_folder_rename(s->dir, s->tmp, name, err);
  if (replaced) tc_ckpt_tidy(s->dir, s->tmp);   /* puts the old one back, or deletes it */
  free(was);
  free(path);
  return rc;
}

/* Every rank succeeded, or the first sentence of one that didn't. */
static int hear_all(const struct save *s, const char *at, const int64_t *bytes,
                    struct tc_err *err)
{
  for (int r = 0; r < s->world; at += bytes[r++]) {
    struct tc_told told;
    TC_ASSERT(bytes[r] >= (int64_t)sizeof told);
    memcpy(&told, at, sizeof told);
    if (told.status < 0) return tc_fail(err, told.status, "%.999s", told.text);
    TC_ASSERT(bytes[r] == (int64_t)(sizeof told +
                                    (size_t)told.n * sizeof(struct tc_told_piece) +
                                    (size_t)told.n_blocks * sizeof(uint32_t)));
  }
  return 0;
}

static int commit(struct save *s, const char *all, const int64_t *bytes, struct tc_err *err)
{
  TC_TRY(hear_all(s, all, bytes, err));
  char *folder = tc_sprintf("%s/%s", s->dir, s->tmp);
  struct tc_manifest *m = gather_manifest(s, all, bytes);
  int rc = tc_manifest_check(m, folder, err);
  if (rc == 0 && s->meta->view) rc = tc_ckpt_view(m, folder, err);
  if (rc == 0) rc = write_manifest(s, m, err);
  if (rc == 0) rc = tc_folder_sync(folder, err);
  if (rc == 0) rc = publish(s, err);
  tc_manifest_free(m);
  free(folder);
  return rc;
}

/* Every rank's told to rank 0, which commits; its verdict to all. */
static int agree_and_commit(struct save *s, int status, struct tc_comm *world,
                            struct tc_err *err)
{
  struct tc_told *told = &s->share.told;
  told->status = status;
  if (status < 0) {
    snprintf(told->text, sizeof told->text, "%s", err->text);
    told->n = 0;
    told->n_blocks = 0;
  }
  size_t pieces = (size_t)told->n * sizeof *s->share.piece;
  size_t sums = (size_t)told->n_blocks * sizeof *s->share.crc32c;
  size_t n_bytes = sizeof *told + pieces + sums;
  char *mine = tc_malloc(n_bytes);
  memcpy(mine, told, sizeof *told);
  if (pieces) memcpy(mine + sizeof *told, s->share.piece, pieces);
  if (sums) memcpy(mine + sizeof *told + pieces, s->share.crc32c, sums);
  int64_t *bytes = tc_calloc((size_t)s->world, sizeof *bytes);
  void *all = NULL;
  int rc = tc_comm_bytes_gather(world, 0, mine, (int64_t)n_bytes, &all, bytes, err);
  if (rc == 0) {
    if (s->rank == 0) rc = commit(s, all, bytes, err);
    rc = tc_ckpt_follow(world, rc, err);
  }
  free(all);
  free(bytes);
  free(mine);
  return rc;
}

/* This rank's share into the temporary folder. */
static int write_mine(struct save *s, const struct tc_ckpt_slice *slices, int n_slices,
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

/* ---- cleaning up ------------------------------------------------------------------ */

static void remove_or_warn(const char *dir, const char *name)
{
  struct tc_err err = {0};
  char *path = tc_sprintf("%s/%s", dir, name);
  if (tc_folder_remove(path, &err) < 0) tc_warn("%s", err.text);
  free(path);
}

/* ".was-step-00000100-1a2b3c4d": back to its name if the step isn't there, else away. */
static void put_back(const char *dir, const char *was)
{
  struct tc_err err = {0};
  char *name = tc_strdup(was + strlen(".was-"));
  char *dash = strrchr(name, '-');
  if (dash) *dash = '\0';
  char *path = tc_sprintf("%s/%s", dir, name);
  if (tc_step_of_name(name) >= 0 && access(path, F_OK) < 0 && errno == ENOENT) {
    if (tc_folder_rename(dir, was, name, &err) < 0) tc_warn("%s", err.text);
  } else {
    remove_or_warn(dir, was);
  }
  free(path);
  free(name);
}

void tc_ckpt_tidy(const char *dir, const char *except)
{
  struct tc_err err = {0};
  char **names;
  int n = tc_folder_scan(dir, ".", &names, &err);
  if (n < 0) tc_warn("%s", err.text);
  for (int i = 0; i < n; i++) {
    if (except && strcmp(names[i], except) == 0) continue;
    if (strncmp(names[i], ".was-step-", 10) == 0) put_back(dir, names[i]);
    if (strncmp(names[i], ".old-step-", 10) == 0 || strncmp(names[i], ".tmp-step-", 10) == 0)
      remove_or_warn(dir, names[i]);
  }
  if (n > 0) tc_names_free(names, n);
}

/* Deletes all but the newest `keep`. What is half deleted has another name already. */
void tc_ckpt_prune(const char *dir, int keep)
{
  struct tc_err err = {0};
  int64_t *steps = NULL;
  int n = keep > 0 ? tc_ckpt_list(dir, &steps, &err) : 0;
  for (int i = keep; i < n; i++) {
    char name[40];
    snprintf(name, sizeof name, "step-%08lld", (long long)steps[i]);
    char *old = tc_sprintf(".old-%s-%llx", name, (unsigned long long)tc_now_ns());
    if (tc_folder_rename(dir, name, old, &err) < 0) tc_warn("%s", err.text);
    else remove_or_warn(dir, old);
    free(old);
  }
  if (n < 0) tc_warn("%s", err.text);
  free(steps);
}

int tc_ckpt_save(const char *dir, const struct tc_ckpt_meta *meta,
                 const struct tc_ckpt_tensor *tensors, int n_tensors,
                 const struct tc_ckpt_slice *slices, int n_slices,
                 struct tc_comm *world, struct tc_err *err)
{
  struct save s = { .dir = dir, .meta = meta, .tensor = tensors,
                    .n_tensors = n_tensors };
  struct tc_err local = {0};
  if (!err) err = &local;         /* sentences travel to the other ranks from here */
  s.rank = tc_comm_coord(world);
  s.world = tc_comm_size(world);
  int rc = share_tmp(&s, world, err);
  if (rc == 0) rc = agree_and_commit(&s, write_mine(&s, slices, n_slices, err), world, err);
  if (s.rank == 0 && s.tmp && rc < 0) remove_or_warn(dir, s.tmp);
  free(s.share.piece);
  free(s.share.crc32c);
  free(s.tmp);
  return rc;
}
