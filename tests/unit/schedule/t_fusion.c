/* t_fusion.c - groups of calls that a device may fuse, for drawn layouts: each is right for the memory plan,
 * and none that would be is missing.
 *
 * t_fusion.t [--full | --cases N | --seconds S] [--only CASE] [--seed N]; else SEED, or a new one
 *
 * What a program computes is played with numbers that stand for contents: an action reads all bytes of its
 * inputs and writes numbers made of what it read. Played one by one and with groups fused, in several choices
 * of groups, every action must read the same, and the same state must be left. What a group may be is decided a
 * second time by comparing the bytes of all operands with each other. */
#include "src/program/setup.h"
#include "tests/fuzz/place_draw.h"

enum { SHORT = 400, FULL = 20000, CHOICES = 4, CELL = 2 };

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
  return k < n->n_in ? tc_in(b->g, n, k) : tc_out(b->g, n, k - n->n_in);
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

/* Something lies in the output of a transfer until it is waited for; its input is read until then. */
static void play_action(const struct bench *b, struct play *y, int32_t action)
{
  const struct tc_action *a = &b->s->action[action];
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
    if (unread && i > 0) write_all(b, y, part[0], 13);
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

/* ---- each group, by comparing bytes -------------------------------------------------------- */

static const struct tc_node *node_of(const struct bench *b, int32_t action)
{
  return &b->g->node[b->s->action[action].node];
}

/* An operand of x meets an operand of y, of the kinds that are compared. */
static bool any_meet(const struct bench *b, int32_t x, bool x_in, bool x_out, int32_t y, bool y_in, bool y_out)
{
  for (int i = x_in ? 0 : first_output(b, x); i < (x_out ? n_operands(b, x) : first_output(b, x)); i++)
    for (int k = y_in ? 0 : first_output(b, y); k < (y_out ? n_operands(b, y) : first_output(b, y)); k++)
      if (meet(bytes_of(b, x, i), bytes_of(b, y, k))) return true;
  return false;
}

static bool is_in(const int32_t *part, int n, int32_t action)
{
  for (int i = 0; i < n; i++)
    if (part[i] == action) return true;
  return false;
}

/* Part i may be moved to the place of the last one, as far as memory goes. */
static bool may_move(const struct bench *b, const int32_t *part, int n, int i)
{
  for (int32_t k = part[i] + 1; k < part[n - 1]; k++)
    if (!is_in(part, n, k)
        && (any_meet(b, k, false, true, part[i], true, true) || any_meet(b, k, true, false, part[i], false, true)))
      return false;
  return true;
}

/* A later part may write before the earlier one reads. */
static bool may_overlap(const struct bench *b, const struct tc_fusion_rule *r, int32_t x, int32_t y)
{
  const int out = first_output(b, x), over = first_output(b, y);
  if (any_meet(b, x, true, false, y, false, true)) return false;
  if ((r->flags & TC_FUSION_UNREAD) || !any_meet(b, x, false, true, y, false, true)) return true;
  const struct bytes made = bytes_of(b, x, out), new = bytes_of(b, y, over);
  return (r->flags & TC_FUSION_REPLACE) && n_operands(b, x) == out + 1 && n_operands(b, y) == over + 1
         && made.at == new.at && made.end == new.end
         && b->g->tensor[operand(b, y, over)].overwrites == operand(b, x, out);
}

static bool is_right(const struct bench *b, int rule, const int32_t *part, int n)
{
  bool right = true;
  for (int i = 0; i < n; i++) {
    const struct tc_node *x = node_of(b, part[i]);
    bool here = false;
    for (int k = 0; k < x->n_out; k++) {
      struct tc_local l;
      tc_tensor_local(&b->g->tensor[tc_out(b->g, x, k)], b->m, b->coord, &l);
      here |= l.here;
    }
    right &= here && x->space == TC_DEVICE && b->s->action[part[i]].kind == TC_RUN
             && b->s->action[part[i]].mb == b->s->action[part[0]].mb && (i == 0 || part[i] > part[i - 1])
             && (i == n - 1 || may_move(b, part, n, i));
    for (int k = i + 1; k < n; k++) right &= may_overlap(b, &tc_fusion_rule[rule], part[i], part[k]);
  }
  return right;
}

/* Nodes that read t, or take its place or a part of it. */
static int count_readers(const struct bench *b, int32_t t)
{
  int n = 0;
  for (int32_t i = 0; i < b->g->n_order; i++)
    for (int k = 0; k < b->g->node[b->g->order[i]].n_in; k++)
      n += tc_in(b->g, &b->g->node[b->g->order[i]], k) == t;
  for (int32_t i = 0; i < b->g->n_tensors; i++)
    n += (b->g->tensor[i].overwrites == t) + (b->g->tensor[i].base == t);
  return n;
}

/* The parts have the rule's ops and what links them. */
static bool matches(const struct bench *b, int rule, const int32_t *part, int n)
{
  const struct tc_fusion_rule *r = &tc_fusion_rule[rule];
  const struct tc_node *first = node_of(b, part[0]), *last = node_of(b, part[n - 1]);
  bool match = n == r->n;
  for (int i = 0; i < r->n && match && r->link != TC_FUSION_RUN; i++)
    match = node_of(b, part[i])->op == r->op[i] && (r->link != TC_FUSION_CHAIN || node_of(b, part[i])->head);
  switch (r->link) {
  case TC_FUSION_READS:
    match = match && tc_in(b->g, last, 0) == tc_out(b->g, first, 0);
    return match && (!(r->flags & TC_FUSION_UNREAD) || count_readers(b, tc_in(b->g, last, 0)) == 1);
  case TC_FUSION_SHARES: return match && tc_in(b->g, last, 0) == tc_in(b->g, first, 0) && last->mark == TC_W;
  case TC_FUSION_RUN: break;
  default: return match;
  }
  int updates = 0;
  for (int i = 0; i < n; i++) {
    const struct tc_node *x = node_of(b, part[i]);
    const bool cast = x->op == TC_OP_CAST && i > 0 && tc_in(b->g, x, 0) == tc_out(b->g, node_of(b, part[i - 1]), 0);
    if (x->op != first->op && !cast) return false;
    updates += !cast;
    for (int k = 0; k < i - cast; k++)             /* updates at once: none sees what another writes */
      if (any_meet(b, part[k], false, true, part[i], true, true)) return false;
  }
  return n > 1 && n <= TC_FUSION_MOST && (first->op == r->op[0] || first->op == r->op[1])
         && (rule == TC_FUSE_UPDATES) == (updates > 1);
}

static bool is_listed(const struct bench *b, int rule, const int32_t *part, int n)
{
  for (int32_t i = 0; i < b->fused->n; i++) {
    const struct tc_fusion *x = &b->fused->group[i];
    if (x->rule == rule && x->n == n && !memcmp(b->fused->action + x->first, part, (size_t)n * sizeof *part))
      return true;
  }
  return false;
}

/* The nearest action from k, in steps of `by`, that does this op in its micro-batch; for pairs, one that is
 * linked with k. -1: none near. */
static int32_t nearest(const struct bench *b, int rule, int32_t k, int op, int by, int32_t end)
{
  for (int32_t i = k + by; i >= 0 && i < b->s->n && i != end; i += by) {
    const int32_t pair[2] = { i, k };
    if (node_of(b, i)->op == op && b->s->action[i].mb == b->s->action[k].mb && b->s->action[i].kind == TC_RUN
        && (by > 0 || matches(b, rule, pair, 2)))
      return i;
  }
  return -1;
}

/* Groups of two and of the loss head that are right, but not in the list. */
static int count_missing(const struct bench *b)
{
  int missing = 0;
  for (int32_t k = 0; k < b->s->n; k++)
    for (int r = 0; r < TC_FUSIONS; r++) {
      const struct tc_fusion_rule *rule = &tc_fusion_rule[r];
      int32_t part[TC_FUSION_OPS] = { k };
      int n = 1;
      if (rule->link == TC_FUSION_RUN) continue;
      if (rule->link != TC_FUSION_CHAIN) {
        if (node_of(b, k)->op != rule->op[1]) continue;
        part[0] = nearest(b, r, k, rule->op[0], -1, k - TC_FUSION_REACH - 1);
        part[n++] = k;
      }
      for (; n < rule->n && part[n - 1] >= 0; n++)
        part[n] = nearest(b, r, part[n - 1], rule->op[n], 1, k + TC_FUSION_REACH);
      if (part[0] < 0 || part[n - 1] < 0 || !matches(b, r, part, n) || !is_right(b, r, part, n)) continue;
      if (is_listed(b, r, part, n)) continue;
      missing++;
      printf("# %s at action %d is right, but not in the list\n", rule->name, part[n - 1]);
    }
  return missing;
}

/* Runs of updates that could be longer. */
static int count_short_runs(const struct bench *b)
{
  int32_t *last_of = tc_calloc((size_t)b->s->n + 1, sizeof *last_of), part[TC_FUSION_MOST + 1];
  int shorter = 0;
  for (int32_t i = 0; i < b->fused->n; i++)
    for (int32_t k = 0; k < b->fused->group[i].n && tc_fusion_rule[b->fused->group[i].rule].link == TC_FUSION_RUN; k++)
      last_of[tc_fusion_part(b->fused, i, k)] = k + 1 < b->fused->group[i].n ? -1 : i + 1;
  for (int32_t k = 0; k + 1 < b->s->n; k++) {
    int n = 1;
    if (last_of[k] < 0 || !(tc_op_info[node_of(b, k)->op].flags & TC_OPF_UPDATE)) continue;
    const struct tc_fusion *run = last_of[k] > 0 ? &b->fused->group[last_of[k] - 1] : NULL;
    part[0] = k;
    if (run) memcpy(part, b->fused->action + run->first, (size_t)(n = run->n) * sizeof *part);
    part[n] = k + 1;
    const bool one = n == 1 && node_of(b, k + 1)->op == TC_OP_CAST;
    const int rule = one ? TC_FUSE_UPDATE_CAST : TC_FUSE_UPDATES;
    if (n == TC_FUSION_MOST || !matches(b, rule, part, n + 1) || !is_right(b, rule, part, n + 1)) continue;
    shorter++;
    printf("# the updates that end at action %d could go on\n", k);
  }
  free(last_of);
  return shorter;
}

static int check_groups(const struct bench *b, int64_t found[TC_FUSIONS])
{
  int faults = 0;
  for (int32_t i = 0; i < b->fused->n; i++) {
    const struct tc_fusion *x = &b->fused->group[i];
    const int32_t *part = b->fused->action + x->first;
    found[x->rule]++;
    if (x->mb == b->s->action[part[0]].mb && matches(b, x->rule, part, x->n) && is_right(b, x->rule, part, x->n))
      continue;
    printf("# %s at action %d\n", tc_fusion_rule[x->rule].name, part[x->n - 1]);
    faults += fuzz_fault(b->f, "a group is wrong");
  }
  if (count_missing(b) + count_short_runs(b)) faults += fuzz_fault(b->f, "a group is missing");
  return faults;
}

/* Of all groups that are right by the program alone, memory fits those that are left: the check of the
 * memory plan says so for them, and finds fault where others are left in. */
static int check_memory(const struct bench *b, int64_t *unfit)
{
  struct tc_err err = { 0 };
  struct tc_fusions *all = tc_fusions_new(b->g, b->s, b->m, b->coord, 0);
  const int rc = tc_arena_check(b->a, b->g, b->s, all, b->m, b->coord, &err);
  bool fits = all->n == b->fused->n;
  for (int32_t i = 0; i < all->n && fits; i++) fits = all->group[i].n == b->fused->group[i].n;
  *unfit += !fits;
  int faults = 0;
  if (fits != (rc == 0)) faults += fuzz_fault(b->f, "the check of the memory plan and the groups that fit");
  if (tc_arena_check(b->a, b->g, b->s, b->fused, b->m, b->coord, &err)) faults += fuzz_fault(b->f, err.text);
  tc_fusions_free(all);
  return faults;
}

/* ---- cases ------------------------------------------------------------------------------- */

struct count { int64_t programs, groups[TC_FUSIONS], unfit; int faults; };

static void check_rank(struct count *c, struct fuzz *f, const struct tc_program_opts *o, struct tc_mesh *m,
                       int rank)
{
  struct bench b = { .f = f, .m = m, .coord = m->coord + (size_t)rank * TC_AXES };
  struct tc_err err = { 0 };
  struct tc_program_opts mine = *o;
  mine.kind = fuzz_below(f, 5) ? TC_TRAIN : TC_EVAL;
  if (tc_program_new(&b.p, &mine, m, rank, NULL, NULL, &err) < 0) {
    if (strstr(err.text, "a fault of Tercio's")) c->faults += fuzz_fault(f, err.text);
    return;
  }
  b.g = b.p->graph, b.s = b.p->actions, b.a = b.p->arena, b.fused = b.p->fusions;
  c->programs++;
  c->faults += check_groups(&b, c->groups) + check_memory(&b, &c->unfit) + check_plays(&b);
  tc_program_free(b.p);
}

static void check_case(struct count *c, struct fuzz *f)
{
  static const int32_t node[16];
  struct draw d = { .f = f };
  struct tc_err err = { 0 };
  struct tc_config *cfg = NULL;
  struct tc_mesh *m = NULL;
  struct tc_annotation *rows = NULL;
  struct tc_program_opts o;
  const char *none[] = { NULL };
  char *argv[MOST_FLAGS + 1] = { (char *)(uintptr_t)"fuzz" };
  draw_case(&d);
  if (chance(&d, 3)) *d.rows = '\0';
  fuzz_write(f, d.rows, strlen(d.rows));
  flag(&d, "--parallel.annotations=%s", f->path);
  if (chance(&d, 3)) flag(&d, "--train.precision=bf16");
  memcpy(argv + 1, d.flag, (size_t)d.n_flags * sizeof *argv);
  int rc = tc_config_new(&cfg, d.n_flags + 1, argv, none, NULL, &err);
  TC_ASSERT(rc == 0);
  rc = tc_setup_mesh(&m, cfg, d.pp * d.dp * d.tp, node, 0, &err);
  if (!rc) rc = tc_setup_program(&o, cfg, m, &rows, &err);
  if (!rc) check_rank(c, f, &o, m, (int)fuzz_below(f, (size_t)m->world));
  tc_annotations_free(rows);
  tc_mesh_free(m);
  tc_config_free(cfg);
  draw_free(&d);
}

int main(int argc, char **argv)
{
  struct fuzz f;
  struct count c = { 0 };
  bool full = false, seeded = false, counted = false;
  fuzz_start(&f, argc, argv);
  for (int i = 1; i < argc; i++) {
    full |= !strcmp(argv[i], "--full");
    seeded |= !strcmp(argv[i], "--seed");
    counted |= !strcmp(argv[i], "--cases") || !strcmp(argv[i], "--only");
  }
  if (!counted) f.most_cases = full ? FULL : SHORT;
  if (!seeded) f.seed = *tc_env("SEED") ? strtoull(tc_env("SEED"), NULL, 10)
                                        : (uint64_t)tc_now_ns() / 1000 % 1000000;
  while (fuzz_more(&f)) check_case(&c, &f);
  printf("# SEED=%llu: %lld programs, %lld with groups that do not fit their memory\n",
         (unsigned long long)f.seed, (long long)c.programs, (long long)c.unfit);
  for (int r = 0; r < TC_FUSIONS; r++)
    printf("# %-28s %lld\n", tc_fusion_rule[r].name, (long long)c.groups[r]);
  ok(c.programs > 0, "programs are made of drawn layouts");
  is_int(c.faults, 0, "their groups are right, none is missing, and fused they compute the same");
  return done_testing();
}
