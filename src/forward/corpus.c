/* corpus.c - the loss of a whole file of tokens, a batch of sequences at a time. */
#include "src/forward/corpus.h"
#include "src/forward/impl.h"
#include "src/data/documents.h"

#include <stdlib.h>
#include <string.h>

/* One pass over the file. */
struct pass {
  struct tc_forward *x;
  struct tc_data *d;
  const struct tc_tokenizer *tokenizer;
  int64_t B, T, n;               /* n: tokens of the file */
  int32_t end;                   /* of a document; -1: sequences are whole */
  int32_t *tokens, *targets, *starts;   /* [B * T] */
  float *loss;                   /* [B * T] */
};

/* Sequences [at / T, at / T + B) of the file; what lies beyond its end counts for nothing. */
static int read_batch(struct pass *p, int64_t at, struct tc_err *err)
{
  const int64_t rows = p->B * p->T, have = TC_MIN(rows, p->n - 1 - at);
  memset(p->tokens, 0, (size_t)rows * sizeof *p->tokens);
  memset(p->targets, -1, (size_t)rows * sizeof *p->targets);
  TC_TRY(tc_data_read(p->d, NULL, 0, at, have, p->tokens, err));
  if (p->end >= 0) tc_documents_starts(p->tokens, rows, p->T, p->end, p->starts);
  return tc_data_read(p->d, NULL, 0, at + 1, have, p->targets, err);
}

static int64_t bytes_of(const struct pass *p, int32_t id)
{
  size_t bytes = 1;
  if (p->tokenizer && !tc_tokenizer_bytes(p->tokenizer, (uint32_t)id, &bytes)) return 0;
  return (int64_t)bytes;
}

static void add_batch(const struct pass *p, struct tc_corpus_loss *out)
{
  for (int64_t i = 0; i < p->B * p->T; i++) {
    if (p->targets[i] < 0) continue;
    out->tokens++;
    out->bytes += bytes_of(p, p->targets[i]);
    out->nats += (double)p->loss[i];
  }
}

static int pass_over(struct pass *p, const char *name, struct tc_corpus_loss *out, struct tc_err *err)
{
  const struct tc_run *r = tc_forward_run(p->x);
  struct tc_forward_progress progress = tc_forward_begin(name, "tokens", p->n);
  for (int64_t at = 0; at < p->n - 1; at += p->B * p->T) {
    TC_TRY(tc_run_agree(r, read_batch(p, at, err), err));
    const struct tc_forward_batch batch = { p->tokens, p->targets, p->end >= 0 ? p->starts : NULL };
    TC_TRY(tc_forward_losses(p->x, &batch, p->loss, err));
    add_batch(p, out);
    tc_forward_show(p->x, &progress, TC_MIN(at + p->B * p->T, p->n));
  }
  return 0;
}

int tc_corpus_loss(struct tc_corpus_loss *out, struct tc_forward *x, struct tc_data *d, int32_t end,
                   const struct tc_tokenizer *tokenizer, bool bytes, const char *name, struct tc_err *err)
{
  struct pass p = { .x = x, .d = d, .tokenizer = tokenizer, .end = end, .B = tc_forward_sequences(x),
                    .T = tc_forward_context(x), .n = tc_data_tokens(d) };
  const size_t rows = (size_t)(p.B * p.T);
  p.tokens = tc_malloc(3 * rows * sizeof *p.tokens);
  p.targets = p.tokens + rows;
  p.starts = p.targets + rows;
  p.loss = tc_malloc(rows * sizeof *p.loss);
  *out = (struct tc_corpus_loss){ 0 };
  const int rc = pass_over(&p, name, out, err);
  if (!tokenizer && !bytes) out->bytes = 0;
  free(p.tokens);
  free(p.loss);
  return rc;
}
