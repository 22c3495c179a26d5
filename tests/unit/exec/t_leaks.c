/* t_leaks.c - what is made and freed again leaves no memory behind, and writes nothing past its
 * end: programs of many layouts, made or refused, their checks, schedules and their simulations,
 * and runs on ranks that are threads. A planner makes thousands of these. Looked at where the
 * program calls malloc and free (the linker's --wrap). */
#include "src/program/predict.h"
#include "src/schedule/pipeline.h"
#include "src/comm/hub.h"
#include "src/program/setup.h"
#include "src/program/collective.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/named.h"
#include "tests/unit/tap.h"

/* ---- pieces of memory ---------------------------------------------------------------------- */

/* GUARD is a multiple of each alignment asked for, since aligned_alloc takes multiples alone. */
enum { SLOTS = 1 << 20, GUARD = 64 };
static struct piece { void *p; size_t bytes; } piece[SLOTS];
static int64_t live, overrun;  /* pieces; bytes of guards */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *p);

static size_t slot_of(const void *p)
{
  return ((uintptr_t)p >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 44;
}

/* A guard follows each piece, and must be unchanged when the piece is freed. */
static void *taken(void *p, size_t bytes)
{
  if (!p) return p;
  memset((char *)p + bytes, 0xa5, GUARD);
  pthread_mutex_lock(&lock);
  size_t i = slot_of(p);
  while (piece[i].p) i = (i + 1) % SLOTS;
  piece[i] = (struct piece){ p, bytes };
  if (++live > SLOTS / 2) abort();
  pthread_mutex_unlock(&lock);
  return p;
}

/* Later pieces of the table that would no longer be found move up. Memory that libraries took is not
 * in it. */
static void given(const void *p)
{
  if (!p) return;
  pthread_mutex_lock(&lock);
  size_t i = slot_of(p);
  while (piece[i].p && piece[i].p != p) i = (i + 1) % SLOTS;
  live -= piece[i].p != NULL;
  for (int k = 0; piece[i].p && k < GUARD; k++)
    overrun += ((const unsigned char *)p)[piece[i].bytes + (size_t)k] != 0xa5;
  for (size_t k = i; piece[i].p && piece[k = (k + 1) % SLOTS].p;) {
    if ((k - slot_of(piece[k].p)) % SLOTS < (k - i) % SLOTS) continue;
    piece[i] = piece[k];
    i = k;
  }
  piece[i].p = NULL;
  pthread_mutex_unlock(&lock);
}

void *__wrap_malloc(size_t bytes)
{
  void *p = __real_malloc(bytes + GUARD);
  if (p) memset(p, 0x5a, bytes);                 /* like memory that was used before */
  return taken(p, bytes);
}
void *__wrap_calloc(size_t n, size_t bytes)
{
  return taken(__real_calloc(1, n * bytes + GUARD), n * bytes);
}
void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
  return taken(__real_aligned_alloc(alignment, bytes + GUARD), bytes);
}
void *__wrap_realloc(void *p, size_t bytes)
{
  given(p);
  return taken(__real_realloc(p, bytes + GUARD), bytes);
}
void __wrap_free(void *p)
{
  given(p);
  __real_free(p);
}

/* As many pieces are taken as there were `before`, and no guard was overwritten. */
TAP_FORMAT(2, 3)
static void none_left(int64_t before, const char *fmt, ...)
{
  char what[300];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  pthread_mutex_lock(&lock);
  const int64_t now = live;
  pthread_mutex_unlock(&lock);
  is_int(overrun, 0, "%s: nothing is written behind a piece", what);
  if (is_int(now, before, "%s", what)) return;
  for (size_t i = 0, n = 0; i < SLOTS && n < 20; i++)
    if (piece[i].p) n++, printf("# %zu bytes\n", piece[i].bytes);
}

/* ---- programs ------------------------------------------------------------------------------ */

static int checks(const struct tc_program *p, const struct tc_mesh *m, int rank,
                  struct tc_err *err)
{
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  struct tc_comm_counters c;
  tc_program_staging(p, m, rank);
  for (int s = 0; s < TC_SETS; s++) tc_program_bytes(p, m, rank, m->group[s].axes, &c);
  TC_TRY(tc_graph_check(p->graph, m, "test", err));
  TC_TRY(tc_arena_check(p->arena, p->graph, p->actions, p->fusions, m, coord, err));
  return tc_actions_check(p->actions, p->graph, err);
}

/* Checks that fail leave nothing behind, either. */
static void break_checks(struct tc_program *p, const struct tc_mesh *m)
{
  struct tc_err err = { 0 };
  struct tc_actions *s = p->actions;
  const int32_t *coord = m->coord;
  p->arena->bytes[TC_SCRATCH] /= 2;
  tc_arena_check(p->arena, p->graph, s, p->fusions, m, coord, &err);
  s->n--;
  tc_actions_check(s, p->graph, &err);
  s->n++;
  p->graph->tensor[p->graph->logits].lay.on[TC_REST].kind = TC_P;
  tc_graph_check(p->graph, m, "test", &err);
}

static int programs(const struct tc_config *c, int world, struct tc_err *err)
{
  struct tc_mesh *m = NULL;
  struct tc_annotation *rows = NULL;
  struct tc_program_opts o;
  struct tc_program *p[4] = { NULL };
  int32_t *node = tc_calloc((size_t)world, sizeof *node);
  int rc = tc_setup_mesh(&m, c, world, node, 0, err);
  if (!rc) rc = tc_setup_program(&o, c, m, &rows, err);
  for (int kind = TC_TRAIN; kind <= TC_REFRESH && !rc; kind++) {
    struct tc_err why;
    o.kind = kind;
    const int made = tc_program_new(&p[kind], &o, m, world - 1, p[TC_TRAIN], NULL, &why);
    if (kind == TC_TRAIN && (rc = made) < 0) *err = why;
    if (!made && !rc) rc = checks(p[kind], m, world - 1, err);
  }
  if (!rc) break_checks(p[TC_TRAIN], m);
  for (int kind = 0; kind < 4; kind++) tc_program_free(p[kind]);
  tc_annotations_free(rows);
  tc_mesh_free(m);
  free(node);
  return rc;
}

static void test_program(int world, const char *flags, int want)
{
  const int64_t before = live;
  char text[600], *args[40] = { "train" }, *rest = text;
  struct tc_config *c = NULL;
  struct tc_err err = { 0 };
  int n = 1;
  snprintf(text, sizeof text, "--model.layers=4 --model.hidden=32 --model.heads=4 "
           "--model.context=16 --model.vocab=64 --data.train=x --data.format=bin "
           "--train.global_batch=16 %s", flags);
  for (char *a; (a = strtok_r(rest, " ", &rest)) && n < 40;) args[n++] = a;
  int rc = tc_config_new(&c, n, args, &err);
  if (!rc) rc = programs(c, world, &err);
  tc_config_free(c);
  is_int(rc, want, "%d ranks, %s: %s", world, flags, err.text);
  none_left(before, "... leave nothing");
}

/* ---- schedules ----------------------------------------------------------------------------- */

static void test_sched(const char *name, int p, int v, int m)
{
  const int64_t before = live;
  struct tc_err err = { 0 };
  const struct tc_pipeline_cost cost = { 1, 2, 1, 0.5 }, bad = { 1, -2, 1, 0 };
  struct tc_pipeline *s;
  struct tc_simulation *sim;
  struct tc_transfers *t;
  if (!ok(tc_pipeline_new(&s, schedule_named(name), p, v, m, &err) == 0, "%s %s", name, err.text)) return;
  int wrong = tc_pipeline_transfers(&t, s, NULL, 0, &err) + tc_pipeline_check(s, &err);
  wrong += tc_pipeline_simulate(&sim, s, &cost, 1, t, &err);
  tc_simulation_free(sim);
  is_int(wrong, 0, "... is simulated %s", err.text);
  ok(tc_pipeline_simulate(&sim, s, &bad, 1, t, &err) < 0, "... not with a negative time");
  for (int i = 0; p > 1 && i < t->n_queue[0] / 2; i++) {     /* the last one first */
    const int32_t swap = t->queue[0][i], k = t->n_queue[0] - 1 - i;
    t->queue[0][i] = t->queue[0][k];
    t->queue[0][k] = swap;
  }
  if (p > 1) ok(tc_pipeline_simulate(&sim, s, &cost, 1, t, &err) < 0, "... not in another order");
  s->item[0][0].mb = m;
  ok(tc_pipeline_check(s, &err) < 0, "... not with more micro-batches than there are");
  tc_transfers_free(t);
  tc_pipeline_free(s);
  none_left(before, "... and leaves nothing");
}

/* ---- runs ---------------------------------------------------------------------------------- */

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)starts;
  (void)ctx;
  (void)rt;
  for (int64_t i = 0; i < rows; i++) tokens[i] = targets[i] = (int32_t)((row0 + i) % 11);
}

/* A device that takes every second of the calls that may be fused, and can't capture. */
static _Thread_local int asked;
static bool can_fuse(struct tc_device *d, const struct tc_call *const *part, int n)
{
  (void)d;
  (void)part;
  return n > 1 && asked++ % 2;
}
static int64_t no_scratch(struct tc_device *d, const struct tc_call *const *part, int n)
{
  (void)d;
  (void)part;
  return n;
}
static int run_fused(struct tc_device *d, const struct tc_call *const *part, int n)
{
  for (int i = 0; i < n; i++) TC_TRY(d->ops->kernel[part[i]->op].run(d, part[i]));
  return 0;
}
static int no_list(struct tc_device *d, const struct tc_runtime *rt, struct tc_err *err)
{
  (void)d;
  (void)rt;
  return tc_fail(err, TC_EUSER, "no lists");
}
static const struct tc_fused fused = { can_fuse, no_scratch, run_fused };
static const struct tc_capture capture = { .begin = no_list };

struct run { const char *system; bool poison, fuses; int missing; char err[300]; };

static void run_rank(struct fx_rank *r)
{
  struct run *run = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program *p = NULL;
  struct tc_exec *x = NULL;
  const struct tc_program_opts q = {
    .kind = TC_TRAIN, .model = { "", 2, 12, 3, 5, 11 }, .system = system_named(run->system),
    .gpt = { .batch = 8, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 },
    .overlap = true, .reshard_after = -1, .prefetch = 1 };
  struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank, .fill = fill };
  const struct tc_runtime rt = { .seed = 3, .step = 1, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f,
                                 .eps = 1e-8f, .clip = 1 };
  memcpy(o.comm, r->comm, sizeof o.comm);
  const struct tc_device_ops *own = r->device->ops;
  struct tc_device_ops ops = *own;
  struct tc_kernel kernel[TC_OPS];
  memcpy(kernel, own->kernel, sizeof kernel);
  if (run->missing) kernel[run->missing].run = NULL;
  ops.kernel = kernel;
  ops.fused = run->fuses ? &fused : NULL;
  ops.capture = run->fuses ? &capture : NULL;
  r->device->ops = &ops;
  r->device->poison = run->poison;
  int rc = tc_program_new(&p, &q, r->mesh, r->rank, NULL, NULL, &err);
  if (!rc) rc = tc_exec_new(&x, &o, &p, 1, &err);
  for (int i = 0; i < 2 && !rc; i++) rc = tc_exec_run(x, 0, &rt, &err);
  if (rc) {
    snprintf(run->err, sizeof run->err, "%.290s", err.text);
    tc_hub_leave(r->hub, r->rank);
  }
  tc_exec_free(x);
  tc_program_free(p);
  r->device->ops = own;
}

static void test_run(const char *system, const char *device, int pp, int dp)
{
  for (int way = 0; way < 3; way++) {
    const int64_t before = live;
    struct run run = { .system = system, .poison = way == 1, .fuses = way == 0 && pp * dp == 1,
                       .missing = way == 2 ? TC_OP_ADAMW : 0 };
    struct tc_mesh *m = fx_mesh(2, pp, dp, 1);
    fx_run(m, device, run_rank, &run);
    ok(way < 2 ? !*run.err : strstr(run.err, "has no kernel for op adamw") != NULL,
       "%s on %s, pp %d, dp %d: %s", system, device, pp, dp, run.err);
    tc_mesh_free(m);
    none_left(before, "... leaves nothing");
  }
}

int main(void)
{
  static const struct { int world; const char *flags; int status; } row[] = {
    { 1, "", 0 },
    { 2, "--parallel.data=zero3 --train.recompute=full --parallel.head_chunk=16", 0 },
    { 4, "--mesh.tp=2 --parallel.data=zero1 --parallel.sequence=yes --train.precision=bf16", 0 },
    { 4, "--mesh.pp=2 --parallel.data=zero2 --train.micro_batch=2 --parallel.schedule=zb "
         "--parallel.offload=update", 0 },
    { 2, "--mesh.pp=2 --train.micro_batch=2 --parallel.schedule=interleaved "
         "--train.optimizer=sgd", 0 },
    { 4, "--parallel.data=server --parallel.unit=block --parallel.keep=mb "
         "--train.micro_batch=1", 0 },
    { 2, "--mesh.pp=2 --train.micro_batch=2 --mesh.stages=0,1-3", 0 },
    { 3, "--mesh.tp=3", TC_ELAYOUT },
    { 2, "--mesh.pp=2 --mesh.stages=0,2-3", TC_ELAYOUT },
    { 3, "--mesh.dp=3", TC_ELAYOUT },
    { 2, "--mesh.pp=2 --train.micro_batch=8 --parallel.schedule=nosuch", TC_EUSER },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    test_program(row[i].world, row[i].flags, row[i].status);
  test_sched("zb", 3, 1, 6);
  test_sched("interleaved", 2, 2, 4);
  test_sched("naive", 1, 1, 2);
  test_run("ddp", "ref", 2, 2);
  test_run("zero3", "ref", 1, 4);
  test_run("ddp", "ref", 1, 1);
  test_run("zero1", "cpu", 2, 1);
  return done_testing();
}
