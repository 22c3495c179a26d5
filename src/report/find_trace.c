/* find_trace.c - the trace of a run whose folder is read from another place than the one where it was started. */
#include "src/report/report.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The trace as named in the run file, seen from the folder where the run was started, as far as run.out shows it; NULL:
 * it does not. Owned by the caller. */
static char *from_start(const char *folder, const json_t *run, const char *trace)
{
  char out[1000], *full = realpath(folder, NULL), *path = NULL;
  tc_run_key(run, "run", "out", out, sizeof out);
  size_t n = full ? strlen(full) : 0, k = strlen(out);
  while (k > 1 && out[k - 1] == '/') out[--k] = '\0';
  for (; strncmp(out, "./", 2) == 0; k -= 2) memmove(out, out + 2, k - 1);
  if (*out && *out != '/' && *trace != '/' && n > k && full[n - k - 1] == '/' && strcmp(full + n - k, out) == 0)
    path = tc_sprintf("%.*s%s", (int)(n - k), full, trace);
  free(full);
  return path;
}

/* The trace named in the run file, relative to where the run was started, to the run's folder or, if the former is
 * unknown, to this folder, where another run's may lie; NULL: the run wrote none, or it is not there, as *note then
 * says. Owned by the caller. */
static char *find_trace(const char *folder, const json_t *run, struct tc_err *note)
{
  char key[1000];
  tc_run_key(run, "run", "trace", key, sizeof key);
  if (!*key || !strcmp(key, "no")) return NULL;
  char *start = from_start(folder, run, key);
  char *path[] = { start, tc_sprintf("%s/%s", folder, key), tc_sprintf("%s/%s", folder, tc_base_name(key)),
                   start ? NULL : tc_strdup(key) };
  char *found = NULL;
  for (int i = 0; i < 4; i++) {
    if (!found && path[i] && access(path[i], R_OK) == 0) found = path[i];
    else free(path[i]);
  }
  if (!found)
    tc_fail(note, TC_EUSER,
            "the run's trace %s was not found from this folder; --trace FILE reads it from another place", key);
  return found;
}

int tc_page_find_trace(struct tc_page *page, struct tc_timeline *t, const char *trace, int64_t step, struct tc_err *err)
{
  page->trace_note = "No trace: run.trace = FILE writes one; --trace FILE reads one from another place.";
  char *path = trace ? tc_strdup(trace) : find_trace(page->folder, page->run, err);
  if (!path && *err->text) {
    page->trace_note = err->text;
    if (step) return TC_EUSER;
    tc_warn("no timeline: %s", err->text);
    return 0;
  }
  if (!path && step)
    return tc_fail(err, TC_EUSER, "--step %lld: the run has no trace; --trace FILE names one",
                   (long long)step);
  if (!path) return 0;
  int rc = tc_timeline_read(t, path, step, err);
  free(path);
  if (rc == 0) page->t = t;
  if (rc == 0 || trace || step) return rc;
  tc_warn("no timeline: %s", err->text);
  page->trace_note = err->text;
  return 0;
}
