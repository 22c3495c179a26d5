/* calibrate.c - `tercio plan --calibrate FILE`: measures the prices of this machine.
 *
 * Short trainings of the run file's model, on one rank and on as many as can compute at the same time, are
 * started as child processes with a trace. The time of each op is the median of its node's events, averaged
 * over nodes of one shape, times the factor by which the plans of these runs match their measured step times
 * (a step has more than its ops). Links are measured by `tercio comm`. So ops are timed under the conditions
 * of training, for example with the same cache contents.
 *
 * The events of a rank's step are in the order of its list of actions (exec/exec.c): they are matched
 * one to one, and a trace that does not match is an error. */
#include "src/cmd/plan/plan.h"
#include "src/program/collective.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 10, CHILD_S = 900, TEXT_BYTES = 400000, ROUNDS = 3, RUNS = 128 };

/* One timing of an action. */
struct timing { struct tc_op_sample s; int32_t run, rank, node; };

struct calib {
  const struct tc_plan_job *j;
  char dir[64], program[4096];
  struct timing *t; int n, cap;
  struct tc_config cfg[RUNS];                    /* of each run */
  double step_s[RUNS];                           /* median of rank 0 */
  int run;
  double *issue; int n_issues, cap_issues;       /* seconds */
};

/* ---- children -------------------------------------------------------------------- */

/* Runs this program as a child process; its output goes to dir/NAME. */
static int run_child(struct calib *c, const char *name, const char *const *argv, struct tc_err *err)
{
  char *out = tc_sprintf("%s/%s", c->dir, name), *log = tc_sprintf("%s/log", c->dir);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    int o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int e = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (o >= 0 && e >= 0 && dup2(o, 1) >= 0 && dup2(e, 2) >= 0)
      execv(c->program, (char *const *)(uintptr_t)argv);
    _exit(127);
  }
  int status = -1;
  int64_t end_ns = tc_now_ns() + CHILD_S * INT64_C(1000000000);
  while (pid > 0 && waitpid(pid, &status, WNOHANG) == 0) {
    if (tc_now_ns() > end_ns) kill(pid, SIGKILL);
    tc_sleep_ns(5000000);
  }
  int rc = 0;
  if (pid < 0 || status != 0) {
    char said[400] = "";
    FILE *f = fopen(log, "r");
    while (f && fgets(said, sizeof said, f)) said[strcspn(said, "\n")] = 0;
    if (f) fclose(f);
    rc = tc_fail(err, TC_EUSER, "calibrating: tercio %s failed: %s", argv[1], said);
  }
  free(out);
  free(log);
  return rc;
}

static int write_text(const char *path, struct tc_err *err)
{
  FILE *f = fopen(path, "w");
  for (int i = 0; f && i < TEXT_BYTES; i++)
    fputc('a' + (int)(tc_uniform(1, 0, 0, (uint64_t)i) * 26), f);
  if (!f || fclose(f)) return tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  return 0;
}

/* ---- traces ---------------------------------------------------------------------- */

/* Whether the executor traces this action on the compute track (exec/timing.c, event_of). */
static bool traced(const struct tc_program *p, const struct tc_mesh *m, int rank,
                   const struct tc_action *a, struct tc_op_cost *cost, bool *travels)
{
  const struct tc_node *n = &p->graph->node[a->node];
  bool none;
  tc_op_cost(cost, p->graph, n, m, rank, &none);
  *travels = false;
  if (n->op != TC_OP_RESHARD) return !none;
  if (n->coll == TC_COPY) return false;
  if (tc_coll_is_local(n->coll) || m->size[n->axis] == 1) return a->kind != TC_WAIT;
  *travels = true;
  return tc_collective_coll(n, tc_mesh_coord(m, rank, n->axis)) != TC_COLLS;
}

/* Takes the timings of one rank's step: dur[n_dur] in microseconds, in order, with their names. */
static int take_step(struct calib *c, const struct tc_program *p, const struct tc_mesh *m, int rank,
                     const double *dur, const char **name, int n_dur, struct tc_err *err)
{
  int at = 0;
  for (int32_t i = 0; i < p->actions->n; i++) {
    const struct tc_action *a = &p->actions->action[i];
    const struct tc_node *n = &p->graph->node[a->node];
    struct tc_op_cost cost;
    bool travels;
    if (!traced(p, m, rank, a, &cost, &travels)) continue;
    if (at >= n_dur || (n->op != TC_OP_RESHARD && strcmp(name[at], tc_op_info[n->op].name)))
      return tc_fail(err, TC_EUSER,
                     "calibrating: the trace does not match the program at action %d (%s, "
                     "%s)", i, tc_op_info[n->op].name, at < n_dur ? name[at] : "nothing");
    double s = dur[at++] * 1e-6;
    if (travels) {
      if (a->kind == TC_ISSUE) {
        TC_GROW(c->issue, c->n_issues, c->cap_issues);
        c->issue[c->n_issues++] = s;
      }
      continue;
    }
    TC_GROW(c->t, c->n, c->cap);
    struct timing *t = &c->t[c->n++];
    *t = (struct timing){ { .op = n->op, .ranks = cost.ranks, .seconds = s }, c->run, rank, n->id };
    tc_op_key(&cost, t->s.key);
  }
  return at == n_dur ? 0 : tc_fail(err, TC_EUSER,
                                   "calibrating: the trace of rank %d has %d events, the "
                                   "program %d", rank, n_dur, at);
}

static int take_rank(struct calib *c, json_t *events, const struct tc_program *p,
                     const struct tc_mesh *m,
                     int rank, struct tc_err *err)
{
  size_t all = json_array_size(events);
  double *dur = tc_calloc(all + 1, sizeof *dur);
  const char **name = tc_calloc(all + 1, sizeof *name);
  int rc = 0;
  for (int step = 2; step < STEPS && !rc; step++) {   /* the first is a warm-up, the last evaluates */
    int n = 0;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e) {
      json_t *args = json_object_get(e, "args");
      const char *ph = json_string_value(json_object_get(e, "ph"));
      if (!ph || strcmp(ph, "X") || json_integer_value(json_object_get(e, "pid")) != rank ||
          json_integer_value(json_object_get(e, "tid")) != 1 ||
          json_integer_value(json_object_get(args, "step")) != step)
        continue;
      dur[n] = json_number_value(json_object_get(e, "dur"));
      name[n++] = json_string_value(json_object_get(e, "name"));
    }
    rc = take_step(c, p, m, rank, dur, name, n, err);
  }
  free(dur);
  free(name);
  return rc;
}

static double middle_step_s(json_t *events)
{
  double s[STEPS] = { 0 };
  int n = 0;
  size_t i;
  json_t *e;
  json_array_foreach(events, i, e) {
    int step = (int)json_integer_value(json_object_get(json_object_get(e, "args"), "step"));
    const char *name = json_string_value(json_object_get(e, "name"));
    if (name && !strcmp(name, "step") && json_integer_value(json_object_get(e, "pid")) == 0 &&
        step > 1 && n < STEPS)
      s[n++] = json_number_value(json_object_get(e, "dur")) * 1e-6;
  }
  return n ? tc_median(s, n) : 0;
}

static int take_trace(struct calib *c, const char *path, const struct tc_config *x,
                      struct tc_err *err)
{
  json_error_t e;
  json_t *o = json_load_file(path, 0, &e), *events = json_object_get(o, "traceEvents");
  int world = (int)x->run_ranks;
  int32_t *node = tc_calloc((size_t)world, sizeof *node);
  struct tc_mesh *m = NULL;
  struct tc_program_opts opts;
  struct tc_annotation *rows = NULL;
  int rc = o ? tc_setup_mesh(&m, x, world, node, 0, err)
             : tc_fail(err, TC_EUSER, "calibrating: cannot read the trace: %s", e.text);
  if (!rc) rc = tc_setup_program(&opts, x, m, &rows, err);
  c->step_s[c->run] = middle_step_s(events);
  for (int r = 0; r < world && !rc; r++) {
    struct tc_program *p = NULL;
    rc = tc_program_new(&p, &opts, m, r, NULL, NULL, err);
    if (!rc) rc = take_rank(c, events, p, m, r, err);
    tc_program_free(p);
  }
  tc_annotations_free(rows);
  tc_mesh_free(m);
  free(node);
  json_decref(o);
  return rc;
}

/* ---- what is run ----------------------------------------------------------------- */

/* Runs a short training of the configuration; impossible layouts are skipped. */
static int train(struct calib *c, const struct tc_config *want, struct tc_err *err)
{
  TC_ASSERT(c->run < RUNS);
  struct tc_config x = *want;
  c->cfg[c->run] = x;
  char *text_file = tc_sprintf("%s/text", c->dir), *ini = tc_sprintf("%s/run.ini", c->dir);
  char *out = tc_sprintf("%s/run%d", c->dir, c->run), *trace = tc_sprintf("%s/trace", c->dir);
  struct tc_list data = { &text_file, 1 };
  x.data_train = data;
  x.data_val = x.train_eval_tasks = (struct tc_list){ NULL, 0 };
  x.data_format = TC_FORMAT_TEXT;
  x.train_steps = STEPS;
  x.train_stop_at = x.train_eval_every = x.ckpt_every = 0;
  x.ckpt_every_minutes = 0;
  x.train_eval_batches = 1;
  x.run_out = out;
  x.run_trace = trace;
  x.run_trace_steps = STEPS;
  x.ckpt_dir = "";
  x.ckpt_resume = TC_NO;
  char *text = tc_config_text(&x);
  FILE *f = fopen(ini, "w");
  bool bad = !f || fputs(text, f) == EOF;
  if (f && fclose(f)) bad = true;
  const char *const argv[] = { c->program, "train", ini, NULL };
  int rc = bad ? tc_fail(err, TC_EUSER, "cannot write %s: %s", ini, strerror(errno))
               : run_child(c, "out", argv, err);
  if (!rc) rc = take_trace(c, trace, &x, err);
  c->run++;
  free(text);
  free(text_file);
  free(ini);
  free(out);
  free(trace);
  return rc;
}

/* Runs with micro-batches from one sequence to the run file's own, on one rank and on `ranks` at the same time;
 * then runs with tensor and data parallelism. */
static int train_all(struct calib *c, int ranks, struct tc_err *err)
{
  const struct tc_config *own = c->j->cfg;
  int64_t most = own->train_micro_batch > 0 ? own->train_micro_batch
      : TC_MIN(own->train_global_batch, 8);
  struct tc_config x = *own;
  x.mesh_pp = x.mesh_tp = x.mesh_dp = 1;
  x.mesh_order = TC_ORDER_AUTO;
  x.mesh_stages = "auto";
  x.parallel_data = TC_DATA_DDP;
  x.parallel_schedule = TC_SCHEDULE_1F1B;
  x.parallel_virtual_stages = TC_AUTO;
  x.parallel_sequence = false;
  x.parallel_offload = TC_OFFLOAD_NO;
  x.parallel_annotations = "";
  for (int beside = 1; beside <= ranks; beside += TC_MAX(ranks - 1, 1)) {
    x.run_ranks = x.mesh_dp = beside;
    for (int64_t micro = 1; micro <= most; micro *= 2) {
      x.train_micro_batch = micro;
      x.train_global_batch = 2 * micro * beside;
      TC_TRY(train(c, &x, err));
    }
    if (ranks == 1) return 0;
  }
  x.parallel_data = TC_DATA_ZERO3;
  TC_TRY(train(c, &x, err));
  x.parallel_data = TC_DATA_DDP;
  struct tc_model m;
  TC_TRY(tc_setup_model(own, &m, err));
  if (m.heads % ranks) return 0;
  x.mesh_dp = 1;
  x.mesh_tp = ranks;
  x.train_global_batch = 2 * x.train_micro_batch;
  for (int s = 0; s < 2; s++) {
    x.parallel_sequence = s;
    TC_TRY(train(c, &x, err));
  }
  return 0;
}

/* ---- from timings to prices ------------------------------------------------------ */

static int by_node(const void *a, const void *b)
{
  const struct timing *x = a, *y = b;
  if (x->s.op != y->s.op) return x->s.op < y->s.op ? -1 : 1;
  if (x->s.ranks != y->s.ranks) return x->s.ranks < y->s.ranks ? -1 : 1;
  int k = memcmp(x->s.key, y->s.key, sizeof x->s.key);
  if (k) return k;
  if (x->run != y->run) return x->run < y->run ? -1 : 1;
  if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
  if (x->node != y->node) return x->node < y->node ? -1 : 1;
  return x->s.seconds < y->s.seconds ? -1 : x->s.seconds > y->s.seconds;
}

static bool same_shape(const struct timing *a, const struct timing *b)
{
  return a->s.op == b->s.op && a->s.ranks == b->s.ranks &&
         !memcmp(a->s.key, b->s.key, sizeof a->s.key);
}

/* Reduces timings to the median of each node, averaged over the nodes of a shape. */
static void reduce_timings(struct calib *c, struct tc_plan_device *d)
{
  qsort(c->t, (size_t)c->n, sizeof *c->t, by_node);
  for (int i = 0; i < c->n;) {
    double sum = 0;
    int nodes = 0, first = i;
    while (i < c->n && same_shape(&c->t[i], &c->t[first])) {
      int j = i;
      while (j < c->n && same_shape(&c->t[j], &c->t[i]) && c->t[j].run == c->t[i].run &&
             c->t[j].rank == c->t[i].rank && c->t[j].node == c->t[i].node)
        j++;
      sum += c->t[i + (j - i) / 2].s.seconds;
      nodes++;
      i = j;
    }
    TC_GROW(d->sample, d->n_samples, d->cap_samples);
    struct tc_op_sample *s = &d->sample[d->n_samples++];
    *s = c->t[first].s;
    s->seconds = sum / nodes;
    if (s->op == TC_OP_MATMUL)
      d->flops[TC_F32] = TC_MAX(d->flops[TC_F32],
                                2 * s->key[0] * s->key[1] * s->key[2] / s->seconds);
    if (s->op == TC_OP_ADD && s->key[0] > 1e5)
      d->bytes_per_s = TC_MAX(d->bytes_per_s, s->key[0] / s->seconds);
  }
}

static int measure_links(struct calib *c, struct tc_cluster *k, int ranks, struct tc_err *err)
{
  if (ranks < 2) return 0;
  char *n = tc_sprintf("--run.ranks=%d", ranks), *dp = tc_sprintf("--mesh.dp=%d", ranks);
  char *out = tc_sprintf("%s/comm.json", c->dir);
  const char *const argv[] = { c->program, "comm", "--op", "all", "--axis", "world", "--min", "1K",
                               "--max", "4M", "--iters", "25", "--json", n, dp, NULL };
  int rc = run_child(c, "comm.json", argv, err);
  if (!rc) rc = tc_links_read(&k->link[TC_WIRE_NODE], out, err);
  free(n);
  free(dp);
  free(out);
  return rc;
}

static int planned_s(const struct calib *c, int run, struct tc_cluster *k, double *step_s,
                     struct tc_err *err)
{
  struct tc_plan p;
  k->devices = (int)c->cfg[run].run_ranks;
  TC_TRY(tc_plan_layout(&p, &c->cfg[run], k->devices, k, true, err));
  *step_s = p.time.step_s;
  return 0;
}

/* The time of a step outside the traced ops is distributed over the ops: the median of measured / planned, over
 * the runs with this number of ranks that send least. */
static int find_slack(const struct calib *c, int ranks, struct tc_cluster *k, struct tc_err *err)
{
  double ratio[RUNS], planned;
  int n = 0;
  for (int i = 0; i < c->run; i++) {
    if (c->cfg[i].run_ranks != ranks || c->cfg[i].mesh_dp != ranks ||
        c->cfg[i].parallel_data != TC_DATA_DDP)
      continue;
    TC_TRY(planned_s(c, i, k, &planned, err));
    if (planned > 0) ratio[n++] = c->step_s[i] / planned;
  }
  const double factor = n ? tc_median(ratio, n) : 1;
  for (int i = 0; i < k->device.n_samples; i++)
    if (k->device.sample[i].ranks == ranks) k->device.sample[i].seconds *= factor;
  return 0;
}

/* The fraction of a transfer's time that is taken from computation: such that the plans of the runs that send
 * most match their measured times. */
static int find_steal(const struct calib *c, struct tc_cluster *k, struct tc_err *err)
{
  double said[2], x[RUNS];
  int n = 0;
  for (int i = 0; i < c->run; i++) {
    if (c->cfg[i].parallel_data != TC_DATA_ZERO3) continue;
    for (int s = 0; s < 2; s++) {
      k->device.steal = s;
      TC_TRY(planned_s(c, i, k, &said[s], err));
    }
    x[n++] = said[1] > said[0] ? (c->step_s[i] - said[0]) / (said[1] - said[0]) : 0;
  }
  k->device.steal = n ? TC_MIN(TC_MAX(tc_median(x, n), 0), 2) : 0;
  return 0;
}

/* The folder for temporary files: TMPDIR, unless its name is long, or has a blank, at which a run file's
 * list of files is split, or has a quotation mark of the shell. */
static const char *temporary_folder(void)
{
  const char *tmp = getenv("TMPDIR");
  return tmp && *tmp && strlen(tmp) < 40 && !strpbrk(tmp, " \t\n'") ? tmp : "/tmp";
}

int tc_plan_calibrate(const struct tc_plan_job *j, const char *path, struct tc_err *err)
{
  struct calib c = { .j = j };
  struct tc_cluster k;
  const char *tmp = temporary_folder();
  snprintf(c.dir, sizeof c.dir, "%.40s/tercio-plan-XXXXXX", tmp);
  ssize_t n = readlink("/proc/self/exe", c.program, sizeof c.program - 1);
  if (n <= 0 || !mkdtemp(c.dir))
    return tc_fail(err, TC_EUSER, "cannot make a folder in %s: %s", tmp, strerror(errno));
  TC_TRY(tc_cluster_read(&k, "cpu", err));
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  int threads = j->cfg->run_threads > 0 ? (int)j->cfg->run_threads : 1;
  int ranks = j->cfg->run_ranks > 1 ? (int)j->cfg->run_ranks : TC_MAX((int)cpus / threads, 1);
  struct tc_config cfg = *j->cfg;
  cfg.run_threads = threads;
  c.j = &(struct tc_plan_job){ .cfg = &cfg };
  char *text = tc_sprintf("%s/text", c.dir), *rm = tc_sprintf("rm -rf '%s'", c.dir);
  int rc = write_text(text, err);
  if (!rc) rc = measure_links(&c, &k, ranks, err);
  for (int i = 0; i < ROUNDS && !rc; i++)          /* so that one disturbed round does not change the median */
    rc = train_all(&c, ranks, err);
  if (!rc) {
    struct tc_plan_device *d = &k.device;
    snprintf(d->name, sizeof d->name, "cpu, %d thread%s", threads, threads == 1 ? "" : "s");
    d->flops[TC_F32] = d->bytes_per_s = 0;
    reduce_timings(&c, d);
    if (d->bytes_per_s <= 0) d->bytes_per_s = 5e9;
    d->copy_bytes_per_s = d->bytes_per_s / 2;
    d->eff_flops = d->eff_bytes = 1;
    d->op_s = 1e-6;
    d->issue_s = c.n_issues ? tc_median(c.issue, c.n_issues) : 0;
    d->cores = TC_MAX((double)cpus / threads, 1);
    d->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / d->cores;
    rc = find_slack(&c, 1, &k, err);
    if (!rc && ranks > 1) rc = find_slack(&c, ranks, &k, err);
    if (!rc && ranks > 1) rc = find_steal(&c, &k, err);
  }
  if (!rc) rc = tc_cluster_write(&k, path, err);
  if (!rc) printf("%s: %d shapes of ops, products at %.4g GF/s, memory at %.4g GB/s\n", path,
                  k.device.n_samples, k.device.flops[TC_F32] * 1e-9, k.device.bytes_per_s * 1e-9);
  if (system(rm)) tc_warn("cannot remove %s", c.dir);
  free(text);
  free(rm);
  free(c.t);
  free(c.issue);
  tc_cluster_done(&k);
  return rc;
}
