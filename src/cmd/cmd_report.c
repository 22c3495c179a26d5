/* cmd_report.c - `tercio report RUNDIR -o report.html`: draws a run's folder as one page; --json: predictions
 * compared with measurements. No MPI.
 */
#include "src/cmd/cmd.h"
#include "src/cmd/out.h"
#include "src/files/output.h"
#include "src/report/report.h"

#include <stdlib.h>

struct ask { const char *folder, *out, *trace; int64_t step; bool json; };

#define FIELD(f) .field = offsetof(struct ask, f)
const struct tc_flag tc_flags_report[] = {
  { "-o REPORT.html", "the page to write", .kind = TC_FLAG_TEXT, FIELD(out) },
  { "--trace FILE", "the trace of the timeline (default: the run's run.trace)", .kind = TC_FLAG_TEXT, FIELD(trace) },
  { "--step N", "the traced step to draw (default: the one of median length)", "the number of a traced step",
    TC_FLAG_WHOLE, FIELD(step), 1, 9e18 },
  { "--json", "print predicted and measured figures; -o may then be omitted", .kind = TC_FLAG_YES, FIELD(json) },
  { .form = NULL }
};
static const struct tc_flags flags = { .flag = tc_flags_report, .command = "report", .wrong = "%s %s",
                                       .missing = "%s needs a value",
                                       .none = "no folder of a run (its run.out); see tercio report --help",
                                       .two = "one run at a time: %s or %s" };

/* Begins the page's file. */
static int begin_page(struct tc_output **f, const struct ask *a, const struct tc_page *page, const char *run_path,
                      const char *metrics_path, struct tc_err *err)
{
  static const struct tc_output_kind html = { "a report", { "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset" } };
  const char *ckpt = tc_json_text(page->run, "ckpt_dir");
  char *default_ckpt = tc_sprintf("%s/ckpt", a->folder);
  const struct tc_output_kept kept[] = { { run_path, "the run.json of the run" }, { metrics_path, "the metrics of the run" },
                                         { *ckpt ? ckpt : default_ckpt, "the folder of checkpoints" } };
  const struct tc_output_opts o = { .kind = &html, .flag = "-o", .kept = kept, .n_kept = sizeof kept / sizeof *kept };
  const int rc = tc_output_new(f, a->out, &o, err);
  free(default_ckpt);
  return rc;
}

static int run(const struct ask *a, struct tc_err *err)
{
  TC_TRY(tc_run_folder(a->folder, err));
  char *run_path = tc_sprintf("%s/run.json", a->folder);
  char *metrics_path = tc_sprintf("%s/metrics.jsonl", a->folder);
  struct tc_layouts layouts = { 0 };
  struct tc_metrics m = { 0 };
  struct tc_timeline t = { 0 };
  struct tc_err note = { 0 };
  struct tc_output *page_file = NULL;
  json_t *o = NULL;
  int rc = tc_run_read(&o, run_path, err);
  if (!rc) tc_layouts_read(&layouts, o);
  if (!rc) rc = tc_metrics_read(&m, metrics_path, layouts.after, err);
  if (!rc && m.broken)
    tc_warn("%s: %lld line%s cannot be read and %s skipped (the first is line %lld)", metrics_path,
            (long long)m.broken, tc_plural(m.broken), m.broken == 1 ? "is" : "are",
            (long long)m.first_broken);
  struct tc_page page = { .folder = a->folder, .run = o, .layouts = &layouts, .m = &m };
  if (!rc && a->out) rc = begin_page(&page_file, a, &page, run_path, metrics_path, err);
  if (!rc && (rc = tc_page_find_trace(&page, &t, a->trace, a->step, &note)) < 0) *err = note;
  if (!rc && a->json) tc_out_json(tc_report_plan(&page), JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  if (page_file && !rc) tc_page_write(tc_output_stream(page_file), &page);
  if (page_file) rc = tc_output_end(page_file, rc, err);
  if (!rc && a->out && !a->json) printf("%s: steps %lld to %lld%s\n", a->out, (long long)m.first_step,
                  (long long)m.last_step, page.t ? ", with a timeline" : "");
  tc_layouts_free(&layouts);
  tc_metrics_free(&m);
  tc_timeline_free(&t);
  json_decref(o);
  TC_FREE(run_path, metrics_path);
  return rc;
}

int tc_cmd_report(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct ask a = { 0 };
  int rc = tc_args_read(&a.folder, &flags, &a, argc, argv, &err);
  if (!rc && !a.out && !a.json)
    rc = tc_fail(&err, TC_EUSER, "no -o REPORT.html: where should the page go? (--json prints figures without a page)");
  if (!rc) rc = run(&a, &err);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
