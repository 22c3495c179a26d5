/* checks.c - what a person must decide before a job is submitted: what the plan assumed, and what it cannot know. Each
 * stands as "# CHECK" above its line in run.ini or job.sbatch, and is printed after both are written. */
#include "src/data/data.h"
#include "src/emit/emit.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

struct checks { struct tc_emit_check *list; int n; };

static void add(struct checks *l, bool job, const char *name, const char *fmt, ...)
  __attribute__((format(printf, 4, 5)));
static void add(struct checks *l, bool job, const char *name, const char *fmt, ...)
{
  TC_ASSERT(l->n < TC_EMIT_CHECKS);
  struct tc_emit_check *x = &l->list[l->n++];
  static const char mark[] = "CHECK ";
  const size_t at = sizeof mark - 1;
  *x = (struct tc_emit_check){ .job = job, .name = name };
  strcpy(x->comment, mark);
  x->text = x->comment + at;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(x->comment + at, sizeof x->comment - at, fmt, ap);
  va_end(ap);
  for (char *at = x->comment; *at; at++)         /* a line of a file: names that it quotes may have any character */
    if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
}

static void check_failures(struct checks *l, const struct tc_plan_job *j, const struct tc_config *c,
                           const struct tc_plan *p, const struct tc_plan_run *run)
{
  char a[32], b[32], d[32], e[32];
  const int nodes = (p->world + j->cluster.devices - 1) / j->cluster.devices;
  const double together = j->cluster.mtbf_s / nodes;
  /* Whether the interval between checkpoints follows from ckpt.mtbf_hours: always in a job, unless it is given. */
  const bool by_mtbf = c->ckpt_every_minutes == TC_AUTO || (c->ckpt_every_minutes == TC_DEFAULT && c->ckpt_every == 0);
  if (!by_mtbf) return;
  tc_human_seconds(a, sizeof a, together);
  tc_human_seconds(b, sizeof b, run->ckpt_s);
  tc_human_seconds(d, sizeof d, run->interval_s);
  tc_human_seconds(e, sizeof e, j->cluster.mtbf_s);
  if (together > 0 && together < j->cfg->ckpt_mtbf_hours * 3600)
    add(l, false, "ckpt.mtbf_hours", "a node fails every %s (--mtbf), one of %d every %s: about %s between checkpoints "
        "of %s", e, nodes, a, d, b);
  else if (tc_config_source(c, "ckpt.mtbf_hours") != TC_FROM_DEFAULT) return;
  else if (together > 0)
    add(l, false, "ckpt.mtbf_hours", "failures every %g hours are the default (from nodes alone every %s; software and "
        "file systems fail, too): about %s between checkpoints of %s", c->ckpt_mtbf_hours, a, d, b);
  else
    add(l, false, "ckpt.mtbf_hours", "failures every %g hours are the default, but the plan counts none (--mtbf 0)",
        c->ckpt_mtbf_hours);
}

/* Whether the job can go on when a node is lost. train.sbatch takes as many of the others as the layout allows; it does
 * not look at memory. */
static void check_fewer_nodes(struct checks *l, const struct tc_plan_job *j, const struct tc_config *c,
                              const struct tc_plan *p)
{
  struct tc_cluster k = j->cluster;
  struct tc_err none;
  struct tc_plan fewer;
  const int tp = tc_axes_size(p->size, TC_ON_TP), cp = tc_axes_size(p->size, TC_ON_CP), all = k.nodes;
  const int group = p->size[TC_PP] * cp * tp;
  char context[24] = "";
  if (cp > 1) snprintf(context, sizeof context, "cp %d x ", cp);
  if (all < 2) return;
  for (k.nodes--; k.nodes > 0; k.nodes--) {
    const int world = k.nodes * k.devices;
    if (world % group || p->batch % (world / group)) continue;        /* without compiling a program */
    if (!tc_plan_layout(&fewer, c, world, &k, false, &none)) break;
  }
  if (!k.nodes)
    add(l, false, "mesh.dp", "the layout (pp %d x %stp %d, %lld sequences per step) is not possible on fewer nodes than "
        "%d: if one is lost, the job is requeued and waits for all", p->size[TC_PP], context, tp, (long long)p->batch, all);
  else if (tc_emit_fits(j, &fewer, &none))
    add(l, false, "mesh.dp", "if a node is lost, the job goes on with %d, which have too little memory for the layout: "
        "TERCIO_ON_NODE_LOSS=requeue waits for all %d again", k.nodes, all);
}

/* The files from which the run will read, as it would open them: the job may run where they are others. */
static void check_data(struct checks *l, const char *option, const struct tc_config *c, const struct tc_model *m, bool val)
{
  struct tc_data_opts o = tc_data_opts_of(c, val);
  struct tc_data *d;
  struct tc_err err = { 0 };
  o.context = m->context, o.vocab = m->vocab;
  if (!o.n) return;
  if (tc_data_open(&d, &o, &err) < 0) add(l, false, option, "here the run would not start: %s", err.text);
  else tc_data_free(d);
}

static void check_path(struct checks *l, const char *option, const char *path)
{
  if (*path && access(path, R_OK) < 0)
    add(l, false, option, "here the run would not start: %s can't be read: %s", path, strerror(errno));
}

static void check_inputs(struct checks *l, const struct tc_config *c, const struct tc_model *m)
{
  check_data(l, "data.train", c, m, false);
  if (c->data_val.n) check_data(l, "data.val", c, m, true);
  for (int i = 0; i < c->train_eval_tasks.n; i++) {
    const int before = l->n;
    check_path(l, "train.eval_tasks", c->train_eval_tasks.item[i]);
    if (l->n > before) break;
  }
  check_path(l, "train.eval_tokenizer", c->train_eval_tokenizer);
  check_path(l, "ckpt.from", c->ckpt_from);
}

static void check_run(struct checks *l, const struct tc_plan_job *j, const struct tc_config *c,
                      const struct tc_plan *p, const struct tc_plan_rate *rate)
{
  char a[32], b[32], d[32], e[32];
  struct tc_plan_run run;
  tc_plan_run(&run, p, c, &j->cluster, j->tokens, j->walltime_s, j->restart_s);
  if (!c->data_train.n)
    add(l, false, "data.train", "no training files are named: name them here, or sbatch job.sbatch --data.train=FILE");
  check_inputs(l, c, &p->model);
  if (tc_config_source(c, "train.steps") == TC_FROM_DEFAULT && j->tokens <= 0)
    add(l, false, "train.steps", "%lld steps are the default; tercio plan --tokens N counts those of N tokens",
        (long long)c->train_steps);
  if (tc_config_source(c, "train.global_batch") == TC_FROM_DEFAULT)
    add(l, false, "train.global_batch", "%lld sequences per step are the default", (long long)c->train_global_batch);
  if (rate)
    add(l, false, "train.lr", "rate and warm-up of GPT-3's run of %s parameters and %s tokens per step; this one has "
        "%s and %s", tc_human_count(a, sizeof a, rate->parameters), tc_human_count(b, sizeof b, rate->tokens),
        tc_human_count(d, sizeof d, (double)p->parameters), tc_human_count(e, sizeof e, (double)p->tokens));
  else if (tc_config_source(c, "train.lr") == TC_FROM_DEFAULT)
    add(l, false, "train.lr", "%g is the default", c->train_lr);
  if (c->train_precision == TC_F32 && !tc_plan_is_cpu(&j->cluster.device) && j->cluster.device.flops[TC_BF16] > 0)
    add(l, false, "train.precision", "bf16, the default there, is faster on %s, and takes less memory",
        j->cluster.device.name);
  check_fewer_nodes(l, j, c, p);
  check_failures(l, j, c, p, &run);
  if (tc_config_source(c, "run.out") == TC_FROM_DEFAULT)
    add(l, false, "run.out", "results and checkpoints (%s each) go here: no other job's folder, on a file system that "
        "all nodes share", tc_human_bytes(a, sizeof a, run.ckpt_bytes));
  const int full = tc_emit_headroom(j, p, a, sizeof a);
  if (full)
    add(l, false, "train.micro_batch", "the layout takes %d %% of a device's memory, without what the driver, "
        "libraries and kernels need; tercio plan --memory %s leaves a tenth", full, a);
  const double host = tc_plan_host_bytes(p, &j->cluster);
  if (host > 0 && j->cluster.device.host_bytes <= 0)
    add(l, false, "parallel.offload", "host memory unknown: offload not checked; a node needs %s",
        tc_human_bytes(a, sizeof a, host));
}

int tc_emit_task_cpus(const struct tc_plan_job *j)
{
  const struct tc_slurm_part *s = &j->slurm;
  if (j->from_slurm) return TC_MAX(s->cpus / (s->gpus ? s->gpus : j->cluster.devices), 1);
  return tc_plan_is_cpu(&j->cluster.device) ? 0 : TC_EMIT_GPU_CPUS;
}

static void check_job(struct checks *l, const struct tc_plan_job *j)
{
  const struct tc_cluster *k = &j->cluster;
  if (!j->device_from)
    add(l, true, "nodes", "planned for %s, since no --device was given", k->device.name);
  if (!j->nodes_from)
    add(l, true, "nodes", "all %d rank%s on one node, since no --nodes was given", j->world, tc_plural(j->world));
  else if (!j->devices_from)
    add(l, true, "nodes", "one device per node, since no --gpus-per-node was given");
  if (!j->partition && !j->from_slurm)
    add(l, true, "partition", "the cluster's default partition, since no --partition was given");
  const int tasks = TC_MIN(k->devices, j->world), cpus = tc_emit_task_cpus(j);
  const bool gpus = !tc_plan_is_cpu(&k->device);
  if (gpus && j->from_slurm && cpus < TC_EMIT_GPU_CPUS)
    add(l, true, "cpus-per-task", "%d per task: a rank of a GPU needs %d or more, to launch kernels, for NCCL's "
        "threads, for asynchronous checkpoints; a node has %d", cpus, TC_EMIT_GPU_CPUS, j->slurm.cpus);
  if (!j->from_slurm) {
    add(l, true, "cpus-per-task", "%sthe CPUs of a node are not known: divide them among its %d task%s",
        gpus ? "the least for a GPU; " : "", tasks, tc_plural(tasks));
    add(l, true, "mem", "0 is all memory of a node: take less if other jobs share it");
  }
  if (!j->time_from) add(l, true, "time", "24 hours, since no --walltime was given");
}

int tc_emit_checks(struct tc_emit_check *list, const struct tc_plan_job *j, const struct tc_config *c,
                   const struct tc_plan *p, const struct tc_plan_rate *rate)
{
  struct checks l = { list, 0 };
  check_run(&l, j, c, p, rate);
  check_job(&l, j);
  return l.n;
}
