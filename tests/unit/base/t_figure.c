/* t_figure.c - what is not a number, in JSON and in memory, and in an order. */
#include <jansson.h>
#include <math.h>

#include "src/base/base.h"
#include "tests/unit/tap.h"

static void test_figures(void)
{
  const double x[] = { 1.5, NAN, -NAN, INFINITY, -INFINITY, 0 };
  static const char *const why[] = { NULL, "nan", "nan", "inf", "-inf", NULL };
  for (int i = 0; i < 6; i++) {
    json_t *o = json_pack("{s:n, s:i}", "a", "z", 7);
    tc_figure(o, "a", x[i]);
    tc_figure(o, "b", 2);
    char *text = json_dumps(o, JSON_COMPACT), *want = NULL, number[32];
    snprintf(number, sizeof number, "%.1f", x[i]);
    want = why[i] ? tc_sprintf("{\"a\":null,\"z\":7,\"not_finite\":{\"a\":\"%s\"},\"b\":2.0}", why[i])
                  : tc_sprintf("{\"a\":%s,\"z\":7,\"b\":2.0}", number);
    is_str(text, want, "%g in an object", x[i]);
    const char *is = tc_not_finite(x[i]);
    ok(why[i] ? is && !strcmp(is, why[i]) : !is, "... its word");
    snprintf(number, sizeof number, "%g", tc_unsigned_nan(x[i]));
    is_str(number, why[i] ? why[i] : i ? "0" : "1.5", "... as text");
    free(text);
    free(want);
    json_decref(o);
  }
  json_t *o = json_object();
  tc_figures(o, "x", x, 6);
  tc_figures(o, "none", x, 0);
  char *text = json_dumps(o, JSON_COMPACT);
  is_str(text, "{\"x\":[1.5,null,null,null,null,0.0],\"not_finite\":{\"x[1]\":\"nan\",\"x[2]\":\"nan\",\"x[3]\":\"inf\","
         "\"x[4]\":\"-inf\"},\"none\":[]}", "a list of them");
  free(text);
  json_decref(o);
  static const char *const strange[] = { NULL, "plain", "\xff x", "a\xc3" }, *const as[] = { "", "plain", "? x", "a?" };
  for (int i = 0; i < 4; i++) {
    json_t *s = tc_text_json(strange[i]);
    is_str(json_string_value(s), as[i], "a text in JSON");
    json_decref(s);
  }
}

/* Every place of the first few blocks of 4096, in each type. */
static void test_memory(void)
{
  enum { N = 9000 };
  static float f[N];
  static double d[N];
  static uint16_t b[N];
  static int32_t whole[N];
  int wrong = 0;
  for (int i = 0; i < N; i++) f[i] = i % 2 ? 3e38f : 1e-40f, d[i] = 1e300, b[i] = 0x7f7f, whole[i] = 0x7f800000;
  is_int(tc_first_not_finite(f, TC_F32, N), -1, "the largest and the smallest floats are finite");
  is_int(tc_first_not_finite(d, TC_F64, N), -1, "... doubles");
  is_int(tc_first_not_finite(b, TC_BF16, N), -1, "... bf16");
  is_int(tc_first_not_finite(whole, TC_I32, N), -1, "whole numbers are");
  is_int(tc_first_not_finite(f, TC_F32, 0), -1, "nothing is");
  const int at[] = { 0, 1, 4095, 4096, 4097, 8191, 8192, N - 1 };
  const double bad[] = { NAN, INFINITY, -INFINITY };
  for (size_t i = 0; i < sizeof at / sizeof *at; i++)
    for (int k = 0; k < 3; k++) {
      const float old = f[at[i]];
      f[at[i]] = (float)bad[k], d[at[i]] = bad[k], b[at[i]] = tc_f32_to_bf16((float)bad[k]);
      wrong += tc_first_not_finite(f, TC_F32, N) != at[i] || tc_first_not_finite(d, TC_F64, N) != at[i] ||
               tc_first_not_finite(b, TC_BF16, N) != at[i] || tc_first_not_finite(f, TC_F32, at[i]) != -1;
      f[at[i]] = old, d[at[i]] = 1, b[at[i]] = 1;
    }
  is_int(wrong, 0, "what is not finite is found, and where");
}

static void test_order(void)
{
  double x[] = { NAN, 3, -INFINITY, NAN, 1, INFINITY, 2 }, y[] = { 5, NAN, 1 };
  qsort(x, 7, sizeof *x, tc_order_double);
  ok(x[0] == -INFINITY && x[1] == 1 && x[3] == 3 && x[4] == INFINITY && isnan(x[5]) && isnan(x[6]), "NaNs are last");
  ok(tc_median(y, 3) == 5, "a median is of an order, NaN or not");
}

int main(void)
{
  test_figures();
  test_memory();
  test_order();
  return done_testing();
}
