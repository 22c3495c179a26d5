/* t_print.c - programs as text and as DOT: which function an op is, if it is one of several. The rest is in
 * tests/transcripts/graph.txt. */
#include "tests/unit/program_text.h"

static const struct { const char *node, *name; } cases[] = {
  { "gelu(x)", "gelu" },
  { "gelu(x) k3=1", "gelu_erf" },
  { "gelu(x) k3=2", "relu2" },
  { "gelu_bwd(x, x) k3=1", "gelu_erf_bwd" },
  { "gelu_bwd(x, x) k3=2", "relu2_bwd" },
  { "swiglu(g)", "swiglu" },
  { "swiglu(g) k3=1", "geglu" },
  { "swiglu_bwd(x, g) k3=1", "geglu_bwd" },
  { "rope(q) k3=2", "rope" },
};

static char *printed(const struct tc_graph *g, bool dot)
{
  char *text = NULL;
  size_t size;
  struct tc_mesh *m = read_mesh("mb1");
  FILE *f = open_memstream(&text, &size);
  tc_graph_print(f, g, m, dot);
  fclose(f);
  tc_mesh_free(m);
  return text;
}

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *y = strstr(cases[i].node, "swiglu_bwd") ? "[8,2,4]" : strstr(cases[i].node, "rope") ? "[8,1,3,4]" : "[8,4]";
    char *program = tc_sprintf("state x [8,4]\nstate g [8,2,4]\nstate q [8,1,3,4]\nh0: y %s = %s\n", y, cases[i].node);
    char *call = tc_sprintf(" = %s(", cases[i].name), *label = tc_sprintf("[label=\"%s\"", cases[i].name);
    struct tc_graph *g = read_program(program);
    char *text = printed(g, false), *dot = printed(g, true);
    ok(strstr(text, call) && strstr(dot, label), "%s is %s", cases[i].node, cases[i].name);
    TC_FREE(program, call, label, text, dot);
    tc_graph_free(g);
  }
  return done_testing();
}
