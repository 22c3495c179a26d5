/* t_share_init.c - the program of initial weights with run.init = broadcast: which ranks draw values, how many broadcasts
 * bring them to the others, and that these take no memory. */
#include "src/program/predict.h"
#include "tests/unit/exec/layout.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

static const struct tc_model toy = { .layers = 4, .hidden = 32, .heads = 4, .context = 16, .vocab = 64 };

/* Broadcasts on dp and on tp, each of a unit's weights: the layers' matrices and the embeddings; the head is tied. */
static const struct { struct layout l; int on_dp, on_tp; } cases[] = {
  { L("ddp", "ddp", 1, 4, 1, .serial = false), 5, 0 },
  { L("bf16: masters are broadcast, and cast afterwards", "ddp", 1, 4, 1, .dtype = TC_BF16), 5, 0 },
  { L("offload", "ddp", 1, 2, 1, .offload = TC_OFFLOAD_UPDATE), 5, 0 },
  { L("offload, bf16", "ddp", 1, 2, 1, .offload = TC_OFFLOAD_UPDATE, .dtype = TC_BF16), 5, 0 },
  { L("offload of masters that the device casts", "ddp", 1, 2, 1, .offload = TC_OFFLOAD_PARAMS, .dtype = TC_BF16), 5, 0 },
  { L("attention and MLP are units", "ddp", 1, 2, 1, .nest = true), 9, 0 },
  { L("learned positions are not split on tp", "ddp", 1, 1, 2, .serial = false), 0, 1 },
  { L("both axes", "ddp", 1, 2, 2, .serial = false), 5, 1 },
  { L("zero1: fp32 weights are everywhere", "zero1", 1, 2, 1, .serial = false), 5, 0 },
  { L("zero1, bf16: masters are split", "zero1", 1, 2, 1, .dtype = TC_BF16), 0, 0 },
  { L("zero3", "zero3", 1, 4, 1, .serial = false), 0, 0 },
  { L("zero3 and tp", "zero3", 1, 2, 2, .serial = false), 0, 1 },
  { L("server: nothing to share", "server", 1, 2, 1, .serial = false), 0, 0 },
  { L("server and tp", "server", 1, 2, 2, .serial = false), 0, 1 },
  { L("stages, of which the last uses the first's embedding", "ddp", 2, 2, 1, .pp = 2, .schedule = "1f1b"), 5, 0 },
  { L("one rank", "ddp", 1, 1, 1, .serial = false), 0, 0 },
};

static int broadcasts(const struct tc_graph *g, unsigned axes)
{
  int n = 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *x = &g->node[g->order[i]];
    n += x->op == TC_OP_RESHARD && x->coll == TC_BROADCAST && x->axes & axes;
  }
  return n;
}

/* Elements that all ranks together make by nodes of this op. */
static int64_t drawn(const struct tc_graph *g, const struct tc_mesh *m, int op)
{
  int64_t elems = 0;
  for (int r = 0; r < m->world; r++)
    for (int32_t i = 0; i < g->n_order; i++) {
      const struct tc_node *x = &g->node[g->order[i]];
      struct tc_local l;
      if (x->op != op) continue;
      tc_tensor_local(&g->tensor[tc_out(g, x, 0)], m, m->coord + (size_t)r * TC_AXES, &l);
      elems += l.elems;
    }
  return elems;
}

/* Elements of the random parameters, padding included. */
static int64_t elements(const struct tc_graph *g)
{
  int64_t sum = 0;
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_tensor *t = &g->tensor[g->param[i].master];
    int64_t elems = g->param[i].init_std > 0;
    for (int d = 0; d < t->rank; d++) elems *= tc_stored_dim(t, d);
    sum += elems;
  }
  return sum;
}

static struct tc_program *make(const struct layout *l, const struct tc_mesh *m, int rank, bool share)
{
  struct tc_err err = { 0 };
  struct tc_program *train = NULL, *p = NULL;
  struct tc_program_opts o = layout_options(l, &toy, 8, TC_TRAIN);
  o.share_init = share;
  if (tc_program_new(&train, &o, m, rank, NULL, NULL, &err)) return ok(false, "%s: %s", l->name, err.text), NULL;
  o.kind = TC_INIT;
  o.gpt.dropout = 0;
  ok(tc_program_new(&p, &o, m, rank, train, NULL, &err) == 0, "%s, rank %d: %s", l->name, rank, err.text);
  tc_program_free(train);
  return p;
}

/* Bytes of broadcasts on all axes. */
static int64_t sent(const struct tc_program *p, const struct tc_mesh *m, int rank, int64_t *others)
{
  int64_t bytes = 0;
  for (int s = 0; s < TC_SETS; s++) {
    struct tc_comm_counters n;
    if (!m->group[s].named || m->group[s].size < 2) continue;
    tc_program_bytes(p, m, rank, m->group[s].axes, &n);
    for (int k = 0; k < TC_COLLS; k++) *(k == TC_BROADCAST ? &bytes : others) += n.data[k].bytes;
  }
  return bytes;
}

/* Bytes of state that all ranks have of the random parameters' masters beyond one of each: what they have to be sent. */
static int64_t copies(const struct tc_graph *g, const struct tc_mesh *m)
{
  int64_t elems = 0;
  for (int r = 0; r < m->world; r++)
    for (int32_t i = 0; i < g->n_params; i++) {
      struct tc_local l;
      if (!(g->param[i].init_std > 0)) continue;
      tc_tensor_local(&g->tensor[g->param[i].master], m, m->coord + (size_t)r * TC_AXES, &l);
      elems += l.elems;
    }
  return 4 * (elems - elements(g));
}

static void test_case(int c)
{
  const struct layout *l = &cases[c].l;
  struct tc_mesh *m = fx_mesh(l->mb, TC_MAX(l->pp, 1), l->dp, l->tp);
  int64_t bytes = 0, want = 0, others = 0, was = 0, more = 0;
  for (int r = 0; r < m->world; r++) {
    struct tc_program *p = make(l, m, r, true), *each = make(l, m, r, false);
    if (p && each) {
      bytes += sent(p, m, r, &others);
      more += sent(each, m, r, &was);
      want = copies(p->graph, m);
      const bool cast = l->offload == TC_OFFLOAD_PARAMS;
      for (int k = 0; k < TC_REGIONS && !cast; k++)
        ok(p->arena->bytes[k] <= each->arena->bytes[k], "%s, rank %d: no more %s", l->name, r, tc_region_name[k]);
    }
    if (p && each && r == 0) {
      is_int(broadcasts(p->graph, TC_ON_DP), cases[c].on_dp, "%s: broadcasts on dp", l->name);
      is_int(broadcasts(p->graph, TC_ON_TP), cases[c].on_tp, "%s: broadcasts on tp", l->name);
      is_int(drawn(p->graph, m, TC_OP_NORMAL), elements(p->graph), "%s: each element is drawn by one rank", l->name);
      is_int(drawn(p->graph, m, TC_OP_FILL), drawn(each->graph, m, TC_OP_FILL), "%s: constants are set by each", l->name);
      is_int(broadcasts(each->graph, ~0u), 0, "%s: counter: no broadcast", l->name);
      is_int(4 * (drawn(each->graph, m, TC_OP_NORMAL) - elements(p->graph)), want, "%s: counter: each draws what it stores",
             l->name);
    }
    tc_program_free(p);
    tc_program_free(each);
  }
  is_int(bytes, want, "%s: each copy is sent once", l->name);
  is_int(more, 0, "%s: counter: no broadcast is sent", l->name);
  is_int(others, was, "%s: and nothing else", l->name);
  tc_mesh_free(m);
}

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) test_case((int)i);
  return done_testing();
}
