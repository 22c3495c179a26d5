/* t_exec_host.c - the executor on a device whose memory the host can't touch, with a host that
 * computes too: which memory is allocated and freed where, which copies are begun, ordered and
 * waited for, and the message when one of these fails. The device is `ref` with functions of the
 * test's; its copies are made as late as they may be. */
#include "tests/unit/exec/exec_fixture.h"

enum { NO = TC_OFFLOAD_NO, PARAMS = TC_OFFLOAD_PARAMS, UPDATE = TC_OFFLOAD_UPDATE };
enum { MOST_COPIES = 4000 };

static struct tc_device *host;
static struct tc_device_ops host_ops;
static struct tc_kernel host_kernel[TC_OPS];

/* ---- memory ---- */

static char taken[500];                          /* 'd'evice, 'h'ost or 'p'inned, and its bytes */
static int n_taken, n_given, fail_take;          /* fail_take: from 1; 0: none fails */

static void *take(struct tc_device *d, char who, int64_t bytes)
{
  if (++n_taken == fail_take) return NULL;
  snprintf(taken + strlen(taken), sizeof taken - strlen(taken), "%c%" PRId64 " ", who, bytes);
  void *p = tc_ref_ops.alloc(d, bytes);
  if (who == 'p') memset(p, 0x7f, (size_t)bytes);
  return p;
}

static void give(struct tc_device *d, char who, void *p, int64_t bytes)
{
  char text[40];
  if (bytes >= 0) snprintf(text, sizeof text, "%c%" PRId64 " ", who, bytes);
  else snprintf(text, sizeof text, "%c", who);
  char *found = strstr(taken, text);
  n_given += found != NULL;
  if (found) *found = '-';                       /* not to be given back twice */
  tc_ref_ops.free(d, p, TC_MAX(bytes, 0));
}

static void *device_alloc(struct tc_device *d, int64_t bytes) { return take(d, 'd', bytes); }
static void device_free(struct tc_device *d, void *p, int64_t bytes) { give(d, 'd', p, bytes); }
static void *host_alloc(struct tc_device *d, int64_t bytes) { return take(d, 'h', bytes); }
static void host_free(struct tc_device *d, void *p, int64_t bytes) { give(d, 'h', p, bytes); }
static void *pinned_alloc(struct tc_device *d, int64_t bytes) { return take(d, 'p', bytes); }
static void pinned_free(struct tc_device *d, void *p) { give(d, 'p', p, -1); }

static int64_t gelu_scratch(struct tc_device *d, const struct tc_call *c)
{
  return c->op != TC_OP_ACT ? 0 : d == host ? 1 : 12345678;
}

static int64_t adamw_scratch(struct tc_device *d, const struct tc_call *c)
{
  return c->op == TC_OP_ADAMW ? d == host ? 9876543 : 5 : 0;
}

/* ---- copies: each is made when it has to be, not before ---- */

static struct copy { void *to; const void *from; int64_t bytes; } copy[MOST_COPIES];
static int64_t n_copies, n_made, orders, waits, fail_wait;
static int updates, updates_at_order;

static int64_t copy_begin(struct tc_device *d, void *to, const void *from, int64_t bytes)
{
  (void)d;
  TC_ASSERT(n_copies < MOST_COPIES);
  copy[n_copies++] = (struct copy){ to, from, bytes };
  return n_copies;
}

static void make_copies(int64_t n)
{
  TC_ASSERT(n >= 1 && n <= n_copies);
  for (; n_made < n; n_made++)
    tc_ref_ops.copy(NULL, copy[n_made].to, copy[n_made].from, copy[n_made].bytes);
}

static void copy_order(struct tc_device *d, int64_t n)
{
  (void)d;
  orders++;
  updates_at_order = updates;
  make_copies(n);
}

static int copy_wait(struct tc_device *d, int64_t n)
{
  (void)d;
  make_copies(n);
  return ++waits == fail_wait ? TC_EPEER : 0;
}

/* ---- the fixture ---- */

static int host_runs;

static int run_on_host(struct tc_device *d, const struct tc_call *c)
{
  host_runs++;
  updates += c->op == TC_OP_ADAMW;
  TC_ASSERT(d == host);
  return tc_ref_ops.kernel[c->op].run(d, c);
}

static int run_update(struct tc_device *d, const struct tc_call *c)
{
  updates++;
  return tc_ref_ops.kernel[c->op].run(d, c);
}

static void open_host(struct fixture *f, int mb, int offload, bool pins)
{
  struct tc_err err = { 0 };
  model_offload = offload;
  open_fixture(f, mb, 0);
  if (tc_device_open(&host, "ref", 1, &err) < 0) exit(1);
  memcpy(host_kernel, tc_ref_ops.kernel, sizeof host_kernel);
  for (int op = 0; op < TC_OPS; op++)
    if (host_kernel[op].run) host_kernel[op].run = run_on_host;
  host_ops = tc_ref_ops;
  host_ops.name = "cpu";
  host_ops.kernel = host_kernel;
  host_ops.alloc = host_alloc;
  host_ops.free = host_free;
  host->ops = &host_ops;
  f->kernel[TC_OP_ADAMW].run = run_update;
  f->kernel[TC_OP_ACT].scratch = host_kernel[TC_OP_ACT].scratch = gelu_scratch;
  f->kernel[TC_OP_ADAMW].scratch = host_kernel[TC_OP_ADAMW].scratch = adamw_scratch;
  f->ops.alloc = device_alloc;
  f->ops.free = device_free;
  f->ops.separate = pins;
  if (pins) {
    f->ops.host_alloc = pinned_alloc;
    f->ops.host_free = pinned_free;
    f->ops.copy_begin = copy_begin;
    f->ops.copy_order = copy_order;
    f->ops.copy_wait = copy_wait;
  }
  f->o.host = host;
  *taken = '\0';
  n_taken = n_given = fail_take = host_runs = updates = updates_at_order = 0;
  n_copies = n_made = orders = waits = fail_wait = 0;
}

static void close_host(struct fixture *f)
{
  close_fixture(f);
  host->ops = &tc_ref_ops;
  tc_device_close(host);
}

/* ---- memory, and the number of calls ---- */

struct row {
  int mb, offload;
  bool pins;                                     /* else the host can touch the device's memory */
  int host_runs, updates, copies, orders, waits;
};

static void expect_taken(const struct fixture *f, const struct row *r, char *want, size_t size)
{
  int64_t most[TC_REGIONS] = { 0 };
  for (int i = 0; i < PROGS; i++)
    for (int k = 0; k < TC_REGIONS; k++) most[k] = TC_MAX(most[k], f->prog[i]->arena->bytes[k]);
  int at = 0;
  for (int k = 0; k < TC_REGIONS; k++) {
    if (k >= TC_HOST_STATE && !most[k]) continue;
    at += snprintf(want + at, size - (size_t)at, "%c%" PRId64 " ",
                   k < TC_HOST_STATE ? 'd'
                   : r->pins         ? 'p'
                                     : 'h',
                   most[k]);
  }
  at += snprintf(want + at, size - (size_t)at, "d12345678 ");
  if (r->offload == UPDATE) at += snprintf(want + at, size - (size_t)at, "h9876543 ");
  if (r->pins) snprintf(want + at, size - (size_t)at, "p%d ", 2 * 4 * 5 * 4);
}

static void test_memory(struct fixture *f, const struct row *r)
{
  char want[300] = "";
  const struct tc_exec_memory m = tc_exec_memory(f->exec);
  expect_taken(f, r, want, sizeof want);
  is_str(taken, want, "... with memory of each");
  is_int(m.kernel_scratch, 12345678 + (r->offload == UPDATE ? 9876543 : 0),
         "... so much for kernels");
  is_int(m.region[TC_HOST_STATE], f->prog[TRAIN]->arena->bytes[TC_HOST_STATE],
         "... for the state there");
  is_int(m.region[TC_HOST_STATE] > 0, r->offload != NO, "... where there is some");
  int wrong = 0;
  for (int32_t t = 0; t < f->prog[TRAIN]->graph->n_tensors; t++) {
    const struct tc_tensor *x = &f->prog[TRAIN]->graph->tensor[t];
    if (!x->state || x->space != TC_HOST) continue;
    const char *p = tc_exec_tensor(f->exec, TRAIN, t);
    const int64_t bytes = tc_tensor_local_bytes(x, f->mesh, f->mesh->coord);
    for (int64_t i = 0; i < bytes; i++) wrong += p[i] != 0;
  }
  is_int(wrong, 0, "... which is zero");
}

static void test_run(const struct row *r)
{
  struct fixture f;
  struct tc_err err = { 0 };
  double want[STEPS + 1], got[STEPS + 1];
  model_offload = NO;
  open_fixture(&f, r->mb, 0);
  ok(make_exec(&f, &err) == 0 && losses(&f, want, &err) == 0, "%d micro-batches, as usual %s",
     r->mb, err.text);
  close_fixture(&f);
  open_host(&f, r->mb, r->offload, r->pins);
  is_int(make_exec(&f, &err), 0, "offload %d, made %s", r->offload, err.text);
  test_memory(&f, r);
  is_int(losses(&f, got, &err), 0, "... runs %s", err.text);
  ok(!memcmp(got, want, sizeof got), "... with the same losses");
  is_int(host_runs, r->host_runs, "... kernels run on the host");
  is_int(updates, r->updates, "... updates, on host and device");
  is_int(n_copies, r->copies, "... copies are begun");
  is_int(orders, r->orders, "... the device is ordered to wait for a copy");
  is_int(waits, r->waits, "... the host waits for a copy");
  is_int(n_made, n_copies, "... and all are made");
  const int all = n_taken;
  close_host(&f);
  is_int(n_given, all, "... all memory is freed where it was allocated, with its size");
}

/* ---- failures ---- */

static void memory(struct tc_device *d, int64_t *left, int64_t *total)
{
  *left = d == host ? 4560000000 : 1230000000;
  *total = d == host ? 70000000000 : 80000000000;
}

#define END                                                                                        \
  "; use fewer sequences at once (train.micro_batch), a smaller model, or parallel.data = zero3"
#define SCRATCH(gb)                                                                                \
  "out of memory: " gb " GB for the kernels' scratch; use fewer sequences at once "                 \
  "(train.micro_batch)"
#define OUT(what, who)                                                                             \
  "out of memory: 0.00 GB of " what " are needed (state 0.00, scratch 0.00)" who END

static void test_fails(bool pins)
{
#define DEVICE "; device ref has 1.23 GB free of 80.00"
#define HOST "; device cpu has 4.56 GB free of 70.00"
  static const char *const want[] = {
    OUT("state", DEVICE), OUT("scratch", DEVICE), OUT("host state", HOST),
    OUT("host scratch", HOST), SCRATCH("0.0123"), SCRATCH("0.00988"),
    "out of host memory for a step's tokens"
  };
  for (int i = 0; i < (pins ? 7 : 6); i++) {
    struct fixture f;
    struct tc_err err = { 0 };
    open_host(&f, 2, UPDATE, pins);
    f.ops.memory = host_ops.memory = memory;
    fail_take = i + 1;
    is_int(make_exec(&f, &err), TC_EUSER, "memory %d is not there", i + 1);
    is_str(err.text, want[i], "... in these words");
    ok(!f.exec, "... and there is no executor");
    close_host(&f);
    is_int(n_given, i, "... and the rest is given back");
  }
}

/* Where the host computes it waits for copies; one that fails ends the step. */
static void test_copy_fails(void)
{
  struct fixture f;
  struct tc_err err = { 0 };
  open_host(&f, 2, UPDATE, true);
  is_int(make_exec(&f, &err), 0, "made %s", err.text);
  is_int(run(&f, INIT, 0, &err), 0, "begun %s", err.text);
  fail_wait = waits + 2;
  is_int(run(&f, TRAIN, 1, &err), TC_EUSER, "a copy that fails");
  is_str(err.text, "a copy between host and device failed", "... in these words");
  is_int(waits, fail_wait, "... is the last");
  close_host(&f);
}

/* While the state is being copied for a checkpoint, the device waits for that copy once, before
 * the first update; the host too, where it has state. */
static void test_hold(int offload)
{
  struct fixture f;
  struct tc_err err = { 0 };
  char state[64] = "the state", kept[64];
  open_host(&f, 2, offload, true);
  is_int(make_exec(&f, &err), 0, "offload %d, made %s", offload, err.text);
  ok(run(&f, INIT, 0, &err) == 0 && run(&f, TRAIN, 1, &err) == 0, "a step %s", err.text);
  const int64_t usual_orders = orders, usual_waits = waits;
  run(&f, TRAIN, 2, &err);
  const int64_t step_orders = orders - usual_orders, step_waits = waits - usual_waits;
  const int before = updates;
  tc_exec_write_barrier(f.exec, copy_begin(f.device, kept, state, sizeof kept));
  const int64_t eval_orders = orders;
  is_int(run(&f, EVAL, 2, &err), 0, "an evaluation %s", err.text);
  is_int(orders, eval_orders + 4, "... waits for its tokens alone");
  updates_at_order = -1;
  orders = waits = 0;
  is_int(run(&f, TRAIN, 3, &err), 0, "a step that holds a copy %s", err.text);
  is_str(kept, "the state", "... has it made");
  is_int(orders, step_orders + 1, "... and lets the device wait once more");
  is_int(waits, step_waits + (offload != NO), "... and the host where it has state");
  if (offload == NO) is_int(updates_at_order, before, "... before anything is updated");
  orders = waits = 0;
  is_int(run(&f, TRAIN, 4, &err), 0, "the next step %s", err.text);
  ok(orders == step_orders && waits == step_waits, "... does not wait for it again");
  tc_exec_write_barrier(f.exec, copy_begin(f.device, kept, state, sizeof kept));
  waits = 0;
  fail_wait = 1;
  if (offload == PARAMS) {
    is_int(run(&f, TRAIN, 5, &err), TC_EUSER, "a copy that fails");
    is_str(err.text, "the copy of the state for a checkpoint failed", "... in these words");
  }
  close_host(&f);
}

int main(void)
{
  static const struct row row[] = { { 1, NO, true, 0, 112, 10, 10, 0 },
                                    { 2, NO, false, 0, 112, 0, 0, 0 },
                                    { 2, NO, true, 0, 112, 20, 20, 0 },
                                    { 2, PARAMS, true, 0, 112, 524, 56, 0 },
                                    { 1, PARAMS, false, 0, 112, 0, 0, 0 },
                                    { 1, UPDATE, true, 196, 112, 378, 66, 56 },
                                    { 4, UPDATE, true, 196, 112, 408, 96, 56 },
                                    { 2, UPDATE, false, 196, 112, 0, 0, 0 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) test_run(&row[i]);
  test_fails(true);
  test_fails(false);
  test_copy_fails();
  test_hold(NO);
  test_hold(PARAMS);
  test_hold(UPDATE);
  return done_testing();
}
