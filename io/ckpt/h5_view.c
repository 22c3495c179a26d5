/* h5_view.c - view.h5: all tensors of a checkpoint, whole, for people who have h5py.
 *
 * It holds no data, only virtual datasets over the files beside it, by names without a folder,
 * so that the step's folder can be moved. Nothing of ours reads it: where a file is missing,
 * HDF5 shows fill values and no error. */
#include "io/ckpt/impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/ckpt/h5.h"
#include "src/files/names.h"

static int lay_view(const struct tc_manifest *m, const char *path, int64_t *size,
                    struct tc_err *err)
{
  struct tc_h5_view *v = tc_calloc((size_t)m->n_tensors + 1, sizeof *v);
  struct tc_h5_slice *s = tc_calloc((size_t)m->n_pieces + 1, sizeof *s);
  const char **file = tc_calloc((size_t)m->n_pieces + 1, sizeof *file);
  struct tc_h5_opts o = { .step = m->meta.step };
  for (int k = 0; k < m->n_pieces; k++) {
    const struct tc_piece *p = &m->piece[k];
    s[k] = (struct tc_h5_slice){ .dataset = p->dataset, .start = p->start, .count = p->count };
    file[k] = m->file[p->file].name;
  }
  for (int i = 0; i < m->n_tensors; i++) {
    const struct tc_ckpt_tensor *t = &m->tensor[i];
    int first = m->first_piece[i];
    v[i] = (struct tc_h5_view){ .dataset = tc_sprintf("/tensors/%s", t->name),
      .dtype = t->dtype, .rank = t->rank, .global = t->dim, .s = s + first, .file = file + first,
      .n = m->first_piece[i + 1] - first };
  }
  int rc = tc_h5_view(size, path, &o, v, m->n_tensors, err);
  for (int i = 0; i < m->n_tensors; i++) free((char *)(uintptr_t)v[i].dataset);
  TC_FREE(file, s, v);
  return rc;
}

int tc_ckpt_view(struct tc_manifest *m, const char *folder, struct tc_err *err)
{
  char *path = tc_sprintf("%s/view.h5", folder);
  struct tc_ckpt_file *f = &m->file[m->n_files];
  *f = (struct tc_ckpt_file){ .name = "view.h5", .writer = 0 };
  int rc = lay_view(m, path, &f->size, err);
  int fd = rc < 0 ? -1 : tc_open_read(path);
  if (rc == 0 && (fd < 0 || !tc_crc_meta(fd, f->size, NULL, 0, &f->meta_crc32c)))
    rc = tc_fail(err, TC_EUSER, "%s: what was written can't be read back: %s", path,
                 errno ? strerror(errno) : "it is shorter than it should be");
  if (rc == 0) rc = tc_h5_check(path, m->meta.step, 0, NULL, 0, err) < 0 ? TC_EUSER : 0;
  if (fd >= 0) close(fd);
  if (rc == 0) m->n_files++;
  free(path);
  return rc;
}
