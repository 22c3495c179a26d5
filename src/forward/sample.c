/* sample.c - prompts, then one token after the other, and how a token is chosen.
 *
 * Sequences of a batch lie side by side, each at its own position. A run of TC_PREFILL takes `chunk` tokens of each:
 * of a shorter prompt the rows behind its end compute what nobody reads, since the key and value of a position are
 * written again when its token is there. */
#include "src/forward/sample.h"
#include "src/forward/impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the next token --------------------------------------------------------------------------- */

/* qsort has no context. */
static _Thread_local const float *sorted_by;

static int by_logit(const void *a, const void *b)
{
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  if (sorted_by[x] != sorted_by[y]) return sorted_by[x] > sorted_by[y] ? -1 : 1;
  return x < y ? -1 : 1;
}

static int32_t most_likely(const float *logits, int64_t n)
{
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

int32_t tc_sample_pick(const struct tc_sampling *s, const float *logits, int64_t n, double u, int32_t *order)
{
  if (s->temperature <= 0) return most_likely(logits, n);
  const int64_t kept = s->top_k > 0 ? TC_MIN(s->top_k, n) : n;
  for (int32_t i = 0; i < n; i++) order[i] = i;
  sorted_by = logits;
  qsort(order, (size_t)n, sizeof *order, by_logit);
  double all = 0, below = 0;
  for (int64_t i = 0; i < kept; i++) all += exp(((double)logits[order[i]] - (double)logits[order[0]]) / s->temperature);
  double limit = s->top_p < 1 ? 0 : all;
  for (int64_t i = 0; i < kept && s->top_p < 1; i++) {
    limit += exp(((double)logits[order[i]] - (double)logits[order[0]]) / s->temperature);
    if (limit >= s->top_p * all) break;
  }
  for (int64_t i = 0; i < kept; i++) {
    below += exp(((double)logits[order[i]] - (double)logits[order[0]]) / s->temperature);
    if (u * limit < below || below >= limit) return order[i];
  }
  return order[kept - 1];
}

/* ---- sequences -------------------------------------------------------------------------------- */

struct state {
  struct tc_forward *x;
  const struct tc_sampling *s;
  const struct tc_prompt *prompt;
  int64_t n, B, M, V;            /* prompts; sequences of a run; context; vocabulary */
  int32_t *next;                 /* [B] the token that each sequence reads next */
  bool *ended;                   /* [B] */
  int32_t *order;                /* [V] */
  tc_sample_token_fn *token;
  void *ctx;
};

/* What a run of `rows` new tokens a sequence reads, beginning at at[b]. */
static int run(struct state *t, int kind, int64_t rows, const int32_t *tokens, const int64_t *at, struct tc_err *err)
{
  const struct tc_runtime rt = { .step = 1 };
  int32_t *starts = tc_malloc((size_t)(t->B * rows) * sizeof *starts);
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = 0; i < rows; i++)
      starts[b * rows + i] = (int32_t)((b * rows + i) % t->M - TC_MIN(at[b] + i, t->M - 1));
  t->x->batch = (struct tc_forward_batch){ tokens, tokens, starts };
  const int rc = tc_exec_run(t->x->run.exec, kind, &rt, err);
  free(starts);
  return rc;
}

/* The logits of row `row` of the last run. */
static void read_logits(struct state *t, int kind, int64_t row, float *logits)
{
  const struct tc_run *r = &t->x->run;
  const int32_t id = r->prog[kind]->graph->logits;
  const struct tc_tensor *x = &r->prog[kind]->graph->tensor[id];
  struct tc_local l;
  tc_tensor_local(x, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES, &l);
  const size_t elem = tc_dtype_bytes(x->dtype);
  const char *from = (const char *)tc_exec_tensor(r->exec, kind, id) + (size_t)(row * l.dim[1]) * elem;
  void *raw = x->dtype == TC_F32 ? (void *)logits : tc_malloc((size_t)t->V * elem);
  r->device->ops->copy(r->device, raw, from, t->V * (int64_t)elem);
  for (int64_t i = 0; i < t->V && raw != logits; i++) logits[i] = tc_bf16_to_f32(((uint16_t *)raw)[i]);
  if (raw != logits) free(raw);
}

/* Chooses token number `number` of sequence b. */
static int choose(struct state *t, int64_t b, int64_t number, const float *logits, struct tc_err *err)
{
  const struct tc_sampling *s = t->s;
  const int64_t known = s->known ? TC_MIN(s->known, t->V) : t->V;
  for (int64_t i = 0; i < known; i++)
    if (isnan(logits[i]))
      return tc_fail(err, TC_EUSER, "the model gives no probabilities (logit %lld is not a number): a diverged run's "
                     "checkpoint? tercio ckpt tensors shows its weights", (long long)i);
  uint32_t r[4];
  tc_philox(r, s->seed, (uint64_t)b, (uint64_t)number);
  const double u = (double)((uint64_t)r[1] << 21 | r[0] >> 11) * 0x1p-53;
  t->next[b] = tc_sample_pick(s, logits, known, u, t->order);
  t->token(t->ctx, b, t->next[b]);
  t->ended[b] = t->next[b] == s->end;
  return 0;
}

static int prefill(struct state *t, struct tc_err *err)
{
  const int64_t chunk = t->x->run.opts.prefill;
  int64_t longest = 0, *at = tc_calloc((size_t)t->B, sizeof *at);
  int32_t *tokens = tc_calloc((size_t)(t->B * chunk), sizeof *tokens);
  float *logits = tc_malloc((size_t)t->V * sizeof *logits);
  int rc = 0;
  for (int64_t b = 0; b < t->n; b++) longest = TC_MAX(longest, t->prompt[b].n);
  for (int64_t from = 0; from < longest && rc == 0; from += chunk) {
    for (int64_t b = 0; b < t->B; b++) {
      at[b] = from;
      for (int64_t i = 0; i < chunk; i++)
        tokens[b * chunk + i] = b < t->n && from + i < t->prompt[b].n ? t->prompt[b].token[from + i] : 0;
    }
    rc = run(t, TC_PREFILL, chunk, tokens, at, err);
    for (int64_t b = 0; b < t->n && rc == 0; b++) {
      const int64_t last = t->prompt[b].n - 1 - from;
      if (last < 0 || last >= chunk) continue;
      read_logits(t, TC_PREFILL, b * chunk + last, logits);
      rc = choose(t, b, 0, logits, err);
    }
  }
  free(at);
  free(tokens);
  free(logits);
  return rc;
}

static int decode(struct state *t, struct tc_err *err)
{
  int64_t *at = tc_calloc((size_t)t->B, sizeof *at);
  float *logits = tc_malloc((size_t)t->V * sizeof *logits);
  int rc = 0;
  for (int64_t k = 1; k < t->s->tokens && rc == 0; k++) {
    bool all = true;
    for (int64_t b = 0; b < t->n; b++) {
      at[b] = t->prompt[b].n + k - 1;
      all &= t->ended[b];
    }
    if (all) break;
    rc = run(t, TC_DECODE, 1, t->next, at, err);
    for (int64_t b = 0; b < t->n && rc == 0; b++) {
      if (t->ended[b]) continue;
      read_logits(t, TC_DECODE, b, logits);
      rc = choose(t, b, k, logits, err);
    }
  }
  free(at);
  free(logits);
  return rc;
}

int tc_sample(struct tc_forward *x, const struct tc_sampling *s, const struct tc_prompt *prompts, int64_t n,
              tc_sample_token_fn *token, void *ctx, struct tc_err *err)
{
  struct state t = { .x = x, .s = s, .prompt = prompts, .n = n, .B = tc_forward_sequences(x), .M = tc_forward_context(x),
                     .V = x->run.opts.model.vocab, .token = token, .ctx = ctx };
  TC_ASSERT(n <= t.B);
  for (int64_t b = 0; b < n; b++)
    if (prompts[b].n < 1 || prompts[b].n + s->tokens > t.M + 1)
      return tc_fail(err, TC_EUSER, "prompt %lld of %lld tokens and %lld new ones exceed the model's context of %lld; "
                     "fewer new tokens would fit, or a shorter prompt", (long long)b, (long long)prompts[b].n,
                     (long long)s->tokens, (long long)t.M);
  t.next = tc_calloc((size_t)t.B, sizeof *t.next);
  t.ended = tc_calloc((size_t)t.B, sizeof *t.ended);
  t.order = tc_malloc((size_t)t.V * sizeof *t.order);
  int rc = s->tokens > 0 ? prefill(&t, err) : 0;
  if (rc == 0) rc = decode(&t, err);
  free(t.next);
  free(t.ended);
  free(t.order);
  return rc;
}
