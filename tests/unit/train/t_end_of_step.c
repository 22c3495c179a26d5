/* t_end_of_step.c - the end of a step (end_of_step.c): what the ranks' flags, a signal, a request and the
 * time limit make of it, on one rank whose state was just saved. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "io/ckpt/owner.h"
#include "src/graph/mesh.h"
#include "src/train/train.h"
#include "src/launch/stop.h"
#include "src/train/parts.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/stderr_text.h"

enum { STOP, DUE, BUSY, LOST };

struct fixture {
  struct tc_config cfg;
  struct tc_comm *self;
  struct tc_writer *writer;
  struct tc_data *data;
  struct tc_stage_data of_stage;
  struct tc_mesh mesh;
  struct tc_train t;
};

static bool open_fixture(struct fixture *f)
{
  static float x;
  static char *text = "text";
  static char *who = "rank 0 on here";
  static const struct tc_ckpt_tensor tensor = { "x", TC_F32, 1, { 1 } };
  static const struct tc_ckpt_slice slice = { .count = { 1 }, .data = &x };
  const struct tc_comm_opts o = { .name = "world" };
  struct tc_err err = { 0 };
  *f = (struct fixture){ .cfg = { .train_steps = 10, .train_seed = 7 }, .mesh = { .world = 1 } };
  f->self = tc_comm_self(&o);
  const struct tc_writer_opts so = { .dir = ".",
                                    .tensor = &tensor,
                                    .slice = &slice,
                                    .n_tensors = 1,
                                    .n_slices = 1,
                                    .verified = -1,
                                    .threads = 1,
                                    .comm = f->self };
  FILE *file = fopen("text", "w");
  for (int i = 0; file && i < 100; i++) fprintf(file, "%d\n", i);
  if (file) fclose(file);
  int rc = tc_writer_new(&f->writer, &so, &err);
  const struct tc_data_opts data = { &text, 1, TC_FORMAT_TEXT, 1, 8, 256, 0, false, false, false, false };
  if (!rc) rc = tc_data_open(&f->data, &data, &err);
  if (rc) printf("Bail out! %s\n", err.text);
  f->cfg.ckpt_busy = TC_BUSY_SKIP;
  f->of_stage = (struct tc_stage_data){ .train = f->data, .val = f->data };
  f->t = (struct tc_train){ .run.cfg = &f->cfg,
                            .run.world = f->self,
                            .run.rank_names = &who,
                            .ckpt.writer = f->writer,
                            .run.n_stages = 1,
                            .batches.stage = &f->of_stage,
                            .batches.train = f->data,
                            .batches.val = f->data,
                            .run.mesh = &f->mesh,
                            .out = (char *)(uintptr_t) ".",
                            .ckpt.saved_step = -1,
                            .ckpt.dir = (char *)(uintptr_t) "./ckpt",
                            .log.file.fd = -1,
                            .ckpt.start_step = 3 };
  return rc == 0;
}

#define RESUME ": run the same command to resume"
#define SHORT                                                                                                \
  "the time limit is too short: it is near after step 7 already, and each start would get no further. Give " \
  "more than twice what a step and a checkpoint take (see above): run.walltime, or the job's time (sbatch --time)"
#define LEFT_OUT "tercio: checkpoint of step 7 left out: the one before is still being written\n"

static void test_finish(struct fixture *f)
{
  static const struct {
    int64_t step, stop_at, flag[TC_FLAGS];
    int rank;
    bool wait, left_out, ends, out;
    int rc;
    const char *text, *log;
  } row[] = {
    { 7, 0, { 0, 0, 0 }, 0, 0, 0, false, false, 0, "", "" },
    { 10, 0, { 0, 0, 0 }, 0, 0, 0, true, false, 0, "", "" },
    { 7, 7, { 0, 0, 0 }, 0, 0, 0, true, false, 0, "", "" },
    { 7,
      0,
      { 1, 0, 0 },
      0,
      0,
      0,
      false,
      false,
      TC_STOPPED,
      "saved step 7 and stopped on request, with exit status 85" RESUME,
      "" },
    { 7,
      0,
      { 2, 0, 0 },
      0,
      0,
      0,
      false,
      false,
      TC_STOPPED,
      "saved step 7 and stopped before the time limit, with exit "
      "status 85" RESUME,
      "" },
    { 7, 0, { 3, 0, 0 }, 0, 0, 0, false, false, TC_EUSER, SHORT, "" },
    { 7,
      0,
      { 4, 0, 0 },
      0,
      0,
      0,
      false,
      false,
      TC_ENDED,
      "saved step 7 and stopped on request, with exit status 86" RESUME,
      "" },
    { 7, 7, { 4, 0, 0 }, 0, 0, 0, true, false, 0, "", "" },
    { 7, 0, { 0, 1, 0 }, 0, 0, 0, false, false, 0, "", "" },
    { 7, 0, { 0, 1, 1 }, 0, 0, 0, false, true, 0, "", LEFT_OUT },
    { 7, 0, { 0, 1, 1 }, 0, 0, 1, false, true, 0, "", "" },
    { 7, 0, { 0, 1, 1 }, 1, 0, 0, false, true, 0, "", "" },
    { 7, 0, { 0, 1, 1 }, 0, 1, 0, false, false, 0, "", "" },
    { 7, 0, { 0, 2, 1 }, 0, 0, 1, false, false, 0, "", "" },
    { 7, 7, { 0, 1, 1 }, 0, 0, 1, true, false, 0, "", "" },
    { 7, 0, { 0, 0, 1 }, 0, 0, 1, false, true, 0, "", "" },
    { 7, 0, { 0, 1, 0 }, 0, 0, 1, false, false, 0, "", "" },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_step_report r = { .step = row[i].step };
    struct tc_err err = { 0 };
    bool stop = false;
    f->cfg.train_stop_at = row[i].stop_at;
    f->cfg.ckpt_busy = row[i].wait ? TC_BUSY_WAIT : TC_BUSY_SKIP;
    f->t.run.rank = row[i].rank;
    f->t.end.left_out = row[i].left_out;
    f->t.ckpt.saved_step = row[i].step;
    is_int(tc_train_finish_step(&f->t, &r, row[i].flag, &stop, &err), row[i].rc,
           "the end of a step, case %zu", i);
    is_str(err.text, row[i].text, "... in these words");
    is_str(stderr_text(), row[i].log, "... after these");
    is_int(stop, row[i].ends, "... the loop %s", row[i].ends ? "ends" : "does not end");
    is_int(f->t.end.left_out, row[i].out, "... a checkpoint is %s",
           row[i].out ? "left out" : "not left out");
    ok(!f->t.log.copied && !f->t.log.stall_ns && !f->t.end.copy_ns, "... and nothing is copied");
  }
  f->t.run.rank = 0;
  f->cfg.train_stop_at = 0;
}

/* Data that could not be read are not saved over what was trained before. */
static void test_data(struct fixture *f)
{
  struct tc_step_report r = { .step = 7 };
  int64_t flag[TC_FLAGS] = { 0, 1, 0, 0 };
  bool stop = false;
  for (int i = 0; i < 4; i++) {
    struct tc_err err = { 0 };
    f->t.batches.err = (struct tc_err){ .status = TC_EUSER, .text = "cannot read text" };
    f->t.ckpt.saved_step = i % 2 ? 5 : -1;
    f->t.run.rank = 1;
    if (i < 2)
      is_int(tc_train_finish_step(&f->t, &r, flag, &stop, &err), TC_EUSER,
             "a step that is to be saved");
    else
      is_int(tc_train_read_flags(&f->t, &r, (int64_t[TC_FLAGS]){ 9, 9, 9, 9 }, &err), TC_EUSER,
             "flags");
    is_str(
        err.text,
        i % 2
            ? "cannot read text. What was trained after step 5 is not saved, since it may be of other "
              "data. Restore the file and run the same command again to resume from there; for changed data start a new run "
              "(another run.out)"
            : "cannot read text. No checkpoint was saved; run the same command again to start anew",
        "... of data that cannot be read");
  }
  f->t.batches.err = (struct tc_err){ 0 };
  f->t.ckpt.saved_step = -1;
  f->t.run.rank = 0;
}

static void ask(const char *word)
{
  FILE *f = fopen("save", "w");
  if (f) fputs(word, f);
  if (f) fclose(f);
}

/* What rank 0 alone knows: a request, that a checkpoint must be saved, a time limit. */
static void test_flags(struct fixture *f)
{
  static const struct {
    int64_t step, every;
    const char *word;
    double left_s;
    bool late;
    int64_t want[TC_FLAGS];
  } row[] = {
    { 7, 0, NULL, 0, false, { 0, 0, 0, 0 } },      { 8, 4, NULL, 0, false, { 0, 1, 0, 0 } },
    { 7, 4, NULL, 0, false, { 0, 0, 0, 0 } },      { 7, 0, "checkpoint", 0, false, { 0, 2, 0, 0 } },
    { 8, 4, "requeue", 0, false, { 1, 2, 0, 0 } }, { 7, 0, "stop", 0, false, { 4, 2, 0, 0 } },
    { 7, 0, NULL, 1e6, false, { 0, 0, 0, 0 } },    { 7, 0, NULL, 1, true, { 2, 0, 0, 0 } },
    { 7, 0, NULL, 1, false, { 3, 0, 0, 0 } },      { 7, 0, "requeue", 1, true, { 2, 2, 0, 0 } },
    { 7, 0, "stop", 1, true, { 4, 2, 0, 0 } }
  };
  f->t.ckpt.owner = tc_owner_new(".", "", 0);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_step_report r = { .step = row[i].step };
    struct tc_err err = { 0 };
    int64_t flag[TC_FLAGS] = { 9, 9, 9, 9 };
    f->cfg.ckpt_every = row[i].every;
    f->t.request = (struct tc_request_state){ 0 };
    f->t.rollback = (struct tc_rollback){ 0 };
    f->t.interval = (struct tc_interval){ 0 };
    f->t.limit = (struct tc_time_limit){ .late = row[i].late };
    f->t.limit.end_ns = row[i].left_s > 0 ? tc_now_ns() + (int64_t)(row[i].left_s * 1e9) : 0;
    if (row[i].word) ask(row[i].word);
    is_int(tc_train_read_flags(&f->t, &r, flag, &err), 0, "flags, case %zu %s", i, err.text);
    ok(!memcmp(flag, row[i].want, sizeof flag), "... are %d %d %d %d", (int)flag[0], (int)flag[1],
       (int)flag[2], (int)flag[3]);
    is_int(f->t.limit.steps, 1, "... and the time limit was looked at once");
    unlink(".save-taken");
  }
  stderr_text();
  tc_owner_free(f->t.ckpt.owner);
  f->cfg.ckpt_every = 0;
}

static void wait_for(struct tc_stop *s, int signal, int kind)
{
  kill(getpid(), signal);
  while (tc_stop_asked(s) != kind) tc_sleep_ns(1000000);
}

/* Last: a signal is not taken back. */
static void test_signals(struct fixture *f)
{
  static const struct {
    int signal, kind, rc;
    int64_t flag;
    const char *name;
  } row[] = { { SIGUSR2, TC_STOP_REQUEUE, TC_STOPPED, 1, "USR2" },
              { SIGTERM, TC_STOP_END, TC_ENDED, 4, "TERM" } };
  struct tc_stop *s;
  struct tc_err err = { 0 };
  is_int(tc_train_asked_before(&f->t, &err), 0, "nothing is asked for before the first step %s",
         err.text);
  const struct tc_stop_opts o = { .requests = true };
  if (!is_int(tc_stop_new(&s, &o, &err), 0, "signals are received %s", err.text)) return;
  tc_stop_join(s);
  f->t.stop = s;
  for (size_t i = 0; i < 2; i++) {
    struct tc_step_report r = { .step = 7 };
    int64_t flag[TC_FLAGS];
    wait_for(s, row[i].signal, row[i].kind);
    is_int(tc_train_asked_before(&f->t, &err), row[i].rc, "%s before the first step", row[i].name);
    is_str(
        err.text,
        "stopped on request before the first step of this start (after step 3): there is nothing new to save",
        "... in these words");
    f->t.run.rank = 1;
    is_int(tc_train_read_flags(&f->t, &r, flag, &err), 0, "... or within one");
    is_int(flag[STOP], row[i].flag, "... is a flag");
    ok(!flag[DUE] && !flag[BUSY] && !flag[LOST], "... and no other");
    f->t.run.rank = 0;
  }
}

int main(void)
{
  struct fixture f;
  tc_stop_block();
  alarm(300);
  const int keep = dup(STDERR_FILENO),
            to = chdir(fx_folder()) == 0 ? open("stderr", O_RDWR | O_CREAT | O_APPEND, 0600) : -1;
  if (to < 0 || dup2(to, STDERR_FILENO) < 0 || !open_fixture(&f)) return 1;
  test_finish(&f);
  test_data(&f);
  test_flags(&f);
  test_signals(&f);
  tc_data_free(f.data);
  tc_writer_free(f.writer, false);
  tc_comm_free(f.self);
  dup2(keep, STDERR_FILENO);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
