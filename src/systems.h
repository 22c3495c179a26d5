/* systems.h - the table of parallel systems: where a parameter's four placements are on dp.
 *
 * A system is a row. Nothing outside this table knows the systems' names. */
#ifndef TC_SYSTEMS_H
#define TC_SYSTEMS_H

#include "src/graph.h"

struct tc_system {
  const char *name;
  struct tc_place store, use, acc, update;       /* on dp */
  const char *what;
};
extern const struct tc_system tc_systems[];       /* ends with name NULL */
const struct tc_system *tc_system_find(const char *name);   /* NULL: none */

/* Local. Annotates the parameters (after tc_gpt_build, before tc_grad) by the row, and the
 * batch: tokens and targets are split on mb and dp. */
void tc_system_apply(struct tc_graph *g, const struct tc_system *s);

/* A row of one's own: tensors whose names match `pattern` (fnmatch) sit at `place` on `axis`. A
 * parameter's four placements follow; so do its moments. */
struct tc_annotation { const char *pattern; int axis; struct tc_place place; };

/* Local. Applies rows until pattern NULL. TC_EUSER: a pattern that names no tensor, or two that
 * place one tensor differently on one axis. */
int tc_annotate(struct tc_graph *g, const struct tc_annotation *a, struct tc_err *err);

#endif
