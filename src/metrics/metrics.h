/* metrics.h - the figures of a step, and where they go.
 *
 * metrics.def has each figure once. In: samples, which a run takes of all figures after a step (src/train/measure.c), in
 * the table's order. A sink is a function of a sample. Out: a line of JSON, and the file metrics.jsonl; who reads the line
 * finds a figure by its number in the table. Files in reading order: metrics.def, metrics.c (the line), metrics_file.c.
 *
 * All functions are Local. */
#ifndef TC_METRICS_H
#define TC_METRICS_H

#include "src/base/base.h"

struct json_t;                   /* jansson's */

/* ---- metrics.c: the table, and lines of JSON ---- */

enum tc_metric {
#define METRIC(id, ...) TC_METRIC_##id,
#include "src/metrics/metrics.def"
#undef METRIC
  TC_METRICS
};

struct tc_metric_row { const char *key, *unit, *help; };   /* unit "": none */
extern const struct tc_metric_row tc_metric_row[TC_METRICS];

/* What there is of a figure. TC_UNUSED: nothing, but the object around its own is there: an axis on which nothing was
 * sent. */
enum tc_there { TC_LEFT_OUT, TC_UNUSED, TC_NULL, TC_THERE };
enum tc_metric_type { TC_METRIC_INT, TC_METRIC_REAL, TC_METRIC_TEXT };

struct tc_sample {
  enum tc_metric metric;
  int member;                    /* of a list, from 0 */
  const char *word[2];           /* for the words in capitals in its key, in their order; borrowed */
  enum tc_there there;           /* not TC_LEFT_OUT */
  enum tc_metric_type type;      /* where it is there: which of these it has */
  int64_t integer;
  double real;
  const char *text;              /* borrowed */
};

/* What becomes of a step's samples, which come in the table's order. The borrowed texts are there during the call. */
typedef void tc_metric_sink(void *ctx, const struct tc_sample *s);

/* A sink; ctx: a json_t, an object at first empty. */
void tc_metrics_json(void *ctx, const struct tc_sample *s);
/* The object as a line, with its newline, in which reals have so many digits; owned by the caller. */
enum { TC_METRIC_DIGITS = 12 };
char *tc_metrics_json_text(const struct json_t *line);

/* A figure in a line that was read; of one with [] or a word in capitals in its key, what is before these: a list or an
 * object. NULL: it is not there. Borrowed from the line. */
struct json_t *tc_metric_in(const struct json_t *line, enum tc_metric m);
/* A figure in a member of such a list, or in the object that a word in capitals stands for. */
struct json_t *tc_metric_of(const struct json_t *member, enum tc_metric m);
/* The figure that is at a place in a line, as keys with [] after a list: "sources[].share", "comm.dp.send.bytes"; of a
 * not_finite, whatever its object, "not_finite.loss". TC_METRICS: none of the table. */
enum tc_metric tc_metric_at(const char *place);

/* ---- metrics_file.c: metrics.jsonl ---- */

struct tc_metrics_file {
  int fd;                        /* -1: not open */
  char *path;                    /* owned by who sets it */
  const char *lease;             /* a folder, which is gone when a later start owns the file; borrowed */
  bool wanted;                   /* lines are written */
  bool paused, warned;           /* since a line could not be written; a warning was given */
};
/* Cuts the lines after `step` and opens the file for more. alone: no other process can have it open. TC_EUSER, naming the
 * file, which is then as it was. */
int tc_metrics_file_open(struct tc_metrics_file *m, int64_t step, bool alone, struct tc_err *err);
void tc_metrics_file_close(struct tc_metrics_file *m);
/* The same as _open within a run: what goes wrong is a warning. */
void tc_metrics_file_back(struct tc_metrics_file *m, int64_t step, bool alone);
/* Before the line of `step`: opens the file again if it was removed or renamed. */
void tc_metrics_file_look(struct tc_metrics_file *m, int64_t step);
/* Whether lines can be added. */
bool tc_metrics_file_takes(const struct tc_metrics_file *m);
/* Adds the line of a step; one that cannot be written is missing, with a warning. */
void tc_metrics_file_add(struct tc_metrics_file *m, int64_t step, const char *line);

#endif
