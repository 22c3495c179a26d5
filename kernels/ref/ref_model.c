/* ref_model.c - naive kernels of embedding, layer norm, products and attention.
 *
 * Attention recomputes a score whenever it needs one, which is slow but simple. */
#include "kernels/ref/ref.h"

#include <math.h>

int tc_ref_embed(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *w = &c->in[1];
  int64_t V = w->dim[0], C = w->dim[1];
  for (int64_t n = 0; n < c->in[0].elems; n++) {
    int64_t v = tc_ref_int(&c->in[0], n) - w->off[0];
    for (int64_t j = 0; j < C; j++)
      tc_ref_put(&c->out[0], n * C + j, v >= 0 && v < V ? tc_ref_get(w, v * C + j) : 0);
  }
  return 0;
}

int tc_ref_embed_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *w = &c->out[0];
  int64_t V = w->dim[0], C = w->dim[1];
  for (int64_t v = 0; v < V; v++) {
    for (int64_t j = 0; j < C; j++) {
      double sum = 0;
      for (int64_t n = 0; n < c->in[0].elems; n++)
        if (tc_ref_int(&c->in[0], n) - w->off[0] == v) sum += tc_ref_get(&c->in[1], n * C + j);
      tc_ref_out(c, 0, v * C + j, sum);
    }
  }
  return 0;
}

int tc_ref_pos(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *w = &c->in[1];
  const int32_t *starts = tc_call_starts(c, 2);
  int64_t T = w->dim[0], C = w->dim[1];
  for (int64_t n = 0; n < x->dim[0]; n++) {
    int64_t t = tc_ref_position(x, n, T, starts);
    for (int64_t j = 0; j < C; j++)
      tc_ref_put(&c->out[0], n * C + j, tc_ref_get(x, n * C + j) + tc_ref_get(w, t * C + j));
  }
  return 0;
}

int tc_ref_pos_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0];
  const int32_t *starts = tc_call_starts(c, 1);
  int64_t T = c->out[0].dim[0], C = c->out[0].dim[1];
  for (int64_t t = 0; t < T; t++) {
    for (int64_t j = 0; j < C; j++) {
      double sum = 0;
      for (int64_t n = 0; n < dy->dim[0]; n++)
        if (tc_ref_position(dy, n, T, starts) == t) sum += tc_ref_get(dy, n * C + j);
      tc_ref_out(c, 0, t * C + j, sum);
    }
  }
  return 0;
}

int tc_ref_layernorm(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  int64_t C = c->in[1].elems;
  for (int64_t n = 0; n < c->out[1].elems; n++) {
    double mean = 0, var = 0;
    for (int64_t j = 0; j < C; j++) mean += tc_ref_get(x, n * C + j);
    mean /= (double)C;
    for (int64_t j = 0; j < C; j++) {
      double e = tc_ref_get(x, n * C + j) - mean;
      var += e * e;
    }
    double rstd = 1 / sqrt(var / (double)C + c->f[0]);
    for (int64_t j = 0; j < C; j++)
      tc_ref_put(&c->out[0], n * C + j, (tc_ref_get(x, n * C + j) - mean) * rstd
                                        * tc_ref_get(&c->in[1], j) + tc_ref_get(&c->in[2], j));
    tc_ref_put(&c->out[1], n, mean);
    tc_ref_put(&c->out[2], n, rstd);
  }
  return 0;
}

int tc_ref_layernorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *g = &c->in[2];
  int64_t C = g->elems, N = c->in[3].elems;
  for (int64_t n = 0; n < N; n++) {
    double mean = tc_ref_get(&c->in[3], n), rstd = tc_ref_get(&c->in[4], n), s1 = 0, s2 = 0;
    for (int64_t j = 0; j < C; j++) {
      double e = tc_ref_get(dy, n * C + j) * tc_ref_get(g, j);
      s1 += e;
      s2 += e * (tc_ref_get(x, n * C + j) - mean) * rstd;
    }
    for (int64_t j = 0; j < C; j++) {
      double e = tc_ref_get(dy, n * C + j) * tc_ref_get(g, j);
      double xhat = (tc_ref_get(x, n * C + j) - mean) * rstd;
      tc_ref_out(c, 0, n * C + j, rstd * (e - s1 / (double)C - xhat * s2 / (double)C));
    }
  }
  for (int64_t j = 0; j < C; j++) {
    double dg = 0, db = 0;
    for (int64_t n = 0; n < N; n++) {
      double e = tc_ref_get(dy, n * C + j);
      dg += e * (tc_ref_get(x, n * C + j) - tc_ref_get(&c->in[3], n)) * tc_ref_get(&c->in[4], n);
      db += e;
    }
    tc_ref_out(c, 1, j, dg);
    tc_ref_out(c, 2, j, db);
  }
  return 0;
}

int tc_ref_matmul(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_gemm *g = &c->gemm;
  for (int64_t i = 0; i < g->m; i++) {
    for (int64_t j = 0; j < g->n; j++) {
      double sum = 0;
      for (int64_t k = 0; k < g->k; k++)
        sum += tc_ref_get(&c->in[0], g->ta ? k * g->m + i : i * g->k + k)
               * tc_ref_get(&c->in[1], g->tb ? j * g->k + k : k * g->n + j);
      if (c->n_in > 2) sum += tc_ref_get(&c->in[2], j);
      tc_ref_out(c, 0, i * g->n + j, sum);
    }
  }
  return 0;
}

/* The index in qkv[N,K,E,D] of element e of token n and group k. A group is E - 2 queries, their key, their value. */
static int64_t qkv_at(const struct tc_view *qkv, int64_t n, int64_t k, int64_t e, int64_t j)
{
  return ((n * qkv->dim[1] + k) * qkv->dim[2] + e) * qkv->dim[3] + j;
}

/* An element of head h, which is query h % G of group h / G. */
static double qkv(const struct tc_view *x, int64_t n, int64_t h, char what, int64_t j)
{
  const int64_t G = x->dim[2] - 2;
  return tc_ref_get(x, qkv_at(x, n, h / G, what == 'q' ? h % G : what == 'k' ? G : G + 1, j));
}

static double score(const struct tc_view *x, int64_t n, int64_t m, int64_t h)
{
  const int64_t D = x->dim[3];
  double sum = 0;
  for (int64_t j = 0; j < D; j++) sum += qkv(x, n, h, 'q', j) * qkv(x, m, h, 'k', j);
  return sum / sqrt((double)D);
}

static int64_t heads(const struct tc_view *qkv) { return qkv->dim[1] * (qkv->dim[2] - 2); }

enum { HEAD_MAX = 1024 };

/* The first token that token n sees, with sequences of T tokens. */
static int64_t first_seen(int64_t n, int64_t T, const int32_t *starts)
{
  return n - n % T + (starts ? starts[n] : 0);
}

static void attn_row(const struct tc_call *c, int64_t n, int64_t h)
{
  const struct tc_view *x = &c->in[0];
  const int64_t H = heads(x), D = x->dim[3], first = first_seen(n, c->k[0], tc_call_starts(c, 1));
  double max = -INFINITY, sum = 0, y[HEAD_MAX] = { 0 };
  TC_ASSERT(D <= HEAD_MAX);
  for (int64_t m = first; m <= n; m++) max = fmax(max, score(x, n, m, h));
  for (int64_t m = first; m <= n; m++) sum += exp(score(x, n, m, h) - max);
  double lse = max + log(sum);
  for (int64_t m = first; m <= n; m++) {
    double p = exp(score(x, n, m, h) - lse);
    for (int64_t j = 0; j < D; j++) y[j] += p * qkv(x, m, h, 'v', j);
  }
  for (int64_t j = 0; j < D; j++) tc_ref_put(&c->out[0], (n * H + h) * D + j, y[j]);
  tc_ref_put(&c->out[1], n * H + h, lse);
}

int tc_ref_attn(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t n = 0; n < c->in[0].dim[0]; n++)
    for (int64_t h = 0; h < heads(&c->in[0]); h++) attn_row(c, n, h);
  return 0;
}

static double cache_score(const struct tc_view *x, const struct tc_view *cache, int64_t n, int64_t h, int64_t key)
{
  const int64_t D = x->dim[3];
  double sum = 0;
  for (int64_t j = 0; j < D; j++) sum += qkv(x, n, h, 'q', j) * tc_ref_get(cache, key + j);
  return sum / sqrt((double)D);
}

/* One head of new token n over the first `seen` tokens, whose keys and values begin at element `at` of the cache. */
static void attn_cache_row(const struct tc_call *c, int64_t n, int64_t h, int64_t at, int64_t seen)
{
  const struct tc_view *x = &c->in[0], *cache = &c->out[1];
  const int64_t D = x->dim[3];
  double max = -INFINITY, sum = 0, y[HEAD_MAX] = { 0 };
  TC_ASSERT(D <= HEAD_MAX);
  for (int64_t m = 0; m < seen; m++) max = fmax(max, cache_score(x, cache, n, h, at + m * 2 * D));
  for (int64_t m = 0; m < seen; m++) {
    const double p = exp(cache_score(x, cache, n, h, at + m * 2 * D) - max);
    for (int64_t j = 0; j < D; j++) y[j] += p * tc_ref_get(cache, at + (m * 2 + 1) * D + j);
    sum += p;
  }
  for (int64_t j = 0; j < D; j++) tc_ref_put(&c->out[0], (n * heads(x) + h) * D + j, y[j] / sum);
}

int tc_ref_attn_cache(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *cache = &c->in[1];
  const int64_t K = x->dim[1], G = x->dim[2] - 2, D = x->dim[3], B = cache->dim[0], M = cache->dim[2];
  const int32_t *starts = c->in[2].data;
  for (int64_t n = 0; n < x->dim[0]; n++)
    for (int64_t h = 0; h < heads(x); h++) {
      const int64_t at = (n / (x->dim[0] / B) * K + h / G) * M * 2 * D;
      const int64_t p = (x->off[0] + n) % c->k[0] - starts[n];
      for (int64_t j = 0; h % G == 0 && j < 2 * D; j++)
        tc_ref_put(&c->out[1], at + p * 2 * D + j, tc_ref_get(x, ((n * K + h / G) * (G + 2) + G) * D + j));
      attn_cache_row(c, n, h, at, p + 1);
    }
  return 0;
}

/* The probability and the score's gradient, for token n as query and token m as key. */
static void attn_pair(const struct tc_call *c, int64_t n, int64_t m, int64_t h, double *p,
                      double *ds)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *y = &c->in[2], *lse = &c->in[3];
  const int64_t H = heads(x), D = x->dim[3];
  double dp = 0, delta = 0;
  for (int64_t j = 0; j < D; j++) {
    double e = tc_ref_get(dy, (n * H + h) * D + j);
    dp += e * qkv(x, m, h, 'v', j);
    delta += e * tc_ref_get(y, (n * H + h) * D + j);
  }
  *p = exp(score(x, n, m, h) - tc_ref_get(lse, n * H + h));
  *ds = *p * (dp - delta) / sqrt((double)D);
}

/* The gradient of token n's query of head h. */
static void attn_bwd_query(const struct tc_call *c, int64_t n, int64_t h)
{
  const struct tc_view *x = &c->in[1];
  const int64_t D = x->dim[3], G = x->dim[2] - 2;
  double dq[HEAD_MAX] = { 0 }, p, ds;
  for (int64_t m = first_seen(n, c->k[0], tc_call_starts(c, 4)); m <= n; m++) {
    attn_pair(c, n, m, h, &p, &ds);
    for (int64_t j = 0; j < D; j++) dq[j] += ds * qkv(x, m, h, 'k', j);
  }
  for (int64_t j = 0; j < D; j++) tc_ref_put(&c->out[0], qkv_at(x, n, h / G, h % G, j), dq[j]);
}

/* The gradients of token n's key and value of group k: over all later queries of the group, up to the first of
 * another document. */
static void attn_bwd_group(const struct tc_call *c, int64_t n, int64_t k)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1];
  const int32_t *starts = tc_call_starts(c, 4);
  const int64_t T = c->k[0], H = heads(x), D = x->dim[3], G = x->dim[2] - 2, end = n - n % T + T;
  double dk[HEAD_MAX] = { 0 }, dv[HEAD_MAX] = { 0 }, p, ds;
  for (int64_t h = k * G; h < (k + 1) * G; h++)
    for (int64_t m = n; m < end && first_seen(m, T, starts) <= n; m++) {
      attn_pair(c, m, n, h, &p, &ds);
      for (int64_t j = 0; j < D; j++) {
        dk[j] += ds * qkv(x, m, h, 'q', j);
        dv[j] += p * tc_ref_get(dy, (m * H + h) * D + j);
      }
    }
  for (int64_t j = 0; j < D; j++) {
    tc_ref_put(&c->out[0], qkv_at(x, n, k, G, j), dk[j]);
    tc_ref_put(&c->out[0], qkv_at(x, n, k, G + 1, j), dv[j]);
  }
}

int tc_ref_attn_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[1];
  TC_ASSERT(x->dim[3] <= HEAD_MAX);
  for (int64_t n = 0; n < x->dim[0]; n++) {
    for (int64_t h = 0; h < heads(x); h++) attn_bwd_query(c, n, h);
    for (int64_t k = 0; k < x->dim[1]; k++) attn_bwd_group(c, n, k);
  }
  return 0;
}
