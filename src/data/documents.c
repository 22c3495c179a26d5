/* documents.c - where the documents of a sequence begin, and the token that ends one. */
#include "src/config/config.h"
#include "src/data/impl.h"

static int fail_unsaid(const struct tc_data_file *f, bool weighted, struct tc_err *err)
{
  if (weighted)
    return tc_fail(err, TC_EUSER, "data.documents = mask needs a token that ends a document, which '%s' does not say: its samples "
                   "are marked by weights, which data.documents = pack takes", f->name);
  if (f->known && !f->tokenizer)
    return tc_fail(err, TC_EUSER, "data.documents = mask needs data.end_token for text, such as '%s': the byte that "
                   "ends a document, such as 0, or 10 for one document per line", f->name);
  return tc_fail(err, TC_EUSER, "data.documents = mask needs data.end_token: '%s' does not say which token ends a "
                 "document (headers of shards of tercio data do)", f->name);
}

int tc_documents_end(int32_t *end, int64_t option, const struct tc_data *d, struct tc_err *err)
{
  const struct tc_data_file *first = &d->source[0].file[0];
  int64_t token = option;
  for (int i = 0; i < d->n && option == TC_AUTO; i++)
    for (int k = 0; k < d->source[i].n_files; k++) {
      const struct tc_data_file *f = &d->source[i].file[k];
      if (!f->marked || f->end_token < 0) return fail_unsaid(f, d->source[i].weighted, err);
      if (f != first && f->end_token != token)
        return tc_fail(err, TC_EUSER, "the end-of-document token of '%s' is %lld, that of '%s' %lld: shards of one "
                       "tokenizer would fit, or data.end_token for all of them", f->name, (long long)f->end_token,
                       first->name, (long long)token);
      token = f->end_token;
    }
  if (token < 0 || token >= d->vocab)
    return tc_fail(err, TC_EUSER, "the end-of-document token %lld (%s) is not below model.vocab = %lld",
                   (long long)token, option == TC_AUTO ? first->name : "data.end_token", (long long)d->vocab);
  *end = (int32_t)token;
  return 0;
}

int tc_documents_same(int32_t end, int64_t option, const struct tc_data *d, struct tc_err *err)
{
  int32_t here;
  TC_TRY(tc_documents_end(&here, option, d, err));
  if (here == end) return 0;
  return tc_fail(err, TC_EUSER, "the end-of-document token of '%s' is %d, that of data.train %d: shards made with the "
                 "same --eod would fit, or data.end_token for all of them", d->source[0].file[0].name, here, end);
}

void tc_documents_starts(const int32_t *tokens, int64_t n, int64_t T, int32_t end, int32_t *starts)
{
  for (int64_t i = 0; i < n; i++) {
    const int32_t t = (int32_t)(i % T);
    starts[i] = t == 0 ? 0 : tokens[i - 1] == end ? t : starts[i - 1];
  }
}
