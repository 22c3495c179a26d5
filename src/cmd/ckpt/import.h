/* import.h - what the files of `tercio ckpt import` share: import.c (the command), import_save.c (the checkpoint). */
#ifndef TC_CMD_CKPT_IMPORT_H
#define TC_CMD_CKPT_IMPORT_H

#include "src/cmd/ckpt/ckpt.h"
#include "src/foreign/foreign.h"

struct import {
  const struct ckpt_args *args;
  struct tc_config *cfg;          /* the run's options, with the model's sizes */
  struct tc_foreign *from;
  float *weights;                 /* mapped; our tensors one after the other */
  int64_t elems;
  struct tc_owner *owner;         /* of the folder of checkpoints */
  char *made;                     /* the outermost folder that the import made; owned; NULL */
  int64_t step;
  json_t *left_out;               /* of a folder (left_out.h); NULL: of another form; owned */
};

/* Local. Saves the checkpoint and sets x->step. */
int import_save(struct import *x, struct tc_err *err);

#endif
