/* t_prove.c - src/prove: faults that are planted in sound layouts are found, and what is responsible is named; sound layouts
 * are not accused; what scale.c makes smaller divides as before.
 *
 * usage: t_prove.t [--full [LAYOUTS] [--bf16]]: all pairs of layout and fault that have a place, and so many sound layouts (200) */
#include "src/prove/prove.h"

#include <stdlib.h>
#include <string.h>

#include "src/program/setup.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

/* A layout by options of `tercio train`; ranks and nodes. */
struct layout { const char *name; int nodes, ranks; const char *option[14]; };
#define SMALL "--model.layers=2", "--model.hidden=16", "--model.heads=4", "--model.context=16", "--model.vocab=42"
static const struct layout layouts[] = {
  { "ddp", 1, 4, { SMALL, "--train.global_batch=12", "--train.micro_batch=1", "--train.dropout=0.1" } },
  { "zero1 x tp", 2, 2, { SMALL, "--mesh.tp=2", "--parallel.data=zero1", "--train.global_batch=8", "--train.micro_batch=2",
                          "--parallel.sequence=yes" } },
  { "zero2", 1, 4, { SMALL, "--parallel.data=zero2", "--train.global_batch=12", "--train.micro_batch=1" } },
  { "zero3 x tp", 2, 4, { SMALL, "--mesh.tp=2", "--parallel.data=zero3", "--train.global_batch=16", "--train.micro_batch=2" } },
  { "hsdp", 2, 2, { SMALL, "--mesh.shard=2", "--parallel.data=zero3", "--train.global_batch=8", "--train.micro_batch=1",
                    "--model.family=llama" } },
  { "heads", 1, 4, { SMALL, "--mesh.cp=2", "--parallel.context=heads", "--train.global_batch=4", "--model.family=llama",
                     "--data.documents=mask", "--data.end_token=1" } },
  { "keys x zero1", 1, 4, { SMALL, "--mesh.cp=2", "--parallel.data=zero1", "--train.global_batch=8", "--train.micro_batch=2",
                            "--train.recompute=full", "--train.dropout=0.1" } },
  { "1f1b", 2, 2, { SMALL, "--mesh.pp=2", "--parallel.data=zero1", "--train.global_batch=12", "--train.micro_batch=1",
                    "--parallel.schedule=1f1b" } },
  { "zb x tp", 2, 2, { SMALL, "--mesh.pp=2", "--mesh.tp=2", "--train.global_batch=6", "--train.micro_batch=1",
                       "--parallel.schedule=zb", "--parallel.sequence=yes" } },
  { "sgd x tp", 1, 4, { SMALL, "--mesh.tp=2", "--parallel.data=zero1", "--train.global_batch=8", "--train.optimizer=sgd",
                        "--model.family=llama" } },
  { "deep", 1, 4, { SMALL, "--model.layers=31", "--mesh.pp=4", "--train.global_batch=24", "--train.micro_batch=1",
                    "--parallel.schedule=interleaved", "--parallel.virtual_stages=7" } },
};
static bool full, bf16;
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

struct one { struct tc_config *c; struct tc_reference *ref; struct tc_proof_run run; int32_t node[16]; };

static void make(struct one *x, const struct layout *l, const char *more)
{
  char *argv[20] = { (char *)(uintptr_t)"t" };
  int n = 1;
  struct tc_err err;
  for (; l->option[n - 1]; n++) argv[n] = (char *)(uintptr_t)l->option[n - 1];
  if (more) argv[n++] = (char *)(uintptr_t)more;
  if (bf16) argv[n++] = (char *)(uintptr_t)"--train.precision=bf16";
  if (tc_config_new(&x->c, n, argv, &err) < 0) printf("# %s\n", err.text), abort();
  for (int i = 0; i < l->nodes * l->ranks; i++) x->node[i] = i / l->ranks;
  x->run = (struct tc_proof_run){ .cfg = x->c, .world = l->nodes * l->ranks, .node_of_rank = x->node, .device = bf16 || l->ranks % 4 ? "ref" : "cpu",
                                  .steps = 3, .seed = test_seed(full), .poison = true };
  if (tc_reference_new(&x->ref, &x->run, &err) < 0) printf("# %s\n", err.text), abort();
}

static void done(struct one *x)
{
  tc_reference_free(x->ref);
  tc_config_free(x->c);
}

static struct tc_proof prove(const struct one *x)
{
  struct tc_proof p;
  struct tc_err err;
  const int rc = tc_prove(&p, x->ref, &x->run, &err);
  if (rc) printf("# %s\n", err.text);
  if (rc) p.equal = false, snprintf(p.worst, sizeof p.worst, "%.190s", err.text);
  return p;
}

/* How near the tolerances sound layouts come: the largest difference by its tolerance. */
static void nearest(double most[TC_PROOF_PARTS + 2], const struct tc_proof *p)
{
  for (int k = 0; k < TC_PROOF_PARTS; k++)
    for (int i = 0; i < p->n_params; i++) most[k] = TC_MAX(most[k], p->param[i].off[k] / p->tolerance[k]);
  for (int i = 0; i <= p->steps; i++) most[TC_PROOF_PARTS] = TC_MAX(most[TC_PROOF_PARTS], p->loss[i] / p->loss_tolerance[i]);
  for (int i = 0; i < p->steps; i++) most[TC_PROOF_PARTS + 1] = TC_MAX(most[TC_PROOF_PARTS + 1], p->norm[i] / p->norm_tolerance[i]);
}

/* That what is rounding is far from what is not. */
static void check_margins(const double most[TC_PROOF_PARTS + 2])
{
  double all = 0;
  for (int k = 0; k < TC_PROOF_PARTS + 2; k++) {
    all = TC_MAX(all, most[k]);
    printf("# %s: %.3f of the tolerance at most\n", k < TC_PROOF_PARTS ? tc_proof_part_name[k] : k == TC_PROOF_PARTS ? "loss" : "norm",
           most[k]);
  }
  ok(all < 0.5, "sound layouts are below half of the tolerances: %.3f", all);
}

static void check_sound(void)
{
  double most[TC_PROOF_PARTS + 2] = { 0 };
  for (int i = 0; i < LAYOUTS; i++) {
    struct one x;
    make(&x, &layouts[i], NULL);
    struct tc_proof p = prove(&x);
    ok(p.equal, "%s equals one rank: %s %s", layouts[i].name, p.worst, p.unpredicted);
    if (!p.failed) nearest(most, &p);
    tc_proof_free(&p);
    done(&x);
  }
  check_margins(most);
}

static bool names_parameter(const struct tc_proof *p)
{
  for (int i = 0; i < p->n_params; i++)
    if (strstr(p->worst, p->param[i].name)) return true;
  return false;
}

struct tally { int planted, found, named, placed; };

static void plant(struct one *x, const struct layout *l, int fault, struct tally *t)
{
  struct tc_err err;
  struct tc_blame b = { .n = 0 };
  x->run.fault = fault;
  struct tc_proof p = prove(x);
  if (p.faulted) {
    t->planted++;
    t->found += !p.equal;
    t->named += !p.equal && names_parameter(&p);
    x->run.fault_at = *p.fault_at.tensor ? &p.fault_at : NULL;
    if (!p.equal && tc_blame_find(&b, x->ref, &x->run, NULL, NULL, &err) < 0) printf("# %s\n", err.text);
    t->placed += b.n > 0;
    printf("# %s, fault %d (%s): %s; %s%s\n", l->name, fault, p.fault, p.equal ? "NOT FOUND" : p.worst, b.n ? b.what[0] : "goes with nothing",
         b.n > 1 ? " and more" : "");
  }
  tc_blame_free(&b);
  tc_proof_free(&p);
  x->run.fault = 0;
  x->run.fault_at = NULL;
}

/* each: every so many of the pairs. */
static void check_faults(int each)
{
  struct tally t = { 0 };
  int n = 0;
  for (int i = 0; i < LAYOUTS; i++) {
    struct one x;
    make(&x, &layouts[i], NULL);
    for (int fault = 1; tc_break_what(fault); fault++)
      if (n++ % each == 0) plant(&x, &layouts[i], fault, &t);
    done(&x);
  }
  printf("# %d programs broken, %d found, tensor named in %d, axis, option or row in %d\n", t.planted, t.found, t.named, t.placed);
  ok(t.planted > 0, "there are places for faults");
  /* In bf16 the small ones are left to the proof in fp32 that precedes it. */
  ok(t.found * (bf16 ? 6 : 1) >= t.planted * (bf16 ? 5 : 1), "faults that were planted are found: %d of %d", t.found, t.planted);
  is_int(t.named, t.found, "... with the tensor");
  ok(t.placed * 6 >= t.found * 5, "... and what it goes with, in five of six");
}

static void check_drawn(int n)
{
  static const struct layout base = { "drawn", 1, 8, { SMALL, "--train.global_batch=16", "--model.family=llama" } };
  struct one x;
  int equal = 0, refused = 0, wrong = 0;
  double most[TC_PROOF_PARTS + 2] = { 0 };
  make(&x, &base, "--model.kv_heads=2");
  for (int i = 0; equal + wrong < n && i < 40 * n; i++) {
    struct tc_config c;
    struct tc_proof p;
    struct tc_err err;
      tc_draw_layout(&c, x.c, 8, test_seed(full), (uint32_t)i);
    x.run.cfg = &c;
    const int rc = tc_prove(&p, x.ref, &x.run, &err);
    if (rc) refused++;
    else if (!p.equal) wrong++, printf("# layout %d: %s\n", i, rc ? err.text : p.worst);
    else equal++, nearest(most, &p);
    tc_proof_free(&p);
  }
  printf("# %d equal, %d impossible\n", equal, refused);
  check_margins(most);
  ok(equal > 0, "some of the layouts that are drawn are possible");
  is_int(wrong, 0, "none of %d layouts is accused", equal + wrong);
  done(&x);
}

/* ---- scale.c: whole runs, drawn --------------------------------------------------------- */

static int64_t pick(uint64_t number, uint32_t what, int n, const int64_t *of)
{
  uint32_t r[4];
  tc_philox(r, test_seed(full), number, what);
  return of[r[0] % (uint32_t)n];
}
#define PICK(number, what, ...) \
  pick(number, what, sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), (int64_t[]){ __VA_ARGS__ })

/* A run as people have it, on a drawn layout. */
static struct tc_config *draw_whole(struct tc_config *out, uint64_t i, int world)
{
  char *none[] = { (char *)(uintptr_t)"t" };
  struct tc_config *c;
  struct tc_err err;
  if (tc_config_new(&c, 1, none, &err) < 0) abort();
  const int64_t kv = PICK(i, 0, 1, 2, 4, 8, 12, 25, 40), groups = PICK(i, 1, 1, 1, 2, 4, 5, 8);
  c->model_family = (int)PICK(i, 2, TC_FAMILY_GPT2, TC_FAMILY_LLAMA, TC_FAMILY_QWEN3, TC_FAMILY_GEMMA3, TC_FAMILY_OLMO2);
  c->model_kv_heads = kv;
  c->model_heads = kv * groups;
  c->model_head_dim = PICK(i, 3, 64, 128, 80);
  c->model_hidden = PICK(i, 4, 768, 1600, 4096, 8192);
  c->model_ffn = PICK(i, 5, 3072, 14336, 11008);
  c->model_layers = PICK(i, 6, 12, 13, 24, 32, 48);
  c->model_vocab = PICK(i, 7, 256, 32000, 50257, 128256);
  c->model_context = PICK(i, 8, 1024, 2048, 8192, 1536);
  c->train_global_batch = world * PICK(i, 9, 1, 4, 12);
  tc_draw_layout(out, c, world, test_seed(full), (uint32_t)i);
  return c;
}

/* What has to divide alike. */
static bool is_scaled_alike(const struct tc_config *a, const struct tc_config *b)
{
  const int64_t by[] = { a->mesh_tp, a->mesh_cp, a->mesh_tp * a->mesh_cp };
  const int64_t stages = a->mesh_pp * (a->mesh_pp == 1 ? 1 : a->parallel_schedule == TC_SCHEDULE_INTERLEAVED ? 2 : 1);
  bool alike = a->model_layers % stages == b->model_layers % stages && b->model_layers >= TC_MIN(2, a->model_layers);
  for (int i = 0; i < 3; i++)
    alike &= (a->model_heads % by[i] == 0) == (b->model_heads % by[i] == 0) && (a->model_ffn % by[i] == 0) == (b->model_ffn % by[i] == 0)
          && (a->model_kv_heads % by[i] == 0) == (b->model_kv_heads % by[i] == 0)
          && (a->model_kv_heads > by[i]) == (b->model_kv_heads > by[i]);
  return alike && (a->model_heads > a->model_kv_heads) == (b->model_heads > b->model_kv_heads);
}

static void check_scaled(int n)
{
  int possible = 0, equal = 0, alike = 0;
  for (int i = 0; possible < n && i < 100 * n; i++) {
    const int world = (int)PICK((uint64_t)i, 20, 2, 4, 6, 8, 12, 16);
    struct tc_config whole, *base = draw_whole(&whole, (uint64_t)i, world);
    int32_t node[16];
    struct tc_scaled s;
    struct tc_err err;
    for (int k = 0; k < world; k++) node[k] = k * 2 / world;
    int rc = tc_scale(&s, &whole, world, node, TC_SCALE_ALL, &err);
    if (!rc) {
      struct tc_reference *ref = NULL;
      struct tc_proof p = { .n_params = 0 };
      const struct tc_proof_run run = { .cfg = &s.cfg, .world = s.world, .node_of_rank = s.node_of_rank, .device = "ref", .steps = 2, .seed = 5 };
      possible++;
      alike += is_scaled_alike(&whole, &s.cfg);
      rc = tc_reference_new(&ref, &run, &err);
      if (!rc) rc = tc_prove(&p, ref, &run, &err);
      equal += !rc && p.equal;
      if (rc || !p.equal || !is_scaled_alike(&whole, &s.cfg)) printf("# whole run %d: %s\n", i, rc ? err.text : p.worst);
      tc_proof_free(&p);
      tc_reference_free(ref);
    }
    tc_scaled_free(&s);
    tc_config_free(base);
  }
  ok(possible > 0, "some of the whole runs that are drawn are possible");
  is_int(equal, possible, "... all of these are possible, and equal one rank, when they are made small");
  is_int(alike, possible, "... in which the same numbers of ranks divide heads, groups, MLP and layers");
}

int main(int argc, char **argv)
{
  bf16 = argc > 3 && !strcmp(argv[3], "--bf16");
  full = argc > 1 && !strcmp(argv[1], "--full");
  check_sound();
  check_faults(full ? 1 : 17);
  check_scaled(full ? 200 : 10);
  check_drawn(!full ? 6 : argc > 2 ? atoi(argv[2]) : 200);
  return done_testing();
}
