/* linear.c - a product by a new weight, with its adapters and its bias. */
#include "src/model/impl.h"

#include <math.h>
#include <stdlib.h>

/* The product and the bias are two ops: a partial product is summed first. With muP a matrix between two widths that grow
 * (Yang et al., "Tensor programs V", 2022, table 8) begins smaller and changes slower in wider models. */
int32_t tc_build_linear(struct tc_build *b, int32_t x, const char *layer, const char *name,
                        const struct tc_product *p, bool biased, float std)
{
  char *wn = tc_sprintf("%s.weight", name), *bn = tc_sprintf("%s.bias", name);
  char *yn = tc_sprintf("%s%s", layer, name);
  const float width = tc_model_width(b->m);
  const int32_t w = tc_build_param(b, layer, wn, p->w_rank, p->w, std / sqrtf(width), 0);
  b->g->param[b->g->tensor[w].param].width = width;
  const int32_t bias = biased ? tc_build_param(b, layer, bn, p->b_rank, p->w, 0, 0) : -1;
  struct tc_param *matrix = &b->g->param[b->g->tensor[w].param];
  matrix->outputs = (uint8_t)p->b_rank, matrix->cut = (uint8_t)p->cut;
  if (biased) b->g->param[b->g->tensor[bias].param].decay = 0;
  int32_t y = tc_build_node(b, TC_OP_MATMUL, 2, (int32_t[]){ x, w }, yn, b->o->dtype, p->y_rank, p->y);
  tc_node_rule(b->g, tc_build_last(b), p->rule);
  y = tc_build_adapters(b, x, y, layer, name, p);
  if (biased) {
    y = tc_build_node(b, TC_OP_BIAS, 2, (int32_t[]){ y, bias }, yn, b->o->dtype, p->y_rank, p->y);
    tc_node_rule(b->g, tc_build_last(b), p->bias_rule);
  }
  TC_FREE(wn, bn, yn);
  return y;
}
