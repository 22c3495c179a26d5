/* t_annotate.c - files of annotations: lines against the rows they mean, or against what the
 * error must say. */
#include <fnmatch.h>
#include <unistd.h>

#include "src/model/transformer.h"
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define PLACE_R { TC_R, 0, 0, 0 }
#define PLACE_P { TC_P, 0, 0, 0 }
#define PLACE_FLAT { TC_FLAT, 0, 0, 0 }
#define SPLIT(d) { TC_S, d, 0, 0 }
#define AT(k) { TC_AT, 0, 0, k }
#define FORMS_LONG "'PATTERN AXIS STORE USE ACC UPDATE [KEEP]'"

/* ---- files ------------------------------------------------------------------------ */

static char path[100];

static void write_file(const char *text, size_t bytes)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(text, 1, bytes, f) == bytes);
  fclose(f);
}

static int read_back(struct tc_annotation **rows, const char *text, struct tc_err *err)
{
  *rows = (void *)(uintptr_t)1;      /* must be overwritten, whatever happens */
  write_file(text, strlen(text));
  return tc_annotations_read(rows, path, err);
}

/* ---- rows ------------------------------------------------------------------------- */

static const struct { const char *text; struct tc_annotation row; } good[] = {
  { "wte.weight tp S(0)\n", { "wte.weight", TC_ON_TP, { SPLIT(0) }, false, 0, 1, false } },
  { "h.*.mlp.[fp]* dp R", { "h.*.mlp.[fp]*", TC_ON_DP, { PLACE_R }, false, 0, 1, false } },
  { "-wpe.* tp S(0)\n", { "wpe.*", TC_ON_TP, { SPLIT(0) }, false, 0, 1, true } },
  { "- tp R\n", { "-", TC_ON_TP, { PLACE_R }, false, 0, 1, false } },
  { "x-y tp R\n", { "x-y", TC_ON_TP, { PLACE_R }, false, 0, 1, false } },
  { "x shard R\n", { "x", TC_ON_SHARD, { PLACE_R }, false, 0, 1, false } },
  { "x replicate+tp R\n", { "x", TC_ON_REPLICATE | TC_ON_TP, { PLACE_R }, false, 0, 1, false } },
  { "x pp at(0)\n", { "x", TC_ON_PP, { AT(0) }, false, 0, 1, false } },
  { "x pp at(2147483647)\n", { "x", TC_ON_PP, { AT(2147483647) }, false, 0, 1, false } },
  { "x tp S(5)\n", { "x", TC_ON_TP, { SPLIT(5) }, false, 0, 1, false } },
  { "\n# head\n\n \t x\ttp   S(1) \r\n\n", { "x", TC_ON_TP, { SPLIT(1) }, false, 0, 4, false } },
  { "x tp S(0)# tight", { "x", TC_ON_TP, { SPLIT(0) }, false, 0, 1, false } },
  { "x tp S(0) # dp, P and 8 other words are no fields\n",
    { "x", TC_ON_TP, { SPLIT(0) }, false, 0, 1, false } },
  { "* dp S(*) R S(*) S(*) use\n",
    { "*", TC_ON_DP, { PLACE_FLAT, PLACE_R, PLACE_FLAT, PLACE_FLAT }, true, TC_AFTER_USE, 1, false } },
  { "* dp S(*) R P S(*) mb\n",
    { "*", TC_ON_DP, { PLACE_FLAT, PLACE_R, PLACE_P, PLACE_FLAT }, true, TC_AFTER_MB, 1, false } },
  { "* dp at(1) R P at(1) step\n",
    { "*", TC_ON_DP, { AT(1), PLACE_R, PLACE_P, AT(1) }, true, TC_AFTER_STEP, 1, false } },
  { "* dp R S(3) S(2) S(1) # keep as long as it may be\n",
    { "*", TC_ON_DP, { PLACE_R, SPLIT(3), SPLIT(2), SPLIT(1) }, true, -1, 1, false } },
};

static bool same_place(const struct tc_place *a, const struct tc_place *b)
{
  return a->kind == b->kind && a->dim == b->dim && a->op == b->op && a->at == b->at;
}

static void test_good(void)
{
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    const struct tc_annotation *want = &good[i].row;
    struct tc_annotation *rows;
    struct tc_err err = { 0 };
    if (!is_int(read_back(&rows, good[i].text, &err), 0, "row %zu is read %s", i, err.text))
      continue;
    is_str(rows[0].pattern, want->pattern, "its pattern");
    is_int(rows[0].axes, want->axes, "its axis");
    is_int(rows[0].four, want->four, "whether it has four placements");
    for (int k = 0; k < (want->four ? TC_PLACES : 1); k++)
      ok(same_place(&rows[0].place[k], &want->place[k]), "placement %d", k);
    if (want->four) is_int(rows[0].reshard_after, want->reshard_after, "how long it is kept");
    is_int(rows[0].line, want->line, "its line");
    is_int(rows[0].optional, want->optional, "whether a tensor has to match");
    ok(rows[1].pattern == NULL, "and the end");
    tc_annotations_free(rows);
  }
}

/* More rows than an array begins with, in the order of the file. */
static void test_many(void)
{
  char *text = tc_calloc(100, 100);
  for (int i = 0; i < 100; i++)
    snprintf(text + strlen(text), 100, "%sname.%d %s at(%d)\n", i % 3 ? "" : "# next\n", i,
             i % 2 ? "dp" : "tp", i);
  struct tc_annotation *rows;
  struct tc_err err = { 0 };
  int n = 0, bad = 0;
  is_int(read_back(&rows, text, &err), 0, "100 rows %s", err.text);
  for (; rows && rows[n].pattern; n++) {
    char name[20];
    snprintf(name, sizeof name, "name.%d", n);
    bad += strcmp(rows[n].pattern, name) != 0 || rows[n].place[0].at != n ||
           rows[n].axes != (n % 2 ? TC_ON_DP : TC_ON_TP) || rows[n].line != n + n / 3 + 2;
  }
  is_int(n, 100, "are all there");
  is_int(bad, 0, "in order, with their lines");
  tc_annotations_free(rows);
  tc_annotations_free(NULL);
  free(text);
}

/* ---- errors ----------------------------------------------------------------------- */

/* `line`: of the fault, 0: none is named. Both words must be in the sentence. */
static const struct { const char *text; int line; const char *what, *right; } wrong[] = {
  { "x xp R\n", 1, "'xp' is not an axis", "axis: dp or tp" },
  { "x TP R\n", 1, "'TP'", "axis: dp or tp" },
  { "x mb S(0)\n", 1, "axis mb", "annotations cannot split: dp or tp" },
  { "x tp Q\n", 1, "'Q' is not a placement", "R, S(d), S(*), P or at(k)" },
  { "x tp r\n", 1, "'r'", "R, S(d), S(*), P or at(k)" },
  { "x tp S\n", 1, "'S'", "S(d)" },
  { "x tp S()\n", 1, "'S()'", "S(d)" },
  { "x tp S(0\n", 1, "'S(0'", "S(d)" },
  { "x tp S(0)1\n", 1, "'S(0)1'", "S(d)" },
  { "x tp S(1e0)\n", 1, "'S(1e0)'", "S(d)" },
  { "x tp S(+1)\n", 1, "'S(+1)'", "S(d)" },
  { "x tp Sx0)\n", 1, "'Sx0)' is not a placement", "S(d)" },
  { "x tp atx1)\n", 1, "'atx1)' is not a placement", "at(k)" },
  { "x tp s(0)\n", 1, "'s(0)' is not a placement", "S(d)" },
  { "x tp S(\n", 1, "'S(' is not a placement", "S(d)" },
  { "x tp S(1-)\n", 1, "'S(1-)' is not a placement", "S(d)" },
  { "x tp at(2147483648)\n", 1, "at(2147483648)", "0 or more" },
  { "x tp at()\n", 1, "'at()'", "at(k)" },
  { "x tp at(-)\n", 1, "'at(-)'", "at(k)" },
  { "x tp RR\n", 1, "'RR'", "at(k)" },
  { "x tp S(6)\n", 1, "S(6)", "from 0 to 5" },
  { "x tp S(-1)\n", 1, "S(-1)", "from 0 to 5" },
  { "x tp S(256)\n", 1, "S(256)", "from 0 to 5" },
  { "x tp S(99999999999999999999)\n", 1, "S(99999999999999999999)", "from 0 to 5" },
  { "x tp at(-1)\n", 1, "at(-1)", "0 or more" },
  { "x tp at(4294967296)\n", 1, "at(4294967296)", "0 or more" },
  { "x tp P\n", 1, "only ops make partial", "tensors; R" },
  { "x tp S(*)\n", 1, "storage only", "'x tp S(*) R S(*) S(*)'" },
  { "x dp P R P R\n", 1, "P as store", "only acc can be partial" },
  { "x dp R P P R\n", 1, "P as use", "only acc can be partial" },
  { "x dp R R P P\n", 1, "P as update", "only acc can be partial" },
  { "x dp R R P Q\n", 1, "'Q'", "R, S(d), S(*), P or at(k)" },
  { "x dp R S(9) P R\n", 1, "S(9)", "from 0 to 5" },
  { "x dp R R P R ever\n", 1, "'ever'", "use, mb or step" },
  { "x dp R R P R R\n", 1, "'R'", "use, mb or step" },
  { "x\n", 1, "not 1", "'PATTERN AXIS PLACE'" },
  { "x tp\n", 1, "3, 6 or 7 fields, not 2", FORMS_LONG },
  { "x tp S( 0 )\n", 1, "not 5", "'PATTERN AXIS PLACE'" },
  { "x tp R R\n", 1, "not 4", FORMS_LONG },
  { "x dp R R P R use x y\n", 1, "not 9", FORMS_LONG },
  { "# head\n\nx tp R\n\n y qp R # comment\nz", 5, "'qp'", "axis: dp or tp" },
  { "", 0, "no row", "'PATTERN AXIS PLACE'" },
  { "\n# only talk\n  \n", 0, "no row", FORMS_LONG },
};

static void test_wrong(void)
{
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    struct tc_annotation *rows;
    struct tc_err err = { 0 };
    char begins[160];
    int rc = read_back(&rows, wrong[i].text, &err);
    if (wrong[i].line) snprintf(begins, sizeof begins, "%s:%d: ", path, wrong[i].line);
    else snprintf(begins, sizeof begins, "%s: ", path);
    if (!ok(rc == TC_EUSER && !rows && !strncmp(err.text, begins, strlen(begins)) &&
            strstr(err.text, wrong[i].what) && strstr(err.text, wrong[i].right) &&
            !strchr(err.text, '\n'), "refused: %s, %s", wrong[i].what, wrong[i].right))
      printf("#   status %d: %s\n", rc, err.text);
    if (rc == 0) tc_annotations_free(rows);
  }
}

/* Invalid files, and very long words. */
static void test_files(const char *dir)
{
  struct tc_annotation *rows;
  struct tc_err err = { 0 };
  char none[120];
  snprintf(none, sizeof none, "%s/none", dir);
  is_int(tc_annotations_read(&rows, none, &err), TC_EUSER, "a file that isn't there: %s",
         err.text);
  ok(strstr(err.text, none) && strstr(err.text, "No such file"), "... is named, with the reason");
  is_int(tc_annotations_read(&rows, dir, &err), TC_EUSER, "a folder: %s", err.text);
  ok(rows == NULL && strstr(err.text, "a folder"), "... gives no rows");
  write_file("x tp R\0S(0)\n", 12);
  is_int(tc_annotations_read(&rows, path, &err), TC_EUSER, "a byte 0");
  const size_t begins = strlen(path);
  ok(!strncmp(err.text, path, begins), "... the message begins with the file");
  is_str(err.text + begins, ": contains a byte 0: not a text file", "... and has the reason");
  const size_t most = (size_t)16 << 20;
  char *big = malloc(most + 1);
  memset(big, '#', most + 1);
  memcpy(big, "x tp R\n", 7);
  write_file(big, most);
  is_int(tc_annotations_read(&rows, path, &err), 0, "a file of 16 MiB");
  tc_annotations_free(rows);
  write_file(big, most + 1);
  is_int(tc_annotations_read(&rows, path, &err), TC_EUSER, "... and a byte more");
  free(big);
  char *text = tc_calloc(300100, 1);
  memset(text, 'w', 300000);
  strcpy(text + 300000, " tp R\n");
  is_int(read_back(&rows, text, &err), 0, "a pattern of 300,000 letters");
  is_int(rows ? (int64_t)strlen(rows[0].pattern) : -1, 300000, "... is whole");
  tc_annotations_free(rows);
  memcpy(text, "x tp ", 5);           /* 3 fields more */
  is_int(read_back(&rows, text, &err), TC_EUSER, "fields too many, one of 300,000 letters");
  strcpy(text + 300000, "\n");
  is_int(read_back(&rows, text, &err), TC_EUSER, "... and as a placement");
  ok(strstr(err.text, "R, S(d), S(*), P or at(k)"), "... leaves room for what would be right");
  free(text);
}

/* The files that are distributed. */
static void test_examples(void)
{
  static const struct { const char *name; int rows, four; } example[] = {
    { "ddp", 2, 0 }, { "hybrid", 9, 1 }, { "megatron", 9, 0 }, { "sequence", 12, 0 },
    { "zero3", 3, 1 }, { "ulysses", 5, 0 }, { "hsdp", 4, 2 } };
  const char *src = getenv("srcdir");
  for (size_t i = 0; i < sizeof example / sizeof *example; i++) {
    struct tc_annotation *rows;
    struct tc_err err = { 0 };
    char name[600];
    int n = 0, four = 0;
    snprintf(name, sizeof name, "%.500s/examples/annotations/%s.txt", src ? src : ".",
             example[i].name);
    is_int(tc_annotations_read(&rows, name, &err), 0, "%s.txt %s", example[i].name, err.text);
    for (; rows && rows[n].pattern; n++) four += rows[n].four;
    is_int(n, example[i].rows, "... its rows");
    is_int(four, example[i].four, "... those with four placements");
    tc_annotations_free(rows);
  }
}

/* ---- rows on a program ------------------------------------------------------------- */

#define MODEL                                                        \
  "tokens i32[8] = data<->n>()\n"                                    \
  "param h.0.w [8,4] pp at(0), dp R R P R\nparam h.1.w [8,4] dp R R P R\nparam b [8]\n" \
  "h0: h.0.y [8,4] = embed(tokens, h.0.w)\n"                         \
  "s = sum<nc->>(h.0.y)\n"

/* Two files of rows, one after the other (NULL: only one); want: the program, or the sentence. */
static const struct { const char *name, *rows, *then, *want; } applied[] = {
  { "one placement: store, use, acc and update; on that axis alone", "h.0.* tp S(1)\n", NULL,
    "param h.0.w [8,4] pp at(0), dp R R P R, tp S(1)\n"
    "param h.1.w [8,4] dp R R P R\n"
    "param b [8]\n"
    "F tokens i32[8] = data<->n>()\n"
    "F h0: h.0.y [8,4] tp:S(1) = embed(tokens, h.0.w)\n"
    "F s = sum<nc->>(h.0.y)\n" },
  { "four placements are for parameters alone, and say when they are freed", "* dp S(*) R S(*) S(*) use\n", NULL,
    "param h.0.w [8,4] pp at(0), dp S(*) R S(*) S(*) use\n"
    "param h.1.w [8,4] dp S(*) R S(*) S(*) use\n"
    "param b [8] dp S(*) R S(*) S(*) use\n"
    "F tokens i32[8] = data<->n>()\n"
    "F h0: h.0.y [8,4] = embed(tokens, h.0.w)\n"
    "F s = sum<nc->>(h.0.y)\n" },
  { "a later file replaces what an earlier one says of the same axis", "h.*.w tp S(0)\n", "h.1.w tp R\n",
    "param h.0.w [8,4] pp at(0), dp R R P R, tp S(0)\n"
    "param h.1.w [8,4] dp R R P R\n"
    "param b [8]\n"
    "F tokens i32[8] = data<->n>()\n"
    "F h0: h.0.y [8,4] = embed(tokens, h.0.w)\n"
    "F s = sum<nc->>(h.0.y)\n" },
  { "rows of a file may repeat each other", "h.0.w tp S(0)\n* tp S(0)\n", NULL,
    "param h.0.w [8,4] pp at(0), dp R R P R, tp S(0)\n"
    "param h.1.w [8,4] dp R R P R, tp S(0)\n"
    "param b [8] tp S(0)\n"
    "F tokens i32[8] tp:S(0) = data<->n>()\n"
    "F h0: h.0.y [8,4] tp:S(0) = embed(tokens, h.0.w)\n"
    "F s = sum<nc->>(h.0.y)\n" },
  { "... but not contradict", "h.0.w tp S(0)\nh.*.w tp S(1)\n", NULL,
    "annotation h.*.w (line 2) on tp: h.0.w was already placed there by another row, which contradicts this one" },
  { "... nor give another KEEP", "h.0.w dp R R P R use\nh.0.w dp R R P R mb\n", NULL,
    "annotation h.0.w (line 2) on dp: h.0.w was given another KEEP by another row, which contradicts this one" },
  { "stages are not placed by rows", "h.0.w pp R\n", NULL,
    "param h.0.w [8,4] pp at(0), dp R R P R\n"
    "param h.1.w [8,4] dp R R P R\n"
    "param b [8]\n"
    "F tokens i32[8] = data<->n>()\n"
    "F h0: h.0.y [8,4] = embed(tokens, h.0.w)\n"
    "F s = sum<nc->>(h.0.y)\n" },
  { "a pattern has to match", "h.0.w tp S(0)\nh.2.* tp S(0)\n", NULL,
    "annotation h.2.* (line 2) matches no tensor of this model; tercio graph --after build lists them (a row that is for "
    "other models, too, begins with -)" },
  { "... unless it begins with -", "-h.2.* tp S(0)\n", NULL,
    "param h.0.w [8,4] pp at(0), dp R R P R\n"
    "param h.1.w [8,4] dp R R P R\n"
    "param b [8]\n"
    "F tokens i32[8] = data<->n>()\n"
    "F h0: h.0.y [8,4] = embed(tokens, h.0.w)\n"
    "F s = sum<nc->>(h.0.y)\n" },
  { "a scalar has no placement", "s tp S(0)\n", NULL,
    "annotation s (line 1) on tp: s is a scalar, which every rank has: it cannot be placed" },
  { "a dimension that a tensor has not", "h.0.y tp S(2)\n", NULL,
    "annotation h.0.y (line 1) on tp: h.0.y has 2 dimensions, so there is no S(2); S(0) to S(1) would fit" },
  { "... that has only one", "b tp S(1)\n", NULL,
    "annotation b (line 1) on tp: b has 1 dimension, so only S(0) would fit" },
  { "flat shards on two axes", "h.0.w dp S(*) R P R\nh.0.w tp S(*) R P R\n", NULL,
    "h.0.w would be S(*) on dp and on tp, but only one axis can be:  the row '* dp R R P R', in place of the one for dp, "
    "would leave S(*) to tp" },
};

/* On two copies of three shards, and tp. */
static const struct { const char *name, *rows, *want; } on_sets[] = {
  { "dp is all axes that split sequences", "b dp S(0)\n", "param b [8] replicate S(0), dp S(0)\n" },
  { "a part of it", "b shard S(*) R P S(*)\n", "param b [8] dp S(*) R P S(*)\n" },
  { "... the other part", "b replicate S(*) R S(*) S(*)\n", "param b [8] replicate S(*) R S(*) S(*)\n" },
  { "parts by their names", "b replicate+rest S(0)\n", "param b [8] replicate S(0), dp S(0)\n" },
  { "several axes", "b shard+tp S(0)\n", "param b [8] dp S(0), tp S(0)\n" },
  { "k of at(k) counts the inner axis first", "b dp at(4)\n", "param b [8] replicate at(1), dp at(1)\n" },
  { "an axis of one rank places nothing", "b ep S(0)\n", "param b [8]\n" },
  { "rows of a set and of its parts may agree", "b dp S(0)\nb shard S(0)\n", "param b [8] replicate S(0), dp S(0)\n" },
  { "... but not contradict", "b dp S(0)\nb replicate R\n",
    "annotation b (line 2) on replicate: b was already placed there by another row, which contradicts this one" },
  { "a flat shard is on a set with a name", "b dp+tp S(*) R P R\n",
    "b would be S(*) on dp and on tp, but only one axis can be:  the row '* dp R R P R', in place of the one for dp, would "
    "leave S(*) to tp" },
};

static void test_sets(void)
{
  for (size_t i = 0; i < sizeof on_sets / sizeof *on_sets; i++) {
    struct tc_graph *g = read_program("param b [8]\n");
    struct tc_mesh *m = read_mesh("replicate2 dp3 tp2");
    struct tc_annotation *rows;
    struct tc_err err = { 0 };
    TC_ASSERT(read_back(&rows, on_sets[i].rows, &err) == 0);
    if (tc_annotate(g, m, rows, &err) < 0) is_str(err.text, on_sets[i].want, "%s", on_sets[i].name);
    else is_program(g, TEXT_PARAMS, on_sets[i].want, on_sets[i].name);
    tc_annotations_free(rows);
    tc_mesh_free(m);
    tc_graph_free(g);
  }
}

static void test_applied(void)
{
  struct tc_mesh *m = read_mesh("pp2 dp2 tp2");
  for (size_t i = 0; i < sizeof applied / sizeof *applied; i++) {
    struct tc_graph *g = read_program(MODEL);
    struct tc_err err = { 0 };
    int rc = 0;
    for (int k = 0; k < 2 && rc == 0; k++) {
      struct tc_annotation *rows;
      const char *text = k ? applied[i].then : applied[i].rows;
      if (!text) continue;
      TC_ASSERT(read_back(&rows, text, &err) == 0);
      rc = tc_annotate(g, m, rows, &err);
      tc_annotations_free(rows);
    }
    if (rc < 0) is_str(err.text, applied[i].want, "%s", applied[i].name);
    else is_program(g, TEXT_PARAMS | TEXT_NODES, applied[i].want, applied[i].name);
    tc_graph_free(g);
  }
  struct tc_graph *g = read_program("param w [8,4]\n");
  struct tc_annotation *rows;
  struct tc_err err = { 0 };
  TC_ASSERT(read_back(&rows, "embed tp S(0)\nw tp S(0)\n", &err) == 0);
  is_int(tc_annotate(g, m, rows, &err), 0, "programs of parameters alone have no other tensors: rows for these are no mistake");
  tc_annotations_free(rows);
  tc_mesh_free(m);
  tc_graph_free(g);
}

/* ---- built-in rows ------------------------------------------------------------------ */

/* No tensor has to match a built-in row, so a wrong name would go unnoticed: each row is for a tensor of some
 * family. And no matrix of a layer is left out. */
static void test_built_in(void)
{
  enum { FAMILIES = TC_FAMILY_PHI3 };              /* the last one */
  const struct tc_annotation *const list[] = { tc_rows_tensor, tc_rows_sequence };
  const struct tc_build_opts o = { .batch = 1, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1,
                                   .lora = { .rank = 2, .rows = "" } };
  struct tc_build_opts sampling = o;
  sampling.new_tokens = 1;
  sampling.documents = true;
  struct tc_graph *g[FAMILIES + 1];            /* the last one samples */
  for (int f = 0; f <= FAMILIES; f++) {
    const struct tc_model m = { .layers = 1, .hidden = 16, .heads = 4, .context = 8, .vocab = 32,
                                .family = (uint8_t)(TC_FAMILY_GPT2 + f % FAMILIES) };
    tc_model_build(g[f] = tc_graph_new(), &m, f < FAMILIES ? &o : &sampling);
    for (int32_t p = 0; p < g[f]->n_params; p++) {
      const struct tc_param *x = &g[f]->param[p];
      bool split = g[f]->tensor[x->weight].rank == 1 || !strcmp(x->name, "wpe.weight") || strstr(x->name, ".lora_");
      for (const struct tc_annotation *a = tc_rows_tensor; a->pattern; a++) split |= fnmatch(a->pattern, x->name, 0) == 0;
      ok(split, "family %d: %s is split on tp", f, x->name);
    }
  }
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    for (const struct tc_annotation *a = list[i]; a->pattern; a++) {
      int hits = 0;
      for (int f = 0; f <= FAMILIES; f++)
        for (int32_t t = 0; t < g[f]->n_tensors; t++) hits += fnmatch(a->pattern, g[f]->tensor[t].name, 0) == 0;
      ok(hits > 0, "built-in row %s is for %d tensors", a->pattern, hits);
    }
  for (int f = 0; f <= FAMILIES; f++) tc_graph_free(g[f]);
}

int main(void)
{
  alarm(1100);
  const char *tmp = getenv("TMPDIR");
  char dir[64];
  snprintf(dir, sizeof dir, "%.40s/t_annotate.XXXXXX", tmp ? tmp : "/tmp");
  TC_ASSERT(mkdtemp(dir) != NULL);
  snprintf(path, sizeof path, "%s/rows.txt", dir);
  test_good();
  test_many();
  test_wrong();
  test_files(dir);
  test_examples();
  test_applied();
  test_sets();
  test_built_in();
  unlink(path);
  TC_ASSERT(rmdir(dir) == 0);
  return done_testing();
}
