/* t_exec.c - the executor's memory, and what it says when something fails: each piece of memory that
 * is not there, kernels that are missing or fail; what is filled with NaN when it is free. */
#include "tests/unit/exec/exec_fixture.h"

static void memory(struct tc_device *d, int64_t *left, int64_t *total)
{
  (void)d;
  *left = 1230000000;
  *total = 80000000000;
}

static int64_t some_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  return c->op == TC_OP_ACT ? 12345678 : c->op == TC_OP_ADD ? 77 : 0;
}

#define END                                                                                        \
  "; use fewer sequences at once (train.micro_batch), a smaller model, or parallel.data = zero3"

static void test_allocs(void)
{
  static const char *const plain[] = {
    "out of memory: 0.00 GB of state are needed (state 0.00, scratch 0.00)" END,
    "out of memory: 0.00 GB of scratch are needed (state 0.00, scratch 0.00)" END,
    "out of memory: 0.0123 GB for the kernels' scratch; use fewer sequences at once (train.micro_batch)"
  };
  static const char *const known[] = {
    "out of memory: 0.00 GB of state are needed (state 0.00, scratch 0.00); device ref has 1.23 GB free of 80.00" END,
    "out of memory: 0.00 GB of scratch are needed (state 0.00, scratch 0.00); device ref has 1.23 GB free of 80.00" END,
    "out of memory: 0.0123 GB for the kernels' scratch; use fewer sequences at once (train.micro_batch)"
  };
  for (int knows = 0; knows < 2; knows++)
    for (int i = 0; i < 3; i++) {
      struct fixture f;
      struct tc_err err = { 0 };
      open_fixture(&f, 2, 0);
      f.kernel[TC_OP_ACT].scratch = f.kernel[TC_OP_ADD].scratch = some_scratch;
      if (knows) f.ops.memory = memory;
      watch.fail_alloc = i + 1;
      is_int(make_exec(&f, &err), TC_EUSER, "memory %d of 3 is not there", i + 1);
      is_str(err.text, knows ? known[i] : plain[i], "... in these words");
      ok(!f.exec && watch.frees == i && !watch.wrong, "... and the rest is given back");
      close_fixture(&f);
    }
}

static void test_memory(void)
{
  struct fixture f;
  struct tc_err err = { 0 };
  open_fixture(&f, 2, 0);
  f.kernel[TC_OP_ACT].scratch = f.kernel[TC_OP_ADD].scratch = some_scratch;
  is_int(make_exec(&f, &err), 0, "made %s", err.text);
  const struct tc_exec_memory m = tc_exec_memory(f.exec);
  int64_t scratch = 0;
  for (int i = 0; i < PROGS; i++) scratch = TC_MAX(scratch, f.prog[i]->arena->bytes[TC_SCRATCH]);
  is_int(m.region[TC_STATE], f.prog[TRAIN]->arena->bytes[TC_STATE],
         "the state is as large as planned");
  is_int(m.region[TC_SCRATCH], scratch, "scratch is as large as the largest program's");
  ok(!m.region[TC_HOST_STATE] && !m.region[TC_HOST_SCRATCH] && !m.staging,
     "nothing is on the host, nothing staged");
  is_int(m.kernel_scratch, 12345678, "the kernels' scratch is the largest");
  is_int(watch.allocs, 3, "three pieces of memory");
  is_int(watch.taken[0].bytes, m.region[TC_STATE], "... of these sizes");
  is_int(watch.taken[1].bytes, scratch, "... these");
  is_int(watch.taken[2].bytes, 12345678, "... and these");
  tc_exec_free(f.exec);
  f.exec = NULL;
  ok(watch.frees == 3 && !watch.wrong, "... all given back");
  tc_exec_free(NULL);
  close_fixture(&f);
}

/* ---- kernels ---- */

static int plans, bad_plans;

static int take_plan(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  (void)d;
  if (++watch.runs == watch.fail_run)
    return tc_fail(err, TC_ELAYOUT, "no plan for node %d", c->acc);
  char *plan = tc_malloc(2);
  plan[0] = (char)c->op, plan[1] = (char)c->acc;
  c->plan = plan;
  plans++;
  return 0;
}

static void drop_plan(struct tc_device *d, struct tc_call *c)
{
  (void)d;
  free(c->plan);
  c->plan = NULL;
  plans--;
}

/* The plan is that of the call's accumulation. */
static int run_plan(struct tc_device *d, const struct tc_call *c)
{
  const char *plan = c->plan;
  bad_plans += !plan || plan[0] != (char)c->op || plan[1] != (char)c->acc;
  return tc_ref_ops.kernel[c->op].run(d, c);
}

static void test_plans(void)
{
  struct fixture f;
  struct tc_err err = { 0 };
  double loss[STEPS + 1];
  for (int fail = 0; fail < 60; fail += 23) {
    open_fixture(&f, 2, 0);
    f.kernel[TC_OP_MATMUL] = f.kernel[TC_OP_LAYERNORM_BWD] =
        (struct tc_kernel){ .prepare = take_plan, .unprepare = drop_plan, .run = run_plan };
    watch.fail_run = fail;
    plans = bad_plans = 0;
    if (fail) {
      is_int(make_exec(&f, &err), TC_ELAYOUT, "plan %d fails", fail);
      is_str(err.text, strncmp(err.text, "no plan for node ", 17) ? "no plan" : err.text,
             "... with its own sentence");
    } else {
      is_int(make_exec(&f, &err), 0, "plans are made %s", err.text);
      is_int(plans, 55, "... as many as there are products and their accumulations");
      is_int(losses(&f, loss, &err), 0, "... and used %s", err.text);
      is_int(bad_plans, 0, "... each where it belongs");
    }
    close_fixture(&f);
    is_int(plans, 0, "... and all are dropped");
  }
}

static int broken(struct tc_device *d, struct tc_err *err)
{
  (void)d;
  return watch.fail_run && watch.runs >= watch.fail_run
             ? tc_fail(err, TC_EPEER, "the device is broken")
             : 0;
}

static void test_kernels(void)
{
  struct fixture f;
  struct tc_err err = { 0 };
  double loss[STEPS + 1];
  open_fixture(&f, 2, 0);
  f.kernel[TC_OP_ACT].run = NULL;
  is_int(make_exec(&f, &err), TC_EUSER, "a kernel that there is none of");
  is_str(err.text, "device ref has no kernel for op gelu", "... is named");
  close_fixture(&f);
  for (int checks = 0; checks < 2; checks++) {
    open_fixture(&f, 2, 0);
    err.text[0] = 0;
    if (checks) f.ops.check = broken;
    is_int(make_exec(&f, &err), 0, "made %s", err.text);
    watch.fail_op = TC_OP_ACT_BWD;
    watch.fail_run = 3;
    is_int(losses(&f, loss, &err), TC_EUSER, "a kernel that fails");
    is_str(err.text, checks ? "the device is broken" : "op gelu_bwd failed",
           "... is named, or what the device says");
    watch.fail_run = 0;
    is_int(losses(&f, loss, &err), 0, "... and the next run works");
    close_fixture(&f);
  }
  open_fixture(&f, 2, 0);
  f.ops.check = broken;
  is_int(make_exec(&f, &err), 0, "made %s", err.text);
  watch.fail_op = TC_OP_ADAMW;
  f.kernel[TC_OP_ADAMW].run = watch_run;
  is_int(run(&f, INIT, 0, &err), 0, "a device that works %s", err.text);
  watch.runs = watch.fail_run = 9;
  is_int(run(&f, TRAIN, 1, &err), TC_EPEER, "... and is broken after a run");
  is_str(err.text, "the device is broken", "... which is reported");
  close_fixture(&f);
}

/* ---- NaN where nothing is ---- */

static int64_t filled, fills;

static void count_fill(struct tc_device *d, void *p, int byte, int64_t bytes)
{
  (void)d;
  memset(p, byte, (size_t)bytes);
  if (byte != 0xff) return;
  filled += bytes;
  fills++;
}

static int64_t poisoned(int piece)
{
  int64_t n = 0;
  for (int64_t i = 0; i < watch.taken[piece].bytes; i++)
    n += ((unsigned char *)watch.taken[piece].p)[i] == 0xff;
  return n;
}

static void test_poison(void)
{
  static const struct {
    int mb, recompute;
    int64_t fills, filled, left;
  } row[] = { { 1, TC_RECOMPUTE_NONE, 65, 70020, 37564 },
              { 2, TC_RECOMPUTE_NONE, 125, 70020, 19132 },
              { 4, TC_RECOMPUTE_FULL, 349, 101860, 5820 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct fixture f, g;
    struct tc_err err = { 0 };
    double want[STEPS + 1], got[STEPS + 1];
    open_fixture(&g, row[i].mb, row[i].recompute);
    ok(make_exec(&g, &err) == 0 && losses(&g, want, &err) == 0, "%d micro-batches, as usual",
       row[i].mb);
    close_fixture(&g);
    open_fixture(&f, row[i].mb, row[i].recompute);
    f.device->poison = true;
    f.ops.fill = count_fill;
    filled = fills = 0;
    is_int(make_exec(&f, &err), 0, "%d micro-batches, poisoned %s", row[i].mb, err.text);
    ok(fills == 1 && filled == watch.taken[1].bytes, "... scratch, at first, as a whole");
    is_int(losses(&f, got, &err), 0, "... runs %s", err.text);
    ok(!memcmp(got, want, sizeof got), "... with the same losses");
    run(&f, TRAIN, 9, &err);
    filled = fills = 0;
    run(&f, TRAIN, 10, &err);
    is_int(fills, row[i].fills, "... so many tensors end in a step");
    is_int(filled, row[i].filled, "... of so many bytes");
    is_int(poisoned(1), row[i].left, "... and so much of scratch is free then");
    close_fixture(&f);
  }
}

int main(void)
{
  test_allocs();
  test_memory();
  test_plans();
  test_kernels();
  test_poison();
  return done_testing();
}
