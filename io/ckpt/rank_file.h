/* rank_file.h - a rank's part of a save: its slices written and flushed to disk, in a file of its own or in
 * one that the ranks of its node share, and its report to rank 0. */
#ifndef TC_CKPT_RANK_FILE_H
#define TC_CKPT_RANK_FILE_H

#include "io/ckpt/ckpt.h"

/* What a rank reports to rank 0: this, then n pieces, then n_blocks checksums. One kind of machine
 * in a run, so structs travel as they are. */
struct tc_rank_report {
  int32_t status, n;
  int32_t leader, node;           /* the rank whose file it is, whether it is a node's */
  int64_t size;                   /* of that file; 0: another rank reports it */
  int64_t n_blocks;
  uint32_t meta_crc32c;
  char text[1000];
};
struct tc_report_piece {
  int32_t tensor, part;           /* part: k of "/tensors/NAME.k", -1 for "/tensors/NAME" */
  int64_t start[TC_DIMS], count[TC_DIMS], offset;
};

struct tc_share {
  const char *folder;             /* where files go */
  const struct tc_ckpt_meta *meta;
  const struct tc_ckpt_tensor *tensor; int n_tensors;
  const struct tc_ckpt_slice *slice; int n_slices;
  int64_t block_bytes;
  int rank, world;
  struct tc_rank_report report;
  struct tc_report_piece *piece;    /* [report.n], owned */
  uint32_t *crc32c;               /* [report.n_blocks] piece after piece, owned */
};

/* Local, or collective over the node's ranks (meta->files). Writes, flushes to disk, checks;
 * fills report, piece, crc32c. TC_EUSER. */
int tc_share_write(struct tc_share *p, struct tc_err *err);

/* Local. Names, owned by the caller. */
char *tc_share_file(const struct tc_rank_report *t);      /* "rank-00003.h5" */
char *tc_share_dataset(const struct tc_ckpt_tensor *tensors, const struct tc_report_piece *p);
/* Local. Is it the dataset of a piece of that tensor? So that no tensor is taken for another. */
bool tc_share_is_of(const char *dataset, const char *tensor);
int64_t tc_share_bytes(const struct tc_ckpt_tensor *tensors, const struct tc_report_piece *p);

#endif
