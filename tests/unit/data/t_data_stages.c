/* t_data_stages.c - the samples of a run of several stages, drawn at random: a source goes on where the last stage with
 * the same windows stopped, by a count of all samples that were taken; others begin in an order of their own. */
#include "src/data/data.h"
#include "src/data/order.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

#include <unistd.h>

enum { FILES = 3, STAGES = 5, MOST_BATCH = 6, MOST_CONTEXT = 8, BASE = 20000 };

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

/* Some of the files in any order, with any weights. */
static struct tc_data *open_blend(const char *dir, int64_t context)
{
  char word[FILES][80], *list[FILES];
  int file[FILES] = { 0, 1, 2 }, n = (int)draw(1, FILES);
  struct tc_data *d = NULL;
  struct tc_err err = { 0 };
  for (int i = 0; i < n; i++) {
    const int other = (int)draw(i, FILES - 1), x = file[i];
    file[i] = file[other], file[other] = x;
    if (n > 1) snprintf(word[i], sizeof word[i], "%d:%s/%d", (int)draw(1, 9), dir, file[i]);
    else snprintf(word[i], sizeof word[i], "%s/%d", dir, file[i]);
    list[i] = word[i];
  }
  const struct tc_data_opts o = { .word = list, .n = n, .format = TC_FORMAT_UINT16, .context = context, .vocab = 65536 };
  TC_ASSERT(tc_data_open(&d, &o, &err) == 0);
  return d;
}

/* How often windows of a file and a context were taken so far, and their number, in the order of their first stages. */
struct tally { int64_t taken[FILES][MOST_CONTEXT + 1]; int number[FILES][MOST_CONTEXT + 1], numbers; };

static int file_of(const struct tc_data *d, int source)
{
  const char *name = tc_data_source_name(d, source);
  return name[strlen(name) - 1] - '0';
}

/* All samples of a stage of `steps` steps; the number of those that are not what the tally says. */
static int64_t wrong_samples(struct tally *t, const struct tc_data_stage *s, const struct tc_samples *how, int64_t steps,
                             int64_t context)
{
  int64_t wrong = 0;
  for (int i = 0; i < tc_data_sources(s->d); i++) {
    int *number = &t->number[file_of(s->d, i)][context];
    if (*number < 0) *number = t->numbers++;
  }
  for (int64_t step = s->before + 1; step <= s->before + steps; step++)
    for (int64_t b = 0; b < how->batch; b++) {
      int32_t x[MOST_CONTEXT], y[MOST_CONTEXT];
      TC_ASSERT(tc_data_train_stage(s, NULL, how, step, b, &(struct tc_batch){ x, y, NULL }, NULL) == 0);
      const int file = x[0] / BASE;
      int source = 0;
      while (file_of(s->d, source) != file) source++;
      const int64_t windows = tc_data_windows(s->d, source), n = t->taken[file][context]++;
      const int64_t w = tc_order_window(how->seed, t->number[file][context], n / windows, n % windows, windows);
      wrong += x[0] != BASE * file + w * context || y[context - 1] != x[0] + context;
    }
  return wrong;
}

static void test_run(const char *dir)
{
  struct tc_data_stage s[STAGES] = { { 0 } };
  struct tally t = { 0 };
  int64_t samples[STAGES], wrong = 0, before = 0;
  const int n = (int)draw(2, STAGES);
  const uint64_t seed = (uint64_t)draw(1, 1000);
  for (int f = 0; f < FILES; f++)
    for (int c = 0; c <= MOST_CONTEXT; c++) t.number[f][c] = -1;
  write_files(dir);
  for (int k = 0; k < n; k++) {
    const int64_t context = draw(0, 1) ? 4 : MOST_CONTEXT, steps = draw(1, 90);
    const struct tc_samples how = { TC_ORDER_PERMUTATION, seed, draw(1, MOST_BATCH) };
    s[k] = (struct tc_data_stage){ .d = open_blend(dir, context), .before = before };
    s[k].origin = tc_calloc((size_t)tc_data_sources(s[k].d), sizeof *s[k].origin);
    tc_data_origins(s, samples, k);
    wrong += wrong_samples(&t, &s[k], &how, steps, context);
    samples[k] = steps * how.batch;
    before += steps;
  }
  is_int(wrong, 0, "%d stages, seed %llu: every sample is the next of its source", n, (unsigned long long)seed);
  for (int k = 0; k < n; k++) {
    tc_data_free((struct tc_data *)(uintptr_t)s[k].d);
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
