/* model.h - what `tercio eval` and `tercio sample` share: the model of a checkpoint, and its tokenizer. */
#ifndef TC_CMD_MODEL_H
#define TC_CMD_MODEL_H

#include "src/config/config.h"
#include "src/token/token.h"

struct tc_cmd_model {
  const char *path, *tokenizer_file;   /* a checkpoint or a folder of them; NULL: none; both borrowed */
  struct tc_config *cfg;               /* the user's options with the checkpoint's model; owned */
  struct tc_tokenizer *tokenizer;      /* NULL: none; owned */
  int64_t step;
  char **flag;                         /* argv of the options that are the run file's; owned */
  int n_flags;
};

/* Whether argv[*i] is --name=VALUE, or --name with VALUE behind it, which *i is then; NULL: there is none. */
bool tc_cmd_option(int argc, char **argv, int *i, const char *name, const char **value);
/* argv[*i] is none of the command's own options: the checkpoint, or an option of the run file, of which *i becomes the
 * last word. TC_EUSER. */
int tc_cmd_model_arg(struct tc_cmd_model *m, int argc, char **argv, int *i, struct tc_err *err);
/* Local. Opens m->path and m->tokenizer_file, with the options of the command line. TC_EUSER and what tc_ckpt_open
 * returns. To be freed, also after a failure. */
int tc_cmd_model_open(struct tc_cmd_model *m, struct tc_err *err);
void tc_cmd_model_free(struct tc_cmd_model *m);

#endif
