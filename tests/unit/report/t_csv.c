/* t_csv.c - the table of `tercio report --csv`, read back by a naive reader: columns and their order, quoting, cells that are
 * empty, digits; lines that are drawn, of which some are damaged (--cases N, --seed N). */
#include <unistd.h>

#include "src/report/report.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

static char path[80];

static void write_text(const char *text)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f != NULL);
  fputs(text, f);
  fclose(f);
}

/* What is written, owned by the caller; NULL: a failure. */
static char *table_of(struct tc_csv *c, struct tc_err *err)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  const int rc = tc_csv_write(f, c, path, err);
  fclose(f);
  if (rc == 0) return text;
  free(text);
  return NULL;
}

/* ---- a naive reader ---------------------------------------------------------------------- */

/* The cell at *at into buf; *at becomes what follows its comma or its end of line, *last: it ended a row. false: what no
 * writer may write. */
static bool read_cell(const char **at, char *buf, size_t size, bool *last)
{
  const bool quoted = **at == '"';
  const char *s = *at + quoted;
  size_t n = 0;
  for (; quoted ? *s : *s != ',' && *s != '\n'; s++) {
    if (!*s || (!quoted && (*s == '"' || *s == '\r'))) return false;
    if (quoted && *s == '"' && *++s != '"') break;
    TC_ASSERT(n + 1 < size);
    buf[n++] = *s;
  }
  buf[n] = 0;
  *last = *s == '\n';
  *at = s + 1;
  return *s == ',' || *s == '\n';
}

/* A table as {"column": "cell"} of each row; NULL: it is no table. Owned. */
static json_t *read_table(const char *text)
{
  json_t *names = json_array(), *rows = json_array(), *row = NULL;
  char cell[400];
  bool last = false, is_sound = true;
  do is_sound = read_cell(&text, cell, sizeof cell, &last) && json_array_append_new(names, json_string(cell)) == 0;
  while (is_sound && !last);
  while (is_sound && *text) {
    json_array_append_new(rows, row = json_object());
    for (size_t i = 0; is_sound && i < json_array_size(names); i++) {
      is_sound = read_cell(&text, cell, sizeof cell, &last) && last == (i + 1 == json_array_size(names));
      if (is_sound) json_object_set_new(row, json_string_value(json_array_get(names, i)), json_string(cell));
    }
    is_sound = is_sound && json_object_size(row) == json_array_size(names);      /* no name is there twice */
  }
  json_decref(names);
  if (is_sound) return rows;
  json_decref(rows);
  return NULL;
}

/* ---- cases by hand ----------------------------------------------------------------------- */

static void test_columns(void)
{
  struct tc_csv c;
  struct tc_err err = { 0 };
  write_text(
    "{\"step\": 1, \"loss\": 5.5425362587, \"val_loss\": null, \"lr\": 0.000982962897979, \"tokens\": 128, \"step_ms\": 58.0, "
    "\"time\": \"2026-01-31T12:34:56Z\", \"sources\": [{\"name\": \"a,b\", \"share\": 0.5, \"epoch\": 1e-5}, "
    "{\"name\": \"a,b\", \"share\": 0.25}, {\"name\": \"c\\\"d\", \"share\": 0.25}], "
    "\"comm\": {\"dp\": {\"all_reduce\": {\"calls\": 5, \"bytes\": 24576}}, \"tp\": {}, \"ctl\": {\"send\": {\"calls\": 1}}}, "
    "\"bubble\": 0.0}\n"
    "{\"step\": 2, \"loss\": null, \"step_ms\": 1, \"slowest\": {\"rank\": 0, \"host\": \"n,1\"}, "
    "\"comm\": {\"dp+cp\": {\"all_gather\": {\"calls\": 1}}}, \"val_sources\": [{\"name\": \"x\\ny\", \"loss\": null, "
    "\"not_finite\": {\"loss\": \"inf\"}}], \"newer\": true, \"bubble\": 12345678.9012345678, \"not_finite\": {\"loss\": \"nan\"}}\n");
  char *text = table_of(&c, &err);
  is_str(text,
         "step,loss,val_loss,lr,tokens,step_ms,time,slowest.rank,slowest.host,\"sources.a,b.share\",\"sources.a,b (2).share\","
         "\"sources.c\"\"d.share\",\"sources.a,b.epoch\",\"val_sources.x\ny.loss\",comm.dp.all_reduce.calls,"
         "comm.dp+cp.all_gather.calls,comm.dp.all_reduce.bytes,comm.ctl.send.calls,bubble,\"val_sources.x\ny.not_finite.loss\","
         "not_finite.loss,newer\n"
         "1,5.5425362587,,0.000982962897979,128,58.0,2026-01-31T12:34:56Z,,,0.5,0.25,0.25,1e-5,,5,,24576,1,0.0,,,\n"
         "2,,,,,1,,0,\"n,1\",,,,,,,1,,,12345678.901234567,inf,nan,true\n", "columns by metrics.def, then by their first line");
  is_int(c.columns * 100 + c.steps.last, 2202, "... counted, as steps are");
  free(text);
}

/* Where the figures of metrics.def are in a line. */
static void test_places(void)
{
  static const struct { const char *place; enum tc_metric want; } row[] = {
    { "step", TC_METRIC_STEP }, { "steps", TC_METRICS }, { "slowest.rank", TC_METRIC_SLOWEST_RANK }, { "slowest", TC_METRICS },
    { "slowest.rank.x", TC_METRICS }, { "sources[].share", TC_METRIC_SOURCES_SHARE }, { "sources.share", TC_METRICS },
    { "comm.dp.send.bytes", TC_METRIC_COMM_BYTES }, { "comm.ctl.send.bytes", TC_METRIC_CTL_BYTES }, { "comm.dp.send", TC_METRICS },
    { "hashes.17", TC_METRIC_HASHES }, { "not_finite.loss", TC_METRIC_NOT_FINITE }, { "not_finite.nats[2]", TC_METRIC_NOT_FINITE },
    { "", TC_METRICS } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) is_int(tc_metric_at(row[i].place), row[i].want, "%s", row[i].place);
}

static void test_faults(void)
{
  static const struct { const char *text, *why; } row[] = {
    { "", " is empty: no step has ended yet" }, { "{}\nx\n", " has no line with a step and its step_ms; is this a file of tercio train?" },
    { "{\"step\": 2, \"step_ms\": 1}\n{\"step\": 2, \"step_ms\": 1}\n",
      ", line 2: step 2 comes after step 2; did two runs write into one folder?" } };
  char want[200];
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_csv c;
    struct tc_err err = { 0 };
    write_text(row[i].text);
    ok(table_of(&c, &err) == NULL, "no table of fault %zu", i);
    snprintf(want, sizeof want, "%s%s", path, row[i].why);
    is_str(err.text, want, "... with this error");
  }
}

/* ---- lines that are drawn ---------------------------------------------------------------- */

static const char *const names[] = { "web", "a,b", "say \"so\"", "two\nlines", "\xc3\xa9t\xc3\xa9.bin", "cr\rlf", "", " blank ",
                                     "x.y[]" };
enum { NAMES = sizeof names / sizeof *names };

/* A figure of a line, with its text in the cell, which `want` gets below `column`. */
static json_t *drawn(json_t *want, const char *column)
{
  char text[64] = "";
  json_t *v;
  const int64_t kind = draw(0, 4);
  if (kind == 0) {
    v = json_null();
  } else if (kind == 1) {
    const int64_t n = draw(-1000000, 1000000);
    v = json_integer(n);
    snprintf(text, sizeof text, "%lld", (long long)n);
  } else if (kind == 2) {
    const char *name = names[draw(0, NAMES - 1)];
    v = json_string(name);
    snprintf(text, sizeof text, "%s", name);
  } else {
    snprintf(text, sizeof text, "%lld.%05lld1", (long long)draw(1, 99999), (long long)draw(0, 99999));  /* 11 digits at most */
    v = json_loads(text, JSON_DECODE_ANY, NULL);
  }
  json_object_set_new(want, column, json_string(text));
  return v;
}

static void put_drawn(json_t *o, const char *key, json_t *want, const char *before)
{
  char column[200];
  snprintf(column, sizeof column, "%s%s", before, key);
  if (draw(0, 2)) json_object_set_new(o, key, drawn(want, column));
}

/* A line, and its cells. */
static json_t *draw_line(json_t *want, int64_t step)
{
  static const char *const axes[] = { "pp", "dp", "tp", "ctl" };
  char before[200];
  json_t *o = json_pack("{s:I,s:I}", "step", (json_int_t)step, "step_ms", (json_int_t)7), *list = json_array();
  json_t *comm = json_object();
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)step);
  json_object_set_new(want, "step", json_string(text));
  json_object_set_new(want, "step_ms", json_string("7"));
  put_drawn(o, "loss", want, "");
  put_drawn(o, "val_loss", want, "");
  put_drawn(o, "odd, \"key\"", want, "");
  for (int64_t i = draw(0, NAMES - 1); i < NAMES; i++) {
    json_t *member = json_pack("{s:s}", "name", names[i]);
    snprintf(before, sizeof before, "sources.%s.", names[i]);
    put_drawn(member, "share", want, before);
    put_drawn(member, "epoch", want, before);
    json_array_append_new(list, member);
  }
  json_object_set_new(o, "sources", list);
  for (int i = 0; i < 4; i++) {
    json_t *send = json_object();
    snprintf(before, sizeof before, "comm.%s.send.", axes[i]);
    put_drawn(send, "calls", want, before);
    put_drawn(send, "bytes", want, before);
    json_object_set_new(comm, axes[i], json_pack("{s:o}", "send", send));
  }
  json_object_set_new(o, "comm", comm);
  return o;
}

/* Whether each row has the cells of a step, in its other columns nothing. */
static bool is_same(const json_t *rows, const json_t *want)
{
  size_t i;
  const char *column;
  json_t *row, *cell, *cells;
  if (json_array_size(rows) != json_array_size(want)) return false;
  json_array_foreach(rows, i, row) {
    cells = json_array_get(want, i);
    json_object_foreach(cells, column, cell)
      if (!json_object_get(row, column)) return false;
    json_object_foreach(row, column, cell) {
      const json_t *expected = json_object_get(cells, column);
      if (strcmp(json_string_value(cell), expected ? json_string_value(expected) : "") != 0) return false;
    }
  }
  return true;
}

/* Some lines end too soon: they are no rows. In some files a byte is another one: whatever is read is a table. */
static void test_drawn(int cases)
{
  int wrong = 0, no_table = 0;
  for (int i = 0; i < cases; i++) {
    json_t *want = json_array();
    char *text = tc_strdup("");
    const bool flips = i % 4 == 3;
    int64_t broken = 0;
    for (int64_t step = 1, n = draw(1, 12); step <= n; step++) {
      json_t *cells = json_object(), *line = draw_line(cells, step);
      char *dumped = json_dumps(line, JSON_REAL_PRECISION(12));
      const bool cut = step > 1 && draw(0, 5) == 0;
      if (cut) dumped[draw(0, (int64_t)strlen(dumped) - 1)] = 0, broken++;
      else json_array_append(want, cells);
      char *longer = tc_sprintf("%s%s\n", text, dumped);
      TC_FREE(text, dumped);
      text = longer;
      json_decref(line);
      json_decref(cells);
    }
    if (flips) text[draw(0, (int64_t)strlen(text) - 1)] = (char)draw(1, 127);
    write_text(text);
    struct tc_csv c;
    struct tc_err err = { 0 };
    char *table = table_of(&c, &err);
    json_t *rows = table ? read_table(table) : NULL;
    no_table += table ? !rows : !*err.text;
    wrong += !flips && (!rows || !is_same(rows, want) || c.steps.broken != broken);
    TC_FREE(text, table);
    json_decref(rows);
    json_decref(want);
  }
  is_int(wrong, 0, "tables of %d drawn files have the figures of their lines", cases);
  is_int(no_table, 0, "... and rows of as many cells as there are columns");
}

int main(int argc, char **argv)
{
  const char *tmp = getenv("TMPDIR");
  snprintf(path, sizeof path, "%.40s/t_csv.XXXXXX", tmp ? tmp : "/tmp");
  const int fd = mkstemp(path);
  TC_ASSERT(fd >= 0);
  close(fd);
  const int cases = begin_cases(argc, argv, 400);
  test_columns();
  test_places();
  test_faults();
  test_drawn(cases);
  unlink(path);
  return done_testing();
}
