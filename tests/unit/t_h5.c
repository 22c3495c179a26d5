/* t_h5.c - files of slices and views: what HDF5 says is wrong reaches the caller, alone and with MPI. */
#include "io/ckpt.h"
#include "io/h5.h"
#include "tests/unit/tap.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <hdf5.h>
#include <mpi.h>
#include <unistd.h>

/* MPI and hwloc leave memory behind, from modules that are unloaded when leaks are looked for. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return 1; }

/* These take the place of HDF5's own, do what they do, and say that it failed. */
static const char *failing = "";
#define FAILS(type, name, params, args) \
  type name params \
  { \
    union { void *at; type (*call) params; } real = { .at = dlsym(RTLD_NEXT, #name) }; \
    type result = real.call args; \
    return strcmp(failing, #name) ? result : -1; \
  }
FAILS(herr_t, H5Fclose, (hid_t id), (id))
FAILS(herr_t, H5Fflush, (hid_t id, H5F_scope_t scope), (id, scope))
FAILS(herr_t, H5Dclose, (hid_t id), (id))
FAILS(herr_t, H5Awrite, (hid_t id, hid_t type, const void *buf), (id, type, buf))
FAILS(herr_t, H5Aclose, (hid_t id), (id))

static char dir[80], path[100], view[100];
static const int64_t whole[] = { 6, 4 }, start[] = { 2, 0 }, count[] = { 3, 4 };
static struct tc_h5_slice slice[] = {
  { .dataset = "/tensors/w", .dtype = TC_F32, .rank = 2, .global = whole, .start = start, .count = count },
  { .dataset = "/tensors/s", .dtype = TC_F64, .rank = 0 } };

static int lay(const MPI_Comm *comm, struct tc_err *err)
{
  const struct tc_h5_opts o = { .step = 7, .writer = 3, .mpi_comm = comm };
  int fd = -1;
  int64_t size = 0;
  unlink(path);
  int rc = tc_h5_lay(&fd, &size, path, &o, slice, 2, err);
  if (rc < 0) is_int(fd, -1, "... without a descriptor");
  else ok(fd >= 0 && size >= slice[0].offset + 48 && size == lseek(fd, 0, SEEK_END), "... as long as was told");
  if (fd >= 0 && pwrite(fd, "", 1, size - 1) < 0) ok(false, "... and can be written");
  if (fd >= 0) close(fd);
  return rc;
}

static void test_lay(const MPI_Comm *comm, const char *how)
{
  static const char *const call[][2] = { { "H5Fclose", "closing" }, { "H5Fflush", "writing metadata" },
    { "H5Dclose", "writing /tensors/w" }, { "H5Awrite", "writing " }, { "H5Aclose", "writing " } };
  struct tc_err err = { 0 };
  if (is_int(lay(comm, &err), 0, "a file of two slices, %s %s", how, err.text)) {
    is_int(tc_h5_check(path, 7, 3, slice, 2, &err), 0, "... which is as it was asked for %s", err.text);
    is_int(tc_h5_check(path, 8, 3, slice, 2, &err), TC_ECHECKSUM, "... of that step");
    is_int(tc_h5_check(path, 7, 2, slice, 2, &err), TC_ECHECKSUM, "... and writer");
  }
  for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
    failing = call[i][0];
    int rc = lay(comm, &err);
    failing = "";
    ok(rc == TC_EUSER && strstr(err.text, call[i][1]) && strstr(err.text, path), "%s fails, %s: %s", call[i][0],
       how, err.text);
  }
}

static int make_view(struct tc_err *err)
{
  const struct tc_h5_opts o = { .step = 7, .writer = -1 };
  const char *const file[] = { "slices.h5" };
  const struct tc_h5_view v = { .dataset = "/w", .dtype = TC_F32, .rank = 2, .global = whole, .s = slice,
                                .file = file, .n = 1 };
  int64_t size = 0;
  unlink(view);
  return tc_h5_view(&size, view, &o, &v, 1, err);
}

static void test_view(void)
{
  static const char *const call[] = { "H5Fclose", "H5Fflush" };
  struct tc_err err = { 0 };
  is_int(make_view(&err), 0, "a view %s", err.text);
  for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
    failing = call[i];
    int rc = make_view(&err);
    failing = "";
    ok(rc == TC_EUSER && strstr(err.text, "writing the view"), "%s of a view fails: %s", call[i], err.text);
  }
}

/* A checkpoint whose file can't be closed is not saved, and the sentence is that of the file. */
static void test_save(void)
{
  const struct tc_comm_opts o = { .name = "world" };
  float x[4] = { 1, 2, 3, 4 };
  const struct tc_ckpt_tensor t = { "x", TC_F32, 1, { 4 } };
  struct tc_ckpt_slice s = { .tensor = 0, .count = { 4 }, .data = x };
  const struct tc_ckpt_meta meta = { .step = 1, .model = "", .config = "", .mesh = "", .system = "", .job = "1" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_err err = { 0 };
  char *to = tc_sprintf("%s/ckpt", dir), *step = tc_sprintf("%s/step-00000001", to);
  failing = "H5Fclose";
  int rc = tc_ckpt_save(to, &meta, &t, 1, &s, 1, self, &err);
  failing = "";
  ok(rc == TC_EUSER && strstr(err.text, "closing"), "a save whose file can't be closed: %s", err.text);
  ok(access(step, F_OK) < 0, "... leaves no checkpoint");
  is_int(tc_ckpt_save(to, &meta, &t, 1, &s, 1, self, &err), 0, "the next save is good");
  ok(access(step, F_OK) == 0, "... and there");
  tc_comm_free(self);
  free(step);
  free(to);
}

static int remove_entry(const char *name, const struct stat *st, int type, struct FTW *at)
{
  (void)st, (void)type, (void)at;
  return remove(name);
}

int main(int argc, char **argv)
{
  const char *tmp = getenv("TMPDIR");
  const MPI_Comm self = MPI_COMM_SELF;
  snprintf(dir, sizeof dir, "%.40s/t_h5.XXXXXX", tmp ? tmp : "/tmp");
  if (!mkdtemp(dir)) {
    printf("Bail out! no folder in %s\n", dir);
    return 1;
  }
  snprintf(path, sizeof path, "%s/slices.h5", dir);
  snprintf(view, sizeof view, "%s/view.h5", dir);
  alarm(300);
  tc_h5_start();
  test_lay(NULL, "alone");
  test_view();
  test_save();
  if (tc_h5_parallel()) {
    MPI_Init(&argc, &argv);
    test_lay(&self, "with MPI");
    MPI_Finalize();
  } else {
    skip("HDF5 without MPI");
  }
  nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  return done_testing();
}
