/* place_run.h - a drawn layout beside one rank (src/prove): gradients of all that each rank stores, losses and norms of all
 * steps, memory, calls and bytes; in double precision also finite differences of the loss. */
#ifndef TC_PLACE_RUN_H
#define TC_PLACE_RUN_H

#include "src/prove/prove.h"
#include "tests/fuzz/place_draw.h"

enum { STEPS = 3 };
enum result { REFUSED, RIGHT, WRONG, FAULT, RESULTS };

struct outcome {                 /* shared with the case's process */
  int result;
  double gradient, loss, norm;   /* the worst relative differences: of tensors, of losses, of the gradient's norm */
  double difference;             /* ... from finite differences, of `compared` elements */
  int compared;
  int tensors, axes;             /* that rows place, of those that are not R */
  char text[700];
};

/* Whether the words are those of a check that a pass failed, which no file may bring about. */
static bool is_fault(const char *text) { return strstr(text, "fault of Tercio") != NULL; }

/* Beside what src/prove allows, bounds of this test's own, which no size moves. */
static void assess(struct outcome *o, const struct tc_proof *p, const struct tc_reference *ref, const struct draw *d)
{
  const bool bf16 = d->bf16 && !d->f64;
  const double gradient = d->f64 ? 1e-12 : bf16 ? 5e-2 : 1e-6, loss = bf16 ? 1e-2 : 1e-5, norm = bf16 ? 5e-2 : 1e-5;
  const char *name;
  for (int i = 0; i < p->n_params; i++)
    if (!(p->param[i].off[TC_PROOF_GRADIENT] <= o->gradient)) o->gradient = p->param[i].off[TC_PROOF_GRADIENT];
  o->loss = tc_proof_largest(p->loss, p->steps + 1);
  o->norm = tc_proof_largest(p->norm, p->steps);
  o->compared = tc_reference_differences(ref, &o->difference, &name);
  /* In double precision this bound is the wider one where terms cancel: caps that are reached, norms of small outputs. */
  bool right = (p->equal || (d->f64 && !*p->unpredicted)) && o->gradient <= gradient && o->loss <= loss && o->norm <= norm;
  if (d->f64) right &= o->compared > 0 && o->difference <= 1e-5;      /* a squared ReLU's curvature jumps */
  o->result = right ? RIGHT : WRONG;
  if (!right) snprintf(o->text, sizeof o->text, "%.250s; finite differences of %.100s; %.250s", p->worst, name, p->unpredicted);
}

/* What the rows place, other than R: tensors (parameters and what forward makes) and axes. */
static void count_rows(struct outcome *o, const struct tc_config *c, const struct tc_mesh *m)
{
  struct tc_program_opts opts;
  struct tc_annotation *rows;
  struct tc_program *p;
  struct tc_err err;
  if (tc_setup_program(&opts, c, m, &rows, &err) < 0) return;
  struct tc_annotation *kept = rows;
  memset(opts.annotation, 0, sizeof opts.annotation);
  if (tc_program_new(&p, &opts, m, 0, NULL, "build", &err) == 0) {
    const struct tc_graph *g = p->graph;
    unsigned axes = 0;
    for (int32_t t = 0; t < g->n_tensors; t++) {
      bool hit = false;
      for (const struct tc_annotation *a = rows; a && a->pattern; a++) {
        bool placed = false;
        for (int k = 0; k < (a->four ? TC_PLACES : 1); k++) placed |= a->place[k].kind != TC_R;
        if (!placed || fnmatch(a->pattern, g->tensor[t].name, 0)) continue;
        hit = true;
        axes |= a->axes;
      }
      o->tensors += hit;
    }
    o->axes = __builtin_popcount(axes);
    tc_program_free(p);
  }
  tc_annotations_free(kept);
}

static void run_case(struct draw *d, struct outcome *out)
{
  static const int32_t node[16] = { 0 };
  struct tc_err err = { 0 };
  struct tc_config *c;
  struct tc_reference *ref = NULL;
  struct tc_proof proof = { 0 };
  out->result = FAULT;
  int rc = config_of(&c, d, false, &err);
  TC_ASSERT(rc == 0);
  struct tc_proof_run run = { .cfg = c, .world = ranks_of(d), .node_of_rank = node, .device = d->device, .steps = STEPS, .seed = 3,
                              .f64 = d->f64, .poison = true };
  rc = tc_reference_new(&ref, &run, &err);       /* fails where there is no such model */
  if (!rc) rc = tc_prove(&proof, ref, &run, &err);
  if (!rc && !proof.failed) {
    struct tc_mesh *m;
    rc = tc_setup_mesh(&m, c, run.world, node, 0, &err);
    TC_ASSERT(rc == 0);
    count_rows(out, c, m);
    assess(out, &proof, ref, d);
    return;
  }
  snprintf(out->text, sizeof out->text, "%.690s", rc ? err.text : proof.worst);
  if ((rc == TC_EUSER || rc == TC_ELAYOUT) && !is_fault(err.text)) out->result = REFUSED;
}

#endif
