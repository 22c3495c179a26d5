/* run_json.c - run.json: what a run is made of, what it takes and what is predicted of it. */
#include "ac_config.h"
#include "src/plan/plan.h"
#include "src/program/predict.h"
#include "src/train/parts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 28 };

static const struct tc_output_kind run_json = { "a run.json of tercio train", { "{\n \"version\": \"" } };
static const struct tc_output_opts tc_run_json_opts = { .kind = &run_json, .instead = "take another run.out" };

/* ---- what the planner predicts --------------------------------------------------------- */

/* Step time, tokens per second, bubble and bytes, to be compared with what is measured. Every action of every stage is
 * simulated only where they take no time: up to so many layers in all programs, and layers times micro-batches. */
enum { MOST_MADE = 64, MOST_SIMULATED = 4096 };

static const char *device_name(const struct tc_train *t)
{
  const char *want = t->run.cfg->run_plan_device;
  if (!strcmp(want, "no")) return NULL;
  if (strcmp(want, "auto")) return want;
  if (!t->run.device->ops->separate) return NULL;
  return tc_plan_device_of(t->run.ranks->info[t->run.rank].dev.name);
}

double tc_train_planned_bytes(const struct tc_train *t)
{
  const char *name = t->run.rank == 0 ? device_name(t) : NULL;
  struct tc_cluster k;
  struct tc_err later;                           /* tc_train_plan's */
  if (!name || tc_cluster_read(&k, name, &later) < 0) return 0;
  const double bytes = tc_plan_is_cpu(&k.device) ? 0 : k.device.memory_bytes;
  tc_cluster_done(&k);
  return bytes;
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
    json_object_update_new(t->plan.predicted, tc_plan_time_json(&p));
    tc_figure(t->plan.predicted, "device_bytes", most);
    t->plan.peak_s = p.time.mfu * p.time.step_s;
    t->plan.flops = p.flops - tc_model_flops(&p.model);
  } else {
    tc_warn("no predicted time in run.json: %s", why.text);
  }
  tc_cluster_done(&k);
  return 0;
}

/* ---- a rank ---------------------------------------------------------------------------- */

static json_t *memory_json(const struct tc_train *t)
{
  const struct tc_exec_memory m = tc_exec_memory(t->run.exec);
  const int64_t writer = tc_train_staging_bytes(t);
  struct tc_plan_memory p;
  struct tc_program **all;
  const int n = tc_run_all_programs(&t->run, &all);
  tc_plan_memory(&p, all, n, t->run.rank);
  free(all);
  p.by_class[TC_HOST][TC_CLS_STAGING] += writer;
  return json_pack("{s:o,s:o,s:I,s:I,s:{s:I,s:I,s:I,s:I,s:I,s:I,s:I},s:{s:I,s:I,s:I}}",
                   "predicted_bytes", tc_plan_classes_json(p.by_class[TC_DEVICE]),
                   "predicted_host_bytes", tc_plan_classes_json(p.by_class[TC_HOST]),
                   "predicted_total_bytes",
                   (json_int_t)p.bytes[TC_DEVICE],
                   "predicted_host_total_bytes", (json_int_t)(p.bytes[TC_HOST] + writer), "allocated_bytes",
                   "state", (json_int_t)m.region[TC_STATE], "scratch",
                   (json_int_t)m.region[TC_SCRATCH], "host_state",
                   (json_int_t)m.region[TC_HOST_STATE], "host_scratch",
                   (json_int_t)m.region[TC_HOST_SCRATCH], "host_staging",
                   (json_int_t)tc_writer_staging_bytes(t->ckpt.writer), "staging",
                   (json_int_t)m.staging, "kernel_scratch", (json_int_t)m.kernel_scratch,
                   "resident_bytes",
                   "before_arenas", (json_int_t)t->run.base_rss_bytes, "now",
                   (json_int_t)tc_rss_bytes(false), "peak", (json_int_t)tc_rss_bytes(true));
}

/* Adds to an object by collective: {"all_reduce": {"calls": 1, "bytes": 8, "messages": 1}}. */
static void add_counts(json_t *into, const struct tc_coll_count count[TC_COLLS])
{
  for (int k = 0; k < TC_COLLS; k++) {
    const json_t *old = json_object_get(into, tc_coll_name[k]);
    if (!count[k].calls) continue;
    json_t *sum = json_pack("{s:I,s:I,s:I}",
                            "calls", json_integer_value(json_object_get(old, "calls")) + count[k].calls,
                            "bytes", json_integer_value(json_object_get(old, "bytes")) + count[k].bytes,
                            "messages", json_integer_value(json_object_get(old, "messages")) + count[k].messages);
    json_object_set_new(into, tc_coll_name[k], sum);
  }
}

/* What this rank sends in a step of the first stage, as the program has it. */
static json_t *predicted_comm_json(const struct tc_train *t)
{
  const struct tc_run_stage *first = &t->run.stage[0];
  json_t *o = json_object(), *ctl = json_object();
  for (int s = 0; s < TC_SETS; s++) {
    const struct tc_group *group = &first->mesh->group[s];
    struct tc_comm_counters c;
    if (!group->named) continue;
    tc_program_bytes(first->prog[TC_TRAIN], first->mesh, t->run.rank, group->axes, &c);
    json_t *x = json_object();
    add_counts(x, c.data);
    add_counts(ctl, c.ctl);
    json_object_set_new(o, tc_set_name[s], x);
  }
  json_object_set_new(o, "ctl", ctl);
  return o;
}

/* The members with which this rank has exchanged messages so far, and in control calls, by communicator. */
static json_t *peers_json(const struct tc_train *t)
{
  json_t *o = json_object();
  for (int s = 0; s <= TC_SETS; s++) {
    const struct tc_comm *c = s < TC_SETS ? t->run.comm[s] : t->run.world;
    const struct tc_comm_counters *n = c ? tc_comm_counters(c) : NULL;
    if (n) json_object_set_new(o, s < TC_SETS ? tc_set_name[s] : "world", json_pack("{s:i,s:i}", "all", n->peers, "ctl",
                                                                                    n->ctl_peers));
  }
  return o;
}

/* Control data that it sent before the first step. */
static json_t *start_comm_json(const struct tc_train *t)
{
  json_t *o = json_object();
  for (int s = 0; s < TC_COMMS; s++) add_counts(o, t->log.begun[s].ctl);
  return o;
}

/* A rank: its place, its memory, what it is going to send, and has sent at the start. */
static json_t *rank_json(const struct tc_train *t)
{
  const struct tc_rank_info *i = &t->run.ranks->info[t->run.rank];
  json_t *o = json_pack("{s:i,s:s,s:i,s:i,s:i}", "rank", t->run.rank, "host", i->host, "pid", (int)getpid(), "node",
                        i->node, "local_rank", i->local_rank);
  json_object_update_new(o, tc_mesh_place_json(t->run.mesh, t->run.rank));
  json_object_update_new(o, json_pack("{s:s,s:i,s:s,s:o,s:o,s:o,s:o}", "cpus", i->cpuset, "device", i->device, "uuid",
                                      i->dev.uuid, "memory", memory_json(t), "predicted_comm", predicted_comm_json(t),
                                      "start_comm", start_comm_json(t), "peers", peers_json(t)));
  return o;
}

/* Collective. On rank 0 *out is all ranks' objects; elsewhere NULL. */
static int gather_ranks(struct tc_train *t, json_t **out, struct tc_err *err)
{
  json_t *mine = rank_json(t);
  char *text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
  int world = t->run.ranks->world;
  void *all = NULL;
  int64_t *bytes = tc_calloc((size_t)world, sizeof *bytes);
  json_decref(mine);
  *out = NULL;
  int rc = tc_comm_bytes_gather(t->run.world, 0, text ? text : "{}",
                                (int64_t)strlen(text ? text : "{}"), &all, bytes, err);
  if (rc == 0 && all) {
    *out = json_array();
    const char *at = all;
    for (int r = 0; r < world; at += bytes[r++])
      json_array_append_new(*out, json_loadb(at, (size_t)bytes[r], 0, NULL));
  }
  TC_FREE(text, all, bytes);
  return rc;
}

/* ---- the run --------------------------------------------------------------------------- */

/* The layouts of the run, each with the step after which it began: those of the run.json that is there, which is
 * of an earlier start, up to the step from which this one resumed; then this one's, if it is another. Batch and micro-batches
 * are the first stage's, in whichever stage this start is. */
static json_t *layouts_json(const struct tc_train *t, const char *path)
{
  const struct tc_run *r = &t->run;
  struct tc_err unread;                          /* none, or not of a run: then this is the first layout */
  json_t *old = NULL;
  tc_read_json(&old, path, "run.json", MOST_BYTES, 0, NULL, &unread);
  json_t *list = json_array(), *entry, *last;
  json_t *now = json_pack("{s:I,s:i,s:i}", "after_step", (json_int_t)t->ckpt.start_step, "ranks", r->ranks->world, "mb",
                          r->stage[0].mesh->size[TC_MB]);
  json_object_update_new(now, tc_mesh_json(r->mesh->size));
  json_object_update_new(now, json_pack("{s:s,s:s,s:I,s:s}", "system", r->opts.system->name, "schedule",
                                        tc_word_parallel_schedule(r->cfg->parallel_schedule), "global_batch",
                                        (json_int_t)r->cfg->train_global_batch, "device", r->device->ops->name));
  size_t i;
  json_array_foreach(json_object_get(old, "layouts"), i, entry)
    if (json_integer_value(json_object_get(entry, "after_step")) < t->ckpt.start_step) json_array_append(list, entry);
  last = json_deep_copy(json_array_get(list, json_array_size(list) - 1));   /* none in an empty list */
  json_object_set(last, "after_step", json_object_get(now, "after_step"));
  if (!json_equal(last, now)) json_array_append(list, now);
  json_decref(last);
  json_decref(now);
  json_decref(old);
  return list;
}

/* A string for each line. */
static json_t *tuned_json(const char *lines)
{
  json_t *list = json_array();
  for (const char *at = lines; at && *at; at += *at == '\n') {
    const size_t n = strcspn(at, "\n");
    json_array_append_new(list, json_stringn(at, n));
    at += n;
  }
  return list;
}

int tc_train_run_json(struct tc_train *t, struct tc_err *err)
{
  const struct tc_run *r = &t->run;
  json_t *ranks;
  TC_TRY(gather_ranks(t, &ranks, err));
  if (r->rank) return 0;
  char *path = tc_sprintf("%s/run.json", t->out), *config = tc_config_text(r->cfg);
  char *model = tc_model_text(&r->opts.model);
  json_t *mesh = json_pack("{s:i}", "mb", r->stage[0].mesh->size[TC_MB]);
  json_object_update_new(mesh, tc_mesh_json(r->mesh->size));
  json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:I,s:o,s:s,s:s,s:s,s:i,s:s,s:i,s:I,s:n,"
                        "s:o,s:o,s:o}",
                        "version", PACKAGE_VERSION, "stack", r->stack, "config", config, "model",
                        model, "parameters", (json_int_t)tc_model_params(&r->opts.model), "mesh", mesh,
                        "system", r->opts.system->name, "device",
                        r->device->ops->name, "comm", tc_train_comm_name(t), "threads", r->threads, "launcher",
                        r->ranks->launcher, "restart", r->ranks->restart, "start_step",
                        (json_int_t)t->ckpt.start_step, "ckpt_memcpy_ms", "ranks",
                        ranks, "memory", memory_json(t), "start", tc_start_json(t));
  if (o) tc_figure(o, "ckpt_memcpy_ms", (double)tc_writer_memcpy_ns(t->ckpt.writer) * 1e-6);
  char *where = realpath(t->ckpt.dir, NULL);     /* for tercio save, wherever it is called */
  if (o) json_object_set_new(o, "ckpt_dir", json_string(where ? where : t->ckpt.dir));
  free(where);
  json_t *predicted = t->plan.predicted;
  if (o) json_object_set_new(o, "layouts", layouts_json(t, path));
  if (o && r->attention) json_object_set_new(o, "attention", json_string(r->attention));
  if (o && r->tuned && *r->tuned) json_object_set_new(o, "tuned", tuned_json(r->tuned));
  if (o) json_object_set_new(o, "predicted", predicted ? json_incref(predicted) : json_null());
  char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
  if (o && !text) tc_out_of_memory(0);
  const int rc = text ? tc_output_text(path, &tc_run_json_opts, text, err)
    : tc_fail(err, TC_EUSER, "cannot write %s: the run file or a path in it is not UTF-8", path);
  json_decref(o);
  TC_FREE(path, config, model, text);
  return rc;
}
