/* impl.h - an open model of another program, as the files of src/foreign share it. */
#ifndef TC_FOREIGN_IMPL_H
#define TC_FOREIGN_IMPL_H

#include "src/foreign/foreign.h"

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

#endif
