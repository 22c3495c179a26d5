/* t_resume.c - a checkpoint of other libraries, and the order of samples of its run. Options that differ are f_options'. */
#include <fcntl.h>
#include <unistd.h>

#include "src/train/parts.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/coll/drawn_table.h"
#include "tests/unit/stderr_text.h"

static const struct tc_config plain = { .train_steps = 10 };

/* A checkpoint of other libraries is resumed with a warning; one that does not name them without. */
static void test_versions(void)
{
  struct tc_train t = { .run.cfg = &plain };
  struct tc_ckpt_meta meta = { .version = "", .data = "", .stack = "" };
  t.run.stack = tc_strdup("gcc 2, HDF5 2");
  stderr_text();
  tc_resume_say(&t, &meta);
  meta.stack = t.run.stack;
  tc_resume_say(&t, &meta);
  is_str(stderr_text(), "", "the same libraries, and unknown ones");
  meta.stack = "gcc 1, HDF5 2";
  tc_resume_say(&t, &meta);
  is_str(stderr_text(), "tercio: warning: the checkpoint was saved with other versions (gcc 1, HDF5 2; now gcc 2, "
         "HDF5 2): from here on losses may differ in their last digits\n", "other ones");
  free(t.run.stack);
}

/* Four ranks of dp on nodes: what identifies their division, and a resumed run on another one. */
static void test_nodes(void)
{
  static const struct { int32_t was[4], is[4]; bool partial, says; } row[] = {
    { { 0, 0, 1, 1 }, { 0, 0, 1, 1 }, true, false },  { { 0, 0, 1, 1 }, { 1, 1, 0, 0 }, true, false },
    { { 0, 0, 1, 1 }, { 0, 0, 0, 1 }, true, true },   { { 0, 0, 1, 1 }, { 0, 0, 0, 0 }, true, true },
    { { 0, 0, 0, 0 }, { 0, 0, 1, 1 }, true, true },   { { 0, 0, 1, 1 }, { 0, 1, 2, 3 }, true, true },
    { { 0, 0, 0, 0 }, { 0, 1, 2, 3 }, true, true },   { { 0, 0, 1, 1 }, { 0, 0, 0, 1 }, false, false },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    const struct tc_mesh_want want = { .order = TC_TP_DP_PP, .size = { [TC_SET_PP] = 1, [TC_SET_TP] = 1 } };
    struct tc_train t = { .run.cfg = &plain, .run.opts.system = &tc_systems[0] };
    char *nodes[2] = { NULL };
    struct tc_err err;
    for (int now = 0; now < 2; now++) {
      struct tc_mesh *m;
      is_int(tc_mesh_new(&m, 4, now ? row[i].is : row[i].was, &want, &err), 0, "a mesh");
      m->partial_sums = row[i].partial;
      t.run.mesh = m;
      nodes[now] = tc_resume_nodes(&t);
      if (now) {
        char *mesh = tc_resume_mesh(&t);
        const struct tc_ckpt_meta meta = { .version = "1", .data = "", .stack = "", .config = "", .mesh = mesh,
                                           .system = t.run.opts.system->name, .nodes = nodes[0] };
        stderr_text();
        tc_resume_say(&t, &meta);
        ok((strstr(stderr_text(), "ranks are on other nodes together than") != NULL) == row[i].says,
           "... division %zu: %s, then %s", i, nodes[0], nodes[1]);
        free(mesh);
      }
      tc_mesh_free(m);
    }
    free(nodes[0]);
    free(nodes[1]);
  }
}

/* The same ranks with one table of algorithms, and then with another. NULL: the compiled one. */
static void test_tables(void)
{
  static const char sums[] = "all_reduce any any any sumtree", alike[] = "# mine\nall_reduce  1-  any any sumtree\n";
  static const struct { const char *was, *is; bool partial, says; } row[] = {
    { NULL, NULL, true, false },  { sums, sums, true, false },  { sums, alike, true, false }, { sums, NULL, true, true },
    { NULL, sums, true, true },   { sums, "all_reduce any any any halving", true, true },     { sums, NULL, false, false },
    { NULL, "broadcast any any any tree", true, false },        { NULL, "all_reduce 1-8 one any exchange", true, false },
  };
  static const int32_t node[4] = { 0, 0, 1, 1 };
  const struct tc_mesh_want want = { .order = TC_TP_DP_PP, .size = { [TC_SET_PP] = 1, [TC_SET_TP] = 1 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_train t = { .run.cfg = &plain, .run.opts.system = &tc_systems[0] };
    struct tc_ckpt_meta meta = { .version = "1", .data = "", .stack = "", .config = "", .system = tc_systems[0].name };
    struct tc_err err;
    TC_ASSERT(tc_mesh_new(&t.run.mesh, 4, node, &want, &err) == 0);
    t.run.mesh->partial_sums = row[i].partial;
    char *mesh = tc_resume_mesh(&t), *was = NULL;
    for (int now = 0; now < 2; now++) {
      const char *text = now ? row[i].is : row[i].was;
      if (text) TC_ASSERT(parse_table(&t.run.mesh->selection, text, &err) == 0);
      if (!now) was = tc_resume_nodes(&t);
      if (now) continue;
      tc_selection_free(t.run.mesh->selection);
      t.run.mesh->selection = NULL;
    }
    meta.mesh = mesh, meta.nodes = was;
    stderr_text();
    tc_resume_say(&t, &meta);
    is_int(strstr(stderr_text(), "or the rows of run.collectives differ") != NULL, row[i].says, "tables, pair %zu", i);
    tc_mesh_free(t.run.mesh);
    TC_FREE(mesh, was);
  }
}

/* data.order = auto is the order of the checkpoint's run: one that does not say took draws; an import has none. */
static void test_order(void)
{
  static const struct { enum tc_data_order is; const char *version, *config; enum tc_data_order want; } row[] = {
    { TC_ORDER_BY_RUN, "1", "[train]\nsteps = 3\n", TC_ORDER_DRAWS },
    { TC_ORDER_BY_RUN, "1", "[data]\norder = draws\n[train]\nsteps = 3\n", TC_ORDER_DRAWS },
    { TC_ORDER_BY_RUN, "1", "[data]\norder = permutation\n[train]\nsteps = 3\n", TC_ORDER_PERMUTATION },
    { TC_ORDER_PERMUTATION, "1", "[train]\nsteps = 3\n", TC_ORDER_PERMUTATION },
    { TC_ORDER_DRAWS, "1", "[data]\norder = permutation\n[train]\nsteps = 3\n", TC_ORDER_DRAWS },
    { TC_ORDER_BY_RUN, "", "", TC_ORDER_PERMUTATION },
    { TC_ORDER_BY_RUN, NULL, NULL, TC_ORDER_PERMUTATION },
    { TC_ORDER_DRAWS, NULL, NULL, TC_ORDER_DRAWS },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    const struct tc_ckpt_meta meta = { .version = row[i].version, .config = row[i].config };
    struct tc_train t = { .own.data_order = row[i].is };
    tc_resume_order(&t, row[i].version ? &meta : NULL);
    is_int(t.own.data_order, row[i].want, "order of samples, case %zu", i);
  }
}

int main(void)
{
  const int keep = dup(STDERR_FILENO),
            to = chdir(fx_folder()) == 0 ? open("stderr", O_RDWR | O_CREAT | O_APPEND, 0600) : -1;
  if (to < 0 || dup2(to, STDERR_FILENO) < 0) return 1;
  test_versions();
  test_nodes();
  test_tables();
  test_order();
  dup2(keep, STDERR_FILENO);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
