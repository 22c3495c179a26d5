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

#endif
