/* ckpt_write.c - saving and committing.
 *
 *   rank 0                      every rank
 *   tidy; make .tmp-step-N-*
 *            ---- name ---->
 *                               write slices, fsync file, check it, fsync folder    write_mine
 *            <--- status, pieces ----
 *   check cover, write manifest, fsync, fsync folder                                commit
 *   set aside steps > N; rename .tmp-* -> step-N; fsync DIR     <- the commit
 *            ---- status ---->
 *   delete all but the newest `keep`                                                prune
 *
 * Invariants:
 * - A folder step-* is complete from the moment it has that name.
 * - A save of a rank that was cut off can't commit: it takes every rank's word, and the next
 *   incarnation's tidying has removed its folder before writing.
 * - No rank leaves between two exchanges: what fails locally is told in the next one.
 * - Where step N is there already, the old one steps aside as .was-*; tc_ckpt_tidy puts it
 *   back if the run dies before the new one has taken its name.
 * - Steps beyond N were made by a run that has since been taken up from an earlier step: they
 *   are kept under another name, else the next start would follow the wrong line. */
#include "io/ckpt_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/crc.h"
#include "io/folder.h"
#include "io/h5.h"

/* What a rank tells rank 0: this, then n pieces. One kind of machine in a run, so structs
 * travel as they are. */
struct told { int32_t status, n; int64_t size; uint32_t meta_crc32c; char text[1000]; };
struct told_piece {
  int32_t tensor, part;           /* part: k of "/tensors/NAME.k", -1 for "/tensors/NAME" */
  int64_t start[TC_DIMS], count[TC_DIMS], offset;
  uint32_t crc32c;
};

struct save {
  const char *dir;
  const struct tc_ckpt_meta *meta;
  const struct tc_ckpt_tensor *tensor; int n_tensors;
  const struct tc_ckpt_slice *slice; int n_slices;
  int rank, world;
  char *tmp;                      /* name of the temporary folder */
  struct told told;
  struct told_piece *piece;       /* [told.n] */
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

static int make_tmp(struct save *s, struct tc_err *err)
{
  char job[64];
  uint32_t dice;
  TC_TRY(tc_folder_make(s->dir, err));
  tc_ckpt_tidy(s->dir, NULL);
  if (getrandom(&dice, sizeof dice, 0) != sizeof dice) dice = (uint32_t)tc_now_ns();
  job_word(job, sizeof job, s->meta->job);
  s->tmp = tc_sprintf(".tmp-step-%08lld-%s-%d-%08x", (long long)s->meta->step, job,
                      s->meta->restart, dice);
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

/* ---- a rank's file ---------------------------------------------------------------- */

static char *file_path(const struct save *s)
{
  return tc_sprintf("%s/%s/rank-%05d.h5", s->dir, s->tmp, s->rank);
}

static char *dataset_path(const struct save *s, const struct told_piece *p)
{
  const char *name = s->tensor[p->tensor].name;
  return p->part < 0 ? tc_sprintf("/tensors/%s", name)
                     : tc_sprintf("/tensors/%s.%d", name, (int)p->part);
}

static int cmp_told(const void *a, const void *b)
{
  const struct told_piece *p = *(struct told_piece *const *)a;
  const struct told_piece *q = *(struct told_piece *const *)b;
  return (p->offset > q->offset) - (p->offset < q->offset);
}

static int64_t piece_bytes(const struct save *s, const struct told_piece *p)
{
  const struct tc_ckpt_tensor *t = &s->tensor[p->tensor];
  return tc_box_elems(t->rank, p->count) * (int64_t)tc_dtype_bytes(t->dtype);
}

/* Size of the closed file's metadata, its checksum, and whether HDF5 finds in it what the
 * manifest will say (its metadata is written at close, so only now). */
static int check_mine(struct save *s, const char *path, const struct tc_h5_slice *slices,
                      struct tc_err *err)
{
  int n = s->told.n;
  struct told_piece **by = tc_malloc((size_t)(n + 1) * sizeof *by);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  bool good = fd >= 0;
  int64_t at = 0;
  if (good) errno = 0;
  for (int i = 0; i < n; i++) by[i] = &s->piece[i];
  qsort(by, (size_t)n, sizeof *by, cmp_told);
  for (int i = 0; i < n && good; i++) {
    good = by[i]->offset >= at && tc_crc_range(fd, at, by[i]->offset - at, &s->told.meta_crc32c);
    at = by[i]->offset + piece_bytes(s, by[i]);
  }
  good = good && at <= s->told.size &&
         tc_crc_range(fd, at, s->told.size - at, &s->told.meta_crc32c);
  if (fd >= 0) close(fd);
  free(by);
  if (!good)
    return tc_fail(err, TC_EUSER, "%s: what was written can't be read back: %s", path,
                   errno ? strerror(errno) : "it is shorter than it should be");
  int rc = tc_h5_check(path, s->meta->step, s->rank, slices, n, err);
  return rc < 0 ? TC_EUSER : 0;
}

static int write_slices(struct save *s, const char *path, struct tc_h5_slice *hs,
                        const struct tc_ckpt_slice *const *from, struct tc_err *err)
{
  struct tc_h5_opts o = { .step = s->meta->step, .writer = s->rank };
  struct tc_h5w *w;
  /* Page borders, HDF5's own metadata: a little more than the data. */
  o.reserve_bytes = 65536;
  for (int i = 0; i < s->told.n; i++)
    o.reserve_bytes += tc_round_up(piece_bytes(s, &s->piece[i]), 4096) + 4096;
  TC_TRY(tc_h5w_open(&w, path, &o, err));
  int rc = 0;
  for (int i = 0; i < s->told.n && rc == 0; i++) {
    struct told_piece *p = &s->piece[i];
    rc = tc_h5w_write(w, &hs[i], from[i]->data, err);
    p->offset = hs[i].offset;
    p->crc32c = tc_crc32c(0, from[i]->data, (size_t)piece_bytes(s, p));
  }
  int closed = tc_h5w_close(w, &s->told.size, rc == 0 ? err : NULL);
  return rc < 0 ? rc : closed;
}

/* Fills s->piece: this rank's slices that are not empty. from[i] is piece i's slice. */
static void list_pieces(struct save *s, const struct tc_ckpt_slice **from)
{
  int *seen = tc_calloc((size_t)s->n_tensors + 1, sizeof *seen);
  for (int i = 0; i < s->n_slices; i++) {
    const struct tc_ckpt_slice *x = &s->slice[i];
    TC_ASSERT(x->tensor >= 0 && x->tensor < s->n_tensors);
    const struct tc_ckpt_tensor *t = &s->tensor[x->tensor];
    if (tc_box_elems(t->rank, x->count) == 0) continue;
    struct told_piece *p = &s->piece[s->told.n];
    memset(p, 0, sizeof *p);
    p->tensor = x->tensor;
    p->part = seen[x->tensor]++;
    memcpy(p->start, x->start, (size_t)t->rank * sizeof *p->start);
    memcpy(p->count, x->count, (size_t)t->rank * sizeof *p->count);
    from[s->told.n++] = x;
  }
  for (int i = 0; i < s->told.n; i++)
    if (seen[s->piece[i].tensor] == 1) s->piece[i].part = -1;
  free(seen);
}

/* This rank's file: written, on disk, checked. */
static int write_mine(struct save *s, struct tc_err *err)
{
  const struct tc_ckpt_slice **from = tc_malloc((size_t)(s->n_slices + 1) * sizeof *from);
  s->piece = tc_calloc((size_t)s->n_slices + 1, sizeof *s->piece);
  list_pieces(s, from);
  int n = s->told.n, rc = 0;
  struct tc_h5_slice *hs = tc_calloc((size_t)n + 1, sizeof *hs);
  for (int i = 0; i < n; i++) {
    const struct told_piece *p = &s->piece[i];
    const struct tc_ckpt_tensor *t = &s->tensor[p->tensor];
    hs[i] = (struct tc_h5_slice){ .dataset = dataset_path(s, p), .dtype = t->dtype,
      .rank = t->rank, .global = t->dim, .start = p->start, .count = p->count };
  }
  if (n > 0) {
    char *path = file_path(s), *folder = tc_sprintf("%s/%s", s->dir, s->tmp);
    rc = write_slices(s, path, hs, from, err);
    if (rc == 0) rc = check_mine(s, path, hs, err);
    if (rc == 0) rc = tc_folder_sync(folder, err);
    free(path);
    free(folder);
  }
  for (int i = 0; i < n; i++) free((char *)(uintptr_t)hs[i].dataset);
  free(hs);
  free(from);
  return rc;
}

/* ---- the commit (rank 0) ---------------------------------------------------------- */

/* The manifest of what all ranks told: `all` is their messages one after another. */
static struct tc_manifest *gather_manifest(struct save *s, const char *all, const int64_t *bytes)
{
  struct tc_manifest *m = tc_calloc(1, sizeof *m);
  char now[40];
  time_t t = time(NULL);
  struct tm tm;
  strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
  m->pool = tc_pool_new();
  m->meta = *s->meta;
  m->world = s->meta->who ? s->world : 0;
  m->time = tc_pool_strdup(m->pool, now);
  m->n_tensors = s->n_tensors;
  m->tensor = tc_pool_alloc(m->pool, (size_t)(s->n_tensors + 1) * sizeof *m->tensor);
  memcpy(m->tensor, s->tensor, (size_t)s->n_tensors * sizeof *m->tensor);
  m->file = tc_pool_alloc(m->pool, (size_t)s->world * sizeof *m->file);
  int64_t total = 0;
  for (int r = 0; r < s->world; r++) total += bytes[r];
  m->piece = tc_pool_alloc(m->pool, (size_t)total / sizeof(struct told_piece) *
                                    sizeof *m->piece + sizeof *m->piece);
  for (int r = 0; r < s->world; all += bytes[r++]) {
    struct told told;
    char name[32];
    memcpy(&told, all, sizeof told);
    if (told.n == 0) continue;
    snprintf(name, sizeof name, "rank-%05d.h5", r);
    m->file[m->n_files] = (struct tc_ckpt_file){ .name = tc_pool_strdup(m->pool, name),
      .writer = r, .size = told.size, .meta_crc32c = told.meta_crc32c };
    for (int i = 0; i < told.n; i++) {
      struct told_piece p;
      struct tc_piece *q = &m->piece[m->n_pieces++];
      memcpy(&p, all + sizeof told + (size_t)i * sizeof p, sizeof p);
      char *dataset = dataset_path(s, &p);
      *q = (struct tc_piece){ .tensor = p.tensor, .file = m->n_files, .offset = p.offset,
        .bytes = piece_bytes(s, &p), .crc32c = p.crc32c,
        .dataset = tc_pool_strdup(m->pool, dataset) };
      memcpy(q->start, p.start, sizeof q->start);
      memcpy(q->count, p.count, sizeof q->count);
      free(dataset);
    }
    m->n_files++;
  }
  return m;
}

static int write_manifest(const struct save *s, const struct tc_manifest *m, struct tc_err *err)
{
  size_t bytes = 0;
  char *text = tc_manifest_text(m, &bytes);
  char *path = tc_sprintf("%s/%s/" TC_MANIFEST, s->dir, s->tmp);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  bool good = fd >= 0;
  for (size_t done = 0; good && done < bytes;) {
    ssize_t n = write(fd, text + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
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

static int commit(struct save *s, const char *all, const int64_t *bytes, struct tc_err *err)
{
  const char *at = all;
  for (int r = 0; r < s->world; at += bytes[r++]) {
    struct told told;
    TC_ASSERT(bytes[r] >= (int64_t)sizeof told);
    memcpy(&told, at, sizeof told);
    if (told.status < 0) return tc_fail(err, told.status, "%.999s", told.text);
    TC_ASSERT(bytes[r] == (int64_t)(sizeof told + (size_t)told.n * sizeof(struct told_piece)));
  }
  char *folder = tc_sprintf("%s/%s", s->dir, s->tmp);
  struct tc_manifest *m = gather_manifest(s, all, bytes);
  int rc = tc_manifest_check(m, folder, err);
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
  s->told.status = status;
  if (status < 0) {
    snprintf(s->told.text, sizeof s->told.text, "%s", err->text);
    s->told.n = 0;
  }
  size_t n_bytes = sizeof s->told + (size_t)s->told.n * sizeof *s->piece;
  char *mine = tc_malloc(n_bytes);
  memcpy(mine, &s->told, sizeof s->told);
  memcpy(mine + sizeof s->told, s->piece, n_bytes - sizeof s->told);
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
static void prune(const struct save *s, int keep)
{
  struct tc_err err = {0};
  int64_t *steps = NULL;
  int n = keep > 0 ? tc_ckpt_list(s->dir, &steps, &err) : 0;
  for (int i = keep; i < n; i++) {
    char name[40];
    snprintf(name, sizeof name, "step-%08lld", (long long)steps[i]);
    char *old = tc_sprintf(".old-%s-%s", name, strrchr(s->tmp, '-') + 1);
    if (tc_folder_rename(s->dir, name, old, &err) < 0) tc_warn("%s", err.text);
    else remove_or_warn(s->dir, old);
    free(old);
  }
  if (n < 0) tc_warn("%s", err.text);
  free(steps);
}

int tc_ckpt_save(const char *dir, const struct tc_ckpt_meta *meta,
                 const struct tc_ckpt_tensor *tensors, int n_tensors,
                 const struct tc_ckpt_slice *slices, int n_slices,
                 int keep, struct tc_comm *world, struct tc_err *err)
{
  struct save s = { .dir = dir, .meta = meta, .tensor = tensors, .n_tensors = n_tensors,
                    .slice = slices, .n_slices = n_slices };
  struct tc_err local = {0};
  if (!err) err = &local;         /* sentences travel to the other ranks from here */
  s.rank = tc_comm_coord(world);
  s.world = tc_comm_size(world);
  int rc = share_tmp(&s, world, err);
  if (rc == 0) rc = agree_and_commit(&s, write_mine(&s, err), world, err);
  if (s.rank == 0 && s.tmp && rc < 0) remove_or_warn(dir, s.tmp);
  if (s.rank == 0 && rc == 0) prune(&s, keep);
  free(s.piece);
  free(s.tmp);
  return rc;
}
