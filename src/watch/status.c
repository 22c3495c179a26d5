/* status.c - lanes and stalls: what the ranks say of themselves, and how it reads.
 *
 * Invariants:
 *  - a lane's atomics are written by its own thread alone; its text is under its lock, and so is
 *    every read of the borrowed strings: a mark that takes the lock ends all borrowing;
 *  - a lane's `seen` and `quiet_ns` belong to the watchdog's thread. */
#include <stdlib.h>
#include <string.h>

#include "src/watch/impl.h"

/* The lane of this thread, as base/base.c knows its rank: ranks may be threads of one process. */
static _Thread_local struct tc_lane *here;
/* Of a thread of OpenMP: the lane of the thread that it works for. */
static _Thread_local const struct tc_lane *helps;

/* ---- marks --------------------------------------------------------------------------------- */

static void beat(struct tc_lane *l)
{
  uint64_t b = atomic_load_explicit(&l->beat, memory_order_relaxed);
  atomic_store_explicit(&l->beat, b + 1, memory_order_release);
}

void tc_at(const char *doing, const char *what, const char *of, int mb)
{
  struct tc_lane *l = here;
  if (!l) return;
  atomic_store_explicit(&l->doing, doing, memory_order_relaxed);
  atomic_store_explicit(&l->what, what, memory_order_relaxed);
  atomic_store_explicit(&l->of, of, memory_order_relaxed);
  atomic_store_explicit(&l->mb, mb, memory_order_relaxed);
  atomic_store_explicit(&l->rests, false, memory_order_relaxed);
  beat(l);
}

static void set_text(struct tc_lane *l, bool rests, const char *doing, const char *what)
{
  if (!l) return;
  pthread_mutex_lock(&l->lock);
  atomic_store(&l->doing, NULL);
  atomic_store(&l->what, NULL);
  atomic_store(&l->of, NULL);
  snprintf(l->text, sizeof l->text, "%s%s%s", doing, what ? " of " : "", what ? what : "");
  atomic_store(&l->rests, rests);
  beat(l);
  pthread_mutex_unlock(&l->lock);
}

void tc_at_file(const char *doing, const char *what) { set_text(here, false, doing, what); }

void tc_at_again(void)
{
  if (here) beat(here);
}

void tc_at_rest(void) { set_text(here, true, "nothing to do", NULL); }

void tc_at_step(int64_t step)
{
  if (!here) return;
  atomic_store_explicit(&here->step, step, memory_order_relaxed);
  beat(here);
}

void tc_lane_waits(struct tc_stall *s)
{
  if (!here) return;
  atomic_store_explicit(&here->waits, s, memory_order_release);
  beat(here);
}

void tc_watch_allow(double least_s)
{
  if (here) atomic_store(&here->least_ns, (int64_t)(least_s * 1e9));
}

struct tc_lane *tc_lane_add(struct post *p, const char *name)
{
  struct tc_lane *l = tc_calloc(1, sizeof *l);
  l->post = p;
  snprintf(l->name, sizeof l->name, "%s", name);
  pthread_mutex_init(&l->lock, NULL);
  set_text(l, true, "nothing to do", NULL);
  pthread_mutex_lock(&p->lock);
  l->next = p->lanes;
  p->lanes = l;
  pthread_mutex_unlock(&p->lock);
  return l;
}

struct tc_lane *tc_lane_new(const char *name)
{
  return here ? tc_lane_add(here->post, name) : NULL;
}

void tc_lane_use(struct tc_lane *l) { here = l; }

struct tc_lane *tc_lane_mine(void) { return here; }

bool tc_lane_helps(const struct tc_lane *l)
{
  bool before = helps != NULL;
  helps = l;
  return before;
}

/* ---- for signal handlers --------------------------------------------------------------- */

bool tc_watch_standing(struct tc_standing *s)
{
  const struct tc_lane *l = here ? here : helps;
  *s = (struct tc_standing){ .rank = -1, .lane = "", .word = { "", "", "" } };
  if (!l) return false;
  s->rank = l->post->world > 1 ? l->post->rank : -1;
  s->step = atomic_load(&l->step);
  s->lane = here ? l->name : "of OpenMP";
  const char *word[] = { atomic_load(&l->doing), atomic_load(&l->what), atomic_load(&l->of) };
  for (int i = 0, n = 0; i < TC_STANDING_WORDS; i++)
    if (word[i] && *word[i]) s->word[n++] = word[i];
  if (!word[0]) s->word[0] = l->text;
  return true;
}

/* ---- stalls -------------------------------------------------------------------------------- */

struct tc_stall *tc_stall_new(void)
{
  if (!here) return NULL;
  struct tc_stall *s = tc_calloc(1, sizeof *s);
  s->post = here->post;
  pthread_mutex_init(&s->lock, NULL);
  pthread_mutex_lock(&s->post->lock);
  s->next = s->post->stalls;
  s->post->stalls = s;
  pthread_mutex_unlock(&s->post->lock);
  return s;
}

void tc_stall_set(struct tc_stall *s, const char *call, double age_s, const int32_t *late, int n)
{
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  snprintf(s->call, sizeof s->call, "%s", call);
  s->since_ns = tc_now_ns() - (int64_t)(age_s * 1e9);
  s->n = TC_MIN(n, TC_BLAMED);
  memcpy(s->late, late, (size_t)s->n * sizeof *late);
  s->on = true;
  pthread_mutex_unlock(&s->lock);
}

void tc_stall_clear(struct tc_stall *s)
{
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->on = false;
  pthread_mutex_unlock(&s->lock);
}

void tc_watch_leave(int rc, const struct tc_err *err)
{
  if (!here) return;
  struct post *p = here->post;
  tc_at_rest();
  pthread_mutex_lock(&p->lock);
  p->ended = true;
  if (rc == 0) snprintf(p->last_words, sizeof p->last_words, "its work is done");
  else snprintf(p->last_words, sizeof p->last_words, "status %d: %.200s", -rc, err->text);
  pthread_mutex_unlock(&p->lock);
}

bool tc_post_left(const struct post *p)
{
  bool left = false;
  for (const struct tc_lane *l = p->lanes; l; l = l->next)
    left |= l->next && !atomic_load(&l->rests);
  return left;
}

void tc_post_clear(struct post *p)
{
  for (struct tc_lane *l = p->lanes, *next; l; l = next) {
    next = l->next;
    pthread_mutex_destroy(&l->lock);
    if (here == l) here = NULL;
    free(l);
  }
  for (struct tc_stall *s = p->stalls, *next; s; s = next) {
    next = s->next;
    pthread_mutex_destroy(&s->lock);
    free(s);
  }
  pthread_mutex_destroy(&p->lock);
}

/* ---- where a rank stands ------------------------------------------------------------------- */

/* "step 3, forward matmul of h.1, micro-batch 0" */
void tc_lane_text(struct tc_lane *l, char *text, size_t size)
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

static bool stall_report(struct tc_stall *s, const char *const *who, struct report *r)
{
  pthread_mutex_lock(&s->lock);
  bool on = s->on;
  if (on) {
    r->for_ns = tc_now_ns() - s->since_ns;
    r->n = s->n;
    memcpy(r->late, s->late, sizeof r->late);
    tc_text_add(r->text, sizeof r->text, "; waits for %s from", s->call);
    for (int i = 0; i < s->n; i++)
      tc_text_add(r->text, sizeof r->text, "%s%s", i ? ", " : " ", who[s->late[i]]);
  }
  pthread_mutex_unlock(&s->lock);
  return on;
}

/* The lane that tells most: one that hangs; else the rank's own, unless that rests. */
static struct tc_lane *telling(const struct post *p)
{
  struct tc_lane *hangs = NULL, *best = NULL;
  for (struct tc_lane *l = p->lanes; l; l = l->next) {
    if (l->quiet_ns >= SECOND && (!hangs || l->quiet_ns > hangs->quiet_ns)) hangs = l;
    if (!best || !atomic_load(&l->rests)) best = l;
  }
  return hangs ? hangs : best;
}

/* Of a rank of this process. */
void tc_post_report(struct post *p, const char *const *who, struct report *r)
{
  *r = (struct report){ .rank = p->rank, .state = BUSY };
  pthread_mutex_lock(&p->lock);
  struct tc_lane *l = telling(p);
  if (p->ended) {
    r->state = ENDED;
    snprintf(r->text, sizeof r->text, "%s", p->last_words);
  }
  pthread_mutex_unlock(&p->lock);
  if (r->state == ENDED) return;
  if (!l) {
    tc_text_add(r->text, sizeof r->text, "not begun");
    return;
  }
  tc_lane_text(l, r->text, sizeof r->text);
  r->for_ns = l->quiet_ns;
  struct tc_stall *s = atomic_load(&l->waits);
  if (!s) return;
  r->state = WAITING;
  if (!stall_report(s, who, r)) tc_text_add(r->text, sizeof r->text, "; communicates");
}
