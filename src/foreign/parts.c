/* parts.c - names, shapes and orders of tensors in other programs, as tables. */
#include "src/foreign/parts.h"
#include "src/model/hf.h"
#include "src/model/transformer.h"

#include <stdlib.h>
#include <string.h>

/* Sizes are letters: C the hidden size, F the MLP's width, U = 2 F, A all heads' elements, K those of the heads of
 * keys, Q = A + 2 K, D those of one head, V vocabulary, T context, 1; W and X are A and K by groups and heads.
 * Maps, which rows of ours a tensor of theirs is: '=' all in the same order, 'm' all heads' q, then k, then v;
 * 'q', 'k', 'v', 'g' (gate), 'u' (up) alone; 'h' the same heads, each in rotary order.
 * When: is_there. */
struct row {
  const char *ours, *hf;
  char ours_rows, rows, cols, map, when;
  bool layer, linear;
  int llmc;
};

static const struct row gpt2[] = {
  { "wte.weight", "wte.weight", 'V', 'V', 'C', '=', ' ', false, false, TC_LLMC_WTE },
  { "wpe.weight", "wpe.weight", 'T', 'T', 'C', '=', ' ', false, false, TC_LLMC_WPE },
  { "ln_1.weight", "ln_1.weight", 'C', 'C', '1', '=', ' ', true, false, TC_LLMC_LN1_W },
  { "ln_1.bias", "ln_1.bias", 'C', 'C', '1', '=', ' ', true, false, TC_LLMC_LN1_B },
  { "attn.qkv.weight", "attn.c_attn.weight", 'Q', 'Q', 'C', 'm', ' ', true, true, TC_LLMC_QKV_W },
  { "attn.qkv.bias", "attn.c_attn.bias", 'Q', 'Q', '1', 'm', ' ', true, false, TC_LLMC_QKV_B },
  { "attn.proj.weight", "attn.c_proj.weight", 'C', 'C', 'A', '=', ' ', true, true, TC_LLMC_ATT_W },
  { "attn.proj.bias", "attn.c_proj.bias", 'C', 'C', '1', '=', ' ', true, false, TC_LLMC_ATT_B },
  { "ln_2.weight", "ln_2.weight", 'C', 'C', '1', '=', ' ', true, false, TC_LLMC_LN2_W },
  { "ln_2.bias", "ln_2.bias", 'C', 'C', '1', '=', ' ', true, false, TC_LLMC_LN2_B },
  { "mlp.fc.weight", "mlp.c_fc.weight", 'F', 'F', 'C', '=', ' ', true, true, TC_LLMC_FC_W },
  { "mlp.fc.bias", "mlp.c_fc.bias", 'F', 'F', '1', '=', ' ', true, false, TC_LLMC_FC_B },
  { "mlp.proj.weight", "mlp.c_proj.weight", 'C', 'C', 'F', '=', ' ', true, true, TC_LLMC_PROJ_W },
  { "mlp.proj.bias", "mlp.c_proj.bias", 'C', 'C', '1', '=', ' ', true, false, TC_LLMC_PROJ_B },
  { "ln_f.weight", "ln_f.weight", 'C', 'C', '1', '=', ' ', false, false, TC_LLMC_LNF_W },
  { "ln_f.bias", "ln_f.bias", 'C', 'C', '1', '=', ' ', false, false, TC_LLMC_LNF_B },
};

#define LAYER(ours, hf, ours_rows, rows, cols, map, when) \
  { ours, hf, ours_rows, rows, cols, map, when, true, false, -1 }
#define OUTSIDE(ours, hf, rows, cols, when) { ours, hf, rows, rows, cols, '=', when, false, false, -1 }
static const struct row llama[] = {
  OUTSIDE("wte.weight", "model.embed_tokens.weight", 'V', 'C', ' '),
  LAYER("ln_1.weight", "input_layernorm.weight", 'C', 'C', '1', '=', '<'),
  LAYER("attn.qkv.weight", "self_attn.q_proj.weight", 'Q', 'A', 'C', 'q', '|'),
  LAYER("attn.qkv.weight", "self_attn.k_proj.weight", 'Q', 'K', 'C', 'k', '|'),
  LAYER("attn.qkv.weight", "self_attn.v_proj.weight", 'Q', 'K', 'C', 'v', '|'),
  LAYER("attn.qkv.weight", "self_attn.qkv_proj.weight", 'Q', 'Q', 'C', 'm', '+'),
  LAYER("attn.qkv.bias", "self_attn.q_proj.bias", 'Q', 'A', '1', 'q', 'b'),
  LAYER("attn.qkv.bias", "self_attn.k_proj.bias", 'Q', 'K', '1', 'k', 'b'),
  LAYER("attn.qkv.bias", "self_attn.v_proj.bias", 'Q', 'K', '1', 'v', 'b'),
  LAYER("attn.q_norm.weight", "self_attn.q_norm.weight", 'D', 'D', '1', 'h', 'n'),
  LAYER("attn.k_norm.weight", "self_attn.k_norm.weight", 'D', 'D', '1', 'h', 'n'),
  LAYER("attn.q_norm_whole.weight", "self_attn.q_norm.weight", 'W', 'W', '1', 'h', 'w'),
  LAYER("attn.k_norm_whole.weight", "self_attn.k_norm.weight", 'X', 'X', '1', 'h', 'w'),
  LAYER("attn.proj.weight", "self_attn.o_proj.weight", 'C', 'C', 'A', '=', ' '),
  LAYER("attn.proj.bias", "self_attn.o_proj.bias", 'C', 'C', '1', '=', 'o'),
  LAYER("attn.post_norm.weight", "post_attention_layernorm.weight", 'C', 'C', '1', '=', '>'),
  LAYER("ln_2.weight", "post_attention_layernorm.weight", 'C', 'C', '1', '=', '('),
  LAYER("ln_2.weight", "pre_feedforward_layernorm.weight", 'C', 'C', '1', '=', '2'),
  LAYER("mlp.gate_up.weight", "mlp.gate_proj.weight", 'U', 'F', 'C', 'g', '|'),
  LAYER("mlp.gate_up.weight", "mlp.up_proj.weight", 'U', 'F', 'C', 'u', '|'),
  LAYER("mlp.gate_up.weight", "mlp.gate_up_proj.weight", 'U', 'U', 'C', '=', '+'),
  LAYER("mlp.gate_up.bias", "mlp.gate_proj.bias", 'U', 'F', '1', 'g', 'p'),
  LAYER("mlp.gate_up.bias", "mlp.up_proj.bias", 'U', 'F', '1', 'u', 'p'),
  LAYER("mlp.proj.weight", "mlp.down_proj.weight", 'C', 'C', 'F', '=', ' '),
  LAYER("mlp.proj.bias", "mlp.down_proj.bias", 'C', 'C', '1', '=', 'p'),
  LAYER("mlp.post_norm.weight", "post_feedforward_layernorm.weight", 'C', 'C', '1', '=', '>'),
  OUTSIDE("ln_f.weight", "model.norm.weight", 'C', '1', ' '),
  OUTSIDE("lm_head.weight", "lm_head.weight", 'V', 'C', 'u'),
};
enum { GPT2_ROWS = sizeof gpt2 / sizeof *gpt2, LLAMA_ROWS = sizeof llama / sizeof *llama };

static int64_t size_of(char letter, const struct tc_model *m)
{
  switch (letter) {
  case 'V': return m->vocab;
  case 'T': return m->context;
  case 'C': return m->hidden;
  case 'A':
  case 'W': return m->heads * m->head_dim;
  case 'X':
  case 'K': return m->kv_heads * m->head_dim;
  case 'Q': return (m->heads + 2 * m->kv_heads) * m->head_dim;
  case 'D': return m->head_dim;
  case 'F': return m->ffn;
  case 'U': return 2 * m->ffn;
  default: return 1;
  }
}

/* The columns `when`, for a model. */
static bool is_there(const struct row *r, const struct tc_model *m, bool fused)
{
  switch (r->when) {
  case 'b': return tc_bias_of_qkv(m);
  case 'o': return tc_bias_of_proj(m);
  case 'p': return tc_bias_of_mlp(m);
  case 'n': return m->qk_norm == TC_QK_HEAD;             /* norms of each query and key */
  case 'w': return m->qk_norm == TC_QK_WHOLE;
  case 'u': return m->tied != TC_ON;
  case '<': return m->norm_at != TC_NORM_AFTER;          /* norms before attention and MLP */
  case '>': return m->norm_at != TC_NORM_BEFORE;         /* ... after them, */
  case '(': return m->norm_at == TC_NORM_BEFORE;         /* ... before alone, */
  case '2': return m->norm_at == TC_NORM_BOTH;           /* ... both */
  case '|': return !fused;                               /* a matrix for each of q, k, v, gate, up */
  case '+': return fused;
  default: return true;
  }
}

/* The dimensions that a letter stands for in our tensors; returns their number, 0 for '1'. */
static int dims_of(int64_t *dim, char letter, const struct tc_model *m)
{
  const int64_t group = m->heads / m->kv_heads;
  int n = 0;
  switch (letter) {
  case '1': return 0;
  case 'Q':
    dim[n++] = m->kv_heads;
    dim[n++] = group + 2;
    dim[n++] = m->head_dim;
    return n;
  case 'A':
    dim[n++] = m->kv_heads;
    if (group > 1) dim[n++] = group;
    dim[n++] = m->head_dim;
    return n;
  case 'W':
    dim[n++] = m->kv_heads;
    dim[n++] = group;
    dim[n++] = m->head_dim;
    return n;
  case 'X':
    dim[n++] = m->kv_heads;
    dim[n++] = m->head_dim;
    return n;
  case 'U':
    dim[n++] = 2;
    dim[n++] = m->ffn;
    return n;
  default:
    dim[0] = size_of(letter, m);
    return 1;
  }
}

/* A list being made; rotary: the table is llama. */
struct list { struct tc_foreign_part *part; int n; const struct tc_model *m; enum tc_form form; bool rotary, fused; };

static void list_add(struct list *l, const struct row *r, int64_t layer, bool interleaved)
{
  const struct tc_model *m = l->m;
  const bool merged = l->form == TC_FORM_OURS;
  const int64_t elems = size_of(r->ours_rows, m) * size_of(r->cols, m);
  struct tc_foreign_part *p = &l->part[l->n];
  char ours[48], prefix[40] = "", hf[40] = "";
  if (!is_there(r, m, l->fused)) return;
  if (r->layer) {
    snprintf(prefix, sizeof prefix, "h.%d.", (int)layer);
    snprintf(hf, sizeof hf, "%s%d.", l->rotary ? "model.layers." : "h.", (int)layer);
  }
  snprintf(ours, sizeof ours, "%s%s", prefix, r->ours);
  const bool more = l->n > 0 && strcmp(p[-1].ours, ours) == 0;
  if (more && merged) return;
  *p = (struct tc_foreign_part){ .rows = size_of(merged ? r->ours_rows : r->rows, m), .cols = size_of(r->cols, m),
    .rank = r->cols == '1' ? 1 : 2, .elems = elems, .map = r->map,
    .kv_heads = m->kv_heads, .group = m->heads / m->kv_heads, .head_dim = m->head_dim, .rotary = m->rotary_dim, .ffn = m->ffn,
    .linear = r->linear, .interleaved = interleaved && r->layer && strchr("qkhm", r->map), .llmc = r->llmc,
    .layer = r->layer ? layer : 0 };
  memcpy(p->ours, ours, sizeof ours);
  snprintf(p->hf, sizeof p->hf, "%s%s", hf, r->hf);
  p->row_dims = dims_of(p->our_dim, r->ours_rows, m);
  p->our_rank = p->row_dims + dims_of(p->our_dim + p->row_dims, r->cols, m);
  l->n++;
}

int tc_foreign_parts(struct tc_foreign_part **out, const struct tc_model *m, enum tc_form form, bool interleaved)
{
  const bool rotary = !tc_hf_is_gpt2(m);
  const struct row *table = rotary ? llama : gpt2;
  const int n = rotary ? LLAMA_ROWS : GPT2_ROWS;
  struct list l = { .m = m, .form = form, .rotary = rotary, .fused = form == TC_FORM_HF && !tc_hf_has_parts(m) };
  int i = 0;
  l.part = *out = tc_calloc((size_t)((m->layers + 1) * n + 1), sizeof **out);
  for (; !table[i].layer; i++) list_add(&l, &table[i], 0, interleaved);
  const int first = i;
  for (int64_t k = 0; k < m->layers; k++)
    for (i = first; table[i].layer; i++) list_add(&l, &table[i], k, interleaved);
  for (; i < n; i++) list_add(&l, &table[i], 0, interleaved);
  return l.n;
}

/* ---- adapters ------------------------------------------------------------------------------- */

#define ADAPTER "base_model.model."

/* A and B of a matrix of theirs. B has the rows of its matrix: all of ours, in the order of theirs, or a part in our order. */
static void adapters_of(struct tc_foreign_part ab[2], const struct tc_foreign_part *t, const char *part, int64_t rank, bool gpt2)
{
  const int n = (int)(strlen(t->ours) - strlen(".weight")), n_hf = (int)(strlen(t->hf) - strlen(".weight"));
  const int outs = t->row_dims, ins = t->our_rank - outs;
  for (int i = 0; i < 2; i++) {
    struct tc_foreign_part *x = &ab[i];
    *x = *t;
    snprintf(x->ours, sizeof x->ours, "%.*s%s.lora_%c", n, t->ours, part, "ab"[i]);
    snprintf(x->hf, sizeof x->hf, ADAPTER "%s%.*s.lora_%c.weight", gpt2 ? "transformer." : "", n_hf, t->hf, "AB"[i]);
    x->linear = x->interleaved = false;
    x->rows = i ? t->rows : rank;
    x->cols = i ? rank : t->cols;
    x->elems = x->rows * x->cols;
  }
  struct tc_foreign_part *a = &ab[0], *b = &ab[1];
  a->map = '=', a->row_dims = 1, a->our_rank = 1 + ins;
  a->our_dim[0] = rank;
  memcpy(a->our_dim + 1, t->our_dim + outs, (size_t)ins * sizeof *a->our_dim);
  b->our_rank = outs + 1;
  b->our_dim[outs] = rank;
  if (!*part) return;
  b->our_dim[outs == 3] = t->map == 'q' ? t->group : 1;
  b->map = '=';
}

int tc_adapter_parts(struct tc_foreign_part **out, const struct tc_model *m, int64_t rank)
{
  struct tc_foreign_part *all;
  const int n = tc_foreign_parts(&all, m, TC_FORM_HF, false);
  int k = 0;
  *out = tc_calloc((size_t)n * 2 + 1, sizeof **out);
  for (int i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && !strcmp(all[end].ours, all[i].ours);) end++;
    for (int of = end - i, p = 0; p < of && all[i].rank == 2 && !strncmp(all[i].ours, "h.", 2); p++, k += 2)
      adapters_of(*out + k, &all[i + p], tc_lora_part(of - 1, p), rank, tc_hf_is_gpt2(m)), (*out)[k].of = (*out)[k + 1].of = i + p;
  }
  free(all);
  return k;
}

char *tc_adapter_module(const struct tc_foreign_part *a)
{
  return tc_sprintf("%.*s", (int)(strlen(a->hf) - strlen(ADAPTER) - strlen(".lora_A.weight")), a->hf + strlen(ADAPTER));
}

void tc_foreign_hf_shape(const struct tc_foreign_part *t, int64_t dim[2])
{
  dim[0] = t->linear ? t->cols : t->rows;
  dim[1] = t->linear ? t->rows : t->cols;
}

bool tc_foreign_same_order(const struct tc_foreign_part *t, enum tc_form form)
{
  return form == TC_FORM_OURS || (t->map == '=' && !(form == TC_FORM_HF && t->linear));
}

/* The element of a head that is element `at` in the file's rotary order. */
static int64_t in_head(const struct tc_foreign_part *t, int64_t at)
{
  return t->interleaved && at < t->rotary ? at % 2 * (t->rotary / 2) + at / 2 : at;
}

int64_t tc_foreign_row(const struct tc_foreign_part *t, enum tc_form form, int64_t row)
{
  if (form == TC_FORM_OURS) return row;
  const int64_t d = t->head_dim, g = t->group, heads = t->kv_heads * g, keys = t->kv_heads;
  const int64_t head = row / d, at = row % d, turned = in_head(t, at);
  switch (t->map) {
  case 'q': return (head / g * (g + 2) + head % g) * d + turned;
  case 'k': return (head * (g + 2) + g) * d + turned;
  case 'v': return (head * (g + 2) + g + 1) * d + at;
  case 'm':
    if (head < heads) return (head / g * (g + 2) + head % g) * d + turned;
    if (head < heads + keys) return ((head - heads) * (g + 2) + g) * d + turned;
    return ((head - heads - keys) * (g + 2) + g + 1) * d + at;
  case 'h': return head * d + turned;
  case 'u': return t->ffn + row;
  default: return row;
  }
}

int64_t tc_foreign_place(const struct tc_foreign_part *t, enum tc_form form, int64_t i)
{
  if (form == TC_FORM_OURS) return i;
  const bool turned = form == TC_FORM_HF && t->linear;
  const int64_t row = turned ? i % t->rows : i / t->cols, col = turned ? i / t->rows : i % t->cols;
  return tc_foreign_row(t, form, row) * t->cols + col;
}

float tc_half_to_f32(uint16_t h)
{
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
  union { uint32_t u; float f; } x;
  if (e == 0) {                                  /* zero and subnormals: m * 2^-24 */
    x.f = (float)m * 0x1p-24f;
    x.u |= sign;
  } else {
    x.u = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
  }
  return x.f;
}
