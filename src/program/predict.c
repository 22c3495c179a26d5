/* predict.c - what one step of a program sends, and the staging that its transfers take, of the numbers
 * that the executor uses (collective.h). */
#include "src/program/predict.h"
#include "src/program/collective.h"

#include <stdlib.h>
#include <string.h>

int64_t tc_program_staging(const struct tc_program *p, const struct tc_mesh *m, int rank)
{
  int64_t bytes = 0;
  const struct tc_actions *s = p->actions;
  for (int32_t i = 0; i < s->n_body; i++) {
    const struct tc_node *n = &p->graph->node[s->body[i]];
    int pack, unpack, times = n->op == TC_OP_RESHARD ? tc_actions_most(s, n->id) : 0;
    for (int k = 0; times && k < n->n_in; k++)
      bytes += times * tc_collective_packs(p->graph, n, k, m, rank, &pack, &unpack);
  }
  return bytes;
}

/* A number that stands for a tensor's address: an offset in its region; regions do not overlap. */
static void *stand_in(const struct tc_arena *a, int32_t t)
{
  return (void *)(uintptr_t)(a->off[t] + ((int64_t)a->region[t] + 1) * (INT64_C(1) << 44));
}

/* What one issue of a node's transfer sends, and its collective; TC_COLLS: none. */
static struct tc_coll_count issue_sends(const struct tc_program *p, const struct tc_mesh *m, int rank, const struct tc_node *n,
                                        const struct tc_members *members, int *coll)
{
  const struct tc_graph *g = p->graph;
  *coll = tc_collective_coll(n, members->coord);
  if (*coll == TC_COLLS) return (struct tc_coll_count){ 0 };
  struct tc_part *part = tc_calloc((size_t)n->n_in, sizeof *part);
  for (int k = 0; k < n->n_in; k++) {
    part[k].src = stand_in(p->arena, tc_in(g, n, k));
    part[k].dst = stand_in(p->arena, tc_out(g, n, k));
  }
  const int parts = tc_collective_parts(g, n, m, rank, part);
  const struct tc_coll_args call = { .coll = *coll, .dtype = g->tensor[tc_in(g, n, 0)].dtype,
                                     .root = tc_collective_root(n, members->coord), .n_parts = parts, .parts = part,
                                     .algorithm = tc_collective_algorithm(n) };
  const struct tc_coll_count sends = tc_coll_sends(&call, members);
  free(part);
  return sends;
}

/* Each node once, however many micro-batches issue it: among thousands of ranks its flows are many. */
void tc_program_bytes(const struct tc_program *p, const struct tc_mesh *m, int rank, unsigned axes,
                      struct tc_comm_counters *out)
{
  const struct tc_graph *g = p->graph;
  struct tc_members members = tc_mesh_members(m, rank, axes);
  struct issue { struct tc_coll_count sends; int coll; bool known; } *issue = tc_calloc((size_t)g->n_nodes, sizeof *issue);
  memset(out, 0, sizeof *out);
  for (int32_t i = 0; i < p->actions->n && members.size > 1; i++) {
    const struct tc_action *a = &p->actions->action[i];
    const struct tc_node *n = &g->node[a->node];
    struct issue *x = &issue[a->node];
    if (a->kind != TC_ISSUE || n->axes != axes) continue;
    if (!x->known) x->sends = issue_sends(p, m, rank, n, &members, &x->coll), x->known = true;
    if (x->coll == TC_COLLS) continue;
    struct tc_coll_count *c = n->control ? &out->ctl[x->coll] : &out->data[x->coll];
    c->calls++;
    c->bytes += x->sends.bytes;
    c->messages += x->sends.messages;
  }
  free(issue);
  tc_members_done(&members);
}
