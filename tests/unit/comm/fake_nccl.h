/* fake_nccl.h - a library of collectives for t_nccl.c, whose calls are written down. */
#ifndef TC_FAKE_NCCL_H
#define TC_FAKE_NCCL_H

#include "kernels/nccl.h"

/* Also the device: its calls, and what it answers. Two of it for two ways. */
struct tc_nccl {
  const char *name;
  char log[600];
  const char *fails; /* names of calls that fail */
  int not_ready, queued, runs; /* so many answers before the last */
  const char *gpu;
};

static int called(struct tc_nccl *c, const char *what, int n, struct tc_err *err)
{
  tc_text_add(c->log, sizeof c->log, "%s%s", *c->log ? " " : "", what);
  if (n >= 0) tc_text_add(c->log, sizeof c->log, " %d", n);
  return c->fails && strstr(c->fails, what) ? tc_fail(err, TC_ENOCKPT, "%s broke", what) : 0;
}

static int l_look(void *device, char gpu[64], struct tc_err *err)
{
  struct tc_nccl *c = device;
  snprintf(gpu, 64, "%s", c->gpu);
  return called(c, "look", -1, err);
}

static int l_id(void *device, void *id, struct tc_err *err)
{
  memset(id, 'i', TC_NCCL_ID_BYTES);
  return called(device, "id", -1, err);
}

static int l_join(struct tc_nccl **out, void *device, const void *id, int coord, int size, struct tc_nccl *beside,
                  struct tc_err *err)
{
  (void)beside;
  const char *s = id;
  *out = device;
  return called(device, s[0] == 'i' && s[TC_NCCL_ID_BYTES - 1] == 'i' ? "join" : "join?", 10 * size + coord, err);
}

static int l_meet(struct tc_nccl *c, const int *to, int n_to, const int *from, int n_from, struct tc_err *err)
{
  const int rc = called(c, "meet", -1, err);
  for (int i = 0; i < n_to; i++) tc_text_add(c->log, sizeof c->log, " >%d", to[i]);
  for (int i = 0; i < n_from; i++) tc_text_add(c->log, sizeof c->log, " <%d", from[i]);
  return rc;
}

static int l_ready(struct tc_nccl *c, struct tc_err *err)
{
  if (c->not_ready) return c->not_ready--, 0;
  int rc = called(c, "ready", -1, err);
  return rc < 0 ? rc : 1;
}

static int l_start(struct tc_nccl *c, const struct tc_coll_args *a, int slot, struct tc_err *err)
{
  (void)a;
  return called(c, "start", slot, err);
}
static int l_mark(struct tc_nccl *c, int slot, struct tc_err *err)
{
  return called(c, "mark", slot, err);
}
static int l_wait_for(struct tc_nccl *c, int slot, struct tc_err *err)
{
  return called(c, "wait_for", slot, err);
}

static int l_test(struct tc_nccl *c, int slot, struct tc_err *err)
{
  if (c->queued) return c->queued--, TC_NCCL_QUEUED;
  if (c->runs) return c->runs--, TC_NCCL_RUNS;
  int rc = called(c, "test", slot, err);
  return rc < 0 ? rc : TC_NCCL_DONE;
}

static void l_abort(struct tc_nccl *c) { called(c, "abort", -1, NULL); }
static void l_free(struct tc_nccl *c, bool done)
{
  if (c) called(c, "free", done, NULL);
}

static const struct tc_nccl_ops ops = { .look = l_look, .id = l_id, .join = l_join, .meet = l_meet, .ready = l_ready,
                                        .start = l_start, .mark = l_mark, .wait_for = l_wait_for, .test = l_test,
                                        .abort = l_abort, .free = l_free };

#endif
