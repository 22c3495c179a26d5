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
  a->flag[a->n_flags++] = tc_sprintf("--mesh.%.*s=%s", (int)strcspn(f->form + 2, " "), f->form + 2, s);
  return !*s;
}

#define FIELD(f) .field = offsetof(struct ckpt_args, f)
#define MESH(name) { "--" name " N", "ranks on axis " name ", as --mesh." name "; e.g. --" name " 2", "a number of ranks", \
                     TC_FLAG_CALL, .set = set_mesh }
static const struct tc_flag list[] = {
  { "--owners", "print which rank on which node has which slice of each tensor, and the bytes of each rank",
    .kind = TC_FLAG_YES, FIELD(owners) },
  { "--tensor PATTERN", "with --owners, only tensors whose names match; e.g. --tensor 'h.0.*'",
    "a pattern", TC_FLAG_TEXT, FIELD(only),
    .needs = "--owners", .says = "ckpt show: --tensor chooses among --owners, which is missing" },
  { "--rows A:B", "only indices A to B - 1 of the first dimension; either may be omitted; e.g. --rows 0:4",
    "FIRST:END, such as 0:4", TC_FLAG_CALL, .set = set_rows },
  { "--quick", "check only sizes and metadata, without reading the data",
    .kind = TC_FLAG_YES, FIELD(quick) },
  { "--deep", "read all data and check all checksums (the default)",
    .kind = TC_FLAG_NO, FIELD(quick) },
  { "-j N", "threads that read and check (default: one per CPU); e.g. -j 8",
    "a number of threads", TC_FLAG_WHOLE, FIELD(jobs), 1, 1 << 24 },
  { "--rtol X", "relative tolerance: the largest ||A-B|| / ||B|| per tensor (default 0: equal bit for bit); e.g. "
    "--rtol 1e-5",
    "a number >= 0", TC_FLAG_REAL, FIELD(rtol), 0, INFINITY },
  { "--atol Y", "absolute tolerance: a tensor also passes if no element differs by more than Y; e.g. --atol 1e-6",
    "a number >= 0", TC_FLAG_REAL, FIELD(atol), 0, INFINITY },
  { "--only PATTERN", "compare only tensors whose names match; e.g. --only 'optim.m.*'",
    "a pattern", TC_FLAG_TEXT, FIELD(only) },
  MESH("pp"), MESH("dp"), MESH("shard"), MESH("cp"), MESH("tp"),
  { "--world N", "total number of ranks, for mesh sizes of auto; e.g. --world 64",
    "a number of ranks", TC_FLAG_WHOLE, FIELD(world), 1, 1 << 24 },
  { "--simulate CLUSTER", "nodes and ranks per node instead of --world; e.g. --simulate \"4 nodes x 8\"",
    "a cluster, such as \"4 nodes x 8\"", TC_FLAG_TEXT, FIELD(cluster) },
  { "-o OUT", "the file or folder to write; for import, the folder of checkpoints; e.g. -o gpt2",
    "the file or folder to write", TC_FLAG_TEXT, FIELD(out) },
  { "--format FORMAT", "hf (default), safetensors, llmc or peft, see above; e.g. --format llmc",
    "hf, safetensors, llmc or peft", TC_FLAG_TEXT, FIELD(format) },
  { "--dtype TYPE", "element type of the weights: f32 (default) or bf16; e.g. --dtype bf16",
    "f32 or bf16", TC_FLAG_TEXT, FIELD(dtype) },
  { "--shard-size SIZE", "with --format hf, several files of at most SIZE (B, KB, MB or GB) and their index; e.g. "
    "--shard-size 5GB",
    "the most bytes of a file, such as 5GB", TC_FLAG_CALL, .set = set_bytes },
  { "--merge", "add adapters (train.lora) to the weights beside them", .kind = TC_FLAG_YES, FIELD(merge) },
  { "--base CKPT", "with --merge, the checkpoint of these weights (default: the run's ckpt.from); e.g. --base base/ckpt",
    "a checkpoint", TC_FLAG_TEXT, FIELD(base), .needs = "--merge", .says = "ckpt export: --base is for --merge, which is missing" },
  { "--rope ORDER", "order of rotary pairs in the file: half (default, Hugging Face's) or interleaved (Meta's); e.g. "
    "--rope interleaved",
    "half or interleaved", TC_FLAG_TEXT, FIELD(rope) },
  { "--optimizer", "with --format safetensors, also write the optimizer's state",
    .kind = TC_FLAG_YES, FIELD(optimizer) },
  { "--keep N", "number of good checkpoints to keep, at least 1; e.g. --keep 2",
    "how many good checkpoints stay, at least 1", TC_FLAG_WHOLE, FIELD(keep), 1, 1 << 24 },
  { "--dry-run", "print what would be removed, and remove nothing",
    .kind = TC_FLAG_YES, FIELD(dry_run) },
  { "--release", "undo the quarantine of STEP; if a step was quarantined twice, STEP.2 is the second; e.g. 300.2 --release",
    .kind = TC_FLAG_YES, FIELD(release) },
  { "--json", "print JSON instead of text", .kind = TC_FLAG_YES, FIELD(json) },
  { .form = NULL }
};

static const struct tc_flag option[] = {
  { "--section.key=value", "an option of the run file, as for tercio train; e.g. --parallel.data=zero3",
    .kind = TC_FLAG_GIVEN }, { .form = NULL } };

static int read_args(struct ckpt_args *a, const struct ckpt_sub *s, const struct tc_args *args, struct tc_err *err)
{
  const int n = args->n_words;
  a->flag[a->n_flags++] = tc_strdup(args->argv[0]);
  for (int i = 1 + n; i < args->argc; i++) a->flag[a->n_flags++] = tc_strdup(args->argv[i]);
  TC_TRY(tc_args_set(args, a, err));
  if (n > s->max_paths)
    return tc_fail(err, TC_EUSER, "ckpt %s: too many arguments at '%s'; use: ckpt %s %s", s->name,
                   args->word[s->max_paths], s->name, s->args);
  if (n < s->min_paths)
    return tc_fail(err, TC_EUSER, "ckpt %s: an argument is missing; use: ckpt %s %s", s->name, s->name, s->args);
  a->path[0] = "run/ckpt";
  for (int i = 0; i < n; i++) a->path[i] = args->word[i];
  for (int i = 0; i < n; i++) TC_TRY(tc_ckpt_check_folder(a->path[i], err));
  return 0;
}

int ckpt_args_parse(struct ckpt_args *a, const struct ckpt_sub *s, int argc, char **argv, struct tc_err *err)
{
  char command[40];
  snprintf(command, sizeof command, "ckpt %s", s->name);
  const struct tc_flags flags = {
    .flag = list, .command = command, .takes = s->args, .unknown = "%s: there is no option '%s'; use: %s %s",
    .how = TC_FLAGS_JOINED | TC_FLAGS_DASH | (tc_flag_is_of(option, s->args) ? TC_FLAGS_DOTTED : 0) };
  struct tc_args args;
  *a = (struct ckpt_args){ .row1 = -1, .atol = -1 };
  a->flag = tc_calloc((size_t)argc + 1, sizeof *a->flag);
  int rc = tc_args_find(&args, &flags, argc, argv, err);
  if (!rc) rc = tc_args_check(&args, err);
  if (!rc) rc = read_args(a, s, &args, err);
  tc_args_free(&args);
  return rc;
}

void ckpt_args_free(struct ckpt_args *a)
{
  for (int i = 0; i < a->n_flags; i++) free(a->flag[i]);
  free(a->flag);
}

void ckpt_args_help(FILE *f, const struct ckpt_sub *s, const char *margin, int width)
{
  tc_flags_print(f, list, s->args, margin, width);
  tc_flags_print(f, option, s->args, margin, width);
}
