/* t_fusion.c - groups of calls that a device may fuse, for drawn layouts: each is right for the memory plan,
 * and none that would be is missing.
 *
 * t_fusion.t [--full | --cases N | --seconds S] [--only CASE] [--seed N]; else SEED, or 1
 *
 * Programs are played with groups fused (fusion_play.h). What may be a group is decided a second time by
 * comparing the bytes of all operands with each other. Then programs are changed so that a group is none. */
#include "tests/unit/schedule/fusion_play.h"

enum { SHORT = 400, FULL = 20000 };

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
    if (!is_in(part, n, k) && !is_idle(b, k)
        && (any_meet(b, k, false, true, part[i], true, true) || any_meet(b, k, true, false, part[i], false, true)))
      return false;
  return true;
}

/* A later part may write before the earlier one reads. */
static bool may_overlap(const struct bench *b, const struct tc_fusion_rule *r, bool first, int32_t x, int32_t y)
{
  const int out = first_output(b, x), over = first_output(b, y);
  if (any_meet(b, x, true, false, y, false, true)) return false;
  if ((first && (r->flags & TC_FUSION_UNREAD)) || !any_meet(b, x, false, true, y, false, true)) return true;
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
    for (int k = i + 1; k < n; k++) right &= may_overlap(b, &tc_fusion_rule[rule], i == 0, part[i], part[k]);
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

/* Of activation functions, GELU by tanh is all that devices have in a product. */
static bool is_other_function(const struct tc_node *n)
{
  return (n->op == TC_OP_ACT || n->op == TC_OP_ACT_BWD) && n->attr.act != TC_FN_GELU_TANH;
}

/* The parts have the ops of the rule's first ones and what links them. */
static bool matches(const struct bench *b, int rule, const int32_t *part, int n)
{
  const struct tc_fusion_rule *r = &tc_fusion_rule[rule];
  const struct tc_node *first = node_of(b, part[0]), *last = node_of(b, part[n - 1]);
  bool match = n <= r->n;
  for (int i = 0; i < n && match && r->link != TC_FUSION_RUN; i++)
    match = node_of(b, part[i])->op == r->op[i] && (r->link != TC_FUSION_CHAIN || node_of(b, part[i])->head)
            && !is_other_function(node_of(b, part[i]));
  switch (r->link) {
  case TC_FUSION_READS:
    for (int i = 1; i < n && match; i++)
      match = tc_in(b->g, node_of(b, part[i]), 0) == tc_out(b->g, node_of(b, part[i - 1]), 0);
    return match && (!(r->flags & TC_FUSION_UNREAD) || count_readers(b, tc_out(b->g, first, 0)) == 1);
  case TC_FUSION_ADDS:
    match = match && tc_in(b->g, last, 1) == tc_out(b->g, first, 0);
    return match && (!(r->flags & TC_FUSION_UNREAD) || count_readers(b, tc_out(b->g, first, 0)) == 1);
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

/* The nearest action that may follow n parts in their micro-batch. -1: none near. */
static int32_t next_part(const struct bench *b, int rule, const int32_t *part, int n)
{
  const struct tc_fusion_rule *r = &tc_fusion_rule[rule];
  const bool chain = r->link == TC_FUSION_CHAIN;
  const int32_t end = TC_MIN(b->s->n, part[0] + TC_FUSION_REACH + !chain);
  int32_t more[TC_FUSION_OPS];
  memcpy(more, part, (size_t)n * sizeof *part);
  for (int32_t i = part[n - 1] + 1; i < end; i++) {
    more[n] = i;
    if (node_of(b, i)->op == r->op[n] && b->s->action[i].mb == b->s->action[part[0]].mb
        && b->s->action[i].kind == TC_RUN && (chain || matches(b, rule, more, n + 1)))
      return i;
  }
  return -1;
}

/* The nearest action before the second part, k, that is linked with it. -1: none near. */
static int32_t first_part(const struct bench *b, int rule, int32_t k)
{
  for (int32_t i = k - 1; i >= 0 && i >= k - TC_FUSION_REACH; i--) {
    const int32_t pair[2] = { i, k };
    if (b->s->action[i].mb == b->s->action[k].mb && b->s->action[i].kind == TC_RUN && matches(b, rule, pair, 2)) return i;
  }
  return -1;
}

/* Groups of products and of the loss head that are right, but not in the list. */
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
        part[0] = first_part(b, r, k);
        part[n++] = k;
      }
      for (; n < rule->n && part[0] >= 0 && part[n - 1] >= 0; n++) part[n] = next_part(b, r, part, n);
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
    const struct tc_fusion_rule *rule = &tc_fusion_rule[x->rule];
    found[x->rule]++;
    if ((x->n == rule->n || rule->link == TC_FUSION_RUN) && x->mb == b->s->action[part[0]].mb && matches(b, x->rule, part, x->n) && is_right(b, x->rule, part, x->n))
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
  for (int32_t i = 0; i < all->n; i++)
    if ((tc_fusion_rule[all->group[i].rule].flags & TC_FUSION_EXTEND)
        && !is_listed(b, all->group[i].rule, all->action + all->group[i].first, all->group[i].n))
      faults += fuzz_fault(b->f, "memory does not fit a group that it is planned for");
  tc_fusions_free(all);
  return faults;
}

/* ---- groups that are none ----------------------------------------------------------------- */

/* The program is changed: the group must not be found. */
static int check_gone(const struct bench *b, struct tc_fusion x, const char *what)
{
  struct bench changed = *b;
  struct tc_fusions *now = tc_fusions_new(b->g, b->s, b->m, b->coord, 0);
  changed.fused = now;
  const bool found = is_listed(&changed, x.rule, b->fused->action + x.first, x.n);
  tc_fusions_free(now);
  return found ? printf("# %s\n", tc_fusion_rule[x.rule].name), fuzz_fault(b->f, what) : 0;
}

static void freeze_again(struct tc_graph *g)
{
  free(g->root);
  g->root = NULL;
  tc_graph_freeze(g);
}

static int break_group(const struct bench *b, struct tc_fusion x)
{
  struct tc_graph *g = b->p->graph;
  const int32_t *part = b->fused->action + x.first;
  struct tc_action *first = &b->p->actions->action[part[0]];
  const struct tc_node *n = node_of(b, part[0]), *last = node_of(b, part[x.n - 1]);
  const int32_t in = tc_in(g, n, 0), out = tc_out(g, last, 0), was = g->tensor[out].overwrites;
  int faults = 0;
  if (tc_tensor_local_bytes(&g->tensor[in], b->m, b->coord) > 0
      && tc_tensor_local_bytes(&g->tensor[out], b->m, b->coord) > 0 && g->tensor[in].base < 0
      && g->tensor[out].base < 0) {                  /* a view overwrites nothing */
    g->tensor[out].overwrites = in;
    freeze_again(g);
    faults += check_gone(b, x, "the last part overwrites what the first one reads");
    g->tensor[out].overwrites = was;
    freeze_again(g);
  }
  if (b->s->n_mb > 1) {
    first->mb = (first->mb + 1) % b->s->n_mb;
    faults += check_gone(b, x, "parts are of two micro-batches");
    first->mb = x.mb;
  }
  if (tc_fusion_rule[x.rule].flags & TC_FUSION_UNREAD) {
    int32_t *arg = &g->arg[g->node[g->order[g->n_order - 1]].in], old = *arg;
    *arg = tc_out(g, n, 0);
    faults += check_gone(b, x, "another node reads what only the last part may read");
    *arg = old;
  }
  struct tc_node *second = &g->node[node_of(b, part[1])->id];
  if (second->op == TC_OP_ACT || second->op == TC_OP_ACT_BWD) {
    second->attr.act = TC_FN_RELU2;
    faults += check_gone(b, x, "the function is another than GELU by tanh");
    second->attr.act = TC_FN_GELU_TANH;
  }
  if (tc_fusion_rule[x.rule].link == TC_FUSION_RUN && last->op == n->op) {
    int32_t *scale = &g->arg[last->in + 1], old = *scale;
    *scale = tc_out(g, n, 0);
    faults += check_gone(b, x, "an update reads what another one writes");
    *scale = old;
  }
  return faults;
}

/* One group of each rule. */
static int check_broken(const struct bench *b)
{
  bool seen[TC_FUSIONS] = { false };
  int faults = 0;
  for (int32_t i = 0; i < b->fused->n; i++) {
    const struct tc_fusion x = b->fused->group[i];
    if (!seen[x.rule]) faults += break_group(b, x);
    seen[x.rule] = true;
  }
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
    /* What passes do wrong is fuzz_place's to count. */
    if (strstr(err.text, "a fault of Tercio's")) c->faults += fuzz_fault(f, err.text) && strstr(err.text, "arena");
    return;
  }
  b.g = b.p->graph, b.s = b.p->actions, b.a = b.p->arena, b.fused = b.p->fusions;
  c->programs++;
  c->faults += check_groups(&b, c->groups) + check_memory(&b, &c->unfit) + check_plays(&b);
  c->faults += check_broken(&b);
  tc_program_free(b.p);
}

static void check_case(struct count *c, struct fuzz *f)
{
  const int faults = c->faults;
  static const int32_t node[16];
  struct draw d = { .f = f };
  struct tc_err err = { 0 };
  struct tc_config *cfg = NULL;
  struct tc_mesh *m = NULL;
  struct tc_annotation *rows = NULL;
  struct tc_program_opts o;
  char *argv[MOST_FLAGS + 1] = { (char *)(uintptr_t)"fuzz" };
  draw_case(&d);
  if (chance(&d, 3)) *d.rows = '\0';
  fuzz_write(f, d.rows, strlen(d.rows));
  flag(&d, "--parallel.annotations=%s", f->path);
  if (chance(&d, 3)) flag(&d, "--train.precision=bf16");
  memcpy(argv + 1, d.flag, (size_t)d.n_flags * sizeof *argv);
  int rc = tc_config_new(&cfg, d.n_flags + 1, argv, &err);
  TC_ASSERT(rc == 0);
  rc = tc_setup_mesh(&m, cfg, d.pp * d.dp * d.tp, node, 0, &err);
  if (!rc) rc = tc_setup_program(&o, cfg, m, &rows, &err);
  if (!rc) check_rank(c, f, &o, m, (int)fuzz_below(f, (size_t)m->world));
  for (int i = 0; i < d.n_flags && c->faults > faults; i++) printf("%s %s", i ? "" : "#", d.flag[i]);
  if (c->faults > faults) printf("\n# rows: %s\n", d.rows);
  tc_annotations_free(rows);
  tc_mesh_free(m);
  tc_config_free(cfg);
  draw_free(&d);
}

int main(int argc, char **argv)
{
  struct fuzz f;
  struct count c = { 0 };
  bool full = false, counted = false, only = false;
  setvbuf(stdout, NULL, _IOLBF, 0);
  fuzz_start(&f, argc, argv);
  for (int i = 1; i < argc; i++) {
    full |= !strcmp(argv[i], "--full");
    only |= !strcmp(argv[i], "--only");
    counted |= only || !strcmp(argv[i], "--cases");
  }
  if (!counted) f.most_cases = full ? FULL : SHORT;
  while (fuzz_more(&f)) check_case(&c, &f);
  printf("# SEED=%llu: %lld programs, %lld with groups that do not fit their memory\n",
         (unsigned long long)f.seed, (long long)c.programs, (long long)c.unfit);
  for (int r = 0; r < TC_FUSIONS; r++)
    printf("# %-28s %lld\n", tc_fusion_rule[r].name, (long long)c.groups[r]);
  ok(c.programs > 0 || only, "programs are made of drawn layouts");
  is_int(c.faults, 0, "their groups are right, none is missing, and fused they compute the same");
  return done_testing();
}
