/* t_expand.c - words in braces within values: what they become, by the environment, and what is refused. */
#include "src/config/impl.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <string.h>

struct row { const char *value, *want, *refused; };

static void clear(void)
{
  static const char *const variable[] = { "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_NTASKS",
                                          "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE" };
  for (size_t i = 0; i < sizeof variable / sizeof *variable; i++) unsetenv(variable[i]);
}

static void test_rows(const struct row *row, const char *where)
{
  for (; row->value; row++) {
    struct tc_err err = { 0 };
    char *out = NULL;
    const int rc = tc_expand(&out, row->value, "run.ini:3: ", "run.out", &err);
    if (row->want) is_str(out ? out : rc < 0 ? err.text : row->value, row->want, "%s: %s", where, row->value);
    else ok(rc == TC_EUSER && !out && strstr(err.text, row->refused) && strstr(err.text, "run.ini:3: run.out: "),
            "%s: %s: %s", where, row->value, err.text);
    free(out);
  }
}

/* What a run file says comes out expanded, once: it does not expand again when it is read back. */
static void test_files(void)
{
  char *argv[] = { "train", "--run.out=r-{array}", "--train.lr={array: 1e-4 2e-4 4e-4}", "--data.train={array: a b c}/x y-{job}" };
  struct tc_config *c = NULL, *again = NULL;
  struct tc_err err = { 0 };
  setenv("SLURM_ARRAY_TASK_ID", "1", 1);
  setenv("SLURM_ARRAY_JOB_ID", "70", 1);
  is_int(tc_config_new(&c, 4, argv, &err), 0, "flags %s", err.text);
  char *text = tc_config_text(c);
  setenv("SLURM_ARRAY_TASK_ID", "2", 1);
  is_int(tc_config_saved(&again, text, 0, NULL, &err), 0, "read back");
  is_str(again->run_out, "r-1", "a name");
  near_f(again->train_lr, 2e-4, 1e-18, "a number");
  is_int(again->data_train.n, 2, "a list");
  is_str(again->data_train.item[0], "b/x", "... of names");
  is_str(again->data_train.item[1], "y-70_1", "... with the job");
  free(text);
  tc_config_free(c);
  tc_config_free(again);
}

int main(void)
{
  static const struct row alone[] = {
    { "run", "run", NULL }, { "", "", NULL }, { "a{b", "a{b", NULL }, { "a}b{", "a}b{", NULL }, { "{}", "{}", NULL },
    { "{1,2}", "{1,2}", NULL }, { "{A}", "{A}", NULL }, { "{a.b}", "{a.b}", NULL }, { "{jobs:3}", "{jobs:3}", NULL },
    { "{job:3}", "{job:3}", NULL }, { "x-{array}", NULL, "sbatch --array" }, { "{job}", NULL, "SLURM_JOB_ID" },
    { "{ranks}", NULL, "SLURM_NTASKS" }, { "{arry}", NULL, "{arry} is not known" }, { "{array: 1 2}", NULL, "sbatch --array" },
    { NULL, NULL, NULL } };
  static const struct row job[] = {
    { "{job}", "123", NULL }, { "a-{job}-{ranks}", "a-123-8", NULL }, { "{job}{job}", "123123", NULL }, { NULL, NULL, NULL } };
  static const struct row task[] = {
    { "{job}", "120_3", NULL }, { "{array}", "3", NULL }, { "{array: a b c d e}", "d", NULL },
    { "{array:a b c d}x", "dx", NULL }, { "{array:  a\tb   c d }", "d", NULL },
    { "{array: a b c}", NULL, "has 3 values, for SLURM_ARRAY_TASK_ID 0 to 2, and this is task 3" },
    { "{array:}", NULL, "has 0 values" }, { NULL, NULL, NULL } };
  clear();
  test_rows(alone, "without Slurm");
  setenv("SLURM_JOB_ID", "123", 1);
  setenv("SLURM_NTASKS", "8", 1);
  test_rows(job, "a job");
  setenv("SLURM_ARRAY_JOB_ID", "120", 1);
  setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  test_rows(task, "a task of an array");
  test_files();
  return done_testing();
}
