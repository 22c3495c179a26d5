/* status.c - thread statuses and blocked calls: the text of a rank's report.
 *
 * Invariants:
 *  - a status's atomics are written only by its own thread; its text is protected by its lock, and so is
 *    every read of the borrowed strings: after a mark that took the lock no thread reads them;
 *  - a status's `seen` and `quiet_ns` are used only by the watchdog's thread. */
#include <stdlib.h>
#include <string.h>

#include "src/watch/impl.h"

/* The status of this thread; thread-local, since ranks may be threads of one process. */
static _Thread_local struct tc_thread_status *here;
/* The status of the thread that a thread of OpenMP works for. */
static _Thread_local const struct tc_thread_status *helps;

/* ---- marks --------------------------------------------------------------------------------- */

static void count_mark(struct tc_thread_status *l)
{
  uint64_t b = atomic_load_explicit(&l->marks, memory_order_relaxed);
  atomic_store_explicit(&l->marks, b + 1, memory_order_release);
}

void tc_at(const char *doing, const char *what, const char *of, int mb)
{
  struct tc_thread_status *l = here;
  if (!l) return;
  atomic_store_explicit(&l->doing, doing, memory_order_relaxed);
  atomic_store_explicit(&l->what, what, memory_order_relaxed);
  atomic_store_explicit(&l->of, of, memory_order_relaxed);
  atomic_store_explicit(&l->mb, mb, memory_order_relaxed);
  atomic_store_explicit(&l->rests, false, memory_order_relaxed);
  count_mark(l);
}

static void set_text(struct tc_thread_status *l, bool rests, const char *doing, const char *what)
{
  if (!l) return;
  pthread_mutex_lock(&l->lock);
  atomic_store(&l->doing, NULL);
  atomic_store(&l->what, NULL);
  atomic_store(&l->of, NULL);
  snprintf(l->text, sizeof l->text, "%s%s%s", doing, what ? " of " : "", what ? what : "");
  atomic_store(&l->rests, rests);
  count_mark(l);
  pthread_mutex_unlock(&l->lock);
}

void tc_at_file(const char *doing, const char *path) { set_text(here, false, doing, path); }

void tc_at_phase(const char *doing) { set_text(here, false, doing, NULL); }

void tc_at_again(void)
{
  if (here) count_mark(here);
}

void tc_at_rest(void) { set_text(here, true, "idle", NULL); }

void tc_at_step(int64_t step)
{
  if (!here) return;
  atomic_store_explicit(&here->step, step, memory_order_relaxed);
  count_mark(here);
}

static void wait_for(struct tc_blocked_call *s, bool runs)
{
  if (!here) return;
  atomic_store(&here->runs, runs);
  atomic_store_explicit(&here->waits, s, memory_order_release);
  count_mark(here);
}

void tc_thread_status_waits(struct tc_blocked_call *s) { wait_for(s, false); }

void tc_thread_status_runs(struct tc_blocked_call *s) { wait_for(s, true); }

void tc_watch_allow(double least_s)
{
  if (here) atomic_store(&here->least_ns, (int64_t)(least_s * 1e9));
}

struct tc_thread_status *tc_thread_status_add(struct rank_status *p, const char *name)
{
  struct tc_thread_status *l = tc_calloc(1, sizeof *l);
  l->of_rank = p;
  snprintf(l->name, sizeof l->name, "%s", name);
  pthread_mutex_init(&l->lock, NULL);
  set_text(l, true, "idle", NULL);
  pthread_mutex_lock(&p->lock);
  l->next = p->threads;
  p->threads = l;
  pthread_mutex_unlock(&p->lock);
  return l;
}

struct tc_thread_status *tc_thread_status_new(const char *name)
{
  return here ? tc_thread_status_add(here->of_rank, name) : NULL;
}

void tc_thread_status_use(struct tc_thread_status *l) { here = l; }

struct tc_thread_status *tc_thread_status_mine(void) { return here; }

bool tc_thread_status_helps(const struct tc_thread_status *l)
{
  bool before = helps != NULL;
  helps = l;
  return before;
}

/* ---- for signal handlers --------------------------------------------------------------- */

bool tc_watch_standing(struct tc_standing *s)
{
  const struct tc_thread_status *l = here ? here : helps;
  *s = (struct tc_standing){ .rank = -1, .thread = "", .word = { "", "", "" } };
  if (!l) return false;
  s->rank = l->of_rank->world > 1 ? l->of_rank->rank : -1;
  s->step = atomic_load(&l->step);
  s->thread = here ? l->name : "of OpenMP";
  const char *word[] = { atomic_load(&l->doing), atomic_load(&l->what), atomic_load(&l->of) };
  for (int i = 0, n = 0; i < TC_STANDING_WORDS; i++)
    if (word[i] && *word[i]) s->word[n++] = word[i];
  if (!word[0]) s->word[0] = l->text;
  return true;
}

/* ---- blocked calls ------------------------------------------------------------------------- */

struct tc_blocked_call *tc_blocked_call_new(void)
{
  if (!here) return NULL;
  struct tc_blocked_call *s = tc_calloc(1, sizeof *s);
  s->of_rank = here->of_rank;
  pthread_mutex_init(&s->lock, NULL);
  pthread_mutex_lock(&s->of_rank->lock);
  s->next = s->of_rank->blocked_calls;
  s->of_rank->blocked_calls = s;
  pthread_mutex_unlock(&s->of_rank->lock);
  return s;
}

void tc_blocked_call_set(struct tc_blocked_call *s, const char *call, double age_s,
                         const int32_t *late, int n)
{
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  snprintf(s->call, sizeof s->call, "%s", call);
  s->since_ns = tc_now_ns() - (int64_t)(age_s * 1e9);
  s->n = TC_MIN(n, TC_SUSPECTS);
  memcpy(s->late, late, (size_t)s->n * sizeof *late);
  s->on = true;
  pthread_mutex_unlock(&s->lock);
}

void tc_blocked_call_clear(struct tc_blocked_call *s)
{
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->on = false;
  pthread_mutex_unlock(&s->lock);
}

void tc_watch_leave(int rc, const struct tc_err *err)
{
  if (!here) return;
  struct rank_status *p = here->of_rank;
  tc_at_rest();
  pthread_mutex_lock(&p->lock);
  p->ended = true;
  if (rc == 0) snprintf(p->last_words, sizeof p->last_words, "its work is done");
  else snprintf(p->last_words, sizeof p->last_words, "status %d: %.200s", -rc, err->text);
  pthread_mutex_unlock(&p->lock);
}

bool tc_rank_status_left(const struct rank_status *p)
{
  bool left = false;
  for (const struct tc_thread_status *l = p->threads; l; l = l->next)
    left |= l->next && !atomic_load(&l->rests);
  return left;
}

void tc_rank_status_clear(struct rank_status *p)
{
  for (struct tc_thread_status *l = p->threads, *next; l; l = next) {
    next = l->next;
    pthread_mutex_destroy(&l->lock);
    if (here == l) here = NULL;
    free(l);
  }
  for (struct tc_blocked_call *s = p->blocked_calls, *next; s; s = next) {
    next = s->next;
    pthread_mutex_destroy(&s->lock);
    free(s);
  }
  pthread_mutex_destroy(&p->lock);
}

/* ---- where a rank stands ------------------------------------------------------------------- */

void tc_thread_status_text(struct tc_thread_status *l, char *text, size_t size)
{
  pthread_mutex_lock(&l->lock);
  const char *doing = atomic_load(&l->doing), *what = atomic_load(&l->what);
  const char *of = atomic_load(&l->of);
  int64_t step = atomic_load(&l->step);
  int mb = atomic_load(&l->mb);
  if (step > 0) tc_text_add(text, size, "step %lld, ", (long long)step);
  if (!doing) {
    tc_text_add(text, size, "%s", l->text);
  } else {
    tc_text_add(text, size, "%s", doing);
    if (what) tc_text_add(text, size, " %s", what);
    if (of && *of) tc_text_add(text, size, " of %s", of);
    if (mb >= 0) tc_text_add(text, size, ", micro-batch %d", mb);
  }
  pthread_mutex_unlock(&l->lock);
}

static bool blocked_call_report(struct tc_blocked_call *s, const char *const *names, struct report *r)
{
  pthread_mutex_lock(&s->lock);
  bool on = s->on;
  if (on) {
    r->for_ns = tc_now_ns() - s->since_ns;
    r->n = s->n;
    memcpy(r->late, s->late, sizeof r->late);
    tc_text_add(r->text, sizeof r->text, "; waits for %s from", s->call);
    for (int i = 0; i < s->n; i++)
      tc_text_add(r->text, sizeof r->text, "%s%s", i ? ", " : " ", names[s->late[i]]);
  }
  pthread_mutex_unlock(&s->lock);
  return on;
}

/* The status that is reported for the rank: that of a thread that hangs; else that of the rank's own
 * thread, unless it is idle. */
static struct tc_thread_status *reported_thread(const struct rank_status *p)
{
  struct tc_thread_status *hangs = NULL, *best = NULL;
  for (struct tc_thread_status *l = p->threads; l; l = l->next) {
    if (l->quiet_ns >= SECOND && (!hangs || l->quiet_ns > hangs->quiet_ns)) hangs = l;
    if (!best || !atomic_load(&l->rests)) best = l;
  }
  return hangs ? hangs : best;
}

void tc_rank_status_report(struct rank_status *p, const char *const *names, struct report *r)
{
  *r = (struct report){ .rank = p->rank, .state = BUSY };
  pthread_mutex_lock(&p->lock);
  struct tc_thread_status *l = reported_thread(p);
  if (p->ended) {
    r->state = ENDED;
    snprintf(r->text, sizeof r->text, "%s", p->last_words);
  }
  pthread_mutex_unlock(&p->lock);
  if (r->state == ENDED) return;
  if (!l) {
    tc_text_add(r->text, sizeof r->text, "not started");
    return;
  }
  tc_thread_status_text(l, r->text, sizeof r->text);
  r->for_ns = l->quiet_ns;
  struct tc_blocked_call *s = atomic_load(&l->waits);
  if (!s) return;
  r->state = WAITING;
  if (!blocked_call_report(s, names, r)) tc_text_add(r->text, sizeof r->text, "; communicates");
}
