/* t_actions.c - the list of a rank's actions: a small program with placements and stages, and a schedule; the list, a
 * line for each stretch of one micro-batch. In it "y" runs the node that makes y, ">y" issues a transfer and "<y" waits
 * for it. Each list also passes tc_actions_check. Of some the first two walks are shown, too. */
#include "src/schedule/impl.h"
#include "tests/unit/program_text.h"

#define WEIGHTS "param w [4,4] dp S(*) R S(*) S(*) use\nparam v [4,4] dp S(*) R S(*) S(*) use\n" \
  "param u [4,4] dp S(*) R S(*) S(*) use\n"
#define X "state x [8,4] mb:S(0) dp:S(0)\n"

/* Three layers, whose weights are gathered for each use. */
#define GATHERED X WEIGHTS \
  "F h0: w'2 [4,4] = all_gather dp(w) gather\n" \
  "F h0: a [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n" \
  "F h1: v'2 [4,4] = all_gather dp(v) gather\n" \
  "F h1: b [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(a, v'2)\n" \
  "F h2: u'2 [4,4] = all_gather dp(u) gather\n" \
  "F h2: c [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(b, u'2)\n"

/* Two layers with a gradient each that is reduced in each micro-batch, then added to the accumulator. */
#define REDUCED X WEIGHTS "state grad.w [4,4] dp:S(*)\nstate grad.v [4,4] dp:S(*)\nstate scale\n" \
  "F h0: a [8,4] mb:S(0) dp:S(0) = gelu(x)\n" \
  "B h1: d.b [8,4] mb:S(0) dp:S(0) = fill()\n" \
  "W h1: d.v [4,4] mb:P(sum) dp:P(sum) = matmul<nf,nc->fc>(d.b, a)\n" \
  "W h1: d.v'2 [4,4] mb:P(sum) dp:S(*) = reduce_scatter dp(d.v) grad\n" \
  "W h1: d.v'3 [4,4] dp:S(*) += grad.v first = accum(d.v'2)\n" \
  "B h0: d.a [8,4] mb:S(0) dp:S(0) = gelu_bwd(d.b, x)\n" \
  "W h0: d.w [4,4] mb:P(sum) dp:P(sum) = matmul<nf,nc->fc>(d.a, x)\n" \
  "W h0: d.w'2 [4,4] mb:P(sum) dp:S(*) = reduce_scatter dp(d.w) grad\n" \
  "W h0: d.w'3 [4,4] dp:S(*) += grad.w first = accum(d.w'2)\n" \
  "U1 v'2 [4,4] dp:S(*) in v = sgd(d.v'3, scale, v)\n" \
  "U1 w'2 [4,4] dp:S(*) in w = sgd(d.w'3, scale, w)\n"

/* Two stages, a layer with a weight each. */
#define STAGES "unit h0 stage 0 at 0\nunit h1 stage 1 at 1\n"
#define PIPED STAGES "state x [8,4] mb:S(0) pp:at(0)\nparam w [4,4] pp at(0)\nstate grad.w [4,4] pp:at(0)\n" \
  "param v [4,4] pp at(1)\nstate grad.v [4,4] pp:at(1)\nstate scale\n" \
  "F h0: y [8,4] mb:S(0) pp:at(0) = matmul<nc,fc->nf>(x, w)\n" \
  "F h1: y'2 [8,4] mb:S(0) pp:at(1) = send pp(y)\n" \
  "F h1: z [8,4] mb:S(0) pp:at(1) = matmul<nc,fc->nf>(y'2, v)\n" \
  "B h1: d.z [8,4] mb:S(0) pp:at(1) = fill()\n" \
  "B h1: d.y [8,4] mb:S(0) pp:at(1) = matmul<nf,fc->nc>(d.z, v)\n" \
  "W h1: d.v [4,4] pp:at(1) += grad.v first = matmul<nf,nc->fc>(d.z, y'2)\n" \
  "B h0: d.y'2 [8,4] mb:S(0) pp:at(0) = send pp(d.y)\n" \
  "B h0: d.x [8,4] mb:S(0) pp:at(0) = matmul<nf,fc->nc>(d.y'2, w)\n" \
  "W h0: d.w [4,4] pp:at(0) += grad.w first = matmul<nf,nc->fc>(d.y'2, x)\n" \
  "U1 h0: w'2 [4,4] pp:at(0) in w = sgd(d.w, scale, w)\n" \
  "U1 h1: v'2 [4,4] pp:at(1) in v = sgd(d.v, scale, v)\n"

/* Four stages on two ranks. */
#define FOUR "unit h0 stage 0 at 0\nunit h1 stage 1 at 1\nunit h2 stage 2 at 0\nunit h3 stage 3 at 1\n" \
  "state x [8,4] mb:S(0) pp:at(0)\n" \
  "F h0: a [8,4] mb:S(0) pp:at(0) = gelu(x)\n" \
  "F h1: a'2 [8,4] mb:S(0) pp:at(1) = send pp(a)\n" \
  "F h1: b [8,4] mb:S(0) pp:at(1) = gelu(a'2)\n" \
  "F h2: b'2 [8,4] mb:S(0) pp:at(0) = send pp(b)\n" \
  "F h2: c [8,4] mb:S(0) pp:at(0) = gelu(b'2)\n" \
  "F h3: c'2 [8,4] mb:S(0) pp:at(1) = send pp(c)\n" \
  "F h3: e [8,4] mb:S(0) pp:at(1) = gelu(c'2)\n" \
  "B h3: d.e [8,4] mb:S(0) pp:at(1) = fill()\n" \
  "B h3: d.c [8,4] mb:S(0) pp:at(1) = gelu_bwd(d.e, c'2)\n" \
  "B h2: d.c'2 [8,4] mb:S(0) pp:at(0) = send pp(d.c)\n" \
  "B h2: d.b [8,4] mb:S(0) pp:at(0) = gelu_bwd(d.c'2, b'2)\n" \
  "B h1: d.b'2 [8,4] mb:S(0) pp:at(1) = send pp(d.b)\n" \
  "B h1: d.a [8,4] mb:S(0) pp:at(1) = gelu_bwd(d.b'2, a'2)\n" \
  "B h0: d.a'2 [8,4] mb:S(0) pp:at(0) = send pp(d.a)\n" \
  "B h0: d.x [8,4] mb:S(0) pp:at(0) = gelu_bwd(d.a'2, x)\n"

/* One gather a step, and one reduction of what all micro-batches have added. */
#define ONCE X "param w [4,4] dp S(*) R P S(*)\nstate grad.w [4,4] dp:P(sum)\nstate scale\n" \
  "F1 h0: w'2 [4,4] = all_gather dp(w) gather\n" \
  "F h0: a [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'2)\n" \
  "B h0: d.a [8,4] mb:S(0) dp:S(0) = fill()\n" \
  "W h0: d.w [4,4] dp:P(sum) += grad.w first = matmul<nf,nc->fc>(d.a, x)\n" \
  "W1 h0: d.w'2 [4,4] dp:S(*) = reduce_scatter dp(d.w) grad\n" \
  "U1 w'3 [4,4] dp:S(*) in w = sgd(d.w'2, scale, w)\n"

/* Gradients are reduced once a step on dp, then on tp. */
#define REDUCED_TWICE X "param w [4,4] dp S(*) R P S(*)\nparam v [4,4] dp S(*) R P S(*)\n" \
  "state grad.w [4,4] dp:P(sum) tp:P(sum)\nstate grad.v [4,4] dp:P(sum) tp:P(sum)\nstate scale\n" \
  "F h0: a [8,4] mb:S(0) dp:S(0) = gelu(x)\n" \
  "B h1: d.b [8,4] mb:S(0) dp:S(0) = fill()\n" \
  "W h1: d.v [4,4] dp:P(sum) tp:P(sum) += grad.v first = matmul<nf,nc->fc>(d.b, a)\n" \
  "W1 h1: d.v'2 [4,4] dp:S(*) tp:P(sum) = reduce_scatter dp(d.v) grad\n" \
  "W1 h1: d.v'3 [4,4] dp:S(*) = all_reduce tp(d.v'2) grad\n" \
  "B h0: d.a [8,4] mb:S(0) dp:S(0) = gelu_bwd(d.b, x)\n" \
  "W h0: d.w [4,4] dp:P(sum) tp:P(sum) += grad.w first = matmul<nf,nc->fc>(d.a, x)\n" \
  "W1 h0: d.w'2 [4,4] dp:S(*) tp:P(sum) = reduce_scatter dp(d.w) grad\n" \
  "W1 h0: d.w'3 [4,4] dp:S(*) = all_reduce tp(d.w'2) grad\n" \
  "U1 v'2 [4,4] dp:S(*) in v = sgd(d.v'3, scale, v)\n" \
  "U1 w'2 [4,4] dp:S(*) in w = sgd(d.w'3, scale, w)\n"

/* Weights are in host memory, where they are also updated. */
#define OFFLOADED X "param w [4,4] host dp S(*) R S(*) S(*) use\nparam v [4,4] host dp S(*) R S(*) S(*) use\n" \
  "state grad.w [4,4] dp:S(*)\nstate scale\n" \
  "F h0: w'2 [4,4] dp:S(*) = copy(w) gather\n" \
  "F h0: w'3 [4,4] = all_gather dp(w'2) gather\n" \
  "F h0: a [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(x, w'3)\n" \
  "F h1: v'2 [4,4] dp:S(*) = copy(v) gather\n" \
  "F h1: v'3 [4,4] = all_gather dp(v'2) gather\n" \
  "F h1: b [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(a, v'3)\n" \
  "B h1: d.b [8,4] mb:S(0) dp:S(0) = fill()\n" \
  "W h0: d.w [4,4] dp:S(*) += grad.w first = matmul<nf,nc->fc>(d.b, x)\n" \
  "U1 d.w'2 [4,4] dp:S(*) host = copy(d.w) grad\n" \
  "U1 w'4 [4,4] dp:S(*) host in w = sgd(d.w'2, scale, w) on-host\n"

/* A slice of a weight is local; it is made with the gather that reads it. */
#define SLICED X "param w [4,4] tp S(0) R R R use\nparam v [4,4] tp S(0) R R R use\n" \
  "F h0: w'2 [4,4] dp:S(1) tp:S(0) = slice dp(w) gather\n" \
  "F h0: w'3 [4,4] dp:S(1) = all_gather tp(w'2) gather\n" \
  "F h0: a [8,4] mb:S(0) dp:S(0) = gelu(x)\n" \
  "F h0: a'2 [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(a, w'3)\n" \
  "F h1: v'2 [4,4] dp:S(1) tp:S(0) = slice dp(v) gather\n" \
  "F h1: v'3 [4,4] dp:S(1) = all_gather tp(v'2) gather\n" \
  "F h1: b [8,4] mb:S(0) dp:S(0) = matmul<nc,fc->nf>(a'2, v'3)\n"

/* A weight of the first stage that the second uses, too. */
#define TIED STAGES "state x [8,4] mb:S(0) pp:at(0)\nparam w [4,4] pp at(0)\nstate grad.w [4,4] pp:at(0)\n" \
  "state tied [4,4] pp:at(1)\nstate scale\n" \
  "F1 h1: w'2 [4,4] pp:at(1) = send pp(w)\n" \
  "F h0: y [8,4] mb:S(0) pp:at(0) = matmul<nc,fc->nf>(x, w)\n" \
  "F h1: y'2 [8,4] mb:S(0) pp:at(1) = send pp(y)\n" \
  "F h1: z [8,4] mb:S(0) pp:at(1) = matmul<nc,fc->nf>(y'2, w'2)\n" \
  "B h1: d.z [8,4] mb:S(0) pp:at(1) = fill()\n" \
  "W h1: g [4,4] pp:at(1) += tied first = matmul<nf,nc->fc>(d.z, y'2)\n" \
  "B h1: d.y [8,4] mb:S(0) pp:at(1) = matmul<nf,fc->nc>(d.z, w'2)\n" \
  "B h0: d.y'2 [8,4] mb:S(0) pp:at(0) = send pp(d.y)\n" \
  "W h0: d.w [4,4] pp:at(0) += grad.w first = matmul<nf,nc->fc>(d.y'2, x)\n" \
  "W1 h0: g'2 [4,4] pp:at(0) = send pp(g)\n" \
  "W1 h0: d.w'2 [4,4] pp:at(0) += d.w = accum(g'2)\n" \
  "U1 h0: w'3 [4,4] pp:at(0) in w = sgd(d.w'2, scale, w)\n"

/* Gathers of a weight within a stage, and transfers between stages. */
#define PIPED_GATHERED STAGES "state x [8,4] mb:S(0) pp:at(0)\nparam w [4,4] pp at(0), dp S(*) R S(*) S(*) use\n" \
  "F h0: w'2 [4,4] pp:at(0) = all_gather dp(w) gather\n" \
  "F h0: y [8,4] mb:S(0) pp:at(0) = matmul<nc,fc->nf>(x, w'2)\n" \
  "F h1: y'2 [8,4] mb:S(0) pp:at(1) = send pp(y)\n" \
  "F h1: z [8,4] mb:S(0) pp:at(1) = gelu(y'2)\n" \
  "B h1: d.z [8,4] mb:S(0) pp:at(1) = fill()\n" \
  "B h1: d.y [8,4] mb:S(0) pp:at(1) = gelu_bwd(d.z, y'2)\n" \
  "B h0: d.y'2 [8,4] mb:S(0) pp:at(0) = send pp(d.y)\n" \
  "B h0: w'3 [4,4] pp:at(0) = all_gather dp(w) gather\n" \
  "B h0: d.x [8,4] mb:S(0) pp:at(0) = matmul<nf,fc->nc>(d.y'2, w'3)\n"

#define EVAL_ONE X "F h0: a [8,4] mb:S(0) dp:S(0) = gelu(x)\n" \
  "F h0: loss dp:P(sum) += sum(a)\nF1 loss'2 in loss = all_reduce dp(loss) control\n"
#define EVAL STAGES "state x [8,4] mb:S(0) pp:at(0)\n" \
  "F h0: y [8,4] mb:S(0) pp:at(0) = gelu(x)\n" \
  "F h1: y'2 [8,4] mb:S(0) pp:at(1) = send pp(y)\n" \
  "F h1: z [8,4] mb:S(0) pp:at(1) = gelu(y'2)\n" \
  "F h1: loss pp:at(1) += sum(z)\n" \
  "F1 loss'2 pp:at(1) = all_reduce dp(loss) control all-stages\n"

#define SKIPPED "unit h0 stage 0 at 0\nunit h2 stage 2 at 0\n" \
  "state x [8,4] mb:S(0) pp:at(0)\n" \
  "F h0: y [8,4] mb:S(0) pp:at(0) = gelu(x)\n" \
  "F h2: y'2 [8,4] mb:S(0) pp:at(1) = send pp(y)\n"

/* Two activations that are gathered for their readers, and in the backward pass one of the forward pass. */
#define ACTIVATIONS X \
  "F h0: a [8,4] mb:S(0) dp:S(0) = gelu(x)\n" \
  "F h0: b [8,4] mb:S(0) dp:S(0) = gelu(x)\n" \
  "F h0: a'2 [8,4] mb:S(0) = all_gather dp(a)\n" \
  "F h0: c [8,4] mb:S(0) = gelu(a'2)\n" \
  "F h0: b'2 [8,4] mb:S(0) = all_gather dp(b)\n" \
  "F h0: e [8,4] mb:S(0) = gelu(b'2)\n" \
  "B h0: d.e [8,4] mb:S(0) = fill()\n" \
  "B h0: b'3 [8,4] mb:S(0) = all_gather dp(b)\n" \
  "B h0: d.b [8,4] mb:S(0) = gelu_bwd(d.e, b'3)\n"

#define MB(n, ahead, overlaps) { .n_mb = n, .prefetch = ahead, .overlap = overlaps }
#define PP(kind, rank, n, ahead, overlaps) { .n_mb = n, .prefetch = ahead, .overlap = overlaps, .pp = 2, .at = rank, \
    .virtual_stages = TC_SCHEDULE_##kind == TC_SCHEDULE_INTERLEAVED ? 2 : 1, .schedule = TC_SCHEDULE_##kind }

static const struct { const char *name, *program; struct tc_actions_opts o; const char *want; } cases[] = {
  { "two micro-batches: each forward and backward, then the update", REDUCED, MB(2, 1, false),
    "0: a d.b d.v >d.v'2 <d.v'2 d.v'3 d.a d.w >d.w'2 <d.w'2 d.w'3\n"
    "1: a d.b d.v >d.v'2 <d.v'2 d.v'3 d.a d.w >d.w'2 <d.w'2 d.w'3 v'2 w'2\n" },
  { "... with transfers that overlap, one gradient at a time; the sum runs when it is there", REDUCED, MB(2, 0, true),
    "0: a d.b d.v >d.v'2 d.a d.w <d.v'2 d.v'3 >d.w'2\n"
    "1: a d.b d.v\n"
    "0: <d.w'2 d.w'3\n"
    "1: >d.v'2 d.a d.w <d.v'2 d.v'3 >d.w'2 v'2 <d.w'2 d.w'3 w'2\n" },
  { "... two at a time", REDUCED, MB(2, 2, true),
    "0: a d.b d.v >d.v'2 d.a d.w >d.w'2\n"
    "1: a d.b\n"
    "0: <d.v'2 d.v'3\n"
    "1: d.v >d.v'2 d.a\n"
    "0: <d.w'2 d.w'3\n"
    "1: d.w >d.w'2 <d.v'2 d.v'3 v'2 <d.w'2 d.w'3 w'2\n" },
  { "gradients that are reduced twice: nothing waits for the first before the second is needed", REDUCED_TWICE, MB(2, 1, true),
    "0: a d.b d.v d.a d.w\n"
    "1: a d.b d.v >d.v'2 d.a d.w <d.v'2 >d.v'3 >d.w'2 <d.v'3 v'2 <d.w'2 >d.w'3 <d.w'3 w'2\n" },
  { "... and without overlap", REDUCED_TWICE, MB(1, 1, false),
    "0: a d.b d.v >d.v'2 <d.v'2 >d.v'3 <d.v'3 d.a d.w >d.w'2 <d.w'2 >d.w'3 <d.w'3 v'2 w'2\n" },
  { "weights are gathered where they are used", GATHERED, MB(2, 0, true),
    "0: >w'2 <w'2 a >v'2 <v'2 b >u'2 <u'2 c\n"
    "1: >w'2 <w'2 a >v'2 <v'2 b >u'2 <u'2 c\n" },
  { "... a unit ahead, also into the next micro-batch", GATHERED, MB(3, 1, true),
    "0: >w'2 >v'2 <w'2 a >u'2 <v'2 b\n"
    "1: >w'2\n"
    "0: <u'2 c\n"
    "1: >v'2 <w'2 a >u'2 <v'2 b\n"
    "2: >w'2\n"
    "1: <u'2 c\n"
    "2: >v'2 <w'2 a >u'2 <v'2 b <u'2 c\n" },
  { "... two units ahead", GATHERED, MB(2, 2, true),
    "0: >w'2 >v'2 >u'2 <w'2 a\n"
    "1: >w'2\n"
    "0: <v'2 b\n"
    "1: >v'2\n"
    "0: <u'2 c\n"
    "1: >u'2 <w'2 a <v'2 b <u'2 c\n" },
  { "... and waited for at once", GATHERED, MB(2, 1, false),
    "0: >w'2 <w'2 >v'2 <v'2 a >u'2 <u'2 b\n"
    "1: >w'2 <w'2\n"
    "0: c\n"
    "1: >v'2 <v'2 a >u'2 <u'2 b c\n" },
  { "an activation is gathered as soon as it is made, in the same pass", ACTIVATIONS, MB(2, 0, true),
    "0: a >a'2 b >b'2 <a'2 c <b'2 e d.e >b'3 <b'3 d.b\n"
    "1: a >a'2 b >b'2 <a'2 c <b'2 e d.e >b'3 <b'3 d.b\n" },
  { "... but where nothing overlaps as late as it is read", ACTIVATIONS, MB(1, 0, false),
    "0: a b >a'2 <a'2 c >b'2 <b'2 e d.e >b'3 <b'3 d.b\n" },
  { "what runs once a step: in the first micro-batch, or in the last if it depends on micro-batches", ONCE, MB(3, 1, true),
    "0: >w'2 <w'2 a d.a d.w\n"
    "1: a d.a d.w\n"
    "2: a d.a d.w >d.w'2 <d.w'2 w'3\n" },
  { "weights from host memory are copied, then gathered, ahead; gradients go there before the update", OFFLOADED, MB(2, 1, true),
    "0: >w'2 <w'2 >w'3 >v'2 <v'2 >v'3 <w'3 a\n"
    "1: >w'2 <w'2 >w'3\n"
    "0: <v'3 b d.b d.w\n"
    "1: >v'2 <v'2 >v'3 <w'3 a <v'3 b d.b d.w >d.w'2 <d.w'2 w'4\n" },
  { "a slice that a gather reads is made with it", SLICED, MB(2, 1, true),
    "0: w'2 >w'3 v'2 >v'3 a <w'3 a'2\n"
    "1: w'2 >w'3\n"
    "0: <v'3 b\n"
    "1: v'2 >v'3 a <w'3 a'2 <v'3 b\n" },
  { "a program without a backward pass", EVAL_ONE, MB(2, 1, true),
    "0: a loss\n"
    "1: a loss >loss'2 <loss'2\n" },
  { "... on two stages: the first", EVAL, PP(1F1B, 0, 4, 1, true),
    "0: y >y'2\n"
    "1: y\n"
    "0: <y'2\n"
    "1: >y'2\n"
    "2: y\n"
    "1: <y'2\n"
    "2: >y'2\n"
    "3: y\n"
    "2: <y'2\n"
    "3: >y'2 >loss'2 <y'2 <loss'2\n" },
  { "... the second", EVAL, PP(1F1B, 1, 4, 1, true),
    "0: >y'2 <y'2 z loss\n"
    "1: >y'2\n"
    "2: >y'2\n"
    "1: <y'2 z loss\n"
    "3: >y'2\n"
    "2: <y'2 z loss\n"
    "3: <y'2 z loss >loss'2 <loss'2\n"
    "2 at once: y'2\n" },
  { "two stages, 1f1b: the first runs a micro-batch ahead", PIPED, PP(1F1B, 0, 3, 1, true),
    "0: y >y'2\n"
    "1: y\n"
    "0: <y'2\n"
    "1: >y'2\n"
    "0: >d.y'2 <d.y'2 d.x d.w\n"
    "2: y\n"
    "1: <y'2\n"
    "2: >y'2\n"
    "1: >d.y'2\n"
    "2: >d.y'2\n"
    "1: <d.y'2 d.x d.w\n"
    "2: <d.y'2 d.x d.w w'2 <y'2\n"
    "2 at once: d.y'2\n" },
  { "... the second has one forward, one backward", PIPED, PP(1F1B, 1, 3, 1, true),
    "0: >y'2 <y'2 z\n"
    "1: >y'2\n"
    "0: d.z d.y >d.y'2\n"
    "2: >y'2\n"
    "0: d.v\n"
    "1: <y'2 z d.z d.y\n"
    "0: <d.y'2\n"
    "1: >d.y'2 d.v\n"
    "2: <y'2 z d.z d.y\n"
    "1: <d.y'2\n"
    "2: >d.y'2 d.v v'2 <d.y'2\n"
    "2 at once: y'2\n" },
  { "... without overlap", PIPED, PP(1F1B, 0, 3, 1, false),
    "0: y >y'2 <y'2\n"
    "1: y >y'2 <y'2\n"
    "0: >d.y'2 <d.y'2 d.x d.w\n"
    "2: y >y'2 <y'2\n"
    "1: >d.y'2 <d.y'2 d.x d.w\n"
    "2: >d.y'2 <d.y'2 d.x d.w w'2\n" },
  { "... more receives ahead", PIPED, PP(1F1B, 1, 3, 2, true),
    "0: >y'2 <y'2 z\n"
    "1: >y'2\n"
    "0: d.z d.y >d.y'2\n"
    "2: >y'2\n"
    "0: d.v\n"
    "1: <y'2 z d.z d.y >d.y'2 d.v\n"
    "2: <y'2 z d.z d.y\n"
    "0: <d.y'2\n"
    "2: >d.y'2 d.v v'2\n"
    "1: <d.y'2\n"
    "2: <d.y'2\n"
    "2 at once: y'2\n"
    "2 at once: d.y'2\n" },
  { "gpipe: all forwards, then all backwards", PIPED, PP(GPIPE, 0, 2, 1, true),
    "0: y >y'2\n"
    "1: y\n"
    "0: <y'2\n"
    "1: >y'2\n"
    "0: >d.y'2\n"
    "1: >d.y'2\n"
    "0: <d.y'2 d.x d.w\n"
    "1: <d.y'2 d.x d.w w'2 <y'2\n"
    "2 at once: d.y'2\n" },
  { "naive: one micro-batch after the other", PIPED, PP(NAIVE, 0, 2, 1, true),
    "0: y >y'2 >d.y'2 <d.y'2 d.x d.w\n"
    "1: y\n"
    "0: <y'2\n"
    "1: >y'2 >d.y'2 <d.y'2 d.x d.w w'2 <y'2\n" },
  { "zb: gradients of weights run apart, later", PIPED, PP(ZB, 0, 4, 1, true),
    "0: y >y'2\n"
    "1: y\n"
    "0: <y'2\n"
    "1: >y'2\n"
    "0: >d.y'2\n"
    "1: >d.y'2\n"
    "0: <d.y'2 d.x d.w\n"
    "2: y\n"
    "1: <y'2\n"
    "2: >y'2 >d.y'2\n"
    "1: <d.y'2 d.x d.w\n"
    "3: y\n"
    "2: <y'2\n"
    "3: >y'2 >d.y'2\n"
    "2: <d.y'2 d.x d.w\n"
    "3: <d.y'2 d.x d.w w'2 <y'2\n"
    "2 at once: d.y'2\n" },
  { "... on the second stage", PIPED, PP(ZB, 1, 4, 1, true),
    "0: >y'2 <y'2 z\n"
    "1: >y'2\n"
    "0: d.z d.y >d.y'2\n"
    "1: <y'2 z d.z d.y\n"
    "0: <d.y'2\n"
    "1: >d.y'2\n"
    "2: >y'2\n"
    "0: d.v\n"
    "2: <y'2 z d.z d.y\n"
    "1: <d.y'2\n"
    "2: >d.y'2\n"
    "3: >y'2\n"
    "1: d.v\n"
    "3: <y'2 z d.z d.y\n"
    "2: <d.y'2\n"
    "3: >d.y'2\n"
    "2: d.v\n"
    "3: d.v v'2 <d.y'2\n" },
  { "interleaved, two virtual stages a rank: the first rank", FOUR, PP(INTERLEAVED, 0, 2, 1, true),
    "0: a >a'2\n"
    "1: a\n"
    "0: <a'2\n"
    "1: >a'2\n"
    "0: >b'2\n"
    "1: >b'2\n"
    "0: <b'2 c >c'2\n"
    "1: <b'2 c\n"
    "0: <c'2\n"
    "1: >c'2\n"
    "0: >d.c'2 <d.c'2 d.b >d.b'2\n"
    "1: >d.c'2\n"
    "0: >d.a'2\n"
    "1: <d.c'2 d.b\n"
    "0: <d.b'2\n"
    "1: >d.b'2 >d.a'2\n"
    "0: <d.a'2 d.x\n"
    "1: <d.a'2 d.x <a'2 <c'2 <d.b'2\n"
    "2 at once: b'2\n"
    "2 at once: d.a'2\n" },
  { "... the second", FOUR, PP(INTERLEAVED, 1, 2, 1, true),
    "0: >a'2 <a'2 b\n"
    "1: >a'2\n"
    "0: >b'2\n"
    "1: <a'2 b\n"
    "0: <b'2\n"
    "1: >b'2\n"
    "0: >c'2\n"
    "1: >c'2\n"
    "0: <c'2 e d.e d.c >d.c'2 >d.b'2\n"
    "1: <c'2 e d.e d.c\n"
    "0: <d.c'2\n"
    "1: >d.c'2\n"
    "0: <d.b'2 d.a >d.a'2\n"
    "1: >d.b'2 <d.b'2 d.a\n"
    "0: <d.a'2\n"
    "1: >d.a'2 <b'2 <d.c'2 <d.a'2\n"
    "2 at once: c'2\n" },
  { "gathers beside transfers between stages", PIPED_GATHERED, PP(1F1B, 0, 2, 1, true),
    "0: >w'2 <w'2 y >y'2\n"
    "1: >w'2\n"
    "0: >w'3\n"
    "1: <w'2 y\n"
    "0: <y'2\n"
    "1: >y'2\n"
    "0: >d.y'2\n"
    "1: >d.y'2\n"
    "0: <d.y'2 <w'3 d.x\n"
    "1: >w'3 <d.y'2 <w'3 d.x <y'2\n"
    "2 at once: d.y'2\n" },
  { "a tied weight is sent before all micro-batches, its gradient comes back after them: the first stage", TIED, PP(1F1B, 0, 2, 1, true),
    "0: >w'2 y >y'2\n"
    "1: y\n"
    "0: <y'2\n"
    "1: >y'2\n"
    "0: >d.y'2\n"
    "1: >d.y'2\n"
    "0: <d.y'2 d.w\n"
    "1: <d.y'2 d.w >g'2 <g'2 d.w'2\n"
    "0: <w'2\n"
    "1: w'3 <y'2\n"
    "2 at once: d.y'2\n" },
  { "... the second", TIED, PP(1F1B, 1, 2, 1, true),
    "0: >w'2 >y'2 <y'2 <w'2 z\n"
    "1: >y'2\n"
    "0: d.z g d.y >d.y'2\n"
    "1: <y'2 z d.z g d.y\n"
    "0: <d.y'2\n"
    "1: >d.y'2 >g'2 <d.y'2 <g'2\n" },
  { "a transfer that skips a stage", SKIPPED, PP(1F1B, 0, 2, 1, true),
    "-6: y goes from stage 0 to stage 2; only neighbours exchange tensors" },
  { "micro-batches that interleaved can't have", FOUR, PP(INTERLEAVED, 0, 3, 1, true),
    "-6: schedule interleaved needs micro-batches in multiples of its 2 stages: 3 do not fit; 2 or 4 would, or schedule 1f1b" },
};

/* ---- lists as text ------------------------------------------------------------------ */

static struct text_print text_begin(const struct tc_graph *g, char **text, size_t *size)
{
  struct text_print p = { g, tc_calloc((size_t)g->n_tensors + 1, sizeof(int)), open_memstream(text, size) };
  for (int32_t t = 0; t < g->n_tensors; t++) text_number_it(&p, t);
  return p;
}

/* One of the list, on a new line if the micro-batch is another. */
static void put_entry(const struct text_print *p, int32_t *mb, const char *kind, int32_t node, int32_t its_mb)
{
  if (its_mb != *mb) fprintf(p->f, "%s%d:", *mb < 0 ? "" : "\n", its_mb);
  *mb = its_mb;
  fprintf(p->f, " %s", kind);
  text_put_name(p, tc_out(p->g, &p->g->node[node], 0));
}

static char *list_text(const struct tc_graph *g, const struct tc_actions *s)
{
  static const char *const kind[] = { [TC_RUN] = "", [TC_ISSUE] = ">", [TC_WAIT] = "<" };
  char *text = NULL;
  size_t size = 0;
  struct text_print p = text_begin(g, &text, &size);
  int32_t mb = -1;
  for (int32_t i = 0; i < s->n; i++)
    put_entry(&p, &mb, kind[s->action[i].kind], s->action[i].node, s->action[i].mb);
  fputs("\n", p.f);
  for (int32_t i = 0; i < g->n_nodes; i++) {
    if (tc_actions_most(s, i) < 2) continue;
    fprintf(p.f, "%d at once: ", tc_actions_most(s, i));
    text_put_name(&p, tc_out(g, &g->node[i], 0));
    fputc('\n', p.f);
  }
  fclose(p.f);
  free(p.number);
  return text;
}

static char *tasks_text(const struct tc_graph *g, const struct tasks *x)
{
  char *text = NULL;
  size_t size = 0;
  struct text_print p = text_begin(g, &text, &size);
  int32_t mb = -1;
  for (int32_t i = 0; i < x->n; i++) put_entry(&p, &mb, "", x->task[i].node, x->task[i].mb);
  fputs("\n", p.f);
  fclose(p.f);
  free(p.number);
  return text;
}

/* The nodes of the list, in the order in which they come first. */
static bool is_body(const struct tc_actions *s)
{
  int32_t n = 0;
  for (int32_t i = 0; i < s->n; i++) {
    bool first = true;
    for (int32_t k = 0; k < i; k++) first &= s->action[k].node != s->action[i].node;
    if (first && (n >= s->n_body || s->body[n++] != s->action[i].node)) return false;
  }
  return n == s->n_body;
}

static void test_case(size_t i)
{
  struct tc_graph *g = read_program(cases[i].program);
  struct tc_actions *s = NULL;
  struct tc_err err = { 0 };
  const int rc = tc_actions_new(&s, g, &cases[i].o, &err);
  char *got = rc < 0 ? tc_sprintf("%d: %s", rc, err.text) : list_text(g, s);
  if (!ok(!strcmp(got, cases[i].want), "%s", cases[i].name)) text_show("got", got), text_show("want", cases[i].want);
  if (rc == 0) {
    is_int(tc_actions_check(s, g, &err), 0, "... a list that can run %s", err.text);
    ok(is_body(s), "... the nodes in the order in which they run first");
  }
  free(got);
  tc_actions_free(s);
  tc_graph_free(g);
}

/* The order, and with transfers moved ahead; what waits add to that is in the cases above. */
static const struct { const char *name, *program; struct tc_actions_opts o; const char *order, *hoisted; } walks[] = {
  { "weights are gathered a unit ahead", GATHERED, MB(2, 1, true),
    "0: w'2 a v'2 b u'2 c\n"
    "1: w'2 a v'2 b u'2 c\n",
    "0: w'2 v'2 a u'2 b\n"
    "1: w'2\n"
    "0: c\n"
    "1: v'2 a u'2 b c\n" },
  { "a gradient's reduction stays, its sum, too", REDUCED, MB(2, 1, true),
    "0: a d.b d.v d.v'2 d.v'3 d.a d.w d.w'2 d.w'3\n"
    "1: a d.b d.v d.v'2 d.v'3 d.a d.w d.w'2 d.w'3 v'2 w'2\n",
    "0: a d.b d.v d.v'2 d.v'3 d.a d.w d.w'2 d.w'3\n"
    "1: a d.b d.v d.v'2 d.v'3 d.a d.w d.w'2 d.w'3 v'2 w'2\n" },
  { "transfers between stages are added: after what makes them, before what reads them, or earlier", PIPED,
    PP(1F1B, 1, 3, 1, true),
    "0: z d.z d.y d.v\n"
    "1: z d.z d.y d.v\n"
    "2: z d.z d.y d.v v'2\n",
    "0: y'2 z\n"
    "1: y'2\n"
    "0: d.z d.y d.y'2\n"
    "2: y'2\n"
    "0: d.v\n"
    "1: z d.z d.y d.y'2 d.v\n"
    "2: z d.z d.y d.y'2 d.v v'2\n" },
  { "a tied weight and its gradient are in the order already", TIED, PP(1F1B, 0, 2, 1, true),
    "0: w'2 y\n"
    "1: y\n"
    "0: d.w\n"
    "1: d.w g'2 d.w'2 w'3\n",
    "0: w'2 y y'2\n"
    "1: y y'2\n"
    "0: d.y'2\n"
    "1: d.y'2\n"
    "0: d.w\n"
    "1: d.w g'2 d.w'2 w'3\n" },
};

static void test_walks(size_t i)
{
  struct tc_graph *g = read_program(walks[i].program);
  struct step st;
  struct tasks order = { .n = 0 }, hoisted = { .n = 0 };
  struct tc_err err = { 0 };
  is_int(tc_step_init(&st, g, &walks[i].o, &err), 0, "%s %s", walks[i].name, err.text);
  tc_order(&order, &st);
  is_int(tc_hoist(&hoisted, &st, &order, &err), 0, "... by two walks %s", err.text);
  char *a = tasks_text(g, &order), *b = tasks_text(g, &hoisted);
  if (!ok(!strcmp(a, walks[i].order), "... the order")) text_show("got", a), text_show("want", walks[i].order);
  if (!ok(!strcmp(b, walks[i].hoisted), "... what is moved")) text_show("got", b), text_show("want", walks[i].hoisted);
  free(a);
  free(b);
  free(order.task);
  free(hoisted.task);
  tc_step_done(&st);
  tc_graph_free(g);
}

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) test_case(i);
  for (size_t i = 0; i < sizeof walks / sizeof *walks; i++) test_walks(i);
  return done_testing();
}
