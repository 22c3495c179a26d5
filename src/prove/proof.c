/* proof.c - one rank's figures, and a layout beside them. */
#include "src/prove/impl.h"

#include "src/program/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An option of the model, its data and its arithmetic: one rank has it, too. All others lay a run out. */
static bool is_own(const char *name)
{
  static const char *const own[] = { "model.", "data.", "train." }, *const not[] = { "train.micro_batch", "train.recompute" };
  bool is = false;
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) is |= !strncmp(name, own[i], strlen(own[i]));
  for (size_t i = 0; i < sizeof not / sizeof *not; i++) is &= strcmp(name, not[i]) != 0;
  return is;
}

/* The same run on one rank, in one micro-batch. Owned by the caller; strings are the original's. */
static int alone_of(struct tc_config **out, const struct tc_config *c, struct tc_err *err)
{
  char *none[] = { (char *)(uintptr_t)"prove" };
  struct tc_config_change change;
  TC_TRY(tc_config_new(out, 1, none, err));
  for (int i = -1; (i = tc_config_next_change(*out, c, i + 1, &change)) >= 0;)
    if (is_own(change.name)) tc_config_copy(*out, c, i);
  return 0;
}

/* The locks of a side that is yet to run. */
#define LOCKS .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER

static int run_side(struct tc_side *s, int world, const int32_t *node_of_rank, struct tc_err *err)
{
  TC_TRY(tc_setup_mesh(&s->mesh, s->cfg, world, node_of_rank, 0, err));
  return tc_side_run(s, err);
}

static int run_alone(struct tc_side *s, struct tc_err *err)
{
  static const int32_t node[1] = { 0 };
  TC_TRY(alone_of(&s->own, s->run->cfg, err));
  s->cfg = s->own;
  return run_side(s, 1, node, err);
}

static void side_done(struct tc_side *s)
{
  free(s->off);
  tc_mesh_free(s->mesh);
  tc_config_free(s->own);
}

/* The longest sum behind a gradient: over tokens, and over the widths of each layer. A norm after a layer's halves divides by
 * what they give, in which large terms cancel: with it sums round as if they were so many times as long. */
enum { CANCEL = 16 };
static int64_t longest_sum(const struct tc_config *c)
{
  const int64_t n = c->train_global_batch * c->model_context + c->model_layers * (c->model_hidden + c->model_ffn) + c->model_vocab;
  struct tc_model m;
  struct tc_err err;
  return tc_setup_model(c, &m, &err) == 0 && m.norm_at != TC_NORM_BEFORE ? CANCEL * n : n;
}

int tc_reference_new(struct tc_reference **out, const struct tc_proof_run *run, struct tc_err *err)
{
  const struct tc_config *c = run->cfg;
  struct tc_reference *r = tc_calloc(1, sizeof *r);
  struct tc_proof unused = { .steps = run->steps };
  struct tc_side s = { .run = run, .ref = r, .alone = true, .out = &unused, LOCKS };
  TC_ASSERT(run->steps > 0 && run->steps <= TC_PROOF_STEPS);
  TC_ASSERT(!run->f64 || c->train_optimizer == TC_OPTIMIZER_ADAMW);
  *r = (struct tc_reference){
    .steps = run->steps, .f64 = run->f64, .bf16 = !run->f64 && (c->train_precision == TC_BF16 || c->train_grad_type == TC_BF16),
    .terms = longest_sum(c), .layers = c->model_layers, .of_gradient = 1 - (double)(float)c->train_beta1 };
  const int rc = run_alone(&s, err);
  for (int k = 0; k < TC_PROOF_PARTS && !rc; k++) {
    for (int i = 0; i < r->n_params; i++) r->all[k] += r->param[i].norm[k];
    r->all[k] = sqrt(r->all[k]);
  }
  side_done(&s);
  if (rc) tc_reference_free(r);
  else *out = r;
  return rc;
}

void tc_reference_free(struct tc_reference *r)
{
  if (!r) return;
  for (int i = 0; i < r->n_params; i++) {
    free(r->param[i].name);
    for (int k = 0; k < TC_PROOF_PARTS; k++) free(r->param[i].part[k]);
  }
  TC_FREE(r->param, r->difference, r);
}

int tc_prove(struct tc_proof *out, const struct tc_reference *ref, const struct tc_proof_run *run, struct tc_err *err)
{
  struct tc_side s = { .run = run, .cfg = run->cfg, .ref = (struct tc_reference *)(uintptr_t)ref, .out = out, LOCKS };
  *out = (struct tc_proof){ .steps = run->steps };
  s.off = tc_calloc((size_t)(ref->n_params * TC_PROOF_PARTS), sizeof *s.off);
  int rc = run_side(&s, run->world, run->node_of_rank, err);
  if (!rc) tc_judge(&s);
  if (rc && s.ran) {
    out->failed = true;
    snprintf(out->worst, sizeof out->worst, "%.390s", err->text);
    rc = 0;
  }
  side_done(&s);
  return rc;
}

int tc_trail_find(struct tc_trail_end *out, const struct tc_proof_run *run, struct tc_err *err)
{
  struct tc_trail *t = tc_trail_new();
  struct tc_reference *r = tc_calloc(1, sizeof *r);
  struct tc_proof unused = { .steps = run->steps };
  struct tc_side alone = { .run = run, .ref = r, .alone = true, .trail = t, .out = &unused, LOCKS };
  struct tc_side side = { .run = run, .cfg = run->cfg, .ref = r, .trail = t, .out = &unused, LOCKS };
  int rc = run_alone(&alone, err);
  if (!rc) rc = run_side(&side, run->world, run->node_of_rank, err);
  *out = tc_trail_end(t);
  side_done(&alone);
  side_done(&side);
  tc_reference_free(r);
  return rc;
}

void tc_proof_free(struct tc_proof *p)
{
  for (int i = 0; i < p->n_params; i++) free(p->param[i].name);
  free(p->param);
  *p = (struct tc_proof){ 0 };
}
