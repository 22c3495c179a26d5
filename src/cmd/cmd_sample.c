/* cmd_sample.c - `tercio sample`: continues prompts with a trained model. */
#include "src/cmd/cmd.h"
#include "src/cmd/out.h"
#include "src/forward/sample.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"
#include "io/ckpt/h5.h"

#include <stdlib.h>

struct sample {
  struct tc_trained m;
  struct tc_tokenizer *bytes;          /* where the model has no tokenizer; owned */
  const char *prompt, *file, *chat;
  int64_t seed;
  bool json;
  struct tc_sampling how;
  struct tc_prompts prompts;           /* of each sequence */
  struct tc_ids *made;                 /* what came after each; owned */
  struct tc_launch launch;
};

/* ---- the command line ------------------------------------------------------------------------ */

static int set_greedy(void *sample, const struct tc_flag *f, const char *value, struct tc_err *err)
{
  (void)f, (void)value, (void)err;
  ((struct sample *)sample)->how.temperature = 0;
  return 0;
}

#define FIELD(f) .field = offsetof(struct sample, f)
const struct tc_flag tc_flags_sample[] = {
  { "--prompt TEXT", "the text to go on from; e.g. --prompt 'In the beginning'", "a text of at least one byte",
    TC_FLAG_TEXT, FIELD(prompt) },
  { "--prompts FILE", "one prompt per line, all at once; e.g. --prompts prompts.txt", "a file", TC_FLAG_TEXT,
    FIELD(file) },
  { "--chat [TEMPLATE]", "a prompt is what the user says, or a line of a FILE.jsonl a conversation, as tercio data --chat reads "
    "it: they become the text of the chat template beside the tokenizer, or of TEMPLATE, and the answer ends with its turn; "
    "e.g. --chat --prompt 'Who are you?'", NULL, TC_FLAG_TEXT, FIELD(chat) },
  { "--n N", "sequences of each prompt (default 1); e.g. --n 3", "the sequences of a prompt, 1 to 256", TC_FLAG_WHOLE,
    FIELD(prompts.copies), 1, TC_PROMPTS },
  { "--tokens N", "new tokens of a sequence, at most (default: 200, or what the model's context has room for); e.g. "
    "--tokens 50", "the new tokens of a sequence, 1 or more", TC_FLAG_WHOLE, FIELD(how.tokens), 1, 1 << 24 },
  { "--window", "where prompt and new tokens exceed the context, go on from its last half; e.g. --window --tokens 5000",
    .kind = TC_FLAG_YES, FIELD(how.window) },
  { "--temperature X", "divides the logits before a token is drawn (default 0.8); 0: the most likely token; e.g. "
    "--temperature 1", "a number from 0 (the most likely token) to 1000", TC_FLAG_REAL, FIELD(how.temperature), 0, 1e3 },
  { "--top-k K", "draw from the K most likely tokens (default 50); 0: from all; e.g. --top-k 0",
    "how many of the most likely tokens, or 0 for all", TC_FLAG_WHOLE, FIELD(how.top_k), 0, 1 << 24 },
  { "--top-p P", "draw from the most likely tokens that together have probability P (default 0.95); e.g. --top-p 1",
    "a probability above 0, up to 1 for all tokens", TC_FLAG_REAL, FIELD(how.top_p), 1e-9, 1 },
  { "--greedy", "the most likely token each time, as --temperature 0", NULL, .kind = TC_FLAG_CALL, .set = set_greedy },
  { "--seed N", "seed of sampling (default 1); the same seed gives the same text; e.g. --seed 7", "a number, 0 or more",
    TC_FLAG_WHOLE, FIELD(seed), 0, 9e15 },
  TC_CMD_MODEL_FLAGS(sample, "the model's tokenizer.json (default: the checkpoint's or FOLDER's), unless its tokens "
    "are bytes"),
  { "--json", "print a JSON array, with the new tokens of each sequence; e.g. --json > text.json", NULL, TC_FLAG_YES,
    FIELD(json) },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_MODEL(tc_flags_sample, "sample");

/* ---- ranks ----------------------------------------------------------------------------------- */

/* A decoder behind the i-th sequence's prompt, whose text it leaves out. Owned by the caller. */
static struct tc_decoder *decoder_behind(const struct sample *x, int64_t i)
{
  struct tc_decoder *d = tc_decoder_new(x->bytes ? x->bytes : x->m.tokenizer, false);
  const struct tc_prompt *p = &x->prompts.prompt[i];
  size_t bytes;
  tc_decoder_begin(d);
  for (int64_t k = 0; k < p->n; k++) tc_decode(d, (uint32_t)p->token[k], &bytes);
  tc_decode_end(d, &bytes);
  return d;
}

static void put_token(struct tc_decoder *d, uint32_t id, FILE *f)
{
  size_t n;
  const char *text = tc_decode(d, id, &n);
  fwrite(text, 1, n, f);
}

/* What is left to write; frees the decoder. */
static void put_end(struct tc_decoder *d, FILE *f)
{
  size_t n;
  const char *text = tc_decode_end(d, &n);
  fwrite(text, 1, n, f);
  tc_decoder_free(d);
}

/* A rank's own part of tc_sample's context. decoder: NULL until a token that is shown; owned. */
struct listener { struct sample *x; bool keeps, shows, begun; struct tc_decoder *decoder; };

static void take_token(void *ctx, int64_t i, int32_t token)
{
  struct listener *l = ctx;
  if (!l->keeps) return;
  if (l->shows && !l->begun && l->x->prompt && !l->x->chat) fputs(l->x->prompt, stdout);
  l->begun = true;
  struct tc_ids *made = &l->x->made[i];
  TC_APPEND(made->id, made->n, made->cap, (uint32_t)token);
  if (!l->shows || tc_sample_ends(&l->x->how, token)) return;
  if (!l->decoder) l->decoder = decoder_behind(l->x, i);
  put_token(l->decoder, (uint32_t)token, stdout);
  fflush(stdout);
}

static int run_rank(int rank, void *sample, struct tc_err *err)
{
  struct sample *x = sample;
  const struct tc_launch *l = &x->launch;
  struct tc_forward *f = NULL;
  const struct tc_forward_args args = {
    .cfg = l->cfg, .ranks = l->ranks, .rank_names = l->rank_names, .rank = rank, .hub = l->hub, .path = x->m.path,
    .foreign = x->m.foreign, .adapter = x->m.adapter, .peft = x->m.peft, .use = TC_TO_SAMPLE, .mpi = l->mpi && l->mpi_world > 1,
    .prefill = tc_sample_prefill(&x->how, x->prompts.prompt, x->prompts.n, l->cfg->model_context),
    .threads = tc_launch_threads(l->cfg, l->ranks, rank) };
  struct listener listener = { x, rank == 0, rank == 0 && x->prompts.n == 1 && !x->json, false, NULL };
  int rc = tc_forward_new(&f, &args, err);
  if (rc == 0) rc = tc_sample(f, &x->how, x->prompts.prompt, x->prompts.n, take_token, &listener, err);
  if (listener.decoder) put_end(listener.decoder, stdout);
  tc_forward_free(f, rc == TC_EPEER);
  return rc;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Writes the new tokens of a sequence but the end of text, and frees the decoder. */
static void put_made(const struct sample *x, int64_t i, struct tc_decoder *d, FILE *f)
{
  for (size_t k = 0; k < x->made[i].n; k++)
    if (!tc_sample_ends(&x->how, (int32_t)x->made[i].id[k])) put_token(d, x->made[i].id[k], f);
  put_end(d, f);
}

/* The prompt and what came after it; of a conversation the answer alone. */
static void put_sequence(const struct sample *x, int64_t i, FILE *f)
{
  const struct tc_prompt *p = &x->prompts.prompt[i];
  struct tc_decoder *d = x->chat ? decoder_behind(x, i) : tc_decoder_new(x->bytes ? x->bytes : x->m.tokenizer, false);
  if (!x->chat) tc_decoder_begin(d);
  for (int64_t k = 0; k < p->n && !x->chat; k++) put_token(d, (uint32_t)p->token[k], f);
  put_made(x, i, d, f);
}

static void print_json(const struct sample *x)
{
  json_t *list = json_array();
  for (int64_t i = 0; i < x->prompts.n; i++) {
    const struct tc_ids *made = &x->made[i];
    char *text = NULL;
    size_t bytes = 0, clean;
    int64_t parts = 0;
    json_t *ids = json_array();
    FILE *f = open_memstream(&text, &bytes);
    for (size_t k = 0; k < made->n; k++) json_array_append_new(ids, json_integer(made->id[k]));
    put_made(x, i, decoder_behind(x, i), f);
    fclose(f);
    char *valid = tc_utf8_replace(text, bytes, &clean, &parts);
    tc_out_row(list, "prompt=%lld tokens=%p text=%p", (long long)(i / x->prompts.copies), (void *)ids,
               (void *)json_stringn(valid, clean));
    TC_FREE(valid, text);
  }
  tc_out_json(list, JSON_INDENT(1));
}

static void print_results(const struct sample *x)
{
  if (x->json) {
    print_json(x);
    return;
  }
  for (int64_t i = 0; i < x->prompts.n && x->prompts.n > 1; i++) {
    printf("=== prompt %lld, sequence %lld\n", (long long)(i / x->prompts.copies), (long long)(i % x->prompts.copies));
    put_sequence(x, i, stdout);
    putchar('\n');
  }
  if (x->prompts.n == 1) putchar('\n');
}

/* ---- the command ----------------------------------------------------------------------------- */

static void sample_free(struct sample *x)
{
  for (int64_t i = 0; x->made && i < x->prompts.n; i++) tc_ids_free(&x->made[i]);
  free(x->made);
  tc_prompts_free(&x->prompts);
  tc_tokenizer_free(x->bytes);
  tc_trained_free(&x->m);
}

int tc_cmd_sample(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct sample x = { .prompts.copies = 1, .seed = 1, .how = { .temperature = 0.8, .top_k = 50, .top_p = 0.95 } };
  tc_h5_start();
  int rc = tc_args_model(&x.m, &flags, &x, argc, argv, &err);
  x.how.seed = (uint64_t)x.seed;
  if (rc == 0 && !x.prompt == !x.file)
    rc = tc_fail(&err, TC_EUSER, "give --prompt TEXT, or --prompts FILE with a prompt a line");
  if (rc == 0) rc = tc_trained_open(&x.m, &err);
  if (rc == 0 && !x.m.tokenizer) x.bytes = tc_tokenizer_of_bytes();
  if (rc == 0) rc = tc_prompts_read(&x.prompts, &x.how, &x.m, x.chat, x.prompt, x.file, &err);
  x.made = tc_calloc((size_t)TC_MAX(x.prompts.n, 1), sizeof *x.made);
  if (rc == 0) rc = tc_launch_find(&x.launch, x.m.cfg, &err);
  const struct tc_ranks *k = x.launch.ranks;
  if (rc == 0)
    rc = tc_setup_sampling(x.m.cfg, x.prompts.n, k->world, k->node_of_rank, tc_ranks_node_devices(k), &err);
  const int status = rc < 0 ? tc_launch_say(&x.launch, rc, &err) : tc_launch_run(&x.launch, run_rank, &x);
  if (status == 0 && x.launch.ranks->rank == 0) print_results(&x);
  tc_launch_free(&x.launch);
  sample_free(&x);
  return status;
}
