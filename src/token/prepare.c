/* prepare.c - the parts of tokenizer.json that say how text is prepared: normalizer, pre-tokenizer and
 * post-processor. Each has a type; those that aren't supported are refused by it. */
#include "src/token/impl.h"

#include <string.h>

/* The "type" of a part; "" if it has none. */
static const char *type_of(const json_t *j)
{
  const char *type = json_string_value(json_object_get(j, "type"));
  return type ? type : "";
}

static int refuse(const struct tc_tokenizer *t, const char *part, const char *type, const char *what,
                  struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "tokenizer '%s': its %s '%.60s' is not supported: %s", t->name, part,
                 *type ? type : "(without a type)", what);
}

/* A flag of a part; `otherwise` if it isn't there. Fails if it is neither true nor false. */
static int get_flag(const struct tc_tokenizer *t, const json_t *j, const char *key, bool otherwise, bool *out,
                    struct tc_err *err)
{
  const json_t *x = json_object_get(j, key);
  *out = x ? json_is_true(x) : otherwise;
  if (!x || json_is_boolean(x)) return TC_OK;
  return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: %s of its %.60s is neither true nor false", t->name,
                 key, type_of(j));
}

/* Calls load for each part of a Sequence's list. */
static int each(struct tc_tokenizer *t, const json_t *j, const char *key,
                int (*load)(struct tc_tokenizer *, const json_t *, struct tc_err *), struct tc_err *err)
{
  const json_t *list = json_object_get(j, key);
  if (!json_is_array(list))
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: a Sequence has no list '%s'", t->name, key);
  for (size_t i = 0; i < json_array_size(list); i++) TC_TRY(load(t, json_array_get(list, i), err));
  return TC_OK;
}

/* ---- normalizer ------------------------------------------------------------------------ */

int tc_load_normalizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  if (!j || json_is_null(j)) return TC_OK;
  const char *type = type_of(j);
  if (strcmp(type, "Sequence") == 0) return each(t, j, "normalizers", tc_load_normalizer, err);
  if (strcmp(type, "NFC") != 0) return refuse(t, "normalizer", type, "NFC and none are", err);
  t->nfc = true;
  return TC_OK;
}

/* ---- pre-tokenizer --------------------------------------------------------------------- */

/* A step: a pattern, or without one the space in front. */
static int add_step(struct tc_tokenizer *t, const char *pattern, bool literal, struct tc_err *err)
{
  enum tc_cuts cuts = TC_CUTS_NOT;
  if (t->n_steps == TC_STEPS)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its pre-tokenizer has more than %d steps", t->name, TC_STEPS);
  struct tc_step *s = &t->step[t->n_steps++];
  *s = (struct tc_step){ .literal = literal };
  if (pattern) {
    s->pattern = tc_token_keep(t, pattern, strlen(pattern));
    size_t jit = 0;
    TC_TRY(tc_pattern_compile(&s->code, pattern, literal, &cuts, t->name, err));
    if (pcre2_pattern_info(s->code, PCRE2_INFO_JITSIZE, &jit) != 0 || !jit) t->jit = false;
  }
  if (cuts == TC_CUTS) t->cuts = true;
  if (cuts == TC_CUTS_UNKNOWN) t->whole = true;
  return TC_OK;
}

static int load_split(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const json_t *pattern = json_object_get(j, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *text = json_string_value(json_object_get(pattern, "String"));
  const char *behavior = json_string_value(json_object_get(j, "behavior"));
  bool invert;
  TC_TRY(get_flag(t, j, "invert", false, &invert, err));
  if (invert) return refuse(t, "pre-tokenizer", "Split with invert = true", "invert = false is", err);
  if (!behavior || strcmp(behavior, "Isolated") != 0)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its pre-tokenizer Split has the behavior '%.40s'; only Isolated is "
                   "supported", t->name, behavior ? behavior : "");
  if (!regex && (!text || !*text))
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: its pre-tokenizer Split has no pattern", t->name);
  return add_step(t, regex ? regex : text, !regex, err);
}

/* What comes before the last step, which is ByteLevel. */
static int load_step(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const char *type = type_of(j);
  bool flag;
  if (strcmp(type, "Split") == 0) return load_split(t, j, err);
  if (strcmp(type, "Digits") == 0) {
    TC_TRY(get_flag(t, j, "individual_digits", false, &flag, err));
    return add_step(t, flag ? "\\p{N}" : "\\p{N}+", false, err);
  }
  if (strcmp(type, "Sequence") == 0) return each(t, j, "pretokenizers", load_step, err);
  if (strcmp(type, "ByteLevel") == 0)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its pre-tokenizer has ByteLevel before its last step, which is "
                   "not supported", t->name);
  return refuse(t, "pre-tokenizer", type, "Split, Digits, ByteLevel and Sequence are", err);
}

static int load_byte_level(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  bool space, regex;
  TC_TRY(get_flag(t, j, "add_prefix_space", true, &space, err));
  TC_TRY(get_flag(t, j, "use_regex", true, &regex, err));
  if (space) TC_TRY(add_step(t, NULL, false, err));
  return regex ? add_step(t, tc_pattern_gpt2, false, err) : TC_OK;
}

int tc_load_pre_tokenizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const char *type = type_of(j);
  if (strcmp(type, "ByteLevel") == 0) return load_byte_level(t, j, err);
  const json_t *list = json_object_get(j, "pretokenizers");
  const size_t n = strcmp(type, "Sequence") == 0 ? json_array_size(list) : 0;
  if (n == 0) {
    if (*type && strcmp(type, "Sequence") != 0 && strcmp(type, "Split") != 0 && strcmp(type, "Digits") != 0)
      return load_step(t, j, err);               /* which refuses it */
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its pre-tokenizer does not end with ByteLevel; only byte-level BPE "
                   "is supported", t->name);
  }
  for (size_t i = 0; i + 1 < n; i++) TC_TRY(load_step(t, json_array_get(list, i), err));
  return tc_load_pre_tokenizer(t, json_array_get(list, n - 1), err);
}

/* ---- post-processor -------------------------------------------------------------------- */

static int damaged_template(const struct tc_tokenizer *t, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: the template of its post-processor is wrong", t->name);
}

/* The ids of one special token of the template, appended. */
static int load_special(struct tc_tokenizer *t, const json_t *j, const char *name, struct tc_ids *to,
                        struct tc_err *err)
{
  const json_t *ids = json_object_get(json_object_get(json_object_get(j, "special_tokens"), name), "ids");
  if (!json_is_array(ids)) return damaged_template(t, err);
  for (size_t i = 0; i < json_array_size(ids); i++) {
    const json_t *id = json_array_get(ids, i);
    const json_int_t x = json_integer_value(id);
    if (!json_is_integer(id) || x < 0 || x >= t->n_ids || !t->token[x].s) return damaged_template(t, err);
    TC_APPEND(to->id, to->n, to->cap, (uint32_t)x);
  }
  return TC_OK;
}

static int load_template(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const json_t *single = json_object_get(j, "single");
  bool text = false;
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *piece = json_array_get(single, i);
    const char *special = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
    const char *sequence = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
    if (special) TC_TRY(load_special(t, j, special, text ? &t->end : &t->begin, err));
    else if (sequence && strcmp(sequence, "A") == 0 && !text) text = true;
    else return damaged_template(t, err);
  }
  return text ? TC_OK : damaged_template(t, err);
}

int tc_load_post_processor(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  if (!j || json_is_null(j)) return TC_OK;
  const char *type = type_of(j);
  if (strcmp(type, "ByteLevel") == 0) return TC_OK;          /* which moves offsets, not tokens */
  if (strcmp(type, "Sequence") == 0) return each(t, j, "processors", tc_load_post_processor, err);
  if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, j, err);
  return refuse(t, "post-processor", type, "ByteLevel, TemplateProcessing and Sequence are", err);
}
