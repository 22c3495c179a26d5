/* prediction.c - what the planner predicts of this run, for run.json: step time, tokens per second, bubble
 * and bytes, to be compared with what is measured. Rank 0 makes it once, at the start; every
 * action of every stage is simulated only where they are few enough to take no time. */
#include "src/train/impl.h"
#include "src/plan/plan.h"

#include <jansson.h>
#include <string.h>

/* At most so many layers in all programs, and layers times micro-batches that are simulated. */
enum { MOST_MADE = 64, MOST_SIMULATED = 4096 };

static const char *device_name(const struct tc_train *t)
{
  const char *want = t->run.cfg->run_plan_device;
  if (!strcmp(want, "no")) return NULL;
  if (strcmp(want, "auto")) return want;
  if (!t->run.device->ops->separate) return NULL;
  return tc_plan_device_of(t->run.ranks->info[t->run.rank].dev.name);
}

int tc_train_plan(struct tc_train *t, struct tc_err *err)
{
  const char *name = device_name(t);
  struct tc_cluster k;
  struct tc_plan p;
  struct tc_err why = { 0 };
  if (!name) return 0;
  if (!*name)
    return tc_fail(err, TC_EUSER, "run.plan_device is empty: give auto, no, a device or its file");
  TC_TRY(tc_cluster_read(&k, name, err));
  k.devices = TC_MAX(tc_ranks_node_devices(t->run.ranks), 1);
  k.nodes = t->run.ranks->n_nodes;
  int64_t made = t->run.opts.model.layers * t->run.mesh->size[TC_PP];
  bool exact = made <= MOST_MADE && made * t->run.mesh->size[TC_MB] <= MOST_SIMULATED;
  int rc = tc_plan_layout_on(&p, t->run.cfg, t->run.ranks->world, t->run.ranks->node_of_rank,
                             tc_ranks_node_devices(t->run.ranks), &k, exact, &why);
  if (rc == 0) {
    double most = (double)p.cls[p.worst].memory.bytes[TC_DEVICE];
    t->plan.predicted = json_pack("{s:s,s:n}", "device", k.device.name, "device_bytes");
    json_object_update_new(t->plan.predicted, tc_plan_time_json(&p.time));
    tc_figure(t->plan.predicted, "device_bytes", most);
    t->plan.peak_s = p.time.mfu * p.time.step_s;
  } else {
    tc_warn("no predicted time in run.json: %s", why.text);
  }
  tc_cluster_done(&k);
  return 0;
}
