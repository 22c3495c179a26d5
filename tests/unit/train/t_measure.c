/* t_measure.c - what a run writes for others: the lines of metrics.jsonl, the line of progress, and what
 * it makes of the file of `tercio save`. The clock and the terminal are the test's. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/train/request.h"
#include "src/train/parts.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/stderr_text.h"

static int64_t now_ns; /* 0: the true time */
static bool terminal;

int clock_gettime(clockid_t id, struct timespec *ts)
{
  if (!now_ns || id != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, id, ts);
  ts->tv_sec = now_ns / 1000000000;
  ts->tv_nsec = now_ns % 1000000000;
  return 0;
}

int isatty(int fd) { return terminal && fd == STDERR_FILENO; }

static void put_file(const char *path, const char *text)
{
  FILE *f = fopen(path, "w");
  if (f) fputs(text, f);
  if (f) fclose(f);
}

/* Steps of a file's lines, "1 2 "; -1 stands for a line that is cut short. */
static const char *steps(const char *path)
{
  static char text[400];
  char line[4000];
  FILE *f = fopen(path, "r");
  *text = 0;
  while (f && fgets(line, sizeof line, f)) {
    const char *at = strstr(line, "\"step\": ");
    snprintf(text + strlen(text), sizeof text - strlen(text), "%d ",
             at && strchr(line, '\n') ? atoi(at + 8) : -1);
  }
  if (f) fclose(f);
  return f ? text : "no file";
}

/* ---- a line of metrics.jsonl ---- */

static const char plain[] =
    "{\"step\": 3, \"loss\": 2.5, \"val_loss\": null, \"lr\": 0.001, \"grad_norm\": null, "
    "\"not_finite\": {\"grad_norm\": \"inf\"}, \"tokens\": 3000, \"tokens_per_s\": 4000.0, \"step_ms\": 250.0, \"time\": \"2026-11-26T06:00:00Z\", \"wait_ms\": 2.0, \"mfu\": null, \"comm\": "
    "{\"pp\": {}, \"dp\": {}, \"tp\": {}, \"ctl\": {}}, \"bubble\": 0.125}\n";
static const char full[] =
    "{\"step\": 3, \"loss\": 2.5, \"val_loss\": 3.25, \"lr\": 0.333333333333, \"grad_norm\": 1.5, "
    "\"tokens\": 3000, \"tokens_per_s\": 4000.0, \"step_ms\": 250.0, \"time\": \"2026-11-26T06:00:00Z\", \"slowest\": {\"rank\": 1, \"host\": \"two\", "
    "\"work_ms\": 20.0, \"median_ms\": 10.0}, \"wait_ms\": 2.0, \"mfu\": 0.5, \"ckpt\": {\"stall_ms\": 7.0, "
    "\"saved\": 2, \"write_ms\": 9.0, \"bytes\": 64}, \"skipped\": 5, \"rollbacks\": 2, \"comm\": {\"pp\": {\"send\": "
    "{\"calls\": 3, \"bytes\": 100}}, \"dp\": {\"all_reduce\": {\"calls\": 1, \"bytes\": 8}}, \"tp\": {}, \"ctl\": "
    "{\"all_reduce\": {\"calls\": 7, \"bytes\": 44}, \"barrier\": {\"calls\": 1, \"bytes\": 0}}}, \"bubble\": 0.125}\n";
static const char copied[] = "\"mfu\": null, \"ckpt\": {\"stall_ms\": 1.5}, \"comm\"";

static void test_line(struct tc_writer *writer)
{
  struct tc_rank_info info[2] = { { .host = "one" }, { .host = "two" } };
  const struct tc_ranks ranks = { .info = info };
  const struct tc_straggler_opts o = { .world = 2,
                                  .stage = (int32_t[]){ 0, 0 },
                                  .node = (int32_t[]){ 0, 1 } };
  struct tc_train t = { .run.ranks = &ranks, .ckpt.writer = writer };
  struct tc_step_report r = { .step = 3, .time = "2026-11-26T06:00:00Z",
                              .tokens = 1000,
                              .step_ns = 250000000,
                              .wait_ns = 2000000,
                              .pp_wait_ns = 31250000,
                              .loss = 2.5,
                              .lr = 1e-3,
                              .grad_norm = INFINITY };
  char *line = tc_metrics_line(&t, &r);
  is_str(line, plain, "a line without anything besides");
  free(line);
  tc_metrics_forget(&t);
  t.log.copied = true;
  t.log.stall_ns = 1500000;
  line = tc_metrics_line(&t, &r);
  ok(strstr(line, copied) != NULL, "a checkpoint that is not yet there: what it stalled");
  free(line);
  tc_metrics_forget(&t);
  r.val_loss = 3.25, r.validated = true, r.grad_norm = 1.5, r.lr = 1.0 / 3,
  r.slowest = (struct tc_slowest){ 1, 20000000, 10000000 };
  t.end.straggler = tc_straggler_new(&o);
  t.plan.peak_s = 0.125;
  t.log.saved = (struct tc_log_save){ 2, 9000000 };
  t.ckpt.bytes = 64, t.log.stall_ns = 7000000;
  t.rollback.skipped = 5, t.rollback.rollbacks = 2;
  t.log.counted[TC_PP].data[TC_SEND] = (struct tc_coll_count){ -3, -100 };
  t.log.counted[TC_DP].data[TC_ALL_REDUCE] = (struct tc_coll_count){ -1, -8 };
  t.log.counted[TC_TP].ctl[TC_ALL_REDUCE] = (struct tc_coll_count){ -2, -4 };
  t.log.counted[TC_AXES].ctl[TC_ALL_REDUCE] = (struct tc_coll_count){ -5, -40 };
  t.log.counted[TC_AXES + 1].ctl[TC_BARRIER] = (struct tc_coll_count){ -1, 0 };
  line = tc_metrics_line(&t, &r);
  is_str(line, full, "a line with all there is");
  free(line);
  tc_metrics_forget(&t);
  t.log.counted[TC_PP].ctl[TC_BARRIER] = t.log.counted[TC_AXES].ctl[TC_ALL_REDUCE] = (struct tc_coll_count){ -1, -8 };
  line = tc_metrics_line(&t, &r);
  ok(strstr(line, "\"ctl\": {\"barrier\": {\"calls\": 1, \"bytes\": 8}, \"all_reduce\": {\"calls\": 1, \"bytes\": 8}}}") != NULL,
     "control data stand in the order of communicators: %s", line);
  free(line);
  tc_metrics_forget(&t);
  ok(!t.log.saved.step && !t.log.stall_ns && !t.log.copied && !t.log.counted[TC_PP].data[TC_SEND].calls,
     "what was reported is not reported again");
  tc_straggler_free(t.end.straggler);
}

/* ---- progress ---- */

static void test_progress(void)
{
  static const int64_t S = 1000000000;
  static const struct {
    int rank, tty;
    int64_t step, stop_at, last_ns;
    double val, rate;
    const char *want;
    int64_t steps, first_ns;     /* before this one */
  } row[] = {
    { 0, 0, 1, 0, 0, NAN, 100,
      "step 1/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:09\n", 0, 0 },
    { 1, 0, 1, 0, 0, NAN, 100, "", 0, 0 },
    { 1, 0, 10, 0, 0, 1, 100, "", 0, 0 },
    { 0, 0, 2, 0, 98 * S + 1, NAN, 100, "", 0, 0 },
    { 0, 0, 2, 0, 98 * S, NAN, 0.01,
      "step 2/10  loss 2.5000  norm 1.500  lr 1.00e-03  0 tok/s  left 22:13:20\n", 0, 0 },
    { 0, 0, 2, 0, 99 * S, 3.14159, 0,
      "step 2/10  loss 2.5000  val 3.1416  norm 1.500  lr 1.00e-03  0 tok/s  left 0:00:00\n", 0, 0 },
    { 0, 0, 10, 0, 99 * S, NAN, 1,
      "step 10/10  loss 2.5000  norm 1.500  lr 1.00e-03  1 tok/s  left 0:00:00\n", 0, 0 },
    { 0, 0, 4, 5, 99 * S, NAN, 1, "", 0, 0 },
    { 0, 0, 5, 5, 99 * S, NAN, 1,
      "step 5/5  loss 2.5000  norm 1.500  lr 1.00e-03  1 tok/s  left 0:00:00\n", 0, 0 },
    { 0, 0, 5, 1, 0, NAN, 50,
      "step 5/1  loss 2.5000  norm 1.500  lr 1.00e-03  50 tok/s  left 0:00:-8\n", 0, 0 },
    { 0, 0, 5, 20, 0, NAN, 7,
      "step 5/10  loss 2.5000  norm 1.500  lr 1.00e-03  7 tok/s  left 0:01:11\n", 0, 0 },
    /* 40 s for four steps, with what was between them; 2000 s for one. */
    { 0, 0, 5, 0, 0, NAN, 100,
      "step 5/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:50\n", 4, 60 * S },
    { 0, 0, 6, 0, 0, 3, 100,
      "step 6/10  loss 2.5000  val 3.0000  norm 1.500  lr 1.00e-03  100 tok/s  left 2:13:20\n", 1, -1900 * S },
    { 0, 1, 3, 0, 100 * S - 200000000, NAN, 100,
      "\rstep 3/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:07\033[K", 0, 0 },
    { 0, 1, 3, 0, 100 * S - 199999999, NAN, 100, "", 0, 0 },
    { 0, 1, 3, 0, 0, 2, 100,
      "\rstep 3/10  loss 2.5000  val 2.0000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:07\033[K\n", 0, 0 },
    { 0, 1, 10, 0, 0, NAN, 100,
      "\rstep 10/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:00\033[K\n", 0, 0 },
  };
  now_ns = 100 * S;
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_config c = { .train_steps = 10, .train_stop_at = row[i].stop_at };
    const struct tc_train t = { .run.cfg = &c, .run.rank = row[i].rank };
    const struct tc_step_report r = { .step = row[i].step,
                                      .tokens = 100,
                                      .loss = 2.5,
                                      .lr = 1e-3,
                                      .val_loss = row[i].val, .validated = !isnan(row[i].val),
                                      .grad_norm = 1.5 };
    struct tc_progress p = { .shown_ns = row[i].last_ns, .steps = row[i].steps, .first_ns = row[i].first_ns };
    terminal = row[i].tty;
    tc_progress(&t, &r, &p, row[i].rate);
    is_str(stderr_text(), row[i].want, "progress %zu", i);
    is_int(p.shown_ns, *row[i].want ? now_ns : row[i].last_ns, "... %s",
           *row[i].want ? "now" : "not now");
    is_int(p.steps, row[i].steps + 1, "... a step more");
    is_int(p.first_ns, row[i].steps ? row[i].first_ns : now_ns, "... the first was then");
  }
  terminal = false;
  now_ns = 0;
}

/* ---- tercio save ---- */

struct ask {
  const char *text;
  int kind;
  const char *logged;
};

static void test_words(struct tc_train *t)
{
  static const struct ask row[] = {
    { "", TC_ASK_SAVE, "" },
    { "checkpoint\n", TC_ASK_SAVE, "" },
    { " requeue", TC_ASK_REQUEUE, "" },
    { "stop\nrequeue\n", TC_ASK_END, "" },
    { " \n", TC_ASK_SAVE, "" },
    { "halt", TC_ASK_SAVE,
      "tercio: warning: out/.save-taken: 'halt' is not a request: give checkpoint, requeue or "
      "stop; taken as checkpoint\n" },
    { "a-word-of-more-than-thirty-two-letters", TC_ASK_SAVE,
      "tercio: warning: out/.save-taken: "
      "'a-word-of-more-than-thirty-two-' is not a request: give checkpoint, requeue or stop; taken as checkpoint\n" },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    t->request = (struct tc_request_state){ 0 };
    put_file("out/save", row[i].text);
    is_int(tc_request_look(t, 1, true), row[i].kind, "request %zu", i);
    is_str(stderr_text(), row[i].logged, "... what is reported of it");
  }
  for (int kind = 0; kind < 2; kind++) {
    t->request = (struct tc_request_state){ 0 };
    unlink("out/.save-taken");
    if (kind ? mkfifo("out/save", 0600) : mkdir("out/save", 0700))
      printf("Bail out! no %s\n", kind ? "FIFO" : "folder");
    is_int(tc_request_look(t, 2, true), TC_ASK_SAVE, "a %s is a request too",
           kind ? "FIFO" : "folder");
    t->ckpt.saved_step = 2;
    tc_request_end(t);
    is_str(stderr_text(),
           kind ? "tercio: warning: cannot read request out/.save-taken: it is a named pipe; give a file, or <(COMMAND); "
                  "taken as checkpoint\n"
                  "tercio: tercio save: the checkpoint of step 2 is there, as requested\n"
                : "tercio: warning: cannot read request out/.save-taken: it is a folder; name a file in it; taken as "
                  "checkpoint\n"
                  "tercio: tercio save: the checkpoint of step 2 is there, as requested\n"
                  "tercio: warning: out/.save-taken: Is a directory\n",
           "... and is done with");
    rmdir("out/.save-taken");
  }
}

static void test_request(struct tc_writer *writer)
{
  static const int64_t S = 1000000000;
  struct tc_train t = { .out = (char *)(uintptr_t) "out", .ckpt.writer = writer, .ckpt.saved_step = -1 };
  mkdir("out", 0700);
  now_ns = 100 * S;
  is_int(tc_request_look(&t, 3, false), TC_ASK_NONE, "nothing is asked for");
  is_int(t.request.looked_ns, now_ns, "... as of now");
  put_file("out/save", "requeue");
  now_ns += S - 1;
  is_int(tc_request_look(&t, 4, false), TC_ASK_NONE, "a request is looked for once a second");
  now_ns += 1;
  is_int(tc_request_look(&t, 5, false), TC_ASK_REQUEUE, "... and found then");
  ok(access("out/save", F_OK) && !access("out/.save-taken", F_OK), "... and taken");
  now_ns += S;
  is_int(tc_request_look(&t, 6, false), TC_ASK_NONE, "one answer is begun for one request");
  now_ns += 59 * S - 1;
  is_int(tc_request_look(&t, 7, true), TC_ASK_NONE, "... for a minute");
  now_ns += 1;
  is_int(tc_request_look(&t, 8, false), TC_ASK_REQUEUE,
         "... and again, if there is no checkpoint by then");
  is_int(tc_request_look(&t, 8, false), TC_ASK_NONE, "... once");
  t.ckpt.saved_step = 4;
  tc_request_end(&t);
  is_int(t.request.kind, TC_ASK_REQUEUE, "a checkpoint from before the request is no answer");
  is_str(stderr_text(), "", "... and nothing is reported");
  put_file("out/save", "checkpoint");
  is_int(tc_request_look(&t, 9, true), TC_ASK_REQUEUE, "of two requests the greater counts");
  is_int(t.request.step, 9, "... from the later one's step on");
  t.request.failed_ns = 7;
  t.ckpt.saved_step = 9;
  tc_request_end(&t);
  is_str(stderr_text(), "tercio: tercio save: the checkpoint of step 9 is there, as requested\n",
         "its checkpoint is there");
  ok(access("out/.save-taken", F_OK) && !t.request.kind && !t.request.begun_ns && !t.request.step,
     "... and the request is done with");
  ok(t.request.failed_ns == 7 && t.request.looked_ns == now_ns, "... but for when it was looked for");
  tc_request_end(&t);
  is_str(stderr_text(), "", "no request, no word");
  test_words(&t);
  put_file("out/save", "");
  put_file("out/.save-taken", "");
  tc_request_begin(&t);
  is_str(stderr_text(),
         "tercio: out/save: this request is from before this start: removed\n"
         "tercio: out/.save-taken: this request is from before this start: removed\n",
         "a start removes older ones");
  tc_request_begin(&t);
  is_str(stderr_text(), "", "... if there are any");
  t.request = (struct tc_request_state){ 0 };
  put_file("file", "");
  t.out = (char *)(uintptr_t) "file";
  for (int i = 0; i < 2; i++) {
    is_int(tc_request_look(&t, 1, true), TC_ASK_NONE, "a folder that is none");
    is_str(stderr_text(),
           i ? "" : "tercio: warning: file/save: Not a directory: tercio save does not work here\n",
           "... is reported once");
  }
  now_ns = 0;
}

/* ---- the file metrics.jsonl ---- */

static const char lines[] = "out/metrics.jsonl";

static void add(struct tc_train *t, int64_t from, int64_t to)
{
  struct tc_step_report r = { .step_ns = 1 };
  for (r.step = from; r.step <= to; r.step++) tc_metrics_add(t, &r);
}

static void test_open(struct tc_train *t)
{
  struct tc_err err = { 0 };
  struct stat st;
  is_int(tc_metrics_open(t, 0, &err), 0, "a new file %s", err.text);
  is_str(steps(lines), "", "... is empty");
  add(t, 1, 4);
  FILE *f = fopen(lines, "a");
  if (f)
    fputs(
        "{\"step\": 2.5}\n{\"step\": \"1\"}\n{}\n[]\n\nnothing\n{\"step\": -1}\n{\"step\": 0}\n{\"step\": 1}",
        f);
  if (f) fclose(f);
  chmod(lines, 0640);
  put_file("out/metrics.jsonl.tmp", "of another program");
  is_int(tc_metrics_open(t, 3, &err), 0, "a run goes on from step 3 %s", err.text);
  is_str(steps(lines), "1 2 3 0 ", "... with whole lines up to it");
  ok(stat(lines, &st) == 0 && (st.st_mode & 0777) == 0640, "... and the file's mode");
  ok(access("out/metrics.jsonl.tmp", F_OK) == 0, "... and a file of another program stays");
  unlink("out/metrics.jsonl.tmp");
  add(t, 4, 5);
  is_str(steps(lines), "1 2 3 0 4 5 ", "... and adds lines");
  is_int(tc_metrics_open(t, 0, &err), 0, "a run from the start %s", err.text);
  is_str(steps(lines), "", "... has no lines");
  tc_metrics_close(t);
  is_int(t->log.file.fd, -1, "closed");
  add(t, 1, 1);
  is_str(steps(lines), "", "... nothing is written");
  rename(lines, "out/elsewhere");
  if (symlink("elsewhere", lines)) printf("Bail out! no link\n");
  is_int(tc_metrics_open(t, 7, &err), 0, "a link %s", err.text);
  add(t, 8, 8);
  ok(lstat(lines, &st) == 0 && S_ISLNK(st.st_mode), "... stays");
  is_str(steps("out/elsewhere"), "8 ", "... and is followed");
  tc_metrics_close(t);
  put_file("out/elsewhere", "{\"step\": 1}\n");
  f = fopen("out/elsewhere", "r+");
  for (int i = 0; f && i < 4096; i++) fputc(0, f);
  if (f) fputs("\n{\"step\": 5}\n", f);
  if (f) fclose(f);
  is_int(tc_metrics_open(t, 7, &err), 0, "a file that begins with a lost node's zero bytes %s", err.text);
  is_str(steps("out/elsewhere"), "5 ", "... keeps its lines");
  tc_metrics_close(t);
  unlink(lines);
  t->run.rank = 1;
  is_int(tc_metrics_open(t, 0, &err), 0, "another rank");
  ok(!t->log.file.wanted && access("out/metrics.1.jsonl", F_OK), "... has no file");
  tc_metrics_look(t, 1);
  ok(access("out/metrics.1.jsonl", F_OK), "... nor gets one later");
  ((struct tc_config *)(uintptr_t)t->run.cfg)->run_all_ranks = true;
  is_int(tc_metrics_open(t, 0, &err), 0, "but with run.all_ranks %s", err.text);
  ok(t->log.file.wanted && access("out/metrics.1.jsonl", F_OK) == 0, "... it has one");
  tc_metrics_close(t);
  t->run.rank = 0;
}

static void test_refused(struct tc_train *t)
{
  static const char *const what[] = {
    "out/metrics.jsonl is a folder, not a file that can be made; take another run.out",
    "out/metrics.jsonl is a pipe, not a file that can be made; take another run.out"
  };
  for (int i = 0; i < 2; i++) {
    struct tc_err err = { 0 };
    char want[300];
    if (i ? mkfifo(lines, 0600) : mkdir(lines, 0700)) printf("Bail out! no FIFO or folder\n");
    is_int(tc_metrics_open(t, 1, &err), TC_EUSER, "a %s is no file", i ? "FIFO" : "folder");
    is_str(err.text, what[i], "... in these words");
    is_int(t->log.file.fd, -1, "... none is open");
    t->log.file.wanted = true;
    tc_metrics_back(t, 1);
    snprintf(want, sizeof want, "tercio: warning: %s; no more lines are written\n", what[i]);
    is_str(stderr_text(), want, "within a run it is a warning");
    ok(!t->log.file.wanted, "... and the last");
    remove(lines);
  }
  tc_metrics_back(t, 1);
  ok(t->log.file.fd >= 0 && !*stderr_text(), "a file within a run");
}

static void test_look(struct tc_train *t)
{
  struct tc_err err = { 0 };
  is_int(tc_metrics_open(t, 0, &err), 0, "a file %s", err.text);
  add(t, 1, 2);
  tc_metrics_look(t, 3);
  is_str(stderr_text(), "", "a file that is as it was");
  rename(lines, "out/older");
  tc_metrics_look(t, 3);
  is_str(
      stderr_text(),
      "tercio: warning: out/metrics.jsonl was removed, renamed or replaced during the run; it goes on there "
      "from step 3\n",
      "a file that was renamed is reported");
  add(t, 3, 3);
  is_str(steps(lines), "3 ", "... and there is another one");
  is_str(steps("out/older"), "1 2 ", "... from there on");
  unlink(lines);
  rmdir("home");
  tc_metrics_look(t, 4);
  ok(access(lines, F_OK) && !*stderr_text(), "another start has the folder: no file is put there");
  mkdir("home", 0700);
  mkdir(lines, 0700);
  for (int i = 0; i < 2; i++) {
    tc_metrics_look(t, 4);
    is_str(
        stderr_text(),
        i ? ""
          : "tercio: warning: out/metrics.jsonl is a folder, not a file that can be made; take another run.out; the lines from "
            "step 4 on are missing. It is tried again with each checkpoint\n",
        "a file that cannot be opened is reported once");
    ok(t->log.file.fd < 0 && t->log.file.paused, "... and is not there");
  }
  rmdir(lines);
  tc_metrics_look(t, 6);
  add(t, 6, 6);
  is_str(steps(lines), "6 ", "... until it can be");
  is_str(stderr_text(), "", "... without a word");
}

static void test_full(struct tc_train *t)
{
  struct rlimit before, few = { 500, RLIM_INFINITY };
  struct tc_err err = { 0 };
  t->log.file.warned = false;
  is_int(tc_metrics_open(t, 0, &err), 0, "a file %s", err.text);
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &before);
  few.rlim_max = before.rlim_max;
  setrlimit(RLIMIT_FSIZE, &few);
  add(t, 1, 6);
  setrlimit(RLIMIT_FSIZE, &before);
  is_str(
      stderr_text(),
      "tercio: warning: cannot write out/metrics.jsonl: File too large; the lines from step 3 on are missing. "
      "It is tried again with each checkpoint\n",
      "a line that there is no room for is reported once");
  is_str(steps(lines), "1 2 ", "... and leaves no part of itself");
  add(t, 7, 7);
  is_str(steps(lines), "1 2 ", "lines are left out");
  tc_metrics_look(t, 8);
  add(t, 8, 8);
  is_str(steps(lines), "1 2 8 ", "... until the next checkpoint");
}

static int descriptors(void)
{
  int n = 0;
  for (int fd = 0; fd < 1000; fd++) n += fcntl(fd, F_GETFD) >= 0;
  return n;
}

/* Pages that are touched are resident, until they are given back; sanitizers have some of their own. */
static void test_resident(void)
{
  const int64_t bytes = 64 << 20, before = tc_rss_bytes(false), peak = tc_rss_bytes(true);
  ok(before > 1 << 20 && before <= peak && before % 1024 == 0, "resident bytes, %lld",
     (long long)before);
  char *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return;
  for (int64_t i = 0; i < bytes; i += 1024) *(volatile char *)(p + i) = 1;
  const int64_t now = tc_rss_bytes(false);
  ok(now > before + bytes / 4 * 3 && now < before + 4 * bytes, "... and with 64 MiB more, %lld",
     (long long)now);
  munmap(p, (size_t)bytes);
  ok(tc_rss_bytes(false) < now - bytes / 2 && tc_rss_bytes(true) >= now - bytes / 4,
     "... which the peak remembers");
}

int main(void)
{
  struct tc_comm_opts o = { .name = "ckpt" };
  struct tc_comm *self = tc_comm_self(&o);
  const char *dir = fx_folder();
  float x = 0;
  const struct tc_ckpt_tensor tensor = { "x", TC_F32, 1, { 1 } };
  const struct tc_ckpt_slice slice = { .count = { 1 }, .data = &x };
  const struct tc_writer_opts so = { .dir = dir,
                                    .tensor = &tensor,
                                    .slice = &slice,
                                    .n_tensors = 1,
                                    .n_slices = 1,
                                    .verified = -1,
                                    .threads = 1,
                                    .comm = self };
  struct tc_writer *writer;
  struct tc_err err = { 0 };
  const int keep = dup(STDERR_FILENO),
            to = dir && chdir(dir) == 0 ? open("stderr", O_RDWR | O_CREAT | O_APPEND, 0600) : -1;
  if (to < 0 || dup2(to, STDERR_FILENO) < 0 || tc_writer_new(&writer, &so, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    return 1;
  }
  const int open_now = descriptors();
  test_resident();
  test_line(writer);
  test_progress();
  test_request(writer);
  struct tc_config c = { 0 };
  struct tc_train t = { .run.cfg = &c,
                        .ckpt.writer = writer,
                        .out = (char *)(uintptr_t) "out",
                        .ckpt.lease = (char *)(uintptr_t) "home",
                        .log.file.fd = -1 };
  mkdir("home", 0700);
  test_open(&t);
  test_refused(&t);
  test_look(&t);
  test_full(&t);
  tc_metrics_close(&t);
  is_int(descriptors(), open_now, "no descriptor is left open");
  tc_writer_free(writer, false);
  tc_comm_free(self);
  dup2(keep, STDERR_FILENO);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
