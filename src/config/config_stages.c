/* config_stages.c - the sections [stage N] of a run file, and flags --stageN.KEY: what a run changes from a step on.
 *
 * A stage has a configuration of its own, of which the options of stage.def count that were given. Stages are in their order,
 * from [stage 2] on; a key that is not given is as in the stage before. */
#include "src/config/impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name; enum tc_resume resume; } keys[TC_STAGE_KEYS] = {
#define STAGE_KEY(section, key, resume) { #section "." #key, TC_RESUME_##resume },
#include "src/config/stage.def"
};

/* Key k of a stage: 0 is "from". */
static int find_key(const char *key)
{
  if (!strcmp(key, "from")) return 0;
  for (int i = 0; i < TC_STAGE_KEYS; i++)
    if (!strcmp(key, keys[i].name)) return i + 1;
  return -1;
}

int tc_stage_number(const char *name, char after)
{
  const char *digits = name + 5;
  char *end;
  if (strncasecmp(name, "stage", 5) != 0) return -1;
  digits += strspn(digits, " \t");
  const long n = isdigit((unsigned char)*digits) ? strtol(digits, &end, 10) : 0;
  return *name == 's' && n > 0 && n < 1000000 && *end == after ? (int)n : 0;
}

/* Stages up to this number are there, as far as they are missing without a key. */
static struct tc_config_stage *stage_at(struct tc_config *c, int number)
{
  if (!c->stage) c->stage = tc_pool_alloc(c->pool, TC_MOST_STAGES * sizeof *c->stage);
  for (; c->n_stages < number - 1; c->n_stages++) {
    struct tc_config_stage *s = &c->stage[c->n_stages];
    *s = (struct tc_config_stage){ .values = tc_pool_alloc(c->pool, sizeof *s->values) };
    *s->values = *c;
  }
  return &c->stage[number - 2];
}

/* "1000", "2e9 tokens". */
static bool parse_from(const char *value, struct tc_config_stage *s)
{
  char *end;
  if (!isdigit((unsigned char)*value) && *value != '.') return false;
  const double x = strtod(value, &end);
  const bool tokens = !strcmp(end + strspn(end, " "), "tokens");
  if ((!tokens && *end) || !(x >= 1 && x <= 1e18)) return false;
  if (!tokens && (x != (double)(int64_t)x || x > 1e9)) return false;
  s->from = (int64_t)x;
  s->tokens = tokens;
  return true;
}

const char *tc_stage_changes(const struct tc_config *c, int number, char *text, size_t size)
{
  *text = '\0';
  for (int i = 0; i < TC_STAGE_KEYS; i++)
    if (!number || tc_stage_has(c, number, keys[i].name)) tc_text_add(text, size, "%s%s", *text ? ", " : "", keys[i].name);
  return text;
}

static int unknown(int number, const char *key, const char *where, struct tc_err *err)
{
  char list[300];
  tc_stage_changes(NULL, 0, list, sizeof list);
  return tc_fail(err, TC_EUSER, "%sa stage can't change %.60s ([stage %d]); it takes from, %s", where, key, number, list);
}

void tc_stage_name(char *text, size_t size, int number, const char *where)
{
  if (!strcmp(where, "--")) snprintf(text, size, "--stage%d.", number);
  else snprintf(text, size, "%.400s[stage %d] ", where, number);
}

int tc_stage_set(struct tc_config *c, int number, const char *key, const char *value, bool append, const char *where,
                 struct tc_err *err)
{
  const int k = find_key(key);
  char named[500];
  tc_stage_name(named, sizeof named, number, where);
  if (!strcmp(where, "--")) where = "";
  if (number < 2 || number > TC_MOST_STAGES)
    return tc_fail(err, TC_EUSER, "%sthe stages after the first are [stage 2] to [stage %d]; what stands in other "
                   "sections is the first", where, TC_MOST_STAGES);
  if (k < 0) return unknown(number, key, where, err);
  struct tc_config_stage *s = stage_at(c, number);
  s->given[k] = true;
  if (k > 0) {
    const struct tc_opt *o = tc_opt_find(key);
    return append ? tc_opt_append(s->values, o, value, named, err) : tc_opt_set(s->values, o, value, named, err);
  }
  if (parse_from(value, s)) return 0;
  return tc_fail(err, TC_EUSER, "%sfrom is \"%.60s\"; it has to be the stage's first step, such as 1000, or the "
                 "tokens after which it begins, such as 2e9 tokens", named, value);
}

bool tc_stage_has(const struct tc_config *c, int number, const char *key)
{
  return number >= 2 && number - 2 < c->n_stages && find_key(key) >= 0 && c->stage[number - 2].given[find_key(key)];
}

int tc_stages_check(const struct tc_config *c, struct tc_err *err)
{
  const bool saves = c->ckpt_every == TC_STAGE;
  if (!c->n_stages && (saves || c->train_eval_every == TC_STAGE))
    return tc_fail(err, TC_EUSER, "%s = stage is after each stage, but the run has only one: a number of steps, epoch, or a section "
                   "[stage 2] would fit", saves ? "ckpt.every" : "train.eval_every");
  for (int i = 0; i < c->n_stages; i++) {
    const struct tc_config_stage *s = &c->stage[i];
    bool any = false;
    for (int k = 1; k <= TC_STAGE_KEYS; k++) any |= s->given[k];
    if (!s->given[0])
      return tc_fail(err, TC_EUSER, "stage %d has no from: its first step, such as from = 1000, or from = 2e9 tokens%s", i + 2,
                     any ? "" : "; stages have numbers without a gap");
  }
  return 0;
}

void tc_config_at_stage(struct tc_config *out, const struct tc_config *c, int k)
{
  *out = *c;
  for (int i = 0; i < k; i++)
    for (int x = 1; x <= TC_STAGE_KEYS; x++)
      if (c->stage[i].given[x]) tc_config_copy(out, c->stage[i].values, (int)(tc_opt_find(keys[x - 1].name) - tc_opts));
}

/* ---- as text --------------------------------------------------------------------------- */

/* The value of a key; "": not given. Owned by the caller. */
static char *key_text(const struct tc_config *c, int stage, int k)
{
  const struct tc_config_stage *s = stage < c->n_stages ? &c->stage[stage] : NULL;
  if (!s || !s->given[k]) return tc_strdup("");
  if (k == 0) return tc_sprintf(s->tokens ? "%lld tokens" : "%lld", (long long)s->from);
  return tc_opt_text(s->values, tc_opt_find(keys[k - 1].name));
}

void tc_stages_print(FILE *f, const struct tc_config *c)
{
  for (int i = 0; i < c->n_stages; i++) {
    fprintf(f, "\n[stage %d]\n", i + 2);
    for (int k = 0; k <= TC_STAGE_KEYS; k++) {
      char *text = key_text(c, i, k);
      if (c->stage[i].given[k]) fprintf(f, "%s = %s\n", k ? keys[k - 1].name : "from", text);
      free(text);
    }
  }
}

/* What it changes that a stage begins elsewhere: what it gives. */
static enum tc_resume begin_changes(const struct tc_config *c, int stage)
{
  for (int k = 1; k <= TC_STAGE_KEYS && stage < c->n_stages; k++)
    if (c->stage[stage].given[k] && keys[k - 1].resume != TC_RESUME_RATE) return TC_RESUME_SAMPLES;
  return TC_RESUME_RATE;
}

int tc_stages_next_change(const struct tc_config *was, const struct tc_config *is, int from, struct tc_config_change *out)
{
  const int each = TC_STAGE_KEYS + 1, n = TC_MAX(was->n_stages, is->n_stages) * each;
  for (int i = from; i < n; i++) {
    const int k = i % each;
    char *a = key_text(was, i / each, k), *b = key_text(is, i / each, k);
    const bool same = strcmp(a, b) == 0;
    *out = (struct tc_config_change){ .stage = i / each + 2 };
    out->resume = k ? keys[k - 1].resume : TC_MIN(begin_changes(was, i / each), begin_changes(is, i / each));
    snprintf(out->stage_name, sizeof out->stage_name, "stage%d.%s", out->stage, k ? keys[k - 1].name : "from");
    out->name = out->stage_name;
    snprintf(out->was, sizeof out->was, "%s", a);
    snprintf(out->is, sizeof out->is, "%s", b);
    TC_FREE(a, b);
    if (!same) return i;
  }
  return -1;
}
