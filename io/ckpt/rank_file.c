/* rank_file.c - a rank's slices in a file.
 *
 *   lay out    HDF5 makes the file and gives each dataset a place (one rank alone, or the ranks
 *              of a node together, through its parallel driver)
 *   write      each rank writes its data there, block by block, checksums taken from memory
 *   fsync      each rank its own descriptor, then the folder
 *   check      the rank that leads reads back what HDF5 wrote: its checksum, and that it says what the
 *              manifest will say
 *
 * A node's ranks differ from a lone one in the first line only: the data never goes through
 * MPI-IO, which is slower here and fails above 2 GiB a call. What fails on one of them is reported
 * in the exchange after the layout, or to rank 0: no rank leaves between two collective calls. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/ckpt/blocks.h"
#include "io/folder.h"
#include "io/ckpt/h5.h"
#include "src/watch/watch.h"

/* The pieces of one file: a rank's, or all of a node's. */
struct layout {
  MPI_Comm comm;                  /* MPI_COMM_NULL: this rank alone */
  int leader;                     /* rank that answers for the file */
  struct tc_report_piece *piece;    /* [n] owned */
  int n, first;                   /* this rank's begin at `first` */
};

/* ---- names ------------------------------------------------------------------------ */

char *tc_share_file(const struct tc_rank_report *t)
{
  return tc_sprintf("%s-%05d.h5", t->node ? "node" : "rank", (int)t->leader);
}

char *tc_share_dataset(const struct tc_ckpt_tensor *tensors, const struct tc_report_piece *p)
{
  const char *name = tensors[p->tensor].name;
  return p->part < 0 ? tc_sprintf("/tensors/%s", name)
                     : tc_sprintf("/tensors/%s.%d", name, (int)p->part);
}

bool tc_share_is_of(const char *dataset, const char *name)
{
  size_t n = strlen(name);
  if (strncmp(dataset, "/tensors/", 9) != 0 || strncmp(dataset + 9, name, n) != 0) return false;
  const char *rest = dataset + 9 + n;
  return !*rest || (*rest == '.' && rest[1] && rest[1 + strspn(rest + 1, "0123456789")] == '\0');
}

int64_t tc_share_bytes(const struct tc_ckpt_tensor *tensors, const struct tc_report_piece *p)
{
  const struct tc_ckpt_tensor *t = &tensors[p->tensor];
  return tc_box_bytes(t->dtype, t->rank, p->count);
}

/* ---- which pieces ----------------------------------------------------------------- */

/* This rank's slices that are not empty. from[i] is piece i's data. */
static void list_pieces(struct tc_share *p, const char **from)
{
  for (int i = 0; i < p->n_slices; i++) {
    const struct tc_ckpt_slice *x = &p->slice[i];
    TC_ASSERT(x->tensor >= 0 && x->tensor < p->n_tensors);
    const struct tc_ckpt_tensor *t = &p->tensor[x->tensor];
    if (tc_box_elems(t->rank, x->count) == 0) continue;
    struct tc_report_piece *q = &p->piece[p->report.n];
    q->tensor = x->tensor;
    memcpy(q->start, x->start, (size_t)t->rank * sizeof *q->start);
    memcpy(q->count, x->count, (size_t)t->rank * sizeof *q->count);
    p->report.n_blocks += tc_blocks(tc_share_bytes(p->tensor, q), p->block_bytes);
    from[p->report.n++] = x->data;
  }
}

/* Numbers the pieces of each tensor within the file; -1 where there is one. */
static void number_parts(const struct tc_share *p, struct layout *l)
{
  int *seen = tc_calloc((size_t)p->n_tensors + 1, sizeof *seen);
  for (int i = 0; i < l->n; i++) l->piece[i].part = seen[l->piece[i].tensor]++;
  for (int i = 0; i < l->n; i++)
    if (seen[l->piece[i].tensor] == 1) l->piece[i].part = -1;
  free(seen);
}

/* Whether the ranks are processes of one MPI job, so that those of a node can share a file. */
static bool node_files(const struct tc_share *p)
{
  int started = 0, ended = 0, rank = -1, size = 0;
  if (p->meta->files != TC_FILES_NODE || p->world == 1 || !tc_h5_parallel()) return false;
  if (MPI_Initialized(&started) != MPI_SUCCESS || !started) return false;
  if (MPI_Finalized(&ended) != MPI_SUCCESS || ended) return false;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return rank == p->rank && size == p->world;
}

/* All pieces of the node, the same on each of its ranks. */
static int gather_node(struct tc_share *p, struct layout *l, struct tc_err *err)
{
  int rank = 0, size = 0;
  bool good = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, p->rank, MPI_INFO_NULL,
                                  &l->comm) == MPI_SUCCESS;
  if (!good) return tc_fail(err, TC_EUSER, "the ranks of a node can't be joined by MPI; use "
                            "ckpt.files = rank");
  MPI_Comm_rank(l->comm, &rank);
  MPI_Comm_size(l->comm, &size);
  int *n = tc_calloc((size_t)size, sizeof *n), *at = tc_calloc((size_t)size, sizeof *at);
  l->leader = p->rank;
  MPI_Bcast(&l->leader, 1, MPI_INT, 0, l->comm);
  MPI_Allgather(&p->report.n, 1, MPI_INT, n, 1, MPI_INT, l->comm);
  for (int i = 0; i < size; i++) {
    at[i] = l->n;
    l->n += n[i];
  }
  l->first = at[rank];
  l->piece = tc_calloc((size_t)l->n + 1, sizeof *l->piece);
  MPI_Datatype type;
  MPI_Type_contiguous((int)sizeof *l->piece, MPI_BYTE, &type);
  MPI_Type_commit(&type);
  MPI_Allgatherv(p->piece, p->report.n, type, l->piece, n, at, type, l->comm);
  MPI_Type_free(&type);
  TC_FREE(at, n);
  return 0;
}

static int plan(struct tc_share *p, struct layout *l, struct tc_err *err)
{
  *l = (struct layout){ .comm = MPI_COMM_NULL, .leader = p->rank };
  p->report.node = node_files(p);
  if (p->report.node) {
    TC_TRY(gather_node(p, l, err));
  } else {
    l->n = p->report.n;
    l->piece = tc_calloc((size_t)l->n + 1, sizeof *l->piece);
    memcpy(l->piece, p->piece, (size_t)l->n * sizeof *l->piece);
  }
  number_parts(p, l);
  p->report.leader = l->leader;
  return 0;
}

/* All of a node fail if one does. */
static int settle(const struct layout *l, int rc, const char *path, struct tc_err *err)
{
  int worst = rc;
  if (l->comm != MPI_COMM_NULL) MPI_Allreduce(&rc, &worst, 1, MPI_INT, MPI_MIN, l->comm);
  if (rc == 0 && worst < 0)
    return tc_fail(err, worst, "%s: another rank of this node could not open it", path);
  return rc;
}

/* ---- writing ---------------------------------------------------------------------- */

static int cmp_stretch(const void *a, const void *b)
{
  const struct tc_stretch *p = a, *q = b;
  return (p->offset > q->offset) - (p->offset < q->offset);
}

static int write_data(struct tc_share *p, int fd, const char *path, const char *const *from,
                      struct tc_err *err)
{
  struct tc_stretch *s = tc_calloc((size_t)p->report.n + 1, sizeof *s);
  int64_t block = 0;
  for (int i = 0; i < p->report.n; i++) {
    int64_t bytes = tc_share_bytes(p->tensor, &p->piece[i]);
    s[i] = (struct tc_stretch){ .data = from[i], .offset = p->piece[i].offset, .bytes = bytes,
                                .crc32c = p->crc32c + block };
    block += tc_blocks(bytes, p->block_bytes);
  }
  qsort(s, (size_t)p->report.n, sizeof *s, cmp_stretch);
  tc_at_file("writing", path);
  int rc = tc_blocks_write(fd, s, p->report.n, p->block_bytes, path, err);
  tc_at_file("fsync", path);
  if (rc == 0 && fsync(fd) < 0)
    rc = tc_fail(err, TC_EUSER, "%s: can't be flushed to disk: %s", path, strerror(errno));
  free(s);
  return rc;
}

/* The file's metadata: its checksum, and whether HDF5 finds in it what the manifest will say
 * (it is written when the file is closed, so only now). */
static int check_file(struct tc_share *p, const struct layout *l, int fd, const char *path,
                      const struct tc_h5_slice *slices, struct tc_err *err)
{
  struct tc_piece *piece = tc_calloc((size_t)l->n + 1, sizeof *piece);
  const struct tc_piece **by = tc_malloc((size_t)(l->n + 1) * sizeof *by);
  bool good = true;
  for (int i = 0; i < l->n; i++) {
    piece[i].offset = slices[i].offset;
    piece[i].bytes = tc_share_bytes(p->tensor, &l->piece[i]);
    by[i] = &piece[i];
  }
  qsort(by, (size_t)l->n, sizeof *by, tc_piece_by_place);
  for (int i = 0; i < l->n && good; i++)
    good = by[i]->offset >= (i ? by[i - 1]->offset + by[i - 1]->bytes : 0) &&
           by[i]->offset + by[i]->bytes <= p->report.size;
  errno = 0;
  good = good && tc_crc_meta(fd, p->report.size, by, l->n, &p->report.meta_crc32c);
  TC_FREE(by, piece);
  if (!good)
    return tc_fail(err, TC_EUSER, "%s: what was written can't be read back: %s", path,
                   errno ? strerror(errno) : "it is shorter than it should be");
  return tc_h5_check(path, p->meta->step, l->leader, slices, l->n, err) < 0 ? TC_EUSER : 0;
}

/* Lays the file out, together with the node's other ranks where it is theirs too. */
static int lay(struct tc_share *p, const struct layout *l, struct tc_h5_slice *s, int *fd,
               const char *path, struct tc_err *err)
{
  struct tc_h5_opts o = { .step = p->meta->step, .writer = l->leader,
                          .mpi_comm = l->comm == MPI_COMM_NULL ? NULL : &l->comm };
  bool leads = l->leader == p->rank;
  for (int i = 0; i < l->n; i++) {
    const struct tc_report_piece *q = &l->piece[i];
    const struct tc_ckpt_tensor *t = &p->tensor[q->tensor];
    s[i] = (struct tc_h5_slice){ .dataset = tc_share_dataset(p->tensor, q), .dtype = t->dtype,
      .rank = t->rank, .global = t->dim, .start = q->start, .count = q->count };
    /* Page borders, HDF5's own metadata: a little more than the data. */
    if (leads)
      o.reserve_bytes += tc_round_up(tc_share_bytes(p->tensor, q), 4096) + 4096;
  }
  if (leads) o.reserve_bytes += 65536;
  int64_t size = 0;
  tc_at_file("laying out", path);
  int rc = settle(l, tc_h5_lay(fd, &size, path, &o, s, l->n, err), path, err);
  if (leads) p->report.size = size;
  for (int i = 0; i < p->report.n; i++) {
    p->piece[i].offset = s[l->first + i].offset;
    p->piece[i].part = l->piece[l->first + i].part;
  }
  return rc;
}

int tc_share_write(struct tc_share *p, struct tc_err *err)
{
  const char **from = tc_malloc((size_t)(p->n_slices + 1) * sizeof *from);
  struct layout l;
  p->piece = tc_calloc((size_t)p->n_slices + 1, sizeof *p->piece);
  list_pieces(p, from);
  p->crc32c = tc_calloc((size_t)p->report.n_blocks + 1, sizeof *p->crc32c);
  int fd = -1, rc = plan(p, &l, err);
  if (rc == 0 && l.n > 0) {
    struct tc_h5_slice *s = tc_calloc((size_t)l.n + 1, sizeof *s);
    char *name = tc_share_file(&p->report), *path = tc_sprintf("%s/%s", p->folder, name);
    rc = lay(p, &l, s, &fd, path, err);
    if (rc == 0) rc = write_data(p, fd, path, from, err);
    if (rc == 0 && l.leader == p->rank) rc = check_file(p, &l, fd, path, s, err);
    if (fd >= 0 && close(fd) < 0 && rc == 0)
      rc = tc_fail(err, TC_EUSER, "%s: closing failed: %s", path, strerror(errno));
    if (rc == 0) rc = tc_folder_sync(p->folder, err);
    for (int i = 0; i < l.n; i++) free((char *)(uintptr_t)s[i].dataset);
    TC_FREE(path, name, s);
  }
  if (l.comm != MPI_COMM_NULL) MPI_Comm_free(&l.comm);
  TC_FREE(l.piece, from);
  return rc;
}
