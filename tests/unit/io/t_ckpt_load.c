/* t_ckpt_load.c - checkpoints block by block: data is written where it belongs with the right
 * checksums; a reader touches, and trusts, only what it needs; loading falls back when a rank
 * finds damage. */
#include <fcntl.h>

#include "io/ckpt/blocks.h"
#include "io/crc.h"
#include "io/ckpt/h5.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/verify_step.h"

/* ---- writing ---------------------------------------------------------------------- */

/* Data in any blocks, over any gaps, is in its places with the checksums that a naive sum of each
 * block has; what lies between is left alone. */
static void test_blocks(void)
{
  const char *dir = fx_folder();
  enum { BYTES = 3 << 20, MOST = 700 };
  char *data = tc_malloc(BYTES), *back = tc_malloc(BYTES);
  char *path = tc_sprintf("%s/data", dir);
  int wrong = 0, sums = 0, between = 0;
  for (int i = 0; i < BYTES; i++) data[i] = (char)fx_byte(1, 1, i, 0);
  for (int round = 0; round < 8; round++) {
    static const int64_t blocks[] = { 4096, 8192, 1 << 20, 2 << 20 };
    int64_t block = blocks[round % 4], at = 0;
    struct tc_stretch s[MOST];
    struct tc_err err = {0};
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), n = 0;
    memset(back, 0x5a, BYTES);
    TC_ASSERT(pwrite(fd, back, BYTES, 0) == BYTES);
    while (n < MOST && at < BYTES) {
      int64_t bytes = 1 + fx_random(n % 50 == 49 && round < 6 ? 2 << 20 : 2000);
      bytes = TC_MIN(bytes, BYTES - at);
      s[n] = (struct tc_stretch){ .data = data + at, .offset = at, .bytes = bytes,
        .crc32c = tc_calloc((size_t)tc_blocks(bytes, block), sizeof(uint32_t)) };
      at += bytes + (fx_random(3) || round >= 6 ? 0 : 1 + fx_random(100));
      n++;
    }
    if (tc_blocks_write(fd, s, n, block, path, &err) < 0) printf("# %s\n", err.text);
    TC_ASSERT(pread(fd, back, BYTES, 0) == BYTES);
    close(fd);
    at = 0;
    for (int i = 0; i < n; i++) {
      for (; at < s[i].offset; at++) between += back[at] != 0x5a;
      wrong += memcmp(back + at, data + at, (size_t)s[i].bytes) != 0;
      for (int64_t k = 0; k * block < s[i].bytes; k++)
        sums += s[i].crc32c[k] != tc_crc32c(0, data + at + k * block,
                                            (size_t)TC_MIN(block, s[i].bytes - k * block));
      at += s[i].bytes;
      free(s[i].crc32c);
    }
  }
  is_int(wrong, 0, "stretches of any length and place are written");
  is_int(sums, 0, "with the checksum of each block");
  is_int(between, 0, "and nothing between them is touched");
  free(path);
  free(back);
  free(data);
  fx_clean();
}

/* What is laid out is where the layout says, and nothing else passes for it. */
static void test_lay(void)
{
  const char *dir = fx_folder();
  const int64_t big[] = { 40, 1000 }, small[] = { 5, 6, 7 }, zero[] = { 0, 0, 0 };
  char *path = tc_sprintf("%s/x.h5", dir);
  struct tc_h5_opts o = { .step = 3, .writer = 1, .reserve_bytes = 1 << 20 };
  struct tc_h5_slice s[4];
  struct tc_err err = {0};
  int64_t size = 0;
  int fd = -1;
  for (int i = 0; i < 4; i++)
    s[i] = i % 2 ? (struct tc_h5_slice){ "/tensors/b/x", TC_F32, 3, small, zero, small, 0 }
                 : (struct tc_h5_slice){ "/tensors/a/x", TC_F32, 2, big, zero, big, 0 };
  s[2].dataset = "/tensors/a/y";
  s[3].dataset = "/tensors/b/y";
  if (!is_int(tc_h5_lay(&fd, &size, path, &o, s, 4, &err), 0, "a file is laid out"))
    printf("# %s\n", err.text);
  struct stat st;
  ok(fstat(fd, &st) == 0 && st.st_size == size, "its size is reported");
  ok(st.st_blocks * 512 <= size + 65536, "and no more is kept of the disk");
  close(fd);
  is_int(tc_h5_check(path, 3, 1, s, 4, &err), 0, "HDF5 finds the same in it");
  is_int(s[3].offset, s[1].offset + 840, "small ones lie side by side");
  ok(s[0].offset % 4096 == 0 && s[2].offset % 4096 == 0, "large ones on page borders");
  ok(s[0].offset > s[3].offset && s[2].offset >= s[0].offset + 160000, "after them");
  is_int(tc_h5_check(path, 4, 1, s, 4, NULL), TC_ECHECKSUM, "another step is noticed");
  is_int(tc_h5_check(path, 3, 2, s, 4, NULL), TC_ECHECKSUM, "another writer is noticed");
  s[0].offset++;
  is_int(tc_h5_check(path, 3, 1, s, 4, NULL), TC_ECHECKSUM, "another place is noticed");
  s[0].offset--;
  s[0].start = big;
  is_int(tc_h5_check(path, 3, 1, s, 4, NULL), TC_ECHECKSUM, "another start is noticed");
  is_int(tc_h5_lay(&fd, &size, path, &o, s, 4, &err), TC_EUSER,
         "an existing file is not overwritten");
  is_int(fd, -1, "and not handed out");
  free(path);
  fx_clean();
}

/* ---- reading only what is needed -------------------------------------------------- */

/* Bytes of `path` that lie in blocks of pieces that the box [start, start + count) of tensor t
 * touches are left; all others are spoiled. Blocks that begin before the box's first or after
 * its last element of a piece are not touched. */
static void spoil_others(const struct tc_ckpt *c, int t, const int64_t *start,
                         const int64_t *count)
{
  const struct tc_ckpt_tensor *x = &c->m->tensor[t];
  int64_t elem = (int64_t)tc_dtype_bytes(x->dtype), block = c->m->block_bytes;
  for (int k = 0; k < c->m->n_pieces; k++) {
    const struct tc_piece *p = &c->m->piece[k];
    char *path = tc_sprintf("%s/%s", c->path, c->m->file[p->file].name);
    int fd = open(path, O_RDWR);
    bool *keep = tc_calloc((size_t)tc_blocks(p->bytes, block), 1);
    for (int64_t i = 0; p->tensor == t && i < p->bytes / elem; i++) {
      int64_t rest = i;
      bool in = true;
      for (int d = x->rank - 1; d >= 0; d--) {
        int64_t at = p->start[d] + rest % p->count[d];
        rest /= p->count[d];
        in = in && at >= start[d] && at < start[d] + count[d];
      }
      if (in) keep[i * elem / block] = true;
    }
    for (int64_t b = 0; b < tc_blocks(p->bytes, block); b++) {
      int64_t end = TC_MIN(p->bytes, (b + 1) * block);
      for (int64_t at = b * block; !keep[b] && at < end; at += 512)
        TC_ASSERT(pwrite(fd, "\xff\x00\x55", (size_t)TC_MIN(3, end - at), p->offset + at) > 0);
    }
    free(keep);
    close(fd);
    free(path);
  }
}

/* With small blocks: rows are read although every other block is damaged, whether they go
 * straight to their place or not; what touches a damaged block fails, and says so again. */
static void test_partial(void)
{
  static const struct { int64_t start[2], count[2]; } box[] = {
    { { 20, 0 }, { 11, 257 } },       /* rows: straight */
    { { 70, 3 }, { 12, 200 } },       /* over several writers, run by run */
    { { 149, 256 }, { 1, 1 } },       /* the last element */
    { { 0, 0 }, { 1, 2 } },
    { { 3, 0 }, { 1, 253 } },         /* ends with a block */
    { { 63, 100 }, { 1, 157 } },
  };
  for (size_t i = 0; i < sizeof box / sizeof *box; i++) {
    const char *dir = fx_folder();
    struct tc_err err = {0};
    struct tc_ckpt *c;
    int world = i % 2 ? 4 : 1, big = 5;
    struct fx_save f = { .dir = dir, .step = 1, .salt = 1, .world = world, .block_bytes = 4096 };
    fx_threads(&f, fx_rank_save);
    TC_ASSERT(tc_ckpt_open(&c, dir, &err) == 0);
    is_int(fx_read_all(c, 1, &err), 1, "every tensor, in small blocks");
    tc_ckpt_close(c);
    TC_ASSERT(tc_ckpt_open(&c, dir, &err) == 0);
    spoil_others(c, big, box[i].start, box[i].count);
    if (!is_int(fx_read(c, 1, big, box[i].start, box[i].count, &err), 1,
                "box %d is read and right, all other blocks are damaged", (int)i))
      printf("# %s\n", err.text);
    is_int(fx_read(c, 1, big, box[i].start, box[i].count, &err), 1, "once more, checked now");
    ok(!c->damaged, "nothing was reported to be damaged");
    const int64_t zero[2] = { 0, 0 };
    is_int(fx_read(c, 1, big, zero, fx_tensor[big].dim, &err), TC_ECHECKSUM, "all of it isn't");
    is_int(fx_read(c, 1, big, zero, fx_tensor[big].dim, &err), TC_ECHECKSUM, "and stays so");
    ok(c->damaged && strstr(err.text, "tensor big") && strstr(err.text, "bytes"), "%s", err.text);
    tc_ckpt_close(c);
    fx_clean();
  }
}

/* ---- load -------------------------------------------------------------------------- */

/* A loader that reads every tensor in rows, each rank others; refuses at a step. */
struct loading {
  struct fx_save f;
  int64_t want, refuse_step, step[MOST_WRITERS];
  int tried[MOST_WRITERS];
};
enum { NO_LOADER = -2 };          /* a refuse_step: verify instead */
struct loader { struct loading *l; int rank, world; };

static int load_share(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  struct loader *r = ctx;
  int64_t step = tc_ckpt_meta(c)->step;
  r->l->tried[r->rank]++;
  if (step == r->l->refuse_step && r->rank == r->world - 1)
    return tc_fail(err, TC_EUSER, "step %d is of another model", (int)step);
  for (int t = 0; t < FX_TENSORS; t++) {
    const struct tc_ckpt_tensor *x = &fx_tensor[t];
    int64_t start[TC_DIMS] = {0}, count[TC_DIMS];
    memcpy(count, x->dim, sizeof count);
    if (x->rank > 0) {
      int64_t block = tc_ceil_div(x->dim[0], r->world);
      start[0] = TC_MIN(block * r->rank, x->dim[0]);
      count[0] = TC_MIN(block, x->dim[0] - start[0]);
      if (count[0] == 0) continue;
    }
    int rc = fx_read(c, (uint32_t)step, t, start, count, err);
    if (rc != 1) return rc < 0 ? rc : tc_fail(err, TC_EUSER, "%s: wrong values", x->name);
  }
  return 0;
}

static void *rank_load(void *arg)
{
  struct fx_rank *r = arg;
  struct loading *x = (struct loading *)((char *)r->save - offsetof(struct loading, f));
  struct loader l = { .l = x, .rank = r->rank, .world = x->f.world };
  struct tc_ckpt *c = NULL;
  struct tc_err *err = &x->f.err[r->rank];
  char *const who[] = { "rank 0", "rank 1", "rank 2", "rank 3" };
  x->f.status[r->rank] = x->refuse_step == NO_LOADER
    ? tc_ckpt_resume(&c, x->f.dir, x->want, r->world, who, err)
    : tc_ckpt_load(&c, x->f.dir, x->want, load_share, &l, r->world, who, err);
  x->step[r->rank] = c ? tc_ckpt_meta(c)->step : -1;
  tc_ckpt_close(c);
  return NULL;
}

/* All ranks return the same; the last rank is the one that refuses, so that its name comes first. */
static void loads(const char *dir, int world, int64_t want, int64_t refuse, int status,
                  int64_t step, int tried, const char *what)
{
  struct loading l = { .f = { .dir = dir, .world = world }, .want = want,
                       .refuse_step = refuse };
  fx_threads(&l.f, rank_load);
  bool good = true;
  for (int i = 0; i < world; i++)
    good = good && l.f.status[i] == status && l.step[i] == step && l.tried[i] == tried &&
           (status == 0 || strcmp(l.f.err[i].text, l.f.err[0].text) == 0);
  char named[40];
  snprintf(named, sizeof named, "rank %d: step %d is", world - 1, (int)refuse);
  good = good && (status != TC_EUSER || strncmp(l.f.err[0].text, named, strlen(named)) == 0);
  if (!ok(good, "load, %d ranks: %s", world, what))
    printf("#   status %d, step %d, %d tried: %s\n", l.f.status[0], (int)l.step[0],
           l.tried[0], l.f.err[0].text);
}

/* Spoils the last byte of a tensor's data; tensor -1: a byte of what no tensor has. */
static void spoil_data(const char *dir, int64_t step, int tensor)
{
  char *path = tc_ckpt_step_path(dir, step);
  struct tc_ckpt *c;
  TC_ASSERT(tc_ckpt_open(&c, path, NULL) == 0);
  free(path);
  const struct tc_piece *p = &c->m->piece[c->m->first_piece[TC_MAX(tensor, 0) + 1] - 1];
  int64_t at = tensor < 0 ? 100 : p->offset + p->bytes - 1;
  path = tc_sprintf("%s/%s", c->path, c->m->file[p->file].name);
  int fd = open(path, O_RDWR);
  unsigned char byte;
  TC_ASSERT(pread(fd, &byte, 1, at) == 1);
  byte ^= 0x10;
  TC_ASSERT(pwrite(fd, &byte, 1, at) == 1);
  close(fd);
  free(path);
  tc_ckpt_close(c);
}

static void test_load(void)
{
  const char *dir = fx_folder();
  loads(dir, 2, -1, -1, 0, -1, 0, "an empty folder is a first start");
  for (int step = 1; step <= 5; step++) fx_save(dir, step, (uint32_t)step, step % 3 ? 4 : 2, 0);
  loads(dir, 1, -1, -1, 0, 5, 1, "the newest");
  fx_save(dir, 6, 6, 2, 0);
  spoil_data(dir, 6, 5);
  loads(dir, 2, -1, NO_LOADER, 0, 5, 0, "without a loader: by verifying");
  loads(dir, 4, 2, -1, 0, 2, 1, "the one asked for");
  loads(dir, 4, -1, 5, TC_EUSER, -1, 1, "one that a rank refuses is not passed over");
  spoil_data(dir, 5, 5);
  loads(dir, 4, 5, -1, TC_ECHECKSUM, -1, 1, "a damaged one that was asked for");
  loads(dir, 2, -1, 4, TC_EUSER, -1, 2, "the one before a damaged one may be refused");
  loads(dir, 4, -1, -1, 0, 4, 2, "data that one rank finds damaged: all take the older one");
  is_int(fx_count(dir, "quarantine-"), 2, "and the damaged ones are set aside");
  spoil_data(dir, 4, -1);
  loads(dir, 2, -1, -1, 0, 3, 1, "metadata damaged: not even tried");
  char *cmd = tc_sprintf("truncate -s -1 '%s/step-00000003/rank-00001.h5'", dir);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  loads(dir, 4, -1, -1, 0, 2, 1, "a file cut off");
  spoil_data(dir, 2, 3);
  spoil_data(dir, 1, 0);
  loads(dir, 4, -1, -1, TC_ENOCKPT, -1, 2, "none is good");
  is_int(fx_count(dir, "step-"), 2, "then none is set aside");
  fx_clean();
}

/* ---- one answer for all --------------------------------------------------------------- */

enum { AGREE, FOLLOW, COMMIT };
struct agreeing { struct fx_save f; const int *mine; int how; };

/* The end of a save whose writing has failed on some rank. */
static int commit(struct fx_rank *r, int world, int mine, struct tc_err *err)
{
  static const char *const who[] = { "a", "b", "c", "d" };
  const struct tc_ckpt_meta meta = { .rank_names = who };
  struct tc_save s = { .dir = "nowhere", .meta = &meta, .rank = r->rank, .world = world };
  return tc_ckpt_commit(&s, mine, r->world, err);
}

static void *rank_agree(void *arg)
{
  struct fx_rank *r = arg;
  struct agreeing *x = (struct agreeing *)((char *)r->save - offsetof(struct agreeing, f));
  struct tc_err *err = &x->f.err[r->rank];
  const int mine = x->mine[r->rank];
  if (mine < 0) tc_fail(err, mine, "rank %d fails", r->rank);
  x->f.status[r->rank] = x->how == FOLLOW   ? tc_comm_bcast_status(r->world, mine, err)
                         : x->how == COMMIT ? commit(r, x->f.world, mine, err)
                                            : tc_comm_agree(r->world, NULL, mine, err);
  return NULL;
}

/* All ranks have the status and the message of the first that failed; or, to follow, rank 0's. The
 * commit names the rank, if it is not rank 0. */
static void test_agree(void)
{
  static const struct { int mine[4], how, status; const char *says; } c[] = {
    { { 0, 0, 0, 0 }, AGREE, 0, NULL }, { { 0, 0, 0, 0 }, FOLLOW, 0, NULL },
    { { 0, TC_ECHECKSUM, 0, TC_EUSER }, AGREE, TC_ECHECKSUM, "rank 1 fails" },
    { { 0, 0, 0, TC_EINCOMPLETE }, AGREE, TC_EINCOMPLETE, "rank 3 fails" },
    { { TC_EUSER, TC_EPEER, 0, 0 }, AGREE, TC_EUSER, "rank 0 fails" },
    { { TC_ENOCKPT, 0, TC_EUSER, 0 }, FOLLOW, TC_ENOCKPT, "rank 0 fails" },
    { { 0, TC_EUSER, TC_EUSER, TC_EUSER }, FOLLOW, 0, NULL },
    { { TC_EUSER, 0, TC_EPEER, 0 }, COMMIT, TC_EUSER, "rank 0 fails" },
    { { 0, 0, TC_EUSER, TC_EPEER }, COMMIT, TC_EUSER, "c: rank 2 fails" } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    for (int world = c[i].how == COMMIT ? 4 : 1; world <= 4; world += 3) {
      struct agreeing x = { .f = { .world = world }, .mine = c[i].mine, .how = c[i].how };
      const int status = world == 1 ? c[i].mine[0] : c[i].status;
      fx_threads(&x.f, rank_agree);
      for (int k = 0; k < world; k++) {
        is_int(x.f.status[k], status, "case %zu, rank %d of %d", i, k, world);
        if (status < 0) is_str(x.f.err[k].text, c[i].says, "... in these words");
      }
    }
}

/* Faults are reported in the order of the files; the error has their number and the first one. */
static void test_faults(void)
{
  const char *dir = fx_folder();
  struct tc_err err;
  struct tc_findings h = { 0 };
  fx_save(dir, 1, 1, 4, 0);
  char *step = tc_ckpt_step_path(dir, 1), *want[4];
  char *cmd = tc_sprintf("cd '%s' && printf xyz >> rank-00001.h5 && rm rank-00002.h5 && "
                         "mv rank-00003.h5 x && mkdir rank-00003.h5", step);
  is_int(verify_step_of(step, true, &h, &err), 0, "four files");
  is_int(h.n, 0, "... without fault");
  struct stat st;
  char *file = tc_sprintf("%s/rank-00001.h5", step);
  TC_ASSERT(stat(file, &st) == 0 && system(cmd) == 0);
  want[0] = tc_sprintf("%s: has %lld bytes instead of %lld", file, (long long)st.st_size + 3,
                       (long long)st.st_size);
  want[1] = tc_sprintf("%s/rank-00002.h5: is missing: the checkpoint is incomplete", step);
  want[2] = tc_sprintf("%s/rank-00003.h5: not a file", step);
  want[3] = tc_sprintf("3 faults in %s; the first: %s", step, want[0]);
  const int status[] = { TC_ECHECKSUM, TC_EINCOMPLETE, TC_ECHECKSUM };
  const int worst = TC_MIN(TC_ECHECKSUM, TC_EINCOMPLETE);
  for (int deep = 0; deep <= 1; deep++) {
    is_int(verify_step_of(step, deep, &h, &err), worst, "three files with faults, %d",
           deep);
    is_str(err.text, want[3], "... in these words");
    is_int(h.n, 3, "... each is reported");
    for (int i = 0; i < TC_MIN(h.n, 3); i++) {
      is_int(h.fault[i].status, status[i], "... with its status");
      is_str(h.fault[i].text, want[i], "... and sentence");
    }
    tc_findings_free(&h);
  }
  for (int i = 0; i < 4; i++) free(want[i]);
  free(file);
  free(cmd);
  free(step);
  fx_clean();
}

int main(void)
{
  close(STDIN_FILENO);                 /* files may well be descriptor 0 */
  alarm(1100);
  test_blocks();
  test_lay();
  test_partial();
  test_load();
  test_agree();
  test_faults();
  return done_testing();
}
