/* keep.c - `tercio ckpt verify`, `prune` and `quarantine`: which checkpoints are complete, which
 * are deleted, which are quarantined.
 *
 * prune deletes nothing before it has verified, byte by byte, as many good checkpoints as must be kept,
 * and then only older ones: so the last good one is never deleted. */
#include "src/cmd/ckpt/ckpt.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"

/* ---- verify ------------------------------------------------------------------------ */

static json_t *faults_json(const struct tc_findings *f)
{
  json_t *a = json_array();
  for (int i = 0; i < f->n; i++)
    json_array_append_new(a, json_pack("{s:i, s:o}", "status", -f->fault[i].status, "text",
                          tc_text_json(f->fault[i].text)));
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
    json_array_append_new(v->list, json_pack("{s:o, s:b, s:i, s:o}", "path", tc_text_json(path), "ok", rc == 0,
                                             "status", -rc, "faults", faults_json(&f)));
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

struct pruned { json_t *kept, *faulty, *removed; };

/* Verifies steps[n] (newest first) until `keep` good ones are found, or all of them if there are fewer. Returns
 * how many were verified: the rest may be deleted. *good: the number of good ones. */
static int find_good(const struct ckpt_args *a, const int64_t *steps, int n, int *good,
                     struct pruned *out)
{
  int i = 0;
  *good = 0;
  for (; i < n && *good < a->keep; i++) {
    struct tc_findings f = {0};
    char *path = tc_ckpt_step_path(a->path[0], steps[i]);
    const int rc = tc_ckpt_verify_step(path, true, a->jobs, &f);
    *good += rc == 0;
    if (!a->json)
      printf("step %lld: %s%s\n", (long long)steps[i], rc == 0 ? "good" : rc == TC_STEP_GONE ? "removed meanwhile"
             : rc == TC_EUSER ? "UNREADABLE: " : "FAULT: ", rc < 0 ? f.fault[0].text : "");
    fflush(stdout);
    if (rc != TC_STEP_GONE) json_array_append_new(rc == 0 ? out->kept : out->faulty, json_integer(steps[i]));
    tc_findings_free(&f);
    free(path);
  }
  return i;
}

int ckpt_cmd_prune(const struct ckpt_args *a, struct tc_err *err)
{
  int64_t *steps;
  const char *dir = a->path[0];
  if (a->keep == 0)
    return tc_fail(err, TC_EUSER, "ckpt prune: --keep N, the number of good checkpoints to keep, is missing");
  int good, first, rc = 0, n = tc_ckpt_list_folder(&steps, dir, "prune", err);
  if (n < 0) return n;
  struct pruned out = { json_array(), json_array(), json_array() };
  for (int looks = 1;; looks++) {                /* again if all that were there are gone */
    first = find_good(a, steps, n, &good, &out);
    if (good || json_array_size(out.faulty) || n == 0 || looks == TC_CKPT_STEPS) break;
    free(steps);
    n = tc_ckpt_list_folder(&steps, dir, "prune", err);
    if (n < 0) break;
  }
  for (int i = first; i < n && rc == 0; i++) {
    if (!a->dry_run) rc = tc_ckpt_delete(dir, steps[i], err);
    if (rc < 0) break;
    if (!a->json)
      printf("step %lld: %s\n", (long long)steps[i], a->dry_run ? "would be removed" : "removed");
    json_array_append_new(out.removed, json_integer(steps[i]));
  }
  if (rc == 0 && n >= 0 && !a->dry_run) tc_ckpt_remove_old(dir);
  int n_removed = (int)json_array_size(out.removed), n_faulty = (int)json_array_size(out.faulty);
  if (a->json)
    ckpt_print_json(json_pack("{s:o, s:I, s:b, s:O, s:O, s:O}", "path", tc_text_json(dir), "keep",
                    (json_int_t)a->keep, "dry_run", a->dry_run, "good", out.kept, "faulty",
                    out.faulty, "removed", out.removed));
  else
    printf("%d good, %d %s%s\n", good, n_removed, a->dry_run ? "would be removed" : "removed",
           n_faulty ? "; faulty ones are kept: check them with `tercio ckpt verify`" : "");
  json_decref(out.kept);
  json_decref(out.faulty);
  json_decref(out.removed);
  free(steps);
  if (n < 0) return n;
  if (rc == 0 && good == 0)
    return tc_fail(err, TC_ENOCKPT, "%s: no good checkpoint: nothing was removed", dir);
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
    ckpt_print_json(json_pack("{s:I, s:o, s:o}", "step", (json_int_t)step, "from", tc_text_json(from), "to",
                              tc_text_json(to)));
  else
    printf("%s\n", to);
  free(from);
  free(to);
  return 0;
}
