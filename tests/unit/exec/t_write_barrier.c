/* t_write_barrier.c - a copy of the state beside training (tc_exec_write_barrier): it is what the state was when the
 * copy began, whatever steps came before the copy was waited for.
 *
 * By default on an emulated GPU (tests/emu), whose streams do their work as late as they may: the
 * copies run when the update lets itself wait for them, or else at the end, and then have a later
 * step's state. With TC_TEST_GPU=yes on a GPU. */
#include <unistd.h>

#include "src/exec/exec.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

enum { BATCH = 2, CONTEXT = 8, PROGS = 3, TRAIN = 0, EVAL = 1, INIT = 2 };
static const struct tc_model toy = { .layers = 2, .hidden = 32, .heads = 2, .context = CONTEXT,
    .vocab = 64 };

/* The saved tensors, whole on the one rank. */
struct saved { const void *at; int64_t bytes, from; };

struct fixture {
  struct tc_device *device, *host;
  struct tc_mesh *mesh;
  struct tc_program *prog[PROGS];
  struct tc_exec *exec;
  struct saved *saved;
  int n;
  int64_t bytes;
  char *want, *now, *copy;       /* [bytes]: when it began, after it, what it has; pinned */
};

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)starts;
  (void)ctx;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    tc_philox(r, 5, (uint64_t)rt->step, (uint64_t)(row0 + i));
    tokens[i] = (int32_t)(r[0] % 64);
    targets[i] = (int32_t)(r[1] % 64);
  }
}

static void list_saved(struct fixture *f)
{
  const struct tc_graph *g = f->prog[TRAIN]->graph;
  f->saved = tc_calloc((size_t)g->n_tensors, sizeof *f->saved);
  for (int32_t t = 0; t < g->n_tensors; t++) {
    if (!g->tensor[t].state || !g->tensor[t].saved) continue;
    struct saved *s = &f->saved[f->n++];
    s->at = tc_exec_tensor(f->exec, TRAIN, t);
    s->bytes = tc_tensor_local_bytes(&g->tensor[t], f->mesh, f->mesh->coord);
    s->from = f->bytes;
    f->bytes += s->bytes;
  }
}

static bool open_fixture(struct fixture *f, int offload, bool no_fusion)
{
  static const int kind[PROGS] = { TC_TRAIN, TC_EVAL, TC_INIT };
  struct tc_err err = { 0 };
  *f = (struct fixture){ .mesh = fx_mesh(2, 1, 1, 1) };
  int rc = tc_device_open(&f->device, "cuda", 1, &err);
  if (!rc) rc = tc_device_open(&f->host, "cpu", 1, &err);
  for (int i = 0; i < PROGS && !rc; i++) {
    struct tc_program_opts o = {
      .kind = kind[i], .model = toy, .gpt = { .batch = BATCH, .dtype = TC_F32,
      .grad_dtype = TC_F32, .tp = 1 }, .system = &tc_systems[TC_DATA_DDP],
      .overlap = true, .offload = offload, .reshard_after = -1 };
    rc = tc_program_new(&f->prog[i], &o, f->mesh, 0, i ? f->prog[TRAIN] : NULL, NULL, &err);
  }
  struct tc_exec_opts x = { .device = f->device, .host = f->host, .mesh = f->mesh, .fill = fill,
                            .no_fusion = no_fusion };
  if (!rc) rc = tc_exec_new(&f->exec, &x, f->prog, PROGS, &err);
  if (!ok(rc == 0, "made ready %s", err.text)) return false;
  list_saved(f);
  f->want = tc_device_host_alloc(f->device, f->bytes);
  f->now = tc_device_host_alloc(f->device, f->bytes);
  f->copy = tc_device_host_alloc(f->device, f->bytes);
  TC_ASSERT(f->want && f->now && f->copy);
  return true;
}

static void close_fixture(struct fixture *f)
{
  tc_device_host_free(f->device, f->want);
  tc_device_host_free(f->device, f->now);
  tc_device_host_free(f->device, f->copy);
  tc_exec_free(f->exec);
  for (int i = 0; i < PROGS; i++) tc_program_free(f->prog[i]);
  tc_device_close(f->device);
  tc_device_close(f->host);
  tc_mesh_free(f->mesh);
  free(f->saved);
}

static void run(struct fixture *f, int program, int64_t step)
{
  struct tc_err err = { 0 };
  struct tc_runtime rt = { .seed = 1, .step = step, .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f,
                           .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1 };
  if (tc_exec_run(f->exec, program, &rt, &err) == 0) return;
  printf("Bail out! %s\n", err.text);
  exit(1);
}

/* What the state is now, with the device's plain copies. */
static void look(struct fixture *f, char *to)
{
  for (int i = 0; i < f->n; i++)
    f->device->ops->copy(f->device, to + f->saved[i].from, f->saved[i].at, f->saved[i].bytes);
}

static int differ(const struct fixture *f, const char *a, const char *b)
{
  int n = 0;
  for (int i = 0; i < f->n; i++)
    n += memcmp(a + f->saved[i].from, b + f->saved[i].from, (size_t)f->saved[i].bytes) != 0;
  return n;
}

/* As the checkpoint writer asks for them: one after the other, each held. */
static int64_t begin(struct fixture *f)
{
  int64_t last = 0;
  memset(f->copy, 0xa5, (size_t)f->bytes);
  for (int i = 0; i < f->n; i++) {
    last = f->device->ops->copy_begin(f->device, f->copy + f->saved[i].from, f->saved[i].at,
                                      f->saved[i].bytes);
    tc_exec_write_barrier(f->exec, last);
  }
  return last;
}

static void test_copy(const char *what, int offload, bool no_fusion)
{
  struct fixture f;
  int64_t step = 0;
  if (!open_fixture(&f, offload, no_fusion)) return;
  run(&f, INIT, 0);
  run(&f, TRAIN, ++step);
  for (int steps = 1; steps <= 2; steps++) {
    look(&f, f.want);
    int64_t copy = begin(&f);
    run(&f, EVAL, step);                         /* writes nothing of it: it stays held */
    for (int i = 0; i < steps; i++) run(&f, TRAIN, ++step);
    is_int(f.device->ops->copy_wait(f.device, copy), 0, "%s: the copy is done", what);
    look(&f, f.now);
    is_int(differ(&f, f.now, f.want), f.n, "%s: %d step(s) changed all %d tensors meanwhile", what,
           steps, f.n);
    is_int(differ(&f, f.copy, f.want), 0, "... and the copy has them as they were when it began");
  }
  close_fixture(&f);
}

int main(void)
{
  const char *gpu = getenv("TC_TEST_GPU"), *folder = getenv("TC_EMU_MODULES");
  alarm(1100);
  if (!gpu || !*gpu) {
    if (!folder || !*folder) skip_all("no C++ compiler to build the emulated kernels with");
    setenv("TERCIO_MODULES", folder, 1);
  }
  test_copy("state on the device", TC_OFFLOAD_NO, false);
  test_copy("one update after the other", TC_OFFLOAD_NO, true);
  test_copy("moments on the host", TC_OFFLOAD_PARAMS, false);
  test_copy("the update on the host", TC_OFFLOAD_UPDATE, false);
  return done_testing();
}
