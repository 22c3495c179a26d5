/* read_flags.c - reads the words of a command by the table of its flags: sorts them, checks which flags need and exclude
 * others, reads values into the command's struct. Nothing is read before all are sorted, so that the run file and its
 * options can be read between. */
#include "src/cmd/cmd.h"
#include "src/graph/mesh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t name_size(const struct tc_flag *f) { return strcspn(f->form, " "); }
static bool takes_value(const struct tc_flag *f) { return strchr(f->form, ' ') != NULL; }
/* "--chat [TEMPLATE]" may have no value. */
static bool may_stand_alone(const struct tc_flag *f) { return strstr(f->form, " [") != NULL; }
static bool takes_several(const struct tc_flag *f) { return strstr(f->form, " ...") != NULL; }

bool tc_flag_is_of(const struct tc_flag *f, const char *takes)
{
  const size_t n = name_size(f);
  const char *at = takes;
  for (; at && (at = strstr(at, "-")); at += strcspn(at, " []|"))
    if (strcspn(at, " []|") == n && !strncmp(at, f->form, n)) return true;
  return !takes;
}

/* ---- sorting the words --------------------------------------------------------------- */

/* The flag at `arg`; *value: what follows its "=", or its letter. */
static const struct tc_flag *find_flag(const struct tc_flags *l, const char *arg, const char **value)
{
  for (const struct tc_flag *f = l->flag; f->form; f++) {
    if (strncmp(arg, f->form, name_size(f)) != 0 || !tc_flag_is_of(f, l->takes)) continue;
    const char *rest = arg + name_size(f);
    *value = NULL;
    if (*rest == '=' && (takes_value(f) || l->how & TC_FLAGS_STRICT)) *value = rest + 1;
    else if (*rest && f->form[1] != '-' && l->how & TC_FLAGS_JOINED && takes_value(f)) *value = rest;
    else if (*rest) continue;
    return f;
  }
  return NULL;
}

static bool is_option(const struct tc_flags *l, const char *arg)
{
  const size_t dot = strcspn(arg, ".=");
  if (l->how & TC_FLAGS_DOTTED) return strncmp(arg, "--", 2) == 0 && arg[dot] == '.';
  return l->how & TC_FLAGS_OPTIONS;
}

static int refuse_unknown(const struct tc_flags *l, const char *arg, struct tc_err *err)
{
  if (l->unknown) return tc_fail(err, TC_EUSER, l->unknown, l->command, arg, l->command, l->takes);
  return tc_fail(err, TC_EUSER, "tercio %s has no option '%s'; see tercio %.*s --help", l->command, arg,
                 (int)strcspn(l->command, " "), l->command);
}

/* Whether the word after argv[i] is a value; of a flag with one value it usually is, whatever it is. */
static bool has_value(int argc, char **argv, int i, bool strict)
{
  return i + 1 < argc && !(strict && strncmp(argv[i + 1], "--", 2) == 0);
}

/* A flag at argv[*i], with its values; *i becomes the last of them. */
static int take_flag(struct tc_args *a, const struct tc_flag *f, const char *value, int argc, char **argv, int *i,
                     struct tc_err *err)
{
  const bool strict = takes_several(f) || a->flags->how & TC_FLAGS_STRICT, more = takes_several(f) && !value;
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)name_size(f), f->form);
  if (value && !takes_value(f)) return tc_fail(err, TC_EUSER, "%s takes no value", name);
  do {
    const bool alone = may_stand_alone(f) && *i + 1 < argc && *argv[*i + 1] == '-';
    const bool next = takes_value(f) && !value && !alone && has_value(argc, argv, *i, strict);
    if (next) value = argv[++*i];
    if (takes_value(f) && !value && a->flags->missing && !may_stand_alone(f)) {
      const bool own = f->says && !f->needs && !f->against && !f->drops;
      return tc_fail(err, TC_EUSER, own ? f->says : a->flags->missing, name, name);
    }
    a->given[a->n_given++] = (struct tc_given){ f, value ? value : "" };
    value = NULL;
  } while (more && has_value(argc, argv, *i, strict));      /* all words up to the next flag are values */
  return 0;
}

/* Words, then options of the run file with their values, so that none is taken for the value of an option. */
static int sort_words(struct tc_args *a, char **option, int argc, char **argv, struct tc_err *err)
{
  const struct tc_flags *l = a->flags;
  int n_options = 0;
  bool words_only = false;
  for (int i = 1; i < argc; i++) {
    char *arg = argv[i];
    const char *value;
    const struct tc_flag *f;
    if (words_only || arg[0] != '-' || (!arg[1] && l->how & TC_FLAGS_DASH)) {
      a->word[a->n_words++] = arg;
    } else if (l->how & TC_FLAGS_END && strcmp(arg, "--") == 0) {
      words_only = true;
    } else if ((f = find_flag(l, arg, &value))) {
      TC_TRY(take_flag(a, f, value, argc, argv, &i, err));
    } else if (is_option(l, arg)) {
      option[n_options++] = arg;
      if (!strchr(arg, '=') && has_value(argc, argv, i, true)) option[n_options++] = argv[++i];
    } else {
      return refuse_unknown(l, arg, err);
    }
  }
  for (int i = 0; i < n_options; i++) a->word[a->n_words + i] = option[i];
  a->argc = 1 + a->n_words + n_options;
  if (l->none && a->n_words == 0) return tc_fail(err, TC_EUSER, "%s", l->none);
  return l->two && a->n_words > 1 ? tc_fail(err, TC_EUSER, l->two, a->word[0], a->word[1]) : 0;
}

/* ---- flags beside others -------------------------------------------------------------- */

/* The flag that is given of those that the text begins with; NULL: none. */
static const struct tc_given *given_of(const struct tc_args *a, const char *text)
{
  const char *const end = text + strcspn(text, ",:;");
  for (const char *at = text; at < end; at += strspn(at, " ")) {
    const size_t n = strcspn(at, " ,:;");
    for (int i = 0; i < a->n_given; i++)
      if (*at == '-' && name_size(a->given[i].flag) == n && !strncmp(at, a->given[i].flag->form, n)) return &a->given[i];
    at += n;
  }
  return NULL;
}

static int check_effect(const struct tc_args *a, const struct tc_given *g, struct tc_err *err)
{
  const struct tc_flag *f = g->flag;
  const bool without = f->needs && !given_of(a, f->needs), with = f->against && given_of(a, f->against);
  if (!without && !with) return 0;
  if (f->says) return tc_fail(err, TC_EUSER, f->says, g->value, g->value);
  return tc_fail(err, TC_EUSER, "%.*s%s%s has no effect %s %s", (int)name_size(f), f->form, takes_value(f) ? " = " : "",
                 g->value, without ? "without" : "with", without ? f->needs : f->against);
}

/* A flag that has no effect with g: of all the last that was given. */
static int check_dropped(const struct tc_args *a, const struct tc_given *g, struct tc_err *err)
{
  const struct tc_given *other = given_of(a, g->flag->drops);
  for (int i = 0; i < a->n_given && *g->flag->drops == '*'; i++)
    if (a->given[i].flag != g->flag) other = &a->given[i];
  if (!other) return 0;
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)name_size(other->flag), other->flag->form);
  if (g->flag->says) return tc_fail(err, TC_EUSER, g->flag->says, name);
  return tc_fail(err, TC_EUSER, "%s has no effect with %.*s%s%s", name, (int)name_size(g->flag), g->flag->form,
                 *g->value ? " " : "", g->value);
}

int tc_args_find(struct tc_args *a, const struct tc_flags *flags, int argc, char **argv, struct tc_err *err)
{
  char **option = tc_calloc((size_t)argc + 1, sizeof *option);
  *a = (struct tc_args){ .flags = flags };
  a->given = tc_calloc((size_t)argc + 1, sizeof *a->given);
  a->argv = tc_calloc((size_t)argc + 1, sizeof *a->argv);
  a->argv[0] = argv[0];
  a->word = a->argv + 1;
  int rc = sort_words(a, option, argc, argv, err);
  free(option);
  return rc;
}

int tc_args_check(const struct tc_args *a, struct tc_err *err)
{
  for (int i = 0; i < a->n_given; i++)
    if (a->given[i].flag->drops) TC_TRY(check_dropped(a, &a->given[i], err));
  for (int i = 0; i < a->n_given; i++) TC_TRY(check_effect(a, &a->given[i], err));
  return 0;
}

void tc_args_free(struct tc_args *a)
{
  TC_FREE(a->given, a->argv);
}

const char *tc_args_given(const struct tc_args *a, const char *flag)
{
  const char *value = NULL;
  for (int i = 0; i < a->n_given; i++)
    if (strlen(flag) == name_size(a->given[i].flag) && !strncmp(flag, a->given[i].flag->form, strlen(flag)))
      value = a->given[i].value;
  return value;
}

/* ---- values --------------------------------------------------------------------------- */

/* The index of the word in "refuse, replace or bytes"; -1: it is not one. */
static int find_word(const char *words, const char *value)
{
  for (int i = 0; *words; i++) {
    const size_t n = strcspn(words, ", ");
    if (n == strlen(value) && strncmp(words, value, n) == 0) return i;
    words += n;
    words += strspn(words, ", ");
    if (strncmp(words, "or ", 3) == 0) words += 3;
  }
  return -1;
}

static int set_field(const struct tc_flag *f, void *fields, const char *value, struct tc_err *err)
{
  void *field = (char *)fields + f->field;
  char *end;
  const char *rest;
  errno = 0;
  switch (f->kind) {
  case TC_FLAG_YES: case TC_FLAG_NO:
    *(bool *)field = f->kind == TC_FLAG_YES;
    return 0;
  case TC_FLAG_TEXT:
    *(const char **)field = value;
    return f->takes && !*value;
  case TC_FLAG_WORD: {
    const int i = *(int *)field = find_word(f->takes, value);
    return i < 0;
  }
  case TC_FLAG_INT: case TC_FLAG_WHOLE: {
    const int64_t n = strtoll(value, &end, 10);
    if (f->kind == TC_FLAG_INT) *(int *)field = (int)n;
    else *(int64_t *)field = n;
    return !*value || *end || errno || !((double)n >= f->least && (double)n <= f->most);
  }
  case TC_FLAG_REAL: {
    const double x = *(double *)field = strtod(value, &end);
    return !*value || *end || !(x >= f->least && x <= f->most);
  }
  case TC_FLAG_SIZE: {
    const int64_t n = *(int64_t *)field = tc_parse_whole(value, 1024, "KMG", &rest);
    return *rest || !((double)n >= f->least && (double)n <= f->most);
  }
  case TC_FLAG_AMOUNT: case TC_FLAG_BYTES: case TC_FLAG_TIME: {
    const double x = *(double *)field = f->kind == TC_FLAG_TIME ? tc_parse_seconds(value) : tc_parse_bytes(value);
    const int n = (int)name_size(f);
    if (!(x >= 0) || x > f->most) return 1;
    if (x < f->least) return tc_fail(err, TC_EUSER, "%.*s = %s: it must be above 0", n, f->form, value);
    if (f->kind != TC_FLAG_BYTES || strpbrk(value, "KMGTPBkmgtpb")) return 0;     /* "--memory 80" is not 80 bytes */
    return tc_fail(err, TC_EUSER, "%.*s = %s has no unit; %sGB would do", n, f->form, value, value);
  }
  case TC_FLAG_GIVEN:
    return 0;
  default:
    return f->set(fields, f, value, err);
  }
}

static int refuse_value(const struct tc_flags *l, const struct tc_flag *f, const char *value, struct tc_err *err)
{
  char name[64], takes[400], begins[400];
  snprintf(name, sizeof name, "%.*s", (int)name_size(f), f->form);
  snprintf(takes, sizeof takes, f->takes, f->least, f->most);
  if (!l->wrong) return tc_fail(err, TC_EUSER, "%s: %s takes %s, not '%s'", l->command, name, takes, value);
  snprintf(begins, sizeof begins, l->wrong, name, value);
  return tc_fail(err, TC_EUSER, "%s%s%s", begins, *takes == ' ' || *takes == ':' ? "" : ": give ", takes);
}

int tc_args_set(const struct tc_args *a, void *fields, struct tc_err *err)
{
  int rc = 0;
  for (int i = 0; i < a->n_given && rc == 0; i++) {
    rc = set_field(a->given[i].flag, fields, a->given[i].value, err);
    if (rc > 0) rc = refuse_value(a->flags, a->given[i].flag, a->given[i].value, err);
  }
  return rc;
}

/* ---- all together --------------------------------------------------------------------- */

int tc_args_read(const char **word, const struct tc_flags *flags, void *fields, int argc, char **argv, struct tc_err *err)
{
  struct tc_args a;
  int rc = tc_args_find(&a, flags, argc, argv, err);
  if (!rc) rc = tc_args_check(&a, err);
  if (!rc) rc = tc_args_set(&a, fields, err);
  *word = a.n_words ? a.word[0] : NULL;
  tc_args_free(&a);
  return rc;
}

int tc_args_run(struct tc_config **c, const struct tc_flags *flags, void *fields, int argc, char **argv, struct tc_err *err)
{
  struct tc_args a;
  int rc = tc_args_find(&a, flags, argc, argv, err);
  if (!rc) rc = tc_args_check(&a, err);
  if (!rc) rc = tc_config_new(c, a.argc, a.argv, err);
  if (!rc) rc = tc_args_set(&a, fields, err);
  tc_args_free(&a);
  return rc;
}

int tc_args_model(struct tc_trained *m, const struct tc_flags *flags, void *fields, int argc, char **argv,
                  struct tc_err *err)
{
  struct tc_args a;
  int rc = tc_args_find(&a, flags, argc, argv, err);
  if (!rc) rc = tc_args_check(&a, err);
  if (!rc) rc = tc_args_set(&a, fields, err);
  m->path = a.word[0];
  m->flag = a.argv;                              /* with the options behind the word, which becomes the command's name */
  for (int i = a.n_words; i < a.argc; i++) m->flag[m->n_flags++] = a.argv[i];
  free(a.given);
  return rc;
}

/* ---- a world --------------------------------------------------------------------------- */

int tc_args_world(int *world, int32_t **node, const char *text, struct tc_err *err)
{
  char *end, *cluster = NULL;
  const long n = strtol(text, &end, 10);
  if (*text && !*end) {
    if (n < 1 || n > INT32_MAX) return tc_fail(err, TC_EUSER, "--world %s: give 1 or more ranks", text);
    *world = (int)n;
    *node = tc_calloc((size_t)n, sizeof **node);
    return 0;
  }
  const size_t digits = *end == 'x' ? strspn(end + 1, "0123456789") : 0;
  if (end > text && digits && !end[1 + digits]) cluster = tc_sprintf("%ld nodes x %s", n, end + 1);
  const int rc = tc_mesh_synthetic(cluster ? cluster : text, NULL, node, err);
  free(cluster);
  if (rc > 0) *world = rc;
  return TC_MIN(rc, 0);
}
