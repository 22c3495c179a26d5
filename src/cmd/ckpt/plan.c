/* plan.c - `tercio ckpt plan`: what each rank of a layout would read of a checkpoint,
 * from the manifest and the program of that layout. Nothing is run, and only the manifest is read.
 *
 * A rank reads the boxes that it stores of every saved tensor. Of a piece it reads the blocks from
 * the first to the last that a box needs, completely, since a checksum covers a block; of a block that
 * it has checked already, only the needed part (as io/ckpt/read.c does). Ranks whose coordinates
 * differ only on axes on which a tensor is replicated read the same parts, so each tensor is
 * examined once per distinct placement. */
#include "src/cmd/ckpt/ckpt.h"

#include <stdlib.h>
#include <string.h>

#include "src/program/setup.h"
#include "src/graph/shard_box.h"

enum { MOST_RANKS = 1 << 16 };

struct cost { int64_t need, read, pieces; };     /* bytes, bytes, number */

struct plan {
  struct tc_ckpt *c;
  struct tc_config *cfg;
  struct tc_mesh *mesh;
  struct tc_program_opts opts;
  struct tc_annotation *rows;
  struct tc_program *program;
  struct cost *rank;              /* [world] */
  uint64_t *files;                /* [world][words]: bit f: file f is read */
  int words;
};

/* ---- the layout asked for ---------------------------------------------------------- */

/* The mesh of the saved run, as flags before the user's own. */
static int default_flags(char *flag[3], const struct plan *p, bool dp_is_left)
{
  int pp, dp, tp, end = 0, n = 0;
  if (sscanf(p->c->m->meta.mesh, "pp%7d dp%7d tp%7d%n", &pp, &dp, &tp, &end) != 3 ||
      p->c->m->meta.mesh[end]) return 0;
  flag[n++] = tc_sprintf("--mesh.pp=%d", pp);
  flag[n++] = dp_is_left ? tc_strdup("--mesh.dp=auto") : tc_sprintf("--mesh.dp=%d", dp);
  flag[n++] = tc_sprintf("--mesh.tp=%d", tp);
  return n;
}

static int make_config(struct plan *p, const struct ckpt_args *a, struct tc_err *err)
{
  char *own[3], word[] = "plan";
  char **argv = tc_calloc((size_t)a->n_flags + 5, sizeof *argv);
  int n_own = default_flags(own, p, a->world > 0 || a->cluster), argc = 0;
  argv[argc++] = word;
  for (int i = 0; i < n_own; i++) argv[argc++] = own[i];
  for (int i = 0; i < a->n_flags; i++) argv[argc++] = a->flag[i];
  int rc = tc_config_saved(&p->cfg, p->c->m->meta.config, argc, argv, err);
  struct tc_model saved;
  struct tc_err why;
  if (rc == 0 && *p->cfg->model_config && tc_model_parse(&saved, p->c->m->meta.model, p->c->path, &why) == 0) {
    tc_setup_fill_model(p->cfg, &saved);
    p->cfg->model_config[0] = '\0';              /* that file may be elsewhere by now */
  }
  for (int i = 0; i < n_own; i++) free(own[i]);
  free(argv);
  return rc;
}

/* The number of ranks, and the node of each; *node is owned. */
static int make_cluster(const struct plan *p, const struct ckpt_args *a, int32_t **node,
                        struct tc_err *err)
{
  const struct tc_config *c = p->cfg;
  int64_t world = a->world;
  *node = NULL;
  if (a->cluster) {
    int n = tc_mesh_synthetic(a->cluster, "block", node, err);
    if (n >= 0 && a->world > 0 && a->world != n)
      return tc_fail(err, TC_EUSER, "ckpt plan: --simulate has %d ranks, --world %lld", n,
                     (long long)a->world);
    if (n < 0) return n;
    world = n;
  } else if (world == 0) {
    if (c->mesh_dp == TC_AUTO || c->mesh_tp == TC_AUTO)
      return tc_fail(err, TC_EUSER, "ckpt plan: mesh.%s = auto needs --world N, or --simulate "
                     "CLUSTER", c->mesh_dp == TC_AUTO ? "dp" : "tp");
    world = 1;
    const int64_t size[] = { c->mesh_pp, c->mesh_dp, c->mesh_tp };
    for (int i = 0; i < 3; i++) world = size[i] > MOST_RANKS ? size[i] : world * size[i];
  }
  if (world < 1 || world > MOST_RANKS)
    return tc_fail(err, world < 1 ? TC_ELAYOUT : TC_EUSER, "ckpt plan: %lld ranks: from 1 to %d",
                   (long long)world, MOST_RANKS);
  if (!*node) *node = tc_calloc((size_t)world, sizeof **node);
  return (int)world;
}

/* Compiles the program, of the saved model, until its placements are fixed. */
static int make_program(struct plan *p, const struct ckpt_args *a, struct tc_err *err)
{
  int32_t *node;
  const struct tc_manifest *m = p->c->m;
  TC_TRY(make_config(p, a, err));
  int world = make_cluster(p, a, &node, err);
  int rc = world < 0 ? world : tc_setup_mesh(&p->mesh, p->cfg, world, node, 0, err);
  free(node);
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
  return tc_program_new(&p->program, &p->opts, p->mesh, 0, NULL, "shard", err);
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

/* The bytes [*lo, *hi) of the piece from the first to the last inside the box; *inside is how many of them are.
 * False: none. */
static bool overlap(const struct pieces *s, const struct tc_piece *p, const struct tc_box *b,
                    int64_t *lo_byte, int64_t *hi_byte, int64_t *inside)
{
  int64_t first = 0, last = 0;
  *inside = 1;
  for (int d = 0; d < s->rank; d++) {
    int64_t lo = TC_MAX(p->start[d], b->start[d]);
    int64_t hi = TC_MIN(p->start[d] + p->count[d], b->start[d] + b->count[d]);
    if (lo >= hi) return false;
    *inside *= hi - lo;
    first = first * p->count[d] + lo - p->start[d];
    last = last * p->count[d] + hi - 1 - p->start[d];
  }
  *lo_byte = first * s->elem;
  *hi_byte = (last + 1) * s->elem;
  *inside *= s->elem;
  return true;
}

/* The bytes that are read of piece i for its bytes [lo, hi). *again: some of it was read before. */
static int64_t read_of(struct pieces *s, int i, int64_t lo, int64_t hi, bool *again)
{
  const int64_t size = s->block_bytes, end = s->piece[i].bytes;
  int64_t first = lo / size, last = (hi - 1) / size;
  int64_t bytes = (end - last * size < size ? end : (last + 1) * size) - first * size;
  *again = false;
  for (int k = 0; k < s->n_seen; k++) *again |= s->seen[k].piece == i;
  for (int64_t b = first; *again && b <= last; b++) {
    bool checked = false;
    for (int k = 0; k < s->n_seen; k++)
      checked |= s->seen[k].piece == i && b >= s->seen[k].first && b <= s->seen[k].last;
    int64_t begin = b * size, stop = end - begin < size ? end : begin + size;
    if (checked) bytes -= stop - begin - (TC_MIN(stop, hi) - TC_MAX(begin, lo));
  }
  s->seen[s->n_seen++] = (struct blocks){ i, first, last };
  return bytes;
}

/* The cost of n boxes of the tensor, read one after the other. */
static struct cost cost_of(struct pieces *s, const struct tc_box *box, int n, uint64_t *files)
{
  struct cost c = {0};
  s->n_seen = 0;
  for (int b = 0; b < n; b++) {
    int64_t row = s->rank ? box[b].start[0] : 0, end = s->rank ? row + box[b].count[0] : 1;
    for (int i = first_from(s, row); i < s->n; i++) {
      const struct tc_piece *p = &s->piece[i];
      int64_t lo, hi, inside;
      bool again;
      if (s->rank && p->start[0] >= end) break;
      if (!overlap(s, p, &box[b], &lo, &hi, &inside)) continue;
      if (n == 1) s->n_seen = 0;                 /* there is no other box */
      c.need += inside;
      c.read += read_of(s, i, lo, hi, &again);
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
  for (int a = TC_PP; a < TC_AXES; a++)
    if (x->lay.on[a].kind != TC_R) places *= m->size[a];
  struct cost *memo = tc_calloc((size_t)places, sizeof *memo);
  uint64_t *files = tc_calloc((size_t)places * (size_t)p->words, sizeof *files);
  bool *done = tc_calloc((size_t)places, sizeof *done);
  for (int r = 0; r < m->world; r++) {
    size_t k = 0;
    for (int a = TC_PP; a < TC_AXES; a++)
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
  free(memo);
  free(files);
  free(done);
}

/* The checkpoint's tensor from which the program's is loaded. */
static int find_tensor(const struct plan *p, const struct tc_tensor *x, struct tc_err *err)
{
  int k = tc_ckpt_find(p->c, x->name);
  if (k < 0)
    return tc_fail(err, TC_EUSER, "%s has no tensor %s (was it saved with another "
                   "train.optimizer?)", p->c->path, x->name);
  const struct tc_ckpt_tensor *t = tc_ckpt_at(p->c, k);
  bool same = t->rank == x->rank && t->dtype == x->dtype;
  for (int d = 0; same && d < x->rank; d++) same = t->dim[d] == x->dim[d];
  if (same) return k;
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
  free(reach);
  free(seen);
  return TC_MIN(rc, 0);
}

/* ---- output ------------------------------------------------------------------------ */

static int files_of(const struct plan *p, int r)
{
  int n = 0;
  for (int w = 0; w < p->words; w++)
    n += __builtin_popcountll(p->files[(size_t)r * (size_t)p->words + (size_t)w]);
  return n;
}

static bool alike(const struct plan *p, int a, int b)
{
  return memcmp(&p->rank[a], &p->rank[b], sizeof *p->rank) == 0 && files_of(p, a) == files_of(p, b);
}

static struct cost sum_of(const struct plan *p, struct cost *most)
{
  struct cost sum = {0};
  *most = (struct cost){0};
  for (int r = 0; r < p->mesh->world; r++) {
    const struct cost *c = &p->rank[r];
    sum.need = tc_add_sizes(sum.need, c->need);
    sum.read = tc_add_sizes(sum.read, c->read);
    sum.pieces += c->pieces;
    most->need = TC_MAX(most->need, c->need);
    most->read = TC_MAX(most->read, c->read);
    most->pieces = TC_MAX(most->pieces, c->pieces);
  }
  return sum;
}

/* Consecutive ranks with the same cost are on one line. */
static void print_text(const struct plan *p)
{
  const struct tc_mesh *m = p->mesh;
  struct cost most, sum = sum_of(p, &most);
  char a[32], b[32];
  printf("%s, saved by %s %s\nto pp%d dp%d tp%d %s, %d ranks\n\n", p->c->path, p->c->m->meta.mesh,
         p->c->m->meta.system, m->size[TC_PP], m->size[TC_DP], m->size[TC_TP],
         p->opts.system->name, m->world);
  printf("%-13s %4s %5s %4s %15s %15s %9s %7s\n", "rank", "pp", "dp", "tp", "needs", "reads",
         "pieces", "files");
  for (int r = 0, end; r < m->world && !ferror(stdout); r = end) {
    char ranks[32];
    for (end = r + 1; end < m->world && alike(p, r, end); end++) {}
    if (end == r + 1) snprintf(ranks, sizeof ranks, "%d", r);
    else snprintf(ranks, sizeof ranks, "%d-%d", r, end - 1);
    const int at[] = { TC_PP, TC_DP, TC_TP }, width[] = { 4, 5, 4 };
    printf("%-13s", ranks);
    for (int i = 0; i < 3; i++) {
      bool one = true;
      for (int k = r; k < end; k++)
        one &= tc_mesh_coord(m, k, at[i]) == tc_mesh_coord(m, r, at[i]);
      if (one) printf(" %*d", width[i], tc_mesh_coord(m, r, at[i]));
      else printf(" %*s", width[i], "*");
    }
    printf(" %15lld %15lld %9lld %7d\n", (long long)p->rank[r].need, (long long)p->rank[r].read,
           (long long)p->rank[r].pieces, files_of(p, r));
  }
  printf("\nall ranks  %s needed, %s read\n", tc_human_bytes(a, sizeof a, (double)sum.need),
         tc_human_bytes(b, sizeof b, (double)sum.read));
  printf("most       %s needed, %s read\n", tc_human_bytes(a, sizeof a, (double)most.need),
         tc_human_bytes(b, sizeof b, (double)most.read));
  printf("more than needed: %s, since blocks are read completely\n",
         tc_human_bytes(a, sizeof a, (double)(sum.read - sum.need)));
}

static json_t *cost_json(const struct cost *c)
{
  return json_pack("{s:I, s:I, s:I, s:I}", "need_bytes", (json_int_t)c->need, "read_bytes",
                   (json_int_t)c->read, "more_bytes", (json_int_t)(c->read - c->need), "pieces",
                   (json_int_t)c->pieces);
}

static void print_json(const struct plan *p)
{
  const struct tc_mesh *m = p->mesh;
  struct cost most, sum = sum_of(p, &most);
  json_t *ranks = json_array();
  char mesh[64];
  snprintf(mesh, sizeof mesh, "pp%d dp%d tp%d", m->size[TC_PP], m->size[TC_DP], m->size[TC_TP]);
  for (int r = 0; r < m->world; r++) {
    json_t *o = cost_json(&p->rank[r]);
    json_object_set_new(o, "rank", json_integer(r));
    json_object_set_new(o, "pp", json_integer(tc_mesh_coord(m, r, TC_PP)));
    json_object_set_new(o, "dp", json_integer(tc_mesh_coord(m, r, TC_DP)));
    json_object_set_new(o, "tp", json_integer(tc_mesh_coord(m, r, TC_TP)));
    json_object_set_new(o, "files", json_integer(files_of(p, r)));
    json_array_append_new(ranks, o);
  }
  ckpt_print_json(json_pack("{s:o, s:I, s:{s:s, s:s}, s:{s:s, s:s, s:i}, s:o, s:o, s:o}", "path",
    tc_text_json(p->c->path), "step", (json_int_t)p->c->m->meta.step, "from", "mesh",
    p->c->m->meta.mesh, "system", p->c->m->meta.system, "to", "mesh", mesh, "system",
    p->opts.system->name, "ranks", (int)m->world, "total", cost_json(&sum), "most",
    cost_json(&most), "ranks", ranks));
}

int ckpt_cmd_plan(const struct ckpt_args *a, struct tc_err *err)
{
  struct plan p = {0};
  TC_TRY(tc_ckpt_open(&p.c, a->path[0], err));
  int rc = make_program(&p, a, err);
  if (rc == 0) rc = add_tensors(&p, err);
  if (rc == 0 && a->json) print_json(&p);
  else if (rc == 0) print_text(&p);
  tc_program_free(p.program);
  tc_annotations_free(p.rows);
  tc_mesh_free(p.mesh);
  tc_config_free(p.cfg);
  free(p.rank);
  free(p.files);
  tc_ckpt_close(p.c);
  return rc;
}
