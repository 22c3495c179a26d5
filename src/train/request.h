/* request.h - how `tercio save` asks a run for a checkpoint: a file in the run's folder.
 *
 * The file holds one word of tc_request_word; an empty one asks for a checkpoint. Rank 0 looks for
 * it once a second, takes it by renaming it, and removes it when the checkpoint is committed. A
 * start removes what an earlier one left. */
#ifndef TC_REQUEST_H
#define TC_REQUEST_H

#define TC_REQUEST_FILE "save"
#define TC_REQUEST_TAKEN ".save-taken"

/* The greater of two requests counts. */
enum tc_request { TC_ASK_NONE, TC_ASK_SAVE, TC_ASK_REQUEUE, TC_ASK_END, TC_ASKS };

extern const char *const tc_request_word[TC_ASKS];   /* "", "checkpoint", "requeue", "stop" */

#endif
