/* t_trace.c - the buffer of events, what does not fit, clocks that differ, and the file. */
#include "src/monitor/trace.c"
#include "src/comm/hub.h"
#include "tests/unit/tap.h"

#include <dirent.h>
#include <jansson.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 3, EVENTS = 50, MS = 1000000 };
static const int64_t SKEW_NS = INT64_C(7000000000000);   /* the other nodes booted hours earlier */

struct rank {
  pthread_t thread;
  struct tc_hub *hub;
  struct tc_trace *trace;
  const char *file;
  int rank, rc;
  int64_t off_ns[3];             /* of the trace's clock, from the true one: early, half, late */
  struct tc_err err;
};

static struct tc_trace *new_trace(const char *file, int rank, int world, int64_t steps)
{
  char process[64];
  snprintf(process, sizeof process, "rank %d on node\"%d, pp 0 dp %d tp 0", rank, rank, rank);
  struct tc_trace_opts o = { .file = file, .process = process, .rank = rank, .world = world,
                             .steps = steps, .skew_ns = rank * SKEW_NS,
                             .drift = rank == 1 ? 0.25 : 0 };
  return tc_trace_new(&o);
}

static void add(struct tc_trace *t, int64_t begin_ns, int64_t end_ns)
{
  struct tc_event e = { .name = "matmul", .unit = "h.0", .begin_ns = begin_ns, .end_ns = end_ns,
                        .bytes = -1, .mb = 1, .track = TC_TRACK_COMPUTE, .kind = TC_EV_FORWARD };
  tc_trace_add(t, &e);
}

/* ---- one rank ---- */

static void test_buffer(void)
{
  struct tc_trace *t = new_trace("/nowhere/at/all", 0, 1, 2);
  struct tc_err err;
  is_int(tc_trace_open(t, NULL, 0, &err), TC_EUSER, "a folder that is not there");
  is_str(err.text, "run.trace: /nowhere/at/all can't be written: there is no folder /nowhere/at", "... is named");
  tc_trace_reserve(t, 4);
  add(t, 1, 2);
  is_int(t->n, 0, "before the first step nothing is recorded");
  ok(tc_trace_step(t, 8) && tc_trace_on(t), "the first step is traced");
  for (int i = 0; i < 3; i++) add(t, 10 * i, 10 * i + 5);
  int64_t t0 = tc_trace_pause(t);
  for (int i = 0; i < 100; i++) add(t, 1, 2);
  tc_trace_resume(t, TC_EV_EVAL, "evaluation", t0);
  is_int(t->n, 4, "a pause is one event");
  is_int(t->dropped, 0, "nothing dropped so far");
  ok(tc_trace_step(t, 9), "the second step is traced");
  for (int i = 0; i < 5; i++) add(t, 100, 101);
  is_int(t->n, 4, "a full buffer stays as it is");
  is_int(t->dropped, 5, "what does not fit is counted");
  ok(!tc_trace_step(t, 10) && !tc_trace_on(t), "two steps were asked for");
  add(t, 1, 2);
  is_int(t->dropped, 5, "later events are not counted");
  tc_trace_resume(t, TC_EV_EVAL, "evaluation", tc_trace_pause(t));
  ok(!tc_trace_on(t) && t->dropped == 5, "a pause of what is off does not turn it on");
  tc_trace_free(t);

  t = new_trace("/nowhere/at/all", 1, 2, 2);
  is_int(tc_trace_open(t, NULL, 0, &err), 0, "only rank 0 has a file");
  tc_trace_free(t);
  is_int(tc_trace_open(NULL, NULL, 0, &err), 0, "without a trace none has");
  ok(!tc_trace_on(NULL) && !tc_trace_step(NULL, 1), "no trace: off");
  add(NULL, 1, 2);
  tc_trace_resume(NULL, TC_EV_EVAL, "", tc_trace_pause(NULL));
  tc_trace_free(NULL);
}

/* A clock that these tests make differ is ahead by hours and too fast. */
static void test_clock(void)
{
  static const int64_t at[] = { 0, 1000 * MS, INT64_C(3600000) * MS };
  for (int i = 0; i < 3; i++) {
    struct tc_trace *t = new_trace("/nowhere", 1, 3, 1);
    is_int(tc_trace_common_ns(t, at[i]), SKEW_NS + at[i] + at[i] / 4, "a fast clock %lld ms later",
           (long long)at[i] / MS);
    tc_trace_free(t);
  }
}

/* Room for all ranks' events, 2^22, is shared, between 2^12 and 2^19 for each. */
static void test_room(void)
{
  static const struct { int world; int64_t want; } c[] = {
    { 1, 1 << 19 }, { 4, 1 << 19 }, { 64, 1 << 16 }, { 2048, 1 << 12 },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_trace *t = new_trace("/nowhere", 0, c[i].world, 1);
    tc_trace_reserve(t, 1 << 20);
    tc_trace_step(t, 1);
    for (int64_t k = 0; k < c[i].want + 3; k++) add(t, k, k + 1);
    is_int(t->n, c[i].want, "room for the events of one of %d ranks", c[i].world);
    is_int(t->dropped, 3, "... and no more");
    tc_trace_free(t);
  }
}

/* The text of one rank, to the last character. */
static void test_text(void)
{
  static const struct tc_event e[] = {
    { .name = "matmul", .unit = "h.0", .tensor = "h.0.fc", .begin_ns = 1000, .end_ns = 3500, .bytes = -1, .mb = 2,
      .track = TC_TRACK_COMPUTE, .kind = TC_EV_FORWARD },
    { .name = "send", .on = "pp", .unit = "", .begin_ns = 3500, .end_ns = 3500, .bytes = 0, .mb = 0,
      .track = TC_TRACK_COMPUTE, .kind = TC_EV_ISSUE },
    { .name = "recv", .on = "pp", .begin_ns = 4000, .end_ns = 5000001, .bytes = 12, .mb = -1,
      .track = TC_TRACK_COMM, .kind = TC_EV_WAIT },
    { .name = "recv", .on = "dp", .begin_ns = 4000, .end_ns = 5000, .bytes = -1, .mb = -1,
      .track = TC_TRACK_COMM, .kind = TC_EV_COMM },
    { .name = "a\"b\\c\x1f\x7f\xc3 ~", .begin_ns = 0, .end_ns = 1, .bytes = -1, .mb = -1,
      .track = TC_TRACK_STEP, .kind = TC_EV_STEP },
  };
  static const char *const track[] = { "steps", "compute", "copies", "checkpoint", "communication pp" };
  static const char events[] =
    "{\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":1.000,\"dur\":2.500,\"cat\":\"forward\",\"name\":\"matmul\","
    "\"args\":{\"step\":7,\"mb\":2,\"unit\":\"h.0\",\"tensor\":\"h.0.fc\"}},\n"
    "{\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":3.500,\"dur\":0.000,\"cat\":\"issue\",\"name\":\"issue send pp\","
    "\"args\":{\"step\":7,\"mb\":0,\"bytes\":0}},\n"
    "{\"ph\":\"X\",\"pid\":3,\"tid\":4,\"ts\":4.000,\"dur\":4996.001,\"cat\":\"wait\",\"name\":\"wait recv pp\","
    "\"args\":{\"step\":7,\"bytes\":12}},\n"
    "{\"ph\":\"X\",\"pid\":3,\"tid\":4,\"ts\":4.000,\"dur\":1.000,\"cat\":\"communication\",\"name\":\"recv dp\","
    "\"args\":{\"step\":7}},\n"
    "{\"ph\":\"X\",\"pid\":3,\"tid\":0,\"ts\":0.000,\"dur\":0.001,\"cat\":\"step\",\"name\":\"a\\\"b\\\\c??? ~\","
    "\"args\":{\"step\":7}},\n";
  const struct tc_trace_opts to = { .file = "/nowhere", .process = "rank \"3\"", .rank = 3, .world = 4, .steps = 1 };
  struct tc_trace *t = tc_trace_new(&to);
  struct tc_comm_opts co = { .name = "pp" };
  char want[4000];
  int n = snprintf(want, sizeof want, "{\"ph\":\"M\",\"pid\":3,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":"
                   "\"rank \\\"3\\\"\"}},\n{\"ph\":\"M\",\"pid\":3,\"tid\":0,\"name\":\"process_sort_index\","
                   "\"args\":{\"sort_index\":3}},\n");
  for (int i = 0; i < 5; i++)
    n += snprintf(want + n, sizeof want - (size_t)n, "{\"ph\":\"M\",\"pid\":3,\"tid\":%d,\"name\":\"thread_name\",\"args\":"
                  "{\"name\":\"%s\"}},\n{\"ph\":\"M\",\"pid\":3,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":"
                  "{\"sort_index\":%d}},\n", i, track[i], i, i);
  snprintf(want + n, sizeof want - (size_t)n, "%s", events);
  tc_trace_comm(t, "pp", &co);
  tc_trace_comm(NULL, "dp", &co);
  tc_trace_reserve(t, 100);
  tc_trace_step(t, 7);
  for (size_t i = 0; i < sizeof e / sizeof *e; i++) tc_trace_add(t, &e[i]);
  char *text = tc_trace_text(t);
  is_str(text, want, "the text of a rank");
  free(text);
  tc_trace_free(t);
}

/* What was written to stderr, to the end of it. */
static char warning[1000];
static void hear(int *keep, FILE **f)
{
  if (!*f) {
    *f = tmpfile();
    *keep = dup(STDERR_FILENO);
    dup2(fileno(*f), STDERR_FILENO);
    return;
  }
  fflush(stderr);
  const ssize_t n = pread(STDERR_FILENO, warning, sizeof warning - 1, 0);
  warning[n > 0 ? n : 0] = 0;
  dup2(*keep, STDERR_FILENO);
  close(*keep);
  fclose(*f);
  *f = NULL;
}

/* How many files of the folder are not finished. */
static int unfinished(const char *dir)
{
  int n = 0;
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));) n += !strncmp(e->d_name, ".tmp-", 5);
  if (d) closedir(d);
  return n;
}

/* One rank's file: whole, of no step, not written, with events that did not fit. */
static void test_write(void)
{
  char dir[] = "/tmp/t_trace-XXXXXX", file[60], want[300];
  struct tc_comm_opts co = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&co);
  struct tc_err err = { 0 };
  FILE *heard = NULL;
  int keep = -1;
  if (!mkdtemp(dir)) return;
  snprintf(file, sizeof file, "%s/t.json", dir);
  for (int how = 0; how < 4; how++) {            /* 0: no step; 1: a folder is in the way; 2: freed before; 3: written */
    struct tc_trace *t = new_trace(file, 0, 1, 3);
    tc_trace_reserve(t, 2);
    is_int(tc_trace_open(t, NULL, 0, &err), 0, "a file is begun");
    ok(unfinished(dir) == 1 && access(file, F_OK) != 0, "... beside its place");
    is_int(tc_trace_sync(t, self, &err), 0, "clocks of one rank");
    for (int i = 0; how && i < 2; i++) tc_trace_step(t, 4 + i), add(t, 10, 20), add(t, 30, 40);
    if (how == 1) mkdir(file, 0700);
    if (how != 2) {
      hear(&keep, &heard);
      is_int(tc_trace_write(t, self, &err), how == 1 ? TC_EUSER : 0, "it is written, way %d", how);
      hear(&keep, &heard);
      snprintf(want, sizeof want, how == 3 ? "tercio: warning: the trace %s lacks 2 of 4 events, which did not fit: "
               "lower run.trace_steps\n" : "%.0s", file);
      is_str(warning, want, "... with these words");
    }
    if (how == 1) {
      snprintf(want, sizeof want, "run.trace: %s is a folder, not a file that can be made; give another name", file);
      is_str(err.text, want, "... why not");
    }
    if (how == 3) ok(!tc_trace_on(t) && t->n == 0 && !tc_trace_step(t, 6), "a written trace is over");
    if (how) ok(unfinished(dir) == (how == 2), "... and no half of it stays");
    tc_trace_free(t);
    ok(unfinished(dir) == 0, "... after its end at the latest");
    rmdir(file);
  }
  json_t *o = json_load_file(file, 0, NULL), *other = json_object_get(o, "otherData");
  char *text = json_dumps(other, 0);
  is_str(text, "{\"first_step\": 4, \"last_step\": 5, \"events\": 2, \"dropped\": 2, \"clock_error_us\": 0.0}",
         "what the file says of itself");
  is_int((int64_t)json_array_size(json_object_get(o, "traceEvents")), 13, "... its events");
  free(text);
  json_decref(o);
  unlink(file);
  rmdir(dir);
  tc_comm_free(self);
}

/* ---- three ranks, whose clocks differ by hours ---- */

static int run_rank(struct rank *r, struct tc_comm *world)
{
  int64_t at[3];
  struct tc_trace *t = r->trace;
  TC_TRY(tc_trace_open(t, NULL, 0, &r->err));
  tc_trace_reserve(t, r->rank == 2 ? EVENTS / 2 : 1000);   /* rank 2 drops some */
  TC_TRY(tc_trace_sync(t, world, &r->err));
  at[0] = tc_now_ns();
  tc_sleep_ns(50 * MS);                          /* for the fast clock to get ahead */
  at[1] = tc_now_ns();
  tc_sleep_ns(50 * MS);
  tc_trace_step(t, 1);
  for (int i = 0; i < EVENTS; i++) {
    int64_t now = tc_now_ns();
    add(t, now, now + 500);
    tc_sleep_ns(1000);
  }
  float x = 1, y = 0;
  struct tc_part p = { &x, &y, 1, 1 };
  struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .dtype = TC_F32, .red = TC_SUM, .n_parts = 1,
                            .parts = &p, .what = "h.1" };
  TC_TRY(tc_comm_run(world, &a, &r->err));
  at[2] = tc_now_ns();
  TC_TRY(tc_trace_write(t, world, &r->err));
  for (int i = 0; i < 3; i++) r->off_ns[i] = tc_trace_common_ns(t, at[i]) - at[i];
  return tc_trace_write(t, world, &r->err);      /* once more: nothing happens */
}

static void *rank_main(void *arg)
{
  struct rank *r = arg;
  int32_t members[RANKS] = { 0, 1, 2 };
  struct tc_comm_opts o = { .name = "world", .deadline_s = 60 };
  r->trace = new_trace(r->file, r->rank, RANKS, 1);
  tc_trace_comm(r->trace, "world", &o);
  struct tc_comm *world = tc_comm_thread(r->hub, 0, r->rank, members, RANKS, &o);
  r->rc = run_rank(r, world);
  tc_comm_free(world);
  tc_trace_free(r->trace);
  return NULL;
}

/* Ranks of one node have the same clock, so that what they measure of it is the messages' way alone. */
static void *same_clock_main(void *arg)
{
  struct rank *r = arg;
  int32_t members[] = { 0, 1 };
  struct tc_comm_opts o = { .name = "world", .deadline_s = 60 };
  struct tc_comm *world = tc_comm_thread(r->hub, 0, r->rank, members, 2, &o);
  r->trace = tc_trace_new(&(struct tc_trace_opts){ .file = "/nowhere", .process = "", .rank = r->rank, .world = 2 });
  r->rc = tc_trace_sync(r->trace, world, &r->err);
  for (int i = 0; i < 3; i++) r->off_ns[i] = tc_trace_common_ns(r->trace, (i - 1) * INT64_C(1000000000));
  tc_comm_free(world);
  tc_trace_free(r->trace);
  return NULL;
}

static void test_same_clock(void)
{
  struct rank r[2];
  struct tc_hub *hub = tc_hub_new(2);
  for (int i = 0; i < 2; i++) {
    r[i] = (struct rank){ .rank = i, .hub = hub };
    pthread_create(&r[i].thread, NULL, same_clock_main, &r[i]);
  }
  for (int i = 0; i < 2; i++) {
    pthread_join(r[i].thread, NULL);
    is_int(r[i].rc, 0, "rank %d: no error %s", i, r[i].rc ? r[i].err.text : "");
  }
  tc_hub_free(hub);
  for (int k = 0; k < 3; k++)
    is_int(r[1].off_ns[k], r[0].off_ns[k], "ranks that have the same clock: a time is the same");
}

/* Events of a rank's track, in the order of the file, do not overlap. */
static void check_events(const json_t *events)
{
  int spans[RANKS] = { 0 }, comm[RANKS] = { 0 }, named = 0, tracks = 0, overlaps = 0, beyond = 0;
  double end[RANKS][8] = { { 0 } };
  for (size_t i = 0; i < json_array_size(events); i++) {
    const json_t *e = json_array_get(events, i), *args = json_object_get(e, "args");
    int pid = (int)json_integer_value(json_object_get(e, "pid"));
    int tid = (int)json_integer_value(json_object_get(e, "tid"));
    const char *name = json_string_value(json_object_get(e, "name"));
    if (!strcmp(name, "process_name"))
      named += atoi(json_string_value(json_object_get(args, "name")) + strlen("rank ")) == pid;
    if (!strcmp(name, "thread_name")) {
      const char *track = json_string_value(json_object_get(args, "name"));
      tracks += !strcmp(track, tid == TC_TRACK_COMM ? "communication world" : "compute");
    }
    if (strcmp(json_string_value(json_object_get(e, "ph")), "X")) continue;
    double ts = json_number_value(json_object_get(e, "ts"));
    overlaps += ts < end[pid][tid] - 0.0015;
    end[pid][tid] = ts + json_number_value(json_object_get(e, "dur"));
    beyond += ts < 0 || ts > 30e6;
    if (tid == TC_TRACK_COMPUTE) spans[pid]++;
    if (!strcmp(name, "all_reduce world"))
      comm[pid] += json_integer_value(json_object_get(args, "bytes")) > 0 &&
                   !strcmp(json_string_value(json_object_get(args, "unit")), "h.1");
  }
  is_int(named, RANKS, "each rank is a named process");
  is_int(tracks, 2 * RANKS, "with a track for computing and one for its communicator");
  is_int(spans[0], EVENTS, "rank 0's events");
  is_int(spans[1], EVENTS, "rank 1's events");
  is_int(spans[2], EVENTS / 2, "rank 2's, as many as fit");
  is_int(comm[0] + comm[1], 2, "the collective that ran, with its unit and bytes");
  is_int(overlaps, 0, "events of a track do not overlap");
  is_int(beyond, 0, "and all lie within the run, on rank 0's clock");
}

static void test_file(void)
{
  char file[] = "/tmp/t_trace-XXXXXX";
  close(mkstemp(file));
  struct rank r[RANKS] = { { .rank = 0 } };
  struct tc_hub *hub = tc_hub_new(RANKS);
  for (int i = 0; i < RANKS; i++) {
    r[i] = (struct rank){ .rank = i, .hub = hub, .file = file };
    pthread_create(&r[i].thread, NULL, rank_main, &r[i]);
  }
  for (int i = 0; i < RANKS; i++) {
    pthread_join(r[i].thread, NULL);
    is_int(r[i].rc, 0, "rank %d: no error %s", i, r[i].rc ? r[i].err.text : "");
  }
  tc_hub_free(hub);
  json_error_t why;
  json_t *o = json_load_file(file, 0, &why);
  ok(o != NULL, "the file is JSON %s", o ? "" : why.text);
  check_events(json_object_get(o, "traceEvents"));
  const json_t *other = json_object_get(o, "otherData");
  /* rank 2's buffer lacks its other half and the collective */
  is_int(json_integer_value(json_object_get(other, "dropped")), EVENTS - EVENTS / 2 + 1,
         "the file says how many are missing");
  const double error_us = json_number_value(json_object_get(other, "clock_error_us"));
  ok(error_us > 0 && error_us < 1e6, "... and how well clocks agree: to %g us", error_us);
  is_int(json_integer_value(json_object_get(other, "events")), 2 * (EVENTS + 1) + EVENTS / 2,
         "... all events");
  ok(json_integer_value(json_object_get(other, "first_step")) == 1 &&
     json_integer_value(json_object_get(other, "last_step")) == 1, "... and which steps");
  for (int i = 0; i < RANKS; i++)
    for (int k = 0; k < 3; k++)          /* twice: the fast clock gains on a message's way */
      ok((double)llabs(r[i].off_ns[k]) <= 2e3 * error_us,
         "rank %d: a clock %d x 7000 s ahead%s is brought "
         "back to %lld ns", i, i, i == 1 ? " and too fast" : "", (long long)r[i].off_ns[k]);
  json_decref(o);
  unlink(file);
}

int main(void)
{
  test_buffer();
  test_clock();
  test_room();
  test_text();
  test_write();
  test_same_clock();
  test_file();
  return done_testing();
}
