/* t_attention_choice.c - whether a library computes attention, from what each rank could do, and whether a program
 * keeps its row statistics where they are made and computes each gradient of attention on one rank. */
#include "src/program/setup.h"
#include "src/run/impl.h"
#include "tests/unit/plan_config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *const names[] = { "rank 0 on a", "rank 1 on a", "rank 2 on b" };

static void choice(struct tc_attention_answer a, struct tc_attention_answer b, struct tc_attention_answer c, bool want,
                   const char *say, const char *what)
{
  const struct tc_attention_answer all[] = { a, b, c };
  char text[600] = "";
  const bool got = tc_run_attention_choose(all, 3, names, text, sizeof text);
  ok(got == want && strstr(text, say), "%s: %s, %s", what, got ? "yes" : "no", text);
}

/* Programs on 8 ranks; in none of them statistics move, until another op reads them. copied: ranks compute the same
 * attention. */
static void moved(const char *name, bool copied, struct tc_config *cfg)
{
  struct tc_mesh *mesh = NULL;
  struct tc_annotation *rows = NULL;
  struct tc_program_opts o;
  struct tc_program *p = NULL;
  struct tc_err err = { 0 };
  const int32_t node[8] = { 0 };
  int rc = tc_setup_mesh(&mesh, cfg, 8, node, 0, &err);
  if (!rc) rc = tc_setup_program(&o, cfg, mesh, &rows, &err);
  if (!rc) rc = tc_program_new(&p, &o, mesh, 0, NULL, NULL, &err);
  if (!ok(rc == 0, "%s: a program %s", name, err.text)) return;
  const char *is = tc_run_attention_moved(p->graph);
  ok(!is, "... keeps its row statistics%s%s", is ? ", but " : "", is ? is : "");
  const char *twice = tc_run_attention_copied(p->graph, mesh);
  ok(!twice == !copied, "... each gradient of attention is computed by %s%s%s", copied ? "several ranks" : "one rank",
     twice ? ": " : "", twice ? twice : "");
  int32_t n = 0;
  while (p->graph->node[n].op != TC_OP_ATTN_BWD) n++;
  p->graph->node[n].op = TC_OP_RESHARD;
  is = tc_run_attention_moved(p->graph);
  ok(is && !strcmp(is, "lse"), "... not where something else reads them: %s", is ? is : "");
  tc_program_free(p);
  tc_annotations_free(rows);
  tc_mesh_free(mesh);
  tc_config_free(cfg);
}

#define MODEL "--model.layers=4", "--model.hidden=64", "--model.heads=4", "--model.context=128", "--model.vocab=256", \
    "--train.precision=bf16", "--train.global_batch=16", "--train.micro_batch=1"

int main(void)
{
  const struct tc_attention_answer one = { 1, "cuDNN 9.19.0" }, two = { 2, "cuDNN 9.19.0" };
  const struct tc_attention_answer old = { 1, "cuDNN 9.18.0" };
  const struct tc_attention_answer none = { 0, "no call" }, no = { -1, "no module" };
  alarm(300);
  choice(one, one, one, true, "cuDNN 9.19.0", "all could");
  choice(one, two, one, true, "cuDNN 9.19.0", "... with other shapes on one");
  choice(none, one, none, true, "cuDNN 9.19.0", "... where one alone has attention");
  choice(one, one, no, false, "rank 2 on b: no module", "one could not");
  choice(no, one, no, false, "rank 0 on a: no module", "two could not: the first is named");
  choice(none, none, no, false, "rank 2 on b: no module", "one could not, the others have no attention");
  choice(one, old, one, false, "rank 0 on a has cuDNN 9.19.0, rank 1 on a has cuDNN 9.18.0", "another version");
  choice(none, one, old, false, "rank 1 on a has cuDNN 9.19.0, rank 2 on b has cuDNN 9.18.0",
         "... beside one without attention");
  choice(none, none, none, false, "it needs bf16", "no call is for it");
  moved("data parallel", false, CONFIG(MODEL));
  moved("ZeRO-3, recomputed", false, CONFIG(MODEL, "--parallel.data=zero3", "--train.recompute=full"));
  moved("selectively", false, CONFIG(MODEL, "--train.recompute=selective"));
  moved("tensor and sequence parallel", false, CONFIG(MODEL, "--mesh.tp=4", "--parallel.sequence=yes"));
  moved("stages", false, CONFIG(MODEL, "--mesh.pp=4", "--parallel.schedule=zb"));
  moved("no parallel system", true, CONFIG(MODEL, "--parallel.data=none"));
  moved("... in one row of stages", false, CONFIG(MODEL, "--model.layers=8", "--parallel.data=none", "--mesh.pp=8"));
  char file[] = "/tmp/tc-rows-XXXXXX";
  const int fd = mkstemp(file);
  static const char rows[] = "*.mlp.fc.* tp S(0)\n*.mlp.proj.weight tp S(1)\n";
  if (fd < 0 || write(fd, rows, sizeof rows - 1) != (ssize_t)sizeof rows - 1) printf("Bail out! %s\n", file), exit(1);
  close(fd);
  char *annotations = tc_sprintf("--parallel.annotations=%s", file);
  moved("tensor parallel MLP alone", true, CONFIG(MODEL, "--mesh.tp=2", annotations));
  free(annotations);
  unlink(file);
  return done_testing();
}
