/* emit.c - writes a layout as a folder that can be run: run.ini; device.ini, by which the run predicts
 * its own time; and job.sbatch, which is slurm/train.sbatch with this job's numbers in its #SBATCH
 * lines and its run file filled in. The template is that of the program's installation or source tree
 * (tc_cmd_share). Where anything fails, nothing is left behind. */
#include "src/cmd/cmd.h"
#include "src/cmd/plan/plan.h"

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
  char *folder = tc_cmd_share();
  if (folder) *out = tc_sprintf("%s/train.sbatch", folder);
  free(folder);
  return *out ? 0 : tc_fail(err, TC_EUSER, "cannot find slurm/train.sbatch, which --emit sbatch fills in; say "
                            "where it is: --template FILE");
}

static int save(const char *path, const char *text, mode_t mode, struct tc_err *err)
{
  FILE *f = fopen(path, "w");
  bool bad = !f || fputs(text, f) == EOF;
  if (f && fclose(f)) bad = true;
  if (bad || chmod(path, mode))
    return tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  return 0;
}

/* Whether the line is "#SBATCH --name=..." (or that, commented out). */
static bool is_option(const char *line, const char *name)
{
  while (*line == '#') line++;
  if (strncmp(line, "SBATCH --", 9)) return false;
  return !strncmp(line + 9, name, strlen(name)) && line[9 + strlen(name)] == '=';
}

/* The text quoted as one shell word; owned by the caller. */
static char *shell_word(const char *text)
{
  char *word = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&word, &size);
  TC_ASSERT(f);
  fputc('\'', f);
  for (; *text; text++)
    if (*text == '\'') fputs("'\\''", f);
    else fputc(*text, f);
  fputc('\'', f);
  if (fclose(f)) TC_ASSERT(!"out of memory for a word");
  return word;
}

/* Writes one line of the template to f. `ini` and `program` are shell words. */
static void put_line(FILE *f, const char *line, const struct tc_plan_job *j, const char *ini,
                     const char *program)
{
  const struct tc_cluster *k = &j->cluster;
  int nodes = (j->world + k->devices - 1) / k->devices;
  long long s = (long long)(j->walltime_s > 0 ? j->walltime_s : 86400);
  bool gpus = strncmp(k->device.name, "cpu", 3) != 0;
  bool typed = j->from_slurm && j->slurm.mixed && *j->slurm.gpu;   /* Slurm has several types */
  if (is_option(line, "nodes")) {
    fprintf(f, "#SBATCH --nodes=%d\n", nodes);
    if (j->partition) fprintf(f, "#SBATCH --partition=%s\n", j->partition);
  }
  else if (is_option(line, "ntasks-per-node"))
    fprintf(f, "#SBATCH --ntasks-per-node=%d\n", TC_MIN(k->devices, j->world));
  else if (is_option(line, "gpus-per-node"))
    fprintf(f, "%s--gpus-per-node=%s%s%d\n", gpus ? "#SBATCH " : "##SBATCH ",
            typed ? j->slurm.gpu : "", typed ? ":" : "", k->devices);
  else if (j->from_slurm && is_option(line, "cpus-per-task"))
    fprintf(f, "#SBATCH --cpus-per-task=%d\n", TC_MAX(j->slurm.cpus / k->devices, 1));
  else if (is_option(line, "time"))
    fprintf(f, "#SBATCH --time=%lld:%02lld:%02lld\n", s / 3600, s / 60 % 60, s % 60);
  else fputs(line, f);
  if (strcmp(line, "set -u\n")) return;
  fprintf(f, "\n# Filled in by tercio plan: the run file, and the program that planned it.\n"
          "set -- %s \"$@\"\n[ -n \"${TERCIO-}\" ] || TERCIO=%s\nexport TERCIO\n", ini, program);
}

/* The job's script, of a run file in `dir`, into *text; owned by the caller. */
static int make_job(char **text, const struct tc_plan_job *j, const char *dir, struct tc_err *err)
{
  char *path = NULL, *line = NULL;
  size_t size = 0, cap = 0;
  TC_TRY(find_template(j, &path, err));
  FILE *in = fopen(path, "r");
  if (!in) {
    int rc = tc_fail(err, TC_EUSER, "cannot read %s: %s", path, strerror(errno));
    free(path);
    return rc;
  }
  FILE *f = open_memstream(text, &size);
  TC_ASSERT(f);
  char *ini = tc_sprintf("%s/run.ini", dir);
  char *program = tc_cmd_program();
  char *ini_word = shell_word(ini), *program_word = shell_word(program);
  bool seen = false;
  while (getline(&line, &cap, in) > 0) {
    put_line(f, line, j, ini_word, program_word);
    seen |= !strcmp(line, "set -u\n");
  }
  if (fclose(f)) TC_ASSERT(!"out of memory for a job script");
  int rc = seen ? 0 : tc_fail(err, TC_EUSER, "%s is not slurm/train.sbatch: it has no line \"set -u\"", path);
  fclose(in);
  free(line);
  free(ini);
  free(program);
  free(ini_word);
  free(program_word);
  free(path);
  return rc;
}

static const char *const names[] = { "device.ini", "run.ini", "job.sbatch" };
enum { FILES = sizeof names / sizeof *names };

/* All files into `dir`, or none: they are written in a folder within it, and renamed. */
static int write_all(const struct tc_cluster *k, const char *run, const char *job, const char *dir,
                     struct tc_err *err)
{
  char *tmp = tc_sprintf("%s/.emit-XXXXXX", dir), *from[FILES], *to[FILES];
  int rc = mkdtemp(tmp) ? 0 : tc_fail(err, TC_EUSER, "cannot write %s: %s", dir, strerror(errno));
  for (int i = 0; i < FILES; i++) {
    from[i] = tc_sprintf("%s/%s", tmp, names[i]);
    to[i] = tc_sprintf("%s/%s", dir, names[i]);
  }
  if (!rc) rc = tc_cluster_write(k, from[0], err);
  if (!rc) rc = save(from[1], run, 0644, err);
  if (!rc) rc = save(from[2], job, 0755, err);
  for (int i = 0; i < FILES; i++) {
    if (!rc && rename(from[i], to[i]))
      rc = tc_fail(err, TC_EUSER, "cannot write %s: %s", to[i], strerror(errno));
    if (rc) unlink(from[i]);
    free(from[i]);
    free(to[i]);
  }
  rmdir(tmp);
  free(tmp);
  return rc;
}

/* The layout as a run's configuration, with checkpoints at the planned interval. */
static struct tc_config run_config(const struct tc_plan_job *j, const struct tc_config *layout,
                                   const struct tc_plan *p)
{
  struct tc_config c = *layout;
  struct tc_plan_run r;
  tc_plan_run(&r, p, &c, &j->cluster, j->tokens, j->walltime_s, j->restart_s);
  if (c.ckpt_every == 0 && c.ckpt_every_minutes == TC_DEFAULT && r.interval_s > 0)
    c.ckpt_every_minutes = TC_MAX(ceil(r.interval_s / 60), 1);
  if (j->tokens > 0) c.train_steps = (int64_t)r.steps;
  c.mesh_dp = TC_AUTO;                           /* so that it goes on where a node is lost */
  return c;
}

int tc_plan_emit(const struct tc_plan_job *j, const struct tc_config *layout,
                 const struct tc_plan *p, struct tc_err *err)
{
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
  struct tc_config c = run_config(j, layout, p);
  /* The run compares its step time with this plan. */
  char *device = tc_sprintf("%s/device.ini", dir), *job = NULL;
  c.run_plan_device = device;
  char *text = tc_config_text(&c);
  int rc = make_job(&job, j, dir, err);
  if (!rc) rc = write_all(&j->cluster, text, job, dir, err);
  if (rc && made) rmdir(j->into);
  if (!rc && !j->json) {
    char *path = tc_sprintf("%s/job.sbatch", j->into), *word = shell_word(path);
    printf("\nwritten: run.ini, device.ini and job.sbatch in %s; sbatch %s\n", dir, word);
    free(path);
    free(word);
  }
  free(job);
  free(device);
  free(text);
  free(dir);
  return rc;
}
