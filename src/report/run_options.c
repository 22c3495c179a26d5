/* run_options.c - the options of a run, from the run file in its run.json.
 *
 * The text is read as it is, not by options.def: the run may be of another version. */
#include "src/report/report.h"

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
