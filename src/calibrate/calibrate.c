/* calibrate.c - `tercio plan --calibrate FILE`: measures the prices of this machine.
 *
 * Short trainings of the run file's model, on one rank and on as many as can compute at the same time, are
 * started as child processes with a trace. The time of each op is the median of its node's events, averaged
 * over nodes of one shape, times the factor by which the plans of these runs match their measured step times
 * (a step has more than its ops). Links are measured by `tercio comm`. So ops are timed under the conditions
 * of training, for example with the same cache contents.
 *
 * On a GPU a traced step is launched kernel by kernel and timed by the GPU's clock, with each op by itself
 * (run.fuse = no). A second run per layout, as users run it, says which groups of ops are fused and how long its steps
 * take without a trace. GPUs do not slow each other down, so one rank is timed. */
#include "src/calibrate/calibrate.h"
#include "src/calibrate/timings.h"
#include "kernels/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 10, TRACED = 3, CHILD_S = 900, TEXT_BYTES = 400000, ROUNDS = 3, RUNS = 128,
       LEAST_CONTEXT = 16 };

struct calib {
  const struct tc_config *own;                   /* the user's, with this machine's threads and device */
  char dir[64], program[4096];
  bool gpu;
  double memory_bytes;                           /* of the GPU */
  struct tc_timings timings;
  struct tc_config cfg[RUNS];                    /* of each run */
  double step_s[RUNS];                           /* median of rank 0 */
  int run;
};

/* ---- children -------------------------------------------------------------------- */

/* Runs this program as a child process; its output goes to dir/NAME. */
static int run_child(struct calib *c, const char *name, const char *const *argv, struct tc_err *err)
{
  char *out = tc_sprintf("%s/%s", c->dir, name), *log = tc_sprintf("%s/log", c->dir);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);            /* a signal that ends this process ends the child's measuring too */
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
    char message[400] = "";
    char *line;
    struct tc_err unread = { 0 };
    struct tc_lines *f;
    if (tc_lines_open(&f, log, "log", &unread) < 0) snprintf(message, sizeof message, "%.300s", unread.text);
    while (f && tc_lines_next(f, &line, NULL, &unread) == 1)
      snprintf(message, sizeof message, "%.*s", (int)strcspn(line, "\n"), line);
    tc_lines_close(f);
    rc = tc_fail(err, TC_EUSER, "calibrating: tercio %s failed: %s", argv[1], message);
  }
  TC_FREE(out, log);
  return rc;
}

static int write_text(const char *path, struct tc_err *err)
{
  struct tc_output *f;
  TC_TRY(tc_output_new(&f, path, &(struct tc_output_opts){ 0 }, err));
  for (int i = 0; i < TEXT_BYTES; i++)
    fputc('a' + (int)(tc_uniform(1, 0, 0, (uint64_t)i) * 26), tc_output_stream(f));
  return tc_output_finish(f, err);
}

/* ---- what is run ----------------------------------------------------------------- */

/* Runs a training of x, which has its paths; then its folder is removed, as a checkpoint is in it. *step_s (unless
 * NULL): the median of the steps without a trace. */
static int run_training(struct calib *c, const struct tc_config *x, double *step_s, struct tc_err *err)
{
  char *ini = tc_sprintf("%s/run.ini", c->dir), *metrics = tc_sprintf("%s/metrics.jsonl", x->run_out);
  char *rm = tc_sprintf("rm -rf '%s'", x->run_out), *text = tc_config_text(x);
  const char *const argv[] = { c->program, "train", ini, NULL };
  tc_unlink(AT_FDCWD, ini);
  int rc = tc_output_text(ini, &(struct tc_output_opts){ 0 }, text, err);
  if (!rc) rc = run_child(c, "out", argv, err);
  /* The first two steps after those with a trace make graphs. */
  if (!rc && step_s) *step_s = tc_metrics_step_s(metrics, TRACED + 3, STEPS - 1);
  if (system(rm)) tc_warn("cannot remove %s", x->run_out);
  TC_FREE(text, rm, metrics, ini);
  return rc;
}

/* Runs a short training of the configuration, on a GPU two. */
static int train(struct calib *c, const struct tc_config *want, struct tc_err *err)
{
  TC_ASSERT(c->run < RUNS);
  struct tc_config x = *want;
  double *step_s = &c->step_s[c->run];
  const int32_t one_node[1] = { 0 };
  if (c->gpu) {                                  /* as the run would choose, since its operations are looked up in a trace */
    const int64_t rows = tc_plan_head_chunk(&x, 1, one_node, 1, c->memory_bytes);
    if (rows > 0) x.parallel_head_chunk = rows;
  }
  c->cfg[c->run] = x;
  char *text_file = tc_sprintf("%s/text", c->dir);
  char *out = tc_sprintf("%s/run%d", c->dir, c->run), *trace = tc_sprintf("%s/trace", c->dir);
  struct tc_list data = { &text_file, 1 };
  x.data_train = data;
  x.data_val = x.train_eval_tasks = (struct tc_list){ NULL, 0 };
  x.data_format = TC_FORMAT_TEXT;
  x.train_steps = STEPS;
  x.n_stages = 0;
  x.train_stop_at = x.train_eval_every = x.ckpt_every = 0;
  x.ckpt_every_minutes = 0;
  x.train_eval_batches = 1;
  x.run_out = out;
  x.run_trace = trace;
  x.run_trace_steps = STEPS;
  x.ckpt_dir = x.run_tensorboard = x.run_openmetrics = "";
  x.ckpt_resume = TC_NO;
  if (c->gpu) x.run_fuse = false;
  int rc = run_training(c, &x, NULL, err);
  if (!rc) rc = tc_timings_take(&c->timings, trace, &x, c->run, STEPS, step_s, err);
  if (!rc && c->gpu) {
    x.run_fuse = want->run_fuse;
    x.run_trace_steps = TRACED;
    rc = run_training(c, &x, step_s, err);
    if (!rc) rc = tc_timings_take_fused(&c->timings, trace, err);
  }
  c->run++;
  TC_FREE(text_file, out, trace);
  return rc;
}

/* Attention by length: the largest micro-batch as four times as many sequences of a quarter. */
static int train_shorter(struct calib *c, struct tc_config x, struct tc_err *err)
{
  struct tc_model m;
  TC_TRY(tc_setup_model(&x, &m, err));
  if (m.context % 4 || m.context < 4 * LEAST_CONTEXT) return 0;
  x.model_context = m.context / 4;
  x.train_micro_batch *= 4;
  x.train_global_batch *= 4;
  return train(c, &x, err);
}

/* Runs with micro-batches from one sequence to the run file's own, on one rank and on `ranks` at the same time;
 * then runs with tensor and data parallelism. */
static int train_all(struct calib *c, int ranks, struct tc_err *err)
{
  const struct tc_config *own = c->own;
  int64_t most = own->train_micro_batch > 0 ? own->train_micro_batch
      : TC_MIN(own->train_global_batch, 8);
  struct tc_config x = *own;
  x.mesh_pp = x.mesh_cp = x.mesh_tp = x.mesh_dp = x.mesh_ep = 1;
  x.mesh_shard = TC_AUTO;
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
    TC_TRY(train_shorter(c, x, err));
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

static int measure_links(struct calib *c, struct tc_cluster *k, int ranks, struct tc_err *err)
{
  if (ranks < 2) return 0;
  char *device = tc_sprintf("--run.device=%s", tc_word_run_device(c->own->run_device));
  char *n = tc_sprintf("--run.ranks=%d", ranks), *dp = tc_sprintf("--mesh.dp=%d", ranks);
  char *out = tc_sprintf("%s/comm.json", c->dir);
  const char *const argv[] = { c->program, "comm", "--op", "all", "--axis", "world", "--min", "1K",
                               "--max", c->gpu ? "16M" : "4M", "--iters", "25", "--json", n, dp, device, NULL };
  int rc = run_child(c, "comm.json", argv, err);
  if (!rc) rc = tc_links_read(&k->link[TC_WIRE_NODE], out, err);
  k->source[TC_TERM_TRANSFERS] = TC_SOURCE_CALIBRATED;
  TC_FREE(device, n, dp, out);
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
  double planned[2], x[RUNS];
  int n = 0;
  for (int i = 0; i < c->run; i++) {
    if (c->cfg[i].parallel_data != TC_DATA_ZERO3) continue;
    for (int s = 0; s < 2; s++) {
      k->device.steal = s;
      TC_TRY(planned_s(c, i, k, &planned[s], err));
    }
    x[n++] = planned[1] > planned[0] ? (c->step_s[i] - planned[0]) / (planned[1] - planned[0]) : 0;
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

/* ---- the device ------------------------------------------------------------------ */

/* The GPU's figures as far as they are known without a measurement: those of devices.def for its name. */
static int gpu_cluster(struct tc_cluster *k, struct tc_err *err)
{
  struct tc_device *d;
  char text[200] = "";
  int64_t left = 0, total = 0;
  TC_TRY(tc_device_open(&d, "cuda", 1, err));
  d->ops->version(d, text, sizeof text);
  d->ops->memory(d, &left, &total);
  tc_device_close(d);
  const char *comma = strrchr(text, ','), *name = comma ? comma + 2 : text, *card = tc_plan_device_of(name);
  TC_TRY(tc_cluster_read(k, card ? card : "cpu", err));
  snprintf(k->device.name, sizeof k->device.name, "%.*s", (int)sizeof k->device.name - 1, name);
  k->device.context_bytes = (double)TC_MIN(total - left, total / 20);      /* more than that is another process's */
  k->device.memory_bytes = (double)total - k->device.context_bytes;
  if (card) return 0;
  memset(k->device.flops, 0, sizeof k->device.flops);
  k->device.bytes_per_s = 0;
  return 0;
}

/* Rates from the timings. Where the data sheet has a peak, it stays, and what was reached is a fraction of it. */
static void set_rates(struct calib *c, struct tc_plan_device *d)
{
  struct tc_plan_device reached = { 0 };
  const double default_bytes = c->gpu ? 1e12 : 5e9;
  reached.sample = d->sample, reached.n_samples = d->n_samples, reached.cap_samples = d->cap_samples;
  tc_timings_reduce(&c->timings, &reached);
  d->sample = reached.sample, d->n_samples = reached.n_samples, d->cap_samples = reached.cap_samples;
  d->fuses = c->timings.fuses;
  if (reached.bytes_per_s <= 0) reached.bytes_per_s = default_bytes;
  const int type = reached.flops[TC_BF16] > 0 ? TC_BF16 : TC_F32;
  const bool peak = c->gpu && d->flops[type] > 0 && d->bytes_per_s > 0;
  d->eff_flops = peak ? TC_MIN(reached.flops[type] / d->flops[type], 1) : 1;
  d->eff_bytes = peak ? TC_MIN(reached.bytes_per_s / d->bytes_per_s, 1) : 1;
  if (peak) return;
  memcpy(d->flops, reached.flops, sizeof d->flops);
  if (d->flops[TC_F32] <= 0) d->flops[TC_F32] = d->flops[type];      /* the only rate that there is */
  d->bytes_per_s = reached.bytes_per_s;
  d->copy_bytes_per_s = c->gpu ? TC_MIN(d->bytes_per_s, 25e9) : d->bytes_per_s / 2;
}

static void set_cpu(const struct calib *c, struct tc_plan_device *d, int threads)
{
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  snprintf(d->name, sizeof d->name, "cpu, %d thread%s", threads, tc_plural(threads));
  d->op_s = 1e-6;
  d->issue_s = c->timings.n_issues ? tc_median(c->timings.issue, c->timings.n_issues) : 0;
  d->cores = TC_MAX((double)cpus / threads, 1);
  d->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / d->cores;
}

/* The ranks that are timed at the same time; the configuration of all runs. */
static int set_ranks(struct calib *c, struct tc_config *cfg)
{
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (c->gpu) return cfg->run_ranks > 1 ? (int)cfg->run_ranks : 1;
  if (cfg->run_device == TC_DEVICE_AUTO) cfg->run_device = TC_DEVICE_CPU;
  if (cfg->run_threads <= 0) cfg->run_threads = 1;
  return cfg->run_ranks > 1 ? (int)cfg->run_ranks : TC_MAX((int)(cpus / cfg->run_threads), 1);
}

static int measure(struct calib *c, struct tc_cluster *k, int ranks, struct tc_err *err)
{
  char *text = tc_sprintf("%s/text", c->dir);
  const int beside = c->gpu ? 1 : ranks, rounds = c->gpu ? 1 : ROUNDS;
  int rc = write_text(text, err);
  if (!rc) rc = measure_links(c, k, ranks, err);
  for (int i = 0; i < rounds && !rc; i++)          /* so that one disturbed round does not change the median */
    rc = train_all(c, beside, err);
  free(text);
  TC_TRY(rc);
  set_rates(c, &k->device);
  for (int t = TC_TERM_PRODUCTS; t < TC_TERM_TRANSFERS; t++) k->source[t] = TC_SOURCE_CALIBRATED;
  if (!c->gpu) set_cpu(c, &k->device, (int)c->own->run_threads);
  TC_TRY(find_slack(c, 1, k, err));
  if (beside == 1) return 0;
  TC_TRY(find_slack(c, beside, k, err));
  return find_steal(c, k, err);
}

int tc_calibrate(struct tc_calibrated *out, const struct tc_config *own, const char *path, struct tc_err *err)
{
  const struct tc_output_opts o = { .kind = &tc_cluster_kind, .flag = "--calibrate" };
  struct tc_config cfg = *own;
  struct calib c = { .own = &cfg, .gpu = cfg.run_device == TC_DEVICE_CUDA };
  struct tc_cluster k;
  const char *tmp = temporary_folder();
  TC_TRY(tc_output_check(path, &o, err));        /* before minutes of measuring */
  tc_setup_precision(&cfg, c.gpu);
  snprintf(c.dir, sizeof c.dir, "%.40s/tercio-plan-XXXXXX", tmp);
  ssize_t n = readlink("/proc/self/exe", c.program, sizeof c.program - 1);
  if (n <= 0 || !mkdtemp(c.dir))
    return tc_fail(err, TC_EUSER, "cannot make a folder in %s: %s", tmp, strerror(errno));
  char *rm = tc_sprintf("rm -rf '%s'", c.dir);
  int rc = c.gpu ? gpu_cluster(&k, err) : tc_cluster_read(&k, "cpu", err);
  const bool made = rc == 0;
  c.memory_bytes = made ? k.device.memory_bytes : 0;
  const int ranks = set_ranks(&c, &cfg);
  if (!rc) rc = measure(&c, &k, ranks, err);
  if (!rc) rc = tc_cluster_write(&k, path, "--calibrate", err);
  const struct tc_plan_device *d = &k.device;
  if (!rc) *out = (struct tc_calibrated){ d->n_samples, TC_MAX(d->flops[TC_F32], d->flops[TC_BF16]) * d->eff_flops,
                                          d->bytes_per_s * d->eff_bytes, c.gpu ? 0 : cfg.run_threads,
                                          d->cores * (double)cfg.run_threads };
  if (system(rm)) tc_warn("cannot remove %s", c.dir);
  free(rm);
  tc_timings_done(&c.timings);
  if (made) tc_cluster_done(&k);
  return rc;
}
