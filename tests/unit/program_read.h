/* program_read.h - reads programs and meshes from text; program_text.h has the notation. */
#ifndef TC_PROGRAM_READ_H
#define TC_PROGRAM_READ_H

#include "src/graph/graph.h"
#include "src/passes/systems.h"
#include "tests/unit/tap.h"

/* ---- reading ------------------------------------------------------------------------ */

struct text_at { struct tc_graph *g; const char *at, *line; };

_Noreturn static void text_bad(const struct text_at *r, const char *what)
{
  printf("Bail out! a program's text: %s at '%.60s' of\n%.*s\n", what, r->at, (int)strcspn(r->line, "\n"), r->line);
  fflush(stdout);
  exit(1);
}

static void text_blanks(struct text_at *r) { r->at += strspn(r->at, " "); }

/* Takes the text if it comes next. A word has to end there. */
static bool text_take(struct text_at *r, const char *text)
{
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.'-";
  text_blanks(r);
  const size_t n = strlen(text);
  if (strncmp(r->at, text, n)) return false;
  if (strchr(letters, text[n - 1]) && text[n - 1] != '=' && r->at[n] && strchr(letters, r->at[n])) return false;
  r->at += n;
  return true;
}

static void text_need(struct text_at *r, const char *text)
{
  if (!text_take(r, text)) text_bad(r, text);
}

/* A name, up to a blank or a separator. */
static const char *text_name(struct text_at *r)
{
  static char name[4][80];
  static int turn;
  char *to = name[turn = (turn + 1) % 4];
  text_blanks(r);
  const size_t n = strcspn(r->at, " ,()<>=:[\n");
  if (n == 0 || n >= sizeof name[0]) text_bad(r, "a name is missing");
  memcpy(to, r->at, n);
  to[n] = '\0';
  r->at += n;
  return to;
}

static int64_t text_number(struct text_at *r)
{
  char *end;
  const long long n = strtoll(r->at, &end, 10);
  if (end == r->at) text_bad(r, "a number is missing");
  r->at = end;
  return n;
}

/* In these texts dp is the axis rest, which has all ranks of dp unless mesh.shard or mesh.ep divide them. */
static const char *text_axis_name(int a) { return a == TC_REST ? "dp" : tc_axis_name[a]; }

static int text_axis(struct text_at *r)
{
  for (int a = 0; a < TC_AXES; a++)
    if (text_take(r, text_axis_name(a))) return a;
  return -1;
}

static bool text_place(struct text_at *r, struct tc_place *p)
{
  *p = (struct tc_place){ TC_R, 0, 0, 0 };
  if (text_take(r, "R")) return true;
  if (text_take(r, "P(max)")) *p = (struct tc_place){ TC_P, 0, TC_MAX_OP, 0 };
  else if (text_take(r, "P(sum)") || text_take(r, "P")) p->kind = TC_P;
  else if (text_take(r, "S(*)")) p->kind = TC_FLAT;
  else if (text_take(r, "S(")) p->kind = TC_S, p->dim = (uint8_t)text_number(r);
  else if (text_take(r, "at(")) p->kind = TC_AT, p->at = (int32_t)text_number(r);
  else return false;
  if (p->kind == TC_S || p->kind == TC_AT) text_need(r, ")");
  return true;
}

/* The tensor of this name, the k-th for NAME'k; -1: none. */
static int32_t text_find(const struct tc_graph *g, const char *name)
{
  const char *tick = strchr(name, '\'');
  const size_t n = tick ? (size_t)(tick - name) : strlen(name);
  int k = tick ? atoi(tick + 1) : 1;
  for (int32_t t = 0; t < g->n_tensors; t++)
    if (strlen(g->tensor[t].name) == n && !strncmp(g->tensor[t].name, name, n) && --k == 0) return t;
  return -1;
}

static int32_t text_tensor(struct text_at *r)
{
  const int32_t t = text_find(r->g, text_name(r));
  if (t < 0) text_bad(r, "no such tensor before");
  return t;
}

static int32_t text_param(const struct tc_graph *g, const char *name)
{
  for (int32_t p = 0; p < g->n_params; p++)
    if (!strcmp(g->param[p].name, name)) return p;
  return -1;
}

/* Sets what the name of a tensor says about it. */
static void text_by_name(struct tc_graph *g, struct tc_tensor *t)
{
  int32_t *const field[] = { &g->tokens, &g->targets, &g->starts, &g->logits, &g->loss, &g->nll, &g->grad_norm,
                             &g->grad_scale };
  static const char *const of[] = { "tokens", "targets", "starts", "logits", "loss", "nll", "grad_norm", "grad_scale" };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++)
    if (!strcmp(t->name, of[i]) && *field[i] < 0) *field[i] = t->id;
  const bool acc = !strncmp(t->name, "grad.", 5), d = !strncmp(t->name, "d.", 2);
  if (!acc && !d) return;
  const int32_t p = text_param(g, t->name + (acc ? 5 : 2));
  t->primal = d ? text_find(g, t->name + 2) : -1;
  if (p < 0) return;
  t->param = p;
  t->cls = TC_CLS_GRAD;
  if (d) g->param[p].grad = t->id;
  if (acc) g->param[p].acc = g->param[p].grad = t->id;
}

static void text_layout(struct text_at *r, struct tc_tensor *t)
{
  if (text_take(r, "R")) t->annotated = true;
  for (;;) {
    const char *was = r->at;
    const int a = text_axis(r);
    if (a < 0 || !text_take(r, ":")) {
      r->at = was;
      return;
    }
    if (!text_place(r, &t->lay.on[a])) text_bad(r, "a placement is missing");
    t->annotated = true;
  }
}

/* NAME TYPE[SHAPE] PLACEMENTS: a new tensor. */
static int32_t text_new(struct text_at *r)
{
  char name[80];
  int64_t dim[TC_DIMS], stored = 0;
  int dtype = TC_F32, rank = 0, padded = -1;
  snprintf(name, sizeof name, "%s", text_name(r));
  name[strcspn(name, "'")] = '\0';
  text_blanks(r);
  for (int i = 0; i < TC_DTYPES; i++) {
    const size_t n = strlen(tc_dtype_name(i));
    if (strncmp(r->at, tc_dtype_name(i), n) || r->at[n] != '[') continue;
    dtype = i;
    r->at += n;
    break;
  }
  for (bool more = text_take(r, "["); more; more = text_take(r, ",")) {
    dim[rank] = text_number(r);
    if (text_take(r, "/")) stored = text_number(r), padded = rank;
    if (++rank > TC_DIMS) text_bad(r, "too many dimensions");
  }
  if (rank) text_need(r, "]");
  const int32_t id = tc_tensor_new(r->g, name, dtype, rank, dim);
  struct tc_tensor *t = &r->g->tensor[id];
  t->pad_dim = (int8_t)padded;
  t->pad_to = stored;
  text_layout(r, t);
  if (text_take(r, "host")) t->space = TC_HOST;
  text_by_name(r->g, t);
  return id;
}

static int32_t text_unit_new(struct tc_graph *g, const char *name)
{
  struct tc_unit u = { tc_pool_strdup(g->pool, name), -1, -1, 0, -1 };
  if (name[0] == 'h' && name[1] >= '0' && name[1] <= '9') u.layer = atoi(name + 1);
  const char *dot = strchr(name, '.');
  for (int32_t i = 0; dot && i < g->n_units; i++)
    if (!strncmp(g->unit[i].name, name, (size_t)(dot - name)) && !g->unit[i].name[dot - name]) u.parent = i;
  TC_GROW(g->unit, g->n_units, g->cap_units);
  g->unit[g->n_units] = u;
  return g->n_units++;
}

static int32_t text_unit(struct tc_graph *g, const char *name)
{
  for (int32_t u = 0; u < g->n_units; u++)
    if (!strcmp(g->unit[u].name, name)) return u;
  return text_unit_new(g, name);
}

static void text_read_unit(struct text_at *r)
{
  const int32_t id = text_unit(r->g, text_name(r));       /* may move the units */
  struct tc_unit *u = &r->g->unit[id];
  for (;;) {
    if (text_take(r, "layer ")) u->layer = (int32_t)text_number(r);
    else if (text_take(r, "stage ")) u->stage = (int32_t)text_number(r);
    else if (text_take(r, "at ")) u->at = (int32_t)text_number(r);
    else return;
  }
}

/* param NAME [SHAPE] [frozen] AXIS PLACE or AXIS STORE USE ACC UPDATE [use|mb|step], ... A bf16 parameter has an fp32 master. */
static void text_read_param(struct text_at *r)
{
  struct tc_graph *g = r->g;
  TC_GROW(g->param, g->n_params, g->cap_params);
  const int32_t id = g->n_params++, w = text_new(r);
  struct tc_param *p = &g->param[id];
  *p = (struct tc_param){ .name = g->tensor[w].name, .weight = w, .master = w, .state = { -1, -1 }, .acc = -1, .grad = -1,
                          .tied_acc = -1, .tied_grad = -1, .unit = g->cur_unit, .reshard_after = TC_AFTER_STEP,
                          .decay = 1, .lr = 1, .width = 1 };
  if (g->tensor[w].dtype == TC_BF16) {
    const struct tc_tensor x = g->tensor[w];
    char *use = tc_sprintf("use.%s", x.name);
    p->weight = tc_tensor_new(g, use, TC_BF16, x.rank, x.dim);
    free(use);
    g->tensor[p->weight].pad_dim = x.pad_dim;
    g->tensor[p->weight].pad_to = x.pad_to;
    g->tensor[w].dtype = TC_F32;
    g->tensor[w].cls = TC_CLS_OPT;
  }
  struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
  p->frozen = (text_blanks(r), text_take(r, "frozen"));
  for (int a; (a = text_axis(r)) >= 0; text_take(r, ",")) {
    struct tc_place place[TC_PLACES];
    int n = 0;
    while (n < TC_PLACES && text_place(r, &place[n])) n++;
    if (n != 1 && n != TC_PLACES) text_bad(r, "one or four placements");
    for (int k = 0; k < TC_PLACES; k++) all[k]->on[a] = place[n == 1 ? 0 : k];
    for (int k = TC_AFTER_USE; k <= TC_AFTER_STEP; k++)
      if (text_take(r, tc_word_parallel_keep(k))) p->reshard_after = (uint8_t)k;
  }
  const int32_t of[] = { p->master, p->weight };
  for (int i = 0; i < 2; i++) {
    struct tc_tensor *t = &g->tensor[of[i]];
    t->state = t->annotated = true;
    t->param = id;
    t->lay = i ? p->store : p->update;
  }
  g->tensor[p->weight].cls = TC_CLS_PARAM;
  g->tensor[p->master].saved = true;
}

/* What follows the name, shape and placements of an output: *acc, *first: as of its node. */
static int32_t text_output(struct text_at *r, bool *acc, bool *first)
{
  const int32_t t = text_new(r);
  struct tc_tensor x = r->g->tensor[t];
  text_blanks(r);
  if ((*acc = text_take(r, "+="))) {
    const char *const was = (text_blanks(r), r->at);
    *first = text_take(r, "first");
    if (!*first && !strchr(",=", *r->at)) {
      text_name(r);
      const bool op = strchr("<(", *r->at) || text_axis(r) >= 0;
      r->at = was;
      if (!op) x.overwrites = text_tensor(r);
    }
    if (!*first) *first = text_take(r, "first");
  } else if (text_take(r, "in ")) {
    x.overwrites = text_tensor(r);
  } else if (text_take(r, "rows ")) {
    x.base_row = text_number(r);
    text_need(r, "of ");
    x.base = text_tensor(r);
  } else if (text_take(r, "block ")) {
    text_need(r, "of ");
    x.base = text_tensor(r);
    x.block = true;
  }
  r->g->tensor[t] = x;
  return t;
}

static int text_op(const char *name, int *coll)
{
  *coll = -1;
  for (int i = 0; i < TC_COLLS; i++)
    if (!strcmp(tc_coll_name[i], name)) return *coll = i, TC_OP_RESHARD;
  for (int i = 0; i < TC_OPS; i++)
    if (!strcmp(tc_op_info[i].name, name)) return i;
  return -1;
}

/* What placements say about a reshard. */
static void text_reshard(struct tc_graph *g, struct tc_node *n, int coll, unsigned axes)
{
  const struct tc_tensor *a = &g->tensor[tc_in(g, n, 0)], *b = &g->tensor[tc_out(g, n, 0)];
  n->coll = (uint8_t)coll;
  n->axes = (uint8_t)axes;
  if (coll == TC_COPY) return;
  const struct tc_place from = *tc_place_on(&a->lay, axes), to = *tc_place_on(&b->lay, axes);
  n->to = to;
  n->red = from.kind == TC_P ? from.op : TC_SUM;
  n->root = to.kind == TC_AT ? to.at : from.at;
  n->from_root = from.at;
}

static void text_words(struct text_at *r, struct tc_node *n)
{
  static const char *const role[] = { "none", "gather", "grad", "store" };
  for (;;) {
    if (text_take(r, "max")) n->red = TC_MAX_OP;
    else if (text_take(r, "head")) n->head = true;
    else if (text_take(r, "all-stages")) n->on_all_stages = true;
    else if (text_take(r, "control")) n->control = true;
    else if (text_take(r, "on-host")) n->space = TC_HOST;
    else if (text_take(r, "k=")) n->attr.index = text_number(r);
    else if (text_take(r, "f=")) n->attr.number = strtof(r->at, (char **)(uintptr_t)&r->at);
    else if (text_take(r, "k3=")) n->attr.third = text_number(r);
    else if (text_take(r, "f2=")) n->attr.other = strtof(r->at, (char **)(uintptr_t)&r->at);
    else if (text_take(r, "of ")) n->forward = r->g->tensor[text_tensor(r)].node;
    else {
      int k = 1;
      while (k < 4 && !text_take(r, role[k])) k++;
      if (k == 4) return;
      n->role = (uint8_t)k;
    }
  }
}

static void text_read_node(struct text_at *r, int mark, bool once)
{
  struct tc_graph *g = r->g;
  int32_t out[16], in[64];
  int n_out = 0, n_in = 0, coll, acc = 0;
  unsigned axes = 0;
  bool first = false;
  do {
    bool adds, begins = false;
    TC_ASSERT(n_out < 16);
    out[n_out] = text_output(r, &adds, &begins);
    acc |= adds << n_out++;
    first |= begins;
  } while (text_take(r, ","));
  if (!text_take(r, "=") && !(acc >> (n_out - 1))) text_bad(r, "a = is missing");
  const int op = text_op(text_name(r), &coll);
  char rule[120] = "";
  if (op < 0) text_bad(r, "no such op");
  if (text_take(r, "<")) {
    const char *end = r->at;                     /* "->" contains a '>' */
    while (*end && (*end != '>' || end[-1] == '-')) end++;
    snprintf(rule, sizeof rule, "%.*s", (int)(end - r->at), r->at);
    r->at = end + 1;
  }
  for (bool more = coll >= 0 && coll != TC_COPY; more; more = text_take(r, "+")) axes |= 1u << text_axis(r);
  text_need(r, "(");
  for (bool more = !text_take(r, ")"); more; more = !text_take(r, ")")) {
    TC_ASSERT(n_in < 64);
    in[n_in++] = text_tensor(r);
    text_take(r, ",");
  }
  struct tc_node *n = tc_node_new(g, op, n_in, in, n_out, out);
  if (*rule) tc_node_rule(g, n, rule);
  if (coll >= 0) text_reshard(g, n, coll, axes);
  n->mark = (uint8_t)mark;
  n->once_a_step = once;
  n->acc = (uint8_t)acc;
  n->acc_first = first;
  text_words(r, n);
  for (int k = 0; k < n_out && coll < 0 && op != TC_OP_ACCUM; k++) {
    if (!(acc >> k & 1) || g->tensor[out[k]].param < 0) continue;
    TC_GROW(g->contribution, g->n_contributions, g->cap_contributions);
    g->contribution[g->n_contributions++] =
        (struct tc_contribution){ g->tensor[out[k]].param, n->id, (uint8_t)k };
  }
}

static void text_read_state(struct text_at *r)
{
  const int32_t id = text_new(r);                /* may move the tensors */
  struct tc_tensor *t = &r->g->tensor[id];
  t->state = t->annotated = true;
}

/* Owned by the caller. A text that is wrong ends the test. */
TAP_UNUSED
static struct tc_graph *read_program(const char *text)
{
  struct text_at r = { tc_graph_new(), text, text };
  while (*r.at) {
    int mark = 0;
    bool once = false;
    r.line = r.at;
    for (text_blanks(&r); strncmp(r.at, (const char[]){ "FBWU"[mark], '\0' }, 1) && mark < 3;) mark++;
    const bool marked = "FBWU"[mark] == *r.at && (r.at[1] == ' ' || (r.at[1] == '1' && r.at[2] == ' '));
    if (marked) once = r.at[1] == '1', r.at += 1 + once;
    else mark = TC_F;
    text_blanks(&r);
    const size_t word = strcspn(r.at, " :\n");
    const bool of_unit = r.at[word] == ':';
    if (!of_unit && text_take(&r, "unit ")) {
      text_read_unit(&r);
    } else {
      r.g->cur_unit = text_unit(r.g, of_unit ? text_name(&r) : "");
      r.at += of_unit;
    }
    if (text_take(&r, "param ")) text_read_param(&r);
    else if (text_take(&r, "state ")) text_read_state(&r);
    else if (*r.at != '\n' && *r.at) text_read_node(&r, mark, once);
    text_blanks(&r);
    if (*r.at && *r.at++ != '\n') r.at--, text_bad(&r, "the end of the line is missing");
  }
  r.g->cur_unit = text_unit(r.g, "");
  return r.g;
}

/* "mb2 pp1 dp2 tp2": all ranks are on one node. Owned by the caller. */
TAP_UNUSED
static struct tc_mesh *read_mesh(const char *text)
{
  struct text_at r = { NULL, text, text };
  int32_t size[TC_AXES], node[64] = { 0 };
  for (int a = 0; a < TC_AXES; a++) size[a] = 1;
  for (text_blanks(&r); *r.at; text_blanks(&r)) {
    int a = 0;
    while (a < TC_AXES && strncmp(r.at, text_axis_name(a), strlen(text_axis_name(a)))) a++;
    if (a == TC_AXES) text_bad(&r, "no such axis");
    r.at += strlen(text_axis_name(a));
    size[a] = (int32_t)text_number(&r);
  }
  struct tc_mesh_want w = { .order = TC_TP_DP_PP };
  int32_t world = 1;
  for (int k = 0; k < TC_SETS; k++)
    if (tc_set_has_option(k)) w.size[k] = tc_axes_size(size, tc_set_axes[k]);
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) world *= size[a];
  struct tc_mesh *m;
  struct tc_err err;
  if (tc_mesh_new(&m, world, node, &w, &err) < 0) text_bad(&r, err.text);
  m->size[TC_MB] = size[TC_MB];
  return m;
}

#endif
