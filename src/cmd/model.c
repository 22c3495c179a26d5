/* model.c - the model of a checkpoint, and its tokenizer. */
#include "src/cmd/model.h"
#include "io/ckpt/ckpt.h"
#include "src/program/setup.h"

#include <stdlib.h>
#include <string.h>

/* The model's sizes are the checkpoint's; all else is the user's. Rotary positions allow another context. */
static int set_model(struct tc_cmd_model *m, const struct tc_ckpt *c, struct tc_err *err)
{
  struct tc_model model, own;
  TC_TRY(tc_model_parse(&model, tc_ckpt_meta(c)->model, tc_ckpt_path(c), err));
  m->step = tc_ckpt_meta(c)->step;
  if (m->cfg->model_context && model.rope_theta > 0) model.context = m->cfg->model_context;
  tc_setup_fill_model(m->cfg, &model);
  TC_TRY(tc_setup_model(m->cfg, &own, err));
  char *is = tc_model_text(&own), *was = tc_model_text(&model);
  const int rc = strcmp(is, was) == 0 ? 0
    : tc_fail(err, TC_EUSER, "%s is of another model than the options: %s; the options give %s", m->path, was, is);
  free(is);
  free(was);
  return rc;
}

static int load_tokenizer(struct tc_cmd_model *m, struct tc_err *err)
{
  const int64_t vocab = m->cfg->model_vocab;
  if (!m->tokenizer_file) return 0;
  TC_TRY(tc_tokenizer_load(&m->tokenizer, m->tokenizer_file, err));
  if (tc_tokenizer_vocab(m->tokenizer) <= vocab) return 0;
  return tc_fail(err, TC_EUSER, "%s has %lld tokens, more than the model's vocabulary of %lld: it is another model's",
                 m->tokenizer_file, (long long)tc_tokenizer_vocab(m->tokenizer), (long long)vocab);
}

int tc_cmd_model_open(struct tc_cmd_model *m, int n, char **flag, struct tc_err *err)
{
  struct tc_ckpt *c;
  TC_TRY(tc_config_new(&m->cfg, n, flag, NULL, NULL, err));
  TC_TRY(tc_ckpt_open(&c, m->path, err));
  const int rc = set_model(m, c, err);
  tc_ckpt_close(c);
  return rc < 0 ? rc : load_tokenizer(m, err);
}

void tc_cmd_model_free(struct tc_cmd_model *m)
{
  if (m->tokenizer) tc_tokenizer_free(m->tokenizer);
  tc_config_free(m->cfg);
}
