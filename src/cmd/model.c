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

bool tc_cmd_option(int argc, char **argv, int *i, const char *name, const char **value)
{
  const size_t n = strlen(name);
  const char *arg = argv[*i];
  if (strncmp(arg, "--", 2) || strncmp(arg + 2, name, n) || (arg[2 + n] && arg[2 + n] != '=')) return false;
  *value = arg[2 + n] ? arg + 3 + n : *i + 1 < argc ? argv[++*i] : NULL;
  return true;
}

int tc_cmd_model_arg(struct tc_cmd_model *m, int argc, char **argv, int *i, struct tc_err *err)
{
  char *arg = argv[*i];
  if (!m->flag) {
    m->flag = tc_calloc((size_t)argc + 1, sizeof *m->flag);
    m->flag[m->n_flags++] = argv[0];
  }
  if (arg[0] != '-') {
    if (m->path) return tc_fail(err, TC_EUSER, "one checkpoint at a time: '%s' or '%s'?", m->path, arg);
    m->path = arg;
    return 0;
  }
  m->flag[m->n_flags++] = arg;
  if (!strchr(arg, '=') && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2)) m->flag[m->n_flags++] = argv[++*i];
  return 0;
}

int tc_cmd_model_open(struct tc_cmd_model *m, struct tc_err *err)
{
  char *none[] = { NULL };
  struct tc_ckpt *c;
  TC_TRY(tc_config_new(&m->cfg, m->n_flags, m->flag ? m->flag : none, NULL, NULL, err));
  TC_TRY(tc_ckpt_open(&c, m->path, err));
  const int rc = set_model(m, c, err);
  tc_ckpt_close(c);
  if (rc < 0 || !m->tokenizer_file) return rc;
  return tc_tokenizer_load_for(&m->tokenizer, m->tokenizer_file, m->cfg->model_vocab, err);
}

void tc_cmd_model_free(struct tc_cmd_model *m)
{
  if (m->tokenizer) tc_tokenizer_free(m->tokenizer);
  tc_config_free(m->cfg);
  free(m->flag);
}
