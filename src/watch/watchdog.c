/* watchdog.c - the watchdog thread and its search for the ranks that a wait depends on.
 *
 * Invariants:
 *  - the channel and the search are used only by the watchdog's thread;
 *  - no thread waits for the watchdog longer than DIAGNOSE_NS, and the watchdog waits for no thread;
 *  - giving up is final: the process ends within GRACE_NS. */
#include <stdlib.h>
#include <string.h>

#include "src/watch/impl.h"

#define PROMPT_NS (SECOND / 500)  /* polling interval during a search */
#define DIAGNOSE_NS (8 * SECOND)
#define LINGER_NS (SECOND / 2)    /* for the other ranks' log lines, before a step is ended */
#define GRACE_NS (10 * SECOND)    /* time for a process to end by itself after giving up */

enum kind { ASK = 1, TELL, GIVE_UP };
struct message { int32_t kind, from, about; struct report report; };

struct request {
  struct request *next;
  int from, n;
  int32_t late[TC_SUSPECTS];
  struct tc_diagnosis *out;
  bool done;
};

/* A rank that may block the wait. */
struct suspect { int rank, via; int64_t asked_ns; bool answered; struct report report; };

struct tc_watch {
  struct tc_watch_opts o;
  int64_t deadline_ns;
  struct rank_status *local;      /* [n_local] */
  pthread_t thread;
  pthread_mutex_t lock, channel_lock;
  pthread_cond_t wake, answered;
  bool quit, half;                /* half: of a deadline has passed */
  struct request *requests;
  struct tc_channel *channel;     /* under channel_lock */
  int64_t given_up_ns;            /* 0: not given up */
  struct suspect suspect[TC_MOST_SUSPECTS];
  int n_suspects;
};

bool tc_blocked_call_diagnose(struct tc_blocked_call *s, struct tc_diagnosis *b)
{
  *b = (struct tc_diagnosis){ 0 };
  if (!s) return false;
  if (tc_thread_status_mine()) atomic_store(&tc_thread_status_mine()->runs, false);      /* it waits for the watchdog */
  struct tc_watch *w = s->of_rank->watch;
  struct tc_diagnosis found = { 0 };
  struct request r = { .from = s->of_rank->rank, .out = &found };
  pthread_mutex_lock(&s->lock);
  r.n = s->n;
  memcpy(r.late, s->late, sizeof r.late);
  pthread_mutex_unlock(&s->lock);
  int64_t until_ns = tc_now_ns() + DIAGNOSE_NS;
  pthread_mutex_lock(&w->lock);
  r.next = w->requests;
  w->requests = &r;
  pthread_cond_signal(&w->wake);
  while (!r.done && tc_now_ns() < until_ns) tc_cond_wait_until(&w->answered, &w->lock, until_ns);
  for (struct request **q = &w->requests; *q && !r.done; q = &(*q)->next)
    if (*q == &r) {
      *q = r.next;
      break;
    }
  bool done = r.done;
  pthread_mutex_unlock(&w->lock);
  if (done) *b = found;
  return done;
}

static bool is_mine(const struct tc_watch *w, int rank)
{
  return rank >= w->o.first && rank < w->o.first + w->o.n_local;
}

static void log_reports(struct tc_watch *w)
{
  int was = tc_log_rank();
  for (int i = 0; i < w->o.n_local; i++) {
    struct report r;
    tc_rank_status_report(&w->local[i], w->o.rank_names, &r);
    tc_log_set_rank(w->o.world > 1 ? r.rank : -1);
    tc_log("%s stands at %s, for %.1f s", w->o.rank_names[r.rank], r.text, tc_seconds(r.for_ns));
  }
  tc_log_set_rank(was);
}

/* ---- messages ------------------------------------------------------------------------------- */

static void send_message(struct tc_watch *w, int to, const struct message *l)
{
  pthread_mutex_lock(&w->channel_lock);
  if (w->channel) w->channel->send(w->channel, to, l, (int)sizeof *l);
  pthread_mutex_unlock(&w->channel_lock);
}

static bool next_message(struct tc_watch *w, struct message *l)
{
  pthread_mutex_lock(&w->channel_lock);
  bool got = w->channel && w->channel->poll(w->channel, l, (int)sizeof *l);
  pthread_mutex_unlock(&w->channel_lock);
  return got;
}

/* Once: logs the reports of this process's ranks, and sends GIVE_UP to the processes at distance 1, 2, 4, ...:
 * it reaches all in log2 steps, in spite of dead ones. */
static void give_up(struct tc_watch *w)
{
  if (w->given_up_ns) return;
  w->given_up_ns = tc_now_ns();
  struct message l = { .kind = GIVE_UP, .from = w->o.first };
  for (int64_t d = 1; w->o.n_local < w->o.world && d < w->o.world; d *= 2)
    send_message(w, (int)((w->o.first + d) % w->o.world), &l);
  log_reports(w);
}

static void read_messages(struct tc_watch *w)
{
  struct message l;
  while (next_message(w, &l)) {
    if (l.kind == ASK && is_mine(w, l.about)) {
      struct message answer = { .kind = TELL, .from = w->o.first, .about = l.about };
      tc_rank_status_report(&w->local[l.about - w->o.first], w->o.rank_names, &answer.report);
      send_message(w, l.from, &answer);
    } else if (l.kind == TELL) {
      for (int i = 0; i < w->n_suspects; i++) {
        if (w->suspect[i].rank != l.about || w->suspect[i].answered) continue;
        w->suspect[i].report = l.report;
        w->suspect[i].answered = true;
      }
    } else if (l.kind == GIVE_UP) {
      give_up(w);
    }
  }
}

/* ---- the search ---------------------------------------------------------------------------- */

static void add_suspect(struct tc_watch *w, int rank, int via)
{
  if (rank < 0 || rank >= w->o.world || w->n_suspects == TC_MOST_SUSPECTS) return;
  for (int i = 0; i < w->n_suspects; i++)
    if (w->suspect[i].rank == rank) return;
  w->suspect[w->n_suspects++] =
    (struct suspect){ .rank = rank, .via = via, .asked_ns = tc_now_ns() };
}

static void ask(struct tc_watch *w, struct suspect *l)
{
  if (is_mine(w, l->rank)) {
    tc_rank_status_report(&w->local[l->rank - w->o.first], w->o.rank_names, &l->report);
    l->answered = true;
  } else {
    struct message q = { .kind = ASK, .from = w->o.first, .about = l->rank };
    send_message(w, l->rank, &q);
  }
}

/* Queries the ranks waited for, then those that they wait for, and so on. */
static void gather_reports(struct tc_watch *w, const struct request *r)
{
  int asked = 1, followed = 1;
  int64_t end_ns = tc_now_ns() + TC_WATCH_SEARCH_NS;
  bool open = true;
  w->n_suspects = 0;
  add_suspect(w, r->from, -1);
  w->suspect[0].answered = true;
  for (int i = 0; i < r->n; i++) add_suspect(w, r->late[i], 0);
  while (open && tc_now_ns() < end_ns) {
    for (; asked < w->n_suspects; asked++) ask(w, &w->suspect[asked]);
    read_messages(w);
    open = false;
    for (int i = followed; i < w->n_suspects; i++) {
      struct suspect *l = &w->suspect[i];
      if (l->answered && l->report.state == WAITING && l->report.n >= 0) {
        for (int k = 0; k < TC_MIN(l->report.n, TC_SUSPECTS); k++)
          add_suspect(w, l->report.late[k], i);
        l->report.n = -1;                        /* followed */
      }
      open |= !l->answered && tc_now_ns() - l->asked_ns < TC_WATCH_SILENT_NS;
    }
    open |= asked < w->n_suspects;
    if (open) tc_sleep_ns(PROMPT_NS);
  }
}

enum diagnosis { SILENT, GONE, LATE, WAITS };

static int diagnosis(const struct suspect *l)
{
  if (!l->answered) return SILENT;
  return l->report.state == ENDED ? GONE : l->report.state == BUSY ? LATE : WAITS;
}

static void explain(struct tc_watch *w, const struct suspect *l, char *why, size_t size)
{
  static const char *const how[] = {
    [SILENT] = ("it gives no sign of life: it was stopped, has died, or cannot be reached; see "
                "its node"),
    [GONE] = "it has ended: ",
    [LATE] = "it stands at ",
  };
  tc_text_add(why, size, "%s%s", how[diagnosis(l)], diagnosis(l) == SILENT ? "" : l->report.text);
  if (diagnosis(l) == LATE) tc_text_add(why, size, ", for %.1f s", tc_seconds(l->report.for_ns));
  if (l->via > 0) tc_text_add(why, size, "; %s waits for it", w->o.rank_names[w->suspect[l->via].rank]);
}

/* The suspects: the ranks that are silent; else those that have ended; else the one that has been busy with
 * one operation for longest; else none: they all wait for each other. */
static void name_suspects(struct tc_watch *w, struct tc_diagnosis *b)
{
  const struct suspect *first = NULL;
  *b = (struct tc_diagnosis){ 0 };
  for (int i = 1; i < w->n_suspects; i++) {
    const struct suspect *l = &w->suspect[i];
    bool worse = !first || diagnosis(l) < diagnosis(first) ||
                 (diagnosis(l) == LATE && diagnosis(first) == LATE &&
                  l->report.for_ns > first->report.for_ns);
    if (diagnosis(l) < WAITS && worse) first = l;
  }
  if (!first) {
    snprintf(b->why, sizeof b->why, "it waits itself, and so do all that it waits for: a message "
             "was lost, or the ranks do not run the same program");
    return;
  }
  for (int i = 1; i < w->n_suspects && b->n < TC_SUSPECTS; i++) {
    const struct suspect *l = &w->suspect[i];
    if (l != first && (diagnosis(first) == LATE || diagnosis(l) != diagnosis(first))) continue;
    tc_text_add(b->suspects, sizeof b->suspects, "%s%s", b->n++ ? ", " : "", w->o.rank_names[l->rank]);
  }
  explain(w, first, b->why, sizeof b->why);
}

/* Called with the lock held. */
static void serve_requests(struct tc_watch *w)
{
  while (w->requests) {
    struct request *r = w->requests, copy = *r;
    struct tc_diagnosis found;
    pthread_mutex_unlock(&w->lock);
    give_up(w);
    gather_reports(w, &copy);
    name_suspects(w, &found);
    pthread_mutex_lock(&w->lock);
    for (struct request **q = &w->requests; *q; q = &(*q)->next) {
      if (*q != r) continue;                     /* removed: its thread no longer waits */
      *r->out = found;
      r->done = true;
      *q = r->next;
      break;
    }
    pthread_cond_broadcast(&w->answered);
  }
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* A thread without a mark within its deadline; NULL if there is none. */
static struct tc_thread_status *find_hanging_thread(struct tc_watch *w, int64_t dt_ns)
{
  struct tc_thread_status *hangs = NULL;
  for (int i = 0; i < w->o.n_local; i++) {
    pthread_mutex_lock(&w->local[i].lock);
    for (struct tc_thread_status *l = w->local[i].threads; l; l = l->next) {
      uint64_t now = atomic_load_explicit(&l->marks, memory_order_acquire);
      bool waits = atomic_load(&l->rests) || (atomic_load(&l->waits) && !atomic_load(&l->runs));
      l->quiet_ns = now != l->seen || waits ? 0 : l->quiet_ns + dt_ns;
      l->seen = now;
      const int64_t most_ns = TC_MAX(w->deadline_ns, atomic_load(&l->least_ns));
      if (l->quiet_ns > most_ns) hangs = l;
      w->half |= l->quiet_ns > most_ns / 2;
    }
    pthread_mutex_unlock(&w->local[i].lock);
  }
  return hangs;
}

static void end_hang(struct tc_watch *w, struct tc_thread_status *l)
{
  char why[TC_SUSPECTS * TEXT] = "";
  int rank = l->of_rank->rank;
  bool allowed = atomic_load(&l->least_ns) > w->deadline_ns;
  tc_text_add(why, sizeof why, "%s has stood still for %.1f s%s at ", w->o.rank_names[rank],
              tc_seconds(l->quiet_ns), allowed ? "" : " (deadline run.deadline)");
  if (strcmp(l->name, "main")) tc_text_add(why, sizeof why, "%s: ", l->name);
  tc_thread_status_text(l, why, sizeof why);
  tc_log_set_rank(w->o.world > 1 ? rank : -1);
  tc_warn("%s", why);
  give_up(w);
  for (int64_t end = tc_now_ns() + LINGER_NS; tc_now_ns() < end; tc_sleep_ns(PROMPT_NS))
    read_messages(w);
  w->o.end(-TC_EPEER, "a rank hangs");
}

static void *watchdog(void *arg)
{
  struct tc_watch *w = arg;
  int64_t last_ns = tc_now_ns();
  pthread_mutex_lock(&w->lock);
  while (!w->quit) {
    if (!w->requests) tc_cond_wait_until(&w->wake, &w->lock, tc_now_ns() + TC_WATCH_TICK_NS);
    int64_t now = tc_now_ns();
    /* The time for which the process itself was stopped is not counted. */
    struct tc_thread_status *hangs = find_hanging_thread(w, TC_MIN(now - last_ns, 5 * TC_WATCH_TICK_NS));
    last_ns = now;
    pthread_mutex_unlock(&w->lock);
    read_messages(w);
    if (w->half && w->o.half) w->o.half(), w->o.half = NULL;
    if (hangs) end_hang(w, hangs);
    if (w->given_up_ns && tc_now_ns() - w->given_up_ns > GRACE_NS)
      w->o.end(-TC_EPEER, "the run was given up");
    pthread_mutex_lock(&w->lock);
    serve_requests(w);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static void watch_free(struct tc_watch *w)
{
  for (int i = 0; i < w->o.n_local; i++) tc_rank_status_clear(&w->local[i]);
  pthread_mutex_destroy(&w->lock);
  pthread_mutex_destroy(&w->channel_lock);
  pthread_cond_destroy(&w->wake);
  pthread_cond_destroy(&w->answered);
  TC_FREE(w->local, w);
}

int tc_watch_new(struct tc_watch **out, const struct tc_watch_opts *o, struct tc_err *err)
{
  struct tc_watch *w = tc_calloc(1, sizeof *w);
  *out = NULL;
  w->o = *o;
  w->deadline_ns = (int64_t)((o->deadline_s > 0 ? TC_MIN(o->deadline_s, 1e9) : 600) * 1e9);
  w->local = tc_calloc((size_t)o->n_local, sizeof *w->local);
  for (int i = 0; i < o->n_local; i++) {
    w->local[i] = (struct rank_status){ .watch = w, .rank = o->first + i, .world = o->world };
    pthread_mutex_init(&w->local[i].lock, NULL);
  }
  pthread_mutex_init(&w->lock, NULL);
  pthread_mutex_init(&w->channel_lock, NULL);
  tc_cond_init(&w->wake);
  tc_cond_init(&w->answered);
  int rc = tc_thread_start(&w->thread, watchdog, w, err);
  if (rc < 0) watch_free(w);
  else *out = w;
  return rc;
}

void tc_watch_channel(struct tc_watch *w, struct tc_channel *m)
{
  pthread_mutex_lock(&w->channel_lock);
  struct tc_channel *old = w->channel;
  w->channel = m;
  pthread_mutex_unlock(&w->channel_lock);
  if (old) old->free(old);
}

void tc_watch_enter(struct tc_watch *w, int rank)
{
  TC_ASSERT(is_mine(w, rank));
  tc_thread_status_use(tc_thread_status_add(&w->local[rank - w->o.first], "main"));
  tc_at_phase("starting");
}

void tc_watch_free(struct tc_watch *w)
{
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->quit = true;
  pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  tc_watch_channel(w, NULL);
  for (int i = 0; i < w->o.n_local; i++)
    if (tc_rank_status_left(&w->local[i])) return;    /* a thread still uses it; the process ends soon */
  watch_free(w);
}
