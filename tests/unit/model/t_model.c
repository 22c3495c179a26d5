/* t_model.c - what a model is: texts of manifests and config.json files that are read and written back, and what of
 * them can't be. */
#include "src/model/hf.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define SIZES "layers 2 hidden 16 heads 4 context 32 vocab 64"
#define REST(kv, d, ffn, eps, theta, scaling) " family llama kv_heads " kv " head_dim " d " ffn " ffn \
  " norm rmsnorm norm_eps " eps " act swiglu rope_theta " theta " rope_scaling " scaling \
  " bias no qk_norm no tied no"

/* ---- the text ------------------------------------------------------------------------------ */

static void test_round(void)
{
  static const char *const text[] = {
    SIZES, SIZES REST("2", "8", "24", "1e-05", "500000", "none"),
    SIZES REST("4", "1024", "4194304", "1", "1e+12", "linear:1e+06"),
    SIZES REST("1", "2", "1", "1e-30", "1", "linear:1e-06"),
    SIZES REST("2", "8", "24", "1e-05", "500000", "llama3:8:1:4:8192"),
    "layers 2 hidden 16 heads 4 context 32 vocab 64 family gpt2 kv_heads 4 head_dim 4 ffn 64 norm layernorm norm_eps "
    "1e-06 act gelu rope_theta -1 rope_scaling none bias yes qk_norm no tied yes",
    SIZES " family gemma3 kv_heads 2 head_dim 8 ffn 24 norm rmsnorm1p norm_eps 1e-06 act geglu rope_theta 1e+06 rope_scaling "
    "linear:8 bias attention qk_norm yes tied yes norm_at both pattern SF window 16 sliding_theta 10000 sliding_scaling none "
    "attn_scale 0.1 logit_cap 30 embed_scale 4",
    SIZES " family llama kv_heads 2 head_dim 8 ffn 24 norm rmsnorm norm_eps 1e-05 act relu2 rope_theta 500000 rope_scaling "
    "yarn:8:1:32:64:1.2079442:1 bias qkv qk_norm whole tied no pattern Ff rotary_dim 4 attn_cap 50 residual_scale 0.22 "
    "logit_divisor 6 mup 8" };
  for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
    struct tc_model m;
    struct tc_err err = { .text = "" };
    is_int(tc_model_parse(&m, text[i], "x", &err), 0, "%s %s", text[i], err.text);
    char *again = tc_model_text(&m);
    is_str(again, text[i], "... and back");
    is_int(tc_model_is_plain(&m), i == 0, "... whether the sizes say all");
    free(again);
  }
}

static const struct { const char *text, *says; } bad_text[] = {
  { "", "is not of a model that this version knows" }, { SIZES " and more", "is not of a model that" },
  { "layers 0 hidden 16 heads 4 context 32 vocab 64", "model.layers = 0: give a positive number" },
  { "layers 4097 hidden 16 heads 4 context 32 vocab 64", "model.layers = 4097 is not from 1 to 4096" },
  { "layers 2 hidden 1048577 heads 1048577 context 32 vocab 64", "model.hidden = 1048577 is not from 1 to 1048576" },
  { "layers 2 hidden 65537 heads 65537 context 32 vocab 64", "model.heads = 65537 is not from 1 to 65536" },
  { "layers 2 hidden 16 heads 4 context 16777217 vocab 64", "model.context = 16777217 is not from 1 to 16777216" },
  { "layers 2 hidden 16 heads 4 context 32 vocab 16777217", "model.vocab = 16777217 is not from 1 to 16777216" },
  { "layers 2 hidden 4096 heads 2 context 32 vocab 64", "model.head_dim = 2048 is not from 1 to 1024; more heads" },
  { SIZES REST("-1", "8", "24", "1e-05", "500000", "none"), "model.kv_heads = -1 is not from 1 to 65536" },
  { SIZES REST("-4", "8", "24", "1e-05", "500000", "none"), "model.kv_heads = -4 is not" },
  { SIZES REST("8", "8", "24", "1e-05", "500000", "none"), "kv_heads = 4 would" },
  { SIZES REST("2", "-8", "24", "1e-05", "500000", "none"), "model.head_dim = -8 is not from 1 to 1024" },
  { SIZES REST("2", "1026", "24", "1e-05", "500000", "none"), "model.head_dim = 1026 is not" },
  { SIZES REST("2", "7", "24", "1e-05", "500000", "none"), "model.head_dim = 7 is odd" },
  { SIZES REST("2", "8", "-24", "1e-05", "500000", "none"), "model.ffn = -24 is not from 1 to 4194304" },
  { SIZES REST("2", "8", "4194305", "1e-05", "500000", "none"), "model.ffn = 4194305 is not" },
  { SIZES REST("2", "8", "24", "nan", "500000", "none"), "model.norm_eps = nan is not above 0" },
  { SIZES REST("2", "8", "24", "-1e-05", "500000", "none"), "model.norm_eps = -1e-05 is not above 0" },
  { SIZES REST("2", "8", "24", "inf", "500000", "none"), "model.norm_eps = inf is not above 0" },
  { SIZES REST("2", "8", "24", "1.5", "500000", "none"), "model.norm_eps = 1.5 is not above 0 and at most 1" },
  { SIZES REST("2", "8", "24", "1e-05", "nan", "none"), "model.rope_theta = nan is not from 1 to 1e12" },
  { SIZES REST("2", "8", "24", "1e-05", "inf", "none"), "model.rope_theta = inf is not" },
  { SIZES REST("2", "8", "24", "1e-05", "-2", "none"), "model.rope_theta = -2 is not" },
  { SIZES REST("2", "8", "24", "1e-05", "0.5", "none"), "model.rope_theta = 0.5 is not" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "linear:inf"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "linear:nan"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "linear:2e6"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "llama3:8:1:inf:8192"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "llama3:8:nan:4:8192"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "llama3:8:4:4:8192"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "llama3:8:1:4:0"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "llama3:8:1:4:16777217"), "is not of a model that" },
  { SIZES REST("2", "8", "24", "1e-05", "500000", "none") " mup -3", "model.mup = -3 is not from 1 to 1048576" },
};

static void test_bad_text(void)
{
  for (size_t i = 0; i < sizeof bad_text / sizeof *bad_text; i++) {
    struct tc_model m;
    struct tc_err err = { .text = "" };
    is_int(tc_model_parse(&m, bad_text[i].text, "x/manifest.json", &err), TC_EUSER, "'%s' is refused", bad_text[i].text);
    ok(strncmp(err.text, "x/manifest.json is ", 19) == 0 && strstr(err.text, bad_text[i].says), "... %s", err.text);
  }
}

static void test_scaling(void)
{
  static const struct { const char *text; bool good; } row[] = {
    { "", true }, { "none", true }, { "linear:4", true }, { "linear:1e-6", true }, { "linear:1e6", true },
    { "llama3:8:1:4:8192", true }, { "llama3:8:1:4:16777216", true }, { "linear:", false }, { "linear:0", false },
    { "linear:-1", false }, { "linear:4x", false }, { "linear:inf", false }, { "linear:nan", false },
    { "linear:1e-7", false }, { "llama3:8:1:4", false }, { "llama3:8:1:4:8192:", false }, { "llama3:8:1:1:8192", false },
    { "llama3:8:1:inf:8192", false }, { "llama3:nan:1:4:8192", false }, { "llama3:8:0:4:8192", false }, { "yarn:4", false },
    { "yarn:4:1:32:8192:1.1", true }, { "yarn:4:1:32:8192:1.1:1", true }, { "yarn:4:1:32:8192:1.1:2", false },
    { "yarn:4:32:1:8192:1.1", false }, { "yarn:4:1:32:81.5:1.1", false }, { "yarn:4:1:32:8192", false }, { "lin:2", false } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_rope_scaling s;
    struct tc_err err = { .text = "" };
    is_int(tc_rope_scaling_parse(&s, row[i].text, &err), row[i].good ? 0 : TC_EUSER, "scaling '%s'", row[i].text);
    ok(row[i].good || strstr(err.text, "model.rope_scaling = "), "... %s", err.text);
  }
}

/* Numbers of parameters as published, or as transformers counts them. */
static void test_presets(void)
{
  static const struct { const char *name; int64_t params; } row[] = {
    { "gpt2-124m", 124439808 }, { "gpt2-1558m", 1557611200 }, { "smollm2-135m", 134515008 },
    { "llama3.2-1b", 1235814400 }, { "llama3-8b", 8030261248 }, { "llama3-70b", 70553706496 },
    { "llama3-405b", 405853388800 }, { "qwen3-0.6b", 596049920 }, { "qwen3-8b", 8190735360 }, { "qwen2.5-0.5b", 494032768 },
    { "qwen2.5-7b", 7615616512 }, { "mistral-7b", 7241732096 }, { "gemma2-2b", 2614341888 }, { "gemma3-1b", 999885952 },
    { "olmo2-1b", 1484916736 }, { "olmo2-7b", 7298617344 }, { "smollm3-3b", 3075098624 }, { "granite3.3-2b", 2533539840 },
    { "phi3-mini", 3821079552 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_model m = { .preset = row[i].name };
    struct tc_err err = { .text = "" };
    is_int(tc_model_resolve(&m, &err), 0, "%s %s", row[i].name, err.text);
    is_int(tc_model_params(&m), row[i].params, "... its parameters");
  }
}

/* ---- config.json -------------------------------------------------------------------------- */

static int read_text(struct tc_model *m, const char *text, struct tc_err *err)
{
  char path[] = "/tmp/t_model-XXXXXX";
  FILE *f = fdopen(mkstemp(path), "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
  *err = (struct tc_err){ .text = "" };
  int rc = tc_hf_read(m, path, err);
  unlink(path);
  return rc;
}

/* A Llama or Qwen3 with `more` members, in single quotes. */
static int read_rotary(struct tc_model *m, const char *name, const char *more, struct tc_err *err)
{
  char *text = tc_sprintf("{'architectures': ['%sForCausalLM'], 'num_hidden_layers': 2, 'hidden_size': 48, "
    "'num_attention_heads': 8, 'intermediate_size': 24, 'vocab_size': 64%s%s}", name, *more ? ", " : "", more);
  for (char *p = text; *p; p++) if (*p == '\'') *p = '"';
  int rc = read_text(m, text, err);
  free(text);
  return rc;
}

/* The number of keys' heads, which one class takes for 32 where it is missing. */
static void test_kv_heads(void)
{
  static const struct { const char *name, *more; int64_t kv; } row[] = {
    { "Llama", "", 8 }, { "Llama", "'num_key_value_heads': null", 8 }, { "Llama", "'num_key_value_heads': 2", 2 },
    { "Qwen3", "", 32 }, { "Qwen3", "'num_key_value_heads': null", 8 }, { "Qwen3", "'num_key_value_heads': 4", 4 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_model m;
    struct tc_err err;
    is_int(read_rotary(&m, row[i].name, row[i].more, &err), 0, "%s %s %s", row[i].name, row[i].more, err.text);
    is_int(m.kv_heads, row[i].kv, "... heads of keys");
  }
}

/* rope_scaling, which older files have, beside rope_parameters. */
static void test_rope(void)
{
#define NEW "'rope_parameters': {'rope_type': 'linear', 'factor': 4.0, 'rope_theta': 10000.0}"
  static const struct { const char *more; float theta, factor; } row[] = {
    { NEW, 10000, 4 }, { NEW ", 'rope_scaling': null", 10000, 4 }, { NEW ", 'rope_scaling': {}", 10000, 4 },
    { NEW ", 'rope_scaling': {'type': 'linear', 'factor': 4}", 10000, 4 },
    { "'rope_scaling': {'type': 'linear', 'factor': 2}, 'rope_theta': 7.5", 7.5f, 2 },
    { "'rope_scaling': {'type': 'linear', 'factor': 2}, 'rope_parameters': null", 10000, 2 },
    { "", 10000, 0 }, { "'rope_theta': 10000.0, " NEW, 10000, 4 }, { "'rope_theta': 99.0, " NEW, -1, 0 },
    { NEW ", 'rope_scaling': {'type': 'linear', 'factor': 2}", 0, 0 },
    { NEW ", 'rope_scaling': {'type': 'default'}", 0, 0 },
    { NEW ", 'rope_scaling': {'type': 'linear', 'factor': 4}, 'rope_theta': 20000.0", -1, 0 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_model m;
    struct tc_err err;
    is_int(read_rotary(&m, "Llama", row[i].more, &err), row[i].theta > 0 ? 0 : TC_EUSER, "%s", row[i].more);
    if (row[i].theta > 0) ok(m.rope_theta == row[i].theta && m.rope_scaling.factor == row[i].factor, "... %s", err.text);
    else ok(strstr(err.text, row[i].theta < 0 ? "\"rope_theta\" and \"rope_theta\" of rope_parameters differ"
                                  : "\"rope_scaling\" and \"rope_parameters\" describe different rotary positions"),
            "... %s", err.text);
  }
  struct tc_model m;
  struct tc_err err;
  is_int(read_rotary(&m, "Llama", NEW ", 'rope_scaling': 5", &err), TC_EUSER, "a number instead of an object");
  ok(strstr(err.text, "\"rope_scaling\" is not an object"), "... %s", err.text);
}

/* What transformers refuses to load is neither written nor read. */
static void test_widths(void)
{
  struct tc_err err = { .text = "" };
  struct tc_model m;
  is_int(read_rotary(&m, "Llama", "'num_attention_heads': 9, 'head_dim': 8", &err), TC_EUSER, "two members of one name");
  struct tc_model odd = { .layers = 1, .hidden = 60, .heads = 8, .head_dim = 8, .context = 4, .vocab = 9,
                          .family = TC_FAMILY_LLAMA };
  is_int(tc_model_resolve(&odd, &err), 0, "60 elements, 8 heads of 8");
  is_str(tc_hf_architecture(&odd, &err), "MistralForCausalLM", "no Llama of Hugging Face's, but this class computes the same");
  is_int(read_rotary(&m, "Llama", "'head_dim': 8, 'hidden_act': 'silu'", &err), 0, "48 elements, 8 heads of 8");
  odd.act = TC_ACT_RELU2;
  ok(!tc_hf_architecture(&odd, &err), "with another activation no class does");
  is_str(err.text, "Hugging Face's LlamaForCausalLM can't be this model: config.json: \"hidden_size\" 60 is not a multiple of "
         "\"num_attention_heads\" 8, which LlamaForCausalLM demands", "... in these words");
  odd = (struct tc_model){ .layers = 1, .hidden = 60, .heads = 8, .head_dim = 8, .context = 4, .vocab = 9,
                           .family = TC_FAMILY_QWEN3 };
  is_int(tc_model_resolve(&odd, &err), 0, "a Qwen3");
  is_str(tc_hf_architecture(&odd, &err), "Qwen3ForCausalLM", "... can have such heads");
}

static void test_gpt2(void)
{
#define GPT2(more) "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 3, \"n_embd\": 24, \"n_head\": 2, " \
  "\"n_positions\": 40, \"vocab_size\": 300" more "}"
  static const struct { const char *text; float eps; } row[] = {
    { GPT2(""), 1e-5f }, { GPT2(", \"n_inner\": null"), 1e-5f }, { GPT2(", \"n_inner\": 96"), 1e-5f },
    { GPT2(", \"layer_norm_epsilon\": 1e-6"), 1e-6f }, { GPT2(", \"n_inner\": 97"), 0 }, { GPT2(", \"n_inner\": 99"), 0 },
    { GPT2(", \"n_inner\": 95"), 0 }, { GPT2(", \"n_inner\": 24"), 0 }, { GPT2(", \"n_inner\": 96.0"), 0 },
    { GPT2(", \"n_inner\": 4611686018427387928"), 0 }, { GPT2(", \"layer_norm_epsilon\": 0"), -1 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_model m;
    struct tc_err err;
    is_int(read_text(&m, row[i].text, &err), row[i].eps > 0 ? 0 : TC_EUSER, "%s", row[i].text);
    if (row[i].eps > 0) ok(m.norm_eps == row[i].eps, "... its epsilon %s", err.text);
    else ok(strstr(err.text, row[i].eps < 0 ? "\"layer_norm_epsilon\" has to be" : "\"n_inner\" differs"), "... %s", err.text);
  }
}

/* max_position_embeddings is kept, though the context may be shorter. */
static void test_positions(void)
{
  static const struct { int64_t positions, context, written; } row[] = {
    { 131072, 8192, 131072 }, { 8192, 8192, 8192 }, { 100, 100, 100 }, { 0, 2048, 2048 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_model m, again;
    struct tc_err err;
    char more[80] = "";
    if (row[i].positions) snprintf(more, sizeof more, "'max_position_embeddings': %lld", (long long)row[i].positions);
    is_int(read_rotary(&m, "Llama", more, &err), 0, "%s %s", more, err.text);
    is_int(m.context, row[i].context, "... the context");
    is_int(tc_model_resolve(&m, &err), 0, "... resolved");
    char *text = tc_hf_text(&m, (struct tc_hf_ids){ -1, 7 }, 0, "float32");
    is_int(read_text(&again, text, &err), 0, "... written and read");
    is_int(again.positions, row[i].written, "... its positions");
    ok(strstr(text, "\"bos_token_id\": null") && strstr(text, "\"eos_token_id\": 7"), "... its tokens that begin and end a text");
    free(text);
  }
}

int main(void)
{
  test_round();
  test_bad_text();
  test_scaling();
  test_presets();
  test_kv_heads();
  test_rope();
  test_widths();
  test_gpt2();
  test_positions();
  return done_testing();
}
