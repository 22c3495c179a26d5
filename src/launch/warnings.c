/* warnings.c - what may make ranks slow where they are: GPUs that are shared, hidden or far, too few CPUs, tensor
 * parallelism across nodes. */
#include "src/launch/launch.h"

#include <hwloc.h>
#include <stdarg.h>
#include <stdlib.h>

struct look {
  struct tc_warnings *out;
  const struct tc_ranks *ranks;
  const struct tc_mesh *mesh;
  const int *threads;
};

void tc_warnings_add(struct tc_warnings *w, const char *fmt, ...)
{
  char text[600];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  TC_APPEND(w->text, w->n, w->cap, tc_strdup(text));
}

/* Lists the ranks of `node`, in rank order, in list[world]. Returns their number. */
static int node_ranks(const struct tc_mesh *m, int node, int *list)
{
  int n = 0;
  for (int i = 0; i < m->world; i++)
    if (m->node[i] == node) list[n++] = i;
  return n;
}

/* Warns of ranks of one node that share a device: one line per device. */
static void warn_shared(struct look *l, const int *list, int n)
{
  const struct tc_rank_info *info = l->ranks->info;
  for (int a = 0; a < n; a++) {
    bool warned = false;
    char ranks[200];
    int length = snprintf(ranks, sizeof ranks, "%d", list[a]), sharing = 1;
    for (int b = 0; b < a && !warned; b++) warned = tc_ranks_same_device(&info[list[a]], &info[list[b]]);
    for (int b = a + 1; b < n && !warned; b++) {
      if (!tc_ranks_same_device(&info[list[a]], &info[list[b]])) continue;
      sharing++;
      if (length < (int)sizeof ranks - 16)
        length += snprintf(ranks + length, sizeof ranks - (size_t)length, ", %d", list[b]);
    }
    if (sharing > 1)
      tc_warnings_add(l->out, "%d ranks (%s) share %s of %s: start as many ranks per node as it has GPUs", sharing,
           ranks, info[list[a]].dev.name, info[list[a]].host);
  }
}

static void warn_hidden(struct look *l)
{
  int n = 0, first = -1;
  for (int i = 0; i < l->ranks->world; i++) {
    const struct tc_rank_info *x = &l->ranks->info[i];
    if (x->n_visible >= x->n_node_devices) continue;
    if (n++ == 0) first = i;
  }
  if (n == 0) return;
  const struct tc_rank_info *x = &l->ranks->info[first];
  tc_warnings_add(l->out, "%d rank%s can't see all GPUs of the node (rank %d on %s: %d of %d), which breaks direct "
       "access between GPUs: ask Slurm for --gpus-per-node, not --gpus-per-task or --gpu-bind",
       n, tc_plural(n), first, x->host, x->n_visible, x->n_node_devices);
}

/* Warns of ranks that the launcher bound far from all GPUs that are free for them. */
static void warn_far(struct look *l)
{
  int n = 0, first = -1;
  for (int i = 0; i < l->ranks->world; i++) {
    if (l->ranks->info[i].device < 0 || l->ranks->info[i].dev.distance < 100) continue;
    if (n++ == 0) first = i;
  }
  if (n == 0) return;
  const struct tc_rank_info *x = &l->ranks->info[first];
  tc_warnings_add(l->out, "%d rank%s far from %s GPU (rank %d on %s: CPUs %s, %s on NUMA node %d): let the launcher "
       "give as many ranks to a socket as it has GPUs, or bind none of them", n,
       n == 1 ? " runs" : "s run", n == 1 ? "its" : "their", first, x->host, x->cpuset, x->dev.pci,
       x->dev.numa);
}

static void warn_tp(struct look *l)
{
  const struct tc_mesh *m = l->mesh;
  const int size = tc_mesh_size(m, TC_ON_TP), groups = m->world / size;
  int n = 0, first = -1;
  for (int i = 0; i < m->world; i += size) {
    if (tc_mesh_group_nodes(m, m->at[i], TC_ON_TP) == 1) continue;
    if (n++ == 0) first = m->at[i];
  }
  if (n > 0)
    tc_warnings_add(l->out, "tp leaves its node in %d of %d groups (that of rank %d spans %d nodes): each layer "
         "waits for the network", n, groups, first, tc_mesh_group_nodes(m, first, TC_ON_TP));
}

/* Warns if the ranks of a node have more threads than CPUs. */
static void warn_threads(struct look *l, const int *list, int n)
{
  hwloc_bitmap_t all = hwloc_bitmap_alloc(), mine = hwloc_bitmap_alloc();
  int64_t threads = 0;
  for (int i = 0; i < n; i++) {
    hwloc_bitmap_list_sscanf(mine, l->ranks->info[list[i]].cpuset);
    hwloc_bitmap_or(all, all, mine);
    threads += l->threads[list[i]];
  }
  int cpus = hwloc_bitmap_weight(all);
  hwloc_bitmap_free(all);
  hwloc_bitmap_free(mine);
  if (threads > cpus)
    tc_warnings_add(l->out, "%s: %d rank%s run%s %lld threads on %d CPU%s: start fewer ranks, set run.threads, or "
         "ask Slurm for --cpus-per-task", l->ranks->info[list[0]].host, n, tc_plural(n),
         n == 1 ? "s" : "", (long long)threads, cpus, tc_plural(cpus));
}

void tc_ranks_warnings(struct tc_warnings *out, const struct tc_ranks *r, const struct tc_mesh *m, const int *threads)
{
  struct look l = { out, r, m, threads };
  int *list = tc_malloc((size_t)r->world * sizeof *list);
  warn_tp(&l);
  for (int node = 0; threads && node < r->n_nodes; node++) {
    const int n = node_ranks(m, node, list);
    warn_shared(&l, list, n);
    warn_threads(&l, list, n);
  }
  if (threads) warn_hidden(&l);
  if (threads) warn_far(&l);
  free(list);
}

void tc_warnings_free(struct tc_warnings *w)
{
  for (int i = 0; i < w->n; i++) free(w->text[i]);
  free(w->text);
}
