/* setup_lora.c - the options of adapters: checked, and taken from adapters that are there. Pure. */
#include "src/program/setup.h"

#include <math.h>
#include <string.h>

/* What alpha is divided by. */
static double divisor_of(const struct tc_config *c)
{
  const double rank = (double)c->train_lora;
  return c->train_lora_scale == TC_LORA_RS ? sqrt(rank) : rank;
}

double tc_setup_lora_alpha(const struct tc_config *c)
{
  return c->train_lora_alpha != TC_AUTO ? c->train_lora_alpha : divisor_of(c);
}

/* The options that say what adapters compute, which come with them. */
static bool is_of_adapters(const char *option)
{ return strncmp(option, "train.lora", strlen("train.lora")) == 0 && strcmp(option, "train.lora_dropout"); }

/* The first option of these that is given though there are no adapters; NULL: none. */
static const char *unused(const struct tc_config *c)
{
  return *c->train_lora_rows ? "train.lora_rows" : c->train_lora_alpha != TC_AUTO ? "train.lora_alpha"
    : c->train_lora_scale != TC_LORA_SCALE_AUTO ? "train.lora_scale" : c->train_lora_dropout != TC_AUTO ? "train.lora_dropout"
    : c->train_frozen_type != TC_DTYPE_AUTO ? "train.frozen_type" : c->ckpt_base ? "ckpt.base" : NULL;
}

int tc_setup_lora(struct tc_lora *l, const struct tc_config *c, const struct tc_model *m, struct tc_err *err)
{
  const int used = c->train_precision == TC_BF16 ? TC_BF16 : TC_F32, stored = c->train_frozen_type;
  *l = (struct tc_lora){ .rank = c->train_lora, .rows = c->train_lora_rows, .dropout = (float)TC_MAX(c->train_lora_dropout, 0),
                         .saves_base = c->ckpt_base, .base_copy = stored == TC_F32 };
  if (!c->train_lora && unused(c))
    return tc_fail(err, TC_EUSER, "%s has no effect without train.lora, the rank of adapters: train.lora = 16 would fit a "
                   "training, --adapter PATH an evaluation", unused(c));
  if (!c->train_lora) return 0;
  l->factor = (float)(tc_setup_lora_alpha(c) / divisor_of(c));
  if (stored == TC_BF16 && used == TC_F32)
    return tc_fail(err, TC_EUSER, "train.frozen_type = bf16 stores weights in the type in which they are used, but "
                   "train.precision is fp32; train.precision = bf16 would fit, or train.frozen_type = fp32");
  return tc_lora_check(m, c->train_lora_rows, err);
}

/* The options as they are used: equal ones may be written in several ways. rank: of the adapters. */
static struct tc_config as_used(const struct tc_config *c, int64_t rank)
{
  struct tc_config used = *c;
  used.train_lora = rank;
  used.train_lora_alpha = tc_setup_lora_alpha(&used);
  used.train_lora_scale = c->train_lora_scale == TC_LORA_RS ? TC_LORA_RS : TC_LORA_PLAIN;
  if (!strcmp(c->train_lora_rows, "*")) used.train_lora_rows++;          /* all: "" */
  return used;
}

int tc_setup_take_lora(struct tc_config *c, const struct tc_config *has, const char *path, struct tc_err *err)
{
  char word[] = "defaults", *argv[] = { word };
  struct tc_config *plain;
  struct tc_config_change x, given, other;
  int rc = 0;
  TC_TRY(tc_config_new(&plain, 1, argv, err));
  const struct tc_config asked = as_used(c, c->train_lora ? c->train_lora : has->train_lora), is = as_used(has, has->train_lora);
  for (int i = 0; !rc && (i = tc_config_next_change(c, has, i, &x)) >= 0; i++) {
    if (!is_of_adapters(x.name)) continue;
    const bool is_given = tc_config_next_change(plain, c, i, &given) == i;
    if (is_given && path && tc_config_next_change(&asked, &is, i, &other) == i)
      rc = tc_fail(err, TC_EUSER, "the adapters of %s are of %s = %s, and the options say %s: leave it out", path, x.name,
                   *x.is ? x.is : "all", x.was);
    else if (!is_given) tc_config_copy(c, has, i);
  }
  tc_config_free(plain);
  if (c->train_lora_dropout == TC_AUTO) c->train_lora_dropout = has->train_lora_dropout;
  c->train_lora_rows = tc_pool_strdup(c->pool, c->train_lora_rows);      /* may be that of *has */
  return rc;
}
