/* batches.c - the batches of a rank, and data that fail or change under a run.
 *
 * - A batch is read during the step before, by threads of its own (src/data/prefetch.h). If that failed, the rank
 *   learns it in the middle of the step that uses the batch, when the other ranks already
 *   wait for this one's transfers, so it continues with tokens 0; the control reduction at the end
 *   of the step tells all ranks, and the run ends.
 * - Whether files are as they were at the start is asked before a state is saved (save_state.c). */
#include "src/base/hash.h"
#include "src/data/prefetch.h"
#include "src/train/parts.h"
#include "src/watch/watch.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* train.steps is what data.epochs says, if it does. */
static int set_steps(struct tc_train *t, struct tc_err *err)
{
  const double epochs = t->run.cfg->data_epochs;
  TC_TRY(tc_run_steps(&t->own.train_steps, t->run.cfg, t->batches.train, err));
  if (epochs > 0 && t->run.rank == 0) tc_log("data.epochs = %g: train.steps = %lld", epochs, (long long)t->own.train_steps);
  return 0;
}

/* How many files of data.train, and as many of data.val, this rank may keep open: together a quarter of the
 * process's. */
static int most_files(const struct tc_train *t)
{
  enum { LEAST = 4, MOST = 256 };
  const int64_t ranks = t->run.hub ? t->run.mesh->world : 1;         /* of this process */
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return LEAST;
  return (int)TC_MAX(TC_MIN((int64_t)TC_MIN(limit.rlim_cur, 1 << 20) / 8 / ranks, MOST), LEAST);
}

/* Makes stage k's data set of training or validation, unless an earlier stage has the same files with the same context. */
static int open_set(struct tc_train *t, int k, bool val, const struct tc_config *c, struct tc_err *err)
{
  const struct tc_model *m = &t->run.opts.model;
  const bool split = c->data_val.n == 0;
  const struct tc_list *words = val && !split ? &c->data_val : &c->data_train;
  const struct tc_data_opts o = { .word = words->item, .n = words->n, .format = c->data_format,
                                  .part = !split ? 0 : val ? 2 : 1, .context = t->run.stages[k].context, .vocab = m->vocab,
                                  .files = TC_MAX(most_files(t) / t->run.n_stages, 2),
                                  .pack = c->data_documents == TC_DOCUMENTS_PACK, .cut = c->data_long == TC_LONG_CUT };
  struct tc_data **out = val ? &t->batches.stage[k].val : &t->batches.stage[k].train;
  for (int i = 0; i < k && !*out; i++) {
    const struct tc_list *other = val && !split ? &c->data_val : &t->run.stages[i].c.data_train;
    const struct tc_config *of = &t->run.stages[i].c;
    const bool packed = of->data_documents == TC_DOCUMENTS_PACK, cut = of->data_long == TC_LONG_CUT;
    if (t->run.stages[i].context == o.context && other->item == words->item && packed == o.pack && (!packed || cut == o.cut))
      *out = val ? t->batches.stage[i].val : t->batches.stage[i].train;
  }
  return *out ? 0 : tc_run_data(&t->run, out, &o, err);
}

int tc_train_order_check(const struct tc_train *t, struct tc_err *err)
{
  bool packed = false;
  for (int k = 0; k < t->run.n_stages; k++) packed |= tc_data_packed(t->batches.stage[k].train);
  if (!packed || t->run.cfg->data_order != TC_ORDER_DRAWS) return 0;
  return tc_fail(err, TC_EUSER, "data.documents = pack takes whole samples, and data.order = draws, which data.order = auto takes "
                 "over from a checkpoint, begins at any token: data.order = permutation would fit");
}

/* The tokenizers and ends of documents of stage k. */
static int check_tokens(struct tc_train *t, int k, const struct tc_config *c, struct tc_err *err)
{
  struct tc_stage_data *s = &t->batches.stage[k];
  TC_TRY(tc_data_same_tokenizer(t->batches.stage[0].train, s->train, err));
  TC_TRY(tc_data_same_tokenizer(s->train, s->val, err));
  if (c->data_documents != TC_DOCUMENTS_MASK) return 0;
  TC_TRY(tc_documents_end(&s->end_token, c->data_end_token, s->train, err));
  return c->data_val.n ? tc_documents_same(s->end_token, c->data_end_token, s->val, err) : 0;
}

static int open_stage(struct tc_train *t, int k, struct tc_err *err)
{
  struct tc_stage_data *s = &t->batches.stage[k];
  const struct tc_config *c = &t->run.stages[k].c;
  TC_TRY(open_set(t, k, false, c, err));
  TC_TRY(open_set(t, k, true, c, err));
  TC_TRY(check_tokens(t, k, c, err));
  const bool other = k == 0 || tc_stage_has(t->run.cfg, k + 1, "data.train");
  if (t->run.rank == 0 && other) {
    tc_data_warn(s->train, c->data_val.n ? s->val : NULL);
    tc_data_say_packed(s->train, "training");
    tc_data_say_packed(s->val, "validation");
  }
  s->order = (struct tc_data_stage){ .d = s->train, .before = t->run.stages[k].first - 1,
                                     .origin = tc_calloc((size_t)tc_data_sources(s->train), sizeof *s->order.origin) };
  return 0;
}

/* Where each stage takes up the sources. */
static void find_origins(struct tc_train *t)
{
  const int n = t->run.n_stages;
  struct tc_data_stage *s = tc_calloc((size_t)n, sizeof *s);
  int64_t *samples = tc_calloc((size_t)n, sizeof *samples);
  for (int k = 0; k < n; k++) {
    s[k] = t->batches.stage[k].order;
    tc_data_origins(s, samples, k);
    t->batches.stage[k].order = s[k];
    if (k + 1 < n) samples[k] = (t->run.stages[k + 1].first - t->run.stages[k].first) * t->run.stages[k].c.train_global_batch;
  }
  TC_FREE(s, samples);
}

int tc_train_data_open(struct tc_train *t, struct tc_err *err)
{
  const struct tc_config *c = t->run.cfg;
  bool masks = false, packs = false;
  tc_at_phase("opening the data");
  if (!c->data_train.n)
    return tc_fail(err, TC_EUSER, "data.train is empty: name the training files");
  t->batches.stage = tc_calloc((size_t)t->run.n_stages, sizeof *t->batches.stage);
  for (int k = 0; k < t->run.n_stages; k++) {
    struct tc_err why = { 0 };
    const int rc = open_stage(t, k, &why);
    if (rc < 0) return k ? tc_fail(err, rc, "stage %d: %s", k + 1, why.text) : (*err = why, rc);
    masks |= t->run.stages[k].c.data_documents == TC_DOCUMENTS_MASK;
    packs |= tc_data_packed(t->batches.stage[k].train);
  }
  if (!masks && c->data_end_token != TC_AUTO && t->run.rank == 0)
    tc_warn("data.end_token = %lld has no effect without data.documents = mask", (long long)c->data_end_token);
  if (!packs && c->data_long != TC_LONG_CUT && t->run.rank == 0)
    tc_warn("data.long = leave_out has no effect without data.documents = pack");
  TC_TRY(tc_train_order_check(t, err));
  find_origins(t);
  tc_train_data_stage(t, 0);
  t->batches.val_loss = tc_calloc((size_t)tc_data_sources(t->batches.val), sizeof *t->batches.val_loss);
  TC_TRY(set_steps(t, err));
  TC_TRY(tc_rate_check(t->run.cfg, err));
  t->rate = tc_rate_of(t->run.cfg);
  return 0;
}

static void drop_prefetched(struct tc_batches *b)
{
  tc_prefetch_free(b->train_prefetch);
  tc_prefetch_free(b->val_prefetch);
  b->train_prefetch = b->val_prefetch = NULL;
}

void tc_train_data_stage(struct tc_train *t, int k)
{
  struct tc_batches *b = &t->batches;
  drop_prefetched(b);
  b->train = b->stage[k].train;
  b->val = b->stage[k].val;
  b->end_token = b->stage[k].end_token;
}

/* Whether stage k is the first with this data set, which is to be asked or freed once. */
static bool is_first(const struct tc_batches *b, int k, const struct tc_data *d)
{
  for (int i = 0; i < k; i++)
    if (b->stage[i].train == d || b->stage[i].val == d) return false;
  return d != NULL;
}

void tc_train_data_close(struct tc_train *t)
{
  struct tc_batches *b = &t->batches;
  drop_prefetched(b);
  for (int k = 0; k < t->run.n_stages && b->stage; k++) {
    struct tc_data *both[] = { b->stage[k].train, b->stage[k].val };
    for (int i = 0; i < 2; i++)
      if (is_first(b, k, both[i])) tc_data_free(both[i]);
    TC_FREE(b->stage[k].order.origin, b->stage[k].val_counted);
  }
  TC_FREE(b->stage, b->val_loss);
  json_decref(b->hashes);
  b->stage = NULL;
  b->train = b->val = NULL;
  b->val_loss = NULL;
  b->hashes = NULL;
}

int tc_train_data_same(struct tc_train *t, struct tc_err *err)
{
  struct tc_batches *b = &t->batches;
  struct tc_data_identity unused;
  for (int k = 0; k < t->run.n_stages; k++) {
    struct tc_stage_data *s = &b->stage[k];
    int same = 0;
    while (b->stage[same].train != s->train) same++;
    s->id = b->stage[same].id;
    if (same == k) TC_TRY(tc_run_data_same(&t->run, s->train, "training", &s->id, err));
    if (is_first(b, k, s->val)) TC_TRY(tc_run_data_same(&t->run, s->val, "validation", &unused, err));
    s->begin = TC_HASH64;
    for (int i = 0; i < tc_data_sources(s->train); i++) s->begin = tc_hash64_add(s->begin, (uint64_t)s->order.origin[i].number);
  }
  return 0;
}

/* ---- batches --------------------------------------------------------------------------- */

void tc_train_data_from(struct tc_train *t, int64_t eval_batch)
{
  t->batches.eval_batch = eval_batch;
}

static int64_t eval_windows(const struct tc_train *t, const struct tc_data *val, int source)
{
  const int64_t windows = tc_data_windows(val, source), most = t->run.cfg->train_eval_batches;
  return most > 0 ? TC_MIN(windows, most * t->run.stages[0].c.train_global_batch) : windows;
}

int64_t tc_train_eval_windows(const struct tc_train *t, int source) { return eval_windows(t, t->batches.val, source); }

int64_t tc_train_eval_batches(const struct tc_train *t, int source)
{ return tc_ceil_div(tc_train_eval_windows(t, source), t->run.opts.gpt.batch); }

static int64_t all_eval_batches(const struct tc_train *t)
{
  int64_t n = 0;
  for (int s = 0; s < tc_data_sources(t->batches.val); s++) n += tc_train_eval_batches(t, s);
  return n;
}

static struct tc_samples samples(const struct tc_train *t)
{
  return (struct tc_samples){ t->run.cfg->data_order, (uint64_t)t->run.cfg->train_seed_data, t->run.opts.gpt.batch };
}

/* Sequence b of a step's batch; a tc_prefetch_fn, as is the next. */
static int read_train(void *ctx, struct tc_reader *r, int64_t step, int64_t b, const struct tc_batch *to,
                      struct tc_err *err)
{
  const struct tc_train *t = ctx;
  const struct tc_samples s = samples(t);
  return tc_data_train_stage(&t->batches.stage[t->run.at].order, r, &s, step, b, to, err);
}

/* Sequence b of a batch of the validation data, whose batches are numbered through its sources. */
static int read_val(void *ctx, struct tc_reader *r, int64_t batch, int64_t b, const struct tc_batch *to,
                    struct tc_err *err)
{
  const struct tc_train *t = ctx;
  const size_t bytes = (size_t)t->run.opts.model.context * sizeof *to->tokens;
  int source = 0;
  while (batch >= tc_train_eval_batches(t, source)) batch -= tc_train_eval_batches(t, source++);
  const int64_t w = batch * t->run.opts.gpt.batch + b;
  if (w < tc_train_eval_windows(t, source))
    return tc_data_window(t->batches.val, r, source, w, to, err);
  memset(to->tokens, 0, bytes);                  /* windows beyond the last count for nothing */
  memset(to->targets, -1, bytes);
  if (to->starts) memset(to->starts, 0, bytes);
  return 0;
}

int64_t tc_train_counted(struct tc_train *t, int64_t step)
{
  struct tc_batches *b = &t->batches;
  const struct tc_samples s = samples(t);
  const int64_t all = t->run.opts.gpt.batch * t->run.opts.model.context;
  int64_t n = all;
  if (!b->train || !tc_data_weighted(b->train) || b->err.status < 0) return all;
  const struct tc_data_stage *stage = &b->stage[t->run.at].order;
  if (tc_data_counted(stage, NULL, &s, step + t->rollback.skipped, &n, &b->err) < 0) return all;
  if (n == 0) tc_data_fail_silent(stage, &s, step + t->rollback.skipped, &b->err);
  return TC_MAX(n, 1);
}

double tc_train_val_counted(const struct tc_train *t, int source)
{
  return (double)t->batches.stage[t->run.at].val_counted[source] / (double)t->run.opts.model.context;
}

struct counting { const struct tc_train *t; struct tc_stage_data *s; };

/* A tc_work_fn: counts the targets of a stage's validation that count. */
static int count_val(void *ctx, const struct tc_between *between, struct tc_err *err)
{
  const struct counting *x = ctx;
  for (int source = 0; source < tc_data_sources(x->s->val); source++) {
    const int64_t windows = eval_windows(x->t, x->s->val, source);
    for (int64_t i = 0; i < windows; i++) {
      TC_TRY(tc_data_window_counted(x->s->val, NULL, source, i, &x->s->val_counted[source], err));
      TC_TRY(between->call(between->ctx, err));
    }
  }
  return TC_OK;
}

/* A stage of which no validation is asked for is not the last one, after whose last step there is always one. */
static int check_val(const struct tc_train *t, int k, struct tc_err *err)
{
  const struct tc_stage_data *s = &t->batches.stage[k];
  const bool validates = t->run.cfg->train_eval_every != 0 || k + 1 == t->run.n_stages;
  for (int source = 0; source < tc_data_sources(s->val) && validates; source++)
    if (!s->val_counted[source]) return tc_data_fail_silent_windows(s->val, source, eval_windows(t, s->val, source), err);
  return TC_OK;
}

int tc_train_val_count(struct tc_train *t, struct tc_err *err)
{
  struct tc_batches *b = &t->batches;
  tc_at_phase("counting the validation data");
  for (int k = 0; k < t->run.n_stages; k++) {
    struct tc_stage_data *s = &b->stage[k];
    const int n = tc_data_sources(s->val);
    s->val_counted = tc_calloc((size_t)n, sizeof *s->val_counted);
    const bool weighted = tc_data_weighted(s->val);
    for (int i = 0; i < n && !weighted; i++) s->val_counted[i] = eval_windows(t, s->val, i) * t->run.stages[k].context;
    if (!weighted) continue;
    const int rc = tc_run_work(&t->run, t->run.rank == 0, count_val, &(struct counting){ t, s }, err);
    if (rc == TC_EPEER) return rc;
    TC_TRY(tc_run_agree(&t->run, rc, err));
    TC_TRY(tc_comm_max_i64(t->run.world, s->val_counted, n, err));       /* other ranks have 0 */
    TC_TRY(check_val(t, k, err));
  }
  return TC_OK;
}

/* FNV-1a of each sequence of a training batch, for the step's line. */
static void add_hashes(struct tc_train *t, int64_t b0, int64_t n, const struct tc_batch *of)
{
  const size_t T = (size_t)t->run.opts.model.context;
  if (!t->batches.hashes) t->batches.hashes = json_object();
  for (int64_t i = 0; i < n; i++) {
    uint64_t h = TC_HASH64;
    char key[24], text[20];
    for (size_t k = 0; k < 2 * T; k++) {
      const int32_t *x = k < T ? of->tokens : of->targets;
      h = tc_hash64_add(h, (uint32_t)x[(size_t)i * T + k % T]);
    }
    snprintf(key, sizeof key, "%" PRId64, b0 + i);
    snprintf(text, sizeof text, "%016" PRIx64, h);
    json_object_set_new(t->batches.hashes, key, json_string(text));
  }
}

/* Sequences [b0, b0 + n) of the batch of this step, or of the validation. */
static int take(struct tc_train *t, const struct tc_runtime *rt, int64_t b0, int64_t n, const struct tc_batch *to,
                struct tc_err *err)
{
  struct tc_batches *b = &t->batches;
  if (b->eval_batch >= 0) {
    const int64_t at = b->eval_batch, next = at + 1 < all_eval_batches(t) ? at + 1 : -1;
    if (!b->val_prefetch) TC_TRY(tc_prefetch_new(&b->val_prefetch, b->val, read_val, t, err));
    return tc_prefetch_take(b->val_prefetch, at, next, b0, n, to, err);
  }
  const int64_t step = rt->step + t->rollback.skipped, t0 = tc_now_ns();
  if (!b->train_prefetch) TC_TRY(tc_prefetch_new(&b->train_prefetch, b->train, read_train, t, err));
  const bool last = t->run.at + 1 < t->run.n_stages && rt->step + 1 == t->run.stages[t->run.at + 1].first;
  TC_TRY(tc_prefetch_take(b->train_prefetch, step, last ? -1 : step + 1, b0, n, to, err));
  b->waited_ns += tc_now_ns() - t0;
  if (t->run.cfg->data_hashes) add_hashes(t, b0, n, to);
  return 0;
}

/* Rows may begin and end inside a sequence: mesh.cp and an annotation file can split tokens over any axis. starts: NULL, or
 * what tc_documents_starts says. */
static int read_rows(struct tc_train *t, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                     const struct tc_batch *to, int32_t *starts, struct tc_err *err)
{
  const bool packed = tc_data_packed(t->batches.eval_batch >= 0 ? t->batches.val : t->batches.train);
  const struct tc_row_order *order = &t->run.prog[TC_TRAIN]->graph->rows;
  const int64_t T = order->T, each = order->cp > 1 ? order->sequences : 1, block = each * T;      /* sequences that are mixed */
  const int64_t b0 = row0 / block * each, n = tc_ceil_div(row0 + rows, block) * each - b0;
  const int32_t end = t->batches.end_token;
  if (rows == n * T && order->cp <= 1) {
    TC_TRY(take(t, rt, b0, n, &(struct tc_batch){ to->tokens, to->targets, packed ? starts : NULL }, err));
    if (starts && !packed) tc_documents_starts(to->tokens, rows, T, end, starts);
    return 0;
  }
  int32_t *whole = tc_malloc((size_t)(3 * n * T) * sizeof *whole);
  int32_t *const part[3] = { to->tokens, to->targets, starts };
  int rc = take(t, rt, b0, n, &(struct tc_batch){ whole, whole + n * T, packed ? whole + 2 * n * T : NULL }, err);
  if (rc == 0 && starts && !packed) tc_documents_starts(whole, n * T, T, end, whole + 2 * n * T);
  for (int k = 0; k < 3 && rc == 0; k++)
    for (int64_t i = 0; i < rows && part[k]; i++)
      part[k][i] = whole[k * n * T + tc_natural_row(order, row0 + i) - b0 * T];
  free(whole);
  return rc;
}

void tc_train_fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                   int32_t *tokens, int32_t *targets, int32_t *starts)
{
  struct tc_train *t = ctx;
  const struct tc_batch to = { tokens, targets, NULL };
  if (t->tasks.asking) {
    tc_forward_fill(t->tasks.forward, rt, row0, rows, tokens, targets, starts);
    return;
  }
  tc_at("reading a batch", NULL, NULL, rt->mb);
  if (t->batches.err.status == 0 && read_rows(t, rt, row0, rows, &to, starts, &t->batches.err) == 0)
    return;
  memset(tokens, 0, (size_t)rows * sizeof *tokens);
  memset(targets, 0, (size_t)rows * sizeof *targets);
  if (starts) memset(starts, 0, (size_t)rows * sizeof *starts);
}

/* ---- what metrics.jsonl says of the data --------------------------------------------------- */

/* The samples of the present stage up to a step. */
static int64_t samples_to(const struct tc_train *t, int64_t step)
{
  return (step + t->rollback.skipped - t->batches.stage[t->run.at].order.before) * t->run.opts.gpt.batch;
}

double tc_train_share(const struct tc_train *t, int64_t step, int source)
{
  const int64_t samples = samples_to(t, step);
  return (double)tc_data_stage_taken(&t->batches.stage[t->run.at].order, source, samples) / (double)samples;
}

double tc_train_epoch(const struct tc_train *t, int64_t step, int source)
{
  const struct tc_data_stage *s = &t->batches.stage[t->run.at].order;
  const int64_t taken = tc_data_taken(s->d, source, s->samples + samples_to(t, step));
  return (double)(s->origin[source].taken + taken) / (double)tc_data_windows(s->d, source);
}

bool tc_train_border(const struct tc_train *t, int64_t word, int64_t step)
{
  const int next = t->run.at + 1;
  bool passed = false;
  if (word == TC_STAGE) return next < t->run.n_stages && step + 1 == t->run.stages[next].first;
  if (word != TC_EPOCH) return false;
  for (int s = 0; s < tc_data_sources(t->batches.train); s++)
    passed |= floor(tc_train_epoch(t, step, s)) > floor(tc_train_epoch(t, step - 1, s));
  return passed;
}

void tc_train_data_reported(struct tc_train *t)
{
  json_decref(t->batches.hashes);
  t->batches.hashes = NULL;
  t->batches.waited_ns = 0;
}

/* ---- data that fail or change ---------------------------------------------------------------- */

int tc_batches_check(const struct tc_train *t, struct tc_err *err)
{
  const bool warn = t->run.rank == 0;
  if (t->batches.err.status < 0) return tc_fail(err, TC_EUSER, "%s", t->batches.err.text);
  tc_at_phase("looking whether the data changed");
  for (int k = 0; k < t->run.n_stages; k++) {
    const struct tc_stage_data *s = &t->batches.stage[k];
    if (is_first(&t->batches, k, s->train)) TC_TRY(tc_data_check(s->train, warn, err));
    if (is_first(&t->batches, k, s->val)) TC_TRY(tc_data_check(s->val, warn && t->run.cfg->data_val.n, err));
  }
  return 0;
}
