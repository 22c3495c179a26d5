/* t_place.c - what `tercio place` prints of the GPUs of several nodes, which are made up. */
#include "src/cmd_place.c"
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
static void printed(char *text, size_t size)
{
  struct tc_ranks r = { .world = RANKS, .n_nodes = 2, .info = info };
  struct place p = { .ranks = &r };
  FILE *f = tmpfile();
  fflush(stdout);
  int out = dup(STDOUT_FILENO);
  TC_ASSERT(f && out >= 0 && dup2(fileno(f), STDOUT_FILENO) >= 0);
  print_devices(&p);
  fflush(stdout);
  TC_ASSERT(dup2(out, STDOUT_FILENO) >= 0);
  close(out);
  rewind(f);
  text[fread(text, 1, size - 1, f)] = 0;
  fclose(f);
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
  is_links("NVLink on host0: unknown (the driver's library does not tell)\n"
           "NVLink on host1: unknown (the driver's library does not tell)\n", "no driver's library");
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
  is_links("", "GPUs that nobody knows");
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

int main(void)
{
  test_links();
  test_table();
  return done_testing();
}
