/* cmd_graph.c - `tercio graph`: the program after a pass, as text or DOT. No MPI. */
#include "src/cmd/cmd.h"
#include "src/cmd/show_steps.h"
#include "src/program/setup.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Prints the list of actions; consecutive ones of a micro-batch are on one line. */
static void print_schedule(const struct tc_program *p)
{
  const struct tc_actions *s = p->actions;
  const char *const kind[] = { "run", "issue", "wait" };
  printf("# %d actions, %d micro-batches\n", s->n, s->n_mb);
  for (int32_t i = 0; i < s->n; i++) {
    const struct tc_action *a = &s->action[i];
    bool same = i && a->kind == TC_RUN && s->action[i - 1].kind == TC_RUN &&
                s->action[i - 1].mb == a->mb;
    if (!same) printf("%smb %d %-5s", i ? "\n" : "", a->mb, kind[a->kind]);
    printf(" %d", a->node);
  }
  printf("\n");
}

/* The nodes of each group; "or" where it shares one with a group above, so that a device takes one of them. */
static void print_fusions(const struct tc_program *p)
{
  const struct tc_fusions *f = p->fusions;
  bool *seen = tc_calloc((size_t)p->actions->n + 1, sizeof *seen);
  printf("# %d groups of operations that a device may run as one\n", f->n);
  for (int32_t i = 0; i < f->n; i++) {
    bool shared = false;
    for (int32_t k = 0; k < f->group[i].n; k++) {
      shared |= seen[tc_fusion_part(f, i, k)];
      seen[tc_fusion_part(f, i, k)] = true;
    }
    printf("%smb %d %s", shared ? "or " : "", f->group[i].mb, tc_fusion_rule[f->group[i].rule].name);
    for (int32_t k = 0; k < f->group[i].n; k++) printf(" %d", p->actions->action[tc_fusion_part(f, i, k)].node);
    printf("\n");
  }
  free(seen);
}

static void print_memory(const struct tc_program *p)
{
  char h[32];
  for (int space = 0; space < TC_SPACES; space++)
    for (int k = 0; k < TC_CLASSES; k++)
      if (space == TC_DEVICE || p->arena->by_class[space][k])
        printf("# %-6s %-13s %s\n", space ? "host" : "device", tc_class_name[k],
               tc_human_bytes(h, sizeof h, (double)p->arena->by_class[space][k]));
  for (int32_t t = 0; t < p->arena->n; t++)
    if (p->arena->off[t] >= 0)
      printf("%%%d %s: %s + %lld\n", t, p->graph->tensor[t].name,
             tc_region_name[p->arena->region[t]], (long long)p->arena->off[t]);
}

struct ask { const char *after, *world; int rank, program; bool dot; };   /* program: enum tc_program_kind */
#define FIELD(f) .field = offsetof(struct ask, f)
const struct tc_flag tc_flags_graph[] = {
  { "--after PASS", "the pass after which to print: build, stages, systems, grad, update, infer, recompute, "
    "merge, loss_chunks, buckets, schedule, arena, or groups (operations that a device may run as one)",
    .kind = TC_FLAG_TEXT, FIELD(after) },
  { "--program WORD", "the program that is printed: train (default), eval, init (initial weights) or refresh (what is derived "
    "from weights after loading)", "train, eval, init or refresh", TC_FLAG_WORD, FIELD(program) },
  { "--world N|CLUSTER", "number of ranks (default 1), or nodes and ranks, as in \"3 nodes x 8\" or \"2:8,4\"",
    .kind = TC_FLAG_TEXT,
    FIELD(world) },
  { "--rank R", "the rank whose program is printed (default 0)",
    "a number", TC_FLAG_INT, FIELD(rank), INT_MIN, INT_MAX },
  { "--dot", "print DOT, for Graphviz", .kind = TC_FLAG_YES, FIELD(dot) },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_RUN(tc_flags_graph, "graph");

/* The program, as a run has it: its state is where the training step has it. *out is owned by the caller. */
static int make_program(struct tc_program **out, const struct ask *ask, const struct tc_program_opts *o,
                        const struct tc_mesh *m, struct tc_err *err)
{
  const struct tc_program_opts mine = tc_program_opts_of(o, ask->program);
  struct tc_program *train = NULL;
  if (ask->program != TC_TRAIN) TC_TRY(tc_program_new(&train, o, m, ask->rank, NULL, NULL, err));
  const int rc = tc_program_new(out, &mine, m, ask->rank, train, ask->after, err);
  tc_program_free(train);
  return rc;
}

int tc_cmd_graph(int argc, char **argv)
{
  struct ask ask = { .after = "buckets", .world = "1" };
  struct tc_err err = { 0 };
  struct tc_config *c = NULL;
  struct tc_mesh *m = NULL;
  struct tc_program *p = NULL;
  struct tc_program_opts o;
  struct tc_annotation *rows = NULL;
  int world = 1;
  int32_t *node = NULL;
  int rc = tc_args_run(&c, &flags, &ask, argc, argv, &err);
  if (!rc) rc = tc_trained_of_run(c, &err);
  if (!rc) rc = tc_args_world(&world, &node, ask.world, &err);
  const char *after = ask.after;
  bool known = false;
  for (int i = 0; tc_pass_names[i]; i++) known |= !strcmp(after, tc_pass_names[i]);
  if (!rc && !known) {
    char list[256] = "";
    for (int i = 0; tc_pass_names[i]; i++)
      tc_text_add(list, sizeof list, " %s", tc_pass_names[i]);
    rc = tc_fail(&err, TC_EUSER, "--after %s is not a pass; the passes are%s", after, list);
  } else if (!rc && (ask.rank < 0 || ask.rank >= world)) {
    rc = tc_fail(&err, TC_EUSER, "--world %d --rank %d: give 0 <= rank < world", world, ask.rank);
  }
  if (!rc) tc_setup_precision(c, c->run_device == TC_DEVICE_CUDA);
  if (!rc) rc = tc_setup_mesh(&m, c, world, node, 0, &err);
  if (!rc) rc = tc_setup_program(&o, c, m, &rows, &err);
  if (!rc) rc = make_program(&p, &ask, &o, m, &err);
  if (!rc) {
    if (!strcmp(after, "schedule") && !ask.dot) print_schedule(p);
    else if (!strcmp(after, "arena") && !ask.dot) print_memory(p);
    else if (!strcmp(after, "groups") && !ask.dot) print_fusions(p);
    else {
      if (!ask.dot) tc_show_rows(c, p->graph, "# ");
      tc_graph_print(stdout, p->graph, m, ask.dot);
    }
  }
  free(node);
  tc_program_free(p);
  tc_mesh_free(m);
  tc_annotations_free(rows);
  tc_config_free(c);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
