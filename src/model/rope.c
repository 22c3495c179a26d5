/* rope.c - frequencies of rotary positions, and the text that says how they are scaled. */
#include "src/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float linear(float f, const struct tc_rope_scaling *s) { return f / s->factor; }

static float llama3(float f, const struct tc_rope_scaling *s)
{
  const float length = (float)(2 * M_PI) / f, original = (float)s->original;
  const float blend = (original / length - s->low) / (s->high - s->low);
  if (length > original / s->low) return f / s->factor;
  return length >= original / s->high ? (1 - blend) * f / s->factor + blend * f : f;
}

/* Peng et al., "YaRN", 2023, in transformers' order of operations. The index whose frequency turns so many times: */
static double turns_at(double turns, int64_t rotary, float theta, const struct tc_rope_scaling *s)
{
  return (double)rotary * log((double)s->original / (turns * 2 * M_PI)) / (2 * log((double)theta));
}

static float yarn(float power, int64_t i, int64_t rotary, float theta, const struct tc_rope_scaling *s)
{
  double low = turns_at((double)s->high, rotary, theta, s), high = turns_at((double)s->low, rotary, theta, s);
  if (!s->untruncated) low = floor(low), high = ceil(high);
  low = TC_MAX(low, 0), high = TC_MIN(high, (double)rotary - 1);
  if (low == high) high += 0.001;
  const float ramp = ((float)i - (float)low) / (float)(high - low), keep = 1 - TC_MAX(0.f, TC_MIN(1.f, ramp));
  return 1.0f / (s->factor * power) * (1 - keep) + 1.0f / power * keep;
}

/* In float, and in this order, as transformers does it (modeling_rope_utils.py): an angle is a product
 * of position and frequency, and its error grows with the position. */
void tc_rope_frequencies(float *freq, int64_t rotary, float theta, const struct tc_rope_scaling *s)
{
  for (int64_t i = 0; i < rotary / 2; i++) {
    const float power = powf(theta, (float)(2 * i) / (float)rotary), f = 1.0f / power;
    switch (s->kind) {
    case TC_ROPE_LINEAR: freq[i] = linear(f, s); break;
    case TC_ROPE_LLAMA3: freq[i] = llama3(f, s); break;
    case TC_ROPE_YARN: freq[i] = yarn(power, i, rotary, theta, s); break;
    default: freq[i] = f;
    }
  }
}

/* ---- text ------------------------------------------------------------------------------ */

/* WORD:number:..., all numbers of a row in this order; a text without the last ones has 0 there. */
static const struct { const char *word; int least, most; } kinds[] = {
  [TC_ROPE_PLAIN] = { "none", 0, 0 }, [TC_ROPE_LINEAR] = { "linear", 1, 1 }, [TC_ROPE_LLAMA3] = { "llama3", 4, 4 },
  [TC_ROPE_YARN] = { "yarn", 5, 6 } };
enum { N_KINDS = sizeof kinds / sizeof *kinds, MOST_NUMBERS = 6 };

static bool is_factor(double x) { return x >= 1e-6 && (float)x <= 1e6f; }

/* FACTOR, LOW, HIGH, ORIGINAL, ATTENTION, UNTRUNCATED. */
static bool take_numbers(struct tc_rope_scaling *s, const double x[MOST_NUMBERS], int n)
{
  s->factor = (float)x[0], s->low = (float)x[1], s->high = (float)x[2], s->attention = (float)x[4];
  s->untruncated = x[5] == 1;
  if (n >= 1 && !is_factor(x[0])) return false;
  if (n >= 4 && !(is_factor(x[1]) && is_factor(x[2]) && s->high > s->low && x[3] >= 1 && x[3] <= TC_MOST_CONTEXT && x[3] == floor(x[3])))
    return false;
  s->original = (int64_t)x[3];
  return n < 5 || (is_factor(x[4]) && (x[5] == 0 || x[5] == 1));
}

int tc_rope_scaling_parse(struct tc_rope_scaling *s, const char *text, struct tc_err *err)
{
  double x[MOST_NUMBERS] = { 0 };
  int kind = 1, n = 0;
  *s = (struct tc_rope_scaling){ 0 };
  if (!*text) return 0;
  const size_t word = strcspn(text, ":");
  while (kind < N_KINDS && (strncmp(kinds[kind].word, text, word) || kinds[kind].word[word])) kind++;
  const char *at = text + word;
  char *end;
  while (kind < N_KINDS && *at == ':' && n < kinds[kind].most && at[1]) {
    x[n] = strtod(at + 1, &end);
    if (end == at + 1) break;
    n++, at = end;
  }
  if (kind == N_KINDS || *at || n < kinds[kind].least)
    return tc_fail(err, TC_EUSER, "model.rope_scaling = %.100s is not known; none, linear:FACTOR, "
                   "llama3:FACTOR:LOW:HIGH:ORIGINAL, such as llama3:8:1:4:8192, or yarn:FACTOR:SLOW:FAST:ORIGINAL:ATTENTION "
                   "would be", text);
  s->kind = (uint8_t)kind;
  if (take_numbers(s, x, n)) return 0;
  return tc_fail(err, TC_EUSER, "model.rope_scaling = %.100s: FACTOR, LOW (SLOW), HIGH (FAST) and ATTENTION have to be from 1e-6 "
                 "to 1e6, HIGH above LOW, ORIGINAL from 1 to %d", text, TC_MOST_CONTEXT);
}

char *tc_rope_scaling_text(const struct tc_rope_scaling *s)
{
  const int kind = s->kind ? s->kind : TC_ROPE_PLAIN, n = kinds[kind].most - (kinds[kind].most == 6 && !s->untruncated);
  const float x[] = { s->factor, s->low, s->high, 0, s->attention, 1 };
  char text[200], number[32];
  snprintf(text, sizeof text, "%s", kinds[kind].word);
  for (int i = 0; i < n; i++)
    if (i == 3) tc_text_add(text, sizeof text, ":%lld", (long long)s->original);
    else tc_text_add(text, sizeof text, ":%s", tc_shortest_float(number, x[i]));
  return tc_strdup(text);
}

bool tc_same_scaling(const struct tc_rope_scaling *a, const struct tc_rope_scaling *b)
{
  return a->kind == b->kind && a->untruncated == b->untruncated && a->factor == b->factor && a->low == b->low
         && a->high == b->high && a->attention == b->attention && a->original == b->original;
}
