/* terms.c - what a GPU's work takes by its shape: products, attention; what is between them is memory's (tc_memory_s), transfers
 * are links' (cost.c). Each is a pure function of a device and sizes, in seconds, without the start of a kernel.
 *
 * A device without multiprocessors (a CPU, or a file that names none) has one rate for all of them (cost.c). */
#include "src/plan/impl.h"

#include <math.h>
#include <string.h>

/* ---- products ---------------------------------------------------------------------------- */

/* Tiles of cuBLAS's kernels, and what each reaches of the best: smaller ones read more of L2 for each operation (NVIDIA, Matrix
 * Multiplication Background User's Guide, "Tile Quantization"; the figures are assumed). */
static const struct { int m, n; double part; } tiles[] = {
  { 256, 128, 1 }, { 128, 256, 1 }, { 128, 128, 0.95 }, { 128, 64, 0.8 }, { 64, 128, 0.8 }, { 64, 64, 0.6 },
};
enum { TILES = sizeof tiles / sizeof *tiles, MOST_SPLITS = 16, LEAST_DEPTH = 512 };

/* Begin and end of a tile, in elements of depth: an H100's products reach 63 % of the peak at K = 768, 67 % at large K. */
#define TILE_ENDS 64

/* C[m,n] = A[m,k] B[k,n]. The tiles of C, or with its sums over k split the tiles of each part, are worked on in waves of one for
 * each multiprocessor; parts are summed through memory in fp32. The fastest of the tiles and splits, but at least the time of
 * reading and writing. tp divides n or k: fewer tiles, so that the last wave counts more, or less depth. */
double tc_product_s(const struct tc_plan_device *d, double m, double n, double k, int dtype)
{
  const bool bf16 = dtype == TC_BF16 && d->flops[TC_BF16] > 0;
  const double each = d->flops[bf16 ? TC_BF16 : TC_F32] * d->eff_flops / d->multiprocessors;
  double best = INFINITY;
  for (int t = 0; t < TILES; t++)
    for (int split = 1; split <= MOST_SPLITS && (split == 1 || k / split >= LEAST_DEPTH); split *= 2) {
      const double all = ceil(m / tiles[t].m) * ceil(n / tiles[t].n) * split, waves = ceil(all / d->multiprocessors);
      const double tile_s = 2.0 * tiles[t].m * tiles[t].n * (k / split + TILE_ENDS) / (each * tiles[t].part);
      const double sums_s = split > 1 ? tc_memory_s(d, 2.0 * split * m * n * (double)tc_dtype_bytes(TC_F32)) : 0;
      best = TC_MIN(best, waves * tile_s + sums_s);
    }
  return TC_MAX(best, tc_memory_s(d, (m * k + k * n + m * n) * (double)tc_dtype_bytes(dtype)));
}

/* ---- attention --------------------------------------------------------------------------- */

static const struct row {
  const char *name;
  int kind, capability, head;
  double top[2], half[2];        /* forward, backward */
  enum tc_plan_source source;
} rows[] = {
#define ATTENTION(id, kind, cc, head, f, b, half_f, half_b, source) \
  { kind, TC_ATTN_BY_##id, cc, head, { f, b }, { half_f, half_b }, TC_SOURCE_##source },
#include "src/plan/devices.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

const char *const tc_attn_by_name[TC_ATTN_BYS] = { "cudnn", "own", "triton", "unfused" };

/* Passes over the scores [heads, T, T] in memory, of attention that writes them: forward QK's output, softmax in and out, PV's
 * input, and dropout in, out and a mask of bytes; backward one product's output, softmax (three), the inputs of three products,
 * and dropout. */
static const double passes[2] = { 6.5, 9.5 };

/* A row of the highest capability up to the device's; NULL: there is none. */
static const struct row *newest(const struct tc_plan_device *d)
{
  const struct row *best = NULL;
  for (int i = 0; i < ROWS; i++)
    if (rows[i].kind == d->attention && rows[i].capability <= d->capability && (!best || rows[i].capability > best->capability))
      best = &rows[i];
  return best;
}

/* The rate at a size of heads, of the rows of that capability. */
static double rate(const struct tc_plan_device *d, int head, double keys, int back)
{
  const struct row *below = NULL, *above = NULL, *of = newest(d);
  for (int i = 0; i < ROWS; i++) {
    if (!of || rows[i].kind != of->kind || rows[i].capability != of->capability) continue;
    if (rows[i].head <= head && (!below || rows[i].head > below->head)) below = &rows[i];
    if (rows[i].head >= head && (!above || rows[i].head < above->head)) above = &rows[i];
  }
  const struct row *one = below ? below : above;
  if (!one) return 0;
  const double own = one->top[back] * keys / (keys + one->half[back]) * TC_MIN((double)head / one->head, 1);
  if (!below || !above || below == above) return own;
  const double other = above->top[back] * keys / (keys + above->half[back]);
  return own + (other - own) * (head - below->head) / (above->head - below->head);
}

bool tc_attention_known(const struct tc_plan_device *d)
{ return d->attention == TC_ATTN_BY_UNFUSED || rate(d, 64, 1, 0) > 0; }

double tc_attention_s(const struct tc_plan_device *d, const struct tc_op_cost *c)
{
  const int back = c->op == TC_OP_ATTN_BWD;
  const double peak = d->flops[c->dtype == TC_BF16 && d->flops[TC_BF16] > 0 ? TC_BF16 : TC_F32];
  if (d->attention != TC_ATTN_BY_UNFUSED)
    return TC_MAX(c->flops / (peak * rate(d, (int)c->head, c->keys, back)), tc_memory_s(d, c->bytes));
  /* Batched products of whole sequences, masked or not: T queries with T keys, of depth D, then back. */
  const double products = back ? 5 : 2, T = (double)c->sequence, batches = c->rows / T;
  return batches * products * tc_product_s(d, T, T, (double)c->head, c->dtype) +
         tc_memory_s(d, passes[back] * c->rows * T * (double)tc_dtype_bytes(c->dtype)) + tc_memory_s(d, c->bytes);
}

/* ---- where figures come from ------------------------------------------------------------- */

const char *const tc_term_name[TC_TERMS + 1] = { "products", "attention", "between", "update", "transfers", "bubble", "saves" };
const char *const tc_wire_name[TC_WIRES] = { "node", "network", "spine" };
const char *const tc_source_name[TC_SOURCES] = { "unsaid", "assumed", "fitted", "data sheet", "measured", "given", "calibrated" };

void tc_source_add(struct tc_cluster *k, unsigned terms, enum tc_plan_source source)
{
  for (int t = 0; t <= TC_TERM_SAVES; t++)
    if (terms >> t & 1) k->source[t] = TC_MAX(k->source[t], source);
}

void tc_source_add_wire(struct tc_cluster *k, enum tc_wire wire, enum tc_plan_source source)
{
  k->wire_source[wire] = TC_MAX(k->wire_source[wire], source);
}

static enum tc_plan_source of_wire(const struct tc_cluster *k, int wire)
{
  const enum tc_plan_source own = k->wire_source[wire];
  return wire == TC_WIRE_SPINE && !own ? k->wire_source[TC_WIRE_NETWORK] : own;
}

static enum tc_plan_source of_transfers(const struct tc_cluster *k, const struct tc_plan_used *used)
{
  enum tc_plan_source least = TC_SOURCES;
  for (int w = 0; w < TC_WIRES; w++)
    if (!used || used->wire_bytes[w] > 0) least = TC_MIN(least, of_wire(k, w));
  return least < TC_SOURCES ? least : of_wire(k, TC_WIRE_NODE);
}

enum tc_plan_term tc_plan_term_of(int op)
{
  if (tc_op_info[op].flags & TC_OPF_UPDATE) return TC_TERM_UPDATE;
  return op == TC_OP_MATMUL ? TC_TERM_PRODUCTS
       : op == TC_OP_ATTN || op == TC_OP_ATTN_BWD || op == TC_OP_ATTN_CACHE ? TC_TERM_ATTENTION : TC_TERM_BETWEEN;
}

/* Whether all ops of a term that a step has were timed; it has one. */
static bool is_timed(const struct tc_cluster *k, enum tc_plan_term term, const struct tc_plan_used *used)
{
  bool any = false, timed[TC_OPS] = { false };
  for (int i = 0; i < k->device.n_samples; i++) timed[k->device.sample[i].op] = true;
  for (int op = 0; op < TC_OPS; op++) {
    if (!used->op[op] || tc_plan_term_of(op) != term) continue;
    if (!timed[op]) return false;
    any = true;
  }
  return any;
}

enum tc_plan_source tc_plan_source(const struct tc_cluster *k, enum tc_plan_term term, const struct tc_plan_used *used)
{
  const struct tc_plan_device *d = &k->device;
  if (term == TC_TERM_TRANSFERS) return of_transfers(k, used);
  if (term == TC_TERM_BUBBLE) {
    enum tc_plan_source least = TC_SOURCE_CALIBRATED;
    for (int t = 0; t < TC_TERMS; t++)
      if (t != TC_TERM_BUBBLE) least = TC_MIN(least, tc_plan_source(k, t, used));
    return least;
  }
  if (used && is_timed(k, term, used)) return TC_SOURCE_CALIBRATED;
  if (k->source[term]) return k->source[term];
  if (d->multiprocessors <= 0 || d->attention == TC_ATTN_BY_UNFUSED) return k->source[TC_TERM_PRODUCTS];
  /* Rates of another generation, or of a device of which products were not measured either, are a guess for this one. */
  const struct row *of = newest(d);
  return of && of->capability == (int)d->capability && k->card != TC_SOURCE_ASSUMED ? of->source : TC_SOURCE_ASSUMED;
}

/* ---- in device files --------------------------------------------------------------------- */

static int fail_known(const char *what, const char *const *known, int n, const char *path, int line, struct tc_err *err)
{
  char list[200] = "";
  const int near = tc_nearest(what, known, n);
  for (int i = 0; i < n; i++) tc_text_add(list, sizeof list, "%s%s", i == 0 ? "" : i < n - 1 ? ", " : " or ", known[i]);
  if (near >= 0) return tc_fail(err, TC_EUSER, "%s:%d: \"%s\" is not known; did you mean %s?", path, line, what, known[near]);
  return tc_fail(err, TC_EUSER, "%s:%d: \"%s\" is not known; %s would fit", path, line, what, list);
}

/* Transfers are all wires, as files of earlier versions say it. */
int tc_source_set(struct tc_cluster *k, const char *of, const char *value, const char *path, int line, struct tc_err *err)
{
  const char *known[TC_TERM_SAVES + 1 + TC_WIRES];
  int n = 0;
  for (int t = 0; t <= TC_TERM_SAVES; t++)
    if (t != TC_TERM_BUBBLE) known[n++] = tc_term_name[t];
  for (int w = 0; w < TC_WIRES; w++) known[n++] = tc_wire_name[w];
  const int t = tc_word_index(of, tc_term_name, TC_TERM_SAVES + 1), wire = tc_word_index(of, tc_wire_name, TC_WIRES);
  const int s = 1 + tc_word_index(value, tc_source_name + 1, TC_SOURCES - 1);
  if (t == TC_TERM_BUBBLE)
    return tc_fail(err, TC_EUSER, "%s:%d: the bubble is as sure as the least sure of the other terms: it has no source of its own",
                   path, line);
  if (t < 0 && wire < 0) return fail_known(of, known, n, path, line, err);
  if (s <= TC_SOURCE_UNSAID) return fail_known(value, tc_source_name + 1, TC_SOURCES - 1, path, line, err);
  for (int w = 0; w < TC_WIRES; w++)
    if (w == wire || t == TC_TERM_TRANSFERS) k->wire_source[w] = (enum tc_plan_source)s;
  if (t >= 0 && t != TC_TERM_TRANSFERS) k->source[t] = (enum tc_plan_source)s;
  return 0;
}

void tc_source_print(const struct tc_cluster *k, FILE *f)
{
  for (int t = 0; t <= TC_TERM_SAVES; t++)
    if (t != TC_TERM_BUBBLE && t != TC_TERM_TRANSFERS)
      fprintf(f, "source %s = %s\n", tc_term_name[t], tc_source_name[tc_plan_source(k, t, NULL)]);
  for (int w = 0; w < TC_WIRES; w++) fprintf(f, "source %s = %s\n", tc_wire_name[w], tc_source_name[of_wire(k, w)]);
}
