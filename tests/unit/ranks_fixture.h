/* ranks_fixture.h - ranks as threads of a test, with a mesh and a communicator an axis. */
#ifndef TC_RANKS_FIXTURE_H
#define TC_RANKS_FIXTURE_H

#include "src/comm/comm.h"
#include "src/comm/hub.h"
#include "src/exec/exec.h"
#include "src/base/random.h"
#include "src/graph/mesh.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct fx_rank {
  pthread_t thread;
  int rank;
  struct tc_mesh *mesh;          /* borrowed */
  struct tc_comm *comm[TC_SETS];
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
  for (int s = 0; s < TC_SETS; s++) {
    const struct tc_group *group = &r->mesh->group[s];
    if (!group->named || group->size < 2) continue;
    int32_t members[64];
    tc_mesh_group(r->mesh, r->rank, group->axes, members);
    r->comm[s] = tc_comm_thread(r->hub, s, r->rank, members, group->size, &o);
  }
  if (tc_device_open(&r->device, r->device_name, 1, &err) < 0) abort();
  r->body(r);
  tc_device_close(r->device);
  for (int s = 0; s < TC_SETS; s++) tc_comm_free(r->comm[s]);
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

/* The starts of documents, drawn by row: the same on every layout. Rows [row0, row0 + rows) of sequences of T
 * tokens. */
__attribute__((unused))
static void fx_starts(int32_t *starts, int64_t row0, int64_t rows, int64_t T)
{
  for (int64_t i = 0; i < rows; i++) {
    int64_t n = row0 + i;
    for (uint32_t r[4]; n % T; n--) {
      tc_philox(r, 13, 1, (uint64_t)n);
      if (r[0] % 4 == 0) break;
    }
    starts[i] = (int32_t)(n % T);
  }
}

/* A mesh on one node; micro-batches mb. */
__attribute__((unused))
static struct tc_mesh *fx_mesh(int mb, int pp, int dp, int tp)
{
  struct tc_mesh *m;
  struct tc_err err;
  struct tc_mesh_want w = { .size = { [TC_SET_PP] = pp, [TC_SET_DP] = dp, [TC_SET_TP] = tp } };
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
