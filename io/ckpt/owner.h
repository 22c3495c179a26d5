/* owner.h - which process may write checkpoints into a folder: one run at a time, and of one job the newest
 * start.
 *
 * DIR/.run-00000007 is the lease folder of the 7th owner of DIR: "owner" in it says which process
 * that is, "beat" is the heartbeat, written every second while the process runs. Checkpoints are
 * written inside the lease folder and renamed out of it: so an owner whose lease folder was taken
 * away can't commit, whatever it still believes. A run that ends leaves its lease folder with
 * "owner" renamed to "ended": numbers never come twice. */
#ifndef TC_OWNER_H
#define TC_OWNER_H

#include "src/base/base.h"

struct tc_owner;

/* How often tc_owner_take is to be called again; how long it may ask for that: to see a heartbeat of an owner elsewhere,
 * and until an owner of the same start of the same job, on this machine, has ended. Slurm ends what is left of a step by
 * KILL after KillWait, 30 s by default. */
#define TC_OWNER_LOOK_NS INT64_C(500000000)
#define TC_OWNER_WATCH_NS INT64_C(10000000000)
#define TC_OWNER_LEAVE_NS INT64_C(90000000000)

/* Local. job: "" for none; copied. */
struct tc_owner *tc_owner_new(const char *dir, const char *job, int restart);
/* Local. Makes this process the owner of the folder, which it makes if need be. 0: it is, and what
 * earlier owners left is removed. 1: an owner may be alive elsewhere; call again in
 * TC_OWNER_LOOK_NS. TC_EUSER: another owner is alive, which the sentence names; or the folder can't be
 * written. Taken over at once: a run that ended, that was on this machine and is no more, or that
 * was an earlier start of the same job, or one of the same start on another machine; the last two are said. */
int tc_owner_take(struct tc_owner *o, struct tc_err *err);
/* Local. 1: the folder has an owner that is alive; 0: it has none. Takes up to TC_OWNER_WATCH_NS
 * where the owner is elsewhere. TC_EUSER: the folder can't be read. */
int tc_owner_alive(const char *dir, struct tc_err *err);
/* Local. The lease folder's name within the folder, as tc_ckpt_meta.lease takes it; "" before the
 * folder is taken. */
const char *tc_owner_lease(const struct tc_owner *o);
/* Local. Whether it is known that the owner before has ended: it said so, or it was on this machine and is no more.
 * Otherwise its process may still run somewhere, without the folder. */
bool tc_owner_alone(const struct tc_owner *o);
/* Local. Whether a later owner was seen, or the lease folder is gone. */
bool tc_owner_lost(struct tc_owner *o);
/* Local. Gives the folder up. NULL is fine. */
void tc_owner_free(struct tc_owner *o);

#endif
