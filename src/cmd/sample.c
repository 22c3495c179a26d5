/* sample.c - `tercio sample`: continues prompts with a checkpoint's model. */
#include "src/cmd/cmd.h"
#include "src/cmd/model.h"
#include "src/forward/sample.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"
#include "io/ckpt/h5.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 256, PREFILL = 64, MOST_BYTES = 1 << 26 };

/* A sequence: its prompt, and what came after it. */
struct sequence { struct tc_prompt prompt; struct tc_ids made; };

struct sample {
  struct tc_cmd_model m;
  const char *prompt, *file;
  int64_t copies;                      /* sequences of each prompt */
  bool json;
  struct tc_sampling how;
  struct sequence *seq;
  struct tc_prompt *prompts;           /* of each sequence, as tc_sample takes them */
  int64_t n, cap;
  char **flag;
  int n_flags;
  struct tc_launch launch;
};

/* ---- the command line ------------------------------------------------------------------------ */

static bool parse_number(const char *s, double least, double most, double *out)
{
  char *end;
  *out = strtod(s, &end);
  return *s && !*end && *out >= least && *out <= most;
}

/* One of sample's own options with its value; *known: it is one. */
static int set_own(struct sample *x, const char *name, const char *value, bool *known, struct tc_err *err)
{
  static const struct { const char *name; double least, most; const char *takes; } number[] = {
    { "tokens", 1, 1 << 24, "the new tokens of a sequence, 1 or more" },
    { "n", 1, SEQUENCES, "the sequences of a prompt, 1 to 256" },
    { "temperature", 0, 1e3, "a number from 0 (the most likely token) to 1000" },
    { "top-k", 0, 1 << 24, "how many of the most likely tokens, or 0 for all" },
    { "top-p", 1e-9, 1, "a probability above 0, up to 1 for all tokens" },
    { "seed", 0, 9e15, "a number, 0 or more" } };
  double v = 0;
  *known = true;
  if (!strcmp(name, "prompt")) x->prompt = value;
  else if (!strcmp(name, "prompts")) x->file = value;
  else if (!strcmp(name, "tokenizer")) x->m.tokenizer_file = value;
  else *known = false;
  if (*known) return 0;
  for (int i = 0; i < 6; i++) {
    if (strcmp(name, number[i].name)) continue;
    *known = true;
    const bool whole = i != 2 && i != 4;
    if (!parse_number(value, number[i].least, number[i].most, &v) || (whole && v != floor(v)))
      return tc_fail(err, TC_EUSER, "--%s %s: give %s", name, value, number[i].takes);
    switch (i) {
    case 0: x->how.tokens = (int64_t)v; break;
    case 1: x->copies = (int64_t)v; break;
    case 2: x->how.temperature = v; break;
    case 3: x->how.top_k = (int64_t)v; break;
    case 4: x->how.top_p = v; break;
    default: x->how.seed = (uint64_t)v;
    }
  }
  return 0;
}

static int parse(struct sample *x, int argc, char **argv, struct tc_err *err)
{
  for (int i = 1; i < argc; i++) {
    const char *arg = argv[i], *eq = strchr(arg, '=');
    bool known = false;
    char name[40];
    if (!strcmp(arg, "--json")) { x->json = true; continue; }
    if (!strcmp(arg, "--greedy")) { x->how.temperature = 0; continue; }
    if (arg[0] != '-') {
      if (x->m.path) return tc_fail(err, TC_EUSER, "one checkpoint at a time: '%s' or '%s'?", x->m.path, arg);
      x->m.path = arg;
      continue;
    }
    snprintf(name, sizeof name, "%.*s", eq ? (int)(eq - arg) - 2 : (int)sizeof name - 1, arg + (arg[1] == '-' ? 2 : 1));
    const bool dotted = strchr(name, '.') != NULL;
    const char *value = eq ? eq + 1 : i + 1 < argc ? argv[i + 1] : NULL;
    if (!dotted && value) TC_TRY(set_own(x, name, value, &known, err));
    if (!known) x->flag[x->n_flags++] = argv[i];
    if (!eq && (known || (dotted && value))) i++;
    if (!eq && !known && dotted && value) x->flag[x->n_flags++] = argv[i];
  }
  if (!x->m.path) return tc_fail(err, TC_EUSER, "name a checkpoint, or a folder of checkpoints; see tercio sample --help");
  if (!x->prompt == !x->file) return tc_fail(err, TC_EUSER, "give --prompt TEXT, or --prompts FILE with a prompt a line");
  return 0;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static int encode(const struct sample *x, struct tc_encoder *e, const char *text, size_t n, struct tc_ids *ids,
                  struct tc_err *err)
{
  if (!x->m.tokenizer) {
    tc_ids_reserve(ids, n);
    for (size_t i = 0; i < n; i++) ids->id[ids->n++] = (unsigned char)text[i];
    return 0;
  }
  const struct tc_ids *begin = tc_tokenizer_begin(x->m.tokenizer);
  tc_ids_reserve(ids, begin->n);
  for (size_t i = 0; i < begin->n; i++) ids->id[ids->n++] = begin->id[i];
  return tc_encode(e, text, n, TC_INVALID_REFUSE, ids, NULL, err);
}

/* The sequences of one prompt. */
static int add_prompt(struct sample *x, struct tc_encoder *e, const char *text, size_t n, struct tc_err *err)
{
  struct tc_ids ids = { 0 };
  int rc = encode(x, e, text, n, &ids, err);
  if (rc == 0 && ids.n == 0)
    rc = tc_fail(err, TC_EUSER, "prompt %lld is empty: a token is predicted from at least one before it",
                 (long long)(x->n / x->copies));
  if (rc == 0 && x->n + x->copies > SEQUENCES)
    rc = tc_fail(err, TC_EUSER, "more than %d sequences at once; fewer prompts, or a smaller --n, would fit", SEQUENCES);
  for (int64_t k = 0; k < x->copies && rc == 0; k++) {
    TC_GROW(x->seq, x->n, x->cap);
    int32_t *token = tc_malloc(ids.n * sizeof *token);
    for (size_t i = 0; i < ids.n; i++) token[i] = (int32_t)ids.id[i];
    x->seq[x->n++] = (struct sequence){ .prompt = { token, (int64_t)ids.n } };
  }
  tc_ids_free(&ids);
  return rc;
}

static int add_lines(struct sample *x, struct tc_encoder *e, struct tc_err *err)
{
  char *text;
  size_t bytes;
  TC_TRY(tc_read_text(&text, &bytes, x->file, "file of prompts", MOST_BYTES, err));
  int rc = 0;
  for (char *at = text; *at && rc == 0;) {
    const size_t n = strcspn(at, "\n");
    rc = add_prompt(x, e, at, n, err);
    at += n + (at[n] == '\n');
  }
  free(text);
  if (rc == 0 && x->n == 0) rc = tc_fail(err, TC_EUSER, "%s has no prompt", x->file);
  return rc;
}

/* Behind which a text is over, by the names that tokenizers give to it. */
static void find_end(struct sample *x)
{
  static const char *const names[] = { "<|endoftext|>", "<|end_of_text|>", "</s>" };
  x->how.end = -1;
  for (int i = 0; i < 3 && x->m.tokenizer && x->how.end < 0; i++)
    x->how.end = (int32_t)tc_tokenizer_find(x->m.tokenizer, names[i]);
}

static int read_prompts(struct sample *x, struct tc_err *err)
{
  struct tc_encoder *e = NULL;
  if (!x->m.tokenizer && x->m.cfg->model_vocab != 256)
    return tc_fail(err, TC_EUSER, "the model's tokens are not bytes: give --tokenizer tokenizer.json");
  if (x->m.tokenizer) TC_TRY(tc_encoder_new(&e, x->m.tokenizer, err));
  const int rc = x->prompt ? add_prompt(x, e, x->prompt, strlen(x->prompt), err) : add_lines(x, e, err);
  if (e) tc_encoder_free(e);
  find_end(x);
  if (x->m.tokenizer) x->how.known = tc_tokenizer_vocab(x->m.tokenizer);
  x->prompts = tc_calloc((size_t)TC_MAX(x->n, 1), sizeof *x->prompts);
  for (int64_t i = 0; i < x->n; i++) x->prompts[i] = x->seq[i].prompt;
  return rc;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Without a layout of the user's, tensor parallelism takes as many ranks as the heads allow, stages the others. */
static int set_layout(struct sample *x, struct tc_err *err)
{
  struct tc_config *c = x->m.cfg;
  const struct tc_ranks *k = x->launch.ranks;
  struct tc_mesh *mesh;
  if (k->world > 1 && c->mesh_tp == 1 && c->mesh_pp == 1) {
    int tp = k->world / k->n_nodes;
    const int64_t heads = c->model_kv_heads ? c->model_kv_heads : c->model_heads;
    while (k->world % tp || heads % tp) tp--;
    c->mesh_tp = tp;
    c->mesh_pp = k->world / tp;
  }
  c->train_global_batch = x->n;
  c->train_micro_batch = 0;
  TC_TRY(tc_setup_axes(&mesh, c, k->world, k->node_of_rank, tc_ranks_node_devices(k), err));
  const int dp = mesh->size[TC_DP];
  tc_mesh_free(mesh);
  if (dp == 1) return 0;
  return tc_fail(err, TC_ELAYOUT, "sampling on %d ranks with mesh.tp = %lld and mesh.pp = %lld leaves dp = %d, whose ranks "
                 "would all do the same; mesh.tp and mesh.pp have to take all ranks", k->world, (long long)c->mesh_tp,
                 (long long)c->mesh_pp, dp);
}

static void put_token(const struct sample *x, int32_t id, FILE *f)
{
  size_t n = 1;
  const char byte = (char)id, *text = x->m.tokenizer ? tc_tokenizer_bytes(x->m.tokenizer, (uint32_t)id, &n) : &byte;
  if (text) fwrite(text, 1, n, f);
}

/* A rank's own part of tc_sample's context. */
struct listener { struct sample *x; bool keeps, shows; };

static void take_token(void *ctx, int64_t i, int32_t token)
{
  const struct listener *l = ctx;
  if (!l->keeps) return;
  struct tc_ids *made = &l->x->seq[i].made;
  tc_ids_reserve(made, 1);
  made->id[made->n++] = (uint32_t)token;
  if (!l->shows || token == l->x->how.end) return;
  put_token(l->x, token, stdout);
  fflush(stdout);
}

static int run_rank(int rank, void *sample, struct tc_err *err)
{
  struct sample *x = sample;
  const struct tc_launch *l = &x->launch;
  struct tc_forward *f = NULL;
  const struct tc_forward_args args = {
    .cfg = l->cfg, .ranks = l->ranks, .who = l->who, .rank = rank, .hub = l->hub, .path = x->m.path,
    .use = TC_TO_SAMPLE, .prefill = PREFILL, .mpi = l->mpi && l->mpi_world > 1,
    .threads = tc_launch_threads(l->cfg, l->ranks, rank) };
  struct listener listener = { x, rank == 0, rank == 0 && x->n == 1 && !x->json };
  int rc = tc_forward_new(&f, &args, err);
  if (rc == 0 && listener.shows) fputs(x->prompt ? x->prompt : "", stdout);
  if (rc == 0) rc = tc_sample(f, &x->how, x->prompts, x->n, take_token, &listener, err);
  tc_forward_free(f, rc == TC_EPEER);
  return rc;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void put_sequence(const struct sample *x, const struct sequence *s, FILE *f)
{
  for (int64_t i = 0; i < s->prompt.n; i++) put_token(x, s->prompt.token[i], f);
  for (size_t i = 0; i < s->made.n; i++)
    if ((int32_t)s->made.id[i] != x->how.end) put_token(x, (int32_t)s->made.id[i], f);
}

static void print_json(const struct sample *x)
{
  json_t *list = json_array();
  for (int64_t i = 0; i < x->n; i++) {
    const struct sequence *s = &x->seq[i];
    char *text = NULL;
    size_t bytes = 0, clean;
    int64_t parts = 0;
    json_t *ids = json_array();
    FILE *f = open_memstream(&text, &bytes);
    for (size_t k = 0; k < s->made.n; k++) {
      json_array_append_new(ids, json_integer(s->made.id[k]));
      if ((int32_t)s->made.id[k] != x->how.end) put_token(x, (int32_t)s->made.id[k], f);
    }
    fclose(f);
    char *valid = tc_utf8_replace(text, bytes, &clean, &parts);
    json_array_append_new(list, json_pack("{s:I, s:o, s:o}", "prompt", (json_int_t)(i / x->copies), "tokens", ids,
                                          "text", json_stringn(valid, clean)));
    free(valid);
    free(text);
  }
  json_dumpf(list, stdout, JSON_INDENT(1));
  putchar('\n');
  json_decref(list);
}

static void print_results(const struct sample *x)
{
  if (x->json) {
    print_json(x);
    return;
  }
  for (int64_t i = 0; i < x->n && x->n > 1; i++) {
    printf("=== prompt %lld, sequence %lld\n", (long long)(i / x->copies), (long long)(i % x->copies));
    put_sequence(x, &x->seq[i], stdout);
    putchar('\n');
  }
  if (x->n == 1) putchar('\n');
}

/* ---- the command ----------------------------------------------------------------------------- */

static void sample_free(struct sample *x)
{
  for (int64_t i = 0; i < x->n; i++) {
    free((void *)(uintptr_t)x->seq[i].prompt.token);
    tc_ids_free(&x->seq[i].made);
  }
  free(x->seq);
  free(x->prompts);
  free(x->flag);
  tc_cmd_model_free(&x->m);
}

int tc_cmd_sample(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct sample x = { .copies = 1, .how = { .temperature = 0.8, .top_k = 50, .top_p = 0.95, .tokens = 200, .seed = 1 } };
  x.flag = tc_calloc((size_t)argc + 1, sizeof *x.flag);
  x.flag[x.n_flags++] = argv[0];
  tc_h5_start();
  int rc = parse(&x, argc, argv, &err);
  if (rc == 0) rc = tc_cmd_model_open(&x.m, x.n_flags, x.flag, &err);
  if (rc == 0) rc = read_prompts(&x, &err);
  if (rc == 0) rc = tc_launch_find(&x.launch, x.m.cfg, &err);
  if (rc == 0) rc = set_layout(&x, &err);
  const int status = rc < 0 ? tc_launch_say(x.launch.ranks, rc, &err) : tc_launch_run(&x.launch, run_rank, &x);
  if (status == 0 && x.launch.ranks->rank == 0) print_results(&x);
  tc_launch_free(&x.launch);
  sample_free(&x);
  return status;
}
