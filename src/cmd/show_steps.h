/* show_steps.h - `tercio train --dry-run`: what each step would be made of, and which parameters are
 * updated how; `tercio graph` shows these, too. */
#ifndef TC_SHOW_STEPS_H
#define TC_SHOW_STEPS_H

#include "src/config/config.h"
#include "src/graph/graph.h"

/* Local. Prints rate, batch, context and tokens of the first, the last and every `every`-th step (0: about twenty), and of
 * those in which the schedule turns; then what is trained in all, with each source of data.train, whose headers are read.
 * TC_EUSER: the configuration or its data are not valid. */
int tc_show_steps(struct tc_config *c, int64_t every, bool json, struct tc_err *err);

/* show_rows.c. Local. If train.rows or model.mup says anything, prints a line for parameters that are treated alike, in the
 * model's order, each after `before`. */
void tc_show_rows(const struct tc_config *c, const struct tc_graph *g, const char *before);
/* Local. The same of a model that is not built yet; without `print` it only checks. TC_EUSER: train.rows is not valid. */
int tc_show_rows_of(const struct tc_config *c, bool print, struct tc_err *err);

#endif
