/* systems.c - the table. See docs/placements.md for the notation. */
#include "src/systems.h"

#include <fnmatch.h>
#include <string.h>

#define R { TC_R, 0, 0, 0 }
#define P { TC_P, 0, 0, 0 }

const struct tc_system tc_systems[] = {
  /* name    store use  acc  update */
  { "ddp",   R,    R,   P,   R,   "every rank holds everything; gradients are all-reduced" },
  { NULL,    R,    R,   R,   R,   NULL }
};

const struct tc_system *tc_system_find(const char *name)
{
  for (const struct tc_system *s = tc_systems; s->name; s++)
    if (!strcmp(s->name, name)) return s;
  return NULL;
}

static void annotate(struct tc_graph *g, int32_t tensor, const struct tc_layout *lay)
{
  if (tensor < 0) return;
  g->tensor[tensor].lay = *lay;
  g->tensor[tensor].annotated = true;
}

void tc_system_apply(struct tc_graph *g, const struct tc_system *s)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    struct tc_param *p = &g->param[i];
    p->store.on[TC_DP] = s->store;
    p->use.on[TC_DP] = s->use;
    p->acc_lay.on[TC_DP] = s->acc;
    p->update.on[TC_DP] = s->update;
    annotate(g, p->weight, &p->store);
    annotate(g, p->master, &p->update);
    annotate(g, p->m, &p->update);
    annotate(g, p->v, &p->update);
    annotate(g, p->acc, &p->acc_lay);
  }
  struct tc_layout batch = tc_layout_r();
  batch.on[TC_MB] = batch.on[TC_DP] = (struct tc_place){ TC_S, 0, 0, 0 };
  annotate(g, g->tokens, &batch);
  annotate(g, g->targets, &batch);
}

static int put(struct tc_layout *l, const struct tc_annotation *a, const char *name, bool fresh,
               struct tc_err *err)
{
  struct tc_layout was = tc_layout_r(), is = tc_layout_r();
  was.on[0] = l->on[a->axis];
  is.on[0] = a->place;
  if (!fresh && was.on[0].kind != TC_R && !tc_layout_equal(&was, &is))
    return tc_fail(err, TC_EUSER, "annotation %s on %s places %s where another already placed it "
                   "differently", a->pattern, tc_axis_name[a->axis], name);
  l->on[a->axis] = a->place;
  return 0;
}

int tc_annotate(struct tc_graph *g, const struct tc_annotation *a, struct tc_err *err)
{
  for (; a && a->pattern; a++) {
    int hits = 0;
    for (int32_t i = 0; i < g->n_params; i++) {
      struct tc_param *p = &g->param[i];
      if (fnmatch(a->pattern, p->name, 0)) continue;
      hits++;
      struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
      for (int k = 0; k < 4; k++) TC_TRY(put(all[k], a, p->name, false, err));
      annotate(g, p->weight, &p->store);
      annotate(g, p->master, &p->update);
    }
    for (int32_t t = 0; t < g->n_tensors; t++) {
      struct tc_tensor *x = &g->tensor[t];
      if (x->param >= 0 || fnmatch(a->pattern, x->name, 0)) continue;
      hits++;
      TC_TRY(put(&x->lay, a, x->name, !x->annotated, err));
      x->annotated = true;
    }
    if (!hits)
      return tc_fail(err, TC_EUSER, "annotation %s names no tensor; tercio graph --after build "
                     "lists them", a->pattern);
  }
  return 0;
}
