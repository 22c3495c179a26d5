/* t_parts.c - what single functions of the planning half refuse that no configuration leads to, with its
 * status and sentence; and ends of tables. */
#include "src/schedule/pipeline.h"
#include "src/program/setup.h"
#include "src/passes/passes.h"
#include "src/passes/reshard.h"
#include "tests/unit/named.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

static const struct tc_model toy = { .layers = 4, .hidden = 8, .heads = 2, .context = 4,
    .vocab = 8 };

static struct tc_program_opts options(void)
{
  return (struct tc_program_opts){
    .kind = TC_TRAIN,
    .model = toy,
    .gpt = { .batch = 4, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 },
    .system = &tc_systems[TC_DATA_DDP],
    .overlap = true,
    .reshard_after = -1,
    .schedule = TC_SCHEDULE_1F1B,
    .virtual_stages = 1
  };
}

static struct tc_program *make(const struct tc_program_opts *o, const struct tc_mesh *m,
                               const char *after)
{
  struct tc_program *p = NULL;
  struct tc_err err;
  if (tc_program_new(&p, o, m, 0, NULL, after, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  return p;
}

static void refused(int rc, const struct tc_err *err, int status, const char *text)
{
  is_int(rc, status, "status of: %s", text);
  is_int(err->status, status, "... the error's own");
  is_str(err->text, text, "... its sentence");
}

/* ---- programs ------------------------------------------------------------------------------ */

static void test_gradient(void)
{
  struct tc_err err = { 0 };
  struct tc_graph *g = tc_graph_new();
  TC_GROW(g->unit, g->n_units, g->cap_units);
  g->unit[g->n_units++] = (struct tc_unit){ "all", -1, -1, 0, -1 };
  int32_t x = tc_tensor_new(g, "x", TC_F32, 1, (int64_t[]){ 4 });
  int32_t loss = tc_tensor_new(g, "loss", TC_F32, 0, NULL);
  tc_node_new(g, TC_OP_SQNORM, 1, &x, 1, &loss);
  g->loss = loss;
  refused(tc_grad(g, TC_F32, &err), &err, TC_EUSER, "op sqnorm has no gradient");
  struct tc_layout to = tc_layout_r();
  to.on[TC_MB] = (struct tc_place){ TC_S, 0, 0, 0 };
  struct tc_mesh *m = tc_mesh_one();
  refused(tc_reshard(g, m, x, &to, -1, &err), &err, TC_ELAYOUT, "x can't change its placement in time");
  tc_mesh_free(m);
  tc_graph_free(g);
}

/* Stages that are no neighbours, and schedules that can't be. */
static void test_schedule(void)
{
  struct tc_program_opts o = options();
  struct tc_mesh *m = fx_mesh(2, 2, 1, 1);
  struct tc_program *p = make(&o, m, "buckets");
  struct tc_actions_opts so = { .n_mb = 2, .pp = 2, .virtual_stages = 1, .schedule = TC_SCHEDULE_1F1B };
  struct tc_actions *s = NULL;
  struct tc_err err = { 0 };
  so.n_mb = 0;
  refused(tc_actions_new(&s, p->graph, &so, &err), &err, TC_ELAYOUT,
          "a pipeline can't have 0 micro-batches; "
          "1 or more would fit");
  so.n_mb = 2;
  for (int32_t u = 0; u < p->graph->n_units; u++)
    if (p->graph->unit[u].stage == 1) p->graph->unit[u].stage = 3;
  refused(tc_actions_new(&s, p->graph, &so, &err), &err, TC_ELAYOUT,
          "h.1.mlp.residual goes from stage 0 to "
          "stage 3; only neighbours exchange tensors");
  ok(s == NULL, "no schedule");
  tc_program_free(p);
  tc_mesh_free(m);
}

/* State that the main program has not, or has of another kind. */
static void test_with(void)
{
  struct tc_program_opts o = options();
  struct tc_mesh *m = fx_mesh(1, 1, 1, 1);
  struct tc_program *main_one = make(&o, m, NULL), *p;
  struct tc_err err = { 0 };
  struct tc_tensor *x = NULL;
  for (int32_t t = 0; t < main_one->graph->n_tensors; t++)
    if (!strcmp(main_one->graph->tensor[t].name, "wpe.weight") && main_one->graph->tensor[t].state)
      x = &main_one->graph->tensor[t];
  const struct tc_tensor was = *x;
  for (int i = 0; i < 4; i++) {
    *x = was;
    if (i == 0) x->name = "wpe";
    if (i == 1) x->state = false;
    if (i == 2) x->space = TC_HOST;
    if (i == 3) x->dim[0] = 64;
    p = NULL;
    refused(tc_program_new(&p, &o, m, 0, main_one, NULL, &err), &err, TC_EUSER,
            "state wpe.weight is not in the main program");
    ok(p == NULL, "no program");
  }
  *x = was;
  is_int(tc_program_new(&p, &o, m, 0, main_one, NULL, &err), 0, "the same state");
  tc_program_free(p);
  tc_program_free(main_one);
  tc_mesh_free(m);
}

/* ---- schedules, systems, meshes ------------------------------------------------------------ */

static void test_costs(void)
{
  static const struct {
    struct tc_pipeline_cost cost;
    const char *simulate, *transfers;
  } bad[] = {
    { { -1, 1, 1, 1 }, "schedule gpipe: the F of stage 1 can't take -1", "work on stage 1 takes" },
    { { 1, -2, 1, 1 }, "schedule gpipe: the B of stage 1 can't take -2", "work on stage 1 takes" },
    { { 1, 1, INFINITY, 1 }, "schedule gpipe: the W of stage 1 can't take inf", NULL },
    { { 1, 1, 1, -0.5 }, "schedule gpipe: the send of stage 1 can't take -0.5", NULL },
    { { 0, 1, 1, 0 }, NULL, "work on stage 1 takes" },
    { { 1, 0, 1, 0 }, NULL, "work on stage 1 takes" },
    { { 1, 1, 0, 0 }, NULL, "work on stage 1 takes" },
  };
  struct tc_pipeline *s;
  struct tc_err err = { 0 };
  if (tc_pipeline_new(&s, TC_SCHEDULE_GPIPE, 2, 1, 1, &err) < 0) abort();
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    const struct tc_pipeline_cost cost[] = { { 1, 1, 1, 1 }, bad[i].cost };
    struct tc_simulation *sim = NULL;
    struct tc_transfers *t = NULL;
    int rc = tc_pipeline_simulate(&sim, s, cost, 2, NULL, &err);
    if (bad[i].simulate)
      refused(rc, &err, TC_EUSER, bad[i].simulate);
    else
      is_int(rc, 0, "it can be simulated");
    tc_simulation_free(sim);
    rc = tc_pipeline_transfers(&t, s, cost, 2, &err);
    refused(rc, &err, TC_EUSER,
            bad[i].transfers
                ? "schedule gpipe: work on stage 1 takes no time, so transfers have no order"
                : bad[i].simulate);
  }
  tc_pipeline_free(s);
}

static void test_shapes(void)
{
  static const struct {
    const char *name;
    int p, v, m, status;
    const char *text;
  } bad[] = {
    { "1f1b", 0, 1, 1, TC_ELAYOUT, "a pipeline can't have 0 stages; 1 or more would fit" },
    { "1f1b", 1, 0, 1, TC_ELAYOUT,
      "a pipeline can't have 0 virtual stages a rank; 1 or more would fit" },
    { "1f1b", 1, 1, -1, TC_ELAYOUT, "a pipeline can't have -1 micro-batches; 1 or more would fit" },
    { "naive", 65536, 1, 65536, TC_ELAYOUT,
      "65536 stages x 1 virtual stages x 65536 micro-batches are "
      "12884901888 items of work; fewer than 2147483647 would fit" },
    { "interleaved", 4, 2, 3, TC_ELAYOUT,
      "schedule interleaved needs micro-batches in multiples of its 4 "
      "stages: 3 do not fit; 4 would, or schedule 1f1b" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_err err = { 0 };
    struct tc_pipeline *s = NULL;
    refused(tc_pipeline_new(&s, schedule_named(bad[i].name), bad[i].p, bad[i].v, bad[i].m, &err), &err, bad[i].status,
            bad[i].text);
    ok(s == NULL, "no schedule");
  }
  for (enum tc_schedule i = TC_SCHEDULE_NAIVE; i <= TC_SCHEDULE_ZB; i++) {
    const char *const name = tc_word_parallel_schedule(i);
    const bool many = i == TC_SCHEDULE_INTERLEAVED;
    struct tc_pipeline *s = NULL;
    is_int(tc_pipeline_new(&s, i, 2, many ? 2 : 1, 2, NULL), 0, "%s is known", name);
    is_int(tc_pipeline_splits(i), i == TC_SCHEDULE_ZB, "... whether it has W apart");
    tc_pipeline_free(s);
  }
}

static void test_system(void)
{
  for (enum tc_data_parallel i = TC_DATA_DDP; i <= TC_DATA_NONE; i++) {
    is_str(tc_systems[i].name, tc_word_parallel_data(i), "parallel.data = %s is a system", tc_word_parallel_data(i));
    ok(tc_systems[i].what && *tc_systems[i].what, "... with what it does");
  }
}

static void test_mesh(void)
{
  static const struct {
    const char *text, *order, *what;
  } bad[] = {
    { "100000 x 1000", "block",
      "'100000 x 1000' has 100000000 ranks; at most 16777216 are simulated" },
    { "2 x 8388609", NULL, "'2 x 8388609' has 16777218 ranks; at most 16777216 are simulated" },
    { "16777217 x 1", NULL,
      "'16777217 x 1' is not a cluster; write \"32 nodes x 8\", or \"3:4,4,2\" for "
      "three nodes of 4, 4 and 2 ranks" },
    { "2 x 4", "Block", "order 'Block' of the simulated ranks is neither block nor cyclic" },
  };
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int32_t *node = (int32_t *)&err;
    refused(tc_mesh_synthetic(bad[i].text, bad[i].order, &node, &err), &err, TC_EUSER, bad[i].what);
    ok(node == NULL, "no nodes");
  }
  int32_t *node;
  is_int(tc_mesh_synthetic("1 x 16777216", NULL, &node, &err), 16777216, "as many as there may be");
  free(node);
  struct tc_mesh *one = tc_mesh_one();
  ok(one->world == 1 && one->n_nodes == 1 && one->order == TC_TP_DP_PP && one->node[0] == 0 &&
         one->at[0] == 0,
     "one rank");
  for (int a = 0; a < TC_AXES; a++)
    ok(one->size[a] == 1 && one->coord[a] == 0 && one->stride[a] == (a > TC_MB), "axis %s",
       tc_axis_name[a]);
  tc_mesh_free(one);
}

int main(void)
{
  test_gradient();
  test_schedule();
  test_with();
  test_costs();
  test_shapes();
  test_system();
  test_mesh();
  return done_testing();
}
