/* check.h - the parts of tc_graph_check (graph.h). All are Local and pure; the error (TC_EUSER) names the pass, the
 * node and what is wrong. */
#ifndef TC_CHECK_H
#define TC_CHECK_H

#include "src/graph/graph.h"

/* check_grad.c: each contribution to a gradient reaches the parameter's update exactly once. A program
 * without a backward pass has none. placed: placements, and which nodes run once per step, are fixed and
 * checked too. */
int tc_check_gradients(const struct tc_graph *g, const struct tc_mesh *m, bool placed,
                       const char *pass, struct tc_err *err);

/* check.c: the sentence of invariant i of placements, which ends the error of a program that breaks it; NULL: there
 * are fewer. For tests, which break each. */
const char *tc_check_invariant(int i);

#endif
