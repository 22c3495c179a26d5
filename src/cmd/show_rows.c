/* show_rows.c - what train.rows and model.mup make of a model's parameters, a line for those that are treated alike. No MPI. */
#include "src/cmd/show_steps.h"
#include "src/model/optim.h"
#include "src/program/setup.h"

#include <stdio.h>
#include <stdlib.h>

static bool alike(const struct tc_param *a, const struct tc_param *b)
{
  if (a->frozen || b->frozen) return a->frozen == b->frozen;
  return a->kind == b->kind && a->lr == b->lr && a->decay == b->decay && a->width == b->width && a->init_std == b->init_std;
}

/* "3 of 10 parameters, 4.2k elements: lr x 0.5, decay x 1, std 0.02, adamw: wte.weight, ..." */
static void print_alike(const struct tc_graph *g, int32_t first, const char *before)
{
  enum { NAMES = 3 };
  const struct tc_param *p = &g->param[first];
  char names[400] = "", elements[32];
  int64_t elems = 0;
  int n = 0;
  for (int32_t i = first; i < g->n_params; i++) {
    if (!alike(p, &g->param[i])) continue;
    elems += tc_tensor_elems(&g->tensor[g->param[i].master]);
    if (n < NAMES) tc_text_add(names, sizeof names, "%s%s", n ? ", " : "", g->param[i].name);
    n++;
  }
  printf("%s%d of %d parameters, %s elements: ", before, n, g->n_params, tc_human_count(elements, sizeof elements, (double)elems));
  if (p->frozen) printf("frozen");
  else printf("lr x %.4g, decay x %.4g, std %.4g, %s", (double)(p->lr / tc_update_width(p)),
              (double)(p->decay * tc_update_width(p)),
              (double)p->init_std, tc_word_train_optimizer(tc_update_row[p->kind].optimizer));
  printf(": %s%s\n", names, n > NAMES ? ", ..." : "");
}

void tc_show_rows(const struct tc_config *c, const struct tc_graph *g, const char *before)
{
  bool any = *c->train_rows;
  for (int32_t i = 0; i < g->n_params; i++) any |= g->param[i].width != 1;
  for (int32_t i = 0; any && i < g->n_params; i++) {
    int32_t first = 0;
    while (!alike(&g->param[first], &g->param[i])) first++;
    if (first == i) print_alike(g, i, before);
  }
}

int tc_show_rows_of(const struct tc_config *c, bool print, struct tc_err *err)
{
  struct tc_graph *g;
  TC_TRY(tc_setup_parameters(&g, c, err));
  if (print) tc_show_rows(c, g, "");
  tc_graph_free(g);
  return 0;
}
