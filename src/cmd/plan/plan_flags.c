/* plan_flags.c - the flags of `tercio plan` as a job: what is planned, on which cluster, and where each figure came
 * from.
 *
 * A flag that would have no effect beside the others is refused, since the plan would be one of something else. */
#include "src/cmd/plan/plan.h"
#include "src/run/trained.h"

#include <stdlib.h>
#include <string.h>

enum { X_JSON, X_EXPLAIN, X_TABLES, X_NODES, X_GPUS, X_MEMORY, X_HOST, X_DEVICE, X_TOP, X_EMIT, X_INTO,
       X_TEMPLATE, X_TOKENS, X_WALLTIME, X_MTBF, X_DISK, X_RESTART, X_CALIBRATE, X_SLURM, X_PARTITION, X_FOR, X_BATCH,
       N_EXTRA };
static const char *const extra_flags[] = {
  "json", "explain", "tables", "nodes=", "gpus-per-node=", "memory=", "host-memory=", "device=", "top=", "emit=",
  "into=", "template=", "tokens=", "walltime=", "mtbf=", "disk=", "restart=", "calibrate=", "from-slurm",
  "partition=", "for=", "batch=", NULL };
#define DEFAULT_DEVICE "h100"
#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
enum { MAX_RANKS = 1 << 24 };
#define MOST_AMOUNT 1e18                         /* the largest integer of a run file */
#define MOST_STEPS 1e9                           /* of train.steps */

static int number(int *out, const char *flag, const char *text, int most, struct tc_err *err)
{
  char *end;
  long n = strtol(text, &end, 10);
  if (*end || end == text || n < 1 || n > most)
    return tc_fail(err, TC_EUSER, "--%s = %s: give a number from 1 to %d", flag, text, most);
  *out = (int)n;
  return 0;
}

static int amount(double *out, const char *flag, const char *text, bool time, struct tc_err *err)
{
  if (!text) return 0;
  double x = time ? tc_parse_seconds(text) : tc_parse_bytes(text);
  if (!(x >= 0) || x > MOST_AMOUNT)
    return tc_fail(err, TC_EUSER, "--%s = %s: give %s", flag, text,
                   time ? "a time, such as 24:00:00, 90m or 5y" : "a number, such as 80GB or 300G");
  *out = x;
  return 0;
}

/* "--memory 80" is not 80 bytes. */
static int bytes(double *out, const char *flag, const char *text, struct tc_err *err)
{
  TC_TRY(amount(out, flag, text, false, err));
  if (!text) return 0;
  if (*out <= 0) return tc_fail(err, TC_EUSER, "--%s = %s: it must be above 0", flag, text);
  if (!strpbrk(text, "KMGTPBkmgtpb"))
    return tc_fail(err, TC_EUSER, "--%s = %s has no unit; %sGB would do", flag, text, text);
  return 0;
}

/* ---- the cluster ----------------------------------------------------------------- */

/* The device of a partition, from Slurm's data; --device overrides it. */
static int slurm_device(const struct tc_slurm_part *s, const char **name, struct tc_err *err)
{
  *name = s->gpus ? tc_plan_device_of(s->gpu) : "cpu";
  if (*name) return 0;
  return tc_fail(err, TC_EUSER, "--from-slurm: the nodes of partition %s have %d GPUs each, of which "
                 "Slurm reports %s%s: name them with --device", s->name, s->gpus,
                 *s->gpu ? "only " : "nothing", s->gpu);
}

/* One rank per GPU or, without GPUs, per socket. */
static void from_slurm(struct tc_plan_job *j)
{
  const struct tc_slurm_part *s = &j->slurm;
  struct tc_cluster *k = &j->cluster;
  k->nodes = s->nodes;
  k->devices = s->gpus ? s->gpus : s->sockets;
  k->switch_nodes = s->switch_nodes;
  k->device.host_bytes = s->memory_bytes;
  j->walltime_s = s->walltime_s;
  j->nodes_from = j->devices_from = j->host_from = "Slurm";
  if (s->walltime_s > 0) j->time_from = "Slurm";
}

/* The number of ranks of the run file, as one node. */
static int own_ranks(struct tc_plan_job *j, struct tc_err *err)
{
  const struct tc_config *c = j->cfg;
  double world = (double)TC_MAX(c->mesh_pp, 1) * (double)TC_MAX(c->mesh_tp, 1) *
                 (double)TC_MAX(c->mesh_dp, 1);
  if (world > MAX_RANKS)
    return tc_fail(err, TC_EUSER, "mesh.pp x dp x tp = %.0f: at most %d ranks", world, MAX_RANKS);
  j->world = TC_MAX((int)world, (int)TC_MIN(c->run_ranks, MAX_RANKS));
  j->cluster.devices = j->world;
  j->cluster.nodes = 1;
  return 0;
}

static int read_sizes(struct tc_plan_job *j, const char *const *x, struct tc_err *err)
{
  struct tc_cluster *k = &j->cluster;
  const struct tc_slurm_part *s = &j->slurm;
  const int each = s->gpus ? s->gpus : s->cpus;
  if (x[X_GPUS]) {
    TC_TRY(number(&k->devices, "gpus-per-node", x[X_GPUS], MAX_RANKS, err));
    j->devices_from = "--gpus-per-node";
  }
  if (j->from_slurm && k->devices > each)
    return tc_fail(err, TC_EUSER, "--gpus-per-node = %d: the nodes of partition %s have %d %s each",
                   k->devices, s->name, each, s->gpus ? "GPUs" : "CPUs");
  if (j->from_slurm && !s->gpus && !x[X_MEMORY]) {         /* divides a node's memory */
    k->device.memory_bytes = j->own_bytes = s->memory_bytes / k->devices;
    j->memory_from = "Slurm";
  }
  if (x[X_NODES]) {
    TC_TRY(number(&k->nodes, "nodes", x[X_NODES], MAX_RANKS / k->devices, err));
    j->nodes_from = "--nodes";
  }
  if (j->from_slurm && k->nodes > s->nodes)
    return tc_fail(err, TC_EUSER, "--nodes = %d: partition %s has %d that can be used", k->nodes, s->name,
                   s->nodes);
  const int64_t world = (int64_t)k->nodes * k->devices;
  if (world > MAX_RANKS)
    return tc_fail(err, TC_EUSER, "%d nodes x %d devices are %lld ranks: at most %d; give fewer by --nodes", k->nodes,
                   k->devices, (long long)world, MAX_RANKS);
  j->world = (int)world;
  return 0;
}

/* run.device of the command line, or of a job that will have it, beside the device of the plan. */
static int check_device(const struct tc_plan_job *j, struct tc_err *err)
{
  const struct tc_plan_device *d = &j->cluster.device;
  const enum tc_device_kind kind = j->cfg->run_device;
  const bool matters = j->emit || tc_config_source(j->cfg, "run.device") == TC_FROM_FLAG;
  if (!matters || kind == TC_DEVICE_AUTO || (kind != TC_DEVICE_CUDA) == tc_plan_is_cpu(d)) return 0;
  return tc_fail(err, TC_EUSER, "run.device = %s, but the plan is for %s%s; %s would fit", tc_word_run_device(kind),
                 d->name, j->device_from ? "" : ", since no --device was given",
                 tc_plan_is_cpu(d) ? "run.device = cpu, or a GPU as --device," : "run.device = cuda, or --device cpu,");
}

static int read_cluster(struct tc_plan_job *j, const char *const *x, struct tc_err *err)
{
  struct tc_cluster *k = &j->cluster;
  const char *device = x[X_DEVICE] ? x[X_DEVICE] : DEFAULT_DEVICE;
  j->device_from = x[X_DEVICE] ? "--device" : j->from_slurm ? "Slurm" : NULL;
  if (j->from_slurm) {
    TC_TRY(tc_slurm_read(&j->slurm, j->partition, err));
    if (!x[X_DEVICE]) TC_TRY(slurm_device(&j->slurm, &device, err));
  }
  TC_TRY(tc_cluster_read(k, device, err));
  TC_TRY(check_device(j, err));
  tc_setup_precision(j->cfg, !tc_plan_is_cpu(&k->device) && k->device.flops[TC_BF16] > 0);
  j->own_bytes = k->device.memory_bytes;
  j->memory_from = j->device_from;
  if (k->device.host_bytes > 0) j->host_from = "--device";
  if (j->from_slurm) from_slurm(j);
  TC_TRY(bytes(&k->device.memory_bytes, "memory", x[X_MEMORY], err));
  TC_TRY(bytes(&k->device.host_bytes, "host-memory", x[X_HOST], err));
  TC_TRY(bytes(&k->disk_bytes_per_s, "disk", x[X_DISK], err));
  TC_TRY(amount(&k->mtbf_s, "mtbf", x[X_MTBF], true, err));
  if (x[X_MEMORY]) j->memory_from = "--memory";
  if (x[X_HOST]) j->host_from = "--host-memory";
  if (k->disk_bytes_per_s <= 0) return tc_fail(err, TC_EUSER, "%s: disk_rate must be above 0", device);
  return x[X_NODES] || j->from_slurm ? read_sizes(j, x, err) : own_ranks(j, err);
}

/* ---- the run --------------------------------------------------------------------- */

/* Other lengths of the run than --tokens: train.steps of the command line, data.epochs, by which the run would go. */
static int check_length(const struct tc_plan_job *j, const char *tokens, struct tc_err *err)
{
  const struct tc_config *c = j->cfg;
  if (tokens && tc_config_source(c, "train.steps") == TC_FROM_FLAG)
    return tc_fail(err, TC_EUSER, "--tokens = %s and train.steps = %lld are both the length of the run: give one of "
                   "them", tokens, (long long)c->train_steps);
  if (tokens && c->data_epochs > 0)
    return tc_fail(err, TC_EUSER, "--tokens = %s and data.epochs = %g are both the length of the run: give one of them",
                   tokens, c->data_epochs);
  return 0;
}

static int read_run(struct tc_plan_job *j, const char *const *x, struct tc_err *err)
{
  struct tc_model m;
  TC_TRY(check_length(j, x[X_TOKENS], err));
  TC_TRY(amount(&j->tokens, "tokens", x[X_TOKENS], false, err));
  TC_TRY(amount(&j->walltime_s, "walltime", x[X_WALLTIME], true, err));
  TC_TRY(amount(&j->restart_s, "restart", x[X_RESTART], true, err));
  if (x[X_WALLTIME]) j->time_from = "--walltime";
  if (x[X_TOKENS] && j->tokens <= 0)
    return tc_fail(err, TC_EUSER, "--tokens = %s: it must be above 0", x[X_TOKENS]);
  if (x[X_WALLTIME] && j->walltime_s <= 0)
    return tc_fail(err, TC_EUSER, "--walltime = %s: it must be above 0", x[X_WALLTIME]);
  j->costs = x[X_TOKENS] || x[X_WALLTIME] || x[X_MTBF] || x[X_DISK] || x[X_RESTART];
  TC_TRY(tc_setup_model(j->cfg, &m, err));
  const double each = (double)j->cfg->train_global_batch * (double)m.context;
  if (j->tokens / each > MOST_STEPS)
    return tc_fail(err, TC_EUSER, "--tokens = %s are %.4g steps of %.4g tokens, but train.steps is at most %.0f: "
                   "a larger train.global_batch would fit", x[X_TOKENS], j->tokens / each, each, MOST_STEPS);
  return 0;
}

/* --for and --batch plan one layout; flags of a search, of a job or of the costs of a training are refused. */
static int read_use(struct tc_plan_job *j, const char *const *x, struct tc_err *err)
{
  static const int others[] = { X_EXPLAIN, X_TOP, X_EMIT, X_TOKENS, X_WALLTIME, X_MTBF, X_DISK, X_RESTART, X_HOST };
  if (x[X_BATCH] && !x[X_FOR])
    return tc_fail(err, TC_EUSER, "--batch = %s has no effect without --for eval or --for sample; the batch of a "
                   "training is train.global_batch", x[X_BATCH]);
  if (!x[X_FOR]) return 0;
  for (enum tc_use u = TC_TO_EVALUATE; u <= TC_TO_SAMPLE; u++)
    if (!strcmp(x[X_FOR], tc_plan_uses[u])) j->use = u;
  if (j->use == TC_TO_TRAIN)
    return tc_fail(err, TC_EUSER, "--for = %s: give eval or sample; without --for the plan is of a training", x[X_FOR]);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (x[others[i]])
      return tc_fail(err, TC_EUSER, "--%.*s has no effect with --for %s", (int)strcspn(extra_flags[others[i]], "="),
                     extra_flags[others[i]], x[X_FOR]);
  j->search = false;
  return x[X_BATCH] ? number(&j->sequences, "batch", x[X_BATCH], 1 << 20, err) : 0;
}

/* Flags that mean nothing without another one. */
static int check_flags(const struct tc_plan_job *j, const char *const *x, struct tc_err *err)
{
  const bool cluster = x[X_NODES] || j->from_slurm;
  if (x[X_EMIT] && strcmp(x[X_EMIT], "sbatch"))
    return tc_fail(err, TC_EUSER, "--emit %s: unknown format; only sbatch is supported", x[X_EMIT]);
  if (j->partition && j->partition[strspn(j->partition, NAME_LETTERS)])
    return tc_fail(err, TC_EUSER, "--partition = %s: not a valid name of a partition", j->partition);
  if (x[X_GPUS] && !cluster)
    return tc_fail(err, TC_EUSER, "--gpus-per-node = %s has no effect without --nodes or --from-slurm: of how many "
                   "nodes?", x[X_GPUS]);
  if (x[X_TOP] && !j->search)
    return tc_fail(err, TC_EUSER, "--top = %s has no effect %s", x[X_TOP],
                   cluster ? "with --explain, which describes one layout"
                           : "without --nodes or --from-slurm, which search layouts");
  if (x[X_INTO] && !x[X_EMIT])
    return tc_fail(err, TC_EUSER, "--into = %s has no effect without --emit sbatch", x[X_INTO]);
  if (x[X_TEMPLATE] && !x[X_EMIT])
    return tc_fail(err, TC_EUSER, "--template = %s has no effect without --emit sbatch", x[X_TEMPLATE]);
  if (j->partition && !j->from_slurm && !x[X_EMIT])
    return tc_fail(err, TC_EUSER, "--partition = %s has no effect without --from-slurm or --emit sbatch",
                   j->partition);
  return 0;
}

/* Layout options on the command line are fixed; those in the run file are ignored and searched. */
static unsigned fixed_keys(const struct tc_config *c)
{
  unsigned fixed = 0;
  for (int key = 0; key < TC_KEYS; key++)
    if (tc_config_source(c, tc_plan_key_name[key]) == TC_FROM_FLAG) fixed |= 1u << key;
  return fixed;
}

/* --tables counts published models, whatever the run: no other flag of plan has an effect. */
static int check_tables(const char *const *x, struct tc_err *err)
{
  for (int i = 0; i < N_EXTRA; i++)
    if (x[i] && i != X_TABLES)
      return tc_fail(err, TC_EUSER, "--%.*s has no effect with --tables", (int)strcspn(extra_flags[i], "="),
                     extra_flags[i]);
  return 0;
}

int tc_plan_job_new(struct tc_plan_job *j, int argc, char **argv, const char **calibrate, bool *tables,
                    struct tc_err *err)
{
  const char *x[N_EXTRA] = { NULL };
  *j = (struct tc_plan_job){ .top = 8, .restart_s = 120 };
  TC_TRY(tc_config_new(&j->cfg, argc, argv, extra_flags, x, err));
  TC_TRY(tc_trained_of_run(j->cfg, err));
  *calibrate = x[X_CALIBRATE];
  *tables = x[X_TABLES] != NULL;
  if (*tables) return check_tables(x, err);
  if (*calibrate) return 0;
  j->partition = x[X_PARTITION];
  j->from_slurm = x[X_SLURM] != NULL;
  j->search = (x[X_NODES] || j->from_slurm) && !x[X_EXPLAIN];
  j->json = x[X_JSON] != NULL;
  j->emit = x[X_EMIT];
  j->template = x[X_TEMPLATE];
  j->into = x[X_INTO] ? x[X_INTO] : "plan";
  j->fixed = fixed_keys(j->cfg);
  TC_TRY(read_use(j, x, err));
  TC_TRY(check_flags(j, x, err));
  if (x[X_TOP]) TC_TRY(number(&j->top, "top", x[X_TOP], TC_PLAN_ROWS, err));
  TC_TRY(read_cluster(j, x, err));
  return read_run(j, x, err);
}

void tc_plan_job_done(struct tc_plan_job *j)
{
  tc_cluster_done(&j->cluster);
  tc_config_free(j->cfg);
}
