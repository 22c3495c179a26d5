/* weights.c - a run's state from a checkpoint: the saved tensors (fp32 weights, the optimizer's state), of which a rank reads
 * the boxes that it stores, from whichever files have them. Or weights alone, from another program's model. */
#include "src/run/run.h"
#include "src/foreign/digest.h"
#include "src/foreign/stored.h"
#include "src/graph/shard_box.h"

#include <string.h>

void tc_run_state(const struct tc_run *r, struct tc_run_state *s)
{
  const struct tc_graph *g = r->prog[tc_kinds_of(r->use).first]->graph;
  s->tensor = tc_calloc((size_t)g->n_tensors, sizeof *s->tensor);
  s->id = tc_calloc((size_t)g->n_tensors, sizeof *s->id);
  s->n = 0;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    const struct tc_tensor *x = &g->tensor[t];
    if (!x->state || !x->saved) continue;
    s->tensor[s->n] = (struct tc_ckpt_tensor){ .name = x->name, .dtype = x->dtype,
                                               .rank = x->rank };
    memcpy(s->tensor[s->n].dim, x->dim, sizeof x->dim);
    s->id[s->n++] = t;
  }
}

void tc_run_state_free(struct tc_run_state *s)
{
  TC_FREE(s->tensor, s->id);
}

/* Where a box goes in a rank's memory. */
struct loading { struct tc_device *d; const struct tc_tensor *x; char *p; };

static void put_part(void *loading, const struct tc_box *part, const void *value)
{
  struct loading *l = loading;
  const int64_t bytes = tc_box_bytes(l->x->dtype, l->x->rank, part->count);
  l->d->ops->copy(l->d, l->p, value, bytes);
  l->p += bytes;
}

/* Reads a box into the rank's memory at `p`, as the tensor's type. */
static int load_box(const struct tc_run *r, const struct tc_stored *s, int k, const struct tc_tensor *x,
                    const struct tc_box *box, char *p, struct tc_err *err)
{
  struct loading l = { r->device, x, p };
  if (x->dtype == tc_stored_at(s, k)->dtype && !r->device->ops->separate) return tc_stored_read(s, k, box, p, err);
  return tc_stored_parts(s, k, box, x->dtype, put_part, &l, err);
}

/* Whether a tensor is a weight beside adapters. */
static bool is_of_base(const struct tc_graph *g, const struct tc_tensor *x)
{
  return x->param >= 0 && g->param[x->param].base && x->id == g->param[x->param].master;
}

/* Whether a tensor is a state of an update. */
static bool is_of_optimizer(const struct tc_graph *g, const struct tc_tensor *x)
{
  return x->param >= 0 && x->id != g->param[x->param].master;
}

/* Whether a saved tensor's numbers can be this one's: of the same type; weights that are used in bf16 alone are saved in fp32;
 * so are those that are frozen; an update's states may be of the other train.state_type, for which ckpt.changed has been asked. */
static bool fits(const struct tc_run *r, const struct tc_graph *g, const struct tc_tensor *x,
                 const struct tc_ckpt_tensor *saved)
{
  const bool types = (saved->dtype == TC_F32 && x->dtype == TC_BF16) || (saved->dtype == TC_BF16 && x->dtype == TC_F32);
  return tc_ckpt_has_shape(saved, x->rank, x->dim)
         && (saved->dtype == x->dtype || (r->use != TC_TO_TRAIN && saved->dtype == TC_F32 && x->dtype == TC_BF16)
             || (types && (is_of_optimizer(g, x) || is_of_base(g, x))));
}

static int load_tensor(const struct tc_run *r, const struct tc_stored *s, int32_t id, struct tc_err *err)
{
  const int main = tc_kinds_of(r->use).first;
  const struct tc_graph *g = r->prog[main]->graph;
  const struct tc_tensor *x = &g->tensor[id];
  int k = tc_stored_find(s, x->name);
  if (k < 0)
    return tc_fail(err, TC_EUSER, "%s has no tensor %s: if it was saved with another "
                   "train.optimizer, train.momentum or train.rows, take its weights alone (another run.out, ckpt.from_state = weights)",
                   tc_stored_path(s), x->name);
  if (!fits(r, g, x, tc_stored_at(s, k)))
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another shape or type than this model's",
                   tc_stored_path(s), x->name);
  char *p = tc_exec_tensor(r->exec, tc_run_index(r, main), id);
  struct tc_box box[TC_BOXES];
  int n = tc_stored_boxes(x, r->mesh, r->rank, box);
  for (int b = 0; b < n; b++) {
    TC_TRY(load_box(r, s, k, x, &box[b], p, err));
    p += tc_box_bytes(x->dtype, x->rank, box[b].count);
  }
  return 0;
}

static bool is_state_name(const char *name) { return strncmp(name, "optim.", 6) == 0; }

/* The next checkpoint would lack states that this one has. */
static int check_kept(const struct tc_stored *from, const struct tc_run_state *s, struct tc_err *err)
{
  for (int k = 0; k < tc_ckpt_n(from->ckpt); k++) {
    const char *name = tc_stored_at(from, k)->name;
    bool kept = !is_state_name(name);
    for (int i = 0; i < s->n && !kept; i++) kept = strcmp(name, s->tensor[i].name) == 0;
    if (!kept)
      return tc_fail(err, TC_EUSER, "%s has %s, which this run would lose: it was saved with another train.optimizer, train.momentum "
                     "or train.rows. Set them as they were, or take its weights alone (another run.out, ckpt.from_state = weights)",
                     tc_stored_path(from), name);
  }
  return 0;
}

/* Whether a load takes a tensor. The weights beside adapters may be left out of checkpoints. */
static bool takes(const struct tc_graph *g, const struct tc_tensor *x, unsigned how)
{
  if (is_of_base(g, x)) return !(how & TC_LOAD_ADAPTERS);
  return x->state && x->saved && !(how & TC_LOAD_BASE) && !(how & TC_LOAD_WEIGHTS && is_of_optimizer(g, x));
}

static int load_all(const struct tc_run *r, const struct tc_stored *from, unsigned how, struct tc_err *err)
{
  const struct tc_graph *g = r->prog[tc_kinds_of(r->use).first]->graph;
  struct tc_run_state s;
  int rc = 0;
  tc_run_state(r, &s);
  for (int32_t t = 0; t < g->n_tensors && !rc; t++)
    if (takes(g, &g->tensor[t], how)) rc = load_tensor(r, from, t, err);
  if (!rc && !(how & (TC_LOAD_WEIGHTS | TC_LOAD_BASE)) && from->ckpt && r->use == TC_TO_TRAIN) rc = check_kept(from, &s, err);
  tc_run_state_free(&s);
  return rc;
}

/* With rotary positions no weight depends on the context, which a checkpoint has as the stage of its step had it. */
int tc_run_check_model(const struct tc_run *r, const struct tc_ckpt *c, unsigned how, struct tc_err *err)
{
  const char *saved = tc_ckpt_meta(c)->model;
  struct tc_model was;
  TC_TRY(tc_model_parse(&was, saved, tc_ckpt_path(c), err));
  const int64_t context = was.context, step = tc_ckpt_meta(c)->step;
  struct tc_model own = r->opts.model;
  if (r->n_stages) own.context = r->stages[tc_stages_at(r->stages, r->n_stages, TC_MAX(step, 1))].context;
  if (was.rope_theta > 0) was.context = own.context;
  char *text = tc_model_text(&was), *is = tc_model_text(&own);
  int rc = 0;
  if (strcmp(text, is))
    rc = tc_fail(err, TC_EUSER, "%s is of another model: %s; this run's is %s. Give that "
                 "model, or another run.out or ckpt.from", tc_ckpt_path(c), saved, is);
  else if (context != was.context && !(how & TC_LOAD_OTHER_CONTEXT))
    rc = tc_fail(err, TC_EUSER, "%s is of model.context = %lld, this run's is %lld: give the same to resume, set ckpt.changed = "
                 "accept, or begin another run (another run.out) with ckpt.from", tc_ckpt_path(c), (long long)context,
                 (long long)was.context);
  TC_FREE(text, is);
  return rc;
}

int tc_run_load(const struct tc_run *r, struct tc_ckpt *c, unsigned how, struct tc_err *err)
{
  TC_TRY(tc_run_check_model(r, c, how, err));
  if (!(how & TC_LOAD_ADAPTERS) && tc_base_noted(c).elsewhere)
    return tc_fail(err, TC_EUSER, "%s has adapters alone, and not the weights beside them: give the checkpoint that the adapters "
                   "belong to, and this one as ckpt.adapter (tercio train) or --adapter (tercio eval, sample)", tc_ckpt_path(c));
  if (r->opts.gpt.lora.rank == 0 && tc_has_adapters(c))
    return tc_fail(err, TC_EUSER, "%s has adapters beside its weights, which would be left: tercio ckpt export --merge makes a "
                   "model of both, ckpt.adapter = %.200s goes on from them", tc_ckpt_path(c), tc_ckpt_path(c));
  return load_all(r, &(struct tc_stored){ .ckpt = c }, how, err);
}

int tc_run_load_foreign(const struct tc_run *r, const struct tc_foreign *f, unsigned how, struct tc_err *err)
{
  return load_all(r, &(struct tc_stored){ .foreign = f }, how | TC_LOAD_WEIGHTS, err);
}

/* ---- the digest of a base ------------------------------------------------------------------------- */

static int digest_share(const struct tc_run *r, const struct tc_stored *s, uint64_t *digest, struct tc_err *err)
{
  const struct tc_graph *g = r->prog[tc_kinds_of(r->use).first]->graph;
  *digest = 0;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    struct tc_box own[TC_BOXES];
    if (!is_of_base(g, &g->tensor[t])) continue;
    const int n = tc_owned_boxes(&g->tensor[t], r->mesh, r->rank, own);
    TC_TRY(tc_stored_digest(digest, s, g->tensor[t].name, g->tensor[t].rank, g->tensor[t].dim, own, n, err));
  }
  return 0;
}

int tc_run_base_digest(const struct tc_run *r, struct tc_ckpt *c, const struct tc_foreign *f, uint64_t *digest, struct tc_err *err)
{
  const struct tc_stored s = { .ckpt = c, .foreign = c ? NULL : f };
  const int world = r->mesh->world;
  uint64_t share;
  TC_TRY(tc_run_agree(r, digest_share(r, &s, &share, err), err));
  int64_t own = (int64_t)share, *all = tc_malloc((size_t)world * sizeof *all);
  const int rc = tc_comm_all_i64(r->world, &own, 1, all, err);
  *digest = 0;
  for (int i = 0; i < world; i++) *digest += (uint64_t)all[i];
  free(all);
  return rc;
}

int tc_run_known_base(const struct tc_run *r, struct tc_ckpt *c, char *known, struct tc_err *err)
{
  const struct tc_base noted = tc_base_noted(c);
  uint64_t digest;
  snprintf(known, TC_DIGEST + 1, "%s", noted.digest);
  if (*known || noted.elsewhere) return 0;
  TC_TRY(tc_run_base_digest(r, c, NULL, &digest, err));
  tc_digest_text(known, digest);
  return 0;
}
