/* t_attention.c - attention by the CUDA device's library (cudnn.cu): which calls it takes, its results beside ref's and
 * the own kernels', forward and backward, and the reason given where it is not there. The emulated library is
 * tests/emu/cudnn.cc; with TC_TEST_GPU=yes it is cuDNN on a GPU, if this build has it. */
#include "tests/unit/kernels/scene.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

static bool any_order;           /* run.deterministic = no */
static int64_t library_bytes;    /* a small one cuts a micro-batch into many calls */
static int64_t window;           /* of the calls; 0: none, as of the next two */
static float scale, cap;

struct sizes { int64_t B, T, H, D; int groups, dtype; bool documents; };
enum { B16 = TC_BF16, F32 = TC_F32 };

/* Forward, then backward of its outputs. Views: dy qkv y lse dqkv. */
static void attention(struct scene *s, const struct sizes *z)
{
  const int64_t N = z->B * z->T, K = z->H / z->groups, heads = K * (z->groups + 2), D = z->D;
  clear(s);
  random_state = 1;
  struct tc_view qkv = tensor(s, z->dtype, N * heads * D, D, false), y = tensor(s, z->dtype, N * z->H * D, D, false);
  struct tc_view dy = tensor(s, z->dtype, N * z->H * D, D, false), lse = tensor(s, TC_F32, N * z->H, z->H, false);
  struct tc_view dqkv = tensor(s, z->dtype, N * heads * D, D, false), starts = tensor(s, TC_F32, N, 1, false);
  qkv.rank = dqkv.rank = 4;
  const int64_t dim[4] = { N, K, z->groups + 2, D };
  memcpy(qkv.dim, dim, sizeof dim);
  memcpy(dqkv.dim, dim, sizeof dim);
  starts.dtype = TC_I32, starts.rank = 1;
  memset(starts.data, 0, (size_t)N * 4);
  call(s, TC_OP_ATTN, 1 + z->documents, 2, z->documents ? VIEW(qkv, starts, y, lse) : VIEW(qkv, y, lse))->k[0] = z->T;
  call(s, TC_OP_ATTN_BWD, 4 + z->documents, 1,
       z->documents ? VIEW(dy, qkv, y, lse, starts, dqkv) : VIEW(dy, qkv, y, lse, dqkv))->k[0] = z->T;
  for (int i = 0; i < 2; i++) s->part[i].c.f[0] = scale, s->part[i].c.f[1] = cap, s->part[i].c.k[2] = window;
}

static struct tc_device *fresh(void)
{
  struct tc_device *d = fresh_cuda();
  d->library = true;
  d->any_order = any_order, d->library_bytes = library_bytes;
  return d;
}

/* Prepares the calls, asks whether the library can; text: what it says. */
static int plans(struct scene *s, struct tc_device *d, const struct sizes *z, char text[300])
{
  attention(s, z);
  free(run(s, d, false));
  return d->ops->library->can(d, text, 300);
}

static void takes(struct scene *s, const struct sizes *z, bool want, const char *what)
{
  char text[300] = "";
  struct tc_device *d = fresh();
  is_int(plans(s, d, z, text), want, "%s: %s (%s)", what, want ? "a plan" : "none", text);
  tc_device_close(d);
}

/* Calls that are only prepared: 2^31 numbers and more are left to the own kernels. */
static void large(int64_t sequences, bool want)
{
  struct tc_device *d = fresh();
  struct tc_err err = { 0 };
  struct tc_view in = { .dtype = TC_BF16, .rank = 4, .dim = { sequences * 1024, 16, 3, 128 } }, out[2] = { 0 };
  struct tc_call c = { .op = TC_OP_ATTN, .n_in = 1, .n_out = 2, .in = &in, .out = out, .k = { 1024 } };
  in.elems = in.dim[0] * 16 * 3 * 128;
  is_int(d->ops->kernel[TC_OP_ATTN].prepare(d, &c, &err), 0, "prepared: %lld numbers %s", (long long)in.elems,
         err.text);
  is_int(c.plan != NULL, want, "... %s for the library", want ? "few enough" : "too many");
  if (d->ops->kernel[TC_OP_ATTN].unprepare) d->ops->kernel[TC_OP_ATTN].unprepare(d, &c);
  tc_device_close(d);
}

static void which(struct scene *s)
{
  takes(s, &(struct sizes){ 2, 128, 2, 64, 1, B16, false }, true, "bf16, heads of 64");
  takes(s, &(struct sizes){ 1, 256, 1, 128, 1, B16, false }, true, "heads of 128");
  takes(s, &(struct sizes){ 1, 128, 3, 8, 1, B16, false }, true, "heads of 8");
  takes(s, &(struct sizes){ 2, 128, 2, 64, 1, F32, false }, false, "fp32");
  takes(s, &(struct sizes){ 2, 128, 2, 64, 2, B16, false }, true, "two queries that share a key");
  takes(s, &(struct sizes){ 2, 128, 6, 64, 3, B16, false }, true, "... in two groups of three");
  takes(s, &(struct sizes){ 2, 128, 2, 64, 1, B16, true }, false, "documents");
  takes(s, &(struct sizes){ 2, 64, 2, 64, 1, B16, false }, false, "64 tokens");
  takes(s, &(struct sizes){ 1, 192, 2, 64, 1, B16, false }, false, "192 tokens");
  takes(s, &(struct sizes){ 1, 128, 2, 136, 1, B16, false }, false, "heads of 136");
  takes(s, &(struct sizes){ 1, 128, 2, 20, 1, B16, false }, false, "heads of 20");
  window = 200, takes(s, &(struct sizes){ 1, 256, 2, 64, 1, B16, false }, false, "a window"), window = 0;
  cap = 30, takes(s, &(struct sizes){ 1, 256, 2, 64, 1, B16, false }, false, "a cap"), cap = 0;
  scale = 0.2f, takes(s, &(struct sizes){ 1, 256, 2, 64, 1, B16, false }, true, "a scale"), scale = 0;
  large(341, true);
  large(342, false);
}

/* Of the calls' outputs: y, dqkv. */
static double worst(const struct scene *s, char *got, char *want)
{
  const double y = difference(s, &s->part[0].c.out[0], got, want);
  const double d = difference(s, &s->part[1].c.out[0], got, want);
  return !(y <= d) ? y : d;
}

/* What the library computes beside ref, and what the own kernels do after it. */
static void results(struct scene *s, const struct sizes *z)
{
  char text[300] = "";
  struct tc_device *d = fresh();
  const struct tc_library *l = d->ops->library;
  const int n = plans(s, d, z, text);
  ok(n == 1 && !strncmp(text, "cuDNN ", 6), "[%d, %d, %d, %d], %d of them with one key, %s order: %s", (int)z->B,
     (int)z->T, (int)z->H, (int)z->D, z->groups, any_order ? "any" : "one", text);
  attention(s, z);
  char *want = run(s, ref, false), *own = run(s, d, false);
  l->use(d, true);
  char *got = run(s, d, false);
  for (int i = 0; i < 3 && !any_order; i++) {
    char *same = run(s, d, false);
    ok(same && got && !memcmp(same, got, POOL_BYTES), "... the same bits again");
    free(same);
  }
  l->use(d, false);
  char *again = run(s, d, false);
  if (!ok(want && own && got && again, "... the calls run")) return;
  ok(worst(s, got, want) < 0.02, "... has ref's results (%.1e)", worst(s, got, want));
  ok(rest_is_same(s, got, s->at), "... and writes nothing else");
  ok(memcmp(got, own, POOL_BYTES) != 0, "... not the own kernels' bits");
  ok(memcmp(again, own, POOL_BYTES) == 0, "... which are back when it is not in use");
  char version[200];
  d->ops->version(d, version, sizeof version);
  ok(!strstr(version, "cuDNN"), "... no version of it then: %s", version);
  l->use(d, true);
  d->ops->version(d, version, sizeof version);
  ok(strstr(version, text) != NULL, "... and with it: %s", version);
  free(want);
  free(own);
  free(got);
  free(again);
  tc_device_close(d);
}

/* Cut into several calls and in one: the same bits, so that memory, which decides that, decides nothing else. */
static void cut_or_not(struct scene *s, const struct sizes *z)
{
  char text[300] = "", *got[2];
  for (int i = 0; i < 2; i++) {
    library_bytes = i ? 1 << 17 : 0;
    struct tc_device *d = fresh();
    plans(s, d, z, text);
    d->ops->library->use(d, true);
    attention(s, z);
    got[i] = run(s, d, false);
    tc_device_close(d);
  }
  ok(got[0] && got[1] && !memcmp(got[0], got[1], POOL_BYTES), "[%d, %d, %d, %d], %d of them with one key: the same bits in one "
     "call and in several", (int)z->B, (int)z->T, (int)z->H, (int)z->D, z->groups);
  free(got[0]);
  free(got[1]);
  library_bytes = 0;
}

/* lse is [batch, heads, length] for the library: the same values as ref's [N, heads], in that order. */
static void statistics(struct scene *s, int groups)
{
  const struct sizes z = { 2, 128, 6, 32, groups, B16, false };
  char text[300];
  struct tc_device *d = fresh();
  plans(s, d, &z, text);
  d->ops->library->use(d, true);
  attention(s, &z);
  char *want = run(s, ref, false), *got = run(s, d, false);
  const struct tc_view *lse = &s->part[0].c.out[1];
  const size_t at = (size_t)((char *)lse->data - s->at);
  double most = 0;
  for (int64_t b = 0; want && got && b < z.B; b++)
    for (int64_t h = 0; h < z.H; h++)
      for (int64_t t = 0; t < z.T; t++) {
        const float a = ((float *)(got + at))[(b * z.H + h) * z.T + t];
        const float w = ((float *)(want + at))[(b * z.T + t) * z.H + h];
        most = !(fabs((double)(a - w)) <= most) ? fabs((double)(a - w)) : most;
      }
  ok(want && got && most < 1e-4, "row statistics, a key for %d: natural log, by heads (%.1e)", groups, most);
  free(want);
  free(got);
  tc_device_close(d);
}

/* The library is as TC_EMU_CUDNN says: the reason is given, and the own kernels run, on a device without an error. */
static void without(struct scene *s, const char *how, const char *say, const char *what)
{
  const struct sizes z = { 1, 128, 2, 32, 1, B16, false };
  char text[300] = "";
  setenv("TC_EMU_CUDNN", how, 1);
  struct tc_device *d = fresh();
  const int n = plans(s, d, &z, text);
  ok(n == -1 && strstr(text, say), "%s: %s", what, text);
  attention(s, &z);
  char *got = run(s, d, false);
  unsetenv("TC_EMU_CUDNN");
  attention(s, &z);
  char *own = run(s, cuda, false);
  ok(got && own && !memcmp(got, own, POOL_BYTES), "... the own kernels run");
  struct tc_err err = { 0 };
  ok(tc_device_check(d, &err) == 0, "... and the device has no error %s", err.text);
  free(got);
  free(own);
  tc_device_close(d);
}

static void not_there(struct scene *s)
{
  const struct sizes z = { 1, 128, 2, 32, 1, B16, false };
  char text[300] = "";
  without(s, "none", "is not there", "a library that does not open");
  without(s, "refuse", "refuses [1, 2, 1, 128, 32]", "a shape that it refuses");
  without(s, "fail", "the emulated cuDNN fails", "a plan that does not run");
  without(s, "launch", "when tried: ", "a plan whose kernels do not start");
  setenv("TERCIO_CUDNN", "/nonexistent/libcudnn.so.9", 1);
  struct tc_device *d = fresh();
  ok(plans(s, d, &z, text) == -1 && strstr(text, "TERCIO_CUDNN must be the path"), "TERCIO_CUDNN names nothing: %s",
     text);
  tc_device_close(d);
  unsetenv("TERCIO_CUDNN");
  d = fresh();
  d->library = false;
  is_int(plans(s, d, &z, text), 0, "not asked for: no plans");
  tc_device_close(d);
}

/* The operands of a trial do not fit beside what is there. */
static void no_memory(struct scene *s)
{
  const struct sizes z = { 1, 128, 2, 32, 1, B16, false };
  char text[300] = "";
  struct tc_device *d = fresh();
  attention(s, &z);
  free(run(s, d, false));
  setenv("TC_EMU_MEMORY_MB", "0", 1);
  is_int(d->ops->library->can(d, text, sizeof text), -1, "no memory to try it");
  unsetenv("TC_EMU_MEMORY_MB");
  ok(strstr(text, "0.000134 GB to try it are not free") != NULL, "... the reason has the amount: %s", text);
  tc_device_close(d);
}

/* libcudnn.so.9 in CUDNN_HOME/lib64: what stands there is loaded. */
static void home(struct scene *s)
{
  const char *driver = getenv("TC_EMU_DRIVER");
  char folder[] = "/tmp/tc-cudnn-XXXXXX", *lib64, *file;
  if (!driver || access(driver, R_OK) || !mkdtemp(folder)) return;
  lib64 = tc_sprintf("%s/lib64", folder), file = tc_sprintf("%s/libcudnn.so.9", lib64);
  const bool made = mkdir(lib64, 0700) == 0 && symlink(driver, file) == 0;
  setenv("CUDNN_HOME", folder, 1);
  struct tc_device *d = fresh();
  char text[300];
  plans(s, d, &(struct sizes){ 1, 128, 2, 32, 1, B16, false }, text);
  ok(made && dlopen(file, RTLD_NOW | RTLD_NOLOAD), "CUDNN_HOME: its lib64 is looked into, too");
  tc_device_close(d);
  unsetenv("CUDNN_HOME");
  unlink(file);
  rmdir(lib64);
  rmdir(folder);
  free(lib64);
  free(file);
}

/* A call that fails once it is in use: the device has the error, with the library's words. */
static void fails_later(struct scene *s)
{
  const struct sizes z = { 1, 128, 2, 32, 1, B16, false };
  char text[300] = "";
  struct tc_err err = { 0 };
  struct tc_device *d = fresh();
  plans(s, d, &z, text);
  d->ops->library->use(d, true);
  setenv("TC_EMU_CUDNN", "fail", 1);
  attention(s, &z);
  ok(run(s, d, false) == NULL, "a call that fails");
  unsetenv("TC_EMU_CUDNN");
  ok(tc_device_check(d, &err) < 0 && strstr(err.text, "the emulated cuDNN fails"), "... is the device's error: %s",
     err.text);
  tc_device_close(d);
}

/* Sizes that the library computes in one call, and those that it cuts: by sequences (the last calls overlap), heads, groups. */
static const struct sizes whole[] = {
  { 2, 128, 2, 64, 1, B16, false }, { 1, 256, 2, 32, 1, B16, false }, { 1, 128, 1, 80, 1, B16, false },
  { 2, 128, 4, 64, 2, B16, false }, { 3, 128, 6, 32, 3, B16, false }, { 1, 256, 4, 128, 2, B16, false },
  { 2, 128, 4, 64, 4, B16, false } };
static const struct sizes cut[] = { { 5, 128, 2, 64, 1, B16, false }, { 2, 256, 5, 64, 1, B16, false }, { 2, 128, 6, 32, 2, B16, false } };
enum { N_WHOLE = sizeof whole / sizeof *whole, N_CUT = sizeof cut / sizeof *cut };

int main(void)
{
  struct scene *s = scene_new();
  char text[300] = "";
  struct tc_device *d = fresh();
  const int n = plans(s, d, &(struct sizes){ 1, 128, 2, 64, 1, B16, false }, text);
  tc_device_close(d);
  if (on_gpu() && n < 0) {
    scene_free(s);
    skip_all(tc_sprintf("no attention by cuDNN here: %s", text));
  }
  which(s);
#ifdef __SANITIZE_ADDRESS__                     /* which takes ten times as long, and sees one of each kind */
  const int orders = 1, stride = 3;
#else
  const int orders = 2, stride = 1;
#endif
  for (int i = 0; i < orders; i++, any_order = !any_order) {
    for (int k = 0; k < N_WHOLE; k += stride) results(s, &whole[k]);
    scale = 0.3f, results(s, &whole[0]), scale = 0;
    library_bytes = 1 << 17;
    for (int k = 0; k < N_CUT; k += stride) results(s, &cut[k]);
    library_bytes = 0;
  }
  any_order = false;
  cut_or_not(s, &(struct sizes){ 5, 128, 2, 64, 1, B16, false });
  cut_or_not(s, &(struct sizes){ 2, 256, 5, 64, 1, B16, false });
  cut_or_not(s, &(struct sizes){ 2, 128, 6, 32, 2, B16, false });
  cut_or_not(s, &(struct sizes){ 1, 512, 4, 128, 2, B16, false });
  statistics(s, 1);
  statistics(s, 3);
  statistics(s, 6);
  if (!on_gpu()) {
    not_there(s);
    no_memory(s);
    home(s);
    fails_later(s);
  }
  scene_free(s);
  return done_testing();
}
