/* read.c - opening a checkpoint and reading any box of any tensor.
 *
 * - Data is read with pread at the places the manifest names, never through HDF5: no lock, no
 *   parsing of bytes that may be damaged.
 * - A block is read whole the first time a box touches it, and what goes to the caller comes
 *   from the very bytes the checksum was made of. Later reads of a checked block read what
 *   they need.
 * - Data passes through a small buffer, where it is summed and copied from while it is in the
 *   cache; at once where a box's part of a piece is one run in both, else run by run.
 * - A box may be made of any pieces, so every layout can load what any other saved.
 * - What can't be read (TC_EUSER) is kept apart from what is damaged; a file that is missing or too short is looked for
 *   again if the step is young, since another node's files may be seen late.
 * - Memory: the caller's, one chunk, and a bit per block. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/ckpt/blocks.h"
#include "io/crc.h"
#include "io/folder.h"
#include "src/watch/watch.h"

/* ---- opening ---------------------------------------------------------------------- */

/* The manifest of the step at c->path, a second time if it is late or the folder was replaced meanwhile. */
static int read_manifest(struct tc_ckpt *c, struct tc_err *err)
{
  enum { FOLDERS = 3 };
  char *manifest = tc_sprintf("%s/" TC_MANIFEST, c->path);
  int rc = TC_EINCOMPLETE;
  for (int i = 0; i < FOLDERS; i++) {
    c->folder = tc_ckpt_folder(c->path);
    do rc = tc_manifest_read(&c->m, manifest, err);
    while (rc == TC_EINCOMPLETE && tc_ckpt_is_young(&c->folder) && tc_late(c->late, manifest));
    if (rc == 0 || tc_ckpt_fate(&c->folder, c->path) != TC_CKPT_OTHER) break;
  }
  free(manifest);
  return rc;
}

/* Opens what `path` means now. *gone: a step was chosen in a folder, and is no longer there. */
static int open_once(struct tc_ckpt **out, const char *path, bool *gone, struct tc_err *err)
{
  struct tc_ckpt *c = *out = tc_calloc(1, sizeof *c);
  bool chosen;
  for (int i = 0; i < TC_OPEN_FILES; i++) c->open[i].file = -1;
  c->late = tc_calloc(1, sizeof *c->late);
  *gone = false;
  TC_TRY(tc_ckpt_find_step(&c->path, &chosen, path, err));
  const int rc = read_manifest(c, err);
  if (rc == 0 || tc_ckpt_fate(&c->folder, c->path) != TC_CKPT_GONE) return rc;
  *gone = chosen;
  return tc_ckpt_say_gone(c->path, err);
}

int tc_ckpt_open(struct tc_ckpt **out, const char *path, struct tc_err *err)
{
  bool gone = true;
  int rc = 0;
  for (int i = 0; i < TC_CKPT_STEPS && gone; i++) {
    rc = open_once(out, path, &gone, err);
    if (rc == 0) break;
    tc_ckpt_close(*out);
    *out = NULL;
  }
  if (rc < 0) return rc;
  struct tc_ckpt *c = *out;
  const struct tc_manifest *m = c->m;
  c->first_block = tc_calloc((size_t)m->n_pieces + 1, sizeof *c->first_block);
  for (int k = 0; k < m->n_pieces; k++)
    c->first_block[k + 1] = c->first_block[k] + tc_blocks(m->piece[k].bytes, m->block_bytes);
  c->checked = tc_calloc((size_t)c->first_block[m->n_pieces] / 8 + 1, 1);
  return 0;
}

void tc_ckpt_close(struct tc_ckpt *c)
{
  if (!c) return;
  for (int i = 0; i < TC_OPEN_FILES; i++)
    if (c->open[i].file >= 0) close(c->open[i].fd);
  tc_manifest_free(c->m);
  TC_FREE(c->first_block, c->checked, c->bounce, c->late, c->path, c);
}

const struct tc_ckpt_meta *tc_ckpt_meta(const struct tc_ckpt *c) { return &c->m->meta; }
const char *tc_ckpt_path(const struct tc_ckpt *c) { return c->path; }
bool tc_ckpt_is_same(const struct tc_ckpt *a, const struct tc_ckpt *b)
{ return a->folder.dev == b->folder.dev && a->folder.ino == b->folder.ino; }
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

static int open_once_more(const char *path, int64_t size, struct tc_err *err)
{
  struct stat st;
  int fd = tc_open_stat(path, &st), rc = 0;
  if (fd < 0 && errno == ENOENT)
    rc = tc_fail(err, TC_EINCOMPLETE, "%s: is missing: the checkpoint is incomplete", path);
  else if (fd < 0)
    rc = tc_fail(err, TC_EUSER, "%s: can't be read: %s", path, strerror(errno));
  else if (!S_ISREG(st.st_mode))
    rc = tc_fail(err, TC_ECHECKSUM, "%s: not a file", path);
  else if (st.st_size != size)
    rc = tc_fail(err, st.st_size < size ? TC_EINCOMPLETE : TC_ECHECKSUM,
                 "%s: has %lld bytes instead of %lld", path, (long long)st.st_size,
                 (long long)size);
  if (rc < 0 && fd >= 0) close(fd);
  return rc < 0 ? rc : fd;
}

static int open_file(const struct tc_ckpt *c, const char *name, int64_t size, struct tc_err *err)
{
  char *path = tc_sprintf("%s/%s", c->path, name);
  int rc;
  tc_at_file("reading", path);
  do rc = open_once_more(path, size, err);
  while (rc == TC_EINCOMPLETE && tc_ckpt_is_young(&c->folder) && tc_ckpt_fate(&c->folder, c->path) == TC_CKPT_SAME &&
         tc_late(c->late, path));
  free(path);
  return rc;
}

int tc_ckpt_open_file(const struct tc_ckpt *c, int f, struct tc_err *err)
{
  return open_file(c, c->m->file[f].name, c->m->file[f].size, err);
}

int tc_ckpt_open_attached(const struct tc_ckpt *c, int i, struct tc_err *err)
{
  return open_file(c, c->m->meta.attached[i].name, c->m->meta.attached[i].bytes, err);
}

int tc_ckpt_attached(const struct tc_ckpt *c, const char *name, char **data, int64_t *bytes, struct tc_err *err)
{
  const struct tc_ckpt_attached *a = c->m->meta.attached;
  int i = 0;
  *data = NULL;
  *bytes = 0;
  while (i < TC_ATTACHED && !(a[i].name && strcmp(a[i].name, name) == 0)) i++;
  if (i == TC_ATTACHED) return 0;
  a += i;
  const int fd = tc_ckpt_open_attached(c, i, err);
  if (fd < 0) return fd;
  char *text = tc_calloc((size_t)a->bytes + 1, 1);
  int rc = 0;
  if (!tc_pread_all(fd, text, a->bytes, 0)) {
    const int why = errno;
    rc = tc_fail(err, why ? TC_EUSER : TC_EINCOMPLETE, "%s/%s: can't be read: %s", c->path, name,
                 why ? strerror(why) : "it ends too early");
  }
  if (rc == 0 && tc_crc32c(0, text, (size_t)a->bytes) != a->crc32c)
    rc = tc_fail(err, TC_ECHECKSUM, "%s/%s: wrong checksum: it is damaged, or another file", c->path, name);
  close(fd);
  *data = rc == 0 ? text : NULL;
  *bytes = rc == 0 ? a->bytes : 0;
  if (rc < 0) free(text);
  return rc;
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

/* Where the span's bytes go if they are one run in the box too, else NULL. */
static char *run_of(const struct want *w, const struct tc_piece *p)
{
  int64_t at = 0;
  bool one = true;                /* so far at most one index of each dimension */
  for (int d = 0; d < w->rank; d++) {
    int64_t a = TC_MAX(p->start[d], w->start[d]);
    int64_t n = TC_MIN(p->start[d] + p->count[d], w->start[d] + w->count[d]) - a;
    if (!one && (n != p->count[d] || n != w->count[d])) return NULL;
    one = one && n == 1;
    at = at * w->count[d] + a - w->start[d];
  }
  return w->dst + at * w->elem_bytes;
}

static int block_fail(struct tc_ckpt *c, const struct tc_piece *p, int64_t begin, int64_t end,
                      struct tc_err *err)
{
  c->damaged = true;
  return tc_fail(err, TC_ECHECKSUM, "%s/%s: tensor %s: wrong checksum of dataset %s, bytes %lld "
                 "to %lld: the data is damaged", c->path, c->m->file[p->file].name,
                 c->m->tensor[p->tensor].name, p->dataset, (long long)begin, (long long)end - 1);
}

static int read_fail(struct tc_ckpt *c, const struct tc_piece *p, struct tc_err *err)
{
  int why = errno;
  if (why) c->unread = true;
  else c->damaged = true;
  return tc_fail(err, why ? TC_EUSER : TC_EINCOMPLETE, "%s/%s: tensor %s: can't be read: %s",
                 c->path, c->m->file[p->file].name, c->m->tensor[p->tensor].name,
                 why ? strerror(why) : "the file ends too early");
}

/* A descriptor of file f, kept open while its slot isn't needed by another. */
static int file_of(struct tc_ckpt *c, int f, struct tc_err *err)
{
  int slot = f % TC_OPEN_FILES;
  if (c->open[slot].file == f) return c->open[slot].fd;
  if (c->open[slot].file >= 0) close(c->open[slot].fd);
  c->open[slot].file = -1;
  int fd = tc_ckpt_open_file(c, f, err);
  if (fd == TC_EINCOMPLETE || fd == TC_ECHECKSUM) c->damaged = true;
  else if (fd < 0) c->unread = true;
  if (fd < 0) return fd;
  c->open[slot].file = f;
  return c->open[slot].fd = fd;
}

int tc_ckpt_hold(struct tc_ckpt *c, struct tc_err *err)
{
  for (int f = 0; f < c->m->n_files && f < TC_OPEN_FILES; f++) {
    const int fd = file_of(c, f, err);
    if (fd < 0) return fd;
  }
  return 0;
}

/* A piece being read: bytes [lo, hi) of it are wanted. */
struct flow {
  int fd;
  const struct tc_piece *p;
  const struct want *w;           /* NULL: only checked */
  int64_t lo, hi;
  char *run;                      /* where byte lo goes, and what follows it; NULL: box by box */
};

/* Block b of piece k: what of it is wanted, all of it if it wasn't checked yet. */
static int read_block(struct tc_ckpt *c, int k, int64_t b, const struct flow *f,
                      struct tc_err *err)
{
  const struct tc_piece *p = f->p;
  int64_t begin = b * c->m->block_bytes;
  int64_t end = begin + TC_MIN(c->m->block_bytes, p->bytes - begin), n;
  int64_t bit = c->first_block[k] + b;
  bool check = !(c->checked[bit / 8] >> (bit % 8) & 1);
  uint32_t crc = 0;
  int64_t at = f->lo, stop = f->hi;
  tc_block_read(b, c->m->block_bytes, p->bytes, !check, &at, &stop);
  for (; at < stop; at += n) {
    int64_t from = TC_MAX(at, f->lo), to;
    n = TC_MIN(stop - at, TC_CHUNK_BYTES);
    to = TC_MIN(at + n, f->hi);
    if (!tc_pread_all(f->fd, c->bounce, n, p->offset + at)) return read_fail(c, p, err);
    if (check) crc = tc_crc32c(crc, c->bounce, (size_t)n);
    if (!f->w || from >= to) continue;
    if (f->run) tc_copy_out(f->run + (from - f->lo), c->bounce + (from - at), (size_t)(to - from));
    else copy_runs(f->w, p, at / f->w->elem_bytes, n / f->w->elem_bytes, c->bounce);
  }
  if (check && crc != p->crc32c[b]) return block_fail(c, p, begin, end, err);
  c->checked[bit / 8] |= (uint8_t)(1u << (bit % 8));
  return 0;
}

static int read_blocks(struct tc_ckpt *c, int k, struct flow *f, struct tc_err *err)
{
  f->p = &c->m->piece[k];
  f->fd = file_of(c, f->p->file, err);
  if (f->fd < 0) return f->fd;
  if (!c->bounce) c->bounce = tc_malloc(TC_CHUNK_BYTES);
  int64_t size = c->m->block_bytes;
  for (int64_t b = f->lo / size; b <= (f->hi - 1) / size; b++)
    TC_TRY(read_block(c, k, b, f, err));
  return 0;
}

int tc_ckpt_check_piece(struct tc_ckpt *c, int k, struct tc_err *err)
{
  struct flow f = { .lo = 0, .hi = c->m->piece[k].bytes };
  return read_blocks(c, k, &f, err);
}

static int read_piece(struct tc_ckpt *c, int k, const struct want *w, struct tc_err *err)
{
  struct flow f = { .w = w };
  const struct tc_piece *p = &c->m->piece[k];
  if (!tc_box_span(w->rank, p->start, p->count, w->start, w->count, &f.lo, &f.hi)) return 0;
  f.lo *= w->elem_bytes;
  f.hi *= w->elem_bytes;
  f.run = run_of(w, p);
  return read_blocks(c, k, &f, err);
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
