/* t_forward_memory.c - the memory that an evaluation and sampling take (run/run.c, exec/exec.c) is what the planner says of
 * them (plan/forward.c), to the byte. */
#include "src/plan/plan.h"
#include "src/program/setup.h"
#include "src/run/run.h"
#include "tests/unit/plan_config.h"

#include <unistd.h>

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows, int32_t *tokens, int32_t *targets,
                 int32_t *starts)
{
  (void)ctx, (void)rt, (void)row0, (void)rows, (void)tokens, (void)targets, (void)starts;
}

/* One rank of a command that is alone. */
static int take(struct tc_run *r, const struct tc_config *c, enum tc_use use, struct tc_err *err)
{
  static char *const who[] = { "rank 0" };
  static struct tc_rank_info info;
  static int32_t node;
  static const struct tc_ranks ranks = { .world = 1, .n_nodes = 1, .info = &info, .node_of_rank = &node };
  info.device = -1;
  info.local_size = 1;
  *r = (struct tc_run){ .cfg = c, .ranks = &ranks, .rank_names = who, .threads = 1, .use = use };
  TC_TRY(tc_run_layout(r, err));
  r->opts.prefill = tc_setup_prompt_at_once(c->model_context, c->train_global_batch);
  TC_TRY(tc_run_comms(r, NULL, err));
  TC_TRY(tc_run_device(r, err));
  return tc_run_programs(r, fill, NULL, err);
}

static void compare(const char *what, struct tc_config *c, enum tc_use use, int64_t sequences)
{
  static const int32_t node;
  const struct tc_cluster k = { .nodes = 1, .devices = 1, .device = { .bytes_per_s = 1, .eff_flops = 1, .eff_bytes = 1,
                                .flops = { [TC_F32] = 1, [TC_BF16] = 1 } } };
  struct tc_plan_forward p;
  struct tc_run r;
  struct tc_err err = { 0 };
  is_int(tc_plan_forward(&p, c, use, sequences, 1, &k, &err), 0, "%s: a plan %s", what, err.text);
  int rc = use == TC_TO_SAMPLE ? tc_setup_sampling(c, sequences, 1, &node, 1, &err)
                               : tc_setup_evaluation(c, sequences, 1, &node, 1, &err);
  if (rc == 0) rc = take(&r, c, use, &err);
  is_int(rc, 0, "... a run %s", err.text);
  if (rc < 0) return;
  const struct tc_exec_memory m = tc_exec_memory(r.exec);
  is_int(p.stage[0].memory.state_bytes, m.region[TC_STATE], "... state");
  is_int(p.stage[0].memory.scratch_bytes, m.region[TC_SCRATCH], "... scratch");
  is_int(p.stage[0].memory.staging_bytes, m.staging, "... staging");
  ok(m.region[TC_STATE] > 0 && m.region[TC_SCRATCH] > 0, "... which are not empty");
  tc_run_comms_free(&r, false);
  tc_run_programs_free(&r);
  tc_run_free(&r);
  tc_config_free(c);
}

#define MODEL "--model.layers=3", "--model.hidden=48", "--model.heads=4", "--model.context=96", "--model.vocab=300", \
              "--run.device=cpu"
#define LLAMA MODEL, "--model.family=llama", "--model.kv_heads=2"

int main(void)
{
  alarm(300);
  compare("sampling", CONFIG(MODEL), TC_TO_SAMPLE, 1);
  compare("5 sequences of a Llama", CONFIG(LLAMA), TC_TO_SAMPLE, 5);
  compare("bf16", CONFIG(LLAMA, "--train.precision=bf16"), TC_TO_SAMPLE, 2);
  compare("an evaluation", CONFIG(MODEL), TC_TO_EVALUATE, 7);
  compare("an evaluation of documents", CONFIG(LLAMA, "--data.documents=mask"), TC_TO_EVALUATE, 2);
  return done_testing();
}
