/* reads.c - what each rank of a layout would read of a checkpoint, from the manifest and the program of that layout.
 *
 * A rank reads the boxes that it stores of every saved tensor. Of a piece it reads the blocks from
 * the first to the last that a box needs, completely, since a checksum covers a block; of a block that
 * it has checked already, only the needed part (tc_block_read). Ranks whose coordinates
 * differ only on axes on which a tensor is replicated read the same parts, so each tensor is
 * examined once per distinct placement. */
#include "src/run/reads.h"

#include <stdlib.h>
#include <string.h>

#include "io/ckpt/blocks.h"
#include "io/ckpt/inspect.h"
#include "src/graph/shard_box.h"
#include "src/program/setup.h"

struct plan {
  struct tc_ckpt *c;
  const struct tc_config *cfg;
  struct tc_mesh *mesh;
  struct tc_program_opts opts;
  struct tc_annotation *rows;
  struct tc_program *program;
  struct tc_read *rank;           /* [world] */
  uint64_t *files;                /* [world][words]: bit f: file f is read */
  int words;
};

/* ---- the layout asked for ---------------------------------------------------------- */

/* Compiles the program, of the saved model, until its placements are fixed. */
static int make_program(struct plan *p, int world, const int32_t *node, struct tc_err *err)
{
  const struct tc_manifest *m = p->c->m;
  int rc = tc_setup_mesh(&p->mesh, p->cfg, world, node, 0, err);
  if (rc == 0) rc = tc_setup_program(&p->opts, p->cfg, p->mesh, &p->rows, err);
  if (rc < 0) return rc;
  char *model = tc_model_text(&p->opts.model);
  if (strcmp(model, m->meta.model) != 0)
    rc = tc_fail(err, TC_EUSER, "%s is of another model: %.200s; the requested layout is of %s",
                 p->c->path, m->meta.model, model);
  else if (p->opts.model.layers > m->n_tensors)
    rc = tc_fail(err, TC_EUSER, "%s has %d tensors, fewer than a model of %lld layers", p->c->path,
                 m->n_tensors, (long long)p->opts.model.layers);
  free(model);
  if (rc < 0) return rc;
  return tc_program_new(&p->program, &p->opts, p->mesh, 0, NULL, "infer", err);
}

/* ---- what a rank reads ------------------------------------------------------------- */

/* Blocks first ... last of a piece that a rank has read. */
struct blocks { int piece; int64_t first, last; };

/* A tensor's pieces, sorted by where they begin on dimension 0. */
struct pieces {
  const struct tc_piece *piece;
  int n, rank;
  int64_t elem, block_bytes;
  int64_t *reach;                 /* [i]: the end of pieces 0 ... i on dimension 0 */
  struct blocks *seen; int n_seen;               /* by this rank; capacity TC_BOXES * n */
};

/* The first piece that may overlap a box that begins at row `row`. */
static int first_from(const struct pieces *s, int64_t row)
{
  int lo = 0, hi = s->n;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (s->reach[mid] > row) hi = mid;
    else lo = mid + 1;
  }
  return lo;
}

/* Whether this rank has read block b of piece i. */
static bool is_checked(const struct pieces *s, int i, int64_t b)
{
  for (int k = 0; k < s->n_seen; k++)
    if (s->seen[k].piece == i && b >= s->seen[k].first && b <= s->seen[k].last) return true;
  return false;
}

/* The bytes that are read of piece i for its bytes [lo, hi). *again: some of it was read before. */
static int64_t read_of(struct pieces *s, int i, int64_t lo, int64_t hi, bool *again)
{
  const int64_t first = lo / s->block_bytes, last = (hi - 1) / s->block_bytes;
  int64_t bytes = 0;
  *again = false;
  for (int k = 0; k < s->n_seen; k++) *again |= s->seen[k].piece == i;
  for (int64_t b = first; b <= last; b++) {
    int64_t at = lo, stop = hi;
    tc_block_read(b, s->block_bytes, s->piece[i].bytes, *again && is_checked(s, i, b), &at, &stop);
    bytes += stop - at;
  }
  s->seen[s->n_seen++] = (struct blocks){ i, first, last };
  return bytes;
}

/* The cost of n boxes of the tensor, read one after the other. */
static struct tc_read cost_of(struct pieces *s, const struct tc_box *box, int n, uint64_t *files)
{
  struct tc_read c = {0};
  s->n_seen = 0;
  for (int b = 0; b < n; b++) {
    int64_t row = s->rank ? box[b].start[0] : 0, end = s->rank ? row + box[b].count[0] : 1;
    for (int i = first_from(s, row); i < s->n; i++) {
      const struct tc_piece *p = &s->piece[i];
      int64_t lo, hi;
      bool again;
      if (s->rank && p->start[0] >= end) break;
      const int64_t inside = tc_box_span(s->rank, p->start, p->count, box[b].start, box[b].count, &lo, &hi);
      if (!inside) continue;
      if (n == 1) s->n_seen = 0;                 /* there is no other box */
      c.need += inside * s->elem;
      c.read += read_of(s, i, lo * s->elem, hi * s->elem, &again);
      c.pieces += !again;
      files[p->file / 64] |= UINT64_C(1) << (p->file % 64);
    }
  }
  return c;
}

/* Adds what every rank reads of one tensor. */
static void add_tensor(struct plan *p, const struct tc_tensor *x, struct pieces *s)
{
  const struct tc_mesh *m = p->mesh;
  int64_t places = 1;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (x->lay.on[a].kind != TC_R) places *= m->size[a];
  struct tc_read *memo = tc_calloc((size_t)places, sizeof *memo);
  uint64_t *files = tc_calloc((size_t)places * (size_t)p->words, sizeof *files);
  bool *done = tc_calloc((size_t)places, sizeof *done);
  for (int r = 0; r < m->world; r++) {
    size_t k = 0;
    for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
      if (x->lay.on[a].kind != TC_R)
        k = k * (size_t)m->size[a] + (size_t)tc_mesh_coord(m, r, a);
    uint64_t *f = files + k * (size_t)p->words;
    if (!done[k]) {
      struct tc_box box[TC_BOXES];
      memo[k] = cost_of(s, box, tc_stored_boxes(x, m, r, box), f);
      done[k] = true;
    }
    p->rank[r].need += memo[k].need;
    p->rank[r].read += memo[k].read;
    p->rank[r].pieces += memo[k].pieces;
    for (int w = 0; w < p->words; w++) p->files[(size_t)r * (size_t)p->words + (size_t)w] |= f[w];
  }
  TC_FREE(memo, files, done);
}

/* The checkpoint's tensor from which the program's is loaded. */
static int find_tensor(const struct plan *p, const struct tc_tensor *x, struct tc_err *err)
{
  int k = tc_ckpt_find(p->c, x->name);
  if (k < 0)
    return tc_fail(err, TC_EUSER, "%s has no tensor %s (was it saved with another "
                   "train.optimizer?)", p->c->path, x->name);
  const struct tc_ckpt_tensor *t = tc_ckpt_at(p->c, k);
  if (t->dtype == x->dtype && tc_ckpt_has_shape(t, x->rank, x->dim)) return k;
  return tc_fail(err, TC_EUSER, "%s: tensor %s has another shape or type than this model's",
                 p->c->path, x->name);
}

static int add_tensors(struct plan *p, struct tc_err *err)
{
  const struct tc_graph *g = p->program->graph;
  const struct tc_manifest *m = p->c->m;
  int64_t *reach = tc_calloc((size_t)m->n_pieces + 1, sizeof *reach);
  struct blocks *seen = tc_calloc(((size_t)m->n_pieces + 1) * TC_BOXES, sizeof *seen);
  int rc = 0;
  p->words = m->n_files / 64 + 1;
  p->rank = tc_calloc((size_t)p->mesh->world, sizeof *p->rank);
  p->files = tc_calloc((size_t)p->mesh->world * (size_t)p->words, sizeof *p->files);
  for (int32_t id = 0; id < g->n_tensors && rc >= 0; id++) {
    const struct tc_tensor *x = &g->tensor[id];
    if (!x->state || !x->saved) continue;
    int k = rc = find_tensor(p, x, err);
    if (k < 0) break;
    struct pieces s = { .piece = m->piece + m->first_piece[k], .rank = x->rank, .reach = reach,
      .n = m->first_piece[k + 1] - m->first_piece[k], .seen = seen,
      .elem = (int64_t)tc_dtype_bytes(x->dtype), .block_bytes = m->block_bytes };
    for (int i = 0; i < s.n; i++) {
      int64_t end = s.rank ? s.piece[i].start[0] + s.piece[i].count[0] : 1;
      reach[i] = i ? TC_MAX(reach[i - 1], end) : end;
    }
    add_tensor(p, x, &s);
  }
  TC_FREE(reach, seen);
  return TC_MIN(rc, 0);
}

static int files_of(const struct plan *p, int r)
{
  int n = 0;
  for (int w = 0; w < p->words; w++)
    n += __builtin_popcountll(p->files[(size_t)r * (size_t)p->words + (size_t)w]);
  return n;
}

/* Sums up what all ranks read, and finds the most of one. */
static void sum_up(struct tc_reads *r)
{
  for (int i = 0; i < r->mesh->world; i++) {
    const struct tc_read *c = &r->rank[i];
    r->sum.need = tc_add_sizes(r->sum.need, c->need);
    r->sum.read = tc_add_sizes(r->sum.read, c->read);
    r->sum.pieces += c->pieces;
    r->most.need = TC_MAX(r->most.need, c->need);
    r->most.read = TC_MAX(r->most.read, c->read);
    r->most.pieces = TC_MAX(r->most.pieces, c->pieces);
  }
}

int tc_run_reads(struct tc_reads *r, struct tc_ckpt *c, const struct tc_config *cfg, int world, const int32_t *node,
                 struct tc_err *err)
{
  struct plan p = { .c = c, .cfg = cfg };
  int rc = make_program(&p, world, node, err);
  *r = (struct tc_reads){ 0 };
  if (rc == 0) rc = add_tensors(&p, err);
  for (int i = 0; i < world && rc == 0; i++) p.rank[i].files = files_of(&p, i);
  *r = (struct tc_reads){ .mesh = p.mesh, .rank = p.rank, .system = rc == 0 ? p.opts.system->name : NULL };
  if (rc == 0) sum_up(r);
  else tc_reads_free(r);
  tc_program_free(p.program);
  tc_annotations_free(p.rows);
  free(p.files);
  return rc;
}

void tc_reads_free(struct tc_reads *r)
{
  tc_mesh_free(r->mesh);
  free(r->rank);
  *r = (struct tc_reads){ 0 };
}
