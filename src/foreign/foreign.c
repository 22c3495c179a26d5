/* foreign.c - which file a path means, and which model it has.
 *
 * - A GPT-2's sizes are those of the file's tensors; config.json, the file's header and the user's
 *   options must agree with them.
 * - Those of other models are config.json's; the tensors must agree with them. */
#include "src/foreign/impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"
#include "src/program/setup.h"

/* ---- what file it is --------------------------------------------------------------- */

/* The first file of these names that the folder has; owned; NULL: none. */
static char *first_of(const char *const *names, size_t n, const char *folder)
{
  for (size_t i = 0; i < n; i++) {
    char *file = tc_sprintf("%s/%s", folder, names[i]);
    if (tc_is_there(file)) return file;
    free(file);
  }
  return NULL;
}

bool tc_foreign_is(const char *path)
{
  static const char *const names[] = { "config.json", "model.safetensors", "model.safetensors.index.json" };
  struct stat st;
  if (tc_stat(path, &st)) return false;
  if (!S_ISDIR(st.st_mode)) return S_ISREG(st.st_mode);
  char *file = first_of(names, sizeof names / sizeof *names, path);
  const bool has = file != NULL;
  free(file);
  return has;
}

char *tc_foreign_weights(const char *config)
{
  static const char *const names[] = { "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                       "pytorch_model.bin.index.json", "consolidated.00.pth", "tf_model.h5" };
  char *folder = tc_is_folder(config) ? tc_strdup(config) : tc_folder_of(config);
  char *file = first_of(names, sizeof names / sizeof *names, folder);
  free(folder);
  return file;
}

bool tc_adapter_is(const char *path)
{
  char *file = tc_sprintf("%s/" TC_ADAPTER_CONFIG, path);
  const bool is = tc_is_there(file);
  free(file);
  return is;
}

/* FOLDER: model.safetensors in it, else the index of several files, with config.json; FILE: config.json
 * beside it, if it exists. */
static int find_files(struct tc_foreign *x, const char *path, struct tc_err *err)
{
  struct stat st;
  const int why = tc_stat(path, &st);
  if (why) return tc_fail(err, TC_EUSER, "%s: %s", path, strerror(why));
  bool folder = S_ISDIR(st.st_mode);
  const char *slash = strrchr(path, '/');
  x->file = folder ? tc_sprintf("%s/model.safetensors", path) : tc_strdup(path);
  x->config_file = folder ? tc_sprintf("%s/config.json", path)
    : slash ? tc_sprintf("%.*s/config.json", (int)(slash - path), path) : tc_strdup("config.json");
  if (!tc_is_there(x->config_file)) {
    free(x->config_file);
    x->config_file = NULL;
  }
  if (tc_is_there(x->file)) return 0;
  char *index = tc_sprintf("%s.index.json", x->file);
  if (tc_is_there(index)) {
    free(x->file);
    x->file = index;
    return 0;
  }
  free(index);
  if (tc_adapter_is(path))
    return tc_fail(err, TC_EUSER, "%s has adapters of PEFT, and no model: ckpt.adapter (tercio train) or --adapter (tercio eval, "
                   "sample) names them beside one", path);
  return tc_fail(err, TC_EUSER, "%s does not exist: a folder must have it", x->file);
}

static int open_file(struct tc_foreign *x, struct tc_err *err)
{
  int32_t magic = 0;
  int fd = tc_open_read(x->file);
  if (fd >= 0) {
    if (!tc_pread_all(fd, &magic, sizeof magic, 0)) magic = 0;
    close(fd);
  }
  if (magic == 20240326) {
    x->form = TC_FORM_LLMC;
    return tc_llmc_open(&x->llmc, x->file, err);
  }
  TC_TRY(tc_st_files_open(&x->st, x->file, err));
  x->form = tc_st_files_find(x->st, "h.0.attn.qkv.weight") >= 0 ? TC_FORM_OURS : TC_FORM_HF;
  return 0;
}

/* ---- sizes ------------------------------------------------------------------------- */

/* Derives the sizes from the tensors of a safetensors file: all except heads, which only our own format shows. */
static int sizes_of_tensors(struct tc_foreign *x, struct tc_err *err)
{
  int wte = tc_foreign_index(x, "wte.weight"), wpe = tc_foreign_index(x, "wpe.weight");
  char name[64];
  int64_t layers = 0;
  do snprintf(name, sizeof name, "h.%lld.ln_1.weight", (long long)layers);
  while (tc_foreign_index(x, name) >= 0 && ++layers);
  if (wte < 0 || wpe < 0 || layers == 0)
    return tc_fail(err, TC_EUSER, "%s: not a GPT-2: it has no tensor %s", x->file,
                   wte < 0 ? "wte.weight" : wpe < 0 ? "wpe.weight" : "h.0.ln_1.weight");
  const struct tc_st_tensor *e = tc_st_files_at(x->st, wte), *p = tc_st_files_at(x->st, wpe);
  if (e->rank != 2 || p->rank != 2 || e->dim[1] != p->dim[1])
    return tc_fail(err, TC_EUSER, "%s: wte.weight and wpe.weight are not matrices of one width",
                   x->file);
  x->model = (struct tc_model){ .preset = "", .layers = layers, .hidden = e->dim[1],
                                .vocab = e->dim[0], .context = p->dim[0] };
  if (x->form == TC_FORM_OURS) {
    const struct tc_st_tensor *q = tc_st_files_at(x->st, tc_foreign_index(x, "h.0.attn.qkv.weight"));
    x->model.heads = q->rank == 4 ? q->dim[0] : 0;
  }
  return 0;
}

static int check_config_sizes(const struct tc_foreign *x, const struct tc_model *c, struct tc_err *err)
{
  const struct { const char *key; int64_t in_config, in_file; } size[] = {
    { "n_layer", c->layers, x->model.layers }, { "n_embd", c->hidden, x->model.hidden },
    { "n_positions", c->context, x->model.context }, { "vocab_size", c->vocab, x->model.vocab } };
  for (size_t i = 0; i < sizeof size / sizeof *size; i++)
    if (size[i].in_config && size[i].in_config != size[i].in_file)
      return tc_fail(err, TC_EUSER, "%s: \"%s\" is %lld, but the tensors in %s have %lld",
                     x->config_file, size[i].key, (long long)size[i].in_config, x->file,
                     (long long)size[i].in_file);
  return 0;
}

/* Refuses names of tensors that are known but not supported. */
static int check_names(const struct tc_foreign *x, struct tc_err *err)
{
  static const char *const meta[] = { "layers.0.attention.wq.weight", "tok_embeddings.weight" };
  for (int i = 0; i < 2; i++)
    if (tc_st_files_find(x->st, meta[i]) >= 0)
      return tc_fail(err, TC_EUSER, "%s: tensor %s has one of Meta's names (wq, wk), which are not supported; give "
                     "the tensors Hugging Face's names, and config.json: Meta's rotary order is then --rope "
                     "interleaved, unless the program that renamed them changed it", x->file, meta[i]);
  if (!x->config_file && tc_st_files_find(x->st, "model.embed_tokens.weight") >= 0)
    return tc_fail(err, TC_EUSER, "%s: without config.json beside it the number of heads and the rotary positions "
                   "of the model are unknown", x->file);
  return 0;
}

static int sizes_of_file(struct tc_foreign *x, struct tc_err *err)
{
  struct tc_model config;
  TC_TRY(check_names(x, err));
  if (x->config_file) {
    TC_TRY(tc_hf_read(&config, x->config_file, err));
    if (config.family != TC_FAMILY_GPT2) {
      x->model = config;
      return 0;
    }
  }
  TC_TRY(sizes_of_tensors(x, err));
  if (!x->config_file) return 0;
  x->model.heads = config.heads;
  x->model.norm_eps = config.norm_eps;
  x->model.act = config.act;
  return check_config_sizes(x, &config, err);
}

/* The model of a file of our own format, from its note. Tensors alone show only a GPT-2's sizes. */
static int sizes_of_note(struct tc_foreign *x, struct tc_err *err)
{
  struct tc_err why;
  const char *note = tc_st_files_note(x->st, "tercio.model");
  if (!note) return sizes_of_tensors(x, err);
  TC_TRY(tc_model_parse(&x->model, note, x->file, err));
  if (tc_hf_architecture(&x->model, &why)) return 0;
  return tc_fail(err, TC_EUSER, "%s: %s: import knows the tensors of Hugging Face's classes", x->file, why.text);
}

static int read_sizes(struct tc_foreign *x, const char *rope, struct tc_err *err)
{
  if (x->form == TC_FORM_LLMC) {
    const struct tc_llmc_sizes *s = tc_llmc_sizes(x->llmc);
    x->model = (struct tc_model){ .layers = s->layers, .hidden = s->hidden, .heads = s->heads, .context = s->context,
                                  .vocab = s->vocab };
  } else {
    TC_TRY(x->form == TC_FORM_HF ? sizes_of_file(x, err) : sizes_of_note(x, err));
  }
  x->interleaved = rope && strcmp(rope, "interleaved") == 0;
  if (rope && !x->interleaved && strcmp(rope, "half") != 0)
    return tc_fail(err, TC_EUSER, "--rope %s: give half or interleaved", rope);
  if (rope && (x->form != TC_FORM_HF || x->model.rope_theta <= 0))
    return tc_fail(err, TC_EUSER, "%s: --rope is only for Hugging Face's models with rotary positions", x->file);
  return 0;
}

/* Checks that the options of this run make the model that the file has. */
static int check_model(const struct tc_foreign *x, const struct tc_config *c, struct tc_err *err)
{
  struct tc_model m;
  TC_TRY(tc_setup_model(c, &m, err));
  char *is = tc_model_text(&m), *was = tc_model_text(&x->model);
  int rc = strcmp(is, was) == 0 ? 0
    : tc_fail(err, TC_EUSER, "%s is of another model than the options: %s; the options give %s", x->file, was, is);
  TC_FREE(is, was);
  return rc;
}

/* The model's sizes from the file; options of the user must agree. */
static int set_config(struct tc_foreign *x, struct tc_config *c, struct tc_err *err)
{
  const bool rotary = x->model.rope_theta > 0;
  if (rotary && c->model_context) x->model.context = c->model_context;
  struct { const char *key; int64_t *option, *in_file; } size[] = {
    { "layers", &c->model_layers, &x->model.layers },
    { "hidden", &c->model_hidden, &x->model.hidden },
    { "heads", &c->model_heads, &x->model.heads },
    { "context", &c->model_context, &x->model.context },
    { "vocab", &c->model_vocab, &x->model.vocab } };
  for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
    if (*size[i].in_file == 0 && !rotary) *size[i].in_file = *size[i].option;   /* heads, without config.json */
    if (*size[i].option == 0) *size[i].option = *size[i].in_file;
    if (*size[i].option != *size[i].in_file)
      return tc_fail(err, TC_EUSER, "%s: model.%s is %lld in the file, not %lld", x->file, size[i].key,
                     (long long)*size[i].in_file, (long long)*size[i].option);
  }
  if (x->model.heads == 0 && !rotary)
    return tc_fail(err, TC_EUSER, "%s: without config.json beside it the number of heads of "
                   "the model is unknown: give --model.heads=N", x->file);
  TC_TRY(tc_model_resolve(&x->model, err));
  if (!tc_model_is_plain(&x->model)) tc_setup_fill_model(c, &x->model);
  return check_model(x, c, err);
}

/* ---- an open model ----------------------------------------------------------------- */

static int open_model(struct tc_foreign *x, const char *path, const char *rope, struct tc_config *cfg,
                      struct tc_err *err)
{
  TC_TRY(find_files(x, path, err));
  TC_TRY(open_file(x, err));
  TC_TRY(read_sizes(x, rope, err));
  TC_TRY(set_config(x, cfg, err));
  return tc_foreign_list(x, err);
}

int tc_foreign_open(struct tc_foreign **out, const char *path, const char *rope, struct tc_config *cfg,
                    struct tc_err *err)
{
  struct tc_foreign *x = *out = tc_calloc(1, sizeof *x);
  const int rc = open_model(x, path, rope, cfg, err);
  if (rc == 0) return 0;
  tc_foreign_close(x);
  *out = NULL;
  return rc;
}

void tc_foreign_close(struct tc_foreign *x)
{
  if (!x) return;
  tc_st_files_close(x->st);
  tc_llmc_close(x->llmc);
  TC_FREE(x->tensor, x->first, x->part, x->file, x->config_file, x);
}

const char *tc_foreign_path(const struct tc_foreign *x) { return x->file; }
int tc_foreign_n(const struct tc_foreign *x) { return x->n; }
const struct tc_ckpt_tensor *tc_foreign_at(const struct tc_foreign *x, int i) { return &x->tensor[i]; }

int tc_foreign_find(const struct tc_foreign *x, const char *name)
{
  for (int i = 0; i < x->n; i++)
    if (strcmp(x->tensor[i].name, name) == 0) return i;
  return -1;
}
