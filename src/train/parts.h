/* parts.h - what the files of src/train do, in their order: each calls those above it here, and none below. */
#ifndef TC_PARTS_H
#define TC_PARTS_H

#include "src/train/impl.h"

/* ---- when.c: how many steps a run has, when it saves, and when it must stop ---- */

/* Local, rank 0 logs. Why train.stop_if ends the run after this step. */
void tc_stop_if_say(const struct tc_train *t, int64_t step);
/* Local. Logs when this run saves. */
void tc_interval_say(const struct tc_train *t);
/* Local. A save took write_ns to write (and end.copy_ns to copy). */
void tc_interval_cost(struct tc_train *t, int64_t write_ns);
/* Local, rank 0. Whether this step must be followed by a checkpoint, by a number of steps or the time since the last. */
bool tc_interval_due(const struct tc_train *t, int64_t step);
/* Local, when the process starts, and before its first step. */
void tc_time_limit_begin(struct tc_train *t);
void tc_time_limit_first_step(struct tc_train *t);
/* Local, rank 0, once a step. Whether the time left is just enough to save and leave, and,
 * TC_TIME_LIMIT_SHORT, came to that so soon that a start with the whole time would get no
 * further. */
enum { TC_TIME_LIMIT_FAR, TC_TIME_LIMIT_NEAR, TC_TIME_LIMIT_SHORT };
int tc_time_limit_near(struct tc_train *t);
/* Local. When the last save has to begin to be done in time, by tc_now_ns; 0: there is no limit. */
int64_t tc_time_limit_last_save(const struct tc_train *t);

/* ---- request.c: tercio save; Local, rank 0 ---- */

/* Removes requests from before this start. */
void tc_request_begin(struct tc_train *t);
/* Once a step. What to do after it (enum tc_request): looks for a file at most once a second,
 * and after the last step. */
int tc_request_look(struct tc_train *t, int64_t step, bool last);
/* If what was asked for is committed: logs it and removes the file. */
void tc_request_end(struct tc_train *t);

/* ---- batches.c: batches, and data that fail or change under a run ---- */

/* Collective. The same error on all ranks. */
int tc_train_data_open(struct tc_train *t, struct tc_err *err);
/* Collective. TC_EUSER unless all ranks read the same tokens. */
int tc_train_data_same(struct tc_train *t, struct tc_err *err);
/* Local, the same on all ranks. TC_EUSER: data.order, as it is or as a checkpoint says it, does not go with packed data. */
int tc_train_order_check(const struct tc_train *t, struct tc_err *err);
void tc_train_data_close(struct tc_train *t);
/* Local. From now on data are those of stage k. */
void tc_train_data_stage(struct tc_train *t, int k);
/* Local. Whether what a word of ckpt.every or train.eval_every stands for ends in this step of the present stage: TC_EPOCH, a
 * pass over a source; TC_STAGE, the stage, if another follows. Of a number: no. */
bool tc_train_border(const struct tc_train *t, int64_t word, int64_t step);
/* Local. From now on batches are training data (-1), or this batch of the validation data, whose batches are
 * numbered through its sources. */
void tc_train_data_from(struct tc_train *t, int64_t eval_batch);
/* Local. How many windows of a source of the validation data a validation reads, by the batch of the first stage, so that those
 * of all stages with one context read the same; and in how many global batches of the present one. */
int64_t tc_train_eval_windows(const struct tc_train *t, int source);
int64_t tc_train_eval_batches(const struct tc_train *t, int source);
/* Local. A source's share of the samples of the present stage up to this step, from 0 to 1; and its epochs, in all stages that
 * read it with the present context. */
double tc_train_share(const struct tc_train *t, int64_t step, int source);
double tc_train_epoch(const struct tc_train *t, int64_t step, int source);
/* Local. What waited_ns and hashes have was reported: they begin anew. */
void tc_train_data_reported(struct tc_train *t);
/* Local, the same on all ranks. How many targets of the step's whole batch the loss counts, at least 1; a failure, and that none
 * does, is in batches.err, as of tc_train_fill. */
int64_t tc_train_counted(struct tc_train *t, int64_t step);
/* Collective, after tc_train_data_same. Counts the targets of validations that count, once for all of them: rank 0 does. TC_EUSER,
 * which names the source and its first window: of a source that is validated on none does. */
int tc_train_val_count(struct tc_train *t, struct tc_err *err);
/* Local. How many targets of a source of the present validation data the loss counts, over those of a window. */
double tc_train_val_counted(const struct tc_train *t, int source);
/* Local; a tc_fill_fn, ctx: the tc_train. A batch that cannot be read becomes zeros, and
 * batches.err says why: the step ends on all ranks, and the run before anything of it is saved. */
void tc_train_fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                   int32_t *tokens, int32_t *targets, int32_t *starts);

/* Local. TC_EUSER if a batch of this rank could not be read, or a file changed since the start; rank 0 warns of changes
 * that do no harm. */
int tc_batches_check(const struct tc_train *t, struct tc_err *err);

/* ---- eval_tasks.c: questions that are asked at each validation ---- */

/* Local, after the data are opened. TC_EUSER: what is wrong with a file of questions, or that a tokenizer is missing or
 * not that of the data. */
int tc_tasks_open(struct tc_train *t, struct tc_err *err);
/* Local. TC_EUSER if the questions were read by another tokenizer than that with this hash (0: any will do), which is
 * that of the model at `path`. */
int tc_tasks_of_tokenizer(const struct tc_train *t, uint64_t hash, const char *path, struct tc_err *err);
/* Collective. TC_EUSER unless all ranks read the same questions. */
int tc_tasks_same(struct tc_train *t, struct tc_err *err);
void tc_tasks_ready(struct tc_train *t);         /* Local, after the programs are made */
void tc_tasks_close(struct tc_train *t);         /* Local, before the programs are freed */
/* Collective, between steps. All tasks. */
int tc_tasks_ask(struct tc_train *t, int64_t step, struct tc_err *err);
/* Local. Adds what was answered after this step, if tasks were asked, to a text for people. */
void tc_tasks_text(const struct tc_train *t, int64_t step, char *text, size_t size);

/* ---- stage.c: the stages of a run; Local ---- */

/* Enters the stage of a step that is about to be done, if the present one is another. */
void tc_train_stage(struct tc_train *t, int64_t step);
/* Tokens of all steps up to this one. */
int64_t tc_train_tokens(const struct tc_train *t, int64_t step);
/* A step of the present stage at the devices' peak, in seconds; 0: not known. */
double tc_train_peak_s(const struct tc_train *t);

/* ---- tokenizer.c: the model's tokenizer, which checkpoints take along; Local ---- */

struct tc_ckpt;
/* TC_EUSER if the checkpoint, of this run or of another, says another tokenizer than the data. */
int tc_train_tokenizer_check(const struct tc_train *t, const struct tc_ckpt *c, struct tc_err *err);
/* After a checkpoint was loaded: its tokenizer, unless the data say theirs, and rank 0 its tokenizer.json. */
void tc_train_tokenizer_take(struct tc_train *t, const struct tc_ckpt *c);
/* Before the first save: the data's, and rank 0, if it took none, the tokenizer.json beside them; a warning where there
 * is none. */
void tc_train_tokenizer_find(struct tc_train *t);
void tc_train_tokenizer_free(struct tc_train *t);

/* ---- rollback.c: what is left out, and which losses are bad ---- */

/* Local. What goes into a checkpoint (owned by the caller) and comes out of it. */
char *tc_rollback_text(const struct tc_train *t);
int tc_rollback_parse(struct tc_train *t, const char *text, struct tc_err *err);
/* Local, once a step. Whether the step's loss or gradient norm is not finite, or the loss a spike. */
bool tc_rollback_bad(struct tc_train *t, const struct tc_step_report *s);
/* Local, after a validation. Whether its loss, or that of an answer of a task, is not finite. */
bool tc_rollback_bad_validation(const struct tc_train *t, const struct tc_step_report *s);

/* ---- kept.c; Local ---- */

/* What a file that `option` names may not replace; the list is owned by the caller. */
struct tc_kept { struct tc_output_kept *file; int n, cap; struct tc_pool *pool; };
void tc_kept_of(struct tc_kept *k, const struct tc_train *t, const char *option);
void tc_kept_free(struct tc_kept *k);

/* ---- measure.c: a step's figures, and where they go; Local ---- */

/* tc_metrics_file_open, after the folder is owned, and the others of that name; rank 0: also the files of other programs
 * that options ask for (tc_metrics_out_open). */
int tc_metrics_open(struct tc_train *t, int64_t step, struct tc_err *err);
void tc_metrics_close(struct tc_train *t);
void tc_metrics_back(struct tc_train *t, int64_t step);
void tc_metrics_look(struct tc_train *t, int64_t step);
/* Before the first step: what is sent from here on is the first line's. */
void tc_metrics_begin(struct tc_train *t);
/* What the next line says: training waited so long for a save, whose state was copied; a save was
 * committed. */
void tc_metrics_stalled(struct tc_train *t, int64_t stall_ns, bool copied);
void tc_metrics_saved(struct tc_train *t, int64_t step, int64_t write_ns);
/* Passes each figure of a step to a sink, in the table's order; what was sent is that of the step's line. */
void tc_metrics_each(const struct tc_train *t, const struct tc_step_report *r, tc_metric_sink *sink, void *ctx);
/* The line of a step, with its newline; owned by the caller. */
char *tc_metrics_line(struct tc_train *t, const struct tc_step_report *r);
/* After all sinks: what has come together since the last line begins anew. */
void tc_metrics_forget(struct tc_train *t);
/* All three: adds the figures of a step to all files; what cannot be written is missing, with a warning. */
void tc_metrics_add(struct tc_train *t, const struct tc_step_report *r);

/* ---- folders.c ---- */

/* Collective. The folder is this run's from now on (io/ckpt/owner.h), or TC_EUSER names the run
 * that has it. */
int tc_train_own(struct tc_train *t, struct tc_err *err);
/* Collective, when the folder is ours. TC_EUSER if not all nodes share ckpt.dir, or one can't write there; a warning if
 * they do not share run.out, or there is no room for a checkpoint. */
int tc_train_folders(struct tc_train *t, struct tc_err *err);

/* ---- guard.c: crash loops ---- */

/* Local, rank 0. Counts starts of one job that follow a start without a new checkpoint;
 * TC_NOPROGRESS when there were too many. _clear: the run ended well, or was ended by hand:
 * forget. */
int tc_train_guard(struct tc_train *t, int64_t newest_step, struct tc_err *err);
void tc_train_guard_clear(struct tc_train *t);

/* ---- resume.c: settings and data that differ from the checkpoint's ---- */

/* Local. TC_EUSER if an option has a value that the saved state cannot be used with. */
struct tc_ckpt_meta;
int tc_resume_check(const struct tc_train *t, const struct tc_ckpt *c, struct tc_err *err);
/* Local. data.order = auto becomes the order of the checkpoint's run; meta NULL, or without a run's settings:
 * that of a new run. */
void tc_resume_order(struct tc_train *t, const struct tc_ckpt_meta *meta);
/* Local, rank 0. Logs layout and options that differ from the checkpoint's, and warns of each option, and of data,
 * that change samples, learning rate or arithmetic from here on. */
void tc_resume_say(const struct tc_train *t, const struct tc_ckpt_meta *meta);
/* Local. TC_EUSER if the checkpoint is of a run with other settings or data: which give the steps that are left other results,
 * and ckpt.changed refuses that; or, where none is left, gave other results than what the user asks for. */
int tc_resume_changed(const struct tc_train *t, const struct tc_ckpt_meta *meta, struct tc_err *err);
/* Local. The same of a checkpoint of another run, at `path`, whose whole state is taken: all but the schedule has to be as there. */
int tc_resume_branch(const struct tc_train *t, const struct tc_ckpt_meta *meta, const char *path, struct tc_err *err);
/* Local. "pp1 dp4 tp1"; owned by the caller. */
char *tc_resume_mesh(const struct tc_train *t);
/* ... and on which nodes its ranks are, where that decides the order in which sums are added (run.sums), else "". */
char *tc_resume_nodes(const struct tc_train *t);
/* Local. What a checkpoint says of the data; owned by the caller. */
char *tc_resume_data(const struct tc_train *t);

/* ---- save_state.c: state to checkpoints ---- */

/* Local, after the state is there. _close: false if the writer was left behind (tc_writer_free). */
int tc_train_writer_open(struct tc_train *t, struct tc_err *err);
bool tc_train_writer_close(struct tc_train *t, bool abandon);
/* Local. What the writer's staging memory has to be, from the placements alone. */
int64_t tc_train_staging_bytes(const struct tc_train *t);
/* Collective. Has the writer write what it copied (without ckpt.async: writes). */
void tc_train_save_begin(struct tc_train *t, int64_t step);
/* Local, or with `wait` collective. The result of the last save: 0, also if there is nothing
 * new. On failure older checkpoints stay; rank 0 warns unless `last`. */
int tc_train_save_end(struct tc_train *t, bool wait, bool last, struct tc_err *err);
/* Collective. TC_EUSER if a rank could not read a batch, or finds a file changed since the start:
 * what was trained since the last checkpoint may then be of other data. Waits for a save in
 * progress. */
int tc_train_data_check(struct tc_train *t, struct tc_err *err);
/* Local. Makes every saved element of this rank NaN; with `one` only the last of its part of wte.weight. */
void tc_train_poison(struct tc_train *t, bool one);

/* ---- last_save.c ---- */

/* Collective. The last save of a run failed with rc: has it written again until it succeeds or its time is over
 * (ckpt.retry_minutes, and the time limit). Its status; the sentence says which steps are lost. */
int tc_train_save_again(struct tc_train *t, int64_t step, int rc, struct tc_err *err);

/* ---- restore.c: state from checkpoints, at the start and after a bad step ---- */

/* Collective. Loads the newest good checkpoint (or as ckpt.resume says) and sets start_step, or
 * initialises the weights. */
int tc_train_restore(struct tc_train *t, struct tc_err *err);
/* Collective; nothing may be being saved. After a bad step: goes back to *step, or fails with
 * TC_EDIVERGED because train.rollback doesn't allow it (again). */
int tc_rollback_go(struct tc_train *t, const struct tc_step_report *s, int64_t *step,
                   struct tc_err *err);

/* ---- start.c; Local, after the state is there ---- */

/* Rank 0 prints a line each of data, weights and rate. */
void tc_start_say(const struct tc_train *t);
struct json_t *tc_start_json(const struct tc_train *t);   /* the same for run.json */
/* Local. What carries the data of the axes: "nccl", "thread", "mpi", or "self" of one rank. */
const char *tc_train_comm_name(const struct tc_train *t);

/* ---- run_json.c ---- */

/* Local, rank 0, when mesh and device are there: what the planner predicts (run.plan_device). TC_EUSER: the device or its
 * file is not known. A layout that the planner has no time for is no failure. */
int tc_train_plan(struct tc_train *t, struct tc_err *err);
/* Local. The memory of the GPU that run.plan_device names, on rank 0; 0: none, or not known. */
double tc_train_planned_bytes(const struct tc_train *t);
int tc_train_run_json(struct tc_train *t, struct tc_err *err);   /* Collective. Writes run.json */

/* ---- progress.c; Local, rank 0 prints ---- */

/* Before the first step, when the programs are made: model, batch, ranks, layout and output folder, a line each. */
void tc_progress_begin(const struct tc_train *t);
/* After each good step: a line, but not too often. *p is the caller's, zeroed at first. */
struct tc_progress { int64_t shown_ns, first_ns, steps; };
void tc_progress(const struct tc_train *t, const struct tc_step_report *r, struct tc_progress *p,
                 double tokens_per_s);
/* After the last step: where the results are, and which commands show them. */
void tc_progress_end(const struct tc_train *t);

/* ---- run_trace.c: run.trace ---- */

void tc_train_trace_new(struct tc_train *t);     /* Local. Before the communicators are made */
int tc_train_trace_open(struct tc_train *t, struct tc_err *err);   /* Local. After the programs */
/* Collective. Before each step; at the run's end, with its status, which it returns. */
int tc_train_trace_step(struct tc_train *t, int64_t step, struct tc_err *err);
int tc_train_trace_end(struct tc_train *t, int rc, struct tc_err *err);

/* ---- fault.c ---- */

/* Local. "" is none. TC_EUSER. */
int tc_fault_parse(struct tc_fault *f, const char *text, int world, struct tc_err *err);
/* Local. Before a step's work: hangs, if this is the rank and step. */
void tc_fault_begin(const struct tc_fault *f, int rank, int64_t step);
/* Local. After a step's work of work_ns: makes it four times as long, if this is the rank and
 * step. */
void tc_fault_end(const struct tc_fault *f, int rank, int64_t step, int64_t work_ns);
/* Local. Makes the loss a spike, or loss and state not a number, if this is the step. */
void tc_fault_fire(struct tc_train *t, struct tc_step_report *r);

/* ---- end_of_step.c ---- */

/* Collective, before the first step. TC_STOPPED or TC_ENDED if that was asked for by now. */
int tc_train_asked_before(struct tc_train *t, struct tc_err *err);
/* Collective. flag[n] <- the ranks' maximum; rank 0 receives how long each worked, fills r->slowest
 * and warns of stragglers. */
int tc_train_control(struct tc_train *t, int64_t *flag, int n, struct tc_step_report *r,
                     struct tc_err *err);
/* Collective, after a good step: what the ranks agree on (end_of_step.c has their names). TC_EUSER
 * where the folder was lost or the data changed. */
enum { TC_FLAGS = 4 };
int tc_train_read_flags(struct tc_train *t, struct tc_step_report *r, int64_t flag[TC_FLAGS],
                        struct tc_err *err);
/* Collective, then: saves, writes the line. *stop: leave the loop with what is returned. */
int tc_train_finish_step(struct tc_train *t, struct tc_step_report *r,
                         const int64_t flag[TC_FLAGS], bool *stop, struct tc_err *err);

#endif
