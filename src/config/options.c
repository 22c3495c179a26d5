/* options.c - the table of options, what a value of each may be, and setting it.
 *
 * Everything comes from options.def. A value is set by one function, wherever it stands, so that
 * defaults, run file and flags obey the same types and limits. Every error says where the value stands. */
#include "src/config/impl.h"
#include "src/config/list.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHOWN = 100 };

const struct tc_opt tc_opts[TC_N_OPTS] = {
#define OPT(s, k, t, dflt, unit, values, resume, help) \
  { #s, #k, #s "." #k, T_##t, offsetof(struct tc_config, s##_##k), dflt, unit, values, \
    TC_RESUME_##resume, help, NULL },
#define WORD(word, enumerator) "|" word
#define AUTO(enumerator) "|auto"
#define CHOICE(s, k, tag, dflt, words, resume, help) \
  { #s, #k, #s "." #k, T_CHOICE, offsetof(struct tc_config, s##_##k), dflt, "", 1 + words, \
    TC_RESUME_##resume, help, tc_words_##s##_##k },
#include "src/config/options.def"
};

const struct tc_section tc_sections[TC_N_SECTIONS] = {
#define SECTION(name, help) { #name, help },
#include "src/config/options.def"
};

const struct tc_opt *tc_opt_find(const char *name)
{
  for (int i = 0; i < TC_N_OPTS; i++)
    if (strcmp(tc_opts[i].name, name) == 0) return &tc_opts[i];
  return NULL;
}

bool tc_choice_parse(const char *option, const char *word, int *value)
{
  const struct tc_opt *o = tc_opt_find(option);
  TC_ASSERT(o && o->words);
  return tc_word_parse(o->words, word, value);
}

const char *tc_choice_word(const char *option, int value)
{
  const struct tc_opt *o = tc_opt_find(option);
  TC_ASSERT(o && o->words);
  return tc_word_of(o->words, value);
}

/* ---- what a value may be --------------------------------------------------------------- */

const char *tc_opt_part(const char **at, size_t *len)
{
  const char *part = *at;
  *len = strcspn(part, "|");
  *at = part[*len] ? part + *len + 1 : NULL;
  return part;
}

static bool is_range(const char *part) { return *part == '[' || *part == '('; }

/* Whether `value` is one of the parts of "a|b|c" that are no range. */
static bool is_part(const char *values, const char *value)
{
  size_t len;
  for (const char *at = values; at;) {
    const char *part = tc_opt_part(&at, &len);
    if (!is_range(part) && strlen(value) == len && memcmp(part, value, len) == 0) return true;
  }
  return false;
}

/* The range among an option's values, "" if there is none. */
static const char *find_range(const struct tc_opt *o)
{
  size_t len;
  for (const char *at = o->values; at;) {
    const char *part = tc_opt_part(&at, &len);
    if (is_range(part)) return part;
  }
  return "";
}

/* A whole number of digits alone that an int64_t holds. */
static bool parse_int(const char *value, int64_t *x)
{
  char *end;
  errno = 0;
  *x = strtoll(value, &end, 10);
  return isdigit((unsigned char)*value) && !*end && !errno;
}

/* A decimal number, 0 or more, that a double holds: not 1e999, nor 1e-999, which would be 0. */
static bool parse_real(const char *value, double *x)
{
  char *end;
  if (value[strspn(value, "0123456789.eE+-")] || !(isdigit((unsigned char)*value) || *value == '.'))
    return false;
  *x = strtod(value, &end);
  bool zero = strcspn(value, "123456789") >= strcspn(value, "eE");
  return end != value && !*end && isfinite(*x) && (*x > 0 || zero);
}

static bool int_in_range(const char *range, int64_t x)
{
  char *end;
  int64_t lo = strtoll(range + 1, &end, 10), hi = strtoll(end + 1, &end, 10);
  return x >= lo && x <= hi && *end == ']';
}

/* As a float where it is used as one: what rounds to an end that is left out is out as well, and so
 * is a number so small that it would be 0, or lose digits. */
static bool real_in_range(const char *range, double x, bool as_float)
{
  char *end;
  double lo = strtod(range + 1, &end), hi = strtod(end + 1, &end);
  if (as_float && x > 0 && x < (double)FLT_MIN) return false;
  if (as_float && x > (double)FLT_MAX) return false;
  if (as_float) x = (double)(float)x, lo = (double)(float)lo, hi = (double)(float)hi;
  return (*range == '[' ? x >= lo : x > lo) && (*end == ']' ? x <= hi : x < hi);
}

static bool is_utf8(const char *text)
{
  uint32_t code;
  const size_t n = strlen(text);
  for (size_t i = 0; i < n;) {
    const int bytes = tc_utf8(text + i, n - i, &code);
    if (bytes <= 0) return false;
    i += (size_t)bytes;
  }
  return true;
}

bool tc_config_is_plain(const char *text)
{
  size_t n = strlen(text);
  if (n > 0 && (strchr(" \t;", text[0]) || strchr(" \t", text[n - 1]))) return false;
  for (size_t i = 0; i < n; i++) {
    if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) return false;
    if (text[i] == ';' && text[i - 1] == ' ') return false;
  }
  return is_utf8(text);
}

/* ---- what a value has to be, in words ------------------------------------------------------- */

/* The value for a sentence: on one line, not too long, bytes that are no text as "?". */
static const char *show(const char *value, char text[MOST_SHOWN + 4])
{
  const bool utf8 = is_utf8(value);
  size_t n = 0;
  for (; value[n] && n < MOST_SHOWN; n++) {
    unsigned char ch = (unsigned char)value[n];
    text[n] = ch < ' ' || ch == 0x7f || (ch >= 0x80 && !utf8) ? '?' : value[n];
  }
  while (value[n] && n > 0 && (value[n] & 0xc0) == 0x80 && utf8) n--;   /* not within a character */
  strcpy(text + n, value[n] ? "..." : "");
  return text;
}

/* "a whole number from 1 to 9", "a number above 0, at most 1". */
static void name_range(const struct tc_opt *o, char *text, size_t size)
{
  const char *range = find_range(o), *comma = strchr(range, ','), *end = strpbrk(range, "])");
  const int n_lo = (int)(comma - range) - 1, n_hi = (int)(end - comma) - 2;
  tc_text_add(text, size, "a %snumber %s %.*s%s %.*s", o->type == T_INT ? "whole " : "",
              *range == '[' ? "from" : "above", n_lo, range + 1,
              *end == ')' ? " to below" : *range == '[' ? " to" : ", at most", n_hi, comma + 2);
}

/* What a value of this option has to be. */
static void name_wanted(const struct tc_opt *o, char *text, size_t size)
{
  *text = '\0';
  if (o->type == T_BOOL) tc_text_add(text, size, "yes or no");
  else if (*find_range(o)) {
    const char *before = "";
    for (const char *at = o->values; at; before = at && strchr(at, '|') ? ", " : " or ") {
      size_t len;
      const char *part = tc_opt_part(&at, &len);
      tc_text_add(text, size, "%s", before);
      if (is_range(part)) name_range(o, text, size);
      else tc_text_add(text, size, "%.*s", (int)len, part);
    }
  } else if (*o->values) tc_text_add(text, size, "one of %s", o->values);
  else if (o->type == T_LIST)
    tc_text_add(text, size, "names between blanks, in UTF-8 without control characters or \" ;\"; one with blanks in double "
                "quotes: \"a b.txt\"");
  else
    tc_text_add(text, size, "text in UTF-8 without control characters, blanks at an end, or "
                "\" ;\", which begins a comment");
}

static int refuse(const struct tc_opt *o, const char *value, const char *where,
                  struct tc_err *err)
{
  char shown[MOST_SHOWN + 4], wanted[300], rounded[80] = "";
  double x;
  name_wanted(o, wanted, sizeof wanted);
  if (o->type == T_FLOAT && parse_real(value, &x) && real_in_range(find_range(o), x, false))
    snprintf(rounded, sizeof rounded, ", which is %.9g as a 32-bit float",
             x < (double)FLT_MIN ? 0 : (double)(float)x);
  return tc_fail(err, TC_EUSER, "%s%s is \"%s\"%s; it has to be %s", where, o->name,
                 show(value, shown), rounded, wanted);
}

/* ---- setting it ----------------------------------------------------------------------------- */

/* *word <- the enumerator of `value`; false: the option takes no such word. */
static bool find_word(const struct tc_opt *o, const char *value, int *word)
{
  return is_part(o->values, value) && tc_word_parse(tc_number_words, value, word);
}

static bool set_int(const struct tc_opt *o, const char *value, int64_t *field)
{
  int64_t x;
  int word;
  if (find_word(o, value, &word)) x = word;
  else if (!parse_int(value, &x) || !int_in_range(find_range(o), x)) return false;
  *field = x;
  return true;
}

static bool set_real(const struct tc_opt *o, const char *value, double *field)
{
  double x;
  int word;
  if (find_word(o, value, &word)) x = word;
  else if (!parse_real(value, &x)) return false;
  else if (!real_in_range(find_range(o), x, o->type == T_FLOAT) && !(x == 0 && is_part(o->values, "0"))) return false;
  *field = x;
  return true;
}

static bool set_text(struct tc_config *c, const char *value, char **field)
{
  if (!tc_config_is_plain(value)) return false;
  *field = tc_pool_strdup(c->pool, value);
  return true;
}

/* One more item. The array has room for a power of two, so that a list of many lines does not
 * leave a copy of itself in the pool for each. */
static void append_item(struct tc_config *c, struct tc_list *l, char *word)
{
  const size_t n = (size_t)l->n;
  if ((n & (n - 1)) == 0) {
    char **item = tc_pool_alloc(c->pool, (n ? 2 * n : 1) * sizeof *item);
    if (n > 0) memcpy(item, l->item, n * sizeof *item);
    l->item = item;
  }
  l->item[l->n++] = word;
}

/* The words of `value`, appended to the list; false, and the list is as it was, if one is no text
 * for a run file. */
static bool append_words(struct tc_config *c, struct tc_list *l, const char *value)
{
  struct tc_list longer = *l;
  char *word = tc_malloc(strlen(value) + 1);
  int got = strchr(value, '\n') ? -1 : 1;
  while (got > 0 && (got = tc_list_next(&value, word)) > 0) {
    if (!*word || !tc_config_is_plain(word)) break;
    append_item(c, &longer, tc_pool_strdup(c->pool, word));
  }
  free(word);
  if (got == 0) *l = longer;
  return got == 0;
}

int tc_opt_append(struct tc_config *c, const struct tc_opt *o, const char *value,
                  const char *where, struct tc_err *err)
{
  return append_words(c, tc_opt_field(c, o), value) ? 0 : refuse(o, value, where, err);
}

int tc_opt_set(struct tc_config *c, const struct tc_opt *o, const char *value, const char *where,
               struct tc_err *err)
{
  void *field = tc_opt_field(c, o);
  struct tc_list list = { 0 };
  bool good = false;
  switch (o->type) {
  case T_INT: good = set_int(o, value, field); break;
  case T_REAL:
  case T_FLOAT: good = set_real(o, value, field); break;
  case T_STR:
  case T_FILE:
  case T_DIR: good = set_text(c, value, field); break;
  case T_CHOICE: good = tc_word_parse(o->words, value, field); break;
  case T_BOOL:
    good = is_part("yes|no", value);
    if (good) *(bool *)field = strcmp(value, "yes") == 0;
    break;
  case T_LIST:
    good = append_words(c, &list, value);
    if (good) *(struct tc_list *)field = list;
    break;
  }
  return good ? 0 : refuse(o, value, where, err);
}

/* Fails, naming the option nearest to "section.key", or to the key alone where the key itself
 * is an option of another section (or of none given). */
int tc_opt_unknown(const char *name, const char *dashes, const char *where, struct tc_err *err)
{
  const char *names[TC_N_OPTS], *dot = strchr(name, '.'), *key = dot ? dot + 1 : name;
  const struct tc_opt *found = NULL;
  for (int i = 0; i < TC_N_OPTS; i++) {
    names[i] = tc_opts[i].name;
    if (!found && strcmp(tc_opts[i].key, key) == 0) found = &tc_opts[i];
  }
  int near = tc_nearest(name, names, TC_N_OPTS);
  if (near >= 0) found = &tc_opts[near];
  for (int i = 0; i < TC_N_OPTS; i++) names[i] = tc_opts[i].key;
  if (!found && (near = tc_nearest(key, names, TC_N_OPTS)) >= 0) found = &tc_opts[near];
  if (found)
    return tc_fail(err, TC_EUSER, "%sthere is no option %s%.100s; did you mean %s%s?", where,
                   dashes, name, dashes, found->name);
  return tc_fail(err, TC_EUSER, "%sthere is no option %s%.100s; %s--help lists them", where, dashes, name,
                 *dashes ? "" : "tercio train ");      /* of whatever command has the flag */
}
