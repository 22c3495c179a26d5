/* export.h - a checkpoint's weights as files of other programs. */
#ifndef TC_FOREIGN_EXPORT_H
#define TC_FOREIGN_EXPORT_H

#include "src/foreign/parts.h"

struct tc_export_opts {           /* borrowed */
  const char *path, *out;         /* a checkpoint or a folder of them; the file or, for TC_FORM_HF, folder to write */
  enum tc_form form;
  int dtype;                      /* of fp32 tensors: TC_F32 or TC_BF16 */
  bool optimizer;                 /* TC_FORM_OURS: with the optimizer's state */
  int64_t shard_bytes;            /* TC_FORM_HF: the most of a file; 0: one file */
};
struct tc_exported {
  char *from;                     /* the step's folder; owned by the caller */
  int64_t step, bytes;            /* bytes: of the tensors written */
  int n_tensors, files;
  bool tokenizer;                 /* TC_FORM_HF: the checkpoint's tokenizer.json is among the files */
  int64_t end;                    /* TC_FORM_HF: the end token; below 0: not known */
};
/* Local. A file appears when it is complete; after a failure none is left. What is there is never replaced. *r is set if
 * it returns 0. As tc_ckpt_read; TC_EUSER: also where the form can't store the model, or the output can't be made. */
int tc_foreign_export(struct tc_exported *r, const struct tc_export_opts *o, struct tc_err *err);

#endif
