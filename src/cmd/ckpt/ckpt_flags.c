/* ckpt_flags.c - the options of `tercio ckpt`: a table for all commands. */
#include "src/cmd/ckpt/ckpt.h"
#include "src/cmd/cmd.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "A:B", either may be omitted. */
static int set_rows(void *args, const struct tc_flag *f, const char *s, struct tc_err *err)
{
  struct ckpt_args *a = args;
  char *end;
  (void)f, (void)err;
  errno = 0;
  a->row0 = *s == ':' ? 0 : strtoll(s, &end, 10);
  if (*s == ':') end = (char *)(uintptr_t)s;
  if (*end != ':' || errno) return 1;
  s = end + 1;
  if (!*s) return a->row0 < 0;
  a->row1 = strtoll(s, &end, 10);
  return *end || errno || a->row0 < 0 || a->row1 <= a->row0;
}

/* An integer number of bytes, KB, MB or GB: powers of 1000, as in Hugging Face's library. */
static int set_bytes(void *args, const struct tc_flag *f, const char *s, struct tc_err *err)
{
  const char *end;
  const int64_t n = tc_parse_whole(s, 1000, "KMG", &end);
  (void)f, (void)err;
  if (n < 1 || n == INT64_MAX) return 1;
  if (*end ? strcmp(end, "B") != 0 || islower((unsigned char)end[-1]) : !isdigit((unsigned char)end[-1])) return 1;
  ((struct ckpt_args *)args)->shard_bytes = n;
  return 0;
}

/* Ranks on an axis: the configuration checks the value. */
static int set_mesh(void *args, const struct tc_flag *f, const char *s, struct tc_err *err)
{
  struct ckpt_args *a = args;
  (void)err;
  a->flag[a->n_flags++] = tc_sprintf("--mesh.%.2s=%s", f->form + 2, s);
  return !*s;
}

static const struct option {
  struct tc_flag flag;            /* of struct ckpt_args */
  unsigned bit;                   /* of the commands that accept it */
} options[] = {
#define FIELD(f) .field = offsetof(struct ckpt_args, f)
  { { "--owners", "print which rank on which node has which slice of each tensor, and the bytes of each rank",
      NULL, TC_FLAG_YES, FIELD(owners) }, CKPT_OWNERS },
  { { "--tensor PATTERN", "with --owners, only tensors whose names match; e.g. --tensor 'h.0.*'",
      "a pattern", TC_FLAG_TEXT, FIELD(only) }, CKPT_OWNERS },
  { { "--rows A:B", "only indices A to B - 1 of the first dimension; either may be omitted; e.g. --rows 0:4",
      "FIRST:END, such as 0:4", TC_FLAG_CALL, .set = set_rows }, CKPT_ROWS },
  { { "--quick", "check only sizes and metadata, without reading the data",
      NULL, TC_FLAG_YES, FIELD(quick) }, CKPT_DEPTH },
  { { "--deep", "read all data and check all checksums (the default)",
      NULL, TC_FLAG_NO, FIELD(quick) }, CKPT_DEPTH },
  { { "-j N", "threads that read and check (default: one per CPU); e.g. -j 8",
      "a number of threads", TC_FLAG_WHOLE, FIELD(jobs), 1, 1 << 24 }, CKPT_JOBS },
  { { "--rtol X", "relative tolerance: the largest ||A-B|| / ||B|| per tensor (default 0: equal bit for bit); e.g. "
      "--rtol 1e-5",
      "a number >= 0", TC_FLAG_REAL, FIELD(rtol), 0, INFINITY }, CKPT_TOL },
  { { "--atol Y", "absolute tolerance: a tensor also passes if no element differs by more than Y; e.g. --atol 1e-6",
      "a number >= 0", TC_FLAG_REAL, FIELD(atol), 0, INFINITY }, CKPT_TOL },
  { { "--only PATTERN", "compare only tensors whose names match; e.g. --only 'optim.m.*'",
      "a pattern", TC_FLAG_TEXT, FIELD(only) }, CKPT_TOL },
  { { "--pp N", "ranks on axis pp, as --mesh.pp; e.g. --pp 2",
      "a number of ranks", TC_FLAG_CALL, .set = set_mesh }, CKPT_MESH },
  { { "--dp N", "ranks on axis dp, as --mesh.dp; e.g. --dp 4",
      "a number of ranks", TC_FLAG_CALL, .set = set_mesh }, CKPT_MESH },
  { { "--tp N", "ranks on axis tp, as --mesh.tp; e.g. --tp 8",
      "a number of ranks", TC_FLAG_CALL, .set = set_mesh }, CKPT_MESH },
  { { "--world N", "total number of ranks, for mesh sizes of auto; e.g. --world 64",
      "a number of ranks", TC_FLAG_WHOLE, FIELD(world), 1, 1 << 24 }, CKPT_MESH },
  { { "--simulate CLUSTER", "nodes and ranks per node instead of --world; e.g. --simulate \"4 nodes x 8\"",
      "a cluster, such as \"4 nodes x 8\"", TC_FLAG_TEXT, FIELD(cluster) }, CKPT_MESH },
  { { "-o OUT", "the file or folder to write; for import, the folder of checkpoints; e.g. -o gpt2",
      "the file or folder to write", TC_FLAG_TEXT, FIELD(out) }, CKPT_OUT },
  { { "--format FORMAT", "hf (default), safetensors or llmc, see above; e.g. --format llmc",
      "hf, safetensors or llmc", TC_FLAG_TEXT, FIELD(format) }, CKPT_FORMAT },
  { { "--dtype TYPE", "element type of the weights: f32 (default) or bf16; e.g. --dtype bf16",
      "f32 or bf16", TC_FLAG_TEXT, FIELD(dtype) }, CKPT_FORMAT },
  { { "--shard-size SIZE", "with --format hf, several files of at most SIZE (B, KB, MB or GB) and their index; e.g. "
      "--shard-size 5GB",
      "the most bytes of a file, such as 5GB", TC_FLAG_CALL, .set = set_bytes }, CKPT_FORMAT },
  { { "--rope ORDER", "order of rotary pairs in the file: half (default, Hugging Face's) or interleaved (Meta's); e.g. "
      "--rope interleaved",
      "half or interleaved", TC_FLAG_TEXT, FIELD(rope) }, CKPT_ROPE },
  { { "--optimizer", "with --format safetensors, also write the optimizer's state",
      NULL, TC_FLAG_YES, FIELD(optimizer) }, CKPT_FORMAT },
  { { "--keep N", "number of good checkpoints to keep, at least 1; e.g. --keep 2",
      "how many good checkpoints stay, at least 1", TC_FLAG_WHOLE, FIELD(keep), 1, 1 << 24 }, CKPT_KEEP },
  { { "--dry-run", "print what would be removed, and remove nothing",
      NULL, TC_FLAG_YES, FIELD(dry_run) }, CKPT_KEEP },
  { { "--release", "undo the quarantine of STEP; if a step was quarantined twice, STEP.2 is the second; e.g. 300.2 --release",
      NULL, TC_FLAG_YES, FIELD(release) }, CKPT_RELEASE },
  { { "--json", "print JSON instead of text",
      NULL, TC_FLAG_YES, FIELD(json) }, CKPT_JSON },
#undef FIELD
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static int parse_one(struct ckpt_args *a, const struct ckpt_sub *s, int argc, char **argv, int *i,
                     struct tc_err *err)
{
  const char *arg = argv[*i];
  char command[40];
  snprintf(command, sizeof command, "ckpt %s", s->name);
  for (int k = 0; k < N_OPTIONS; k++) {
    if (!(options[k].bit & s->options)) continue;
    const int known = tc_flag_read(&options[k].flag, a, argc, argv, i, command, err);
    if (known) return TC_MIN(known, 0);
  }
  const char *dot = strchr(arg, '.'), *eq = strchr(arg, '=');
  if (s->options & CKPT_CONFIG && strncmp(arg, "--", 2) == 0 && dot && (!eq || dot < eq)) {
    bool two = !eq && *i + 1 < argc;
    a->flag[a->n_flags++] = two ? tc_sprintf("%s=%s", arg, argv[++*i]) : tc_strdup(arg);
    return 0;
  }
  return tc_fail(err, TC_EUSER, "ckpt %s: there is no option '%s'; use: ckpt %s %s", s->name, arg,
                 s->name, s->args);
}

int ckpt_args_parse(struct ckpt_args *a, const struct ckpt_sub *s, int argc, char **argv,
                    struct tc_err *err)
{
  int n = 0;
  *a = (struct ckpt_args){ .row1 = -1, .atol = -1 };
  a->flag = tc_calloc((size_t)argc + 1, sizeof *a->flag);
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-' && argv[i][1]) {
      TC_TRY(parse_one(a, s, argc, argv, &i, err));
    } else {
      if (n == s->max_paths)
        return tc_fail(err, TC_EUSER, "ckpt %s: too many arguments at '%s'; use: ckpt %s %s",
                       s->name, argv[i], s->name, s->args);
      a->path[n++] = argv[i];
    }
  }
  if (n < s->min_paths)
    return tc_fail(err, TC_EUSER, "ckpt %s: an argument is missing; use: ckpt %s %s", s->name,
                   s->name, s->args);
  if (n == 0) a->path[0] = "run/ckpt";
  for (int i = 0; i < n; i++) TC_TRY(tc_ckpt_check_folder(a->path[i], err));
  return 0;
}

void ckpt_args_free(struct ckpt_args *a)
{
  for (int i = 0; i < a->n_flags; i++) free(a->flag[i]);
  free(a->flag);
}

void ckpt_args_help(const struct ckpt_sub *s, void (*print)(void *ctx, const char *form, const char *help), void *ctx)
{
  for (int i = 0; i < N_OPTIONS; i++) {
    if (options[i].bit & s->options) print(ctx, options[i].flag.form, options[i].flag.help);
  }
  if (s->options & CKPT_CONFIG)
    print(ctx, "--section.key=value", "an option of the run file, as for tercio train; e.g. --parallel.data=zero3");
}
