/* fuzz_place.c - models of every family on random layouts, most with files of annotations:
 * what is accepted gives one rank's gradients, what is not gets a sentence.
 *
 * usage: fuzz_place.t [--full | --cases N] [--seed N] [--only CASE] [--bare] [--verbose] [--write DIR]
 *        fuzz_place.t --try ROWS.txt [--f64] --mesh.tp=2 ...      one layout by hand; "": without rows
 *
 * 60 cases, 2,000 with --full; the seed is test_seed's unless it is given. A case draws
 * a model, rows, mesh, system, micro-batch, recomputation, offload, schedule and more, and takes the way of
 * a user's run file: configuration, mesh, programs, three steps of training on ranks that are threads,
 * buffers filled with NaN when they are free. AdamW's m after the first step, without clipping, is the
 * gradient: each rank compares all that it stores of it with the one-rank run, each tensor relative to its
 * norm, within 1e-6, and losses and the norm within 1e-5 (in bf16 5e-2, losses 1e-2). Memory, calls and bytes
 * of each rank are those predicted. Some layouts (20 with --full) are compared with finite differences too.
 * Layouts that once failed come first. Each case is a process of its own, so that a fault, a signal or a
 * wait without end is counted and the next case runs. --write keeps the accepted ones for f_place, which
 * runs them through `tercio train`. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/fuzz/place_run.h"

/* LIMIT_S is for a wait without end. Finite differences of a case take 20 s of one core of a fast machine with the address
 * sanitizer: up to minutes on a slow one that does other work. */
enum { SHORT = 60, FULL = 2000, DIFFERENCES = 20, LIMIT_S = 900 };

/* ---- the cases ------------------------------------------------------------------------ */

static void one_process(struct draw *d, struct outcome *out)
{
  fflush(stdout);
  pid_t pid = fork();
  TC_ASSERT(pid >= 0);
  if (pid == 0) {
    alarm(LIMIT_S);
    run_case(d, out);
    _exit(0);
  }
  int status;
  while (waitpid(pid, &status, 0) < 0) {}
  if (WIFSIGNALED(status)) {
    out->result = FAULT;
    snprintf(out->text, sizeof out->text, "ended by signal %d%s", WTERMSIG(status),
             WTERMSIG(status) == SIGALRM ? ": out of time" : "");
  }
}

static void show(const struct fuzz *f, const struct draw *d, const struct outcome *o)
{
  static const char *const name[] = { "refused", "right", "WRONG", "FAULT" };
  printf("# case %llu of seed %llu, %s: %s, gradient %.1e, its norm %.1e, loss %.1e, finite differences %.1e\n#  ",
         (unsigned long long)f->cases, (unsigned long long)f->seed, name[o->result], o->text,
         o->gradient, o->norm, o->loss, o->difference);
  for (int i = 0; i < d->n_flags; i++)
    if (strncmp(d->flag[i], "--parallel.annotations", 22)) printf(" %s", d->flag[i]);
  printf(" (%s)\n", d->device);
  for (const char *x = d->rows; *x; x += strcspn(x, "\n") + 1)
    printf("#      %.*s\n", (int)strcspn(x, "\n"), x);
}

/* DIR/CASE.rows, and options of `tercio train`: of the model in CASE.own, of the layout in
 * CASE.layout. */
static void write_case(const char *dir, const struct fuzz *f, const struct draw *d)
{
  static const char *const end[] = { "rows", "own", "layout" };
  FILE *out[3];
  for (int i = 0; i < 3; i++) {
    char *path = tc_sprintf("%s/%llu.%s", dir, (unsigned long long)f->cases, end[i]);
    out[i] = fopen(path, "w");
    TC_ASSERT(out[i]);
    free(path);
  }
  fputs(d->rows, out[0]);
  for (int i = 0; i < d->n_flags; i++)
    if (strncmp(d->flag[i], "--parallel.annotations", 22))
      fprintf(out[is_own(d->flag[i]) ? 1 : 2], "%s\n", d->flag[i]);
  fprintf(out[2], "--run.ranks=%d\n--run.device=%s\n", ranks_of(d), d->device);
  for (int i = 0; i < 3; i++) TC_ASSERT(fclose(out[i]) == 0);
}

/* A layout by hand: a file of rows, and options as a case has them. */
static int try_one(int argc, char **argv, bool verbose, struct outcome *out)
{
  struct fuzz f = { 0 };
  struct draw d = { .f = &f, .pp = 1, .dp = 1, .cp = 1, .tp = 1, .device = "ref" };
  static const char *const toy[] = { "--model.layers=1", "--model.hidden=16", "--model.heads=4",
    "--model.context=8", "--model.vocab=32", "--train.global_batch=4", "--parallel.data=none" };
  for (size_t i = 0; i < sizeof toy / sizeof *toy; i++) flag(&d, "%s", toy[i]);
  for (int i = 3; i < argc; i++) {
    d.f64 |= !strcmp(argv[i], "--f64");
    if (!strcmp(argv[i], "--f64")) continue;
    flag(&d, "%s", argv[i]);
    d.bf16 |= !strcmp(argv[i], "--train.precision=bf16");
    if (!strncmp(argv[i], "--run.device=", 13)) d.device = argv[i] + 13;
    if (!strncmp(argv[i], "--mesh.pp=", 10)) d.pp = atoi(argv[i] + 10);
    if (!strncmp(argv[i], "--mesh.dp=", 10)) d.dp = atoi(argv[i] + 10);
    if (!strncmp(argv[i], "--mesh.cp=", 10)) d.cp = atoi(argv[i] + 10);
    if (!strncmp(argv[i], "--mesh.tp=", 10)) d.tp = atoi(argv[i] + 10);
  }
  if (*argv[2]) flag(&d, "--parallel.annotations=%s", argv[2]);
  one_process(&d, out);
  if (verbose || out->result != RIGHT) show(&f, &d, out);
  draw_free(&d);
  return out->result != RIGHT;
}

/* Layouts that were accepted, but not compiled: the reason is beside the rows. */
static const struct { const char *rows, *flag[5]; } mended[] = {
  { "max dp at(0)\n",               /* a reshard of rows amid the loss head */
    { "--mesh.dp=2", "--mesh.tp=2", "--parallel.data=ddp", "--parallel.head_chunk=4" } },
  { "ln_f.weight dp R\nmax dp at(0)\n",
    { "--mesh.dp=2", "--mesh.tp=2", "--parallel.data=zero3", "--parallel.head_chunk=4" } },
  { "sumexp dp at(1)\n",
    { "--mesh.dp=2", "--mesh.tp=2", "--parallel.data=zero1", "--parallel.head_chunk=8" } },
  { "*.ln_1 tp S(0)\n*.attn.proj tp S(0)\n*.residual tp S(1)\nrstd dp at(1)\n"   /* a bucket that depended on itself */
    "* dp S(0) R S(0) S(0) mb\nh.*.mlp.proj.weight tp S(1) R P S(1)\n",
    { "--mesh.dp=2", "--mesh.tp=2", "--parallel.data=zero1", "--parallel.offload=params", "--parallel.head_chunk=3" } },
  { "h.0.mlp.fc.weight tp S(1) at(1) S(1) S(0) use\n",        /* blocks of a tensor of the host were packed on the device */
    { "--mesh.dp=2", "--mesh.tp=2", "--parallel.data=zero2", "--parallel.offload=update", "--run.device=cuda" } },
};

static void check_mended(struct fuzz *f, struct outcome *out)
{
  for (size_t i = 0; i < sizeof mended / sizeof *mended; i++) {
    fuzz_write(f, mended[i].rows, strlen(mended[i].rows));
    char *argv[8] = { NULL, NULL, f->path };
    int argc = 3;
    for (; argc < 8 && mended[i].flag[argc - 3]; argc++) {
      const char *flag = mended[i].flag[argc - 3];
      if (!strcmp(flag, "--run.device=cuda") && !*tc_env("TC_EMU_MODULES")) flag = "--run.device=ref";
      argv[argc] = (char *)(uintptr_t)flag;
    }
    memset(out, 0, sizeof *out);
    ok(try_one(argc, argv, false, out) == 0, "layout %zu, which once could not be run, gives one rank's gradients", i);
  }
}

/* What the cases were so far. */
struct tally {
  int n[RESULTS], of_family[TC_FAMILY_PHI3 + 1], wide;
  int by_differences, elements, off;             /* beside finite differences */
  int rounded;                                   /* beyond fp32's or bf16's tolerance, and right in double precision */
  double worst, worst_bf16, worst_difference;
};

static void count(struct tally *t, const struct draw *d, const struct outcome *out)
{
  t->n[out->result]++;
  if (out->result != RIGHT) return;
  t->of_family[d->family]++;
  t->wide += out->tensors >= 3 && out->axes >= 2;
  double *worst = d->bf16 ? &t->worst_bf16 : &t->worst;
  *worst = TC_MAX(*worst, out->gradient);
}

/* The case again, in double precision beside finite differences. */
static void compare_again(struct tally *t, struct draw *d, struct outcome *out)
{
  d->f64 = true;
  d->device = "ref";
  flag(d, "--train.precision=fp32");
  flag(d, "--train.dropout=0");
  flag(d, "--train.lora_dropout=auto");
  flag(d, "--model.z_loss=0");                   /* which an evaluation, of which the differences are, does not have */
  memset(out, 0, sizeof *out);
  one_process(d, out);
  t->by_differences++;
  t->elements += out->compared;
  t->worst_difference = TC_MAX(t->worst_difference, out->difference);
  t->off += out->result != RIGHT;
}

/* Norms after a layer's halves, or over small heads, can enlarge the rounding of what they divide. So a case that is off by a
 * little is judged by double precision. */
static void judge_rounding(struct tally *t, struct draw *d, struct outcome *out)
{
  const struct outcome first = *out;
  if (first.result != WRONG || !(first.gradient < (d->bf16 ? 0.3 : 1e-4))) return;
  compare_again(t, d, out);
  if (out->result != RIGHT) return;
  *out = first;
  out->result = RIGHT;
  t->rounded++;
}

static void check_tally(const struct tally *t, const struct fuzz *f, bool only)
{
  char families[400] = "";
  for (int i = TC_FAMILY_GPT2; i <= TC_FAMILY_PHI3; i++)
    tc_text_add(families, sizeof families, "%s%d %s", i > TC_FAMILY_GPT2 ? ", " : "", t->of_family[i], tc_word_model_family(i));
  printf("# %llu cases of seed %llu: %d right (%s), %d of them place three tensors or more on two axes, "
         "%d refused; the worst gradient is off by %.1e, in bf16 by %.1e\n", (unsigned long long)f->cases,
         (unsigned long long)f->seed, t->n[RIGHT], families, t->wide, t->n[REFUSED], t->worst, t->worst_bf16);
  ok(t->n[RIGHT] > 0 || only, "some layouts are accepted");
  is_int(t->n[WRONG], 0, "layouts that are accepted give one rank's gradients and losses");
  is_int(t->n[FAULT], 0, "none ends in a fault, a signal or a wait without end");
  printf("# %d layouts were off by more than rounding usually is, and right in double precision\n", t->rounded);
  printf("# %d layouts beside finite differences in double precision: %d elements, off by %.1e at most\n",
         t->by_differences, t->elements, t->worst_difference);
  is_int(t->off, 0, "%d layouts give the finite differences of the loss", t->by_differences);
}

int main(int argc, char **argv)
{
  struct fuzz f;
  struct tally t = { 0 };
  bool verbose = false, bare = false, full = false;
  bool counted = false, only = false;
  const char *dir = NULL;
  fuzz_start(&f, argc, argv);
  if (*tc_env("TC_EMU_MODULES")) setenv("TERCIO_MODULES", tc_env("TC_EMU_MODULES"), 1);
  for (int i = 1; i < argc; i++) {
    only |= !strcmp(argv[i], "--only");
    counted |= only || !strcmp(argv[i], "--cases");
    full |= !strcmp(argv[i], "--full");
    verbose |= !strcmp(argv[i], "--verbose");
    bare |= !strcmp(argv[i], "--bare");
    if (!strcmp(argv[i], "--write")) dir = argv[i + 1];
  }
  if (!counted) f.most_cases = full ? FULL : SHORT;
  struct outcome *out = mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                             -1, 0);
  TC_ASSERT(out != MAP_FAILED);
  if (argc > 2 && !strcmp(argv[1], "--try")) return try_one(argc, argv, true, out);
  const int most = f.most_cases >= FULL ? DIFFERENCES : 3;
  if (!only) check_mended(&f, out);
  while (fuzz_more(&f)) {
    struct draw d = { .f = &f, .bare = bare };
    draw_case(&d);
    fuzz_write(&f, d.rows, strlen(d.rows));
    if (*d.rows) flag(&d, "--parallel.annotations=%s", f.path);
    memset(out, 0, sizeof *out);
    one_process(&d, out);
    judge_rounding(&t, &d, out);
    count(&t, &d, out);
    if (verbose || out->result == WRONG || out->result == FAULT) show(&f, &d, out);
    if (out->result == RIGHT && dir && !d.bf16 && strcmp(d.device, "cuda")) write_case(dir, &f, &d);
    if (out->result == RIGHT && !d.f64 && t.by_differences < most && f.cases % 3 == 0) {
      compare_again(&t, &d, out);
      if (verbose || out->result != RIGHT) show(&f, &d, out);
    }
    draw_free(&d);
  }
  check_tally(&t, &f, only);
  return done_testing();
}
