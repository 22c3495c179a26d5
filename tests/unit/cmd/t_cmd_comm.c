/* t_cmd_comm.c - the rows and ranks of `tercio comm` (src/cmd/cmd_comm.c, src/bench/rank.c, src/bench/sweep.c) with
 * measurements, communicators and GPUs of the test's own: what is printed to the last digit, what a rank opens and
 * gives back. */
#include "tests/unit/cmd/comm_stubs.h"
#include "src/bench/rank.c"
#include "src/bench/sweep.c"
#include "src/cmd/cmd_comm.c"

#include <unistd.h>

/* ---- four ranks, tp of two ------------------------------------------------------------------ */

static char *who[] = { "r0", "r1", "r2", "r3" };
static struct tc_rank_info info[4];
static int32_t on_node[4];
static struct tc_ranks ranks = { .world = 4, .n_nodes = 1, .info = info, .node_of_rank = on_node };
static struct tc_config config;
static struct job job;

static void set_up(int axis)
{
  static const int32_t node[4];
  const struct tc_mesh_want want = { .size = { [TC_SET_PP] = 1, [TC_SET_TP] = 2 } };
  struct tc_err err;
  config = (struct tc_config){ .run_comm = TC_COMM_AUTO, .run_device = TC_DEVICE_CPU, .run_deadline = 2.5 };
  job = (struct job){ .axis = axis, .sweep = { .min_bytes = 8, .max_bytes = 40, .iters = 3 } };
  job.launch.cfg = &config;
  job.launch.ranks = &ranks;
  job.launch.rank_names = who;
  job.launch.hub = (struct tc_hub *)&device;
  job.sweep.op[TC_BENCH_ALL_REDUCE] = true;
  for (int i = 0; i < 4; i++) info[i].device = -1;
  TC_ASSERT(tc_mesh_new(&job.mesh, 4, node, &want, &err) == 0);
  n_comms = fail_at = n_rows = fail_row = row_status = missing = hangs = no_device = agreed = 0;
  now_ns = 0;
  *calls = 0;
}

static void done(void) { tc_mesh_free(job.mesh); }

static int flushed;

/* What it prints, too. */
static int run_here(int rank, char *text, size_t size, struct tc_err *err)
{
  FILE *f = tmpfile();
  fflush(stdout);
  int out = dup(STDOUT_FILENO);
  TC_ASSERT(f && out >= 0 && dup2(fileno(f), STDOUT_FILENO) >= 0);
  *err = (struct tc_err){ 0 };
  flushes = 0;
  int rc = run_rank(rank, &job, err);
  flushed = flushes;
  fflush(stdout);
  TC_ASSERT(dup2(out, STDOUT_FILENO) >= 0);
  close(out);
  rewind(f);
  text[fread(text, 1, size - 1, f)] = 0;
  fclose(f);
  is_int(log_rank, rank, "rank %d says who it is", rank);
  return rc;
}

static void prints(int rank, int status, const char *want, const char *what)
{
  char text[6000];
  struct tc_err err;
  is_int(run_here(rank, text, sizeof text, &err), status, "%s: status", what);
  is_str(text, want, "... what is printed");
  int lines = 0; /* but the table's first two, what is reported of its end and JSON's ends */
  for (const char *c = text; *c; c++)
    lines += *c == '\n' && strncmp(c + 1, "fp32", 4) && strncmp(c + 1, "op ", 3) &&
             strncmp(c + 1, "]", 1);
  is_int(flushed,
         TC_MAX(lines - (job.json                        ? 1
                         : strstr(text, "times as fast") ? 2
                                                         : 0),
                0),
         "... each line at once");
}

static void test_printed(void)
{
  set_up(WORLD);
  for (int i = 0; i <= TC_BENCH_ONE_BY_ONE; i++) job.sweep.op[i] = i != 2;
  prints(0, 0,
         "threads, 4 ranks on 1 node: pp 1 x dp 2 x tp 2; axis world: 4 ranks, 1 group\n"
         "fp32; size in bytes; time of 3 iterations, each the slowest rank's; GB/s as nccl-tests "
         "define them\n"
         "op                axis          size        count      time_us      algbw      busbw  algorithm  "
         "check\n"
         "all_reduce        world            8            2       1000.2    12.3457     0.5000  tree       "
         "ok\n"
         "all_reduce        world           32            8       1000.2    12.3457     0.5000  tree       "
         "ok\n"
         "all_reduce        world           40           10       1000.2    12.3457     0.5000  tree       "
         "ok\n"
         "reduce+broadcast  world            8            2       2000.5    24.6913     0.5000  tree       "
         "ok\n"
         "reduce+broadcast  world           32            8       2000.5    24.6913     0.5000  tree       "
         "ok\n"
         "reduce+broadcast  world           40           10       2000.5    24.6913     0.5000  tree       "
         "ok\n"
         "all_gather        world            8            2       4001.0    49.3827     0.5000  tree       "
         "ok\n"
         "all_gather        world           32            8       4001.0    49.3827     0.5000  tree       "
         "ok\n"
         "all_gather        world           40           10       4001.0    49.3827     0.5000  tree       "
         "ok\n"
         "broadcast         world            8            2       5001.2    61.7283     0.5000  tree       "
         "ok\n"
         "broadcast         world           32            8       5001.2    61.7283     0.5000  tree       "
         "ok\n"
         "broadcast         world           40           10       5001.2    61.7283     0.5000  tree       "
         "ok\n"
         "one_by_one        world            8            2       6001.5    74.0740     0.5000  tree       "
         "ok\n"
         "one_by_one        world           32            8       6001.5    74.0740     0.5000  tree       "
         "ok\n"
         "one_by_one        world           40           10       6001.5    74.0740     0.5000  tree       "
         "ok\n"
         "all_reduce is 2 times as fast as reduce+broadcast at 40 B: 1 ms and 2 ms; rank 0 sends "
         "1 B and 1.5 KB\n"
         "broadcast is 1.2 times as fast as one_by_one at 40 B: 5 ms and 6 ms; rank 0 sends 6 KB "
         "and 7.5 KB\n",
         "a table");
  is_int(n_rows, 15, "... of so many rows");
  done();
  set_up(WORLD);
  job.sweep.op[TC_BENCH_REDUCE_BROADCAST] = true;
  prints(1, 0, "", "another rank");
  is_int(n_rows, 6, "... measures, too");
  done();
  set_up(TC_SET_TP);
  job.json = true;
  job.sweep.op[TC_BENCH_REDUCE_BROADCAST] = true;
  job.sweep.max_bytes = 8;
  ranks.n_nodes = 2;
  prints(0, 0,
         "[\n"
         " {\"op\": \"all_reduce\", \"axis\": \"tp\", \"ranks\": 2, \"nodes\": 1, \"link\": \"thread\", "
         "\"size\": 8, \"count\": 2, \"iterations\": 3, \"time_us\": 1000.25, \"median_us\": 7.125, \"algbw\": "
         "12.3457, \"busbw\": 0.5, \"algorithm\": \"tree\", \"check\": \"ok\"},\n"
         " {\"op\": \"reduce+broadcast\", \"axis\": \"tp\", \"ranks\": 2, \"nodes\": 1, \"link\": \"thread\", "
         "\"size\": 8, \"count\": 2, \"iterations\": 3, \"time_us\": 2000.5, \"median_us\": 7.125, \"algbw\": "
         "24.6913, \"busbw\": 0.5, \"algorithm\": \"tree\", \"check\": \"ok\"}\n"
         "]\n",
         "JSON");
  done();
  set_up(TC_SET_TP);
  job.json = true;
  prints(1, 0, "", "... which another rank has not");
  done();
  set_up(TC_SET_DP);
  job.mesh->n_nodes = 2;
  job.sweep.op[TC_BENCH_GATHER] = true;
  fail_row = 2;
  row_status = TC_EUSER;
  prints(0, TC_EUSER,
         "threads, 4 ranks on 2 nodes: pp 1 x dp 2 x tp 2; axis dp: 2 ranks, 2 groups at once\n"
         "fp32; size in bytes; time of 3 iterations, each the slowest rank's; GB/s as nccl-tests "
         "define them\n"
         "op                axis          size        count      time_us      algbw      busbw  algorithm  "
         "check\n"
         "all_reduce        dp               8            2       1000.2    12.3457     0.5000  tree       "
         "ok\n"
         "all_reduce        dp              32            8       1000.2    12.3457     0.5000  tree       "
         "wrong\n",
         "a wrong result");
  is_int(n_rows, 2, "... is the last");
  done();
  set_up(WORLD);
  fail_row = 2;
  row_status = TC_EPEER;
  prints(0, TC_EPEER,
         "threads, 4 ranks on 1 node: pp 1 x dp 2 x tp 2; axis world: 4 ranks, 1 group\n"
         "fp32; size in bytes; time of 3 iterations, each the slowest rank's; GB/s as nccl-tests "
         "define them\n"
         "op                axis          size        count      time_us      algbw      busbw  algorithm  "
         "check\n"
         "all_reduce        world            8            2       1000.2    12.3457     0.5000  tree       "
         "ok\n",
         "a peer that is gone");
  done();
  set_up(WORLD);
  job.sweep.op[TC_BENCH_BROADCAST] = true;
  job.sweep.op[TC_BENCH_ALL_REDUCE] = false;
  job.sweep.max_bytes = 8;
  prints(
      0, 0,
      "threads, 4 ranks on 1 node: pp 1 x dp 2 x tp 2; axis world: 4 ranks, 1 group\n"
      "fp32; size in bytes; time of 3 iterations, each the slowest rank's; GB/s as nccl-tests "
      "define them\n"
      "op                axis          size        count      time_us      algbw      busbw  algorithm  check\n"
      "broadcast         world            8            2       5001.2    61.7283     0.5000  tree       ok\n",
      "nothing to compare with");
  done();
  set_up(WORLD);
  job.json = true;
  fail_row = 1;
  row_status = TC_EPEER;
  prints(0, TC_EPEER,
         "[\n"
         "]\n",
         "... in JSON");
  done();
}

/* What is measured of 4 B .. 64 MB over a link, when there are 30 s for one operation or several. */
static void test_pace(void)
{
  static const struct {
    const char *what;
    double ns;                   /* a byte */
    int ops;
    bool iters, max;             /* adapted */
    int rows;
    const char *out;
  } of[] = {
    { "a fast link", 0.1, 2, true, true, 26, NULL },
    { "a slow link", 400, 1, true, true, 11, "all_reduce from 16777216 bytes" },
    { "a slow link, two operations", 400, 2, true, true, 22,
      "all_reduce from 16777216, reduce+broadcast from 16777216 bytes" },
    { "a slow link, to the end", 400, 1, true, false, 13, NULL },
    { "a slow link, 20 iterations each", 400, 1, false, true, 10, "all_reduce from 4194304 bytes" },
    { "all as announced", 400, 1, false, false, 13, NULL } };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    char text[12000];
    struct tc_err err;
    int rows = 0;
    set_up(WORLD);
    job.sweep.min_bytes = 4;
    job.sweep.max_bytes = 64 << 20;
    job.sweep.iters = 20;
    job.sweep.adapt_iters = of[i].iters;
    job.sweep.adapt_max = of[i].max;
    job.sweep.op[TC_BENCH_REDUCE_BROADCAST] = of[i].ops > 1;
    slow_bytes_ns = of[i].ns;
    is_int(run_here(0, text, sizeof text, &err), 0, "%s: status", of[i].what);
    for (const char *c = text; (c = strstr(c, "  ok\n")); c++) rows++;
    is_int(rows, of[i].rows, "... rows");
    const char *out = strstr(text, "left out, to end in about 30 s: sizes of ");
    ok(!out == !of[i].out && (!out || strstr(out, of[i].out)), "... left out: %s", out ? out : "nothing");
    ok(!of[i].max || !of[i].iters || now_ns < 30000000000, "... in %g s", (double)now_ns * 1e-9);
    ok(!strstr(text, "up to 20 iterations") == !of[i].iters, "... the head says how many iterations");
    slow_bytes_ns = 0;
    done();
  }
}

static void test_pairs(void)
{
  char text[100];
  struct tc_err err;
  for (int fault = 0; fault < 3; fault++) {
    set_up(WORLD);
    job.pairs = job.sweep.adapt_max = true;
    job.rounds = 7;
    fail_at = 8 * (fault == 1);
    const int rank = fault == 2 ? 0 : 2 - 2 * fault;
    char want[300];
    job.json = fault == 2;
    is_int(run_here(rank, text, sizeof text, &err), fault == 1 ? TC_ENOCKPT : 0, "pairs, rank %d", rank);
    is_str(text, "", "... no table of collectives");
    snprintf(want, sizeof want, "bench world in world: 0 rank %d, 40 bytes 3 times, host\nmax world 0\n"
             "pairs 1 in world rank %d, 40 bytes 3 times, 7 rounds, adapt 0 1\n%s", rank, rank,
             fault == 2 ? "print pairs of 4 ranks over thread, 3 times, 1\n" : "");
    ok(strstr(calls, want) && !strstr(calls, "print") == (fault != 2), "... %s", calls);
    done();
  }
}

static void calls_are(int rank, int status, const char *sentence, const char *want,
                      const char *what)
{
  char text[6000];
  struct tc_err err;
  job.sweep.op[TC_BENCH_ALL_REDUCE] = false;
  is_int(run_here(rank, text, sizeof text, &err), status, "%s: status", what);
  is_str(err.text, sentence, "... sentence");
  is_str(calls, want, "... calls");
  done();
}

static void test_opened(void)
{
  set_up(WORLD);
  calls_are(2, 0, "",
            "open world rank 2 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
            "agree auto 0 0 - world 1\n"
            "bench world in world: 0 rank 2, 40 bytes 3 times, host\n"
            "max world 0\n"
            "free none\n"
            "free none\n"
            "free world\n"
            "free bench 1\n"
            "close device 0\n",
            "the world");
  set_up(TC_SET_TP);
  calls_are(3, 0, "",
            "open world rank 3 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
            "open tp rank 3 of 2: 2 r2 3 r3 2.5 s\n"
            "agree auto 0 0 - world 1\n"
            "bench axis in world: 2 rank 3, 40 bytes 3 times, host\n"
            "max world 0\n"
            "free none\n"
            "free axis\n"
            "free world\n"
            "free bench 1\n"
            "close device 0\n",
            "an axis");
  set_up(TC_SET_DP);
  job.launch.hub = NULL;
  calls_are(3, 0, "",
            "open world rank -1 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
            "open dp rank -1 of 2: 1 r1 3 r3 2.5 s\n"
            "agree auto 0 0 - world 1\n"
            "bench axis in world: 1 rank 3, 40 bytes 3 times, host\n"
            "max world 0\n"
            "free none\n"
            "free axis\n"
            "free world\n"
            "free bench 1\n"
            "close device 0\n",
            "an axis by MPI");
  set_up(TC_SET_DP);
  hangs = 1;
  fail_at = 4;
  calls_are(0, TC_ENOCKPT, "fault 4",
            "open world rank 0 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
            "open dp rank 0 of 2: 0 r0 2 r2 2.5 s\n"
            "agree auto 0 0 - world 1\n"
            "bench axis in world: 0 rank 0, 40 bytes 3 times, host\n"
            "max world 0\n"
            "free none\n"
            "free axis\n"
            "free world\n",
            "a thread that hangs");
  for (int i = 0; i < 4; i++) free((void *)(uintptr_t)lent[i]);
  set_up(TC_SET_DP);
  missing = 1;
  calls_are(0, TC_EUSER,
            "out of memory: a GPU can't hold two arrays of --max = 40 bytes; lower it",
            "open world rank 0 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
            "open dp rank 0 of 2: 0 r0 2 r2 2.5 s\n"
            "agree auto 0 0 - world 1\n"
            "bench axis in world: 0 rank 0, 40 bytes 3 times, host\n"
            "max world 0\n"
            "free none\n"
            "free axis\n"
            "free world\n"
            "free bench 1\n"
            "close device 0\n",
            "another has no memory");
  set_up(WORLD);
  missing = -1;
  calls_are(0, TC_EUSER,
            "out of memory: a GPU can't hold two arrays of --max = 40 bytes; lower it",
            "open world rank 0 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
            "agree auto 0 0 - world 1\n"
            "bench world in world: 0 rank 0, 40 bytes 3 times, host\n"
            "max world 1\n"
            "free none\n"
            "free none\n"
            "free world\n"
            "free bench 0\n"
            "close device 0\n",
            "no memory");
  for (int i = 1; i <= 5; i++) {
    static const char *const want[] = { "",
                                        "open world rank -1 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
                                        "free none\n"
                                        "free none\n"
                                        "free world\n"
                                        "free bench 0\n"
                                        "close device 0\n",
                                        "open world rank 0 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
                                        "free none\n"
                                        "free none\n"
                                        "free world\n"
                                        "free bench 0\n"
                                        "close device 0\n",
                                        "open world rank 0 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
                                        "open tp rank 0 of 2: 0 r0 1 r1 2.5 s\n"
                                        "free none\n"
                                        "free axis\n"
                                        "free world\n"
                                        "free bench 0\n"
                                        "close device 0\n",
                                        "open world rank 0 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
                                        "open tp rank 0 of 2: 0 r0 1 r1 2.5 s\n"
                                        "agree auto 0 0 - world 1\n"
                                        "bench axis in world: 0 rank 0, 40 bytes 3 times, host\n"
                                        "max world 0\n"
                                        "free none\n"
                                        "free axis\n"
                                        "free world\n"
                                        "free bench 1\n"
                                        "close device 0\n",
                                        "open world rank 0 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
                                        "open tp rank 0 of 2: 0 r0 1 r1 2.5 s\n"
                                        "agree auto 0 0 - world 1\n"
                                        "free none\n"
                                        "free axis\n"
                                        "free world\n"
                                        "free bench 0\n"
                                        "close device 0\n" };
    char sentence[20];
    snprintf(sentence, sizeof sentence, "fault %d", i);
    set_up(TC_SET_TP);
    if (i == 1) job.launch.hub = NULL;
    fail_at = i;
    calls_are(0, TC_ENOCKPT, sentence, want[i], sentence);
  }
}

/* Which device is opened for which settings, and what is agreed on. */
static void test_gpus(void)
{
  static const struct {
    enum tc_comm_kind comm;
    enum tc_device_kind device;
    int index;
    bool none;
    const char *want;
  } rows[] = { { TC_COMM_AUTO, TC_DEVICE_CPU, 1, false, "agree auto 0 0 - world 1\n" },
               { TC_COMM_AUTO, TC_DEVICE_AUTO, 0, false,
                 "device cuda:0 1\n"
                 "agree auto 0 1 - world 1\n" },
               { TC_COMM_AUTO, TC_DEVICE_AUTO, -1, false, "agree auto 0 0 - world 1\n" },
               { TC_COMM_AUTO, TC_DEVICE_CUDA, -1, false,
                 "device cuda:0 1\n"
                 "agree auto 0 1 - world 1\n" },
               { TC_COMM_AUTO, TC_DEVICE_AUTO, 1, true,
                 "device cuda:1 1\n"
                 "agree auto 0 0 no such device world 1\n" },
               { TC_COMM_NCCL, TC_DEVICE_CPU, 1, false, "agree nccl 0 0 - world 1\n" },
               { TC_COMM_NCCL, TC_DEVICE_AUTO, -1, false,
                 "device cuda:0 1\n"
                 "agree nccl 0 1 - world 1\n" },
               { TC_COMM_NCCL, TC_DEVICE_CUDA, 1, true,
                 "device cuda:1 1\n"
                 "agree nccl 0 0 no such device world 1\n" },
               { TC_COMM_THREAD, TC_DEVICE_CUDA, 1, false, "" },
               { TC_COMM_MPI, TC_DEVICE_CUDA, 1, false, "" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_bench_rank g = { .group[0].comm = &comm[0] };
    const struct tc_bench_group group = { 0 };
    struct tc_err err = { 0 };
    set_up(WORLD);
    config.run_comm = rows[i].comm;
    config.run_device = rows[i].device;
    info[2].device = rows[i].index;
    no_device = rows[i].none;
    is_int(open_gpu(&g, &job.launch, 2, job.axis, &group, &err), 0,
           "run.comm = %s, run.device = %s, GPU %d", tc_word_run_comm(rows[i].comm),
           tc_word_run_device(rows[i].device), rows[i].index);
    is_str(calls, rows[i].want, "... calls");
    done();
  }
  device_ops.nccl = (const struct tc_nccl_ops *)&device;
  for (int i = 0; i < 4; i++) {
    static const int axis[] = { TC_SET_PP, TC_SET_DP, WORLD, TC_SET_DP }, at[] = { 0, 6, 7, 9 },
                     status[] = { 0, TC_ENOCKPT, TC_ENOCKPT, TC_EPEER };
    static const char *const want[] = { "device cuda:0 1\n"
                                        "agree auto 1 1 - world 1\n"
                                        "nccl pp axis 0 1 1: 3 r3 2.5 s\n"
                                        "all agree world 1 0\n",
                                        "device cuda:0 1\n"
                                        "agree auto 1 1 - world 1\n"
                                        "nccl dp axis 0 0 1: 3 r3 2.5 s\n"
                                        "all agree world 1 -5\n",
                                        "device cuda:0 1\n"
                                        "agree auto 1 1 - world 1\n"
                                        "nccl world axis 0 0 1: 3 r3 2.5 s\n"
                                        "all agree world 1 0\n",
                                        "device cuda:0 1\n"
                                        "agree auto 1 1 - world 1\n"
                                        "nccl dp axis 0 0 1: 3 r3 2.5 s\n" };
    struct tc_bench_rank g = { .group[0].comm = &comm[0] };
    const int32_t members[] = { 1, 3 };
    const char *names[] = { "r1", "r3" };
    const struct tc_bench_group group = { &comm[1], (int32_t *)(uintptr_t)members, names };
    struct tc_err err = { 0 };
    set_up(axis[i]);
    agreed = 1;
    fail_at = at[i];
    config.run_device = TC_DEVICE_CUDA;
    is_int(open_gpu(&g, &job.launch, 2, job.axis, &group, &err), status[i], "NCCL, fault %d: status",
           at[i]);
    is_str(calls, want[i], "... calls");
    ok(g.native == &comm[2], "... the communicator is kept");
    done();
  }
  set_up(TC_SET_TP);
  agreed = 1;
  config.run_device = TC_DEVICE_CUDA;
  calls_are(3, 0, "",
            "open world rank 3 of 4: 0 r0 1 r1 2 r2 3 r3 2.5 s\n"
            "open tp rank 3 of 2: 2 r2 3 r3 2.5 s\n"
            "device cuda:0 1\n"
            "agree auto 1 1 - world 1\n"
            "nccl tp axis 0 0 1: 3 r3 2.5 s\n"
            "all agree world 1 0\n"
            "bench nccl in world: 2 rank 3, 40 bytes 3 times, GPU\n"
            "max world 0\n"
            "free nccl\n"
            "free axis\n"
            "free world\n"
            "free bench 1\n"
            "close device 1\n",
            "a rank with NCCL");
}

int main(void)
{
  test_printed();
  test_pace();
  test_pairs();
  test_opened();
  test_gpus();
  return done_testing();
}
