/* t_insert_reshards.c - where a node needs another placement: which nodes share a reshard, and where sums are completed. */
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define TWICE                                                        \
  "h0: y [8,4] = matmul<nc,fc->nf>(x, w)\n"                          \
  "h1: z [8,4] = matmul<nc,fc->nf>(y, w)\n"                          \
  "h1: loss += sum<nc->>(z)\n"
#define BATCH "state x [8,4] mb:S(0) dp:S(0)\n"

static const struct { const char *name, *mesh, *program; bool train, regather; const char *want; } cases[] = {
  { "a weight kept for a step is gathered once a step, for both units", "mb2 dp2",
    BATCH "param w [4,4] dp S(*) R P S(*) step\n" TWICE, false, false,
    "F1 h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(y, w'2)\n"
    "F h1: loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 in loss = all_reduce dp(loss) control\n" },
  { "... kept for a micro-batch: once in each", "mb2 dp2",
    BATCH "param w [4,4] dp S(*) R P S(*) mb\n" TWICE, false, false,
    "F h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(y, w'2)\n"
    "F h1: loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 in loss = all_reduce dp(loss) control\n" },
  { "... freed after use: for each unit", "mb2 dp2",
    BATCH "param w [4,4] dp S(*) R S(*) S(*) use\n" TWICE, false, false,
    "F h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n"
    "F h1: w'3 [4,4] = all_gather dp(w) gather\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(y, w'3)\n"
    "F h1: loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 in loss = all_reduce dp(loss) control\n" },
  { "what two readers of another stage need differently is sent once", "mb2 pp2 tp2",
    "unit h0 stage 0 at 0\nunit h1 stage 1 at 1\nstate x [8,4] mb:S(0) pp:at(0) tp:S(0)\n"
    "param w [4,4] pp at(1), tp S(0)\n"
    "h0: y [8,4] = gelu(x)\nh1: u [8,4] = matmul<nc,fc->nf>(y, w)\nh1: z [8,4] = gelu(y)\nh1: loss += sum<nc->>(z)\n", false, false,
    "F h0: y [8,4] mb:S(0) pp:at(0) tp:S(0) = gelu(x)\n"
    "F h1: y'2 [8,4] mb:S(0) pp:at(1) tp:S(0) = send pp(y)\n"
    "F h1: y'3 [8,4] mb:S(0) pp:at(1) = all_gather tp(y'2)\n"
    "F h1: u [8,4] mb:S(0) pp:at(1) tp:S(1) = matmul<nc,fc->nf>(y'3, w)\n"
    "F h1: z [8,4] mb:S(0) pp:at(1) tp:S(0) = gelu(y'2)\n"
    "F h1: loss pp:at(1) tp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 pp:at(1) in loss = all_reduce tp(loss) control\n"
    "U1 loss'3 = broadcast pp(loss'2) all-stages control\n" },
  { "rank 0 updates: it gets the sum and sends the weights", "dp2",
    BATCH "param w [4,4] dp at(0) R P at(0)\n" "h0: y [8,4] = matmul<nc,fc->nf>(x, w)\nloss += sum<nc->>(y)\n", true, false,
    "F1 h0: w'2 [4,4] = broadcast dp(w) gather\n"
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n"
    "F loss dp:P(sum) += sum<nc->>(y)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n"
    "B d.y [8,4] mb:S(0) dp:S(0) = fill()\n"
    "B h0: d.x [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.y, w'2)\n"
    "W h0: d.w [4,4] dp:P(sum) += grad.w first = matmul<nf,nc->fc>(d.y, x)\n"
    "W1 h0: d.w'2 [4,4] dp:at(0) in d.w = reduce dp(d.w) grad\n"
    "U1 sqnorm dp:at(0) = sqnorm(d.w'2)\n"
    "U1 grad_norm dp:at(0), grad_scale dp:at(0) = clip(sqnorm) all-stages\n"
    "U1 w'3 [4,4] dp:at(0) in w = sgd(d.w'2, grad_scale, w)\n"
    "U1 grad_norm'2 = broadcast dp(grad_norm) all-stages control\n" },
  { "readers of an activation share its gather, backward, too", "tp2",
    "state x [8,4] tp:S(0)\nparam g [4]\nparam w [4,4] tp S(0)\nparam v [4,4] tp S(0)\n"
    "h0: n [8,4], rstd [8] = rmsnorm(x, g)\nh0: q [8,4] = matmul<nc,fc->nf>(n, w)\nh0: k [8,4] = matmul<nc,fc->nf>(n, v)\n"
    "h0: y [8,4] = add(q, k)\nloss += sum<nc->>(y)\n", true, false,
    "F1 h0: n [8,4] tp:S(0), rstd [8] tp:S(0) = rmsnorm(x, g)\n"
    "F1 h0: n'2 [8,4] = all_gather tp(n)\n"
    "F1 h0: q [8,4] tp:S(1) = matmul<nc,fc->nf>(n'2, w)\n"
    "F1 h0: k [8,4] tp:S(1) = matmul<nc,fc->nf>(n'2, v)\n"
    "F1 h0: y [8,4] tp:S(1) = add(q, k)\n"
    "F1 loss tp:P(sum) += sum<nc->>(y)\n"
    "F1 loss'2 in loss = all_reduce tp(loss) control\n"
    "B1 d.y [8,4] tp:S(1) = fill()\n"
    "B1 h0: d.n [8,4] tp:P(sum) = matmul<nf,fc->nc>(d.y, v)\n"
    "B1 h0: d.n'2 [8,4] tp:S(0) = reduce_scatter tp(d.n)\n"
    "W1 h0: d.v [4,4] tp:S(0) += grad.v first = matmul<nf,nc->fc>(d.y, n'2)\n"
    "B1 h0: d.n'3 [8,4] tp:P(sum) = matmul<nf,fc->nc>(d.y, w)\n"
    "B1 h0: d.n'4 [8,4] tp:S(0) = reduce_scatter tp(d.n'3)\n"
    "W1 h0: d.w [4,4] tp:S(0) += grad.w first = matmul<nf,nc->fc>(d.y, n'2)\n"
    "B1 h0: d.n'5 [8,4] tp:S(0) = add(d.n'2, d.n'4)\n"
    "B1 h0: d.x [8,4] tp:S(0), d.g [4] tp:P(sum) += grad.g first = rmsnorm_bwd(d.n'5, x, g, rstd)\n"
    "B1 h0: d.g'2 [4] in d.g = all_reduce tp(d.g) grad\n"
    "U1 sqnorm = sqnorm(d.g'2)\n"
    "U1 sqnorm'2 tp:P(sum) = sqnorm(d.w, d.v)\n"
    "U1 sqnorm'3 in sqnorm'2 = all_reduce tp(sqnorm'2) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm, sqnorm'3) all-stages\n"
    "U1 g'2 [4] in g = sgd(d.g'2, grad_scale, g)\n"
    "U1 w'2 [4,4] tp:S(0) in w = sgd(d.w, grad_scale, w)\n"
    "U1 v'2 [4,4] tp:S(0) in v = sgd(d.v, grad_scale, v)\n" },
  { "... or is gathered again in the backward pass", "tp2",
    "state x [8,4] tp:S(0)\nparam w [4,4] tp S(0)\nh0: n [8,4] = gelu(x)\nh0: q [8,4] = matmul<nc,fc->nf>(n, w)\n"
    "loss += sum<nc->>(q)\n", true, true,
    "F1 h0: n [8,4] tp:S(0) = gelu(x)\n"
    "F1 h0: n'2 [8,4] = all_gather tp(n)\n"
    "F1 h0: q [8,4] tp:S(1) = matmul<nc,fc->nf>(n'2, w)\n"
    "F1 loss tp:P(sum) += sum<nc->>(q)\n"
    "F1 loss'2 in loss = all_reduce tp(loss) control\n"
    "B1 d.q [8,4] tp:S(1) = fill()\n"
    "B1 h0: d.n [8,4] tp:P(sum) = matmul<nf,fc->nc>(d.q, w)\n"
    "B1 h0: d.n'2 [8,4] tp:S(0) = reduce_scatter tp(d.n)\n"
    "B1 h0: n'3 [8,4] = all_gather tp(n)\n"
    "W1 h0: d.w [4,4] tp:S(0) += grad.w first = matmul<nf,nc->fc>(d.q, n'3)\n"
    "B1 h0: d.x [8,4] tp:S(0) = gelu_bwd(d.n'2, x)\n"
    "U1 sqnorm tp:P(sum) = sqnorm(d.w)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce tp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w'2 [4,4] tp:S(0) in w = sgd(d.w, grad_scale, w)\n" },
  { "an output that has to be elsewhere is made as another tensor", "dp2",
    BATCH "h0: y [8,4] dp:at(0) = gelu(x)\nh0: z [8,4] = gelu(y)\n", false, false,
    "F h0: y [8,4] mb:S(0) dp:S(0) = gelu(x)\n"
    "F h0: y'2 [8,4] mb:S(0) dp:at(0) = gather dp(y)\n"
    "F h0: z [8,4] mb:S(0) dp:at(0) = gelu(y'2)\n" },
  { "a sum that is overwritten is not completed: its next version is", "tp2",
    "state x [8,4] tp:S(1)\nstate t i32[8]\nh0: p [8] = pick(x, t)\nh0: q [8] in p = add(p, p)\nh0: l [8] = gelu(q)\n",
    false, false,
    "F1 h0: p [8] tp:P(sum) = pick(x, t)\n"
    "F1 h0: q [8] tp:P(sum) in p = add(p, p)\n"
    "F1 h0: q'2 [8] in q = all_reduce tp(q)\n"
    "F1 h0: l [8] = gelu(q'2)\n" },
  { "an operation's result that is partial in time is refused", "mb2",
    "state x [8,4] mb:S(0)\nh0: a [8,4] = gelu(x)\nh0: y [4,4] = matmul<nf,nc->fc>(a, x)\n", false, false,
    "y of op matmul is partial in time" },
  { "a weight can't be split in time", "mb2",
    "state x [8,4] mb:S(0)\nparam w [4,8]\nh0: y [4,4] = matmul<fn,nc->fc>(w, x)\n", false, false,
    "w can't change its placement in time" },
  { "the updated weights return to where they are stored", "dp2",
    BATCH "param w bf16[4,4] dp R R P S(*)\nh0: y bf16[8,4] = matmul<nc,fc->nf>(x, use.w)\nloss += sum<nc->>(y)\n", true, false,
    "F h0: y bf16[8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, use.w)\n"
    "F loss dp:P(sum) += sum<nc->>(y)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n"
    "B d.y bf16[8,4] mb:S(0) dp:S(0) = fill()\n"
    "B h0: d.x [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.y, use.w)\n"
    "W h0: d.use.w [4,4] dp:P(sum) += grad.w first = matmul<nf,nc->fc>(d.y, x)\n"
    "W1 h0: d.use.w'2 [4,4] dp:S(*) block of d.use.w = reduce_scatter dp(d.use.w) grad\n"
    "U1 sqnorm dp:P(sum) = sqnorm(d.use.w'2)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce dp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w'2 [4,4] dp:S(*) in w = sgd(d.use.w'2, grad_scale, w)\n"
    "U1 use.w'2 bf16[4,4] dp:S(*) = cast(w'2)\n"
    "U1 use.w'3 bf16[4,4] in use.w = all_gather dp(use.w'2) store\n" },
  { "a weight in host memory is copied before its use", "dp1",
    BATCH "param w [4,4] host\nh0: y [8,4] = matmul<nc,fc->nf>(x, w)\nloss += sum<nc->>(y)\n", false, false,
    "F1 h0: w'2 [4,4] = copy(w) on-host gather\n"
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n"
    "F loss dp:P(sum) += sum<nc->>(y)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n" },
};

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_mesh *m = read_mesh(cases[i].mesh);
    struct tc_err err = { 0 };
    if (cases[i].train) {
      TC_ASSERT(tc_grad(g, TC_F32, &err) == 0);
      tc_optim_choose(g, TC_UPDATE_SGD);
      tc_optim_build(g, TC_F32);
    }
    if (tc_graph_check(g, m, "update", &err) < 0) ok(false, "before: %s", err.text);
    if (tc_infer(g, m, cases[i].regather, &err) < 0) {
      is_str(err.text, cases[i].want, "%s", cases[i].name);
    } else {
      if (tc_graph_check(g, m, "infer", &err) < 0) ok(false, "after: %s", err.text);
      is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    }
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  return done_testing();
}
