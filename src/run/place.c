/* place.c - where the ranks of a run are, found without starting any of it. */
#include "src/run/place.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"

#include <stdlib.h>
#include <string.h>

/* The ranks of a synthetic cluster, with a device each. */
static int simulate(struct tc_ranks **out, const char *cluster, const char *order, struct tc_err *err)
{
  int32_t *node;
  int world = tc_mesh_synthetic(cluster, order, &node, err);
  if (world < 0) return world;
  struct tc_ranks *r = tc_calloc(1, sizeof *r);
  r->world = world;
  r->node_of_rank = node;
  r->info = tc_calloc((size_t)world, sizeof *r->info);
  strcpy(r->launcher, "simulated");
  int *count = tc_calloc((size_t)world, sizeof *count);
  for (int i = 0; i < world; i++) {
    struct tc_rank_info *x = &r->info[i];
    x->node = node[i];
    x->local_rank = x->device = count[node[i]]++;
    r->n_nodes = TC_MAX(r->n_nodes, node[i] + 1);
    snprintf(x->host, sizeof x->host, "node%d", node[i]);
    snprintf(x->dev.name, sizeof x->dev.name, "gpu%d", x->device);
    x->numa = x->dev.numa = x->dev.distance = x->dev.n_links = -1;
  }
  for (int i = 0; i < world; i++)
    r->info[i].local_size = r->info[i].n_visible = r->info[i].n_node_devices = count[node[i]];
  free(count);
  *out = r;
  return TC_OK;
}

/* With a model the mesh is that of training, and the traffic on each axis is known. A model that can't be
 * trained on it is only a warning here, since the placement is still of interest. */
static int make_mesh(struct tc_run_place *p, struct tc_err *err)
{
  const struct tc_config *c = p->cfg;
  const struct tc_ranks *r = p->ranks;
  int devices = tc_ranks_node_devices(r);
  tc_setup_precision(p->cfg, tc_launch_on_gpus(p->cfg, r));
  TC_TRY(tc_setup_axes(&p->mesh, c, r->world, r->node_of_rank, devices, err));
  if (!*c->model_preset && !*c->model_config && c->model_layers == 0) return TC_OK;
  struct tc_err why = { 0 };
  struct tc_mesh *m;
  int rc = tc_setup_mesh(&m, c, r->world, r->node_of_rank, devices, &why);
  if (!rc) {
    tc_mesh_free(p->mesh);
    p->mesh = m;
    rc = tc_setup_traffic(p->sent_bytes, c, m, &why);
  }
  p->traffic = rc == 0;
  if (rc < 0) tc_warnings_add(&p->warnings, "`tercio train` would fail: %s", why.text);
  return TC_OK;
}

int tc_run_place_find(struct tc_run_place *p, struct tc_config *cfg, const char *cluster, const char *order,
                      struct tc_err *err)
{
  struct tc_ranks_request request = tc_launch_request(cfg);
  request.ask = true;
  p->cfg = cfg;
  p->simulated = cluster != NULL;
  if (cluster) TC_TRY(simulate(&p->ranks, cluster, order, err));
  else if (cfg->run_ranks > 1)
    TC_TRY(tc_ranks_threads(&p->ranks, (int)TC_MIN(cfg->run_ranks, INT32_MAX), &request, err));
  else TC_TRY(tc_ranks_discover(&p->ranks, &request, err));
  TC_TRY(make_mesh(p, err));
  if (p->ranks->rank != 0) return TC_OK;
  p->threads = tc_calloc((size_t)p->ranks->world, sizeof *p->threads);
  for (int i = 0; i < p->ranks->world && !p->simulated; i++) p->threads[i] = tc_launch_threads(cfg, p->ranks, i);
  tc_ranks_warnings(&p->warnings, p->ranks, p->mesh, p->simulated ? NULL : p->threads);
  return TC_OK;
}

void tc_run_place_done(struct tc_run_place *p)
{
  tc_warnings_free(&p->warnings);
  free(p->threads);
  tc_mesh_free(p->mesh);
  tc_ranks_free(p->ranks);
}
