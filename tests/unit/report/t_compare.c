/* t_compare.c - `tercio report A B ...`: which options differ, figures and their order, runs that lack some or have one that
 * is not finite, tables on a terminal and on the page; folders that are drawn, with damaged lines (--cases N, --seed N). */
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/report/report.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

static char root[80];

/* ---- folders of runs --------------------------------------------------------------------- */

/* A run of two ranks: its options after [train] and its lines, "%s" of them. Returns its folder, owned by the caller. */
static char *make_run(const char *name, const char *options, const char *lines)
{
  char *folder = tc_sprintf("%s/%s", root, name), *file = tc_sprintf("%s/run.json", folder);
  json_t *o = json_pack("{s:o,s:{},s:[{s:s},{s:s}],s:s}", "config", json_sprintf("[train]\nsteps = 9\n%s", options), "mesh",
                        "ranks", "uuid", "", "uuid", "", "device", "cpu");
  mkdir(folder, 0700);
  TC_ASSERT(json_dump_file(o, file, 0) == 0);
  json_decref(o);
  free(file);
  file = tc_sprintf("%s/metrics.jsonl", folder);
  FILE *f = fopen(file, "w");
  TC_ASSERT(f != NULL);
  fputs(lines, f);
  fclose(f);
  free(file);
  return folder;
}

#define STEP(n, loss, val, more) "{\"step\": " #n ", \"step_ms\": 500, \"tokens_per_s\": " #n "000, \"tokens\": " #n "00, " \
  "\"loss\": " loss ", \"val_loss\": " val more "}\n"

static char *text_of(void (*put)(FILE *, const struct tc_comparison *), const struct tc_comparison *c)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  put(f, c);
  fclose(f);
  return text;
}

/* ---- runs by hand ------------------------------------------------------------------------ */

static const char *const run[][3] = {
  { "a", "lr = 0.1\nseed = 1\n", STEP(1, "5", "null", "") STEP(2, "4", "4.5", "") STEP(3, "3.5", "4.75", "") },
  { "b/", "lr = 0.01\nseed = 1\nclip = \n[run]\nout = b\n",
    STEP(1, "5", "null", "") STEP(9, "2", "4.25", "") },
  { "c", "lr = 0.1\nseed = 1\n[run]\nout = c\n",          /* whose loss is no number from step 2 on */
    STEP(1, "5", "4.9", "") STEP(2, "null", "null", ", \"not_finite\": {\"loss\": \"nan\", \"val_loss\": \"inf\"}") },
  { "d", "lr = 0.1\nseed = 1\n", STEP(1, "5", "null", "") "{\"step\": 2, \"st\n" STEP(3, "4", "null", "") },
  { "e", "lr = 0.1\nseed = 1\n", STEP(1, "5", "null", "") STEP(2, "3", "null", "") },
  { "f", "lr = 0.1\nseed = 1\n", "" },                    /* which has ended no step yet */
};
enum { RUNS = sizeof run / sizeof *run };

static void test_figures(const struct tc_comparison *c)
{
  static const char *const text =
    "run    lr   steps  loss  val loss  best val  at step  tokens  tokens/s   time  devices\n"
    "b    0.01       9     2      4.25      4.25        9     900    5.00 k    1 s    2 cpu\n"
    "a     0.1  3 of 9   3.5      4.75       4.5        2     300    2.00 k  1.5 s    2 cpu\n"
    "c     0.1  2 of 9   nan       inf       4.9        1     200    1.50 k    1 s    2 cpu\n"
    "e     0.1  2 of 9     3         -         -        -     200    1.50 k    1 s    2 cpu\n"
    "d     0.1  3 of 9     4         -         -        -     300    2.00 k    1 s    2 cpu\n"
    "f     0.1  0 of 9     -         -         -        -       -         -      -    2 cpu\n"
    "\n"
    "option         b    a    c    e    d    f\n"
    "train.lr    0.01  0.1  0.1  0.1  0.1  0.1\n"
    "train.clip    \"\"    -    -    -    -    -\n";
  char *got = text_of(tc_compare_text, c);
  is_str(got, text, "runs by their best validation loss, then by their last loss");
  free(got);
}

static void test_json(const struct tc_comparison *c)
{
  json_t *o = tc_compare_json(c), *runs = json_object_get(o, "runs");
  is_int((int64_t)json_array_size(runs), RUNS, "a JSON object of each run");
  char *diverged = json_dumps(json_array_get(runs, 2), JSON_REAL_PRECISION(6)), *none = json_dumps(json_array_get(runs, 4), 0);
  ok(strstr(diverged, "\"loss\": null, \"not_finite\": {\"loss\": \"nan\", \"val_loss\": \"inf\"}, \"val_loss\": null, "
            "\"best_val_loss\": 4.9, \"best_step\": 1, \"tokens\": 200, "), "a loss that is not finite: %s", diverged);
  ok(strstr(none, "\"val_loss\": null, \"best_val_loss\": null, \"best_step\": null") && !strstr(none, "not_finite") &&
     strstr(none, "\"broken_lines\": 1"), "no validation, a line that cannot be read: %s", none);
  is_str(json_string_value(json_object_get(json_object_get(json_array_get(runs, 0), "options"), "train.lr")), "0.01",
         "the options that differ");
  ok(json_is_null(json_object_get(json_object_get(json_array_get(runs, 1), "options"), "train.clip")), "... that a run lacks");
  is_int((int64_t)json_object_size(json_object_get(json_array_get(runs, 0), "options")), 2, "... and no others");
  TC_FREE(diverged, none);
  json_decref(o);
}

/* How often a text is in another. */
static int count(const char *text, const char *what)
{
  int n = 0;
  for (; (text = strstr(text, what)); text += strlen(what)) n++;
  return n;
}

static void test_page(const struct tc_comparison *c)
{
  char *page = text_of(tc_compare_page, c);
  ok(strstr(page, "Of 6 runs <b>b</b> has the lowest validation loss, <b>4.25</b> at step 9.") != NULL, "the page names the best");
  is_int(count(page, "<polyline class=\"line run pale c"), 4, "... has a curve of each run with several losses");
  ok(strstr(page, "<polyline class=\"line run pale c0 d0\" points=\"44.0,") && strstr(page, "<polyline class=\"line run c1 d0\""),
     "... of the validation, too, in the run's colour");
  is_int(count(page, "<tr><td><svg class=\"swatch\""), RUNS, "... a row for each run");
  is_int(count(page, "<th><svg class=\"swatch\""), RUNS, "... and a column of options");
  free(page);
}

static void test_runs(void)
{
  char *folder[RUNS];
  struct tc_comparison c;
  struct tc_err err = { 0 };
  for (int i = 0; i < RUNS; i++) folder[i] = make_run(run[i][0], run[i][1], run[i][2]);
  if (is_int(tc_compare_read(&c, (const char *const *)folder, RUNS, &err), 0, "runs are read %s", err.text)) {
    test_figures(&c);
    test_json(&c);
    test_page(&c);
  }
  tc_compare_free(&c);
  for (int i = 0; i < RUNS; i++) free(folder[i]);
}

/* ---- what is refused, and what does not differ ------------------------------------------- */

static void test_others(void)
{
  char *one = make_run("one", "lr = 1\n", STEP(1, "5", "null", "")), *none = tc_sprintf("%s/none", root);
  char *two = make_run("two<", "lr = 1\n", STEP(1, "6", "null", "")), *empty = tc_sprintf("%s/empty", root), *want;
  struct tc_comparison c;
  struct tc_err err = { 0 };
  mkdir(empty, 0700);
  is_int(tc_compare_read(&c, (const char *const[]){ one, none }, 2, &err), TC_EUSER, "no folder");
  want = tc_sprintf("folder '%s' cannot be read: No such file or directory", none);
  is_str(err.text, want, "... is named");
  tc_compare_free(&c);
  free(want);
  is_int(tc_compare_read(&c, (const char *const[]){ empty, one }, 2, &err), TC_EUSER, "a folder of no run");
  want = tc_sprintf("cannot open run.json %s/run.json: No such file or directory", empty);
  is_str(err.text, want, "... is named");
  tc_compare_free(&c);
  free(want);
  is_int(tc_compare_read(&c, (const char *const[]){ two, one }, 2, &err), 0, "runs with the same options %s", err.text);
  char *text = text_of(tc_compare_text, &c), *page = text_of(tc_compare_page, &c);
  ok(strstr(text, "\n\nno option differs\n") && !strncmp(strchr(text, '\n') + 1, "one ", 4), "... by their last losses");
  ok(strstr(page, "None of 2 runs has a validation loss.") && strstr(page, "two&lt;") && !strstr(page, "two<"),
     "... on a page, with a name that has a letter of HTML");
  tc_compare_free(&c);
  TC_FREE(one, two, none, empty, text, page);
}

/* Forty runs: colours and dashes are different ones, and a terminal's lines are not longer than its tables say. */
static void test_many(void)
{
  enum { MANY = 40 };
  char *folder[MANY], name[40], options[60];
  struct tc_comparison c;
  struct tc_err err = { 0 };
  for (int i = 0; i < MANY; i++) {
    snprintf(name, sizeof name, "sweep-%02d", i);
    snprintf(options, sizeof options, "lr = 0.0%d\nseed = %d\n", i + 1, i / 2);
    folder[i] = make_run(name, options, STEP(1, "5", "4", ""));
  }
  is_int(tc_compare_read(&c, (const char *const *)folder, MANY, &err), 0, "forty runs %s", err.text);
  char *text = text_of(tc_compare_text, &c), *page = text_of(tc_compare_page, &c);
  size_t longest = 0;
  for (const char *at = text; *at; at += strcspn(at, "\n") + 1) longest = TC_MAX(longest, strcspn(at, "\n"));
  ok(longest > 90 && longest <= 120, "lines of %zu letters", longest);
  ok(strstr(text, "\n\nrun       train.lr  train.seed\nsweep-00      0.01           0\n") != NULL, "... a row for each run's options");
  is_int(count(text, "sweep-39"), 2, "... and each run once in a table");
  int different = 0;
  for (int i = 0; i < MANY; i++) {
    char *line = tc_sprintf("<line class=\"line run c%d d%d\"", i % 7, i / 7);
    different += count(page, line) == 3;         /* in both tables and the legend */
    free(line);
  }
  is_int(different, MANY, "... a look for each");
  tc_compare_free(&c);
  for (int i = 0; i < MANY; i++) free(folder[i]);
  TC_FREE(text, page);
}

/* ---- runs that are drawn ----------------------------------------------------------------- */

/* A run with some lines that are cut; its best validation loss, or -1, of those that are not. */
static char *draw_run(int i, double *best)
{
  char name[20], *lines = tc_strdup("");
  *best = -1;
  snprintf(name, sizeof name, "drawn-%d", i);
  for (int64_t step = 1, n = draw(0, 8); step <= n; step++) {
    const int64_t val = draw(-3, 9), cut = draw(0, 4);       /* below 0: none, not finite */
    char value[40];
    snprintf(value, sizeof value, val < 0 ? "null" : "%lld.5", (long long)val);
    char *line = tc_sprintf("{\"step\": %lld, \"step_ms\": 1, \"loss\": %lld, \"val_loss\": %s%s}", (long long)step,
                            (long long)draw(0, 9), value, val == -1 ? ", \"not_finite\": {\"val_loss\": \"nan\"}" : "");
    if (!cut) line[draw(0, (int64_t)strlen(line) - 1)] = 0;
    else if (val >= 0 && (*best < 0 || (double)val + 0.5 < *best)) *best = (double)val + 0.5;
    char *longer = tc_sprintf("%s%s\n", lines, line);
    TC_FREE(lines, line);
    lines = longer;
  }
  char *folder = make_run(name, "lr = 1\n", lines);
  free(lines);
  return folder;
}

static void test_drawn(int cases)
{
  int wrong = 0, unsorted = 0;
  for (int i = 0; i < cases; i++) {
    enum { MOST = 5 };
    const int n = (int)draw(2, MOST);
    char *folder[MOST];
    double best[MOST], before = -1;
    struct tc_comparison c;
    struct tc_err err = { 0 };
    for (int k = 0; k < n; k++) folder[k] = draw_run(k, &best[k]);
    wrong += tc_compare_read(&c, (const char *const *)folder, n, &err) != 0;
    for (int k = 0; k < n; k++) {
      const int which = c.run[k].name[strlen("drawn-")] - '0';
      const double got = c.run[k].best.step ? c.run[k].best.value : -1;
      wrong += got != best[which];
      unsorted += k > 0 && got >= 0 && (before < 0 || got < before);
      before = got;
    }
    TC_FREE(text_of(tc_compare_text, &c), text_of(tc_compare_page, &c));
    json_decref(tc_compare_json(&c));
    tc_compare_free(&c);
    for (int k = 0; k < n; k++) free(folder[k]);
  }
  is_int(wrong, 0, "the best losses of %d times some drawn runs", cases);
  is_int(unsorted, 0, "... in order");
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
  (void)st, (void)type, (void)at;
  return remove(path);
}

int main(int argc, char **argv)
{
  const char *tmp = getenv("TMPDIR");
  snprintf(root, sizeof root, "%.40s/t_compare.XXXXXX", tmp ? tmp : "/tmp");
  TC_ASSERT(mkdtemp(root) != NULL);
  const int cases = begin_cases(argc, argv, 100);
  test_runs();
  test_others();
  test_many();
  test_drawn(cases);
  nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
  return done_testing();
}
