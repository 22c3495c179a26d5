/* t_exec_wait.c - how long ranks (threads here) wait for each other on each axis, by the host's
 * clock or by the device's; how often the host waits for the device; the events of a trace. The
 * losses are the same whichever way transfers take. */
#include "io/crc.h"
#include "src/comm/hub.h"
#include "src/monitor/trace.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/named.h"
#include "tests/unit/tap.h"

#include <unistd.h>

enum { MOST = 6, STEPS = 2 };
enum { PLAIN, NATIVE, STAGED, WAYS };
static const struct tc_model toy = { .layers = 3, .hidden = 12, .heads = 3, .context = 5,
    .vocab = 11 };

static _Thread_local int32_t events;
static _Thread_local int syncs, restarts;

static int32_t record_event(struct tc_device *d)
{
  (void)d;
  return events++;
}

static int64_t interval(struct tc_device *d, int32_t from, int32_t to)
{
  (void)d;
  return (to - from) * 1000;
}

static void restart(struct tc_device *d)
{
  (void)d;
  events = 0;
  restarts++;
}

static void count_sync(struct tc_device *d)
{
  (void)d;
  syncs++;
}

static void *pinned_alloc(struct tc_device *d, int64_t bytes) { return tc_ref_ops.alloc(d, bytes); }
static void pinned_free(struct tc_device *d, void *p) { tc_ref_ops.free(d, p, 0); }
static int64_t copy_begin(struct tc_device *d, void *to, const void *from, int64_t bytes)
{
  tc_ref_ops.copy(d, to, from, bytes);
  return 1;
}
static void copy_order(struct tc_device *d, int64_t n)
{
  (void)d;
  (void)n;
}

static const struct tc_clock device_clock = { record_event, interval, restart };
static struct tc_device_ops native_ops, staged_ops;

struct layout {
  int mb, pp, dp, tp;
  const char *system, *schedule;
  const char *native;            /* "rank 0: nanoseconds waited for on each axis / on all", ... */
  const char *staged;            /* how often each rank waits for its device */
  uint32_t trace[2];             /* CRC32C of it, plain and native */
};

struct job {
  const struct layout *l;
  int way;
  double loss[MOST][STEPS];
  char logged[MOST][200], err[300];
  char *trace;
};

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)starts;
  (void)ctx;
  for (int64_t i = 0; i < rows; i++) {
    tokens[i] = (int32_t)((row0 + i + rt->step) * 7 % toy.vocab);
    targets[i] = (int32_t)((row0 + i) * 3 % toy.vocab);
  }
}

/* Without the times and durations. */
static char *without_times(char *text)
{
  static const char *const key[] = { "\"ts\":", "\"dur\":" };
  for (int k = 0; k < 2; k++)
    for (char *p = text; (p = strstr(p, key[k]));) {
      p += strlen(key[k]);
      memmove(p, p + strspn(p, " -.0123456789"), strlen(p + strspn(p, " -.0123456789")) + 1);
    }
  return text;
}

static void say(struct job *j, struct fx_rank *r, const struct tc_exec *x)
{
  char *to = j->logged[r->rank];
  int64_t sum = 0;
  bool some = false;
  for (int a = 0; a < TC_SETS; a++) {
    const int64_t ns = tc_exec_wait_ns(x, a);
    if (!r->mesh->group[a].named) continue;
    sum += ns;
    some |= ns < 0 || (ns > 0) != (r->comm[a] != NULL);
    if (j->way == NATIVE) to += sprintf(to, "%" PRId64 " ", ns);
  }
  if (j->way == NATIVE) sprintf(to, "of %" PRId64 ", %d", tc_exec_wait_ns(x, -1), restarts);
  else if (j->way == STAGED) sprintf(to, "%d", syncs);
  else strcpy(to, some ? "not all" : sum == tc_exec_wait_ns(x, -1) ? "all" : "another sum");
}

static int steps(struct job *j, struct fx_rank *r, struct tc_exec *x, struct tc_trace *trace,
                 const struct tc_graph *g, struct tc_err *err)
{
  struct tc_runtime rt = { .seed = 3, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = 0.1f, .clip = 1 };
  TC_TRY(tc_exec_run(x, 1, &rt, err));
  for (rt.step = 1; rt.step <= STEPS; rt.step++) {
    syncs = 0;
    TC_TRY(tc_exec_run(x, 0, &rt, err));
    j->loss[r->rank][rt.step - 1] = tc_exec_scalar(x, 0, g->loss);
  }
  say(j, r, x);
  if (!trace) return 0;
  tc_trace_step(trace, rt.step);
  return tc_exec_run(x, 0, &rt, err);
}

static void body(struct fx_rank *r)
{
  struct job *j = r->ctx;
  const struct layout *l = j->l;
  const struct tc_trace_opts to = { .file = "/nowhere", .process = "one", .world = 1, .steps = 1 };
  struct tc_err err = { 0 };
  struct tc_program *p[2] = { NULL };
  struct tc_exec *x = NULL;
  struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank, .fill = fill };
  int rc = 0;
  syncs = restarts = events = 0;
  for (int i = 0; i < 2 && !rc; i++) {
    struct tc_program_opts q = {
      .kind = i ? TC_INIT : TC_TRAIN, .model = toy, .system = system_named(l->system),
      .gpt = { .batch = 4 * l->dp, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = l->tp },
      .schedule = schedule_named(l->schedule), .overlap = true, .reshard_after = -1, .prefetch = 1 };
    if (l->tp > 1) q.annotation[0] = tc_rows_tensor;
    rc = tc_program_new(&p[i], &q, r->mesh, r->rank, p[0], NULL, &err);
  }
  if (j->way == NATIVE) r->device->ops = &native_ops;
  if (j->way == STAGED) r->device->ops = &staged_ops;
  memcpy(j->way == NATIVE ? o.native : o.comm, r->comm, sizeof o.comm);
  if (r->rank == 1 && j->way != STAGED) o.trace = tc_trace_new(&to);
  tc_trace_reserve(o.trace, 2000);
  if (!rc) rc = tc_exec_new(&x, &o, p, 2, &err);
  if (!rc) {
    /* All ranks run the step that one of them traces. */
    struct tc_trace *none = tc_trace_new(&to);
    rc = steps(j, r, x, o.trace ? o.trace : none, p[0]->graph, &err);
    tc_trace_free(none);
  }
  if (rc) {
    snprintf(j->err, sizeof j->err, "%.290s", err.text);
    tc_hub_leave(r->hub, r->rank);
  }
  if (o.trace) j->trace = without_times(tc_trace_text(o.trace));
  tc_exec_free(x);
  tc_trace_free(o.trace);
  for (int i = 0; i < 2; i++) tc_program_free(p[i]);
  r->device->ops = &tc_ref_ops;
}

static void test_layout(const struct layout *l)
{
  static const char *const name[WAYS] = { "on the host", "between devices", "staged on the host" };
  struct job first = { 0 };
  for (int way = 0; way < WAYS; way++) {
    struct job j = { .l = l, .way = way };
    struct tc_mesh *m = fx_mesh(l->mb, l->pp, l->dp, l->tp);
    char logged[1000] = "";
    fx_run(m, "ref", body, &j);
    is_str(j.err, "", "pp %d, dp %d, tp %d, %s", l->pp, l->dp, l->tp, name[way]);
    if (way == PLAIN) first = j;
    else ok(!memcmp(j.loss, first.loss, sizeof j.loss), "... the same losses as on the host");
    for (int r = 0; r < m->world; r++)
      sprintf(logged + strlen(logged), "%s%s", r ? "; " : "", j.logged[r]);
    if (way == PLAIN)
      for (int r = 0; r < m->world; r++) is_str(j.logged[r], "all", "... each axis is waited for");
    if (way == NATIVE) is_str(logged, l->native, "... by the device's clock");
    if (way == STAGED) is_str(logged, l->staged, "... the host waits so often for the device");
    const uint32_t digest = j.trace ? tc_crc32c(0, j.trace, strlen(j.trace)) : 0;
    if (way != STAGED && !is_int(digest, l->trace[way], "... with these events"))
      printf("# %s\n", j.trace ? j.trace : "no trace");
    free(j.trace);
    tc_mesh_free(m);
  }
}

int main(void)
{
  alarm(300);
  static const struct layout row[] = {
    { 2, 2, 2, 1, "ddp", "1f1b",
      "8000 3000 0 of 11000, 3; 8000 3000 0 of 11000, 3; 8000 3000 0 of 11000, 3; "
      "8000 3000 0 of 11000, 3", "12; 12; 12; 12", { 1139363532, 1234263184 } },
    { 1, 1, 2, 3, "zero3", NULL,
      "0 27000 18000 of 45000, 3; 0 27000 18000 of 45000, 3; 0 27000 18000 of 45000, 3; "
      "0 27000 18000 of 45000, 3; 0 27000 18000 of 45000, 3; 0 27000 18000 of 45000, 3",
      "46; 46; 46; 46; 46; 46", { 2668711194, 1485565841 } },
    { 4, 3, 1, 1, "ddp", "zb",
      "13000 0 0 of 13000, 3; 19000 0 0 of 19000, 3; 13000 0 0 of 13000, 3", "14; 20; 14",
      { 3986415341, 3285339529 } },
  };
  native_ops = staged_ops = tc_ref_ops;
  native_ops.clock = &device_clock;
  native_ops.sync = staged_ops.sync = count_sync;
  native_ops.separate = staged_ops.separate = true;
  native_ops.host_alloc = staged_ops.host_alloc = pinned_alloc;
  native_ops.host_free = staged_ops.host_free = pinned_free;
  native_ops.copy_begin = staged_ops.copy_begin = copy_begin;
  native_ops.copy_order = staged_ops.copy_order = copy_order;
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) test_layout(&row[i]);
  return done_testing();
}
