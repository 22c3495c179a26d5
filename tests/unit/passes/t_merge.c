/* t_merge.c - pairs of nodes that become one, and what keeps them apart. */
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define INPUTS "state x [8,4]\nparam w [6,4]\nparam b [6]\n"
#define RESIDUAL                                                     \
  "state x [8,4]\nparam g [4]\nstate grad.g [4]\nstate rstd [8]\n"    \
  "B d.r [8,4] = fill()\n"                                           \
  "B d.n [8,4] = gelu_bwd(d.r, x)\n"
#define NORM "B d.x [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n"

static const struct { const char *name, *program; bool w_split; const char *want; } cases[] = {
  { "a product and its bias become one product with three inputs, at the place of the bias",
    INPUTS "param c [6] tp S(0)\nh0: y [8,6] = matmul<nc,fc->nf>(x, w)\nh0: c'2 [6] = all_gather tp(c)\nh0: z [8,6] = bias<nf,f->nf>(y, c'2)\n", false,
    "F h0: c'2 [6] = all_gather tp(c)\n"
    "F h0: z [8,6] = matmul<nc,fc,f->nf>(x, w, c'2)\n" },
  { "... not if the sum of a partial product is between them",
    "state x [8,4] tp:S(1)\nparam w [6,4] tp S(1)\nparam b [6]\n"
    "h0: y [8,6] tp:P = matmul<nc,fc->nf>(x, w)\nh0: y'2 [8,6] in y = all_reduce tp(y)\n"
    "h0: z [8,6] = bias<nf,f->nf>(y'2, b)\n", false,
    "F h0: y [8,6] tp:P(sum) = matmul<nc,fc->nf>(x, w)\n"
    "F h0: y'2 [8,6] in y = all_reduce tp(y)\n"
    "F h0: z [8,6] = bias<nf,f->nf>(y'2, b)\n" },
  { "... nor if another node reads the product",
    INPUTS "h0: y [8,6] = matmul<nc,fc->nf>(x, w)\nh0: z [8,6] = bias<nf,f->nf>(y, b)\nh0: a [8,6] = add(y, z)\n", false,
    "F h0: y [8,6] = matmul<nc,fc->nf>(x, w)\n"
    "F h0: z [8,6] = bias<nf,f->nf>(y, b)\n"
    "F h0: a [8,6] = add(y, z)\n" },
  { "a norm's gradient is added to the residual's where it is made, in place",
    RESIDUAL NORM "B d.a [8,4] = add(d.r, d.x)\n", false,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "B d.a [8,4] += d.r first, d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n" },
  { "... not if the residual's gradient is read afterwards",
    RESIDUAL NORM "B d.a [8,4] = add(d.r, d.x)\nB d.z [8,4] = gelu_bwd(d.r, x)\n", false,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "B d.x [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n"
    "B d.a [8,4] = add(d.r, d.x)\n"
    "B d.z [8,4] = gelu_bwd(d.r, x)\n" },
  { "... nor between the norm and the sum",
    RESIDUAL NORM "B d.z [8,4] = gelu_bwd(d.r, x)\nB d.a [8,4] = add(d.r, d.x)\n", false,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "B d.x [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n"
    "B d.z [8,4] = gelu_bwd(d.r, x)\n"
    "B d.a [8,4] = add(d.r, d.x)\n" },
  { "... nor if it is made after the norm",
    RESIDUAL NORM "B d.z [8,4] = gelu_bwd(d.r, x)\nB d.a [8,4] = add(d.z, d.x)\n", false,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "B d.x [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n"
    "B d.z [8,4] = gelu_bwd(d.r, x)\n"
    "B d.a [8,4] = add(d.z, d.x)\n" },
  { "... nor if it is state",
    RESIDUAL NORM "B d.a [8,4] = add(x, d.x)\n", false,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "B d.x [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n"
    "B d.a [8,4] = add(x, d.x)\n" },
  { "... nor if the norm's gradient has another reader",
    RESIDUAL NORM "B d.a [8,4] = add(d.r, d.x)\nB d.z [8,4] = gelu_bwd(d.x, x)\n", false,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "B d.x [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n"
    "B d.a [8,4] = add(d.r, d.x)\n"
    "B d.z [8,4] = gelu_bwd(d.x, x)\n" },
  { "gradients of weights that read it before the norm are no obstacle",
    "state k [8,6]\n" RESIDUAL "W d.w [6,4] = matmul<nf,nc->fc>(k, d.r)\n" NORM "B d.a [8,4] = add(d.r, d.x)\n", false,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "W d.w [6,4] = matmul<nf,nc->fc>(k, d.r)\n"
    "B d.a [8,4] += d.r first, d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n" },
  { "... but where they are computed later than the norm: then it must stay",
    "state k [8,6]\n" RESIDUAL "W d.w [6,4] = matmul<nf,nc->fc>(k, d.r)\n" NORM "B d.a [8,4] = add(d.r, d.x)\n", true,
    "B d.r [8,4] = fill()\n"
    "B d.n [8,4] = gelu_bwd(d.r, x)\n"
    "W d.w [6,4] = matmul<nf,nc->fc>(k, d.r)\n"
    "B d.x [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.n, x, g, rstd)\n"
    "B d.a [8,4] = add(d.r, d.x)\n" },
  { "a forward sum is none of them",
    "state x [8,4]\nparam g [4]\nh0: a [8,4] = gelu(x)\nh0: y [8,4], r [8] = rmsnorm(a, g)\nh0: z [8,4] = add(a, y)\n", false,
    "F h0: a [8,4] = gelu(x)\n"
    "F h0: y [8,4], r [8] = rmsnorm(a, g)\n"
    "F h0: z [8,4] = add(a, y)\n" },
};

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_mesh *m = read_mesh("tp2");
    struct tc_err err = { 0 };
    if (tc_graph_check(g, m, "recompute", &err) < 0) ok(false, "before: %s", err.text);
    tc_merge(g, cases[i].w_split);
    if (tc_graph_check(g, m, "merge", &err) < 0) ok(false, "after: %s", err.text);
    is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  return done_testing();
}
