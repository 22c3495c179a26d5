/* t_recompute.c - which forward nodes are cloned into the backward pass, and where. A layer is a unit with attention. */
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

/* A layer: attention, then an MLP's activation; x is its input, from outside. */
#define FORWARD                                                       \
  "state s [8,2,3,2]\n"                                               \
  "embed: x [8,2,3,2] = gelu(s)\n"                                    \
  "h0: qkv [8,2,3,2] = add(x, x)\n"                                   \
  "h0: y [8,2,2], lse [8,2] = attn(qkv) k=4\n"                        \
  "h0: a [8,2,2] = gelu(y)\n"                                         \
  "h0: r [8,2,2] = add(a, y)\n"
#define BACKWARD                                                      \
  "B h0: d.r [8,2,2] = fill()\n"                                      \
  "B h0: d.y [8,2,2] = gelu_bwd(d.r, y)\n"                            \
  "B h0: d.qkv [8,2,3,2] = attn_bwd(d.y, qkv, y, lse) k=4\n"          \
  "B embed: d.s [8,2,3,2] = gelu_bwd(d.qkv, x)\n"

static const struct { const char *name, *program; enum tc_recompute what; const char *want; } cases[] = {
  { "none: nothing changes", FORWARD BACKWARD, TC_RECOMPUTE_NONE,
    "F embed: x [8,2,3,2] = gelu(s)\n"
    "F h0: qkv [8,2,3,2] = add(x, x)\n"
    "F h0: y [8,2,2], lse [8,2] = attn(qkv)\n"
    "F h0: a [8,2,2] = gelu(y)\n"
    "F h0: r [8,2,2] = add(a, y)\n"
    "B h0: d.r [8,2,2] = fill()\n"
    "B h0: d.y [8,2,2] = gelu_bwd(d.r, y)\n"
    "B h0: d.qkv [8,2,3,2] = attn_bwd(d.y, qkv, y, lse)\n"
    "B embed: d.s [8,2,3,2] = gelu_bwd(d.qkv, x)\n" },
  { "full: what a layer's backward pass reads is made again, inputs first, from the layer's input, which stays",
    FORWARD BACKWARD, TC_RECOMPUTE_FULL,
    "F embed: x [8,2,3,2] = gelu(s)\n"
    "F h0: qkv [8,2,3,2] = add(x, x)\n"
    "F h0: y [8,2,2], lse [8,2] = attn(qkv)\n"
    "F h0: a [8,2,2] = gelu(y)\n"
    "F h0: r [8,2,2] = add(a, y)\n"
    "B h0: d.r [8,2,2] = fill()\n"
    "B h0: qkv'2 [8,2,3,2] = add(x, x)\n"
    "B h0: y'2 [8,2,2], lse'2 [8,2] = attn(qkv'2)\n"
    "B h0: d.y [8,2,2] = gelu_bwd(d.r, y'2)\n"
    "B h0: d.qkv [8,2,3,2] = attn_bwd(d.y, qkv'2, y'2, lse'2)\n"
    "B embed: d.s [8,2,3,2] = gelu_bwd(d.qkv, x)\n" },
  { "selective: attention and activations alone",
    FORWARD BACKWARD, TC_RECOMPUTE_SELECTIVE,
    "F embed: x [8,2,3,2] = gelu(s)\n"
    "F h0: qkv [8,2,3,2] = add(x, x)\n"
    "F h0: y [8,2,2], lse [8,2] = attn(qkv)\n"
    "F h0: a [8,2,2] = gelu(y)\n"
    "F h0: r [8,2,2] = add(a, y)\n"
    "B h0: d.r [8,2,2] = fill()\n"
    "B h0: y'2 [8,2,2], lse'2 [8,2] = attn(qkv)\n"
    "B h0: d.y [8,2,2] = gelu_bwd(d.r, y'2)\n"
    "B h0: d.qkv [8,2,3,2] = attn_bwd(d.y, qkv, y'2, lse'2)\n"
    "B embed: d.s [8,2,3,2] = gelu_bwd(d.qkv, x)\n" },
  { "none: keys and values by themselves, and their gather, are made again all the same",
    "state s [8,2,3,2]\nh0: qkv [8,2,3,2] = gelu(s)\nh0: kv [8,2,2,2] = kv(qkv)\n"
    "h0: y [8,2,2], lse [8,2] = attn<nhed,Nhud->nhd,nh>(qkv, kv) k=4\nB h0: d.y [8,2,2] = fill()\n"
    "B h0: d.qkv [8,2,3,2], d.kv [8,2,2,2] = attn_bwd<nhd,nhed,nhd,nh,Nhud->nhed,Nhud>(d.y, qkv, y, lse, kv) k=4\n",
    TC_RECOMPUTE_NONE,
    "F h0: qkv [8,2,3,2] = gelu(s)\n"
    "F h0: kv [8,2,2,2] = kv(qkv)\n"
    "F h0: y [8,2,2], lse [8,2] = attn<nhed,Nhud->nhd,nh>(qkv, kv)\n"
    "B h0: d.y [8,2,2] = fill()\n"
    "B h0: kv'2 [8,2,2,2] = kv(qkv)\n"
    "B h0: d.qkv [8,2,3,2], d.kv [8,2,2,2] = attn_bwd<nhd,nhed,nhd,nh,Nhud->nhed,Nhud>(d.y, qkv, y, lse, kv'2)\n" },
  { "... of pieces the next one's with the one that is read, but not its gather",
    "state s [8,2,3,2] cp:S(0)\nh0: qkv [8,2,3,2] cp:S(0) = gelu(s)\n"
    "h0: kv [8,1,2,2] cp:S(0) = kv(qkv)\nh0: kv [8,1,2,2] cp:S(0) = kv(qkv)\nh0: kv [8,1,2,2] = all_gather cp(kv)\n"
    "h0: y [8,2,2] cp:S(0), lse [8,2] cp:S(0) = attn<nhed,Nhud->nhd,nh>(qkv, kv'3) k=4\n"
    "h0: kv [8,1,2,2] = all_gather cp(kv'2)\n"
    "h0: y [8,2,2] cp:S(0) in y, lse [8,2] cp:S(0) in lse = attn<nhed,Nhud,nhd,nh->nhd,nh>(qkv, kv'4, y, lse) k=4\n"
    "B h0: d.y [8,2,2] cp:S(0) = fill()\n"
    "B h0: d.qkv [8,2,3,2] cp:S(0), d.kv [8,1,2,2] cp:P(sum) = "
    "attn_bwd<nhd,nhed,nhd,nh,Nhud->nhed,Nhud>(d.y, qkv, y'2, lse'2, kv'4) k=4\n"
    "B h0: d.qkv [8,2,3,2] cp:S(0) in d.qkv, d.kv [8,1,2,2] cp:P(sum) = "
    "attn_bwd<nhd,nhed,nhd,nh,Nhud,nhed->nhed,Nhud>(d.y, qkv, y'2, lse'2, kv'3, d.qkv) k=4\n",
    TC_RECOMPUTE_NONE,
    "F h0: qkv [8,2,3,2] cp:S(0) = gelu(s)\n"
    "F h0: kv [8,1,2,2] cp:S(0) = kv(qkv)\n"
    "F h0: kv'2 [8,1,2,2] cp:S(0) = kv(qkv)\n"
    "F h0: kv'3 [8,1,2,2] = all_gather cp(kv)\n"
    "F h0: y [8,2,2] cp:S(0), lse [8,2] cp:S(0) = attn<nhed,Nhud->nhd,nh>(qkv, kv'3)\n"
    "F h0: kv'4 [8,1,2,2] = all_gather cp(kv'2)\n"
    "F h0: y'2 [8,2,2] cp:S(0) in y, lse'2 [8,2] cp:S(0) in lse = attn<nhed,Nhud,nhd,nh->nhd,nh>(qkv, kv'4, y, lse)\n"
    "B h0: d.y [8,2,2] cp:S(0) = fill()\n"
    "B h0: kv'5 [8,1,2,2] cp:S(0) = kv(qkv)\n"
    "B h0: kv'6 [8,1,2,2] = all_gather cp(kv'5)\n"
    "B h0: kv'7 [8,1,2,2] cp:S(0) = kv(qkv)\n"
    "B h0: d.qkv [8,2,3,2] cp:S(0), d.kv [8,1,2,2] cp:P(sum) = "
    "attn_bwd<nhd,nhed,nhd,nh,Nhud->nhed,Nhud>(d.y, qkv, y'2, lse'2, kv'6)\n"
    "B h0: kv'8 [8,1,2,2] = all_gather cp(kv'7)\n"
    "B h0: d.qkv'2 [8,2,3,2] cp:S(0) in d.qkv, d.kv'2 [8,1,2,2] cp:P(sum) = "
    "attn_bwd<nhd,nhed,nhd,nh,Nhud,nhed->nhed,Nhud>(d.y, qkv, y'2, lse'2, kv'8, d.qkv)\n" },
  { "a unit without attention is no layer",
    "state s [8,4]\nh0: x [8,4] = gelu(s)\nh0: y [8,4] = gelu(x)\nB h0: d.y [8,4] = fill()\nB h0: d.x [8,4] = gelu_bwd(d.y, x)\n",
    TC_RECOMPUTE_FULL,
    "F h0: x [8,4] = gelu(s)\n"
    "F h0: y [8,4] = gelu(x)\n"
    "B h0: d.y [8,4] = fill()\n"
    "B h0: d.x [8,4] = gelu_bwd(d.y, x)\n" },
  { "nested units: attention's and the MLP's are one layer",
    "unit h0\n" "state s [8,2,3,2]\nh0.attn: y [8,2,2], lse [8,2] = attn(s) k=4\nh0.mlp: a [8,2,2] = gelu(y)\n"
    "h0.mlp: b [8,2,2] = gelu(a)\nB h0.mlp: d.b [8,2,2] = fill()\nB h0.mlp: d.a [8,2,2] = gelu_bwd(d.b, a)\n",
    TC_RECOMPUTE_FULL,
    "F h0.attn: y [8,2,2], lse [8,2] = attn(s)\n"
    "F h0.mlp: a [8,2,2] = gelu(y)\n"
    "F h0.mlp: b [8,2,2] = gelu(a)\n"
    "B h0.mlp: d.b [8,2,2] = fill()\n"
    "B h0.attn: y'2 [8,2,2], lse'2 [8,2] = attn(s)\n"
    "B h0.mlp: a'2 [8,2,2] = gelu(y'2)\n"
    "B h0.mlp: d.a [8,2,2] = gelu_bwd(d.b, a'2)\n" },
  { "the loss head is not recomputed",
    "state s [8,2,3,2]\nh0: y [8,2,2], lse [8,2] = attn(s) k=4\nh0: a [8,2,2] = gelu(y) head\n"
    "B h0: d.a [8,2,2] = fill() head\nB h0: d.y [8,2,2] = gelu_bwd(d.a, a)\n",
    TC_RECOMPUTE_FULL,
    "F h0: y [8,2,2], lse [8,2] = attn(s)\n"
    "F h0: a [8,2,2] = gelu(y) head\n"
    "B h0: d.a [8,2,2] = fill() head\n"
    "B h0: d.y [8,2,2] = gelu_bwd(d.a, a)\n" },
  { "a reshard within the layer is made again; what another stage has sent is not",
    "unit h0 at 1\nstate s [8,2,3,2] pp:at(0) tp:S(0)\nh0: t [8,2,3,2] pp:at(1) tp:S(0) = send pp(s)\n"
    "h0: t'2 [8,2,3,2] pp:at(1) = all_gather tp(t)\nh0: y [8,2,2] pp:at(1), lse [8,2] pp:at(1) = attn(t'2) k=4\n"
    "B h0: d.y [8,2,2] pp:at(1) = fill()\nB h0: d.t [8,2,3,2] pp:at(1) = attn_bwd(d.y, t'2, y, lse) k=4\n",
    TC_RECOMPUTE_FULL,
    "F h0: t [8,2,3,2] pp:at(1) tp:S(0) = send pp(s)\n"
    "F h0: t'2 [8,2,3,2] pp:at(1) = all_gather tp(t)\n"
    "F h0: y [8,2,2] pp:at(1), lse [8,2] pp:at(1) = attn(t'2)\n"
    "B h0: d.y [8,2,2] pp:at(1) = fill()\n"
    "B h0: t'3 [8,2,3,2] pp:at(1) = all_gather tp(t)\n"
    "B h0: y'2 [8,2,2] pp:at(1), lse'2 [8,2] pp:at(1) = attn(t'3)\n"
    "B h0: d.t [8,2,3,2] pp:at(1) = attn_bwd(d.y, t'3, y'2, lse'2)\n" },
  { "a weight freed after use is gathered once for clones and backward pass",
    "state s [8,2,3,2]\nparam w [8,2,3,2] tp S(0) R S(0) S(0) use\nh0: w'2 [8,2,3,2] = all_gather tp(w) gather\n"
    "h0: q [8,2,3,2] = add(s, w'2)\nh0: y [8,2,2], lse [8,2] = attn(q) k=4\n"
    "B h0: d.y [8,2,2] = fill()\nB h0: d.q [8,2,3,2] = attn_bwd(d.y, q, y, lse) k=4\n"
    "B h0: w'3 [8,2,3,2] = all_gather tp(w) gather\nB h0: d.s [8,2,3,2] = add(d.q, w'3)\n",
    TC_RECOMPUTE_FULL,
    "F h0: w'2 [8,2,3,2] = all_gather tp(w) gather\n"
    "F h0: q [8,2,3,2] = add(s, w'2)\n"
    "F h0: y [8,2,2], lse [8,2] = attn(q)\n"
    "B h0: d.y [8,2,2] = fill()\n"
    "B h0: w'3 [8,2,3,2] = all_gather tp(w) gather\n"
    "B h0: q'2 [8,2,3,2] = add(s, w'3)\n"
    "B h0: y'2 [8,2,2], lse'2 [8,2] = attn(q'2)\n"
    "B h0: d.q [8,2,3,2] = attn_bwd(d.y, q'2, y'2, lse'2)\n"
    "B h0: d.s [8,2,3,2] = add(d.q, w'3)\n" },
  { "... one kept for the step is not gathered again",
    "state s [8,2,3,2]\nparam w [8,2,3,2] tp S(0) R S(0) S(0) step\nh0: w'2 [8,2,3,2] = all_gather tp(w) gather\n"
    "h0: q [8,2,3,2] = add(s, w'2)\nh0: y [8,2,2], lse [8,2] = attn(q) k=4\n"
    "B h0: d.y [8,2,2] = fill()\nB h0: d.q [8,2,3,2] = attn_bwd(d.y, q, y, lse) k=4\n",
    TC_RECOMPUTE_FULL,
    "F h0: w'2 [8,2,3,2] = all_gather tp(w) gather\n"
    "F h0: q [8,2,3,2] = add(s, w'2)\n"
    "F h0: y [8,2,2], lse [8,2] = attn(q)\n"
    "B h0: d.y [8,2,2] = fill()\n"
    "B h0: q'2 [8,2,3,2] = add(s, w'2)\n"
    "B h0: y'2 [8,2,2], lse'2 [8,2] = attn(q'2)\n"
    "B h0: d.q [8,2,3,2] = attn_bwd(d.y, q'2, y'2, lse'2)\n" },
};

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_mesh *m = read_mesh("pp2 cp2 tp2");
    struct tc_err err = { 0 };
    if (tc_graph_check(g, m, "infer", &err) < 0) ok(false, "before: %s", err.text);
    tc_recompute(g, cases[i].what);
    if (tc_graph_check(g, m, "recompute", &err) < 0) ok(false, "after: %s", err.text);
    is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  return done_testing();
}
