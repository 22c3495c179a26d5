/* guard.c - ends crash loops: consecutive starts of one job without a new checkpoint
 * are counted in the checkpoint folder's file .starts. */
#include "src/train/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 1000 };

/* Of the file that is there: what could be read as a count of starts is one. */
static const struct tc_output_kind a_count = { "a count of starts", { "" } }, no_count = { "a count of starts", { NULL } };

int tc_train_guard(struct tc_train *t, int64_t newest_step, struct tc_err *err)
{
  if (!*t->run.ranks->job) return 0;             /* not a job: nothing restarts it by itself */
  char *path = tc_sprintf("%s/.starts", t->ckpt.dir);
  char job[64] = "";
  long long last = -2, starts = 0;
  char *there = NULL;
  size_t bytes;
  struct tc_err unread;                          /* then it is none, and tc_output_text says what it is */
  tc_read_text(&there, &bytes, path, "count of starts", MOST_BYTES, &unread);
  const bool counted = there && sscanf(there, "%63s %lld %lld", job, &last, &starts) == 3;
  if (!counted) *job = 0;
  free(there);
  bool again = !strcmp(job, t->run.ranks->job) && last == newest_step;
  starts = again ? starts + 1 : 0;
  int rc = 0;
  if (starts > t->run.cfg->ckpt_max_restarts_without_progress) {
    rc = tc_fail(err, TC_NOPROGRESS, "the last %lld starts from step %lld made no new checkpoint: "
                 "giving up. Look at what ended them, then remove %s to try again", starts,
                 (long long)TC_MAX(newest_step, 0), path);
  } else {
    char *text = tc_sprintf("%s %lld %lld\n", t->run.ranks->job, (long long)newest_step, starts);
    rc = tc_output_text(path, &(struct tc_output_opts){ .kind = counted ? &a_count : &no_count }, text, err);
    free(text);
  }
  free(path);
  return rc;
}

void tc_train_guard_clear(struct tc_train *t)
{
  char *path = tc_sprintf("%s/.starts", t->ckpt.dir);
  tc_unlink(AT_FDCWD, path);
  free(path);
}
