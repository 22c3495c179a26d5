/* args.c - the options of `tercio ckpt`: a table, one parser and one help for all commands. */
#include "src/cmd/ckpt/ckpt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { YES, NO, TEXT, COUNT, REAL, BYTES, ROWS, MESH };

static const struct option {
  const char *name;
  unsigned bit;                   /* of the commands that accept it */
  enum kind kind;
  size_t field;                   /* in struct ckpt_args */
  const char *takes;              /* valid values, for error sentences; NULL: no value */
  const char *value, *help;       /* for --help: the value's name ("" if none), the explanation */
} options[] = {
#define FIELD(f) offsetof(struct ckpt_args, f)
  { "--owners", CKPT_OWNERS, YES, FIELD(owners), NULL, "",
    "print which rank on which node has which slice of each tensor, and the bytes of each rank" },
  { "--tensor", CKPT_OWNERS, TEXT, FIELD(only), "a pattern", "PATTERN",
    "with --owners, only tensors whose names match; e.g. --tensor 'h.0.*'" },
  { "--rows", CKPT_ROWS, ROWS, 0, "FIRST:END, such as 0:4", "A:B",
    "only indices A to B - 1 of the first dimension; either may be omitted; e.g. --rows 0:4" },
  { "--quick", CKPT_DEPTH, YES, FIELD(quick), NULL, "",
    "check only sizes and metadata, without reading the data" },
  { "--deep", CKPT_DEPTH, NO, FIELD(quick), NULL, "", "read all data and check all checksums (the default)" },
  { "-j", CKPT_JOBS, COUNT, FIELD(jobs), "a number of threads", "N",
    "threads that read and check (default: one per CPU); e.g. -j 8" },
  { "--rtol", CKPT_TOL, REAL, FIELD(rtol), "a number >= 0", "X",
    "relative tolerance: the largest ||A-B|| / ||B|| per tensor (default 0: equal bit for bit); e.g. --rtol 1e-5" },
  { "--atol", CKPT_TOL, REAL, FIELD(atol), "a number >= 0", "Y",
    "absolute tolerance: a tensor also passes if no element differs by more than Y; e.g. --atol 1e-6" },
  { "--only", CKPT_TOL, TEXT, FIELD(only), "a pattern", "PATTERN",
    "compare only tensors whose names match; e.g. --only 'optim.m.*'" },
  { "--pp", CKPT_MESH, MESH, 0, "a number of ranks", "N", "ranks on axis pp, as --mesh.pp; e.g. --pp 2" },
  { "--dp", CKPT_MESH, MESH, 0, "a number of ranks", "N", "ranks on axis dp, as --mesh.dp; e.g. --dp 4" },
  { "--tp", CKPT_MESH, MESH, 0, "a number of ranks", "N", "ranks on axis tp, as --mesh.tp; e.g. --tp 8" },
  { "--world", CKPT_MESH, COUNT, FIELD(world), "a number of ranks", "N",
    "total number of ranks, for mesh sizes of auto; e.g. --world 64" },
  { "--simulate", CKPT_MESH, TEXT, FIELD(cluster), "a cluster, such as \"4 nodes x 8\"", "CLUSTER",
    "nodes and ranks per node instead of --world; e.g. --simulate \"4 nodes x 8\"" },
  { "-o", CKPT_OUT, TEXT, FIELD(out), "the file or folder to write", "OUT",
    "the file or folder to write; for import, the folder of checkpoints; e.g. -o gpt2" },
  { "--format", CKPT_FORMAT, TEXT, FIELD(format), "hf, safetensors or llmc", "FORMAT",
    "hf (default), safetensors or llmc, see above; e.g. --format llmc" },
  { "--dtype", CKPT_FORMAT, TEXT, FIELD(dtype), "f32 or bf16", "TYPE",
    "element type of the weights: f32 (default) or bf16; e.g. --dtype bf16" },
  { "--shard-size", CKPT_FORMAT, BYTES, FIELD(shard_bytes), "the most bytes of a file, such as 5GB", "SIZE",
    "with --format hf, several files of at most SIZE (B, KB, MB or GB) and their index; e.g. --shard-size 5GB" },
  { "--rope", CKPT_ROPE, TEXT, FIELD(rope), "half or interleaved", "ORDER",
    "order of rotary pairs in the file: half (default, Hugging Face's) or interleaved (Meta's); e.g. --rope interleaved" },
  { "--optimizer", CKPT_FORMAT, YES, FIELD(optimizer), NULL, "",
    "with --format safetensors, also write the optimizer's state" },
  { "--keep", CKPT_KEEP, COUNT, FIELD(keep), "how many good checkpoints stay, at least 1", "N",
    "number of good checkpoints to keep, at least 1; e.g. --keep 2" },
  { "--dry-run", CKPT_KEEP, YES, FIELD(dry_run), NULL, "", "print what would be removed, and remove nothing" },
  { "--release", CKPT_RELEASE, YES, FIELD(release), NULL, "",
    "undo the quarantine of STEP; of several of one step, STEP.2 is the second; e.g. 300.2 --release" },
  { "--json", CKPT_JSON, YES, FIELD(json), NULL, "", "print JSON instead of text" },
#undef FIELD
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* "A:B", either may be omitted. */
static bool parse_rows(const char *s, struct ckpt_args *a)
{
  char *end;
  errno = 0;
  a->row0 = *s == ':' ? 0 : strtoll(s, &end, 10);
  if (*s == ':') end = (char *)(uintptr_t)s;
  if (*end != ':' || errno) return false;
  s = end + 1;
  if (!*s) return a->row0 >= 0;
  a->row1 = strtoll(s, &end, 10);
  return !*end && !errno && a->row0 >= 0 && a->row1 > a->row0;
}

/* An integer number of bytes, KB, MB or GB: powers of 1000, as in Hugging Face's library. */
static bool parse_bytes(const char *s, int64_t *out)
{
  static const struct { const char *name; int64_t bytes; } unit[] = {
    { "", 1 }, { "B", 1 }, { "KB", 1000 }, { "MB", 1000000 }, { "GB", 1000000000 } };
  char *end;
  errno = 0;
  const int64_t n = strtoll(s, &end, 10);
  for (int i = 0; i < 5 && end != s && !errno; i++)
    if (strcmp(end, unit[i].name) == 0 && n >= 1 && n <= INT64_MAX / unit[i].bytes) {
      *out = n * unit[i].bytes;
      return true;
    }
  return false;
}

static bool set_value(struct ckpt_args *a, const struct option *o, const char *value)
{
  void *field = (char *)a + o->field;
  char *end;
  errno = 0;
  switch (o->kind) {
  case YES: case NO:
    *(bool *)field = o->kind == YES;
    return true;
  case TEXT:
    *(const char **)field = value;
    return *value != '\0';
  case COUNT:
    *(int64_t *)field = strtoll(value, &end, 10);
    return *value && !*end && !errno && *(int64_t *)field >= 1 && *(int64_t *)field <= 1 << 24;
  case REAL:
    *(double *)field = strtod(value, &end);
    return *value && !*end && *(double *)field >= 0;
  case BYTES:
    return parse_bytes(value, field);
  case ROWS:
    return parse_rows(value, a);
  default:                        /* MESH: the configuration checks the value */
    a->flag[a->n_flags++] = tc_sprintf("--mesh.%s=%s", o->name + 2, value);
    return *value != '\0';
  }
}

/* Finds the option at argv[*i], as "--rtol X", "--rtol=X" or "-j8"; *value is its value, NULL if the option has
 * none, "" if it is missing; advances *i to its last word. Returns NULL if there is no such option. */
static const struct option *find_option(const struct ckpt_sub *s, int argc, char **argv, int *i,
                                        const char **value)
{
  for (int k = 0; k < N_OPTIONS; k++) {
    const struct option *o = &options[k];
    size_t n = strlen(o->name);
    if (!(o->bit & s->options) || strncmp(argv[*i], o->name, n) != 0) continue;
    const char *rest = argv[*i] + n;
    *value = NULL;
    if (!o->takes) {
      if (!*rest) return o;
      continue;
    }
    if (*rest == '=') *value = rest + 1;
    else if (*rest && o->name[1] != '-') *value = rest;
    else if (*rest) continue;
    else *value = *i + 1 < argc ? argv[++*i] : "";
    return o;
  }
  return NULL;
}

static int parse_one(struct ckpt_args *a, const struct ckpt_sub *s, int argc, char **argv, int *i,
                     struct tc_err *err)
{
  const char *arg = argv[*i], *value;
  const struct option *o = find_option(s, argc, argv, i, &value);
  if (o && set_value(a, o, value)) return 0;
  if (o)
    return tc_fail(err, TC_EUSER, "ckpt %s: %s takes %s, not '%s'", s->name, o->name, o->takes,
                   value);
  const char *dot = strchr(arg, '.'), *eq = strchr(arg, '=');
  if (s->options & CKPT_CONFIG && strncmp(arg, "--", 2) == 0 && dot && (!eq || dot < eq)) {
    bool two = !eq && *i + 1 < argc;
    a->flag[a->n_flags++] = two ? tc_sprintf("%s=%s", arg, argv[++*i]) : tc_strdup(arg);
    return 0;
  }
  return tc_fail(err, TC_EUSER, "ckpt %s: there is no option '%s'; use: ckpt %s %s", s->name, arg,
                 s->name, s->args);
}

/* The checkpoints of a run are in a folder of its own within run.out: without this its empty list is printed. */
static int check_folder(const char *path, struct tc_err *err)
{
  char *run = tc_sprintf("%s/run.json", path), *ckpt = tc_sprintf("%s/ckpt", path);
  const bool is_run = access(run, F_OK) == 0 && access(ckpt, F_OK) == 0;
  const int rc = is_run ? tc_fail(err, TC_EUSER, "%s is the folder of a run; its checkpoints are in %s", path, ckpt) : 0;
  free(run);
  free(ckpt);
  return rc;
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
  for (int i = 0; i < n; i++) TC_TRY(check_folder(a->path[i], err));
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
    char form[64];
    if (!(options[i].bit & s->options)) continue;
    snprintf(form, sizeof form, "%s%s%s", options[i].name, *options[i].value ? " " : "", options[i].value);
    print(ctx, form, options[i].help);
  }
  if (s->options & CKPT_CONFIG)
    print(ctx, "--section.key=value", "an option of the run file, as for tercio train; e.g. --parallel.data=zero3");
}
