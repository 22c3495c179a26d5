/* t_read_run.c - what `tercio report` takes from the files of a run, line by line: traces whose
 * ranks differ, events and metrics that make no sense, keys of the run file. */
#include "src/report/report.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <unistd.h>

static char path[80];

static void write_lines(const char *const *line)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f != NULL);
  for (; *line; line++) fprintf(f, "%s\n", *line);
  fclose(f);
}

/* ---- traces ------------------------------------------------------------------------ */

#define NAME(what, pid, tid, name) "{\"name\":\"" what "\",\"ph\":\"M\",\"pid\":" #pid \
  ",\"tid\":" #tid ",\"args\":{\"name\":\"" name "\"}},"
#define EVENT(cat, ph, pid, tid, ts, dur, args) "{\"name\":\"x\",\"cat\":\"" cat "\",\"ph\":\"" ph \
  "\",\"pid\":" #pid ",\"tid\":" #tid ",\"ts\":" #ts ",\"dur\":" #dur ",\"args\":{" args "}},"
#define END "{}],", "\"otherData\":{\"first_step\":3,\"last_step\":5,\"events\":20,\"dropped\":0}}"

/* Rank 1 begins first and ends last in step 3, and lies within rank 0's step 4. */
static const char *const trace[] = { "{\"traceEvents\":[",
  NAME("process_name", 0, 0, "rank 0"), NAME("process_name", 1, 0, "rank 1, a"),
  NAME("process_name", 1, 0, "rank 1, b"), NAME("thread_name", 0, 255, "far"),
  NAME("thread_name", 0, 0, "near"), NAME("thread_name", 0, 0, "again"),
  NAME("thread_name", 0, 256, "too far"), NAME("thread_name", 0, -1, "before"),
  NAME("thread_name", -1, 9, "of no rank"), NAME("process_name", 16777216, 0, "one of too many"),
  EVENT("step", "X", 0, 0, 1000, 500, "\"step\":3"), EVENT("step", "X", 0, 0, 2000, 100, "\"step\":4"),
  EVENT("step", "X", 0, 0, 3000, 100, "\"step\":5"), EVENT("step", "X", 1, 0, 1, 5000, "\"step\":2"),
  EVENT("step", "X", 1, 0, 990, 610, "\"step\":3"), EVENT("step", "X", 1, 0, 2010, 50, "\"step\":4"),
  EVENT("step", "X", 1, 0, 1, 5000, "\"step\":9"),
  EVENT("forward", "X", 1, 1, 1500, 50, "\"step\":3,\"mb\":1"),
  EVENT("forward", "X", 1, 1, 1400, 50, "\"step\":3,\"mb\":\"x\""),
  EVENT("update", "X", 1, 0, 1450, 7, "\"step\":3"),
  EVENT("backward", "X", 0, 255, 1590, 100, "\"step\":3,\"mb\":2"),
  EVENT("backward", "X", 0, 256, 1100, 10, "\"step\":3"),
  EVENT("backward", "X", 0, -1, 1100, 10, "\"step\":3"),
  EVENT("backward", "X", 7, 1, 1100, 10, "\"step\":3"),
  EVENT("backward", "B", 0, 1, 1100, 10, "\"step\":3"),
  EVENT("backward", "X", 0, 1, 1100, 10, "\"step\":4"),
  EVENT("nothing", "X", 0, 1, 1100, 10, "\"step\":3"),
  EVENT("forward", "X", 0, 1, 1600, 10, "\"step\":3"),
  EVENT("forward", "X", 0, 1, 980, 10, "\"step\":3"),
  EVENT("forward", "X", 0, 1, 980, 11, "\"step\":3,\"mb\":0"), END, NULL };

/* Lane, track, kind, micro-batch, from and to, of each event of step 3. */
static const char *const spans = "0 1 forward 0 980 991\n0 255 backward 2 1590 1600\n"
  "1 0 update -1 1450 1457\n1 1 forward -1 1400 1450\n1 1 forward 1 1500 1550\n";

static void test_trace(void)
{
  struct tc_timeline t;
  struct tc_err err = { 0 };
  char got[400] = "";
  size_t n = 0;
  write_lines(trace);
  if (!is_int(tc_timeline_read(&t, path, 3, &err), 0, "a trace whose ranks differ %s", err.text)) return;
  near_f(t.begin_us, 990, 0, "a step begins where its first rank does");
  near_f(t.end_us, 1600, 0, "... and ends where its last one does");
  ok(t.n_ranks == 2 && t.n_lanes == 2 && t.step == 3 && t.events == 20 && t.dropped == 0 &&
     t.clock_error_us == 0, "... of two ranks");
  is_str(t.lane[1].name, "rank 1, a", "a name that is there stays");
  is_str(t.track[0], "near", "... of a track, too");
  is_str(t.track[255], "far", "... the last one");
  ok(!t.track[1] && !t.track[9], "... and no others");
  for (int i = 0; i < t.n_spans; i++)
    n += (size_t)snprintf(got + n, sizeof got - n, "%d %d %s %d %g %g\n", t.span[i].lane, t.span[i].track,
                          tc_event_kind_name[t.span[i].kind], t.span[i].mb, t.span[i].begin_us,
                          t.span[i].end_us);
  is_str(got, spans, "... events by rank, track and time");
  ok(t.lane[0].busy_us[TC_EV_FORWARD] == 11 && t.lane[0].busy_us[TC_EV_BACKWARD] == 10 &&
     t.lane[1].busy_us[TC_EV_FORWARD] == 100 && t.lane[1].busy_us[TC_EV_UPDATE] == 7 &&
     t.lane[1].busy_us[TC_EV_BACKWARD] == 0, "... and how long each rank did what");
  tc_timeline_free(&t);
  ok(!t.span && !t.lane[1].name && !t.track[255] && t.n_spans == 0, "a timeline is empty when freed");
  is_int(tc_timeline_read(&t, path, 4, &err), 0, "the other step");
  ok(t.begin_us == 2000 && t.end_us == 2100, "... has other bounds");
  tc_timeline_free(&t);
  is_int(tc_timeline_read(&t, path, 0, &err), 0, "the step of median length");
  is_int(t.step, 4, "... is not the first, nor one that a rank lacks");
  tc_timeline_free(&t);
}

static void test_trace_faults(void)
{
  static const struct { int64_t step; const char *why; } row[] = {
    { 5, "no step 5 of all ranks; it has 3 to 5" }, { 6, "no step 6 of all ranks; it has 3 to 5" },
    { 2, "no step 2 of all ranks; it has 3 to 5" }, { 9, "no step 9 of all ranks; it has 3 to 5" },
    { INT64_MAX, "no step 9223372036854775807 of all ranks; it has 3 to 5" } };
  static const char *const many[] = { "{\"traceEvents\":[", NAME("process_name", 0, 0, "rank 0"),
    NAME("process_name", 8388608, 0, "the last"), EVENT("step", "X", 0, 0, 1000, 500, "\"step\":3"),
    END, NULL };
  static const char *const none[] = { "{\"traceEvents\":[",
    EVENT("step", "X", 0, 0, 1, 5, "\"step\":3"), END, NULL };
  static const char *const cut[] = { "{\"traceEvents\":[", NAME("process_name", 0, 0, "rank 0"),
    EVENT("step", "X", 0, 0, 1000, 500, "\"step\":3"), NULL };
  const struct { const char *const *lines; const char *why; } file[] = {
    { many, "has no step of all ranks" }, { none, "is not one that tercio train wrote" },
    { cut, "is truncated: its last line is missing" } };
  struct tc_timeline t;
  struct tc_err err = { 0 };
  char want[200];
  write_lines(trace);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    is_int(tc_timeline_read(&t, path, row[i].step, &err), TC_EUSER, "step %lld", (long long)row[i].step);
    snprintf(want, sizeof want, "trace %s has %s", path, row[i].why);
    is_str(err.text, want, "... with this error");
  }
  for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
    write_lines(file[i].lines);
    is_int(tc_timeline_read(&t, path, 0, &err), TC_EUSER, "a trace that %s", file[i].why);
    snprintf(want, sizeof want, "trace %s %s", path, file[i].why);
    is_str(err.text, want, "... with this error");
    ok(!t.span && !t.lane[0].name && !t.track[0], "... and nothing is left");
  }
  unlink(path);
  is_int(tc_timeline_read(&t, path, 0, &err), TC_EUSER, "a trace that is not there");
  snprintf(want, sizeof want, "cannot open trace %s: No such file or directory", path);
  is_str(err.text, want, "... with this error");
}

/* ---- metrics ----------------------------------------------------------------------- */

static void test_metrics(void)
{
#define SLOWEST(rank, work, median, host) "\"slowest\": {\"rank\": " #rank ", \"work_ms\": " #work \
  ", \"median_ms\": " #median ", \"host\": \"" host "\"}}"
  static const char *const lines[] = { "no JSON",
    "{\"step\": 1.0, \"step_ms\": 1}", "{\"step\": 2, \"step_ms\": \"1\"}",
    "{\"step\": 3, \"step_ms\": 40, \"loss\": 5, \"val_loss\": 6, \"tokens\": 30, "
      "\"comm\": {\"dp\": 1}, \"bubble\": 0.5, " SLOWEST(1, 6, 0, "a"),
    "{\"step\": 4, \"step_ms\": 60, \"loss\": \"x\", \"val_loss\": null, \"tokens\": 40, "
      "\"comm\": {\"dp\": 2}, " SLOWEST(-1, 6, 3, "b"),
    "{\"step\": 6, \"step_ms\": 10, \"loss\": 4, \"val_loss\": 7, \"tokens\": 50, "
      "\"comm\": {\"dp\": 3}, \"grad_norm\": 9, " SLOWEST(1048576, 6, 3, "c"),
    "{\"step\": 7, \"step_ms\": 20, \"tokens_per_s\": 11, " SLOWEST(3, 6, 3, "d"),
    "{\"step\": 8, \"step_ms\": 30, " SLOWEST(0, 8, 2, "e"),
    "{\"step\": 9, \"step_ms\": 30, " SLOWEST(3, 9, 3, "f"), NULL };
  struct tc_metrics m;
  struct tc_err err = { 0 };
  write_lines(lines);
  if (!is_int(tc_metrics_read(&m, path, 0, &err), 0, "metrics with odd lines %s", err.text)) return;
  ok(m.steps.lines == 9 && m.steps.broken == 3 && m.steps.first_broken == 1, "lines that can't be read, the first of them");
  ok(m.steps.first == 3 && m.steps.last == 9, "the first step is that of the first line that can");
  near_f(m.seconds, 0.19, 1e-12, "seconds, of all steps");
  ok(m.loss.n == 2 && m.loss.x[1] == 6 && m.loss.y[0] == 5 && m.loss.y[1] == 4, "losses that are numbers");
  ok(m.val.n == 2 && m.val.x[0] == 3 && m.val.y[1] == 7, "validation losses");
  ok(m.norm.n == 1 && m.norm.x[0] == 6 && m.norm.y[0] == 9, "norms");
  ok(m.rate.n == 1 && m.rate.x[0] == 7 && m.rate.y[0] == 11, "speeds");
  ok(m.ms.n == 6 && m.ms.x[0] == 3 && m.ms.y[5] == 30, "times");
  ok(m.bubble.n == 1 && m.bubble.y[0] == 0.5, "bubbles");
  ok(m.comm_step == 9 && !m.comm, "bytes of the last step, evaluations left out");
  ok(m.n_slow == 4 && m.slow_steps == 3 && m.slow[3].steps == 2 && m.slow[0].steps == 1 && !m.slow[1].steps,
     "ranks that make no sense don't count as the slowest");
  near_f(m.slow[3].times, 5, 1e-12, "... how much slower");
  is_str(m.slow[3].host, "f", "... where, the last time");
  is_int(tc_metrics_slowest(&m), 3, "... which one most often");
  tc_metrics_free(&m);
  ok(!m.comm && !m.slow && !m.loss.x && !m.val.y && !m.norm.x && !m.rate.x && !m.ms.x && !m.bubble.x &&
     !m.ms.n, "metrics are empty when freed");
  const struct tc_metrics none = { .n_slow = 0 };
  is_int(tc_metrics_slowest(&none), -1, "no rank is the slowest");
}

/* Figures are of the steps after the last change of layout; the series have all steps. */
static void test_metrics_after(void)
{
  static const char *const lines[] = {
    "{\"step\": 3, \"step_ms\": 40, \"bubble\": 0, \"comm\": {\"dp\": 3}, " SLOWEST(7, 9, 3, "a"),
    "{\"step\": 4, \"step_ms\": 50, \"bubble\": 0, \"comm\": {\"dp\": 4}, " SLOWEST(7, 9, 3, "a"),
    "{\"step\": 5, \"step_ms\": 10, \"bubble\": 0.5, \"val_loss\": 1, \"comm\": {\"dp\": 5}, " SLOWEST(1, 6, 3, "b"),
    NULL };
  static const struct { int64_t after; double ms, bubble; int comm, slowest, of; } row[] = {
    { 0, 40, 0, 4, 7, 3 }, { 2, 40, 0, 4, 7, 3 }, { 3, 30, 0.25, 4, 1, 2 }, { 4, 10, 0.5, 5, 1, 1 },
    { 5, NAN, NAN, 0, -1, 0 }, { 9, NAN, NAN, 0, -1, 0 } };
  struct tc_metrics m;
  struct tc_err err = { 0 };
  write_lines(lines);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    const long long after = row[i].after;
    if (!is_int(tc_metrics_read(&m, path, after, &err), 0, "figures after step %lld %s", after, err.text)) return;
    const double ms = tc_series_recent(&m.ms, after, 9), bubble = tc_series_recent(&m.bubble, after, 9);
    ok(ms == row[i].ms || (isnan(ms) && isnan(row[i].ms)), "... time of a step: %g", ms);
    ok(bubble == row[i].bubble || (isnan(bubble) && isnan(row[i].bubble)), "... bubble: %g", bubble);
    is_int(tc_json_int(m.comm, "dp"), row[i].comm, "... bytes");
    ok(!m.comm == !row[i].comm, "... if there are any");
    is_int(tc_metrics_slowest(&m), row[i].slowest, "... slowest rank");
    is_int(m.slow_steps, row[i].of, "... of so many steps");
    ok(m.ms.n == 3 && m.steps.first == 3 && m.steps.last == 5 && m.seconds > 0.0999, "... and all steps are there");
    tc_metrics_free(&m);
  }
}

/* Predictions are of the first stage, so what is measured beside them is, too. */
static void test_stages(void)
{
  static const char *const lines[] = {
    "{\"step\": 3, \"stage\": 1, \"step_ms\": 40, \"comm\": {\"dp\": 3}}",
    "{\"step\": 4, \"stage\": 1, \"step_ms\": 20, \"comm\": {\"dp\": 4}}",
    "{\"step\": 5, \"stage\": 2, \"step_ms\": 90, \"comm\": {\"dp\": 5}}", NULL };
  static const struct { int64_t after; double ms; int comm; } row[] = { { 0, 30, 4 }, { 3, 20, 4 }, { 4, NAN, 0 } };
  struct tc_metrics m;
  struct tc_err err = { 0 };
  write_lines(lines);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    const long long after = row[i].after;
    if (!is_int(tc_metrics_read(&m, path, after, &err), 0, "two stages after step %lld %s", after, err.text)) return;
    const double ms = tc_series_recent(&m.ms, after, m.first_stage);
    ok(ms == row[i].ms || (isnan(ms) && isnan(row[i].ms)), "... time of a step of the first: %g", ms);
    is_int(tc_json_int(m.comm, "dp"), row[i].comm, "... bytes");
    ok(m.stages, "... and it is not alone");
    tc_metrics_free(&m);
  }
}

/* Questions of two files, one of which came later; entries without a name or a number do not count. */
static void test_tasks(void)
{
#define TASK(name, n, right, by) "{\"name\": " name ", \"questions\": " #n ", \"accuracy\": " right \
  ", \"accuracy_by_length\": " by "}"
  static const char *const lines[] = {
    "{\"step\": 3, \"step_ms\": 1, \"tasks\": [" TASK("\"a<b\"", 8, "0.25", "0.5") "]}",
    "{\"step\": 4, \"step_ms\": 1, \"tasks\": 7}",
    "{\"step\": 6, \"step_ms\": 1, \"tasks\": [" TASK("\"c\"", 5, "0.2", "null") ", " TASK("\"a<b\"", 9, "0.375", "0.75")
      ", " TASK("9", 1, "1", "1") "]}", NULL };
  struct tc_metrics m;
  struct tc_err err = { 0 };
  write_lines(lines);
  if (!is_int(tc_metrics_read(&m, path, 0, &err), 0, "metrics with questions %s", err.text)) return;
  is_int(m.n_tasks, 2, "... of two files");
  is_str(m.task[0].name, "a<b", "... the first one");
  is_int(m.task[0].questions, 9, "... its number of questions, the last time");
  ok(m.task[0].right.n == 2 && m.task[0].right.x[1] == 6 && m.task[0].right.y[1] == 0.375 &&
     m.task[0].by_length.y[0] == 0.5, "... its accuracies");
  is_int(m.task[1].right.n * 10 + m.task[1].by_length.n, 10, "... one that is no number");
  char *text = NULL;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  const struct tc_page page = { .m = &m };
  tc_report_tasks(f, &page);
  fclose(f);
  ok(strstr(text, "<figcaption>a&lt;b ") && strstr(text, "aria-label=\"a&lt;b over steps\"") && !strstr(text, "a<b"),
     "a name with a letter of HTML");
  ok(strstr(text, "<tr><td>a&lt;b</td><td>9</td><td>6</td><td>0.3750</td><td>0.7500</td></tr>") != NULL, "the last answers");
  ok(strstr(text, "<tr><td>c</td><td>5</td></tr>") != NULL, "... without those that are no numbers");
  free(text);
  tc_metrics_free(&m);
  ok(!m.task && !m.n_tasks, "... empty when freed");
}

/* ---- layouts ----------------------------------------------------------------------- */

static void test_layouts(void)
{
  static const struct { const char *what, *json, *want; int64_t after; } row[] = {
    { "a run of an older version", "{}", "", 0 }, { "no layout", "{\"layouts\": []}", "", 0 },
    { "one", "{\"layouts\": [{\"after_step\": 0, \"ranks\": 2}]}", "", 0 },
    { "one that began later", "{\"layouts\": [{\"after_step\": 9, \"ranks\": 2}]}", "", 9 },
    { "three", "{\"layouts\": [{\"after_step\": 0, \"ranks\": 2, \"system\": \"ddp\", \"pp\": 1},"
      "{\"after_step\": 9, \"ranks\": 4, \"system\": \"zero1\", \"pp\": 1},"
      "{\"after_step\": 12, \"ranks\": 4, \"system\": \"zero1\", \"pp\": 2, \"device\": \"cpu\"}]}",
      "9: ranks 2 -> 4, system ddp -> zero1\n12: pp 1 -> 2, device ? -> cpu\n", 12 },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    json_t *run = json_loads(row[i].json, 0, NULL);
    struct tc_layouts l;
    char got[300] = "";
    tc_layouts_read(&l, run);
    for (int k = 0; k < l.n; k++)
      tc_text_add(got, sizeof got, "%lld: %s\n", (long long)l.change[k].after_step, l.change[k].text);
    is_str(got, row[i].want, "changes: %s", row[i].what);
    is_int(l.after, row[i].after, "... the present one's steps come after");
    tc_layouts_free(&l);
    ok(!l.change && !l.n, "... empty when freed");
    json_decref(run);
  }
}

static void test_metrics_faults(void)
{
  static const char *const none[] = { NULL }, *const odd[] = { "{}", "x", NULL };
  static const char *const back[] = { "x", "{\"step\": 5, \"step_ms\": 1}",
                                      "{\"step\": 4, \"step_ms\": 1}", NULL };
  static const struct { const char *const *lines; const char *why; } row[] = {
    { none, " is empty: no step has ended yet" },
    { odd, " has no line with a step and its step_ms; is this a file of tercio train?" },
    { back, ", line 3: step 4 comes after step 5; did two runs write into one folder?" } };
  struct tc_metrics m;
  struct tc_err err = { 0 };
  char want[200];
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    write_lines(row[i].lines);
    is_int(tc_metrics_read(&m, path, 0, &err), TC_EUSER, "metrics %zu", i);
    snprintf(want, sizeof want, "%s%s", path, row[i].why);
    is_str(err.text, want, "... with this error");
    ok(!m.ms.x && !m.loss.x && !m.slow, "... and nothing is left");
  }
}

/* ---- the run file ------------------------------------------------------------------ */

static void test_keys(void)
{
  static const struct { const char *section, *key, *want; } row[] = {
    { "train", "lr", "0.25" }, { "train", "steps", "7" }, { "trainer", "lr", "2" }, { "train", "l", "" },
    { "rain", "lr", "" }, { "train", "out", "" }, { "run", "out", "a = b" }, { "run", "last", "no newline" },
    { "run", "lr", "" }, { "run", "none", "" }, { "run", "empty", "" } };
  char buf[40], small[5];
  json_t *run = json_pack("{s:s}", "config", "lr = 1\n[trainer]\nlr = 2\n[train]\nlr_min = 3\nlr = 0.25\n"
                          "lr = 9\n\nsteps = 7\n[run]\nempty = \nout = a = b\n[stage 2]\nfrom = 3\n"
                          "[stage 3]\ntrain.lr = 5\n[run]\nlast = no newline");
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    is_str(tc_run_key(run, row[i].section, row[i].key, buf, sizeof buf), row[i].want, "%s.%s", row[i].section,
           row[i].key);
  is_str(tc_run_key_of_stages(run, "train", "lr", buf, sizeof buf), "0.25, from stage 3 on 5", "a stage's beside it");
  is_str(tc_run_key(run, "run", "last", small, sizeof small), "no n", "what does not fit is cut");
  is_str(tc_run_key(NULL, "run", "last", buf, sizeof buf), "", "no run");
  json_decref(run);
}

int main(void)
{
  const char *tmp = getenv("TMPDIR");
  snprintf(path, sizeof path, "%.40s/t_read_run.XXXXXX", tmp ? tmp : "/tmp");
  int fd = mkstemp(path);
  TC_ASSERT(fd >= 0);
  close(fd);
  test_trace();
  test_trace_faults();
  test_metrics();
  test_metrics_after();
  test_stages();
  test_tasks();
  test_layouts();
  test_metrics_faults();
  test_keys();
  unlink(path);
  return done_testing();
}
