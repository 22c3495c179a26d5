/* tidy.c - what is in a folder of checkpoints besides those that count: remains of saves that were
 * cut off, steps that are too old, steps that lie ahead of where the run goes on.
 *
 * Steps beyond N were made by a run that has since been taken up from an earlier step: they are
 * kept under another name, else the next start would go on from them. What is deleted gets another
 * name first, so that a step that is half there is never taken for a checkpoint. tc_ckpt_prune_good removes nothing
 * before it has verified, byte by byte, as many good ones as must stay, and then only older ones. */
#include "io/ckpt/impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/folder.h"

int tc_ckpt_still_ours(const char *dir, const char *lease, const char *name, struct tc_err *err)
{
  if (!lease) return 0;
  char *path = tc_sprintf("%s/%s", dir, name);
  int rc = tc_is_there(path) == 0
    ? tc_fail(err, TC_EUSER, "%s is gone: another run has taken over this folder, or it was removed",
              path) : 0;
  free(path);
  return rc;
}

int tc_ckpt_set_aside(const char *dir, int64_t step, const char *tag, const char *needs,
                      const char *why, struct tc_err *err)
{
  int64_t *steps = NULL;
  int n = tc_ckpt_list(dir, &steps, err), rc = TC_MIN(n, 0);
  /* Looked at after the list was made: what a later owner commits is not in it. */
  if (rc == 0) rc = tc_ckpt_still_ours(dir, needs, needs, err);
  for (int i = 0; i < n && rc == 0 && steps[i] > step; i++) {
    char from[40];
    snprintf(from, sizeof from, "step-%08lld", (long long)steps[i]);
    char *to = tc_sprintf("superseded-%s-%s", from, tag);
    char *path = tc_ckpt_step_path(dir, steps[i]);
    const bool gone = tc_is_there(path) == 0;
    if (!gone) rc = tc_folder_rename(dir, from, to, err);
    if (rc == 0 && !gone) tc_warn("%s/%s: %s: kept as %s", dir, from, why, to);
    TC_FREE(path, to);
  }
  free(steps);
  return rc;
}

void tc_ckpt_remove(const char *dir, const char *name)
{
  struct tc_err err = {0};
  char *path = tc_sprintf("%s/%s", dir, name);
  if (tc_folder_remove(path, &err) < 0) tc_warn("%s", err.text);
  free(path);
}

/* ".was-step-00000100-1a2b3c4d": back to its name if the step isn't there, else away. */
static void put_back(const char *dir, const char *was)
{
  struct tc_err err = {0};
  char *name = tc_strdup(was + strlen(".was-"));
  char *dash = strrchr(name, '-');
  if (dash) *dash = '\0';
  char *path = tc_sprintf("%s/%s", dir, name);
  const int there = tc_is_there(path);
  if (there < 0) {
    tc_warn("%s can't be looked at: %s: %s/%s stays", path, strerror(-there), dir, was);   /* it may be the only one */
  } else if (tc_step_of_name(name) >= 0 && !there) {
    if (tc_folder_rename(dir, was, name, &err) < 0) tc_warn("%s", err.text);
  } else {
    tc_ckpt_remove(dir, was);
  }
  TC_FREE(path, name);
}

void tc_ckpt_tidy(const char *dir, const char *except)
{
  struct tc_err err = {0};
  char **names;
  int n = tc_folder_scan(dir, ".", &names, &err);
  if (n < 0) tc_warn("%s", err.text);
  for (int i = 0; i < n; i++) {
    if (except && strcmp(names[i], except) == 0) continue;
    if (strncmp(names[i], ".was-step-", 10) == 0) put_back(dir, names[i]);
    if (strncmp(names[i], ".old-step-", 10) == 0 || strncmp(names[i], ".tmp-step-", 10) == 0)
      tc_ckpt_remove(dir, names[i]);
  }
  if (n > 0) tc_names_free(names, n);
}

/* Removes what deletions that were interrupted have left. */
static void remove_old(const char *dir)
{
  struct tc_err err = {0};
  char **names;
  const int n = tc_folder_scan(dir, ".old-step-", &names, &err);
  if (n < 0) tc_warn("%s", err.text);
  for (int i = 0; i < n; i++) tc_ckpt_remove(dir, names[i]);
  if (n > 0) tc_names_free(names, n);
}

/* Removes a step, under another name first; one that is gone is no failure. Of a link the link is removed. */
static int delete_step(const char *dir, int64_t step, struct tc_err *err)
{
  char name[40];
  snprintf(name, sizeof name, "step-%08lld", (long long)step);
  char *old = tc_sprintf(".old-%s-%08x", name, tc_random_name());
  char *path = tc_sprintf("%s/%s", dir, name), *old_path = tc_sprintf("%s/%s", dir, old);
  char at[2];
  const bool link = readlink(path, at, sizeof at) >= 0;
  int rc = tc_folder_rename(dir, name, old, err);
  if (rc == 0) rc = tc_folder_remove(old_path, err);
  else if (tc_is_there(path) == 0 && tc_is_there(old_path) == 0) rc = 0;     /* another process has removed it */
  if (rc == 0 && link) tc_log("%s was a link: the link is removed, and what it leads to stays", path);
  TC_FREE(path, old_path, old);
  return rc;
}

void tc_ckpt_prune(const char *dir, int keep)
{
  struct tc_err err = {0};
  int64_t *steps = NULL;
  int n = keep > 0 ? tc_ckpt_list(dir, &steps, &err) : 0;
  for (int i = keep; i < n; i++)
    if (delete_step(dir, steps[i], &err) < 0) tc_warn("%s", err.text);
  if (n < 0) tc_warn("%s", err.text);
  free(steps);
}

/* Verifies steps[n] (newest first) until `keep` good ones are found, or all of them if there are fewer. Returns how many
 * were verified: the rest may be deleted. *good, *faulty: how many are. */
static int find_good(const struct tc_prune_opts *o, const int64_t *steps, int n, int *good, int *faulty)
{
  int i = 0;
  *good = *faulty = 0;
  for (; i < n && *good < o->keep; i++) {
    struct tc_findings f = {0};
    char *path = tc_ckpt_step_path(o->dir, steps[i]);
    const int rc = tc_ckpt_verify_step(path, true, o->jobs, &f);
    *good += rc == 0;
    *faulty += rc < 0;
    o->say(o->ctx, steps[i], rc == 0 ? TC_PRUNE_GOOD : rc == TC_STEP_GONE ? TC_PRUNE_GONE
           : rc == TC_EUSER ? TC_PRUNE_UNREAD : TC_PRUNE_FAULTY, rc < 0 ? f.fault[0].text : "");
    tc_findings_free(&f);
    free(path);
  }
  return i;
}

int tc_ckpt_prune_good(const struct tc_prune_opts *o, bool *listed, struct tc_err *err)
{
  int64_t *steps;
  int good, faulty, first, rc = 0, n = tc_ckpt_list_folder(&steps, o->dir, "prune", err);
  *listed = n >= 0;
  if (n < 0) return n;
  for (int looks = 1;; looks++) {                /* again if all that were there are gone */
    first = find_good(o, steps, n, &good, &faulty);
    if (good || faulty || n == 0 || looks == TC_CKPT_STEPS) break;
    free(steps);
    n = tc_ckpt_list_folder(&steps, o->dir, "prune", err);
    if (n < 0) break;
  }
  for (int i = first; i < n && rc == 0; i++) {
    if (!o->dry_run) rc = delete_step(o->dir, steps[i], err);
    if (rc == 0) o->say(o->ctx, steps[i], TC_PRUNE_REMOVED, "");
  }
  if (rc == 0 && n >= 0 && !o->dry_run) remove_old(o->dir);
  free(steps);
  if (n < 0) return n;
  return rc == 0 && good == 0 ? tc_fail(err, TC_ENOCKPT, "%s: no good checkpoint: nothing was removed", o->dir) : rc;
}

int tc_ckpt_quarantine(const char *dir, int64_t step, long nth, bool release, char **from_path, char **to_path,
                       struct tc_err *err)
{
  int64_t *steps;
  const int n = tc_ckpt_list_folder(&steps, dir, "quarantine", err);
  if (n < 0) return n;
  free(steps);
  char *path = tc_ckpt_step_path(dir, step), *plain = tc_strdup(tc_base_name(path));
  char *aside = nth ? tc_sprintf(TC_ASIDE "%s.%ld", plain, nth)
                    : tc_sprintf(TC_ASIDE "%s", plain);
  const char *from = release ? aside : plain, *to = release ? plain : aside;
  *from_path = tc_sprintf("%s/%s", dir, from);
  *to_path = tc_sprintf("%s/%s", dir, to);
  int rc = 0;
  const int there = tc_is_there(*from_path), taken = tc_is_there(*to_path);
  if (there < 0 || taken < 0)
    rc = tc_fail(err, TC_EUSER, "%s can't be read: %s", dir, strerror(-TC_MIN(there, taken)));
  else if (!there)
    rc = tc_fail(err, TC_ENOCKPT, "%s: %s does not exist", dir, from);
  else if (taken)
    rc = tc_fail(err, TC_EUSER, "%s: %s exists already: move it away first", dir, to);
  if (rc == 0) rc = tc_folder_rename(dir, from, to, err);
  TC_FREE(path, plain, aside);
  if (rc == 0) return 0;
  TC_FREE(*from_path, *to_path);
  return rc;
}
