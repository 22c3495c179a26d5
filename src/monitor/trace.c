/* trace.c - the events of a rank in a buffer of fixed size, and those of all ranks as one file.
 *
 * Invariants: nothing is allocated between tc_trace_reserve and the writing; events of one track
 * are added by one thread at a time and do not overlap; `n`, the buffer and `dropped` are
 * protected by the lock, since each communicator's worker adds its own events.
 *
 * Clocks. CLOCK_MONOTONIC counts from a node's boot, so nodes differ by days and drift by some
 * microseconds per second. Each rank in turn requests rank 0's time ROUND_TRIPS times over the
 * world communicator, once before the first traced step and once after the last. The
 * shortest round trip is used: rank 0's answer is assumed to be at its middle, with an error of at
 * most half of it. Between the two moments the offset is interpolated linearly. An offset that is
 * smaller than its error both times is taken as 0: the ranks share a clock.
 *
 * Rank 0 receives the ranks' texts one by one and appends them, so that it never stores more
 * than one. The format: "Trace Event Format" (the Chromium project), JSON object form. */
#include "src/monitor/trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUND_TRIPS = 12, COMM_TRACKS = 8, TRACKS = TC_TRACK_COMM + COMM_TRACKS };
static const int64_t MOST_EVENTS = 1 << 19, MOST_OF_ALL = 1 << 22, FEWEST_EVENTS = 1 << 12;

const char *const tc_event_kind_name[TC_EV_KINDS] = {
  "forward", "backward", "weights", "update", "issue", "wait", "communication", "control",
  "copy", "checkpoint", "evaluation", "step"
};

struct moment { int64_t at_ns, offset_ns, error_ns; };   /* rank 0's clock = this rank's + offset */

struct comm_track { struct tc_trace *trace; int track; };

struct tc_trace {
  struct tc_trace_opts o;        /* file and process owned */
  struct tc_output *f;           /* rank 0, while open */
  const char *track_name[TRACKS];
  struct comm_track comm[COMM_TRACKS];
  int n_comm;
  struct moment sync[2];
  int n_syncs;
  int64_t zero_ns;               /* the file's time 0, on rank 0's clock */
  int64_t first_step, last_step, steps_done;
  bool written;
  atomic_bool on;

  pthread_mutex_t lock;
  struct tc_event *event;
  int64_t n, cap, dropped;
  int32_t step;
};

struct tc_trace *tc_trace_new(const struct tc_trace_opts *o)
{
  const char *const names[TC_TRACK_COMM] = { "steps", "compute", "copies", "checkpoint" };
  struct tc_trace *t = tc_calloc(1, sizeof *t);
  t->o = *o;
  t->o.file = tc_strdup(o->file);
  t->o.process = tc_strdup(o->process);
  for (int i = 0; i < TC_TRACK_COMM; i++) t->track_name[i] = names[i];
  atomic_init(&t->on, false);
  pthread_mutex_init(&t->lock, NULL);
  return t;
}

void tc_trace_free(struct tc_trace *t)
{
  if (!t) return;
  tc_output_abandon(t->f);                       /* the run failed: an incomplete trace is removed */
  pthread_mutex_destroy(&t->lock);
  TC_FREE(t->event, (char *)t->o.file, (char *)t->o.process, t);
}

void tc_trace_reserve(struct tc_trace *t, int64_t events)
{
  if (!t) return;
  int64_t most = TC_MIN(MOST_EVENTS, TC_MAX(MOST_OF_ALL / t->o.world, FEWEST_EVENTS));
  t->cap = TC_MIN(events, most);
  free(t->event);
  t->event = tc_malloc((size_t)t->cap * sizeof *t->event + 1);
  memset(t->event, 0, (size_t)t->cap * sizeof *t->event);   /* avoids page faults during a step */
}

#define TRACE_BEGIN "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["

static const struct tc_output_kind trace_file = { "a trace of tercio train", { TRACE_BEGIN } };

int tc_trace_open(struct tc_trace *t, const struct tc_output_kept *kept, int n, struct tc_err *err)
{
  if (!t || t->o.rank || t->f) return 0;
  const struct tc_output_opts o = { .kind = &trace_file, .flag = "run.trace", .kept = kept, .n_kept = n };
  return tc_output_new(&t->f, t->o.file, &o, err);
}

/* ---- recording --------------------------------------------------------------------------- */

bool tc_trace_on(struct tc_trace *t)
{
  return t && atomic_load_explicit(&t->on, memory_order_relaxed);
}

void tc_trace_add(struct tc_trace *t, const struct tc_event *e)
{
  if (!tc_trace_on(t)) return;
  pthread_mutex_lock(&t->lock);
  if (t->n < t->cap) {
    t->event[t->n] = *e;
    t->event[t->n++].step = t->step;
  } else {
    t->dropped++;
  }
  pthread_mutex_unlock(&t->lock);
}

bool tc_trace_step(struct tc_trace *t, int64_t step)
{
  if (!t) return false;
  bool more = t->steps_done < t->o.steps && !t->written;
  pthread_mutex_lock(&t->lock);
  if (more) {
    if (t->steps_done++ == 0) t->first_step = step;
    t->last_step = step;
    t->step = (int32_t)step;
  }
  pthread_mutex_unlock(&t->lock);
  atomic_store(&t->on, more);
  return more;
}

int64_t tc_trace_pause(struct tc_trace *t)
{
  if (!tc_trace_on(t)) return 0;
  atomic_store(&t->on, false);
  return tc_now_ns();
}

void tc_trace_resume(struct tc_trace *t, int kind, const char *name, int64_t begin_ns)
{
  if (!t || !begin_ns) return;
  atomic_store(&t->on, true);
  struct tc_event e = { .name = name, .begin_ns = begin_ns, .end_ns = tc_now_ns(), .bytes = -1,
                        .mb = -1, .track = TC_TRACK_COMPUTE, .kind = (uint8_t)kind };
  tc_trace_add(t, &e);
}

/* On the thread that runs the call, while the call's names are borrowed. A control call's name
 * may be on the caller's stack, so it is not stored. */
static void record_call(void *ctx, const struct tc_coll_args *a, int64_t begin_ns,
                        int64_t end_ns, int64_t bytes)
{
  const struct comm_track *c = ctx;
  struct tc_event e = { .name = tc_coll_name[a->coll], .on = c->trace->track_name[c->track],
                        .unit = a->ctl ? NULL : a->what, .begin_ns = begin_ns, .end_ns = end_ns,
                        .bytes = bytes, .mb = -1, .track = (uint8_t)c->track,
                        .kind = a->ctl ? TC_EV_CONTROL : TC_EV_COMM };
  tc_trace_add(c->trace, &e);
}

void tc_trace_comm(struct tc_trace *t, const char *name, struct tc_comm_opts *o)
{
  if (!t) return;
  TC_ASSERT(t->n_comm < COMM_TRACKS);
  struct comm_track *c = &t->comm[t->n_comm];
  c->trace = t;
  c->track = TC_TRACK_COMM + t->n_comm++;
  t->track_name[c->track] = name;
  o->traced = record_call;
  o->traced_ctx = c;
}

/* ---- clocks ------------------------------------------------------------------------------ */

static int64_t on_my_clock(const struct tc_trace *t, int64_t ns)
{
  return ns + t->o.skew_ns + (int64_t)(t->o.drift * (double)ns);
}

static int64_t my_clock(const struct tc_trace *t) { return on_my_clock(t, tc_now_ns()); }

static int transfer(struct tc_comm *world, int coll, int peer, void *buf, int64_t bytes, const char *what,
                    struct tc_err *err)
{
  struct tc_part p = { buf, buf, bytes, bytes };
  struct tc_coll_args a = { .coll = coll, .dtype = TC_U8, .root = peer, .n_parts = 1, .parts = &p,
                            .ctl = true, .what = what };
  return tc_comm_run(world, &a, err);
}

/* Rank 0: sends its time to `peer`, ROUND_TRIPS times. */
static int send_time(const struct tc_trace *t, struct tc_comm *world, int peer,
                     struct tc_err *err)
{
  for (int i = 0; i < ROUND_TRIPS; i++) {
    int64_t x = 0;
    TC_TRY(transfer(world, TC_RECV, peer, &x, sizeof x, "clocks", err));
    x = my_clock(t);
    TC_TRY(transfer(world, TC_SEND, peer, &x, sizeof x, "clocks", err));
  }
  return 0;
}

static int ask_time(const struct tc_trace *t, struct tc_comm *world, struct moment *m,
                    struct tc_err *err)
{
  int64_t best = INT64_MAX;
  for (int i = 0; i < ROUND_TRIPS; i++) {
    int64_t x = 0, t0 = my_clock(t);
    TC_TRY(transfer(world, TC_SEND, 0, &x, sizeof x, "clocks", err));
    TC_TRY(transfer(world, TC_RECV, 0, &x, sizeof x, "clocks", err));
    int64_t t1 = my_clock(t), trip = t1 - t0;
    if (trip >= best) continue;
    best = trip;
    *m = (struct moment){ t0 + trip / 2, x - (t0 + trip / 2), trip / 2 + 1 };
  }
  return 0;
}

int tc_trace_sync(struct tc_trace *t, struct tc_comm *world, struct tc_err *err)
{
  if (!t) return 0;
  struct moment *m = &t->sync[TC_MIN(t->n_syncs, 1)];
  *m = (struct moment){ my_clock(t), 0, 0 };
  if (t->n_syncs == 0) {                         /* all times count from rank 0's first sync */
    int64_t n = sizeof t->zero_ns;
    int64_t zero = m->at_ns;
    void *p = &zero;
    TC_TRY(tc_comm_bytes_bcast(world, 0, &p, &n, err));
    memcpy(&t->zero_ns, p, sizeof t->zero_ns);
    if (p != &zero) free(p);
  }
  for (int r = 1; r < t->o.world; r++) {
    if (t->o.rank == 0) TC_TRY(send_time(t, world, r, err));
    if (t->o.rank == r) TC_TRY(ask_time(t, world, m, err));
  }
  t->n_syncs++;
  return 0;
}

static bool shares_clock(const struct moment *m) { return llabs(m->offset_ns) <= m->error_ns; }

int64_t tc_trace_common_ns(const struct tc_trace *t, int64_t ns)
{
  const struct moment *a = &t->sync[0], *b = &t->sync[t->n_syncs > 1];
  ns = on_my_clock(t, ns);
  if (t->n_syncs == 0 || (shares_clock(a) && shares_clock(b))) return ns;
  double part = b->at_ns > a->at_ns ? (double)(ns - a->at_ns) / (double)(b->at_ns - a->at_ns) : 0;
  return ns + a->offset_ns + (int64_t)(part * (double)(b->offset_ns - a->offset_ns));
}

/* ---- the file ---------------------------------------------------------------------------- */

/* A host's name may have any characters. */
static void put_string(FILE *f, const char *s)
{
  fputc('"', f);
  for (; *s; s++) {
    unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
    else if (c < 0x20 || c >= 0x7f) fputc('?', f);
    else fputc(c, f);
  }
  fputc('"', f);
}

static void put_arg(FILE *f, const char *key, const char *value)
{
  if (!value || !*value) return;
  fprintf(f, ",\"%s\":", key);
  put_string(f, value);
}

static void put_event(FILE *f, const struct tc_trace *t, const struct tc_event *e)
{
  char name[200];
  bool moves = e->kind == TC_EV_ISSUE || e->kind == TC_EV_WAIT;
  snprintf(name, sizeof name, "%s%s%s%s%s", moves ? tc_event_kind_name[e->kind] : "",
           moves ? " " : "", e->name, e->on ? " " : "", e->on ? e->on : "");
  int64_t begin = tc_trace_common_ns(t, e->begin_ns) - t->zero_ns;
  int64_t ns = tc_trace_common_ns(t, e->end_ns) - t->zero_ns - begin;
  fprintf(f, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":",
          t->o.rank, e->track, (double)begin * 1e-3, (double)ns * 1e-3,
          tc_event_kind_name[e->kind]);
  put_string(f, name);
  fprintf(f, ",\"args\":{\"step\":%d", e->step);
  if (e->mb >= 0) fprintf(f, ",\"mb\":%d", e->mb);
  if (e->bytes >= 0) fprintf(f, ",\"bytes\":%lld", (long long)e->bytes);
  put_arg(f, "unit", e->unit);
  put_arg(f, "tensor", e->tensor);
  fputs("}},\n", f);
}

static void put_meta(FILE *f, int pid, int tid, const char *what, const char *name)
{
  fprintf(f, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s_name\",\"args\":{\"name\":", pid, tid,
          what);
  put_string(f, name);
  fprintf(f, "}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s_sort_index\",\"args\":"
          "{\"sort_index\":%d}},\n", pid, tid, what, strcmp(what, "thread") ? pid : tid);
}

char *tc_trace_text(struct tc_trace *t)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  put_meta(f, t->o.rank, 0, "process", t->o.process);
  for (int i = 0; i < TC_TRACK_COMM + t->n_comm; i++) {
    char name[100];
    snprintf(name, sizeof name, "%s%s", i < TC_TRACK_COMM ? "" : "communication ",
             t->track_name[i]);
    put_meta(f, t->o.rank, i, "thread", name);
  }
  for (int64_t i = 0; i < t->n; i++) put_event(f, t, &t->event[i]);
  if (fclose(f) != 0) TC_ASSERT(!"out of memory for the trace's text");
  return text;
}

/* A rank sends this, then its text. */
struct head { int64_t bytes, events, dropped, clock_error_ns; };

/* Rank 0. Receives all texts even if the disk is full, since the other ranks wait in their sends. */
static int write_all(struct tc_trace *t, struct tc_comm *world, struct head *sum, const char *mine,
                     struct tc_err *err)
{
  FILE *f = t->f ? tc_output_stream(t->f) : NULL;
  if (f) fprintf(f, TRACE_BEGIN "\n%s", mine);
  for (int r = 1; r < t->o.world; r++) {
    struct head h;
    TC_TRY(transfer(world, TC_RECV, r, &h, sizeof h, "trace", err));
    char *text = tc_malloc((size_t)h.bytes + 1);
    int rc = transfer(world, TC_RECV, r, text, h.bytes, "trace", err);
    if (rc == 0 && f) fwrite(text, 1, (size_t)h.bytes, f);
    free(text);
    TC_TRY(rc);
    sum->events += h.events;
    sum->dropped += h.dropped;
    sum->clock_error_ns = TC_MAX(sum->clock_error_ns, h.clock_error_ns);
  }
  if (!f) return tc_fail(err, TC_EUSER, "run.trace: %s was not begun", t->o.file);
  fprintf(f, "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"trace\",\"args\":{}}\n],\n\"otherData\":"
          "{\"first_step\":%lld,\"last_step\":%lld,\"events\":%lld,\"dropped\":%lld,"
          "\"clock_error_us\":%.3f}}\n", (long long)t->first_step, (long long)t->last_step,
          (long long)sum->events, (long long)sum->dropped, (double)sum->clock_error_ns * 1e-3);
  struct tc_output *whole = t->f;
  t->f = NULL;
  return tc_output_finish(whole, err);
}

int tc_trace_write(struct tc_trace *t, struct tc_comm *world, struct tc_err *err)
{
  if (!t || t->written || t->steps_done == 0) return 0;
  atomic_store(&t->on, false);
  t->written = true;
  TC_TRY(tc_trace_sync(t, world, err));
  int64_t error = TC_MAX(t->sync[0].error_ns, t->sync[1].error_ns);
  bool shared = shares_clock(&t->sync[0]) && shares_clock(&t->sync[1]);
  pthread_mutex_lock(&t->lock);                  /* a worker may be adding its last event */
  char *text = tc_trace_text(t);
  struct head h = { (int64_t)strlen(text), t->n, t->dropped, shared ? 0 : error };
  free(t->event);
  t->event = NULL;
  t->n = t->cap = 0;
  pthread_mutex_unlock(&t->lock);
  int rc;
  if (t->o.rank == 0) {
    rc = write_all(t, world, &h, text, err);
    if (rc == 0 && h.dropped)
      tc_warn("the trace %s lacks %lld of %lld events, which did not fit: lower run.trace_steps",
              t->o.file, (long long)h.dropped, (long long)(h.events + h.dropped));
  } else {
    rc = transfer(world, TC_SEND, 0, &h, sizeof h, "trace", err);
    if (rc == 0) rc = transfer(world, TC_SEND, 0, text, h.bytes, "trace", err);
  }
  free(text);
  return rc;
}
