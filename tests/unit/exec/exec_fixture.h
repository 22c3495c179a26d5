/* exec_fixture.h - the executor on the device `ref` whose functions the test can count, watch and
 * let fail: a small model's programs on one rank. */
#ifndef TC_EXEC_FIXTURE_H
#define TC_EXEC_FIXTURE_H

#include "src/exec/exec.h"
#include "src/passes/passes.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

enum { PROGS = 3, TRAIN = 0, EVAL = 1, INIT = 2, STEPS = 4, MOST_ALLOCS = 16 };
static const struct tc_model toy = { .layers = 2, .hidden = 12, .heads = 3, .context = 5,
    .vocab = 11 };

struct watch {
  int allocs, frees, wrong; /* wrong: given back with other bytes, or not taken */
  int fail_alloc, fail_run; /* the call that fails, from 1; 0: none */
  int fail_op, runs; /* ... counted of this op; -1: of all */
  struct {
    void *p;
    int64_t bytes;
  } taken[MOST_ALLOCS];
};
static struct watch watch;
static int model_dtype = TC_F32, model_offload = TC_OFFLOAD_NO;

static void *watch_alloc(struct tc_device *d, int64_t bytes)
{
  if (++watch.allocs == watch.fail_alloc) return NULL;
  void *p = tc_ref_ops.alloc(d, bytes);
  TC_ASSERT(watch.allocs <= MOST_ALLOCS);
  watch.taken[watch.allocs - 1].p = p;
  watch.taken[watch.allocs - 1].bytes = bytes;
  return p;
}

static void watch_free(struct tc_device *d, void *p, int64_t bytes)
{
  bool found = false;
  for (int i = 0; i < watch.allocs; i++) {
    if (watch.taken[i].p != p || watch.taken[i].bytes != bytes) continue;
    watch.taken[i].p = NULL;
    found = true;
  }
  watch.frees++;
  watch.wrong += !found;
  tc_ref_ops.free(d, p, bytes);
}

static int watch_run(struct tc_device *d, const struct tc_call *c)
{
  if (watch.fail_op < 0 || c->op == watch.fail_op)
    if (++watch.runs == watch.fail_run) return TC_EUSER;
  return tc_ref_ops.kernel[c->op].run(d, c);
}

struct fixture {
  struct tc_device *device;
  struct tc_device_ops ops;
  struct tc_kernel kernel[TC_OPS];
  struct tc_mesh *mesh;
  struct tc_program *prog[PROGS];
  struct tc_exec_opts o;
  struct tc_exec *exec;
};

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)starts;
  (void)ctx;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    tc_philox(r, 5, (uint64_t)rt->step, (uint64_t)(row0 + i));
    tokens[i] = (int32_t)(r[0] % (uint32_t)toy.vocab);
    targets[i] = (int32_t)(r[1] % (uint32_t)toy.vocab);
  }
}

/* Programs of `mb` micro-batches; the executor is not made yet. */
static void open_fixture(struct fixture *f, int mb, int recompute)
{
  static const int kind[PROGS] = { TC_TRAIN, TC_EVAL, TC_INIT };
  struct tc_err err = { 0 };
  *f = (struct fixture){ .mesh = fx_mesh(mb, 1, 1, 1), .ops = tc_ref_ops };
  watch = (struct watch){ .fail_op = -1 };
  int rc = tc_device_open(&f->device, "ref", 1, &err);
  for (int i = 0; i < PROGS && !rc; i++) {
    struct tc_program_opts o = {
      .kind = kind[i],
      .model = toy,
      .gpt = { .batch = 4, .dtype = model_dtype, .grad_dtype = TC_F32, .tp = 1 },
      .recompute = recompute,
      .system = &tc_systems[TC_DATA_DDP],
     
      .overlap = true,
      .offload = model_offload
    };
    rc = tc_program_new(&f->prog[i], &o, f->mesh, 0, i ? f->prog[TRAIN] : NULL, NULL, &err);
  }
  if (rc < 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  memcpy(f->kernel, tc_ref_ops.kernel, sizeof f->kernel);
  for (int op = 0; op < TC_OPS; op++)
    if (f->kernel[op].run) f->kernel[op].run = watch_run;
  f->ops.kernel = f->kernel;
  f->ops.alloc = watch_alloc;
  f->ops.free = watch_free;
  f->device->ops = &f->ops;
  f->o = (struct tc_exec_opts){ .device = f->device, .mesh = f->mesh, .fill = fill };
}

static int make_exec(struct fixture *f, struct tc_err *err)
{
  return tc_exec_new(&f->exec, &f->o, f->prog, PROGS, err);
}

static int run(struct fixture *f, int program, int64_t step, struct tc_err *err)
{
  const struct tc_runtime rt = { .seed = 3,
                                 .step = step,
                                 .lr = 0.01f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .clip = 1 };
  return tc_exec_run(f->exec, program, &rt, err);
}

/* The losses of STEPS steps after INIT, then of an evaluation; returns the first failure. */
TAP_UNUSED static int losses(struct fixture *f, double loss[STEPS + 1], struct tc_err *err)
{
  TC_TRY(run(f, INIT, 0, err));
  for (int s = 0; s < STEPS; s++) {
    TC_TRY(run(f, TRAIN, s + 1, err));
    loss[s] = tc_exec_scalar(f->exec, TRAIN, f->prog[TRAIN]->graph->loss);
  }
  TC_TRY(run(f, EVAL, STEPS, err));
  loss[STEPS] = tc_exec_scalar(f->exec, EVAL, f->prog[EVAL]->graph->loss);
  return 0;
}

static void close_fixture(struct fixture *f)
{
  tc_exec_free(f->exec);
  for (int i = 0; i < PROGS; i++) tc_program_free(f->prog[i]);
  f->device->ops = &tc_ref_ops;
  tc_device_close(f->device);
  tc_mesh_free(f->mesh);
}

#endif
