/* impl.h - functions shared by the planner's files. */
#ifndef TC_PLAN_IMPL_H
#define TC_PLAN_IMPL_H

#include "src/coll/selection.h"
#include "src/plan/plan.h"

/* layout.c: the number of parameters that the rank computes with. */
int64_t tc_plan_parameters(const struct tc_program *p, const struct tc_mesh *m, int rank);

/* time.c: programs of the ranks of one pipeline, simulated together. */
struct tc_plan_step { double step_s, busy_s, bubble, wait_s[TC_SETS], term_s[TC_TERMS]; };
int tc_plan_simulate(struct tc_plan_step *out, struct tc_program *const *program, const int *rank,
                 int n,
                 const struct tc_mesh *m, const struct tc_cluster *k, struct tc_err *err);

/* node_price.c: the rest of a step's time is waiting for other stages. */
void tc_end_terms(struct tc_plan_step *s);

/* terms.c: what an op counts as, where it is not part of the update. */
enum tc_plan_term tc_plan_term_of(int op);

/* node_price.c: what a node takes on a rank; computed when it is first asked for. */
struct tc_node_price {
  double run_s;                  /* an op or a local reshard */
  enum tc_plan_term term;        /* of run_s */
  double issue_s, unpack_s;      /* of a transfer, on the rank's own time */
  struct tc_reshard_cost reshard;          /* with coll TC_COLLS: no transfer */
};
struct tc_prices;
struct tc_prices *tc_prices_new(const struct tc_program *p, const struct tc_mesh *m, int rank,
                                const struct tc_cluster *k);         /* owned by the caller; all else is borrowed */
void tc_prices_free(struct tc_prices *x);
const struct tc_node_price *tc_price_of(struct tc_prices *x, const struct tc_node *n);
/* Seconds of a transfer of weights or gradients that the device's program does not hide (`exposed`). */
double tc_shown_s(const struct tc_plan_device *d, const struct tc_graph *g, const struct tc_node *n, struct tc_prices *prices);

#define MOST_SLOWED 0.999      /* of what a rank computes, by transfers beside it */
/* What a transfer takes from computation beside it: a GPU's sends next to nothing, since they use few of NCCL's blocks. */
static inline double tc_stolen_s(const struct tc_plan_device *d, const struct tc_reshard_cost *c)
{
  if (d->multiprocessors > 0 && (c->coll == TC_SEND || c->coll == TC_RECV)) return 0;
  return c->seconds * (c->bytes[TC_WIRE_NETWORK] > 0 ? d->steal_network : d->steal);
}
/* node_price.c: whether a node is a transfer of weights or gradients, which overlaps with all work. */
bool tc_hides(const struct tc_graph *g, const struct tc_node *n);
/* Whether it is one of a step, not of a micro-batch. */
bool tc_is_once(const struct tc_node *n);

/* Seconds to move bytes of a device's memory. */
static inline double tc_memory_s(const struct tc_plan_device *d, double bytes)
{
  return bytes / (d->bytes_per_s * d->eff_bytes);
}
/* terms.c: seconds of a product and of attention on a device with multiprocessors. */
double tc_product_s(const struct tc_plan_device *d, double m, double n, double k, int dtype);
/* Whether devices.def has rates of the device's attention. */
bool tc_attention_known(const struct tc_plan_device *d);
double tc_attention_s(const struct tc_plan_device *d, const struct tc_op_cost *c);
/* terms.c: a source of what these terms are made of (bits), or of a wire; a surer one stays. */
void tc_source_add(struct tc_cluster *k, unsigned terms, enum tc_plan_source source);
void tc_source_add_wire(struct tc_cluster *k, enum tc_wire wire, enum tc_plan_source source);
/* terms.c: "source OF = VALUE" of a device file, which replaces what the lines above mean. TC_EUSER. */
int tc_source_set(struct tc_cluster *k, const char *of, const char *value, const char *path, int line, struct tc_err *err);
/* terms.c: these lines for k. */
void tc_source_print(const struct tc_cluster *k, FILE *f);
/* What backward passes over so many layers do not hide of transfers of gradients: at least those of a layer. */
static inline double tc_exposed_s(double transfers_s, double backward_s, double layers)
{
  return TC_MAX(transfers_s - backward_s * (layers - 1) / layers, transfers_s / layers);
}

/* cost.c: the algorithm of a program's collective of `count` elements; the bytes on each wire of what the busiest member
 * sends or receives. far: of the members on other nodes, the part below other leaf switches. */
int tc_coll_algorithm(int coll, int dtype, const struct tc_members *m, double count);
void tc_wire_bytes(double out[TC_WIRES], const struct tc_busiest *b, double far);
/* cost.c: what n ops run as one take less than one by one, if they move so many bytes less. */
double tc_fused_saves(const struct tc_op_cost *part, int n, double bytes, const struct tc_plan_device *d);

/* cost.c: the number of ranks on the node of this one. */
int tc_ranks_on_node(const struct tc_mesh *m, int rank);

/* sums.c: the same by sums over nodes and the simulation of schedules, for pipelines too long
 * to simulate every action. The programs are the first stage's, the last's, and some between in their order,
 * each of which represents the stages up to the next. */
int tc_plan_sums(struct tc_plan_step *out, struct tc_program *const *program, const int *rank,
                 int n,
                 enum tc_schedule schedule, int virtual_stages, int n_mb, const struct tc_mesh *m,
                 const struct tc_cluster *k, struct tc_err *err);
/* One micro-batch and an update on one rank: seconds per kind of work (including transfers on tp), seconds
 * once per step; bytes of scratch. */
struct tc_plan_unit { double f, b, w, once, scratch_bytes; };
int tc_plan_unit(struct tc_plan_unit *out, const struct tc_config *c, int world,
                 const struct tc_cluster *k, struct tc_err *err);

#endif
