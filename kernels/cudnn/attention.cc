/* attention.cc - tercio-cudnn.so: attention.h by cudnn-frontend's graphs, one for each direction.
 *
 * Plans are cuDNN's first choice that it can build; they are not timed. Each graph has one operation (scaled
 * dot-product attention), whose tensors are views of ours by strides.
 *
 * cuDNN's tensors are [batch, heads, length, size], with one stride from a head to the next. Where a group has one
 * query, or there is one group, batch and heads are sequences and their queries. Where several groups have several
 * queries, no one stride leads to all queries of a token, since each group's key and value stand between: the graph is
 * then that of one sequence, [groups, queries, length, size]. It has as much of the micro-batch as its workspace allows,
 * and runs once for each part (cut.h). */
#include "kernels/cudnn/cut.h"

#include <cudnn_frontend.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace fe = cudnn_frontend;
namespace graph = cudnn_frontend::graph;

struct tc_cudnn {
  cudnnHandle_t handle = nullptr;                /* NULL: plans for a GPU that need not be there */
  std::shared_ptr<fe::DeviceProperties> gpu;
  int32_t capability = 0;                        /* of that one: 90 */
};

using pack = std::unordered_map<int64_t, void *>;
struct direction {
  graph::Graph graph;
  tc_cudnn_cut of;
  pack first, at;                                /* by the uids of `tensor_id`: of the first call, of one */
  int64_t workspace = 0;
};
struct tc_cudnn_plan {
  tc_cudnn *of;
  tc_cudnn_shape shape;
  direction forward, backward;
};

enum tensor_id : int64_t { Q = 1, K, V, Y, LSE, DY, DQ, DK, DV };

/* A sentence in one line. */
static void set_why(char *why, size_t size, const char *what)
{
  if (!size) return;
  snprintf(why, size, "%s", what);
  for (char *at = why; *at; at++)
    if (*at == '\n') *at = ' ';
}

/* Every call from C: what the frontend throws becomes a sentence. */
template <class R, class F> static R guarded(R failed, char *why, size_t size, F body)
{
  try {
    return body();
  } catch (const std::exception &e) {
    set_why(why, size, e.what());
  } catch (...) {
    set_why(why, size, "cuDNN failed");
  }
  return failed;
}

static void check(fe::error_t e)
{
  if (e.is_bad()) throw std::runtime_error(e.get_message().empty() ? "cuDNN failed" : e.get_message());
}

static void check(cudnnStatus_t s, const char *what)
{
  if (s != CUDNN_STATUS_SUCCESS) throw std::runtime_error(std::string(what) + ": " + cudnnGetErrorString(s));
}

/* ---- tensors ------------------------------------------------------------------------------- */

using tensor = std::shared_ptr<graph::Tensor_attributes>;

/* Heads in each of a graph's batch: of queries; of keys and values. */
static int64_t query_heads(const tc_cudnn_shape &s, const tc_cudnn_cut &c)
{
  return (c.groups ? 1 : s.groups) * s.queries;
}
static int64_t key_heads(const tc_cudnn_shape &s, const tc_cudnn_cut &c) { return c.groups ? 1 : s.groups; }

/* Elements of a token in the memory of which the tensor is a view: qkv, or y. */
static int64_t token_of(const tc_cudnn_shape &s, int64_t id)
{
  return s.groups * (id == Y || id == DY ? s.queries : s.queries + 2) * s.size;
}

static void shape_tensor(graph::Tensor_attributes &t, const tc_cudnn_shape &s, const tc_cudnn_cut &c, int64_t id)
{
  const bool is_key = id == K || id == V || id == DK || id == DV;
  const int64_t token = token_of(s, id), group = token / s.groups;
  t.set_uid(id).set_data_type(fe::DataType_t::BFLOAT16)
    .set_dim({ c.batch, is_key ? key_heads(s, c) : query_heads(s, c), s.length, s.size })
    .set_stride({ c.groups ? group : s.length * token, s.queries > 1 ? s.size : group, token, 1 });
}

static tensor input(direction &d, const tc_cudnn_shape &s, int64_t id)
{
  graph::Tensor_attributes t;
  shape_tensor(t, s, d.of, id);
  return d.graph.tensor(t);
}

static void output(const tensor &t, direction &d, const tc_cudnn_shape &s, int64_t id)
{
  shape_tensor(*t, s, d.of, id);
  t->set_output(true);
}

/* cuDNN below 9.26 reads no other layout in the backward pass. */
static void shape_lse(graph::Tensor_attributes &t, const tc_cudnn_shape &s, const tc_cudnn_cut &c)
{
  const int64_t heads = query_heads(s, c);
  t.set_uid(LSE).set_data_type(fe::DataType_t::FLOAT).set_dim({ c.batch, heads, s.length, 1 })
    .set_stride({ heads * s.length, s.length, 1, 1 });
}

/* ---- plans --------------------------------------------------------------------------------- */

/* Before the operations: each keeps a copy of these. */
static void begin(tc_cudnn *c, graph::Graph &g)
{
  if (!c->handle) g.set_device_properties(c->gpu).set_sm_version(c->capability);
  g.set_io_data_type(fe::DataType_t::BFLOAT16).set_intermediate_data_type(fe::DataType_t::FLOAT)
    .set_compute_data_type(fe::DataType_t::FLOAT);
}

static void end(tc_cudnn *c, direction &d)
{
  graph::Graph &g = d.graph;
  check(g.validate());
  check(c->handle ? g.build_operation_graph(c->handle) : g.build_operation_graph());
  check(g.create_execution_plans({ fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK }));
  check(g.check_support());
  check(g.build_plans());
  check(g.get_workspace_size(d.workspace));
}

static void plan_forward(tc_cudnn *c, direction &d, const tc_cudnn_shape &s)
{
  begin(c, d.graph);
  d.of = tc_cudnn_cut_of(&s, 0);
  auto attributes = graph::SDPA_attributes().set_name("attention").set_generate_stats(true).set_attn_scale(s.scale)
    .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  const tensor q = input(d, s, Q), k = input(d, s, K), v = input(d, s, V);
  auto [y, lse] = d.graph.sdpa(q, k, v, attributes);
  output(y, d, s, Y);
  shape_lse(*lse, s, d.of);
  lse->set_output(true);
  end(c, d);
}

/* The workspace has the gradients of a head's queries in fp32, to which all blocks add; or, where the order is to be the
 * same each time, those of its scores in bf16, which a product takes. */
static void plan_backward(tc_cudnn *c, direction &d, const tc_cudnn_shape &s)
{
  begin(c, d.graph);
  d.of = tc_cudnn_cut_of(&s, s.length * (s.deterministic ? s.length * 2 : s.size * 4));
  auto attributes = graph::SDPA_backward_attributes().set_name("attention, backward").set_attn_scale(s.scale)
    .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0)
    .set_deterministic_algorithm(s.deterministic != 0);
  const tensor q = input(d, s, Q), k = input(d, s, K), v = input(d, s, V);
  const tensor y = input(d, s, Y), dy = input(d, s, DY);
  graph::Tensor_attributes t;
  shape_lse(t, s, d.of);
  auto [dq, dk, dv] = d.graph.sdpa_backward(q, k, v, y, dy, d.graph.tensor(t), attributes);
  output(dq, d, s, DQ);
  output(dk, d, s, DK);
  output(dv, d, s, DV);
  end(c, d);
}

static tc_cudnn_plan *plan(tc_cudnn *c, const tc_cudnn_shape *s, char *why, size_t size)
{
  return guarded<tc_cudnn_plan *>(nullptr, why, size, [&] {
    auto p = std::make_unique<tc_cudnn_plan>();
    p->of = c, p->shape = *s;
    plan_forward(c, p->forward, *s);
    plan_backward(c, p->backward, *s);
    return p.release();
  });
}

static void free_plan(tc_cudnn_plan *p) { delete p; }

static int64_t workspace(const tc_cudnn_plan *p, int backward)
{
  return (backward ? p->backward : p->forward).workspace;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* `first` is Q or DQ: a group's queries, with key and value behind them. */
static void set_three(tc_cudnn_plan *p, direction &d, int64_t first, const void *qkv)
{
  const tc_cudnn_shape &s = p->shape;
  d.first[first] = (void *)qkv;
  for (int64_t i = 0; i < 2; i++) d.first[first + 1 + i] = (char *)qkv + (s.queries + i) * s.size * 2;
}

/* From the first call's tensor to that of call i, in bytes. */
static int64_t offset_of(const tc_cudnn_shape &s, const tc_cudnn_cut &c, int64_t i, int64_t id)
{
  int64_t sequence, group;
  tc_cudnn_first(&s, &c, i, &sequence, &group);
  if (id == LSE) return (sequence * s.groups + group) * s.queries * s.length * 4;
  return (sequence * s.length * s.groups + group) * (token_of(s, id) / s.groups) * 2;
}

static int run(tc_cudnn_plan *p, direction &d, void *workspace, char *why, size_t size)
{
  return guarded(-1, why, size, [&] {
    if (!p->of->handle) throw std::runtime_error("the plan is for a GPU that is not there");
    for (int64_t i = 0; i < d.of.calls; i++) {
      for (const auto &a : d.first) d.at[a.first] = (char *)a.second + offset_of(p->shape, d.of, i, a.first);
      check(d.graph.execute(p->of->handle, d.at, workspace));
    }
    return 0;
  });
}

static int forward(tc_cudnn_plan *p, const void *qkv, void *y, float *lse, void *workspace, char *why, size_t size)
{
  direction &d = p->forward;
  set_three(p, d, Q, qkv);
  d.first[Y] = y, d.first[LSE] = lse;
  return run(p, d, workspace, why, size);
}

static int backward(tc_cudnn_plan *p, const void *dy, const void *qkv, const void *y, const float *lse, void *dqkv,
                    void *workspace, char *why, size_t size)
{
  direction &d = p->backward;
  set_three(p, d, Q, qkv);
  set_three(p, d, DQ, dqkv);
  d.first[Y] = (void *)y, d.first[LSE] = (void *)lse, d.first[DY] = (void *)dy;
  return run(p, d, workspace, why, size);
}

/* ---- the handle ---------------------------------------------------------------------------- */

static int64_t library(void) { return (int64_t)cudnnGetVersion(); }

static void close(tc_cudnn *c)
{
  if (c && c->handle) cudnnDestroy(c->handle);
  delete c;
}

/* The "deviceVer" of the properties: 900 is 9.0. */
static int32_t capability_of(const std::string &gpu)
{
  const size_t at = gpu.find("\"deviceVer\":");
  return at == std::string::npos ? 0 : (int32_t)(atoi(gpu.c_str() + at + 12) / 10);
}

static tc_cudnn *open(void *stream, const char *gpu, char *why, size_t size)
{
  return guarded<tc_cudnn *>(nullptr, why, size, [&] {
    std::unique_ptr<tc_cudnn, void (*)(tc_cudnn *)> c(new tc_cudnn, close);
    if (gpu) {
      const std::string text = gpu;
      c->gpu = std::make_shared<fe::DeviceProperties>();
      check(c->gpu->deserialize(std::vector<uint8_t>(text.c_str(), text.c_str() + text.size() + 1)));
      c->capability = capability_of(text);
    } else {
      check(cudnnCreate(&c->handle), "a handle of cuDNN");
      check(cudnnSetStream(c->handle, (cudaStream_t)stream), "the stream of cuDNN");
    }
    return c.release();
  });
}

extern "C" __attribute__((visibility("default"))) const tc_cudnn_ops tc_cudnn_attention = {
  TC_CUDNN_VERSION, library, open, close, plan, free_plan, workspace, forward, backward
};
