/* prove.h - whether a layout computes what one rank computes.
 *
 * In: a configuration and a world. Out: the figures of some steps on ranks that are threads of this process, beside those of
 * one rank with the same model, batch and weights: gradients, losses, norms, weights and moments, tensor by tensor; and
 * whether memory and bytes are those that were predicted.
 *
 * Files in reading order: prove.h; scale.c (a run made small, so that what divides and what does not stays as it is);
 * impl.h; inputs.c (tokens, and where documents begin); parameters.c (what one rank has of a parameter, and what others have
 * of it); side.c (the ranks of a layout, as threads); proof.c (one rank, and a layout beside it); judge.c (tolerances);
 * trail.c (where a difference begins); differences.c (one rank beside differences of its loss); blame.c (what a difference
 * goes with); breaks.c (faults that are planted to see that they are found); drawn.c (other layouts of the same model). */
#ifndef TC_PROVE_H
#define TC_PROVE_H

#include "src/config/config.h"
#include "src/graph/mesh.h"

/* ---- scale.c ---- */

/* What was made smaller, in order: name, the value before and after, and why nothing is lost by it. */
enum { TC_SCALE_NOTES = 16 };
struct tc_scale_note { const char *name; int64_t was, is; char why[200]; };
struct tc_scaled {
  int world;
  int32_t *node_of_rank;         /* [world]; owned */
  struct tc_config cfg;          /* borrows from the configuration that it was made of, but for what `pool` has */
  struct tc_config *defaults;    /* owned; some strings are its */
  struct tc_pool *pool;
  struct tc_scale_note note[TC_SCALE_NOTES];
  int n_notes;
};
/* What is made smaller: all; all but sizes within a layer; nothing. */
enum tc_scale_what { TC_SCALE_ALL, TC_SCALE_DEPTH, TC_SCALE_NOTHING };
/* Local. The run of a configuration, small enough for this machine. TC_EUSER and TC_ELAYOUT, as for the run itself.
 * To be freed, also after a failure. */
int tc_scale(struct tc_scaled *out, const struct tc_config *cfg, int world, const int32_t *node_of_rank,
             enum tc_scale_what what, struct tc_err *err);
void tc_scaled_free(struct tc_scaled *s);

/* ---- one rank, and a layout beside it ---- */

/* Where a fault was planted: a collective of this tensor over these axes. Where there is none, no fault is planted. */
struct tc_fault_place { char tensor[100]; unsigned axes; };

/* What is run, on ranks that are threads of this process. All is borrowed. */
struct tc_proof_run {
  const struct tc_config *cfg;
  int world;
  const int32_t *node_of_rank;   /* [world] */
  const char *device;            /* "ref", "cpu" or "cuda" */
  int steps;
  uint64_t seed;
  /* AdamW on the device ref: all tensors in double precision, and finite differences of the loss. */
  bool f64;
  bool large;                    /* one rank computes by the device cpu, which is faster than ref */
  bool poison;                   /* buffers that are free are filled with NaN */
  int fault;                     /* of breaks.c, from 1; 0: none */
  const struct tc_fault_place *fault_at;   /* where it was before; NULL: where it first fits */
  void (*progress)(void *ctx, int rank, int step);   /* a rank has done a step; on its thread; NULL: no calls */
  void *progress_ctx;
};

/* What is compared of each parameter. GRADIENT: before clipping, of the first step. WEIGHT: its change by all steps. */
enum tc_proof_part { TC_PROOF_GRADIENT, TC_PROOF_WEIGHT, TC_PROOF_M, TC_PROOF_V, TC_PROOF_PARTS };
extern const char *const tc_proof_part_name[TC_PROOF_PARTS];
/* Classes of parameters, for a table. */
enum tc_proof_class { TC_PROOF_EMBEDDING, TC_PROOF_ATTENTION, TC_PROOF_MLP, TC_PROOF_NORM, TC_PROOF_HEAD, TC_PROOF_CLASSES };
extern const char *const tc_proof_class_name[TC_PROOF_CLASSES];

struct tc_proof_param {
  char *name;                    /* owned */
  int class;
  /* By part, of the rank where it is largest: the difference's norm by that of one rank's tensor (in which a hundredth
   * of the norm of all tensors counts as least, so that what is almost nothing is not compared with nothing). NAN: it is
   * not a number. */
  double off[TC_PROOF_PARTS];
};

enum { TC_PROOF_STEPS = 8 };            /* at most: what is rounding by then is large */
struct tc_proof {
  struct tc_proof_param *param;  /* [n_params]; owned */
  int n_params, steps;
  /* By step, and of an evaluation after them ([steps]); of the gradient's norm by step. Relative differences. */
  double loss[TC_PROOF_STEPS + 1], norm[TC_PROOF_STEPS];
  double tolerance[TC_PROOF_PARTS], loss_tolerance[TC_PROOF_STEPS + 1], norm_tolerance[TC_PROOF_STEPS];
  char unpredicted[300];         /* memory or bytes of a rank that are not those predicted; "" */
  bool faulted;                  /* the fault that was asked for found its place */
  char fault[300];               /* where it is, in words */
  struct tc_fault_place fault_at;
  bool failed;                   /* a rank failed while it ran; worst: its sentence */
  bool equal;                    /* all is within tolerance, and as predicted */
  /* What differs first: a part of a parameter, with its name; else a step's loss or norm, with the parameter that is farthest
   * off; or "memory or bytes". Empty if all are equal. */
  char worst[400];
  int worst_step;                /* from 1; 0: unknown */
};
void tc_proof_free(struct tc_proof *p);
/* Local. The largest of x[n]; not a number, if one is. */
double tc_proof_largest(const double *x, int n);

struct tc_reference;
/* Local. What one rank computes of the run's model, data and optimizer, by the device ref unless it is large. *out is owned
 * by the caller. TC_EUSER. */
int tc_reference_new(struct tc_reference **out, const struct tc_proof_run *run, struct tc_err *err);
void tc_reference_free(struct tc_reference *r);
/* Local. In double precision: how many elements of the gradient were compared with differences of the loss, the largest
 * relative difference, and of which parameter, into *name (borrowed). */
int tc_reference_differences(const struct tc_reference *r, double *worst, const char **name);
/* Local. The layout beside it. A status that is not 0: it is refused (TC_EUSER, TC_ELAYOUT), or can't be run here. A rank that
 * fails while it runs is a difference. */
int tc_prove(struct tc_proof *out, const struct tc_reference *ref, const struct tc_proof_run *run, struct tc_err *err);

/* ---- trail.c ---- */

/* Where a difference of the forward pass begins, in the order of the program: the first activation that differs, and how it
 * was made. */
struct tc_trail_end { bool found; char tensor[100], made[80]; int mb, rank, compared; double off; };
/* Local. Runs a step of both once more, and compares the activations of layers, but for partial sums: `compared` of them.
 * found false: none differs. */
int tc_trail_find(struct tc_trail_end *out, const struct tc_proof_run *run, struct tc_err *err);

/* ---- blame.c ---- */

/* What a difference goes with: each with the change that makes it go away. */
enum { TC_BLAMES = 12 };
struct tc_blame { char *what[TC_BLAMES]; int n; };
/* Local. Runs the layout again, with one axis at a time set to 1, one option at a time as by default, and without one row
 * of parallel.annotations at a time. say: NULL, or called before each of them. */
int tc_blame_find(struct tc_blame *out, const struct tc_reference *ref, const struct tc_proof_run *run,
                  void (*say)(void *ctx, const char *what), void *ctx, struct tc_err *err);
void tc_blame_free(struct tc_blame *b);

/* ---- breaks.c: a test hook ---- */

/* Local. What the fault of a number does, from 1 on; NULL: there is none. */
const char *tc_break_what(int number);

/* ---- drawn.c ---- */

/* Local. Another layout of the same model and world, drawn: mesh, system and the options that lay a run out. Borrows from
 * cfg. It may be impossible. */
void tc_draw_layout(struct tc_config *out, const struct tc_config *cfg, int world, uint64_t seed, uint32_t number);

#endif
