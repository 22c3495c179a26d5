/* fuzz_place.c - files of annotations that nobody thought of, on layouts drawn with them: what is
 * accepted gives one rank's gradients, what is not gets a sentence.
 *
 * usage: fuzz_place.t [--full | --cases N] [--seed N] [--only CASE] [--bare] [--verbose]
 *        fuzz_place.t --try ROWS.txt --mesh.tp=2 ...      one layout by hand
 *
 * 60 cases, 2,000 with --full; the seed is the clock's unless it is given (or SEED is set). A case
 * draws rows, mesh, system, micro-batch, recomputation, offload, schedule and more, and takes the way of a
 * user's run file: configuration, mesh, programs, three steps of training on ranks that are threads,
 * buffers filled with NaN when they are free. AdamW's m after the first step, without clipping, is the
 * gradient: each rank compares all that it stores of it with the one-rank run. Each case is a process
 * of its own, so that a fault, a signal or a wait without end is counted and the next case runs. */
#include "src/config.h"
#include "src/setup.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/ranks_fixture.h"

#include <fnmatch.h>
#include <signal.h>
#include <sys/wait.h>

enum { SHORT = 60, FULL = 2000, STEPS = 3, MOST_FLAGS = 40, MOST_PARAMS = 64, LIMIT_S = 60 };
enum verdict { REFUSED, RIGHT, WRONG, FAULT, VERDICTS };

struct outcome {                 /* shared with the case's process */
  int verdict;
  double gradient, loss;         /* the worst relative differences */
  int tensors, axes;             /* that rows place, of those that are not R */
  char text[700];
};

/* One drawn case. */
struct draw {
  struct fuzz *f;
  char *flag[MOST_FLAGS];
  int n_flags, pp, dp, tp;
  char rows[2000];
  const char *device;
  struct tc_graph *program;      /* whose tensors rows name */
  bool bare;                     /* rows alone: parallel.data = none */
};

/* ---- drawing -------------------------------------------------------------------------- */

static const char *one_of(struct draw *d, int n, const char *const *word)
{
  return word[fuzz_below(d->f, (size_t)n)];
}
#define ONE_OF(d, ...) \
  one_of(d, sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *), (const char *[]){ __VA_ARGS__ })

static bool chance(struct draw *d, int in) { return fuzz_below(d->f, (size_t)in) == 0; }

__attribute__((format(printf, 2, 3)))
static void flag(struct draw *d, const char *fmt, ...)
{
  char text[200];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  TC_ASSERT(d->n_flags < MOST_FLAGS - 1);
  d->flag[d->n_flags++] = tc_strdup(text);
}

/* The name of a tensor of the program, or a pattern for it and those like it. */
static const struct tc_tensor *draw_pattern(struct draw *d, char *out, size_t size, bool parameter)
{
  const struct tc_graph *g = d->program;
  const struct tc_tensor *t;
  do t = &g->tensor[fuzz_below(d->f, (size_t)g->n_tensors)];
  while ((t->param >= 0) != parameter || !strcmp(t->name, "loss.acc"));
  const char *name = t->name, *rest = name[0] == 'h' && name[1] == '.' ? strchr(name + 2, '.') + 1 : NULL;
  if (rest && !chance(d, 4)) snprintf(out, size, "%s%s", ONE_OF(d, "*.", "h.*."), rest);
  else snprintf(out, size, "%s", name);
  char *dot = strrchr(out, '.');
  if (parameter && dot && chance(d, 4)) strcpy(dot, ".*");
  if (parameter && chance(d, 12)) strcpy(out, ONE_OF(d, "*", "*.weight", "w?e.weight"));
  return t;
}

static const char *draw_place(struct draw *d, const struct tc_tensor *t, char out[16], bool storage,
                              bool partial)
{
  size_t k = fuzz_below(d->f, 12), rank = TC_MAX(t->rank, (uint8_t)1);
  if (k < 6) snprintf(out, 16, "S(%d)", (int)fuzz_below(d->f, chance(d, 2) ? rank : TC_MIN(rank, 2u)));
  else if (k < 8) strcpy(out, "R");
  else if (k < 9) snprintf(out, 16, "at(%d)", (int)fuzz_below(d->f, 2));
  else strcpy(out, partial && k < 11 ? "P" : storage ? "S(*)" : "R");
  return out;
}

static void draw_row(struct draw *d)
{
  char pattern[60], p[4][16], line[200];
  const char *axis = d->tp > 1 && (d->dp == 1 || chance(d, 2)) ? "tp" : chance(d, 20) ? "pp" : "dp";
  bool four = chance(d, 3);
  const struct tc_tensor *t = draw_pattern(d, pattern, sizeof pattern, four || chance(d, 3));
  if (four) {
    if (chance(d, 2)) strcpy(p[0], ONE_OF(d, "S(*)", "R", "S(0)")), strcpy(p[1], "R");
    else draw_place(d, t, p[0], true, false), draw_place(d, t, p[1], false, false);
    draw_place(d, t, p[2], true, true);
    draw_place(d, t, p[3], true, false);
    snprintf(line, sizeof line, "%s %s %s %s %s %s%s\n", pattern, axis, p[0], p[1], p[2], p[3],
             ONE_OF(d, "", " use", " mb", " step"));
  } else {
    snprintf(line, sizeof line, "%s %s %s\n", pattern, axis, draw_place(d, t, p[0], false, false));
  }
  strncat(d->rows, line, sizeof d->rows - strlen(d->rows) - 1);
}

/* Rows that people write together, so that more than chance brings is tried. */
static void draw_idiom(struct draw *d)
{
  static const char *const idiom[] = {
    "tokens dp S(0)\ntargets dp S(0)\n", "tokens tp S(0)\ntargets tp S(0)\n",
    "* dp S(*) R S(*) S(*) use\n", "* tp S(*) R S(*) S(*) use\n",
    "*.mlp.fc.* tp S(0)\n*.mlp.proj.weight tp S(1)\n",
    "*.attn.qkv.* tp S(0)\n*.attn.proj.weight tp S(1)\n", "wte.weight tp S(0)\n",
    "pos tp S(0)\n*.residual tp S(0)\n", "*.attn.out tp S(1)\n", "*.mlp.gelu tp S(1)\n",
    "*.attn.proj tp S(0)\n", "*.mlp.fc.* dp S(0)\n", "*.mlp.* dp S(*) R S(*) S(*) mb\n",
    "* tp R R P S(*) step\n", "* dp R R P S(*)\n", "*.residual tp S(1)\n",
    "*.attn.proj tp S(1)\n", "wpe.weight tp S(1)\n", "logits dp at(0)\n", "*.ln_1 tp S(0)\n" };
  const char *rows = one_of(d, sizeof idiom / sizeof *idiom, idiom);
  if (strlen(d->rows) + strlen(rows) + 1 < sizeof d->rows) strcat(d->rows, rows);
}

static void draw_mesh(struct draw *d)
{
  static const int mesh[][3] = { { 1, 2, 2 }, { 1, 2, 2 }, { 1, 2, 2 }, { 1, 3, 1 }, { 1, 1, 4 },
    { 2, 1, 2 }, { 2, 2, 1 }, { 1, 2, 1 }, { 1, 1, 2 }, { 1, 4, 1 }, { 2, 2, 2 } };
  const int *m = mesh[fuzz_below(d->f, sizeof mesh / sizeof *mesh)];
  d->pp = m[0], d->dp = m[1], d->tp = m[2];
  flag(d, "--mesh.pp=%d", d->pp);
  flag(d, "--mesh.dp=%d", d->dp);
  flag(d, "--mesh.tp=%d", d->tp);
}

static void draw_case(struct draw *d)
{
  draw_mesh(d);
  int each = (int)fuzz_below(d->f, 3) + 1, micro = 1 + (int)fuzz_below(d->f, 2);
  int layers = d->pp > 1 ? 4 : chance(d, 3) ? 2 : 1;
  flag(d, "--model.layers=%d", layers);
  flag(d, "--model.hidden=16");
  flag(d, "--model.heads=4");
  flag(d, "--model.context=8");
  flag(d, "--model.vocab=%s", ONE_OF(d, "32", "32", "29"));
  flag(d, "--train.global_batch=%d", d->dp * each * micro * (d->pp > 1 ? 2 : 1));
  flag(d, "--train.micro_batch=%d", chance(d, 2) ? 0 : micro);
  const char *data = ONE_OF(d, "none", "none", "ddp", "ddp", "zero1", "zero2", "zero3", "zero3",
                            "server", "dataparallel");
  flag(d, "--parallel.data=%s", d->bare ? "none" : data);
  if (chance(d, 4) && !d->bare) flag(d, "--parallel.sequence=yes");
  if (chance(d, 3)) flag(d, "--train.recompute=%s", ONE_OF(d, "selective", "full"));
  if (chance(d, 4)) flag(d, "--parallel.offload=%s", ONE_OF(d, "params", "update"));
  if (chance(d, 4)) flag(d, "--parallel.regather=yes");
  if (chance(d, 4)) flag(d, "--parallel.reduce=step");
  if (chance(d, 4)) flag(d, "--parallel.keep=%s", ONE_OF(d, "use", "mb", "step"));
  if (chance(d, 4)) flag(d, "--parallel.unit=block");
  if (chance(d, 4)) flag(d, "--parallel.overlap=no");
  if (chance(d, 3)) flag(d, "--parallel.head_chunk=%s", ONE_OF(d, "4", "8", "3"));
  if (chance(d, 3)) flag(d, "--parallel.prefetch=%d", (int)fuzz_below(d->f, 4));
  if (chance(d, 4)) flag(d, "--train.dropout=0.1");
  if (d->pp > 1)
    flag(d, "--parallel.schedule=%s", ONE_OF(d, "naive", "gpipe", "1f1b", "interleaved", "zb"));
  d->device = chance(d, 8) ? "cpu" : "ref";
  d->program = tc_graph_new();
  const struct tc_model model = { "", layers, 16, 4, 8, 32 };
  const struct tc_gpt_opts opts = { .batch = 1, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 };
  tc_gpt_build(d->program, &model, &opts);
  int idioms = (int)fuzz_below(d->f, 4), rows = (int)fuzz_below(d->f, 4);
  for (int i = 0; i < idioms; i++) draw_idiom(d);
  for (int i = 0; i < rows + !idioms; i++) draw_row(d);
  tc_graph_free(d->program);
}

/* ---- running -------------------------------------------------------------------------- */

struct run {
  struct outcome *out;
  const struct tc_config *c;
  bool poison;
  int vocab;
  float *want[MOST_PARAMS];      /* the one-rank run's m; NULL while it is made */
  double norm[MOST_PARAMS], all; /* their norms, and the whole gradient's */
  double loss[STEPS + 1], want_loss[STEPS + 1];
  double off[MOST_PARAMS];       /* squares of differences: the worst rank's */
  char name[MOST_PARAMS][60];
  int status, n_params;
  bool alone, stopped;
  pthread_mutex_t lock;
  pthread_barrier_t *made;
};

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets)
{
  const struct run *run = ctx;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    tc_philox(r, 5, (uint64_t)rt->step, (uint64_t)(row0 + i));
    tokens[i] = (int32_t)(r[0] % (uint32_t)run->vocab);
    targets[i] = r[2] % 9 ? (int32_t)(r[1] % (uint32_t)run->vocab) : -1;
  }
}

/* Index in the whole tensor of element e of what this rank stores; -1: padding. */
static int64_t whole_index(const struct tc_tensor *t, const struct tc_local *l, int64_t e)
{
  int64_t last = t->rank > 1 ? l->dim[t->rank - 1] : 1, at = 0, stride = 1;
  if (l->rows >= 0) e += l->row0 * last;
  for (int d = t->rank - 1; d >= 0; d--) {
    int64_t i = l->off[d] + e % l->dim[d];
    if (i >= t->dim[d]) return -1;
    e /= l->dim[d];
    at += i * stride;
    stride *= t->dim[d];
  }
  return at;
}

static void compare(struct run *run, struct fx_rank *r, const struct tc_graph *g, struct tc_exec *x)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_tensor *t = &g->tensor[g->param[i].m];
    const float *m = tc_exec_tensor(x, 0, t->id);
    struct tc_local l;
    double off = 0;
    tc_tensor_local(t, r->mesh, r->mesh->coord + (size_t)r->rank * TC_AXES, &l);
    if (run->alone) run->want[i] = tc_calloc((size_t)tc_tensor_elems(t), sizeof **run->want);
    for (int64_t e = 0; e < l.elems; e++) {
      int64_t k = whole_index(t, &l, e);
      if (k < 0) continue;
      if (run->alone) run->want[i][k] = m[e];
      double diff = (double)m[e] - (double)run->want[i][k];
      off += diff * diff;
      if (run->alone) run->norm[i] += (double)m[e] * (double)m[e];
    }
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
  return strstr(text, "fault of Tercio") || !strncmp(text, "schedule:", 9) ||
         !strncmp(text, "arena:", 6) || !strncmp(text, "memory plan", 11);
}

static int make_programs(struct run *run, struct fx_rank *r, struct tc_program *p[4],
                         struct tc_err *err)
{
  const int kind[4] = { TC_TRAIN, TC_INIT, TC_EVAL, TC_REFRESH };
  struct tc_program_opts o;
  struct tc_annotation *rows;
  int rc = tc_setup_program(&o, run->c, r->mesh, &rows, err);
  for (int i = 0; i < 4 && !rc; i++) {
    o.kind = kind[i];
    if (kind[i] == TC_EVAL) o.gpt.dropout = 0;
    rc = tc_program_new(&p[i], &o, r->mesh, r->rank, i ? p[0] : NULL, NULL, err);
  }
  tc_annotations_free(rows);
  return rc;
}

static void run_rank(struct fx_rank *r)
{
  struct run *run = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program *p[4] = { NULL };
  struct tc_exec *x = NULL;
  r->device->poison = run->poison;
  int rc = make_programs(run, r, p, &err);
  if (rc) refuse(run, rc, err.text);
  pthread_barrier_wait(run->made);
  if (rc || run->status) goto end;
  struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank, .fill = fill,
                            .fill_ctx = run };
  memcpy(o.comm, r->comm, sizeof o.comm);
  rc = tc_exec_new(&x, &o, p, 4, &err);
  struct tc_runtime rt = { .seed = 3, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-4f,
                           .weight_decay = 0.1f, .clip = 0 };
  if (!rc) rc = tc_exec_run(x, 1, &rt, &err);
  for (int s = 0; s < STEPS && !rc; s++) {
    rt.step = s + 1;
    rc = tc_exec_run(x, 0, &rt, &err);
    if (rc) break;
    if (s == 0) compare(run, r, p[0]->graph, x);
    if (s == 1) rc = tc_exec_run(x, 3, &rt, &err);           /* as after a checkpoint is read */
    if (r->rank == 0) run->loss[s] = tc_exec_scalar(x, 0, p[0]->graph->loss);
  }
  if (!rc) rc = tc_exec_run(x, 2, &rt, &err);
  if (!rc && r->rank == 0) run->loss[STEPS] = tc_exec_scalar(x, 2, p[2]->graph->loss);
  if (rc) {
    refuse(run, rc, err.text);
    run->stopped = true;
    tc_hub_leave(r->hub, r->rank);
  }
end:
  tc_exec_free(x);
  for (int i = 0; i < 4; i++) tc_program_free(p[i]);
}

static void run_on(struct run *run, struct tc_mesh *m, const char *device)
{
  pthread_barrier_t made;
  pthread_barrier_init(&made, NULL, (unsigned)m->world);
  run->made = &made;
  fx_run(m, device, run_rank, run);
  pthread_barrier_destroy(&made);
}

/* The one-rank run of the same model and batch. */
static int run_alone(struct run *run, const struct draw *d, struct tc_err *err)
{
  char *own[MOST_FLAGS + 1] = { (char *)(uintptr_t)"fuzz" };
  int n = 1;
  for (int i = 0; i < d->n_flags; i++)
    if (!strncmp(d->flag[i], "--model", 7) || !strncmp(d->flag[i], "--train.global", 14) ||
        !strncmp(d->flag[i], "--train.drop", 12)) own[n++] = d->flag[i];
  const char *none[] = { NULL };
  struct tc_config *c;
  struct tc_mesh *m;
  const int32_t node[1] = { 0 };
  TC_TRY(tc_config_new(&c, n, own, none, NULL, err));
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

static void judge(struct run *run)
{

  struct outcome *o = run->out;
  const char *worst = "";
  for (int i = 0; i < run->n_params; i++) {
    double rel = sqrt(run->off[i]) / (sqrt(run->norm[i]) + 1e-2 * sqrt(run->all));
    if (!(rel <= o->gradient)) o->gradient = rel, worst = run->name[i];
  }
  for (int s = 0; s <= STEPS; s++) {
    double rel = fabs(run->loss[s] / run->want_loss[s] - 1);
    if (!(rel <= o->loss)) o->loss = rel;
  }
  bool right = o->gradient <= 1e-6 && o->loss <= 1e-5;
  o->verdict = right ? RIGHT : WRONG;
  if (!right)
    snprintf(o->text, sizeof o->text, "gradient of %s off by %.1e, loss by %.1e", worst, o->gradient,
             o->loss);
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
        axes |= 1u << a->axis;
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
  const char *none[] = { NULL };
  const int32_t node[16] = { 0 };
  char *argv[MOST_FLAGS + 1] = { (char *)(uintptr_t)"fuzz" };
  out->verdict = FAULT;
  memcpy(argv + 1, d->flag, (size_t)d->n_flags * sizeof *argv);
  int rc = tc_config_new(&c, d->n_flags + 1, argv, none, NULL, &err);
  if (!rc) run.vocab = (int)c->model_vocab;
  if (!rc) rc = run_alone(&run, d, &err);
  TC_ASSERT(rc == 0);
  rc = tc_setup_mesh(&m, c, d->pp * d->dp * d->tp, node, 0, &err);
  if (!rc) {
    run.c = c;
    run.poison = true;
    run_on(&run, m, d->device);
    if (!run.status) count_rows(out, c, m);
  } else {
    refuse(&run, rc, err.text);
  }
  bool said = run.status == TC_EUSER || run.status == TC_ELAYOUT;
  if (!run.status) judge(&run);
  else if (said && !run.stopped && !is_fault(out->text)) out->verdict = REFUSED;
}

/* ---- the cases ------------------------------------------------------------------------ */

static void one_process(struct draw *d, struct outcome *out)
{
  fflush(stdout);
  pid_t pid = fork();
  TC_ASSERT(pid >= 0);
  if (pid == 0) {
    setitimer(ITIMER_PROF, &(struct itimerval){ .it_value.tv_sec = 0 }, NULL);
    alarm(LIMIT_S);
    run_case(d, out);
    _exit(0);
  }
  int status;
  while (waitpid(pid, &status, 0) < 0) {}
  if (WIFSIGNALED(status)) {
    out->verdict = FAULT;
    snprintf(out->text, sizeof out->text, "ended by signal %d%s", WTERMSIG(status),
             WTERMSIG(status) == SIGALRM ? ": out of time" : "");
  }
}

static void show(const struct fuzz *f, const struct draw *d, const struct outcome *o)
{
  static const char *const name[] = { "refused", "right", "WRONG", "FAULT" };
  printf("# case %llu of seed %llu, %s: %s, gradient %.1e, loss %.1e\n#  ",
         (unsigned long long)f->cases, (unsigned long long)f->seed, name[o->verdict], o->text,
         o->gradient, o->loss);
  for (int i = 0; i < d->n_flags - 1; i++) printf(" %s", d->flag[i]);
  printf(" (%s)\n", d->device);
  for (const char *x = d->rows; *x; x += strcspn(x, "\n") + 1)
    printf("#      %.*s\n", (int)strcspn(x, "\n"), x);
}

/* A layout by hand: a file of rows, and options as a case has them. */
static int try_one(int argc, char **argv, struct outcome *out)
{
  struct fuzz f = { 0 };
  struct draw d = { .f = &f, .pp = 1, .dp = 1, .tp = 1, .device = "ref" };
  static const char *const toy[] = { "--model.layers=1", "--model.hidden=16", "--model.heads=4",
    "--model.context=8", "--model.vocab=32", "--train.global_batch=4", "--parallel.data=none" };
  for (size_t i = 0; i < sizeof toy / sizeof *toy; i++) flag(&d, "%s", toy[i]);
  for (int i = 3; i < argc; i++) {
    flag(&d, "%s", argv[i]);
    if (!strncmp(argv[i], "--mesh.pp=", 10)) d.pp = atoi(argv[i] + 10);
    if (!strncmp(argv[i], "--mesh.dp=", 10)) d.dp = atoi(argv[i] + 10);
    if (!strncmp(argv[i], "--mesh.tp=", 10)) d.tp = atoi(argv[i] + 10);
  }
  flag(&d, "--parallel.annotations=%s", argv[2]);
  one_process(&d, out);
  show(&f, &d, out);
  return out->verdict != RIGHT;
}

int main(int argc, char **argv)
{
  struct fuzz f;
  bool verbose = false, bare = false;
  fuzz_start(&f, argc, argv);
  if (f.most_cases == 3000) f.most_cases = SHORT;
  if (f.seed == 1) f.seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10)
                                           : (uint64_t)tc_now_ns() / 1000 % 1000000;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--full")) f.most_cases = FULL;
    verbose |= !strcmp(argv[i], "--verbose");
    bare |= !strcmp(argv[i], "--bare");
  }
  struct outcome *out = mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                             -1, 0);
  TC_ASSERT(out != MAP_FAILED);
  if (argc > 2 && !strcmp(argv[1], "--try")) return try_one(argc, argv, out);
  int n[VERDICTS] = { 0 }, wide = 0;
  double worst = 0;
  while (fuzz_more(&f)) {
    struct draw d = { .f = &f, .bare = bare };
    draw_case(&d);
    fuzz_write(&f, d.rows, strlen(d.rows));
    flag(&d, "--parallel.annotations=%s", f.path);
    memset(out, 0, sizeof *out);
    one_process(&d, out);
    n[out->verdict]++;
    wide += out->verdict == RIGHT && out->tensors >= 3 && out->axes >= 2;
    if (out->verdict == RIGHT) worst = TC_MAX(worst, out->gradient);
    if (verbose || out->verdict == WRONG || out->verdict == FAULT) show(&f, &d, out);
    for (int i = 0; i < d.n_flags; i++) free(d.flag[i]);
  }
  printf("# %llu cases of seed %llu: %d right, %d of them place three tensors or more on two axes, "
         "%d refused; the worst gradient is off by %.1e\n", (unsigned long long)f.cases,
         (unsigned long long)f.seed, n[RIGHT], wide, n[REFUSED], worst);
  ok(n[RIGHT] > 0, "some layouts are accepted");
  is_int(n[WRONG], 0, "layouts that are accepted give one rank's gradients and losses");
  is_int(n[FAULT], 0, "none ends in a fault, a signal or a wait without end");
  return done_testing();
}
