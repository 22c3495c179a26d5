/* owner.c - taking a checkpoint folder, and keeping others from it, with nothing but renames: no
 * locks of the file system (many cluster file systems lack them), no clocks that agree.
 *
 *   check the owner of the        alive: refuse; dead, ended, of an earlier start of this job: go on
 *   highest lease folder N                                                        tc_owner_check
 *   .new-* -> .run-N+1            a rename onto a folder with files in it fails: of two
 *                                 that try, one gets the number                     tc_owner_acquire
 *   .run-k -> .gone-* for k <= N  from here on the old owner's names lead nowhere: it
 *   .new-* -> .gone-*             can neither begin a save nor rename one out; one that
 *                                 was still about to acquire starts over            tc_owner_fence
 *   empty and remove .gone-*      beside our heartbeat, since that may take long    tc_owner_remove
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
 *
 * Whether the owner before is alive: owner_before.c. The steps: owner_take.c. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <string.h>

#include "io/folder.h"

struct tc_owner *tc_owner_new(const char *dir, const char *job, int restart)
{
  struct tc_owner *o = tc_calloc(1, sizeof *o);
  o->dir = tc_strdup(dir);
  o->job = tc_strdup(job);
  o->restart = restart;
  o->me = tc_process_here();
  pthread_mutex_init(&o->lock, NULL);
  tc_cond_init(&o->wake);
  atomic_init(&o->lost, false);
  return o;
}

int tc_owner_take(struct tc_owner *o, struct tc_err *err)
{
  TC_ASSERT(!o->number);
  TC_TRY(tc_folder_make(o->dir, err));
  for (int i = 0; i < TC_OWNER_TRIES; i++) {
    int64_t most = tc_owner_highest(o, err);
    if (most < 0) return (int)most;
    int rc = most > 0 ? tc_owner_check(o, most, err) : 0;
    if (rc != 0) return rc;
    rc = tc_owner_acquire(o, most + 1, err);
    if (rc < 0) return rc;
    if (rc == 0) continue;
    TC_TRY(tc_owner_fence(o, err));
    TC_TRY(tc_thread_start(&o->thread, tc_owner_heartbeat, o, err));
    o->threaded = true;
    tc_owner_remove(o, ".gone-");
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
  int64_t most = tc_is_there(dir) == 0 ? 0 : tc_owner_highest(o, err);
  while (most > 0 && (rc = tc_owner_check(o, most, &busy)) == 1) tc_sleep_ns(TC_OWNER_LOOK_NS);
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
    char *owner = tc_owner_path(o, o->lease, "owner"), *ended = tc_owner_path(o, o->lease, "ended");
    const int why = tc_rename(AT_FDCWD, owner, ended);
    if (why && why != ENOENT) tc_warn("%s: can't be renamed: %s", owner, strerror(why));
    TC_FREE(owner, ended);
  }
  pthread_cond_destroy(&o->wake);
  pthread_mutex_destroy(&o->lock);
  TC_FREE(o->dir, o->job, o);
}
