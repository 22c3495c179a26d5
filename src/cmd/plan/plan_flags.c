/* plan_flags.c - the flags of `tercio plan` as a job: what is planned, on which cluster, and where each figure came
 * from.
 *
 * A flag that would have no effect beside the others is refused, since the plan would be one of something else. */
#include "src/cmd/cmd.h"
#include "src/cmd/plan/plan.h"
#include "src/launch/ranks.h"
#include "src/run/trained.h"

#include <string.h>

#define DEFAULT_DEVICE "h100"
#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
enum { MAX_RANKS = 1 << 24, START_EACH = 8 };
#define MOST_AMOUNT 1e18                         /* the largest integer of a run file */
#define MOST_STEPS 1e9                           /* of train.steps */

static int set_emit(void *job, const struct tc_flag *f, const char *value, struct tc_err *err)
{
  (void)job, (void)f;
  return strcmp(value, "sbatch") ? tc_fail(err, TC_EUSER, "--emit %s: unknown format; only sbatch is supported", value) : 0;
}

#define FIELD(f) .field = offsetof(struct tc_plan_job, f)
#define NUMBER(f, most) "a number from %.0f to %.0f", TC_FLAG_INT, FIELD(f), 1, most
#define AMOUNT(kind, f, least) "a number, such as 80GB or 300G", kind, FIELD(f), least, MOST_AMOUNT
#define TIME(f, least) "a time, such as 24:00:00, 90m or 5y", TC_FLAG_TIME, FIELD(f), least, MOST_AMOUNT
const struct tc_flag tc_flags_plan[] = {
  { "--nodes N", "search for the best layouts on a cluster of N nodes, one rank per GPU",
    NUMBER(cluster.nodes, MAX_RANKS) },
  { "--gpus-per-node G", "GPUs (on CPUs: ranks) of each node", NUMBER(cluster.devices, MAX_RANKS),
    .needs = "--nodes or --from-slurm or --simulate-start: of how many nodes?" },
  { "--from-slurm", "search for the best layouts on the cluster that scontrol reports: nodes, GPUs, CPUs, memory, "
    "time limit and leaf switches of a partition", .kind = TC_FLAG_GIVEN },
  { "--partition P", "the partition of --from-slurm (default: the cluster's default one)",
    .kind = TC_FLAG_GIVEN },
  { "--kind NAME", "of a partition's several kinds of nodes the one that --from-slurm plans (default: the one with most devices; a "
    "search has a row for each): the type of GPU as Slurm has it, or more of GPU:GPUs/CPUS of a node, or cpu; e.g. --kind a100:8",
    .kind = TC_FLAG_GIVEN, .needs = "--from-slurm" },
  { "--device NAME|FILE", "a100-40, a100-80, l40s, h100, h100-96, gh200, h200, h20, b200, b300, cpu (one core), or a file of measured figures, of which "
    "examples/clusters has some (default h100, or what Slurm names)", .kind = TC_FLAG_GIVEN },
  { "--memory SIZE", "memory of a device (default: the device's); less leaves room for the driver, libraries and "
    "the kernels' workspace; e.g. --memory 76GB",
    AMOUNT(TC_FLAG_BYTES, cluster.device.memory_bytes, TC_FLAG_ABOVE_0) },
  { "--host-memory SIZE", "memory of a node's host, which limits offloading (default: what Slurm or the device file "
    "says); e.g. --host-memory 512GB", AMOUNT(TC_FLAG_BYTES, cluster.device.host_bytes, TC_FLAG_ABOVE_0) },
  { "--top K", "layouts to print, at most 64 (default 8)",
    NUMBER(top, TC_PLAN_ROWS), .needs = "--nodes or --from-slurm, which search layouts",
    .against = "--explain, which describes one layout" },
  { "--explain", "one layout in full, that of the run file, on the cluster of --nodes or --from-slurm",
    .kind = TC_FLAG_GIVEN },
  { "--tables", "print the usual textbook estimates", .kind = TC_FLAG_GIVEN, .drops = "*" },
  { "--tokens N", "tokens of the whole run: adds steps, hours and node-hours; e.g. --tokens 300G",
    AMOUNT(TC_FLAG_AMOUNT, tokens, TC_FLAG_ABOVE_0) },
  { "--walltime TIME", "time limit of a job: adds the number of requeues; e.g. --walltime 24:00:00",
    TIME(walltime_s, TC_FLAG_ABOVE_0) },
  { "--mtbf TIME", "mean time between failures of a node: adds the best interval between checkpoints, and the cost "
    "of failures; e.g. --mtbf 5y", TIME(cluster.mtbf_s, 0) },
  { "--disk RATE", "bytes per second that checkpoints are written with; e.g. --disk 20GB",
    AMOUNT(TC_FLAG_BYTES, cluster.disk_bytes_per_s, TC_FLAG_ABOVE_0) },
  { "--restart TIME", "time from a failure to the next step (default 2m)", TIME(restart_s, 0) },
  { "--emit sbatch", "write the layout as DIR/run.ini and DIR/job.sbatch, and the device as DIR/device.ini, from "
    "which the run predicts its own step time. After a search: the best layout that uses at most 90 % of device "
    "memory, else the best one. Lines to check by hand are marked # CHECK and listed. If nothing fits, nothing is "
    "written, and the status is 6", .kind = TC_FLAG_CALL, .set = set_emit },
  { "--into DIR", "the folder of --emit (default plan)",
    .kind = TC_FLAG_TEXT, FIELD(into), .needs = "--emit sbatch" },
  { "--template FILE", "the script that --emit fills in (default: the train.sbatch of tercio --share)",
    .kind = TC_FLAG_TEXT, FIELD(template), .needs = "--emit sbatch" },
  { "--for eval|sample", "plan tercio eval or sample instead of training: memory of "
    "weights and KV cache, tokens per second of prompts and of new tokens; e.g. --for sample --batch 8",
    .kind = TC_FLAG_GIVEN,
    .drops = "--explain --top --emit --tokens --walltime --mtbf --disk --restart --host-memory" },
  { "--batch N", "with --for: sequences at once; of eval on each data-parallel rank (default: 2048 tokens), of "
    "sample in all (default 1)", NUMBER(sequences, 1 << 20),
    .needs = "--for eval or --for sample; the batch of a training is train.global_batch" },
  { "--calibrate FILE", "time this machine's CPU, or with run.device = cuda its GPU, with short trainings of the "
    "run file's model, and write FILE for --device. A CPU is timed with run.threads threads per rank (default 1), and "
    "the file is of such ranks", .kind = TC_FLAG_GIVEN },
  { "--like PATHS", "compare measured runs with the plan, row by row: tables (examples/measured has some) and folders of runs; "
    "e.g. --like examples/measured/tercio.txt,out/run1 --device gpu.dev", .kind = TC_FLAG_GIVEN,
    .drops = "--nodes --gpus-per-node --from-slurm --partition --memory --host-memory --top --explain --tokens --walltime --mtbf "
    "--disk --restart --emit --into --template --for --batch --calibrate --simulate-start" },
  { "--simulate-start", "simulate the control traffic of runs with many ranks, message by message: launch, start, a step, a "
    "save, and how a lost rank is found; messages, bytes, ranks that one talks to, and time. Of the run file it takes run.deadline "
    "and run.sums; e.g. --simulate-start --ranks 1024,16384 --gpus-per-node 4",
    .kind = TC_FLAG_YES, FIELD(start),
    .drops = "--nodes --from-slurm --partition --memory --host-memory --top --explain --tokens --walltime --mtbf --disk "
    "--restart --emit --into --template --for --batch --calibrate" },
  { "--ranks LIST", "numbers of ranks to simulate (default 64,256,1024,4096,16384)", .kind = TC_FLAG_TEXT, FIELD(ranks),
    .needs = "--simulate-start" },
  { "--fence SECONDS", "what a fence of the launcher takes, of which a launch has three (default 0.1, which is assumed)",
    "a number of seconds from %.0f to %.0f", TC_FLAG_REAL, FIELD(fence_s), 0, 1e6, .needs = "--simulate-start" },
  { "--record SIZE", "bytes that each rank tells all others of itself (default 2224)", "a size from 1 to 1GB", TC_FLAG_SIZE,
    FIELD(record_bytes), 1, 1 << 30, .needs = "--simulate-start" },
  { "--json", "print JSON", .kind = TC_FLAG_YES, FIELD(json) },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_RUN(tc_flags_plan, "plan");

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
  const double world = tc_setup_ranks(c);
  if (world > MAX_RANKS)
    return tc_fail(err, TC_EUSER, "mesh.pp x dp x cp x tp = %.0f: at most %d ranks", world, MAX_RANKS);
  j->world = TC_MAX((int)world, (int)TC_MIN(c->run_ranks, MAX_RANKS));
  j->cluster.devices = j->world;
  j->cluster.nodes = 1;
  return 0;
}

static int read_sizes(struct tc_plan_job *j, const struct tc_args *a, struct tc_err *err)
{
  struct tc_cluster *k = &j->cluster;
  const struct tc_slurm_part *s = &j->slurm;
  const int each = s->gpus ? s->gpus : s->cpus;
  if (tc_args_given(a, "--gpus-per-node")) j->devices_from = "--gpus-per-node";
  if (j->from_slurm && k->devices > each)
    return tc_fail(err, TC_EUSER, "--gpus-per-node = %d: the nodes of partition %s have %d %s each",
                   k->devices, s->name, each, s->gpus ? "GPUs" : "CPUs");
  if (j->from_slurm && !s->gpus && !tc_args_given(a, "--memory")) {         /* divides a node's memory */
    k->device.memory_bytes = j->own_bytes = s->memory_bytes / k->devices;
    j->memory_from = "Slurm";
  }
  if (tc_args_given(a, "--nodes")) {
    if (k->nodes > MAX_RANKS / k->devices)
      return tc_fail(err, TC_EUSER, "--nodes = %d: give a number from 1 to %d", k->nodes, MAX_RANKS / k->devices);
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

static int read_cluster(struct tc_plan_job *j, const struct tc_args *a, struct tc_err *err)
{
  struct tc_cluster *k = &j->cluster;
  const char *given = tc_args_given(a, "--device"), *device = given ? given : DEFAULT_DEVICE;
  j->device_from = given ? "--device" : j->from_slurm ? "Slurm" : NULL;
  if (j->from_slurm) {
    const char *kind = tc_args_given(a, "--kind");
    TC_TRY(tc_slurm_read(&j->slurm, j->partition, kind, err));
    j->kinds = !kind && !given;
    if (!given) TC_TRY(slurm_device(&j->slurm, &device, err));
  }
  TC_TRY(tc_cluster_read(k, device, err));
  tc_cluster_run(k, j->cfg);
  TC_TRY(check_device(j, err));
  tc_setup_precision(j->cfg, !tc_plan_is_cpu(&k->device) && k->device.flops[TC_BF16] > 0);
  j->own_bytes = k->device.memory_bytes;
  j->memory_from = j->device_from;
  if (k->device.host_bytes > 0) j->host_from = "--device";
  if (j->from_slurm) from_slurm(j);
  TC_TRY(tc_args_set(a, j, err));                /* over what the device and Slurm say */
  if (tc_args_given(a, "--memory")) j->memory_from = "--memory";
  if (tc_args_given(a, "--host-memory")) j->host_from = "--host-memory";
  if (tc_args_given(a, "--disk")) k->source[TC_TERM_SAVES] = TC_SOURCE_GIVEN;
  if (k->disk_bytes_per_s <= 0) return tc_fail(err, TC_EUSER, "%s: disk_rate must be above 0", device);
  return tc_args_given(a, "--nodes") || j->from_slurm ? read_sizes(j, a, err) : own_ranks(j, err);
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
  if (tokens && c->n_stages)
    return tc_fail(err, TC_EUSER, "--tokens = %s, but the run has %d stages, whose steps have numbers of tokens of their own: give "
                   "train.steps", tokens, c->n_stages + 1);
  if (c->n_stages)
    tc_warn("the run has %d stages: memory is that of all, but time, traffic and tokens are as if all steps were of the first",
            c->n_stages + 1);
  return 0;
}

static int read_run(struct tc_plan_job *j, const struct tc_args *a, struct tc_err *err)
{
  static const char *const of_costs[] = { "--tokens", "--walltime", "--mtbf", "--disk", "--restart" };
  const char *tokens = tc_args_given(a, "--tokens");
  struct tc_model m;
  TC_TRY(check_length(j, tokens, err));
  if (tc_args_given(a, "--walltime")) j->time_from = "--walltime";
  for (size_t i = 0; i < sizeof of_costs / sizeof *of_costs; i++) j->costs |= tc_args_given(a, of_costs[i]) != NULL;
  TC_TRY(tc_setup_model(j->cfg, &m, err));
  const double each = (double)j->cfg->train_global_batch * (double)m.context;
  if (j->tokens / each > MOST_STEPS)
    return tc_fail(err, TC_EUSER, "--tokens = %s are %.4g steps of %.4g tokens, but train.steps is at most %.0f: "
                   "a larger train.global_batch would fit", tokens, j->tokens / each, each, MOST_STEPS);
  return 0;
}

/* --for plans one layout. */
static int read_use(struct tc_plan_job *j, const struct tc_args *a, struct tc_err *err)
{
  const char *use = tc_args_given(a, "--for");
  if (!use) return 0;
  for (enum tc_use u = TC_TO_EVALUATE; u <= TC_TO_SAMPLE; u++)
    if (!strcmp(use, tc_plan_uses[u])) j->use = u;
  if (j->use == TC_TO_TRAIN)
    return tc_fail(err, TC_EUSER, "--for = %s: give eval or sample; without --for the plan is of a training", use);
  j->search = false;
  return 0;
}

/* --simulate-start takes no layout, and of the cluster the links and the ranks of a node. */
static int read_start(struct tc_plan_job *j, const struct tc_args *a, struct tc_err *err)
{
  const char *given = tc_args_given(a, "--device");
  TC_TRY(tc_cluster_read(&j->cluster, given ? given : DEFAULT_DEVICE, err));
  j->cluster.devices = START_EACH;
  return tc_args_set(a, j, err);
}

static int read_job(struct tc_plan_job *j, const struct tc_args *a, struct tc_err *err)
{
  if (tc_args_given(a, "--simulate-start")) return read_start(j, a, err);
  j->partition = tc_args_given(a, "--partition");
  j->from_slurm = tc_args_given(a, "--from-slurm");
  j->search = (tc_args_given(a, "--nodes") || j->from_slurm) && !tc_args_given(a, "--explain");
  j->emit = tc_args_given(a, "--emit");
  /* Layout options on the command line are fixed; those in the run file are ignored and searched. */
  for (int key = 0; key < TC_KEYS; key++)
    if (tc_config_source(j->cfg, tc_plan_key_name[key]) == TC_FROM_FLAG) j->fixed |= 1u << key;
  TC_TRY(read_use(j, a, err));
  if (j->partition && j->partition[strspn(j->partition, NAME_LETTERS)])
    return tc_fail(err, TC_EUSER, "--partition = %s: not a valid name of a partition", j->partition);
  if (j->partition && !j->from_slurm && !j->emit)
    return tc_fail(err, TC_EUSER, "--partition = %s has no effect without --from-slurm or --emit sbatch", j->partition);
  struct tc_plan_job scratch = *j;               /* values that are not valid are told before Slurm is asked */
  TC_TRY(tc_args_set(a, &scratch, err));
  TC_TRY(read_cluster(j, a, err));
  return read_run(j, a, err);
}

int tc_plan_job_new(struct tc_plan_job *j, int argc, char **argv, struct tc_plan_instead *instead, struct tc_err *err)
{
  struct tc_args a;
  *j = (struct tc_plan_job){ .top = 8, .restart_s = 120, .into = "plan", .fence_s = 0.1, .record_bytes = TC_RANK_RECORD_BYTES };
  int rc = tc_args_find(&a, &flags, argc, argv, err);
  if (!rc) rc = tc_args_check(&a, err);
  if (!rc) rc = tc_config_new(&j->cfg, a.argc, a.argv, err);
  if (!rc) rc = tc_trained_of_run(j->cfg, err);
  *instead = (struct tc_plan_instead){ tc_args_given(&a, "--calibrate"), tc_args_given(&a, "--like"), tc_args_given(&a, "--device"),
                                       tc_args_given(&a, "--tables") };
  if (!rc && instead->like) rc = tc_args_set(&a, j, err);
  else if (!rc && !instead->tables && !instead->calibrate) rc = read_job(j, &a, err);
  tc_args_free(&a);
  return rc;
}

void tc_plan_job_done(struct tc_plan_job *j)
{
  tc_cluster_done(&j->cluster);
  tc_config_free(j->cfg);
}
