/* emit.c - writes a layout as a folder that can be run: run.ini, with the keys that were given or that the plan chose;
 * device.ini, by which the run predicts its own time; and job.sbatch, which is slurm/train.sbatch with this job's
 * numbers in its #SBATCH lines and its run file filled in. The template is that of the program's installation or
 * source tree (tc_share_folder). Where anything fails, nothing is left behind. */
#include "src/emit/emit.h"
#include "src/recipe/recipe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int find_template(const struct tc_plan_job *j, char **out, struct tc_err *err)
{
  *out = NULL;
  if (j->template) {
    *out = tc_strdup(j->template);
    return 0;
  }
  char *folder = tc_share_folder();
  if (folder) *out = tc_sprintf("%s/train.sbatch", folder);
  free(folder);
  return *out ? 0 : tc_fail(err, TC_EUSER, "cannot find slurm/train.sbatch, which --emit sbatch fills in; say "
                            "where it is: --template FILE");
}

/* Whether the line is "#SBATCH --name=..." (or that, commented out). */
static bool is_option(const char *line, const char *name)
{
  while (*line == '#') line++;
  if (strncmp(line, "SBATCH --", 9)) return false;
  return !strncmp(line + 9, name, strlen(name)) && line[9 + strlen(name)] == '=';
}

/* A job that is being written. */
struct emit {
  const struct tc_plan_job *j;
  struct tc_emitted *out;                        /* its checks */
  const char *changed[128]; int n_changed;       /* options that the plan has set */
};

static void put_checks(FILE *f, const struct emit *e, const char *name)
{
  for (int i = 0; i < e->out->n_checks; i++)
    if (e->out->check[i].job && !strcmp(e->out->check[i].name, name)) fprintf(f, "# %s\n", e->out->check[i].comment);
}

/* The job's share of a node: all of it on CPUs, or with all of its GPUs. */
static void put_memory(FILE *f, const struct tc_plan_job *j)
{
  const struct tc_slurm_part *s = &j->slurm;
  const bool part = j->from_slurm && s->gpus > j->cluster.devices;
  if (!part) fprintf(f, "#SBATCH --mem=0\n");
  else fprintf(f, "#SBATCH --mem=%.0fM\n", s->memory_bytes / s->gpus * j->cluster.devices / 1048576);
}

/* "#SBATCH --signal=B:USR2@300", or fewer seconds, at most a fifth of the job's: the signal would come at the start of
 * a short one. */
static void put_signal(FILE *f, const char *line, long long walltime_s)
{
  const long long most = TC_MAX(walltime_s / 5, 1);
  const char *at = strchr(line, '@');
  char *end;
  const long long given = at ? strtoll(at + 1, &end, 10) : 0;
  if (given <= most) fputs(line, f);
  else fprintf(f, "%.*s%lld%s", (int)(at + 1 - line), line, most, end);
}

static void put_option(FILE *f, const char *line, const char *name, const struct tc_plan_job *j)
{
  const struct tc_cluster *k = &j->cluster;
  const struct tc_slurm_part *s = &j->slurm;
  const bool gpus = !tc_plan_is_cpu(&k->device);
  const bool typed = j->from_slurm && s->mixed && *s->gpu;   /* Slurm has several types */
  const char *partition = j->partition ? j->partition : j->from_slurm ? s->name : NULL;
  const long long t = (long long)(j->walltime_s > 0 ? j->walltime_s : 86400);
  if (!strcmp(name, "nodes")) fprintf(f, "#SBATCH --nodes=%d\n", (j->world + k->devices - 1) / k->devices);
  else if (!strcmp(name, "ntasks-per-node"))
    fprintf(f, "#SBATCH --ntasks-per-node=%d\n", TC_MIN(k->devices, j->world));
  else if (!strcmp(name, "gpus-per-node"))
    fprintf(f, "%s--gpus-per-node=%s%s%d\n", gpus ? "#SBATCH " : "##SBATCH ", typed ? s->gpu : "", typed ? ":" : "",
            k->devices);
  else if (!strcmp(name, "cpus-per-task") && tc_emit_task_cpus(j) > 0)
    fprintf(f, "#SBATCH --cpus-per-task=%d\n", tc_emit_task_cpus(j));
  else if (!strcmp(name, "mem")) put_memory(f, j);
  else if (!strcmp(name, "time")) fprintf(f, "#SBATCH --time=%lld:%02lld:%02lld\n", t / 3600, t / 60 % 60, t % 60);
  else if (!strcmp(name, "signal")) put_signal(f, line, t);
  else fputs(line, f);
  if (!strcmp(name, "nodes") && partition) fprintf(f, "#SBATCH --partition=%s\n", partition);
}

/* Writes one line of the template to f. `ini` and `program` are shell words. */
static void put_line(FILE *f, const char *line, const struct emit *e, const char *ini, const char *program)
{
  static const char *const filled[] = { "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem", "time",
                                        "signal" };
  enum { FILLED = sizeof filled / sizeof *filled };
  int i = 0;
  while (i < FILLED && !is_option(line, filled[i])) i++;
  if (i == FILLED) {
    fputs(line, f);
  } else {
    put_checks(f, e, filled[i]);
    if (!i) put_checks(f, e, "partition");
    put_option(f, line, filled[i], e->j);
  }
  if (strcmp(line, "set -u\n")) return;
  fprintf(f, "\n# Filled in by tercio plan: the run file, and the program that planned it.\n"
          "set -- %s \"$@\"\n[ -n \"${TERCIO-}\" ] || TERCIO=%s\nexport TERCIO\n"
          "# Before the first start, in seconds: does this layout compute what one rank computes?\n"
          "#export TERCIO_PROVE=yes\n", ini, program);
}

/* The job's script, of a run file in `dir`, into *text; owned by the caller. */
static int make_job(char **text, const struct emit *e, const char *dir, struct tc_err *err)
{
  char *path = NULL, *line;
  size_t size = 0;
  struct tc_lines *in;
  TC_TRY(find_template(e->j, &path, err));
  int rc = tc_lines_open(&in, path, "template", err);
  if (rc < 0) {
    free(path);
    return rc;
  }
  FILE *f = open_memstream(text, &size);
  TC_ASSERT(f);
  char *ini = tc_sprintf("%s/run.ini", dir);
  char *program = tc_share_program();
  char *ini_word = tc_shell_word(ini), *program_word = tc_shell_word(program);
  bool seen = false;
  while ((rc = tc_lines_next(in, &line, NULL, err)) == 1) {
    put_line(f, line, e, ini_word, program_word);
    seen |= !strcmp(line, "set -u\n");
  }
  if (fclose(f)) TC_ASSERT(!"out of memory for a job script");
  if (rc == 0 && !seen) rc = tc_fail(err, TC_EUSER, "%s is not slurm/train.sbatch: it has no line \"set -u\"", path);
  tc_lines_close(in);
  TC_FREE(ini, program, ini_word, program_word, path);
  return rc;
}

/* The files into `dir`, each whole; none if one can't be begun. Earlier ones, which a person may have edited, are kept as NAME~. */
static int write_all(const struct tc_cluster *k, const char *run, const char *job, const char *dir,
                     struct tc_err *err)
{
  static const char *const names[] = { "device.ini", "run.ini", "job.sbatch" };
  enum { FILES = sizeof names / sizeof *names };
  const char *const text[FILES] = { NULL, run, job };
  struct tc_output *f[FILES] = { NULL };
  int rc = 0;
  for (int i = 0; i < FILES && !rc; i++) {
    char *path = tc_sprintf("%s/%s", dir, names[i]);
    rc = tc_output_new(&f[i], path, &(struct tc_output_opts){ .flag = "--into", .backup = true, .executable = text[i] == job },
                       err);
    if (!rc && text[i]) fputs(text[i], tc_output_stream(f[i]));
    else if (!rc) tc_cluster_print(k, tc_output_stream(f[i]));
    free(path);
  }
  for (int i = 0; i < FILES; i++) rc = tc_output_end(f[i], rc, err);
  return rc;
}

/* ---- the run file ---------------------------------------------------------------- */

/* The published learning rate for the size, unless one was given. NULL: it does not apply. */
static const struct tc_plan_rate *set_rate(struct tc_config *c, const struct tc_plan *p)
{
  const bool given = tc_config_source(c, "train.lr") || tc_config_source(c, "train.min_lr");
  if (given || c->train_optimizer != TC_OPTIMIZER_ADAMW) return NULL;
  const struct tc_plan_rate *r = tc_plan_rate((double)p->parameters);
  c->train_lr = r->lr;
  c->train_min_lr = round(r->lr * 1e6) / 1e7;    /* a tenth, without digits of rounding */
  if (!tc_config_source(c, "train.warmup"))
    c->train_warmup = tc_plan_warmup((double)p->tokens, c->train_steps);
  return r;
}

/* The planned time between failures, in hours, with three digits. */
static double hours_between_failures(const struct tc_plan_run *r)
{
  const double least = 1e-6;                     /* of ckpt.mtbf_hours */
  char text[32];
  snprintf(text, sizeof text, "%.3g", r->mtbf_s / 3600);
  return TC_MAX(strtod(text, NULL), least);
}

/* The layout as a run's configuration. The interval between checkpoints stays that of the run, which measures what one
 * costs; it follows from the planned time between failures. */
static struct tc_config run_config(const struct tc_plan_job *j, const struct tc_config *layout,
                                   const struct tc_plan *p)
{
  struct tc_config c = *layout;
  struct tc_plan_run r;
  tc_plan_run(&r, p, &c, &j->cluster, j->tokens, j->walltime_s, j->restart_s);
  if (r.mtbf_s > 0 && r.mtbf_s < c.ckpt_mtbf_hours * 3600) c.ckpt_mtbf_hours = hours_between_failures(&r);
  if (j->tokens > 0) c.train_steps = (int64_t)r.steps;
  c.mesh_dp = TC_AUTO;                           /* so that it goes on where a node is lost */
  c.run_ranks = 1;                               /* srun starts a process for each */
  if (c.run_comm == TC_COMM_THREAD) c.run_comm = TC_COMM_AUTO;
  if (c.parallel_schedule != TC_SCHEDULE_INTERLEAVED || c.mesh_pp == 1) c.parallel_virtual_stages = TC_AUTO;
  return c;
}

/* The run's folder, unless one was given: named by the model, within the job's, so that no two jobs share one.
 * Owned. */
static char *run_folder(const struct tc_config *c, const struct tc_plan *p, const char *dir)
{
  char n[32];
  if (tc_config_source(c, "run.out") != TC_FROM_DEFAULT) return tc_strdup(c->run_out);
  if (*c->model_preset) return tc_sprintf("%s/%s", dir, c->model_preset);
  return tc_sprintf("%s/%s-%s", dir, tc_word_model_family(p->model.family),
                    tc_human_count(n, sizeof n, (double)p->parameters));
}

static void list_changes(struct emit *e, const struct tc_config *c)
{
  struct tc_config_change x;
  for (int i = 0; (i = tc_config_next_change(e->j->cfg, c, i, &x)) >= 0; i++) {
    TC_ASSERT(e->n_changed < (int)(sizeof e->changed / sizeof *e->changed));
    e->changed[e->n_changed++] = x.name;
  }
}

/* For tc_config_text_of: the options that were given, that the plan has changed, or that every run should name. */
static const char *note_option(const void *arg, const char *name)
{
  static const char *const always[] = {
    "data.train", "train.steps", "train.global_batch", "train.micro_batch", "train.lr", "train.warmup", "train.min_lr",
    "train.precision", "mesh.pp", "mesh.dp", "mesh.tp", "parallel.data", "run.out" };
  const struct emit *e = arg;
  bool matters = tc_config_source(e->j->cfg, name) != TC_FROM_DEFAULT;
  for (size_t i = 0; i < sizeof always / sizeof *always; i++) matters |= !strcmp(name, always[i]);
  for (int i = 0; i < e->n_changed; i++) matters |= !strcmp(name, e->changed[i]);
  for (int i = 0; i < e->out->n_checks; i++)
    if (!e->out->check[i].job && !strcmp(name, e->out->check[i].name)) return e->out->check[i].comment;
  return matters ? "" : NULL;
}

int tc_emit(struct tc_emitted *o, const struct tc_plan_job *j, const struct tc_config *layout, const struct tc_plan *p,
            struct tc_err *err)
{
  struct tc_config c = run_config(j, layout, p);
  if (c.expanded)
    return tc_fail(err, TC_EUSER, "--emit: the run file has {array}, {job} or {ranks}, of which a job of its own would get this one's "
                   "values: submit it with train.sbatch as it is, or give values instead");
  if (c.n_stages)
    return tc_fail(err, TC_EUSER, "--emit: the run has %d stages, and --emit writes the run file of one: submit the run file with "
                   "train.sbatch as it is", c.n_stages + 1);
  if (c.data_epochs <= 0) TC_TRY(tc_rate_check(&c, err));        /* else when the run knows its steps */
  TC_TRY(tc_emit_absolute(&c, err));
  const bool made = mkdir(j->into, 0777) == 0;
  if (!made && errno != EEXIST)
    return tc_fail(err, TC_EUSER, "cannot make folder %s: %s", j->into, strerror(errno));
  char *dir = realpath(j->into, NULL);
  if (!dir || !tc_config_is_plain(dir)) {
    free(dir);
    if (made) rmdir(j->into);
    return tc_fail(err, TC_EUSER, "--into %s: its path is written into the run file and the job script: "
                   "give a folder without control characters or \" ;\" in it", j->into);
  }
  struct emit e = { .j = j, .out = o };
  const struct tc_plan_rate *rate = set_rate(&c, p);
  o->n_checks = tc_emit_checks(o->check, j, &c, p, rate);
  /* The run compares its step time with this plan. */
  char *device = tc_sprintf("%s/device.ini", dir), *out = run_folder(&c, p, dir), *job = NULL;
  c.run_plan_device = device;
  c.run_out = out;
  list_changes(&e, &c);
  char *text = tc_config_text_of(&c, note_option, &e);
  int rc = make_job(&job, &e, dir, err);
  if (!rc) rc = write_all(&j->cluster, text, job, dir, err);
  if (rc && made) rmdir(j->into);
  TC_FREE(job, device, out, text);
  if (rc) free(dir);
  else o->dir = dir;
  return rc;
}
