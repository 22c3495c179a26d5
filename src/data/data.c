/* data.c - a data set: its sources, and the samples of a step. */
#include "src/data/impl.h"
#include "src/token/token.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILES = 32 };              /* that are open at a time, if the caller does not say how many */

/* ---- opening ----------------------------------------------------------------------------------- */

struct tc_reader *tc_reader_new(const struct tc_data *d)
{
  struct tc_reader *r = tc_calloc(1, sizeof *r);
  r->files = d->files;
  r->raw = tc_malloc((size_t)(d->context + 1) * sizeof(uint32_t));
  r->sample = tc_malloc((size_t)(d->context + 1) * sizeof *r->sample);
  r->weight = tc_malloc((size_t)d->context + 1);
  return r;
}

void tc_reader_free(struct tc_reader *r)
{
  if (!r) return;
  TC_FREE(r->raw, r->sample, r->weight, r);
}

static int64_t tokens_of(const struct tc_source *s) { return s->hi - s->lo; }

static int make_blend(struct tc_data *d, struct tc_err *err)
{
  double *weight = tc_malloc((size_t)d->n * sizeof *weight);
  for (int i = 0; i < d->n; i++) weight[i] = d->source[i].weight;
  const int small = tc_blend_new(&d->blend, weight, d->n);
  free(weight);
  if (small < 0) return TC_OK;
  return tc_fail(err, TC_EUSER, "data '%g:%s' has too small a share of the blend: less than one sample in %d; give it "
                 "a larger weight, or leave it out", d->source[small].weight, d->source[small].name, TC_BLEND_PERIOD);
}

/* ---- tokenizers -------------------------------------------------------------------------------- */

const char *tc_data_tokenizer(const struct tc_data *d, uint64_t *hash)
{
  for (int i = 0; i < d->n; i++)
    for (int k = 0; k < d->source[i].n_files; k++) {
      const struct tc_data_file *f = &d->source[i].file[k];
      *hash = f->tokenizer;
      if (f->known) return f->name;
    }
  return NULL;
}

bool tc_data_is_bytes(const struct tc_data *d)
{
  for (int i = 0; i < d->n; i++)
    for (int k = 0; k < d->source[i].n_files; k++)
      if (!d->source[i].file[k].known || d->source[i].file[k].tokenizer) return false;
  return true;
}

int64_t tc_data_end_token(const struct tc_data *d)
{
  const int64_t end = d->source[0].file[0].end_token;
  for (int i = 0; i < d->n; i++)
    for (int k = 0; k < d->source[i].n_files; k++)
      if (d->source[i].file[k].end_token != end) return -1;
  return end;
}

int tc_data_of_tokenizer(const struct tc_data *d, uint64_t tokenizer, const char *model, struct tc_err *err)
{
  uint64_t is;
  const char *file = tc_data_tokenizer(d, &is);
  char have[TC_TOKENS_TEXT];
  if (!file || !tokenizer || is == tokenizer) return TC_OK;
  return tc_fail(err, TC_EUSER, "the model in %s is of tokenizer %016llx, but data file '%s' has %s: make the shards "
                 "with the model's tokenizer.json (tercio data --tokenizer)", model, (unsigned long long)tokenizer,
                 file, tc_tokens_text(have, is));
}

/* What the tokens of a file stand for, as far as it says: bytes of a text, bytes in a shard, those of a tokenizer. */
enum stands { TEXT, BYTES, KNOWN, UNKNOWN, STANDS };

static enum stands stands_for(const struct tc_data_file *f)
{
  return !f->known ? UNKNOWN : f->tokenizer ? KNOWN : f->format == TC_FORMAT_TEXT ? TEXT : BYTES;
}

static int fail_tokenizers(const struct tc_data_file *a, const struct tc_data_file *b, struct tc_err *err)
{
  const enum stands is_a = stands_for(a), is_b = stands_for(b);
  const struct tc_data_file *text = a->tokenizer ? b : a, *shard = a->tokenizer ? a : b;
  if (is_a == KNOWN && is_b == KNOWN)
    return tc_fail(err, TC_EUSER, "data file '%s' does not belong with '%s': its tokens are of tokenizer %016llx, "
                   "those of the other file of tokenizer %016llx; `tercio data` makes shards of both with the same "
                   "tokenizer.json",
                   b->name, a->name, (unsigned long long)b->tokenizer, (unsigned long long)a->tokenizer);
  if (is_a == UNKNOWN || is_b == UNKNOWN)
    return tc_fail(err, TC_EUSER, "data file '%s' does not belong with '%s': one has text, the other tokens that are not "
                   "known to be bytes", b->name, a->name);
  return tc_fail(err, TC_EUSER, "data file '%s' does not belong with '%s': its tokens are bytes, those of the shard "
                 "are of tokenizer %016llx; `tercio data` makes shards of it with the same tokenizer.json", text->name,
                 shard->name, (unsigned long long)shard->tokenizer);
}

/* Whether one number is one text in both files, as far as they say. Tokens of a program that says nothing may be of any
 * tokenizer, and bytes in a shard, since older ones don't say it; but they are no text. */
static bool may_belong(const struct tc_data_file *a, const struct tc_data_file *b)
{
  const enum stands is_a = stands_for(a), is_b = stands_for(b);
  if (is_a == UNKNOWN || is_b == UNKNOWN) return is_a != TEXT && is_b != TEXT;
  return a->tokenizer == b->tokenizer;
}

/* The files of `d` in their order, each beside the first of each kind, which are noted if `note`. */
static int compare_files(const struct tc_data *d, const struct tc_data_file *first[STANDS], bool note, bool compare,
                         struct tc_err *err)
{
  for (int i = 0; i < d->n; i++)
    for (int k = 0; k < d->source[i].n_files; k++) {
      const struct tc_data_file *f = &d->source[i].file[k];
      const enum stands is = stands_for(f);
      for (int other = 0; other < STANDS && compare; other++)
        if (first[other] && !may_belong(first[other], f)) return fail_tokenizers(first[other], f, err);
      if (note && !first[is]) first[is] = f;
    }
  return TC_OK;
}

int tc_data_same_tokenizer(const struct tc_data *d, const struct tc_data *other, struct tc_err *err)
{
  const struct tc_data_file *first[STANDS] = { 0 };
  TC_TRY(compare_files(d, first, true, d == other, err));
  return d == other ? TC_OK : compare_files(other, first, false, true, err);
}

/* ---- a data set ---------------------------------------------------------------------------------- */

static void make_reader(struct tc_data *d, int files)
{
  d->files = tc_files_new(files ? files : FILES);
  d->own = tc_reader_new(d);
}

static int fill(struct tc_data *d, const struct tc_data_opts *o, const struct tc_between *between, struct tc_err *err)
{
  const int n = tc_sources_new(&d->source, o->word, o->n, err);
  if (n < 0) return n;
  d->n = n;
  make_reader(d, o->files);
  int64_t tokens = 0;
  for (int i = 0; i < n; i++) {
    TC_TRY(tc_source_open(&d->source[i], d->own, o, between, err));
    if (__builtin_add_overflow(tokens, tokens_of(&d->source[i]), &tokens))
      return tc_fail(err, TC_EUSER, "data '%s': the sources have more tokens than can be counted", d->source[i].name);
  }
  if (!o->separate) TC_TRY(tc_data_same_tokenizer(d, d, err));
  return make_blend(d, err);
}

int tc_data_complete(struct tc_data *d, int files, struct tc_err *err)
{
  make_reader(d, files);
  return make_blend(d, err);
}

static int no_call(void *ctx, struct tc_err *err)
{
  (void)ctx, (void)err;
  return 0;
}

const struct tc_between tc_between_nothing = { no_call, NULL };

int tc_data_open(struct tc_data **out, const struct tc_data_opts *o, struct tc_err *err)
{
  return tc_data_open_between(out, o, &tc_between_nothing, err);
}

int tc_data_open_between(struct tc_data **out, const struct tc_data_opts *o, const struct tc_between *between,
                         struct tc_err *err)
{
  *out = NULL;
  TC_ASSERT(o->part >= 0 && o->part <= 2 && o->context >= 1 && o->vocab >= 1);
  if (o->n < 1)
    return tc_fail(err, TC_EUSER, "no data files; set data.train to one or more of them");
  struct tc_data *d = tc_calloc(1, sizeof *d);
  d->context = o->context;
  d->vocab = o->vocab;
  d->packed = o->pack;
  d->cut = o->pack && o->cut;
  const int status = fill(d, o, between, err);
  if (status != TC_OK) {
    tc_data_free(d);
    return status;
  }
  *out = d;
  return TC_OK;
}

void tc_data_free(struct tc_data *d)
{
  if (!d) return;
  tc_reader_free(d->own);
  tc_files_free(d->files);
  tc_sources_free(d->source, d->n);
  tc_blend_free(&d->blend);
  free(d);
}

/* ---- sizes and shares -------------------------------------------------------------------------- */

int64_t tc_data_tokens(const struct tc_data *d)
{
  int64_t tokens = 0;
  for (int i = 0; i < d->n; i++) tokens += tokens_of(&d->source[i]);
  return tokens;
}

int64_t tc_data_source_tokens(const struct tc_data *d, int source) { return tokens_of(&d->source[source]); }

int tc_data_sources(const struct tc_data *d) { return d->n; }

const char *tc_data_source_name(const struct tc_data *d, int source) { return d->source[source].name; }

const char *tc_data_first_file(const struct tc_data *d) { return d->source[0].file[0].name; }

int tc_data_files(const struct tc_data *d, int source) { return d->source[source].n_files; }

const struct tc_data_file *tc_data_file(const struct tc_data *d, int source, int i) { return &d->source[source].file[i]; }

double tc_data_source_weight(const struct tc_data *d, int source) { return d->source[source].weight; }

double tc_data_source_share(const struct tc_data *d, int source)
{
  return (double)d->blend.count[source] / d->blend.period;
}

bool tc_data_packed(const struct tc_data *d) { return d->packed; }

bool tc_data_weighted(const struct tc_data *d)
{
  bool weighted = false;
  for (int i = 0; i < d->n; i++) weighted |= d->source[i].weighted;
  return weighted;
}

const struct tc_pack_tally *tc_data_tally(const struct tc_data *d, int source) { return &d->source[source].packed.tally; }

int64_t tc_data_windows(const struct tc_data *d, int source)
{
  if (d->packed) return d->source[source].packed.n;
  return tc_order_windows(tokens_of(&d->source[source]), d->context);
}

int64_t tc_data_taken(const struct tc_data *d, int source, int64_t n)
{
  return tc_blend_taken(&d->blend, source, n);
}

int64_t tc_data_samples(const struct tc_data *d, double epochs)
{
  double least = INFINITY;
  for (int i = 0; i < d->n; i++)
    least = TC_MIN(least, (double)tc_data_windows(d, i) * epochs / tc_data_source_share(d, i));
  return (int64_t)TC_MIN(least + 1e-6, 9e18);      /* 1e-6: a product that rounding left just below a number */
}

/* ---- samples ----------------------------------------------------------------------------------- */

/* How many of the sources before source i have its name. */
static int same_before(const struct tc_data *d, int i)
{
  int n = 0;
  for (int j = 0; j < i; j++) n += !strcmp(d->source[j].name, d->source[i].name);
  return n;
}

static bool same_windows(const struct tc_data *a, const struct tc_data *b)
{
  return a->context == b->context && a->packed == b->packed && a->cut == b->cut;
}

/* Where a stage takes up source i, if one of the n stages before it has read it with the same windows: of sources of one name
 * the first after the first, the second after the second. */
static bool goes_on(struct tc_origin *o, const struct tc_data_stage *s, const int64_t *samples, int n, int i)
{
  const struct tc_data *d = s[n].d;
  const int nth = same_before(d, i);
  for (int k = n - 1; k >= 0; k--)
    for (int j = 0; j < s[k].d->n && same_windows(s[k].d, d); j++) {
      if (strcmp(s[k].d->source[j].name, d->source[i].name) || same_before(s[k].d, j) != nth) continue;
      *o = s[k].origin[j];
      o->taken += tc_data_taken(s[k].d, j, s[k].samples + samples[k]);
      return true;
    }
  return false;
}

void tc_data_origins(struct tc_data_stage *s, const int64_t *samples, int n)
{
  struct tc_origin *origin = s[n].origin;
  int next = 0;
  if (n && s[n].d == s[n - 1].d) {
    memcpy(origin, s[n - 1].origin, (size_t)s[n].d->n * sizeof *origin);
    s[n].samples = s[n - 1].samples + samples[n - 1];
    return;
  }
  for (int k = 0; k < n; k++)
    for (int j = 0; j < s[k].d->n; j++) next = TC_MAX(next, s[k].origin[j].number + 1);
  for (int i = 0; i < s[n].d->n; i++)
    if (!goes_on(&origin[i], s, samples, n, i)) origin[i] = (struct tc_origin){ next++, 0 };
}

int64_t tc_data_stage_taken(const struct tc_data_stage *s, int source, int64_t n)
{ return tc_data_taken(s->d, source, s->samples + n) - tc_data_taken(s->d, source, s->samples); }

/* Where window i of a source is, for windows.c. */
static int64_t window_at(const struct tc_data *d, int source, int64_t i)
{
  return d->packed ? i : d->source[source].lo + i * d->context;
}

/* Where sequence b of a step begins, in the stream of *source, or which window it is. */
static int64_t find_start(const struct tc_data_stage *st, const struct tc_samples *s, int64_t step, int64_t b, int *source)
{
  const struct tc_data *d = st->d;
  const int64_t in_stage = tc_blend_at(&d->blend, st->samples + (step - 1 - st->before) * s->batch + b, source);
  const struct tc_source *src = &d->source[*source];
  const struct tc_origin o = st->origin ? st->origin[*source] : (struct tc_origin){ *source, 0 };
  const int64_t windows = tc_data_windows(d, *source), i = o.taken + in_stage;
  TC_ASSERT(s->order != TC_ORDER_DRAWS || !d->packed);
  if (s->order == TC_ORDER_DRAWS) return src->lo + tc_order_draw(s->seed, step, b, tokens_of(src), d->context);
  return window_at(d, *source, tc_order_window(s->seed, o.number, i / windows, i % windows, windows));
}

static int read_sample(const struct tc_data_stage *s, struct tc_reader *r, const struct tc_samples *how, int64_t step,
                       int64_t b, int64_t row, const struct tc_batch *to, struct tc_err *err)
{
  int source;
  const int64_t start = find_start(s, how, step, b, &source);
  return tc_window_copy(s->d, r, &s->d->source[source], start, row, to, err);
}

int tc_data_train_stage(const struct tc_data_stage *s, struct tc_reader *r, const struct tc_samples *how, int64_t step,
                        int64_t b, const struct tc_batch *to, struct tc_err *err)
{
  return read_sample(s, r, how, step, b, 0, to, err);
}

int tc_data_train(const struct tc_data *d, struct tc_reader *r, const struct tc_samples *s, int64_t step,
                  int64_t b0, int64_t n, const struct tc_batch *to, struct tc_err *err)
{
  const struct tc_data_stage whole = { .d = d };
  for (int64_t i = 0; i < n; i++) TC_TRY(read_sample(&whole, r, s, step, b0 + i, i, to, err));
  return TC_OK;
}

int tc_data_counted(const struct tc_data_stage *s, struct tc_reader *r, const struct tc_samples *how, int64_t step, int64_t *n,
                    struct tc_err *err)
{
  *n = 0;
  for (int64_t b = 0; b < how->batch; b++) {
    int source;
    const int64_t start = find_start(s, how, step, b, &source);
    TC_TRY(tc_window_counted(s->d, r, &s->d->source[source], start, n, err));
  }
  return TC_OK;
}

int tc_data_window_counted(const struct tc_data *d, struct tc_reader *r, int source, int64_t i, int64_t *n, struct tc_err *err)
{
  return tc_window_counted(d, r, &d->source[source], window_at(d, source, i), n, err);
}

/* The file and the place in it where a window of a source begins, as tc_window_copy is told of it. */
static const struct tc_data_file *begins_in(const struct tc_data *d, int source, int64_t at, int64_t *place)
{
  const struct tc_source *x = &d->source[source];
  const int64_t pos = d->packed ? x->packed.item[x->packed.begin[at]].at : at;
  const struct tc_data_file *f = &x->file[tc_source_file(x, pos)];
  *place = pos - f->first;
  return f;
}

int tc_data_fail_silent(const struct tc_data_stage *s, const struct tc_samples *how, int64_t step, struct tc_err *err)
{
  int source;
  int64_t place;
  const int64_t at = find_start(s, how, step, 0, &source);
  const struct tc_data_file *f = begins_in(s->d, source, at, &place);
  return tc_fail(err, TC_EUSER, "step %lld: none of the tokens of its %lld samples counts, so there is no loss; the first of them "
                 "begins at token %lld of '%s'; a larger train.global_batch, or data.documents = pack, would fit", (long long)step,
                 (long long)how->batch, (long long)place, f->name);
}

int tc_data_fail_silent_windows(const struct tc_data *d, int source, int64_t n, struct tc_err *err)
{
  int64_t place;
  const struct tc_data_file *f = begins_in(d, source, window_at(d, source, 0), &place);
  return tc_fail(err, TC_EUSER, "validation data '%s': none of the tokens of %lld windows counts, so there is no loss; the "
                 "first of them begins at token %lld of '%s'; more train.eval_batches, or data.documents = pack, would fit",
                 d->source[source].name, (long long)n, (long long)place, f->name);
}

int tc_data_window(const struct tc_data *d, struct tc_reader *r, int source, int64_t i,
                   const struct tc_batch *to, struct tc_err *err)
{
  TC_ASSERT(i >= 0 && i < tc_data_windows(d, source));
  return tc_window_copy(d, r, &d->source[source], window_at(d, source, i), 0, to, err);
}

int tc_data_read(const struct tc_data *d, struct tc_reader *r, int source, int64_t at, int64_t n, int32_t *out,
                 struct tc_err *err)
{
  const struct tc_source *s = &d->source[source];
  TC_ASSERT(at >= 0 && n >= 0 && at + n <= tokens_of(s));
  for (int64_t here; n > 0; at += here, out += here, n -= here) {
    here = TC_MIN(n, d->context + 1);            /* what a reader has room for */
    TC_TRY(tc_source_read(s, r ? r : d->own, d->vocab, s->lo + at, here, out, err));
  }
  return 0;
}
