/* draw.c - curves and the timeline, as inline SVG.
 *
 * Colours are classes of the page's style sheet, so that they adapt to light or dark mode. */
#include "src/graph/mesh.h"
#include "src/report/report.h"

#include <math.h>
#include <string.h>

void tc_html(FILE *f, const char *s)
{
  for (; *s; s++) {
    if (*s == '<') fputs("&lt;", f);
    else if (*s == '>') fputs("&gt;", f);
    else if (*s == '&') fputs("&amp;", f);
    else if (*s == '"') fputs("&quot;", f);
    else fputc(*s, f);
  }
}

const char *tc_si(char *buf, size_t size, double x)
{
  const char *const unit[] = { "", " k", " M", " G", " T", " P" };
  int u = 0;
  for (; fabs(x) >= 999.5 && u < 5; u++) x /= 1000;
  double a = fabs(x);
  int digits = u == 0 && a == floor(a) ? 0 : a >= 99.95 ? 0 : a >= 9.995 ? 1 : a >= 0.1 ? 2 : 4;
  snprintf(buf, size, "%.*f%s", digits, x, unit[u]);
  return buf;
}

/* The same for the labels of an axis: no trailing zeros. */
static const char *tick(char *buf, size_t size, double x)
{
  const char *const unit[] = { "", " k", " M", " G", " T", " P" };
  int u = 0;
  for (; fabs(x) >= 1000 && u < 5; u++) x /= 1000;
  snprintf(buf, size, "%.4g%s", x, unit[u]);
  return buf;
}

/* ---- curves ------------------------------------------------------------------------------ */

enum { WIDE = 380, HIGH = 215, PAGE_WIDE = 1100, PAGE_HIGH = 420, LEFT = 44, RIGHT = 12, TOP = 10, BOTTOM = 32 };

struct axes { double x0, x1, y0, y1, step; bool log; int wide, high; };

static double at_x(const struct axes *a, double x)
{
  return LEFT + (x - a->x0) / (a->x1 - a->x0) * (a->wide - LEFT - RIGHT);
}

static double at_y(const struct axes *a, double y)
{
  double part = a->log ? log(y / a->y0) / log(a->y1 / a->y0) : (y - a->y0) / (a->y1 - a->y0);
  return a->high - BOTTOM - part * (a->high - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, which divides `span` into about n parts. */
static double nice_step(double span, int n)
{
  double raw = span / n, p = pow(10, floor(log10(raw))), m = raw / p;
  return p * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

/* The smallest axes that contain all lines, rounded outward. Logarithmic if a few extremes would
 * flatten all other points. */
static struct axes make_axes(const struct tc_chart *c)
{
  struct axes a = { INFINITY, -INFINITY, INFINITY, -INFINITY, 1, false, c->wide ? PAGE_WIDE : WIDE,
                    c->wide ? PAGE_HIGH : HIGH };
  for (int k = 0; k < c->n_lines; k++)
    for (int i = 0; i < c->line[k].s->n; i++) {
      double x = c->line[k].s->x[i], y = c->line[k].s->y[i];
      a.x0 = TC_MIN(a.x0, x);
      a.x1 = TC_MAX(a.x1, x);
      a.y0 = TC_MIN(a.y0, y);
      a.y1 = TC_MAX(a.y1, y);
    }
  if (a.x1 <= a.x0) {
    a.x0 -= 1;
    a.x1 += 1;
  }
  a.log = !c->from_zero && a.y0 > 0 && a.y1 / a.y0 > 50;
  if (a.log) {
    a.y0 = pow(10, floor(log10(a.y0)));
    a.y1 = pow(10, ceil(log10(a.y1)));
    return a;
  }
  if (c->from_zero) a.y0 = TC_MIN(a.y0, 0);
  if (a.y1 - a.y0 < 1e-6 * fabs(a.y1) || a.y1 <= a.y0) {
    double d = a.y1 != 0 ? fabs(a.y1) * 0.1 : 1;
    a.y0 -= d;
    a.y1 += d;
  }
  a.step = nice_step(a.y1 - a.y0, 4);
  a.y0 = floor(a.y0 / a.step + 1e-9) * a.step;
  a.y1 = ceil(a.y1 / a.step - 1e-9) * a.step;
  return a;
}

static void put_grid(FILE *f, const struct axes *a)
{
  char s[32];
  for (int i = 0; i < 40; i++) {
    double y = a->log ? a->y0 * pow(10, i) : a->y0 + i * a->step;
    if (y > a->y1 * (a->log ? 1.001 : 1) + (a->log ? 0 : a->step * 1e-6)) break;
    if (fabs(y) < a->step * 1e-9 && !a->log) y = 0;
    fprintf(f, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT,
            a->wide - RIGHT, at_y(a, y), at_y(a, y), LEFT - 6, at_y(a, y) + 4, tick(s, sizeof s, y));
  }
  double step = TC_MAX(1, nice_step(a->x1 - a->x0, 6));
  for (double x = ceil(a->x0 / step) * step; x <= a->x1 + step * 1e-6; x += step)
    fprintf(f, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
            at_x(a, x), a->high - BOTTOM + 15, tick(s, sizeof s, x));
  fprintf(f, "<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">step</text>\n",
          a->wide - RIGHT, a->high - 2);
}

/* A line between the last step of one layout and the first of the next. */
static void put_marks(FILE *f, const struct axes *a, const struct tc_layouts *l)
{
  for (int i = 0; l && i < l->n; i++) {
    const double x = (double)l->change[i].after_step + 0.5;
    if (x <= a->x0 || x >= a->x1) continue;
    fprintf(f, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>after step %lld: ",
            at_x(a, x), at_x(a, x), TOP, a->high - BOTTOM, (long long)l->change[i].after_step);
    tc_html(f, l->change[i].text);
    fprintf(f, "</title></line>\n");
  }
}

void tc_swatch_svg(FILE *f, const char *css)
{
  fprintf(f, "<svg class=\"swatch\" viewBox=\"0 0 28 8\"><line class=\"line %s\" x1=\"0\" x2=\"28\" y1=\"4\" y2=\"4\"/></svg>",
          css);
}

/* The title and, of each line with a name, its last value. Returns whether there is anything to draw. */
static bool put_caption(FILE *f, const struct tc_chart *c)
{
  bool any = false;
  fprintf(f, "<figure><figcaption>");
  tc_html(f, c->title);
  for (int k = 0; k < c->n_lines; k++) {
    const struct tc_line *l = &c->line[k];
    char v[32];
    any |= l->s->n > 0;
    if (!l->s->n || !l->name) continue;
    fprintf(f, " <span class=\"key\">");
    if (c->wide) tc_swatch_svg(f, l->css);
    else fprintf(f, "<i class=\"%s\"></i>", l->css);
    tc_html(f, l->name);
    fprintf(f, " <b>%s%s</b></span>", tc_si(v, sizeof v, l->s->y[l->s->n - 1]), c->unit);
  }
  fprintf(f, "</figcaption>\n");
  return any;
}

void tc_chart_svg(FILE *f, const struct tc_chart *c)
{
  if (!put_caption(f, c)) {
    fprintf(f, "<p class=\"note\">no numbers</p></figure>\n");
    return;
  }
  struct axes a = make_axes(c);
  fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", a.wide, a.high);
  tc_html(f, c->title);
  fprintf(f, " over steps\">\n");
  put_grid(f, &a);
  put_marks(f, &a, c->layouts);
  for (int k = 0; k < c->n_lines; k++) {
    const struct tc_series *s = c->line[k].s;
    if (s->n > 1) fprintf(f, "<polyline class=\"line %s\" points=\"", c->line[k].css);
    for (int i = 0; i < s->n && s->n > 1; i++)
      fprintf(f, "%s%.1f,%.1f", i ? " " : "", at_x(&a, s->x[i]), at_y(&a, s->y[i]));
    if (s->n > 1) fprintf(f, "\"/>\n");
    for (int i = 0; i < s->n && s->n <= 20; i++)
      fprintf(f, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n", c->line[k].css,
              at_x(&a, s->x[i]), at_y(&a, s->y[i]));
  }
  fprintf(f, "</svg></figure>\n");
}

/* ---- the timeline ------------------------------------------------------------------------ */

enum { T_WIDE = 1100, T_LEFT = 150, T_RIGHT = 110, T_TOP = 4 };

struct rows { double compute, comm, gap, scale; int tracks[8], n_tracks; };

static const char *css_of(const struct tc_timeline *t, const struct tc_span *s)
{
  const char *const css[TC_EV_KINDS] = {
    [TC_EV_FORWARD] = "ev-f", [TC_EV_BACKWARD] = "ev-b", [TC_EV_WEIGHT] = "ev-w",
    [TC_EV_UPDATE] = "ev-u", [TC_EV_COPY] = "ev-copy", [TC_EV_EVAL] = "ev-u",
    [TC_EV_CKPT] = "ev-ckpt" };
#define SET(id, name, axes, if_auto, within, shown) { " " name, "ev-" name },
  static const struct { const char *name, *css; } set[TC_SETS] = {
#include "src/graph/axis.def"
  };
  const char *name = t->track[s->track];
  if (s->kind != TC_EV_COMM && s->kind != TC_EV_CONTROL) return css[s->kind];
  for (int k = 0; k < TC_SETS && name; k++)
    if (strstr(name, set[k].name)) return set[k].css;
  return "ev-world";
}

/* The rows below a rank's computation: the tracks with events in this step. */
static struct rows make_rows(const struct tc_timeline *t)
{
  bool small = t->n_lanes > 16;
  struct rows r = { small ? 11 : 20, small ? 4 : 7, small ? 5 : 10, 0, { 0 }, 0 };
  bool used[256] = { false };
  for (int i = 0; i < t->n_spans; i++) used[t->span[i].track] = true;
  for (int k = TC_TRACK_COMPUTE + 1; k < 256 && r.n_tracks < 8; k++)
    if (used[k]) r.tracks[r.n_tracks++] = k;
  r.scale = (T_WIDE - T_LEFT - T_RIGHT) / (t->end_us - t->begin_us);
  return r;
}

/* Whether span k continues span k - 1, without a visible gap. */
static bool continues(const struct tc_timeline *t, const struct rows *r, int k)
{
  const struct tc_span *s = &t->span[k - 1], *o = &t->span[k];
  return o->mb == s->mb && (o->begin_us - s->end_us) * r->scale < 0.6;
}

/* The end of the box that begins with span i: neighbours of the same kind are drawn as one, since most events
 * are narrower than a pixel. If gradients of weights are between those of inputs, both are one
 * backward pass; if they come after them (zero-bubble), they are drawn separately. */
static int box_end(const struct tc_timeline *t, const struct rows *r, int i, int b)
{
  const char *css = css_of(t, &t->span[i]);
  int kind = t->span[i].kind, k = i + 1, back = i;
  bool backward = kind == TC_EV_BACKWARD || kind == TC_EV_WEIGHT;
  for (; backward && k < b && continues(t, r, k); k++) {
    int next = t->span[k].kind;
    if (next != TC_EV_BACKWARD && next != TC_EV_WEIGHT) break;
    if (next == TC_EV_BACKWARD) back = k;
  }
  if (back > i) {
    int first = i;
    while (first < back && t->span[first].kind == TC_EV_BACKWARD) first++;
    if (first < back) return k;                  /* a W before the last B: interleaved */
  }
  for (k = i + 1; k < b && continues(t, r, k); k++) {
    const char *other = css_of(t, &t->span[k]);
    if (other != css && (!other || !css || strcmp(other, css))) break;
  }
  return k;
}

static void put_spans(FILE *f, const struct tc_timeline *t, const struct rows *r, int a, int b,
                      double y, double high)
{
  for (int i = a, k; i < b; i = k) {
    const struct tc_span *s = &t->span[i];
    k = box_end(t, r, i, b);
    int n = k - i, kind = s->kind;
    for (int j = i; j < k; j++)
      if (t->span[j].kind == TC_EV_BACKWARD) kind = TC_EV_BACKWARD;
    const char *css = kind == s->kind ? css_of(t, s) : "ev-b";
    double end = t->span[k - 1].end_us, wide = (end - s->begin_us) * r->scale;
    if (!css || wide < 0.02) continue;           /* issuing and waiting stay blank */
    double x = T_LEFT + TC_MAX(0, s->begin_us - t->begin_us) * r->scale;
    fprintf(f, "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"><title>%s", css,
            x, y, TC_MAX(wide, 0.15), high, tc_event_kind_name[kind]);
    if (s->mb >= 0) fprintf(f, ", micro-batch %d", s->mb);
    fprintf(f, ", %.3f ms, %d event%s</title></rect>", (end - s->begin_us) * 1e-3, n,
            tc_plural(n));
    if (s->mb >= 0 && wide > (s->mb > 9 ? 16 : 10) && high > 15)
      fprintf(f, "<text class=\"mb\" x=\"%.1f\" y=\"%.1f\">%d</text>", x + wide / 2, y + high - 6,
              s->mb);
    fputc('\n', f);
  }
}

static double put_lane(FILE *f, const struct tc_timeline *t, const struct rows *r, int lane,
                       int *at, double y)
{
  const double *us = t->lane[lane].busy_us, all = (t->end_us - t->begin_us) * 1e-2;
  double busy = us[TC_EV_FORWARD] + us[TC_EV_BACKWARD] + us[TC_EV_WEIGHT] + us[TC_EV_UPDATE];
  double high = r->compute + r->n_tracks * (r->comm + 1);
  const char *name = t->lane[lane].name, *comma = strchr(name, ',');
  fprintf(f, "<rect class=\"lane\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>\n"
          "<text class=\"rank\" x=\"0\" y=\"%.1f\">rank %d", T_LEFT, y, T_WIDE - T_LEFT - T_RIGHT,
          r->compute, y + r->compute - (r->compute > 15 ? 6 : 2), t->lane[lane].rank);
  if (comma) {
    fputs(" <tspan class=\"tick\">", f);
    tc_html(f, comma + 2);
    fputs("</tspan>", f);
  }
  fprintf(f, "</text><text class=\"tick\" x=\"%d\" y=\"%.1f\">%.0f %%, waits %.0f %%</text>\n",
          T_WIDE - T_RIGHT + 8, y + r->compute - (r->compute > 15 ? 6 : 2), busy / all,
          us[TC_EV_WAIT] / all);
  for (; *at < t->n_spans && t->span[*at].lane == lane;) {
    int a = *at, track = t->span[a].track, row = -1;
    while (*at < t->n_spans && t->span[*at].lane == lane && t->span[*at].track == track) (*at)++;
    for (int k = 0; k < r->n_tracks; k++)
      if (r->tracks[k] == track) row = k;
    double top = row < 0 ? y : y + r->compute + 1 + row * (r->comm + 1);
    put_spans(f, t, r, a, *at, top, row < 0 ? r->compute : r->comm);
  }
  return y + high + r->gap;
}

void tc_timeline_svg(FILE *f, const struct tc_timeline *t)
{
  struct rows r = make_rows(t);
  double lane = r.compute + r.n_tracks * (r.comm + 1) + r.gap;
  double high = T_TOP + t->n_lanes * lane + 22, y = T_TOP, ms = (t->end_us - t->begin_us) * 1e-3;
  fprintf(f, "<div class=\"wide\"><svg viewBox=\"0 0 %d %.0f\" role=\"img\" "
          "aria-label=\"timeline of step %lld\">\n", T_WIDE, high, (long long)t->step);
  double step = nice_step(ms, 8);
  for (double x = 0; x <= ms * 1.0001; x += step) {
    double px = T_LEFT + x * 1e3 * r.scale;
    fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.1f\"/><text class=\"tick\" "
            "x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4g ms</text>\n", px, px, T_TOP,
            high - 18, px, high - 4, x);
  }
  for (int i = 0, at = 0; i < t->n_lanes; i++) y = put_lane(f, t, &r, i, &at, y);
  fprintf(f, "</svg></div>\n");
}
