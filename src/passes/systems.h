/* systems.h - parallel systems as lists of rows that place tensors; and files of the user's own rows.
 *
 * A system is a list of rows in a table. No pass and no part of the executor depends on its name; the search of the planner
 * and the advice in error messages name systems. passes.h applies rows. */
#ifndef TC_SYSTEMS_H
#define TC_SYSTEMS_H

#include "src/graph/graph.h"

/* A row: tensors whose names match `pattern` (fnmatch) have placement `place` on each of `axes`. `four` rows
 * are for parameters only and give store, use, acc and update separately (and when a gathered weight is
 * resharded); other rows set all four of a parameter to place[0]. */
enum { TC_STORE, TC_USE, TC_ACC, TC_UPDATE, TC_PLACES };
struct tc_annotation {
  const char *pattern;
  unsigned axes;
  struct tc_place place[TC_PLACES];   /* k of at(k): an index in a group of `axes` */
  bool four;
  enum tc_reshard_after reshard_after;   /* four only; TC_AFTER_AUTO: not set */
  int line;                      /* line number in its file; 0: a built-in row */
  bool optional;                 /* no tensor has to match: not every model has one. So are all built-in rows */
};

struct tc_system {
  const char *name;
  const struct tc_annotation *rows;      /* the first ones of all parameters, `four`, then those of the batch and of others */
  const char *what;
};
/* Whether its states are split over shard, and replicated over the rest of dp. */
bool tc_system_has_copies(const struct tc_system *s);
/* Whether it sums gradients over cp. */
bool tc_system_has_context(const struct tc_system *s);
extern const struct tc_system tc_systems[TC_DATA_NONE + 1];     /* by enum tc_data_parallel */
/* Tensor parallelism (Shoeybi et al., 2019) as rows for all families: a model has tensors for some of them.
 * Sequence parallelism on top of it (Korthikanti et al., 2022): the residual stream, from the embedding on. */
extern const struct tc_annotation tc_rows_tensor[], tc_rows_sequence[], tc_rows_heads[], tc_rows_keys[];

/* annotate.c: a file of rows, one per line:
 *   PATTERN AXIS PLACE                            e.g.  wte.weight  tp  S(0)
 *   PATTERN AXIS STORE USE ACC UPDATE [KEEP]      e.g.  *  dp  S(*) R S(*) S(*) use
 * PLACE is R, S(d), S(*), P or at(k); AXIS a set of axis.def, or several joined by +, such as dp, tp; KEEP use, mb or step (the default if no
 * row sets it). Rows for pp are read too: they have no effect with one stage (program/setup.c).
 * "-PATTERN" may match no tensor. '#' starts a comment. Local. *out is owned by the caller, ends with pattern NULL; TC_EUSER
 * names file and line. */
int tc_annotations_read(struct tc_annotation **out, const char *path, struct tc_err *err);
void tc_annotations_free(struct tc_annotation *a);

#endif
