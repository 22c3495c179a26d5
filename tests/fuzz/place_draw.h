/* place_draw.h - draws models of all families and layouts for them: mesh, system, micro-batch, recomputation,
 * offload, schedule and more, as flags of `tercio train`, and with most of them a file of annotations. */
#ifndef TC_PLACE_DRAW_H
#define TC_PLACE_DRAW_H

#include <fnmatch.h>

#include "src/config/config.h"
#include "src/model/transformer.h"
#include "src/program/setup.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_FLAGS = 60 };

/* One drawn case. */
struct draw {
  struct fuzz *f;
  char *flag[MOST_FLAGS];
  int n_flags, pp, dp, cp, tp;
  bool copies;                   /* mesh.shard is less than dp */
  char rows[2000];
  int family;                    /* enum tc_family */
  const char *device;
  struct tc_graph *program;      /* whose tensors rows name */
  bool bare;                     /* rows alone: parallel.data = none */
  bool bf16;
  bool f64;                      /* in double precision */
};

static int ranks_of(const struct draw *d) { return d->pp * d->dp * d->cp * d->tp; }

/* ---- drawing -------------------------------------------------------------------------- */

static const char *one_of(struct draw *d, int n, const char *const *word)
{
  return word[fuzz_below(d->f, (size_t)n)];
}
#define ONE_OF(d, ...) \
  one_of(d, sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *), (const char *[]){ __VA_ARGS__ })

static bool chance(struct draw *d, int in) { return fuzz_below(d->f, (size_t)in) == 0; }

/* Takes the text, an option of `tercio train`. */
static void add_flag(struct draw *d, char *text)
{
  TC_ASSERT(d->n_flags < MOST_FLAGS - 1);
  d->flag[d->n_flags++] = text;
}
#define flag(d, ...) add_flag(d, tc_sprintf(__VA_ARGS__))

/* Whether a row can place t, and as what: its four placements or the one it is computed in. The loss head has few
 * tensors, but passes of its own, so `head` asks for one of them. */
static bool may_place(const struct tc_graph *g, const struct tc_tensor *t, bool parameter, bool head)
{
  if ((t->param >= 0) != parameter || !strcmp(t->name, "loss.acc")) return false;
  return !head || (t->node >= 0 && g->node[t->node].head && t->rank > 0);
}

/* The name of a tensor of the program, or a pattern for it and those like it. */
static const struct tc_tensor *draw_pattern(struct draw *d, char *out, size_t size, bool parameter)
{
  const struct tc_graph *g = d->program;
  const bool head = !parameter && chance(d, 4);
  const struct tc_tensor *t;
  do t = &g->tensor[fuzz_below(d->f, (size_t)g->n_tensors)];
  while (!may_place(g, t, parameter, head));
  const char *name = t->name, *rest = name[0] == 'h' && name[1] == '.' ? strchr(name + 2, '.') + 1 : NULL;
  if (rest && !chance(d, 4)) snprintf(out, size, "%s%s", ONE_OF(d, "*.", "h.*."), rest);
  else snprintf(out, size, "%s", name);
  char *dot = strrchr(out, '.');
  if (parameter && dot && chance(d, 4)) strcpy(dot, ".*");
  if (parameter && chance(d, 12)) strcpy(out, ONE_OF(d, "*", "*.weight", "w?e.weight"));
  return t;
}

static const char *draw_place(struct draw *d, const struct tc_tensor *t, char out[16], bool storage,
                              bool partial)
{
  size_t k = fuzz_below(d->f, 12), rank = TC_MAX(t->rank, (uint8_t)1);
  if (k < 5) snprintf(out, 16, "S(%d)", (int)fuzz_below(d->f, chance(d, 2) ? rank : TC_MIN(rank, 2u)));
  else if (k < 7) strcpy(out, "R");
  else if (k < 9) snprintf(out, 16, "at(%d)", (int)fuzz_below(d->f, 2));
  else strcpy(out, partial && k < 11 ? "P" : storage ? "S(*)" : "R");
  return out;
}

static void draw_row(struct draw *d)
{
  char pattern[60], p[4][16], line[200];
  const char *axis = d->tp > 1 && (d->dp == 1 || chance(d, 2)) ? "tp" : chance(d, 20) ? "pp" : "dp";
  if (d->cp > 1 && chance(d, 4)) axis = ONE_OF(d, "cp", "cp", "dp+cp", "fsdp");
  else if (d->copies && chance(d, 2)) axis = ONE_OF(d, "shard", "shard", "replicate", "replicate", "replicate+rest", "dp+tp");
  bool four = chance(d, 3);
  const struct tc_tensor *t = draw_pattern(d, pattern, sizeof pattern, four || chance(d, 3));
  if (four) {
    if (chance(d, 2)) strcpy(p[0], ONE_OF(d, "S(*)", "R", "S(0)")), strcpy(p[1], "R");
    else draw_place(d, t, p[0], true, false), draw_place(d, t, p[1], false, false);
    draw_place(d, t, p[2], true, true);
    draw_place(d, t, p[3], true, false);
    snprintf(line, sizeof line, "%s %s %s %s %s %s%s\n", pattern, axis, p[0], p[1], p[2], p[3],
             ONE_OF(d, "", " use", " mb", " step"));
  } else {
    snprintf(line, sizeof line, "%s %s %s\n", pattern, axis, draw_place(d, t, p[0], false, false));
  }
  strncat(d->rows, line, sizeof d->rows - strlen(d->rows) - 1);
}

/* Whether the program has a tensor for each row. */
static bool all_match(const struct tc_graph *g, const char *rows)
{
  for (const char *x = rows; *x; x += strcspn(x, "\n") + 1) {
    char pattern[60];
    int32_t t = 0;
    sscanf(x, "%59s", pattern);
    while (t < g->n_tensors && fnmatch(pattern, g->tensor[t].name, 0)) t++;
    if (t == g->n_tensors) return false;
  }
  return true;
}

/* Rows that people write together, so that more than chance brings is tried. */
static void draw_idiom(struct draw *d)
{
  static const char *const idiom[] = {
    "tokens dp S(0)\ntargets dp S(0)\n", "tokens tp S(0)\ntargets tp S(0)\n",
    "* dp S(*) R S(*) S(*) use\n", "* tp S(*) R S(*) S(*) use\n",
    "*.mlp.fc.* tp S(0)\n*.mlp.proj.weight tp S(1)\n",
    "*.attn.qkv.* tp S(0)\n*.attn.proj.weight tp S(1)\n", "wte.weight tp S(0)\n",
    "pos tp S(0)\n*.residual tp S(0)\n", "*.attn.out tp S(1)\n", "*.mlp.gelu tp S(1)\n",
    "*.attn.proj tp S(0)\n", "*.mlp.fc.* dp S(0)\n", "*.mlp.* dp S(*) R S(*) S(*) mb\n",
    "* tp R R P S(*) step\n", "* dp R R P S(*)\n", "*.residual tp S(1)\n",
    "*.attn.proj tp S(1)\n", "wpe.weight tp S(1)\n", "logits dp at(0)\n", "*.ln_1 tp S(0)\n",
    "* dp S(0) R S(0) S(0) mb\n", "* dp S(0) R R S(0)\n", "* tp S(0) R S(0) S(0) step\n",
    "*.mlp.proj.weight tp S(1) R P S(1)\n", "*.mlp.fc.weight tp S(1) R P S(1)\n", "rstd dp at(1)\n",
    "*.mlp.gate_up.* tp S(1)\n*.mlp.proj.weight tp S(1)\n", "*.mlp.swiglu tp S(1)\n", "lm_head.weight tp S(0)\n",
    "embed tp S(0)\n*.residual tp S(0)\n", "*.attn.rope tp S(1)\n", "*.attn.qk_norm tp S(1)\n",
    "*_norm.weight dp S(0) R S(0) S(0) use\n" };
  const char *rows;
  do rows = one_of(d, sizeof idiom / sizeof *idiom, idiom);
  while (!all_match(d->program, rows));
  if (strlen(d->rows) + strlen(rows) + 1 < sizeof d->rows) strcat(d->rows, rows);
}

/* ---- models ------------------------------------------------------------------------------ */

/* An option of the model, the batch and the arithmetic: the one-rank run has it, too. */
static bool is_own(const char *flag)
{
  static const char *const own[] = { "--model", "--data", "--train.global", "--train.drop", "--train.prec", "--train.grad_type",
                                     "--train.rows", "--train.lora", "--ckpt.base" };
  for (size_t i = 0; i < sizeof own / sizeof *own; i++)
    if (!strncmp(flag, own[i], strlen(own[i]))) return true;
  return false;
}

/* The options drawn so far, or only those that are the one-rank run's own. */
static int config_of(struct tc_config **c, const struct draw *d, bool own, struct tc_err *err)
{
  char *argv[MOST_FLAGS + 1] = { (char *)(uintptr_t)"fuzz" };
  int n = 1;
  for (int i = 0; i < d->n_flags; i++)
    if (!own || is_own(d->flag[i])) argv[n++] = d->flag[i];
  return tc_config_new(c, n, argv, err);
}

/* A family with its own parts or, half of the time, with those of others. Sizes are even and odd, and
 * divide by the ranks of tp or do not. */
static void draw_model(struct draw *d, int layers)
{
  const bool mixed = chance(d, 2);
  d->family = TC_FAMILY_GPT2 + (int)fuzz_below(d->f, TC_FAMILY_PHI3);
  const bool gpt2 = d->family == TC_FAMILY_GPT2;
  flag(d, "--model.family=%s", tc_word_model_family((enum tc_family)d->family));
  flag(d, "--model.layers=%d", layers);
  flag(d, "--model.hidden=16");
  const int heads = chance(d, 4) ? 2 : 4;        /* of two elements, norms of queries would be badly conditioned */
  flag(d, "--model.heads=%d", heads);
  flag(d, "--model.context=8");
  flag(d, "--model.vocab=%s", ONE_OF(d, "32", "32", "29"));
  if (!gpt2 || mixed) flag(d, "--model.kv_heads=%d", chance(d, 8) ? 1 : chance(d, 40) ? 3 : chance(d, 2) ? 2 : heads);
  if (!gpt2 || mixed) flag(d, "--model.ffn=%s", ONE_OF(d, "24", "24", "32", "20", "22"));
  if (chance(d, 3)) flag(d, "--model.head_dim=%s", ONE_OF(d, "4", "8", "6"));
  if (mixed && chance(d, 2)) flag(d, "--model.tied=%s", ONE_OF(d, "yes", "no"));
  if (mixed && chance(d, 2)) flag(d, "--model.bias=%s", ONE_OF(d, "yes", "no", "qkv", "attention", "mlp"));
  if (mixed && chance(d, 2)) flag(d, "--model.qk_norm=%s", ONE_OF(d, "yes", "no", "whole"));
  if (mixed && chance(d, 3)) flag(d, "--model.norm=%s", ONE_OF(d, "layernorm", "rmsnorm", "rmsnorm1p"));
  if (mixed && chance(d, 3)) flag(d, "--model.norm_at=%s", ONE_OF(d, "before", "before", "after", "both"));
  if (mixed && chance(d, 3)) flag(d, "--model.act=%s", ONE_OF(d, "gelu", "swiglu", "geglu", "gelu_exact", "relu2"));
  if (mixed && chance(d, 3)) flag(d, "--model.norm_eps=1e-3");
  if (mixed && chance(d, 3)) flag(d, "--model.rope_theta=100");
  if (chance(d, 3)) flag(d, "--model.rope_scaling=%s", ONE_OF(d, "llama3:8:1:4:8", "linear:2", "yarn:2:1:4:8:1.07"));
  if (!gpt2 && chance(d, 2)) {
    const char *pattern = ONE_OF(d, "S", "SF", "Fs", "fS", "F", "SSF");
    flag(d, "--model.pattern=%s", pattern);
    flag(d, "--model.window=%s", chance(d, 20) != (strchr(pattern, 'S') || strchr(pattern, 's'))
         ? ONE_OF(d, "1", "2", "3", "5", "8", "9") : "no");
  }
  if (mixed && chance(d, 4)) flag(d, "--model.attn_cap=%s", ONE_OF(d, "0.2", "2", "no"));
  if (mixed && chance(d, 4)) flag(d, "--model.logit_cap=%s", ONE_OF(d, "0.1", "3", "no"));
  if (mixed && chance(d, 4)) flag(d, "--model.attn_scale=0.3");
  if (mixed && chance(d, 4)) flag(d, "--model.embed_scale=3");
  if (mixed && chance(d, 4)) flag(d, "--model.residual_scale=0.5");
  if (mixed && chance(d, 4)) flag(d, "--model.logit_divisor=0.7");
  if (!gpt2 && chance(d, 5)) flag(d, "--model.rotary_dim=%s", ONE_OF(d, "2", "4"));
  if (chance(d, 5)) flag(d, "--model.z_loss=%s", ONE_OF(d, "1e-3", "0.1"));
}

/* The program whose tensors rows name; NULL: there is no such model. */
static struct tc_graph *draw_program(const struct draw *d)
{
  struct tc_build_opts opts = { .batch = 1, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 };
  struct tc_err err;
  struct tc_config *c;
  struct tc_model model;
  struct tc_graph *g = NULL;
  int rc = config_of(&c, d, true, &err);
  TC_ASSERT(rc == 0);
  if (tc_setup_model(c, &model, &err) == 0 && tc_setup_lora(&opts.lora, c, &model, &err) == 0)
    tc_model_build(g = tc_graph_new(), &model, &opts);
  tc_config_free(c);
  return g;
}

/* ---- layouts ----------------------------------------------------------------------------- */

static void draw_mesh(struct draw *d)
{
  static const int mesh[][3] = { { 1, 2, 2 }, { 1, 2, 2 }, { 1, 2, 2 }, { 1, 3, 1 }, { 1, 1, 4 },
    { 2, 1, 2 }, { 2, 2, 1 }, { 1, 2, 1 }, { 1, 1, 2 }, { 1, 4, 1 }, { 2, 2, 2 }, { 4, 1, 2 },
    { 1, 4, 1 }, { 1, 4, 2 }, { 1, 6, 1 }, { 2, 4, 1 } };
  const int *m = mesh[fuzz_below(d->f, sizeof mesh / sizeof *mesh)];
  d->pp = m[0], d->dp = m[1], d->tp = m[2];
  const int most = 16 / (d->pp * d->dp * d->tp);
  d->cp = chance(d, 3) ? 1 : most >= 4 && chance(d, 4) ? 4 : 2;
  if (d->cp > 1) flag(d, "--mesh.cp=%d", d->cp);
  if (chance(d, d->cp > 1 ? 2 : 20)) flag(d, "--parallel.context=heads");
  if (chance(d, d->cp > 1 ? 3 : 20)) flag(d, "--parallel.zigzag=no");
  flag(d, "--mesh.pp=%d", d->pp);
  flag(d, "--mesh.dp=%d", d->dp);
  flag(d, "--mesh.tp=%d", d->tp);
  const int shard = d->dp == 6 ? 2 + (int)fuzz_below(d->f, 2) : d->dp / 2;
  d->copies = d->dp > 3 ? !chance(d, 4) : d->dp == 2 && chance(d, 4);
  if (d->copies) flag(d, "--mesh.shard=%d", shard);
}

static void draw_pipeline(struct draw *d)
{
  const char *schedule = ONE_OF(d, "naive", "gpipe", "1f1b", "interleaved", "interleaved", "zb");
  flag(d, "--parallel.schedule=%s", schedule);
  if (*schedule == 'i' && chance(d, 2)) flag(d, "--parallel.virtual_stages=%s", ONE_OF(d, "2", "2", "1", "4"));
  if (d->pp == 2 && *schedule != 'i' && chance(d, 4)) flag(d, "--mesh.stages=%s", ONE_OF(d, "0-0,1-3", "0-2,3-3"));
}

static void draw_layout(struct draw *d, bool rows)
{
  const char *data = ONE_OF(d, "none", "none", "ddp", "ddp", "zero1", "zero2", "zero3", "zero3",
                            "server", "dataparallel");
  if (d->copies && chance(d, 2)) data = ONE_OF(d, "zero1", "zero2", "zero3");
  if (!rows && !strcmp(data, "none")) data = "zero1";
  flag(d, "--parallel.data=%s", d->bare ? "none" : data);
  if (chance(d, rows ? 4 : 2) && !d->bare) flag(d, "--parallel.sequence=yes");
  if (chance(d, 3)) flag(d, "--train.recompute=%s", ONE_OF(d, "selective", "full"));
  if (chance(d, 4)) flag(d, "--parallel.offload=%s", ONE_OF(d, "params", "update"));
  if (chance(d, 4)) flag(d, "--parallel.regather=yes");
  if (chance(d, 4)) flag(d, "--parallel.reduce=step");
  if (chance(d, 4)) flag(d, "--parallel.keep=%s", ONE_OF(d, "use", "mb", "step"));
  if (chance(d, 4)) flag(d, "--parallel.unit=block");
  if (chance(d, 4)) flag(d, "--parallel.overlap=no");
  if (chance(d, 3)) flag(d, "--parallel.head_chunk=%s", ONE_OF(d, "4", "8", "3", "1"));
  if (chance(d, 3)) flag(d, "--parallel.prefetch=%d", (int)fuzz_below(d->f, 4));
  if (d->pp > 1) draw_pipeline(d);
}

/* ref, another device (TC_EMU_MODULES: GPUs are emulated, slowly), or bf16 by ref. */
static void draw_device(struct draw *d)
{
  const int k = (int)fuzz_below(d->f, 10);
  const bool emulated = *tc_env("TC_EMU_MODULES") && ranks_of(d) <= 4 && d->cp == 1;
  d->device = k == 0 ? "cpu" : k == 1 && emulated ? "cuda" : "ref";
  d->bf16 = k == 2 || k == 3;
  flag(d, "--train.precision=%s", d->bf16 ? "bf16" : "fp32");      /* on an emulated GPU bf16 would be the default */
  if (d->bf16 && chance(d, 3)) flag(d, "--train.grad_type=bf16");
}

/* Rows for parameters: each pattern is of some of every model's. */
static void draw_param_rows(struct draw *d)
{
  char rows[200] = "";
  const int n = 1 + (int)fuzz_below(d->f, 3);
  for (int i = 0; i < n; i++) {
    const char *pattern = ONE_OF(d, "*", "h.*", "h.0.*", "wte.*", "ln_f.*", "*.mlp.*", "*.ln_1.*", "*.attn.*", "*.weight", "h.*.mlp.proj.*");
    const char *word = ONE_OF(d, "frozen=yes", "frozen=yes", "frozen=yes", "frozen=no", "lr=0.5", "lr=2 decay=3", "decay=0", "init=1.5");
    tc_text_add(rows, sizeof rows, "%s%s %s", i ? ", " : "", pattern, word);
  }
  flag(d, "--train.rows=%s", rows);
}

/* Adapters: patterns that every model has matrices for. */
static void draw_lora(struct draw *d)
{
  flag(d, "--train.lora=%d", 1 + (int)fuzz_below(d->f, 6));
  flag(d, "--train.lora_rows=%s", ONE_OF(d, "", "", "*.attn.*", "h.0.*", "*.proj", "*.mlp.*, h.0.attn.qkv*"));
  if (chance(d, 2)) flag(d, "--train.lora_alpha=%s", ONE_OF(d, "0.5", "8", "16"));
  if (chance(d, 4)) flag(d, "--train.lora_scale=rs");
  if (chance(d, 4)) flag(d, "--train.lora_dropout=0.2");
  if (chance(d, 4)) flag(d, "--train.frozen_type=fp32");
  flag(d, "--ckpt.base=yes");                    /* the base is random */
}

/* A third of the layouts is without rows, so that the built-in ones place everything. */
static void draw_case(struct draw *d)
{
  draw_mesh(d);
  int each = (int)fuzz_below(d->f, 3) + 1, micro = 1 + (int)fuzz_below(d->f, 2);
  draw_model(d, d->pp > 1 ? 2 * d->pp : chance(d, 3) ? 2 : 1);
  flag(d, "--train.global_batch=%d", d->dp * each * micro * d->pp);
  flag(d, "--train.micro_batch=%d", chance(d, d->pp > 1 ? 4 : 2) ? 0 : micro);
  const bool rows = d->bare || !chance(d, 3);
  draw_layout(d, rows);
  if (chance(d, 4)) flag(d, "--train.dropout=0.1");
  if (chance(d, 3)) flag(d, "--data.documents=mask"), flag(d, "--data.end_token=1");
  draw_device(d);
  if (chance(d, 2)) flag(d, "--run.init=broadcast");
  if (chance(d, 4)) draw_lora(d);
  else if (chance(d, 3)) draw_param_rows(d);
  if (chance(d, 6)) flag(d, "--model.mup=%s", ONE_OF(d, "4", "8", "32"));
  d->program = rows ? draw_program(d) : NULL;
  if (!d->program) return;
  int idioms = (int)fuzz_below(d->f, 5), own = (int)fuzz_below(d->f, 4);
  for (int i = 0; i < idioms; i++) draw_idiom(d);
  for (int i = 0; i < own + !idioms; i++) draw_row(d);
  tc_graph_free(d->program);
}

static void draw_free(struct draw *d)
{
  for (int i = 0; i < d->n_flags; i++) free(d->flag[i]);
}

#endif
