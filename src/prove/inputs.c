/* inputs.c - the tokens of a proof.
 *
 * All is a function of step and natural row. Targets that do not count (-1) become more from sequence to sequence, so that
 * a mean of means over micro-batches or ranks is not the mean. Documents begin at any row. */
#include "src/prove/impl.h"

enum { TOKENS = 5, STARTS = 13 };                /* streams of random numbers */

static int32_t target(const struct tc_inputs *in, int64_t step, int64_t n, int32_t *token)
{
  uint32_t r[4];
  tc_philox(r, in->seed + TOKENS, (uint64_t)step, (uint64_t)n);
  *token = (int32_t)(r[0] % (uint32_t)in->vocab);
  const bool gap = (int64_t)(r[2] % 1000) < 600 * (n / in->rows.T) / in->sequences;
  return gap ? -1 : (int32_t)(r[1] % (uint32_t)in->vocab);
}

/* The position in its sequence at which the document of a row begins. */
static int32_t begin(const struct tc_inputs *in, int64_t n)
{
  for (uint32_t r[4]; n % in->rows.T; n--) {
    tc_philox(r, in->seed + STARTS, 1, (uint64_t)n);
    if (r[0] % 4 == 0) break;
  }
  return (int32_t)(n % in->rows.T);
}

void tc_inputs_fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows, int32_t *tokens, int32_t *targets,
                    int32_t *starts)
{
  const struct tc_inputs *in = ctx;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t n = tc_natural_row(&in->rows, row0 + i);
    targets[i] = target(in, rt->step, n, &tokens[i]);
    if (starts) starts[i] = begin(in, n);
  }
}

int64_t tc_inputs_targets(const struct tc_inputs *in, int64_t step, int64_t first, int64_t n)
{
  int64_t count = 0;
  int32_t token;
  for (int64_t i = first; i < first + n; i++) count += target(in, step, i, &token) >= 0;
  return count;
}
