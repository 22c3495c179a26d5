/* emu.cc - runs CUDA kernels on a CPU; see cuda_runtime.h here.
 *
 * One kernel at a time in the process (a lock): ranks that are threads take turns. A warp runs as
 * far as it can before the next one does, so that a missing barrier between warps shows; a fiber
 * that waits is passed over until what it waits for has happened. A round of all warps in which
 * no fiber runs is a deadlock and aborts. A build with the thread sanitizer finds races (races.h). */
#include "races.h"

#include <stdio.h>
#include <stdlib.h>
#include <dlfcn.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <atomic>
#include <map>
#include <set>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 256 << 10 };
#else
enum { STACK_BYTES = 64 << 10 };
#endif

/* Stacks begin at other places of their pages: at the same, a few fibers would fill their part of the processor's cache. */
enum { STACK_APART = 5 * 64 };

[[noreturn]] void emu_stop(const char *what)
{
  fprintf(stderr, "emulated CUDA: %s", what);
  if (emu_me)
    fprintf(stderr, " (block %u,%u,%u thread %u,%u,%u)", emu_me->block.x, emu_me->block.y,
            emu_me->block.z, emu_me->thread.x, emu_me->thread.y, emu_me->thread.z);
  fprintf(stderr, "\n");
  abort();
}

/* ---- fibers ------------------------------------------------------------------------------ */

/* Where a fiber goes on. swapcontext does a system call each time, which is most of what a test
 * takes; where we know how, only the registers that a call keeps are changed. */
#ifdef __x86_64__
struct context { void *sp; };
extern "C" void emu_switch(void **from, void *to);
__asm__(".text\n.type emu_switch, @function\nemu_switch:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
        "  ret\n.size emu_switch, .-emu_switch\n");
static void change(context *from, context *to) { emu_switch(&from->sp, to->sp); }
static void begin(context *c, char *stack, size_t bytes, void (*entry)(void))
{
  void **top = (void **)(stack + bytes) - 2;             /* aligned to 16: what `ret` takes */
  *top = (void *)entry;
  c->sp = top - 6;
  memset(c->sp, 0, 6 * sizeof *top);
}
#else
struct context { ucontext_t u; };
static void change(context *from, context *to) { swapcontext(&from->u, &to->u); }
static void begin(context *c, char *stack, size_t bytes, void (*entry)(void))
{
  getcontext(&c->u);
  c->u.uc_stack.ss_sp = stack;
  c->u.uc_stack.ss_size = bytes;
  c->u.uc_link = NULL;
  makecontext(&c->u, entry, 0);
}
#endif

struct copy { void *dst; const void *src; bool take; int group; };
struct warp {
  int n, arrived;
  unsigned gen;
  char order[2];                                 /* what gen 0, 2, ... and gen 1, 3, ... order */
  alignas(16) unsigned char slot[2][32][EMU_SLOT];
};
struct fiber {
  context ctx;
  void *race;                                    /* the sanitizer's */
  emu_self self;
  char *stack;
  bool done;
  unsigned warp, warp_gen, block_gen;            /* waits until those of warp and block differ */
  int waits;                                     /* 0: no, 1: for its warp, 2: for the block */
  int group;
  std::vector<copy> copies;
  void *fake_stack;
};

emu_self *emu_me;
static std::vector<fiber *> pools[EMU_POOLS];
static std::vector<fiber *> *fibers_now;         /* the block's: one of the pools */
static warp warps_of[EMU_POOLS][32], *warps;
static char begin_order, end_order, block_orders[EMU_POOLS][2], *block_order;
static fiber *now;
static context scheduler;
static const std::function<void()> *body_now;
static unsigned block_gen, block_n, block_arrived, n_done;
static unsigned char *dynamic;
#ifdef __SANITIZE_ADDRESS__
static const void *main_bottom;
static size_t main_size;
#endif

static void to_scheduler(bool last)
{
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(last ? NULL : &now->fake_stack, main_bottom, main_size);
#endif
  fiber *f = now;
  (void)last;
  race_leave();
  change(&f->ctx, &scheduler);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(f->fake_stack, &main_bottom, &main_size);
#endif
}

static void fiber_main(void)
{
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(NULL, &main_bottom, &main_size);
#endif
  race_acquire(&begin_order);
  (*body_now)();
  race_release(&end_order);
  if (!now->copies.empty()) emu_stop("a thread ends with copies under way");
  now->done = true;
  n_done++;
  to_scheduler(true);
}

static void enter(fiber *f)
{
  now = f;
  emu_me = &f->self;
#ifdef __SANITIZE_ADDRESS__
  void *fake;
  __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
  race_enter(f->race);
  change(&scheduler, &f->ctx);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
  now = NULL;
  emu_me = NULL;
}

void __syncthreads(void)
{
  fiber *f = now;
  if (n_done) emu_stop("__syncthreads after threads of the block have ended");
  /* Two in turn: a thread that is at the next barrier already is not ordered with those still in this. */
  char *order = &block_order[block_gen & 1];
  race_release(order);
  if (++block_arrived == block_n) {
    block_arrived = 0;
    block_gen++;
  } else {
    f->waits = 2;
    f->block_gen = block_gen;
    to_scheduler(false);
  }
  race_acquire(order);
}

void emu_warp_op(void *mine, size_t bytes, emu_warp_fn *fn, int arg)
{
  fiber *f = now;
  warp *w = &warps[f->warp];
  if (w->n != 32) emu_stop("a warp operation in a warp of less than 32 threads");
  unsigned gen = w->gen;
  unsigned char (*slot)[EMU_SLOT] = w->slot[gen & 1];
  if (bytes) race_copy(slot[f->self.lane], mine, bytes);
  const bool orders = bytes == 0;                /* __syncwarp */
  if (orders) race_release(&w->order[gen & 1]);
  if (++w->arrived == w->n) {
    if (fn) fn(slot, arg);
    w->arrived = 0;
    w->gen++;
  } else {
    f->waits = 1;
    f->warp_gen = gen;
    to_scheduler(false);
  }
  if (orders) race_acquire(&w->order[gen & 1]);
  if (bytes) race_copy(mine, slot[f->self.lane], bytes);
}

const void *emu_of_lane(unsigned lane)
{
  const warp *w = &warps[now->warp];
  return w->slot[(w->gen - 1) & 1][lane];
}

static bool may_run(const fiber *f)
{
  if (f->done) return false;
  if (f->waits == 1) return warps[f->warp].gen != f->warp_gen;
  return f->waits == 0 || block_gen != f->block_gen;
}

/* Each lane of one warp that may, until it waits. */
static bool run_warp(unsigned first, unsigned lanes, unsigned n, bool reverse)
{
  const std::vector<fiber *> &fibers = *fibers_now;
  bool moved = false;
  for (unsigned i = first; i < first + lanes; i++) {
    fiber *f = fibers[reverse ? n - 1 - i : i];
    if (!may_run(f)) continue;
    f->waits = 0;
    enter(f);
    moved = true;
  }
  return moved;
}

static void run_block(dim3 block, bool reverse)
{
  const unsigned n = block_n;
  block_arrived = n_done = 0;
  for (unsigned i = 0; i < n; i++) {
    fiber *f = (*fibers_now)[i];
    f->done = false, f->waits = 0, f->group = 0;
    f->warp = i / 32;
    f->self.lane = i % 32;
    f->self.thread = { i % block.x, i / block.x % block.y, i / block.x / block.y };
    begin(&f->ctx, f->stack, STACK_BYTES - i * STACK_APART % 4096, fiber_main);
  }
  for (unsigned w = 0; w < (n + 31) / 32; w++) {
    warps[w].n = (int)(n - w * 32 < 32 ? n - w * 32 : 32);
    warps[w].arrived = 0;
  }
  while (n_done < n) {
    bool moved = false;
    for (unsigned w = 0; w < (n + 31) / 32; w++)
      while (run_warp(w * 32, n - w * 32 < 32 ? n - w * 32 : 32, n, reverse)) moved = true;
    if (!moved) emu_stop("deadlock: threads wait for others that have ended or wait elsewhere");
  }
}

/* The linker's names for the borders of the section of __shared__ variables. */
extern "C" unsigned char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));

void *emu_dynamic_shared(void) { return dynamic; }

/* The fibers of a pool, at least n. */
static void fill_pool(std::vector<fiber *> *pool, size_t n)
{
  while (pool->size() < n) {
    fiber *f = new fiber();
    f->stack = (char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    f->race = race_fiber((unsigned)pool->size());
    pool->push_back(f);
  }
}

#ifdef TC_EMU_RACES
/* The section of __shared__ variables is whole pages, since this one has the largest alignment in it, and
 * emu.eo is linked last. */
__shared__ __align__(4096) unsigned char emu_shared_end[4096] __attribute__((used));
#endif

/* What a block's threads find in shared memory: NaN. */
static void fresh_shared(size_t shared_bytes)
{
  race_forget(dynamic, race_pages(shared_bytes));
  memset(dynamic, 0xff, shared_bytes);
  if (!__start_emu_shared) return;
  const size_t bytes = (size_t)(__stop_emu_shared - __start_emu_shared);
  race_forget(__start_emu_shared, bytes);
  memset(__start_emu_shared, 0xff, bytes);
}

/* Runs a kernel when its turn has come in its stream. */
static void run_grid(dim3 grid, dim3 block, size_t shared_bytes, bool reverse,
                     const std::function<void()> &body)
{
  emu_access open;
  const size_t n = (size_t)block.x * block.y * block.z;
  race_is_host();
  body_now = &body;
  block_n = (unsigned)n;
  /* Its end is the heap block's: the address sanitizer sees what is read past it. */
  void *raw = NULL;
  if (posix_memalign(&raw, RACE_ALIGN, race_pages(shared_bytes ? shared_bytes : 1))) emu_stop("out of memory");
  dynamic = (unsigned char *)raw;
  const size_t blocks = (size_t)grid.x * grid.y * grid.z;
  for (size_t b = 0; b < blocks; b++) {
    const size_t at = reverse ? blocks - 1 - b : b;
    const size_t pool = b % EMU_POOLS;
    fill_pool(fibers_now = &pools[pool], n);
    warps = warps_of[pool], block_order = block_orders[pool];
    fresh_shared(shared_bytes);
    race_release(&begin_order);
    for (size_t i = 0; i < n; i++) {
      emu_self *s = &(*fibers_now)[i]->self;
      s->block = { (unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                   (unsigned)(at / grid.x / grid.y) };
      s->block_dim = block;
      s->grid_dim = grid;
    }
    run_block(block, reverse);
  }
  race_acquire(&end_order);
  free(raw);
}

static std::map<const void *, int> func_shared;  /* under emu_lock */

cudaError_t emu_func_shared(const void *kernel, int bytes)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  if (bytes > 163 << 10) return emu_fail(cudaErrorInvalidValue);     /* what sm_80 has */
  func_shared[kernel] = bytes;
  return cudaSuccess;
}

static std::set<const void *> loaded;

cudaError_t emu_func_load(const void *kernel)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  loaded.insert(kernel);
  return cudaSuccess;
}

/* Adds the kernel's address within the module to the file that TC_EMU_KERNELS names, once: tests/check-races looks whether
 * all have run. */
static void note_kernel(const void *kernel)
{
  static std::set<const void *> noted;
  const char *path = getenv("TC_EMU_KERNELS");
  Dl_info in;
  if (!path || !noted.insert(kernel).second || !dladdr(kernel, &in)) return;
  FILE *f = fopen(path, "a");
  if (!f) emu_stop("TC_EMU_KERNELS can't be written");
  fprintf(f, "%016lx\n", (unsigned long)((const char *)kernel - (const char *)in.dli_fbase));
  fclose(f);
}

void emu_run(cudaStream_t stream, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
             std::function<void()> body)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  const size_t n = (size_t)block.x * block.y * block.z;
  note_kernel(kernel);
  if (getenv("TC_EMU_LOADED") && !loaded.count(kernel)) emu_stop("a kernel is launched that tc_cuda_load does not load");
  auto limit = func_shared.find(kernel);
  const size_t most = limit == func_shared.end() ? 48 << 10 : (size_t)limit->second;
  if (n == 0 || n > 1024 || shared_bytes > most || !grid.x || !grid.y || !grid.z
      || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    emu_fail(cudaErrorInvalidConfiguration);
    return;
  }
  if (!emu_is_current(stream)) {
    emu_fail(cudaErrorInvalidResourceHandle);
    return;
  }
  const bool reverse = getenv("TC_EMU_REVERSE") != NULL;
  emu_push(stream, [=] { run_grid(grid, block, shared_bytes, reverse, body); });
}

/* ---- tensor cores and asynchronous copies ------------------------------------------------- */

static float from_bf16(uint32_t pair, int high)
{
  return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

struct mma_args { float c[4]; uint32_t a[4], b[2]; };

/* PTX ISA, "Matrix fragments for mma.m16n8k16": with g = lane / 4 and t = lane % 4,
 *   a register r: row g + 8 (r & 1), columns 2t + 8 (r >> 1) and the next
 *   b register r: column g, rows 2t + 8 r and the next
 *   c element i:  row g + 8 (i >> 1), column 2t + (i & 1) */
static void mma(unsigned char (*slot)[EMU_SLOT], int)
{
  float A[16][16], B[16][8];
  for (int l = 0; l < 32; l++) {
    const mma_args *x = (const mma_args *)slot[l];
    const int g = l / 4, t = l % 4;
    for (int r = 0; r < 4; r++)
      for (int h = 0; h < 2; h++)
        A[g + 8 * (r & 1)][2 * t + 8 * (r >> 1) + h] = from_bf16(x->a[r], h);
    for (int r = 0; r < 2; r++)
      for (int h = 0; h < 2; h++) B[2 * t + 8 * r + h][g] = from_bf16(x->b[r], h);
  }
  for (int l = 0; l < 32; l++) {
    mma_args *x = (mma_args *)slot[l];
    for (int i = 0; i < 4; i++) {
      const int row = l / 4 + 8 * (i >> 1), col = 2 * (l % 4) + (i & 1);
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][col];
      x->c[i] += sum;
    }
  }
}

void emu_mma_m16n8k16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
  mma_args x;
  memcpy(x.c, c, sizeof x.c);
  memcpy(x.a, a, sizeof x.a);
  memcpy(x.b, b, sizeof x.b);
  emu_warp_op(&x, sizeof x, mma, 0);
  memcpy(c, x.c, sizeof x.c);
}

/* PTX ISA, ldmatrix: lanes 8j..8j+7 have the addresses of the rows of 8x8 matrix j; of each, lane
 * l gets elements 2 (l % 4) and the next of row l / 4; transposed: of column l / 4. */
union ldmatrix_args { const void *row; uint32_t r[4]; };
static void ldmatrix(unsigned char (*slot)[EMU_SLOT], int trans)
{
  uint16_t m[4][8][8];
  for (int l = 0; l < 32; l++) {
    const void *row = ((ldmatrix_args *)slot[l])->row;
    if ((uintptr_t)row % 16) emu_stop("ldmatrix: a row that is not aligned to 16 bytes");
    memcpy(m[l / 8][l % 8], row, 16);
  }
  for (int l = 0; l < 32; l++)
    for (int j = 0; j < 4; j++) {
      const int i = l / 4, k = 2 * (l % 4);
      uint32_t lo = trans ? m[j][k][i] : m[j][i][k], hi = trans ? m[j][k + 1][i] : m[j][i][k + 1];
      ((ldmatrix_args *)slot[l])->r[j] = lo | hi << 16;
    }
}

void emu_ldmatrix_x4(uint32_t r[4], const void *row, bool trans)
{
  ldmatrix_args x;
  x.row = row;
  race_read(row, 16, __builtin_return_address(0));
  emu_warp_op(&x, sizeof x, ldmatrix, trans);
  memcpy(r, x.r, sizeof x.r);
}

/* For tests: copies of 16 bytes that kernels have started (t_attn_tiles.c). */
static std::atomic<uint64_t> copies_started;
extern "C" __attribute__((visibility("default"))) uint64_t emu_copies_started(void);
uint64_t emu_copies_started(void) { return copies_started; }

void emu_cp_async(void *dst, const void *src, bool take)
{
  copies_started.fetch_add(1, std::memory_order_relaxed);
  if ((uintptr_t)dst % 16 || (take && (uintptr_t)src % 16)) emu_stop("cp.async: not aligned");
  if (take) race_read(src, 16, __builtin_return_address(0));
  race_write(dst, 16, __builtin_return_address(0));
  now->copies.push_back({ dst, src, take, now->group });
}

void emu_cp_async_commit(void) { now->group++; }

void emu_cp_async_wait(int groups_left)
{
  std::vector<copy> later;
  for (const copy &c : now->copies) {
    if (c.group >= now->group - groups_left) {
      later.push_back(c);
      continue;
    }
    if (c.take) race_read(c.src, 16, __builtin_return_address(0));
    race_write(c.dst, 16, __builtin_return_address(0));
    if (c.take) {
      memcpy(c.dst, c.src, 16);
    } else {
      memset(c.dst, 0, 16);
    }
  }
  now->copies.swap(later);
}
