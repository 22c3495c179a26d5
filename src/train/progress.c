/* progress.c - the line on the terminal that shows how far a run has come. */
#include "src/train/impl.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

void tc_progress(const struct tc_train *t, const struct tc_step_report *r, int64_t *last_ns,
                 double tokens_per_s)
{
  const int64_t now = tc_now_ns(), end = tc_train_last_step(t->run.cfg);
  bool tty = isatty(STDERR_FILENO), last = r->step == end;
  if (t->run.rank || (!last && *last_ns && !isfinite(r->val_loss) &&
                  now - *last_ns < (tty ? 200 : 2000) * INT64_C(1000000)))
    return;
  *last_ns = now;
  char val[32] = "";
  if (isfinite(r->val_loss)) snprintf(val, sizeof val, "  val %.4f", r->val_loss);
  int64_t left = tokens_per_s > 0 ? (int64_t)((double)((end - r->step) * r->tokens) / tokens_per_s)
                                  : 0;
  fprintf(stderr, "%sstep %lld/%lld  loss %.4f%s  norm %.3f  lr %.2e  %.0f tok/s  left %lld:%02lld:%02lld%s",
          tty ? "\r" : "", (long long)r->step, (long long)end, r->loss, val, r->grad_norm, r->lr,
          tokens_per_s, (long long)left / 3600, (long long)left / 60 % 60, (long long)left % 60,
          tty && !last && !*val ? "\033[K" : tty ? "\033[K\n" : "\n");
  fflush(stderr);
}
