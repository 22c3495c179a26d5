/* model_text.c - the fields of a model, as field.def lists them: taken from another, printed, read. */
#include "src/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind { SIZE, COUNT, REAL, WORD, SCALING, PATTERN };
#define ALWAYS NAN                 /* as `none`: each text has the field, but those of the sizes alone */
enum { N_SIZES = 5, MOST_TEXT = 4096 };     /* the sizes, which are all that a plain GPT-2 needs; of a text */

struct field {
  const char *name, *option;
  enum kind kind;
  size_t at, like;                 /* offsets in struct tc_model; like 0: as no other field */
  double none;                     /* what a text without it means */
};
static const struct field fields[] = {
#define FIELD(kind, name, none) { #name, "model." #name, kind, offsetof(struct tc_model, name), 0, none },
#define LIKE(kind, name, other) \
  { #name, "model." #name, kind, offsetof(struct tc_model, name), offsetof(struct tc_model, other), ALWAYS },
#include "src/model/field.def"
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static const void *of(const struct tc_model *m, size_t at) { return (const char *)m + at; }
static void *in(struct tc_model *m, size_t at) { return (char *)m + at; }

static size_t bytes_of(enum kind kind)
{
  static const size_t bytes[] = { [SIZE] = sizeof(int64_t), [COUNT] = sizeof(int64_t), [REAL] = sizeof(float), [WORD] = 1,
                                  [SCALING] = sizeof(struct tc_rope_scaling), [PATTERN] = TC_MOST_PATTERN + 1 };
  return bytes[kind];
}

/* Fields begin with their number, word, kind or first letter. */
static bool is_given(const struct field *f, const struct tc_model *m)
{
  const void *x = of(m, f->at);
  switch (f->kind) {
  case SIZE:
  case COUNT: return *(const int64_t *)x != 0;
  case REAL: return *(const float *)x != 0;
  default: return *(const uint8_t *)x != 0;
  }
}

void tc_model_take(struct tc_model *m, const struct tc_model *from)
{
  for (int i = 0; i < N_FIELDS; i++)
    if (!is_given(&fields[i], m)) memcpy(in(m, fields[i].at), of(from, fields[i].at), bytes_of(fields[i].kind));
  if (m->positions == 0) m->positions = from->positions;
}

void tc_model_take_like(struct tc_model *m)
{
  for (int i = 0; i < N_FIELDS; i++)
    if (fields[i].like && !is_given(&fields[i], m)) memcpy(in(m, fields[i].at), of(m, fields[i].like), bytes_of(fields[i].kind));
}

/* ---- layers ------------------------------------------------------------------------------ */

int tc_pattern_check(const char *text, struct tc_err *err)
{
  const size_t n = strlen(text);
  if (n > 0 && n <= TC_MOST_PATTERN && strspn(text, "FSfs") == n) return 0;
  return tc_fail(err, TC_EUSER, "model.pattern = %.60s is not of letters F, S, f and s alone, at most %d, such as SSSSSF", text,
                 TC_MOST_PATTERN);
}

/* Whether a pattern of the first `period` letters gives each layer the kind that the whole one does. */
static bool is_period(const char *text, int64_t all, int64_t period, int64_t layers)
{
  for (int64_t i = period; i < layers; i++)
    if (text[i % all] != text[i % period]) return false;
  return true;
}

int64_t tc_pattern_period(const char *text, int64_t n, int64_t layers)
{
  int64_t period = 1;
  while (period < n && !is_period(text, n, period, layers)) period++;
  return period;
}

/* ---- text ---------------------------------------------------------------------------------- */

/* The value of a field, in text[size]. */
static void print_value(char *text, size_t size, const struct field *f, const struct tc_model *m)
{
  const void *x = of(m, f->at);
  char number[32];
  if (f->kind == SIZE || f->kind == COUNT) snprintf(text, size, "%lld", (long long)*(const int64_t *)x);
  else if (f->kind == REAL) snprintf(text, size, "%s", tc_shortest_float(number, *(const float *)x));
  else if (f->kind == WORD) snprintf(text, size, "%s", tc_choice_word(f->option, *(const uint8_t *)x));
  else if (f->kind == PATTERN) snprintf(text, size, "%s", (const char *)x);
  else {
    char *scaling = tc_rope_scaling_text(x);
    snprintf(text, size, "%s", scaling);
    free(scaling);
  }
}

static bool read_value(const struct field *f, struct tc_model *m, const char *word)
{
  void *x = in(m, f->at);
  struct tc_err err;
  char *end;
  int value;
  switch (f->kind) {
  case SIZE:
  case COUNT:
    *(int64_t *)x = strtoll(word, &end, 10);
    return end > word && !*end && strlen(word) <= 18;
  case REAL:
    *(float *)x = strtof(word, &end);
    return end > word && !*end;
  case WORD:
    if (!tc_choice_parse(f->option, word, &value)) return false;
    *(uint8_t *)x = (uint8_t)value;
    return true;
  case SCALING: return tc_rope_scaling_parse(x, word, &err) == 0;
  default:
    if (tc_pattern_check(word, &err)) return false;
    snprintf(x, TC_MOST_PATTERN + 1, "%s", word);
    return true;
  }
}

/* The value that a text means which does not have it, where such texts are allowed. */
static void set_none(const struct field *f, struct tc_model *m)
{
  void *x = in(m, f->at);
  if (f->like) memcpy(x, of(m, f->like), bytes_of(f->kind));
  else if (f->kind == PATTERN) strcpy(x, "F");
  else if (f->kind == REAL) *(float *)x = (float)f->none;
  else if (f->kind == WORD) *(uint8_t *)x = (uint8_t)f->none;
  else *(int64_t *)x = (int64_t)f->none;
}

static bool may_lack(const struct field *f) { return f->like || !isnan(f->none); }

static bool is_same(const struct field *f, const struct tc_model *a, const struct tc_model *b)
{
  if (f->kind == SCALING) return tc_same_scaling(of(a, f->at), of(b, f->at));
  if (f->kind == PATTERN) return strcmp(of(a, f->at), of(b, f->at)) == 0;
  return memcmp(of(a, f->at), of(b, f->at), bytes_of(f->kind)) == 0;
}

const char *tc_model_other(const struct tc_model *a, const struct tc_model *b)
{
  for (int i = 0; i < N_FIELDS; i++)
    if (!is_same(&fields[i], a, b)) return fields[i].name;
  return NULL;
}

char *tc_fields_text(const struct tc_model *m, bool sizes_alone)
{
  char text[MOST_TEXT] = "", value[TC_MOST_PATTERN + 1];
  for (int i = 0; i < (sizes_alone ? N_SIZES : N_FIELDS); i++) {
    struct tc_model none = *m;
    if (may_lack(&fields[i])) set_none(&fields[i], &none);
    if (may_lack(&fields[i]) && is_same(&fields[i], m, &none)) continue;
    print_value(value, sizeof value, &fields[i], m);
    tc_text_add(text, sizeof text, "%s%s %s", i ? " " : "", fields[i].name, value);
  }
  return tc_strdup(text);
}

/* Reads "name value" pairs in the order of the table; the sizes may be all. */
static bool read_all(struct tc_model *m, char *text)
{
  char *rest, *name = strtok_r(text, " ", &rest);
  for (int i = 0; i < N_FIELDS; i++) {
    const struct field *f = &fields[i];
    if (i == N_SIZES && !name) return true;
    if (name && strcmp(name, f->name) == 0) {
      const char *value = strtok_r(NULL, " ", &rest);
      if (!value || !read_value(f, m, value)) return false;
      name = strtok_r(NULL, " ", &rest);
    } else if (may_lack(f)) {
      set_none(f, m);
    } else {
      return false;
    }
  }
  return !name;
}

bool tc_fields_read(struct tc_model *m, const char *text)
{
  char *copy = tc_strdup(text);
  const bool good = read_all(m, copy);
  free(copy);
  return good;
}
