/* judge.c - which differences are rounding.
 *
 * A layout adds the same terms in another order. Rounding of n terms in a format whose numbers are apart by a factor of
 * 1 + u is about u sqrt(n) of the sum's size where signs are mixed; a gradient is a sum over all tokens of products whose
 * factors are sums over a layer's width, through all layers. So a gradient's tolerance is a small multiple of
 * u sqrt(terms), of the norm of its tensor. What an optimizer makes of it has more: AdamW divides by the root of the second
 * moment, which makes the rounding of small elements larger; and a step goes on from weights that differ by then, by up to
 * GROWTH times as much a step. In bf16 each activation is rounded, so which terms are added before one is rounded decides:
 * the tolerance is of the order of bf16's u, and larger for deep models. */
#include "src/prove/impl.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Tolerances in units of u sqrt(terms); of bf16 as they are. */
struct tolerances { double part[TC_PROOF_PARTS], loss, norm; };
static const struct tolerances in_fp32 = { { 2, 20, 20, 20 }, 3, 5 };
static const struct tolerances in_bf16 = { { 3e-2, 8e-2, 5e-2, 5e-2 }, 1e-3, 2e-2 };
#define GROWTH 2.0
enum { LEAST_TERMS = 1024 };

static void set_tolerances(struct tc_proof *p, const struct tc_reference *r)
{
  const struct tolerances *of = r->bf16 ? &in_bf16 : &in_fp32;
  const double terms = (double)TC_MAX(r->terms, (int64_t)LEAST_TERMS);
  const double u = r->bf16 ? sqrt(TC_MAX(1, (double)r->layers / 8)) : (r->f64 ? DBL_EPSILON : FLT_EPSILON / 2) * sqrt(terms);
  const double grown = pow(GROWTH, p->steps - 1);
  for (int k = 0; k < TC_PROOF_PARTS; k++) p->tolerance[k] = of->part[k] * u * (k == TC_PROOF_GRADIENT ? 1 : grown);
  for (int i = 0; i <= p->steps; i++) {
    p->loss_tolerance[i] = of->loss * u * pow(GROWTH, i);
    p->norm_tolerance[TC_MIN(i, p->steps - 1)] = of->norm * u * pow(GROWTH, TC_MIN(i, p->steps - 1));
  }
}

/* Notes what is beyond its tolerance by more than what was noted so far. */
static void look(struct tc_proof *p, double *most, double off, double tolerance, int step, const char *part, const char *name)
{
  const double by = isnan(off) ? INFINITY : off / tolerance;
  if (by <= 1) return;
  p->equal = false;
  if (by <= *most) return;
  *most = by;
  p->worst_step = step;
  snprintf(p->worst, sizeof p->worst, "%s%s%s", part, *name ? " of " : "", name);
}

/* Adds the parameter whose weight or moments are farthest from one rank's, in units of its tolerance, however small. */
static void name_farthest(struct tc_proof *p)
{
  double most = 0;
  const char *name = NULL;
  for (int part = TC_PROOF_WEIGHT; part < TC_PROOF_PARTS; part++)
    for (int i = 0; i < p->n_params; i++) {
      const double by = p->param[i].off[part] / p->tolerance[part];
      if (!isnan(most) && !(by <= most)) most = by, name = p->param[i].name;
    }
  if (name) tc_text_add(p->worst, sizeof p->worst, ", with that %s farthest", name);
}

/* A step's figures come after those of its gradient, and weights after all steps: the first that differ say most. An error of
 * the backward pass goes on to the layers before it, so that it is nearest to the last gradient that differs. */
static void find_worst(struct tc_proof *p)
{
  double most = 0;
  p->equal = true;
  for (int i = 0; i < p->n_params; i++) {
    most = 0;
    look(p, &most, p->param[i].off[TC_PROOF_GRADIENT], p->tolerance[TC_PROOF_GRADIENT], 1, "gradient", p->param[i].name);
  }
  const bool gradients = p->equal;
  for (int s = 0; s < p->steps && p->equal; s++) {
    look(p, &most, p->loss[s], p->loss_tolerance[s], s + 1, "loss", "");
    if (p->equal) look(p, &most, p->norm[s], p->norm_tolerance[s], s + 1, "norm of the gradient", "");
  }
  if (gradients && !p->equal) name_farthest(p);
  for (int part = TC_PROOF_WEIGHT; part < TC_PROOF_PARTS && p->equal; part++)
    for (int i = 0; i < p->n_params; i++)
      look(p, &most, p->param[i].off[part], p->tolerance[part], p->steps, tc_proof_part_name[part], p->param[i].name);
  if (p->equal) look(p, &most, p->loss[p->steps], p->loss_tolerance[p->steps], p->steps, "loss of an evaluation", "");
  if (p->equal && *p->unpredicted) {
    p->equal = false;
    snprintf(p->worst, sizeof p->worst, "memory or bytes");
  }
}

double tc_proof_largest(const double *x, int n)
{
  double most = 0;
  for (int i = 0; i < n; i++)
    if (!(x[i] <= most) && !isnan(most)) most = x[i];
  return most;
}

static double relative(double got, double want) { return got == want ? 0 : fabs(got / want - 1); }

int tc_reference_differences(const struct tc_reference *r, double *worst, const char **name)
{
  *worst = 0;
  *name = "";
  for (int i = 0; i < r->n_differences; i++) {
    const struct tc_difference *d = &r->difference[i];
    const double is = r->param[d->param].part[TC_PROOF_GRADIENT][d->at] / r->of_gradient;
    const double off = fabs(is - d->value) / (fabs(d->value) + 1e-3);
    if (off <= *worst || isnan(*worst)) continue;
    *worst = off;
    *name = r->param[d->param].name;
  }
  return r->n_differences;
}

void tc_judge(struct tc_side *s)
{
  struct tc_proof *p = s->out;
  const struct tc_reference *r = s->ref;
  p->steps = s->run->steps;
  p->n_params = r->n_params;
  p->param = tc_calloc((size_t)p->n_params, sizeof *p->param);
  for (int i = 0; i < p->n_params; i++) {
    struct tc_proof_param *x = &p->param[i];
    x->name = tc_strdup(r->param[i].name);
    x->class = r->param[i].class;
    for (int k = 0; k < TC_PROOF_PARTS; k++) {
      const double size = sqrt(r->param[i].norm[k]) + 1e-2 * r->all[k];
      x->off[k] = size != 0 ? sqrt(s->off[i * TC_PROOF_PARTS + k]) / size : 0;
    }
  }
  for (int i = 0; i <= p->steps; i++) p->loss[i] = relative(p->loss[i], r->loss[i]);
  for (int i = 0; i < p->steps; i++) p->norm[i] = relative(p->norm[i], r->norm[i]);
  set_tolerances(p, r);
  find_worst(p);
}
