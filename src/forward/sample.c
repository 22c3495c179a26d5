/* sample.c - prompts, then one token after the other, and how a token is chosen.
 *
 * Sequences of a batch are side by side, each at its own position. A run takes the next tokens of each: TC_PREFILL up
 * to `prefill` of them, but not the last, TC_DECODE one, of which it gives the logits. So logits are made of one token
 * of a prompt alone: with a small model and a large vocabulary they are a third of the work. A row for which a sequence
 * has no token repeats its last one at the same position: it writes the key and the value that belong there. */
#include "src/forward/sample.h"
#include "src/forward/impl.h"
#include "src/program/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the next token --------------------------------------------------------------------------- */

enum { BUCKETS = 4096 };

/* Tokens from the most likely on, as far as they are asked for. Those of a bucket have logits of a range; all ranges
 * are equally wide, so that buckets of likely tokens have few, and a bucket is only sorted when its turn comes. */
struct ranking {
  const float *logits;
  int32_t *order;                /* the tokens, bucket by bucket; sorted up to number `sorted` */
  float top, scale;
  int64_t sorted;
  int bucket;                    /* the first that is not sorted */
  int32_t end[BUCKETS];          /* of each bucket, in order */
};

/* qsort has no context. */
static _Thread_local const float *sorted_by;

static int by_logit(const void *a, const void *b)
{
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  if (sorted_by[x] != sorted_by[y]) return sorted_by[x] > sorted_by[y] ? -1 : 1;
  return x < y ? -1 : 1;
}

/* A larger logit has no higher bucket. What is no number (infinities, or a width of 0) is in the last one. */
static int bucket_of(const struct ranking *r, float logit)
{
  const float at = (r->top - logit) * r->scale;
  return at < BUCKETS - 1 ? (int)at : BUCKETS - 1;
}

/* The tokens that may be among the first `kept`; of others only the number is known. */
static void rank_begin(struct ranking *r, const float *logits, int64_t n, int64_t kept, int32_t *order)
{
  float top = -INFINITY, least = INFINITY;
  for (int64_t i = 0; i < n; i++) {
    top = logits[i] > top ? logits[i] : top;
    least = logits[i] < least && logits[i] > -INFINITY ? logits[i] : least;
  }
  *r = (struct ranking){ .logits = logits, .order = order, .top = top, .scale = (BUCKETS - 1) / (top - least) };
  for (int64_t i = 0; i < n; i++) r->end[bucket_of(r, logits[i])]++;
  int last = 0;
  for (int32_t b = 0, all = 0; b < BUCKETS; b++) {               /* where each begins, for now */
    const int32_t size = r->end[b];
    if (all < kept) last = b;
    r->end[b] = all;
    all += size;
  }
  for (int32_t i = 0; i < n; i++) {
    const int b = bucket_of(r, logits[i]);
    if (b <= last) order[r->end[b]++] = i;
  }
}

/* Token number i, 0 the most likely one. i goes on by 1 or begins anew, and is below rank_begin's `kept`. */
static int32_t ranked(struct ranking *r, int64_t i)
{
  while (i >= r->sorted) {
    const int64_t from = r->sorted;
    r->sorted = r->end[r->bucket++];
    sorted_by = r->logits;
    qsort(r->order + from, (size_t)(r->sorted - from), sizeof *r->order, by_logit);
  }
  return r->order[i];
}

static int32_t most_likely(const float *logits, int64_t n)
{
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

int64_t tc_sample_bad_logit(const float *logits, int64_t n)
{
  int64_t possible = 0;
  for (int64_t i = 0; i < n; i++) {
    if (isnan(logits[i]) || logits[i] == INFINITY) return i;
    possible += logits[i] > -INFINITY;
  }
  return possible > 0 ? -1 : 0;
}

/* Its probability, relative to that of the most likely token. */
static double weight(const struct tc_sampling *s, const struct ranking *r, int32_t token)
{
  return exp(((double)r->logits[token] - (double)r->top) / s->temperature);
}

int32_t tc_sample_pick(const struct tc_sampling *s, const float *logits, int64_t n, double u, int32_t *order)
{
  if (s->temperature <= 0) return most_likely(logits, n);
  const int64_t kept = s->top_k > 0 ? TC_MIN(s->top_k, n) : n;
  struct ranking r;
  rank_begin(&r, logits, n, kept, order);
  double all = 0, below = 0;
  for (int32_t i = 0; i < kept; i++) all += weight(s, &r, kept < n ? ranked(&r, i) : i);
  double limit = s->top_p < 1 ? 0 : all;
  for (int64_t i = 0; i < kept && s->top_p < 1; i++) {
    limit += weight(s, &r, ranked(&r, i));
    if (limit >= s->top_p * all) break;
  }
  int32_t token = ranked(&r, 0);
  for (int64_t i = 0; i < kept; i++) {
    const double p = weight(s, &r, ranked(&r, i));
    if (!(p > 0)) break;                         /* nor are those after it possible */
    token = ranked(&r, i);
    below += p;
    if (u * limit < below || below >= limit) break;
  }
  return token;
}

bool tc_sample_ends(const struct tc_sampling *s, int32_t token)
{
  int i = 0;
  while (i < s->n_ends && s->end[i] != token) i++;
  return i < s->n_ends;
}

/* ---- sequences -------------------------------------------------------------------------------- */

/* The prompt and the new tokens. Those from number `base` on are within the context, `fed` of them in the cache. */
struct sequence {
  int32_t *token;
  int64_t n, base, fed, made;
  bool done;
};

struct state {
  struct tc_forward *x;
  const struct tc_sampling *s;
  struct sequence *seq;          /* [B] */
  int64_t B, M, V;               /* sequences; context; vocabulary */
  int32_t *order;                /* [V] */
  float *logits;                 /* [V] */
  bool warned;                   /* a full context was logged */
  tc_sample_token_fn *token;
  void *ctx;
};

static int64_t pending(const struct sequence *q) { return q->n - q->base - q->fed; }

/* What a run of `rows` tokens per sequence reads: its pending ones, and repetitions. */
static int run(struct state *t, int kind, int64_t rows, struct tc_err *err)
{
  const struct tc_runtime rt = { .step = 1 };
  int32_t *tokens = tc_malloc(2 * (size_t)(t->B * rows) * sizeof *tokens), *starts = tokens + t->B * rows;
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = 0; i < rows; i++) {
      const struct sequence *q = &t->seq[b];
      const int64_t n = b * rows + i, at = TC_MIN(q->fed + i, q->done ? q->fed - 1 : q->n - q->base - 1);
      tokens[n] = q->token[q->base + at];
      starts[n] = (int32_t)(n % t->M - at);
    }
  t->x->batch = (struct tc_forward_batch){ tokens, tokens, starts };
  const int rc = tc_exec_run(t->x->run.exec, kind, &rt, err);
  free(tokens);
  return rc;
}

/* The logits of row `row` of the last run of TC_DECODE. */
static void read_logits(struct state *t, int64_t row)
{
  const struct tc_run *r = &t->x->run;
  const int32_t id = r->prog[TC_DECODE]->graph->logits;
  const struct tc_tensor *x = &r->prog[TC_DECODE]->graph->tensor[id];
  struct tc_local l;
  tc_tensor_local(x, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES, &l);
  const size_t elem = tc_dtype_bytes(x->dtype);
  const char *from = (const char *)tc_exec_tensor(r->exec, TC_DECODE, id) + (size_t)(row * l.dim[1]) * elem;
  void *raw = x->dtype == TC_F32 ? (void *)t->logits : tc_malloc((size_t)t->V * elem);
  r->device->ops->copy(r->device, raw, from, t->V * (int64_t)elem);
  for (int64_t i = 0; i < t->V && raw != t->logits; i++) t->logits[i] = tc_bf16_to_f32(((uint16_t *)raw)[i]);
  if (raw != t->logits) free(raw);
}

/* Chooses the next token of sequence b by t->logits. */
static int choose(struct state *t, int64_t b, struct tc_err *err)
{
  const struct tc_sampling *s = t->s;
  struct sequence *q = &t->seq[b];
  const int64_t known = s->known ? TC_MIN(s->known, t->V) : t->V;
  uint32_t r[4];
  const int64_t bad = tc_sample_bad_logit(t->logits, known);
  if (bad >= 0)
    return tc_fail(err, TC_EDIVERGED, "the model gives no probabilities (logit %lld is %s): a diverged run's "
                   "checkpoint? tercio ckpt tensors shows its weights", (long long)bad, tc_not_finite(t->logits[bad]));
  tc_philox(r, s->seed, (uint64_t)b, (uint64_t)q->made);
  const double u = (double)((uint64_t)r[1] << 21 | r[0] >> 11) * 0x1p-53;
  const int32_t token = tc_sample_pick(s, t->logits, known, u, t->order);
  q->token[q->n++] = token;
  q->done = ++q->made == s->tokens || tc_sample_ends(s, token);
  t->token(t->ctx, b, token);
  return 0;
}

/* The next tokens of prompts go in, but for the last of each. */
static int read_prompts(struct state *t, struct tc_err *err)
{
  const int64_t rows = t->x->run.opts.prefill;
  TC_TRY(run(t, TC_PREFILL, rows, err));
  for (int64_t b = 0; b < t->B; b++)
    if (!t->seq[b].done) t->seq[b].fed += TC_MIN(rows, pending(&t->seq[b]) - 1);
  return 0;
}

/* The last token of each sequence goes in, and another one is chosen. */
static int extend(struct state *t, struct tc_err *err)
{
  TC_TRY(run(t, TC_DECODE, 1, err));
  for (int64_t b = 0; b < t->B; b++) {
    if (t->seq[b].done) continue;
    t->seq[b].fed++;
    read_logits(t, b);
    TC_TRY(choose(t, b, err));
  }
  return 0;
}

/* A sequence that exceeds the context begins anew with its last half. */
static void move_window(struct state *t, struct sequence *q)
{
  const int64_t kept = TC_MAX(t->M / 2, 1);
  if (q->n - q->base <= t->M) return;
  q->base = q->n - kept;
  q->fed = 0;
  if (!t->warned && t->x->run.rank == 0)
    tc_log("the context of %lld tokens is full: the text goes on from its last %lld, here and whenever it is full "
           "again",
           (long long)t->M, (long long)kept);
  t->warned = true;
}

int64_t tc_sample_prefill(const struct tc_sampling *s, const struct tc_prompt *prompts, int64_t n, int64_t context)
{
  int64_t longest = s->window ? TC_MAX(context / 2, 1) : 1;      /* what move_window leaves is read again */
  for (int64_t b = 0; b < n; b++) longest = TC_MAX(longest, TC_MIN(prompts[b].n, context));
  return tc_setup_prompt_at_once(longest, n);
}

static int generate(struct state *t, struct tc_err *err)
{
  for (;;) {
    int64_t most = 0;
    for (int64_t b = 0; b < t->B; b++) {
      struct sequence *q = &t->seq[b];
      if (q->done) continue;
      move_window(t, q);
      most = TC_MAX(most, pending(q));
    }
    if (most == 0) return 0;
    TC_TRY(most > 1 ? read_prompts(t, err) : extend(t, err));
  }
}

int tc_sample(struct tc_forward *x, const struct tc_sampling *s, const struct tc_prompt *prompts, int64_t n,
              tc_sample_token_fn *token, void *ctx, struct tc_err *err)
{
  struct state t = { .x = x, .s = s, .B = n, .M = tc_forward_context(x), .V = x->run.opts.model.vocab, .token = token,
                     .ctx = ctx };
  TC_ASSERT(n == tc_forward_sequences(x) && s->tokens > 0);
  for (int64_t b = 0; b < n; b++)
    if (prompts[b].n < 1 || (!s->window && prompts[b].n + s->tokens > t.M + 1))
      return tc_fail(err, TC_EUSER, "prompt %lld of %lld tokens and %lld new ones exceed the model's context of %lld; "
                     "fewer new tokens would fit, a shorter prompt, or --window", (long long)b, (long long)prompts[b].n,
                     (long long)s->tokens, (long long)t.M);
  t.seq = tc_calloc((size_t)n, sizeof *t.seq);
  t.order = tc_malloc((size_t)t.V * sizeof *t.order);
  t.logits = tc_malloc((size_t)t.V * sizeof *t.logits);
  for (int64_t b = 0; b < n; b++) {
    t.seq[b] = (struct sequence){ .token = tc_malloc((size_t)(prompts[b].n + s->tokens) * sizeof(int32_t)),
                                  .n = prompts[b].n };
    memcpy(t.seq[b].token, prompts[b].token, (size_t)prompts[b].n * sizeof(int32_t));
  }
  const int rc = generate(&t, err);
  for (int64_t b = 0; b < n; b++) free(t.seq[b].token);
  TC_FREE(t.seq, t.order, t.logits);
  return rc;
}
