/* fusion_play.h - what a program computes, played with numbers that stand for contents, with and without fused
 * calls: an action reads all bytes of its inputs and writes numbers made of what it read. Played one by one and
 * with groups fused, in several choices of groups, every action must read the same, and the same state must be
 * left. */
#ifndef TC_FUSION_PLAY_H
#define TC_FUSION_PLAY_H

#include "src/program/setup.h"
#include "tests/fuzz/place_draw.h"

enum { CHOICES = 4, CELL = 2 };

struct bench {
  struct fuzz *f;
  struct tc_mesh *m;
  struct tc_program *p;
  const int32_t *coord;
  const struct tc_graph *g;
  const struct tc_actions *s;
  const struct tc_arena *a;
  const struct tc_fusions *fused;
};

/* ---- memory ---------------------------------------------------------------------------- */

struct bytes { int region; int64_t at, end; };

static int n_operands(const struct bench *b, int32_t action)
{
  const struct tc_node *n = &b->g->node[b->s->action[action].node];
  return n->n_in + n->n_out;
}

static int32_t operand(const struct bench *b, int32_t action, int k)
{
  const struct tc_node *n = &b->g->node[b->s->action[action].node];
  return tc_operand(b->g, n, k);
}

static struct bytes bytes_of(const struct bench *b, int32_t action, int k)
{
  const int32_t t = operand(b, action, k);
  if (b->a->off[t] < 0) return (struct bytes){ 0, 0, 0 };
  const int64_t at = tc_arena_at(b->a, t, b->s->action[action].mb);
  return (struct bytes){ b->a->region[t], at,
                         at + tc_tensor_local_bytes(&b->g->tensor[t], b->m, b->coord) };
}

static bool meet(struct bytes x, struct bytes y)
{
  return x.region == y.region && x.at < y.end && y.at < x.end && x.at < x.end && y.at < y.end;
}

static int first_output(const struct bench *b, int32_t action)
{
  return b->g->node[b->s->action[action].node].n_in;
}

/* ---- playing a program ------------------------------------------------------------------ */

struct play {
  uint64_t *cell[TC_REGIONS];
  uint64_t *read;                /* [actions]: of all that the action reads */
};

static uint64_t mix(uint64_t h, uint64_t x)
{
  h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
  return h ^ h >> 29;
}

static void play_new(struct play *y, const struct bench *b)
{
  for (int r = 0; r < TC_REGIONS; r++) {
    const size_t n = (size_t)b->a->bytes[r] / CELL + 1;
    y->cell[r] = tc_malloc(n * sizeof *y->cell[r]);
    for (size_t i = 0; i < n; i++) y->cell[r][i] = mix((uint64_t)r + 1, i);
  }
  y->read = tc_calloc((size_t)b->s->n + 1, sizeof *y->read);
}

static void play_free(struct play *y)
{
  for (int r = 0; r < TC_REGIONS; r++) free(y->cell[r]);
  free(y->read);
}

/* Whether output k is added to what is there. */
static bool adds(const struct bench *b, int32_t action, int k)
{
  const struct tc_action *a = &b->s->action[action];
  const struct tc_node *n = &b->g->node[a->node];
  const struct tc_tensor *t = &b->g->tensor[b->g->arg[n->out + k]];
  const bool state = b->g->tensor[tc_tensor_root(b->g, t->id)].state;
  return k < 8 && (n->acc >> k & 1) && t->overwrites >= 0 && !(a->mb == 0 && n->acc_first && state);
}

static uint64_t read_all(const struct bench *b, struct play *y, int32_t action)
{
  const struct tc_action *a = &b->s->action[action];
  uint64_t h = mix((uint64_t)a->node + 1, (uint64_t)a->mb);
  for (int k = 0; k < n_operands(b, action); k++) {
    const struct bytes x = bytes_of(b, action, k);
    const int out = k - first_output(b, action);
    for (int64_t i = x.at / CELL; i < x.end / CELL && (out < 0 || adds(b, action, out)); i++)
      h = mix(h, y->cell[x.region][i]);
  }
  return h;
}

static void write_all(const struct bench *b, struct play *y, int32_t action, uint64_t h)
{
  for (int k = first_output(b, action); k < n_operands(b, action); k++) {
    const struct bytes x = bytes_of(b, action, k);
    for (int64_t i = x.at / CELL; i < x.end / CELL; i++)
      y->cell[x.region][i] = mix(mix(h, (uint64_t)k), (uint64_t)(i - x.at / CELL));
  }
}

/* A transfer whose axis has one rank, and whose bytes stay where they are. */
static bool is_idle(const struct bench *b, int32_t action)
{
  const struct tc_node *n = &b->g->node[b->s->action[action].node];
  bool idle = n->op == TC_OP_RESHARD && tc_mesh_size(b->m, n->axes) == 1 && n->coll != TC_COPY;
  for (int i = 0; i < n->n_in && idle; i++) {
    const struct bytes from = bytes_of(b, action, i), to = bytes_of(b, action, n->n_in + i);
    idle = n->n_in == n->n_out && from.region == to.region && from.at == to.at
           && b->g->tensor[tc_out(b->g, n, i)].overwrites == tc_in(b->g, n, i);
  }
  return idle;
}

/* Something lies in the output of a transfer until it is waited for; its input is read until then. */
static void play_action(const struct bench *b, struct play *y, int32_t action)
{
  const struct tc_action *a = &b->s->action[action];
  if (is_idle(b, action)) return;
  y->read[action] = read_all(b, y, action);
  write_all(b, y, action, mix(y->read[action], a->kind));
}

/* All parts write before any has read: what they must not see is there. UNREAD: part 0 leaves nothing. */
static void play_group(const struct bench *b, struct play *y, const struct tc_fusion *group)
{
  const int32_t *part = b->fused->action + group->first;
  const bool unread = tc_fusion_rule[group->rule].flags & TC_FUSION_UNREAD;
  for (int32_t i = 0; i < group->n; i++) {
    y->read[part[i]] = read_all(b, y, part[i]);
    if (unread && i == 1) write_all(b, y, part[0], 13);
    write_all(b, y, part[i], mix(y->read[part[i]], TC_RUN));
  }
}

/* of[action]: the group that runs it; -1. */
static void play_program(const struct bench *b, struct play *y, const int32_t *of)
{
  play_new(y, b);
  for (int32_t i = 0; i < b->s->n; i++) {
    const struct tc_fusion *group = of && of[i] >= 0 ? &b->fused->group[of[i]] : NULL;
    if (!group) play_action(b, y, i);
    else if (b->fused->action[group->first + group->n - 1] == i) play_group(b, y, group);
  }
}

/* What differs between two plays; NULL: nothing. */
static const char *differs(const struct bench *b, const struct play *x, const struct play *y)
{
  for (int32_t i = 0; i < b->s->n; i++)
    if (x->read[i] != y->read[i]) return b->g->tensor[operand(b, i, 0)].name;
  for (int r = TC_STATE; r <= TC_HOST_STATE; r += TC_HOST_STATE - TC_STATE)
    if (memcmp(x->cell[r], y->cell[r], (size_t)b->a->bytes[r] / CELL * sizeof *x->cell[r])) return "state";
  const int32_t result[] = { b->g->loss, b->g->grad_norm };
  for (int i = 0; i < 2; i++) {
    const int32_t t = result[i];
    if (t < 0 || b->a->off[t] < 0) continue;
    const int64_t at = b->a->off[t] / CELL;
    if (x->cell[b->a->region[t]][at] != y->cell[b->a->region[t]][at]) return b->g->tensor[t].name;
  }
  return NULL;
}

/* Groups to run fused: those of choice 0 in their order, of the others drawn, in a drawn order. */
static void choose(const struct bench *b, int32_t *of, int choice)
{
  const struct tc_fusions *l = b->fused;
  for (int32_t i = 0; i < b->s->n; i++) of[i] = -1;
  const int32_t start = choice && l->n ? (int32_t)fuzz_below(b->f, (size_t)l->n) : 0;
  for (int32_t i = 0; i < l->n; i++) {
    const int32_t k = (start + i) % l->n;
    bool taken = choice > 1 && fuzz_below(b->f, 3) == 0;
    for (int32_t m = 0; m < l->group[k].n; m++) taken |= of[tc_fusion_part(l, k, m)] >= 0;
    for (int32_t m = 0; m < l->group[k].n && !taken; m++) of[tc_fusion_part(l, k, m)] = k;
  }
}

static int check_plays(const struct bench *b)
{
  struct play plain, fused;
  int32_t *of = tc_malloc(((size_t)b->s->n + 1) * sizeof *of);
  int faults = 0;
  play_program(b, &plain, NULL);
  for (int i = 0; i < CHOICES && !faults; i++) {
    choose(b, of, i);
    play_program(b, &fused, of);
    const char *what = differs(b, &plain, &fused);
    if (what) {
      printf("# choice %d of groups: another content at %s\n", i, what);
      faults += fuzz_fault(b->f, "fused calls compute something else");
    }
    play_free(&fused);
  }
  play_free(&plain);
  free(of);
  return faults;
}

#endif
