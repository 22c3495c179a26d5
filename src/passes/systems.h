/* systems.h - the table of parallel systems: where a parameter's four placements are on dp; and files of
 * rows of the user's own.
 *
 * A system is a row. Nothing outside this table knows the systems' names. passes.h applies rows. */
#ifndef TC_SYSTEMS_H
#define TC_SYSTEMS_H

#include "src/graph/graph.h"
#include "src/model/model.h"

/* A row of one's own: tensors whose names match `pattern` (fnmatch) sit at `place` on `axis`.
 * `four` rows are for parameters alone and give store, use, acc and update one by one (and how
 * long a gathered weight is kept); other rows put all four of a parameter at place[0]. */
enum { TC_STORE, TC_USE, TC_ACC, TC_UPDATE, TC_PLACES };
struct tc_annotation {
  const char *pattern;
  int axis;
  struct tc_place place[TC_PLACES];
  bool four;
  enum tc_reshard_after reshard_after;   /* four only; TC_AFTER_AUTO: not set */
  int line;                      /* of the file it comes from; 0: none */
};

struct tc_system {
  const char *name;
  struct tc_place place[4];      /* on dp: store, use, acc, update */
  enum tc_reshard_after reshard_after;
  struct tc_place batch;         /* tokens and targets on dp */
  const struct tc_annotation *rows;              /* what else it places; NULL: nothing */
  const char *what;
};
extern const struct tc_system tc_systems[];       /* ends with name NULL */
const struct tc_system *tc_system_find(const char *name);   /* NULL: none */
/* Tensor parallelism (Shoeybi et al., 2019), and sequence parallelism on top of it (Korthikanti
 * et al., 2022), as rows. */
extern const struct tc_annotation tc_rows_tensor[], tc_rows_sequence[];
/* Local. The lists of rows of tensor parallelism for a model, with those of `sequence`, into list[]; returns
 * how many, TC_MODEL_ROWS at most. */
enum { TC_MODEL_ROWS = 4 };
int tc_rows_of_model(const struct tc_annotation **list, const struct tc_model *m, bool sequence);

/* annotate.c: a file of rows, one a line:
 *   PATTERN AXIS PLACE                            e.g.  wte.weight  tp  S(0)
 *   PATTERN AXIS STORE USE ACC UPDATE [KEEP]      e.g.  *  dp  S(*) R S(*) S(*) use
 * PLACE is R, S(d), S(*), P or at(k); AXIS dp or tp; KEEP use, mb or step (the default where no
 * row says it). Rows for pp are read too: they say nothing where there is one stage (program/setup.c).
 * '#' starts a comment. Local. *out is owned by the caller, ends with pattern NULL; TC_EUSER
 * names file and line. */
int tc_annotations_read(struct tc_annotation **out, const char *path, struct tc_err *err);
void tc_annotations_free(struct tc_annotation *a);

#endif
