/* program_text.h - programs as text, for tables of tests: text in, a pass, text out.
 *
 *   struct tc_mesh *m = read_mesh("mb2 dp2");           an axis that is not named has size 1
 *   struct tc_graph *g = read_program(
 *     "state x [8,4]  dp:S(0)\n"                        a tensor that is there from the start
 *     "param w [6,4]  dp S(*) R S(*) S(*) use\n"        a parameter, with rows as in an annotation file
 *     "param v [6,4] frozen\n"                          one that does not train
 *     "h0: y [8,6] = matmul<nc,fc->nf>(x, w)\n"         a node of unit h0, which is layer 0
 *     "loss += sum(y) f=0.125\n");                      a scalar has no shape
 *   tc_PASS(g, ...);
 *   is_program(g, TEXT_NODES, "...", "name of the case");
 *
 * A line is   [MARK] [UNIT:] TENSOR, ... = OP<RULE>(TENSOR, ...) WORDS
 *   MARK    F (if none is given), B, W or U; F1, B1 ...: once a step
 *   UNIT    none is a unit, too; hN is layer N, hN.attn a unit in it; "unit embed" makes one of no layer; words: layer N, stage N, at N
 *   TENSOR  where it is made: NAME TYPE[SHAPE] PLACEMENTS WORDS. TYPE: none is f32; SHAPE: 5/8 is 5, stored as 8.
 *           PLACEMENTS as tc_layout_text prints them, or "R": the tensor is then annotated. WORDS: "host"; "in X" takes
 *           the storage of X; "+= X" adds to X, "first": but is written in the first micro-batch; "d.w [4] += f(x)":
 *           begins a sum; "rows 4 of X": a view; "block of X"
 *   OP      a name of op.def, or a collective and its axis: all_gather dp(w), copy(w)
 *   WORDS   max (of a reduction), head, all-stages, control, on-host; the role gather, grad or store; k=N (attr.index), f=X (attr.number), k3=N (attr.third),
 *           f2=X (attr.other); "of Y":
 *           the backward node of that which makes Y
 *
 * Names are of tensors: w'2 is the second tensor of the name w, in the order of the text. "grad.w" is the accumulator of
 * parameter w, "d.w" a contribution to it, "d.y" the gradient of y. The fields of the graph (tokens, targets, starts,
 * logits, loss, nll) are the first tensors of these names. What is printed can be read again. */
#ifndef TC_PROGRAM_TEXT_H
#define TC_PROGRAM_TEXT_H

#include "tests/unit/program_read.h"

/* ---- printing ----------------------------------------------------------------------- */

/* What is printed: units; state that is not a parameter; parameters; nodes; of nodes also "of Y", k= and f=. */
enum { TEXT_UNITS = 1, TEXT_STATES = 2, TEXT_PARAMS = 4, TEXT_NODES = 8, TEXT_ATTRS = 16 };

struct text_print { const struct tc_graph *g; int *number; FILE *f; };

/* Numbers the tensors of equal names in the order of the text. */
static void text_number_it(struct text_print *p, int32_t t)
{
  if (t < 0 || p->number[t]) return;
  int n = 1;
  for (int32_t i = 0; i < p->g->n_tensors; i++) n += p->number[i] && !strcmp(p->g->tensor[i].name, p->g->tensor[t].name);
  p->number[t] = n;
}

static void text_put_name(const struct text_print *p, int32_t t)
{
  fputs(p->g->tensor[t].name, p->f);
  if (p->number[t] > 1) fprintf(p->f, "'%d", p->number[t]);
}

/* "mb:S(0) dp:P(sum)" */
static void text_layout_of(char *buf, size_t size, const struct tc_layout *l)
{
  static const char *const kind[] = { [TC_R] = "R", [TC_FLAT] = "S(*)" };
  snprintf(buf, size, "R");
  for (int a = 0, any = 0; a < TC_AXES; a++) {
    const struct tc_place *p = &l->on[a];
    if (p->kind == TC_R) continue;
    if (!any++) buf[0] = '\0';
    tc_text_add(buf, size, "%s%s:", any > 1 ? " " : "", text_axis_name(a));
    if (p->kind == TC_S) tc_text_add(buf, size, "S(%d)", p->dim);
    else if (p->kind == TC_AT) tc_text_add(buf, size, "at(%d)", p->at);
    else if (p->kind == TC_P) tc_text_add(buf, size, "P(%s)", p->op == TC_MAX_OP ? "max" : "sum");
    else tc_text_add(buf, size, "%s", kind[p->kind]);
  }
}

static void text_put_axes(FILE *f, unsigned axes)
{
  const char *before = " ";
  for (int a = 0; a < TC_AXES; a++)
    if (axes >> a & 1) fprintf(f, "%s%s", before, text_axis_name(a)), before = "+";
}

/* A name and what is printed where it is made; placements: parameters have rows of their own. */
static void text_put_tensor(const struct text_print *p, int32_t t, bool placements)
{
  const struct tc_tensor *x = &p->g->tensor[t];
  char lay[128];
  text_put_name(p, t);
  if (x->rank) fprintf(p->f, " %s[", x->dtype == TC_F32 ? "" : tc_dtype_name(x->dtype));
  for (int d = 0; d < x->rank; d++) {
    fprintf(p->f, "%s%lld", d ? "," : "", (long long)x->dim[d]);
    if (d == x->pad_dim) fprintf(p->f, "/%lld", (long long)x->pad_to);
  }
  if (x->rank) fputc(']', p->f);
  text_layout_of(lay, sizeof lay, &x->lay);
  if (placements && strcmp(lay, "R")) fprintf(p->f, " %s", lay);
  if (x->space == TC_HOST) fputs(" host", p->f);
}

static void text_put_output(const struct text_print *p, const struct tc_node *n, int k)
{
  const int32_t t = tc_out(p->g, n, k);
  const struct tc_tensor *x = &p->g->tensor[t];
  const bool acc = n->acc >> k & 1;
  text_put_tensor(p, t, true);
  if (acc) fputs(" +=", p->f);
  else if (x->overwrites >= 0) fputs(" in", p->f);
  if (x->overwrites >= 0) {
    fputc(' ', p->f);
    text_put_name(p, x->overwrites);
  }
  if (acc && n->acc_first) fputs(" first", p->f);
  if (x->base < 0) return;
  if (x->block) fputs(" block of ", p->f);
  else fprintf(p->f, " rows %lld of ", (long long)x->base_row);
  text_put_name(p, x->base);
}

static void text_put_words(const struct text_print *p, const struct tc_node *n, bool attrs)
{
  static const char *const role[] = { "", " gather", " grad", " store" };
  fprintf(p->f, "%s%s%s%s%s%s", n->red == TC_MAX_OP ? " max" : "", n->head ? " head" : "", n->on_all_stages ? " all-stages" : "", n->control ? " control" : "",
          n->space == TC_HOST ? " on-host" : "", role[n->role]);
  if (!attrs) return;
  if (n->attr.index) fprintf(p->f, " k=%lld", (long long)n->attr.index);
  if (n->attr.number != 0) fprintf(p->f, " f=%g", (double)n->attr.number);
  if (n->attr.third) fprintf(p->f, " k3=%lld", (long long)n->attr.third);
  if (n->attr.other != 0) fprintf(p->f, " f2=%g", (double)n->attr.other);
  if (n->forward < 0) return;
  fputs(" of ", p->f);
  text_put_name(p, tc_out(p->g, &p->g->node[n->forward], 0));
}

static void text_put_node(const struct text_print *p, const struct tc_node *n, bool attrs)
{
  const char *unit = p->g->unit[n->unit].name;
  fprintf(p->f, "%c%s %s%s", "FBWU"[n->mark], n->once_a_step ? "1" : "", unit, *unit ? ": " : "");
  for (int k = 0; k < n->n_out; k++) {
    if (k) fputs(", ", p->f);
    text_put_output(p, n, k);
  }
  const bool bare = n->acc >> (n->n_out - 1) & !n->acc_first && p->g->tensor[tc_out(p->g, n, n->n_out - 1)].overwrites < 0;
  fprintf(p->f, "%s %s", bare ? "" : " =", n->op == TC_OP_RESHARD ? tc_coll_name[n->coll] : tc_op_info[n->op].name);
  if (n->rule) fprintf(p->f, "<%s>", n->rule);
  if (n->op == TC_OP_RESHARD && n->coll != TC_COPY) text_put_axes(p->f, n->axes);
  fputc('(', p->f);
  for (int k = 0; k < n->n_in; k++) {
    if (k) fputs(", ", p->f);
    text_put_name(p, tc_in(p->g, n, k));
  }
  fputc(')', p->f);
  text_put_words(p, n, attrs);
  fputc('\n', p->f);
}

static void text_put_place(FILE *f, const struct tc_place *p)
{
  static const char *const kind[] = { [TC_R] = "R", [TC_P] = "P", [TC_FLAT] = "S(*)" };
  if (p->kind == TC_S) fprintf(f, " S(%d)", p->dim);
  else if (p->kind == TC_AT) fprintf(f, " at(%d)", p->at);
  else fprintf(f, " %s", kind[p->kind]);
}

static void text_put_param(const struct text_print *p, const struct tc_param *x)
{
  const struct tc_layout *all[] = { &x->store, &x->use, &x->acc_lay, &x->update };
  const char *unit = p->g->unit[x->unit].name, *before = "";
  fprintf(p->f, "%s%sparam ", unit, *unit ? ": " : "");
  text_put_tensor(p, x->master, false);
  for (int a = 0; a < TC_AXES; a++) {
    bool any = false, same = true;
    for (int k = 0; k < TC_PLACES; k++) any |= all[k]->on[a].kind != TC_R;
    for (int k = 1; k < TC_PLACES; k++) same &= tc_place_equal(&all[k]->on[a], &all[0]->on[a]);
    if (!any) continue;
    fprintf(p->f, "%s %s", before, text_axis_name(a));
    for (int k = 0; k < (same ? 1 : TC_PLACES); k++) text_put_place(p->f, &all[k]->on[a]);
    before = ",";
    if (a == TC_REST && x->reshard_after != TC_AFTER_STEP) fprintf(p->f, " %s", tc_word_parallel_keep(x->reshard_after));
  }
  fputc('\n', p->f);
}

/* Owned by the caller. */
TAP_UNUSED
static char *program_text(const struct tc_graph *g, unsigned parts)
{
  char *text = NULL;
  size_t size = 0;
  struct text_print p = { g, tc_calloc((size_t)g->n_tensors + 1, sizeof(int)), open_memstream(&text, &size) };
  for (int32_t t = 0; t < g->n_tensors; t++)
    if (g->tensor[t].state) text_number_it(&p, t);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) text_number_it(&p, tc_in(g, n, k));
    for (int k = 0; k < n->n_out; k++) {
      text_number_it(&p, g->tensor[tc_out(g, n, k)].base);
      text_number_it(&p, tc_out(g, n, k));
    }
  }
  for (int32_t u = 0; u < g->n_units && parts & TEXT_UNITS; u++) {
    if (!*g->unit[u].name) continue;
    fprintf(p.f, "unit %s stage %d", g->unit[u].name, g->unit[u].stage);
    if (g->unit[u].at >= 0) fprintf(p.f, " at %d", g->unit[u].at);
    fputc('\n', p.f);
  }
  for (int32_t t = 0; t < g->n_tensors && parts & TEXT_STATES; t++) {
    if (!g->tensor[t].state || (g->tensor[t].param >= 0 && g->param[g->tensor[t].param].master == t)) continue;
    fputs("state ", p.f);
    text_put_tensor(&p, t, true);
    fputc('\n', p.f);
  }
  for (int32_t i = 0; i < g->n_params && parts & TEXT_PARAMS; i++) text_put_param(&p, &g->param[i]);
  for (int32_t i = 0; i < g->n_order && parts & TEXT_NODES; i++)
    text_put_node(&p, &g->node[g->order[i]], parts & TEXT_ATTRS);
  fclose(p.f);
  free(p.number);
  return text;
}

/* ---- comparing ---------------------------------------------------------------------- */

static void text_show(const char *what, const char *text)
{
  printf("# %s:\n", what);
  for (const char *at = text; *at; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] == '\n'))
    printf("#   %.*s\n", (int)strcspn(at, "\n"), at);
}

/* Compares the program with the text; both are shown if they differ. */
TAP_UNUSED
static bool is_program(const struct tc_graph *g, unsigned parts, const char *want, const char *name)
{
  char *got = program_text(g, parts);
  const bool same = ok(!strcmp(got, want), "%s", name);
  if (!same) text_show("got", got), text_show("want", want);
  free(got);
  return same;
}

#endif
