/* verify.c - the checks of all bytes of a checkpoint.
 *
 * A file is trusted step by step: its size, then the checksum of its metadata (so that HDF5
 * never parses damaged bytes, which can hang it), then that HDF5 finds every dataset where the
 * manifest says, then the data of each piece, of every rank. Together all bytes of the
 * checkpoint are covered: the manifest's by its own checksum, a file's by those in the manifest. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"
#include "io/ckpt/h5.h"

static void report(struct tc_findings *f, int status, const char *text)
{
  for (int i = 0; i < f->n; i++)
    if (!strcmp(f->fault[i].text, text)) return;
  TC_APPEND(f->fault, f->n, f->cap, (struct tc_finding){ status, tc_strdup(text) });
}

void tc_findings_free(struct tc_findings *f)
{
  for (int i = 0; i < f->n; i++) free(f->fault[i].text);
  free(f->fault);
}

int tc_findings_worst(const struct tc_findings *f)
{
  int worst = 0;
  for (int i = 0; i < f->n; i++) worst = TC_MIN(worst, f->fault[i].status);
  return worst;
}

static void verify_h5(const struct tc_ckpt *c, int file, const struct tc_piece *const *piece,
                      int n, struct tc_findings *f)
{
  const struct tc_ckpt_file *cf = &c->m->file[file];
  struct tc_h5_slice *s = tc_calloc((size_t)n + 1, sizeof *s);
  char *path = tc_sprintf("%s/%s", c->path, cf->name);
  struct tc_err e = {0};
  for (int i = 0; i < n; i++) {
    const struct tc_ckpt_tensor *t = &c->m->tensor[piece[i]->tensor];
    s[i] = (struct tc_h5_slice){ .dataset = piece[i]->dataset, .dtype = t->dtype,
      .rank = t->rank, .global = t->dim, .start = piece[i]->start, .count = piece[i]->count,
      .offset = piece[i]->offset };
  }
  if (tc_h5_check(path, c->m->meta.step, cf->writer, s, n, &e) < 0) report(f, e.status, e.text);
  TC_FREE(path, s);
}

/* All but the data; false if the file can't be opened. */
static bool verify_file(const struct tc_ckpt *c, int file, const struct tc_piece *const *piece,
                        int n, bool deep, struct tc_findings *f)
{
  const struct tc_ckpt_file *cf = &c->m->file[file];
  struct tc_err e = {0};
  uint32_t crc = 0;
  int fd = tc_ckpt_open_file(c, file, &e);
  if (fd < 0) {
    report(f, e.status, e.text);
    return false;
  }
  bool read = tc_crc_meta(fd, cf->size, piece, n, &crc), meta = read && crc == cf->meta_crc32c;
  const int why = errno;
  if (!read)
    tc_fail(&e, why ? TC_EUSER : TC_EINCOMPLETE, "%s/%s: can't be read: %s", c->path, cf->name,
            why ? strerror(why) : "the file ends too early");
  else if (!meta)
    tc_fail(&e, TC_ECHECKSUM, "%s/%s: wrong checksum of the file's metadata: it is damaged, or "
            "another file", c->path, cf->name);
  if (!meta) report(f, e.status, e.text);
  close(fd);
  if (deep && meta) verify_h5(c, file, piece, n, f);
  return true;
}

/* The share that has the byte at `at` of all files, laid end to end. */
static int share_at(double at, double bytes, int shares)
{
  return bytes > 0 ? TC_MIN((int)(at / bytes * shares), shares - 1) : 0;
}

/* Closes what was opened: 0, or the status of what could not be. */
static int close_opened(int fd)
{
  if (fd >= 0) close(fd);
  return TC_MIN(fd, 0);
}

void tc_ckpt_verify_files(struct tc_ckpt *c, bool deep, int share, int shares,
                          struct tc_findings *f)
{
  const struct tc_manifest *m = c->m;
  const struct tc_piece **by = tc_malloc((size_t)(m->n_pieces + 1) * sizeof *by);
  double bytes = 0, at = 0;
  for (int k = 0; k < m->n_pieces; k++) by[k] = &m->piece[k];
  qsort(by, (size_t)m->n_pieces, sizeof *by, tc_piece_by_place);
  for (int i = 0; i < m->n_files; i++) bytes += (double)m->file[i].size;
  for (int i = 0, k = 0, end = 0; i < m->n_files; at += (double)m->file[i++].size) {
    while (end < m->n_pieces && by[end]->file == i) end++;
    bool first = share_at(at, bytes, shares) == share, known = first;
    bool there = first && verify_file(c, i, by + k, end - k, deep, f);
    for (; k < end; k++) {
      struct tc_err e = {0};
      double middle = at + (double)by[k]->offset + (double)by[k]->bytes / 2;
      if (!deep || share_at(middle, bytes, shares) != share) continue;
      if (!known) there = close_opened(tc_ckpt_open_file(c, i, NULL)) == 0;   /* reported by who checks its beginning */
      known = true;
      if (!there || tc_ckpt_check_piece(c, (int)(by[k] - m->piece), &e) == 0) continue;
      report(f, e.status, e.text);
      there = c->open[i % TC_OPEN_FILES].file == i;      /* else it can't be opened, which is said once */
    }
  }
  free(by);
}

void tc_ckpt_verify_attached(const struct tc_ckpt *c, struct tc_findings *f)
{
  for (int i = 0; i < TC_ATTACHED; i++) {
    struct tc_err e = {0};
    char *data = NULL;
    int64_t bytes;
    const char *name = c->m->meta.attached[i].name;
    if (name && tc_ckpt_attached(c, name, &data, &bytes, &e) < 0) report(f, e.status, e.text);
    free(data);
  }
}

/* ---- a step by several threads ----------------------------------------------------- */

/* A step in shares, one a thread, and what was found in each. */
struct shares { const struct tc_ckpt *c; bool deep; int n; struct tc_findings *found; };

/* A reader of a share: borrows the manifest, but has marks, descriptors and a buffer of its own. */
static void reader_new(struct tc_ckpt *copy, const struct tc_ckpt *c)
{
  *copy = *c;
  copy->checked = tc_calloc((size_t)c->first_block[c->m->n_pieces] / 8 + 1, 1);
  copy->bounce = NULL;
  copy->late = tc_calloc(1, sizeof *copy->late);
  for (int i = 0; i < TC_OPEN_FILES; i++) copy->open[i].file = -1;
}

static void reader_free(struct tc_ckpt *copy)
{
  for (int i = 0; i < TC_OPEN_FILES; i++)
    if (copy->open[i].file >= 0) close(copy->open[i].fd);
  TC_FREE(copy->checked, copy->bounce, copy->late);
}

static int verify_share(void *ctx, int64_t share, int thread, struct tc_err *err)
{
  const struct shares *s = ctx;
  struct tc_findings *f = &s->found[share];
  struct tc_ckpt c;
  (void)thread, (void)err;
  reader_new(&c, s->c);
  tc_ckpt_verify_files(&c, s->deep, (int)share, s->n, f);
  if (share == 0) tc_ckpt_verify_attached(&c, f);
  reader_free(&c);
  return 0;
}

/* Sorts by file, in any order of threads; the order within a file is kept. */
static void sort_faults(struct tc_findings *f)
{
  for (int i = 1; i < f->n; i++) {
    struct tc_finding x = f->fault[i];
    size_t len = strcspn(x.text, ":");
    int k = i;
    for (; k > 0 && strncmp(f->fault[k - 1].text, x.text, len) > 0; k--)
      f->fault[k] = f->fault[k - 1];
    f->fault[k] = x;
  }
}

static void verify_files(const struct tc_ckpt *c, bool deep, int jobs, struct tc_findings *all)
{
  struct shares s = { .c = c, .deep = deep, .n = TC_MAX(1, TC_MIN(jobs, c->m->n_files + c->m->n_pieces)) };
  s.found = tc_calloc((size_t)s.n, sizeof *s.found);
  tc_each(s.n, s.n, verify_share, &s, NULL);
  for (int i = 0; i < s.n; i++) {
    for (int k = 0; k < s.found[i].n; k++) report(all, s.found[i].fault[k].status, s.found[i].fault[k].text);
    tc_findings_free(&s.found[i]);
  }
  free(s.found);
  sort_faults(all);
}

/* Collects all faults of a checkpoint in *f; returns the worst status. */
static int verify_once(const char *path, bool deep, int64_t jobs, struct tc_findings *f)
{
  struct tc_err e = {0};
  struct tc_ckpt *c;
  int64_t step = tc_step_of_name(tc_base_name(path));
  if (jobs == 0) jobs = TC_MAX(1, sysconf(_SC_NPROCESSORS_ONLN));
  if (tc_ckpt_open(&c, path, &e) < 0) {
    report(f, e.status, e.text);
  } else {
    if (step >= 0 && c->m->meta.step != step) {
      tc_fail(&e, TC_ECHECKSUM, "%s: its manifest is that of step %lld", path,
              (long long)c->m->meta.step);
      report(f, e.status, e.text);
    }
    verify_files(c, deep, (int)jobs, f);
    tc_ckpt_close(c);
  }
  return tc_findings_worst(f);
}

int tc_ckpt_verify_step(const char *path, bool deep, int64_t jobs, struct tc_findings *f)
{
  for (int i = 0; i < TC_CKPT_STEPS; i++) {
    const struct tc_ckpt_folder was = tc_ckpt_folder(path);
    const int worst = verify_once(path, deep, jobs, f);
    const enum tc_ckpt_fate fate = worst < 0 ? tc_ckpt_fate(&was, path) : TC_CKPT_SAME;
    if (fate == TC_CKPT_SAME) return worst;
    tc_findings_free(f);
    *f = (struct tc_findings){ 0 };
    if (fate == TC_CKPT_GONE) break;
  }
  return TC_STEP_GONE;
}

/* ---- a step that may be removed meanwhile ------------------------------------------ */

int tc_ckpt_open_held(struct tc_ckpt **out, const char *path, struct tc_err *err)
{
  bool again = true;
  int rc = 0;
  for (int i = 0; i < TC_CKPT_STEPS && again; i++) {
    TC_TRY(tc_ckpt_open(out, path, err));
    rc = tc_ckpt_settle(*out, path, tc_ckpt_hold(*out, err), &again, err);
    if (rc == 0) return 0;
    tc_ckpt_close(*out);
    *out = NULL;
  }
  return rc;
}

int tc_ckpt_close_held(struct tc_ckpt *c, const char *path, int rc, struct tc_err *err)
{
  bool again;
  rc = tc_ckpt_settle(c, path, rc, &again, err);
  tc_ckpt_close(c);
  return rc;
}

/* One look of tc_ckpt_look. */
static int open_step(struct tc_ckpt **c, const char *path, int64_t *size_bytes, struct tc_err *err)
{
  int rc = tc_ckpt_open(c, path, err);
  *size_bytes = 0;
  for (int i = 0; rc == 0 && i < (*c)->m->n_files; i++) {
    rc = close_opened(tc_ckpt_open_file(*c, i, err));
    *size_bytes = tc_add_sizes(*size_bytes, (*c)->m->file[i].size);
  }
  for (int i = 0; rc == 0 && i < TC_ATTACHED; i++) {
    if (!(*c)->m->meta.attached[i].name) continue;
    rc = close_opened(tc_ckpt_open_attached(*c, i, err));
    *size_bytes = tc_add_sizes(*size_bytes, (*c)->m->meta.attached[i].bytes);
  }
  return rc;
}

int tc_ckpt_look(struct tc_ckpt **c, const char *path, int64_t *size_bytes, struct tc_err *err)
{
  int rc = 0;
  for (int i = 0; i < TC_CKPT_STEPS; i++) {
    const struct tc_ckpt_folder was = tc_ckpt_folder(path);
    rc = open_step(c, path, size_bytes, err);
    const enum tc_ckpt_fate fate = rc < 0 ? tc_ckpt_fate(&was, path) : TC_CKPT_SAME;
    if (fate == TC_CKPT_SAME) break;
    tc_ckpt_close(*c);
    *c = NULL;
    if (fate == TC_CKPT_GONE) return TC_STEP_GONE;
  }
  return rc;
}

/* Whether a folder in which no step was found can be read: 1; TC_EUSER: it is there and can't. */
static int look_at_folder(const char *dir, struct tc_err *err)
{
  struct stat st;
  char **names;
  const int n = tc_folder_scan(dir, "", &names, err);
  if (n >= 0) tc_names_free(names, n);
  return n >= 0 || (tc_stat(dir, &st) == 0 && !S_ISDIR(st.st_mode)) ? 1 : n;
}

/* Opens the newest of the steps that are there now: 0; 1: they were removed meanwhile, or there are none; TC_EUSER: one
 * can't be read, so that it isn't known which is the newest. */
static int open_newest(struct tc_ckpt **out, const char *dir, bool *none, struct tc_err *err)
{
  char **path = NULL;
  int n = tc_ckpt_step_paths(&path, dir, err), rc = 1;
  *none = true;
  for (int i = n - 1; i >= 0 && rc > 0; i--) {
    const struct tc_ckpt_folder was = tc_ckpt_folder(path[i]);
    int64_t size;
    rc = open_step(out, path[i], &size, err);
    if (rc == 0) break;
    const bool gone = tc_ckpt_fate(&was, path[i]) != TC_CKPT_SAME;
    *none &= !gone;
    if (!gone && rc != TC_EUSER) tc_warn("%s", err->text);
    if (gone || rc != TC_EUSER) rc = 1;
    tc_ckpt_close(*out);
    *out = NULL;
  }
  if (n > 0) tc_names_free(path, n);
  else free(path);
  return n < 0 ? look_at_folder(dir, err) : rc;
}

int tc_ckpt_newest(struct tc_ckpt **out, const char *dir, struct tc_err *err)
{
  bool none = false;
  int rc = 1;
  *out = NULL;
  for (int i = 0; i < TC_CKPT_STEPS && rc == 1 && !none; i++) rc = open_newest(out, dir, &none, err);
  return rc <= 0 ? rc : tc_fail(err, TC_ENOCKPT, "%s: no usable checkpoint", dir);
}
