/* t_buckets.c - which reshards become one with many parts, where it runs, and what keeps them apart. */
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define WEIGHTS "state x [8,4]\nparam w [4,4] dp S(0) R P S(0)\nparam v [4,4] dp S(0) R P S(0)\n"

static const struct { const char *name, *program, *want; } cases[] = {
  { "gathers of a unit, once a step: one, before the first use",
    WEIGHTS "F1 h0: w'2 [4,4] = all_gather dp(w) gather\nh0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\n"
    "F1 h0: v'2 [4,4] = all_gather dp(v) gather\nh0: z [8,4] = matmul<nc,fc->nf>(y, v'2)\n",
    "F1 h0: w'2 [4,4], v'2 [4,4] = all_gather dp(w, v) gather\n"
    "F h0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\n"
    "F h0: z [8,4] = matmul<nc,fc->nf>(y, v'2)\n" },
  { "... and of each micro-batch, if they are of weights",
    WEIGHTS "h0: w'2 [4,4] = all_gather dp(w) gather\nh0: v'2 [4,4] = all_gather dp(v) gather\n"
    "h0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\nh0: z [8,4] = matmul<nc,fc->nf>(y, v'2)\n",
    "F h0: w'2 [4,4], v'2 [4,4] = all_gather dp(w, v) gather\n"
    "F h0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\n"
    "F h0: z [8,4] = matmul<nc,fc->nf>(y, v'2)\n" },
  { "... not of activations",
    "state a [8,4] dp:S(0)\nstate b [8,4] dp:S(0)\nh0: a'2 [8,4] = all_gather dp(a)\nh0: b'2 [8,4] = all_gather dp(b)\n"
    "h0: y [8,4] = add(a'2, b'2)\n",
    "F h0: a'2 [8,4] = all_gather dp(a)\n"
    "F h0: b'2 [8,4] = all_gather dp(b)\n"
    "F h0: y [8,4] = add(a'2, b'2)\n" },
  { "... not of two units",
    WEIGHTS "F1 h0: w'2 [4,4] = all_gather dp(w) gather\nF1 h1: v'2 [4,4] = all_gather dp(v) gather\n"
    "h0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\nh1: z [8,4] = matmul<nc,fc->nf>(y, v'2)\n",
    "F1 h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F1 h1: v'2 [4,4] = all_gather dp(v) gather\n"
    "F h0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\n"
    "F h1: z [8,4] = matmul<nc,fc->nf>(y, v'2)\n" },
  { "... not of the forward pass and the backward pass",
    WEIGHTS "h0: w'2 [4,4] = all_gather dp(w) gather\nh0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\n"
    "B h0: v'2 [4,4] = all_gather dp(v) gather\nB h0: d.x [8,4] = matmul<nc,fc->nf>(y, v'2)\n",
    "F h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F h0: y [8,4] = matmul<nc,fc->nf>(x, w'2)\n"
    "B h0: v'2 [4,4] = all_gather dp(v) gather\n"
    "B h0: d.x [8,4] = matmul<nc,fc->nf>(y, v'2)\n" },
  { "... not of two types",
    "param w [4,4] dp S(0) R P S(0)\nparam v bf16[4,4] dp S(0) R P S(0)\nF1 h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F1 h0: use.v'2 bf16[4,4] = all_gather dp(use.v) gather\n",
    "F1 h0: w'2 [4,4] = all_gather dp(w) gather\n"
    "F1 h0: use.v'2 bf16[4,4] = all_gather dp(use.v) gather\n" },
  { "reductions of gradients: where the last input is made; what adds them up waits",
    WEIGHTS "state grad.w [4,4] dp:S(0)\nstate grad.v [4,4] dp:S(0)\nstate y [8,4] dp:S(0)\n"
    "W h0: d.w [4,4] dp:P = matmul<nf,nc->fc>(y, y)\nW h0: d.w'2 [4,4] dp:S(0) = reduce_scatter dp(d.w) grad\n"
    "W h0: d.w'3 [4,4] dp:S(0) += grad.w first = accum(d.w'2)\n"
    "W h0: d.v [4,4] dp:P = matmul<nf,nc->fc>(y, y)\nW h0: d.v'2 [4,4] dp:S(0) = reduce_scatter dp(d.v) grad\n"
    "W h0: d.v'3 [4,4] dp:S(0) += grad.v first = accum(d.v'2)\n",
    "W h0: d.w [4,4] dp:P(sum) = matmul<nf,nc->fc>(y, y)\n"
    "W h0: d.v [4,4] dp:P(sum) = matmul<nf,nc->fc>(y, y)\n"
    "W h0: d.w'2 [4,4] dp:S(0), d.v'2 [4,4] dp:S(0) = reduce_scatter dp(d.w, d.v) grad\n"
    "W h0: d.w'3 [4,4] dp:S(0) += grad.w first = accum(d.w'2)\n"
    "W h0: d.v'3 [4,4] dp:S(0) += grad.v first = accum(d.v'2)\n" },
  { "an output that is needed before the last input exists: apart",
    "state y [8,4] dp:S(0)\n"
    "W h0: a [4,4] dp:P = matmul<nf,nc->fc>(y, y)\nW1 h0: a'2 [4,4] dp:S(0) = reduce_scatter dp(a) grad\n"
    "W h0: z [4,4] dp:S(0) = gelu(a'2)\n"
    "W h0: b [4,4] dp:P = matmul<nf,nc->fc>(y, y)\nW1 h0: b'2 [4,4] dp:S(0) = reduce_scatter dp(b) grad\n",
    "W h0: a [4,4] dp:P(sum) = matmul<nf,nc->fc>(y, y)\n"
    "W1 h0: a'2 [4,4] dp:S(0) = reduce_scatter dp(a) grad\n"
    "W h0: z [4,4] dp:S(0) = gelu(a'2)\n"
    "W h0: b [4,4] dp:P(sum) = matmul<nf,nc->fc>(y, y)\n"
    "W1 h0: b'2 [4,4] dp:S(0) = reduce_scatter dp(b) grad\n" },
  { "a copy from the host comes to the first gather of the unit, so that what follows it can be one with that",
    "state s [4,4] dp:S(0)\nstate t [4,4] dp:S(0) host\nF1 h0: s'2 [4,4] = all_gather dp(s) gather\nh0: y [4,4] = gelu(s'2)\n"
    "F1 h0: t'2 [4,4] dp:S(0) = copy(t) on-host gather\nF1 h0: t'3 [4,4] = all_gather dp(t'2) gather\n"
    "h0: z [4,4] = add(y, t'3)\n",
    "F1 h0: t'2 [4,4] dp:S(0) = copy(t) on-host gather\n"
    "F1 h0: s'2 [4,4], t'3 [4,4] = all_gather dp(s, t'2) gather\n"
    "F h0: y [4,4] = gelu(s'2)\n"
    "F h0: z [4,4] = add(y, t'3)\n" },
  { "copies to the host and from it stay apart",
    "state s [4,4]\nstate t [4,4] host\nF1 h0: s'2 [4,4] host = copy(s) gather\nF1 h0: t'2 [4,4] = copy(t) on-host gather\n"
    "h0: z [4,4] = gelu(t'2)\n",
    "F1 h0: s'2 [4,4] host = copy(s) gather\n"
    "F1 h0: t'2 [4,4] = copy(t) on-host gather\n"
    "F h0: z [4,4] = gelu(t'2)\n" },
  { "sums of squares, whatever their units: one call",
    "state a dp:P\nstate b dp:P\nU1 h0: a'2 in a = all_reduce dp(a) control\nU1 h1: b'2 in b = all_reduce dp(b) control\n"
    "U1 n, s = clip(a'2, b'2)\n",
    "U1 h0: a'2 in a, b'2 in b = all_reduce dp(a, b) control\n"
    "U1 n, s = clip(a'2, b'2)\n" },
  { "one that depends on another can't be one with it, even if what is between them could wait",
    "a [4,4] dp:P = fill()\nF1 h0: a'2 [4,4] in a = all_reduce dp(a) grad\nF1 h0: b [4,4] dp:P = zero dp(a'2) grad\n"
    "F1 h0: b'2 [4,4] in b = all_reduce dp(b) grad\nh0: z [4,4] = gelu(b'2)\n",
    "F a [4,4] dp:P(sum) = fill()\n"
    "F1 h0: a'2 [4,4] in a = all_reduce dp(a) grad\n"
    "F1 h0: b [4,4] dp:P(sum) = zero dp(a'2) grad\n"
    "F1 h0: b'2 [4,4] in b = all_reduce dp(b) grad\n"
    "F h0: z [4,4] = gelu(b'2)\n" },
};

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_mesh *m = read_mesh("mb2 dp2");
    struct tc_err err = { 0 };
    if (tc_graph_check(g, m, "update", &err) < 0) ok(false, "before: %s", err.text);
    tc_buckets(g);
    if (tc_graph_check(g, m, "update", &err) < 0) ok(false, "after: %s", err.text);
    is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  return done_testing();
}
