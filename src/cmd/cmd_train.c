/* cmd_train.c - `tercio train`: starts a training run on each rank. */
#include "src/cmd/cmd.h"
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

int tc_cmd_train(int argc, char **argv, struct tc_stop *stop)
{
  struct tc_err err = { 0 };
  struct tc_config *c = NULL;
  struct start s = { .stop = stop };
  int rc = tc_config_new(&c, argc, argv, &err);
  if (!rc) tc_setup_positions(c);
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
