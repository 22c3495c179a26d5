/* import.h - what the files of `tercio ckpt import` share. In reading order: import.c (which file, which
 * model), import_weights.c (its tensors), import_save.c (the checkpoint). */
#ifndef TC_CMD_CKPT_IMPORT_H
#define TC_CMD_CKPT_IMPORT_H

#include "io/formats/shards.h"
#include "src/cmd/ckpt/ckpt.h"
#include "src/cmd/ckpt/names.h"

struct import {
  const struct ckpt_args *args;
  enum names_form form;
  char *file, *config_file;       /* the input; owned; config_file NULL: none */
  struct tc_shards *st;           /* or */
  struct tc_llmc *llmc;
  struct tc_model model;
  bool interleaved;               /* the file's rotary order */
  struct tc_config *cfg;
  struct part *part; int n;
  float *weights;                 /* mapped; our tensors one after the other */
  int64_t elems;
  struct tc_owner *owner;         /* of the folder of checkpoints */
  int64_t step;
};

/* Local. The index of the file's tensor of this name; -1: none. Names of Hugging Face's GPT-2 may begin with
 * "transformer.". */
int import_find(const struct import *x, const char *name);
/* Local. Reads all weights of x->model, which is complete; sets x->part, x->n, x->weights and x->elems. */
int import_read_weights(struct import *x, struct tc_err *err);
/* Local. Saves the checkpoint and sets x->step. */
int import_save(struct import *x, struct tc_err *err);

#endif
