/* t_out.c - a row of commands as columns and as JSON. */
#include "src/base/base.h"
#include "src/cmd/out.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <unistd.h>

static const char form[] = "rank=%3d  node?=%-6s  dtype:type of=%-*s{ slow!=%d big=%lld}  loss?:nats=%8.3f  {bytes=%lld}:size=%6s"
  " shape=%-8p g=%8g :=%s";

static const char *volatile none;        /* NULL, which the compiler would warn of */

/* The table of two rows, the second with what is not known. */
static void put(json_t *list)
{
  if (!list) tc_out_head(form, 8);
  tc_out_row(list, form, 7, "n1", 8, "f32", 2, 5LL << 40, 1.0 / 3, 4096LL, "4 KB",
             (void *)json_pack("[i, i]", 2, 3), 1234567.0, "end");
  tc_out_row(list, form, -1, "", 8, none, 0, -1LL, -0.5, -2LL, "", (void *)json_array(), -(double)NAN, "");
}

static void test_columns(void)
{
  char text[500];
  FILE *f = tmpfile();
  fflush(stdout);
  const int out = dup(STDOUT_FILENO);
  TC_ASSERT(f && out >= 0 && dup2(fileno(f), STDOUT_FILENO) >= 0);
  put(NULL);
  tc_out_json(tc_out_object("in=%p", tc_out_object("a=%d", 1)), JSON_INDENT(1));
  fflush(stdout);
  TC_ASSERT(dup2(out, STDOUT_FILENO) >= 0);
  close(out);
  rewind(f);
  text[fread(text, 1, sizeof text - 1, f)] = 0;
  fclose(f);
  is_str(text, "rank  node    type of       nats    size shape           g \n"
               "  7  n1      f32          0.333    4 KB [2, 3]   1.23457e+06 end\n"
               " -1  -       -                -         []            nan \n"
               "{\n \"in\": {\n  \"a\": 1\n }\n}\n", "headings and columns");
}

static void is_json(json_t *j, const char *want, const char *what)
{
  char *got = json_dumps(j, JSON_REAL_PRECISION(3));
  is_str(got, want, "%s", what);
  free(got);
  json_decref(j);
}

static void test_json(void)
{
  json_t *list = json_array();
  put(list);
  is_json(list, "[{\"rank\": 7, \"node\": \"n1\", \"dtype\": \"f32\", \"slow\": true, \"big\": 5497558138880, \"loss\": 0.333, "
          "\"bytes\": 4096, \"shape\": [2, 3], \"g\": 1.23e6}, {\"rank\": -1, \"node\": null, \"dtype\": \"\", \"slow\": false, \"big\": -1, "
          "\"loss\": null, \"bytes\": -2, \"shape\": [], \"g\": null, \"not_finite\": {\"g\": \"nan\"}}]", "the same rows as JSON");
  is_json(tc_out_object("a=%g b?=%g c=%g in=%p", (double)NAN, -(double)INFINITY, 2.0,
                        tc_out_object("d?=%d e?=%s", -1, none)),
          "{\"a\": null, \"b\": null, \"c\": 2.0, \"in\": {\"d\": null, \"e\": null}, \"not_finite\": {\"a\": \"nan\"}}",
          "what is not finite has a reason, which comes last; what is not known has none");
  is_json(tc_out_object("x?=%g y?=%g", (double)NAN, (double)INFINITY),
          "{\"x\": null, \"y\": null, \"not_finite\": {\"x\": \"nan\", \"y\": \"inf\"}}", "what is not finite is known");
  is_json(tc_out_object("path=%s", "a\xff"), "{\"path\": \"a?\"}", "a text that is not UTF-8");
}

int main(void)
{
  test_columns();
  test_json();
  return done_testing();
}
