/* load.c - choosing the checkpoint to go on from, and loading it.
 *
 * Data is read once: each rank checks what it loads as it loads it. The bytes that belong to no
 * tensor are checked before, a share of them on each rank: they are few, and damage there says that
 * the file isn't the one that was written. The attached file is left to the loader: damage to it says
 * nothing of the tensors. Whether HDF5 can open a file is left to `ckpt verify`, since data is read at
 * places that the manifest names.
 *
 * Rank 0 says which step all look at; after each trial all ranks agree on how it went. Only damage, and a step that was
 * removed meanwhile, are reasons to look at an older one: what can't be read now may be whole, and to go on from an older
 * one would lose what was trained since. */
#include "io/ckpt/impl.h"

#include <stdlib.h>
#include <string.h>

#include "io/folder.h"

/* What rank 0 has all ranks do next. */
enum { LOOK_AT_STEP, NOTHING_THERE };
struct order { int32_t what; int64_t step; };

static int give_order(struct order *o, struct tc_comm *world, struct tc_err *err)
{
  void *buf = tc_comm_coord(world) == 0 ? o : NULL;
  int64_t bytes = sizeof *o;
  TC_TRY(tc_comm_bytes_bcast(world, 0, &buf, &bytes, err));
  TC_ASSERT(bytes == (int64_t)sizeof *o);
  if (buf != o) {
    *o = *(struct order *)buf;
    free(buf);
  }
  return 0;
}

/* How a checkpoint is tried. */
struct trial { tc_ckpt_loader *load; void *ctx; char *const *rank_names; };

/* Collective. All ranks open the checkpoint (which must be that of `step`; -1: of any) and look at
 * a share of its files, then load; without a loader the share is verified to the last byte. 0:
 * *out is open on all ranks, else on none. TC_EINCOMPLETE, TC_ECHECKSUM: it is damaged; another status: it isn't, and
 * *unread says that this rank could not read it. */
static int try_path(struct tc_ckpt **out, const char *path, int64_t step, const struct trial *t,
                    struct tc_comm *world, bool *unread, struct tc_err *err)
{
  const bool rank0 = tc_comm_coord(world) == 0;
  struct tc_findings f = {0};
  struct tc_again late = { 0 };                  /* another rank than 0 may see later what rank 0 has seen */
  while (!rank0 && tc_is_there(path) == 0 && tc_late(&late, path)) continue;
  int rc = tc_ckpt_open(out, path, err);
  if (rc == 0 && step >= 0 && (*out)->m->meta.step != step)
    rc = tc_fail(err, TC_ECHECKSUM, "%s: its manifest is that of step %lld", path,
                 (long long)(*out)->m->meta.step);
  if (rc == 0) {
    tc_ckpt_verify_files(*out, !t->load, tc_comm_coord(world), tc_comm_size(world), &f);
    if (!t->load && rank0) tc_ckpt_verify_attached(*out, &f);
    if (f.n > 0) rc = tc_fail(err, tc_findings_worst(&f), "%.999s", f.fault[0].text);
    tc_findings_free(&f);
  }
  *unread = rc == TC_EUSER;
  rc = tc_comm_agree(world, t->rank_names, rc, err);
  if (rc == 0 && t->load) {
    rc = t->load(t->ctx, *out, err);
    *unread = rc == TC_EUSER && (*out)->unread;
    int no = tc_comm_agree(world, t->rank_names, rc < 0 && !(*out)->damaged ? rc : 0, err);
    if (no == TC_EINCOMPLETE || no == TC_ECHECKSUM) no = err->status = TC_EUSER;   /* of the attached file alone */
    rc = no < 0 ? no : tc_comm_agree(world, t->rank_names, rc, err);
  }
  if (rc < 0) {
    tc_ckpt_close(*out);
    *out = NULL;
  }
  return rc;
}

/* Whether the next older checkpoint is to be tried. */
static bool is_damage(int rc) { return rc == TC_EINCOMPLETE || rc == TC_ECHECKSUM; }

/* Collective. *gone: rank 0 finds that the step was removed meanwhile. */
static int try_step(struct tc_ckpt **out, const char *dir, int64_t step, const struct trial *t, struct tc_comm *world,
                    bool *gone, struct tc_err *err)
{
  const bool rank0 = tc_comm_coord(world) == 0;
  char *path = tc_ckpt_step_path(dir, step);
  const struct tc_ckpt_folder was = rank0 ? tc_ckpt_folder(path) : (struct tc_ckpt_folder){ 0 };
  bool unread = false;
  int rc = try_path(out, path, step, t, world, &unread, err);
  *gone = false;
  if (rc < 0 && rc != TC_EPEER) {
    int64_t told[2] = { rank0 && tc_ckpt_fate(&was, path) == TC_CKPT_GONE, unread };
    struct tc_err why = *err;
    int lost = tc_comm_max_i64(world, told, 2, err);
    *gone = told[0] != 0;
    if (lost < 0) rc = lost;
    else if (*gone) rc = tc_fail(err, TC_ENOCKPT, "%s was removed meanwhile", path);
    else if (!is_damage(rc) && told[1])
      tc_fail(err, rc, "%.700s. Nothing is known to be wrong with it: start again, or name an older one by ckpt.resume = "
              "STEP", why.text);
    else *err = why;
  }
  free(path);
  return rc;
}

/* Collective. *gone: of a folder the newest step was chosen, and it was removed meanwhile. */
static int load_named(struct tc_ckpt **out, const char *path, const struct trial *t, struct tc_comm *world, bool *gone,
                      struct tc_err *err)
{
  const bool rank0 = tc_comm_coord(world) == 0;
  struct tc_ckpt_folder was = { 0 };
  void *found = NULL;
  int64_t bytes = 0;
  int rc = 0;
  *out = NULL;
  *gone = false;
  if (rank0) {                                   /* all look at the same one */
    rc = tc_ckpt_open(out, path, err);
    if (rc == 0) was = (*out)->folder;
    if (rc == 0) found = tc_strdup(tc_ckpt_path(*out));
    bytes = found ? (int64_t)strlen(found) + 1 : 0;
    tc_ckpt_close(*out);
    *out = NULL;
  }
  rc = tc_comm_bcast_status(world, rc, err);
  if (rc == 0) rc = tc_comm_bytes_bcast(world, 0, &found, &bytes, err);
  bool unread;
  if (rc == 0) rc = try_path(out, found, -1, t, world, &unread, err);
  if (rc < 0 && rc != TC_EPEER && found) {
    int64_t removed = rank0 && strlen(found) > strlen(path) && tc_ckpt_fate(&was, found) != TC_CKPT_SAME;
    struct tc_err why = *err;
    const int lost = tc_comm_max_i64(world, &removed, 1, err);
    *gone = removed;
    if (lost < 0) rc = lost;
    else *err = why;
  }
  free(found);
  return rc;
}

int tc_ckpt_load_from(struct tc_ckpt **out, const char *path, tc_ckpt_loader *load, void *ctx,
                      struct tc_comm *world, char *const *rank_names, struct tc_err *err)
{
  const struct trial t = { .load = load, .ctx = ctx, .rank_names = rank_names };
  int rc = TC_EUSER;
  bool gone = true;
  for (int i = 0; i < TC_CKPT_STEPS && rc < 0 && gone; i++) rc = load_named(out, path, &t, world, &gone, err);
  return rc;
}

/* The next step to look at, on rank 0; the order says so to all. */
static int next_order(struct order *o, const int64_t *steps, int n, int tried, int64_t step,
                      const char *dir, struct tc_err *err)
{
  if (n < 0) return n;
  o->what = LOOK_AT_STEP;
  if (step >= 0) {
    bool there = false;
    for (int i = 0; i < n; i++) there |= steps[i] == step;
    o->step = step;
    return there ? 0 : tc_fail(err, TC_ENOCKPT, "%s: there is no checkpoint of step %lld", dir,
                               (long long)step);
  }
  if (n == 0) o->what = NOTHING_THERE;
  else if (tried < n) o->step = steps[tried];
  else {
    char *word = tc_shell_word(dir);
    const int rc = tc_fail(err, TC_ENOCKPT, "%s: none of the %d checkpoints is whole; look at them with `tercio ckpt "
                           "verify %s`", dir, n, word);
    free(word);
    return rc;
  }
  return 0;
}

/* Damaged steps are set aside once a good one is found (never before: a folder without any step
 * would look like a first start). */
static void quarantine(const char *dir, const int64_t *step, const int *why, int n)
{
  for (int i = 0; i < n; i++) {
    struct tc_err err = {0};
    char from[40], to[64];
    if (!is_damage(why[i])) continue;
    snprintf(from, sizeof from, "step-%08lld", (long long)step[i]);
    for (int k = 1; k < 100; k++) {
      char *path = tc_sprintf("%s/" TC_ASIDE "%s%s%.0d", dir, from, k > 1 ? "." : "", k > 1 ? k : 0);
      bool there = tc_is_there(path) != 0;
      snprintf(to, sizeof to, "%s", strrchr(path, '/') + 1);
      free(path);
      if (!there) break;
    }
    if (tc_folder_rename(dir, from, to, &err) < 0) tc_warn("%s", err.text);
    else tc_warn("%s/%s is damaged: set aside as %s", dir, from, to);
  }
}

int tc_ckpt_resume(struct tc_ckpt **out, const char *dir, int64_t step, struct tc_comm *world,
                   char *const *rank_names, struct tc_err *err)
{
  return tc_ckpt_load(out, dir, step, NULL, NULL, world, rank_names, err);
}

int tc_ckpt_load(struct tc_ckpt **out, const char *dir, int64_t step, tc_ckpt_loader *load,
                 void *ctx, struct tc_comm *world, char *const *rank_names, struct tc_err *err)
{
  const struct trial t = { .load = load, .ctx = ctx, .rank_names = rank_names };
  struct tc_err local = {0};
  int64_t *steps = NULL;
  int n = 0, rc = 0, *why = NULL;
  bool rank0 = tc_comm_coord(world) == 0;
  *out = NULL;
  if (!err) err = &local;
  if (rank0) {
    tc_ckpt_tidy(dir, NULL);
    n = tc_ckpt_list(dir, &steps, err);
    why = tc_calloc((size_t)TC_MAX(n, 0) + 1, sizeof *why);
  }
  for (int tried = 0; rc == 0; tried++) {
    struct order o = {0};
    if (rank0) rc = next_order(&o, steps, n, tried, step, dir, err);
    rc = tc_comm_bcast_status(world, rc, err);
    if (rc == 0) rc = give_order(&o, world, err);
    if (rc < 0 || o.what == NOTHING_THERE) break;
    bool gone = false;
    rc = try_step(out, dir, o.step, &t, world, &gone, err);
    if (rc == 0 && rank0 && step < 0) quarantine(dir, steps, why, tried);
    if (rc == 0 || step >= 0 || !(gone || is_damage(rc)) || rc == TC_EPEER) break;
    if (rank0) tc_warn("%s; looking for an older one", err->text);
    if (rank0) why[tried] = gone ? 0 : rc;
    rc = 0;
  }
  TC_FREE(why, steps);
  return rc;
}
