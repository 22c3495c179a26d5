/* show_steps.c - `tercio train --dry-run`: rate, batch, context and data by step, from the configuration alone. No MPI. */
#include "src/cmd/show_steps.h"
#include "src/cmd/out.h"
#include "src/program/setup.h"
#include "src/recipe/recipe.h"
#include "src/run/run.h"

#include <string.h>

#define ROW "step=%10lld  phase=%-12s  lr=%10.4g  {tokens=%lld}:tokens=%8s  batch=%7lld  context=%7lld"
#define SOURCE "source=%-*s  share=%7.4f  samples=%12lld  {tokens=%lld}:tokens=%8s  passes=%8.3f"

struct recipe {
  struct tc_rate rate;
  int64_t batch, context;        /* sequences of a step, tokens of a sequence */
  int64_t end;                   /* the last step: train.steps or train.stop_at */
};

static void print_step(const struct recipe *r, json_t *list, int64_t step)
{
  const int64_t tokens = step * r->batch * r->context;
  char text[32];
  tc_out_row(list, ROW, (long long)step, tc_rate_phase(&r->rate, step), tc_rate_at(&r->rate, step), (long long)tokens,
             tc_human_count(text, sizeof text, (double)tokens), (long long)r->batch, (long long)r->context);
}

/* The next step to print: a multiple of the stride, or the last one of a phase. */
static int64_t next_step(const struct tc_rate *r, int64_t step, int64_t stride)
{
  const int64_t turn[] = { r->warmup, r->steps - r->cooldown };
  int64_t next = tc_round_up(step + 1, stride);
  for (int i = 0; i < 2; i++)
    if (turn[i] > step) next = TC_MIN(next, turn[i]);
  return next;
}

static void print_steps(const struct recipe *r, json_t *list, int64_t every)
{
  enum { ABOUT = 20 };
  const int64_t stride = every ? every : TC_MAX(r->end / ABOUT, 1);
  if (!list) tc_out_head(ROW);
  for (int64_t step = 1; step < r->end; step = next_step(&r->rate, step, stride)) print_step(r, list, step);
  print_step(r, list, r->end);
}

static void print_sources(const struct recipe *r, const struct tc_data *d, json_t *list)
{
  const int64_t all = r->end * r->batch;
  int width = (int)strlen("source");
  for (int i = 0; i < tc_data_sources(d); i++) width = TC_MAX(width, TC_MIN((int)strlen(tc_data_source_name(d, i)), 60));
  if (!list) tc_out_head(SOURCE, width);
  for (int i = 0; i < tc_data_sources(d); i++) {
    const int64_t samples = tc_data_taken(d, i, all), tokens = samples * r->context;
    char text[32];
    tc_out_row(list, SOURCE, width, tc_data_source_name(d, i), (double)samples / (double)all, (long long)samples,
               (long long)tokens, tc_human_count(text, sizeof text, (double)tokens),
               (double)samples / (double)tc_data_windows(d, i));
  }
}

static void print_all(const struct recipe *r, const struct tc_data *d, int64_t every, bool json)
{
  const long long steps = (long long)r->end, sequences = steps * r->batch, tokens = sequences * r->context;
  json_t *rows = json ? json_array() : NULL, *sources = json ? json_array() : NULL;
  char text[32];
  print_steps(r, rows, every);
  if (!json) printf("in all: %lld steps, %lld sequences, %s tokens\n", steps, sequences,
                    tc_human_count(text, sizeof text, (double)tokens));
  if (d) print_sources(r, d, sources);
  if (json)
    tc_out_json(json_pack("{s:o, s:{s:I, s:I, s:I}, s:o}", "steps", rows, "total", "steps", (json_int_t)steps, "sequences",
                          (json_int_t)sequences, "tokens", (json_int_t)tokens, "sources", sources),
                JSON_INDENT(1) | JSON_REAL_PRECISION(12));
}

int tc_show_steps(struct tc_config *c, int64_t every, bool json, struct tc_err *err)
{
  struct tc_model m;
  struct tc_data *d = NULL;
  TC_TRY(tc_setup_model(c, &m, err));
  const struct tc_data_opts o = { .word = c->data_train.item, .n = c->data_train.n, .format = c->data_format,
                                  .part = c->data_val.n == 0 ? 1 : 0, .context = m.context, .vocab = m.vocab };
  if (c->data_train.n) TC_TRY(tc_data_open(&d, &o, err));
  else if (c->data_epochs > 0) return tc_fail(err, TC_EUSER, "data.epochs needs data.train: of which files?");
  int rc = d ? tc_run_steps(&c->train_steps, c, d, err) : 0;
  if (rc == 0) rc = tc_rate_check(c, err);
  struct tc_stop_if unused;
  if (rc == 0) rc = tc_stop_if_read(&unused, c, err);
  const struct recipe r = { tc_rate_of(c), c->train_global_batch, m.context, tc_last_step(c) };
  if (rc == 0) print_all(&r, d, every, json);
  tc_data_free(d);
  return rc;
}
