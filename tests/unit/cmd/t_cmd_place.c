/* t_cmd_place.c - what `tercio place` prints on several nodes with GPUs, which are made up. */
#include "src/cmd/cmd_place.c"
#include "tests/unit/placed.h"
#include "tests/unit/tap.h"

#include <unistd.h>

/* What goes to stdout meanwhile. */
static void print_into(char *text, size_t size, void (*print)(const struct tc_run_place *), const struct tc_run_place *p)
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
  const struct tc_run_place p = { .ranks = &r };
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

/* Pairs of ranks side by side. */
static void lay_out(struct tc_run_place *p, int pp, int tp)
{
  *p = (struct tc_run_place){ .ranks = &ranks, .threads = threads, .mesh = a_mesh(pp, tp) };
}

static void done(struct tc_run_place *p)
{
  tc_warnings_free(&p->warnings);
  tc_mesh_free(p->mesh);
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
  struct tc_run_place p;
  char text[6000];
  set_up_print();
  lay_out(&p, 3, 2);
  tc_warnings_add(&p.warnings, "this is %d", 1);
  tc_warnings_add(&p.warnings, "and %s", "another");
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
  p.sent_bytes[TC_SET_TP] = 2000;
  print_into(text, sizeof text, print_groups, &p);
  is_str(text,
         "  tp: groups of 2 ranks on 2 nodes, a rank sends 2 KB per step\n"
         "  pp: groups of 3 ranks on 2 nodes, a rank sends 0 B per step\n", "what is sent");
  done(&p);
}

static void axes_are(int pp, int tp, int dp_sends, int pp_sends, const char *want, const char *what)
{
  struct tc_run_place p;
  char text[1000];
  lay_out(&p, pp, tp);
  p.traffic = dp_sends + pp_sends > 0;
  p.sent_bytes[TC_SET_DP] = dp_sends;
  p.sent_bytes[TC_SET_PP] = pp_sends;
  print_into(text, sizeof text, print_groups, &p);
  is_str(text, want, "%s", what);
  done(&p);
}

static void test_print_groups(void)
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
static void json_is(const struct tc_run_place *p, const char *want, const char *what)
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
  struct tc_run_place p;
  set_up_print();
  lay_out(&p, 3, 2);
  tc_warnings_add(&p.warnings, "this");
  tc_warnings_add(&p.warnings, "that");
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
  test_print_table();
  test_print_groups();
  test_print_json();
  return done_testing();
}
