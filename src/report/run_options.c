/* run_options.c - the options of a run, from the run file in its run.json, and which of them differ between runs.
 *
 * The text is read as it is, not by options.def: the run may be of another version. */
#include "src/report/report.h"

#include <stdlib.h>
#include <string.h>

/* An option in the text of a run file; borrowed from it. */
struct option { const char *section, *key, *value; int n_section, n_key, n_value; };

/* The option that the text at *at has next, in the section of *o if none begins before; false: no more. */
static bool next_option(const char **at, struct option *o)
{
  while (**at) {
    const int n = (int)strcspn(*at, "\n");
    const char *line = *at, *equals = strstr(line, " = ");
    *at += n + (line[n] == '\n');
    if (*line == '[') {
      o->section = line + 1;
      o->n_section = (int)strcspn(line + 1, "]\n");
    } else if (o->n_section && equals && equals < line + n) {
      *o = (struct option){ o->section, line, equals + 3, o->n_section, (int)(equals - line), (int)(line + n - equals - 3) };
      return true;
    }
  }
  return false;
}

static bool is_word(const char *at, int n, const char *word) { return strlen(word) == (size_t)n && !strncmp(at, word, (size_t)n); }

const char *tc_run_key(const json_t *run, const char *section, const char *key, char *buf, size_t size)
{
  const char *at = tc_json_text(run, "config");
  struct option o = { .n_section = 0 };
  *buf = 0;
  while (next_option(&at, &o)) {
    if (!is_word(o.section, o.n_section, section) || !is_word(o.key, o.n_key, key)) continue;
    snprintf(buf, size, "%.*s", o.n_value, o.value);
    break;
  }
  return buf;
}

const char *tc_run_key_of_stages(const json_t *run, const char *section, const char *key, char *buf, size_t size)
{
  const char *at = tc_json_text(run, "config");
  char *name = tc_sprintf("%s.%s", section, key);
  struct option o = { .n_section = 0 };
  tc_run_key(run, section, key, buf, size);
  while (next_option(&at, &o))
    if (!strncmp(o.section, "stage ", 6) && is_word(o.key, o.n_key, name))
      tc_text_add(buf, size, ", from %.*s on %.*s", o.n_section, o.section, o.n_value, o.value);
  free(name);
  return buf;
}

/* {"train.lr": "0.001", ...} */
static json_t *options_of(const json_t *run)
{
  json_t *options = json_object();
  const char *at = tc_json_text(run, "config");
  struct option o = { .n_section = 0 };
  while (next_option(&at, &o)) {
    char *name = tc_sprintf("%.*s.%.*s", o.n_section, o.section, o.n_key, o.key);
    if (!json_object_get(options, name)) json_object_set_new(options, name, json_stringn(o.value, (size_t)o.n_value));
    free(name);
  }
  return options;
}

/* Whether the runs have the option in different ways: other values, or some not at all. */
static bool differs(json_t *const *options, int n, const char *name)
{
  const json_t *first = json_object_get(options[0], name);
  for (int i = 1; i < n; i++) {
    const json_t *v = json_object_get(options[i], name);
    if ((v || first) && !json_equal(v, first)) return true;
  }
  return false;
}

void tc_run_differences(json_t **out, const json_t *const *run, int n)
{
  json_t **all = tc_calloc((size_t)n, sizeof *all), *names = json_object(), *v;
  const char *name;
  for (int i = 0; i < n; i++) json_object_update(names, all[i] = options_of(run[i]));
  json_object_del(names, "run.out");             /* it is another one for each run, and its name */
  for (int i = 0; i < n; i++) out[i] = json_object();
  json_object_foreach(names, name, v)
    for (int i = 0; i < n && differs(all, n, name); i++) {
      json_t *value = json_object_get(all[i], name);
      json_object_set(out[i], name, value ? value : json_null());
    }
  for (int i = 0; i < n; i++) json_decref(all[i]);
  json_decref(names);
  free(all);
}
