/* layouts.c - on what a run ran from which step on: "layouts" of run.json, which has an entry for each change
 * of layout, batch or number of ranks between two starts. */
#include "src/report/report.h"
#include "src/graph/mesh.h"

#include <stdlib.h>
#include <string.h>

static const struct { const char *key, *name; } fields[] = {
  { "ranks", "ranks" },
#define SET(id, name, axes, if_auto, within, shown) { name, name },
#include "src/graph/axis.def"
  { "system", "system" },
  { "schedule", "schedule" }, { "global_batch", "global batch" }, { "mb", "micro-batches" },
  { "device", "device" },
};

/* A number or a word. */
static void add_value(char *text, size_t size, const json_t *v)
{
  if (json_is_string(v)) tc_text_add(text, size, "%.40s", json_string_value(v));
  else if (json_is_integer(v)) tc_text_add(text, size, "%lld", (long long)json_integer_value(v));
  else tc_text_add(text, size, "?");
}

/* "ranks 1 -> 2, pp 1 -> 2" */
static char *changes(const json_t *was, const json_t *is)
{
  char text[600] = "";
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    const json_t *a = json_object_get(was, fields[i].key), *b = json_object_get(is, fields[i].key);
    if (json_equal(a, b) || (!a && !b)) continue;
    tc_text_add(text, sizeof text, "%s%s ", *text ? ", " : "", fields[i].name);
    add_value(text, sizeof text, a);
    tc_text_add(text, sizeof text, " -> ");
    add_value(text, sizeof text, b);
  }
  return tc_strdup(text);
}

void tc_layouts_read(struct tc_layouts *l, const json_t *run)
{
  const json_t *list = json_object_get(run, "layouts");
  memset(l, 0, sizeof *l);
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *entry = json_array_get(list, i);
    const int64_t after = tc_json_int(entry, "after_step");
    if (i > 0)
      TC_APPEND(l->change, l->n, l->cap,
                (struct tc_layout_change){ after, changes(json_array_get(list, i - 1), entry) });
    l->after = after;
  }
}

void tc_layouts_free(struct tc_layouts *l)
{
  for (int i = 0; i < l->n; i++) free(l->change[i].text);
  free(l->change);
  memset(l, 0, sizeof *l);
}
