/* read_flags.c - reads the flags of a command by their table, and the model and options of eval and sample. */
#include "src/cmd/cmd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool set_field(const struct tc_flag *f, void *fields, const char *value)
{
  void *field = (char *)fields + f->field;
  char *end;
  errno = 0;
  switch (f->kind) {
  case TC_FLAG_YES: case TC_FLAG_NO:
    *(bool *)field = f->kind == TC_FLAG_YES;
    return true;
  case TC_FLAG_TEXT:
    *(const char **)field = value;
    return *value != '\0';
  case TC_FLAG_WHOLE: {
    const int64_t n = *(int64_t *)field = strtoll(value, &end, 10);
    return *value && !*end && !errno && (double)n >= f->least && (double)n <= f->most;
  }
  case TC_FLAG_REAL: {
    const double x = *(double *)field = strtod(value, &end);
    return *value && !*end && x >= f->least && x <= f->most;
  }
  default:
    return f->set(fields, f, value);
  }
}

/* Whether the word after argv[i] is a value: of a flag with one value, whatever it is. */
static bool has_value(int argc, char **argv, int i, bool several)
{
  return i + 1 < argc && !(several && strncmp(argv[i + 1], "--", 2) == 0);
}

int tc_flag_read(const struct tc_flag *f, void *fields, int argc, char **argv, int *i, const char *command,
                 struct tc_err *err)
{
  const size_t n = strcspn(f->form, " ");
  const bool several = strstr(f->form, " ...") != NULL;
  if (strncmp(argv[*i], f->form, n) != 0) return 0;
  const char *rest = argv[*i] + n, *value = NULL;
  if (*rest == '=' && f->takes) value = rest + 1;
  else if (*rest && f->form[1] != '-' && f->takes) value = rest;
  else if (*rest) return 0;
  const bool more = several && !value;           /* all words up to the next flag are values */
  do {
    if (f->takes && !value) value = has_value(argc, argv, *i, several) ? argv[++*i] : "";
    if (!set_field(f, fields, value))
      return tc_fail(err, TC_EUSER, "%s: %.*s takes %s, not '%s'", command, (int)n, f->form, f->takes, value);
    value = NULL;
  } while (more && has_value(argc, argv, *i, several));
  return 1;
}

int tc_flags_read(const struct tc_flag *flags, void *fields, int argc, char **argv, int *i, const char *command,
                  struct tc_err *err)
{
  int rc = 0;
  for (const struct tc_flag *f = flags; f->form && rc == 0; f++)
    rc = tc_flag_read(f, fields, argc, argv, i, command, err);
  return rc;
}

int tc_cmd_model_arg(struct tc_trained *m, int argc, char **argv, int *i, struct tc_err *err)
{
  char *arg = argv[*i];
  if (!m->flag) {
    m->flag = tc_calloc((size_t)argc + 1, sizeof *m->flag);
    m->flag[m->n_flags++] = argv[0];
  }
  if (arg[0] != '-') {
    if (m->path) return tc_fail(err, TC_EUSER, "one model at a time: '%s' or '%s'?", m->path, arg);
    m->path = arg;
    return 0;
  }
  m->flag[m->n_flags++] = arg;
  if (!strchr(arg, '=') && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2)) m->flag[m->n_flags++] = argv[++*i];
  return 0;
}
