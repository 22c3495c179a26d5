/* cudnn.cu - attention by cuDNN, where run.attention = auto allows it: opens tercio-cudnn.so (kernels/cudnn), keeps
 * a plan for each shape, and runs it in place of the kernels of attn_fwd.cu and attn_bwd.cu.
 *
 * Nothing here is needed: the module may not be there, nor its library. Whether a call could be cuDNN's follows from
 * its shape alone (is_candidate), so forward and backward, and all ranks, agree on that; whether all of them can is
 * found out after they are prepared (`can`), and then all candidates of a run are cuDNN's, or none (`use`). That
 * matters, since lse has another order here than in our kernels.
 *
 * The module is opened by its path, beside this one. It needs libcudnn, which may be in a folder that the loader does
 * not search: a library of that name that is loaded already is the one that the loader takes for it. */
#include "kernels/cuda/dev.h"
#include "kernels/cudnn/attention.h"

#include <dlfcn.h>
#include <unistd.h>

enum { WHY_BYTES = 400, TILE = 128, HEAD_MAX = 128 };
/* A workspace is at most 1/16 of the GPU's memory and 1/4 of what is left when the programs have theirs: it is tried with a
 * second one and operands, and products and transfers need some, too. Calls are cut to take no more; few calls are faster
 * (32 heads over 8192 tokens on an H200: 2.99 ms in one, 3.73 in four), and many have the same bits. */
enum { SHARE_OF_ALL = 16, SHARE_OF_LEFT = 4 };

struct attention {               /* the plan of a call */
  struct tc_cudnn_shape shape;
  struct tc_cudnn_plan *plan;    /* NULL: there is none */
  struct attention *next;
};
struct tc_library_state {
  const struct tc_cudnn_ops *ops;                /* NULL: not opened; `why` */
  struct tc_cudnn *cudnn;
  struct attention *all;
  bool asked, used;                              /* asked: opening was tried */
  int64_t most, left;                            /* bytes of a workspace; of what was left then. 0: not known yet */
  char why[WHY_BYTES], failed[WHY_BYTES];        /* the last reason against it; what failed in a run */
};

static struct tc_library_state *state_of(struct tc_device *d)
{
  struct tc_cuda *x = tc_cuda_of(d);
  if (!x->library) x->library = (struct tc_library_state *)tc_calloc(1, sizeof *x->library);
  return x->library;
}

/* ---- opening ------------------------------------------------------------------------------- */

/* $TERCIO_CUDNN and nothing else if it is set; else $CUDNN_HOME/lib or lib64, where configure looks, then the loader's
 * search path, with the module. False: the one that is named can't be loaded. */
static bool load_library(char why[WHY_BYTES])
{
  const char *file = getenv("TERCIO_CUDNN"), *home = getenv("CUDNN_HOME");
  if (file && *file) {
    if (dlopen(file, RTLD_NOW | RTLD_LOCAL)) return true;
    const char *reason = dlerror();
    snprintf(why, WHY_BYTES, "TERCIO_CUDNN must be the path of libcudnn.so.9: %.300s", reason ? reason : file);
    return false;
  }
  static const char *const folder[] = { "lib", "lib64" };
  for (int i = 0; home && *home && i < 2; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/libcudnn.so.9", home, folder[i]);
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL)) break;
  }
  return true;
}

/* Where the module is: in the folder of this one. */
static bool module_path(char *path, size_t size)
{
  Dl_info info;
  if (!dladdr((const void *)&state_of, &info) || !info.dli_fname) return false;
  const char *slash = strrchr(info.dli_fname, '/');
  const int n = snprintf(path, size, "%.*stercio-cudnn.so", slash ? (int)(slash + 1 - info.dli_fname) : 0,
                         info.dli_fname);
  return n > 0 && (size_t)n < size;
}

static bool open_module(struct tc_device *d, struct tc_library_state *s)
{
  char path[4096];
  if (!module_path(path, sizeof path) || !load_library(s->why)) return false;
  if (access(path, R_OK) < 0) {
    snprintf(s->why, WHY_BYTES, "%.300s is not there (build with cudnn-frontend)", path);
    return false;
  }
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char *reason = dlerror();
    snprintf(s->why, WHY_BYTES, "%.220s (install it, name libcudnn.so.9 with TERCIO_CUDNN or the folder above its lib "
             "with CUDNN_HOME, or add its folder to LD_LIBRARY_PATH)", reason ? reason : path);
    return false;
  }
  const struct tc_cudnn_ops *ops = (const struct tc_cudnn_ops *)dlsym(lib, "tc_cudnn_attention");
  if (!ops || ops->version != TC_CUDNN_VERSION) {
    snprintf(s->why, WHY_BYTES, "%.300s is of another version of Tercio", path);
    return false;
  }
  s->cudnn = ops->open(tc_stream(d), NULL, s->why, WHY_BYTES);
  if (s->cudnn) s->ops = ops;
  return s->cudnn != NULL;
}

/* ---- plans --------------------------------------------------------------------------------- */

/* Bytes, the same for all calls of a device. */
static int64_t workspace_of(struct tc_device *d)
{
  struct tc_library_state *s = state_of(d);
  int64_t total;
  if (!s->most) {
    d->ops->memory(d, &s->left, &total);
    s->most = TC_MIN(total / SHARE_OF_ALL, s->left / SHARE_OF_LEFT);
  }
  return s->most;
}

/* What cuDNN is asked for: whole sequences in bf16, without window or cap. Lengths that are no multiple of 128 would
 * take copies from the host at each call. Whether cuDNN's kernels count more than 2^31 numbers is not documented. */
static bool is_candidate(struct tc_device *d, const struct tc_call *c, struct tc_cudnn_shape *s)
{
  const bool back = c->op == TC_OP_ATTN_BWD;
  const struct tc_view *qkv = &c->in[back ? 1 : 0];
  const int64_t T = c->k[0], D = qkv->dim[3];
  TC_ASSERT(!c->acc);
  if (c->n_in != (back ? 4 : 1) || c->k[2] > 0 || c->f[1] > 0 || qkv->dtype != TC_BF16 || qkv->dim[2] < 3) return false;
  if (qkv->elems > INT32_MAX) return false;
  if (T <= 0 || T % TILE || D <= 0 || D % 8 || D > HEAD_MAX || qkv->dim[0] == 0 || qkv->dim[1] == 0) return false;
  memset(s, 0, sizeof *s);
  s->batch = qkv->dim[0] / T, s->groups = qkv->dim[1], s->queries = qkv->dim[2] - 2, s->length = T, s->size = D;
  s->scale = tc_call_scale(c, D), s->deterministic = !d->any_order;
  s->workspace = d->library_bytes ? d->library_bytes : workspace_of(d);
  return true;
}

/* NULL: cuDNN has none, or one that takes too much of the GPU's memory. */
static struct tc_cudnn_plan *new_plan(struct tc_device *d, struct tc_library_state *s, const struct tc_cudnn_shape *shape)
{
  struct tc_cudnn_plan *p = s->ops->plan(s->cudnn, shape, s->why, WHY_BYTES);
  const int64_t most = p ? TC_MAX(s->ops->workspace(p, 0), s->ops->workspace(p, 1)) : 0;
  if (!p || most <= workspace_of(d)) return p;
  snprintf(s->why, WHY_BYTES, "over %lld tokens it would take %.3g GB: more than 1/%d of the GPU's memory, or than 1/%d of the "
           "%.3g GB that are left", (long long)shape->length, (double)most * 1e-9, SHARE_OF_ALL, SHARE_OF_LEFT,
           (double)s->left * 1e-9);
  s->ops->free_plan(p);
  return NULL;
}

void tc_cuda_library_prepare(struct tc_device *d, struct tc_call *c)
{
  struct tc_cudnn_shape shape;
  if (!d->library || !is_candidate(d, c, &shape)) return;
  struct tc_library_state *s = state_of(d);
  if (!s->asked) open_module(d, s);
  s->asked = true;
  struct attention *a = s->all;
  while (a && memcmp(&a->shape, &shape, sizeof shape)) a = a->next;
  if (!a) {
    a = (struct attention *)tc_calloc(1, sizeof *a);
    a->shape = shape, a->next = s->all, s->all = a;
    if (s->ops) a->plan = new_plan(d, s, &shape);
    if (!a->plan) cudaGetLastError();            /* our kernels go on */
  }
  c->plan = a;
}

int64_t tc_cuda_library_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct attention *a = (const struct attention *)c->plan;
  return a && a->plan ? state_of(d)->ops->workspace(a->plan, c->op == TC_OP_ATTN_BWD) : 0;
}

void tc_cuda_library_free(struct tc_device *d)
{
  struct tc_library_state *s = tc_cuda_of(d)->library;
  if (!s) return;
  while (s->all) {
    struct attention *a = s->all;
    s->all = a->next;
    if (a->plan) s->ops->free_plan(a->plan);
    free(a);
  }
  if (s->ops) s->ops->close(s->cudnn);
  free(s);
  tc_cuda_of(d)->library = NULL;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* Keeps that a call failed, with what cuDNN says, for tc_device_ops.check. */
static int failed(struct tc_device *d)
{
  struct tc_library_state *s = state_of(d);
  snprintf(s->failed, sizeof s->failed, "attention by cuDNN: %.360s", s->why);
  return tc_cuda_check(d, cudaErrorUnknown, s->failed);
}

bool tc_cuda_library_takes(struct tc_device *d, const struct tc_call *c)
{
  return c->plan && state_of(d)->used;
}

int tc_cuda_library_attn(struct tc_device *d, const struct tc_call *c)
{
  struct tc_library_state *s = state_of(d);
  struct tc_cudnn_plan *p = ((const struct attention *)c->plan)->plan;
  int rc;
  if (c->op == TC_OP_ATTN)
    rc = s->ops->forward(p, c->in[0].data, c->out[0].data, tc_f32_of(&c->out[1]), c->scratch, s->why, WHY_BYTES);
  else
    rc = s->ops->backward(p, c->in[0].data, c->in[1].data, c->in[2].data, tc_f32_of(&c->in[3]), c->out[0].data,
                          c->scratch, s->why, WHY_BYTES);
  return rc < 0 ? failed(d) : tc_cuda_launched(d, "attention by cuDNN");
}

/* ---- the choice ---------------------------------------------------------------------------- */

/* Runs a plan both ways, on zeros: its kernels are loaded before transfers are under way, and one that does not run
 * here is found out before it is needed. Its errors are not the device's, whose own kernels then go on; but one that
 * CUDA keeps, such as an illegal address, comes back with the next call. */
static bool runs(struct tc_device *d, struct tc_library_state *s, const struct attention *a)
{
  const struct tc_cudnn_shape *f = &a->shape;
  const int64_t heads = f->groups * f->queries, rows = f->batch * f->length;
  const int64_t y = tc_round_up(rows * heads * f->size * 2, 256), lse = tc_round_up(rows * heads * 4, 256);
  const int64_t three = tc_round_up(rows * (heads + 2 * f->groups) * f->size * 2, 256);
  const int64_t work = TC_MAX(s->ops->workspace(a->plan, 0), s->ops->workspace(a->plan, 1));
  const int64_t all = 2 * three + 2 * y + lse + work;
  char *at = (char *)d->ops->alloc(d, all);
  struct tc_err err;
  if (!at || d->ops->check(d, &err) < 0) {
    if (at) snprintf(s->why, WHY_BYTES, "%.300s", err.text), d->ops->free(d, at, all);
    else snprintf(s->why, WHY_BYTES, "%.3g GB to try it are not free (use a smaller train.micro_batch)",
                  (double)all * 1e-9);
    return false;
  }
  char *qkv = at, *dqkv = at + three, *out = dqkv + three, *dy = out + y, *sums = dy + y, *scratch = sums + lse;
  bool good = s->ops->forward(a->plan, qkv, out, (float *)sums, scratch, s->why, WHY_BYTES) == 0
              && s->ops->backward(a->plan, dy, qkv, out, (const float *)sums, dqkv, scratch, s->why, WHY_BYTES) == 0;
  const cudaError_t end = cudaStreamSynchronize(tc_stream(d)), left = cudaGetLastError();
  const cudaError_t e = end != cudaSuccess ? end : left;
  if (good && e != cudaSuccess) snprintf(s->why, WHY_BYTES, "when tried: %.300s", cudaGetErrorString(e));
  d->ops->free(d, at, all);
  return good && e == cudaSuccess;
}

static int can(struct tc_device *d, char *text, size_t size)
{
  struct tc_library_state *s = state_of(d);
  int n = 0;
  for (const struct attention *a = s->all; a; a = a->next, n++)
    if (!a->plan || !runs(d, s, a)) {
      snprintf(text, size, "%s", s->why);
      return -1;
    }
  const int v = s->ops ? (int)s->ops->library() : 0;
  if (n) snprintf(text, size, "cuDNN %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
  else snprintf(text, size, "no call that it could take");
  return n;
}

static void use(struct tc_device *d, bool yes) { state_of(d)->used = yes; }

/* 0: not in use. */
int tc_cuda_library_version(struct tc_device *d)
{
  const struct tc_library_state *s = tc_cuda_of(d)->library;
  return s && s->used && s->ops ? (int)s->ops->library() : 0;
}

extern const struct tc_library tc_cuda_library = { can, use };
