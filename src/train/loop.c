/* loop.c - the loop of one rank.
 *
 * Everything that can fail on one rank alone is agreed on by all (tc_run_agree) before the next
 * collective work, so that no rank waits for one that has left. Of a failure within a step (a lost
 * peer, a kernel) the others learn by their deadline. */
#include "src/train/parts.h"
#include "io/ckpt/owner.h"
#include "src/watch/watch.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

/* ---- setting up ---------------------------------------------------------------------- */

/* Pure and local: the same answer on every rank. */
static int setup_plan(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(tc_run_layout(&t->run, err));
  if (t->run.n_stages > 1) t->own.model_context = t->run.stages[0].context;     /* a checkpoint's model has its stage's */
  if (!*t->run.cfg->run_out) return tc_fail(err, TC_EUSER, "run.out can't be empty: name a folder");
  TC_TRY(tc_stop_if_read(&t->stop_if, t->run.cfg, err));
  return tc_fault_parse(&t->fault, t->run.cfg->run_fault, t->run.ranks->world, err);
}

static int make_folder(const char *path, struct tc_err *err)
{
  TC_TRY(tc_folder_make(path, err));
  const int why = tc_access(path, W_OK | X_OK);
  return why ? tc_fail(err, TC_EUSER, "cannot write into folder %s: %s", path, strerror(why)) : 0;
}

/* These two can fail on this rank alone, and are agreed on afterwards: before NCCL joins, and
 * after. */
static int setup_local(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(tc_tasks_open(t, err));
  TC_TRY(tc_run_device(&t->run, err));
  if (t->run.rank == 0) {
    TC_TRY(make_folder(t->out, err));
    TC_TRY(make_folder(t->ckpt.dir, err));
  }
  return 0;
}

static int setup_memory(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(tc_run_programs(&t->run, tc_train_fill, t, err));
  tc_tasks_ready(t);
  if (t->run.rank == 0) TC_TRY(tc_train_plan(t, err));
  return tc_train_trace_open(t, err);
}

/* ---- the loop ------------------------------------------------------------------------ */

static struct tc_runtime runtime(const struct tc_train *t, int64_t step)
{
  const struct tc_config *c = t->run.cfg;
  return (struct tc_runtime){
    .seed = (uint64_t)c->train_seed_dropout, .step = step,
    .lr = (float)tc_rate_at(&t->rate, step),
    .beta1 = (float)c->train_beta1, .beta2 = (float)c->train_beta2,
    .muon_momentum = (float)c->train_muon_momentum, .muon_scale = c->train_muon_scale,
    .momentum = (float)c->train_momentum, .eps = (float)c->train_eps,
    .weight_decay = (float)c->train_weight_decay, .clip = (float)c->train_clip };
}

/* The mean loss over a source of the validation data, whose batches begin with number `first`. */
static int evaluate_source(struct tc_train *t, int source, int64_t first, const struct tc_runtime *rt, double *loss,
                           struct tc_err *err)
{
  const int64_t B = t->run.opts.gpt.batch, batches = tc_train_eval_batches(t, source);
  double sum = 0;
  for (int64_t i = 0; i < batches; i++) {
    tc_train_data_from(t, first + i);
    int rc = tc_exec_run(t->run.exec, tc_run_index(&t->run, TC_EVAL), rt, err);
    tc_train_data_from(t, -1);
    if (rc < 0) return rc;
    sum += tc_exec_scalar(t->run.exec, tc_run_index(&t->run, TC_EVAL), t->run.prog[TC_EVAL]->graph->loss) * (double)B;
  }
  *loss = sum / tc_train_val_counted(t, source);
  return 0;
}

/* The sources' losses, and their mean by the sources' shares; then the tasks. */
static int evaluate(struct tc_train *t, struct tc_step_report *r, struct tc_err *err)
{
  struct tc_runtime rt = runtime(t, r->step);
  int64_t t0 = tc_trace_pause(t->trace), first = 0;
  tc_at_phase("evaluating");
  double mean = 0;
  for (int s = 0; s < tc_data_sources(t->batches.val); s++) {
    double *of_source = &t->batches.val_loss[s];
    TC_TRY(evaluate_source(t, s, first, &rt, of_source, err));
    mean += tc_data_source_share(t->batches.val, s) * *of_source;
    first += tc_train_eval_batches(t, s);
  }
  TC_TRY(tc_tasks_ask(t, r->step, err));
  tc_trace_resume(t->trace, TC_EV_EVAL, "evaluation", t0);
  r->val_loss = mean;
  r->validated = true;
  return 0;
}

static int one_step(struct tc_train *t, struct tc_step_report *r, struct tc_err *err)
{
  struct tc_runtime rt = runtime(t, r->step);
  const struct tc_graph *g = t->run.prog[TC_TRAIN]->graph;
  const int train = tc_run_index(&t->run, TC_TRAIN);
  int64_t t0 = tc_now_ns();
  r->counted = tc_train_counted(t, r->step);
  rt.loss_scale = (float)((double)(t->run.opts.gpt.batch * t->run.opts.model.context) / (double)r->counted);
  tc_fault_begin(&t->fault, t->run.rank, r->step);
  TC_TRY(tc_exec_run(t->run.exec, train, &rt, err));
  tc_fault_end(&t->fault, t->run.rank, r->step,
               tc_now_ns() - t0 - tc_exec_wait_ns(t->run.exec, -1));
  r->loss = tc_exec_scalar(t->run.exec, train, g->loss) * tc_loss_scale(&rt);
  r->grad_norm = tc_exec_scalar(t->run.exec, train, g->grad_norm);
  r->lr = (double)rt.lr;
  r->step_ns = tc_now_ns() - t0;
  tc_iso_time(r->time, sizeof r->time);
  r->wait_ns = tc_exec_wait_ns(t->run.exec, -1);     /* an evaluation would overwrite it */
  r->pp_wait_ns = tc_exec_wait_ns(t->run.exec, TC_SET_PP);
  struct tc_event e = { .name = "step", .begin_ns = t0, .end_ns = t0 + r->step_ns, .bytes = -1,
                        .mb = -1, .track = TC_TRACK_STEP, .kind = TC_EV_STEP };
  tc_trace_add(t->trace, &e);
  return 0;
}

/* Saves the state that was loaded from another run (ckpt.from), so that a rollback or a restart
 * finds it in this run's folder. */
static int save_borrowed(struct tc_train *t, struct tc_err *err)
{
  tc_writer_copy(t->ckpt.writer);
  tc_train_save_begin(t, t->ckpt.start_step);
  return tc_train_save_end(t, true, true, err);
}

static int loop(struct tc_train *t, struct tc_err *err)
{
  const struct tc_config *c = t->run.cfg;
  const int64_t end = tc_stop_if_met(&t->stop_if) ? t->ckpt.start_step : tc_last_step(c);
  int64_t flag[TC_FLAGS];
  struct tc_progress progress = { 0 };
  double rate = 0;
  bool stop = false;
  if (t->ckpt.start_step < end) TC_TRY(tc_train_asked_before(t, err));
  tc_metrics_begin(t);
  tc_time_limit_first_step(t);
  for (int64_t step = t->ckpt.start_step + 1; step <= end && !stop; step++) {
    tc_train_stage(t, step);
    struct tc_step_report r = { .step = step, .trained = tc_train_tokens(t, step),
                                .tokens = t->run.opts.gpt.batch * t->run.opts.model.context };
    tc_at_step(step);
    TC_TRY(tc_train_trace_step(t, step, err));
    TC_TRY(one_step(t, &r, err));
    tc_fault_fire(t, &r);
    double now = (double)r.tokens / ((double)r.step_ns * 1e-9);
    rate = rate > 0 ? 0.9 * rate + 0.1 * now : now;
    /* A save under way is committed before a rollback, and before the last evaluation. */
    bool bad = tc_rollback_bad(t, &r) || t->ckpt.diverged, ends = step == c->train_steps;
    int rc = tc_train_save_end(t, bad || ends, false, err);
    if (rc == TC_EPEER) return rc;
    if (ends) bad |= t->ckpt.diverged;           /* all ranks have waited for that save */
    const int64_t every = c->train_eval_every;
    if (!bad && (ends || (every > 0 && step % every == 0) || tc_train_border(t, every, step))) {
      TC_TRY(evaluate(t, &r, err));
      bad = tc_rollback_bad_validation(t, &r);
      if (!bad) tc_stop_if_validated(&t->stop_if, step, r.val_loss);
      if (bad && tc_train_save_end(t, true, false, err) == TC_EPEER) return TC_EPEER;
    }
    if (bad) {
      TC_TRY(tc_train_data_check(t, err));   /* a rollback is no remedy for changed data */
      if (c->train_rollback == 0) tc_metrics_add(t, &r);
      TC_TRY(tc_rollback_go(t, &r, &step, err));
      continue;
    }
    TC_TRY(tc_train_read_flags(t, &r, flag, err));
    tc_progress(t, &r, &progress, rate);
    TC_TRY(tc_train_finish_step(t, &r, flag, &stop, err));
  }
  return 0;
}

/* Frees t, unless a thread still uses it. */
static void train_free(struct tc_train *t, bool abandon)
{
  tc_at_phase("ending");
  /* First the threads and communicators that may still use memory that is freed below. */
  bool whole = tc_train_writer_close(t, abandon);
  if (!tc_run_comms_free(&t->run, !whole) || !whole)
    return;                       /* still in use; the process is about to end */
  tc_owner_free(t->ckpt.owner);
  tc_metrics_close(t);
  tc_trace_free(t->trace);
  tc_straggler_free(t->end.straggler);
  tc_tasks_close(t);
  tc_run_programs_free(&t->run);
  tc_train_data_close(t);
  tc_run_free(&t->run);
  json_decref(t->plan.predicted);
  TC_FREE(t->out, t->ckpt.lease, t->ckpt.tuned, t->ckpt.loaded, t->ckpt.base);
  tc_train_tokenizer_free(t);
  TC_FREE(t->ckpt.dir, t);
}

/* Rank 0. What is unusual about the steps that are to come; when they are saved. */
static void say_steps(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const int64_t end = tc_last_step(c);
  if (c->train_warmup >= c->train_steps)
    tc_warn("train.warmup = %lld is not below train.steps = %lld: the learning rate rises to the end",
            (long long)c->train_warmup, (long long)c->train_steps);
  if (c->train_steps == 1 && tc_rate_at(&t->rate, 1) == 0)
    tc_warn("the learning rate of the only step is train.min_lr = 0, so the weights stay as they are: more "
            "train.steps, or train.schedule = constant, would train");
  if (tc_stop_if_met(&t->stop_if)) tc_stop_if_say(t, t->ckpt.start_step);
  else if (t->ckpt.start_step >= end)
    tc_log("nothing to do: %lld of %lld steps are done", (long long)t->ckpt.start_step, (long long)end);
  else tc_interval_say(t);
}

static int run(struct tc_train *t, struct tc_err *err)
{
  TC_TRY(tc_train_data_open(t, err));
  TC_TRY(tc_run_agree(&t->run, setup_local(t, err), err));
  TC_TRY(tc_train_data_same(t, err));
  TC_TRY(tc_train_val_count(t, err));
  TC_TRY(tc_tasks_same(t, err));
  TC_TRY(tc_run_precision(&t->run, err));
  t->own.train_precision = (enum tc_dtype)t->run.opts.gpt.dtype;
  int rc = tc_run_native(&t->run, err);
  if (rc == TC_EPEER) return rc;
  if (rc == 0) TC_TRY(tc_run_head_chunk(&t->run, tc_train_planned_bytes(t), err));
  if (t->run.opts.head_chunk > 0) t->own.parallel_head_chunk = t->run.opts.head_chunk;
  TC_TRY(tc_run_agree(&t->run, rc < 0 ? rc : setup_memory(t, err), err));
  TC_TRY(tc_run_attention(&t->run, err));
  tc_progress_begin(t);
  TC_TRY(tc_train_own(t, err));
  if (t->run.rank == 0) tc_request_begin(t);     /* tercio save counts on this run from here on */
  TC_TRY(tc_train_folders(t, err));
  tc_at_phase("taking up the checkpoint");
  TC_TRY(tc_train_restore(t, err));
  TC_TRY(tc_run_tune(&t->run, t->ckpt.tuned, t->run.cfg->run_tune, err));
  TC_TRY(tc_run_agree(&t->run, tc_train_writer_open(t, err), err));
  tc_train_stage(t, TC_MIN(t->ckpt.start_step + 1, t->run.cfg->train_steps));
  tc_start_say(t);
  if (t->run.rank == 0) say_steps(t);
  TC_TRY(tc_run_agree(&t->run, tc_metrics_open(t, t->ckpt.start_step, err), err));
  TC_TRY(tc_run_agree(&t->run, tc_train_run_json(t, err), err));
  if (t->ckpt.borrowed) TC_TRY(save_borrowed(t, err));
  int saved = 0;
  rc = loop(t, err);
  struct tc_err late = { 0 };
  if (rc != TC_EPEER) saved = tc_train_save_end(t, true, false, &late);
  if (saved == TC_EPEER) rc = tc_fail(err, saved, "%s", late.text);
  TC_TRY(tc_train_trace_end(t, rc, err));
  tc_progress_end(t);
  return 0;
}

int tc_train(const struct tc_train_args *a, struct tc_err *err)
{
  const struct tc_config *c = a->cfg;
  struct tc_train *t = tc_malloc(sizeof *t);
  *t = (struct tc_train){
    .own = *c, .precision_by_device = c->train_precision == TC_DTYPE_AUTO, .stop = a->stop, .out = tc_strdup(c->run_out),
    .run = { .cfg = &t->own, .ranks = a->ranks, .rank_names = a->rank_names, .rank = a->rank, .threads = a->threads,
             .hub = a->hub, .mpi = a->mpi },
    .ckpt = { .saved_step = -1 }, .batches = { .eval_batch = -1 }, .rollback = { .back_to = -1 },
    .log.file.fd = -1 };
  tc_seeds_fill(&t->own);
  t->ckpt.dir = *c->ckpt_dir ? tc_strdup(c->ckpt_dir) : tc_sprintf("%s/ckpt", t->out);
  tc_time_limit_begin(t);
  tc_log_set_rank(a->ranks->world > 1 ? a->rank : -1);
  int rc = setup_plan(t, err);
  if (!rc) tc_train_trace_new(t);
  if (!rc) rc = tc_run_comms(&t->run, t->trace, err);
  if (!rc) rc = run(t, err);
  if ((rc == 0 || rc == TC_STOPPED || rc == TC_ENDED) && a->rank == 0) tc_train_guard_clear(t);
  train_free(t, rc == TC_EPEER);
  return rc;
}
