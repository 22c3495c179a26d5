/* cmd_plan.c - `tercio plan`: predicts memory, speed and traffic. No MPI, no device.
 *
 * With --nodes it searches layouts; otherwise, or with --explain, it describes the run file's own; with --for, what an
 * evaluation or sampling takes; with --simulate-start, the control traffic of many ranks. What does not fit is
 * printed, ends with status 6, and leaves no file. */
#include "src/calibrate/calibrate.h"
#include "src/cmd/cmd.h"
#include "src/cmd/plan/plan.h"
#include "src/cmd/show_steps.h"

#include <stdlib.h>

static void say_row(const struct tc_plan_job *j, const struct tc_plan_found *f, int row, int full)
{
  char memory[32];
  if (j->json || row == 0) return;
  if (full < 0) printf("\nrow %d is the first that also fits with the programs of evaluation and loading\n", row + 1);
  else
    printf("\nrow %d is written, the first that leaves a tenth of a device's memory to the driver, libraries and "
           "kernels;\nrow %d takes %d %% (its options on the command line would have it written)\n", row + 1, full + 1,
           tc_emit_headroom(j, &f->row[full].plan, memory, sizeof memory));
}

static int emit(const struct tc_plan_job *j, const struct tc_config *c, const struct tc_plan *p, struct tc_err *err)
{
  struct tc_emitted e;
  TC_TRY(tc_emit(&e, j, c, p, err));
  if (!j->json) {
    char *path = tc_sprintf("%s/job.sbatch", j->into), *word = tc_shell_word(path);
    printf("\nwritten: run.ini, device.ini and job.sbatch in %s; sbatch %s\n", e.dir, word);
    if (e.n_checks) printf("to check before it is submitted (# CHECK in the files):\n");
    for (int i = 0; i < e.n_checks; i++) {
      const struct tc_emit_check *x = &e.check[i];
      printf("  %-10s %s%s: %s\n", x->job ? "job.sbatch" : "run.ini", x->job ? "--" : "", x->name, x->text);
    }
    TC_FREE(path, word);
  }
  free(e.dir);
  return 0;
}

static int emit_chosen(const struct tc_plan_job *j, const struct tc_plan_found *f, struct tc_err *err)
{
  struct tc_emit_choice x;
  TC_TRY(tc_emit_choose(&x, j, f, err));
  say_row(j, f, x.row, x.full);
  return emit(j, &f->row[x.row].cfg, &x.plan, err);
}

static int search(const struct tc_plan_job *j, int argc, char *const *argv, struct tc_err *err)
{
  struct tc_plan_found f;
  TC_TRY(tc_show_rows_of(j->cfg, false, err));   /* what is wrong with rows is no matter of layouts */
  TC_TRY(tc_plan_search(&f, j->cfg, &j->cluster, j->fixed, j->top, err));
  json_t *table = j->json ? tc_plan_table_json(j, &f) : NULL;
  if (!table) tc_plan_table_print(stdout, j, &f);
  json_t *kinds = j->kinds ? tc_plan_kinds(j, &f, argc, argv) : NULL;
  if (kinds) json_object_set_new(table, "kinds", kinds);
  if (table) tc_out_json(table, TC_PLAN_JSON);
  int rc = f.n_rows ? 0 : tc_plan_nothing(j, &f, err);
  if (!rc && j->emit) rc = emit_chosen(j, &f, err);
  tc_plan_found_done(&f);
  return rc;
}

static int explain(const struct tc_plan_job *j, struct tc_err *err)
{
  struct tc_plan p;
  TC_TRY(tc_plan_layout(&p, j->cfg, j->world, &j->cluster, true, err));
  if (j->json) tc_out_json(tc_plan_json(j, &p), TC_PLAN_JSON);
  else tc_plan_print(stdout, j, &p);
  TC_TRY(tc_emit_fits(j, &p, err));
  struct tc_config c = *j->cfg;                  /* with the values of auto */
  c.mesh_tp = tc_axes_size(p.size, TC_ON_TP);
  return j->emit ? emit(j, &c, &p, err) : 0;
}

static int calibrate(const struct tc_config *c, const char *path, struct tc_err *err)
{
  struct tc_calibrated x;
  TC_TRY(tc_calibrate(&x, c, path, err));
  tc_plan_print_calibrated(stdout, path, &x);
  return 0;
}

int tc_cmd_plan(int argc, char **argv)
{
  struct tc_plan_instead of = { .tables = false };
  struct tc_err err = { 0 };
  struct tc_plan_job j;
  int rc = tc_plan_job_new(&j, argc, argv, &of, &err);
  if (!rc && of.tables) tc_plan_tables(stdout);
  else if (!rc && of.calibrate) rc = calibrate(j.cfg, of.calibrate, &err);
  else if (!rc && of.like) rc = tc_plan_like(of.like, of.device, j.json, &err);
  else if (!rc && j.start) rc = tc_plan_simulate_start(&j, &err);
  else if (!rc && j.use != TC_TO_TRAIN) rc = tc_plan_use(&j, &err);
  else if (!rc) rc = j.search ? search(&j, argc, argv, &err) : explain(&j, &err);
  tc_plan_job_done(&j);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
