/* setup_lora.c - the options of adapters, checked. Pure. */
#include "src/program/setup.h"

#include <math.h>

int tc_setup_lora(struct tc_lora *l, const struct tc_config *c, const struct tc_model *m, struct tc_err *err)
{
  const int used = c->train_precision == TC_BF16 ? TC_BF16 : TC_F32, stored = c->train_frozen_type;
  const double rank = (double)c->train_lora, by = c->train_lora_scale == TC_LORA_RS ? sqrt(rank) : rank;
  *l = (struct tc_lora){ .rank = c->train_lora, .rows = c->train_lora_rows, .dropout = (float)c->train_lora_dropout,
                         .saves_base = c->ckpt_base, .base_copy = stored == TC_F32,
                         .factor = c->train_lora_alpha == TC_AUTO ? 1 : (float)(c->train_lora_alpha / by) };
  if (!c->train_lora) {
    if (!*c->train_lora_rows && c->train_lora_alpha == TC_AUTO && !(c->train_lora_dropout > 0) && stored == TC_DTYPE_AUTO &&
        !c->ckpt_base) return 0;
    return tc_fail(err, TC_EUSER, "train.lora_rows, train.lora_alpha, train.lora_dropout, train.frozen_type and ckpt.base have no "
                   "effect without train.lora, the rank of adapters: train.lora = 16 would fit");
  }
  if (stored == TC_BF16 && used == TC_F32)
    return tc_fail(err, TC_EUSER, "train.frozen_type = bf16 stores weights in the type in which they are used, but "
                   "train.precision is fp32; train.precision = bf16 would fit, or train.frozen_type = fp32");
  return tc_lora_check(m, c->train_lora_rows, err);
}
