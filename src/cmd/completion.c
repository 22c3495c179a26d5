/* completion.c - what `tercio --completion` prints: the tables of bash's completion, as bash reads them.
 * completion.bash has the functions; `make` joins both. All words come from where they are defined:
 * the usage of the commands, options.def, and the tables of presets, devices, passes and operations. */
#include "src/cmd/comm_bench.h"
#include "src/cmd/completion.h"
#include "src/config/config.h"
#include "src/model/model.h"
#include "src/plan/plan.h"
#include "src/program/program.h"

#include <stdlib.h>
#include <string.h>

void tc_completion_command(FILE *f, const char *name, const char *usage)
{
  char *copy = tc_strdup(usage), *save = NULL;
  for (char *dots; (dots = strstr(copy, "...")); ) memmove(dots, dots + 3, strlen(dots + 3) + 1);
  for (char *or; (or = strstr(copy, "|-")); ) *or = ' ';
  bool takes_value = false;              /* the word before was a flag without "=" */
  const char *blank = "";
  fprintf(f, "_tercio_takes['%s']='", name);
  for (char *w = strtok_r(copy, " []", &save); w; w = strtok_r(NULL, " []", &save)) {
    const bool is_flag = *w == '-';
    if (strcmp(w, "|")) fprintf(f, "%s%s", takes_value && !is_flag ? "=" : blank, w);
    takes_value = is_flag && !strchr(w, '=');
    blank = " ";
  }
  fprintf(f, "'\n");
  free(copy);
}

static void print_options(FILE *f)
{
  fprintf(f, "_tercio_options='\n");
  tc_config_words(f);
  fprintf(f, "'\n");
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
          "declare -gA _tercio_takes=() _tercio_words=()\n");
  print_options(f);
  print_words(f);
}
