/* args.c - the options of `tercio ckpt`: a table, and one parser for all commands. */
#include "src/cmd/ckpt/ckpt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kind { YES, NO, TEXT, COUNT, REAL, BYTES, ROWS, MESH };

static const struct option {
  const char *name;
  unsigned bit;                   /* of the commands that take it */
  enum kind kind;
  size_t field;                   /* in struct ckpt_args */
  const char *takes;              /* what its value must be, for sentences */
} options[] = {
#define FIELD(f) offsetof(struct ckpt_args, f)
  { "--json", CKPT_JSON, YES, FIELD(json), NULL },
  { "--quick", CKPT_DEPTH, YES, FIELD(quick), NULL },
  { "--deep", CKPT_DEPTH, NO, FIELD(quick), NULL },
  { "-j", CKPT_JOBS, COUNT, FIELD(jobs), "a number of threads" },
  { "--rtol", CKPT_TOL, REAL, FIELD(rtol), "a number >= 0" },
  { "--atol", CKPT_TOL, REAL, FIELD(atol), "a number >= 0" },
  { "--only", CKPT_TOL, TEXT, FIELD(only), "a pattern" },
  { "--owners", CKPT_OWNERS, YES, FIELD(owners), NULL },
  { "--tensor", CKPT_OWNERS, TEXT, FIELD(only), "a pattern" },
  { "--rows", CKPT_ROWS, ROWS, 0, "FIRST:END, such as 0:4" },
  { "--keep", CKPT_KEEP, COUNT, FIELD(keep), "how many good checkpoints stay, at least 1" },
  { "--dry-run", CKPT_KEEP, YES, FIELD(dry_run), NULL },
  { "--release", CKPT_RELEASE, YES, FIELD(release), NULL },
  { "-o", CKPT_OUT, TEXT, FIELD(out), "the file or folder to write" },
  { "--format", CKPT_FORMAT, TEXT, FIELD(format), "hf, safetensors or llmc" },
  { "--dtype", CKPT_FORMAT, TEXT, FIELD(dtype), "f32 or bf16" },
  { "--shard-size", CKPT_FORMAT, BYTES, FIELD(shard_bytes), "the most bytes of a file, such as 5GB" },
  { "--rope", CKPT_ROPE, TEXT, FIELD(rope), "half or interleaved" },
  { "--optimizer", CKPT_FORMAT, YES, FIELD(optimizer), NULL },
  { "--world", CKPT_MESH, COUNT, FIELD(world), "a number of ranks" },
  { "--simulate", CKPT_MESH, TEXT, FIELD(cluster), "a cluster, such as \"4 nodes x 8\"" },
  { "--pp", CKPT_MESH, MESH, 0, "a number of ranks" },
  { "--dp", CKPT_MESH, MESH, 0, "a number of ranks" },
  { "--tp", CKPT_MESH, MESH, 0, "a number of ranks" },
#undef FIELD
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* "A:B", either may be missing. */
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

/* A whole number of bytes, KB, MB or GB: powers of 1000, as Hugging Face's. */
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
  default:                        /* MESH: its config checks the value */
    a->flag[a->n_flags++] = tc_sprintf("--mesh.%s=%s", o->name + 2, value);
    return *value != '\0';
  }
}

/* The option that argv[*i] is, as "--rtol X", "--rtol=X" or "-j8": its value into *value, NULL if
 * it takes none, "" if it is missing; argv[*i] is the last word of it. NULL: there is none. */
static const struct option *find(const struct ckpt_sub *s, int argc, char **argv, int *i,
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
  const struct option *o = find(s, argc, argv, i, &value);
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
  return 0;
}

void ckpt_args_free(struct ckpt_args *a)
{
  for (int i = 0; i < a->n_flags; i++) free(a->flag[i]);
  free(a->flag);
}
