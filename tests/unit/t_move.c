/* t_move.c - every transition between two placements, run on ranks that are threads: what each
 * rank holds afterwards is what the new placement says of the global tensor. */
#include "src/arena.h"
#include "src/program.h"
#include "src/shard.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

struct job {
  struct tc_layout from, to;
  int axis, rank;
  int64_t dim[TC_DIMS];
  int bad;                       /* elements that differ, over all ranks */
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
  struct tc_local l;
  const int32_t *coord = r->mesh->coord + (size_t)r->rank * TC_AXES;
  tc_tensor_local(t, r->mesh, coord, &l);
  for (int64_t i = 0; i < l.elems; i++) {
    int64_t g = global_index(t, &l, i);
    float want = term(&t->lay.on[axis], g, coord[axis], r->mesh->size[axis]);
    if (set) p[i] = want;
    else if (p[i] != want && t->lay.on[axis].kind != TC_P) (*bad)++;
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
  int32_t b = tc_move(p.graph, a, &j->to, -1, &err);
  int bad = 0;
  struct tc_exec *x = NULL;
  if (b >= 0 && tc_graph_check(p.graph, r->mesh, "test", &err) == 0) {
    const int32_t *coord = r->mesh->coord + (size_t)r->rank * TC_AXES;
    const struct tc_schedule_opts so = { .n_mb = 1, .depth = 1, .overlap = true };
    tc_schedule_new(&p.schedule, p.graph, &so, &err);
    tc_arena_new(&p.arena, p.graph, p.schedule, r->mesh, coord, NULL, NULL, &err);
    struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank };
    memcpy(o.comm, r->comm, sizeof o.comm);
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
  tc_schedule_free(p.schedule);
  tc_arena_free(p.arena);
  tc_graph_free(p.graph);
}

static const char *text(const struct tc_place *p, char *buf)
{
  struct tc_layout l = tc_layout_r();
  l.on[TC_DP] = *p;
  return tc_layout_text(buf, 64, &l);
}

static void all_pairs(int n, int rank, const int64_t *dim, bool even)
{
  struct tc_place place[16];
  int np = 0;
  place[np++] = (struct tc_place){ TC_R, 0, 0, 0 };
  place[np++] = (struct tc_place){ TC_SROWS, 0, 0, 0 };
  place[np++] = (struct tc_place){ TC_P, 0, TC_SUM, 0 };
  place[np++] = (struct tc_place){ TC_AT, 0, 0, 0 };
  place[np++] = (struct tc_place){ TC_AT, 0, 0, n - 1 };
  for (int d = 0; even && d < rank; d++) place[np++] = (struct tc_place){ TC_S, (uint8_t)d, 0, 0 };
  struct tc_mesh *m = fx_mesh(1, 1, n, 1);
  for (int f = 0; f < np; f++)
    for (int t = 0; t < np; t++) {
      struct job j = { .axis = TC_DP, .rank = rank, .lock = PTHREAD_MUTEX_INITIALIZER };
      memcpy(j.dim, dim, (size_t)rank * sizeof *dim);
      j.from = j.to = tc_layout_r();
      j.from.on[TC_DP] = place[f];
      j.to.on[TC_DP] = place[t];
      fx_run(m, "ref", body, &j);
      char a[64], b[64];
      ok(!j.bad && !j.none && !*j.err, "%d ranks, rank-%d tensor: %s -> %s %s", n, rank,
         text(&place[f], a), text(&place[t], b), j.err);
    }
  tc_mesh_free(m);
}

int main(void)
{
  all_pairs(2, 3, (int64_t[]){ 4, 6, 10 }, true);
  all_pairs(3, 2, (int64_t[]){ 9, 12 }, true);
  all_pairs(4, 4, (int64_t[]){ 4, 8, 4, 12 }, true);
  all_pairs(3, 2, (int64_t[]){ 1024, 5 }, false);          /* 342, 342, 340 rows */
  all_pairs(4, 1, (int64_t[]){ 7 }, false);                /* 2, 2, 2, 1 */
  all_pairs(4, 1, (int64_t[]){ 2 }, false);                /* two ranks have nothing */
  return done_testing();
}
