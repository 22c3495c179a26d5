/* m_files.c - a file a node: ranks that are MPI processes save together, from a thread of their
 * own, and any box reads back from any rank; one rank's failure is everyone's. Rank 0 prints
 * TAP. Run it under a launcher with any number of ranks, or alone. */
#include <pthread.h>
#include <unistd.h>

#include "io/ckpt/impl.h"
#include "src/comm/mpi.h"
#include "io/folder.h"
#include "tests/unit/tap.h"
#include "tests/unit/verify_step.h"

enum { ROWS = 50, COLS = 300, SMALL = 7 };

struct env {
  struct tc_comm *world;
  int rank, ranks;
  char dir[200];
  int files, fails;
  bool twice;                     /* the last rank has a slice twice: refused at the commit */
  int status;
  struct tc_err err;
};

static const struct tc_ckpt_tensor *tensors(struct env *e, struct tc_ckpt_tensor t[3])
{
  t[0] = (struct tc_ckpt_tensor){ "rows", TC_F32, 2, { ROWS * e->ranks, COLS } };
  t[1] = (struct tc_ckpt_tensor){ "cols", TC_F32, 2, { SMALL, SMALL * e->ranks } };
  t[2] = (struct tc_ckpt_tensor){ "one", TC_F32, 0, { 0 } };
  return t;
}

static float value(int64_t step, int tensor, int64_t flat)
{
  return (float)(step * 1000003 % 977 + tensor * 131 + flat % 65521);
}

/* The box, as it should be. */
static float *box(int64_t step, const struct tc_ckpt_tensor *t, int tensor, const int64_t *start,
                  const int64_t *count)
{
  int64_t n = tc_box_elems(t->rank, count);
  float *x = tc_malloc((size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; i++) {
    int64_t flat = t->rank == 0 ? 0 : (start[0] + i / count[1]) * t->dim[1] + start[1] +
                                      i % count[1];
    x[i] = value(step, tensor, flat);
  }
  return x;
}

static void *save(void *arg)
{
  struct env *e = arg;
  struct tc_ckpt_tensor t[3];
  struct tc_ckpt_slice s[4] = {
    { .tensor = 0, .start = { ROWS * e->rank, 0 }, .count = { ROWS, COLS } },
    { .tensor = 1, .start = { 0, SMALL * e->rank }, .count = { SMALL, SMALL } },
    { .tensor = 2 },
  };
  struct tc_ckpt_meta meta = { .step = 5 + e->twice, .model = "m", .config = "", .mesh = "",
    .system = "", .job = "1", .files = e->files, .view = true, .block_bytes = 4096 };
  int n = e->rank == e->ranks - 1 ? 3 : 2;
  tensors(e, t);
  for (int i = 0; i < n; i++)
    s[i].data = box(meta.step, &t[s[i].tensor], s[i].tensor, s[i].start, s[i].count);
  s[n] = s[1];
  e->status = tc_ckpt_save(e->dir, &meta, t, 3, s, n + (e->twice && n == 3), e->world,
                           &e->err);
  for (int i = 0; i < n; i++) free(s[i].data);
  return NULL;
}

static void check(struct env *e, bool good, const char *what)
{
  int64_t bad = !good;
  struct tc_err err = {0};
  if (tc_comm_max_i64(e->world, &bad, 1, &err) < 0) tc_mpi_abort(8);
  if (e->rank == 0) ok(!bad, "%d ranks: %s", e->ranks, what);
}

/* Boxes that cross the parts of all ranks. */
static int load(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  struct env *e = ctx;
  struct tc_ckpt_tensor t[3];
  const int64_t start[3][2] = { { 3, e->rank }, { e->rank % SMALL, 1 }, { 0, 0 } };
  tensors(e, t);
  for (int i = 0; i < 3; i++) {
    int64_t count[2] = { t[i].dim[0] - start[i][0], t[i].dim[1] - start[i][1] };
    float *want = box(tc_ckpt_meta(c)->step, &t[i], i, start[i], count);
    size_t bytes = (size_t)tc_box_elems(t[i].rank, count) * sizeof *want;
    float *got = tc_calloc(bytes, 1);
    int rc = tc_ckpt_read(c, tc_ckpt_find(c, t[i].name), start[i], count, got, err);
    if (rc == 0 && memcmp(got, want, bytes)) rc = tc_fail(err, TC_EUSER, "wrong values");
    free(got);
    free(want);
    TC_TRY(rc);
  }
  return 0;
}

static void save_in_thread(struct env *e)
{
  pthread_t thread;
  e->status = 0;
  TC_ASSERT(pthread_create(&thread, NULL, save, e) == 0);
  pthread_join(thread, NULL);
}

/* Node files of a step: how many; -1 if other data files are there. */
static int node_files(struct env *e)
{
  char *path = tc_ckpt_step_path(e->dir, 5), **names;
  int n = tc_folder_scan(path, "node-", &names, NULL);
  tc_names_free(names, n);
  int others = tc_folder_scan(path, "rank-", &names, NULL);
  tc_names_free(names, others);
  free(path);
  return others == 0 ? n : -1;
}

static void cases(struct env *e)
{
  struct tc_ckpt *c = NULL;
  struct tc_err err = {0};
  e->files = TC_FILES_NODE;
  save_in_thread(e);
  if (e->status < 0) printf("# rank %d: %s\n", e->rank, e->err.text);
  check(e, e->status == 0, "saved together, from a thread");
  check(e, node_files(e) == (e->ranks > 1 ? 1 : -1), "in one file (alone: in a rank's)");
  char *path = tc_ckpt_step_path(e->dir, 5);
  check(e, verify_step(path, true, &err) == 0, "it verifies");
  if (err.status < 0) printf("# %s\n", err.text);
  int rc = tc_ckpt_load(&c, e->dir, -1, load, e, e->world, NULL, &err);
  if (rc < 0) printf("# %s\n", err.text);
  check(e, rc == 0 && c, "and loads, boxes over all ranks");
  tc_ckpt_close(c);
  e->twice = true;
  save_in_thread(e);
  check(e, e->status == TC_EUSER && strstr(e->err.text, "overlap"),
        "what doesn't fit together is refused by all");
  e->twice = false;
  e->files = TC_FILES_RANK;
  save_in_thread(e);
  check(e, e->status == 0 && node_files(e) == -1, "the same step again, a file a rank");
  rc = tc_ckpt_load(&c, e->dir, 5, load, e, e->world, NULL, &err);
  check(e, rc == 0, "which loads too");
  tc_ckpt_close(c);
  free(path);
}

int main(void)
{
  struct env e = { .rank = 0 };
  struct tc_err err = {0};
  alarm(550);
  if (tc_mpi_start(&e.rank, &e.ranks, &err) < 0) tc_mpi_abort(2);
  int32_t *member = tc_calloc((size_t)e.ranks, sizeof *member);
  for (int i = 0; i < e.ranks; i++) member[i] = i;
  struct tc_comm_opts o = { .name = "world", .deadline_s = 60 };
  if (tc_comm_mpi(&e.world, 0, member, e.ranks, &o, &err) < 0) tc_mpi_abort(2);
  const char *tmp = getenv("TMPDIR");
  void *name = e.dir;
  int64_t bytes = sizeof e.dir;
  snprintf(e.dir, sizeof e.dir, "%.150s/m_files.XXXXXX", tmp ? tmp : "/tmp");
  if (e.rank == 0) TC_ASSERT(mkdtemp(e.dir) != NULL);
  if (tc_comm_bytes_bcast(e.world, 0, &name, &bytes, &err) < 0) tc_mpi_abort(8);
  if (e.rank > 0) {
    memcpy(e.dir, name, sizeof e.dir);
    free(name);
  }
  cases(&e);
  int64_t done = 0;
  if (tc_comm_max_i64(e.world, &done, 1, &err) < 0) tc_mpi_abort(8);
  int rc = 0;
  if (e.rank == 0) {
    char *cmd = tc_sprintf("rm -rf '%s'", e.dir);
    rc = system(cmd) != 0;
    free(cmd);
    rc |= done_testing();
  }
  tc_comm_free(e.world);
  free(member);
  tc_mpi_finish();
  return rc;
}
