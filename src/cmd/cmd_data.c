/* cmd_data.c - `tercio data`: the command line. */
#include "src/cmd/cmd.h"

#include <stdlib.h>
#include <string.h>

#include "src/launch/stop.h"
#include "src/plan/plan.h"
#include "src/shards/shards.h"

#define SHARD_TOKENS 100000000
enum { MOST_THREADS = 1024 };

int tc_data_threads(const char *text, int *out, struct tc_err *err)
{
  char *end;
  const long n = strtol(text, &end, 10);
  if (*end || end == text || n < 1 || n > MOST_THREADS)
    return tc_fail(err, TC_EUSER, "--threads %.40s: give a number from 1 to %d", text, MOST_THREADS);
  *out = (int)n;
  return TC_OK;
}

const char *tc_data_option(int argc, char **argv, int *i, const char *name, struct tc_err *err)
{
  const char *a = argv[*i];
  const size_t n = strlen(name);
  if (strncmp(a, name, n) != 0) return NULL;
  if (a[n] == '=') return a + n + 1;
  if (a[n]) return NULL;
  if (*i + 1 < argc) return argv[++*i];
  tc_fail(err, TC_EUSER, "%s needs a value; see tercio data --help", name);
  return NULL;
}

static int shard_tokens(const char *text, int64_t *out, struct tc_err *err)
{
  const double n = tc_plan_bytes(text);
  if (!(n >= 1 && n <= INT32_MAX))
    return tc_fail(err, TC_EUSER, "--shard-tokens %.40s: give a number from 1 to %d, such as 100M", text, INT32_MAX);
  *out = (int64_t)n;
  return TC_OK;
}

const char *const tc_data_invalid[3] = { "refuse", "replace", "bytes" };

static int invalid(const char *text, enum tc_invalid *out, struct tc_err *err)
{
  for (int i = 0; i < 3; i++)
    if (strcmp(text, tc_data_invalid[i]) == 0) {
      *out = (enum tc_invalid)i;
      return TC_OK;
    }
  return tc_fail(err, TC_EUSER, "--invalid %.40s: give refuse, replace or bytes", text);
}

static int bad_lines(const char *text, bool *skip, struct tc_err *err)
{
  *skip = strcmp(text, "skip") == 0;
  if (*skip || strcmp(text, "refuse") == 0) return TC_OK;
  return tc_fail(err, TC_EUSER, "--bad-lines %.40s: give refuse or skip", text);
}

/* An option at argv[*i], with its value. */
static int option(struct tc_make_opts *o, int argc, char **argv, int *i, struct tc_err *err)
{
  static const char *const names[] = { "-o", "--tokenizer", "--field", "--eod", "--shard-tokens", "--threads",
                                       "--invalid", "--bad-lines" };
  const char *value = NULL, *a = argv[*i];
  size_t k = 0;
  if (strcmp(a, "--jsonl") == 0) return o->jsonl = true, TC_OK;
  if (strcmp(a, "--begin-token") == 0) return o->begin_token = true, TC_OK;
  if (strcmp(a, "-o") == 0 && *i + 1 == argc) return tc_fail(err, TC_EUSER, "-o needs the name of the shard");
  for (; !value && k < sizeof names / sizeof *names; k++) {
    value = tc_data_option(argc, argv, i, names[k], err);
    if (err->status < 0) return err->status;
  }
  if (!value) return tc_fail(err, TC_EUSER, "tercio data has no option '%s'; see tercio data --help", a);
  switch (k - 1) {
  case 0: o->out = value; return TC_OK;
  case 1: o->tokenizer = value; return TC_OK;
  case 2: o->field = value; return TC_OK;
  case 3: o->eod = value; return TC_OK;
  case 4: return shard_tokens(value, &o->shard_tokens, err);
  case 5: return tc_data_threads(value, &o->threads, err);
  case 6: return invalid(value, &o->invalid, err);
  default: return bad_lines(value, &o->skip_bad, err);
  }
}

/* Texts and folders into text[argc], which o->text becomes. */
static int parse(struct tc_make_opts *o, int argc, char **argv, char **text, struct tc_err *err)
{
  bool names_only = false;               /* after "--" */
  const char *needs_tokenizer = NULL;
  for (int i = 1; i < argc; i++) {
    char *a = argv[i];
    if (!names_only && strcmp(a, "--") == 0) names_only = true;
    else if (!names_only && a[0] == '-' && a[1]) {
      TC_TRY(option(o, argc, argv, &i, err));
      if (strcmp(a, "--begin-token") == 0 || strncmp(a, "--shard-tokens", 14) == 0) needs_tokenizer = a;
    } else text[o->n_texts++] = a;
  }
  o->text = text;
  if (o->n_texts == 0) return tc_fail(err, TC_EUSER, "no text files; see tercio data --help");
  if (!o->out || !*o->out)
    return tc_fail(err, TC_EUSER, o->tokenizer ? "no -o SHARDS: which folder is for the shards?"
                                               : "no -o SHARD.bin: where should the tokens go?");
  if (needs_tokenizer && !o->tokenizer)
    return tc_fail(err, TC_EUSER, "%.60s needs --tokenizer: without one a token is a byte, and one file is made",
                   needs_tokenizer);
  return TC_OK;
}

static int make(int argc, char **argv, char **word, struct tc_stop *stop, struct tc_err *err)
{
  struct tc_make_opts o = { .stop = stop, .shard_tokens = SHARD_TOKENS };
  struct tc_texts texts = { 0 };
  TC_TRY(parse(&o, argc, argv, word, err));
  int rc = tc_texts_find(&texts, word, o.n_texts, err);
  o.text = texts.name;
  o.n_texts = (int)texts.n;
  if (rc == TC_OK) rc = tc_data_make(&o, err);
  tc_texts_free(&texts);
  return rc;
}

int tc_cmd_data(int argc, char **argv, struct tc_stop *stop)
{
  static const struct { const char *name; int (*run)(int, char **, struct tc_err *); } verbs[] = {
    { "show", tc_data_show }, { "check", tc_data_check_tokens }, { "decode", tc_data_decode },
  };
  struct tc_err err = { 0 };
  int status = TC_OK;
  for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof *verbs; i++)
    if (strcmp(argv[1], verbs[i].name) == 0) {
      status = verbs[i].run(argc - 1, argv + 1, &err);
      return status < 0 ? tc_say_failure(&err) : 0;
    }
  char **text = tc_calloc((size_t)argc, sizeof *text);
  status = make(argc, argv, text, stop, &err);
  free(text);
  return status < 0 ? tc_say_failure(&err) : 0;
}
