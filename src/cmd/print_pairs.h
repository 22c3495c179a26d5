/* print_pairs.h - what `tercio comm --pairs` prints. */
#ifndef TC_PRINT_PAIRS_H
#define TC_PRINT_PAIRS_H

#include "src/bench/pairs.h"

/* Local. link: "MPI", ...; for JSON "mpi". iters: at most, of a pair. */
void tc_pairs_print(const struct tc_pairs *s, const struct tc_ranks *r, const char *link, int iters, bool json);

#endif
