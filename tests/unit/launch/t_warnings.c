/* t_warnings.c - which warnings there are of ranks on several nodes with GPUs, which are made up. */
#include "src/launch/launch.h"
#include "tests/unit/placed.h"
#include "tests/unit/tap.h"

/* The warnings, a line each; the ranks are set up anew. */
static void warns(int tp, bool simulated, const char *want, const char *what)
{
  struct tc_warnings w = { 0 };
  struct tc_mesh *m = a_mesh(1, tp);
  char got[2000] = "";
  tc_ranks_warnings(&w, &ranks, m, simulated ? NULL : threads);
  for (int i = 0; i < w.n; i++) tc_text_add(got, sizeof got, "%s\n", w.text[i]);
  is_str(got, want, "%s", what);
  tc_warnings_free(&w);
  tc_mesh_free(m);
  set_up_ranks();
}

#define SHARED ": start as many ranks per node as it has GPUs\n"
#define THREADS ": start fewer ranks, set run.threads, or ask Slurm for --cpus-per-task\n"
#define HIDDEN ", which breaks direct access between GPUs: ask Slurm for --gpus-per-node, not " \
               "--gpus-per-task or --gpu-bind\n"
#define FAR "): let the launcher give as many ranks to a socket as it has GPUs, or bind none of them\n"
#define LEAVES "tp leaves its node in 1 of 3 groups (that of rank 4 spans 2 nodes): each layer waits for " \
               "the network\n"

static void test_shared(void)
{
  set_up_ranks();
  warns(1, false, "", "nothing to warn of");
  strcpy(info[4].dev.pci, info[0].dev.pci);
  strcpy(info[3].dev.pci, info[1].dev.pci);
  warns(1, false, "2 ranks (0, 4) share card of host0" SHARED "2 ranks (1, 3) share card of host1" SHARED,
        "GPUs of one bus");
  strcpy(info[4].dev.pci, info[0].dev.pci);
  for (int i = 0; i < 6; i += 2) snprintf(info[i].dev.uuid, sizeof info[i].dev.uuid, "GPU-%d", i);
  warns(1, false, "", "... of several names");
  for (int i = 0; i < 6; i += 2) strcpy(info[i].dev.uuid, "GPU-0");
  warns(1, false, "3 ranks (0, 2, 4) share card of host0" SHARED, "GPUs of one name, on three buses");
  strcpy(info[0].dev.uuid, "GPU-0");
  strcpy(info[2].dev.pci, info[0].dev.pci);
  warns(1, false, "2 ranks (0, 2) share card of host0" SHARED, "a name that one of two knows");
  *info[1].dev.pci = 0;
  warns(1, false, "2 ranks (1, 3) share card of host1" SHARED, "a bus that one of two knows");
  *info[1].dev.pci = 0;
  strcpy(info[1].dev.name, "map");
  warns(1, false, "", "... of GPUs of two kinds");
  strcpy(info[5].dev.pci, info[1].dev.pci);
  warns(1, false, "", "a rank without a GPU shares none");
  info[1].device = -1;
  strcpy(info[3].dev.pci, info[1].dev.pci);
  warns(1, false, "", "... with a later one");
}

/* The list of those who share is cut at a whole number. */
static void test_many(void)
{
  static struct tc_rank_info many[256];
  static int32_t node[256];
  static int one[256];
  struct tc_ranks r = { .world = 256, .n_nodes = 1, .info = many };
  const struct tc_mesh_want want = { .size = { [TC_SET_PP] = 1, [TC_SET_TP] = 1 } };
  struct tc_err err;
  for (int i = 0; i < 256; i++) many[i] = (struct tc_rank_info){ .host = "big", .cpuset = "0-255", .dev.name = "card" };
  struct tc_warnings w = { 0 };
  struct tc_mesh *m;
  TC_ASSERT(tc_mesh_new(&m, 256, node, &want, &err) == 0);
  tc_ranks_warnings(&w, &r, m, one);
  if (ok(w.n == 1, "256 ranks on one GPU: a warning"))
    is_str(w.text[0], "256 ranks (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, "
           "19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, "
           "41, 42, 43, 44, 45, 46, 47, 48) share card of big: start as many ranks per node as it has GPUs", "... that names the first of them");
  tc_warnings_free(&w);
  tc_mesh_free(m);
}

static void test_hidden(void)
{
  set_up_ranks();
  info[3].n_visible = 2;
  warns(1, false, "1 rank can't see all GPUs of the node (rank 3 on host1: 2 of 3)" HIDDEN, "one sees less");
  info[0].n_visible = 0;
  info[5].n_visible = 1;
  warns(1, false, "2 ranks can't see all GPUs of the node (rank 0 on host0: 0 of 3)" HIDDEN, "two do");
  info[2].n_visible = 4;
  warns(1, false, "", "more are seen than were given");
}

static void test_far(void)
{
  set_up_ranks();
  info[5].dev.distance = 200;
  info[4].dev.distance = 99;
  warns(1, false, "", "a rank without a GPU, and one that is not too far");
  info[4].dev.distance = 100;
  info[4].dev.numa = 1;
  warns(1, false, "1 rank runs far from its GPU (rank 4 on host0: CPUs 4-5, 0000:30:00.0 on NUMA node 1" FAR,
        "one that is");
  info[3].dev.distance = 101;
  info[4].dev.distance = 150;
  warns(1, false, "2 ranks run far from their GPU (rank 3 on host1: CPUs 2-3, 0000:20:00.0 on NUMA node -1" FAR,
        "two that are");
}

static void test_crowded(void)
{
  set_up_ranks();
  threads[0] = 4;
  warns(1, false, "", "as many threads as CPUs");
  threads[0] = 5;
  warns(1, false, "host0: 3 ranks run 7 threads on 6 CPUs" THREADS, "one more");
  for (int i = 0; i < RANKS; i++) strcpy(info[i].cpuset, i % 2 ? "3" : "0-2");
  warns(1, false, "host1: 3 ranks run 3 threads on 1 CPU" THREADS, "CPUs that ranks have together");
  node_of[5] = ranks.info[5].node = 2;
  strcpy(info[5].host, "host2");
  ranks.n_nodes = 3;
  threads[5] = 3;
  warns(1, false, "host2: 1 rank runs 3 threads on 2 CPUs" THREADS, "a rank that is alone");
  node_of[5] = 1;
  ranks.n_nodes = 2;
}

static void test_warned(void)
{
  set_up_ranks();
  warns(2, false, LEAVES, "tp leaves a node");
  for (int k = 0; k < 2; k++) {
    info[0].n_visible = 1;
    info[0].dev.distance = 300;
    threads[1] = 9;
    strcpy(info[4].dev.pci, info[2].dev.pci);
    if (k) warns(2, true, LEAVES, "... of simulated ranks");
    else
      warns(2, false, LEAVES "2 ranks (2, 4) share card of host0" SHARED
            "host1: 3 ranks run 11 threads on 6 CPUs" THREADS
            "1 rank can't see all GPUs of the node (rank 0 on host0: 1 of 3)" HIDDEN
            "1 rank runs far from its GPU (rank 0 on host0: CPUs 0-1, 0000:10:00.0 on NUMA node -1" FAR,
            "everything at once");
  }
}

int main(void)
{
  test_shared();
  test_many();
  test_hidden();
  test_far();
  test_crowded();
  test_warned();
  return done_testing();
}
