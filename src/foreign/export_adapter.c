/* export_adapter.c - a checkpoint's adapters as a folder of PEFT's. */
#include "src/foreign/impl.h"

#include <fcntl.h>
#include <stdlib.h>

#include "io/ckpt/inspect.h"
#include "src/files/files.h"

static int write_weights(struct tc_export *x, const char *path, struct tc_err *err)
{
  char known[TC_DIGEST + 1];
  TC_TRY(tc_export_known_base(x, known, err));
  const char *const notes[] = { "format", "pt", *known ? TC_BASE_NOTE : NULL, known, NULL };
  struct tc_st_tensor *st = tc_calloc((size_t)x->n_adapters, sizeof *st);
  struct tc_output *f = NULL;
  int64_t bytes;
  for (int i = 0; i < x->n_adapters; i++) {
    st[i] = (struct tc_st_tensor){ .name = x->adapter[i].hf, .dtype = x->o->dtype, .rank = 2 };
    tc_foreign_hf_shape(&x->adapter[i], st[i].dim);
  }
  int rc = tc_st_create(&f, &bytes, path, st, x->n_adapters, notes, err);
  for (int i = 0; i < x->n_adapters && rc == 0; i++) rc = tc_export_part(x, f, &x->adapter[i], TC_FORM_HF, err);
  free(st);
  return tc_output_end(f, rc, err);
}

int tc_export_peft(struct tc_export *x, struct tc_err *err)
{
  char *made = NULL, *config = tc_sprintf("%s/" TC_ADAPTER_CONFIG, x->o->out), *weights = tc_sprintf("%s/" TC_ADAPTER_WEIGHTS, x->o->out);
  int rc = tc_export_model(x, err);
  if (rc == 0) rc = tc_export_adapters(x, err);
  if (rc == 0 && !x->n_adapters) rc = tc_fail(err, TC_EUSER, "%s has no adapters: it is not of a run with train.lora", x->c->path);
  if (rc == 0) rc = tc_folder_make_new(x->o->out, &made, err);
  const bool mine = rc == 0;
  if (rc == 0) rc = tc_export_free(x, config, err);
  if (rc == 0) rc = tc_export_free(x, weights, err);
  if (rc == 0) rc = write_weights(x, weights, err);
  if (rc == 0) {
    rc = tc_export_text(x, TC_ADAPTER_CONFIG, tc_adapter_config(x->adapter, x->n_adapters, &x->model, x->cfg), err);
    if (rc < 0) tc_unlink(AT_FDCWD, weights);
  }
  x->files = 2;
  if (mine && rc < 0) tc_folder_unmake(x->o->out, made);
  else free(made);
  for (int i = 0; i < x->n_made; i++) free(x->made[i]);
  TC_FREE(x->made, config, weights);
  return rc;
}
