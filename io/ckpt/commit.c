/* commit.c - what rank 0 makes of all ranks' shares: the manifest, and a step under its own name.
 *
 * Invariants:
 * - A folder step-* is complete from the moment it has that name.
 * - A save of a rank that was cut off can't commit: every rank has to report that it succeeded, and
 *   the next owner of the folder has taken away the lease folder that the temporary folder is in
 *   (owner.c), so that the rename itself fails.
 * - Where step N is there already, the old one is renamed to .was-*; tc_ckpt_tidy puts it
 *   back if the run ends before the new one has taken its name. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/ckpt/blocks.h"
#include "io/crc.h"
#include "io/folder.h"
#include "src/files/again.h"
#include "src/watch/watch.h"

/* Rank r's report in the manifest: its file, if it leads one, and its pieces. file_of[rank]:
 * index of the file it leads. */
static void add_report(const struct tc_save *s, struct tc_manifest *m, int r, const char *at,
                      int32_t *file_of)
{
  struct tc_rank_report report;
  memcpy(&report, at, sizeof report);
  at += sizeof report;
  const char *crc_at = at + (size_t)report.n * sizeof(struct tc_report_piece);
  if (report.size > 0) {
    char *name = tc_share_file(&report);
    file_of[r] = m->n_files;
    m->file[m->n_files++] = (struct tc_ckpt_file){ .name = tc_pool_strdup(m->pool, name),
      .writer = r, .size = report.size, .meta_crc32c = report.meta_crc32c };
    free(name);
  }
  uint32_t *crc = tc_pool_alloc(m->pool, (size_t)(report.n_blocks + 1) * sizeof *crc);
  memcpy(crc, crc_at, (size_t)report.n_blocks * sizeof *crc);
  for (int i = 0; i < report.n; i++, at += sizeof(struct tc_report_piece)) {
    struct tc_report_piece p;
    struct tc_piece *q = &m->piece[m->n_pieces++];
    memcpy(&p, at, sizeof p);
    char *dataset = tc_share_dataset(s->tensor, &p);
    *q = (struct tc_piece){ .tensor = p.tensor, .file = file_of[report.leader],
      .offset = p.offset, .bytes = tc_share_bytes(s->tensor, &p), .crc32c = crc,
      .dataset = tc_pool_strdup(m->pool, dataset) };
    memcpy(q->start, p.start, sizeof q->start);
    memcpy(q->count, p.count, sizeof q->count);
    crc += tc_blocks(q->bytes, m->block_bytes);
    free(dataset);
  }
}

/* The manifest of what all ranks report: `all` is their messages one after another. */
static struct tc_manifest *gather_manifest(struct tc_save *s, const char *all, const int64_t *bytes)
{
  struct tc_manifest *m = tc_calloc(1, sizeof *m);
  char now[40];
  tc_iso_time(now, sizeof now);
  m->pool = tc_pool_new();
  m->meta = *s->meta;
  m->block_bytes = s->share.block_bytes;
  m->world = s->meta->rank_names ? s->world : 0;
  m->meta.time = tc_pool_strdup(m->pool, now);
  m->n_tensors = s->n_tensors;
  m->tensor = tc_pool_alloc(m->pool, (size_t)(s->n_tensors + 1) * sizeof *m->tensor);
  memcpy(m->tensor, s->tensor, (size_t)s->n_tensors * sizeof *m->tensor);
  m->file = tc_pool_alloc(m->pool, (size_t)(s->world + 1) * sizeof *m->file);
  int64_t total = 0;
  for (int r = 0; r < s->world; r++) total += bytes[r];
  m->piece = tc_pool_alloc(m->pool, (size_t)total / sizeof(struct tc_report_piece) *
                                    sizeof *m->piece + sizeof *m->piece);
  int32_t *file_of = tc_malloc((size_t)s->world * sizeof *file_of);
  for (int r = 0; r < s->world; r++) file_of[r] = -1;
  for (int r = 0; r < s->world; all += bytes[r++]) add_report(s, m, r, all, file_of);
  free(file_of);
  return m;
}

/* A new file in the temporary folder, which is ours alone: after an error it may be there all the same. */
static int make_file(const char *path)
{
  struct tc_again again = { 0 };
  int fd, how = O_EXCL;
  do {
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | how, 0666);
    how = 0;
  } while (fd < 0 && tc_again(&again, errno));
  return fd;
}

/* A new file of these bytes in the temporary folder, on disk. */
static int write_file(const struct tc_save *s, const char *name, const char *text, size_t bytes, struct tc_err *err)
{
  char *path = tc_sprintf("%s/%s/%s", s->dir, s->tmp, name);
  tc_at_file("writing and fsync", path);
  int fd = make_file(path);
  bool good = fd >= 0 && tc_write_all(fd, text, (int64_t)bytes) && fsync(fd) == 0;
  int why = errno;
  if (fd >= 0 && close(fd) < 0 && good) {
    good = false;
    why = errno;
  }
  int rc = good ? 0 : tc_fail(err, TC_EUSER, "%s: writing failed: %s", path, strerror(why));
  free(path);
  return rc;
}

static int write_attached(const struct tc_save *s, struct tc_manifest *m, struct tc_err *err)
{
  for (int i = 0; i < TC_ATTACHED; i++) {
    struct tc_ckpt_attached *a = &m->meta.attached[i];
    if (!a->name) continue;
    a->crc32c = tc_crc32c(0, a->data, (size_t)a->bytes);
    TC_TRY(write_file(s, a->name, a->data, (size_t)a->bytes, err));
  }
  return 0;
}

static int write_manifest(const struct tc_save *s, const struct tc_manifest *m, struct tc_err *err)
{
  size_t bytes = 0;
  char *text = tc_manifest_text(m, &bytes);
  const int rc = write_file(s, TC_MANIFEST, text, bytes, err);
  free(text);
  return rc;
}

static int publish(const struct tc_save *s, struct tc_err *err)
{
  char name[40];
  snprintf(name, sizeof name, "step-%08lld", (long long)s->meta->step);
  char *path = tc_sprintf("%s/%s", s->dir, name);
  char *why = tc_sprintf("lies ahead of step %lld, which was saved just now",
                         (long long)s->meta->step);
  const char *tag = strrchr(s->tmp, '-') + 1;
  int rc = tc_ckpt_set_aside(s->dir, s->meta->step, tag, s->meta->lease ? s->tmp : NULL, why, err);
  char *was = tc_sprintf(".was-%s-%s", name, tag);
  const int there = rc == 0 ? tc_is_there(path) : 0;
  if (there < 0) rc = tc_fail(err, TC_EUSER, "%s can't be looked at: %s", path, strerror(-there));
  const bool replaced = there > 0;
  if (replaced) rc = tc_folder_rename(s->dir, name, was, err);
  if (rc == 0) rc = tc_folder_rename(s->dir, s->tmp, name, err);
  if (replaced) tc_ckpt_tidy(s->dir, s->tmp);   /* puts the old one back, or deletes it */
  TC_FREE(why, was, path);
  return rc;
}

/* Every rank succeeded, or the first sentence of one that didn't, with the name of that rank. */
static int check_reports(const struct tc_save *s, const char *at, const int64_t *bytes,
                    struct tc_err *err)
{
  for (int r = 0; r < s->world; at += bytes[r++]) {
    struct tc_rank_report report;
    TC_ASSERT(bytes[r] >= (int64_t)sizeof report);
    memcpy(&report, at, sizeof report);
    const char *name = r > 0 && s->meta->rank_names ? s->meta->rank_names[r] : NULL;
    if (report.status < 0)
      return tc_fail(err, report.status, "%s%s%.900s", name ? name : "", name ? ": " : "", report.text);
    TC_ASSERT(bytes[r] == (int64_t)(sizeof report +
                                    (size_t)report.n * sizeof(struct tc_report_piece) +
                                    (size_t)report.n_blocks * sizeof(uint32_t)));
  }
  return 0;
}

static int commit(struct tc_save *s, const char *all, const int64_t *bytes, struct tc_err *err)
{
  TC_TRY(check_reports(s, all, bytes, err));
  char *folder = tc_sprintf("%s/%s", s->dir, s->tmp);
  struct tc_manifest *m = gather_manifest(s, all, bytes);
  int rc = tc_manifest_check(m, folder, err);
  if (rc == 0 && s->meta->view) rc = tc_ckpt_view(m, folder, err);
  if (rc == 0) rc = write_attached(s, m, err);
  if (rc == 0) rc = write_manifest(s, m, err);
  if (rc == 0) rc = tc_folder_sync(folder, err);
  if (rc == 0) rc = publish(s, err);
  tc_manifest_free(m);
  free(folder);
  return rc;
}

int tc_ckpt_commit(struct tc_save *s, int status, struct tc_comm *world, struct tc_err *err)
{
  struct tc_rank_report *report = &s->share.report;
  report->status = status;
  if (status < 0) {
    snprintf(report->text, sizeof report->text, "%s", err->text);
    report->n = 0;
    report->n_blocks = 0;
  }
  size_t pieces = (size_t)report->n * sizeof *s->share.piece;
  size_t sums = (size_t)report->n_blocks * sizeof *s->share.crc32c;
  size_t n_bytes = sizeof *report + pieces + sums;
  char *mine = tc_malloc(n_bytes);
  memcpy(mine, report, sizeof *report);
  if (pieces) memcpy(mine + sizeof *report, s->share.piece, pieces);
  if (sums) memcpy(mine + sizeof *report + pieces, s->share.crc32c, sums);
  int64_t *bytes = tc_calloc((size_t)s->world, sizeof *bytes);
  void *all = NULL;
  int rc = tc_comm_bytes_gather(world, 0, mine, (int64_t)n_bytes, &all, bytes, err);
  if (rc == 0) {
    if (s->rank == 0) rc = commit(s, all, bytes, err);
    rc = tc_comm_bcast_status(world, rc, err);
  }
  TC_FREE(all, bytes, mine);
  return rc;
}
