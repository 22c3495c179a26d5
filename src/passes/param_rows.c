/* param_rows.c - rows for parameters (train.rows): "PATTERN KEY=VALUE ..., PATTERN ...".
 *
 * A row sets what its keys say of every parameter whose name its pattern matches; later rows count, but of init all do. What no
 * row says stays as the model has it: rate and deviation as they are, no weight decay on biases and norms. */
#include "src/model/optim.h"
#include "src/passes/passes.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORM "PATTERN lr=X decay=X init=X optimizer=WORD frozen=yes, with one key or more"

/* Reads a value; false: it is none. */
typedef bool read_fn(double *x, const char *value, double momentum);
static bool read_number(double *x, const char *value, double momentum)
{
  char *end;
  (void)momentum;
  *x = strtod(value, &end);
  return end > value && !*end && *x >= 0 && *x <= 1e6;
}
static bool read_optimizer(double *x, const char *value, double momentum)
{
  int o;
  if (!tc_choice_parse("train.optimizer", value, &o)) return false;
  *x = tc_update_of((enum tc_optimizer)o, momentum);
  return true;
}
static bool read_switch(double *x, const char *value, double momentum)
{
  (void)momentum;
  *x = strcmp(value, "yes") == 0;
  return *x > 0 || strcmp(value, "no") == 0;
}

/* Sets one thing of a parameter; false: it does not have that. */
typedef bool set_fn(struct tc_param *p, double x);
static bool set_lr(struct tc_param *p, double x) { return p->lr = (float)x, true; }
static bool set_decay(struct tc_param *p, double x) { return p->decay = (float)x, true; }
static bool set_init(struct tc_param *p, double x) { return p->init_std > 0 ? p->init_std *= (float)x, true : false; }
static bool set_kind(struct tc_param *p, double x)
{
  const bool fits = !tc_update_row[(int)x].matrices || p->outputs;
  if (fits) p->kind = (uint8_t)x;
  return fits;
}
static bool set_frozen(struct tc_param *p, double x) { return p->frozen = x > 0, true; }

#define NUMBER read_number, "a number from 0 to 1e6"
/* trains: of parameters that train alone. */
static const struct { const char *key; read_fn *read; const char *values; set_fn *set; bool trains; const char *why_not; }
  keys[] = {
  { "lr", NUMBER, set_lr, true, NULL }, { "decay", NUMBER, set_decay, true, NULL },
  { "init", NUMBER, set_init, false, "these begin with constants, not with random numbers" },
  { "optimizer", read_optimizer, "one of those of train.optimizer", set_kind, true,
    "it is of whole matrices of layers, and these are none" },
  { "frozen", read_switch, "yes or no", set_frozen, false, NULL } };
enum { KEYS = sizeof keys / sizeof *keys };

/* Applies one "KEY=VALUE" to what the pattern matches. */
static int apply_word(struct tc_graph *g, const char *pattern, const char *word, double momentum, struct tc_err *err)
{
  const char *eq = strchr(word, '=');
  const size_t n = eq ? (size_t)(eq - word) : 0;
  int key = 0, hits = 0, beside = 0, done = 0;
  double x = 0;
  while (eq && key < KEYS && (strlen(keys[key].key) != n || memcmp(keys[key].key, word, n))) key++;
  if (!eq || key == KEYS) return tc_fail(err, TC_EUSER, "train.rows: \"%.60s\" is not a key of a row: " FORM, word);
  if (!keys[key].read(&x, eq + 1, momentum))
    return tc_fail(err, TC_EUSER, "train.rows: \"%.60s\": the value has to be %s", word, keys[key].values);
  for (int32_t i = 0; i < g->n_params; i++) {
    if (fnmatch(pattern, g->param[i].name, 0)) continue;
    hits++;
    if (g->param[i].base && keys[key].trains) beside++;
    else done += keys[key].set(&g->param[i], x);
  }
  if (!hits)
    return tc_fail(err, TC_EUSER, "train.rows: %.100s matches no parameter of this model; tercio graph --after build lists them",
                   pattern);
  if (beside == hits)
    return tc_fail(err, TC_EUSER, "train.rows: %.100s %.60s has no effect: with train.lora adapters alone train; *.lora_b would match "
                   "some", pattern, word);
  if (!done)
    return tc_fail(err, TC_EUSER, "train.rows: %.100s %.60s has no effect: %s", pattern, word, keys[key].why_not);
  return 0;
}

static int apply_row(struct tc_graph *g, char *row, double momentum, struct tc_err *err)
{
  char *rest, *pattern = strtok_r(row, " ", &rest), *word = pattern ? strtok_r(NULL, " ", &rest) : NULL;
  if (!word) return tc_fail(err, TC_EUSER, "train.rows: \"%.100s\" is not a row: " FORM, pattern ? pattern : "");
  for (; word; word = strtok_r(NULL, " ", &rest)) TC_TRY(apply_word(g, pattern, word, momentum, err));
  return 0;
}

/* Something trains, and what is rated by its width has an update for which that is right. */
static int check(const struct tc_graph *g, struct tc_err *err)
{
  int32_t trained = 0;
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_param *p = &g->param[i];
    if (p->base && !p->frozen)
      return tc_fail(err, TC_EUSER, "train.rows: with train.lora adapters alone train, but a row of frozen=no is for %s: "
                     "train.lora = 0 would fit", p->name);
    if (p->frozen) continue;
    trained++;
    if (p->width != 1 && !tc_update_row[p->kind].mup)
      return tc_fail(err, TC_EUSER, "model.mup is for updates whose size does not depend on the gradient's, but %s is updated by %s: "
                     "train.optimizer = adamw would fit, or lion, or model.mup = no", p->name,
                     tc_word_train_optimizer(tc_update_row[p->kind].optimizer));
  }
  if (trained) return 0;
  return tc_fail(err, TC_EUSER, "train.rows freezes all parameters, so that nothing is trained; a row of frozen=no for some would fit");
}

int tc_param_rows(struct tc_graph *g, const char *rows, double momentum, struct tc_err *err)
{
  char *text = tc_strdup(rows), *rest;
  int rc = 0;
  for (char *row = strtok_r(text, ",", &rest); row && !rc; row = strtok_r(NULL, ",", &rest))
    rc = apply_row(g, row, momentum, err);
  free(text);
  return rc ? rc : check(g, err);
}
