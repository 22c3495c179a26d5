/* tables.c - the estimates of textbooks and papers, to compare with exact values. Units are GiB if
 * the sources use them (activations), else GB = 1e9 bytes; each table states its unit. */
#include "src/plan/plan.h"

#include <math.h>
#include <string.h>

void tc_textbook(struct tc_textbook *out, const struct tc_model *m, int64_t batch)
{
  double psi = (double)tc_model_params(m), c = (double)m->hidden, t = (double)m->context;
  struct tc_textbook x = { .weights = 4 * psi, .gradients = 4 * psi, .optimizer = 12 * psi,
                           .layers = 6 * (double)batch * t * c * 4 * (double)m->layers,
                           .tokens = (double)batch * t * c * 4, .positions = t * c * 4 };
  x.activations = x.layers + x.tokens + x.positions;
  x.total = x.weights + x.gradients + x.optimizer + x.activations;
  *out = x;
}

double tc_textbook_states(double parameters) { return 16 * parameters; }

double tc_textbook_zero(double parameters, int stage, double n)
{
  const double weights = 2, gradients = 2, optimizer = 12;
  return parameters * ((stage >= 3 ? weights / n : weights) +
                       (stage >= 2 ? gradients / n : gradients) +
                       (stage >= 1 ? optimizer / n : optimizer));
}

static const struct tc_model *preset(const char *name)
{
  const struct tc_model *m = tc_presets;
  while (m->preset && strcmp(m->preset, name)) m++;
  TC_ASSERT(m->preset);
  return m;
}

static const struct { const char *name; double gb; } cards[] = {
#define DEVICE(name, memory, f32, bf16, bw, node, net, host, ef, eb, sm, cc, source) { name, memory },
#include "src/plan/devices.def"
};
enum { N_CARDS = sizeof cards / sizeof *cards };

/* The table has columns for the devices that are most common. */
static bool is_shown(int card)
{
  static const char *const names[] = { "v100-16", "v100-32", "a100-40", "a100-80", "h100", "h200" };
  bool shown = false;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) shown |= !strcmp(cards[card].name, names[i]);
  return shown;
}

/* "alone", or the smallest number of devices that share the states evenly. */
static void print_fits(FILE *f, double bytes)
{
  for (int i = 0; i < N_CARDS; i++) {
    if (!is_shown(i)) continue;
    double memory = cards[i].gb * 1e9;
    if (bytes <= memory) fprintf(f, " %9s", "alone");
    else fprintf(f, " %9.0f", (double)tc_ceil_div((int64_t)bytes, (int64_t)memory));
  }
  fprintf(f, "\n");
}

void tc_plan_tables(FILE *f)
{
  const char *const shown[] = { "bert-large", "gpt2-1558m", "turing-17b", "gpt3-175b", "qwen3-8b", "llama3-8b",
                                "llama3-70b", "llama3-405b" };
  double first = 0;
  fprintf(f,
          "Model states in training: weights, gradients and Adam, 16 bytes per parameter (GB = 1e9 "
          "bytes).\nThen, per device: alone if they fit on one, else how many must share them evenly "
          "(without activations). Tercio itself needs a GPU of compute\ncapability %d.%d or "
          "later, so no V100. GFLOP: operations of a training step per\ntoken, with attention over the preset's "
          "context; compute: parameters relative to the first row.\n\n%-12s %8s %6s %6s %8s %8s %9s",
          TC_CAPABILITY / 10, TC_CAPABILITY % 10, "model", "params", "layers", "hidden", "compute", "GFLOP", "states");
  for (int i = 0; i < N_CARDS; i++)
    if (is_shown(i)) fprintf(f, " %9s", cards[i].name);
  fprintf(f, "\n");
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
    const struct tc_model *m = preset(shown[i]);
    double psi = (double)tc_model_params(m), bytes = tc_textbook_states(psi);
    if (!i) first = psi;
    fprintf(f, "%-12s %7.3fB %6lld %6lld %7.1fx %8.4g %6.4g GB", shown[i], psi * 1e-9,
            (long long)m->layers, (long long)m->hidden, psi / first, tc_model_flops(m) * 1e-9, bytes * 1e-9);
    print_fits(f, bytes);
  }
  struct tc_textbook t;
  const double gib = 1024.0 * 1024 * 1024;
  tc_textbook(&t, preset("gpt2-1558m"), 32);
  fprintf(f,
          "\ngpt2-1558m, context 1024, batch 32, fp32, Adam, as the public estimate counts it (20 "
          "bytes per parameter and\nsix activations per layer; GiB): parameters %.2f, gradients %.2f, "
          "optimizer %.2f, activations %.2f x 48 = %.2f,\ntoken embeddings %.2f, positions %.3f: "
          "together %.2f, and with the states %.1f\n", t.weights / gib, t.gradients / gib,
          t.optimizer / gib, t.layers / gib / 48, t.layers / gib, t.tokens / gib,
          t.positions / gib, t.activations / gib, t.total / gib);
  fprintf(f,
          "\n7.5 B parameters on 64 ranks, mixed precision, a rank's states (GB): %.1f; ZeRO-1 "
          "%.1f; ZeRO-2 %.1f; ZeRO-3 %.1f\n", tc_textbook_zero(7.5e9, 0, 64) * 1e-9,
          tc_textbook_zero(7.5e9, 1, 64) * 1e-9, tc_textbook_zero(7.5e9, 2, 64) * 1e-9,
          tc_textbook_zero(7.5e9, 3, 64) * 1e-9);
}

/* ---- learning rates ------------------------------------------------------------------------ */

/* A learning rate and a warm-up for the size of a model, from the runs of GPT-3: T. Brown et al., "Language Models are Few-Shot
 * Learners", 2020. Table 2.1 has sizes, batches and peak rates; appendix B the warm-up over 375 million tokens, and the cosine
 * decay to a tenth of the peak. All with AdamW. */
static const struct tc_plan_rate rate_table[] = {
  /* parameters, tokens per step, peak */
  { 125e6, 0.5e6, 6.0e-4 }, { 350e6, 0.5e6, 3.0e-4 }, { 760e6, 0.5e6, 2.5e-4 }, { 1.3e9, 1e6, 2.0e-4 },
  { 2.7e9, 1e6, 1.6e-4 },   { 6.7e9, 2e6, 1.2e-4 },   { 13e9, 2e6, 1.0e-4 },    { 175e9, 3.2e6, 0.6e-4 },
};
enum { RATES = sizeof rate_table / sizeof *rate_table };

const struct tc_plan_rate *tc_plan_rate(double parameters)
{
  const struct tc_plan_rate *best = rate_table;
  for (int i = 1; i < RATES; i++)
    if (fabs(log(parameters / rate_table[i].parameters)) < fabs(log(parameters / best->parameters))) best = &rate_table[i];
  return best;
}

int64_t tc_plan_warmup(double tokens_per_step, int64_t steps)
{
  const double tokens = 375e6;
  return (int64_t)TC_MIN(ceil(tokens / tokens_per_step), (double)(steps / 20));
}
