/* plan.c - `tercio plan`: predicts memory, speed and traffic. No MPI, no device.
 *
 * With --nodes it searches layouts; otherwise, or with --explain, it describes the run file's own; with --for, what an
 * evaluation or sampling takes. What does not fit is
 * printed, ends with status 6, and leaves no file. */
#include "src/calibrate/calibrate.h"
#include "src/cmd/cmd.h"
#include "src/cmd/plan/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put_json(json_t *o)
{
  json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  printf("\n");
  json_decref(o);
}

static void say_row(const struct tc_plan_job *j, const struct tc_plan_found *f, int row, int full)
{
  char memory[32];
  if (j->json || row == 0) return;
  if (full < 0) printf("\nrow %d is the first that also fits with the programs of evaluation and loading\n", row + 1);
  else
    printf("\nrow %d is written, the first that leaves a tenth of a device's memory to the driver, libraries and "
           "kernels;\nrow %d takes %d %% (its options on the command line would have it written)\n", row + 1, full + 1,
           tc_plan_headroom(j, &f->row[full].plan, memory, sizeof memory));
}

/* Writes the first row that fits with all programs of a run and all ranks (a search looks at the training program and
 * at the ends of a pipeline alone): at first of those that leave memory to driver, libraries and kernels, then of
 * all. */
static int emit_first(const struct tc_plan_job *j, const struct tc_plan_found *f, struct tc_err *err)
{
  int rc = 0, full = -1;
  char memory[32];
  for (int k = 0; k < 2 * f->n_rows; k++) {
    struct tc_plan p;
    const int i = k % f->n_rows;
    const bool any = k >= f->n_rows;
    const struct tc_config *c = &f->row[i].cfg;
    if (!any && tc_plan_headroom(j, &f->row[i].plan, memory, sizeof memory)) {
      if (full < 0) full = i;
      continue;
    }
    rc = tc_plan_layout(&p, c, j->world, &j->cluster, true, err);
    if (!rc) rc = tc_plan_fits(j, &p, err);
    if (rc || (!any && tc_plan_headroom(j, &p, memory, sizeof memory))) continue;
    say_row(j, f, i, any ? -1 : full);
    return tc_plan_emit(j, c, &p, err);
  }
  return rc;
}

static int search(const struct tc_plan_job *j, struct tc_err *err)
{
  struct tc_plan_found f;
  TC_TRY(tc_plan_search(&f, j->cfg, &j->cluster, j->fixed, j->top, err));
  if (j->json) put_json(tc_plan_table_json(j, &f));
  else tc_plan_table_print(stdout, j, &f);
  int rc = f.n_rows ? 0 : tc_plan_nothing(j, &f, err);
  if (!rc && j->emit) rc = emit_first(j, &f, err);
  tc_plan_found_done(&f);
  return rc;
}

static int explain(const struct tc_plan_job *j, struct tc_err *err)
{
  struct tc_plan p;
  TC_TRY(tc_plan_layout(&p, j->cfg, j->world, &j->cluster, true, err));
  if (j->json) put_json(tc_plan_json(j, &p));
  else tc_plan_print(stdout, j, &p);
  TC_TRY(tc_plan_fits(j, &p, err));
  struct tc_config c = *j->cfg;                  /* with the values of auto */
  c.mesh_tp = p.tp;
  return j->emit ? tc_plan_emit(j, &c, &p, err) : 0;
}

/* Checks what is at the file's name, before minutes of measuring. */
static int calibrate(const struct tc_plan_job *j, const char *path, struct tc_err *err)
{
  const struct tc_output_opts o = { .kind = &tc_cluster_kind, .flag = "--calibrate" };
  TC_TRY(tc_output_check(path, &o, err));
  return tc_plan_calibrate(j, path, err);
}

int tc_cmd_plan(int argc, char **argv)
{
  const char *file = NULL;
  bool tables = false;
  struct tc_err err = { 0 };
  struct tc_plan_job j;
  int rc = tc_plan_job_new(&j, argc, argv, &file, &tables, &err);
  if (!rc && tables) tc_plan_tables(stdout);
  else if (!rc && file) rc = calibrate(&j, file, &err);
  else if (!rc && j.use != TC_TO_TRAIN) rc = tc_plan_use(&j, &err);
  else if (!rc) rc = j.search ? search(&j, &err) : explain(&j, &err);
  tc_plan_job_done(&j);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
