/* ckpt_fixture.h - checkpoints for tests: tensors of every type whose elements say where they
 * belong, split in several ways over 1, 2 or 4 writers, saved by ranks that are threads. */
#ifndef TC_CKPT_FIXTURE_H
#define TC_CKPT_FIXTURE_H

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/ckpt/impl.h"
#include "src/comm/hub.h"
#include "io/folder.h"
#include "tests/unit/tap.h"

enum { MOST_WRITERS = 4 };

/* Small and large (beyond the 64 KiB that are aligned), scalar, name with a group in it. */
static const struct tc_ckpt_tensor fx_tensor[] = {
  { "wte.weight", TC_F32, 2, { 37, 19 } },
  { "h0.attn.qkv.weight", TC_BF16, 4, { 8, 3, 4, 16 } },
  { "opt/wte.weight.m", TC_F64, 2, { 6, 10 } },
  { "counter", TC_I32, 0, { 0 } },
  { "bytes", TC_U8, 1, { 101 } },
  { "big", TC_F32, 2, { 150, 257 } },
  { "cube", TC_F32, 3, { 5, 6, 7 } },
  { "bias", TC_F32, 1, { 3 } },
};
enum { FX_TENSORS = sizeof fx_tensor / sizeof *fx_tensor };

/* Byte `b` of element i of tensor t in checkpoint `salt`: a hash, so that nothing repeats. */
static inline unsigned char fx_byte(uint32_t salt, int t, int64_t i, int b)
{
  uint64_t x = salt * 0x9e3779b97f4a7c15u + (uint64_t)t * 1000003u + (uint64_t)i * 16 + (uint64_t)b;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return (unsigned char)(x >> 56);
}

/* The box of a tensor, dense: what a correct save takes and a correct read gives. Owned. */
static void *fx_box(uint32_t salt, int t, const int64_t *start, const int64_t *count)
{
  const struct tc_ckpt_tensor *x = &fx_tensor[t];
  int size = (int)tc_dtype_bytes(x->dtype);
  int64_t n = 1, index[TC_DIMS] = {0};
  for (int d = 0; d < x->rank; d++) n *= count[d];
  unsigned char *out = tc_malloc((size_t)(n * size) + 1), *at = out;
  for (int64_t k = 0; k < n; k++) {
    int64_t flat = 0;
    for (int d = 0; d < x->rank; d++) flat = flat * x->dim[d] + start[d] + index[d];
    for (int b = 0; b < size; b++) *at++ = fx_byte(salt, t, flat, b);
    for (int d = x->rank - 1; d >= 0 && ++index[d] == count[d]; d--) index[d] = 0;
  }
  return out;
}

/* The slices of one writer: tensor t is split along dimension t % rank into ceil blocks, the
 * big one into a 2 x (n/2) grid where there are 4, scalars and the last tensor go to one. */
static int fx_slices(struct tc_ckpt_slice *s, uint32_t salt, int rank, int world)
{
  int n = 0;
  for (int t = 0; t < FX_TENSORS; t++) {
    const struct tc_ckpt_tensor *x = &fx_tensor[t];
    struct tc_ckpt_slice *p = &s[n];
    memset(p, 0, sizeof *p);
    p->tensor = t;
    memcpy(p->count, x->dim, sizeof p->count);
    if (x->rank == 0 || t == FX_TENSORS - 1) {
      if (rank != t % world) continue;
    } else if (strcmp(x->name, "big") == 0 && world == 4) {
      p->start[0] = rank / 2 * 75;
      p->count[0] = 75;
      p->start[1] = rank % 2 ? 100 : 0;
      p->count[1] = rank % 2 ? 157 : 100;
    } else {
      int d = t % x->rank;
      int64_t block = tc_ceil_div(x->dim[d], world);
      p->start[d] = TC_MIN(block * rank, x->dim[d]);
      p->count[d] = TC_MIN(block, x->dim[d] - p->start[d]);
    }
    p->data = fx_box(salt, t, p->start, p->count);
    n++;
  }
  return n;
}

/* What every checkpoint takes along. */
static const char fx_attached[] = "not a tensor\nbut bytes: \0\xff\r\n";

struct fx_save {
  const char *dir;
  int64_t step;
  uint32_t salt;
  int world, keep;
  int64_t block_bytes;
  bool view, bare;                /* bare: without the attached file */
  int spoil;                      /* 1: rank 1 leaves a slice out; 2: has one twice */
  int status[MOST_WRITERS];
  struct tc_err err[MOST_WRITERS];
};
struct fx_rank { struct fx_save *save; int rank; struct tc_comm *world; };

static void *fx_rank_save(void *arg)
{
  struct fx_rank *r = arg;
  struct fx_save *f = r->save;
  static const char *const who[MOST_WRITERS] = { "rank 0 on node1", "rank 1 on node1",
                                                 "rank 2 on node2", "rank 3 on node2" };
  struct tc_ckpt_meta meta = { .step = f->step, .seed = UINT64_MAX - 6, .tokens = 12345678901,
    .model = "layers 2, hidden 19", .config = "[train]\nlr = 1e-3\n", .mesh = "pp1 dp2 tp1",
    .system = "zero1", .job = "77-a", .restart = 2, .rank_names = who,
    .block_bytes = f->block_bytes, .view = f->view };
  if (r->rank == 0 && !f->bare)
    meta.attached[0] = (struct tc_ckpt_attached){ .name = "attached.json", .data = fx_attached, .bytes = sizeof fx_attached };
  struct tc_ckpt_slice s[FX_TENSORS + 1];
  int n = fx_slices(s, f->salt, r->rank, f->world);
  int shown = n;
  if (f->spoil == 1 && r->rank == 1) shown--;
  if (f->spoil == 2 && r->rank == 1) s[shown++] = s[0];
  tc_log_set_rank(r->rank);
  f->status[r->rank] = tc_ckpt_save(f->dir, &meta, fx_tensor, FX_TENSORS, s, shown, r->world,
                                    &f->err[r->rank]);
  if (r->rank == 0 && f->status[0] == 0) tc_ckpt_prune(f->dir, f->keep);
  for (int i = 0; i < n; i++) free(s[i].data);
  return NULL;
}

/* Runs fn once a rank, each with a struct fx_rank of this save, as threads. */
static void fx_threads(struct fx_save *f, void *(*fn)(void *))
{
  struct tc_hub *hub = tc_hub_new(f->world);
  struct tc_comm_opts o = { .name = "world", .deadline_s = 60 };
  int32_t member[MOST_WRITERS] = { 0, 1, 2, 3 };
  struct fx_rank r[MOST_WRITERS];
  pthread_t thread[MOST_WRITERS];
  for (int i = 0; i < f->world; i++) {
    r[i] = (struct fx_rank){ .save = f, .rank = i,
      .world = f->world == 1 ? tc_comm_self(&o)
                             : tc_comm_thread(hub, 0, i, member, f->world, &o) };
    pthread_create(&thread[i], NULL, fn, &r[i]);
  }
  for (int i = 0; i < f->world; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i < f->world; i++) tc_comm_free(r[i].world);
  tc_hub_free(hub);
}

/* Saves; 0, or rank 0's status with its sentence printed. */
TAP_UNUSED static int fx_save(const char *dir, int64_t step, uint32_t salt, int world, int keep)
{
  struct fx_save f = { .dir = dir, .step = step, .salt = salt, .world = world, .keep = keep };
  fx_threads(&f, fx_rank_save);
  if (f.status[0] < 0) printf("# save: %s\n", f.err[0].text);
  for (int i = 1; i < world; i++) TC_ASSERT(f.status[i] == f.status[0]);
  return f.status[0];
}

/* Reads a box and says whether it is what was saved; a status if it can't be read. */
TAP_UNUSED static int fx_read(struct tc_ckpt *c, uint32_t salt, int t, const int64_t *start,
                   const int64_t *count, struct tc_err *err)
{
  const struct tc_ckpt_tensor *x = &fx_tensor[t];
  int64_t bytes = (int64_t)tc_dtype_bytes(x->dtype);
  for (int d = 0; d < x->rank; d++) bytes *= count[d];
  unsigned char *want = fx_box(salt, t, start, count), *got = tc_malloc((size_t)bytes + 1);
  got[bytes] = 0xa5;
  int rc = tc_ckpt_read(c, tc_ckpt_find(c, x->name), start, count, got, err);
  if (rc == 0) rc = memcmp(want, got, (size_t)bytes) == 0 && got[bytes] == 0xa5;
  free(want);
  free(got);
  return rc;
}

/* 1: every tensor of the open checkpoint reads back; 0: one is wrong; or a status. */
TAP_UNUSED static int fx_read_all(struct tc_ckpt *c, uint32_t salt, struct tc_err *err)
{
  const int64_t zero[TC_DIMS] = {0};
  for (int t = 0; t < FX_TENSORS; t++) {
    int rc = fx_read(c, salt, t, zero, fx_tensor[t].dim, err);
    if (rc != 1) return rc;
  }
  return 1;
}

/* A new folder for this test; the last one made is removed by fx_clean. */
static char fx_root[64];
TAP_UNUSED static const char *fx_folder(void)
{
  const char *tmp = getenv("TMPDIR");
  snprintf(fx_root, sizeof fx_root, "%.40s/t_ckpt.XXXXXX", tmp ? tmp : "/tmp");
  TC_ASSERT(mkdtemp(fx_root) != NULL);
  return fx_root;
}

TAP_UNUSED static void fx_clean(void)
{
  char cmd[100];
  snprintf(cmd, sizeof cmd, "rm -rf '%s'", fx_root);
  TC_ASSERT(system(cmd) == 0);
}

/* Names in dir that begin with prefix. */
TAP_UNUSED static int fx_count(const char *dir, const char *prefix)
{
  char **names;
  int n = tc_folder_scan(dir, prefix, &names, NULL);
  tc_names_free(names, n);
  return n;
}

TAP_UNUSED static bool fx_there(const char *dir, const char *name)
{
  char *path = tc_sprintf("%s/%s", dir, name);
  bool yes = access(path, F_OK) == 0;
  free(path);
  return yes;
}

static uint32_t fx_state = 12345;
TAP_UNUSED static uint32_t fx_random(uint32_t n)
{
  fx_state = fx_state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)(fx_state >> 8) * n) >> 24);
}

#endif
