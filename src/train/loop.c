/* loop.c - the loop of one rank.
 *
 * Everything that can fail on one rank alone is agreed on by all (tc_agree) before the next
 * collective work, so that no rank waits for one that has left. What fails within a step (a
 * peer's absence, a kernel) the others learn by their deadline. The end of a step, where what single
 * ranks know becomes what all do, is end_of_step.c. */
#include "src/train/train.h"
#include "io/folder.h"
#include "io/ckpt/owner.h"
#include "src/comm/nccl.h"
#include "src/model/optim.h"
#include "src/launch/process.h"
#include "src/program/setup.h"
#include "src/run/versions.h"
#include "src/watch/watch.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tc_agree(const struct tc_train *t, int rc, struct tc_err *err)
{
  return tc_comm_agree(t->world, t->who, rc, err);
}

/* ---- setting up ---------------------------------------------------------------------- */

/* Pure and local: mesh, options. The same answer on every rank. */
static int setup_plan(struct tc_train *t, struct tc_err *err)
{
  int devices = tc_ranks_node_devices(t->ranks);
  TC_TRY(tc_setup_mesh(&t->mesh, t->cfg, t->ranks->world, t->ranks->node_of_rank, devices, err));
  TC_TRY(tc_setup_program(&t->opts, t->cfg, t->mesh, &t->rows, err));
  if (!*t->cfg->run_out) return tc_fail(err, TC_EUSER, "run.out can't be empty: name a folder");
  return tc_fault_parse(&t->fault, t->cfg->run_fault, t->ranks->world, err);
}

/* id: the axis, TC_AXES for the world, TC_AXES + 1 for the writer's world. */
static int make_comm(struct tc_train *t, struct tc_comm **out, int id, const char *name,
                     const int32_t *members, int size, struct tc_err *err)
{
  const char **who = t->names[id] = tc_calloc((size_t)size, sizeof *who);
  for (int i = 0; i < size; i++) who[i] = t->who[members[i]];
  struct tc_comm_opts o = { .name = name, .deadline_s = t->cfg->run_deadline, .who = who };
  tc_trace_comm(t->trace, name, &o);
  if (size == 1) *out = tc_comm_self(&o);
  else if (t->hub) *out = tc_comm_thread(t->hub, id, t->rank, members, size, &o);
  else TC_TRY(tc_comm_mpi(out, id, members, size, &o, err));
  return tc_comm_usable(*out, err);
}

static int make_comms(struct tc_train *t, struct tc_err *err)
{
  int32_t *members = tc_calloc((size_t)t->mesh->world, sizeof *members);
  for (int r = 0; r < t->mesh->world; r++) members[r] = r;
  int rc = make_comm(t, &t->world, TC_AXES, "world", members, t->mesh->world, err);
  /* Without the world's communicator the other ranks can't be told to stop waiting for this one. */
  if (rc < 0 && t->mpi) tc_ranks_abort(-rc, err->text);
  if (rc < 0) {
    free(members);
    return rc;
  }
  rc = make_comm(t, &t->ckpt_comm, TC_AXES + 1, "ckpt", members, t->mesh->world, err);
  for (int a = TC_PP; a < TC_AXES && !rc; a++) {
    if (t->mesh->size[a] == 1) continue;
    tc_mesh_group(t->mesh, t->rank, a, members);
    rc = make_comm(t, &t->comm[a], a, tc_axis_name[a], members, t->mesh->size[a], err);
  }
  free(members);
  return tc_agree(t, rc, err);
}

/* Collective. Communicators of the GPUs, beside those of the axes, which stay for what is in host
 * memory. */
static int make_native(struct tc_train *t, struct tc_err *err)
{
  const struct tc_nccl_ops *ops = t->device->ops->nccl;
  bool use = false;
  tc_at_file("joining NCCL", NULL);
  TC_TRY(tc_comm_nccl_agree(&use, t->cfg->run_comm, ops, t->device, NULL, t->world, t->who, err));
  if (!use && ops && t->rank == 0 && *err->text)
    tc_log("run.comm = auto sends through host memory: %s", err->text);
  int32_t *members = tc_calloc((size_t)t->mesh->world, sizeof *members);
  int rc = 0;
  struct tc_comm *last = NULL;
  for (int a = TC_PP; a < TC_AXES && !rc && use; a++) {
    if (t->mesh->size[a] == 1) continue;
    struct tc_comm_opts o = { .name = tc_axis_name[a], .deadline_s = t->cfg->run_deadline,
                              .who = t->names[a] };
    tc_trace_comm(t->trace, tc_axis_name[a], &o);
    tc_mesh_group(t->mesh, t->rank, a, members);
    rc = tc_comm_nccl(&t->native[a], ops, t->device, t->comm[a], last, members, a == TC_PP, &o,
                      err);
    /* One group of the axis may have failed; the others must not go on to the next without it. */
    if (rc != TC_EPEER) rc = tc_agree(t, rc, err);
    last = t->native[a];
  }
  free(members);
  return rc;
}

static int make_folder(const char *path, struct tc_err *err)
{
  TC_TRY(tc_folder_make(path, err));
  if (access(path, W_OK | X_OK))
    return tc_fail(err, TC_EUSER, "cannot write into folder %s: %s", path, strerror(errno));
  return 0;
}

static int open_device(struct tc_train *t, struct tc_err *err)
{
  const char *want = t->cfg->run_device;
  const struct tc_rank_info *me = &t->ranks->info[t->rank];
  const bool automatic = !strcmp(want, "auto");
  char name[48];
  struct tc_err why = { 0 };
  TC_TRY(tc_process_pool(t->threads, err));
  tc_ranks_gpu_name(me, name, sizeof name);
  if (automatic && me->device >= 0 && tc_device_open(&t->device, name, t->threads, &why) < 0
      && t->rank == 0)
    tc_log("run.device = auto takes the CPU: %s", why.text);
  if (strcmp(want, "cuda")) snprintf(name, sizeof name, "%s", automatic ? "cpu" : want);
  if (!t->device) TC_TRY(tc_device_open(&t->device, name, t->threads, err));
  t->device->poison = t->cfg->run_poison;
  t->device->tf32 = t->cfg->train_tf32;
  if (t->device->ops->separate) TC_TRY(tc_device_open(&t->host, "cpu", t->threads, err));
  if (t->opts.gpt.dtype == TC_BF16 && !t->device->ops->has_bf16(t->device))
    return tc_fail(err, TC_EUSER, "train.precision = bf16: this CPU multiplies no bf16 (it needs "
                   "AVX512_BF16 or AMX); use fp32");
  return 0;
}

static int make_programs(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(tc_train_could_fit(t, err));
  for (int kind = 0; kind < TC_PROGRAMS; kind++) {
    tc_at_file("making the programs", NULL);
    TC_TRY(tc_program_of_run(t->prog, kind, &t->opts, t->mesh, t->rank, err));
  }
  tc_at_file("taking memory", NULL);
  TC_TRY(tc_train_fits(t, err));
  struct tc_exec_opts x = { .device = t->device, .host = t->host, .mesh = t->mesh,
                            .rank = t->rank, .fill = tc_train_fill, .fill_ctx = t,
                            .trace = t->trace,
                            .apart = !t->cfg->run_join, .walk = !t->cfg->run_capture };
  memcpy(x.comm, t->comm, sizeof x.comm);
  memcpy(x.native, t->native, sizeof x.native);
  t->base_rss_bytes = tc_rss_bytes(false);
  return tc_exec_new(&t->exec, &x, t->prog, TC_PROGRAMS, err);
}

/* What can fail on this rank alone; agreed on afterwards. Before NCCL joins, and after. */
static int setup_local(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(tc_train_data_open(t, err));
  TC_TRY(open_device(t, err));
  if (t->rank == 0) {
    TC_TRY(make_folder(t->out, err));
    TC_TRY(make_folder(t->ckpt_dir, err));
  }
  return 0;
}

static int setup_memory(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(make_programs(t, err));
  if (t->rank == 0) TC_TRY(tc_train_plan(t, err));
  return tc_train_trace_open(t, err);
}

/* ---- the loop ------------------------------------------------------------------------ */

double tc_train_lr(const struct tc_config *c, int64_t step)
{
  int64_t warm = c->train_warmup == TC_AUTO ? TC_MIN(c->train_steps / 20, 2000) : c->train_warmup;
  return tc_lr(c->train_schedule, step, c->train_steps, warm, c->train_lr, c->train_min_lr);
}

static struct tc_runtime runtime(const struct tc_train *t, int64_t step)
{
  const struct tc_config *c = t->cfg;
  return (struct tc_runtime){
    .seed = (uint64_t)c->train_seed, .step = step,
    .lr = (float)tc_train_lr(c, step),
    .beta1 = (float)c->train_beta1, .beta2 = (float)c->train_beta2, .eps = (float)c->train_eps,
    .weight_decay = (float)c->train_weight_decay, .clip = (float)c->train_clip };
}

static int evaluate(struct tc_train *t, int64_t step, double *loss, struct tc_err *err)
{
  int64_t B = t->opts.gpt.batch, windows = tc_data_windows(t->val);
  int64_t batches = tc_ceil_div(windows, B);
  if (t->cfg->train_eval_batches > 0) batches = TC_MIN(batches, t->cfg->train_eval_batches);
  windows = TC_MIN(windows, batches * B);
  struct tc_runtime rt = runtime(t, step);
  double sum = 0;
  int64_t t0 = tc_trace_pause(t->trace);
  tc_at_file("evaluating", NULL);
  for (int64_t i = 0; i < batches; i++) {
    t->eval_batch = i;
    int rc = tc_exec_run(t->exec, TC_EVAL, &rt, err);
    t->eval_batch = -1;
    if (rc < 0) return rc;
    sum += tc_exec_scalar(t->exec, TC_EVAL, t->prog[TC_EVAL]->graph->loss) * (double)B;
  }
  tc_trace_resume(t->trace, TC_EV_EVAL, "evaluation", t0);
  *loss = sum / (double)windows;
  return 0;
}

static int one_step(struct tc_train *t, struct tc_step_report *r, struct tc_err *err)
{
  struct tc_runtime rt = runtime(t, r->step);
  const struct tc_graph *g = t->prog[TC_TRAIN]->graph;
  int64_t t0 = tc_now_ns();
  tc_fault_begin(&t->fault, t->rank, r->step);
  TC_TRY(tc_exec_run(t->exec, TC_TRAIN, &rt, err));
  tc_fault_end(&t->fault, t->rank, r->step, tc_now_ns() - t0 - tc_exec_wait_ns(t->exec, -1));
  r->loss = tc_exec_scalar(t->exec, TC_TRAIN, g->loss);
  r->grad_norm = tc_exec_scalar(t->exec, TC_TRAIN, g->grad_norm);
  r->lr = (double)rt.lr;
  r->step_ns = tc_now_ns() - t0;
  r->wait_ns = tc_exec_wait_ns(t->exec, -1);     /* an evaluation would overwrite it */
  r->pp_wait_ns = tc_exec_wait_ns(t->exec, TC_PP);
  struct tc_event e = { .name = "step", .begin_ns = t0, .end_ns = t0 + r->step_ns, .bytes = -1,
                        .mb = -1, .track = TC_TRACK_STEP, .kind = TC_EV_STEP };
  tc_trace_add(t->trace, &e);
  return 0;
}

/* Another run's state (ckpt.from) becomes this one's, so that going back, or starting again, finds
 * it here. */
static int save_borrowed(struct tc_train *t, struct tc_err *err)
{
  tc_writer_copy(t->writer);
  tc_train_save_begin(t, t->start_step);
  return tc_train_save_end(t, true, true, err);
}

static int loop(struct tc_train *t, struct tc_err *err)
{
  const struct tc_config *c = t->cfg;
  const int64_t end = tc_train_last_step(c);
  int64_t shown_ns = 0, flag[TC_FLAGS];
  double rate = 0;
  bool stop = false;
  if (t->start_step < end) TC_TRY(tc_train_asked_before(t, err));
  tc_counters_read(t, t->said);
  t->recover.boundary_ns = tc_now_ns();
  for (int64_t step = t->start_step + 1; step <= end && !stop; step++) {
    struct tc_step_report r = { .step = step, .val_loss = NAN,
                                .tokens = t->opts.gpt.batch * t->opts.model.context };
    tc_at_step(step);
    TC_TRY(tc_train_trace_step(t, step, err));
    TC_TRY(one_step(t, &r, err));
    tc_fault_fire(t, &r);
    double now = (double)r.tokens / ((double)r.step_ns * 1e-9);
    rate = rate > 0 ? 0.9 * rate + 0.1 * now : now;
    /* What is written by now is committed before the run goes back, or evaluates its end. */
    bool bad = tc_rollback_bad(t, &r), ends = step == c->train_steps;
    int rc = tc_train_save_end(t, bad || ends, false, err);
    if (rc == TC_EPEER) return rc;
    if (bad) {
      TC_TRY(tc_train_data_check(t, err));       /* going back does not help against other data */
      if (c->train_rollback == 0) tc_metrics_add(t, &r);
      TC_TRY(tc_rollback_go(t, &r, &step, err));
      continue;
    }
    if (ends || (c->train_eval_every > 0 && step % c->train_eval_every == 0))
      TC_TRY(evaluate(t, step, &r.val_loss, err));
    TC_TRY(tc_train_read_flags(t, &r, flag, err));
    tc_progress(t, &r, &shown_ns, rate);
    TC_TRY(tc_train_finish_step(t, &r, flag, &stop, err));
  }
  return 0;
}

static void train_free(struct tc_train *t, bool abandon)
{
  tc_at_file("ending", NULL);
  /* First what may still send from, or receive into, the arenas. */
  bool whole = tc_train_writer_close(t, abandon);
  struct tc_comm *comm[2 * TC_AXES + 2];
  memcpy(comm, t->native, sizeof t->native);
  memcpy(comm + TC_AXES, t->comm, sizeof t->comm);
  comm[2 * TC_AXES] = t->world;
  comm[2 * TC_AXES + 1] = whole ? t->ckpt_comm : NULL;
  if (!tc_comms_free(comm, 2 * TC_AXES + 2)) return;    /* as below */
  for (int a = 0; a <= TC_AXES; a++) free(t->names[a]);
  if (!whole) return;             /* a thread still uses the rest; the process is about to end */
  free(t->names[TC_AXES + 1]);
  tc_owner_free(t->owner);
  tc_metrics_close(t);
  tc_trace_free(t->trace);
  tc_straggler_free(t->slow);
  tc_exec_free(t->exec);
  for (int i = 0; i < TC_PROGRAMS; i++) tc_program_free(t->prog[i]);
  tc_device_close(t->device);
  tc_device_close(t->host);
  tc_data_free(t->data);
  tc_data_free(t->val);
  tc_mesh_free(t->mesh);
  tc_annotations_free(t->rows);
  json_decref(t->predicted);
  free(t->out);
  free(t->home);
  free(t->ckpt_dir);
  free(t->stack);
}

static int run(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(tc_agree(t, setup_local(t, err), err));
  TC_TRY(tc_train_data_same(t, err));
  int rc = make_native(t, err);
  if (rc == TC_EPEER) return rc;
  TC_TRY(tc_agree(t, rc < 0 ? rc : setup_memory(t, err), err));
  TC_TRY(tc_train_own(t, err));
  if (t->rank == 0) tc_request_begin(t);         /* tercio save counts on this run from here on */
  tc_at_file("taking up the checkpoint", NULL);
  TC_TRY(tc_train_restore(t, err));
  TC_TRY(tc_agree(t, tc_train_writer_open(t, err), err));
  const int64_t end = tc_train_last_step(t->cfg);
  if (t->cfg->train_warmup >= t->cfg->train_steps && t->rank == 0)
    tc_warn("train.warmup = %lld is not below train.steps = %lld: the learning rate rises to the end",
            (long long)t->cfg->train_warmup, (long long)t->cfg->train_steps);
  if (t->start_step >= end && t->rank == 0)
    tc_log("nothing to do: %lld of %lld steps are done", (long long)t->start_step,
           (long long)end);
  TC_TRY(tc_agree(t, tc_metrics_open(t, t->start_step, err), err));
  TC_TRY(tc_agree(t, tc_train_run_json(t, err), err));
  if (t->borrowed) TC_TRY(save_borrowed(t, err));
  int saved = 0;
  rc = loop(t, err);
  struct tc_err late = { 0 };
  if (rc != TC_EPEER) saved = tc_train_save_end(t, true, false, &late);
  if (saved == TC_EPEER) rc = tc_fail(err, saved, "%s", late.text);
  return tc_train_trace_end(t, rc, err);
}

int tc_train(struct tc_train *t, struct tc_err *err)
{
  t->eval_batch = t->saved_step = t->recover.back_to = t->metrics.fd = -1;
  tc_time_limit_begin(t);
  t->out = tc_strdup(t->cfg->run_out);
  t->stack = tc_versions_text();
  t->ckpt_dir = *t->cfg->ckpt_dir ? tc_strdup(t->cfg->ckpt_dir) : tc_sprintf("%s/ckpt", t->out);
  tc_log_set_rank(t->ranks->world > 1 ? t->rank : -1);
  int rc = setup_plan(t, err);
  if (!rc) tc_train_trace_new(t);
  if (!rc) rc = make_comms(t, err);
  if (!rc) rc = run(t, err);
  if ((rc == 0 || rc == TC_STOPPED || rc == TC_ENDED) && t->rank == 0) tc_train_guard_clear(t);
  train_free(t, rc == TC_EPEER);
  return rc;
}
