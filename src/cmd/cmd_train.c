/* cmd_train.c - `tercio train`: starts a training run on each rank. */
#include "src/cmd/cmd.h"
#include "src/cmd/show_steps.h"
#include "io/ckpt/h5.h"
#include "src/launch/launch.h"
#include "src/launch/stop.h"
#include "src/program/setup.h"
#include "src/train/train.h"

struct start {                   /* read-only for ranks */
  struct tc_launch launch;
  struct tc_stop *stop;
};

static int run_rank(int rank, void *start, struct tc_err *err)
{
  const struct start *s = start;
  const struct tc_launch *l = &s->launch;
  const struct tc_train_args args = {
    .cfg = l->cfg, .ranks = l->ranks, .rank_names = l->rank_names, .rank = rank, .hub = l->hub, .stop = s->stop,
    .mpi = l->mpi && l->mpi_world > 1, .threads = tc_launch_threads(l->cfg, l->ranks, rank) };
  int rc = tc_train(&args, err);
  /* All ranks end with one status. The launcher ends the others by TERM as soon as the first
   * has ended (srun -K1), and 143 would hide it; no rank ends before all have reached
   * tc_mpi_finish. */
  if (rc != TC_EPEER) tc_stop_agreed(s->stop);
  return rc;
}

struct ask { bool dry_run, json; int64_t every; };

#define FIELD(f) .field = offsetof(struct ask, f)
const struct tc_flag tc_flags_train[] = {
  { "--dry-run", "train nothing: print rate, batch, context and tokens by step, and what is trained of each source of data.train",
    .kind = TC_FLAG_YES, FIELD(dry_run) },
  { "--every N", "of a dry run: print every N-th step (default: about twenty, and those where the schedule turns)",
    "a number of steps", TC_FLAG_WHOLE, FIELD(every), 1, 1e9, .needs = "--dry-run" },
  { "--json", "of a dry run: print JSON instead of a table", .kind = TC_FLAG_YES, FIELD(json),
    .needs = "--dry-run" },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_RUN(tc_flags_train, "train");

static int dry_run(struct tc_config *c, const struct ask *ask, int rc, struct tc_err *err)
{
  if (!rc) rc = tc_trained_of_run(c, err);
  if (!rc) rc = tc_show_steps(c, ask->every, ask->json, err);
  if (!rc) rc = tc_show_rows_of(c, !ask->json, err);
  tc_config_free(c);
  return rc < 0 ? tc_say_failure(err) : 0;
}

int tc_cmd_train(int argc, char **argv, struct tc_stop *stop)
{
  struct tc_err err = { 0 };
  struct tc_config *c = NULL;
  struct start s = { .stop = stop };
  struct ask ask = { 0 };
  int rc = tc_args_run(&c, &flags, &ask, argc, argv, &err);
  if (!rc) tc_setup_positions(c);
  if (ask.dry_run) return dry_run(c, &ask, rc, &err);
  if (!rc) tc_h5_start();
  if (!rc) rc = tc_trained_of_run(c, &err);
  if (!rc) rc = tc_launch_find(&s.launch, c, &err);
  if (rc < 0) tc_stop_agreed(stop);    /* the first rank that reports it has the others ended by TERM */
  int status = rc < 0 ? tc_launch_say(&s.launch, rc, &err)
                      : tc_launch_run(&s.launch, run_rank, &s);
  tc_launch_free(&s.launch);
  tc_config_free(c);
  return status;
}
