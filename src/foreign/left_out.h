/* left_out.h - what the files of a Hugging Face folder say and a checkpoint does not keep. All is Local. */
#ifndef TC_FOREIGN_LEFT_OUT_H
#define TC_FOREIGN_LEFT_OUT_H

#include <jansson.h>

#include "src/model/hf.h"
#include "src/token/token.h"

/* An object with a list for each file that says more than the checkpoint keeps, by its name: members, with short values;
 * "files": other files of the folder. t: its tokenizer, NULL if the checkpoint has none; ids: those that an export would
 * write. Owned by the caller. */
json_t *tc_left_out(const char *dir, const struct tc_tokenizer *t, struct tc_hf_ids ids);
/* A line of the log for each of them. */
void tc_left_out_say(const char *dir, const json_t *left_out);

#endif
