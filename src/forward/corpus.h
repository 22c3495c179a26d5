/* corpus.h - the loss of a whole file of tokens. */
#ifndef TC_CORPUS_H
#define TC_CORPUS_H

#include "src/data/data.h"
#include "src/forward/forward.h"
#include "src/token/token.h"

/* Every token but the first is predicted once, from at most `context` tokens before it: sequence i begins at
 * token i * context, and the last one may be shorter. */
struct tc_corpus_loss {
  int64_t tokens;                /* predicted */
  int64_t bytes;                 /* that those tokens stand for; 0: not known */
  double nats;                   /* the sum of their losses */
};

/* Collective. `d`: the same tokens on all ranks. end: the token that ends a document, if texts are masked from each
 * other (data.documents = mask); -1: they are joined. tokenizer: whose tokens they are; NULL: a token is a byte if
 * `bytes`, else unknown. name: for the progress line, which rank 0 writes; NULL: none. */
int tc_corpus_loss(struct tc_corpus_loss *out, struct tc_forward *x, struct tc_data *d, int32_t end,
                   const struct tc_tokenizer *tokenizer, bool bytes, const char *name, struct tc_err *err);

#endif
