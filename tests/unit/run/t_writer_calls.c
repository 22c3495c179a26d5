/* t_writer_calls.c - saving (writer.c), call by call (script.h). There is no second thread: when the run
 * waits for the writer, the work of the writer's thread is done within that wait. */
#include "src/run/writer.h"
#include "src/watch/watch.h"
#include "tests/unit/script.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>

static const struct scene {
  const char *name;
  bool async, copy, late; /* late: the thread does not come to an end in time */
  int rank, keep, n;
  int64_t verified, steps[4];
  int64_t large; /* floats of the first slice */
  float bad;     /* in the second save, in the second slice; 0: none */
} scenes[] = {
  { "at once", .verified = -1, .large = 3 },
  { "beside", .async = true, .keep = 2, .verified = 4, .n = 3, .steps = { 5, 4, 3 },
    .large = (1 << 20) + 5 },
  { "beside, with another rank", .async = true, .rank = 1, .keep = 1, .verified = 4, .n = 2,
    .steps = { 5, 4 }, .large = 1 },
  { "at once, all may stay", .keep = 2, .verified = -1, .n = 2, .steps = { 5, 4 }, .large = 1 },
  { "at once, none was read", .keep = 2, .verified = 3, .n = 4, .steps = { 5, 4, 3, 2 },
    .large = 1 },
  { "at once, the newest was read", .keep = 2, .verified = 5, .n = 3, .steps = { 5, 4, 3 },
    .large = 1 },
  { "from a device", .copy = true, .verified = -1, .large = (1 << 20) + 5 },
  { "from a device, beside", .async = true, .copy = true, .late = true, .keep = 1, .verified = 9,
    .n = 2, .steps = { 5, 4 }, .large = 2 },
  { "at once, not a number", .keep = 2, .verified = -1, .large = 3, .bad = NAN },
  { "from a device, infinite", .async = true, .copy = true, .verified = -1, .large = 2, .bad = -INFINITY },
  { "nothing", .async = true, .late = true, .verified = -1 },
};

static const struct scene *the;
static struct tc_writer *writer;
static const void *source[2];
static struct tc_comm_counters counted;
static int held;
static bool working;
static jmp_buf rest;

static void turn(void);

static int lock(int by)
{
  held += by;
  return held < 0 || held > 1 ? note("locked %d times", held) : 0;
}

/* The thread waits for work: the run goes on. The run waits: the thread works. */
static int wait_for(const int64_t *until)
{
  if (working) longjmp(rest, 1);
  if (until) note("until %lld.%09ld", (long long)(*until / 1000000000),
                  (long)(*until % 1000000000));
  if (until && the->late) return ETIMEDOUT;
  lock(-1);
  turn();
  lock(1);
  return 0;
}

static int list(int64_t **steps, struct tc_err *err)
{
  int rc = call(err, "list, held %d", held);
  *steps = tc_calloc(4, sizeof **steps);
  memcpy(*steps, the->steps, sizeof the->steps);
  return rc < 0 ? rc : the->n;
}

static int save(const char *dir, const struct tc_ckpt_meta *m, const struct tc_ckpt_tensor *t,
                int nt, const struct tc_ckpt_slice *s, int ns, struct tc_err *err)
{
  int rc = call(err, "save %s %d %s %s %d %d, held %d", dir, (int)m->step, m->loop,
                t ? t->name : "", nt, ns, held);
  for (int i = 0; i < ns; i++) {
    const float *x = s[i].data;
    note("slice %d: %s %g %g", s[i].tensor, s[i].data == source[i] ? "there" : "a copy",
         (double)x[0], (double)x[s[i].count[0] - 1]);
  }
  return rc;
}

#define tc_thread_start(t, fn, s, err) call(err, "thread %d", (s) == writer && fn == work)
#define pthread_mutex_lock(m) lock(1)
#define pthread_mutex_unlock(m) lock(-1)
#define pthread_cond_wait(c, m) wait_for(NULL)
#define tc_cond_wait_until(c, m, until) wait_for(&(int64_t){ until })
#define pthread_cond_broadcast(c) note("wake, held %d", held)
#define pthread_join(t, r) note("join, held %d", held)
#define pthread_detach(t) note("detach, held %d", held)
#define posix_memalign(p, a, n) \
  (call(NULL, "memory %d %d", a, (int)(n)) < 0 ? ENOMEM : (posix_memalign)(p, a, n))
#define tc_now_ns script_now
#define tc_warn note
#define tc_at_rest() note("at rest")
#define tc_at_step(s) note("step %d", (int)(s))
#define tc_at_phase(doing) note("at %s", doing)
#define tc_thread_status_new(name) (note("status of the %s", name), NULL)
#define tc_thread_status_use(status) note("uses its status")
#define tc_comm_coord(c) the->rank
#define tc_comm_counters(c) (note("count, held %d", held), counted.data[0].calls++, &counted)
#define tc_comm_max_i64(c, x, n, err) call(err, "max %d %d", (int)*(x), n)
#define tc_ckpt_list(dir, steps, err) list(steps, err)
#define tc_ckpt_resume(c, dir, step, comm, who, err) \
  (*(c) = (struct tc_ckpt *)&counted, call(err, "read back %s %d, held %d", dir, (int)(step), held))
#define tc_ckpt_close(c) note("close %d", (c) != NULL)
#define tc_ckpt_prune(dir, keep) note("prune %s %d, held %d", dir, keep, held)
#define tc_ckpt_save(dir, m, t, nt, s, ns, comm, err) save(dir, m, t, nt, s, ns, err)
#define tc_trace_add(t, e)                                                                       \
  note("%s %d %d %d %d %d %d", (e)->name, (int)(e)->begin_ns, (int)(e)->end_ns, (int)(e)->bytes, \
       (e)->mb, (e)->track, (e)->kind)
#define fdatasync(fd) note("sync %d", fd)
#define close(fd) note("close %d", fd)
#include "src/run/writer.c"

static void turn(void)
{
  working = true;
  if (!setjmp(rest)) work(writer);
  working = false;
  held = 0; /* a wait lets it go */
}

static void *take(void *ctx, int64_t bytes)
{
  note("take %d %d", ctx == &counted, (int)bytes);
  return call(NULL, "memory") < 0 ? NULL : tc_malloc((size_t)bytes);
}

static void give(void *ctx, void *p)
{
  note("give back %d", ctx == &counted);
  free(p);
}

static void begin(void *ctx, void *to, const void *from, int64_t bytes)
{
  note("begin %d %d", ctx == &counted, (int)bytes);
  memcpy(to, from, (size_t)bytes);
}

static int end(void *ctx) { return call(NULL, "end %d", ctx == &counted); }

static void save_one(int64_t step, const char *loop, int log_fd, bool wait)
{
  const struct tc_ckpt_meta m = { .step = step, .loop = loop };
  struct tc_saved r = { 0 };
  struct tc_comm_counters c;
  tc_writer_copy(writer);
  tc_writer_go(writer, &m, log_fd);
  note("busy %d, result %d", tc_writer_busy(writer), tc_writer_result(writer, false, &r));
  const bool got = wait && tc_writer_result(writer, true, &r);
  tc_writer_counters(writer, &c);
  note("result %d: %d %d %d %s; busy %d, counted %d, verified %d", got, (int)r.step,
       (int)r.write_ns, r.rc, r.err.text, tc_writer_busy(writer), (int)c.data[0].calls,
       (int)writer->verified);
}

static void play(void *ctx)
{
  const struct scene *s = the = ctx;
  const struct tc_writer_copy_ops copy = { take, give, begin, end, &counted };
  const struct tc_ckpt_tensor tensor[2] = { { "a", TC_F32, 1, { s->large + 1 } },
                                            { "b", TC_F32, 1, { 4 } } };
  float *a = tc_calloc((size_t)s->large + 1, sizeof *a), b[4] = { 1, 2, 3, 4 };
  const struct tc_ckpt_slice slice[2] = { { .tensor = 0, .count = { s->large }, .data = a },
                                          { .tensor = 1, .count = { 4 }, .data = b } };
  const int n = s->large ? 2 : 0;
  const struct tc_writer_opts o = { .dir = "d",
                                   .tensor = tensor,
                                   .slice = slice,
                                   .n_tensors = 2,
                                   .n_slices = n,
                                   .async = s->async,
                                   .keep = s->keep,
                                   .verified = s->verified,
                                   .threads = 2,
                                   .copy = s->copy ? &copy : NULL };
  struct tc_err err = { .text = "" };
  counted = (struct tc_comm_counters){ 0 };
  held = 0;
  source[0] = a, source[1] = b;
  a[0] = 7, a[TC_MAX(s->large, 1) - 1] = 8;
  int rc = tc_writer_new(&writer, &o, &err);
  note("%d %s; %d", rc, err.text, writer != NULL);
  if (writer) {
    note("%d bytes, %d ns, result %d", (int)tc_writer_staging_bytes(writer),
         (int)tc_writer_memcpy_ns(writer), tc_writer_result(writer, false, &(struct tc_saved){ 0 }));
    save_one(5, "loop", 9, true);
    a[0] = 70, a[TC_MAX(s->large, 1) - 1] = 80, b[0] = 10, b[3] = 40;
    if (s->bad != 0) b[2] = s->bad;
    save_one(4, NULL, 0, true);
    b[2] = 3;
    save_one(3, "third", -1, false);
    struct tc_writer *left = writer;
    const bool ended = tc_writer_free(writer, s->late);
    note("ended %d", ended);
    if (!ended) left->threaded = false; /* what was left behind: no thread is at it */
    if (!ended) note("ended %d", tc_writer_free(left, false));
  }
  free(a);
}

static char *make_scene(const char *line)
{
  for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
    if (!strcmp(scenes[i].name, line)) return script_play(play, (void *)(uintptr_t)&scenes[i]);
  return tc_strdup("none");
}

int main(int argc, char **argv)
{
  alarm(300);
  return tc_writer_free(NULL, true) ? digests(argc, argv, "writer", make_scene) : 1;
}
