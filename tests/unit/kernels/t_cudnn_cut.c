/* t_cudnn_cut.c - what attention is cut into for cuDNN (kernels/cudnn/cut.h), by enumeration: each group of each sequence
 * is computed, none is outside, and calls are as large as they may be. */
#include "kernels/cudnn/cut.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <string.h>

/* Whether the calls compute every group of every sequence, and nothing outside; *twice: how many more than once. */
static bool covers(const struct tc_cudnn_shape *s, const struct tc_cudnn_cut *c, int64_t *twice)
{
  int *times = calloc((size_t)(s->batch * s->groups), sizeof *times);
  bool good = true;
  *twice = 0;
  for (int64_t i = 0; i < c->calls && good; i++) {
    int64_t b, k;
    tc_cudnn_first(s, c, i, &b, &k);
    const int64_t end_b = c->groups ? b + 1 : b + c->batch, end_k = c->groups ? k + c->batch : s->groups;
    good = b >= 0 && k >= 0 && end_b <= s->batch && end_k <= s->groups && (c->groups || k == 0);
    for (int64_t x = b; x < end_b && good; x++)
      for (int64_t y = k; y < end_k; y++) times[x * s->groups + y]++;
  }
  for (int64_t i = 0; i < s->batch * s->groups; i++) good = good && times[i] > 0, *twice += times[i] > 1;
  free(times);
  return good;
}

static bool right(const struct tc_cudnn_shape *s, int64_t head)
{
  const struct tc_cudnn_cut c = tc_cudnn_cut_of(s, head);
  const int64_t all = c.groups ? s->groups : s->batch, each = head * s->queries * (c.groups ? 1 : s->groups);
  int64_t twice;
  if (!covers(s, &c, &twice)) return false;
  if (s->groups > 1 && s->queries > 1 && !c.groups) return false;                  /* heads are not evenly spaced */
  if (c.batch > 1 && c.batch * each > s->workspace) return false;
  if (c.parts > 1 && (all + c.parts - 2) / (c.parts - 1) * each <= s->workspace) return false;     /* fewer would do */
  return twice == (c.parts * c.batch - all) * (c.groups ? s->batch : s->groups);
}

int main(void)
{
  static const int64_t bound[] = { 1, 100, 1000, 5000, 1 << 20 }, head[] = { 0, 1, 64, 300, 4000 };
  int64_t cases = 0, wrong = 0;
  for (int64_t B = 1; B <= 47; B += B < 8 ? 1 : 13)
    for (int64_t K = 1; K <= 13; K += K < 5 ? 1 : 4)
      for (int64_t G = 1; G <= 4; G++)
        for (size_t w = 0; w < sizeof bound / sizeof *bound; w++)
          for (size_t h = 0; h < sizeof head / sizeof *head; h++) {
            const struct tc_cudnn_shape s = { B, K, G, 128, 64, 1, bound[w], 1 };
            cases++;
            if (right(&s, head[h])) continue;
            if (!wrong++) printf("# %d sequences, %d groups of %d, %d bytes, %d a head\n", (int)B, (int)K, (int)G,
                                 (int)bound[w], (int)head[h]);
          }
  is_int(wrong, 0, "%d shapes are cut so that each group of each sequence is computed", (int)cases);
  const struct tc_cudnn_shape odd = { 43, 12, 1, 1024, 64, 1, 1 << 30, 1 };
  const struct tc_cudnn_cut c = tc_cudnn_cut_of(&odd, 1024 * 1024 * 2);
  ok(c.calls == 2 && c.batch == 22 && !c.groups, "43 sequences of 12 heads are two calls of 22");
  return done_testing();
}
