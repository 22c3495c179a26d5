/* reads.h - what each rank of a layout would read of a checkpoint. Nothing is run, and only the manifest is read. */
#ifndef TC_RUN_READS_H
#define TC_RUN_READS_H

#include "io/ckpt/ckpt.h"
#include "src/config/config.h"
#include "src/graph/mesh.h"

struct tc_read { int64_t need, read, pieces, files; };     /* bytes, bytes, numbers */
struct tc_reads {
  struct tc_mesh *mesh;           /* owned */
  const char *system;
  struct tc_read *rank;           /* [mesh->world], owned */
  struct tc_read sum, most;       /* of all ranks; the most of one; without files */
};
/* Local. For the options cfg, of which the model must be the checkpoint's, on ranks of which node[world] says the nodes
 * (borrowed). TC_EUSER, TC_ELAYOUT; then *r has nothing. */
int tc_run_reads(struct tc_reads *r, struct tc_ckpt *c, const struct tc_config *cfg, int world, const int32_t *node,
                 struct tc_err *err);
void tc_reads_free(struct tc_reads *r);

#endif
