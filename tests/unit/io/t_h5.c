/* t_h5.c - files of slices and views: what HDF5 says is wrong reaches the caller, alone and with MPI. */
#include "io/ckpt/ckpt.h"
#include "io/ckpt/h5.h"
#include "tests/unit/tap.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <hdf5.h>
#include <mpi.h>
#include <unistd.h>

/* MPI and hwloc leave memory behind, from modules that are unloaded when leaks are looked for. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return 1; }

/* These take the place of HDF5's own, do what they do, and say that it failed; what makes something
 * does not make it. `left` is what was made and not closed again. */
static const char *failing = "";
static int fail_nth, calls, left;           /* fail_nth 0: each call */

static bool fails_now(const char *name)
{
  return !strcmp(failing, name) && (!fail_nth || ++calls == fail_nth);
}
#define REAL(type, name, params) \
  union { void *at; type (*call) params; } real = { .at = dlsym(RTLD_NEXT, #name) }
#define FAILS(type, name, params, args) \
  type name params \
  { \
    REAL(type, name, params); \
    type result = real.call args; \
    return fails_now(#name) ? -1 : result; \
  }
#define MAKES(name, params, args) \
  hid_t name params \
  { \
    REAL(hid_t, name, params); \
    hid_t result = fails_now(#name) ? -1 : real.call args; \
    left += result >= 0; \
    return result; \
  }
#define CLOSES(name) \
  herr_t name(hid_t id) \
  { \
    REAL(herr_t, name, (hid_t)); \
    herr_t result = real.call(id); \
    left -= result >= 0; \
    return fails_now(#name) ? -1 : result; \
  }
CLOSES(H5Fclose)
CLOSES(H5Dclose)
CLOSES(H5Aclose)
CLOSES(H5Sclose)
CLOSES(H5Gclose)
CLOSES(H5Tclose)
CLOSES(H5Pclose)
MAKES(H5Fcreate, (const char *name, unsigned flags, hid_t make, hid_t use), (name, flags, make, use))
MAKES(H5Fopen, (const char *name, unsigned flags, hid_t use), (name, flags, use))
MAKES(H5Gopen2, (hid_t at, const char *name, hid_t use), (at, name, use))
MAKES(H5Tcopy, (hid_t type), (type))
MAKES(H5Screate, (H5S_class_t kind), (kind))
MAKES(H5Screate_simple, (int rank, const hsize_t *dim, const hsize_t *most), (rank, dim, most))
MAKES(H5Pcreate, (hid_t kind), (kind))
MAKES(H5Acreate2, (hid_t at, const char *name, hid_t type, hid_t space, hid_t make, hid_t use),
      (at, name, type, space, make, use))
MAKES(H5Aopen, (hid_t at, const char *name, hid_t use), (at, name, use))
MAKES(H5Aget_space, (hid_t attr), (attr))
MAKES(H5Dopen2, (hid_t at, const char *name, hid_t use), (at, name, use))
MAKES(H5Dget_type, (hid_t set), (set))
MAKES(H5Dget_space, (hid_t set), (set))
MAKES(H5Dget_create_plist, (hid_t set), (set))
MAKES(H5Dcreate2, (hid_t at, const char *name, hid_t type, hid_t space, hid_t link, hid_t make, hid_t use),
      (at, name, type, space, link, make, use))
FAILS(herr_t, H5Fflush, (hid_t id, H5F_scope_t scope), (id, scope))
FAILS(herr_t, H5Awrite, (hid_t id, hid_t type, const void *buf), (id, type, buf))
FAILS(herr_t, H5Aread, (hid_t id, hid_t type, void *buf), (id, type, buf))
FAILS(htri_t, H5Aexists, (hid_t id, const char *name), (id, name))
FAILS(htri_t, H5Tequal, (hid_t a, hid_t b), (a, b))
FAILS(herr_t, H5Tset_fields, (hid_t t, size_t a, size_t b, size_t c, size_t d, size_t e), (t, a, b, c, d, e))
FAILS(herr_t, H5Tset_precision, (hid_t t, size_t n), (t, n))
FAILS(herr_t, H5Tset_size, (hid_t t, size_t n), (t, n))
FAILS(herr_t, H5Tset_ebias, (hid_t t, size_t n), (t, n))
FAILS(herr_t, H5Pset_fapl_sec2, (hid_t p), (p))
FAILS(herr_t, H5Pset_libver_bounds, (hid_t p, H5F_libver_t a, H5F_libver_t b), (p, a, b))
FAILS(herr_t, H5Pset_alignment, (hid_t p, hsize_t a, hsize_t b), (p, a, b))
FAILS(herr_t, H5Pset_meta_block_size, (hid_t p, hsize_t n), (p, n))
FAILS(herr_t, H5Pset_small_data_block_size, (hid_t p, hsize_t n), (p, n))
FAILS(herr_t, H5Pset_fclose_degree, (hid_t p, H5F_close_degree_t n), (p, n))
FAILS(herr_t, H5Pset_layout, (hid_t p, H5D_layout_t n), (p, n))
FAILS(herr_t, H5Pset_fill_time, (hid_t p, H5D_fill_time_t n), (p, n))
FAILS(herr_t, H5Pset_alloc_time, (hid_t p, H5D_alloc_time_t n), (p, n))
FAILS(herr_t, H5Pset_create_intermediate_group, (hid_t p, unsigned n), (p, n))
FAILS(herr_t, H5Lcreate_external, (const char *file, const char *to, hid_t at, const char *name, hid_t link,
      hid_t use), (file, to, at, name, link, use))

/* Room on the disk, files cut to their length and flushed to disk: the first `room.times` calls of
 * `room.call` fail so. */
static struct { const char *call; int why, times, asked, mode, cut, synced; int64_t at, bytes; } room;

static bool no_room(const char *call)
{
  if (!room.call || strcmp(room.call, call) || room.times-- <= 0) return false;
  errno = room.why;
  return true;
}

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
  REAL(int, fallocate, (int, int, off_t, off_t));
  room.asked++;
  room.mode = mode;
  room.at = at;
  room.bytes = bytes;
  return no_room("fallocate") ? -1 : real.call(fd, mode, at, bytes);
}

extern char __executable_start, etext;

int ftruncate(int fd, off_t bytes)                    /* HDF5's own calls are not looked at */
{
  REAL(int, ftruncate, (int, off_t));
  const char *from = __builtin_return_address(0);
  if (from < &__executable_start || from >= &etext) return real.call(fd, bytes);
  room.cut++;
  return no_room("ftruncate") ? -1 : real.call(fd, bytes);
}

int fsync(int fd)
{
  (void)fd;
  room.synced++;
  return no_room("fsync") ? -1 : 0;
}

static char dir[80], path[100], view[100];
static const int64_t whole[] = { 6, 4 }, start[] = { 2, 0 }, count[] = { 3, 4 };
static struct tc_h5_slice slice[] = {
  { .dataset = "/tensors/w", .dtype = TC_F32, .rank = 2, .global = whole, .start = start, .count = count },
  { .dataset = "/tensors/s", .dtype = TC_F64, .rank = 0 },
  { .dataset = "/tensors/h", .dtype = TC_BF16, .rank = 2, .global = whole, .start = start, .count = count } };

static int lay(const MPI_Comm *comm, struct tc_err *err)
{
  const struct tc_h5_opts o = { .step = 7, .writer = 3, .mpi_comm = comm };
  int fd = 1000;
  int64_t size = 0;
  unlink(path);
  int rc = tc_h5_lay(&fd, &size, path, &o, slice, 3, err);
  if (rc < 0) is_int(fd, -1, "... without a descriptor");
  else
    ok(fd >= 0 && size >= slice[0].offset + 48 && size == lseek(fd, 0, SEEK_END),
       "... has the size that is returned");
  if (fd >= 0 && pwrite(fd, "", 1, size - 1) < 0) ok(false, "... and can be written");
  if (fd >= 0) close(fd);
  return rc;
}

static void test_lay(const MPI_Comm *comm, const char *how)
{
  static const char *const call[][2] = { { "H5Fclose", "closing" }, { "H5Fflush", "writing metadata" },
    { "H5Dclose", "writing /tensors/w" }, { "H5Awrite", "writing " }, { "H5Aclose", "writing " } };
  struct tc_err err = { 0 };
  if (is_int(lay(comm, &err), 0, "a file of three slices, %s %s", how, err.text)) {
    is_int(tc_h5_check(path, 7, 3, slice, 3, &err), 0, "... which is as it was asked for %s", err.text);
    is_int(tc_h5_check(path, 8, 3, slice, 3, &err), TC_ECHECKSUM, "... of that step");
    is_int(tc_h5_check(path, 7, 2, slice, 3, &err), TC_ECHECKSUM, "... and writer");
  }
  for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
    failing = call[i][0];
    int rc = lay(comm, &err);
    failing = "";
    ok(rc == TC_EUSER && strstr(err.text, call[i][1]) && strstr(err.text, path), "%s fails, %s: %s",
       call[i][0], how, err.text);
  }
}

#define NO_ROOM(why)                                                                                \
  "no room for its 4.1 KB: " why "; make room or choose another folder (ckpt.dir)"

/* Room on the disk is reserved before anything is written, where the file system can do so; what
 * is not needed of it is given back. */
static void test_room(void)
{
  static const struct {
    int64_t bytes;
    const char *call;
    int why, times, asked, cut;
    const char *says;
  } c[] = {
    { 0, NULL, 0, 0, 0, 0, NULL }, { -1, NULL, 0, 0, 0, 0, NULL }, { 1, NULL, 0, 0, 1, 1, NULL },
    { 1 << 20, NULL, 0, 0, 1, 1, NULL }, { 4096, "fallocate", EINTR, 2, 3, 1, NULL },
    { 4096, "fallocate", EOPNOTSUPP, 1, 1, 1, NULL }, { 4096, "fallocate", EINVAL, 1, 1, 1, NULL },
    { 4096, "fallocate", ENOSPC, 1, 1, 0, NO_ROOM("No space left on device") },
    { 4096, "fallocate", EDQUOT, 1, 1, 0, NO_ROOM("Disk quota exceeded") },
    { 4096, "fallocate", EFBIG, 1, 1, 0, NO_ROOM("File too large") },
    { 4096, "ftruncate", EIO, 1, 1, 1, "can't be flushed to disk: Input/output error" } };
  const int lowest = dup(1);
  close(lowest);
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    const struct tc_h5_opts o = { .step = 7, .writer = 3, .reserve_bytes = c[i].bytes };
    struct tc_err err = { .text = "" };
    int64_t size = -1;
    int fd = 1000;
    unlink(path);
    memset(&room, 0, sizeof room);
    room.call = c[i].call, room.why = c[i].why, room.times = c[i].times;
    is_int(tc_h5_lay(&fd, &size, path, &o, slice, 3, &err), c[i].says ? TC_EUSER : 0, "room for %lld bytes",
           (long long)c[i].bytes);
    char *want = c[i].says ? tc_sprintf("%s: %s", path, c[i].says) : tc_strdup("");
    is_str(err.text, want, "... in these words");
    free(want);
    is_int(room.asked, c[i].asked, "... so often reserved");
    ok(!room.asked || (room.mode == FALLOC_FL_KEEP_SIZE && room.at == 0 && room.bytes == c[i].bytes),
       "... from the beginning, without making it longer");
    is_int(room.cut, c[i].cut, "... and cut to its size, or not");
    ok(c[i].says ? fd == -1 : fd >= 0 && size == lseek(fd, 0, SEEK_END), "... with a descriptor or none");
    if (fd >= 0) close(fd);
    const int now = dup(1);
    close(now);
    is_int(now, lowest, "... which alone stays open");
  }
  memset(&room, 0, sizeof room);
}

static int make_view(struct tc_err *err)
{
  const struct tc_h5_opts o = { .step = 7, .writer = -1 };
  const char *const file[] = { "slices.h5" };
  const struct tc_h5_view v[] = {
    { .dataset = "/w", .dtype = TC_F32, .rank = 2, .global = whole, .s = slice, .file = file, .n = 1 },
    { .dataset = "/s", .dtype = TC_F64, .rank = 0, .s = slice + 1, .file = file, .n = 1 } };
  int64_t size = 0;
  unlink(view);
  return tc_h5_view(&size, view, &o, v, 2, err);
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
  const int lowest = dup(1);
  close(lowest);
  for (int fails = 0; fails <= 1; fails++) {
    memset(&room, 0, sizeof room);
    room.call = "fsync", room.why = EIO, room.times = fails;
    is_int(make_view(&err), fails ? TC_EUSER : 0, "a view that can't be flushed to disk, %d", fails);
    ok(room.synced == 1 && room.cut == 0 && room.asked == 0, "... is as long as it is");
    const int now = dup(1);
    close(now);
    is_int(now, lowest, "... and closed");
  }
  char *want = tc_sprintf("%s: can't be flushed to disk: Input/output error", view);
  is_str(err.text, want, "... in these words");
  free(want);
}

/* The second to the twelfth call fails. */
static void test_later_calls(const char *call)
{
  int open = 0;
  for (fail_nth = 2; fail_nth <= 12; fail_nth++) {
    struct tc_err err;
    failing = call;
    left = calls = 0;
    lay(NULL, &err);
    calls = 0;
    tc_h5_check(path, 7, 3, slice, 3, &err);
    calls = 0;
    make_view(&err);
    failing = "";
    open += left != 0;
  }
  is_int(open, 0, "later failures of %s leave nothing open", call);
}

/* What a failure of the first call of each makes of a file laid out, of its check and of a view; NULL: it
 * changes nothing there. Whatever fails, everything that was made is closed again. */
#define SETUP "setting up HDF5"
#define OF_W "writing /tensors/w"
#define OF_VIEW "writing the view"
#define ATTRS "writing attributes"
#define OPENING "opening with HDF5"
#define OF_WHOM "its attributes are not"
#define OF_TYPE "dataset /tensors/w is not what the manifest says: type"
static const struct { const char *call, *lay, *check, *view; } each_call[] = {
  { "H5Pcreate", SETUP, OPENING, OF_VIEW }, { "H5Pset_fapl_sec2", SETUP, OPENING, OF_VIEW },
  { "H5Pset_libver_bounds", SETUP, OPENING, OF_VIEW }, { "H5Pset_alignment", SETUP, OPENING, OF_VIEW },
  { "H5Pset_meta_block_size", SETUP, OPENING, OF_VIEW },
  { "H5Pset_small_data_block_size", SETUP, OPENING, OF_VIEW },
  { "H5Pset_fclose_degree", SETUP, OPENING, OF_VIEW },
  { "H5Fcreate", "creating the file", NULL, OF_VIEW }, { "H5Fopen", NULL, OPENING, NULL },
  { "H5Gopen2", ATTRS, OF_WHOM, OF_VIEW }, { "H5Gclose", ATTRS, NULL, OF_VIEW },
  { "H5Screate_simple", ATTRS, NULL, OF_VIEW }, { "H5Acreate2", ATTRS, NULL, OF_VIEW },
  { "H5Awrite", ATTRS, NULL, OF_VIEW }, { "H5Aclose", ATTRS, NULL, OF_VIEW },
  { "H5Sclose", ATTRS, NULL, OF_VIEW }, { "H5Tcopy", OF_W, OF_TYPE, OF_VIEW },
  { "H5Pset_layout", OF_W, NULL, NULL }, { "H5Pset_fill_time", OF_W, NULL, NULL },
  { "H5Pset_alloc_time", OF_W, NULL, NULL }, { "H5Dcreate2", OF_W, NULL, OF_VIEW },
  { "H5Dclose", OF_W, NULL, OF_VIEW },
  { "H5Pset_create_intermediate_group", OF_W, NULL, OF_VIEW },
  { "H5Screate", "writing /tensors/s", NULL, NULL }, { "H5Fflush", "writing metadata", NULL, OF_VIEW },
  { "H5Fclose", "closing", NULL, OF_VIEW }, { "H5Aexists", NULL, OF_WHOM, NULL },
  { "H5Aopen", NULL, OF_WHOM, NULL }, { "H5Aget_space", NULL, OF_WHOM, NULL },
  { "H5Aread", NULL, OF_WHOM, NULL },
  { "H5Dopen2", NULL, "dataset /tensors/w is not what the manifest says: it is not there", NULL },
  { "H5Dget_type", NULL, OF_TYPE, NULL }, { "H5Tequal", NULL, OF_TYPE, NULL },
  { "H5Dget_space", NULL, "dataset /tensors/w is not what the manifest says: number of dimensions", NULL },
  { "H5Dget_create_plist", NULL, "dataset /tensors/w is not what the manifest says: layout", NULL },
  { "H5Tset_fields", "writing /tensors/h", "dataset /tensors/h is not what the manifest says: type", NULL },
  { "H5Tset_precision", "writing /tensors/h", "/tensors/h", NULL },
  { "H5Lcreate_external", NULL, NULL, OF_VIEW },
  { "H5Tset_size", "writing /tensors/h", "/tensors/h", NULL },
  { "H5Tset_ebias", "writing /tensors/h", "/tensors/h", NULL } };

static void test_each_call(void)
{
  fail_nth = 1;
  for (size_t i = 0; i < sizeof each_call / sizeof *each_call; i++) {
    const char *const want[] = { each_call[i].lay, each_call[i].check, each_call[i].view };
    for (int k = 0; k < 3; k++) {
      struct tc_err err = { .text = "" };
      const int status = !want[k] ? 0 : k == 1 ? TC_ECHECKSUM : TC_EUSER;
      if (k == 1) lay(NULL, &err);
      left = calls = 0;
      failing = each_call[i].call;
      const int rc = k == 0   ? lay(NULL, &err)
                     : k == 1 ? tc_h5_check(path, 7, 3, slice, 3, &err)
                              : make_view(&err);
      failing = "";
      is_int(rc, status, "%s fails in %s", each_call[i].call,
             k == 0 ? "a file" : k == 1 ? "a check" : "a view");
      const char *file = k == 2 ? view : path;
      ok(!want[k] || (!strncmp(err.text, file, strlen(file)) && strstr(err.text, want[k])),
         "... with the message %s: %s", want[k] ? want[k] : "of none", err.text);
      is_int(left, 0, "... nothing stays open");
    }
  }
  for (size_t i = 0; i < sizeof each_call / sizeof *each_call; i++) test_later_calls(each_call[i].call);
  fail_nth = 0;
}

/* What a check says of a dataset that is not as it should be. */
static void test_differs(void)
{
  static const int64_t other[] = { 6, 5 }, shape[] = { 3, 5 };
  static const char *const want[] = { "it is not there", "type", "number of dimensions", "shape",
                                      "global_shape", "start", "place in the file" };
  struct tc_err err = { 0 };
  is_int(lay(NULL, &err), 0, "a file of three slices");
  for (int i = 0; i < 7; i++) {
    struct tc_h5_slice s = slice[0];
    if (i == 0) s.dataset = "/tensors/v";
    if (i == 1) s.dtype = TC_I32;
    if (i == 2) s.rank = 1;
    if (i == 3) s.count = shape;
    if (i == 4) s.global = other;
    if (i == 5) s.start = other;
    if (i == 6) s.offset++;
    is_int(tc_h5_check(path, 7, 3, &s, 1, &err), TC_ECHECKSUM, "a slice that differs");
    char *all = tc_sprintf("%s: dataset %s is not what the manifest says: %s", path, s.dataset, want[i]);
    is_str(err.text, all, "... is named");
    free(all);
  }
  is_int(tc_h5_check(path, 8, 3, slice, 3, &err), TC_ECHECKSUM, "another step");
  char *all = tc_sprintf("%s: its attributes are not those of writer 3 of step 8", path);
  is_str(err.text, all, "... is reported");
  free(all);
}

/* What any program finds with HDF5: bfloat16, and no times, fill values or late allocation. */
static void test_kept(void)
{
  struct tc_err err = { 0 };
  is_int(lay(NULL, &err), 0, "a file of three slices");
  const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, "/tensors/h", H5P_DEFAULT);
  const hid_t type = H5Dget_type(set), made = H5Dget_create_plist(set);
  size_t f[5] = { 0 };
  H5D_fill_time_t fill = H5D_FILL_TIME_ERROR;
  H5D_alloc_time_t when = H5D_ALLOC_TIME_ERROR;
  hbool_t times = 1;
  H5Tget_fields(type, &f[0], &f[1], &f[2], &f[3], &f[4]);
  ok(f[0] == 15 && f[1] == 7 && f[2] == 8 && f[3] == 0 && f[4] == 7, "bfloat16: sign, exponent, mantissa");
  ok(H5Tget_size(type) == 2 && H5Tget_precision(type) == 16 && H5Tget_ebias(type) == 127,
     "... size and bias");
  H5Pget_fill_time(made, &fill);
  H5Pget_alloc_time(made, &when);
  H5Pget_obj_track_times(made, &times);
  ok(fill == H5D_FILL_TIME_NEVER && when == H5D_ALLOC_TIME_EARLY && !times, "how it was made");
  H5Pclose(made);
  H5Tclose(type);
  H5Dclose(set);
  H5Fclose(file);
}

/* A checkpoint whose file can't be closed is not saved, and the sentence is that of the file. */
static void test_save(void)
{
  const struct tc_comm_opts o = { .name = "world" };
  float x[4] = { 1, 2, 3, 4 };
  const struct tc_ckpt_tensor t = { "x", TC_F32, 1, { 4 } };
  struct tc_ckpt_slice s = { .tensor = 0, .count = { 4 }, .data = x };
  const struct tc_ckpt_meta meta = { .step = 1, .model = "", .config = "", .mesh = "", .system = "",
                                     .job = "1" };
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
  test_room();
  test_view();
  test_each_call();
  test_differs();
  test_kept();
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
