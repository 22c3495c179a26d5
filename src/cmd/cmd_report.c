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

/* What -o makes. */
static const struct tc_output_kind html = { "a report", { "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset" } };
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

static int make_page(const struct ask *a, struct tc_err *err)
{
  struct tc_run_dir r;
  struct tc_timeline t = { 0 };
  struct tc_err note = { 0 };
  struct tc_output *file = NULL;
  int rc = tc_run_open(&r, a->folder, err);
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

int tc_cmd_report(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct ask a = { 0 };
  int rc = tc_args_read(&a.folder, &flags, &a, argc, argv, &err);
  if (!rc && !a.out && !a.json)
    rc = tc_fail(&err, TC_EUSER, "no -o REPORT.html: where should the page go? (--json prints figures without a page)");
  if (!rc) rc = make_page(&a, &err);
  return rc < 0 ? tc_say_failure(&err) : 0;
}
