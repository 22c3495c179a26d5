/* fuzz_hf.c - folders of Hugging Face's: models of all families are drawn and written in one to three files; some have
 * their config.json, index or a file's header damaged. What is imported is exported again with equal tensors, and any
 * box that is read from the folder is the checkpoint's; the rest is refused with a sentence. */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

#include "src/cmd/ckpt/ckpt.h"
#include "src/files/output.h"
#include "src/foreign/foreign.h"
#include "src/model/hf.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include "tests/unit/same_tensors.h"

enum { MOST = 1 << 18, MOST_PATH = 200, FILES = 3 };

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
  (void)st; (void)type; (void)at;
  return remove(path);
}
static void remove_all(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static int64_t draw(struct fuzz *f, int least, int most)
{ return least + (int64_t)fuzz_below(f, (size_t)(most - least + 1)); }

static void draw_scaling(struct fuzz *f, struct tc_rope_scaling *s, int kinds)
{
  *s = (struct tc_rope_scaling){ .kind = (uint8_t)draw(f, TC_ROPE_PLAIN, kinds) };
  if (s->kind >= TC_ROPE_LINEAR) s->factor = 0.125f * (float)draw(f, 1, 100);
  if (s->kind < TC_ROPE_LLAMA3) return;
  s->low = 0.5f * (float)draw(f, 1, 4);
  s->high = s->low + (float)draw(f, 1, 4);
  s->original = draw(f, 1, 1000);
  if (s->kind != TC_ROPE_YARN) return;
  s->attention = 0.125f * (float)draw(f, 1, 20);
  s->untruncated = fuzz_below(f, 2);
}

/* Windows and layers without positions, where the family has them. */
static void draw_layers(struct fuzz *f, struct tc_model *m)
{
  static const uint8_t whole[] = { TC_FAMILY_MISTRAL, TC_FAMILY_PHI3 },
                       parts[] = { TC_FAMILY_QWEN2, TC_FAMILY_QWEN3, TC_FAMILY_GEMMA2, TC_FAMILY_GEMMA3, TC_FAMILY_OLMO3 };
  if (memchr(whole, m->family, sizeof whole)) strcpy(m->pattern, fuzz_below(f, 2) ? "S" : "F");
  if (memchr(parts, m->family, sizeof parts)) strcpy(m->pattern, ((const char *[]){ "F", "S", "SF", "FS", "SSF" })[fuzz_below(f, 5)]);
  if (m->family == TC_FAMILY_SMOLLM3) strcpy(m->pattern, ((const char *[]){ "F", "Ff", "fF", "Fs", "SfF" })[fuzz_below(f, 5)]);
  m->window = strpbrk(m->pattern, "Ss") ? draw(f, 1, 12) : -1;
}

/* Sizes and parts that a class of the family can say. */
static struct tc_model draw_model(struct fuzz *f)
{
  struct tc_model m = { .preset = "", .layers = draw(f, 1, 3), .vocab = draw(f, 1, 40), .context = draw(f, 1, 9),
                        .family = (uint8_t)draw(f, TC_FAMILY_GPT2, TC_FAMILY_PHI3) };
  static const uint8_t both[] = { TC_BIAS_ALL, TC_BIAS_NONE, TC_BIAS_ATTENTION, TC_BIAS_MLP };
  m.kv_heads = draw(f, 1, 3);
  m.heads = m.kv_heads * draw(f, 1, 3);
  m.head_dim = 2 * draw(f, 1, 4);
  if (m.family == TC_FAMILY_GPT2) {
    m.kv_heads = m.heads;
    m.hidden = m.heads * m.head_dim;
    return tc_model_complete(&m);
  }
  const bool gemma = m.family == TC_FAMILY_GEMMA2 || m.family == TC_FAMILY_GEMMA3, two = gemma || m.family == TC_FAMILY_OLMO3;
  const bool mlp_bias = m.family == TC_FAMILY_LLAMA || m.family == TC_FAMILY_GRANITE || m.family == TC_FAMILY_SMOLLM3;
  m.hidden = m.family == TC_FAMILY_LLAMA || gemma ? m.heads * draw(f, 1, 3) : draw(f, 1, 16);
  m.ffn = draw(f, 1, 20);
  m.tied = fuzz_below(f, 2) ? TC_ON : TC_OFF;
  if (mlp_bias) m.bias = both[fuzz_below(f, 4)];
  m.rope_theta = (float)draw(f, 1, 1000000);
  m.norm_eps = 1e-9f * (float)draw(f, 1, 1000000);
  draw_layers(f, &m);
  draw_scaling(f, &m.rope_scaling, m.family == TC_FAMILY_PHI3 ? TC_ROPE_PLAIN : TC_ROPE_YARN);
  if (two && m.family != TC_FAMILY_GEMMA2) {
    m.sliding_theta = (float)draw(f, 1, 1000000);
    draw_scaling(f, &m.sliding_scaling, TC_ROPE_LLAMA3);
    m.rope_scaling.untruncated = false;
  }
  if (m.family == TC_FAMILY_PHI3) m.rotary_dim = 2 * draw(f, 1, (int)m.head_dim / 2);
  if (gemma && fuzz_below(f, 2)) m.attn_scale = (float)pow((double)draw(f, 1, 500), -0.5);
  if (gemma) m.logit_cap = fuzz_below(f, 2) ? -1 : (float)draw(f, 1, 50);
  if (m.family == TC_FAMILY_GRANITE) {
    m.embed_scale = 0.3f * (float)draw(f, 1, 50);
    m.residual_scale = 0.1f * (float)draw(f, 1, 10);
    m.attn_scale = 0.01f * (float)draw(f, 1, 100);
    m.logit_divisor = 0.7f * (float)draw(f, 1, 20);
  }
  return tc_model_complete(&m);
}

static void write_text(const char *dir, const char *name, const char *text, size_t n)
{
  char path[MOST_PATH];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *out = fopen(path, "w");
  TC_ASSERT(out && fwrite(text, 1, n, out) == n && fclose(out) == 0);
}

/* A folder being written: its files, and the index of them. */
struct folder { const char *dir; char name[FILES][60]; int n; char index[20000]; size_t at; };

static void write_file(struct fuzz *f, struct folder *d, int file, const struct tc_foreign_part *part, int n, bool gpt2, int dtype)
{
  struct tc_st_tensor *t = tc_calloc((size_t)n + 1, sizeof *t);
  char path[MOST_PATH], (*name)[100] = tc_calloc((size_t)n + 1, sizeof *name);
  struct tc_output *w;
  int64_t bytes;
  for (int i = 0; i < n; i++) {
    snprintf(name[i], sizeof name[i], "%s%s", gpt2 ? "transformer." : "", part[i].hf);
    t[i] = (struct tc_st_tensor){ .name = name[i], .dtype = dtype, .rank = part[i].rank };
    tc_foreign_hf_shape(&part[i], t[i].dim);
    d->at += (size_t)snprintf(d->index + d->at, sizeof d->index - d->at, "%s\n  \"%s\": \"%s\"",
                              d->at > 20 ? "," : "", name[i], d->name[file]);
  }
  snprintf(path, sizeof path, "%s/%s", d->dir, d->name[file]);
  TC_ASSERT(tc_st_create(&w, &bytes, path, t, n, NULL, NULL) == 0);
  for (int i = 0; i < n; i++)
    for (int64_t k = 0; k < tc_foreign_elems(&part[i]); k++) {
      const float x = (float)fuzz_below(f, 1 << 16) - 32768;
      const uint16_t half = tc_f32_to_bf16(x);
      TC_ASSERT(tc_output_write(w, dtype == TC_F32 ? (const void *)&x : &half, dtype == TC_F32 ? 4 : 2, NULL) == 0);
    }
  TC_ASSERT(tc_output_finish(w, NULL) == 0);
  free(t);
  free(name);
}

/* A model as a folder; into d the names of its files. */
static void write_model(struct fuzz *f, struct folder *d, const struct tc_model *m, int dtype)
{
  struct tc_foreign_part *part;
  const int n = tc_foreign_parts(&part, m, TC_FORM_HF, false);
  d->n = (int)draw(f, 1, FILES);
  d->at = (size_t)snprintf(d->index, sizeof d->index, "{\"weight_map\": {");
  TC_ASSERT(mkdir(d->dir, 0700) == 0);
  for (int i = 0, from = 0; i < d->n; i++) {
    const int end = i == d->n - 1 ? n : from + (int)draw(f, 1, (n - from) - (d->n - 1 - i));
    if (d->n == 1) snprintf(d->name[i], sizeof d->name[i], "model.safetensors");
    else snprintf(d->name[i], sizeof d->name[i], "model-%05d-of-%05d.safetensors", i + 1, d->n);
    write_file(f, d, i, part + from, end - from, m->rope_theta < 0, dtype);
    from = end;
  }
  d->at += (size_t)snprintf(d->index + d->at, sizeof d->index - d->at, "}}\n");
  if (d->n > 1) write_text(d->dir, "model.safetensors.index.json", d->index, d->at);
  char *config = tc_hf_text(m, (struct tc_hf_ids){ -1, -1 }, 0, "float32");
  write_text(d->dir, "config.json", config, strlen(config));
  free(config);
  free(part);
}

static void damage(struct fuzz *f, const struct folder *d)
{
  char path[MOST_PATH], *text = tc_calloc(MOST, 1);
  const size_t what = fuzz_below(f, 4);
  const char *name = what < 2 ? "config.json" : what == 2 && d->n > 1 ? "model.safetensors.index.json"
                                                                      : d->name[fuzz_below(f, (size_t)d->n)];
  snprintf(path, sizeof path, "%s/%s", d->dir, name);
  FILE *in = fopen(path, "r");
  TC_ASSERT(in);
  size_t n = fread(text, 1, MOST / 2, in);
  fclose(in);
  for (size_t k = 1 + fuzz_below(f, 2); k > 0 && n > 16; k--) {
    size_t head = what < 3 ? n : TC_MIN(n, 400);         /* headers are where damage can be understood wrong */
    if (head == n || fuzz_below(f, 8) == 0) {
      fuzz_damage(f, text, &n, 0, MOST / 2);
    } else {
      text[fuzz_below(f, head)] ^= (char)(1 << fuzz_below(f, 8));
    }
  }
  write_text(d->dir, name, text, n);
  free(text);
}

/* A command of `tercio ckpt`, whose output goes nowhere. */
static int quiet(int (*command)(const struct ckpt_args *, struct tc_err *), const char *from, const char *to,
                 const char *dtype, int64_t shard, struct tc_err *err)
{
  const struct ckpt_args a = { .path = { from }, .out = to, .dtype = dtype, .shard_bytes = shard };
  fflush(stdout);
  const int out = dup(1), null = open("/dev/null", O_WRONLY);
  TC_ASSERT(dup2(null, 1) == 1);
  int rc = command(&a, err);
  fflush(stdout);
  TC_ASSERT(dup2(out, 1) == 1);
  close(out);
  close(null);
  return rc;
}

/* The file of a folder that has its tensors, or their index. */
static const char *tensors_of(char path[MOST_PATH], const char *dir)
{
  snprintf(path, MOST_PATH, "%.150s/model.safetensors", dir);
  if (access(path, F_OK) != 0) snprintf(path, MOST_PATH, "%.150s/model.safetensors.index.json", dir);
  return path;
}

/* A box of every tensor, from a folder and from the checkpoint that was made of it. */
static bool same_boxes(struct fuzz *f, const char *folder, const char *ckpt)
{
  char word[] = "fuzz", *argv[] = { word };
  struct tc_config *cfg = NULL;
  struct tc_foreign *x = NULL;
  struct tc_ckpt *c = NULL;
  struct tc_err err;
  bool same = tc_config_new(&cfg, 1, argv, &err) == 0 && tc_foreign_open(&x, folder, NULL, cfg, &err) == 0 &&
    tc_ckpt_open(&c, ckpt, &err) == 0;
  for (int i = 0; same && i < tc_foreign_n(x); i++) {
    const struct tc_ckpt_tensor *t = tc_foreign_at(x, i);
    const int k = tc_ckpt_find(c, t->name);
    int64_t start[TC_DIMS] = { 0 }, count[TC_DIMS];
    memcpy(count, t->dim, sizeof count);
    for (int d = 0; d < t->rank; d++)
      if (fuzz_below(f, 2)) {
        start[d] = draw(f, 0, (int)t->dim[d] - 1);
        count[d] = draw(f, 1, (int)(t->dim[d] - start[d]));
      }
    const size_t bytes = (size_t)tc_box_bytes(TC_F32, t->rank, count);
    float *a = tc_malloc(bytes), *b = tc_malloc(bytes);
    same = k >= 0 && tc_foreign_read(x, i, start, count, a, &err) == 0 && tc_ckpt_read(c, k, start, count, b, &err) == 0 &&
      memcmp(a, b, bytes) == 0;
    free(a);
    free(b);
  }
  tc_ckpt_close(c);
  tc_foreign_close(x);
  tc_config_free(cfg);
  return same;
}

/* One case in the folder `top`: 1 if it is at fault. */
static int try_one(struct fuzz *f, const char *top)
{
  char dir[5][MOST_PATH], a[MOST_PATH], b[MOST_PATH];
  const char *const what[5] = { "hf", "ckpt", "again", "ckpt2", "last" };
  for (int i = 0; i < 5; i++) snprintf(dir[i], sizeof dir[i], "%s/%s", top, what[i]);
  struct folder *d = tc_calloc(1, sizeof *d);
  struct tc_err err = { .text = "" };
  const struct tc_model m = draw_model(f);
  const bool half = fuzz_below(f, 3) == 0, damaged = fuzz_below(f, 4) != 0;
  const char *dtype = half ? "bf16" : "f32";
  const int64_t shard = fuzz_below(f, 2) ? draw(f, 1, 4000) : 0;
  int bad = 0;
  TC_ASSERT(mkdir(top, 0700) == 0);
  d->dir = dir[0];
  write_model(f, d, &m, half ? TC_BF16 : TC_F32);
  if (damaged) damage(f, d);
  free(d);
  int rc = quiet(ckpt_cmd_import, dir[0], dir[1], NULL, 0, &err);
  f->accepted += rc == 0;
  if (rc < 0 && (!damaged || rc != TC_EUSER || !*err.text || strchr(err.text, '\n'))) bad = fuzz_fault(f, err.text);
  if (rc == 0) {
    rc = quiet(ckpt_cmd_export, dir[1], dir[2], dtype, shard, &err);
    if (rc < 0) bad = fuzz_fault(f, err.text);
    else if (!same_boxes(f, dir[0], dir[1])) bad = fuzz_fault(f, "a box is not the checkpoint's");
    else if (!damaged && !same_tensors(tensors_of(a, dir[0]), tensors_of(b, dir[2])))
      bad = fuzz_fault(f, "exported with other tensors");
    else if (damaged && (quiet(ckpt_cmd_import, dir[2], dir[3], NULL, 0, &err) < 0 ||
                         quiet(ckpt_cmd_export, dir[3], dir[4], dtype, shard, &err) < 0))
      bad = fuzz_fault(f, err.text);
    else if (damaged && !same_tensors(tensors_of(a, dir[2]), tensors_of(b, dir[4])))
      bad = fuzz_fault(f, "a second round trip gives other tensors");
  }
  if (getenv("SHOW")) printf("# %s: %s\n", damaged ? "damaged" : "whole", rc == 0 ? "accepted" : err.text);
  remove_all(top);
  return bad;
}

int main(int argc, char **argv)
{
  struct fuzz f;
  char folder[] = "/tmp/fuzz_hf.XXXXXX", top[sizeof folder + 4];
  int faults = 0;
  fuzz_start(&f, argc, argv);
  if (argc == 1) f.most_cases = 200;
  TC_ASSERT(mkdtemp(folder));
  snprintf(top, sizeof top, "%s/x", folder);
  int64_t rss = fuzz_rss_kb();
  while (fuzz_more(&f)) faults += try_one(&f, top);
  remove_all(folder);
  is_int(faults, 0, "what is imported is exported with equal tensors, what is refused with a sentence");
  return fuzz_end(&f, "Hugging Face's folders", rss);
}
