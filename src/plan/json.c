/* json.c - the time of a step as a JSON object, the same in `tercio plan --json` and run.json. */
#include "src/plan/plan.h"

#include <jansson.h>

json_t *tc_plan_time_json(const struct tc_plan_time *t)
{
  json_t *wait = json_object(), *bytes = json_object(), *wire = json_object();
  for (int a = TC_PP; a < TC_AXES; a++) {
    tc_figure(wait, tc_axis_name[a], t->wait_s[a]);
    tc_figure(bytes, tc_axis_name[a], t->bytes[a]);
  }
  for (int w = 0; w < TC_WIRES; w++)
    tc_figure(wire, tc_wire_name[w], t->wire_bytes[w]);
  json_t *o = json_object();
  tc_figure(o, "step_s", t->step_s);
  tc_figure(o, "tokens_per_s", t->tokens_per_s);
  tc_figure(o, "mfu", t->mfu);
  tc_figure(o, "bubble", t->bubble);
  tc_figure(o, "compute_s", t->compute_s);
  json_object_set_new(o, "wait_s", wait);
  json_object_set_new(o, "bytes", bytes);
  json_object_set_new(o, "wire_bytes", wire);
  json_object_set_new(o, "walked", json_boolean(t->walked));
  return o;
}
