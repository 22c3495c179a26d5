/* t_documents_alone.c - documents that share sequences, on every kind of layout, beside the same documents one by one:
 * each alone at the beginning of a sequence of its own, through a one-rank program without documents, its losses and
 * gradients added up. In double precision on ref, and in fp32 on cpu. */
#include "tests/unit/exec/layout.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

#include <math.h>

enum { T = 12, BATCH = 8, VOCAB = 29, PARAMS = 64 };

#define SIZES .layers = 4, .hidden = 16, .heads = 4, .context = T, .vocab = VOCAB
static const struct tc_model models[] = {
  { SIZES },
  { SIZES, .family = TC_FAMILY_LLAMA, .kv_heads = 2, .ffn = 24, .head_dim = 6 },
};
static const char *const model_name[] = { "gpt2", "llama" };

static const struct layout layouts[] = {
  L("one rank", "ddp", 1, 1, 1, .serial = false),
  L("dp 2, 2 micro-batches", "ddp", 2, 2, 1, .serial = false),
  L("dp 4, zero1", "zero1", 1, 4, 1, .serial = false),
  L("dp 2, zero3, full recompute", "zero3", 2, 2, 1, .recompute = TC_RECOMPUTE_FULL),
  L("tp 2", "ddp", 1, 1, 2, .serial = false),
  L("tp 2, sequence", "ddp", 2, 1, 2, .sequence = true),
  L("dp 2 x tp 2, sequence, zero2, selective recompute", "zero2", 2, 2, 2, .sequence = true,
    .recompute = TC_RECOMPUTE_SELECTIVE),
  L("pp 2, naive", "ddp", 1, 1, 1, .pp = 2, .schedule = "naive"),
  L("pp 4, gpipe", "ddp", 8, 1, 1, .pp = 4, .schedule = "gpipe"),
  L("pp 4, 1f1b", "ddp", 8, 1, 1, .pp = 4, .schedule = "1f1b"),
  L("pp 2, interleaved", "ddp", 4, 1, 1, .pp = 2, .schedule = "interleaved", .virtual_stages = 2),
  L("pp 4, zb", "ddp", 8, 1, 1, .pp = 4, .schedule = "zb"),
  L("pp 2 x dp 2 x tp 2, zb, sequence", "ddp", 4, 2, 2, .pp = 2, .schedule = "zb", .sequence = true),
};

static int32_t token(int64_t row, int which)
{
  uint32_t r[4];
  tc_philox(r, 21, 3, (uint64_t)row);
  return (int32_t)(r[which] % VOCAB);
}

static struct tc_program_opts options(const struct tc_model *m, const struct layout *l, int kind, int dtype, int64_t batch,
                                      bool documents)
{
  struct tc_program_opts o = layout_options(l, m, batch, kind);
  o.gpt.dtype = o.gpt.grad_dtype = dtype;
  o.gpt.dropout = 0;
  o.gpt.documents = documents;
  return o;
}

/* AdamW's m after a step with these is the gradient. */
static const struct tc_runtime still = { .seed = 3, .step = 1, .beta2 = 0.95f, .eps = 1e-4f };

/* ---- one by one ------------------------------------------------------------------------ */

struct sum { double loss, *grad[PARAMS], norm[PARAMS], all; int documents; };

struct document { int64_t row, length; };        /* its first row in the whole batch */

static void fill_one(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                     int32_t *tokens, int32_t *targets, int32_t *starts)
{
  const struct document *d = ctx;
  (void)rt;
  TC_ASSERT(row0 == 0 && rows == T && !starts);
  for (int64_t i = 0; i < T; i++) {
    tokens[i] = i < d->length ? token(d->row + i, 0) : 0;
    targets[i] = i < d->length ? token(d->row + i, 1) : -1;
  }
}

static void one_by_one(const struct tc_model *m, struct sum *s)
{
  struct tc_err err = { 0 };
  struct tc_mesh *mesh = fx_mesh(1, 1, 1, 1);
  struct tc_program *p[2] = { NULL };
  const int kind[2] = { TC_TRAIN, TC_INIT };
  struct tc_device *device;
  struct tc_exec *x;
  struct document d = { 0 };
  struct tc_exec_opts o = { .mesh = mesh, .fill = fill_one, .fill_ctx = &d };
  int rc = tc_device_open(&device, "ref", 1, &err);
  o.device = device;
  for (int i = 0; i < 2 && !rc; i++) {
    struct tc_program_opts po = options(m, &layouts[0], kind[i], TC_F64, 1, false);
    rc = tc_program_new(&p[i], &po, mesh, 0, i ? p[0] : NULL, NULL, &err);
  }
  if (!rc) rc = tc_exec_new(&x, &o, p, 2, &err);
  if (!rc) rc = tc_exec_run(x, 1, &still, &err);
  if (!ok(rc == 0, "one by one: ready %s", err.text)) exit(1);
  int32_t starts[BATCH * T];
  const struct tc_graph *g = p[0]->graph;
  fx_starts(starts, 0, BATCH * T, T);
  for (d.row = 0; d.row < BATCH * T; d.row += d.length, s->documents++) {
    const int64_t end = d.row - d.row % T + T;
    for (d.length = 1; d.row + d.length < end && starts[d.row + d.length] == starts[d.row];) d.length++;
    TC_ASSERT(starts[d.row] == d.row % T);
    if (tc_exec_run(x, 0, &still, &err) < 0) abort();
    s->loss += tc_exec_scalar(x, 0, g->loss) / BATCH;        /* a mean over T tokens */
    for (int32_t i = 0; i < g->n_params; i++) {
      const int64_t n = tc_tensor_elems(&g->tensor[g->param[i].acc]);
      const double *grad = tc_exec_tensor(x, 0, g->param[i].acc);
      if (!s->grad[i]) s->grad[i] = tc_calloc((size_t)n, sizeof(double));
      for (int64_t k = 0; k < n; k++) s->grad[i][k] += grad[k] / BATCH;
    }
  }
  for (int32_t i = 0; i < g->n_params; i++) {
    for (int64_t k = 0; k < tc_tensor_elems(&g->tensor[g->param[i].acc]); k++) s->norm[i] += s->grad[i][k] * s->grad[i][k];
    s->all += s->norm[i];
  }
  tc_exec_free(x);
  for (int i = 0; i < 2; i++) tc_program_free(p[i]);
  tc_device_close(device);
  tc_mesh_free(mesh);
}

/* ---- together -------------------------------------------------------------------------- */

struct run {
  const struct tc_model *model;
  const struct layout *l;
  const struct sum *want;
  int dtype, failed;
  double loss, eval, off[PARAMS];      /* off: the worst rank's sum of squares */
  pthread_mutex_t lock;
  char err[200];
};

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)ctx;
  (void)rt;
  for (int64_t i = 0; i < rows; i++) tokens[i] = token(row0 + i, 0), targets[i] = token(row0 + i, 1);
  fx_starts(starts, row0, rows, T);
}

static void compare(struct run *run, struct fx_rank *r, const struct tc_graph *g, struct tc_exec *x)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_tensor *t = &g->tensor[g->param[i].state[0]];
    const void *m = tc_exec_tensor(x, 0, t->id);
    struct tc_local l;
    double off = 0;
    tc_tensor_local(t, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES, &l);
    for (int64_t e = 0; e < l.elems; e++) {
      const int64_t k = tc_local_index(t, &l, e);
      if (k < 0) continue;
      const double got = t->dtype == TC_F64 ? ((const double *)m)[e] : (double)((const float *)m)[e];
      off += (got - run->want->grad[i][k]) * (got - run->want->grad[i][k]);
    }
    pthread_mutex_lock(&run->lock);
    if (!(off <= run->off[i])) run->off[i] = off;
    pthread_mutex_unlock(&run->lock);
  }
}

static void run_rank(struct fx_rank *r)
{
  struct run *run = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program *p[3] = { NULL };
  struct tc_exec *x = NULL;
  const int kind[3] = { TC_TRAIN, TC_INIT, TC_EVAL };
  int rc = 0;
  r->device->poison = true;
  for (int i = 0; i < 3 && !rc; i++) {
    struct tc_program_opts o = options(run->model, run->l, kind[i], run->dtype, BATCH, true);
    rc = tc_program_new(&p[i], &o, r->mesh, r->rank, i ? p[0] : NULL, NULL, &err);
  }
  struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank, .fill = fill };
  memcpy(o.comm, r->comm, sizeof o.comm);
  if (!rc) rc = tc_exec_new(&x, &o, p, 3, &err);
  if (!rc) rc = tc_exec_run(x, 1, &still, &err);
  if (!rc) rc = tc_exec_run(x, 0, &still, &err);
  if (!rc) compare(run, r, p[0]->graph, x);
  if (!rc && r->rank == 0) run->loss = tc_exec_scalar(x, 0, p[0]->graph->loss);
  if (!rc) rc = tc_exec_run(x, 2, &still, &err);
  if (!rc && r->rank == 0) run->eval = tc_exec_scalar(x, 2, p[2]->graph->loss);
  if (rc) {
    snprintf(run->err, sizeof run->err, "%.190s", err.text);
    run->failed = rc;
    tc_hub_leave(r->hub, r->rank);
  }
  tc_exec_free(x);
  for (int i = 0; i < 3; i++) tc_program_free(p[i]);
}

static void together(const char *device, int dtype, const char *name, const struct tc_model *m, const struct layout *l,
                     const struct sum *want)
{
  struct run run = { .model = m, .l = l, .want = want, .dtype = dtype, .lock = PTHREAD_MUTEX_INITIALIZER };
  struct tc_mesh *mesh = fx_mesh(l->mb, TC_MAX(l->pp, 1), l->dp, l->tp);
  const double tol = dtype == TC_F64 ? 1e-12 : 1e-6;
  double grad = 0;
  fx_run(mesh, device, run_rank, &run);
  for (int i = 0; i < PARAMS && want->grad[i]; i++) {
    const double off = sqrt(run.off[i]) / (sqrt(want->norm[i]) + 1e-2 * sqrt(want->all));
    if (!(off <= grad)) grad = off;
  }
  const double loss = fabs(run.loss / want->loss - 1), eval = fabs(run.eval / want->loss - 1);
  ok(!run.failed && loss < tol && eval < tol && grad < tol, "%s, %s, %s: loss off by %.1e, validation by %.1e, the worst "
     "gradient by %.1e %s", name, device, l->name, loss, eval, grad, run.err);
  tc_mesh_free(mesh);
}

int main(void)
{
  for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
    struct sum want = { 0 };
    one_by_one(&models[k], &want);
    ok(want.documents > 2 * BATCH, "%s: %d documents in %d sequences", model_name[k], want.documents, BATCH);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
      together("ref", TC_F64, model_name[k], &models[k], &layouts[i], &want);
      together("cpu", TC_F32, model_name[k], &models[k], &layouts[i], &want);
    }
    for (int i = 0; i < PARAMS; i++) free(want.grad[i]);
  }
  return done_testing();
}
