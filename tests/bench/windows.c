/* windows.c - attention alone with a window of keys, beside full attention.
 *
 *   windows DEVICE [fp32|bf16] [tokens=8192] [window=1024] [heads=4] [kv_heads=4] [size=64] [threads=2] [rounds=5]
 *
 * One sequence, forward and backward; the device `ref`, which is slow, has 1024 tokens and a window of 128 if they are not
 * given. In a round full attention and that with the window take turns, after a first round that does not count. Printed
 * are medians over the rounds, the ratio of the two, and that of the pairs of queries and keys. */
#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS, WINDOW, HEADS, KV_HEADS, SIZE, THREADS, ROUNDS, SETTINGS };
static const char *const setting[SETTINGS] = { "tokens", "window", "heads", "kv_heads", "size", "threads", "rounds" };
enum { DY, QKV, Y, LSE, DQKV, TENSORS };

struct bench {
  struct tc_device *d;
  int dtype;
  int64_t s[SETTINGS];
  struct tc_view v[TENSORS];
  struct tc_call call[2][2];     /* forward and backward, full and with the window */
  double *seconds[2][2];         /* [rounds] */
};

/* Device memory with numbers around 0. */
static bool make(struct bench *b, int what, int dtype, int64_t groups, int64_t rows, int64_t columns)
{
  struct tc_view *v = &b->v[what];
  const int64_t dim[4] = { b->s[TOKENS], groups, rows, columns };
  *v = (struct tc_view){ .dtype = (uint8_t)dtype, .rank = 4, .rows = -1, .elems = 1 };
  for (int i = 0; i < 4; i++) v->dim[i] = v->global[i] = dim[i], v->elems *= dim[i];
  const int64_t bytes = v->elems * (int64_t)tc_dtype_bytes(dtype);
  void *host = tc_malloc((size_t)bytes);
  for (int64_t i = 0; i < v->elems; i++) {
    const float x = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-24f - 0.5f;
    if (dtype == TC_F32) ((float *)host)[i] = x;
    else ((uint16_t *)host)[i] = tc_f32_to_bf16(x);
  }
  v->data = b->d->ops->alloc(b->d, bytes);
  if (v->data) b->d->ops->copy(b->d, v->data, host, bytes);
  free(host);
  return v->data != NULL;
}

static int prepare(struct bench *b, struct tc_view *in, struct tc_call *c, struct tc_err *err)
{
  const struct tc_kernel *k = &b->d->ops->kernel[c->op];
  c->in = in, c->out = in + c->n_in, c->k[0] = b->s[TOKENS];
  if (k->prepare) TC_TRY(k->prepare(b->d, c, err));
  c->scratch = b->d->ops->alloc(b->d, TC_MAX(64, k->scratch ? k->scratch(b->d, c) : 0));
  return c->scratch ? 0 : tc_fail(err, TC_EUSER, "out of memory");
}

static int measure(struct bench *b, struct tc_err *err)
{
  for (int64_t r = -1; r < b->s[ROUNDS]; r++)
    for (int back = 0; back < 2; back++)
      for (int w = 0; w < 2; w++) {
        const struct tc_call *c = &b->call[back][w];
        if (back) TC_TRY(b->d->ops->kernel[TC_OP_ATTN].run(b->d, &b->call[0][w]));     /* whose y and lse it takes */
        b->d->ops->sync(b->d);
        const int64_t begin = tc_now_ns();
        TC_TRY(b->d->ops->kernel[c->op].run(b->d, c));
        b->d->ops->sync(b->d);
        if (r >= 0) b->seconds[back][w][r] = (double)(tc_now_ns() - begin) * 1e-9;
      }
  return tc_device_check(b->d, err);
}

static void report(const struct bench *b)
{
  const double T = (double)b->s[TOKENS], W = TC_MIN((double)b->s[WINDOW], T);
  const double pairs = (W * (W + 1) / 2 + (T - W) * W) / (T * (T + 1) / 2);
  printf("%s, %s, %lld tokens, %lld heads of %lld, %lld with keys of their own; %.3f of the pairs are within a window of %lld\n",
         b->d->ops->name, tc_dtype_name(b->dtype), (long long)b->s[TOKENS], (long long)b->s[HEADS], (long long)b->s[SIZE],
         (long long)b->s[KV_HEADS], pairs, (long long)b->s[WINDOW]);
  for (int back = 0; back < 2; back++) {
    const double full = tc_median(b->seconds[back][0], (int)b->s[ROUNDS]);
    const double window = tc_median(b->seconds[back][1], (int)b->s[ROUNDS]);
    printf("%-9s full %10.2f ms, window %10.2f ms: %.3f\n", back ? "backward" : "forward", full * 1e3, window * 1e3,
           window / full);
  }
}

static int run(struct bench *b, struct tc_err *err)
{
  const int64_t K = b->s[KV_HEADS], G = b->s[HEADS] / K, D = b->s[SIZE];
  bool good = make(b, DY, b->dtype, K, G, D) && make(b, QKV, b->dtype, K, G + 2, D) && make(b, Y, b->dtype, K, G, D);
  good = good && make(b, LSE, TC_F32, K, G, 1) && make(b, DQKV, b->dtype, K, G + 2, D);
  if (!good) return tc_fail(err, TC_EUSER, "out of memory");
  struct tc_view forward[] = { b->v[QKV], b->v[Y], b->v[LSE] };
  struct tc_view backward[] = { b->v[DY], b->v[QKV], b->v[Y], b->v[LSE], b->v[DQKV] };
  for (int w = 0; w < 2; w++) {
    const int64_t window = w ? b->s[WINDOW] : 0;
    b->call[0][w] = (struct tc_call){ .op = TC_OP_ATTN, .n_in = 1, .n_out = 2, .k = { 0, 0, window } };
    b->call[1][w] = (struct tc_call){ .op = TC_OP_ATTN_BWD, .n_in = 4, .n_out = 1, .k = { 0, 0, window } };
    for (int back = 0; back < 2; back++) {
      b->seconds[back][w] = tc_calloc((size_t)b->s[ROUNDS], sizeof **b->seconds[back]);
      TC_TRY(prepare(b, back ? backward : forward, &b->call[back][w], err));
    }
  }
  TC_TRY(measure(b, err));
  report(b);
  return 0;
}

int main(int argc, char **argv)
{
  const bool slow = argc > 1 && !strcmp(argv[1], "ref");
  struct bench b = { .dtype = TC_F32, .s = { slow ? 1024 : 8192, slow ? 128 : 1024, 4, 4, 64, 2, 5 } };
  struct tc_err err = { 0 };
  for (int i = 2; i < argc; i++) {
    if (!strcmp(argv[i], "bf16")) b.dtype = TC_BF16;
    for (int k = 0; k < SETTINGS; k++) {
      const size_t n = strlen(setting[k]);
      if (!strncmp(argv[i], setting[k], n) && argv[i][n] == '=') b.s[k] = atoll(argv[i] + n + 1);
    }
  }
  bool good = argc > 1;
  for (int k = 0; k < SETTINGS; k++) good = good && b.s[k] > 0;
  if (!good || b.s[HEADS] % b.s[KV_HEADS]) {
    fprintf(stderr, "windows: windows cpu|ref|cuda [fp32|bf16] [NAME=VALUE ...]; values are above 0, kv_heads divide heads\n");
    return 2;
  }
  if (tc_device_open(&b.d, argv[1], (int)b.s[THREADS], &err) < 0 || run(&b, &err) < 0) {
    fprintf(stderr, "windows: %s\n", err.text);
    return 1;
  }
  for (int i = 0; i < TENSORS; i++)
    b.d->ops->free(b.d, b.v[i].data, b.v[i].elems * (int64_t)tc_dtype_bytes(b.v[i].dtype));
  tc_device_close(b.d);
  return 0;
}
