/* ckpt_bench.c - how fast checkpoints are saved and loaded, by ranks that are MPI processes.
 *
 *   mpirun -n 2 ckpt_bench DIR MIB_PER_RANK [SAVES] [rank|node] [cold]
 *
 * Each rank has MIB_PER_RANK of fp32 in tensors of 64 MiB and a hundred small ones, split by rows
 * among the ranks. Rank 0 prints "save N MiB/s load N MiB/s": the best of SAVES (3) saves, each
 * from the call until all ranks know of the commit, and one load of the last, every value
 * looked at afterwards. cold: the files leave the page cache before. Old steps are removed
 * between the saves, outside of what is timed. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/ckpt/ckpt.h"
#include "src/comm/mpi.h"

enum { SMALL = 100, SMALL_ROWS = 384, COLS = 1024, MOST = 4096 };

struct bench {
  struct tc_comm *world;
  int rank, ranks, n;
  struct tc_ckpt_tensor tensor[MOST];
  struct tc_ckpt_slice slice[MOST];
  char name[MOST][24];
  const char *dir;
  struct tc_ckpt_meta meta;
};

static void die(const struct tc_err *err)
{
  fprintf(stderr, "ckpt_bench: %s\n", err->text);
  tc_mpi_abort(2);
}

static uint32_t value(int tensor, int64_t i)
{
  return (uint32_t)(((uint64_t)tensor << 40 ^ (uint64_t)i) * 0x9e3779b97f4a7c15u >> 32);
}

static int64_t elems(const struct tc_ckpt_slice *s) { return s->count[0] * s->count[1]; }

/* Rows of tensor i: small ones have a row a rank. */
static void add_tensor(struct bench *b, int64_t rows_a_rank, int64_t cols)
{
  int i = b->n++;
  TC_ASSERT(b->n <= MOST);
  snprintf(b->name[i], sizeof b->name[i], "t%d.weight", i);
  b->tensor[i] = (struct tc_ckpt_tensor){ .name = b->name[i], .dtype = TC_F32, .rank = 2,
                                          .dim = { rows_a_rank * b->ranks, cols } };
  b->slice[i] = (struct tc_ckpt_slice){ .tensor = i, .start = { rows_a_rank * b->rank, 0 },
                                        .count = { rows_a_rank, cols } };
  uint32_t *x = tc_malloc((size_t)(rows_a_rank * cols) * sizeof *x);
  for (int64_t k = 0; k < rows_a_rank * cols; k++)
    x[k] = value(i, b->slice[i].start[0] * cols + k);
  b->slice[i].data = x;
}

static int load(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  struct bench *b = ctx;
  for (int i = 0; i < b->n; i++)
    TC_TRY(tc_ckpt_read(c, tc_ckpt_find(c, b->name[i]), b->slice[i].start, b->slice[i].count,
                        b->slice[i].data, err));
  return 0;
}

/* All ranks are here. */
static void meet(struct bench *b)
{
  struct tc_err err = {0};
  int64_t x = 0;
  if (tc_comm_max_i64(b->world, &x, 1, &err) < 0) die(&err);
}

/* Removes a step's files, or drops them from the page cache. */
static void each_file(const char *dir, int64_t step, bool drop)
{
  char *path = tc_ckpt_step_path(dir, step);
  DIR *d = opendir(path);
  struct dirent *e;
  while (d && (e = readdir(d))) {
    if (e->d_name[0] == '.') continue;
    char *file = tc_sprintf("%s/%s", path, e->d_name);
    int fd = drop ? open(file, O_RDONLY) : -1;
    if (fd >= 0) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (fd >= 0) close(fd);
    if (!drop) unlink(file);
    free(file);
  }
  if (d) closedir(d);
  if (!drop) rmdir(path);
  free(path);
}

static double save(struct bench *b, int64_t step)
{
  struct tc_err err = {0};
  meet(b);
  int64_t t0 = tc_now_ns();
  b->meta.step = step;
  if (tc_ckpt_save(b->dir, &b->meta, b->tensor, b->n, b->slice, b->n, b->world, &err) < 0)
    die(&err);
  double s = (double)(tc_now_ns() - t0) * 1e-9;
  meet(b);
  return s;
}

static double load_all(struct bench *b, bool cold)
{
  struct tc_err err = {0};
  struct tc_ckpt *c = NULL;
  int64_t wrong = 0;
  for (int i = 0; i < b->n; i++) memset(b->slice[i].data, 0x55, (size_t)elems(&b->slice[i]) * 4);
  if (cold && b->rank == 0) each_file(b->dir, b->meta.step, true);
  meet(b);
  int64_t t0 = tc_now_ns();
  if (tc_ckpt_load(&c, b->dir, -1, load, b, b->world, NULL, &err) < 0) die(&err);
  double s = (double)(tc_now_ns() - t0) * 1e-9;
  tc_ckpt_close(c);
  for (int i = 0; i < b->n; i++)
    for (int64_t k = 0; k < elems(&b->slice[i]); k++)
      wrong += ((uint32_t *)b->slice[i].data)[k] !=
               value(i, b->slice[i].start[0] * b->slice[i].count[1] + k);
  if (wrong) {
    tc_fail(&err, TC_ECHECKSUM, "%lld values are wrong", (long long)wrong);
    die(&err);
  }
  return s;
}

int main(int argc, char **argv)
{
  static struct bench b;
  struct tc_err err = {0};
  int64_t mib = argc > 2 ? atoll(argv[2]) : 0;
  int saves = argc > 3 ? atoi(argv[3]) : 3;
  if (mib < 1 || saves < 1) {
    fprintf(stderr, "usage: ckpt_bench DIR MIB_PER_RANK [SAVES] [rank|node] [cold]\n");
    return 2;
  }
  b.dir = argv[1];
  if (tc_mpi_start(&b.rank, &b.ranks, &err) < 0) die(&err);
  int32_t *member = tc_calloc((size_t)b.ranks, sizeof *member);
  for (int i = 0; i < b.ranks; i++) member[i] = i;
  struct tc_comm_opts o = { .name = "world" };
  if (tc_comm_mpi(&b.world, 0, member, b.ranks, &o, &err) < 0) die(&err);
  b.meta = (struct tc_ckpt_meta){ .model = "bench", .config = "", .mesh = "", .system = "",
                                  .job = "", .files = argc > 4 && !strcmp(argv[4], "node") };
  int64_t left = mib << 20, big = 64 << 20, bytes = 0;
  for (; left > 0; left -= big) add_tensor(&b, TC_MIN(left, big) / (4 * COLS), COLS);
  for (int i = 0; i < SMALL; i++) add_tensor(&b, 1, SMALL_ROWS);
  for (int i = 0; i < b.n; i++) bytes += elems(&b.slice[i]) * 4 * b.ranks;
  double best = 0, total = (double)bytes / (1 << 20);
  for (int i = 1; i <= saves; i++) {
    if (b.rank == 0 && i > 1) each_file(b.dir, i - 1, false);
    double s = save(&b, i);
    if (best == 0 || s < best) best = s;
  }
  double s = load_all(&b, argc > 5 && !strcmp(argv[5], "cold"));
  if (b.rank == 0) {
    printf("save %.0f MiB/s load %.0f MiB/s\n", total / best, total / s);
    each_file(b.dir, saves, false);
  }
  for (int i = 0; i < b.n; i++) free(b.slice[i].data);
  tc_comm_free(b.world);
  free(member);
  tc_mpi_finish();
  return 0;
}
