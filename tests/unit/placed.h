/* placed.h - six made-up ranks on two nodes with GPUs, for tests of how ranks are placed. */
#ifndef TC_TEST_PLACED_H
#define TC_TEST_PLACED_H

#include "src/launch/launch.h"

#include <string.h>

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
static inline void link_up(int a, int b, int n)
{
  const int end[2] = { a, b };
  for (int k = 0; k < 2; k++) {
    struct tc_dev *d = &info[end[k]].dev;
    for (int i = 0; i < n; i++) d->peer[d->n_links++] = tc_gpus_address(info[end[!k]].dev.pci);
  }
}

static struct tc_ranks ranks = { .world = RANKS, .n_nodes = 2, .info = info, .launcher = "mpirun" };
static int32_t node_of[RANKS] = { 0, 1, 0, 1, 0, 1 };
static int threads[RANKS];

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

/* Pairs of ranks side by side: 0 2, 4 1 and 3 5. */
static struct tc_mesh *a_mesh(int pp, int tp)
{
  const struct tc_mesh_want want = { .size = { [TC_SET_PP] = pp, [TC_SET_TP] = tp }, .tp_across_nodes = true };
  struct tc_mesh *m;
  struct tc_err err = { 0 };
  TC_ASSERT(tc_mesh_new(&m, RANKS, node_of, &want, &err) == 0);
  return m;
}

#endif
