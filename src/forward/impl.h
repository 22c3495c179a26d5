/* impl.h - a model on its ranks, as the files of src/forward share it. */
#ifndef TC_FORWARD_IMPL_H
#define TC_FORWARD_IMPL_H

#include "src/forward/forward.h"

struct tc_forward {
  struct tc_run run;                            /* owned, or a training's, whose parts are borrowed */
  bool borrowed;
  int kind;                                     /* of the program that gives losses */
  int64_t sequences;                            /* of a batch */
  struct tc_forward_batch batch;                /* the one that runs */
};

/* A long pass over what a file has: rank 0 logs at times how far it is. */
struct tc_forward_progress {
  const char *name, *unit;                      /* of the file, NULL: nothing is logged; of what it has: "tokens" */
  int64_t n, begin_ns, shown_ns;                /* how many; when the pass began, and when it was last logged */
};
/* Local. */
struct tc_forward_progress tc_forward_begin(const char *name, const char *unit, int64_t n);
void tc_forward_show(const struct tc_forward *x, struct tc_forward_progress *p, int64_t done);

#endif
