/* plan.c - `tercio plan`: predicts memory, speed and traffic. No MPI, no device.
 *
 * With --nodes it searches layouts; otherwise, or with --explain, it describes the run file's own. */
#include "src/cmd/cmd.h"
#include "src/cmd/plan/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { X_JSON, X_EXPLAIN, X_TABLES, X_NODES, X_GPUS, X_MEMORY, X_DEVICE, X_TOP, X_EMIT, X_INTO,
       X_TEMPLATE,
       X_TOKENS, X_WALLTIME, X_MTBF, X_DISK, X_RESTART, X_CALIBRATE, X_SLURM,
       X_PARTITION, N_EXTRA };
static const char *const extra_flags[] = {
  "json", "explain", "tables", "nodes=", "gpus-per-node=", "memory=", "device=", "top=", "emit=",
  "into=", "template=", "tokens=", "walltime=", "mtbf=", "disk=", "restart=", "calibrate=",
  "from-slurm", "partition=", NULL };
#define DEFAULT_DEVICE "h100"
#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
enum { MAX_RANKS = 1 << 24 };
#define MOST_AMOUNT 1e18                         /* the largest integer of a run file */

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
  double x = time ? tc_plan_seconds(text) : tc_plan_bytes(text);
  if (!(x >= 0) || x > MOST_AMOUNT)
    return tc_fail(err, TC_EUSER, "--%s = %s: give %s", flag, text,
                   time ? "a time, such as 24:00:00, 90m or 5y" : "a number, such as 80GB or 300G");
  *out = x;
  return 0;
}

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
}

static int parse(struct tc_plan_job *j, const char *const *x, struct tc_err *err)
{
  struct tc_cluster *k = &j->cluster;
  const char *device = x[X_DEVICE] ? x[X_DEVICE] : DEFAULT_DEVICE;
  j->partition = x[X_PARTITION];
  j->from_slurm = x[X_SLURM] != NULL;
  if (j->partition && j->partition[strspn(j->partition, NAME_LETTERS)])
    return tc_fail(err, TC_EUSER, "--partition = %s: not a valid name of a partition", j->partition);
  if (j->from_slurm) {
    TC_TRY(tc_slurm_read(&j->slurm, j->partition, err));
    if (!x[X_DEVICE]) TC_TRY(slurm_device(&j->slurm, &device, err));
  }
  TC_TRY(tc_cluster_read(k, device, err));
  if (j->from_slurm) from_slurm(j);
  TC_TRY(amount(&k->device.memory_bytes, "memory", x[X_MEMORY], false, err));
  TC_TRY(amount(&k->disk_bytes_per_s, "disk", x[X_DISK], false, err));
  TC_TRY(amount(&k->mtbf_s, "mtbf", x[X_MTBF], true, err));
  TC_TRY(amount(&j->tokens, "tokens", x[X_TOKENS], false, err));
  TC_TRY(amount(&j->walltime_s, "walltime", x[X_WALLTIME], true, err));
  TC_TRY(amount(&j->restart_s, "restart", x[X_RESTART], true, err));
  if (k->device.memory_bytes <= 0 || k->disk_bytes_per_s <= 0)
    return tc_fail(err, TC_EUSER, "--memory and --disk must be above 0");
  if (x[X_GPUS]) TC_TRY(number(&k->devices, "gpus-per-node", x[X_GPUS], MAX_RANKS, err));
  int each = j->slurm.gpus ? j->slurm.gpus : j->slurm.cpus;
  if (j->from_slurm && k->devices > each)
    return tc_fail(err, TC_EUSER, "--gpus-per-node = %d: the nodes of partition %s have %d %s each",
                   k->devices, j->slurm.name, each, j->slurm.gpus ? "GPUs" : "CPUs");
  if (j->from_slurm && !j->slurm.gpus && !x[X_MEMORY])   /* divides a node's memory */
    k->device.memory_bytes = j->slurm.memory_bytes / k->devices;
  if (x[X_NODES]) TC_TRY(number(&k->nodes, "nodes", x[X_NODES], MAX_RANKS / k->devices, err));
  if (j->from_slurm && k->nodes > j->slurm.nodes)
    return tc_fail(err, TC_EUSER, "--nodes = %d: partition %s has %d that can be used", k->nodes,
                   j->slurm.name, j->slurm.nodes);
  if (x[X_TOP]) TC_TRY(number(&j->top, "top", x[X_TOP], TC_PLAN_ROWS, err));
  j->json = x[X_JSON] != NULL;
  bool cluster = x[X_NODES] || j->from_slurm;
  j->search = cluster && !x[X_EXPLAIN];
  j->emit = x[X_EMIT];
  if (j->emit && strcmp(j->emit, "sbatch"))
    return tc_fail(err, TC_EUSER, "--emit %s: unknown format; only sbatch is supported", j->emit);
  j->template = x[X_TEMPLATE];
  j->into = x[X_INTO] ? x[X_INTO] : "plan";
  if (cluster) {
    j->world = k->nodes * k->devices;
    return 0;
  }
  /* The number of ranks of the run file. */
  const struct tc_config *c = j->cfg;
  double world = (double)TC_MAX(c->mesh_pp, 1) * (double)TC_MAX(c->mesh_tp, 1) *
                 (double)TC_MAX(c->mesh_dp, 1);
  if (world > MAX_RANKS)
    return tc_fail(err, TC_EUSER, "mesh.pp x dp x tp = %.0f: at most %d ranks", world, MAX_RANKS);
  j->world = TC_MAX((int)world, (int)TC_MIN(c->run_ranks, MAX_RANKS));
  if (!x[X_GPUS]) k->devices = j->world;
  k->nodes = (int)tc_ceil_div(j->world, k->devices);
  return 0;
}

/* Layout options on the command line are fixed; those in the run file are ignored and searched. */
static unsigned fixed_keys(int argc, char **argv)
{
  unsigned hold = 0;
  for (int i = 1; i < argc; i++)
    for (int key = 0; key < TC_KEYS; key++) {
      size_t n = strlen(tc_plan_key_name[key]);
      if (strncmp(argv[i], "--", 2) || strncmp(argv[i] + 2, tc_plan_key_name[key], n)) continue;
      if (argv[i][2 + n] == 0 || argv[i][2 + n] == '=') hold |= 1u << key;
    }
  return hold;
}

static void put_json(json_t *o)
{
  json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  printf("\n");
  json_decref(o);
}

/* Prints Slurm's description of the partition, before text output. */
static void print_slurm(const struct tc_plan_job *j)
{
  if (j->from_slurm && !j->json) tc_slurm_print(stdout, &j->slurm);
}

static int search(const struct tc_plan_job *j, struct tc_err *err)
{
  struct tc_plan_found f;
  TC_TRY(tc_plan_search(&f, j->cfg, &j->cluster, j->hold, j->top, err));
  print_slurm(j);
  if (j->json) put_json(tc_plan_table_json(j, &f));
  else tc_plan_table_print(stdout, j, &f);
  int rc = f.n_rows ? 0 : tc_plan_nothing(j, &f, err);
  if (!rc && j->emit) rc = tc_plan_emit(j, &f.row[0].cfg, &f.row[0].plan, err);
  tc_plan_found_done(&f);
  return rc;
}

static int explain(const struct tc_plan_job *j, struct tc_err *err)
{
  struct tc_plan p;
  TC_TRY(tc_plan_layout(&p, j->cfg, j->world, &j->cluster, true, err));
  print_slurm(j);
  if (j->json) put_json(tc_plan_json(j, &p));
  else tc_plan_print(stdout, j, &p);
  struct tc_config c = *j->cfg;                  /* with the values of auto */
  c.mesh_tp = p.tp;
  return j->emit ? tc_plan_emit(j, &c, &p, err) : 0;
}

/* Checks that the file can be written, before minutes of measuring. */
static int calibrate(const struct tc_plan_job *j, const char *path, struct tc_err *err)
{
  bool there = access(path, F_OK) == 0;
  FILE *f = fopen(path, "a");
  if (!f) return tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  fclose(f);
  int rc = tc_plan_calibrate(j, path, err);
  if (rc < 0 && !there) unlink(path);
  return rc;
}

int tc_cmd_plan(int argc, char **argv)
{
  const char *extra[N_EXTRA] = { NULL };
  struct tc_err err = { 0 };
  struct tc_plan_job j = { .top = 8, .restart_s = 120 };
  int rc = tc_config_new(&j.cfg, argc, argv, extra_flags, extra, &err);
  if (!rc && extra[X_TABLES]) {
    tc_plan_tables(stdout);
  } else if (!rc && extra[X_CALIBRATE]) {
    rc = calibrate(&j, extra[X_CALIBRATE], &err);
  } else if (!rc) {
    rc = parse(&j, extra, &err);
    j.hold = fixed_keys(argc, argv);
    if (!rc) rc = j.search ? search(&j, &err) : explain(&j, &err);
  }
  tc_cluster_done(&j.cluster);
  tc_config_free(j.cfg);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
