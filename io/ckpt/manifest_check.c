/* manifest_check.c - what holds for every manifest that is written or was read.
 *
 * Costs n log n of the pieces whatever a file states: a made-up one can't keep a reader busy. */
#include "io/ckpt/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "io/ckpt/impl.h"
#include "io/folder.h"

static bool file_name_good(const char *s)
{
  size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
  return n > 0 && n <= 100 && !s[n] && s[0] != '.' && strcmp(s, TC_MANIFEST) != 0;
}

/* Printable, and a path below an HDF5 group: no empty component, none of dots alone. */
static bool tensor_name_good(const char *s)
{
  size_t n = strlen(s);
  if (n < 1 || n > 200) return false;
  for (size_t i = 0; i < n; i++)
    if (s[i] <= ' ' || s[i] > '~') return false;
  for (const char *at = s;; at++) {
    size_t len = strcspn(at, "/");
    if (strspn(at, ".") >= len) return false;
    at += len;
    if (!*at) return true;
  }
}

static int cmp_piece(const void *a, const void *b)
{
  const struct tc_piece *p = a, *q = b;
  if (p->tensor != q->tensor) return p->tensor < q->tensor ? -1 : 1;
  for (int d = 0; d < TC_DIMS; d++)
    if (p->start[d] != q->start[d]) return p->start[d] < q->start[d] ? -1 : 1;
  return 0;
}

/* A name that occurs twice among `n`; NULL if none does. */
static const char *twice(const char **names, int n)
{
  qsort(names, (size_t)n, sizeof *names, tc_order_text);
  for (int i = 1; i < n; i++)
    if (strcmp(names[i - 1], names[i]) == 0) return names[i];
  return NULL;
}

static int check_tensors(const struct tc_manifest *m, const char *where, struct tc_err *err)
{
  const char **names = tc_malloc((size_t)(m->n_tensors + m->n_files + TC_ATTACHED) * sizeof *names);
  const char *bad = NULL, *why = NULL;
  for (int i = 0; i < m->n_tensors && !bad; i++) {
    const struct tc_ckpt_tensor *t = &m->tensor[i];
    names[i] = t->name;
    if (!tensor_name_good(t->name)) bad = t->name, why = "not a good name";
    else if (t->dtype < 0 || t->dtype >= TC_DTYPES) bad = t->name, why = "unknown type";
    else if (t->rank < 0 || t->rank > TC_DIMS) bad = t->name, why = "too many dimensions";
    int64_t left = TC_MOST_BYTES / 8;
    for (int d = 0; !bad && d < t->rank; d++) {
      if (t->dim[d] < 1 || t->dim[d] > left) bad = t->name, why = "impossible shape";
      else left /= t->dim[d];
    }
  }
  if (!bad && (bad = twice(names, m->n_tensors))) why = "there are two of this name";
  if (bad) tc_fail(err, TC_EUSER, "%s: tensor %.100s: %s", where, bad, why);
  for (int i = 0; i < m->n_files && !bad; i++) {
    names[i] = m->file[i].name;
    if (!file_name_good(names[i])) bad = names[i], why = "not a good file name";
    else if (m->file[i].size < 0 || m->file[i].size > TC_MOST_BYTES)
      bad = names[i], why = "impossible size";
    if (bad) tc_fail(err, TC_EUSER, "%s: file %.100s: %s", where, bad, why);
  }
  int n = m->n_files;
  for (int i = 0; i < TC_ATTACHED && !bad; i++) {
    const struct tc_ckpt_attached *a = &m->meta.attached[i];
    if (!a->name) continue;
    if (!file_name_good(a->name)) bad = a->name, why = "not a good file name";
    else if (a->bytes < 0 || a->bytes > TC_MOST_ATTACHED) bad = a->name, why = "impossible size";
    if (bad) tc_fail(err, TC_EUSER, "%s: attached file %.100s: %s", where, bad, why);
    names[n++] = a->name;
  }
  if (!bad && (bad = twice(names, n)))
    tc_fail(err, TC_EUSER, "%s: file %.100s: listed twice", where, bad);
  free(names);
  return bad ? TC_EUSER : 0;
}

/* Also clears what is beyond the dimensions of the tensor: pieces are compared with all of them. */
static int check_piece(const struct tc_manifest *m, struct tc_piece *p, const char *where,
                       struct tc_err *err)
{
  if (p->tensor < 0 || p->tensor >= m->n_tensors || p->file < 0 || p->file >= m->n_files)
    return tc_fail(err, TC_EUSER, "%s: a piece of an unknown tensor or file", where);
  const struct tc_ckpt_tensor *t = &m->tensor[p->tensor];
  const struct tc_ckpt_file *f = &m->file[p->file];
  for (int d = 0; d < t->rank; d++)
    if (p->count[d] < 1 || p->count[d] > t->dim[d] || p->start[d] < 0 ||
        p->start[d] > t->dim[d] - p->count[d])
      return tc_fail(err, TC_EUSER, "%s: tensor %s: a piece in %s is outside of its shape",
                     where, t->name, f->name);
  int64_t bytes = tc_box_bytes(t->dtype, t->rank, p->count);
  if (p->bytes != bytes || p->offset < 0 || bytes > f->size || p->offset > f->size - bytes)
    return tc_fail(err, TC_EUSER, "%s: tensor %s: a piece is outside of its file %s", where,
                   t->name, f->name);
  for (int d = t->rank; d < TC_DIMS; d++) p->start[d] = p->count[d] = 0;
  if (strlen(p->dataset) > TC_MOST_NAME || !tc_share_is_of(p->dataset, t->name))
    return tc_fail(err, TC_EUSER, "%s: tensor %s: not a good dataset name", where, t->name);
  return 0;
}

/* A corner of a box: of the 2^d, the one at the end of the dimensions in `ends`. */
struct corner { const struct tc_piece *box; uint8_t ends; int8_t sign; };

static int64_t corner_at(const struct corner *c, int d)
{
  return c->box->start[d] + (c->ends >> d & 1 ? c->box->count[d] : 0);
}

static int cmp_corner(const void *a, const void *b)
{
  for (int d = 0; d < TC_DIMS; d++) {
    int64_t x = corner_at(a, d), y = corner_at(b, d);
    if (x != y) return x < y ? -1 : 1;
  }
  return 0;
}

/* Appends the corners of a box that differ along the dimensions in `cut`. */
static size_t add_corners(struct corner *c, size_t n, const struct tc_piece *box, uint8_t cut,
                          int sign)
{
  for (int ends = 0; ends <= cut; ends++) {
    if (ends & ~cut) continue;
    int s = sign;
    for (int d = 0; d < TC_DIMS; d++)
      if (ends >> d & 1) s = -s;
    c[n++] = (struct corner){ .box = box, .ends = (uint8_t)ends, .sign = (int8_t)s };
  }
  return n;
}

/* The sentence about the element at `c`, which no piece has or several have. */
static int bad_cover(const struct tc_manifest *m, int tensor, const struct corner *c,
                     const char *where, struct tc_err *err)
{
  const struct tc_ckpt_tensor *t = &m->tensor[tensor];
  const struct tc_piece *first = NULL;
  char at[TC_DIMS * 22 + 1] = "";
  for (int d = 0; d < t->rank; d++)
    tc_text_add(at, sizeof at, "%s%lld", d ? ", " : "", (long long)corner_at(c, d));
  for (int k = m->first_piece[tensor]; k < m->first_piece[tensor + 1]; k++) {
    const struct tc_piece *p = &m->piece[k];
    bool has = true;
    for (int d = 0; d < t->rank; d++)
      has &= corner_at(c, d) >= p->start[d] && corner_at(c, d) - p->start[d] < p->count[d];
    if (has && first)
      return tc_fail(err, TC_EUSER, "%s: tensor %s: two slices overlap at [%s], in %s and %s",
                     where, t->name, at, m->file[first->file].name, m->file[p->file].name);
    if (has) first = p;
  }
  return tc_fail(err, TC_EUSER, "%s: tensor %s: no slice holds its element [%s]", where, t->name,
                 at);
}

/* The pieces of a tensor cover it exactly once.
 *
 * Let f(x) be how many pieces have element x, less 1 inside the tensor: it must be 0 everywhere.
 * The differences of f along each dimension in turn are not 0 at corners of boxes alone: +1 or -1
 * a corner, by the number of dimensions at whose end it is. f is the sum of its differences over
 * all places that are nowhere beyond x: so it is 0 if they cancel at every corner, and where the
 * first in order does not cancel, f is not 0. Sorting takes n log n, however the boxes lie. A
 * dimension that all pieces have whole doesn't matter. */
static int check_cover(const struct tc_manifest *m, int tensor, const char *where,
                       struct tc_err *err)
{
  const struct tc_ckpt_tensor *t = &m->tensor[tensor];
  int first = m->first_piece[tensor], end = m->first_piece[tensor + 1], rc = 0;
  struct tc_piece whole = { .tensor = tensor };
  uint8_t cut = 0;
  size_t corners = 1;
  for (int d = 0; d < t->rank; d++) {
    bool is_cut = false;
    whole.count[d] = t->dim[d];
    for (int k = first; k < end && !is_cut; k++) is_cut = m->piece[k].count[d] != t->dim[d];
    cut |= (uint8_t)(is_cut << d);
    corners <<= is_cut;
  }
  struct corner *c = tc_malloc(((size_t)(end - first) + 1) * corners * sizeof *c);
  size_t n = add_corners(c, 0, &whole, cut, -1);
  for (int k = first; k < end; k++) n = add_corners(c, n, &m->piece[k], cut, 1);
  qsort(c, n, sizeof *c, cmp_corner);
  for (size_t i = 0, next; i < n && rc == 0; i = next) {
    int64_t sum = 0;
    for (next = i; next < n && cmp_corner(&c[i], &c[next]) == 0; next++) sum += c[next].sign;
    if (sum != 0) rc = bad_cover(m, tensor, &c[i], where, err);
  }
  free(c);
  return rc;
}

/* No two pieces share bytes of a file. */
static int check_places(const struct tc_manifest *m, const char *where, struct tc_err *err)
{
  const struct tc_piece **by = tc_malloc((size_t)(m->n_pieces + 1) * sizeof *by);
  int rc = 0;
  for (int i = 0; i < m->n_pieces; i++) by[i] = &m->piece[i];
  qsort(by, (size_t)m->n_pieces, sizeof *by, tc_piece_by_place);
  for (int i = 1; i < m->n_pieces && rc == 0; i++)
    if (by[i]->file == by[i - 1]->file && by[i]->offset < by[i - 1]->offset + by[i - 1]->bytes)
      rc = tc_fail(err, TC_EUSER, "%s: file %s: two pieces share bytes", where,
                   m->file[by[i]->file].name);
  free(by);
  return rc;
}

int tc_manifest_check(struct tc_manifest *m, const char *where, struct tc_err *err)
{
  if (m->meta.step < 0)
    return tc_fail(err, TC_EUSER, "%s: step %lld is impossible", where,
                   (long long)m->meta.step);
  TC_TRY(check_tensors(m, where, err));
  for (int i = 0; i < m->n_pieces; i++) TC_TRY(check_piece(m, &m->piece[i], where, err));
  if (m->n_pieces > 0) qsort(m->piece, (size_t)m->n_pieces, sizeof *m->piece, cmp_piece);
  m->first_piece = tc_pool_alloc(m->pool, (size_t)(m->n_tensors + 1) * sizeof(int32_t));
  for (int i = 0, k = 0; i <= m->n_tensors; i++) {
    while (k < m->n_pieces && m->piece[k].tensor < i) k++;
    m->first_piece[i] = k;
  }
  for (int i = 0; i < m->n_tensors; i++) TC_TRY(check_cover(m, i, where, err));
  return check_places(m, where, err);
}
