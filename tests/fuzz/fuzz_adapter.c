/* fuzz_adapter.c - folders of PEFT's: adapters of some of a model's matrices, in some of its layers, are drawn and written; some
 * have their adapter_config.json or the file's header damaged, a tensor more or less, or a member that changes what is computed.
 * What is accepted has the values that were written, by names and orders of this test's own, and the options that the file says;
 * the rest is refused with a sentence. */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

#include <jansson.h>

#include "src/files/output.h"
#include "src/foreign/foreign.h"
#include "src/program/setup.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

enum { MOST = 1 << 16, MODULES = 64 };
#define CONFIG "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
  (void)st; (void)type; (void)at;
  return remove(path);
}

static int64_t draw(struct fuzz *f, int least, int most)
{ return least + (int64_t)fuzz_below(f, (size_t)(most - least + 1)); }

/* ---- models ------------------------------------------------------------------------------ */

struct sizes { int64_t layers, heads, kv, d, ffn, hidden; int family; };
static const char *const families[] = { "llama", "qwen3", "gpt2", "phi3" };

/* A module of theirs: its name within its layer, ours, inputs and outputs; `all`: it has queries, keys and values. */
struct module { const char *theirs, *ours; int64_t in, out; bool all; };

static int modules_of(struct module m[8], const struct sizes *s)
{
  const int64_t q = s->heads * s->d, k = s->kv * s->d, C = s->hidden, F = s->ffn;
  const struct module llama[] = { { "self_attn.q_proj", "attn.qkv.q", C, q, false },
    { "self_attn.k_proj", "attn.qkv.k", C, k, false },
    { "self_attn.v_proj", "attn.qkv.v", C, k, false }, { "self_attn.o_proj", "attn.proj", q, C, false },
    { "mlp.gate_proj", "mlp.gate_up.gate", C, F, false }, { "mlp.up_proj", "mlp.gate_up.up", C, F, false },
    { "mlp.down_proj", "mlp.proj", F, C, false } };
  const struct module gpt2[] = { { "attn.c_attn", "attn.qkv", C, q + 2 * k, true }, { "attn.c_proj", "attn.proj", q, C, false },
    { "mlp.c_fc", "mlp.fc", C, F, false }, { "mlp.c_proj", "mlp.proj", F, C, false } };
  const struct module phi3[] = { { "self_attn.qkv_proj", "attn.qkv", C, q + 2 * k, true },
    { "self_attn.o_proj", "attn.proj", q, C, false }, { "mlp.gate_up_proj", "mlp.gate_up", C, 2 * F, false },
    { "mlp.down_proj", "mlp.proj", F, C, false } };
  const struct module *of[] = { llama, llama, gpt2, phi3 };
  const int n = s->family < 2 ? 7 : 4;
  memcpy(m, of[s->family], (size_t)n * sizeof *m);
  return n;
}

static struct sizes draw_sizes(struct fuzz *f)
{
  struct sizes s = { .family = (int)draw(f, 0, 3), .layers = draw(f, 1, 3), .kv = draw(f, 1, 3),
                     .d = 2 * draw(f, 1, 3), .ffn = draw(f, 1, 9) };
  s.heads = s.kv * (s.family == 2 ? 1 : draw(f, 1, 3));
  s.hidden = s.heads * s.d;
  if (s.family == 2) s.ffn = 4 * s.hidden;
  return s;
}

static struct tc_config *config_of(const struct sizes *s)
{
  char text[10][60], *argv[10];
  struct tc_config *c;
  struct tc_err err;
  int n = 0;
  snprintf(text[n++], 60, "fuzz");
  snprintf(text[n++], 60, "--model.family=%s", families[s->family]);
  snprintf(text[n++], 60, "--model.layers=%lld", (long long)s->layers);
  snprintf(text[n++], 60, "--model.hidden=%lld", (long long)s->hidden);
  snprintf(text[n++], 60, "--model.heads=%lld", (long long)s->heads);
  if (s->family != 2) snprintf(text[n++], 60, "--model.kv_heads=%lld", (long long)s->kv);
  if (s->family != 2) snprintf(text[n++], 60, "--model.head_dim=%lld", (long long)s->d);
  snprintf(text[n++], 60, "--model.ffn=%lld", (long long)s->ffn);
  snprintf(text[n++], 60, "--model.context=8");
  snprintf(text[n++], 60, "--model.vocab=9");
  for (int i = 0; i < n; i++) argv[i] = text[i];
  TC_ASSERT(tc_config_new(&c, n, argv, &err) == 0);
  return c;
}

/* ---- a folder ------------------------------------------------------------------------------ */

enum { OF_F32, OF_BF16, OF_F16, TYPES };

struct adapter {
  struct sizes s;
  int64_t rank;
  struct module module[MODULES];
  int64_t layer[MODULES];
  int n;
  int type;                                            /* of the file's numbers */
  const char *note;                                    /* the digest of what they belong to; NULL: none */
  char dir[60];
};

/* The 16 bits of a number that such a type has: 1 + k / 128, or 1 + k / 1024. */
static uint16_t bits_of(const struct adapter *a, int module, int which, int64_t row, int64_t col)
{
  const unsigned k = (unsigned)(module * 211 + which * 101 + (int)(row * 17 + col * 3));
  return (uint16_t)(a->type == OF_BF16 ? 0x3f80u | k % 128u : 0x3c00u | k % 1024u);
}

/* Element (row, column) of A (0) or B (1) of a module. */
static float value_of(const struct adapter *a, int module, int which, int64_t row, int64_t col)
{
  const uint16_t bits = bits_of(a, module, which, row, col);
  if (a->type == OF_BF16) return 1 + (float)(bits & 127) / 128;
  if (a->type == OF_F16) return 1 + (float)(bits & 1023) / 1024;
  return (float)(module * 64 + which * 32 + (int)(row % 8) * 4) + 0.0625f * (float)col + 0.001f * (float)(row / 8);
}

/* Numbers of 16 bits become F16, which no writer here makes: the header's words have as many characters. */
static void make_half(const char *path)
{
  char *text = tc_malloc(MOST), *at = text;
  const int fd = open(path, O_RDWR);
  const ssize_t n = pread(fd, text, MOST, 0);
  TC_ASSERT(fd >= 0 && n > 0);
  while ((at = memmem(at, (size_t)(text + n - at), "\"BF16\"", 6))) memcpy(at, "\"F16\" ", 6);
  TC_ASSERT(pwrite(fd, text, (size_t)n, 0) == n);
  close(fd);
  free(text);
}

static void write_weights(struct fuzz *f, const struct adapter *a, int missing, bool more)
{
  struct tc_st_tensor t[2 * MODULES + 1];
  char name[2 * MODULES + 1][120], path[120];
  struct tc_output *w;
  int64_t bytes;
  int of[2 * MODULES + 1], n = 0;
  for (int i = 0; i < 2 * a->n; i++) {
    const struct module *m = &a->module[i / 2];
    if (i == missing) continue;
    of[n] = i;
    snprintf(name[n], sizeof name[n], "base_model.model.%s.%lld.%s.lora_%c.weight",
             a->s.family == 2 ? "transformer.h" : "model.layers",
             (long long)a->layer[i / 2], m->theirs, "AB"[i % 2]);
    t[n] = (struct tc_st_tensor){ .name = name[n], .dtype = a->type == OF_F32 ? TC_F32 : TC_BF16, .rank = 2,
                                  .dim = { i % 2 ? m->out : a->rank, i % 2 ? a->rank : m->in } };
    n++;
  }
  if (more) {
    static const char *const others[] = { "base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.lora_embedding_A",
                                          "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
                                          "lm_head.weight" };
    of[n] = -1;
    t[n++] = (struct tc_st_tensor){ .name = others[fuzz_below(f, 4)], .dtype = TC_F32, .rank = 1, .dim = { 1 } };
  }
  snprintf(path, sizeof path, "%s/" WEIGHTS, a->dir);
  const char *const notes[] = { "format", "pt", a->note ? "tercio.base" : NULL, a->note, NULL };
  TC_ASSERT(tc_st_create(&w, &bytes, path, t, n, notes, NULL) == 0);
  for (int i = 0; i < n; i++)
    for (int64_t r = 0; r < t[i].dim[0]; r++)
      for (int64_t c = 0; c < (t[i].rank > 1 ? t[i].dim[1] : 1); c++) {
        const float x = of[i] < 0 ? 1 : value_of(a, of[i] / 2, of[i] % 2, r, c);
        const uint16_t bits = bits_of(a, of[i] / 2, of[i] % 2, r, c);
        const bool whole = of[i] < 0 || a->type == OF_F32;
        TC_ASSERT(tc_output_write(w, whole ? (const void *)&x : &bits, whole ? sizeof x : sizeof bits, NULL) == 0);
      }
  TC_ASSERT(tc_output_finish(w, NULL) == 0);
  if (a->type == OF_F16) make_half(path);
}

/* Its matrices: some modules, in all layers or in some. */
static json_t *draw_adapter(struct fuzz *f, struct adapter *a)
{
  struct module all[8];
  const int n = modules_of(all, &a->s);
  const unsigned which = 1 + (unsigned)fuzz_below(f, (1u << n) - 1), layers = fuzz_below(f, 3) ? 7 : 1 + (unsigned)fuzz_below(f, 7);
  json_t *targets = json_array(), *in = json_array();
  a->rank = draw(f, 1, 5);
  a->type = (int)draw(f, 0, TYPES - 1);
  a->note = fuzz_below(f, 2) ? NULL : "00ff12ab34cd56ef";
  for (int64_t l = 0; l < a->s.layers; l++) {
    if (!(layers >> l & 1)) continue;
    json_array_append_new(in, json_integer(l));
    for (int i = 0; i < n; i++)
      if (which >> i & 1) a->module[a->n] = all[i], a->layer[a->n++] = l;
  }
  const bool whole_names = a->s.family == 2 || fuzz_below(f, 2);
  for (int i = 0; i < n; i++)
    if (which >> i & 1) json_array_append_new(targets, json_string(whole_names ? all[i].theirs : strchr(all[i].theirs, '.') + 1));
  json_t *o = json_pack("{s:s, s:I, s:s, s:b, s:o, s:n, s:{}}", "peft_type", "LORA", "r", (json_int_t)a->rank, "bias", "none",
                        "use_rslora", (int)fuzz_below(f, 2), "target_modules", targets, "modules_to_save", "rank_pattern");
  const double alpha = 0.5 * (double)draw(f, 1, 64);
  json_object_set_new(o, "lora_alpha", alpha == floor(alpha) ? json_integer((json_int_t)alpha) : json_real(alpha));
  if (fuzz_below(f, 2)) json_object_set_new(o, "lora_dropout", json_real(0.25 * (double)draw(f, 0, 3)));
  if ((layers & ((1u << a->s.layers) - 1)) != (1u << a->s.layers) - 1) json_object_set(o, "layers_to_transform", in);
  if (which == (1u << n) - 1 && fuzz_below(f, 2)) json_object_set_new(o, "target_modules", json_string("all-linear"));
  json_decref(in);
  return o;
}

/* ---- what is accepted ------------------------------------------------------------------------ */

/* The row of B, as it was written, of row i of ours: ours are groups of queries, a key and a value. */
static int64_t row_of(const struct adapter *a, const struct module *m, int64_t i)
{
  const int64_t d = a->s.d, G = a->s.heads / a->s.kv, head = i / d % (G + 2), group = i / d / (G + 2);
  if (!m->all) return i;
  if (head < G) return (group * G + head) * d + i % d;
  return (a->s.heads + (head == G ? 0 : a->s.kv) + group) * d + i % d;
}

static const char *compare(const struct adapter *a, const struct tc_foreign *x)
{
  static const int64_t zero[TC_DIMS] = { 0 };
  struct tc_err err;
  if (tc_foreign_n(x) != 2 * a->n) return "another number of matrices";
  if (strcmp(tc_adapter_base(x), a->note ? a->note : "")) return "another digest of what it belongs to";
  for (int i = 0; i < 2 * a->n; i++) {
    const struct module *m = &a->module[i / 2];
    char name[80];
    snprintf(name, sizeof name, "h.%lld.%s.lora_%c", (long long)a->layer[i / 2], m->ours, "ab"[i % 2]);
    const int k = tc_foreign_find(x, name);
    if (k < 0) return "a matrix is missing";
    const struct tc_ckpt_tensor *t = tc_foreign_at(x, k);
    const int64_t rows = i % 2 ? m->out : a->rank, cols = i % 2 ? a->rank : m->in;
    if (tc_box_elems(t->rank, t->dim) != rows * cols) return "another size";
    float *v = tc_malloc((size_t)(rows * cols) * sizeof *v);
    const char *wrong = tc_foreign_read(x, k, zero, t->dim, v, &err) < 0 ? "it can't be read" : NULL;
    for (int64_t e = 0; e < rows * cols && !wrong; e++)
      if (v[e] != value_of(a, i / 2, i % 2, i % 2 ? row_of(a, m, e / cols) : e / cols, e % cols)) wrong = "another value";
    free(v);
    if (wrong) return wrong;
  }
  return NULL;
}

/* The options are what the file says. */
static const char *check_options(const struct adapter *a, const struct tc_config *c, const char *text, size_t n)
{
  json_t *o = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, NULL);
  struct tc_model m;
  struct tc_lora l;
  struct tc_err err;
  if (!o) return NULL;                           /* what loose JSON may be is of another test */
  const double r = json_number_value(json_object_get(o, "r")), alpha = json_number_value(json_object_get(o, "lora_alpha"));
  const bool rs = json_is_true(json_object_get(o, "use_rslora"));
  const char *wrong = NULL;
  if (tc_setup_model(c, &m, &err) < 0 || tc_setup_lora(&l, c, &m, &err) < 0) wrong = "its options are refused";
  else if ((double)l.rank != r || l.factor != (float)(alpha / (rs ? sqrt(r) : r))) wrong = "another rank or scale";
  for (int i = 0; i < a->n && !wrong; i++) {
    char name[80];
    snprintf(name, sizeof name, "h.%lld.%s", (long long)a->layer[i], a->module[i].ours);
    if (!tc_lora_has(c->train_lora_rows, name)) wrong = "its patterns miss a matrix";
  }
  int chosen = 0;
  for (int64_t layer = 0; layer < a->s.layers && !wrong; layer++) {
    struct module all[8];
    const int k = modules_of(all, &a->s);
    for (int i = 0; i < k; i++) {
      char name[80];
      snprintf(name, sizeof name, "h.%lld.%s", (long long)layer, all[i].ours);
      chosen += tc_lora_has(c->train_lora_rows, name);
    }
  }
  json_decref(o);
  return wrong ? wrong : chosen != a->n ? "its patterns choose more matrices" : NULL;
}

/* ---- cases ----------------------------------------------------------------------------------- */

enum damage { WHOLE, TEXT, HEADER, MISSING, MORE, MEMBER, NOTE, DAMAGES };

static void damage_file(struct fuzz *f, const char *dir)
{
  char path[120], *text = tc_malloc(MOST);
  snprintf(path, sizeof path, "%s/" WEIGHTS, dir);
  const int fd = open(path, O_RDWR);
  ssize_t got = pread(fd, text, MOST / 2, 0);
  size_t n = (size_t)TC_MAX(got, 0);
  TC_ASSERT(fd >= 0 && n > 16);
  size_t header = TC_MIN(n, (size_t)8 + (unsigned char)text[0] + 256u * (unsigned char)text[1]);
  fuzz_damage(f, text, &header, 0, MOST / 2);
  TC_ASSERT(pwrite(fd, text, header, 0) == (ssize_t)header);
  close(fd);
  free(text);
}

/* A member that changes what is computed, of which the sentence has to say the name. */
static const char *set_member(struct fuzz *f, json_t *o)
{
  static const struct { const char *name, *value; } bad[] = { { "use_dora", "true" }, { "rank_pattern", "{\"q_proj\": 3}" },
    { "alpha_pattern", "{\"q_proj\": 3}" }, { "modules_to_save", "[\"lm_head\"]" }, { "bias", "\"all\"" },
    { "peft_type", "\"LOHA\"" },
    { "lora_bias", "true" }, { "init_lora_weights", "\"pissa\"" }, { "layer_replication", "[[0, 1]]" }, { "use_qalora", "true" },
    { "target_parameters", "[\"x\"]" }, { "exclude_modules", "[\"q_proj\"]" }, { "trainable_token_indices", "[1]" },
    { "what_comes_next", "0.5" }, { "r", "1.5" }, { "r", "0" }, { "lora_alpha", "null" }, { "use_rslora", "1" },
    { "target_modules", "\"q.*\"" }, { "target_modules", "[]" }, { "target_modules", "[1]" }, { "layers_to_transform", "[0.5]" } };
  const size_t i = fuzz_below(f, sizeof bad / sizeof *bad);
  json_object_set_new(o, bad[i].name, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
  return bad[i].name;
}

static int one(struct fuzz *f, const char *dir)
{
  struct adapter a = { .s = draw_sizes(f) };
  struct tc_foreign *x = NULL;
  struct tc_err err = { 0 };
  snprintf(a.dir, sizeof a.dir, "%s/peft", dir);
  TC_ASSERT(mkdir(a.dir, 0700) == 0);
  json_t *o = draw_adapter(f, &a);
  if (!a.n) return json_decref(o), nftw(a.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0;   /* its layers are beyond the model's */
  const enum damage how = (enum damage)fuzz_below(f, DAMAGES);
  const char *member = how == MEMBER ? set_member(f, o) : how == NOTE ? "tercio.base" : NULL, *wrong = NULL;
  static const char *const notes[] = { "", "00ff12ab34cd56e", "00ff12ab34cd56eg", "00ff12ab34cd56ef0", "00FF12AB34CD56EF" };
  if (how == NOTE) a.note = notes[fuzz_below(f, 5)];
  write_weights(f, &a, how == MISSING ? (int)fuzz_below(f, (size_t)(2 * a.n)) : -1, how == MORE);
  char *text = tc_malloc(MOST), *json = json_dumps(o, JSON_INDENT(1)), path[120];
  size_t n = strlen(json);
  memcpy(text, json, n);
  if (how == TEXT) fuzz_damage(f, text, &n, 0, MOST);
  if (how == HEADER) damage_file(f, a.dir);
  snprintf(path, sizeof path, "%s/" CONFIG, a.dir);
  FILE *out = fopen(path, "w");
  TC_ASSERT(out && fwrite(text, 1, n, out) == n && fclose(out) == 0);
  struct tc_config *c = config_of(&a.s);
  const int rc = tc_adapter_open(&x, a.dir, c, &err);
  if (rc == 0) {
    f->accepted++;
    if (how == MISSING || how == MORE || how == MEMBER || how == NOTE) wrong = "it should be refused";
    if (!wrong && how != HEADER) wrong = compare(&a, x);
    if (!wrong && how != HEADER) wrong = check_options(&a, c, text, n);
  } else {
    if (how == WHOLE) wrong = err.text;
    if (rc != TC_EUSER || !strstr(err.text, a.dir) || strlen(err.text) < 20) wrong = "refused without a sentence";
    if (!wrong && member && !strstr(err.text, member)) wrong = err.text;
  }
  if (wrong) fuzz_fault(f, wrong);
  tc_foreign_close(x);
  tc_config_free(c);
  json_decref(o);
  TC_FREE(text, json);
  nftw(a.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  return wrong != NULL;
}

int main(int argc, char **argv)
{
  struct fuzz f;
  char dir[] = "/tmp/tercio-fuzz-XXXXXX";
  int faults = 0;
  fuzz_start(&f, argc, argv);
  TC_ASSERT(mkdtemp(dir));
  const int64_t rss = fuzz_rss_kb();
  while (fuzz_more(&f)) faults += one(&f, dir);
  rmdir(dir);
  is_int(faults, 0, "adapters: what is accepted is what was written, the rest is refused with a sentence");
  return fuzz_end(&f, "PEFT's folders", rss);
}
