/* run_dir.c - the folder of a run: run.json first, then its metrics, which may still be missing. */
#include "src/report/report.h"

int tc_run_open(struct tc_run_dir *r, const char *folder, struct tc_err *err)
{
  *r = (struct tc_run_dir){ .folder = folder, .run_path = tc_sprintf("%s/run.json", folder),
                            .metrics_path = tc_sprintf("%s/metrics.jsonl", folder) };
  TC_TRY(tc_run_folder(folder, err));
  TC_TRY(tc_run_read(&r->run, r->run_path, err));
  tc_layouts_read(&r->layouts, r->run);
  return 0;
}

int tc_run_metrics(struct tc_run_dir *r, struct tc_err *err)
{
  TC_TRY(tc_metrics_read(&r->m, r->metrics_path, r->layouts.after, err));
  tc_steps_warn(&r->m.steps, r->metrics_path);
  return 0;
}

void tc_run_close(struct tc_run_dir *r)
{
  TC_FREE(r->run_path, r->metrics_path);
  json_decref(r->run);
  tc_layouts_free(&r->layouts);
  tc_metrics_free(&r->m);
}
