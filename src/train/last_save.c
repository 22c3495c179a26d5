/* last_save.c - the last save of a run: if it fails, it is tried again while there is time, since what is not saved then
 * is lost. The state is still where the writer reads it. Rank 0 decides how long, and all ranks wait and save alike; a
 * second signal ends the process meanwhile as at any other time (src/launch/stop.h). */
#include "src/train/parts.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "io/ckpt/owner.h"
#include "src/files/names.h"
#include "src/watch/watch.h"

#define S_NS INT64_C(1000000000)
enum { FIRST_PAUSE_S = 2, MOST_PAUSE_S = 30, MINUTES_WITHOUT_LIMIT = 10 };

/* Until when it is worth while to begin a save. */
static int64_t last_begin_ns(const struct tc_train *t, int64_t now)
{
  const double minutes = t->run.cfg->ckpt_retry_minutes;
  const int64_t limit = tc_time_limit_last_save(t);
  if (minutes == TC_AUTO) return limit ? limit : now + MINUTES_WITHOUT_LIMIT * 60 * S_NS;
  const int64_t end = now + (int64_t)(minutes * 60 * (double)S_NS);
  return limit ? TC_MIN(end, limit) : end;
}

/* "12:34:56", so many nanoseconds from now. */
static void clock_text(char text[16], int64_t from_now_ns)
{
  const time_t at = time(NULL) + (time_t)(from_now_ns / S_NS);
  struct tm tm;
  if (!localtime_r(&at, &tm) || !strftime(text, 16, "%H:%M:%S", &tm)) *text = 0;
}

/* What would be lost, in words. */
static void stake(char *text, size_t size, const struct tc_train *t, int64_t step)
{
  if (t->ckpt.saved_step >= 0)
    snprintf(text, size, "%lld steps since the last checkpoint", (long long)(step - t->ckpt.saved_step));
  else snprintf(text, size, "all %lld steps, since there is no checkpoint,", (long long)step);
}

static void say(const struct tc_train *t, int64_t step, int64_t pause_ns, int64_t left_ns, const char *why)
{
  char lost[80], until[16], room[60] = "", bytes[32];
  struct statvfs v;
  stake(lost, sizeof lost, t, step);
  clock_text(until, left_ns);
  if (statvfs(t->ckpt.dir, &v) == 0 && v.f_blocks)
    snprintf(room, sizeof room, "; %s are free there",
             tc_human_bytes(bytes, sizeof bytes, (double)v.f_bavail * (double)v.f_frsize));
  tc_warn("step %lld is not saved: %.500s; %s would be lost; trying again in %lld s until %s%s", (long long)step, why, lost,
          (long long)((pause_ns + S_NS - 1) / S_NS), until, room);
}

/* Rank 0. How long to pause before the next try, plus one; 0: none. */
static int64_t next_pause(struct tc_train *t, int64_t step, int tries, int64_t end_ns, const char *why)
{
  const int64_t now = tc_now_ns(), left = end_ns - now;
  const int64_t pause = TC_MIN((int64_t)TC_MIN(FIRST_PAUSE_S << TC_MIN(tries, 8), MOST_PAUSE_S) * S_NS, left);
  if (left <= 0 || tc_owner_lost(t->ckpt.owner) || tc_is_there(t->ckpt.lease) == 0) return 0;
  say(t, step, pause, left, why);
  return pause + 1;
}

int tc_train_save_again(struct tc_train *t, int64_t step, int rc, struct tc_err *err)
{
  const int64_t end_ns = t->run.rank == 0 ? last_begin_ns(t, tc_now_ns()) : 0;
  for (int tries = 0; rc == TC_EUSER && !t->ckpt.failed_alone; tries++) {
    struct tc_err why = *err;
    enum { PAUSE, NO_ROOM, DECIDED };            /* by rank 0: as next_pause says; whether it failed for want of room */
    int64_t decided[DECIDED] = { 0 };
    if (t->run.rank == 0) {
      decided[PAUSE] = next_pause(t, step, tries, end_ns, why.text);
      decided[NO_ROOM] = strstr(why.text, strerror(ENOSPC)) || strstr(why.text, strerror(EDQUOT));
    }
    TC_TRY(tc_comm_max_i64(t->run.world, decided, DECIDED, err));
    *err = why;
    if (!decided[PAUSE]) break;
    tc_at_rest();
    tc_sleep_ns(decided[PAUSE] - 1);
    tc_at_phase("saving again");
    tc_writer_again(t->ckpt.writer, decided[NO_ROOM] != 0);
    rc = tc_train_save_end(t, true, true, err);
  }
  if (rc == 0 || rc == TC_EPEER) return rc;
  char lost[80];
  stake(lost, sizeof lost, t, step);
  return tc_fail(err, rc, "step %lld is not saved: %.700s; %s are lost", (long long)step, err->text, lost);
}
