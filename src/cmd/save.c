/* save.c - `tercio save`: requests a checkpoint from a run in progress, by a file in its
 * folder (train/request.h). This works however the run was started, and from any machine that shares the
 * folder. */
#include "io/ckpt/ckpt.h"
#include "io/ckpt/owner.h"
#include "src/cmd/cmd.h"
#include "src/files/names.h"
#include "src/files/output.h"
#include "src/report/report.h"
#include "src/train/request.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLL_NS INT64_C(100000000)
#define ALIVE_NS INT64_C(5000000000)    /* how often to check that the run is alive */

struct ask {
  const char *out;
  int kind;                       /* enum tc_request */
  double wait_s;                  /* 0: don't */
  int64_t newest;                 /* step of the newest checkpoint before the request; -1: none */
  char *ckpt_dir, *file, *taken;
};

static const char *const what[TC_ASKS] = {
  "", "a checkpoint", "a checkpoint, and to stop with status 85 (requeue)",
  "a checkpoint, and to stop with status 86 (no requeue)"
};

static int parse(struct ask *a, int argc, char **argv, struct tc_err *err)
{
  for (int i = 1; i < argc; i++) {
    const char *s = argv[i];
    const int kind = !strcmp(s, "--stop") ? TC_ASK_END
                     : !strcmp(s, "--requeue") ? TC_ASK_REQUEUE : TC_ASK_NONE;
    if (kind && a->kind && a->kind != kind)
      return tc_fail(err, TC_EUSER, "--stop and --requeue exclude each other");
    if (kind) {
      a->kind = kind;
    } else if (!strcmp(s, "--wait") || !strncmp(s, "--wait=", 7)) {
      const char *x = s[6] ? s + 7 : i + 1 < argc ? argv[++i] : "";
      char *end;
      a->wait_s = strtod(x, &end);
      if (end == x || *end || !(a->wait_s > 0) || a->wait_s > 1e9)
        return tc_fail(err, TC_EUSER, "--wait '%s': give the seconds to wait, more than 0", x);
    } else if (s[0] == '-') {
      return tc_fail(err, TC_EUSER, "tercio save has no option '%s'; see tercio save --help", s);
    } else if (a->out) {
      return tc_fail(err, TC_EUSER, "one run at a time: '%s' or '%s'?", a->out, s);
    } else {
      a->out = s;
    }
  }
  if (!a->kind) a->kind = TC_ASK_SAVE;
  return a->out ? 0 : tc_fail(err, TC_EUSER, "name the run's folder (its run.out); see tercio save "
                              "--help");
}

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

static int64_t newest_step(const struct ask *a)
{
  int64_t *steps = NULL;
  int n = tc_ckpt_list_beside(a->ckpt_dir, &steps, NULL);
  int64_t step = n > 0 ? steps[0] : -1;
  for (int i = 1; i < n; i++) step = TC_MAX(step, steps[i]);
  free(steps);
  return step;
}

static int none_under_way(const struct ask *a, const char *when, struct tc_err *err)
{
  const int64_t step = newest_step(a);
  char newest[64] = "it has no checkpoint";
  if (step >= 0)
    snprintf(newest, sizeof newest, "its newest checkpoint is step %lld", (long long)step);
  return tc_fail(err, TC_EUSER, "%s: no run is in progress%s; %s", a->out, when, newest);
}

static int put(const struct ask *a, struct tc_err *err)
{
  static const struct tc_output_kind request = { "a request of tercio save", { "checkpoint\n", "requeue\n", "stop\n" } };
  const struct tc_output_opts o = { .kind = &request, .instead = "wait until the run has taken it" };
  char text[32];
  snprintf(text, sizeof text, "%s\n", tc_request_word[a->kind]);
  return tc_output_text(a->file, &o, text, err);
}

static bool pending(const struct ask *a)
{
  return tc_is_there(a->file) != 0 || tc_is_there(a->taken) != 0;
}

/* The file is removed after the checkpoint, but also at the next start of a run that crashed. */
static int answered(const struct ask *a, struct tc_err *err)
{
  const int64_t newest = newest_step(a);
  if (newest < 0 || newest == a->newest)
    return tc_fail(err, TC_EUSER, "%s: the run ended or was started again before it made the "
                   "checkpoint: request it again", a->out);
  printf("%s: the checkpoint is complete: step %lld\n", a->out, (long long)newest);
  return 0;
}

static int await_answer(const struct ask *a, struct tc_err *err)
{
  const int64_t begin = tc_now_ns();
  int64_t looked = begin;
  while (pending(a)) {
    const int64_t now = tc_now_ns();
    if ((double)(now - begin) * 1e-9 > a->wait_s)
      return tc_fail(err, TC_EUSER, "%s: no checkpoint within %g s; the request stays, see the "
                     "run's log", a->out, a->wait_s);
    if (now - looked > ALIVE_NS) {
      int alive = tc_owner_alive(a->ckpt_dir, err);
      if (alive < 0) return alive;
      if (!alive && pending(a)) return none_under_way(a, " any more", err);
      looked = tc_now_ns();
    }
    tc_sleep_ns(POLL_NS);
  }
  return answered(a, err);
}

static int run(struct ask *a, struct tc_err *err)
{
  struct stat st;
  if (stat(a->out, &st) != 0)
    return tc_fail(err, TC_EUSER, "folder '%s' cannot be read: %s", a->out, strerror(errno));
  if (!S_ISDIR(st.st_mode))
    return tc_fail(err, TC_EUSER, "'%s' is not a folder; name the run's (its run.out)", a->out);
  a->ckpt_dir = ckpt_dir(a->out);
  a->file = tc_sprintf("%s/%s", a->out, TC_REQUEST_FILE);
  a->taken = tc_sprintf("%s/%s", a->out, TC_REQUEST_TAKEN);
  int alive = tc_owner_alive(a->ckpt_dir, err);
  if (alive < 0) return alive;
  if (!alive) return none_under_way(a, "", err);
  a->newest = newest_step(a);
  TC_TRY(put(a, err));
  printf("%s: requested %s, after the current step\n", a->out, what[a->kind]);
  fflush(stdout);
  return a->wait_s > 0 ? await_answer(a, err) : 0;
}

int tc_cmd_save(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct ask a = { 0 };
  int rc = parse(&a, argc, argv, &err);
  if (!rc) rc = run(&a, &err);
  free(a.ckpt_dir);
  free(a.file);
  free(a.taken);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
