/* tune.c - what devices choose by time, the same on all ranks.
 *
 * Each rank's device times the products that no known line covers. Of lines with one key the lowest rank's holds for
 * all of them, since choices may differ in rounding. The lines are kept in checkpoints and taken by the run that
 * resumes. */
#include "src/run/impl.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

bool tc_run_may_have_gpu(const struct tc_run *r)
{
  bool gpu = r->cfg->run_device == TC_DEVICE_CUDA;
  for (int i = 0; i < r->ranks->world && r->cfg->run_device == TC_DEVICE_AUTO; i++)
    gpu |= r->ranks->info[i].device >= 0;
  return gpu;
}

/* Whether a line of `lines`, n bytes, has the key of the line at `line`: what is before its colon. */
static bool has_key(const char *lines, size_t n, const char *line)
{
  const size_t key = strcspn(line, ":") + 1;
  for (size_t at = 0; at + key <= n; at += strcspn(lines + at, "\n") + 1)
    if (!strncmp(lines + at, line, key)) return true;
  return false;
}

char *tc_run_tune_merge(const char *lines)
{
  char *out = tc_malloc(strlen(lines) + 1);
  size_t n = 0;
  out[0] = 0;
  for (const char *at = lines, *end; *at; at = end) {
    end = at + strcspn(at, "\n");
    end += *end == '\n';
    if (has_key(out, n, at)) continue;
    memcpy(out + n, at, (size_t)(end - at));
    n += (size_t)(end - at);
    out[n] = 0;
  }
  return out;
}

static int choose(struct tc_run *r, const char *known, bool time, char **lines, int *timed, struct tc_err *err)
{
  struct tc_device *d = r->device;
  if (d->ops->tune) return d->ops->tune(d, known, time, tc_at_again, lines, timed, err);
  *lines = tc_strdup("");
  *timed = 0;
  return 0;
}

/* *merged <- all ranks' lines, each key once; owned by the caller. */
static int share(struct tc_run *r, const char *mine, char **merged, struct tc_err *err)
{
  int64_t *bytes = tc_calloc((size_t)r->ranks->world, sizeof *bytes), n = 0;
  void *all = NULL, *lines = NULL;
  int rc = tc_comm_bytes_gather(r->world, 0, mine, (int64_t)strlen(mine), &all, bytes, err);
  if (!rc && all) {
    for (int i = 0; i < r->ranks->world; i++) n += bytes[i];
    char *text = tc_malloc((size_t)n + 1);
    memcpy(text, all, (size_t)n);
    text[n] = 0;
    lines = tc_run_tune_merge(text);
    free(text);
    n = (int64_t)strlen(lines) + 1;              /* with its end */
  }
  if (!rc) rc = tc_comm_bytes_bcast(r->world, 0, &lines, &n, err);
  *merged = lines;
  TC_FREE(all, bytes);
  return rc;
}

int tc_run_tune(struct tc_run *r, const char *known, bool time, struct tc_err *err)
{
  const int64_t begin = tc_now_ns();
  char *mine = NULL, *taken = NULL;
  int timed = 0, none = 0;
  if (!tc_run_may_have_gpu(r)) return 0;
  tc_at_phase("timing matrix products");
  int rc = tc_run_agree(r, choose(r, known ? known : "", time, &mine, &timed, err), err);
  if (!rc) rc = share(r, mine, &r->tuned, err);
  if (!rc) rc = tc_run_agree(r, choose(r, r->tuned, false, &taken, &none, err), err);
  if (!rc && r->rank == 0 && time && timed < 0)
    tc_warn("matrix products: too little of the GPU's memory is left to time plans (run.tune), so those that are not "
            "known yet are cuBLASLt's first");
  if (!rc && r->rank == 0 && timed > 0)
    tc_log("matrix products: the fastest plan for each of %d shapes, timed in %.1f s (run.tune)", timed,
           (double)(tc_now_ns() - begin) * 1e-9);
  TC_FREE(mine, taken);
  return rc;
}
