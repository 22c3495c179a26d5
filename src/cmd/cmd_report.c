/* cmd_report.c - `tercio report RUNDIR`: draws a run's folder as one page, prints its figures as CSV, or what was predicted and
 * measured as JSON; `tercio report A B ...` compares runs: as a text, a page or JSON. No MPI.
 */
#include "src/cmd/cmd.h"
#include "src/cmd/out.h"
#include "src/files/output.h"
#include "src/report/report.h"

#include <stdlib.h>

struct ask { const char *const *folder; int n; const char *out, *trace; int64_t step; bool json, csv; };

#define FIELD(f) .field = offsetof(struct ask, f)
const struct tc_flag tc_flags_report[] = {
  { "-o REPORT.html", "the page to write; with --csv, the table", .kind = TC_FLAG_TEXT, FIELD(out) },
  { "--trace FILE", "the trace of the timeline (default: the run's run.trace)", .kind = TC_FLAG_TEXT, FIELD(trace) },
  { "--step N", "the traced step to draw (default: the one of median length)", "the number of a traced step",
    TC_FLAG_WHOLE, FIELD(step), 1, 9e18 },
  { "--json", "print predicted and measured figures, of several runs those that are compared; -o may then be omitted",
    .kind = TC_FLAG_YES, FIELD(json) },
  { "--csv", "print a row for each step, with a column for each figure of metrics.jsonl; -o REPORT.csv writes it",
    .kind = TC_FLAG_YES, FIELD(csv), .drops = "--trace --step --json" },
  { .form = NULL }
};
static const struct tc_flags flags = { .flag = tc_flags_report, .command = "report", .wrong = "%s %s",
                                       .missing = "%s needs a value",
                                       .none = "no folder of a run (its run.out); see tercio report --help" };

/* What -o makes. */
static const struct tc_output_kind html = { "a report", { "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset" } };
static const struct tc_output_kind csv = { "a table of tercio report",
                                           { "step,loss,val_loss,lr,grad_norm,tokens,tokens_per_s,step_ms," } };

/* Begins the file of -o, which replaces nothing of the runs. */
static int begin_file(struct tc_output **f, const char *out, const struct tc_output_kind *kind, const struct tc_run_dir **run,
                      int n, struct tc_err *err)
{
  enum { KEPT = 3 };
  struct tc_output_kept *kept = tc_calloc((size_t)n * KEPT, sizeof *kept);
  char **ckpt = tc_calloc((size_t)n, sizeof *ckpt);
  for (int i = 0; i < n; i++) {
    const char *named = tc_json_text(run[i]->run, "ckpt_dir");
    ckpt[i] = *named ? tc_strdup(named) : tc_sprintf("%s/ckpt", run[i]->folder);
    kept[i * KEPT] = (struct tc_output_kept){ run[i]->run_path, "the run.json of the run" };
    kept[i * KEPT + 1] = (struct tc_output_kept){ run[i]->metrics_path, "the metrics of the run" };
    kept[i * KEPT + 2] = (struct tc_output_kept){ ckpt[i], "the folder of checkpoints" };
  }
  const struct tc_output_opts o = { .kind = kind, .flag = "-o", .kept = kept, .n_kept = n * KEPT };
  const int rc = tc_output_new(f, out, &o, err);
  for (int i = 0; i < n; i++) free(ckpt[i]);
  TC_FREE(ckpt, kept);
  return rc;
}

static int make_table(const struct ask *a, struct tc_err *err)
{
  struct tc_run_dir r;
  struct tc_output *file = NULL;
  struct tc_csv table = { .columns = 0 };
  int rc = tc_run_open(&r, a->folder[0], err);
  if (!rc && a->out) rc = begin_file(&file, a->out, &csv, &(const struct tc_run_dir *){ &r }, 1, err);
  if (!rc) rc = tc_csv_write(file ? tc_output_stream(file) : stdout, &table, r.metrics_path, err);
  if (!rc) tc_steps_warn(&table.steps, r.metrics_path);
  if (file) rc = tc_output_end(file, rc, err);
  if (!rc && a->out)
    printf("%s: steps %lld to %lld, %d column%s\n", a->out, (long long)table.steps.first, (long long)table.steps.last,
           table.columns, tc_plural(table.columns));
  tc_run_close(&r);
  return rc;
}

static int make_page(const struct ask *a, struct tc_err *err)
{
  struct tc_run_dir r;
  struct tc_timeline t = { 0 };
  struct tc_err note = { 0 };
  struct tc_output *file = NULL;
  int rc = tc_run_open(&r, a->folder[0], err);
  if (!rc) rc = tc_run_metrics(&r, err);
  struct tc_page page = { .folder = r.folder, .run = r.run, .layouts = &r.layouts, .m = &r.m };
  if (!rc && a->out) rc = begin_file(&file, a->out, &html, &(const struct tc_run_dir *){ &r }, 1, err);
  if (!rc && (rc = tc_page_find_trace(&page, &t, a->trace, a->step, &note)) < 0) *err = note;
  if (!rc && a->json) tc_out_json(tc_report_plan(&page), JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  if (file && !rc) tc_page_write(tc_output_stream(file), &page);
  if (file) rc = tc_output_end(file, rc, err);
  if (!rc && a->out && !a->json) printf("%s: steps %lld to %lld%s\n", a->out, (long long)r.m.steps.first,
                  (long long)r.m.steps.last, page.t ? ", with a timeline" : "");
  tc_timeline_free(&t);
  tc_run_close(&r);
  return rc;
}

static int compare(const struct ask *a, struct tc_err *err)
{
  struct tc_comparison c;
  struct tc_output *file = NULL;
  int rc = tc_compare_read(&c, a->folder, a->n, err);
  if (!rc && a->out) {
    const struct tc_run_dir **run = tc_calloc((size_t)c.n, sizeof *run);
    for (int i = 0; i < c.n; i++) run[i] = &c.run[i].r;
    rc = begin_file(&file, a->out, &html, run, c.n, err);
    free(run);
  }
  if (!rc && a->json) tc_out_json(tc_compare_json(&c), JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  if (!rc && !a->json && !a->out) tc_compare_text(stdout, &c);
  if (file && !rc) tc_compare_page(tc_output_stream(file), &c);
  if (file) rc = tc_output_end(file, rc, err);
  if (!rc && a->out && !a->json) printf("%s: %d runs\n", a->out, c.n);
  tc_compare_free(&c);
  return rc;
}

/* Refuses what has no meaning for so many runs. */
static int check(const struct ask *a, struct tc_err *err)
{
  const char *drops = a->trace ? "--trace" : a->step ? "--step" : a->csv ? "--csv" : NULL;
  if (a->n > 1 && drops) return tc_fail(err, TC_EUSER, "%s has no effect with several runs: name one folder", drops);
  if (a->n > 1 || a->out || a->json || a->csv) return 0;
  return tc_fail(err, TC_EUSER, "no -o REPORT.html: where should the page go? (--json and --csv print figures without a page)");
}

int tc_cmd_report(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct ask a = { 0 };
  struct tc_args args;
  int rc = tc_args_find(&args, &flags, argc, argv, &err);
  if (!rc) rc = tc_args_check(&args, &err);
  if (!rc) rc = tc_args_set(&args, &a, &err);
  a.folder = (const char *const *)args.word;
  a.n = args.n_words;
  if (!rc) rc = check(&a, &err);
  if (!rc) rc = a.csv ? make_table(&a, &err) : a.n > 1 ? compare(&a, &err) : make_page(&a, &err);
  tc_args_free(&args);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
