/* setup_parameters.c - the parameters of a run's model, as its optimizer and train.rows have them. Pure. */
#include "src/model/optim.h"
#include "src/model/transformer.h"
#include "src/passes/passes.h"
#include "src/program/setup.h"

#include <string.h>

int tc_setup_parameters(struct tc_graph **out, const struct tc_config *c, struct tc_err *err)
{
  struct tc_model m;
  struct tc_lora lora;
  *out = NULL;
  TC_TRY(tc_setup_model(c, &m, err));
  TC_TRY(tc_setup_lora(&lora, c, &m, err));
  struct tc_graph *g = tc_graph_new();
  tc_model_build(g, &m, &(struct tc_build_opts){ .batch = 1, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1, .lora = lora });
  tc_optim_choose(g, tc_update_of(c->train_optimizer, c->train_momentum));
  const int rc = tc_param_rows(g, c->train_rows, c->train_momentum, err);
  if (rc < 0) tc_graph_free(g);
  else *out = g;
  return rc;
}

/* Whether rows of a parameter are looked up, which is no product: an embedding that is not the head, too. */
static bool is_looked_up(const struct tc_graph *g, const struct tc_param *p)
{
  bool head = false;
  for (int32_t i = 0; i < g->n_params; i++) head |= !strcmp(g->param[i].name, "lm_head.weight");
  return head && !strcmp(p->name, "wte.weight");
}

int tc_setup_parameter_sums(struct tc_parameter_sums *out, const struct tc_config *c, struct tc_err *err)
{
  struct tc_graph *g;
  TC_TRY(tc_setup_parameters(&g, c, err));
  *out = (struct tc_parameter_sums){ .all = 0 };
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_param *p = &g->param[i];
    const double n = (double)tc_tensor_elems(&g->tensor[p->master]);
    const bool rounded = p->base && c->train_precision == TC_BF16 && c->train_frozen_type != TC_F32;
    out->all += n;
    out->saved_bytes += g->tensor[p->master].saved ? n * (double)tc_dtype_bytes(rounded ? TC_BF16 : TC_F32) : 0;
    out->trained += p->frozen ? 0 : n;
    out->states += p->frozen ? 0 : n * tc_update_states(p);
    out->flops += c->train_lora && !p->base ? 6 * n : p->frozen && !is_looked_up(g, p) ? -2 * n : 0;
  }
  tc_graph_free(g);
  return 0;
}
