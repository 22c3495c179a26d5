/* owner_take.c - taking a number and keeping it: lease folders made, renamed, taken away and removed; the heartbeat. The
 * protocol and its proofs are in owner.c. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/folder.h"
#include "src/files/again.h"
#include "src/files/output.h"

#define HEARTBEAT_NS INT64_C(1000000000)
enum { HEARTBEATS_GONE = 3 };     /* without a lease folder, before the folder counts as taken away */

/* 1: there; 0: the folder it was to be in is gone. */
static int put_file(const char *path, const char *text, struct tc_err *err)
{
  const int fd = tc_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  bool good = fd >= 0 && tc_write_all(fd, text, (int64_t)strlen(text)) && fsync(fd) == 0;
  int why = errno;
  if (fd >= 0) close(fd);
  if (fd < 0 && why == ENOENT) return 0;
  return good ? 1 : tc_fail(err, TC_EUSER, "%s: writing failed: %s", path, strerror(why));
}

/* ---- taking ------------------------------------------------------------------------ */

/* A folder of files and of folders of files. */
static void remove_lease(const struct tc_owner *o, const char *name)
{
  struct tc_err err = { 0 };
  char *path = tc_owner_path(o, name, "");
  int failed = -1;
  bool passing = false;                              /* it was tried again for long: a later owner removes it */
  for (int i = 0; i < TC_OWNER_TRIES && failed && !passing; i++) {      /* an old owner may be writing there still */
    char **names;
    int n = tc_folder_scan(path, "", &names, &err);
    for (int k = 0; k < n && !passing; k++) {
      char *item = tc_owner_path(o, name, names[k]);
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

void tc_owner_remove(const struct tc_owner *o, const char *prefix)
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
    int64_t number = strcmp(prefix, ".run-") ? 0 : tc_owner_number(names[i]);
    if (number >= o->number || number < 0) continue;
    char *from = tc_owner_path(o, names[i], "");
    char *to = tc_sprintf("%s/.gone-%s-%s", o->dir, names[i] + 1, o->lease + strlen(".run-"));
    const int why = tc_rename(AT_FDCWD, from, to);
    if (why && why != ENOENT) rc = tc_fail(err, TC_EUSER, "%s: can't be renamed: %s", from, strerror(why));
    TC_FREE(from, to);
  }
  if (n >= 0) tc_names_free(names, n);
  return rc;
}

int tc_owner_fence(const struct tc_owner *o, struct tc_err *err)
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
  char *folder = tc_owner_path(o, fresh, ""), *owner = tc_owner_path(o, fresh, "owner");
  char *heartbeat = tc_owner_path(o, fresh, "beat");
  const int why = tc_mkdir_own(AT_FDCWD, folder);
  int rc = why ? tc_fail(err, TC_EUSER, "%s: can't be made: %s", folder, strerror(why)) : 1;
  if (rc == 1) rc = put_file(owner, text, err);
  if (rc == 1) rc = put_file(heartbeat, "0000000000\n", err);
  if (rc < 0) remove_lease(o, fresh);
  json_decref(lease_owner);
  TC_FREE(text, folder, owner, heartbeat);
  return rc;
}

/* A signal that ends the process removes a folder that is no lease yet. */
enum { FRESH = 3 };
static void remember_fresh(const struct tc_owner *o, const char *fresh, int place[FRESH])
{
  static const char *const name[FRESH] = { "owner", "beat", "" };
  for (int i = 0; i < FRESH; i++) {
    char *path = tc_owner_path(o, fresh, name[i]);
    place[i] = tc_output_remember(path);
    free(path);
  }
}

int tc_owner_acquire(struct tc_owner *o, int64_t number, struct tc_err *err)
{
  char fresh[32], lease[32];
  snprintf(fresh, sizeof fresh, ".new-%08x", tc_random_name());
  snprintf(lease, sizeof lease, ".run-%08lld", (long long)number);
  int place[FRESH];
  remember_fresh(o, fresh, place);
  int rc = prepare(o, fresh, err);
  char *from = tc_owner_path(o, fresh, ""), *to = tc_owner_path(o, lease, "");
  const int failed = rc == 1 ? tc_rename(AT_FDCWD, from, to) : 0;
  for (int i = 0; i < FRESH; i++) tc_output_forget(place[i]);
  if (rc != 1) {
    TC_FREE(from, to);
    return rc;
  }
  if (failed) remove_lease(o, fresh);
  rc = !failed;
  if (failed && failed != EEXIST && failed != ENOTEMPTY && failed != ENOENT)
    rc = tc_fail(err, TC_EUSER, "%s: can't be renamed: %s", from, strerror(failed));
  TC_FREE(from, to);
  if (rc == 1) rc = tc_folder_sync(o->dir, err) < 0 ? err->status : 1;
  /* A slow process may get a number that was in use and is free again. */
  int64_t most = rc == 1 ? tc_owner_highest(o, err) : 0;
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
  char text[16], *path = tc_owner_path(o, o->lease, "beat");
  snprintf(text, sizeof text, "%010u\n", count);
  int fd = open(path, O_WRONLY | O_CLOEXEC);         /* never made anew */
  bool gone = fd < 0 && errno == ENOENT;
  /* A disk in trouble is reported by the next save; here it costs a heartbeat. */
  if (fd >= 0 && pwrite(fd, text, strlen(text), 0) < 0) gone = false;
  if (fd >= 0) close(fd);
  /* Gone for good: another has it, or the folder was removed or renamed under the run. */
  o->gone = gone ? o->gone + 1 : 0;
  if (gone && (tc_owner_highest(o, NULL) > o->number || o->gone >= HEARTBEATS_GONE))
    atomic_store(&o->lost, true);
  free(path);
}

void *tc_owner_heartbeat(void *arg)
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
