/* t_amount.c - bytes, counts and times as text: what is read, what is malformed, and what is printed. */
#include "src/base/base.h"
#include "tests/unit/tap.h"

#define GIB (1024.0 * 1024 * 1024)

static void test_units(void)
{
  near_f(tc_parse_bytes("80GB"), 80e9, 0, "80GB");
  near_f(tc_parse_bytes("1.5 GiB"), 1.5 * GIB, 0, "1.5 GiB");
  near_f(tc_parse_bytes("300G"), 300e9, 0, "300G");
  near_f(tc_parse_bytes("12e9"), 12e9, 0, "12e9");
  near_f(tc_parse_bytes("10 GB/s"), 10e9, 0, "10 GB/s");
  near_f(tc_parse_bytes("many"), -1, 0, "many");
  near_f(tc_parse_bytes("80 GBx"), -1, 0, "80 GBx");
  near_f(tc_parse_bytes("inf"), -1, 0, "without end");
  near_f(tc_parse_bytes("1e305 P"), -1, 0, "... nor by its unit");
  near_f(tc_parse_seconds("inf"), -1, 0, "a time without end");
  near_f(tc_parse_seconds("24:00:00"), 86400, 0, "24:00:00");
  near_f(tc_parse_seconds("1-12:00:00"), 1.5 * 86400, 0, "1-12:00:00");
  near_f(tc_parse_seconds("1-12:30"), 1.5 * 86400 + 1800, 0, "1-12:30");
  near_f(tc_parse_seconds("30:00"), 1800, 0, "30:00 are minutes and seconds, as sbatch has it");
  near_f(tc_parse_seconds("1:-5:00"), -1, 0, "1:-5:00");
  near_f(tc_parse_seconds("90m"), 5400, 0, "90m");
  near_f(tc_parse_seconds("36"), 36 * 3600, 0, "36 are hours");
  near_f(tc_parse_seconds("soon"), -1, 0, "soon");
}

static void test_numbers(void)
{
  static const struct {
    const char *text;
    double bytes, seconds;
  } rows[] = {
    { "", -1, -1 },
    { "0", 0, 0 },
    { "5", 5, 18000 },
    { " 5", 5, 18000 },
    { "-5", -1, -1 },
    { "nan", -1, -1 },
    { "inf", -1, -1 },
    { "x", -1, -1 },
    { "5x", -1, -1 },
    { "5s", -1, 5 },
    { "5 s", -1, -1 },
    { "2m", 2e6, 120 },
    { "2h", -1, 7200 },
    { "2d", -1, 172800 },
    { "2y", -1, 63115200 },
    { "2ms", -1, -1 },
    { "1.5h", -1, 5400 },
    { "5k", 5e3, -1 },
    { "5K", 5e3, -1 },
    { "5M", 5e6, -1 },
    { "5G", 5e9, -1 },
    { "5T", 5e12, -1 },
    { "5P", 5e15, -1 },
    { "5E", -1, -1 },
    { "5KB", 5e3, -1 },
    { "5kb", 5e3, -1 },
    { "5Ki", 5120, -1 },
    { "5KiB", 5120, -1 },
    { "5Mi", 5242880, -1 },
    { "5GiB/s", 5368709120, -1 },
    { "5B", 5, -1 },
    { "5 B/s", 5, -1 },
    { "5/s", 5, -1 },
    { "5/ss", -1, -1 },
    { "5/m", -1, -1 },
    { "5KBB", -1, -1 },
    { "5 KB ", 5e3, -1 },
    { "5 K B", -1, -1 },
    { "5iB", -1, -1 },
    { "1e300P", -1, -1 },
    { "1:30", -1, 90 },
    { "1:02:03", -1, 3723 },
    { "0:00:05", -1, 5 },
    { "1:2:3:4", -1, -1 },
    { "1:", -1, 60 },
    { "1:x", -1, -1 },
    { "1:2x", -1, -1 },
    { "1:2:3x", -1, -1 },
    { "1:-2", -1, -1 },
    { "1:-2:3", -1, -1 },
    { "1:2:-3", -1, -1 },
    { "2-3", -1, 183600 },
    { "2-3:04", -1, 183840 },
    { "2-3:04:05", -1, 183845 },
    { "2-3:04:05:06", -1, -1 },
    { "2-3x", -1, -1 },
    { "0-1:30", -1, 5400 },
    { "0-1", -1, 3600 },
    { "2-3:-1", -1, -1 },
    { "1.5-0", -1, 129600 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    near_f(tc_parse_bytes(rows[i].text), rows[i].bytes, 0, "\"%s\": bytes", rows[i].text);
    near_f(tc_parse_seconds(rows[i].text), rows[i].seconds, 0, "... seconds");
  }
}

static void test_whole(void)
{
  static const struct { const char *text; int64_t binary, decimal; const char *rest; } rows[] = {
    { "0", 0, 0, "" }, { "4096", 4096, 4096, "" }, { "64K", 65536, 64000, "" }, { "64k", 65536, 64000, "" },
    { "3M", 3145728, 3000000, "" }, { "2GB", 2147483648, 2000000000, "B" }, { "5T", 5, 5, "T" }, { "7 K", 7, 7, " K" },
    { "8(S:0)", 8, 8, "(S:0)" }, { "1KK", 1024, 1000, "K" }, { "", -1, -1, "" }, { "K", -1, -1, "K" },
    { "-1", -1, -1, "-1" }, { "+1", -1, -1, "+1" }, { " 1", -1, -1, " 1" },
    { "9223372036854775807", INT64_MAX, INT64_MAX, "" }, { "9223372036854775808", INT64_MAX, INT64_MAX, "" },
    { "9223372036854775807K", INT64_MAX, INT64_MAX, "" }, { "9007199254740993", 9007199254740993, 9007199254740993, "" },
    { "8589934591G", 9223372035781033984, 8589934591000000000, "" },
    { "9223372037G", INT64_MAX, INT64_MAX, "" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const char *end;
    ok(tc_parse_whole(rows[i].text, 1024, "KMG", &end) == rows[i].binary, "'%s' by 1024", rows[i].text);
    is_str(end, rows[i].rest, "... what follows");
    ok(tc_parse_whole(rows[i].text, 1000, "KMG", &end) == rows[i].decimal, "... by 1000");
  }
}

static void test_sizes(void)
{
  static const struct { double bytes; const char *want; } c[] = {
    { 0, "0 B" }, { 999, "999 B" }, { 1000, "1 KB" }, { 1500, "1.5 KB" }, { 312000, "312 KB" },
    { 999999, "1 MB" }, { 1.5e9, "1.5 GB" }, { 2e15, "2 PB" },
    { 999.4, "999 B" }, { 999.5, "1 KB" }, { -1500, "-1.5 KB" }, { 3e9, "3 GB" }, { 4e12, "4 TB" },
    { 5e18, "5 EB" }, { 5e21, "5e+03 EB" } };
  char buf[32];
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    is_str(tc_human_bytes(buf, sizeof buf, c[i].bytes), c[i].want, "%g bytes", c[i].bytes);
  static const struct { double n; const char *want; } counts[] = {
    { 12, "12" }, { 842496, "842K" }, { 999400, "999K" }, { 999900, "1M" }, { 124439808, "124M" }, { 70.55e9, "70.5B" },
    { 405e9, "405B" }, { 1.5e12, "1500B" } };
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    is_str(tc_human_count(buf, sizeof buf, counts[i].n), counts[i].want, "%g in three digits", counts[i].n);
}

static void test_spans(void)
{
  static const struct { double s; const char *want; } c[] = {
    { 0, "0 us" }, { 5e-7, "0.5 us" }, { 0.0123, "12.3 ms" }, { 1, "1 s" }, { 119, "119 s" }, { 120, "2 min" },
    { 7199, "120 min" }, { 7200, "2 h" }, { 345599, "96 h" }, { 345600, "4 d" } };
  char buf[32];
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    is_str(tc_human_seconds(buf, sizeof buf, c[i].s), c[i].want, "%g s", c[i].s);
  is_str(tc_plural(1), "", "1 file");
  is_str(tc_plural(0), "s", "0 files");
  is_str(tc_plural(2), "s", "2 files");
}

int main(void)
{
  test_units();
  test_numbers();
  test_whole();
  test_sizes();
  test_spans();
  return done_testing();
}
