/* windows.c - the tokens, targets and weights of one window: of the stream, or packed. */
#include "src/data/impl.h"

#include <string.h>

int tc_source_weights(const struct tc_source *s, struct tc_reader *r, int64_t pos, int64_t n, uint8_t *out, struct tc_err *err)
{
  for (int i = tc_source_file(s, pos); n > 0; i++) {
    struct tc_data_file *f = &s->weights[i];
    const int64_t from = pos - s->file[i].first, here = TC_MIN(n, s->file[i].tokens - from);
    if (f->tokens) TC_TRY(tc_weights_read(r, f, from, here, out, err));
    else memset(out, TC_WEIGHT_COUNTS, (size_t)here);
    out += here, pos += here, n -= here;
  }
  return TC_OK;
}

/* n tokens from pos of the stream: the first n - 1, and those after them as their targets, -1 where they do not count. */
static int copy(const struct tc_data *d, struct tc_reader *r, const struct tc_source *s, int64_t pos, int64_t n, int32_t *tokens,
                int32_t *targets, struct tc_err *err)
{
  const size_t bytes = (size_t)(n - 1) * sizeof *tokens;
  TC_TRY(tc_source_read(s, r, d->vocab, pos, n, r->sample, err));
  memcpy(tokens, r->sample, bytes);
  memcpy(targets, r->sample + 1, bytes);
  if (!s->weighted) return TC_OK;
  TC_TRY(tc_source_weights(s, r, pos, n, r->weight, err));
  for (int64_t i = 0; i < n - 1; i++)
    if (!(r->weight[i + 1] & TC_WEIGHT_COUNTS)) targets[i] = -1;
  return TC_OK;
}

/* The samples of window w one after the other; what is left are tokens 0, without targets, as a document of their own. */
static int copy_packed(const struct tc_data *d, struct tc_reader *r, const struct tc_source *s, int64_t w, int64_t row,
                       const struct tc_batch *to, struct tc_err *err)
{
  const int64_t T = d->context, first = row * T;
  int64_t at = 0, next;
  for (int64_t i = s->packed.begin[w]; i < s->packed.begin[w + 1]; i++, at = next) {
    const struct tc_packed_item *x = &s->packed.item[i];
    next = at + x->n - 1;
    TC_TRY(copy(d, r, s, x->at, x->n, to->tokens + first + at, to->targets + first + at, err));
    for (int64_t k = at; k < next && to->starts; k++) to->starts[first + k] = (int32_t)at;
  }
  for (int64_t k = at; k < T; k++) {
    to->tokens[first + k] = 0;
    to->targets[first + k] = -1;
    if (to->starts) to->starts[first + k] = (int32_t)at;
  }
  return TC_OK;
}

int tc_window_copy(const struct tc_data *d, struct tc_reader *r, const struct tc_source *s, int64_t at, int64_t row,
                   const struct tc_batch *to, struct tc_err *err)
{
  if (!r) r = d->own;
  if (d->packed) return copy_packed(d, r, s, at, row, to, err);
  return copy(d, r, s, at, d->context + 1, to->tokens + row * d->context, to->targets + row * d->context, err);
}

int tc_window_counted(const struct tc_data *d, struct tc_reader *r, const struct tc_source *s, int64_t at, int64_t *n,
                      struct tc_err *err)
{
  if (!r) r = d->own;
  for (int64_t i = d->packed ? s->packed.begin[at] : 0; d->packed && i < s->packed.begin[at + 1]; i++)
    *n += s->packed.item[i].counted;
  if (d->packed) return TC_OK;
  if (!s->weighted) return *n += d->context, TC_OK;
  TC_TRY(tc_source_weights(s, r, at + 1, d->context, r->weight, err));
  for (int64_t i = 0; i < d->context; i++) *n += r->weight[i] & TC_WEIGHT_COUNTS;
  return TC_OK;
}

int tc_data_mask(const struct tc_data *d, struct tc_reader *r, int source, int64_t at, int64_t n, int32_t *targets,
                 struct tc_err *err)
{
  const struct tc_source *s = &d->source[source];
  if (!r) r = d->own;
  for (int64_t here; n > 0 && s->weighted; at += here, targets += here, n -= here) {
    here = TC_MIN(n, d->context + 1);
    TC_TRY(tc_source_weights(s, r, s->lo + at, here, r->weight, err));
    for (int64_t i = 0; i < here; i++)
      if (!(r->weight[i] & TC_WEIGHT_COUNTS)) targets[i] = -1;
  }
  return TC_OK;
}
