/* t_ckpt_node.c - ckpt.files = node where the ranks are not the processes of one MPI job, so that
 * it can't be: each rank has a file, before MPI_Init, between it and MPI_Finalize, and after. */
#include <mpi.h>

#include "io/ckpt/h5.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/verify_step.h"

/* MPI and hwloc leave memory behind, from modules that are unloaded when leaks are looked for. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return 1; }

static void *save_node(void *arg)
{
  struct fx_rank *r = arg;
  struct fx_save *f = r->save;
  const struct tc_ckpt_meta meta = { .step = f->step, .model = "", .config = "", .mesh = "",
    .system = "", .job = "", .files = TC_FILES_NODE };
  struct tc_ckpt_slice s[FX_TENSORS + 1];
  int n = fx_slices(s, f->salt, r->rank, f->world);
  f->status[r->rank] = tc_ckpt_save(f->dir, &meta, fx_tensor, FX_TENSORS, s, n, r->world,
                                    &f->err[r->rank]);
  for (int i = 0; i < n; i++) free(s[i].data);
  return NULL;
}

static void test_files(const char *dir, int64_t step, int world, const char *when)
{
  struct fx_save f = { .dir = dir, .step = step, .salt = 3, .world = world };
  struct tc_err err = { .text = "" };
  struct tc_ckpt *c;
  fx_threads(&f, save_node);
  is_int(f.status[0], 0, "saved %s, %d ranks %s", when, world, f.err[0].text);
  char *path = tc_ckpt_step_path(dir, step);
  is_int(fx_count(path, "rank-"), world, "... in one file per rank");
  is_int(fx_count(path, "node-"), 0, "... and no file of a node");
  if (is_int(tc_ckpt_open(&c, path, &err), 0, "... opens %s", err.text)) {
    is_int(c->m->n_files, world, "... with these files alone");
    for (int i = 0; i < c->m->n_files; i++)
      is_int(c->m->file[i].writer, i, "... which is rank %d's", i);
    is_int(fx_read_all(c, 3, &err), 1, "... and is what was saved");
    tc_ckpt_close(c);
  }
  is_int(verify_step(path, true, &err), 0, "... and verifies");
  free(path);
}

int main(int argc, char **argv)
{
  alarm(300);
  tc_h5_start();
  const char *dir = fx_folder();
  for (int world = 1; world <= 4; world *= 2) test_files(dir, world, world, "before MPI begins");
  MPI_Init(&argc, &argv);
  for (int world = 1; world <= 4; world *= 2) test_files(dir, 10 + world, world, "with MPI");
  MPI_Finalize();
  for (int world = 1; world <= 4; world *= 2) test_files(dir, 20 + world, world, "after MPI");
  fx_clean();
  return done_testing();
}
