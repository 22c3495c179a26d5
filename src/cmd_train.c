/* cmd_train.c - `tercio train`: starts a training run on each rank. */
#include "io/h5.h"
#include "src/launch.h"
#include "src/train.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct start {                   /* read-only for ranks */
  struct tc_launch launch;
  int stop_fd;
};

/* USR2 asks to save and stop. It is blocked here, before any thread starts, and read from a
 * descriptor between steps. */
static int stop_descriptor(void)
{
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int run_rank(int rank, void *start, struct tc_err *err)
{
  const struct start *s = start;
  const struct tc_launch *l = &s->launch;
  struct tc_train t = { .cfg = l->cfg, .ranks = l->ranks, .who = l->who, .rank = rank,
                        .hub = l->hub, .mpi = l->mpi, .stop_fd = s->stop_fd,
                        .threads = tc_launch_threads(l->cfg, l->ranks, rank) };
  int rc = tc_train(&t, err);
  /* All ranks leave with one status. The launcher ends the others by TERM as soon as the first
   * has left (srun -K1), and 143 would hide it; nobody leaves before all have come to
   * tc_mpi_finish. */
  if (l->mpi && rc != TC_EPEER) signal(SIGTERM, SIG_IGN);
  return rc;
}

int tc_cmd_train(int argc, char **argv)
{
  const char *const extra[] = { NULL };
  struct tc_err err = { 0 };
  struct tc_config *c = NULL;
  struct start s = { .stop_fd = -1 };
  int rc = tc_config_new(&c, argc, argv, extra, NULL, &err);
  if (!rc) tc_h5_start();
  if (!rc) s.stop_fd = stop_descriptor();
  if (!rc) rc = tc_launch_find(&s.launch, c, &err);
  int status = rc < 0 ? tc_launch_say(s.launch.ranks, rc, &err)
                      : tc_launch_run(&s.launch, run_rank, &s);
  if (s.stop_fd >= 0) close(s.stop_fd);
  tc_launch_free(&s.launch);
  tc_config_free(c);
  return status;
}
