/* model.h - what `tercio eval` and `tercio sample` share: a trained model, and its tokenizer; and the model of a run that
 * names none. */
#ifndef TC_CMD_MODEL_H
#define TC_CMD_MODEL_H

#include "src/config/config.h"
#include "src/foreign/foreign.h"
#include "src/token/token.h"

struct tc_cmd_model {
  const char *path;                    /* a checkpoint or a folder of them, or another program's model; borrowed */
  const char *tokenizer_file, *rope;   /* --tokenizer, --rope; NULL: not given; borrowed */
  struct tc_config *cfg;               /* the user's options with the model's sizes; owned */
  struct tc_foreign *foreign;          /* NULL: path is a checkpoint's; owned */
  struct tc_tokenizer *tokenizer;      /* NULL: none; owned */
  uint64_t tokenizer_hash;             /* the model's: as the checkpoint says, else of `tokenizer`; 0: not known */
  bool is_bytes;                       /* the checkpoint says that a token is a byte */
  int64_t step;                        /* of the checkpoint */
  char **flag;                         /* argv of the options that are the run file's; owned */
  int n_flags;
};

/* Rows of struct tc_flag for a command's struct with a struct tc_cmd_model m. */
#define TC_CMD_MODEL_FLAGS(command, tokenizer_help) \
  { "--tokenizer FILE", tokenizer_help "; e.g. --tokenizer tokenizer.json", "the path of a tokenizer.json", \
    TC_FLAG_TEXT, offsetof(struct command, m.tokenizer_file), 0, 0, NULL }, \
  { "--rope ORDER", "order of rotary pairs in the files of FOLDER: half (default, Hugging Face's) or interleaved " \
    "(Meta's); e.g. --rope interleaved", "half or interleaved", TC_FLAG_TEXT, offsetof(struct command, m.rope), \
    0, 0, NULL }

/* Local. Gives a run whose options name no model, neither by preset or config nor by all sizes, that of the newest
 * checkpoint in its own folder, where it resumes, or else of ckpt.from, and says so. TC_EUSER: an option of the model
 * contradicts it, or ckpt.from is no checkpoint. Without a checkpoint the options stay as they are. */
int tc_cmd_model_of_run(struct tc_config *c, struct tc_err *err);

/* argv[*i] is none of the command's own flags: the model, or an option of the run file, of which *i becomes the last
 * word. TC_EUSER. */
int tc_cmd_model_arg(struct tc_cmd_model *m, int argc, char **argv, int *i, struct tc_err *err);
/* Local. Opens m->path, with the options of the command line, and the tokenizer: m->tokenizer_file or else the
 * tokenizer.json of the checkpoint or of another program's folder. TC_EUSER and what tc_ckpt_open and tc_ckpt_attached
 * return. To be freed, also after a failure. */
int tc_cmd_model_open(struct tc_cmd_model *m, struct tc_err *err);
/* Local. Whether a token of the model is a byte: the checkpoint says so, or it is not known to be of a tokenizer, and the
 * vocabulary has 256. */
bool tc_cmd_model_bytes(const struct tc_cmd_model *m);
void tc_cmd_model_free(struct tc_cmd_model *m);

#endif
