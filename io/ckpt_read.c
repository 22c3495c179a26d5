/* ckpt_read.c - opening a checkpoint and reading any box of any tensor.
 *
 * - Data is read with pread at the places the manifest names, never through HDF5: no lock, no
 *   parsing of bytes that may be damaged.
 * - A piece is read whole the first time a box touches it, and what goes to the caller comes
 *   from the very bytes the checksum was made of. Later reads of a checked piece read what
 *   they need.
 * - A box may be made of any pieces, so every layout can load what any other saved. */
#include "io/ckpt_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/crc.h"
#include "io/folder.h"

enum { CHUNK_BYTES = 4 << 20 };

/* ---- steps in a folder ------------------------------------------------------------ */

char *tc_ckpt_step_path(const char *dir, int64_t step)
{
  return tc_sprintf("%s/step-%08lld", dir, (long long)step);
}

static int cmp_down(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

int tc_ckpt_list(const char *dir, int64_t **steps, struct tc_err *err)
{
  char **names;
  int found = 0, n = tc_folder_scan(dir, "step-", &names, err);
  *steps = NULL;
  if (n < 0) return n;
  *steps = tc_malloc((size_t)(n + 1) * sizeof **steps);
  for (int i = 0; i < n; i++) {
    int64_t step = tc_step_of_name(names[i]);
    if (step >= 0) (*steps)[found++] = step;
  }
  qsort(*steps, (size_t)found, sizeof **steps, cmp_down);
  tc_names_free(names, n);
  return found;
}

/* The step folder that `path` means: itself, or the newest in it; owned. */
static int find_step(char **out, const char *path, struct tc_err *err)
{
  char *plain = tc_strdup(path), *real = NULL;
  size_t len = strlen(plain);
  while (len > 1 && plain[len - 1] == '/') plain[--len] = '\0';
  const char *slash = strrchr(plain, '/');
  char *manifest = tc_sprintf("%s/" TC_MANIFEST, plain);
  struct stat st;
  bool there = stat(plain, &st) == 0;
  bool is_step = tc_step_of_name(slash ? slash + 1 : plain) >= 0 || access(manifest, F_OK) == 0;
  free(manifest);
  *out = plain;
  if (there && is_step) return 0;
  int64_t *steps;
  int n = tc_ckpt_list(plain, &steps, err);
  if (n > 0) real = tc_ckpt_step_path(plain, steps[0]);
  free(steps);
  if (n == 0)
    tc_fail(err, TC_EUSER, there ? "%s: no checkpoint in this folder" : "%s: no such folder",
            plain);
  free(plain);
  *out = real;
  return real ? 0 : TC_EUSER;
}

int tc_ckpt_open(struct tc_ckpt **out, const char *path, struct tc_err *err)
{
  struct tc_ckpt *c = tc_calloc(1, sizeof *c);
  *out = NULL;
  c->fd = c->fd_file = -1;
  int rc = find_step(&c->path, path, err);
  if (rc == 0) {
    char *manifest = tc_sprintf("%s/" TC_MANIFEST, c->path);
    rc = tc_manifest_read(&c->m, manifest, err);
    free(manifest);
  }
  if (rc < 0) {
    tc_ckpt_close(c);
    return rc;
  }
  c->checked = tc_calloc((size_t)c->m->n_pieces / 8 + 1, 1);
  *out = c;
  return 0;
}

void tc_ckpt_close(struct tc_ckpt *c)
{
  if (!c) return;
  if (c->fd >= 0) close(c->fd);
  tc_manifest_free(c->m);
  free(c->checked);
  free(c->path);
  free(c);
}

const struct tc_ckpt_meta *tc_ckpt_meta(const struct tc_ckpt *c) { return &c->m->meta; }
const char *tc_ckpt_path(const struct tc_ckpt *c) { return c->path; }
int tc_ckpt_n(const struct tc_ckpt *c) { return c->m->n_tensors; }

const struct tc_ckpt_tensor *tc_ckpt_at(const struct tc_ckpt *c, int i)
{
  TC_ASSERT(i >= 0 && i < c->m->n_tensors);
  return &c->m->tensor[i];
}

int tc_ckpt_find(const struct tc_ckpt *c, const char *name)
{
  for (int i = 0; i < c->m->n_tensors; i++)
    if (strcmp(c->m->tensor[i].name, name) == 0) return i;
  return -1;
}

/* ---- files ------------------------------------------------------------------------ */

int tc_ckpt_open_file(const struct tc_ckpt *c, int f, struct tc_err *err)
{
  const struct tc_ckpt_file *file = &c->m->file[f];
  char *path = tc_sprintf("%s/%s", c->path, file->name);
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
  if (fd < 0 && errno == ENOENT)
    rc = tc_fail(err, TC_EINCOMPLETE, "%s: is missing: the checkpoint is incomplete", path);
  else if (fd < 0 || fstat(fd, &st) < 0)
    rc = tc_fail(err, TC_EUSER, "%s: %s", path, strerror(errno));
  else if (!S_ISREG(st.st_mode))
    rc = tc_fail(err, TC_EUSER, "%s: not a file", path);
  else if (st.st_size != file->size)
    rc = tc_fail(err, st.st_size < file->size ? TC_EINCOMPLETE : TC_ECHECKSUM,
                 "%s: has %lld bytes instead of %lld", path, (long long)st.st_size,
                 (long long)file->size);
  if (rc < 0 && fd >= 0) close(fd);
  free(path);
  return rc < 0 ? rc : fd;
}

bool tc_crc_range(int fd, int64_t offset, int64_t bytes, uint32_t *crc)
{
  char *buf = tc_malloc((size_t)TC_MAX(1, TC_MIN(bytes, CHUNK_BYTES)));
  bool good = true;
  while (bytes > 0 && good) {
    int64_t n = TC_MIN(bytes, CHUNK_BYTES);
    good = tc_pread_all(fd, buf, n, offset);
    if (good) *crc = tc_crc32c(*crc, buf, (size_t)n);
    offset += n;
    bytes -= n;
  }
  free(buf);
  return good;
}

bool tc_crc_meta(int fd, int64_t size, const struct tc_piece *const *by_offset, int n,
                 uint32_t *crc)
{
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    if (!tc_crc_range(fd, at, by_offset[i]->offset - at, crc)) return false;
    at = by_offset[i]->offset + by_offset[i]->bytes;
  }
  return tc_crc_range(fd, at, size - at, crc);
}

/* ---- boxes ------------------------------------------------------------------------ */

/* A box being read: dst[count] at `start` of a tensor. */
struct want {
  int rank;
  const int64_t *start, *count;
  int64_t elem_bytes;
  char *dst;
};

/* Elements [first, first + n) of the piece, in row-major order of the piece, are at `data`:
 * copies those inside the box, run by run of the last dimension. */
static void copy_runs(const struct want *w, const struct tc_piece *p, int64_t first, int64_t n,
                      const char *data)
{
  int last = w->rank - 1;
  if (w->rank == 0) {
    memcpy(w->dst, data, (size_t)w->elem_bytes);
    return;
  }
  while (n > 0) {
    int64_t row = first / p->count[last], col = first % p->count[last];
    int64_t run = TC_MIN(n, p->count[last] - col), to = 0, stride = w->count[last];
    bool inside = true;
    for (int d = last - 1; d >= 0 && inside; d--) {
      int64_t i = p->start[d] + row % p->count[d] - w->start[d];
      row /= p->count[d];
      inside = i >= 0 && i < w->count[d];
      to += i * stride;
      stride *= w->count[d];
    }
    int64_t lo = TC_MAX(p->start[last] + col, w->start[last]);
    int64_t hi = TC_MIN(p->start[last] + col + run, w->start[last] + w->count[last]);
    if (inside && lo < hi)
      memcpy(w->dst + (to + lo - w->start[last]) * w->elem_bytes,
             data + (lo - p->start[last] - col) * w->elem_bytes,
             (size_t)((hi - lo) * w->elem_bytes));
    first += run;
    n -= run;
    data += run * w->elem_bytes;
  }
}

/* The part of the piece that can lie in the box: elements [*lo, *hi). Empty: false. */
static bool span(const struct want *w, const struct tc_piece *p, int64_t *lo, int64_t *hi)
{
  int64_t first = 0, end = 0;
  for (int d = 0; d < w->rank; d++) {
    int64_t a = TC_MAX(p->start[d], w->start[d]);
    int64_t b = TC_MIN(p->start[d] + p->count[d], w->start[d] + w->count[d]);
    if (a >= b) return false;
    first = first * p->count[d] + a - p->start[d];
    end = end * p->count[d] + b - 1 - p->start[d];
  }
  *lo = first;
  *hi = end + 1;
  return true;
}

static int piece_fail(const struct tc_ckpt *c, const struct tc_piece *p, struct tc_err *err)
{
  return tc_fail(err, TC_ECHECKSUM, "%s/%s: tensor %s: wrong checksum of dataset %s: the data "
                 "is damaged", c->path, c->m->file[p->file].name,
                 c->m->tensor[p->tensor].name, p->dataset);
}

static int read_piece(struct tc_ckpt *c, int k, const struct want *w, struct tc_err *err)
{
  const struct tc_piece *p = &c->m->piece[k];
  int64_t lo, hi;
  if (!span(w, p, &lo, &hi)) return 0;
  if (c->fd_file != p->file) {
    if (c->fd >= 0) close(c->fd);
    c->fd_file = -1;
    c->fd = tc_ckpt_open_file(c, p->file, err);
    if (c->fd < 0) return c->fd;
    c->fd_file = p->file;
  }
  bool check = !tc_piece_checked(c, k), good = true;
  if (check) lo = 0, hi = p->bytes / w->elem_bytes;
  uint32_t crc = 0;
  char *buf = tc_malloc((size_t)TC_MIN((hi - lo) * w->elem_bytes, CHUNK_BYTES));
  while (lo < hi && good) {
    int64_t n = TC_MIN(hi - lo, CHUNK_BYTES / w->elem_bytes);
    good = tc_pread_all(c->fd, buf, n * w->elem_bytes, p->offset + lo * w->elem_bytes);
    if (!good) break;
    if (check) crc = tc_crc32c(crc, buf, (size_t)(n * w->elem_bytes));
    copy_runs(w, p, lo, n, buf);
    lo += n;
  }
  int why = errno;
  free(buf);
  if (!good)
    return tc_fail(err, why ? TC_EUSER : TC_EINCOMPLETE, "%s/%s: tensor %s: can't be read: %s",
                   c->path, c->m->file[p->file].name, c->m->tensor[p->tensor].name,
                   why ? strerror(why) : "the file ends too early");
  if (check && crc != p->crc32c) return piece_fail(c, p, err);
  if (check) tc_piece_set_checked(c, k);
  return 0;
}

int tc_ckpt_read(struct tc_ckpt *c, int tensor, const int64_t *start, const int64_t *count,
                 void *dst, struct tc_err *err)
{
  const struct tc_ckpt_tensor *t = tc_ckpt_at(c, tensor);
  struct want w = { .rank = t->rank, .start = start, .count = count, .dst = dst,
                    .elem_bytes = (int64_t)tc_dtype_bytes(t->dtype) };
  for (int d = 0; d < t->rank; d++) {
    TC_ASSERT(start[d] >= 0 && count[d] >= 0 && start[d] <= t->dim[d] - count[d]);
    if (count[d] == 0) return 0;
  }
  for (int k = c->m->first_piece[tensor]; k < c->m->first_piece[tensor + 1]; k++)
    TC_TRY(read_piece(c, k, &w, err));
  return 0;
}
