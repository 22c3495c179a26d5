/* fits.c - whether the device has the memory that a run needs, before any of it is taken; if
 * not, what needs it, and which other settings would fit. The planner finds those: it makes the
 * programs of other settings as this run's were made. */
#include "src/plan/plan.h"
#include "src/run/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What the user may be asked to set: what changes least first. 0, the default of each: as it is. cp: mesh.cp times so much, of
 * ranks of dp. */
static const struct way {
  enum tc_data_parallel data;
  enum tc_recompute recompute;
  enum tc_offload offload;
  int cp;
} ways[] = {
  { .data = 0 },
  { .recompute = TC_RECOMPUTE_SELECTIVE },
  { .recompute = TC_RECOMPUTE_FULL },
  { .data = TC_DATA_ZERO1 },
  { .data = TC_DATA_ZERO2 },
  { .data = TC_DATA_ZERO3 },
  { .data = TC_DATA_ZERO3, .recompute = TC_RECOMPUTE_FULL },
  { .recompute = TC_RECOMPUTE_FULL, .offload = TC_OFFLOAD_PARAMS },
  { .data = TC_DATA_ZERO3, .recompute = TC_RECOMPUTE_FULL, .offload = TC_OFFLOAD_PARAMS },
  { .cp = 2 }, { .cp = 4 }, { .cp = 8 }, { .cp = 16 }, { .cp = 32 }, { .cp = 64 },
  { .data = TC_DATA_ZERO3, .recompute = TC_RECOMPUTE_FULL, .cp = 8 },
};
_Static_assert(TC_DATA_DDP == 0 && TC_RECOMPUTE_NONE == 0 && TC_OFFLOAD_NO == 0, "0 asks for nothing");
enum { WAYS = sizeof ways / sizeof *ways, TRIES = 16 };

static void apply(struct tc_config *c, const struct way *w)
{
  if (w->data) c->parallel_data = w->data;
  if (w->recompute) c->train_recompute = w->recompute;
  if (w->offload) c->parallel_offload = w->offload;
  if (!w->cp) return;
  c->mesh_cp *= w->cp;
  if (c->mesh_dp != TC_AUTO) c->mesh_dp /= w->cp;
}

static bool changes(const struct tc_config *c, const struct way *w, int dp)
{
  return !(w->data && (dp == 1 || c->parallel_data == w->data))
         && !(w->recompute && (c->train_recompute == w->recompute
                               || c->train_recompute == TC_RECOMPUTE_FULL) && !w->data && !w->offload)
         && !(w->offload && c->parallel_offload != TC_OFFLOAD_NO) && !(w->cp && dp % w->cp);
}

/* What every program needs for a micro-batch at least, on the rank that has most: the input of each
 * of its layers, which the backward pass reads. Known before a program is made. */
static double least_bytes(const struct tc_run *r, int64_t micro)
{
  const struct tc_model *m = &r->opts.model;
  const struct tc_config *c = r->cfg;
  double split = tc_mesh_size(r->mesh, TC_ON_CP) * (c->parallel_sequence ? tc_mesh_size(r->mesh, TC_ON_TP) : 1);
  if (*c->parallel_annotations) split = r->mesh->world;    /* they may split anything */
  return (double)micro * (double)m->context * (double)m->hidden * (double)m->layers
         * (double)tc_dtype_bytes(r->opts.gpt.dtype) / r->mesh->size[TC_PP] / split;
}

static bool fits(const struct tc_config *c, int world, int64_t bytes)
{
  struct tc_plan p;
  struct tc_err err = { 0 };
  return tc_plan_layout(&p, c, world, NULL, false, &err) == 0
         && p.cls[p.worst].memory.bytes[TC_DEVICE] <= bytes;
}

/* The settings that would fit into `bytes`, as text; false: none of those that were looked at. Of
 * micro-batches with very many sizes the smaller ones are looked at by halves. */
static bool what_fits(const struct tc_run *r, int64_t bytes, char *text, size_t size)
{
  const int dp = tc_mesh_size(r->mesh, TC_ON_DP);
  const int64_t now = r->cfg->train_global_batch / dp / r->mesh->size[TC_MB];
  for (int i = 0; i < WAYS; i++) {
    const struct way *w = &ways[i];
    const int64_t cp = TC_MAX(w->cp, 1), local = r->cfg->train_global_batch / dp * cp;
    const double most = (double)bytes / least_bytes(r, 1) * (double)cp;
    int64_t micro = i ? now : now - 1;
    if (i && !changes(r->cfg, w, dp)) continue;
    if ((double)micro > most) micro = (int64_t)most;
    micro = tc_divisor(local, micro);
    for (int tries = 0; micro > 0; tries++) {
      struct tc_config c = *r->cfg;
      c.train_micro_batch = micro;
      apply(&c, w);
      if (!fits(&c, r->mesh->world, bytes)) {
        micro = tc_divisor(local, tries < TRIES ? micro - 1 : micro / 2);
        continue;
      }
      snprintf(text, size, "train.micro_batch = %lld", (long long)micro);
      const char *const key[] = { "parallel.data", "train.recompute", "parallel.offload" };
      const bool asked[] = { w->data, w->recompute, w->offload };
      const char *const value[] = { tc_word_parallel_data(w->data), tc_word_train_recompute(w->recompute),
                                    tc_word_parallel_offload(w->offload) };
      for (int k = 0; k < 3; k++)
        if (asked[k]) tc_text_add(text, size, " and %s = %s", key[k], value[k]);
      if (w->cp) tc_text_add(text, size, " and mesh.cp = %lld", (long long)c.mesh_cp);
      if (w->cp && c.mesh_dp != TC_AUTO) tc_text_add(text, size, " and mesh.dp = %lld", (long long)c.mesh_dp);
      return true;
    }
  }
  return false;
}

/* "activations 1.20, optimizer 0.50": the largest first. */
static void by_size(const int64_t bytes[TC_CLASSES], char *text, size_t size)
{
  bool listed[TC_CLASSES] = { false };
  *text = '\0';
  for (;;) {
    int most = -1;
    for (int k = 0; k < TC_CLASSES; k++)
      if (!listed[k] && bytes[k] > 0 && (most < 0 || bytes[k] > bytes[most])) most = k;
    if (most < 0) return;
    listed[most] = true;
    tc_text_add(text, size, "%s%s %.4g", *text ? ", " : "", tc_class_name[most], (double)bytes[most] * 1e-9);
  }
}

int64_t tc_run_for_others(int64_t total) { return TC_MIN(total / 64, INT64_C(1000000000)); }

/* `need`: how much, and what for. */
static int refuse(const struct tc_run *r, const char *need, int64_t left, int64_t total,
                  struct tc_err *err)
{
  char other[200], of[40] = "";
  if (left != total) snprintf(of, sizeof of, " free of %.4g", (double)total * 1e-9);
  if (r->use != TC_TO_TRAIN)
    return tc_fail(err, TC_EUSER, "out of memory: %s; device %s has %.4g GB%s; use more ranks (mesh.tp, mesh.pp), "
                   "parallel.data = zero3, or fewer sequences at once (train.global_batch)", need,
                   r->device->ops->name, (double)left * 1e-9, of);
  const bool found = what_fits(r, left - tc_run_for_others(total), other, sizeof other);
  return tc_fail(err, TC_EUSER, "out of memory: %s; device %s has %.4g GB%s; %s%s", need,
                 r->device->ops->name, (double)left * 1e-9, of,
                 found ? other : "no smaller train.micro_batch, recomputation, ZeRO stage or "
                 "offloading would do: use more ranks (mesh.tp, mesh.pp, mesh.cp), a smaller model or "
                 "train.global_batch",
                 found ? " would fit" : "");
}

int tc_run_could_fit(const struct tc_run *r, struct tc_err *err)
{
  struct tc_device *d = r->device;
  const struct tc_mesh *m = r->mesh;
  const int64_t micro = r->cfg->train_global_batch / tc_mesh_size(m, TC_ON_DP) / m->size[TC_MB];
  const double bytes = r->use != TC_TO_TRAIN ? 0 : least_bytes(r, micro);  /* inputs are not kept for a backward pass */
  int64_t left = 0, total = 0;
  char need[160];
  if (d->ops->memory) {
    d->ops->memory(d, &left, &total);
  } else {                                       /* the host's: a rank's share of its node's */
    total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    left = total /= TC_MAX(r->ranks->info[r->rank].local_size, 1);
  }
  if (bytes <= (double)left) return 0;
  snprintf(need, sizeof need, "at least %.4g GB are needed for the activations of the %lld sequences "
           "of a micro-batch", bytes * 1e-9, (long long)micro);
  return refuse(r, need, left, total, err);
}

int tc_run_fits(const struct tc_run *r, struct tc_err *err)
{
  struct tc_device *d = r->device;
  struct tc_plan_memory m;
  int64_t left = 0, total = 0;
  char classes[200], need[300];
  if (!d->ops->memory) return 0;
  d->ops->memory(d, &left, &total);
  const struct tc_kinds has = tc_kinds_of(r->use);
  struct tc_program **all;
  const int n = tc_run_all_programs(r, &all);
  tc_plan_memory(&m, all + has.first, n - has.first, r->rank);
  free(all);
  const int64_t others = tc_run_for_others(total);
  if (m.bytes[TC_DEVICE] + others <= left) return 0;
  by_size(m.by_class[TC_DEVICE], classes, sizeof classes);
  snprintf(need, sizeof need, "%.4g GB are needed (%s, kernels and libraries %.4g)",
           (double)(m.bytes[TC_DEVICE] + others) * 1e-9, classes, (double)others * 1e-9);
  return refuse(r, need, left, total, err);
}
