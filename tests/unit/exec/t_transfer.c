/* t_transfer.c - every transition between two placements, run on ranks that are threads: what each
 * rank holds afterwards is what the new placement says of the global tensor. */
#include "src/schedule/arena.h"
#include "src/program/program.h"
#include "src/passes/reshard.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

/* On a device whose memory the host can't touch, as far as the executor knows: transfers go through host
 * memory. Copies are counted. */
static struct tc_device_ops apart_ops;
static _Atomic int64_t copied, copies, pinned;
static _Atomic bool no_pinned, no_staging;

static void count_copy(struct tc_device *d, void *dst, const void *src, int64_t bytes)
{
  copies++;
  copied += bytes;
  tc_ref_ops.copy(d, dst, src, bytes);
}

static void *count_host_alloc(struct tc_device *d, int64_t bytes)
{
  if (no_pinned && bytes < 1 << 20) return NULL;
  pinned++;
  void *p = tc_ref_ops.alloc(d, bytes);
  if (p) memset(p, 0xff, (size_t)bytes);
  return p;
}

static void count_host_free(struct tc_device *d, void *p)
{
  pinned--;
  tc_ref_ops.free(d, p, 0);
}

/* State and scratch are taken first. What they hold is not 0. */
static void *few_allocs(struct tc_device *d, int64_t bytes)
{
  static _Thread_local int n;
  void *p = no_staging && ++n > 2 ? NULL : tc_ref_ops.alloc(d, bytes);
  if (p) memset(p, 0x7f, (size_t)bytes);
  return p;
}

static void make_apart(void)
{
  apart_ops = tc_ref_ops;
  apart_ops.separate = true;
  apart_ops.copy = count_copy;
  apart_ops.alloc = few_allocs;
  apart_ops.host_alloc = count_host_alloc;
  apart_ops.host_free = count_host_free;
}

struct job {
  bool apart, alone;             /* alone: without communicators */
  struct tc_layout from, to;
  int axis, rank;
  int64_t dim[TC_DIMS];
  int bad;                       /* elements that differ, over all ranks */
  float *sum;                    /* of what the ranks hold at P, element by element */
  bool none;                     /* there is no such transition */
  char err[200];
  pthread_mutex_t lock;
};

/* The global value: small integers, so that sums are exact. */
static float value(int64_t i) { return (float)(i * 7 % 1009 - 300); }

/* What coordinate c holds of element i at a placement; for P, terms that add up to the value. */
static float term(const struct tc_place *p, int64_t i, int c, int n)
{
  if (p->kind != TC_P) return value(i);
  float t = (float)(i % 13 + c);
  if (c < n - 1) return t;
  float sum = 0;
  for (int k = 0; k < n - 1; k++) sum += (float)(i % 13 + k);
  return value(i) - sum;
}

static int64_t global_index(const struct tc_tensor *t, const struct tc_local *l, int64_t i)
{
  int64_t last = t->rank > 1 ? l->dim[t->rank - 1] : 1, g = 0;
  int64_t at[TC_DIMS], e = l->rows >= 0 ? l->row0 * last + i : i;
  for (int d = t->rank - 1; d >= 0; d--) {
    at[d] = e % l->dim[d] + l->off[d];
    e /= l->dim[d];
  }
  for (int d = 0; d < t->rank; d++) g = g * t->dim[d] + at[d];
  return g;
}

static void visit(const struct tc_tensor *t, struct fx_rank *r, int axis, float *p, bool set,
                  int *bad)
{
  struct job *j = r->ctx;
  const bool terms = t->lay.on[axis].kind == TC_P;
  struct tc_local l;
  const int32_t *coord = r->mesh->coord + (size_t)r->rank * TC_AXES;
  tc_tensor_local(t, r->mesh, coord, &l);
  for (int64_t i = 0; i < l.elems; i++) {
    int64_t g = global_index(t, &l, i);
    float want = term(&t->lay.on[axis], g, coord[axis], r->mesh->size[axis]);
    if (set) p[i] = want;
    else if (p[i] != want && !terms) (*bad)++;
    if (set || !terms || !j->sum) continue;
    pthread_mutex_lock(&j->lock);
    j->sum[g] += p[i];
    pthread_mutex_unlock(&j->lock);
  }
}

static void body(struct fx_rank *r)
{
  struct job *j = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program p = { .graph = tc_graph_new() };
  int32_t a = tc_tensor_new(p.graph, "a", TC_F32, j->rank, j->dim);
  p.graph->tensor[a].state = true;
  p.graph->tensor[a].lay = j->from;
  p.graph->cur_mark = TC_U;
  int32_t b = tc_reshard(p.graph, r->mesh, a, &j->to, -1, &err);
  int bad = 0;
  struct tc_exec *x = NULL;
  if (j->apart) r->device->ops = &apart_ops;
  if (b >= 0 && tc_graph_check(p.graph, r->mesh, "test", &err) == 0) {
    const int32_t *coord = r->mesh->coord + (size_t)r->rank * TC_AXES;
    const struct tc_actions_opts so = { .n_mb = 1, .prefetch = 1, .overlap = true };
    tc_actions_new(&p.actions, p.graph, &so, &err);
    tc_arena_new(&p.arena, p.graph, p.actions, NULL, r->mesh, coord, NULL, NULL, &err);
    struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank };
    if (!j->alone) memcpy(o.comm, r->comm, sizeof o.comm);
    struct tc_program *list[] = { &p };
    struct tc_runtime rt = { .step = 1 };
    if (tc_exec_new(&x, &o, list, 1, &err) == 0) {
      visit(&p.graph->tensor[a], r, j->axis, tc_exec_tensor(x, 0, a), true, NULL);
      if (tc_exec_run(x, 0, &rt, &err) < 0) bad++;
      else visit(&p.graph->tensor[b], r, j->axis, tc_exec_tensor(x, 0, b), false, &bad);
    } else {
      bad++;
    }
  }
  pthread_mutex_lock(&j->lock);
  if (b < 0) j->none = true;
  if (*err.text) snprintf(j->err, sizeof j->err, "%.190s", err.text);
  j->bad += bad;
  pthread_mutex_unlock(&j->lock);
  tc_exec_free(x);
  r->device->ops = &tc_ref_ops;
  tc_actions_free(p.actions);
  tc_arena_free(p.arena);
  tc_graph_free(p.graph);
}

static const char *text(const struct tc_mesh *m, const struct tc_place *p, char *buf)
{
  struct tc_layout l = tc_layout_r();
  l.on[TC_REST] = *p;
  return tc_layout_text(buf, 64, &l, m);
}

static void all_pairs(int n, int rank, const int64_t *dim, bool even, bool apart)
{
  struct tc_place place[16];
  int np = 0;
  place[np++] = (struct tc_place){ TC_R, 0, 0, 0 };
  place[np++] = (struct tc_place){ TC_FLAT, 0, 0, 0 };
  place[np++] = (struct tc_place){ TC_P, 0, TC_SUM, 0 };
  place[np++] = (struct tc_place){ TC_AT, 0, 0, 0 };
  place[np++] = (struct tc_place){ TC_AT, 0, 0, n - 1 };
  for (int d = 0; even && d < rank; d++) place[np++] = (struct tc_place){ TC_S, (uint8_t)d, 0, 0 };
  struct tc_mesh *m = fx_mesh(1, 1, n, 1);
  for (int f = 0; f < np; f++)
    for (int t = 0; t < np; t++) {
      struct job j = { .apart = apart, .axis = TC_REST, .rank = rank, .lock = PTHREAD_MUTEX_INITIALIZER };
      memcpy(j.dim, dim, (size_t)rank * sizeof *dim);
      j.from = j.to = tc_layout_r();
      j.from.on[TC_REST] = place[f];
      j.to.on[TC_REST] = place[t];
      int64_t elems = 1;
      for (int d = 0; d < rank; d++) elems *= dim[d];
      j.sum = calloc((size_t)elems, sizeof *j.sum);
      fx_run(m, "ref", body, &j);
      for (int64_t i = 0; place[t].kind == TC_P && i < elems; i++) j.bad += j.sum[i] != value(i);
      free(j.sum);
      char a[64], b[64];
      ok(!j.bad && !j.none && !*j.err, "%d ranks, rank-%d tensor: %s -> %s %s", n, rank,
         text(m, &place[f], a), text(m, &place[t], b), j.err);
    }
  tc_mesh_free(m);
}

/* Through host memory each rank's part goes out once and comes in once. */
static void all_apart(int n, int rank, const int64_t *dim, bool even, int64_t want_copies, int64_t want_bytes)
{
  copies = copied = 0;
  all_pairs(n, rank, dim, even, true);
  is_int(copies, want_copies, "%d ranks apart: so many copies", n);
  is_int(copied, want_bytes, "... of so many bytes");
  is_int(pinned, 0, "... and host memory is given back");
}

/* A -> B over dp, where something is missing: the sentence; no rank waits for others. */
static void refused(const char *what, int from, int to, bool alone, const char *want)
{
  struct tc_mesh *m = fx_mesh(1, 1, 2, 1);
  struct job j = { .apart = true, .alone = alone, .axis = TC_REST, .rank = 2, .dim = { 4, 6 },
                   .lock = PTHREAD_MUTEX_INITIALIZER };
  j.from = j.to = tc_layout_r();
  j.from.on[TC_REST] = (struct tc_place){ (uint8_t)from, from == TC_S, from == TC_P ? TC_SUM : 0, 0 };
  j.to.on[TC_REST] = (struct tc_place){ (uint8_t)to, to == TC_S, 0, 0 };
  fx_run(m, "ref", body, &j);
  is_int(j.bad, 2, "%s: both ranks refuse", what);
  is_str(j.err, want, "... in these words");
  is_int(pinned, 0, "... and host memory is given back");
  tc_mesh_free(m);
}

/* Placements as text, whole and as much as fits. */
static void test_text(void)
{
  struct tc_mesh *m = fx_mesh(1, 4, 2, 2);
  struct tc_layout all = tc_layout_r(), sum = tc_layout_r(), none = tc_layout_r();
  all.on[TC_MB] = (struct tc_place){ TC_S, 1, 0, 0 };
  all.on[TC_PP] = (struct tc_place){ TC_AT, 0, 0, 3 };
  all.on[TC_REST] = (struct tc_place){ TC_P, 0, TC_MAX_OP, 0 };
  all.on[TC_TP] = (struct tc_place){ TC_FLAT, 0, 0, 0 };
  sum.on[TC_REST] = (struct tc_place){ TC_P, 0, TC_SUM, 0 };
  const struct { const struct tc_layout *l; size_t size; const char *want; } row[] = {
    { &all, 64, "mb:S(1) pp:at(3) dp:P(max) tp:S(*)" }, { &all, 10, "mb:S(1) p" }, { &all, 8, "mb:S(1)" },
    { &all, 1, "" }, { &all, 0, "?" }, { &sum, 64, "dp:P(sum)" }, { &sum, 3, "dp" },
    { &none, 64, "R" }, { &none, 2, "R" }, { &none, 1, "" }, { &none, 0, "?" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char buf[64] = "?";
    is_str(tc_layout_text(buf, row[i].size, row[i].l, m), row[i].want, "in %zu bytes", row[i].size);
  }
  tc_mesh_free(m);
}

int main(void)
{
  test_text();
  make_apart();
  all_apart(2, 3, (int64_t[]){ 4, 6, 10 }, true, 205, 124800);
  all_apart(3, 2, (int64_t[]){ 9, 12 }, true, 216, 50112);
  all_apart(3, 2, (int64_t[]){ 1024, 5 }, false, 88, 1064960);
  all_apart(4, 1, (int64_t[]){ 2 }, false, 112, 488);
  refused("no communicator", TC_P, TC_R, true, "no communicator on dp");
  no_pinned = true;
  refused("no host memory", TC_P, TC_R, false, "out of host memory for a transfer");
  no_pinned = false;
  no_staging = true;
  refused("no staging", TC_S, TC_R, false, "out of memory for a transfer's staging");
  no_staging = false;
  all_pairs(2, 3, (int64_t[]){ 4, 6, 10 }, true, false);
  all_pairs(3, 2, (int64_t[]){ 9, 12 }, true, false);
  all_pairs(4, 4, (int64_t[]){ 4, 8, 4, 12 }, true, false);
  all_pairs(3, 2, (int64_t[]){ 1024, 5 }, false, false);          /* 342, 342, 340 rows */
  all_pairs(4, 1, (int64_t[]){ 7 }, false, false);                /* 2, 2, 2, 1 */
  all_pairs(4, 1, (int64_t[]){ 2 }, false, false);                /* two ranks have nothing */
  return done_testing();
}
