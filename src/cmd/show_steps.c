/* show_steps.c - `tercio train --dry-run`: rate, batch, context and data by step and stage, from the configuration alone. No MPI. */
#include "src/cmd/show_steps.h"
#include "src/cmd/out.h"
#include "src/program/setup.h"
#include "src/recipe/recipe.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

#define STAGE "stage=%5d  "
#define ROW "step=%10lld  phase=%-12s  lr=%10.4g  {tokens=%lld}:tokens=%8s  batch=%7lld  context=%7lld"
#define SOURCE "source=%-*s  share=%7.4f  samples=%12lld  {tokens=%lld}:tokens=%8s  passes=%8.3f"

struct recipe {
  const struct tc_stage *stage;  /* [n] */
  int n;
  int64_t end;                   /* the last step: train.steps or train.stop_at */
  struct tc_data_stage *data;    /* [n]; NULL: no data are named */
};

static void print_step(const struct recipe *r, json_t *list, int64_t step)
{
  const int k = tc_stages_at(r->stage, r->n, step);
  const struct tc_stage *s = &r->stage[k];
  const struct tc_rate rate = tc_rate_of(&s->c);
  const int64_t tokens = tc_stages_tokens(r->stage, r->n, step);
  const long long batch = s->c.train_global_batch, context = s->context;
  char text[32];
  tc_human_count(text, sizeof text, (double)tokens);
  if (r->n > 1)
    tc_out_row(list, STAGE ROW, k + 1, (long long)step, tc_rate_phase(&rate, step), tc_rate_at(&rate, step), (long long)tokens,
               text, batch, context);
  else
    tc_out_row(list, ROW, (long long)step, tc_rate_phase(&rate, step), tc_rate_at(&rate, step), (long long)tokens, text, batch,
               context);
}

/* The next step to print: a multiple of the stride, the last one of a phase, or the first or last one of a stage. */
static int64_t next_step(const struct recipe *r, int64_t step, int64_t stride)
{
  const struct tc_rate rate = tc_rate_of(&r->stage[0].c);
  const int64_t turn[] = { rate.warmup, rate.steps - rate.cooldown };
  int64_t next = tc_round_up(step + 1, stride);
  for (int i = 0; i < 2; i++)
    if (turn[i] > step) next = TC_MIN(next, turn[i]);
  for (int k = 1; k < r->n; k++)
    for (int64_t at = r->stage[k].first - 1; at <= r->stage[k].first; at++)
      if (at > step) next = TC_MIN(next, at);
  return next;
}

static void print_steps(const struct recipe *r, json_t *list, int64_t every)
{
  enum { ABOUT = 20 };
  const int64_t stride = every ? every : TC_MAX(r->end / ABOUT, 1);
  if (!list && r->n > 1) tc_out_head(STAGE ROW);
  else if (!list) tc_out_head(ROW);
  for (int64_t step = 1; step < r->end; step = next_step(r, step, stride)) print_step(r, list, step);
  print_step(r, list, r->end);
}

/* The samples of stage k. */
static int64_t samples_of(const struct recipe *r, int k)
{
  const struct tc_stage *s = &r->stage[k];
  const int64_t end = k + 1 < r->n ? TC_MIN(s[1].first - 1, r->end) : r->end;
  return TC_MAX(end - s->first + 1, 0) * s->c.train_global_batch;
}

static void print_source(const struct recipe *r, int k, int i, int width, json_t *list)
{
  const struct tc_data *d = r->data[k].d;
  const int64_t all = samples_of(r, k), samples = tc_data_stage_taken(&r->data[k], i, all), tokens = samples * r->stage[k].context;
  const double share = all ? (double)samples / (double)all : 0, passes = (double)samples / (double)tc_data_windows(d, i);
  char text[32];
  tc_human_count(text, sizeof text, (double)tokens);
  if (r->n > 1)
    tc_out_row(list, STAGE SOURCE, k + 1, width, tc_data_source_name(d, i), share, (long long)samples, (long long)tokens, text,
               passes);
  else tc_out_row(list, SOURCE, width, tc_data_source_name(d, i), share, (long long)samples, (long long)tokens, text, passes);
}

static void print_sources(const struct recipe *r, json_t *list)
{
  int width = (int)strlen("source");
  for (int k = 0; k < r->n; k++)
    for (int i = 0; i < tc_data_sources(r->data[k].d); i++)
      width = TC_MAX(width, TC_MIN((int)strlen(tc_data_source_name(r->data[k].d, i)), 60));
  if (!list && r->n > 1) tc_out_head(STAGE SOURCE, width);
  else if (!list) tc_out_head(SOURCE, width);
  for (int k = 0; k < r->n; k++)
    for (int i = 0; i < tc_data_sources(r->data[k].d); i++) print_source(r, k, i, width, list);
}

static void print_all(const struct recipe *r, int64_t every, bool json)
{
  const long long steps = (long long)r->end, tokens = tc_stages_tokens(r->stage, r->n, r->end);
  long long sequences = 0;
  json_t *rows = json ? json_array() : NULL, *sources = json ? json_array() : NULL;
  char text[32];
  for (int k = 0; k < r->n; k++) sequences += samples_of(r, k);
  print_steps(r, rows, every);
  if (!json) printf("in all: %lld steps, %lld sequences, %s tokens\n", steps, sequences,
                    tc_human_count(text, sizeof text, (double)tokens));
  if (r->data) print_sources(r, sources);
  if (json)
    tc_out_json(json_pack("{s:o, s:{s:I, s:I, s:I}, s:o}", "steps", rows, "total", "steps", (json_int_t)steps, "sequences",
                          (json_int_t)sequences, "tokens", (json_int_t)tokens, "sources", sources),
                JSON_INDENT(1) | JSON_REAL_PRECISION(12));
}

/* The data of stage k: those of an earlier stage that has the same files and context. */
static int open_data(struct recipe *r, int k, struct tc_err *err)
{
  const struct tc_stage *s = &r->stage[k];
  struct tc_model m;
  struct tc_data *d = NULL;
  TC_TRY(tc_setup_model(&s->c, &m, err));
  struct tc_data_opts o = tc_data_opts_of(&s->c, false);
  o.context = s->context, o.vocab = m.vocab;
  for (int i = 0; i < k && !d; i++) {
    struct tc_data_opts other = tc_data_opts_of(&r->stage[i].c, false);
    other.context = r->stage[i].context;
    if (tc_data_same_opts(&o, &other)) d = (struct tc_data *)r->data[i].d;
  }
  if (!d) TC_TRY(tc_data_open(&d, &o, err));
  r->data[k] = (struct tc_data_stage){ .d = d, .origin = tc_calloc((size_t)tc_data_sources(d), sizeof(struct tc_origin)) };
  return 0;
}

static void find_origins(struct recipe *r)
{
  int64_t *samples = tc_calloc((size_t)r->n, sizeof *samples);
  for (int k = 0; k < r->n; k++) {
    tc_data_origins(r->data, samples, k);
    samples[k] = samples_of(r, k);
  }
  free(samples);
}

static void close_data(struct recipe *r)
{
  for (int k = r->n - 1; r->data && k >= 0; k--) {
    bool own = true;
    for (int i = 0; i < k; i++) own &= r->data[i].d != r->data[k].d;
    if (own) tc_data_free((struct tc_data *)r->data[k].d);
    free(r->data[k].origin);
  }
  free(r->data);
}

/* What the run itself checks before its first step. */
static int check(const struct recipe *r, const struct tc_config *c, struct tc_err *err)
{
  struct tc_stop_if unused;
  for (int k = 0; k < r->n; k++) TC_TRY(tc_rate_check(&r->stage[k].c, err));
  return tc_stop_if_read(&unused, c, err);
}

int tc_show_steps(struct tc_config *c, int64_t every, bool json, struct tc_err *err)
{
  struct tc_stage *stages;
  const int n = c->n_stages + 1;
  TC_TRY(tc_setup_stages(&stages, c, err));
  struct recipe r = { .stage = stages, .n = n, .data = c->data_train.n ? tc_calloc((size_t)n, sizeof *r.data) : NULL };
  int rc = !r.data && c->data_epochs > 0 ? tc_fail(err, TC_EUSER, "data.epochs needs data.train: of which files?") : 0;
  for (int k = 0; k < n && r.data && !rc; k++) rc = open_data(&r, k, err);
  if (!rc && r.data) rc = tc_run_steps(&c->train_steps, c, r.data[0].d, err);
  for (int k = 0; k < n; k++) stages[k].c.train_steps = c->train_steps;
  r.end = tc_last_step(c);
  if (!rc && r.data) find_origins(&r);
  if (!rc) rc = check(&r, c, err);
  if (!rc) print_all(&r, every, json);
  close_data(&r);
  free(stages);
  return rc;
}
