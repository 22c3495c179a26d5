/* impl.h - functions shared by the planner's files. */
#ifndef TC_PLAN_IMPL_H
#define TC_PLAN_IMPL_H

#include "src/plan/plan.h"

/* layout.c: the number of parameters that the rank computes with. */
int64_t tc_plan_parameters(const struct tc_program *p, const struct tc_mesh *m, int rank);

/* time.c: programs of the ranks of one pipeline, simulated together. */
struct tc_plan_walk { double step_s, busy_s, bubble, wait_s[TC_AXES]; };
int tc_plan_walk(struct tc_plan_walk *out, struct tc_program *const *program, const int *rank,
                 int n,
                 const struct tc_mesh *m, const struct tc_cluster *k, struct tc_err *err);
/* Seconds that a node other than a RESHARD takes on a rank. */
double tc_plan_run_s(const struct tc_program *p, const struct tc_node *n, const struct tc_mesh *m,
                     int rank, const struct tc_cluster *k);

/* node_price.c: seconds that fused calls save, at the node of a group's last part: [n_nodes], owned by the caller. */
double *tc_plan_saved_s(const struct tc_program *p, const struct tc_mesh *m, int rank,
                        const struct tc_plan_device *d);
/* cost.c: what n ops run as one take less than one by one, if they move so many bytes less. */
double tc_fused_saves(const struct tc_op_cost *part, int n, double bytes, const struct tc_plan_device *d);

/* chunk.c: takes loss chunks of up to 2 GiB for a layout in bf16 on GPUs whose parallel.head_chunk is auto, if they
 * fit, with a tenth of a device's memory left, and its step is shorter by the estimate: then *p and *c are the new
 * ones. */
void tc_plan_chunk(struct tc_plan *p, struct tc_config *c, const struct tc_cluster *k);

/* cost.c: the number of ranks on the node of this one. */
int tc_ranks_on_node(const struct tc_mesh *m, int rank);

/* sums.c: the same by sums over nodes and the simulation of schedules, for pipelines too long
 * to simulate every action. The programs are the first stage's, the last's, and some between in their order,
 * each of which represents the stages up to the next. */
int tc_plan_sums(struct tc_plan_walk *out, struct tc_program *const *program, const int *rank,
                 int n,
                 enum tc_schedule schedule, int virtual_stages, int n_mb, const struct tc_mesh *m,
                 const struct tc_cluster *k, struct tc_err *err);
/* One micro-batch and an update on one rank: seconds per kind of work (including transfers on tp), seconds
 * once per step; bytes of scratch. */
struct tc_plan_unit { double f, b, w, once, scratch_bytes; };
int tc_plan_unit(struct tc_plan_unit *out, const struct tc_config *c, int world,
                 const struct tc_cluster *k, struct tc_err *err);

#endif
