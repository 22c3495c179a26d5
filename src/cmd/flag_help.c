/* flag_help.c - flags as help and man page print them, and the man page's section on the keys of metrics.jsonl. */
#include "src/cmd/cmd.h"
#include "src/metrics/metrics.h"

void tc_roff_line(FILE *f, const char *request, const char *text)
{
  fputs(request, f);
  for (const char *s = text; *s; s++) fputs(*s == '-' ? "\\-" : *s == '\\' ? "\\e" : (char[]){ *s, '\0' }, f);
  fputc('\n', f);
}

void tc_flags_print(FILE *f, const struct tc_flag *list, const char *takes, const char *margin, int width)
{
  for (; list->form; list++) {
    if (!tc_flag_is_of(list, takes)) continue;
    if (margin) {
      fprintf(f, "%s%-*s  %s\n", margin, width, list->form, list->help);
    } else {
      tc_roff_line(f, ".TP\n.B ", list->form);
      tc_roff_line(f, "", list->help);
    }
  }
}

void tc_cmd_metrics_man(void)
{
  printf(".SH METRICS\n"
         "A line of\n.I OUT/metrics.jsonl\nis a JSON object. It is on disk as soon as its step has ended. Keys that say "
         "nothing are left out,\nsuch as ckpt in a step without a checkpoint. A figure that is not finite is null, "
         "and\n.B not_finite\nof its object says which; a null without that reason: there is no such figure.\n"
         "On a resume the lines after the checkpoint's step are cut off. Programs that follow the file should follow its "
         "name\n(tail \\-F): it is cut in place where the start before has ended, and is otherwise another file.\n");
  for (int i = 0; i < TC_METRICS; i++) {
    const struct tc_metric_row *m = &tc_metric_row[i];
    printf(".TP\n.B %s\n%s%s%s%s\n", m->key, *m->unit ? "(" : "", m->unit, *m->unit ? ") " : "", m->help);
  }
}
