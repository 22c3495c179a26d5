/* tune.cu - chooses the plans of products by time.
 *
 * cuBLASLt's heuristics order the plans of a product by an estimate, and whether an epilogue costs less than the pass
 * over memory that it saves depends on the shape too. Here each plan of a prepared call is run a few times, and so
 * are the parts of a fused one. Another than the library's first is taken only if it is clearly faster.
 *
 * Plans differ in the order of their sums, so a choice is a part of a run's arithmetic: it is written as a line of
 * text, from which other ranks and a resumed run take it without timing:
 *
 *   sm90x132 cublaslt130200 65536x3072x768 nt bf16 bf16 bias: 3500...00 410.2 of 431.9 us
 *
 * capability and processors of the GPU, version of the library, sizes, transposition (t), types and epilogue; then the
 * plan's bytes, or "apart" for the parts of a fused product. The library lets the bytes be kept for the same version,
 * and gives the same bits on GPUs of one capability with as many processors. */
#include "kernels/cuda/gemm.h"

#include <ctype.h>

enum { ROUNDS = 3, RUNS = 3, THREADS = 256, KEY_BYTES = 200 };

/* Operands for every plan that is timed, in one piece of memory. */
enum { A, B, Y, AUX, SUMS, WORK, PARTS };
struct room { char *at, *part[PARTS]; int64_t bytes[PARTS], all; };

struct pass { tc_cuda_fn *run; struct tc_call call; struct tc_view view[3]; };
/* An algorithm of a plan, then the passes over memory that its product lacks. */
enum { PASSES = 2 };
struct trial {
  struct plan *p;
  const cublasLtMatmulAlgo_t *algo;
  struct product x;
  struct pass pass[PASSES];
  int passes;
};

/* ---- operands ------------------------------------------------------------------------------ */

/* bf16 numbers between -1 and 1, which are ones of fp32 too: a GPU draws less power, and may be faster, on zeros. */
static __global__ void __launch_bounds__(THREADS) scatter(struct tc_arr x, int64_t n)
{
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n) return;
  const uint32_t r = ((uint32_t)i * 2654435761u) ^ ((uint32_t)i >> 7);
  tc_put(x, i, (float)(r >> 8) * 0x1p-23f - 1.f);
}

static struct tc_view view_of(void *data, int dtype, int64_t rows, int64_t cols)
{
  struct tc_view v;
  memset(&v, 0, sizeof v);
  v.data = data, v.dtype = (uint8_t)dtype, v.rank = 2, v.rows = -1, v.elems = rows * cols;
  v.dim[0] = v.global[0] = rows, v.dim[1] = v.global[1] = cols;
  return v;
}

/* What a product with sums sums up, and these: of A, or of its output. */
static void views_of_sums(struct tc_view v[2], const struct key *k, void *of, void *sums)
{
  const bool a = k->epilogue == BIAS_BWD;
  v[0] = a ? view_of(of, k->in, k->k, k->m) : view_of(of, k->out, k->m, k->n);
  v[1] = view_of(sums, k->out, 1, a ? k->m : k->n);
}

/* The scratch memory of the library, or of a pass over memory. */
static int64_t work_bytes(struct tc_device *d, const struct key *k)
{
  struct tc_view v[2];
  struct tc_call c;
  memset(&c, 0, sizeof c);
  views_of_sums(v, k, NULL, NULL);
  c.n_in = c.n_out = 1, c.in = v, c.out = v + 1;
  return TC_MAX((int64_t)WORKSPACE_BYTES, k->epilogue >= GELU_BIAS_BWD ? tc_cuda_bias_bwd_scratch(d, &c) : 0);
}

static void room_for(struct tc_device *d, struct room *r, const struct key *k)
{
  const int64_t in = (int64_t)tc_dtype_bytes(k->in), out = (int64_t)tc_dtype_bytes(k->out);
  const bool aux = is_fused(k) && k->epilogue != BIAS_BWD;   /* the logits, the largest output, are not fused */
  const int64_t need[PARTS] = { k->m * k->k * in, k->k * k->n * in, k->m * k->n * out, aux ? k->m * k->n * out : 0,
                                TC_MAX(k->m, k->n) * out, work_bytes(d, k) };
  for (int i = 0; i < PARTS; i++) r->bytes[i] = TC_MAX(r->bytes[i], tc_round_up(need[i], 256));
}

/* False: there is no memory for it. */
static bool room_open(struct tc_device *d, struct room *r)
{
  for (const struct plan *p = tc_cuda_of(d)->lt->plans; p; p = p->next)
    if (p->used) room_for(d, r, &p->key);
  for (int i = 0; i < PARTS; i++) r->all += r->bytes[i];
  r->at = (char *)d->ops->alloc(d, r->all);
  if (!r->at) return false;
  char *at = r->at;
  for (int i = 0; i < PARTS; at += r->bytes[i++]) r->part[i] = at;
  const struct tc_arr x = { r->at, true };
  const int64_t n = (r->all - r->bytes[WORK]) / 2;
  TC_LAUNCH(scatter, tc_blocks(n, THREADS), dim3(THREADS), 0, tc_stream(d), x, n);
  return true;
}

/* ---- times --------------------------------------------------------------------------------- */

static void trial_of(struct trial *t, struct plan *p, const struct room *r)
{
  memset(t, 0, sizeof *t);
  t->p = p, t->algo = &p->algo[0], t->x.key = p->key;
  t->x.a = r->part[A], t->x.b = r->part[B], t->x.y = r->part[Y], t->x.c = r->part[p->key.residual ? AUX : Y];
  if (has_bias(&p->key)) t->x.bias = r->part[SUMS];
  if (has_aux(&p->key)) t->x.aux = r->part[AUX];
  t->x.beta = p->adds ? 1.f : 0.f;
}

/* The pass over memory that the fused product `of` saves, of two the last. */
static void add_pass(struct trial *t, const struct key *of, const struct room *r)
{
  const bool sums = of->epilogue >= GELU_BIAS_BWD, back = of->epilogue == GELU_BWD;
  struct pass *p = &t->pass[t->passes++];
  struct tc_view *v = p->view;
  int n = 1;
  if (sums) {
    views_of_sums(v, of, r->part[of->epilogue == BIAS_BWD ? A : Y], r->part[SUMS]);
  } else {
    v[0] = view_of(r->part[Y], of->out, of->m, of->n);
    if (back || of->residual) v[n++] = view_of(r->part[AUX], of->out, of->m, of->n);
    v[n] = view_of(r->part[back ? Y : AUX], of->out, of->m, of->n);
  }
  p->run = sums ? tc_cuda_bias_bwd : back ? tc_cuda_act_bwd : of->residual ? tc_cuda_add : tc_cuda_act;
  p->call.n_in = n, p->call.n_out = 1, p->call.in = v, p->call.out = v + n, p->call.scratch = r->part[WORK];
}

static bool run_trial(struct tc_device *d, const struct trial *t, void *work)
{
  if (tc_cuda_plan_run(d, t->p, t->algo, &t->x, work) != CUBLAS_STATUS_SUCCESS) return false;
  for (int i = 0; i < t->passes; i++)
    if (t->pass[i].run(d, &t->pass[i].call) != 0) return false;
  return true;
}

/* Lowers *best to the nanoseconds of one run; stays 0 if the library refuses it. The first run is not timed: while it
 * is under way the host queues the others. */
static void time_trial(struct tc_device *d, const struct trial *t, const struct room *r, int64_t *best)
{
  tc_cuda_clock.restart(d);
  if (!run_trial(d, t, r->part[WORK])) return;
  const int32_t from = tc_cuda_clock.event(d);
  for (int i = 0; i < RUNS; i++)
    if (!run_trial(d, t, r->part[WORK])) return;
  const int32_t to = tc_cuda_clock.event(d);
  d->ops->sync(d);
  const int64_t ns = TC_MAX(tc_cuda_clock.interval(d, from, to) / RUNS, (int64_t)1);
  if (*best == 0 || ns < *best) *best = ns;
}

/* Clearly: by more than one time of a plan differs from the next. */
static bool is_faster(int64_t ns, int64_t than) { return ns * 100 < than * 98; }

/* Plan `algo` comes first; the others stay after it, for what the library may refuse to run. */
static void prefer(struct plan *p, cublasLtMatmulAlgo_t algo)
{
  int at = 0;
  while (at < p->algos && memcmp(&p->algo[at], &algo, sizeof algo)) at++;
  if (at == p->algos) p->algos = TC_MIN(p->algos + 1, (int)MOST_PLANS), at = p->algos - 1;
  memmove(&p->algo[1], &p->algo[0], (size_t)at * sizeof algo);
  p->algo[0] = algo;
  p->ran &= at == 0;
  p->now = 0;
}

/* Times plans in turns, so that a GPU that gets warm slows all of them. Returns the time of the library's first, ns; 0: none of
 * them runs. */
static int64_t time_plan(struct tc_device *d, struct plan *p, const struct room *r)
{
  int64_t ns[MOST_PLANS] = { 0 };
  struct trial t;
  trial_of(&t, p, r);
  for (int i = 0; i < ROUNDS; i++)
    for (int k = 0; k < p->algos; k++) {
      t.algo = &p->algo[k];
      time_trial(d, &t, r, &ns[k]);
    }
  int first = 0, best;
  while (first < p->algos && !ns[first]) first++;
  if (first == p->algos) return 0;
  best = first;
  for (int k = first + 1; k < p->algos; k++)
    if (ns[k] && is_faster(ns[k], ns[first]) && ns[k] < ns[best]) best = k;
  p->ns = ns[best];
  prefer(p, p->algo[best]);
  p->ran = true;
  return ns[first];
}

/* The fused product without its last pass. */
static struct key without_pass(const struct key *of)
{
  struct key k = *of;
  if (k.residual) k.residual = 0;
  else k.epilogue = k.epilogue == GELU_BIAS_BWD ? GELU_BWD : k.epilogue == GELU_BIAS ? BIAS : PLAIN;
  return k;
}

/* The parts of a fused product, one by one, or two of three as one where that is faster; 0: not known. */
static int64_t time_apart(struct tc_device *d, const struct plan *p, const struct room *r)
{
  const struct key two = without_pass(&p->key), one = without_pass(&two);
  const bool three = is_fused(&two);
  struct plan *other = tc_cuda_plan_of(d, &two, two.narrow);
  const bool all = three && !other;
  if (all) other = tc_cuda_plan_of(d, &one, one.narrow);
  if (!other || !other->used) return 0;
  struct trial t;
  int64_t ns = 0;
  trial_of(&t, other, r);
  if (all) add_pass(&t, &two, r);
  add_pass(&t, &p->key, r);
  for (int i = 0; i < ROUNDS; i++) time_trial(d, &t, r, &ns);
  return ns;
}

/* ---- lines --------------------------------------------------------------------------------- */

static void key_text(struct tc_device *d, const struct plan *p, char text[KEY_BYTES])
{
  static const char *const epilogue[] = { "plain", "bias", "gelu", "bias+gelu", "gelu_bwd", "gelu_bwd+bias_bwd",
                                          "bias_bwd" };
  const struct key *k = &p->key;
  const struct tc_cuda *c = tc_cuda_of(d);
  snprintf(text, KEY_BYTES, "sm%dx%d cublaslt%lld %lldx%lldx%lld %c%c %s %s %s%s%s", c->capability, c->processors,
           (long long)tc_cuda_lt_version(), (long long)k->m, (long long)k->n, (long long)k->k, k->ta ? 't' : 'n',
           k->tb ? 't' : 'n', k->in == TC_F32 && d->tf32 ? "tf32" : tc_dtype_name(k->in), tc_dtype_name(k->out),
           epilogue[k->epilogue], k->residual ? "+add" : "", k->narrow ? " unaligned" : "");
}

/* What is chosen in the line of that key; NULL: there is none. */
static const char *choice_in(const char *lines, const char *key)
{
  const size_t n = strlen(key);
  for (const char *at = lines; *at; at += *at == '\n') {
    if (!strncmp(at, key, n) && !strncmp(at + n, ": ", 2)) return at + n + 2;
    at += strcspn(at, "\n");
  }
  return NULL;
}

static bool algo_of(const char *hex, cublasLtMatmulAlgo_t *algo)
{
  unsigned char *byte = (unsigned char *)algo;
  for (size_t i = 0; i < sizeof *algo; i++, hex += 2) {
    const char two[3] = { hex[0], isxdigit((unsigned char)hex[0]) ? hex[1] : '\0', '\0' };
    if (!isxdigit((unsigned char)two[0]) || !isxdigit((unsigned char)two[1])) return false;
    byte[i] = (unsigned char)strtoul(two, NULL, 16);
  }
  return *hex == ' ';
}

/* False: the library does not have that plan here. */
static bool take(struct tc_device *d, struct plan *p, const char *choice)
{
  cublasLtMatmulAlgo_t algo;
  cublasLtMatmulHeuristicResult_t r;
  const bool apart = !strncmp(choice, "apart ", 6);
  if (apart && !is_fused(&p->key)) return false;
  if (!apart && (!algo_of(choice, &algo)
                 || cublasLtMatmulAlgoCheck(tc_cuda_of(d)->lt->handle, p->desc, p->a, p->b, p->c, p->c, &algo, &r)
                        != CUBLAS_STATUS_SUCCESS
                 || r.workspaceSize > p->workspace_bytes))
    return false;
  p->none = apart;
  if (!apart) prefer(p, algo);
  return true;
}

/* Chooses a plan by time, and writes its line. */
static bool measure(struct tc_device *d, struct plan *p, const struct room *r, const char *key, FILE *f)
{
  const int64_t first = time_plan(d, p, r);
  if (!first) return false;
  const int64_t apart = is_fused(&p->key) ? time_apart(d, p, r) : 0;
  p->none = apart && is_faster(apart, p->ns);
  fprintf(f, "%s: ", key);
  const unsigned char *byte = (const unsigned char *)&p->algo[0];
  for (size_t i = 0; !p->none && i < sizeof p->algo[0]; i++) fprintf(f, "%02x", byte[i]);
  fprintf(f, "%s %.1f of %.1f us\n", p->none ? "apart" : "", (double)(p->none ? apart : p->ns) * 1e-3,
          (double)first * 1e-3);
  return true;
}

/* Runs a plan once, so that the library's kernels are loaded before transfers are under way, as ours are. */
static void load_plan(struct tc_device *d, struct plan *p, const struct room *r)
{
  struct trial t;
  trial_of(&t, p, r);
  run_trial(d, &t, r->part[WORK]);
  p->ran = true;
}

/* How many passes are a part of the product. */
static int passes_of(const struct key *k) { return is_fused(k) + (k->epilogue == GELU_BIAS_BWD); }

/* Plain products first: they are parts of the fused ones, and those of two parts of those of three. */
int tc_cuda_tune(struct tc_device *d, const char *known, bool time, void (*again)(void), char **text, int *timed,
                 struct tc_err *err)
{
  struct room r;
  size_t size = 0;
  bool opened = false, full = false;
  memset(&r, 0, sizeof r);
  *text = NULL, *timed = 0;
  FILE *f = open_memstream(text, &size);
  if (!f) return tc_fail(err, TC_EUSER, "out of host memory for the plans of products");
  for (int fused = 0; fused <= PASSES; fused++)
    for (struct plan *p = tc_cuda_of(d)->lt->plans; p; p = p->next) {
      char key[KEY_BYTES];
      if (!p->used || !p->algos || passes_of(&p->key) != fused) continue;
      again();
      key_text(d, p, key);
      const char *choice = choice_in(known, key);
      const bool taken = choice && take(d, p, choice), timing = time && !taken && (p->algos > 1 || fused);
      const bool loading = tc_cuda_of(d)->loaded && !timing && !p->ran && !p->none;
      if (taken) fprintf(f, "%s: %.*s\n", key, (int)strcspn(choice, "\n"), choice);
      if ((timing || loading) && !opened && !full) full = !(opened = room_open(d, &r));
      if (timing) *timed += opened && measure(d, p, &r, key, f);
      else if (loading && opened) load_plan(d, p, &r);
    }
  if (opened) d->ops->free(d, r.at, r.all);
  if (full) *timed = -1;
  fclose(f);
  if (d->ops->check(d, err) == 0) return 0;
  free(*text);
  *text = NULL;
  return TC_EUSER;
}

void tc_cuda_load_tune(struct tc_device *d) { tc_load_kernels(d, scatter); }
