/* side.c - the ranks of a proof: threads with a device and a communicator an axis, which run some steps as `tercio train`
 * would.
 *
 * Each rank first takes one step without clipping, for the gradient; then all begins anew, and gradients are clipped, so that
 * the norm and what it multiplies count. A rank that fails leaves the hub, so that the others' waits end. */
#include "src/prove/impl.h"

#include "src/plan/plan.h"
#include "src/program/predict.h"

#include <stdlib.h>
#include <string.h>

#define RATE 0.003f             /* a step changes weights by about this */
#define EPS 1e-4f               /* of AdamW: rounding of what is almost 0 is not made as large as a gradient */
#define DEADLINE_S 600.0        /* of a collective */
#define SGD_RATE 8192.0f        /* with which a step of SGD is the gradient: the weight's own rounding counts less */

struct rank {
  pthread_t thread;
  struct tc_side *side;
  int rank;
  struct tc_comm *comm[TC_SETS];
  struct tc_device *device, *host;       /* host: runs what is in host memory, where it can't reach the device's */
  struct tc_program *program[TC_PROGRAMS];
  struct tc_annotation *rows;
  struct tc_broken *broken;
  struct tc_follower *follower;
  struct tc_exec *exec;
  struct tc_runtime rt;
};

/* ---- predictions ----------------------------------------------------------------------- */

static void predicted(struct tc_side *s, int rank, const char *what, const char *on, int64_t got, int64_t want)
{
  if (got == want) return;
  pthread_mutex_lock(&s->lock);
  snprintf(s->out->unpredicted, sizeof s->out->unpredicted, "rank %d: %s%s: %lld, predicted %lld", rank, what, on,
           (long long)got, (long long)want);
  pthread_mutex_unlock(&s->lock);
}

static void check_memory(const struct rank *r)
{
  const struct tc_exec_memory got = tc_exec_memory(r->exec);
  struct tc_plan_memory want;
  tc_plan_memory(&want, r->program, TC_OF_TRAINING, r->rank);
  predicted(r->side, r->rank, "bytes of state", "", got.region[TC_STATE], want.state_bytes);
  predicted(r->side, r->rank, "bytes of scratch", "", got.region[TC_SCRATCH], want.scratch_bytes);
  predicted(r->side, r->rank, "bytes of staging", "", got.staging, want.staging_bytes);
  predicted(r->side, r->rank, "bytes of host memory", "", got.region[TC_HOST_STATE] + got.region[TC_HOST_SCRATCH],
            want.bytes[TC_HOST]);
}

/* What a step added to the counters; before[set]: as they were. */
static void check_bytes(const struct rank *r, const struct tc_comm_counters before[TC_SETS])
{
  const struct tc_mesh *m = r->side->mesh;
  for (int s = 0; s < TC_SETS; s++) {
    struct tc_comm_counters want;
    char on[48];
    if (!r->comm[s]) continue;
    const struct tc_comm_counters *now = tc_comm_counters(r->comm[s]), *was = &before[s];
    tc_program_bytes(r->program[TC_TRAIN], m, r->rank, m->group[s].axes, &want);
    snprintf(on, sizeof on, " on %s in a step", tc_set_name[s]);
    for (int k = TC_FIRST_COLL; k < TC_COLLS; k++) {
      predicted(r->side, r->rank, tc_coll_name[k], on, now->data[k].calls - was->data[k].calls, want.data[k].calls);
      predicted(r->side, r->rank, tc_coll_name[k], on, now->ctl[k].calls - was->ctl[k].calls, want.ctl[k].calls);
      predicted(r->side, r->rank, tc_coll_name[k], on, now->data[k].bytes - was->data[k].bytes, want.data[k].bytes);
      predicted(r->side, r->rank, tc_coll_name[k], on, now->ctl[k].bytes - was->ctl[k].bytes, want.ctl[k].bytes);
      predicted(r->side, r->rank, tc_coll_name[k], on, now->data[k].messages - was->data[k].messages, want.data[k].messages);
      predicted(r->side, r->rank, tc_coll_name[k], on, now->ctl[k].messages - was->ctl[k].messages, want.ctl[k].messages);
    }
  }
}

/* ---- a rank ---------------------------------------------------------------------------- */

static int make_programs(struct rank *r, struct tc_err *err)
{
  struct tc_side *s = r->side;
  struct tc_program_opts o;
  TC_TRY(tc_setup_program(&o, s->cfg, s->mesh, &r->rows, err));
  if (s->run->f64) o.gpt.dtype = o.gpt.grad_dtype = TC_F64;
  if (s->breaks) r->broken = tc_breaks_rank(s->breaks, r->rank, &o);
  for (int kind = 0; kind < TC_OF_TRAINING; kind++)
    TC_TRY(tc_program_of_run(r->program, kind, &o, s->mesh, r->rank, err));
  return 0;
}

static int open_rank(struct rank *r, struct tc_err *err)
{
  struct tc_side *s = r->side;
  struct tc_exec_opts o = { .mesh = s->mesh, .rank = r->rank, .fill = tc_inputs_fill, .fill_ctx = &s->inputs };
  TC_TRY(tc_device_open(&r->device, !s->alone ? s->run->device : s->run->large ? "cpu" : "ref", 1, err));
  if (r->device->ops->separate) TC_TRY(tc_device_open(&r->host, "ref", 1, err));
  r->device->poison = s->run->poison;
  o.device = r->device;
  o.host = r->host;
  memcpy(o.comm, r->comm, sizeof o.comm);
  if (r->broken) tc_broken_exec(r->broken, &o);
  if (s->trail) r->follower = tc_follow(s, r->rank, &o);
  TC_TRY(tc_exec_new(&r->exec, &o, r->program, TC_PROGRAMS, err));
  if (s->trail) tc_follow_exec(r->follower, r->exec);
  return 0;
}

/* Weights as at the start of a run. */
static int begin(struct rank *r, struct tc_err *err)
{
  r->rt.step = 0;
  TC_TRY(tc_exec_run(r->exec, TC_INIT, &r->rt, err));
  tc_perturb(r->program[TC_TRAIN]->graph, r->side->mesh, r->rank, r->exec, r->device);
  r->rt.step = 1;
  return tc_exec_run(r->exec, TC_REFRESH, &r->rt, err);
}

static int step(struct rank *r, struct tc_err *err)
{
  struct tc_comm_counters before[TC_SETS];
  for (int s = 0; s < TC_SETS; s++)
    if (r->comm[s]) before[s] = *tc_comm_counters(r->comm[s]);
  if (r->broken) tc_broken_step(r->broken);
  TC_TRY(tc_exec_run(r->exec, TC_TRAIN, &r->rt, err));
  if (!r->broken) check_bytes(r, before);
  return 0;
}

static void compare(struct rank *r, int part)
{
  tc_compare_part(r->side, part, r->program[TC_TRAIN]->graph, r->rank, r->exec, r->device);
}

/* The gradient: one step without clipping, of SGD also without decay. */
static int run_gradient(struct rank *r, struct tc_err *err)
{
  struct tc_side *s = r->side;
  const struct tc_runtime was = r->rt;
  TC_TRY(begin(r, err));
  if (s->alone) compare(r, TC_PROOF_GRADIENT);
  if (s->alone && s->run->f64)
    TC_TRY(tc_differentiate(s->ref, r->program[TC_TRAIN]->graph, r->exec, r->program[TC_EVAL], &r->rt, err));
  r->rt.clip = r->rt.weight_decay = 0;
  if (s->cfg->train_optimizer == TC_OPTIMIZER_SGD) r->rt.lr = SGD_RATE;
  TC_TRY(step(r, err));
  if (s->trail) return 0;
  compare(r, TC_PROOF_GRADIENT);
  const double norm = tc_exec_scalar(r->exec, TC_TRAIN, r->program[TC_TRAIN]->graph->grad_norm);
  if (s->alone && s->cfg->train_clip > 0) s->ref->clip = 0.7 * norm;
  r->rt = was;
  r->rt.clip = (float)s->ref->clip;
  return 0;
}

static int run_steps(struct rank *r, struct tc_err *err)
{
  struct tc_side *s = r->side;
  const struct tc_graph *g = r->program[TC_TRAIN]->graph;
  double *loss = s->alone ? s->ref->loss : s->out->loss, *norm = s->alone ? s->ref->norm : s->out->norm;
  TC_TRY(run_gradient(r, err));
  if (s->trail) return 0;
  TC_TRY(begin(r, err));
  for (int part = TC_PROOF_WEIGHT; s->alone && part < TC_PROOF_PARTS; part++) compare(r, part);
  for (int i = 0; i < s->run->steps; i++) {
    r->rt.step = i + 1;
    TC_TRY(step(r, err));
    if (r->rank == 0) loss[i] = tc_exec_scalar(r->exec, TC_TRAIN, g->loss);
    if (r->rank == 0) norm[i] = tc_exec_scalar(r->exec, TC_TRAIN, g->grad_norm);
    if (i == 0) TC_TRY(tc_exec_run(r->exec, TC_REFRESH, &r->rt, err));   /* as after a checkpoint is read */
    if (s->run->progress) s->run->progress(s->run->progress_ctx, r->rank, i + 1);
  }
  for (int part = TC_PROOF_WEIGHT; part < TC_PROOF_PARTS; part++) compare(r, part);
  TC_TRY(tc_exec_run(r->exec, TC_EVAL, &r->rt, err));
  if (r->rank == 0) loss[s->run->steps] = tc_exec_scalar(r->exec, TC_EVAL, r->program[TC_EVAL]->graph->loss);
  return 0;
}

static void failed(struct rank *r, int rc, const struct tc_err *err, bool ran)
{
  struct tc_side *s = r->side;
  pthread_mutex_lock(&s->lock);
  if (!s->err.status || (rc != TC_EPEER && s->err.status == TC_EPEER)) {
    s->err = *err;
    s->err.status = rc;
  }
  s->ran |= ran;
  pthread_mutex_unlock(&s->lock);
}

/* Waits until all ranks have their programs; false: one has not. */
static bool all_made(struct rank *r, int rc, const struct tc_err *err)
{
  struct tc_side *s = r->side;
  if (rc) failed(r, rc, err, false);
  pthread_mutex_lock(&s->lock);
  if (!rc) s->inputs.rows = r->program[TC_TRAIN]->graph->rows;     /* the same on all ranks */
  if (++s->arrived == s->mesh->world) pthread_cond_broadcast(&s->changed);
  while (s->arrived < s->mesh->world) pthread_cond_wait(&s->changed, &s->lock);
  const bool good = !s->err.status;
  pthread_mutex_unlock(&s->lock);
  return good;
}

static void *run_rank(void *arg)
{
  struct rank *r = arg;
  struct tc_side *s = r->side;
  struct tc_err err = { 0 };
  if (all_made(r, make_programs(r, &err), &err)) {
    int rc = open_rank(r, &err);
    const bool opened = !rc;
    if (!rc && !r->broken) check_memory(r);
    if (!rc) rc = run_steps(r, &err);
    if (rc) failed(r, rc, &err, opened);
    if (rc && s->hub) tc_hub_leave(s->hub, r->rank);
  }
  tc_exec_free(r->exec);
  tc_device_close(r->host);
  tc_device_close(r->device);
  return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------- */

static void make_comms(struct rank *r)
{
  const struct tc_side *s = r->side;
  int32_t *members = tc_malloc((size_t)s->mesh->world * sizeof *members);
  int32_t *node = tc_malloc((size_t)s->mesh->world * sizeof *node);
  const struct tc_comm_opts o = { .name = "proof", .deadline_s = DEADLINE_S, .node = node,
                                  .partial_sums = s->mesh->partial_sums, .selection = s->mesh->selection };
  for (int set = 0; set < TC_SETS; set++) {
    const struct tc_group *group = &s->mesh->group[set];
    if (!group->named || group->size < 2) continue;
    tc_mesh_group(s->mesh, r->rank, group->axes, members);
    for (int i = 0; i < group->size; i++) node[i] = s->mesh->node[members[i]];
    r->comm[set] = tc_comm_thread(s->hub, set, r->rank, members, group->size, &o);
  }
  TC_FREE(members, node);
}

static void free_rank(struct rank *r)
{
  tc_comms_free(r->comm, TC_SETS);
  for (int i = 0; i < TC_PROGRAMS; i++) tc_program_free(r->program[i]);
  tc_annotations_free(r->rows);
  tc_broken_free(r->broken);
  free(r->follower);
}

int tc_side_run(struct tc_side *s, struct tc_err *err)
{
  const struct tc_config *c = s->cfg;
  const int world = s->mesh->world;
  struct rank *r = tc_calloc((size_t)world, sizeof *r);
  int n = 0, rc = 0;
  s->hub = tc_hub_new(world);
  s->inputs = (struct tc_inputs){ .sequences = c->train_global_batch, .vocab = c->model_vocab, .seed = s->run->seed };
  if (s->run->fault && !s->alone) s->breaks = tc_breaks_new(s->run, s->mesh, &s->inputs);
  for (int i = 0; i < world; i++) {
    r[i] = (struct rank){ .side = s, .rank = i };
    r[i].rt = (struct tc_runtime){ .seed = s->run->seed, .lr = RATE, .beta1 = (float)c->train_beta1,
                                   .beta2 = (float)c->train_beta2, .muon_momentum = (float)c->train_muon_momentum,
                                   .muon_scale = c->train_muon_scale, .eps = EPS, .weight_decay = (float)c->train_weight_decay };
    make_comms(&r[i]);
  }
  for (; n < world && !rc; n++) rc = tc_thread_start(&r[n].thread, run_rank, &r[n], err);
  if (rc) {                                      /* the others wait for those that could not be started */
    n--;
    pthread_mutex_lock(&s->lock);
    s->err = *err;
    s->err.status = rc;
    s->arrived += world - n;
    if (s->arrived == world) pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
  }
  for (int i = 0; i < n; i++) pthread_join(r[i].thread, NULL);
  for (int i = 0; i < world; i++) free_rank(&r[i]);
  tc_hub_free(s->hub);
  free(r);
  if (s->breaks) tc_breaks_found(s->breaks, s->out);
  tc_breaks_free(s->breaks);
  if (s->err.status) *err = s->err;
  return s->err.status;
}
