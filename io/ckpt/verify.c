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
#include <unistd.h>

#include "io/folder.h"
#include "io/ckpt/h5.h"

static void report(struct tc_faults *f, const struct tc_err *e)
{
  if (f->n++ == 0) f->first = *e;
  f->worst = TC_MIN(f->worst, e->status);
  if (f->fault) f->fault(f->ctx, e->status, e->text);
}

/* By file, then by offset. */
static int cmp_place(const void *a, const void *b)
{
  const struct tc_piece *p = *(const struct tc_piece *const *)a;
  const struct tc_piece *q = *(const struct tc_piece *const *)b;
  if (p->file != q->file) return p->file < q->file ? -1 : 1;
  return (p->offset > q->offset) - (p->offset < q->offset);
}

static void verify_h5(const struct tc_ckpt *c, int file, const struct tc_piece *const *piece,
                      int n, struct tc_faults *f)
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
  if (tc_h5_check(path, c->m->meta.step, cf->writer, s, n, &e) < 0) report(f, &e);
  free(path);
  free(s);
}

/* All but the data; false if the file can't be opened. */
static bool verify_file(const struct tc_ckpt *c, int file, const struct tc_piece *const *piece,
                        int n, bool deep, struct tc_faults *f)
{
  const struct tc_ckpt_file *cf = &c->m->file[file];
  struct tc_err e = {0};
  uint32_t crc = 0;
  int fd = tc_ckpt_open_file(c, file, &e);
  if (fd < 0) {
    report(f, &e);
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
  if (!meta) report(f, &e);
  close(fd);
  if (deep && meta) verify_h5(c, file, piece, n, f);
  return true;
}

/* The share that has the byte at `at` of all files, laid end to end. */
static int share_at(double at, double bytes, int shares)
{
  return bytes > 0 ? TC_MIN((int)(at / bytes * shares), shares - 1) : 0;
}

/* A file that can't be opened is reported once, by the rank that checks its beginning. */
static bool opens(const struct tc_ckpt *c, int file)
{
  int fd = tc_ckpt_open_file(c, file, NULL);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

void tc_ckpt_verify_files(struct tc_ckpt *c, bool deep, int share, int shares,
                          struct tc_faults *f)
{
  const struct tc_manifest *m = c->m;
  const struct tc_piece **by = tc_malloc((size_t)(m->n_pieces + 1) * sizeof *by);
  double bytes = 0, at = 0;
  for (int k = 0; k < m->n_pieces; k++) by[k] = &m->piece[k];
  qsort(by, (size_t)m->n_pieces, sizeof *by, cmp_place);
  for (int i = 0; i < m->n_files; i++) bytes += (double)m->file[i].size;
  for (int i = 0, k = 0, end = 0; i < m->n_files; at += (double)m->file[i++].size) {
    while (end < m->n_pieces && by[end]->file == i) end++;
    bool first = share_at(at, bytes, shares) == share, known = first;
    bool there = first && verify_file(c, i, by + k, end - k, deep, f);
    for (; k < end; k++) {
      struct tc_err e = {0};
      double middle = at + (double)by[k]->offset + (double)by[k]->bytes / 2;
      if (!deep || share_at(middle, bytes, shares) != share) continue;
      if (!known) there = opens(c, i);
      known = true;
      if (!there || tc_ckpt_check_piece(c, (int)(by[k] - m->piece), &e) == 0) continue;
      report(f, &e);
      there = c->open[i % TC_OPEN_FILES].file == i;      /* else it can't be opened, which is said once */
    }
  }
  free(by);
}

void tc_ckpt_verify_attached(const struct tc_ckpt *c, struct tc_faults *f)
{
  struct tc_err e = {0};
  char *data = NULL;
  int64_t bytes;
  const char *name = c->m->meta.attached.name;
  if (name && tc_ckpt_attached(c, name, &data, &bytes, &e) < 0) report(f, &e);
  free(data);
}

int tc_ckpt_verify(const char *step_path, bool deep,
                   void (*fault)(void *ctx, int status, const char *text), void *ctx,
                   struct tc_err *err)
{
  struct tc_faults f = { .fault = fault, .ctx = ctx };
  struct tc_err e = {0};
  struct tc_ckpt *c;
  if (tc_ckpt_open(&c, step_path, &e) < 0) {
    report(&f, &e);
  } else {
    tc_ckpt_verify_files(c, deep, 0, 1, &f);
    tc_ckpt_verify_attached(c, &f);
    tc_ckpt_close(c);
  }
  if (f.n == 1) return tc_fail(err, f.worst, "%.999s", f.first.text);
  if (f.n > 1)
    return tc_fail(err, f.worst, "%d faults in %.300s; the first: %.600s", f.n, step_path,
                   f.first.text);
  return 0;
}
