/* h5.c - HDF5 files of slices: written so that a failing disk is noticed, checked afterwards.
 *
 * - HDF5 forgets a failed write: after "no space left" in H5Dwrite, flush and close return
 *   success and the file has its full size. So (1) the disk is asked for the room before
 *   anything is written, where the file system can do that; (2) every status is looked at,
 *   and one failure spoils the writer for good; (3) the writer opens a descriptor of its own
 *   before the first byte, and fsyncs it after HDF5 has closed: errors of delayed writing
 *   show there; (4) the caller runs tc_h5_check on the closed file, since metadata is only
 *   written at close.
 * - The lock is the program's one variable that is not const: HDF5 is one per process.
 * - Bytes on disk are little-endian, as in memory. */
#include "io/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/graph.h"            /* TC_DIMS */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "checkpoints are written as they lie in memory, which must be little-endian"
#endif

static pthread_mutex_t h5_lock = PTHREAD_MUTEX_INITIALIZER;

enum { WHY_BYTES = 200 };

struct tc_h5w {
  char *path;
  char why[WHY_BYTES];            /* the first failure inside HDF5 */
  hid_t file;
  int fd;                         /* our own descriptor of the same file */
  int64_t call_bytes;
  bool spoiled;
};

static herr_t take_first(unsigned n, const H5E_error2_t *e, void *ctx)
{
  char *text = ctx;
  if (n == 0 && e->desc) {
    const char *mark = "error message = '";
    const char *at = strstr(e->desc, mark);
    at = at ? at + strlen(mark) : e->desc;
    const char *end = strchr(at, '\'');
    snprintf(text, WHY_BYTES, "%.*s", end ? (int)TC_MIN(end - at, 150) : 150, at);
  }
  return 0;
}

/* HDF5 calls this when a call of ours fails, instead of printing: the innermost reason of the
 * first failure is kept (the next call, a mere close, empties the library's error stack). */
static herr_t note_why(hid_t stack, void *why)
{
  if (!*(char *)why) H5Ewalk2(stack, H5E_WALK_UPWARD, take_first, why);
  return 0;
}

/* why[WHY_BYTES] gets the reason of the first failure until unlock_h5. */
static void lock_h5(char *why)
{
  pthread_mutex_lock(&h5_lock);
  H5Eset_auto2(H5E_DEFAULT, note_why, why);
}

static void unlock_h5(void)
{
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
  pthread_mutex_unlock(&h5_lock);
}

static int h5_fail(struct tc_err *err, int status, const char *path, const char *doing,
                   const char *why)
{
  return tc_fail(err, status, "%s: %s failed: %s", path, doing, *why ? why : "unknown reason");
}

/* A type of ours; H5Tclose it. bfloat16 has the upper half of an IEEE fp32's bits. */
static hid_t h5_type(int dtype)
{
  switch (dtype) {
  case TC_F32: return H5Tcopy(H5T_IEEE_F32LE);
  case TC_F64: return H5Tcopy(H5T_IEEE_F64LE);
  case TC_I32: return H5Tcopy(H5T_STD_I32LE);
  case TC_U8: return H5Tcopy(H5T_STD_U8LE);
  default: break;
  }
  TC_ASSERT(dtype == TC_BF16);
  hid_t t = H5Tcopy(H5T_IEEE_F32LE);
  if (t < 0 || H5Tset_fields(t, 15, 7, 8, 0, 7) < 0 || H5Tset_precision(t, 16) < 0 ||
      H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, 127) < 0) {
    if (t >= 0) H5Tclose(t);
    return -1;
  }
  return t;
}

static hid_t h5_space(int rank, const int64_t *count)
{
  hsize_t dim[TC_DIMS];
  if (rank == 0) return H5Screate(H5S_SCALAR);
  for (int d = 0; d < rank; d++) dim[d] = (hsize_t)count[d];
  return H5Screate_simple(rank, dim, NULL);
}

/* An attribute of n 64-bit integers. */
static int put_attr(hid_t obj, const char *name, const int64_t *x, int n)
{
  hsize_t dim = (hsize_t)n;
  hid_t space = H5Screate_simple(1, &dim, NULL);
  if (space < 0) return -1;
  hid_t a = H5Acreate2(obj, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
  int rc = a < 0 ? -1 : 0;
  if (a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, x) < 0) rc = -1;
  if (a >= 0 && H5Aclose(a) < 0) rc = -1;
  if (H5Sclose(space) < 0) rc = -1;
  return rc;
}

/* Properties of files: serial driver, newest format (its metadata has checksums), data of
 * 64 KiB and more on page borders, no file locks (many cluster file systems lack them; who
 * writes is settled by the temporary folder's name). */
static hid_t file_props(void)
{
  hid_t p = H5Pcreate(H5P_FILE_ACCESS);
  if (p < 0) return -1;
  int rc = 0;
  if (H5Pset_fapl_sec2(p) < 0) rc = -1;
  if (H5Pset_libver_bounds(p, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) < 0) rc = -1;
  if (H5Pset_alignment(p, 65536, 4096) < 0) rc = -1;
  if (H5Pset_fclose_degree(p, H5F_CLOSE_STRONG) < 0) rc = -1;
#if H5_VERSION_GE(1, 10, 7)
  if (H5Pset_file_locking(p, 0, 1) < 0) rc = -1;
#endif
  if (rc < 0) H5Pclose(p);
  return rc < 0 ? -1 : p;
}

static int reserve(struct tc_h5w *w, int64_t bytes, struct tc_err *err)
{
  if (bytes <= 0) return 0;
  int rc;
  do rc = fallocate(w->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
  while (rc < 0 && errno == EINTR);
  if (rc == 0 || (errno != ENOSPC && errno != EDQUOT && errno != EFBIG)) return 0;
  char room[32];
  int why = errno;
  return tc_fail(err, TC_EUSER, "%s: no room for its %s: %s; make room or choose another "
                 "folder (ckpt.dir)", w->path, tc_human_bytes(room, sizeof room, (double)bytes),
                 strerror(why));
}

static int create(struct tc_h5w *w, const struct tc_h5_opts *o, struct tc_err *err)
{
  hid_t props = file_props();
  if (props < 0) return h5_fail(err, TC_EUSER, w->path, "setting up HDF5", w->why);
  w->file = H5Fcreate(w->path, H5F_ACC_EXCL, H5P_DEFAULT, props);
  H5Pclose(props);
  if (w->file < 0) return h5_fail(err, TC_EUSER, w->path, "creating the file", w->why);
  w->fd = open(w->path, O_RDWR | O_CLOEXEC);
  if (w->fd < 0) return tc_fail(err, TC_EUSER, "%s: %s", w->path, strerror(errno));
  TC_TRY(reserve(w, o->reserve_bytes, err));
  int64_t format = TC_H5_FORMAT, writer = o->writer;
  hid_t root = H5Gopen2(w->file, "/", H5P_DEFAULT);
  int rc = root < 0 ? -1 : 0;
  if (rc == 0 && put_attr(root, "tercio_format", &format, 1) < 0) rc = -1;
  if (rc == 0 && put_attr(root, "step", &o->step, 1) < 0) rc = -1;
  if (rc == 0 && put_attr(root, "writer", &writer, 1) < 0) rc = -1;
  if (root >= 0 && H5Gclose(root) < 0) rc = -1;
  return rc < 0 ? h5_fail(err, TC_EUSER, w->path, "writing attributes", w->why) : 0;
}

int tc_h5w_open(struct tc_h5w **out, const char *path, const struct tc_h5_opts *o,
                struct tc_err *err)
{
  struct tc_h5w *w = tc_calloc(1, sizeof *w);
  *out = NULL;
  w->path = tc_strdup(path);
  w->file = -1;
  w->fd = -1;
  w->call_bytes = o->call_bytes > 0 ? o->call_bytes : INT64_C(1) << 30;
  lock_h5(w->why);
  int rc = create(w, o, err);
  unlock_h5();
  if (rc < 0) {
    w->spoiled = true;
    tc_h5w_close(w, NULL, NULL);
    return rc;
  }
  *out = w;
  return 0;
}

static hid_t make_dataset(struct tc_h5w *w, const struct tc_h5_slice *s, hid_t type)
{
  hid_t space = h5_space(s->rank, s->count), set = -1;
  hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE), lcpl = H5Pcreate(H5P_LINK_CREATE);
  if (space >= 0 && dcpl >= 0 && lcpl >= 0 &&
      H5Pset_layout(dcpl, H5D_CONTIGUOUS) >= 0 &&
      H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER) >= 0 &&
      H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY) >= 0 &&
      H5Pset_obj_track_times(dcpl, 0) >= 0 &&
      H5Pset_create_intermediate_group(lcpl, 1) >= 0)
    set = H5Dcreate2(w->file, s->dataset, type, space, lcpl, dcpl, H5P_DEFAULT);
  if (set >= 0 && s->rank > 0 &&
      (put_attr(set, "global_shape", s->global, s->rank) < 0 ||
       put_attr(set, "start", s->start, s->rank) < 0)) {
    H5Dclose(set);
    set = -1;
  }
  if (space >= 0) H5Sclose(space);
  if (dcpl >= 0) H5Pclose(dcpl);
  if (lcpl >= 0) H5Pclose(lcpl);
  return set;
}

/* One H5Dwrite: n indices of dimension d from index first, one index of each dimension
 * before d (their flat number is `outer`), all of those after it. */
static int write_box(hid_t set, hid_t type, const struct tc_h5_slice *s, int d, int64_t outer,
                     int64_t first, int64_t n, const void *data)
{
  hsize_t start[TC_DIMS] = {0}, count[TC_DIMS];
  for (int i = d - 1; i >= 0; i--) {
    start[i] = (hsize_t)(outer % s->count[i]);
    outer /= s->count[i];
    count[i] = 1;
  }
  start[d] = (hsize_t)first;
  count[d] = (hsize_t)n;
  for (int i = d + 1; i < s->rank; i++) count[i] = (hsize_t)s->count[i];
  hid_t disk = H5Dget_space(set), mem = H5Screate_simple(s->rank, count, NULL);
  int rc = -1;
  if (disk >= 0 && mem >= 0 &&
      H5Sselect_hyperslab(disk, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
      H5Dwrite(set, type, mem, disk, H5P_DEFAULT, data) >= 0)
    rc = 0;
  if (disk >= 0) H5Sclose(disk);
  if (mem >= 0) H5Sclose(mem);
  return rc;
}

/* The whole slice, in calls of at most call_bytes (but one element at least): split at the
 * first dimension d whose single index is small enough. The lock is given up in between. */
static int write_calls(struct tc_h5w *w, hid_t set, hid_t type, const struct tc_h5_slice *s,
                       const char *data)
{
  if (s->rank == 0) return H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0 ? -1 : 0;
  int d = 0;
  int64_t inner_bytes = (int64_t)tc_dtype_bytes(s->dtype), outers = 1;
  for (int i = 1; i < s->rank; i++) inner_bytes *= s->count[i];
  while (inner_bytes > w->call_bytes && d < s->rank - 1) {
    outers *= s->count[d++];
    inner_bytes /= s->count[d];
  }
  int64_t step = TC_MAX(1, w->call_bytes / inner_bytes);
  for (int64_t o = 0; o < outers; o++) {
    for (int64_t i = 0; i < s->count[d]; i += step) {
      int64_t n = TC_MIN(step, s->count[d] - i);
      if (write_box(set, type, s, d, o, i, n, data) < 0) return -1;
      data += n * inner_bytes;
      unlock_h5();
      lock_h5(w->why);
    }
  }
  return 0;
}

int tc_h5w_write(struct tc_h5w *w, struct tc_h5_slice *s, const void *data,
                 struct tc_err *err)
{
  TC_ASSERT(s->rank >= 0 && s->rank <= TC_DIMS);
  if (w->spoiled) return tc_fail(err, TC_EUSER, "%s: an earlier write failed", w->path);
  lock_h5(w->why);
  hid_t type = h5_type(s->dtype);
  hid_t set = type < 0 ? -1 : make_dataset(w, s, type);
  int rc = set < 0 ? -1 : write_calls(w, set, type, s, data);
  haddr_t at = rc < 0 ? HADDR_UNDEF : H5Dget_offset(set);
  if (at == HADDR_UNDEF) rc = -1;
  char doing[300];
  snprintf(doing, sizeof doing, "writing %.250s", s->dataset);
  if (rc < 0) h5_fail(err, TC_EUSER, w->path, doing, w->why);
  if (set >= 0 && H5Dclose(set) < 0 && rc == 0) {
    h5_fail(err, TC_EUSER, w->path, doing, w->why);
    rc = -1;
  }
  if (type >= 0) H5Tclose(type);
  unlock_h5();
  s->offset = (int64_t)at;
  w->spoiled = rc < 0;
  return rc < 0 ? TC_EUSER : 0;
}

int tc_h5w_close(struct tc_h5w *w, int64_t *size_bytes, struct tc_err *err)
{
  struct stat st;
  int rc = 0;
  lock_h5(w->why);
  if (w->spoiled) rc = tc_fail(err, TC_EUSER, "%s: an earlier write failed", w->path);
  if (w->file >= 0 && H5Fflush(w->file, H5F_SCOPE_LOCAL) < 0 && rc == 0)
    rc = h5_fail(err, TC_EUSER, w->path, "writing metadata", w->why);
  if (w->file >= 0 && H5Fclose(w->file) < 0 && rc == 0)
    rc = h5_fail(err, TC_EUSER, w->path, "closing", w->why);
  unlock_h5();
  /* What was reserved behind the end is given back: a truncation to the present size. */
  if (rc == 0 && (fstat(w->fd, &st) < 0 || ftruncate(w->fd, st.st_size) < 0 ||
                  fsync(w->fd) < 0))
    rc = tc_fail(err, TC_EUSER, "%s: can't be brought to disk: %s", w->path, strerror(errno));
  if (w->fd >= 0 && close(w->fd) < 0 && rc == 0)
    rc = tc_fail(err, TC_EUSER, "%s: closing failed: %s", w->path, strerror(errno));
  if (rc == 0 && size_bytes) *size_bytes = (int64_t)st.st_size;
  free(w->path);
  free(w);
  return rc;
}

/* 1 if obj has the attribute with these values, else 0. */
static int attr_is(hid_t obj, const char *name, const int64_t *want, int n)
{
  int64_t got[TC_DIMS];
  if (H5Aexists(obj, name) <= 0) return 0;
  hid_t a = H5Aopen(obj, name, H5P_DEFAULT);
  hid_t space = a < 0 ? -1 : H5Aget_space(a);
  int same = space >= 0 && H5Sget_simple_extent_npoints(space) == n &&
             H5Aread(a, H5T_NATIVE_INT64, got) >= 0 &&
             memcmp(got, want, (size_t)n * sizeof *want) == 0;
  if (space >= 0) H5Sclose(space);
  if (a >= 0) H5Aclose(a);
  return same;
}

/* What of the dataset is not as it should be; NULL if all is. */
static const char *slice_differs(hid_t file, const struct tc_h5_slice *s)
{
  const char *what = NULL;
  hid_t set = H5Dopen2(file, s->dataset, H5P_DEFAULT);
  if (set < 0) return "it is not there";
  hid_t type = H5Dget_type(set), want = h5_type(s->dtype), space = H5Dget_space(set);
  hid_t dcpl = H5Dget_create_plist(set);
  hsize_t dim[TC_DIMS];
  if (type < 0 || want < 0 || H5Tequal(type, want) <= 0) what = "type";
  if (space < 0 || H5Sget_simple_extent_ndims(space) != s->rank) what = "number of dimensions";
  else if (s->rank > 0) {
    H5Sget_simple_extent_dims(space, dim, NULL);
    for (int d = 0; d < s->rank; d++)
      if ((int64_t)dim[d] != s->count[d]) what = "shape";
    if (!attr_is(set, "global_shape", s->global, s->rank)) what = "global_shape";
    if (!attr_is(set, "start", s->start, s->rank)) what = "start";
  }
  if (dcpl < 0 || H5Pget_layout(dcpl) != H5D_CONTIGUOUS) what = "layout";
  if ((int64_t)H5Dget_offset(set) != s->offset) what = "place in the file";
  if (dcpl >= 0) H5Pclose(dcpl);
  if (space >= 0) H5Sclose(space);
  if (want >= 0) H5Tclose(want);
  if (type >= 0) H5Tclose(type);
  H5Dclose(set);
  return what;
}

static int check_open(hid_t file, const char *path, int64_t step, int32_t writer,
                      const struct tc_h5_slice *s, int n_slices, struct tc_err *err)
{
  int64_t format = TC_H5_FORMAT, who = writer;
  hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
  int good = root >= 0 && attr_is(root, "tercio_format", &format, 1) &&
             attr_is(root, "step", &step, 1) && attr_is(root, "writer", &who, 1);
  if (root >= 0) H5Gclose(root);
  if (!good)
    return tc_fail(err, TC_ECHECKSUM, "%s: its attributes are not those of writer %d of step "
                   "%lld", path, (int)writer, (long long)step);
  for (int i = 0; i < n_slices; i++) {
    const char *what = slice_differs(file, &s[i]);
    if (what)
      return tc_fail(err, TC_ECHECKSUM, "%s: dataset %s is not what the manifest says: %s",
                     path, s[i].dataset, what);
  }
  return 0;
}

int tc_h5_check(const char *path, int64_t step, int32_t writer, const struct tc_h5_slice *s,
                int n_slices, struct tc_err *err)
{
  int rc = 0;
  char why[WHY_BYTES] = "";
  lock_h5(why);
  hid_t props = file_props();
  hid_t file = props < 0 ? -1 : H5Fopen(path, H5F_ACC_RDONLY, props);
  if (props >= 0) H5Pclose(props);
  if (file < 0) rc = h5_fail(err, TC_ECHECKSUM, path, "opening with HDF5", why);
  else rc = check_open(file, path, step, writer, s, n_slices, err);
  if (file >= 0) H5Fclose(file);
  unlock_h5();
  return rc;
}
