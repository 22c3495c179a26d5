/* t_hf_config.c - what a config.json may say twice, in numbers that JSON does not have, and of windows. The tables are the
 * source's own: hf.c is included. */
#include "src/model/hf.c"
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
  for (int i = 0; i < N_ARCHITECTURES; i++)
    for (int k = 0; k < N_ARCHITECTURES; k++) {
      struct tc_model m;
      struct tc_err err = { .text = "" };
      json_t *o = object(architectures[i].family == TC_FAMILY_GPT2 ? gpt2 : llama);
      json_object_set_new(o, "architectures", json_pack("[s]", architectures[i].name));
      json_object_set_new(o, "model_type", json_string(architectures[k].type));
      json_object_set_new(o, "sliding_window", json_null());
      const int rc = read_of(o, &m, &err);
      is_int(rc, i == k ? 0 : TC_EUSER, "%s with model_type %s %s", architectures[i].name, architectures[k].type, err.text);
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
    is_int(read_with(gpt2, "made_by", odd[i], &err), 0, "%s in a member that nobody reads %s", odd[i], err.text);
    is_int(read_with(llama, "made_by", "{\"a\": [1, \"a \\\" Infinity\", NaN]}", &err), 0, "... in a list, beside a text");
    for (int k = 0; k < GPT2_SIZES; k++)
      is_int(read_with(gpt2, gpt2_sizes[k].key, odd[i], &err), TC_EUSER, "... as %s: %s", gpt2_sizes[k].key, err.text);
    is_int(read_with(gpt2, "n_head", odd[i], &err), TC_EUSER, "... as n_head: %s", err.text);
    for (int k = 0; k < ROTARY_SIZES; k++)
      is_int(read_with(llama, rotary_sizes[k].key, odd[i], &err), TC_EUSER, "... as %s: %s", rotary_sizes[k].key, err.text);
    for (int k = 0; k < 2; k++)
      is_int(read_with(llama, reals[k], odd[i], &err), TC_EUSER, "... as %s: %s", reals[k], err.text);
    for (int k = 0; k < N_FIXED; k++)
      is_int(read_with(llama, fixed[k].key, odd[i], &err), TC_EUSER, "... as %s: %s", fixed[k].key, err.text);
  }
  is_int(read_with(gpt2, "made_by", "Infinite", &err), TC_EUSER, "a word that is no number is no JSON: %s", err.text);
}

/* ---- windows ------------------------------------------------------------------------------------- */

static void test_windows(void)
{
  static const struct { const char *type, *members; bool good; } row[] = {
    { "mistral", "\"sliding_window\": null", true }, { "mistral", "\"sliding_window\": 64", true },
    { "mistral", "\"sliding_window\": 4096", true }, { "mistral", "\"sliding_window\": 63", false },
    { "mistral", "\"head_dim\": 8", false }, { "mistral", "\"sliding_window\": 63, \"use_sliding_window\": false", false },
    { "mistral", "\"sliding_window\": \"64\"", false }, { "llama", "\"head_dim\": 8", true },
    { "llama", "\"sliding_window\": null", true }, { "llama", "\"sliding_window\": 64", true },
    { "llama", "\"sliding_window\": 63", false }, { "llama", "\"sliding_window\": 63, \"use_sliding_window\": false", true },
    { "qwen3", "\"sliding_window\": 63, \"use_sliding_window\": false", true },
    { "qwen3", "\"sliding_window\": 63", false } };
  struct tc_model plain;
  struct tc_err err = { .text = "" };
  TC_ASSERT(read_text(llama, &plain, &err) == 0);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_model m;
    json_t *o = object(llama);
    char *text = tc_sprintf("{%s}", row[i].members);
    json_t *more = object(text);
    json_object_del(o, "architectures");
    json_object_set_new(o, "model_type", json_string(row[i].type));
    if (strcmp(row[i].type, "llama")) json_object_set_new(o, "num_key_value_heads", json_integer(2));
    json_object_update(o, more);
    is_int(read_of(o, &m, &err), row[i].good ? 0 : TC_EUSER, "%s with %s %s", row[i].type, text, err.text);
    if (row[i].good && strstr(row[i].members, "\": 64")) is_int(m.window, 64, "... its window");
    if (!row[i].good) ok(strstr(err.text, "sliding_window") != NULL, "... names it");
    else if (strcmp(row[i].type, "qwen3")) {
      struct tc_model is = tc_model_complete(&m), want = tc_model_complete(&plain);
      char *a = tc_model_text(&is), *b = tc_model_text(&want);
      is_str(a, b, "... is a Llama");
      free(a);
      free(b);
    }
    json_decref(more);
    free(text);
  }
  json_t *o = object(llama);
  struct tc_model m;
  json_object_set_new(o, "num_attention_heads", json_integer(16));
  json_object_set_new(o, "architectures", json_pack("[s]", "MistralForCausalLM"));
  json_object_set_new(o, "model_type", json_string("mistral"));
  json_object_set_new(o, "sliding_window", json_null());
  json_object_del(o, "max_position_embeddings");
  is_int(read_of(json_deep_copy(o), &m, &err), 0, "a Mistral that does not say its heads of keys %s", err.text);
  is_int(m.kv_heads, 8, "... has 8");
  json_object_set_new(o, "sliding_window", json_integer(64));
  is_int(read_of(o, &m, &err), TC_EUSER, "... nor its positions: a window may be too small: %s", err.text);
}

int main(void)
{
  char dir[] = "/tmp/t_hf_config-XXXXXX";
  if (!mkdtemp(dir) || chdir(dir)) return 1;
  test_twice();
  test_types();
  test_odd_numbers();
  test_windows();
  unlink("config.json");
  if (chdir("/") || rmdir(dir)) return 1;
  return done_testing();
}
