/* of_run.c - the programs of a run: a training step, an evaluation, initial weights, the weights in the working precision
 * after a checkpoint was loaded; prompts and new tokens of sampling. */
#include "src/program/program.h"

int tc_program_of_run(struct tc_program *programs[TC_PROGRAMS], int kind,
                      const struct tc_program_opts *o, const struct tc_mesh *m, int rank,
                      struct tc_err *err)
{
  const struct tc_program *with = NULL;
  struct tc_program_opts mine = *o;
  for (int i = 0; i < kind && !with; i++) with = programs[i];
  mine.kind = kind;
  mine.gpt.new_tokens = kind == TC_DECODE ? 1 : kind == TC_PREFILL ? o->prefill : 0;
  mine.gpt.documents |= mine.gpt.new_tokens > 0;
  if (kind == TC_EVAL) mine.gpt.dropout = 0;
  return tc_program_new(&programs[kind], &mine, m, rank, with, NULL, err);
}
