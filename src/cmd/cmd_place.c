/* cmd_place.c - `tercio place`: shows the placement of ranks without running anything.
 *
 * The same discovery, mesh and rules as `tercio train`, but no MPI_Init: it is quick under
 * any launcher, and with --simulate it needs none. Every rank computes the same answer and
 * returns the same status; only rank 0 prints it. */
#include "src/cmd/cmd.h"
#include "src/cmd/out.h"
#include "src/launch/launch.h"
#include "src/run/place.h"

#include <stdlib.h>
#include <string.h>

struct ask { bool json; const char *simulate, *order; };
#define FIELD(f) .field = offsetof(struct ask, f)
const struct tc_flag tc_flags_place[] = {
  { "--json", "print JSON", .kind = TC_FLAG_YES, FIELD(json) },
  { "--simulate CLUSTER", "show a cluster instead of the ranks that a launcher started: nodes and ranks of each, as "
    "in \"3 nodes x 8\" or \"2:8,4\"", .kind = TC_FLAG_TEXT, FIELD(simulate) },
  { "--order ORDER", "how the ranks of --simulate are dealt to its nodes: block (the default) or cyclic, as srun "
       "-m", .kind = TC_FLAG_TEXT, FIELD(order), .needs = "--simulate",
    .says = "--order = %s is for simulated ranks only: add --simulate \"2 nodes x 4\"; real ones are ordered by the launcher "
            "(srun -m %s)" },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_RUN(tc_flags_place, "place");

/* ---- printing -------------------------------------------------------------------------- */

/* The largest number of nodes that a group of the set spans. */
static int group_nodes(const struct tc_mesh *m, int set)
{
  int most = 0;
  for (int r = 0; r < m->world; r++)
    if (tc_mesh_index(m, r, m->group[set].axes) == 0) most = TC_MAX(most, tc_mesh_group_nodes(m, r, m->group[set].axes));
  return most;
}

/* The named sets, from those whose ranks are near to those with the farthest ones. Returns their number. */
static int near_to_far(const struct tc_mesh *m, int set[TC_SETS])
{
  int n = 0;
  unsigned within = 0;                           /* the axes up to the i-th nearest one */
  for (int i = 0; i < TC_AXES - TC_FIRST_AXIS; i++) {
    const unsigned axis = 1u << tc_mesh_nearest(m, i);
    within |= axis;
    for (int s = TC_SETS - 1; s >= 0; s--)       /* a set comes before one of which it is a part */
      if (m->group[s].named && tc_set_axes[s] & axis && !(tc_set_axes[s] & ~within)) set[n++] = s;
  }
  return n;
}

/* Prints the sets, innermost first: the distance of their groups and their traffic. */
static void print_groups(const struct tc_run_place *p)
{
  const struct tc_mesh *m = p->mesh;
  const bool pp_far = m->order == TC_TP_DP_PP, both = m->group[TC_SET_PP].size > 1 && m->group[TC_SET_DP].size > 1;
  const int near = pp_far ? TC_SET_DP : TC_SET_PP, far = pp_far ? TC_SET_PP : TC_SET_DP;
  int set[TC_SETS], n = near_to_far(m, set);
  char h[32];
  if (both) printf("mesh.order %s, innermost first:\n", tc_word_mesh_order(m->order));
  for (int i = 0; i < n; i++) {
    const int s = set[i], size = m->group[s].size, nodes = group_nodes(m, s);
    if (size == 1) continue;
    printf("  %s: groups of %d ranks on %d node%s", tc_set_name[s], size, nodes, tc_plural(nodes));
    if (p->traffic)
      printf(", a rank sends %s per step", tc_human_bytes(h, sizeof h, (double)p->sent_bytes[s]));
    printf("\n");
  }
  if (p->traffic && both && p->sent_bytes[near] < p->sent_bytes[far] && m->n_nodes > 1)
    printf("  %s sends more over a longer distance: mesh.order = auto would swap the two\n", tc_set_name[far]);
}

static const char gpu_form[] = "rank=%6d  name:GPU=%-*s  memory=%9s  pci?:PCI=%-12s  numa?=%4d  distance=%8.3g";

/* Prints the GPUs, if at least their bus is known. */
static void print_gpus(const struct tc_run_place *p)
{
  const struct tc_ranks *r = p->ranks;
  int known = 0, width = 4;
  for (int i = 0; i < r->world; i++) {
    known += *r->info[i].dev.pci != 0;
    width = TC_MAX(width, (int)strlen(r->info[i].dev.name));
  }
  if (!known) return;
  tc_out_head(gpu_form, width);
  for (int i = 0; i < r->world; i++) {
    const struct tc_dev *d = &r->info[i].dev;
    char memory[32];
    if (r->info[i].device < 0) continue;
    tc_human_bytes(memory, sizeof memory, (double)d->memory_bytes);
    tc_out_row(NULL, gpu_form, i, width, d->name, d->memory_bytes > 0 ? memory : NULL, d->pci, d->numa, d->distance / 100.0);
  }
  printf("distance: NUMA node, package, machine: levels up from the GPU to the rank's CPUs, on "
         "average\n");
}

/* Prints the NVLinks among the GPUs of the n ranks list[] of a node. */
static void print_links(const struct tc_run_place *p, const int *list, int n)
{
  const struct tc_rank_info *info = p->ranks->info;
  int pairs = 0, least = INT32_MAX, most = 0;
  for (int a = 0; a < n; a++)
    for (int b = 0; b < a; b++) {
      if (tc_ranks_same_device(&info[list[a]], &info[list[b]])) continue;
      int links = tc_gpus_links(&info[list[a]].dev, &info[list[b]].dev);
      least = TC_MIN(least, links);
      most = TC_MAX(most, links);
      pairs++;
    }
  if (pairs == 0) return;
  printf("NVLink on %s: ", info[list[0]].host);
  if (least < 0) printf("unknown (not reported by the driver's library)\n");
  else if (most == 0) printf("none between these GPUs\n");
  else if (least == most)
    printf("%d link%s between each two of these GPUs%s\n", most, tc_plural(most),
           info[list[0]].dev.n_switched > 0 ? ", through switches" : "");
  else {
    const char *before = "ranks ";
    for (int a = 0; a < n; a++)
      for (int b = a + 1; b < n; b++) {
        int links = tc_gpus_links(&info[list[a]].dev, &info[list[b]].dev);
        if (links == 0 || tc_ranks_same_device(&info[list[a]], &info[list[b]])) continue;
        printf("%s%d-%d: %d", before, list[a], list[b], links);
        before = ", ";
      }
    printf(" links; others none\n");
  }
}

static void print_devices(const struct tc_run_place *p)
{
  int *list = tc_malloc((size_t)p->ranks->world * sizeof *list);
  print_gpus(p);
  for (int node = 0; node < p->ranks->n_nodes && !p->simulated; node++) {
    int n = 0;
    for (int i = 0; i < p->ranks->world; i++)
      if (p->ranks->info[i].node == node && *p->ranks->info[i].dev.pci) list[n++] = i;
    print_links(p, list, n);
  }
  free(list);
}

/* [[rank, links], ...] of the ranks whose GPUs are linked with that of rank i. */
static json_t *links_json(const struct tc_run_place *p, int i)
{
  const struct tc_rank_info *info = p->ranks->info;
  if (info[i].device < 0 || info[i].dev.n_links < 0) return json_null();
  json_t *list = json_array();
  for (int k = 0; k < p->ranks->world; k++) {
    if (k == i || info[k].node != info[i].node || tc_ranks_same_device(&info[i], &info[k])) continue;
    int links = tc_gpus_links(&info[i].dev, &info[k].dev);
    if (links > 0) json_array_append_new(list, json_pack("[i, i]", k, links));
  }
  return list;
}

static const char rank_form[] = "rank=%6d  node=%5d  host=%-*s  local_rank:local=%5d{ local_size=%d}  :device=%6s  "
  "numa?=%4d  cpus?=%-*s{ n_cpus?=%d bound!=%d}  threads?=%7d  {device?=%d devices_visible=%d devices_on_node=%d "
  "device_name?=%s device_uuid?=%s device_pci?=%s device_numa?=%d device_distance?=%g device_memory_bytes?=%lld "
  "nvlinks=%p }";

enum { FORM = 1000, INDICES = 6 };       /* INDICES: as many sets have an option */

/* The columns of a rank: rank_form, and its index in the group of each set that the mesh's text has. */
static void form_of(char form[FORM], int32_t index[TC_SETS], const struct tc_mesh *m, int rank)
{
  snprintf(form, FORM, "%s", rank_form);
  for (int s = 0, n = 0; s < TC_SETS; s++) {
    if (!tc_set_is_shown(m->size, s)) continue;
    TC_ASSERT(n < INDICES);
    tc_text_add(form, FORM, "%s%s=%%%dd", n ? "  " : "", tc_set_name[s], tc_set_width(s));
    index[n++] = tc_mesh_index(m, rank, tc_set_axes[s]);
  }
}

static void print_rank(json_t *list, const struct tc_run_place *p, int i, int host_width, int cpus_width)
{
  const struct tc_rank_info *x = &p->ranks->info[i];
  const struct tc_mesh *m = p->mesh;
  const bool has = x->device >= 0;
  char device[32], form[FORM];
  int32_t at[TC_SETS] = { 0 };
  form_of(form, at, m, i);
  snprintf(device, sizeof device, "%d/%d", x->device, x->n_visible);
  tc_out_row(list, form, i, x->node, host_width, x->host, x->local_rank, x->local_size, has ? device : NULL, x->numa,
             cpus_width, x->cpuset, x->n_cpus > 0 ? x->n_cpus : -1, x->bound, p->threads[i] > 0 ? p->threads[i] : -1, x->device,
             x->n_visible, x->n_node_devices, x->dev.name, x->dev.uuid, x->dev.pci, has ? x->dev.numa : -1,
             has ? x->dev.distance / 100.0 : -1, (long long)(x->dev.memory_bytes > 0 ? x->dev.memory_bytes : -1),
             (void *)(list ? links_json(p, i) : NULL), at[0], at[1], at[2], at[3], at[4], at[5]);
}

static void print_table(const struct tc_run_place *p)
{
  const struct tc_ranks *r = p->ranks;
  char mesh[TC_MESH_TEXT];
  char form[FORM];
  int host_width = 4, cpus_width = 4;
  int32_t at[TC_SETS];
  form_of(form, at, p->mesh, 0);
  for (int i = 0; i < r->world; i++) {
    host_width = TC_MAX(host_width, (int)strlen(r->info[i].host));
    cpus_width = TC_MAX(cpus_width, (int)strlen(r->info[i].cpuset));
  }
  printf("%s, %d rank%s on %d node%s: %s\n", r->launcher, r->world, tc_plural(r->world), r->n_nodes,
         tc_plural(r->n_nodes), tc_mesh_text(mesh, p->mesh->size, " ", " x "));
  tc_out_head(form, host_width, cpus_width);
  for (int i = 0; i < r->world; i++) print_rank(NULL, p, i, host_width, cpus_width);
  print_devices(p);
  if (p->mesh->world > 1) print_groups(p);
  for (int i = 0; i < p->warnings.n; i++) printf("warning: %s\n", p->warnings.text[i]);
}

static void print_json(const struct tc_run_place *p)
{
  const struct tc_ranks *r = p->ranks;
  const struct tc_mesh *m = p->mesh;
  json_t *ranks = json_array(), *list = json_array(), *axes = json_array(), *mesh = tc_mesh_json(m->size);
  json_object_set_new(mesh, "order", json_string(tc_word_mesh_order(m->order)));
  int set[TC_SETS];
  const int n = near_to_far(m, set);
  for (int i = 0; i < n; i++)
    tc_out_row(axes, "axis=%s ranks=%d group_nodes=%d sent_bytes_a_step?=%lld", tc_set_name[set[i]], m->group[set[i]].size,
               group_nodes(m, set[i]), (long long)(p->traffic ? p->sent_bytes[set[i]] : -1));
  for (int i = 0; i < r->world; i++) print_rank(ranks, p, i, 0, 0);
  for (int i = 0; i < p->warnings.n; i++) json_array_append_new(list, json_string(p->warnings.text[i]));
  tc_out_json(tc_out_object("world=%d nodes=%d launcher=%s job?=%s restart=%d mesh=%p axes=%p ranks=%p warnings=%p",
    r->world, r->n_nodes, r->launcher, r->job, r->restart, (void *)mesh, (void *)axes, (void *)ranks, (void *)list), JSON_INDENT(1));
}

/* ---- the command ----------------------------------------------------------------------- */

static int place(struct tc_run_place *p, struct tc_config *cfg, const struct ask *ask, struct tc_err *err)
{
  TC_TRY(tc_run_place_find(p, cfg, ask->simulate, ask->order, err));
  if (p->ranks->rank != 0) return TC_OK;
  if (ask->json) print_json(p);
  else print_table(p);
  return TC_OK;
}

int tc_cmd_place(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct tc_config *cfg = NULL;
  struct ask ask = { 0 };
  int rc = tc_args_run(&cfg, &flags, &ask, argc, argv, &err);
  if (!rc) rc = tc_trained_of_run(cfg, &err);
  struct tc_launch l = { .cfg = cfg, .rank = tc_launch_rank() };
  struct tc_run_place p = { 0 };
  if (!rc) rc = place(&p, cfg, &ask, &err);
  l.ranks = p.ranks;
  int status = tc_launch_say(&l, rc, &err);
  tc_ranks_finish();
  tc_run_place_done(&p);
  tc_config_free(cfg);
  return status;
}
