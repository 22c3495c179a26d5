/* guard.c - ends crash loops: consecutive starts of one job without a new checkpoint
 * are counted in the checkpoint folder's file .starts. */
#include "src/train/parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/files/files.h"

/* It stands for any file that could be read as a count of starts. */
static const struct tc_output_kind a_count = { "a count of starts", { "" } };
static const struct tc_output_opts opts = { .kind = &a_count, .instead = "take another ckpt.dir" };

struct starts { char job[64]; long long last, n; bool other; };

static int read_starts(struct starts *s, const char *path, struct tc_err *err)
{
  enum { MOST = 1000 };
  char *text;
  size_t bytes;
  *s = (struct starts){ .last = -2 };
  if (tc_is_there(path) == 0) return 0;
  TC_TRY(tc_read_text(&text, &bytes, path, "the count of starts", MOST, err));
  s->other = bytes && *text && sscanf(text, "%63s %lld %lld", s->job, &s->last, &s->n) != 3;
  free(text);
  return 0;
}

int tc_train_guard(struct tc_train *t, int64_t newest_step, struct tc_err *err)
{
  const char *job = t->run.ranks->job;
  if (!*job) return 0;                           /* not a job: nothing restarts it by itself */
  char *path = tc_sprintf("%s/.starts", t->ckpt.dir);
  struct starts s;
  int rc = read_starts(&s, path, err);
  const long long starts = rc == 0 && !strcmp(s.job, job) && s.last == newest_step ? s.n + 1 : 0;
  if (rc == 0 && starts > t->run.cfg->ckpt_max_restarts_without_progress) {
    rc = tc_fail(err, TC_NOPROGRESS, "the last %lld starts from step %lld made no new checkpoint: "
                 "giving up. Look at what ended them, then remove %s to try again", starts,
                 (long long)TC_MAX(newest_step, 0), path);
  } else if (rc == 0 && s.other) {
    tc_warn("%s is not a count of starts: starts without a new checkpoint are not counted. Remove it", path);
  } else if (rc == 0) {
    char *text = tc_sprintf("%s %lld %lld\n", job, (long long)newest_step, starts);
    rc = tc_output_text(path, &opts, text, err);
    free(text);
  }
  free(path);
  return rc;
}

void tc_train_guard_clear(struct tc_train *t)
{
  char *path = tc_sprintf("%s/.starts", t->ckpt.dir);
  struct starts s;
  struct tc_err err;
  if (read_starts(&s, path, &err) == 0 && !s.other) tc_unlink(AT_FDCWD, path);
  free(path);
}
