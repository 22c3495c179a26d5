/* t_hf_config.c - what a config.json may say twice, in numbers that JSON does not have, and of windows. The tables are the
 * source's own: hf.c and hf_member.c are included. */
#include "src/model/hf.c"
#include "src/model/hf_member.c"
#include "tests/unit/tap.h"

#include <unistd.h>

static const char gpt2[] = "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_layer\": 2, "
  "\"n_embd\": 16, \"n_head\": 2, \"n_positions\": 32, \"vocab_size\": 64, \"n_inner\": 64}";
static const char llama[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
  "\"num_hidden_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, \"intermediate_size\": 24, "
  "\"vocab_size\": 64, \"max_position_embeddings\": 64, \"rope_theta\": 500000.0, "
  "\"original_max_position_embeddings\": 8192}";
static const char scaling[] = "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
  "\"original_max_position_embeddings\": 8192, \"rope_theta\": 500000, \"type\": \"llama3\"}";

/* The file that `o` makes; o is freed. */
static int read_of(json_t *o, struct tc_model *m, struct tc_err *err)
{
  TC_ASSERT(json_dump_file(o, "config.json", 0) == 0);
  json_decref(o);
  return tc_hf_read(m, "config.json", err);
}

static int read_text(const char *text, struct tc_model *m, struct tc_err *err)
{
  FILE *f = fopen("config.json", "w");
  TC_ASSERT(f);
  fputs(text, f);
  fclose(f);
  return tc_hf_read(m, "config.json", err);
}

static json_t *object(const char *text) { return json_loads(text, 0, NULL); }

/* A model for row i, where both of its places say the same. */
static json_t *model_of(size_t i)
{
  json_t *o = object(strncmp(twice[i].key, "n_", 2) ? llama : gpt2);
  if (twice[i].other_object) json_object_set_new(o, twice[i].other_object, object(scaling));
  else json_object_set(o, twice[i].other, json_object_get(o, twice[i].key));
  return o;
}

static json_t *place(json_t *o, const char *in) { return in ? json_object_get(o, in) : o; }

static void test_twice(void)
{
  for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
    struct tc_model both, one, other;
    struct tc_err err = { .text = "" };
    char first[100], second[100];
    const char *key = twice[i].key, *in = twice[i].object;
    json_t *o = model_of(i);
    is_int(read_of(json_deep_copy(o), &both, &err), 0, "\"%s\" and \"%s\" of %s agree %s", key, twice[i].other,
           twice[i].other_object ? twice[i].other_object : "the file", err.text);
    json_t *without = json_deep_copy(o);
    json_object_del(place(without, twice[i].other_object), twice[i].other);
    is_int(read_of(without, &one, &err), 0, "... one alone");
    ok(both.layers == one.layers && both.rope_theta == one.rope_theta
       && both.rope_scaling.original == one.rope_scaling.original, "... is the same model");
    json_t *x = json_object_get(place(o, in), key);
    json_object_set_new(place(o, in), key, json_is_string(x) ? json_string("linear") : json_real(json_number_value(x) / 2));
    is_int(read_of(o, &other, &err), TC_EUSER, "... two that differ are refused");
    snprintf(first, sizeof first, "\"%s\"%s%s and", key, in ? " of " : "", in ? in : "");
    snprintf(second, sizeof second, "\"%s\"%s%s differ", twice[i].other, twice[i].other_object ? " of " : "",
             twice[i].other_object ? twice[i].other_object : "");
    ok(strstr(err.text, first) && strstr(err.text, second), "... by their names: %s", err.text);
  }
}

static void test_types(void)
{
  for (int i = 0; i < TC_HF_CLASSES; i++)
    for (int k = 0; k < TC_HF_CLASSES; k++) {
      struct tc_model m;
      struct tc_err err = { .text = "" };
      json_t *o = object(tc_hf_classes[i].learned ? gpt2 : llama);
      json_object_set_new(o, "architectures", json_pack("[s]", tc_hf_classes[i].name));
      json_object_set_new(o, "model_type", json_string(tc_hf_classes[k].type));
      json_object_set_new(o, "pad_token_id", json_null());
      const int rc = read_of(o, &m, &err);
      is_int(rc, i == k ? 0 : TC_EUSER, "%s with model_type %s %s", tc_hf_classes[i].name, tc_hf_classes[k].type, err.text);
      if (i != k) ok(strstr(err.text, "\"model_type\" is") != NULL, "... which is what the sentence says");
    }
}

/* ---- numbers that JSON does not have ------------------------------------------------------------- */

static const char *const odd[] = { "Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1000000000000000019884624838656",
                                   "-9999999999999999999" };
enum { N_ODD = sizeof odd / sizeof *odd };

/* text without its member `key`, if it has it, and with `key: value` in front. */
static char *with(const char *text, const char *key, const char *value)
{
  json_t *o = object(text);
  json_object_del(o, key);
  char *rest = json_dumps(o, 0), *all = tc_sprintf("{\"%s\": %s, %s", key, value, rest + 1);
  free(rest);
  json_decref(o);
  return all;
}

static int read_with(const char *text, const char *key, const char *value, struct tc_err *err)
{
  struct tc_model m;
  char *all = with(text, key, value);
  const int rc = read_text(all, &m, err);
  free(all);
  return rc;
}

static void test_odd_numbers(void)
{
  static const char *const reals[] = { "rms_norm_eps", "rope_theta" };
  struct tc_err err = { .text = "" };
  for (int i = 0; i < N_ODD; i++) {
    is_int(read_with(gpt2, "summary_type", odd[i], &err), 0, "%s in a member that nobody reads %s", odd[i], err.text);
    is_int(read_with(llama, "summary_type", "{\"a\": [1, \"a \\\" Infinity\", NaN]}", &err), 0, "... in a list, beside a text");
    for (int k = 0; k < TC_HF_GPT2_SIZES; k++)
      is_int(read_with(gpt2, tc_hf_gpt2_sizes[k].key, odd[i], &err), TC_EUSER, "... as %s: %s", tc_hf_gpt2_sizes[k].key, err.text);
    is_int(read_with(gpt2, "n_head", odd[i], &err), TC_EUSER, "... as n_head: %s", err.text);
    for (int k = 0; k < TC_HF_ROTARY_SIZES; k++)
      is_int(read_with(llama, tc_hf_rotary_sizes[k].key, odd[i], &err), TC_EUSER, "... as %s: %s", tc_hf_rotary_sizes[k].key, err.text);
    for (int k = 0; k < 2; k++)
      is_int(read_with(llama, reals[k], odd[i], &err), TC_EUSER, "... as %s: %s", reals[k], err.text);
    for (int k = 0; k < N_FIXED; k++)
      is_int(read_with(llama, fixed[k].key, odd[i], &err), TC_EUSER, "... as %s: %s", fixed[k].key, err.text);
  }
  is_int(read_with(gpt2, "summary_type", "Infinite", &err), TC_EUSER, "a word that is no number is no JSON: %s", err.text);
}

/* ---- unknown members ----------------------------------------------------------------------------- */

static void test_unknown(void)
{
  static const struct { const char *key, *value; bool good; } row[] = {
    { "clip_qkv", "8.0", false }, { "clip_qkv", "null", true }, { "clip_qkv", "false", true }, { "clip_qkv", "0", true },
    { "clip_qkv", "0.0", true }, { "clip_qkv", "\"\"", true }, { "clip_qkv", "[]", true }, { "clip_qkv", "{}", true },
    { "clip_qkv", "true", false }, { "clip_qkv", "[0]", false }, { "clip_qkv", "\"no\"", false },
    { "task_specific_params", "{\"a\": 1}", true }, { "transformers_version", "\"5.24.0\"", true } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    for (int k = 0; k < 2; k++) {
      struct tc_err err = { .text = "" };
      is_int(read_with(k ? llama : gpt2, row[i].key, row[i].value, &err), row[i].good ? 0 : TC_EUSER, "%s: %s %s", row[i].key,
             row[i].value, err.text);
      ok(row[i].good || strstr(err.text, "\"clip_qkv\" is not known"), "... by its name");
    }
}

/* ---- windows ------------------------------------------------------------------------------------- */

static void test_windows(void)
{
  static const struct { const char *type, *members, *pattern; int64_t window; } row[] = {        /* pattern NULL: refused */
    { "mistral", "\"sliding_window\": null", "F", -1 }, { "mistral", "\"sliding_window\": 63", "S", 63 },
    { "mistral", "\"head_dim\": 8", "S", 4096 }, { "mistral", "\"sliding_window\": 63, \"use_sliding_window\": false", "S", 63 },
    { "mistral", "\"sliding_window\": \"64\"", NULL, 0 }, { "mistral", "\"sliding_window\": 0", NULL, 0 },
    { "mistral", "\"sliding_window\": 2.5", NULL, 0 },
    { "mistral", "\"sliding_window\": null, \"layer_types\": [\"sliding_attention\", \"full_attention\"]", "F", -1 },
    { "mistral", "\"layer_types\": [\"sliding_attention\"]", NULL, 0 },
    { "llama", "\"sliding_window\": 63", "F", -1 }, { "phi3", "\"head_dim\": 8", "F", -1 },
    { "phi3", "\"sliding_window\": 63", "S", 63 },
    { "qwen3", "\"sliding_window\": 63", "F", -1 }, { "qwen3", "\"use_sliding_window\": true", "F", -1 },
    { "qwen3", "\"use_sliding_window\": true, \"max_window_layers\": 1", "FS", 4096 },
    { "qwen2", "\"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": 9", "S", 9 },
    { "qwen2", "\"use_sliding_window\": true, \"max_window_layers\": 1, \"sliding_window\": null", "F", -1 },
    { "qwen2", "\"use_sliding_window\": true, \"max_window_layers\": \"1\"", NULL, 0 },
    { "qwen2", "\"use_sliding_window\": 1", NULL, 0 },
    { "qwen2", "\"layer_types\": [\"sliding_attention\", \"full_attention\"], \"use_sliding_window\": true", "SF", 4096 },
    { "qwen2", "\"layer_types\": [\"sliding_attention\", \"full_attention\"]", NULL, 0 },
    { "qwen2", "\"layer_types\": [\"full_attention\"]", NULL, 0 },
    { "qwen2", "\"layer_types\": [\"full_attention\", \"chunked_attention\"]", NULL, 0 },
    { "qwen2", "\"layer_types\": \"full_attention\"", NULL, 0 },
    { "gemma2", "\"head_dim\": 8", "SF", 4096 }, { "gemma2", "\"sliding_window\": null", NULL, 0 },
    { "gemma3_text", "\"head_dim\": 8", "S", 4096 }, { "gemma3_text", "\"sliding_window_pattern\": 2", "SF", 4096 },
    { "gemma3_text", "\"sliding_window_pattern\": 1, \"sliding_window\": 7", "F", -1 },
    { "gemma3_text", "\"sliding_window_pattern\": 0", NULL, 0 },
    { "olmo3", "\"layer_types\": [\"full_attention\", \"sliding_attention\"], \"sliding_window\": 5", "FS", 5 },
    { "smollm3", "\"sliding_window\": 5", "F", -1 }, { "smollm3", "\"no_rope_layers\": [1, 0]", "Ff", -1 },
    { "smollm3", "\"no_rope_layer_interval\": 2, \"use_sliding_window\": true, \"sliding_window\": 5", "Fs", 5 },
    { "smollm3", "\"no_rope_layers\": [1, 2]", NULL, 0 }, { "smollm3", "\"no_rope_layers\": [1]", NULL, 0 },
    { "smollm3", "\"no_rope_layer_interval\": 0", NULL, 0 } };
  struct tc_err err = { .text = "" };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_model m;
    json_t *o = object(llama);
    char *text = tc_sprintf("{%s}", row[i].members);
    json_t *more = object(text);
    json_object_del(o, "architectures");
    json_object_del(o, "original_max_position_embeddings");
    json_object_set_new(o, "model_type", json_string(row[i].type));
    json_object_set_new(o, "num_key_value_heads", json_integer(2));
    json_object_set_new(o, "pad_token_id", json_null());
    json_object_update(o, more);
    const int rc = read_of(o, &m, &err);
    is_int(rc, row[i].pattern ? 0 : TC_EUSER, "%s with %s %s", row[i].type, text, rc ? err.text : "");
    if (row[i].pattern) {
      is_str(m.pattern, row[i].pattern, "... its layers");
      is_int(m.window, row[i].window, "... its window");
    } else {
      const char *key = strstr(text, "layer_types") ? "\"layer_types\"" : strstr(text, "no_rope") ? "\"no_rope_layer"
        : strstr(text, "max_window") ? "max_window_layers" : strstr(text, "_pattern") ? "sliding_window_pattern" : "sliding_window";
      ok(strstr(err.text, key) != NULL, "... names %s", key);
    }
    json_decref(more);
    free(text);
  }
  json_t *o = object(llama);
  struct tc_model m;
  json_object_set_new(o, "num_attention_heads", json_integer(16));
  json_object_set_new(o, "architectures", json_pack("[s]", "MistralForCausalLM"));
  json_object_set_new(o, "model_type", json_string("mistral"));
  json_object_del(o, "max_position_embeddings");
  is_int(read_of(o, &m, &err), 0, "a Mistral that does not say its heads of keys %s", err.text);
  is_int(m.kv_heads, 8, "... has 8");
}

int main(void)
{
  char dir[] = "/tmp/t_hf_config-XXXXXX";
  if (!mkdtemp(dir) || chdir(dir)) return 1;
  test_twice();
  test_types();
  test_odd_numbers();
  test_unknown();
  test_windows();
  unlink("config.json");
  if (chdir("/") || rmdir(dir)) return 1;
  return done_testing();
}
