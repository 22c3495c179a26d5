/* owner.c - taking a checkpoint folder, and keeping others from it, with nothing but renames: no
 * locks of the file system (many cluster file systems lack them), no clocks that agree.
 *
 *   check the owner of the        alive: refuse; dead, ended, of an earlier start of this job: go on
 *   highest lease folder N                                                        check_owner
 *   .new-* -> .run-N+1            a rename onto a folder with files in it fails: of two
 *                                 that try, one gets the number                     acquire
 *   .run-k -> .gone-* for k <= N  from here on the old owner's names lead nowhere: it
 *   .new-* -> .gone-*             can neither begin a save nor rename one out; one that
 *                                 was still about to acquire starts over            fence
 *   empty and remove .gone-*      beside our heartbeat, since that may take long    remove_all
 *
 * Invariants:
 * - the owner is the one with the highest number; a lease folder is never made under a number that
 *   is not above all that are there;
 * - a lease folder has a file in it from the moment it has its name;
 * - .gone-* is emptied too: over NFS an old owner may still hold the folder, but no names in it.
 *
 * A network file system may report an error for a rename that it has carried out, and may carry out a rename twice, of
 * which the second fails with ENOENT. tc_rename (src/files/names.h) then looks: the rename has succeeded if the new name
 * is now the very folder (device and inode) that had the old name, and the old name is gone. This keeps the proofs:
 * - the loser of two that take number N finds the winner's folder under .run-N, which is another inode: it has lost;
 * - whose folder was taken away by a later owner before it looked finds no .run-N, and has lost as well;
 * - a rename that is tried again can't take a number twice: .new-* has a random name, and is gone after the first time.
 * What can't be read is not dead: while "owner" or "beat" can't be read, an owner counts as alive.
 *
 * On another node, or where /proc hides it, only the heartbeat, in the file "beat", shows that an owner is running: it is
 * watched for TC_OWNER_WATCH_NS. A process that is stopped for longer loses the folder. */
#include "io/ckpt/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"
#include "src/files/again.h"
#include "src/files/input.h"
#include "src/files/output.h"

#define HEARTBEAT_NS INT64_C(1000000000)
enum { HEARTBEATS_GONE = 3 };     /* without a lease folder, before the folder counts as taken away */
enum { TRIES = 20, MOST_TEXT = 1 << 16 };     /* bytes of an owner file */
#define MOST INT64_C(1000000000000)    /* owners of a folder */

struct place { char host[65], machine[160]; long long pid, born; };
struct tc_owner {
  char *dir, *job;
  int restart;
  int64_t number;                 /* 0: not yet */
  char lease[32];
  struct place me;
  int64_t watched, watched_since_ns, changed_ns;   /* whose heartbeat, 0: none; since when, and when it was seen to go on */
  char heartbeat[32];             /* what it was */
  bool looks;                     /* tc_owner_alive: takes nothing */
  bool alone;                     /* the owner before has ended */
  pthread_t thread;
  bool threaded;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  bool stop;                      /* under lock */
  int gone;                       /* heartbeats in a row that found no lease folder */
  atomic_bool lost;
};

/* ---- processes and their nodes ---------------------------------------------------------- */

/* When a process began, in ticks since boot; -1: it has ended; -2: that can't be told, as where /proc is not mounted, or
 * hides the processes of others. */
static long long born(long long pid)
{
  char path[64], line[1024];
  if (pid > 0 && pid <= INT32_MAX && kill((pid_t)pid, 0) < 0 && errno == ESRCH) return -1;
  snprintf(path, sizeof path, "/proc/%lld/stat", pid);
  if (tc_first_line(path, line, sizeof line)) return -2;
  const char *at = strrchr(line, ')');          /* the name before may hold anything */
  long long ticks = -1;
  char state = 'X';
  if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                    "%*d %*d %lld", &state, &ticks) != 2) return -2;
  return state == 'Z' || state == 'X' ? -1 : ticks;
}

/* Process ids mean the same where boot and process namespace are the same; machine "": they are not known. */
static struct place here(void)
{
  struct place p = { .pid = getpid() };
  char boot[64], ns[64] = "";
  if (gethostname(p.host, sizeof p.host - 1)) strcpy(p.host, "?");
  tc_first_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  if (readlink("/proc/self/ns/pid", ns, sizeof ns - 1) < 0) *ns = 0;
  if (*boot && *ns) snprintf(p.machine, sizeof p.machine, "%s %s", boot, ns);
  p.born = born(p.pid);
  return p;
}

static char *path_in(const struct tc_owner *o, const char *lease, const char *name)
{
  return tc_sprintf("%s/%s%s%s", o->dir, lease, *name ? "/" : "", name);
}

/* 1: there; 0: the folder it was to be in is gone. */
static int put_file(const char *path, const char *text, struct tc_err *err)
{
  struct tc_again again = { 0 };
  int fd;
  do fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  while (fd < 0 && tc_again(&again, errno));
  bool good = fd >= 0 && tc_write_all(fd, text, (int64_t)strlen(text)) && fsync(fd) == 0;
  int why = errno;
  if (fd >= 0) close(fd);
  if (fd < 0 && why == ENOENT) return 0;
  return good ? 1 : tc_fail(err, TC_EUSER, "%s: writing failed: %s", path, strerror(why));
}

/* ---- checking the owner before ----------------------------------------------------- */

static int64_t number_of(const char *name)
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

/* The highest number that has a lease folder; 0: none. */
static int64_t highest(const struct tc_owner *o, struct tc_err *err)
{
  char **names;
  int64_t most = 0;
  int n = tc_folder_scan(o->dir, ".run-", &names, err);
  for (int i = 0; i < n && most >= 0; i++)
    most = number_of(names[i]) > MOST ? too_high(o, names[i], err)
                                      : TC_MAX(most, number_of(names[i]));
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
  char now[sizeof o->heartbeat], *path = path_in(o, lease, "beat");
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

/* 0: `number` may be taken over; 1: not known yet; TC_EUSER: it is alive. */
static int check_owner(struct tc_owner *o, int64_t number, struct tc_err *err)
{
  char lease[32];
  snprintf(lease, sizeof lease, ".run-%08lld", (long long)number);
  char *path = path_in(o, lease, "owner"), *ended = path_in(o, lease, "ended");
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
  const long long now = same ? born(pid) : -2;
  const bool told = now != -2 && when >= 0, alive = told && now == when;      /* not told: its heartbeat tells */
  o->alone = told && !alive;
  int rc = 0;
  if (*o->job && !strcmp(job, o->job)) rc = check_same_job(o, number, lease, lease_owner, same && !o->alone, err);
  else if (!told) rc = watch(o, number, lease, lease_owner, false, err);
  else if (alive) rc = refuse(o, lease_owner, err);
  json_decref(lease_owner);
  free(path);
  return rc;
}

/* ---- taking ------------------------------------------------------------------------ */

/* A folder of files and of folders of files. */
static void remove_lease(const struct tc_owner *o, const char *name)
{
  struct tc_err err = { 0 };
  char *path = path_in(o, name, "");
  int failed = -1;
  bool passing = false;                              /* it was tried again for long: a later owner removes it */
  for (int i = 0; i < TRIES && failed && !passing; i++) {      /* an old owner may be writing there still */
    char **names;
    int n = tc_folder_scan(path, "", &names, &err);
    for (int k = 0; k < n && !passing; k++) {
      char *item = path_in(o, name, names[k]);
      int left = tc_unlink(AT_FDCWD, item);
      if (left == EISDIR || left == EPERM) left = tc_folder_remove(item, &err) < 0 ? errno : 0;
      if (tc_may_pass(left)) failed = left, passing = true;
      free(item);
    }
    if (n >= 0) tc_names_free(names, n);
    if (!passing) passing = tc_may_pass(failed = tc_rmdir(AT_FDCWD, path));
    if (failed && !passing) tc_sleep_ns(50000000);
  }
  if (failed) tc_warn("%s: can't be removed: %s", path, strerror(failed));
  free(path);
}

static void remove_all(const struct tc_owner *o, const char *prefix)
{
  char **names;
  int n = tc_folder_scan(o->dir, prefix, &names, NULL);
  for (int i = 0; i < n; i++) remove_lease(o, names[i]);
  if (n >= 0) tc_names_free(names, n);
}

/* Takes away the lease folders below ours; or what was to become one, whole, so that no process
 * acquires a number with an empty folder. */
static int fence_all(const struct tc_owner *o, const char *prefix, struct tc_err *err)
{
  char **names;
  int n = tc_folder_scan(o->dir, prefix, &names, err), rc = TC_MIN(n, 0);
  for (int i = 0; i < n && rc == 0; i++) {
    int64_t number = strcmp(prefix, ".run-") ? 0 : number_of(names[i]);
    if (number >= o->number || number < 0) continue;
    char *from = path_in(o, names[i], "");
    char *to = tc_sprintf("%s/.gone-%s-%s", o->dir, names[i] + 1, o->lease + strlen(".run-"));
    const int why = tc_rename(AT_FDCWD, from, to);
    if (why && why != ENOENT) rc = tc_fail(err, TC_EUSER, "%s: can't be renamed: %s", from, strerror(why));
    free(from);
    free(to);
  }
  if (n >= 0) tc_names_free(names, n);
  return rc;
}

static int fence(const struct tc_owner *o, struct tc_err *err)
{
  TC_TRY(fence_all(o, ".run-", err));
  TC_TRY(fence_all(o, ".new-", err));
  return tc_folder_sync(o->dir, err);
}

/* A lease folder under a name of no meaning yet. 0: a process that got the folder took it away. */
static int prepare(const struct tc_owner *o, const char *fresh, struct tc_err *err)
{
  char since[40];
  tc_iso_time(since, sizeof since);
  json_t *lease_owner = json_pack("{s:s,s:i,s:s,s:s,s:I,s:I,s:s}", "job", o->job, "restart", o->restart,
                                  "host", o->me.host, "machine", o->me.machine, "pid",
                                  (json_int_t)o->me.pid, "born", (json_int_t)o->me.born, "since", since);
  char *text = lease_owner ? json_dumps(lease_owner, 0) : tc_strdup("{}");
  char *folder = path_in(o, fresh, ""), *owner = path_in(o, fresh, "owner");
  char *heartbeat = path_in(o, fresh, "beat");
  const int why = tc_mkdir_own(AT_FDCWD, folder);
  int rc = why ? tc_fail(err, TC_EUSER, "%s: can't be made: %s", folder, strerror(why)) : 1;
  if (rc == 1) rc = put_file(owner, text, err);
  if (rc == 1) rc = put_file(heartbeat, "0000000000\n", err);
  if (rc < 0) remove_lease(o, fresh);
  json_decref(lease_owner);
  free(text);
  free(folder);
  free(owner);
  free(heartbeat);
  return rc;
}

/* A signal that ends the process removes a folder that is no lease yet. */
enum { FRESH = 3 };
static void remember_fresh(const struct tc_owner *o, const char *fresh, int place[FRESH])
{
  static const char *const name[FRESH] = { "owner", "beat", "" };
  for (int i = 0; i < FRESH; i++) {
    char *path = path_in(o, fresh, name[i]);
    place[i] = tc_output_remember(path);
    free(path);
  }
}

/* 1: it is ours; 0: another process was faster. */
static int acquire(struct tc_owner *o, int64_t number, struct tc_err *err)
{
  char fresh[32], lease[32];
  snprintf(fresh, sizeof fresh, ".new-%08x", tc_random_name());
  snprintf(lease, sizeof lease, ".run-%08lld", (long long)number);
  int place[FRESH];
  remember_fresh(o, fresh, place);
  int rc = prepare(o, fresh, err);
  char *from = path_in(o, fresh, ""), *to = path_in(o, lease, "");
  const int failed = rc == 1 ? tc_rename(AT_FDCWD, from, to) : 0;
  for (int i = 0; i < FRESH; i++) tc_output_forget(place[i]);
  if (rc != 1) {
    free(from);
    free(to);
    return rc;
  }
  if (failed) remove_lease(o, fresh);
  rc = !failed;
  if (failed && failed != EEXIST && failed != ENOTEMPTY && failed != ENOENT)
    rc = tc_fail(err, TC_EUSER, "%s: can't be renamed: %s", from, strerror(failed));
  free(from);
  free(to);
  if (rc == 1) rc = tc_folder_sync(o->dir, err) < 0 ? err->status : 1;
  /* A slow process may get a number that was in use and is free again. */
  int64_t most = rc == 1 ? highest(o, err) : 0;
  if (most < 0) rc = (int)most;
  if (most > number) {
    remove_lease(o, lease);
    rc = 0;
  }
  if (rc == 1) {
    o->number = number;
    strcpy(o->lease, lease);
  }
  return rc;
}

/* ---- the heartbeat ----------------------------------------------------------------- */

static void write_heartbeat(struct tc_owner *o, unsigned count)
{
  char text[16], *path = path_in(o, o->lease, "beat");
  snprintf(text, sizeof text, "%010u\n", count);
  int fd = open(path, O_WRONLY | O_CLOEXEC);         /* never made anew */
  bool gone = fd < 0 && errno == ENOENT;
  /* A disk in trouble is reported by the next save; here it costs a heartbeat. */
  if (fd >= 0 && pwrite(fd, text, strlen(text), 0) < 0) gone = false;
  if (fd >= 0) close(fd);
  /* Gone for good: another has it, or the folder was removed or renamed under the run. */
  o->gone = gone ? o->gone + 1 : 0;
  if (gone && (highest(o, NULL) > o->number || o->gone >= HEARTBEATS_GONE))
    atomic_store(&o->lost, true);
  free(path);
}

static void *heartbeat(void *arg)
{
  struct tc_owner *o = arg;
  unsigned count = 0;
  pthread_mutex_lock(&o->lock);
  while (!o->stop) {
    tc_cond_wait_until(&o->wake, &o->lock, tc_now_ns() + HEARTBEAT_NS);
    if (o->stop) break;
    pthread_mutex_unlock(&o->lock);
    write_heartbeat(o, ++count);
    pthread_mutex_lock(&o->lock);
  }
  pthread_mutex_unlock(&o->lock);
  return NULL;
}

/* ---- the interface ------------------------------------------------------------------ */

struct tc_owner *tc_owner_new(const char *dir, const char *job, int restart)
{
  struct tc_owner *o = tc_calloc(1, sizeof *o);
  o->dir = tc_strdup(dir);
  o->job = tc_strdup(job);
  o->restart = restart;
  o->me = here();
  pthread_mutex_init(&o->lock, NULL);
  tc_cond_init(&o->wake);
  atomic_init(&o->lost, false);
  return o;
}

int tc_owner_take(struct tc_owner *o, struct tc_err *err)
{
  TC_ASSERT(!o->number);
  TC_TRY(tc_folder_make(o->dir, err));
  for (int i = 0; i < TRIES; i++) {
    int64_t most = highest(o, err);
    if (most < 0) return (int)most;
    int rc = most > 0 ? check_owner(o, most, err) : 0;
    if (rc != 0) return rc;
    rc = acquire(o, most + 1, err);
    if (rc < 0) return rc;
    if (rc == 0) continue;
    TC_TRY(fence(o, err));
    TC_TRY(tc_thread_start(&o->thread, heartbeat, o, err));
    o->threaded = true;
    remove_all(o, ".gone-");
    return 0;
  }
  return tc_fail(err, TC_EUSER, "%s: others take this folder again and again; start one run at a "
                 "time", o->dir);
}

int tc_owner_alive(const char *dir, struct tc_err *err)
{
  struct tc_owner *o = tc_owner_new(dir, "", 0);
  struct tc_err busy;
  int rc = 0;
  o->looks = true;
  int64_t most = tc_is_there(dir) == 0 ? 0 : highest(o, err);
  while (most > 0 && (rc = check_owner(o, most, &busy)) == 1) tc_sleep_ns(TC_OWNER_LOOK_NS);
  tc_owner_free(o);
  return most < 0 ? (int)most : rc < 0;
}

const char *tc_owner_lease(const struct tc_owner *o) { return o->lease; }

bool tc_owner_alone(const struct tc_owner *o) { return o->alone; }

bool tc_owner_lost(struct tc_owner *o) { return atomic_load(&o->lost); }

void tc_owner_free(struct tc_owner *o)
{
  if (!o) return;
  pthread_mutex_lock(&o->lock);
  o->stop = true;
  pthread_cond_signal(&o->wake);
  pthread_mutex_unlock(&o->lock);
  if (o->threaded) pthread_join(o->thread, NULL);
  if (o->number) {
    char *owner = path_in(o, o->lease, "owner"), *ended = path_in(o, o->lease, "ended");
    const int why = tc_rename(AT_FDCWD, owner, ended);
    if (why && why != ENOENT) tc_warn("%s: can't be renamed: %s", owner, strerror(why));
    free(owner);
    free(ended);
  }
  pthread_cond_destroy(&o->wake);
  pthread_mutex_destroy(&o->lock);
  free(o->dir);
  free(o->job);
  free(o);
}
