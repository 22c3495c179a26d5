/* packed.c - the samples of a source by their weights, and windows of them (data.documents = pack).
 *
 * A sample takes as many places of a window as it has tokens to predict, one fewer than tokens. It belongs to the part of a source
 * in which its first token lies. */
#include "src/data/bins.h"
#include "src/data/impl.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 20 };

struct list { struct tc_packed_item *at; size_t n, cap; };

/* What is known of the sample that is being read; at < 0: none is. marks: how many samples say that they begin. */
struct reading { struct list found; struct tc_packed_item item; int64_t tokens, T, marks; bool cut; struct tc_pack_tally tally; };

/* The sample has ended. */
static void end_sample(struct reading *x)
{
  struct tc_pack_tally *t = &x->tally;
  const bool is_long = x->tokens > x->T + 1;
  if (x->item.at < 0) return;
  t->samples++;
  x->item.n = (int32_t)TC_MIN(x->tokens, x->T + 1);
  if (is_long && !x->cut) t->left_out++;
  else if (!x->item.counted) t->silent++;
  else {
    t->cut += is_long;
    t->tokens += x->item.n - 1;
    TC_APPEND(x->found.at, x->found.n, x->found.cap, x->item);
  }
  x->item.at = -1;
}

/* The weight of token `pos`, one after the other. False: the samples of the part have ended. */
static bool next_weight(struct reading *x, int weight, int64_t pos, int64_t lo, int64_t hi)
{
  if (weight & TC_WEIGHT_BEGINS || (pos == lo && lo == 0)) {
    x->marks += !!(weight & TC_WEIGHT_BEGINS);
    end_sample(x);
    if (pos >= hi) return false;
    x->item = (struct tc_packed_item){ .at = pos };
    x->tokens = 0;
  }
  if (x->tokens > 0 && x->tokens <= x->T) x->item.counted += weight & TC_WEIGHT_COUNTS;
  x->tokens++;
  return true;
}

/* Each file of another program begins with a sample; of shards of tercio data a sample may go on in the next one. */
static int check_begin(const struct tc_source *s, int i, int weight, struct tc_err *err)
{
  const bool goes_on = s->file[i].marked && (i == 0 || s->file[i - 1].marked);
  if (weight & TC_WEIGHT_BEGINS || goes_on) return TC_OK;
  return tc_fail(err, TC_EUSER, "data.documents = pack: '%s' does not say that a sample begins with the first token of '%s': 2 is "
                 "to be added to the weights of first tokens of samples", s->weights[i].name, s->file[i].name);
}

/* Reads the weights from the part's first token to the end of its last sample. */
static int read_weights(struct reading *x, const struct tc_source *s, struct tc_reader *r, const struct tc_between *between,
                        struct tc_err *err)
{
  uint8_t *buf = tc_malloc(BLOCK);
  bool more = true;
  int rc = TC_OK;
  for (int i = 0; i < s->n_files && more && rc == TC_OK; i++) {
    struct tc_data_file *f = &s->weights[i];
    const int64_t first = s->file[i].first;
    if (!f->tokens)
      rc = tc_fail(err, TC_EUSER, "data.documents = pack needs files that say where samples begin, as `tercio data --chat` makes "
                   "them: '%s' does not lie beside '%s'", f->name, s->file[i].name);
    for (int64_t at = TC_MAX(s->lo - first, 0), n; at < f->tokens && more && rc == TC_OK; at += n) {
      n = TC_MIN(f->tokens - at, BLOCK);
      rc = tc_weights_read(r, f, at, n, buf, err);
      if (rc == TC_OK && at == 0) rc = check_begin(s, i, buf[0], err);
      for (int64_t k = 0; k < n && more && rc == TC_OK; k++) more = next_weight(x, buf[k], first + at + k, s->lo, s->hi);
      if (rc == TC_OK) rc = between->call(between->ctx, err);
    }
  }
  if (more) end_sample(x);
  free(buf);
  return rc;
}

/* Packing has found no sample. */
static int fail_empty(const struct reading *x, const struct tc_source *s, struct tc_err *err)
{
  const long long samples = (long long)x->tally.samples, most = (long long)x->T + 1;
  if (!samples)
    return tc_fail(err, TC_EUSER, "data '%s': no sample begins in the validation part (the last 5 %%): name validation data by "
                   "data.val", s->name);
  if (x->cut)
    return tc_fail(err, TC_EUSER, "data '%s': none of the first %lld tokens of its %lld samples counts: a longer model.context, or "
                   "samples with other weights, would fit", s->name, most, samples);
  return tc_fail(err, TC_EUSER, "data '%s': of its %lld samples %lld are longer than %lld tokens, and no token of the others "
                 "counts: a longer model.context, or data.long = cut, would fit", s->name, samples, (long long)x->tally.left_out,
                 most);
}

static void fill_windows(struct tc_packed *p, const struct list *found, int64_t T)
{
  int32_t *size = tc_malloc(found->n * sizeof *size + 1);
  struct tc_bins b;
  for (size_t i = 0; i < found->n; i++) size[i] = found->at[i].n - 1;
  tc_bins_fill(&b, size, (int64_t)found->n, T);
  p->n = b.n;
  p->begin = b.begin;
  p->item = tc_malloc(found->n * sizeof *p->item + 1);
  for (size_t i = 0; i < found->n; i++) p->item[i] = found->at[b.sample[i]];
  TC_FREE(b.sample, size);
}

int tc_source_pack(struct tc_source *s, struct tc_reader *r, int64_t context, bool cut, const struct tc_between *between,
                   struct tc_err *err)
{
  struct reading x = { .item.at = -1, .T = context, .cut = cut };
  int rc = read_weights(&x, s, r, between, err);
  if (rc == TC_OK && x.found.n >= INT32_MAX)
    rc = tc_fail(err, TC_EUSER, "data '%s' has more samples than can be packed: %zu", s->name, x.found.n);
  if (rc == TC_OK && s->lo == 0 && !x.marks)
    rc = tc_fail(err, TC_EUSER, "data.documents = pack: no weight of data '%s' says where a sample begins: 2 is to be added to "
                 "those of first tokens of samples, or data.documents = join would fit", s->name);
  if (rc == TC_OK && x.found.n == 0) rc = fail_empty(&x, s, err);
  if (rc == TC_OK) {
    fill_windows(&s->packed, &x.found, context);
    s->packed.tally = x.tally;
  }
  free(x.found.at);
  return rc;
}

void tc_packed_free(struct tc_packed *p)
{
  TC_FREE(p->begin, p->item);
}
