/* plan.h - predicts what a run needs: memory, time, bytes on each wire, the cost of
 * checkpoints and failures; and searches for layouts.
 *
 * In: a configuration, and the description of a device and its cluster. Out: predictions for one layout, or
 * the best layouts. Files in reading order: cluster.c with devices.def, links.c, tables.c (what things cost);
 * terms.c, cost.c, node_price.c (products and attention by shape; an op, a transfer, ops as one); time.c, sums.c (a step);
 * memory.c; layout.c (one layout); inference.c (evaluation and sampling); guess.[ch], search.h, candidates.c, space.c (what is
 * searched), chunk.c, search.c (many); failures.c (checkpoints and failures); start.h with start.def, start_calls.c (control
 * traffic of many ranks); impl.h.
 *
 * Pure: no MPI, no device, no clock. The plan compiles its programs with the same passes as training, so that
 * they can't differ; it adds prices (of an op on a device, of a transfer on a link). Everything here is
 * Local. */
#ifndef TC_PLAN_H
#define TC_PLAN_H

#include "src/coll/coll.h"
#include "src/files/files.h"
#include "src/program/setup.h"

struct json_t;                                   /* jansson's */

/* ---- cluster.c: what things cost --------------------------------------------- */

/* By kind of collective a transfer takes latency_s a round, and what its bytes take: interpolated between measured sizes, if
 * there are two or more, else (bytes + min(bytes, half_bytes)) / bytes_per_s: half of the rate up to half_bytes, which a
 * library needs to fill its channels, and nearly all of it far beyond. Times are without latency, and none is less than one of
 * fewer bytes. A device file that Tercio writes has latencies, rates and half_bytes. */
enum { TC_LINK_POINTS = 32 };
struct tc_link_points { int n; double bytes[TC_LINK_POINTS], seconds[TC_LINK_POINTS]; };
struct tc_link {
  double latency_s[TC_COLLS], bytes_per_s[TC_COLLS], half_bytes[TC_COLLS];
  struct tc_link_points measured[TC_COLLS];
};
/* Traffic within a node; between nodes; between leaf switches, which is part of that between nodes. */
enum tc_wire { TC_WIRE_NODE, TC_WIRE_NETWORK, TC_WIRE_SPINE, TC_WIRES };
extern const char *const tc_wire_name[TC_WIRES];

/* A timed op: its work by cost.c, the number of ranks of the node that worked at the same time, and its
 * duration. */
struct tc_op_sample { int32_t op, ranks; double key[4], seconds; };

/* Which attention a GPU runs: cuDNN's, Tercio's kernels, and of other programs one that is written in Triton, or that writes its
 * scores to memory. */
enum tc_attn_by { TC_ATTN_BY_CUDNN, TC_ATTN_BY_OWN, TC_ATTN_BY_TRITON, TC_ATTN_BY_UNFUSED, TC_ATTN_BYS };
extern const char *const tc_attn_by_name[TC_ATTN_BYS];

/* What a step's time is made of, on the rank that computes most: products; attention; what is between them, at the rate of memory
 * (norms, residuals, activations, packing); the optimizer; transfers that nothing hides, and what others take from computation;
 * waiting for other stages. Saves come on top. */
enum tc_plan_term { TC_TERM_PRODUCTS, TC_TERM_ATTENTION, TC_TERM_BETWEEN, TC_TERM_UPDATE, TC_TERM_TRANSFERS, TC_TERM_BUBBLE,
                    TC_TERMS, TC_TERM_SAVES = TC_TERMS };
extern const char *const tc_term_name[TC_TERMS + 1];

/* Where the figures of a term come from, the surest last: assumed; fitted to published runs; a data sheet; measured on such a
 * device (devices.def); a device file or a flag; timed on the machine itself. */
enum tc_plan_source { TC_SOURCE_UNSAID, TC_SOURCE_ASSUMED, TC_SOURCE_FITTED, TC_SOURCE_SHEET, TC_SOURCE_MEASURED, TC_SOURCE_GIVEN, TC_SOURCE_CALIBRATED,
                      TC_SOURCES };
extern const char *const tc_source_name[TC_SOURCES];

struct tc_plan_device {
  char name[64];
  double memory_bytes, host_bytes;              /* of a device, for a run; host memory of a node, 0: unknown */
  double context_bytes;                          /* what CUDA and libraries have of it besides */
  double flops[TC_DTYPES];                       /* per second, of products; 0: the type has none */
  double bytes_per_s, copy_bytes_per_s;          /* of device memory; between device and host */
  double eff_flops, eff_bytes;                   /* the fractions of those that are achieved */
  double op_s, issue_s;                          /* to launch an op; to issue a transfer */
  double cores;                                  /* ranks of a node that can compute at the same time; 0: all */
  /* Fraction of the time of a transfer that it takes from concurrent computation, within the node and between nodes: copies on a
   * CPU, multiprocessors of a GPU on which NCCL's kernels run. */
  double steal, steal_network;
  double exposed;                                /* fraction of transfers of weights and gradients that is not hidden */
  double multiprocessors, capability;            /* of a GPU: products by tiles, attention by its rates; 0: by eff_flops alone */
  double pipeline_queues;                        /* 2: transfers to lower stages do not wait for those to higher ones (NCCL's); 1 */
  int attention;                                 /* enum tc_attn_by */
  uint32_t fuses;                                /* bits 1 << enum tc_fusion_id: run as one call */
  struct tc_op_sample *sample; int32_t n_samples, cap_samples;   /* measured; owned */
};

struct tc_cluster {
  int32_t nodes, devices;                        /* devices of each node */
  struct tc_plan_device device;
  struct tc_link link[TC_WIRES];
  double switch_nodes;                           /* nodes per leaf switch; 0: all on one */
  double disk_bytes_per_s;                       /* of the file system, all nodes together */
  double mtbf_s;                                 /* of a node; 0: never fails */
  /* Where rates come from: of transfers by wire (of a spine, if unsaid, as of the network); of attention, if unsaid, by
   * devices.def. */
  enum tc_plan_source source[TC_TERMS + 1], wire_source[TC_WIRES];
  enum tc_plan_source card;                      /* of the device's own row of devices.def */
};
/* What a step has: ops, and bytes on wires. */
struct tc_plan_used { bool op[TC_OPS]; double wire_bytes[TC_WIRES]; };
/* terms.c. Local, pure. Where the figures of a step's term come from, never unsaid: rates, but timings if all of its ops were
 * timed; of transfers those of the wires that carry bytes, the bubble's those of the other terms, each time the least sure. used
 * NULL: whatever a step has, so that no timing counts and all wires do. */
enum tc_plan_source tc_plan_source(const struct tc_cluster *k, enum tc_plan_term term, const struct tc_plan_used *used);

/* Local. The cluster of a device of devices.def, or of a file (whose name has a '/' or a '.') with lines
 * "key = value", as tc_cluster_write writes it. TC_EUSER: unknown device, with the nearest name, or file
 * and line of the error. Free it with tc_cluster_done. */
int tc_cluster_read(struct tc_cluster *k, const char *device, struct tc_err *err);
/* Local. Whether the values of a device go together; path: what the sentence names. TC_EUSER. */
int tc_cluster_check(const struct tc_cluster *k, const char *path, struct tc_err *err);
/* What a run's options say of its devices: run.attention. */
static inline void tc_cluster_run(struct tc_cluster *k, const struct tc_config *c)
{
  if (c->run_attention == TC_ATTENTION_OWN && k->device.attention == TC_ATTN_BY_CUDNN) k->device.attention = TC_ATTN_BY_OWN;
}
/* Local. Sets one key of such a file. path and line: where it is, for sentences. TC_EUSER. */
int tc_cluster_set(struct tc_cluster *k, const char *key, const char *value, const char *path, int line, struct tc_err *err);
/* Local. Its text, and what tells such a file; and the same into a file. */
void tc_cluster_print(const struct tc_cluster *k, FILE *f);
extern const struct tc_output_kind tc_cluster_kind;
int tc_cluster_write(const struct tc_cluster *k, const char *path, const char *flag, struct tc_err *err);
/* links.c. Local. Latency and rate of each collective, fitted to the output of `tercio comm --json` in the
 * file; a collective that was not measured gets those of the most similar one. */
int tc_links_read(struct tc_link *l, const char *path, struct tc_err *err);
/* Local. A collective of so many rounds, whose busiest member moves so many bytes in all. */
double tc_link_seconds(const struct tc_link *l, int coll, double rounds, double bytes);
void tc_cluster_done(struct tc_cluster *k);
/* Local. Whether the device is a CPU, whose memory is its host's: its name begins with "cpu". */
bool tc_plan_is_cpu(const struct tc_plan_device *d);
/* Local. The device of devices.def for the driver's name `gpu` ("NVIDIA A100-SXM4-80GB"); NULL: none.
 * PCI Express cards are slower than devices.def has them, so they do not match. */
const char *tc_plan_device_of(const char *gpu);
/* Local. Whether what is called `gpu` ("cpu": no GPU) may be the device of that name: any a cpu, an "a100" an a100-80, "" any GPU,
 * any GPU a device that devices.def does not have. */
bool tc_plan_may_be(const char *gpu, const char *device);
/* The name of device `i` of devices.def; NULL: there are fewer. */
const char *tc_plan_device_name(int i);
/* Local. Whether `gpu` is one of devices.def that Tercio does not support. */
bool tc_plan_too_old(const char *gpu);

/* ---- tables.c: what textbooks count ----------------------------------------- */

/* The public estimate of a training step's memory in fp32 with Adam: 20 bytes per parameter (weights
 * 4, gradients 4, optimizer 12) and six activations of [batch, context, hidden] per layer. Bytes. */
struct tc_textbook {
  double weights, gradients, optimizer, layers, tokens, positions;
  double activations, total;                     /* layers + tokens + positions; all */
};
void tc_textbook(struct tc_textbook *out, const struct tc_model *m, int64_t batch);
/* Weights, gradients and Adam's states: 16 bytes per parameter, 4 + 4 + 8, or 2 + 2 + 12 in mixed
 * precision. */
double tc_textbook_states(double parameters);
/* The same over n ranks by ZeRO's stage 0 .. 3 (Rajbhandari et al., 2020), in bytes per rank. */
double tc_textbook_zero(double parameters, int stage, double n);
/* Prints the tables of models, devices and ZeRO. */
void tc_plan_tables(FILE *f);

/* ---- memory.c --------------------------------------------------------------- */

struct tc_plan_memory {
  int64_t by_class[TC_SPACES][TC_CLASSES];       /* as run.json's predicted_bytes */
  int64_t bytes[TC_SPACES];                      /* the total, as allocated */
  int64_t state_bytes, scratch_bytes, staging_bytes;   /* on the device */
};
/* Local. The memory of a rank for programs that share their state, that of programs[0], such as those of all stages of a
 * run; of the others some may be NULL.
 * Scratch by class is that of programs[0] at its peak; what another one needs beyond that on the device counts as
 * activations. */
void tc_plan_memory(struct tc_plan_memory *out, struct tc_program *const *programs, int n, int rank);

/* ---- cost.c: what an op does, and how long it takes ------------------------- */

struct tc_op_cost {
  int32_t op, ranks;                             /* ranks on its node */
  int dtype;                                     /* of its first operand */
  double flops, bytes;                           /* of one execution on this rank */
  int64_t m, n, k;                               /* a product's sizes */
  bool ta, tb;
  int64_t head, sequence;                        /* attention: elements of a head, tokens of a sequence */
  double keys, rows;                             /* keys that a query reads on average; queries of all heads */
};
/* Local. *none: the node does nothing on `rank`. */
void tc_op_cost(struct tc_op_cost *out, const struct tc_graph *g, const struct tc_node *n,
                const struct tc_mesh *m, int rank, bool *none);
/* The key by which timings are looked up: a product's m, n, k, else bytes, flops and of attention the keys that a query reads on
 * average (0 in files of earlier releases: as the op that is looked up); then type and transposes. */
void tc_op_key(const struct tc_op_cost *c, double key[4]);
double tc_op_seconds(const struct tc_op_cost *c, const struct tc_plan_device *d);

/* Local. A transfer of the node at `rank`: the wires that its group uses, the most bytes that a member sends
 * on each, and its time. 0 for local reshards, with `coll` TC_COLLS. */
struct tc_reshard_cost { int coll; double seconds, bytes[TC_WIRES]; };
/* The larger of the bytes in and out of the busiest member, for an array of `bytes` among `size`, `each` on a node, by that
 * algorithm (flow.h) if it does the collective, else by the one that suits; on several nodes those to other nodes alone. */
double tc_coll_busiest(int algorithm, int coll, int size, int each, double bytes);
void tc_reshard_cost(struct tc_reshard_cost *out, const struct tc_program *p, const struct tc_node *n,
                  const struct tc_mesh *m, int rank, const struct tc_cluster *k);

/* ---- time.c ----------------------------------------------------------------- */

struct tc_plan_time {
  double term_s[TC_TERMS];                    /* their sum is step_s */
  enum tc_plan_source source[TC_TERMS];
  double step_s, tokens_per_s, mfu;
  double bubble;                              /* fraction of the step in which stages wait for each other, on average over stages */
  double compute_s;                              /* of the busiest rank */
  double wait_s[TC_SETS];                    /* exposed transfer time of the same rank, by the set of its group */
  double bytes[TC_SETS], wire_bytes[TC_WIRES];   /* the most that a rank sends per step */
  bool simulated;                                /* every action of every stage was simulated (time.c, not sums.c) */
};

/* ---- layout.c: one layout --------------------------------------------------- */

enum { TC_PLAN_CLASSES = 32 };
struct tc_plan_class {
  int32_t rank, pp, dp;
  int64_t parameters;                            /* that the rank computes with */
  struct tc_plan_memory memory;
};
struct tc_plan {
  int32_t world, n_mb, size[TC_AXES], micro, virtual_stages;     /* size[TC_MB] is not read: n_mb */
  struct tc_model model;
  int64_t parameters, batch, tokens;             /* tokens per step */
  double flops;                                  /* that training takes of a token */
  double saved_bytes;                            /* of a checkpoint's tensors */
  int64_t head_chunk;                            /* rows of a loss chunk, as given or as auto takes on GPUs; 0: as it takes elsewhere */
  struct tc_plan_class cls[TC_PLAN_CLASSES]; int n_cls;
  bool exact;
  int worst;                                     /* the class that needs most device memory */
  struct tc_plan_time time;
};
/* Local. exact: all programs of a run and all distinct ranks; else the training program of the
 * ranks at both ends, with enough micro-batches for their maximal memory. If k is NULL, times are 0, and ranks have no
 * GPUs; else parallel.head_chunk = auto is what a run takes on k's (chunk.c). */
int tc_plan_layout(struct tc_plan *out, const struct tc_config *c, int world,
                   const struct tc_cluster *k, bool exact, struct tc_err *err);
/* The same, not exact, in about half of the time if the guess is right: guess_bytes of a device are what the layout may take with
 * small loss chunks. */
int tc_plan_layout_guessed(struct tc_plan *out, const struct tc_config *c, int world, const struct tc_cluster *k,
                           double guess_bytes, struct tc_err *err);
/* The same for a given rank -> node map, node_of_rank[world], and with head_chunk = auto as it is without GPUs. */
int tc_plan_layout_on(struct tc_plan *out, const struct tc_config *c, int world,
                      const int32_t *node_of_rank, int devices_per_node,
                      const struct tc_cluster *k, bool exact, struct tc_err *err);
#define TC_PLAN_FULL 0.9      /* of a device's memory: the rest is for driver, libraries and kernels */
/* chunk.c. Local, pure. The rows of a loss chunk if parallel.head_chunk is auto and ranks compute in bf16 on GPUs of
 * memory_bytes: the largest power of two whose logits take at most 2 GiB, if the layout then takes at most
 * TC_PLAN_FULL of the memory. 0: as without GPUs, since one of this does not hold. train.precision is not auto. */
int64_t tc_plan_head_chunk(const struct tc_config *c, int world, const int32_t *node_of_rank, int devices_per_node,
                           double memory_bytes);
/* Host memory that a node needs for offloaded state, in bytes: that of the rank with most, times the devices of a
 * node; on CPUs with the memory of the ranks themselves. 0: nothing is offloaded. */
double tc_plan_host_bytes(const struct tc_plan *p, const struct tc_cluster *k);
/* Local. Time and bytes, and bytes of each class, as in `tercio plan --json` and run.json. Owned by the caller. */
struct json_t *tc_plan_time_json(const struct tc_plan *p);
struct json_t *tc_plan_classes_json(const int64_t by_class[TC_CLASSES]);

/* ---- inference.c: evaluation and sampling ------------------------------------- */

/* A rank of a pipeline stage; the others on its dp and tp are like it. */
struct tc_plan_stage {
  int32_t rank;
  int64_t parameters, cache_bytes;               /* of keys and values, which are among the activations */
  struct tc_plan_memory memory;
};
struct tc_plan_speed { double run_s, tokens_per_s; };          /* of a run of a program */
struct tc_plan_forward {
  enum tc_use use;                               /* TC_TO_EVALUATE or TC_TO_SAMPLE */
  int32_t world, size[TC_AXES];
  struct tc_model model;
  int64_t parameters, sequences, at_once;        /* sequences of a batch; of each, tokens of a run (of a prompt) */
  struct tc_plan_stage stage[TC_PLAN_CLASSES]; int n_stages;
  int worst;                                     /* the stage that needs most device memory */
  struct tc_plan_speed batch;                    /* TC_TO_EVALUATE */
  struct tc_plan_speed token, prompt;            /* TC_TO_SAMPLE: a new token of each sequence; at_once of a prompt's */
  double weights_s;                              /* reading the weights of all stages once */
};
/* Local. What `tercio eval` or `tercio sample` of c's model takes on so many ranks, in the layout that they choose
 * where c leaves it open: memory as the program allocates it, time as estimated. sequences: at once, of an evaluation
 * on each rank of dp; 0: its default, of sampling 1. In sampling half of the context is taken as read for a new token.
 * TC_EUSER, TC_ELAYOUT. */
int tc_plan_forward(struct tc_plan_forward *out, const struct tc_config *c, enum tc_use use, int64_t sequences,
                    int world, const struct tc_cluster *k, struct tc_err *err);

/* ---- search.c: layouts for a cluster ---------------------------------------- */

/* The options that a search tries, by what a value is: NUMBER, WORD or YESNO(ID, section, key, member of struct tc_cand, rare).
 * rare: tables name it only where the search has changed it. space.c has the values and the rules. */
#define TC_PLAN_KEYS(NUMBER, WORD, YESNO) \
  NUMBER(PP, mesh, pp, pp, false) \
  NUMBER(DP, mesh, dp, dp, false) \
  NUMBER(CP, mesh, cp, cp, true) \
  NUMBER(TP, mesh, tp, tp, false) \
  NUMBER(MICRO, train, micro_batch, micro, false) \
  WORD(DATA, parallel, data, data, false) \
  NUMBER(SHARD, mesh, shard, shard, true) \
  WORD(REDUCE, parallel, reduce, reduce, true) \
  WORD(SCHEDULE, parallel, schedule, schedule, false) \
  NUMBER(VIRTUAL_STAGES, parallel, virtual_stages, virtual_stages, false) \
  YESNO(SEQUENCE, parallel, sequence, sequence, false) \
  YESNO(REGATHER, parallel, regather, regather, true) \
  WORD(RECOMPUTE, train, recompute, recompute, false) \
  WORD(OFFLOAD, parallel, offload, offload, false)
/* Options that the search may have to leave as they are: the configuration's value is fixed. */
enum tc_plan_key {
#define KEY(id, section, key, member, rare) TC_KEY_##id,
  TC_PLAN_KEYS(KEY, KEY, KEY)
#undef KEY
  TC_KEYS
};
/* What a search leaves as the configuration has it, beside what does not change time or memory. */
#define TC_PLAN_NOT_SEARCHED "parallel.context, parallel.zigzag, parallel.keep, parallel.unit, parallel.prefetch, " \
  "parallel.annotations, mesh.stages (balanced by time, or by memory where a layout does not fit otherwise), and what changes results: train.grad_type, train.state_type"
extern const char *const tc_plan_key_name[TC_KEYS];        /* "mesh.pp", ... */
extern const bool tc_plan_key_rare[TC_KEYS];
/* Local. A value of a key as an option takes it. Returns text. */
const char *tc_plan_key_text(char *text, size_t size, int key, int64_t value);
/* Local. Appends the option as a flag, "--mesh.pp=2", after a blank where there is text already. */
void tc_plan_key_flag(char *text, size_t size, int key, int64_t value);
/* Local. The value that a configuration has of a key. */
int64_t tc_plan_key_value(const struct tc_config *c, int key);

struct tc_plan_row {
  struct tc_config cfg;                          /* the layout; strings are borrowed */
  struct tc_plan plan;
  double guess_s, guess_bytes;                   /* the estimates by which it was chosen */
  bool host_unchecked;                           /* needs host memory, of which a node's amount is not known */
};
/* All layouts with one value of one key: their number, and the number that fit. */
struct tc_plan_family {
  int key;
  char name[48], why[200];                       /* why: the reason, if one is impossible */
  int64_t n, fit;
  double least_bytes;                            /* of possible layouts that don't fit */
  double least_host_bytes;                       /* host memory, of those that exceed a node's */
};
struct tc_plan_found {
  struct tc_plan_row *row; int n_rows;           /* best first; owned */
  struct tc_plan_family *family; int n_families, cap_families;   /* owned */
  int64_t considered, possible, fitting;
  double least_bytes;                            /* of a device, over all layouts */
  char why[200];                                 /* the reason of the best one that proved impossible */
  int least_nodes;                               /* of tc_plan_nodes, where it was asked; else 0 */
};
enum { TC_PLAN_ROWS = 64 };                      /* layouts that a search compiles */
/* Local. The first `top` (1 .. TC_PLAN_ROWS) layouts of c's model and batch on the cluster, by time of a step; those
 * whose host memory cannot be checked come last.
 * fixed: one bit per fixed option. All layouts are estimated from the cost of one layer; the best TC_PLAN_ROWS
 * are compiled (the ranks at both ends of a pipeline), and those that don't fit are dropped. The rows for a
 * smaller top are the first of those for a larger one.
 * TC_EUSER, TC_ELAYOUT: fixed options contradict each other. Free it with tc_plan_found_done. */
int tc_plan_search(struct tc_plan_found *out, const struct tc_config *c, const struct tc_cluster *k,
                   unsigned fixed, int top, struct tc_err *err);
void tc_plan_found_done(struct tc_plan_found *f);
/* Local. Where nothing fits: a number of such nodes that would suffice, which takes searches of its own; 0: unknown. */
int tc_plan_nodes(const struct tc_config *c, const struct tc_cluster *k, unsigned fixed);

/* ---- failures.c: checkpoints and failures ----------------------------------- */

/* Local. Daly's optimal time from the end of one checkpoint to the start of the next, in
 * seconds: cost_s is the duration of a checkpoint, mtbf_s the mean time between failures of all nodes
 * together. A cost of 0 gives 0; a cost of twice the MTBF or more gives the MTBF. */
double tc_daly_s(double cost_s, double mtbf_s);

struct tc_plan_run {
  double ckpt_bytes, ckpt_s;                     /* fp32 weights, m and v; writing them */
  double mtbf_s;                                 /* of all nodes together, at most ckpt.mtbf_hours; 0: never */
  double interval_s;                             /* between checkpoints, after Young and Daly */
  double lost;                             /* fraction of the time lost to checkpoints and failures */
  double steps, hours, node_hours;               /* for the requested tokens, failures included */
  int requeues;                                  /* because of the time limit */
};
void tc_plan_run(struct tc_plan_run *out, const struct tc_plan *p, const struct tc_config *c,
                 const struct tc_cluster *k, double tokens, double walltime_s, double restart_s);

/* ---- tables.c: learning rates ------------------------------------------------ */

/* A published run: its size, its batch in tokens and its peak learning rate. */
struct tc_plan_rate { double parameters, tokens, lr; };
/* Local. The run that is nearest in size, by ratio. */
const struct tc_plan_rate *tc_plan_rate(double parameters);
/* Local. Steps of warm-up: 375 million tokens, at most a twentieth of the steps. */
int64_t tc_plan_warmup(double tokens_per_step, int64_t steps);

#endif
