/* place_draw.h - draws layouts of a user's own: a file of annotations, and with it mesh, system,
 * micro-batch, recomputation, offload, schedule and more, as flags of `tercio train`. */
#ifndef TC_PLACE_DRAW_H
#define TC_PLACE_DRAW_H

#include "src/model/transformer.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_FLAGS = 40 };

/* One drawn case. */
struct draw {
  struct fuzz *f;
  char *flag[MOST_FLAGS];
  int n_flags, pp, dp, tp;
  char rows[2000];
  const char *device;
  struct tc_graph *program;      /* whose tensors rows name */
  bool bare;                     /* rows alone: parallel.data = none */
  bool f64;                      /* in double precision */
};

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
    "*.mlp.proj.weight tp S(1) R P S(1)\n", "*.mlp.fc.weight tp S(1) R P S(1)\n", "rstd dp at(1)\n" };
  const char *rows = one_of(d, sizeof idiom / sizeof *idiom, idiom);
  if (strlen(d->rows) + strlen(rows) + 1 < sizeof d->rows) strcat(d->rows, rows);
}

static void draw_mesh(struct draw *d)
{
  static const int mesh[][3] = { { 1, 2, 2 }, { 1, 2, 2 }, { 1, 2, 2 }, { 1, 3, 1 }, { 1, 1, 4 },
    { 2, 1, 2 }, { 2, 2, 1 }, { 1, 2, 1 }, { 1, 1, 2 }, { 1, 4, 1 }, { 2, 2, 2 } };
  const int *m = mesh[fuzz_below(d->f, sizeof mesh / sizeof *mesh)];
  d->pp = m[0], d->dp = m[1], d->tp = m[2];
  flag(d, "--mesh.pp=%d", d->pp);
  flag(d, "--mesh.dp=%d", d->dp);
  flag(d, "--mesh.tp=%d", d->tp);
}

static void draw_case(struct draw *d)
{
  draw_mesh(d);
  int each = (int)fuzz_below(d->f, 3) + 1, micro = 1 + (int)fuzz_below(d->f, 2);
  int layers = d->pp > 1 ? 4 : chance(d, 3) ? 2 : 1;
  flag(d, "--model.layers=%d", layers);
  flag(d, "--model.hidden=16");
  flag(d, "--model.heads=4");
  flag(d, "--model.context=8");
  flag(d, "--model.vocab=%s", ONE_OF(d, "32", "32", "29"));
  flag(d, "--train.global_batch=%d", d->dp * each * micro * (d->pp > 1 ? 2 : 1));
  flag(d, "--train.micro_batch=%d", chance(d, 2) ? 0 : micro);
  const char *data = ONE_OF(d, "none", "none", "ddp", "ddp", "zero1", "zero2", "zero3", "zero3",
                            "server", "dataparallel");
  flag(d, "--parallel.data=%s", d->bare ? "none" : data);
  if (chance(d, 4) && !d->bare) flag(d, "--parallel.sequence=yes");
  if (chance(d, 3)) flag(d, "--train.recompute=%s", ONE_OF(d, "selective", "full"));
  if (chance(d, 4)) flag(d, "--parallel.offload=%s", ONE_OF(d, "params", "update"));
  if (chance(d, 4)) flag(d, "--parallel.regather=yes");
  if (chance(d, 4)) flag(d, "--parallel.reduce=step");
  if (chance(d, 4)) flag(d, "--parallel.keep=%s", ONE_OF(d, "use", "mb", "step"));
  if (chance(d, 4)) flag(d, "--parallel.unit=block");
  if (chance(d, 4)) flag(d, "--parallel.overlap=no");
  if (chance(d, 3)) flag(d, "--parallel.head_chunk=%s", ONE_OF(d, "4", "8", "3", "1"));
  if (chance(d, 3)) flag(d, "--parallel.prefetch=%d", (int)fuzz_below(d->f, 4));
  if (chance(d, 4)) flag(d, "--train.dropout=0.1");
  if (d->pp > 1)
    flag(d, "--parallel.schedule=%s", ONE_OF(d, "naive", "gpipe", "1f1b", "interleaved", "zb"));
  if (chance(d, 3)) flag(d, "--data.documents=mask");
  d->device = chance(d, 8) ? "cpu" : "ref";
  d->program = tc_graph_new();
  const struct tc_model model = { .layers = layers, .hidden = 16, .heads = 4, .context = 8,
    .vocab = 32 };
  const struct tc_build_opts opts = { .batch = 1, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1 };
  tc_model_build(d->program, &model, &opts);
  int idioms = (int)fuzz_below(d->f, 5), rows = (int)fuzz_below(d->f, 4);
  for (int i = 0; i < idioms; i++) draw_idiom(d);
  for (int i = 0; i < rows + !idioms; i++) draw_row(d);
  tc_graph_free(d->program);
}

static void draw_free(struct draw *d)
{
  for (int i = 0; i < d->n_flags; i++) free(d->flag[i]);
}

#endif
