/* documents.h - where the documents of a sequence begin, for data.documents = mask. Local, all of these. */
#ifndef TC_DOCUMENTS_H
#define TC_DOCUMENTS_H

#include "src/data/data.h"

/* The token that ends a document: `option` (data.end_token) or, where that is TC_AUTO, what the headers of d's shards
 * say, which `tercio data` writes. TC_EUSER: a file does not say it, two differ, or it is not below the vocabulary. */
int tc_documents_end(int32_t *end, int64_t option, const struct tc_data *d, struct tc_err *err);

/* TC_EUSER unless tc_documents_end gives `end` for d, too: the token of data.train for the files of data.val. */
int tc_documents_same(int32_t end, int64_t option, const struct tc_data *d, struct tc_err *err);

/* starts[n]: for each of n / T sequences of T tokens the position, from 0, at which the token's document begins. A
 * token `end` belongs to the document that it ends; a sequence begins a document, even in the middle of one. */
void tc_documents_starts(const int32_t *tokens, int64_t n, int64_t T, int32_t end, int32_t *starts);

#endif
