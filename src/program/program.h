/* program.h - all passes in their order. Pure.
 *
 * In: a model, a system and a mesh; or a configuration (setup.h). Out: a program that can run: graph, list of actions,
 * groups that may be fused, and memory plan. Files in reading order: program.[ch], setup.[ch], collective.[ch] (a
 * RESHARD as a collective call), predict.[ch] (bytes and staging of a program). */
#ifndef TC_PROGRAM_H
#define TC_PROGRAM_H

#include "src/schedule/arena.h"
#include "src/model/optim.h"
#include "src/model/transformer.h"
#include "src/graph/graph.h"
#include "src/schedule/actions.h"
#include "src/passes/systems.h"

/* The programs of a run, which share one state: a training has those before TC_OF_TRAINING (TC_TASKS if
 * train.eval_tasks asks for it), an evaluation TC_EVAL alone, sampling the last two: decode takes one token of each
 * sequence and gives its logits, prefill several tokens of each prompt and gives nothing but their keys and values.
 * TC_TASKS gives the losses of single tokens; its sequences may have several texts. */
enum tc_program_kind { TC_TRAIN, TC_EVAL, TC_INIT, TC_REFRESH, TC_TASKS, TC_OF_TRAINING, TC_DECODE = TC_OF_TRAINING,
                       TC_PREFILL, TC_PROGRAMS };
/* What a run is for. The last two have the weights alone, without an optimizer. */
enum tc_use { TC_TO_TRAIN, TC_TO_EVALUATE, TC_TO_SAMPLE };
/* The kinds of programs of a use: n from `first` on, whose state the others share. */
struct tc_kinds { int first, n; };
struct tc_kinds tc_kinds_of(enum tc_use use);
enum { TC_ROW_LISTS = 8 };

struct tc_program_opts {
  int kind;
  struct tc_model model;
  struct tc_build_opts gpt;
  const struct tc_system *system;
  const struct tc_annotation *annotation[TC_ROW_LISTS];   /* lists of rows; the first NULL ends */
  enum tc_schedule schedule;     /* of the pipeline (schedule/pipeline.h) */
  int virtual_stages;                    /* virtual stages a rank; 0: 1 */
  const char *stages;            /* layers of each stage by hand; NULL: balanced */
  enum tc_reshard_after reshard_after;   /* TC_AFTER_AUTO: as the system says */
  bool reduce_once;              /* split accumulators become full ones, reduced once a step */
  enum tc_recompute recompute;
  enum tc_offload offload;
  int prefetch;                  /* units whose weights are gathered ahead of their use */
  bool regather;                 /* activations gathered in forward are gathered again in backward */
  enum tc_update update;
  int update_type;               /* in which an update of whole matrices multiplies */
  const char *param_rows;        /* train.rows; NULL: none; borrowed */
  double momentum;               /* train.momentum: of rows for parameters with SGD */
  bool overlap;
  bool zigzag;                   /* of the parts of a sequence (graph/row_order.h) */
  bool tasks;                    /* a training has TC_TASKS */
  bool share_init;               /* TC_INIT: one rank computes what several would, and broadcasts it (passes/share_init.c) */
  bool unchecked;                /* without the checks after the passes: a planner's candidates, never
                                  * what is run */
  /* A test hook (src/prove/breaks.c): changes the graph of a kind of program, after the passes and their checks. */
  void (*tamper)(void *ctx, struct tc_graph *g, int kind);
  void *tamper_ctx;
  int64_t prefill;               /* tokens of a sequence in a run of TC_PREFILL */
  int64_t head_chunk;             /* most rows of the logits at once; 0: about 64 MB of them, 512 in bf16. A training on
                                  * GPUs has set it where there is memory for more (tc_run_head_chunk) */
};

struct tc_program {
  const struct tc_mesh *mesh;    /* that it was made for, with its micro-batches; borrowed */
  struct tc_graph *graph;
  bool shares_graph;             /* with a program that owns it */
  struct tc_actions *actions;    /* NULL if stopped before */
  struct tc_fusions *fusions;    /* groups of actions that a device may fuse; NULL if stopped before */
  struct tc_arena *arena;        /* NULL if stopped before */
};

/* The names of the passes, in order; ends with NULL. */
extern const char *const tc_pass_names[];

/* Local. Every pass is followed by tc_graph_check. `after`: stop after this pass (NULL: all).
 * `with`: the run's main program, whose state this one shares (NULL: none). *out is owned by
 * the caller. */
int tc_program_new(struct tc_program **out, const struct tc_program_opts *o,
                   const struct tc_mesh *m, int rank, const struct tc_program *with,
                   const char *after, struct tc_err *err);
void tc_program_free(struct tc_program *p);
/* Local. The same program on another rank: the passes before "schedule" make the same graph of all ranks, which is taken from
 * `like`, made with the same options and mesh; it must outlive *out. */
int tc_program_beside(struct tc_program **out, const struct tc_program *like, const struct tc_program_opts *o, int rank,
                      struct tc_err *err);
/* The options of the program of this kind in a run with options o: only training has dropout. */
struct tc_program_opts tc_program_opts_of(const struct tc_program_opts *o, int kind);
/* Local. programs[kind] of a run with options o. All share the state of the first one that
 * is there, which is to be made first. Owned by the caller; NULL: TC_TASKS of a run without tasks. */
int tc_program_of_run(struct tc_program *programs[TC_PROGRAMS], int kind,
                      const struct tc_program_opts *o, const struct tc_mesh *m, int rank,
                      struct tc_err *err);

/* Local. The same of a later stage of a run, whose first stage's programs begin with `main` (borrowed): all share its state. */
int tc_program_of_stage(struct tc_program *programs[TC_PROGRAMS], int kind, const struct tc_program *main,
                        const struct tc_program_opts *o, const struct tc_mesh *m, int rank, struct tc_err *err);

/* Bytes of the logits of a loss chunk, at most, if head_chunk is 0 and they are of this type. */
int64_t tc_head_bytes(int dtype);

/* Every operation of every micro-batch has a place in a step's list of actions, some 40 bytes. */
enum { TC_ACTIONS = 1 << 25 };
/* Local. TC_ELAYOUT: the list for so many micro-batches would be longer. */
int tc_program_listable(const struct tc_graph *g, int64_t n_mb, struct tc_err *err);

#endif
