/* import.c - makes a checkpoint to start from out of another program's file: what the train program of its configuration
 * saves, the weights from the file, the optimizer's state from the file or zero.
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
#include "src/program/setup.h"

struct import {
  const struct tc_import_opts *o;
  struct tc_foreign *from;
  float *weights;                 /* mapped; our tensors one after the other */
  int64_t elems;
  struct tc_owner *owner;         /* of the folder of checkpoints */
  char *made;                     /* the outermost folder that the import made; owned; NULL */
  int64_t step;
  json_t *left_out;               /* tc_left_out, of a folder; NULL: of another form; owned */
};

/* ---- the folder and the weights ----------------------------------------------------- */

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
static int take_folder(struct import *x, struct tc_err *err)
{
  int rc;
  TC_TRY(tc_folder_make_new(x->o->out, &x->made, err));
  x->owner = tc_owner_new(x->o->out, "", 0);
  while ((rc = tc_owner_take(x->owner, err)) == 1) tc_sleep_ns(TC_OWNER_LOOK_NS);
  return rc;
}

/* Ends the ownership. After a failure, a folder that was made for the import goes with what its owner left in it. */
static void leave_folder(struct import *x, bool failed)
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
static int map_weights(struct import *x, struct tc_err *err)
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

static int read_weights(struct import *x, struct tc_err *err)
{
  const int64_t zero[TC_DIMS] = { 0 };
  const int n = x->from->n;
  for (int i = 0; i < n; i++) x->elems += tc_box_elems(x->from->tensor[i].rank, x->from->tensor[i].dim);
  TC_TRY(map_weights(x, err));
  float *to = x->weights;
  for (int i = 0; i < n; i++) {
    const struct tc_ckpt_tensor *t = &x->from->tensor[i];
    TC_TRY(tc_foreign_read(x->from, i, zero, t->dim, to, err));
    to += tc_box_elems(t->rank, t->dim);
  }
  return 0;
}

/* ---- the checkpoint ------------------------------------------------------------------ */

/* The tensors that a train program of this configuration saves. */
struct saved {
  struct tc_program *program;
  struct tc_mesh *mesh;
  struct tc_program_opts opts;
  struct tc_annotation *rows;
  struct tc_ckpt_tensor *tensor;
  struct tc_ckpt_slice *slice;
  int n;
  void **map; size_t *bytes;      /* of each tensor that is not a weight; NULL */
  const char *given, *absent;     /* the first of these tensors that the file has, and that it has not; NULL: none */
};

/* Maps a tensor that is not a weight: the file's if it has it, else zeros, which need no memory. */
static int map_state(const struct import *x, struct saved *s, int i, struct tc_err *err)
{
  const struct tc_ckpt_tensor *t = &s->tensor[i];
  const struct tc_st_files *st = x->from->st;
  int k = x->from->form == TC_FORM_OURS ? tc_st_files_find(st, t->name) : -1;
  size_t bytes = (size_t)tc_box_bytes(t->dtype, t->rank, t->dim);
  s->map[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
  if (s->map[i] == MAP_FAILED) {
    s->map[i] = NULL;
    return tc_fail(err, TC_EUSER, "no memory for tensor %s: %s", t->name, strerror(errno));
  }
  s->bytes[i] = bytes;
  s->slice[i].data = s->map[i];
  const char **first = k < 0 ? &s->absent : &s->given;
  if (!*first) *first = t->name;
  if (k < 0) return 0;
  const struct tc_st_tensor *f = tc_st_files_at(st, k);
  if (f->dtype != t->dtype)
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another type than this optimizer's",
                   x->from->file, t->name);
  if (!tc_ckpt_has_shape(t, f->rank, f->dim))
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another shape than this model's", x->from->file, t->name);
  return tc_st_files_read(st, k, 0, f->bytes, s->map[i], err);
}

static int list_saved(const struct import *x, struct saved *s, struct tc_err *err)
{
  s->mesh = tc_mesh_one();
  TC_TRY(tc_setup_program(&s->opts, x->o->cfg, s->mesh, &s->rows, err));
  TC_TRY(tc_program_new(&s->program, &s->opts, s->mesh, 0, NULL, "update", err));
  const struct tc_graph *g = s->program->graph;
  size_t most = (size_t)g->n_tensors + 1;
  s->tensor = tc_calloc(most, sizeof *s->tensor);
  s->slice = tc_calloc(most, sizeof *s->slice);
  s->map = tc_calloc(most, sizeof *s->map);
  s->bytes = tc_calloc(most, sizeof *s->bytes);
  float *weights = x->weights;
  int k = 0;                      /* the next of the weights: the program has them in the same order */
  for (int32_t id = 0; id < g->n_tensors; id++) {
    const struct tc_tensor *t = &g->tensor[id];
    if (!t->state || !t->saved) continue;
    int i = s->n++;
    s->tensor[i] = (struct tc_ckpt_tensor){ .name = t->name, .dtype = t->dtype, .rank = t->rank };
    memcpy(s->tensor[i].dim, t->dim, sizeof t->dim);
    s->slice[i].tensor = i;
    memcpy(s->slice[i].count, t->dim, sizeof t->dim);
    if (k < x->from->n && strcmp(x->from->tensor[k].name, t->name) == 0) {
      s->slice[i].data = weights;
      weights += tc_box_elems(t->rank, t->dim);
      k++;
    } else {
      TC_TRY(map_state(x, s, i, err));
    }
  }
  TC_ASSERT(k == x->from->n && weights == x->weights + x->elems);
  if (s->given && s->absent)
    return tc_fail(err, TC_EUSER, "%s has %s, but not %s: all of the optimizer's state, or none of it, can be imported",
                   x->from->file, s->given, s->absent);
  return 0;
}

static void saved_free(struct saved *s)
{
  for (int i = 0; i < s->n; i++)
    if (s->map[i]) munmap(s->map[i], s->bytes[i]);
  TC_FREE(s->tensor, s->slice, s->map, s->bytes);
  tc_program_free(s->program);
  tc_annotations_free(s->rows);
  tc_mesh_free(s->mesh);
}

/* A number in the metadata of the file; 0 if it has none. */
static int64_t noted(const struct import *x, const char *key)
{
  const struct tc_st_files *st = x->from->st;
  const char *note = st ? tc_st_files_note(st, key) : NULL;
  char *end;
  if (!note) return 0;
  int64_t n = strtoll(note, &end, 10);
  return *end || n < 0 || n > INT64_C(1) << 53 ? 0 : n;
}

/* Warns of tokens that the model does not have. */
static void warn_of_more(const struct tc_tokenizer *t, int64_t vocab, const char *path)
{
  const int64_t n = tc_tokenizer_beyond(t, vocab);
  char shown[TC_TOKEN_SHOWN] = "";
  for (int64_t id = vocab; n > 0 && !*shown && id < tc_tokenizer_vocab(t); id++) tc_token_shown(t, (uint32_t)id, shown);
  if (n > 0)
    tc_warn("%s has %lld token%s, from %s on, beyond the model's vocabulary of %lld: text with %s is refused", path,
            (long long)n, tc_plural(n), shown, (long long)vocab, n == 1 ? "it" : "one of them");
}

/* The tokenizer.json beside Hugging Face's file: *text[*bytes], which is returned with its hash as runs note it; both
 * owned. NULL: the folder has no tokenizer.json, or one that tercio data refuses, of which it warns. *beside:
 * tc_beside_take's. Sets x->left_out. */
static char *take_tokenizer(struct import *x, char **text, size_t *bytes, char **beside)
{
  char *dir = tc_folder_of(x->from->file), *path = tc_sprintf("%s/" TC_TOKENIZER_FILE, dir), *note = NULL;
  const struct tc_model *m = &x->from->model;
  struct tc_tokenizer *t = NULL;
  struct tc_err why;
  *text = *beside = NULL;
  if (x->from->form == TC_FORM_HF && tc_is_there(path)) {
    int rc = tc_tokenizer_read(text, bytes, path, &why);
    if (rc == 0) rc = tc_tokenizer_parse(&t, *text, *bytes, path, &why);
    if (rc == 0) {
      note = tc_sprintf(TC_TOKENIZER_NOTE, tc_tokenizer_hash(t));
      warn_of_more(t, m->vocab, path);
    } else {
      tc_warn("%s: the checkpoint goes without the tokenizer", why.text);
      free(*text);
      *text = NULL;
    }
  }
  if (x->from->form == TC_FORM_HF) *beside = tc_beside_take(dir);
  if (x->from->form == TC_FORM_HF && tc_is_folder(x->o->path))
    x->left_out = tc_left_out(dir, tc_special_ids(t, m, !t, x->o->cfg->data_end_token));
  tc_tokenizer_free(t);
  TC_FREE(path, dir);
  return note;
}

static int save(struct import *x, struct tc_err *err)
{
  struct saved s = {0};
  int rc = list_saved(x, &s, err);
  if (rc == 0) {
    const char *const names[] = { "ckpt import" };
    const struct tc_comm_opts o = { .name = "world" };
    struct tc_comm *self = tc_comm_self(&o);
    char *tokenizer, *beside, mesh[TC_MESH_TEXT];
    size_t bytes = 0;
    char *model = tc_model_text(&x->from->model), *config = tc_config_text(x->o->cfg),
         *data = take_tokenizer(x, &tokenizer, &bytes, &beside);
    const bool given = !s.absent;
    x->step = given ? noted(x, "tercio.step") : 0;        /* that of the optimizer's moments */
    struct tc_ckpt_meta meta = { .step = x->step, .seed = (uint64_t)x->o->cfg->train_seed,
      .tokens = given ? noted(x, "tercio.tokens") : 0, .model = model,
      .config = config, .data = data, .mesh = tc_mesh_text(mesh, s.mesh->size, "", " "), .system = s.opts.system->name, .job = "",
      .rank_names = names, .lease = tc_owner_lease(x->owner),
      .attached = { { tokenizer ? TC_TOKENIZER_FILE : NULL, tokenizer, (int64_t)bytes, 0 },
                    { beside ? TC_BESIDE_FILE : NULL, beside, beside ? (int64_t)strlen(beside) : 0, 0 } } };
    rc = tc_ckpt_save(x->o->out, &meta, s.tensor, s.n, s.slice, s.n, self, err);
    tc_comm_free(self);
    TC_FREE(model, config, data, tokenizer, beside);
  }
  saved_free(&s);
  return rc;
}

/* ---- the import ---------------------------------------------------------------------- */

static int import(struct import *x, struct tc_err *err)
{
  const char *dir = x->o->out;
  if (x->o->cfg->train_lora)
    return tc_fail(err, TC_EUSER, "ckpt import makes the weights that adapters stand beside: leave train.lora out; the run that "
                   "has it names them as ckpt.from, and PEFT's folder as ckpt.adapter");
  TC_TRY(tc_foreign_open(&x->from, x->o->path, x->o->rope, x->o->cfg, err));
  TC_TRY(no_steps(dir, err));     /* before anything is changed; and again when we own the folder */
  TC_TRY(take_folder(x, err));
  TC_TRY(no_steps(dir, err));
  TC_TRY(read_weights(x, err));
  return save(x, err);
}

int tc_foreign_import(struct tc_imported *r, const struct tc_import_opts *o, struct tc_err *err)
{
  struct import x = { .o = o };
  *r = (struct tc_imported){ 0 };
  const int rc = import(&x, err);
  if (rc == 0)
    *r = (struct tc_imported){ .from = tc_strdup(x.from->file), .path = tc_ckpt_step_path(o->out, x.step),
      .model = tc_model_text(&x.from->model), .form = x.from->form, .step = x.step,
      .left_out = json_incref(x.left_out) };
  if (x.weights) munmap(x.weights, (size_t)x.elems * sizeof *x.weights);
  json_decref(x.left_out);
  tc_foreign_close(x.from);
  leave_folder(&x, rc < 0);
  return rc;
}

void tc_imported_free(struct tc_imported *r)
{
  TC_FREE(r->from, r->path, r->model);
  json_decref(r->left_out);
}
