/* t_request_run.c - what a run makes of the file of `tercio save`. The clock is the test's. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/train/parts.h"
#include "src/train/train.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/stderr_text.h"

static int64_t now_ns; /* 0: the true time */

int clock_gettime(clockid_t id, struct timespec *ts)
{
  if (!now_ns || id != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, id, ts);
  ts->tv_sec = now_ns / 1000000000;
  ts->tv_nsec = now_ns % 1000000000;
  return 0;
}

static void put_file(const char *path, const char *text)
{
  FILE *f = fopen(path, "w");
  if (f) fputs(text, f);
  if (f) fclose(f);
}

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
  test_request(writer);
  tc_writer_free(writer, false);
  tc_comm_free(self);
  dup2(keep, STDERR_FILENO);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
