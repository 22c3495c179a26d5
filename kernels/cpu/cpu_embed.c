/* cpu_embed.c - token and position embeddings. Rows of C elements, in tiles of TC_BLOCK. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* y elements [at, at+n) = x elements [from, from+n), in any of the types. */
static void copy_elems(const struct tc_view *y, int64_t at, const struct tc_view *x, int64_t from,
                       int64_t n)
{
  size_t size = tc_dtype_bytes(y->dtype);
  float buf[TC_BLOCK], out[TC_BLOCK];
  if (y->dtype == x->dtype) {
    memcpy((char *)y->data + (size_t)at * size, (const char *)x->data + (size_t)from * size,
           (size_t)n * size);
    return;
  }
  for (int64_t j = 0; j < n; j += TC_BLOCK) {
    int64_t w = TC_MIN(TC_BLOCK, n - j);
    float *py = tc_cpu_out(y, at + j, w, out, false);
    tc_cpu_accum(py, tc_cpu_in(x, from + j, w, buf), w, false);
    tc_cpu_put(y, at + j, w, py);
  }
}

int tc_cpu_embed(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *w = &c->in[1], *y = &c->out[0];
  const int64_t V = w->dim[0], C = w->dim[1], N = c->in[0].elems;
  const int32_t *token = tc_cpu_i32(&c->in[0]);
  const size_t size = tc_dtype_bytes(y->dtype);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    int64_t v = token[n] - w->off[0];
    if (v >= 0 && v < V) copy_elems(y, n * C, w, v * C, C);
    else memset((char *)y->data + (size_t)(n * C) * size, 0, (size_t)C * size);
  }
  return 0;
}

/* For each row of the block a list of the tokens (here and below: or positions) that refer to it, in order: first[v]
 * and next[n], -1 at the end; head[n]: n is the first of its row. */
struct chains { int32_t *next; uint8_t *head; };

static struct chains make_chains(const struct tc_view *w, const int32_t *token, int64_t N, int32_t *last)
{
  const int64_t V = w->dim[0];
  struct chains x = { .next = last + V, .head = (uint8_t *)(last + V + N) };
  memset(last, 0xff, (size_t)V * sizeof *last);
  for (int64_t n = 0; n < N; n++) {
    int64_t v = token[n] - w->off[0];
    x.next[n] = -1;
    x.head[n] = 0;
    if (v < 0 || v >= V) continue;
    if (last[v] < 0) x.head[n] = 1;
    else x.next[last[v]] = (int32_t)n;
    last[v] = (int32_t)n;
  }
  return x;
}

static int64_t chains_bytes(const struct tc_view *w, int64_t N) { return w->dim[0] * 4 + N * 5; }

int64_t tc_cpu_embed_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  return chains_bytes(&c->out[0], c->in[0].elems);
}

/* w (+)= for each row the sum of the rows of dy whose token refers to it. A row's sum is one task: it adds in the
 * order of the tokens, and rounds once. Rows are also divided by columns, since some tokens are frequent. */
static void sum_rows(struct tc_device *d, const struct tc_view *w, const struct tc_view *dy, const int32_t *token,
                     int64_t N, int32_t *scratch, bool acc)
{
  enum { WIDTH = 256 };
  const int64_t C = w->dim[1], cuts = tc_ceil_div(C, WIDTH);
  const struct chains chain = make_chains(w, token, N, scratch);
  const int64_t bytes = w->elems * (int64_t)tc_dtype_bytes(w->dtype), piece = 1 << 16;
  if (!acc) {
#pragma omp parallel for num_threads(tc_cpu_threads(d, w->elems)) schedule(static)
    for (int64_t i = 0; i < bytes; i += piece)
      memset((char *)w->data + i, 0, (size_t)TC_MIN(piece, bytes - i));
  }
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(dynamic, 16)
  for (int64_t t = 0; t < N * cuts; t++) {
    float sum[WIDTH], buf[WIDTH];
    int64_t first = t / cuts, j = t % cuts * WIDTH, width = TC_MIN((int64_t)WIDTH, C - j);
    if (!chain.head[first]) continue;
    for (int64_t n = first; n >= 0; n = chain.next[n])
      tc_cpu_accum(sum, tc_cpu_in(dy, n * C + j, width, buf), width, n != first);
    int64_t at = (token[first] - w->off[0]) * C + j;
    float *y = tc_cpu_out(w, at, width, buf, true);
    tc_cpu_accum(y, sum, width, true);
    tc_cpu_put(w, at, width, y);
  }
}

int tc_cpu_embed_bwd(struct tc_device *d, const struct tc_call *c)
{
  sum_rows(d, &c->out[0], &c->in[1], tc_cpu_i32(&c->in[0]), c->in[0].elems, c->scratch, c->acc & 1);
  return 0;
}

int tc_cpu_pos(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
  const int64_t T = w->dim[0], C = w->dim[1], N = x->dim[0];
  const int32_t *starts = tc_call_starts(c, 2);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    float a[TC_BLOCK], b[TC_BLOCK], out[TC_BLOCK];
    int64_t t = tc_call_row(c, x, n) % T - (starts ? starts[n] : 0);
    for (int64_t j = 0; j < C; j += TC_BLOCK) {
      int64_t width = TC_MIN(TC_BLOCK, C - j);
      float *py = tc_cpu_out(y, n * C + j, width, out, false);
      tc_cpu_plus(py, tc_cpu_in(x, n * C + j, width, a), tc_cpu_in(w, t * C + j, width, b), width);
      tc_cpu_put(y, n * C + j, width, py);
    }
  }
  return 0;
}

int64_t tc_cpu_pos_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  const int64_t N = c->in[0].dim[0];
  return tc_call_any_order(c, 1) ? N * 4 + chains_bytes(&c->out[0], N) : 0;
}

/* With documents, and where tokens are not in their natural order, many tokens, or none, are at a position: each is a row, as
 * of a vocabulary. starts: NULL, or where documents begin. */
static int any_pos_bwd(struct tc_device *d, const struct tc_call *c, const int32_t *starts)
{
  const struct tc_view *dy = &c->in[0];
  const int64_t T = c->out[0].dim[0], N = dy->dim[0];
  int32_t *position = c->scratch;
  for (int64_t n = 0; n < N; n++) position[n] = (int32_t)(tc_call_row(c, dy, n) % T) - (starts ? starts[n] : 0);
  sum_rows(d, &c->out[0], dy, position, N, position + N, c->acc & 1);
  return 0;
}

int tc_cpu_pos_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *w = &c->out[0];
  const int64_t T = w->dim[0], C = w->dim[1], N = dy->dim[0];
  const bool acc = c->acc & 1;
  if (tc_call_any_order(c, 1)) return any_pos_bwd(d, c, tc_call_starts(c, 1));
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    float sum[TC_BLOCK], buf[TC_BLOCK];
    int64_t first = ((t - dy->off[0]) % T + T) % T;
    for (int64_t j = 0; j < C; j += TC_BLOCK) {
      int64_t width = TC_MIN(TC_BLOCK, C - j);
      memset(sum, 0, sizeof sum);
      for (int64_t n = first; n < N; n += T)
        tc_cpu_accum(sum, tc_cpu_in(dy, n * C + j, width, buf), width, true);
      float *y = tc_cpu_out(w, t * C + j, width, buf, acc);
      tc_cpu_accum(y, sum, width, acc);
      tc_cpu_put(w, t * C + j, width, y);
    }
  }
  return 0;
}
