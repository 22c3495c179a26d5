/* t_loss_chunks.c - the loss head in chunks of rows: which, of how many rows, in which order. */
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define FORWARD                                                              \
  "targets i32[8] dp:S(0) = data<->n>()\n"                                   \
  "state x [8,4] dp:S(0)\nparam w [6,4] dp R R P R\nstate acc\nstate grad.w [6,4] dp:P\n" \
  "head: logits [8,6] dp:S(0) = matmul<nc,vc->nv>(x, w) head\n"              \
  "head: max [8] dp:S(0) = rowmax(logits) head k=6\n"                        \
  "head: pick [8] dp:S(0) = pick(logits, targets) head\n"                    \
  "head: sumexp [8] dp:S(0) = sumexp(logits, max) head k=6\n"                \
  "head: nll [8] dp:S(0) = nll(max, sumexp, pick, targets) head\n"
#define SUM                                                                  \
  "head: loss dp:P += sum(nll) head\n"                                       \
  "F1 head: total in loss = all_reduce dp(loss) control\n"
#define BACKWARD                                                             \
  "B head: d.nll [8] dp:S(0) = fill() head\n"                                \
  "B head: d.sumexp [8] dp:S(0), d.pick [8] dp:S(0) = nll_bwd(d.nll, sumexp, targets) head\n" \
  "B head: d.l [8,6] dp:S(0) = sumexp_bwd(logits, max, d.sumexp) head\n"     \
  "B head: d.logits [8,6] dp:S(0) in d.l = pick_bwd(d.l, targets, d.pick) head\n" \
  "B head: d.x [8,4] dp:S(0) = matmul<nv,vc->nc>(d.logits, w) head\n"        \
  "W head: d.w [6,4] dp:P += grad.w first = matmul<nv,nc->vc>(d.logits, x) head\n" \
  "B h0: d.y [8,4] dp:S(0) = gelu_bwd(d.x, x)\n"

#define CAPPED                                                               \
  "targets i32[8] dp:S(0) = data<->n>()\n"                                   \
  "state x [8,4] dp:S(0)\nparam w [6,4] dp R R P R\nstate acc\nstate grad.w [6,4] dp:P\n" \
  "head: logits [8,6] dp:S(0) = matmul<nc,vc->nv>(x, w) head\n"              \
  "head: cap [8,6] dp:S(0) in logits = softcap(logits) head\n"               \
  "head: max [8] dp:S(0) = rowmax(cap) head k=6\n"                           \
  "head: pick [8] dp:S(0) = pick(cap, targets) head\n"                       \
  "head: sumexp [8] dp:S(0) = sumexp(cap, max) head k=6\n"                   \
  "head: nll [8] dp:S(0) = nll(max, sumexp, pick, targets) head f=0.1\n"     \
  SUM                                                                        \
  "B head: d.nll [8] dp:S(0) = fill() head\n"                                \
  "B head: d.sumexp [8] dp:S(0), d.pick [8] dp:S(0) = nll_bwd<n,n,n,n->n,n>(d.nll, sumexp, targets, max) head f=0.1\n" \
  "B head: d.l [8,6] dp:S(0) = sumexp_bwd(cap, max, d.sumexp) head\n"        \
  "B head: d.cap [8,6] dp:S(0) in d.l = pick_bwd(d.l, targets, d.pick) head\n" \
  "B head: d.logits [8,6] dp:S(0) in d.cap = softcap_bwd(d.cap, cap) head\n" \
  "B head: d.x [8,4] dp:S(0) = matmul<nv,vc->nc>(d.logits, w) head\n"        \
  "W head: d.w [6,4] dp:P += grad.w first = matmul<nv,nc->vc>(d.logits, x) head\n"

static const struct { const char *name, *program; int max_rows; const char *want; } cases[] = {
  { "enough rows: one chunk, as part of the backward pass; the losses are summed after the gradient of the logits",
    FORWARD SUM BACKWARD, 4,
    "F targets i32[8] dp:S(0) = data<->n>()\n"
    "B head: logits [8,6] dp:S(0) = matmul<nc,vc->nv>(x, w) head\n"
    "B head: max [8] dp:S(0) = rowmax(logits) head\n"
    "B head: pick [8] dp:S(0) = pick(logits, targets) head\n"
    "B head: sumexp [8] dp:S(0) = sumexp(logits, max) head\n"
    "B head: nll [8] dp:S(0) = nll(max, sumexp, pick, targets) head\n"
    "B head: d.nll [8] dp:S(0) = fill() head\n"
    "B head: d.sumexp [8] dp:S(0), d.pick [8] dp:S(0) = nll_bwd(d.nll, sumexp, targets) head\n"
    "B head: d.l [8,6] dp:S(0) = sumexp_bwd(logits, max, d.sumexp) head\n"
    "B head: d.logits [8,6] dp:S(0) in d.l = pick_bwd(d.l, targets, d.pick) head\n"
    "B head: loss dp:P(sum) += sum(nll) head\n"
    "B1 head: total in loss = all_reduce dp(loss) control\n"
    "B head: d.x [8,4] dp:S(0) = matmul<nv,vc->nc>(d.logits, w) head\n"
    "W head: d.w [6,4] dp:P(sum) += grad.w first = matmul<nv,nc->vc>(d.logits, x) head\n"
    "B h0: d.y [8,4] dp:S(0) = gelu_bwd(d.x, x)\n" },
  { "two chunks: each has its rows of what comes from outside and goes there; the weight's gradient is one sum",
    FORWARD SUM BACKWARD, 2,
    "F targets i32[8] dp:S(0) = data<->n>()\n"
    "B head: logits [4,6] dp:S(0) = matmul<nc,vc->nv>(x'2, w) head\n"
    "B head: max [4] dp:S(0) = rowmax(logits) head\n"
    "B head: pick [4] dp:S(0) = pick(logits, targets'2) head\n"
    "B head: sumexp [4] dp:S(0) = sumexp(logits, max) head\n"
    "B head: nll'2 [4] dp:S(0) rows 0 of nll = nll(max, sumexp, pick, targets'2) head\n"
    "B head: d.nll [4] dp:S(0) = fill() head\n"
    "B head: d.sumexp [4] dp:S(0), d.pick [4] dp:S(0) = nll_bwd(d.nll, sumexp, targets'2) head\n"
    "B head: d.l [4,6] dp:S(0) = sumexp_bwd(logits, max, d.sumexp) head\n"
    "B head: d.logits [4,6] dp:S(0) in d.l = pick_bwd(d.l, targets'2, d.pick) head\n"
    "B head: loss dp:P(sum) += sum(nll'2) head\n"
    "B head: d.x'2 [4,4] dp:S(0) rows 0 of d.x = matmul<nv,vc->nc>(d.logits, w) head\n"
    "W head: d.w [6,4] dp:P(sum) += grad.w first = matmul<nv,nc->vc>(d.logits, x'2) head\n"
    "B head: logits'2 [4,6] dp:S(0) = matmul<nc,vc->nv>(x'3, w) head\n"
    "B head: max'2 [4] dp:S(0) = rowmax(logits'2) head\n"
    "B head: pick'2 [4] dp:S(0) = pick(logits'2, targets'3) head\n"
    "B head: sumexp'2 [4] dp:S(0) = sumexp(logits'2, max'2) head\n"
    "B head: nll'3 [4] dp:S(0) rows 2 of nll = nll(max'2, sumexp'2, pick'2, targets'3) head\n"
    "B head: d.nll'2 [4] dp:S(0) = fill() head\n"
    "B head: d.sumexp'2 [4] dp:S(0), d.pick'2 [4] dp:S(0) = nll_bwd(d.nll'2, sumexp'2, targets'3) head\n"
    "B head: d.l'2 [4,6] dp:S(0) = sumexp_bwd(logits'2, max'2, d.sumexp'2) head\n"
    "B head: d.logits'2 [4,6] dp:S(0) in d.l'2 = pick_bwd(d.l'2, targets'3, d.pick'2) head\n"
    "B head: loss'2 dp:P(sum) += loss = sum(nll'3) head\n"
    "B head: d.x'3 [4,4] dp:S(0) rows 2 of d.x = matmul<nv,vc->nc>(d.logits'2, w) head\n"
    "W head: d.w'2 [6,4] dp:P(sum) += d.w = matmul<nv,nc->vc>(d.logits'2, x'3) head\n"
    "B1 head: total in loss'2 = all_reduce dp(loss'2) control\n"
    "B h0: d.y [8,4] dp:S(0) = gelu_bwd(d.x, x)\n" },
  { "... with a cap in place of the logits, and its gradient in place of theirs",
    CAPPED, 2,
    "F targets i32[8] dp:S(0) = data<->n>()\n"
    "B head: logits [4,6] dp:S(0) = matmul<nc,vc->nv>(x'2, w) head\n"
    "B head: cap [4,6] dp:S(0) in logits = softcap(logits) head\n"
    "B head: max [4] dp:S(0) = rowmax(cap) head\n"
    "B head: pick [4] dp:S(0) = pick(cap, targets'2) head\n"
    "B head: sumexp [4] dp:S(0) = sumexp(cap, max) head\n"
    "B head: nll'2 [4] dp:S(0) rows 0 of nll = nll(max, sumexp, pick, targets'2) head\n"
    "B head: d.nll [4] dp:S(0) = fill() head\n"
    "B head: d.sumexp [4] dp:S(0), d.pick [4] dp:S(0) = nll_bwd<n,n,n,n->n,n>(d.nll, sumexp, targets'2, max) head\n"
    "B head: d.l [4,6] dp:S(0) = sumexp_bwd(cap, max, d.sumexp) head\n"
    "B head: d.cap [4,6] dp:S(0) in d.l = pick_bwd(d.l, targets'2, d.pick) head\n"
    "B head: loss dp:P(sum) += sum(nll'2) head\n"
    "B head: d.logits [4,6] dp:S(0) in d.cap = softcap_bwd(d.cap, cap) head\n"
    "B head: d.x [4,4] dp:S(0) = matmul<nv,vc->nc>(d.logits, w) head\n"
    "W head: d.w [6,4] dp:P(sum) += grad.w first = matmul<nv,nc->vc>(d.logits, x'2) head\n"
    "B head: logits'2 [4,6] dp:S(0) = matmul<nc,vc->nv>(x'3, w) head\n"
    "B head: cap'2 [4,6] dp:S(0) in logits'2 = softcap(logits'2) head\n"
    "B head: max'2 [4] dp:S(0) = rowmax(cap'2) head\n"
    "B head: pick'2 [4] dp:S(0) = pick(cap'2, targets'3) head\n"
    "B head: sumexp'2 [4] dp:S(0) = sumexp(cap'2, max'2) head\n"
    "B head: nll'3 [4] dp:S(0) rows 2 of nll = nll(max'2, sumexp'2, pick'2, targets'3) head\n"
    "B head: d.nll'2 [4] dp:S(0) = fill() head\n"
    "B head: d.sumexp'2 [4] dp:S(0), d.pick'2 [4] dp:S(0) = nll_bwd<n,n,n,n->n,n>(d.nll'2, sumexp'2, targets'3, max'2) head\n"
    "B head: d.l'2 [4,6] dp:S(0) = sumexp_bwd(cap'2, max'2, d.sumexp'2) head\n"
    "B head: d.cap'2 [4,6] dp:S(0) in d.l'2 = pick_bwd(d.l'2, targets'3, d.pick'2) head\n"
    "B head: loss'2 dp:P(sum) += loss = sum(nll'3) head\n"
    "B head: d.logits'2 [4,6] dp:S(0) in d.cap'2 = softcap_bwd(d.cap'2, cap'2) head\n"
    "B head: d.x'2 [4,4] dp:S(0) = matmul<nv,vc->nc>(d.logits'2, w) head\n"
    "W head: d.w'2 [6,4] dp:P(sum) += d.w = matmul<nv,nc->vc>(d.logits'2, x'3) head\n"
    "B1 head: total in loss'2 = all_reduce dp(loss'2) control\n" },
  { "three rows don't divide four: two chunks. Without a backward pass they stay F",
    FORWARD SUM, 3,
    "F targets i32[8] dp:S(0) = data<->n>()\n"
    "F head: logits [4,6] dp:S(0) = matmul<nc,vc->nv>(x'2, w) head\n"
    "F head: max [4] dp:S(0) = rowmax(logits) head\n"
    "F head: pick [4] dp:S(0) = pick(logits, targets'2) head\n"
    "F head: sumexp [4] dp:S(0) = sumexp(logits, max) head\n"
    "F head: nll'2 [4] dp:S(0) rows 0 of nll = nll(max, sumexp, pick, targets'2) head\n"
    "F head: loss dp:P(sum) += sum(nll'2) head\n"
    "F head: logits'2 [4,6] dp:S(0) = matmul<nc,vc->nv>(x'3, w) head\n"
    "F head: max'2 [4] dp:S(0) = rowmax(logits'2) head\n"
    "F head: pick'2 [4] dp:S(0) = pick(logits'2, targets'3) head\n"
    "F head: sumexp'2 [4] dp:S(0) = sumexp(logits'2, max'2) head\n"
    "F head: nll'3 [4] dp:S(0) rows 2 of nll = nll(max'2, sumexp'2, pick'2, targets'3) head\n"
    "F head: loss'2 dp:P(sum) += loss = sum(nll'3) head\n"
    "F1 head: total in loss'2 = all_reduce dp(loss'2) control\n" },
  { "what lies between the head's nodes and does not depend on it comes before the chunks; what does, after them",
    FORWARD "h0: z [8,4] dp:S(0) = gelu(x)\nhead: a [8] dp:S(0) = gelu(nll)\n" SUM, 2,
    "F targets i32[8] dp:S(0) = data<->n>()\n"
    "F h0: z [8,4] dp:S(0) = gelu(x)\n"
    "F head: logits [4,6] dp:S(0) = matmul<nc,vc->nv>(x'2, w) head\n"
    "F head: max [4] dp:S(0) = rowmax(logits) head\n"
    "F head: pick [4] dp:S(0) = pick(logits, targets'2) head\n"
    "F head: sumexp [4] dp:S(0) = sumexp(logits, max) head\n"
    "F head: nll'2 [4] dp:S(0) rows 0 of nll = nll(max, sumexp, pick, targets'2) head\n"
    "F head: loss dp:P(sum) += sum(nll'2) head\n"
    "F head: logits'2 [4,6] dp:S(0) = matmul<nc,vc->nv>(x'3, w) head\n"
    "F head: max'2 [4] dp:S(0) = rowmax(logits'2) head\n"
    "F head: pick'2 [4] dp:S(0) = pick(logits'2, targets'3) head\n"
    "F head: sumexp'2 [4] dp:S(0) = sumexp(logits'2, max'2) head\n"
    "F head: nll'3 [4] dp:S(0) rows 2 of nll = nll(max'2, sumexp'2, pick'2, targets'3) head\n"
    "F head: loss'2 dp:P(sum) += loss = sum(nll'3) head\n"
    "F head: a [8] dp:S(0) = gelu(nll)\n"
    "F1 head: total in loss'2 = all_reduce dp(loss'2) control\n" },
  { "a head that depends on what follows it is not cut",
    FORWARD "head: a [8] dp:S(0) = gelu(nll)\nhead: b [8] dp:S(0) = add(a, nll) head\n", 2,
    "F targets i32[8] dp:S(0) = data<->n>()\n"
    "F head: logits [8,6] dp:S(0) = matmul<nc,vc->nv>(x, w) head\n"
    "F head: max [8] dp:S(0) = rowmax(logits) head\n"
    "F head: pick [8] dp:S(0) = pick(logits, targets) head\n"
    "F head: sumexp [8] dp:S(0) = sumexp(logits, max) head\n"
    "F head: nll [8] dp:S(0) = nll(max, sumexp, pick, targets) head\n"
    "F head: a [8] dp:S(0) = gelu(nll)\n"
    "F head: b [8] dp:S(0) = add(a, nll) head\n" },
  { "rows that a reshard in the head would move are not cut",
    FORWARD "head: b [8] = all_gather dp(nll) head\n", 2,
    "F targets i32[8] dp:S(0) = data<->n>()\n"
    "F head: logits [8,6] dp:S(0) = matmul<nc,vc->nv>(x, w) head\n"
    "F head: max [8] dp:S(0) = rowmax(logits) head\n"
    "F head: pick [8] dp:S(0) = pick(logits, targets) head\n"
    "F head: sumexp [8] dp:S(0) = sumexp(logits, max) head\n"
    "F head: nll [8] dp:S(0) = nll(max, sumexp, pick, targets) head\n"
    "F head: b [8] = all_gather dp(nll) head\n" },
};

/* The sizes of chunks for all limits: equal, and no larger than asked; where nothing divides, one chunk or larger ones. */
static void test_sizes(void)
{
  static const struct { int rows, max, chunks; } row[] = {
    { 8, 8, 1 }, { 8, 9, 1 }, { 8, 7, 2 }, { 8, 3, 4 }, { 8, 1, 8 }, { 8, 0, 8 }, { 7, 6, 7 }, { 12, 5, 3 }, { 13, 12, 13 },
    { 17, 16, 1 },               /* 17 chunks would be more than 8 times the 2 that were asked for */
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char *text = tc_sprintf("state x [%d,4]\nparam w [6,4]\nlogits [%d,6] = matmul<nc,vc->nv>(x, w) head\n", row[i].rows,
                            row[i].rows);
    struct tc_graph *g = read_program(text);
    struct tc_mesh *m = read_mesh("");
    tc_loss_chunks(g, m, row[i].max);
    is_int(g->n_order, row[i].chunks, "%d rows, at most %d at once: %d chunks", row[i].rows, row[i].max, row[i].chunks);
    free(text);
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  struct tc_graph *g = read_program("state x [65536,4]\nparam w [6,4]\nlogits [65536,6] = matmul<nc,vc->nv>(x, w) head\n");
  struct tc_mesh *m = read_mesh("dp2");
  is_int(tc_loss_chunk_least(g, m), 4, "65536 rows need chunks of 4 at least: %d of them", TC_LOSS_CHUNKS);
  is_int(tc_loss_chunk_rows(g, m, 240), 10, "240 bytes are 10 rows of 6 logits");
  is_int(tc_loss_chunk_rows(g, m, 24), 4, "... 24 bytes are 1, which would be too many chunks");
  tc_graph_free(g);
  tc_mesh_free(m);
}

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_mesh *m = read_mesh("dp2");
    struct tc_err err = { 0 };
    if (tc_graph_check(g, m, "merge", &err) < 0) ok(false, "before: %s", err.text);
    tc_loss_chunks(g, m, cases[i].max_rows);
    if (tc_graph_check(g, m, "merge", &err) < 0) ok(false, "after: %s", err.text);
    is_program(g, TEXT_NODES, cases[i].want, cases[i].name);
    tc_graph_free(g);
    tc_mesh_free(m);
  }
  test_sizes();
  return done_testing();
}
