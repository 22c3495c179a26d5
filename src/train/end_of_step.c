/* end_of_step.c - the end of a step. What single ranks know (a stop request, that a checkpoint must
 * be saved, a save that is still under way, a folder that was lost) is combined in one control
 * reduction, so that all ranks save, write their lines, go on or stop alike. The reduction also
 * tells rank 0 how long each rank worked, which is how stragglers are found. */
#include <stdlib.h>
#include <string.h>

#include "io/ckpt/owner.h"
#include "src/launch/stop.h"
#include "src/train/parts.h"
#include "src/watch/watch.h"

/* Why a run stops; of several reasons the last one here counts. STOP_SHORT: the time limit is so
 * short that the job would be requeued for ever. */
enum { STOP_REQUEUE = 1, STOP_WALLTIME, STOP_SHORT, STOP_END };
enum { DUE = 1, DUE_ASKED };      /* a checkpoint; asked for: never left out */
enum { LOST_STATE = 1, LOST_FOLDER, LOST_DATA };   /* the state is not finite, as a save has found */
enum { F_STOP, F_DUE, F_BUSY, F_LOST };

static int64_t stop_asked(const struct tc_train *t)
{
  static const int64_t stop[] = { [TC_STOP_REQUEUE] = STOP_REQUEUE, [TC_STOP_END] = STOP_END };
  return stop[tc_stop_asked(t->stop)];
}

/* Adds the flags that only rank 0 can set. */
static void read_own_flags(struct tc_train *t, int64_t step, int64_t flag[TC_FLAGS])
{
  static const int64_t near_stop[] = { [TC_TIME_LIMIT_NEAR] = STOP_WALLTIME,
                                       [TC_TIME_LIMIT_SHORT] = STOP_SHORT };
  static const int64_t ask_stop[] = { [TC_ASK_REQUEUE] = STOP_REQUEUE, [TC_ASK_END] = STOP_END };
  tc_request_end(t);                             /* before a new one replaces it */
  const int asked = tc_request_look(t, step, step == tc_last_step(t->run.cfg) || tc_stop_if_met(&t->stop_if));
  const int near = tc_time_limit_near(t);        /* once a step, and TC_MAX would call it twice */
  flag[F_STOP] = TC_MAX(flag[F_STOP], near_stop[near]);
  flag[F_STOP] = TC_MAX(flag[F_STOP], ask_stop[asked]);
  flag[F_DUE] = asked ? DUE_ASKED : tc_interval_due(t, step) || tc_train_border(t, t->run.cfg->ckpt_every, step) ? DUE : 0;
  if (tc_owner_lost(t->ckpt.owner)) flag[F_LOST] = LOST_FOLDER;
}

static struct tc_straggler *straggler_new(const struct tc_train *t)
{
  int world = t->run.mesh->world;
  int32_t *stage = tc_malloc((size_t)world * sizeof *stage);
  for (int r = 0; r < world; r++) stage[r] = tc_mesh_index(t->run.mesh, r, TC_ON_PP);
  const struct tc_straggler_opts o = { .world = world, .stage = stage,
                                       .node = t->run.ranks->node_of_rank,
                                       .rank_names = (const char *const *)t->run.rank_names };
  struct tc_straggler *s = tc_straggler_new(&o);
  free(stage);
  return s;
}

int tc_train_control(struct tc_train *t, int64_t *flag, int n, struct tc_step_report *r,
                     struct tc_err *err)
{
  int world = t->run.mesh->world, each = n + 1;
  int64_t *mine = tc_malloc((size_t)each * sizeof *mine);
  int64_t *all = tc_malloc((size_t)(world * each) * sizeof *all);
  memcpy(mine, flag, (size_t)n * sizeof *mine);
  mine[n] = r->step_ns - r->wait_ns;
  int rc = tc_comm_all_i64(t->run.world, mine, each, all, err);
  for (int i = 0; rc == 0 && i < world * each; i++)
    if (i % each < n) flag[i % each] = TC_MAX(flag[i % each], all[i]);
  if (rc == 0 && t->run.rank == 0 && world > 1) {
    if (t->end.stage != t->run.at) {             /* its steps take other times */
      tc_straggler_free(t->end.straggler);
      t->end.straggler = NULL;
    }
    t->end.stage = t->run.at;
    if (!t->end.straggler) t->end.straggler = straggler_new(t);
    for (int i = 0; i < world; i++) all[i] = all[i * each + n];   /* never before it is read */
    const char *text = tc_straggler_step(t->end.straggler, r->step, all, &r->slowest);
    if (text) tc_warn("%s", text);
  }
  TC_FREE(mine, all);
  return rc;
}

int tc_train_read_flags(struct tc_train *t, struct tc_step_report *r, int64_t flag[TC_FLAGS],
                        struct tc_err *err)
{
  tc_at("agreeing on what comes next", NULL, NULL, -1);
  memset(flag, 0, TC_FLAGS * sizeof *flag);
  flag[F_STOP] = stop_asked(t);
  flag[F_BUSY] = tc_writer_busy(t->ckpt.writer);
  if (t->ckpt.diverged) flag[F_LOST] = LOST_STATE;
  if (t->run.rank == 0) read_own_flags(t, r->step, flag);
  if (t->batches.err.status < 0) flag[F_LOST] = LOST_DATA;
  TC_TRY(tc_train_control(t, flag, TC_FLAGS, r, err));
  if (flag[F_LOST] == LOST_DATA) return tc_train_data_check(t, err);
  t->ckpt.diverged = flag[F_LOST] == LOST_STATE;
  if (flag[F_LOST] == LOST_FOLDER)
    return tc_fail(err, TC_EUSER, "%s belongs to another run now, which was started later, or was "
                   "removed or renamed: this one ends after step %lld, without saving",
                   t->ckpt.dir, (long long)r->step);
  return 0;
}

/* Copies the state if it is to be saved, writes the step's line, starts the writer. A save that
 * fails is logged, and the run goes on with the checkpoint before it; the failure of the last save
 * is returned, as is TC_EPEER. */
static int save_and_write(struct tc_train *t, const struct tc_step_report *r, bool want, bool last,
                          struct tc_err *err)
{
  int64_t t0 = tc_now_ns();
  int rc = want ? tc_train_save_end(t, true, false, err) : 0;   /* one at a time */
  if (rc == TC_EPEER) return rc;
  want = want && t->ckpt.saved_step != r->step;
  int64_t t1 = tc_now_ns();
  if (want) tc_writer_copy(t->ckpt.writer);
  int64_t t2 = tc_now_ns();
  if (want) {
    t->end.copy_ns = t->run.cfg->ckpt_async ? t2 - t1 : 0;
    tc_metrics_stalled(t, t2 - t0, t->run.cfg->ckpt_async);
  }
  tc_metrics_add(t, r);
  if (!want) return 0;
  t0 = tc_now_ns();
  tc_train_save_begin(t, r->step);
  rc = tc_train_save_end(t, last || !t->run.cfg->ckpt_async, last, err);
  if (last && rc < 0) rc = tc_train_save_again(t, r->step, rc, err);
  tc_metrics_stalled(t, tc_now_ns() - t0, false);
  return last || rc == TC_EPEER ? rc : 0;
}

static int stopped(int64_t why, int64_t step, struct tc_err *err)
{
  if (why == STOP_SHORT)
    return tc_fail(err, TC_EUSER, "the time limit is too short: it is near after step %lld already,"
                   " and each start would get no further. Give more than twice what a step and a "
                   "checkpoint take (see above): run.walltime, or the job's time (sbatch --time)",
                   (long long)step);
  const int status = why == STOP_END ? TC_ENDED : TC_STOPPED;
  return tc_fail(err, status, "saved step %lld and stopped %s, with exit status %d: run the same "
                 "command to resume", (long long)step,
                 why == STOP_WALLTIME ? "before the time limit" : "on request", -status);
}

int tc_train_asked_before(struct tc_train *t, struct tc_err *err)
{
  tc_stop_join(t->stop);
  int64_t why = stop_asked(t);
  TC_TRY(tc_comm_max_i64(t->run.world, &why, 1, err));
  tc_stop_run(t->stop, "saving and stopping after this step");
  if (!why) return 0;
  return tc_fail(err, why == STOP_END ? TC_ENDED : TC_STOPPED, "stopped on request before the "
                 "first step of this start (after step %lld): there is nothing new to save",
                 (long long)t->ckpt.start_step);
}

int tc_train_finish_step(struct tc_train *t, struct tc_step_report *r,
                         const int64_t flag[TC_FLAGS], bool *stop, struct tc_err *err)
{
  const int64_t end = tc_last_step(t->run.cfg);
  const bool early = r->validated && r->step != end && tc_stop_if_met(&t->stop_if);
  bool last = r->step == end || early || flag[F_STOP];
  bool skip = flag[F_DUE] == DUE && flag[F_BUSY] && !last && t->run.cfg->ckpt_busy == TC_BUSY_SKIP;
  if (skip && t->run.rank == 0 && !t->end.left_out)   /* once, though each step may be due */
    tc_log("checkpoint of step %lld left out: the one before is still being written",
           (long long)r->step);
  t->end.left_out = skip || (t->end.left_out && !flag[F_DUE]);
  bool save = last || (flag[F_DUE] && !skip);
  if (save) TC_TRY(tc_train_data_check(t, err));
  if (last || flag[F_DUE]) tc_metrics_look(t, r->step);
  TC_TRY(save_and_write(t, r, save, last, err));
  if (t->run.rank == 0) tc_request_end(t);
  int rc = r->step == t->ckpt.start_step + 2 ? tc_train_run_json(t, err) : 0;
  if (rc == TC_EPEER) return rc;
  if (rc < 0) tc_warn("%s", err->text);
  if (early) tc_stop_if_say(t, r->step);
  if (flag[F_STOP] && r->step != end && !early) return stopped(flag[F_STOP], r->step, err);
  *stop = last;
  return 0;
}

