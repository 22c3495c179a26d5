/* impl.h - an open model of another program, and an import of one, as the files of src/foreign share them. */
#ifndef TC_FOREIGN_IMPL_H
#define TC_FOREIGN_IMPL_H

#include "src/foreign/foreign.h"
#include "src/foreign/import.h"

struct tc_foreign {
  enum tc_form form;
  char *file, *config_file;       /* config_file NULL: none */
  struct tc_st_files *st;           /* or */
  struct tc_llmc *llmc;
  struct tc_model model;
  bool interleaved;               /* the file's rotary order */
  struct tc_foreign_part *part;
  int n_parts;
  struct tc_ckpt_tensor *tensor;  /* ours; names are the parts' */
  int *first;                     /* tensor i is parts first[i] to first[i + 1] - 1 */
  int n;
};

/* The index of the file's tensor of this name; -1: none. Names of Hugging Face's GPT-2 may begin with
 * "transformer.". */
int tc_foreign_index(const struct tc_foreign *x, const char *name);
/* Lists parts and tensors of x->model, which is complete, and checks that the file has them. */
int tc_foreign_list(struct tc_foreign *x, struct tc_err *err);

/* An import under way: import.c (its folder and weights), import_save.c (the checkpoint). */
struct tc_import {
  const struct tc_import_opts *o;
  struct tc_foreign *from;
  float *weights;                 /* mapped; our tensors one after the other */
  int64_t elems;
  struct tc_owner *owner;         /* of the folder of checkpoints */
  char *made;                     /* the outermost folder that the import made; owned; NULL */
  int64_t step;
  json_t *left_out;               /* of a folder (left_out.h); NULL: of another form; owned */
};
/* Local. Saves the checkpoint; sets x->step and x->left_out. */
int tc_import_save(struct tc_import *x, struct tc_err *err);

#endif
