/* open_device.c - opens the device of a rank: the one that run.device names, or what fits. */
#include "src/run/run.h"
#include "src/launch/process.h"

#include <stdio.h>

int tc_run_device(struct tc_run *r, struct tc_err *err)
{
  const enum tc_device_kind want = r->cfg->run_device;
  const struct tc_rank_info *me = &r->ranks->info[r->rank];
  const bool automatic = want == TC_DEVICE_AUTO;
  char name[48];
  struct tc_err why = { 0 };
  TC_TRY(tc_process_pool(r->threads, err));
  tc_ranks_gpu_name(me, name, sizeof name);
  if (automatic && me->device >= 0 && tc_device_open(&r->device, name, r->threads, &why) < 0
      && r->rank == 0)
    tc_log("run.device = auto takes the CPU: %s", why.text);
  if (want != TC_DEVICE_CUDA)
    snprintf(name, sizeof name, "%s", tc_word_run_device(automatic ? TC_DEVICE_CPU : want));
  if (!r->device) TC_TRY(tc_device_open(&r->device, name, r->threads, err));
  r->device->poison = r->cfg->run_poison;
  r->device->tf32 = r->cfg->train_tf32;
  r->device->library = r->cfg->run_attention == TC_ATTENTION_AUTO && r->use == TC_TO_TRAIN;
  r->device->any_order = !r->cfg->run_deterministic;
  if (r->device->ops->separate) TC_TRY(tc_device_open(&r->host, "cpu", r->threads, err));
  if (r->use != TC_TO_SAMPLE && r->cfg->train_precision == TC_BF16 && !r->device->ops->has_bf16(r->device))
    return tc_fail(err, TC_EUSER, "train.precision = bf16: this CPU multiplies no bf16 (it needs "
                   "AVX512_BF16 or AMX); use fp32");
  return 0;
}

int tc_run_precision(struct tc_run *r, struct tc_err *err)
{
  int64_t cpu = !r->device->ops->separate;
  if (r->cfg->train_precision != TC_DTYPE_AUTO || r->opts.gpt.dtype != TC_BF16) return 0;
  TC_TRY(tc_comm_max_i64(r->world, &cpu, 1, err));
  if (!cpu) return 0;
  r->opts.gpt.dtype = TC_F32;
  if (r->rank == 0) tc_log("train.precision = auto takes fp32: a rank has no usable GPU");
  return 0;
}
