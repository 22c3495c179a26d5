/* trail.c - where a difference of the forward pass begins.
 *
 * Each rank compares its block of an activation when it is there with what one rank had. Several versions of a tensor may
 * have one name, such as a product before and after its bias, which one rank adds in the product: the last one counts, and
 * what reshards make of it. In the loss head, whose chunks share names, nothing is compared, and no partial sum is. */
#include "src/prove/impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kept { char *name; int64_t elems; double norm, *value; };
struct tc_trail {
  struct kept *kept; int n, cap;
  int32_t first;                 /* place of the node in the program's order */
  struct tc_trail_end end;
};

struct tc_follower { struct tc_side *side; int rank; struct tc_device *device; struct tc_exec *exec; };

/* The place of a node in the program's order. */
static int32_t place_of(const struct tc_graph *g, const struct tc_node *n)
{
  int32_t at = 0;
  while (g->order[at] != n->id) at++;
  return at;
}

/* Whether no operation of the forward pass makes a later version of a tensor of this name. */
static bool is_last(const struct tc_graph *g, const struct tc_node *n, const char *name)
{
  for (int32_t i = place_of(g, n) + 1; i < g->n_order; i++) {
    const struct tc_node *x = &g->node[g->order[i]];
    for (int k = 0; k < x->n_out && x->mark == TC_F && x->op != TC_OP_RESHARD; k++)
      if (!strcmp(g->tensor[tc_out(g, x, k)].name, name)) return false;
  }
  return true;
}

static struct kept *find(struct tc_trail *t, const char *name)
{
  for (int i = 0; i < t->n; i++)
    if (!strcmp(t->kept[i].name, name)) return &t->kept[i];
  return NULL;
}

static bool is_partial(const struct tc_tensor *t, const struct tc_mesh *m)
{
  for (int a = 0; a < TC_AXES; a++)
    if (t->lay.on[a].kind == TC_P && (a == TC_MB || m->size[a] > 1)) return true;
  return false;
}

static void keep(struct tc_trail *t, const struct tc_tensor *x, const void *data)
{
  if (find(t, x->name)) return;
  struct kept k = { .name = tc_strdup(x->name), .elems = tc_tensor_elems(x) };
  k.value = tc_malloc((size_t)k.elems * sizeof *k.value);
  for (int64_t i = 0; i < k.elems; i++) {
    k.value[i] = tc_float_at(data, x->dtype, i);
    k.norm += k.value[i] * k.value[i];
  }
  TC_APPEND(t->kept, t->n, t->cap, k);
}

/* How a tensor was made: an operation, a reshard, or one after a reshard of an earlier version. */
static void describe(char *text, size_t size, const struct tc_graph *g, const struct tc_node *n, const struct tc_mesh *m,
                     const char *name)
{
  if (n->op == TC_OP_RESHARD) snprintf(text, size, "%s on %s", tc_coll_name[n->coll], tc_mesh_name(m, n->axes));
  else snprintf(text, size, "op %s", tc_op_info[n->op].name);
  for (int k = 0; k < n->n_in; k++) {
    const struct tc_tensor *x = &g->tensor[tc_in(g, n, k)];
    const struct tc_node *by = x->node < 0 ? NULL : &g->node[x->node];
    if (by && by->op == TC_OP_RESHARD && !strcmp(x->name, name) && n->op != TC_OP_RESHARD)
      tc_text_add(text, size, " after %s on %s", tc_coll_name[by->coll], tc_mesh_name(m, by->axes));
  }
}

static void note(struct tc_follower *f, const struct tc_graph *g, const struct tc_node *n, const char *name, int32_t mb,
                 double off)
{
  struct tc_side *s = f->side;
  struct tc_trail *t = s->trail;
  const int32_t at = place_of(g, n);
  pthread_mutex_lock(&s->lock);
  if (!t->end.found || at < t->first) {
    t->first = at;
    t->end = (struct tc_trail_end){ .found = true, .mb = mb, .rank = f->rank, .off = off };
    snprintf(t->end.tensor, sizeof t->end.tensor, "%s", name);
    describe(t->end.made, sizeof t->end.made, g, n, s->mesh, name);
  }
  pthread_mutex_unlock(&s->lock);
}

static void compare(struct tc_follower *f, const struct tc_graph *g, const struct tc_node *n, const struct tc_tensor *x,
                    const struct tc_local *l, const void *data, int32_t mb)
{
  const struct kept *k = find(f->side->trail, x->name);
  const double u = f->side->cfg->train_precision == TC_BF16 ? 3e-2 : 1e-5;
  double off = 0, size = 0;
  int64_t columns = 1;
  for (int d = 1; d < x->rank; d++) columns *= x->dim[d];
  if (!k || is_partial(x, f->side->mesh)) return;
  for (int64_t e = 0; e < l->elems; e++) {
    const int64_t at = tc_local_index(x, l, e), i = tc_natural_element(&g->rows, at, columns);
    if (at < 0) continue;
    const double by = tc_float_at(data, x->dtype, e) - k->value[i];
    off += by * by;
    size += k->value[i] * k->value[i];
  }
  off = sqrt(off) / (sqrt(size) + 1e-3 * sqrt(k->norm) + 1e-30);
  if (!(off <= u)) note(f, g, n, x->name, mb, off);
}

static void watch(void *ctx, const struct tc_graph *g, const struct tc_node *n, int32_t mb)
{
  struct tc_follower *f = ctx;
  struct tc_side *s = f->side;
  int32_t coord[TC_AXES];
  if (g->loss < 0 || n->mark != TC_F || n->head || n->op == TC_OP_DATA) return;
  memcpy(coord, s->mesh->coord + (size_t)f->rank * TC_AXES, sizeof coord);
  coord[TC_MB] = mb;
  for (int k = 0; k < n->n_out; k++) {
    const struct tc_tensor *x = &g->tensor[tc_out(g, n, k)];
    struct tc_local l;
    if (x->param >= 0 || x->rank < 2 || x->space != TC_DEVICE || !is_last(g, n, x->name)) continue;
    tc_tensor_local(x, s->mesh, coord, &l);
    if (!l.elems) continue;
    const int64_t bytes = l.elems * (int64_t)tc_dtype_bytes(x->dtype);
    struct tc_device *d = f->device;
    void *data = tc_malloc((size_t)bytes);
    d->ops->copy(d, data, tc_exec_tensor_of(f->exec, TC_TRAIN, x->id, mb), bytes);
    if (s->alone) keep(s->trail, x, data);
    else compare(f, g, n, x, &l, data, mb);
    free(data);
  }
}

struct tc_follower *tc_follow(struct tc_side *s, int rank, struct tc_exec_opts *o)
{
  struct tc_follower *f = tc_calloc(1, sizeof *f);
  *f = (struct tc_follower){ .side = s, .rank = rank, .device = o->device };
  o->watch = watch;
  o->watch_ctx = f;
  o->no_fusion = o->no_capture = true;           /* outputs within a group may be nowhere */
  return f;
}

void tc_follow_exec(struct tc_follower *f, struct tc_exec *x) { f->exec = x; }

struct tc_trail *tc_trail_new(void) { return tc_calloc(1, sizeof(struct tc_trail)); }

struct tc_trail_end tc_trail_end(struct tc_trail *t)
{
  struct tc_trail_end end = t->end;
  end.compared = t->n;
  for (int i = 0; i < t->n; i++) TC_FREE(t->kept[i].name, t->kept[i].value);
  TC_FREE(t->kept, t);
  return end;
}
