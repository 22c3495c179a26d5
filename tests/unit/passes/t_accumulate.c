/* t_accumulate.c - how the contributions to a gradient become one sum, where placements differ. */
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define TWICE                                                        \
  "h0: y [8,4] = matmul<nc,fc->nf>(x, w)\n"                          \
  "h1: z [8,4] = matmul<nc,fc->nf>(y, w)\n"                          \
  "h1: loss += sum<nc->>(z)\n"
#define BATCH "state x [8,4] mb:S(0) dp:S(0)\n"

static const struct { const char *name, *mesh, *program; const char *want; } cases[] = {
  { "contributions of a micro-batch are added up before they are reduced, and that is added to the accumulator",
    "mb2 dp2", BATCH "param w [4,4] dp S(*) R S(*) S(*) use\n" TWICE,
    "F h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n"
    "F h1: w'3 [4,4] = all_gather dp(w) gather\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(y, w'3)\n"
    "F h1: loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 in loss = all_reduce dp(loss) control\n"
    "B h1: d.z [8,4] mb:S(0) dp:S(0) = fill()\n"
    "B h1: w'4 [4,4] = all_gather dp(w) gather\n"
    "B h1: d.y [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.z, w'4)\n"
    "W h1: d.w [4,4] mb:P(sum) dp:P(sum) += first = matmul<nf,nc->fc>(d.z, y)\n"
    "B h0: w'5 [4,4] = all_gather dp(w) gather\n"
    "B h0: d.x [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.y, w'5)\n"
    "W h0: d.w'2 [4,4] mb:P(sum) dp:P(sum) += d.w = matmul<nf,nc->fc>(d.y, x)\n"
    "W h0: d.w'3 [4,4] mb:P(sum) dp:S(*) = reduce_scatter dp(d.w'2) grad\n"
    "W h0: d.w'4 [4,4] dp:S(*) += grad.w first = accum(d.w'3)\n"
    "U1 sqnorm dp:P(sum) = sqnorm(d.w'4)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce dp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w'6 [4,4] dp:S(*) in w = sgd(d.w'4, grad_scale, w)\n" },
  { "an accumulator of the contributions' placement: they are added where they are made, and reduced once a step",
    "mb2 dp2", BATCH "param w [4,4] dp R R P R\n" TWICE,
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w)\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(y, w)\n"
    "F h1: loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 in loss = all_reduce dp(loss) control\n"
    "B h1: d.z [8,4] mb:S(0) dp:S(0) = fill()\n"
    "B h1: d.y [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.z, w)\n"
    "W h1: d.w [4,4] dp:P(sum) += grad.w first = matmul<nf,nc->fc>(d.z, y)\n"
    "B h0: d.x [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.y, w)\n"
    "W h0: d.w'2 [4,4] dp:P(sum) += d.w = matmul<nf,nc->fc>(d.y, x)\n"
    "W1 h0: d.w'3 [4,4] in d.w'2 = all_reduce dp(d.w'2) grad\n"
    "U1 sqnorm = sqnorm(d.w'3)\n"
    "U1 grad_norm, grad_scale = clip(sqnorm) all-stages\n"
    "U1 w'2 [4,4] in w = sgd(d.w'3, grad_scale, w)\n" },
  { "one micro-batch: the reduced gradient is written, not added", "mb1 dp2",
    BATCH "param w [4,4] dp R R S(*) S(*)\n" TWICE,
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w)\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(y, w)\n"
    "F h1: loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 in loss = all_reduce dp(loss) control\n"
    "B h1: d.z [8,4] mb:S(0) dp:S(0) = fill()\n"
    "B h1: d.y [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.z, w)\n"
    "W h1: d.w [4,4] dp:P(sum) += first = matmul<nf,nc->fc>(d.z, y)\n"
    "B h0: d.x [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.y, w)\n"
    "W h0: d.w'2 [4,4] dp:P(sum) += d.w = matmul<nf,nc->fc>(d.y, x)\n"
    "W1 h0: d.w'3 [4,4] dp:S(*) in grad.w = reduce_scatter dp(d.w'2) grad\n"
    "U1 sqnorm dp:P(sum) = sqnorm(d.w'3)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce dp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w'2 [4,4] dp:S(*) block of w = slice dp(w)\n"
    "U1 w'3 [4,4] dp:S(*) in w'2 = sgd(d.w'3, grad_scale, w'2)\n"
    "U1 w'4 [4,4] in w = all_gather dp(w'3) store\n" },
  { "contributions of different placements are not summed before", "mb2 dp2",
    BATCH "state a [8,4] mb:S(0)\nparam w [4,4] dp R R S(*) S(*)\n"
    "h0: y [8,4] = matmul<nc,fc->nf>(x, w)\nh1: b [8,4] = matmul<nc,fc->nf>(a, w)\nh1: z [8,4] = add(y, b)\n"
    "loss += sum<nc->>(z)\n",
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w)\n"
    "F h1: b [8,4] mb:S(0) = matmul<nc,fc->nf>(a, w)\n"
    "F h1: b'2 [8,4] mb:S(0) dp:S(0) = slice dp(b)\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = add(y, b'2)\n"
    "F loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n"
    "B d.z [8,4] mb:S(0) dp:S(0) = fill()\n"
    "B h1: d.z'2 [8,4] mb:S(0) = all_gather dp(d.z)\n"
    "B h1: d.a [8,4] mb:S(0) = matmul<nf,fc->nc>(d.z'2, w)\n"
    "W h1: d.w [4,4] mb:P(sum) += first = matmul<nf,nc->fc>(d.z'2, a)\n"
    "B h0: d.x [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.z, w)\n"
    "W h0: d.w'2 [4,4] mb:P(sum) dp:P(sum) += matmul<nf,nc->fc>(d.z, x)\n"
    "W h1: d.w'3 [4,4] mb:P(sum) dp:S(*) = slice dp(d.w) grad\n"
    "W h1: d.w'4 [4,4] dp:S(*) += grad.w first = accum(d.w'3)\n"
    "W h0: d.w'5 [4,4] mb:P(sum) dp:S(*) = reduce_scatter dp(d.w'2) grad\n"
    "W h0: d.w'6 [4,4] dp:S(*) += d.w'4 = accum(d.w'5)\n"
    "U1 sqnorm dp:P(sum) = sqnorm(d.w'6)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce dp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w'2 [4,4] dp:S(*) block of w = slice dp(w)\n"
    "U1 w'3 [4,4] dp:S(*) in w'2 = sgd(d.w'6, grad_scale, w'2)\n"
    "U1 w'4 [4,4] in w = all_gather dp(w'3) store\n" },
  { "... of one micro-batch: the first is written, the second added once a step", "mb1 dp2",
    BATCH "state a [8,4] mb:S(0)\nparam w [4,4] dp R R S(*) S(*)\n"
    "h0: y [8,4] = matmul<nc,fc->nf>(x, w)\nh1: b [8,4] = matmul<nc,fc->nf>(a, w)\nh1: z [8,4] = add(y, b)\n"
    "loss += sum<nc->>(z)\n",
    "F h0: y [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w)\n"
    "F h1: b [8,4] mb:S(0) = matmul<nc,fc->nf>(a, w)\n"
    "F h1: b'2 [8,4] mb:S(0) dp:S(0) = slice dp(b)\n"
    "F h1: z [8,4] mb:S(0) dp:S(0) = add(y, b'2)\n"
    "F loss dp:P(sum) += sum<nc->>(z)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n"
    "B d.z [8,4] mb:S(0) dp:S(0) = fill()\n"
    "B h1: d.z'2 [8,4] mb:S(0) = all_gather dp(d.z)\n"
    "B h1: d.a [8,4] mb:S(0) = matmul<nf,fc->nc>(d.z'2, w)\n"
    "W h1: d.w [4,4] += first = matmul<nf,nc->fc>(d.z'2, a)\n"
    "B h0: d.x [8,4] mb:S(0) dp:S(0) = matmul<nf,fc->nc>(d.z, w)\n"
    "W h0: d.w'2 [4,4] dp:P(sum) += matmul<nf,nc->fc>(d.z, x)\n"
    "W1 h1: d.w'3 [4,4] dp:S(*) in grad.w = slice dp(d.w) grad\n"
    "W1 h0: d.w'4 [4,4] dp:S(*) = reduce_scatter dp(d.w'2) grad\n"
    "W1 h0: d.w'5 [4,4] dp:S(*) += d.w'3 = accum(d.w'4)\n"
    "U1 sqnorm dp:P(sum) = sqnorm(d.w'5)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce dp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w'2 [4,4] dp:S(*) block of w = slice dp(w)\n"
    "U1 w'3 [4,4] dp:S(*) in w'2 = sgd(d.w'5, grad_scale, w'2)\n"
    "U1 w'4 [4,4] in w = all_gather dp(w'3) store\n" },
  { "a weight that another stage uses, too: its sum is sent once a step, and what both have is reduced where it is updated",
    "mb2 pp2 dp2", "unit h0 at 0\nunit h1 stage 1 at 1\nstate x [8,4] mb:S(0) pp:at(0) dp:S(0)\n"
    "h0: param w [4,4] pp at(0), dp R R P R\n" TWICE,
    "F h0: y [8,4] mb:S(0) pp:at(0) dp:S(0) = matmul<nc,fc->nf>(x, w)\n"
    "F h1: y'2 [8,4] mb:S(0) pp:at(1) dp:S(0) = send pp(y)\n"
    "F1 h1: w'2 [4,4] pp:at(1) = send pp(w)\n"
    "F h1: z [8,4] mb:S(0) pp:at(1) dp:S(0) = matmul<nc,fc->nf>(y'2, w'2)\n"
    "F h1: loss pp:at(1) dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 pp:at(1) in loss = all_reduce dp(loss) control\n"
    "B h1: d.z [8,4] mb:S(0) pp:at(1) dp:S(0) = fill()\n"
    "B h1: d.y [8,4] mb:S(0) pp:at(1) dp:S(0) = matmul<nf,fc->nc>(d.z, w'2)\n"
    "W h1: d.w [4,4] pp:at(1) dp:P(sum) += tied.w first = matmul<nf,nc->fc>(d.z, y'2)\n"
    "B h0: d.y'2 [8,4] mb:S(0) pp:at(0) dp:S(0) = send pp(d.y)\n"
    "B h0: d.x [8,4] mb:S(0) pp:at(0) dp:S(0) = matmul<nf,fc->nc>(d.y'2, w)\n"
    "W h0: d.w'2 [4,4] pp:at(0) dp:P(sum) += grad.w first = matmul<nf,nc->fc>(d.y'2, x)\n"
    "B1 h0: d.w'3 [4,4] pp:at(0) dp:P(sum) = send pp(d.w)\n"
    "B1 h0: d.w'4 [4,4] pp:at(0) dp:P(sum) += d.w'2 = accum(d.w'3)\n"
    "B1 h0: d.w'5 [4,4] pp:at(0) in d.w'4 = all_reduce dp(d.w'4) grad\n"
    "U1 h0: sqnorm pp:at(0) = sqnorm(d.w'5)\n"
    "U1 sqnorm'2 = broadcast pp(sqnorm) all-stages control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 h0: grad_scale'2 pp:at(0) = drop pp(grad_scale) control\n"
    "U1 h0: w'3 [4,4] pp:at(0) in w = sgd(d.w'5, grad_scale'2, w)\n"
    "U1 loss'3 = broadcast pp(loss'2) all-stages control\n" },
  { "... what a stage adds up in each micro-batch is closed before the other stage's sum, which arrives once a step",
    "mb2 pp2 dp2", "unit h0 at 0\nunit h1 stage 1 at 1\nstate x [8,4] mb:S(0) pp:at(0) dp:S(0)\n"
    "h0: param w [4,4] pp at(0), dp R R S(*) S(*)\n" TWICE,
    "F h0: y [8,4] mb:S(0) pp:at(0) dp:S(0) = matmul<nc,fc->nf>(x, w)\n"
    "F h1: y'2 [8,4] mb:S(0) pp:at(1) dp:S(0) = send pp(y)\n"
    "F1 h1: w'2 [4,4] pp:at(1) = send pp(w)\n"
    "F h1: z [8,4] mb:S(0) pp:at(1) dp:S(0) = matmul<nc,fc->nf>(y'2, w'2)\n"
    "F h1: loss pp:at(1) dp:P(sum) += sum<nc->>(z)\n"
    "F1 h1: loss'2 pp:at(1) in loss = all_reduce dp(loss) control\n"
    "B h1: d.z [8,4] mb:S(0) pp:at(1) dp:S(0) = fill()\n"
    "B h1: d.y [8,4] mb:S(0) pp:at(1) dp:S(0) = matmul<nf,fc->nc>(d.z, w'2)\n"
    "W h1: d.w [4,4] mb:P(sum) pp:at(1) dp:P(sum) += first = matmul<nf,nc->fc>(d.z, y'2)\n"
    "W h1: d.w'2 [4,4] mb:P(sum) pp:at(1) dp:S(*) = reduce_scatter dp(d.w) grad\n"
    "W h1: d.w'3 [4,4] pp:at(1) dp:S(*) += tied.w first = accum(d.w'2)\n"
    "B h0: d.y'2 [8,4] mb:S(0) pp:at(0) dp:S(0) = send pp(d.y)\n"
    "B h0: d.x [8,4] mb:S(0) pp:at(0) dp:S(0) = matmul<nf,fc->nc>(d.y'2, w)\n"
    "W h0: d.w'4 [4,4] mb:P(sum) pp:at(0) dp:P(sum) += first = matmul<nf,nc->fc>(d.y'2, x)\n"
    "W h0: d.w'5 [4,4] mb:P(sum) pp:at(0) dp:S(*) = reduce_scatter dp(d.w'4) grad\n"
    "W h0: d.w'6 [4,4] pp:at(0) dp:S(*) += grad.w first = accum(d.w'5)\n"
    "B1 h0: d.w'7 [4,4] pp:at(0) dp:S(*) = send pp(d.w'3)\n"
    "B1 h0: d.w'8 [4,4] pp:at(0) dp:S(*) += d.w'6 = accum(d.w'7)\n"
    "U1 h0: sqnorm pp:at(0) dp:P(sum) = sqnorm(d.w'8)\n"
    "U1 h0: sqnorm'2 pp:at(0) in sqnorm = all_reduce dp(sqnorm) control\n"
    "U1 sqnorm'3 = broadcast pp(sqnorm'2) all-stages control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'3) all-stages\n"
    "U1 h0: grad_scale'2 pp:at(0) = drop pp(grad_scale) control\n"
    "U1 h0: w'3 [4,4] pp:at(0) dp:S(*) block of w = slice dp(w)\n"
    "U1 h0: w'4 [4,4] pp:at(0) dp:S(*) in w'3 = sgd(d.w'8, grad_scale'2, w'3)\n"
    "U1 h0: w'5 [4,4] pp:at(0) in w = all_gather dp(w'4) store\n"
    "U1 loss'3 = broadcast pp(loss'2) all-stages control\n" },
};

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_mesh *m = read_mesh(cases[i].mesh);
    struct tc_err err = { 0 };
    TC_ASSERT(tc_grad(g, TC_F32, &err) == 0);
    tc_optim_choose(g, TC_UPDATE_SGD);
    tc_optim_build(g, TC_F32);
    if (tc_graph_check(g, m, "update", &err) < 0) ok(false, "before: %s", err.text);
    if (tc_infer(g, m, false, &err) < 0 || tc_graph_check(g, m, "infer", &err) < 0) ok(false, "after: %s", err.text);
    is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  return done_testing();
}
