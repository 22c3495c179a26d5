/* left_out.c - what the files of a Hugging Face folder say and a checkpoint does not keep.
 *
 * A checkpoint keeps the model and tokenizer.json, from which an export makes the members that it can. Of every other
 * member and file an import says that it is left out: the table lists what is not, and what it does not list is. */
#include "src/foreign/impl.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "src/files/files.h"

enum { MOST_BYTES = 16 << 20 };

/* How a member is kept: it is read, or refused where it matters; an export writes it anew; it says nothing of the model
 * or its texts (how a program is to run it, or what stands elsewhere, too); it is one of these ids or their texts, which
 * are kept if they are those that an export would write. */
enum keep { READ, WRITTEN, NOTHING, BEGIN_ID, END_ID, BEGIN_TEXT, END_TEXT };

#define CONFIG "config.json"
#define GENERATION "generation_config.json"
#define TOKENIZER "tokenizer_config.json"
#define SPECIAL "special_tokens_map.json"
static const struct { const char *file, *member; enum keep keep; } members[] = {
  { CONFIG, "architectures", READ }, { CONFIG, "model_type", READ }, { CONFIG, "vocab_size", READ },
  { CONFIG, "n_layer", READ }, { CONFIG, "n_embd", READ }, { CONFIG, "n_head", READ }, { CONFIG, "n_positions", READ },
  { CONFIG, "n_ctx", READ }, { CONFIG, "n_inner", READ }, { CONFIG, "activation_function", READ },
  { CONFIG, "layer_norm_epsilon", READ }, { CONFIG, "tie_word_embeddings", READ }, { CONFIG, "scale_attn_weights", READ },
  { CONFIG, "scale_attn_by_inverse_layer_idx", READ }, { CONFIG, "add_cross_attention", READ },
  { CONFIG, "num_hidden_layers", READ }, { CONFIG, "hidden_size", READ }, { CONFIG, "num_attention_heads", READ },
  { CONFIG, "intermediate_size", READ }, { CONFIG, "num_key_value_heads", READ }, { CONFIG, "head_dim", READ },
  { CONFIG, "max_position_embeddings", READ }, { CONFIG, "hidden_act", READ }, { CONFIG, "pretraining_tp", READ },
  { CONFIG, "partial_rotary_factor", READ }, { CONFIG, "use_sliding_window", READ }, { CONFIG, "sliding_window", READ },
  { CONFIG, "max_window_layers", READ }, { CONFIG, "layer_types", READ }, { CONFIG, "quantization_config", READ },
  { CONFIG, "rms_norm_eps", READ }, { CONFIG, "rope_theta", READ }, { CONFIG, "rope_scaling", READ },
  { CONFIG, "rope_parameters", READ }, { CONFIG, "original_max_position_embeddings", READ },
  { CONFIG, "attention_bias", READ }, { CONFIG, "mlp_bias", READ }, { CONFIG, "initializer_range", WRITTEN },
  { CONFIG, "attention_dropout", NOTHING }, { CONFIG, "resid_pdrop", NOTHING }, { CONFIG, "embd_pdrop", NOTHING },
  { CONFIG, "attn_pdrop", NOTHING }, { CONFIG, "torch_dtype", WRITTEN }, { CONFIG, "dtype", WRITTEN },
  { CONFIG, "transformers_version", NOTHING }, { CONFIG, "_name_or_path", NOTHING }, { CONFIG, "use_cache", NOTHING },
  { CONFIG, "reorder_and_upcast_attn", NOTHING }, { CONFIG, "bos_token_id", BEGIN_ID }, { CONFIG, "eos_token_id", END_ID },
  { GENERATION, "_from_model_config", NOTHING }, { GENERATION, "transformers_version", NOTHING },
  { GENERATION, "bos_token_id", BEGIN_ID }, { GENERATION, "eos_token_id", END_ID },
  { TOKENIZER, "tokenizer_class", WRITTEN }, { TOKENIZER, "model_max_length", WRITTEN },
  { TOKENIZER, "added_tokens_decoder", NOTHING }, { TOKENIZER, "name_or_path", NOTHING },
  { TOKENIZER, "bos_token", BEGIN_TEXT }, { TOKENIZER, "eos_token", END_TEXT }, { SPECIAL, "bos_token", BEGIN_TEXT }, { SPECIAL, "eos_token", END_TEXT },
};

static const char *const json_files[] = { CONFIG, GENERATION, TOKENIZER, SPECIAL };
/* Files that are read, those of json_files first, or of the same weights in another form. */
static const char *const read_files[] = { CONFIG, GENERATION, TOKENIZER, SPECIAL, "tokenizer.json", "*.safetensors",
                                          "model.safetensors.index.json", "pytorch_model*", ".*", "README*",
                                          "LICENSE*" };

/* Whether a value says nothing: null, false, or nothing in it. */
static bool is_empty(const json_t *v)
{
  return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !*json_string_value(v))
         || (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}

/* A token is a text, or an object with it. */
static bool is_text_of(const json_t *v, const struct tc_tokenizer *t, int64_t id)
{
  const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
  const char *ours = t && id >= 0 ? tc_tokenizer_added(t, (uint32_t)id) : NULL;
  return text && ours && strcmp(text, ours) == 0;
}

static bool is_kept(const char *file, const char *member, const json_t *v, const struct tc_tokenizer *t,
                    struct tc_hf_ids ids)
{
  for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
    if (strcmp(members[i].file, file) || strcmp(members[i].member, member)) continue;
    switch (members[i].keep) {
    case BEGIN_ID: return json_is_integer(v) && json_integer_value(v) == ids.begin;
    case END_ID: return json_is_integer(v) && json_integer_value(v) == ids.end;
    case BEGIN_TEXT: return is_text_of(v, t, ids.begin);
    case END_TEXT: return is_text_of(v, t, ids.end);
    case READ:
    case WRITTEN:
    case NOTHING: return true;
    }
  }
  return false;
}

/* Adds to `list` what is left out of a file; short values with the member. */
static void find_members(json_t *list, const char *dir, const char *file, const struct tc_tokenizer *t,
                         struct tc_hf_ids ids)
{
  enum { MOST_SHOWN = 60 };
  char *path = tc_sprintf("%s/%s", dir, file);
  const char *member;
  json_t *o = NULL, *v;
  struct tc_err why;
  if (tc_is_there(path) && tc_read_loose_json(&o, path, file, MOST_BYTES, &why) < 0)
    json_array_append_new(list, json_string("all of it, as it can't be read"));
  json_object_foreach(o, member, v) {
    if (is_empty(v) || is_kept(file, member, v, t, ids)) continue;
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    const bool is_short = text && strlen(text) <= MOST_SHOWN && !json_is_string(v);
    json_t *entry = is_short ? json_sprintf("%s = %s", member, text) : json_string(member);
    json_array_append_new(list, entry);
    free(text);
  }
  json_decref(o);
  free(path);
}

static bool is_read(const char *name)
{
  for (size_t i = 0; i < sizeof read_files / sizeof *read_files; i++)
    if (fnmatch(read_files[i], name, 0) == 0) return true;
  return false;
}

/* The other files, in the order of their names. */
static void find_files(json_t *list, const char *dir)
{
  struct tc_err why;
  char **name = NULL;
  const int n = tc_folder_scan(dir, "", &name, &why);
  if (n > 0) qsort(name, (size_t)n, sizeof *name, tc_order_text);
  for (int i = 0; i < n; i++)
    if (!is_read(name[i])) json_array_append_new(list, tc_text_json(name[i]));
  if (n >= 0) tc_names_free(name, n);
}

json_t *tc_left_out(const char *dir, const struct tc_tokenizer *t, struct tc_hf_ids ids)
{
  json_t *all = json_object();
  for (size_t i = 0; i <= sizeof json_files / sizeof *json_files; i++) {
    const bool files = i == sizeof json_files / sizeof *json_files;
    json_t *list = json_array();
    if (files) find_files(list, dir);
    else find_members(list, dir, json_files[i], t, ids);
    if (json_array_size(list)) json_object_set(all, files ? "files" : json_files[i], list);
    json_decref(list);
  }
  return all;
}

void tc_left_out_say(const char *dir, const json_t *all)
{
  const char *file;
  json_t *list, *entry;
  size_t i;
  json_object_foreach((json_t *)(uintptr_t)all, file, list) {
    char text[1000] = "";
    json_array_foreach(list, i, entry)
      tc_text_add(text, sizeof text, "%s%.200s", i ? ", " : "", json_string_value(entry) ? json_string_value(entry) : "?");
    if (strcmp(file, "files") == 0) tc_log("%s: files that are left out: %s", dir, text);
    else tc_log("%s/%s: left out: %s", dir, file, text);
  }
}
