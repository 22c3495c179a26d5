/* trained.h - a trained model and its tokenizer, as it is evaluated and sampled; and the model of a run that names
 * none. */
#ifndef TC_RUN_TRAINED_H
#define TC_RUN_TRAINED_H

#include "src/config/config.h"
#include "src/foreign/foreign.h"
#include "src/token/token.h"

struct tc_trained {
  const char *path;                    /* a checkpoint or a folder of them, or another program's model; borrowed */
  const char *tokenizer_file, *rope;   /* --tokenizer, --rope; NULL: not given; borrowed */
  const char *adapter;                 /* --adapter; NULL: none, or the checkpoint's own, if it has some; borrowed */
  struct tc_foreign *peft;             /* NULL: that is a checkpoint's; owned */
  struct tc_config *cfg;               /* the user's options with the model's sizes; owned */
  struct tc_foreign *foreign;          /* NULL: path is a checkpoint's; owned */
  struct tc_tokenizer *tokenizer;      /* NULL: none; owned */
  char *beside;                        /* files of Hugging Face's folder that the checkpoint took along, as JSON (TC_BESIDE_FILE);
                                        * owned; NULL: none */
  uint64_t tokenizer_hash;             /* the model's: as the checkpoint says, else of `tokenizer`; 0: not known */
  bool is_bytes;                       /* the checkpoint says that a token is a byte */
  int64_t step;                        /* of the checkpoint */
  char **flag;                         /* argv of the options that are the run file's; owned */
  int n_flags;
};

/* Local. Gives a run whose options name no model, neither by preset or config nor by all sizes, that of the newest
 * checkpoint in its own folder, where it resumes, or else of ckpt.from, and says so; and one with ckpt.adapter the options of
 * those adapters, or where it resumes of its own. TC_EUSER: an option contradicts what it begins with, or ckpt.from is no
 * checkpoint. Without a checkpoint the options stay as they are. */
int tc_trained_of_run(struct tc_config *c, struct tc_err *err);
/* Local. Gives c the options of adapters (tc_setup_take_lora) that those of a path have: a folder of PEFT, or a checkpoint with
 * adapters. *out: the open folder, owned by the caller; NULL: it is a checkpoint. c has the model's sizes. */
int tc_trained_adapter(struct tc_foreign **out, const char *path, struct tc_config *c, struct tc_err *err);

/* Local. Opens m->path, with the options of the command line, and the tokenizer: m->tokenizer_file or else the
 * tokenizer.json of the checkpoint or of another program's folder. TC_EUSER and what tc_ckpt_open and tc_ckpt_attached
 * return. To be freed, also after a failure. */
int tc_trained_open(struct tc_trained *m, struct tc_err *err);
/* Local. Whether a token of the model is a byte: the checkpoint says so, or it is not known to be of a tokenizer, and the
 * vocabulary has 256. */
bool tc_trained_bytes(const struct tc_trained *m);
void tc_trained_free(struct tc_trained *m);

#endif
