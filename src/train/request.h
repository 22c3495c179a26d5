/* request.h - how `tercio save` asks a run for a checkpoint: a file in the run's folder.
 *
 * The file holds one word of tc_request_word; an empty one asks for a checkpoint. Rank 0 looks for
 * it once a second, takes it by renaming it, and removes it when the checkpoint is committed. A
 * start removes what an earlier one left. */
#ifndef TC_REQUEST_H
#define TC_REQUEST_H

#include "src/base/base.h"

#define TC_REQUEST_FILE "save"
#define TC_REQUEST_TAKEN ".save-taken"

/* The greater of two requests counts. */
enum tc_request { TC_ASK_NONE, TC_ASK_SAVE, TC_ASK_REQUEUE, TC_ASK_END, TC_ASKS };

extern const char *const tc_request_word[TC_ASKS];   /* "", "checkpoint", "requeue", "stop" */

/* A request that was sent by `tercio save`. */
struct tc_sent_request {
  const char *out, *ckpt_dir;          /* folders of the run and of its checkpoints; borrowed */
  int kind;                            /* enum tc_request */
  int64_t newest, made;                /* steps of the newest checkpoint before and after; -1: none */
  char *file, *taken;                  /* owned */
};
/* Local. Writes the request. TC_EUSER: no run is in progress, the file can't be made. To be freed even after an error. */
int tc_request_send(struct tc_sent_request *a, const char *out, const char *ckpt_dir, int kind, struct tc_err *err);
/* Local. Returns when the checkpoint is complete. TC_EUSER: not within wait_s, or the run has ended. */
int tc_request_await(struct tc_sent_request *a, double wait_s, struct tc_err *err);
void tc_request_done(struct tc_sent_request *a);

#endif
