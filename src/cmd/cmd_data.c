/* cmd_data.c - `tercio data`: its flags, and what it prints of the shards that it made. */
#include "src/cmd/cmd.h"
#include "src/cmd/show_data.h"
#include "src/shards/shards.h"

#define SHARD_TOKENS 100000000

static int set_shard_tokens(void *opts, const struct tc_flag *f, const char *value, struct tc_err *err)
{
  const double n = tc_parse_bytes(value);
  const bool fits = n >= f->least && n <= f->most;
  (void)err;
  ((struct tc_shards_opts *)opts)->shard_tokens = fits ? (int64_t)n : 0;
  return !fits;
}

#define FIELD(f) .field = offsetof(struct tc_shards_opts, f)
#define NEEDS(flag) .needs = "--tokenizer", \
  .says = flag " needs --tokenizer: without one a token is a byte, and one file is made"
static const struct tc_flag list[] = {           /* main.c explains them */
  { .form = "-o OUT", .kind = TC_FLAG_TEXT, FIELD(out), .says = "-o needs the name of the shard" },
  { .form = "--tokenizer FILE", .kind = TC_FLAG_TEXT, FIELD(tokenizer) },
  { .form = "--field NAME", .kind = TC_FLAG_TEXT, FIELD(field) },
  { .form = "--eod TOKEN", .kind = TC_FLAG_TEXT, FIELD(eod) },
  { .form = "--jsonl", .kind = TC_FLAG_YES, FIELD(jsonl) },
  { .form = "--begin-token", .kind = TC_FLAG_YES, FIELD(begin_token), NEEDS("--begin-token") },
  { .form = "--shard-tokens N", .takes = "a number from %.0f to %.0f, such as 100M", .kind = TC_FLAG_CALL, .least = 1,
    .most = INT32_MAX, .set = set_shard_tokens, NEEDS("--shard-tokens") },
  { .form = "--threads N", .takes = TC_DATA_THREADS, FIELD(threads), 1, TC_DATA_MOST_THREADS },
  { .form = "--chat [TEMPLATE]", .kind = TC_FLAG_TEXT, FIELD(chat), .needs = "--tokenizer",
    .drops = "--field --eod --begin-token --jsonl" },
  { .form = "--train-on WORD", .takes = "answers, last or all", .kind = TC_FLAG_WORD, FIELD(train_on), .needs = "--chat" },
  { .form = "--invalid WORD", .takes = "refuse, replace or bytes", .kind = TC_FLAG_WORD, FIELD(invalid) },
  { .form = "--bad-lines WORD", .takes = "refuse or skip", .kind = TC_FLAG_WORD, FIELD(skip_bad) },
  { .form = NULL }
};
static const struct tc_flags flags = { .flag = list, .command = "data", .how = TC_FLAGS_DASH | TC_DATA_FLAGS };

static void say_made(const struct tc_shards_opts *o, const struct tc_shards_made *m)
{
  if (!o->tokenizer)
    printf("%s: %lld tokens of %d text file%s, vocabulary %lld\n", o->out, (long long)m->tokens, m->texts,
           tc_plural(m->texts), (long long)m->vocab);
  else
    printf("%s: %lld tokens of %lld document%s in %d shard%s, vocabulary %lld\n", o->out, (long long)m->tokens,
           (long long)m->documents, tc_plural(m->documents), m->shards, tc_plural(m->shards), (long long)m->vocab);
  if (o->chat)
    printf("%lld of the tokens are to be trained on\n", (long long)m->counted);
  if (m->special)
    printf("%lld special token%s of the chat template in the texts of turns\n", (long long)m->special, tc_plural(m->special));
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
  struct tc_args a;
  int status = tc_args_find(&a, &flags, argc, argv, err);
  if (status == TC_OK) status = tc_args_check(&a, err);
  if (status == TC_OK) status = tc_args_set(&a, &o, err);
  if (status == TC_OK && !a.n_words)
    status = o.chat && *o.chat ? tc_fail(err, TC_EUSER, "no text files: '%s' is after --chat, as the name of a template", o.chat)
                               : tc_fail(err, TC_EUSER, "no text files; see tercio data --help");
  o.text = a.word;
  o.n_texts = a.n_words;
  if (status == TC_OK && (!o.out || !*o.out))
    status = tc_fail(err, TC_EUSER, o.tokenizer ? "no -o SHARDS: which folder is for the shards?"
                                                : "no -o SHARD.bin: where should the tokens go?");
  if (status == TC_OK) status = tc_shards_make(&made, &o, err);
  if (status == TC_OK) say_made(&o, &made);
  tc_args_free(&a);
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
