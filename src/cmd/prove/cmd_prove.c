/* cmd_prove.c - `tercio prove`: a run's layout beside one rank, on threads of this machine. No MPI. */
#include "src/cmd/prove/prove.h"

#include "kernels/kernel.h"
#include "src/files/files.h"
#include "src/program/setup.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 1024 };
static const char own_words[] = "# Written by tercio prove";
static const struct tc_output_kind run_file = { "a run file that tercio prove has written", { own_words } };

#define FIELD(f) .field = offsetof(struct tc_prove_ask, f)
const struct tc_flag tc_flags_prove[] = {
  { "--world NODESxRANKS", "the job's nodes and ranks of each, as in 3x8, \"2:8,4\", or a number of ranks of one node; "
    "without it the ranks that the mesh options give", .kind = TC_FLAG_TEXT, FIELD(world) },
  { "--steps N", "steps that are compared (default 3)", "a number from 2 to 8", TC_FLAG_INT, FIELD(steps), 2, TC_PROOF_STEPS },
  { "--full-width", "keep the sizes of a layer: hidden, heads, ffn", .kind = TC_FLAG_YES, FIELD(full_width) },
  { "--as-is", "keep all sizes: of a run file that prove wrote, or of a small model", .kind = TC_FLAG_YES, FIELD(as_is),
    .drops = "--full-width" },
  { "--against float64", "also compare one rank's gradient with differences of its loss in double precision", "float64",
    TC_FLAG_WORD, FIELD(against) },
  { "--fuzz N", "also N other layouts of the same model and ranks, drawn, without annotations and in fp32", "a number",
    TC_FLAG_WHOLE, FIELD(fuzz), 1, 1e6 },
  { "--seed N", "of tokens, weights and what --fuzz draws (default 1)", "a number", TC_FLAG_WHOLE, FIELD(seed), 0, 1e18 },
  { "-o FILE", "the run file that repeats a difference (default tercio-prove.ini)", .kind = TC_FLAG_TEXT, FIELD(file) },
  { "--once", "do nothing if this run file with these nodes was proved before: OUT/proved says so (train.sbatch)",
    .kind = TC_FLAG_YES, FIELD(once) },
  { "--json", "print JSON", .kind = TC_FLAG_YES, FIELD(json) },
  { "--break N", "a test hook: plant fault number N of src/prove/breaks.c in the layout's program, to see that it is found",
    "a number from 1 on", TC_FLAG_INT, FIELD(number), 1, 1000 },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_RUN(tc_flags_prove, "prove");

/* ---- what is proved -------------------------------------------------------------------- */

static void stepped(void *ctx, int rank, int step)
{
  struct tc_proving *p = ctx;
  char what[160];
  if (rank) return;
  snprintf(what, sizeof what, "%.100s: step %d of %d", p->title, step, p->ask.steps);
  tc_ticker_say(&p->ticker, what);
}

static void entitle(struct tc_proving *p, const char *title)
{
  snprintf(p->title, sizeof p->title, "%s", title);
  tc_ticker_say(&p->ticker, title);
}

/* Prints a line, unless JSON is asked for. */
static void say(struct tc_proving *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct tc_proving *p, const char *fmt, ...)
{
  va_list args;
  if (p->ask.json) return;
  tc_ticker_clear(&p->ticker);
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  fflush(stdout);
}

static int find_ranks(struct tc_proving *p, struct tc_err *err)
{
  const struct tc_config *c = p->cfg;
  char text[32];
  if (p->ask.world) TC_TRY(tc_args_world(&p->world, &p->node, p->ask.world, err));
  const double given = tc_setup_ranks(c);
  if (!p->ask.world && c->mesh_dp == TC_AUTO && c->run_ranks == 1)
    return tc_fail(err, TC_EUSER, "mesh.dp = auto takes the ranks that are left: of how many? --world 3x8 says 3 nodes of 8 "
                   "ranks, --mesh.dp=N the size itself");
  if (!p->ask.world) {
    snprintf(text, sizeof text, "%.0f", c->run_ranks > 1 ? (double)c->run_ranks : given);
    TC_TRY(tc_args_world(&p->world, &p->node, text, err));
  }
  return 0;
}

/* The device of all ranks: bf16 on a CPU that multiplies none is the reference's. */
static const char *device_of(const struct tc_proving *p, bool bf16)
{
  struct tc_device *d;
  struct tc_err err;
  if (p->cfg->run_device == TC_DEVICE_CUDA) return "cuda";
  if (p->cfg->run_device == TC_DEVICE_REF) return "ref";
  if (!bf16 || tc_device_open(&d, "cpu", 1, &err) < 0) return "cpu";
  const bool has = d->ops->has_bf16(d);
  tc_device_close(d);
  return has ? "cpu" : "ref";
}

/* Roughly the operations of one rank's step; naive kernels do some 1e9 of them a second. */
static double work_of(const struct tc_config *c)
{
  struct tc_model m;
  struct tc_err none;
  if (tc_setup_model(c, &m, &none) < 0) return 0;
  return 6.0 * (double)tc_model_params(&m) * (double)c->train_global_batch * (double)c->model_context;
}

static struct tc_proof_run run_of(struct tc_proving *p, const struct tc_config *c, bool bf16)
{
  const char *device = device_of(p, bf16);
  return (struct tc_proof_run){
    .cfg = c, .world = p->scaled.world, .node_of_rank = p->scaled.node_of_rank, .device = device, .steps = p->ask.steps,
    .seed = (uint64_t)p->ask.seed, .fault = p->ask.number, .poison = true,
    .large = (!bf16 || !strcmp(device, "cpu")) && work_of(c) > 2e9, .progress = stepped, .progress_ctx = p };
}

/* ---- a difference ---------------------------------------------------------------------- */

static const char *note_changed(const void *arg, const char *name)
{
  const struct tc_config *const *two = arg;
  struct tc_config_change change;
  for (int i = -1; (i = tc_config_next_change(two[0], two[1], i + 1, &change)) >= 0;)
    if (!strcmp(change.name, name)) return "";
  return NULL;
}

/* The run file that repeats it. The difference is what counts, also where the file can't be written. */
static void write_run(struct tc_proving *p, const struct tc_config *c)
{
  const char *path = p->ask.file ? p->ask.file : "tercio-prove.ini";
  const struct tc_output_opts o = { .kind = &run_file, .flag = "-o" };
  const struct tc_config *two[2] = { c, p->scaled.defaults };
  char *text = tc_config_text_of(c, note_changed, two);
  struct tc_err err;
  char world[40];
  const bool whole = p->ask.world && p->scaled.world == p->world;
  snprintf(world, sizeof world, "%dx%d", p->mesh->n_nodes, p->scaled.world / p->mesh->n_nodes);
  char *words = tc_sprintf("tercio prove \"%s\" --as-is --world \"%s\" --steps %d --seed %lld%s%.0d", path,
                           whole ? p->ask.world : world, p->ask.steps, (long long)p->ask.seed, p->ask.number ? " --break " : "",
                           p->ask.number);
  char *all = tc_sprintf("%s: %s\n%s", own_words, words, text);
  if (tc_output_text(path, &o, all, &err) < 0)
    tc_warn("there is no run file that repeats it: %s", err.text);
  else {
    say(p, "repeat it: %s\n", words);
    if (p->out) json_object_set_new(p->out, "repeat", json_string(words));
  }
  TC_FREE(text, words, all);
}

static void say_where(struct tc_proving *p, const struct tc_proof *f)
{
  int wrong = 0;
  for (int i = 0; i < f->n_params; i++) wrong += !(f->param[i].off[TC_PROOF_GRADIENT] <= f->tolerance[TC_PROOF_GRADIENT]);
  say(p, "DIFFERS: %s%s%.0d", f->worst, f->worst_step ? " in step " : "", f->worst_step);
  if (wrong) say(p, "; gradients of %d of %d parameters differ", wrong, f->n_params);
  say(p, "\n");
  for (int i = 0, n = 0; i < f->n_params && n < 8; i++)
    if (!(f->param[i].off[TC_PROOF_GRADIENT] <= f->tolerance[TC_PROOF_GRADIENT]) && ++n)
      say(p, "  gradient of %s: %.1e\n", f->param[i].name, f->param[i].off[TC_PROOF_GRADIENT]);
}

static int explain(struct tc_proving *p, const struct tc_proof *f, const struct tc_reference *ref,
                   const struct tc_proof_run *run, struct tc_blame *b, struct tc_err *err)
{
  struct tc_trail_end end = { .found = false };
  p->status = 1;
  say_where(p, f);
  tc_ticker_say(&p->ticker, "comparing activations");
  if (!f->failed) TC_TRY(tc_trail_find(&end, run, err));
  if (end.found)
    say(p, "it begins in the forward pass, at %s, which %s makes (rank %d, micro-batch %d: %.1e)\n", end.tensor, end.made,
        end.rank, end.mb, end.off);
  else if (!f->failed) say(p, "of %d activations of layers that were compared none differs\n", end.compared);
  TC_TRY(tc_blame_find(b, ref, run, tc_ticker_say, &p->ticker, err));
  for (int i = 0; i < b->n; i++) say(p, "it goes with %s\n", b->what[i]);
  if (!b->n) say(p, "it does not go away with any one axis, option or row left out\n");
  write_run(p, run->cfg);
  return 0;
}

/* ---- proofs ---------------------------------------------------------------------------- */

/* The layout with these types of activations and of gradients. */
static int prove_in(struct tc_proving *p, enum tc_dtype type, enum tc_dtype grad_type, struct tc_err *err)
{
  struct tc_config c = p->scaled.cfg;
  struct tc_reference *ref = NULL;
  struct tc_proof proof = { 0 };
  struct tc_blame b = { .n = 0 };
  c.train_precision = type;
  c.train_grad_type = grad_type;
  struct tc_proof_run run = run_of(p, &c, type == TC_BF16);
  const char *precision = type == TC_BF16 ? "bf16" : grad_type == TC_BF16 ? "fp32 with gradients in bf16" : "fp32";
  entitle(p, "one rank");
  TC_TRY(tc_reference_new(&ref, &run, err));
  entitle(p, "the layout");
  int rc = tc_prove(&proof, ref, &run, err);
  if (!rc && p->ask.number && !proof.faulted)
    rc = tc_fail(err, TC_EUSER, "--break %d: %s: this layout has no place for that", p->ask.number,
                 tc_break_what(p->ask.number));
  if (!rc) say(p, "%s, %d steps, device %s, beside one rank:\n", precision, p->ask.steps, run.device);
  if (!rc && !p->ask.json && !proof.failed) tc_prove_print(&proof);
  if (!rc && p->ask.number) say(p, "  planted: %s\n", proof.fault);
  if (*proof.fault_at.tensor) run.fault_at = &proof.fault_at;
  if (!rc && !proof.equal) rc = explain(p, &proof, ref, &run, &b, err);
  if (!rc && p->out)
    json_array_append_new(json_object_get(p->out, "proofs"), tc_prove_json(&proof, precision, run.device, &b));
  tc_blame_free(&b);
  tc_proof_free(&proof);
  tc_reference_free(ref);
  return rc;
}

/* One rank beside differences of its loss, without dropout, whose masks an evaluation does not have. */
static int against_differences(struct tc_proving *p, struct tc_err *err)
{
  struct tc_config c = p->scaled.cfg;
  struct tc_reference *ref = NULL;
  const char *name;
  double worst;
  c.train_precision = c.train_grad_type = TC_F32;
  c.train_dropout = 0;
  c.train_optimizer = TC_OPTIMIZER_ADAMW;        /* whose first moment is the gradient */
  struct tc_proof_run run = run_of(p, &c, false);
  run.f64 = true;
  run.large = false;
  run.device = "ref";
  entitle(p, "one rank in double precision, beside differences of its loss");
  TC_TRY(tc_reference_new(&ref, &run, err));
  const int n = tc_reference_differences(ref, &worst, &name);
  const bool good = n > 0 && worst <= 1e-6;
  if (!good) p->status = 1;
  say(p, "one rank in double precision: %d elements of its gradient are %.1e off differences of the loss at most (%s); "
      "tolerance 1e-6: %s\n", n, worst, name, good ? "equal" : "DIFFERS");
  if (p->out)
    json_object_set_new(p->out, "against_float64",
                        tc_out_object("elements=%d worst=%g parameter=%s equal!=%d", n, worst, name, good));
  tc_reference_free(ref);
  return 0;
}

static char *layout_words(const struct tc_config *c, const struct tc_config *than)
{
  struct tc_config_change change;
  char text[900] = "";
  for (int i = -1; (i = tc_config_next_change(than, c, i + 1, &change)) >= 0;)
    if (!strncmp(change.name, "mesh.", 5) || !strncmp(change.name, "parallel.", 9) || !strncmp(change.name, "train.", 6))
      tc_text_add(text, sizeof text, "%s--%s=%s", *text ? " " : "", change.name, change.is);
  return tc_strdup(text);
}

/* Draws until so many layouts are possible. */
static int prove_others(struct tc_proving *p, struct tc_err *err)
{
  enum { DRAWS_EACH = 40 };
  struct tc_config base = p->scaled.cfg;
  const struct tc_config *defaults = p->scaled.defaults;
  struct tc_reference *ref = NULL;
  int64_t equal = 0, refused = 0, differ = 0;
  base.train_precision = base.train_grad_type = TC_F32;
  base.parallel_annotations = defaults->parallel_annotations;
  base.mesh_stages = defaults->mesh_stages;
  base.train_global_batch = tc_round_up(base.train_global_batch, p->scaled.world);
  struct tc_proof_run run = run_of(p, &base, false);
  run.fault = 0;
  entitle(p, "one rank");
  TC_TRY(tc_reference_new(&ref, &run, err));
  run.progress = NULL;
  for (int64_t i = 0; equal + differ < p->ask.fuzz && i < DRAWS_EACH * p->ask.fuzz; i++) {
    struct tc_config c;
    struct tc_proof proof;
    struct tc_err why = { 0 };
    char what[80];
    snprintf(what, sizeof what, "layout %lld of %lld: %lld equal, %lld differ", (long long)(equal + differ + 1),
             (long long)p->ask.fuzz, (long long)equal, (long long)differ);
    tc_ticker_say(&p->ticker, what);
    tc_draw_layout(&c, &base, p->scaled.world, (uint64_t)p->ask.seed, (uint32_t)i);
    run.cfg = &c;
    const int rc = tc_prove(&proof, ref, &run, &why);
    *(rc ? &refused : proof.equal ? &equal : &differ) += 1;
    if (!rc && !proof.equal) {
      char *words = layout_words(&c, defaults);
      say(p, "DIFFERS: %s: %s\n", words, proof.worst);
      free(words);
      if (!p->status) write_run(p, &c);
      p->status = 1;
    }
    tc_proof_free(&proof);
  }
  say(p, "%lld layouts drawn from seed %lld: %lld equal one rank, %lld differ; %lld more are impossible\n",
      (long long)(equal + differ), (long long)p->ask.seed, (long long)equal, (long long)differ, (long long)refused);
  if (p->out)
    json_object_set_new(p->out, "fuzz", tc_out_object("layouts=%lld seed=%lld equal=%lld impossible=%lld differ=%lld",
      (long long)(equal + differ), (long long)p->ask.seed, (long long)equal, (long long)refused, (long long)differ));
  tc_reference_free(ref);
  return 0;
}

/* In fp32 first, where smaller faults show; then in the types in which the run computes: precision = auto is bf16 on GPUs. */
static int prove_types(struct tc_proving *p, struct tc_err *err)
{
  struct tc_config c = *p->cfg;
  tc_setup_precision(&c, c.run_device == TC_DEVICE_AUTO || c.run_device == TC_DEVICE_CUDA);
  TC_TRY(prove_in(p, TC_F32, TC_F32, err));
  if (p->status || (c.train_precision == TC_F32 && c.train_grad_type == TC_F32)) return 0;
  return prove_in(p, (enum tc_dtype)c.train_precision, (enum tc_dtype)c.train_grad_type, err);
}

static int prove_all(struct tc_proving *p, struct tc_err *err)
{
  struct tc_scaled *s = &p->scaled;
  const enum tc_scale_what what = p->ask.as_is ? TC_SCALE_NOTHING : p->ask.full_width ? TC_SCALE_DEPTH : TC_SCALE_ALL;
  TC_TRY(tc_scale(s, p->cfg, p->world, p->node, what, err));
  if (s->world > MOST_RANKS)
    return tc_fail(err, TC_EUSER, "%d ranks, without most of the data-parallel ones, are more than the %d threads that a proof "
                   "starts: a smaller mesh.pp, with the same layers a stage, proves as much", s->world, MOST_RANKS);
  TC_TRY(tc_setup_mesh(&p->mesh, &s->cfg, s->world, s->node_of_rank, 0, err));
  tc_prove_print_scaled(p);
  if (p->out) tc_prove_json_run(p);
  TC_TRY(prove_types(p, err));
  if (p->ask.against >= 0) TC_TRY(against_differences(p, err));
  if (p->ask.fuzz) TC_TRY(prove_others(p, err));
  if (!p->status) say(p, "equal: this layout computes what one rank computes\n");
  return 0;
}

static int prove_once(struct tc_proving *p, struct tc_err *err)
{
  char *path = NULL, *text = NULL;
  TC_TRY(find_ranks(p, err));
  if (!p->ask.once) return prove_all(p, err);
  TC_TRY(tc_prove_mark_of(&path, &text, p, err));
  const bool before = tc_prove_is_marked(path, text);
  int rc = 0;
  if (p->out) json_object_set_new(p->out, "proved_before", json_boolean(before));
  if (before)
    say(p, "proved before: %s\n", path);
  else {
    rc = prove_all(p, err);
    if (!rc && !p->status) rc = tc_prove_mark(p, path, text, err);
  }
  TC_FREE(path, text);
  return rc;
}

static int check(const struct tc_proving *p, struct tc_err *err)
{
  const struct tc_output_opts o = { .kind = &run_file, .flag = "-o" };
  if (p->ask.file) TC_TRY(tc_output_check(p->ask.file, &o, err));
  if (p->ask.number && !tc_break_what(p->ask.number))
    return tc_fail(err, TC_EUSER, "--break %d: there is no such fault", p->ask.number);
  return 0;
}

/* Where a sign decides how a weight moves, or a draw how a state is rounded, rounding does: a right layout would differ.
 * Gradients are taken from what all weights have. */
static void take_smooth_update(struct tc_config *c)
{
  if (c->train_state_type != TC_F32)
    tc_warn("train.state_type = %s rounds states at random, so that a difference in a last digit may become one in the third; the "
            "layout is proven with fp32", tc_word_train_state_type(c->train_state_type));
  c->train_state_type = TC_F32;
  if (c->train_muon_type == TC_BF16)
    tc_warn("train.muon_type = bf16 rounds the products of an update; the layout is proven with fp32");
  c->train_muon_type = TC_F32;
  if (*c->train_rows) {
    tc_warn("train.rows: the layout is proven with parameters that all train alike");
    c->train_rows = "";
  }
  if (tc_update_row[tc_update_of(c->train_optimizer, c->train_momentum)].smooth) return;
  tc_warn("train.optimizer = %s moves weights by the sign of their gradients, which rounding decides near 0; the layout is proven "
          "with adamw", tc_word_train_optimizer(c->train_optimizer));
  c->train_optimizer = TC_OPTIMIZER_ADAMW;
}

int tc_cmd_prove(int argc, char **argv)
{
  struct tc_proving p = { .ask = { .against = -1, .steps = 3, .seed = 1 } };
  struct tc_err err = { 0 };
  int rc = tc_args_run(&p.cfg, &flags, &p.ask, argc, argv, &err);
  if (!rc && p.cfg->n_stages) {
    tc_log("of the %d stages of the run the first is proved", p.cfg->n_stages + 1);
    p.cfg->n_stages = 0;
  }
  if (!rc) rc = check(&p, &err);
  if (!rc) take_smooth_update(p.cfg);
  if (!rc) rc = tc_trained_of_run(p.cfg, &err);
  if (!rc) rc = tc_ticker_start(&p.ticker, &err);
  if (!rc) {
    if (p.ask.json) p.out = json_pack("{s:[]}", "proofs");
    rc = prove_once(&p, &err);
    tc_ticker_stop(&p.ticker);
  }
  if (!rc && p.out) tc_out_json(p.out, JSON_INDENT(1));
  else json_decref(p.out);
  tc_mesh_free(p.mesh);
  tc_scaled_free(&p.scaled);
  tc_config_free(p.cfg);
  free(p.node);
  return rc < 0 ? tc_say_failure(&err) : p.status;
}
