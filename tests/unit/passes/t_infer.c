/* t_infer.c - a placement for every tensor, from those of parameters and inputs. */
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define LAYER                                                        \
  "h0: fc [8,16] = matmul<nc,fc->nf>(x, w1)\n"                       \
  "h0: act [8,16] = gelu(fc)\n"                                      \
  "h0: y [8,4] = matmul<nf,cf->nc>(act, w2)\n"

/* want: the nodes, or the sentence. */
static const struct { const char *name, *mesh, *program; bool train; const char *want; } cases[] = {
  { "one rank: nothing is split", "mb1",
    "state x [8,4]\nparam w1 [16,4]\nparam w2 [4,16]\n" LAYER, false,
    "F1 h0: fc [8,16] = matmul<nc,fc->nf>(x, w1)\n"
    "F1 h0: act [8,16] = gelu(fc)\n"
    "F1 h0: y [8,4] = matmul<nf,cf->nc>(act, w2)\n" },
  { "the batch is split: so is all that is made from it, and the loss is summed", "dp2",
    "state x [8,4] dp:S(0)\nparam w1 [16,4]\nparam w2 [4,16]\n" LAYER "loss += sum<nc->>(y)\n", false,
    "F1 h0: fc [8,16] dp:S(0) = matmul<nc,fc->nf>(x, w1)\n"
    "F1 h0: act [8,16] dp:S(0) = gelu(fc)\n"
    "F1 h0: y [8,4] dp:S(0) = matmul<nf,cf->nc>(act, w2)\n"
    "F1 loss dp:P(sum) += sum<nc->>(y)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n" },
  { "Megatron's pair: columns, then rows; one sum behind it", "tp2",
    "state x [8,4]\nparam w1 [16,4] tp S(0)\nparam w2 [4,16] tp S(1)\n" LAYER, false,
    "F1 h0: fc [8,16] tp:S(1) = matmul<nc,fc->nf>(x, w1)\n"
    "F1 h0: act [8,16] tp:S(1) = gelu(fc)\n"
    "F1 h0: y [8,4] tp:P(sum) = matmul<nf,cf->nc>(act, w2)\n"
    "F1 h0: y'2 [8,4] in y = all_reduce tp(y)\n" },
  { "... and backward: one sum before it", "dp1 tp2",
    "state x [8,4]\nparam w1 [16,4] tp S(0)\nparam w2 [4,16] tp S(1)\n" LAYER "loss += sum<nc->>(y)\n", true,
    "F1 h0: fc [8,16] tp:S(1) = matmul<nc,fc->nf>(x, w1)\n"
    "F1 h0: act [8,16] tp:S(1) = gelu(fc)\n"
    "F1 h0: y [8,4] tp:P(sum) = matmul<nf,cf->nc>(act, w2)\n"
    "F1 h0: y'2 [8,4] in y = all_reduce tp(y)\n"
    "F1 loss += sum<nc->>(y'2)\n"
    "B1 d.y [8,4] = fill()\n"
    "B1 h0: d.act [8,16] tp:S(1) = matmul<nc,cf->nf>(d.y, w2)\n"
    "W1 h0: d.w2 [4,16] tp:S(1) += grad.w2 first = matmul<nc,nf->cf>(d.y, act)\n"
    "B1 h0: d.fc [8,16] tp:S(1) = gelu_bwd(d.act, fc)\n"
    "B1 h0: d.x [8,4] tp:P(sum) = matmul<nf,fc->nc>(d.fc, w1)\n"
    "B1 h0: d.x'2 [8,4] in d.x = all_reduce tp(d.x)\n"
    "W1 h0: d.w1 [16,4] tp:S(0) += grad.w1 first = matmul<nf,nc->fc>(d.fc, x)\n"
    "U1 sqnorm tp:P(sum) = sqnorm(d.w1)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce tp(sqnorm) control\n"
    "U1 sqnorm'3 tp:P(sum) = sqnorm(d.w2)\n"
    "U1 sqnorm'4 in sqnorm'3 = all_reduce tp(sqnorm'3) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2, sqnorm'4) all-stages\n"
    "U1 w1'2 [16,4] tp:S(0) in w1 = sgd(d.w1, grad_scale, w1)\n"
    "U1 w2'2 [4,16] tp:S(1) in w2 = sgd(d.w2, grad_scale, w2)\n" },
  { "an annotated residual: gathered before the product, its sum split behind it (sequence parallelism)", "tp2",
    "state x [8,4] tp:S(0)\nparam w1 [16,4] tp S(0)\nparam w2 [4,16] tp S(1)\nh0: n [8,4] = gelu(x)\n"
    "h0: fc [8,16] = matmul<nc,fc->nf>(n, w1)\nh0: y [8,4] = matmul<nf,cf->nc>(fc, w2)\n"
    "h0: r [8,4] tp:S(0) = add(x, y)\n", false,
    "F1 h0: n [8,4] tp:S(0) = gelu(x)\n"
    "F1 h0: n'2 [8,4] = all_gather tp(n)\n"
    "F1 h0: fc [8,16] tp:S(1) = matmul<nc,fc->nf>(n'2, w1)\n"
    "F1 h0: y [8,4] tp:P(sum) = matmul<nf,cf->nc>(fc, w2)\n"
    "F1 h0: y'2 [8,4] tp:S(0) = reduce_scatter tp(y)\n"
    "F1 h0: r [8,4] tp:S(0) = add(x, y'2)\n" },
  { "a split weight alone: its product's columns", "tp2",
    "state x [8,4]\nparam w1 [16,4] tp S(0)\nh0: fc [8,16] = matmul<nc,fc->nf>(x, w1)\n", false,
    "F1 h0: fc [8,16] tp:S(1) = matmul<nc,fc->nf>(x, w1)\n" },
  { "a row of an op that can't split it is refused", "tp2",
    "state x [8,4]\nparam g [4] tp S(0)\nh0: y [8,4], rstd [8] = rmsnorm(x, g)\n", false,
    "g is to be split on tp, but op rmsnorm, which makes it from or into y, cannot split that dimension" },
  { "... but an operand's split that the op can't have is undone before it", "tp2",
    "state x [8,4] tp:S(1)\nparam g [4]\nh0: a [8,4] = gelu(x)\nh0: y [8,4], rstd [8] = rmsnorm(a, g)\n", false,
    "F1 h0: a [8,4] tp:S(1) = gelu(x)\n"
    "F1 h0: a'2 [8,4] = all_gather tp(a)\n"
    "F1 h0: y [8,4], rstd [8] = rmsnorm(a'2, g)\n" },
  { "sequences stay whole: 3 of them on 2 ranks are not split", "dp2",
    "state qkv [12,2,3,2] dp:S(0)\nh0: y [12,2,2], lse [12,2] = attn(qkv) k=4\n", false,
    "F1 h0: qkv'2 [12,2,3,2] = all_gather dp(qkv)\n"
    "F1 h0: y [12,2,2], lse [12,2] = attn(qkv'2)\n" },
  { "... 4 of them are", "dp2",
    "state qkv [16,2,3,2] dp:S(0)\nh0: y [16,2,2], lse [16,2] = attn(qkv) k=4\n", false,
    "F1 h0: y [16,2,2] dp:S(0), lse [16,2] dp:S(0) = attn(qkv)\n" },
  { "attention over parts of sequences needs all keys and values; its outputs are of the part", "cp2",
    "state qkv [16,2,3,2] cp:S(0)\nh0: kv [16,2,2,2] = kv(qkv)\nh0: y [16,2,2], lse [16,2] = attn<nhed,Nhud->nhd,nh>(qkv, kv) k=4\n",
    false,
    "F1 h0: kv [16,2,2,2] cp:S(0) = kv(qkv)\n"
    "F1 h0: kv'2 [16,2,2,2] = all_gather cp(kv)\n"
    "F1 h0: y [16,2,2] cp:S(0), lse [16,2] cp:S(0) = attn<nhed,Nhud->nhd,nh>(qkv, kv'2)\n" },
  { "... and without them by themselves all of it", "cp2",
    "state qkv [16,2,3,2] cp:S(0)\nh0: y [16,2,2], lse [16,2] = attn(qkv) k=4\n", false,
    "F1 h0: qkv'2 [16,2,3,2] = all_gather cp(qkv)\n"
    "F1 h0: y [16,2,2], lse [16,2] = attn(qkv'2)\n" },
  { "... or of heads those of the rank", "cp2",
    "state qkv [16,2,3,2] cp:S(1)\nh0: y [16,2,2], lse [16,2] = attn(qkv) k=4\n", false,
    "F1 h0: y [16,2,2] cp:S(1), lse [16,2] cp:S(1) = attn(qkv)\n" },
  { "what cp and tp would split in another order in rows than in columns is split on tp alone", "cp2 tp2",
    "state x [8,4]\nparam w [8,4] cp S(0) tp S(0)\nh0: y [8,8] = matmul<nc,fc->nf>(x, w)\n", false,
    "F1 h0: w'2 [8,4] cp:S(0) = all_gather tp(w) gather\n"
    "F1 h0: w'3 [8,4] = all_gather cp(w'2) gather\n"
    "F1 h0: w'4 [8,4] tp:S(0) = slice tp(w'3) gather\n"
    "F1 h0: y [8,8] tp:S(1) = matmul<nc,fc->nf>(x, w'4)\n" },
  { "a norm is of tensors that are all split, or of none", "dp2",
    "state x [4,4] dp:S(1)\nstate b [4]\nh0: a [4,4] = gelu(x)\nh0: c [4] = gelu(b)\nh0: n = sqnorm(c, a)\n", false,
    "F1 h0: a [4,4] dp:S(1) = gelu(x)\n"
    "F1 h0: c [4] = gelu(b)\n"
    "F1 h0: a'2 [4,4] = all_gather dp(a)\n"
    "F1 h0: n = sqnorm(c, a'2)\n" },
  { "a stage has its units; what another stage made is received", "pp2",
    "unit h0 at 0\nunit h1 stage 1 at 1\nstate x [8,4] pp:at(0)\nh0: a [8,4] = gelu(x)\nh1: b [8,4] = gelu(a)\n", false,
    "F1 h0: a [8,4] pp:at(0) = gelu(x)\n"
    "F1 h1: a'2 [8,4] pp:at(1) = send pp(a)\n"
    "F1 h1: b [8,4] pp:at(1) = gelu(a'2)\n" },
  { "one rank of dp has inputs and weights: it works alone", "dp2",
    "state x [8,4] dp:at(0)\nparam w1 [16,4] dp at(0)\nh0: y [8,16] = matmul<nc,fc->nf>(x, w1)\n", false,
    "F1 h0: y [8,16] dp:at(0) = matmul<nc,fc->nf>(x, w1)\n" },
  { "norms of all queries and of all keys, split by heads: the sums of squares, and their gradient, are added up", "tp2",
    "state x [8,4]\nparam w [2,3,4,4] tp S(0)\nparam q [2,1,4] tp S(0)\nparam k [2,4] tp S(0)\n"
    "h0: a [8,2,3,4] = matmul<nc,kedc->nked>(x, w)\nh0: s [8,2] = qk_squares(a)\n"
    "h0: y [8,2,3,4] = qk_scale(a, s, q, k)\nloss += sum<nked->>(y)\n", true,
    "F1 h0: a [8,2,3,4] tp:S(1) = matmul<nc,kedc->nked>(x, w)\n"
    "F1 h0: s [8,2] tp:P(sum) = qk_squares(a)\n"
    "F1 h0: s'2 [8,2] in s = all_reduce tp(s)\n"
    "F1 h0: y [8,2,3,4] tp:S(1) = qk_scale(a, s'2, q, k)\n"
    "F1 loss tp:P(sum) += sum<nked->>(y)\n"
    "F1 loss'2 in loss = all_reduce tp(loss) control\n"
    "B1 d.y [8,2,3,4] tp:S(1) = fill()\n"
    "B1 h0: d.a [8,2,3,4] tp:S(1), d.s [8,2] tp:P(sum), d.q [2,1,4] tp:S(0) += grad.q first, d.k [2,4] tp:S(0) += grad.k first = qk_scale_bwd(d.y, a, s'2, q, k)\n"
    "B1 h0: d.s'2 [8,2] in d.s = all_reduce tp(d.s)\n"
    "B1 h0: d.a'2 [8,2,3,4] tp:S(1) in d.a = qk_squares_bwd(d.a, a, d.s'2)\n"
    "B1 h0: d.x [8,4] tp:P(sum) = matmul<nked,kedc->nc>(d.a'2, w)\n"
    "B1 h0: d.x'2 [8,4] in d.x = all_reduce tp(d.x)\n"
    "W1 h0: d.w [2,3,4,4] tp:S(0) += grad.w first = matmul<nked,nc->kedc>(d.a'2, x)\n"
    "U1 sqnorm tp:P(sum) = sqnorm(d.w, d.q, d.k)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce tp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w'2 [2,3,4,4] tp:S(0) in w = sgd(d.w, grad_scale, w)\n"
    "U1 q'2 [2,1,4] tp:S(0) in q = sgd(d.q, grad_scale, q)\n"
    "U1 k'2 [2,4] tp:S(0) in k = sgd(d.k, grad_scale, k)\n" },
  { "... split by rows: each has its own", "dp2",
    "state x [8,4] dp:S(0)\nparam w [2,3,4,4]\nparam q [2,1,4]\nparam k [2,4]\n"
    "h0: a [8,2,3,4] = matmul<nc,kedc->nked>(x, w)\nh0: s [8,2] = qk_squares(a)\n"
    "h0: y [8,2,3,4] = qk_scale(a, s, q, k)\nloss += sum<nked->>(y)\n", true,
    "F1 h0: a [8,2,3,4] dp:S(0) = matmul<nc,kedc->nked>(x, w)\n"
    "F1 h0: s [8,2] dp:S(0) = qk_squares(a)\n"
    "F1 h0: y [8,2,3,4] dp:S(0) = qk_scale(a, s, q, k)\n"
    "F1 loss dp:P(sum) += sum<nked->>(y)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n"
    "B1 d.y [8,2,3,4] dp:S(0) = fill()\n"
    "B1 h0: d.a [8,2,3,4] dp:S(0), d.s [8,2] dp:S(0), d.q [2,1,4] dp:P(sum) += grad.q first, d.k [2,4] dp:P(sum) += grad.k first = qk_scale_bwd(d.y, a, s, q, k)\n"
    "B1 h0: d.q'2 [2,1,4] in d.q = all_reduce dp(d.q) grad\n"
    "B1 h0: d.k'2 [2,4] in d.k = all_reduce dp(d.k) grad\n"
    "B1 h0: d.a'2 [8,2,3,4] dp:S(0) in d.a = qk_squares_bwd(d.a, a, d.s)\n"
    "B1 h0: d.x [8,4] dp:S(0) = matmul<nked,kedc->nc>(d.a'2, w)\n"
    "W1 h0: d.w [2,3,4,4] dp:P(sum) += grad.w first = matmul<nked,nc->kedc>(d.a'2, x)\n"
    "W1 h0: d.w'2 [2,3,4,4] in d.w = all_reduce dp(d.w) grad\n"
    "U1 sqnorm = sqnorm(d.w'2, d.q'2, d.k'2)\n"
    "U1 grad_norm, grad_scale = clip(sqnorm) all-stages\n"
    "U1 w'2 [2,3,4,4] in w = sgd(d.w'2, grad_scale, w)\n"
    "U1 q'2 [2,1,4] in q = sgd(d.q'2, grad_scale, q)\n"
    "U1 k'2 [2,4] in k = sgd(d.k'2, grad_scale, k)\n" },
  { "a cap in place of logits that are partial: in place of their sum", "tp2",
    "state x [8,4] tp:S(1)\nparam w [6,4] tp S(1)\nl [8,6] = matmul<nc,vc->nv>(x, w)\ncap [8,6] in l = softcap(l)\n",
    false,
    "F1 l [8,6] tp:P(sum) = matmul<nc,vc->nv>(x, w)\n"
    "F1 l'2 [8,6] in l = all_reduce tp(l)\n"
    "F1 cap [8,6] in l'2 = softcap(l'2)\n" },
  { "... and of columns of the vocabulary", "tp2",
    "state x [8,4]\nparam w [6,4] tp S(0)\nl [8,6] = matmul<nc,vc->nv>(x, w)\ncap [8,6] in l = softcap(l)\n",
    false,
    "F1 l [8,6] tp:S(1) = matmul<nc,vc->nv>(x, w)\n"
    "F1 cap [8,6] tp:S(1) in l = softcap(l)\n" },
  { "what must be split evenly is refused with a size that fits", "dp4",
    "state x [6,4] dp:S(0)\nh0: y [6,4] = gelu(x)\n", false,
    "x of op gelu: dimension 0 has 6 elements, which dp = 4 does not divide; dp = 3 would fit" },
  { "the update is where its state is", "dp2",
    "state x [8,4] dp:S(0)\nparam w1 [16,4] dp R R P S(*)\nh0: y [8,16] = matmul<nc,fc->nf>(x, w1)\nloss += sum<nc->>(y)\n", true,
    "F1 h0: y [8,16] dp:S(0) = matmul<nc,fc->nf>(x, w1)\n"
    "F1 loss dp:P(sum) += sum<nc->>(y)\n"
    "F1 loss'2 in loss = all_reduce dp(loss) control\n"
    "B1 d.y [8,16] dp:S(0) = fill()\n"
    "B1 h0: d.x [8,4] dp:S(0) = matmul<nf,fc->nc>(d.y, w1)\n"
    "W1 h0: d.w1 [16,4] dp:P(sum) += grad.w1 first = matmul<nf,nc->fc>(d.y, x)\n"
    "W1 h0: d.w1'2 [16,4] dp:S(*) block of d.w1 = reduce_scatter dp(d.w1) grad\n"
    "U1 sqnorm dp:P(sum) = sqnorm(d.w1'2)\n"
    "U1 sqnorm'2 in sqnorm = all_reduce dp(sqnorm) control\n"
    "U1 grad_norm, grad_scale = clip(sqnorm'2) all-stages\n"
    "U1 w1'2 [16,4] dp:S(*) block of w1 = slice dp(w1)\n"
    "U1 w1'3 [16,4] dp:S(*) in w1'2 = sgd(d.w1'2, grad_scale, w1'2)\n"
    "U1 w1'4 [16,4] in w1 = all_gather dp(w1'3) store\n" },
};

static void check(const struct tc_graph *g, const struct tc_mesh *m, const char *pass)
{
  struct tc_err err = { 0 };
  if (tc_graph_check(g, m, pass, &err) < 0) ok(false, "%s", err.text);
}

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
    check(g, m, "update");
    if (tc_infer(g, m, false, &err) < 0) {
      is_str(err.text, cases[i].want, "%s", cases[i].name);
    } else {
      check(g, m, "infer");
      is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    }
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  return done_testing();
}
