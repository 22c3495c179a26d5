/* import.c - `tercio ckpt import`: makes a checkpoint to start from out of another program's file.
 *
 * The weights are in an unlinked, mapped file beside the checkpoint, so that little memory is used. */
#include "src/cmd/ckpt/import.h"
#include "src/cmd/ckpt/left_out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/ckpt/owner.h"
#include "io/folder.h"
#include "src/files/files.h"

/* The options that the run will have. */
static int make_config(struct import *x, struct tc_err *err)
{
  const struct ckpt_args *a = x->args;
  char **argv = tc_calloc((size_t)a->n_flags + 2, sizeof *argv), word[] = "import";
  argv[0] = word;
  for (int i = 0; i < a->n_flags; i++) argv[i + 1] = a->flag[i];
  const int rc = tc_config_new(&x->cfg, a->n_flags + 1, argv, NULL, NULL, err);
  free(argv);
  return rc;
}

static int no_steps(const char *dir, struct tc_err *err)
{
  int64_t *steps;
  int n = tc_ckpt_list(dir, &steps, err);
  free(steps);
  if (n <= 0) return n;
  return tc_fail(err, TC_EUSER, "%s has %d checkpoint%s already: a run would not know which to "
                 "resume from; give another folder", dir, n, n == 1 ? "" : "s");
}

/* No run may write there until the import is done. */
static int take_folder(struct import *x, struct tc_err *err)
{
  int rc;
  TC_TRY(tc_folder_make_new(x->args->out, &x->made, err));
  x->owner = tc_owner_new(x->args->out, "", 0);
  while ((rc = tc_owner_take(x->owner, err)) == 1) tc_sleep_ns(TC_OWNER_LOOK_NS);
  return rc;
}

/* Ends the ownership. After a failure, a folder that was made for the import goes with what its owner left in it. */
static void leave_folder(struct import *x, bool failed)
{
  struct tc_err unused;
  const char *name = x->owner ? tc_owner_lease(x->owner) : "";
  char *lease = *name ? tc_sprintf("%s/%s", x->args->out, name) : NULL;
  tc_owner_free(x->owner);
  if (failed && x->made && lease) tc_folder_remove(lease, &unused);
  if (failed) tc_folder_unmake(x->args->out, x->made);
  else free(x->made);
  free(lease);
}

/* Maps a file without a name in the folder of the checkpoints. */
static int map_weights(struct import *x, struct tc_err *err)
{
  size_t bytes = (size_t)x->elems * sizeof *x->weights;
  const int fd = tc_scratch_file(x->args->out, err);
  if (fd < 0) return fd;
  int why = posix_fallocate(fd, 0, (off_t)bytes);
  void *map = why ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!why && map == MAP_FAILED) why = errno;
  close(fd);
  if (why)
    return tc_fail(err, TC_EUSER, "%s: no space for %zu bytes: %s", x->args->out, bytes,
                   strerror(why));
  x->weights = map;
  return 0;
}

static int read_weights(struct import *x, struct tc_err *err)
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

static int import(struct import *x, struct tc_err *err)
{
  const char *dir = x->args->out;
  TC_TRY(make_config(x, err));
  TC_TRY(tc_foreign_open(&x->from, x->args->path[0], x->args->rope, x->cfg, err));
  TC_TRY(no_steps(dir, err));     /* before anything is changed; and again when we own the folder */
  TC_TRY(take_folder(x, err));
  TC_TRY(no_steps(dir, err));
  TC_TRY(read_weights(x, err));
  return import_save(x, err);
}

int ckpt_cmd_import(const struct ckpt_args *a, struct tc_err *err)
{
  struct import x = { .args = a };
  const char *const form[] = { "safetensors", "hf", "llmc" };
  if (!a->out)
    return tc_fail(err, TC_EUSER, "ckpt import: -o DIR, the folder of checkpoints, is missing");
  int rc = import(&x, err);
  if (rc == 0) {
    char *path = tc_ckpt_step_path(a->out, x.step), *model = tc_model_text(tc_foreign_model(x.from));
    if (a->json)
      ckpt_print_json(json_pack("{s:o, s:o, s:s, s:I, s:s, s:O*}", "from", tc_text_json(tc_foreign_path(x.from)), "path",
        tc_text_json(path), "format", form[tc_foreign_form(x.from)], "step", (json_int_t)x.step, "model", model,
        "left_out", x.left_out));
    else printf("%s: %s\n", path, model);
    if (x.left_out) ckpt_say_left_out(a->path[0], x.left_out);
    free(path);
    free(model);
  }
  if (x.weights) munmap(x.weights, (size_t)x.elems * sizeof *x.weights);
  json_decref(x.left_out);
  tc_foreign_close(x.from);
  tc_config_free(x.cfg);
  leave_folder(&x, rc < 0);
  return rc;
}
