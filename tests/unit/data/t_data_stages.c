/* t_data_stages.c - the samples of a run of several stages, drawn at random: a source goes on where the last stage with
 * the same windows stopped, by a count of all samples that were taken, also one of two of a name; others begin in an order of
 * their own. A blend goes on while the data set is the same. */
#include "src/data/data.h"
#include "src/data/order.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

#include <unistd.h>

enum { FILES = 3, SOURCES = 5, STAGES = 5, MOST_BATCH = 6, MOST_CONTEXT = 8, BASE = 20000 };

/* A source's tokens are their places, from BASE * file on. */
static void write_files(const char *dir)
{
  for (int f = 0; f < FILES; f++) {
    const int n = (int)draw(200, 900);
    uint16_t token[900];
    char name[40];
    for (int i = 0; i < n; i++) token[i] = (uint16_t)(BASE * f + i);
    snprintf(name, sizeof name, "%s/%d", dir, f);
    FILE *file = fopen(name, "wb");
    TC_ASSERT(file && fwrite(token, sizeof *token, (size_t)n, file) == (size_t)n && fclose(file) == 0);
  }
}

/* Some of the files in any order, some of them twice, with any weights. */
static struct tc_data *open_blend(const char *dir, int64_t context)
{
  char word[SOURCES][80], *list[SOURCES];
  int file[SOURCES] = { 0, 1, 2, 0, 1 }, n = (int)draw(1, SOURCES);
  struct tc_data *d = NULL;
  struct tc_err err = { 0 };
  for (int i = 0; i < n; i++) {
    const int other = (int)draw(i, SOURCES - 1), x = file[i];
    file[i] = file[other], file[other] = x;
    if (n > 1) snprintf(word[i], sizeof word[i], "%d:%s/%d", (int)draw(1, 9), dir, file[i]);
    else snprintf(word[i], sizeof word[i], "%s/%d", dir, file[i]);
    list[i] = word[i];
  }
  const struct tc_data_opts o = { .word = list, .n = n, .format = TC_FORMAT_UINT16, .context = context, .vocab = 65536 };
  TC_ASSERT(tc_data_open(&d, &o, &err) == 0);
  return d;
}

/* How often windows of a file, of the first or second source that has it, and of a context were taken so far; and their number,
 * in the order of their first stages. */
struct tally { int64_t taken[FILES][2][MOST_CONTEXT + 1]; int number[FILES][2][MOST_CONTEXT + 1], numbers; };

static int file_of(const struct tc_data *d, int source)
{
  const char *name = tc_data_source_name(d, source);
  return name[strlen(name) - 1] - '0';
}

static int nth_of(const struct tc_data *d, int source)
{
  for (int i = 0; i < source; i++)
    if (file_of(d, i) == file_of(d, source)) return 1;
  return 0;
}

/* All samples of a stage of `steps` steps, of which the first is number `first` of its blend; the number of those that are not
 * what the tally says, and of counts of sources that tc_data_stage_taken gives otherwise. */
static int64_t wrong_samples(struct tally *t, const struct tc_data_stage *s, const struct tc_samples *how, int64_t steps,
                             int64_t context, int64_t first)
{
  struct tc_blend blend;
  double weight[SOURCES];
  int64_t wrong = 0, of[SOURCES] = { 0 };
  for (int i = 0; i < tc_data_sources(s->d); i++) {
    int *number = &t->number[file_of(s->d, i)][nth_of(s->d, i)][context];
    weight[i] = tc_data_source_weight(s->d, i);
    if (*number < 0) *number = t->numbers++;
  }
  TC_ASSERT(tc_blend_new(&blend, weight, tc_data_sources(s->d)) < 0);
  for (int64_t step = s->before + 1; step <= s->before + steps; step++)
    for (int64_t b = 0; b < how->batch; b++) {
      int32_t x[MOST_CONTEXT], y[MOST_CONTEXT];
      int source;
      TC_ASSERT(tc_data_train_stage(s, NULL, how, step, b, &(struct tc_batch){ x, y, NULL }, NULL) == 0);
      tc_blend_at(&blend, first++, &source);
      of[source]++;
      const int file = file_of(s->d, source), nth = nth_of(s->d, source);
      const int64_t windows = tc_data_windows(s->d, source), n = t->taken[file][nth][context]++;
      const int64_t w = tc_order_window(how->seed, t->number[file][nth][context], n / windows, n % windows, windows);
      wrong += x[0] != BASE * file + w * context || y[context - 1] != x[0] + context;
    }
  for (int i = 0; i < tc_data_sources(s->d); i++) wrong += tc_data_stage_taken(s, i, steps * how->batch) != of[i];
  tc_blend_free(&blend);
  return wrong;
}

static void test_run(const char *dir)
{
  struct tc_data_stage s[STAGES] = { { 0 } };
  struct tally t = { 0 };
  int64_t samples[STAGES], wrong = 0, before = 0, context = 0, first = 0;
  const int n = (int)draw(2, STAGES);
  const uint64_t seed = (uint64_t)draw(1, 1000);
  memset(t.number, -1, sizeof t.number);
  write_files(dir);
  for (int k = 0; k < n; k++) {
    const bool same = k > 0 && draw(0, 2) == 0;
    const int64_t steps = draw(1, 90);
    if (!same) context = draw(0, 1) ? 4 : MOST_CONTEXT, first = 0;
    const struct tc_samples how = { TC_ORDER_PERMUTATION, seed, draw(1, MOST_BATCH) };
    s[k] = (struct tc_data_stage){ .d = same ? s[k - 1].d : open_blend(dir, context), .before = before };
    s[k].origin = tc_calloc((size_t)tc_data_sources(s[k].d), sizeof *s[k].origin);
    tc_data_origins(s, samples, k);
    wrong += wrong_samples(&t, &s[k], &how, steps, context, first);
    samples[k] = steps * how.batch;
    first += samples[k];
    before += steps;
  }
  is_int(wrong, 0, "%d stages, seed %llu: every sample is the next of its source", n, (unsigned long long)seed);
  for (int k = 0; k < n; k++) {
    if (k == 0 || s[k].d != s[k - 1].d) tc_data_free((struct tc_data *)(uintptr_t)s[k].d);
    free(s[k].origin);
  }
}

int main(int argc, char **argv)
{
  char dir[] = "/tmp/t_data_stages.XXXXXX", name[60];
  const int cases = begin_cases(argc, argv, 60);
  TC_ASSERT(mkdtemp(dir));
  for (int i = 0; i < cases; i++) test_run(dir);
  for (int f = 0; f < FILES; f++) {
    snprintf(name, sizeof name, "%s/%d", dir, f);
    unlink(name);
  }
  rmdir(dir);
  return done_testing();
}
