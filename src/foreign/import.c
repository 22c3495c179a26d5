/* import.c - makes a checkpoint to start from out of another program's file.
 *
 * The weights are in an unlinked, mapped file beside the checkpoint, so that little memory is used. */
#include "src/foreign/impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/ckpt/owner.h"
#include "io/folder.h"
#include "src/files/files.h"

static int no_steps(const char *dir, struct tc_err *err)
{
  int64_t *steps;
  int n = tc_ckpt_list(dir, &steps, err);
  free(steps);
  if (n <= 0) return n;
  return tc_fail(err, TC_EUSER, "%s has %d checkpoint%s already: a run would not know which to "
                 "resume from; give another folder", dir, n, tc_plural(n));
}

/* No run may write there until the import is done. */
static int take_folder(struct tc_import *x, struct tc_err *err)
{
  int rc;
  TC_TRY(tc_folder_make_new(x->o->out, &x->made, err));
  x->owner = tc_owner_new(x->o->out, "", 0);
  while ((rc = tc_owner_take(x->owner, err)) == 1) tc_sleep_ns(TC_OWNER_LOOK_NS);
  return rc;
}

/* Ends the ownership. After a failure, a folder that was made for the import goes with what its owner left in it. */
static void leave_folder(struct tc_import *x, bool failed)
{
  struct tc_err unused;
  const char *name = x->owner ? tc_owner_lease(x->owner) : "";
  char *lease = *name ? tc_sprintf("%s/%s", x->o->out, name) : NULL;
  tc_owner_free(x->owner);
  if (failed && x->made && lease) tc_folder_remove(lease, &unused);
  if (failed) tc_folder_unmake(x->o->out, x->made);
  else free(x->made);
  free(lease);
}

/* Maps a file without a name in the folder of the checkpoints. */
static int map_weights(struct tc_import *x, struct tc_err *err)
{
  size_t bytes = (size_t)x->elems * sizeof *x->weights;
  const int fd = tc_scratch_file(x->o->out, err);
  if (fd < 0) return fd;
  int why = posix_fallocate(fd, 0, (off_t)bytes);
  void *map = why ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!why && map == MAP_FAILED) why = errno;
  close(fd);
  if (why)
    return tc_fail(err, TC_EUSER, "%s: no space for %zu bytes: %s", x->o->out, bytes,
                   strerror(why));
  x->weights = map;
  return 0;
}

static int read_weights(struct tc_import *x, struct tc_err *err)
{
  const int64_t zero[TC_DIMS] = { 0 };
  const int n = tc_foreign_n(x->from);
  for (int i = 0; i < n; i++) x->elems += tc_box_elems(tc_foreign_at(x->from, i)->rank, tc_foreign_at(x->from, i)->dim);
  TC_TRY(map_weights(x, err));
  float *to = x->weights;
  for (int i = 0; i < n; i++) {
    const struct tc_ckpt_tensor *t = tc_foreign_at(x->from, i);
    TC_TRY(tc_foreign_read(x->from, i, zero, t->dim, to, err));
    to += tc_box_elems(t->rank, t->dim);
  }
  return 0;
}

static int import(struct tc_import *x, struct tc_err *err)
{
  const char *dir = x->o->out;
  TC_TRY(tc_foreign_open(&x->from, x->o->path, x->o->rope, x->o->cfg, err));
  TC_TRY(no_steps(dir, err));     /* before anything is changed; and again when we own the folder */
  TC_TRY(take_folder(x, err));
  TC_TRY(no_steps(dir, err));
  TC_TRY(read_weights(x, err));
  return tc_import_save(x, err);
}

int tc_foreign_import(struct tc_imported *r, const struct tc_import_opts *o, struct tc_err *err)
{
  struct tc_import x = { .o = o };
  *r = (struct tc_imported){ 0 };
  const int rc = import(&x, err);
  if (rc == 0)
    *r = (struct tc_imported){ .from = tc_strdup(tc_foreign_path(x.from)), .path = tc_ckpt_step_path(o->out, x.step),
      .model = tc_model_text(tc_foreign_model(x.from)), .form = tc_foreign_form(x.from), .step = x.step,
      .left_out = json_incref(x.left_out) };
  if (x.weights) munmap(x.weights, (size_t)x.elems * sizeof *x.weights);
  json_decref(x.left_out);
  tc_foreign_close(x.from);
  leave_folder(&x, rc < 0);
  return rc;
}

void tc_imported_free(struct tc_imported *r)
{
  free(r->from);
  free(r->path);
  free(r->model);
  json_decref(r->left_out);
}
