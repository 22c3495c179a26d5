/* guess.h - the cheap half of the search: a layout's time and memory guessed from the price of
 * one layer, which is made as a program once for each way a layer can be cut. */
#ifndef TC_PLAN_GUESS_H
#define TC_PLAN_GUESS_H

#include "src/plan/impl.h"

struct tc_cand {
  int32_t pp, dp, tp, micro, virtual_stages, n_mb;
  enum tc_data_parallel data;
  enum tc_schedule schedule;
  enum tc_recompute recompute;
  enum tc_offload offload;
  bool sequence, near_pp;        /* near_pp: mesh.order = tp-pp-dp */
  double s, bytes, host_bytes;   /* of a step; of a device; of its host, at least */
};

/* A layer, and all that is outside the layers, with one micro-batch. */
struct tc_layer_price { double f, b, w, act_bytes; };
struct tc_price { struct tc_layer_price layer, rest; int status; struct tc_err err; };

struct tc_guess {
  const struct tc_config *cfg;   /* borrowed, as is k */
  const struct tc_cluster *k;
  struct tc_model model;
  double layer_params, rest_params;
  struct price_row { int32_t tp, micro; enum tc_recompute recompute; bool sequence; struct tc_price p;
                     } *row;
  int n, cap;
  struct flight_row { enum tc_schedule schedule; int32_t pp, virtual_stages, n_mb; double first, last; } *flight;
  int n_flight, cap_flight;
};
void tc_guess_done(struct tc_guess *g);

/* The configuration of a layout: c's own, with what the layout says. Strings are borrowed. */
struct tc_config tc_cand_config(const struct tc_config *c, const struct tc_cand *x);
/* Fills x->s and x->bytes. TC_ELAYOUT if such a layer can't be. */
int tc_guess(struct tc_guess *g, struct tc_cand *x, struct tc_err *err);

#endif
