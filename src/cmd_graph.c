/* cmd_graph.c - `tercio graph`: the program after a pass, as text or DOT. No MPI. */
#include "src/config.h"
#include "src/setup.h"

#include <stdlib.h>
#include <string.h>

int tc_cmd_graph(int argc, char **argv)
{
  const char *const extra[] = { "after=", "dot", "rank=", "world=", NULL };
  const char *val[4] = { NULL };
  struct tc_err err = { 0 };
  struct tc_config *c = NULL;
  struct tc_mesh *m = NULL;
  struct tc_program *p = NULL;
  struct tc_program_opts o;
  int rc = tc_config_new(&c, argc, argv, extra, val, &err);
  if (rc < 0) return tc_cmd_fail(&err);
  int world = val[3] ? atoi(val[3]) : 1, rank = val[2] ? atoi(val[2]) : 0;
  const char *after = val[0] ? val[0] : "units";
  bool known = false;
  for (int i = 0; tc_pass_names[i]; i++) known |= !strcmp(after, tc_pass_names[i]);
  if (!known) {
    char list[256] = "";
    for (int i = 0; tc_pass_names[i]; i++)
      snprintf(list + strlen(list), sizeof list - strlen(list), " %s", tc_pass_names[i]);
    rc = tc_fail(&err, TC_EUSER, "--after %s is not a pass; the passes are%s", after, list);
  } else if (world < 1 || rank < 0 || rank >= world) {
    rc = tc_fail(&err, TC_EUSER, "--world %d --rank %d: give 0 <= rank < world", world, rank);
  }
  int32_t *node = tc_calloc((size_t)TC_MAX(world, 1), sizeof *node);
  if (!rc) rc = tc_setup_mesh(&m, c, world, node, 0, &err);
  if (!rc) rc = tc_setup_program(&o, c, m, &err);
  if (!rc) rc = tc_program_new(&p, &o, m, rank, NULL, after, &err);
  if (!rc) {
    tc_graph_print(stdout, p->graph, m, val[1] != NULL);
    if (p->arena) {
      char h[32];
      for (int k = 0; k < TC_CLASSES; k++)
        printf("# %-13s %s\n", tc_class_name[k],
               tc_human_bytes(h, sizeof h, (double)p->arena->by_class[k]));
    }
  }
  free(node);
  tc_program_free(p);
  tc_mesh_free(m);
  tc_config_free(c);
  return rc < 0 ? tc_cmd_fail(&err) : 0;
}
