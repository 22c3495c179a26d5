/* stages.h - which pipeline stage each unit belongs to. */
#ifndef TC_STAGES_H
#define TC_STAGES_H

#include "src/graph/graph.h"

/* Local. Labels the units of a program that tc_gpt_build made: layers to pp * chunks virtual stages
 * in order, balanced by the products' and attention's operations, the embedding's with the first,
 * the loss head's with the last; or as `by_hand` says ("auto", or ranges of layers: "0-3,4-11").
 * A unit's `at` is its coordinate on pp, -1 without a pipeline. TC_ELAYOUT says what would fit. */
int tc_stages(struct tc_graph *g, int pp, int chunks, const char *by_hand, struct tc_err *err);

#endif
