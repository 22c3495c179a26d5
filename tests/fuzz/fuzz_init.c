/* fuzz_init.c - initial weights by run.init = broadcast beside those by counter, on the layouts that fuzz_place draws.
 *
 * usage: fuzz_init.t [--full | --cases N] [--seed N] [--only CASE] [--verbose]
 *
 * 60 cases, 2,000 with --full. Of a case every rank, a thread, runs the program INIT in both ways, in state that was filled
 * with 0xA5 and 0x5A: all that it keeps is then the same to the last bit. With broadcast, every element of a random weight is
 * drawn by one rank, as the calls of the kernel count them, and sent to each other rank that stores it. Memory, calls and
 * bytes of each rank are those predicted. */
#include "src/plan/plan.h"
#include "src/program/predict.h"
#include "tests/fuzz/place_draw.h"
#include "tests/unit/ranks_fixture.h"

enum { SHORT = 60, FULL = 2000, LIMIT_S = 900, MOST_RANKS = 16, WAYS = 2 };

struct tried {
  const struct tc_config *c;
  bool share, counts;            /* counts: drawn is counted */
  int64_t drawn, sent;           /* elements, by all ranks; bytes of broadcasts */
  int64_t random, copies;        /* elements of random weights; bytes of what ranks store of them beyond one of each */
  bool narrow;                   /* some are stored in bf16 alone */
  char *kept[MOST_RANKS];        /* all state after INIT */
  int64_t n_kept[MOST_RANKS];
  char wrong[300];
  int rc;
  struct tc_err err;
  pthread_mutex_t lock;
  pthread_barrier_t made;
};

static struct tried *counted;    /* by the calls of NORMAL */
static const struct tc_device_ops *real_ops;

static int count_normal(struct tc_device *d, const struct tc_call *c)
{
  pthread_mutex_lock(&counted->lock);
  counted->drawn += c->out[0].elems;
  pthread_mutex_unlock(&counted->lock);
  return real_ops->kernel[TC_OP_NORMAL].run(d, c);
}

static void say(struct tried *t, const char *what, int rank, int64_t got, int64_t want)
{
  if (got == want) return;
  pthread_mutex_lock(&t->lock);
  snprintf(t->wrong, sizeof t->wrong, "rank %d: %s: %lld, not %lld", rank, what, (long long)got, (long long)want);
  pthread_mutex_unlock(&t->lock);
}

/* Calls and bytes beside what the program says. */
static void check_bytes(struct tried *t, struct fx_rank *r, const struct tc_program *p)
{
  for (int s = 0; s < TC_SETS; s++) {
    struct tc_comm_counters want;
    if (!r->comm[s]) continue;
    const struct tc_comm_counters *now = tc_comm_counters(r->comm[s]);
    tc_program_bytes(p, r->mesh, r->rank, r->mesh->group[s].axes, &want);
    for (int k = 0; k < TC_COLLS; k++) {
      say(t, tc_coll_name[k], r->rank, now->data[k].calls, want.data[k].calls);
      say(t, tc_coll_name[k], r->rank, now->data[k].bytes, want.data[k].bytes);
      say(t, tc_coll_name[k], r->rank, now->ctl[k].calls, want.ctl[k].calls);
    }
    pthread_mutex_lock(&t->lock);
    t->sent += now->data[TC_BROADCAST].bytes;
    pthread_mutex_unlock(&t->lock);
  }
}

static void check_memory(struct tried *t, const struct fx_rank *r, struct tc_exec *x, struct tc_program *const *p)
{
  const struct tc_exec_memory got = tc_exec_memory(x);
  struct tc_plan_memory want;
  tc_plan_memory(&want, p, TC_OF_TRAINING, r->rank);
  say(t, "bytes of state", r->rank, got.region[TC_STATE], want.state_bytes);
  say(t, "bytes of scratch", r->rank, got.region[TC_SCRATCH], want.scratch_bytes);
  say(t, "bytes of staging", r->rank, got.staging, want.staging_bytes);
  say(t, "bytes of host memory", r->rank, got.region[TC_HOST_STATE] + got.region[TC_HOST_SCRATCH], want.bytes[TC_HOST]);
}

/* Fills all state before INIT (to[] NULL), or copies it. */
static int64_t each_state(struct fx_rank *r, struct tc_exec *x, const struct tc_program *p, int fill, char *to)
{
  const struct tc_graph *g = p->graph;
  int64_t n = 0;
  for (int32_t i = 0; i < g->n_tensors; i++) {
    const struct tc_tensor *q = &g->tensor[i];
    const int64_t bytes = tc_tensor_local_bytes(q, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES);
    if (!q->state || q->param < 0 || q->cls == TC_CLS_GRAD || !bytes) continue;
    char *at = tc_exec_tensor(x, TC_TRAIN, i);
    if (to && q->space == TC_HOST) memcpy(to + n, at, (size_t)bytes);
    else if (to) r->device->ops->copy(r->device, to + n, at, bytes);
    else if (q->space == TC_HOST) memset(at, fill, (size_t)bytes);
    else tc_device_fill(r->device, at, fill, bytes);
    n += bytes;
  }
  return n;
}

/* What ranks store of random weights, counted by the placements of the masters alone. */
static void add_copies(struct tried *t, const struct fx_rank *r, const struct tc_graph *g)
{
  pthread_mutex_lock(&t->lock);
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_tensor *q = &g->tensor[g->param[i].master];
    int64_t elems = 1;
    if (!(g->param[i].init_std > 0)) continue;
    for (int d = 0; d < q->rank; d++) elems *= tc_stored_dim(q, d);
    if (r->rank == 0) t->random += elems;
    if (r->rank == 0) t->copies -= (int64_t)tc_dtype_bytes(q->dtype) * elems;
    t->narrow |= q->dtype != TC_F32;
    t->copies += tc_tensor_local_bytes(q, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES);
  }
  pthread_mutex_unlock(&t->lock);
}

static int run_programs(struct tried *t, struct fx_rank *r, struct tc_program **p, struct tc_device *host, struct tc_err *err)
{
  struct tc_exec_opts o = { .device = r->device, .host = host, .mesh = r->mesh, .rank = r->rank };
  const struct tc_runtime rt = { .seed = 3 };
  struct tc_exec *x = NULL;
  memcpy(o.comm, r->comm, sizeof o.comm);
  r->device->poison = true;
  int rc = tc_exec_new(&x, &o, p, TC_OF_TRAINING, err);
  if (!rc) {
    each_state(r, x, p[TC_TRAIN], t->share ? 0xA5 : 0x5A, NULL);
    rc = tc_exec_run(x, TC_INIT, &rt, err);
  }
  if (!rc) {
    const struct tc_exec_memory has = tc_exec_memory(x);
    t->kept[r->rank] = tc_calloc(1, (size_t)(has.region[TC_STATE] + has.region[TC_HOST_STATE]) + 1);
    t->n_kept[r->rank] = each_state(r, x, p[TC_TRAIN], 0, t->kept[r->rank]);
    add_copies(t, r, p[TC_TRAIN]->graph);
    check_bytes(t, r, p[TC_INIT]);
    check_memory(t, r, x, p);
  }
  tc_exec_free(x);
  return rc;
}

static void run_rank(struct fx_rank *r)
{
  struct tried *t = r->ctx;
  struct tc_program *p[TC_PROGRAMS] = { NULL };
  struct tc_program_opts o;
  struct tc_annotation *rows = NULL;
  struct tc_device *host = NULL;
  struct tc_err err = { 0 };
  struct tc_device_ops ops = *r->device->ops;
  struct tc_kernel kernel[TC_OPS];
  const struct tc_device_ops *const was = r->device->ops;
  if (!was->separate) {
    memcpy(kernel, was->kernel, sizeof kernel);
    kernel[TC_OP_NORMAL].run = count_normal;
    ops.kernel = kernel;
    r->device->ops = &ops;
  }
  int rc = was->separate ? tc_device_open(&host, "ref", 1, &err) : 0;
  if (!rc) rc = tc_setup_program(&o, t->c, r->mesh, &rows, &err);
  o.share_init = t->share;
  for (int k = 0; k < TC_OF_TRAINING && !rc; k++) rc = tc_program_of_run(p, k, &o, r->mesh, r->rank, &err);
  pthread_mutex_lock(&t->lock);
  if (rc) t->rc = rc, t->err = err;
  pthread_mutex_unlock(&t->lock);
  pthread_barrier_wait(&t->made);                /* nobody waits for a rank without its programs */
  if (!t->rc && (rc = run_programs(t, r, p, host, &err)) < 0) {
    snprintf(t->wrong, sizeof t->wrong, "rank %d: %.250s", r->rank, err.text);
    tc_hub_leave(r->hub, r->rank);
  }
  for (int k = 0; k < TC_PROGRAMS; k++) tc_program_free(p[k]);
  tc_annotations_free(rows);
  tc_device_close(host);
  r->device->ops = was;
}

/* Runs INIT on all ranks. False: the layout is refused. */
static bool try_way(struct tried *t, const struct tc_config *c, const char *device, struct tc_mesh *m, bool share)
{
  struct tc_device *d;
  struct tc_err err;
  *t = (struct tried){ .c = c, .share = share, .lock = PTHREAD_MUTEX_INITIALIZER };
  TC_ASSERT(tc_device_open(&d, device, 1, &err) == 0);
  real_ops = d->ops;
  t->counts = !d->ops->separate;
  counted = t;
  pthread_barrier_init(&t->made, NULL, (unsigned)m->world);
  fx_run(m, device, run_rank, t);
  pthread_barrier_destroy(&t->made);
  tc_device_close(d);
  return t->rc != TC_EUSER && t->rc != TC_ELAYOUT;
}

static void compare(struct tried *t, int world)
{
  struct tried *a = &t[0], *b = &t[1];
  for (int r = 0; r < world && !*b->wrong; r++) {
    say(b, "bytes of state", r, b->n_kept[r], a->n_kept[r]);
    if (a->n_kept[r] == b->n_kept[r] && memcmp(a->kept[r], b->kept[r], (size_t)a->n_kept[r]))
      snprintf(b->wrong, sizeof b->wrong, "rank %d: other initial weights", r);
  }
  if (b->counts) say(b, "elements that are drawn", -1, b->drawn, b->random);
  if (a->counts && !a->narrow) say(b, "elements that are drawn by counter", -1, 4 * (a->drawn - a->random), b->copies);
  say(b, "bytes of broadcasts", -1, b->sent - a->sent, b->copies);
}

struct tally { int refused, right, wrong, shared; };

static void run_case(struct draw *d, struct fuzz *f, struct tally *n, bool verbose)
{
  static const int32_t node[MOST_RANKS] = { 0 };
  struct tried t[WAYS] = { { .c = NULL } };
  struct tc_config *c;
  struct tc_mesh *m = NULL;
  struct tc_err err = { 0 };
  TC_ASSERT(config_of(&c, d, false, &err) == 0);
  bool taken = tc_setup_mesh(&m, c, ranks_of(d), node, 0, &err) == 0;
  taken = taken && try_way(&t[0], c, d->device, m, false);
  if (taken && !try_way(&t[1], c, d->device, m, true))
    snprintf(t[1].wrong, sizeof t[1].wrong, "refused: %.280s", t[1].err.text);
  else if (taken)
    compare(t, m->world);
  const char *wrong = *t[0].wrong ? t[0].wrong : t[1].wrong;
  n->refused += !taken;
  n->right += taken && !*wrong;
  n->wrong += *wrong != 0;
  n->shared += taken && t[1].copies > 0;
  if (*wrong || verbose) {
    printf("# case %llu of seed %llu: %s, %lld bytes of copies:", (unsigned long long)f->cases, (unsigned long long)f->seed,
           *wrong ? wrong : taken ? "right" : "refused", (long long)t[1].copies);
    for (int i = 0; i < d->n_flags; i++) printf(" %s", d->flag[i]);
    printf("\n%s", d->rows);
  }
  for (int i = 0; i < WAYS; i++)
    for (int r = 0; r < MOST_RANKS; r++) free(t[i].kept[r]);
  tc_mesh_free(m);
  tc_config_free(c);
}

int main(int argc, char **argv)
{
  struct fuzz f;
  struct tally n = { 0 };
  bool verbose = false, given = false, full = false, only = false;
  fuzz_start(&f, argc, argv);
  if (*tc_env("TC_EMU_MODULES")) setenv("TERCIO_MODULES", tc_env("TC_EMU_MODULES"), 1);
  for (int i = 1; i < argc; i++) {
    only |= !strcmp(argv[i], "--only");
    given |= only || !strcmp(argv[i], "--cases");
    full |= !strcmp(argv[i], "--full");
    verbose |= !strcmp(argv[i], "--verbose");
  }
  if (!given) f.most_cases = full ? FULL : SHORT;
  while (fuzz_more(&f)) {
    struct draw d = { .f = &f };
    draw_case(&d);
    fuzz_write(&f, d.rows, strlen(d.rows));
    if (*d.rows) flag(&d, "--parallel.annotations=%s", f.path);
    alarm(LIMIT_S);
    run_case(&d, &f, &n, verbose);
    draw_free(&d);
  }
  printf("# %llu cases of seed %llu: %d right, of which %d store a random weight several times, %d refused\n",
         (unsigned long long)f.cases, (unsigned long long)f.seed, n.right, n.shared, n.refused);
  ok(only || n.shared > n.right / 4, "several ranks store the same weights");
  is_int(n.wrong, 0, "initial weights are the same in both ways, drawn once and sent as predicted");
  return done_testing();
}
