/* stop_if.c - train.stop_if: whether the validations so far end the run early.
 *
 * All ranks have the same validation losses, so all decide alike without communication. What it needs of the past is in the
 * checkpoint, so a run that is killed and resumed ends after the same step; it ends again if it is started again. */
#include "src/recipe/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int tc_stop_if_read(struct tc_stop_if *s, const struct tc_config *c, struct tc_err *err)
{
  const char *text = c->train_stop_if;
  *s = (struct tc_stop_if){ .best = INFINITY };
  for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
    const size_t len = strcspn(at, " ");
    const bool stale = strncmp(at, "stale:", 6) == 0, below = strncmp(at, "below:", 6) == 0;
    char *end = NULL;
    const double x = stale || below ? strtod(at + 6, &end) : 0;
    const bool whole = end == at + len && len > 6 && isfinite(x) && x > 0;
    if (!whole || (stale && (x != floor(x) || x > 1e9)))
      return tc_fail(err, TC_EUSER, "train.stop_if is \"%.100s\"; it has to be stale:N, a whole number of validations from 1 on, "
                     "below:X, a loss above 0, or both", text);
    if (stale) s->most = (int64_t)x;
    else s->below = x;
    at += len;
  }
  if ((s->most > 0 || s->below > 0) && c->train_eval_every == 0)
    return tc_fail(err, TC_EUSER, "train.stop_if = %.100s goes by validations, of which train.eval_every = 0 makes none before the "
                   "last step", text);
  return 0;
}

void tc_stop_if_validated(struct tc_stop_if *s, int64_t step, double loss)
{
  s->stale++;
  if (!(loss < s->best)) return;
  s->best = loss;
  s->best_step = step;
  s->stale = 0;
}

bool tc_stop_if_met(const struct tc_stop_if *s)
{ return (s->most > 0 && s->stale >= s->most) || s->best < s->below; }

/* ---- what checkpoints hold of it ------------------------------------------------------- */

char *tc_stop_if_text(const struct tc_stop_if *s)
{
  return isfinite(s->best) ? tc_sprintf("; best %.17g at %lld stale %lld", s->best, (long long)s->best_step, (long long)s->stale)
                           : tc_strdup("");
}

void tc_stop_if_parse(struct tc_stop_if *s, const char *loop)
{
  const char *text = strchr(loop, ';');
  long long at, stale;
  s->best = INFINITY;
  s->best_step = s->stale = 0;
  double best;
  if (!text || sscanf(text, "; best %lf at %lld stale %lld", &best, &at, &stale) != 3 || !isfinite(best)) return;
  s->best = best;
  s->best_step = at;
  s->stale = stale;
}
