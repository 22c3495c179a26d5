/* documents.h - where the documents of a sequence begin, for data.documents = mask. Local, all of these. */
#ifndef TC_DOCUMENTS_H
#define TC_DOCUMENTS_H

#include "src/base/base.h"
#include "src/config/choices.h"

/* The token that ends a document: `option` (data.end_token) or, where that is TC_AUTO, what the headers of the shards
 * say, which `tercio data` writes. TC_EUSER: nothing says it, shards differ, or it is not below vocab. */
int tc_documents_end(int32_t *end, int64_t option, char *const *files, int n_files, enum tc_data_format format,
                     int64_t vocab, struct tc_err *err);

/* starts[n]: for each of n / T sequences of T tokens the position, from 0, at which the token's document begins. A token
 * `end` belongs to the document that it ends; a sequence begins a document, even in the middle of one. */
void tc_documents_starts(const int32_t *tokens, int64_t n, int64_t T, int32_t end, int32_t *starts);

#endif
