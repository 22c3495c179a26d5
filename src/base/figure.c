/* figure.c - figures and texts in JSON, and what is not a number. */
#include "src/base/figure.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/arith.h"
#include "src/base/dtype.h"
#include "src/base/mem.h"
#include "src/base/text.h"

const char *tc_not_finite(double x) { return isnan(x) ? "nan" : isinf(x) ? x > 0 ? "inf" : "-inf" : NULL; }

double tc_unsigned_nan(double x) { return isnan(x) ? (double)NAN : x; }

/* ---- JSON ------------------------------------------------------------------------------ */

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* Why number(x) is null, if it is. */
static void say_why(json_t *object, const char *key, double x)
{
  json_t *reasons = json_object_get(object, "not_finite");
  if (isfinite(x)) {
    json_object_del(reasons, key);               /* of the figure that was here before */
    if (reasons && json_object_size(reasons) == 0) json_object_del(object, "not_finite");
    return;
  }
  if (!reasons) json_object_set_new(object, "not_finite", reasons = json_object());
  json_object_set_new(reasons, key, json_string(tc_not_finite(x)));
}

void tc_figure(struct json_t *object, const char *key, double x)
{
  json_object_set_new(object, key, number(x));
  say_why(object, key, x);
}

void tc_figures(struct json_t *object, const char *key, const double *x, int64_t n)
{
  json_t *list = json_array();
  json_object_set_new(object, key, list);
  for (int64_t i = 0; i < n; i++) {
    char *name = tc_sprintf("%s[%lld]", key, (long long)i);
    json_array_append_new(list, number(x[i]));
    say_why(object, name, x[i]);
    free(name);
  }
}

struct json_t *tc_text_json(const char *s)
{
  json_t *j = json_string(s ? s : "");
  if (j) return j;
  char *ascii = tc_strdup(s);
  for (char *p = ascii; *p; p++)
    if ((unsigned char)*p >= 0x80) *p = '?';
  j = json_string(ascii);
  free(ascii);
  return j;
}

/* ---- memory ---------------------------------------------------------------------------- */

static bool is_finite_at(const void *data, int dtype, int64_t i)
{
  switch (dtype) {
  case TC_F32: return isfinite(((const float *)data)[i]);
  case TC_BF16: return isfinite(tc_bf16_to_f32(((const uint16_t *)data)[i]));
  case TC_F64: return isfinite(((const double *)data)[i]);
  default: return true;
  }
}

/* Whether an exponent of n floats has all bits set; without a branch, so that it runs as fast as memory is read. */
static bool any_not_finite(const float *x, int64_t n)
{
  uint32_t any = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    any |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
  }
  return any;
}

int64_t tc_first_not_finite(const void *data, int dtype, int64_t n)
{
  enum { AT_ONCE = 4096 };
  for (int64_t at = 0, k; at < n; at += k) {
    k = TC_MIN(n - at, AT_ONCE);
    if (dtype == TC_F32 && !any_not_finite((const float *)data + at, k)) continue;
    for (int64_t i = at; i < at + k; i++)
      if (!is_finite_at(data, dtype, i)) return i;
  }
  return -1;
}
