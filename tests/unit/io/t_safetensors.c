/* t_safetensors.c - safetensors and llm.c's model files: damaged ones are refused with a sentence,
 * export puts every element where the other program looks for it, import brings it back. */
#include <sys/resource.h>

#include "io/formats/llmc.h"
#include "io/ckpt/owner.h"
#include "io/formats/safetensors.h"
#include "tests/unit/ckpt_cmd.h"

enum { L = 2, C = 8, H = 2, D = C / H, T = 5, V = 130, F = 4 * C };
#define MODEL "layers 2 hidden 8 heads 2 context 5 vocab 130"

static void write_file(const char *path, const void *data, size_t bytes)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(data, 1, bytes, f) == bytes);
  fclose(f);
}

/* ---- headers that are wrong -------------------------------------------------------- */

/* length: < 0: that of the text. */
static int open_text(const char *path, const char *text, int64_t length, int data,
    struct tc_err *err)
{
  size_t n = strlen(text);
  uint64_t raw = length < 0 ? n : (uint64_t)length;
  char *all = tc_calloc(n + 8 + (size_t)data, 1);
  struct tc_st *s = NULL;
  memcpy(all, &raw, 8);
  memcpy(all + 8, text, n);
  write_file(path, all, n + 8 + (size_t)data);
  free(all);
  int rc = tc_st_open(&s, path, err);
  tc_st_close(s);
  return rc;
}

static void test_headers(const char *dir)
{
#define ONE(dtype, shape, a, b) \
  "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}}"
  static const struct { const char *what, *text; int64_t length; int data; const char *says;
      } c[] = {
    { "a good one", ONE("\"F32\"", "[2]", 0, 8), -1, 8, NULL },
    { "no tensors", "{}", -1, 0, NULL },
    { "an empty tensor", ONE("\"F32\"", "[3,0]", 0, 0), -1, 0, NULL },
    { "a length beyond the file", "{}", 3, 0, "truncated" },
    { "a length of 2^63 - 1", "{}", INT64_MAX, 0, "according to the file" },
    { "too short", "", 0, 0, "not a safetensors file" },
    { "data cut off", ONE("\"F32\"", "[2]", 0, 8), -1, 7, "outside of the file" },
    { "data too long", ONE("\"F32\"", "[2]", 0, 8), -1, 9, "follow the header" },
    { "no JSON", "{\"t\":", -1, 0, "not a JSON object" },
    { "a list", "[1, 2]", -1, 0, "not a JSON object" },
    { "a tensor that is a number", "{\"t\": 3}", -1, 0, "is not an object" },
    { "a type that is a number", ONE("5", "[2]", 0, 8), -1, 8, "unknown dtype" },
    { "an unknown type", ONE("\"F33\"", "[2]", 0, 8), -1, 8, "unknown dtype" },
    { "another size than the shape's", ONE("\"F32\"", "[3]", 0, 8), -1, 8, "number of bytes" },
    { "a negative size", ONE("\"F32\"", "[-2]", 0, 8), -1, 8, "impossible shape" },
    { "sizes that overflow", ONE("\"F32\"", "[4294967296,4294967296,4]", 0, 8), -1, 8,
        "impossible shape" },
    { "sizes that overflow to zero", ONE("\"F32\"", "[4611686018427387904,4,2]", 0, 0), -1, 0,
        "impossible shape" },
    { "too many dimensions", ONE("\"F32\"", "[1,1,1,1,1,1,2]", 0, 8), -1, 8, "impossible shape" },
    { "a shape of text", ONE("\"F32\"", "[\"2\"]", 0, 8), -1, 8, "impossible shape" },
    { "an end before the beginning", ONE("\"F32\"", "[2]", 8, 0), -1, 8, "outside of the file" },
    { "a negative offset", ONE("\"F32\"", "[2]", -8, 0), -1, 8, "outside of the file" },
    { "a huge offset", ONE("\"F32\"", "[2]", 9223372036854775800, 9223372036854775807), -1, 8,
        "outside of the file" },
    { "three offsets", "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", -1, 8,
      "not have two data_offsets" },
    { "a hole", ONE("\"F32\"", "[2]", 4, 12), -1, 12, "a gap" },
    { "two that overlap", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}", -1, 6, "overlap" },
    { "a name twice", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", -1, 2, "not a JSON object" },
    { "notes that are no object", "{\"__metadata__\": 7}", -1, 0, "not an object" },
    { "a name with a line break", "{\"a\\nb\": 3}", -1, 0, "a\\u000ab" },
  };
#undef ONE
  char *path = tc_sprintf("%s/h", dir);
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_err err = {0};
    int rc = open_text(path, c[i].text, c[i].length, c[i].data, &err);
    is_int(rc, c[i].says ? TC_EUSER : 0, "%s", c[i].what);
    if (c[i].says && !ok(strstr(err.text, c[i].says) && !strchr(err.text, '\n'), "says so"))
      printf("# reported: %s\n", err.text);
  }
  free(path);
}

/* Headers that would take gigabytes as JSON. */
static void test_memory(const char *dir)
{
  enum { N = 20 << 20 };
  char *path = tc_sprintf("%s/m", dir), *text = tc_calloc(N + 1, 1);
  struct rusage before, after;
  struct tc_err err = {0};
  getrusage(RUSAGE_SELF, &before);
  memset(text, '[', N);
  is_int(open_text(path, text, -1, 0, &err), TC_EUSER, "20 million brackets");
  text[0] = '{';
  memcpy(text + 1, "\"a\":[", 5);
  for (int i = 6; i + 3 < N; i += 3) memcpy(text + i, "[],", 3);
  is_int(open_text(path, text, -1, 0, &err), TC_EUSER, "7 million lists");
  ok(strstr(err.text, "more values") != NULL, "says so");
  is_int(open_text(path, text, (int64_t)TC_ST_HEADER_BYTES + 1, 64 << 20, &err), TC_EUSER,
         "a header of over 64 MiB");
  ok(strstr(err.text, "more than") != NULL, "says so");
  getrusage(RUSAGE_SELF, &after);
  ok(after.ru_maxrss - before.ru_maxrss < 400 << 10, "less than 400 MB were taken");
  free(text);
  free(path);
}

static int open_llmc(const char *path, const int32_t *head, int64_t bytes, struct tc_err *err)
{
  struct tc_llmc *l = NULL;
  write_file(path, head, TC_LLMC_HEADER_BYTES);
  TC_ASSERT(truncate(path, bytes) == 0);
  int rc = tc_llmc_open(&l, path, err);
  tc_llmc_close(l);
  return rc;
}

static void test_llmc_headers(const char *dir)
{
  const struct tc_llmc_sizes s = { T, V, L, H, C, 256 };
  static const struct { const char *what; int at; int32_t value; const char *says; } c[] = {
    { "magic", 0, 20240327, "not a model file" }, { "an old version", 1, 2, "version 2" },
    { "no context", 2, 0, "number 2" }, { "a negative vocabulary", 3, -1, "number 3" },
    { "layers beyond reason", 4, INT32_MAX, "number 4" }, { "16 million layers", 4, 1 << 24,
        "bytes" },
    { "no heads", 5, 0, "number 5" }, { "heads that don't divide", 5, 3, "contradict" },
    { "a hidden size of 16 million", 6, 1 << 24, "bytes" },
    { "a padding below the vocabulary", 7, V - 1, "contradict" }, { "one layer more", 4, L + 1,
        "bytes" } };
  char *path = tc_sprintf("%s/l", dir);
  int32_t head[256];
  int64_t bytes = TC_LLMC_HEADER_BYTES + 4 * tc_llmc_place(&s, TC_LLMC_TENSORS, 0);
  struct tc_err err = {0};
  tc_llmc_header(head, &s, TC_F32);
  is_int(open_llmc(path, head, bytes, &err), 0, "llm.c: a good one");
  is_int(open_llmc(path, head, bytes - 1, &err), TC_EUSER, "cut off");
  is_int(open_llmc(path, head, bytes + 4, &err), TC_EUSER, "too long");
  is_int(open_llmc(path, head, 100, &err), TC_EUSER, "without its header");
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    int32_t was = head[c[i].at];
    head[c[i].at] = c[i].value;
    is_int(open_llmc(path, head, bytes, &err), TC_EUSER, "llm.c: %s", c[i].what);
    ok(strstr(err.text, c[i].says) != NULL, "says so");
    head[c[i].at] = was;
  }
  free(path);
}

/* ---- a checkpoint, exported and imported ------------------------------------------- */

/* The tensors of the model above, as names.c has them. */
static const struct tc_ckpt_tensor layer_tensor[] = {
  { "ln_1.weight", TC_F32, 1, { C } }, { "ln_1.bias", TC_F32, 1, { C } },
  { "attn.qkv.weight", TC_F32, 4, { H, 3, D, C } }, { "attn.qkv.bias", TC_F32, 3, { H, 3, D } },
  { "attn.proj.weight", TC_F32, 3, { C, H, D } }, { "attn.proj.bias", TC_F32, 1, { C } },
  { "ln_2.weight", TC_F32, 1, { C } }, { "ln_2.bias", TC_F32, 1, { C } },
  { "mlp.fc.weight", TC_F32, 2, { F, C } }, { "mlp.fc.bias", TC_F32, 1, { F } },
  { "mlp.proj.weight", TC_F32, 2, { C, F } }, { "mlp.proj.bias", TC_F32, 1, { C } } };
enum { PER_LAYER = sizeof layer_tensor / sizeof *layer_tensor, MOST = 2 + L * PER_LAYER + 2 };

static struct tc_ckpt_tensor tensor[2 * MOST];
static float *value[2 * MOST];
static int n_tensors;

static void add_tensor(const struct tc_ckpt_tensor *like, const char *prefix)
{
  int i = n_tensors++;
  tensor[i] = *like;
  tensor[i].name = tc_sprintf("%s%s", prefix, like->name);
  int64_t n = tc_box_elems(like->rank, like->dim);
  value[i] = tc_malloc((size_t)n * sizeof **value);
  for (int64_t k = 0; k < n; k++) value[i][k] = (float)((i * 31 + k * 17) % 4093) / 512 - 3.7f;
}

static const float *values(const char *name)
{
  for (int i = 0; i < n_tensors; i++)
    if (strcmp(tensor[i].name, name) == 0) return value[i];
  TC_ASSERT(!"a tensor of the model");
  return NULL;
}

static void save_model(const char *dir)
{
  const struct tc_ckpt_tensor outer[] = {
    { "wte.weight", TC_F32, 2, { V, C } }, { "wpe.weight", TC_F32, 2, { T, C } },
    { "ln_f.weight", TC_F32, 1, { C } }, { "ln_f.bias", TC_F32, 1, { C } } };
  add_tensor(&outer[0], "");
  add_tensor(&outer[1], "");
  for (int l = 0; l < L; l++)
    for (int i = 0; i < PER_LAYER; i++) add_tensor(&layer_tensor[i], l ? "h.1." : "h.0.");
  add_tensor(&outer[2], "");
  add_tensor(&outer[3], "");
  int weights = n_tensors;
  for (int i = 0; i < weights; i++) add_tensor(&tensor[i], "optim.m.");
  struct tc_ckpt_slice s[2 * MOST] = {0};
  for (int i = 0; i < n_tensors; i++) {
    s[i] = (struct tc_ckpt_slice){ .tensor = i, .data = value[i] };
    memcpy(s[i].count, tensor[i].dim, sizeof tensor[i].dim);
  }
  const char *const who[] = { "rank 0" };
  const struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_ckpt_meta meta = { .step = 12, .model = MODEL, .config = "", .mesh = "pp1 dp1 tp1",
                               .system = "ddp", .job = "", .rank_names = who };
  struct tc_err err = {0};
  int rc = tc_ckpt_save(dir, &meta, tensor, n_tensors, s, n_tensors, self, &err);
  if (rc < 0) printf("# %s\n", err.text);
  TC_ASSERT(rc == 0);
  tc_comm_free(self);
}

static float *read_st(const struct tc_st *s, const char *name)
{
  int i = tc_st_find(s, name);
  if (i < 0) return NULL;
  float *x = tc_malloc((size_t)tc_st_at(s, i)->bytes);
  TC_ASSERT(tc_st_read(s, i, 0, tc_st_at(s, i)->bytes, x, NULL) == 0);
  return x;
}

/* Hugging Face's Conv1D holds [in, out]; the columns of c_attn are q, k, v, each all heads. */
static void test_hf(const char *dir)
{
  char *path = tc_sprintf("%s/hf/model.safetensors", dir);
  struct tc_st *s;
  is_int(run("export %s/ckpt -o %s/hf --json", dir, dir), 0, "export, Hugging Face's");
  json_t *j = parsed();
  is_int((int64_t)real(j, "tensors"), 2 + L * PER_LAYER + 2, "the weights alone");
  json_decref(j);
  TC_ASSERT(tc_st_open(&s, path, NULL) == 0);
  is_str(tc_st_note(s, "format"), "pt", "as transformers wants it");
  float *qkv = read_st(s, "transformer.h.1.attn.c_attn.weight");
  float *bias = read_st(s, "transformer.h.1.attn.c_attn.bias");
  float *proj = read_st(s, "transformer.h.1.attn.c_proj.weight");
  float *fc = read_st(s, "transformer.h.0.mlp.c_fc.weight"), *wte = read_st(s,
      "transformer.wte.weight");
  TC_ASSERT(qkv && bias && proj && fc && wte);
  const float *our = values("h.1.attn.qkv.weight"), *our_bias = values("h.1.attn.qkv.bias");
  const float *our_proj = values("h.1.attn.proj.weight"), *our_fc = values("h.0.mlp.fc.weight");
  int off = 0;
  for (int h = 0; h < H; h++)
    for (int e = 0; e < 3; e++)
      for (int d = 0; d < D; d++) {
        int ours = (h * 3 + e) * D + d, theirs = e * C + h * D + d;
        off += bias[theirs] != our_bias[ours];
        for (int c = 0; c < C; c++) off += qkv[c * 3 * C + theirs] != our[ours * C + c];
      }
  is_int(off, 0, "qkv is turned, q, k and v come one after the other");
  for (int r = 0; r < C; r++)
    for (int k = 0; k < C; k++) off += proj[k * C + r] != our_proj[r * C + k];
  for (int r = 0; r < F; r++)
    for (int k = 0; k < C; k++) off += fc[k * F + r] != our_fc[r * C + k];
  is_int(off, 0, "the other linear layers are turned");
  is_int(memcmp(wte, values("wte.weight"), V * C * sizeof *wte), 0, "the embedding is as it is");
  ok(tc_st_at(s, tc_st_find(s, "transformer.h.0.mlp.c_fc.weight"))->dim[0] == C,
      "and its shape says so");
  float *all[] = { qkv, bias, proj, fc, wte };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  tc_st_close(s);
  free(path);
  ok(fails(run("export %s/ckpt -o %s/hf", dir, dir), 2, "exists already"),
      "nothing is written over");
}

/* The element of tensor `kind` of the last layer, read by its place. */
static void test_llmc(const char *dir)
{
  char *path = tc_sprintf("%s/l.bin", dir);
  is_int(run("export %s/ckpt -o %s --format llmc", dir, path), 0, "export, llm.c's");
  FILE *f = fopen(path, "r");
  enum { VP = 256, BEFORE = VP * C + T * C + 2 * L * C, END = BEFORE + L * 3 * C * C };
  int32_t head[256];
  float *x = tc_malloc(END * sizeof *x);
  TC_ASSERT(f && fread(head, 4, 256, f) == 256 && fread(x, 4, END, f) == END);
  fclose(f);
  const int32_t want[] = { 20240326, 3, T, V, L, H, C, VP };
  is_int(memcmp(head, want, sizeof want), 0, "its header");
  is_int(memcmp(x, values("wte.weight"), V * C * sizeof *x), 0, "the embedding");
  int off = 0;
  for (int i = V * C; i < VP * C; i++) off += x[i] != 0;
  is_int(off, 0, "padded with zeros");
  is_int(memcmp(x + VP * C + T * C + C, values("h.1.ln_1.weight"), C * sizeof *x), 0,
         "norms of all layers together");
  const float *our = values("h.1.attn.qkv.weight"), *theirs = x + BEFORE + 3 * C * C;
  for (int h = 0; h < H; h++)
    for (int e = 0; e < 3; e++)
      for (int d = 0; d < D; d++)
        off += memcmp(theirs + (e * C + h * D + d) * C, our + ((h * 3 + e) * D + d) * C,
            C * sizeof *x) != 0;
  is_int(off, 0, "q, k and v one after the other");
  free(x);
  free(path);
}

static void test_round(const char *dir)
{
  static const struct { const char *opts, *file; int whole; } c[] = {
    { "--format hf", "r0", 0 }, { "--format llmc", "r1", 0 }, { "--format safetensors", "r2", 0 } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    is_int(run("export %s/ckpt -o %s/%s %s", dir, dir, c[i].file, c[i].opts), 0, "%s", c[i].opts);
    is_int(run("import %s/%s -o %s/back%zu", dir, c[i].file, dir, i), 0, "import");
    is_int(run("diff %s/back%zu %s/ckpt --only [hwl]*", dir, i, dir), 0, "the same bits");
    is_int(run("verify %s/back%zu", dir, i), 0, "a whole checkpoint");
    is_int(run("show %s/back%zu", dir, i), 0, "of step 0");
    ok(says("step-00000000") && says(MODEL) && says("layers = 2"), "with model and run file");
    is_int(run("tensors %s/back%zu --json", dir, i), 0, "its tensors");
    json_t *j = parsed();
    double norm = 0;
    for (size_t k = 0; k < json_array_size(j); k++)
      if (!strncmp(json_string_value(json_object_get(json_array_get(j, k), "name")), "optim.", 6))
        norm += real(json_array_get(j, k), "norm");
    is_int((int64_t)json_array_size(j), 3 * (2 + L * PER_LAYER + 2), "weights and both moments");
    near_f(norm, 0, 0, "which are zero");
    json_decref(j);
    ok(fails(run("import %s/%s -o %s/back%zu", dir, c[i].file, dir, i), 2, "already"), "not twice");
  }
  is_int(run("export %s/ckpt -o %s/b.bin --format llmc --dtype bf16", dir, dir), 0, "bf16");
  is_int(run("import %s/b.bin -o %s/backb --train.optimizer=sgd", dir, dir), 0, "import");
  is_int(run("diff %s/backb %s/ckpt --only [hwl]* --rtol 4e-3", dir, dir), 0, "near");
  is_int(run("diff %s/backb %s/ckpt --only [hwl]* --rtol 1e-4", dir, dir), 1, "but rounded");
  ok(!says("optim."), "sgd has no moments");
}

/* The owner of `dir`, in a process of its own: it has a thread, beside which nothing may fork. */
struct owner { pid_t pid; int end; };

static struct owner live_owner(const char *dir)
{
  int taken[2], end[2];
  char c = 'x';
  TC_ASSERT(pipe(taken) == 0 && pipe(end) == 0);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(300);
    struct tc_owner *o = tc_owner_new(dir, "7", 0);
    int rc = tc_owner_take(o, NULL);
    close(taken[0]);
    close(end[1]);
    if (write(taken[1], &c, 1) == 1 && read(end[0], &c, 1) == 0) tc_owner_free(o);
    _exit(rc);
  }
  close(taken[1]);
  close(end[0]);
  TC_ASSERT(read(taken[0], &c, 1) == 1);
  close(taken[0]);
  return (struct owner){ pid, end[1] };
}

static void end_owner(struct owner o)
{
  int status = -1;
  close(o.end);
  waitpid(o.pid, &status, 0);
  is_int(status, 0, "the run ends");
}

static void test_import_faults(const char *dir)
{
  static const struct { const char *config, *says; } c[] = {
    { "{\"n_head\": 2, \"activation_function\": \"quick_gelu\"}", "activation_function" },
    { "{\"n_head\": 2, \"n_layer\": 3}", "n_layer" }, { "{\"n_head\": 3}", "does not divide" },
    { "{\"n_head\": -2}", "n_head" }, { "{}", "n_head" }, { "[]", "JSON, but not an object" },
    { "{\"n_head\"", "config.json is not JSON: line 1" },
    { "{\"n_head\": 2, \"tie_word_embeddings\": false}", "tie_word_embeddings" },
    { "{\"n_head\": 2, \"layer_norm_epsilon\": -1e-6}", "layer_norm_epsilon" },
    { "{\"n_head\": 2, \"model_type\": \"llama\"}", "\"num_hidden_layers\" is missing" },
    { "{\"n_head\": 2, \"model_type\": \"opt\"}", "model_type opt is not supported; GPT2LMHeadModel, " } };
  char *config = tc_sprintf("%s/hf/config.json", dir);
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    write_file(config, c[i].config, strlen(c[i].config));
    ok(fails(run("import %s/hf -o %s/no", dir, dir), 2, c[i].says), "config.json: %s", c[i].config);
  }
  const char *const exact = "{\"n_head\": 2, \"activation_function\": \"gelu\"}";
  write_file(config, exact, strlen(exact));
  is_int(run("import %s/hf -o %s/exact", dir, dir), 0, "exact GELU");
  ok(says(" act gelu_exact "), "... is the model's: %s", out_text);
  unlink(config);
  ok(fails(run("import %s/hf -o %s/no", dir, dir), 2, "--model.heads"), "no config.json");
  ok(fails(run("import %s/hf -o %s/no --model.heads=2 --model.hidden=9", dir, dir), 2,
      "model.hidden"),
     "a size that the file doesn't have");
  is_int(run("import %s/hf -o %s/yes --model.heads=2", dir, dir), 0, "heads by hand");
  is_int(run("diff %s/yes %s/ckpt --only [hwl]*", dir, dir), 0, "are right");
  char *live = tc_sprintf("%s/live", dir);
  struct owner o = live_owner(live);
  ok(fails(run("import %s/hf -o %s --model.heads=2", dir, live), 2, "in use by job 7"),
     "into a live run's folder");
  is_int(fx_count(live, "step-"), 0, "nothing is saved there");
  end_owner(o);
  is_int(run("import %s/hf -o %s --model.heads=2", dir, live), 0, "when the run has ended it is");
  is_int(fx_count(live, "step-") + fx_count(live, ".run-"), 2, "... and the folder is given up");
  free(live);
  ok(fails(run("import %s/none -o %s/no", dir, dir), 2, "No such file"), "nothing there");
  ok(fails(run("import %s/ckpt -o %s/no", dir, dir), 2, "model.safetensors"),
      "a folder without a model");
  ok(fails(run("import %s/hf", dir), 2, "-o DIR"), "without -o");
  ok(fails(run("export %s/ckpt -o %s/z --format onnx", dir, dir), 2, "onnx"), "an unknown format");
  ok(fails(run("export %s/ckpt -o %s/none/z --format llmc", dir, dir), 2, "can't be written"),
      "no folder");
  ok(fails(run("export %s/ckpt -o %s/z --optimizer", dir, dir), 2, "can't store"), "moments for HF");
  is_int(fx_count(dir, "z") + fx_count(dir, "no"), 0, "nothing half done is left");
  free(config);
}

int main(void)
{
  close(STDIN_FILENO);                 /* so that descriptor 0 is a file, which is valid */
  alarm(1100);
  const char *dir = fx_folder();
  snprintf(out_path, sizeof out_path, "%s/out", dir);
  char *ckpt = tc_sprintf("%s/ckpt", dir);
  test_headers(dir);
  test_memory(dir);
  test_llmc_headers(dir);
  save_model(ckpt);
  test_hf(dir);
  test_llmc(dir);
  test_round(dir);
  test_import_faults(dir);
  for (int i = 0; i < n_tensors; i++) {
    free(value[i]);
    free((void *)(uintptr_t)tensor[i].name);
  }
  free(ckpt);
  free(out_text);
  fx_clean();
  return done_testing();
}
