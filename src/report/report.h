/* report.h - reads folders of runs, and draws one, or several beside each other, as one HTML page without scripts.
 *
 * In: run.json, metrics.jsonl and a trace. Out: the page, an object of what was predicted and measured, a table of all
 * figures as CSV; of several runs a page, an object or a text that compares them. Files in reading order: step_lines.c,
 * read_run.c, layouts.c, run_dir.c and run_options.c (the folder); timeline.c and find_trace.c (one step of a trace); page.c;
 * style.c and draw.c (curves, timeline); task_curves.c and predicted.c (parts of the page); csv.c; compare_runs.c,
 * compare_text.c and compare_page.c.
 *
 * All functions are Local. Reading fails with TC_EUSER. */
#ifndef TC_REPORT_H
#define TC_REPORT_H

#include <jansson.h>

#include "src/base/base.h"
#include "src/files/input.h"
#include "src/metrics/metrics.h"
#include "src/monitor/trace.h"

/* ---- layouts.c: what a run ran on, from which step on ---- */

struct tc_layout_change { int64_t after_step; char *text; };   /* "ranks 1 -> 2, pp 1 -> 2"; owned */
struct tc_layouts {
  struct tc_layout_change *change; int n, cap;   /* by step; owned */
  int64_t after;                 /* the present layout's steps come after this one; 0: all */
};
/* Takes them from run.json; one without "layouts" has no changes. */
void tc_layouts_read(struct tc_layouts *l, const json_t *run);
void tc_layouts_free(struct tc_layouts *l);

/* ---- step_lines.c: the lines of metrics.jsonl ---- */

struct tc_steps {
  int64_t first, last, lines;
  int64_t broken, first_broken;  /* skipped lines; the number of the first */
};
/* Calls take with the line of each step; s->last is then the step before it. Lines that cannot be read are skipped and
 * counted. TC_EUSER: no line is left, or steps are repeated. */
typedef void tc_step_fn(void *ctx, json_t *line);
int tc_steps_each(struct tc_steps *s, const char *path, tc_step_fn *take, void *ctx, struct tc_err *err);
/* Warns of the lines that were skipped, if any. */
void tc_steps_warn(const struct tc_steps *s, const char *path);

/* ---- read_run.c: run.json and metrics.jsonl ---- */

struct tc_series { double *x, *y; int n, cap_x, cap_y; };   /* x increasing, y finite */

/* How often a rank was the slowest of its stage, and by how much: the sum of its work time / median. */
struct tc_straggler_tally { int64_t steps; double times; char host[64]; };

/* A file of questions: parts of them that were answered right, over steps. */
struct tc_task_curve { char *name; int64_t questions; struct tc_series right, by_length; };

/* A figure, finite or not, and its step; step 0: no step had it. */
struct tc_at_step { double value; int64_t step; };

struct tc_metrics {
  struct tc_series loss, val, lr, norm, rate, ms, bubble;   /* over steps; rate in tokens/s */
  struct tc_at_step last_loss, last_val;
  struct tc_steps steps;
  double tokens, seconds;        /* tokens since step 0; time of the steps only */
  int64_t after;                 /* the figures below are of the steps after this one */
  int64_t first_stage;           /* the last step of the first stage, of which are predictions; 0: none of it after `after` */
  bool stages;                   /* there are steps of later ones */
  json_t *comm;                  /* "comm" of the first stage's last step that had no evaluation; owned; NULL: no step */
  int64_t comm_step;
  json_t *sources, *val_sources; /* of a blend, by the last line that has them; owned; NULL: none */
  struct tc_task_curve *task;    /* in the order in which they first appear; owned */
  int n_tasks, cap_tasks;
  struct tc_straggler_tally *slow;    /* by rank; owned */
  int n_slow, cap_slow;
  int64_t slow_steps;            /* steps with a slowest rank */
};
/* Steps up to `after` were of another layout: they are in the series, but not in the figures. TC_EUSER, as tc_steps_each. */
int tc_metrics_read(struct tc_metrics *m, const char *path, int64_t after, struct tc_err *err);
void tc_metrics_free(struct tc_metrics *m);
/* Reduces the series to about `most` points; extremes and the last point are kept. */
void tc_series_thin(struct tc_series *s, int most);
/* A copy that is drawn: figures are made of all points. To be freed. */
struct tc_series tc_series_thinned(const struct tc_series *s);
void tc_series_free(struct tc_series *s);
/* The rank that was slowest in most steps; -1: unknown. */
int tc_metrics_slowest(const struct tc_metrics *m);
/* Median of the last points beyond x = after and up to x = last; NAN if there are none. */
double tc_series_recent(const struct tc_series *s, int64_t after, int64_t last);

/* That the folder of a run is there. */
int tc_run_folder(const char *path, struct tc_err *err);
/* Reads run.json and checks that it has all that the page needs. *out is owned by the caller. */
int tc_run_read(json_t **out, const char *path, struct tc_err *err);
int64_t tc_json_int(const json_t *o, const char *key);       /* 0 if it is not an integer */
const char *tc_json_text(const json_t *o, const char *key);  /* "" if it is not a string */

/* ---- run_dir.c: a run's folder ---- */

struct tc_run_dir {
  const char *folder;            /* borrowed */
  char *run_path, *metrics_path; /* owned */
  json_t *run;                   /* run.json; owned */
  struct tc_layouts layouts;
  struct tc_metrics m;           /* empty until tc_run_metrics */
};
/* Reads run.json. To be freed, also after a failure. */
int tc_run_open(struct tc_run_dir *r, const char *folder, struct tc_err *err);
/* Reads metrics.jsonl, with a warning if lines are skipped. */
int tc_run_metrics(struct tc_run_dir *r, struct tc_err *err);
void tc_run_close(struct tc_run_dir *r);

/* ---- run_options.c: the run file in run.json ---- */

/* Copies the first stage's value of a key into buf, "" if the run has no such key. Returns buf. */
const char *tc_run_key(const json_t *run, const char *section, const char *key, char *buf, size_t size);
/* The same, and what later stages have instead: "8, from stage 3 on 16". */
const char *tc_run_key_of_stages(const json_t *run, const char *section, const char *key, char *buf, size_t size);
/* out[i] <- the options of run[i] that are not the same in all n runs: {"train.lr": "0.001"}, in the same order in all;
 * null: this run has no such option. Owned by the caller. */
void tc_run_differences(json_t **out, const json_t *const *run, int n);

/* ---- timeline.c: one step of a trace ---- */

enum { TC_LANES = 64 };          /* ranks drawn at most */
struct tc_span { double begin_us, end_us; int32_t mb; int16_t lane; uint8_t track, kind; };
struct tc_lane {
  int rank;
  char *name;                    /* the process's; owned */
  double busy_us[TC_EV_KINDS];
};
struct tc_timeline {
  int n_ranks, n_lanes;
  struct tc_lane lane[TC_LANES];
  char *track[256];              /* names by track number; owned; NULL: unused */
  struct tc_span *span; int n_spans, cap_spans;   /* sorted by lane, track and time */
  double begin_us, end_us;       /* of the step on all ranks */
  int64_t step, first_step, last_step, events, dropped;
  double clock_error_us;
};
/* step 0: the traced one of median length. */
int tc_timeline_read(struct tc_timeline *t, const char *path, int64_t step, struct tc_err *err);
void tc_timeline_free(struct tc_timeline *t);

/* ---- draw.c ---- */

void tc_html(FILE *f, const char *text);         /* escaped */
const char *tc_si(char *buf, size_t size, double x);   /* "12.3 k" */
struct tc_line { const struct tc_series *s; const char *name, *css; };   /* name NULL: not in the legend */
struct tc_chart {
  const char *title, *unit;
  const struct tc_line *line; int n_lines;
  bool from_zero, wide;                /* from 0 on; as wide as the page */
  const struct tc_layouts *layouts;    /* their changes are marked; NULL: no marks */
};
void tc_chart_svg(FILE *f, const struct tc_chart *c);
/* A short line in the style of a chart's. */
void tc_swatch_svg(FILE *f, const char *css);
void tc_timeline_svg(FILE *f, const struct tc_timeline *t);

/* ---- style.c: what all pages begin and end with ---- */

/* The head, and the title as a heading. */
void tc_page_begin(FILE *f, const char *title);
/* The end; version: of the program that the run used, or NULL. */
void tc_page_end(FILE *f, const char *version);

/* ---- page.c ---- */

struct tc_page {
  const char *folder;
  const json_t *run;
  const struct tc_layouts *layouts;
  const struct tc_metrics *m;
  const struct tc_timeline *t;   /* NULL: no trace */
  const char *trace_note;        /* why there is none */
};
/* find_trace.c: sets p->t to the trace that is read into *t, or p->trace_note to why there is none, which lasts as long
 * as *err. trace: --trace, which must exist; NULL: that of the run file, which may be missing. step: the one to read;
 * 0: any. */
int tc_page_find_trace(struct tc_page *p, struct tc_timeline *t, const char *trace, int64_t step, struct tc_err *err);
/* predicted.c: predictions and measurements. The object is owned by the caller. */
json_t *tc_report_plan(const struct tc_page *p);
void tc_report_plan_table(FILE *f, const struct tc_page *p);
/* task_curves.c: curves and last values of the questions that the run was asked; nothing if there are none. */
void tc_report_tasks(FILE *f, const struct tc_page *p);
void tc_page_write(FILE *f, const struct tc_page *p);

/* ---- csv.c: all figures of all steps ---- */

struct tc_csv { struct tc_steps steps; int columns; };
/* Writes a row for each step of metrics.jsonl, below a header, and what was written to *c. A column is a figure that occurs,
 * named by its keys in the line, "comm.dp.all_reduce.bytes", a member of a list by its name; columns are in the order of
 * metrics.def. TC_EUSER, as tc_steps_each. */
int tc_csv_write(FILE *f, struct tc_csv *c, const char *metrics_path, struct tc_err *err);

/* ---- compare_runs.c: several runs ---- */

struct tc_compared {
  struct tc_run_dir r;           /* owned; without metrics if they cannot be read */
  char *name;                    /* of the folder, without what all begin with; owned */
  json_t *options;               /* tc_run_differences; owned */
  struct tc_at_step best;        /* the lowest validation loss that is finite */
};
struct tc_comparison { struct tc_compared *run; int n; };   /* in the order of tc_compare_read; owned */
/* Reads n > 1 runs and sorts them: the lowest validation loss first, those without one last, by their last loss. Warns of
 * metrics that cannot be read; TC_EUSER: a folder is not that of a run. Borrows the folders' names; to be freed, also after
 * a failure. */
int tc_compare_read(struct tc_comparison *c, const char *const *folder, int n, struct tc_err *err);
void tc_compare_free(struct tc_comparison *c);
/* The figures of each run. Owned by the caller. */
json_t *tc_compare_json(const struct tc_comparison *c);
/* A table of texts: cell[row * columns + column], of which row 0 has the headings; owned by the caller. */
struct tc_cells { char **cell; int rows, columns; bool runs_are_rows; };
/* A row for each run, with the figures that tc_compare_json has. */
struct tc_cells tc_compare_figures(const struct tc_comparison *c);
/* A row for each option that differs, and a column for each run; of more than 8 runs the other way around. */
struct tc_cells tc_compare_options(const struct tc_comparison *c);
void tc_cells_free(struct tc_cells *t);
/* compare_text.c: both tables, of at most 120 letters a line where columns are not wider. */
void tc_compare_text(FILE *f, const struct tc_comparison *c);
/* compare_page.c: both tables, and curves. */
void tc_compare_page(FILE *f, const struct tc_comparison *c);

#endif
