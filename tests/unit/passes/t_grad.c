/* t_grad.c - the backward pass that each op gets, and how the contributions to a parameter's gradient are chained. That the
 * gradients are right is t_gradient's. */
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

/* want: the nodes that are appended, or the sentence. */
static const struct { const char *name, *program, *want; } cases[] = {
  { "a product has two: of its input, which goes on, and of its weight, which is a contribution",
    "state x [8,4]\nparam w [6,4]\nh0: a [8,4] = gelu(x)\nh0: y [8,6] = matmul<nc,fc->nf>(a, w)\nloss += sum<nc->>(y) f=0.5\n",
    "B d.y [8,6] = fill() f=0.5\n"
    "B h0: d.a [8,4] = matmul<nf,fc->nc>(d.y, w) of y\n"
    "W h0: d.w [6,4] += grad.w first = matmul<nf,nc->fc>(d.y, a) of y\n"
    "B h0: d.x [8,4] = gelu_bwd(d.a, x) of a\n" },
  { "a weight that is used twice: the later contribution, of the earlier use, adds to the first",
    "state x [8,4]\nparam w [4,4]\nh0: y [8,4] = matmul<nc,fc->nf>(x, w)\nh1: z [8,4] = matmul<nc,fc->nf>(y, w)\n"
    "loss += sum<nc->>(z)\n",
    "B d.z [8,4] = fill()\n"
    "B h1: d.y [8,4] = matmul<nf,fc->nc>(d.z, w) of z\n"
    "W h1: d.w [4,4] += grad.w first = matmul<nf,nc->fc>(d.z, y) of z\n"
    "B h0: d.x [8,4] = matmul<nf,fc->nc>(d.y, w) of y\n"
    "W h0: d.w'2 [4,4] += d.w = matmul<nf,nc->fc>(d.y, x) of y\n" },
  { "a bias: its input's gradient is the output's",
    "state x [8,4]\nparam b [4]\nh0: a [8,4] = gelu(x)\nh0: y [8,4] = bias<nf,f->nf>(a, b)\nloss += sum<nc->>(y)\n",
    "B d.y [8,4] = fill()\n"
    "W h0: d.b [4] += grad.b first = bias_bwd<nf->f>(d.y) of y\n"
    "B h0: d.x [8,4] = gelu_bwd(d.y, x) of a\n" },
  { "a residual: both branches' gradients are added",
    "state x [8,4]\nh0: a [8,4] = gelu(x)\nh0: b [8,4] = gelu(a)\nh0: r [8,4] = add(a, b)\nloss += sum<nc->>(r)\n",
    "B d.r [8,4] = fill()\n"
    "B h0: d.a [8,4] = gelu_bwd(d.r, a) of b\n"
    "B h0: d.a'2 [8,4] = add(d.r, d.a)\n"
    "B h0: d.x [8,4] = gelu_bwd(d.a'2, x) of a\n" },
  { "norms: one node for all that they have",
    "state x [8,4]\nparam g [4]\nparam b [4]\nparam k [4]\nh0: y [8,4], mean [8], rstd [8] = layernorm(x, g, b) f=1e-05\n"
    "h0: z [8,4], r [8] = rmsnorm(y, k) f=1e-06\nloss += sum<nc->>(z)\n",
    "B d.z [8,4] = fill()\n"
    "B h0: d.y [8,4], d.k [4] += grad.k first = rmsnorm_bwd(d.z, y, k, r) f=1e-06 of z\n"
    "B h0: d.x [8,4], d.g [4] += grad.g first, d.b [4] += grad.b first = layernorm_bwd(d.y, x, g, mean, rstd) f=1e-05 of y\n" },
  { "embedding and positions: the weights' gradients alone, since tokens have none",
    "tokens i32[8] = data<->n>()\nparam e [16,4]\nparam p [4,4]\nh0: x [8,4] = embed(tokens, e)\nh0: y [8,4] = pos(x, p)\n"
    "loss += sum<nc->>(y)\n",
    "B d.y [8,4] = fill()\n"
    "W h0: d.p [4,4] += grad.p first = pos_bwd(d.y) of y\n"
    "W h0: d.e [16,4] += grad.e first = embed_bwd(tokens, d.y) of x\n" },
  { "... positions within documents read where these begin, backward, too",
    "tokens i32[8], starts i32[8] = data()\nparam p [4,4]\nstate x [8,4]\nh0: a [8,4] = gelu(x)\n"
    "h0: y [8,4] = pos<nc,tc,n->nc>(a, p, starts)\nloss += sum<nc->>(y)\n",
    "B d.y [8,4] = fill()\n"
    "W h0: d.p [4,4] += grad.p first = pos_bwd<nc,n->tc>(d.y, starts) of y\n"
    "B h0: d.x [8,4] = gelu_bwd(d.y, x) of a\n" },
  { "dropout has the mask of its site; a cast goes back to the type of its input",
    "state x [8,4]\nh0: a [8,4] = gelu(x)\nh0: y [8,4] = dropout(a) k=3 f=0.25\nh0: z bf16[8,4] = cast(y)\n"
    "loss += sum<nc->>(z)\n",
    "B d.z bf16[8,4] = fill()\n"
    "B h0: d.y [8,4] = cast(d.z) of z\n"
    "B h0: d.a [8,4] = dropout(d.y) k=3 f=0.25 of y\n"
    "B h0: d.x [8,4] = gelu_bwd(d.a, x) of a\n" },
  { "a scale is its own adjoint; functions, shifts and shares of heads are those of the forward pass",
    "state x [8,2,4]\nparam g [4]\nh0: a [8,2,4] = scale(x) f=3\nh0: b [8,4] = swiglu(a) k3=1\nh0: c [8,4] = gelu(b) k3=2\n"
    "h0: y [8,4], r [8] = rmsnorm(c, g) f=1e-06 f2=1\nloss += sum<nc->>(y)\n",
    "B d.y [8,4] = fill()\n"
    "B h0: d.c [8,4], d.g [4] += grad.g first = rmsnorm_bwd(d.y, c, g, r) f=1e-06 f2=1 of y\n"
    "B h0: d.b [8,4] = gelu_bwd(d.c, b) k3=2 of c\n"
    "B h0: d.a [8,2,4] = swiglu_bwd(d.b, a) k3=1 of b\n"
    "B h0: d.x [8,2,4] = scale(d.a) f=3 of a\n" },
  { "... so is which elements of a head turn",
    "state x [8,2,3,4]\nh0: a [8,2,3,4] = gelu(x)\nh0: y [8,2,3,4] = rope(a) k=4 f=1.5 k3=2\nloss += sum<nked->>(y)\n",
    "B d.y [8,2,3,4] = fill()\n"
    "B h0: d.a [8,2,3,4] = rope_bwd(d.y) k=4 f=1.5 k3=2 of y\n"
    "B h0: d.x [8,2,3,4] = gelu_bwd(d.a, x) of a\n" },
  { "norms of all queries and of all keys: what the sums have in the gradient is added in place to what there is",
    "state x [8,2,3,4]\nparam q [2,1,4]\nparam k [2,4]\nh0: a [8,2,3,4] = gelu(x)\nh0: s [8,2] = qk_squares(a)\n"
    "h0: y [8,2,3,4] = qk_scale(a, s, q, k) f=1e-06 f2=1\nloss += sum<nked->>(y)\n",
    "B d.y [8,2,3,4] = fill()\n"
    "B h0: d.a [8,2,3,4], d.s [8,2], d.q [2,1,4] += grad.q first, d.k [2,4] += grad.k first = "
    "qk_scale_bwd(d.y, a, s, q, k) f=1e-06 f2=1 of y\n"
    "B h0: d.a'2 [8,2,3,4] in d.a = qk_squares_bwd(d.a, a, d.s) of s\n"
    "B h0: d.x [8,2,3,4] = gelu_bwd(d.a'2, x) of a\n" },
  { "a cap: in place of its output's gradient, of which the output is all that it needs",
    "state x [8,4]\nh0: a [8,4] = gelu(x)\nh0: y [8,4] in a = softcap(a) f2=30\nh0: z [8,4] = gelu(y)\nloss += sum<nc->>(z)\n",
    "B d.z [8,4] = fill()\n"
    "B h0: d.y [8,4] = gelu_bwd(d.z, y) of z\n"
    "B h0: d.a [8,4] in d.y = softcap_bwd(d.y, y) f2=30 of y\n"
    "B h0: d.x [8,4] = gelu_bwd(d.a, x) of a\n" },
  { "... but not where that is another tensor's gradient, too",
    "state x [8,4]\nh0: a [8,4] = gelu(x)\nh0: y [8,4] = softcap(a) f2=30\nh0: z [8,4] = add(y, a)\nloss += sum<nc->>(z)\n",
    "B d.z [8,4] = fill()\n"
    "B h0: d.a [8,4] = softcap_bwd(d.z, y) f2=30 of y\n"
    "B h0: d.a'2 [8,4] = add(d.z, d.a) f2=30\n"
    "B h0: d.x [8,4] = gelu_bwd(d.a'2, x) of a\n" },
  { "attention reads its inputs, outputs and row sums",
    "state x [8,2,3,4]\nh0: qkv [8,2,3,4] = gelu(x)\nh0: y [8,2,4], lse [8,2] = attn(qkv) k=4\nloss += sum<nhd->>(y)\n",
    "B d.y [8,2,4] = fill()\n"
    "B h0: d.qkv [8,2,3,4] = attn_bwd(d.y, qkv, y, lse) k=4 of y\n"
    "B h0: d.x [8,2,3,4] = gelu_bwd(d.qkv, x) of qkv\n" },
  { "... with grouped heads and documents by a rule of its own",
    "tokens i32[8], starts i32[8] = data()\nstate x [8,1,4,4]\nh0: qkv [8,1,4,4] = gelu(x)\n"
    "h0: y [8,1,2,4], lse [8,1,2] = attn<nhed,n->nhgd,nhg>(qkv, starts) k=4\nloss += sum<nhgd->>(y)\n",
    "B d.y [8,1,2,4] = fill()\n"
    "B h0: d.qkv [8,1,4,4] = attn_bwd<nhgd,nhed,nhgd,nhg,n->nhed>(d.y, qkv, y, lse, starts) k=4 of y\n"
    "B h0: d.x [8,1,4,4] = gelu_bwd(d.qkv, x) of qkv\n" },
  { "... with keys and values by themselves: their gradients are copied to what has none yet",
    "state x [8,2,3,4]\nh0: qkv [8,2,3,4] = gelu(x)\nh0: kv [8,2,2,4] = kv(qkv)\n"
    "h0: y [8,2,4], lse [8,2] = attn<nhed,Nhud->nhd,nh>(qkv, kv) k=4\nloss += sum<nhd->>(y)\n",
    "B d.y [8,2,4] = fill()\n"
    "B h0: d.qkv [8,2,3,4], d.kv [8,2,2,4] = attn_bwd<nhd,nhed,nhd,nh,Nhud->nhed,Nhud>(d.y, qkv, y, lse, kv) k=4 of y\n"
    "B h0: d.qkv'2 [8,2,3,4] in d.qkv = kv_bwd(d.qkv, d.kv) of kv\n"
    "B h0: d.x [8,2,3,4] = gelu_bwd(d.qkv'2, x) of qkv\n" },
  { "... in pieces: each reads the last outputs, and goes on with the gradient of the pieces before it in the backward pass",
    "state x [8,2,3,4]\nh0: qkv [8,2,3,4] = gelu(x)\nh0: kv0 [8,1,2,4] = kv(qkv)\nh0: kv1 [8,1,2,4] = kv(qkv)\n"
    "h0: y0 [8,2,4], lse0 [8,2] = attn<nhed,Nhud->nhd,nh>(qkv, kv0) k=4\n"
    "h0: y1 [8,2,4] in y0, lse1 [8,2] in lse0 = attn<nhed,Nhud,nhd,nh->nhd,nh>(qkv, kv1, y0, lse0) k=4\n"
    "loss += sum<nhd->>(y1)\n",
    "B d.y1 [8,2,4] = fill()\n"
    "B h0: d.qkv [8,2,3,4], d.kv1 [8,1,2,4] = attn_bwd<nhd,nhed,nhd,nh,Nhud->nhed,Nhud>(d.y1, qkv, y1, lse1, kv1) k=4 of y1\n"
    "B h0: d.qkv'2 [8,2,3,4] in d.qkv, d.kv0 [8,1,2,4] = "
    "attn_bwd<nhd,nhed,nhd,nh,Nhud,nhed->nhed,Nhud>(d.y1, qkv, y1, lse1, kv0, d.qkv) k=4 of y0\n"
    "B h0: d.qkv'3 [8,2,3,4] in d.qkv'2 = kv_bwd(d.qkv'2, d.kv1) of kv1\n"
    "B h0: d.qkv'4 [8,2,3,4] in d.qkv'3 = kv_bwd(d.qkv'3, d.kv0) of kv0\n"
    "B h0: d.x [8,2,3,4] = gelu_bwd(d.qkv'4, x) of qkv\n" },
  { "the loss head: what pick adds at the targets is added in place to what sumexp has made",
    "tokens i32[8], targets i32[8] = data()\nstate x [8,4]\nparam w [16,4]\nlogits [8,16] = matmul<nc,vc->nv>(x, w) head\n"
    "max [8] = rowmax(logits) head k=15\npick [8] = pick(logits, targets) head\nsumexp [8] = sumexp(logits, max) head k=15\n"
    "nll [8] = nll(max, sumexp, pick, targets) head\nloss += sum(nll) head f=0.125\n",
    "B d.nll [8] = fill() head f=0.125\n"
    "B d.sumexp [8], d.pick [8] = nll_bwd(d.nll, sumexp, targets) head of nll\n"
    "B d.logits [8,16] = sumexp_bwd(logits, max, d.sumexp) head k=15 of sumexp\n"
    "B d.logits'2 [8,16] in d.logits = pick_bwd(d.logits, targets, d.pick) head of pick\n"
    "B d.x [8,4] = matmul<nv,vc->nc>(d.logits'2, w) head of logits\n"
    "W d.w [16,4] += grad.w first = matmul<nv,nc->vc>(d.logits'2, x) head of logits\n" },
  { "... with capped logits and the square of the sum's logarithm, whose gradient needs the maximum",
    "tokens i32[8], targets i32[8] = data()\nstate x [8,4]\nparam w [16,4]\nlogits [8,16] = matmul<nc,vc->nv>(x, w) head\n"
    "cap [8,16] in logits = softcap(logits) head f2=30\n"
    "max [8] = rowmax(cap) head k=15\npick [8] = pick(cap, targets) head\nsumexp [8] = sumexp(cap, max) head k=15\n"
    "nll [8] = nll(max, sumexp, pick, targets) head f=0.5\nloss += sum(nll) head f=0.125\n",
    "B d.nll [8] = fill() head f=0.125\n"
    "B d.sumexp [8], d.pick [8] = nll_bwd<n,n,n,n->n,n>(d.nll, sumexp, targets, max) head f=0.5 of nll\n"
    "B d.cap [8,16] = sumexp_bwd(cap, max, d.sumexp) head k=15 of sumexp\n"
    "B d.cap'2 [8,16] in d.cap = pick_bwd(d.cap, targets, d.pick) head of pick\n"
    "B d.logits [8,16] in d.cap'2 = softcap_bwd(d.cap'2, cap) head f2=30 of cap\n"
    "B d.x [8,4] = matmul<nv,vc->nc>(d.logits, w) head of logits\n"
    "W d.w [16,4] += grad.w first = matmul<nv,nc->vc>(d.logits, x) head of logits\n" },
  { "a weight of another stage's unit has an accumulator there; its owner adds that sum at the end",
    "unit h0 at 0\nunit h1 stage 1 at 1\nstate x [8,4]\nh0: param w [4,4] pp at(0)\nh0: y [8,4] = matmul<nc,fc->nf>(x, w)\n"
    "h1: z [8,4] = matmul<nc,fc->nf>(y, w)\nh1: loss += sum<nc->>(z)\n",
    "B h1: d.z [8,4] = fill()\n"
    "B h1: d.y [8,4] = matmul<nf,fc->nc>(d.z, w) of z\n"
    "W h1: d.w [4,4] += tied.w first = matmul<nf,nc->fc>(d.z, y) of z\n"
    "B h0: d.x [8,4] = matmul<nf,fc->nc>(d.y, w) of y\n"
    "W h0: d.w'2 [4,4] += grad.w first = matmul<nf,nc->fc>(d.y, x) of y\n"
    "B h0: d.w'3 [4,4] += d.w'2 = accum(d.w)\n" },
  { "what the loss does not depend on has no gradient",
    "state x [8,4]\nparam w [4,4]\nh0: y [8,4] = matmul<nc,fc->nf>(x, w)\nh0: z [8,4] = gelu(x)\nh0: a [8,4] = gelu(z)\n"
    "h0: u [8,4] = gelu(y)\nloss += sum<nc->>(y)\n",
    "B d.y [8,4] = fill()\n"
    "B h0: d.x [8,4] = matmul<nf,fc->nc>(d.y, w) of y\n"
    "W h0: d.w [4,4] += grad.w first = matmul<nf,nc->fc>(d.y, x) of y\n" },
  { "a frozen weight has no contribution, and what leads to frozen ones alone no gradient",
    "tokens i32[8] = data<->n>()\nparam e [16,4] frozen\nparam v [4,4] frozen\nparam w [4,4]\nh0: x [8,4] = embed(tokens, e)\n"
    "h0: a [8,4] = matmul<nc,fc->nf>(x, v)\nh1: y [8,4] = matmul<nc,fc->nf>(a, w)\nh2: z [8,4] = matmul<nc,fc->nf>(y, v)\n"
    "h2: r [8,4] = add(z, a)\nloss += sum<nc->>(r)\n",
    "B d.r [8,4] = fill()\n"
    "B h2: d.y [8,4] = matmul<nf,fc->nc>(d.r, v) of z\n"
    "W h1: d.w [4,4] += grad.w first = matmul<nf,nc->fc>(d.y, a) of y\n" },
  { "frozen biases, positions and caps on the way to what trains",
    "tokens i32[8] = data<->n>()\nparam e [16,4]\nparam p [4,4] frozen\nparam b [4] frozen\nh0: x [8,4] = embed(tokens, e)\n"
    "h0: y [8,4] = pos(x, p)\nh0: z [8,4] = bias<nf,f->nf>(y, b)\nh0: u [8,4] = softcap(z) f2=2\nloss += sum<nc->>(u)\n",
    "B d.u [8,4] = fill()\n"
    "B h0: d.z [8,4] in d.u = softcap_bwd(d.u, u) f2=2 of u\n"
    "W h0: d.e [16,4] += grad.e first = embed_bwd(tokens, d.z) of x\n" },
  { "norms: the gradient of a frozen gain comes with the others', and nothing adds it up; nor that of an input that needs none",
    "tokens i32[8] = data<->n>()\nparam e [16,4] frozen\nparam g [4]\nparam b [4] frozen\nparam k [4] frozen\n"
    "h0: x [8,4] = embed(tokens, e)\nh0: y [8,4], mean [8], rstd [8] = layernorm(x, g, b) f=1e-05\n"
    "h0: z [8,4], r [8] = rmsnorm(y, k) f=1e-06\nloss += sum<nc->>(z)\n",
    "B d.z [8,4] = fill()\n"
    "B h0: d.y [8,4], d.k [4] = rmsnorm_bwd(d.z, y, k, r) f=1e-06 of z\n"
    "B h0: d.x [8,4], d.g [4] += grad.g first, d.b [4] = layernorm_bwd(d.y, x, g, mean, rstd) f=1e-05 of y\n" },
  { "an op without a gradient is refused", "state x [8,4]\nh0: m [8] = rowmax(x)\nloss += sum(m)\n",
    "op rowmax has no gradient" },
};

/* Accumulators have the placement acc, the given type and the padding of their weights. */
static void test_accumulators(void)
{
  struct tc_graph *g = read_program("state x [8,4]\nparam e bf16[13/16,4] dp S(*) R P S(*), tp S(0)\n"
                                    "h0: y bf16[8,16] = matmul<nc,vc->nv>(x, use.e)\nloss += sum<nc->>(y)\n");
  struct tc_err err = { 0 };
  TC_ASSERT(tc_grad(g, TC_BF16, &err) == 0);
  is_program(g, TEXT_STATES, "state x [8,4]\n"
    "state use.e bf16[13/16,4] dp:S(*) tp:S(0)\n"
    "state grad.e bf16[13/16,4] dp:P(sum) tp:S(0)\n", "accumulators");
  is_int(g->n_contributions, 1, "... and one contribution for the one use");
  tc_graph_free(g);
}

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_mesh *m = read_mesh("");
    struct tc_err err = { 0 };
    const int32_t n = g->n_order;
    if (tc_grad(g, TC_F32, &err) < 0) {
      is_str(err.text, cases[i].want, "%s", cases[i].name);
    } else {
      if (tc_graph_check(g, m, "grad", &err) < 0) ok(false, "after: %s", err.text);
      memmove(g->order, g->order + n, (size_t)(g->n_order - n) * sizeof *g->order);
      g->n_order -= n;
      is_program(g, TEXT_NODES | TEXT_ATTRS, cases[i].want, cases[i].name);
    }
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  test_accumulators();
  return done_testing();
}
