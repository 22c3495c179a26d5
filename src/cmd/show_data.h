/* show_data.h - `tercio data show`, `check` and `decode`: what is in files that training reads; and how flags of all of
 * `tercio data` are read. */
#ifndef TC_CMD_SHOW_DATA_H
#define TC_CMD_SHOW_DATA_H

#include "src/cmd/cmd.h"

/* Local; TC_EUSER. argv[0] is the verb. *is_verb: whether it is one. */
int tc_show_data(bool *is_verb, int argc, char **argv, struct tc_err *err);

/* What the tables of `tercio data` share: how words are read, and --threads. */
#define TC_DATA_FLAGS TC_FLAGS_END, .wrong = "%s %s", \
                      .missing = "%s needs a value; see tercio data --help"
#define TC_DATA_THREADS "a number from %.0f to %.0f", .kind = TC_FLAG_INT
enum { TC_DATA_MOST_THREADS = 1024 };

#endif
