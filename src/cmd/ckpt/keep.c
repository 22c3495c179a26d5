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

/* ---- proving a step whole ---------------------------------------------------------- */

struct fault { int status; char *text; };         /* text owned */
struct findings { struct fault *fault; int n, cap; };

static void found(void *ctx, int status, const char *text)
{
  struct findings *f = ctx;
  for (int i = 0; i < f->n; i++)
    if (!strcmp(f->fault[i].text, text)) return;
  TC_GROW(f->fault, f->n, f->cap);
  f->fault[f->n++] = (struct fault){ status, tc_strdup(text) };
}

static void findings_free(struct findings *f)
{
  for (int i = 0; i < f->n; i++) free(f->fault[i].text);
  free(f->fault);
}

/* A thread's share. Its copy of the checkpoint borrows the manifest, but has marks,
 * descriptors and a buffer of its own. */
struct worker {
  struct tc_ckpt c;
  bool deep, started;
  int share, shares;
  struct findings found;
  pthread_t thread;
};

static void *work(void *arg)
{
  struct worker *w = arg;
  struct tc_faults f = { .fault = found, .ctx = &w->found };
  tc_ckpt_verify_files(&w->c, w->deep, w->share, w->shares, &f);
  if (w->share == 0) tc_ckpt_verify_attached(&w->c, &f);
  return NULL;
}

static void reader_new(struct tc_ckpt *copy, const struct tc_ckpt *c)
{
  *copy = *c;
  copy->checked = tc_calloc((size_t)c->first_block[c->m->n_pieces] / 8 + 1, 1);
  copy->bounce = NULL;
  copy->late = tc_calloc(1, sizeof *copy->late);
  for (int i = 0; i < TC_OPEN_FILES; i++) copy->open[i].file = -1;
}

static void reader_free(struct tc_ckpt *copy)
{
  for (int i = 0; i < TC_OPEN_FILES; i++)
    if (copy->open[i].file >= 0) close(copy->open[i].fd);
  free(copy->checked);
  free(copy->bounce);
  free(copy->late);
}

/* Sorts by file, in any order of threads; the order within a file is kept. */
static void sort_faults(struct findings *f)
{
  for (int i = 1; i < f->n; i++) {
    struct fault x = f->fault[i];
    size_t len = strcspn(x.text, ":");
    int k = i;
    for (; k > 0 && strncmp(f->fault[k - 1].text, x.text, len) > 0; k--)
      f->fault[k] = f->fault[k - 1];
    f->fault[k] = x;
  }
}

static void verify_files(const struct tc_ckpt *c, bool deep, int jobs, struct findings *all)
{
  int n = TC_MAX(1, TC_MIN(jobs, c->m->n_files + c->m->n_pieces));
  struct worker *w = tc_calloc((size_t)n, sizeof *w);
  for (int i = 0; i < n; i++) {
    w[i] = (struct worker){ .deep = deep, .share = i, .shares = n };
    reader_new(&w[i].c, c);
    w[i].started = i > 0 && tc_thread_start(&w[i].thread, work, &w[i], NULL) == 0;
  }
  for (int i = 0; i < n; i++)
    if (!w[i].started) work(&w[i]);              /* the first, and those whose thread could not be started */
  for (int i = 0; i < n; i++) {
    if (w[i].started) pthread_join(w[i].thread, NULL);
    for (int k = 0; k < w[i].found.n; k++)
      found(all, w[i].found.fault[k].status, w[i].found.fault[k].text);
    findings_free(&w[i].found);
    reader_free(&w[i].c);
  }
  free(w);
  sort_faults(all);
}

/* Collects all faults of a checkpoint in *f; returns the worst status. */
static int verify_once(const char *path, bool deep, int64_t jobs, struct findings *f)
{
  struct tc_err e = {0};
  struct tc_ckpt *c;
  int64_t step = tc_step_of_name(ckpt_base_name(path));
  int worst = 0;
  if (jobs == 0) jobs = TC_MAX(1, sysconf(_SC_NPROCESSORS_ONLN));
  if (tc_ckpt_open(&c, path, &e) < 0) {
    found(f, e.status, e.text);
  } else {
    if (step >= 0 && c->m->meta.step != step) {
      tc_fail(&e, TC_ECHECKSUM, "%s: its manifest is that of step %lld", path,
              (long long)c->m->meta.step);
      found(f, e.status, e.text);
    }
    verify_files(c, deep, (int)jobs, f);
    tc_ckpt_close(c);
  }
  for (int i = 0; i < f->n; i++) worst = TC_MIN(worst, f->fault[i].status);
  return worst;
}

/* The same, of a checkpoint that a run may remove or replace meanwhile: GONE, which is no fault. */
enum { GONE = 1 };
static int verify_step(const char *path, bool deep, int64_t jobs, struct findings *f)
{
  for (int i = 0; i < TC_CKPT_STEPS; i++) {
    const struct tc_ckpt_folder was = tc_ckpt_folder(path);
    const int worst = verify_once(path, deep, jobs, f);
    const enum tc_ckpt_fate fate = worst < 0 ? tc_ckpt_fate(&was, path) : TC_CKPT_SAME;
    if (fate == TC_CKPT_SAME) return worst;
    findings_free(f);
    *f = (struct findings){ 0 };
    if (fate == TC_CKPT_GONE) break;
  }
  return GONE;
}

static json_t *faults_json(const struct findings *f)
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
  struct findings f = { 0 };
  const char *name = ckpt_base_name(path);
  const int rc = verify_step(path, !a->quick, a->jobs, &f);
  v->worst = TC_MIN(v->worst, rc);
  v->good += rc == 0;
  v->bad += rc < 0;
  v->gone += rc == GONE;
  if (a->json && rc != GONE)
    json_array_append_new(v->list, json_pack("{s:o, s:b, s:i, s:o}", "path", tc_text_json(path), "ok", rc == 0,
                                             "status", -rc, "faults", faults_json(&f)));
  else if (rc == GONE && !a->json) printf("%s: removed meanwhile\n", name);
  else if (rc == 0 && !a->json) printf("%s: ok%s\n", name, a->quick ? " (sizes and metadata; not the data)" : "");
  for (int k = 0; k < f.n && !a->json; k++)
    printf("%s: %s: %s\n", name, f.fault[k].status == TC_EUSER ? "UNREADABLE" : "FAULT", f.fault[k].text);
  findings_free(&f);
  fflush(stdout);
}

int ckpt_cmd_verify(const struct ckpt_args *a, struct tc_err *err)
{
  struct verified v = { .list = json_array() };
  int n = 0, looks = 0;
  do {                            /* again if all that were there are gone */
    char **path;
    n = ckpt_step_paths(&path, a->path[0], err);
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

/* The steps of a folder of steps, newest first; DIR must be one, not a step. */
static int list_steps(int64_t **steps, const char *dir, const char *cmd, struct tc_err *err)
{
  struct stat st;
  char *manifest = tc_sprintf("%s/" TC_MANIFEST, dir);
  const bool one = tc_is_there(manifest) == 1;
  free(manifest);
  *steps = NULL;
  const int why = tc_stat(dir, &st);
  if (why && why != ENOENT && why != ENOTDIR) return tc_fail(err, TC_EUSER, "%s can't be read: %s", dir, strerror(why));
  if (why || !S_ISDIR(st.st_mode)) return tc_fail(err, TC_EUSER, "%s: no such folder", dir);
  if (one)
    return tc_fail(err, TC_EUSER, "%s is one checkpoint; ckpt %s takes the folder they are in", dir,
                   cmd);
  return tc_ckpt_list_beside(dir, steps, err);
}

struct pruned { json_t *kept, *faulty, *removed; };

/* Verifies steps[n] (newest first) until `keep` good ones are found, or all of them if there are fewer. Returns
 * how many were verified: the rest may be deleted. *good: the number of good ones. */
static int find_good(const struct ckpt_args *a, const int64_t *steps, int n, int *good,
                     struct pruned *out)
{
  int i = 0;
  *good = 0;
  for (; i < n && *good < a->keep; i++) {
    struct findings f = {0};
    char *path = tc_ckpt_step_path(a->path[0], steps[i]);
    const int rc = verify_step(path, true, a->jobs, &f);
    *good += rc == 0;
    if (!a->json)
      printf("step %lld: %s%s\n", (long long)steps[i], rc == 0 ? "good" : rc == GONE ? "removed meanwhile"
             : rc == TC_EUSER ? "UNREADABLE: " : "FAULT: ", rc < 0 ? f.fault[0].text : "");
    fflush(stdout);
    if (rc != GONE) json_array_append_new(rc == 0 ? out->kept : out->faulty, json_integer(steps[i]));
    findings_free(&f);
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
  int good, first, rc = 0, n = list_steps(&steps, dir, "prune", err);
  if (n < 0) return n;
  struct pruned out = { json_array(), json_array(), json_array() };
  for (int looks = 1;; looks++) {                /* again if all that were there are gone */
    first = find_good(a, steps, n, &good, &out);
    if (good || json_array_size(out.faulty) || n == 0 || looks == TC_CKPT_STEPS) break;
    free(steps);
    n = list_steps(&steps, dir, "prune", err);
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
  int64_t *steps;
  const char *dir = a->path[0];
  int64_t step;
  long nth;
  TC_TRY(parse_step(a, &step, &nth, err));
  int n = list_steps(&steps, dir, "quarantine", err);
  if (n < 0) return n;
  free(steps);
  char *path = tc_ckpt_step_path(dir, step), *plain = tc_strdup(ckpt_base_name(path));
  char *aside = nth ? tc_sprintf(TC_ASIDE "%s.%ld", plain, nth)
                    : tc_sprintf(TC_ASIDE "%s", plain);
  const char *from = a->release ? aside : plain, *to = a->release ? plain : aside;
  char *from_path = tc_sprintf("%s/%s", dir, from), *to_path = tc_sprintf("%s/%s", dir, to);
  int rc = 0;
  const int there = tc_is_there(from_path), taken = tc_is_there(to_path);
  if (there < 0 || taken < 0)
    rc = tc_fail(err, TC_EUSER, "%s can't be read: %s", dir, strerror(-TC_MIN(there, taken)));
  else if (!there)
    rc = tc_fail(err, TC_ENOCKPT, "%s: %s does not exist", dir, from);
  else if (taken)
    rc = tc_fail(err, TC_EUSER, "%s: %s exists already: move it away first", dir, to);
  if (rc == 0) rc = tc_folder_rename(dir, from, to, err);
  if (rc == 0 && a->json)
    ckpt_print_json(json_pack("{s:I, s:o, s:o}", "step", (json_int_t)step, "from",
                    tc_text_json(from_path), "to", tc_text_json(to_path)));
  else if (rc == 0)
    printf("%s\n", to_path);
  free(path);
  free(plain);
  free(aside);
  free(from_path);
  free(to_path);
  return rc;
}
