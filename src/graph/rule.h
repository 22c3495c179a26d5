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

/* The same as the rule is on one axis. N is n on axes that split a batch by whole sequences; on those that split sequences
 * (TOKENS) it is a subscript of its own, which cannot be split: attention's keys are of all tokens then. */
void tc_rule_on(char subs[TC_RULE_MAX][TC_DIMS + 1], int n, int axis);

/* A product C[m,n] = op(A) op(B), row-major: A is [m,k], or [k,m] if ta; B is [k,n], or [n,k] if tb. ld: elements from a row of A,
 * B and C to the next; 0: dense, as everywhere but within the device cpu. */
struct tc_gemm { int64_t m, n, k; bool ta, tb; int64_t ld[3]; };
/* The product that a MATMUL computes on a block: a and c are the block's dimensions of its first input and of its
 * output. */
struct tc_gemm tc_rule_gemm(const struct tc_graph *g, const struct tc_node *n, const int64_t *a, const int64_t *c);

#endif
