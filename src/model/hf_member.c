/* hf_member.c - members of a config.json: what they are, and refusing them by name. */
#include "src/model/hf_impl.h"

#include <stdlib.h>
#include <string.h>

const json_t *tc_hf_member(const json_t *o, const char *key)
{
  const json_t *j = json_object_get(o, key);
  return json_is_null(j) ? NULL : j;
}

bool tc_hf_same(const json_t *a, const json_t *b)
{
  return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

bool tc_hf_is(const json_t *j, const char *text)
{
  json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
  const bool same = tc_hf_same(j, want);
  json_decref(want);
  return same;
}

int tc_hf_refuse(const struct tc_hf_file *f, const char *key, const json_t *j, const char *would)
{
  char *is = json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT);
  tc_fail(f->err, TC_EUSER, "%s: \"%s\" is %.100s, which is not supported; give %s", f->path,
          key, is ? is : "not readable", would);
  free(is);
  return TC_EUSER;
}

int tc_hf_real(const struct tc_hf_file *f, const json_t *o, const char *key, double otherwise, double least, double most,
               float *out)
{
  const json_t *j = json_object_get(o, key);
  const double x = j ? json_number_value(j) : otherwise;
  *out = (float)x;
  if ((!j || json_is_number(j)) && x >= least && x <= most && *out > 0) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be a number from %g to %g", f->path, key, least, most);
}

/* The only value of each that is computed here. */
static const struct { const char *key, *value; } fixed[] = {
  { "partial_rotary_factor", "1" }, { "quantization_config", "null" },
  { "add_cross_attention", "false" }, { "use_bidirectional_attention", "false" }, { "resid_pdrop", "0" },
};
enum { N_FIXED = sizeof fixed / sizeof *fixed };

int tc_hf_check_fixed(const struct tc_hf_file *f, const json_t *o, const struct tc_hf_class *k)
{
  for (int i = 0; i < N_FIXED; i++) {
    const json_t *j = tc_hf_member(o, fixed[i].key);
    if (k->partial && strcmp(fixed[i].key, "partial_rotary_factor") == 0) continue;
    if (j && !tc_hf_is(j, fixed[i].value)) return tc_hf_refuse(f, fixed[i].key, j, fixed[i].value);
  }
  return 0;
}
