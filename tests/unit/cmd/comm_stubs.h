/* comm_stubs.h - communicators, devices and measurements for t_cmd_comm.c, which note how they are called
 * and fail where they are meant to. Before the file under test. */
#ifndef TC_COMM_STUBS_H
#define TC_COMM_STUBS_H

#include "kernels/kernel.h"
#include "src/bench/bench.h"
#include "src/cmd/print_pairs.h"
#include "src/comm/nccl.h"
#include "src/launch/launch.h"
#include "tests/unit/tap.h"

static char calls[2000];
TAP_FORMAT(1, 2)
static void note(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(calls + strlen(calls), sizeof calls - strlen(calls), fmt, ap);
  va_end(ap);
}

struct tc_comm {
  const char *name;
};
static struct tc_comm comm[4] = { { "world" }, { "axis" }, { "nccl" } };
static int n_comms, fail_at, n_rows, fail_row, row_status, missing, hangs, no_device, agreed;
static int bench_iters;
static double slow_bytes_ns; /* a row takes so many ns a byte; 0: no time */
static int64_t now_ns;
static struct tc_device_ops device_ops;
static struct tc_device device = { .ops = &device_ops };

static int flushes, log_rank;
static int my_fflush(FILE *f)
{
  flushes += f == stdout;
  return fflush(f);
}
static void my_log_rank(int rank) { log_rank = rank; }

static int fault(int at, struct tc_err *err)
{
  return fail_at == at ? tc_fail(err, at == 9 ? TC_EPEER : TC_ENOCKPT, "fault %d", at) : 0;
}
static const void *lent[2 * 3]; /* what a thread that hangs may still use */
static struct tc_comm *made(int id, int rank, const int32_t *members, int n,
                            const struct tc_comm_opts *o)
{
  TC_ASSERT(id <= TC_BENCH_WORLD && !strcmp(o->name, tc_bench_axis_name(id)));
  note("open %s rank %d of %d:", o->name, rank, n);
  for (int i = 0; i < n; i++) note(" %d %s", members[i], o->rank_names[i]);
  note(" %g s\n", o->deadline_s);
  lent[2 * n_comms] = members;
  lent[2 * n_comms + 1] = o->rank_names;
  return &comm[n_comms++];
}
static struct tc_comm *my_thread(struct tc_hub *h, int id, int rank, const int32_t *members, int n,
                                 const struct tc_comm_opts *o)
{
  (void)h;
  return made(id, rank, members, n, o);
}
static int my_mpi(struct tc_comm **out, int id, const int32_t *members, int n,
                  const struct tc_comm_opts *o, struct tc_err *err)
{
  *out = made(id, -1, members, n, o);
  return fault(1, err);
}
static int my_usable(struct tc_comm *c, struct tc_err *err)
{
  return fault(c == &comm[0] ? 2 : 3, err);
}
static int my_max(struct tc_comm *c, int64_t *x, int n, struct tc_err *err)
{
  note("max %s %d\n", c->name, (int)*x);
  *x = TC_MAX(*x, missing);
  return n == 1 ? fault(4, err) : -1;
}
static bool my_frees(struct tc_comm *const *c, int n)
{
  for (int i = 0; i < n; i++) note("free %s\n", c[i] ? c[i]->name : "none");
  return !hangs;
}
static int my_device_open(struct tc_device **out, const char *name, int threads, struct tc_err *err)
{
  note("device %s %d\n", name, threads);
  if (no_device) return tc_fail(err, TC_EUSER, "no such device");
  *out = &device;
  return 0;
}
static void my_device_close(struct tc_device *d) { note("close device %d\n", d != NULL); }
static int my_nccl_agree(bool *use, enum tc_comm_kind want, const struct tc_nccl_ops *ops,
                         struct tc_device *d, const char *why, struct tc_comm *world,
                         char *const *who, struct tc_err *err)
{
  note("agree %s %d %d %s %s %d\n", tc_word_run_comm(want), ops != NULL, d != NULL, why ? why : "-", world->name,
       who != NULL);
  *use = agreed;
  return fault(5, err);
}
static int my_nccl(struct tc_comm **out, const struct tc_nccl_ops *ops, struct tc_device *d,
                   struct tc_comm *group, struct tc_comm *after, const int32_t *members, bool pairs,
                   const struct tc_comm_opts *o, struct tc_err *err)
{
  note("nccl %s %s %d %d %d: %d %s %g s\n", o->name, group->name, after != NULL, pairs, ops && d,
       members[1], o->rank_names[1], o->deadline_s);
  *out = &comm[2];
  return fault(6, err) + fault(9, err);
}
static int my_agree(struct tc_comm *world, char *const *who, int rc, struct tc_err *err)
{
  note("all agree %s %d %d\n", world->name, who != NULL, rc);
  return rc ? rc : fault(7, err);
}
static struct tc_bench *my_bench(struct tc_comm *group, struct tc_comm *world,
                                 const int32_t *members, int rank, int64_t max_bytes, int iters,
                                 struct tc_device *device)
{
  note("bench %s in %s: %d rank %d, %d bytes %d times, %s\n", group->name, world->name, members[0],
       rank, (int)max_bytes, iters, device ? "GPU" : "host");
  bench_iters = iters;
  return missing < 0 ? NULL : (struct tc_bench *)&device;
}
static void my_bench_free(struct tc_bench *b) { note("free bench %d\n", b != NULL); }
static void my_iters(struct tc_bench *b, int iters)
{
  (void)b;
  bench_iters = iters;
}
static int64_t my_clock(void) { return now_ns; }
static int my_pairs(struct tc_pairs *p, const struct tc_pairs_opts *o, struct tc_bench *b, struct tc_comm *world,
                    int rank, struct tc_err *err)
{
  *p = (struct tc_pairs){ 0 };
  note("pairs %d in %s rank %d, %d bytes %d times, %d rounds, adapt %d %d\n", b != NULL, world->name,
       rank, (int)o->bytes, o->iters, o->rounds, o->adapt_iters, o->adapt_bytes);
  return fault(8, err);
}
static void my_pairs_print(const struct tc_pairs *p, const struct tc_ranks *r, const char *link, int iters, bool json)
{
  note("print pairs of %d ranks over %s, %d times, %d\n", p ? r->world : 0, link, iters, json);
}
static int my_bench_run(struct tc_bench *b, int op, int64_t bytes, struct tc_bench_row *r,
                        struct tc_err *err)
{
  (void)b;
  *r = (struct tc_bench_row){ bytes, bytes / 4,    1000.25 * (op + 1), 7.125, 12.34567 * (op + 1),
                              0.5,   1500 * op + 1, TC_ALGORITHM_TREE, bench_iters };
  if (!slow_bytes_ns) return ++n_rows == fail_row ? tc_fail(err, row_status, "row %d", n_rows) : 0;
  r->time_us = (double)bytes * slow_bytes_ns * 1e-3;
  now_ns += (int64_t)((double)(bench_iters + TC_BENCH_WARM_UP) * (double)bytes * slow_bytes_ns);
  return ++n_rows == fail_row ? tc_fail(err, row_status, "row %d", n_rows) : 0;
}

static int my_same_selection(struct tc_comm *c, char *const *names, const struct tc_selection *s, const char *file,
                             struct tc_err *err)
{
  (void)c, (void)names, (void)s, (void)file, (void)err;
  return 0;
}

#define tc_comm_same_selection my_same_selection
#define fflush my_fflush
#define tc_log_set_rank my_log_rank
#define tc_comm_thread my_thread
#define tc_comm_mpi my_mpi
#define tc_comm_usable my_usable
#define tc_comm_max_i64 my_max
#define tc_comms_free my_frees
#define tc_device_open my_device_open
#define tc_device_close my_device_close
#define tc_comm_nccl_agree my_nccl_agree
#define tc_comm_nccl my_nccl
#define tc_comm_agree my_agree
#define tc_bench_new my_bench
#define tc_bench_free my_bench_free
#define tc_bench_run my_bench_run
#define tc_bench_iters my_iters
#define tc_pairs_run my_pairs
#define tc_pairs_print my_pairs_print
#define tc_now_ns my_clock

#endif
