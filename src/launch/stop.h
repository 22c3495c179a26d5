/* stop.h - what signals do: end the process, or ask it to save and stop.
 *
 * Signals are blocked before main, and one thread receives them from main's beginning to the end of the process.
 * A command begins in the phase "starting": TERM, HUP and INT end the process at once, by that signal; so does
 * USR2, with status 85 if the command takes requests. A command that has something to save calls tc_stop_run;
 * from then on
 *
 * - SIGUSR2 asks to save and be requeued (status 85); SIGTERM, SIGHUP and SIGINT to save and be left alone (86).
 *   What comes within TC_STOP_WINDOW_NS of the first is the same request: launchers send several. There TERM, HUP
 *   and INT win over USR2, until the ranks agree to stop.
 * - Later a TERM, HUP or INT ends the process at once, by that signal; but the first one after USR2 alone changes
 *   nothing: so Slurm announces (--signal=USR2@300) and then enforces (TERM, KILL) a time limit, and what is
 *   being saved for the requeue is to be finished. A later USR2 never ends a run.
 * - Of a process that no launcher started, a second INT ends it sooner, TC_STOP_AGAIN_NS after the first: a
 *   person presses Ctrl-C again.
 *
 * Ranks that are several processes do not begin their first step at the same moment. Each calls tc_stop_join, then they
 * agree on what was asked for, and each calls tc_stop_run: so none takes a first step while a signal may still
 * end another by itself. A signal between the two calls is a request, unless the ranks do not meet within
 * TC_STOP_JOIN_NS: then one of them has ended or is late, no step has begun, and the signal ends the process.
 *
 * A signal that the process was started with ignored (nohup) stays ignored. Of the thread's messages none waits
 * for its reader. */
#ifndef TC_STOP_H
#define TC_STOP_H

#include "src/base/base.h"

#define TC_STOP_WINDOW_NS INT64_C(10000000000)
#define TC_STOP_AGAIN_NS INT64_C(1000000000)
#define TC_STOP_JOIN_NS INT64_C(2000000000)

enum tc_stop_kind { TC_STOP_NONE, TC_STOP_REQUEUE, TC_STOP_END };

struct tc_stop;

struct tc_stop_opts {
  bool requests;                  /* the command takes requests: USR2 ends it with 85, not by the signal */
  bool say;                       /* this process logs what it receives; of several ranks one does */
  bool alone;                     /* no launcher started it */
};

/* Local, before main. The signals stay pending until tc_stop_new or tc_stop_unblock; not those that are ignored. */
void tc_stop_block(void);
/* Local. In the calling thread, and in child processes that it starts from now on, they have their effect again. */
void tc_stop_unblock(void);
/* Local, after tc_stop_block and before anything that may wait. Starts the thread, which exists as long as the
 * process; TC_EUSER if it can't. *out is the thread's. */
int tc_stop_new(struct tc_stop **out, const struct tc_stop_opts *o, struct tc_err *err);
/* Local, any thread; NULL is fine, as in the functions below. The first step is next, once all ranks are here. */
void tc_stop_join(struct tc_stop *s);
/* Local, any thread. From now on signals are requests. The first one is logged, if this process logs them:
 * "SIGTERM: SAYING"; NULL: it is not. saying is borrowed. */
void tc_stop_run(struct tc_stop *s, const char *saying);
/* Local, any thread. What was asked for so far: enum tc_stop_kind. */
int tc_stop_asked(const struct tc_stop *s);
/* Local. The command's status is decided. From now on TERM does nothing, nor USR2: TERM is how the launcher ends
 * the ranks that are a little later than the first (srun -K1), and would hide the status. */
void tc_stop_agreed(struct tc_stop *s);
/* Local, any thread, also in a signal handler. Ends the process at once: the one way for every signal that does so.
 * status > 0: with this status; else by the signal's default action. */
_Noreturn void tc_stop_end(int number, int status);

#endif
