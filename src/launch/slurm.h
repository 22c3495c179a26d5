/* slurm.h - a cluster as Slurm describes it: a partition and its nodes, and what the words about a node mean. */
#ifndef TC_LAUNCH_SLURM_H
#define TC_LAUNCH_SLURM_H

#include "src/base/base.h"

/* Nodes of a partition that are left out: down or drained, of another kind, with GPUs that are too old, with slices of GPUs
 * (MIG), between which NCCL cannot send, in a state that is not known. */
enum tc_slurm_why { TC_SLURM_DOWN, TC_SLURM_OTHER, TC_SLURM_OLD, TC_SLURM_SLICE, TC_SLURM_UNKNOWN };
/* A kind is one type of GPU: a node with several types is of several kinds. */
struct tc_slurm_kind {
  enum tc_slurm_why why;
  int nodes, gpus, cpus;                         /* gpus, cpus: of a node; 0 if down or not known */
  char gpu[64], state[64];                       /* state: the word that is not known */
};
enum { TC_SLURM_KINDS = 16 };

/* Slurm's data of a partition: the usable nodes of one kind. */
struct tc_slurm_part {
  char name[64];
  int nodes, gpus, sockets, cpus;                /* gpus .. cpus: of a node */
  struct tc_slurm_kind left_out[TC_SLURM_KINDS]; int n_left_out;   /* the last one counts all further kinds */
  int most_nodes;                                /* of a job; 0: no limit */
  bool mixed;                                    /* the partition has other GPUs, too, which must not be allocated */
  char gpu[64];                                  /* their type in Gres; "" if it has none */
  double memory_bytes, walltime_s;               /* of a node; 0: no time limit */
  int switches, switch_nodes;                    /* their leaf switches; nodes of the median switch */
};

/* Local; runs scontrol. partition NULL: the default one. kind: of which nodes, by tc_slurm_kind_name, "a100:8/64", or a part of it
 * up to a mark, "a100:8" or "a100"; NULL: those of the kind with most devices. TC_EUSER: no Slurm, no such partition (the nearest
 * is named) or kind, no node in it that can be used, numbers that no node has. */
int tc_slurm_read(struct tc_slurm_part *out, const char *partition, const char *kind, struct tc_err *err);
/* "a100:8/64": so many GPUs and CPUs of a node; "gpu:8/64" if Slurm names no type, "cpu/64" without GPUs. Returns buf. */
const char *tc_slurm_kind_name(char *buf, size_t size, int gpus, const char *gpu, int cpus);

/* Local. Whether jobs can start on a node, now or after others, by its state as Slurm prints it
 * ("IDLE+CLOUD", "DOWN*"). UNKNOWN: a word of it, which is copied to word[size], is not known. */
enum tc_slurm_state { TC_SLURM_STATE_GOOD, TC_SLURM_STATE_BAD, TC_SLURM_STATE_UNKNOWN };
enum tc_slurm_state tc_slurm_state_of(const char *state, char *word, size_t size);
/* Local. The first entry of a list of generic resources such as "gpu:a100:8(S:0-1),shard:32"; type is "" if it has
 * none, and count 1. Returns the rest of the list, or NULL. */
struct tc_slurm_gres { char name[64], type[64]; double count; };
const char *tc_slurm_gres_next(const char *list, struct tc_slurm_gres *out);
/* Local. Whether a type of GPU is a slice of one (MIG), by its size: "1g.10gb", "a100_3g.40gb+me". */
bool tc_slurm_is_slice(const char *type);

#endif
