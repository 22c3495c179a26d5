/* t_systems.c - where each parallel system places parameters and the batch: its row of the table, as the placements that
 * docs/placements.md gives. */
#include "src/passes/passes.h"
#include "tests/unit/named.h"
#include "tests/unit/program_text.h"

#define MODEL                                                        \
  "tokens i32[8], targets i32[8] = data() all-stages\n"              \
  "h0: param w [4,4]\nh0: embed [8,4] = embed(tokens, w)\n"          \
  "logits [8,4] = matmul<nc,vc->nv>(embed, w)\n"

static const struct { const char *name, *system, *program, *want; } cases[] = {
  { "ddp: whole everywhere, gradients are summed", "ddp", MODEL,
    "h0: param w [4,4] dp R R P R\n"
    "F tokens i32[8] mb:S(0) dp:S(0), targets i32[8] mb:S(0) dp:S(0) = data() all-stages\n"
    "F h0: embed [8,4] = embed(tokens, w)\n"
    "F logits [8,4] = matmul<nc,vc->nv>(embed, w)\n" },
  { "zero1: the update is split", "zero1", MODEL,
    "h0: param w [4,4] dp R R P S(*)\n"
    "F tokens i32[8] mb:S(0) dp:S(0), targets i32[8] mb:S(0) dp:S(0) = data() all-stages\n"
    "F h0: embed [8,4] = embed(tokens, w)\n"
    "F logits [8,4] = matmul<nc,vc->nv>(embed, w)\n" },
  { "zero2: accumulators, too", "zero2", MODEL,
    "h0: param w [4,4] dp R R S(*) S(*)\n"
    "F tokens i32[8] mb:S(0) dp:S(0), targets i32[8] mb:S(0) dp:S(0) = data() all-stages\n"
    "F h0: embed [8,4] = embed(tokens, w)\n"
    "F logits [8,4] = matmul<nc,vc->nv>(embed, w)\n" },
  { "zero3: weights, too; freed after use", "zero3", MODEL,
    "h0: param w [4,4] dp S(*) R S(*) S(*) use\n"
    "F tokens i32[8] mb:S(0) dp:S(0), targets i32[8] mb:S(0) dp:S(0) = data() all-stages\n"
    "F h0: embed [8,4] = embed(tokens, w)\n"
    "F logits [8,4] = matmul<nc,vc->nv>(embed, w)\n" },
  { "server: rank 0 has weights and updates", "server", MODEL,
    "h0: param w [4,4] dp at(0) R P at(0)\n"
    "F tokens i32[8] mb:S(0) dp:S(0), targets i32[8] mb:S(0) dp:S(0) = data() all-stages\n"
    "F h0: embed [8,4] = embed(tokens, w)\n"
    "F logits [8,4] = matmul<nc,vc->nv>(embed, w)\n" },
  { "dataparallel: the batch, too, is rank 0's; it is scattered behind the embedding and gathered for the loss",
    "dataparallel", MODEL,
    "h0: param w [4,4] dp at(0) R P at(0) mb\n"
    "F tokens i32[8] mb:S(0) dp:at(0), targets i32[8] mb:S(0) dp:at(0) = data() all-stages\n"
    "F h0: embed [8,4] dp:S(0) = embed(tokens, w)\n"
    "F logits [8,4] dp:at(0) = matmul<nc,vc->nv>(embed, w)\n" },
  { "none: nothing is placed but in time", "none", MODEL,
    "h0: param w [4,4]\n"
    "F tokens i32[8] mb:S(0), targets i32[8] mb:S(0) = data() all-stages\n"
    "F h0: embed [8,4] = embed(tokens, w)\n"
    "F logits [8,4] = matmul<nc,vc->nv>(embed, w)\n" },
  { "a parameter is on its unit's stage", "ddp", "unit h0 stage 1 at 1\n" MODEL,
    "h0: param w [4,4] pp at(1), dp R R P R\n"
    "F tokens i32[8] mb:S(0) dp:S(0), targets i32[8] mb:S(0) dp:S(0) = data() all-stages\n"
    "F h0: embed [8,4] = embed(tokens, w)\n"
    "F logits [8,4] = matmul<nc,vc->nv>(embed, w)\n" },
  { "bf16: weights by store, masters by update", "zero1", "param w bf16[4,4]\n",
    "state use.w bf16[4,4]\n"
    "param w [4,4] dp R R P S(*)\n" },
  { "a program of parameters alone", "zero3", "param w [4,4]\n",
    "param w [4,4] dp S(*) R S(*) S(*) use\n" },
  { "keys and values of earlier tokens are where their sequences are", "zero3",
    "tokens i32[2], starts i32[2] = data<->n,n>()\nunit h0 at 1\nstate qkv [2,1,3,4]\nstate h.0.attn.cache [2,1,8,8]\n"
    "h0: y [2,1,4], h.0.attn.cache'2 [2,1,8,8] in h.0.attn.cache = attn_cache<nhed,nkmf,n->nhd,nkmf>(qkv, h.0.attn.cache, starts)\n",
    "state qkv [2,1,3,4]\n"
    "state h.0.attn.cache [2,1,8,8] mb:S(0) pp:at(1) dp:S(0)\n"
    "F tokens i32[2] mb:S(0) dp:S(0), starts i32[2] mb:S(0) dp:S(0) = data<->n,n>()\n"
    "F h0: y [2,1,4], h.0.attn.cache'2 [2,1,8,8] mb:S(0) pp:at(1) dp:S(0) in h.0.attn.cache = attn_cache<nhed,nkmf,n->nhd,nkmf>(qkv, h.0.attn.cache, starts)\n" },
};

/* What the user says of when gathered weights are freed and split gradients are reduced. */
static void test_options(void)
{
  static const struct { const char *system; enum tc_reshard_after after; bool reduce_once; const char *want; } row[] = {
    { "zero3", TC_AFTER_MB, true, "param w [4,4] dp S(*) R P S(*) mb\n" },
    { "zero2", TC_AFTER_AUTO, true, "param w [4,4] dp R R P S(*)\n" },
    { "ddp", TC_AFTER_USE, true, "param w [4,4] dp R R P R use\n" },
    { "server", TC_AFTER_AUTO, true, "param w [4,4] dp at(0) R P at(0)\n" },
    { "none", TC_AFTER_AUTO, true, "param w [4,4]\n" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_graph *g = read_program("param w [4,4]\n");
    struct tc_err err = { 0 };
    struct tc_mesh *m = read_mesh("pp2 dp2");
    is_int(tc_system_apply(g, m, system_named(row[i].system), row[i].after, row[i].reduce_once, &err), 0, "%s with options",
           row[i].system);
    is_program(g, TEXT_PARAMS, row[i].want, row[i].system);
    tc_mesh_free(m);
    tc_graph_free(g);
  }
}

/* Where dp is copies of shards: axes of one rank have no placement. */
static void test_copies(void)
{
  static const struct { const char *mesh, *system, *want; } row[] = {
    { "replicate2 dp2", "zero1", "param w [4,4] replicate R R P R, dp R R P S(*)\n" },
    { "replicate2 dp2", "zero2", "param w [4,4] replicate R R P R, dp R R S(*) S(*)\n" },
    { "replicate2 dp2", "zero3", "param w [4,4] replicate R R P R, dp S(*) R S(*) S(*) use\n" },
    { "replicate2 dp2", "ddp", "param w [4,4] replicate R R P R, dp R R P R\n" },
    { "replicate2", "zero3", "param w [4,4] replicate R R P R\n" }, { "dp1", "zero3", "param w [4,4]\n" },
    { "replicate2 dp2", "server", "param w [4,4] replicate at(0) R P at(0), dp at(0) R P at(0)\n" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_graph *g = read_program("param w [4,4]\n");
    struct tc_mesh *m = read_mesh(row[i].mesh);
    struct tc_err err = { 0 };
    is_int(tc_system_apply(g, m, system_named(row[i].system), TC_AFTER_AUTO, false, &err), 0, "%s on %s", row[i].system,
           row[i].mesh);
    is_program(g, TEXT_PARAMS, row[i].want, row[i].system);
    tc_mesh_free(m);
    tc_graph_free(g);
  }
}

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_err err = { 0 };
    struct tc_mesh *m = read_mesh("pp2 dp2");
    is_int(tc_system_apply(g, m, system_named(cases[i].system), TC_AFTER_AUTO, false, &err), 0, "%s",
           cases[i].name);
    is_program(g, TEXT_STATES | TEXT_PARAMS | TEXT_NODES, cases[i].want, cases[i].name);
    tc_mesh_free(m);
    for (int32_t p = 0; p < g->n_params; p++) {
      const struct tc_param *x = &g->param[p];
      ok(tc_layout_equal(&g->tensor[x->weight].lay, &x->store), "%s: the weight is stored there", cases[i].name);
      ok(x->master == x->weight || tc_layout_equal(&g->tensor[x->master].lay, &x->update), "... its master, at the update");
    }
    tc_graph_free(g);
  }
  test_options();
  test_copies();
  return done_testing();
}
