/* decode_bench.c - how fast new tokens are made, beside what reading the weights takes.
 *
 *   decode_bench CHECKPOINT [prompt=16] [tokens=64] [rounds=5] [forward=no] [top_k=50] [rows=0] [--OPTION=VALUE ...]
 *
 * OPTION: those of `tercio sample`, such as --train.precision=bf16 and --run.threads=2; one rank. A round makes TOKENS
 * tokens greedily, then as many drawn with temperature 0.8, top-p 0.95 and top_k. Each token is followed by a loop that
 * reads as many bytes as the weights have (at most 1 GiB, by which the time of all is computed), from memory of the
 * device, with the same threads. Figures are medians over the tokens of a round, then over the rounds:
 *
 *   read           the loop
 *   decode         a new token, the most likely one; decode/limit: the time of the loop over it
 *   sample         a new token that is drawn
 *   prefill        tokens of the prompt per second until the first new one, in runs of ROWS tokens; 0: as `tercio sample`
 *   forward        with forward=yes: tokens of a whole context per second, as evaluation and training's forward pass
 *                  compute them
 *
 * Last come the first tokens, to be compared with another program's: at place i the prompt has token
 * i * 7919 % vocabulary. */
#include "kernels/cpu/cpu.h"
#include "src/cmd/cmd.h"
#include "src/forward/sample.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"
#include "io/ckpt/h5.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT, TOKENS, ROUNDS, FORWARD, TOP_K, ROWS, SETTINGS };
static const char *const setting[SETTINGS] = { "prompt", "tokens", "rounds", "forward", "top_k", "rows" };
enum { READ, PREFILL, DECODE, SAMPLE, WHOLE, TIMES, SHOWN = 16, MOST_READ = 1 << 30 };

struct bench {
  struct tc_trained m;
  struct tc_launch launch;
  int64_t s[SETTINGS];
  int32_t *text;                 /* the prompt, or a whole context */
  double *seconds[TIMES];        /* [rounds] */
  int64_t bytes, span;           /* of the weights; of memory */
  uint64_t *memory;              /* for the loop that reads */
  int threads;
  double *token, *read;          /* [tokens] what each took, and the loop after it */
  int64_t n, begin;              /* tokens so far; when the next one began */
  int32_t first[SHOWN];
};

static double median_of(const struct bench *b, int what)
{
  double *x = tc_malloc((size_t)b->s[ROUNDS] * sizeof *x);
  memcpy(x, b->seconds[what], (size_t)b->s[ROUNDS] * sizeof *x);
  const double m = tc_median(x, (int)b->s[ROUNDS]);
  free(x);
  return m;
}

/* ---- reading ---------------------------------------------------------------------------------- */

TC_CLONES static uint64_t sum_of(const uint64_t *x, int64_t n)
{
  uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i];
  return sum;
}

/* The seconds that all weights would take. Each thread reads a contiguous part. */
static double read_all(const struct bench *b)
{
  uint64_t sum = 0;
  const int64_t n = b->span / (int64_t)sizeof *b->memory, threads = b->threads, begin = tc_now_ns();
#pragma omp parallel for num_threads((int)threads) schedule(static) reduction(+ : sum)
  for (int64_t t = 0; t < threads; t++)
    sum += sum_of(b->memory + t * n / threads, (t + 1) * n / threads - t * n / threads);
  const double seconds = (double)(tc_now_ns() - begin) * 1e-9;
  TC_ASSERT(sum == 0);
  return seconds * (double)b->bytes / (double)b->span;
}

/* ---- tokens ----------------------------------------------------------------------------------- */

static void take_token(void *ctx, int64_t i, int32_t token)
{
  struct bench *b = ctx;
  (void)i;
  b->token[b->n] = (double)(tc_now_ns() - b->begin) * 1e-9;
  b->read[b->n] = read_all(b);
  if (b->n < SHOWN) b->first[b->n] = token;
  b->n++;
  b->begin = tc_now_ns();
}

static int generate(struct bench *b, struct tc_forward *x, const struct tc_sampling *how, double *prefill, double *decode,
                    struct tc_err *err)
{
  const struct tc_prompt prompt = { b->text, b->s[PROMPT] };
  b->n = 0;
  b->begin = tc_now_ns();
  TC_TRY(tc_sample(x, how, &prompt, 1, take_token, b, err));
  *prefill = b->token[0];
  *decode = tc_median(b->token + 1, (int)b->n - 1);
  return 0;
}

static int64_t weight_bytes(const struct tc_run *r)
{
  const struct tc_graph *g = r->prog[TC_DECODE]->graph;
  int64_t bytes = 0;
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_tensor *t = &g->tensor[g->param[i].weight];
    bytes += tc_tensor_elems(t) * (int64_t)tc_dtype_bytes(t->dtype);
  }
  return bytes;
}

static int round_of(struct bench *b, int r, struct tc_forward *x, struct tc_forward *whole, struct tc_err *err)
{
  const struct tc_sampling greedy = { .top_p = 1, .tokens = b->s[TOKENS] };
  const struct tc_sampling drawn = { .temperature = 0.8, .top_k = b->s[TOP_K], .top_p = 0.95, .seed = 1,
                                     .tokens = b->s[TOKENS] };
  double again;
  int32_t first[SHOWN];
  TC_TRY(generate(b, x, &greedy, &b->seconds[PREFILL][r], &b->seconds[DECODE][r], err));
  b->seconds[READ][r] = tc_median(b->read, (int)b->n);
  memcpy(first, b->first, sizeof first);
  TC_TRY(generate(b, x, &drawn, &again, &b->seconds[SAMPLE][r], err));
  memcpy(b->first, first, sizeof first);
  if (!whole) return 0;
  const struct tc_forward_batch batch = { .tokens = b->text, .targets = b->text };
  const int64_t T = tc_forward_context(whole);
  float *loss = tc_malloc((size_t)T * sizeof *loss);
  const int64_t begin = tc_now_ns();
  const int rc = tc_forward_losses(whole, &batch, loss, err);
  b->seconds[WHOLE][r] = (double)(tc_now_ns() - begin) * 1e-9 / (double)T;
  free(loss);
  return rc;
}

/* ---- a rank ----------------------------------------------------------------------------------- */

static int open_model(struct tc_forward **x, const struct bench *b, enum tc_use use, struct tc_err *err)
{
  const struct tc_launch *l = &b->launch;
  const struct tc_prompt prompt = { b->text, b->s[PROMPT] };
  const struct tc_forward_args args = {
    .cfg = l->cfg, .ranks = l->ranks, .rank_names = l->rank_names, .hub = l->hub, .path = b->m.path, .foreign = b->m.foreign, .use = use,
    .prefill = b->s[ROWS] ? b->s[ROWS] : tc_sample_prefill(&(struct tc_sampling){ 0 }, &prompt, 1, l->cfg->model_context),
    .threads = tc_launch_threads(l->cfg, l->ranks, 0) };
  return tc_forward_new(x, &args, err);
}

static void report(const struct bench *b, const struct tc_run *r, bool whole)
{
  const double read = median_of(b, READ), decode = median_of(b, DECODE);
  const double prefill = median_of(b, PREFILL) / (double)b->s[PROMPT];
  printf("%s, %d threads, %.1f MB of weights, prompt of %lld, %lld tokens, %lld rounds\n",
         tc_dtype_name(r->cfg->train_precision), r->threads, (double)b->bytes * 1e-6, (long long)b->s[PROMPT],
         (long long)b->s[TOKENS], (long long)b->s[ROUNDS]);
  printf("read %.2f GB/s\ndecode %.3f ms/token\ndecode/limit %.3f\nsample %.3f ms/token\nprefill %.1f tok/s\n",
         (double)b->bytes * 1e-9 / read, decode * 1e3, read / decode, median_of(b, SAMPLE) * 1e3, 1 / prefill);
  if (whole) printf("forward %.1f tok/s\nprefill/forward %.3f\n", 1 / median_of(b, WHOLE), median_of(b, WHOLE) / prefill);
  printf("tokens");
  for (int64_t i = 0; i < TC_MIN(b->s[TOKENS], (int64_t)SHOWN); i++) printf(" %d", b->first[i]);
  printf("\n");
}

static int run_rank(int rank, void *bench, struct tc_err *err)
{
  struct bench *b = bench;
  struct tc_forward *x = NULL, *whole = NULL;
  struct tc_device *d = NULL;
  (void)rank;
  int rc = open_model(&x, b, TC_TO_SAMPLE, err);
  if (rc == 0 && b->s[FORWARD]) rc = open_model(&whole, b, TC_TO_EVALUATE, err);
  if (rc == 0) {
    d = tc_forward_run(x)->device;
    b->threads = tc_forward_run(x)->threads;
    b->bytes = weight_bytes(tc_forward_run(x));
    b->span = TC_MIN(b->bytes, (int64_t)MOST_READ);
    b->memory = d->ops->alloc(d, b->span);       /* zeros */
    if (!b->memory) rc = tc_fail(err, TC_EUSER, "out of memory: %.1f GB to read", (double)b->span * 1e-9);
  }
  for (int r = 0; r < b->s[ROUNDS] && rc == 0; r++) rc = round_of(b, r, x, whole, err);
  if (rc == 0) report(b, tc_forward_run(x), whole != NULL);
  if (b->memory) d->ops->free(d, b->memory, b->span);
  tc_forward_free(whole, rc == TC_EPEER);
  tc_forward_free(x, rc == TC_EPEER);
  return rc;
}

static int parse(struct bench *b, int argc, char **argv, struct tc_err *err)
{
  static const struct tc_flag none[] = { { .form = NULL } };
  static const struct tc_flags flags = TC_FLAGS_MODEL(none, "decode_bench");
  int n_words = 1;                               /* in argv, without the settings */
  for (int i = 1; i < argc; i++) {
    bool known = false;
    for (int k = 0; k < SETTINGS && !known; k++) {
      const size_t n = strlen(setting[k]);
      known = !strncmp(argv[i], setting[k], n) && argv[i][n] == '=';
      if (known) b->s[k] = k == FORWARD ? !strcmp(argv[i] + n + 1, "yes") : atoll(argv[i] + n + 1);
    }
    if (!known) argv[n_words++] = argv[i];
  }
  TC_TRY(tc_args_model(&b->m, &flags, b, n_words, argv, err));
  if (b->s[PROMPT] > 0 && b->s[TOKENS] > 1 && b->s[ROUNDS] > 0
      && b->s[ROWS] >= 0) return 0;
  return tc_fail(err, TC_EUSER, "give a checkpoint; prompt and rounds are 1 or more, tokens 2 or more");
}

int main(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct bench b = { .s = { 16, 64, 5, false, 50, 0 } };
  tc_h5_start();
  int rc = parse(&b, argc, argv, &err);
  if (rc == 0) rc = tc_trained_open(&b.m, &err);
  if (rc == 0) {
    struct tc_config *c = b.m.cfg;
    const int64_t n = TC_MAX(b.s[PROMPT], c->model_context);
    c->train_global_batch = 1;
    b.text = tc_malloc((size_t)n * sizeof *b.text);
    for (int64_t i = 0; i < n; i++) b.text[i] = (int32_t)(i * 7919 % c->model_vocab);
    b.token = tc_calloc((size_t)b.s[TOKENS], sizeof *b.token);
    b.read = tc_calloc((size_t)b.s[TOKENS], sizeof *b.read);
    for (int k = 0; k < TIMES; k++) b.seconds[k] = tc_calloc((size_t)b.s[ROUNDS], sizeof(double));
    rc = tc_launch_find(&b.launch, c, &err);
  }
  const int status = rc < 0 ? tc_launch_say(&b.launch, rc, &err) : tc_launch_run(&b.launch, run_rank, &b);
  tc_launch_free(&b.launch);
  for (int k = 0; k < TIMES; k++) free(b.seconds[k]);
  free(b.text);
  free(b.token);
  free(b.read);
  tc_trained_free(&b.m);
  return status;
}
