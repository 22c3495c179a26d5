/* completion.c - what `tercio --completion` prints: the tables of bash's completion, as bash reads them.
 * completion.bash has the functions; `make` joins both. All words come from where they are defined:
 * the usage of the commands, options.def, and the tables of presets, devices, passes and operations. */
#include "src/bench/bench.h"
#include "src/cmd/completion.h"
#include "src/config/config.h"
#include "src/model/model.h"
#include "src/plan/plan.h"
#include "src/program/program.h"

#include <stdlib.h>
#include <string.h>

/* The words of one form of a command's usage, of which every "[" and "]" is a blank. */
static void print_takes(FILE *f, char *form)
{
  char *save = NULL;
  for (char *dots; (dots = strstr(form, "...")); ) memmove(dots, dots + 3, strlen(dots + 3) + 1);
  for (char *or; (or = strstr(form, "|-")); ) *or = ' ';
  bool takes_value = false;              /* the word before was a flag without "=" */
  const char *blank = "";
  for (char *w = strtok_r(form, " []", &save); w; w = strtok_r(NULL, " []", &save)) {
    const bool is_flag = *w == '-';
    if (strcmp(w, "|")) fprintf(f, "%s%s", takes_value && !is_flag ? "=" : blank, w);
    takes_value = is_flag && !strchr(w, '=');
    blank = " ";
  }
}

/* The length of a form: up to " | " outside brackets. */
static size_t form_length(const char *usage)
{
  int depth = 0;
  const char *at = usage;
  for (; *at && !(depth == 0 && !strncmp(at, " | ", 3)); at++) depth += (*at == '[') - (*at == ']');
  return (size_t)(at - usage);
}

/* How many letters of a form are its subcommands, "show|decode" of "show|decode FILES"; 0: it has none. */
static size_t subcommands(const char *form)
{
  const size_t n = strspn(form, "abcdefghijklmnopqrstuvwxyz|");
  return form[n] == ' ' || !form[n] ? n : 0;
}

void tc_completion_command(FILE *f, const char *name, const char *usage)
{
  fprintf(f, "_tercio_takes['%s']='", name);
  for (int subs = 0; subs < 2; subs++) {         /* those of the command itself are one entry */
    for (const char *at = usage; *at; at += strspn(at, " |")) {
      char *form = tc_sprintf("%.*s", (int)form_length(at), at);
      const size_t n = subcommands(form);
      at += strlen(form);
      for (size_t i = 0; subs && i < n; i += strcspn(form + i, "| ") + 1) {
        char *rest = tc_strdup(form + n);
        fprintf(f, "_tercio_takes['%s %.*s']='", name, (int)strcspn(form + i, "| "), form + i);
        print_takes(f, rest);
        fprintf(f, "'\n");
        free(rest);
      }
      if (!subs && !n) {
        print_takes(f, form);
        fprintf(f, " ");
      }
      free(form);
    }
    if (!subs) fprintf(f, "'\n");
  }
}

/* Words that a flag takes and that its usage or its type does not have. */
static void print_words(FILE *f)
{
  const char *const device_flags[] = { "--device", "--run.plan_device" };
  fprintf(f, "_tercio_words['--model.preset']='");
  for (const struct tc_model *p = tc_presets; p->preset; p++) fprintf(f, "%s ", p->preset);
  for (int k = 0; k < 2; k++) {
    fprintf(f, "'\n_tercio_words['%s']='%s", device_flags[k], k ? "auto no " : "");
    for (int i = 0; tc_plan_device_name(i); i++) fprintf(f, "%s ", tc_plan_device_name(i));
  }
  fprintf(f, "'\n_tercio_words['--after']='");
  for (int i = 0; tc_pass_names[i]; i++) fprintf(f, "%s ", tc_pass_names[i]);
  fprintf(f, "'\n_tercio_words['--op']='");
  for (int i = 0; i < TC_BENCH_OPS; i++) fprintf(f, "%s ", tc_bench_op_name[i]);
  fprintf(f, "'\n");
}

void tc_completion_begin(FILE *f)
{
  fprintf(f, "# Bash completion of tercio. Made by `tercio --completion` and src/cmd/completion.bash.\n"
          "declare -gA _tercio_takes=() _tercio_words=()\n_tercio_options='\n");
  tc_config_words(f);
  fprintf(f, "'\n");
  print_words(f);
}
