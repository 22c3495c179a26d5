/* t_setup.c - from options to model, mesh and program: what can't be is refused with a sentence,
 * what the sentence proposes is accepted; each option reaches its field; which axis is nearer. */
#include "src/program/setup.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <unistd.h>

/* The options of `flags`, separated by blanks, on top of a small model; NULL: they are refused. */
static struct tc_config *config(const char *flags, struct tc_err *err)
{
  const char *base =
      "--model.layers=4 --model.hidden=32 --model.heads=4 --model.context=16 --model.vocab=64 "
                     "--data.train=x --data.format=bin ";
  char text[600], *args[40] = { "train" }, *rest = text;
  int n = 1;
  struct tc_config *c = NULL;
  snprintf(text, sizeof text, "%s%s", base, flags);
  for (char *a; (a = strtok_r(rest, " ", &rest)) && n < 40;) args[n++] = a;
  return tc_config_new(&c, n, args, err) < 0 ? NULL : c;
}

/* All of it, for `world` ranks, `each` on a node. */
static int setup(const char *flags, int world, int each, struct tc_program_opts *o,
                 int32_t size[TC_AXES], struct tc_mesh **mesh, struct tc_err *err)
{
  *err = (struct tc_err){ 0 };
  struct tc_config *c = config(flags, err);
  struct tc_mesh *m = NULL;
  if (!c) return err->status;
  struct tc_annotation *rows = NULL;
  int32_t node[64];
  for (int r = 0; r < world; r++) node[r] = r / each;
  int rc = tc_setup_mesh(&m, c, world, node, 0, err);
  if (rc == 0) {
    rc = tc_setup_program(o, c, m, &rows, err);
    tc_annotations_free(rows);
    if (size) memcpy(size, m->size, TC_AXES * sizeof *size);
  }
  if (rc == 0 && mesh) *mesh = m;
  else if (m) tc_mesh_free(m);
  tc_config_free(c);
  return rc;
}

/* ---- what can't be ---------------------------------------------------------------------- */

static const struct { const char *flags; int world, status; const char *text, *fits; } bad[] = {
  { "--model.preset=gpt2-12m --model.hidden=0", 1, TC_EUSER, "did you mean gpt2-124m?",
      "--model.preset=gpt2-124m" },
  { "--model.preset=elephant", 1, TC_EUSER, "model.preset = elephant is not known; the presets are tiny",
      "--model.preset=tiny" },
  { "--model.heads=5", 1, TC_EUSER,
      "model.heads = 5 does not divide model.hidden = 32; heads = 4 would",
    "--model.heads=4" },
  { "--model.heads=24 --model.hidden=36", 1, TC_EUSER, "heads = 18 would",
      "--model.heads=18 --model.hidden=36" },
  { "--data.format=text", 1, TC_EUSER, "model.vocab = 64 is too small",
      "--data.format=text --model.vocab=256" },
  { "--data.format=text --model.vocab=255", 1, TC_EUSER, "256 would do",
      "--data.format=text --model.vocab=256" },
  { "--train.global_batch=6", 4, TC_ELAYOUT,
      "train.global_batch = 6 sequences do not split over dp = 4 ranks; "
    "8 would", "--train.global_batch=8" },
  { "--train.global_batch=24 --train.micro_batch=4", 4, TC_ELAYOUT,
      "train.micro_batch = 4 does not divide a "
    "rank's 6 sequences", "--train.global_batch=24 --train.micro_batch=3" },
  { "--mesh.tp=3 --train.global_batch=4", 3, TC_ELAYOUT,
      "mesh.tp = 3 does not divide the 4 attention heads; tp = 1, 2, 4 "
    "would fit", "--mesh.tp=1 --train.global_batch=6" },
  { "--model.family=llama --model.kv_heads=2 --mesh.tp=4 --train.global_batch=4", 4, TC_ELAYOUT,
      "mesh.tp = 4 does not divide the 2 key and value heads; tp = 1, 2 would fit",
      "--model.family=llama --model.kv_heads=2 --mesh.tp=2 --train.global_batch=4" },
  { "--model.family=qwen3 --model.kv_heads=1 --mesh.tp=2 --train.global_batch=4", 2, TC_ELAYOUT,
      "mesh.tp = 2 does not divide the only key and value head; tp = 1 would fit",
      "--model.family=qwen3 --model.kv_heads=1 --mesh.tp=1 --train.global_batch=4" },
  { "--mesh.tp=4 --parallel.sequence=yes --train.global_batch=1 --model.context=14", 4, TC_ELAYOUT,
    "the 14 tokens of a micro-batch do not split over tp = 4",
    "--mesh.tp=4 --parallel.sequence=no --train.global_batch=1 --model.context=14" },
  { "--mesh.pp=2 --train.global_batch=2097152 --train.micro_batch=1", 2, TC_ELAYOUT,
    "train.micro_batch = 1 makes 2097152 micro-batches a step; 2 or more would fit",
    "--mesh.pp=2 --train.global_batch=2097152 --train.micro_batch=1048576" },
};

static void test_bad(void)
{
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_program_opts o;
    struct tc_err err;
    is_int(setup(bad[i].flags, bad[i].world, 64, &o, NULL, NULL, &err), bad[i].status,
           "%s is refused", bad[i].flags);
    ok(strstr(err.text, bad[i].text) != NULL, "  %s", err.text);
    if (!bad[i].fits) continue;
    is_int(setup(bad[i].fits, bad[i].world, 64, &o, NULL, NULL, &err), 0,
           "  what it proposes fits %s", err.text);
  }
}

/* Sizes of a model, by themselves and beside a preset's. */
static void test_model(void)
{
  static const char *const name[] = { "layers", "hidden", "heads", "context", "vocab" };
  static const int64_t most[] = { 4096, 1 << 20, 1 << 16, 1 << 24, 1 << 24 };
  struct tc_err err;
  for (int k = 0; k < 5; k++) {
    const struct { int64_t v; bool good; } row[] = {
      { 1, true }, { most[k], true }, { most[k] + 1, false }, { 0, false }, { -1, false } };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
      struct tc_model m = { .preset = k % 2 ? "" : NULL, .layers = 1, .hidden = 1, .heads = 1, .context = 1,
    .vocab = 1 };
      int64_t *size[] = { &m.layers, &m.hidden, &m.heads, &m.context, &m.vocab };
      char text[100] = "";
      if (k == 1) m.head_dim = 1;
      if (k == 2) m.hidden = TC_MAX(row[i].v, 1);  /* what the heads divide */
      *size[k] = row[i].v;
      if (row[i].v <= 0)
        snprintf(text, sizeof text, "model.%s = %lld: give a positive number, or a model.preset",
                 name[k], (long long)row[i].v);
      else if (!row[i].good)
        snprintf(text, sizeof text, "model.%s = %lld is not from 1 to %lld", name[k], (long long)row[i].v,
                 (long long)most[k]);
      err = (struct tc_err){ 0 };
      is_int(tc_model_resolve(&m, &err), row[i].good ? 0 : TC_EUSER, "%s %lld", name[k],
             (long long)row[i].v);
      is_str(err.text, text, "... %s", row[i].good ? "is accepted" : "in these words");
    }
  }
  for (int k = 0; k < 5; k++) {
    struct tc_model m = { .preset = "turing-17b" };
    int64_t *size[] = { &m.layers, &m.hidden, &m.heads, &m.context, &m.vocab };
    const int64_t own[] = { 3, 28, 7, 5, 6 }, preset[] = { 78, 4256, 28, 1024, 50257 };
    *size[k] = own[k];
    is_int(tc_model_resolve(&m, &err), 0, "a preset with %s of one's own", name[k]);
    for (int i = 0; i < 5; i++) is_int(*size[i], i == k ? own[i] : preset[i], "... %s", name[i]);
  }
}

/* The largest that is accepted, and the next; whole sentences. */
static void test_edges(void)
{
#define MANY "--train.steps=1 --model.context=16777216 --train.global_batch="
#define TOO_MANY(n, steps, fit) "train.global_batch = " n " sequences of model.context = 16777216 " \
  "tokens are too many for a model of this width and " steps " steps: at most " fit
  static const struct { const char *flags; int world; const char *text; } row[] = {
    { MANY "1024 --model.vocab=16777216", 1, NULL },
    { MANY "1025 --model.vocab=16777216", 1, TOO_MANY("1025", "1", "1024") },
    { MANY "4096 --model.hidden=1048576 --model.heads=1024", 1, NULL },
    { MANY "4097 --model.hidden=1048576 --model.heads=1024", 1, TOO_MANY("4097", "1", "4096") },
    { MANY "16384 --model.hidden=1048576 --model.heads=1024 --model.ffn=4 --model.kv_heads=1", 1,
      TOO_MANY("16384", "1", "16352") },                /* 1024 heads of queries, two more of a key and a value */
    { MANY "16352 --model.hidden=1048576 --model.heads=1024 --model.ffn=4 --model.kv_heads=1", 1, NULL },
    { MANY "16384 --model.hidden=1048576 --model.head_dim=1 --model.ffn=4", 1, NULL },
    { MANY "16385 --model.hidden=1048576 --model.head_dim=1 --model.ffn=4", 1, TOO_MANY("16385", "1", "16384") },
    { "--model.hidden=2052 --model.heads=2", 1, "model.head_dim = 1026 is not from 1 to 1024; more heads (model.heads) "
      "make it smaller" },
    { MANY "1024 --train.steps=16777216", 1, NULL },
    { MANY "1025 --train.steps=16777216", 1, TOO_MANY("1025", "16777216", "1024") },
    { "--data.format=text --model.vocab=256 --train.global_batch=1", 1, NULL },
    { "--data.format=text --model.vocab=255 --train.global_batch=1", 1, "model.vocab = 255 is too small for "
      "data.format = text, whose tokens are bytes: 256 would do" },
    { "--model.vocab=1 --train.global_batch=1", 1, NULL },
    { "--mesh.pp=2 --train.global_batch=1048576 --train.micro_batch=1", 2, NULL },
    { "--mesh.pp=2 --train.global_batch=1048577 --train.micro_batch=1", 2, "train.micro_batch = 1 makes "
      "1048577 micro-batches a step; 2 or more would fit" },
    { "--train.global_batch=1048577 --train.micro_batch=1", 1, NULL },
    { "--mesh.pp=2 --train.global_batch=3145730 --train.micro_batch=1", 2, "train.micro_batch = 1 makes "
      "3145730 micro-batches a step; 4 or more would fit" },
    { "--train.global_batch=12 --train.micro_batch=3 --mesh.tp=4 --parallel.sequence=yes --model.context=14",
      8, "parallel.sequence: the 42 tokens of a micro-batch do not split over tp = 4; "
      "parallel.sequence = no would fit" },
    { "--train.global_batch=16 --train.micro_batch=4 --mesh.tp=4 --parallel.sequence=yes --model.context=13",
      8, NULL },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_program_opts o;
    struct tc_err err;
    const char *text = row[i].text ? row[i].text : "";
    const int want = !*text ? 0 : strstr(text, "too ") || strstr(text, " is not ") ? TC_EUSER : TC_ELAYOUT;
    is_int(setup(row[i].flags, row[i].world, 64, &o, NULL, NULL, &err), want, "%s", row[i].flags);
    is_str(err.text, text, "... %s", want ? "in these words" : "is accepted");
  }
}

/* ---- the user's own rows ---------------------------------------------------------------------- */

static int with_rows(const char *rows, const char *flags, int world, int n_built_in,
                     struct tc_err *err)
{
  char path[] = "/tmp/t_setup-XXXXXX", all[300];
  struct tc_program_opts o;
  FILE *f = fdopen(mkstemp(path), "w");
  fputs(rows, f);
  fclose(f);
  snprintf(all, sizeof all, "--parallel.annotations=%s %s", path, flags);
  int rc = setup(all, world, 64, &o, NULL, NULL, err);
  if (rc == 0) ok(o.annotation[n_built_in] && !o.annotation[n_built_in + 1],
                  "... they come after %d lists of built-in rows", n_built_in);
  unlink(path);
  return rc;
}

static void test_rows(void)
{
  struct tc_err err;
  is_int(with_rows("tokens dp S(0)\n", "", 2, 0, &err), 0, "rows of the user's own %s", err.text);
  is_int(with_rows("tokens dp at(1)\n", "", 2, 0, &err), 0, "at the last rank %s", err.text);
  is_int(with_rows("tokens dp at(2)\n", "", 2, 0, &err), TC_ELAYOUT, "at a rank that is not there");
  ok(strstr(err.text, ":1: at(2), but dp has 2 ranks; at(0) to at(1) would fit"), "  %s", err.text);
  is_int(with_rows("\ntokens tp at(1)\n", "", 2, 0, &err), TC_ELAYOUT, "of a single one");
  ok(strstr(err.text, ":2: at(1), but tp has 1 rank; at(0) would fit"), "  %s", err.text);
  is_int(with_rows("* dp S(0)\n* pp R\nh.1.* pp at(0)\n", "", 2, 0, &err), 0,
         "of one stage, rows for pp say nothing %s", err.text);
  is_int(with_rows("* dp S(0)\n* pp R\n", "--mesh.pp=2 --train.global_batch=8", 4, 0, &err), 0,
         "nor do rows of R %s", err.text);
  is_int(with_rows("* dp S(0)\n\n* pp at(1)\n", "--mesh.pp=2 --train.global_batch=8", 4, 0, &err),
         TC_EUSER, "of two stages, others are refused");
  ok(strstr(err.text, ":3: a row for pp") && strstr(err.text, "mesh.pp and mesh.stages"), "  %s", err.text);
  is_int(with_rows("tokens dp S(0)\n", "--mesh.tp=3 --train.global_batch=3", 3, 0, &err), TC_ELAYOUT,
         "rows for dp beside a tp that does not divide the heads");
  ok(strstr(err.text, "does not divide the 4 attention heads; tp = 1, 2, 4"), "  %s", err.text);
  is_int(with_rows("wte.weight dp S(*) R S(*) at(3)\n", "", 2, 0, &err), TC_ELAYOUT,
         "in the last of four places");
  is_int(with_rows("tokens dp S(0)\n", "--parallel.data=zero1", 2, 0, &err), 0, "beside a system %s",
         err.text);
  is_int(with_rows("tokens dp S(0)\n", "--mesh.tp=2", 2, 1, &err), 0, "beside tensor parallelism %s",
         err.text);
  is_int(with_rows("pos tp S(0)\n", "--mesh.tp=2", 2, 0, &err), 0, "in place of it %s", err.text);
  is_int(with_rows("pos tp S(0)\n", "--mesh.tp=2 --parallel.sequence=yes", 2, 2, &err), 0,
         "beside sequence parallelism %s", err.text);
  is_int(with_rows("tokens dp S(0)\n", "--mesh.tp=2 --parallel.data=none", 2, 0, &err), 0,
         "alone %s", err.text);
}

/* ---- each option reaches its field -------------------------------------------------------- */

static void test_fields(void)
{
  struct tc_program_opts o, d;
  struct tc_err err;
  int32_t size[TC_AXES];
  is_int(setup("--train.global_batch=8", 1, 64, &d, size, NULL, &err), 0, "the defaults %s",
         err.text);
  ok(d.model.layers == 4 && d.model.hidden == 32 && d.model.heads == 4 && d.model.context == 16 &&
     d.model.vocab == 64, "the model's sizes");
  ok(d.system == &tc_systems[TC_DATA_DDP] && d.update == TC_UPDATE_ADAMW && d.overlap && d.reshard_after == -1 && !d.reduce_once &&
     !d.offload &&
     !d.recompute && d.virtual_stages == 1 && !d.head_chunk && !d.annotation[0], "... of the program");
  ok(d.gpt.batch == 8 && d.gpt.dtype == TC_F32 && d.gpt.grad_dtype == TC_F32 && d.gpt.state_dtype == TC_F32 && d.gpt.dropout ==
     0 &&
     d.gpt.tp == 1 && !d.gpt.nest && size[TC_MB] == 1, "... and of the model's");
  is_int(setup("--train.global_batch=48 --train.micro_batch=3 --mesh.pp=2 --mesh.tp=2 "
               "--parallel.data=zero2 "
               "--train.optimizer=sgd --train.precision=bf16 --train.grad_type=bf16 --train.state_type=bf16 "
               "--train.dropout=0.25 "
               "--parallel.unit=block --parallel.overlap=no --parallel.keep=mb "
               "--parallel.reduce=step "
               "--parallel.offload=update --train.recompute=full --parallel.prefetch=5 "
               "--parallel.regather=yes "
               "--parallel.schedule=interleaved --parallel.head_chunk=7 --parallel.sequence=yes",
                   8, 64, &o, size,
               NULL, &err), 0, "all of them others %s", err.text);
  ok(size[TC_PP] == 2 && tc_axes_size(size, TC_ON_DP) == 2 && size[TC_TP] == 2 && size[TC_MB] == 8,
     "pp 2, dp 2, tp 2, 8 micro-batches");
  ok(o.system == &tc_systems[TC_DATA_ZERO2] && o.update == TC_UPDATE_SGD && !o.overlap && o.reshard_after == 1 && o.reduce_once,
     "systems");
  ok(o.offload == 2 && o.recompute == 2 && o.prefetch == 5 && o.regather && o.virtual_stages == 2 &&
     o.head_chunk == 7,
     "numbers");
  is_int(o.schedule, TC_SCHEDULE_INTERLEAVED, "the schedule");
  ok(o.gpt.dtype == TC_BF16 && o.gpt.grad_dtype == TC_BF16 && o.gpt.state_dtype == TC_BF16 && o.gpt.dropout == 0.25f && o.gpt.tp ==
     2 && o.gpt.nest &&
     o.gpt.batch == 48, "the model's");
  ok(o.annotation[0] == tc_rows_tensor && o.annotation[1] == tc_rows_sequence && !o.annotation[2],
     "rows");
  is_int(setup("--mesh.pp=2 --parallel.virtual_stages=2 --parallel.schedule=interleaved "
               "--train.global_batch=8 "
               "--train.micro_batch=1 --parallel.keep=use --parallel.offload=params --mesh.tp=2",
                   4, 64, &o, size,
               NULL, &err), 0, "some others %s", err.text);
  ok(o.virtual_stages == 2 && o.reshard_after == 0 && o.offload == 1 && o.annotation[0] == tc_rows_tensor &&
     !o.annotation[1],
     "... reach them too");
  is_int(setup("--parallel.virtual_stages=3 --parallel.keep=step --train.recompute=selective", 1,
               64, &o, size, NULL,
               &err), 0, "without a pipeline %s", err.text);
  ok(o.virtual_stages == 1 && o.reshard_after == 2 && o.recompute == 1, "... there are no virtual stages");
}

/* ---- parameters, and adapters ---------------------------------------------------------------- */

#define LLAMA "--model.family=llama --model.layers=2 --model.hidden=64 --model.heads=4 --model.kv_heads=2 --model.ffn=192 " \
  "--model.context=32 --model.vocab=256 "

/* What training takes of a token besides what it takes of a model all of which trains: of what is frozen no gradient (2), of
 * adapters all (6). */
static void test_sums(void)
{
  const double in_layer = 64 * (64 + 32 + 32 + 64 + 192 + 192) + 192 * 64, wte = 256 * 64;
  const double adapters = 2 * 3 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 2 * (64 + 192) + (192 + 64));
  const double base = 2 * in_layer + 5 * 64 + 2 * wte;
  const struct { const char *flags, *rows; double trained, flops, saved; } c[] = {
    { LLAMA, "", base, 0, 4 * base },
    { LLAMA, "wte.* frozen=yes", 2 * in_layer + 5 * 64 + wte, 0, 4 * base },
    { LLAMA, "lm_head.* frozen=yes", 2 * in_layer + 5 * 64 + wte, -2 * wte, 4 * base },
    { LLAMA "--model.tied=yes", "wte.* frozen=yes", 2 * in_layer + 5 * 64, -2 * wte, 4 * (base - wte) },
    { LLAMA, "h.0.mlp.proj.* frozen=yes", 2 * in_layer + 5 * 64 + 2 * wte - 192 * 64, -2 * 192 * 64, 4 * base },
    { LLAMA "--train.lora=3", "", adapters, 6 * adapters - 2 * (2 * in_layer + 5 * 64 + wte), 4 * adapters },
    { LLAMA "--train.lora=3 --ckpt.base=yes", "", adapters,
      6 * adapters - 2 * (2 * in_layer + 5 * 64 + wte), 4 * (base + adapters) },
    { LLAMA "--train.lora=3 --ckpt.base=yes --train.precision=bf16", "", adapters,
      6 * adapters - 2 * (2 * in_layer + 5 * 64 + wte), 2 * base + 4 * adapters },
    { LLAMA "--train.lora=3 --ckpt.base=yes --train.precision=bf16 --train.frozen_type=fp32", "", adapters,
      6 * adapters - 2 * (2 * in_layer + 5 * 64 + wte), 4 * (base + adapters) },
    { LLAMA "--train.lora=3 --train.lora_rows=h.1.mlp.proj", "", 3 * (192 + 64),
      6 * 3 * (192 + 64) - 2 * (2 * in_layer + 5 * 64 + wte), 4 * 3 * (192 + 64) } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_parameter_sums sum = { 0 };
    struct tc_err err = { 0 };
    struct tc_config *cfg = config(c[i].flags, &err);
    cfg->train_rows = (char *)(uintptr_t)c[i].rows;        /* flags here have no blanks */
    is_int(tc_setup_parameter_sums(&sum, cfg, &err), 0, "%s %s %s", c[i].flags, c[i].rows, err.text);
    ok(fabs(sum.trained - c[i].trained) < 1 && fabs(sum.flops - c[i].flops) < 1, "... %g train, of a token %g more", sum.trained,
       sum.flops);
    ok(fabs(sum.saved_bytes - c[i].saved) < 1, "... %g bytes are saved", sum.saved_bytes);
    tc_config_free(cfg);
  }
}

/* Options that come with adapters: what is not given becomes theirs; what contradicts them is refused, or stays. */
static void test_take_lora(void)
{
#define SAYS(key, is, given) "the adapters of PATH are of train.lora" key " = " is ", and the options say " given ": leave it out"
#define OF "--train.lora=4 --train.lora_rows=*.q --train.lora_alpha=8 --train.lora_scale=rs --train.lora_dropout=0.5"
  const struct { const char *given, *of; bool refuses; const char *want; } c[] = {
    { "", OF, true, "4 *.q 8 1 0.5" }, { "--train.lora=4 --train.lora_scale=rs", OF, true, "4 *.q 8 1 0.5" },
    { "--train.lora_dropout=0", OF, true, "4 *.q 8 1 0" }, { "--train.lora_dropout=0.25", OF, true, "4 *.q 8 1 0.25" },
    { "--train.lora=5", OF, true, SAYS("", "4", "5") }, { "--train.lora_alpha=4", OF, true, SAYS("_alpha", "8", "4") },
    { "--train.lora_scale=plain", OF, true, SAYS("_scale", "rs", "plain") },
    { "--train.lora_rows=*.k", OF, true, SAYS("_rows", "*.q", "*.k") },
    { "--train.lora_rows=*.k", "--train.lora=4", true, SAYS("_rows", "all", "*.k") },
    { "--train.lora_alpha=4 --train.lora_scale=plain --train.lora_rows=*", "--train.lora=4", true, "4 * 4 0 -1" },
    { "--train.lora_alpha=5", "--train.lora=4", true, SAYS("_alpha", "auto", "5") },
    { "--train.lora_alpha=2", "--train.lora=4 --train.lora_scale=rs", true, "4  2 1 -1" },
    { "--train.lora=5 --train.lora_rows=*.k", OF, false, "5 *.k 8 1 0.5" }, { "", "--train.lora=2", true, "2  -1 -1 -1" } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_err err = { 0 };
    struct tc_config *to = config(c[i].given, &err), *of = config(c[i].of, &err);
    char got[1100];
    const int rc = tc_setup_take_lora(to, of, c[i].refuses ? "PATH" : NULL, &err);
    tc_config_free(of);
    if (rc < 0) snprintf(got, sizeof got, "%s", err.text);
    else
      snprintf(got, sizeof got, "%lld %s %g %d %g", (long long)to->train_lora, to->train_lora_rows, to->train_lora_alpha,
               to->train_lora_scale, to->train_lora_dropout);
    is_str(got, c[i].want, "adapters, given %s", c[i].given);
    tc_config_free(to);
  }
#undef OF
#undef SAYS
}

/* ---- which axis is nearer -------------------------------------------------------------------- */

/* What DDP sends in a step: all parameters of a stage there and back, 2 (n - 1) / n of them. */
static void test_traffic(void)
{
  struct tc_program_opts o;
  struct tc_err err;
  struct tc_mesh *m = NULL;
  int64_t bytes[TC_SETS];
  const char *flags = "--train.global_batch=8 --train.grad_type=fp32";
  if (!is_int(setup(flags, 4, 64, &o, NULL, &m, &err), 0, "dp 4 %s", err.text)) return;
  struct tc_config *c = config(flags, &err);
  is_int(tc_setup_traffic(bytes, c, m, &err), 0, "its traffic");
  const double params = 4.0 * (double)tc_model_params(&o.model);
  near_f((double)bytes[TC_SET_DP], 2 * params * 3 / 4, 0.01, "gradients there and back");
  ok(bytes[TC_SET_PP] == 0 && bytes[TC_SET_TP] == 0, "nothing else");
  tc_config_free(c);
  tc_mesh_free(m);
}

/* pp 2 x dp 2 on two nodes: whichever sends more lies within the nodes. */
static void test_order(void)
{
  static const struct { const char *flags; int each; bool pp_near; } c[] = {
    { "--mesh.pp=2 --train.global_batch=4", 2, false },
    { "--mesh.pp=2 --train.global_batch=4096 --train.micro_batch=1", 2, true },
    { "--mesh.pp=2 --train.global_batch=4096 --train.micro_batch=1 --mesh.order=tp-dp-pp", 2, false },
    { "--mesh.pp=2 --train.global_batch=4 --mesh.order=tp-pp-dp", 2, true },
    { "--mesh.pp=2 --train.global_batch=4096 --train.micro_batch=1", 4, false },
    { "--mesh.pp=4 --train.global_batch=4096 --train.micro_batch=1", 2, false },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_program_opts o;
    struct tc_err err;
    struct tc_mesh *m = NULL;
    if (!is_int(setup(c[i].flags, 4, c[i].each, &o, NULL, &m, &err), 0, "%s %s", c[i].flags,
                err.text)) continue;
    is_int(m->order, c[i].pp_near ? TC_TP_PP_DP : TC_TP_DP_PP, "... its order");
    if (m->size[TC_PP] == 2 && c[i].each == 2)
      ok((tc_mesh_group_nodes(m, 0, TC_ON_PP) == 1) == c[i].pp_near &&
         (tc_mesh_group_nodes(m, 0, TC_ON_DP) == 1) == !c[i].pp_near, "... %s within the node",
         c[i].pp_near ? "pp" : "dp");
    tc_mesh_free(m);
  }
}

int main(void)
{
  test_bad();
  test_model();
  test_edges();
  test_rows();
  test_fields();
  test_sums();
  test_take_lora();
  test_traffic();
  test_order();
  return done_testing();
}
