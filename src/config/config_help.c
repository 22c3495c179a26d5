/* config_help.c - the options as help and man page. */
#include "src/config/impl.h"

#include <string.h>

/* Text for roff: a backslash and a dash are escaped, a line can't begin a request, and a list of words may be broken. */
static void put(FILE *f, bool man, const char *s)
{
  if (man && (*s == '.' || *s == '\'')) fputs("\\&", f);
  for (; *s; s++) {
    if (man && *s == '\\') fputs("\\e", f);
    else if (man && *s == '-') fputs("\\-", f);
    else if (man && *s == '|') fputs("|\\:", f);
    else fputc(*s, f);
  }
}

/* "N", "auto|N", "yes|no", "a|b|c"; the range, if there is one, into *range. */
static void name_value(const struct tc_opt *o, char *text, size_t size, const char **range,
                       int *range_len)
{
  static const char *const name[] = { [T_INT] = "N", [T_REAL] = "X", [T_FLOAT] = "X",
                                      [T_STR] = "TEXT", [T_FILE] = "FILE", [T_DIR] = "DIR",
                                      [T_BOOL] = "yes|no", [T_LIST] = "FILES" };
  *text = '\0';
  *range = NULL;
  if (!*o->values) tc_text_add(text, size, "%s", name[o->type]);
  for (const char *at = *o->values ? o->values : NULL; at;) {
    size_t len;
    const char *part = tc_opt_part(&at, &len);
    const bool in = *part == '[' || *part == '(';
    if (in) {
      *range = part;
      *range_len = (int)len;
    }
    tc_text_add(text, size, "%.*s%s", in ? 1 : (int)len, in ? name[o->type] : part, at ? "|" : "");
  }
}

static void print_opt(FILE *f, const struct tc_opt *o, bool man)
{
  char left[300], value[200], tail[160] = "";
  const char *range;
  int range_len;
  name_value(o, value, sizeof value, &range, &range_len);
  int width = snprintf(left, sizeof left, "--%s=%s", o->name, value);
  if (*o->unit) tc_text_add(tail, sizeof tail, " [%s]", o->unit);
  if (*o->dflt) tc_text_add(tail, sizeof tail, " (default %s", o->dflt);
  if (range) tc_text_add(tail, sizeof tail, ", in %.*s", range_len, range);
  if (*o->dflt) tc_text_add(tail, sizeof tail, ")");
  fputs(man ? ".TP\n.B " : "  ", f);
  put(f, man, left);
  if (man || width > 30) fputc('\n', f);
  if (!man) fprintf(f, "%*s", width > 30 ? 34 : 32 - width, "");
  put(f, man, o->help);
  put(f, man, *o->help ? tail : tail + (*tail == ' '));
  fputc('\n', f);
}

void tc_config_words(FILE *f)
{
  for (int i = 0; i < TC_N_OPTS; i++) {
    char value[80];
    const char *range;
    int range_len;
    name_value(&tc_opts[i], value, sizeof value, &range, &range_len);
    fprintf(f, "--%s=%s\n", tc_opts[i].name, value);
  }
}

/* The head of a section and its options. */
static void print_section(FILE *f, const struct tc_section *s, bool man)
{
  fprintf(f, man ? ".SS [%s]\n" : "[%s] ", s->name);
  put(f, man, s->help);
  fputc('\n', f);
  for (int i = 0; i < TC_N_OPTS; i++)
    if (strcmp(tc_opts[i].section, s->name) == 0) print_opt(f, &tc_opts[i], man);
}

static const char stage_help[] = "what changes from a step on, in a run of several stages; flags: --stageN.key=value, N from 2 on";

/* The head of the sections of stages and their keys. */
static void print_stages(FILE *f, bool man)
{
  char keys[300];
  fputs(man ? ".SS [stage N]\n" : "[stage N] ", f);
  put(f, man, stage_help);
  fputs(man ? "\n.TP\n.B from=N\n" : "\n  from=N                        ", f);
  put(f, man, "the stage's first step, or the tokens after which it begins: from = 2e9 tokens");
  fputs(man ? "\n.TP\n.B section.key=value\n" : "\n  section.key=value             ", f);
  put(f, man, "any of ");
  put(f, man, tc_stage_changes(NULL, 0, keys, sizeof keys));
  put(f, man, "; other options, and those not given, are as in the stage before\n");
}

void tc_config_help(FILE *f, bool man)
{
  for (int s = 0; s < TC_N_SECTIONS; s++) {
    if (s && !man) fputc('\n', f);
    print_section(f, &tc_sections[s], man);
  }
  if (!man) fputc('\n', f);
  print_stages(f, man);
}

void tc_config_help_sections(FILE *f)
{
  for (int s = 0; s < TC_N_SECTIONS; s++) fprintf(f, "  %-30s  %s\n", tc_sections[s].name, tc_sections[s].help);
  fprintf(f, "  %-30s  %s\n", "stage", stage_help);
}

int tc_config_help_section(FILE *f, const char *name, struct tc_err *err)
{
  const char *names[TC_N_SECTIONS];
  char list[200] = "";
  if (!strcmp(name, "stage")) return print_stages(f, false), 0;
  for (int s = 0; s < TC_N_SECTIONS; s++) {
    names[s] = tc_sections[s].name;
    tc_text_add(list, sizeof list, ", %s", names[s]);
    if (strcmp(names[s], name) == 0) return print_section(f, &tc_sections[s], false), 0;
  }
  const int near = tc_nearest(name, names, TC_N_SECTIONS);
  if (near >= 0)
    return tc_fail(err, TC_EUSER, "--help %.60s: there is no section [%.60s]; did you mean %s?", name, name,
                   names[near]);
  return tc_fail(err, TC_EUSER, "--help %.60s: there is no section [%.60s]; give all%s, stage", name, name, list);
}
