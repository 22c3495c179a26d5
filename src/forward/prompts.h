/* prompts.h - the prompts of a sampling. */
#ifndef TC_FORWARD_PROMPTS_H
#define TC_FORWARD_PROMPTS_H

#include "src/forward/sample.h"
#include "src/run/trained.h"

enum { TC_PROMPTS = 256 };             /* sequences at once */
struct tc_prompts {
  struct tc_prompt *prompt;            /* [n] as tc_sample takes them; owned, as their tokens are */
  int64_t n, cap;
  int64_t copies;                      /* set before: sequences of each prompt, one after the other */
};

/* Local. Adds the prompt `text` or, if that is NULL, those of `file`, one a line; and sets what sampling knows of the
 * model's tokens, and how many are new, if *how does not say. TC_EUSER: none, too many, empty ones, tokens beyond the
 * model's vocabulary. To be freed even after an error. */
int tc_prompts_read(struct tc_prompts *out, struct tc_sampling *how, const struct tc_trained *m, const char *text,
                    const char *file, struct tc_err *err);
void tc_prompts_free(struct tc_prompts *p);

#endif
