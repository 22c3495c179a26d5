/* t_exec_device.c - what the executor asks of a device that fuses calls, keeps lists of them or has a
 * clock: `ref` with such functions of the test's. Which calls are fused and which are kept is listed,
 * and the losses are those of the plain device, to the last bit. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/exec/exec_fixture.h"
#include "tests/unit/stderr_text.h"

static int64_t now_ns; /* 0: the true time; else it stands still */

int clock_gettime(clockid_t id, struct timespec *ts)
{
  if (!now_ns || id != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, id, ts);
  ts->tv_sec = now_ns / 1000000000;
  ts->tv_nsec = now_ns % 1000000000;
  return 0;
}

/* ---- fused calls ---- */

static FILE *list; /* what was asked for; NULL: not noted */
static int asked, fused_runs, fused_fails;

static bool can_fuse(struct tc_device *d, const struct tc_call *const *part, int n)
{
  (void)d;
  asked++;
  for (int i = 0; list && i < n; i++)
    fprintf(list, "%s%s%s", i ? "+" : "", tc_op_info[part[i]->op].name,
            i < n - 1      ? ""
            : part[i]->acc ? " acc\n"
                           : "\n");
  return true;
}

static int64_t fused_scratch(struct tc_device *d, const struct tc_call *const *part, int n)
{
  (void)d;
  return 1000 * n + part[0]->n_in;
}

static int run_fused(struct tc_device *d, const struct tc_call *const *part, int n)
{
  if (++fused_runs == fused_fails) return TC_EUSER;
  for (int i = 0; i < n; i++) TC_TRY(d->ops->kernel[part[i]->op].run(d, part[i]));
  return 0;
}

static const struct tc_fused fused_calls = { can_fuse, fused_scratch, run_fused };

static uint32_t digest_of(const char *s)
{
  uint32_t digest = 5381;
  for (; *s; s++) digest = digest * 33 + (unsigned char)*s;
  return digest;
}

struct layout {
  int mb, recompute, dtype, fused, runs;
  uint32_t digest;
};

static void open_layout(struct fixture *f, const struct layout *l)
{
  model_dtype = l->dtype;
  open_fixture(f, l->mb, l->recompute);
}

/* The losses of the device as it is. */
static void plain_losses(const struct layout *l, double want[STEPS + 1])
{
  struct fixture f;
  struct tc_err err = { 0 };
  open_layout(&f, l);
  ok(make_exec(&f, &err) == 0 && losses(&f, want, &err) == 0, "%d micro-batches of %s, as usual %s",
     l->mb, tc_dtype_name(l->dtype), err.text);
  close_fixture(&f);
}

static void fail_fused(struct fixture *f)
{
  struct tc_err err = { 0 };
  fused_runs = 0, fused_fails = 1;
  is_int(run(f, EVAL, 9, &err), TC_EUSER, "... one that fails");
  is_str(err.text, "matmul+add failed", "... is named");
  fused_fails = 0;
}

enum { FUSED, NOT_FUSED, POISONED, WAYS };
static void test_fused(const struct layout *l)
{
  double want[STEPS + 1], got[STEPS + 1];
  plain_losses(l, want);
  for (int way = 0; way < WAYS; way++) {
    struct fixture f;
    struct tc_err err = { 0 };
    char *text = NULL;
    size_t size = 0;
    open_layout(&f, l);
    f.ops.fused = &fused_calls;
    f.o.no_fusion = way == NOT_FUSED;
    f.device->poison = way == POISONED;
    asked = fused_runs = 0;
    list = open_memstream(&text, &size);
    is_int(make_exec(&f, &err), 0, "calls that may be fused %s", err.text);
    fclose(list);
    list = NULL;
    is_int(losses(&f, got, &err), 0, "... run %s", err.text);
    ok(!memcmp(got, want, sizeof got), "... with the same losses");
    is_int(asked, way == NOT_FUSED ? 0 : l->fused, "... so many are fused");
    is_int(fused_runs, way == NOT_FUSED ? 0 : l->runs, "... and run so often");
    is_int(tc_exec_memory(f.exec).kernel_scratch,
           way == NOT_FUSED         ? 0
           : l->dtype == TC_F32 ? 28005
                                : 56005,
           "... with the scratch of the largest");
    if (way == FUSED && !is_int(digest_of(text), l->digest, "... which is this list")) puts(text);
    if (way != NOT_FUSED) fail_fused(&f);
    free(text);
    close_fixture(&f);
  }
}

/* ---- calls that are kept ---- */

struct kept {
  struct tc_call call;
  struct tc_view view[64];
  void *to;
  const void *from;
  int64_t bytes;
};
struct kept_list {
  int n;
  struct kept *item;
};
static struct kept_list *keeping;
static int begins, ends, replays, lists, fail_begin, fail_end, fail_replay;

static struct kept *keep_one(void)
{
  keeping->item = tc_realloc(keeping->item, (size_t)(keeping->n + 1) * sizeof *keeping->item);
  memset(&keeping->item[keeping->n], 0, sizeof *keeping->item);
  return &keeping->item[keeping->n++];
}

static int keep_call(struct tc_device *d, const struct tc_call *c)
{
  if (!keeping) return watch_run(d, c);
  if (watch.fail_op == c->op && ++watch.runs == watch.fail_run) return TC_EUSER;
  struct kept *k = keep_one();
  TC_ASSERT(c->n_in + c->n_out <= 64);
  k->call = *c;
  memcpy(k->view, c->in, (size_t)(c->n_in + c->n_out) * sizeof *c->in);
  return 0;
}

static void keep_copy(struct tc_device *d, void *to, const void *from, int64_t bytes)
{
  if (!keeping) {
    tc_ref_ops.copy(d, to, from, bytes);
    return;
  }
  struct kept *k = keep_one();
  k->to = to, k->from = from, k->bytes = bytes;
}

static void free_list(struct tc_device *d, void *kept)
{
  struct kept_list *l = kept;
  (void)d;
  lists--;
  free(l->item);
  free(l);
}

static int begin_list(struct tc_device *d, const struct tc_runtime *rt, struct tc_err *err)
{
  (void)d;
  TC_ASSERT(!keeping && rt->step == 2);
  if (++begins == fail_begin) return tc_fail(err, TC_EUSER, "no lists today");
  keeping = tc_calloc(1, sizeof *keeping);
  lists++;
  return 0;
}

static int end_list(struct tc_device *d, void **out, struct tc_err *err)
{
  struct kept_list *l = keeping;
  keeping = NULL;
  for (int i = 0; list && i < l->n; i++)
    fprintf(list, "%s%c", l->item[i].bytes ? "copy" : tc_op_info[l->item[i].call.op].name,
            i < l->n - 1 ? ' ' : '\n');
  if (++ends == fail_end || !out) {
    free_list(d, l);
    return out ? tc_fail(err, TC_EUSER, "too long a list") : 0;
  }
  *out = l;
  return 0;
}

static int replay_list(struct tc_device *d, void *kept, const struct tc_runtime *rt)
{
  struct kept_list *l = kept;
  if (++replays == fail_replay) return TC_EUSER;
  for (int i = 0; i < l->n; i++) {
    struct kept *k = &l->item[i];
    if (k->bytes) tc_ref_ops.copy(d, k->to, k->from, k->bytes);
    if (k->bytes) continue;
    k->call.in = k->view;
    k->call.out = k->view + k->call.n_in;
    k->call.rt = rt;
    TC_TRY(tc_ref_ops.kernel[k->call.op].run(d, &k->call));
  }
  return 0;
}

static const struct tc_capture capture = { begin_list, end_list, replay_list, free_list };

static void open_capture(struct fixture *f, const struct layout *l, bool fuses_too)
{
  open_layout(f, l);
  for (int op = 0; op < TC_OPS; op++)
    if (f->kernel[op].run) f->kernel[op].run = keep_call;
  f->ops.copy = keep_copy;
  f->ops.capture = &capture;
  if (fuses_too) f->ops.fused = &fused_calls;
  begins = ends = replays = lists = fail_begin = fail_end = fail_replay = 0;
}

/* Lists of a step, of fused calls, of both, with run.capture = no. */
static void test_capture(const struct layout *l, const int want_lists[2], const uint32_t digest[2])
{
  double want[STEPS + 1], got[STEPS + 1];
  plain_losses(l, want);
  for (int way = 0; way < 3; way++) { /* 2: walked */
    struct fixture f;
    struct tc_err err = { 0 };
    char *text = NULL;
    size_t size = 0;
    open_capture(&f, l, way == 1);
    f.o.no_capture = way == 2;
    is_int(make_exec(&f, &err), 0, "calls that may be kept %s", err.text);
    list = open_memstream(&text, &size);
    is_int(losses(&f, got, &err), 0, "... run %s", err.text);
    fclose(list);
    list = NULL;
    ok(!memcmp(got, want, sizeof got), "... with the same losses");
    const int n = way == 2 ? 0 : want_lists[way];
    is_int(begins, n, "... so many lists are made, in the second step");
    is_int(lists, n, "... and kept");
    is_int(replays, 3 * n, "... and run in this one and the next two");
    if (way < 2 && !is_int(digest_of(text), digest[way], "... of these calls")) puts(text);
    free(text);
    close_fixture(&f);
    is_int(lists, 0, "... and given back");
  }
  is_str(stderr_text(), "", "nothing is reported");
}

static void test_refused(const struct layout *l)
{
  static const struct {
    int begin, end, op, run;
    const char *why;
  } row[] = { { 1, 0, -1, 0, "no lists today" },
              { 0, 1, -1, 0, "too long a list" },
              { 0, 0, TC_OP_ACT, 3, "op gelu failed" } };
  double want[STEPS + 1], got[STEPS + 1];
  plain_losses(l, want);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct fixture f;
    struct tc_err err = { 0 };
    char text[300];
    open_capture(&f, l, false);
    fail_begin = row[i].begin, fail_end = row[i].end;
    watch.fail_op = row[i].op, watch.fail_run = row[i].run + (row[i].run ? 2 : 0);
    is_int(make_exec(&f, &err), 0, "made %s", err.text);
    is_int(losses(&f, got, &err), 0, "%s: walked %s", row[i].why, err.text);
    ok(!memcmp(got, want, sizeof got), "... with the same losses");
    snprintf(text, sizeof text,
             "tercio: warning: device ref: kernels can't be captured (%s); each is launched by "
             "itself (run.capture = no does not try)\n",
             row[i].why);
    is_str(stderr_text(), text, "... and a word");
    is_int(begins, 3, "... the other lists are made");
    is_int(replays, 6, "... and run");
    close_fixture(&f);
    is_int(lists, 0, "... all are given back");
  }
}

static int broken(struct tc_device *d, struct tc_err *err)
{
  (void)d;
  return fail_replay && replays >= fail_replay ? tc_fail(err, TC_EPEER, "the device is broken") : 0;
}

static void test_replay_fails(const struct layout *l)
{
  for (int checks = 0; checks < 2; checks++) {
    struct fixture f;
    struct tc_err err = { 0 };
    double got[STEPS + 1];
    open_capture(&f, l, false);
    fail_replay = 2;
    if (checks) f.ops.check = broken;
    is_int(make_exec(&f, &err), 0, "made %s", err.text);
    is_int(losses(&f, got, &err), TC_EUSER, "a list that fails");
    is_str(err.text, checks ? "the device is broken" : "captured calls failed",
           "... in these words");
    close_fixture(&f);
  }
}

/* ---- the device's clock ---- */

static int32_t events, most_events;
static int restarts, syncs;

static int32_t record_event(struct tc_device *d)
{
  (void)d;
  return events < most_events ? events++ : -1;
}

static int64_t interval(struct tc_device *d, int32_t from, int32_t to)
{
  (void)d;
  return from < 0 || to < 0 ? 0 : (to - from) * 1000;
}

static void restart(struct tc_device *d)
{
  (void)d;
  events = 0;
  restarts++;
}

/* Waits of unequal length: the closest looks at the two clocks are those about the fourth event of a traced step. */
static void count_sync(struct tc_device *d)
{
  static const int us[] = { 2, 9, 8, 5, 7 };
  (void)d;
  now_ns += us[syncs++ % 5] * 1000;
}

static const struct tc_clock device_clock = { record_event, interval, restart };

/* A traced step: what events there are is on the device's clock, the rest on the host's, which stands still but for waits. */
static void test_clock(int most, bool fuses_too, uint32_t digest)
{
  static const struct layout l = { .mb = 2, .dtype = TC_F32 };
  const struct tc_trace_opts to = { .file = "/nowhere", .process = "one", .world = 1, .steps = 1 };
  struct fixture f;
  struct tc_err err = { 0 };
  double got[STEPS + 1];
  open_capture(&f, &l, fuses_too);
  f.ops.clock = most < 0 ? NULL : &device_clock;
  f.ops.sync = count_sync;
  most_events = most, restarts = syncs = 0;
  f.o.trace = tc_trace_new(&to);
  tc_trace_reserve(f.o.trace, 1000);
  now_ns = 5000000000;
  is_int(make_exec(&f, &err), 0, "made %s", err.text);
  is_int(losses(&f, got, &err), 0, "run %s", err.text);
  is_int(syncs, 6, "one wait for the device a run");
  is_int(restarts, most < 0 ? 0 : 6, "its clock is restarted with each");
  ok(tc_trace_step(f.o.trace, 5), "a traced step");
  const int before = replays;
  is_int(run(&f, TRAIN, 5, &err), 0, "... runs %s", err.text);
  is_int(syncs, most < 0 ? 7 : 13, "... and begins with an idle device, five times");
  is_int(replays, before, "... and is walked");
  char *text = tc_trace_text(f.o.trace);
  if (!is_int(digest_of(text), digest, "... with these events and times")) puts(text);
  is_int(tc_exec_wait_ns(f.exec, -1), 0, "nothing was waited for");
  free(text);
  now_ns = 0;
  tc_trace_free(f.o.trace);
  close_fixture(&f);
}

/* ---- a profiler's ranges ---- */

static bool profiled;
static int depth, deepest;

static bool has_profiler(struct tc_device *d)
{
  (void)d;
  return profiled;
}

static void push_range(struct tc_device *d, const char *name)
{
  (void)d;
  fprintf(list, "%d %s\n", depth++, name);
  deepest = TC_MAX(deepest, depth);
}

static void pop_range(struct tc_device *d)
{
  (void)d;
  depth--;
}

static const struct tc_ranges ranges = { has_profiler, push_range, pop_range };

/* The ranges of one run; NULL: it fails. */
static char *ranges_of(struct fixture *f, int program, int64_t step)
{
  struct tc_err err = { 0 };
  char *text = NULL;
  size_t size = 0;
  list = open_memstream(&text, &size);
  const int rc = run(f, program, step, &err);
  fclose(list);
  list = NULL;
  ok(depth == 0, "each range is ended");
  if (rc == 0) return text;
  free(text);
  return NULL;
}

static int lines_of(const char *text, const char *begin)
{
  int n = 0;
  for (const char *at = text; *at; at += strcspn(at, "\n") + 1) n += !strncmp(at, begin, strlen(begin));
  return n;
}

/* A range for the run and one for each call that is walked, one for each list; none without a profiler. */
static void test_ranges(void)
{
  static const struct layout l = { .mb = 2, .dtype = TC_F32 };
  struct fixture f;
  struct tc_err err = { 0 };
  open_capture(&f, &l, true);
  f.ops.ranges = &ranges;
  is_int(make_exec(&f, &err), 0, "made %s", err.text);
  is_int(run(&f, INIT, 0, &err), 0, "a run without a profiler %s", err.text);
  is_int(deepest, 0, "... has no ranges");
  profiled = true;
  char *walked = ranges_of(&f, TRAIN, 1), *captured = ranges_of(&f, TRAIN, 2), *replayed = ranges_of(&f, TRAIN, 3);
  ok(walked && !strncmp(walked, "0 train step 1\n", 15) && lines_of(walked, "0 ") == 1, "a step is a range");
  is_int(lines_of(walked, "1 h.0: "), 39, "... each call of a layer one in it");
  ok(strstr(walked, "\n1 h.0: forward matmul h.0.attn.qkv, mb 1, node 4\n"), "... by its unit, pass, op, tensor and node");
  ok(strstr(walked, "\n1 head: update updates "), "... fused calls by their names");
  is_int(lines_of(captured, "1 graph of actions"), 2, "lists are captured in a range");
  is_int(lines_of(captured, "2 h.0: "), 39, "... with one for each call");
  is_int(lines_of(replayed, "1 graph of actions"), 2, "... and replayed in one");
  is_int(lines_of(replayed, "2 "), 0, "... without calls");
  ok(strstr(replayed, ": embed: forward embed embed, mb 0, node 1 ... embed: "), "... named by the first and the last");
  fail_replay = replays + 1;
  ok(!ranges_of(&f, TRAIN, 4), "a run that fails");
  if (getenv("SHOW")) printf("%s%s%s", walked, captured, replayed);
  free(walked);
  free(captured);
  free(replayed);
  close_fixture(&f);
}

int main(void)
{
  static const struct layout layouts[] = { { 1, TC_RECOMPUTE_NONE, TC_F32, 21, 69, 1593107988 },
                                           { 2, TC_RECOMPUTE_NONE, TC_F32, 39, 132, 13397844 },
                                           { 2, TC_RECOMPUTE_SELECTIVE, TC_BF16, 37, 124,
                                             1755388832 },
                                           { 4, TC_RECOMPUTE_FULL, TC_F32, 85, 292, 3675072672 } };
  static const int kept[4][2] = { { 2, 1 }, { 3, 2 }, { 3, 2 }, { 5, 4 } };
  static const uint32_t digest[4][2] = { { 831627629, 1143901227 },
                                         { 832574891, 2532012841 },
                                         { 2411736623, 2057317177 },
                                         { 3294881759, 777003997 } };
  const int keep = dup(STDERR_FILENO);
  FILE *f = tmpfile();
  if (!f || fcntl(fileno(f), F_SETFL, O_APPEND) < 0 || dup2(fileno(f), STDERR_FILENO) < 0) {
    printf("Bail out! no file for stderr\n");
    return 1;
  }
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    test_fused(&layouts[i]);
    test_capture(&layouts[i], kept[i], digest[i]);
  }
  test_refused(&layouts[1]);
  test_replay_fails(&layouts[1]);
  test_clock(-1, false, 1006306660);
  test_clock(100000, false, 3444224127);
  test_clock(100000, true, 2528595902);
  test_clock(51, false, 4139052793);
  test_ranges();
  dup2(keep, STDERR_FILENO);
  fclose(f);
  return done_testing();
}
