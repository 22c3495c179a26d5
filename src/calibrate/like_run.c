/* like_run.c - the folder of a run as a measured row: its configuration and ranks from run.json, the median of its steps from
 * metrics.jsonl. The first two steps are left out, since plans and graphs are made in them. */
#include "src/calibrate/like.h"
#include "src/calibrate/timings.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FILE_BYTES = 64 << 20, FIRST_STEPS = 2, MOST_STEPS = 1 << 20 };

static const char *text_of(const json_t *o, const char *key)
{
  const char *s = json_string_value(json_object_get(o, key));
  return s ? s : "";
}

/* Nodes and ranks, and the memory that the first rank's device or host has allocated. */
static int read_ranks(struct tc_like_row *r, const json_t *run, const char *path, struct tc_err *err)
{
  const json_t *ranks = json_object_get(run, "ranks"), *rank;
  size_t i;
  int nodes = 0;
  json_array_foreach(ranks, i, rank)
    nodes = TC_MAX(nodes, (int)json_integer_value(json_object_get(rank, "node")) + 1);
  const int world = (int)json_array_size(ranks);
  if (world < 1 || nodes < 1 || world % nodes)
    return tc_fail(err, TC_EUSER, "%s: %d ranks on %d nodes; a run.json of tercio train with as many on each would fit", path,
                   world, nodes);
  const json_t *memory = json_object_get(json_object_get(json_array_get(ranks, 0), "memory"), "allocated_bytes");
  const char *const parts[] = { "state", "scratch", "staging" };
  for (int k = 0; k < 3; k++) r->memory_bytes += json_number_value(json_object_get(memory, parts[k]));
  r->cluster.nodes = nodes;
  r->cluster.devices = world / nodes;
  return 0;
}

static int read_run(struct tc_like_row *r, const json_t *run, const char *path, const char *device, struct tc_err *err)
{
  r->cfg = tc_config_as_saved(text_of(run, "config"));
  if (!device && *r->cfg->run_plan_device && strcmp(r->cfg->run_plan_device, "auto")) device = r->cfg->run_plan_device;
  if (!device)
    return tc_fail(err, TC_EUSER, "%s: the run names no device (run.plan_device): --device NAME or a file that --calibrate wrote "
                   "would fit", path);
  TC_TRY(tc_cluster_read(&r->cluster, device, err));
  tc_cluster_run(&r->cluster, r->cfg);
  tc_setup_precision(r->cfg, !tc_plan_is_cpu(&r->cluster.device) && r->cluster.device.flops[TC_BF16] > 0);
  return read_ranks(r, run, path, err);
}

int tc_like_run(struct tc_like *l, const char *folder, const char *device, struct tc_err *err)
{
  char *path = tc_sprintf("%s/run.json", folder), *metrics = tc_sprintf("%s/metrics.jsonl", folder);
  json_t *run = NULL;
  TC_GROW(l->row, l->n, l->cap);
  struct tc_like_row *r = &l->row[l->n];
  *r = (struct tc_like_row){ .where = tc_sprintf("%s", folder) };
  l->n++;
  const char *slash = strrchr(folder, '/');
  snprintf(r->name, sizeof r->name, "%.63s", slash && slash[1] ? slash + 1 : folder);
  int rc = tc_read_json(&run, path, "run.json", MOST_FILE_BYTES, 0, NULL, err);
  if (!rc) rc = read_run(r, run, path, device, err);
  if (!rc) {
    const int before = (int)json_integer_value(json_object_get(run, "start_step"));
    r->step_s = tc_metrics_step_s(metrics, before + FIRST_STEPS + 1, MOST_STEPS);
    if (!(r->step_s > 0))
      rc = tc_fail(err, TC_EUSER, "%s has no step after the first %d; a longer run would fit", metrics, FIRST_STEPS);
  }
  json_decref(run);
  TC_FREE(path, metrics);
  return rc;
}
