/* stop.h - signals that ask a run to save and stop.
 *
 * SIGUSR2 asks to save and be requeued (status 85); SIGTERM, SIGHUP and SIGINT to save and be left
 * alone (86). What comes within TC_STOP_WINDOW_NS of the first is the same request: launchers send
 * several. There TERM, HUP and INT win over USR2, until the ranks agree to stop.
 * Later a TERM, HUP or INT ends the process at once, by that signal; but the first one after USR2
 * alone changes nothing: so Slurm announces (--signal=USR2@300) and then enforces (TERM, KILL) a
 * time limit, and what is being saved for the requeue is to be finished. A later USR2 never ends a
 * run.
 *
 * A signal that the process was started with ignored (nohup) stays ignored. */
#ifndef TC_STOP_H
#define TC_STOP_H

#include "src/base/base.h"

#define TC_STOP_WINDOW_NS INT64_C(10000000000)

enum tc_stop_kind { TC_STOP_NONE, TC_STOP_REQUEUE, TC_STOP_END };

struct tc_stop;

/* Local, before any thread is started. The signals stay pending until tc_stop_new; not those that are
 * ignored now. */
void tc_stop_block(void);
/* Local. They have their effect again: for commands that do not receive them. */
void tc_stop_unblock(void);
/* Local, after tc_stop_block. Starts the thread that receives the signals; TC_EUSER if it
 * can't. say: whether this process logs what it receives. *out is owned by the caller. */
int tc_stop_new(struct tc_stop **out, bool say, struct tc_err *err);
/* Local, any thread. What was asked for so far: enum tc_stop_kind. */
int tc_stop_asked(const struct tc_stop *s);
/* Local. The run's status is agreed on. From now on TERM does nothing: it is how the launcher ends
 * the ranks that are a little later than the first (srun -K1), and would hide the status. */
void tc_stop_agreed(struct tc_stop *s);
/* Local. The signals stay blocked: the process is about to end, with a status of its own. NULL is
 * fine. */
void tc_stop_free(struct tc_stop *s);

#endif
