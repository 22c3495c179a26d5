/* t_hf.c - Llama and Qwen3 in Hugging Face's files: folders that transformers wrote (tests/oracle/hf_folder.py) are
 * imported and exported again with the same tensors; both rotary orders; what config.json may not say; model.config. */
#include "io/formats/safetensors.h"
#include "src/files/output.h"
#include "src/foreign/parts.h"
#include "src/program/setup.h"
#include "tests/unit/ckpt_cmd.h"
#include "tests/unit/same_tensors.h"

enum { HEADS = 4, KV = 2, D = 8 };                 /* of both folders */

static const char *oracle(void)
{
  static char path[500];
  snprintf(path, sizeof path, "%s/tests/oracle", getenv("srcdir") ? getenv("srcdir") : ".");
  return path;
}

__attribute__((format(printf, 1, 2)))
static int shell(const char *fmt, ...)
{
  char line[2000];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  return system(line);
}

static void test_folders(const char *dir)
{
  char theirs[600], ours[200], again[200];
  is_int(run("import %s/hf-llama -o %s/llama", oracle(), dir), 0, "import of a Llama in three files %s", err_text);
  ok(says("layers 2 hidden 16 heads 4 context 32 vocab 64 family llama kv_heads 2 head_dim 8 ffn 24 norm rmsnorm "
          "norm_eps 1e-05 act swiglu rope_theta 500000 rope_scaling llama3:8:1:4:16 bias yes qk_norm no tied no"),
     "its model is config.json's");
  is_int(run("export %s/llama -o %s/hf-llama --shard-size 14KB", dir, dir), 0, "export %s", err_text);
  ok(says(" 35 tensors in "), "in several files: %s", out_text);
  snprintf(theirs, sizeof theirs, "%s/hf-llama/model.safetensors.index.json", oracle());
  snprintf(ours, sizeof ours, "%s/hf-llama/model.safetensors.index.json", dir);
  ok(same_tensors(theirs, ours), "the tensors that transformers wrote");
  is_int(run("export %s/llama -o %s/one", dir, dir), 0, "export to one file");
  snprintf(again, sizeof again, "%s/one/model.safetensors", dir);
  ok(same_tensors(ours, again), "the same tensors");

  is_int(run("import %s/hf-qwen3 -o %s/qwen3", oracle(), dir), 0, "import of a Qwen3 in bf16 %s", err_text);
  ok(says("family qwen3 kv_heads 2 head_dim 8 ffn 24 norm rmsnorm norm_eps 1e-06 act swiglu rope_theta 1e+06 "
          "rope_scaling none bias no qk_norm yes tied yes"), "its model is config.json's");
  is_int(run("export %s/qwen3 -o %s/hf-qwen3 --dtype bf16", dir, dir), 0, "export %s", err_text);
  snprintf(theirs, sizeof theirs, "%s/hf-qwen3/model.safetensors", oracle());
  snprintf(ours, sizeof ours, "%s/hf-qwen3/model.safetensors", dir);
  ok(same_tensors(theirs, ours), "the tensors that transformers wrote");
  ok(!same_tensors(theirs, again), "which are not those of another model");
}

/* Ours, imported and exported again, is the same files. */
static void test_round(const char *dir)
{
  static const char *const model[] = { "llama", "qwen3" };
  for (int i = 0; i < 2; i++) {
    is_int(run("import %s/hf-%s -o %s/back-%s", dir, model[i], dir, model[i]), 0, "import of our own %s", err_text);
    is_int(run("export %s/back-%s -o %s/hf2-%s %s", dir, model[i], dir, model[i],
               i ? "--dtype bf16" : "--shard-size 14KB"), 0, "export %s", err_text);
    is_int(shell("diff -r %s/hf-%s %s/hf2-%s", dir, model[i], dir, model[i]), 0, "%s: equal files", model[i]);
    is_int(run("diff %s/%s %s/back-%s", dir, model[i], dir, model[i]), 0, "equal checkpoints");
    is_int(run("show %s/%s", dir, model[i]), 0, "ckpt show");
    is_int(run("plan %s/%s --dp 2 --tp 2", dir, model[i]), 0, "ckpt plan %s", err_text);
    is_int(run("export %s/%s -o %s/own-%s --format safetensors", dir, model[i], dir, model[i]), 0, "our own names");
    is_int(run("import %s/own-%s -o %s/own2-%s", dir, model[i], dir, model[i]), 0, "and back %s", err_text);
    is_int(run("diff %s/%s %s/own2-%s", dir, model[i], dir, model[i]), 0, "equal checkpoints");
  }
  ok(fails(run("export %s/llama -o %s/x --format llmc", dir, dir), 2, "llm.c's files can store only GPT-2"),
     "no Llama for llm.c");
  ok(fails(run("export %s/llama -o %s/x --format safetensors --shard-size 1GB", dir, dir), 2,
           "--shard-size is for"), "only hf is split");
  static const char *const sizes[] = { "0", "5", "5TB", "GB", "-1KB", "5 GB", "99999999999GB" };
  for (int i = 0; i < 7; i++) {
    const int status = run("export %s/llama -o %s/size-%d --shard-size=%s", dir, dir, i, sizes[i]);
    ok(i == 1 ? status == 0 : status == 2, "--shard-size %s is %d", sizes[i], status);
  }
  ok(fails(run("export %s/llama -o %s/hf-llama --shard-size 14KB", dir, dir), 2, "exists already"),
     "no folder twice");
}

/* A tensor of floats, [rows][16] or [rows]; owned by the caller. */
static float *floats(const struct tc_st_files *s, const char *name)
{
  const int i = tc_st_files_find(s, name);
  TC_ASSERT(i >= 0);
  return bytes_of(s, i);
}

/* In a file of the other order, rows 2i and 2i + 1 of a head are ours i and i + D/2. */
static void test_interleaved(const char *dir)
{
  static const struct { const char *name; int rows, cols; bool rotary; } t[] = {
    { "model.layers.1.self_attn.q_proj.weight", HEADS * D, 16, true },
    { "model.layers.1.self_attn.q_proj.bias", HEADS * D, 1, true },
    { "model.layers.0.self_attn.k_proj.weight", KV * D, 16, true },
    { "model.layers.0.self_attn.v_proj.weight", KV * D, 16, false },
    { "model.layers.0.self_attn.o_proj.weight", 16, HEADS * D, false } };
  struct tc_st_files *x, *y;
  struct tc_err err;
  char path[600];
  is_int(run("import %s/hf-llama -o %s/turned --rope interleaved", oracle(), dir), 0, "--rope interleaved");
  is_int(run("export %s/turned -o %s/hf-turned", dir, dir), 0, "export");
  snprintf(path, sizeof path, "%s/hf-llama/model.safetensors.index.json", oracle());
  TC_ASSERT(tc_st_files_open(&x, path, &err) == 0);
  snprintf(path, sizeof path, "%s/hf-turned/model.safetensors", dir);
  TC_ASSERT(tc_st_files_open(&y, path, &err) == 0);
  for (int k = 0; k < 5; k++) {
    float *a = floats(x, t[k].name), *b = floats(y, t[k].name);
    int off = 0;
    for (int r = 0; r < t[k].rows; r++) {
      const int half = r / D * D + r % 2 * (D / 2) + r % D / 2;
      off += memcmp(a + r * t[k].cols, b + (t[k].rotary ? half : r) * t[k].cols, (size_t)t[k].cols * 4) != 0;
    }
    is_int(off, 0, "rows of %s", t[k].name);
    free(a);
    free(b);
  }
  tc_st_files_close(x);
  tc_st_files_close(y);
  ok(fails(run("import %s/hf-llama -o %s/x --rope both", oracle(), dir), 2, "give half or interleaved"),
     "no other order");
}

/* What a folder may not say: sed's command for config.json, and words of the sentence. */
static const struct { const char *folder, *change, *says; } refused[] = {
  { "llama", "s/LlamaForCausalLM/GemmaForCausalLM/", "architecture GemmaForCausalLM is not supported; "
    "GPT2LMHeadModel, LlamaForCausalLM, Qwen3ForCausalLM, MistralForCausalLM, " },
  { "llama", "s/LlamaForCausalLM/MistralForCausalLM/", "\"model_type\" is llama, but a MistralForCausalLM is a" },
  { "llama", "s/LlamaForCausalLM/LlamaModel/", "architecture LlamaModel is not supported" },
  { "llama", "s/silu/gelu/", "\"hidden_act\" is \"gelu\"" },
  { "llama", "s/\"use_cache\"/\"quantization_config\": {}, \"use_cache\"/", "\"quantization_config\" is {}" },
  { "llama", "s/\"use_cache\"/\"partial_rotary_factor\": 0.5, \"use_cache\"/", "\"partial_rotary_factor\" is 0.5" },
  { "llama", "s/\"mlp_bias\": true/\"mlp_bias\": false/", "mlp.gate_proj.bias does not belong to LlamaForCausalLM" },
  { "llama", "s/\"rope_type\": \"llama3\"/\"rope_type\": \"dynamic\"/", "\"rope_type\" is \"dynamic\"" },
  { "llama", "s/\"factor\": 8.0/\"factor\": 0/", "\"factor\" has to be" },
  { "llama", "s/\"high_freq_factor\": 4.0/\"high_freq_factor\": 1.0/", "has to be above" },
  { "llama", "s/1e-05/-1.0/", "\"rms_norm_eps\" has to be" }, { "llama", "s/500000.0/true/", "\"rope_theta\" has to be" },
  { "llama", "s/\"hidden_size\": 16/\"hidden_size\": 32/", "has another shape" },
  { "llama", "s/\"num_key_value_heads\": 2/\"num_key_value_heads\": 3/", "kv_heads" },
  { "llama", "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 1/", "does not belong to LlamaForCausalLM" },
  { "llama", "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 4096/", "fewer than a model of 4096 layers" },
  { "llama", "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 4097/", "from 1 to 4096" },
  { "llama", "s/\"vocab_size\": 64/\"vocab_size\": 6.4/", "\"vocab_size\" has to be a whole number" },
  { "llama", "s/\"vocab_size\": 64/\"vocab_size\": null/", "\"vocab_size\" has to be a whole number" },
  { "llama", "s/\"num_hidden_layers\": 2,//", "\"num_hidden_layers\" is missing" },
  { "llama", "s/\"use_cache\": true/\"use_cache\": 1/", "\"use_cache\" is 1" },
  { "llama", "s/\"intermediate_size\": 24/\"intermediate_size\": null/", "\"intermediate_size\" has to be a whole number" },
  { "qwen3", "s/\"attention_bias\": false/\"attention_bias\": true/", "self_attn.q_proj.bias is missing" },
  { "qwen3", "s/\"use_sliding_window\": false/\"use_sliding_window\": 1/", "\"use_sliding_window\" has to be" },
  { "qwen3", "0,/full_attention/s//sliding_attention/", "gives the sliding layers of \"layer_types\"" },
  { "qwen3", "0,/full_attention/s//chunked_attention/", "\"layer_types\" is \"chunked_attention\"" },
  { "qwen3", "s/\"tie_word_embeddings\": true/\"tie_word_embeddings\": false/", "tensor lm_head.weight is missing" },
  { "qwen3", "s/Qwen3ForCausalLM/LlamaForCausalLM/;s/\"qwen3\"/\"llama\"/", "does not belong to LlamaForCausalLM" },
};

static void test_refused(const char *dir)
{
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    TC_ASSERT(shell("rm -rf %s/bad; cp -r %s/hf-%s %s/bad; chmod -R u+w %s/bad; cp %s/bad/config.json %s/was; "
                    "sed -i '%s' %s/bad/config.json; ! cmp -s %s/was %s/bad/config.json", dir, oracle(),
                    refused[i].folder, dir, dir, dir, dir, refused[i].change, dir, dir, dir) == 0);
    ok(fails(run("import %s/bad -o %s/no", dir, dir), 2, refused[i].says), "%s", refused[i].change);
  }
  static const char *const index[][2] = {
    { "s/model-00002-of/model-00003-of/", "is not in model-00003" },
    { "s/model-00002/..\\/x/", "not in a file of that" },
    { "/post_attention_layernorm/d", "according to the index in no file" }, { "s/lm_head/lm_tail/", "lm_head.weight" },
    { "s/weight_map/map/", "no \"weight_map\"" }, { "s/model-00002-of-00003/model-00009/", "No such file" },
    { "1d", "not a JSON object" } };
  for (size_t i = 0; i < 7; i++) {
    TC_ASSERT(shell("rm -rf %s/bad; cp -r %s/hf-llama %s/bad; chmod -R u+w %s/bad; sed -i '%s' "
                    "%s/bad/model.safetensors.index.json", dir, oracle(), dir, dir, index[i][0], dir) == 0);
    ok(fails(run("import %s/bad -o %s/no", dir, dir), 2, index[i][1]), "index: %s", index[i][0]);
  }
  TC_ASSERT(shell("rm %s/one/config.json", dir) == 0);
  ok(fails(run("import %s/one -o %s/no", dir, dir), 2, "without config.json"), "no config.json");
  ok(fails(run("import %s/hf-llama -o %s/no --model.tied=yes", oracle(), dir), 2, "another model than the options"),
     "an option that contradicts");
  ok(fails(run("import %s/hf-llama -o %s/no --model.layers=3", oracle(), dir), 2, "model.layers is 2 in the file, not 3"),
     "a size that contradicts");
  ok(fails(run("import %s/hf-llama/model-00001-of-00003.safetensors -o %s/no", oracle(), dir), 2, "is missing"),
     "one file of three");
  is_int(run("import %s/hf-llama -o %s/long --model.context=64", oracle(), dir), 0, "another context %s", err_text);
  ok(says("context 64"), "is the user's");
  ok(fails(run("show %s/hf-llama", oracle()), 2, "tercio ckpt import"), "a folder that is no checkpoint");
  TC_ASSERT(shell("test ! -e %s/no || ! ls %s/no | grep -q .", dir, dir) == 0);
}

/* A tensor to be written: of floats, or in bf16. */
static void put_tensor(struct tc_output *w, const struct tc_st_tensor *t, const void *data)
{
  int64_t bytes = t->dtype == TC_F32 ? 4 : 2;
  for (int d = 0; d < t->rank; d++) bytes *= t->dim[d];
  TC_ASSERT(tc_output_write(w, data, bytes, NULL) == 0);
}

/* eps/model.safetensors: a GPT-2 of two heads, one layer, hidden size 8. */
static void write_gpt2(const char *dir)
{
  const struct tc_model m = { .preset = "", .layers = 1, .hidden = 8, .heads = 2, .context = 4, .vocab = 20 };
  const struct tc_model whole = tc_model_complete(&m);
  struct tc_st_tensor t[20] = { { 0 } };
  static const float zero[8 * 32];
  struct tc_output *w;
  int64_t bytes;
  struct tc_foreign_part *part;
  char path[600];
  const int n = tc_foreign_parts(&part, &whole, TC_FORM_HF, false);
  TC_ASSERT(n <= 20);
  for (int i = 0; i < n; i++) {
    t[i] = (struct tc_st_tensor){ .name = part[i].hf, .dtype = TC_F32, .rank = part[i].rank };
    tc_foreign_hf_shape(&part[i], t[i].dim);
  }
  snprintf(path, sizeof path, "%s/eps/model.safetensors", dir);
  TC_ASSERT(tc_st_create(&w, &bytes, path, t, n, NULL, NULL) == 0);
  for (int i = 0; i < n; i++) put_tensor(w, &t[i], zero);
  TC_ASSERT(tc_output_finish(w, NULL) == 0);
  free(part);
}

/* tied/model.safetensors: the tensors of hf-qwen3, and a head, which is its embedding but for one element. */
static void copy_with_head(const char *dir, int changed)
{
  struct tc_st_tensor t[40] = { { 0 } };
  struct tc_st_files *s;
  struct tc_output *w;
  int64_t bytes;
  struct tc_err err;
  char path[600];
  snprintf(path, sizeof path, "%s/hf-qwen3/model.safetensors", oracle());
  TC_ASSERT(tc_st_files_open(&s, path, &err) == 0 && tc_st_files_n(s) < 40);
  const int n = tc_st_files_n(s), e = tc_st_files_find(s, "model.embed_tokens.weight");
  for (int i = 0; i < n; i++) t[i] = *tc_st_files_at(s, i);
  t[n] = t[e];
  t[n].name = "lm_head.weight";
  snprintf(path, sizeof path, "%s/tied/model.safetensors", dir);
  TC_ASSERT(tc_st_create(&w, &bytes, path, t, n + 1, NULL, NULL) == 0);
  for (int i = 0; i <= n; i++) {
    uint16_t *data = bytes_of(s, i < n ? i : e);
    if (i == n && changed >= 0) data[changed] ^= 1;
    put_tensor(w, &t[i], data);
    free(data);
  }
  TC_ASSERT(tc_output_finish(w, NULL) == 0);
  tc_st_files_close(s);
}

/* The step of a checkpoint, and the tokens until then, as `show` prints them. */
static void is_at(const char *dir, const char *name, int64_t step, int64_t tokens)
{
  is_int(run("show %s/%s --json", dir, name), 0, "%s %s", name, err_text);
  json_t *j = parsed();
  is_int(json_integer_value(json_object_get(j, "step")), step, "... its step");
  is_int(json_integer_value(json_object_get(j, "tokens")), tokens, "... its tokens");
  json_decref(j);
}

/* A model whose epsilon alone differs from GPT-2's keeps it, in both formats. */
static void test_epsilon(const char *dir)
{
  TC_ASSERT(shell("mkdir %s/eps; printf '{\"architectures\": [\"GPT2LMHeadModel\"], \"n_head\": 2, "
                  "\"layer_norm_epsilon\": 1e-06}' > %s/eps/config.json", dir, dir) == 0);
  write_gpt2(dir);
  is_int(run("import %s/eps -o %s/eps-ckpt", dir, dir), 0, "a GPT-2 with another epsilon %s", err_text);
  ok(says("ffn 32 norm layernorm norm_eps 1e-06 act gelu"), "is in its model: %s", out_text);
  is_int(run("export %s/eps-ckpt -o %s/eps.st --format safetensors", dir, dir), 0, "export in our format");
  is_int(run("import %s/eps.st -o %s/eps-2", dir, dir), 0, "and back %s", err_text);
  ok(says("norm_eps 1e-06"), "with its epsilon: %s", out_text);
  is_int(run("export %s/eps-2 -o %s/eps-hf", dir, dir), 0, "export for transformers");
  TC_ASSERT(shell("grep -q '\"layer_norm_epsilon\": 1e-6' %s/eps-hf/config.json", dir) == 0);
  is_int(run("import %s/eps-hf -o %s/eps-3", dir, dir), 0, "and back %s", err_text);
  is_int(run("diff %s/eps-2 %s/eps-3", dir, dir), 0, "equal checkpoints");
  ok(fails(run("export %s/eps-2 -o %s/x --format llmc", dir, dir), 2, "llm.c's files can store only GPT-2 (norm_eps"),
     "llm.c has no epsilon");
  is_at(dir, "eps-2", 0, 0);
}

/* A head beside a tied embedding: the same one is dropped, another one refused. */
static void test_tied_head(const char *dir)
{
  static const struct { int changed; const char *says; } row[] = {
    { -1, NULL }, { 0, "lm_head.weight differs from model.embed_tokens.weight" }, { 64 * 16 - 1, "lm_head.weight differs" } };
  for (int i = 0; i < 3; i++) {
    TC_ASSERT(shell("rm -rf %s/tied; mkdir %s/tied; cp %s/hf-qwen3/config.json %s/tied", dir, dir, oracle(), dir) == 0);
    copy_with_head(dir, row[i].changed);
    const int status = run("import %s/tied -o %s/tied-%d", dir, dir, i);
    if (row[i].says) ok(fails(status, 2, row[i].says), "element %d of the head differs", row[i].changed);
    else is_int(status, 0, "a head that is the embedding %s", err_text);
  }
  TC_ASSERT(shell("sed -i 's/\"tie_word_embeddings\": true/\"tie_word_embeddings\": false/' %s/tied/config.json", dir) == 0);
  is_int(run("import %s/tied -o %s/untied", dir, dir), 0, "as the sentence says, untied %s", err_text);
}

/* max_position_embeddings beyond the context, through an import and an export. */
static void test_positions(const char *dir)
{
  TC_ASSERT(shell("rm -rf %s/bad; cp -r %s/hf-llama %s/bad; chmod -R u+w %s/bad; sed -i 's/\"max_position_embeddings\": "
                  "32/\"max_position_embeddings\": 131072/' %s/bad/config.json", dir, oracle(), dir, dir, dir) == 0);
  is_int(run("import %s/bad -o %s/far", dir, dir), 0, "a model of many positions %s", err_text);
  ok(says("context 8192 "), "whose context is shorter");
  is_int(run("export %s/far -o %s/far-hf", dir, dir), 0, "export");
  TC_ASSERT(shell("grep -q '\"max_position_embeddings\": 131072' %s/far-hf/config.json", dir) == 0);
  is_int(run("import %s/bad -o %s/near --model.context=16 --model.positions=64", dir, dir), 0, "the user's %s", err_text);
  is_int(run("export %s/near -o %s/near-hf", dir, dir), 0, "export");
  ok(shell("grep -q '\"max_position_embeddings\": 64' %s/near-hf/config.json", dir) == 0, "are written");
}

/* What the options make, as text; borrowed until the next call. */
static const char *model_of(const char *a, const char *b)
{
  static char text[600];
  char *argv[] = { tc_strdup("x"), tc_strdup(a), tc_strdup(b) };
  struct tc_config *c;
  struct tc_model m;
  struct tc_err err;
  TC_ASSERT(tc_config_new(&c, *b ? 3 : 2, argv, &err) == 0);
  char *is = tc_setup_model(c, &m, &err) == 0 ? tc_model_text(&m) : tc_strdup(err.text);
  snprintf(text, sizeof text, "%s", is);
  free(is);
  tc_config_free(c);
  for (int i = 0; i < 3; i++) free(argv[i]);
  return text;
}

static void test_option(const char *dir)
{
  char folder[600], file[650], large[300];
  snprintf(folder, sizeof folder, "--model.config=%s/hf-llama", oracle());
  snprintf(file, sizeof file, "%s/config.json", folder);
  const char *llama = "layers 2 hidden 16 heads 4 context 32 vocab 64 family llama kv_heads 2 head_dim 8 ffn 24 norm "
    "rmsnorm norm_eps 1e-05 act swiglu rope_theta 500000 rope_scaling llama3:8:1:4:16 bias yes qk_norm no tied no";
  is_str(model_of(folder, ""), llama, "model.config is a folder");
  is_str(model_of(file, ""), llama, "model.config is a file");
  ok(strstr(model_of(folder, "--model.context=8"), "context 8 vocab 64 family llama") != NULL, "context is the user's");
  ok(strstr(model_of(folder, "--model.layers=7"), "layers 7 hidden 16") != NULL, "another key overrides the file's");
  ok(strstr(model_of(folder, "--model.rope_scaling=none"), "rope_scaling none") != NULL, "the scaling, too");
  ok(strstr(model_of(folder, "--model.preset=tiny"), "give one") != NULL, "not with a preset");
  ok(strstr(model_of(folder, "--model.family=qwen3"), "describes a llama") != NULL, "not of another family");
  ok(strstr(model_of("--model.config=nowhere", ""), "nowhere") != NULL, "a file that is not there");
  TC_ASSERT(shell("mkdir %s/large; sed 's/: 32,/: 131072,/' %s/hf-llama/config.json > %s/large/config.json", dir,
                  oracle(), dir) == 0);
  snprintf(large, sizeof large, "--model.config=%s/large", dir);
  ok(strstr(model_of(large, ""), "context 8192 ") != NULL, "a long context is cut to 8192");
  ok(strstr(model_of(large, "--model.context=131072"), "context 131072 ") != NULL, "unless it is given");
  char gpt2[300];
  TC_ASSERT(shell("mkdir %s/gpt2; echo '{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 3, \"n_embd\": 24, "
                  "\"n_head\": 2, \"n_positions\": 40, \"vocab_size\": 300}' > %s/gpt2/config.json", dir, dir) == 0);
  snprintf(gpt2, sizeof gpt2, "--model.config=%s/gpt2", dir);
  is_str(model_of(gpt2, ""), "layers 3 hidden 24 heads 2 context 40 vocab 300", "GPT-2");
}

int main(void)
{
  alarm(600);
  const char *dir = fx_folder();
  snprintf(out_path, sizeof out_path, "%s/out", dir);
  test_folders(dir);
  test_round(dir);
  test_interleaved(dir);
  test_epsilon(dir);
  test_tied_head(dir);
  test_positions(dir);
  test_refused(dir);
  test_option(dir);
  free(out_text);
  fx_clean();
  return done_testing();
}
