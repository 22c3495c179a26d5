/* t_selection.c - which algorithm a call takes: the compiled table beside the rules that it stands for, tables of users, and
 * that what is printed is read as it was. */
#include "tests/unit/coll/drawn_table.h"
#include "tests/unit/tap.h"

#include <math.h>

/* ---- the compiled table -------------------------------------------------------------------- */

/* The rules, written as conditions. */
static bool is_small(int64_t bytes, int size) { return bytes <= 256 || bytes <= 8192 / size; }

static int rule_of_broadcast(int64_t bytes, const struct tc_members *m)
{
  if (m->size <= 8 && !m->nodes && (!m->spread || bytes <= 16384)) return TC_ALGORITHM_STAR;
  if (m->size == 2 || !m->spread || bytes < 524288) return TC_ALGORITHM_TREE;
  return bytes >= 65536 * (int64_t)m->size ? TC_ALGORITHM_CHAIN : TC_ALGORITHM_SCATTERED;
}

static int rule(int coll, int64_t bytes, const struct tc_members *m)
{
  const bool gathers = coll == TC_ALL_GATHER;
  const int64_t given = gathers ? bytes / m->size : bytes;
  if (coll == TC_BROADCAST) return rule_of_broadcast(bytes, m);
  if (m->size <= 8 && !m->nodes) return tc_algorithm_direct(coll);
  if (bytes <= (m->spread ? 32768 : 262144) && tc_algorithm_suits(TC_ALGORITHM_SUMTREE, coll, m)) return TC_ALGORITHM_SUMTREE;
  const bool small = is_small(given, m->size) || (gathers && m->nodes && bytes <= 65536);
  if (small && tc_algorithm_does(TC_ALGORITHM_TREE, coll)) return TC_ALGORITHM_TREE;
  if (tc_algorithm_suits(TC_ALGORITHM_NODES, coll, m)) return TC_ALGORITHM_NODES;
  const int rounds = gathers ? TC_ALGORITHM_DOUBLING : TC_ALGORITHM_HALVING;
  const bool middle = bytes / m->size <= 65536 && bytes <= 16777216;
  return middle && tc_algorithm_suits(rounds, coll, m) ? rounds : tc_algorithm_direct(coll);
}

static int chosen(int coll, int64_t bytes, const struct tc_members *m)
{
  const struct tc_part part = { .count = bytes, .block = tc_ceil_div(bytes, m->size) };
  const struct tc_coll_args a = { .coll = coll, .dtype = TC_U8, .n_parts = coll != TC_BARRIER, .parts = &part };
  return tc_algorithm_of(&a, m);
}

/* One node, each its own, nodes alike, or drawn ones. */
static struct tc_members draw_members_on(int size, int kind, bool partial)
{
  int32_t *node = tc_calloc((size_t)size, sizeof *node);
  const int n = (int)draw(2, 6);
  for (int i = 0; i < size; i++) node[i] = kind == 0 ? 0 : kind == 1 ? i : kind == 2 ? i / n : (int32_t)draw(0, n);
  const struct tc_members m = tc_members_on(node, size, 0, partial);
  free(node);
  return m;
}

/* A size near a limit of the rules, of the array or of each member's part, or a drawn one. */
static int64_t draw_size(int size)
{
  static const int64_t limit[] = { 0, 256, 8192, 16384, 32768, 65536, 262144, 524288, 16777216, 268435456 };
  const int64_t at = limit[draw(0, 9)], near = draw(-2, 2);
  int64_t n = at + near;
  if (draw(0, 2) == 0) n = at * size + draw(-2, 2) * (draw(0, 1) ? 1 : size);
  else if (draw(0, 2) == 0) n = (at / size + draw(-1, 1)) * size + draw(-2, 2);
  else if (draw(0, 2) == 0) n = at / size + near;
  if (draw(0, 4) == 0) n = (int64_t)exp2(uniform() * 40);
  return TC_MAX(n, 0);
}

static void compiled_table(int sizes)
{
  static const int large[] = { 65, 127, 128, 129, 1000, 1024, 4096, 16384 };
  for (int coll = TC_FIRST_COLL; coll < TC_COLLS; coll++) {
    int wrong = 0, calls = 0;
    bool taken[TC_ALGORITHMS] = { false };
    char by[200] = "";
    for (int i = 1; i <= 72; i++)
      for (int kind = 0; kind < 8; kind++) {
        const int size = i <= 64 ? i : large[i - 65];
        struct tc_members m = draw_members_on(size, kind / 2, kind % 2);
        for (int k = 0; k < sizes; k++, calls++) {
          const int64_t bytes = coll == TC_BARRIER ? 0 : draw_size(size);
          const int is = chosen(coll, bytes, &m), want = rule(coll, bytes, &m);
          taken[is] = true;
          if (is != want && !wrong++)
            printf("# %d members (place %d), %lld bytes: %s, not %s\n", size, kind, (long long)bytes, tc_algorithm_name[is],
                   tc_algorithm_name[want]);
        }
        tc_members_done(&m);
      }
    for (int a = 0; a < TC_ALGORITHMS; a++)
      if (taken[a]) tc_text_add(by, sizeof by, " %s", tc_algorithm_name[a]);
    is_int(wrong, 0, "%s: %d calls as by the rules, by%s", tc_coll_name[coll], calls, by);
  }
}

/* ---- a user's ------------------------------------------------------------------------------ */

static void a_table(void)
{
  static const struct { int coll, size, each; int64_t bytes; int want; } row[] = {
    { TC_ALL_REDUCE, 4, 4, 1000, TC_ALGORITHM_TREE },            { TC_ALL_REDUCE, 4, 4, 1001, TC_ALGORITHM_DOUBLING },
    { TC_ALL_REDUCE, 5, 5, 1000, TC_ALGORITHM_DOUBLING },        { TC_ALL_REDUCE, 6, 1, 1000, TC_ALGORITHM_EXCHANGE },
    { TC_ALL_REDUCE, 6, 6, 67108865, TC_ALGORITHM_EXCHANGE },     /* doubling would hold more than 256 MiB */
    { TC_ALL_REDUCE, 6, 3, 4096, TC_ALGORITHM_TREE },            { TC_ALL_REDUCE, 6, 3, 4097, TC_ALGORITHM_SUMTREE },
    { TC_BROADCAST, 4, 4, 2047 * 4 + 3, TC_ALGORITHM_CHAIN },
    { TC_BROADCAST, 4, 4, 2048 * 4, TC_ALGORITHM_STAR },         { TC_ALL_GATHER, 4, 4, 67, TC_ALGORITHM_TREE },
    { TC_ALL_GATHER, 4, 4, 68, TC_ALGORITHM_EXCHANGE },          { TC_REDUCE, 4, 4, 16, TC_ALGORITHM_TREE },
    { TC_REDUCE, 4, 4, 17, TC_ALGORITHM_STAR },                  { TC_REDUCE_SCATTER, 4, 4, 8, TC_ALGORITHM_EXCHANGE },
    { TC_BARRIER, 4, 4, 0, TC_ALGORITHM_DOUBLING },              { TC_BARRIER, 3, 3, 0, TC_ALGORITHM_EXCHANGE } };
  struct tc_err err = { .text = "" };
  struct tc_selection *s;
  is_int(parse_table(&s, "# mine\nall_reduce 2-4 one 1000 tree\nall_reduce any one any nodes # which needs nodes\n"
                     "all_reduce 4- one any doubling\nbroadcast 3-4 any <2K/member chain\n\nall_gather 4 one 64/all tree\r\n"
                     "reduce any any 64/all tree\nall_reduce any nodes 4K,2K/member,1G/all tree\nbarrier 4- any any doubling",
                     &err), 0, "a table of rows: %s", err.text);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_members m = tc_members_even(row[i].size, row[i].each, 0, true);
    m.selection = s;
    is_str(tc_algorithm_name[chosen(row[i].coll, row[i].bytes, &m)], tc_algorithm_name[row[i].want],
           "... %s of %lld bytes among %d", tc_coll_name[row[i].coll], (long long)row[i].bytes, row[i].size);
    tc_members_done(&m);
  }
  tc_selection_free(s);
}

/* Both select alike, whatever the call is. */
static int unlike(const struct tc_selection *a, const struct tc_selection *b)
{
  int n = 0;
  for (int i = 0; i < 300; i++) {
    const int coll = (int)draw(TC_FIRST_COLL, TC_COLLS - 1), size = (int)draw(1, 70);
    struct tc_members m = draw_members_on(size, (int)draw(0, 3), draw(0, 1));
    const int64_t bytes = draw_size(size);
    m.selection = a;
    const int x = chosen(coll, bytes, &m);
    m.selection = b;
    n += x != chosen(coll, bytes, &m);
    tc_members_done(&m);
  }
  return n;
}

static char *printed(const struct tc_selection *s)
{
  char *text = NULL;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  tc_selection_print(f, s);
  TC_ASSERT(fclose(f) == 0);
  return text;
}

/* As it is printed, it is read again. */
static bool comes_back(const struct tc_selection *s)
{
  char *text = printed(s), *again = NULL;
  struct tc_selection *read;
  struct tc_err err = { .text = "" };
  bool good = parse_table(&read, text, &err) == 0;
  if (good) {
    again = printed(read);
    good = !strcmp(text, again) && unlike(s, read) == 0 && tc_selection_hash(s, false) == tc_selection_hash(read, false) &&
           tc_selection_hash(s, true) == tc_selection_hash(read, true);
  }
  if (!good) printf("# %s\n%s", err.text, text);
  tc_selection_free(read);
  TC_FREE(text, again);
  return good;
}

static void what_is_printed(int cases)
{
  int wrong = 0, same = 0;
  ok(comes_back(NULL), "the compiled table is printed and read");
  for (int i = 0; i < cases; i++) {
    struct drawn_table t;
    struct tc_selection *s;
    struct tc_err err = { .text = "" };
    draw_table(&t, false);
    if (parse_table(&s, t.text, &err) < 0) printf("# %s\n%s\n", err.text, t.text), wrong++;
    else wrong += !comes_back(s), same += tc_selection_hash(s, false) == tc_selection_hash(NULL, false);
    tc_selection_free(s);
  }
  is_int(wrong, 0, "%d drawn tables are read, printed and read", cases);
  ok(same * 10 < cases, "... of which %d are the compiled one", same);
}

static void what_is_refused(int cases)
{
  static const char usual[] = "0123456789KMG-,<#/ \t\n";
  int wrong = 0, accepted = 0;
  for (int i = 0; i < cases; i++) {
    struct drawn_table t;
    struct tc_selection *s;
    struct tc_err err = { .text = "" };
    char at[40];
    draw_table(&t, true);
    snprintf(at, sizeof at, "my.txt:%d: ", t.wrong_line);
    const int rc = parse_table(&s, t.text, &err);
    if (rc == TC_EUSER && !s && !strncmp(err.text, at, strlen(at)) && strstr(err.text, t.says)) continue;
    if (!wrong++) printf("# %s (%s%s)\n%s\n", err.text, at, t.says, t.text);
    tc_selection_free(s);
  }
  is_int(wrong, 0, "%d drawn tables with a row that is wrong are refused with its line and what would fit", cases);
  for (int i = wrong = 0; i < cases; i++) {       /* any bytes changed: either read, or refused */
    struct drawn_table t;
    struct tc_selection *s;
    struct tc_err err = { .text = "" };
    draw_table(&t, false);
    const size_t n = strlen(t.text);
    for (int64_t k = draw(1, 3); k > 0; k--)
      t.text[draw(0, (int64_t)n - 1)] = draw(0, 5) ? usual[draw(0, sizeof usual - 2)] : (char)draw(0, 255);
    const int rc = tc_selection_parse(&s, t.text, n, "my.txt", &err);
    accepted += rc == 0;
    wrong += rc == 0 ? !comes_back(s) : rc != TC_EUSER || strncmp(err.text, "my.txt:", 7) || s;
    tc_selection_free(s);
  }
  ok(!wrong && accepted * 20 > cases && accepted < cases, "%d tables with some bytes changed: %d are read, the others refused",
     cases, accepted);
}

static uint64_t hash_of(const char *text, bool sums)
{
  struct tc_selection *s;
  struct tc_err err;
  TC_ASSERT(parse_table(&s, text, &err) == 0);
  const uint64_t hash = tc_selection_hash(s, sums);
  tc_selection_free(s);
  return hash;
}

/* Tables are the same if their rows say the same: comments, rows of other collectives between them and rows that nothing comes
 * to do not count. */
static void hashes(void)
{
  static const struct { const char *a, *b; bool same, sums; } row[] = {
    { "all_reduce any any 1K tree\nbroadcast 2 any any tree", "#\nbroadcast  2-2 any any tree\nall_reduce 1- any 1024 tree",
      1, 1 },
    { "all_reduce any any any exchange\nall_reduce 2 any any tree", "all_reduce any any any exchange", 1, 1 },
    { "all_reduce 2 any any tree\nall_reduce 2 any any tree", "all_reduce 2 any any tree", 1, 1 },
    { "all_reduce 2 any any tree\nall_reduce 3 any any sumtree", "all_reduce 3 any any sumtree\nall_reduce 2 any any tree",
      0, 0 },
    { "all_reduce 2 any any tree", "all_reduce 2 any any doubling", 0, 0 },
    { "all_reduce 2 any any tree", "all_reduce 2 any 1M tree", 0, 0 },
    { "reduce 2 any 1M/all tree", "reduce 2 any 1M/member tree", 0, 0 },
    { "reduce 2 one any tree", "reduce 2 nodes any tree", 0, 0 },
    { "reduce 2 one any tree", "reduce 2- one any tree", 0, 0 },
    { "broadcast 2 any any tree", "broadcast 2 any any chain", 0, 1 },
    { "broadcast 2 any any tree", "all_gather 2 any any tree", 0, 1 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    is_int(hash_of(row[i].a, false) == hash_of(row[i].b, false), row[i].same, "tables, pair %zu", i);
    is_int(hash_of(row[i].a, true) == hash_of(row[i].b, true), row[i].sums, "... their sums");
  }
  is_int(hash_of("all_reduce 1-8 one any exchange", false) == tc_selection_hash(NULL, false), true, "the first compiled row");
  is_int(hash_of("broadcast any any any star", true) == tc_selection_hash(NULL, true), true, "no row of a sum");
}

static void files(void)
{
  struct tc_err err = { .text = "" };
  struct tc_selection *s;
  char text[] = "all_reduce any any any tree\n";
  is_int(tc_selection_read(&s, "/nonexistent/my.txt", &err), TC_EUSER, "no such file");
  ok(!s && strstr(err.text, "cannot open table of collectives /nonexistent/my.txt"), "... %s", err.text);
  is_int(parse_table(&s, "# only a comment\n\n", &err), TC_EUSER, "no row");
  ok(!s && strstr(err.text, "my.txt: no row in this file; rows are COLLECTIVE MEMBERS"), "... %s", err.text);
  is_int(tc_selection_parse(&s, text, sizeof text, "my.txt", &err), TC_EUSER, "a byte 0");
  ok(!s && strstr(err.text, "contains a byte 0"), "... %s", err.text);
  char *many = tc_calloc(1, 60000);
  for (int i = 0; i < 1001; i++) tc_text_add(many, 60000, "all_reduce %d any any tree\n", i + 1);
  is_int(parse_table(&s, many, &err), TC_EUSER, "1001 rows");
  ok(!s && strstr(err.text, "my.txt:1001: a table has at most 1000 rows"), "... %s", err.text);
  *strstr(many, "all_reduce 1001") = '\0';
  is_int(parse_table(&s, many, &err), 0, "1000 rows");
  tc_selection_free(s);
  free(many);
}

int main(int argc, char **argv)
{
  const int cases = begin_cases(argc, argv, 400);
  compiled_table(60);
  a_table();
  hashes();
  files();
  what_is_printed(cases);
  what_is_refused(cases);
  return done_testing();
}
