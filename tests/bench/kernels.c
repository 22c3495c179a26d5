/* kernels.c - the time of each kernel of a device at a model's sizes, beside what memory and
 * arithmetic allow.
 *
 *   kernels DEVICE [fp32|bf16] [tokens=8192] [hidden=768] [heads=12] [kv_heads=4] [context=1024] [vocab=50304]
 *           [head_chunk=ROWS] [bandwidth=GB/s] [tflops=TFLOP/s] [repeat=20] [only=TEXT]
 *           [order=any] [workspace=BYTES]
 *
 * Bytes are each input read once and each output written once; the limit is the larger of bytes
 * over bandwidth and operations over tflops (0: not known, no share is printed). Times are a mean
 * over `repeat` runs that follow each other on the device, after two that don't count. The kernels of Llama's layers
 * have kv_heads and an MLP of 8/3 of the hidden size; behind them are their shares of a layer, forward and backward. The
 * loss head is timed on a chunk of the logits, of as many rows as training takes where memory is short if head_chunk is
 * not given: a power of two, of at most 64 MiB, 512 MiB in bf16. only: rows whose names have this text, and nothing
 * else. order=any: the library may add in another order each time. workspace: for its calls, which are cut to that. */
#include "kernels/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS = 6 };
enum { TOKENS, HIDDEN, HEADS, CONTEXT, VOCAB, KV_HEADS, HEAD_CHUNK, BANDWIDTH, TFLOPS, REPEAT, WORKSPACE, SETTINGS };
static const char *const setting[SETTINGS] = { "tokens", "hidden", "heads", "context", "vocab", "kv_heads",
                                               "head_chunk", "bandwidth", "tflops", "repeat", "workspace" };

struct bench {
  struct tc_device *d;
  int dtype;
  int64_t s[SETTINGS];
  float *freq;                   /* of rotary positions: [head size / 2] */
  double seconds;                /* of the last row */
  const char *only;              /* NULL: all rows */
  int failed;
};

/* Letters of the table's shapes. N tokens, C hidden, F 4C, G 3C, V vocabulary, T context, H heads,
 * D head size, R rows of a head chunk, E elements of a unit, 3 itself. Llama: K heads of keys, U queries of
 * each, P = U + 1, Q = U + 2, A = KQD, M width of the MLP, B = 2M. */
static int64_t size_of(const struct bench *b, char letter)
{
  const int64_t *s = b->s;
  switch (letter) {
  case 'N': return s[TOKENS];
  case 'C': return s[HIDDEN];
  case 'F': return 4 * s[HIDDEN];
  case 'G': return 3 * s[HIDDEN];
  case 'V': return s[VOCAB];
  case 'T': return s[CONTEXT];
  case 'H': return s[HEADS];
  case 'D': return s[HIDDEN] / s[HEADS];
  case 'R': return TC_MIN(s[TOKENS], s[HEAD_CHUNK]);
  case 'E': return 12 * s[HIDDEN] * s[HIDDEN];
  case 'K': return s[KV_HEADS];
  case 'U': return s[HEADS] / s[KV_HEADS];
  case 'P': return s[HEADS] / s[KV_HEADS] + 1;
  case 'Q': return s[HEADS] / s[KV_HEADS] + 2;
  case 'A': return (s[HEADS] + 2 * s[KV_HEADS]) * (s[HIDDEN] / s[HEADS]);
  case 'M': return tc_round_up(tc_ceil_div(8 * s[HIDDEN], 3), 64);
  case 'B': return 2 * tc_round_up(tc_ceil_div(8 * s[HIDDEN], 3), 64);
  default: return letter - '0';
  }
}

/* Types: x the run's, f fp32, i integers below V, 0 to 9 where documents begin: 2 to that power of them in a sequence.
 * acc: bits; over: out 0 is in the memory of that input; layer: how many a layer of Llama has. */
static const struct row {
  int op, acc, over;
  const char *name, *in, *out;
  char gemm[6];                  /* m n k and T where transposed: "NCCnt" */
  int layer;
} table[] = {
  { TC_OP_EMBED, 0, -1, "embed", "i:N x:VC", "x:NC", "", 0 },
  { TC_OP_EMBED_BWD, 0, -1, "embed_bwd", "i:N x:NC", "f:VC", "", 0 },
  { TC_OP_POS, 0, -1, "pos", "x:NC x:TC", "x:NC", "", 0 },
  { TC_OP_POS_BWD, 0, -1, "pos_bwd", "x:NC", "f:TC", "", 0 },
  { TC_OP_LAYERNORM, 0, -1, "layernorm", "x:NC x:C x:C", "x:NC f:N f:N", "", 0 },
  { TC_OP_LAYERNORM_BWD, 1, -1, "layernorm_bwd", "x:NC x:NC x:C f:N f:N", "x:NC f:C f:C", "", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul qkv", "x:NC x:GC x:G", "x:NG", "NGCnt", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul up", "x:NC x:FC x:F", "x:NF", "NFCnt", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul down", "x:NF x:CF x:C", "x:NC", "NCFnt", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul up, d input", "x:NF x:FC", "x:NC", "NCFnn", 0 },
  { TC_OP_MATMUL, 1, -1, "matmul up, d weight", "x:NF x:NC", "f:FC", "FCNtn", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul qkv, d input", "x:NG x:GC", "x:NC", "NCGnn", 0 },
  { TC_OP_MATMUL, 1, -1, "matmul qkv, d weight", "x:NG x:NC", "f:GC", "GCNtn", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul down, d input", "x:NC x:CF", "x:NF", "NFCnn", 0 },
  { TC_OP_MATMUL, 1, -1, "matmul down, d weight", "x:NC x:NF", "f:CF", "CFNtn", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul head", "x:RC x:VC", "x:RV", "RVCnt", 0 },
  { TC_OP_MATMUL, 0, -1, "matmul head, d input", "x:RV x:VC", "x:RC", "RCVnn", 0 },
  { TC_OP_MATMUL, 1, -1, "matmul head, d weight", "x:RV x:RC", "f:VC", "VCRtn", 0 },
  { TC_OP_BIAS, 0, -1, "bias", "x:NC x:C", "x:NC", "", 0 },
  { TC_OP_BIAS_BWD, 1, -1, "bias_bwd", "x:NF", "f:F", "", 0 },
  { TC_OP_ACT, 0, -1, "gelu", "x:NF", "x:NF", "", 0 },
  { TC_OP_ACT_BWD, 0, -1, "gelu_bwd", "x:NF x:NF", "x:NF", "", 0 },
  { TC_OP_ADD, 0, -1, "add", "x:NC x:NC", "x:NC", "", 2 },
  { TC_OP_DROPOUT, 0, -1, "dropout", "x:NC", "x:NC", "", 0 },
  { TC_OP_ATTN, 0, -1, "attn", "x:NH3D", "x:NHD f:NH", "", 0 },
  { TC_OP_ATTN_BWD, 0, -1, "attn_bwd", "x:NHD x:NH3D x:NHD f:NH", "x:NH3D", "", 0 },
  { TC_OP_ATTN, 0, -1, "attn, 1 document", "x:NH3D 0:N", "x:NHD f:NH", "", 0 },
  { TC_OP_ATTN, 0, -1, "attn, 4 documents", "x:NH3D 2:N", "x:NHD f:NH", "", 0 },
  { TC_OP_ATTN, 0, -1, "attn, 16 documents", "x:NH3D 4:N", "x:NHD f:NH", "", 0 },
  { TC_OP_ATTN_BWD, 0, -1, "attn_bwd, 1 document", "x:NHD x:NH3D x:NHD f:NH 0:N", "x:NH3D", "", 0 },
  { TC_OP_ATTN_BWD, 0, -1, "attn_bwd, 4 documents", "x:NHD x:NH3D x:NHD f:NH 2:N", "x:NH3D", "", 0 },
  { TC_OP_ATTN_BWD, 0, -1, "attn_bwd, 16 documents", "x:NHD x:NH3D x:NHD f:NH 4:N", "x:NH3D", "", 0 },
  { TC_OP_RMSNORM, 0, -1, "rmsnorm", "x:NC x:C", "x:NC f:N", "", 2 },
  { TC_OP_RMSNORM_BWD, 1, -1, "rmsnorm_bwd", "x:NC x:NC x:C f:N", "x:NC f:C", "", 2 },
  { TC_OP_MATMUL, 0, -1, "grouped qkv", "x:NC x:AC", "x:NA", "NACnt", 1 },
  { TC_OP_MATMUL, 0, -1, "grouped qkv, d input", "x:NA x:AC", "x:NC", "NCAnn", 1 },
  { TC_OP_MATMUL, 1, -1, "grouped qkv, d weight", "x:NA x:NC", "f:AC", "ACNtn", 1 },
  { TC_OP_QKNORM, 0, -1, "qknorm", "x:NKQD x:D x:D", "x:NKQD f:NKP", "", 0 },
  { TC_OP_QKNORM_BWD, 6, -1, "qknorm_bwd", "x:NKQD x:NKQD x:D x:D f:NKP", "x:NKQD f:D f:D", "", 0 },
  { TC_OP_ROPE, 0, -1, "rope", "x:NKQD", "x:NKQD", "", 1 },
  { TC_OP_ROPE_BWD, 0, -1, "rope_bwd", "x:NKQD", "x:NKQD", "", 1 },
  { TC_OP_ATTN, 0, -1, "grouped attn", "x:NKQD", "x:NKUD f:NKU", "", 1 },
  { TC_OP_ATTN_BWD, 0, -1, "grouped attn_bwd", "x:NKUD x:NKQD x:NKUD f:NKU", "x:NKQD", "", 1 },
  { TC_OP_MATMUL, 0, -1, "matmul proj", "x:NC x:CC", "x:NC", "NCCnt", 1 },
  { TC_OP_MATMUL, 0, -1, "matmul proj, d input", "x:NC x:CC", "x:NC", "NCCnn", 1 },
  { TC_OP_MATMUL, 1, -1, "matmul proj, d weight", "x:NC x:NC", "f:CC", "CCNtn", 1 },
  { TC_OP_MATMUL, 0, -1, "matmul gate_up", "x:NC x:BC", "x:NB", "NBCnt", 1 },
  { TC_OP_MATMUL, 0, -1, "matmul gate_up, d input", "x:NB x:BC", "x:NC", "NCBnn", 1 },
  { TC_OP_MATMUL, 1, -1, "matmul gate_up, d weight", "x:NB x:NC", "f:BC", "BCNtn", 1 },
  { TC_OP_GLU, 0, -1, "swiglu", "x:N2M", "x:NM", "", 1 },
  { TC_OP_GLU_BWD, 0, -1, "swiglu_bwd", "x:NM x:N2M", "x:N2M", "", 1 },
  { TC_OP_MATMUL, 0, -1, "gated down", "x:NM x:CM", "x:NC", "NCMnt", 1 },
  { TC_OP_MATMUL, 0, -1, "gated down, d input", "x:NC x:CM", "x:NM", "NMCnn", 1 },
  { TC_OP_MATMUL, 1, -1, "gated down, d weight", "x:NC x:NM", "f:CM", "CMNtn", 1 },
  { TC_OP_ROWMAX, 0, -1, "rowmax", "x:RV", "f:R", "", 0 },
  { TC_OP_SUMEXP, 0, -1, "sumexp", "x:RV f:R", "f:R", "", 0 },
  { TC_OP_SUMEXP_BWD, 0, -1, "sumexp_bwd", "x:RV f:R f:R", "x:RV", "", 0 },
  { TC_OP_PICK, 0, -1, "pick", "x:RV i:R", "f:R", "", 0 },
  { TC_OP_NLL, 0, -1, "nll", "f:R f:R f:R i:R", "f:R", "", 0 },
  { TC_OP_NLL_BWD, 0, -1, "nll_bwd", "f:R f:R i:R", "f:R f:R", "", 0 },
  { TC_OP_SUM, 0, -1, "sum", "f:N", "f:", "", 0 },
  { TC_OP_FILL, 0, -1, "fill", "", "f:E", "", 0 },
  { TC_OP_NORMAL, 0, -1, "normal", "", "f:E", "", 0 },
  { TC_OP_CAST, 0, -1, "cast", "f:E", "x:E", "", 0 },
  { TC_OP_ACCUM, 1, -1, "accum", "x:E", "f:E", "", 0 },
  { TC_OP_SQNORM, 0, -1, "sqnorm", "f:E", "f:", "", 0 },
  { TC_OP_ADAMW, 0, 2, "adamw", "f:E f: f:E f:E f:E", "f:E f:E f:E", "", 0 },
  { TC_OP_ADAMW, 0, 2, "adamw, its states in this type", "f:E f: f:E x:E x:E", "f:E x:E x:E", "", 0 },
  { TC_OP_SGD, 0, 2, "sgd", "f:E f: f:E", "f:E", "", 0 },
};

static int parse(const struct bench *b, const char *text, struct tc_view *v)
{
  int n = 0;
  for (const char *p = text; *p; n++) {
    const bool starts = *p >= '0' && *p <= '9';
    v[n] = (struct tc_view){ .rows = -1, .elems = 1,
                             .dtype = (uint8_t)(*p == 'i' || starts ? TC_I32 : *p == 'f' ? TC_F32 : b->dtype) };
    for (p += 2; *p && *p != ' '; p++) {
      v[n].dim[v[n].rank] = v[n].global[v[n].rank] = size_of(b, *p);
      v[n].elems *= v[n].dim[v[n].rank++];
    }
    if (*p == ' ') p++;
  }
  return n;
}

/* Device memory with small numbers in it, which repeat: the device makes the most of a large tensor itself. */
static void back(struct bench *b, struct tc_view *v)
{
  enum { PERIOD = 1048573 };
  const int64_t each = (int64_t)tc_dtype_bytes(v->dtype), n = TC_MIN(v->elems, (int64_t)PERIOD);
  const int64_t bytes = v->elems * each;
  char *host = tc_malloc((size_t)(n * each));
  for (int64_t i = 0; i < n; i++) {
    uint32_t r = (uint32_t)i * 2654435761u;
    float x = (float)(r >> 8) * 0x1p-24f - 0.5f;
    if (v->dtype == TC_I32) ((int32_t *)host)[i] = (int32_t)(r % (uint32_t)b->s[VOCAB]);
    else if (v->dtype == TC_F32) ((float *)host)[i] = x + (v->rank < 2 ? 1.f : 0.f);
    else ((uint16_t *)host)[i] = tc_f32_to_bf16(x);
  }
  v->data = b->d->ops->alloc(b->d, TC_MAX(bytes, 64));
  if (v->data) b->d->ops->copy(b->d, v->data, host, n * each);
  for (int64_t done = n * each; v->data && done < bytes; done *= 2)
    b->d->ops->copy(b->d, (char *)v->data + done, v->data, TC_MIN(done, bytes - done));
  free(host);
}

/* Documents in a sequence, of equal length; 0: the row has none. */
static int64_t documents(const struct row *r)
{
  const char *digit = strpbrk(r->in, "0123456789");
  while (digit && digit[1] != ':') digit = strpbrk(digit + 1, "0123456789");
  return digit ? INT64_C(1) << (*digit - '0') : 0;
}

static void back_starts(struct bench *b, struct tc_view *v, int64_t n)
{
  const int64_t T = b->s[CONTEXT], length = tc_ceil_div(T, n);
  int32_t *host = tc_malloc((size_t)v->elems * sizeof *host);
  for (int64_t i = 0; i < v->elems; i++) host[i] = (int32_t)(i % T - i % T % length);
  v->data = b->d->ops->alloc(b->d, v->elems * (int64_t)sizeof *host);
  if (v->data) b->d->ops->copy(b->d, v->data, host, v->elems * (int64_t)sizeof *host);
  free(host);
}

static double operations(const struct bench *b, const struct row *r, const struct tc_call *c)
{
  if (r->op == TC_OP_MATMUL)
    return 2.0 * (double)c->gemm.m * (double)c->gemm.n * (double)c->gemm.k;
  const int64_t seen = tc_ceil_div(b->s[CONTEXT], TC_MAX(documents(r), 1));
  double pairs = (double)b->s[TOKENS] * (double)(seen + 1) / 2 * (double)b->s[HIDDEN];
  return r->op == TC_OP_ATTN ? 4 * pairs : r->op == TC_OP_ATTN_BWD ? 10 * pairs : 0;
}

static double view_bytes(const struct tc_view *v)
{
  return (double)v->elems * (double)tc_dtype_bytes(v->dtype);
}

static double call_bytes(const struct row *r, const struct tc_call *c)
{
  double bytes = 0;
  for (int i = 0; i < c->n_in; i++) bytes += view_bytes(&c->in[i]);
  for (int k = 0; k < c->n_out; k++) bytes += view_bytes(&c->out[k]) * (c->acc >> k & 1 ? 2 : 1);
  if (r->op == TC_OP_EMBED) return 2 * view_bytes(&c->out[0]);  /* rows that are named, not the table */
  if (r->op == TC_OP_PICK) return 3 * view_bytes(&c->out[0]);   /* an element a row */
  return bytes;
}

static void report(struct bench *b, const char *name, double bytes, double flops, double seconds)
{
  double limit = 0;
  if (b->s[BANDWIDTH] > 0) limit = bytes / ((double)b->s[BANDWIDTH] * 1e9);
  if (b->s[TFLOPS] > 0) limit = TC_MAX(limit, flops / ((double)b->s[TFLOPS] * 1e12));
  printf("%-24s %9.4f ms %8.0f GB/s %7.1f TFLOP/s", name, seconds * 1e3, bytes / seconds * 1e-9,
         flops / seconds * 1e-12);
  if (limit > 0) printf(" %5.0f %% of the limit", 100 * limit / seconds);
  printf("\n");
  fflush(stdout);
}

static int run(struct bench *b, const struct row *r, struct tc_call *c, struct tc_err *err)
{
  const struct tc_kernel *k = &b->d->ops->kernel[r->op];
  int64_t t0 = 0;
  for (int i = -2; i < b->s[REPEAT]; i++) {
    if (i == 0) {
      b->d->ops->sync(b->d);
      t0 = tc_now_ns();
    }
    TC_TRY(k->run(b->d, c));
  }
  b->d->ops->sync(b->d);
  const double seconds = b->seconds = (double)(tc_now_ns() - t0) * 1e-9 / (double)b->s[REPEAT];
  TC_TRY(tc_device_check(b->d, err));
  report(b, r->name, call_bytes(r, c), operations(b, r, c), seconds);
  if (k->unprepare) k->unprepare(b->d, c);
  return 0;
}

/* Whether the device's library has attention, and uses it from now on. */
static bool can(struct bench *b, const struct row *r)
{
  char text[300] = "no plan for these sizes";
  const bool yes = b->d->ops->library->can(b->d, text, sizeof text) > 0;
  printf("# %s: %s\n", r->name, text);
  if (yes) b->d->ops->library->use(b->d, true);
  return yes;
}

static void time_row(struct bench *b, const struct row *r)
{
  struct tc_view v[2 * ARGS];
  struct tc_runtime rt = { .seed = 1, .step = 2, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f,
                           .eps = 1e-8f, .clip = 1 };
  struct tc_call c = { .op = r->op, .acc = (uint8_t)r->acc, .rt = &rt, .f = { 1e-5f },
                       .k = { b->s[CONTEXT] }, .freq = b->freq };
  struct tc_err err = { 0 };
  const struct tc_kernel *k = &b->d->ops->kernel[r->op];
  c.n_in = parse(b, r->in, v);
  c.n_out = parse(b, r->out, v + c.n_in);
  c.in = v, c.out = v + c.n_in;
  if (r->op == TC_OP_ROWMAX || r->op == TC_OP_SUMEXP || r->op == TC_OP_SUMEXP_BWD || r->op == TC_OP_PICK)
    c.k[0] = b->s[VOCAB];
  if (r->op == TC_OP_DROPOUT) c.f[0] = 0.1f;
  if (*r->gemm)
    c.gemm = (struct tc_gemm){ size_of(b, r->gemm[0]), size_of(b, r->gemm[1]),
                               size_of(b, r->gemm[2]), r->gemm[3] == 't', r->gemm[4] == 't', { 0 } };
  bool good = true;
  for (int i = 0; i < c.n_in + c.n_out; i++) {
    if (r->over >= 0 && i >= c.n_in) v[i].data = v[r->over + i - c.n_in].data;
    else if (v[i].dtype == TC_I32 && documents(r)) back_starts(b, &v[i], documents(r));
    else back(b, &v[i]);
    good = good && v[i].data;
  }
  good = good && (!k->prepare || k->prepare(b->d, &c, &err) == 0);
  int64_t bytes = k->scratch ? k->scratch(b->d, &c) : 0;
  c.scratch = b->d->ops->alloc(b->d, TC_MAX(bytes, 64));
  if (*err.text) good = false;
  else if (!good || !c.scratch) tc_fail(&err, TC_EUSER, "out of memory");
  else if (!b->d->library || can(b, r)) run(b, r, &c, &err);
  if (*err.text) {
    printf("%-20s %s\n", r->name, err.text);
    b->failed = 1;
  }
  if (c.scratch) b->d->ops->free(b->d, c.scratch, TC_MAX(bytes, 64));
  for (int i = 0; i < (r->over >= 0 ? c.n_in : c.n_in + c.n_out); i++)
    if (v[i].data) b->d->ops->free(b->d, v[i].data, v[i].elems * (int64_t)tc_dtype_bytes(v[i].dtype));
}

/* The rows, and what part of a layer of Llama each kind of them takes. */
static void time_rows(struct bench *b)
{
  enum { KINDS = 6 };
  static const struct { const char *name; int forward, backward; } kind[KINDS] = {
    { "products", TC_OP_MATMUL, TC_OP_MATMUL }, { "attention", TC_OP_ATTN, TC_OP_ATTN_BWD },
    { "RMS norms", TC_OP_RMSNORM, TC_OP_RMSNORM_BWD }, { "rotary positions", TC_OP_ROPE, TC_OP_ROPE_BWD },
    { "SwiGLU", TC_OP_GLU, TC_OP_GLU_BWD }, { "residual sums", TC_OP_ADD, TC_OP_ADD } };
  double spent[KINDS] = { 0 }, all = 0;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (b->only && !strstr(table[i].name, b->only)) continue;
    time_row(b, &table[i]);
    for (int k = 0; k < KINDS && table[i].layer; k++) {
      if (table[i].op != kind[k].forward && table[i].op != kind[k].backward) continue;
      spent[k] += table[i].layer * b->seconds;
      all += table[i].layer * b->seconds;
    }
  }
  if (b->only) return;
  printf("a layer of Llama         %9.4f ms:", all * 1e3);
  for (int k = 0; k < KINDS; k++) printf("%s %s %.1f %%", k ? "," : "", kind[k].name, 100 * spent[k] / all);
  printf("\n");
}

/* ---- fused calls ---------------------------------------------------------------------------- */

enum { PARTS = 24, POOL = 64 };
struct group {
  const char *name;
  struct tc_call call[PARTS];
  struct tc_view v[PARTS][2 * ARGS], pool[POOL];
  int n, n_pool;
  double bytes, flops;
  struct tc_runtime rt;
};

static struct tc_view *take(struct bench *b, struct group *j, const char *what)
{
  struct tc_view *v = &j->pool[j->n_pool++];
  parse(b, what, v);
  back(b, v);
  return v;
}

static struct tc_call *add(struct group *j, int op, int n_in, int n_out, struct tc_view *const *v)
{
  struct tc_call *c = &j->call[j->n];
  for (int i = 0; i < n_in + n_out; i++) j->v[j->n][i] = *v[i];
  *c = (struct tc_call){ .op = op, .n_in = n_in, .n_out = n_out, .in = j->v[j->n],
                         .out = j->v[j->n] + n_in, .rt = &j->rt, .f = { 1 } };
  j->n++;
  return c;
}
#define V(...) (struct tc_view *[]){ __VA_ARGS__ }

static void time_group(struct bench *b, struct group *j)
{
  const struct tc_fused *o = b->d->ops->fused;
  const struct tc_call *part[PARTS];
  struct tc_err err = { 0 };
  int rc = 0;
  int64_t bytes = 64, t0 = 0;
  for (int i = 0; i < j->n; i++) part[i] = &j->call[i];
  bool good = o->can(b->d, part, j->n);
  if (good) bytes = TC_MAX(bytes, o->scratch(b->d, part, j->n));
  void *scratch = b->d->ops->alloc(b->d, bytes);
  for (int i = 0; i < j->n; i++) j->call[i].scratch = scratch;
  for (int i = -2; i < b->s[REPEAT] && good && !rc; i++) {
    if (i == 0) b->d->ops->sync(b->d), t0 = tc_now_ns();
    rc = o->run(b->d, part, j->n);
  }
  b->d->ops->sync(b->d);
  double seconds = (double)(tc_now_ns() - t0) * 1e-9 / (double)b->s[REPEAT];
  if (!good) printf("%-24s not fused for these types\n", j->name);
  else if (tc_device_check(b->d, &err) < 0 || rc < 0) printf("%-24s %s\n", j->name, err.text);
  else report(b, j->name, j->bytes, j->flops, seconds);
  b->failed |= good && (rc < 0 || *err.text);
  b->d->ops->free(b->d, scratch, bytes);
  for (int i = 0; i < j->n_pool; i++)
    b->d->ops->free(b->d, j->pool[i].data, (int64_t)view_bytes(&j->pool[i]));
  free(j);
}

static struct group *group(const char *name)
{
  struct group *j = tc_calloc(1, sizeof *j);
  j->name = name;
  j->rt = (struct tc_runtime){ .seed = 1, .step = 2, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f,
                               .eps = 1e-8f, .clip = 1 };
  return j;
}

static void time_groups(struct bench *b)
{
  const int64_t N = b->s[TOKENS], C = b->s[HIDDEN], F = 4 * C;
  const double product = 2.0 * (double)N * (double)C * (double)F;
  struct group *j = group("matmul up + gelu");
  struct tc_view *x = take(b, j, "x:NC"), *w = take(b, j, "x:FC"), *bias = take(b, j, "x:F");
  struct tc_view *y = take(b, j, "x:NF"), *z = take(b, j, "x:NF");
  add(j, TC_OP_MATMUL, 3, 1, V(x, w, bias, y))->gemm = (struct tc_gemm){ N, F, C, false, true, { 0 } };
  add(j, TC_OP_ACT, 1, 1, V(y, z));
  j->flops = product, j->bytes = view_bytes(x) + view_bytes(w) + view_bytes(y) + view_bytes(z);
  time_group(b, j);

  j = group("matmul + gelu_bwd");
  x = take(b, j, "x:NC"), w = take(b, j, "x:CF"), y = take(b, j, "x:NF"), z = take(b, j, "x:NF");
  struct tc_view *dx = take(b, j, "x:NF");
  add(j, TC_OP_MATMUL, 2, 1, V(x, w, y))->gemm = (struct tc_gemm){ N, F, C, false, false, { 0 } };
  add(j, TC_OP_ACT_BWD, 2, 1, V(y, z, dx));
  j->flops = product, j->bytes = view_bytes(x) + view_bytes(w) + view_bytes(z) + view_bytes(dx);
  time_group(b, j);

  j = group("matmul down + add");
  x = take(b, j, "x:NF"), w = take(b, j, "x:CF"), bias = take(b, j, "x:C"), y = take(b, j, "x:NC");
  z = take(b, j, "x:NC"), dx = take(b, j, "x:NC");
  add(j, TC_OP_MATMUL, 3, 1, V(x, w, bias, y))->gemm = (struct tc_gemm){ N, C, F, false, true, { 0 } };
  add(j, TC_OP_ADD, 2, 1, V(z, y, dx));
  j->flops = product, j->bytes = view_bytes(x) + view_bytes(w) + 2 * view_bytes(z);
  time_group(b, j);

  j = group("bias_bwd + matmul");
  x = take(b, j, "x:NF"), y = take(b, j, "x:NC"), bias = take(b, j, "f:F"), w = take(b, j, "f:FC");
  add(j, TC_OP_BIAS_BWD, 1, 1, V(x, bias))->acc = 1;
  struct tc_call *c = add(j, TC_OP_MATMUL, 2, 1, V(x, y, w));
  c->gemm = (struct tc_gemm){ F, C, N, true, false, { 0 } }, c->acc = 1;
  j->flops = product, j->bytes = view_bytes(x) + view_bytes(y) + 2 * view_bytes(w);
  time_group(b, j);

  j = group("updates + casts");         /* a layer's 12 CxC as 12 tensors */
  struct tc_view *scale = take(b, j, "f:");
  for (int i = 0; i < 12; i++) {
    struct tc_view *g = take(b, j, "f:CC"), *m = take(b, j, "f:CC"), *v = take(b, j, "f:CC");
    w = take(b, j, "f:CC"), x = take(b, j, "x:CC");
    add(j, TC_OP_ADAMW, 5, 3, V(g, scale, w, m, v, w, m, v));
    add(j, TC_OP_CAST, 1, 1, V(w, x));
    j->bytes += view_bytes(g) + 6 * view_bytes(w) + view_bytes(x);
  }
  time_group(b, j);
}

/* Both of the passes below in one. */
static void time_one_pass(struct bench *b)
{
  struct group *j = group("cross-entropy with d logits");
  struct tc_view *x = take(b, j, "x:RV"), *target = take(b, j, "i:R"), *m = take(b, j, "f:R");
  struct tc_view *s = take(b, j, "f:R"), *p = take(b, j, "f:R"), *l = take(b, j, "f:R");
  struct tc_view *dl = take(b, j, "f:R"), *ds = take(b, j, "f:R"), *dp = take(b, j, "f:R"), *dx = take(b, j, "x:RV");
  add(j, TC_OP_ROWMAX, 1, 1, V(x, m))->k[0] = b->s[VOCAB];
  add(j, TC_OP_PICK, 2, 1, V(x, target, p));
  add(j, TC_OP_SUMEXP, 2, 1, V(x, m, s))->k[0] = b->s[VOCAB];
  add(j, TC_OP_NLL, 4, 1, V(m, s, p, target, l));
  add(j, TC_OP_NLL_BWD, 3, 2, V(dl, s, target, ds, dp));
  add(j, TC_OP_SUMEXP_BWD, 3, 1, V(x, m, ds, dx))->k[0] = b->s[VOCAB];
  add(j, TC_OP_PICK_BWD, 3, 1, V(dx, target, dp, dx));
  j->bytes = 2 * view_bytes(x) + 6 * view_bytes(m);
  time_group(b, j);
}

/* The loss head's passes over a chunk of logits. */
static void time_heads(struct bench *b)
{
  struct group *j = group("cross-entropy");
  struct tc_view *x = take(b, j, "x:RV"), *target = take(b, j, "i:R"), *m = take(b, j, "f:R");
  struct tc_view *s = take(b, j, "f:R"), *p = take(b, j, "f:R"), *l = take(b, j, "f:R");
  add(j, TC_OP_ROWMAX, 1, 1, V(x, m))->k[0] = b->s[VOCAB];
  add(j, TC_OP_PICK, 2, 1, V(x, target, p));
  add(j, TC_OP_SUMEXP, 2, 1, V(x, m, s))->k[0] = b->s[VOCAB];
  add(j, TC_OP_NLL, 4, 1, V(m, s, p, target, l));
  j->bytes = view_bytes(x) + 5 * view_bytes(m);
  time_group(b, j);

  j = group("cross-entropy, d logits");
  x = take(b, j, "x:RV"), target = take(b, j, "i:R"), m = take(b, j, "f:R"), s = take(b, j, "f:R");
  struct tc_view *dl = take(b, j, "f:R"), *ds = take(b, j, "f:R"), *dp = take(b, j, "f:R");
  struct tc_view *dx = take(b, j, "x:RV");
  add(j, TC_OP_NLL_BWD, 3, 2, V(dl, s, target, ds, dp));
  add(j, TC_OP_SUMEXP_BWD, 3, 1, V(x, m, ds, dx))->k[0] = b->s[VOCAB];
  add(j, TC_OP_PICK_BWD, 3, 1, V(dx, target, dp, dx));
  j->bytes = 2 * view_bytes(x) + 4 * view_bytes(m);
  time_group(b, j);
  time_one_pass(b);
}

/* Attention by the device's library. Its scratch is known once a call is prepared for it. */
static void time_library(struct bench *b)
{
  b->d->library = true;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    struct row r = table[i];
    char name[40];
    if ((r.op != TC_OP_ATTN && r.op != TC_OP_ATTN_BWD) || strchr(r.name, ',')) continue;
    if (b->only && !strstr(r.name, b->only)) continue;
    snprintf(name, sizeof name, "%s by library", r.name);
    r.name = name;
    time_row(b, &r);
  }
  b->d->library = false;
}

static int64_t chunk_rows(const struct bench *b)
{
  const int64_t most = INT64_C(1) << (b->dtype == TC_BF16 ? 29 : 26);
  int64_t rows = 1;
  while (2 * rows * b->s[VOCAB] * (int64_t)tc_dtype_bytes(b->dtype) <= most) rows *= 2;
  return rows;
}

int main(int argc, char **argv)
{
  struct bench b = { .dtype = TC_BF16, .s = { 8192, 768, 12, 1024, 50304, 4, 0, 0, 0, 20 } };
  bool any_order = false;
  struct tc_err err = { 0 };
  for (int i = 2; i < argc; i++) {
    if (!strcmp(argv[i], "fp32")) b.dtype = TC_F32;
    if (!strncmp(argv[i], "only=", 5)) b.only = argv[i] + 5;
    any_order |= !strcmp(argv[i], "order=any");
    for (int k = 0; k < SETTINGS; k++) {
      size_t n = strlen(setting[k]);
      if (!strncmp(argv[i], setting[k], n) && argv[i][n] == '=') b.s[k] = atoll(argv[i] + n + 1);
    }
  }
  bool whole = true;
  for (int k = 0; k <= KV_HEADS; k++) whole &= b.s[k] > 0;
  if (whole && b.s[HEAD_CHUNK] <= 0) b.s[HEAD_CHUNK] = chunk_rows(&b);
  if (!whole || b.s[TOKENS] % b.s[CONTEXT] || b.s[HIDDEN] % (2 * b.s[HEADS]) || b.s[HEADS] % b.s[KV_HEADS]) {
    fprintf(stderr, "kernels: sizes are positive; context divides tokens, twice the heads divide hidden, kv_heads "
            "divide heads\n");
    return 2;
  }
  if (argc < 2 || tc_device_open(&b.d, argv[1], 1, &err) < 0) {
    fprintf(stderr, "kernels: %s\n", argc < 2 ? "say which device: kernels cuda bf16" : err.text);
    return 2;
  }
  b.d->any_order = any_order, b.d->library_bytes = b.s[WORKSPACE];
  printf("%s, %s, %lld tokens of %lld, hidden %lld\n", b.d->ops->name, tc_dtype_name(b.dtype),
         (long long)b.s[TOKENS], (long long)b.s[CONTEXT], (long long)b.s[HIDDEN]);
  const int64_t half = b.s[HIDDEN] / b.s[HEADS] / 2;
  b.freq = tc_malloc((size_t)half * sizeof *b.freq);
  for (int64_t i = 0; i < half; i++) b.freq[i] = powf(500000.f, -(float)i / (float)half);
  time_rows(&b);
  if (b.d->ops->fused && !b.only) time_groups(&b);
  if (b.d->ops->fused && !b.only) time_heads(&b);
  if (b.d->ops->library) time_library(&b);
  tc_device_close(b.d);
  free(b.freq);
  return b.failed;
}
