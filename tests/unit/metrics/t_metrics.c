/* t_metrics.c - the table of figures, and lines of JSON made of samples: objects, lists, words, what is null or left out;
 * and the same figures found in a line again. */
#include "src/base/base.h"
#include "src/metrics/metrics.h"
#include "tests/unit/samples.h"
#include "tests/unit/tap.h"

#include <jansson.h>
#include <math.h>

static void test_table(void)
{
  json_t *keys = json_object();
  for (int m = 0; m < TC_METRICS; m++) {
    const struct tc_metric_row *r = &tc_metric_row[m];
    ok(*r->key && r->unit && *r->help, "figure %d has a key and a help: %s", m, r->key);
    ok(!json_object_get(keys, r->key), "... its key is its own");
    json_object_set_new(keys, r->key, json_true());
  }
  is_str(tc_metric_row[TC_METRIC_STEP].key, "step", "the step comes first");
  is_int(TC_METRIC_STEP, 0, "... of all");
  json_decref(keys);
}

static const struct tc_sample samples[] = {
  INT(STEP, 5000000000), REAL(LOSS, 0, NAN), NOT(VAL_LOSS, NULL, NULL, TC_NULL), REAL(LR, 0, 1.0 / 3),
  TEXT(TIME, 0, "now"), INT(SLOWEST_RANK, 3), TEXT(SLOWEST_HOST, 0, "caf\xc3\xa9"), REAL(SLOWEST_WORK_MS, 0, -INFINITY),
  TEXT(TASKS_NAME, 0, "a\xff"), TEXT(TASKS_NAME, 1, "b"), REAL(TASKS_LOSS, 0, 0.5), REAL(TASKS_LOSS, 1, INFINITY),
  { .metric = TC_METRIC_HASHES, .there = TC_THERE, .type = TC_METRIC_TEXT, .text = "0f", .word = { "12" } },
  NOT(COMM_CALLS, "pp", "send", TC_UNUSED), WORD(COMM_CALLS, "dp", "all_reduce", 2), WORD(COMM_BYTES, "dp", "all_reduce", 8),
  NOT(CTL_CALLS, "send", NULL, TC_UNUSED), REAL(BUBBLE, 0, 0),
};
static const char line[] =
  "{\"step\": 5000000000, \"loss\": null, \"not_finite\": {\"loss\": \"nan\"}, \"val_loss\": null, \"lr\": 0.333333333333, "
  "\"time\": \"now\", \"slowest\": {\"rank\": 3, \"host\": \"caf\xc3\xa9\", \"work_ms\": null, \"not_finite\": {\"work_ms\": "
  "\"-inf\"}}, \"tasks\": [{\"name\": \"a?\", \"loss\": 0.5}, {\"name\": \"b\", \"loss\": null, \"not_finite\": {\"loss\": "
  "\"inf\"}}], \"hashes\": {\"12\": \"0f\"}, \"comm\": {\"pp\": {}, \"dp\": {\"all_reduce\": {\"calls\": 2, \"bytes\": 8}}, "
  "\"ctl\": {}}, \"bubble\": 0.0}\n";

static void test_line(void)
{
  json_t *o = json_object();
  for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) tc_metrics_json(o, &samples[i]);
  char *text = tc_metrics_json_text(o);
  is_str(text, line, "a line of all kinds of figures");
  free(text);
  json_decref(o);
}

static void test_read(void)
{
  json_t *o = json_loads(line, 0, NULL), *tasks = tc_metric_in(o, TC_METRIC_TASKS_NAME);
  json_t *comm = tc_metric_in(o, TC_METRIC_COMM_CALLS), *sent = json_object_get(json_object_get(comm, "dp"), "all_reduce");
  is_int(json_integer_value(tc_metric_in(o, TC_METRIC_STEP)), 5000000000, "a figure");
  is_int(json_integer_value(tc_metric_in(o, TC_METRIC_SLOWEST_RANK)), 3, "... in an object");
  ok(json_is_null(tc_metric_in(o, TC_METRIC_LOSS)) && !tc_metric_in(o, TC_METRIC_TOKENS), "... null, and not there");
  ok(json_is_array(tc_metric_in(o, TC_METRIC_TASKS_LOSS)) && json_array_size(tasks) == 2, "a list");
  is_str(json_string_value(tc_metric_of(json_array_get(tasks, 1), TC_METRIC_TASKS_NAME)), "b", "... and a member's figure");
  ok(comm && comm == json_object_get(o, "comm"), "the object of axes");
  ok(tc_metric_in(o, TC_METRIC_CTL_CALLS) == json_object_get(comm, "ctl"), "... and that of control data");
  is_int(json_integer_value(tc_metric_of(sent, TC_METRIC_COMM_BYTES)), 8, "... a collective's figure");
  is_str(json_string_value(json_object_get(tc_metric_in(o, TC_METRIC_HASHES), "12")), "0f", "hashes");
  for (int m = 0; m < TC_METRICS; m++)
    ok(!tc_metric_in(NULL, (enum tc_metric)m), "%s: nothing in no line", tc_metric_row[m].key);
  json_decref(o);
}

int main(void)
{
  test_table();
  test_line();
  test_read();
  return done_testing();
}
