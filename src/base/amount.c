/* amount.c - amounts as text: bytes, counts, times. */
#include "src/base/amount.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text to amounts ------------------------------------------------------------------ */

static const char prefixes[] = "KMGTP";

int64_t tc_parse_whole(const char *text, int64_t kilo, const char *units, const char **end)
{
  char *at = NULL;
  const int64_t n = isdigit((unsigned char)*text) ? strtoll(text, &at, 10) : -1;
  const char *unit = n >= 0 && *at ? strchr(units, toupper((unsigned char)*at)) : NULL;
  int64_t x = n;
  for (const char *u = units; unit && u <= unit; u++) x = x > INT64_MAX / kilo ? INT64_MAX : x * kilo;
  *end = at ? at + (unit != NULL) : text;
  return x;
}

double tc_parse_bytes(const char *text)
{
  char *end;
  double x = strtod(text, &end);
  if (end == text || !(x >= 0)) return -1;
  while (isspace((unsigned char)*end)) end++;
  const char *at = *end ? strchr(prefixes, toupper((unsigned char)*end)) : NULL;
  bool binary = at && end[1] == 'i';
  if (at) end += 1 + binary;
  for (const char *p = prefixes; at && p <= at; p++) x *= binary ? 1024 : 1000;
  if (*end == 'B' || *end == 'b') end++;
  if (!strncmp(end, "/s", 2)) end += 2;
  while (isspace((unsigned char)*end)) end++;
  return *end || !isfinite(x) ? -1 : x;
}

double tc_parse_seconds(const char *text)
{
  char *end;
  double days = 0, part[3] = { 0 }, x = strtod(text, &end);
  if (end == text || !(x >= 0) || !isfinite(x)) return -1;
  if (*end == '-') {
    days = x;
    x = strtod(end + 1, &end);
  }
  if (*end == ':' || days > 0) {                 /* D-H[:M[:S]], H:M:S or M:S, as in Slurm */
    bool dashed = strchr(text, '-') != NULL;
    int n = 0;
    for (part[n++] = x; *end == ':' && n < 3; n++) part[n] = strtod(end + 1, &end);
    if (n == 2 && !dashed) return *end || !(part[1] >= 0) ? -1 : part[0] * 60 + part[1];
    if (!(part[1] >= 0 && part[2] >= 0)) return -1;
    return *end ? -1 : ((days * 24 + part[0]) * 60 + part[1]) * 60 + part[2];
  }
  const struct { char unit; double s; } units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 },
                                                    { 'd', 86400 }, { 'y', 365.25 * 86400 } };
  if (!*end) return x * 3600;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (*end == units[i].unit && !end[1]) return x * units[i].s;
  return -1;
}

/* ---- amounts to text ------------------------------------------------------------------ */

const char *tc_shortest_float(char buf[32], float x)
{
  for (int digits = 6; digits <= 9; digits++) {
    snprintf(buf, 32, "%.*g", digits, (double)x);
    if (strtof(buf, NULL) == x) break;
  }
  return buf;
}

double tc_shortest(float x)
{
  char buf[32];
  return strtod(tc_shortest_float(buf, x), NULL);
}

const char *tc_plural(int64_t n) { return n == 1 ? "" : "s"; }

char *tc_human_bytes(char *buf, size_t size, double bytes)
{
  static const char *const unit[] = { "B", "KB", "MB", "GB", "TB", "PB", "EB" };
  size_t u = 0;
  while (fabs(bytes) >= 999.5 && u + 1 < sizeof unit / sizeof *unit) {
    bytes /= 1000;
    u++;
  }
  snprintf(buf, size, "%.3g %s", bytes, unit[u]);
  return buf;
}

char *tc_human_count(char *buf, size_t size, double n)
{
  static const struct { double unit; const char *letter; } scale[] = {
    { 1e9, "B" }, { 1e6, "M" }, { 1e3, "K" }, { 1, "" } };
  int k = 0;
  while (n < 0.9995 * scale[k].unit && scale[k].unit > 1) k++;     /* 999,900 is 1M in three digits */
  n /= scale[k].unit;
  snprintf(buf, size, n < 999.5 ? "%.3g%s" : "%.0f%s", n, scale[k].letter);
  return buf;
}

char *tc_human_seconds(char *buf, size_t size, double s)
{
  if (s < 1e-3) snprintf(buf, size, "%.3g us", s * 1e6);
  else if (s < 1) snprintf(buf, size, "%.3g ms", s * 1e3);
  else if (s < 120) snprintf(buf, size, "%.3g s", s);
  else if (s < 7200) snprintf(buf, size, "%.3g min", s / 60);
  else if (s < 96 * 3600) snprintf(buf, size, "%.3g h", s / 3600);
  else snprintf(buf, size, "%.3g d", s / 86400);
  return buf;
}
