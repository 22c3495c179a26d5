/* t_tune.c - the plans of products that the CUDA device chooses by time: the fastest is taken, and by
 * other ranks from its line; a line of another library, or a damaged one, is not. See scene.h. */
#include "tests/unit/kernels/scene.h"

#include <unistd.h>

/* On a GPU of a size for which the library has several plans; for some sizes it has one, and nothing to time. */
static int64_t M = 24, N = 40, K = 16;

static struct tc_view product(struct scene *s)
{
  clear(s);
  struct tc_view a = tensor(s, TC_F32, M * K, K, true), b = tensor(s, TC_F32, K * N, N, true);
  struct tc_view y = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(a, b, y))->gemm = (struct tc_gemm){ M, N, K, false, false, { 0 } };
  return y;
}

/* The plan that the emulated library ran: a product is the exact one times 1 + number / 2^20. -1: none of them. */
static int plan_that_ran(struct scene *s, struct tc_device *d)
{
  const struct tc_view y = product(s);
  char *want = run(s, ref, false), *got = run(s, d, false);
  double sum = 0;
  for (int64_t i = 0; want && got && i < y.elems; i++) {
    struct tc_view g = y, w = y;
    g.data = got + ((char *)y.data - s->at), w.data = want + ((char *)y.data - s->at);
    sum += ((double)get(&g, i) / (double)get(&w, i) - 1) * 0x1p20 / (double)y.elems;
  }
  const int n = want && got && fabs(sum - round(sum)) < 0.2 ? (int)round(sum) : -1;
  free(want);
  free(got);
  return n;
}

static int products;
static void again_at(void) { products++; }

/* The device's lines once the product is prepared; how many plans were timed. */
static char *lines(struct scene *s, struct tc_device *d, const char *known, bool time, int *timed)
{
  struct tc_err err = { 0 };
  char *text = NULL;
  *timed = -1;
  product(s);
  free(run(s, d, false));
  if (!ok(d->ops->tune(d, known, time, again_at, &text, timed, &err) == 0, "plans are chosen")) printf("# %s\n", err.text);
  return text ? text : tc_strdup("");
}

/* On any GPU: another device takes what one has timed, and has its bits. */
static void taken(struct scene *s)
{
  struct tc_device *one = fresh_cuda(), *two = fresh_cuda();
  int timed, again;
  char *mine = lines(s, one, "", true, &timed), *other = lines(s, two, mine, true, &again);
  const bool alone = on_gpu() && timed == 0 && !*mine;
  ok(alone || (timed == 1 && strchr(mine, '\n') == mine + strlen(mine) - 1), "a product is timed%s: %.*s",
     alone ? " if it has several plans" : "", (int)strcspn(mine, ":"), mine);
  is_int(again, 0, "... not by a device that gets the line");
  is_str(other, mine, "... which has the same");
  product(s);
  char *a = run(s, one, false), *b = run(s, two, false);
  ok(a && b && !memcmp(a, b, POOL_BYTES), "... and the same bits");
  free(a);
  free(b);
  free(mine);
  free(other);
  tc_device_close(one);
  tc_device_close(two);
}

static void fastest(struct scene *s)
{
  for (int fast = 0; fast < 3; fast++) {
    const char name[2] = { (char)('0' + fast), 0 };
    int timed;
    setenv("TC_EMU_BLASLT_FAST", name, 1);
    struct tc_device *d = fresh_cuda();
    char *text = lines(s, d, "", true, &timed);
    is_int(plan_that_ran(s, d), fast, "plan %d, which is the fastest, runs", fast);
    free(text);
    tc_device_close(d);
  }
}

/* A device on which another plan is the fastest, with lines: whose plan runs, and how many are timed. */
static void with(struct scene *s, const char *known, bool time, int plan, int timed, const char *what)
{
  int n;
  struct tc_device *d = fresh_cuda();
  char *text = lines(s, d, known, time, &n);
  ok(plan_that_ran(s, d) == plan && n == timed, "%s: plan %d, %d timed", what, plan, timed);
  free(text);
  tc_device_close(d);
}

static char *changed(const char *line, size_t at, char to)
{
  char *text = tc_strdup(line);
  TC_ASSERT(at < strlen(text) && text[at] != to);
  text[at] = to;
  return text;
}

static void known_lines(struct scene *s)
{
  int timed;
  setenv("TC_EMU_BLASLT_FAST", "2", 1);
  struct tc_device *d = fresh_cuda();
  char *line = lines(s, d, "", true, &timed);
  tc_device_close(d);
  const size_t plan = (size_t)(strstr(line, ": ") + 2 - line);
  const char *words = strchr(line + plan, ' ');
  char *others = tc_sprintf("x: y\n%s%s", "sm10x1 cublaslt1 1x1x1 nn f32 f32 plain: 00 1 of 1 us\n", line);
  char *no_hex = changed(line, plan + 3, 'g'), *no_plan = changed(line, plan + 2 * 32 + 1, '7');
  char *short_one = tc_sprintf("%.*s%s", (int)plan + 10, line, words), *cut = tc_sprintf("%.*s", (int)plan + 9, line);
  char *apart = tc_sprintf("%.*sapart 1 of 1 us\n", (int)plan, line);
  setenv("TC_EMU_BLASLT_FAST", "1", 1);
  with(s, line, true, 2, 0, "a known line");
  with(s, others, true, 2, 0, "... among others");
  with(s, line, false, 2, 0, "... with no timing");
  with(s, "", false, 0, 0, "no line and no timing: the library's first");
  with(s, no_hex, true, 1, 1, "a line that is no plan");
  with(s, no_plan, true, 1, 1, "a plan that the library does not have");
  with(s, short_one, true, 1, 1, "a plan with too few bytes");
  with(s, cut, true, 1, 1, "a line that is cut off");
  with(s, apart, true, 1, 1, "parts of a product that has none");
  setenv("TC_EMU_BLASLT_VERSION", "130100", 1);
  with(s, line, true, 1, 1, "a line of another version of the library");
  unsetenv("TC_EMU_BLASLT_VERSION");
  setenv("TC_EMU_MEMORY_MB", "24", 1);
  with(s, "", true, 0, -1, "no memory for operands");
  unsetenv("TC_EMU_MEMORY_MB");
  char *const all[] = { line, others, no_hex, no_plan, short_one, cut, apart };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Nanoseconds that products take on the emulated clock while plans are chosen without timing. */
static int64_t spent(struct scene *s, struct tc_device *d)
{
  int timed;
  d->ops->clock->restart(d);
  const int32_t from = d->ops->clock->event(d);
  free(lines(s, d, "", false, &timed));
  const int32_t to = d->ops->clock->event(d);
  d->ops->sync(d);
  return d->ops->clock->interval(d, from, to);
}

/* Where NCCL was joined each plan runs once, also if none is timed: the library's kernels are then loaded. */
static void loaded(struct scene *s)
{
  struct tc_device *d = fresh_cuda();
  struct tc_nccl *c = NULL;
  struct tc_err err = { 0 };
  char id[TC_NCCL_ID_BYTES];
  setenv("TC_EMU_BLASLT_FAST", "0", 1);
  const int64_t one = spent(s, d), alone = spent(s, d);
  ok(one == alone && one > 0, "without NCCL no product runs but the test's");
  ok(d->ops->nccl->id(d, id, &err) == 0 && d->ops->nccl->join(&c, d, id, 0, 1, NULL, &err) == 0, "NCCL is joined %s", err.text);
  products = 0;
  setenv("TC_EMU_MEMORY_MB", "24", 1);
  is_int(spent(s, d), one, "... nor where there is no memory for its operands");
  unsetenv("TC_EMU_MEMORY_MB");
  is_int(products, 1, "... progress is reported at each product");
  is_int(spent(s, d), 2 * one, "... else its plan runs once");
  is_int(spent(s, d), one, "... not again");
  d->ops->nccl->free(c, true);
  tc_device_close(d);
}

static void gradients(struct scene *s)
{
  clear(s);
  struct tc_view dy = tensor(s, TC_F32, K * M, M, false), x = tensor(s, TC_F32, K * N, N, false);
  struct tc_view db = tensor(s, TC_F32, M, M, false), dw = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dy, db))->acc = 1;
  call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, x, dw))->gemm = (struct tc_gemm){ M, N, K, true, false, { 0 } };
}

static void residual(struct scene *s)
{
  clear(s);
  struct tc_view x = tensor(s, TC_F32, M * K, K, false), w = tensor(s, TC_F32, K * N, N, false);
  struct tc_view y = tensor(s, TC_F32, M * N, N, false), other = tensor(s, TC_F32, M * N, N, false);
  struct tc_view sum = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(x, w, y))->gemm = (struct tc_gemm){ M, N, K, false, false, { 0 } };
  call(s, TC_OP_ADD, 2, 1, VIEW(other, y, sum));
}

static void sums(struct scene *s)
{
  clear(s);
  struct tc_view dy = tensor(s, TC_BF16, M * K, K, false), w = tensor(s, TC_BF16, K * N, N, false);
  struct tc_view dz = tensor(s, TC_BF16, M * N, N, false), x = tensor(s, TC_BF16, M * N, N, false);
  struct tc_view dx = tensor(s, TC_BF16, M * N, N, false), db = tensor(s, TC_F32, N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, w, dz))->gemm = (struct tc_gemm){ M, N, K, false, false, { 0 } };
  call(s, TC_OP_ACT_BWD, 2, 1, VIEW(dz, x, dx));
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dx, db))->acc = 1;
}

/* A product with GELU's gradient and its sums is timed beside the two of them: what has been taken as one call runs as
 * what is faster, all, two, or none of its parts. */
static void three(struct scene *s, const char *slow)
{
  static const char *const name[] = { " plain: ", " gelu_bwd: ", " gelu_bwd+bias_bwd: " };
  const bool two_apart = slow && !strcmp(slow, "yes");
  struct tc_err err = { 0 };
  struct tc_device *d = fresh_cuda();
  char *text = NULL;
  int timed;
  if (slow) setenv("TC_EMU_BLASLT_SLOW_FUSED", slow, 1);
  sums(s);
  free(run(s, d, true));
  ok(d->ops->tune(d, "", true, again_at, &text, &timed, &err) == 0 && timed == 3, "slow: %s: three are timed %s",
     slow ? slow : "none", err.text);
  for (int i = 0; i < 3; i++) {
    const char *at = text ? strstr(text, name[i]) : NULL;
    const bool apart = at && !strncmp(at + strlen(name[i]), "apart ", 6);
    ok(at && apart == (i == 2 ? slow != NULL : i == 1 && two_apart), "...%s is%s one", name[i], apart ? " not" : "");
  }
  s->asked = true;
  char *got = run(s, d, true), *want = run(s, ref, false);
  s->asked = false;
  const struct tc_view *db = &s->part[2].c.out[0];
  ok(got && want && difference(s, &s->part[1].c.out[0], got, want) < 8e-3, "... the gradient");
  const double off = got && want ? difference(s, db, got, want) : 1;
  ok(off < 1.6e-2, "... and its sums, off by %.1e", off);
  free(got);
  free(want);
  free(text);
  tc_device_close(d);
  unsetenv("TC_EMU_BLASLT_SLOW_FUSED");
}

/* A fused product whose parts are faster is no longer one; the product alone still has its plan. */
static void parts(struct scene *s, void (*fill)(struct scene *), const char *name, bool slow)
{
  struct tc_err err = { 0 };
  struct tc_device *d = fresh_cuda(), *other = fresh_cuda();
  char *text = NULL, *taken = NULL, *apart = tc_sprintf("%s: apart", name);
  int timed, again;
  fill(s);
  free(run(s, d, true));
  free(run(s, other, true));
  ok(d->ops->tune(d, "", true, again_at, &text, &timed, &err) == 0 && timed == 2, "%s: timed, and its product: %s", name, err.text);
  ok(text && !strstr(text, apart) == !slow, "... %s its parts", slow ? "slower than" : "faster than");
  char *got = run(s, d, true);
  ok(!got == slow, "... and is%s run as one", slow ? " not" : "");
  free(got);
  got = run(s, d, false);
  char *want = run(s, ref, false);
  ok(got && want, "... the parts are, by themselves");
  free(got);
  free(want);
  ok(other->ops->tune(other, text, true, again_at, &taken, &again, &err) == 0 && again == 0, "... as a device that gets the lines");
  got = run(s, other, true);
  ok(!strcmp(taken, text) && !got == slow, "... does it");
  free(got);
  free(text);
  free(taken);
  free(apart);
  tc_device_close(d);
  tc_device_close(other);
}

int main(void)
{
  alarm(600);
  struct scene *s = scene_new();
  if (on_gpu()) M = N = K = 512;
  taken(s);
  if (!on_gpu()) {
    fastest(s);
    known_lines(s);
    loaded(s);
    setenv("TC_EMU_BLASLT_FAST", "0", 1);
    three(s, NULL);
    three(s, "sums");
    three(s, "yes");
    for (int slow = 0; slow < 2; slow++) {
      if (slow) setenv("TC_EMU_BLASLT_SLOW_FUSED", "yes", 1);
      parts(s, gradients, "bias_bwd", slow);
      parts(s, residual, "plain+add", slow);
    }
  }
  scene_free(s);
  return done_testing();
}
