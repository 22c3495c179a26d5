/* transfer.c - reshards made ready to run: local slices, copies, and collectives with their packing.
 *
 * A block along dimension 0, or of rows, is contiguous and travels from where it is. Along an
 * inner dimension the blocks are packed into staging before, or unpacked after.
 *
 * What a device has in memory of its own travels from there where the axis has a native
 * communicator, else through host staging. A native transfer follows what was queued on the device
 * before its ISSUE (packing too), and what is queued after the WAIT follows the transfer, so buffers
 * are as free after a WAIT as they are on a host: in the device's order, which is that of the actions. */
#include "src/exec/exec.h"
#include "src/program/collective.h"

#include <stdlib.h>

struct xpart {
  char *src, *dst;               /* tensors */
  char *send, *recv;             /* staging, or the tensors */
  int64_t src_elems, dst_elems;
  struct tc_local from, to;
  int rank, pack_dim, unpack_dim;               /* -1: contiguous */
};

struct tc_xreshard {
  const struct tc_exec_opts *o;
  const struct tc_node *node;
  struct xpart *part;
  struct tc_part *send;          /* merged where parts are adjacent */
  int n_parts, n_send;
  struct tc_coll_args args;
  struct tc_comm *comm;
  int coll, coord, size, root, from_root;
  struct tc_place to;            /* a slice: the placement that it leads to */
  bool on_device, native;        /* all tensors are; the communicator is of the device's memory */
  size_t elem;
  tc_ticket ticket;
  struct tc_device *dev;         /* packs, unpacks, slices: the host where the tensors are there; copies: the device */
  char *staging;
  int64_t staging_bytes;
  struct tc_part *on_host;       /* as `send`, in host staging; NULL: not staged */
  char *host_staging;
  int64_t copy;                  /* the last one under way; 0: none */
  bool host_works;               /* copies: the host computes in this program: it has to know of an end */
};

static int64_t product(const int64_t *dim, int a, int b)
{
  int64_t p = 1;
  for (int i = a; i < b; i++) p *= dim[i];
  return p;
}

/* Between a box dim[] and its n blocks along dimension d, one after the other. */
static void repack(struct tc_device *dev, char *blocks, char *box, const int64_t *dim, int rank,
                   int d, int n, size_t elem, bool to_blocks)
{
  int64_t pre = product(dim, 0, d), run = dim[d] / n * product(dim, d + 1, rank);
  int64_t bytes = run * (int64_t)elem;
  for (int64_t j = 0; j < n; j++) {
    char *b = blocks + j * pre * bytes, *x = box + j * bytes;
    if (to_blocks) tc_device_copy_rows(dev, b, bytes, x, n * bytes, bytes, pre);
    else tc_device_copy_rows(dev, x, n * bytes, b, bytes, bytes, pre);
  }
}

/* R -> S or S(*): my block out of the box I have. */
static void slice(const struct tc_xreshard *x, const struct xpart *p, const struct tc_place *to)
{
  struct tc_device *dev = x->dev;
  if (!p->dst_elems) return;                     /* at another coordinate of another axis */
  if (to->kind == TC_FLAT) {
    int64_t last = p->rank > 1 ? p->from.dim[p->rank - 1] : 1;
    const char *from = p->src + (size_t)(p->to.row0 * last) * x->elem;
    if (p->dst != from) dev->ops->copy(dev, p->dst, from, p->to.elems * (int64_t)x->elem);
    return;
  }
  int d = to->dim;
  int64_t pre = product(p->from.dim, 0, d);
  int64_t whole = product(p->from.dim, d, p->rank) * (int64_t)x->elem, run = whole / x->size;
  if (pre == 1 && p->dst == p->src + x->coord * run) return;               /* a view */
  tc_device_copy_rows(dev, p->dst, run, p->src + x->coord * run, whole, run, pre);
}

/* Elements of a part that this rank sends from src, and gets in dst. */
static void spans(const struct tc_xreshard *x, const struct tc_part *p, int64_t *src, int64_t *dst)
{
  const int64_t first = TC_MIN(x->coord * p->block, p->count);
  const int64_t mine = x->coord == x->size - 1 ? p->count - first
                                               : TC_MIN(p->block, p->count - first);
  const bool root = x->coord == x->args.root;
  const int coll = x->args.coll;
  *src = coll == TC_ALL_GATHER || coll == TC_GATHER ? mine
       : coll == TC_RECV || ((coll == TC_BROADCAST || coll == TC_SCATTER) && !root) ? 0 : p->count;
  *dst = coll == TC_REDUCE_SCATTER || coll == TC_SCATTER ? mine
       : coll == TC_SEND || ((coll == TC_REDUCE || coll == TC_GATHER) && !root)
         || (coll == TC_BROADCAST && root) ? 0 : p->count;
}

/* Between the parts and their host staging. */
static void copy_staged(struct tc_xreshard *x, bool to_host)
{
  struct tc_device *dev = x->o->device;
  for (int i = 0; x->on_host && i < x->n_send; i++) {
    int64_t src, dst;
    spans(x, &x->send[i], &src, &dst);
    if (to_host) dev->ops->copy(dev, (void *)x->on_host[i].src, x->send[i].src, src * (int64_t)x->elem);
    else dev->ops->copy(dev, x->send[i].dst, x->on_host[i].dst, dst * (int64_t)x->elem);
  }
}

static int take_host_staging(struct tc_xreshard *x, struct tc_err *err)
{
  int64_t bytes = 0, at = 0;
  for (int i = 0; i < x->n_send; i++)
    bytes += 2 * tc_round_up(x->send[i].count * (int64_t)x->elem, 64);
  x->on_host = tc_calloc((size_t)x->n_send, sizeof *x->on_host);
  x->host_staging = tc_device_host_alloc(x->o->device, bytes);
  if (!x->host_staging) return tc_fail(err, TC_EUSER, "out of host memory for a transfer");
  for (int i = 0; i < x->n_send; i++) {
    int64_t each = tc_round_up(x->send[i].count * (int64_t)x->elem, 64);
    x->on_host[i] = x->send[i];
    x->on_host[i].src = x->host_staging + at;
    x->on_host[i].dst = x->host_staging + at + each;
    at += 2 * each;
  }
  x->args.parts = x->on_host;
  return 0;
}

static void make_part(struct tc_xreshard *x, const struct tc_graph *g, const struct tc_node *n, int k)
{
  struct xpart *p = &x->part[k];
  const struct tc_mesh *m = x->o->mesh;
  const struct tc_tensor *a = &g->tensor[tc_in(g, n, k)];
  const int32_t *coord = m->coord + (size_t)x->o->rank * TC_AXES;
  tc_tensor_local(a, m, coord, &p->from);
  tc_tensor_local(&g->tensor[tc_out(g, n, k)], m, coord, &p->to);
  p->rank = a->rank;
  p->src_elems = p->from.elems;
  p->dst_elems = p->to.elems;
  x->staging_bytes += tc_collective_packs(g, n, k, m, x->o->rank, &p->pack_dim, &p->unpack_dim);
}

static int take_packing(struct tc_xreshard *x, struct tc_err *err)
{
  if (x->staging_bytes) {
    x->staging = x->dev->ops->alloc(x->dev, x->staging_bytes);
    if (!x->staging) return tc_fail(err, TC_EUSER, "out of memory for a transfer's staging");
  }
  char *at = x->staging;
  for (int k = 0; k < x->n_parts; k++) {
    struct xpart *p = &x->part[k];
    p->send = p->src;
    p->recv = p->dst;
    if (p->pack_dim >= 0) {
      p->send = at;
      at += (size_t)p->src_elems * x->elem;
    }
    if (p->unpack_dim >= 0) {
      p->recv = at;
      at += (size_t)p->dst_elems * x->elem;
    }
  }
  return 0;
}

/* With `offload` tensors of the host travel too. */
static bool is_on_device(const struct tc_graph *g, const struct tc_node *n)
{
  for (int k = 0; k < n->n_in; k++)
    if (g->tensor[tc_in(g, n, k)].space != TC_DEVICE
        || g->tensor[tc_out(g, n, k)].space != TC_DEVICE) return false;
  return true;
}

int tc_xreshard_new(struct tc_xreshard **out, const struct tc_graph *g, const struct tc_node *n,
                 const struct tc_exec_opts *o, void *const *in, void *const *out_ptr,
                 struct tc_err *err)
{
  struct tc_xreshard *x = tc_calloc(1, sizeof *x);
  const struct tc_mesh *m = o->mesh;
  *x = (struct tc_xreshard){
    .o = o, .node = n, .n_parts = n->n_in, .n_send = n->n_in, .coll = n->coll, .to = n->to, .root = n->root,
    .from_root = n->from_root, .size = n->coll == TC_COPY ? 1 : tc_mesh_size(m, n->axes),
    .coord = tc_mesh_index(m, o->rank, n->axes), .part = tc_calloc((size_t)n->n_in, sizeof *x->part),
    .send = tc_calloc((size_t)n->n_in, sizeof *x->send) };
  for (int32_t i = 0; n->coll == TC_COPY && i < g->n_order; i++) {
    const struct tc_node *other = &g->node[g->order[i]];
    x->host_works |= other->op != TC_OP_RESHARD ? other->space == TC_HOST
                                                : other->coll != TC_COPY && !is_on_device(g, other);
  }
  const struct tc_tensor *first = &g->tensor[tc_in(g, n, 0)];
  x->on_device = is_on_device(g, n);
  x->dev = x->on_device || n->coll == TC_COPY || !o->host ? o->device : o->host;
  const int set = tc_mesh_find(m, n->axes);
  const bool native = x->native = set >= 0 && o->native[set] && x->on_device;
  x->comm = set < 0 ? NULL : native ? o->native[set] : o->comm[set];
  x->elem = tc_dtype_bytes(first->dtype);
  for (int k = 0; k < n->n_in; k++) {
    x->part[k].src = in[k];
    x->part[k].dst = out_ptr[k];
    make_part(x, g, n, k);
  }
  int rc = take_packing(x, err);
  if (!rc && x->size > 1 && !tc_coll_is_local(x->coll) && !x->comm)
    rc = tc_fail(err, TC_EUSER, "no communicator on %s", tc_mesh_name(m, n->axes));
  if (rc < 0) {
    tc_xreshard_free(x, o->device);
    return rc;
  }
  for (int k = 0; k < n->n_in; k++)
    x->send[k] = (struct tc_part){ .src = x->part[k].send, .dst = x->part[k].recv };
  if (n->coll != TC_COPY) x->n_send = tc_collective_parts(g, n, m, o->rank, x->send);
  x->args = (struct tc_coll_args){
    .coll = tc_collective_coll(n, x->coord), .dtype = first->dtype, .red = n->red,
    .root = tc_collective_root(n, x->coord), .algorithm = tc_collective_algorithm(n),
    .n_parts = x->n_send, .parts = x->send, .ctl = n->control,
    .what = n->unit < g->n_units ? g->unit[n->unit].name : "" };
  if (o->device->ops->separate && x->on_device && !native && x->size > 1
      && !tc_coll_is_local(x->coll) && x->args.coll != TC_COLLS)
    rc = take_host_staging(x, err);
  if (rc < 0) tc_xreshard_free(x, o->device);
  else *out = x;
  return rc;
}

void tc_xreshard_free(struct tc_xreshard *x, struct tc_device *d)
{
  if (!x) return;
  if (x->staging) x->dev->ops->free(x->dev, x->staging, x->staging_bytes);
  if (x->host_staging) tc_device_host_free(d, x->host_staging);
  TC_FREE(x->on_host, x->part, x->send, x);
}

void tc_xreshard_retarget(struct tc_xreshard *x, int k, void *in, void *out)
{
  struct xpart *p = &x->part[k];
  TC_ASSERT(x->n_parts == 1 || x->coll != TC_ALL_REDUCE);   /* whose parts are in another order */
  p->src = in;
  p->dst = out;
  if (p->pack_dim < 0) p->send = in;
  if (p->unpack_dim < 0) p->recv = out;
  x->send[k].src = p->send;
  x->send[k].dst = p->recv;
}

int64_t tc_xreshard_staging(const struct tc_xreshard *x) { return x->staging_bytes; }

bool tc_xreshard_is_on_device(const struct tc_xreshard *x)
{
  return x->on_device && x->coll != TC_COPY && (x->size == 1 || tc_coll_is_local(x->coll));
}

bool tc_xreshard_is_native(const struct tc_xreshard *x) { return x->native; }

bool tc_xreshard_is_staged(const struct tc_xreshard *x) { return x->on_host != NULL; }

/* What needs no peer: local steps, copies between spaces (on a CPU both are memory), and axes of
 * one rank. */
static void run_local(struct tc_xreshard *x)
{
  for (int k = 0; k < x->n_parts; k++) {
    struct xpart *p = &x->part[k];
    int64_t bytes = p->dst_elems * (int64_t)x->elem;
    struct tc_device *dev = x->dev;
    if (x->coll == TC_SLICE && x->size > 1) {
      slice(x, p, &x->to);
    } else if (x->coll == TC_ZERO && x->coord != x->from_root) {
      tc_device_fill(dev, p->dst, 0, bytes);
    } else if (x->coll == TC_COPY && dev->ops->copy_begin) {
      x->copy = dev->ops->copy_begin(dev, p->dst, p->src, bytes);
    } else if (p->src != p->dst && bytes) {
      dev->ops->copy(dev, p->dst, p->src, bytes);
    }
  }
}

static int issue_tampered(struct tc_xreshard *x, struct tc_err *err)
{
  struct tc_coll_args args = x->args;
  const int done = x->o->tamper(x->o->tamper_ctx, x->node, &args, err);
  return done ? TC_MIN(done, 0) : tc_comm_start(x->comm, &args, &x->ticket, err);
}

int tc_xreshard_issue(struct tc_xreshard *x, bool soon, struct tc_err *err)
{
  x->ticket = 0;
  x->args.soon = soon;
  if (x->size == 1 || tc_coll_is_local(x->coll)) {
    run_local(x);
    return 0;
  }
  for (int k = 0; k < x->n_parts; k++) {
    struct xpart *p = &x->part[k];
    if (p->pack_dim >= 0 && p->src_elems)
      repack(x->dev, p->send, p->src, p->from.dim, p->rank, p->pack_dim, x->size, x->elem,
             true);
  }
  if (x->args.coll == TC_COLLS) return 0;        /* at(j) -> at(k): between other ranks */
  copy_staged(x, true);
  return x->o->tamper ? issue_tampered(x, err) : tc_comm_start(x->comm, &x->args, &x->ticket, err);
}

int tc_exec_end_copy(struct tc_device *d, int64_t *copy, bool host_waits, const char *what, struct tc_err *err)
{
  const int64_t ends = *copy;
  if (!ends) return 0;
  *copy = 0;
  d->ops->copy_order(d, ends);
  if (!host_waits || d->ops->copy_wait(d, ends) == 0) return 0;
  return tc_fail(err, TC_EUSER, "%s failed", what);
}

int tc_xreshard_wait(struct tc_xreshard *x, struct tc_err *err)
{
  if (x->coll == TC_COPY)
    return tc_exec_end_copy(x->o->device, &x->copy, x->host_works, "a copy between host and device", err);
  if (x->size == 1 || tc_coll_is_local(x->coll)) return 0;
  if (x->ticket) TC_TRY(tc_comm_wait(x->comm, x->ticket, err));
  struct tc_device *dev = x->dev;
  copy_staged(x, false);
  for (int k = 0; k < x->n_parts; k++) {
    struct xpart *p = &x->part[k];
    if (p->unpack_dim >= 0 && p->dst_elems)
      repack(dev, p->recv, p->dst, p->to.dim, p->rank, p->unpack_dim, x->size, x->elem, false);
    if (x->coll == TC_BROADCAST && x->coord == x->root && p->src != p->dst)
      dev->ops->copy(dev, p->dst, p->src, p->dst_elems * (int64_t)x->elem);
  }
  return 0;
}

int tc_xreshard_settle(const struct tc_exec_opts *o, struct tc_err *err)
{
  for (int s = 0; s < TC_SETS; s++)
    if (o->native[s]) TC_TRY(tc_comm_settle(o->native[s], err));
  return 0;
}
