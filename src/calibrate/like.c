/* like.c - see like.h. A row is planned as it was run; keys that its source does not say are the plan's choice, the best of a
 * search. */
#include "src/calibrate/like.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int tc_like_read(struct tc_like *l, const char *path, const char *device, struct tc_err *err)
{
  return tc_is_folder(path) ? tc_like_run(l, path, device, err) : tc_like_table(l, path, device, err);
}

/* Sets what the plan chose, and its flags. */
static int search(struct tc_like_row *r, struct tc_err *err)
{
  struct tc_plan_found f;
  TC_TRY(tc_plan_search(&f, r->cfg, &r->cluster, ~r->searched & ((1u << TC_KEYS) - 1), 1, err));
  if (!f.n_rows) {
    tc_fail(err, TC_ELAYOUT, "no layout fits%s%s", *f.why ? ": " : "", f.why);
    tc_plan_found_done(&f);
    return TC_ELAYOUT;
  }
  const struct tc_plan_row *best = f.row;
  struct tc_err unused = { 0 };
  for (int key = 0; key < TC_KEYS; key++) {
    const int64_t v = tc_plan_key_value(&best->cfg, key);
    if (r->searched >> key & 1 && v != tc_plan_key_value(r->cfg, key)) tc_plan_key_flag(r->flags, sizeof r->flags, key, v);
  }
  r->plan = best->plan;                          /* of the ranks at both ends; of all, if that can be */
  struct tc_plan exact;
  if (tc_plan_layout(&exact, &best->cfg, best->plan.world, &r->cluster, true, &unused) == 0) r->plan = exact;
  tc_plan_found_done(&f);
  return 0;
}

void tc_like_compare(struct tc_like_row *r)
{
  struct tc_err err = { 0 };
  const struct tc_cluster *k = &r->cluster;
  r->status = r->searched ? search(r, &err) : tc_plan_layout(&r->plan, r->cfg, k->nodes * k->devices, k, true, &err);
  snprintf(r->why, sizeof r->why, "%.199s", err.text);
  if (r->status < 0) return;
  const struct tc_plan *p = &r->plan;
  const double bytes = (double)p->cls[p->worst].memory.bytes[TC_DEVICE];
  if (r->tokens_per_s <= 0) r->tokens_per_s = (double)p->tokens / r->step_s;
  r->error = p->time.tokens_per_s / r->tokens_per_s - 1;
  r->fits = bytes <= k->device.memory_bytes;
  for (int t = 1; t < TC_TERMS; t++)
    if (p->time.term_s[t] > p->time.term_s[r->largest]) r->largest = (enum tc_plan_term)t;
}

void tc_like_sums(const struct tc_like *l, double *middle, int *worst)
{
  double *size = tc_calloc((size_t)l->n + 1, sizeof *size);
  int n = 0;
  *worst = -1;
  for (int i = 0; i < l->n; i++) {
    const struct tc_like_row *r = &l->row[i];
    if (r->status < 0 || r->doubtful) continue;
    size[n++] = fabs(r->error);
    if (*worst < 0 || fabs(r->error) > fabs(l->row[*worst].error)) *worst = i;
  }
  *middle = n ? tc_median(size, n) : 0;
  free(size);
}

void tc_like_done(struct tc_like *l)
{
  for (int i = 0; i < l->n; i++) {
    tc_config_free(l->row[i].cfg);
    tc_cluster_done(&l->row[i].cluster);
    free(l->row[i].where);
  }
  free(l->row);
  *l = (struct tc_like){ .n = 0 };
}
