/* start.c - what a start is made of: the data, where the weights come from, the rate of the first step, and a
 * precision that is not the device's own. A line each on standard error, and the object "start" of run.json.
 *
 * Each fact is found once, and said in both forms. */
#include "src/train/parts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PASSES = 4,            /* over the data: more than these are pointed out */
       MOST_NAMED = 4 };           /* sources in the line; run.json has all */

/* ---- data ------------------------------------------------------------------------------ */

struct source { const char *name; char format[60]; int files; double share, passes; int64_t tokens; };

/* The formats of the files, in the order of options.def: "text, bin". */
static void name_formats(const struct tc_data *d, int source, char *text, size_t size)
{
  bool has[TC_FORMAT_UINT32 + 1] = { false };
  for (int i = 0; i < tc_data_files(d, source); i++) has[tc_data_file(d, source, i)->format] = true;
  *text = '\0';
  for (enum tc_data_format f = TC_FORMAT_TEXT; f <= TC_FORMAT_UINT32; f++)
    if (has[f]) tc_text_add(text, size, "%s%s", *text ? ", " : "", tc_word_data_format(f));
}

/* The index of the nth source (from 0) with this name; -1 if there is none. */
static int find_source(const struct tc_data *d, const char *name, int nth)
{
  for (int i = 0; i < tc_data_sources(d); i++)
    if (!strcmp(tc_data_source_name(d, i), name) && nth-- == 0) return i;
  return -1;
}

/* How often the steps of all stages read a source of the present one. */
static double passes_of(const struct tc_train *t, const struct tc_data *d, int source)
{
  const char *name = tc_data_source_name(d, source);
  double passes = 0;
  int nth = 0;
  for (int i = 0; i < source; i++) nth += !strcmp(tc_data_source_name(d, i), name);
  for (int k = 0; k < t->run.n_stages; k++) {
    const struct tc_stage *s = &t->run.stages[k];
    const struct tc_data *of = t->batches.stage[k].train;
    const int64_t end = k + 1 < t->run.n_stages ? s[1].first - 1 : t->run.cfg->train_steps;
    const int i = find_source(of, name, nth);
    if (i < 0) continue;
    const int64_t taken = tc_data_stage_taken(&t->batches.stage[k].order, i, (end - s->first + 1) * s->c.train_global_batch);
    passes += (double)taken / (double)tc_data_windows(of, i);
  }
  return passes;
}

static struct source source_of(const struct tc_train *t, const struct tc_data *d, int source)
{
  struct source s = { .name = tc_data_source_name(d, source), .files = tc_data_files(d, source),
                      .share = tc_data_source_share(d, source), .tokens = tc_data_source_tokens(d, source),
                      .passes = passes_of(t, d, source) };
  name_formats(d, source, s.format, sizeof s.format);
  return s;
}

static void say_source(const struct source *s, bool blend, char *text, size_t size)
{
  char tokens[32];
  if (blend) tc_text_add(text, size, "%.3g %% ", 100 * s->share);
  tc_text_add(text, size, "%.200s (%s, ", s->name, s->format);
  if (s->files > 1) tc_text_add(text, size, "%d files, ", s->files);
  const int digits = s->passes < 1 ? 3 : s->passes < 10;
  tc_text_add(text, size, "%s tokens, read %.*f times)", tc_human_count(tokens, sizeof tokens, (double)s->tokens), digits,
              s->passes);
}

static void say_data(const struct tc_train *t)
{
  const struct tc_data *d = t->batches.train;
  const struct tc_list *val = &t->run.cfg->data_val;
  const int n = tc_data_sources(d);
  char text[1600] = "", tokens[32];
  double most = 0;
  for (int i = 0; i < n; i++) {
    const struct source s = source_of(t, d, i);
    most = TC_MAX(most, s.passes);
    if (i >= MOST_NAMED) continue;
    if (i) tc_text_add(text, sizeof text, ", ");
    say_source(&s, n > 1, text, sizeof text);
  }
  if (n > MOST_NAMED) tc_text_add(text, sizeof text, " and %d other sources", n - MOST_NAMED);
  tc_human_count(tokens, sizeof tokens, (double)tc_data_tokens(t->batches.val));
  if (val->n == 0)
    tc_text_add(text, sizeof text, "; validation: %s tokens held out, the last 5 %%%s", tokens,
                n > 1 ? " of each source" : "");
  else tc_text_add(text, sizeof text, "; validation: %s tokens of %.200s%s", tokens, val->item[0], val->n > 1 ? " ..." : "");
  if (most > MOST_PASSES)
    tc_text_add(text, sizeof text, "; more than %d times is much: the model comes to repeat its text, which more text or "
                "fewer train.steps would avoid", MOST_PASSES);
  tc_log("data: %s", text);
}

static json_t *data_json(const struct tc_train *t)
{
  const struct tc_data *d = t->batches.train;
  json_t *sources = json_array();
  for (int i = 0; i < tc_data_sources(d); i++) {
    const struct source s = source_of(t, d, i);
    json_t *o = json_pack("{s:o, s:s, s:i, s:I}", "name", tc_text_json(s.name), "format", s.format, "files", s.files,
                          "tokens", (json_int_t)s.tokens);
    tc_figure(o, "share", s.share);
    tc_figure(o, "passes", s.passes);
    json_array_append_new(sources, o);
  }
  return json_pack("{s:o, s:I, s:I, s:b}", "sources", sources, "tokens", (json_int_t)tc_data_tokens(d),
                   "validation_tokens", (json_int_t)tc_data_tokens(t->batches.val), "held_out",
                   t->run.cfg->data_val.n == 0);
}

/* ---- weights --------------------------------------------------------------------------- */

/* The weights beside model.config that a run with random ones does not read; owned; NULL: there are none. */
static char *not_read(const struct tc_train *t)
{
  const char *config = t->run.cfg->model_config;
  return t->ckpt.loaded || !*config ? NULL : tc_foreign_weights(config);
}

static void say_weights(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  char *path = not_read(t), *word = path ? tc_shell_word(c->model_config) : NULL;
  char from[200] = "";
  const int64_t step = t->ckpt.start_step + 1;
  if (t->ckpt.borrowed && t->ckpt.weights_alone)
    tc_text_add(from, sizeof from, ", as ckpt.from says, its weights alone (ckpt.from_state = weights): optimizer, schedule and order of "
                "samples begin anew");
  else if (t->ckpt.borrowed)
    tc_text_add(from, sizeof from, ", as ckpt.from says, with all of its state (ckpt.from_state = all)");
  if (t->ckpt.borrowed && step <= tc_last_step(c))
    tc_text_add(from, sizeof from, "; the rate of step %lld is %.3g", (long long)step, tc_rate_at(&t->rate, step));
  if (t->ckpt.loaded)
    tc_log("weights: checkpoint of step %lld, %s%s", (long long)t->ckpt.loaded_step, t->ckpt.loaded, from);
  else if (path)
    tc_log("weights: random, seed %lld; %s is not read: tercio ckpt import %s -o FOLDER, then --ckpt.from=FOLDER, would "
           "start from it", (long long)c->train_seed_weights, path, word);
  else tc_log("weights: random, seed %lld", (long long)c->train_seed_weights);
  TC_FREE(word, path);
}

static void say_adapters(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  struct tc_parameter_sums sum;
  struct tc_err why;
  char trained[32], all[32];
  if (!c->train_lora || tc_setup_parameter_sums(&sum, c, &why) < 0) return;
  tc_log("adapters: rank %lld, scale %.4g; %s of %s parameters train%s%s", (long long)c->train_lora,
         (double)t->run.opts.gpt.lora.factor, tc_human_count(trained, sizeof trained, sum.trained),
         tc_human_count(all, sizeof all, sum.all), t->ckpt.borrowed && *c->ckpt_adapter ? ", which begin as those of " : "",
         t->ckpt.borrowed && *c->ckpt_adapter ? c->ckpt_adapter : "");
}

static json_t *weights_json(const struct tc_train *t)
{
  char *path = not_read(t);
  json_t *o = t->ckpt.loaded
    ? json_pack("{s:s, s:I, s:s, s:s, s:b, s:s}", "from", "checkpoint", "step", (json_int_t)t->ckpt.loaded_step, "path",
                t->ckpt.loaded, "option", t->ckpt.borrowed ? "ckpt.from" : "ckpt.resume", "imported", t->ckpt.imported,
                "state", t->ckpt.weights_alone ? "weights" : "all")
    : json_pack("{s:s, s:I, s:s?}", "from", "random", "seed", (json_int_t)t->run.cfg->train_seed_weights, "not_read", path);
  free(path);
  return o;
}

/* ---- rate ------------------------------------------------------------------------------ */

/* "end": there is no such step. */
static const char *phase_of(const struct tc_train *t, int64_t step)
{ return step > tc_last_step(t->run.cfg) || tc_stop_if_met(&t->stop_if) ? "end" : tc_rate_phase(&t->rate, step); }

/* What comes after the warm-up: "cosine down to 0 in step 100", "constant", "wsd, from step 80 on linear down to 0 in step 100". */
static void say_schedule(const struct tc_rate *r, char *text, size_t size)
{
  const bool down = r->cooldown > 0 || tc_rate_at(r, r->steps) < r->lr;
  tc_text_add(text, size, "%s", tc_word_train_schedule(r->schedule));
  if (r->cooldown > 0) tc_text_add(text, size, ", from step %lld on %s", (long long)(r->steps - r->cooldown + 1),
                        tc_word_train_cooldown_shape(r->cooldown_shape));
  if (down)
    tc_text_add(text, size, " down to %.3g in step %lld", tc_rate_at(r, r->steps), (long long)r->steps);
}

static void say_rate(const struct tc_train *t)
{
  const struct tc_rate *r = &t->rate;
  const int64_t step = t->ckpt.start_step + 1;
  char text[300] = "", then[160] = "";
  if (strcmp(phase_of(t, step), "end") == 0) {
    tc_log("rate: none, as no step is left");
    return;
  }
  say_schedule(r, then, sizeof then);
  tc_text_add(text, sizeof text, "%.3g in step %lld, the first%s", tc_rate_at(r, step), (long long)step,
              step > 1 ? " after the checkpoint" : "");
  if (step < r->warmup)
    tc_text_add(text, sizeof text, ": the warm-up reaches train.lr = %g in step %lld", r->lr, (long long)r->warmup);
  else tc_text_add(text, sizeof text, ": train.lr = %g", r->lr);
  if (r->warmup < r->steps) tc_text_add(text, sizeof text, ", %s%s", step < r->warmup ? "then " : "", then);
  tc_log("rate: %s", text);
}

static json_t *rate_json(const struct tc_train *t)
{
  const struct tc_rate *r = &t->rate;
  const int64_t step = t->ckpt.start_step + 1;
  const char *phase = phase_of(t, step);
  json_t *o = json_pack("{s:I, s:n, s:s, s:n, s:n, s:I, s:I, s:I, s:s}", "step", (json_int_t)step, "lr", "phase", phase,
                        "peak", "min_lr", "warmup", (json_int_t)r->warmup, "cooldown", (json_int_t)r->cooldown,
                        "steps", (json_int_t)r->steps, "schedule", tc_word_train_schedule(r->schedule));
  if (strcmp(phase, "end")) tc_figure(o, "lr", tc_rate_at(r, step));
  tc_figure(o, "peak", r->lr);
  tc_figure(o, "min_lr", r->min_lr);
  return o;
}

/* ---- precision ------------------------------------------------------------------------- */

/* Whether a GPU, whose matrix units are made for bf16, computes in fp32. */
static bool is_slow(const struct tc_train *t)
{ return t->run.device->ops->separate && t->run.opts.gpt.dtype == TC_F32; }

static void say_precision(const struct tc_train *t)
{
  if (!is_slow(t)) return;
  tc_log("precision: fp32, as train.precision says%s; the GPU is made for bf16, which is many times faster and takes less "
         "memory", t->run.cfg->train_tf32 ? ", its products in TF32" : "");
}

/* ---- communication --------------------------------------------------------------------- */

const char *tc_train_comm_name(const struct tc_train *t)
{
  for (int s = 0; s < TC_SETS; s++)
    if (t->run.native[s]) return "nccl";
  return t->run.hub ? "thread" : t->run.mpi ? "mpi" : "self";
}

/* ---- the start ------------------------------------------------------------------------- */

void tc_start_say(const struct tc_train *t)
{
  if (t->run.rank) return;
  say_data(t);
  say_weights(t);
  say_adapters(t);
  say_rate(t);
  say_precision(t);
}

json_t *tc_start_json(const struct tc_train *t)
{
  return json_pack("{s:o, s:o, s:o, s:{s:s, s:b}}", "data", data_json(t), "weights", weights_json(t), "rate", rate_json(t),
                   "precision", "type", tc_word_train_precision(t->run.cfg->train_precision), "slow_on_device", is_slow(t));
}
