/* show_data.h - `tercio data show`, `check` and `decode`: what is in files that training reads; and how flags of all of
 * `tercio data` are read. */
#ifndef TC_CMD_SHOW_DATA_H
#define TC_CMD_SHOW_DATA_H

#include "src/base/base.h"

/* Local, as all of these; TC_EUSER. argv[0] is the verb. *is_verb: whether it is one. */
int tc_show_data(bool *is_verb, int argc, char **argv, struct tc_err *err);
/* A number of threads, from text. */
int tc_data_threads(const char *text, int *out, struct tc_err *err);
/* argv[*i] is --NAME VALUE or --NAME=VALUE: the value (and *i moves on to it); NULL: it is not, or (in err) the
 * value is missing. */
const char *tc_data_option(int argc, char **argv, int *i, const char *name, struct tc_err *err);

#endif
