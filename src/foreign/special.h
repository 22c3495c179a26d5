/* special.h - the tokens that begin and end a text, and the files of an exported model that name them. All is Local. */
#ifndef TC_FOREIGN_SPECIAL_H
#define TC_FOREIGN_SPECIAL_H

#include "io/ckpt/ckpt.h"
#include "src/model/hf.h"

/* A file beside config.json and the weights. */
struct tc_beside { const char *name; char *text; int64_t bytes; };      /* text[bytes] is owned */

struct tc_special {
  struct tc_hf_ids ids;
  struct tc_beside file[3]; int n_files;      /* tokenizer.json, tokenizer_config.json, generation_config.json */
  bool tokenizer;                               /* the checkpoint has tokenizer.json */
};

/* The ids of such tokens, below 0 where they are not known; t may be NULL. own_vocab: the data name no tokenizer, and none
 * is there, so that a vocabulary of GPT-2's size is GPT-2's. */
struct tc_tokenizer;
struct tc_hf_ids tc_special_ids(const struct tc_tokenizer *t, const struct tc_model *m, bool own_vocab,
                                  int64_t saved_end);

/* Takes the tokenizer.json of the checkpoint, and finds the ids: the end token is that at which `tercio sample` stops,
 * else saved_end, the data.end_token of the run if it was a number (below 0: it was not), else what the headers of its
 * shards said; the begin token is what the
 * tokenizer puts before a text. A GPT-2 begins a text with its end token, which is 50256 if its vocabulary has GPT-2's
 * size and its data name no tokenizer. What tc_ckpt_attached returns. *s is to be
 * freed, also after a failure. */
int tc_special_find(struct tc_special *s, const struct tc_ckpt *c, const struct tc_model *m, int64_t saved_end,
                      struct tc_err *err);
void tc_special_free(struct tc_special *s);

#endif
