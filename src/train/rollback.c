/* rollback.c - which losses are bad, and which samples are left out since. A loss is that of a step, of its validation,
 * or of an answer of a task: after none of them is the step's state saved.
 *
 * Going back (restore.c) leaves samples out. From a bad step B the run returns to the checkpoint of step S;
 * with the same samples it would reach B again. So from then on step s takes the samples of step s
 * + skipped, where skipped grew by B - S: the samples of steps S+1 ... B are not used again, and
 * everything else (learning rates, dropout, step numbers) depends on the step as before. None of
 * this is random: skipped, the number of rollbacks, and the losses whose median is taken are in
 * the checkpoint, so that a run that is killed and resumed decides as one that was not, where both
 * have the same checkpoints (a stop saves one more; those saved by time, or left out while another
 * is being written, may differ).
 *
 * All ranks have the same losses, so all decide alike without communication. */
#include "src/train/parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_LOSSES = 8 };            /* that a median is taken of */

/* ---- what checkpoints hold of it ------------------------------------------------------- */

char *tc_rollback_text(const struct tc_train *t)
{
  const struct tc_rollback *r = &t->rollback;
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  if (r->skipped || r->rollbacks || r->n_losses)
    fprintf(f, "skipped %lld rollbacks %lld losses", (long long)r->skipped,
            (long long)r->rollbacks);
  for (int i = 0; i < r->n_losses; i++) fprintf(f, " %.17g", r->loss[i]);
  if (fclose(f) != 0) TC_ASSERT(!"out of memory for the loop's text");
  return text;
}

int tc_rollback_parse(struct tc_train *t, const char *text, struct tc_err *err)
{
  struct tc_rollback *r = &t->rollback;
  long long skipped = 0, rollbacks = 0;
  int at = 0;
  r->n_losses = 0;
  if (*text && *text != ';' && (sscanf(text, "skipped %lld rollbacks %lld losses%n", &skipped, &rollbacks, &at) != 2 ||
                !at || skipped < 0 || rollbacks < 0))
    return tc_fail(err, TC_EUSER, "the checkpoint's note on the training loop makes no sense: "
                   "\"%.100s\"", text);
  r->skipped = skipped;
  r->rollbacks = rollbacks;
  for (const char *s = text + at; *s && r->n_losses < TC_ROLLBACK_LOSSES;) {
    char *end;
    double x = strtod(s, &end);
    if (end == s || !isfinite(x)) break;         /* a median of such is none */
    r->loss[r->n_losses++] = x;
    s = end;
  }
  return 0;
}

/* The median of the losses kept. */
static double median(const struct tc_rollback *r)
{
  double by[TC_ROLLBACK_LOSSES];
  memcpy(by, r->loss, (size_t)r->n_losses * sizeof *by);
  return tc_median(by, r->n_losses);
}

bool tc_rollback_bad(struct tc_train *t, const struct tc_step_report *s)
{
  struct tc_rollback *r = &t->rollback;
  if (!isfinite(s->loss) || !isfinite(s->grad_norm)) return true;
  if (t->run.cfg->train_spike <= 0) return false;
  if (t->run.at > 0 && s->step == t->run.stages[t->run.at].first) r->n_losses = 0;     /* another stage's are no measure */
  if (r->n_losses >= LEAST_LOSSES &&
      s->loss > t->run.cfg->train_spike * median(r)) return true;
  if (r->n_losses == TC_ROLLBACK_LOSSES)
    memmove(r->loss, r->loss + 1, (size_t)--r->n_losses * sizeof *r->loss);
  r->loss[r->n_losses++] = s->loss;
  return false;
}

bool tc_rollback_bad_validation(const struct tc_train *t, const struct tc_step_report *s)
{
  const struct tc_tasks *x = &t->tasks;
  int64_t bad = !isfinite(s->val_loss);
  for (int i = 0; i < x->n; i++) bad += x->task[i].not_finite;
  return bad > 0;
}
