/* prepare.c - the parts of tokenizer.json that say how text is prepared: normalizer, pre-tokenizer and
 * post-processor. Each has a type; those that aren't supported are refused by it. */
#include "src/token/impl.h"

#include <string.h>

const char *tc_part_type(const json_t *j)
{
  const char *type = json_string_value(json_object_get(j, "type"));
  return type ? type : "";
}

int tc_part_refuse(const struct tc_tokenizer *t, const char *part, const char *type, const char *what, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "tokenizer '%s': its %s '%.60s' is not supported: %s", t->name, part,
                 *type ? type : "(without a type)", what);
}

int tc_part_flag(const struct tc_tokenizer *t, const json_t *j, const char *key, bool otherwise, bool *out, struct tc_err *err)
{
  const json_t *x = json_object_get(j, key);
  *out = x ? json_is_true(x) : otherwise;
  if (!x || json_is_boolean(x)) return TC_OK;
  return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: %s of its %.60s is neither true nor false", t->name,
                 key, tc_part_type(j));
}

int tc_part_each(struct tc_tokenizer *t, const json_t *j, const char *key,
                 int (*load)(struct tc_tokenizer *, const json_t *, struct tc_err *), struct tc_err *err)
{
  const json_t *list = json_object_get(j, key);
  if (!json_is_array(list))
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: a Sequence has no list '%s'", t->name, key);
  for (size_t i = 0; i < json_array_size(list); i++) TC_TRY(load(t, json_array_get(list, i), err));
  return TC_OK;
}

/* ---- steps ----------------------------------------------------------------------------- */

/* Adds a step to the normalizer or the pre-tokenizer; its pattern is text, or compiled as a regex. */
static int add_step(struct tc_tokenizer *t, struct tc_steps *to, struct tc_step s, bool regex, struct tc_err *err)
{
  const char *part = to == &t->normalizer ? "normalizer" : "pre-tokenizer";
  enum tc_cuts cuts = TC_CUTS_UNKNOWN;
  size_t jit = 0;
  if (to->n == TC_STEPS)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its %s has more than %d steps", t->name, part, TC_STEPS);
  if (s.pattern.s) s.pattern = tc_token_keep(t, s.pattern.s, s.pattern.n);
  if (s.content.s) s.content = tc_token_keep(t, s.content.s, s.content.n);
  to->at[to->n++] = s;
  struct tc_step *step = &to->at[to->n - 1];
  if (regex) {
    TC_TRY(tc_pattern_compile(&step->code, s.pattern.s, &cuts, t->name, part, err));
    if (pcre2_pattern_info(step->code, PCRE2_INFO_JITSIZE, &jit) != 0 || !jit) t->jit = false;
  }
  tc_note_step(t, step, cuts);
  return TC_OK;
}

static struct tc_bytes text_of(const char *s) { return (struct tc_bytes){ s, s ? strlen(s) : 0 }; }

/* {"String": "..."} or {"Regex": "..."}. part: of what, for the sentence. */
static int load_pattern(const struct tc_tokenizer *t, const json_t *j, const char *part, struct tc_step *to, bool *regex,
                        struct tc_err *err)
{
  const json_t *pattern = json_object_get(j, "pattern");
  const char *text = json_string_value(json_object_get(pattern, "String"));
  const char *expression = json_string_value(json_object_get(pattern, "Regex"));
  *regex = expression != NULL;
  if (expression) text = expression;
  if (!text || (!expression && !*text))
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: its %s has no pattern", t->name, part);
  to->pattern = text_of(text);
  return TC_OK;
}

/* ---- normalizer ------------------------------------------------------------------------ */

static int load_replace(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const char *content = json_string_value(json_object_get(j, "content"));
  struct tc_step s = { .kind = TC_STEP_REPLACE, .content = text_of(content) };
  bool regex;
  if (!content) return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: its normalizer Replace has no content", t->name);
  TC_TRY(load_pattern(t, j, "normalizer Replace", &s, &regex, err));
  return add_step(t, &t->normalizer, s, regex, err);
}

static int load_prepend(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const char *text = json_string_value(json_object_get(j, "prepend"));
  if (!text) return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: its normalizer Prepend has no text", t->name);
  return add_step(t, &t->normalizer, (struct tc_step){ .kind = TC_STEP_PREPEND, .content = text_of(text),
                                                       .prepend = TC_PREPEND_ALWAYS }, false, err);
}

int tc_load_normalizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  if (!j || json_is_null(j)) return TC_OK;
  const char *type = tc_part_type(j);
  if (strcmp(type, "Sequence") == 0) return tc_part_each(t, j, "normalizers", tc_load_normalizer, err);
  if (strcmp(type, "Replace") == 0) return load_replace(t, j, err);
  if (strcmp(type, "Prepend") == 0) return load_prepend(t, j, err);
  if (strcmp(type, "NFC") == 0) return add_step(t, &t->normalizer, (struct tc_step){ .kind = TC_STEP_NFC }, false, err);
  if (strcmp(type, "NFKC") == 0) return add_step(t, &t->normalizer, (struct tc_step){ .kind = TC_STEP_NFKC }, false, err);
  return tc_part_refuse(t, "normalizer", type, "NFC, NFKC, Prepend, Replace and Sequence are", err);
}

/* ---- pre-tokenizer --------------------------------------------------------------------- */

/* The number of a word in a list; -1. */
static int word_of(const char *word, const char *const *list, int n)
{
  while (n-- > 0 && strcmp(word ? word : "", list[n]) != 0) ;
  return n;
}

static int load_split(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  static const char *const behaviors[] = { "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
  const char *behavior = json_string_value(json_object_get(j, "behavior"));
  const int known = word_of(behavior, behaviors, 5);
  struct tc_step s = { .kind = TC_STEP_SPLIT };
  bool regex;
  TC_TRY(tc_part_flag(t, j, "invert", false, &s.invert, err));
  if (known < 0)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its pre-tokenizer Split has the behavior '%.40s', which is not supported",
                   t->name, behavior ? behavior : "");
  s.behavior = (enum tc_behavior)known;
  TC_TRY(load_pattern(t, j, "pre-tokenizer Split", &s, &regex, err));
  return add_step(t, &t->pre_tokenizer, s, regex, err);
}

static bool has_step(const struct tc_steps *l, enum tc_step_kind kind)
{
  for (int i = 0; i < l->n; i++)
    if (l->at[i].kind == kind) return true;
  return false;
}

/* Spaces become the mark; one is put in front; pieces begin with it. In Hugging Face's library, a piece lies at the begin,
 * too, if the character that was there has become several and a split came between them. */
static int load_metaspace(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  static const char *const schemes[] = { "always", "first", "never" };
  static const enum tc_prepend prepends[] = { TC_PREPEND_MISSING, TC_PREPEND_FIRST };
  const char *mark = json_string_value(json_object_get(j, "replacement"));
  const char *word = json_string_value(json_object_get(j, "prepend_scheme"));
  const struct tc_bytes content = text_of(mark);
  size_t bytes = 0;
  bool space, splits;
  int scheme = word ? word_of(word, schemes, 3) : 0;
  TC_TRY(tc_part_flag(t, j, "add_prefix_space", true, &space, err));
  TC_TRY(tc_part_flag(t, j, "split", true, &splits, err));
  if (mark && *mark) tc_utf8_at(mark, &bytes);
  if (bytes == 0 || bytes != content.n || scheme < 0 || (!space && word && scheme != 2))
    return tc_fail(err, TC_EUSER, "tokenizer '%s' is damaged: its Metaspace has no replacement of one character, or another "
                   "prepend_scheme than first, never and always", t->name);
  if (!space) scheme = 2;
  if (scheme == 1 && has_step(&t->pre_tokenizer, TC_STEP_SPLIT) &&
      (t->normalizer.n > 0 || has_step(&t->pre_tokenizer, TC_STEP_PREPEND)))
    return tc_part_refuse(t, "pre-tokenizer", "Metaspace", "prepend_scheme = first is not, behind a normalizer and a split",
                          err);
  TC_TRY(add_step(t, &t->pre_tokenizer, (struct tc_step){ .kind = TC_STEP_REPLACE, .pattern = { " ", 1 },
                                                          .content = content }, false, err));
  if (scheme < 2)
    TC_TRY(add_step(t, &t->pre_tokenizer, (struct tc_step){ .kind = TC_STEP_PREPEND, .content = content,
                                                            .prepend = prepends[scheme] }, false, err));
  if (!splits) return TC_OK;
  return add_step(t, &t->pre_tokenizer, (struct tc_step){ .kind = TC_STEP_SPLIT, .pattern = content,
                                                          .behavior = TC_WITH_NEXT }, false, err);
}

static int add_regex(struct tc_tokenizer *t, const char *pattern, struct tc_err *err)
{
  return add_step(t, &t->pre_tokenizer, (struct tc_step){ .kind = TC_STEP_SPLIT, .pattern = text_of(pattern) }, true, err);
}

static int load_byte_level(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const struct tc_step front = { .kind = TC_STEP_PREPEND, .content = { " ", 1 } };
  bool space, regex;
  TC_TRY(tc_part_flag(t, j, "add_prefix_space", true, &space, err));
  TC_TRY(tc_part_flag(t, j, "use_regex", true, &regex, err));
  t->characters = false;
  if (space) TC_TRY(add_step(t, &t->pre_tokenizer, front, false, err));
  return regex ? add_regex(t, tc_pattern_gpt2, err) : TC_OK;
}

static int load_step(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const char *type = tc_part_type(j);
  bool flag;
  if (!t->characters)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': its pre-tokenizer has ByteLevel before its last step, which is not "
                   "supported", t->name);
  if (strcmp(type, "Sequence") == 0) return tc_part_each(t, j, "pretokenizers", load_step, err);
  if (strcmp(type, "Split") == 0) return load_split(t, j, err);
  if (strcmp(type, "Metaspace") == 0) return load_metaspace(t, j, err);
  if (strcmp(type, "ByteLevel") == 0) return load_byte_level(t, j, err);
  if (strcmp(type, "Digits") != 0)
    return tc_part_refuse(t, "pre-tokenizer", type, "Split, Digits, Metaspace, ByteLevel and Sequence are", err);
  TC_TRY(tc_part_flag(t, j, "individual_digits", false, &flag, err));
  return add_regex(t, flag ? "\\p{N}" : "\\p{N}+", err);
}

int tc_load_pre_tokenizer(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  t->characters = true;                      /* until there is ByteLevel */
  return !j || json_is_null(j) ? TC_OK : load_step(t, j, err);
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
  const char *type = tc_part_type(j);
  if (strcmp(type, "ByteLevel") == 0) return TC_OK;          /* which moves offsets, not tokens */
  if (strcmp(type, "Sequence") == 0) return tc_part_each(t, j, "processors", tc_load_post_processor, err);
  if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, j, err);
  return tc_part_refuse(t, "post-processor", type, "ByteLevel, TemplateProcessing and Sequence are", err);
}
