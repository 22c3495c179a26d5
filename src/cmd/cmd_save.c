/* cmd_save.c - `tercio save`: requests a checkpoint from a run in progress, by a file in its
 * folder (src/train/train.h). This works however the run was started, and from any machine that shares the
 * folder. */
#include "src/cmd/cmd.h"
#include "src/report/report.h"
#include "src/train/train.h"

#include <jansson.h>
#include <stdlib.h>

struct ask {
  const char *out;
  int kind;                       /* enum tc_request */
  bool stop, requeue;
  double wait_s;                  /* 0: don't */
};

#define FIELD(f) .field = offsetof(struct ask, f)
const struct tc_flag tc_flags_save[] = {
  { "--stop", "the run then ends with status 86: neither requeue the job nor start it again", .kind = TC_FLAG_YES,
    FIELD(stop), .drops = "--requeue", .says = "--stop and --requeue exclude each other" },
  { "--requeue", "the run then ends with status 85: train.sbatch requeues the job", .kind = TC_FLAG_YES,
    FIELD(requeue) },
  { "--wait SECONDS", "return when the checkpoint is complete; fail after SECONDS", "the seconds to wait, more than 0",
    TC_FLAG_REAL, FIELD(wait_s), TC_FLAG_ABOVE_0, 1e9 },
  { .form = NULL }
};
static const struct tc_flags flags = { .flag = tc_flags_save, .command = "save", .wrong = "%s '%s'",
                                       .none = "name the run's folder (its run.out); see tercio save --help",
                                       .two = "one run at a time: '%s' or '%s'?" };

static const char *const what[TC_ASKS] = {
  "", "a checkpoint", "a checkpoint, and to stop with status 85 (requeue)",
  "a checkpoint, and to stop with status 86 (no requeue)"
};

/* The folder of checkpoints from run.json; else the default. */
static char *ckpt_dir(const char *out)
{
  char *path = tc_sprintf("%s/run.json", out);
  json_t *run = NULL;
  const char *dir = tc_run_read(&run, path, NULL) < 0
                      ? NULL : json_string_value(json_object_get(run, "ckpt_dir"));
  char *found = dir ? tc_strdup(dir) : tc_sprintf("%s/ckpt", out);
  json_decref(run);
  free(path);
  return found;
}

static int send(const struct ask *a, const char *dir, struct tc_err *err)
{
  struct tc_sent_request r;
  int rc = tc_request_send(&r, a->out, dir, a->kind, err);
  if (!rc) {
    printf("%s: requested %s, after the current step\n", a->out, what[a->kind]);
    fflush(stdout);
  }
  if (!rc && a->wait_s > 0) rc = tc_request_await(&r, a->wait_s, err);
  if (!rc && a->wait_s > 0) printf("%s: the checkpoint is complete: step %lld\n", a->out, (long long)r.made);
  tc_request_done(&r);
  return rc;
}

static int run(const struct ask *a, struct tc_err *err)
{
  TC_TRY(tc_run_folder(a->out, err));
  char *dir = ckpt_dir(a->out);
  const int rc = send(a, dir, err);
  free(dir);
  return rc;
}

int tc_cmd_save(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct ask a = { 0 };
  int rc = tc_args_read(&a.out, &flags, &a, argc, argv, &err);
  a.kind = a.stop ? TC_ASK_END : a.requeue ? TC_ASK_REQUEUE : TC_ASK_SAVE;
  if (!rc) rc = run(&a, &err);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
