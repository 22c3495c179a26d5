/* step_lines.c - the lines of metrics.jsonl that are steps.
 *
 * A run that was killed may leave a truncated line: such lines are skipped and counted, and a warning or the page says so.
 * Steps come in increasing order. */
#include "src/report/report.h"

/* One line, which is NULL if it is not JSON. */
static int take_line(struct tc_steps *s, json_t *o, const char *path, tc_step_fn *take, void *ctx, struct tc_err *err)
{
  const json_t *step = tc_metric_in(o, TC_METRIC_STEP);
  if (!json_is_integer(step) || !json_is_number(tc_metric_in(o, TC_METRIC_STEP_MS))) {
    s->broken++;
    if (!s->first_broken) s->first_broken = s->lines;
    return 0;
  }
  const bool first = s->lines - s->broken == 1;
  const int64_t at = json_integer_value(step);
  if (!first && at <= s->last)
    return tc_fail(err, TC_EUSER, "%s, line %lld: step %lld comes after step %lld; did two runs write "
                   "into one folder?", path, (long long)s->lines, (long long)at, (long long)s->last);
  if (first) s->first = at;
  take(ctx, o);
  s->last = at;
  return 0;
}

int tc_steps_each(struct tc_steps *s, const char *path, tc_step_fn *take, void *ctx, struct tc_err *err)
{
  struct tc_lines *f;
  char *line;
  size_t len;
  int rc = 0, got = 0;
  *s = (struct tc_steps){ 0 };
  TC_TRY(tc_lines_open(&f, path, "metrics", err));
  while (!rc && (got = tc_lines_next(f, &line, &len, err)) == 1) {
    json_t *o = json_loadb(line, len, 0, NULL);
    s->lines++;
    rc = take_line(s, o, path, take, ctx, err);
    json_decref(o);
  }
  tc_lines_close(f);
  if (!rc && got < 0) rc = got;
  if (!rc && !s->lines) rc = tc_fail(err, TC_EUSER, "%s is empty: no step has ended yet", path);
  if (!rc && s->lines == s->broken)
    rc = tc_fail(err, TC_EUSER, "%s has no line with a step and its step_ms; is this a file of "
                 "tercio train?", path);
  return rc;
}

void tc_steps_warn(const struct tc_steps *s, const char *path)
{
  if (s->broken)
    tc_warn("%s: %lld line%s cannot be read and %s skipped (the first is line %lld)", path, (long long)s->broken,
            tc_plural(s->broken), s->broken == 1 ? "is" : "are", (long long)s->first_broken);
}
