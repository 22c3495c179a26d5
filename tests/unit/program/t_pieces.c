/* t_pieces.c - attention over cp in pieces of its groups of heads: in how many; that the keys and values of a piece travel
 * while the piece before is computed, and their gradients while the next one is; and how many pieces are held at once. */
#include "src/program/setup.h"
#include "tests/unit/tap.h"

enum { MOST_FLAGS = 40, WORLD_MOST = 8 };

static const struct { const char *name, *flags; int world, pieces; } cases[] = {
  { "eight groups of keys and values", "--model.heads=16 --model.kv_heads=8 --mesh.cp=2", 2, 4 },
  { "... on two ranks of tp each", "--model.heads=8 --model.kv_heads=4 --mesh.cp=2 --mesh.tp=2", 4, 2 },
  { "six", "--model.heads=6 --model.kv_heads=6 --mesh.cp=2", 2, 3 },
  { "seven can't be divided", "--model.heads=7 --model.kv_heads=7 --mesh.cp=2", 2, 1 },
  { "one", "--model.heads=4 --model.kv_heads=1 --mesh.cp=2", 2, 1 },
  { "documents", "--model.heads=8 --model.kv_heads=4 --mesh.cp=2 --data.documents=mask --data.end_token=1", 2, 4 },
  { "attention recomputed", "--model.heads=8 --model.kv_heads=4 --mesh.cp=2 --train.recompute=selective", 2, 4 },
  { "everything recomputed", "--model.heads=8 --model.kv_heads=4 --mesh.cp=4 --train.recompute=full", 4, 4 },
  { "activations gathered again", "--model.heads=8 --model.kv_heads=4 --mesh.cp=2 --parallel.regather=yes", 2, 4 },
  { "transfers that wait at once", "--model.heads=8 --model.kv_heads=4 --mesh.cp=2 --parallel.overlap=no", 2, 4 },
  { "heads are exchanged instead", "--model.heads=8 --model.kv_heads=4 --mesh.cp=2 --parallel.context=heads", 2, 0 },
  { "one rank", "--model.heads=8 --model.kv_heads=4", 1, 0 },
};

/* A program, and where its nodes are in its list of actions; -1: nowhere. */
struct listed {
  struct tc_config *c;
  struct tc_mesh *m;
  struct tc_program_opts o;
  struct tc_annotation *rows;
  struct tc_program *p;
  int32_t *run, *issue, *wait;   /* [n_nodes] */
};

static void find_actions(struct listed *x)
{
  int32_t **at[] = { [TC_RUN] = &x->run, [TC_ISSUE] = &x->issue, [TC_WAIT] = &x->wait };
  for (int k = 0; k < 3; k++) *at[k] = tc_no_indices((size_t)x->p->graph->n_nodes);
  for (int32_t i = 0; i < x->p->actions->n; i++) {
    const struct tc_action *a = &x->p->actions->action[i];
    (*at[a->kind])[a->node] = i;
  }
}

/* pieces: 0: as it is set up. */
static bool make(struct listed *x, const char *flags, int context, int world, int64_t pieces)
{
  static const char always[] = "t --model.family=llama --model.layers=2 --model.hidden=48 --model.head_dim=4 --model.ffn=32 "
                               "--model.vocab=32 --train.global_batch=1 --parallel.data=ddp --model.context=";
  char *text = tc_sprintf("%s%d %s", always, context, flags), *argv[MOST_FLAGS], *save = NULL;
  int32_t node[WORLD_MOST] = { 0 };
  struct tc_err err = { 0 };
  int argc = 0;
  *x = (struct listed){ .run = NULL };
  for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
  argv[argc] = NULL;
  int rc = tc_config_new(&x->c, argc, argv, &err);
  if (!rc) rc = tc_setup_mesh(&x->m, x->c, world, node, world, &err);
  if (!rc) rc = tc_setup_program(&x->o, x->c, x->m, &x->rows, &err);
  if (!rc && pieces) x->o.gpt.key_pieces = pieces;
  if (!rc) rc = tc_program_new(&x->p, &x->o, x->m, 0, NULL, NULL, &err);
  free(text);
  if (!rc) find_actions(x);
  return ok(rc == 0, "%s: made %s", flags, err.text);
}

static void drop(struct listed *x)
{
  TC_FREE(x->run, x->issue, x->wait);
  tc_program_free(x->p);
  tc_annotations_free(x->rows);
  tc_mesh_free(x->m);
  tc_config_free(x->c);
}

/* The node that makes input k of n, a transfer. */
static int32_t gather_of(const struct tc_graph *g, const struct tc_node *n, int k)
{
  const int32_t maker = g->tensor[tc_in(g, n, k)].node;
  TC_ASSERT(maker >= 0 && g->node[maker].op == TC_OP_RESHARD);
  return maker;
}

/* The transfer that reads tensor t. */
static int32_t transfer_of(const struct tc_graph *g, int32_t t)
{
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (n->op == TC_OP_RESHARD && tc_in(g, n, 0) == t) return n->id;
  }
  return -1;
}

/* One piece and the next one in the order of the list, of the same layer and op. */
static bool follows(const struct listed *x, const struct tc_node *a, const struct tc_node *b)
{
  const struct tc_graph *g = x->p->graph;
  const int kv = a->op == TC_OP_ATTN ? 1 : 4;
  const int32_t now = gather_of(g, a, kv), next = gather_of(g, b, kv);
  const int32_t here = x->run[a->id], there = x->run[b->id];
  bool good = x->wait[now] < here;
  if (!x->o.overlap) return good && x->issue[next] + 1 == x->wait[next] && x->issue[next] > x->wait[now];
  if (x->issue[next] > x->issue[now] && x->wait[next] > x->wait[now])      /* else ATTN has gathered it already */
    good &= x->issue[next] < here && x->wait[next] > here && x->wait[next] < there;
  if (a->op == TC_OP_ATTN) return good;
  const int32_t scatter = transfer_of(g, tc_out(g, a, 1));
  return good && x->issue[scatter] > here && x->issue[scatter] < there && x->wait[scatter] > there;
}

/* How many gathered pieces, or gradients that are still whole, are held at once: from the first action that writes one to the
 * last that reads it. */
static int most_held(const struct listed *x, bool gradients)
{
  const struct tc_graph *g = x->p->graph;
  int *change = tc_calloc((size_t)x->p->actions->n + 1, sizeof *change), held = 0, most = 0;
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct tc_node *n = &g->node[i];
    if (gradients && n->op == TC_OP_ATTN_BWD && x->run[i] >= 0) {
      change[x->run[i]]++;
      change[x->wait[transfer_of(g, tc_out(g, n, 1))] + 1]--;
    }
    if (gradients || n->op != TC_OP_RESHARD || x->issue[i] < 0 || n->coll != TC_ALL_GATHER ||
        strcmp(strrchr(g->tensor[tc_in(g, n, 0)].name, '.'), ".kv")) continue;
    int32_t last = x->wait[i];
    for (int32_t k = 0; k < g->n_nodes; k++)
      for (int j = 0; j < g->node[k].n_in; j++)
        if (tc_in(g, &g->node[k], j) == tc_out(g, n, 0)) last = TC_MAX(last, x->run[k]);
    change[x->issue[i]]++;
    change[last + 1]--;
  }
  for (int32_t i = 0; i < x->p->actions->n; i++) {
    held += change[i];
    most = TC_MAX(most, held);
  }
  free(change);
  return most;
}

static void test_case(size_t i)
{
  struct listed x;
  int64_t pieces = 0, wrong = 0, n_kv = 0;
  if (!make(&x, cases[i].flags, 64, cases[i].world, 0)) return;
  const struct tc_graph *g = x.p->graph;
  const struct tc_node *before = NULL;
  for (int32_t k = 0; k < x.p->actions->n; k++) {
    const struct tc_node *n = &g->node[x.p->actions->action[k].node];
    n_kv += n->op == TC_OP_KV && n->mark == TC_F;
    if (n->op != TC_OP_ATTN && n->op != TC_OP_ATTN_BWD) continue;
    if (cases[i].pieces) pieces = tc_attn_pieces(g, n);
    if (before && before->op == n->op && before->unit == n->unit && before->mark == n->mark) wrong += !follows(&x, before, n);
    before = n;
  }
  is_int(pieces, cases[i].pieces, "%s: so many pieces", cases[i].name);
  is_int(n_kv, 2 * cases[i].pieces, "... in each of two layers");
  is_int(wrong, 0, "... each of which travels while its neighbour is computed");
  if (cases[i].pieces > 1) {
    const bool again = x.o.recompute != TC_RECOMPUTE_NONE;     /* attention's and its gradient's share what they gather */
    is_int(most_held(&x, false), again ? pieces : x.o.overlap ? 2 : 1, "... of keys and values so many at once");
    is_int(most_held(&x, true), x.o.overlap ? 2 : 1, "... and of whole gradients");
  }
  drop(&x);
}

/* The backward pass holds two of four pieces of keys, values and their gradients, of all tokens. */
static void test_memory(void)
{
  static const char flags[] = "--model.heads=8 --model.kv_heads=8 --mesh.cp=8";
  struct listed whole, parts;
  if (!make(&whole, flags, 4096, 8, 1) || !make(&parts, flags, 4096, 8, 0)) return;
  const int64_t a = whole.p->arena->bytes[TC_SCRATCH], b = parts.p->arena->bytes[TC_SCRATCH], half = 4096 * 8 * 2 * 4 * 4;
  ok(a - b > half * 4 / 5, "in pieces activations take %lld bytes less, about %lld", (long long)(a - b), (long long)half);
  drop(&whole);
  drop(&parts);
}

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) test_case(i);
  test_memory();
  return done_testing();
}
