/* import.h - a checkpoint from which a run can start, made of another program's model. */
#ifndef TC_FOREIGN_IMPORT_H
#define TC_FOREIGN_IMPORT_H

#include <jansson.h>

#include "src/config/config.h"
#include "src/foreign/parts.h"

struct tc_import_opts {           /* borrowed */
  const char *path, *rope;        /* as for tc_foreign_open */
  const char *out;                /* the folder of checkpoints, which must have none */
  struct tc_config *cfg;          /* options that the run will have; gets all sizes of the model */
};
struct tc_imported {              /* owned: tc_imported_free */
  char *from, *path, *model;      /* the file or index, the step's folder, the model's text */
  enum tc_form form;
  int64_t step;
  json_t *left_out;               /* of a folder of Hugging Face: what it says that is not kept (left_out.h); else NULL */
};
/* Local. Owns the folder of checkpoints until it returns. The optimizer's state is the file's, if it has it, else zero.
 * After a failure *r has nothing, and folders that were made are removed. */
int tc_foreign_import(struct tc_imported *r, const struct tc_import_opts *o, struct tc_err *err);
void tc_imported_free(struct tc_imported *r);

#endif
