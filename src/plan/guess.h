/* guess.h - the cheap half of the search: estimates a layout's time and memory from the price of one layer,
 * for which a program is compiled once for each way to split a layer. */
#ifndef TC_PLAN_GUESS_H
#define TC_PLAN_GUESS_H

#include "src/plan/impl.h"

struct tc_cand {
  int32_t pp, dp, cp, tp, micro, virtual_stages, n_mb, shard;      /* shard: as mesh.shard, also TC_AUTO */
  enum tc_data_parallel data;
  enum tc_reduce_when reduce;
  enum tc_schedule schedule;
  enum tc_recompute recompute;
  enum tc_offload offload;
  bool sequence, regather, near_pp;        /* near_pp: mesh.order = tp-pp-dp */
  double s, bytes, host_bytes;   /* per step; of a device; of its host, at least */
};

/* The price of a layer, or of all ops outside the layers, for one micro-batch. */
struct tc_layer_price { double f, b, w, act_bytes; };
struct tc_price { struct tc_layer_price layer, rest; int status; struct tc_err err; };

struct tc_guess {
  const struct tc_config *cfg;   /* borrowed, as is k */
  const struct tc_cluster *k;
  struct tc_selection *selection;      /* of the collectives' algorithms; owned; NULL: the compiled one */
  struct tc_model model;
  double layer_params, rest_params;
  double frozen, states;         /* the share of parameters that are; states of each of the others, on average */
  struct price_row { int32_t cp, tp, micro; enum tc_recompute recompute; bool sequence, regather; struct tc_price p;
                     } *row;
  int n, cap;
  struct flight_row { enum tc_schedule schedule; int32_t pp, virtual_stages, n_mb; double first, last; } *flight;
  int n_flight, cap_flight;
  struct group_row { int32_t size, each; struct tc_members m; } *group;         /* members of it, so many on a node */
  int n_group, cap_group;
  struct sent_row { int32_t group, algorithm, coll, dtype; struct tc_busiest each; } *sent;      /* for an element */
  int n_sent, cap_sent;
};
void tc_guess_done(struct tc_guess *g);

/* The configuration of a layout: c with the layout's options. Strings are borrowed. */
struct tc_config tc_cand_config(const struct tc_config *c, const struct tc_cand *x);
/* Fills x->near_pp: the one of dp and pp with more traffic is the inner axis. */
void tc_guess_order(const struct tc_guess *g, struct tc_cand *x);
/* Fills x->s and x->bytes. TC_ELAYOUT if such a layer is impossible. */
int tc_guess(struct tc_guess *g, struct tc_cand *x, struct tc_err *err);
/* Layers of the stages by memory, as mesh.stages, for a layout that was compiled with stages balanced by time: its first and last
 * stage say what a layer and the rest take. *bytes: of the stage with most. NULL: it has no stages, or virtual ones. The text is
 * the configuration's. */
char *tc_guess_stages(struct tc_guess *g, const struct tc_cand *x, const struct tc_plan *p, double *bytes);

#endif
