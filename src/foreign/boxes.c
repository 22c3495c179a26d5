/* boxes.c - the weights of another program's model: whether the file has them all, and boxes of them.
 *
 * Their tensor is a matrix as the file has it, or a vector, which is a matrix of one column. Each of its rows and
 * columns is a row and a column of ours, which may be within the box or not. So a box is read as runs of elements that
 * follow each other in the file. */
#include "src/foreign/impl.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 1 << 18 };         /* elements read at a time */
#define HEAD "lm_head.weight"     /* in Hugging Face's files */

/* ---- what the file has ------------------------------------------------------------- */

int tc_foreign_index(const struct tc_foreign *x, const char *name)
{
  char full[120];
  int i = tc_st_files_find(x->st, name);
  snprintf(full, sizeof full, "transformer.%s", name);
  return i >= 0 || x->form == TC_FORM_OURS ? i : tc_st_files_find(x->st, full);
}

/* The position of a tensor in the file. */
struct place { int index, dtype; int64_t from; };

static bool has_shape(const struct tc_foreign *x, const struct tc_foreign_part *t, const struct tc_st_tensor *s)
{
  int64_t dim[2];
  tc_foreign_hf_shape(t, dim);
  const bool ours = x->form == TC_FORM_OURS;
  const int64_t *want = ours ? t->our_dim : dim;
  bool same = s->rank == (ours ? t->our_rank : t->rank);
  for (int d = 0; d < s->rank && same; d++) same = s->dim[d] == want[d];
  return same;
}

static int find_place(const struct tc_foreign *x, const struct tc_foreign_part *t, struct place *p, struct tc_err *err)
{
  if (x->form == TC_FORM_LLMC) {
    *p = (struct place){ .dtype = tc_llmc_dtype(x->llmc),
                         .from = tc_llmc_place(tc_llmc_sizes(x->llmc), t->llmc, t->layer) };
    return 0;
  }
  const char *name = x->form == TC_FORM_HF ? t->hf : t->ours;
  p->index = tc_foreign_index(x, name);
  if (p->index < 0) return tc_fail(err, TC_EUSER, "%s: tensor %s is missing", x->file, name);
  const struct tc_st_tensor *s = tc_st_files_at(x->st, p->index);
  if (!has_shape(x, t, s))
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another shape than a model of hidden size "
                   "%lld needs", x->file, name, (long long)x->model.hidden);
  p->dtype = s->dtype;
  if (p->dtype == TC_F32 || p->dtype == TC_BF16 || p->dtype == TC_ST_F16) return 0;
  return tc_fail(err, TC_EUSER, "%s: tensor %s is not of type F32, BF16 or F16", x->file, name);
}

/* The head that a tied model's file may have beside the embedding, which is the first tensor of every model. False: it
 * has none. */
static bool tied_head(const struct tc_foreign *x, struct tc_foreign_part *head)
{
  if (x->form != TC_FORM_HF || x->model.tied != TC_ON || tc_foreign_index(x, HEAD) < 0) return false;
  *head = x->part[0];
  snprintf(head->hf, sizeof head->hf, HEAD);
  return true;
}

/* Whether tensor i is optional: optimizer state or, in Hugging Face's files, the tied head, and masks and frequencies,
 * which follow from the sizes. */
static bool is_optional(const struct tc_foreign *x, int i)
{
  const char *const gpt2[] = { ".attn.bias", ".attn.masked_bias" }, *const rotary[] = { ".rotary_emb.inv_freq" };
  const bool is_rotary = !tc_hf_is_gpt2(&x->model);
  const char *const *ends = is_rotary ? rotary : gpt2, *name = tc_st_files_at(x->st, i)->name;
  if (x->form == TC_FORM_OURS) return strncmp(name, "optim.", 6) == 0;
  if (i == tc_foreign_index(x, HEAD)) return true;
  size_t len = strlen(name);
  for (int k = 0; k < (is_rotary ? 1 : 2); k++)
    if (len >= strlen(ends[k]) && strcmp(name + len - strlen(ends[k]), ends[k]) == 0) return true;
  return false;
}

/* Checks that all of the model's tensors are in the file with their shapes, and that each tensor of the file is
 * used or known to be unnecessary: nothing is ignored silently. */
static int check_tensors(const struct tc_foreign *x, struct tc_err *err)
{
  bool *used = tc_calloc(x->st ? (size_t)tc_st_files_n(x->st) + 1 : 1, sizeof *used);
  struct tc_foreign_part head;
  struct place p = {0};
  int rc = 0;
  for (int i = 0; i < x->n_parts && rc == 0; i++) {
    rc = find_place(x, &x->part[i], &p, err);
    if (rc == 0) used[x->st ? p.index : 0] = true;
  }
  for (int i = 0; x->st && i < tc_st_files_n(x->st) && rc == 0; i++)
    if (!used[i] && !is_optional(x, i))
      rc = tc_fail(err, TC_EUSER, "%s: tensor %.100s does not belong to %s: another model", x->file,
                   tc_st_files_at(x->st, i)->name,
                   tc_hf_is_gpt2(&x->model) ? "GPT-2" : tc_hf_architecture(&x->model, err));
  if (rc == 0 && tied_head(x, &head)) rc = find_place(x, &head, &p, err);
  free(used);
  return rc;
}

int tc_foreign_list(struct tc_foreign *x, struct tc_err *err)
{
  if (x->st && x->model.layers > tc_st_files_n(x->st))
    return tc_fail(err, TC_EUSER, "%s has %d tensors, fewer than a model of %lld layers", x->file,
                   tc_st_files_n(x->st), (long long)x->model.layers);
  x->n_parts = tc_foreign_parts(&x->part, &x->model, x->form, x->interleaved);
  tc_foreign_tensors(x);
  return check_tensors(x, err);
}

int tc_foreign_check_part(const struct tc_foreign *x, const struct tc_foreign_part *t, struct tc_err *err)
{
  struct place p = { 0 };
  return find_place(x, t, &p, err);
}

void tc_foreign_tensors(struct tc_foreign *x)
{
  x->tensor = tc_calloc((size_t)x->n_parts + 1, sizeof *x->tensor);
  x->first = tc_calloc((size_t)x->n_parts + 1, sizeof *x->first);
  for (int i = 0; i < x->n_parts; i++) {
    const struct tc_foreign_part *t = &x->part[i];
    if (i > 0 && strcmp(t->ours, t[-1].ours) == 0) continue;
    struct tc_ckpt_tensor *to = &x->tensor[x->n];
    *to = (struct tc_ckpt_tensor){ .name = t->ours, .dtype = TC_F32, .rank = t->our_rank };
    memcpy(to->dim, t->our_dim, sizeof to->dim);
    x->first[x->n++] = i;
  }
  x->first[x->n] = x->n_parts;
}

/* ---- boxes ------------------------------------------------------------------------- */

/* A tensor of theirs as the matrix that the file has, and a box of ours: element (row, col) is in the box at
 * row_at[row] + col_at[col], unless one of these is -1. */
struct window {
  const struct tc_foreign *x;
  struct place place;
  int64_t rows, cols, *row_at, *col_at;   /* owned */
  float *box;
  bool compare, differs;          /* compare: values are compared with the box instead of stored */
  void *buf;                      /* BATCH elements of the file; owned */
};

static float value_of(const void *buf, int dtype, int64_t i)
{
  if (dtype == TC_F32) return ((const float *)buf)[i];
  uint16_t h = ((const uint16_t *)buf)[i];
  return dtype == TC_BF16 ? tc_bf16_to_f32(h) : tc_half_to_f32(h);
}

static void take_values(struct window *w, int64_t first, int64_t n)
{
  int64_t row = first / w->cols, col = first % w->cols;
  for (int64_t i = 0; i < n; i++) {
    const float value = value_of(w->buf, w->place.dtype, i);
    float *to = &w->box[w->row_at[row] + w->col_at[col]];
    if (!w->compare) *to = value;
    else if (memcmp(to, &value, sizeof value) != 0) w->differs = true;
    if (++col < w->cols) continue;
    col = 0;
    row++;
  }
}

/* Elements [first, end) of the matrix, which are all in the box. */
static int read_span(struct window *w, int64_t first, int64_t end, struct tc_err *err)
{
  const struct tc_foreign *x = w->x;
  const int64_t size = w->place.dtype == TC_F32 ? 4 : 2;
  for (int64_t at = first; at < end; at += BATCH) {
    const int64_t n = TC_MIN(BATCH, end - at);
    TC_TRY(x->st ? tc_st_files_read(x->st, w->place.index, at * size, n * size, w->buf, err)
                 : tc_llmc_read(x->llmc, w->place.from + at, n, w->buf, err));
    take_values(w, at, n);
  }
  return 0;
}

/* The next run of indices in the box from *first on: *first is set; returns the end, *first if there is none. */
static int64_t next_run(const int64_t *at, int64_t *first, int64_t n)
{
  while (*first < n && at[*first] < 0) ++*first;
  int64_t end = *first;
  while (end < n && at[end] >= 0) end++;
  return end;
}

static int read_row(struct window *w, int64_t row, struct tc_err *err)
{
  for (int64_t first = 0, end; (end = next_run(w->col_at, &first, w->cols)) > first; first = end)
    TC_TRY(read_span(w, row * w->cols + first, row * w->cols + end, err));
  return 0;
}

static int read_rows(struct window *w, struct tc_err *err)
{
  int64_t zero = 0;
  const bool whole = next_run(w->col_at, &zero, w->cols) == w->cols && zero == 0;
  for (int64_t first = 0, end; (end = next_run(w->row_at, &first, w->rows)) > first; first = end) {
    if (whole) TC_TRY(read_span(w, first * w->cols, end * w->cols, err));
    for (int64_t row = first; row < end && !whole; row++) TC_TRY(read_row(w, row, err));
  }
  return 0;
}

/* The place in a box of index i of the dimensions dim[rank], the last one fastest; -1: outside. */
static int64_t place_in(int rank, const int64_t *dim, const int64_t *start, const int64_t *count, int64_t i)
{
  int64_t at = 0, step = 1;
  for (int d = rank - 1; d >= 0; d--) {
    const int64_t k = i % dim[d] - start[d];
    if (k < 0 || k >= count[d]) return -1;
    at += k * step;
    step *= count[d];
    i /= dim[d];
  }
  return at;
}

static void set_places(struct window *w, const struct tc_foreign_part *t, const int64_t *start, const int64_t *count)
{
  const int r = t->row_dims, c = t->our_rank - r;
  const int64_t row_elems = tc_box_elems(c, count + r);
  int64_t *row_at = tc_malloc((size_t)t->rows * sizeof *row_at), *col_at = tc_malloc((size_t)t->cols * sizeof *col_at);
  for (int64_t i = 0; i < t->rows; i++) {
    const int64_t at = place_in(r, t->our_dim, start, count, tc_foreign_row(t, w->x->form, i));
    row_at[i] = at < 0 ? at : at * row_elems;
  }
  for (int64_t i = 0; i < t->cols; i++) col_at[i] = place_in(c, t->our_dim + r, start + r, count + r, i);
  const bool turned = t->linear && w->x->form == TC_FORM_HF;
  w->rows = turned ? t->cols : t->rows;
  w->cols = turned ? t->rows : t->cols;
  w->row_at = turned ? col_at : row_at;
  w->col_at = turned ? row_at : col_at;
}

/* Reads what a tensor of theirs has of the box, or compares it: 1 if it differs. */
static int read_part(const struct tc_foreign *x, const struct tc_foreign_part *t, const int64_t *start,
                     const int64_t *count, float *box, bool compare, struct tc_err *err)
{
  struct window w = { .x = x, .box = box, .compare = compare };
  TC_TRY(find_place(x, t, &w.place, err));
  set_places(&w, t, start, count);
  w.buf = tc_malloc(BATCH * sizeof(float));
  const int rc = read_rows(&w, err);
  TC_FREE(w.row_at, w.col_at, w.buf);
  return rc < 0 ? rc : w.differs;
}

int tc_foreign_read(const struct tc_foreign *x, int i, const int64_t *start, const int64_t *count, float *dst,
                    struct tc_err *err)
{
  struct tc_foreign_part head;
  for (int k = x->first[i]; k < x->first[i + 1]; k++)
    TC_TRY(read_part(x, &x->part[k], start, count, dst, false, err));
  if (i > 0 || !tied_head(x, &head)) return 0;
  const int rc = read_part(x, &head, start, count, dst, true, err);
  if (rc <= 0) return rc;
  return tc_fail(err, TC_EUSER, "%s: tensor " HEAD " differs from %s, but the model's head is tied to its embedding%s",
                 x->file, x->part[0].hf, x->model.rope_theta > 0 ?
                 "; \"tie_word_embeddings\": false in config.json makes it a tensor of its own" : "");
}
