/* keep.c - `tercio ckpt verify`, `prune` and `quarantine`: which checkpoints are complete, which are deleted, which are
 * quarantined. */
#include "src/cmd/ckpt/ckpt.h"

#include <stdlib.h>
#include <string.h>

#include "io/folder.h"

/* ---- verify ------------------------------------------------------------------------ */

static void *faults_json(const struct tc_findings *f)
{
  json_t *a = json_array();
  for (int i = 0; i < f->n; i++)
    tc_out_row(a, "status=%d text=%s", -f->fault[i].status, f->fault[i].text);
  return a;
}

/* What was found in a folder. */
struct verified { json_t *list; int worst, good, bad, gone; };

/* Verifies a checkpoint, and prints what was found or appends it to the list. */
static void verify_one(const struct ckpt_args *a, const char *path, struct verified *v)
{
  struct tc_findings f = { 0 };
  const char *name = tc_base_name(path);
  const int rc = tc_ckpt_verify_step(path, !a->quick, a->jobs, &f);
  v->worst = TC_MIN(v->worst, rc);
  v->good += rc == 0;
  v->bad += rc < 0;
  v->gone += rc == TC_STEP_GONE;
  if (a->json && rc != TC_STEP_GONE)
    tc_out_row(v->list, "path=%s ok!=%d status=%d faults=%p", path, rc == 0, -rc, faults_json(&f));
  else if (rc == TC_STEP_GONE && !a->json) printf("%s: removed meanwhile\n", name);
  else if (rc == 0 && !a->json) printf("%s: ok%s\n", name, a->quick ? " (sizes and metadata; not the data)" : "");
  for (int k = 0; k < f.n && !a->json; k++)
    printf("%s: %s: %s\n", name, f.fault[k].status == TC_EUSER ? "UNREADABLE" : "FAULT", f.fault[k].text);
  tc_findings_free(&f);
  fflush(stdout);
}

int ckpt_cmd_verify(const struct ckpt_args *a, struct tc_err *err)
{
  struct verified v = { .list = json_array() };
  int n = 0, looks = 0;
  do {                            /* again if all that were there are gone */
    char **path;
    n = tc_ckpt_step_paths(&path, a->path[0], err);
    for (int i = 0; i < n && !ferror(stdout); i++) verify_one(a, path[i], &v);
    if (n >= 0) tc_names_free(path, n);
  } while (n > 0 && v.good + v.bad == 0 && ++looks < TC_CKPT_STEPS);
  if (a->json && n >= 0) ckpt_print_json(v.list);
  else json_decref(v.list);
  if (n < 0) return n;
  if (v.good + v.bad == 0 && v.gone == 0)
    return tc_fail(err, TC_ENOCKPT, "%s: no checkpoint in this folder", a->path[0]);
  if (v.worst == TC_EUSER)
    return tc_fail(err, TC_EUSER, "%s: %d of %d checkpoints can't be read; nothing is known to be wrong with %s",
                   a->path[0], v.bad, v.good + v.bad, v.bad == 1 ? "it" : "them");
  if (v.worst < 0)
    return tc_fail(err, v.worst, "%s: %d of %d checkpoints %s faulty", a->path[0], v.bad, v.good + v.bad,
                   v.bad == 1 ? "is" : "are");
  return 0;
}

/* ---- prune ------------------------------------------------------------------------- */

struct pruned { const struct ckpt_args *a; json_t *list[3]; };

/* Prints what became of a step, or appends it to its list. */
static void say_pruned(void *ctx, int64_t step, enum tc_pruned what, const char *fault)
{
  static const char *const word[] = { [TC_PRUNE_GOOD] = "good", [TC_PRUNE_FAULTY] = "FAULT: ",
    [TC_PRUNE_REMOVED] = "removed", [TC_PRUNE_UNREAD] = "UNREADABLE: ", [TC_PRUNE_GONE] = "removed meanwhile" };
  const struct pruned *p = ctx;
  if (!p->a->json)
    printf("step %lld: %s%s\n", (long long)step, what == TC_PRUNE_REMOVED && p->a->dry_run ? "would be removed" : word[what],
           fault);
  fflush(stdout);
  if (what == TC_PRUNE_UNREAD) what = TC_PRUNE_FAULTY;
  if (what != TC_PRUNE_GONE) json_array_append_new(p->list[what], json_integer(step));
}

int ckpt_cmd_prune(const struct ckpt_args *a, struct tc_err *err)
{
  const char *dir = a->path[0];
  bool listed;
  if (a->keep == 0)
    return tc_fail(err, TC_EUSER, "ckpt prune: --keep N, the number of good checkpoints to keep, is missing");
  struct pruned p = { a, { json_array(), json_array(), json_array() } };
  const struct tc_prune_opts o = { .dir = dir, .keep = a->keep, .jobs = a->jobs, .dry_run = a->dry_run,
                                   .say = say_pruned, .ctx = &p };
  const int rc = tc_ckpt_prune_good(&o, &listed, err);
  const int good = (int)json_array_size(p.list[TC_PRUNE_GOOD]), n_removed = (int)json_array_size(p.list[TC_PRUNE_REMOVED]);
  if (a->json && listed)
    ckpt_print_json(tc_out_object("path=%s keep=%lld dry_run!=%d good=%p faulty=%p removed=%p", dir, (long long)a->keep,
                                  a->dry_run, (void *)json_incref(p.list[TC_PRUNE_GOOD]),
                                  (void *)json_incref(p.list[TC_PRUNE_FAULTY]),
                                  (void *)json_incref(p.list[TC_PRUNE_REMOVED])));
  else if (listed)
    printf("%d good, %d %s%s\n", good, n_removed, a->dry_run ? "would be removed" : "removed",
           json_array_size(p.list[TC_PRUNE_FAULTY]) ? "; faulty ones are kept: check them with `tercio ckpt verify`" : "");
  for (int i = 0; i < 3; i++) json_decref(p.list[i]);
  return rc;
}

/* ---- quarantine -------------------------------------------------------------------- */

/* "300", "step-00000300"; with --release also "300.2", the second one of this step in quarantine.
 * *nth: 2; 0 if not given. */
static int parse_step(const struct ckpt_args *a, int64_t *step, long *nth, struct tc_err *err)
{
  const char *word = a->path[1], *dot = strchr(word, '.');
  char *plain = dot ? tc_sprintf("%.*s", (int)(dot - word), word) : tc_strdup(word), *end = plain;
  bool good = true;
  *nth = 0;
  *step = tc_step_of_name(plain);
  if (*step < 0) {
    *step = strtoll(plain, &end, 10);
    good = *plain && !*end && *step >= 0;
  }
  if (dot) {
    *nth = strtol(dot + 1, &end, 10);
    good = good && dot[1] >= '1' && dot[1] <= '9' && !*end && *nth >= 2 && *nth <= 99;
  }
  free(plain);
  if (!good || (dot && !a->release))
    return tc_fail(err, TC_EUSER, "ckpt quarantine: %s is not a step; give a number as `tercio ckpt "
                   "ls` shows it%s", word, a->release ? "; N.2 for quarantine-step-N.2" : "");
  return 0;
}

int ckpt_cmd_quarantine(const struct ckpt_args *a, struct tc_err *err)
{
  int64_t step;
  long nth;
  char *from, *to;
  TC_TRY(parse_step(a, &step, &nth, err));
  TC_TRY(tc_ckpt_quarantine(a->path[0], step, nth, a->release, &from, &to, err));
  if (a->json)
    ckpt_print_json(tc_out_object("step=%lld from=%s to=%s", (long long)step, from, to));
  else
    printf("%s\n", to);
  TC_FREE(from, to);
  return 0;
}
