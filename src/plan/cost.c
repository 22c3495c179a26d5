/* cost.c - the work of an op on a rank and its time; the bytes of a transfer and its time.
 *
 * time of an op = launch + max(operations / achieved rate, bytes / achieved memory rate). If ops were timed,
 * the time of the same shape is used, or that of the nearest shape, scaled by the ratio of the formula's
 * times.
 * time of a transfer = latency + bytes / rate of the link, or as measured at sizes nearby; its bytes are those of
 * its algorithm's flows (coll/flow.h). */
#include "src/plan/impl.h"
#include "src/graph/rule.h"
#include "src/passes/passes.h"
#include "src/program/collective.h"

#include <math.h>
#include <stdlib.h>

/* ---- ops ------------------------------------------------------------------------- */

static void product(struct tc_op_cost *c, const struct tc_graph *g, const struct tc_node *n,
                    const struct tc_local *a, const struct tc_local *y)
{
  const struct tc_gemm p = tc_rule_gemm(g, n, a->dim, y->dim);
  c->m = p.m, c->n = p.n, c->k = p.k, c->ta = p.ta, c->tb = p.tb;
  c->flops = 2.0 * (double)p.m * (double)p.n * (double)p.k;
}

int tc_ranks_on_node(const struct tc_mesh *m, int rank)
{
  /* Ranks are listed node by node in m->at, and a rank's index in it is the sum of its coordinates times the
   * strides. */
  int32_t at = 0, lo, hi;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) at += tc_mesh_coord(m, rank, a) * m->stride[a];
  for (lo = at; lo > 0 && m->node[m->at[lo - 1]] == m->node[rank]; lo--) { }
  for (hi = at; hi < m->world - 1 && m->node[m->at[hi + 1]] == m->node[rank]; hi++) { }
  return hi - lo + 1;
}

/* Keys that a query of the rank's part of a sequence reads on average: the part is all of it, or one that row_order.h says. */
static double keys_read(const struct tc_graph *g, const struct tc_node *n, const int32_t *coord, const struct tc_tensor *y)
{
  const int64_t T = n->attr.sequence, window = n->attr.window, runs = g->rows.zigzag ? 2 : 1;
  int64_t part = -1;
  for (int a = 0; a < TC_AXES; a++)
    if (tc_axis_role[a] == TC_ROLE_TOKENS && y->lay.on[a].kind == TC_S && y->lay.on[a].dim == 0) part = coord[a];
  if (part < 0) return tc_attn_keys(window, 0, T);
  const int64_t run = T / (runs * g->rows.cp), late = 2 * g->rows.cp - 1 - part;
  const double keys = tc_attn_keys(window, part * run, (part + 1) * run);
  return runs == 1 ? keys : (keys + tc_attn_keys(window, late * run, (late + 1) * run)) / 2;
}

/* A piece of attention reads and writes its share of all but its keys and values, which are its own. */
static double attention_bytes(const struct tc_graph *g, const struct tc_node *n, const struct tc_mesh *m, const int32_t *coord,
                              double bytes, double share)
{
  double keys = 0;
  const int32_t own[] = { n->op == TC_OP_ATTN ? tc_in(g, n, 1) : tc_in(g, n, 4), n->op == TC_OP_ATTN ? -1 : tc_out(g, n, 1) };
  for (int i = 0; i < 2; i++)
    if (own[i] >= 0) keys += (double)tc_tensor_local_bytes(&g->tensor[own[i]], m, coord);
  return keys + share * (bytes - keys);
}

void tc_op_cost(struct tc_op_cost *out, const struct tc_graph *g, const struct tc_node *n,
                const struct tc_mesh *m, int rank, bool *none)
{
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  struct tc_local first = { 0 }, y = { 0 };
  double in_bytes = 0, out_bytes = 0;
  *out = (struct tc_op_cost){ .op = n->op, .ranks = tc_ranks_on_node(m, rank) };
  *none = true;
  for (int i = 0; i < n->n_in + n->n_out; i++) {
    const struct tc_tensor *t = &g->tensor[tc_operand(g, n, i)];
    struct tc_local l;
    tc_tensor_local(t, m, coord, &l);
    double bytes = (double)l.elems * (double)tc_dtype_bytes(t->dtype);
    *(i < n->n_in ? &in_bytes : &out_bytes) += bytes;
    if (i == 0) {
      first = l;
      out->dtype = t->dtype;
    }
    if (i == n->n_in) y = l;
    if (i >= n->n_in && l.here) *none = false;
  }
  out->bytes = in_bytes + out_bytes;
  const bool attn = n->op == TC_OP_ATTN || n->op == TC_OP_ATTN_BWD;
  const double share = attn ? 1 / (double)tc_attn_pieces(g, n) : 1;
  const double keys = attn || n->op == TC_OP_ATTN_CACHE ? share * keys_read(g, n, coord, &g->tensor[tc_out(g, n, 0)]) : 0;
  if (attn) {
    const struct tc_tensor *in = &g->tensor[tc_in(g, n, 0)];
    out->head = in->dim[in->rank - 1];
    out->sequence = n->attr.sequence;
    out->keys = keys / share;
    out->rows = share * (double)(n->op == TC_OP_ATTN ? y.elems : first.elems) / (double)out->head;
  }
  if (share < 1) out->bytes = attention_bytes(g, n, m, coord, out->bytes, share);
  switch (n->op) {
  case TC_OP_MATMUL: product(out, g, n, &first, &y); break;
  /* Two products in forward, five in backward. */
  case TC_OP_ATTN: out->flops = 4 * keys * (double)y.elems; break;
  case TC_OP_KV: out->bytes = 2 * out_bytes; break;            /* some groups of the whole */
  case TC_OP_KV_BWD:
    out->bytes = 2 * (double)tc_tensor_local_bytes(&g->tensor[tc_in(g, n, 1)], m, coord);
    break;
  case TC_OP_ADD_PART: out->bytes = 3 * (double)tc_tensor_local_bytes(&g->tensor[tc_in(g, n, 1)], m, coord); break;
  case TC_OP_PART: out->bytes = 2 * out_bytes; break;
  /* New tokens of a text that fills the context: of the cache, which is input 1 and again output 1, they read these keys, and
   * write their own rows. */
  case TC_OP_ATTN_CACHE:
    out->flops = 4 * keys * (double)y.elems;
    out->bytes -= (2 - keys / (double)g->tensor[tc_in(g, n, 1)].dim[2]) *
                  (double)tc_tensor_local_bytes(&g->tensor[tc_in(g, n, 1)], m, coord);
    break;
  case TC_OP_ATTN_BWD: out->flops = 10 * keys * (double)first.elems; break;
  case TC_OP_MUON:
    if (first.elems) out->flops = 2 * 10 * tc_owner_work(g, &g->param[tc_updates(g, n)]);
    out->dtype = g->tensor[tc_out(g, n, 2)].dtype;
    break;
  case TC_OP_EMBED: out->bytes = 2 * out_bytes; break;         /* only some rows of the table are read */
  case TC_OP_POS: out->bytes = 2 * out_bytes; break;
  default: break;
  }
}

void tc_op_key(const struct tc_op_cost *c, double key[4])
{
  bool p = c->op == TC_OP_MATMUL;
  key[0] = p ? (double)c->m : c->bytes;
  key[1] = p ? (double)c->n : c->flops;
  key[2] = p ? (double)c->k : c->keys;
  key[3] = c->dtype * 4 + c->ta + 2 * c->tb;
}

static double work_s(double flops, double bytes, int dtype, const struct tc_plan_device *d)
{
  const bool bf16 = dtype == TC_BF16 && d->flops[TC_BF16] > 0;   /* sampling does without bf16 products */
  double peak = d->flops[bf16 ? TC_BF16 : TC_F32];
  double f = flops > 0 && peak > 0 ? flops / (peak * d->eff_flops) : 0;
  return TC_MAX(f, tc_memory_s(d, bytes));
}

/* By shape on a GPU, else by the rates of products and memory. */
static double own_s(const struct tc_op_cost *c, const struct tc_plan_device *d)
{
  if (d->multiprocessors > 0 && c->op == TC_OP_MATMUL && c->flops > 0)
    return tc_product_s(d, (double)c->m, (double)c->n, (double)c->k, c->dtype);
  if (d->multiprocessors > 0 && c->head > 0 && c->flops > 0) return tc_attention_s(d, c);
  return work_s(c->flops, c->bytes, c->dtype, d);
}

/* What a timed op like c should take: by its own sizes, and by c's where its key has none. */
static double sample_work_s(const struct tc_op_sample *s, const struct tc_op_cost *c, const struct tc_plan_device *d)
{
  struct tc_op_cost x = *c;
  const bool product = s->op == TC_OP_MATMUL;
  x.dtype = (int)s->key[3] / 4;
  x.m = (int64_t)s->key[0], x.n = (int64_t)s->key[1], x.k = (int64_t)s->key[2];
  x.flops = product ? 2 * s->key[0] * s->key[1] * s->key[2] : s->key[1];
  x.bytes = product ? (s->key[0] * s->key[2] + s->key[2] * s->key[1] + s->key[0] * s->key[1]) * (double)tc_dtype_bytes(x.dtype)
                    : s->key[0];
  if (c->keys > 0 && s->key[2] > 0) {            /* attention of another length */
    x.keys = s->key[2];
    x.sequence = (int64_t)((double)c->sequence * x.keys / c->keys);
  }
  if (c->flops > 0) x.rows = c->rows * (x.flops / c->flops) * (c->keys > 0 ? c->keys / x.keys : 1);
  return own_s(&x, d);
}

double tc_op_seconds(const struct tc_op_cost *c, const struct tc_plan_device *d)
{
  double key[4], own = own_s(c, d), best = INFINITY;
  const struct tc_op_sample *near = NULL;
  tc_op_key(c, key);
  for (int i = 0; i < d->n_samples; i++) {
    const struct tc_op_sample *s = &d->sample[i];
    double far = (s->key[3] == key[3] ? 0 : 0.5) + (s->ranks == c->ranks ? 0 : 0.25);
    if (s->op != c->op) continue;
    for (int k = 0; k < 3; k++) far += fabs(log((key[k] + 1) / (s->key[k] + 1)));
    if (far >= best) continue;
    best = far;
    near = s;
  }
  if (!near) return d->op_s + own;
  if (best == 0) return near->seconds;
  double its = sample_work_s(near, c, d);
  return its > 0 ? near->seconds * own / its : near->seconds;
}

double tc_fused_saves(const struct tc_op_cost *part, int n, double bytes, const struct tc_plan_device *d)
{
  double measured = 0, alone = 0, flops = 0, moved = -bytes;
  for (int i = 0; i < n; i++) {
    measured += tc_op_seconds(&part[i], d);
    struct tc_op_cost still = part[i];           /* without what it moves, but a product's own reading */
    still.bytes = 0;
    alone += d->op_s + own_s(&part[i], d);
    flops += own_s(&still, d);
    moved += part[i].bytes;
  }
  const double fused = d->op_s + TC_MAX(flops, work_s(0, TC_MAX(moved, 0), TC_F32, d));
  return alone > fused ? measured * (1 - fused / alone) : 0;
}

/* ---- transfers ------------------------------------------------------------------- */

/* Without the latency of its rounds: in proportion below the smallest size, at the line's rate beyond the largest. */
static double bytes_seconds(const struct tc_link *l, int coll, double bytes)
{
  const struct tc_link_points *p = &l->measured[coll];
  int i = 0;
  while (i < p->n && bytes > p->bytes[i]) i++;
  if (p->n < 2) return (bytes + TC_MIN(bytes, l->half_bytes[coll])) / l->bytes_per_s[coll];
  if (i == 0) return p->seconds[0] * bytes / p->bytes[0];
  if (i == p->n) return p->seconds[i - 1] + (bytes - p->bytes[i - 1]) / l->bytes_per_s[coll];
  const double part = (bytes - p->bytes[i - 1]) / (p->bytes[i] - p->bytes[i - 1]);
  return p->seconds[i - 1] + part * (p->seconds[i] - p->seconds[i - 1]);
}

double tc_link_seconds(const struct tc_link *l, int coll, double rounds, double bytes)
{
  return l->latency_s[coll] * rounds + bytes_seconds(l, coll, bytes);
}

static int algorithm_of(int algorithm, int coll, int dtype, const struct tc_members *m, double count)
{
  const struct tc_part all = { .count = (int64_t)count, .block = tc_ceil_div((int64_t)count, m->size) };
  const struct tc_coll_args a = { .coll = coll, .dtype = dtype, .n_parts = 1, .parts = &all, .algorithm = algorithm };
  return tc_algorithm_of(&a, m);
}

int tc_coll_algorithm(int coll, int dtype, const struct tc_members *m, double count)
{
  return algorithm_of(TC_STEP_ALGORITHM, coll, dtype, m, count);
}

double tc_coll_busiest(int algorithm, int coll, int size, int each, double bytes)
{
  struct tc_members m = tc_members_of(size, 0);
  m.partial = true;
  if (each < size) m = tc_members_even(size, each, 0, true);
  const struct tc_busiest b = tc_busiest(algorithm_of(algorithm, coll, TC_U8, &m, bytes), coll, &m, bytes, 1, 1);
  tc_members_done(&m);
  return each < size ? b.away : b.all;
}

void tc_wire_bytes(double out[TC_WIRES], const struct tc_busiest *b, double far)
{
  out[TC_WIRE_NODE] = b->all - b->away;
  out[TC_WIRE_NETWORK] = b->away;
  out[TC_WIRE_SPINE] = b->away * far;
}

static int switch_of(const struct tc_cluster *k, int32_t node)
{
  return k->switch_nodes >= 1 ? (int)(node / k->switch_nodes) : 0;
}

/* The part below other leaf switches of those members of a rank's group that are on other nodes. */
static double part_far(const struct tc_node *n, const struct tc_mesh *m, int rank, const struct tc_cluster *k)
{
  int away = 0, far = 0;
  const int32_t size = tc_mesh_size(m, n->axes), mine = m->node[rank];
  for (int32_t i = 0; i < size && k->switch_nodes >= 1; i++) {
    const int32_t its = m->node[tc_mesh_member(m, rank, n->axes, i)];
    away += its != mine;
    far += switch_of(k, its) != switch_of(k, mine);
  }
  return away ? (double)far / away : 0;
}

/* The two ranks of a send, and its wires. */
static void send_wires(double out[TC_WIRES], const struct tc_node *n, const struct tc_mesh *m, int rank, double bytes,
                       const struct tc_cluster *k)
{
  const int peer = tc_mesh_member(m, rank, n->axes, tc_collective_root(n, tc_mesh_index(m, rank, n->axes)));
  const int32_t mine = m->node[rank], its = m->node[peer];
  out[TC_WIRE_NODE] = mine == its ? bytes : 0;
  out[TC_WIRE_NETWORK] = mine == its ? 0 : bytes;
  out[TC_WIRE_SPINE] = switch_of(k, mine) == switch_of(k, its) ? 0 : bytes;
}

void tc_reshard_cost(struct tc_reshard_cost *out, const struct tc_program *p, const struct tc_node *n,
                  const struct tc_mesh *m, int rank, const struct tc_cluster *k)
{
  const struct tc_graph *g = p->graph;
  *out = (struct tc_reshard_cost){ .coll = TC_COLLS };
  if (n->coll == TC_COPY || tc_coll_is_local(n->coll) || tc_mesh_size(m, n->axes) == 1) return;
  int coll = out->coll = tc_collective_coll(n, tc_mesh_index(m, rank, n->axes));
  if (coll == TC_COLLS) return;
  struct tc_part *part = tc_calloc((size_t)n->n_in, sizeof *part);
  int parts = tc_collective_parts(g, n, m, rank, part);
  const int dtype = g->tensor[tc_in(g, n, 0)].dtype;
  double count = 0, rounds = 1;
  for (int i = 0; i < parts; i++) count += (double)part[i].count;
  free(part);
  if (coll == TC_SEND || coll == TC_RECV) {
    send_wires(out->bytes, n, m, rank, count * (double)tc_dtype_bytes(dtype), k);
  } else {
    struct tc_members members = tc_mesh_members(m, rank, n->axes);
    const struct tc_busiest b = tc_busiest(tc_coll_algorithm(coll, dtype, &members, count), coll, &members, count,
                                           (double)tc_dtype_bytes(dtype), (double)tc_dtype_bytes(tc_sum_dtype(dtype)));
    tc_wire_bytes(out->bytes, &b, part_far(n, m, rank, k));
    rounds = ceil(log2((double)members.size));
    tc_members_done(&members);
  }
  for (int w = 0; w < TC_WIRES; w++) {
    const struct tc_link *l = &k->link[w];
    if (out->bytes[w] <= 0 && !(w == TC_WIRE_NODE && out->bytes[TC_WIRE_NETWORK] <= 0)) continue;
    out->seconds = TC_MAX(out->seconds, tc_link_seconds(l, coll, rounds, out->bytes[w]));
  }
}
