/* param_rows.c - rows for parameters (train.rows): "PATTERN KEY=VALUE ..., PATTERN ...".
 *
 * A row sets what its keys say of every parameter whose name its pattern matches; later rows count. What no row says stays as
 * the model has it: rate and deviation as they are, no weight decay on biases and norms. */
#include "src/model/optim.h"
#include "src/passes/passes.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORM "PATTERN lr=X decay=X init=X optimizer=WORD, with one key or more"

/* Sets one thing of a parameter; false: it does not have that. */
typedef bool set_fn(struct tc_param *p, double x);
static bool set_lr(struct tc_param *p, double x) { return p->lr = (float)x, true; }
static bool set_decay(struct tc_param *p, double x) { return p->decay = (float)x, true; }
static bool set_init(struct tc_param *p, double x) { return p->init_std > 0 ? p->init_std *= (float)x, true : false; }
static bool set_kind(struct tc_param *p, double x) { return p->kind = (uint8_t)x, true; }

static const struct { const char *key; set_fn *set; } keys[] = {
  { "lr", set_lr }, { "decay", set_decay }, { "init", set_init }, { "optimizer", set_kind } };
enum { KEYS = sizeof keys / sizeof *keys };

/* A number from 0 on. */
static int read_number(double *x, const char *word, const char *value, struct tc_err *err)
{
  char *end;
  *x = strtod(value, &end);
  if (end > value && !*end && *x >= 0 && *x <= 1e6) return 0;
  return tc_fail(err, TC_EUSER, "train.rows: \"%.60s\": the value has to be a number from 0 to 1e6", word);
}

static int read_optimizer(double *x, const char *word, const char *value, double momentum, struct tc_err *err)
{
  int o;
  if (!tc_choice_parse("train.optimizer", value, &o))
    return tc_fail(err, TC_EUSER, "train.rows: \"%.60s\": the value has to be one of those of train.optimizer", word);
  *x = tc_update_of((enum tc_optimizer)o, momentum);
  return 0;
}

/* Applies one "KEY=VALUE" to what the pattern matches. */
static int apply_word(struct tc_graph *g, const char *pattern, const char *word, double momentum, struct tc_err *err)
{
  const char *eq = strchr(word, '=');
  int key = 0, hits = 0, done = 0;
  double x = 0;
  while (eq && key < KEYS && (strlen(keys[key].key) != (size_t)(eq - word) || memcmp(keys[key].key, word, (size_t)(eq - word)))) key++;
  if (!eq || key == KEYS) return tc_fail(err, TC_EUSER, "train.rows: \"%.60s\" is not a key of a row: " FORM, word);
  if (keys[key].set == set_kind) TC_TRY(read_optimizer(&x, word, eq + 1, momentum, err));
  else TC_TRY(read_number(&x, word, eq + 1, err));
  for (int32_t i = 0; i < g->n_params; i++) {
    if (fnmatch(pattern, g->param[i].name, 0)) continue;
    hits++;
    done += keys[key].set(&g->param[i], x);
  }
  if (!hits)
    return tc_fail(err, TC_EUSER, "train.rows: %.100s matches no parameter of this model; tercio graph --after build lists them",
                   pattern);
  if (!done)
    return tc_fail(err, TC_EUSER, "train.rows: %.100s %.60s has no effect: these begin with constants, not with random numbers",
                   pattern, word);
  return 0;
}

static int apply_row(struct tc_graph *g, char *row, double momentum, struct tc_err *err)
{
  char *rest, *pattern = strtok_r(row, " ", &rest), *word = pattern ? strtok_r(NULL, " ", &rest) : NULL;
  if (!word) return tc_fail(err, TC_EUSER, "train.rows: \"%.100s\" is not a row: " FORM, pattern ? pattern : "");
  for (; word; word = strtok_r(NULL, " ", &rest)) TC_TRY(apply_word(g, pattern, word, momentum, err));
  return 0;
}

int tc_param_rows(struct tc_graph *g, const char *rows, double momentum, struct tc_err *err)
{
  char *text = tc_strdup(rows), *rest;
  int rc = 0;
  for (char *row = strtok_r(text, ",", &rest); row && !rc; row = strtok_r(NULL, ",", &rest))
    rc = apply_row(g, row, momentum, err);
  free(text);
  return rc;
}
