/* trained.c - a trained model, and its tokenizer. */
#include "src/run/trained.h"
#include "io/ckpt/ckpt.h"
#include "src/files/names.h"
#include "src/foreign/digest.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"

#include <stdlib.h>
#include <string.h>

/* The model's sizes are the checkpoint's; all else is the user's. Rotary positions allow another context. */
static int set_model(struct tc_trained *m, const struct tc_ckpt *c, struct tc_err *err)
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
  TC_FREE(is, was);
  return rc;
}

/* ---- the model of a run that names none ----------------------------------------------------------- */

/* The newest checkpoint of a folder that is not damaged, or the step's folder itself. *any: the folder has some, or can't
 * be listed, so that TC_EUSER says that one can't be read. */
static int open_newest(struct tc_ckpt **c, const char *dir, bool *any, struct tc_err *err)
{
  struct tc_err why;
  int64_t *steps = NULL;
  int rc = tc_ckpt_open(c, dir, err);
  const int n = rc < 0 ? tc_ckpt_list(dir, &steps, &why) : 0;
  *any = n != 0;
  if (n < 0) return *err = why, n;
  for (int i = 0; i < n && (rc == TC_EINCOMPLETE || rc == TC_ECHECKSUM); i++) {
    char *path = tc_ckpt_step_path(dir, steps[i]);
    rc = tc_ckpt_open(c, path, err);
    free(path);
  }
  free(steps);
  return rc;
}

/* Options of the model that are given beside a checkpoint have to be its own. */
static int check_given(const struct tc_config *c, const struct tc_model *m, const char *path, struct tc_err *err)
{
  char word[] = "model", *argv[] = { word };
  struct tc_config *plain;
  struct tc_config_change x;
  int rc = 0;
  TC_TRY(tc_config_new(&plain, 1, argv, err));
  tc_setup_fill_model(plain, m);
  for (int i = 0; !rc && (i = tc_config_next_change(plain, c, i, &x)) >= 0; i++) {
    const bool free = strcmp(x.name, "model.positions") == 0 || strcmp(x.name, "model.z_loss") == 0 ||
                      (strcmp(x.name, "model.context") == 0 && m->rope_theta > 0);
    if (strncmp(x.name, "model.", 6) == 0 && !free)
      rc = tc_fail(err, TC_EUSER, "%s = %s, but the model of %s, which is taken as the run names none, has %s: leave it "
                   "out, or give the whole model", x.name, x.is, path, x.was);
  }
  tc_config_free(plain);
  return rc;
}

static int take_model(struct tc_config *c, struct tc_ckpt *k, struct tc_err *err)
{
  struct tc_model m;
  TC_TRY(tc_model_parse(&m, tc_ckpt_meta(k)->model, tc_ckpt_path(k), err));
  struct tc_config *saved = tc_config_as_saved(tc_ckpt_meta(k)->config);
  m.positions = saved->model_positions;
  if (saved->n_stages && saved->model_context) m.context = saved->model_context;     /* not that of the step's stage */
  tc_config_free(saved);
  tc_setup_fill_model(c, &m);
  TC_TRY(check_given(c, &m, tc_ckpt_path(k), err));
  if (tc_launch_rank() == 0) tc_log("no model is named: it is that of %s", tc_ckpt_path(k));
  return 0;
}

/* ---- adapters ------------------------------------------------------------------------------------- */

/* Gives c the options of a checkpoint's adapters; path: as for tc_setup_take_lora. */
static int take_lora(struct tc_config *c, const struct tc_ckpt *k, const char *path, struct tc_err *err)
{
  struct tc_config *saved = tc_config_as_saved(tc_ckpt_meta(k)->config);
  int rc = saved->train_lora && tc_has_adapters(k) ? 0
    : tc_fail(err, TC_EUSER, "%s has no adapters: it is not of a run with train.lora", tc_ckpt_path(k));
  if (rc == 0) rc = tc_setup_take_lora(c, saved, path, err);
  tc_config_free(saved);
  return rc;
}

int tc_trained_adapter(struct tc_foreign **out, const char *path, struct tc_config *c, struct tc_err *err)
{
  struct tc_ckpt *k;
  *out = NULL;
  if (tc_adapter_is(path)) return tc_adapter_open(out, path, c, err);
  TC_TRY(tc_ckpt_open(&k, path, err));
  const int rc = take_lora(c, k, tc_ckpt_path(k), err);
  tc_ckpt_close(k);
  return rc;
}

/* ---- a run ---------------------------------------------------------------------------------------- */

static bool is_named(const struct tc_config *c)
{
  return *c->model_preset || *c->model_config
    || (c->model_layers && c->model_hidden && c->model_heads && c->model_context && c->model_vocab);
}

static int find_model(struct tc_config *c, struct tc_ckpt *own, struct tc_err *err)
{
  struct tc_ckpt *k = NULL;
  bool any;
  if (is_named(c)) return 0;
  if (own) return take_model(c, own, err);
  if (!*c->ckpt_from) return 0;                  /* the model's sizes are missing, as others say */
  TC_TRY(open_newest(&k, c->ckpt_from, &any, err));
  const int rc = take_model(c, k, err);
  tc_ckpt_close(k);
  return rc;
}

/* The adapters are this run's own, where it resumes, else those of ckpt.adapter. */
static int find_adapter(struct tc_config *c, struct tc_ckpt *own, struct tc_err *err)
{
  struct tc_foreign *f = NULL;
  if (!*c->ckpt_adapter) return 0;
  if (own && tc_has_adapters(own)) return take_lora(c, own, NULL, err);
  const int rc = tc_trained_adapter(&f, c->ckpt_adapter, c, err);
  tc_foreign_close(f);
  return rc;
}

int tc_trained_of_run(struct tc_config *c, struct tc_err *err)
{
  struct tc_ckpt *own = NULL;
  bool any = false;
  if (is_named(c) && !*c->ckpt_adapter) return 0;
  char *dir = *c->ckpt_dir ? tc_strdup(c->ckpt_dir) : tc_sprintf("%s/ckpt", c->run_out);
  int rc = c->ckpt_resume == TC_NO ? TC_ENOCKPT : open_newest(&own, dir, &any, err);
  free(dir);
  if (rc < 0) own = NULL;
  rc = rc == TC_EUSER && any ? rc : find_model(c, own, err);
  if (rc == 0) rc = find_adapter(c, own, err);
  tc_ckpt_close(own);
  return rc;
}

/* ---- a trained model ------------------------------------------------------------------------------ */

/* The tokenizer.json that the checkpoint took along, if the user gives no other. */
static int take_tokenizer(struct tc_trained *m, const struct tc_ckpt *c, struct tc_err *err)
{
  char *text;
  int64_t bytes;
  m->tokenizer_hash = tc_tokenizer_noted(tc_ckpt_meta(c)->data);
  m->is_bytes = tc_bytes_noted(tc_ckpt_meta(c)->data);
  if (m->tokenizer_file) return 0;
  int rc = tc_ckpt_attached(c, TC_TOKENIZER_FILE, &text, &bytes, err);
  if (rc < 0) return tc_fail(err, rc, "%s; --tokenizer FILE would take its place", err->text);
  char *name = tc_sprintf("%s/" TC_TOKENIZER_FILE, tc_ckpt_path(c));
  if (text) rc = tc_tokenizer_parse(&m->tokenizer, text, (size_t)bytes, name, err);
  TC_FREE(name, text);
  free(m->beside);
  return rc < 0 ? rc : tc_ckpt_attached(c, TC_BESIDE_FILE, &m->beside, &bytes, err);
}

/* A checkpoint that has adapters and the weights beside them is the model with both. */
static int find_own_adapter(struct tc_trained *m, const struct tc_ckpt *c, struct tc_err *err)
{
  const struct tc_base base = tc_base_noted(c);
  if (m->adapter || !tc_has_adapters(c)) return 0;
  if (base.elsewhere)
    return tc_fail(err, TC_EUSER, "%s has adapters alone: name the model that they belong to, which was %.300s, and this "
                   "one as --adapter", tc_ckpt_path(c), base.path);
  return take_lora(m->cfg, c, tc_ckpt_path(c), err);
}

static int open_ckpt(struct tc_trained *m, struct tc_err *err)
{
  struct tc_ckpt *c;
  if (m->rope) return tc_fail(err, TC_EUSER, "%s: --rope is only for Hugging Face's models with rotary positions", m->path);
  bool again = true;
  int rc = 0;
  for (int i = 0; i < TC_CKPT_STEPS && again; i++) {
    TC_TRY(tc_ckpt_open(&c, m->path, err));
    rc = i == 0 ? set_model(m, c, err) : 0;
    if (rc == 0 && i == 0) rc = find_own_adapter(m, c, err);
    if (rc == 0) rc = tc_ckpt_settle(c, m->path, take_tokenizer(m, c, err), &again, err);
    else again = false;
    tc_ckpt_close(c);
  }
  return rc;
}

static int load_given(struct tc_trained *m, struct tc_err *err)
{
  TC_TRY(tc_tokenizer_load(&m->tokenizer, m->tokenizer_file, err));
  const uint64_t is = tc_tokenizer_hash(m->tokenizer);
  if (!m->tokenizer_hash || m->tokenizer_hash == is) return 0;
  return tc_fail(err, TC_EUSER, "--tokenizer %s is tokenizer %016" PRIx64 ", but the model in %s is of tokenizer %016"
                 PRIx64 ": its tokens stand for different text", m->tokenizer_file, is, m->path, m->tokenizer_hash);
}

static int find_tokenizer(struct tc_trained *m, struct tc_err *err)
{
  if (m->tokenizer_file) return load_given(m, err);
  if (!m->foreign) return 0;
  char *path = tc_sprintf("%s/" TC_TOKENIZER_FILE, m->path);     /* of a file there is none */
  const int rc = tc_is_there(path) ? tc_tokenizer_load(&m->tokenizer, path, err) : 0;
  free(path);
  return rc;
}

int tc_trained_open(struct tc_trained *m, struct tc_err *err)
{
  char *none[] = { NULL };
  TC_TRY(tc_config_new(&m->cfg, m->n_flags, m->flag ? m->flag : none, err));
  if (m->cfg->train_lora || *m->cfg->ckpt_adapter)
    return tc_fail(err, TC_EUSER, "train.lora and ckpt.adapter are of a training; --adapter PATH gives the model adapters");
  if (tc_foreign_is(m->path)) TC_TRY(tc_foreign_open(&m->foreign, m->path, m->rope, m->cfg, err));
  else TC_TRY(open_ckpt(m, err));
  if (m->adapter) TC_TRY(tc_trained_adapter(&m->peft, m->adapter, m->cfg, err));
  TC_TRY(find_tokenizer(m, err));
  if (m->tokenizer && !m->tokenizer_hash) m->tokenizer_hash = tc_tokenizer_hash(m->tokenizer);
  return 0;
}

bool tc_trained_bytes(const struct tc_trained *m)
{
  return m->is_bytes || (!m->tokenizer_hash && m->cfg->model_vocab == 256);
}

void tc_trained_free(struct tc_trained *m)
{
  if (m->tokenizer) tc_tokenizer_free(m->tokenizer);
  tc_foreign_close(m->foreign);
  tc_foreign_close(m->peft);
  tc_config_free(m->cfg);
  TC_FREE(m->flag, m->beside);
}
