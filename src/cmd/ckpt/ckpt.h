/* ckpt.h - shared by the files of `tercio ckpt`. */
#ifndef TC_CMD_CKPT_H
#define TC_CMD_CKPT_H

#include "io/ckpt/inspect.h"
#include "src/cmd/out.h"

struct ckpt_args {
  const char *path[2];            /* DIR, or A and B, or DIR and NAME */
  bool json, quick;
  double rtol, atol;              /* diff; atol < 0: none */
  const char *only;               /* diff --only, show --tensor: tensors whose names match
                                   * (fnmatch); NULL: all */
  bool owners;                    /* show: which rank holds what */
  int64_t row0, row1;             /* dump: [row0, row1); row1 = -1: to the end */
  int64_t jobs;                   /* verify, prune: threads; 0: as many as CPUs */
  int64_t keep;                   /* prune; 0: not given */
  bool dry_run, release;          /* prune; quarantine */
  const char *out, *format, *dtype;   /* export, import; NULL: not given */
  bool optimizer;                 /* export */
  int64_t shard_bytes;            /* export; 0: one file */
  bool merge; const char *base;   /* export */
  const char *rope;               /* import; NULL: not given */
  int64_t world;                  /* plan; 0: not given */
  const char *cluster;            /* plan --simulate; NULL */
  char **flag; int n_flags;       /* plan, import: the command, then --section.key=value; owned */
};

/* One command of `tercio ckpt`; ckpt.c has the table. */
struct ckpt_sub {
  const char *name, *args;        /* args: the usage, which says what flags it takes */
  int min_paths, max_paths;       /* min 0: DIR is run/ckpt if omitted */
  int (*run)(const struct ckpt_args *a, struct tc_err *err);
  const char *help, *example;
};

/* Local. Parses the words after the command's name into *a, which ckpt_args_free frees. TC_EUSER: the error
 * has the word and what would be valid. */
int ckpt_args_parse(struct ckpt_args *a, const struct ckpt_sub *s, int argc, char **argv,
                    struct tc_err *err);
void ckpt_args_free(struct ckpt_args *a);
/* Local. Prints the options of the command as tc_flags_print does. */
void ckpt_args_help(FILE *f, const struct ckpt_sub *s, const char *margin, int width);

/* Subcommands: Local. They print to stdout and return a status with its sentence in *err.
 * TC_DIFFERS has none: the differences are on stdout. */
int ckpt_cmd_tensors(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_dump(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_diff(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_verify(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_prune(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_quarantine(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_plan(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_export(const struct ckpt_args *a, struct tc_err *err);
int ckpt_cmd_import(const struct ckpt_args *a, struct tc_err *err);
/* Reads only the manifest: the data may be missing. */
int ckpt_cmd_owners(const struct ckpt_args *a, struct tc_err *err);

/* Prints the value as one JSON text and frees it. */
static inline void ckpt_print_json(json_t *j) { tc_out_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(9)); }

#endif
