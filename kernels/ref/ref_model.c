/* ref_model.c - naive kernels of embedding, layer norm, products and attention.
 *
 * Attention recomputes a score whenever it needs one, which is slow but simple. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdlib.h>

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
    int64_t t = tc_ref_position(c, x, n, T, starts);
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
        if (tc_ref_position(c, dy, n, T, starts) == t) sum += tc_ref_get(dy, n * C + j);
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

static int64_t heads(const struct tc_view *qkv) { return qkv->dim[1] * (qkv->dim[2] - 2); }

/* The first element of a query of head h, which is query h % G of group h / G. */
static int64_t query_at(const struct tc_view *x, int64_t n, int64_t h)
{
  const int64_t G = x->dim[2] - 2;
  return qkv_at(x, n, h / G, h % G, 0);
}

/* Attention's operands: queries of some tokens, and the keys and values of all tokens of their sequences, behind the queries
 * or by themselves,
 * of all groups or of a piece of them (op.def). h is one of all heads, k a group of kv. */
struct attn {
  const struct tc_call *c;
  const struct tc_view *x, *kv;
  const int32_t *starts;         /* of the queries; NULL: no documents */
  int64_t T, H, D, G, key;       /* key: the place of a group's key in kv, before that of its value */
};

static struct attn attn_of(const struct tc_call *c, int qkv, int more)
{
  const struct tc_view *x = &c->in[qkv], *kv = tc_call_kv(c, more);
  const int64_t G = x->dim[2] - 2;
  return (struct attn){ .c = c, .x = x, .kv = kv ? kv : x, .starts = tc_call_starts(c, more + (kv != NULL)), .T = c->k[0],
                        .H = heads(x), .D = x->dim[3], .G = G, .key = kv ? 0 : G };
}

/* A product of a query and a key, or its gradient, times the call's scale. */
static double scaled(const struct tc_call *c, double x, int64_t D)
{
  return c->f[0] > 0 ? x * (double)c->f[0] : x / sqrt((double)D);
}

/* The score of such a product. */
static double capped(const struct tc_call *c, double x, int64_t D)
{
  const double s = scaled(c, x, D), cap = (double)c->f[1];
  return cap > 0 ? cap * tanh(s / cap) : s;
}

/* Head g of group k. */
static int64_t head_of(const struct attn *a, int64_t k, int64_t g) { return tc_call_group(a->c, a->x, a->kv, k) * a->G + g; }

/* The first element, in kv, of the key (what 0) or value (1) of head h and the token at this natural row. */
static int64_t key_at(const struct attn *a, int64_t natural, int64_t h, int what)
{
  const int64_t m = tc_row_of(&a->c->rows, natural) - a->kv->off[0];
  TC_ASSERT(m >= 0 && m < a->kv->dim[0]);
  return qkv_at(a->kv, m, h / a->G / (a->x->dim[1] / a->kv->dim[1]), a->key + what, 0);
}

/* The score of token n's query and the key at this natural row. */
static double score(const struct attn *a, int64_t n, int64_t natural, int64_t h)
{
  const int64_t q = query_at(a->x, n, h), k = key_at(a, natural, h, 0);
  double sum = 0;
  for (int64_t j = 0; j < a->D; j++) sum += tc_ref_get(a->x, q + j) * tc_ref_get(a->kv, k + j);
  return capped(a->c, sum, a->D);
}

enum { HEAD_MAX = 1024 };

static int64_t natural(const struct attn *a, int64_t n) { return tc_call_row(a->c, a->x, n); }

/* The natural row of the first token that token n sees; it sees those up to itself, at most as many as the window has. */
static int64_t first_seen(const struct attn *a, int64_t n)
{
  const int64_t own = natural(a, n), window = a->c->k[2], first = own - own % a->T + (a->starts ? a->starts[n] : 0);
  return window > 0 && own - first >= window ? own - window + 1 : first;
}

static void attn_row(const struct attn *a, int64_t n, int64_t h)
{
  const struct tc_call *c = a->c;
  const int64_t H = a->H, D = a->D, first = first_seen(a, n), last = natural(a, n);
  double max = -INFINITY, sum = 0, y[HEAD_MAX] = { 0 };
  TC_ASSERT(D <= HEAD_MAX);
  for (int64_t m = first; m <= last; m++) max = fmax(max, score(a, n, m, h));
  for (int64_t m = first; m <= last; m++) sum += exp(score(a, n, m, h) - max);
  double lse = max + log(sum);
  for (int64_t m = first; m <= last; m++) {
    const double p = exp(score(a, n, m, h) - lse);
    const int64_t v = key_at(a, m, h, 1);
    for (int64_t j = 0; j < D; j++) y[j] += p * tc_ref_get(a->kv, v + j);
  }
  for (int64_t j = 0; j < D; j++) tc_ref_put(&c->out[0], (n * H + h) * D + j, y[j]);
  tc_ref_put(&c->out[1], n * H + h, lse);
}

int tc_ref_attn(struct tc_device *d, const struct tc_call *c)
{
  const struct attn a = attn_of(c, 0, 1);
  for (int64_t n = 0; n < a.x->dim[0]; n++)
    for (int64_t i = 0; i < a.kv->dim[1] * a.G; i++) attn_row(&a, n, head_of(&a, i / a.G, i % a.G));
  return 0;
}

int tc_ref_kv(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *kv = &c->out[0];
  const int64_t G = x->dim[2] - 2, D = x->dim[3];
  for (int64_t i = 0; i < kv->dim[0] * kv->dim[1]; i++)
    for (int64_t j = 0; j < 2 * D; j++)
      tc_ref_put(kv, i * 2 * D + j, tc_ref_get(x, (tc_call_group(c, x, kv, i) * (G + 2) + G) * D + j));
  return 0;
}

int tc_ref_kv_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->out[0], *kv = &c->in[1];
  const int64_t G = x->dim[2] - 2, D = x->dim[3];
  for (int64_t i = 0; i < kv->dim[0] * kv->dim[1]; i++)
    for (int64_t j = 0; j < 2 * D; j++)
      tc_ref_put(x, (tc_call_group(c, x, kv, i) * (G + 2) + G) * D + j, tc_ref_get(kv, i * 2 * D + j));
  return 0;
}

/* The element of x that is element e, j of group k of row n of y, which has several groups for each of x: those of one group
 * have the same key and value. */
static int64_t spread_from(const struct tc_view *x, const struct tc_view *y, int64_t n, int64_t k, int64_t e, int64_t j)
{
  const int64_t copies = y->dim[1] / x->dim[1], G = y->dim[2] - 2;
  return ((n * x->dim[1] + k / copies) * x->dim[2] + (e < G ? k % copies * G + e : x->dim[2] - 2 + e - G)) * x->dim[3] + j;
}

int tc_ref_spread(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  for (int64_t i = 0; i < y->elems; i++) {
    const int64_t j = i % y->dim[3], e = i / y->dim[3] % y->dim[2], k = i / (y->dim[3] * y->dim[2]) % y->dim[1];
    tc_ref_put(y, i, tc_ref_get(x, spread_from(x, y, i / (y->dim[3] * y->dim[2] * y->dim[1]), k, e, j)));
  }
  return 0;
}

int tc_ref_spread_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *dx = &c->out[0];
  double *sum = tc_calloc((size_t)dx->elems, sizeof *sum);
  for (int64_t i = 0; i < dy->elems; i++) {
    const int64_t j = i % dy->dim[3], e = i / dy->dim[3] % dy->dim[2], k = i / (dy->dim[3] * dy->dim[2]) % dy->dim[1];
    sum[spread_from(dx, dy, i / (dy->dim[3] * dy->dim[2] * dy->dim[1]), k, e, j)] += tc_ref_get(dy, i);
  }
  for (int64_t i = 0; i < dx->elems; i++) tc_ref_put(dx, i, sum[i]);
  free(sum);
  return 0;
}

int tc_ref_add_part(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *u = &c->in[1], *y = &c->out[0];
  const struct tc_runs p = tc_call_part(c, y, u);
  for (int64_t i = 0; i < u->elems; i++) {
    const int64_t at = i / p.run * p.step + p.from + i % p.run;
    tc_ref_put(y, at, tc_ref_get(y, at) + tc_ref_get(u, i));
  }
  return 0;
}

int tc_ref_part(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const struct tc_runs p = tc_call_part(c, x, y);
  for (int64_t i = 0; i < y->elems; i++) tc_ref_put(y, i, tc_ref_get(x, i / p.run * p.step + p.from + i % p.run));
  return 0;
}

/* at: the first element of the key in the cache, which its value follows. */
static double cache_score(const struct tc_call *c, int64_t n, int64_t h, int64_t at)
{
  const struct tc_view *x = &c->in[0], *cache = &c->out[1];
  const int64_t D = x->dim[3], q = query_at(x, n, h);
  double sum = 0;
  for (int64_t j = 0; j < D; j++) sum += tc_ref_get(x, q + j) * tc_ref_get(cache, at + j);
  return capped(c, sum, D);
}

/* One head of new token n, which is at position p, over those that it sees; the rows of its sequence and group begin at row
 * `first` of the cache, and position m is the row m mod M of them. */
static void attn_cache_row(const struct tc_call *c, int64_t n, int64_t h, int64_t first, int64_t p)
{
  const struct tc_view *x = &c->in[0], *cache = &c->out[1];
  const int64_t D = x->dim[3], M = cache->dim[2], window = c->k[2], from = window > 0 ? TC_MAX(0, p + 1 - window) : 0;
  double max = -INFINITY, sum = 0, y[HEAD_MAX] = { 0 };
  TC_ASSERT(D <= HEAD_MAX);
  for (int64_t m = from; m <= p; m++) max = fmax(max, cache_score(c, n, h, (first + m % M) * 2 * D));
  for (int64_t m = from; m <= p; m++) {
    const int64_t at = (first + m % M) * 2 * D;
    const double e = exp(cache_score(c, n, h, at) - max);
    for (int64_t j = 0; j < D; j++) y[j] += e * tc_ref_get(cache, at + D + j);
    sum += e;
  }
  for (int64_t j = 0; j < D; j++) tc_ref_put(&c->out[0], (n * heads(x) + h) * D + j, y[j] / sum);
}

int tc_ref_attn_cache(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *cache = &c->in[1];
  const int64_t K = x->dim[1], G = x->dim[2] - 2, D = x->dim[3], B = cache->dim[0], M = cache->dim[2];
  const int32_t *starts = c->in[2].data;
  TC_ASSERT(tc_call_cache_holds(c));
  for (int64_t n = 0; n < x->dim[0]; n++)
    for (int64_t h = 0; h < heads(x); h++) {
      const int64_t first = (n / (x->dim[0] / B) * K + h / G) * M;
      const int64_t p = tc_ref_position(c, x, n, c->k[0], starts);
      for (int64_t j = 0; h % G == 0 && j < 2 * D; j++)
        tc_ref_put(&c->out[1], (first + p % M) * 2 * D + j, tc_ref_get(x, ((n * K + h / G) * (G + 2) + G) * D + j));
      attn_cache_row(c, n, h, first, p);
    }
  return 0;
}

/* The probability, and the gradient of the product of token n as query and the token at a natural row as key. */
static void attn_pair(const struct attn *a, int64_t n, int64_t key, int64_t h, double *p, double *ds)
{
  const struct tc_view *dy = &a->c->in[0], *y = &a->c->in[2], *lse = &a->c->in[3];
  const int64_t at = (n * a->H + h) * a->D, v = key_at(a, key, h, 1);
  double dp = 0, delta = 0;
  for (int64_t j = 0; j < a->D; j++) {
    const double e = tc_ref_get(dy, at + j);
    dp += e * tc_ref_get(a->kv, v + j);
    delta += e * tc_ref_get(y, at + j);
  }
  const double s = score(a, n, key, h), cap = (double)a->c->f[1];
  *p = exp(s - tc_ref_get(lse, n * a->H + h));
  *ds = scaled(a->c, *p * (dp - delta), a->D) * (cap > 0 ? 1 - s / cap * (s / cap) : 1);
}

/* The gradient of token n's query of head h. */
static void attn_bwd_query(const struct attn *a, int64_t n, int64_t h)
{
  const struct tc_view *x = a->x;
  double dq[HEAD_MAX] = { 0 }, p, ds;
  for (int64_t m = first_seen(a, n); m <= natural(a, n); m++) {
    attn_pair(a, n, m, h, &p, &ds);
    const int64_t k = key_at(a, m, h, 0);
    for (int64_t j = 0; j < a->D; j++) dq[j] += ds * tc_ref_get(a->kv, k + j);
  }
  for (int64_t j = 0; j < a->D; j++) tc_ref_put(&a->c->out[0], qkv_at(x, n, h / a->G, h % a->G, j), dq[j]);
}

/* The gradients of key and value of group k at row m of kv: of all queries here that see it, those of the group. */
static void attn_bwd_group(const struct attn *a, int64_t m, int64_t k)
{
  const struct tc_view *dy = &a->c->in[0], *to = &a->c->out[a->kv != a->x];
  const int64_t at = tc_call_row(a->c, a->kv, m);
  double dk[HEAD_MAX] = { 0 }, dv[HEAD_MAX] = { 0 }, p, ds;
  for (int64_t h = head_of(a, k, 0); h < head_of(a, k, a->G); h++)
    for (int64_t later = at; later < at - at % a->T + a->T; later++) {
      const int64_t n = tc_row_of(&a->c->rows, later) - a->x->off[0];
      if (n < 0 || n >= a->x->dim[0] || first_seen(a, n) > at) continue;
      attn_pair(a, n, at, h, &p, &ds);
      const int64_t q = query_at(a->x, n, h);
      for (int64_t j = 0; j < a->D; j++) {
        dk[j] += ds * tc_ref_get(a->x, q + j);
        dv[j] += p * tc_ref_get(dy, (n * a->H + h) * a->D + j);
      }
    }
  for (int64_t j = 0; j < a->D; j++) {
    tc_ref_put(to, qkv_at(a->kv, m, k, a->key, j), dk[j]);
    tc_ref_put(to, qkv_at(a->kv, m, k, a->key + 1, j), dv[j]);
  }
}

int tc_ref_attn_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct attn a = attn_of(c, 1, 4);
  TC_ASSERT(a.D <= HEAD_MAX);
  for (int64_t n = 0; n < a.x->dim[0]; n++) {
    for (int64_t i = 0; i < a.kv->dim[1] * a.G; i++) attn_bwd_query(&a, n, head_of(&a, i / a.G, i % a.G));
    for (int64_t k = 0; k < a.kv->dim[1] && a.kv != a.x; k++)
      for (int64_t j = 0; j < 2 * a.D; j++) tc_ref_put(&c->out[0], qkv_at(a.x, n, tc_call_group(c, a.x, a.kv, k), a.G, j), 0);
  }
  for (int64_t m = 0; m < a.kv->dim[0]; m++)
    for (int64_t k = 0; k < a.kv->dim[1]; k++) attn_bwd_group(&a, m, k);
  return 0;
}
