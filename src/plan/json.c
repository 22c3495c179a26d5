/* json.c - the time of a step as a JSON object, the same in `tercio plan --json` and run.json. */
#include "src/plan/plan.h"

#include <jansson.h>

json_t *tc_plan_time_json(const struct tc_plan_time *t)
{
  json_t *wait = json_object(), *bytes = json_object(), *wire = json_object();
  for (int a = TC_PP; a < TC_AXES; a++) {
    json_object_set_new(wait, tc_axis_name[a], json_real(t->wait_s[a]));
    json_object_set_new(bytes, tc_axis_name[a], json_real(t->bytes[a]));
  }
  for (int w = 0; w < TC_WIRES; w++)
    json_object_set_new(wire, tc_wire_name[w], json_real(t->wire_bytes[w]));
  return json_pack("{s:f,s:f,s:f,s:f,s:f,s:o,s:o,s:o,s:b}", "step_s", t->step_s, "tokens_per_s",
                   t->tokens_per_s, "mfu", t->mfu, "bubble", t->bubble, "compute_s", t->compute_s,
                   "wait_s", wait, "bytes", bytes, "wire_bytes", wire, "walked", t->walked);
}
