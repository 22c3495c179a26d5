/* of_run.c - the programs of a run: a training step, an evaluation, initial weights, and the
 * weights in the working precision after a checkpoint was loaded. */
#include "src/program/program.h"

int tc_program_of_run(struct tc_program *programs[TC_PROGRAMS], int kind,
                      const struct tc_program_opts *o, const struct tc_mesh *m, int rank,
                      struct tc_err *err)
{
  const struct tc_program *with = kind == TC_TRAIN ? NULL : programs[TC_TRAIN];
  struct tc_program_opts mine = *o;
  mine.kind = kind;
  if (kind == TC_EVAL) mine.gpt.dropout = 0;
  return tc_program_new(&programs[kind], &mine, m, rank, with, NULL, err);
}
