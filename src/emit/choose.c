/* choose.c - which layout a job is written of: what a layout needs beside what a device and a node have. */
#include "src/emit/emit.h"

#include <math.h>
#include <string.h>

#define NEARLY 1.02                              /* of a device's memory: what more may be there than is assumed */

int tc_emit_fits(const struct tc_plan_job *j, const struct tc_plan *p, struct tc_err *err)
{
  const double most = (double)p->cls[p->worst].memory.bytes[TC_DEVICE], memory = j->cluster.device.memory_bytes;
  const double host = tc_plan_host_bytes(p, &j->cluster), has = j->cluster.device.host_bytes;
  char a[32], b[32], c[32], besides[120] = "";
  if (j->cluster.device.context_bytes > 0 && memory == j->own_bytes)
    snprintf(besides, sizeof besides, " besides %s for CUDA and libraries (assumed, unless --calibrate measured it)",
             tc_human_bytes(c, sizeof c, j->cluster.device.context_bytes));
  if (most > memory && most <= NEARLY * memory)
    return tc_fail(err, TC_ELAYOUT, "the layout does not fit, by %.2g %%: a device needs %s and has %s%s; more recomputation "
                   "(train.recompute), a smaller train.micro_batch, or, if it is known to be there, a larger --memory would fit",
                   100 * (most / memory - 1), tc_human_bytes(a, sizeof a, most), tc_human_bytes(b, sizeof b, memory), besides);
  if (most > memory)
    return tc_fail(err, TC_ELAYOUT, "the layout does not fit: a device needs %s and has %s; tercio plan --nodes N "
                   "--gpus-per-node G searches layouts that fit", tc_human_bytes(a, sizeof a, most),
                   tc_human_bytes(b, sizeof b, memory));
  if (host > 0 && has > 0 && host > has)
    return tc_fail(err, TC_ELAYOUT, "the layout does not fit: a node needs %s of host memory and has %s",
                   tc_human_bytes(a, sizeof a, host), tc_human_bytes(b, sizeof b, has));
  return 0;
}

int tc_emit_headroom(const struct tc_plan_job *j, const struct tc_plan *p, char *memory, size_t size)
{
  const double full = TC_PLAN_FULL, have = j->cluster.device.memory_bytes;
  const double need = (double)p->cls[p->worst].memory.bytes[TC_DEVICE];
  /* A lower --memory is the headroom. */
  if (need <= full * have || need > have || have < j->own_bytes) return 0;
  tc_human_bytes(memory, size, full * have);
  char *blank = strchr(memory, ' ');
  if (blank) memmove(blank, blank + 1, strlen(blank));
  return (int)round(100 * need / have);
}

/* A search looks at the training program and at the ends of a pipeline alone, so that a row is planned in full here. */
int tc_emit_choose(struct tc_emit_choice *out, const struct tc_plan_job *j, const struct tc_plan_found *f,
                   struct tc_err *err)
{
  int rc = 0, full = -1;
  char memory[32];
  for (int k = 0; k < 2 * f->n_rows; k++) {
    const int i = k % f->n_rows;
    const bool any = k >= f->n_rows;
    if (!any && tc_emit_headroom(j, &f->row[i].plan, memory, sizeof memory)) {
      if (full < 0) full = i;
      continue;
    }
    rc = tc_plan_layout(&out->plan, &f->row[i].cfg, j->world, &j->cluster, true, err);
    if (!rc) rc = tc_emit_fits(j, &out->plan, err);
    if (rc || (!any && tc_emit_headroom(j, &out->plan, memory, sizeof memory))) continue;
    out->row = i;
    out->full = any ? -1 : full;
    return 0;
  }
  return rc;
}
