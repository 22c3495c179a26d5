/* t_end_of_step_calls.c - the end of a step (end_of_step.c), call by call: what is saved, before or after the
 * step's line, for how long training waits, and each call's failure. t_end_of_step tests the flags. */
#include "src/train/parts.h"
#include "io/ckpt/owner.h"
#include "src/train/train.h"
#include "src/launch/stop.h"
#include "src/watch/watch.h"
#include "tests/unit/script.h"

static const struct scene {
  const char *name;
  int rank;
  bool async;
  int64_t step, saved;
  int64_t flag[TC_FLAGS];
} scenes[] = {
  { "a step", 0, true, 7, -1, { 0 } },
  { "a save beside", 0, true, 7, 5, { 0, 1, 0, 0 } },
  { "a save at once", 1, false, 7, -1, { 0, 2, 1, 0 } },
  { "the last step", 0, true, 10, 8, { 0 } },
  { "the last step, at once", 1, false, 10, 8, { 0, 1, 0, 0 } },
  { "the last step is saved", 0, true, 10, 10, { 4, 0, 0, 0 } },
  { "a stop", 0, true, 5, 4, { 1, 0, 0, 0 } },
};

static int line(const struct tc_train *t, const struct tc_step_report *r)
{
  return note("line %d: stall %d copy %d copied %d", (int)r->step, (int)t->log.stall_ns,
              (int)t->end.copy_ns, t->log.copied);
}

#define tc_now_ns script_now
#define tc_warn note
#define tc_log note
#define tc_train_save_end(t, wait, last, err) call(err, "save end %d %d", wait, last)
#define tc_train_save_again(t, step, rc, err) (note("again"), rc)
#define tc_writer_copy(s) note("copy")
#define tc_metrics_add(t, r) line(t, r)
#define tc_train_save_begin(t, step) note("save begins %d", (int)(step))
#define tc_train_data_check(t, err) call(err, "check")
#define tc_metrics_look(t, step) note("look %d", (int)(step))
#define tc_request_end(t) note("request ends")
#define tc_train_run_json(t, err) call(err, "run.json")
#include "src/train/end_of_step.c"

static void play(void *ctx)
{
  const struct scene *s = ctx;
  const struct tc_config cfg = { .train_steps = 10, .ckpt_async = s->async, .ckpt_busy = TC_BUSY_SKIP };
  struct tc_train t = { .run.cfg = &cfg,
                        .run.rank = s->rank,
                        .ckpt.saved_step = s->saved,
                        .ckpt.start_step = 5,
                        .log.stall_ns = 3,
                        .end.copy_ns = 4 };
  struct tc_step_report r = { .step = s->step };
  struct tc_err err = { .text = "" };
  bool stop = false;
  for (int i = 0; i < 2; i++) {
    int rc = tc_train_finish_step(&t, &r, s->flag, &stop, &err);
    note("%d %s; stop %d, stall %d copy %d copied %d", rc, err.text, stop, (int)t.log.stall_ns,
         (int)t.end.copy_ns, t.log.copied);
  }
}

static char *make_scene(const char *line)
{
  for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
    if (!strcmp(scenes[i].name, line)) return script_play(play, (void *)(uintptr_t)&scenes[i]);
  return tc_strdup("none");
}

int main(int argc, char **argv)
{
  alarm(300);
  return digests(argc, argv, "step", make_scene);
}
