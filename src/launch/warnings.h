/* warnings.h - sentences on ranks whose place makes them slow, for whoever shows a placement or starts a run. */
#ifndef TC_LAUNCH_WARNINGS_H
#define TC_LAUNCH_WARNINGS_H

#include "src/graph/mesh.h"
#include "src/launch/ranks.h"

struct tc_warnings { char **text; int n, cap; };     /* [n] sentences; owned, as the list is */

/* Local. Adds what is wrong with the ranks on this mesh. threads[world]: of each rank; NULL: the ranks are simulated,
 * and only the mesh can be wrong. */
void tc_ranks_warnings(struct tc_warnings *out, const struct tc_ranks *r, const struct tc_mesh *m, const int *threads);
/* Local. Adds a sentence. */
void tc_warnings_add(struct tc_warnings *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tc_warnings_free(struct tc_warnings *w);

#endif
