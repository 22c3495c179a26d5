/* t_guard.c - starts of a job that make no new checkpoint are counted, and are too many at some time. */
#include <unistd.h>

#include "src/train/parts.h"
#include "tests/unit/tap.h"

static void test_guard(void)
{
  char dir[] = "/tmp/t_guard-XXXXXX";
  if (!ok(mkdtemp(dir) != NULL, "a folder")) return;
  struct tc_config c = { .ckpt_max_restarts_without_progress = 3 };
  struct tc_ranks r = { .job = "17" };
  struct tc_train t = { .run.cfg = &c, .run.ranks = &r, .ckpt.dir = dir };
  struct tc_err err = { 0 };
  for (int i = 0; i < 4; i++) is_int(tc_train_guard(&t, 8, &err), 0, "start %d from step 8", i);
  is_int(tc_train_guard(&t, 8, &err), TC_NOPROGRESS, "one too many");
  ok(strstr(err.text, "the last 4 starts from step 8 made no new checkpoint") && strstr(err.text,
                                                            dir),
     "... %s", err.text);
  is_int(tc_train_guard(&t, 8, &err), TC_NOPROGRESS, "... and again");
  is_int(tc_train_guard(&t, 9, &err), 0, "a new checkpoint: they count anew");
  for (int i = 0; i < 3; i++) tc_train_guard(&t, 9, &err);
  strcpy(r.job, "18");
  is_int(tc_train_guard(&t, 9, &err), 0, "another job too");
  for (int i = 0; i < 3; i++) tc_train_guard(&t, 9, &err);
  tc_train_guard_clear(&t);
  for (int i = 0; i < 4; i++) is_int(tc_train_guard(&t, 9, &err), 0, "cleared: start %d", i);
  *r.job = 0;
  is_int(tc_train_guard(&t, 9, &err), 0, "by hand: as often as one likes");
  tc_train_guard_clear(&t);
  is_int(rmdir(dir), 0, "nothing is left");
  strcpy(r.job, "19");
  is_int(tc_train_guard(&t, 9, &err), TC_EUSER, "a folder that is not there");
}

static void put(const char *path, const char *text)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* What lies in the folder before a start (NULL: nothing), and after it. */
static void test_guard_file(void)
{
  static const struct { const char *before; int64_t step; int rc; const char *after; } c[] = {
    { NULL, -1, 0, "17 -1 0\n" }, { "17 8 0\n", 8, 0, "17 8 1\n" }, { "17 8 2\n", 8, 0, "17 8 3\n" },
    { "17 8 3\n", 8, TC_NOPROGRESS, "17 8 3\n" }, { "17 -1 3\n", -1, TC_NOPROGRESS, "17 -1 3\n" },
    { "17 7 3\n", 8, 0, "17 8 0\n" }, { "16 8 3\n", 8, 0, "17 8 0\n" }, { "17 8\n", 8, 0, "17 8\n" },
    { "17 x 3\n", 8, 0, "17 x 3\n" }, { "", 8, 0, "17 8 0\n" } };
  char dir[] = "/tmp/t_guard-XXXXXX";
  if (!ok(mkdtemp(dir) != NULL, "a folder")) return;
  struct tc_config cfg = { .ckpt_max_restarts_without_progress = 3 };
  struct tc_ranks r = { .job = "17" };
  struct tc_train t = { .run.cfg = &cfg, .run.ranks = &r, .ckpt.dir = dir };
  char *path = tc_sprintf("%s/.starts", dir), *want;
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    char text[100] = "";
    unlink(path);
    if (c[i].before) put(path, c[i].before);
    is_int(tc_train_guard(&t, c[i].step, &err), c[i].rc, "start %zu from step %d", i, (int)c[i].step);
    FILE *f = fopen(path, "r");
    if (f && !fgets(text, sizeof text, f)) *text = 0;
    if (f) fclose(f);
    is_str(text, c[i].after, "... is written down");
    if (!c[i].rc) continue;
    want = tc_sprintf("the last 4 starts from step %d made no new checkpoint: giving up. Look at what ended them, "
                      "then remove %s to try again", c[i].step < 0 ? 0 : 8, path);
    is_str(err.text, want, "... is reported");
    free(want);
  }
  put(path, "mine\n");
  tc_train_guard_clear(&t);
  is_int(unlink(path), 0, "another file of that name stays at a new checkpoint");
  put(path, "");
  tc_train_guard_clear(&t);
  is_int(rmdir(dir), 0, "nothing is left");
  is_int(tc_train_guard(&t, 9, &err), TC_EUSER, "a folder that is not there");
  char *up = tc_folder_of(path);
  want = tc_sprintf("%s can't be written: there is no folder %s", path, up);
  free(up);
  is_str(err.text, want, "... is reported");
  free(want);
  free(path);
}

int main(void)
{
  test_guard();
  test_guard_file();
  return done_testing();
}
