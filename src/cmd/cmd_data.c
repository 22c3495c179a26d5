/* cmd_data.c - `tercio data`: its flags, and what it prints of the shards that it made. */
#include "src/cmd/cmd.h"
#include "src/cmd/show_data.h"
#include "src/plan/plan.h"
#include "src/shards/shards.h"

#include <stdlib.h>
#include <string.h>

#define SHARD_TOKENS 100000000

static int shard_tokens(const char *text, int64_t *out, struct tc_err *err)
{
  const double n = tc_parse_bytes(text);
  if (!(n >= 1 && n <= INT32_MAX))
    return tc_fail(err, TC_EUSER, "--shard-tokens %.40s: give a number from 1 to %d, such as 100M", text, INT32_MAX);
  *out = (int64_t)n;
  return TC_OK;
}

static int invalid(const char *text, enum tc_invalid *out, struct tc_err *err)
{
  for (int i = 0; i < 3; i++)
    if (strcmp(text, tc_invalid_words[i]) == 0) {
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
static int option(struct tc_shards_opts *o, int argc, char **argv, int *i, struct tc_err *err)
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
static int parse(struct tc_shards_opts *o, int argc, char **argv, char **text, struct tc_err *err)
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

static void say_made(const struct tc_shards_opts *o, const struct tc_shards_made *m)
{
  if (!o->tokenizer)
    printf("%s: %lld tokens of %d text file%s, vocabulary %lld\n", o->out, (long long)m->tokens, m->texts,
           tc_plural(m->texts), (long long)m->vocab);
  else
    printf("%s: %lld tokens of %lld document%s in %d shard%s, vocabulary %lld\n", o->out, (long long)m->tokens,
           (long long)m->documents, tc_plural(m->documents), m->shards, tc_plural(m->shards), (long long)m->vocab);
  if (m->empty) printf("%lld empty document%s left out\n", (long long)m->empty, tc_plural(m->empty));
  if (m->invalid)
    printf("%lld part%s of the text %s not valid UTF-8\n", (long long)m->invalid, tc_plural(m->invalid),
           m->invalid == 1 ? "was" : "were");
  if (m->bad)
    printf("%lld line%s left out, which can't be read%s%s\n", (long long)m->bad, tc_plural(m->bad),
           m->first_bad.status ? "; the first: " : "", m->first_bad.status ? m->first_bad.text : "");
}

static int make(int argc, char **argv, struct tc_stop *stop, struct tc_err *err)
{
  struct tc_shards_opts o = { .stop = stop, .shard_tokens = SHARD_TOKENS };
  struct tc_shards_made made;
  char **text = tc_calloc((size_t)argc, sizeof *text);
  int status = parse(&o, argc, argv, text, err);
  if (status == TC_OK) status = tc_shards_make(&made, &o, err);
  if (status == TC_OK) say_made(&o, &made);
  free(text);
  return status;
}

int tc_cmd_data(int argc, char **argv, struct tc_stop *stop)
{
  struct tc_err err = { 0 };
  bool shown = false;
  int status = argc > 1 ? tc_show_data(&shown, argc - 1, argv + 1, &err) : TC_OK;
  if (!shown) status = make(argc, argv, stop, &err);
  return status < 0 ? tc_say_failure(&err) : 0;
}
