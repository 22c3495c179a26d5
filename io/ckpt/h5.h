/* h5.h - the thin layer over HDF5: laying out a file of slices, checking that a file says what
 * its manifest says, and a file that shows others' datasets as one. Only this folder sees
 * <hdf5.h>.
 *
 * HDF5 makes the file and gives each dataset its place; the data itself is written and read at
 * those places without it (blocks.h, read.c): no lock, large calls, and every write's status
 * is the system's own. HDF5 as distributions build it is not thread-safe, so every function
 * holds one process-wide lock while it is inside the library. */
#ifndef TC_H5_H
#define TC_H5_H

#include "src/base/base.h"

enum { TC_H5_FORMAT = 1 };        /* file attribute "tercio_format" */

/* One slice: dataset[count] is the box at `start` of the tensor [global]. */
struct tc_h5_slice {
  const char *dataset;            /* path, "/tensors/wte.w" */
  int dtype, rank;
  const int64_t *global, *start, *count;   /* [rank]; borrowed */
  int64_t offset;                 /* byte in the file where the data begins */
};

struct tc_h5_opts {
  int64_t step;
  int32_t writer;                 /* the rank that writes; distinguishes equal files */
  int64_t reserve_bytes;          /* asked of the disk before anything is written; 0: nothing */
  const void *mpi_comm;           /* MPI_Comm *: its ranks make the file together; NULL: alone */
};

/* Local; collective over *mpi_comm if there is one (equal arguments on all, but reserve_bytes).
 * Makes a file with a dataset for each slice, small ones first and side by side, and fills
 * their offsets and the file's size; what is in them is undefined until written. *fd is a
 * descriptor that was open before the first byte was written, so that its fsync reports every
 * failure; owned by the caller. Fails if the path exists. TC_EUSER. */
int tc_h5_lay(int *fd, int64_t *size_bytes, const char *path, const struct tc_h5_opts *o,
              struct tc_h5_slice *s, int n_slices, struct tc_err *err);
/* Local. Whether this HDF5 can make files with several ranks. */
bool tc_h5_parallel(void);
/* Local, at any time. "HDF5 1.10.8", into text[size]. */
void tc_h5_version(char *text, size_t size);
/* Local. Once, before MPI starts. HDF5 then does not end itself in MPI_Finalize or at exit, which
 * crashes where a file could not be closed (a full disk). */
void tc_h5_start(void);

/* Local. The file has these slices: path, type, shape, attributes and place are those given. Its
 * metadata must have been checked before (a damaged file can make HDF5 hang). Returns
 * TC_ECHECKSUM and says what differs. */
int tc_h5_check(const char *path, int64_t step, int32_t writer, const struct tc_h5_slice *s,
                int n_slices, struct tc_err *err);

/* One dataset of a view: the slices s[n] (sorted by nothing) of files file[n]. */
struct tc_h5_view {
  const char *dataset;
  int dtype, rank;
  const int64_t *global;
  const struct tc_h5_slice *s;    /* [n] */
  const char *const *file;        /* [n] names in the view's own folder */
  int n;
};
/* Local. A new file whose datasets are the views, whole, as virtual datasets over the files
 * beside it (a scalar is a link). On disk when it returns. TC_EUSER. */
int tc_h5_view(int64_t *size_bytes, const char *path, const struct tc_h5_opts *o,
               const struct tc_h5_view *v, int n_views, struct tc_err *err);

#endif
