/* place_run.h - a layout run on ranks that are threads, beside the one-rank run of the same model: all
 * that each rank stores of AdamW's m after the first step (the gradient, without clipping) is
 * compared, and the losses and the gradient's norms of all steps; in double precision also finite
 * differences of the loss. Memory, calls and bytes of each rank have to be those that were predicted. */
#ifndef TC_PLACE_RUN_H
#define TC_PLACE_RUN_H

#include "src/comm/hub.h"
#include "src/plan/plan.h"
#include "src/program/predict.h"
#include "tests/fuzz/place_draw.h"
#include "tests/unit/ranks_fixture.h"

enum { STEPS = 3, MOST_PARAMS = 128, MOST_DIFFERENCES = 640 };
enum result { REFUSED, RIGHT, WRONG, FAULT, RESULTS };

struct outcome {                 /* shared with the case's process */
  int result;
  double gradient, loss, norm;   /* the worst relative differences: of tensors, of losses, of the gradient's norm */
  double difference;             /* ... from finite differences, of `compared` elements */
  int compared;
  int tensors, axes;             /* that rows place, of those that are not R */
  char text[700];
};

/* ---- running -------------------------------------------------------------------------- */

/* d loss / d element `at` of a parameter. */
struct difference { int32_t param; int64_t at; double value; };

enum { FIGURES = 2 * STEPS + 1 };  /* losses of the steps and of an evaluation; norms of the steps */

struct run {
  struct outcome *out;
  const struct tc_config *c;
  struct tc_row_order rows;      /* of tokens, the same on all ranks */
  bool poison;
  int vocab;
  bool bf16;
  bool f64;                      /* in double precision, beside finite differences */
  double *want[MOST_PARAMS];     /* the one-rank run's m; NULL while it is made */
  double norm[MOST_PARAMS], all; /* their norms, and the whole gradient's */
  double loss[FIGURES], want_loss[FIGURES];   /* from STEPS + 1 on the norms of the gradient */
  double off[MOST_PARAMS];       /* squares of differences: the worst rank's */
  char name[MOST_PARAMS][60];
  int status, n_params;
  bool alone, stopped;
  char unpredicted[300];         /* what a rank took or sent, if it is not what was predicted */
  pthread_mutex_t lock;
  pthread_barrier_t *made;
  struct difference difference[MOST_DIFFERENCES];
  int n_differences, compared;
  double off_difference;
  char worst_difference[60];
};

/* Weights far from their symmetric start, so that every gradient has a size. */
static void perturb(struct run *run, struct fx_rank *r, const struct tc_graph *g, struct tc_exec *x)
{
  for (int32_t i = 0; i < g->n_params && run->f64; i++) {
    const struct tc_tensor *t = &g->tensor[g->param[i].master];
    double *w = tc_exec_tensor(x, TC_TRAIN, t->id);
    struct tc_local l;
    tc_tensor_local(t, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES, &l);
    for (int64_t e = 0; e < l.elems; e++) {
      int64_t k = fx_whole_index(t, &l, e);
      if (k >= 0) w[e] += 0.3 * tc_normal(77, (uint32_t)i, 0, (uint64_t)k);
    }
  }
}

/* Finite differences of the loss (five points) at elements spread over each parameter. */
static void differentiate(struct run *run, const struct tc_graph *g, struct tc_exec *x,
                          struct tc_program *eval, const struct tc_runtime *rt)
{
  struct tc_err err;
  for (int32_t i = 0; i < g->n_params; i++) {
    double *w = tc_exec_tensor(x, TC_TRAIN, g->param[i].master);
    int64_t n = tc_tensor_elems(&g->tensor[g->param[i].master]);
    for (int64_t k = 0; k < n && run->n_differences < MOST_DIFFERENCES; k += TC_MAX(1, n / 4)) {
      const double h = 1e-4, was = w[k], at[4] = { -2, -1, 1, 2 };
      double f[4];
      for (int j = 0; j < 4; j++) {
        w[k] = was + at[j] * h;
        if (tc_exec_run(x, TC_EVAL, rt, &err) < 0) abort();
        f[j] = tc_exec_scalar(x, TC_EVAL, eval->graph->loss);
      }
      w[k] = was;
      run->difference[run->n_differences++] =
          (struct difference){ i, k, (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h) };
    }
  }
}

/* Beside what this rank stores of the gradient. */
static void compare_differences(struct run *run, const struct tc_tensor *t, int32_t param, int64_t k,
                                double got)
{
  for (int j = 0; j < run->n_differences; j++) {
    const struct difference *d = &run->difference[j];
    if (d->param != param || d->at != k) continue;
    double off = fabs(got - d->value) / (fabs(d->value) + 1e-3);
    pthread_mutex_lock(&run->lock);
    if (!(off <= run->off_difference)) {
      run->off_difference = off;
      snprintf(run->worst_difference, sizeof run->worst_difference, "%s", t->name);
    }
    run->compared++;
    pthread_mutex_unlock(&run->lock);
  }
}

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  const struct run *run = ctx;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    const int64_t n = tc_natural_row(&run->rows, row0 + i);
    if (starts) fx_starts(starts + i, n, 1, run->c->model_context);
    tc_philox(r, 5, (uint64_t)rt->step, (uint64_t)n);
    tokens[i] = (int32_t)(r[0] % (uint32_t)run->vocab);
    targets[i] = r[2] % 9 ? (int32_t)(r[1] % (uint32_t)run->vocab) : -1;
  }
}

static void compare(struct run *run, struct fx_rank *r, const struct tc_graph *g, struct tc_exec *x)
{
  TC_ASSERT(g->n_params <= MOST_PARAMS);
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_tensor *t = &g->tensor[g->param[i].m];
    struct tc_local l;
    double off = 0;
    tc_tensor_local(t, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES, &l);
    const int64_t bytes = l.elems * (run->f64 ? 8 : 4);
    void *m = tc_malloc((size_t)bytes + 1);      /* on the host, which may not reach the device's memory */
    r->device->ops->copy(r->device, m, tc_exec_tensor(x, TC_TRAIN, t->id), bytes);
    if (run->alone) run->want[i] = tc_calloc((size_t)tc_tensor_elems(t), sizeof **run->want);
    for (int64_t e = 0; e < l.elems; e++) {
      int64_t k = fx_whole_index(t, &l, e);
      if (k < 0) continue;
      const double got = run->f64 ? ((const double *)m)[e] : (double)((const float *)m)[e];
      if (run->alone) run->want[i][k] = got;
      double diff = got - run->want[i][k];
      off += diff * diff;
      if (run->alone) run->norm[i] += got * got;
      else if (run->f64) compare_differences(run, t, i, k, got);
    }
    free(m);
    pthread_mutex_lock(&run->lock);
    snprintf(run->name[i], sizeof run->name[i], "%s", g->param[i].name);
    run->n_params = g->n_params;
    if (!(off <= run->off[i])) run->off[i] = off;            /* not a number stays */
    pthread_mutex_unlock(&run->lock);
  }
}

static void refuse(struct run *run, int status, const char *text)
{
  pthread_mutex_lock(&run->lock);
  if (!run->status || (status != TC_EPEER && run->status == TC_EPEER)) {
    run->status = status;
    snprintf(run->out->text, sizeof run->out->text, "%.690s", text);
  }
  pthread_mutex_unlock(&run->lock);
}

/* Whether the words are those of a check that a pass failed, which no file may bring about. */
static bool is_fault(const char *text)
{
  return strstr(text, "fault of Tercio") != NULL;
}

static int make_programs(struct run *run, struct fx_rank *r, struct tc_program *p[TC_PROGRAMS],
                         struct tc_err *err)
{
  struct tc_program_opts o;
  struct tc_annotation *rows;
  int rc = tc_setup_program(&o, run->c, r->mesh, &rows, err);
  if (!rc && run->f64) o.gpt.dtype = o.gpt.grad_dtype = TC_F64;
  for (int kind = 0; kind < TC_OF_TRAINING && !rc; kind++)
    rc = tc_program_of_run(p, kind, &o, r->mesh, r->rank, err);
  tc_annotations_free(rows);
  return rc;
}

/* ---- predictions ------------------------------------------------------------------------- */

static void unpredicted(struct run *run, int rank, const char *what, int64_t got, int64_t want)
{
  if (got == want) return;
  pthread_mutex_lock(&run->lock);
  snprintf(run->unpredicted, sizeof run->unpredicted, "rank %d: %s: %lld, predicted %lld", rank, what,
           (long long)got, (long long)want);
  pthread_mutex_unlock(&run->lock);
}

static void check_memory(struct run *run, const struct fx_rank *r, struct tc_program *const *p,
                         const struct tc_exec *x)
{
  const struct tc_exec_memory got = tc_exec_memory(x);
  struct tc_plan_memory want;
  tc_plan_memory(&want, p, TC_OF_TRAINING, r->mesh, r->rank);
  unpredicted(run, r->rank, "bytes of state", got.region[TC_STATE], want.state_bytes);
  unpredicted(run, r->rank, "bytes of scratch", got.region[TC_SCRATCH], want.scratch_bytes);
  unpredicted(run, r->rank, "bytes of staging", got.staging, want.staging_bytes);
  unpredicted(run, r->rank, "bytes of host memory", got.region[TC_HOST_STATE] + got.region[TC_HOST_SCRATCH],
              want.bytes[TC_HOST]);
}

/* What a step added to the counters; before[axis]: as they were. */
static void check_bytes(struct run *run, const struct fx_rank *r, const struct tc_program *p,
                        const struct tc_comm_counters before[TC_SETS])
{
  for (int a = 0; a < TC_SETS; a++) {
    struct tc_comm_counters want;
    if (!r->comm[a]) continue;
    const struct tc_comm_counters *now = tc_comm_counters(r->comm[a]), *was = &before[a];
    tc_program_bytes(p, r->mesh, r->rank, r->mesh->group[a].axes, &want);
    for (int k = TC_FIRST_COLL; k < TC_COLLS; k++) {
      char what[60];
      snprintf(what, sizeof what, "%s on %s in a step", tc_coll_name[k], tc_set_name[a]);
      unpredicted(run, r->rank, what, now->data[k].calls - was->data[k].calls, want.data[k].calls);
      unpredicted(run, r->rank, what, now->ctl[k].calls - was->ctl[k].calls, want.ctl[k].calls);
      unpredicted(run, r->rank, what, now->data[k].bytes - was->data[k].bytes, want.data[k].bytes);
      unpredicted(run, r->rank, what, now->ctl[k].bytes - was->ctl[k].bytes, want.ctl[k].bytes);
    }
  }
}

/* ---- ranks ------------------------------------------------------------------------------- */

static int step(struct run *run, struct fx_rank *r, struct tc_program *const *p, struct tc_exec *x,
                const struct tc_runtime *rt, struct tc_err *err)
{
  struct tc_comm_counters before[TC_SETS];
  for (int a = 0; a < TC_SETS; a++)
    if (r->comm[a]) before[a] = *tc_comm_counters(r->comm[a]);
  TC_TRY(tc_exec_run(x, TC_TRAIN, rt, err));
  check_bytes(run, r, p[TC_TRAIN], before);
  return 0;
}

/* Runs what is in host memory, if the host cannot reach the device's. */
static struct tc_device *host_of(const struct fx_rank *r)
{
  struct tc_device *host = NULL;
  struct tc_err err;
  if (r->device->ops->separate && tc_device_open(&host, "ref", 1, &err) < 0) abort();
  return host;
}

static void run_rank(struct fx_rank *r)
{
  struct run *run = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program *p[TC_PROGRAMS] = { NULL };
  struct tc_exec *x = NULL;
  struct tc_device *host = host_of(r);
  r->device->poison = run->poison;
  int rc = make_programs(run, r, p, &err);
  if (rc) refuse(run, rc, err.text);
  pthread_mutex_lock(&run->lock);
  if (!rc) run->rows = p[TC_TRAIN]->graph->rows;
  pthread_mutex_unlock(&run->lock);
  pthread_barrier_wait(run->made);
  if (rc || run->status) goto end;
  struct tc_exec_opts o = { .device = r->device, .host = host, .mesh = r->mesh, .rank = r->rank, .fill = fill,
                            .fill_ctx = run };
  memcpy(o.comm, r->comm, sizeof o.comm);
  rc = tc_exec_new(&x, &o, p, TC_PROGRAMS, &err);
  if (!rc) check_memory(run, r, p, x);
  struct tc_runtime rt = { .seed = 3, .lr = 0.01f, .beta1 = run->f64 ? 0 : 0.9f, .beta2 = 0.95f,
                           .eps = 1e-4f, .weight_decay = 0.1f, .clip = 0 };
  if (!rc) rc = tc_exec_run(x, TC_INIT, &rt, &err);
  if (!rc) perturb(run, r, p[TC_TRAIN]->graph, x);
  rt.step = 1;
  if (!rc && run->f64 && run->alone) differentiate(run, p[TC_TRAIN]->graph, x, p[TC_EVAL], &rt);
  for (int s = 0; s < STEPS && !rc; s++) {
    rt.step = s + 1;
    rc = step(run, r, p, x, &rt, &err);
    if (rc) break;
    if (s == 0) compare(run, r, p[TC_TRAIN]->graph, x);
    if (s == 1) rc = tc_exec_run(x, TC_REFRESH, &rt, &err);           /* as after a checkpoint is read */
    if (r->rank > 0) continue;
    run->loss[s] = tc_exec_scalar(x, TC_TRAIN, p[TC_TRAIN]->graph->loss);
    run->loss[STEPS + 1 + s] = tc_exec_scalar(x, TC_TRAIN, p[TC_TRAIN]->graph->grad_norm);
  }
  if (!rc) rc = tc_exec_run(x, TC_EVAL, &rt, &err);
  if (!rc && r->rank == 0) run->loss[STEPS] = tc_exec_scalar(x, TC_EVAL, p[TC_EVAL]->graph->loss);
  if (rc) {
    refuse(run, rc, err.text);
    run->stopped = true;
    tc_hub_leave(r->hub, r->rank);
  }
end:
  tc_exec_free(x);
  tc_device_close(host);
  for (int i = 0; i < TC_PROGRAMS; i++) tc_program_free(p[i]);
}

static void run_on(struct run *run, struct tc_mesh *m, const char *device)
{
  pthread_barrier_t made;
  pthread_barrier_init(&made, NULL, (unsigned)m->world);
  run->made = &made;
  fx_run(m, device, run_rank, run);
  pthread_barrier_destroy(&made);
}

/* The one-rank run of the same model and batch. Returns its status. */
static int run_alone(struct run *run, const struct draw *d, struct tc_err *err)
{
  struct tc_config *c;
  struct tc_mesh *m;
  const int32_t node[1] = { 0 };
  TC_TRY(config_of(&c, d, true, err));
  TC_TRY(tc_setup_mesh(&m, c, 1, node, 0, err));
  run->c = c;
  run->alone = true;
  run_on(run, m, "ref");
  run->alone = false;
  for (int i = 0; i < run->n_params; i++) run->all += run->norm[i];
  memcpy(run->want_loss, run->loss, sizeof run->loss);
  memset(run->off, 0, sizeof run->off);
  tc_mesh_free(m);
  tc_config_free(c);
  return run->status;
}

static void assess(struct run *run)
{
  struct outcome *o = run->out;
  const char *worst = "";
  for (int i = 0; i < run->n_params; i++) {
    double rel = sqrt(run->off[i]) / (sqrt(run->norm[i]) + 1e-2 * sqrt(run->all));
    if (!(rel <= o->gradient)) o->gradient = rel, worst = run->name[i];
  }
  for (int s = 0; s < FIGURES; s++) {
    double rel = fabs(run->loss[s] / run->want_loss[s] - 1);
    double *worst_of = s <= STEPS ? &o->loss : &o->norm;
    if (!(rel <= *worst_of)) *worst_of = rel;
  }
  o->difference = run->off_difference;
  o->compared = run->compared;
  /* bf16: terms are rounded before they are added, and which terms there are depends on the layout. */
  const double gradient = run->f64 ? 1e-12 : run->bf16 ? 5e-2 : 1e-6, loss = run->bf16 ? 1e-2 : 1e-5;
  const double norm = run->bf16 ? 5e-2 : 1e-5;
  bool right = o->gradient <= gradient && o->loss <= loss && o->norm <= norm && !(o->difference > 1e-7) && !*run->unpredicted;
  if (run->f64) right &= o->compared >= run->n_differences && run->n_differences > 0;
  o->result = right ? RIGHT : WRONG;
  if (!right)
    snprintf(o->text, sizeof o->text, "gradient of %s, finite differences of %s; %s", worst,
             run->worst_difference, run->unpredicted);
}

/* What the rows place, other than R: tensors (parameters and what forward makes) and axes. */
static void count_rows(struct outcome *o, const struct tc_config *c, const struct tc_mesh *m)
{
  struct tc_program_opts opts;
  struct tc_annotation *rows;
  struct tc_program *p;
  struct tc_err err;
  if (tc_setup_program(&opts, c, m, &rows, &err) < 0) return;
  struct tc_annotation *kept = rows;
  memset(opts.annotation, 0, sizeof opts.annotation);
  if (tc_program_new(&p, &opts, m, 0, NULL, "build", &err) == 0) {
    const struct tc_graph *g = p->graph;
    unsigned axes = 0;
    for (int32_t t = 0; t < g->n_tensors; t++) {
      bool hit = false;
      for (const struct tc_annotation *a = rows; a && a->pattern; a++) {
        bool placed = false;
        for (int k = 0; k < (a->four ? TC_PLACES : 1); k++) placed |= a->place[k].kind != TC_R;
        if (!placed || fnmatch(a->pattern, g->tensor[t].name, 0)) continue;
        hit = true;
        axes |= a->axes;
      }
      o->tensors += hit;
    }
    o->axes = __builtin_popcount(axes);
    tc_program_free(p);
  }
  tc_annotations_free(kept);
}

static void run_case(struct draw *d, struct outcome *out)
{
  struct tc_err err = { 0 };
  struct run run = { .out = out, .lock = PTHREAD_MUTEX_INITIALIZER };
  struct tc_config *c;
  struct tc_mesh *m;
  const int32_t node[16] = { 0 };
  out->result = FAULT;
  run.f64 = d->f64;
  run.bf16 = d->bf16 && !d->f64;
  int rc = config_of(&c, d, false, &err);
  TC_ASSERT(rc == 0);
  run.vocab = (int)c->model_vocab;
  rc = run_alone(&run, d, &err);                 /* fails where there is no such model */
  if (!rc) rc = tc_setup_mesh(&m, c, ranks_of(d), node, 0, &err);
  if (!rc) {
    run.c = c;
    run.poison = true;
    run_on(&run, m, d->device);
    if (!run.status) count_rows(out, c, m);
  } else {
    refuse(&run, rc, err.text);
  }
  bool refused = run.status == TC_EUSER || run.status == TC_ELAYOUT;
  if (!run.status) assess(&run);
  else if (refused && !run.stopped && !is_fault(out->text)) out->result = REFUSED;
}

#endif
