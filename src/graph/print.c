/* print.c - a program as text or as DOT, with placements, and with the bytes of reshards. */
#include "src/graph/graph.h"

/* The op's name, or that of the function, of an op that is one of several. */
static const char *name_of(const struct tc_node *n)
{
  static const struct { int op; int64_t act; const char *name; } function[] = {
    { TC_OP_ACT, TC_FN_GELU, "gelu_erf" }, { TC_OP_ACT_BWD, TC_FN_GELU, "gelu_erf_bwd" },
    { TC_OP_ACT, TC_FN_RELU2, "relu2" },   { TC_OP_ACT_BWD, TC_FN_RELU2, "relu2_bwd" },
    { TC_OP_GLU, TC_FN_GATE_GELU_TANH, "geglu" }, { TC_OP_GLU_BWD, TC_FN_GATE_GELU_TANH, "geglu_bwd" },
  };
  for (size_t i = 0; i < sizeof function / sizeof *function; i++)
    if (n->op == function[i].op && n->attr.act == function[i].act) return function[i].name;
  return tc_op_info[n->op].name;
}

static void print_tensor(FILE *f, const struct tc_graph *g, const struct tc_mesh *m, int32_t t)
{
  const struct tc_tensor *x = &g->tensor[t];
  char lay[128];
  fprintf(f, "%%%d %s %s[", t, x->name, tc_dtype_name(x->dtype));
  for (int d = 0; d < x->rank; d++) fprintf(f, "%s%lld", d ? "," : "", (long long)x->dim[d]);
  fprintf(f, "] %s", tc_layout_text(lay, sizeof lay, &x->lay, m));
  if (x->base >= 0) fprintf(f, " rows of %%%d", x->base);
  if (x->overwrites >= 0) fprintf(f, " in %%%d", x->overwrites);
}

static void print_reshard(FILE *f, const struct tc_graph *g, const struct tc_mesh *m,
                       const struct tc_node *n)
{
  int64_t bytes = 0;
  const int32_t zero[TC_AXES] = { 0 };
  for (int k = 0; k < n->n_in; k++) {
    int64_t in = tc_tensor_local_bytes(&g->tensor[tc_in(g, n, k)], m, zero);
    int64_t out = tc_tensor_local_bytes(&g->tensor[tc_out(g, n, k)], m, zero);
    bytes += TC_MAX(in, out);
  }
  char h[32];
  fprintf(f, " %s on %s, %d part%s, %s%s", tc_coll_name[n->coll], tc_mesh_name(m, n->axes), n->n_in, tc_plural(n->n_in), tc_human_bytes(h, sizeof h, (double)bytes),
          n->control ? ", ctl" : "");
}

static void print_text(FILE *f, const struct tc_graph *g, const struct tc_mesh *m)
{
  char mesh[TC_MESH_TEXT];
  fprintf(f, "# %d nodes, %d parameters, mesh mb%d %s\n", g->n_order, g->n_params, m->size[TC_MB],
          tc_mesh_text(mesh, m->size, "", " "));
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    fprintf(f, "%4d %c%s %-8s ", n->id, "FBWU"[n->mark], n->once_a_step ? "1" : " ",
            n->unit < g->n_units ? g->unit[n->unit].name : "");
    for (int k = 0; k < n->n_out; k++) {
      if (k) fprintf(f, ", ");
      print_tensor(f, g, m, tc_out(g, n, k));
    }
    fprintf(f, " = %s", name_of(n));
    if (n->rule) fprintf(f, "<%s>", n->rule);
    if (n->op == TC_OP_RESHARD) print_reshard(f, g, m, n);
    fprintf(f, "(");
    for (int k = 0; k < n->n_in; k++) fprintf(f, "%s%%%d", k ? ", " : "", tc_in(g, n, k));
    fprintf(f, ")%s\n", n->acc ? (n->acc_first ? " +=first" : " +=") : "");
  }
}

static void print_dot(FILE *f, const struct tc_graph *g, const struct tc_mesh *m)
{
  fprintf(f, "digraph program {\n  rankdir=TB; node [shape=box, fontsize=10];\n");
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    const char *colour = n->op == TC_OP_RESHARD ? "orange" :
                         (const char *[]){ "lightblue", "lightgreen", "khaki", "pink" }[n->mark];
    fprintf(f, "  n%d [label=\"%s%s%s\", style=filled, fillcolor=%s];\n", n->id,
            name_of(n), n->op == TC_OP_RESHARD ? " " : "",
            n->op == TC_OP_RESHARD ? tc_coll_name[n->coll] : "", colour);
    for (int k = 0; k < n->n_in; k++) {
      const struct tc_tensor *x = &g->tensor[tc_in(g, n, k)];
      char lay[128];
      if (x->node >= 0)
        fprintf(f, "  n%d -> n%d [label=\"%s\\n%s\", fontsize=8];\n", x->node, n->id, x->name,
                tc_layout_text(lay, sizeof lay, &x->lay, m));
    }
  }
  fprintf(f, "}\n");
}

void tc_graph_print(FILE *f, const struct tc_graph *g, const struct tc_mesh *m, bool dot)
{
  if (dot) print_dot(f, g, m);
  else print_text(f, g, m);
}
