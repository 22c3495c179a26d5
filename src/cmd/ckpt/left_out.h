/* left_out.h - what the files of a Hugging Face folder say and a checkpoint does not keep. All is Local. */
#ifndef TC_CMD_CKPT_LEFT_OUT_H
#define TC_CMD_CKPT_LEFT_OUT_H

#include "src/cmd/ckpt/ckpt.h"
#include "src/model/hf.h"
#include "src/token/token.h"

/* An object with a list for each file that says more than the checkpoint keeps, by its name: members, with short values;
 * "files": other files of the folder. t: its tokenizer, NULL if the checkpoint has none; ids: those that an export would
 * write. Owned by the caller. */
json_t *ckpt_left_out(const char *dir, const struct tc_tokenizer *t, struct tc_hf_ids ids);
/* A line of the log for each of them. */
void ckpt_say_left_out(const char *dir, const json_t *left_out);

#endif
