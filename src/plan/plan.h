/* plan.h - what a run needs before it runs: memory, time, bytes on each wire, the cost of
 * checkpoints and failures; and a search over layouts.
 *
 * In: a configuration, and the description of a device and its cluster. Out: predictions for one layout, or
 * the best layouts. Files in reading order: device.c with devices.def, tables.c, json.c (what things cost);
 * links.c, cost.c (an op, a transfer); time.c, sums.c (a step); memory.c; layout.c (one layout);
 * guess.[ch], search.c (many); run.c (checkpoints and failures); impl.h.
 *
 * Pure: no MPI, no device, no clock. Made of the passes that make the programs which train, so a
 * plan and a run cannot drift apart; what is added are prices (of an op on a device, of a transfer
 * on a link). Everything here is Local. */
#ifndef TC_PLAN_H
#define TC_PLAN_H

#include "src/coll/coll.h"
#include "src/program/setup.h"

struct json_t;                                   /* jansson's */

/* ---- device.c: what things cost --------------------------------------------- */

/* A transfer takes latency_s + bytes / bytes_per_s, by kind of collective. */
struct tc_link { double latency_s[TC_COLLS], bytes_per_s[TC_COLLS]; };
/* Within a node; out of it; out of what its leaf switch joins: a part of what leaves the node. */
enum tc_wire { TC_WIRE_NODE, TC_WIRE_NETWORK, TC_WIRE_SPINE, TC_WIRES };
extern const char *const tc_wire_name[TC_WIRES];

/* An op that was timed: what cost.c says it does, how many ranks of the node worked at once,
 * and how long it took. */
struct tc_op_sample { int32_t op, ranks; double key[4], seconds; };

struct tc_plan_device {
  char name[64];
  double memory_bytes, host_bytes;              /* a device's; a node's host memory, 0: not known */
  double flops[TC_DTYPES];                       /* a second, of products; 0: the type has none */
  double bytes_per_s, copy_bytes_per_s;          /* of its memory; between it and the host */
  double eff_flops, eff_bytes;                   /* the part of those that is reached */
  double op_s, issue_s;                          /* to start an op; to issue a transfer */
  double cores;                                  /* ranks of a node that work at once; 0: all */
  double steal;                                 /* part of a transfer's time within the node that it
                                                  * takes from the work beside it: copies on a
                                                  * CPU */
  struct tc_op_sample *sample; int32_t n_samples, cap_samples;   /* measured; owned */
};

struct tc_cluster {
  int32_t nodes, devices;                        /* devices of each node */
  struct tc_plan_device device;
  struct tc_link link[TC_WIRES];
  double switch_nodes;                           /* below a leaf switch; 0: all below one */
  double disk_bytes_per_s;                       /* of the file system, all nodes together */
  double mtbf_s;                                 /* of a node; 0: never fails */
};

/* Local. The cluster of a device of devices.def, or of a file (its name has a '/' or a '.'): lines
 * "key = value", as tc_cluster_write writes them. TC_EUSER: unknown, with the nearest name;
 * file and line of what is wrong. Free it with tc_cluster_done. */
int tc_cluster_read(struct tc_cluster *k, const char *device, struct tc_err *err);
int tc_cluster_write(const struct tc_cluster *k, const char *path, struct tc_err *err);
/* links.c. Local. Latency and rate of each collective, fitted to what `tercio comm --json`
 * printed into the file; of what it did not measure, those of the nearest kind. */
int tc_links_read(struct tc_link *l, const char *path, struct tc_err *err);
void tc_cluster_done(struct tc_cluster *k);
/* Local. The device of devices.def that a driver calls `gpu` ("NVIDIA A100-SXM4-80GB"); NULL: none.
 * Cards on PCI Express are slower than devices.def has them, so they are none. */
const char *tc_plan_device_of(const char *gpu);
/* Local. Whether `gpu` is one of devices.def that Tercio does not run on. */
bool tc_plan_too_old(const char *gpu);
/* Local. "80GB", "80e9", "1.5 GiB" into bytes; -1 if it is none of these. */
double tc_plan_bytes(const char *text);
/* Local. "24:00:00", "30:00" (minutes and seconds), "1-12:00:00", "90m", "36h", "20d", "5y" (hours
 * if bare) into seconds; -1. */
double tc_plan_seconds(const char *text);

/* ---- tables.c: what textbooks count ----------------------------------------- */

/* The public estimate of a training step's memory in fp32 with Adam: 20 bytes a parameter (weights
 * 4, gradients 4, optimizer 12) and six activations of [batch, context, hidden] a layer. Bytes. */
struct tc_textbook {
  double weights, gradients, optimizer, layers, tokens, positions;
  double activations, total;                     /* layers + tokens + positions; all */
};
void tc_textbook(struct tc_textbook *out, const struct tc_model *m, int64_t batch);
/* Weights, gradients and Adam, 16 bytes a parameter: 4 + 4 + 8, or in mixed precision 2 + 2 +
 * 12. */
double tc_textbook_states(double parameters);
/* The same over n ranks by ZeRO's stage 0 .. 3 (Rajbhandari et al., 2020), a rank's bytes. */
double tc_textbook_zero(double parameters, int stage, double n);
/* Prints the tables of models, devices and ZeRO. */
void tc_plan_tables(FILE *f);

/* ---- memory.c --------------------------------------------------------------- */

struct tc_plan_memory {
  int64_t by_class[TC_SPACES][TC_CLASSES];       /* as run.json's predicted_bytes */
  int64_t bytes[TC_SPACES];                      /* all of it: what is allocated */
  int64_t state_bytes, scratch_bytes, staging_bytes;   /* on the device */
};
/* Local. What a rank takes for programs that share their state, programs[0] the one that trains. */
void tc_plan_memory(struct tc_plan_memory *out, struct tc_program *const *programs, int n,
                    const struct tc_mesh *m, int rank);

/* ---- cost.c: what an op does, and how long it takes ------------------------- */

struct tc_op_cost {
  int32_t op, ranks;                             /* ranks on its node */
  int dtype;                                     /* of its first operand */
  double flops, bytes;                           /* of one run on this rank */
  int64_t m, n, k;                               /* a product's sizes */
  bool ta, tb;
};
/* Local. *none: the node has nothing to do at `rank`. */
void tc_op_cost(struct tc_op_cost *out, const struct tc_graph *g, const struct tc_node *n,
                const struct tc_mesh *m, int rank, bool *none);
/* What tells one timing from another. */
void tc_op_key(const struct tc_op_cost *c, double key[4]);
double tc_op_seconds(const struct tc_op_cost *c, const struct tc_plan_device *d);

/* Local. A transfer of the node at `rank`: which wires its group uses, bytes that a member puts on
 * each at most, and how long it takes. 0 for what is local; `coll` TC_COLLS then. */
struct tc_reshard_cost { int coll; double seconds, bytes[TC_WIRES]; };
/* Bytes in or out of the member that has most of them, for `bytes` of the whole among `size`. */
double tc_coll_busiest(int coll, int size, double bytes);
void tc_reshard_cost(struct tc_reshard_cost *out, const struct tc_program *p, const struct tc_node *n,
                  const struct tc_mesh *m, int rank, const struct tc_cluster *k);

/* ---- time.c ----------------------------------------------------------------- */

struct tc_plan_time {
  double step_s, tokens_per_s, mfu;
  double bubble;                              /* part of the step that stages wait for each other */
  double compute_s;                              /* of the busiest rank */
  double wait_s[TC_AXES];                    /* transfers not hidden behind work, the same rank's */
  double bytes[TC_AXES], wire_bytes[TC_WIRES];   /* a rank sends at most, a step */
  bool walked;                                   /* every action of every stage, not by sums */
};

/* ---- layout.c: one layout --------------------------------------------------- */

enum { TC_PLAN_CLASSES = 32 };
struct tc_plan_class {
  int32_t rank, pp, dp;
  int64_t parameters;                            /* that it works with */
  struct tc_plan_memory memory;
};
struct tc_plan {
  int32_t world, n_mb, pp, dp, tp, micro, virtual_stages;
  struct tc_model model;
  int64_t parameters, batch, tokens;             /* tokens of a step */
  struct tc_plan_class cls[TC_PLAN_CLASSES]; int n_cls;
  bool exact;
  int worst;                                     /* the class that needs most device memory */
  struct tc_plan_time time;
};
/* Local. exact: all programs of a run and all distinct ranks; else the training program of the
 * ranks at both ends, with as many micro-batches as fill their memory. Without `k` no time. */
int tc_plan_layout(struct tc_plan *out, const struct tc_config *c, int world,
                   const struct tc_cluster *k, bool exact, struct tc_err *err);
/* The same for ranks whose nodes are known: node_of_rank[world], as a mesh is made of them. */
int tc_plan_layout_on(struct tc_plan *out, const struct tc_config *c, int world,
                      const int32_t *node_of_rank, int devices_per_node,
                      const struct tc_cluster *k, bool exact, struct tc_err *err);
/* json.c. Local. Time and bytes, as they stand in `tercio plan --json` and run.json. Owned by
 * the caller. */
struct json_t *tc_plan_time_json(const struct tc_plan_time *t);

/* ---- search.c: layouts for a cluster ---------------------------------------- */

/* What the search may not change: the configuration's own value holds. */
enum tc_plan_key { TC_KEY_PP, TC_KEY_DP, TC_KEY_TP, TC_KEY_MICRO, TC_KEY_DATA, TC_KEY_SCHEDULE,
                   TC_KEY_VIRTUAL_STAGES, TC_KEY_SEQUENCE, TC_KEY_RECOMPUTE, TC_KEY_OFFLOAD, TC_KEYS };
extern const char *const tc_plan_key_name[TC_KEYS];        /* "mesh.pp", ... */

struct tc_plan_row {
  struct tc_config cfg;                          /* the layout; strings are borrowed */
  struct tc_plan plan;
  double guess_s, guess_bytes;                   /* what put it here */
};
/* All layouts with this value of one key: how many there are, how many fit. */
struct tc_plan_family {
  int key;
  char name[48], why[200];                       /* why: of one that can't be */
  int64_t n, fit;
  double least_bytes;                            /* of those that can be but don't fit */
  double least_host_bytes;                       /* of a node, of those that are too much for it */
};
struct tc_plan_found {
  struct tc_plan_row *row; int n_rows;           /* best first; owned */
  struct tc_plan_family *family; int n_families, cap_families;   /* owned */
  int64_t considered, possible, fitting;
  double least_bytes;                            /* of a device, over all layouts */
  char why[200];                                 /* of the best one that was made and can't be */
  int least_nodes;                               /* if nothing fits: nodes that would do; 0: none */
};
/* Local. At most `top` layouts of c's model and batch on the cluster, by time of a step. hold: bits
 * of what is given. Rows are guessed from the costs of one layer; the best are made as programs
 * (of both ends of a pipeline), and those that don't fit then are dropped.
 * TC_EUSER, TC_ELAYOUT: held keys that contradict each other. Free it with tc_plan_found_done. */
int tc_plan_search(struct tc_plan_found *out, const struct tc_config *c, const struct tc_cluster *k,
                   unsigned hold, int top, struct tc_err *err);
void tc_plan_found_done(struct tc_plan_found *f);

/* ---- run.c: checkpoints and failures ---------------------------------------- */

/* Local. Daly's optimum of the time from the end of one checkpoint to the start of the next, in
 * seconds: cost_s is what a checkpoint takes, mtbf_s the mean time between failures of all nodes
 * together. A checkpoint that costs nothing gives 0; one that costs twice the MTBF or more, the
 * MTBF. */
double tc_daly_s(double cost_s, double mtbf_s);

struct tc_plan_run {
  double ckpt_bytes, ckpt_s;                     /* fp32 weights, m and v; writing them */
  double mtbf_s;                                 /* of all nodes together; 0: never */
  double interval_s;                             /* between checkpoints, after Young and Daly */
  double lost;                             /* part of the time that checkpoints and failures take */
  double steps, hours, node_hours;               /* to the tokens asked for, failures included */
  int requeues;                                  /* by the walltime */
};
void tc_plan_run(struct tc_plan_run *out, const struct tc_plan *p, const struct tc_config *c,
                 const struct tc_cluster *k, double tokens, double walltime_s, double restart_s);

#endif
