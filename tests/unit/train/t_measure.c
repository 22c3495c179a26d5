/* t_measure.c - a step's line of metrics.jsonl, and the file, as a run opens, cuts, loses and fills it (measure.c,
 * metrics_file.c); resident memory. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/train/parts.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/stderr_text.h"

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
    "{\"calls\": 3, \"bytes\": 100, \"messages\": 6}}, \"dp\": {\"all_reduce\": {\"calls\": 1, \"bytes\": 8, \"messages\": 2}}, "
    "\"tp\": {}, \"ctl\": {\"all_reduce\": {\"calls\": 7, \"bytes\": 44, \"messages\": 3}, "
    "\"barrier\": {\"calls\": 1, \"bytes\": 0, \"messages\": 4}}}, \"bubble\": 0.125}\n";
static const char copied[] = "\"mfu\": null, \"ckpt\": {\"stall_ms\": 1.5}, \"comm\"";

/* Tasks are in the line of the step after which they were asked. */
static void test_tasks(struct tc_train *t, struct tc_step_report r)
{
  static const char tasks[] = "\"tasks\": [{\"name\": \"q\", \"questions\": 4, \"accuracy\": 0.5, \"accuracy_by_length\": "
    "0.25, \"loss\": null, \"not_finite\": {\"loss\": \"nan\"}}], \"mfu\"";
  char name[] = "q";
  struct tc_task task = { .name = name, .questions.n = 4, .right = 0.5, .by_length = 0.25, .loss = NAN };
  t->tasks.task = &task, t->tasks.n = 1, t->tasks.step = 3;
  for (r.step = 3; r.step <= 4; r.step++) {
    char *line = tc_metrics_line(t, &r);
    is_int(strstr(line, tasks) != NULL, r.step == 3, "tasks %s: %s", r.step == 3 ? "of this step" : "of another", line);
    free(line);
  }
  t->tasks = (struct tc_tasks){ 0 };
}

/* Samples come in the table's order. */
static void in_order(void *ctx, const struct tc_sample *s)
{
  int *last = ctx;
  *last = *last < 0 || (int)s->metric < *last ? -1 : (int)s->metric;
}

static void test_line(struct tc_writer *writer)
{
  struct tc_rank_info info[2] = { { .host = "one" }, { .host = "two" } };
  const struct tc_ranks ranks = { .info = info };
  const struct tc_straggler_opts o = { .world = 2,
                                  .stage = (int32_t[]){ 0, 0 },
                                  .node = (int32_t[]){ 0, 1 } };
  struct tc_mesh *mesh = tc_mesh_one();
  struct tc_train t = { .run.ranks = &ranks, .run.mesh = mesh, .ckpt.writer = writer };
  struct tc_step_report r = { .step = 3, .time = "2026-11-26T06:00:00Z",
                              .tokens = 1000,
                              .trained = 3000,
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
  t.log.counted[TC_SET_PP].data[TC_SEND] = (struct tc_coll_count){ -3, -100, -6 };
  t.log.counted[TC_SET_DP].data[TC_ALL_REDUCE] = (struct tc_coll_count){ -1, -8, -2 };
  t.log.counted[TC_SET_TP].ctl[TC_ALL_REDUCE] = (struct tc_coll_count){ -2, -4, -1 };
  t.log.counted[TC_SETS].ctl[TC_ALL_REDUCE] = (struct tc_coll_count){ -5, -40, -2 };
  t.log.counted[TC_SETS + 1].ctl[TC_BARRIER] = (struct tc_coll_count){ -1, 0, -4 };
  line = tc_metrics_line(&t, &r);
  is_str(line, full, "a line with all there is");
  free(line);
  tc_metrics_forget(&t);
  t.log.counted[TC_SET_PP].ctl[TC_BARRIER] = t.log.counted[TC_SETS].ctl[TC_ALL_REDUCE] = (struct tc_coll_count){ -1, -8, -1 };
  line = tc_metrics_line(&t, &r);
  ok(strstr(line, "\"ctl\": {\"barrier\": {\"calls\": 1, \"bytes\": 8, \"messages\": 1}, "
            "\"all_reduce\": {\"calls\": 1, \"bytes\": 8, \"messages\": 1}}}") != NULL,
     "control data stand in the order of communicators: %s", line);
  free(line);
  tc_metrics_forget(&t);
  ok(!t.log.saved.step && !t.log.stall_ns && !t.log.copied && !t.log.counted[TC_SET_PP].data[TC_SEND].calls,
     "what was reported is not reported again");
  test_tasks(&t, r);
  int last = 0;
  tc_metrics_each(&t, &r, in_order, &last);
  is_int(last, TC_METRIC_BUBBLE, "samples come in the table's order");
  tc_straggler_free(t.end.straggler);
  tc_mesh_free(mesh);
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
  mkdir("out", 0700);
  struct tc_config c = { 0 };
  struct tc_mesh *mesh = tc_mesh_one();
  struct tc_train t = { .run.cfg = &c,
                        .run.mesh = mesh,
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
  tc_mesh_free(mesh);
  tc_comm_free(self);
  dup2(keep, STDERR_FILENO);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
