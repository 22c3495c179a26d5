/* blame.c - what a difference goes with.
 *
 * The layout is run again with one thing at a time as one rank has it: an axis of one rank, an option as by default, a row of
 * annotations left out. Where the difference is then gone, that is named. A layout that is impossible so says nothing. */
#include "src/prove/impl.h"

#include "src/files/files.h"
#include "src/program/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The options that lay out a run or change its arithmetic, and are not sizes of axes; ends with NULL. */
static const char *const options[] = { "parallel.sequence", "parallel.offload", "parallel.regather", "parallel.reduce",
  "parallel.keep", "parallel.unit", "parallel.overlap", "parallel.prefetch", "parallel.context", "parallel.zigzag",
  "parallel.schedule", "parallel.virtual_stages", "mesh.stages", "mesh.order", "train.recompute", "train.micro_batch",
  "parallel.head_chunk", "parallel.data", NULL };

/* Those that one rank has, too; without them it is another reference. */
static const char *const arithmetic[] = { "train.dropout", "data.documents", "train.grad_type", NULL };

struct blamer {
  struct tc_blame *out;
  const struct tc_reference *ref;
  const struct tc_proof_run *run;
  struct tc_config *defaults;
  void (*say)(void *ctx, const char *what);
  void *ctx;
};

/* Whether the layout equals one rank so; a failure or a refusal says nothing. */
static bool is_equal(const struct blamer *b, const struct tc_reference *ref, const struct tc_config *c, int world,
                     const char *what)
{
  struct tc_proof_run run = *b->run;
  struct tc_proof p;
  struct tc_err err;
  if (b->say) b->say(b->ctx, what);
  run.cfg = c;
  run.world = world;
  run.progress = NULL;
  const int rc = tc_prove(&p, ref, &run, &err);
  const bool equal = !rc && p.equal;
  tc_proof_free(&p);
  return equal;
}

static void blame(struct blamer *b, char *what)
{
  if (b->out->n < TC_BLAMES) b->out->what[b->out->n++] = what;
  else free(what);
}

static void set_size(struct tc_config *c, int set, int64_t size)
{
  char name[32];
  snprintf(name, sizeof name, "mesh.%s", tc_set_name[set]);
  tc_config_set_int(c, name, size);
}

/* Whether all is equal with the sizes of these axes, of which options give some sets, as 1. */
static bool is_equal_without(const struct blamer *b, const struct tc_mesh *m, unsigned axes, const char *what)
{
  struct tc_config c = *b->run->cfg;
  int world = b->run->world;
  for (int s = 0; s < TC_SETS; s++) {            /* as they are, where they were left to be found */
    if (!tc_set_has_option(s)) continue;
    const bool none = !(tc_set_axes[s] & ~axes);
    set_size(&c, s, none ? 1 : tc_mesh_size(m, tc_set_axes[s]));
    if (none && tc_set_is_factor(s)) world /= tc_mesh_size(m, tc_set_axes[s]);
  }
  if (axes & tc_axes_of(TC_ROLE_MODEL)) c.parallel_sequence = false;
  if (axes & tc_axes_of(TC_ROLE_STAGE)) {
    c.mesh_stages = b->defaults->mesh_stages;
    c.parallel_virtual_stages = b->defaults->parallel_virtual_stages;
  }
  return is_equal(b, b->ref, &c, world, what);
}

/* Axes one by one; where none makes a difference by itself, those that one collective has together. */
static int blame_axes(struct blamer *b, struct tc_err *err)
{
  struct tc_mesh *m;
  const int before = b->out->n;
  TC_TRY(tc_setup_axes(&m, b->run->cfg, b->run->world, b->run->node_of_rank, 0, err));
  for (int alone = 1; alone >= 0 && b->out->n == before; alone--)
    for (int s = 0; s < TC_SETS; s++) {
      const int size = tc_mesh_size(m, tc_set_axes[s]);
      if (tc_set_has_option(s) != alone || size < 2 || !m->group[s].named) continue;
      char *what = tc_sprintf(alone ? "mesh.%s = %d (with 1 all is equal)" : "%s, %d ranks (with 1 all is equal)",
                              tc_set_name[s], size);
      if (is_equal_without(b, m, tc_set_axes[s], what)) blame(b, what);
      else free(what);
    }
  tc_mesh_free(m);
  return 0;
}

static bool has(const char *const *list, const char *name)
{
  while (*list && strcmp(*list, name) != 0) list++;
  return *list != NULL;
}

static bool is_equal_beside_its_own(const struct blamer *b, const struct tc_config *c, const char *what)
{
  struct tc_proof_run run = *b->run;
  struct tc_reference *ref;
  struct tc_err err;
  run.cfg = c;
  run.progress = NULL;
  if (tc_reference_new(&ref, &run, &err) < 0) return false;
  const bool equal = is_equal(b, ref, c, run.world, what);
  tc_reference_free(ref);
  return equal;
}

static void blame_options(struct blamer *b)
{
  struct tc_config_change change;
  for (int i = -1; (i = tc_config_next_change(b->run->cfg, b->defaults, i + 1, &change)) >= 0;) {
    const bool own = has(arithmetic, change.name);
    if (!own && !has(options, change.name)) continue;
    struct tc_config c = *b->run->cfg;
    tc_config_copy(&c, b->defaults, i);
    char *what = tc_sprintf("%s = %s (with %s all is equal)", change.name, change.was, change.is);
    if (own ? is_equal_beside_its_own(b, &c, what) : is_equal(b, b->ref, &c, b->run->world, what)) blame(b, what);
    else free(what);
  }
}

/* A file of annotations, line by line, and a temporary one with some of its rows. */
struct rows { char **line; bool *left_out; int n, cap; char *path; int fd; };

static bool is_row(const char *line)
{
  const char *word = line + strspn(line, " \t");
  return *word && !strchr("#\r\n", *word);
}

static int read_rows(struct rows *r, const char *path, struct tc_err *err)
{
  const char *dir = getenv("TMPDIR");
  struct tc_lines *f;
  char *line;
  size_t len;
  int rc;
  TC_TRY(tc_lines_open(&f, path, "annotation file", err));
  while ((rc = tc_lines_next(f, &line, &len, err)) > 0) TC_APPEND(r->line, r->n, r->cap, tc_strdup(line));
  tc_lines_close(f);
  r->left_out = tc_calloc((size_t)r->n + 1, sizeof *r->left_out);
  if (!rc) rc = r->fd = tc_scratch_file(dir && *dir ? dir : "/tmp", err);
  r->path = tc_sprintf("/dev/fd/%d", r->fd);
  return TC_MIN(rc, 0);
}

static void free_rows(struct rows *r)
{
  for (int i = 0; i < r->n; i++) free(r->line[i]);
  if (r->fd >= 0) close(r->fd);
  TC_FREE(r->line, r->left_out, r->path);
}

/* A row without effect: of its three words the placement becomes R, so that the file still speaks of the axis (then no
 * built-in rows do); with four placements it is left out. */
static char *without(const char *line)
{
  char pattern[200], axes[100], place[100], more[2];
  const int n = sscanf(line, "%199s %99s %99s %1s", pattern, axes, place, more);
  return n == 3 || (n == 4 && *more == '#') ? tc_sprintf("%s %s R", pattern, axes) : tc_strdup("");
}

/* Whether all is equal with the rows that are not left out. */
static bool is_equal_with_rest(const struct blamer *b, const struct rows *r, const char *what)
{
  struct tc_config c = *b->run->cfg;
  bool written = ftruncate(r->fd, 0) == 0 && lseek(r->fd, 0, SEEK_SET) == 0;
  for (int i = 0; i < r->n && written; i++) {
    char *line = r->left_out[i] ? without(r->line[i]) : tc_strdup(r->line[i]);
    written = dprintf(r->fd, "%s\n", line) > 0;
    free(line);
  }
  if (!written) return false;
  c.parallel_annotations = r->path;
  return is_equal(b, b->ref, &c, b->run->world, what);
}

static void blame_row(struct blamer *b, const struct rows *r, int i, const char *without)
{
  const char *word = r->line[i] + strspn(r->line[i], " \t");
  blame(b, tc_sprintf("%s:%d: %.*s (without %s all is equal)", b->run->cfg->parallel_annotations, i + 1,
                      (int)strcspn(word, "#\r\n"), word, without));
}

/* One row at a time; where none makes a difference by itself, those that cannot be put back after all have been left out. */
static void try_rows(struct blamer *b, struct rows *r)
{
  const int before = b->out->n;
  for (int i = 0; i < r->n; i++) {
    if (!is_row(r->line[i])) continue;
    r->left_out[i] = true;
    if (is_equal_with_rest(b, r, "a row of annotations less")) blame_row(b, r, i, "this row");
    r->left_out[i] = false;
  }
  if (b->out->n > before) return;
  for (int i = 0; i < r->n; i++) r->left_out[i] = is_row(r->line[i]);
  if (!is_equal_with_rest(b, r, "no rows of annotations")) return;
  for (int i = 0; i < r->n; i++) {
    if (!r->left_out[i]) continue;
    r->left_out[i] = false;
    r->left_out[i] = !is_equal_with_rest(b, r, "some rows of annotations");
  }
  for (int i = 0; i < r->n; i++)
    if (r->left_out[i]) blame_row(b, r, i, "these rows");
}

static int blame_rows(struct blamer *b, struct tc_err *err)
{
  struct rows r = { .fd = -1 };
  if (!*b->run->cfg->parallel_annotations) return 0;
  const int rc = read_rows(&r, b->run->cfg->parallel_annotations, err);
  if (!rc) try_rows(b, &r);
  free_rows(&r);
  return rc;
}

int tc_blame_find(struct tc_blame *out, const struct tc_reference *ref, const struct tc_proof_run *run,
                  void (*say)(void *ctx, const char *what), void *ctx, struct tc_err *err)
{
  char *none[] = { (char *)(uintptr_t)"prove" };
  struct blamer b = { .out = out, .ref = ref, .run = run, .say = say, .ctx = ctx };
  *out = (struct tc_blame){ .n = 0 };
  TC_TRY(tc_config_new(&b.defaults, 1, none, err));
  int rc = blame_rows(&b, err);
  if (!rc) rc = blame_axes(&b, err);
  if (!rc) blame_options(&b);
  tc_config_free(b.defaults);
  return rc;
}

void tc_blame_free(struct tc_blame *b)
{
  for (int i = 0; i < b->n; i++) free(b->what[i]);
  b->n = 0;
}
