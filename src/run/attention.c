/* attention.c - whether a library computes attention (run.attention = auto), the same on all ranks.
 *
 * Each rank's device knows whether it could, once its calls are prepared (struct tc_library). The library's row
 * statistics have an order of their own, so nothing but attention itself and its gradient may read them. Its gradients may
 * differ from one computation to the next (run.deterministic = no) and from one GPU to another, so no two ranks may compute
 * the same ones: they would update copies of a weight differently. One rank that cannot, or would with another version,
 * decides for all: else ranks would compute the terms of one sum in different ways. */
#include "src/run/impl.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

const char *tc_run_attention_moved(const struct tc_graph *g)
{
  bool *is = tc_calloc((size_t)g->n_tensors, sizeof *is);
  const char *name = NULL;
  for (int32_t i = 0; i < g->n_nodes; i++)
    if (g->node[i].op == TC_OP_ATTN) is[tc_tensor_root(g, tc_out(g, &g->node[i], 1))] = true;
  for (int32_t i = 0; i < g->n_nodes && !name; i++) {
    const struct tc_node *n = &g->node[i];
    for (int k = 0; n->op != TC_OP_ATTN && n->op != TC_OP_ATTN_BWD && k < n->n_in; k++)
      if (is[tc_tensor_root(g, tc_in(g, n, k))]) name = g->tensor[tc_in(g, n, k)].name;
  }
  free(is);
  return name;
}

const char *tc_run_attention_copied(const struct tc_graph *g, const struct tc_mesh *m)
{
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct tc_node *n = &g->node[i];
    if (n->op != TC_OP_ATTN_BWD) continue;
    const struct tc_tensor *dqkv = &g->tensor[tc_out(g, n, 0)];
    for (int axis = TC_FIRST_AXIS; axis < TC_AXES; axis++)
      if (axis != TC_PP && m->size[axis] > 1 && dqkv->lay.on[axis].kind == TC_R) return dqkv->name;
  }
  return NULL;
}

/* What is wrong with a program for the library. NULL: nothing. */
static char *against(const struct tc_graph *g, const struct tc_mesh *m)
{
  const char *moved = tc_run_attention_moved(g), *copied = tc_run_attention_copied(g, m);
  if (moved) return tc_sprintf("%.200s is resharded between forward and backward", moved);
  if (copied) return tc_sprintf("%.200s is computed by several ranks, which need the same bits", copied);
  return NULL;
}

static void ask(struct tc_run *r, struct tc_attention_answer *mine)
{
  const struct tc_library *l = r->device->ops->library;
  char *why = NULL;
  memset(mine, 0, sizeof *mine);
  mine->plans = l ? l->can(r->device, mine->text, sizeof mine->text) : -1;
  if (!l) snprintf(mine->text, sizeof mine->text, "device %s has no kernels but its own", r->device->ops->name);
  struct tc_program **all;
  const int n = tc_run_all_programs(r, &all);
  for (int i = 0; i < n && !why && mine->plans > 0; i++)
    if (all[i]) why = against(all[i]->graph, all[i]->mesh);
  free(all);
  if (!why) return;
  mine->plans = -1;
  snprintf(mine->text, sizeof mine->text, "%s", why);
  free(why);
}

bool tc_run_attention_choose(const struct tc_attention_answer *all, int n, char *const *rank_names, char *text,
                             size_t size)
{
  int first = -1;
  for (int i = 0; i < n; i++) {
    if (all[i].plans < 0) {
      snprintf(text, size, "%s: %s", rank_names[i], all[i].text);
      return false;
    }
    if (!all[i].plans) continue;
    if (first < 0) first = i;
    if (!strcmp(all[i].text, all[first].text)) continue;
    snprintf(text, size, "%s has %s, %s has %s", rank_names[first], all[first].text, rank_names[i], all[i].text);
    return false;
  }
  if (first >= 0) snprintf(text, size, "%s", all[first].text);
  else snprintf(text, size, "it needs bf16, a head size that is a multiple of 8 up to 128, "
                "a context that is a multiple of 128, data.documents = join, and queries, keys and values of a "
                "micro-batch of less than 2^31 numbers");
  return first >= 0;
}

/* *use and text[size]: rank 0's choice from all answers. */
static int agree(struct tc_run *r, const struct tc_attention_answer *mine, bool *use, char *text, size_t size,
                 struct tc_err *err)
{
  int64_t *bytes = tc_calloc((size_t)r->ranks->world, sizeof *bytes), len = 0;
  void *all = NULL, *choice = NULL;
  int rc = tc_comm_bytes_gather(r->world, 0, mine, sizeof *mine, &all, bytes, err);
  if (!rc && all) {
    *use = tc_run_attention_choose(all, r->ranks->world, r->rank_names, text, size);
    choice = tc_sprintf("%c%s", *use ? '+' : '-', text);
    len = (int64_t)strlen(choice) + 1;           /* with its end */
  }
  if (!rc) rc = tc_comm_bytes_bcast(r->world, 0, &choice, &len, err);
  if (!rc) *use = *(char *)choice == '+', snprintf(text, size, "%s", (char *)choice + 1);
  TC_FREE(choice, all, bytes);
  return rc;
}

int tc_run_attention(struct tc_run *r, struct tc_err *err)
{
  struct tc_attention_answer mine;
  char text[600] = "";
  bool use = false;
  if (r->cfg->run_attention == TC_ATTENTION_OWN || !tc_run_may_have_gpu(r)) return 0;
  tc_at_phase("choosing kernels of attention");
  ask(r, &mine);
  TC_TRY(agree(r, &mine, &use, text, sizeof text, err));
  if (r->device->ops->library) r->device->ops->library->use(r->device, use);
  r->attention = use ? tc_strdup(text) : tc_sprintf("own kernels: %s", text);
  if (use) tc_run_add_versions(r);
  if (r->rank == 0 && use) tc_log("attention is by %s (run.deterministic = %s)", text,
                                  r->cfg->run_deterministic ? "yes" : "no");
  else if (r->rank == 0) tc_log("attention stays with the device's own kernels: %s", text);
  return 0;
}
