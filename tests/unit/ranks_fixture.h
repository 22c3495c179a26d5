/* ranks_fixture.h - ranks as threads of a test, with a mesh and a communicator an axis. */
#ifndef TC_RANKS_FIXTURE_H
#define TC_RANKS_FIXTURE_H

#include "src/comm/comm.h"
#include "src/comm/hub.h"
#include "src/exec/exec.h"
#include "src/graph/mesh.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct fx_rank {
  pthread_t thread;
  int rank;
  struct tc_mesh *mesh;          /* borrowed */
  struct tc_comm *comm[TC_AXES];
  struct tc_device *device;
  void *ctx;
  void (*body)(struct fx_rank *r);
  struct tc_hub *hub;
  const char *device_name;
};

static void *fx_main(void *arg)
{
  struct fx_rank *r = arg;
  struct tc_comm_opts o = { .name = "test", .deadline_s = 60 };
  struct tc_err err;
  for (int a = TC_PP; a < TC_AXES; a++) {
    if (r->mesh->size[a] < 2) continue;
    int32_t members[64];
    tc_mesh_group(r->mesh, r->rank, a, members);
    r->comm[a] = tc_comm_thread(r->hub, a, r->rank, members, r->mesh->size[a], &o);
  }
  if (tc_device_open(&r->device, r->device_name, 1, &err) < 0) abort();
  r->body(r);
  tc_device_close(r->device);
  for (int a = 0; a < TC_AXES; a++) tc_comm_free(r->comm[a]);
  return NULL;
}

/* Runs `body` on every rank of the mesh. */
__attribute__((unused))
static void fx_run(struct tc_mesh *m, const char *device, void (*body)(struct fx_rank *),
                   void *ctx)
{
  struct tc_hub *hub = tc_hub_new(m->world);
  struct fx_rank *r = calloc((size_t)m->world, sizeof *r);
  for (int i = 0; i < m->world; i++) {
    r[i] = (struct fx_rank){ .rank = i, .mesh = m, .ctx = ctx, .body = body, .hub = hub,
                             .device_name = device };
    if (pthread_create(&r[i].thread, NULL, fx_main, &r[i])) abort();
  }
  for (int i = 0; i < m->world; i++) pthread_join(r[i].thread, NULL);
  free(r);
  tc_hub_free(hub);
}

/* A mesh on one node; micro-batches mb. */
__attribute__((unused))
static struct tc_mesh *fx_mesh(int mb, int pp, int dp, int tp)
{
  struct tc_mesh *m;
  struct tc_err err;
  struct tc_mesh_want w = { .pp = pp, .dp = dp, .tp = tp };
  int32_t *node = calloc((size_t)(pp * dp * tp), sizeof *node);
  if (tc_mesh_new(&m, pp * dp * tp, node, &w, &err) < 0) {
    fprintf(stderr, "%s\n", err.text);
    abort();
  }
  m->size[TC_MB] = mb;
  free(node);
  return m;
}

#endif
