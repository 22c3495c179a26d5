/* hf_rope.c - rotary positions as a config.json describes them.
 *
 * "rope_theta" and "rope_scaling", or "rope_parameters", which has both. Classes whose layers are of two kinds have an object
 * for each kind in it; their older files have rope_theta and rope_scaling for full layers alone. */
#include "src/model/hf_impl.h"

#include <math.h>
#include <string.h>

#define OLD "rope_scaling"
#define NOW "rope_parameters"

/* Positions as one object describes them. share: of a head's elements. */
struct rope { float theta; double share; struct tc_rope_scaling scaling; };

/* A config.json's positions that are being read: of a class, of which the model's sizes are known. */
struct reader { const struct tc_hf_file *f; const struct tc_hf_class *k; const struct tc_model *m; };

/* The context with which a model was trained first: of the object, of the file, unless there is an object for each kind of
 * layer, else what the model allows. */
static int read_original(const struct reader *r, const json_t *o, struct tc_rope_scaling *s)
{
  const char *const key = "original_max_position_embeddings";
  const struct tc_hf_file *f = r->f;
  const json_t *in = tc_hf_member(o, key) || r->k->sliding_theta > 0 ? o : f->o, *j = tc_hf_member(in, key);
  s->original = j ? (int64_t)json_integer_value(j) : r->m->positions;
  if (s->original >= 1 && s->original <= TC_MOST_CONTEXT) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be a whole number from 1 to %d", f->path, key, TC_MOST_CONTEXT);
}

static int read_llama3(const struct reader *r, const json_t *o, struct tc_rope_scaling *s)
{
  const struct tc_hf_file *f = r->f;
  s->kind = TC_ROPE_LLAMA3;
  TC_TRY(tc_hf_real(f, o, "low_freq_factor", 0, 1e-6, 1e6, &s->low));
  TC_TRY(tc_hf_real(f, o, "high_freq_factor", 0, 1e-6, 1e6, &s->high));
  TC_TRY(read_original(r, o, s));
  if (s->high > s->low) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"high_freq_factor\" has to be above \"low_freq_factor\"", f->path);
}

/* A number that may be null, which is as if it were missing. */
static int read_optional(const struct tc_hf_file *f, const json_t *o, const char *key, double otherwise, float *out)
{
  *out = (float)otherwise;
  return tc_hf_member(o, key) ? tc_hf_real(f, o, key, 0, 1e-6, 1e6, out) : 0;
}

static double turned(double mscale, double factor) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

static int read_yarn(const struct reader *r, const json_t *o, struct tc_rope_scaling *s)
{
  const struct tc_hf_file *f = r->f;
  const json_t *truncate = json_object_get(o, "truncate");
  float some = 0, all = 0;
  s->kind = TC_ROPE_YARN;
  TC_TRY(read_original(r, o, s));
  if (json_is_null(json_object_get(o, "factor"))) s->factor = (float)((double)r->m->positions / (double)s->original);
  TC_TRY(read_optional(f, o, "beta_fast", 32, &s->high));
  TC_TRY(read_optional(f, o, "beta_slow", 1, &s->low));
  TC_TRY(read_optional(f, o, "mscale", 0, &some));
  TC_TRY(read_optional(f, o, "mscale_all_dim", 0, &all));
  const double factor = (double)s->factor;
  const double usual = some > 0 && all > 0 ? turned((double)some, factor) / turned((double)all, factor) : turned(1, factor);
  TC_TRY(read_optional(f, o, "attention_factor", usual, &s->attention));
  if (truncate && !json_is_boolean(truncate)) return tc_hf_refuse(f, "truncate", truncate, "true or false");
  if (json_is_false(truncate) && r->k->sliding_theta > 0)
    return tc_hf_refuse(f, "truncate", truncate, "true: transformers ignores it there");
  s->untruncated = json_is_false(truncate);
  if (!(s->factor >= 1e-6f && s->factor <= 1e6f))
    return tc_fail(f->err, TC_EUSER, "%s: \"factor\" has to be a number from 1e-06 to 1e+06", f->path);
  if (s->high > s->low) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"beta_fast\" has to be above \"beta_slow\"", f->path);
}

static int read_scaling(const struct reader *r, const json_t *o, struct tc_rope_scaling *s)
{
  const struct tc_hf_file *f = r->f;
  const json_t *type = tc_hf_member(o, "rope_type") ? tc_hf_member(o, "rope_type") : tc_hf_member(o, "type");
  const char *t = type ? json_string_value(type) : "default";
  *s = (struct tc_rope_scaling){ .kind = TC_ROPE_PLAIN };
  if (t && strcmp(t, "default") == 0) return 0;
  if (r->k->partial) return tc_hf_refuse(f, "rope_type", type, "\"default\", which alone that class has besides longrope");
  const bool is_yarn = t && strcmp(t, "yarn") == 0, is_llama3 = t && strcmp(t, "llama3") == 0;
  if (!is_yarn && !is_llama3 && !(t && strcmp(t, "linear") == 0))
    return tc_hf_refuse(f, "rope_type", type, "\"default\", \"linear\", \"llama3\" or \"yarn\"");
  s->kind = TC_ROPE_LINEAR;
  if (!is_yarn || tc_hf_member(o, "factor") || !json_object_get(o, "factor"))
    TC_TRY(tc_hf_real(f, o, "factor", 0, 1e-6, 1e6, &s->factor));
  return is_yarn ? read_yarn(r, o, s) : is_llama3 ? read_llama3(r, o, s) : 0;
}

/* In double precision: how many elements it is goes by that. */
static int read_share(const struct tc_hf_file *f, const json_t *o, double *share)
{
  const char *const key = "partial_rotary_factor";
  const json_t *in = json_object_get(o, key) ? o : f->o, *j = json_object_get(in, key);
  float any;
  TC_TRY(tc_hf_real(f, in, key, 1, 1e-3, 1, &any));
  if (j) *share = json_number_value(j);
  return 0;
}

/* o: the object, or NULL; theta: the file's or the class's where the object has none. */
static int read_object(const struct reader *x, const char *name, const json_t *o, float theta, struct rope *r)
{
  const struct tc_hf_file *f = x->f;
  const struct tc_hf_class *k = x->k;
  *r = (struct rope){ .theta = theta, .share = 1, .scaling = { .kind = TC_ROPE_PLAIN } };
  if (o && !json_is_object(o)) return tc_fail(f->err, TC_EUSER, "%s: \"%s\" is not an object", f->path, name);
  if (o) TC_TRY(tc_hf_real(f, o, "rope_theta", (double)theta, 1, 1e12, &r->theta));
  if (k->partial) TC_TRY(read_share(f, o, &r->share));
  if (!o) return 0;
  if (tc_hf_member(o, "full_attention") || tc_hf_member(o, "sliding_attention"))
    return tc_hf_refuse(f, name, o, "one object for all layers");
  TC_TRY(tc_hf_check_fixed(f, o, k));
  return read_scaling(x, o, &r->scaling);
}

static bool same_rope(const struct rope *a, const struct rope *b)
{
  return a->theta == b->theta && a->share == b->share && tc_same_scaling(&a->scaling, &b->scaling);
}

/* Versions of transformers disagree on which counts where a file has two that differ. */
static int read_flat(const struct reader *x, struct rope *r)
{
  const struct tc_hf_file *f = x->f;
  const json_t *scaling = tc_hf_member(f->o, OLD), *now = tc_hf_member(f->o, NOW);
  const bool is_old = !now || (scaling && !(json_is_object(scaling) && json_object_size(scaling) == 0));
  struct rope other;
  float theta;
  TC_TRY(tc_hf_real(f, f->o, "rope_theta", x->k->theta, 1, 1e12, &theta));
  TC_TRY(read_object(x, is_old ? OLD : NOW, is_old ? scaling : now, theta, r));
  if (!is_old || !now) return 0;
  TC_TRY(read_object(x, NOW, now, theta, &other));
  if (same_rope(r, &other)) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"%s\" and \"%s\" describe different rotary positions: leave one of them", f->path, OLD,
                 NOW);
}

/* Full layers, then sliding ones. */
static int read_by_kind(const struct reader *x, struct rope r[2])
{
  const struct tc_hf_file *f = x->f;
  const struct tc_hf_class *k = x->k;
  static const char *const kinds[2] = { "full_attention", "sliding_attention" };
  const json_t *now = tc_hf_member(f->o, NOW), *old = tc_hf_member(f->o, OLD);
  const char *const theirs[2] = { "rope_theta", k->local_theta };
  const double usual[2] = { k->theta, k->sliding_theta };
  if (now && old)
    return tc_fail(f->err, TC_EUSER, "%s: \"%s\" and \"%s\" both describe rotary positions: leave one of them", f->path, OLD, NOW);
  if (now && (!json_is_object(now) || (json_object_size(now) && !json_object_get(now, kinds[0]) && !json_object_get(now, kinds[1]))))
    return tc_hf_refuse(f, NOW, now, "an object with \"full_attention\" and \"sliding_attention\"");
  for (int i = 0; i < 2; i++) {
    float theta = (float)usual[i];
    if (theirs[i]) TC_TRY(tc_hf_real(f, f->o, theirs[i], usual[i], 1, 1e12, &theta));
    TC_TRY(read_object(x, now ? kinds[i] : OLD, now ? tc_hf_member(now, kinds[i]) : i == 0 ? old : NULL, theta, &r[i]));
  }
  if (tc_hf_member(old, "type") && !tc_hf_member(old, "rope_type"))      /* the class sees its own "rope_type" beside it */
    return tc_hf_refuse(f, "type", tc_hf_member(old, "type"), "\"rope_type\"");
  /* An older file's rope_theta says nothing of sliding layers to the class, but seems to. */
  if (!k->local_theta && !now && tc_hf_member(f->o, "rope_theta") && r[0].theta != (float)k->sliding_theta)
    return tc_hf_refuse(f, "rope_theta", tc_hf_member(f->o, "rope_theta"), "\"rope_parameters\" with an object for each kind of layer");
  return 0;
}

int tc_hf_read_rope(const struct tc_hf_file *f, const struct tc_hf_class *k, struct tc_model *m)
{
  const struct reader x = { f, k, m };
  struct rope r[2];
  TC_TRY(k->sliding_theta > 0 ? read_by_kind(&x, r) : read_flat(&x, &r[0]));
  m->rope_theta = r[0].theta, m->rope_scaling = r[0].scaling;
  if (k->sliding_theta > 0) m->sliding_theta = r[1].theta, m->sliding_scaling = r[1].scaling;
  if (r[0].share < 1) m->rotary_dim = (int64_t)((double)m->head_dim * r[0].share);
  if (m->rotary_dim % 2)
    return tc_fail(f->err, TC_EUSER, "%s: \"partial_rotary_factor\" %g gives %lld elements of a head to positions, which has to "
                   "be even", f->path, r[0].share, (long long)m->rotary_dim);
  return 0;
}
