/* run.h - what programs run on: what training, evaluation and sampling share.
 *
 * In go the configuration and what the launcher found, the first part of struct tc_run; out comes
 * the rest of it: mesh and program options, communicators, device, programs and their executor,
 * and weights from a checkpoint. A command makes these in the order below and frees them in the
 * reverse order. In between it reads the fields and calls what they point to; only src/run changes
 * them.
 *
 * Files: run.c (mesh, options, programs), comms.c, open_device.c, open_data.c (token files), head.c (the rows of loss
 * chunks), fits.c (whether the programs fit), tune.c (what devices choose by time), attention.c (whether a library computes
 * it), weights.c (checkpoints), trained.c (a trained model and its tokenizer), reads.[ch] (what a layout would read of one),
 * writer.c (writes checkpoints asynchronously), place.c (where ranks are, before a run), rss.c, versions.c. */
#ifndef TC_RUN_H
#define TC_RUN_H

#include "io/ckpt/ckpt.h"
#include "src/comm/comm.h"
#include "src/config/config.h"
#include "src/data/data.h"
#include "src/exec/exec.h"
#include "src/foreign/foreign.h"
#include "src/launch/ranks.h"
#include "src/program/setup.h"

/* A stage of a training, and what its steps run on; mesh, opts and rows of the first are those of struct tc_run at first. */
struct tc_run_stage {
  const struct tc_stage *of;     /* which steps, and what they train on */
  struct tc_mesh *mesh;          /* owned, as the next two: other micro-batches, otherwise the same in all stages */
  struct tc_program_opts opts;
  struct tc_annotation *rows;
  struct tc_program *prog[TC_PROGRAMS];
};

enum { TC_COMMS = TC_SETS + 2 };   /* by set; the world's; the checkpoint writer's of the world */

struct tc_run {
  /* One rank of a command: filled in by it, all borrowed. */
  const struct tc_config *cfg;
  const struct tc_ranks *ranks;
  char *const *rank_names;           /* [world] "rank 3 on node2" */
  int rank, threads;
  struct tc_hub *hub;                /* ranks are threads of this process; else NULL */
  bool mpi;                          /* ranks are several processes */
  enum tc_use use;

  /* Made by the functions below, and owned, but for `trace`, which is borrowed. */
  char *stack;                       /* tc_versions_text, and the device's once the programs are made */
  char *tuned;                       /* what devices chose by time, a line each; NULL: nothing yet */
  char *attention;                   /* what computes it, or "own kernels: " and why; NULL: own, not asked for others */
  struct tc_trace *trace;            /* NULL: none */
  struct tc_stage *stages;           /* [n_stages]: of a training; else none */
  struct tc_run_stage *stage;        /* [n_stages] */
  int n_stages, at;                  /* at: the present stage, of which are the next three, and the programs */
  struct tc_mesh *mesh;
  struct tc_program_opts opts;
  struct tc_annotation *rows;        /* that opts borrows */
  struct tc_comm *world, *comm[TC_SETS], *ckpt_comm;
  struct tc_comm *native[TC_SETS];   /* of the device's memory; NULL: through the host's */
  const char **names[TC_COMMS];      /* the ranks in each communicator, as in rank_names */
  struct tc_device *device, *host;   /* host: runs what is in host space; NULL: device does */
  struct tc_program *prog[TC_PROGRAMS];   /* NULL: not needed */
  struct tc_exec *exec;
  int64_t base_rss_bytes;            /* resident before the executor took memory */
};

/* Local, pure: the same answer on every rank. Sets stack, mesh and opts, with the precision that fits the ranks' devices
 * if train.precision is auto. TC_EUSER, TC_ELAYOUT. */
int tc_run_layout(struct tc_run *r, struct tc_err *err);
/* Collective. Communicators of host memory; their transfers are recorded in `trace` (borrowed;
 * NULL: none). Where the world's cannot be made, and ranks are processes, the other ranks are
 * aborted. */
int tc_run_comms(struct tc_run *r, struct tc_trace *trace, struct tc_err *err);
/* Collective, within tc_run_comms. TC_EUSER on all: a rank has other options than the first, files' names apart. */
int tc_run_same_options(const struct tc_run *r, struct tc_err *err);
/* Collective, after tc_run_comms. Calls `work` on the ranks where `works`, while the others wait, for as long as it takes: it
 * has to call `between` now and then, whose failure ends it. Returns what it returned on this rank (0 on others), to be agreed
 * on; TC_EPEER: a rank is lost. */
typedef int tc_work_fn(void *ctx, const struct tc_between *between, struct tc_err *err);
int tc_run_work(const struct tc_run *r, bool works, tc_work_fn *work, void *ctx, struct tc_err *err);
/* Collective, after tc_run_comms. Opens a data set (data/data.h), owned by the caller: rank 0 opens the files and tells the
 * others what they are, which open them when they read them first. The same error on all ranks. */
int tc_run_data(const struct tc_run *r, struct tc_data **out, const struct tc_data_opts *o, struct tc_err *err);
/* Local. *steps <- those of a run on the data set: as many as data.epochs says, if it does, else train.steps. TC_EUSER: none,
 * or too many. */
int tc_run_steps(int64_t *steps, const struct tc_config *c, const struct tc_data *d, struct tc_err *err);
/* Collective. TC_EUSER unless it has the same tokens on all nodes, which may have copies of their own: the first rank of each
 * looks, and others that do not see the same files. which: "training", for the sentence. *id <- what identifies it. */
int tc_run_data_same(const struct tc_run *r, struct tc_data *d, const char *which, struct tc_data_identity *id,
                     struct tc_err *err);
/* Collective, after tc_run_comms. Makes one status of the ranks': that of the lowest rank that
 * failed, with its sentence. */
int tc_run_agree(const struct tc_run *r, int rc, struct tc_err *err);
/* Local. Opens the device that run.device names. TC_EUSER. */
int tc_run_device(struct tc_run *r, struct tc_err *err);
/* Collective, after tc_run_device. With train.precision = auto all ranks compute in fp32 if one of them, where a GPU was
 * expected, has taken the CPU. opts has the precision from here on. */
int tc_run_precision(struct tc_run *r, struct tc_err *err);
/* Collective, after tc_run_device. Communicators of the GPUs' memory (NCCL) as run.comm says,
 * beside those of the sets, which remain for what is in host memory. Agreed on, unless it returns
 * TC_EPEER. */
int tc_run_native(struct tc_run *r, struct tc_err *err);
/* Collective, after tc_run_native of a training. parallel.head_chunk = auto becomes a number of rows in opts if all ranks
 * compute in bf16 on GPUs whose memory leaves room for more than elsewhere (plan.h). planned_bytes: the memory of a GPU for
 * which the run is planned, if this rank knows it, else 0: the run takes no more than its plan. */
int tc_run_head_chunk(struct tc_run *r, double planned_bytes, struct tc_err *err);
/* Local. Makes the programs and takes their memory; `fill` is called with fill_ctx for each batch.
 * TC_EUSER if the device has less memory than they need: what takes it, and other settings that
 * would fit. */
int tc_run_programs(struct tc_run *r, tc_fill_fn *fill, void *fill_ctx, struct tc_err *err);

/* Local, after tc_run_programs. Mesh, options and programs become those of stage k, whose state is that of all. */
void tc_run_stage(struct tc_run *r, int k);
/* Local. The number by which the executor knows the present stage's program of a kind. */
static inline int tc_run_index(const struct tc_run *r, int kind) { return r->at * TC_PROGRAMS + kind; }
/* Local. The programs of all stages, as the executor has them: TC_PROGRAMS of each. *list is owned by the caller; returns
 * their number. */
int tc_run_all_programs(const struct tc_run *r, struct tc_program ***list);

/* Collective, after tc_run_programs and before the first run of a program with products. Has devices choose by time
 * how they compute the programs' calls (kernel.h), all ranks alike, and load it; known: lines of an earlier run that
 * hold (may be NULL). Without `time` these alone are taken. */
int tc_run_tune(struct tc_run *r, const char *known, bool time, struct tc_err *err);
/* Local. Of lines with one key, which ends at a colon, the first; owned by the caller. */
char *tc_run_tune_merge(const char *lines);

/* Collective, after tc_run_programs of a training. With run.attention = auto the devices' library computes attention
 * if all ranks' can; sets `attention`, and the library's version in `stack`. */
int tc_run_attention(struct tc_run *r, struct tc_err *err);

/* ---- weights.c ---- */

/* The tensors of a checkpoint of this run, in its order, and their ids in its first program. */
struct tc_run_state {
  struct tc_ckpt_tensor *tensor;     /* names are the graph's */
  int32_t *id;
  int n;
};
/* Local, after tc_run_programs. To be freed with _free. */
void tc_run_state(const struct tc_run *r, struct tc_run_state *out);
void tc_run_state_free(struct tc_run_state *s);
/* Local. Reads the state that this rank stores from an open checkpoint. TC_EUSER: it is of another model,
 * or a tensor is missing or has another shape. The working precision's weights are made from it by the TC_REFRESH program,
 * which the caller runs; those of an inference are rounded here. */
enum { TC_LOAD_OTHER_CONTEXT = 1,      /* the context may differ, if positions are rotary */
       TC_LOAD_WEIGHTS = 2,            /* the optimizer's state stays as it is */
       TC_LOAD_BASE = 4,               /* the weights beside adapters alone */
       TC_LOAD_ADAPTERS = 8 };         /* all but those */
int tc_run_load(const struct tc_run *r, struct tc_ckpt *c, unsigned how, struct tc_err *err);
/* Local. Its first check, which reads nothing. TC_EUSER: the checkpoint is of another model. */
int tc_run_check_model(const struct tc_run *r, const struct tc_ckpt *c, unsigned how, struct tc_err *err);
/* Local. The same from an open model or adapter of another program, of which r->cfg has the sizes: weights alone. */
int tc_run_load_foreign(const struct tc_run *r, const struct tc_foreign *f, unsigned how, struct tc_err *err);
/* Collective, after loads with TC_LOAD_BASE. *digest <- that of the base (foreign/digest.h), of which each rank reads a share once
 * more, from c or, if that is NULL, f. */
int tc_run_base_digest(const struct tc_run *r, struct tc_ckpt *c, const struct tc_foreign *f, uint64_t *digest, struct tc_err *err);
/* Collective. known[TC_DIGEST + 1] <- the digest of what c's adapters belong to: the one that it notes or, where its weights began
 * at random, that of its own copy. */
int tc_run_known_base(const struct tc_run *r, struct tc_ckpt *c, char *known, struct tc_err *err);

/* ---- the end ---- */

/* Local, first: frees the communicators, so that nothing sends from or receives into memory that
 * is freed next. With keep_ckpt that of the checkpoint writer remains, which still uses it. False:
 * a peer is missing and one of them is still in use; then the rest must be left as it is, and the
 * process is about to end. */
bool tc_run_comms_free(struct tc_run *r, bool keep_ckpt);
/* Local. Executor, programs and devices. */
void tc_run_programs_free(struct tc_run *r);
/* Local, last. */
void tc_run_free(struct tc_run *r);

/* ---- rss.c ---- */
/* Local. Resident bytes of this process now, or their peak. */
int64_t tc_rss_bytes(bool peak);

/* ---- versions.c ---- */
/* Local. "gcc 12.2.0, Open MPI v4.1.4, OpenPMIx 4.2.2, HDF5 1.10.8, oneDNN 2.6.3": the compiler
 * that built it, the libraries that are loaded. Owned by the caller. */
char *tc_versions_text(void);

#endif
