/* adapter.c - a folder of PEFT's: adapter_config.json says what its matrices are for, adapter_model.safetensors has them.
 *
 * The file's tensors say which matrices have adapters; what the configuration says must agree. Of its members the table lists
 * those that are read, and those that change nothing here; any other has to be empty, since it may change what is computed. */
#include "src/foreign/impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/files/files.h"
#include "src/foreign/digest.h"
#include "src/program/setup.h"

enum { MOST_BYTES = 16 << 20 };

/* ---- adapter_config.json ----------------------------------------------------------------- */

/* How a member is checked. */
enum kind { READ, NOTHING, IS_LORA, IS_NONE, PLAIN_INIT };
static const struct { const char *name; enum kind kind; } members[] = {
  { "r", READ }, { "lora_alpha", READ }, { "use_rslora", READ }, { "lora_dropout", READ }, { "target_modules", READ },
  { "layers_to_transform", READ }, { "peft_type", IS_LORA }, { "bias", IS_NONE }, { "init_lora_weights", PLAIN_INIT },
  { "fan_in_fan_out", NOTHING },                 /* of the base's file; A and B are [outputs, inputs] anyway */
  { "layers_pattern", NOTHING }, { "base_model_name_or_path", NOTHING }, { "revision", NOTHING }, { "task_type", NOTHING },
  { "auto_mapping", NOTHING }, { "inference_mode", NOTHING }, { "peft_version", NOTHING }, { "loftq_config", NOTHING },
  { "megatron_core", NOTHING }, { "runtime_config", NOTHING }, { "ensure_weight_tying", NOTHING },
  { "qalora_group_size", NOTHING } };
enum { MEMBERS = sizeof members / sizeof *members };

/* Whether a value says nothing. */
static bool is_empty(const json_t *v)
{
  return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !*json_string_value(v)) ||
         (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

/* Ways to begin that leave the base as it is. */
static bool is_plain_init(const json_t *v)
{
  const char *s = json_string_value(v);
  return json_is_boolean(v) || (s && (!strcmp(s, "gaussian") || !strcmp(s, "orthogonal") || !strcmp(s, "eva")));
}

static int check_member(const char *path, const char *name, const json_t *v, struct tc_err *err)
{
  int i = 0;
  while (i < MEMBERS && strcmp(members[i].name, name)) i++;
  const enum kind kind = i < MEMBERS ? members[i].kind : MEMBERS;
  const char *s = json_string_value(v);
  if (kind == READ || kind == NOTHING) return 0;
  if (kind == IS_LORA ? s && !strcmp(s, "LORA") : kind == IS_NONE ? s && !strcmp(s, "none") : kind == PLAIN_INIT ? is_plain_init(v)
      : is_empty(v)) return 0;
  char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
  tc_fail(err, TC_EUSER, "%s: \"%.60s\" is %.100s, which adapters here don't have; %s would fit", path, name, text ? text : "?",
          kind == IS_LORA ? "\"LORA\"" : kind == IS_NONE ? "\"none\"" : kind == PLAIN_INIT ? "true" : "null or nothing");
  free(text);
  return err->status;
}

/* A number of the configuration, within limits. */
static int read_number(double *x, const json_t *o, const char *path, const char *name, double least, double most,
                       struct tc_err *err)
{
  const json_t *v = json_object_get(o, name);
  *x = json_number_value(v);
  if (json_is_number(v) && *x >= least && *x <= most) return 0;
  return tc_fail(err, TC_EUSER, "%s: \"%s\" has to be a number from %g to %g", path, name, least, most);
}

/* What the file says of adapters, as the options of *has. */
static int read_config(const char *path, const json_t *o, struct tc_config *has, struct tc_err *err)
{
  enum { MOST_RANK = 65536 };
  const char *name;
  json_t *v;
  double rank;
  json_object_foreach((json_t *)(uintptr_t)o, name, v) TC_TRY(check_member(path, name, v, err));
  TC_TRY(read_number(&rank, o, path, "r", 1, MOST_RANK, err));
  TC_TRY(read_number(&has->train_lora_alpha, o, path, "lora_alpha", 1e-6, 1e6, err));
  has->train_lora_dropout = 0;
  if (json_object_get(o, "lora_dropout")) TC_TRY(read_number(&has->train_lora_dropout, o, path, "lora_dropout", 0, 0.999999, err));
  if (rank != floor(rank)) return tc_fail(err, TC_EUSER, "%s: \"r\" has to be a whole number", path);
  const json_t *rs = json_object_get(o, "use_rslora");
  if (rs && !json_is_boolean(rs)) return tc_fail(err, TC_EUSER, "%s: \"use_rslora\" has to be true or false", path);
  has->train_lora_scale = json_is_true(rs) ? TC_LORA_RS : TC_LORA_PLAIN;
  has->train_lora = (int64_t)rank;
  return 0;
}

/* ---- which matrices ------------------------------------------------------------------------ */

/* Whether the configuration means a layer. */
static bool has_layer(const json_t *layers, int64_t layer)
{
  const json_t *v;
  size_t i;
  if (json_is_integer(layers)) return json_integer_value(layers) == layer;
  if (is_empty(layers) || !layers) return true;
  json_array_foreach(layers, i, v)
    if (json_is_integer(v) && json_integer_value(v) == layer) return true;
  return false;
}

/* Whether a target means a module: it is its name, or that from a dot on. */
static bool is_target(const char *target, const char *module)
{
  const size_t n = strlen(module), k = strlen(target);
  return k <= n && !strcmp(module + n - k, target) && (k == n || module[n - k - 1] == '.');
}

static bool is_meant(const json_t *o, const struct tc_foreign_part *a, const char *module, bool *hit)
{
  const json_t *targets = json_object_get(o, "target_modules"), *v;
  bool found = json_is_string(targets);
  size_t i;
  if (!has_layer(json_object_get(o, "layers_to_transform"), a->layer)) return false;
  json_array_foreach(targets, i, v)
    if (json_is_string(v) && is_target(json_string_value(v), module)) found = hit[i] = true;
  return found;
}

static int check_targets(const char *path, const json_t *o, struct tc_err *err)
{
  const json_t *v = json_object_get(o, "target_modules"), *layers = json_object_get(o, "layers_to_transform"), *x;
  bool names = json_is_array(v) && json_array_size(v) > 0, numbers = !layers || is_empty(layers) || json_is_integer(layers);
  size_t i;
  json_array_foreach(v, i, x) names &= json_is_string(x);
  if (json_is_array(layers)) numbers = true;
  json_array_foreach(layers, i, x) numbers &= json_is_integer(x);
  if (!numbers) return tc_fail(err, TC_EUSER, "%s: \"layers_to_transform\" has to be a list of whole numbers", path);
  if (names || (json_is_string(v) && !strcmp(json_string_value(v), "all-linear"))) return 0;
  return tc_fail(err, TC_EUSER, "%s: \"target_modules\" has to be a list of names of modules; %s", path,
                 json_is_string(v) ? "regular expressions are not read" : "it is none");
}

/* Keeps the parts, pairs of A and B, of the matrices that the configuration means. */
static int choose_parts(struct tc_foreign *x, const char *path, const json_t *o, struct tc_err *err)
{
  const json_t *targets = json_object_get(o, "target_modules");
  const size_t n_targets = json_array_size(targets);
  bool *hit = tc_calloc(n_targets + 1, sizeof *hit);
  int n = 0, rc = 0;
  bool layer = false;
  for (int i = 0; i < x->n_parts; i += 2) {
    char *module = tc_adapter_module(&x->part[i]);
    layer |= has_layer(json_object_get(o, "layers_to_transform"), x->part[i].layer);
    if (is_meant(o, &x->part[i], module, hit)) memmove(&x->part[n], &x->part[i], 2 * sizeof *x->part), n += 2;
    free(module);
  }
  x->n_parts = n;
  if (!layer) rc = tc_fail(err, TC_EUSER, "%s: \"layers_to_transform\" has no layer of this model, 0 to %lld", path,
                           (long long)x->model.layers - 1);
  for (size_t i = 0; i < n_targets && rc == 0; i++)
    if (!hit[i])
      rc = tc_fail(err, TC_EUSER, "%s: \"target_modules\" has \"%.60s\", which is no matrix of this model's layers", path,
                   json_string_value(json_array_get(targets, i)));
  if (rc == 0 && n == 0) rc = tc_fail(err, TC_EUSER, "%s means no matrix of this model's layers", path);
  free(hit);
  return rc;
}

/* How many layers have a matrix of the name that ours[] has from its layer on. */
static int64_t layers_with(const struct tc_foreign *x, const char *from_layer)
{
  int64_t n = 0;
  for (int i = 0; i < x->n_parts; i += 2) n += !strcmp(strchr(x->part[i].ours + 2, '.'), from_layer);
  return n;
}

/* The patterns of the matrices that have adapters; "": all of the n_all. One that all layers have is "h.*.NAME". */
static char *rows_of(const struct tc_foreign *x, int n_all)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  for (int i = 0; i < x->n_parts && x->n_parts < n_all; i += 2) {
    const struct tc_foreign_part *a = &x->part[i];
    const char *name = strchr(a->ours + 2, '.');
    const int n = (int)(strlen(name) - strlen(".lora_a"));
    const char *sep = ftell(f) ? "," : "";
    if (layers_with(x, name) < x->model.layers) fprintf(f, "%sh.%lld%.*s", sep, (long long)a->layer, n, name);
    else if (a->layer == 0) fprintf(f, "%sh.*%.*s", sep, n, name);
  }
  fclose(f);
  return text;
}

/* ---- the folder ---------------------------------------------------------------------------- */

/* Each tensor of the file is one of the parts, with its shape. */
static int check_file(const struct tc_foreign *x, struct tc_err *err)
{
  const int n = tc_st_files_n(x->st);
  bool *used = tc_calloc((size_t)n + 1, sizeof *used);
  int rc = 0;
  for (int i = 0; i < x->n_parts && rc == 0; i++) {
    rc = tc_foreign_check_part(x, &x->part[i], err);
    if (rc == 0) used[tc_st_files_find(x->st, x->part[i].hf)] = true;
  }
  for (int i = 0; i < n && rc == 0; i++)
    if (!used[i])
      rc = tc_fail(err, TC_EUSER, "%s: tensor %.150s is of no matrix that " TC_ADAPTER_CONFIG " means", x->file,
                   tc_st_files_at(x->st, i)->name);
  free(used);
  return rc;
}

/* The digest that an export notes (export_adapter.c). */
static int read_note(struct tc_foreign *x, struct tc_err *err)
{
  const char *note = tc_st_files_note(x->st, TC_BASE_NOTE);
  if (!note) return 0;
  if (strlen(note) != TC_DIGEST || strspn(note, "0123456789abcdef") != TC_DIGEST)
    return tc_fail(err, TC_EUSER, "%s: " TC_BASE_NOTE " is \"%.40s\", which is no digest of weights", x->file, note);
  snprintf(x->base, sizeof x->base, "%s", note);
  return 0;
}

static int read_files(struct tc_foreign *x, struct tc_config *has, struct tc_err *err)
{
  json_t *o = NULL;
  TC_TRY(tc_read_loose_json(&o, x->config_file, "file", MOST_BYTES, err));
  int rc = json_is_object(o) ? 0 : tc_fail(err, TC_EUSER, "%s is not an object of JSON", x->config_file);
  if (rc == 0) rc = read_config(x->config_file, o, has, err);
  if (rc == 0) rc = check_targets(x->config_file, o, err);
  if (rc == 0) x->n_parts = tc_adapter_parts(&x->part, &x->model, has->train_lora);
  const int n_all = x->n_parts;
  if (rc == 0) rc = choose_parts(x, x->config_file, o, err);
  if (rc == 0) rc = tc_st_files_open(&x->st, x->file, err);
  if (rc == 0) rc = check_file(x, err);
  if (rc == 0) rc = read_note(x, err);
  json_decref(o);
  if (rc == 0) has->train_lora_rows = rows_of(x, n_all);
  return rc;
}

static int open_adapter(struct tc_foreign *x, const char *path, struct tc_config *c, struct tc_err *err)
{
  struct tc_err why;
  struct tc_config has = *c;
  x->form = TC_FORM_HF;
  x->config_file = tc_sprintf("%s/" TC_ADAPTER_CONFIG, path);
  x->file = tc_sprintf("%s/" TC_ADAPTER_WEIGHTS, path);
  TC_TRY(tc_setup_model(c, &x->model, err));
  x->model = tc_model_complete(&x->model);
  if (!tc_hf_architecture(&x->model, &why)) return tc_fail(err, TC_EUSER, "%s is for a class of Hugging Face: %s", path, why.text);
  if (!tc_is_there(x->file)) return tc_fail(err, TC_EUSER, "%s does not exist: PEFT's folder has it", x->file);
  TC_TRY(read_files(x, &has, err));
  tc_foreign_tensors(x);
  const int rc = tc_setup_take_lora(c, &has, path, err);
  free(has.train_lora_rows);
  return rc;
}

int tc_adapter_open(struct tc_foreign **out, const char *path, struct tc_config *cfg, struct tc_err *err)
{
  struct tc_foreign *x = *out = tc_calloc(1, sizeof *x);
  const int rc = open_adapter(x, path, cfg, err);
  if (rc == 0) return 0;
  tc_foreign_close(x);
  *out = NULL;
  return rc;
}

const char *tc_adapter_base(const struct tc_foreign *x) { return x->base; }

/* ---- writing --------------------------------------------------------------------------------- */

/* The layer's modules: their names from the layer on, "self_attn.q_proj"; n of them. */
static const char *in_layer(const char *module)
{
  while (*module < '0' || *module > '9') module++;
  return strchr(module, '.') + 1;
}

/* The last word of module i's name, if no other module of the layer has it, else its name in the layer. */
static const char *short_name(char *const *module, int n, int i)
{
  const char *name = in_layer(module[i]), *last = strrchr(name, '.');
  for (int k = 0; k < n; k++)
    if (k != i && !strcmp(strrchr(module[k], '.'), last)) return name;
  return last + 1;
}

/* target_modules of adapters part[n]: short names if all layers have the same, else those of all modules. */
static json_t *targets_of(const struct tc_foreign_part *part, int n, const struct tc_model *m)
{
  struct tc_foreign_part *all;
  const int each = tc_adapter_parts(&all, m, 1) / 2 / (int)m->layers, own = n / 2 / (int)m->layers;
  char **layer = tc_calloc((size_t)each + 1, sizeof *layer);
  json_t *targets = json_array();
  bool even = n == 2 * own * m->layers;
  for (int k = 0; k < each; k++) layer[k] = tc_adapter_module(&all[2 * k]);
  for (int i = 0; i < n && even; i += 2) even = !strcmp(strchr(part[i].ours + 2, '.'), strchr(part[i % (2 * own)].ours + 2, '.'));
  for (int i = 0; i < (even ? 2 * own : n); i += 2) {
    char *module = tc_adapter_module(&part[i]);
    int k = 0;
    while (strcmp(in_layer(layer[k]), in_layer(module))) k++;
    json_array_append_new(targets, json_string(even ? short_name(layer, each, k) : module));
    free(module);
  }
  for (int k = 0; k < each; k++) free(layer[k]);
  TC_FREE(layer, all);
  return targets;
}

char *tc_adapter_config(const struct tc_foreign_part *part, int n, const struct tc_model *m, const struct tc_config *c)
{
  const double alpha = tc_setup_lora_alpha(c);
  json_t *o = json_pack("{s:s, s:n, s:n, s:s, s:b, s:b, s:b, s:n, s:I, s:o, s:s, s:b, s:b, s:{}, s:{}}",
    "peft_type", "LORA", "auto_mapping", "base_model_name_or_path", "bias", "none", "fan_in_fan_out", tc_hf_is_gpt2(m),
    "inference_mode", 1, "init_lora_weights", 1, "modules_to_save", "r", (json_int_t)c->train_lora, "target_modules",
    targets_of(part, n, m), "task_type", "CAUSAL_LM", "use_dora", 0, "use_rslora", c->train_lora_scale == TC_LORA_RS,
    "rank_pattern", "alpha_pattern");
  if (alpha == floor(alpha)) json_object_set_new(o, "lora_alpha", json_integer((json_int_t)alpha));
  else tc_figure(o, "lora_alpha", alpha);
  tc_figure(o, "lora_dropout", TC_MAX(c->train_lora_dropout, 0));
  char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  json_decref(o);
  return text;
}
