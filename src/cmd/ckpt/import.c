/* import.c - `tercio ckpt import`: makes a checkpoint to start from out of another program's
 * file.
 *
 * - The model's sizes are those of the file's tensors; config.json, the file's header and the
 *   user's options must agree with them.
 * - The checkpoint has the tensors that the train program of this configuration saves: the
 *   weights from the file, the optimizer's state from the file or zero.
 * - The weights are in an unlinked, mapped file beside the checkpoint, so that little memory is used. */
#include "src/cmd/ckpt/ckpt.h"
#include "src/cmd/ckpt/gpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"
#include "io/ckpt/owner.h"
#include "io/formats/safetensors.h"
#include "src/program/setup.h"

enum { BATCH = 1 << 18 };         /* elements read at a time */

struct import {
  const struct ckpt_args *args;
  enum gpt_form form;
  char *file, *config_file;       /* the input; owned; config_file NULL: none */
  struct tc_st *st;               /* or */
  struct tc_llmc *llmc;
  struct tc_model model;
  struct tc_config *cfg;
  struct gpt_tensor *tensor; int n;
  float *weights;                 /* mapped; our tensors one after the other */
  int64_t elems;
  struct tc_owner *owner;         /* of the folder of checkpoints */
  int64_t step;
};

/* ---- what file it is --------------------------------------------------------------- */

/* FOLDER: model.safetensors and config.json in it; FILE: config.json beside it, if it exists. */
static int find_files(struct import *x, const char *path, struct tc_err *err)
{
  struct stat st;
  if (stat(path, &st) < 0) return tc_fail(err, TC_EUSER, "%s: %s", path, strerror(errno));
  bool folder = S_ISDIR(st.st_mode);
  const char *slash = strrchr(path, '/');
  x->file = folder ? tc_sprintf("%s/model.safetensors", path) : tc_strdup(path);
  x->config_file = folder ? tc_sprintf("%s/config.json", path)
    : slash ? tc_sprintf("%.*s/config.json", (int)(slash - path), path) : tc_strdup("config.json");
  if (access(x->config_file, F_OK) < 0) {
    free(x->config_file);
    x->config_file = NULL;
  }
  if (access(x->file, F_OK) == 0) return 0;
  char *index = tc_sprintf("%s.index.json", x->file);
  bool split = access(index, F_OK) == 0;
  free(index);
  return tc_fail(err, TC_EUSER, split ? "%s: the model is split over several files; save it as one "
                 "(max_shard_size of save_pretrained)" : "%s does not exist: a folder must have it",
                 x->file);
}

static int open_file(struct import *x, struct tc_err *err)
{
  int32_t magic = 0;
  int fd = open(x->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) {
    if (!tc_pread_all(fd, &magic, sizeof magic, 0)) magic = 0;
    close(fd);
  }
  if (magic == 20240326) {
    x->form = GPT_LLMC;
    return tc_llmc_open(&x->llmc, x->file, err);
  }
  TC_TRY(tc_st_open(&x->st, x->file, err));
  x->form = tc_st_find(x->st, "h.0.attn.qkv.weight") >= 0 ? GPT_OURS : GPT_HF;
  return 0;
}

/* The file's tensor of this name; -1. Hugging Face's may begin with "transformer.". */
static int find_name(const struct import *x, const char *name)
{
  char full[100];
  int i = tc_st_find(x->st, name);
  snprintf(full, sizeof full, "transformer.%s", name);
  return i >= 0 || x->form == GPT_OURS ? i : tc_st_find(x->st, full);
}

/* ---- sizes ------------------------------------------------------------------------- */

/* Derives the sizes from the tensors of a safetensors file: all except heads, which only our own format shows. */
static int sizes_of_tensors(struct import *x, struct tc_err *err)
{
  int wte = find_name(x, "wte.weight"), wpe = find_name(x, "wpe.weight");
  char name[64];
  int64_t layers = 0;
  do snprintf(name, sizeof name, "h.%lld.ln_1.weight", (long long)layers);
  while (find_name(x, name) >= 0 && ++layers);
  if (wte < 0 || wpe < 0 || layers == 0)
    return tc_fail(err, TC_EUSER, "%s: not a GPT-2: it has no tensor %s", x->file,
                   wte < 0 ? "wte.weight" : wpe < 0 ? "wpe.weight" : "h.0.ln_1.weight");
  const struct tc_st_tensor *e = tc_st_at(x->st, wte), *p = tc_st_at(x->st, wpe);
  if (e->rank != 2 || p->rank != 2 || e->dim[1] != p->dim[1])
    return tc_fail(err, TC_EUSER, "%s: wte.weight and wpe.weight are not matrices of one width",
                   x->file);
  x->model = (struct tc_model){ .preset = "", .layers = layers, .hidden = e->dim[1],
                                .vocab = e->dim[0], .context = p->dim[0] };
  if (x->form == GPT_OURS) {
    const struct tc_st_tensor *q = tc_st_at(x->st, find_name(x, "h.0.attn.qkv.weight"));
    x->model.heads = q->rank == 4 ? q->dim[0] : 0;
  }
  return 0;
}

static int check_config_sizes(const struct import *x, const json_t *c, struct tc_err *err)
{
  const struct { const char *key; int64_t have; } size[] = {
    { "n_layer", x->model.layers }, { "n_embd", x->model.hidden },
    { "n_positions", x->model.context }, { "vocab_size", x->model.vocab } };
  for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
    const json_t *j = json_object_get(c, size[i].key);
    if (j && (int64_t)json_integer_value(j) != size[i].have)
      return tc_fail(err, TC_EUSER, "%s: \"%s\" is %lld, but the tensors in %s have %lld",
                     x->config_file, size[i].key, (long long)json_integer_value(j), x->file,
                     (long long)size[i].have);
  }
  return 0;
}

static int read_sizes(struct import *x, struct tc_err *err)
{
  if (x->form == GPT_LLMC) {
    const struct tc_llmc_sizes *s = tc_llmc_sizes(x->llmc);
    x->model = (struct tc_model){ .layers = s->layers, .hidden = s->hidden, .heads = s->heads, .context = s->context,
    .vocab = s->vocab };
    return 0;
  }
  TC_TRY(sizes_of_tensors(x, err));
  if (x->form == GPT_HF && x->config_file) {
    json_t *c = NULL;
    TC_TRY(gpt_config_read(&c, x->config_file, err));
    int rc = gpt_config_check(c, &x->model.heads, x->config_file, err);
    if (rc == 0) rc = check_config_sizes(x, c, err);
    json_decref(c);
    TC_TRY(rc);
  }
  return 0;
}

/* The run's options, with the model's sizes from the file; options of the user must agree. */
static int make_config(struct import *x, struct tc_err *err)
{
  const struct ckpt_args *a = x->args;
  char **argv = tc_calloc((size_t)a->n_flags + 2, sizeof *argv), word[] = "import";
  argv[0] = word;
  for (int i = 0; i < a->n_flags; i++) argv[i + 1] = a->flag[i];
  int rc = tc_config_new(&x->cfg, a->n_flags + 1, argv, NULL, NULL, err);
  free(argv);
  TC_TRY(rc);
  struct tc_config *c = x->cfg;
  struct { const char *key; int64_t *said, *have; } size[] = {
    { "layers", &c->model_layers, &x->model.layers },
    { "hidden", &c->model_hidden, &x->model.hidden },
    { "heads", &c->model_heads, &x->model.heads },
    { "context", &c->model_context, &x->model.context },
    { "vocab", &c->model_vocab, &x->model.vocab } };
  for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
    if (*size[i].have == 0) *size[i].have = *size[i].said;       /* heads, without config.json */
    if (*size[i].said == 0) *size[i].said = *size[i].have;
    if (*size[i].said != *size[i].have)
      return tc_fail(err, TC_EUSER, "%s: model.%s is %lld in the file, not %lld", x->file, size[i].key,
                     (long long)*size[i].have, (long long)*size[i].said);
  }
  if (x->model.heads == 0)
    return tc_fail(err, TC_EUSER, "%s: without config.json beside it the number of heads of "
                   "the model is unknown: give --model.heads=N", x->file);
  return tc_model_resolve(&x->model, err);
}

/* ---- weights ----------------------------------------------------------------------- */

static float value_of(const void *buf, int dtype, int64_t i)
{
  if (dtype == TC_F32) return ((const float *)buf)[i];
  uint16_t h = ((const uint16_t *)buf)[i];
  return dtype == TC_BF16 ? tc_bf16_to_f32(h) : gpt_half_to_f32(h);
}

/* The position of a tensor in the file. */
struct place { int index, dtype; int64_t from; };

static int find_place(const struct import *x, const struct gpt_tensor *t, struct place *p,
                      struct tc_err *err)
{
  if (x->form == GPT_LLMC) {
    *p = (struct place){ .dtype = tc_llmc_dtype(x->llmc),
                         .from = tc_llmc_place(tc_llmc_sizes(x->llmc), t->llmc, t->layer) };
    return 0;
  }
  const char *name = x->form == GPT_HF ? t->hf : t->ours;
  p->index = find_name(x, name);
  if (p->index < 0) return tc_fail(err, TC_EUSER, "%s: tensor %s is missing", x->file, name);
  const struct tc_st_tensor *s = tc_st_at(x->st, p->index);
  int rank;
  int64_t dim[2], elems = 1;
  gpt_hf_shape(t, &rank, dim);
  for (int d = 0; d < s->rank; d++) elems *= s->dim[d];
  bool right = x->form == GPT_HF ? s->rank == rank && s->dim[0] == dim[0] &&
               (rank == 1 || s->dim[1] == dim[1]) : elems == gpt_elems(t);
  if (!right)
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another shape than a model of hidden size "
                   "%lld needs", x->file, name, (long long)x->model.hidden);
  p->dtype = s->dtype;
  if (p->dtype == TC_F32 || p->dtype == TC_BF16 || p->dtype == TC_ST_F16) return 0;
  return tc_fail(err, TC_EUSER, "%s: tensor %s is not of type F32, BF16 or F16", x->file, name);
}

/* Reads a tensor into ours[rows * cols]. */
static int read_tensor(const struct import *x, const struct gpt_tensor *t, float *ours,
                       struct tc_err *err)
{
  struct place p = {0};
  TC_TRY(find_place(x, t, &p, err));
  int64_t elems = gpt_elems(t), size = p.dtype == TC_F32 ? 4 : 2;
  char *buf = tc_malloc((size_t)(BATCH * size));
  int rc = 0;
  for (int64_t at = 0; at < elems && rc == 0; at += BATCH) {
    int64_t n = TC_MIN(BATCH, elems - at);
    rc = x->st ? tc_st_read(x->st, p.index, at * size, n * size, buf, err)
               : tc_llmc_read(x->llmc, p.from + at, n, buf, err);
    for (int64_t i = 0; i < n && rc == 0; i++)
      ours[gpt_place(t, x->form, at + i)] = value_of(buf, p.dtype, i);
  }
  free(buf);
  return rc;
}

/* Whether a tensor is optional: optimizer state or, in Hugging Face's files, the tied head and masks. */
static bool is_optional(const struct import *x, const char *name)
{
  const char *const ends[] = { "lm_head.weight", ".attn.bias", ".attn.masked_bias" };
  if (x->form == GPT_OURS) return strncmp(name, "optim.", 6) == 0;
  size_t len = strlen(name);
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (len >= strlen(ends[i]) && strcmp(name + len - strlen(ends[i]), ends[i]) == 0) return true;
  return false;
}

/* Checks that all of the model's tensors are in the file with their shapes, and that each tensor of the file is
 * used or known to be unnecessary: nothing is ignored silently. */
static int check_tensors(struct import *x, struct tc_err *err)
{
  bool *used = tc_calloc(x->st ? (size_t)tc_st_n(x->st) + 1 : 1, sizeof *used);
  int rc = 0;
  for (int i = 0; i < x->n && rc == 0; i++) {
    struct place p = {0};
    rc = find_place(x, &x->tensor[i], &p, err);
    x->elems += gpt_elems(&x->tensor[i]);
    if (rc == 0) used[x->st ? p.index : 0] = true;
  }
  for (int i = 0; x->st && i < tc_st_n(x->st) && rc == 0; i++)
    if (!used[i] && !is_optional(x, tc_st_at(x->st, i)->name))
      rc = tc_fail(err, TC_EUSER, "%s: tensor %.100s does not belong to GPT-2: another model", x->file,
                   tc_st_at(x->st, i)->name);
  free(used);
  return rc;
}

/* Maps an unlinked file in the folder of the checkpoints. */
static int map_weights(struct import *x, struct tc_err *err)
{
  char *path = tc_sprintf("%s/.import-XXXXXX", x->args->out);
  size_t bytes = (size_t)x->elems * sizeof *x->weights;
  int fd = mkstemp(path), why = fd < 0 ? errno : 0;
  if (fd >= 0) unlink(path);
  if (fd >= 0) why = posix_fallocate(fd, 0, (off_t)bytes);
  void *map = why ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!why && map == MAP_FAILED) why = errno;
  if (fd >= 0) close(fd);
  free(path);
  if (why)
    return tc_fail(err, TC_EUSER, "%s: no space for %zu bytes: %s", x->args->out, bytes,
                   strerror(why));
  x->weights = map;
  return 0;
}

static int read_weights(struct import *x, struct tc_err *err)
{
  x->n = gpt_tensors(&x->tensor, &x->model);
  TC_TRY(check_tensors(x, err));
  TC_TRY(map_weights(x, err));
  float *at = x->weights;
  for (int i = 0; i < x->n; at += gpt_elems(&x->tensor[i++]))
    TC_TRY(read_tensor(x, &x->tensor[i], at, err));
  return 0;
}

/* ---- the checkpoint ---------------------------------------------------------------- */

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
};

/* Compares a tensor of our own format with that of this configuration. */
static int check_shape(const struct import *x, const struct tc_st_tensor *f,
                       const struct tc_ckpt_tensor *t, struct tc_err *err)
{
  bool same = f->rank == t->rank;
  for (int d = 0; same && d < t->rank; d++) same = f->dim[d] == t->dim[d];
  return same ? 0 : tc_fail(err, TC_EUSER, "%s: tensor %s has another shape than this model's", x->file,
                            t->name);
}

/* Maps a tensor that is not a weight: the file's if it has it, else zeros, which need no memory. */
static int map_state(const struct import *x, struct saved *s, int i, bool *given,
                     struct tc_err *err)
{
  const struct tc_ckpt_tensor *t = &s->tensor[i];
  int k = x->form == GPT_OURS ? tc_st_find(x->st, t->name) : -1;
  size_t bytes = (size_t)tc_box_bytes(t->dtype, t->rank, t->dim);
  s->map[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
  if (s->map[i] == MAP_FAILED) {
    s->map[i] = NULL;
    return tc_fail(err, TC_EUSER, "no memory for tensor %s: %s", t->name, strerror(errno));
  }
  s->bytes[i] = bytes;
  s->slice[i].data = s->map[i];
  if (k < 0) {
    *given = false;
    return 0;
  }
  const struct tc_st_tensor *f = tc_st_at(x->st, k);
  if (f->dtype != t->dtype)
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another type than this optimizer's", x->file,
                   t->name);
  TC_TRY(check_shape(x, f, t, err));
  return tc_st_read(x->st, k, 0, f->bytes, s->map[i], err);
}

static int list_saved(const struct import *x, struct saved *s, bool *given, struct tc_err *err)
{
  s->mesh = tc_mesh_one();
  TC_TRY(tc_setup_program(&s->opts, x->cfg, s->mesh, &s->rows, err));
  TC_TRY(tc_program_new(&s->program, &s->opts, s->mesh, 0, NULL, "optim", err));
  const struct tc_graph *g = s->program->graph;
  size_t most = (size_t)g->n_tensors + 1;
  s->tensor = tc_calloc(most, sizeof *s->tensor);
  s->slice = tc_calloc(most, sizeof *s->slice);
  s->map = tc_calloc(most, sizeof *s->map);
  s->bytes = tc_calloc(most, sizeof *s->bytes);
  *given = true;
  int k = 0;                      /* the next weight: the program has them in the same order */
  float *at = x->weights;
  for (int32_t id = 0; id < g->n_tensors; id++) {
    const struct tc_tensor *t = &g->tensor[id];
    if (!t->state || !t->saved) continue;
    int i = s->n++;
    s->tensor[i] = (struct tc_ckpt_tensor){ .name = t->name, .dtype = t->dtype, .rank = t->rank };
    memcpy(s->tensor[i].dim, t->dim, sizeof t->dim);
    s->slice[i].tensor = i;
    memcpy(s->slice[i].count, t->dim, sizeof t->dim);
    if (k < x->n && strcmp(x->tensor[k].ours, t->name) == 0) {
      if (x->form == GPT_OURS)
        TC_TRY(check_shape(x, tc_st_at(x->st, find_name(x, t->name)), &s->tensor[i], err));
      s->slice[i].data = at;
      at += gpt_elems(&x->tensor[k++]);
    } else {
      TC_TRY(map_state(x, s, i, given, err));
    }
  }
  TC_ASSERT(k == x->n);
  return 0;
}

static void saved_free(struct saved *s)
{
  for (int i = 0; i < s->n; i++)
    if (s->map[i]) munmap(s->map[i], s->bytes[i]);
  free(s->tensor);
  free(s->slice);
  free(s->map);
  free(s->bytes);
  tc_program_free(s->program);
  tc_annotations_free(s->rows);
  tc_mesh_free(s->mesh);
}

/* With the optimizer's moments the checkpoint has their step, else step 0. */
static int64_t step_of(const struct import *x, bool given)
{
  const char *note = x->st ? tc_st_note(x->st, "tercio.step") : NULL;
  char *end;
  if (!given || !note) return 0;
  int64_t step = strtoll(note, &end, 10);
  return *end || step < 0 || step > INT64_C(1) << 53 ? 0 : step;
}

static int save(struct import *x, struct tc_err *err)
{
  struct saved s = {0};
  bool given;
  int rc = list_saved(x, &s, &given, err);
  if (rc == 0) {
    const char *const who[] = { "ckpt import" };
    const struct tc_comm_opts o = { .name = "world" };
    struct tc_comm *self = tc_comm_self(&o);
    char *model = tc_model_text(&x->model), *config = tc_config_text(x->cfg);
    x->step = step_of(x, given);
    struct tc_ckpt_meta meta = { .step = x->step, .seed = (uint64_t)x->cfg->train_seed,
      .tokens = x->step * x->cfg->train_global_batch * x->model.context, .model = model,
      .config = config, .mesh = "pp1 dp1 tp1", .system = s.opts.system->name, .job = "",
      .who = who, .lease = tc_owner_lease(x->owner) };
    rc = tc_ckpt_save(x->args->out, &meta, s.tensor, s.n, s.slice, s.n, self, err);
    tc_comm_free(self);
    free(model);
    free(config);
  }
  saved_free(&s);
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
  x->owner = tc_owner_new(x->args->out, "", 0);
  while ((rc = tc_owner_take(x->owner, err)) == 1) tc_sleep_ns(TC_OWNER_LOOK_NS);
  return rc;
}

static int import(struct import *x, struct tc_err *err)
{
  const char *dir = x->args->out;
  TC_TRY(find_files(x, x->args->path[0], err));
  TC_TRY(open_file(x, err));
  TC_TRY(read_sizes(x, err));
  TC_TRY(make_config(x, err));
  TC_TRY(no_steps(dir, err));     /* before anything is changed; and again when we own the folder */
  TC_TRY(take_folder(x, err));
  TC_TRY(no_steps(dir, err));
  TC_TRY(read_weights(x, err));
  return save(x, err);
}

int ckpt_cmd_import(const struct ckpt_args *a, struct tc_err *err)
{
  struct import x = { .args = a };
  const char *const form[] = { "safetensors", "hf", "llmc" };
  if (!a->out)
    return tc_fail(err, TC_EUSER, "ckpt import: -o DIR, the folder of checkpoints, is missing");
  int rc = import(&x, err);
  if (rc == 0) {
    char *path = tc_ckpt_step_path(a->out, x.step), *model = tc_model_text(&x.model);
    if (a->json)
      ckpt_print_json(json_pack("{s:o, s:o, s:s, s:I, s:s}", "from", tc_text_json(x.file), "path",
        tc_text_json(path), "format", form[x.form], "step", (json_int_t)x.step, "model", model));
    else printf("%s: %s\n", path, model);
    free(path);
    free(model);
  }
  if (x.weights) munmap(x.weights, (size_t)x.elems * sizeof *x.weights);
  tc_st_close(x.st);
  tc_llmc_close(x.llmc);
  tc_config_free(x.cfg);
  tc_owner_free(x.owner);
  free(x.tensor);
  free(x.file);
  free(x.config_file);
  return rc;
}
