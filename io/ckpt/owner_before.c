/* owner_before.c - whether the owner before is alive: by its process, where that can be seen, else by its heartbeat.
 *
 * What can't be read is not dead: while "owner" or "beat" can't be read, an owner counts as alive. On another node, or
 * where /proc hides it, only the heartbeat, in the file "beat", shows that an owner is running: it is watched for
 * TC_OWNER_WATCH_NS. A process that is stopped for longer loses the folder. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/folder.h"
#include "src/files/input.h"

enum { MOST_TEXT = 1 << 16 };     /* bytes of an owner file */
#define MOST INT64_C(1000000000000)    /* owners of a folder */

/* ---- processes and their nodes ---------------------------------------------------------- */

/* Instead of when a process began: it has ended; that can't be told, as where /proc is not mounted, or hides the
 * processes of others. */
enum gone { ENDED = -1, HIDDEN = -2 };

/* In ticks since boot, or enum gone. */
static long long born(long long pid)
{
  char path[64], line[1024];
  if (pid > 0 && pid <= INT32_MAX && kill((pid_t)pid, 0) < 0 && errno == ESRCH) return ENDED;
  snprintf(path, sizeof path, "/proc/%lld/stat", pid);
  if (tc_first_line(path, line, sizeof line)) return HIDDEN;
  const char *at = strrchr(line, ')');          /* the name before may hold anything */
  long long ticks = -1;
  char state = 'X';
  if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                    "%*d %*d %lld", &state, &ticks) != 2) return HIDDEN;
  return state == 'Z' || state == 'X' ? ENDED : ticks;
}

struct tc_process tc_process_here(void)
{
  struct tc_process p = { .pid = getpid() };
  char boot[64], ns[64] = "";
  if (gethostname(p.host, sizeof p.host - 1)) strcpy(p.host, "?");
  tc_first_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  if (readlink("/proc/self/ns/pid", ns, sizeof ns - 1) < 0) *ns = 0;
  if (*boot && *ns) snprintf(p.machine, sizeof p.machine, "%s %s", boot, ns);
  p.born = born(p.pid);
  return p;
}

char *tc_owner_path(const struct tc_owner *o, const char *lease, const char *name)
{
  return tc_sprintf("%s/%s%s%s", o->dir, lease, *name ? "/" : "", name);
}

/* ---- the owner before -------------------------------------------------------------- */

int64_t tc_owner_number(const char *name)
{
  char *end;
  int64_t n = strtoll(name + strlen(".run-"), &end, 10);
  return *end ? -1 : n;
}

/* No run makes such a folder, and the numbers after it would overflow. */
static int too_high(const struct tc_owner *o, const char *name, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "%s/%s: no run made a folder of this name, and its number is too "
                 "high to go on from: remove it", o->dir, name);
}

int64_t tc_owner_highest(const struct tc_owner *o, struct tc_err *err)
{
  char **names;
  int64_t most = 0;
  int n = tc_folder_scan(o->dir, ".run-", &names, err);
  for (int i = 0; i < n && most >= 0; i++)
    most = tc_owner_number(names[i]) > MOST ? too_high(o, names[i], err)
                                      : TC_MAX(most, tc_owner_number(names[i]));
  if (n >= 0) tc_names_free(names, n);
  return n < 0 ? n : most;
}

static const char *text_of(const json_t *o, const char *key)
{
  const char *s = json_string_value(json_object_get(o, key));
  return s ? s : "";
}

static long long number_in(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static int refuse(const struct tc_owner *o, const json_t *lease_owner, struct tc_err *err)
{
  const char *job = text_of(lease_owner, "job");
  return tc_fail(err, TC_EUSER, "%s is in use by %s%.60s, start %lld, process %lld on %.64s, since "
                 "%.40s: end that run first, or give this one another ckpt.dir", o->dir,
                 *job ? "job " : "a run without a job", job,
                 number_in(lease_owner, "restart"), number_in(lease_owner, "pid"), text_of(lease_owner, "host"),
                 text_of(lease_owner, "since"));
}

/* What tells whether the owner is alive can't be read. */
static int unread(const struct tc_owner *o, const char *lease, const char *why, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "%s/%s: it can't be told whether the run that has this folder is alive: %s", o->dir, lease,
                 why);
}

/* Whether the owner's heartbeat goes on: as soon as that is seen or, patient, if it still does at the end of a longer time,
 * in which the owner may end. */
static int watch(struct tc_owner *o, int64_t number, const char *lease, const json_t *lease_owner,
                 bool patient, struct tc_err *err)
{
  char now[sizeof o->heartbeat], *path = tc_owner_path(o, lease, "beat");
  int64_t ns = tc_now_ns();
  const int why = tc_first_line(path, now, sizeof now);
  free(path);
  if (why && why != ENOENT && why != ENOTDIR) return unread(o, lease, strerror(why), err);
  if (o->watched != number) {
    o->watched = number;
    o->watched_since_ns = o->changed_ns = ns;
    strcpy(o->heartbeat, now);
    if (patient)
      tc_log("%s: a process of this start of the job has it still (%lld on %.64s): waiting until it has ended, for %d s at "
             "most", o->dir, number_in(lease_owner, "pid"), text_of(lease_owner, "host"),
             (int)(TC_OWNER_LEAVE_NS / 1000000000));
    return 1;
  }
  if (strcmp(o->heartbeat, now) != 0) {
    if (!patient || ns - o->watched_since_ns >= TC_OWNER_LEAVE_NS) return refuse(o, lease_owner, err);
    strcpy(o->heartbeat, now);
    o->changed_ns = ns;
  }
  if (ns - o->changed_ns < TC_OWNER_WATCH_NS) return 1;
  if (o->looks) return 0;
  tc_log("%s: its last owner (process %lld on %.64s) has shown no life for %lld s: taken over",
         o->dir, number_in(lease_owner, "pid"), text_of(lease_owner, "host"), (long long)(TC_OWNER_WATCH_NS / 1000000000));
  return 0;
}

/* An owner that belongs to the same job. Of an earlier start nothing is expected any more: Slurm has ended it, or it is
 * cut off. One of the same start is another step, or what is left of the step before: that may take a while to end. */
static int check_same_job(struct tc_owner *o, int64_t number, const char *lease, const json_t *lease_owner,
                          bool here, struct tc_err *err)
{
  const long long start = number_in(lease_owner, "restart");
  if (start == o->restart && here) return watch(o, number, lease, lease_owner, true, err);
  tc_log("%s: taken over from start %lld of this job (process %lld on %.64s, since %.40s), which has not ended in "
         "order; should it still run, it ends", o->dir, start, number_in(lease_owner, "pid"), text_of(lease_owner, "host"),
         text_of(lease_owner, "since"));
  return 0;
}

int tc_owner_check(struct tc_owner *o, int64_t number, struct tc_err *err)
{
  char lease[32];
  snprintf(lease, sizeof lease, ".run-%08lld", (long long)number);
  char *path = tc_owner_path(o, lease, "owner"), *ended = tc_owner_path(o, lease, "ended");
  o->alone = tc_is_there(ended) == 1;
  free(ended);
  struct tc_err why;
  struct stat st;
  json_t *lease_owner;
  bool damaged;
  const int rc_read = tc_read_json(&lease_owner, path, "owner file", MOST_TEXT, 0, &damaged, &why);
  const int absent = rc_read < 0 ? tc_stat(path, &st) : 0;
  /* It ended, or was just taken over; or it can't be read. Where it is damaged, its heartbeat decides. */
  if (absent == ENOENT || (rc_read < 0 && !damaged && absent != ENOTDIR)) {
    free(path);
    return absent == ENOENT ? 0 : unread(o, lease, why.text, err);
  }
  const char *job = text_of(lease_owner, "job");
  const long long pid = number_in(lease_owner, "pid"), when = number_in(lease_owner, "born");
  const bool same = lease_owner && *o->me.machine && !strcmp(text_of(lease_owner, "machine"), o->me.machine);
  const long long now = same ? born(pid) : HIDDEN;
  const bool told = now != HIDDEN && when >= 0, alive = told && now == when;      /* not told: its heartbeat tells */
  o->alone = told && !alive;
  int rc = 0;
  if (*o->job && !strcmp(job, o->job)) rc = check_same_job(o, number, lease, lease_owner, same && !o->alone, err);
  else if (!told) rc = watch(o, number, lease, lease_owner, false, err);
  else if (alive) rc = refuse(o, lease_owner, err);
  json_decref(lease_owner);
  free(path);
  return rc;
}
