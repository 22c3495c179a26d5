/* lora.c - adapters of low rank beside the matrices of layers: y = x W^T + factor (x A^T) B^T, of which A [rank, inputs] and
 * B [outputs, rank] train alone (Hu et al., "LoRA: low-rank adaptation of large language models", 2021).
 *
 * A matrix that holds several of Hugging Face's class (queries, keys, values; gate, up) has an A and a B for each of them, and
 * so the same model as PEFT's; one that the class has whole has one of each. Names: MATRIX[.PART].lora_a and .lora_b. */
#include "src/model/impl.h"
#include "src/model/hf.h"
#include "src/graph/matrices.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *tc_lora_part(int cut, int i)
{
  static const char *const names[3][3] = { { "" }, { ".gate", ".up" }, { ".q", ".k", ".v" } };
  return i < 3 ? names[cut][i] : NULL;
}

/* ---- which matrices ------------------------------------------------------------------ */

/* The patterns of a list with blanks or commas between them: the next one of *rest, which is owned by the caller; NULL: none. */
static char *next_pattern(const char **rest)
{
  *rest += strspn(*rest, ", ");
  const size_t n = strcspn(*rest, ", ");
  char *pattern = n ? tc_sprintf("%.*s", (int)n, *rest) : NULL;
  *rest += n;
  return pattern;
}

bool tc_lora_has(const char *rows, const char *name)
{
  bool found = !*rows;
  for (char *pattern; !found && (pattern = next_pattern(&rows)); free(pattern)) found = fnmatch(pattern, name, 0) == 0;
  return found;
}

char *tc_lora_names(const struct tc_model *m, int64_t layer)
{
  const struct { const char *name; int cut; } matrix[] = {
    { "attn.qkv", 2 }, { "attn.proj", 0 }, { tc_is_gated(m) ? "mlp.gate_up" : "mlp.fc", tc_is_gated(m) }, { "mlp.proj", 0 } };
  char text[400] = "";
  for (int i = 0; i < 4; i++) {
    const int cut = tc_hf_has_parts(m) ? matrix[i].cut : 0;
    for (int k = 0; tc_lora_part(cut, k); k++)
      tc_text_add(text, sizeof text, "%sh.%lld.%s%s", *text ? " " : "", (long long)layer, matrix[i].name, tc_lora_part(cut, k));
  }
  return tc_strdup(text);
}

/* The names of all matrices, in *names; returns their number. Both are owned by the caller. */
static int all_names(char ***names, const struct tc_model *m)
{
  int n = 0, cap = 0;
  *names = NULL;
  for (int64_t l = 0; l < m->layers; l++) {
    char *layer = tc_lora_names(m, l), *name;
    for (const char *rest = layer; (name = next_pattern(&rest));) TC_APPEND(*names, n, cap, name);
    free(layer);
  }
  return n;
}

int tc_lora_check(const struct tc_model *model, const char *rows, struct tc_err *err)
{
  const struct tc_model m = tc_model_complete(model);
  char **name, *pattern;
  const int n = all_names(&name, &m);
  int rc = 0;
  if (*rows && !rows[strspn(rows, ", ")]) rc = tc_fail(err, TC_EUSER, "train.lora_rows has no pattern: empty means all matrices");
  for (; rc == 0 && (pattern = next_pattern(&rows)); free(pattern)) {
    int i = 0;
    while (i < n && fnmatch(pattern, name[i], 0)) i++;
    if (i < n) continue;
    char *names = tc_lora_names(&m, 0);
    rc = tc_fail(err, TC_EUSER, "train.lora_rows: %.100s matches no matrix of this model's layers; those of its first are %s",
                 pattern, names);
    free(names);
  }
  for (int i = 0; i < n; i++) free(name[i]);
  free(name);
  return rc;
}

/* ---- nodes ----------------------------------------------------------------------------- */

/* A matrix and one of its parts: the shape of B but for its last dimension, and which indices of dimension `cut` - 1 it has. */
struct part { const struct tc_product *of; const char *name; int64_t dim[TC_DIMS], first; bool whole; };

static struct part part_of(const struct tc_product *p, int i, int parts)
{
  struct part x = { .of = p, .name = tc_lora_part(parts > 1 ? p->cut : 0, i), .whole = parts == 1 };
  memcpy(x.dim, p->w, sizeof x.dim);
  if (x.whole) return x;
  const int64_t rest = p->w[p->cut - 1] - (parts - 1);   /* the first has more than one index where queries share a key */
  x.dim[p->cut - 1] = i == 0 ? rest : 1;
  x.first = i == 0 ? 0 : rest + i - 1;
  return x;
}

/* A parameter of the adapter, [rows, columns]. As PEFT's: A is uniform between +-1 / sqrt(inputs), B begins with zeros. */
static int32_t adapter_param(struct tc_build *b, const char *name, const char *end, int rank, const int64_t *dim, int rows,
                             bool random)
{
  int64_t inputs = 1;
  for (int d = rows; d < rank; d++) inputs *= dim[d];
  b->adapter = true;
  const int32_t w = tc_build_param(b, name, end, rank, dim, random ? 1 / sqrtf(3 * (float)inputs) : 0, 0);
  b->adapter = false;
  struct tc_param *p = &b->g->param[b->g->tensor[w].param];
  p->uniform = random;
  p->outputs = (uint8_t)rows;
  return w;
}

static int32_t product(struct tc_build *b, int32_t x, int32_t w, const char *name, const char *end, const char *rule, int rank,
                       const int64_t *dim)
{
  const int32_t y = tc_build_named(b, TC_OP_MATMUL, 2, (int32_t[]){ x, w }, name, end, rank, dim);
  tc_node_rule(b->g, tc_build_last(b), rule);
  return y;
}

/* factor (x A^T) B^T of a part, in its shape: the factor goes to the product with fewer columns. */
static int32_t low_rank(struct tc_build *b, int32_t x, const char *name, const struct part *part)
{
  const struct tc_lora *o = &b->o->lora;
  const struct tc_product *p = part->of;
  const char *w = strchr(p->rule, ',') + 1, *end = strchr(w, '-');
  const int n_x = (int)(w - 1 - p->rule), n_w = (int)(end - w), outs = p->b_rank, ins = n_w - outs;
  int64_t a_dim[TC_DIMS] = { o->rank }, b_dim[TC_DIMS], y_dim[TC_DIMS] = { b->N };
  memcpy(a_dim + 1, p->w + outs, (size_t)ins * sizeof *a_dim);
  memcpy(b_dim, part->dim, (size_t)outs * sizeof *b_dim);
  memcpy(y_dim + 1, part->dim, (size_t)outs * sizeof *y_dim);
  b_dim[outs] = o->rank;
  char *down = tc_sprintf("%.*s,r%.*s->nr", n_x, p->rule, ins, w + outs), *up = tc_sprintf("nr,%.*sr->n%.*s", outs, w, outs, w);
  const int32_t a = adapter_param(b, name, ".lora_a", 1 + ins, a_dim, 1, true);
  const int32_t back = adapter_param(b, name, ".lora_b", outs + 1, b_dim, outs, false);
  const int64_t t_dim[2] = { b->N, o->rank };
  if (o->dropout > 0) {
    const struct tc_tensor t = b->g->tensor[x];
    x = tc_build_named(b, TC_OP_DROPOUT, 1, &x, name, ".lora_dropout", t.rank, t.dim);
    tc_build_last(b)->attr.rate = o->dropout;
    tc_build_last(b)->attr.site = b->drops++;
  }
  int32_t t = product(b, x, a, name, ".lora_down", down, 2, t_dim);
  if (o->factor != 1) {
    t = tc_build_named(b, TC_OP_SCALE, 1, &t, name, ".lora_scaled", 2, t_dim);
    tc_build_last(b)->attr.factor = o->factor;
  }
  t = product(b, t, back, name, ".lora_up", up, 1 + outs, y_dim);
  TC_FREE(down, up);
  return t;
}

/* y + u, u of a part of y: in place of y, unless it is all of it. */
static int32_t add(struct tc_build *b, int32_t y, int32_t u, const char *full, const struct part *part)
{
  const struct tc_product *p = part->of;
  const int32_t in[2] = { y, u };
  if (part->whole) return tc_build_node(b, TC_OP_ADD, 2, in, full, b->o->dtype, p->y_rank, p->y);
  const int32_t sum = tc_build_node(b, TC_OP_ADD_PART, 2, in, full, b->o->dtype, p->y_rank, p->y);
  const char *of = strchr(p->rule, '>') + 1;
  char *of_part = tc_strdup(of), *rule;
  of_part[p->cut] = 'p';
  rule = tc_sprintf("%s,%s->%s", of, of_part, of);
  tc_node_rule(b->g, tc_build_last(b), rule);
  tc_build_last(b)->attr.first = part->first;
  tc_build_last(b)->attr.along = p->cut;
  b->g->tensor[sum].overwrites = y;
  TC_FREE(of_part, rule);
  return sum;
}

int32_t tc_build_adapters(struct tc_build *b, int32_t x, int32_t y, const char *layer, const char *name,
                          const struct tc_product *p)
{
  const int parts = b->o->lora.rank > 0 && tc_hf_has_parts(b->m) ? tc_matrices(p->w, p->cut) : 1;
  char *full = tc_sprintf("%s%s", layer, name);
  for (int i = 0; b->o->lora.rank > 0 && i < parts; i++) {
    const struct part part = part_of(p, i, parts);
    char *own = tc_sprintf("%s%s", full, part.name);
    if (tc_lora_has(b->o->lora.rows, own)) y = add(b, y, low_rank(b, x, own, &part), full, &part);
    free(own);
  }
  free(full);
  return y;
}
