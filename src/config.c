/* config.c - reads the run file and the flags into struct tc_config; prints the options.
 *
 * Everything comes from options.def. A value is set by one function, wherever it stands, so
 * that defaults, run file and flags obey the same types. Every error says where the value
 * stands: "run.ini:12" or the flag itself.
 *
 * inih calls back with section, key and value; the lines are handed to it by a reader of our
 * own, which counts them, takes the indentation off a "key = value" line (inih would take it
 * for the continuation of the line above) and refuses lines inih would cut in two. */
#include "src/config.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum opt_type { T_INT, T_REAL, T_STR, T_BOOL, T_LIST };

struct opt {
  const char *section, *key, *name;      /* name: "section.key" */
  enum opt_type type;
  size_t offset;                         /* of the field in struct tc_config */
  const char *dflt, *unit, *choices, *help;
};

static const struct opt opts[] = {
#define SECTION(name, help)
#define OPT(s, k, t, dflt, unit, choices, help) \
  { #s, #k, #s "." #k, T_##t, offsetof(struct tc_config, s##_##k), dflt, unit, choices, help },
#include "src/options.def"
#undef SECTION
#undef OPT
};
enum { N_OPTS = sizeof opts / sizeof *opts };

static const struct { const char *name, *help; } sections[] = {
#define SECTION(name, help) { #name, help },
#define OPT(s, k, t, dflt, unit, choices, help)
#include "src/options.def"
#undef SECTION
#undef OPT
};
enum { N_SECTIONS = sizeof sections / sizeof *sections };

static void *field(const struct tc_config *c, const struct opt *o)
{
  return (char *)c + o->offset;
}

static const struct opt *find_opt(const char *name)
{
  for (int i = 0; i < N_OPTS; i++)
    if (strcmp(opts[i].name, name) == 0) return &opts[i];
  return NULL;
}

/* ---- values -------------------------------------------------------------------------- */

/* Whether `value` is one of "a|b|c". */
static bool is_choice(const char *choices, const char *value)
{
  size_t len = strlen(value);
  for (const char *at = choices; ; at++) {
    size_t n = strcspn(at, "|");
    if (n == len && memcmp(at, value, n) == 0) return true;
    at += n;
    if (!*at) return false;
  }
}

/* A number that may also be "auto": its default is, or its choices say so. */
static bool takes_auto(const struct opt *o)
{
  return strcmp(o->dflt, "auto") == 0 || is_choice(o->choices, "auto");
}

static bool parse_int(const struct opt *o, const char *value, int64_t *out)
{
  if (strcmp(value, "auto") == 0 && takes_auto(o)) {
    *out = TC_AUTO;
    return true;
  }
  char *end;
  errno = 0;
  long long x = strtoll(value, &end, 10);
  *out = x;
  return isdigit((unsigned char)value[0]) && !*end && !errno;
}

static bool parse_real(const struct opt *o, const char *value, double *out)
{
  char *end;
  if (strcmp(value, "auto") == 0 && takes_auto(o)) {
    *out = (double)TC_AUTO;
    return true;
  }
  *out = strtod(value, &end);
  return end != value && !*end && isfinite(*out) && *out >= 0;
}

/* The words of `value`, appended to the list. */
static void append_words(struct tc_config *c, struct tc_list *l, const char *value)
{
  int words = 0;
  for (const char *s = value; *(s += strspn(s, " \t")); s += strcspn(s, " \t")) words++;
  if (words == 0) return;
  char **item = tc_pool_alloc(c->pool, (size_t)(l->n + words) * sizeof *item);
  if (l->n > 0) memcpy(item, l->item, (size_t)l->n * sizeof *item);
  char *copy = tc_pool_strdup(c->pool, value), *save = NULL;
  for (char *w = strtok_r(copy, " \t", &save); w; w = strtok_r(NULL, " \t", &save))
    item[l->n++] = w;
  l->item = item;
}

/* What a value of this option has to be, for messages. */
static const char *wanted(const struct opt *o)
{
  switch (o->type) {
  case T_INT:
    return takes_auto(o) ? "a whole number, 0 or more, or auto" : "a whole number, 0 or more";
  case T_REAL: return takes_auto(o) ? "a number, 0 or more, or auto" : "a number, 0 or more";
  case T_BOOL: return "yes or no";
  default: return o->choices;
  }
}

/* `where` is put before the sentence: "run.ini:12: " or "". */
static int set_value(struct tc_config *c, const struct opt *o, const char *value,
                     const char *where, struct tc_err *err)
{
  bool good = true;
  switch (o->type) {
  case T_INT: good = parse_int(o, value, field(c, o)); break;
  case T_REAL: good = parse_real(o, value, field(c, o)); break;
  case T_BOOL:
    *(bool *)field(c, o) = strcmp(value, "yes") == 0;
    good = is_choice("yes|no", value);
    break;
  case T_STR:
    *(char **)field(c, o) = tc_pool_strdup(c->pool, value);
    good = !*o->choices || is_choice(o->choices, value);
    break;
  case T_LIST:
    *(struct tc_list *)field(c, o) = (struct tc_list){ 0 };
    append_words(c, field(c, o), value);
    break;
  }
  if (good) return 0;
  return tc_fail(err, TC_EUSER, "%s%s is \"%s\"; it has to be %s%s", where, o->name, value,
                 *o->choices ? "one of " : "", wanted(o));
}

/* Fails, naming the option nearest to "section.key", or to the key alone where the key itself
 * is an option of another section (or of none given). */
static int unknown_key(const char *name, const char *dashes, const char *where,
                       struct tc_err *err)
{
  const char *names[N_OPTS], *dot = strchr(name, '.'), *key = dot ? dot + 1 : name;
  const struct opt *found = NULL;
  for (int i = 0; i < N_OPTS; i++) {
    names[i] = opts[i].name;
    if (!found && strcmp(opts[i].key, key) == 0) found = &opts[i];
  }
  int near = tc_nearest(name, names, N_OPTS);
  if (near >= 0) found = &opts[near];
  for (int i = 0; i < N_OPTS; i++) names[i] = opts[i].key;
  if (!found && (near = tc_nearest(key, names, N_OPTS)) >= 0) found = &opts[near];
  if (found)
    return tc_fail(err, TC_EUSER, "%sthere is no option %s%s; did you mean %s%s?", where,
                   dashes, name, dashes, found->name);
  return tc_fail(err, TC_EUSER, "%sthere is no option %s%s; tercio train --help lists them",
                 where, dashes, name);
}

/* ---- the run file ----------------------------------------------------------------------- */

struct reader {
  struct tc_config *c;
  FILE *f;
  const char *path;
  int line;
  bool indented;                       /* the line began with a blank */
  int set_at[N_OPTS];                  /* line an option was given at, 0: not yet */
  int failed;                          /* status */
  struct tc_err err;
};

/* inih's reader: one line into str[num]; NULL at the end, or once something is wrong. */
static char *read_line(char *str, int num, void *arg)
{
  struct reader *r = arg;
  if (r->failed || !fgets(str, num, r->f)) return NULL;
  r->line++;
  size_t len = strlen(str);
  if (len + 1 == (size_t)num && str[len - 1] != '\n') {
    r->failed = tc_fail(&r->err, TC_EUSER, "%s:%d: the line is longer than %d characters; "
                        "go on with a list of files on further, indented lines, or give the "
                        "value as a flag", r->path, r->line, num - 2);
    return NULL;
  }
  size_t blanks = strspn(str, " \t");
  r->indented = blanks > 0;
  if (blanks > 0 && (strchr(str, '=') || str[blanks] == '['))
    memmove(str, str + blanks, len - blanks + 1), r->indented = false;
  return str;
}

static int handle_key(struct reader *r, const char *section, const char *key, const char *value)
{
  char name[128], where[sizeof r->err.text / 2];
  snprintf(where, sizeof where, "%.*s:%d: ", 400, r->path, r->line);
  if (!*section)
    return tc_fail(&r->err, TC_EUSER, "%s\"%s\" stands before the first [section]", where, key);
  const char *names[N_SECTIONS];
  bool known = false;
  for (int i = 0; i < N_SECTIONS; i++) {
    names[i] = sections[i].name;
    known = known || strcmp(section, names[i]) == 0;
  }
  int near = known ? -1 : tc_nearest(section, names, N_SECTIONS);
  if (near >= 0)
    return tc_fail(&r->err, TC_EUSER, "%sthere is no section [%s]; did you mean [%s]?", where,
                   section, names[near]);
  snprintf(name, sizeof name, "%s.%s", section, key);
  const struct opt *o = find_opt(name);
  if (!o) return unknown_key(name, "", where, &r->err);
  int *set_at = &r->set_at[o - opts];
  if (r->indented) {                         /* inih: the line above goes on */
    if (o->type != T_LIST)
      return tc_fail(&r->err, TC_EUSER, "%s%s takes one line; only lists of files go on on "
                     "indented lines", where, name);
    append_words(r->c, field(r->c, o), value);
    return 0;
  }
  if (*set_at)
    return tc_fail(&r->err, TC_EUSER, "%s%s was given in line %d already", where, name,
                   *set_at);
  *set_at = r->line;
  return set_value(r->c, o, value, where, &r->err);
}

/* inih's handler: nonzero is good. */
static int on_key(void *arg, const char *section, const char *key, const char *value)
{
  struct reader *r = arg;
  if (!r->failed) r->failed = handle_key(r, section, key, value);
  return r->failed == 0;
}

/* text: NULL, or the run file's text, for which path is only a name. */
static int read_file(struct tc_config *c, const char *path, const char *text, struct tc_err *err)
{
  struct reader r = { .c = c, .path = path };
  r.f = text ? fmemopen((char *)(uintptr_t)text, strlen(text), "r") : fopen(path, "r");
  if (!r.f) return tc_fail(err, TC_EUSER, "cannot open run file %s: %s", path, strerror(errno));
  int bad_line = ini_parse_stream(read_line, &r, on_key, &r);
  int read_errno = ferror(r.f) ? errno : 0;
  fclose(r.f);
  if (read_errno)
    return tc_fail(err, TC_EUSER, "cannot read run file %s: %s", path, strerror(read_errno));
  /* A line inih itself could not read does not stop it; the first fault is told. */
  if (bad_line > 0 && (!r.failed || bad_line < r.line))
    return tc_fail(err, TC_EUSER, "%s:%d: neither \"key = value\" nor \"[section]\"", path,
                   bad_line);
  if (r.failed) return tc_fail(err, r.failed, "%s", r.err.text);
  return 0;
}

/* ---- flags --------------------------------------------------------------------------------- */

/* The command's own flags. Returns 1 if `name` is one of them, 0 if not, or a status.
 * `value` is what follows "=", or NULL. */
static int extra_flag(struct tc_config *c, const char *name, const char *value,
                      const char *next, bool *took_next, const char *const *extra,
                      const char **extra_value, struct tc_err *err)
{
  for (int i = 0; extra && extra[i]; i++) {
    size_t len = strlen(extra[i]);
    bool takes = extra[i][len - 1] == '=';
    if (strlen(name) != len - takes || strncmp(extra[i], name, len - takes) != 0) continue;
    if (!takes && value) return tc_fail(err, TC_EUSER, "--%s takes no value", name);
    if (takes && !value) {
      if (!next) return tc_fail(err, TC_EUSER, "--%s takes a value: --%s=...", name, name);
      value = next;
      *took_next = true;
    }
    extra_value[i] = takes ? tc_pool_strdup(c->pool, value) : "yes";
    return 1;
  }
  return 0;
}

/* An option as a flag gave it. */
struct flag { const struct opt *opt; const char *value; };

/* The flag at arg (with its dashes) into *flag, with opt NULL if it is the command's own.
 * *took_next: the next argument was its value. */
static int parse_flag(struct tc_config *c, struct flag *flag, const char *arg, const char *next,
                      bool *took_next, const char *const *extra, const char **extra_value,
                      struct tc_err *err)
{
  *flag = (struct flag){ 0 };
  *took_next = false;
  if (strncmp(arg, "--", 2) != 0 || !arg[2])
    return tc_fail(err, TC_EUSER, "there is no option %s; options are --section.key=value",
                   arg);
  const char *eq = strchr(arg, '='), *value = eq ? eq + 1 : NULL;
  char name[128];
  snprintf(name, sizeof name, "%.*s", eq ? (int)(eq - arg) - 2 : (int)strlen(arg) - 2, arg + 2);
  if (next && strncmp(next, "--", 2) == 0) next = NULL;
  int own = extra_flag(c, name, value, next, took_next, extra, extra_value, err);
  if (own) return TC_MIN(own, 0);
  const struct opt *o = find_opt(name);
  if (!o) return unknown_key(name, "--", "", err);
  if (!value) {
    if (!next) return tc_fail(err, TC_EUSER, "%s takes a value: %s=...", arg, arg);
    value = next;
    *took_next = true;
  }
  *flag = (struct flag){ o, value };
  return 0;
}

/* Flags override the run file wherever it stands among them, so they are collected first. text:
 * NULL, or that of a run file called text_name. */
static int read_args(struct tc_config *c, int argc, char **argv, const char *const *extra,
                     const char **extra_value, const char *text, const char *text_name,
                     struct tc_err *err)
{
  struct flag *flags = tc_pool_alloc(c->pool, (size_t)TC_MAX(argc, 1) * sizeof *flags);
  int n_flags = 0;
  const char *file = NULL;
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-') {
      bool took_next;
      TC_TRY(parse_flag(c, &flags[n_flags], argv[i], i + 1 < argc ? argv[i + 1] : NULL,
                        &took_next, extra, extra_value, err));
      n_flags += flags[n_flags].opt != NULL;
      i += took_next;
    } else if (file) {
      return tc_fail(err, TC_EUSER, "%s: unexpected; the run file is %s, and every option "
                     "is --section.key=value", argv[i], file);
    } else {
      file = argv[i];
    }
  }
  if (file) TC_TRY(read_file(c, file, NULL, err));
  if (text && *text) TC_TRY(read_file(c, text_name, text, err));
  for (int i = 0; i < n_flags; i++)
    TC_TRY(set_value(c, flags[i].opt, flags[i].value, "--", err));
  return 0;
}

static int config_new(struct tc_config **out, int argc, char **argv, const char *const *extra,
                      const char **extra_value, const char *text, const char *text_name,
                      struct tc_err *err)
{
  *out = NULL;
  struct tc_config *c = tc_calloc(1, sizeof *c);
  c->pool = tc_pool_new();
  for (int i = 0; extra && extra[i]; i++) extra_value[i] = NULL;
  for (int i = 0; i < N_OPTS; i++) {
    int status = set_value(c, &opts[i], opts[i].dflt, "options.def: ", err);
    TC_ASSERT(status == 0);
  }
  int status = read_args(c, argc, argv, extra, extra_value, text, text_name, err);
  if (status == 0) *out = c;
  else tc_config_free(c);
  return status;
}

int tc_config_new(struct tc_config **out, int argc, char **argv, const char *const *extra,
                  const char **extra_value, struct tc_err *err)
{
  return config_new(out, argc, argv, extra, extra_value, NULL, NULL, err);
}

int tc_config_from_text(struct tc_config **out, const char *text, const char *name, int argc,
                        char **argv, struct tc_err *err)
{
  return config_new(out, argc, argv, NULL, NULL, text, name, err);
}

void tc_config_free(struct tc_config *c)
{
  if (!c) return;
  tc_pool_free(c->pool);
  free(c);
}

/* ---- printing ----------------------------------------------------------------------------- */

/* The shortest decimal that reads back as x. */
static void print_real(FILE *f, double x)
{
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, x);
    if (strtod(text, NULL) == x) break;
  }
  fputs(text, f);
}

static void print_value(FILE *f, const struct tc_config *c, const struct opt *o)
{
  const void *p = field(c, o);
  switch (o->type) {
  case T_INT:
    if (*(const int64_t *)p == TC_AUTO) fputs("auto", f);
    else fprintf(f, "%lld", (long long)*(const int64_t *)p);
    break;
  case T_REAL:
    if (*(const double *)p < 0) fputs("auto", f);
    else print_real(f, *(const double *)p);
    break;
  case T_BOOL: fputs(*(const bool *)p ? "yes" : "no", f); break;
  case T_STR: fputs(*(char *const *)p, f); break;
  case T_LIST: {
    const struct tc_list *l = p;
    for (int i = 0; i < l->n; i++)           /* a line a file: lines have a greatest length */
      fprintf(f, "%s%s", i ? "\n  " : "", l->item[i]);
    break;
  }
  }
}

char *tc_config_text(const struct tc_config *c)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  const char *section = "";
  for (int i = 0; i < N_OPTS; i++) {
    const struct opt *o = &opts[i];
    if (strcmp(section, o->section) != 0)
      fprintf(f, "%s[%s]\n", i ? "\n" : "", section = o->section);
    fprintf(f, "%s = ", o->key);
    print_value(f, c, o);
    fputc('\n', f);
  }
  if (fclose(f) != 0) TC_ASSERT(!"out of memory for the configuration's text");
  return text;
}

/* Text for roff: a backslash and a dash are escaped, and a line can't begin a request. */
static void put(FILE *f, bool man, const char *s)
{
  if (man && (*s == '.' || *s == '\'')) fputs("\\&", f);
  for (; *s; s++) {
    if (man && *s == '\\') fputs("\\e", f);
    else if (man && *s == '-') fputs("\\-", f);
    else fputc(*s, f);
  }
}

static const char *value_name(const struct opt *o)
{
  static const char *const name[] = { [T_INT] = "N", [T_REAL] = "X", [T_STR] = "TEXT",
                                      [T_BOOL] = "yes|no", [T_LIST] = "FILES" };
  return *o->choices ? o->choices : name[o->type];
}

static void print_opt(FILE *f, const struct opt *o, bool man)
{
  char left[96], tail[160] = "";
  int width = snprintf(left, sizeof left, "--%s=%s", o->name, value_name(o));
  if (*o->unit) snprintf(tail, sizeof tail, " [%s]", o->unit);
  if (*o->dflt) {
    size_t n = strlen(tail);
    snprintf(tail + n, sizeof tail - n, " (default %s)", o->dflt);
  }
  fputs(man ? ".TP\n.B " : "  ", f);
  put(f, man, left);
  if (man || width > 30) fputc('\n', f);
  if (!man) fprintf(f, "%*s", width > 30 ? 34 : 32 - width, "");
  put(f, man, o->help);
  put(f, man, *o->help ? tail : tail + (*tail == ' '));
  fputc('\n', f);
}

void tc_config_help(FILE *f, bool man)
{
  const char *section = "";
  for (int i = 0, s = 0; i < N_OPTS; i++) {
    if (strcmp(section, opts[i].section) != 0) {
      section = opts[i].section;
      while (strcmp(sections[s].name, section) != 0) s++;
      if (man) fprintf(f, ".SS [%s]\n", section);
      else fprintf(f, "%s[%s] ", i ? "\n" : "", section);
      put(f, man, sections[s].help);
      fputc('\n', f);
    }
    print_opt(f, &opts[i], man);
  }
}

/* ---- commands ----------------------------------------------------------------------------- */

int tc_cmd_fail(const struct tc_err *err)
{
  TC_ASSERT(err->status < 0);
  tc_log("%s", err->text);
  return -err->status;
}
