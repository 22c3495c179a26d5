/* model.c - a trained model, and its tokenizer. */
#include "src/cmd/model.h"
#include "io/ckpt/ckpt.h"
#include "src/program/setup.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* The tokenizer.json that the checkpoint took along, if the user gives no other. */
static int take_tokenizer(struct tc_cmd_model *m, const struct tc_ckpt *c, struct tc_err *err)
{
  char *text;
  int64_t bytes;
  m->tokenizer_hash = tc_tokenizer_noted(tc_ckpt_meta(c)->data);
  m->is_bytes = tc_bytes_noted(tc_ckpt_meta(c)->data);
  if (m->tokenizer_file) return 0;
  int rc = tc_ckpt_attached(c, TC_TOKENIZER_FILE, &text, &bytes, err);
  if (rc < 0) {
    const struct tc_err why = *err;
    return tc_fail(err, rc, "%s; --tokenizer FILE would take its place", why.text);
  }
  char *name = tc_sprintf("%s/" TC_TOKENIZER_FILE, tc_ckpt_path(c));
  if (text) rc = tc_tokenizer_parse_for(&m->tokenizer, text, (size_t)bytes, name, m->cfg->model_vocab, err);
  free(name);
  free(text);
  return rc;
}

static int open_ckpt(struct tc_cmd_model *m, struct tc_err *err)
{
  struct tc_ckpt *c;
  if (m->rope) return tc_fail(err, TC_EUSER, "%s: --rope is only for Hugging Face's Llama and Qwen3", m->path);
  TC_TRY(tc_ckpt_open(&c, m->path, err));
  int rc = set_model(m, c, err);
  if (rc == 0) rc = take_tokenizer(m, c, err);
  tc_ckpt_close(c);
  return rc;
}

static int load_tokenizer(struct tc_cmd_model *m, const char *path, struct tc_err *err)
{
  return tc_tokenizer_load_for(&m->tokenizer, path, m->cfg->model_vocab, err);
}

static int load_given(struct tc_cmd_model *m, struct tc_err *err)
{
  TC_TRY(load_tokenizer(m, m->tokenizer_file, err));
  const uint64_t is = tc_tokenizer_hash(m->tokenizer);
  if (!m->tokenizer_hash || m->tokenizer_hash == is) return 0;
  return tc_fail(err, TC_EUSER, "--tokenizer %s is tokenizer %016" PRIx64 ", but the model in %s is of tokenizer %016"
                 PRIx64 ": its tokens stand for different text", m->tokenizer_file, is, m->path, m->tokenizer_hash);
}

static int find_tokenizer(struct tc_cmd_model *m, struct tc_err *err)
{
  if (m->tokenizer_file) return load_given(m, err);
  if (!m->foreign) return 0;
  char *path = tc_sprintf("%s/" TC_TOKENIZER_FILE, m->path);     /* of a file there is none */
  const int rc = access(path, F_OK) == 0 ? load_tokenizer(m, path, err) : 0;
  free(path);
  return rc;
}

int tc_cmd_model_arg(struct tc_cmd_model *m, int argc, char **argv, int *i, struct tc_err *err)
{
  char *arg = argv[*i];
  if (!m->flag) {
    m->flag = tc_calloc((size_t)argc + 1, sizeof *m->flag);
    m->flag[m->n_flags++] = argv[0];
  }
  if (arg[0] != '-') {
    if (m->path) return tc_fail(err, TC_EUSER, "one model at a time: '%s' or '%s'?", m->path, arg);
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
  TC_TRY(tc_config_new(&m->cfg, m->n_flags, m->flag ? m->flag : none, NULL, NULL, err));
  if (tc_foreign_is(m->path)) TC_TRY(tc_foreign_open(&m->foreign, m->path, m->rope, m->cfg, err));
  else TC_TRY(open_ckpt(m, err));
  TC_TRY(find_tokenizer(m, err));
  if (m->tokenizer && !m->tokenizer_hash) m->tokenizer_hash = tc_tokenizer_hash(m->tokenizer);
  return 0;
}

bool tc_cmd_model_bytes(const struct tc_cmd_model *m)
{
  return m->is_bytes || (!m->tokenizer_hash && m->cfg->model_vocab == 256);
}

void tc_cmd_model_free(struct tc_cmd_model *m)
{
  if (m->tokenizer) tc_tokenizer_free(m->tokenizer);
  tc_foreign_close(m->foreign);
  tc_config_free(m->cfg);
  free(m->flag);
}
