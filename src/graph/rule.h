/* rule.h - the index rule of a node: one subscript (a letter) for each dimension of its tensors. Local and
 * pure. */
#ifndef TC_RULE_H
#define TC_RULE_H

#include "src/graph/graph.h"

enum { TC_RULE_MAX = 16 };
/* Splits the rule of a node at its commas: the subscripts of tensor i (inputs first, then outputs) go
 * into subs[i]. For "*" rules subscripts are made for the ranks of the node's tensors. Returns the number. */
int tc_rule_parse(const struct tc_graph *g, const struct tc_node *n,
                  char subs[TC_RULE_MAX][TC_DIMS + 1]);

#endif
