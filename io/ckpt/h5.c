/* h5.c - HDF5 files of slices: laid out so that a failing disk is noticed, checked afterwards.
 *
 * - HDF5 forgets a failed write: after "no space left" in a write, flush and close return
 *   success and the file has its full size. So (1) the disk is asked for the room before
 *   anything is written, where the file system can do that; (2) every status is looked at;
 *   (3) a descriptor of our own is opened before the first byte, and fsynced after HDF5 has
 *   closed and the data is there: errors of delayed writing show there; (4) the caller runs
 *   tc_h5_check on the closed file, since metadata is only written at close.
 * - All metadata lies in one stretch (META_BYTES per dataset are requested at once), datasets
 *   follow in the order they are made: small ones first, which pack without gaps, then those
 *   of ALIGN_FROM bytes and more, on page borders.
 * - Calls go on after one that failed: HDF5 refuses ids of objects that could not be made, and other ranks may be in
 *   the same calls. A function notes that one failed (H5_TRY), and closes what it has opened (struct opened).
 * - The lock is the program's one variable that is not const: HDF5 is one per process.
 * - Bytes on disk are little-endian, as in memory. */
#include "io/ckpt/h5.h"
#include "io/ckpt/ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/files/again.h"
#include "src/files/names.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "checkpoints are written as they lie in memory, which must be little-endian"
#endif

static pthread_mutex_t h5_lock = PTHREAD_MUTEX_INITIALIZER;

enum { WHY_BYTES = 200 };

enum { ALIGN_FROM = 65536, ALIGN = 4096, META_BYTES = 512 };

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

/* What a function has opened, and what of it failed. */
struct opened {
  const char *what;               /* of the last call that failed; NULL: none has */
  int n;
  struct { hid_t id; herr_t (*close)(hid_t); } at[6];
};

#define H5_TRY(o, good, failing) ((good) ? (void)0 : (void)((o)->what = (failing)))

/* Notes an object, or that it could not be made; returns its id. */
static hid_t keep(struct opened *o, hid_t id, herr_t (*close_it)(hid_t), const char *failing)
{
  H5_TRY(o, id >= 0, failing);
  if (id < 0) return id;
  TC_ASSERT(o->n < (int)(sizeof o->at / sizeof *o->at));
  o->at[o->n].id = id;
  o->at[o->n++].close = close_it;
  return id;
}

/* Closes all; -1 if a call failed, or one of these. */
static int close_all(struct opened *o)
{
  while (o->n-- > 0) H5_TRY(o, o->at[o->n].close(o->at[o->n].id) >= 0, "closing");
  return o->what ? -1 : 0;
}

/* The id that was noted last, with the others closed; -1, and all closed, if a call failed. */
static hid_t close_others(struct opened *o)
{
  if (o->what) return close_all(o);
  const hid_t last = o->at[--o->n].id;
  close_all(o);
  return last;
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
    H5Tclose(t);
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
  struct opened o = { 0 };
  const hsize_t dim = (hsize_t)n;
  const hid_t space = keep(&o, H5Screate_simple(1, &dim, NULL), H5Sclose, name);
  const hid_t a = keep(&o, H5Acreate2(obj, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, name);
  H5_TRY(&o, H5Awrite(a, H5T_NATIVE_INT64, x) >= 0, name);
  return close_all(&o);
}

/* Properties of files: newest format (its metadata has checksums), no file locks (many cluster
 * file systems lack them; the temporary folder's name says which process writes). meta_bytes: of
 * the stretch that metadata gets. */
static hid_t file_props(int64_t meta_bytes, const void *mpi_comm)
{
  static const char what[] = "properties";
  struct opened o = { 0 };
  const hid_t p = keep(&o, H5Pcreate(H5P_FILE_ACCESS), H5Pclose, what);
#ifdef H5_HAVE_PARALLEL
  if (mpi_comm)
    H5_TRY(&o, H5Pset_fapl_mpio(p, *(const MPI_Comm *)mpi_comm, MPI_INFO_NULL) >= 0 &&
           H5Pset_all_coll_metadata_ops(p, 1) >= 0 && H5Pset_coll_metadata_write(p, 1) >= 0, what);
  else
#endif
  H5_TRY(&o, H5Pset_fapl_sec2(p) >= 0, what);
  TC_ASSERT(!mpi_comm || tc_h5_parallel());
  H5_TRY(&o, H5Pset_libver_bounds(p, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) >= 0 &&
         H5Pset_alignment(p, ALIGN_FROM, ALIGN) >= 0 && H5Pset_meta_block_size(p, (hsize_t)meta_bytes) >= 0 &&
         H5Pset_small_data_block_size(p, 0) >= 0 && H5Pset_fclose_degree(p, H5F_CLOSE_STRONG) >= 0, what);
#if H5_VERSION_GE(1, 10, 7)
  H5_TRY(&o, H5Pset_file_locking(p, 0, 1) >= 0, what);
#endif
  return close_others(&o);
}

void tc_h5_version(char *text, size_t size)
{
  unsigned major = 0, minor = 0, patch = 0;
  char why[WHY_BYTES] = "";
  lock_h5(why);
  H5get_libversion(&major, &minor, &patch);
  unlock_h5();
  snprintf(text, size, "HDF5 %u.%u.%u", major, minor, patch);
}

bool tc_h5_parallel(void)
{
#ifdef H5_HAVE_PARALLEL
  return true;
#else
  return false;
#endif
}

void tc_h5_start(void)
{
  H5dont_atexit();
  H5open();                        /* finds no MPI whose end it would ask to hear of */
}

static int reserve(int fd, const char *path, int64_t bytes, struct tc_err *err)
{
  if (bytes <= 0) return 0;
  int rc;
  do rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
  while (rc < 0 && errno == EINTR);
  if (rc == 0 || (errno != ENOSPC && errno != EDQUOT && errno != EFBIG)) return 0;
  char room[32];
  int why = errno;
  return tc_fail(err, TC_EUSER, "%s: no room for its %s: %s; make room or choose another "
                 "folder (ckpt.dir)", path, tc_human_bytes(room, sizeof room, (double)bytes),
                 strerror(why));
}

static int put_file_attrs(hid_t file, const struct tc_h5_opts *opts)
{
  static const char what[] = "attributes";
  const int64_t format = TC_H5_FORMAT, writer = opts->writer;
  struct opened o = { 0 };
  const hid_t root = keep(&o, H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose, what);
  H5_TRY(&o, put_attr(root, "tercio_format", &format, 1) == 0 && put_attr(root, "step", &opts->step, 1) == 0 &&
         put_attr(root, "writer", &writer, 1) == 0, what);
  return close_all(&o);
}

/* A new dataset whose place in the file is settled; its groups are made with it. */
static hid_t make_dataset(hid_t file, const struct tc_h5_slice *s, hid_t type)
{
  const char *what = s->dataset;
  struct opened o = { 0 };
  const hid_t space = keep(&o, h5_space(s->rank, s->count), H5Sclose, what);
  const hid_t dcpl = keep(&o, H5Pcreate(H5P_DATASET_CREATE), H5Pclose, what);
  const hid_t lcpl = keep(&o, H5Pcreate(H5P_LINK_CREATE), H5Pclose, what);
  H5_TRY(&o, H5Pset_layout(dcpl, H5D_CONTIGUOUS) >= 0 && H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER) >= 0 &&
         H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY) >= 0 && H5Pset_obj_track_times(dcpl, 0) >= 0 &&
         H5Pset_create_intermediate_group(lcpl, 1) >= 0, what);
  const hid_t set = keep(&o, H5Dcreate2(file, s->dataset, type, space, lcpl, dcpl, H5P_DEFAULT), H5Dclose, what);
  H5_TRY(&o, s->rank == 0 || (put_attr(set, "global_shape", s->global, s->rank) == 0 &&
                              put_attr(set, "start", s->start, s->rank) == 0), what);
  return close_others(&o);
}

static int lay_slice(hid_t file, struct tc_h5_slice *s)
{
  TC_ASSERT(s->rank >= 0 && s->rank <= TC_DIMS);
  struct opened o = { 0 };
  const hid_t type = keep(&o, h5_type(s->dtype), H5Tclose, s->dataset);
  const hid_t set = keep(&o, make_dataset(file, s, type), H5Dclose, s->dataset);
  const haddr_t at = set < 0 ? HADDR_UNDEF : H5Dget_offset(set);
  H5_TRY(&o, at != HADDR_UNDEF, s->dataset);
  s->offset = (int64_t)at;
  return close_all(&o);
}

/* Every dataset; the name of the one that failed, else NULL. Goes on after a failure: other
 * ranks may be in the same calls. */
static const char *lay_slices(hid_t file, struct tc_h5_slice *s, int n)
{
  const char *bad = NULL;
  for (int small = 1; small >= 0; small--)
    for (int i = 0; i < n; i++)
      if ((tc_box_bytes(s[i].dtype, s[i].rank, s[i].count) < ALIGN_FROM) == small && lay_slice(file, &s[i]) < 0 && !bad)
        bad = s[i].dataset;
  return bad;
}

/* The size of what was laid out; what was reserved after the end is given back. */
static int settle(int fd, int64_t *size_bytes, bool trim, const char *path, struct tc_err *err)
{
  struct stat st;
  if (fstat(fd, &st) < 0 || (trim && ftruncate(fd, st.st_size) < 0))
    return tc_fail(err, TC_EUSER, "%s: can't be flushed to disk: %s", path, strerror(errno));
  *size_bytes = (int64_t)st.st_size;
  return 0;
}

int tc_h5_lay(int *fd, int64_t *size_bytes, const char *path, const struct tc_h5_opts *o,
              struct tc_h5_slice *s, int n_slices, struct tc_err *err)
{
  char why[WHY_BYTES] = "", doing[300] = "writing attributes";
  int64_t meta_bytes = tc_round_up(8192 + (int64_t)n_slices * META_BYTES, ALIGN);
  int rc = 0;
  *fd = -1;
  lock_h5(why);
  hid_t props = file_props(meta_bytes, o->mpi_comm);
  hid_t file = props < 0 ? -1 : H5Fcreate(path, H5F_ACC_EXCL, H5P_DEFAULT, props);
  H5Pclose(props);
  if (file < 0) {
    rc = h5_fail(err, TC_EUSER, path, props < 0 ? "setting up HDF5" : "creating the file", why);
    unlock_h5();
    return rc;
  }
  /* From here on every rank makes every call, so that none waits for one that gave up. */
  *fd = tc_open(path, O_RDWR | O_CLOEXEC);
  if (*fd < 0) rc = tc_fail(err, TC_EUSER, "%s: %s", path, strerror(errno));
  else rc = reserve(*fd, path, o->reserve_bytes, err);
  bool alone = !o->mpi_comm, go_on = rc == 0 || !alone;
  bool attrs = go_on && put_file_attrs(file, o) == 0;
  const char *bad = go_on && (attrs || !alone) ? lay_slices(file, s, n_slices) : NULL;
  if (bad) snprintf(doing, sizeof doing, "writing %.250s", bad);
  if (rc == 0 && (!attrs || bad)) rc = h5_fail(err, TC_EUSER, path, doing, why);
  if (H5Fflush(file, H5F_SCOPE_LOCAL) < 0 && rc == 0)
    rc = h5_fail(err, TC_EUSER, path, "writing metadata", why);
  if (H5Fclose(file) < 0 && rc == 0) rc = h5_fail(err, TC_EUSER, path, "closing", why);
  unlock_h5();
  if (rc == 0) rc = settle(*fd, size_bytes, o->reserve_bytes > 0, path, err);
  if (rc < 0 && *fd >= 0) {
    close(*fd);
    *fd = -1;
  }
  return rc;
}

/* Whether obj has the attribute with these values. */
static bool attr_is(hid_t obj, const char *name, const int64_t *want, int n)
{
  struct opened o = { 0 };
  int64_t got[TC_DIMS];
  if (H5Aexists(obj, name) <= 0) return false;
  const hid_t a = keep(&o, H5Aopen(obj, name, H5P_DEFAULT), H5Aclose, name);
  const hid_t space = keep(&o, H5Aget_space(a), H5Sclose, name);
  H5_TRY(&o, H5Sget_simple_extent_npoints(space) == n && H5Aread(a, H5T_NATIVE_INT64, got) >= 0 &&
         memcmp(got, want, (size_t)n * sizeof *want) == 0, name);
  const bool same = !o.what;
  close_all(&o);
  return same;
}

/* What of the dataset is not as it should be; NULL if all is. */
static const char *slice_differs(hid_t file, const struct tc_h5_slice *s)
{
  struct opened o = { 0 };
  hsize_t dim[TC_DIMS];
  const hid_t set = keep(&o, H5Dopen2(file, s->dataset, H5P_DEFAULT), H5Dclose, "it is not there");
  if (set < 0) return o.what;
  const hid_t type = keep(&o, H5Dget_type(set), H5Tclose, "type"), want = keep(&o, h5_type(s->dtype), H5Tclose, "type");
  const hid_t space = keep(&o, H5Dget_space(set), H5Sclose, "number of dimensions");
  const hid_t dcpl = keep(&o, H5Dget_create_plist(set), H5Pclose, "layout");
  const bool ranked = H5Sget_simple_extent_ndims(space) == s->rank;
  H5_TRY(&o, H5Tequal(type, want) > 0, "type");
  H5_TRY(&o, ranked, "number of dimensions");
  if (ranked && s->rank > 0) {
    H5Sget_simple_extent_dims(space, dim, NULL);
    for (int d = 0; d < s->rank; d++) H5_TRY(&o, (int64_t)dim[d] == s->count[d], "shape");
    H5_TRY(&o, attr_is(set, "global_shape", s->global, s->rank), "global_shape");
    H5_TRY(&o, attr_is(set, "start", s->start, s->rank), "start");
  }
  H5_TRY(&o, H5Pget_layout(dcpl) == H5D_CONTIGUOUS, "layout");
  H5_TRY(&o, (int64_t)H5Dget_offset(set) == s->offset, "place in the file");
  const char *what = o.what;
  close_all(&o);
  return what;
}

static int check_open(hid_t file, const char *path, int64_t step, int32_t writer,
                      const struct tc_h5_slice *s, int n_slices, struct tc_err *err)
{
  int64_t format = TC_H5_FORMAT, rank = writer;
  hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
  const bool good = attr_is(root, "tercio_format", &format, 1) && attr_is(root, "step", &step, 1) && attr_is(root, "writer", &rank, 1);
  H5Gclose(root);
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

/* One look; *why_errno: what the last failed call of the system said, which HDF5 leaves in errno. */
static int check_once(const char *path, int64_t step, int32_t writer, const struct tc_h5_slice *s, int n_slices,
                      int *why_errno, struct tc_err *err)
{
  int rc = 0;
  char why[WHY_BYTES] = "";
  lock_h5(why);
  hid_t props = file_props(2048, NULL);
  errno = 0;
  hid_t file = props < 0 ? -1 : H5Fopen(path, H5F_ACC_RDONLY, props);
  if (file < 0) *why_errno = errno;
  H5Pclose(props);
  if (file < 0) rc = h5_fail(err, TC_ECHECKSUM, path, "opening with HDF5", why);
  else {
    errno = 0;
    rc = check_open(file, path, step, writer, s, n_slices, err);
    *why_errno = errno;
  }
  H5Fclose(file);
  unlock_h5();
  return rc;
}

int tc_h5_check(const char *path, int64_t step, int32_t writer, const struct tc_h5_slice *s,
                int n_slices, struct tc_err *err)
{
  struct tc_again again = { 0 };
  struct tc_err last;              /* of one that passed nothing is left in *err */
  int rc, why = 0;
  do rc = check_once(path, step, writer, s, n_slices, &why, &last);
  while (rc < 0 && tc_again(&again, why));
  if (rc < 0 && tc_may_pass(why))
    return tc_fail(err, TC_EUSER, "%s: can't be read with HDF5: %s", path, strerror(why));
  return rc < 0 ? tc_fail(err, rc, "%s", last.text) : 0;
}

/* ---- a view ----------------------------------------------------------------------- */

static hid_t view_props(const struct tc_h5_view *v)
{
  struct opened o = { 0 };
  const hid_t dcpl = keep(&o, H5Pcreate(H5P_DATASET_CREATE), H5Pclose, v->dataset);
  H5_TRY(&o, H5Pset_obj_track_times(dcpl, 0) >= 0, v->dataset);
  for (int i = 0; i < v->n && !o.what; i++) {
    const struct tc_h5_slice *s = &v->s[i];
    struct opened spaces = { 0 };
    hsize_t start[TC_DIMS], count[TC_DIMS];
    for (int d = 0; d < v->rank; d++) {
      start[d] = (hsize_t)s->start[d];
      count[d] = (hsize_t)s->count[d];
    }
    const hid_t to = keep(&spaces, h5_space(v->rank, v->global), H5Sclose, v->dataset);
    const hid_t from = keep(&spaces, h5_space(v->rank, s->count), H5Sclose, v->dataset);
    H5_TRY(&o, H5Sselect_hyperslab(to, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
           H5Pset_virtual(dcpl, to, v->file[i], s->dataset, from) >= 0, v->dataset);
    close_all(&spaces);
  }
  return close_others(&o);
}

static int make_view(hid_t file, const struct tc_h5_view *v)
{
  struct opened o = { 0 };
  const hid_t lcpl = keep(&o, H5Pcreate(H5P_LINK_CREATE), H5Pclose, v->dataset);
  H5_TRY(&o, H5Pset_create_intermediate_group(lcpl, 1) >= 0, v->dataset);
  if (v->rank == 0) {
    H5_TRY(&o, H5Lcreate_external(v->file[0], v->s[0].dataset, file, v->dataset, lcpl, H5P_DEFAULT) >= 0, v->dataset);
    return close_all(&o);
  }
  const hid_t type = keep(&o, h5_type(v->dtype), H5Tclose, v->dataset);
  const hid_t space = keep(&o, h5_space(v->rank, v->global), H5Sclose, v->dataset);
  const hid_t dcpl = keep(&o, view_props(v), H5Pclose, v->dataset);
  keep(&o, H5Dcreate2(file, v->dataset, type, space, lcpl, dcpl, H5P_DEFAULT), H5Dclose, v->dataset);
  return close_all(&o);
}

int tc_h5_view(int64_t *size_bytes, const char *path, const struct tc_h5_opts *o,
               const struct tc_h5_view *v, int n_views, struct tc_err *err)
{
  char why[WHY_BYTES] = "";
  lock_h5(why);
  hid_t props = file_props(2048, NULL);
  hid_t file = props < 0 ? -1 : H5Fcreate(path, H5F_ACC_EXCL, H5P_DEFAULT, props);
  int fd = file < 0 ? -1 : tc_open(path, O_RDWR | O_CLOEXEC);
  H5Pclose(props);
  bool good = file >= 0 && fd >= 0 && put_file_attrs(file, o) == 0;
  for (int i = 0; i < n_views && good; i++) good = make_view(file, &v[i]) == 0;
  if (file >= 0 && (H5Fflush(file, H5F_SCOPE_LOCAL) < 0) + (H5Fclose(file) < 0) > 0) good = false;
  unlock_h5();
  int rc = good ? 0 : h5_fail(err, TC_EUSER, path, "writing the view", *why ? why
                                                                      : strerror(errno));
  if (rc == 0) rc = settle(fd, size_bytes, false, path, err);
  if (rc == 0 && fsync(fd) < 0)
    rc = tc_fail(err, TC_EUSER, "%s: can't be flushed to disk: %s", path, strerror(errno));
  if (fd >= 0) close(fd);
  return rc;
}
