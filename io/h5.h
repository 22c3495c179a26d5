/* h5.h - the thin layer over HDF5: writing a file of slices, and checking that a file says
 * what its manifest says. The only room that sees <hdf5.h>.
 *
 * Files are written through the serial driver by one writer each; MPI is not needed. HDF5 as
 * distributions build it is not thread-safe, so every function holds one process-wide lock
 * while it is inside the library. Tensor data is never read through HDF5: the manifest has
 * the place of each dataset in its file, so readers use pread. */
#ifndef TC_H5_H
#define TC_H5_H

#include "src/base.h"

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
  int32_t writer;                 /* the rank that writes; tells equal files apart */
  int64_t reserve_bytes;          /* asked of the disk before anything is written; 0: nothing */
  int64_t call_bytes;             /* most bytes in one H5Dwrite; 0: 1 GiB */
};

struct tc_h5w;
/* Local. A new file; fails if the path exists. TC_EUSER names the file and the reason.
 * *out is owned by the caller until tc_h5w_close. */
int tc_h5w_open(struct tc_h5w **out, const char *path, const struct tc_h5_opts *o,
                struct tc_err *err);
/* Local. Writes a slice (data: dense, borrowed) and fills s->offset. After a failure the
 * file is spoiled: every further call and the close fail too. */
int tc_h5w_write(struct tc_h5w *w, struct tc_h5_slice *s, const void *data,
                 struct tc_err *err);
/* Local. Closes, brings the file to disk (fsync), fills its size. Frees w in every case. The
 * file is whole only if this and all writes returned 0. */
int tc_h5w_close(struct tc_h5w *w, int64_t *size_bytes, struct tc_err *err);

/* Local. The file has these slices: path, type, shape, attributes and place are as said. Its
 * metadata must have been checked before (a damaged file can make HDF5 hang). Returns
 * TC_ECHECKSUM and says what differs. */
int tc_h5_check(const char *path, int64_t step, int32_t writer, const struct tc_h5_slice *s,
                int n_slices, struct tc_err *err);

#endif
