/* t_plan_pipes.c - the time of a pipeline's step by sums (sums.c), as a search has it, beside the simulation of every action
 * of every stage (time.c), for random layouts.
 * --cases N, --seed N: more of them, or others. --show: prints each. */
#include "src/plan/plan.h"
#include "tests/unit/plan_config.h"
#include "tests/unit/random.h"

static int64_t one_of(const int64_t *x, int n) { return x[draw(0, n - 1)]; }
#define ONE_OF(...) one_of((const int64_t[]){ __VA_ARGS__ }, (int)(sizeof (int64_t[]){ __VA_ARGS__ } / sizeof(int64_t)))

/* Draws a layout whose virtual stages have the same number of layers. *world: its ranks. Owned by the caller. */
static struct tc_config *draw_layout(enum tc_schedule schedule, bool bf16, int *world)
{
  struct tc_config *c = CONFIG("--model.context=2048", "--model.vocab=32000");
  const bool virtual = schedule == TC_SCHEDULE_INTERLEAVED;
  const int64_t pp = ONE_OF(2, 3, 4, 6, 8), v = virtual ? ONE_OF(2, 3, 4) : 1;
  c->parallel_schedule = schedule;
  c->train_precision = bf16 ? TC_BF16 : TC_F32;
  c->mesh_pp = (int)pp;
  if (virtual) c->parallel_virtual_stages = (int)v;
  c->mesh_tp = (int)ONE_OF(1, 1, 2, 4);
  c->mesh_dp = (int)ONE_OF(1, 2, 4);
  c->model_family = (int)ONE_OF(TC_FAMILY_GPT2, TC_FAMILY_LLAMA);
  c->model_hidden = ONE_OF(1024, 2048, 4096);
  c->model_heads = c->model_hidden / 128;
  c->model_layers = pp * v * ONE_OF(1, 2, 3);
  c->parallel_data = (int)ONE_OF(TC_DATA_DDP, TC_DATA_ZERO1, TC_DATA_ZERO2, TC_DATA_ZERO3);
  c->parallel_overlap = draw(0, 3) > 0;
  c->parallel_sequence = c->mesh_tp > 1 && draw(0, 1);
  c->train_recompute = (int)ONE_OF(TC_RECOMPUTE_NONE, TC_RECOMPUTE_SELECTIVE, TC_RECOMPUTE_FULL);
  c->train_micro_batch = ONE_OF(1, 2);
  c->train_global_batch = c->mesh_dp * c->train_micro_batch * pp * draw(1, 4);
  *world = c->mesh_pp * c->mesh_tp * c->mesh_dp;
  return c;
}

/* What sums leave out makes about one layout in a hundred differ by more than the others. Returns whether this one does. */
static bool compare(enum tc_schedule schedule, const char *device, double within, bool show)
{
  bool more = false;
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan a, b;
  int world;
  struct tc_config *c = draw_layout(schedule, strcmp(device, "cpu"), &world);
  tc_cluster_read(&k, device, &err);
  k.devices = 8;
  char *const what = tc_sprintf("%s on %s: pp %lld x %lld, dp %lld, tp %lld%s, %lld layers of %lld, %lld micro-batches of "
                                "%lld, %s, recompute %s%s", tc_word_parallel_schedule(schedule), device, (long long)c->mesh_pp,
                                (long long)c->parallel_virtual_stages, (long long)c->mesh_dp, (long long)c->mesh_tp,
                                c->parallel_sequence ? " sequence" : "", (long long)c->model_layers, (long long)c->model_hidden,
                                (long long)(c->train_global_batch / c->mesh_dp / c->train_micro_batch),
                                (long long)c->train_micro_batch, tc_word_parallel_data(c->parallel_data),
                                tc_word_train_recompute(c->train_recompute), c->parallel_overlap ? "" : ", no overlap");
  int rc = tc_plan_layout(&a, c, world, &k, true, &err);
  if (!rc) rc = tc_plan_layout(&b, c, world, &k, false, &err);
  if (ok(!rc && a.time.simulated, "%s %s", what, err.text)) {
    if (show)
      printf("# %+.1f %% of %g s, bubble %.3f, %.3f: %s\n", 100 * (b.time.step_s / a.time.step_s - 1), a.time.step_s,
             a.time.bubble, b.time.bubble, what);
    /* Without overlap, and with gathers in every micro-batch, what one waits for delays others in more ways. */
    within = !c->parallel_overlap ? 0.12 : c->parallel_data == TC_DATA_ZERO3 ? 0.08 : within;
    near_f(b.time.step_s, a.time.step_s, 0.25, "... the same by sums");
    more = fabs(b.time.step_s / a.time.step_s - 1) > within;
    if (more) printf("# %+.1f %%, not %.0f\n", 100 * (b.time.step_s / a.time.step_s - 1), 100 * within);
  }
  free(what);
  tc_config_free(c);
  tc_cluster_done(&k);
  return more;
}

int main(int argc, char **argv)
{
  const bool show = argc > 1 && !strcmp(argv[1], "--show");
  const enum tc_schedule others[] = { TC_SCHEDULE_1F1B, TC_SCHEDULE_ZB, TC_SCHEDULE_GPIPE };
  const int cases = begin_cases(argc - show, argv + show, 30);
  int more = 0;
  for (int i = 0; i < cases; i++) more += compare(TC_SCHEDULE_INTERLEAVED, i % 4 ? "h100" : "cpu", 0.05, show);
  for (int i = 0; i < cases / 2; i++) more += compare(others[i % 3], i % 4 ? "h100" : "cpu", 0.06, show);
  ok(more <= TC_MAX(cases / 50, 3), "... of %d, %d by more than 5 %% (interleaved), 6 (others), 8 (zero3) or 12 (no overlap)",
     cases + cases / 2, more);
  return done_testing();
}
