/* show_steps.h - `tercio train --dry-run`: what each step would be made of. */
#ifndef TC_SHOW_STEPS_H
#define TC_SHOW_STEPS_H

#include "src/config/config.h"

/* Local. Prints rate, batch, context and tokens of the first, the last and every `every`-th step (0: about twenty), and of
 * those in which the schedule turns; then what is trained in all, with each source of data.train, whose headers are read.
 * TC_EUSER: the configuration or its data are not valid. */
int tc_show_steps(struct tc_config *c, int64_t every, bool json, struct tc_err *err);

#endif
