/* cmd_ckpt.h - what the files of `tercio ckpt` share. */
#ifndef TC_CMD_CKPT_H
#define TC_CMD_CKPT_H

#include <jansson.h>

#include "io/ckpt_io.h"

struct ckpt_args {
  const char *path[2];            /* DIR, or A and B, or DIR and NAME */
  bool json, quick;
  double rtol;
  const char *only;               /* diff --only, show --tensor: tensors whose names match
                                   * (fnmatch); NULL: all */
  bool owners;                    /* show: which rank holds what */
  int64_t row0, row1;             /* [row0, row1); row1 = -1: to the end */
};

/* Subcommands: Local. They print to stdout and return a status with its sentence in *err.
 * TC_DIFFERS has none: what differs is on stdout. */
int ckpt_cmd_tensors(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_dump(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_diff(const struct ckpt_args *a, struct tc_err *err);

/* Reads the manifest alone: the data need not be there. */
int ckpt_cmd_owners(const struct ckpt_args *a, struct tc_err *err);

/* Whether args->only lets this tensor through. */
bool ckpt_wanted(const struct ckpt_args *args, const char *name);
/* "[768, 3072]": a shape or a corner, x[rank], into buf; returns buf. 160 bytes hold any. */
const char *ckpt_ints_text(char *buf, size_t size, const int64_t *x, int rank);
/* An array of them. */
json_t *ckpt_ints_json(const int64_t *x, int rank);
/* A number; null for NaN, "inf" or "-inf", which JSON numbers can't be. */
json_t *ckpt_real_json(double x);
/* Prints the value as one JSON text and frees it. */
void ckpt_print_json(json_t *j);

#endif
