/* metrics_out.c - what files of other programs have in common: a step's numbers with the names of what they are of, and
 * what a failure costs.
 *
 * - Only numbers that are there are written: no texts, no null. A member of a list is named by its figure `name`, which
 *   comes before its others, in the bytes that the line of JSON has.
 * - Within a run an error costs figures, not the run, and gives one warning. */
#include "src/metrics/metrics.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "src/files/files.h"
#include "src/watch/watch.h"

/* ---- a step's figures ---------------------------------------------------------------------- */

void tc_metrics_out_begin(struct tc_metrics_out *o)
{
  free(o->text);
  o->text = NULL;
  o->figures = open_memstream(&o->text, &o->bytes);
  if (!o->figures) tc_out_of_memory(0);
}

/* The names of a list begin anew with its first member. One that was there already has its place after it: "text (2)", as in
 * tercio report --csv. */
static void take_name(struct tc_metrics_out *o, const struct tc_sample *s)
{
  json_t *name = tc_text_json(s->text);
  if (!o->names) o->names = json_array();
  if (s->member == 0) json_array_clear(o->names);
  for (size_t i = 0; i < json_array_size(o->names); i++) {
    if (!json_equal(name, json_array_get(o->names, i))) continue;
    char *numbered = tc_sprintf("%s (%d)", json_string_value(name), s->member + 1);
    json_decref(name);
    name = json_string(numbered);
    free(numbered);
  }
  json_array_append_new(o->names, name);
}

void tc_metrics_out_take(void *out, const struct tc_sample *s)
{
  struct tc_metrics_out *o = out;
  const char *key = tc_metric_row[s->metric].key;
  if (s->there != TC_THERE) return;
  if (tc_ends_with(key, "[].name")) take_name(o, s);
  if (s->type == TC_METRIC_TEXT) return;
  const bool listed = strchr(key, '[') != NULL;
  o->form->figure(o, s, listed ? json_string_value(json_array_get(o->names, (size_t)s->member)) : NULL);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void warn(struct tc_metrics_out *o, const char *why, const char *but)
{
  if (!o->warned) tc_warn("%s; %s", why, but);
  o->warned = true;
}

void tc_metrics_out_step(struct tc_metrics_out *o, int64_t step, const char *time)
{
  struct tc_err err = { 0 };
  if (fclose(o->figures)) tc_out_of_memory(0);
  o->figures = NULL;
  if (!o->lost && o->form->step(o, step, time, &err) < 0)
    warn(o, err.text, "the figures of this step are missing there, and of each that can't be written, without another "
         "warning");
}

int tc_metrics_out_open(struct tc_metrics_out *o, int64_t step, struct tc_err *err)
{
  o->events.fd = -1;
  const int rc = o->form->begin(o, step, err);
  o->kept = NULL;
  o->n_kept = 0;
  return rc;
}

void tc_metrics_out_back(struct tc_metrics_out *o, int64_t step)
{
  struct tc_err err = { 0 };
  if (!o->form || o->lost) return;
  /* A later start's files must not be cut. */
  const int ours = tc_is_there(o->lease);
  if (ours < 0) tc_fail(&err, TC_EUSER, "%s can't be seen: %s", o->lease, strerror(-ours));
  o->lost = ours <= 0 || o->form->begin(o, step, &err) < 0;
  if (o->lost && ours) tc_warn("%s; no more figures are written there", err.text);
}

void tc_metrics_out_close(struct tc_metrics_out *o)
{
  struct tc_err err = { 0 };
  if (!o->form) return;
  tc_at_phase("writing the last figures");
  if (o->form->end(o, &err) < 0) warn(o, err.text, "the figures of the last step are missing there");
  json_decref(o->names);
  free(o->text);
  *o = (struct tc_metrics_out){ 0 };
}
