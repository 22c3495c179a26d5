/* scale.c - a run made small, so that threads of one machine can run it beside one rank.
 *
 * Each size becomes the smallest that what depends on it cannot tell from the whole one: the same numbers of ranks divide it
 * or do not, it is one or more than one where that makes a difference, and it is padded or not. The mesh, the system, the
 * schedule and all other options stay as they are. Of what scales no further (micro-batches, loss chunks) there are enough
 * for a first, one between and a last.
 *
 * A number of ranks is that of an axis or of several: where only tensor and context parallelism split a size, theirs; where a
 * file of annotations may split any, all. */
#include "src/prove/prove.h"

#include "src/program/setup.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Sizes below which kernels' own cases (a vector, a tile's edge) would be missed, or nothing is left to add up. */
enum { LEAST_HIDDEN = 16, LEAST_FFN = 24, LEAST_HEAD_DIM = 8, LEAST_CHUNK = 4, LEAST_CONTEXT = 16, LEAST_VOCAB = 40,
       MOST_NUMBERS = 64, MOST_WORLD = 256 };

struct scale {
  struct tc_scaled *out;
  struct tc_config *c;
  const struct tc_mesh *whole, *m;       /* the run's; that of the proof */
  struct tc_model was;
  struct { int64_t was, is; } number[MOST_NUMBERS];      /* of ranks that may split a dimension of a layer */
  int n_numbers;
  int virtual_stages;            /* of each rank */
  bool any;                      /* annotations may split anything */
};

static void note(struct scale *s, const char *name, int64_t *option, int64_t is, const char *why, ...)
  __attribute__((format(printf, 5, 6)));
/* Sets an option, and says why its new value does as well as the old one. */
static void note(struct scale *s, const char *name, int64_t *option, int64_t is, const char *why, ...)
{
  struct tc_scaled *out = s->out;
  va_list args;
  if (*option == is) return;
  TC_ASSERT(out->n_notes < TC_SCALE_NOTES);
  struct tc_scale_note *n = &out->note[out->n_notes++];
  *n = (struct tc_scale_note){ .name = name, .was = *option, .is = is };
  va_start(args, why);
  vsnprintf(n->why, sizeof n->why, why, args);
  va_end(args);
  *option = is;
}

static void add_number(struct scale *s, int64_t was, int64_t is)
{
  for (int i = 0; i < s->n_numbers; i++)
    if (s->number[i].was == was && s->number[i].is == is) return;
  if (was == 1 || s->n_numbers == MOST_NUMBERS) return;
  s->number[s->n_numbers].was = was;
  s->number[s->n_numbers++].is = is;
}

/* The sizes of sets of axes: of those that split layers or sequences, or of all. */
static void find_numbers(struct scale *s)
{
  const unsigned model = tc_axes_of(TC_ROLE_MODEL) | tc_axes_of(TC_ROLE_TOKENS);
  const unsigned of = s->any ? model | tc_axes_of(TC_ROLE_BATCH) : model;
  for (unsigned axes = of;; axes = (axes - 1) & of) {      /* all of its subsets */
    add_number(s, tc_mesh_size(s->whole, axes), tc_mesh_size(s->m, axes));
    if (!axes) return;
  }
}

/* Whether the same numbers of ranks divide a size of the whole run and one of the proof, and neither or both are one of
 * them, or less. */
static bool is_alike(const struct scale *s, int64_t was, int64_t is)
{
  for (int i = 0; i < s->n_numbers; i++) {
    const int64_t n = s->number[i].was, k = s->number[i].is;
    if ((was % n == 0) != (is % k == 0) || (was > n) != (is > k) || (was < n) != (is < k)) return false;
  }
  return (was == 1) == (is == 1);
}

/* The smallest size from `least` on in steps of `by` that is like the whole one; the whole one if none below it is. */
static int64_t smallest(const struct scale *s, int64_t was, int64_t least, int64_t by)
{
  for (int64_t n = tc_round_up(least, by); n < was; n += by)
    if (is_alike(s, was, n)) return n;
  return was;
}

/* ---- ranks ------------------------------------------------------------------------------ */

/* More data-parallel ranks than a few compute nothing else: of many, an even or odd number as before, and two groups of
 * copies where there were several. */
static int scale_world(struct scale *s, struct tc_mesh **smaller, int world, const int32_t *node_of_rank, bool keep,
                       struct tc_err *err)
{
  struct tc_config *c = s->c;
  struct tc_scaled *out = s->out;
  const int64_t dp = tc_mesh_size(s->whole, TC_ON_DP), shard = tc_mesh_size(s->whole, TC_ON_SHARD);
  const int64_t copies = TC_MIN(dp / shard, 2);
  const int64_t few = keep || world <= MOST_WORLD ? dp : copies * TC_MIN(shard, shard % 2 ? 3 : 4);
  int each = 0;
  c->mesh_order = s->whole->order;               /* smaller sizes might choose another */
  out->world = (int)(world / dp * few);
  out->node_of_rank = tc_malloc((size_t)out->world * sizeof *out->node_of_rank);
  while (each < world && node_of_rank[each] == node_of_rank[0]) each++;
  for (int i = 0; i < out->world; i++) out->node_of_rank[i] = few == dp ? node_of_rank[i] : i / each;
  if (few != dp) {
    const int64_t batch = c->train_global_batch / dp * few;
    c->mesh_dp = dp;
    note(s, "mesh.dp", &c->mesh_dp, few, "several data-parallel ranks, an %s number as before", shard % 2 ? "odd" : "even");
    if (c->mesh_shard != TC_AUTO) c->mesh_shard = few / copies;
    note(s, "train.global_batch", &c->train_global_batch, batch, "as many sequences on each data-parallel rank");
  }
  return tc_setup_mesh(smaller, c, out->world, out->node_of_rank, 0, err);
}

/* ---- a layer's sizes ------------------------------------------------------------------- */

/* Groups of queries and keys: both counts, and that of the groups, have to be alike. */
static void scale_heads(struct scale *s)
{
  const int64_t K = s->was.kv_heads, G = s->was.heads / K, cp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_TOKENS));
  const int64_t tp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_MODEL));
  const int64_t copies = tc_setup_key_copies(&s->was, cp, tp);
  struct tc_config *c = s->c;
  int64_t best_k = K, best_g = G;
  for (int64_t k = 1; k <= K; k++)
    for (int64_t g = 1; g <= G && k * g < best_k * best_g; g++) {
      struct tc_model m = s->was;
      m.heads = k * g;
      m.kv_heads = k;
      if (is_alike(s, K, k) && is_alike(s, K * G, k * g) && (g == 1) == (G == 1) && tc_setup_key_copies(&m, cp, tp) == copies)
        best_k = k, best_g = g;
    }
  note(s, "model.heads", &c->model_heads, best_k * best_g, "the same numbers of ranks divide heads and groups of heads");
  note(s, "model.kv_heads", &c->model_kv_heads, best_k, "as before");
  const int64_t head = smallest(s, s->was.head_dim, LEAST_HEAD_DIM, 2), rotary = s->was.rotary_dim;
  note(s, "model.head_dim", &c->model_head_dim, head, "a head is split by no axis");
  if (rotary < s->was.head_dim)
    note(s, "model.rotary_dim", &c->model_rotary_dim, TC_MIN(rotary, TC_MAX(2, head / 4 * 2)), "a part of a head, as before");
}

/* A size that the ranks of flat shards (S(*)) do not divide becomes one that they do not divide. */
static void scale_widths(struct scale *s)
{
  struct tc_config *c = s->c;
  const int64_t was = tc_mesh_size(s->whole, TC_ON_FSDP), is = tc_mesh_size(s->m, TC_ON_FSDP);
  int64_t hidden = smallest(s, s->was.hidden, LEAST_HIDDEN, s->was.hidden % was ? 2 : 4);
  while (s->was.hidden % was && hidden % is == 0 && hidden < s->was.hidden) hidden = smallest(s, s->was.hidden, hidden + 1, 2);
  note(s, "model.hidden", &c->model_hidden, hidden, "the same numbers of ranks divide it");
  note(s, "model.ffn", &c->model_ffn, smallest(s, s->was.ffn, LEAST_FFN, 4), "the same numbers of ranks divide it");
}

/* A vocabulary that is stored padded, for the ranks that split it, is so here, too. */
static void scale_vocab(struct scale *s)
{
  const int64_t tp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_MODEL)), V = s->was.vocab;
  const bool padded = tp > 1 && tc_stored_vocab(V, tp) != V;
  const int64_t flat = tc_mesh_size(s->m, TC_ON_FSDP);
  int64_t is = tc_round_up(LEAST_VOCAB, tp);
  while (flat > 1 && is / tp % flat == 0) is += tp;      /* some flat shard is uneven */
  if (padded) is -= (tp + 1) / 2;
  if (s->any) is = smallest(s, V, is, 1);
  if (is >= V) return;
  note(s, "model.vocab", &s->c->model_vocab, is, "%s; the padding to a multiple of 128 is the same on one rank",
       padded ? "padded, as before" : "it is split as before");
}

/* ---- depth, sequences, batch ----------------------------------------------------------- */

/* "0-3,4-11": the stages have 1 layer, or 2 where they had more than the smallest. */
static void scale_stages(struct scale *s, int64_t *layers)
{
  const size_t size = 16 * (size_t)s->was.layers + 16;
  char *text = tc_calloc(1, size);
  int64_t least = s->was.layers, at = 0;
  for (int pass = 0; pass < 2; pass++)
    for (const char *x = s->c->mesh_stages; *x; x += strcspn(x, ",") + (x[strcspn(x, ",")] == ',')) {
      char *end;
      const int64_t lo = strtoll(x, &end, 10), hi = *end == '-' ? strtoll(end + 1, NULL, 10) : lo;
      const int64_t n = hi - lo + 1 > least ? 2 : 1;
      if (pass == 0) least = TC_MIN(least, hi - lo + 1);
      else tc_text_add(text, size, "%s%lld-%lld", at ? "," : "", (long long)at, (long long)(at + n - 1));
      if (pass) at += n;
    }
  if (at > 0 && at < *layers) {
    *layers = at;
    s->c->mesh_stages = tc_pool_strdup(s->out->pool, text);
  }
  free(text);
}

/* Each kind of layer that the model has, once, in kinds[5]; returns how many. */
static int kinds_of(char kinds[5], const struct tc_model *m)
{
  int n = 0;
  for (const char *at = m->pattern; *at; at++)
    if (!memchr(kinds, *at, (size_t)n)) kinds[n++] = *at;
  kinds[n] = 0;
  return n;
}

/* train.lora_rows may name layers: those at the same place in the model have adapters. */
static void scale_adapters(struct scale *s, int64_t layers)
{
  const struct tc_model m = tc_model_complete(&s->was);
  const char *rows = s->c->train_lora_rows;
  char *text = NULL, *rest;
  size_t size = 0;
  if (!*rows || layers == m.layers) return;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  for (int64_t l = 0; l < m.layers; l++) {
    char *names = tc_lora_names(&m, l);
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
      if (tc_lora_has(rows, name)) fprintf(f, "h.%lld%s ", (long long)(l * layers / m.layers), strchr(name + 2, '.'));
    free(names);
  }
  if (fclose(f)) TC_ASSERT(!"out of memory for names of matrices");
  s->c->train_lora_rows = tc_pool_strdup(s->out->pool, text);
  free(text);
}

static void scale_layers(struct scale *s)
{
  struct tc_config *c = s->c;
  char kinds[5];
  const int n_kinds = kinds_of(kinds, &s->was);
  const int64_t stages = s->virtual_stages * s->m->size[TC_PP];
  int64_t layers = stages * TC_MIN(s->was.layers / stages, stages > 4 ? 1 : 2) + s->was.layers % stages;
  while (layers < n_kinds) layers += stages;
  layers = TC_MIN(TC_MAX(layers, 2), s->was.layers);
  if (strcmp(c->mesh_stages, "auto") && *c->mesh_stages) {
    layers = s->was.layers;
    scale_stages(s, &layers);
  }
  if (layers < (int64_t)strlen(s->was.pattern)) c->model_pattern = tc_pool_strdup(s->out->pool, kinds);
  note(s, "model.layers", &c->model_layers, layers, "%lld stage%s, %s", (long long)stages, tc_plural((int)stages),
       s->was.layers % stages ? "of unequal depth, as before" : "of the same depth");
  scale_adapters(s, layers);
}

/* A sequence in parts of mesh.cp, rows that tensor parallelism splits. */
static void scale_context(struct scale *s)
{
  const int64_t cp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_TOKENS)), parts = cp * (s->c->parallel_zigzag && cp > 1 ? 2 : 1);
  const int64_t tp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_MODEL)), T = s->was.context;
  int64_t by = T % parts ? 1 : parts;
  if (s->c->parallel_sequence && T % (parts * tp) == 0) by = parts * tp;
  const int64_t is = smallest(s, T, TC_MAX(LEAST_CONTEXT, LEAST_CHUNK * parts), by);
  if (s->was.window > 0)
    note(s, "model.window", &s->c->model_window, s->was.window < T ? TC_MAX(1, is * s->was.window / T) : TC_MAX(is, s->was.window),
         s->was.window < T ? "the same share of a sequence" : "all of a sequence");
  note(s, "model.context", &s->c->model_context, is, parts > 1 ? "%lld parts of %lld tokens, with borders of documents inside"
       : "%lld sequence of %lld tokens", (long long)parts, (long long)(is / parts));
}

/* At least two micro-batches more than stages, if there are so many. */
static void scale_batch(struct scale *s)
{
  struct tc_config *c = s->c;
  const int64_t dp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_BATCH)), n = s->m->size[TC_MB], pp = s->m->size[TC_PP];
  const int64_t each = c->train_global_batch / dp / n;
  int64_t batches = pp > 1 ? pp + 2 : 3;
  while (pp > 1 && batches % pp != n % pp) batches++;    /* interleaved schedules need a multiple */
  batches = TC_MIN(batches, n);
  const int64_t tp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_MODEL)), cp = tc_mesh_size(s->m, tc_axes_of(TC_ROLE_TOKENS));
  int64_t few = TC_MIN(each, s->any ? smallest(s, each, 2, 1) : 2);
  while (c->parallel_sequence && few < each && few * c->model_context / cp % tp) few++;   /* its tokens split over tp */
  if (c->train_micro_batch) note(s, "train.micro_batch", &c->train_micro_batch, few, "one sequence, or more than one");
  note(s, "train.global_batch", &c->train_global_batch, dp * batches * few, "%lld micro-batch%s of %lld sequence%s on each of "
       "%lld data-parallel ranks", (long long)batches, batches == 1 ? "" : "es", (long long)few, tc_plural((int)few),
       (long long)dp);
}

/* Two loss chunks at least, of unequal size. */
static void scale_head(struct scale *s, int64_t micro)
{
  const int64_t rows = micro * s->c->model_context / tc_mesh_size(s->m, tc_axes_of(TC_ROLE_TOKENS));
  note(s, "parallel.head_chunk", &s->c->parallel_head_chunk, TC_MAX(1, rows * 3 / 5), "two loss chunks of unequal size");
}

/* What a proof does not read, so that it need not be there. */
static void leave_out(struct tc_config *c, const struct tc_config *defaults)
{
  static const char *const not[] = { "data.train", "data.val", "data.format", "train.eval_tasks", "model.preset",
                                     "model.config", "ckpt.", "run.trace", "run.fault" };
  struct tc_config_change change;
  for (int i = -1; (i = tc_config_next_change(c, defaults, i + 1, &change)) >= 0;)
    for (size_t k = 0; k < sizeof not / sizeof *not; k++)
      if (!strncmp(change.name, not[k], strlen(not[k]))) tc_config_copy(c, defaults, i);
}

/* in_layers: the sizes within a layer, too. */
static void scale_sizes(struct scale *s, bool in_layers)
{
  find_numbers(s);
  if (in_layers) {
    scale_heads(s);
    scale_widths(s);
  }
  scale_vocab(s);
  scale_layers(s);
  scale_context(s);
  scale_batch(s);
}

static int scale_all(struct scale *s, enum tc_scale_what what, int world, const int32_t *node_of_rank, struct tc_err *err)
{
  struct tc_mesh *m, *small;
  TC_TRY(scale_world(s, &small, world, node_of_rank, what == TC_SCALE_NOTHING, err));
  s->m = small;
  if (what != TC_SCALE_NOTHING) scale_sizes(s, what == TC_SCALE_ALL);
  const int rc = tc_setup_mesh(&m, s->c, s->out->world, s->out->node_of_rank, 0, err);
  if (!rc && what != TC_SCALE_NOTHING)
    scale_head(s, s->c->train_global_batch / tc_mesh_size(m, tc_axes_of(TC_ROLE_BATCH)) / m->size[TC_MB]);
  if (!rc) tc_mesh_free(m);
  tc_mesh_free(small);
  return rc;
}

/* An error in the run's own sizes is reported with these, before they are made smaller. */
static int check_whole(struct scale *s, const struct tc_config *c, struct tc_err *err)
{
  struct tc_program_opts o;
  struct tc_annotation *rows;
  struct tc_program *p = NULL;
  int rc = tc_setup_program(&o, c, s->whole, &rows, err);
  if (!rc) rc = tc_program_new(&p, &o, s->whole, 0, NULL, "buckets", err);
  if (!rc) {
    s->virtual_stages = o.virtual_stages;
    tc_program_free(p);
  }
  tc_annotations_free(rows);
  return rc;
}

int tc_scale(struct tc_scaled *out, const struct tc_config *cfg, int world, const int32_t *node_of_rank,
             enum tc_scale_what what, struct tc_err *err)
{
  char *none[] = { (char *)(uintptr_t)"prove" };
  struct tc_mesh *m = NULL;
  struct scale s = { .out = out, .c = &out->cfg, .any = *cfg->parallel_annotations != 0 };
  *out = (struct tc_scaled){ .cfg = *cfg, .pool = tc_pool_new() };
  TC_TRY(tc_setup_model(cfg, &s.was, err));
  TC_TRY(tc_config_new(&out->defaults, 1, none, err));
  tc_setup_fill_model(&out->cfg, &s.was);
  leave_out(&out->cfg, out->defaults);
  int rc = tc_setup_mesh(&m, cfg, world, node_of_rank, 0, err);
  s.whole = m;
  if (!rc) rc = check_whole(&s, cfg, err);
  if (!rc) rc = scale_all(&s, what, world, node_of_rank, err);
  tc_mesh_free(m);
  return rc;
}

void tc_scaled_free(struct tc_scaled *s)
{
  free(s->node_of_rank);
  tc_config_free(s->defaults);
  tc_pool_free(s->pool);
  s->defaults = NULL;
  s->pool = NULL;
}
