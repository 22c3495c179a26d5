/* attn.cu - causal attention: chooses the kernel, and prepares backward.
 *
 * bf16 with a head size that suits tensor cores uses attn_fwd.cu and attn_bwd.cu, all
 * other calls attn_plain.cu; but those that a library takes (cudnn.cu) are its own. With a window the first key that each
 * query sees is written down before, as documents' starts are, so the kernels know no windows. */
#include "kernels/cuda/attn.h"

enum { GRID_MAX = 65535 };                       /* of attn_plain.cu's y and z: heads and sequences */

static bool has_tensor_cores(const struct tc_attn *a)
{
  return a->qkv.bf16 && (a->D == 32 || a->D == 64 || a->D == 80 || a->D == 96 || a->D == 128);
}

static bool on_tensor_cores(const struct tc_attn *a)
{
  const uintptr_t bits = (uintptr_t)a->qkv.p | (uintptr_t)a->y.p | (uintptr_t)a->dy.p
                         | (uintptr_t)a->dqkv.p | (uintptr_t)a->kv.p | (uintptr_t)a->dkv.p;
  return has_tensor_cores(a) && bits % 16 == 0 && (!a->runs || a->run % TC_ATTN_ROWS == 0);
}

/* Where its tokens are. False: in no order that the kernels know. */
static bool set_order(struct tc_attn *a, const struct tc_call *c, const struct tc_view *qkv, const struct tc_view *kv)
{
  const struct tc_row_order *o = &c->rows;
  const int64_t T = c->k[0];
  a->here = T;
  if (o->cp <= 1) {
    a->runs = qkv != kv, a->run = (uint32_t)T, a->cp = 1, a->sequences = (uint32_t)TC_MAX(1, qkv->dim[0] / T);
    return qkv->dim[0] == kv->dim[0] && qkv->dim[0] % T == 0;
  }
  const int64_t part = T / o->cp, block = o->sequences * T;
  a->here = qkv->dim[0] == kv->dim[0] ? T : part;
  a->runs = o->zigzag ? 2 : 1, a->run = (uint32_t)(part / a->runs);
  a->cp = (uint32_t)o->cp, a->sequences = (uint32_t)o->sequences;
  a->part = (uint32_t)(qkv->off[0] % block / (o->sequences * part));
  if (a->here < T && kv->dim[0] != block) return false;  /* of several blocks, a part's rows do not follow each other */
  return kv->off[0] % block == 0 && kv->dim[0] % block == 0 && qkv->dim[0] * T == kv->dim[0] * a->here
         && qkv->off[0] == kv->off[0] + (a->here == T ? 0 : a->part * o->sequences * part);
}

static int64_t few_blocks(void)
{
#ifdef TC_EMU
  if (getenv("TC_EMU_FEW_BLOCKS")) return atoll(getenv("TC_EMU_FEW_BLOCKS"));      /* for tests: what large calls do */
#endif
  return TC_ATTN_FEW_BLOCKS;
}

/* qkv: its place among the inputs; more: where kv or starts would be. */
static struct tc_attn attn_of(const struct tc_call *c, int qkv, int more)
{
  struct tc_attn a;
  memset(&a, 0, sizeof a);
  const struct tc_view *x = &c->in[qkv], *apart = tc_call_kv(c, more), *kv = apart ? apart : x;
  TC_ASSERT(c->k[0] > 0 && x->rank == 4 && x->dim[2] >= 3);
  a.T = c->k[0], a.N = x->dim[0], a.K = kv->dim[1], a.G = x->dim[2] - 2, a.D = x->dim[3];
  a.H = x->dim[1] * a.G, a.step = x->dim[1] * (a.G + 2) * a.D;
  a.pieces = (uint32_t)(x->dim[1] / kv->dim[1]), a.piece = (uint32_t)c->k[1];
  a.kv_group = apart ? 2 * a.D : (a.G + 2) * a.D, a.kv_first = apart ? 0 : a.G * a.D, a.kv_step = a.K * a.kv_group;
  a.scale = tc_call_scale(c, a.D), a.cap = c->f[1];
  a.qkv = tc_arr_of(x), a.kv = tc_arr_of(kv);
  const bool known = set_order(&a, c, x, kv);
  TC_ASSERT(known);
  a.first = tc_call_starts(c, more + (apart != NULL));
  a.parts = tc_attn_parts(a.T, kv->dim[0] / a.T, a.K, a.G, few_blocks());
  return a;
}

int tc_cuda_attn_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  const struct tc_view *qkv = &c->in[c->op == TC_OP_ATTN ? 0 : 1];
  const int64_t heads = qkv->dim[1] * (qkv->dim[2] - 2), T = c->k[0];
  const struct tc_view *apart = tc_call_kv(c, c->op == TC_OP_ATTN ? 1 : 4), *kv = apart ? apart : qkv;
  const int64_t sequences = kv->dim[0] / T;
  struct tc_attn order;
  memset(&order, 0, sizeof order);
  if (!set_order(&order, c, qkv, kv))
    return tc_fail(err, TC_EUSER, "device cuda: attention over mesh.cp = %d can't take queries that are split otherwise than "
                   "by parallel.context; a file of annotations without rows for attn would do, or run.device = cpu",
                   (int)c->rows.cp);
  if (sequences > GRID_MAX || heads > GRID_MAX)
    return tc_fail(err, TC_EUSER, "device cuda: attention over %lld sequences of %lld heads: more "
                   "than %d at once; use a smaller train.micro_batch",
                   (long long)sequences, (long long)heads, GRID_MAX);
  if (tc_ceil_div(T, TC_ATTN_ROWS) * heads * sequences > INT32_MAX)
    return tc_fail(err, TC_EUSER, "device cuda: attention over %lld sequences of %lld heads and %lld tokens: more than "
                   "2^31 blocks; use a smaller train.micro_batch", (long long)sequences, (long long)heads, (long long)T);
  if (!order.runs) tc_cuda_library_prepare(d, c);
  if (qkv->dim[3] <= TC_CUDA_HEAD_MAX) return 0;
  return tc_fail(err, TC_EUSER, "device cuda: heads of size %lld: the largest is %d; use more "
                 "heads (model.heads)", (long long)qkv->dim[3], TC_CUDA_HEAD_MAX);
}

/* first[n]: of the N queries here, the first key that they see within a window. */
enum { FIRST_THREADS = 256 };
static __global__ void __launch_bounds__(FIRST_THREADS)
first_keys(int32_t *first, const int32_t *starts, struct tc_row_order rows, int64_t row0, int64_t N, int64_t T, int64_t window)
{
  const int64_t n = (int64_t)blockIdx.x * FIRST_THREADS + threadIdx.x;
  if (n >= N) return;
  const int64_t at = (rows.cp > 1 ? tc_natural_row(&rows, row0 + n) : n) % T;
  first[n] = TC_MAX(starts ? starts[n] : 0, (int32_t)TC_MAX((int64_t)0, at - window + 1));
}

/* With a window a->first is made at `scratch`, from the documents' starts. */
static void add_window(struct tc_device *d, struct tc_attn *a, const struct tc_call *c, const struct tc_view *qkv, void *scratch)
{
  if (c->k[2] <= 0) return;
  int32_t *first = (int32_t *)scratch;
  TC_LAUNCH(first_keys, tc_blocks(a->N, FIRST_THREADS), dim3(FIRST_THREADS), 0, tc_stream(d), first, a->first, c->rows,
            qkv->off[0], a->N, a->T, c->k[2]);
  a->first = first;
}

static int64_t window_bytes(const struct tc_call *c, const struct tc_view *qkv)
{
  return c->k[2] > 0 ? qkv->dim[0] * (int64_t)sizeof(int32_t) : 0;
}

int64_t tc_cuda_attn_scratch(struct tc_device *d, const struct tc_call *c)
{
  return TC_MAX(window_bytes(c, &c->in[0]), tc_cuda_library_scratch(d, c));
}

int tc_cuda_attn(struct tc_device *d, const struct tc_call *c)
{
  if (tc_cuda_library_takes(d, c)) return tc_cuda_library_attn(d, c);
  struct tc_attn a = attn_of(c, 0, 1);
  a.y = tc_arr_of(&c->out[0]);
  a.lse = tc_f32_of(&c->out[1]);
  if (a.N * a.H == 0) return 0;
  TC_ASSERT(a.y.bf16 == a.qkv.bf16);
  add_window(d, &a, c, &c->in[0], c->scratch);
  if (on_tensor_cores(&a)) tc_cuda_attn_fwd(d, &a);
  else tc_cuda_attn_plain(d, &a);
  return tc_cuda_launched(d, "attn");
}

/* Copies the keys and values of groups i pieces + piece from qkv to kv, n elements, or back; back without kv: zeros. */
enum { COPY_THREADS = 256 };
static __global__ void __launch_bounds__(COPY_THREADS)
copy_keys(struct tc_arr x, struct tc_arr kv, int64_t n, int64_t keys, int64_t group, int64_t pieces, int64_t piece, bool back)
{
  const int64_t i = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x;
  const int64_t at = (i / keys * pieces + piece + 1) * group - keys + i % keys;
  if (i >= n) return;
  if (back) tc_put(x, at, kv.p ? tc_get(kv, i) : 0.f);
  else tc_put(kv, i, tc_get(x, at));
}

/* kv: with its shape; zeros: not its data. */
static int run_copy_keys(struct tc_device *d, const struct tc_call *c, const struct tc_view *x, const struct tc_view *kv,
                         bool back, bool zeros, const char *what)
{
  const int64_t n = x->dim[0] * kv->dim[1] * 2 * x->dim[3];
  struct tc_arr keys = { NULL, false };
  if (n == 0) return 0;
  if (!zeros) keys = tc_arr_of(kv);
  TC_LAUNCH(copy_keys, tc_blocks(n, COPY_THREADS), dim3(COPY_THREADS), 0, tc_stream(d), tc_arr_of(x), keys, n,
            2 * x->dim[3], x->dim[2] * x->dim[3], x->dim[1] / kv->dim[1], c->k[1], back);
  return tc_cuda_launched(d, what);
}

/* delta[n,h] = sum over D of dy y, of the heads here: 8 threads per row, 8 columns each at a time. */
enum { DOT_THREADS = 128, DOT_ROWS = DOT_THREADS / 8 };
static __global__ void __launch_bounds__(DOT_THREADS) row_dots(struct tc_attn a, bool wide)
{
  const int64_t own = (int64_t)blockIdx.x * DOT_ROWS + threadIdx.x / 8;
  const int64_t i = (own / a.G * a.pieces + a.piece) * a.G + own % a.G;
  const bool there = own < a.N * a.K * a.G;
  float sum = 0, u[8], v[8];
  for (int64_t j = threadIdx.x % 8 * 8; there && j < a.D; j += 64) {
    tc_load(u, a.dy, i * a.D + j, a.D - j, wide);
    tc_load(v, a.y, i * a.D + j, a.D - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += u[k] * v[k];
  }
  sum = tc_warp_sum<8>(sum);
  if (there && threadIdx.x % 8 == 0) a.delta[i] = sum;
}

/* Backward's scratch memory: delta, the first keys of a window, and from here on the sums of parts. */
static int64_t sums_from(const struct tc_call *c)
{
  return tc_round_up(c->in[3].elems * (int64_t)sizeof(float) + window_bytes(c, &c->in[1]), 256);
}

int64_t tc_cuda_attn_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_attn a = attn_of(c, 1, 4);
  const int64_t sums = a.parts > 1 && has_tensor_cores(&a) ? a.parts * a.K * (a.N / a.here * a.T) * 2 * a.D : 0;
  return TC_MAX(sums_from(c) + sums * (int64_t)sizeof(float), tc_cuda_library_scratch(d, c));
}

int tc_cuda_attn_bwd(struct tc_device *d, const struct tc_call *c)
{
  if (tc_cuda_library_takes(d, c)) return tc_cuda_library_attn(d, c);
  struct tc_attn a = attn_of(c, 1, 4);
  a.dy = tc_arr_of(&c->in[0]);
  a.y = tc_arr_of(&c->in[2]);
  a.lse = tc_f32_of(&c->in[3]);
  a.dqkv = tc_arr_of(&c->out[0]);
  a.dkv = tc_arr_of(&c->out[c->n_out - 1]);
  a.delta = (float *)c->scratch;
  if (a.N * a.H == 0) return 0;
  TC_ASSERT(a.dy.bf16 == a.qkv.bf16 && a.dqkv.bf16 == a.qkv.bf16);
  if (a.parts > 1) a.sums = (float *)((char *)c->scratch + sums_from(c));
  add_window(d, &a, c, &c->in[1], a.delta + c->in[3].elems);
  TC_LAUNCH(row_dots, tc_blocks(a.N * a.K * a.G, DOT_ROWS), dim3(DOT_THREADS), 0, tc_stream(d), a,
            tc_wide(a.D, &c->in[0], &c->in[2], NULL));
  if (on_tensor_cores(&a)) tc_cuda_attn_bwd_bf16(d, &a);
  else tc_cuda_attn_plain_bwd(d, &a);
  if (c->n_out == 1) return tc_cuda_launched(d, "attn_bwd");
  return run_copy_keys(d, c, &c->out[0], &c->out[1], true, true, "attn_bwd");
}

int tc_cuda_kv(struct tc_device *d, const struct tc_call *c)
{
  return run_copy_keys(d, c, &c->in[0], &c->out[0], false, false, "kv");
}

int tc_cuda_kv_bwd(struct tc_device *d, const struct tc_call *c)
{
  return run_copy_keys(d, c, &c->out[0], &c->in[1], true, false, "kv_bwd");
}

/* x[N,K,G+2,D], y[N,K r,G/r+2,D]: each group's queries in r parts, each part with a copy of the key and the value; back: the
 * copies are summed. A thread has element j, e of a group of x: it reads or writes its r copies. */
static __global__ void __launch_bounds__(COPY_THREADS)
spread(struct tc_arr x, struct tc_arr y, int64_t n, int64_t D, int64_t G, int64_t copies, bool back)
{
  const int64_t i = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x, part = G / copies;
  const int64_t j = i % D, e = i / D % (G + 2), group = i / D / (G + 2) * copies;
  if (i >= n) return;
  float sum = 0;
  for (int64_t r = e < G ? e / part : 0; r < (e < G ? e / part + 1 : copies); r++) {
    const int64_t at = ((group + r) * (part + 2) + (e < G ? e % part : part + e - G)) * D + j;
    if (back) sum += tc_get(y, at);
    else tc_put(y, at, tc_get(x, i));
  }
  if (back) tc_put(x, i, sum);
}

static int run_spread(struct tc_device *d, const struct tc_view *x, const struct tc_view *y, bool back, const char *what)
{
  if (x->elems == 0) return 0;
  TC_LAUNCH(spread, tc_blocks(x->elems, COPY_THREADS), dim3(COPY_THREADS), 0, tc_stream(d), tc_arr_of(x), tc_arr_of(y),
            x->elems, x->dim[3], x->dim[2] - 2, y->dim[1] / x->dim[1], back);
  return tc_cuda_launched(d, what);
}

int tc_cuda_spread(struct tc_device *d, const struct tc_call *c)
{
  return run_spread(d, &c->in[0], &c->out[0], false, "spread");
}

int tc_cuda_spread_bwd(struct tc_device *d, const struct tc_call *c)
{
  return run_spread(d, &c->out[0], &c->in[0], true, "spread_bwd");
}

/* x: a whole, y: a part of it; back: y is added to it, else taken. A thread has an element of the part. */
static __global__ void __launch_bounds__(COPY_THREADS)
part(struct tc_arr x, struct tc_arr y, struct tc_runs p, bool back)
{
  const int64_t i = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x;
  if (i >= p.runs * p.run) return;
  const int64_t at = i / p.run * p.step + p.from + i % p.run;
  if (back) tc_put(x, at, tc_get(x, at) + tc_get(y, i));
  else tc_put(y, i, tc_get(x, at));
}

static int run_part(struct tc_device *d, const struct tc_call *c, const struct tc_view *x, const struct tc_view *y, bool back,
                    const char *what)
{
  if (y->elems == 0) return 0;
  TC_LAUNCH(part, tc_blocks(y->elems, COPY_THREADS), dim3(COPY_THREADS), 0, tc_stream(d), tc_arr_of(x), tc_arr_of(y),
            tc_call_part(c, x, y), back);
  return tc_cuda_launched(d, what);
}

int tc_cuda_add_part(struct tc_device *d, const struct tc_call *c)
{
  return run_part(d, c, &c->out[0], &c->in[1], true, "add_part");
}

int tc_cuda_part(struct tc_device *d, const struct tc_call *c)
{
  return run_part(d, c, &c->in[0], &c->out[0], false, "part");
}

void tc_cuda_load_attn(struct tc_device *d) { tc_load_kernels(d, row_dots, copy_keys, spread, part, first_keys); }
