/* of_run.c - the programs of a run: a training step, an evaluation, initial weights, the weights in the working
 * precision after a checkpoint was loaded, losses of tokens during training; prompts and new tokens of sampling. */
#include "src/program/program.h"

struct tc_kinds tc_kinds_of(enum tc_use use)
{
  static const struct tc_kinds kinds[] = {
    [TC_TO_TRAIN] = { TC_TRAIN, TC_OF_TRAINING }, [TC_TO_EVALUATE] = { TC_EVAL, 1 },
    [TC_TO_SAMPLE] = { TC_DECODE, 2 } };
  return kinds[use];
}

struct tc_program_opts tc_program_opts_of(const struct tc_program_opts *o, int kind)
{
  struct tc_program_opts mine = *o;
  mine.kind = kind;
  mine.gpt.new_tokens = kind == TC_DECODE ? 1 : kind == TC_PREFILL ? o->prefill : 0;
  mine.gpt.most_new = TC_MAX(1, o->prefill);
  mine.gpt.documents |= mine.gpt.new_tokens > 0 || kind == TC_TASKS;
  mine.gpt.losses = kind == TC_TASKS || (kind == TC_EVAL && o->gpt.inference);
  if (kind != TC_TRAIN) mine.gpt.dropout = mine.gpt.z_loss = mine.gpt.lora.dropout = 0;
  return mine;
}

int tc_program_of_run(struct tc_program *programs[TC_PROGRAMS], int kind,
                      const struct tc_program_opts *o, const struct tc_mesh *m, int rank,
                      struct tc_err *err)
{
  const struct tc_program *with = NULL;
  for (int i = 0; i < kind && !with; i++) with = programs[i];
  return tc_program_of_stage(programs, kind, with, o, m, rank, err);
}

int tc_program_of_stage(struct tc_program *programs[TC_PROGRAMS], int kind, const struct tc_program *main,
                        const struct tc_program_opts *o, const struct tc_mesh *m, int rank, struct tc_err *err)
{
  const struct tc_program_opts mine = tc_program_opts_of(o, kind);
  if (kind == TC_TASKS && !o->tasks) return 0;
  return tc_program_new(&programs[kind], &mine, m, rank, main, NULL, err);
}
