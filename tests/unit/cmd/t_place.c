/* t_place.c - what `tercio place` prints and warns of on several nodes with GPUs, which are made up. */
#include "src/cmd/place.c"
#include "tests/unit/tap.h"

#include <unistd.h>

enum { RANKS = 6 };

/* Node 0 has GPUs for ranks 0, 2 and 4, node 1 for 1 and 3; rank 5 is there, too, without one. */
static struct tc_rank_info info[RANKS];

static void set_up(void)
{
  for (int i = 0; i < RANKS; i++) {
    struct tc_rank_info *x = &info[i];
    *x = (struct tc_rank_info){ .node = i % 2, .device = i < 5 ? i / 2 : -1, .dev.numa = -1, .dev.distance = 50 };
    snprintf(x->host, sizeof x->host, "host%d", i % 2);
    if (i == 5) continue;
    snprintf(x->dev.name, sizeof x->dev.name, "card");
    snprintf(x->dev.pci, sizeof x->dev.pci, "0000:%d0:00.0", i / 2 + 1);
  }
}

/* n links between the GPUs of two ranks. */
static void link_up(int a, int b, int n)
{
  const int end[2] = { a, b };
  for (int k = 0; k < 2; k++) {
    struct tc_dev *d = &info[end[k]].dev;
    for (int i = 0; i < n; i++) d->peer[d->n_links++] = tc_gpus_address(info[end[!k]].dev.pci);
  }
}

/* What goes to stdout meanwhile. */
static void print_into(char *text, size_t size, void (*print)(const struct place *), const struct place *p)
{
  FILE *f = tmpfile();
  fflush(stdout);
  int out = dup(STDOUT_FILENO);
  TC_ASSERT(f && out >= 0 && dup2(fileno(f), STDOUT_FILENO) >= 0);
  print(p);
  fflush(stdout);
  TC_ASSERT(dup2(out, STDOUT_FILENO) >= 0);
  close(out);
  rewind(f);
  text[fread(text, 1, size - 1, f)] = 0;
  fclose(f);
}

static void printed(char *text, size_t size)
{
  struct tc_ranks r = { .world = RANKS, .n_nodes = 2, .info = info };
  const struct place p = { .ranks = &r };
  print_into(text, size, print_devices, &p);
}

/* The lines of NVLinks in the text, and nothing else of it. */
static void is_links(const char *want, const char *what)
{
  char text[4000], got[2000] = "";
  printed(text, sizeof text);
  for (char *save = NULL, *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
    if (!strncmp(l, "NVLink", 6)) snprintf(got + strlen(got), sizeof got - strlen(got), "%s\n", l);
  is_str(got, want, "%s", what);
}

static void test_links(void)
{
  set_up();
  for (int i = 0; i < RANKS; i++) info[i].dev.n_links = -1;
  is_links("NVLink on host0: unknown (not reported by the driver's library)\n"
           "NVLink on host1: unknown (not reported by the driver's library)\n", "no driver's library");
  set_up();
  is_links("NVLink on host0: none between these GPUs\nNVLink on host1: none between these GPUs\n", "no links");
  link_up(0, 2, 4);
  link_up(1, 3, 1);
  is_links("NVLink on host0: ranks 0-2: 4 links; others none\n"
           "NVLink on host1: 1 link between each two of these GPUs\n", "links of some pairs, of each node's own");
  link_up(2, 4, 2);
  link_up(1, 3, 1);
  is_links("NVLink on host0: ranks 0-2: 4, 2-4: 2 links; others none\n"
           "NVLink on host1: 2 links between each two of these GPUs\n", "... of more pairs");
  info[1].dev.n_switched = info[3].dev.n_switched = 16;
  is_links("NVLink on host0: ranks 0-2: 4, 2-4: 2 links; others none\n"
           "NVLink on host1: 18 links between each two of these GPUs, through switches\n", "... with switches");
  *info[3].dev.pci = 0;
  is_links("NVLink on host0: ranks 0-2: 4, 2-4: 2 links; others none\n", "one GPU of a node has no other");
  for (int i = 0; i < RANKS; i++) *info[i].dev.pci = 0;
  is_links("", "GPUs that are unknown");
  set_up();
  info[3].device = 0;
  strcpy(info[3].dev.pci, info[1].dev.pci);
  is_links("NVLink on host0: none between these GPUs\n", "two ranks on one GPU are no pair");
}

/* A line a GPU, with what is known of it. */
static void test_table(void)
{
  char text[4000];
  set_up();
  info[2].dev.numa = 1;
  info[2].dev.distance = 150;
  info[2].dev.memory_bytes = INT64_C(80000000000);
  printed(text, sizeof text);
  char *at = strstr(text, "distance: ");
  if (at) *at = 0;               /* what follows the table */
  is_str(text,
         "  rank  GPU      memory  PCI           numa  distance\n"
         "     0  card          -  0000:10:00.0     -       0.5\n"
         "     1  card          -  0000:10:00.0     -       0.5\n"
         "     2  card      80 GB  0000:20:00.0     1       1.5\n"
         "     3  card          -  0000:20:00.0     -       0.5\n"
         "     4  card          -  0000:30:00.0     -       0.5\n", "the table");
}

/* ---- ranks, meshes and warnings --------------------------------------------------------- */

static struct tc_ranks ranks = { .world = RANKS, .n_nodes = 2, .info = info, .launcher = "mpirun" };
static int32_t node_of[RANKS] = { 0, 1, 0, 1, 0, 1 };
static int threads[RANKS];

/* Pairs of ranks side by side: 0 2, 4 1 and 3 5. */
static void lay_out(struct place *p, int pp, int tp)
{
  const struct tc_mesh_want want = { .pp = pp, .tp = tp, .tp_across_nodes = true };
  struct tc_err err = { 0 };
  *p = (struct place){ .ranks = &ranks, .threads = threads };
  TC_ASSERT(tc_mesh_new(&p->mesh, RANKS, node_of, &want, &err) == 0);
}

static void done(struct place *p)
{
  for (int i = 0; i < p->n_warnings; i++) free(p->warning[i]);
  free(p->warning);
  tc_mesh_free(p->mesh);
}

/* Each rank runs a thread on two CPUs of its own, of 0-5, and sees all GPUs of its node. */
static void set_up_ranks(void)
{
  set_up();
  for (int i = 0; i < RANKS; i++) {
    struct tc_rank_info *x = &info[i];
    x->local_rank = i / 2;
    x->local_size = 3;
    x->numa = -1;
    x->n_cpus = 2;
    x->n_visible = x->n_node_devices = 3;
    snprintf(x->cpuset, sizeof x->cpuset, "%d-%d", i / 2 * 2, i / 2 * 2 + 1);
    threads[i] = 1;
  }
}

/* The warnings, a line each; the ranks are set up anew. */
static void warns(int tp, bool simulated, const char *want, const char *what)
{
  struct place p;
  char got[2000] = "";
  lay_out(&p, 1, tp);
  p.simulated = simulated;
  find_warnings(&p);
  for (int i = 0; i < p.n_warnings; i++)
    snprintf(got + strlen(got), sizeof got - strlen(got), "%s\n", p.warning[i]);
  is_str(got, want, "%s", what);
  done(&p);
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
  const struct tc_mesh_want want = { .pp = 1, .tp = 1 };
  struct tc_err err;
  for (int i = 0; i < 256; i++) many[i] = (struct tc_rank_info){ .host = "big", .cpuset = "0-255", .dev.name = "card" };
  struct place p = { .ranks = &r, .threads = one };
  TC_ASSERT(tc_mesh_new(&p.mesh, 256, node, &want, &err) == 0);
  find_warnings(&p);
  if (ok(p.n_warnings == 1, "256 ranks on one GPU: a warning"))
    is_str(p.warning[0], "256 ranks (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, "
           "19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, "
           "41, 42, 43, 44, 45, 46, 47, 48) share card of big: start as many ranks per node as it has GPUs", "... that names the first of them");
  done(&p);
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

/* ---- what is printed --------------------------------------------------------------------- */

static void set_up_print(void)
{
  set_up_ranks();
  threads[0] = 2;
  *info[5].cpuset = 0;
  info[5].n_cpus = 0;
  threads[5] = 0;
  info[4].numa = 0;
  info[4].bound = true;
  strcpy(info[3].cpuset, "0-3,8,10-1999");
  info[0].dev.numa = 0;
  info[2].dev.distance = 0;
  info[0].dev.memory_bytes = 1;
  strcpy(info[2].dev.uuid, "GPU-2");
  link_up(0, 2, 3);
  for (int i = 0; i < 4; i += 2) info[i].dev.n_switched = 1;
  info[4].dev = info[0].dev;
  info[1].dev.n_links = -1;
  info[5].dev.numa = 2;
  strcpy(info[4].dev.name, "larger");
}

static void test_print_table(void)
{
  struct place p;
  char text[6000];
  set_up_print();
  lay_out(&p, 3, 2);
  warn(&p, "this is %d", 1);
  warn(&p, "and %s", "another");
  print_into(text, sizeof text, print_table, &p);
  is_str(text,
         "mpirun, 6 ranks on 2 nodes: pp 3 x dp 1 x tp 2\n"
         "  rank   node  host   local  device  numa  cpus           threads    pp     dp    tp\n"
         "     0      0  host0      0     0/3     -  0-1                  2     0      0     0\n"
         "     1      1  host1      0     0/3     -  0-1                  1     1      0     1\n"
         "     2      0  host0      1     1/3     -  2-3                  1     0      0     1\n"
         "     3      1  host1      1     1/3     -  0-3,8,10-1999        1     2      0     0\n"
         "     4      0  host0      2     2/3     0  4-5                  1     1      0     0\n"
         "     5      1  host1      2       -     -  -                    -     2      0     1\n"
         "  rank  GPU        memory  PCI           numa  distance\n"
         "     0  card          1 B  0000:10:00.0     0       0.5\n"
         "     1  card            -  0000:10:00.0     -       0.5\n"
         "     2  card            -  0000:20:00.0     -         0\n"
         "     3  card            -  0000:20:00.0     -       0.5\n"
         "     4  larger        1 B  0000:10:00.0     0       0.5\n"
         "distance: NUMA node, package, machine: levels up from the GPU to the rank's CPUs, on "
         "average\n"
         "NVLink on host0: 4 links between each two of these GPUs, through switches\n"
         "NVLink on host1: unknown (not reported by the driver's library)\n"
         "  tp: groups of 2 ranks on 2 nodes\n"
         "  pp: groups of 3 ranks on 2 nodes\n"
         "warning: this is 1\n"
         "warning: and another\n", "the whole table");
  p.traffic = true;
  p.sent_bytes[TC_TP] = 2000;
  print_into(text, sizeof text, print_axes, &p);
  is_str(text,
         "  tp: groups of 2 ranks on 2 nodes, a rank sends 2 KB per step\n"
         "  pp: groups of 3 ranks on 2 nodes, a rank sends 0 B per step\n", "what is sent");
  done(&p);
}

static void axes_are(int pp, int tp, int dp_sends, int pp_sends, const char *want, const char *what)
{
  struct place p;
  char text[1000];
  lay_out(&p, pp, tp);
  p.traffic = dp_sends + pp_sends > 0;
  p.sent_bytes[TC_DP] = dp_sends;
  p.sent_bytes[TC_PP] = pp_sends;
  print_into(text, sizeof text, print_axes, &p);
  is_str(text, want, "%s", what);
  done(&p);
}

static void test_print_axes(void)
{
  set_up_ranks();
  axes_are(3, 1, 0, 0,
         "mesh.order tp-dp-pp, innermost first:\n"
         "  dp: groups of 2 ranks on 2 nodes\n"
         "  pp: groups of 3 ranks on 2 nodes\n", "axes");
  axes_are(3, 1, 5, 5,
         "mesh.order tp-dp-pp, innermost first:\n"
         "  dp: groups of 2 ranks on 2 nodes, a rank sends 5 B per step\n"
         "  pp: groups of 3 ranks on 2 nodes, a rank sends 5 B per step\n", "axes that send as much");
  axes_are(3, 1, 5, 6,
         "mesh.order tp-dp-pp, innermost first:\n"
         "  dp: groups of 2 ranks on 2 nodes, a rank sends 5 B per step\n"
         "  pp: groups of 3 ranks on 2 nodes, a rank sends 6 B per step\n"
         "  pp sends more over a longer distance: mesh.order = auto would swap the two\n", "one that sends more");
  axes_are(1, 1, 5, 6,
         "  dp: groups of 6 ranks on 2 nodes, a rank sends 5 B per step\n", "one axis");
  axes_are(1, 2, 5, 0,
         "  tp: groups of 2 ranks on 2 nodes, a rank sends 0 B per step\n"
         "  dp: groups of 3 ranks on 2 nodes, a rank sends 5 B per step\n", "two axes");
  axes_are(6, 1, 5, 6,
         "  pp: groups of 6 ranks on 2 nodes, a rank sends 6 B per step\n", "the other");
  ranks.n_nodes = 1;
  memset(node_of, 0, sizeof node_of);
  axes_are(3, 1, 5, 6,
         "mesh.order tp-dp-pp, innermost first:\n"
         "  dp: groups of 2 ranks on 1 node, a rank sends 5 B per step\n"
         "  pp: groups of 3 ranks on 1 node, a rank sends 6 B per step\n", "one node");
  for (int i = 0; i < RANKS; i++) node_of[i] = i % 2;
  ranks.n_nodes = 2;
}

/* JSON without blanks and ends of lines, its quotes as '. */
static void json_is(const struct place *p, const char *want, const char *what)
{
  char text[16000], *to = text;
  print_into(text, sizeof text, print_json, p);
  for (const char *s = text; *s; s++)
    if (*s != '\n' && *s != ' ') *to++ = *s == '"' ? '\'' : *s;
  *to = 0;
  is_str(text, want, "%s", what);
}

static void test_print_json(void)
{
  struct place p;
  set_up_print();
  lay_out(&p, 3, 2);
  warn(&p, "this");
  warn(&p, "that");
  ranks.restart = 3;
  strcpy(ranks.job, "77");
  json_is(&p,
         "{'world':6,'nodes':2,'launcher':'mpirun','job':'77','restart':3,'mesh':{'pp':3,'dp':1,"
         "'tp':2,'order':'tp-dp-pp'},'axes':[{'axis':'tp','ranks':2,'group_nodes':2,"
         "'sent_bytes_a_step':null},{'axis':'dp','ranks':1,'group_nodes':1,"
         "'sent_bytes_a_step':null},{'axis':'pp','ranks':3,'group_nodes':2,"
         "'sent_bytes_a_step':null}],'ranks':[{'rank':0,'node':0,'host':'host0','local_rank':0,"
         "'local_size':3,'numa':null,'cpus':'0-1','n_cpus':2,'bound':false,'threads':2,'device':0,"
         "'devices_visible':3,'devices_on_node':3,'device_name':'card','device_uuid':null,"
         "'device_pci':'0000:10:00.0','device_numa':0,'device_distance':0.5,"
         "'device_memory_bytes':1,'nvlinks':[[2,4]],'pp':0,'dp':0,'tp':0},{'rank':1,'node':1,"
         "'host':'host1','local_rank':0,'local_size':3,'numa':null,'cpus':'0-1','n_cpus':2,"
         "'bound':false,'threads':1,'device':0,'devices_visible':3,'devices_on_node':3,"
         "'device_name':'card','device_uuid':null,'device_pci':'0000:10:00.0','device_numa':null,"
         "'device_distance':0.5,'device_memory_bytes':null,'nvlinks':null,'pp':1,'dp':0,'tp':1},"
         "{'rank':2,'node':0,'host':'host0','local_rank':1,'local_size':3,'numa':null,"
         "'cpus':'2-3','n_cpus':2,'bound':false,'threads':1,'device':1,'devices_visible':3,"
         "'devices_on_node':3,'device_name':'card','device_uuid':'GPU-2',"
         "'device_pci':'0000:20:00.0','device_numa':null,'device_distance':0.0,"
         "'device_memory_bytes':null,'nvlinks':[[0,4],[4,4]],'pp':0,'dp':0,'tp':1},{'rank':3,"
         "'node':1,'host':'host1','local_rank':1,'local_size':3,'numa':null,'cpus':'0-3,8,"
         "10-1999','n_cpus':2,'bound':false,'threads':1,'device':1,'devices_visible':3,"
         "'devices_on_node':3,'device_name':'card','device_uuid':null,'device_pci':'0000:20:00.0',"
         "'device_numa':null,'device_distance':0.5,'device_memory_bytes':null,'nvlinks':[],'pp':2,"
         "'dp':0,'tp':0},{'rank':4,'node':0,'host':'host0','local_rank':2,'local_size':3,'numa':0,"
         "'cpus':'4-5','n_cpus':2,'bound':true,'threads':1,'device':2,'devices_visible':3,"
         "'devices_on_node':3,'device_name':'larger','device_uuid':null,"
         "'device_pci':'0000:10:00.0','device_numa':0,'device_distance':0.5,"
         "'device_memory_bytes':1,'nvlinks':[[2,4]],'pp':1,'dp':0,'tp':0},{'rank':5,'node':1,"
         "'host':'host1','local_rank':2,'local_size':3,'numa':null,'cpus':null,'n_cpus':null,"
         "'bound':false,'threads':null,'device':null,'devices_visible':3,'devices_on_node':3,"
         "'device_name':null,'device_uuid':null,'device_pci':null,'device_numa':null,"
         "'device_distance':null,'device_memory_bytes':null,'nvlinks':null,'pp':2,'dp':0,'tp':1}],"
         "'warnings':['this','that']}", "JSON");
  done(&p);
}

int main(void)
{
  test_links();
  test_table();
  test_shared();
  test_many();
  test_hidden();
  test_far();
  test_crowded();
  test_warned();
  test_print_table();
  test_print_axes();
  test_print_json();
  return done_testing();
}
