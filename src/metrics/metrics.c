/* metrics.c - the table of figures, and a step's line of JSON: written from samples, and read by the same keys.
 *
 * A key is the way through the line's objects to a figure: "slowest.rank", "tasks[].loss", "comm.AXIS.OP.calls". */
#include "src/metrics/metrics.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

const struct tc_metric_row tc_metric_row[TC_METRICS] = {
#define METRIC(id, key, unit, type, of, there, get, help) { key, unit, help },
#include "src/metrics/metrics.def"
#undef METRIC
};

struct tc_metric_name tc_metric_name(const char **at)
{
  struct tc_metric_name n = { .word = isupper((unsigned char)**at) };
  const size_t len = strcspn(*at, ".[");
  snprintf(n.text, sizeof n.text, "%.*s", (int)len, *at);
  *at += len;
  n.list = **at == '[';
  if (n.list) *at += 2;
  n.last = **at == 0;
  *at += **at == '.';
  return n;
}

/* ---- writing ----------------------------------------------------------------------------- */

/* The object of that name, or the member of the list of that name, made if it is new. */
static json_t *enter(json_t *o, const struct tc_metric_name *n, int member)
{
  json_t *in = json_object_get(o, n->text);
  if (!in) json_object_set_new(o, n->text, in = n->list ? json_array() : json_object());
  if (n->list && (size_t)member == json_array_size(in)) json_array_append_new(in, json_object());
  return n->list ? json_array_get(in, (size_t)member) : in;
}

static void put(json_t *o, const char *name, const struct tc_sample *s)
{
  if (s->there == TC_NULL) json_object_set_new(o, name, json_null());
  else if (s->type == TC_METRIC_REAL) tc_figure(o, name, s->real);
  else json_object_set_new(o, name, s->type == TC_METRIC_INT ? json_integer(s->integer) : tc_text_json(s->text));
}

void tc_metrics_json(void *ctx, const struct tc_sample *s)
{
  json_t *o = ctx;
  const char *at = tc_metric_row[s->metric].key, *const *word = s->word;
  struct tc_metric_name n;
  for (;;) {
    n = tc_metric_name(&at);
    if (n.word) snprintf(n.text, sizeof n.text, "%s", *word++);
    if (n.last) break;
    if (s->there == TC_UNUSED && !strchr(at, '.')) return;    /* not even the object of the collective */
    o = enter(o, &n, s->member);
  }
  put(o, n.text, s);
}

char *tc_metrics_json_text(const struct json_t *line)
{
  char *text = json_dumps(line, JSON_REAL_PRECISION(TC_METRIC_DIGITS));
  if (!text) tc_out_of_memory(0);
  char *whole = tc_sprintf("%s\n", text);
  free(text);
  return whole;
}

/* ---- reading ----------------------------------------------------------------------------- */

struct json_t *tc_metric_in(const struct json_t *line, enum tc_metric m)
{
  const char *at = tc_metric_row[m].key;
  json_t *o = (json_t *)(uintptr_t)line;
  for (;;) {
    const struct tc_metric_name n = tc_metric_name(&at);
    if (n.word) return o;
    o = json_object_get(o, n.text);
    if (n.list || n.last) return o;
  }
}

struct json_t *tc_metric_of(const struct json_t *member, enum tc_metric m)
{
  return json_object_get(member, strrchr(tc_metric_row[m].key, '.') + 1);
}

/* Whether a place has the names of a key; a word in capitals stands for any, the last one for all that follows. */
static bool is_at(const char *place, const char *key)
{
  for (;;) {
    const struct tc_metric_name n = tc_metric_name(&key), at = tc_metric_name(&place);
    if (n.word && n.last) return true;
    if (n.list != at.list || n.last != at.last || (!n.word && strcmp(n.text, at.text) != 0)) return false;
    if (n.last) return true;
  }
}

enum tc_metric tc_metric_at(const char *place)
{
  int m = TC_METRICS - 1;                        /* from the end: comm.ctl is after comm.AXIS, which it fits too */
  while (m >= 0 && !is_at(place, tc_metric_row[m].key)) m--;
  return m < 0 ? TC_METRICS : (enum tc_metric)m;
}
