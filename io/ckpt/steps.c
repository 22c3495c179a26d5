/* steps.c - the steps in a folder, and which of them a path means.
 *
 * A run removes old steps and replaces steps beside a reader. It renames a folder before it removes anything in it, so
 * what is missing in a folder that still has its name is damage, and what fails in a folder that has lost its name is
 * not: tc_ckpt_fate tells which. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "io/folder.h"

/* ---- paths -------------------------------------------------------------------------- */

static bool has_file(const char *folder, const char *name)
{
  char *path = tc_sprintf("%s/%s", folder, name);
  const bool there = tc_is_there(path) == 1;
  free(path);
  return there;
}

static char *without_slashes(const char *path)
{
  char *plain = tc_strdup(path);
  size_t len = strlen(plain);
  while (len > 1 && plain[len - 1] == '/') plain[--len] = '\0';
  return plain;
}

static bool is_step(const char *path) { return tc_step_of_name(tc_base_name(path)) >= 0 || has_file(path, TC_MANIFEST); }

/* ---- listing ----------------------------------------------------------------------- */

char *tc_ckpt_step_path(const char *dir, int64_t step)
{
  return tc_sprintf("%s/step-%08lld", dir, (long long)step);
}

static int cmp_down(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

int tc_ckpt_list(const char *dir, int64_t **steps, struct tc_err *err)
{
  char **names;
  int found = 0, n = tc_folder_scan(dir, "step-", &names, err);
  *steps = NULL;
  if (n < 0) return n;
  *steps = tc_malloc((size_t)(n + 1) * sizeof **steps);
  for (int i = 0; i < n; i++) {
    int64_t step = tc_step_of_name(names[i]);
    if (step >= 0) (*steps)[found++] = step;
  }
  qsort(*steps, (size_t)found, sizeof **steps, cmp_down);
  tc_names_free(names, n);
  return found;
}

int tc_ckpt_list_beside(const char *dir, int64_t **steps, struct tc_err *err)
{
  enum { LOOKS = 4 };
  int n = tc_ckpt_list(dir, steps, err);
  for (int i = 1; i < LOOKS && n == 0; i++) {
    free(*steps);
    tc_sleep_ns(INT64_C(5000000) << i);
    n = tc_ckpt_list(dir, steps, err);
  }
  return n;
}

int tc_ckpt_list_folder(int64_t **steps, const char *dir, const char *command, struct tc_err *err)
{
  struct stat st;
  const bool one = has_file(dir, TC_MANIFEST);
  *steps = NULL;
  const int why = tc_stat(dir, &st);
  if (why && why != ENOENT && why != ENOTDIR) return tc_fail(err, TC_EUSER, "%s can't be read: %s", dir, strerror(why));
  if (why || !S_ISDIR(st.st_mode)) return tc_fail(err, TC_EUSER, "%s: no such folder", dir);
  if (one)
    return tc_fail(err, TC_EUSER, "%s is one checkpoint; ckpt %s takes the folder they are in", dir, command);
  return tc_ckpt_list_beside(dir, steps, err);
}

/* ---- steps that come and go -------------------------------------------------------- */

struct tc_ckpt_folder tc_ckpt_folder(const char *step_path)
{
  struct stat st;
  if (tc_stat(step_path, &st)) return (struct tc_ckpt_folder){ 0 };
  return (struct tc_ckpt_folder){ .dev = st.st_dev, .ino = st.st_ino,
                                  .changed_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec };
}

enum tc_ckpt_fate tc_ckpt_fate(const struct tc_ckpt_folder *was, const char *step_path)
{
  const struct tc_ckpt_folder now = tc_ckpt_folder(step_path);
  if (!now.ino && tc_is_there(step_path) == 0) return TC_CKPT_GONE;
  return now.dev == was->dev && now.ino == was->ino && now.changed_ns == was->changed_ns ? TC_CKPT_SAME : TC_CKPT_OTHER;
}

int tc_ckpt_say_gone(const char *step_path, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "%s was removed meanwhile", step_path);
}

int tc_ckpt_settle(const struct tc_ckpt *c, const char *path, int rc, bool *again, struct tc_err *err)
{
  *again = false;
  if (rc >= 0 || rc == TC_DIFFERS || tc_ckpt_fate(&c->folder, c->path) == TC_CKPT_SAME) return rc;
  *again = strlen(c->path) > strlen(path);
  return tc_ckpt_say_gone(c->path, err);
}

/* The clocks of file servers may differ from ours by less. */
bool tc_ckpt_is_young(const struct tc_ckpt_folder *f)
{
  const int64_t young_s = 600;
  const int64_t age_s = (int64_t)time(NULL) - f->changed_ns / 1000000000;
  return age_s < young_s && age_s > -young_s;
}

int tc_ckpt_check_folder(const char *path, struct tc_err *err)
{
  if (!has_file(path, "run.json") || !has_file(path, "ckpt")) return 0;
  return tc_fail(err, TC_EUSER, "%s is the folder of a run; its checkpoints are in %s/ckpt", path, path);
}

int tc_ckpt_find_step(char **out, bool *chosen, const char *path, struct tc_err *err)
{
  char *plain = without_slashes(path), *real = NULL;
  const int there = tc_is_there(plain);
  const bool one = is_step(plain);
  *out = plain;
  *chosen = false;
  if (there < 0) return tc_fail(err, TC_EUSER, "%s can't be read: %s", plain, strerror(-there));
  if (there && one) return 0;
  int64_t *steps = NULL;
  int n = there ? tc_ckpt_list_beside(plain, &steps, err) : 0;
  if (n > 0) real = tc_ckpt_step_path(plain, steps[0]);
  *chosen = n > 0;
  free(steps);
  char *word = tc_shell_word(plain);
  if (n == 0 && has_file(plain, "config.json"))
    tc_fail(err, TC_EUSER, "%s is a model of Hugging Face, not a checkpoint: make one with `tercio ckpt import "
            "%s -o CKPT`", plain, word);
  else if (n == 0 && has_file(plain, "adapter_config.json"))
    tc_fail(err, TC_EUSER, "%s has adapters of PEFT, and no model: ckpt.adapter (tercio train) or --adapter (tercio eval, sample) "
            "names them beside one", plain);
  else if (n == 0 && tc_ckpt_check_folder(plain, err) == 0)
    tc_fail(err, TC_EUSER, there ? "%s: no checkpoint in this folder" : "%s: no such folder",
            plain);
  TC_FREE(word, plain);
  *out = real;
  return real ? 0 : TC_EUSER;
}

int tc_ckpt_step_paths(char ***out, const char *dir, struct tc_err *err)
{
  char *plain = without_slashes(dir);
  const bool one = is_step(plain);
  int n = -1;
  int64_t *steps = NULL;
  *out = NULL;
  if (!tc_is_folder(plain)) {
    n = tc_fail(err, TC_EUSER, "%s: no such folder", plain);
  } else if (one) {
    *out = tc_calloc(1, sizeof **out);
    (*out)[0] = tc_strdup(plain);
    n = 1;
  } else {
    n = tc_ckpt_list_beside(plain, &steps, err);
    *out = tc_calloc((size_t)TC_MAX(n, 0) + 1, sizeof **out);
    for (int i = 0; i < n; i++) (*out)[i] = tc_ckpt_step_path(plain, steps[n - 1 - i]);
    free(steps);
  }
  free(plain);
  return n;
}
