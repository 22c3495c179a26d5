/* parameters.c - what one rank computed of each parameter, and what the ranks of a layout have of it. */
#include "src/prove/impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const tc_proof_part_name[TC_PROOF_PARTS] = { "gradient", "weight", "first moment", "second moment" };
const char *const tc_proof_class_name[TC_PROOF_CLASSES] = { "embedding", "attention", "mlp", "norms", "head" };

static int class_of(const char *name)
{
  static const struct { const char *part; int class; } row[] = {
    { "ln_", TC_PROOF_NORM }, { "_norm", TC_PROOF_NORM }, { ".attn.", TC_PROOF_ATTENTION }, { ".mlp.", TC_PROOF_MLP },
    { "lm_head", TC_PROOF_HEAD } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    if (strstr(name, row[i].part)) return row[i].class;
  return TC_PROOF_EMBEDDING;
}

double tc_float_at(const void *data, int dtype, int64_t i)
{
  if (dtype == TC_F64) return ((const double *)data)[i];
  return dtype == TC_BF16 ? (double)tc_bf16_to_f32(((const uint16_t *)data)[i]) : (double)((const float *)data)[i];
}

/* Where a part of a parameter is: the moments' tensors, or its master copy; -1: the optimizer has none, or it is frozen. With no first
 * moment the gradient is what the first step took from the weight. */
static int32_t tensor_of(const struct tc_param *p, int part)
{
  switch (part) {
  case TC_PROOF_V: return p->state[1];
  case TC_PROOF_M: return p->state[0];
  case TC_PROOF_GRADIENT: return p->frozen ? -1 : p->state[0] >= 0 ? p->state[0] : p->master;
  default: return p->master;
  }
}

static struct tc_kept *kept_of(struct tc_side *s, const struct tc_graph *g, int i, int part)
{
  struct tc_reference *r = s->ref;
  if (!r->param) {
    r->n_params = g->n_params;
    r->param = tc_calloc((size_t)g->n_params, sizeof *r->param);
  }
  struct tc_kept *k = &r->param[i];
  if (!k->name) {
    k->name = tc_strdup(g->param[i].name);
    k->class = class_of(k->name);
    k->elems = tc_tensor_elems(&g->tensor[g->param[i].master]);
  }
  if (!k->part[part]) k->part[part] = tc_calloc((size_t)k->elems, sizeof *k->part[part]);
  return k;
}

void tc_compare_part(struct tc_side *s, int part, const struct tc_graph *g, int rank, struct tc_exec *x, struct tc_device *d)
{
  const int32_t *coord = s->mesh->coord + (size_t)rank * TC_AXES;
  for (int32_t i = 0; i < g->n_params; i++) {
    const int32_t id = tensor_of(&g->param[i], part);
    if (id < 0) continue;
    const struct tc_tensor *t = &g->tensor[id];
    struct tc_kept *k = s->alone ? kept_of(s, g, i, part) : &s->ref->param[i];
    struct tc_local l;
    double off = 0;
    tc_tensor_local(t, s->mesh, coord, &l);
    const int64_t bytes = l.elems * (int64_t)tc_dtype_bytes(t->dtype);
    void *here = tc_malloc((size_t)bytes + 1);   /* the host may not reach the device's memory */
    d->ops->copy(d, here, tc_exec_tensor(x, TC_TRAIN, id), bytes);
    for (int64_t e = 0; e < l.elems; e++) {
      const int64_t w = tc_local_index(t, &l, e);
      if (w < 0) continue;
      const double got = tc_float_at(here, t->dtype, e), by = got - k->part[part][w];
      if (s->alone) k->part[part][w] = got;
      off += by * by;
    }
    free(here);
    if (s->alone) {
      k->norm[part] = off;                       /* of the change since the call before */
      continue;
    }
    pthread_mutex_lock(&s->lock);
    double *worst = &s->off[i * TC_PROOF_PARTS + part];
    if (!(off <= *worst)) *worst = off;          /* what is not a number stays */
    pthread_mutex_unlock(&s->lock);
  }
}
