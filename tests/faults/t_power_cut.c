/* t_power_cut.c [--full] [SEED] - what a power cut leaves on disk, at any moment of a number of
 * saves, still holds every checkpoint that was reported.
 *
 * The shim records what ranks do to a folder. A model of a disk replays the record: a file's data
 * is safe once that file was fsynced, a name (made, moved, removed) once its folder was. After
 * each operation the disk is laid out in the worst case, in which all that isn't safe is lost,
 * and in some cases by chance, in which any part of it was written (writes torn, names out of
 * order). Then the folder is taken up as by the next start. The model without a cut must be the
 * folder itself: that shows the record to be whole. */
#include <fcntl.h>

#include "tests/faults/faults.h"
#include "tests/faults/counters.h"
#include "tests/unit/verify_step.h"

/* ---- the model of a disk ---------------------------------------------------------- */

struct bytes { char *data; int64_t n; };
struct name { char *name; int node; };
struct names { struct name *at; int n, cap; };

enum { LINK, UNLINK, RENAME };
struct change { int what, node; char *name, *to; };

/* now: as programs see it; safe: what a cut can't take. todo: file operations (indices of the
 * record), or changes of names, since then. */
struct node {
  bool folder;
  struct bytes now, safe;
  struct names here, kept;
  int *todo, n_todo, cap_todo;
  struct change *change; int n_change, cap_change;
};

struct disk {
  const char *root;
  const struct shim_record *rec;
  struct node *node; int n, cap;
  int fd[1024];
};

static int new_node(struct disk *d, bool folder)
{
  TC_GROW(d->node, d->n, d->cap);
  memset(&d->node[d->n], 0, sizeof *d->node);
  d->node[d->n].folder = folder;
  return d->n++;
}

static void copy_bytes(struct bytes *to, const struct bytes *from)
{
  to->data = tc_realloc(to->data, (size_t)from->n + 1);
  if (from->n) memcpy(to->data, from->data, (size_t)from->n);
  to->n = from->n;
}

static void set_size(struct bytes *b, int64_t n)
{
  b->data = tc_realloc(b->data, (size_t)n + 1);
  if (n > b->n) memset(b->data + b->n, 0, (size_t)(n - b->n));
  b->n = n;
}

/* `bytes` of a WRITE (the whole: r->bytes), or its new size. */
static void apply_data(struct bytes *b, const struct shim_record *r, int64_t bytes)
{
  if (r->op == OP_SIZE) {
    set_size(b, r->bytes);
    return;
  }
  if (bytes <= 0) return;
  if (r->offset + bytes > b->n) set_size(b, r->offset + bytes);
  memcpy(b->data + r->offset, r->data, (size_t)bytes);
}

static int find_name(const struct names *l, const char *name)
{
  for (int i = 0; i < l->n; i++)
    if (strcmp(l->at[i].name, name) == 0) return i;
  return -1;
}

static void drop_name(struct names *l, const char *name)
{
  int i = find_name(l, name);
  if (i >= 0) {
    free(l->at[i].name);
    l->at[i] = l->at[--l->n];
  }
}

static void put_name(struct names *l, const char *name, int node)
{
  drop_name(l, name);
  TC_GROW(l->at, l->n, l->cap);
  l->at[l->n++] = (struct name){ tc_strdup(name), node };
}

/* A change that no longer fits (its name is another's) has no effect. */
static void apply_change(struct names *l, const struct change *c)
{
  int i = find_name(l, c->name);
  if (c->what == LINK) {
    put_name(l, c->name, c->node);
  } else if (i >= 0 && l->at[i].node == c->node) {
    drop_name(l, c->name);
    if (c->what == RENAME) put_name(l, c->to, c->node);
  }
}

static void change_names(struct disk *d, int folder, struct change c)
{
  struct node *f = &d->node[folder];
  c.name = tc_strdup(c.name);
  if (c.to) c.to = tc_strdup(c.to);
  apply_change(&f->here, &c);
  TC_GROW(f->change, f->n_change, f->cap_change);
  f->change[f->n_change++] = c;
}

/* The folder that holds `path`, and the last part of it; -1: not there. The root is node 0. */
static int folder_of(const struct disk *d, const char *path, char last[SHIM_PATH])
{
  char rest[SHIM_PATH], *save = NULL;
  int at = 0;
  snprintf(rest, sizeof rest, "%s", path + strlen(d->root));
  char *part = strtok_r(rest, "/", &save);
  *last = '\0';
  while (part) {
    char *next = strtok_r(NULL, "/", &save);
    if (!next) {
      snprintf(last, SHIM_PATH, "%s", part);
      return at;
    }
    int i = find_name(&d->node[at].here, part);
    TC_ASSERT(i >= 0);
    at = d->node[at].here.at[i].node;
    part = next;
  }
  return at;
}

static int node_of(const struct disk *d, const char *path)
{
  char last[SHIM_PATH];
  int f = folder_of(d, path, last);
  if (!*last) return f;
  int i = find_name(&d->node[f].here, last);
  TC_ASSERT(i >= 0);
  return d->node[f].here.at[i].node;
}

static void make_safe(struct disk *d, int k)
{
  struct node *n = &d->node[k];
  for (int i = 0; i < n->n_change; i++) {
    apply_change(&n->kept, &n->change[i]);
    free(n->change[i].name);
    free(n->change[i].to);
  }
  n->n_change = 0;
  copy_bytes(&n->safe, &n->now);
  n->n_todo = 0;
}

static void replay(struct disk *d, int i)
{
  const struct shim_record *r = &d->rec[i];
  char last[SHIM_PATH], to[SHIM_PATH];
  int f = r->path ? folder_of(d, r->path, last) : -1;
  switch (r->op) {
  case OP_CREATE: case OP_MKDIR: {
    int k = new_node(d, r->op == OP_MKDIR);
    change_names(d, f, (struct change){ .what = LINK, .node = k, .name = last });
    if (r->op == OP_CREATE) d->fd[r->fd] = k;
    break;
  }
  case OP_OPEN: d->fd[r->fd] = node_of(d, r->path); break;
  case OP_WRITE: case OP_SIZE: {
    struct node *n = &d->node[d->fd[r->fd]];
    apply_data(&n->now, r, r->bytes);
    TC_GROW(n->todo, n->n_todo, n->cap_todo);
    n->todo[n->n_todo++] = i;
    break;
  }
  case OP_SYNC: make_safe(d, d->fd[r->fd]); break;
  case OP_RENAME: {
    int k = node_of(d, r->path), g = folder_of(d, r->to, to);
    if (f == g) {
      change_names(d, f, (struct change){ .what = RENAME, .node = k, .name = last, .to = to });
    } else {
      change_names(d, g, (struct change){ .what = LINK, .node = k, .name = to });
      change_names(d, f, (struct change){ .what = UNLINK, .node = k, .name = last });
    }
    break;
  }
  case OP_UNLINK: case OP_RMDIR:
    change_names(d, f, (struct change){ .what = UNLINK, .node = node_of(d, r->path),
                                        .name = last });
    break;
  default: break;
  }
}

/* ---- laying a disk out ------------------------------------------------------------ */

enum { WORST, CHANCE, NO_CUT };

static void lay_file(const struct disk *d, const struct node *n, const char *path, int how)
{
  struct bytes b = {0};
  copy_bytes(&b, how == NO_CUT ? &n->now : &n->safe);
  for (int i = 0; how == CHANCE && i < n->n_todo; i++) {
    const struct shim_record *r = &d->rec[n->todo[i]];
    uint32_t dice = fx_random(4);
    if (dice < 2) apply_data(&b, r, r->bytes);
    else if (dice == 2 && r->op == OP_WRITE)
      apply_data(&b, r, fx_random((uint32_t)(r->bytes / 512 + 1)) * 512);
  }
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
  TC_ASSERT(fd >= 0 && write(fd, b.data, (size_t)b.n) == b.n);
  close(fd);
  free(b.data);
}

static void lay_out(const struct disk *d, int k, const char *path, int how)
{
  const struct node *n = &d->node[k];
  struct names l = {0};
  if (!n->folder) {
    lay_file(d, n, path, how);
    return;
  }
  TC_ASSERT(mkdir(path, 0777) == 0);
  const struct names *from = how == NO_CUT ? &n->here : &n->kept;
  for (int i = 0; i < from->n; i++) put_name(&l, from->at[i].name, from->at[i].node);
  for (int i = 0; how == CHANCE && i < n->n_change; i++)
    if (fx_random(2)) apply_change(&l, &n->change[i]);
  for (int i = 0; i < l.n; i++) {
    char *sub = tc_sprintf("%s/%s", path, l.at[i].name);
    lay_out(d, l.at[i].node, sub, how);
    free(sub);
    free(l.at[i].name);
  }
  free(l.at);
}

/* ---- what was promised ------------------------------------------------------------ */

/* From mark k on: steps that must load, each with one of two data sets; salt 0: it, or one that is
 * newer. */
struct promise { int64_t step; uint32_t salt, or_salt; };
enum { PROMISES = 4, MARKS = 32 };
static struct promise promised[MARKS][PROMISES];
static int n_marks = 1;           /* mark 0: nothing */

static void promise(const struct promise *p, int n)
{
  TC_ASSERT(n_marks < MARKS && n <= PROMISES);
  if (n) memcpy(promised[n_marks], p, (size_t)n * sizeof *p);
  shim_mark(n_marks++);
}
#define PROMISE(...) do { const struct promise p_[] = { __VA_ARGS__ }; \
    promise(p_, (int)(sizeof p_ / sizeof *p_)); } while (0)

static char *sub_dir;             /* the checkpoints' folder below the root */

static void save(const char *dir, int64_t step, uint32_t salt, int world, int keep)
{
  TC_ASSERT(fx_save(dir, step, salt, world, keep) == 0);
}

/* The saves that are recorded. Before one that may take an older one away only what must stay is
 * promised. */
static void story(const char *dir, int world)
{
  save(dir, 1, 1, world, 0);
  PROMISE({ 1, 1, 1 });
  save(dir, 2, 2, world, 0);
  PROMISE({ 1, 1, 1 }, { 2, 2, 2 });
  PROMISE({ 1, 1, 1 }, { 2, 2, 102 });           /* replaced */
  save(dir, 2, 102, world, 0);
  PROMISE({ 1, 1, 1 }, { 2, 102, 102 });
  PROMISE({ 2, 102, 102 });                      /* two are kept */
  save(dir, 3, 3, world, 2);
  PROMISE({ 2, 102, 102 }, { 3, 3, 3 });
  struct fx_save bad = { .dir = dir, .step = 4, .salt = 4, .world = 2, .spoil = 1 };
  fx_threads(&bad, fx_rank_save);                /* fails, takes nothing away */
  TC_ASSERT(bad.status[0] < 0);
  PROMISE({ 3, 0, 0 });                          /* one is kept */
  save(dir, 5, 5, world, 1);
  PROMISE({ 5, 5, 5 });
  save(dir, 8, 8, world, 0);
  PROMISE({ 5, 5, 5 }, { 8, 8, 8 });
  PROMISE({ 5, 5, 5 });                          /* back from 8, which steps aside */
  save(dir, 7, 7, world, 0);
  PROMISE({ 5, 5, 5 }, { 7, 7, 7 });
}

/* ---- what must hold --------------------------------------------------------------- */

static int n_wrong, n_loaded;

static void wrong(int at, int how, const char *what, const char *detail)
{
  if (n_wrong++ < 20)
    printf("# after operation %d, %s: %s %s\n", at, how == WORST ? "worst case" : "by chance",
           what, detail);
}

static bool holds(struct tc_ckpt *c, uint32_t salt)
{
  return fx_read_all(c, salt, NULL) == 1;
}

static void must_load(const char *dir, const struct promise *p, int at, int how)
{
  char *path = tc_ckpt_step_path(dir, p->step);
  struct tc_ckpt *c = NULL;
  struct tc_err err = {0};
  if (verify_step(path, true, &err) < 0 || tc_ckpt_open(&c, path, &err) < 0)
    wrong(at, how, "a reported step is lost:", err.text);
  else if (!holds(c, p->salt) && !holds(c, p->or_salt)) wrong(at, how, "other data in", path);
  else n_loaded++;
  tc_ckpt_close(c);
  free(path);
}

static void must_hold(const char *dir, const struct promise *p, int at, int how)
{
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_ckpt *c = NULL;
  struct tc_err err = {0};
  int64_t *steps = NULL, newest = 0;
  int n = tc_ckpt_list(dir, &steps, NULL);
  for (int i = 0; i < n; i++) {
    char *path = tc_ckpt_step_path(dir, steps[i]);
    if (verify_step(path, true, &err) < 0) wrong(at, how, "bad:", err.text);
    free(path);
  }
  free(steps);
  for (int i = 0; i < PROMISES; i++) newest = TC_MAX(newest, p[i].step);
  if (tc_ckpt_resume(&c, dir, -1, self, NULL, &err) < 0) wrong(at, how, "no resume:", err.text);
  if (newest && !c) wrong(at, how, "nothing to resume from", "");
  if (c) {
    int64_t step = tc_ckpt_meta(c)->step;
    if (step < newest) wrong(at, how, "resumes from an older step", "");
    if (!holds(c, (uint32_t)step) && !holds(c, (uint32_t)step + 100))
      wrong(at, how, "resumes from other data", "");
  }
  tc_ckpt_close(c);
  tc_comm_free(self);
  for (int i = 0; i < PROMISES; i++)             /* after the resume's tidying */
    if (p[i].salt) must_load(dir, &p[i], at, how);
}

static void one_cut(const struct disk *d, const char *scratch, const struct promise *p, int at,
                    int how)
{
  char *dir = tc_sprintf("%s/%s", scratch, sub_dir);
  sh("rm -rf '%s'", scratch);
  lay_out(d, 0, scratch, how);
  must_hold(dir, p, at, how);
  if (at % 64 == 0 && fx_save(dir, 50, 50, 2, 0) < 0) wrong(at, how, "the next save fails", "");
  free(dir);
}

/* Records the story of `world` ranks and cuts the power after each operation. */
static void cut_everywhere(const char *top, int world, int by_chance)
{
  char *root = tc_sprintf("%s/real%d", top, world), *scratch = tc_sprintf("%s/scratch", top);
  char *dir = tc_sprintf("%s/%s", root, sub_dir);
  struct disk d = { .root = root };
  int n, mark = 0, cuts = 0, was = n_wrong;
  TC_ASSERT(mkdir(root, 0777) == 0);
  shim_arm(root, 0, 0, SHIM_NONE);
  shim_ctl()->dry_sync = true;
  n_marks = 1;
  memset(promised, 0, sizeof promised);
  shim_record_on(true);
  story(dir, world);
  shim_record_on(false);
  d.rec = shim_records(&n);
  shim_arm(scratch, 0, 0, SHIM_NONE);            /* no fsync takes its time there */
  new_node(&d, true);
  n_loaded = 0;
  for (int i = 0; i < n; i++) {
    if (d.rec[i].op == OP_MARK) mark = d.rec[i].fd;
    if (d.rec[i].op == OP_OPEN || d.rec[i].op == OP_CLOSE) {
      if (d.rec[i].op == OP_OPEN) replay(&d, i);
      continue;                   /* the disk is as it was */
    }
    replay(&d, i);
    one_cut(&d, scratch, promised[mark], i, WORST);
    for (int k = 0; k < by_chance; k++) one_cut(&d, scratch, promised[mark], i, CHANCE);
    cuts += 1 + by_chance;
  }
  ok(n_wrong == was && cuts > 200, "%d ranks: %d operations, power cut %d times, %d reported "
     "checkpoints loaded, %d wrong", world, n, cuts, n_loaded, n_wrong - was);
  sh("rm -rf '%s'", scratch);
  lay_out(&d, 0, scratch, NO_CUT);
  char *cmd = tc_sprintf("diff -r '%s' '%s' | sed 's/^/# /' | grep .", root, scratch);
  ok(system(cmd) != 0, "%d ranks: the record gives the folder itself, byte by byte", world);
  free(cmd);
  free(dir);
  free(scratch);
  free(root);
}

int main(int argc, char **argv)
{
  bool full = argc > 1 && strcmp(argv[1], "--full") == 0;
  fx_state = argc > 1 + full ? (uint32_t)strtoul(argv[1 + full], NULL, 10) : (uint32_t)test_seed(full);
  sub_dir = "run/ckpt";           /* neither folder is there before */
  alarm(full ? 36000 : 1100);
  const char *top = fx_folder();
  if (!freopen("/dev/null", "w", stderr)) return 1;   /* each state is warned of */
  if (full) cut_everywhere(top, 1, 4);
  cut_everywhere(top, 2, full ? 8 : 0);
  fx_clean();
  return done_testing();
}
