/* plan_like.c - `tercio plan --like`: measured runs beside the plan, a row each. */
#include "src/calibrate/like.h"
#include "src/cmd/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW "row=%-12s  device=%-8s  ranks=%5d  tokens_per_s_per_gpu:measured=%9.5g  planned=%9.5g  error_percent:error=%+6.1f  " \
            "largest=%-10s  share_percent:share=%6.0f  memory_gb:GB=%6.4g  measured_gb?:measured=%9.4g  fits!=%5d  " \
            "doubtful!=%9d  chosen?=%s{ where=%s terms_s=%p }"

static json_t *terms_json(const struct tc_plan_time *t)
{
  json_t *o = json_object();
  for (int i = 0; i < TC_TERMS; i++) tc_figure(o, tc_term_name[i], t->term_s[i]);
  return o;
}

static void print_row(json_t *list, const struct tc_like_row *r)
{
  const struct tc_plan *p = &r->plan;
  const double world = p->world;
  tc_out_row(list, ROW, r->name, r->cluster.device.name, p->world, r->tokens_per_s / world, p->time.tokens_per_s / world,
             100 * r->error, tc_term_name[r->largest], 100 * p->time.term_s[r->largest] / p->time.step_s,
             (double)p->cls[p->worst].memory.bytes[TC_DEVICE] * 1e-9, r->memory_bytes > 0 ? r->memory_bytes * 1e-9 : -1, r->fits,
             r->doubtful, r->flags, r->where, (void *)terms_json(&p->time));
}

static void print_end(const struct tc_like *l, const json_t *list)
{
  double middle;
  int worst, doubtful = 0;
  tc_like_sums(l, &middle, &worst);
  if (list || worst < 0) return;
  for (int i = 0; i < l->n; i++) doubtful += l->row[i].doubtful && l->row[i].status >= 0;
  printf("\nerror in tokens/s: %.1f %% in the middle, at most %.1f %% (%s)", 100 * middle, 100 * fabs(l->row[worst].error),
         l->row[worst].name);
  if (doubtful) printf("; without %d doubtful row%s", doubtful, tc_plural(doubtful));
  printf("\nlargest: what most of the planned time is; chosen: by the plan, where the source does not say it\n");
}

/* Blanks and commas separate tables and folders of runs. */
static int read_all(struct tc_like *l, const char *paths, const char *device, struct tc_err *err)
{
  char *text = tc_sprintf("%s", paths), *at = NULL;
  int rc = 0;
  for (char *path = strtok_r(text, " ,", &at); path && !rc; path = strtok_r(NULL, " ,", &at))
    rc = tc_like_read(l, path, device, err);
  free(text);
  if (!rc && !l->n) rc = tc_fail(err, TC_EUSER, "--like %s: a table of measured runs, or the folder of a run, would fit", paths);
  return rc;
}

int tc_plan_like(const char *paths, const char *device, bool json, struct tc_err *err)
{
  struct tc_like l = { .n = 0 };
  json_t *list = json ? json_array() : NULL;
  int rc = read_all(&l, paths, device, err);
  if (!rc && !list) tc_out_head(ROW);
  for (int i = 0; i < l.n && !rc; i++) {
    struct tc_like_row *r = &l.row[i];
    tc_like_compare(r);
    if (r->status >= 0) print_row(list, r);
    else rc = tc_fail(err, r->status, "%s: row %s: %s", r->where, r->name, r->why);
  }
  if (!rc) print_end(&l, list);
  if (list && !rc) tc_out_json(list, TC_PLAN_JSON);
  else json_decref(list);
  tc_like_done(&l);
  return rc;
}
