/* ini.c - reads the lines of a run file into struct tc_config.
 *
 *   [section]              a name in brackets
 *   key = value            or key : value; blanks around either do not count
 *   [stage 2]              keys of a stage: from, and options by their full names
 *     more values          an indented line without "=" continues a list of files
 *   # comment              on a line of its own, or "; comment" there or after a blank
 *
 * A line may have any length. Every error names the line; the first one ends the reading. */
#include "src/config/impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct reader {
  struct tc_config *c;
  const char *path;
  bool saved;                          /* the text is of a configuration that was written once */
  int line;
  char section[64];
  const struct tc_opt *last;           /* the option above, which an indented line continues */
  int stage;                           /* the number of the stage in whose section we are; below 0: none's */
  int set_at[TC_N_OPTS];               /* the line an option was given at; 0: not yet */
  char where[500];                     /* "run.ini:12: " */
};

static bool is_blank(char ch) { return ch == ' ' || ch == '\t'; }

/* Cuts off the blanks at both ends, in place. */
static char *trim(char *s)
{
  while (is_blank(*s)) s++;
  char *end = s + strlen(s);
  while (end > s && is_blank(end[-1])) end--;
  *end = '\0';
  return s;
}

static void cut_comment(char *s)
{
  char first = s[strspn(s, " \t")];
  if (first == '#' || first == ';') *s = '\0';
  for (char *at = s; *at; at++)
    if (*at == ';' && at > s && is_blank(at[-1])) {
      *at = '\0';
      return;
    }
}

/* "key =" or "key :" after an indentation begins an option; all else continues the one above. */
static bool is_continued(const char *line)
{
  const char *s = line + strspn(line, " \t");
  if (s == line || !*s || *s == '[' || strchr(s, '=')) return false;
  while (isalnum((unsigned char)*s) || *s == '_') s++;
  return s[strspn(s, " \t")] != ':';
}

static int read_section(struct reader *r, char *s, struct tc_err *err)
{
  char *end = strchr(s, ']'), *rest = end ? end + 1 + strspn(end + 1, " \t") : NULL;
  if (!end || (*rest && *rest != '#'))
    return tc_fail(err, TC_EUSER, "%sneither \"key = value\" nor \"[section]\"", r->where);
  *end = '\0';
  snprintf(r->section, sizeof r->section, "%s", trim(s + 1));
  r->stage = tc_stage_number(r->section, '\0');
  r->last = NULL;
  return 0;
}

/* A key of a stage, or words more for the list above. */
static int set_stage(struct reader *r, const char *key, const char *value, bool append, struct tc_err *err)
{
  char *expanded = NULL, where[500];
  tc_stage_name(where, sizeof where, r->stage, r->where);
  if (!append && tc_stage_has(r->c, r->stage, key))
    return tc_fail(err, TC_EUSER, "%s%s of stage %d was given already", r->where, key, r->stage);
  if (!r->saved) TC_TRY(tc_expand(&expanded, value, where, key, err));
  r->c->expanded |= expanded && strcmp(expanded, value) != 0;
  const int rc = tc_stage_set(r->c, r->stage, key, expanded ? expanded : value, append, r->where, err);
  free(expanded);
  r->last = rc == 0 ? tc_opt_find(key) : NULL;
  return rc;
}

/* The option of a key in the present section. */
static int find_key(const struct reader *r, const char *key, const struct tc_opt **out,
                    struct tc_err *err)
{
  const char *names[TC_N_SECTIONS];
  char name[128];
  bool known = false;
  if (!*r->section)
    return tc_fail(err, TC_EUSER, "%s\"%.60s\" stands before the first [section]", r->where, key);
  for (int i = 0; i < TC_N_SECTIONS; i++) {
    names[i] = tc_sections[i].name;
    known |= strcmp(r->section, names[i]) == 0;
  }
  int near = known ? -1 : tc_nearest(r->section, names, TC_N_SECTIONS);
  if (near >= 0)
    return tc_fail(err, TC_EUSER, "%sthere is no section [%s]; did you mean [%s]?", r->where,
                   r->section, names[near]);
  snprintf(name, sizeof name, "%s.%.60s", r->section, key);
  *out = tc_opt_find(name);
  return *out ? 0 : tc_opt_unknown(name, "", r->where, err);
}

/* Sets or appends a value, with its words in braces replaced: unless they were when it was saved, or a flag replaces the value. */
static int set(struct reader *r, const struct tc_opt *o, const char *value,
               int (*how)(struct tc_config *, const struct tc_opt *, const char *, const char *, struct tc_err *),
               struct tc_err *err)
{
  char *expanded = NULL;
  if (r->c->source[o - tc_opts] == TC_FROM_FLAG && strchr(value, '{')) return 0;
  if (!r->saved) TC_TRY(tc_expand(&expanded, value, r->where, o->name, err));
  r->c->expanded |= expanded && strcmp(expanded, value) != 0;
  const int rc = how(r->c, o, expanded ? expanded : value, r->where, err);
  free(expanded);
  return rc;
}

static int read_key(struct reader *r, char *s, struct tc_err *err)
{
  size_t n = strcspn(s, "=:");
  if (!s[n])
    return tc_fail(err, TC_EUSER, "%sneither \"key = value\" nor \"[section]\"", r->where);
  s[n] = '\0';
  const struct tc_opt *o = NULL;
  r->last = NULL;
  if (r->stage >= 0) return set_stage(r, trim(s), trim(s + n + 1), false, err);
  TC_TRY(find_key(r, trim(s), &o, err));
  int *set_at = &r->set_at[o - tc_opts];
  if (*set_at)
    return tc_fail(err, TC_EUSER, "%s%s was given in line %d already", r->where, o->name, *set_at);
  *set_at = r->line;
  r->last = o;
  TC_TRY(set(r, o, trim(s + n + 1), tc_opt_set, err));
  uint8_t *source = &r->c->source[o - tc_opts];
  if (*source == TC_FROM_DEFAULT) *source = TC_FROM_FILE;
  return 0;
}

static int read_more(struct reader *r, char *s, struct tc_err *err)
{
  const struct tc_opt *o = r->last;
  if (!o) return tc_fail(err, TC_EUSER, "%sneither \"key = value\" nor \"[section]\"", r->where);
  if (o->type != T_LIST)
    return tc_fail(err, TC_EUSER, "%s%s takes one line; only lists of files go on on indented "
                   "lines", r->where, o->name);
  if (r->stage >= 0) return set_stage(r, o->name, s, true, err);
  return set(r, o, s, tc_opt_append, err);
}

/* One line, without its end: it is changed. */
static int read_line(struct reader *r, char *line, size_t len, struct tc_err *err)
{
  if (len > 0 && line[len - 1] == '\r') line[--len] = '\0';
  snprintf(r->where, sizeof r->where, "%.400s:%d: ", r->path, ++r->line);
  for (size_t i = 0; i < len; i++)
    if ((unsigned char)line[i] < ' ' && line[i] != '\t')
      return tc_fail(err, TC_EUSER, "%sa control character (byte %d) at place %zu: not a text file",
                     r->where, line[i], i + 1);
  cut_comment(line);
  bool more = is_continued(line);
  char *s = trim(line);
  if (!*s) return 0;
  if (*s == '[') return read_section(r, s, err);
  return more ? read_more(r, s, err) : read_key(r, s, err);
}

int tc_ini_read(struct tc_config *c, const char *text, size_t bytes, const char *path, bool saved,
                struct tc_err *err)
{
  static const char mark[] = "\xef\xbb\xbf";     /* that some editors put before UTF-8 */
  struct reader r = { .c = c, .path = path, .saved = saved, .stage = -1 };
  const char *end = text + bytes;
  int rc = 0;
  if (bytes >= 3 && memcmp(text, mark, 3) == 0) text += 3;
  while (text < end && rc == 0) {
    const char *newline = memchr(text, '\n', (size_t)(end - text));
    size_t len = (size_t)((newline ? newline : end) - text);
    char *line = tc_malloc(len + 1);
    memcpy(line, text, len);
    line[len] = '\0';
    rc = read_line(&r, line, len, err);
    if (saved) rc = 0;
    free(line);
    text += len + 1;
  }
  return rc;
}
