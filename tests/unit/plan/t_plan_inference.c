/* t_plan_inference.c - what an evaluation and sampling take (plan/inference.c): the cache by a formula, memory and layout
 * on one rank and several, times beside the device's rates. */
#include "src/plan/impl.h"
#include "tests/unit/plan_config.h"

#include <unistd.h>

#define MODEL "--model.layers=8", "--model.hidden=512", "--model.heads=8", "--model.context=256", "--model.vocab=1000"

/* Operations and transfers take no time to start; a byte takes 1 ns, an operation of fp32 1 ps. */
static struct tc_cluster rates(int devices)
{
  struct tc_cluster k = { .nodes = 1, .devices = devices };
  k.device = (struct tc_plan_device){ .memory_bytes = 1e12, .bytes_per_s = 1e9, .eff_flops = 1, .eff_bytes = 1,
                                      .copy_bytes_per_s = 1e9 };
  k.device.flops[TC_F32] = 1e12;
  for (int w = 0; w < TC_WIRES; w++)
    for (int c = TC_FIRST_COLL; c < TC_COLLS; c++) k.link[w].bytes_per_s[c] = 1e12;
  return k;
}

static struct tc_plan_forward plan_of(struct tc_config *c, enum tc_use use, int64_t sequences, int world,
                                      const struct tc_cluster *k)
{
  struct tc_plan_forward p;
  struct tc_err err = { 0 };
  is_int(tc_plan_forward(&p, c, use, sequences, world, k, &err), 0, "a plan on %d ranks %s", world, err.text);
  return p;
}

static void test_sample(void)
{
  struct tc_config *c = CONFIG(MODEL), *grouped = CONFIG(MODEL, "--model.family=llama", "--model.kv_heads=2");
  struct tc_config *bf16 = CONFIG(MODEL, "--train.precision=bf16");
  const struct tc_cluster one = rates(1), four = rates(4);
  const int64_t cache = 8 * 2 * 512 * 256 * 4;   /* layers, keys and values, hidden, context, fp32 */
  struct tc_plan_forward p = plan_of(c, TC_TO_SAMPLE, 0, 1, &one), q;
  is_int(p.stage[0].cache_bytes, cache, "the cache of one sequence");
  is_int(p.stage[0].memory.by_class[TC_DEVICE][TC_CLS_OPT], 0, "... no optimizer");
  is_int(p.stage[0].memory.by_class[TC_DEVICE][TC_CLS_PARAM] / 4 >= p.parameters, true, "... all weights");
  ok(p.weights_s > 0.99 * (double)p.parameters * 4e-9 && p.weights_s < 1.05 * (double)p.parameters * 4e-9,
     "... read once: 1 ns for each byte");
  ok(p.token.run_s > p.weights_s && p.token.run_s < 1.2 * p.weights_s, "a token takes little longer than reading the weights: "
     "%.3g and %.3g s", p.token.run_s, p.weights_s);
  ok(p.token.tokens_per_s * p.token.run_s > 0.999 && p.token.tokens_per_s * p.token.run_s < 1.001, "... of one sequence, one token");
  const double layers = 8 * 12 * 512 * 512, prompt_s = (double)p.at_once * 2 * layers * 1e-12;   /* without the head */
  ok(p.prompt.run_s > layers * 4e-9 && p.prompt.run_s > prompt_s,
     "%lld tokens of a prompt: no faster than the layers' weights and operations allow", (long long)p.at_once);

  q = plan_of(c, TC_TO_SAMPLE, 16, 1, &one);
  is_int(q.stage[0].cache_bytes, 16 * cache, "the cache of 16 sequences");
  ok(q.token.tokens_per_s > 4 * p.token.tokens_per_s && q.token.tokens_per_s < 16 * p.token.tokens_per_s,
     "... whose tokens share the weights, not the caches: %.3g and %.3g tokens/s", q.token.tokens_per_s, p.token.tokens_per_s);
  q = plan_of(grouped, TC_TO_SAMPLE, 1, 1, &one);
  is_int(q.stage[0].cache_bytes, cache / 4, "2 heads of keys and values of 8");
  q = plan_of(bf16, TC_TO_SAMPLE, 1, 1, &one);
  is_int(q.stage[0].cache_bytes, cache / 2, "bf16, on a device without bf16 products");

  q = plan_of(grouped, TC_TO_SAMPLE, 1, 4, &four);
  is_int(q.size[TC_TP] * 10 + q.size[TC_PP], 22, "4 ranks, 2 heads of keys and values: tp 2 x pp 2");
  is_int(q.n_stages, 2, "... of which both stages are planned");
  is_int(q.stage[0].cache_bytes + q.stage[1].cache_bytes, cache / 8, "... with half of the cache each");
  q = plan_of(c, TC_TO_SAMPLE, 1, 4, &four);
  is_int(q.size[TC_TP], 4, "8 heads: tp 4");
  ok(q.token.run_s < p.token.run_s / 3, "... a token takes less than a third: %.3g of %.3g s", q.token.run_s, p.token.run_s);
  tc_config_free(c);
  tc_config_free(grouped);
  tc_config_free(bf16);
}

static void test_eval(void)
{
  struct tc_config *c = CONFIG(MODEL), *zero3 = CONFIG(MODEL, "--parallel.data=zero3");
  const struct tc_cluster one = rates(1), four = rates(4);
  struct tc_plan_forward p = plan_of(c, TC_TO_EVALUATE, 0, 1, &one), q;
  is_int(p.sequences, 2048 / 256, "an evaluation takes 2048 tokens at once");
  is_int(p.stage[0].cache_bytes, 0, "... and has no cache");
  q = plan_of(c, TC_TO_EVALUATE, 3, 4, &four);
  is_int(tc_axes_size(q.size, TC_ON_DP) * 100 + q.sequences, 412, "3 sequences on each of 4 ranks of dp");
  p = plan_of(c, TC_TO_EVALUATE, 3, 1, &one);
  is_int(q.stage[0].memory.bytes[TC_DEVICE] - q.stage[0].memory.staging_bytes, p.stage[0].memory.bytes[TC_DEVICE],
         "... each as one alone");
  ok(q.batch.tokens_per_s > 3.9 * p.batch.tokens_per_s, "... four times as fast");
  q = plan_of(zero3, TC_TO_EVALUATE, 3, 4, &four);
  ok(q.stage[0].memory.by_class[TC_DEVICE][TC_CLS_PARAM] * 3 < p.stage[0].memory.by_class[TC_DEVICE][TC_CLS_PARAM],
     "zero3 has a quarter of the weights");
  tc_config_free(c);
  tc_config_free(zero3);
}

static void test_refused(void)
{
  struct tc_config *c = CONFIG(MODEL, "--mesh.tp=2"), *bf16 = CONFIG(MODEL, "--train.precision=bf16");
  const struct tc_cluster k = rates(4);
  struct tc_plan_forward p;
  struct tc_err err = { 0 };
  is_int(tc_plan_forward(&p, c, TC_TO_SAMPLE, 1, 4, &k, &err), TC_ELAYOUT, "sampling has no data-parallel ranks");
  ok(strstr(err.text, "leaves dp = 2") != NULL, "... %s", err.text);
  is_int(tc_plan_forward(&p, bf16, TC_TO_EVALUATE, 1, 4, &k, &err), TC_ELAYOUT, "no bf16 products");
  is_str(err.text, "train.precision = bf16:  has no bf16 products; fp32 would fit", "... in these words");
  tc_config_free(c);
  tc_config_free(bf16);
}

int main(void)
{
  alarm(600);
  test_sample();
  test_eval();
  test_refused();
  return done_testing();
}
