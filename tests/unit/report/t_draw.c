/* t_draw.c - what `tercio report` draws and reads, on small data whose places on the page can be
 * worked out by hand. Whole pages are m_trace's. */
#include "src/report/report.h"
#include "tests/unit/tap.h"

#include <unistd.h>

/* ---- curves ------------------------------------------------------------------------------ */

/* What stands after each `before` in text, up to `end`, with a blank after it. */
static const char *between(char *buf, size_t size, const char *text, const char *before, char end)
{
  size_t n = 0;
  *buf = 0;
  for (const char *s = text; (s = strstr(s, before)); ) {
    s += strlen(before);
    n += (size_t)snprintf(buf + n, size - n, "%.*s ", (int)(strchr(s, end) - s), s);
    TC_ASSERT(n < size);
  }
  return buf;
}

static char *chart(const struct tc_series *a, const struct tc_series *b, bool from_zero)
{
  const struct tc_line line[] = { { a, "first", "c0" }, { b, "second", "c1" } };
  const struct tc_chart c = { .title = "a < b", .unit = " s", .from_zero = from_zero, .line = line, .n_lines = b ? 2 : 1 };
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  tc_chart_svg(f, &c);
  fclose(f);
  return text;
}

/* The scale of y, upwards from 183 to 10; of x, from 44 to 368; the points. */
static void test_charts(void)
{
  static const struct {
    const char *what;
    int n;
    double x[5], y[5];
    bool from_zero;
    const char *up, *across, *points;
  } row[] = {
    { "a curve", 5, { 1, 2, 3, 4, 5 }, { 1, 2, 4, 3, 2.5 }, false, "1 2 3 4 ", "1 2 3 4 5 ",
      "44.0,183.0 125.0,125.3 206.0,10.0 287.0,67.7 368.0,96.5 " },
    { "a curve of two decades", 3, { 0, 6, 12 }, { 100, 10, 1 }, false, "1 10 100 ", "0 2 4 6 8 10 12 ",
      "44.0,10.0 206.0,96.5 368.0,183.0 " },
    { "... from zero", 3, { 0, 6, 12 }, { 100, 10, 1 }, true, "0 20 40 60 80 100 ", "0 2 4 6 8 10 12 ",
      "44.0,10.0 206.0,165.7 368.0,181.3 " },
    { "a level line", 2, { 1000, 1600 }, { 2000, 2000 }, false, "1.8 k 1.9 k 2 k 2.1 k 2.2 k ",
      "1 k 1.1 k 1.2 k 1.3 k 1.4 k 1.5 k 1.6 k ", "44.0,96.5 368.0,96.5 " },
    { "a line that is nearly level", 2, { 1000, 1600 }, { 2000, 2000.001 }, false,
      "1.7 k 1.8 k 1.9 k 2 k 2.1 k 2.2 k 2.3 k ", "1 k 1.1 k 1.2 k 1.3 k 1.4 k 1.5 k 1.6 k ",
      "44.0,96.5 368.0,96.5 " },
    { "a line of zeros", 2, { 1, 2 }, { 0, 0 }, false, "-1 -0.5 0 0.5 1 ", "1 2 ",
      "44.0,96.5 368.0,96.5 " },
    { "below and above zero", 2, { 1, 2 }, { -1, 1 }, false, "-1 -0.5 0 0.5 1 ", "1 2 ",
      "44.0,183.0 368.0,10.0 " },
    { "from nothing to much", 2, { 1, 2 }, { 0, 100 }, false, "0 20 40 60 80 100 ", "1 2 ",
      "44.0,183.0 368.0,10.0 " },
    { "fifty times as much", 2, { 1, 2 }, { 2, 100 }, false, "0 20 40 60 80 100 ", "1 2 ",
      "44.0,179.5 368.0,10.0 " },
    { "a little more", 2, { 1, 2 }, { 2, 100.5 }, false, "1 10 100 1 k ", "1 2 ",
      "44.0,165.6 368.0,67.5 " },
    { "from zero, far above it", 2, { 1, 2 }, { 500, 600 }, true, "0 200 400 600 ", "1 2 ",
      "44.0,38.8 368.0,10.0 " },
    { "large numbers", 2, { 1, 2 }, { -3e6, 4e9 }, false, "-1 G 0 1 G 2 G 3 G 4 G ", "1 2 ",
      "44.0,148.5 368.0,10.0 " },
    { "larger ones", 2, { 0, 4e18 }, { 1e12, 3e15 }, true, "0 1 P 2 P 3 P ",
      "0 500 P 1000 P 1500 P 2000 P 2500 P 3000 P 3500 P 4000 P ",
      "44.0,182.9 368.0,10.0 " },
    { "one point", 1, { 10 }, { 5 }, false, "4.4 4.6 4.8 5 5.2 5.4 5.6 ", "9 10 11 ", "" },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    double x[5], y[5];
    char got[400], up[100];
    memcpy(x, row[i].x, sizeof x);
    memcpy(y, row[i].y, sizeof y);
    const struct tc_series s = { .x = x, .y = y, .n = row[i].n };
    char *text = chart(&s, NULL, row[i].from_zero);
    is_str(between(got, sizeof got, text, "text-anchor=\"middle\">", '<'), row[i].across,
           "%s: steps", row[i].what);
    snprintf(up, sizeof up, "%sstep ", row[i].up);
    is_str(between(got, sizeof got, text, "text-anchor=\"end\">", '<'), up, "... values");
    is_str(between(got, sizeof got, text, " points=\"", '"'), row[i].points, "... points");
    between(got, sizeof got, text, "<circle class=\"dot c0\"", '/');
    ok(*got, "... with dots, as there are few");
    free(text);
  }
}

static void test_lines(void)
{
  double x[30], y[30], z[30];
  char got[900];
  for (int i = 0; i < 30; i++) x[i] = i, y[i] = i, z[i] = 58 - i;
  const struct tc_series none = { .n = 0 }, a = { .x = x, .y = y, .n = 30 }, b = { .x = x, .y = z, .n = 30 };
  char *text = chart(&a, &b, false);
  ok(strstr(text, "<figcaption>a &lt; b") != NULL, "a title is escaped");
  is_str(between(got, sizeof got, text, "<b>", '<'), "29 s 29 s ", "the last values");
  is_str(between(got, sizeof got, text, "<polyline class=\"line ", '"'), "c0 c1 ", "two lines");
  ok(strstr(text, "points=\"44.0,183.0 ") && strstr(text, "points=\"44.0,") && strstr(text, " 368.0,"),
     "both from the first step to the last");
  ok(!strstr(text, "<circle"), "many points have no dots");
  free(text);
  const struct tc_series low = { .x = x + 3, .y = y, .n = 4 }, high = { .x = x, .y = z, .n = 21 },
                         most = { .x = x, .y = z, .n = 20 }, one = { .x = x + 25, .y = z, .n = 1 };
  text = chart(&low, &high, false);
  is_str(between(got, sizeof got, text, "text-anchor=\"end\">", '<'), "0 10 20 30 40 50 60 step ",
         "a scale for both lines");
  is_str(between(got, sizeof got, text, "text-anchor=\"middle\">", '<'),
         "0 2 4 6 8 10 12 14 16 18 20 ", "... steps, too");
  is_str(between(got, sizeof got, text, "<circle class=\"dot ", '"'), "c0 c0 c0 c0 ",
         "dots of the line that has few");
  free(text);
  text = chart(&most, &none, false);
  ok(strstr(text, "<circle") && strstr(text, "<b>39 s</b>") && !strstr(text, "second"),
     "twenty are few");
  free(text);
  text = chart(&low, &one, false);
  is_str(between(got, sizeof got, text, "<polyline class=\"line ", '"'), "c0 ", "one point is no line");
  is_str(between(got, sizeof got, text, "<circle class=\"dot ", '"'), "c0 c0 c0 c0 c1 ", "... but a dot");
  free(text);
  text = chart(&none, &a, false);
  is_str(between(got, sizeof got, text, "<polyline class=\"line ", '"'), "c1 ", "a line without values is not drawn");
  free(text);
  text = chart(&none, &none, false);
  ok(strstr(text, "no numbers") && !strstr(text, "<svg"), "no values, no curve");
  free(text);
}

/* Changes of layout are marked between the steps, where the curve has them: here 27 to a step, from 44. */
static void test_marks(void)
{
  double x[13], y[13];
  char got[100];
  for (int i = 0; i < 13; i++) x[i] = i, y[i] = i;
  const struct tc_series s = { .x = x, .y = y, .n = 13 };
  char a[] = "pp 1 -> 2", b[] = "x", c[] = "y";
  struct tc_layout_change change[] = { { 3, a }, { 12, b }, { 20, c } };
  const struct tc_layouts l = { .change = change, .n = 3, .after = 20 };
  const struct tc_line line = { &s, "one", "c0" };
  const struct tc_chart chart = { .title = "t", .unit = "", .line = &line, .n_lines = 1, .layouts = &l };
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  tc_chart_svg(f, &chart);
  fclose(f);
  is_str(between(got, sizeof got, text, "<line class=\"mark\" x1=\"", '"'), "138.5 ", "a mark between steps 3 and 4");
  ok(strstr(text, "<title>after step 3: pp 1 -&gt; 2</title></line>") != NULL, "... says what changed");
  free(text);
}

static void test_numbers(void)
{
  static const struct { double x; const char *want; } row[] = {
    { 0, "0" }, { 7, "7" }, { 999, "999" }, { 999.4, "999" }, { 999.5, "1.00 k" }, { 1000, "1.00 k" },
    { 12345, "12.3 k" }, { 123456, "123 k" }, { 1e6, "1.00 M" }, { 5.5e9, "5.50 G" }, { -2e12, "-2.00 T" },
    { 3e15, "3.00 P" }, { 4e18, "4000 P" }, { 0.5, "0.50" }, { 0.05, "0.0500" }, { 9.994, "9.99" },
    { 9.996, "10.0" }, { 99.96, "100" } };
  char buf[40];
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    is_str(tc_si(buf, sizeof buf, row[i].x), row[i].want, "%g", row[i].x);
}

static void test_thin(void)
{
  double x[101], y[101];
  for (int i = 0; i < 101; i++) x[i] = i, y[i] = i % 2 ? 1 : -1;
  y[33] = 50, y[77] = -50;
  struct tc_series s = { .x = x, .y = y, .n = 101 };
  near_f(tc_series_recent(&(struct tc_series){ .x = x, .y = x, .n = 61 }, 0, 1000), 35.5, 1e-9,
         "the median of the last 50 points");
  tc_series_thin(&s, 101);
  is_int(s.n, 101, "nothing to thin");
  tc_series_thin(&s, 20);
  ok(s.n > 10 && s.n <= 21, "at most about 20 points: %d", s.n);
  double low = 0, high = 0;
  bool order = true;
  for (int i = 0; i < s.n; i++) {
    low = TC_MIN(low, s.y[i]), high = TC_MAX(high, s.y[i]);
    order &= i == 0 || s.x[i] > s.x[i - 1];
  }
  ok(low == -50 && high == 50 && order, "... with the extremes, in order");
  ok(s.x[s.n - 1] == 100 && s.y[s.n - 1] == -1, "... and the last");

  /* As many as there may be stay, even where two next to each other are the same. */
  for (int i = 0; i < 101; i++) y[i] = 1;
  s = (struct tc_series){ .x = x, .y = y, .n = 100 };
  tc_series_thin(&s, 100);
  is_int(s.n, 100, "no more than may be: all stay");
  tc_series_thin(&s, 99);
  is_int(s.n, 50, "one more: one of each level run, and the last");

  /* Each run's extremes are its ends, next to those of its neighbours: no point is taken twice. */
  for (int i = 0; i < 101; i++) x[i] = i, y[i] = i;
  s = (struct tc_series){ .x = x, .y = y, .n = 101 };
  tc_series_thin(&s, 20);
  bool twice = false;
  for (int i = 1; i < s.n; i++) twice |= s.x[i] <= s.x[i - 1];
  ok(s.n == 21 && !twice && s.x[1] == 9 && s.x[2] == 10, "a rising series: both ends of each run, and the last");
}

/* ---- the timeline ------------------------------------------------------------------------ */

enum { PP = TC_TRACK_COMM };     /* its number */

static void add(struct tc_timeline *t, int lane, int track, int kind, int mb, double from_ms, double to_ms)
{
  TC_GROW(t->span, t->n_spans, t->cap_spans);
  t->span[t->n_spans++] = (struct tc_span){ 1e3 * from_ms, 1e3 * to_ms, mb, (int16_t)lane, (uint8_t)track,
                                            (uint8_t)kind };
  t->lane[lane].busy_us[kind] += 1e3 * (to_ms - from_ms);
}

/* Two ranks, 10 ms from 5 ms on: 84 units of the page each. */
static void test_timeline(void)
{
  static const char *const boxes =
    "ev-f\" x=\"150.00\" y=\"4.0\" width=\"168.00\" height=\"20.0 forward, micro-batch 0, 2.000 ms, 1 event\n"
    "ev-b\" x=\"318.00\" y=\"4.0\" width=\"168.00\" height=\"20.0 backward, micro-batch 0, 2.000 ms, 3 events\n"
    "ev-b\" x=\"486.00\" y=\"4.0\" width=\"84.00\" height=\"20.0 backward, micro-batch 1, 1.000 ms, 1 event\n"
    "ev-w\" x=\"570.00\" y=\"4.0\" width=\"84.00\" height=\"20.0 weights, micro-batch 1, 1.000 ms, 2 events\n"
    "ev-pp\" x=\"906.00\" y=\"25.0\" width=\"84.00\" height=\"7.0 communication, 1.000 ms, 1 event\n"
    "ev-f\" x=\"150.00\" y=\"42.0\" width=\"168.00\" height=\"20.0 forward, micro-batch 10, 2.000 ms, 2 events\n"
    "ev-f\" x=\"402.00\" y=\"42.0\" width=\"84.00\" height=\"20.0 forward, micro-batch 10, 1.000 ms, 1 event\n"
    "ev-u\" x=\"486.00\" y=\"42.0\" width=\"8.40\" height=\"20.0 update, 0.100 ms, 1 event\n";
  struct tc_timeline t = { .n_ranks = 2, .n_lanes = 2, .begin_us = 5000, .end_us = 15000, .step = 7,
                           .lane = { { .rank = 0, .name = "rank 0, a&b" }, { .rank = 3, .name = "rank 3" } } };
  char *text = NULL, got[1000], all[2000] = "";
  size_t size = 0, n = 0;
  t.track[PP] = "comm pp";
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_FORWARD, 0, 5, 7);
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_BACKWARD, 0, 7, 8);
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_WEIGHT, 0, 8, 8.5);
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_BACKWARD, 0, 8.5, 9);
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_BACKWARD, 1, 9, 10);
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_WEIGHT, 1, 10, 10.5);
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_WEIGHT, 1, 10.5, 11);
  add(&t, 0, TC_TRACK_COMPUTE, TC_EV_WAIT, -1, 11, 12);
  add(&t, 0, PP, TC_EV_COMM, -1, 14, 15);
  add(&t, 1, TC_TRACK_COMPUTE, TC_EV_FORWARD, 10, 5, 6);
  add(&t, 1, TC_TRACK_COMPUTE, TC_EV_FORWARD, 10, 6.001, 7);
  add(&t, 1, TC_TRACK_COMPUTE, TC_EV_FORWARD, 10, 8, 9);
  add(&t, 1, TC_TRACK_COMPUTE, TC_EV_UPDATE, -1, 9, 9.1);
  FILE *f = open_memstream(&text, &size);
  tc_timeline_svg(f, &t);
  fclose(f);
  for (const char *s = text; (s = strstr(s, "<rect class=\"ev-")); ) {
    s += strlen("<rect class=\"");
    const char *title = strstr(s, "\"><title>"), *end = strstr(s, "</title>");
    n += (size_t)snprintf(all + n, sizeof all - n, "%.*s %.*s\n", (int)(title - s), s,
                          (int)(end - title - 9), title + 9);
  }
  is_str(all, boxes, "what each rank did, and when");
  is_str(between(got, sizeof got, text, "text-anchor=\"middle\">", '<'),
         "0 ms 1 ms 2 ms 3 ms 4 ms 5 ms 6 ms 7 ms 8 ms 9 ms 10 ms ", "a grid of ms");
  is_str(between(got, sizeof got, text, "<line class=\"grid\" x1=\"", '"'),
         "150.0 234.0 318.0 402.0 486.0 570.0 654.0 738.0 822.0 906.0 990.0 ", "... at its places");
  is_str(between(got, sizeof got, text, "class=\"mb\"", '/'), " x=\"234.0\" y=\"18.0\">0<  x=\"402.0\" "
         "y=\"18.0\">0<  x=\"528.0\" y=\"18.0\">1<  x=\"612.0\" y=\"18.0\">1<  x=\"234.0\" y=\"56.0\">10<  "
         "x=\"444.0\" y=\"56.0\">10< ", "micro-batches' numbers");
  is_str(between(got, sizeof got, text, "class=\"rank\" x=\"0\" y=\"", '<'), "18.0\">rank 0  56.0\">rank 3 ",
         "ranks");
  ok(strstr(text, "a&amp;b</tspan>") != NULL, "... the node, escaped");
  ok(strstr(text, ">60 %, waits 10 %<") && strstr(text, ">31 %, waits 0 %<"), "... how busy they were");
  free(text);
  free(t.span);
}

/* Sizes at which something changes, in units of the page: a ms is 84 of them. */
static void test_sizes(void)
{
  static const struct {
    int lanes, mb;
    double wide, gap;
    const char *numbers;
    int boxes;
    const char *what;
  } row[] = {
    { 1, 9, 9.9, 9, "", 2, "too narrow for a number" },
    { 1, 9, 10.1, 9, "9< 9< ", 2, "wide enough" },
    { 1, 10, 15.9, 9, "", 2, "too narrow for two digits" },
    { 1, 10, 16.1, 9, "10< 10< ", 2, "wide enough for them" },
    { 1, 0, 12, 9, "0< 0< ", 2, "the first micro-batch" },
    { 1, -1, 40, 9, "", 2, "no micro-batch" },
    { 16, 3, 40, 9, "3< 3< ", 2, "16 ranks" },
    { 17, 3, 40, 9, "", 2, "17 ranks, whose rows are low" },
    { 1, 3, 40, 0.59, "3< ", 1, "a gap too small to see" },
    { 1, 3, 40, 0.61, "3< 3< ", 2, "one that can be seen" },
    { 1, 3, 0.019, 9, "", 0, "too narrow for a box" },
    { 1, 3, 0.021, 9, "", 2, "a box" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_timeline t = { .n_ranks = row[i].lanes, .n_lanes = row[i].lanes, .end_us = 10000 };
    char *text = NULL, got[200], name[] = "rank";
    size_t size = 0;
    int boxes = 0;
    for (int l = 0; l < row[i].lanes; l++) t.lane[l].name = name;
    double end = 1 + row[i].wide / 84, next = end + row[i].gap / 84;
    add(&t, 0, TC_TRACK_COMPUTE, TC_EV_FORWARD, row[i].mb, 1, end);
    add(&t, 0, TC_TRACK_COMPUTE, TC_EV_FORWARD, row[i].mb, next, next + row[i].wide / 84);
    FILE *f = open_memstream(&text, &size);
    tc_timeline_svg(f, &t);
    fclose(f);
    for (const char *s = text; (s = strstr(s, "<rect class=\"ev-f\"")); s++) boxes++;
    for (char *s = text; (s = strstr(s, "class=\"mb\"")); s++) {
      const char *end = strchr(s, '>') + 1;                  /* without their places */
      memmove(s + strlen("class=\"mb\" "), end, strlen(end) + 1);
    }
    is_str(between(got, sizeof got, text, "class=\"mb\" ", '/'), row[i].numbers, "%s: numbers",
           row[i].what);
    is_int(boxes, row[i].boxes, "... boxes");
    free(text);
    free(t.span);
  }
}

/* Transfers are drawn below, by what their track is of. */
static void test_tracks(void)
{
  static const struct { const char *name; int kind; const char *css; } row[] = {
    { "comm pp", TC_EV_COMM, "ev-pp" }, { "comm dp", TC_EV_COMM, "ev-dp" },
    { "comm tp", TC_EV_COMM, "ev-tp" }, { "comm world", TC_EV_COMM, "ev-world" },
    { NULL, TC_EV_COMM, "ev-world" }, { "comm dp", TC_EV_CONTROL, "ev-dp" },
    { "comm dp", TC_EV_COPY, "ev-copy" }, { "a", TC_EV_CKPT, "ev-ckpt" },
    { "a", TC_EV_EVAL, "ev-u" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_timeline t = { .n_ranks = 1, .n_lanes = 1, .begin_us = 0, .end_us = 10000 };
    char *text = NULL, got[200], want[20], name[] = "rank";
    char *track = row[i].name ? tc_strdup(row[i].name) : NULL;
    size_t size = 0;
    t.lane[0].name = name;
    t.track[255] = track;
    add(&t, 0, 255, row[i].kind, -1, 1, 2);
    FILE *f = open_memstream(&text, &size);
    tc_timeline_svg(f, &t);
    fclose(f);
    snprintf(want, sizeof want, "%s 25.0 ", row[i].css);
    const char *at = strstr(text, "<rect class=\"ev-");
    snprintf(got, sizeof got, "%.*s %.4s ", (int)strcspn(at + 13, "\""), at + 13,
             strstr(at, " y=\"") + 4);
    is_str(got, want, "a track %s", row[i].name ? row[i].name : "without a name");
    free(text);
    free(track);
    free(t.span);
  }
}

/* ---- files ------------------------------------------------------------------------------- */

static char path[80];

static void write_trace(const double *length_ms, int n)
{
  FILE *f = fopen(path, "w");
  double at = 1000;
  fprintf(f, "{\"traceEvents\":[\n");
  for (int r = 0; r < 2; r++)
    fprintf(f, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d, n%d\"}},\n"
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":4,\"args\":{\"name\":\"comm dp\"}},\n",
            r, r, r, r);
  for (int r = 0; r < 2; r++, at = 1000)
    for (int i = 0; i < n; at += 1e3 * length_ms[i++]) {
      fprintf(f, "{\"name\":\"step\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%g,\"dur\":%g,"
              "\"args\":{\"step\":%d}},\n", tc_event_kind_name[TC_EV_STEP], r, at, 1e3 * length_ms[i], i + 3);
      for (int k = 1; k >= 0; k--)
        fprintf(f, "{\"name\":\"F\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%g,\"dur\":%g,"
                "\"args\":{\"step\":%d,\"mb\":%d}},\n", tc_event_kind_name[TC_EV_FORWARD], r,
                TC_TRACK_COMPUTE, at + 100 * k, k ? 1e6 : 100, i + 3, k);
    }
  fprintf(f, "{}],\n\"otherData\":{\"first_step\":3,\"last_step\":%d,\"events\":40,\"dropped\":2,"
          "\"clock_error_us\":1.5}}\n", n + 2);
  fclose(f);
}

static void test_trace(void)
{
  static const struct { int n; double ms[6]; int step; const char *what; } row[] = {
    { 6, { 90, 5, 1, 4, 2, 3 }, 8, "the step of median length" },
    { 5, { 1, 7, 8, 6, 9 }, 5, "the upper one of four" },
    { 4, { 1, 2, 2, 2 }, 5, "the middle one of equals" },
    { 2, { 2, 9 }, 4, "not the first" },
    { 1, { 2 }, 3, "the only one" } };
  struct tc_timeline t;
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    write_trace(row[i].ms, row[i].n);
    if (is_int(tc_timeline_read(&t, path, 0, &err), 0, "a trace of %d steps %s", row[i].n, err.text))
      is_int(t.step, row[i].step, "... is drawn by %s", row[i].what);
    tc_timeline_free(&t);
  }
  write_trace(row[0].ms, row[0].n);
  if (is_int(tc_timeline_read(&t, path, 4, &err), 0, "a step by its number %s", err.text)) {
    ok(t.step == 4 && t.n_ranks == 2 && t.n_lanes == 2 && t.first_step == 3 && t.last_step == 8 &&
       t.events == 40 && t.dropped == 2 && t.clock_error_us == 1.5, "... what the trace has");
    ok(t.begin_us == 91000 && t.end_us == 96000, "... from %g to %g us", t.begin_us, t.end_us);
    is_str(t.track[4], "comm dp", "... a track's name");
    is_str(t.lane[1].name, "rank 1, n1", "... a rank's");
    ok(t.lane[1].busy_us[TC_EV_FORWARD] == 5000, "... no event outlasts its step");
    bool fine = t.n_spans == 4;
    for (int i = 0; fine && i < 4; i++)
      fine = t.span[i].lane == i / 2 && t.span[i].mb == i % 2 && t.span[i].begin_us == 91000 + 100 * (i % 2);
    ok(fine, "... its events, in their order");
    tc_timeline_free(&t);
  }
  is_int(tc_timeline_read(&t, path, 9, &err), TC_EUSER, "a step that is not there");
  ok(strstr(err.text, "no step 9 of all ranks; it has 3 to 8") != NULL, "... %s", err.text);
  is_int(tc_timeline_read(&t, path, 2, &err), TC_EUSER, "... nor before the first");
}

static void test_metrics(void)
{
  struct tc_metrics m;
  struct tc_err err = { 0 };
  FILE *f = fopen(path, "w");
  for (int i = 4; i < 10; i++)
    fprintf(f, i == 6 ? "{\"step\": 6, \"lo\n" : "{\"step\": %d, \"loss\": %d.5, \"step_ms\": 500, \"tokens\": %d, "
            "\"slowest\": {\"rank\": %d, \"work_ms\": 6, \"median_ms\": 4, \"host\": \"n%d\"}%s}\n", i, i, 100 * i,
            i % 3, i % 3, i == 9 ? ", \"val_loss\": 3" : i == 8 ? ", \"comm\": {\"dp\": 8}" : "");
  fclose(f);
  if (!is_int(tc_metrics_read(&m, path, 0, &err), 0, "metrics %s", err.text)) return;
  ok(m.steps.first == 4 && m.steps.last == 9 && m.steps.lines == 6, "the first step and the last");
  ok(m.steps.broken == 1 && m.steps.first_broken == 3, "a line cut short is counted");
  ok(m.loss.n == 5 && m.loss.x[2] == 7 && m.loss.y[2] == 7.5 && m.val.n == 1 && m.norm.n == 0, "losses");
  ok(m.tokens == 900 && m.seconds == 2.5, "tokens and seconds");
  ok(m.comm_step == 8 && tc_json_int(m.comm, "dp") == 8, "bytes of the last step without an evaluation");
  ok(m.n_slow == 3 && m.slow[1].steps == 2 && m.slow[1].times == 3 && m.slow_steps == 5, "stragglers");
  is_str(m.slow[2].host, "n2", "... and their nodes");
  is_int(tc_metrics_slowest(&m), 1, "... the first of those that were it most often");
  tc_metrics_free(&m);
  f = fopen(path, "w");
  fputs("{\"step\": 2, \"step_ms\": 1}\n{\"step\": 2, \"step_ms\": 1}\n", f);
  fclose(f);
  is_int(tc_metrics_read(&m, path, 0, &err), TC_EUSER, "a step twice");
  ok(strstr(err.text, "line 2: step 2 comes after step 2") != NULL, "... %s", err.text);
}

int main(void)
{
  const char *tmp = getenv("TMPDIR");
  snprintf(path, sizeof path, "%.40s/t_draw.XXXXXX", tmp ? tmp : "/tmp");
  int fd = mkstemp(path);
  TC_ASSERT(fd >= 0);
  close(fd);
  test_numbers();
  test_thin();
  test_charts();
  test_lines();
  test_marks();
  test_timeline();
  test_sizes();
  test_tracks();
  test_trace();
  test_metrics();
  unlink(path);
  return done_testing();
}
